//! The store's answers to the statement or load of a bucket, and what each of them changes. Pure.

use std::sync::Arc;

use super::super::dedup::DedupWindow;
use super::pending::Pending;
use super::stored_state::StoredState;
use super::{Bucket, InFlight, WriteOutcome};
use model::ack::Acks;
use model::{PageWrite, RowFlags, StorageMode};
use store::LoadedBucket;

impl Bucket {
    /// Notes that a load is in flight.
    pub(crate) fn loading(&mut self) {
        self.in_flight = Some(Box::new(InFlight {
            acks: Acks::default(),
            since_ms: 0,
            bytes: 0,
            rows: None,
            memory: 0,
        }));
    }

    /// The load failed; the bucket still needs it.
    pub(crate) fn load_failed(&mut self) {
        self.attempts = self.attempts.saturating_add(1);
        self.fault();
        self.load_ended();
    }

    /// The load was not started; the bucket still needs it.
    pub(crate) fn load_deferred(&mut self) {
        self.load_ended();
    }

    /// Ends the load. Acknowledgements that joined it wait with the pending rows again.
    fn load_ended(&mut self) {
        if let Some(in_flight) = self.in_flight.take()
            && let Some(pending) = self.pending.as_mut()
        {
            pending.wait_for_all(in_flight.acks);
        }
    }

    /// The store has accepted `write`; the page now has `count` readings.
    pub(crate) fn written(&mut self, write: &PageWrite, count: u32) -> WriteOutcome {
        let Some(in_flight) = self.in_flight.take() else {
            return WriteOutcome::default();
        };
        self.stored = self.stored.after(write, in_flight.bytes, count);
        if write.storage_mode == StorageMode::TimeSeries && self.receipt_at_ms > i64::MIN {
            self.external.get_or_insert_default().own(&write.rows);
        }
        (self.attempts, self.faults) = (0, 0);
        let stored = u64::from(in_flight.count());
        in_flight.acks.delivered();
        WriteOutcome {
            stored,
            duplicates: 0,
        }
    }

    /// The store has refused `write`, or its result is unknown: its rows are pending again, in
    /// front, and the bucket must be loaded.
    pub(crate) fn came_back(&mut self, write: PageWrite, flag: RowFlags, now_ms: u64) {
        let Some(mut in_flight) = self.in_flight.take() else {
            return;
        };
        drop(in_flight.rows.take());
        let mut rows = Arc::unwrap_or_clone(write.rows);
        rows.mark(flag);
        let mut pending = self
            .pending
            .take()
            .unwrap_or_else(|| Box::new(Pending::new(now_ms)));
        rows.append(&pending.rows);
        pending.rows = rows;
        pending.wait_for_all(in_flight.acks);
        pending.forget_keys();
        pending.check = true;
        pending.since_ms = in_flight.since_ms;
        // The page may have less room than it had when the first reading was too much for it.
        pending.take_over_ms();
        self.pending = Some(pending);
        self.attempts = self.attempts.saturating_add(1);
        self.doubt = true;
    }

    /// Like [`Bucket::came_back`], for a statement whose answer was lost because the store failed.
    pub(crate) fn lost(&mut self, write: PageWrite, now_ms: u64) {
        self.came_back(write, RowFlags::LOST, now_ms);
        self.fault();
    }

    /// The store will never accept the statement in flight; the caller owns its rows now. Returns
    /// parts of every acknowledgement that may cover them, to be delivered when the rows are kept
    /// as dead letters.
    pub(crate) fn given_up(&mut self) -> Acks {
        (self.attempts, self.faults) = (0, 0);
        // The window counts these rows as stored; a later replay from the dead letters must be
        // looked up.
        self.dedup = None;
        let mut acks = self.in_flight.take().map(|f| f.acks).unwrap_or_default();
        if let Some(pending) = &self.pending {
            acks.append(&mut pending.split_acks());
        }
        acks
    }

    /// Applies a load: drops rows that are stored already. `from_ms`: the time from which on
    /// readings were requested.
    pub(crate) fn loaded(
        &mut self,
        bucket: &LoadedBucket,
        from_ms: Option<i64>,
        keys_max: usize,
    ) -> WriteOutcome {
        self.load_ended();
        let before = std::mem::replace(&mut self.stored, StoredState::from_loaded(bucket));
        let known = match (before, &self.external) {
            (StoredState::Unknown, Some(external)) => external.known,
            _ => before.end(),
        };
        if from_ms.is_none()
            && !self.doubt
            && self.storage_mode == Some(bucket.storage_mode)
            && self.stored.is_same_page(before)
        {
            // No other writer has changed the page; only the summary's size was unknown.
            return WriteOutcome::default();
        }
        self.storage_mode = (!bucket.pages.is_empty()).then_some(bucket.storage_mode);
        // A load without doubt does not find out what was removed.
        self.doubt = bucket.readings_removed();
        self.high_water_ms = bucket
            .pages
            .iter()
            .map(|p| p.last_ts_ms)
            .max()
            .unwrap_or(i64::MIN);
        if self.stored.end() > known {
            self.external.get_or_insert_default().found(
                known,
                self.stored.end(),
                self.high_water_ms,
            );
        }
        if from_ms.is_none() {
            // The window lacks what others have written since.
            self.dedup = None;
        }
        let high_water_ms = self.high_water_ms;
        let Some(pending) = self.pending.as_mut() else {
            return WriteOutcome::default();
        };
        let Some(from_ms) = from_ms else {
            // A reading that may be stored already has a time at or before the latest stored one.
            // If readings were removed, the others cannot be stored either, and those that are left
            // decide which rows are duplicates.
            if pending.rows.first_ts_ms() <= high_water_ms || bucket.readings_removed() {
                pending.check = true;
            }
            return WriteOutcome::default();
        };
        let mut dedup = Box::new(DedupWindow::new(bucket, from_ms, self.external.as_deref()));
        let outcome = pending.drop_stored(&dedup, self.external.as_deref_mut());
        dedup.trim(keys_max);
        self.dedup = Some(dedup);
        if let Some(pending) = self.pending.take_if(|pending| pending.rows.is_empty()) {
            pending.into_parts().1.delivered();
            (self.attempts, self.faults) = (0, 0);
        }
        outcome
    }
}
