//! The ack ledger: which messages of a broker's connection wait for their PUBACK, and which may be
//! acknowledged now.
//!
//! Constraints:
//! - PUBACKs are sent in the order of receipt (MQTT-4.6.0-2).
//! - A packet id identifies a message only within one connection. An id of an older connection must
//!   never be acknowledged on a new one: the broker may have given it to another message, which
//!   would be lost.
//! - Messages after one that was not delivered must not be acknowledged.
//!
//! The life of a message: [`receive`](AckTracker::receive), then its group (the messages of one
//! ingest batch) is [`close`](AckTracker::close)d, then [`settle`](AckTracker::settle)d in the
//! order in which ingest batches are delivered, then [`release`](AckTracker::release) returns its
//! id once every message before it is delivered.
//!
//! Not delivered, or [`refuse`](AckTracker::refuse)d because the queue was full: the ids before it
//! are still released. Then the ledger is [`blocked`](AckTracker::blocked) and the connection must
//! end, so that the broker sends the rest again. Reconnected: all state is discarded. A later
//! [`settle`](AckTracker::settle) of an older group has no effect.
//!
//! Bounded by the protocol: a packet id has 16 bits and is not reused before its PUBACK, so at most
//! 65,535 wait.

use std::collections::VecDeque;

use model::ack::AckOutcome;

/// The messages of one ingest batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Group {
    epoch: u64,
    number: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    Delivered,
    Failed,
}

#[derive(Debug)]
pub(super) struct AckTracker<T> {
    /// Counts connections.
    epoch: u64,
    /// The receipts that wait (packet ids), in order: those of `groups`, then `open` more.
    ids: VecDeque<T>,
    /// Number of messages in each closed group, and its state.
    groups: VecDeque<(usize, State)>,
    /// The number of the group at the front of `groups`.
    front: u64,
    /// Messages received since the last group was closed.
    open: usize,
    /// A message was received and refused.
    refused: bool,
}

impl<T> Default for AckTracker<T> {
    fn default() -> AckTracker<T> {
        AckTracker {
            epoch: 0,
            ids: VecDeque::new(),
            groups: VecDeque::new(),
            front: 0,
            open: 0,
            refused: false,
        }
    }
}

impl<T> AckTracker<T> {
    /// Starts a new connection: discards all waiting messages.
    pub(super) fn reconnect(&mut self) {
        *self = AckTracker {
            epoch: self.epoch + 1,
            ..AckTracker::default()
        };
    }

    /// Adds a received message to the open group.
    pub(super) fn receive(&mut self, id: T) {
        assert!(!self.refused, "a message accepted after a refused one");
        self.ids.push_back(id);
        self.open += 1;
    }

    /// Closes the open group: its messages form one ingest batch. It may be empty (all were QoS 0).
    pub(super) fn close(&mut self) -> Group {
        self.groups
            .push_back((std::mem::take(&mut self.open), State::Waiting));
        Group {
            epoch: self.epoch,
            number: self.front + self.groups.len() as u64 - 1,
        }
    }

    /// Records a refused message. Neither it nor any message after it is acknowledged on this
    /// connection, and every further message of the connection must be refused.
    pub(super) fn refuse(&mut self) {
        self.refused = true;
    }

    /// Whether messages are refused.
    pub(super) fn is_refusing(&self) -> bool {
        self.refused
    }

    /// Records the outcome of a group. Groups of older connections are ignored.
    pub(super) fn settle(&mut self, group: Group, outcome: AckOutcome) {
        if group.epoch != self.epoch {
            return;
        }
        let at = group
            .number
            .checked_sub(self.front)
            .and_then(|at| usize::try_from(at).ok());
        if let Some((len, state @ State::Waiting)) = at.and_then(|at| self.groups.get_mut(at)) {
            *state = match outcome {
                // If no sender waits (QoS 0), nothing is sent again, so there is nothing to wait
                // for.
                AckOutcome::NotDelivered if *len > 0 => State::Failed,
                _ => State::Delivered,
            };
        }
    }

