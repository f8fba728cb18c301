//! A stored bucket as it was read, however damaged: no value in it is trusted before it is
//! recomputed.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use model::{BucketKey, FieldSummary, ReadingKey, Rows, StorageMode, summary};

/// One document of `sensor_buckets`.
#[derive(Debug, Clone)]
pub struct StoredPage {
    /// The page number, from 0.
    pub page: u32,
    /// The storage mode in the document.
    pub storage_mode: StorageMode,
    /// The count, which is the version; `None` if the field is missing or not a number.
    pub count: Option<i64>,
    /// Whether it is closed for appends.
    pub sealed: bool,
    /// The stored earliest time, in milliseconds since 1970.
    pub first_ts_ms: Option<i64>,
    /// The stored latest time, in milliseconds since 1970.
    pub last_ts_ms: Option<i64>,
    /// The stored summary by field; `None` for an incomplete one.
    pub summary: BTreeMap<String, Option<FieldSummary>>,
    /// The stored tags; empty if the field is missing.
    pub tags: BTreeMap<String, String>,
    /// Its readings in stored order.
    pub rows: Rows,
    /// Number of elements of `readings` that hourbucket cannot have written.
    pub unreadable: u32,
    /// Its readings were removed, or the server is removing them ([`crate::retention`]), and `rows`
    /// has not all of them.
    pub readings_removed: bool,
    /// A conversion to measurements wrote it in place of pages.
    pub was_converted: bool,
}

impl StoredPage {
    /// The stored number of readings; 0 if it is missing or out of range.
    pub fn counted<N: TryFrom<i64> + Default>(&self) -> N {
        self.count
            .and_then(|n| N::try_from(n).ok())
            .unwrap_or_default()
    }
}

/// The measurements of a bucket.
#[derive(Debug, Clone, Default)]
pub struct BucketMeasurements {
    /// Ordered by time.
    pub rows: Rows,
    /// Number of measurements that hourbucket cannot have written.
    pub unreadable: u32,
    /// The tags of the last measurement.
    pub tags: BTreeMap<String, String>,
}

/// A bucket: its documents, and its measurements if they were read.
#[derive(Debug, Clone)]
pub struct StoredBucket {
    /// Sensor and start time.
    pub key: BucketKey,
    /// Its end, exclusive, in milliseconds since 1970.
    pub end_ms: i64,
    /// Ordered by page number; pages may be missing.
    pub pages: Vec<StoredPage>,
    /// Read if the mode is [`StorageMode::TimeSeries`], if there is no document, and if a
    /// conversion needs them.
    pub measured: Option<BucketMeasurements>,
}

impl StoredBucket {
    /// The storage mode of its first page, which is page 0 unless that is missing.
    pub fn storage_mode(&self) -> StorageMode {
        self.pages
            .first()
            .map_or(StorageMode::TimeSeries, |page| page.storage_mode)
    }

    /// Pages with readings next to a document in time-series mode, or readings in such a document.
    /// Written by a process that still expected bucket mode.
    pub(crate) fn strays(&self) -> impl Iterator<Item = &StoredPage> {
        let mixed = self.storage_mode() == StorageMode::TimeSeries;
        self.pages.iter().filter(move |p| {
            mixed
                && (p.storage_mode == StorageMode::Bucket || !p.rows.is_empty() || p.unreadable > 0)
        })
    }

