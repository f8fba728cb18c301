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

use super::BucketRef;
use super::sensors::OpenBucket;
use model::{BucketStart, Now, SensorId};

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

struct Failing {
    sensor_id: SensorId,
    since: Now,
    /// Its last fault (monotonic ms).
    last_fault_ms: u64,
    reason: String,
    is_quarantined: bool,
}

impl Failing {
    fn named(&self, bucket_ref: BucketRef) -> Quarantined {
        Quarantined {
            sensor_id: self.sensor_id.clone(),
            start: bucket_ref.start,
            reason: self.reason.clone(),
            since_wall_ms: self.since.wall_ms,
        }
    }
}

pub(super) struct FailingBuckets {
    quarantine_after_ms: u64,
    /// A quarantined bucket with more memory is given up immediately.
    bucket_bytes_max: usize,
    buckets: HashMap<BucketRef, Failing>,
    /// Quarantined since the last call of [`FailingBuckets::take_quarantined`].
    fresh: Vec<Quarantined>,
    quarantined: usize,
    /// Whether the store answers any request.
    store_answers: bool,
    /// When the store last confirmed a page write, of any shard (monotonic ms).
    pages_written_ms: u64,
    /// Failing buckets alone fill the shard.
    is_blocked: bool,
}

impl FailingBuckets {
    /// None; for a shard with `bytes_max` of memory.
    pub(super) fn new(quarantine_after_ms: u64, bytes_max: usize) -> FailingBuckets {
        FailingBuckets {
            quarantine_after_ms,
            bucket_bytes_max: bytes_max / 8,
            buckets: HashMap::new(),
            fresh: Vec::new(),
            quarantined: 0,
            store_answers: false,
            pages_written_ms: 0,
            is_blocked: false,
        }
    }

    /// Sets whether the store has answered any request lately. Until it does, no bucket is given
    /// up.
    pub(super) fn set_store_answers(&mut self, answers: bool) {
        self.store_answers = answers;
    }

    /// Notes when the store last confirmed a page write, of any shard (monotonic ms).
    pub(super) fn note_pages_written(&mut self, at_ms: u64) {
        self.pages_written_ms = self.pages_written_ms.max(at_ms);
    }

    /// Sets whether failing buckets alone fill the shard.
    pub(super) fn set_blocked(&mut self, is_blocked: bool) {
        self.is_blocked = is_blocked;
    }

    pub(super) fn bucket_refs(&self) -> impl Iterator<Item = BucketRef> {
        self.buckets.keys().copied()
    }

    /// Number of quarantined buckets, also of those that [`FailingBuckets::quarantined`] does not
    /// list.
    pub(super) fn quarantined_count(&self) -> usize {
        self.quarantined
    }

    /// The quarantined buckets, at most [`NAMED_MAX`], longest failing first.
    pub(super) fn quarantined(&self) -> Vec<Quarantined> {
        let mut list: Vec<_> = self
            .buckets
            .iter()
            .filter(|(_, failing)| failing.is_quarantined)
            .collect();
        list.sort_by_key(|(bucket_ref, f)| (f.since.mono_ms, bucket_ref.slot, bucket_ref.start));
        list.into_iter()
            .take(NAMED_MAX)
            .map(|(bucket_ref, failing)| failing.named(*bucket_ref))
            .collect()
    }

    /// Buckets quarantined since the last call, at most [`NAMED_MAX`].
    pub(super) fn take_quarantined(&mut self) -> Vec<Quarantined> {
        std::mem::take(&mut self.fresh)
    }

    /// Removes a bucket that was written, or has nothing left to write.
    pub(super) fn recovered(&mut self, bucket_ref: BucketRef) {
        if !self.buckets.is_empty()
            && let Some(failing) = self.buckets.remove(&bucket_ref)
        {
            self.quarantined -= usize::from(failing.is_quarantined);
        }
    }

    /// Notes a bucket after a job that the store failed. If its readings are to be given up: why.
    pub(super) fn note_fault(
        &mut self,
        open: &OpenBucket<'_>,
        reason: &str,
        now: Now,
    ) -> Option<String> {
        let faults = open.bucket.faults();
        if faults == 0 || open.bucket.idle() {
            return None;
        }
        let is_known = self.buckets.contains_key(&open.bucket_ref);
        let others = self.buckets.len() - usize::from(is_known);
        if others >= FAILING_MAX {
            return None;
        }
        let failing = self
            .buckets
            .entry(open.bucket_ref)
            .or_insert_with(|| Failing {
                sensor_id: open.sensor.id.clone(),
                since: now,
                last_fault_ms: now.mono_ms,
                reason: String::new(),
                is_quarantined: false,
            });
        reason.clone_into(&mut failing.reason);
        let others_succeed = self.pages_written_ms > failing.last_fault_ms;
        failing.last_fault_ms = now.mono_ms;
        if faults < QUARANTINE_FAULTS {
            return None;
        }
        let is_new = !failing.is_quarantined;
        let is_own = others_succeed || others == 0;
        if is_own && is_new {
            failing.is_quarantined = true;
            self.quarantined += 1;
            if self.fresh.len() < NAMED_MAX {
                self.fresh.push(failing.named(open.bucket_ref));
            }
        }
        let age_ms = now.mono_ms.saturating_sub(failing.since.mono_ms);
        let is_old = age_ms >= self.quarantine_after_ms;
        let is_due = if is_own {
            // It is named for a while before that, so that `/readyz` and the metrics show it.
            let is_large = open.bucket.memory() >= self.bucket_bytes_max;
            (is_old && !is_new) || self.is_blocked || is_large
        } else {
            is_old && self.is_blocked
        };
        if !is_due || !self.store_answers {
            return None;
        }
        // One may be enough; the next tick finds out.
        self.is_blocked = false;
        Some(format!(
            "reads or writes of this bucket failed for {} s: {reason}",
            age_ms / 1000
        ))
    }
}
