//! Settings that work but are probably not intended. Startup and `check` warn about them; neither
//! refuses them.

use super::mapping::Mapping;
use super::topic::{merges_sensors, overlap};
use super::units::{MIB, write_size};
use super::{AckMode, Config, Mqtt, MqttProtocol, Retained, Subscription, is_loopback, uri};

/// The smallest `journal.max_bytes` in which every dead letter of MQTT fits.
const JOURNAL_WITH_MQTT_MIN: u64 = 12 * MIB;

impl Config {
    /// One sentence for each warning, with its key.
    pub fn warnings(&self) -> Vec<String> {
        let brokers = self.mqtt.iter().enumerate();
        let of_brokers = brokers.flat_map(|(i, mqtt)| mqtt_warnings(&format!("mqtt[{i}]"), mqtt));
        let http = &self.http;
        let in_clear = http.enabled && !http.tls.is_on() && !is_loopback(http.listen.ip());
        let in_clear = in_clear.then(|| {
            "http.tls.cert_file is not set, so tokens and readings are sent unencrypted; set it \
             and key_file, or make sure that a proxy in front terminates TLS, or that only you use \
             the network"
                .to_owned()
        });
        let direct = &self.listen.mqtt;
        let is_plain =
            direct.enabled && direct.cert_file.is_none() && !is_loopback(direct.listen.ip());
        let plain = is_plain.then(|| {
            "listen.mqtt.cert_file is not set, so devices send their secrets and readings \
             unencrypted; set it and key_file, or make sure that only you use the network"
                .to_owned()
        });
        self.formats
            .iter()
            .flat_map(|mapping| constant_ids(mapping))
            .chain(of_brokers)
            .chain(in_clear)
            .chain(plain)
            .chain(self.forward_in_clear())
            .chain(self.small_journal())
            .chain(self.replaced_options())
            .chain(self.host_without_nodes())
            .collect()
    }

    /// Options of `store.uri` that have no effect: they would weaken what an acknowledgement means.
    fn replaced_options(&self) -> Option<String> {
        let store = &self.store;
        let names = uri::replaced_options(store.uri.reveal(), &store.write_concern);
        (!names.is_empty()).then(|| {
            format!(
                "store.uri: these options have no effect: {}; hourbucket reads from the primary, \
                 and waits for store.write_concern and the journal of MongoDB; remove them",
                names.join(", ")
            )
        })
    }

    fn forward_in_clear(&self) -> Option<String> {
        let authority = self.forward.url.as_ref()?.strip_prefix("http://")?;
        let host = authority
            .rsplit_once(':')
            .map_or(authority, |(host, _)| host);
        (!["127.0.0.1", "[::1]", "localhost"].contains(&host)).then(|| {
            "forward.url is http://, so the token and readings are sent unencrypted; use https://, \
             or make sure that only you use the network (a VPN)"
                .to_owned()
        })
    }

    /// Only brokers with Sparkplug subscriptions get the state of the host.
    fn host_without_nodes(&self) -> Option<String> {
        let reads_sparkplug = self.mqtt.iter().any(Mqtt::reads_sparkplug);
        (self.sparkplug.host_id.is_some() && !reads_sparkplug).then(|| {
            "sparkplug.host_id has no effect: no subscription has format = \"sparkplug\"; add one \
             with filter = \"spBv1.0/#\", or remove it"
                .to_owned()
        })
    }

    /// What one batch of messages becomes must fit into the half of the journal that can be freed:
    /// its readings, up to three eighths of the journal, and its dead letters, up to 1.5 MiB.
    fn small_journal(&self) -> Option<String> {
        let has_mqtt = !self.mqtt.is_empty() || self.listen.mqtt.enabled;
        let is_small = self.journal.max_bytes < JOURNAL_WITH_MQTT_MIN;
        (has_mqtt && is_small && self.ingest.ack == AckMode::Journal).then(|| {
            format!(
                "journal.max_bytes: the dead letter of a large message over MQTT may never fit, and \
                 the message would be sent again for ever; set it to at least {}",
                write_size(JOURNAL_WITH_MQTT_MIN)
            )
        })
    }
}

fn constant_ids(mapping: &Mapping) -> Vec<String> {
    let sentence = |rule| {
        format!(
            "formats.{}: the id of rule {rule} is the same for every message, so all devices \
             become one sensor; put a {{name}} or a {{/place}} into it",
            mapping.name
        )
    };
    mapping.constant_ids().map(sentence).collect()
}

fn mqtt_warnings(path: &str, mqtt: &Mqtt) -> Vec<String> {
    let subscriptions = mqtt.subscriptions.iter().enumerate();
    let of_each = |(i, s): (usize, &Subscription)| {
        subscription(&format!("{path}.subscriptions[{i}]"), s, mqtt)
    };
    subscriptions
        .clone()
        .flat_map(of_each)
        .chain(overlaps(path, &mqtt.subscriptions))
        .collect()
}

/// The filters that overlap an earlier one. A broker may send a message once for each subscription
/// that matches it (MQTT 5 §3.3.4).
fn overlaps(path: &str, subscriptions: &[Subscription]) -> impl Iterator<Item = String> {
    let overlapping = move |(i, s): (usize, &Subscription)| {
        let earlier = subscriptions
            .iter()
            .take(i)
            .position(|earlier| overlap(&earlier.filter, &s.filter))?;
        Some(format!(
            "{path}.subscriptions[{i}].filter and that of subscriptions[{earlier}] match the same \
             topics: a broker may send such a message once for each, and its readings without a \
             time of their own are then stored more than once; change the filters so that no topic \
             matches both"
        ))
    };
    subscriptions.iter().enumerate().filter_map(overlapping)
}

fn subscription(path: &str, s: &Subscription, mqtt: &Mqtt) -> Vec<String> {
    let mut found = vec![];
    if s.qos != s.qos_asked() {
        let set = s.qos;
        let asked = s.qos_asked();
        found.push(format!(
            "{path}.qos = {set} is treated as {asked}: this loses nothing, because a reading that \
             arrives twice is stored once"
        ));
    }
    if let Some(why) = merges_sensors(&s.filter, &s.topic) {
        found.push(format!("{path}.topic: {why}"));
    }
    if !s.is_shared() {
        return found;
    }
    let ends =
        mqtt.clean_start || (mqtt.protocol == MqttProtocol::V5 && mqtt.session_expiry.is_zero());
    if s.qos > 0 && ends {
        found.push(format!(
            "{path}.filter is shared and the session ends with its connection: messages already \
             sent to an instance that dies can be lost; set clean_start = false and a \
             session_expiry longer than a restart takes"
        ));
    }
    if s.retained == Retained::Always {
        found.push(format!(
            "{path}.retained = \"always\" has no effect: a broker sends no retained messages to a \
             shared subscription"
        ));
    }
    found
}
