//! Days of a sensor: stored ones, and those that may have changed since, computed from their hours.

use std::collections::{BTreeMap, BTreeSet};

use super::hours::{Hour, Hours};
use super::{QueryResult, ReadError, ReadService};
use model::{BucketStart, Day, SensorId, Zone, stable_hash};
use pipeline::accumulate::UnstoredBucket;
use pipeline::accumulate::state::snapshot::UnstoredRows;
use pipeline::route::shard_of;
use store::days::{DayQuery, MarkQuery, MarksOf};

/// Marks that are read, of one or of several sensors; with more, all days are read from their hours.
const MARKS_MAX: usize = 10_000;

/// Summaries by day; without days that have no readings.
pub(crate) type DailyHours = BTreeMap<Day, Hour>;

impl ReadService {
    /// `rollup.zone`: the zone of the days in [`ReadService::days`].
    pub fn zone(&self) -> Zone {
        self.zone
    }

    /// The summaries of the sensor's days that overlap a time range (ms since 1970, end exclusive).
    ///
    /// The order makes the answer current: first the rows in memory, so that every acknowledged
    /// reading has its day among the pending ones; then the marks of all instances; then the
    /// documents. A day that is not pending by then has a document with all its readings. Days
    /// without a document are computed from hours too: the past may not be filled, and for days
    /// without readings this reads nothing.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn days(
        &self,
        sensor_id: &str,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<QueryResult<DailyHours>, ReadError> {
        self.within(self.gather_days(sensor_id.into(), from_ms, to_ms))
            .await
    }

    /// For each sensor those of these days whose documents may be older than its readings: the pending
    /// ones, those with rows in memory, by `views`, which were made before, and those that an instance
    /// has marked. `None`: too many are marked.
    pub(super) async fn changed_days(
        &self,
        sensor_ids: &[SensorId],
        views: &[UnstoredRows],
        days: &[Day],
    ) -> Result<Option<Vec<BTreeSet<Day>>>, ReadError> {
        let Some(store) = self.store.days() else {
            return Ok(None);
        };
        let mut changed: Vec<BTreeSet<Day>> = vec![];
        for (sensor_id, view) in sensor_ids.iter().zip(views) {
            let shard = shard_of(stable_hash(sensor_id), self.rollups.len());
            let pending = self.rollups[shard].pending(sensor_id, days.iter().copied());
            let held = view.buckets.iter().map(UnstoredBucket::start);
            let held = held.map(|start| self.zone.day(start.0));
            let is_unknown = |day: &&Day| view.cut_ms.is_some_and(|cut_ms| day.end_ms > cut_ms);
            let unknown = days.iter().filter(is_unknown).copied();
            changed.push(pending.into_iter().chain(held).chain(unknown).collect());
        }
        let marks = MarkQuery {
            of: MarksOf::Sensors(sensor_ids.to_vec()),
            after: None,
            limit: MARKS_MAX,
        };
        let marks = store.day_marks(&marks).await?;
        if marks.len() >= MARKS_MAX {
            return Ok(None);
        }
        let place: BTreeMap<&SensorId, usize> = sensor_ids.iter().zip(0..).collect();
        for mark in marks {
            if let Some(i) = place.get(&mark.sensor_id) {
                changed[*i].insert(self.zone.day(mark.day_ms));
            }
        }
        Ok(Some(changed))
    }

    /// The times of a day's buckets within a range.
    pub(super) fn buckets_of(&self, day: Day, (from_ms, to_ms): (i64, i64)) -> (i64, i64) {
        let first = |ts_ms: i64| self.span().end(self.span().floor(ts_ms - 1));
        let start_ms = first(day.start_ms).max(from_ms);
        let end_ms = first(day.end_ms).min(to_ms);
        (start_ms, end_ms)
    }

    /// The times of a range that none of these days covers, which are in order.
    pub(super) fn gaps<'d>(
        &self,
        days: impl IntoIterator<Item = &'d Day>,
        range: (i64, i64),
    ) -> Vec<(i64, i64)> {
        let mut gaps = vec![];
        let mut at_ms = range.0;
        for day in days {
            let (from_ms, to_ms) = self.buckets_of(*day, range);
            if at_ms < from_ms {
                gaps.push((at_ms, from_ms));
            }
            at_ms = to_ms.max(at_ms);
        }
        gaps.extend((at_ms < range.1).then_some((at_ms, range.1)));
        gaps
    }

    async fn gather_days(
        &self,
        sensor_id: SensorId,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<QueryResult<DailyHours>, ReadError> {
        let all: Vec<Day> = self.zone.days(from_ms, to_ms).collect();
        let (Some(first), Some(last)) = (all.first(), all.last()) else {
            return Ok(QueryResult {
                answer: DailyHours::new(),
                complete: true,
            });
        };
        let from_ms = first.start_ms;
        let to_ms = last.end_ms;
        let mut days = DailyHours::new();
        let view = self.view(&sensor_id, from_ms, from_ms).await?;
        let complete = view.complete;
        let one = std::slice::from_ref(&sensor_id);
        if let Some(store) = self.store.days().filter(|_| self.kinds.days)
            && let Some(changed) = self.changed_days(one, &[view.answer], &all).await?
        {
            let mut query = DayQuery {
                sensor_id: sensor_id.clone(),
                from_ms,
                to_ms,
            };
            loop {
                let found = store.stored_days(&query).await?;
                let Some((last_ms, _)) = found.last() else {
                    break;
                };
                query.from_ms = last_ms + 1;
                let stored = found
                    .into_iter()
                    .map(|(day_ms, summary)| (self.zone.day(day_ms), summary.hour));
                days.extend(stored.filter(|(day, _)| !changed[0].contains(day)));
            }
        }
        let mut is_complete = complete;
        let missing: Vec<Day> = all
            .into_iter()
            .filter(|day| !days.contains_key(day))
            .collect();
        for run in missing.chunk_by(|a, b| a.end_ms == b.start_ms) {
            let from_ms = run[0].start_ms;
            let to_ms = run[run.len() - 1].end_ms;
            let QueryResult {
                answer: hours,
                complete,
            } = self.add_up(sensor_id.clone(), from_ms, to_ms).await?;
            is_complete &= complete;
            for day in run {
                let hour = sum(&hours, *day);
                if hour.count > 0 {
                    days.insert(*day, hour);
                }
            }
        }
        Ok(QueryResult {
            answer: days,
            complete: is_complete,
        })
    }
}

fn sum(hours: &Hours, day: Day) -> Hour {
    let mut sum = Hour::default();
    hours
        .range(BucketStart(day.start_ms)..BucketStart(day.end_ms))
        .for_each(|(_, hour)| sum.add_hour(hour));
    sum
}
