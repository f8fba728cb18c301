//! Windows of many sensors, from the summaries of their days and hours: [`crate::promql::windows`]
//! has the rules.
//!
//! Sensors are answered in groups, each in this order, which makes the answer current as in
//! [`super`] and [`super::days`]:
//! 1. from the shards: the rows in memory of each sensor;
//! 2. the days that may have changed (pending ones, and the marks of all instances), then the
//!    documents of days. A day is used if it is not among the former, has no row in memory, and no
//!    field needs its hours;
//! 3. the hours that no day covers, of all sensors with the same gaps in one request; those with
//!    rows in memory are added up one by one;
//! 4. the readings at the edges of windows: of stored hours, those of their first millisecond, of
//!    all sensors in one request. Then the other readings that the rules need: hours cut by a
//!    window, in runs, and days replaced by hours.
//!
//! **Limits.** A group has about [`BUCKETS_AT_ONCE`] buckets. Its rows in memory are copied: at
//! most what the shards hold (`accumulate.max_bytes`). Readings count against `promql.samples_max`.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::{StreamExt, TryStreamExt, stream};

use super::days::{DailyHours, MARKS_MAX};
use super::hours::{Hour, Hours, OpenHour};
use super::series::{Missing, SelectError, SelectLimits, Wanted};
use super::{FIELDS_MAX, ReadError, ReadService};
use crate::accumulate::UnstoredBucket;
use crate::maintain::StoredPage;
use crate::model::rows::Row;
use crate::model::{BucketKey, BucketStart, Day, FieldSummary, Rows, SensorId, stable_hash};
use crate::promql::windows::{Need, SummarisedBucket, answer};
use crate::promql::{Labels, SelectedSeries, SeriesData, WindowStats, Windows};
use crate::route::shard_of;
use crate::store::days::{DaysQuery, MarkQuery, MarksOf};
use crate::store::reading::PageQuery;
use crate::store::summaries::{EdgeQuery, SummaryQuery};

/// Buckets of one group.
const BUCKETS_AT_ONCE: i64 = 20_000;
/// Sensors of one group.
const SENSORS_AT_ONCE: i64 = 200;
/// Groups that are loaded at the same time.
const GROUPS: usize = 2;
/// Requests for one sensor each, at the same time, for one group.
const CONCURRENT: usize = 8;
/// Shorter windows contain no whole day, unless its sensor was silent for hours.
const DAYS_RANGE_MIN_MS: i64 = 20 * 60 * 60 * 1000;
/// Days of a query whose documents are requested: ten years. Longer ones take the hours.
const DAYS_MAX: usize = 3660;
/// Gaps between days that are read separately.
const GAPS_MAX: usize = 16;
/// Hours between two that are needed, which are read too rather than by another request.
const SKIPPED_HOURS_MAX: i64 = 2;
/// Buckets whose edges are read in one request.
const EDGES_AT_ONCE: usize = 1000;

/// One sensor, while it is loaded.
struct Loading {
    sensor_id: SensorId,
    /// Hours whose edges are read together with the rows in memory.
    open: BTreeSet<BucketStart>,
    missing: Missing,
    series: Vec<Loaded>,
}

struct Loaded {
    field: String,
    labels: Labels,
    buckets: Vec<SummarisedBucket>,
}

/// The requested values.
#[derive(Clone, Copy)]
struct Asked<'a> {
    /// Of the first bucket.
    from_ms: i64,
    /// The time before which the last bucket begins.
    to_ms: i64,
    windows: &'a Windows,
    limits: &'a SelectLimits,
}

impl ReadService {
    /// The windows of each series. The times are those of the windows: after the first, up to the
    /// second (ms since 1970).
    pub(super) async fn windows(
        &self,
        wanted: Vec<Wanted>,
        (after_ms, to_ms): (i64, i64),
        windows: &Windows,
        limits: &SelectLimits,
    ) -> Result<(Vec<SelectedSeries>, Missing), SelectError> {
        let asked = Asked {
            from_ms: self.span().floor(after_ms + 1).0,
            to_ms: to_ms + 1,
            windows,
            limits,
        };
        let of_each = (asked.to_ms - asked.from_ms) / self.span().ms() + 1;
        let size = (BUCKETS_AT_ONCE / of_each).clamp(1, SENSORS_AT_ONCE) as usize;
        let mut groups = vec![];
        let mut rest = wanted.into_iter().peekable();
        while rest.peek().is_some() {
            groups.push(rest.by_ref().take(size).collect::<Vec<_>>());
        }
        let loads = groups.into_iter().map(|group| self.group(group, asked));
        let loaded: Vec<(Vec<SelectedSeries>, Missing)> = stream::iter(loads)
            .buffer_unordered(GROUPS)
            .try_collect()
            .await?;
        let missing = loaded
            .iter()
            .fold(Missing::default(), |all, (_, missing)| all.and(*missing));
        Ok((
            loaded.into_iter().flat_map(|(series, _)| series).collect(),
            missing,
        ))
    }

