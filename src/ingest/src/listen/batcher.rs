//! Collects the messages of many connections into ingest batches, so that ten thousand devices with
//! a reading each do not make ten thousand entries in the journal.
//!
//! A batcher is one task. A hash of its client id assigns each device to one batcher, so its
//! messages stay in order. A batcher hands over an ingest batch when it is full, when fewer than
//! two are in flight (one in progress and one queued keep the next stage busy) and no more messages
//! are expected soon ([`CommitDelay`]), or when its first message has waited for [`LINGER`]. So a
//! lone device is answered immediately, and many devices, which together send all the time, share
//! the work of an ingest batch and its sync; their PUBACKs leave together.
//!
//! Full: the submit task waits for the next stage, then the batcher stops taking messages, then its
//! queue is full and the connections stop reading. Nothing is dropped. If the next stage is closed
//! permanently, the collected messages are not delivered, and their connections end.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::inflight::AckResult;
use crate::count_out_of_range;
use crate::mqtt::client::submit;
use crate::mqtt::collect::{CollectedBatch, Collector, NoRoom, Take};
use crate::mqtt::link::Message;
use config::{Decoding, Live};
use decode::RejectReason;
use journal::admission::{Admission, IngestBatch};
use journal::commit_delay::{CommitDelay, OpenGroup};
use model::Clock;
use model::JournalAccount;
use model::ack::{Ack, AckOutcome};
use net::access::Grant;
use telemetry::metrics::{self, Source};
use telemetry::rejected::{self, Reject};
use telemetry::{log_limit, tail};

/// Messages that may wait for a batcher. Their bytes are bounded over all batchers
/// ([`super::shared::BYTES_MAX`]).
pub(super) const QUEUE_MAX: usize = 1024;
/// Ingest batches that may wait for the next stage, of 256 KiB each.
const BATCHES_MAX: usize = 4;
/// The longest time that a message waits for others.
const LINGER: Duration = Duration::from_millis(5);

/// Receives the outcomes of a connection's messages.
pub(super) type AckSender = Arc<mpsc::UnboundedSender<AckResult>>;

/// A message on its way to a batcher.
pub(super) struct Incoming {
    pub(super) message: Message,
    /// The receiver of the outcome, and the message's number there; `None`: QoS 0.
    pub(super) from: Option<(AckSender, u64)>,
    /// Returned when the message is added to a batch.
    pub(super) permits: Permits,
}

/// Parts of the bytes that may wait.
pub(super) struct Permits {
    pub(super) of_all: OwnedSemaphorePermit,
    /// Of its sender's own share, if it has one.
    pub(super) _own: Option<OwnedSemaphorePermit>,
}

/// Consecutive messages of one connection in one ingest batch.
struct Run {
    acks: AckSender,
    first: u64,
    count: u64,
    /// See [`AckResult::is_refused`].
    is_refused: bool,
}

/// The outcome of an ingest batch.
struct BatchOutcome {
    runs: Vec<Run>,
    /// All of its messages, also with QoS 0.
    messages: usize,
    outcome: AckOutcome,
}

pub(super) struct Batcher {
    collector: Collector,
    decoding: Live<Decoding>,
    clock: Arc<dyn Clock>,
    incoming: mpsc::Receiver<Incoming>,
    /// The current ingest batch.
    runs: Vec<Run>,
    /// Its senders, at most as many as it has messages, each with the bytes of its payloads.
    senders: Vec<(JournalAccount, u64)>,
    /// When its first message came, and its last.
    since: Option<Instant>,
    last: Option<Instant>,
    /// The number of its messages.
    messages: usize,
    /// The bytes of the messages taken just now, which no longer wait. Returned together, because
    /// that takes a lock.
    done: Option<OwnedSemaphorePermit>,
    /// A message that does not fit into the current ingest batch.
    held: Option<Incoming>,
    /// Number of ingest batches handed over and not settled, and of their messages.
    on_their_way: usize,
    messages_on_their_way: usize,
    delay: CommitDelay,
    /// One outcome per ingest batch; ingest batches are bounded by the queue and by admission.
    settled_tx: mpsc::UnboundedSender<BatchOutcome>,
    settled: mpsc::UnboundedReceiver<BatchOutcome>,
}

