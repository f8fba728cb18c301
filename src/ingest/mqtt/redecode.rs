//! Decodes dead letters of MQTT again, with the subscription that matches their topic now. A dead letter does not
//! record its broker, so the subscriptions of all brokers are tried in the order of the configuration. Dead letters of
//! devices that connect directly use the topics of `listen.mqtt`. Pure.

use std::sync::Arc;

use super::collect::{Collector, Settings};
use super::link::Message;
use super::target::SetupError;
use crate::config::{Decoding, Mqtt, Subscription};
use crate::decode::reasons;
use crate::ingest::redecode::Redecoded;
use crate::model::DeadLetter;
use crate::telemetry::metrics::Source;

/// The subscriptions of all brokers, and the topics of devices.
#[derive(Debug)]
pub(in crate::ingest) struct Subscriptions {
    brokers: Vec<Collector>,
    devices: [Collector; 1],
}

impl Subscriptions {
    pub(in crate::ingest) fn new(
        brokers: &[Mqtt],
        devices: &[Subscription],
        decoding: &Arc<Decoding>,
    ) -> Result<Subscriptions, SetupError> {
        let collector = |subscriptions: &[Subscription]| {
            // No limit: a kept payload is not larger than an accepted one.
            let settings = Settings { source: "", payload_bytes_max: usize::MAX, status_topic: None };
            Collector::new(subscriptions, settings, decoding.clone())
        };
        let brokers = brokers.iter().map(|broker| collector(&broker.subscriptions)).collect::<Result<_, _>>()?;
        Ok(Subscriptions { brokers, devices: [collector(devices)?] })
    }

    pub(in crate::ingest) fn read(&mut self, dead_letter: &DeadLetter) -> Redecoded {
        let of_devices = dead_letter.source == Source::MqttDirect.label();
        let collectors: &mut [Collector] = if of_devices { &mut self.devices } else { &mut self.brokers };
        let mut redecoded =
            Redecoded::rejected(reasons::NO_SUBSCRIPTION, "no configured subscription matches this topic");
        for collector in collectors {
            redecoded = take(collector, dead_letter);
            if redecoded.reason() != Some(reasons::NO_SUBSCRIPTION) {
                break;
            }
        }
        redecoded
    }
}

fn take(collector: &mut Collector, dead_letter: &DeadLetter) -> Redecoded {
    let (topic, payload) = (dead_letter.topic.clone().into(), dead_letter.payload.clone().into());
    // Dead letters do not keep user properties.
    let message = Message { topic, payload, is_dup: true, ..Message::default() };
    // The collector is empty, so there is room for it.
    let _ = collector.take(&message, dead_letter.received_at_ms);
    // A dead letter is old: it must not cause a rebirth command to a Sparkplug B node.
    collector.rebirths().for_each(drop);
    let gathered = collector.finish();
    let rejected = gathered.rejected.total();
    let why = gathered.dead.into_iter().next().map(|dead| (dead.reason, dead.detail));
    Redecoded { batch: gathered.batch, rejected, why }
}
