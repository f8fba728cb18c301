//! Which buckets are held for more readings while the store is busy ([`crate::flush::age`]), and
//! their turns ([`crate::flush::turns`]).

use super::super::bucket::AT_ITS_TURN;
use super::{BucketRef, Shard, bucket_of};
use model::Now;

impl Shard {
    /// Sets how old a reading may get before it is written, see [`crate::flush::age`].
    pub fn set_age_ms(&mut self, age_ms: u64) {
        self.age_ms = age_ms;
    }

    /// Whether another reading is expected for a bucket before its first one is as old as it may
    /// get. Not if its sensor has begun a later bucket, or reports less often.
    pub(super) fn expects_more(&self, bucket_ref: BucketRef) -> bool {
        let Some(sensor) = self.sensors.get(bucket_ref.slot as usize) else {
            return false;
        };
        let is_latest = sensor
            .buckets
            .last()
            .is_some_and(|b| b.start == bucket_ref.start);
        is_latest
            && sensor
                .reports
                .interval
                .usual_ms()
                .is_none_or(|ms| ms <= self.age_ms)
    }

    /// Queues a bucket that has more readings than its page has room for.
    pub(super) fn fill(&mut self, bucket_ref: BucketRef, now: Now) {
        let Some((bucket, _)) = bucket_of(&mut self.sensors, bucket_ref) else {
            return;
        };
        let since_ms = bucket.since_ms().unwrap_or(now.mono_ms);
        let is_late = self.settings.due.fills_late(now.mono_ms, since_ms);
        self.counts.filled_late += u64::from(is_late);
        self.change(bucket_ref, |bucket| bucket.overflows(now.mono_ms));
        self.enqueue(bucket_ref);
    }

    /// Queues the buckets whose turn has come.
    pub(super) fn take_turns(&mut self, now: Now) {
        let elapsed_ms = now.mono_ms.saturating_sub(self.turned_ms);
        self.turned_ms = now.mono_ms;
        for bucket_ref in self
            .turns
            .advance(elapsed_ms, self.settings.due.round_ms(self.age_ms))
        {
            self.take_turn(bucket_ref);
        }
    }

    /// Moves the turns on to the next buckets and queues them; false if none wait for their turn.
    pub(super) fn take_next_turn(&mut self) -> bool {
        let Some(next) = self.turns.pop_next() else {
            return false;
        };
        next.into_iter()
            .for_each(|bucket_ref| self.take_turn(bucket_ref));
        true
    }

    /// A bucket that was queued before its turn (overfull, or with many readings) leaves a stale
    /// entry.
    fn take_turn(&mut self, bucket_ref: BucketRef) {
        if bucket_of(&mut self.sensors, bucket_ref)
            .is_some_and(|(bucket, _)| bucket.due_ms == AT_ITS_TURN)
        {
            self.enqueue(bucket_ref);
        }
    }
}