impl Batcher {
    /// A batcher, and the sender for its messages.
    pub(super) fn new(
        collector: Collector,
        decoding: Live<Decoding>,
        clock: Arc<dyn Clock>,
        delay: CommitDelay,
    ) -> (mpsc::Sender<Incoming>, Batcher) {
        let (tx, incoming) = mpsc::channel(QUEUE_MAX);
        let (settled_tx, settled) = mpsc::unbounded_channel();
        let batcher = Batcher {
            collector,
            decoding,
            clock,
            incoming,
            runs: vec![],
            senders: vec![],
            since: None,
            last: None,
            messages: 0,
            done: None,
            held: None,
            on_their_way: 0,
            messages_on_their_way: 0,
            delay,
            settled_tx,
            settled,
        };
        (tx, batcher)
    }

    /// Runs until every connection has ended and all of their messages are settled.
    pub(super) async fn run(mut self, admission: Admission) {
        let taken = Arc::new(Notify::new());
        let (queue, ingest_batches) = mpsc::channel(BATCHES_MAX);
        let _submitter = AbortOnDropHandle::new(tokio::spawn(submit(
            ingest_batches,
            admission,
            taken.clone(),
        )));
        let mut open = true;
        loop {
            self.hand_over_if_wanted(&queue, open);
            if !open && self.collector.is_empty() && self.held.is_none() && self.on_their_way == 0 {
                return;
            }
            let has_room = self.held.is_none() && !self.collector.is_full();
            let look_again = self.look_again();
            tokio::select! {
                biased;
                Some(settled) = self.settled.recv() => self.settle(settled),
                () = taken.notified() => {}
                incoming = self.incoming.recv(), if open && has_room => match incoming {
                    Some(incoming) => self.take_what_is_there(incoming),
                    None => open = false,
                },
                () = queue.closed(), if !queue.is_closed() => {}
                () = tokio::time::sleep(look_again.unwrap_or_default()), if look_again.is_some() => {}
            }
        }
    }

    /// How long the current ingest batch should wait for more messages.
    fn delay(&self) -> Option<Duration> {
        let since = self.since?;
        let last = self.last?;
        self.delay.wait(OpenGroup {
            messages: self.messages,
            outstanding: self.outstanding(),
            open_for: since.elapsed(),
            quiet_for: last.elapsed(),
        })
    }

    /// Messages that have arrived and are not settled.
    fn outstanding(&self) -> usize {
        self.messages + self.messages_on_their_way + self.incoming.len()
    }

    /// After which time the current ingest batch may have to be handed over.
    fn look_again(&self) -> Option<Duration> {
        let late = LINGER
            .checked_sub(self.since?.elapsed())
            .filter(|left| !left.is_zero());
        let delay = if self.on_their_way < 2 {
            self.delay()
        } else {
            None
        };
        late.min(delay).or(late)
    }

    /// Takes all messages that have arrived; they have the same receipt time.
    fn take_what_is_there(&mut self, first: Incoming) {
        let now_ms = self.clock.now().wall_ms;
        self.take(first, now_ms);
        while self.held.is_none() && !self.collector.is_full() {
            match self.incoming.try_recv() {
                Ok(incoming) => self.take(incoming, now_ms),
                Err(_) => break,
            }
        }
        self.end_taking();
    }

    /// After the last message that is taken at a time.
    fn end_taking(&mut self) {
        self.done = None;
        self.last = Some(Instant::now());
    }

    fn take(&mut self, incoming: Incoming, now_ms: i64) {
        // An ingest batch is decoded with the settings it started with.
        if self.collector.is_empty()
            && let Some(decoding) = self.decoding.changed()
        {
            self.collector.renew(decoding);
        }
        let before = self.collector.received();
        let is_refused = match self.collector.take(&incoming.message, now_ms) {
            Ok(Take::Refused(detail)) => {
                let id = incoming
                    .message
                    .sender
                    .as_ref()
                    .map_or("", |grant| &*grant.id);
                rejected::note(Reject {
                    source: Source::MqttDirect,
                    name: id,
                    reason: RejectReason::NotAllowed.as_str(),
                    count: 1,
                    detail: &detail,
                    at_ms: now_ms,
                });
                true
            }
            Ok(Take::Accepted(_) | Take::Skipped) => false,
            Err(NoRoom) => {
                self.held = Some(incoming);
                return;
            }
        };
        self.since.get_or_insert_with(Instant::now);
        self.messages += 1;
        if let Some(grant) = &incoming.message.sender {
            // The connection has charged the bytes and one reading.
            grant.usage.charge(
                &grant.quota,
                (self.collector.received() - before).saturating_sub(1),
                0,
            );
            self.charge(grant, incoming.message.payload.len() as u64);
        }
        // Its bytes count in the ingest batch from now on.
        let Incoming { from, permits, .. } = incoming;
        match &mut self.done {
            Some(done) => done.merge(permits.of_all),
            None => self.done = Some(permits.of_all),
        }
        let Some((acks, number)) = from else { return };
        match self.runs.last_mut() {
            Some(run)
                if run.first + run.count == number
                    && run.is_refused == is_refused
                    && Arc::ptr_eq(&run.acks, &acks) =>
            {
                run.count += 1
            }
            _ => self.runs.push(Run {
                acks,
                first: number,
                count: 1,
                is_refused,
            }),
        }
    }