    async fn group(
        &self,
        wanted: Vec<Wanted>,
        asked: Asked<'_>,
    ) -> Result<(Vec<SelectedSeries>, Missing), SelectError> {
        let end_ms = self.span().end(self.span().floor(asked.to_ms - 1));
        // With days, whole ones, so that a day that is used has no row in memory.
        let range = match self.rollups.is_empty() {
            true => (asked.from_ms, end_ms),
            false => (
                self.zone.day(asked.from_ms).start_ms,
                self.zone.day(asked.to_ms - 1).end_ms.max(end_ms),
            ),
        };
        let views = wanted
            .iter()
            .map(|sensor| self.view(&sensor.sensor_id, range.0, range.1));
        let views: Vec<_> = stream::iter(views.collect::<Vec<_>>())
            .buffered(CONCURRENT)
            .try_collect()
            .await?;
        let recent = views
            .iter()
            .any(|view| !view.complete || view.answer.cut_ms.is_some());
        let views: Vec<Vec<UnstoredBucket>> =
            views.into_iter().map(|view| view.answer.buckets).collect();
        let days = self
            .usable_days(&wanted, &views, range, asked.windows)
            .await?;
        let hours = self.hours_between(&wanted, views, &days, asked).await?;
        let mut loading: Vec<Loading> = wanted
            .into_iter()
            .zip(days)
            .zip(hours)
            .map(|((wanted, days), (hours, open))| self.loading(wanted, &days, &hours, open))
            .collect();
        while self.load_edges(&mut loading, asked).await?
            | self.load_others(&mut loading, asked).await?
        {}
        let mut missing = Missing {
            recent,
            removed_until_ms: None,
        };
        missing = loading
            .iter()
            .fold(missing, |all, sensor| all.and(sensor.missing));
        let mut series = vec![];
        for Loaded {
            labels, buckets, ..
        } in loading.into_iter().flat_map(|sensor| sensor.series)
        {
            asked.limits.add_samples(asked.windows.steps)?;
            series.push(SelectedSeries {
                labels,
                data: SeriesData::Windows(answer(asked.windows, &buckets)),
            });
        }
        Ok((series, missing))
    }

    /// For each sensor the days whose document can be used.
    async fn usable_days(
        &self,
        wanted: &[Wanted],
        views: &[Vec<UnstoredBucket>],
        (from_ms, to_ms): (i64, i64),
        windows: &Windows,
    ) -> Result<Vec<DailyHours>, ReadError> {
        let mut usable = vec![DailyHours::new(); wanted.len()];
        let has_days = !self.rollups.is_empty() && windows.range_ms >= DAYS_RANGE_MIN_MS;
        let Some(store) = self.store.days().filter(|_| has_days) else {
            return Ok(usable);
        };
        let all: Vec<Day> = self.zone.days(from_ms, to_ms).take(DAYS_MAX + 1).collect();
        if all.len() > DAYS_MAX {
            return Ok(usable);
        }
        let place: BTreeMap<&SensorId, usize> = wanted
            .iter()
            .enumerate()
            .map(|(i, of)| (&of.sensor_id, i))
            .collect();
        let mut changed: Vec<BTreeSet<Day>> = vec![];
        for (sensor, view) in wanted.iter().zip(views) {
            let shard = shard_of(stable_hash(&sensor.sensor_id), self.rollups.len());
            let pending = self.rollups[shard].pending(&sensor.sensor_id, all.iter().copied());
            let held = view.iter().map(|bucket| self.zone.day(bucket.start().0));
            changed.push(pending.into_iter().chain(held).collect());
        }
        let sensor_ids: Vec<SensorId> = wanted.iter().map(|of| of.sensor_id.clone()).collect();
        let marks = MarkQuery {
            of: MarksOf::Sensors(sensor_ids.clone()),
            after: None,
            limit: MARKS_MAX,
        };
        let marks = store.day_marks(&marks).await?;
        if marks.len() >= MARKS_MAX {
            return Ok(usable);
        }
        for mark in marks {
            if let Some(i) = place.get(&mark.sensor_id) {
                changed[*i].insert(self.zone.day(mark.day_ms));
            }
        }
        let mut query = DaysQuery {
            sensor_ids,
            from_ms,
            to_ms,
            fields: fields_of(wanted),
        };
        while !query.sensor_ids.is_empty() {
            let found = store.days_of(&query).await?;
            for (sensor_id, day_ms, hour) in found.days {
                let (Some(i), day) = (place.get(&sensor_id).copied(), self.zone.day(day_ms)) else {
                    continue;
                };
                let is_usable = |(field, _): &(String, Labels)| {
                    let bucket = summarised((day.start_ms, day.end_ms, true), &hour, field);
                    bucket.is_none_or(|bucket| bucket.need(windows) != Need::Samples)
                };
                if day.start_ms == day_ms
                    && !changed[i].contains(&day)
                    && wanted[i].fields.iter().all(is_usable)
                {
                    usable[i].insert(day, hour);
                }
            }
            // Days that are too large for an answer are left out: their hours are read instead.
            if found.rest.len() == query.sensor_ids.len() {
                break;
            }
            query.sensor_ids = found.rest;
        }
        Ok(usable)
    }

