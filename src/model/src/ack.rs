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
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

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
    /// See [`Ack::at`].
    position: Option<u64>,
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
    pub fn observed(observe: impl FnOnce(AckOutcome) + Send + Sync + 'static) -> (Ack, AckWaiter) {
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
        Ack::new(None, Box::new(on_done))
    }

    /// Like [`Ack::with`], for readings at `position` in the journal. Entries are removed from its
    /// front only, so the journal keeps everything from its oldest outstanding acknowledgement on.
    /// Of parts that are reported together, the one with the earliest position is therefore enough
    /// ([`Acks::join_later`]).
    pub fn at(position: u64, on_done: impl FnOnce(AckOutcome) + Send + Sync + 'static) -> Ack {
        Ack::new(Some(position), Box::new(on_done))
    }

    fn new(position: Option<u64>, on_done: OnDone) -> Ack {
        Ack {
            shared: Some(Arc::new(Shared {
                lost: AtomicBool::new(false),
                on_done: Some(on_done),
                position,
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

    fn position(&self) -> Option<u64> {
        self.shared.as_ref()?.position
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

/// The acknowledgement parts of one set of readings, which are reported together. Consecutive parts
/// of the same acknowledgement are kept once. One is stored inline: most sets are those of a sensor
/// that reports rarely, there are millions of them, and parts of the journal's acknowledgements
/// need only one ([`Acks::join_later`]).
#[derive(Debug, Default)]
pub struct Acks(Parts);

#[derive(Debug, Default)]
enum Parts {
    #[default]
    None,
    One(Ack),
    #[expect(
        clippy::box_collection,
        reason = "three words would enlarge millions of sets"
    )]
    Many(Box<Vec<Ack>>),
}

impl Acks {
    /// Keeps a part of `ack`, unless the last part kept belongs to the same acknowledgement.
    pub fn join(&mut self, ack: &Ack) {
        if ack.shared.is_some() && self.parts().last().is_none_or(|last| !last.same(ack)) {
            self.push(ack.clone());
        }
    }

    /// Like [`Acks::join`], but keeps nothing if the first part kept has the same or an earlier
    /// position ([`Ack::at`]): the journal keeps the later readings as long as the earlier ones.
    ///
    /// Not for readings with a time of receipt: for them the journal also asks which later entries
    /// are outstanding (see `journal::tracker`).
    pub fn join_later(&mut self, ack: &Ack) {
        let first = self.parts().first().and_then(Ack::position);
        let is_kept =
            matches!((first, ack.position()), (Some(first), Some(later)) if first <= later);
        if !is_kept {
            self.join(ack);
        }
    }

    /// Moves all parts of `other` here.
    pub fn append(&mut self, other: &mut Acks) {
        if self.is_empty() {
            std::mem::swap(self, other);
            return;
        }
        match std::mem::take(&mut other.0) {
            Parts::None => {}
            Parts::One(ack) => self.push(ack),
            Parts::Many(acks) => acks.into_iter().for_each(|ack| self.push(ack)),
        }
    }

    /// Splits every part, and returns the new ones.
    pub fn split(&self) -> Acks {
        Acks(match &self.0 {
            Parts::None => Parts::None,
            Parts::One(ack) => Parts::One(ack.clone()),
            Parts::Many(acks) => Parts::Many(acks.clone()),
        })
    }

    /// Reports that all parts are safe.
    pub fn delivered(self) {
        match self.0 {
            Parts::None => {}
            Parts::One(ack) => ack.delivered(),
            Parts::Many(acks) => acks.into_iter().for_each(Ack::delivered),
        }
    }

    /// The number of parts kept, not of acknowledgements: one may be kept twice if parts of another
    /// one are in between.
    pub fn len(&self) -> usize {
        self.parts().len()
    }

    /// Heap bytes, without the struct itself and without the state that the parts share.
    pub fn memory_bytes(&self) -> usize {
        match &self.0 {
            Parts::Many(acks) => size_of::<Vec<Ack>>() + acks.capacity() * size_of::<Ack>(),
            _ => 0,
        }
    }

    /// Whether no part is kept.
    pub fn is_empty(&self) -> bool {
        self.parts().is_empty()
    }

    fn parts(&self) -> &[Ack] {
        match &self.0 {
            Parts::None => &[],
            Parts::One(ack) => std::slice::from_ref(ack),
            Parts::Many(acks) => acks,
        }
    }

    fn push(&mut self, ack: Ack) {
        self.0 = match std::mem::take(&mut self.0) {
            Parts::None => Parts::One(ack),
            Parts::One(first) => Parts::Many(Box::new(vec![first, ack])),
            Parts::Many(mut acks) => {
                acks.push(ack);
                Parts::Many(acks)
            }
        };
    }
}

/// The unstored bytes of one sender in the journal. Ingest names it, and the journal counts.
#[derive(Debug, Clone, Default)]
pub struct JournalAccount(Arc<AtomicU64>);

impl JournalAccount {
    /// Bytes of the sender that are journaled and not stored.
    pub fn unstored_bytes(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Counts journaled bytes.
    pub fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Counts stored bytes, which were added before.
    pub fn subtract(&self, bytes: u64) {
        self.0.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// Distinguishes accounts while they live.
    pub fn key(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
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

    #[tokio::test]
    async fn the_part_with_the_earliest_position_is_enough() {
        let at = |position| {
            let (tx, outcome) = oneshot::channel();
            (
                Ack::at(position, |outcome| tx.send(outcome).unwrap()),
                outcome,
            )
        };
        let (five, mut five_done) = at(5);
        let (seven, mut seven_done) = at(7);
        let (three, mut three_done) = at(3);
        let (sender, wait) = Ack::channel();
        let mut acks = Acks::default();
        acks.join_later(&five);
        acks.join_later(&seven);
        assert_eq!(acks.len(), 1);
        acks.join_later(&sender);
        acks.join_later(&three);
        assert_eq!(
            acks.len(),
            3,
            "a sender's part is kept, and so is one before the first"
        );
        acks.join(&seven);
        assert_eq!(acks.len(), 4);
        let rest = acks.split();
        for ack in [five, seven, three, sender] {
            ack.delivered();
        }
        acks.delivered();
        assert!(
            five_done.try_recv().is_err(),
            "the split parts are outstanding"
        );
        drop(rest);
        for done in [&mut five_done, &mut seven_done, &mut three_done] {
            assert_eq!(done.try_recv(), Ok(AckOutcome::NotDelivered));
        }
        assert_eq!(wait.outcome().await, AckOutcome::NotDelivered);
    }

    #[test]
    fn a_set_is_small() {
        assert_eq!(
            size_of::<Acks>(),
            16,
            "each sensor with pending readings has one"
        );
    }
}
