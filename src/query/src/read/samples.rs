//! The samples of many sensors, from memory, pages and measurements, a sensor or a stretch of one at
//! a time.
//!
//! Sensors are read in groups, each in the order that makes the answer complete ([`super`]): first
//! their rows in memory, then, with one command, what is stored. Stored samples come in columns,
//! without the readings around them. Three things need whole readings:
//! - a bucket with rows in memory: its stored part is read whole, and [`super::merge`] decides which
//!   of the rows are stored;
//! - a bucket in which one millisecond has several values of a field: their order is that of whole
//!   readings;
//! - rows in memory beyond what a shard copies for one sensor.
//!
//! The buckets of the last two are rare, and are read one sensor at a time.
//!
//! **Limits.** In memory are the rows of a group's sensors in the shards, a few batches of the
//! cursor, and the samples of a batch's sensors, or of a stretch of a long one.

use std::collections::{BTreeSet, HashMap, VecDeque};

use futures_util::stream::{self, StreamExt, TryStreamExt};

use super::merge::{MergedReadings, ReadingMerge, Window};
use super::series::{Missing, Parts, SelectError, Wanted};
use super::{ReadError, ReadService};
use crate::promql::{Part, Sample, SelectedSeries, SeriesData};
use model::{BucketKey, BucketStart, Rows, SensorId, Span};
use pipeline::accumulate::UnstoredBucket;
use pipeline::accumulate::state::snapshot::UnstoredRows;
use store::reading::MeasurementResults;
use store::samples::{SampleQuery, SampleStream, SensorSamples, number};

/// Sensors of one group: those of one command.
const SENSORS_AT_ONCE: usize = 500;
/// Readings in one step of a sensor that is read alone.
const STEP: usize = 10_000;
/// Readings of one bucket that are merged with rows in memory at once.
const MERGED_MAX: usize = 4_000_000;

/// One sensor of a group, while it is read.
struct Asked {
    wanted: Wanted,
    /// Places of its fields in the query.
    places: Vec<usize>,
    /// Buckets with rows in memory, in order.
    open: VecDeque<UnstoredBucket>,
    /// The rows in memory from this time on are not in `open`.
    cut_ms: i64,
}

/// A group of sensors, while it is read.
struct Group<'a> {
    reads: &'a ReadService,
    sensors: HashMap<SensorId, Asked>,
    found: SampleStream<'a>,
    to_ms: i64,
    missing: Missing,
}

impl ReadService {
    /// The samples of these series in a time range (ms since 1970, end exclusive).
    pub(super) fn samples_of(&self, wanted: Vec<Wanted>, range: (i64, i64)) -> Parts<'_> {
        let mut groups = vec![];
        let mut rest = wanted.into_iter().peekable();
        while rest.peek().is_some() {
            groups.push(rest.by_ref().take(SENSORS_AT_ONCE).collect::<Vec<_>>());
        }
        let parts = move |group| {
            let begun = stream::once(Group::begin(self, group, range));
            let parts = |group| stream::try_unfold(group, Group::next);
            begun.map_ok(parts).try_flatten()
        };
        stream::iter(groups).flat_map(parts).boxed()
    }

    /// The values of fields of one sensor in a time range (end exclusive), each reading's; and the
    /// missing parts.
    pub(super) async fn samples(
        &self,
        sensor_id: &SensorId,
        fields: &[&str],
        (from_ms, to_ms): (i64, i64),
    ) -> Result<(Vec<Readings>, Missing), ReadError> {
        let mut all: Vec<Readings> = fields.iter().map(|_| Readings::default()).collect();
        let mut missing = Missing::default();
        let mut after = None;
        loop {
            let window = Window {
                from_ms,
                to_ms,
                after,
                limit: STEP,
            };
            let found = self.gather(sensor_id.clone(), window).await?;
            missing = missing.and(Missing {
                recent: !found.complete,
                removed_until_ms: found.answer.removed_until_ms,
                ..Missing::default()
            });
            push(&mut all, fields, &found.answer.rows);
            after = found.answer.next;
            if after.is_none() {
                return Ok((all, missing));
            }
        }
    }
}

