//! Merges stored readings with those in memory, each once, in order, from a cursor to a limit.
//! Pure.
//!
//! Readings are ordered by time, and within one millisecond by a hash of their values. This order
//! depends on the readings alone, so a cursor has the same meaning whether a reading is stored or
//! not.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::str::FromStr;

use model::rows::Row;
use model::{BucketStart, ReadingKey, Rows, Span, StorageMode};
use pipeline::accumulate::UnstoredBucket;
use pipeline::accumulate::state::snapshot::UnstoredRows;
use store::maintain::StoredPage;
use store::reading::MeasurementResults;
use store::{LoadedBucket, LoadedPage};

/// Bytes of stored readings collected for one answer.
const GATHER_BYTES_MAX: usize = 32 << 20;
/// Bytes of the readings in one answer, in stored form; in JSON about twice as many.
pub(super) const ANSWER_BYTES_MAX: usize = 8 << 20;
/// Readings collected beyond the limit before the excess is dropped.
const SLACK: usize = 10_000;

/// The end of an answer: after `given` readings with this identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    /// Time and values hash of the last reading.
    pub key: ReadingKey,
    /// Readings with exactly this identity that were returned.
    pub given: u32,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}.{:x}.{}",
            self.key.ts_ms, self.key.values_hash, self.given
        )
    }
}

/// The text is not a cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidCursor;

impl FromStr for Cursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Cursor, InvalidCursor> {
        let mut parts = text.split('.');
        let mut part = || {
            parts
                .next()
                .filter(|part| !part.is_empty() && !part.starts_with('+'))
                .ok_or(InvalidCursor)
        };
        let ts_ms = part()?.parse().map_err(|_| InvalidCursor)?;
        let values_hash = u64::from_str_radix(part()?, 16).map_err(|_| InvalidCursor)?;
        let given = part()?.parse().map_err(|_| InvalidCursor)?;
        match parts.next() {
            None => Ok(Cursor {
                key: ReadingKey { ts_ms, values_hash },
                given,
            }),
            Some(_) => Err(InvalidCursor),
        }
    }
}

/// The requested readings.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    /// Start, ms since 1970.
    pub from_ms: i64,
    /// End, ms since 1970, exclusive.
    pub to_ms: i64,
    /// Only readings after this cursor.
    pub after: Option<Cursor>,
    /// Maximum number of readings, at least one.
    pub limit: usize,
}

impl Window {
    /// The earliest time of the requested readings.
    pub fn begin_ms(&self) -> i64 {
        self.after
            .map_or(self.from_ms, |after| after.key.ts_ms.max(self.from_ms))
    }
}

/// The next readings, and where to continue.
#[derive(Debug, Clone, Default)]
pub struct MergedReadings {
    /// In the order of this module.
    pub rows: Rows,
    /// Set if there are, or may be, more.
    pub next: Option<Cursor>,
    /// Readings before this time (ms since 1970) were removed, if any of the requested ones were.
    pub(crate) removed_until_ms: Option<i64>,
}

/// A merge in progress, while stored pages arrive.
#[derive(Debug)]
pub struct ReadingMerge {
    window: Window,
    span: Span,
    views: BTreeMap<BucketStart, UnstoredBucket>,
    /// The views contain nothing from this time on.
    cut_ms: i64,
    /// The storage modes of the buckets found.
    storage_modes: BTreeMap<BucketStart, StorageMode>,
    /// For buckets with a view: the contents of their pages.
    pages: BTreeMap<BucketStart, BTreeMap<u32, LoadedPage>>,
    rows: Rows,
    /// The bucket whose pages are arriving.
    at: Option<BucketStart>,
    /// Readings of the buckets before it.
    whole: usize,
    measured: usize,
    /// The end of the last bucket whose readings were removed, within the window (ms since 1970).
    removed_until_ms: Option<i64>,
    /// The first times that the pages of measured buckets have, within the window.
    first_measured_ms: BTreeMap<BucketStart, i64>,
}

impl ReadingMerge {
    /// `view` must have been made before the first request to the store.
    pub fn new(window: Window, span: Span, view: UnstoredRows) -> ReadingMerge {
        ReadingMerge {
            window,
            span,
            cut_ms: view.cut_ms.unwrap_or(i64::MAX),
            views: view.buckets.into_iter().map(|v| (v.start(), v)).collect(),
            storage_modes: BTreeMap::new(),
            pages: BTreeMap::new(),
            rows: Rows::default(),
            at: None,
            whole: 0,
            measured: 0,
            removed_until_ms: None,
            first_measured_ms: BTreeMap::new(),
        }
    }

