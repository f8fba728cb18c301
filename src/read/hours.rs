//! The summaries of a sensor's buckets, stored and in memory together. Pure.

use std::collections::BTreeMap;

use super::merge::{in_order, loaded_page, measured_bucket};
use crate::accumulate::UnstoredBucket;
use crate::maintain::StoredPage;
use crate::model::{BucketStart, FieldSummary, Rows, StorageMode, summary};
use crate::store::{LoadedBucket, LoadedPage};

/// One bucket's summary.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Hour {
    /// How many readings.
    pub count: u64,
    /// The earliest, in milliseconds since 1970.
    pub first_ts_ms: Option<i64>,
    /// The latest.
    pub last_ts_ms: Option<i64>,
    /// By field, of those with numbers.
    pub summary: BTreeMap<String, FieldSummary>,
    /// Fields were left out of it: there are more than [`FIELDS_MAX`], or than one answer shows.
    pub is_truncated: bool,
}

/// Fields of one bucket in an answer; the view `sensor_summaries` has the same limit.
pub const FIELDS_MAX: usize = 16_384;

/// Buckets by their begin.
pub type Hours = BTreeMap<BucketStart, Hour>;

impl Hour {
    fn span(&mut self, first: Option<i64>, last: Option<i64>) {
        self.first_ts_ms = self.first_ts_ms.into_iter().chain(first).min();
        self.last_ts_ms = self.last_ts_ms.max(last);
    }

    fn field(&mut self, name: &str, more: FieldSummary) {
        let is_full = self.summary.len() >= FIELDS_MAX;
        match self.summary.get_mut(name) {
            Some(held) => *held = held.merge(more),
            None if is_full => self.is_truncated = true,
            None => drop(self.summary.insert(name.to_owned(), more)),
        }
    }

    /// Adds the readings that a stored page counts, and none of its fields.
    pub fn add_count(&mut self, page: &StoredPage) {
        self.count += page.counted::<u64>();
        self.span(page.first_ts_ms, page.last_ts_ms);
        self.is_truncated |= !page.summary.is_empty();
    }

    /// Adds what a stored page says of itself.
    pub fn add_page(&mut self, page: &StoredPage) {
        // A page of a recomputed time-series bucket may count nothing and have fields all the same.
        let count = page.counted::<u64>();
        if count == 0 && page.summary.is_empty() {
            return;
        }
        self.count += count;
        self.span(page.first_ts_ms, page.last_ts_ms);
        for (name, field) in &page.summary {
            if let Some(field) = field {
                self.field(name, *field);
            }
        }
    }

    /// Adds readings.
    pub fn add_rows(&mut self, rows: &Rows) {
        self.count += rows.len() as u64;
        let times = || rows.iter().map(|row| row.ts_ms);
        self.span(times().min(), times().max());
        for (name, field) in summary::by_name(rows.fields(), &summary::summarise(rows)) {
            self.field(&name, field);
        }
    }
}

/// A bucket of which some is in memory, while its stored part comes in.
#[derive(Debug)]
pub struct OpenHour {
    view: UnstoredBucket,
    hour: Hour,
    storage_mode: Option<StorageMode>,
    pages: BTreeMap<u32, LoadedPage>,
    measured: Rows,
}

impl OpenHour {
    /// `view` was made before the store was asked for anything.
    pub fn new(view: UnstoredBucket) -> OpenHour {
        OpenHour { view, hour: Hour::default(), storage_mode: None, pages: BTreeMap::new(), measured: Rows::default() }
    }

    /// Which bucket.
    pub fn start(&self) -> BucketStart {
        self.view.start()
    }

    /// A page of it with its readings. What it says of measurements is not counted: they come before it.
    pub fn add_page(&mut self, page: &StoredPage) {
        self.storage_mode = Some(page.storage_mode);
        if page.storage_mode == StorageMode::TimeSeries {
            return;
        }
        self.hour.add_page(page);
        self.pages.insert(page.page, loaded_page(page, self.view.since_ms()));
    }

    /// Whether its measurements are to be added.
    pub fn is_measured(&self) -> bool {
        self.storage_mode != Some(StorageMode::Bucket)
    }

    /// Measurements of it.
    pub fn add_measurements(&mut self, rows: &Rows) {
        self.hour.add_rows(rows);
        rows.iter().filter(|row| row.ts_ms >= self.view.since_ms()).for_each(|row| self.measured.push_row(&row));
    }

    /// Its summary.
    pub fn finish(self) -> (BucketStart, Hour) {
        let (start, mut hour) = (self.view.start(), self.hour);
        let stored = match self.storage_mode {
            Some(StorageMode::Bucket) => {
                LoadedBucket { storage_mode: StorageMode::Bucket, pages: in_order(self.pages) }
            }
            _ => measured_bucket(self.measured.iter()),
        };
        let left = self.view.left(&stored);
        if !left.is_empty() {
            hour.add_rows(&left);
        }
        (start, hour)
    }
}
