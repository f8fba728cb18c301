//! The samples of many sensors, from memory, columns, pages and measurements, a sensor or a stretch of
//! one at a time.
//!
//! Sensors are read in groups, each in the order that makes the answer complete ([`super`]): first
//! their rows in memory, then the columns of days that are over ([`super::columns`]), then, for the
//! gaps between these days, pages and measurements. The sensors with the same single gap, which is
//! mostly the open day, are read with one command; each sensor with several gaps is one group.
//!
//! Stored samples come in columns, without the readings around them. Three things need whole readings:
//! - a bucket with rows in memory: its stored part is read whole, and [`super::merge`] decides which
//!   of the rows are stored;
//! - a bucket in which one millisecond has several values of a field: their order is that of whole
//!   readings;
//! - rows in memory beyond what a shard copies for one sensor.
//!
//! The buckets of the last two are rare, and are read one sensor at a time.
//!
//! **Limits.** In memory are the rows of a group's sensors in the shards, the encoded columns of its
//! days (at most one answer of the store), a few batches of the cursor, and the samples of a batch's
//! sensors, or of a stretch of a long one.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use futures_util::stream::{self, StreamExt, TryStreamExt};

use super::columns::ColumnedDays;
use super::merge::{MergedReadings, ReadingMerge, Window};
use super::series::{Missing, Parts, SelectError, Wanted, fields_of, groups_of};
use super::{ReadError, ReadService};
use crate::promql::{Part, Sample, SelectedSeries, SeriesData};
use model::{BucketKey, BucketStart, Rows, SensorId, Span};
use pipeline::accumulate::UnstoredBucket;
use pipeline::accumulate::state::snapshot::UnstoredRows;
use store::StoreError;
use store::columns::StoredColumns;
use store::reading::MeasurementResults;
use store::samples::{SampleQuery, SampleStream, SensorSamples, number};

/// Sensors of one group: those of one command.
const SENSORS_AT_ONCE: usize = 500;
/// Readings in one step of a sensor that is read alone.
const STEP: usize = 10_000;
/// Samples of days in columns in one stretch.
const STRETCH: usize = 50_000;
/// Gaps between the days in columns of a sensor that are read separately.
const GAPS_MAX: usize = 16;
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
    /// Days in columns that were not given yet, in order.
    days: VecDeque<ColumnedDay>,
}

/// A day in columns, and the times of its buckets in the range of the query.
struct ColumnedDay {
    from_ms: i64,
    to_ms: i64,
    columns: StoredColumns,
}

/// A sensor, its rows in memory and its days in columns.
type OfSensor = (Wanted, UnstoredRows, ColumnedDays);

/// Sensors with the same gaps between their days in columns, while they are read: several sensors have
/// at most one gap.
struct Group<'a> {
    reads: &'a ReadService,
    sensors: HashMap<SensorId, Asked>,
    /// Reads a gap.
    query: SampleQuery,
    /// What is left of the gaps, in order.
    gaps: VecDeque<(i64, i64)>,
    /// The end of the gap that is being read.
    gap_end_ms: i64,
    found: SampleStream<'a>,
    /// What is given before the next of `found`.
    giving: Option<Giving>,
    /// Sensors without gaps that were not given yet.
    without_gaps: Vec<SensorId>,
    to_ms: i64,
    missing: Missing,
}

/// The days in columns of a sensor that begin before a time, and the stretch of a gap that follows.
struct Giving {
    sensor_id: SensorId,
    before_ms: i64,
    then: Option<SensorSamples>,
}

