//! Messages to parcels: finds the subscription of each, decodes it, and gathers readings and dead letters until they are
//! handed over. Pure: no IO, no clock, no metric.

use std::sync::Arc;

use super::link::Message;
use crate::config::{Limits, Mqtt};
use crate::decode::topic::{Template, filter_matches};
use crate::decode::{self, Context, Format, Reject, TsUnit};
use crate::model::batch::NAMES_MAX;
use crate::model::{BatchBuilder, DeadLetter, ReadingBatch};

/// Messages in one parcel.
pub(super) const MESSAGES_MAX: usize = 512;
/// Bytes in one parcel; the message that passes it is the last.
pub(super) const PARCEL_BYTES_MAX: usize = 256 * 1024;
/// Bytes of a payload that a dead letter keeps (a document has at most 16 MiB, and a dead letter is there to be read).
const DEAD_PAYLOAD_BYTES_MAX: usize = 1024 * 1024;

/// A subscription, ready for use.
#[derive(Debug)]
struct Route {
    filter: String,
    topic: String,
    template: Template,
    /// `None`: not a format that we know.
    format: Option<Format>,
    format_name: String,
    ts_unit: Option<TsUnit>,
}

/// How many were rejected for each reason; a handful of reasons, so a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Rejected(pub(super) Vec<(&'static str, u64)>);

impl Rejected {
    fn add(&mut self, reason: &'static str) {
        match self.0.iter_mut().find(|(r, _)| *r == reason) {
            Some((_, n)) => *n += 1,
            None => self.0.push((reason, 1)),
        }
    }

    /// All of them.
    pub(super) fn total(&self) -> u64 {
        self.0.iter().map(|(_, n)| n).sum()
    }
}

/// What goes into one parcel.
#[derive(Debug)]
pub(super) struct Gathered {
    /// The readings.
    pub(super) batch: ReadingBatch,
    /// The messages of which something was rejected, each once.
    pub(super) dead: Vec<DeadLetter>,
    /// The rejects.
    pub(super) rejected: Rejected,
}

/// The message does not fit beside what is gathered: hand that over first.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NoRoom;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Collector {
    routes: Vec<Route>,
    limits: Arc<Limits>,
    payload_bytes_max: usize,
    batch: BatchBuilder,
    dead: Vec<DeadLetter>,
    dead_bytes: usize,
    rejected: Rejected,
    messages: usize,
    /// Of the message at hand; kept for its allocation.
    rejects: Vec<Reject>,
}

impl Collector {
    /// A collector for a broker's subscriptions.
    ///
    /// # Errors
    /// A topic template that cannot be read, with its subscription's filter.
    pub(super) fn new(config: &Mqtt, limits: Arc<Limits>) -> Result<Collector, String> {
        let route = |s: &crate::config::Subscription| {
            Ok(Route {
                filter: s.filter.clone(),
                topic: s.topic.clone(),
                template: Template::parse(&s.topic).map_err(|error| format!("{}: {error}", s.filter))?,
                format: s.format.parse().ok(),
                format_name: s.format.clone(),
                ts_unit: s.ts_unit.as_deref().and_then(|unit| unit.parse().ok()),
            })
        };
        Ok(Collector {
            routes: config.subscriptions.iter().map(route).collect::<Result<_, String>>()?,
            payload_bytes_max: config.packet_max_bytes as usize,
            batch: BatchBuilder::new(limits.fields_max),
            limits,
            dead: vec![],
            dead_bytes: 0,
            rejected: Rejected::default(),
            messages: 0,
            rejects: vec![],
        })
    }

    /// Whether nothing is gathered.
    pub(super) fn is_empty(&self) -> bool {
        self.messages == 0
    }

    /// Whether what is gathered should be handed over before more is taken.
    pub(super) fn is_full(&self) -> bool {
        self.messages >= MESSAGES_MAX
            || self.batch.memory_bytes() + self.dead_bytes >= PARCEL_BYTES_MAX
            || self.batch.names_len() >= NAMES_MAX / 2
    }

    /// What is gathered; the collector is as new.
    pub(super) fn finish(&mut self) -> Gathered {
        self.messages = 0;
        self.dead_bytes = 0;
        Gathered {
            batch: self.batch.finish(),
            dead: std::mem::take(&mut self.dead),
            rejected: std::mem::take(&mut self.rejected),
        }
    }

    /// Takes a message: its readings, and where anything is wrong with it a dead letter of the whole message with the
    /// first reason.
    ///
    /// # Errors
    /// Its field names do not fit beside those gathered; nothing of it was taken. Not where nothing is gathered.
    pub(super) fn take(&mut self, message: &Message, received_at_ms: i64) -> Result<(), NoRoom> {
        let mark = self.batch.mark();
        self.rejects.clear();
        self.decode(message, received_at_ms);
        if self.rejects.is_empty() {
            self.messages += 1;
            return Ok(());
        }
        if self.messages > 0 && self.batch.names_len() >= NAMES_MAX {
            self.batch.rollback(mark);
            return Err(NoRoom);
        }
        self.messages += 1;
        self.rejects.iter().for_each(|reject| self.rejected.add(reject.reason));
        let first = self.rejects.swap_remove(0);
        let letter = dead_letter(message, received_at_ms, first);
        self.dead_bytes += letter.payload.len() + letter.topic.len() + letter.detail.len();
        self.dead.push(letter);
        Ok(())
    }

    fn decode(&mut self, message: &Message, received_at_ms: i64) {
        let Collector { routes, limits, batch, rejects, payload_bytes_max, .. } = self;
        let mut reject = |reason, detail: String| rejects.push(Reject { index: 0, reason, detail });
        let Ok(topic) = std::str::from_utf8(&message.topic) else {
            return reject("topic_not_utf8", "the topic is not UTF-8".into());
        };
        if message.payload.is_empty() {
            return reject("empty_payload", "the message has no payload".into());
        }
        if message.payload.len() > *payload_bytes_max {
            let n = message.payload.len();
            return reject("payload_too_large", format!("{n} bytes are over packet_max_bytes = {payload_bytes_max}"));
        }
        let Some(route) = routes.iter().find(|route| filter_matches(&route.filter, topic)) else {
            // The broker's session may still hold a subscription that the configuration no longer has.
            return reject("no_subscription", "no configured subscription has this topic".into());
        };
        let Some(format) = route.format else {
            return reject("unknown_format", format!("format {:?} is not known", route.format_name));
        };
        let Some(captured) = route.template.capture(topic) else {
            return reject("topic_mismatch", format!("the topic does not fit the template {}", route.topic));
        };
        let context = Context {
            limits,
            received_at_ms,
            ts_unit: route.ts_unit,
            sensor_id: captured.sensor_id,
            field: captured.field,
            tags: &captured.tags,
        };
        decode::decode(format, &message.payload, &context, batch, rejects);
    }
}

fn dead_letter(message: &Message, received_at_ms: i64, first: Reject) -> DeadLetter {
    let mut detail = first.detail;
    let kept = message.payload.len().min(DEAD_PAYLOAD_BYTES_MAX);
    if kept < message.payload.len() {
        detail.push_str(&format!("; the first {kept} of {} bytes are kept", message.payload.len()));
    }
    DeadLetter {
        received_at_ms,
        source: "mqtt".into(),
        topic: String::from_utf8_lossy(&message.topic).into_owned(),
        payload: message.payload[..kept].to_vec(),
        reason: first.reason.into(),
        detail,
    }
}
