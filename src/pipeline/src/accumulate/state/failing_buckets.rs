//! The failing buckets of a shard; see [`super::failing`].

use std::collections::HashMap;

use super::BucketRef;
use model::{BucketStart, Now, SensorId};

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
pub(super) struct Failing {
    pub(super) since: Now,
    /// Its last fault (monotonic ms).
    pub(super) last_fault_ms: u64,
    pub(super) reason: String,
    pub(super) quarantined: bool,
}

#[derive(Debug, Default)]
pub(super) struct FailingBuckets {
    pub(super) buckets: HashMap<BucketRef, Failing>,
    /// Quarantined since the last call of [`take_quarantined`](super::Shard::take_quarantined).
    pub(super) fresh: Vec<Quarantined>,
    pub(super) quarantined: usize,
    /// Whether the store answers any request.
    pub(super) store_answers: bool,
    /// When the store last confirmed a page write, of any shard (monotonic ms).
    pub(super) pages_written_ms: u64,
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
