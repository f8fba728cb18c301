//! Messages to parcels: finds the subscription of each, decodes it, and gathers readings and dead letters until they are
//! handed over. Pure: no IO, no clock, no metric.

use std::sync::Arc;

use super::link::Message;
use super::target::SetupError;
use crate::config::{Decoding, Mqtt};
use crate::decode::topic::{Template, filter_matches};
use crate::decode::{self, Context, Decoder, Formats, Rejects, TsUnit, reasons};
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
    decoder: Option<Decoder>,
    format_name: String,
    ts_unit: Option<TsUnit>,
}

/// How many were rejected for each reason; a handful of reasons, so a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Rejected(pub(super) Vec<(&'static str, u64)>);

impl Rejected {
    fn add(&mut self, rejects: &Rejects) {
        for &(reason, n) in rejects.by_reason() {
            match self.0.iter_mut().find(|(r, _)| *r == reason) {
                Some((_, sum)) => *sum += n as u64,
                None => self.0.push((reason, n as u64)),
            }
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
    decoding: Arc<Decoding>,
    payload_bytes_max: usize,
    batch: BatchBuilder,
    dead: Vec<DeadLetter>,
    dead_bytes: usize,
    rejected: Rejected,
    messages: usize,
    /// Of the message at hand; kept for its allocation.
    rejects: Rejects,
}

impl Collector {
    /// A collector for a broker's subscriptions.
    ///
    /// # Errors
    /// A topic template cannot be read.
    pub(super) fn new(config: &Mqtt, decoding: Arc<Decoding>) -> Result<Collector, SetupError> {
        let formats = Formats::new(&decoding);
        let route = |s: &crate::config::Subscription| {
            let decoder = formats.get(&s.format).ok();
            let ts_unit = s.ts_unit.as_deref().and_then(|unit| unit.parse().ok());
            Ok(Route {
                filter: s.filter.clone(),
                topic: s.topic.clone(),
                template: Template::parse(&s.topic)
                    .map_err(|error| SetupError::Template { filter: s.filter.clone(), error })?,
                format_name: s.format.clone(),
                ts_unit: ts_unit.or(decoder.as_ref().and_then(Decoder::ts_unit_usual)),
                decoder,
            })
        };
        Ok(Collector {
            routes: config.subscriptions.iter().map(route).collect::<Result<_, SetupError>>()?,
            payload_bytes_max: config.packet_max_bytes as usize,
            batch: BatchBuilder::new(decoding.limits.fields_max),
            decoding,
            dead: vec![],
            dead_bytes: 0,
            rejected: Rejected::default(),
            messages: 0,
            rejects: Rejects::new(),
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
        let is_crowded = self.rejects.by_reason().iter().any(|(reason, _)| *reason == reasons::TOO_MANY_FIELD_NAMES);
        if is_crowded && self.messages > 0 {
            self.batch.rollback(mark);
            return Err(NoRoom);
        }
        self.messages += 1;
        self.rejected.add(&self.rejects);
        if let Some(first) = self.rejects.list().first() {
            let letter = dead_letter(message, received_at_ms, first);
            self.dead_bytes += letter.payload.len() + letter.topic.len() + letter.detail.len();
            self.dead.push(letter);
        }
        Ok(())
    }

    fn decode(&mut self, message: &Message, received_at_ms: i64) {
        let Collector { routes, decoding, batch, rejects, payload_bytes_max, .. } = self;
        let Ok(topic) = std::str::from_utf8(&message.topic) else {
            return rejects.push(0, reasons::INVALID_UTF8, "the topic is not UTF-8");
        };
        if message.payload.is_empty() {
            return rejects.push(0, reasons::EMPTY_PAYLOAD, "the message has no payload");
        }
        if message.payload.len() > *payload_bytes_max {
            let n = message.payload.len();
            let detail = format!("{n} bytes are over packet_max_bytes = {payload_bytes_max}");
            return rejects.push(0, reasons::PAYLOAD_TOO_LARGE, detail);
        }
        let Some(route) = routes.iter().find(|route| filter_matches(&route.filter, topic)) else {
            return rejects.push(0, reasons::NO_SUBSCRIPTION, "no configured subscription has this topic");
        };
        let Some(decoder) = &route.decoder else {
            return rejects.push(
                0,
                reasons::UNKNOWN_FORMAT,
                format!("the format `{}` is not known", route.format_name),
            );
        };
        let Some(captured) = route.template.capture(topic) else {
            let detail = format!("the topic does not fit the template `{}`", route.topic);
            return rejects.push(0, reasons::TOPIC_MISMATCH, detail);
        };
        let context = Context {
            limits: &decoding.limits,
            line: &decoding.line,
            received_at_ms,
            ts_unit: route.ts_unit,
            sensor_id: captured.sensor_id,
            field: captured.field,
            tags: &captured.tags,
        };
        decoder.decode(&message.payload, Some(topic), &context, batch, rejects);
    }
}

fn dead_letter(message: &Message, received_at_ms: i64, first: &decode::Reject) -> DeadLetter {
    let mut detail = first.detail.clone();
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::{Config, Limits, MqttProtocol, Subscription};

    const NOW_MS: i64 = 1_710_000_000_000;

    fn collector(subscriptions: &[(&str, &str, &str)]) -> Collector {
        let subscription = |(filter, topic, format): &(&str, &str, &str)| Subscription {
            filter: (*filter).into(),
            qos: 1,
            topic: (*topic).into(),
            format: (*format).into(),
            ts_unit: None,
        };
        let config = Mqtt {
            url: "mqtt://x".into(),
            client_id: "x".into(),
            protocol: MqttProtocol::V5,
            clean_start: false,
            session_expiry: Duration::ZERO,
            username: None,
            password: None,
            ca_file: None,
            keep_alive: Duration::ZERO,
            packet_max_bytes: 100_000,
            window: 1,
            subscriptions: subscriptions.iter().map(subscription).collect(),
        };
        let ever = Duration::from_secs(1 << 40);
        let mut decoding = Config::default().decoding();
        decoding.limits =
            Limits { past: ever, future: ever, fields_max: 255, batch_max_readings: 1000, ..decoding.limits };
        Collector::new(&config, Arc::new(decoding)).unwrap()
    }

    fn message(topic: &str, payload: impl Into<Vec<u8>>) -> Message {
        Message { topic: topic.to_owned().into_bytes().into(), payload: payload.into().into(), receipt: None }
    }

    #[test]
    fn a_message_is_read_as_the_first_subscription_that_matches_says() {
        let mut collector = collector(&[
            ("$share/g/a/+/b", "a/{sensor_id}/b", "json"),
            ("a/#", "a/{sensor_id}/{field}/{site}", "scalar"),
        ]);
        collector.take(&message("a/S/temp/north", "1"), NOW_MS).unwrap();
        collector.take(&message("a/T/b", r#"{"temp": 2}"#), NOW_MS).unwrap();
        let readings = collector.finish().batch.to_readings();
        assert_eq!((readings[0].sensor_id.as_str(), readings[0].ts_ms), ("S", NOW_MS));
        assert_eq!(readings[0].tags["site"], "north");
        assert!(readings[0].values.contains_key("temp"));
        assert_eq!(readings[1].sensor_id, "T");
        assert!(collector.is_empty());
    }

    #[test]
    fn a_mapping_reads_the_topic_itself() {
        let mut collector = collector(&[("zigbee2mqtt/#", "#", "zigbee2mqtt")]);
        collector.take(&message("zigbee2mqtt/attic/door", r#"{"contact": true, "power": null}"#), NOW_MS).unwrap();
        collector.take(&message("zigbee2mqtt/bridge/state", r#"{"state": "online"}"#), NOW_MS).unwrap();
        let gathered = collector.finish();
        let [reading] = &gathered.batch.to_readings()[..] else { panic!("{gathered:?}") };
        assert_eq!((reading.sensor_id.as_str(), reading.values.len(), gathered.dead.len()), ("attic/door", 1, 0));
    }

    #[test]
    fn a_message_with_good_and_bad_readings_gives_the_good_ones_and_one_dead_letter() {
        let mut collector = collector(&[("#", "{sensor_id}", "json")]);
        let payload = r#"[{"a": 1}, 7, {"a": 2}, {"ts": "never", "a": 3}]"#;
        collector.take(&message("S", payload), NOW_MS).unwrap();
        let gathered = collector.finish();
        assert_eq!(gathered.batch.len(), 2);
        assert_eq!(gathered.rejected.total(), 2);
        let [letter] = &gathered.dead[..] else { panic!("{:?}", gathered.dead) };
        assert_eq!((letter.reason.as_str(), letter.payload.as_slice()), (reasons::NOT_AN_OBJECT, payload.as_bytes()));
        assert_eq!((letter.topic.as_str(), letter.received_at_ms), ("S", NOW_MS));
    }

    #[test]
    fn what_is_wrong_with_a_message_as_such_is_said() {
        let mut collector = collector(&[("a/+", "a/x/{sensor_id}", "json"), ("b/+", "b/{sensor_id}", "punchcard")]);
        let cases = [
            (message("a/S", ""), reasons::EMPTY_PAYLOAD),
            (message("a/S", vec![b' '; 100_001]), reasons::PAYLOAD_TOO_LARGE),
            (message("a/S", "1"), reasons::TOPIC_MISMATCH),
            (message("b/S", "1"), reasons::UNKNOWN_FORMAT),
            (message("c/S", "1"), reasons::NO_SUBSCRIPTION),
            (Message { topic: vec![0xff].into(), payload: vec![1].into(), receipt: None }, reasons::INVALID_UTF8),
        ];
        for (message, reason) in &cases {
            collector.take(message, NOW_MS).unwrap();
            let gathered = collector.finish();
            assert_eq!(gathered.dead[0].reason, *reason);
            assert_eq!(gathered.rejected.0, [(*reason, 1)]);
            assert!(gathered.batch.is_empty());
        }
    }

    #[test]
    fn a_message_whose_names_do_not_fit_beside_others_is_taken_after_them() {
        let fields = |from: usize, n: usize| {
            let objects: Vec<String> = (from..from + n)
                .step_by(200)
                .map(|at| {
                    format!("{{{}}}", (at..at + 200).map(|i| format!("\"n{i}\": 1")).collect::<Vec<_>>().join(","))
                })
                .collect();
            format!("[{}]", objects.join(","))
        };
        let mut collector = collector(&[("#", "{sensor_id}", "json")]);
        collector.take(&message("S", fields(0, 2000)), NOW_MS).unwrap();
        assert!(!collector.is_full());
        let second = message("S", fields(2000, 4000));
        assert_eq!(collector.take(&second, NOW_MS), Err(NoRoom));
        assert_eq!(collector.finish().batch.len(), 10);
        collector.take(&second, NOW_MS).unwrap();
        let gathered = collector.finish();
        assert_eq!((gathered.batch.len(), gathered.dead.len()), (20, 0));
    }

    #[test]
    fn a_parcel_is_full_by_messages_or_bytes() {
        let mut collector = collector(&[("#", "{sensor_id}/{field}", "scalar")]);
        for _ in 0..MESSAGES_MAX {
            assert!(!collector.is_full());
            collector.take(&message("S/f", "1"), NOW_MS).unwrap();
        }
        assert!(collector.is_full());
        collector.finish();
        for _ in 0..3 {
            assert!(!collector.is_full());
            collector.take(&message("S/f", vec![0; 90_000]), NOW_MS).unwrap();
        }
        assert!(collector.is_full());
    }
}
