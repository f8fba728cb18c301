//! The summary of one or more buckets: the merged summaries of their pages.

use std::collections::BTreeMap;

use super::bucket::StoredPage;
use model::{FieldSummary, Rows, summary};

/// The summary of a bucket, or of several.
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
    pub fn add_count(&mut self, page: &StoredPage) {
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

    /// Adds the summary of another bucket.
    pub fn add_hour(&mut self, hour: &Hour) {
        self.count += hour.count;
        self.span(hour.first_ts_ms, hour.last_ts_ms);
        hour.summary
            .iter()
            .for_each(|(name, field)| self.field(name, *field));
        self.is_truncated |= hour.is_truncated;
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
