//! The packet ids of one connection that are in an exchange of QoS 2 (MQTT 3.1.1 §4.3.3, MQTT 5
//! §4.3.3), from PUBLISH to PUBREL. Pure.
//!
//! A PUBLISH with an id that is in an exchange is the same message again, and is not accepted a
//! second time. After PUBCOMP the id belongs to another message (MQTT-4.3.3-2, MQTT 5:
//! MQTT-4.3.3-12), so PUBCOMP is sent only if the exchange has ended. Memory: one bit per id in two
//! sets, so 16 KiB once a device has used QoS 2, however many ids it leaves open.

/// A set of packet ids.
type Ids = Box<[u64; 1024]>;

/// Classification of a PUBLISH of QoS 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    /// A new message.
    First,
    /// A repeat of a message in flight; its PUBREC will follow.
    Again,
    /// A repeat of a message whose PUBREC was sent; send it again.
    AgainRecorded,
}

/// Classification of a PUBREL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Release {
    /// It ends an exchange.
    Ends,
    /// PUBREC was not sent yet: the message is not safe. A device that pipelines sends this.
    Early,
    /// No exchange has this id.
    Unknown,
}

#[derive(Debug, Default)]
pub(super) struct Exchanges {
    /// From PUBLISH to PUBREL.
    open: Option<Ids>,
    /// From PUBREC to PUBREL.
    recorded: Option<Ids>,
}

fn has(ids: &Option<Ids>, id: u16) -> bool {
    ids.as_ref()
        .is_some_and(|ids| ids[usize::from(id) / 64] >> (id % 64) & 1 == 1)
}

fn set(ids: &mut Option<Ids>, id: u16, on: bool) {
    let result = &mut ids.get_or_insert_with(|| Box::new([0; 1024]))[usize::from(id) / 64];
    if on {
        *result |= 1 << (id % 64)
    } else {
        *result &= !(1 << (id % 64))
    }
}

impl Exchanges {
    /// Records a PUBLISH.
    pub(super) fn publish(&mut self, id: u16) -> Sent {
        match (has(&self.open, id), has(&self.recorded, id)) {
            (_, true) => Sent::AgainRecorded,
            (true, false) => Sent::Again,
            (false, false) => {
                set(&mut self.open, id, true);
                Sent::First
            }
        }
    }

    /// Records that PUBREC was sent.
    pub(super) fn record(&mut self, id: u16) {
        if has(&self.open, id) && !has(&self.recorded, id) {
            set(&mut self.recorded, id, true);
        }
    }

    /// Ends an exchange whose PUBREC has an error code (MQTT 5 §4.3.3): no PUBREL follows.
    pub(super) fn refuse(&mut self, id: u16) {
        if has(&self.open, id) {
            set(&mut self.open, id, false);
        }
    }

    /// Records a PUBREL, unless it is early.
    pub(super) fn release(&mut self, id: u16) -> Release {
        match (has(&self.open, id), has(&self.recorded, id)) {
            (_, true) => {
                set(&mut self.open, id, false);
                set(&mut self.recorded, id, false);
                Release::Ends
            }
            (true, false) => Release::Early,
            (false, false) => Release::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn an_id_is_one_message_until_it_is_released(
            steps in prop::collection::vec((0..3u8, prop_oneof![0..4u16, 63..66u16, Just(65_535)]), 0..60)
        ) {
            // Naive model: whether PUBREC was sent.
            let mut exchanges = Exchanges::default();
            let mut model = HashMap::<u16, bool>::new();
            for (step, id) in steps {
                match step {
                    0 => {
                        let sent = match model.get(&id) {
                            None => Sent::First,
                            Some(false) => Sent::Again,
                            Some(true) => Sent::AgainRecorded,
                        };
                        model.entry(id).or_insert(false);
                        prop_assert_eq!(exchanges.publish(id), sent);
                    }
                    1 => {
                        model.entry(id).and_modify(|recorded| *recorded = true);
                        exchanges.record(id);
                    }
                    _ => {
                        let release = match model.get(&id) {
                            None => Release::Unknown,
                            Some(false) => Release::Early,
                            Some(true) => Release::Ends,
                        };
                        if release == Release::Ends {
                            model.remove(&id);
                        }
                        prop_assert_eq!(exchanges.release(id), release);
                    }
                }
            }
        }
    }
}
