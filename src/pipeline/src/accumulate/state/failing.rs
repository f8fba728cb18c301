//! Buckets whose reads or writes keep failing while the store serves others: named, counted, and
//! finally given up.
//!
//! A bucket is *failing* from its first fault to its next successful write. From the second fault
//! on it is alone in its jobs, with a backoff between them. After [`QUARANTINE_FAULTS`] faults it
//! is *quarantined*: named in the log and in `/readyz`. If it fails for `flush.quarantine_after`
//! while the store answers other requests, its readings are kept as dead letters, so that they do
//! not occupy journal and memory without end. This happens sooner if the bucket holds an eighth of
//! the shard's memory, or if failing buckets alone fill the shard: then no other sensor's readings
//! could be accepted. Readings that arrive later get the full time again.
//!
//! **Is it the bucket or the store?** A server whose disk is full, or that is locked for a backup,
//! still answers reads and pings. If several buckets fail, and no page write was confirmed between
//! the last two faults of one of them, the fault is not its own: it is not quarantined, and not
//! given up. The exception is a shard that failing buckets alone fill: that may be the reason why
//! nothing else is written. Then they are given up as well, after `flush.quarantine_after`.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Bucket, BucketRef, Shard, bucket_of};
use model::ack::Acks;
use model::{BucketStart, Now, Rows, SensorId};
use store::{LoadRequest, LoadedBucket};

/// Faults after which a bucket is quarantined.
pub(crate) const QUARANTINE_FAULTS: u32 = 4;
/// Maximum number of failing buckets tracked; more than that means that the store fails, not single
/// buckets.
const FAILING_MAX: usize = 10_000;
/// Maximum number of quarantined buckets named.
pub const NAMED_MAX: usize = 20;

/// A quarantined bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quarantined {
    /// The sensor of the bucket.
    pub sensor_id: SensorId,
    /// The start of the bucket.
    pub start: BucketStart,
    /// The last error text of the store.
    pub reason: String,
    /// Time of the first failure, ms since 1970.
    pub since_wall_ms: i64,
}

#[derive(Debug)]
struct Failing {
    since: Now,
    /// Its last fault (monotonic ms).
    last_fault_ms: u64,
    reason: String,
    quarantined: bool,
}

#[derive(Debug, Default)]
pub(super) struct FailingBuckets {
    buckets: HashMap<BucketRef, Failing>,
    /// Quarantined since the last call of [`Shard::take_quarantined`].
    fresh: Vec<Quarantined>,
    quarantined: usize,
    /// Whether the store answers any request.
    store_answers: bool,
    /// When the store last confirmed a page write, of any shard (monotonic ms).
    pages_written_ms: u64,
}

impl FailingBuckets {
    /// Removes a bucket that was written, or has nothing left to write.
    pub(super) fn recovered(&mut self, bucket_ref: BucketRef) {
        if !self.buckets.is_empty()
            && let Some(failing) = self.buckets.remove(&bucket_ref)
        {
            self.quarantined -= usize::from(failing.quarantined);
        }
    }
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

/// Why acknowledged readings become dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectCause {
    /// The store refuses them permanently.
    StoreRejected,
    /// Reads or writes of their bucket have failed for too long.
    Quarantined,
    /// The readings of their bucket were removed, so they cannot be compared with them
    /// ([`store::retention`]).
    ReadingsRemoved,
}

impl RejectCause {
    /// The `reason` of the dead letters and of the metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            RejectCause::StoreRejected => "store_rejected",
            RejectCause::Quarantined => "quarantined",
            RejectCause::ReadingsRemoved => "readings_removed",
        }
    }
}

impl Shard {
    /// Sets whether the store has answered any request lately. Until it does, no bucket is given
    /// up.
    pub fn set_store_answers(&mut self, answers: bool) {
        self.failing.store_answers = answers;
    }

    /// Notes when the store last confirmed a page write, of any shard (monotonic ms).
    pub fn note_pages_written(&mut self, at_ms: u64) {
        self.failing.pages_written_ms = self.failing.pages_written_ms.max(at_ms);
    }

    /// Number of quarantined buckets, also of those that [`Shard::quarantined`] does not list.
    pub(crate) fn quarantined_count(&self) -> usize {
        self.failing.quarantined
    }

    /// The quarantined buckets, at most [`NAMED_MAX`], longest failing first.
    pub fn quarantined(&self) -> Vec<Quarantined> {
        let mut list: Vec<_> = self
            .failing
            .buckets
            .iter()
            .filter(|(_, f)| f.quarantined)
            .collect();
        list.sort_by_key(|(bucket_ref, f)| (f.since.mono_ms, bucket_ref.slot, bucket_ref.start));
        list.into_iter()
            .take(NAMED_MAX)
            .filter_map(|(bucket_ref, failing)| self.named(*bucket_ref, failing))
            .collect()
    }

    /// Buckets quarantined since the last call, at most [`NAMED_MAX`].
    pub(crate) fn take_quarantined(&mut self) -> Vec<Quarantined> {
        std::mem::take(&mut self.failing.fresh)
    }

