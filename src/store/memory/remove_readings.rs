//! Removes the readings of old pages, as [`crate::store::retention`] explains it.

use super::Pages;
use crate::model::{BucketStart, Span, StorageMode};
use crate::store::retention::RemovedReadings;

impl Pages {
    /// See [`crate::store::Store::remove_readings`].
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

    /// Lets the measurements of a time-series bucket expire, as the server does. Its documents are
    /// marked here, because this store has no clock that says so.
    pub fn expire_measurements(&mut self, sensor_id: &str, start: BucketStart) {
        let id = |n| (sensor_id.to_owned(), start, n);
        for (_, page) in self.pages.range_mut(id(0)..=id(u32::MAX)) {
            page.readings_removed |= page.storage_mode == StorageMode::TimeSeries;
        }
    }
}
