//! Windows of many sensors, from the summaries of their days and hours: [`crate::promql::windows`]
//! has the rules.
//!
//! Sensors are answered in groups, each in this order, which makes the answer current as in
//! [`super`] and [`super::days`]:
//! 1. from the shards: the rows in memory of each sensor;
//! 2. the days that may have changed (pending ones, and the marks of all instances), then the
//!    documents of days. A day is used if it is not among the former, has no row in memory, and no
//!    field needs its hours, or these have all expired (`store.retention`): then the windows that
//!    cut it get nothing of it;
//! 3. the columns of days that are over and that no document covers ([`super::columns`]): their samples
//!    are cheaper to read than the summaries of their hours;
//! 4. the hours that neither covers, of all sensors with the same gaps in one request; those with
//!    rows in memory are added up one by one;
//! 5. the readings at the edges of windows: of stored hours, those of their first millisecond, of
//!    all sensors in one request. Then the other readings that the rules need: hours cut by a
//!    window, in runs, and days replaced by hours.
//!
//! **Limits.** A group has about [`BUCKETS_AT_ONCE`] buckets. Its rows in memory are copied: at
//! most what the shards hold (`accumulate.max_bytes`). What a group holds counts against
//! `promql.samples_max`.

mod readings;
mod summaries;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::{StreamExt, stream};

use super::columns::ColumnedDays;
use super::days::DailyHours;
use super::hours::{Hour, Hours};
use super::series::{Missing, Parts, SelectError, Wanted};
use super::{ReadError, ReadService};
use crate::promql::windows::{Need, SummarisedBucket, answer};
use crate::promql::{Labels, Part, PromqlError, SelectedSeries, SeriesData, WindowStats, Windows};
use model::{BucketStart, Day, FieldSummary, SensorId};

/// Buckets of one group.
const BUCKETS_AT_ONCE: i64 = 20_000;
/// Sensors of one group.
const SENSORS_AT_ONCE: i64 = 200;
/// Groups that are loaded at the same time.
const GROUPS: usize = 2;
/// Requests for one sensor each, at the same time, for one group.
const CONCURRENT: usize = 8;

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

/// The requested values of one group.
#[derive(Clone, Copy)]
struct Asked<'a> {
    /// Of the first bucket.
    from_ms: i64,
    /// The time before which the last bucket begins.
    to_ms: i64,
    /// Hours that end by then have expired.
    expired_until_ms: i64,
    windows: &'a Windows,
    budget: &'a Budget,
}

/// How many more samples a group may hold.
struct Budget(AtomicUsize);

impl Budget {
    fn take(&self, samples: usize) -> Result<(), PromqlError> {
        let take = |left: usize| left.checked_sub(samples);
        let taken = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        taken.map(drop).map_err(|_| PromqlError::too_many_samples())
    }
}

impl Asked<'_> {
    /// Whether all hours of the day have expired.
    fn has_expired(&self, day: Day) -> bool {
        day.end_ms <= self.expired_until_ms
    }
}

