//! The rows of a bucket that wait for a statement. Pure.

use std::collections::HashSet;

use super::super::dedup::{DedupWindow, ExternalWrites};
use super::{IncomingReading, WriteOutcome};
use crate::ack::{Ack, Acks};
use crate::model::{ReadingKey, RowFlags, Rows, memory, rows};

/// Pending rows and who waits for them.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) rows: Rows,
    acks: Acks,
    /// Acknowledgements that wait for so many of the first rows only: they were here when a statement left these rows.
    older: Option<Box<(usize, Acks)>>,
    /// Keys of the rows, once an out-of-order row made them necessary.
    pub(super) keys: Option<HashSet<ReadingKey>>,
    /// Whether the rows must be compared with the stored ones before they are written.
    pub(super) check: bool,
    /// Whether a row is of the journal's replay.
    pub(super) replayed: bool,
    /// When the first row came, or earlier (monotonic ms).
    pub(super) since_ms: u64,
    /// When the first row came that the page has no room for; of a bucket that is overfull.
    pub(super) over_ms: Option<u64>,
}

impl Pending {
    pub(super) fn new(now_ms: u64) -> Pending {
        Pending {
            rows: Rows::default(),
            acks: Acks::default(),
            older: None,
            keys: None,
            check: false,
            replayed: false,
            since_ms: now_ms,
            over_ms: None,
        }
    }

    pub(super) fn push(&mut self, reading: &IncomingReading<'_>) {
        self.rows.push(reading.ts_ms, reading.flags, reading.schema, reading.numbers, reading.payload);
        if let Some(keys) = self.keys.as_mut()
            && !reading.flags.any(RowFlags::RECEIPT_TIME)
        {
            keys.insert(reading.key());
        }
    }

    /// Keeps a part of `ack` until the rows that are here now have left.
    pub(super) fn join(&mut self, ack: &Ack) {
        self.acks.join(ack);
    }

    /// The acknowledgements that leave with a statement of `taken` rows, which were taken from the front. All of them if it
    /// took the last row. A sensor that sends so much that each statement leaves rows must not keep them forever.
    pub(super) fn take_acks(&mut self, taken: usize) -> Acks {
        if self.rows.is_empty() {
            return self.all_acks();
        }
        match self.older.take() {
            Some(mut older) if older.0 > taken => {
                older.0 -= taken;
                self.older = Some(older);
                Acks::default()
            }
            older => {
                if !self.acks.is_empty() {
                    self.older = Some(Box::new((self.rows.len(), std::mem::take(&mut self.acks))));
                }
                older.map(|older| older.1).unwrap_or_default()
            }
        }
    }

    /// Takes all acknowledgements.
    pub(super) fn all_acks(&mut self) -> Acks {
        let mut all = self.older.take().map(|older| older.1).unwrap_or_default();
        all.append(&mut self.acks);
        all
    }

    /// The rows, and all who wait for them.
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
        if let Some(older) = &self.older {
            parts.append(&mut older.1.split());
        }
        parts
    }

    /// Heap bytes of the acknowledgements.
    pub(super) fn acks_memory(&self) -> usize {
        let older = self.older.as_ref();
        self.acks.memory_bytes()
            + older.map_or(0, |older| memory::block(size_of::<(usize, Acks)>()) + older.1.memory_bytes())
    }

    pub(super) fn first_row_bytes(&self) -> u64 {
        self.rows.iter().next().map_or(0, |r| r.stored_bytes() + rows::ARRAY_KEY_BYTES_MAX)
    }

    /// Drops the rows that are stored, and those that wait twice since they were not compared when they came. Rows from
    /// before what was loaded (they came while it was) are left, to be loaded for again.
    pub(super) fn drop_stored(
        &mut self,
        dedup: &DedupWindow,
        mut external: Option<&mut ExternalWrites>,
    ) -> WriteOutcome {
        let (mut outcome, mut own, mut undecided) = (WriteOutcome::default(), HashSet::new(), false);
        self.wait_for_all(Acks::default());
        self.rows.retain(|row| {
            if !dedup.knows(row.ts_ms) {
                undecided = true;
                return true;
            }
            let key = row.key();
            let stored = match (row.flags.any(RowFlags::RECEIPT_TIME), external.as_mut()) {
                (true, external) => row.flags.suspect() && external.is_some_and(|f| f.claim(dedup, key)),
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
        self.keys = None;
        self.check = undecided;
        self.replayed = false;
        outcome
    }
}