    /// Adds the next page, in the order of [`store::Store::pages`].
    pub fn page(&mut self, start: BucketStart, page: &StoredPage) {
        if self.at != Some(start) {
            self.whole = self.rows.len() + self.measured;
            self.at = Some(start);
        }
        self.storage_modes.insert(start, page.storage_mode);
        if page.readings_removed {
            self.is_removed(start);
        }
        if page.storage_mode == StorageMode::TimeSeries {
            if page.readings_removed {
                return;
            }
            let first_ms = page.first_ts_ms.filter(|_| page.counted::<u64>() > 0);
            let others_ms = self.first_measured_ms.get(&start).copied();
            if let Some(first_ms) = first_ms.into_iter().chain(others_ms).min() {
                self.first_measured_ms.insert(start, first_ms);
            }
            // If the window starts within the bucket, it contains fewer readings than the page
            // counts.
            if start.0 >= self.window.begin_ms() {
                self.measured += page.counted::<usize>();
            }
            return;
        }
        if self.views.contains_key(&start) {
            self.pages
                .entry(start)
                .or_default()
                .insert(page.page, loaded_page(page, i64::MIN));
        }
        let wanted = self.window.begin_ms()..self.window.to_ms;
        page.rows
            .iter()
            .filter(|row| wanted.contains(&row.ts_ms))
            .for_each(|row| self.rows.push_row(&row));
        if self.rows.len() > 2 * self.window.limit + SLACK {
            self.prune();
        }
    }

    /// Notes that readings of a bucket were removed.
    fn is_removed(&mut self, start: BucketStart) {
        let end_ms = self.span.end(start).min(self.window.to_ms);
        let end_ms = Some(end_ms).filter(|end| *end > self.window.from_ms);
        self.removed_until_ms = self.removed_until_ms.max(end_ms);
    }

    /// Notes the buckets whose first measurement is not among those that were read: the server
    /// removes the oldest first ([`store::retention`]).
    fn find_removed(&mut self, measured: &Rows, read: std::ops::Range<i64>) {
        let times: HashSet<i64> = measured.iter().map(|row| row.ts_ms).collect();
        for (start, first_ms) in std::mem::take(&mut self.first_measured_ms) {
            if read.contains(&first_ms) && !times.contains(&first_ms) {
                self.is_removed(start);
            }
        }
    }

    /// Drops readings that cannot be among the first ones.
    fn prune(&mut self) {
        let mut all: Vec<(ReadingKey, Row<'_>)> =
            self.rows.iter().map(|row| (row.key(), row)).collect();
        all.retain(|(key, _)| self.window.after.is_none_or(|after| *key >= after.key));
        // Plus those that the cursor skips.
        let skipped = self.window.after.map_or(0, |after| after.given as usize);
        let keep = (self.window.limit + 1 + skipped).min(all.len());
        all.sort_by_key(|(key, _)| *key);
        let mut kept = Rows::default();
        all[..keep].iter().for_each(|(_, row)| kept.push_row(row));
        self.rows = kept;
        self.whole = self.whole.min(self.rows.len() + self.measured);
    }

    /// Whether no more pages are needed: the complete buckets suffice, or the byte limit is
    /// reached.
    pub fn is_enough(&self) -> bool {
        let skipped = self.window.after.map_or(0, |after| after.given as usize);
        self.whole > self.window.limit + skipped
            || (self.whole > 0 && self.rows.memory_bytes() > GATHER_BYTES_MAX)
    }

    /// If there are more pages: the time before which all pages were added.
    pub fn whole_until_ms(&self) -> i64 {
        self.at
            .map_or(self.window.from_ms, |at| at.0)
            .max(self.window.begin_ms())
    }

    /// The result. `until_ms`: all pages before it were added; `measured`: the measurements from
    /// the window's start on.
    pub fn finish(mut self, until_ms: i64, measured: &MeasurementResults) -> MergedReadings {
        let window = self.window;
        let end_ms = window
            .to_ms
            .min(until_ms)
            .min(measured.until_ms)
            .min(self.cut_ms);
        self.find_removed(&measured.rows, window.begin_ms()..end_ms);
        let left: Vec<Rows> = std::mem::take(&mut self.views)
            .into_values()
            .filter(|view| view.start().0 < end_ms)
            .map(|view| {
                let stored = self.loaded(&view, &measured.rows);
                view.left(&stored)
            })
            .collect();
        let of_pages = |row: &Row<'_>| {
            self.storage_modes.get(&self.span.floor(row.ts_ms)) == Some(&StorageMode::Bucket)
        };
        // A conversion may have left measurements behind: the bucket's document determines where
        // its readings are.
        let measured = measured.rows.iter().filter(|row| !of_pages(row));
        let memory = left.iter().flat_map(Rows::iter);
        let mut all: Vec<(ReadingKey, Row<'_>)> = self
            .rows
            .iter()
            .chain(measured)
            .chain(memory)
            .filter(|row| (window.begin_ms()..end_ms).contains(&row.ts_ms))
            .map(|row| (row.key(), row))
            .collect();
        all.sort_by_key(|(key, _)| *key);
        MergedReadings {
            removed_until_ms: self.removed_until_ms,
            ..first(&all, window, end_ms)
        }
    }

    /// The stored part of a bucket in the form of a load.
    fn loaded(&mut self, view: &UnstoredBucket, measured: &Rows) -> LoadedBucket {
        let start = view.start();
        let span = self.span;
        match self.storage_modes.get(&start) {
            Some(StorageMode::Bucket) => {
                let found = self.pages.remove(&start).unwrap_or_default();
                LoadedBucket {
                    storage_mode: StorageMode::Bucket,
                    pages: in_order(found),
                }
            }
            // Measurements are written before the document that counts them.
            _ => measured_bucket(measured.iter().filter(|row| span.floor(row.ts_ms) == start)),
        }
    }
}

/// A page in the form of a load that requests the readings since a time (ms since 1970).
pub(super) fn loaded_page(page: &StoredPage, since_ms: i64) -> LoadedPage {
    let last_ts_ms = page.last_ts_ms.unwrap_or(i64::MIN);
    let keys = match last_ts_ms >= since_ms {
        true => page.rows.iter().map(|row| row.key()).collect(),
        false => vec![],
    };
    let count = page.counted();
    let sealed = page.sealed;
    let readings_removed = page.readings_removed;
    LoadedPage {
        count,
        sealed,
        first_ts_ms: page.first_ts_ms.unwrap_or(i64::MAX),
        last_ts_ms,
        bytes: 0,
        summary_bytes: 0,
        keys,
        readings_removed,
    }
}

/// The pages in order; omitted ones contain nothing that could be compared.
pub(super) fn in_order(mut found: BTreeMap<u32, LoadedPage>) -> Vec<LoadedPage> {
    let end = found.last_key_value().map_or(0, |(page, _)| page + 1);
    (0..end)
        .map(|page| found.remove(&page).unwrap_or_default())
        .collect()
}

/// Measurements of a bucket in the form of a load; without pages if there are none.
pub(super) fn measured_bucket<'a>(rows: impl Iterator<Item = Row<'a>>) -> LoadedBucket {
    let mut page = LoadedPage {
        last_ts_ms: i64::MIN,
        ..LoadedPage::default()
    };
    for row in rows {
        page.last_ts_ms = page.last_ts_ms.max(row.ts_ms);
        page.keys.push(row.key());
    }
    page.count = page.keys.len() as u32;
    let pages = if page.keys.is_empty() {
        vec![]
    } else {
        vec![page]
    };
    LoadedBucket {
        storage_mode: StorageMode::TimeSeries,
        pages,
    }
}

