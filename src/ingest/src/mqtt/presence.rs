//! What a connection publishes about the service itself, retained and with QoS 1: the state of
//! `mqtt.status_topic`, or the STATE of a Sparkplug host application (`sparkplug.host_id`). A
//! connection has one will, so it has one of the two.
//!
//! STATE follows Sparkplug 3.0, §4.3 and §5.8: the will in CONNECT has the time of CONNECT; the birth
//! after the subscriptions are granted has the same time; before DISCONNECT the death is published,
//! with the time of that moment. An offline message of this host that comes later (the will of an
//! earlier connection, or another host with our id) is answered by the birth again. Nodes ignore a
//! STATE that is older than the one they know. So if such a message is newer than our connection
//! (the clock was set back), a new connection with a later time is needed.
//!
//! At most one of our messages waits for its PUBACK: a client that publishes under our topic again
//! and again cannot fill the queue that acknowledgements need.

use serde::Deserialize;

use config::{Mqtt, SPARKPLUG, Subscription};

const NAMESPACE: &str = "spBv1.0";
const ONLINE: &str = "online";
const OFFLINE: &str = "offline";

/// The STATE of a host at one broker, over its connections.
#[derive(Debug, Clone)]
pub(super) struct Host {
    topic: String,
    /// The newest time of a STATE that was seen or sent, in milliseconds since 1970.
    newest_ms: i64,
}

impl Host {
    /// `None` if the broker has no Sparkplug subscription.
    pub(super) fn new(id: &str, config: &Mqtt) -> Option<Host> {
        config.reads_sparkplug().then(|| Host {
            topic: format!("{NAMESPACE}/STATE/{id}"),
            newest_ms: i64::MIN,
        })
    }

    /// Nothing is lost without an acknowledgement of these messages.
    pub(super) fn subscription(&self) -> Subscription {
        Subscription {
            filter: self.topic.clone(),
            qos: 0,
            topic: format!("{NAMESPACE}/#"),
            format: SPARKPLUG.to_owned(),
            retained: config::Retained::Always,
            ..Subscription::default()
        }
    }
}

/// What one connection publishes.
#[derive(Debug, Clone)]
pub(super) struct Presence {
    pub(super) topic: String,
    /// The payload of the will.
    pub(super) will: String,
    birth: String,
    /// The time in will and birth of a host; `None`: `mqtt.status_topic`.
    host_ms: Option<i64>,
    is_born: bool,
    is_unacknowledged: bool,
    is_due_again: bool,
}

/// What a message under our own topic requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Required {
    Nothing,
    /// To publish the birth.
    Birth,
    /// A connection with a later time.
    Reconnect,
}

impl Presence {
    /// For a connection that is opened now; `None`: it publishes nothing.
    pub(super) fn new(config: &Mqtt, host: Option<&mut Host>, now_ms: i64) -> Option<Presence> {
        let new = |topic: &str, will, birth, host_ms| Presence {
            topic: topic.to_owned(),
            will,
            birth,
            host_ms,
            is_born: false,
            is_unacknowledged: false,
            is_due_again: false,
        };
        if let Some(host) = host {
            host.newest_ms = now_ms.max(host.newest_ms.saturating_add(1));
            let at_ms = host.newest_ms;
            let will = state(false, at_ms);
            return Some(new(&host.topic, will, state(true, at_ms), Some(at_ms)));
        }
        let topic = config.status_topic.as_deref()?;
        Some(new(topic, OFFLINE.to_owned(), ONLINE.to_owned(), None))
    }

    /// The birth, if it is to be published now. `is_subscribed`: all subscriptions are granted.
    pub(super) fn birth(&mut self, is_subscribed: bool) -> Option<&str> {
        let is_due = !self.is_born && (is_subscribed || self.host_ms.is_none());
        if is_due { Some(self.publish()) } else { None }
    }

    fn publish(&mut self) -> &str {
        (self.is_born, self.is_unacknowledged) = (true, true);
        self.is_due_again = false;
        &self.birth
    }

    /// The broker has acknowledged the last message. The birth, if it is to be published again.
    pub(super) fn published(&mut self) -> Option<&str> {
        self.is_unacknowledged = false;
        if self.is_due_again {
            Some(self.publish())
        } else {
            None
        }
    }

    /// Takes a message under its own topic. A retained one was there before the birth.
    pub(super) fn take(&mut self, host: &mut Host, payload: &[u8], is_retained: bool) -> Required {
        let Some(own_ms) = self.host_ms else {
            return Required::Nothing;
        };
        let state: Option<State> = serde_json::from_slice(payload).ok();
        if state.as_ref().is_some_and(|state| state.online) {
            return Required::Nothing;
        }
        // An empty payload removes the retained message; others say nothing to a node.
        let at_ms = state.map_or(own_ms, |state| state.timestamp);
        host.newest_ms = host.newest_ms.max(at_ms);
        if at_ms > own_ms {
            return Required::Reconnect;
        }
        if is_retained || !self.is_born {
            return Required::Nothing;
        }
        self.is_due_again = self.is_unacknowledged;
        if self.is_due_again {
            Required::Nothing
        } else {
            Required::Birth
        }
    }

