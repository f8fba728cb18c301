//! Dead letters read again: as the subscription reads them that fits their topic today. A letter does not say which broker
//! it came from, so those of all brokers are asked, in the order of the configuration. Pure.

use std::sync::Arc;

use super::collect::{Collector, Settings};
use super::link::Message;
use super::target::SetupError;
use crate::config::{Decoding, Mqtt};
use crate::decode::reasons;
use crate::ingest::letters::Reread;
use crate::model::DeadLetter;

/// The subscriptions of all brokers.
#[derive(Debug)]
pub(in crate::ingest) struct Subscriptions(Vec<Collector>);

impl Subscriptions {
    pub(in crate::ingest) fn new(brokers: &[Mqtt], decoding: &Arc<Decoding>) -> Result<Subscriptions, SetupError> {
        let collector = |broker: &Mqtt| {
            let payload_bytes_max = broker.packet_max_bytes as usize;
            let settings = Settings { source: "mqtt", payload_bytes_max, status_topic: None };
            Collector::new(&broker.subscriptions, settings, decoding.clone())
        };
        let collectors = brokers.iter().map(collector);
        collectors.collect::<Result<_, _>>().map(Subscriptions)
    }

    pub(in crate::ingest) fn read(&mut self, letter: &DeadLetter) -> Reread {
        let mut reread = Reread::rejected(reasons::NO_SUBSCRIPTION, "no configured subscription has this topic");
        for collector in &mut self.0 {
            reread = take(collector, letter);
            if reread.reason() != Some(reasons::NO_SUBSCRIPTION) {
                break;
            }
        }
        reread
    }
}

fn take(collector: &mut Collector, letter: &DeadLetter) -> Reread {
    let (topic, payload) = (letter.topic.clone().into(), letter.payload.clone().into());
    // Its user properties are not kept.
    let message = Message { topic, payload, receipt: None, is_retained: false, is_again: true, properties: vec![] };
    // It is alone in the collector, so there is room for it.
    let _ = collector.take(&message, letter.received_at_ms);
    let gathered = collector.finish();
    let rejected = gathered.rejected.total();
    let why = gathered.dead.into_iter().next().map(|dead| (dead.reason, dead.detail));
    Reread { batch: gathered.batch, rejected, why }
}
