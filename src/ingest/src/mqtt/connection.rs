//! One connection to a broker, from CONNACK to its end.

use std::collections::BTreeMap;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::backoff::SHORT;
use super::broker::{Broker, Pending};
use super::client::BATCHES_MAX;
use super::collect::Take;
use super::link::{Event, Grant, Link, LinkError, Message, Sender};
use super::pace::Pace;
use super::presence::{Presence, Required};
use super::subscribe::Subscriptions;
use super::target::SetupError;
use super::window::cause;
use super::{losses, reason};
use crate::count_out_of_range;
use decode::RejectReason;
use decode::sparkplug::Rebirth;
use journal::admission::IngestBatch;
use journal::commit_delay::OpenGroup;
use model::Now;
use model::ack::{Ack, AckOutcome};
use telemetry::log_limit::CountedLine;
use telemetry::metrics::{self, Source};
use telemetry::{log_limit, rejected, tail};

/// A connection that lasted this long, or acknowledged anything, was useful: failed attempts before
/// it no longer count.
const USEFUL_AFTER: Duration = Duration::from_secs(30);
/// Wait before a subscription that was refused, or not answered, is requested again.
const SUBSCRIBE_AGAIN_AFTER: Duration = Duration::from_secs(30);
/// Interval of window samples while nothing happens.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum CloseReason {
    #[error("stopping")]
    Stopped,
    /// It was never opened: the configuration is wrong.
    #[error(transparent)]
    Setup(SetupError),
    /// The network or the broker closed it.
    #[error(transparent)]
    Lost(LinkError),
    /// A message was not delivered or the queue was full: the broker has to send it again.
    #[error("messages not accepted; the broker sends them again")]
    Blocked,
    /// Sparkplug nodes would ignore our STATE: see [`super::presence`].
    #[error("a STATE of this Sparkplug host is newer than the connection")]
    OldState,
}

pub(super) struct Connection<'a> {
    broker: &'a mut Broker,
    sender: Sender,
    presence: Option<Presence>,
    has_old_state: bool,
    queue: mpsc::Sender<IngestBatch>,
    subscriptions: Subscriptions,
    /// When those that are not granted are requested again.
    ask_again: Option<Instant>,
    /// What is wrong with this connection: with a filter, or with the connection itself (`""`).
    problems: BTreeMap<String, String>,
    /// The messages of the collected batch; when its first one came, and its last.
    collected: usize,
    since: Option<Instant>,
    last: Option<Instant>,
    /// Notified when the submit task takes an ingest batch off the queue.
    taken: Arc<Notify>,
    opened: Option<Instant>,
    acknowledged: bool,
    stopping: bool,
    /// QoS 0 messages rejected because the queue was full, not yet counted in the metrics.
    crowded_out: u64,
    crowded_out_log: CountedLine,
    ticks: tokio::time::Interval,
    pace: Pace,
}

