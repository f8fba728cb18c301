//! What can be run but is hardly meant: said at the start and by `check`, refused nowhere.

use super::mapping::Mapping;
use super::topic::merges_sensors;
use super::{Config, Mqtt, MqttProtocol, Retained, Subscription};

impl Config {
    /// A sentence for each, with its key.
    pub fn warnings(&self) -> Vec<String> {
        let brokers = self.mqtt.iter().enumerate();
        let of_brokers = brokers.flat_map(|(i, mqtt)| mqtt_warnings(&format!("mqtt[{i}]"), mqtt));
        let http = &self.http;
        let in_clear = http.enabled && !http.tls.is_on() && !http.listen.ip().is_loopback();
        let in_clear = in_clear.then(|| {
            "http.tls.cert_file is not set, so senders' tokens and readings travel in clear; set it and key_file, or see to it \
             that something in front speaks TLS, or that the network is yours alone"
                .to_owned()
        });
        let direct = &self.listen.mqtt;
        let is_plain = direct.enabled && direct.cert_file.is_none() && !direct.listen.ip().is_loopback();
        let plain = is_plain.then(|| {
            "listen.mqtt.cert_file is not set, so devices send their secrets and readings in clear; set it and key_file, or \
             see to it that the network is yours alone"
                .to_owned()
        });
        self.formats
            .iter()
            .flat_map(|mapping| constant_ids(mapping))
            .chain(of_brokers)
            .chain(in_clear)
            .chain(plain)
            .collect()
    }
}

fn constant_ids(mapping: &Mapping) -> Vec<String> {
    let sentence = |rule| {
        format!(
            "formats.{}: the id of rule {rule} is the same text for every message, so all devices become one sensor; put a \
             {{name}} or a {{/place}} into it",
            mapping.name
        )
    };
    mapping.constant_ids().map(sentence).collect()
}

fn mqtt_warnings(path: &str, mqtt: &Mqtt) -> Vec<String> {
    let subscriptions = mqtt.subscriptions.iter().enumerate();
    subscriptions.flat_map(|(i, s)| subscription(&format!("{path}.subscriptions[{i}]"), s, mqtt)).collect()
}

fn subscription(path: &str, s: &Subscription, mqtt: &Mqtt) -> Vec<String> {
    let mut found = vec![];
    if s.qos != s.qos_asked() {
        let (set, asked) = (s.qos, s.qos_asked());
        found.push(format!(
            "{path}.qos = {set} is taken as {asked}: nothing is lost with it, and readings that arrive twice are stored once"
        ));
    }
    if let Some(why) = merges_sensors(&s.filter, &s.topic) {
        found.push(format!("{path}.topic: {why}"));
    }
    if !s.filter.starts_with("$share/") {
        return found;
    }
    let ends = mqtt.clean_start || (mqtt.protocol == MqttProtocol::V5 && mqtt.session_expiry.is_zero());
    if s.qos > 0 && ends {
        found.push(format!(
            "{path}.filter is shared and the session ends with its connection: what the broker has sent to an instance that \
             dies can be lost; set clean_start = false and a session_expiry longer than its restart takes"
        ));
    }
    if s.retained == Retained::Always {
        found.push(format!(
            "{path}.retained = \"always\" has no effect: a broker sends no retained messages to a shared subscription"
        ));
    }
    found
}
