//! Turns messages into ingest batches: finds the subscription of each message, decodes it, and
//! collects readings and dead letters until they are handed over. Pure: no IO, no clock, no metric.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use chrono_tz::Tz;

use super::link::Message;
use super::retained::{Accepted, Note};
use super::target::SetupError;
use config::{Decoding, Limits, Retained, Subscription};
use decode::sparkplug::{Rebirth, Sparkplug};
use decode::topic::{TopicTemplate, filter_matches};
use decode::{
    Context, Decoder, Formats, HINTS_MAX, OutOfRange, RejectReason, Rejects, Renamed, TsUnit,
    sparkplug,
};
use model::batch::{BYTES_MAX, NAMES_MAX};
use model::{BatchBuilder, Checks, DeadLetter, ReadingBatch};
use net::access::Grant;

/// Maximum messages in one ingest batch.
pub(crate) const MESSAGES_MAX: usize = 512;
/// Bytes in one ingest batch; the message that exceeds it is the last.
pub const BATCH_BYTES_MAX: usize = 256 * 1024;

/// A subscription with its parsed template and resolved decoder.
#[derive(Debug)]
struct Route {
    filter: String,
    topic: String,
    template: TopicTemplate,
    how: PayloadDecoder,
    format_name: String,
    /// The subscription's unit of times, or the usual one of the format.
    ts_unit: Option<TsUnit>,
    ts_unit_own: Option<TsUnit>,
    zone: Option<Tz>,
    /// Limits with the subscription's time zone, if it has one.
    limits: Option<Limits>,
    /// A shared subscription receives no retained messages (MQTT 5 §4.8.2), so nothing has to be
    /// remembered.
    is_shared: bool,
    retained: Retained,
    user_property_tags: Vec<String>,
}

impl Route {
    /// Updates the fields that depend on the decoder settings.
    fn renew(&mut self, formats: &Formats, decoding: &Decoding) {
        self.how = PayloadDecoder::find(&self.format_name, formats);
        self.ts_unit = self.ts_unit_own.or(self.how.ts_unit_usual());
        self.limits = self.zone.map(|zone| Limits {
            zone: Some(zone),
            ..decoding.limits.clone()
        });
    }
}

/// How the messages of a subscription are decoded.
#[derive(Debug)]
enum PayloadDecoder {
    /// Each message separately.
    Alone(Decoder),
    /// With the state of earlier messages (Sparkplug B).
    Sparkplug,
    Unknown,
}

impl PayloadDecoder {
    fn find(name: &str, formats: &Formats) -> PayloadDecoder {
        match formats.get(name) {
            _ if name == sparkplug::NAME => PayloadDecoder::Sparkplug,
            Ok(decoder) => PayloadDecoder::Alone(decoder),
            Err(_) => PayloadDecoder::Unknown,
        }
    }

    fn ts_unit_usual(&self) -> Option<TsUnit> {
        match self {
            PayloadDecoder::Alone(decoder) => decoder.ts_unit_usual(),
            PayloadDecoder::Sparkplug | PayloadDecoder::Unknown => None,
        }
    }
}

/// Settings for all messages of a collector.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// The `source` of its dead letters.
    pub source: &'static str,
    pub(crate) payload_bytes_max: usize,
    /// The topic of our own status. Its messages are not readings, even if a subscription matches
    /// them.
    pub status_topic: Option<String>,
}

/// The result for a received message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Take {
    /// Collected, with the note to remember once it is acknowledged.
    Accepted(Option<Note>),
    /// To be acknowledged only: an unwanted retained message, our own status, or a message without
    /// a payload.
    Skipped,
    /// To be refused: its sender may not write any of its readings. The text says why.
    Refused(String),
}

/// Rejects per reason. A list, because there are few reasons.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Rejected(pub Vec<(RejectReason, u64)>);

impl Rejected {
    fn add(&mut self, rejects: &Rejects) {
        for &(reason, n) in rejects.by_reason() {
            match self.0.iter_mut().find(|(r, _)| *r == reason) {
                Some((_, sum)) => *sum += n as u64,
                None => self.0.push((reason, n as u64)),
            }
        }
    }

