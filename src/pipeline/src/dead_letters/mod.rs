//! Dead letters: messages and readings that could not be decoded or stored, kept with the reason
//! until an operator replays or purges them.
//!
//! Constraints:
//! - A message that becomes a dead letter is acknowledged to its sender only when the dead letter
//!   is durable.
//! - A dead letter with acknowledged readings is removed only by a replay or a purge, never by a
//!   limit.
//! - A dead letter that MongoDB refuses does not delay the others.
//!
//! The life of a dead letter:
//!
//! ```text
//!  ingest ──> journal ──> router ──┐
//!                                  ├─ DeadLetters::send ─> writer ─> collection `dead_letters` ──> list, purge
//!  shard (refused, quarantined) ───┘   (bounded in bytes)            │  limited by bytes and age
//!                                                                    └─> redecode ─> replay ─> stored, then removed
//! ```
//!
//! 1. It is created where the problem is found. Over MQTT and on hooks, a message with a reject
//!    becomes one, whole, with the first reason; its other readings are accepted. On the other HTTP
//!    routes the sender gets the error instead. A shard creates one from acknowledged readings that
//!    the store refuses, or that are still quarantined after `flush.quarantine_after`; its `source`
//!    is [`OWN_SOURCE`]. At most [`DEAD_PAYLOAD_BYTES_MAX`] of a sender's payload are kept.
//! 2. Queued: it travels in the ingest batch of its message, so it is in the journal before the
//!    sender is acknowledged (with `ack = "stored"`, in the collection). Router and shards hand it
//!    to the writer ([`DeadLetters::send`]), which accepts a bounded number of bytes. Its journal
//!    entry, or the rows of the shard, stay unacknowledged until it is stored.
//! 3. Written: in batches; a failed batch is retried and halved until the dead letter at fault is
//!    alone. See *The writer* below.
//! 4. Limited: the oldest ones of senders are removed above `dead_letters.max_bytes`
//!    ([`limit`]), and expire after `dead_letters.retention` (a TTL index).
//! 5. Listed and purged: the commands select them by reason, source, topic and time
//!    ([`store::dead_letter_filter`]). The read API lists them too.
//! 6. Replayed: decoded again with the current settings (`ingest::redecode`), stored as a second
//!    instance, and only then removed (`replay` of the service). Readings that are still rejected stay.
//!
//! Crash: a dead letter that was not stored is in the journal, or its readings are; the next start
//! processes them again. One that was stored without an answer may be stored twice.
//!
//! Full: if the writer's bytes are used up, because MongoDB is unavailable or refuses too many,
//! router and shards wait, and the journal is the buffer.
//!
//! Elsewhere: the type [`DeadLetter`] stays in `model`, because
//! admission, journal, ingest and store all carry it and must not depend on this module.
//! `store::mongo::dead_letters` has the commands for MongoDB, `testkit::memory_store` the same in memory,
//! `cli::dead_letters` the command line.
//!
//! # The writer
//!
//! It collects dead letters into batches, keeps them until they are stored, then acknowledges.
//!
//! **Memory.** A delivery waits in [`DeadLetters::send`] until its bytes fit into
//! [`IN_FLIGHT_BYTES_MAX`], and releases them when all its dead letters are stored. So the dead
//! letters in memory are bounded in bytes while MongoDB is unavailable. Shards wait for room; the
//! router leaves the dead letters of senders in the journal until there is room ([`crate::route`]).
//!
//! **A batch that fails** is retried after a backoff, without a permit meanwhile. If one dead
//! letter may have caused the failure (no answer in time, or an error for the batch as a whole),
//! the next batch has half as many, down to one. Each success doubles that number again.
//!
//! **A dead letter that fails alone** does not delay the others:
//! - If it was refused, comes from a sender and is large, its beginning ([`CUT_BYTES`]) is stored
//!   instead, with the store's error in `detail`.
//! - Otherwise it is set aside, as long as those have at most [`RETRY_BYTES_MAX`], and retried
//!   alone every [`RETRY_AFTER`]. It is not acknowledged, so the journal keeps it too.
//! - Beyond that limit, refused dead letters of senders are given up, oldest first: counted
//!   (`cause="refused"`), logged, then acknowledged. Nothing else is ever given up. Dead letters
//!   with acknowledged readings stay. One without an answer stays at the front of the queue, since
//!   data must not be lost because the store does not answer.
//!
//! **A collection that stores nothing** must not fill the journal, nor stop a shard that has dead
//! letters with readings. If that has lasted for [`FAILING_AFTER`], and it is the collection's own
//! fault, dead letters of senders are given up in the same way until at most [`RETRY_BYTES_MAX`]
//! wait. It is its own fault:
//! - if it answers with errors (missing rights, for example), and page writes do not fail;
//! - if it does not even answer for a single dead letter, and page writes were confirmed meanwhile.
//!   A server that is locked for a backup answers pings, but confirms no page.
//!
//! **The size of the collection** is kept below `dead_letters.max_bytes` by the same task, after
//! each batch and once a minute ([`limit`]). Acknowledgements do not wait for it.
//!
//! [`OWN_SOURCE`]: model::OWN_SOURCE
//! [`DEAD_PAYLOAD_BYTES_MAX`]: model::DEAD_PAYLOAD_BYTES_MAX

