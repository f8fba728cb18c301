//! The brokers that the service subscribes to, `[[mqtt]]`, and the topics of readings, which
//! `[[listen.mqtt.topics]]` has too.

use std::path::PathBuf;
use std::time::Duration;

use chrono_tz::Tz;

use super::declare::{Sections, settings};
use super::formats::SPARKPLUG;
use super::kinds::{
    Kind, checked, choice, count, duration, file, flag, number, path_in_quotes, size, text, zone,
};
use super::reader::{Bad, SecretFileError, read_secret, wrong};
use super::topic::{check_filter, check_tag_name, check_topic, parse_template};
use super::tree::{Node, Origin};
use super::units::{DAY, KIB, MIB, SECOND};
use super::{Secret, uri};

/// MQTT's keep-alive is a 16-bit number of seconds.
const KEEP_ALIVE_MAX: Duration = Duration::from_secs(65_535);
/// MQTT's session expiry is a 32-bit number of seconds; the largest one means forever.
const SESSION_EXPIRY_MAX: Duration = Duration::from_secs(u32::MAX as u64);
/// The largest packet that MQTT can carry (a four-byte variable length).
const PACKET_MAX_BYTES: u64 = 256 * MIB - 1;
/// Below the limit on a reading's tags, so that tags of the topic and the payload fit as well.
const USER_PROPERTY_TAGS_MAX: usize = 16;

/// Why a change of a broker needs a restart.
pub(super) const BROKER: &str = "connections and subscriptions of brokers are set up at startup \
    (password and certificate files are read again at each connection)";

settings! {
    /// One entry for each broker.
    pub struct Mqtt, restart(BROKER) {
        /// mqtt, mqtts, ws (with a path) or wss; set user and password with their keys below.
        url: String = String::new(), Kind::new("URL: `mqtt`, `mqtts`, `ws` or `wss`", url),
            required, example("\"mqtts://broker.example:8883\"");
        /// Unique for each broker and instance: a broker closes the older of two connections with
        /// the same id.
        client_id: String = String::new(), Kind::new("text, up to 256 characters", client_id),
            required, example("\"hourbucket-1\"");
        /// 5, or 4 for MQTT 3.1.1.
        protocol: MqttProtocol = MqttProtocol::V5, number(
            "`4` or `5`", &[(4, MqttProtocol::V4), (5, MqttProtocol::V5)],
            "write 5 for MQTT 5, or 4 for MQTT 3.1.1",
        );
        /// false: the broker queues messages while the service is away (protocol 5: for
        /// session_expiry).
        clean_start: bool = false, flag();
        session_expiry: Duration = SESSION_EXPIRY, duration(Duration::ZERO..=SESSION_EXPIRY_MAX);
        username: Option<String> = None, text().optional(), example("\"hourbucket\"");
        password: Option<Secret> = None, password().optional(), hidden;
        /// A file that holds only the password; it is read again for each connection. Or set
        /// HOURBUCKET_MQTT__0__PASSWORD. A password in the configuration file itself is refused.
        password_file: Option<PathBuf> = None,
            Kind::new("path of a file that holds a secret", path_in_quotes).optional(),
            example("\"mqtt-password\"");
        /// Trusted certificates (PEM) for mqtts and wss; absent: those of the system.
        ca_file: Option<PathBuf> = None, file().optional(), example("\"ca.pem\"");
        /// Client certificate chain and key (PEM), for a broker that requires one. All three files
        /// are read again for each connection; if they are unusable, those of the previous
        /// connection stay in use, and the log and /readyz report it.
        cert_file: Option<PathBuf> = None, file().optional(), example("\"client.pem\"");
        key_file: Option<PathBuf> = None, file().optional(), example("\"client.key\"");
        /// A connection ends if nothing arrives for this time after a PINGREQ.
        keep_alive: Duration = 30 * SECOND, duration(SECOND..=KEEP_ALIVE_MAX);
        /// The largest accepted message; a larger one becomes a dead letter (its first 1MiB).
        packet_max_bytes: u32 = 1024 * 1024, size(KIB..=PACKET_MAX_BYTES);
        /// Messages that may wait for their acknowledgement, up to 65535. With protocol = 4 the
        /// broker's own limit applies (mosquitto's max_inflight_messages); set it as high.
        window: u16 = 10_000, count(1..=65_535);
        /// Topic for "online" (published when connected) and "offline" (when not), retained and as
        /// the last will; absent: none.
        status_topic: Option<String> = None, status_topic().optional(),
            example("\"hourbucket/hourbucket-1/status\"");
        subscriptions: Vec<Subscription> = vec![], Sections {
            new: Subscription::default,
            without: &[],
        };
    }
}

