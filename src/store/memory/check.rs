//! Invariants of the stored state at rest.

use std::collections::BTreeMap;

use super::{Page, Pages};
use crate::model::summary::{by_name, summarise};
use crate::model::{BucketStart, FieldSummary, Reading, Rows, StorageMode};

/// An invariant that does not hold, and where.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{page}: {broken}")]
pub struct InvalidPage {
    /// The page, its sensor and its time.
    pub page: String,
    /// The invariant.
    #[source]
    pub broken: BrokenInvariant,
}

/// The invariants of the stored state at rest, each with what was found instead.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "the texts say it")]
pub enum BrokenInvariant {
    #[error("{0} readings")]
    TooManyReadings(u32),
    #[error("has a next page and is not sealed")]
    NotSealed,
    #[error("the next page has another storage mode")]
    OtherMode,
    #[error("the page before it is missing")]
    Gap,
    #[error("count {count} but {readings} readings")]
    Count { count: u64, readings: usize },
    #[error("summary {stored:?}, from its readings {expected:?}")]
    Summary { stored: BTreeMap<String, FieldSummary>, expected: BTreeMap<String, FieldSummary> },
}

impl Pages {
    /// Checks the invariants of the stored state at rest. The count and summary of a page are those of its readings (in
    /// a time-series bucket, those of all pages together are those of its measurements). No page is missing before
    /// another. Exactly the pages with a successor are sealed (the last one may be, just before its successor is
    /// created).
    ///
    /// # Errors
    /// The violated invariant, and the page.
    pub fn check(&self, max_readings: u32) -> Result<(), InvalidPage> {
        for ((sensor, start, n), page) in &self.pages {
            self.check_page(sensor, *start, *n, page, max_readings).map_err(|broken| {
                let page = format!("page {n} of {sensor} at {}", start.0);
                InvalidPage { page, broken }
            })?;
        }
        Ok(())
    }

    fn check_page(
        &self,
        sensor: &str,
        start: BucketStart,
        n: u32,
        page: &Page,
        max_readings: u32,
    ) -> Result<(), BrokenInvariant> {
        match page.storage_mode {
            StorageMode::Bucket if page.count > max_readings => {
                return Err(BrokenInvariant::TooManyReadings(page.count));
            }
            StorageMode::Bucket => same(u64::from(page.count), &page.summary, &page.readings)?,
            StorageMode::TimeSeries if n == 0 => self.check_series(sensor, start)?,
            StorageMode::TimeSeries => {}
        }
        let next = self.pages.get(&(sensor.to_owned(), start, n + 1));
        if next.is_some() && !page.sealed {
            return Err(BrokenInvariant::NotSealed);
        }
        if next.is_some_and(|next| next.storage_mode != page.storage_mode) {
            return Err(BrokenInvariant::OtherMode);
        }
        if n > 0 && !self.pages.contains_key(&(sensor.to_owned(), start, n - 1)) {
            return Err(BrokenInvariant::Gap);
        }
        Ok(())
    }

    fn check_series(&self, sensor: &str, start: BucketStart) -> Result<(), BrokenInvariant> {
        let pages: Vec<&Page> = self.of_bucket(sensor, start);
        let count = pages.iter().map(|page| u64::from(page.count)).sum();
        let mut merged: BTreeMap<String, FieldSummary> = BTreeMap::new();
        for (name, field) in pages.iter().flat_map(|page| &page.summary) {
            let sum = merged.get(name).map_or(*field, |held| held.merge(*field));
            merged.insert(name.clone(), sum);
        }
        let none = vec![];
        same(count, &merged, self.series.get(&(sensor.to_owned(), start)).unwrap_or(&none))
    }
}

/// Checks that count and summary are those of the readings.
fn same(count: u64, summary: &BTreeMap<String, FieldSummary>, readings: &[Reading]) -> Result<(), BrokenInvariant> {
    if count != readings.len() as u64 {
        return Err(BrokenInvariant::Count { count, readings: readings.len() });
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
        false => Err(BrokenInvariant::Summary { stored: summary.clone(), expected }),
    }
}

/// The sum of the absolute values of a reading's numbers.
fn magnitude(reading: &Reading) -> f64 {
    reading.values.values().filter_map(|v| v.as_ref().num()).map(|n| n.as_f64().abs()).sum()
}