mod limit;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;

use crate::flush::{Flusher, Lane};
use limit::Limit;
use model::DeadLetter;
use model::ack::{Ack, Acks};
use store::{DeadLetterWritten, StoreError, StoreErrorKind};
use telemetry::log_limit::CountedLine;
use telemetry::metrics::{self, DeadLetterDropped, DocumentError};

/// Maximum dead letters of one command, and bytes after which no more are added.
const BATCH_DEAD_LETTERS_MAX: usize = 1000;
const BATCH_BYTES_MAX: usize = 8 << 20;
/// Maximum bytes of dead letters in memory, including those not sent yet. A larger delivery waits
/// until it is alone.
const IN_FLIGHT_BYTES_MAX: usize = 16 << 20;
/// Maximum bytes of dead letters set aside, before refused ones of senders are given up.
const RETRY_BYTES_MAX: usize = 4 << 20;
/// Bytes of the payload that are stored of a dead letter that was refused in full.
const CUT_BYTES: usize = 16 << 10;
/// Interval between retries of dead letters that were set aside.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// How long the collection must have stored nothing before dead letters are given up.
const FAILING_AFTER: Duration = Duration::from_secs(60);

/// Dead letters that were sent together; acknowledged when the last of them is stored or given up.
#[derive(Debug)]
struct Delivery {
    acks: Acks,
    /// Its share of [`IN_FLIGHT_BYTES_MAX`].
    room: OwnedSemaphorePermit,
}

/// A dead letter that is not stored yet.
#[derive(Debug)]
struct QueuedDeadLetter {
    dead_letter: DeadLetter,
    of: Arc<Delivery>,
    state: State,
}

/// The result of earlier attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Not attempted.
    New,
    /// The beginning of one that was refused.
    Cut,
    /// It was sent alone and got no answer.
    Unanswered,
    /// The store has refused it.
    Refused,
}

impl QueuedDeadLetter {
    /// It is stored or given up. The last one of a delivery delivers the acknowledgements.
    fn done(self) {
        if let Some(Delivery { acks, room }) = Arc::into_inner(self.of) {
            acks.delivered();
            drop(room);
        }
    }
}

/// The part of [`IN_FLIGHT_BYTES_MAX`] that they need.
fn room_for(dead_letters: &[DeadLetter]) -> u32 {
    let bytes: usize = dead_letters.iter().map(DeadLetter::memory_bytes).sum();
    bytes.min(IN_FLIGHT_BYTES_MAX) as u32
}

fn memory_bytes(queue: &VecDeque<QueuedDeadLetter>) -> usize {
    queue.iter().map(|l| l.dead_letter.memory_bytes()).sum()
}

/// The handle of the task that writes dead letters.
#[derive(Debug, Clone)]
pub struct DeadLetters {
    deliveries: mpsc::Sender<(Vec<DeadLetter>, Delivery)>,
    room: Arc<Semaphore>,
}