    /// The birth again.
    pub(super) fn again(&mut self) -> &str {
        self.publish()
    }

    /// What is published before DISCONNECT.
    pub(super) fn death(&self, now_ms: i64) -> String {
        match self.host_ms {
            Some(own_ms) => state(false, now_ms.max(own_ms)),
            None => self.will.clone(),
        }
    }
}

#[derive(Debug, Deserialize)]
struct State {
    online: bool,
    timestamp: i64,
}

fn state(online: bool, at_ms: i64) -> String {
    format!("{{\"online\":{online},\"timestamp\":{at_ms}}}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Mqtt {
        let subscription = Subscription {
            format: SPARKPLUG.to_owned(),
            ..Subscription::default()
        };
        Mqtt {
            subscriptions: vec![subscription],
            ..Mqtt::default()
        }
    }

    fn host() -> Host {
        Host::new("H", &config()).unwrap()
    }

    #[test]
    fn will_and_birth_have_the_time_of_the_connection_and_death_that_of_its_end() {
        let mut host = host();
        let mut presence = Presence::new(&config(), Some(&mut host), 1000).unwrap();
        assert_eq!(presence.topic, "spBv1.0/STATE/H");
        assert_eq!(presence.will, r#"{"online":false,"timestamp":1000}"#);
        assert_eq!(presence.birth(false), None, "before the subscriptions");
        let birth = r#"{"online":true,"timestamp":1000}"#;
        assert_eq!(presence.birth(true), Some(birth));
        assert_eq!(presence.birth(true), None, "once");
        assert_eq!(presence.death(2000), r#"{"online":false,"timestamp":2000}"#);
        // The clock was set back.
        assert_eq!(presence.death(5), r#"{"online":false,"timestamp":1000}"#);
        let next = Presence::new(&config(), Some(&mut host), 7).unwrap();
        assert_eq!(next.will, r#"{"online":false,"timestamp":1001}"#);
    }

    #[test]
    fn an_offline_message_is_answered_by_the_birth_one_at_a_time() {
        let mut host = host();
        let mut presence = Presence::new(&config(), Some(&mut host), 1000).unwrap();
        let old = state(false, 999).into_bytes();
        let mut take = |presence: &mut Presence, payload: &[u8], is_retained| {
            presence.take(&mut host, payload, is_retained)
        };
        assert_eq!(take(&mut presence, &old, false), Required::Nothing);
        assert!(presence.birth(true).is_some());
        // Not acknowledged yet.
        assert_eq!(take(&mut presence, &old, false), Required::Nothing);
        assert_eq!(take(&mut presence, &old, false), Required::Nothing);
        assert!(presence.published().is_some(), "once for both");
        assert!(presence.published().is_none());
        assert_eq!(take(&mut presence, &old, true), Required::Nothing);
        for payload in [&old[..], b"", b"OFFLINE", b"{\"online\":false}"] {
            assert_eq!(take(&mut presence, payload, false), Required::Birth);
        }
        let online = state(true, 5000).into_bytes();
        assert_eq!(take(&mut presence, &online, false), Required::Nothing);
        for is_retained in [false, true] {
            let newer = state(false, 1001).into_bytes();
            assert_eq!(
                take(&mut presence, &newer, is_retained),
                Required::Reconnect
            );
        }
        let next = Presence::new(&config(), Some(&mut host), 1000).unwrap();
        assert_eq!(next.host_ms, Some(1002));
    }

    #[test]
    fn a_time_at_the_end_of_all_times_does_not_make_it_reconnect_for_ever() {
        let mut host = host();
        let mut presence = Presence::new(&config(), Some(&mut host), 1000).unwrap();
        let last = state(false, i64::MAX).into_bytes();
        assert_eq!(presence.take(&mut host, &last, true), Required::Reconnect);
        let mut presence = Presence::new(&config(), Some(&mut host), 1000).unwrap();
        assert_eq!(presence.take(&mut host, &last, true), Required::Nothing);
    }

    #[test]
    fn a_status_topic_has_two_words_and_other_brokers_have_nothing() {
        let config = Mqtt {
            status_topic: Some("t".into()),
            ..Mqtt::default()
        };
        assert!(Host::new("H", &config).is_none());
        let mut presence = Presence::new(&config, None, 1).unwrap();
        assert_eq!(presence.birth(false), Some(ONLINE));
        assert_eq!(
            (presence.will.as_str(), presence.death(9)),
            (OFFLINE, OFFLINE.into())
        );
        assert!(Presence::new(&Mqtt::default(), None, 1).is_none());
    }
}