    /// For each sensor the hours that no day covers, and which of them are partly in memory.
    async fn hours_between(
        &self,
        wanted: &[Wanted],
        views: Vec<Vec<UnstoredBucket>>,
        days: &[DailyHours],
        asked: Asked<'_>,
    ) -> Result<Vec<(Hours, BTreeSet<BucketStart>)>, ReadError> {
        let mut by_gaps: BTreeMap<Vec<(i64, i64)>, Vec<usize>> = BTreeMap::new();
        for (i, days) in days.iter().enumerate() {
            by_gaps
                .entry(gaps(asked.from_ms, asked.to_ms, days))
                .or_default()
                .push(i);
        }
        let place: BTreeMap<&SensorId, usize> = wanted
            .iter()
            .enumerate()
            .map(|(i, of)| (&of.sensor_id, i))
            .collect();
        let is_covered = |i: usize, start: BucketStart| {
            days[i]
                .range(
                    ..=Day {
                        start_ms: start.0,
                        end_ms: i64::MAX,
                    },
                )
                .next_back()
                .is_some_and(|(day, _)| day.contains(start.0))
        };
        let is_asked = |start: BucketStart| start.0 >= asked.from_ms && start.0 < asked.to_ms;
        let mut all: Vec<(Hours, BTreeSet<BucketStart>)> = vec![];
        for view in &views {
            let open = view
                .iter()
                .map(UnstoredBucket::start)
                .filter(|start| is_asked(*start))
                .collect();
            all.push((Hours::new(), open));
        }
        let fields = fields_of(wanted);
        let requests = by_gaps
            .iter()
            .flat_map(|(gaps, sensors)| gaps.iter().map(move |gap| (*gap, sensors)));
        let requests = requests.map(|((from_ms, to_ms), sensors)| {
            let sensor_ids = sensors
                .iter()
                .map(|i| wanted[*i].sensor_id.clone())
                .collect();
            self.summaries(SummaryQuery {
                sensor_ids,
                from: BucketStart(from_ms),
                to_ms,
                fields: fields.clone(),
            })
        });
        let mut found = stream::iter(requests.collect::<Vec<_>>()).buffer_unordered(GROUPS);
        let mut held = 0;
        while let Some(pages) = found.try_next().await? {
            for (key, page) in pages {
                let Some(i) = place.get(&key.sensor_id).copied() else {
                    continue;
                };
                if is_covered(i, key.start) || all[i].1.contains(&key.start) {
                    continue;
                }
                let hour = all[i].0.entry(key.start).or_default();
                held += page.summary.len();
                if held < FIELDS_MAX {
                    hour.add_page(&page)
                } else {
                    hour.add_count(&page)
                }
            }
        }
        let open = views
            .into_iter()
            .enumerate()
            .flat_map(|(i, view)| view.into_iter().map(move |bucket| (i, bucket)));
        let open =
            open.filter(|(_, bucket)| is_asked(bucket.start()))
                .map(|(i, bucket)| async move {
                    Ok::<_, ReadError>((
                        i,
                        self.add_up_open(&wanted[i].sensor_id, OpenHour::new(bucket))
                            .await?,
                    ))
                });
        let mut open = stream::iter(open.collect::<Vec<_>>()).buffer_unordered(CONCURRENT);
        while let Some((i, (start, hour))) = open.try_next().await? {
            all[i].0.insert(start, hour);
        }
        Ok(all)
    }