    /// Notes the sender of a message for its share of the journal.
    fn charge(&mut self, grant: &Grant, bytes: u64) {
        let account = grant.usage.account();
        match self
            .senders
            .iter_mut()
            .find(|(known, _)| known.key() == account.key())
        {
            Some((_, sum)) => *sum += bytes,
            None => self.senders.push((account.clone(), bytes)),
        }
    }

    fn hand_over_if_wanted(&mut self, queue: &mpsc::Sender<IngestBatch>, open: bool) {
        loop {
            let is_late = self.since.is_some_and(|since| since.elapsed() >= LINGER);
            let is_wanted = self.collector.is_full()
                || self.held.is_some()
                || (self.on_their_way < 2 && self.delay().is_none())
                || is_late
                || !open;
            if self.collector.is_empty() || !is_wanted {
                return;
            }
            match queue.try_reserve() {
                Ok(slot) => slot.send(self.ingest_batch()),
                Err(mpsc::error::TrySendError::Full(())) => return,
                // The next stage is closed permanently: dropped, so not delivered.
                Err(mpsc::error::TrySendError::Closed(())) => drop(self.ingest_batch()),
            }
            // The current batch is empty now, so the message fits.
            match self.held.take() {
                Some(held) => {
                    self.take(held, self.clock.now().wall_ms);
                    self.end_taking();
                }
                None => return,
            }
        }
    }

    fn ingest_batch(&mut self) -> IngestBatch {
        let CollectedBatch {
            batch,
            dead,
            rejected,
            left_out,
            out_of_range,
            renamed,
            empty,
            hints: found,
            ..
        } = self.collector.finish();
        let runs = std::mem::take(&mut self.runs);
        let messages = std::mem::take(&mut self.messages);
        self.on_their_way += 1;
        self.messages_on_their_way += messages;
        let accepted = batch.len() as u64;
        rejected::note_dead_letters(Source::MqttDirect, &dead);
        metrics::readings_received_total(Source::MqttDirect, accepted + rejected.total());
        metrics::readings_retimed_total(Source::MqttDirect, batch.retimed() as u64);
        metrics::values_left_out_total(Source::MqttDirect, left_out);
        count_out_of_range(&out_of_range);
        metrics::names_renamed_total(Source::MqttDirect, renamed);
        for (topic, hint) in &found {
            log_limit::hint(Source::MqttDirect, topic, hint);
        }
        metrics::messages_empty_total(Source::MqttDirect, empty);
        metrics::acks_pending(Source::MqttDirect, expecting(&runs) as i64);
        let since = self.since.take().unwrap_or_else(Instant::now);
        let settled = self.settled_tx.clone();
        let shown = tail::readings(Source::MqttDirect, &batch);
        let ack = Ack::with(move |outcome| {
            if outcome == AckOutcome::Delivered {
                metrics::readings_accepted_total(Source::MqttDirect, accepted);
                shown.send();
                metrics::ack_seconds(Source::MqttDirect, since.elapsed().as_secs_f64());
                rejected.0.iter().for_each(|(reason, n)| {
                    metrics::readings_rejected_total(Source::MqttDirect, *reason, *n)
                });
            }
            // If the batcher has ended, no receiver is left.
            let _ = settled.send(BatchOutcome {
                runs,
                messages,
                outcome,
            });
        });
        let mut ingest_batch = IngestBatch::new(batch, dead, ack);
        ingest_batch.senders = std::mem::take(&mut self.senders);
        ingest_batch
    }

    fn settle(
        &mut self,
        BatchOutcome {
            runs,
            messages,
            outcome,
        }: BatchOutcome,
    ) {
        self.delay.note_outstanding(self.outstanding());
        self.on_their_way -= 1;
        self.messages_on_their_way -= messages;
        metrics::acks_pending(Source::MqttDirect, -(expecting(&runs) as i64));
        for run in runs {
            // If the connection has ended, its device sends unacknowledged messages again.
            let Run {
                acks,
                first,
                count,
                is_refused,
            } = run;
            let _ = acks.send(AckResult {
                first,
                count,
                outcome,
                is_refused,
            });
        }
    }
}

/// The messages whose senders expect an acknowledgement.
fn expecting(runs: &[Run]) -> u64 {
    runs.iter().map(|run| run.count).sum()
}
