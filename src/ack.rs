//! The acknowledgement that travels with the data.
//!
//! An [`Ack`] is created where the sender waits, travels with the readings through every stage and
//! is split whenever the readings are split. Each part reports [`delivered`](Ack::delivered) when
//! its readings are safe. When the last part is dropped, the sender receives the worst outcome of
//! all parts. A part that is dropped without a report counts as *not delivered*: a task that
//! panics, a channel that closes or a code path that forgets its part can delay a sender, but never
//! lose data that the sender believes safe.
//!
//! Invariants: the sender receives exactly one outcome; `Delivered` means that every part reported
//! it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use smallvec::SmallVec;
use tokio::sync::oneshot;

/// The outcome of all parts of one acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckOutcome {
    /// Everything is safe: stored, recognized as a duplicate of a stored reading, or kept as a dead
    /// letter.
    Delivered,
    /// Some part was dropped; the sender must send again.
    NotDelivered,
}

/// Called once with the outcome, in the task that drops the last part. It must be quick and must
/// not block.
type OnDone = Box<dyn FnOnce(AckOutcome) + Send + Sync>;

struct Shared {
    lost: AtomicBool,
    on_done: Option<OnDone>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        let outcome = if self.lost.load(Ordering::Acquire) {
            AckOutcome::NotDelivered
        } else {
            AckOutcome::Delivered
        };
        if let Some(on_done) = self.on_done.take() {
            on_done(outcome);
        }
    }
}

/// One part of an acknowledgement. Cloning splits it. The default is [`Ack::none`].
#[derive(Default)]
pub struct Ack {
    shared: Option<Arc<Shared>>,
}

impl Ack {
    /// Returns an acknowledgement and the future of its outcome.
    pub fn channel() -> (Ack, AckWaiter) {
        Ack::observed(|_| {})
    }

    /// Like [`Ack::channel`], and calls `observe` with the outcome before the waiter receives it,
    /// even if the waiter was dropped. `observe` must be quick.
    pub(crate) fn observed(
        observe: impl FnOnce(AckOutcome) + Send + Sync + 'static,
    ) -> (Ack, AckWaiter) {
        let (tx, rx) = oneshot::channel();
        let ack = Ack::with(move |outcome| {
            observe(outcome);
            // An error means that the sender has disconnected, which changes nothing for the data.
            let _ = tx.send(outcome);
        });
        (ack, AckWaiter(rx))
    }

    /// An acknowledgement that calls `on_done` once, in the task that drops the last part. It must
    /// be quick.
    pub fn with(on_done: impl FnOnce(AckOutcome) + Send + Sync + 'static) -> Ack {
        Ack {
            shared: Some(Arc::new(Shared {
                lost: AtomicBool::new(false),
                on_done: Some(Box::new(on_done)),
            })),
        }
    }

    /// An acknowledgement without a waiter (QoS 0).
    pub fn none() -> Ack {
        Ack { shared: None }
    }

    /// Reports that this part is safe.
    pub fn delivered(mut self) {
        self.shared.take();
    }

    /// Whether both are parts of the same acknowledgement, or both have no waiter.
    pub fn same(&self, other: &Ack) -> bool {
        match (&self.shared, &other.shared) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (None, None) => true,
            _ => false,
        }
    }
}

impl Clone for Ack {
    fn clone(&self) -> Ack {
        Ack {
            shared: self.shared.clone(),
        }
    }
}

impl Drop for Ack {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.take() {
            shared.lost.store(true, Ordering::Release);
        }
    }
}

impl std::fmt::Debug for Ack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ack")
    }
}

/// The outcome of an acknowledgement, once it is known.
#[derive(Debug)]
pub struct AckWaiter(oneshot::Receiver<AckOutcome>);

impl AckWaiter {
    /// Waits for the outcome. If the acknowledgement ended without one, it is *not delivered*.
    pub async fn outcome(self) -> AckOutcome {
        self.0.await.unwrap_or(AckOutcome::NotDelivered)
    }
}

/// The acknowledgement parts of one set of readings. Consecutive parts of the same acknowledgement
/// are kept once. Two are stored inline: most sets are those of a sensor that reports rarely, and
/// there are millions of them.
#[derive(Debug, Default)]
pub struct Acks(SmallVec<[Ack; 2]>);

impl Acks {
    /// Keeps a part of `ack`, unless the last part kept belongs to the same acknowledgement.
    pub fn join(&mut self, ack: &Ack) {
        if ack.shared.is_some() && self.0.last().is_none_or(|last| !last.same(ack)) {
            self.0.push(ack.clone());
        }
    }

    /// Moves all parts of `other` here.
    pub fn append(&mut self, other: &mut Acks) {
        if self.is_empty() {
            std::mem::swap(self, other);
        } else {
            self.0.append(&mut other.0);
        }
    }

    /// Splits every part, and returns the new ones.
    pub fn split(&self) -> Acks {
        Acks(self.0.clone())
    }

    /// Reports that all parts are safe.
    pub fn delivered(self) {
        self.0.into_iter().for_each(Ack::delivered);
    }

    /// The number of parts kept, not of acknowledgements: one may be kept twice if parts of another
    /// one are in between.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Heap bytes, without the struct itself and without the state that the parts share.
    pub fn memory_bytes(&self) -> usize {
        if self.0.spilled() {
            self.0.capacity() * size_of::<Ack>()
        } else {
            0
        }
    }

    /// Whether no part is kept.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_parts_must_be_delivered() {
        let (ack, wait) = Ack::channel();
        let other = ack.clone();
        ack.delivered();
        other.delivered();
        assert_eq!(wait.outcome().await, AckOutcome::Delivered);
    }

    #[tokio::test]
    async fn a_dropped_part_makes_the_whole_not_delivered() {
        let (ack, wait) = Ack::channel();
        let mut acks = Acks::default();
        acks.join(&ack);
        acks.join(&ack);
        assert_eq!(acks.len(), 1);
        drop(ack);
        acks.delivered();
        assert_eq!(wait.outcome().await, AckOutcome::NotDelivered);
    }
}
