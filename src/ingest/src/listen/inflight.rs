//! The messages of one connection that wait for their acknowledgement. Pure.
//!
//! They are acknowledged in order of receipt (MQTT-4.6.0-2), regardless of the order in which their
//! ingest batches are settled. Messages after one that was not delivered are not acknowledged: the
//! messages before it are, then the connection ends and the device sends the rest again. Bounded by
//! the window, which the owner enforces.

use std::collections::VecDeque;

use model::ack::AckOutcome;

/// The outcome of `count` messages, starting with number `first`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AckResult {
    pub(super) first: u64,
    pub(super) count: u64,
    pub(super) outcome: AckOutcome,
    /// The device learns that it may not send these messages; nothing of them is kept.
    pub(super) is_refused: bool,
}

#[derive(Debug)]
pub(super) struct InFlight<T> {
    /// The number of the first waiting message.
    first: u64,
    waiting: VecDeque<Waiting<T>>,
}

#[derive(Debug)]
struct Waiting<T> {
    receipt: T,
    outcome: Option<AckOutcome>,
    is_refused: bool,
}

/// A message to acknowledge.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Released<T> {
    pub(super) receipt: T,
    /// See [`AckResult::is_refused`].
    pub(super) is_refused: bool,
}

impl<T> Default for InFlight<T> {
    fn default() -> InFlight<T> {
        InFlight {
            first: 0,
            waiting: VecDeque::new(),
        }
    }
}

impl<T> InFlight<T> {
    /// Adds an accepted message and returns its number.
    pub(super) fn push(&mut self, receipt: T) -> u64 {
        self.waiting.push_back(Waiting {
            receipt,
            outcome: None,
            is_refused: false,
        });
        self.first + self.waiting.len() as u64 - 1
    }

    /// Records the outcome of some messages; the first outcome of each counts.
    pub(super) fn settle(&mut self, result: AckResult) {
        for number in result.first..result.first.saturating_add(result.count) {
            let at = number
                .checked_sub(self.first)
                .and_then(|at| usize::try_from(at).ok());
            if let Some(message) = at.and_then(|at| self.waiting.get_mut(at))
                && message.outcome.is_none()
            {
                (message.outcome, message.is_refused) = (Some(result.outcome), result.is_refused);
            }
        }
    }

    /// The next message to acknowledge; each is returned once.
    pub(super) fn release(&mut self) -> Option<Released<T>> {
        self.waiting
            .front()
            .filter(|message| message.outcome == Some(AckOutcome::Delivered))?;
        self.first += 1;
        self.waiting.pop_front().map(
            |Waiting {
                 receipt,
                 is_refused,
                 ..
             }| Released {
                receipt,
                is_refused,
            },
        )
    }

    /// Whether no more messages will be released.
    pub(super) fn is_blocked(&self) -> bool {
        self.waiting
            .front()
            .is_some_and(|message| message.outcome == Some(AckOutcome::NotDelivered))
    }

    /// Number of waiting messages.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Push,
        Settle(prop::sample::Index, u64, bool),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            Just(Step::Push),
            (
                any::<prop::sample::Index>(),
                1..4u64,
                prop::bool::weighted(0.95)
            )
                .prop_map(|(i, n, ok)| Step::Settle(i, n, ok)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        #[test]
        fn what_is_released_is_the_longest_delivered_beginning(steps in prop::collection::vec(step(), 0..100)) {
            let mut inflight = InFlight::default();
            // Naive model: the outcome of every message ever.
            let mut all: Vec<Option<AckOutcome>> = vec![];
            let mut refused = vec![];
            let mut released = 0;
            for step in steps {
                match step {
                    Step::Push => {
                        prop_assert_eq!(inflight.push(all.len()), all.len() as u64);
                        all.push(None);
                        refused.push(false);
                    }
                    Step::Settle(index, count, ok) if !all.is_empty() => {
                        let first = index.index(all.len());
                        let outcome = if ok { AckOutcome::Delivered } else { AckOutcome::NotDelivered };
                        inflight.settle(AckResult { first: first as u64, count, outcome, is_refused: first % 2 == 0 });
                        for (message, refused) in all.iter_mut().zip(&mut refused).skip(first).take(count as usize) {
                            if message.is_none() {
                                (*message, *refused) = (Some(outcome), first % 2 == 0);
                            }
                        }
                    }
                    Step::Settle(..) => {}
                }
                while let Some(Released { receipt, is_refused }) = inflight.release() {
                    prop_assert_eq!(receipt, released);
                    prop_assert_eq!(is_refused, refused[receipt]);
                    released += 1;
                }
                let delivered = all.iter().take_while(|o| **o == Some(AckOutcome::Delivered)).count();
                prop_assert_eq!(released, delivered);
                prop_assert_eq!(inflight.len(), all.len() - delivered);
                prop_assert_eq!(inflight.is_blocked(), all.get(delivered) == Some(&Some(AckOutcome::NotDelivered)));
            }
        }
    }
}
