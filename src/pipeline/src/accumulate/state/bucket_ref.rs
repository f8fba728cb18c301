//! How jobs and queues name a bucket.

use model::BucketStart;

/// Identifies a bucket of this shard; valid while the bucket has something in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BucketRef {
    pub(super) slot: u32,
    pub(super) start: BucketStart,
}

impl BucketRef {
    /// The start of its bucket.
    pub fn start(self) -> BucketStart {
        self.start
    }
}