    /// The pages in time-series mode merged into one, since only together they count the
    /// measurements. `None` if there are none.
    pub fn merged(&self) -> Option<StoredPage> {
        let mut pages = self
            .pages
            .iter()
            .filter(|p| p.storage_mode == StorageMode::TimeSeries);
        let mut merged = StoredPage {
            rows: Rows::default(),
            unreadable: 0,
            ..pages.next()?.clone()
        };
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

    /// Whether measurements that its documents count were removed: the first one is not stored, or
    /// fewer are stored than counted, and the last one or the extreme of a field is not. After
    /// anything else that makes a document count too many, these are stored, or stray pages have
    /// them.
    pub(crate) fn has_lost_measurements(&self) -> bool {
        let (Some(stored), Some(measured)) = (self.merged(), &self.measured) else {
            return false;
        };
        let counted: u64 = stored.counted();
        if counted == 0 || self.strays().next().is_some() {
            return false;
        }
        let left = Recomputed::from_rows([&measured.rows]);
        // A page that counts nothing has no meaningful time.
        let pages = self.pages.iter().filter(|page| page.counted::<u64>() > 0);
        let first_ts_ms = pages.filter_map(|page| page.first_ts_ms).min();
        if left.count == 0 || first_ts_ms.is_some_and(|ts| ts < left.first_ts_ms) {
            return true;
        }
        let is_beyond = |(name, field): (&String, &Option<FieldSummary>)| {
            field.is_some_and(|field| match left.fields.get(name) {
                Some((left, _)) => {
                    field.min.as_f64() < left.min.as_f64() || field.max.as_f64() > left.max.as_f64()
                }
                None => true,
            })
        };
        left.count + u64::from(measured.unreadable) < counted
            && (stored.last_ts_ms.is_some_and(|ts| ts > left.last_ts_ms)
                || stored.summary.iter().any(is_beyond))
    }

    /// Number of readings in all documents.
    pub fn paged(&self) -> u64 {
        self.pages.iter().map(|p| p.rows.len() as u64).sum()
    }

    /// How many pages a writer that has loaded the bucket may expect: those that exist, and the one
    /// after a sealed last page. A conversion leaves at least as many, and seals all but the last, so
    /// each statement of such a writer meets a page, and conflicts.
    ///
    /// Of a converted bucket one more: a statement may be on its way since the bucket was in pages
    /// before. When it is again, its last page may have the count that the statement expects, so that
    /// page is sealed.
    pub(crate) fn expected_pages(&self) -> usize {
        let was_converted = self.pages.iter().any(|page| page.was_converted);
        self.pages.last().map_or(0, |last| {
            last.page as usize + 1 + usize::from(last.sealed || was_converted)
        })
    }

    /// Numbers of the pages that are missing before the last one.
    pub fn gaps(&self) -> Vec<u32> {
        let there: BTreeSet<u32> = self.pages.iter().map(|p| p.page).collect();
        (0..there.last().copied().unwrap_or(0))
            .filter(|n| !there.contains(n))
            .collect()
    }
}

/// The recomputed count, times and summary of readings.
#[derive(Debug, Clone, Default)]
pub(crate) struct Recomputed {
    /// Number of readings.
    pub count: u64,
    /// Earliest time in milliseconds since 1970; meaningless without readings.
    pub first_ts_ms: i64,
    /// Latest time in milliseconds since 1970; meaningless without readings.
    pub last_ts_ms: i64,
    /// By field: the summary, and the sum of the absolute values, which limits the allowed
    /// difference of sums.
    pub fields: BTreeMap<String, (FieldSummary, f64)>,
}

impl Recomputed {
    /// Adds up all rows, in their order.
    pub(crate) fn from_rows<'a>(all: impl IntoIterator<Item = &'a Rows>) -> Recomputed {
        let mut recomputed = Recomputed::default();
        for rows in all.into_iter().filter(|r| !r.is_empty()) {
            recomputed.add(rows);
        }
        recomputed
    }

    fn add(&mut self, rows: &Rows) {
        // Not first_ts_ms() of the rows: after a part was split off, it is only a bound.
        let times = || rows.iter().map(|r| r.ts_ms);
        let first = times().min().unwrap_or(0);
        let last = times().max().unwrap_or(0);
        let none = self.count == 0;
        self.first_ts_ms = if none {
            first
        } else {
            self.first_ts_ms.min(first)
        };
        self.last_ts_ms = if none {
            last
        } else {
            self.last_ts_ms.max(last)
        };
        self.count += rows.len() as u64;
        for (name, s) in summary::by_name(rows.fields(), &summary::summarise(rows)) {
            let merged = self
                .fields
                .get(&name)
                .map_or(s, |(before, _)| before.merge(s));
            self.fields.entry(name).or_insert((s, 0.0)).0 = merged;
        }
        for (name, value) in rows.iter().flat_map(|r| r.named()) {
            if let (Some(v), Some(field)) = (value.num(), self.fields.get_mut(name)) {
                field.1 += v.as_f64().abs();
            }
        }
    }
}

/// Returns the rows whose keys are not in `seen`, and adds their keys. Keeps the first of equal
/// ones.
pub(crate) fn without_duplicates(rows: &Rows, seen: &mut HashSet<ReadingKey>) -> Rows {
    let mut kept = rows.clone();
    kept.retain(|row| seen.insert(row.key()));
    kept
}