settings! {
    pub struct Sparkplug, restart(BROKER) {
        /// The service is a Sparkplug host application with this id. At each broker with a
        /// subscription of format = "sparkplug" it publishes the topic spBv1.0/STATE/ID, retained:
        /// online when subscribed, offline as the last will and before it disconnects. So nodes
        /// whose primary host it is hold their data while it is away. It must be allowed to publish
        /// and subscribe there. Give an id to one instance only; status_topic cannot be set at the
        /// same broker. Absent: nothing is published.
        host_id: Option<String> = None, host_id().optional(), example("\"hourbucket\"");
    }
}

/// The default of `session_expiry`.
pub(super) const SESSION_EXPIRY: Duration = DAY.saturating_mul(7);

/// The protocol version of a broker's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MqttProtocol {
    /// MQTT 3.1.1.
    V4,
    /// MQTT 5.
    V5,
}

impl Mqtt {
    /// The current password. It is read again from its file, so a rotated password is used from the
    /// next connection on.
    ///
    /// # Errors
    /// The file is unusable now.
    pub fn password_now(&self) -> Result<Option<Secret>, SecretFileError> {
        match &self.password_file {
            Some(path) => read_secret(path).map(|text| Some(Secret::new(text))),
            None => Ok(self.password.clone()),
        }
    }

    /// Whether a subscription is of Sparkplug messages.
    pub fn reads_sparkplug(&self) -> bool {
        self.subscriptions.iter().any(|s| s.format == SPARKPLUG)
    }
}

settings! {
    /// One entry for each kind of topic of the broker above.
    pub struct Subscription, restart(BROKER) {
        /// Also "$share/group/sensors/+/+", if several instances share the messages. If the filters
        /// of two subscriptions match the same topic, a broker may send its messages twice;
        /// readings without a time are then stored twice.
        filter: String = String::new(), filter(), required, example("\"sensors/+/+\"");
        /// 1, or 0 if losses do not matter. 2 is treated as 1: a reading that arrives twice is
        /// stored once anyway.
        qos: u8 = 1, number(
            "`0`, `1` or `2`", &[(0, 0), (1, 1), (2, 2)], "write 1, or 0 if losses do not matter",
        );
        /// Meaning of the topic levels: {sensor_id}, {field}, any other {name} becomes a tag; +
        /// ignores a level, # at the end matches all remaining levels. A format that reads topics
        /// itself needs none.
        topic: String = String::new(), template(),
            instead_of_default("required, unless the format reads topics itself"),
            example("\"sensors/{sensor_id}/{field}\"");
        /// "json" or "ndjson" (the sensor's id from the payload, or from the topic if the payload
        /// has none), "cbor" or "msgpack" (the same structure), "scalar" (one bare value; needs
        /// {sensor_id} and {field}), "line" (InfluxDB line protocol, see [line]), "senml" or
        /// "senml-cbor" (RFC 8428: the sensor is the record's name and the field "value"; with
        /// {sensor_id} in the topic, that is the sensor and the record's name the field),
        /// "sparkplug" (Sparkplug B, with filter = "spBv1.0/#" and no topic: the sensor is
        /// group/node or group/node/device and the field the metric's name; the service requests a
        /// rebirth from a node whose births it has not seen, so it must be allowed to publish to
        /// spBv1.0/+/NCMD/+; $share filters cannot be used), or the name of a [formats.NAME] or of
        /// a built-in mapping.
        format: String = String::new(), Kind::new("name of a format", format_name),
            required, example("\"scalar\"");
        /// Unit of numeric times: "s", "ms", "us" or "ns"; absent: by magnitude, with format =
        /// "line" "ns".
        ts_unit: Option<String> = None, choice(TS_UNITS).map(str::to_owned, unit_name).optional(),
            example("\"ms\"");
        /// Time zone for times without one; overrides limits.zone.
        zone: Option<Tz> = None, zone().optional(), example("\"Europe/Berlin\"");
        /// Retained messages that the broker sends on subscribing: "once" (not again after a
        /// reconnect), "always" (at each connection) or "never".
        retained: Retained = Retained::Once, choice(Retained::NAMES);
        /// MQTT 5: user properties with these names become tags; up to 16.
        user_property_tags: Vec<String> = vec![], Kind::new("list of names, up to 16", tag_names),
            example("[\"site\"]");
    }
}

impl Subscription {
    /// A topic of devices that connect directly: nothing is requested from a broker.
    pub(super) fn of_devices() -> Subscription {
        Subscription {
            retained: Retained::Always,
            ..Subscription::default()
        }
    }

