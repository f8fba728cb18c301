//! Daily rollups in memory.

use std::sync::Arc;

use super::{Fault, MemoryStore, Page, Pages, not_applied, one_by_one, pause, unknown};
use model::BucketStart;
use store::days::{
    DayMark, DayQuery, DayStore, DaySummary, DayWritten, DaysQuery, DaysResults, MarkQuery,
    MarksOf, SensorDay,
};
use store::maintain::StoredPage;
use store::{BoxFuture, StoreError};

/// Limits of a result are small, so that tests also cover the continuation after them.
const DAYS_MAX: usize = 3;

impl Pages {
    /// See [`DayStore::mark_days`].
    pub fn mark_days(&mut self, marks: &[DayMark]) {
        for mark in marks {
            let key = (
                mark.instance.clone(),
                mark.day_ms,
                mark.sensor_id.to_string(),
            );
            let version = self.days.marks.entry(key).or_insert(mark.version);
            *version = if *version > mark.version {
                *version + 1
            } else {
                mark.version
            };
        }
    }

    /// See [`DayStore::clear_marks`].
    pub fn clear_marks(&mut self, marks: &[DayMark]) {
        for mark in marks {
            let key = (
                mark.instance.clone(),
                mark.day_ms,
                mark.sensor_id.to_string(),
            );
            if self.days.marks.get(&key) == Some(&mark.version) {
                self.days.marks.remove(&key);
            }
        }
    }

    /// See [`DayStore::day_marks`].
    pub fn day_marks(&self, query: &MarkQuery) -> Vec<DayMark> {
        let mark =
            |((instance, day_ms, sensor_id), version): (&(Arc<str>, i64, String), &i64)| DayMark {
                instance: instance.clone(),
                day_ms: *day_ms,
                sensor_id: sensor_id.as_str().into(),
                version: *version,
            };
        let place = |mark: &DayMark| (mark.instance.clone(), mark.day_ms, mark.sensor_id.clone());
        let is_of = |mark: &DayMark| match &query.of {
            MarksOf::Instance(instance) => mark.instance == *instance,
            MarksOf::Sensor(sensor_id) => mark.sensor_id == *sensor_id,
            MarksOf::Sensors(sensor_ids) => sensor_ids.contains(&mark.sensor_id),
            MarksOf::Before(version) => mark.version < *version,
        };
        let is_after = |mark: &DayMark| {
            query
                .after
                .as_ref()
                .is_none_or(|after| place(mark) > place(after))
        };
        self.days
            .marks
            .iter()
            .map(mark)
            .filter(|m| is_of(m) && is_after(m))
            .take(query.limit)
            .collect()
    }

    /// The pages of a day, without readings, in the order of [`DaySummary::add_page`].
    pub fn day_pages(&self, day: &SensorDay) -> Vec<StoredPage> {
        let sensor = || day.sensor_id.to_string();
        let range = (sensor(), BucketStart(day.day.start_ms), 0)
            ..(sensor(), BucketStart(day.day.end_ms), 0);
        let mut pages: Vec<_> = self.pages.range(range).collect();
        pages.sort_by_key(|((_, start, n), _)| (*start, std::cmp::Reverse(*n)));
        let page = |((_, start, n), page): (&(String, BucketStart, u32), &Page)| {
            self.stored_page(&day.sensor_id, *start, *n, page, false)
        };
        pages.into_iter().map(page).collect()
    }

    /// See [`DayStore::compute_days`].
    pub fn compute_day(&self, day: &SensorDay) -> DaySummary {
        let mut summary = DaySummary::default();
        self.day_pages(day)
            .iter()
            .for_each(|page| summary.add_page(page));
        summary
    }

