//! A bucket as it stands in the store, whatever is wrong with it: nothing here is believed before it was recomputed.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use crate::model::{BucketKey, FieldSummary, ReadingKey, Rows, StorageMode, summary};

/// One document of `sensor_buckets`.
#[derive(Debug, Clone)]
pub struct StoredPage {
    /// Its number.
    pub page: u32,
    /// What it says of its storage mode.
    pub storage_mode: StorageMode,
    /// Its version; absent where the field is missing or no number.
    pub count: Option<i64>,
    /// Whether it takes no more.
    pub sealed: bool,
    /// Milliseconds since 1970.
    pub first_ts_ms: Option<i64>,
    /// Milliseconds since 1970.
    pub last_ts_ms: Option<i64>,
    /// By field; `None` for one that is not whole.
    pub summary: BTreeMap<String, Option<FieldSummary>>,
    /// Its tags.
    pub tags: BTreeMap<String, String>,
    /// Its readings in stored order.
    pub rows: Rows,
    /// How many elements of `readings` hourbucket cannot have written.
    pub unreadable: u32,
}

impl StoredPage {
    /// How many readings it says it has; 0 where it says no such number.
    pub fn counted<N: TryFrom<i64> + Default>(&self) -> N {
        self.count.and_then(|n| N::try_from(n).ok()).unwrap_or_default()
    }
}

/// The measurements of a bucket.
#[derive(Debug, Clone, Default)]
pub struct BucketMeasurements {
    /// In order of time.
    pub rows: Rows,
    /// How many hourbucket cannot have written.
    pub unreadable: u32,
    /// The tags of the last one.
    pub tags: BTreeMap<String, String>,
}

/// A bucket: its documents, and its measurements where they were read.
#[derive(Debug, Clone)]
pub struct StoredBucket {
    /// Whose, and its first instant.
    pub key: BucketKey,
    /// Its end, exclusive, in milliseconds since 1970.
    pub end_ms: i64,
    /// By number, gaps included.
    pub pages: Vec<StoredPage>,
    /// Read where the form is [`StorageMode::TimeSeries`], where there is no document, and where a conversion needs them.
    pub measured: Option<BucketMeasurements>,
}

impl StoredBucket {
    /// The form that its first page tells, page 0 unless that is missing.
    pub fn storage_mode(&self) -> StorageMode {
        self.pages.first().map_or(StorageMode::TimeSeries, |page| page.storage_mode)
    }

    /// Pages with readings beside a document in time-series mode, or readings in one: written by somebody who still
    /// believed in pages.
    pub fn strays(&self) -> impl Iterator<Item = &StoredPage> {
        let mixed = self.storage_mode() == StorageMode::TimeSeries;
        self.pages
            .iter()
            .filter(move |p| mixed && (p.storage_mode == StorageMode::Bucket || !p.rows.is_empty() || p.unreadable > 0))
    }

    /// The pages in time-series mode, as one: they add up to the measurements together. `None` without any.
    pub fn merged(&self) -> Option<StoredPage> {
        let mut pages = self.pages.iter().filter(|p| p.storage_mode == StorageMode::TimeSeries);
        let mut merged = StoredPage { rows: Rows::default(), unreadable: 0, ..pages.next()?.clone() };
        for page in pages {
            merged.count = merged.count.zip(page.count).map(|(a, b)| a + b);
            merged.first_ts_ms = merged.first_ts_ms.into_iter().chain(page.first_ts_ms).min();
            merged.last_ts_ms = merged.last_ts_ms.max(page.last_ts_ms);
            for (name, field) in &page.summary {
                match merged.summary.get_mut(name) {
                    Some(sum) => *sum = sum.zip(*field).map(|(a, b)| a.merge(b)),
                    None => drop(merged.summary.insert(name.clone(), *field)),
                }
            }
        }
        Some(merged)
    }

    /// Readings in all documents.
    pub fn paged(&self) -> u64 {
        self.pages.iter().map(|p| p.rows.len() as u64).sum()
    }

    /// Numbers of the pages that are missing before the last one.
    pub fn gaps(&self) -> Vec<u32> {
        let there: BTreeSet<u32> = self.pages.iter().map(|p| p.page).collect();
        (0..there.last().copied().unwrap_or(0)).filter(|n| !there.contains(n)).collect()
    }
}

/// What readings add up to.
#[derive(Debug, Clone, Default)]
pub struct Recomputed {
    /// How many.
    pub count: u64,
    /// Earliest and latest time, in milliseconds since 1970; meaningless without readings.
    pub first_ts_ms: i64,
    /// See above.
    pub last_ts_ms: i64,
    /// By field: the summary, and the sum of the absolute values, by which a difference of sums is judged.
    pub fields: BTreeMap<String, (FieldSummary, f64)>,
}

impl Recomputed {
    /// Adds up all rows, in their order.
    pub fn of<'a>(all: impl IntoIterator<Item = &'a Rows>) -> Recomputed {
        let mut recompute_summary = Recomputed::default();
        for rows in all.into_iter().filter(|r| !r.is_empty()) {
            recompute_summary.add(rows);
        }
        recompute_summary
    }

    fn add(&mut self, rows: &Rows) {
        // Not first_ts_ms() of the rows: after a part was taken off it is a bound only.
        let times = || rows.iter().map(|r| r.ts_ms);
        let (first, last) = (times().min().unwrap_or(0), times().max().unwrap_or(0));
        let none = self.count == 0;
        self.first_ts_ms = if none { first } else { self.first_ts_ms.min(first) };
        self.last_ts_ms = if none { last } else { self.last_ts_ms.max(last) };
        self.count += rows.len() as u64;
        for (name, s) in summary::by_name(rows.fields(), &summary::summarise(rows)) {
            let merged = self.fields.get(&name).map_or(s, |(before, _)| before.merge(s));
            self.fields.entry(name).or_insert((s, 0.0)).0 = merged;
        }
        for (name, value) in rows.iter().flat_map(|r| r.named()) {
            if let (Some(v), Some(field)) = (value.num(), self.fields.get_mut(name)) {
                field.1 += v.as_f64().abs();
            }
        }
    }
}

/// Without what is in `seen` already; what stays is in it afterwards. The first of equal ones stays.
pub fn without_duplicates(rows: &Rows, seen: &mut HashSet<ReadingKey>) -> Rows {
    let mut kept = rows.clone();
    kept.retain(|row| seen.insert(row.key()));
    kept
}
