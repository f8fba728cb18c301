//! Executes the requests of a conversion in memory, one at a time: between any two of them a
//! simulation may let other writers in, or end the conversion as a crash would. The state machine is
//! that of MongoDB ([`store::maintain::convert`]). Tags, and values that hourbucket cannot have
//! written, do not occur here.

use std::collections::BTreeMap;

use super::pages::{Page, Pages, stored_bytes};
use model::summary::PAGE_SUMMARY_BYTES_MAX;
use model::{BucketKey, Reading, Rows, Span, StorageMode};
use store::maintain::convert::{
    Answer, Conclusion, Conversion, ConversionSettings, EqualReadings, LeftoverRemoval, NewPage,
    Replacement, Request,
};
use store::maintain::{BucketMeasurements, PageSize, StoredBucket, StoredPage};

/// Measurements per insert. Small, so that other writers come between two inserts.
const INSERT_MAX: usize = 3;
/// Attempts for a bucket that another writer keeps changing.
const TRIES: u32 = 10;

impl Pages {
    /// A conversion of a bucket that ended some time ago.
    pub fn conversion(&self, key: BucketKey, into: StorageMode, page: PageSize) -> Conversion {
        let summary_bytes_max = self.summary_bytes_max.unwrap_or(PAGE_SUMMARY_BYTES_MAX);
        let settings = ConversionSettings {
            into,
            page,
            summary_bytes_max,
            insert_max: INSERT_MAX,
            tries_max: TRIES,
            equal: EqualReadings::KeepAll,
            leftovers: LeftoverRemoval::Remove,
        };
        Conversion::new(key, settings)
    }

    /// Executes the next request of a conversion; `Some` if it has ended.
    pub fn convert_step(&mut self, conversion: &mut Conversion) -> Option<Conclusion> {
        let key = conversion.key().clone();
        let id = (key.sensor_id.to_string(), key.start);
        let answer = match conversion.request() {
            Request::ReadDocuments => Answer::Documents(self.documents(&key)),
            Request::ReadMeasurements { .. } => Answer::Measurements(self.measurements(&key)),
            Request::Insert(insertion) => {
                let readings = insertion.rows.to_readings(&key.sensor_id);
                self.series.entry(id).or_default().extend(readings);
                Answer::Inserted
            }
            Request::Replace(replacement) => match self.replace(&key, replacement) {
                true => Answer::Replaced,
                false => Answer::Changed,
            },
            Request::RemoveMeasurements { .. } => {
                let removed = self.series.remove(&id);
                Answer::Removed(removed.map_or(0, |readings| readings.len() as u64))
            }
            Request::End(conclusion) => return Some(conclusion.clone()),
        };
        conversion.answer(answer);
        match conversion.request() {
            Request::End(conclusion) => Some(conclusion.clone()),
            _ => None,
        }
    }

    /// The documents of a bucket.
    fn documents(&self, key: &BucketKey) -> StoredBucket {
        let id = |n: u32| (key.sensor_id.to_string(), key.start, n);
        let found = self.pages.range(id(0)..=id(u32::MAX));
        let pages = found
            .map(|((sensor, start, n), page)| self.stored_page(sensor, *start, *n, page, true))
            .collect();
        StoredBucket {
            key: key.clone(),
            end_ms: Span::HOUR.end(key.start),
            pages,
            measured: None,
        }
    }

    /// The measurements of a bucket as they are now, ordered by time.
    fn measurements(&self, key: &BucketKey) -> BucketMeasurements {
        let id = (key.sensor_id.to_string(), key.start);
        let mut readings: Vec<&Reading> = self.series.get(&id).into_iter().flatten().collect();
        readings.sort_by_key(|reading| reading.ts_ms);
        let mut rows = Rows::default();
        readings
            .into_iter()
            .for_each(|reading| rows.push_reading(reading));
        BucketMeasurements {
            rows,
            unreadable: 0,
            tags: BTreeMap::new(),
        }
    }

    /// Replaces the documents of a bucket, all or none; `false` if one has changed since it was
    /// read, or there is another.
    fn replace(&mut self, key: &BucketKey, Replacement { old, new }: &Replacement) -> bool {
        let old = &old.pages;
        let id = |n: u32| (key.sensor_id.to_string(), key.start, n);
        let is_unchanged = |read: &StoredPage| {
            self.pages.get(&id(read.page)).is_some_and(|page| {
                (
                    Some(i64::from(page.count)),
                    page.sealed,
                    page.storage_mode,
                    page.readings_removed,
                ) == (
                    read.count,
                    read.sealed,
                    read.storage_mode,
                    read.readings_removed,
                ) && (read.rows.is_empty() || page.readings.len() == read.rows.len())
            })
        };
        let is_free =
            |n: u32| old.iter().any(|read| read.page == n) || !self.pages.contains_key(&id(n));
        if !old.iter().all(is_unchanged) || !(0..new.len() as u32).all(is_free) {
            return false;
        }
        old.iter()
            .for_each(|read| drop(self.pages.remove(&id(read.page))));
        let stored = |page: &NewPage| Page {
            count: page.count,
            sealed: page.sealed,
            first_ts_ms: Some(page.first_ts_ms),
            readings: page.rows.to_readings(&key.sensor_id),
            summary: page.summary.clone(),
            storage_mode: page.storage_mode,
            readings_removed: false,
            gate: None,
            was_converted: page.storage_mode == StorageMode::TimeSeries,
            bytes: stored_bytes(&page.rows),
        };
        self.pages
            .extend((0..).zip(new).map(|(n, page)| (id(n), stored(page))));
        true
    }
}