    /// All pages of a query.
    async fn summaries(
        &self,
        mut query: SummaryQuery,
    ) -> Result<Vec<(BucketKey, StoredPage)>, ReadError> {
        let mut all = vec![];
        while !query.sensor_ids.is_empty() {
            let found = self.store.summaries(&query).await?;
            all.extend(found.pages);
            let is_stuck = found.rest.len() == query.sensor_ids.len();
            query.sensor_ids = found.rest;
            if let Some(sensor_id) = query.sensor_ids.pop_if(|_| is_stuck) {
                let from = query.from;
                let to_ms = query.to_ms;
                let key = |start| BucketKey {
                    sensor_id: sensor_id.clone(),
                    start,
                };
                let sensor_id = sensor_id.clone();
                let mut one = PageQuery {
                    sensor_id,
                    from,
                    to_ms,
                    after: None,
                    readings_from_ms: None,
                };
                loop {
                    let found = self.store.pages(&one).await?;
                    all.extend(
                        found
                            .pages
                            .into_iter()
                            .map(|(start, page)| (key(start), page)),
                    );
                    one.after = found.next;
                    if one.after.is_none() {
                        break;
                    }
                }
            }
        }
        Ok(all)
    }

    fn loading(
        &self,
        wanted: Wanted,
        days: &DailyHours,
        hours: &Hours,
        open: BTreeSet<BucketStart>,
    ) -> Loading {
        let loaded = |(field, labels): (String, Labels)| {
            let of_days = days.iter().filter_map(|(day, hour)| {
                summarised((day.start_ms, day.end_ms, true), hour, &field)
            });
            let mut buckets: Vec<SummarisedBucket> =
                of_days.chain(self.of_hours(hours, &field)).collect();
            buckets.sort_by_key(|bucket| bucket.start_ms);
            Loaded {
                field,
                labels,
                buckets,
            }
        };
        let series = wanted.fields.into_iter().map(loaded).collect();
        Loading {
            sensor_id: wanted.sensor_id,
            open,
            missing: Missing::default(),
            series,
        }
    }