impl<'a> Connection<'a> {
    /// A connection that [`Connection::serve`] opens; `queue` leads to the submit task.
    pub(super) fn new(
        broker: &'a mut Broker,
        sender: Sender,
        presence: Option<Presence>,
        queue: mpsc::Sender<IngestBatch>,
        taken: Arc<Notify>,
    ) -> Connection<'a> {
        Connection {
            broker,
            sender,
            presence,
            has_old_state: false,
            queue,
            subscriptions: Subscriptions::default(),
            ask_again: None,
            problems: BTreeMap::new(),
            collected: 0,
            since: None,
            last: None,
            taken,
            opened: None,
            acknowledged: false,
            stopping: false,
            crowded_out: 0,
            crowded_out_log: CountedLine::default(),
            ticks: tokio::time::interval(LOOK_EVERY),
            pace: Pace::default(),
        }
    }

    /// How long the session has lasted; `None`: the broker has not accepted it.
    pub(super) fn lasted(&self) -> Option<Duration> {
        self.opened.map(|at| at.elapsed())
    }

    /// Whether the connection was useful; resets the backoff.
    pub(super) fn was_useful(&self) -> bool {
        self.acknowledged || self.lasted().is_some_and(|lasted| lasted >= USEFUL_AFTER)
    }

    /// Serves the connection until it ends.
    pub(super) async fn serve(&mut self, link: &mut Link) -> CloseReason {
        loop {
            let event = {
                let mut next = pin!(link.next());
                match now(next.as_mut()).await {
                    Some(event) => event,
                    None => match self.idle(next).await {
                        Ok(event) => event,
                        Err(end) => return end,
                    },
                }
            };
            match event {
                Ok(Event::Message(message)) => self.take(message),
                Ok(Event::Connected { session_present }) => self.connected(session_present),
                Ok(Event::Subscribed(grants)) => self.subscribed(&grants),
                Ok(Event::Published) => self.publish(Presence::published),
                Err(error) => return CloseReason::Lost(error),
            }
            if let Some(end) = self.acknowledge() {
                return end;
            }
        }
    }

    /// No event is immediately available: hands over the collected batch unless more messages are
    /// expected soon, and waits for the next event, settled batches, a timer or shutdown. `next` is
    /// not dropped before it is ready (see [`super::link`]) unless the connection ends.
    async fn idle(
        &mut self,
        mut next: Pin<&mut impl Future<Output = Result<Event, LinkError>>>,
    ) -> Result<Result<Event, LinkError>, CloseReason> {
        self.count_crowded_out();
        loop {
            self.hand_over_if_wanted();
            if let Some(end) = self.acknowledge() {
                return Err(end);
            }
            // Here, and when a batch is handed over: for each message it would be a thirtieth of the
            // work.
            self.broker.show_pending();
            self.subscribe_again();
            let now = self.broker.clock.now();
            self.look(now);
            let delay = self.delay();
            tokio::select! {
                biased;
                event = next.as_mut() => return Ok(event),
                Some((group, outcome)) = self.broker.settled.recv() => self.broker.ack_tracker.settle(group, outcome),
                () = self.taken.notified() => {}
                () = tokio::time::sleep(delay.unwrap_or_default()), if delay.is_some() => {}
                _ = self.ticks.tick() => {}
                () = self.broker.stop.cancelled(), if !self.stopping => self.stop(),
                () = self.broker.drained.cancelled(), if self.stopping => return Err(CloseReason::Stopped),
            }
        }
    }

    fn connected(&mut self, session_present: bool) {
        let broker = &mut *self.broker;
        self.opened = Some(Instant::now());
        broker.connections += 1;
        if broker.connections > 1 {
            metrics::mqtt_reconnects_total(&broker.name, 1);
        }
        // While sessions end soon, each loss has its line, or is counted in one.
        if broker.backoff.short_sessions() < losses::MANY {
            tracing::info!(broker = %broker.name, session_present, "MQTT connected");
        }
        broker.collector.connected(session_present);
        if !session_present {
            broker.status.subscribed = false;
        }
        broker.status.connected = true;
        self.publish(|presence| presence.birth(false));
        let broker = &mut *self.broker;
        // Also if the session is present. It may belong to another configuration, or lack some
        // subscriptions: mosquitto 2.0 forgets shared ones at its restart, and if it is killed, all
        // that it has not saved. Then publishers would get acknowledgements for messages that no
        // client receives.
        self.subscriptions = Subscriptions::new(&broker.config.subscriptions);
        self.subscribe();
        self.report();
    }

    /// Publishes the status with the problems of this connection.
    fn report(&mut self) {
        self.broker.report_open(&self.problems);
    }

    /// Requests the next subscriptions.
    fn subscribe(&mut self) {
        let Some(filters) = self.subscriptions.next() else {
            return;
        };
        self.ask_again = Some(Instant::now() + SUBSCRIBE_AGAIN_AFTER);
        if self.sender.subscribe(filters).is_err() {
            let problem = "a subscription's filter is not a valid topic filter";
            self.problems.insert(String::new(), problem.into());
            tracing::error!(broker = %self.broker.name, "invalid topic filter; it is not subscribed");
        }
    }

    /// Requests subscriptions again that the broker has refused or not answered: its access rules
    /// may have changed.
    fn subscribe_again(&mut self) {
        if self.ask_again.is_none_or(|at| at > Instant::now()) {
            return;
        }
        if self.subscriptions.is_unanswered() {
            let problem = "the broker does not answer SUBSCRIBE";
            self.problems
                .entry(String::new())
                .or_insert_with(|| problem.into());
            self.report();
        }
        self.subscriptions.again();
        self.subscribe();
    }

    fn subscribed(&mut self, grants: &[Grant]) {
        self.problems.remove("");
        for (wanted, grant) in self.subscriptions.answered(grants) {
            let broker = &mut *self.broker;
            let filter = wanted.filter.clone();
            let problem = match grant {
                Grant::Qos(qos) if qos >= wanted.qos_asked() => {
                    self.problems.remove(&filter);
                    continue;
                }
                Grant::Qos(qos) => {
                    tracing::warn!(broker = %broker.name, filter, qos, "lower QoS granted; \
                        messages can be lost");
                    format!("{filter}: only QoS {qos} granted")
                }
                Grant::Refused(code) => {
                    let reason = reason::refused(code);
                    tracing::error!(broker = %broker.name, filter, reason, "subscription refused");
                    broker.status.subscribed = false;
                    format!("{filter}: {reason}")
                }
            };
            self.problems.insert(filter, problem);
        }
        self.subscribe();
        if self.subscriptions.is_granted() {
            self.broker.status.subscribed = true;
            self.ask_again = None;
            self.publish(|presence| presence.birth(true));
        }
        self.report();
    }

    /// Publishes what `choose` returns.
    fn publish(&mut self, choose: impl FnOnce(&mut Presence) -> Option<&str>) {
        let Some(presence) = &mut self.presence else {
            return;
        };
        let topic = presence.topic.clone();
        if let Some(state) = choose(presence) {
            // It fails only if the link has ended; then the link's next event is the error.
            let _ = self.sender.publish_state(&topic, state);
        }
    }

    /// Whether a message is about the service itself, and needs nothing else.
    fn take_own_state(&mut self, message: &Message) -> bool {
        let (Some(presence), Some(host)) = (&mut self.presence, &mut self.broker.host) else {
            return false;
        };
        if message.topic != presence.topic || self.stopping {
            return false;
        }
        match presence.take(host, &message.payload, message.is_retained) {
            Required::Nothing => {}
            Required::Birth => self.publish(|presence| Some(presence.again())),
            Required::Reconnect => self.has_old_state = true,
        }
        message.receipt.is_none()
    }

    /// Accepts a message, or refuses it if there is no room or the service is stopping.
    fn take(&mut self, message: Message) {
        if self.presence.is_some() && self.take_own_state(&message) {
            return;
        }
        let now = self.broker.clock.now();
        self.look(now);
        if let Some(is_busy) = self.pace.message(now.mono_ms) {
            self.sender.pause_between_reads(is_busy);
        }
        let receipt = message.receipt;
        let refuse = match receipt {
            Some(_) => self.stopping || self.broker.ack_tracker.is_refusing(),
            None => self.stopping || self.queue.capacity() < BATCHES_MAX / 2,
        };
        let take = if refuse {
            None
        } else {
            self.gather(&message, now)
        };
        self.ask_for_births();
        let Some(take) = take else {
            match receipt {
                Some(_) => self.refuse(),
                None => self.crowded_out += 1,
            }
            return;
        };
        let note = match take {
            Take::Accepted(note) => note,
            // A message of a broker has no sender that could be refused.
            Take::Skipped | Take::Refused(_) => None,
        };
        match (receipt, note) {
            (Some(receipt), note) => self.broker.ack_tracker.receive(Pending {
                receipt,
                note,
                since_ms: now.mono_ms,
            }),
            // QoS 0: the broker waits for no acknowledgement.
            (None, Some(note)) => self.broker.collector.remember(note),
            (None, None) => {}
        }
        if self.broker.collector.is_full() {
            self.hand_over();
        }
    }

    /// Sends Sparkplug B nodes the rebirth commands that their messages require.
    fn ask_for_births(&mut self) {
        let broker = &mut *self.broker;
        for Rebirth {
            topic,
            payload,
            why,
        } in broker.collector.rebirths()
        {
            tracing::info!(broker = %broker.name, topic, why, "requesting a rebirth from a \
                Sparkplug B node");
            metrics::sparkplug_rebirths_total(&broker.name, 1);
            // It fails only if the link has ended. A rebirth that is still missing is requested on
            // the next connection.
            let _ = self.sender.publish_command(&topic, &payload);
        }
    }

    /// Samples the window, updates its metrics, and logs the cause if messages wait too long.
    fn look(&mut self, now: Now) {
        let broker = &mut *self.broker;
        broker.births.keep(broker.collector.births(), now.mono_ms);
        let oldest_ms = broker.ack_tracker.oldest().map(|pending| pending.since_ms);
        let Some(sample) =
            broker
                .window
                .observe(broker.ack_tracker.pending(), oldest_ms, now.mono_ms)
        else {
            return;
        };
        if broker.session_problem.is_some() && self.opened.is_some_and(|at| at.elapsed() >= SHORT) {
            tracing::info!(broker = %broker.name, "MQTT connection lasts, after short ones");
            broker.session_problem = None;
            broker.report_open(&self.problems);
        }
        metrics::mqtt_unacked(&broker.name, sample.pending as u64);
        metrics::mqtt_oldest_unacked_seconds(&broker.name, sample.oldest_seconds);
        metrics::mqtt_window_full_seconds_total(&broker.name, sample.full_seconds);
        if sample.log_due {
            let cause = cause(broker.admission.check(), broker.ack, sample.oldest_seconds);
            let unacked = sample.pending;
            let oldest_seconds = sample.oldest_seconds;
            tracing::warn!(broker = %broker.name, unacked, oldest_seconds, cause, "acknowledgements are slow");
        }
    }

    /// Refuses a message; the broker sends it again on the next connection.
    fn refuse(&mut self) {
        let broker = &mut *self.broker;
        if !self.stopping && !broker.ack_tracker.is_refusing() {
            tracing::warn!(broker = %broker.name, "queue full; refusing messages until reconnected");
            let problem = "queue full; messages are refused until reconnected";
            self.problems.insert(String::new(), problem.into());
            self.report();
        }
        self.broker.ack_tracker.refuse();
    }

    fn gather(&mut self, message: &Message, now: Now) -> Option<Take> {
        // An ingest batch is decoded with the settings it started with.
        if self.broker.collector.is_empty()
            && let Some(decoding) = self.broker.decoding.changed()
        {
            self.broker.collector.renew(decoding);
        }
        if self.broker.collector.is_full() {
            self.hand_over();
            if self.broker.collector.is_full() {
                return None;
            }
        }
        let take = match self.broker.collector.take(message, now.wall_ms) {
            Ok(take) => take,
            Err(_) => {
                self.hand_over();
                self.broker.collector.take(message, now.wall_ms).ok()?
            }
        };
        let now = Instant::now();
        self.since.get_or_insert(now);
        self.last = Some(now);
        self.collected += 1;
        Some(take)
    }

    /// How long the collected batch should wait for more messages.
    fn delay(&self) -> Option<Duration> {
        let since = self.since?;
        let last = self.last?;
        self.broker.delay.wait(OpenGroup {
            messages: self.collected,
            outstanding: self.broker.ack_tracker.pending().max(self.collected),
            open_for: since.elapsed(),
            quiet_for: last.elapsed(),
        })
    }

    /// Hands over the collected batch, unless more messages are expected soon ([`CommitDelay`]), or
    /// the submit task is busy: then larger batches are better.
    ///
    /// [`CommitDelay`]: journal::commit_delay::CommitDelay
    fn hand_over_if_wanted(&mut self) {
        if !self.stopping && !self.broker.collector.is_full() && self.delay().is_some() {
            return;
        }
        // One batch in progress and one queued keep the submit task busy.
        let is_busy = self.queue.capacity() + 2 <= BATCHES_MAX;
        if self.stopping || !is_busy || self.broker.collector.is_full() {
            self.hand_over();
        }
    }

    /// Queues the collected messages as one ingest batch; keeps them if the queue is full.
    fn hand_over(&mut self) {
        let broker = &mut *self.broker;
        if broker.stop.is_cancelled() {
            // Checked here too, because under load there may be no idle moment.
            self.stopping = true;
        }
        if broker.collector.is_empty() {
            return;
        }
        let Ok(slot) = self.queue.try_reserve() else {
            return;
        };
        let gathered = broker.collector.finish();
        (self.collected, self.since) = (0, None);
        let group = broker.ack_tracker.close();
        let accepted = gathered.batch.len() as u64;
        let rejected = gathered.rejected;
        rejected::note_dead_letters(Source::Mqtt, &gathered.dead);
        metrics::readings_received_total(Source::Mqtt, accepted + rejected.total());
        metrics::readings_retimed_total(Source::Mqtt, gathered.batch.retimed() as u64);
        metrics::values_left_out_total(Source::Mqtt, gathered.left_out);
        count_out_of_range(&gathered.out_of_range);
        metrics::names_renamed_total(Source::Mqtt, gathered.renamed);
        for (topic, hint) in &gathered.hints {
            log_limit::hint(Source::Mqtt, topic, hint);
        }
        metrics::messages_empty_total(Source::Mqtt, gathered.empty);
        if gathered.skipped > 0 {
            metrics::mqtt_left_out_total(&broker.name, gathered.skipped);
        }
        let settled = broker.settled_tx.clone();
        let since = Instant::now();
        let shown = tail::readings(Source::Mqtt, &gathered.batch);
        let ack = Ack::with(move |outcome| {
            if outcome == AckOutcome::Delivered {
                metrics::readings_accepted_total(Source::Mqtt, accepted);
                shown.send();
                metrics::ack_seconds(Source::Mqtt, since.elapsed().as_secs_f64());
                rejected.0.iter().for_each(|(reason, n)| {
                    metrics::readings_rejected_total(Source::Mqtt, *reason, *n)
                });
            }
            // If the broker's task has ended, no receiver is left.
            let _ = settled.send((group, outcome));
        });
        slot.send(IngestBatch::new(gathered.batch, gathered.dead, ack));
        broker.show_pending();
    }

    /// Acknowledges messages that have become safe, and checks whether the connection must end.
    fn acknowledge(&mut self) -> Option<CloseReason> {
        let broker = &mut *self.broker;
        while let Ok((group, outcome)) = broker.settled.try_recv() {
            broker.ack_tracker.settle(group, outcome);
        }
        let outstanding = broker.ack_tracker.pending();
        let mut is_first = true;
        for Pending { receipt, note, .. } in broker.ack_tracker.release() {
            if std::mem::take(&mut is_first) {
                broker.delay.note_outstanding(outstanding);
            }
            self.acknowledged = true;
            // It fails only if the link has ended; then the link's next event is the error.
            let _ = self.sender.ack(receipt);
            if let Some(note) = note {
                broker.collector.remember(note);
            }
        }
        match (self.stopping, broker.ack_tracker.blocked()) {
            (true, true) => Some(CloseReason::Stopped),
            (true, false) => (broker.ack_tracker.is_idle() && broker.collector.is_empty())
                .then_some(CloseReason::Stopped),
            (false, true) => Some(CloseReason::Blocked),
            (false, false) => self.has_old_state.then_some(CloseReason::OldState),
        }
    }

    fn stop(&mut self) {
        self.stopping = true;
    }

    fn count_crowded_out(&mut self) {
        let n = std::mem::take(&mut self.crowded_out);
        if n == 0 || self.stopping {
            return;
        }
        metrics::readings_received_total(Source::Mqtt, n);
        metrics::readings_rejected_total(Source::Mqtt, RejectReason::QueueFull, n);
        if let Some(messages) = self.crowded_out_log.add(n) {
            let broker = &self.broker.name;
            tracing::warn!(%broker, messages, "dropping QoS 0 messages: queue full");
        }
    }

    /// Ends the connection, with DISCONNECT if it is still open.
    pub(super) async fn close(mut self, link: Link, end: &CloseReason) {
        self.count_crowded_out();
        let is_open = match end {
            CloseReason::Stopped | CloseReason::Blocked | CloseReason::OldState => true,
            CloseReason::Setup(_) | CloseReason::Lost(_) => false,
        };
        if self.opened.is_some() && is_open {
            let now_ms = self.broker.clock.now().wall_ms;
            let presence = self.presence.as_ref();
            let death = presence.map(|presence| (&*presence.topic, presence.death(now_ms)));
            let death = death.as_ref().map(|(topic, state)| (*topic, &**state));
            self.sender.close(link, death).await;
        }
    }
}

/// Polls once: the output of a future if it is ready.
async fn now<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
    std::future::poll_fn(|cx| {
        Poll::Ready(match future.as_mut().poll(cx) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    #[tokio::test]
    async fn polling_once_returns_only_an_output_that_is_ready() {
        assert_eq!(now(pin!(async { 1 })).await, Some(1));
        assert_eq!(now(pin!(std::future::pending::<()>())).await, None);
    }
}
