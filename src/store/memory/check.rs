//! Invariants of the stored state at rest.

use std::collections::BTreeMap;

use super::{Page, Pages};
use crate::model::summary::{by_name, summarise};
use crate::model::{BucketStart, FieldSummary, Reading, Rows, StorageMode};

impl Pages {
    /// Checks the invariants of the stored state at rest. The count and summary of a page are those of its readings (in
    /// a time-series bucket, those of all pages together are those of its measurements). No page is missing before
    /// another. Exactly the pages with a successor are sealed (the last one may be, just before its successor is
    /// created).
    ///
    /// # Errors
    /// The violated invariant, and the page.
    pub fn check(&self, max_readings: u32) -> Result<(), String> {
        for ((sensor, start, n), page) in &self.pages {
            let at = format!("page {n} of {sensor} at {}", start.0);
            match page.storage_mode {
                StorageMode::Bucket if page.count > max_readings => {
                    return Err(format!("{at}: {} readings", page.count));
                }
                StorageMode::Bucket => same(&at, u64::from(page.count), &page.summary, &page.readings)?,
                StorageMode::TimeSeries if *n == 0 => self.check_series(&at, sensor, *start)?,
                StorageMode::TimeSeries => {}
            }
            let next = self.pages.get(&(sensor.clone(), *start, n + 1));
            if next.is_some() && !page.sealed {
                return Err(format!("{at}: has a next page and is not sealed"));
            }
            if next.is_some_and(|next| next.storage_mode != page.storage_mode) {
                return Err(format!("{at}: the next page has another storage mode"));
            }
            if *n > 0 && !self.pages.contains_key(&(sensor.clone(), *start, n - 1)) {
                return Err(format!("{at}: the page before it is missing"));
            }
        }
        Ok(())
    }

    fn check_series(&self, at: &str, sensor: &str, start: BucketStart) -> Result<(), String> {
        let pages: Vec<&Page> = self.of_bucket(sensor, start);
        let count = pages.iter().map(|page| u64::from(page.count)).sum();
        let mut merged: BTreeMap<String, FieldSummary> = BTreeMap::new();
        for (name, field) in pages.iter().flat_map(|page| &page.summary) {
            let sum = merged.get(name).map_or(*field, |held| held.merge(*field));
            merged.insert(name.clone(), sum);
        }
        let none = vec![];
        same(at, count, &merged, self.series.get(&(sensor.to_owned(), start)).unwrap_or(&none))
    }
}

/// Checks that count and summary are those of the readings.
fn same(at: &str, count: u64, summary: &BTreeMap<String, FieldSummary>, readings: &[Reading]) -> Result<(), String> {
    if count != readings.len() as u64 {
        return Err(format!("{at}: count {count} but {} readings", readings.len()));
    }
    let mut rows = Rows::default();
    readings.iter().for_each(|r| rows.push_reading(r));
    let expected = by_name(rows.fields(), &summarise(&rows));
    // Sums depend on the order of additions: by this much, and completely if they overflow.
    let sizes = readings.iter().fold(1.0, |sum, r| sum + magnitude(r));
    let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * sizes || sizes.is_infinite();
    let same = expected.len() == summary.len()
        && expected.iter().all(|(name, e)| {
            summary.get(name).is_some_and(|s| {
                s.min == e.min && s.max == e.max && s.count == e.count && near(s.sum.as_f64(), e.sum.as_f64())
            })
        });
    match same {
        true => Ok(()),
        false => Err(format!("{at}: summary {summary:?}, from its readings {expected:?}")),
    }
}

/// The sum of the absolute values of a reading's numbers.
fn magnitude(reading: &Reading) -> f64 {
    reading.values.values().filter_map(|v| v.as_ref().num()).map(|n| n.as_f64().abs()).sum()
}