    fn of_hours<'a>(
        &'a self,
        hours: &'a Hours,
        field: &'a str,
    ) -> impl Iterator<Item = SummarisedBucket> + 'a {
        let bounds = |start: BucketStart| (start.0, self.span().end(start), false);
        hours
            .iter()
            .filter_map(move |(start, hour)| summarised(bounds(*start), hour, field))
    }

    /// Loads the edges of stored buckets; `false` if none is needed. A bucket whose first reading
    /// has the time of its edge, but that has none there, has lost its readings
    /// ([`crate::store::retention`]).
    async fn load_edges(
        &self,
        loading: &mut [Loading],
        asked: Asked<'_>,
    ) -> Result<bool, SelectError> {
        let mut sensor_ids = vec![];
        let mut starts = BTreeSet::new();
        let mut places = vec![];
        for (i, sensor) in loading.iter().enumerate() {
            for (s, loaded) in sensor.series.iter().enumerate() {
                for (b, bucket) in loaded.buckets.iter().enumerate() {
                    let start = BucketStart(bucket.start_ms);
                    if !sensor.open.contains(&start) && bucket.need(asked.windows) == Need::Edge {
                        starts.insert(start);
                        places.push((i, s, b));
                    }
                }
            }
            if places.last().is_some_and(|(last, ..)| *last == i) {
                sensor_ids.push(sensor.sensor_id.clone());
            }
        }
        let starts: Vec<BucketStart> = starts.into_iter().collect();
        let mut edges: BTreeMap<SensorId, Rows> = BTreeMap::new();
        for starts in starts.chunks(EDGES_AT_ONCE) {
            let query = EdgeQuery {
                sensor_ids: sensor_ids.clone(),
                starts: starts.to_vec(),
            };
            for (sensor_id, rows) in self.store.edges(&query).await.map_err(ReadError::from)? {
                asked.limits.add_samples(rows.len())?;
                let all = edges.entry(sensor_id).or_default();
                rows.iter().for_each(|row| all.push_row(&row));
            }
        }
        let edges: BTreeMap<&SensorId, Edge> = edges
            .iter()
            .map(|(id, rows)| (id, Edge::new(rows)))
            .collect();
        for (i, s, b) in &places {
            let Loading {
                sensor_id,
                missing,
                series,
                ..
            } = &mut loading[*i];
            let Loaded { field, buckets, .. } = &mut series[*s];
            let bucket = &mut buckets[*b];
            let edge = edges
                .get(sensor_id)
                .filter(|edge| edge.is_present(bucket.start_ms));
            if edge.is_none() {
                *missing = missing.and(Missing {
                    recent: false,
                    removed_until_ms: Some(bucket.end_ms),
                });
            }
            bucket.edge = Some(
                edge.map(|edge| edge.values(bucket.start_ms, field))
                    .unwrap_or_default(),
            );
        }
        Ok(!places.is_empty())
    }

    /// Loads the other readings that are needed; `false` if none are.
    async fn load_others(
        &self,
        loading: &mut [Loading],
        asked: Asked<'_>,
    ) -> Result<bool, SelectError> {
        let loads = loading
            .iter_mut()
            .map(|sensor| self.load_other(sensor, asked));
        let mut loads = stream::iter(loads.collect::<Vec<_>>()).buffer_unordered(CONCURRENT);
        let mut any = false;
        while let Some(one) = loads.try_next().await? {
            any |= one;
        }
        Ok(any)
    }

    async fn load_other(
        &self,
        sensor: &mut Loading,
        asked: Asked<'_>,
    ) -> Result<bool, SelectError> {
        let mut any = false;
        for s in 0..sensor.series.len() {
            let needs = |bucket: &SummarisedBucket| bucket.need(asked.windows);
            let cut = |bucket: &SummarisedBucket| bucket.is_day && needs(bucket) == Need::Samples;
            if sensor.series[s].buckets.iter().any(cut) {
                self.open_days(sensor, s, asked).await?;
                any = true;
            }
            let loaded = &mut sensor.series[s];
            let mut edges = vec![];
            let mut whole = vec![];
            for (b, bucket) in loaded
                .buckets
                .iter()
                .enumerate()
                .filter(|(_, bucket)| !bucket.is_day)
            {
                match needs(bucket) {
                    Need::Edge if sensor.open.contains(&BucketStart(bucket.start_ms)) => {
                        edges.push(b)
                    }
                    Need::Samples => whole.push(b),
                    _ => {}
                }
            }
            let gap_ms = SKIPPED_HOURS_MAX * self.span().ms();
            let near = |a: &usize, b: &usize| {
                loaded.buckets[*b].start_ms - loaded.buckets[*a].end_ms <= gap_ms
            };
            let runs: Vec<Vec<usize>> = whole.chunk_by(near).map(<[usize]>::to_vec).collect();
            any |= !edges.is_empty() || !runs.is_empty();
            let fields = [loaded.field.as_str()];
            let requests = edges
                .iter()
                .map(|b| (loaded.buckets[*b].start_ms, loaded.buckets[*b].start_ms + 1));
            let requests = requests.chain(runs.iter().map(|run| {
                (
                    loaded.buckets[run[0]].start_ms,
                    loaded.buckets[run[run.len() - 1]].end_ms,
                )
            }));
            let reads =
                requests.map(|range| self.samples(&sensor.sensor_id, &fields, range, asked.limits));
            let found: Vec<_> = stream::iter(reads.collect::<Vec<_>>())
                .buffered(GROUPS)
                .try_collect()
                .await?;
            // That others were acknowledged just now is known from the views.
            let removed = found
                .iter()
                .fold(Missing::default(), |all, (_, missing)| all.and(*missing));
            sensor.missing = sensor.missing.and(Missing {
                recent: false,
                ..removed
            });
            let mut found = found
                .into_iter()
                .map(|(mut of_fields, _)| of_fields.pop().unwrap_or_default());
            for (b, readings) in edges.iter().zip(found.by_ref()) {
                loaded.buckets[*b].edge = Some(readings.values());
            }
            for (run, readings) in runs.iter().zip(found) {
                for b in run {
                    let bucket = &mut loaded.buckets[*b];
                    bucket.samples = Some(
                        readings
                            .between(bucket.start_ms, bucket.end_ms)
                            .last_of_each(),
                    );
                }
            }
        }
        Ok(any)
    }

    /// Replaces the days whose samples are all needed by their hours, as far as these are
    /// requested.
    async fn open_days(
        &self,
        sensor: &mut Loading,
        s: usize,
        asked: Asked<'_>,
    ) -> Result<(), SelectError> {
        let loaded = &mut sensor.series[s];
        let mut buckets = vec![];
        for bucket in std::mem::take(&mut loaded.buckets) {
            if !bucket.is_day || bucket.need(asked.windows) != Need::Samples {
                buckets.push(bucket);
                continue;
            }
            let from_ms = bucket.start_ms.max(asked.from_ms);
            let to_ms = bucket.end_ms.min(asked.to_ms);
            let hours = self
                .add_up(sensor.sensor_id.clone(), from_ms, to_ms)
                .await?
                .answer;
            // Rows may be in memory since.
            sensor.open.extend(hours.keys());
            buckets.extend(self.of_hours(&hours, &loaded.field));
        }
        loaded.buckets = buckets;
        Ok(())
    }
}