impl ReadService {
    /// The windows of each series, some sensors at a time.
    pub(super) fn windows(
        &self,
        wanted: Vec<Wanted>,
        windows: Windows,
        samples_max: usize,
    ) -> Parts<'_> {
        let after_ms = windows.bounds(0).0;
        let last_ms = windows.bounds(windows.steps.max(1) - 1).1;
        let from_ms = self.span().floor(after_ms + 1).0;
        let to_ms = last_ms + 1;
        let of_each = (to_ms - from_ms) / self.span().ms() + 1;
        let size = (BUCKETS_AT_ONCE / of_each).clamp(1, SENSORS_AT_ONCE) as usize;
        let mut groups = vec![];
        let mut rest = wanted.into_iter().peekable();
        while rest.peek().is_some() {
            groups.push(rest.by_ref().take(size).collect::<Vec<_>>());
        }
        let load = move |group| async move {
            let asked = Asked {
                from_ms,
                to_ms,
                expired_until_ms: self.expired_until_ms(),
                windows: &windows,
                budget: &Budget(AtomicUsize::new(samples_max)),
            };
            self.group(group, asked).await
        };
        stream::iter(groups)
            .map(load)
            .buffer_unordered(GROUPS)
            .boxed()
    }

    async fn group(
        &self,
        wanted: Vec<Wanted>,
        asked: Asked<'_>,
    ) -> Result<(Part, Missing), SelectError> {
        let end_ms = self.span().end(self.span().floor(asked.to_ms - 1));
        // With days, whole ones, so that a day that is used has no row in memory.
        let range = match self.kinds.days || self.kinds.columns.is_some() {
            false => (asked.from_ms, end_ms),
            true => (
                self.zone.day(asked.from_ms).start_ms,
                self.zone.day(asked.to_ms - 1).end_ms.max(end_ms),
            ),
        };
        let sensor_ids: Vec<&SensorId> = wanted.iter().map(|of| &of.sensor_id).collect();
        let views = self.views(&sensor_ids, range.0, range.1).await?;
        let recent = !views.complete || views.answer.iter().any(|view| view.cut_ms.is_some());
        let views = views.answer;
        let (days, are_hours_missing) = self.usable_days(&wanted, &views, range, asked).await?;
        let columned = self.columns_between(&wanted, &views, &days, asked).await?;
        let covered = days.iter().zip(&columned);
        let covered = covered.map(|(days, columned)| days.keys().chain(columned.keys()).copied());
        let covered: Vec<BTreeSet<Day>> = covered.map(Iterator::collect).collect();
        let hours = self.hours_between(&wanted, views, &covered, asked).await?;
        let mut loading = vec![];
        for (((wanted, days), columned), (hours, open)) in
            wanted.into_iter().zip(days).zip(columned).zip(hours)
        {
            let mut sensor = self.loading(wanted, &days, (&hours, open), asked);
            self.add_columned(&mut sensor, &columned, asked)?;
            loading.push(sensor);
        }
        while self.load_edges(&mut loading, asked).await?
            | self.load_others(&mut loading, asked).await?
        {}
        let mut missing = Missing {
            recent,
            removed_until_ms: None,
            expired_until_ms: are_hours_missing.then_some(asked.expired_until_ms),
            fields: false,
        };
        missing = loading
            .iter()
            .fold(missing, |all, sensor| all.and(sensor.missing));
        let mut series = vec![];
        for Loaded {
            labels, buckets, ..
        } in loading.into_iter().flat_map(|sensor| sensor.series)
        {
            asked.budget.take(asked.windows.steps)?;
            series.push(SelectedSeries {
                labels,
                data: SeriesData::Windows(answer(asked.windows, &buckets)),
            });
        }
        let until_ms = Part::WHOLE;
        Ok((Part { series, until_ms }, missing))
    }

    fn loading(
        &self,
        wanted: Wanted,
        days: &DailyHours,
        (hours, open): (&Hours, BTreeSet<BucketStart>),
        asked: Asked<'_>,
    ) -> Loading {
        let loaded = |(field, labels): (String, Labels)| {
            let of_days = days.iter().filter_map(|(day, hour)| {
                let mut bucket = summarised((day.start_ms, day.end_ms, true), hour, &field)?;
                if asked.has_expired(*day) && bucket.need(asked.windows) == Need::Samples {
                    bucket.readings_removed = bucket.stats.count > 0;
                    bucket.samples = Some(vec![]);
                }
                Some(bucket)
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

    /// Adds the days in columns, each as a bucket whose samples are loaded.
    fn add_columned(
        &self,
        sensor: &mut Loading,
        columned: &ColumnedDays,
        asked: Asked<'_>,
    ) -> Result<(), SelectError> {
        let range = (
            asked.from_ms,
            self.span().end(self.span().floor(asked.to_ms - 1)),
        );
        let names = sensor.series.iter().map(|series| series.field.as_str());
        let names: Vec<&str> = names.collect();
        let mut found: Vec<Vec<SummarisedBucket>> = vec![vec![]; names.len()];
        for (day, columns) in columned {
            let (start_ms, end_ms) = self.buckets_of(*day, range);
            let samples = columns.samples(&names, start_ms..end_ms);
            for (samples, buckets) in samples
                .map_err(ReadError::from)?
                .into_iter()
                .zip(&mut found)
            {
                asked.budget.take(samples.len())?;
                buckets.extend(SummarisedBucket::of_samples((start_ms, end_ms), samples));
            }
        }
        for (series, buckets) in sensor.series.iter_mut().zip(found) {
            series.buckets.extend(buckets);
            series.buckets.sort_by_key(|bucket| bucket.start_ms);
        }
        Ok(())
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
            overflow_mean: None,
            min: min.as_f64(),
            max: max.as_f64(),
        },
        // Not all fields of the bucket are known: its readings decide.
        None if hour.is_truncated => WindowStats {
            count: 0,
            sum: f64::NAN,
            overflow_mean: None,
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
        readings_removed: false,
    })
}