    fn named(&self, bucket_ref: BucketRef, failing: &Failing) -> Option<Quarantined> {
        let sensor = self.sensors.get(bucket_ref.slot as usize)?;
        Some(Quarantined {
            sensor_id: sensor.id.clone(),
            start: bucket_ref.start,
            reason: failing.reason.clone(),
            since_wall_ms: failing.since.wall_ms,
        })
    }

    /// Records the state of a bucket after a job that the store failed, and gives it up if it has
    /// failed for too long.
    pub(super) fn note_fault(&mut self, bucket_ref: BucketRef, reason: &str, now: Now) {
        let Some((bucket, _)) = bucket_of(&mut self.sensors, bucket_ref) else {
            return;
        };
        let faults = bucket.faults();
        let memory = bucket.memory();
        let idle = bucket.idle();
        if faults == 0 || idle {
            return;
        }
        let known = self.failing.buckets.len();
        if known >= FAILING_MAX && !self.failing.buckets.contains_key(&bucket_ref) {
            return;
        }
        let new = Failing {
            since: now,
            last_fault_ms: now.mono_ms,
            reason: String::new(),
            quarantined: false,
        };
        let pages_written_ms = self.failing.pages_written_ms;
        let failing = self.failing.buckets.entry(bucket_ref).or_insert(new);
        reason.clone_into(&mut failing.reason);
        let age_ms = now.mono_ms.saturating_sub(failing.since.mono_ms);
        let others_succeed = pages_written_ms > failing.last_fault_ms;
        failing.last_fault_ms = now.mono_ms;
        if faults < QUARANTINE_FAULTS {
            return;
        }
        let is_new = !failing.quarantined;
        let is_own = others_succeed || self.failing.buckets.len() == 1;
        if is_own && is_new {
            self.quarantine(bucket_ref);
        }
        let is_old = age_ms >= self.settings.quarantine_after_ms;
        let is_due = match is_own {
            // It is named for a while before that, so that `/readyz` and the metrics show it.
            true => (is_old && !is_new) || self.is_blocked || memory >= self.settings.bytes_max / 8,
            false => is_old && self.is_blocked,
        };
        if is_due && self.failing.store_answers {
            // One may be enough; the next tick finds out.
            self.is_blocked = false;
            self.give_up(bucket_ref, age_ms);
        }
    }

    fn quarantine(&mut self, bucket_ref: BucketRef) {
        let Some(failing) = self.failing.buckets.get_mut(&bucket_ref) else {
            return;
        };
        failing.quarantined = true;
        self.failing.quarantined += 1;
        let named = self
            .failing
            .buckets
            .get(&bucket_ref)
            .and_then(|failing| self.named(bucket_ref, failing));
        if self.failing.fresh.len() < NAMED_MAX {
            self.failing.fresh.extend(named);
        }
    }

    /// Whether all rows that are pending or in flight are those of failing buckets.
    pub(super) fn holds_only_failing(&self) -> bool {
        let rows = |bucket_ref: &BucketRef| {
            let sensor = self.sensors.get(bucket_ref.slot as usize)?;
            let bucket = sensor
                .buckets
                .iter()
                .find(|b| b.start == bucket_ref.start)?;
            Some(bucket.unstored_rows())
        };
        let failing: usize = self.failing.buckets.keys().filter_map(rows).sum();
        self.usage.readings <= failing
    }

    /// Hands over the readings of a bucket that has failed for too long.
    fn give_up(&mut self, bucket_ref: BucketRef, age_ms: u64) {
        let reason = self
            .failing
            .buckets
            .get(&bucket_ref)
            .map(|f| f.reason.as_str())
            .unwrap_or_default();
        let detail = format!(
            "reads or writes of this bucket failed for {} s: {reason}",
            age_ms / 1000
        );
        self.reject(
            bucket_ref,
            Bucket::abandon,
            RejectCause::Quarantined,
            detail,
        );
    }

    /// Hands over the pending readings of a bucket if its stored readings were removed, once they
    /// have been compared with those that are left.
    pub(super) fn reject_late_rows(
        &mut self,
        bucket_ref: BucketRef,
        request: &LoadRequest,
        loaded: &LoadedBucket,
    ) {
        if !loaded.readings_removed() || request.readings_from.is_none() {
            return;
        }
        let detail = "readings of this bucket were removed, so it is unknown whether its summary \
            counts this one";
        self.reject(
            bucket_ref,
            Bucket::readings_removed,
            RejectCause::ReadingsRemoved,
            detail.to_owned(),
        );
    }

    /// Hands over the readings that are taken from a bucket, to be kept as dead letters.
    fn reject(
        &mut self,
        bucket_ref: BucketRef,
        take: impl FnOnce(&mut Bucket) -> Option<(Rows, Acks)>,
        reason: RejectCause,
        detail: String,
    ) {
        let Some((rows, acks)) = self.change(bucket_ref, take).flatten() else {
            return;
        };
        self.usage.readings -= rows.len();
        self.note_settled(bucket_ref.slot, bucket_ref.start, rows.len());
        self.failing.recovered(bucket_ref);
        let sensor_id = self.sensors[bucket_ref.slot as usize].id.clone();
        self.rejected_rows.push(RejectedRows {
            sensor_id,
            rows: rows.into(),
            reason,
            detail,
            acks,
        });
    }
}
