//! The summaries of a sensor's buckets, stored and in memory combined. Pure.

use std::collections::BTreeMap;

use super::merge::{in_order, loaded_page, measured_bucket};
use crate::accumulate::UnstoredBucket;
use crate::maintain::StoredPage;
use crate::model::{BucketStart, FieldSummary, Rows, StorageMode, summary};
use crate::store::{LoadedBucket, LoadedPage};

/// One bucket's summary.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Hour {
    /// Number of readings, each counted once.
    pub count: u64,
    /// The earliest time, ms since 1970.
    pub first_ts_ms: Option<i64>,
    /// The latest time, ms since 1970.
    pub last_ts_ms: Option<i64>,
    /// By field name; only fields with numbers.
    pub summary: BTreeMap<String, FieldSummary>,
    /// Fields are missing: there are more than [`FIELDS_MAX`], or than one answer contains.
    pub is_truncated: bool,
}

/// Maximum fields of one bucket in an answer; the view `sensor_summaries` has the same limit.
pub const FIELDS_MAX: usize = 16_384;

/// Summaries by bucket start.
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

    /// Adds the count and times of a stored page, without its fields.
    pub(crate) fn add_count(&mut self, page: &StoredPage) {
        self.count += page.counted::<u64>();
        self.span(page.first_ts_ms, page.last_ts_ms);
        self.is_truncated |= !page.summary.is_empty();
    }

    /// Adds the count, times and fields of a stored page.
    pub fn add_page(&mut self, page: &StoredPage) {
        // A page of a recomputed time-series bucket may have fields with a count of zero.
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

    /// Adds readings to count, times and fields.
    pub fn add_rows(&mut self, rows: &Rows) {
        self.count += rows.len() as u64;
        let times = || rows.iter().map(|row| row.ts_ms);
        self.span(times().min(), times().max());
        for (name, field) in summary::by_name(rows.fields(), &summary::summarise(rows)) {
            self.field(&name, field);
        }
    }
}

/// A bucket that is partly in memory, while its stored part is loaded.
#[derive(Debug)]
pub struct OpenHour {
    view: UnstoredBucket,
    hour: Hour,
    storage_mode: Option<StorageMode>,
    pages: BTreeMap<u32, LoadedPage>,
    measured: Rows,
}

impl OpenHour {
    /// `view` must have been made before the first request to the store.
    pub fn new(view: UnstoredBucket) -> OpenHour {
        OpenHour { view, hour: Hour::default(), storage_mode: None, pages: BTreeMap::new(), measured: Rows::default() }
    }

    /// The start of the bucket.
    pub fn start(&self) -> BucketStart {
        self.view.start()
    }

    /// Adds a page with its readings. Its counts of measurements are ignored: measurements are written before them.
    pub fn add_page(&mut self, page: &StoredPage) {
        self.storage_mode = Some(page.storage_mode);
        if page.storage_mode == StorageMode::TimeSeries {
            return;
        }
        self.hour.add_page(page);
        self.pages.insert(page.page, loaded_page(page, self.view.since_ms()));
    }

    /// Whether its measurements must be added.
    pub fn is_measured(&self) -> bool {
        self.storage_mode != Some(StorageMode::Bucket)
    }

    /// Adds some of its measurements.
    pub fn add_measurements(&mut self, rows: &Rows) {
        self.hour.add_rows(rows);
        rows.iter().filter(|row| row.ts_ms >= self.view.since_ms()).for_each(|row| self.measured.push_row(&row));
    }

    /// The combined summary.
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