/// The first readings before `end_ms`, up to the limits.
fn first(all: &[(ReadingKey, Row<'_>)], window: Window, end_ms: i64) -> MergedReadings {
    let skip = window.after.map_or(0, |after| {
        let smaller = all.partition_point(|(key, _)| *key < after.key);
        let equal = all[smaller..]
            .iter()
            .take_while(|(key, _)| *key == after.key)
            .count();
        smaller + equal.min(after.given as usize)
    });
    let mut rows = Rows::default();
    for (_, row) in all[skip..].iter().take(window.limit) {
        rows.push_row(row);
        if rows.stored_bytes() >= ANSWER_BYTES_MAX as u64 {
            break;
        }
    }
    let given = &all[skip..skip + rows.len()];
    let next = match given.last() {
        Some((key, _)) if skip + given.len() < all.len() => {
            let equal = all[..skip + given.len()]
                .iter()
                .rev()
                .take_while(|(k, _)| k == key)
                .count();
            Some(Cursor {
                key: *key,
                given: equal as u32,
            })
        }
        _ if end_ms < window.to_ms => Some(Cursor {
            key: ReadingKey {
                ts_ms: end_ms,
                values_hash: 0,
            },
            given: 0,
        }),
        _ => None,
    };
    MergedReadings {
        rows,
        next,
        removed_until_ms: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000;

    #[test]
    fn a_bucket_whose_first_measurement_is_gone_has_lost_readings() {
        let page = StoredPage {
            page: 0,
            storage_mode: StorageMode::TimeSeries,
            count: Some(3),
            sealed: false,
            first_ts_ms: Some(1000),
            last_ts_ms: Some(3000),
            summary: BTreeMap::new(),
            tags: BTreeMap::new(),
            rows: Rows::default(),
            unreadable: 0,
            readings_removed: false,
            was_converted: false,
        };
        let removed_until_ms = |from_ms, there: &[i64]| {
            let window = Window {
                from_ms,
                to_ms: 5 * HOUR,
                after: None,
                limit: 10,
            };
            let mut merge = ReadingMerge::new(window, Span::HOUR, UnstoredRows::default());
            merge.page(BucketStart(0), &page);
            let mut rows = Rows::default();
            there
                .iter()
                .filter(|ts_ms| **ts_ms >= from_ms)
                .for_each(|ts_ms| rows.push_named(*ts_ms, Default::default(), &[]));
            let until_ms = window.to_ms;
            let found = merge.finish(until_ms, &MeasurementResults { rows, until_ms });
            found.removed_until_ms
        };
        assert_eq!(removed_until_ms(0, &[1000, 2000, 3000]), None);
        assert_eq!(removed_until_ms(0, &[2000, 3000]), Some(HOUR));
        assert_eq!(removed_until_ms(0, &[]), Some(HOUR));
        // The window does not contain it, so the answer lacks no such reading that it knows of.
        assert_eq!(removed_until_ms(2000, &[2000, 3000]), None);
    }
}