    /// See [`DayStore::write_days`].
    pub fn write_day(
        &mut self,
        day: &SensorDay,
        summary: &DaySummary,
        replace: bool,
    ) -> DayWritten {
        let key = (day.sensor_id.to_string(), day.day.start_ms);
        if !replace
            && self
                .days
                .documents
                .get(&key)
                .is_some_and(|stored| stored.hour.count > summary.hour.count)
        {
            return DayWritten::Newer;
        }
        self.days.documents.insert(key, summary.clone());
        DayWritten::Done
    }

    /// See [`DayStore::stored_days`].
    pub fn stored_days(&self, query: &DayQuery) -> Vec<(i64, DaySummary)> {
        if query.from_ms >= query.to_ms {
            return vec![];
        }
        let range = (query.sensor_id.to_string(), query.from_ms)
            ..(query.sensor_id.to_string(), query.to_ms);
        let found = self.days.documents.range(range).take(DAYS_MAX);
        found
            .map(|((_, day_ms), summary)| (*day_ms, summary.clone()))
            .collect()
    }
}

impl MemoryStore {
    /// A write that fails or is slow according to the script; half of `parts` is applied if its
    /// second half is lost.
    pub(super) async fn change<T: Sync, A: Send>(
        &self,
        parts: &[T],
        mut apply: impl FnMut(&mut Pages, &T) -> A + Send,
    ) -> Result<Vec<A>, StoreError> {
        let (fault, delay) = self.fate();
        pause(delay).await;
        let mut applied = |n: usize| {
            parts[..n]
                .iter()
                .map(|part| apply(&mut self.pages(), part))
                .collect::<Vec<_>>()
        };
        match fault {
            Fault::None | Fault::Rejected => Ok(applied(parts.len())),
            Fault::NotApplied => Err(not_applied()),
            Fault::LostBefore => Err(unknown()),
            Fault::LostAfter => {
                applied(parts.len());
                Err(unknown())
            }
            Fault::LostHalf => {
                applied(parts.len() / 2);
                Err(unknown())
            }
        }
    }
}

impl DayStore for MemoryStore {
    fn mark_days<'a>(&'a self, marks: &'a [DayMark]) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let mark =
                |pages: &mut Pages, mark: &DayMark| pages.mark_days(std::slice::from_ref(mark));
            self.change(marks, mark).await.map(drop)
        })
    }

    fn clear_marks<'a>(&'a self, marks: &'a [DayMark]) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let clear =
                |pages: &mut Pages, mark: &DayMark| pages.clear_marks(std::slice::from_ref(mark));
            self.change(marks, clear).await.map(drop)
        })
    }

    fn day_marks<'a>(
        &'a self,
        query: &'a MarkQuery,
    ) -> BoxFuture<'a, Result<Vec<DayMark>, StoreError>> {
        Box::pin(self.read(move |pages| pages.day_marks(query)))
    }

    fn compute_days<'a>(
        &'a self,
        days: &'a [SensorDay],
    ) -> BoxFuture<'a, Result<Vec<Option<DaySummary>>, StoreError>> {
        Box::pin(self.read(move |pages| {
            let compute = |(i, day)| (i < DAYS_MAX).then(|| pages.compute_day(day));
            days.iter().enumerate().map(compute).collect()
        }))
    }

    fn write_days<'a>(
        &'a self,
        days: &'a [(SensorDay, DaySummary)],
        replace: bool,
    ) -> BoxFuture<'a, Result<Vec<DayWritten>, StoreError>> {
        let write = move |pages: &mut Pages, (day, summary): &(SensorDay, DaySummary)| {
            pages.write_day(day, summary, replace)
        };
        Box::pin(self.change(days, write))
    }

    fn stored_days<'a>(
        &'a self,
        query: &'a DayQuery,
    ) -> BoxFuture<'a, Result<Vec<(i64, DaySummary)>, StoreError>> {
        Box::pin(self.read(move |pages| pages.stored_days(query)))
    }

    fn days_of<'a>(
        &'a self,
        query: &'a DaysQuery,
    ) -> BoxFuture<'a, Result<DaysResults, StoreError>> {
        Box::pin(one_by_one::days(self, query))
    }
}
