//! Dead letters that come faster than the store takes them.
//!
//! Their memory is limited ([`DeadLetters`]), and readings must not wait until there is room. So
//! while there is none, dead letters are left in the journal: only their positions are noted,
//! together with the acknowledgement of their chunk, which keeps their segments. A task reads them
//! again and sends them in order. Those that come meanwhile are noted behind them.
//!
//! If the journal becomes three quarters full because of them, the oldest are given up: counted
//! (`cause="behind"`), logged, and acknowledged. They are messages that could not be decoded, and a
//! full journal would refuse the readings of all senders. They are not given up while most of the
//! journal is a backlog that the router has not reached yet, as after an outage of the store.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::dead_letters::DeadLetters;
use journal::{Position, SecondReader};
use model::ack::Ack;
use telemetry::log_limit::LineLimit;
use telemetry::metrics::{self, DeadLetterDropped};

/// Entries of one chunk; those of them that hold readings do not count.
#[derive(Debug)]
struct Range {
    from: Position,
    last_seq: u64,
    dead_letters: u64,
    ack: Ack,
}

#[derive(Debug, Default)]
struct State {
    /// In the order of the journal.
    waiting: VecDeque<Range>,
    /// The dead letters of `waiting`, and of the range that is being sent.
    dead_letters: u64,
    ended: bool,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

/// The ranges, and the task that sends them.
#[derive(Debug)]
pub(super) struct Postponed {
    shared: Arc<Shared>,
    task: AbortOnDropHandle<()>,
}

impl Postponed {
    /// Starts the task.
    pub(super) fn start(second_reader: SecondReader, dead: DeadLetters) -> Postponed {
        let shared = Arc::<Shared>::default();
        let task = tokio::spawn(shared.clone().send(second_reader, dead));
        Postponed {
            shared,
            task: AbortOnDropHandle::new(task),
        }
    }

    /// Whether all have been sent.
    pub(super) fn is_empty(&self) -> bool {
        self.shared.state().dead_letters == 0
    }

    /// Notes the entry at `position` with this many dead letters.
    pub(super) fn add(&self, position: Position, seq: u64, dead_letters: u64, ack: Ack) {
        let mut state = self.shared.state();
        state.dead_letters += dead_letters;
        metrics::dead_letters_postponed(state.dead_letters);
        match state.waiting.back_mut() {
            Some(last) if last.ack.same(&ack) => {
                last.last_seq = seq;
                last.dead_letters += dead_letters;
                ack.delivered();
            }
            _ => state.waiting.push_back(Range {
                from: position,
                last_seq: seq,
                dead_letters,
                ack,
            }),
        }
        drop(state);
        self.shared.changed.notify_one();
    }

    /// Returns when all are sent.
    pub(super) async fn finish(self) {
        self.shared.state().ended = true;
        self.shared.changed.notify_one();
        let _ = self.task.await;
    }
}

impl Shared {
    /// Every change under the lock is complete, so a panic leaves a consistent state.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn send(self: Arc<Shared>, mut second_reader: SecondReader, dead: DeadLetters) {
        let log = LineLimit::new("dropped messages that could not be decoded");
        let begun = Instant::now();
        while let Some(range) = self.next().await {
            let dead_letters = range.dead_letters;
            if second_reader.is_crowded() {
                give_up(range, &log, begun);
            } else if !send_range(range, &mut second_reader, &dead).await {
                // The journal has failed, and the service ends.
                return;
            }
            let mut state = self.state();
            state.dead_letters -= dead_letters;
            metrics::dead_letters_postponed(state.dead_letters);
        }
    }

    /// The oldest range; `None` at the end.
    async fn next(&self) -> Option<Range> {
        loop {
            {
                let mut state = self.state();
                if let Some(range) = state.waiting.pop_front() {
                    return Some(range);
                }
                if state.ended {
                    return None;
                }
            }
            self.changed.notified().await;
        }
    }
}

/// Sends the dead letters of a range as soon as there is room for each entry. False if they cannot
/// be read.
async fn send_range(range: Range, second_reader: &mut SecondReader, dead: &DeadLetters) -> bool {
    let mut from = Some(range.from);
    while let Some(position) = from {
        let Ok((entries, rest)) = second_reader.dead_letters(position, range.last_seq).await else {
            return false;
        };
        for dead_letters in entries {
            dead.send_one(dead_letters, range.ack.clone()).await;
        }
        from = rest;
    }
    range.ack.delivered();
    true
}

fn give_up(range: Range, log: &LineLimit, begun: Instant) {
    let now_ms = begun.elapsed().as_millis() as u64;
    log.line(now_ms, || {
        tracing::error!(
            dead_letters = range.dead_letters,
            "dropping messages that could not be decoded: they come faster than MongoDB stores \
             them, and the journal becomes full"
        )
    });
    metrics::dead_letters_dropped_total(DeadLetterDropped::Behind, range.dead_letters);
    range.ack.delivered();
}
