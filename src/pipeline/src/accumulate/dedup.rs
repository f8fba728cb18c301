//! The stored readings of a bucket that are needed to find duplicates. Pure.
//!
//! [`DedupWindow`] holds every stored reading from a time (`from_ms`) on, and none before. A sensor
//! whose readings are a little late needs only a little of the past. So a load starts at the
//! earliest reading in doubt, this process's writes are added at the end, and memory pressure
//! removes the oldest keys. A reading before the window causes another load.
//!
//! [`ExternalWrites`] is the part that must not be forgotten: which stored positions others wrote
//! (an earlier process, another instance, a statement whose answer was lost), and how many of those
//! were matched with receipt-time readings. Example: three pending, two stored by others, one
//! matched already: two still have to be written.

use super::arrivals::Arrivals;
use model::{ReadingKey, RowFlags, Rows, StorageMode};
use store::LoadedBucket;

/// The position of a reading in its bucket: page, and index within.
pub(super) type Position = (u32, u32);

/// The known stored readings of a bucket, from a time on.
#[derive(Debug)]
pub(super) struct DedupWindow {
    /// Every stored reading at or after this time is in `keys`.
    from_ms: i64,
    /// Sorted. Each key is stored, in flight or pending. Equal stored readings have the keys of
    /// [repeated](ReadingKey::repeated) ones, so that a forwarded reading finds whether as many are
    /// stored as its sender has sent up to it.
    keys: Vec<ReadingKey>,
    /// The subset of `keys` that others have stored. Sorted, repeated as often as stored.
    external: Vec<ReadingKey>,
}

impl DedupWindow {
    /// The window of a load, from `from_ms` on.
    pub(super) fn new(
        bucket: &LoadedBucket,
        from_ms: i64,
        others: Option<&ExternalWrites>,
    ) -> DedupWindow {
        let mut dedup = DedupWindow {
            from_ms,
            keys: vec![],
            external: vec![],
        };
        for (p, page) in bucket.pages.iter().enumerate() {
            for (i, key) in page
                .keys
                .iter()
                .enumerate()
                .filter(|(_, key)| key.ts_ms >= from_ms)
            {
                dedup.keys.push(*key);
                // Measurements have no position: this process's list of its own writes determines
                // whose they are.
                if others.is_some_and(|o| {
                    bucket.storage_mode == StorageMode::TimeSeries || o.holds((p as u32, i as u32))
                }) {
                    dedup.external.push(*key);
                }
            }
        }
        dedup.keys.sort();
        number_equal(&mut dedup.keys);
        dedup.external.sort();
        dedup
    }

    /// Whether the window covers this time.
    pub(super) fn knows(&self, ts_ms: i64) -> bool {
        ts_ms >= self.from_ms
    }

    pub(super) fn contains(&self, key: &ReadingKey) -> bool {
        self.keys.binary_search(key).is_ok()
    }

    /// Adds the keys of a write.
    pub(super) fn extend(&mut self, keys: impl Iterator<Item = ReadingKey>) {
        let before = self.keys.len();
        self.keys.extend(keys.filter(|k| k.ts_ms >= self.from_ms));
        let from = before.saturating_sub(1);
        if !self.keys[from..].is_sorted() {
            // Nearly sorted: two runs, which this sort merges.
            self.keys.sort();
        }
    }

    /// If it has more than `keys_max` keys, keeps about the newest half of `keys_max`.
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
        size_of::<DedupWindow>()
            + (self.keys.capacity() + self.external.capacity()) * size_of::<ReadingKey>()
    }
}

/// Gives equal keys, which are neighbours, those of repeated readings.
fn number_equal(keys: &mut [ReadingKey]) {
    let mut first = None;
    let mut repeat = 0;
    let mut is_sorted = true;
    for key in keys.iter_mut() {
        if first == Some(*key) {
            repeat += 1;
            *key = key.repeated(repeat);
            is_sorted = false;
        } else {
            (first, repeat) = (Some(*key), 0);
        }
    }
    if !is_sorted {
        keys.sort();
    }
}

/// Stored readings of a bucket that this process did not write.
#[derive(Debug, Default, Clone)]
pub(super) struct ExternalWrites {
    /// Half-open, ascending.
    spans: Vec<(Position, Position)>,
    /// The end of the stored readings when the bucket last forgot them. The writers of all
    /// positions before it are known: they are in `spans`, or this process wrote them.
    pub(super) known: Position,
    /// The latest time in the bucket when the last span was found. No external reading is later.
    last_ts_ms: i64,
    /// Readings with the time of receipt that account for stored ones, each with its position on
    /// the line of `arrivals`: those that were matched with a stored reading, and in a time-series
    /// bucket those that this process wrote. A reading is repeated as often as that happened.
    claimed: Vec<(i64, ReadingKey)>,
    /// The arrivals of this process's own measurements, which are remembered until no equal one can
    /// arrive any more.
    arrivals: Arrivals,
}

/// With fewer entries, old ones are not searched for.
const OWN_MIN: usize = 8;

impl ExternalWrites {
    /// Records that others wrote the positions from `known` to `end`.
    pub(super) fn found(&mut self, known: Position, end: Position, last_ts_ms: i64) {
        self.spans.push((known, end));
        self.last_ts_ms = last_ts_ms;
    }

    /// Whether a reading of this time may have been written by others.
    pub(super) fn may_hold(&self, ts_ms: i64) -> bool {
        ts_ms <= self.last_ts_ms
    }

    fn holds(&self, at: Position) -> bool {
        self.spans.iter().any(|(from, to)| *from <= at && at < *to)
    }

    /// Matches a receipt-time reading with a stored one; `false` if none is left.
    pub(super) fn claim(&mut self, dedup: &DedupWindow, key: ReadingKey) -> bool {
        let first = dedup.external.partition_point(|k| *k < key);
        let stored = dedup.external[first..]
            .iter()
            .take_while(|k| **k == key)
            .count();
        if stored == 0 {
            return false;
        }
        let left = self.claimed.iter().filter(|(_, k)| *k == key).count() < stored;
        if left {
            self.claimed.push((self.arrivals.at_ms(), key));
        }
        left
    }

    /// Records the receipt-time readings that this process has stored as measurements.
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
