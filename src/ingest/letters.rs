//! Dead letters read again with the settings of today, for `dead-letters replay`. Pure.
//!
//! How a letter is read follows from where it came from: `mqtt` and `mqtt_direct` as its topic's subscription says, `http` as the URL of its
//! hook says, `store` as the lines of JSON that the service made of readings which the store refused. Times are judged as
//! of the letter's receipt, which is also the time of readings that have none of their own.

use std::sync::Arc;

use super::http::Hooks;
use super::mqtt::SetupError;
use super::mqtt::letters::Subscriptions;
use crate::config::{Config, Decoding, Mqtt, Subscription};
use crate::decode::{self, Context, Format, Rejects};
use crate::model::{BatchBuilder, DeadLetter, ReadingBatch};

/// What a letter is today.
#[derive(Debug)]
pub struct Reread {
    /// Its readings.
    pub batch: ReadingBatch,
    /// How many readings of it, or messages, are still rejected.
    pub rejected: u64,
    /// Reason and detail of the first of those.
    pub why: Option<(String, String)>,
}

impl Reread {
    /// A letter of which nothing can be taken.
    pub(super) fn rejected(reason: &str, detail: impl Into<String>) -> Reread {
        let batch = BatchBuilder::new(1).finish();
        Reread { batch, rejected: 1, why: Some((reason.to_owned(), detail.into())) }
    }

    /// Why the first one is rejected that is.
    pub fn reason(&self) -> Option<&str> {
        self.why.as_ref().map(|(reason, _)| reason.as_str())
    }

    pub(super) fn of(batch: ReadingBatch, rejects: &Rejects) -> Reread {
        let why = rejects.list().first().map(|first| (first.reason.to_owned(), first.detail.clone()));
        Reread { batch, rejected: rejects.total() as u64, why }
    }
}

/// Reads letters again.
#[derive(Debug)]
pub struct Reader {
    subscriptions: Subscriptions,
    hooks: Hooks,
    decoding: Arc<Decoding>,
}

impl Reader {
    /// A reader by these settings.
    ///
    /// # Errors
    /// A subscription cannot be used.
    pub fn new(config: &Config) -> Result<Reader, SetupError> {
        Reader::of(&config.mqtt, &config.listen.mqtt.topics, Arc::new(config.decoding()))
    }

    pub(super) fn of(
        brokers: &[Mqtt],
        devices: &[Subscription],
        decoding: Arc<Decoding>,
    ) -> Result<Reader, SetupError> {
        let (subscriptions, hooks) = (Subscriptions::new(brokers, devices, &decoding)?, Hooks::new(&decoding));
        Ok(Reader { subscriptions, hooks, decoding })
    }

    /// What the letter is by these settings.
    pub fn read(&mut self, letter: &DeadLetter) -> Reread {
        if !letter.is_whole() {
            return Reread::rejected(&letter.reason, "only the begin of the payload was kept");
        }
        match letter.source.as_str() {
            "mqtt" | "mqtt_direct" => self.subscriptions.read(letter),
            "http" => self.hooks.read(letter, &self.decoding),
            "store" => self.lines(letter),
            other => Reread::rejected(&letter.reason, format!("nothing is known of the source `{other}`")),
        }
    }

    fn lines(&self, letter: &DeadLetter) -> Reread {
        let Decoding { limits, line, .. } = &*self.decoding;
        let received_at_ms = letter.received_at_ms;
        let cx = Context { limits, line, received_at_ms, ts_unit: None, sensor_id: None, field: None, tags: &[] };
        let (mut out, mut rejects) = (BatchBuilder::new(limits.fields_max), Rejects::new());
        decode::decode(Format::Ndjson, &letter.payload, &cx, &mut out, &mut rejects);
        Reread::of(out.finish(), &rejects)
    }
}
