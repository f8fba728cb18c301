//! The acknowledgement that travels with the data.
//!
//! An [`Ack`] is made where the sender waits, goes with the readings through every stage and is split wherever they
//! part. Each part says [`delivered`](Ack::delivered) when its readings are safe. When the last part is gone the sender
//! learns the worst of what they said, and a part that is dropped without a word counts as *not delivered*: a task that
//! panics, a channel that closes or a path that forgets can delay a sender, never lie to it.
//!
//! Invariants: the answer is given exactly once; `Delivered` means that every part said so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::oneshot;

/// What became of everything behind one acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckOutcome {
    /// All of it is safe: stored, known as a duplicate of what is stored, or kept as a dead letter.
    Delivered,
    /// Some part was given up; the sender must send again.
    NotDelivered,
}

/// Called once with the outcome, in whichever task drops the last part: it must be quick and not block.
type OnDone = Box<dyn FnOnce(AckOutcome) + Send + Sync>;

struct Shared {
    lost: AtomicBool,
    on_done: Option<OnDone>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        let outcome = if self.lost.load(Ordering::Acquire) { AckOutcome::NotDelivered } else { AckOutcome::Delivered };
        if let Some(on_done) = self.on_done.take() {
            on_done(outcome);
        }
    }
}

/// One part of an acknowledgement. Cloning splits it. The default one is [`Ack::none`].
#[derive(Default)]
pub struct Ack {
    shared: Option<Arc<Shared>>,
}

impl Ack {
    /// An acknowledgement and the future of its outcome.
    pub fn channel() -> (Ack, AckWaiter) {
        Ack::observed(|_| {})
    }

    /// As [`Ack::channel`], and calls `observe` with the outcome before anybody who waits learns it, also where nobody
    /// waits any more. It must be quick.
    pub fn observed(observe: impl FnOnce(AckOutcome) + Send + Sync + 'static) -> (Ack, AckWaiter) {
        let (tx, rx) = oneshot::channel();
        let ack = Ack::with(move |outcome| {
            observe(outcome);
            // Nobody waits any more: the sender has gone, which changes nothing for the data.
            let _ = tx.send(outcome);
        });
        (ack, AckWaiter(rx))
    }

    /// An acknowledgement that calls `on_done` once. It runs in whichever task drops the last part, so it must be quick.
    pub fn with(on_done: impl FnOnce(AckOutcome) + Send + Sync + 'static) -> Ack {
        Ack { shared: Some(Arc::new(Shared { lost: AtomicBool::new(false), on_done: Some(Box::new(on_done)) })) }
    }

    /// An acknowledgement for which nobody waits (QoS 0).
    pub fn none() -> Ack {
        Ack { shared: None }
    }

    /// This part is safe.
    pub fn delivered(mut self) {
        self.shared.take();
    }

    /// Whether both are parts of the same acknowledgement (or both of none).
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
        Ack { shared: self.shared.clone() }
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

/// The outcome to come.
#[derive(Debug)]
pub struct AckWaiter(oneshot::Receiver<AckOutcome>);

impl AckWaiter {
    /// Waits for the outcome.
    pub async fn outcome(self) -> AckOutcome {
        self.0.await.unwrap_or(AckOutcome::NotDelivered)
    }
}

/// The parts that wait with one heap of readings; consecutive parts of the same acknowledgement are kept once. The last
/// one stands here itself: a bucket asks for it with every reading.
#[derive(Debug, Default)]
pub struct Acks {
    last: Ack,
    earlier: Vec<Ack>,
}

impl Acks {
    /// Keeps a part of `ack`, unless the last one kept is of the same acknowledgement.
    pub fn join(&mut self, ack: &Ack) {
        if !self.last.same(ack) && ack.shared.is_some() {
            self.push(ack.clone());
        }
    }

    fn push(&mut self, ack: Ack) {
        let before = std::mem::replace(&mut self.last, ack);
        if before.shared.is_some() {
            self.earlier.push(before);
        }
    }

    /// Takes over all parts of `other`.
    pub fn append(&mut self, other: &mut Acks) {
        if self.is_empty() {
            std::mem::swap(self, other);
            return;
        }
        for ack in other.earlier.drain(..).chain([std::mem::take(&mut other.last)]) {
            if ack.shared.is_some() {
                self.push(ack);
            }
        }
    }

    /// A part of each.
    pub fn split(&self) -> Acks {
        Acks { last: self.last.clone(), earlier: self.earlier.clone() }
    }

    /// All parts are safe.
    pub fn delivered(self) {
        self.earlier.into_iter().for_each(Ack::delivered);
        self.last.delivered();
    }

    /// How many parts.
    pub fn len(&self) -> usize {
        self.earlier.len() + usize::from(!self.is_empty())
    }

    /// Bytes held beside the struct itself; what is behind the parts is shared with others.
    pub fn memory_bytes(&self) -> usize {
        self.earlier.capacity() * size_of::<Ack>()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.last.shared.is_none()
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
    async fn a_dropped_part_is_not_delivered_whatever_the_others_say() {
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
