//! Dead letters read again with the settings of today, for `dead-letters replay`. Pure.
//!
//! How a dead letter is read follows from where it came from: `mqtt` and `mqtt_direct` as its topic's subscription says, `http` as the URL of its
//! hook says, `store` as the lines of JSON that the service made of readings which the store refused. Times are judged as
//! of the dead letter's receipt, which is also the time of readings that have none of their own.

use std::sync::Arc;

use super::http::Hooks;
use super::mqtt::SetupError;
use super::mqtt::redecode::Subscriptions;
use crate::config::{Config, Decoding, Mqtt, Subscription};
use crate::decode::{self, Context, Format, Rejects};
use crate::model::{BatchBuilder, DeadLetter, ReadingBatch};

/// What a dead letter is today.
#[derive(Debug)]
pub struct Redecoded {
    /// Its readings.
    pub batch: ReadingBatch,
    /// How many readings of it, or messages, are still rejected.
    pub rejected: u64,
    /// Reason and detail of the first of those.
    pub why: Option<(String, String)>,
}

impl Redecoded {
    /// A dead letter of which nothing can be taken.
    pub(super) fn rejected(reason: &str, detail: impl Into<String>) -> Redecoded {
        let batch = BatchBuilder::new(1).finish();
        Redecoded { batch, rejected: 1, why: Some((reason.to_owned(), detail.into())) }
    }

    /// Why the first one is rejected that is.
    pub fn reason(&self) -> Option<&str> {
        self.why.as_ref().map(|(reason, _)| reason.as_str())
    }

    pub(super) fn of(batch: ReadingBatch, rejects: &Rejects) -> Redecoded {
        let why = rejects.list().first().map(|first| (first.reason.to_owned(), first.detail.clone()));
        Redecoded { batch, rejected: rejects.total() as u64, why }
    }
}

/// Reads dead letters again.
#[derive(Debug)]
pub struct Redecoder {
    subscriptions: Subscriptions,
    hooks: Hooks,
    decoding: Arc<Decoding>,
}

impl Redecoder {
    /// A reader by these settings.
    ///
    /// # Errors
    /// A subscription cannot be used.
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

    /// What the dead letter is by these settings.
    pub fn read(&mut self, dead_letter: &DeadLetter) -> Redecoded {
        if !dead_letter.is_whole() {
            return Redecoded::rejected(&dead_letter.reason, "only the begin of the payload was kept");
        }
        match dead_letter.source.as_str() {
            "mqtt" | "mqtt_direct" => self.subscriptions.read(dead_letter),
            "http" => self.hooks.read(dead_letter, &self.decoding),
            "store" => self.lines(dead_letter),
            other => Redecoded::rejected(&dead_letter.reason, format!("nothing is known of the source `{other}`")),
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