    pub(crate) fn total(&self) -> u64 {
        self.0.iter().map(|(_, n)| n).sum()
    }
}

/// The content of one ingest batch.
#[derive(Debug)]
pub(crate) struct CollectedBatch {
    pub batch: ReadingBatch,
    /// The messages with a reject, each once.
    pub dead: Vec<DeadLetter>,
    pub rejected: Rejected,
    /// Number of skipped messages.
    pub skipped: u64,
    /// Number of messages without a payload.
    pub empty: u64,
    /// Number of members that are not stored.
    pub left_out: u64,
    /// Values outside of their ranges.
    pub out_of_range: OutOfRange,
    /// Number of names that are stored differently.
    pub renamed: u64,
    /// The first hints of the decoders, each with the topic of its message.
    pub hints: Vec<(String, String)>,
}

/// The message does not fit into the current batch: hand that over first.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoRoom;

#[derive(Debug)]
pub(crate) struct Collector {
    routes: Vec<Route>,
    decoding: Arc<Decoding>,
    settings: Settings,
    taken: Accepted,
    sparkplug: Sparkplug,
    checks: Checks,
    readings_bytes_max: usize,
    /// Sparkplug B commands to publish; at most one per message.
    rebirths: Vec<Rebirth>,
    batch: BatchBuilder,
    dead: Vec<DeadLetter>,
    dead_bytes: usize,
    rejected: Rejected,
    messages: usize,
    skipped: u64,
    empty: u64,
    left_out: u64,
    out_of_range: OutOfRange,
    renamed: Renamed,
    hints: Vec<(String, String)>,
    /// Rejects of the current message; kept to reuse the allocation.
    rejects: Rejects,
}

impl Collector {
    /// A collector for a broker's subscriptions.
    ///
    /// # Errors
    /// A topic template cannot be parsed.
    pub(crate) fn new(
        subscriptions: &[Subscription],
        settings: Settings,
        decoding: Arc<Decoding>,
    ) -> Result<Collector, SetupError> {
        let formats = Formats::new(&decoding);
        let route = |s: &Subscription| {
            let mut route = Route {
                filter: s.filter.clone(),
                topic: s.topic.clone(),
                template: TopicTemplate::parse(&s.topic).map_err(|error| {
                    SetupError::TopicTemplate {
                        filter: s.filter.clone(),
                        error,
                    }
                })?,
                format_name: s.format.clone(),
                ts_unit: None,
                ts_unit_own: s.ts_unit.as_deref().and_then(|unit| unit.parse().ok()),
                zone: s.zone,
                how: PayloadDecoder::Unknown,
                limits: None,
                is_shared: s.is_shared(),
                retained: s.retained,
                user_property_tags: s.user_property_tags.clone(),
            };
            route.renew(&formats, &decoding);
            Ok(route)
        };
        Ok(Collector {
            routes: subscriptions
                .iter()
                .map(route)
                .collect::<Result<_, SetupError>>()?,
            settings,
            taken: Accepted::default(),
            sparkplug: Sparkplug::new(),
            checks: Checks::default(),
            readings_bytes_max: BYTES_MAX,
            rebirths: vec![],
            batch: BatchBuilder::new(decoding.limits.fields_max),
            decoding,
            dead: vec![],
            dead_bytes: 0,
            rejected: Rejected::default(),
            messages: 0,
            skipped: 0,
            empty: 0,
            left_out: 0,
            out_of_range: OutOfRange::default(),
            renamed: Renamed::default(),
            hints: vec![],
            rejects: Rejects::new(),
        })
    }

    /// Shares the checks of others.
    #[must_use]
    pub(crate) fn checking(self, checks: Option<&Checks>) -> Collector {
        let checks = checks.cloned().unwrap_or_default();
        Collector { checks, ..self }
    }

