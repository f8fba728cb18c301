//! The summaries of a sensor's buckets, stored and in memory combined. Pure.

use std::collections::BTreeMap;

use super::merge::{in_order, loaded_page, measured_bucket};
use model::{BucketStart, Rows, StorageMode};
use pipeline::accumulate::UnstoredBucket;
use store::maintain::StoredPage;
pub use store::maintain::hour::{FIELDS_MAX, Hour};
use store::retention::Extent;
use store::{LoadedBucket, LoadedPage};

/// Summaries by bucket start.
pub type Hours = BTreeMap<BucketStart, Hour>;

/// A bucket that is partly in memory, while its stored part is loaded.
#[derive(Debug)]
pub struct OpenHour {
    view: UnstoredBucket,
    storage_mode: Option<StorageMode>,
    /// What its pages count, and what its measurements add up to.
    of_pages: Hour,
    of_measurements: Hour,
    pages: BTreeMap<u32, LoadedPage>,
    measured: Rows,
}

impl OpenHour {
    /// `view` must have been made before the first request to the store.
    pub fn new(view: UnstoredBucket) -> OpenHour {
        OpenHour {
            view,
            storage_mode: None,
            of_pages: Hour::default(),
            of_measurements: Hour::default(),
            pages: BTreeMap::new(),
            measured: Rows::default(),
        }
    }

    /// The start of the bucket.
    pub fn start(&self) -> BucketStart {
        self.view.start()
    }

    /// Adds a page with its readings.
    pub fn add_page(&mut self, page: &StoredPage) {
        // The summary is all that is left of removed measurements.
        let is_measured = page.storage_mode == StorageMode::TimeSeries && !page.readings_removed;
        self.storage_mode = Some(if is_measured {
            StorageMode::TimeSeries
        } else {
            StorageMode::Bucket
        });
        self.of_pages.add_page(page);
        self.pages
            .insert(page.page, loaded_page(page, self.view.since_ms()));
    }

    /// Whether its measurements must be added.
    pub fn is_measured(&self) -> bool {
        self.storage_mode != Some(StorageMode::Bucket)
    }

    /// Adds some of its measurements.
    pub fn add_measurements(&mut self, rows: &Rows) {
        self.of_measurements.add_rows(rows);
        rows.iter()
            .filter(|row| row.ts_ms >= self.view.since_ms())
            .for_each(|row| self.measured.push_row(&row));
    }

    /// The combined summary. That of measurements is their own: they are written before a page
    /// counts them. If some were removed, it is that of the pages.
    pub fn finish(self) -> (BucketStart, Hour) {
        let start = self.view.start();
        let counted = extent(&self.of_pages);
        let has_lost = counted.has_lost(self.pages.len(), extent(&self.of_measurements));
        let (mut hour, stored) = match !self.is_measured() || has_lost {
            true => (
                self.of_pages,
                LoadedBucket {
                    storage_mode: StorageMode::Bucket,
                    pages: in_order(self.pages),
                },
            ),
            false => (self.of_measurements, measured_bucket(self.measured.iter())),
        };
        let left = self.view.left(&stored);
        if !left.is_empty() {
            hour.add_rows(&left);
        }
        (start, hour)
    }
}

fn extent(hour: &Hour) -> Extent {
    Extent {
        count: hour.count,
        first_ts_ms: hour.first_ts_ms.unwrap_or(i64::MAX),
    }
}
