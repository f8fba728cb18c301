//! The high-water mark as known to this process. It is raised before a bucket beyond it is written,
//! one span ahead, so that no write waits at the start of an hour. See [`NewBuckets`].

use std::sync::{Mutex, PoisonError};

use model::{BucketStart, NewBuckets};
use store::{Store, StoreError};

/// A mark this far ahead of current writes (ms) was set by a wrong clock.
const FAR_AHEAD_MS: i64 = 366 * 24 * 60 * 60 * 1000;

/// The mark as last read or raised by this process.
#[derive(Debug)]
pub(super) struct HighWater {
    known: Mutex<Known>,
    /// Serializes raises: two of this process must not be mistaken for two processes.
    raising: tokio::sync::Mutex<()>,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    mark: BucketStart,
    new: NewBuckets,
}

impl HighWater {
    pub(super) fn new() -> HighWater {
        let known = Known {
            mark: BucketStart(i64::MIN),
            new: NewBuckets::NONE,
        };
        HighWater {
            known: Mutex::new(known),
            raising: tokio::sync::Mutex::default(),
        }
    }

    /// The buckets that no other process can have written.
    pub(super) fn new_buckets(&self) -> NewBuckets {
        self.known().new
    }

    /// Ensures that the mark is at least one span after `start`.
    pub(super) async fn cover(
        &self,
        store: &dyn Store,
        start: BucketStart,
        span_ms: i64,
    ) -> Result<(), StoreError> {
        let through = BucketStart(start.0.saturating_add(span_ms));
        if through <= self.known().mark {
            return Ok(());
        }
        let _one = self.raising.lock().await;
        if through <= self.known().mark {
            return Ok(());
        }
        let before = store.raise_high_water(through).await?;
        if before.0.saturating_sub(through.0) > FAR_AHEAD_MS {
            tracing::warn!(
                high_water_ms = before.0,
                bucket_start_ms = start.0,
                "high-water mark is more than a year ahead of current writes, set by a wrong \
                 clock; until then each bucket is loaded before its first write"
            );
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        *known = Known {
            mark: through.max(before),
            new: known.new.raised(before, through),
        };
        Ok(())
    }

    fn known(&self) -> Known {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::memory_store::MemoryStore;

    const HOUR: i64 = 3_600_000;

    #[tokio::test]
    async fn a_bucket_is_new_only_to_the_process_that_raised_the_mark_over_it() {
        let store = MemoryStore::new();
        let one = HighWater::new();
        let two = HighWater::new();
        assert!(!one.new_buckets().contains(BucketStart(10 * HOUR)));
        one.cover(&store, BucketStart(10 * HOUR), HOUR)
            .await
            .unwrap();
        assert!(
            one.new_buckets().contains(BucketStart(10 * HOUR))
                && one.new_buckets().contains(BucketStart(11 * HOUR))
        );
        two.cover(&store, BucketStart(10 * HOUR), HOUR)
            .await
            .unwrap();
        assert!(
            !two.new_buckets().contains(BucketStart(10 * HOUR)),
            "another process may have written it"
        );
        two.cover(&store, BucketStart(11 * HOUR), HOUR)
            .await
            .unwrap();
        assert!(!two.new_buckets().contains(BucketStart(11 * HOUR)));
        assert!(two.new_buckets().contains(BucketStart(12 * HOUR)));
        one.cover(&store, BucketStart(11 * HOUR), HOUR)
            .await
            .unwrap();
        assert!(
            !one.new_buckets().contains(BucketStart(12 * HOUR)),
            "the other one was first"
        );
    }
}