    /// Whether the broker shares its messages among several clients (MQTT 5 §4.8.2).
    pub fn is_shared(&self) -> bool {
        self.filter.starts_with("$share/")
    }

    /// The QoS to request from the broker. QoS 2 would guarantee nothing that QoS 1 does not,
    /// because readings that arrive twice are stored once.
    pub fn qos_asked(&self) -> u8 {
        self.qos.min(1)
    }
}

model::closed_set! {
    /// Which retained messages are accepted. This concerns messages that the broker sends because
    /// of a subscription, not those published at that moment.
    pub enum Retained {
        /// Each once: an accepted message is not accepted again after a reconnect (`ingest::mqtt`
        /// defines this exactly).
        Once => "once",
        /// All of them, at each connection.
        Always => "always",
        /// None.
        Never => "never",
    }
}

fn url(node: &Node) -> Result<String, Bad> {
    let advice =
        "write mqtt://host:port, mqtts://host:port, ws://host:port/path or wss://host:port/path";
    let text = node.text().ok_or_else(|| wrong(node, advice))?;
    // The error does not repeat the text: it may hold a password.
    uri::check_broker(text).map_err(|what| Bad::new(what, advice))?;
    Ok(text.to_owned())
}

fn client_id(node: &Node) -> Result<String, Bad> {
    let advice = "write 1 to 256 characters that no other client of this broker uses";
    let is_good =
        |text: &&str| !text.is_empty() && text.len() <= 256 && !text.chars().any(char::is_control);
    let text = node.text().filter(is_good).map(str::to_owned);
    text.ok_or_else(|| wrong(node, advice))
}

/// The environment alone can hold the password itself.
fn password() -> Kind<Secret> {
    let read = |node: &Node| match (&node.origin, node.text()) {
        (Origin::Env(_), Some(text)) => Ok(Secret::new(text.to_owned())),
        _ => Err(Bad::new(
            "a password is not allowed in this file",
            "put it into a separate file and set password_file, or set HOURBUCKET_MQTT__0__PASSWORD",
        )),
    };
    let schema = serde_json::json!(false);
    Kind::unwritten("text, a secret", schema, read)
        .written(|_| toml::Value::String("***".to_owned()))
}

/// The name of a format. Whether there is one of this name is checked with all sections.
fn format_name(node: &Node) -> Result<String, Bad> {
    let text = node.text().map(str::to_owned);
    text.ok_or_else(|| wrong(node, "write the name of a format in quotes"))
}

const TS_UNITS: &[(&str, &str)] = &[("s", "s"), ("ms", "ms"), ("us", "us"), ("ns", "ns")];

fn unit_name(unit: &String) -> &'static str {
    let found = TS_UNITS.iter().find(|(name, _)| name == unit);
    found.map_or("", |(name, _)| name)
}

/// One level of a topic.
fn host_id() -> Kind<String> {
    let advice = "write a name such as \"hourbucket\", without / + and #";
    checked("Sparkplug host id", advice, |id| {
        let is_level = !id.contains('/') && check_topic(id).is_ok();
        is_level.then_some(()).ok_or("not one level of a topic")
    })
}

fn status_topic() -> Kind<String> {
    let advice = "write a topic such as \"hourbucket/hourbucket-1/status\"";
    checked("topic", advice, check_topic)
}

fn filter() -> Kind<String> {
    let advice = "write a topic filter such as \"sensors/+/+\" or \"$share/group/sensors/#\"";
    checked("topic filter", advice, check_filter)
}

fn template() -> Kind<String> {
    let advice = "write a template such as \"sensors/{sensor_id}/{field}\"";
    checked("topic template", advice, |text| {
        parse_template(text).map(drop)
    })
}

/// Names of user properties. The configuration lists them, so that a device cannot invent tags.
fn tag_names(node: &Node) -> Result<Vec<String>, Bad> {
    let advice = "write a list of names, such as [\"site\", \"rack\"]";
    let names = node.texts().ok_or_else(|| wrong(node, advice))?;
    for (i, name) in names.iter().enumerate() {
        check_tag_name(name).map_err(|what| Bad::new(what, advice))?;
        if names[..i].contains(name) {
            return Err(Bad::new(
                format!("\"{name}\" occurs twice"),
                "keep one of the two",
            ));
        }
    }
    if names.len() > USER_PROPERTY_TAGS_MAX {
        return Err(Bad::new(
            format!("more than {USER_PROPERTY_TAGS_MAX} names"),
            "keep only the names that are needed",
        ));
    }
    Ok(names)
}
