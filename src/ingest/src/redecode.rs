//! Decodes dead letters with the current settings, for `hourbucket dead-letters replay`. Pure.
//!
//! The source of a dead letter decides how it is decoded:
//! - `mqtt`: by the subscription that matches its topic now. A dead letter does not record its
//!   broker, so the subscriptions of all brokers are tried in the order of the configuration.
//! - `mqtt_direct`: by the topics of `listen.mqtt`.
//! - `http`: by the URL of its hook.
//! - `store`: as the lines of JSON that the service wrote for readings that the store refused.
//!
//! A dead letter does not record its sender. So the `write` patterns of its token are not applied, and
//! a tag that is named like `ingest.sender_tag` is removed: it is not known to be true.
//!
//! `[[ranges]]` apply as to a new message, but that no last value is known.
//!
//! Times are checked relative to the dead letter's receipt time, which is also the time of readings
//! without a timestamp. `ingest` has the code that decodes a message of a protocol, the same as for
//! a new message.

use std::sync::Arc;

use crate::http::HookTarget;
use crate::mqtt::{CollectedBatch, Collector, CollectorSettings, SetupError};
use config::{Config, Decoding, Mqtt, Subscription};
use decode::{Context, Format, Formats, RejectReason, Rejects};
use model::{BatchBuilder, DeadLetter, ReadingBatch};
use telemetry::metrics::Source;

/// The result of decoding a dead letter.
#[derive(Debug)]
pub struct Redecoded {
    /// The readings that the current settings accept.
    pub batch: ReadingBatch,
    /// Number of readings, or messages, that are still rejected.
    pub rejected: u64,
    /// Reason and detail of the first reject.
    pub why: Option<(String, String)>,
}

impl Redecoded {
    /// A dead letter without any accepted reading.
    fn rejected(reason: &str, detail: impl Into<String>) -> Redecoded {
        let batch = BatchBuilder::new(1).finish();
        Redecoded {
            batch,
            rejected: 1,
            why: Some((reason.to_owned(), detail.into())),
        }
    }

    /// Reason of the first reject; `None` if nothing is rejected.
    pub fn reason(&self) -> Option<&str> {
        self.why.as_ref().map(|(reason, _)| reason.as_str())
    }

    fn new(batch: ReadingBatch, rejects: &Rejects) -> Redecoded {
        let why = rejects
            .list()
            .first()
            .map(|first| (first.reason.to_string(), first.detail.clone()));
        Redecoded {
            batch,
            rejected: rejects.total() as u64,
            why,
        }
    }

    fn of_message(collected: CollectedBatch) -> Redecoded {
        let rejected = collected.rejected.total();
        let why = collected
            .dead
            .into_iter()
            .next()
            .map(|dead| (dead.reason, dead.detail));
        Redecoded {
            batch: collected.batch,
            rejected,
            why,
        }
    }
}

/// Decodes dead letters by the subscriptions, formats and limits of one configuration.
#[derive(Debug)]
pub struct Redecoder {
    /// One per broker.
    brokers: Vec<Collector>,
    /// The topics of devices that connect directly.
    devices: [Collector; 1],
    formats: Formats,
    decoding: Arc<Decoding>,
}

impl Redecoder {
    /// Creates a redecoder from a configuration.
    ///
    /// # Errors
    /// A subscription's topic template cannot be parsed.
    pub fn new(config: &Config) -> Result<Redecoder, SetupError> {
        Redecoder::with_topics(
            &config.mqtt,
            &config.listen.mqtt.topics,
            Arc::new(config.decoding()),
        )
    }