impl DeadLetters {
    /// A handle, and the task for the caller to spawn. At most `queue_max` deliveries are queued;
    /// the collection is kept below `stored_bytes_max`.
    pub fn new(
        flusher: Flusher,
        queue_max: usize,
        stored_bytes_max: u64,
    ) -> (DeadLetters, impl Future<Output = ()> + Send) {
        let (tx, rx) = mpsc::channel(queue_max);
        let writer = DeadLetterWriter::new(flusher, Limit::new(stored_bytes_max));
        (
            DeadLetters {
                deliveries: tx,
                room: Arc::new(Semaphore::new(IN_FLIGHT_BYTES_MAX)),
            },
            writer.run(rx),
        )
    }

    /// Sends dead letters as soon as there is room for them; `acks` are delivered when the store
    /// has them.
    pub async fn send(&self, dead_letters: Vec<DeadLetter>, acks: Acks) {
        if dead_letters.is_empty() {
            return acks.delivered();
        }
        let wanted = room_for(&dead_letters);
        // The semaphore is never closed, and the receiver lives as long as the service. After its
        // end the acknowledgements are dropped, which reports *not delivered*.
        let Ok(room) = self.room.clone().acquire_many_owned(wanted).await else {
            return;
        };
        let _ = self
            .deliveries
            .send((dead_letters, Delivery { acks, room }))
            .await;
    }

    /// Sends dead letters if there is room for them now. Part of `ack` is delivered when the store
    /// has them.
    ///
    /// # Errors
    /// There is no room; the dead letters are returned.
    pub(crate) fn try_send_one(
        &self,
        dead_letters: Vec<DeadLetter>,
        ack: &Ack,
    ) -> Result<(), Vec<DeadLetter>> {
        let wanted = room_for(&dead_letters);
        let Ok(place) = self.deliveries.try_reserve() else {
            return Err(dead_letters);
        };
        let Ok(room) = self.room.clone().try_acquire_many_owned(wanted) else {
            return Err(dead_letters);
        };
        let mut acks = Acks::default();
        acks.join(ack);
        place.send((dead_letters, Delivery { acks, room }));
        Ok(())
    }

    /// Like [`DeadLetters::send`], for one acknowledgement.
    pub(crate) async fn send_one(&self, dead_letters: Vec<DeadLetter>, ack: Ack) {
        let mut acks = Acks::default();
        acks.join(&ack);
        self.send(dead_letters, acks).await;
        ack.delivered();
    }
}

/// The state of the task.
struct DeadLetterWriter {
    flusher: Flusher,
    limit: Limit,
    /// In order of arrival.
    queue: VecDeque<QueuedDeadLetter>,
    /// Dead letters that failed alone.
    retries: VecDeque<QueuedDeadLetter>,
    retry_at: Instant,
    /// Maximum size of the next batch.
    dead_letters_max: usize,
    /// Failed batches in a row.
    failures: u32,
    /// Since when every batch has failed, although there is a server that accepts writes.
    failing_since: Option<Instant>,
    retried_log: CountedLine,
    dropped_log: CountedLine,
}

impl DeadLetterWriter {
    fn new(flusher: Flusher, limit: Limit) -> DeadLetterWriter {
        DeadLetterWriter {
            flusher,
            limit,
            queue: VecDeque::new(),
            retries: VecDeque::new(),
            retry_at: Instant::now(),
            dead_letters_max: BATCH_DEAD_LETTERS_MAX,
            failures: 0,
            failing_since: None,
            retried_log: CountedLine::default(),
            dropped_log: CountedLine::default(),
        }
    }