    /// Adds a limit on the bytes of the readings in one ingest batch: those of a message that exceed
    /// it alone are rejected.
    #[must_use]
    pub(crate) fn limiting_readings(mut self, bytes_max: usize) -> Collector {
        self.readings_bytes_max = bytes_max;
        self.batch.limit_bytes(bytes_max);
        self
    }

    /// Decodes messages with these settings from now on. Call only if nothing is collected. The
    /// memory of earlier messages stays.
    pub(crate) fn renew(&mut self, decoding: Arc<Decoding>) {
        assert!(self.is_empty(), "new settings in the middle of a batch");
        let formats = Formats::new(&decoding);
        self.routes
            .iter_mut()
            .for_each(|route| route.renew(&formats, &decoding));
        self.batch = BatchBuilder::new(decoding.limits.fields_max);
        self.batch.limit_bytes(self.readings_bytes_max);
        self.decoding = decoding;
    }

    /// Whether nothing is collected.
    pub(crate) fn is_empty(&self) -> bool {
        self.messages == 0
    }

    /// Readings in the batch, and those that were rejected since the one before.
    pub(crate) fn received(&self) -> usize {
        self.batch.len() + usize::try_from(self.rejected.total()).unwrap_or(usize::MAX)
    }

    /// Whether the batch should be handed over before more is added.
    pub(crate) fn is_full(&self) -> bool {
        self.messages >= MESSAGES_MAX
            || self.batch.memory_bytes() + self.dead_bytes >= BATCH_BYTES_MAX
            || self.batch.names_len() >= NAMES_MAX / 2
    }

    /// Returns the collected batch and starts a new one.
    pub(crate) fn finish(&mut self) -> CollectedBatch {
        self.messages = 0;
        self.dead_bytes = 0;
        CollectedBatch {
            batch: self.batch.finish(),
            dead: std::mem::take(&mut self.dead),
            rejected: std::mem::take(&mut self.rejected),
            skipped: std::mem::take(&mut self.skipped),
            empty: std::mem::take(&mut self.empty),
            left_out: std::mem::take(&mut self.left_out),
            out_of_range: std::mem::take(&mut self.out_of_range),
            renamed: self.renamed.take().len() as u64,
            hints: std::mem::take(&mut self.hints),
        }
    }

    /// A connection is open. `session_present`: the broker kept the messages that arrived
    /// meanwhile.
    pub(crate) fn connected(&mut self, session_present: bool) {
        self.sparkplug.reconnected();
        if !session_present {
            self.sparkplug.forget();
        }
    }

    /// Takes over births that were kept. Call before the first message.
    ///
    /// # Errors
    /// The bytes are damaged.
    pub(crate) fn restore_births(&mut self, bytes: &[u8]) -> Result<(), sparkplug::Damaged> {
        self.sparkplug = Sparkplug::from_bytes(bytes)?;
        Ok(())
    }

    /// The births.
    pub(crate) fn births(&self) -> &Sparkplug {
        &self.sparkplug
    }

    /// The commands that the messages so far require. They are published now, or never.
    pub(crate) fn rebirths(&mut self) -> impl Iterator<Item = Rebirth> {
        self.rebirths.drain(..)
    }

    /// Decodes one message that was received before and kept: a dead letter, which has no user
    /// properties. It goes through the same code as a new one, in a separate batch. `of_device`: its
    /// sender had authenticated.
    pub(crate) fn decode_again(
        &mut self,
        topic: &str,
        payload: &[u8],
        received_at_ms: i64,
        of_device: bool,
    ) -> CollectedBatch {
        let topic = topic.to_owned().into();
        let payload = payload.to_owned().into();
        let message = Message {
            topic,
            payload,
            is_dup: true,
            is_sender_forgotten: of_device,
            ..Message::default()
        };
        // The collector is empty, so there is room for it.
        let _ = self.take(&message, received_at_ms);
        // The message is old: it must not cause a rebirth command to a Sparkplug B node.
        self.rebirths.clear();
        self.finish()
    }

    /// Remembers an acknowledged message.
    pub(crate) fn remember(&mut self, note: Note) {
        self.taken.remember(note);
    }

