//! Who sent a reading, and which bucket it belongs to.

use std::sync::Arc;

use super::span::BucketStart;

/// A series. Shared by every page write of its sensor; cloning costs a reference count.
pub type SensorId = Arc<str>;

/// The stable hash of a sensor id (XXH3-64, seed 0): which shard owns the sensor, and where its hash table finds it. It
/// is the same in every process and version, so that a journal written with one shard count can be replayed with another.
pub fn stable_hash(sensor_id: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(sensor_id.as_bytes())
}

/// A bucket: one sensor's span of time.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BucketKey {
    /// Whose bucket.
    pub sensor_id: SensorId,
    /// The first instant of it.
    pub start: BucketStart,
}