/// Readings at edges, in stored order.
struct Edge<'a>(Vec<Row<'a>>);

impl<'a> Edge<'a> {
    fn new(rows: &'a Rows) -> Edge<'a> {
        let mut all: Vec<_> = rows.iter().collect();
        all.sort_by_key(Row::key);
        Edge(all)
    }

    fn at(&self, ts_ms: i64) -> impl Iterator<Item = &Row<'a>> {
        let from = self.0.partition_point(|row| row.ts_ms < ts_ms);
        self.0[from..]
            .iter()
            .take_while(move |row| row.ts_ms == ts_ms)
    }

    fn is_present(&self, ts_ms: i64) -> bool {
        self.at(ts_ms).next().is_some()
    }

    fn values(&self, ts_ms: i64, field: &str) -> Vec<f64> {
        let rows = self.at(ts_ms);
        let named = rows.flat_map(move |row| {
            row.named()
                .filter(move |(name, _)| *name == field)
                .map(|(_, value)| value)
        });
        named.filter_map(super::series::number).collect()
    }
}

/// The fields of all series, each once.
fn fields_of(wanted: &[Wanted]) -> Vec<String> {
    let all: BTreeSet<&String> = wanted
        .iter()
        .flat_map(|of| of.fields.iter().map(|(field, _)| field))
        .collect();
    all.into_iter().cloned().collect()
}

/// The times that no day covers; one range over all of them if there are too many.
fn gaps(from_ms: i64, to_ms: i64, days: &DailyHours) -> Vec<(i64, i64)> {
    let mut gaps = vec![];
    let mut at_ms = from_ms;
    for day in days.keys() {
        if at_ms < day.start_ms {
            gaps.push((at_ms, day.start_ms));
        }
        at_ms = day.end_ms.max(at_ms);
    }
    if at_ms < to_ms {
        gaps.push((at_ms, to_ms));
    }
    match gaps[..] {
        [(first, _), .., (_, last)] if gaps.len() > GAPS_MAX => vec![(first, last)],
        _ => gaps,
    }
}

/// A bucket (start, end, whether it is a day) of a series; `None` if it has no sample of the field.
fn summarised(
    (start_ms, end_ms, is_day): (i64, i64, bool),
    hour: &Hour,
    field: &str,
) -> Option<SummarisedBucket> {
    let first_ts_ms = hour.first_ts_ms?;
    let last_ts_ms = hour.last_ts_ms?;
    let stats = match hour.summary.get(field) {
        Some(FieldSummary {
            min,
            max,
            sum,
            count,
        }) => WindowStats {
            count: u64::from(*count),
            sum: sum.as_f64(),
            min: min.as_f64(),
            max: max.as_f64(),
        },
        // Not all fields of the bucket are known: its readings decide.
        None if hour.is_truncated => WindowStats {
            count: 0,
            sum: f64::NAN,
            min: f64::NAN,
            max: f64::NAN,
        },
        None => return None,
    };
    Some(SummarisedBucket {
        start_ms,
        end_ms,
        is_day,
        first_ts_ms,
        last_ts_ms,
        stats,
        edge: None,
        samples: None,
    })
}