    /// Ends when every handle is dropped and everything is stored.
    async fn run(mut self, mut rx: mpsc::Receiver<(Vec<DeadLetter>, Delivery)>) {
        let mut open = true;
        while open || !self.queue.is_empty() || !self.retries.is_empty() {
            while let Ok(delivery) = rx.try_recv() {
                self.take(delivery);
            }
            if !self.queue.is_empty() {
                self.send_batch().await;
                if self.limit.is_due() {
                    self.limit
                        .keep(&self.flusher, self.flusher.permit().await)
                        .await;
                }
            }
            if !self.retries.is_empty() && Instant::now() >= self.retry_at {
                self.send_retry().await;
            }
            if self.queue.is_empty() {
                let due = self.limit.is_due();
                let due_at = self.limit.due_at();
                tokio::select! {
                    delivery = rx.recv(), if open => match delivery {
                        Some(delivery) => self.take(delivery),
                        None => open = false,
                    },
                    // There is no permit before the store is prepared, and the task must be able to
                    // end before that.
                    permit = self.flusher.permit(), if due && open => self.limit.keep(&self.flusher, permit).await,
                    () = tokio::time::sleep_until(due_at), if !due && open => {}
                    () = tokio::time::sleep_until(self.retry_at), if !self.retries.is_empty() => {}
                    else => {}
                }
            }
        }
    }

    fn take(&mut self, (dead_letters, delivery): (Vec<DeadLetter>, Delivery)) {
        let of = Arc::new(delivery);
        let queued = |dead_letter| QueuedDeadLetter {
            dead_letter,
            of: of.clone(),
            state: State::New,
        };
        self.queue.extend(dead_letters.into_iter().map(queued));
    }

    /// Sends the front of the queue, as many dead letters as one command may have now.
    async fn send_batch(&mut self) {
        let mut n = 0;
        let mut bytes = 0;
        while n < self.queue.len().min(self.dead_letters_max) && (n == 0 || bytes < BATCH_BYTES_MAX)
        {
            bytes += self.queue[n].dead_letter.memory_bytes();
            n += 1;
        }
        let batch: Vec<QueuedDeadLetter> = self.queue.drain(..n).collect();
        match self.send(&batch, Lane::Write).await {
            Ok(answers) => {
                self.failures = 0;
                self.failing_since = None;
                self.dead_letters_max = (self.dead_letters_max * 2).min(BATCH_DEAD_LETTERS_MAX);
                for (dead_letter, kept) in batch.into_iter().zip(answers) {
                    self.answered(dead_letter, kept);
                }
            }
            Err(error) => {
                let is_single = batch.len() == 1;
                self.failed(batch, &error);
                self.make_room(&error, is_single);
                self.flusher.pause(&mut self.failures).await;
            }
        }
    }

    /// Sends one command.
    async fn send(
        &mut self,
        batch: &[QueuedDeadLetter],
        lane: Lane,
    ) -> Result<Vec<DeadLetterWritten>, StoreError> {
        let dead_letters: Vec<DeadLetter> = batch.iter().map(|l| l.dead_letter.clone()).collect();
        let answers = self.flusher.write_dead_letters(lane, &dead_letters).await;
        if let Ok(answers) = &answers {
            let stored = dead_letters
                .iter()
                .zip(answers)
                .filter(|(_, kept)| **kept == DeadLetterWritten::Done);
            self.limit.stored(
                stored
                    .map(|(dead_letter, _)| dead_letter.memory_bytes() as u64)
                    .sum(),
            );
        }
        answers
    }

    fn answered(&mut self, dead_letter: QueuedDeadLetter, kept: DeadLetterWritten) {
        match kept {
            DeadLetterWritten::Done => {
                metrics::dead_letters_total(&dead_letter.dead_letter.reason, 1);
                dead_letter.done();
            }
            DeadLetterWritten::Rejected { detail } => {
                metrics::store_errors_total(DocumentError::Refused, 1);
                let is_small = dead_letter.dead_letter.payload.len() <= CUT_BYTES;
                if dead_letter.dead_letter.is_own() || is_small || dead_letter.state == State::Cut {
                    self.retry_later(dead_letter, State::Refused, &detail);
                } else {
                    let cut = dead_letter.dead_letter.cut(
                        CUT_BYTES,
                        &format!("the store refused it in full: {detail}"),
                    );
                    self.queue.push_front(QueuedDeadLetter {
                        dead_letter: cut,
                        state: State::Cut,
                        ..dead_letter
                    });
                }
            }
        }
    }

