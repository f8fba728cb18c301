//! Buckets that the store keeps failing, while it serves others: named, counted, and in the end given up.
//!
//! A bucket is *failing* from its first fault to its next successful write. After [`QUARANTINE_FAULTS`] faults it is
//! *quarantined*: alone in its jobs since the second one, with a backoff between them, and named in the log and in
//! `/readyz`. A bucket that has been failing for `flush.quarantine_after` while the store answered hands its readings over
//! to be kept as dead letters, so that it holds neither the journal nor memory for ever; it does so sooner when it holds
//! an eighth of the shard's memory. Readings that come after that have the same time again.

use std::collections::HashMap;

use super::{BucketRef, RejectedRows, Shard, bucket_of};
use crate::model::{BucketStart, Now, SensorId};

/// Faults after which a bucket is named and counted.
pub const QUARANTINE_FAULTS: u32 = 4;
/// Failing buckets that are kept account of; more than that is a failure of the store and not of buckets.
const FAILING_MAX: usize = 10_000;
/// Quarantined buckets that are named.
pub const NAMED_MAX: usize = 20;
/// Why readings of a quarantined bucket are dead letters.
pub const QUARANTINED: &str = "quarantined";

/// A quarantined bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quarantined {
    /// Its sensor.
    pub sensor_id: SensorId,
    /// Its bucket.
    pub start: BucketStart,
    /// The last failure, in the store's words.
    pub reason: String,
    /// When it failed first, in milliseconds since 1970.
    pub since_wall_ms: i64,
}

#[derive(Debug)]
struct Failing {
    since: Now,
    reason: String,
    quarantined: bool,
}

/// The failing buckets of a shard.
#[derive(Debug, Default)]
pub(super) struct FailingBuckets {
    buckets: HashMap<BucketRef, Failing>,
    /// Quarantined since the last call of [`Shard::take_quarantined`].
    fresh: Vec<Quarantined>,
    quarantined: usize,
    /// Whether the store answers at all.
    store_answers: bool,
}

impl FailingBuckets {
    /// The bucket has been written, or is at rest.
    pub(super) fn recovered(&mut self, bucket_ref: BucketRef) {
        if !self.buckets.is_empty()
            && let Some(failing) = self.buckets.remove(&bucket_ref)
        {
            self.quarantined -= usize::from(failing.quarantined);
        }
    }
}

impl Shard {
    /// Whether the store has answered anything lately. While it has not, no bucket is to blame.
    pub fn set_store_answers(&mut self, answers: bool) {
        self.failing.store_answers = answers;
    }

    /// How many buckets are quarantined.
    pub fn quarantined_count(&self) -> usize {
        self.failing.quarantined
    }

    /// The quarantined buckets, at most [`NAMED_MAX`], those that have failed longest first.
    pub fn quarantined(&self) -> Vec<Quarantined> {
        let mut list: Vec<_> = self.failing.buckets.iter().filter(|(_, f)| f.quarantined).collect();
        list.sort_by_key(|(bucket_ref, f)| (f.since.mono_ms, bucket_ref.slot, bucket_ref.start));
        list.into_iter().take(NAMED_MAX).filter_map(|(bucket_ref, failing)| self.named(*bucket_ref, failing)).collect()
    }

    /// Buckets that were quarantined since the last call.
    pub fn take_quarantined(&mut self) -> Vec<Quarantined> {
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

    /// Keeps account of a bucket after a job in which the store failed it. Returns whether its readings were given up.
    pub(super) fn note_fault(&mut self, bucket_ref: BucketRef, reason: &str, now: Now) {
        let Some((bucket, _)) = bucket_of(&mut self.sensors, bucket_ref) else { return };
        let (faults, memory, idle) = (bucket.faults(), bucket.memory(), bucket.idle());
        if faults == 0 || idle {
            return;
        }
        let known = self.failing.buckets.len();
        if known >= FAILING_MAX && !self.failing.buckets.contains_key(&bucket_ref) {
            return;
        }
        let new = Failing { since: now, reason: String::new(), quarantined: false };
        let failing = self.failing.buckets.entry(bucket_ref).or_insert(new);
        reason.clone_into(&mut failing.reason);
        let age_ms = now.mono_ms.saturating_sub(failing.since.mono_ms);
        if faults < QUARANTINE_FAULTS {
            return;
        }
        if !failing.quarantined {
            failing.quarantined = true;
            self.failing.quarantined += 1;
            let named = self.failing.buckets.get(&bucket_ref).and_then(|failing| self.named(bucket_ref, failing));
            if self.failing.fresh.len() < NAMED_MAX {
                self.failing.fresh.extend(named);
            }
        }
        let long = age_ms >= self.settings.quarantine_after_ms || memory >= self.settings.bytes_max / 8;
        if long && self.failing.store_answers {
            self.give_up(bucket_ref, age_ms);
        }
    }

    /// Hands the readings of a bucket over, to be kept elsewhere.
    fn give_up(&mut self, bucket_ref: BucketRef, age_ms: u64) {
        let Some((bucket, _)) = bucket_of(&mut self.sensors, bucket_ref) else { return };
        let before = bucket.memory();
        let Some((rows, acks)) = bucket.abandon() else { return };
        self.usage.bytes = self.usage.bytes + bucket.memory() - before;
        self.usage.readings -= rows.len();
        let reason = self.failing.buckets.get(&bucket_ref).map(|f| f.reason.clone()).unwrap_or_default();
        self.failing.recovered(bucket_ref);
        let sensor_id = self.sensors[bucket_ref.slot as usize].id.clone();
        let detail = format!("the store failed this bucket for {} s: {reason}", age_ms / 1000);
        self.rejected_rows.push(RejectedRows { sensor_id, rows: rows.into(), reason: QUARANTINED, detail, acks });
    }
}
