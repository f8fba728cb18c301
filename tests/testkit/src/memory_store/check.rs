//! Invariants of the stored state at rest.

use std::collections::BTreeMap;

use super::{Page, Pages};
use model::catalog::CATALOG_STEP_MS;
use model::summary::{by_name, summarise};
use model::{BucketStart, FieldKinds, FieldSummary, Reading, Rows, StorageMode, Value};
use store::catalog::CatalogEntry;

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

/// The invariants of the stored state at rest, each with the state found instead.
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
    #[error("not in the catalogue, which has {entry:?}")]
    Catalog { entry: Option<Box<CatalogEntry>> },
    #[error("summary {stored:?}, from its readings {expected:?}")]
    Summary {
        stored: BTreeMap<String, FieldSummary>,
        expected: BTreeMap<String, FieldSummary>,
    },
}

impl Pages {
    /// Checks the invariants of the stored state at rest. The count and summary of a page are those
    /// of its readings (in a time-series bucket, those of all pages together are those of its
    /// measurements). No page is missing before another. Exactly the pages with a successor are
    /// sealed (the last one may be, just before its successor is created).
    ///
    /// # Errors
    /// The violated invariant, and the page.
    pub fn check(&self, max_readings: u32) -> Result<(), InvalidPage> {
        for ((sensor, start, n), page) in &self.pages {
            self.check_page(sensor, *start, *n, page, max_readings)
                .map_err(|broken| {
                    let page = format!("page {n} of {sensor} at {}", start.0);
                    InvalidPage { page, broken }
                })?;
        }
        Ok(())
    }

    /// Checks that the catalogue has the sensor of every stored reading, its fields with their
    /// kinds, and its time.
    ///
    /// # Errors
    /// The first reading that it lacks.
    pub fn check_catalog(&self) -> Result<(), InvalidPage> {
        for reading in self.readings() {
            let entry = self.catalog.get(&reading.sensor_id);
            let has = |(name, value): (&String, &Value)| {
                let kinds = entry
                    .and_then(|entry| entry.fields.get(name))
                    .copied()
                    .unwrap_or_default();
                kinds.contains(FieldKinds::from_value(value.as_ref()))
            };
            let within = |entry: &CatalogEntry| {
                (entry.first_ts_ms - CATALOG_STEP_MS..=entry.last_ts_ms + CATALOG_STEP_MS)
                    .contains(&reading.ts_ms)
            };
            if !entry.is_some_and(within) || !reading.values.iter().all(has) {
                let page = format!("{} at {}", reading.sensor_id, reading.ts_ms);
                return Err(InvalidPage {
                    page,
                    broken: BrokenInvariant::Catalog {
                        entry: entry.cloned().map(Box::new),
                    },
                });
            }
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
        // Measurements that were stored without their summary are no longer counted, once others
        // have expired.
        let id = (sensor.to_owned(), start);
        let of_bucket = [self.series.get(&id), self.expired.get(&id)];
        let readings: Vec<Reading> = of_bucket.into_iter().flatten().flatten().cloned().collect();
        let is_removed = pages.iter().any(|page| page.readings_removed) || of_bucket[1].is_some();
        if is_removed && count <= readings.len() as u64 {
            return Ok(());
        }
        same(count, &merged, &readings)
    }
}

/// Checks that count and summary are those of the readings.
fn same(
    count: u64,
    summary: &BTreeMap<String, FieldSummary>,
    readings: &[Reading],
) -> Result<(), BrokenInvariant> {
    if count != readings.len() as u64 {
        return Err(BrokenInvariant::Count {
            count,
            readings: readings.len(),
        });
    }
    let mut rows = Rows::default();
    readings.iter().for_each(|r| rows.push_reading(r));
    let expected = by_name(rows.fields(), &summarise(&rows));
    let sizes = readings.iter().fold(1.0, |sum, r| sum + magnitude(r));
    let same = expected.len() == summary.len()
        && expected.iter().all(|(name, e)| {
            summary.get(name).is_some_and(|s| {
                s.min == e.min
                    && s.max == e.max
                    && s.count == e.count
                    && same_sum(s.sum.as_f64(), e.sum.as_f64(), sizes)
            })
        });
    match same {
        true => Ok(()),
        false => Err(BrokenInvariant::Summary {
            stored: summary.clone(),
            expected,
        }),
    }
}

/// Whether two sums of the same numbers are equal, but for the order in which these were added: it
/// matters a little, and completely if a sum overflows on the way. `sizes`: the sum of their
/// absolute values.
pub fn same_sum(a: f64, b: f64, sizes: f64) -> bool {
    (a - b).abs() <= 1e-9 * sizes || sizes >= f64::MAX * (1.0 - 1e-9)
}

/// The sum of the absolute values of a reading's numbers.
fn magnitude(reading: &Reading) -> f64 {
    reading
        .values
        .values()
        .filter_map(|v| v.as_ref().num())
        .map(|n| n.as_f64().abs())
        .sum()
}