impl<'a> Group<'a> {
    async fn begin(
        reads: &'a ReadService,
        wanted: Vec<Wanted>,
        (from_ms, to_ms): (i64, i64),
    ) -> Result<Group<'a>, SelectError> {
        let sensor_ids: Vec<&SensorId> = wanted.iter().map(|of| &of.sensor_id).collect();
        let views = reads.views(&sensor_ids, from_ms, to_ms).await?;
        let names = wanted.iter().flat_map(|of| &of.fields);
        let names: BTreeSet<&str> = names.map(|(name, _)| name.as_str()).collect();
        let places: HashMap<&str, usize> = names.iter().copied().zip(0..).collect();
        let places: Vec<Vec<usize>> = wanted
            .iter()
            .map(|of| of.fields.iter().map(|(name, _)| places[name.as_str()]))
            .map(Iterator::collect)
            .collect();
        let mut query = SampleQuery {
            sensor_ids: sensor_ids.into_iter().cloned().collect(),
            fields: names.into_iter().map(ToOwned::to_owned).collect(),
            from_ms,
            to_ms,
            span: reads.span(),
            whole: BTreeSet::new(),
            is_narrow: wanted.iter().all(|of| of.is_narrow),
        };
        let mut missing = Missing {
            recent: !views.complete,
            ..Missing::default()
        };
        let mut sensors = HashMap::new();
        for ((wanted, places), view) in wanted.into_iter().zip(places).zip(views.answer) {
            let sensor_id = wanted.sensor_id.clone();
            missing.recent |= view.cut_ms.is_some();
            let cut_ms = view
                .cut_ms
                .map_or(i64::MAX, |cut| reads.span().floor(cut).0);
            let open: VecDeque<UnstoredBucket> = view.buckets.into();
            query.whole.extend(open.iter().map(|bucket| BucketKey {
                sensor_id: sensor_id.clone(),
                start: bucket.start(),
            }));
            let asked = Asked {
                wanted,
                places,
                open,
                cut_ms,
            };
            sensors.insert(sensor_id, asked);
        }
        Ok(Group {
            found: reads.store.samples(query),
            reads,
            sensors,
            to_ms,
            missing,
        })
    }

    async fn next(mut self) -> Result<Option<((Part, Missing), Group<'a>)>, SelectError> {
        while let Some(found) = self.found.try_next().await.map_err(ReadError::from)? {
            if let Some(asked) = self.sensors.get_mut(&found.sensor_id) {
                let (part, missing) = asked.part(self.reads, found, self.to_ms).await?;
                let missing = missing.and(self.missing);
                return Ok(Some(((part, missing), self)));
            }
        }
        Ok(None)
    }
}

impl Asked {
    /// The next stretch of the sensor, with its rows in memory.
    async fn part(
        &mut self,
        reads: &ReadService,
        mut found: SensorSamples,
        to_ms: i64,
    ) -> Result<(Part, Missing), ReadError> {
        let span = reads.span();
        let from_ms = found.from_ms;
        let mut missing = Missing {
            removed_until_ms: found.removed_until_ms,
            ..Missing::default()
        };
        let names = self.wanted.fields.iter().map(|(name, _)| name.as_str());
        let names: Vec<&str> = names.collect();
        let mut all: Vec<Readings> = self
            .places
            .iter()
            .map(|place| Readings(std::mem::take(&mut found.fields[*place])))
            .collect();
        // Buckets that are read alone.
        let bounds = |start: BucketStart| (start.0.max(from_ms), span.end(start).min(to_ms));
        let mut alone: BTreeSet<(i64, i64)> = found
            .doubtful
            .iter()
            .map(|ts_ms| bounds(span.floor(*ts_ms)))
            .collect();
        let is_in = |of: &UnstoredBucket| of.start().0 < found.until_ms;
        let in_memory = self.open.partition_point(is_in);
        for bucket in self.open.drain(..in_memory) {
            let bounds = bounds(bucket.start());
            if bucket.start().0 >= self.cut_ms {
                continue;
            }
            let merged = merged(bucket, &found, bounds, span);
            let removed_until_ms = merged.removed_until_ms;
            missing = missing.and(Missing {
                removed_until_ms,
                ..Missing::default()
            });
            match merged.next {
                None => push(&mut all, &names, &merged.rows),
                Some(_) => drop(alone.insert(bounds)),
            }
        }
        if self.cut_ms < found.until_ms {
            alone.insert((self.cut_ms.max(from_ms), found.until_ms));
        }
        for range in runs(alone) {
            for readings in &mut all {
                readings
                    .0
                    .retain(|s| s.ts_ms < range.0 || s.ts_ms >= range.1);
            }
            let (more, of_more) = reads.samples(&self.wanted.sensor_id, &names, range).await?;
            missing = missing.and(of_more);
            for (readings, more) in all.iter_mut().zip(more) {
                readings.0.extend(more.0);
            }
        }
        let series = self.wanted.fields.iter().zip(all);
        let series = series.map(|((_, labels), mut readings)| {
            // Of buckets, which do not overlap.
            if !readings.0.is_sorted_by_key(|sample| sample.ts_ms) {
                readings.0.sort_by_key(|sample| sample.ts_ms);
            }
            SelectedSeries {
                labels: labels.clone(),
                data: SeriesData::Samples(readings.last_of_each()),
            }
        });
        let part = Part {
            series: series.collect(),
            until_ms: match found.until_ms < to_ms {
                true => found.until_ms - 1,
                false => Part::WHOLE,
            },
        };
        Ok((part, missing))
    }
}

