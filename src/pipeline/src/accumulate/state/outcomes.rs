//! What becomes of the readings of a shard: how many have no outcome yet, those that the store
//! rejects, and what is reported to the metrics and to the daily rollup. Pure.
//!
//! A reading that was accepted is unstored until it is *settled*: stored, found stored, or rejected.
//! Each is settled once.

use std::sync::Arc;

use crate::accumulate::bucket::WriteOutcome;
use crate::rollup::state::Settled;
use model::ack::Acks;
use model::{BucketStart, Rows, SensorId};

/// Events since the last call of [`Shard::take_counts`](super::Shard::take_counts), for the metrics.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ShardCounts {
    /// Readings now known to be stored.
    pub stored: u64,
    /// Readings dropped as duplicates.
    pub duplicates: u64,
    /// Statements that found another version of their page.
    pub conflicts: u64,
    /// Buckets that began to wait for a statement, each its sensor's latest: only those may be
    /// held.
    pub began: u64,
    /// Pages that became full when their first reading had waited for longer than `flush.max_age`.
    pub filled_late: u64,
    /// Buckets that were dropped although they still knew which readings without a time they had
    /// written: nothing else could make room.
    pub forgotten: u64,
}

/// Readings that the store refuses permanently, or has failed for too long. They are kept as dead
/// letters before the acknowledgements are delivered.
#[derive(Debug)]
pub struct RejectedRows {
    /// The sensor of all rows.
    pub sensor_id: SensorId,
    /// The rows to keep.
    pub rows: Arc<Rows>,
    /// Why they are not stored.
    pub reason: RejectCause,
    /// The store's error text.
    pub detail: String,
    /// To be delivered when the dead letters are stored.
    pub acks: Acks,
}

model::closed_set! {
    /// Why acknowledged readings become dead letters.
    pub enum RejectCause {
        /// The store refuses them permanently.
        StoreRejected => "store_rejected",
        /// Reads or writes of their bucket have failed for too long.
        Quarantined => "quarantined",
        /// The readings of their bucket were removed, so they cannot be compared with them
        /// ([`store::retention`]).
        ReadingsRemoved => "readings_removed",
    }
}

#[derive(Default)]
pub(super) struct Outcomes {
    pub(super) counts: ShardCounts,
    unstored: usize,
    rejected_rows: Vec<RejectedRows>,
    /// With the daily rollup: the rows settled since the last call of [`Outcomes::take_settled`].
    settled: Option<Vec<Settled>>,
}

impl Outcomes {
    /// From now on, [`Outcomes::take_settled`] returns what is settled.
    pub(super) fn report_settled(&mut self) {
        self.settled = Some(vec![]);
    }

    /// Readings that are not settled.
    pub(super) fn unstored(&self) -> usize {
        self.unstored
    }

    /// A reading is pending.
    pub(super) fn note_pending(&mut self) {
        self.unstored += 1;
    }

    /// A reading was a duplicate on arrival.
    pub(super) fn note_duplicate(&mut self, sensor_id: &SensorId, start: BucketStart) {
        self.counts.duplicates += 1;
        self.settle(sensor_id, start, 1);
    }

    /// The store has answered.
    pub(super) fn note_answer(
        &mut self,
        sensor_id: &SensorId,
        start: BucketStart,
        answer: WriteOutcome,
    ) {
        let WriteOutcome { stored, duplicates } = answer;
        let rows = (stored + duplicates) as usize;
        self.counts.stored += stored;
        self.counts.duplicates += duplicates;
        self.unstored -= rows;
        self.settle(sensor_id, start, rows);
    }

    /// Hands over rows that cannot be stored.
    pub(super) fn reject(&mut self, start: BucketStart, rejected: RejectedRows) {
        self.unstored -= rejected.rows.len();
        self.settle(&rejected.sensor_id, start, rejected.rows.len());
        self.rejected_rows.push(rejected);
    }

    fn settle(&mut self, sensor_id: &SensorId, start: BucketStart, rows: usize) {
        let Some(settled) = self.settled.as_mut().filter(|_| rows > 0) else {
            return;
        };
        match settled.last_mut() {
            Some(last) if last.start == start && last.sensor_id == *sensor_id => {
                last.rows += rows as u32;
            }
            _ => settled.push(Settled {
                sensor_id: sensor_id.clone(),
                start,
                rows: rows as u32,
            }),
        }
    }

    /// The rows rejected since the last call.
    pub(super) fn take_rejected_rows(&mut self) -> Vec<RejectedRows> {
        std::mem::take(&mut self.rejected_rows)
    }

    /// The rows settled since the last call.
    pub(super) fn take_settled(&mut self) -> Vec<Settled> {
        (self.settled.as_mut())
            .map(std::mem::take)
            .unwrap_or_default()
    }
}
