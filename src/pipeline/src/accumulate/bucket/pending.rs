//! The rows of a bucket that wait for a statement. Pure.

use std::collections::HashSet;

use super::super::dedup::{DedupWindow, ExternalWrites};
use super::{IncomingReading, WriteOutcome};
use model::ack::{Ack, Acks};
use model::{ReadingKey, RowFlags, Rows, memory, rows};

/// Pending rows and who waits for them. Millions of sensors have one with few rows, so it is small:
/// the parts that few need are in [`Rare`].
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) rows: Rows,
    acks: Acks,
    rare: Option<Box<Rare>>,
    /// When the first row came, or earlier (monotonic ms).
    pub(super) since_ms: u64,
    /// Whether the rows must be compared with the stored ones before they are written.
    pub(super) check: bool,
    /// Whether a row is of the journal's replay.
    pub(super) replayed: bool,
}

/// The parts of [`Pending`] for a sensor whose readings are out of order, or more than a page has
/// room for.
#[derive(Debug, Default)]
struct Rare {
    /// Acknowledgements that wait only for this number of first rows: they were here when a
    /// statement left these rows.
    older: Option<(usize, Acks)>,
    /// Keys of the rows, once an out-of-order row made them necessary.
    keys: Option<HashSet<ReadingKey>>,
    /// When the first row came that does not fit into the page; set if the bucket is overfull.
    over_ms: Option<u64>,
}

impl Pending {
    pub(super) fn new(now_ms: u64) -> Pending {
        Pending {
            rows: Rows::default(),
            acks: Acks::default(),
            rare: None,
            since_ms: now_ms,
            check: false,
            replayed: false,
        }
    }

    pub(super) fn push(&mut self, reading: &IncomingReading<'_>) {
        self.rows.push_repeat(
            reading.ts_ms,
            reading.flags,
            reading.repeat,
            reading.schema,
            reading.numbers,
            reading.payload,
        );
        if let Some(keys) = self.rare.as_mut().and_then(|rare| rare.keys.as_mut())
            && !reading.flags.any(RowFlags::RECEIPT_TIME)
        {
            keys.insert(reading.key());
        }
    }

    /// Whether a row has this key. Readings with the time of receipt have none.
    pub(super) fn has_key(&mut self, key: &ReadingKey) -> bool {
        let rows = &self.rows;
        let keys = self
            .rare
            .get_or_insert_default()
            .keys
            .get_or_insert_with(|| {
                rows.iter()
                    .filter(|r| !r.flags.any(RowFlags::RECEIPT_TIME))
                    .map(|r| r.identity())
                    .collect()
            });
        keys.contains(key)
    }

    /// Forgets the keys of the rows, after a change of the rows.
    pub(super) fn forget_keys(&mut self) {
        if let Some(rare) = self.rare.as_mut() {
            rare.keys = None;
        }
    }

    /// Notes that the reading that arrived now is the first that the page has no room for, unless
    /// one was before it.
    pub(super) fn overflows(&mut self, now_ms: u64) {
        self.rare
            .get_or_insert_default()
            .over_ms
            .get_or_insert(now_ms);
    }

    /// Takes the time given to [`Pending::overflows`].
    pub(super) fn take_over_ms(&mut self) -> Option<u64> {
        self.rare.as_mut()?.over_ms.take()
    }

    /// Keeps a part of `ack`, that of a reading, until the rows that are here now have left. The
    /// acknowledgements leave together, so the earliest of the journal is enough for readings with
    /// their own time.
    pub(super) fn join(&mut self, ack: &Ack, flags: RowFlags) {
        if flags.any(RowFlags::RECEIPT_TIME) {
            self.acks.join(ack);
        } else {
            self.acks.join_later(ack);
        }
    }