/// The readings of a bucket with rows in memory, whose stored part was read whole.
fn merged(
    bucket: UnstoredBucket,
    found: &SensorSamples,
    (from_ms, to_ms): (i64, i64),
    span: Span,
) -> MergedReadings {
    let start = bucket.start();
    let window = Window {
        from_ms,
        to_ms,
        after: None,
        limit: MERGED_MAX,
    };
    let view = UnstoredRows {
        buckets: vec![bucket],
        cut_ms: None,
    };
    let mut merge = ReadingMerge::new(window, span, view);
    let pages = found.pages.iter().filter(|(of, _)| *of == start);
    pages.for_each(|(_, page)| merge.page(start, page));
    let mut rows = Rows::default();
    let measured = found.measured.iter();
    measured
        .filter(|row| span.floor(row.ts_ms) == start)
        .for_each(|row| rows.push_row(&row));
    let until_ms = to_ms;
    merge.finish(until_ms, &MeasurementResults { rows, until_ms })
}

/// Ranges in order, those that touch or overlap joined.
fn runs(ranges: BTreeSet<(i64, i64)>) -> Vec<(i64, i64)> {
    let mut runs: Vec<(i64, i64)> = vec![];
    for (from_ms, to_ms) in ranges {
        match runs.last_mut() {
            Some((_, end_ms)) if *end_ms >= from_ms => *end_ms = to_ms.max(*end_ms),
            _ => runs.push((from_ms, to_ms)),
        }
    }
    runs
}

/// Adds the samples of readings to the fields.
fn push(all: &mut [Readings], fields: &[&str], rows: &Rows) {
    for row in rows.iter() {
        for (name, value) in row.named() {
            let place = fields.iter().position(|field| *field == name);
            if let (Some(place), Some(value)) = (place, number(value)) {
                all[place].0.push(Sample {
                    ts_ms: row.ts_ms,
                    value,
                });
            }
        }
    }
}

/// A field's values, ordered by time; several may have the same.
#[derive(Default)]
pub(super) struct Readings(Vec<Sample>);

impl Readings {
    /// One sample of each millisecond: the last one.
    pub(super) fn last_of_each(mut self) -> Vec<Sample> {
        self.0.dedup_by(|later, first| {
            let is_same = later.ts_ms == first.ts_ms;
            if is_same {
                first.value = later.value;
            }
            is_same
        });
        self.0
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn values(&self) -> Vec<f64> {
        self.0.iter().map(|sample| sample.value).collect()
    }

    pub(super) fn between(&self, from_ms: i64, to_ms: i64) -> Readings {
        let from = self.0.partition_point(|s| s.ts_ms < from_ms);
        let to = self.0.partition_point(|s| s.ts_ms < to_ms);
        Readings(self.0[from..to.max(from)].to_vec())
    }
}