    /// Adds a message: its readings and, if anything in it is rejected, a dead letter of the whole
    /// message with the first reason. Or skips it, because the broker sent it as a retained
    /// message.
    ///
    /// # Errors
    /// Its field names or its readings do not fit into the current batch; nothing of the message was
    /// added. Cannot happen for an empty batch.
    pub(crate) fn take(&mut self, message: &Message, received_at_ms: i64) -> Result<Take, NoRoom> {
        let route = std::str::from_utf8(&message.topic).map(|topic| self.route(topic));
        let note = match route.map(|route| route.map(|at| &self.routes[at])) {
            Ok(Some(route)) if route.retained == Retained::Once && !route.is_shared => {
                Some(self.taken.note(&message.topic, &message.payload))
            }
            _ => None,
        };
        if self.is_left_out(message, route.ok().flatten(), note) {
            // Counted, so that an ingest batch exists that acknowledges it.
            self.messages += 1;
            self.skipped += 1;
            return Ok(Take::Skipped);
        }
        // A device that signs off, or a retained message that is cleared (MQTT 5 §3.3.1.3): not a
        // reading, and no error.
        if message.payload.is_empty() && message.refused.is_none() {
            self.messages += 1;
            self.empty += 1;
            return Ok(Take::Skipped);
        }
        let refused = self.gather(message, route, received_at_ms)?;
        Ok(refused.map_or(Take::Accepted(note), Take::Refused))
    }

    fn route(&self, topic: &str) -> Option<usize> {
        self.routes
            .iter()
            .position(|route| filter_matches(&route.filter, topic))
    }

    fn is_left_out(&self, message: &Message, route: Option<usize>, note: Option<Note>) -> bool {
        if self
            .settings
            .status_topic
            .as_ref()
            .is_some_and(|own| own.as_bytes() == message.topic)
        {
            return true;
        }
        // A redelivered message was not acknowledged.
        if !message.is_retained || message.is_dup {
            return false;
        }
        match route.map(|at| self.routes[at].retained) {
            Some(Retained::Never) => true,
            Some(Retained::Once) => note.is_some_and(|note| self.taken.contains(note)),
            Some(Retained::Always) | None => false,
        }
    }

    /// Notes what the readings of the message do not have, and hints about it.
    fn note_remainder(&mut self, message: &Message) {
        self.left_out += self.rejects.left_out().total() as u64;
        self.out_of_range.append(self.rejects.out_of_range());
        for hint in self.rejects.hints() {
            let is_known = self.hints.iter().any(|(_, known)| known == hint);
            if !is_known && self.hints.len() < HINTS_MAX {
                let topic = String::from_utf8_lossy(&message.topic).into_owned();
                self.hints.push((topic, hint.to_string()));
            }
        }
    }

    /// Returns why the message is to be refused, if it is.
    fn gather(
        &mut self,
        message: &Message,
        route: Result<Option<usize>, std::str::Utf8Error>,
        received_at_ms: i64,
    ) -> Result<Option<String>, NoRoom> {
        if self.is_empty() {
            let Decoding { limits, ranges, .. } = &*self.decoding;
            let fields_max = limits.bucket_fields_max;
            let out = &mut self.batch;
            self.checks.apply(out, fields_max, ranges, received_at_ms);
        }
        let mark = self.batch.mark();
        let before = self.batch.len();
        self.rejects.clear();
        let sender_tag = self.decoding.sender_tag.as_ref();
        if message.is_sender_forgotten {
            Grant::apply_forgotten(sender_tag, &mut self.batch);
        } else {
            Grant::apply(message.sender.as_ref(), sender_tag, false, &mut self.batch);
        }
        self.decode(message, route, received_at_ms);
        self.rejects.note_ranges(&mut self.batch);
        let is_overfull = self.batch.take_is_overfull();
        if self.rejects.is_empty() {
            self.messages += 1;
            self.note_remainder(message);
            return Ok(None);
        }
        let is_crowded = self
            .rejects
            .by_reason()
            .iter()
            .any(|(reason, _)| *reason == RejectReason::TooManyFieldNames);
        if (is_crowded || is_overfull) && self.messages > 0 {
            self.batch.rollback(mark);
            return Err(NoRoom);
        }
        self.messages += 1;
        self.note_remainder(message);
        self.rejected.add(&self.rejects);
        let is_refused =
            self.batch.len() == before && self.rejects.are_all(RejectReason::NotAllowed);
        if let Some((reason, detail)) = self.rejects.foremost() {
            if is_refused && message.can_refuse {
                return Ok(Some(detail.to_owned()));
            }
            let dead_letter = dead_letter(
                self.settings.source,
                message,
                received_at_ms,
                reason,
                detail,
            );
            self.dead_bytes +=
                dead_letter.payload.len() + dead_letter.topic.len() + dead_letter.detail.len();
            self.dead.push(dead_letter);
        }
        Ok(None)
    }