    /// The ids to acknowledge now, in order; each is returned once.
    pub(super) fn release(&mut self) -> impl Iterator<Item = T> + '_ {
        let mut n = 0;
        while let Some(&(len, State::Delivered)) = self.groups.front() {
            self.groups.pop_front();
            self.front += 1;
            n += len;
        }
        self.ids.drain(..n)
    }

    /// Whether no more ids will be released on this connection although messages wait for it.
    pub(super) fn blocked(&self) -> bool {
        match self.groups.front() {
            Some((_, state)) => *state == State::Failed,
            None => self.refused && self.open == 0,
        }
    }

    /// Whether no group is open or in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.groups.is_empty() && self.open == 0
    }

    /// The message that has waited longest for its PUBACK.
    pub(super) fn oldest(&self) -> Option<&T> {
        self.ids.front()
    }

    /// Number of accepted messages that wait for their PUBACK.
    pub(super) fn pending(&self) -> usize {
        self.ids.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Receive,
        Close,
        /// Settles one of all groups ever closed, of any connection.
        Settle(prop::sample::Index, bool),
        Refuse,
        Reconnect,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => Just(Step::Receive),
            3 => Just(Step::Close),
            6 => (any::<prop::sample::Index>(), prop::bool::weighted(0.95)).prop_map(|(i, ok)| Step::Settle(i, ok)),
            1 => prop::bool::weighted(0.2).prop_map(|refuse| if refuse { Step::Refuse } else { Step::Receive }),
            1 => prop::bool::weighted(0.3).prop_map(|over| if over { Step::Reconnect } else { Step::Close }),
        ]
    }

    /// One message, as the naive model remembers it.
    #[derive(Debug, Clone, Copy)]
    struct Message {
        id: u16,
        epoch: usize,
        group: Option<usize>,
        acked: bool,
    }

    /// Naive model: keeps everything and scans all of it.
    #[derive(Default)]
    struct Model {
        epoch: usize,
        messages: Vec<Message>,
        groups: Vec<(usize, Group, Option<AckOutcome>)>,
        refused: bool,
        next_id: u16,
    }

    impl Model {
        /// Whether all groups of this connection up to and including `last` are settled.
        fn settled_to(&self, last: usize) -> bool {
            self.groups[..=last]
                .iter()
                .all(|(epoch, _, outcome)| *epoch != self.epoch || outcome.is_some())
        }

        /// The messages to acknowledge now: in order of receipt, until the first that is not
        /// delivered.
        fn expect(&mut self) -> Vec<u16> {
            let mut ids = vec![];
            for at in 0..self.messages.len() {
                let Message {
                    id,
                    epoch,
                    group,
                    acked,
                } = self.messages[at];
                if epoch != self.epoch {
                    continue;
                }
                let delivered = |g: usize| {
                    self.settled_to(g) && self.groups[g].2 == Some(AckOutcome::Delivered)
                };
                if !group.is_some_and(delivered) {
                    break;
                }
                if !acked {
                    self.messages[at].acked = true;
                    ids.push(id);
                }
            }
            ids
        }

        fn waiting(&self) -> impl Iterator<Item = &Message> {
            self.messages
                .iter()
                .filter(|m| m.epoch == self.epoch && !m.acked)
        }

        fn blocked(&self) -> bool {
            match self.waiting().next() {
                Some(m) => m.group.is_some_and(|g| {
                    self.settled_to(g) && self.groups[g].2 == Some(AckOutcome::NotDelivered)
                }),
                None => {
                    self.refused
                        && self
                            .groups
                            .len()
                            .checked_sub(1)
                            .is_none_or(|last| self.settled_to(last))
                }
            }
        }

        fn apply(&mut self, ack_tracker: &mut AckTracker<u16>, step: &Step) {
            match step {
                Step::Receive if self.refused => {}
                Step::Receive => {
                    // Ids are reused soon, as by a broker.
                    self.next_id = self.next_id % 7 + 1;
                    ack_tracker.receive(self.next_id);
                    self.messages.push(Message {
                        id: self.next_id,
                        epoch: self.epoch,
                        group: None,
                        acked: false,
                    });
                }
                Step::Close => {
                    let open: Vec<_> = self
                        .messages
                        .iter_mut()
                        .filter(|m| m.epoch == self.epoch && m.group.is_none())
                        .collect();
                    open.into_iter()
                        .for_each(|m| m.group = Some(self.groups.len()));
                    self.groups.push((self.epoch, ack_tracker.close(), None));
                }
                Step::Settle(index, ok) if !self.groups.is_empty() => {
                    let at = index.index(self.groups.len());
                    let outcome = if *ok {
                        AckOutcome::Delivered
                    } else {
                        AckOutcome::NotDelivered
                    };
                    ack_tracker.settle(self.groups[at].1, outcome);
                    // The first outcome counts.
                    self.groups[at].2.get_or_insert(outcome);
                }
                Step::Settle(..) => {}
                Step::Refuse => {
                    ack_tracker.refuse();
                    self.refused = true;
                }
                Step::Reconnect => {
                    ack_tracker.reconnect();
                    self.epoch += 1;
                    self.refused = false;
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn acks_are_in_order_of_this_connection_and_only_of_what_is_delivered(
            steps in prop::collection::vec(step(), 0..120)
        ) {
            let mut ack_tracker = AckTracker::default();
            let mut model = Model::default();
            for step in &steps {
                model.apply(&mut ack_tracker, step);
                prop_assert_eq!(ack_tracker.release().collect::<Vec<_>>(), model.expect());
                prop_assert_eq!(ack_tracker.pending(), model.waiting().count());
                prop_assert_eq!(ack_tracker.blocked(), model.blocked());
            }
            // Everything delivered is acknowledged eventually.
            model.apply(&mut ack_tracker, &Step::Reconnect);
            for _ in 0..20 {
                model.apply(&mut ack_tracker, &Step::Receive);
                model.apply(&mut ack_tracker, &Step::Close);
            }
            for (_, group, outcome) in model.groups.iter_mut().rev() {
                ack_tracker.settle(*group, AckOutcome::Delivered);
                outcome.get_or_insert(AckOutcome::Delivered);
            }
            prop_assert_eq!(ack_tracker.release().count(), 20);
            prop_assert_eq!(ack_tracker.pending(), 0);
        }
    }

    #[test]
    fn a_late_outcome_of_an_older_connection_acknowledges_nothing() {
        let mut ack_tracker = AckTracker::default();
        ack_tracker.receive(1);
        let old = ack_tracker.close();
        ack_tracker.reconnect();
        ack_tracker.receive(1);
        ack_tracker.close();
        ack_tracker.settle(old, AckOutcome::Delivered);
        assert_eq!(ack_tracker.release().count(), 0);
    }

    #[test]
    fn undelivered_entries_are_not_passed() {
        let mut ack_tracker = AckTracker::default();
        let groups: Vec<_> = (1..=3)
            .map(|id| {
                ack_tracker.receive(id);
                ack_tracker.close()
            })
            .collect();
        ack_tracker.settle(groups[2], AckOutcome::Delivered);
        ack_tracker.settle(groups[1], AckOutcome::NotDelivered);
        assert!(!ack_tracker.blocked());
        ack_tracker.settle(groups[0], AckOutcome::Delivered);
        assert_eq!(ack_tracker.release().collect::<Vec<_>>(), [1]);
        assert!(ack_tracker.blocked());
        assert_eq!(ack_tracker.release().count(), 0);
    }
}