    pub(crate) fn with_topics(
        brokers: &[Mqtt],
        devices: &[Subscription],
        decoding: Arc<Decoding>,
    ) -> Result<Redecoder, SetupError> {
        let collector = |subscriptions: &[Subscription]| {
            // No limit: a kept payload is not larger than an accepted one.
            let settings = CollectorSettings {
                source: "",
                payload_bytes_max: usize::MAX,
                status_topic: None,
            };
            Collector::new(subscriptions, settings, decoding.clone())
        };
        let brokers = brokers
            .iter()
            .map(|broker| collector(&broker.subscriptions))
            .collect::<Result<_, _>>()?;
        Ok(Redecoder {
            brokers,
            devices: [collector(devices)?],
            formats: Formats::new(&decoding),
            decoding,
        })
    }

    /// Takes over the births that the service has kept for a broker, in the order of the
    /// configuration, so that aliases in messages from before a rebirth resolve. Damaged ones are
    /// ignored.
    pub fn know_births(&mut self, broker: usize, bytes: &[u8]) {
        if let Some(collector) = self.brokers.get_mut(broker) {
            let _ = collector.restore_births(bytes);
        }
    }

    /// Decodes a dead letter. One whose payload was truncated is always rejected.
    pub fn redecode(&mut self, dead_letter: &DeadLetter) -> Redecoded {
        if !dead_letter.is_complete() {
            return Redecoded::rejected(
                &dead_letter.reason,
                "only the beginning of the payload was kept",
            );
        }
        match dead_letter.source.as_str() {
            "mqtt" | "mqtt_direct" => self.message(dead_letter),
            "http" => self.hook(dead_letter),
            "store" => self.lines(dead_letter),
            other => {
                let detail =
                    format!("unknown source `{other}`; expected mqtt, mqtt_direct, http or store");
                Redecoded::rejected(&dead_letter.reason, detail)
            }
        }
    }

    /// The first broker with a matching subscription decides.
    fn message(&mut self, dead_letter: &DeadLetter) -> Redecoded {
        let of_devices = dead_letter.source == Source::MqttDirect.as_str();
        let collectors: &mut [Collector] = if of_devices {
            &mut self.devices
        } else {
            &mut self.brokers
        };
        let mut redecoded = Redecoded::rejected(
            RejectReason::NoSubscription.as_str(),
            "no configured subscription matches this topic",
        );
        for collector in collectors {
            let DeadLetter {
                topic,
                payload,
                received_at_ms,
                ..
            } = dead_letter;
            let collected = collector.decode_again(topic, payload, *received_at_ms, of_devices);
            redecoded = Redecoded::of_message(collected);
            if redecoded.reason() != Some(RejectReason::NoSubscription.as_str()) {
                break;
            }
        }
        redecoded
    }

    fn hook(&self, dead_letter: &DeadLetter) -> Redecoded {
        if dead_letter.reason == RejectReason::DestinationConfirmation.as_str() {
            return Redecoded::rejected(
                &dead_letter.reason,
                "not a reading: open its enableUrl, then purge it",
            );
        }
        let Some(target) = HookTarget::read_back(&dead_letter.topic) else {
            let why = "the topic of the dead letter is not the URL of a hook";
            return Redecoded::rejected(RejectReason::UnknownFormat.as_str(), why);
        };
        let DeadLetter {
            payload,
            received_at_ms,
            ..
        } = dead_letter;
        match target.decode_again(payload, *received_at_ms, &self.formats, &self.decoding) {
            Ok((batch, rejects)) => Redecoded::new(batch, &rejects),
            Err(error) => {
                Redecoded::rejected(RejectReason::UnknownFormat.as_str(), error.to_string())
            }
        }
    }

    /// Readings that were accepted once are not checked again.
    fn lines(&self, dead_letter: &DeadLetter) -> Redecoded {
        let cx = Context::new(&self.decoding, dead_letter.received_at_ms);
        let mut out = BatchBuilder::new(cx.limits.fields_max);
        let mut rejects = Rejects::new();
        decode::decode(
            Format::Ndjson,
            &dead_letter.payload,
            &cx,
            &mut out,
            &mut rejects,
        );
        Redecoded::new(out.finish(), &rejects)
    }
}
