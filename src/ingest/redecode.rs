//! Decodes dead letters with the current settings, for `hourbucket dead-letters replay`. Pure.
//!
//! The source of a dead letter decides how it is decoded:
//! - `mqtt` and `mqtt_direct`: by the subscription of its topic.
//! - `http`: by the URL of its hook.
//! - `store`: as the lines of JSON that the service wrote for readings that the store refused.
//!
//! Times are checked relative to the dead letter's receipt time, which is also the time of readings without a
//! timestamp.

use std::sync::Arc;

use super::http::Hooks;
use super::mqtt::SetupError;
use super::mqtt::redecode::Subscriptions;
use crate::config::{Config, Decoding, Mqtt, Subscription};
use crate::decode::{self, Context, Format, Rejects};
use crate::model::{BatchBuilder, DeadLetter, ReadingBatch};

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
    pub(super) fn rejected(reason: &str, detail: impl Into<String>) -> Redecoded {
        let batch = BatchBuilder::new(1).finish();
        Redecoded { batch, rejected: 1, why: Some((reason.to_owned(), detail.into())) }
    }

    /// Reason of the first reject; `None` if nothing is rejected.
    pub fn reason(&self) -> Option<&str> {
        self.why.as_ref().map(|(reason, _)| reason.as_str())
    }

    pub(super) fn of(batch: ReadingBatch, rejects: &Rejects) -> Redecoded {
        let why = rejects.list().first().map(|first| (first.reason.to_owned(), first.detail.clone()));
        Redecoded { batch, rejected: rejects.total() as u64, why }
    }
}

/// Decodes dead letters by the subscriptions, formats and limits of one configuration.
#[derive(Debug)]
pub struct Redecoder {
    subscriptions: Subscriptions,
    hooks: Hooks,
    decoding: Arc<Decoding>,
}

impl Redecoder {
    /// Creates a redecoder from a configuration.
    ///
    /// # Errors
    /// A subscription's topic template cannot be parsed.
    pub fn new(config: &Config) -> Result<Redecoder, SetupError> {
        Redecoder::of(&config.mqtt, &config.listen.mqtt.topics, Arc::new(config.decoding()))
    }

    pub(super) fn of(
        brokers: &[Mqtt],
        devices: &[Subscription],
        decoding: Arc<Decoding>,
    ) -> Result<Redecoder, SetupError> {
        let (subscriptions, hooks) = (Subscriptions::new(brokers, devices, &decoding)?, Hooks::new(&decoding));
        Ok(Redecoder { subscriptions, hooks, decoding })
    }

    /// Decodes a dead letter. One whose payload was truncated is always rejected.
    pub fn read(&mut self, dead_letter: &DeadLetter) -> Redecoded {
        if !dead_letter.is_whole() {
            return Redecoded::rejected(&dead_letter.reason, "only the beginning of the payload was kept");
        }
        match dead_letter.source.as_str() {
            "mqtt" | "mqtt_direct" => self.subscriptions.read(dead_letter),
            "http" => self.hooks.read(dead_letter, &self.decoding),
            "store" => self.lines(dead_letter),
            other => {
                let detail = format!("unknown source `{other}`; expected mqtt, mqtt_direct, http or store");
                Redecoded::rejected(&dead_letter.reason, detail)
            }
        }
    }

    fn lines(&self, dead_letter: &DeadLetter) -> Redecoded {
        let Decoding { limits, line, .. } = &*self.decoding;
        let received_at_ms = dead_letter.received_at_ms;
        let cx = Context { limits, line, received_at_ms, ts_unit: None, sensor_id: None, field: None, tags: &[] };
        let (mut out, mut rejects) = (BatchBuilder::new(limits.fields_max), Rejects::new());
        decode::decode(Format::Ndjson, &dead_letter.payload, &cx, &mut out, &mut rejects);
        Redecoded::of(out.finish(), &rejects)
    }
}
