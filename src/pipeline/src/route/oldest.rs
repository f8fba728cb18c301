//! The age of the oldest ingest batch that is not stored yet, for `ack = "stored"`, which has no
//! journal.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use model::ack::{Ack, AckOutcome};

/// Unacknowledged ingest batches in order of arrival, bounded by the limits of admission and the
/// shards.
#[derive(Debug, Default)]
pub struct Oldest(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    since_ms: BTreeMap<u64, u64>,
}

impl Oldest {
    /// Wraps `ack` and tracks it until its outcome is known. `now_ms` is monotonic.
    pub fn watch(self: &Arc<Self>, ack: Ack, now_ms: u64) -> Ack {
        let id = self.with(|w| {
            w.next += 1;
            w.since_ms.insert(w.next, now_ms);
            w.next
        });
        let oldest = self.clone();
        Ack::with(move |outcome| {
            oldest.with(|w| w.since_ms.remove(&id));
            match outcome {
                AckOutcome::Delivered => ack.delivered(),
                AckOutcome::NotDelivered => drop(ack),
            }
        })
    }

    /// When the oldest one arrived (monotonic ms); `None` if all are acknowledged.
    pub fn since_ms(&self) -> Option<u64> {
        self.with(|w| w.since_ms.first_key_value().map(|(_, since)| *since))
    }

    fn with<T>(&self, f: impl FnOnce(&mut Waiting) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_oldest_is_the_first_that_is_not_settled() {
        let oldest = Arc::new(Oldest::default());
        let (a, wait_a) = Ack::channel();
        let (b, wait_b) = Ack::channel();
        let a = oldest.watch(a, 10);
        let b = oldest.watch(b, 20);
        assert_eq!(oldest.since_ms(), Some(10));
        a.delivered();
        assert_eq!(
            (oldest.since_ms(), wait_a.outcome().await),
            (Some(20), AckOutcome::Delivered)
        );
        drop(b);
        assert_eq!(
            (oldest.since_ms(), wait_b.outcome().await),
            (None, AckOutcome::NotDelivered)
        );
    }
}