impl ReadService {
    /// The samples of these series in a time range (ms since 1970, end exclusive).
    pub(super) fn samples_of(&self, wanted: Vec<Wanted>, range: (i64, i64)) -> Parts<'_> {
        let waiting = groups_of(wanted, SENSORS_AT_ONCE);
        let groups = stream::try_unfold(waiting, move |mut waiting| async move {
            let Some(wanted) = waiting.pop_front() else {
                return Ok::<_, SelectError>(None);
            };
            let (groups, rest) = self.groups(wanted, range).await?;
            if !rest.is_empty() {
                waiting.push_front(rest);
            }
            Ok(Some((
                stream::iter(groups).map(Ok::<_, SelectError>),
                waiting,
            )))
        });
        let parts = |group| stream::try_unfold(group, Group::next);
        groups.try_flatten().map_ok(parts).try_flatten().boxed()
    }

    /// Begins to read these sensors, or as many of them as fit into memory. Returns the others.
    async fn groups(
        &self,
        wanted: Vec<Wanted>,
        range: (i64, i64),
    ) -> Result<(Vec<Group<'_>>, Vec<Wanted>), SelectError> {
        let days = self.days_with_columns(wanted.len(), range);
        let sensor_ids: Vec<SensorId> = wanted.iter().map(|of| of.sensor_id.clone()).collect();
        // Whole days, so that a day that is used has no row in memory.
        let from_ms = days
            .first()
            .map_or(range.0, |day| day.start_ms.min(range.0));
        let to_ms = days.last().map_or(range.1, |day| day.end_ms.max(range.1));
        let views = self.views(&sensor_ids, from_ms, to_ms).await?;
        let missing = Missing {
            recent: !views.complete || views.answer.iter().any(|view| view.cut_ms.is_some()),
            ..Missing::default()
        };
        let views = views.answer;
        let changed = match days.is_empty() {
            true => None,
            false => self.changed_days(&sensor_ids, &views, &days).await?,
        };
        let (columned, rest) = match changed {
            Some(changed) => self.columned_days(&wanted, &days, &changed).await?,
            None => (vec![ColumnedDays::new(); wanted.len()], BTreeSet::new()),
        };
        let mut later = vec![];
        let mut by_gaps: BTreeMap<Vec<(i64, i64)>, Vec<OfSensor>> = BTreeMap::new();
        for ((wanted, view), mut columned) in wanted.into_iter().zip(views).zip(columned) {
            if rest.contains(&wanted.sensor_id) {
                later.push(wanted);
                continue;
            }
            let mut gaps = self.gaps(columned.keys(), range);
            if gaps.len() > GAPS_MAX {
                columned.clear();
                gaps = vec![range];
            }
            by_gaps
                .entry(gaps)
                .or_default()
                .push((wanted, view, columned));
        }
        let mut groups = vec![];
        for (gaps, sensors) in by_gaps {
            match gaps.len() {
                0 | 1 => groups.push(self.begin(sensors, gaps.into(), range, missing)),
                _ => groups.extend(
                    sensors
                        .into_iter()
                        .map(|one| self.begin(vec![one], gaps.clone().into(), range, missing)),
                ),
            }
        }
        Ok((groups, later))
    }

    fn begin(
        &self,
        sensors: Vec<OfSensor>,
        gaps: VecDeque<(i64, i64)>,
        range: (i64, i64),
        missing: Missing,
    ) -> Group<'_> {
        let mut query = SampleQuery {
            sensor_ids: sensors
                .iter()
                .map(|(of, ..)| of.sensor_id.clone())
                .collect(),
            fields: fields_of(sensors.iter().map(|(wanted, ..)| wanted)),
            from_ms: range.0,
            to_ms: range.0,
            span: self.span(),
            whole: BTreeSet::new(),
            is_narrow: sensors.iter().all(|(wanted, ..)| wanted.is_narrow),
        };
        let mut asked = HashMap::new();
        for (wanted, view, columned) in sensors {
            let sensor_id = wanted.sensor_id.clone();
            let place = |name: &String| query.fields.binary_search(name).unwrap_or(0);
            let places = wanted.fields.iter().map(|(name, _)| place(name)).collect();
            let cut_ms = view.cut_ms.map_or(i64::MAX, |cut| self.span().floor(cut).0);
            let is_in = |of: &UnstoredBucket| {
                let start = of.start();
                start.0 < range.1 && self.span().end(start) > range.0
            };
            let open: VecDeque<UnstoredBucket> = view.buckets.into_iter().filter(is_in).collect();
            query.whole.extend(open.iter().map(|bucket| BucketKey {
                sensor_id: sensor_id.clone(),
                start: bucket.start(),
            }));
            let day = |(day, columns)| {
                let (from_ms, to_ms) = self.buckets_of(day, range);
                ColumnedDay {
                    from_ms,
                    to_ms,
                    columns,
                }
            };
            let asked_of = Asked {
                wanted,
                places,
                open,
                cut_ms,
                days: columned.into_iter().map(day).collect(),
            };
            asked.insert(sensor_id, asked_of);
        }
        let without_gaps = match gaps.is_empty() {
            true => asked.keys().cloned().collect(),
            false => vec![],
        };
        Group {
            reads: self,
            sensors: asked,
            query,
            gaps,
            gap_end_ms: range.0,
            found: stream::empty().boxed(),
            giving: None,
            without_gaps,
            to_ms: range.1,
            missing,
        }
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
    async fn next(mut self) -> Result<Option<((Part, Missing), Group<'a>)>, SelectError> {
        loop {
            if let Some(mut giving) = self.giving.take() {
                let Some(asked) = self.sensors.get_mut(&giving.sensor_id) else {
                    continue;
                };
                let days = asked.next_days(giving.before_ms, self.query.fields.len());
                let stretch = match days.map_err(ReadError::from)? {
                    Some(days) => {
                        self.giving = Some(giving);
                        days
                    }
                    None => match giving.then.take() {
                        None => continue,
                        Some(stretch) => {
                            if stretch.until_ms == self.gap_end_ms {
                                let next = self.gaps.front();
                                giving.before_ms = next.map_or(i64::MAX, |gap| gap.0);
                                self.giving = Some(giving);
                            }
                            stretch
                        }
                    },
                };
                let (part, missing) = asked.part(self.reads, stretch, self.to_ms).await?;
                return Ok(Some(((part, missing.and(self.missing)), self)));
            }
            if let Some(stretch) = self.found.try_next().await.map_err(ReadError::from)? {
                self.giving = Some(Giving {
                    sensor_id: stretch.sensor_id.clone(),
                    before_ms: stretch.from_ms,
                    then: Some(stretch),
                });
            } else if let Some((from_ms, to_ms)) = self.gaps.pop_front() {
                self.gap_end_ms = to_ms;
                self.found = self.reads.store.samples(SampleQuery {
                    from_ms,
                    to_ms,
                    ..self.query.clone()
                });
            } else if let Some(sensor_id) = self.without_gaps.pop() {
                self.giving = Some(Giving {
                    sensor_id,
                    before_ms: i64::MAX,
                    then: None,
                });
            } else {
                return Ok(None);
            }
        }
    }
}

