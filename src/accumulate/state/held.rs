//! Which buckets are held for more readings while the store is busy ([`crate::flush::age`]).

use super::{BucketRef, Shard};

impl Shard {
    /// Sets how old a reading may get before it is written, see [`crate::flush::age`].
    pub fn set_age_ms(&mut self, age_ms: u64) {
        self.age_ms = age_ms;
    }

    /// Whether another reading is expected for a bucket before its first one is as old as it may get. Not if its sensor
    /// has begun a later bucket, or reports less often.
    pub(super) fn expects_more(&self, bucket_ref: BucketRef) -> bool {
        let Some(sensor) = self.sensors.get(bucket_ref.slot as usize) else { return false };
        let is_latest = sensor.buckets.last().is_some_and(|b| b.start == bucket_ref.start);
        is_latest && sensor.reports.interval.usual_ms().is_none_or(|ms| ms <= self.age_ms)
    }
}
