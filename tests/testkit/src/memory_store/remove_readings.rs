//! Removes the readings of old pages, as [`store::retention`] explains it.

use std::collections::BTreeSet;
use std::ops::Range;

use super::{Page, Pages};
use model::{BucketKey, BucketStart, Span, StorageMode};
use store::retention::RemovedReadings;
use store::tier::ComparedPage;

impl Pages {
    /// See [`store::Store::remove_readings`].
    pub fn remove_readings(
        &mut self,
        span: Span,
        ended_before_ms: i64,
        pages_max: usize,
    ) -> RemovedReadings {
        let is_old = |start: BucketStart| span.end(start) < ended_before_ms;
        let mut found: Vec<_> = self
            .pages
            .iter()
            .filter(|((_, start, _), page)| {
                is_old(*start) && !page.readings_removed && page.storage_mode == StorageMode::Bucket
            })
            .map(|(key, _)| key.clone())
            .collect();
        found.sort_by_key(|(_, start, _)| *start);
        found.truncate(pages_max.max(1));
        let oldest_end_ms = found.first().map(|(_, start, _)| span.end(*start));
        let removed = RemovedReadings {
            found: found.len(),
            pages: found.len().min(pages_max) as u64,
            oldest_end_ms,
        };
        found.truncate(pages_max);
        for key in found {
            if let Some(page) = self.pages.get_mut(&key) {
                page.readings_removed = true;
                page.gate = None;
            }
        }
        removed
    }

    /// See [`store::Store::find_removable`].
    pub fn find_removable(
        &self,
        span: Span,
        ended_ms: Range<i64>,
        pages_max: usize,
    ) -> Vec<BucketKey> {
        let has_readings =
            |page: &Page| !page.readings_removed && page.storage_mode == StorageMode::Bucket;
        let is_old = |start: BucketStart| ended_ms.contains(&span.end(start));
        let found = self.pages.iter();
        let found = found.filter(|((_, start, _), page)| is_old(*start) && has_readings(page));
        let mut found: Vec<_> = found
            .map(|((sensor, start, _), _)| BucketKey {
                sensor_id: sensor.as_str().into(),
                start: *start,
            })
            .collect();
        found.sort_by_key(|bucket| bucket.start);
        found.truncate(pages_max);
        found.dedup();
        found
    }

    /// See [`store::Store::remove_compared`].
    pub fn remove_compared(&mut self, compared: &ComparedPage) -> bool {
        let bucket = &compared.bucket;
        let key = (bucket.sensor_id.to_string(), bucket.start, compared.page);
        let page = self.pages.get_mut(&key).filter(|page| {
            let is_same = page.count == compared.count && page.sealed == compared.sealed;
            is_same && !page.readings_removed && page.storage_mode == StorageMode::Bucket
        });
        let Some(page) = page else { return false };
        page.readings_removed = true;
        page.sealed = true;
        page.gate = None;
        true
    }

    /// Begins to let the measurements of a time-series bucket expire: its documents are marked,
    /// because this store has no clock that tells.
    pub fn begin_expiring(&mut self, sensor_id: &str, start: BucketStart) {
        let id = |n| (sensor_id.to_owned(), start, n);
        for (_, page) in self.pages.range_mut(id(0)..=id(u32::MAX)) {
            page.readings_removed |= page.storage_mode == StorageMode::TimeSeries;
        }
    }

    /// Removes the earliest `n` measurements of a time-series bucket, and all of the same
    /// millisecond, if its documents count all of them.
    pub fn remove_measurements(&mut self, sensor_id: &str, start: BucketStart, n: usize) {
        let id = (sensor_id.to_owned(), start);
        let pages = self.of_bucket(sensor_id, start);
        let counted: usize = pages.iter().map(|page| page.count as usize).sum();
        let is_series = pages
            .first()
            .is_some_and(|page| page.storage_mode == StorageMode::TimeSeries);
        let Some(stored) = self
            .series
            .get_mut(&id)
            .filter(|stored| stored.len() == counted && is_series)
        else {
            return;
        };
        stored.sort_by_key(|reading| reading.ts_ms);
        let last_ms = stored.get(n - 1).map_or(i64::MAX, |last| last.ts_ms);
        let n = stored.partition_point(|reading| reading.ts_ms <= last_ms);
        let removed: Vec<_> = stored.drain(..n).collect();
        self.expired.entry(id).or_default().extend(removed);
    }

    /// Ends that, as a longer retention does. What has expired does not come back. (A bucket stays
    /// marked if a process has added so much to it meanwhile that nothing shows what it has lost.)
    pub fn end_expiring(&mut self) {
        let buckets: BTreeSet<_> = self
            .series
            .keys()
            .chain(self.expired.keys())
            .cloned()
            .collect();
        for (sensor_id, start) in buckets {
            if self.expired.contains_key(&(sensor_id.clone(), start))
                && !self.has_lost(&sensor_id, start)
            {
                continue;
            }
            let id = |n| (sensor_id.clone(), start, n);
            for (_, page) in self.pages.range_mut(id(0)..=id(u32::MAX)) {
                page.readings_removed &= page.storage_mode == StorageMode::Bucket;
            }
        }
    }
}