    fn decode(
        &mut self,
        message: &Message,
        route: Result<Option<usize>, std::str::Utf8Error>,
        received_at_ms: i64,
    ) {
        let Collector {
            routes,
            decoding,
            batch,
            rejects,
            settings,
            sparkplug,
            rebirths,
            renamed,
            ..
        } = self;
        let payload_bytes_max = settings.payload_bytes_max;
        if let Some(refused) = &message.refused {
            return rejects.push(0, refused.reason, refused.detail.clone());
        }
        let (Ok(route), Ok(topic)) = (route, std::str::from_utf8(&message.topic)) else {
            return rejects.push(0, RejectReason::InvalidUtf8, "the topic is not valid UTF-8");
        };
        if message.payload.len() > payload_bytes_max {
            let n = message.payload.len();
            let detail =
                format!("the payload of {n} bytes exceeds packet_max_bytes = {payload_bytes_max}");
            return rejects.push(0, RejectReason::PayloadTooLarge, detail);
        }
        let Some(route) = route.map(|at| &routes[at]) else {
            return rejects.push(
                0,
                RejectReason::NoSubscription,
                "no configured subscription matches this topic",
            );
        };
        if let PayloadDecoder::Unknown = route.how {
            let detail = format!("unknown format `{}`", route.format_name);
            return rejects.push(0, RejectReason::UnknownFormat, detail);
        }
        let Some(mut captured) = route.template.capture(topic) else {
            let detail = format!("the topic does not match the template `{}`", route.topic);
            return rejects.push(0, RejectReason::TopicMismatch, detail);
        };
        for name in &route.user_property_tags {
            let given = message
                .properties
                .iter()
                .find(|(key, value)| key == name && !value.is_empty());
            // Tags of the topic take precedence, because tag names must be unique.
            if let Some((_, value)) =
                given.filter(|_| !captured.tags.iter().any(|(tag, _)| tag == name))
            {
                captured.tags.push((name, value));
            }
        }
        let context = Context {
            limits: route.limits.as_ref().unwrap_or(&decoding.limits),
            ts_unit: route.ts_unit,
            sensor_id: captured.sensor_id,
            field: captured.field,
            tags: &captured.tags,
            renamed: Some(renamed),
            ..Context::new(decoding, received_at_ms)
        };
        match &route.how {
            PayloadDecoder::Alone(decoder) => {
                decoder.decode(&message.payload, Some(topic), &context, batch, rejects)
            }
            PayloadDecoder::Sparkplug => {
                rebirths.extend(sparkplug.decode(topic, &message.payload, &context, batch, rejects))
            }
            PayloadDecoder::Unknown => {}
        }
    }
}

fn dead_letter(
    source: &str,
    message: &Message,
    received_at_ms: i64,
    reason: RejectReason,
    detail: &str,
) -> DeadLetter {
    let topic = String::from_utf8_lossy(&message.topic);
    let payload_bytes = message
        .refused
        .as_ref()
        .map_or(message.payload.len(), |refused| refused.payload_bytes);
    DeadLetter::keep_part(
        received_at_ms,
        source,
        topic,
        &message.payload,
        payload_bytes,
        reason.as_str(),
        detail,
    )
}