    /// Returns a batch without answers to the front of the queue, unless it is a single dead letter
    /// that may be the cause.
    fn failed(&mut self, mut batch: Vec<QueuedDeadLetter>, error: &StoreError) {
        // No dead letter causes these: there is no server, or none that accepts writes.
        let is_for_all = error.is_away() || error.kind() == StoreErrorKind::WriteConcern;
        if let [one] = &batch[..]
            && !is_for_all
            && memory_bytes(&self.retries) + one.dead_letter.memory_bytes() <= RETRY_BYTES_MAX
            && let Some(dead_letter) = batch.pop()
        {
            return self.retry_later(dead_letter, State::Unanswered, &error.to_string());
        }
        if !is_for_all {
            self.dead_letters_max = (batch.len() / 2).max(1);
        }
        batch
            .into_iter()
            .rev()
            .for_each(|dead_letter| self.queue.push_front(dead_letter));
    }

    /// After a failed batch: gives up the oldest dead letters of senders if only this collection
    /// stores nothing. `is_single`: the batch had one dead letter.
    fn make_room(&mut self, error: &StoreError, is_single: bool) {
        let kind = error.kind();
        if !matches!(
            kind,
            StoreErrorKind::Command | StoreErrorKind::Unauthorized | StoreErrorKind::Timeout
        ) {
            self.failing_since = None;
            return;
        }
        let time = self
            .failing_since
            .get_or_insert_with(Instant::now)
            .elapsed();
        let is_own_fault = if kind == StoreErrorKind::Timeout {
            let page_written = self.flusher.page_written_ago();
            // A slow store may need too long for many dead letters, but not for one.
            is_single && page_written.is_some_and(|ago| ago < time)
        } else {
            !self.flusher.page_writes_fail()
        };
        if time < FAILING_AFTER || !is_own_fault {
            return;
        }
        let mut bytes = memory_bytes(&self.queue);
        for queued in std::mem::take(&mut self.queue) {
            if bytes <= RETRY_BYTES_MAX || queued.dead_letter.is_own() {
                self.queue.push_back(queued);
                continue;
            }
            bytes -= queued.dead_letter.memory_bytes();
            self.give_up(queued, &error.to_string());
        }
    }

    fn give_up(&mut self, queued: QueuedDeadLetter, why: &str) {
        if let Some(dead_letters) = self.dropped_log.add(1) {
            let DeadLetter {
                source,
                topic,
                reason,
                ..
            } = &queued.dead_letter;
            tracing::error!(%source, %topic, %reason, dead_letters, error = why, "dropping dead letters: \
                store does not take them");
        }
        metrics::dead_letters_dropped_total(DeadLetterDropped::Refused, 1);
        queued.done();
    }

    fn retry_later(&mut self, dead_letter: QueuedDeadLetter, state: State, why: &str) {
        if self.retries.is_empty() {
            self.retry_at = Instant::now() + RETRY_AFTER;
        }
        if dead_letter.state != state
            && let Some(dead_letters) = self.retried_log.add(1)
        {
            let DeadLetter {
                source,
                topic,
                reason,
                ..
            } = &dead_letter.dead_letter;
            tracing::error!(%source, %topic, %reason, dead_letters, error = why, "dead letters not \
                stored; retrying");
        }
        self.retries.push_back(QueuedDeadLetter {
            state,
            ..dead_letter
        });
        let may_drop = |l: &QueuedDeadLetter| l.state == State::Refused && !l.dead_letter.is_own();
        while memory_bytes(&self.retries) > RETRY_BYTES_MAX
            && let Some(first) = self.retries.iter().position(may_drop)
            && let Some(dead_letter) = self.retries.remove(first)
        {
            self.give_up(dead_letter, why);
        }
    }

    /// Retries one dead letter that was set aside; after a success the next one follows
    /// immediately.
    async fn send_retry(&mut self) {
        let Some(dead_letter) = self.retries.pop_front() else {
            return;
        };
        let one = [dead_letter];
        let answer = self
            .send(&one, Lane::Retry)
            .await
            .ok()
            .and_then(|mut answers| answers.pop());
        let [dead_letter] = one;
        if answer != Some(DeadLetterWritten::Done) {
            self.retry_at = Instant::now() + RETRY_AFTER;
        }
        match answer {
            Some(kept) => self.answered(dead_letter, kept),
            None => self.retries.push_back(dead_letter),
        }
    }
}
