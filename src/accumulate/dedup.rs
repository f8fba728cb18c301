//! What a bucket knows of its stored readings, as far as it is needed to know duplicates. Pure.
//!
//! [`DedupWindow`] is a window: it knows every stored reading from a time on (`from`), and nothing before. A sensor whose
//! readings are a little late needs a little of the past only, so what is loaded begins at the earliest reading in
//! doubt, what this process writes is added at the end, and under pressure the far end is forgotten. A reading before
//! the window is loaded for again.
//!
//! [`ExternalWrites`] is what must not be forgotten: which stored positions are the work of others (an earlier process, another
//! instance, a statement whose answer was lost), and how many of those were counted against readings with the time of
//! receipt. Three pending, two stored by others, one counted already: two are missing.

use super::arrivals::Arrivals;
use crate::model::{ReadingKey, RowFlags, Rows, StorageMode};
use crate::store::LoadedBucket;

/// Where a reading lies in its bucket: page, and position within.
pub(super) type Position = (u32, u32);

/// The window.
#[derive(Debug)]
pub(super) struct DedupWindow {
    /// Every reading at or after this is known.
    from_ms: i64,
    /// Sorted. Whatever is here is stored, in flight or waiting.
    keys: Vec<ReadingKey>,
    /// Those of `keys` that others have stored; sorted, as often as they are stored.
    external: Vec<ReadingKey>,
}

impl DedupWindow {
    /// What was loaded, from `from_ms` on.
    pub(super) fn new(bucket: &LoadedBucket, from_ms: i64, others: Option<&ExternalWrites>) -> DedupWindow {
        let mut dedup = DedupWindow { from_ms, keys: vec![], external: vec![] };
        for (p, page) in bucket.pages.iter().enumerate() {
            for (i, key) in page.keys.iter().enumerate().filter(|(_, key)| key.ts_ms >= from_ms) {
                dedup.keys.push(*key);
                // Measurements have no position: whose they are is told by what this process knows to be its own.
                if others
                    .is_some_and(|o| bucket.storage_mode == StorageMode::TimeSeries || o.holds((p as u32, i as u32)))
                {
                    dedup.external.push(*key);
                }
            }
        }
        dedup.keys.sort();
        dedup.keys.dedup();
        dedup.external.sort();
        dedup
    }

    /// Whether anything can be said about a reading of this time.
    pub(super) fn knows(&self, ts_ms: i64) -> bool {
        ts_ms >= self.from_ms
    }

    pub(super) fn contains(&self, key: &ReadingKey) -> bool {
        self.keys.binary_search(key).is_ok()
    }

    /// Adds what is written now.
    pub(super) fn extend(&mut self, keys: impl Iterator<Item = ReadingKey>) {
        let before = self.keys.len();
        self.keys.extend(keys.filter(|k| k.ts_ms >= self.from_ms));
        let from = before.saturating_sub(1);
        if !self.keys[from..].is_sorted() {
            // Nearly sorted: two runs, which this sort merges.
            self.keys.sort();
        }
    }

    /// Forgets the far end, down to about half of `keys_max`, where it holds more than that.
    pub(super) fn trim(&mut self, keys_max: usize) {
        if self.keys.len() <= keys_max {
            return;
        }
        self.from_ms = self.keys[self.keys.len() - keys_max / 2 - 1].ts_ms;
        let from_ms = self.from_ms;
        for keys in [&mut self.keys, &mut self.external] {
            keys.drain(..keys.partition_point(|k| k.ts_ms < from_ms));
            keys.shrink_to(keys_max);
        }
    }

    pub(super) fn memory(&self) -> usize {
        size_of::<DedupWindow>() + (self.keys.capacity() + self.external.capacity()) * size_of::<ReadingKey>()
    }
}

/// The work of others in a bucket.
#[derive(Debug, Default, Clone)]
pub(super) struct ExternalWrites {
    /// Half-open, in order.
    spans: Vec<(Position, Position)>,
    /// Latest time in the bucket when the last span was found: nothing of theirs is later.
    last_ts_ms: i64,
    /// Readings with the time of receipt that stored ones are accounted for by: counted against them, or in a time-series
    /// bucket written by this process, and their places on the line of `arrivals`. As often as they were.
    claimed: Vec<(i64, ReadingKey)>,
    /// Of what this process has written: measurements of its own are remembered until no equal one can come any more.
    arrivals: Arrivals,
}

/// Fewer than this are not looked through for old ones.
const OWN_MIN: usize = 8;

impl ExternalWrites {
    /// Notes that what lies from `known` to `end` was written by others.
    pub(super) fn found(&mut self, known: Position, end: Position, last_ts_ms: i64) {
        self.spans.push((known, end));
        self.last_ts_ms = last_ts_ms;
    }

    /// Whether a reading of this time can be one of theirs.
    pub(super) fn may_hold(&self, ts_ms: i64) -> bool {
        ts_ms <= self.last_ts_ms
    }

    fn holds(&self, at: Position) -> bool {
        self.spans.iter().any(|(from, to)| *from <= at && at < *to)
    }

    /// Counts a reading with the time of receipt against a stored one; `false` where none is left.
    pub(super) fn claim(&mut self, dedup: &DedupWindow, key: ReadingKey) -> bool {
        let first = dedup.external.partition_point(|k| *k < key);
        let stored = dedup.external[first..].iter().take_while(|k| **k == key).count();
        if stored == 0 {
            return false;
        }
        let left = self.claimed.iter().filter(|(_, k)| *k == key).count() < stored;
        if left {
            self.claimed.push((self.arrivals.at_ms(), key));
        }
        left
    }

    /// Notes the readings with a time of receipt that this process has stored as measurements.
    pub(super) fn own(&mut self, rows: &Rows) {
        let receipt = || rows.iter().filter(|r| r.flags.any(RowFlags::RECEIPT_TIME));
        let mut arrivals = self.arrivals;
        for row in receipt() {
            arrivals.note(row.ts_ms);
        }
        let over_ms = arrivals.over_ms();
        if self.claimed.len() >= OWN_MIN {
            self.claimed.retain(|(at_ms, _)| *at_ms > over_ms);
        }
        for row in receipt() {
            let at_ms = self.arrivals.note(row.ts_ms);
            if at_ms > over_ms {
                self.claimed.push((at_ms, row.key()));
            }
        }
    }

    pub(super) fn memory(&self) -> usize {
        size_of::<ExternalWrites>()
            + self.spans.capacity() * size_of::<(Position, Position)>()
            + self.claimed.capacity() * size_of::<(i64, ReadingKey)>()
    }
}
