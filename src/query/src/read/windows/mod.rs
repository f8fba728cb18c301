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
//! `promql.samples_max`, but for its columns, at most an answer of the store, which are decoded day by day.

mod readings;
mod summaries;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::{StreamExt, stream};

use super::columns::ColumnedDays;
use super::days::DailyHours;
use super::hours::{Hour, Hours};
use super::series::{Missing, Parts, SelectError, Wanted, groups_of};
use super::{ReadError, ReadService};
use crate::promql::windows::{Need, SummarisedBucket, add, answer};
use crate::promql::{Labels, Part, PromqlError, SelectedSeries, SeriesData, WindowStats, Windows};
use model::{BucketStart, Day, FieldSummary, SensorId};

/// Shorter windows contain no whole day, unless its sensor was silent for hours.
const DAYS_RANGE_MIN_MS: i64 = 20 * 60 * 60 * 1000;
/// Days of a query whose documents are requested: ten years. Longer ones take the hours.
const DAYS_MAX: usize = 3660;
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
pub(super) struct Budget(pub(super) AtomicUsize);

impl Budget {
    pub(super) fn take(&self, samples: usize) -> Result<(), PromqlError> {
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
    /// The sensors of a group whose buckets of this time range are read together.
    pub(super) fn sensors_at_once(&self, from_ms: i64, to_ms: i64) -> usize {
        let of_each = (to_ms - from_ms) / self.span().ms() + 1;
        (BUCKETS_AT_ONCE / of_each).clamp(1, SENSORS_AT_ONCE) as usize
    }

    /// The windows of each series, some sensors at a time.
    pub(super) fn windows(
        &self,
        wanted: Vec<Wanted>,
        windows: Windows,
        samples_max: usize,
    ) -> Parts<'_> {
        let (from_ms, to_ms) = windows.range();
        let from_ms = self.span().floor(from_ms).0;
        let groups = groups_of(wanted, self.sensors_at_once(from_ms, to_ms));
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
        let has_days = self.kinds.days && asked.windows.range_ms >= DAYS_RANGE_MIN_MS;
        let with_columns = self.days_with_columns(wanted.len(), (asked.from_ms, asked.to_ms));
        // With days, whole ones, so that a day that is used has no row in memory.
        let are_days_asked = has_days || !with_columns.is_empty();
        let range = match are_days_asked {
            false => (asked.from_ms, end_ms),
            true => (
                self.zone.day(asked.from_ms).start_ms,
                self.zone.day(asked.to_ms - 1).end_ms.max(end_ms),
            ),
        };
        let sensor_ids: Vec<SensorId> = wanted.iter().map(|of| of.sensor_id.clone()).collect();
        let views = self.views(&sensor_ids, range.0, range.1).await?;
        let recent = !views.complete || views.answer.iter().any(|view| view.cut_ms.is_some());
        let views = views.answer;
        let all: Vec<Day> = match are_days_asked {
            true => self
                .zone
                .days(range.0, range.1)
                .take(DAYS_MAX + 1)
                .collect(),
            false => vec![],
        };
        let changed = match all.is_empty() || all.len() > DAYS_MAX {
            true => None,
            false => self.changed_days(&sensor_ids, &views, &all).await?,
        };
        let changed = changed.as_deref();
        let (days, are_hours_missing) = match has_days {
            true => self.usable_days(&wanted, changed, range, asked).await?,
            false => (vec![DailyHours::new(); wanted.len()], false),
        };
        let columned = self
            .columns_between(&wanted, with_columns, &days, changed)
            .await?;
        let covered = days.iter().zip(&columned);
        let covered = covered.map(|(days, columned)| days.keys().chain(columned.keys()).copied());
        let covered: Vec<BTreeSet<Day>> = covered.map(Iterator::collect).collect();
        let hours = self.hours_between(&wanted, views, &covered, asked).await?;
        let mut loading: Vec<Loading> = wanted
            .into_iter()
            .zip(days)
            .zip(hours)
            .map(|((wanted, days), (hours, open))| {
                self.loading(wanted, &days, (&hours, open), asked)
            })
            .collect();
        loop {
            let edges = self.load_edges(&mut loading, asked).await?;
            let others = self.load_others(&mut loading, asked).await?;
            if edges + others == 0 {
                break;
            }
        }
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
        for (sensor, columned) in loading.into_iter().zip(columned) {
            let answers = self.answers(&sensor, &columned, asked)?;
            for (loaded, stats) in sensor.series.into_iter().zip(answers) {
                asked.budget.take(asked.windows.steps)?;
                series.push(SelectedSeries {
                    labels: loaded.labels,
                    data: SeriesData::Windows(stats),
                });
            }
            // Decoding takes a while, and the query may have been ended.
            tokio::task::yield_now().await;
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

    /// The windows of each series of a sensor. Its days in columns are decoded one after the other, so
    /// that only the samples of one are in memory.
    fn answers(
        &self,
        sensor: &Loading,
        columned: &ColumnedDays,
        asked: Asked<'_>,
    ) -> Result<Vec<Vec<Option<WindowStats>>>, ReadError> {
        let end_ms = self.span().end(self.span().floor(asked.to_ms - 1));
        let series = sensor.series.iter();
        let mut answers: Vec<_> = series
            .clone()
            .map(|series| answer(asked.windows, &series.buckets))
            .collect();
        let names: Vec<&str> = series.map(|series| series.field.as_str()).collect();
        for (day, columns) in columned {
            let bounds = self.buckets_of(*day, (asked.from_ms, end_ms));
            let samples = columns.samples(&names, bounds.0..bounds.1)?;
            for (samples, all) in samples.into_iter().zip(&mut answers) {
                if let Some(bucket) = SummarisedBucket::of_samples(bounds, samples) {
                    add(asked.windows, all, &bucket);
                }
            }
        }
        Ok(answers)
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