    /// The acknowledgements that leave with a statement of `taken` rows, which were taken from the
    /// front. All of them if it took the last row. A sensor that sends so much that each statement
    /// leaves rows must not keep them forever.
    pub(super) fn take_acks(&mut self, taken: usize) -> Acks {
        if self.rows.is_empty() {
            return self.all_acks();
        }
        match self.take_older() {
            Some(older) if older.0 > taken => {
                self.rare.get_or_insert_default().older = Some((older.0 - taken, older.1));
                Acks::default()
            }
            older => {
                if !self.acks.is_empty() {
                    let acks = std::mem::take(&mut self.acks);
                    self.rare.get_or_insert_default().older = Some((self.rows.len(), acks));
                }
                older.map(|older| older.1).unwrap_or_default()
            }
        }
    }

    fn take_older(&mut self) -> Option<(usize, Acks)> {
        self.rare.as_mut()?.older.take()
    }

    /// Takes all acknowledgements.
    fn all_acks(&mut self) -> Acks {
        let mut all = self.take_older().map(|older| older.1).unwrap_or_default();
        all.append(&mut self.acks);
        all
    }

    /// The rows, and the acknowledgements that wait for them.
    pub(super) fn into_parts(mut self) -> (Rows, Acks) {
        let acks = self.all_acks();
        (self.rows, acks)
    }

    /// Adds acknowledgements that wait for all rows, after any change of the rows' order.
    pub(super) fn wait_for_all(&mut self, mut acks: Acks) {
        acks.append(&mut self.all_acks());
        self.acks = acks;
    }

    /// Splits every acknowledgement, and returns the new parts.
    pub(super) fn split_acks(&self) -> Acks {
        let mut parts = self.acks.split();
        if let Some((_, older)) = self.rare.as_ref().and_then(|rare| rare.older.as_ref()) {
            parts.append(&mut older.split());
        }
        parts
    }

    /// Memory in bytes, including the struct itself.
    pub(super) fn memory(&self) -> usize {
        memory::block(size_of::<Pending>())
            + self.rows.memory_bytes()
            + self.acks.memory_bytes()
            + self.rare.as_ref().map_or(0, |rare| rare.memory())
    }

    pub(super) fn first_row_bytes(&self) -> u64 {
        self.rows
            .iter()
            .next()
            .map_or(0, |r| r.stored_bytes() + rows::ARRAY_KEY_BYTES_MAX)
    }

    /// Drops the rows that are stored, and those that wait twice since they were not compared when
    /// they came. Rows from before what was loaded (they came while it was) are left, to be loaded
    /// for again.
    pub(super) fn drop_stored(
        &mut self,
        dedup: &DedupWindow,
        mut external: Option<&mut ExternalWrites>,
    ) -> WriteOutcome {
        let mut outcome = WriteOutcome::default();
        let mut own = HashSet::new();
        let mut undecided = false;
        self.wait_for_all(Acks::default());
        self.rows.retain(|row| {
            if !dedup.knows(row.ts_ms) {
                undecided = true;
                return true;
            }
            let key = row.identity();
            let stored = match (row.flags.any(RowFlags::RECEIPT_TIME), external.as_mut()) {
                (true, external) => {
                    row.flags.suspect() && external.is_some_and(|f| f.claim(dedup, key))
                }
                (false, _) => dedup.contains(&key),
            };
            let keep = !stored && (row.flags.any(RowFlags::RECEIPT_TIME) || own.insert(key));
            match (keep, stored && row.flags.any(RowFlags::LOST)) {
                (true, _) => {}
                // Its statement was applied after all: it is this service that stored it.
                (false, true) => outcome.stored += 1,
                (false, false) => outcome.duplicates += 1,
            }
            keep
        });
        self.forget_keys();
        self.check = undecided;
        self.replayed = false;
        outcome
    }
}

impl Rare {
    fn memory(&self) -> usize {
        // A hash table of keys with one control byte each, at least an eighth empty.
        let keys = self
            .keys
            .as_ref()
            .map_or(0, |k| k.capacity() * (size_of::<ReadingKey>() + 1) * 8 / 7);
        memory::block(size_of::<Rare>())
            + keys
            + self
                .older
                .as_ref()
                .map_or(0, |(_, acks)| acks.memory_bytes())
    }
}
