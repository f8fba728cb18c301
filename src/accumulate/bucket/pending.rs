//! The rows of a bucket that wait for a statement. Pure.

use std::collections::HashSet;

use super::super::dedup::{DedupWindow, ExternalWrites};
use super::{IncomingReading, WriteOutcome};
use crate::ack::Acks;
use crate::model::{ReadingKey, RowFlags, Rows, rows};

/// Pending rows and who waits for them.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) rows: Rows,
    pub(super) acks: Acks,
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