impl Asked {
    /// The samples of some more days in columns that begin before this time. `fields`: how many the
    /// query has.
    fn next_days(
        &mut self,
        before_ms: i64,
        fields: usize,
    ) -> Result<Option<SensorSamples>, StoreError> {
        let is_next = |day: &ColumnedDay| day.from_ms < before_ms;
        let Some(first) = self.days.front().filter(|day| is_next(day)) else {
            return Ok(None);
        };
        let names = self.wanted.fields.iter().map(|(name, _)| name.as_str());
        let names: Vec<&str> = names.collect();
        let mut found = SensorSamples {
            sensor_id: self.wanted.sensor_id.clone(),
            from_ms: first.from_ms,
            until_ms: first.from_ms,
            fields: vec![vec![]; fields],
            ..SensorSamples::default()
        };
        let mut held = 0;
        // Days without a gap between them.
        while held < STRETCH
            && let Some(day) = self.days.front().filter(|day| is_next(day))
            && day.from_ms == found.until_ms
        {
            let samples = day.columns.samples(&names, day.from_ms..day.to_ms)?;
            for (place, samples) in self.places.iter().zip(samples) {
                held += samples.len();
                found.fields[*place].extend(samples);
            }
            found.until_ms = day.to_ms;
            self.days.pop_front();
        }
        Ok(Some(found))
    }

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
