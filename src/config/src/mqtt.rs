//! Reads `[[mqtt]]` and its subscriptions, and checks the combinations within one broker.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::formats::{FORMATS, SPARKPLUG};
use super::mapping::{self, Mapping, profiles};
use super::reader::{Bad, Report, SecretFileError, Section, one_of, read_secret, wrong};
use super::suggest::nearest;
use super::topic::{Level, check_filter, check_tag_name, check_topic, never_meets, parse_template};
use super::tree::{Node, Origin};
use super::units::{DAY, KIB, MIB, SECOND};
use super::{Mqtt, MqttProtocol, Retained, Secret, Subscription, tls, uri};

const TS_UNITS: [&str; 4] = ["s", "ms", "us", "ns"];
const RETAINED: [(&str, Retained); 3] = [
    ("once", Retained::Once),
    ("always", Retained::Always),
    ("never", Retained::Never),
];
/// Below the limit on a reading's tags, so that tags of the topic and the payload fit as well.
const USER_PROPERTY_TAGS_MAX: usize = 16;

/// MQTT's keep-alive is a 16-bit number of seconds.
const KEEP_ALIVE_MAX: Duration = Duration::from_secs(65_535);
/// MQTT's session expiry is a 32-bit number of seconds; the largest one means forever.
const SESSION_EXPIRY_MAX: Duration = Duration::from_secs(u32::MAX as u64);
/// The largest packet that MQTT can carry (a four-byte variable length).
const PACKET_MAX_BYTES: u64 = 256 * MIB - 1;

/// Reads every broker. A subscription can name one of the `formats`.
pub(super) fn read(root: &mut Section<'_>, formats: &[Arc<Mapping>]) -> Vec<Mqtt> {
    let found = root.sections("mqtt");
    let mut brokers: Vec<Mqtt> = Vec::with_capacity(found.len());
    for (path, entries) in found {
        let mqtt = broker(Section::new(path.clone(), entries, root.report), formats);
        check_broker(&path, &mqtt, root.report);
        let same = |other: &Mqtt| {
            other.url == mqtt.url && other.client_id == mqtt.client_id && !mqtt.url.is_empty()
        };
        if brokers.iter().any(same) {
            root.report.impossible(
                &[&format!("{path}.client_id"), &format!("{path}.url")],
                "another [[mqtt]] has the same url and client_id, but a broker allows one \
                 connection per client_id",
                "give each a different client_id, or put the subscriptions into one [[mqtt]]",
            );
        }
        brokers.push(mqtt);
    }
    for i in 0..brokers.len() {
        let count = brokers.iter().filter(|b| b.url == brokers[i].url).count();
        brokers[i].is_url_shared = count > 1;
    }
    brokers
}

fn broker(mut s: Section<'_>, formats: &[Arc<Mapping>]) -> Mqtt {
    let url = required(&mut s, "url", "mqtt://127.0.0.1:1883", url);
    let client_id = required(&mut s, "client_id", "hourbucket-1", client_id);
    let protocol = s.parse("protocol", protocol).unwrap_or(MqttProtocol::V5);
    let clean_start = s.flag("clean_start", false);
    let week = 7 * DAY;
    let session_expiry = s.duration("session_expiry", week, Duration::ZERO..=SESSION_EXPIRY_MAX);
    let username = s.text("username");
    let (password, password_file) = password(&mut s);
    let mqtt = Mqtt {
        url,
        client_id,
        protocol,
        clean_start,
        session_expiry,
        username,
        password,
        password_file,
        ca_file: s.file("ca_file"),
        cert_file: s.file("cert_file"),
        key_file: s.file("key_file"),
        keep_alive: s.duration("keep_alive", 30 * SECOND, SECOND..=KEEP_ALIVE_MAX),
        packet_max_bytes: packet_max_bytes(&mut s),
        window: s.count("window", 10_000, 1..=65_535),
        status_topic: s.parse("status_topic", status_topic),
        subscriptions: subscriptions(&mut s, formats),
        is_url_shared: false,
    };
    s.end();
    mqtt
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
}

/// A required text. If it is missing or bad, the result is empty and the report has the reason.
fn required(
    s: &mut Section<'_>,
    key: &str,
    example: &str,
    understand: impl FnOnce(&Node) -> Result<String, Bad>,
) -> String {
    let value = s.parse(key, understand);
    let path = s.key(key);
    if value.is_none() && !s.report.is_set(&path) {
        s.report.bad(
            &path,
            Bad::new(
                "missing",
                format!("write for example {key} = \"{example}\""),
            ),
        );
    }
    value.unwrap_or_default()
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
    let text = node.text().ok_or_else(|| wrong(node, advice))?;
    let good = !text.is_empty() && text.len() <= 256 && !text.chars().any(char::is_control);
    if good {
        Ok(text.to_owned())
    } else {
        Err(wrong(node, advice))
    }
}

fn protocol(node: &Node) -> Result<MqttProtocol, Bad> {
    match node.integer() {
        Some(4) => Ok(MqttProtocol::V4),
        Some(5) => Ok(MqttProtocol::V5),
        _ => Err(wrong(node, "write 5 for MQTT 5, or 4 for MQTT 3.1.1")),
    }
}

fn packet_max_bytes(s: &mut Section<'_>) -> u32 {
    u32::try_from(s.size("packet_max_bytes", MIB, KIB..=PACKET_MAX_BYTES)).unwrap_or(u32::MAX)
}

/// The password, and the file to read it from again. The password comes from `password`
/// (environment only) or from the content of `password_file`; the environment wins.
fn password(s: &mut Section<'_>) -> (Option<Secret>, Option<PathBuf>) {
    let direct = s.parse("password", |node| match (&node.origin, node.text()) {
        (Origin::Env(_), Some(text)) => Ok(Secret::new(text.to_owned())),
        _ => Err(Bad::new(
            "a password is not allowed in this file",
            "put it into a separate file and set password_file, or set \
             HOURBUCKET_MQTT__0__PASSWORD",
        )),
    });
    let from_file = s.parse("password_file", |node| {
        let path = Path::new(
            node.text()
                .ok_or_else(|| wrong(node, "write a path in quotes"))?,
        );
        // If the environment holds the password itself, the file is not needed and may be missing.
        if direct.is_some() {
            Ok(None)
        } else {
            Ok(Some((Secret::new(read_secret(path)?), path.to_owned())))
        }
    });
    match from_file.flatten() {
        Some((secret, path)) => (Some(secret), Some(path)),
        None => (direct, None),
    }
}

fn status_topic(node: &Node) -> Result<String, Bad> {
    let advice = "write a topic such as \"hourbucket/hourbucket-1/status\"";
    let text = node.text().ok_or_else(|| wrong(node, advice))?;
    check_topic(text).map_err(|what| Bad::new(what, advice))?;
    Ok(text.to_owned())
}

fn subscriptions(s: &mut Section<'_>, formats: &[Arc<Mapping>]) -> Vec<Subscription> {
    routes(s, "subscriptions", Way::Broker, formats)
}

/// Reads `[[listen.mqtt.topics]]`: the topics that devices may send to.
pub(super) fn topics(s: &mut Section<'_>, formats: &[Arc<Mapping>]) -> Vec<Subscription> {
    routes(s, "topics", Way::Direct, formats)
}

/// Where messages come from. Keys such as `qos` and `retained` are requests to a broker and have no
/// meaning without one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Broker,
    Direct,
}

fn routes(s: &mut Section<'_>, key: &str, way: Way, formats: &[Arc<Mapping>]) -> Vec<Subscription> {
    let found = s.sections(key);
    let mut subscriptions: Vec<Subscription> = Vec::with_capacity(found.len());
    for (path, entries) in found {
        let subscription =
            subscription(Section::new(path.clone(), entries, s.report), way, formats);
        check_subscription(&path, &subscription, way, s.report);
        check_format(&path, &subscription, formats, s.report);
        if subscriptions
            .iter()
            .any(|other| other.filter == subscription.filter && !other.filter.is_empty())
        {
            s.report.impossible(
                &[&format!("{path}.filter")],
                format!("the filter \"{}\" occurs twice", subscription.filter),
                "remove one of the two",
            );
        }
        subscriptions.push(subscription);
    }
    subscriptions
}

fn subscription(mut s: Section<'_>, way: Way, formats: &[Arc<Mapping>]) -> Subscription {
    let mut subscription = Subscription {
        filter: required(&mut s, "filter", "sensors/+/+", |node| {
            let advice =
                "write a topic filter such as \"sensors/+/+\" or \"$share/group/sensors/#\"";
            let text = node.text().ok_or_else(|| wrong(node, advice))?;
            check_filter(text).map_err(|what| Bad::new(what, advice))?;
            if way == Way::Direct && text.starts_with("$share/") {
                return Err(Bad::new(
                    "devices connect directly, so nothing is shared between instances",
                    advice,
                ));
            }
            Ok(text.to_owned())
        }),
        qos: if way == Way::Broker {
            s.parse("qos", qos).unwrap_or(1)
        } else {
            1
        },
        topic: s
            .parse("topic", |node| {
                let advice = "write a template such as \"sensors/{sensor_id}/{field}\"";
                let text = node.text().ok_or_else(|| wrong(node, advice))?;
                parse_template(text).map_err(|what| Bad::new(what, advice))?;
                Ok(text.to_owned())
            })
            .unwrap_or_default(),
        format: required(&mut s, "format", "json", |node| {
            let configured = formats.iter().map(|mapping| mapping.name.as_str());
            let shipped = FORMATS
                .iter()
                .copied()
                .chain(profiles::names())
                .map(|name| -> &str { name });
            let names: Vec<&str> = configured.chain(shipped).collect();
            named(node, &names)
        }),
        ts_unit: s.parse("ts_unit", |node| named(node, &TS_UNITS)),
        zone: s.parse("zone", mapping::zone),
        retained: match way {
            Way::Broker => s.choice("retained", Retained::Once, &RETAINED),
            Way::Direct => Retained::Always,
        },
        user_property_tags: s.parse("user_property_tags", tag_names).unwrap_or_default(),
    };
    default_topic(&mut s, &mut subscription, formats);
    s.end();
    subscription
}

/// Mappings and Sparkplug B may read topics themselves; any other format needs the template.
fn default_topic(s: &mut Section<'_>, subscription: &mut Subscription, formats: &[Arc<Mapping>]) {
    let path = s.key("topic");
    if s.report.is_set(&path) {
        return;
    }
    if mapping::find(formats, &subscription.format).is_some() {
        subscription.topic = "#".to_owned();
    } else if subscription.format == SPARKPLUG {
        subscription.topic = "spBv1.0/#".to_owned();
    } else {
        let advice = "write for example topic = \"sensors/{sensor_id}/{field}\"";
        s.report.bad(&path, Bad::new("missing", advice));
    }
}

fn qos(node: &Node) -> Result<u8, Bad> {
    match node.integer() {
        Some(n @ 0..=2) => Ok(n as u8),
        _ => Err(wrong(node, "write 1, or 0 if losses do not matter")),
    }
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

fn named(node: &Node, names: &[&str]) -> Result<String, Bad> {
    let text = node.text();
    if let Some(text) = text.filter(|text| names.contains(text)) {
        return Ok(text.to_owned());
    }
    let near = text.and_then(|text| nearest(text, names.iter().copied()));
    let advice = one_of(names);
    Err(wrong(
        node,
        &near.map_or(advice.clone(), |near| {
            format!("did you mean \"{near}\"? {advice}")
        }),
    ))
}

/// A mapping that never names the sensor needs a template that does.
fn check_format(
    path: &str,
    subscription: &Subscription,
    formats: &[Arc<Mapping>],
    report: &mut Report,
) {
    let topic = format!("{path}.topic");
    let format = format!("{path}.format");
    let Ok(template) = parse_template(&subscription.topic) else {
        return;
    };
    let needs_id = mapping::find(formats, &subscription.format)
        .is_some_and(|mapping| mapping.never_names_a_sensor());
    if needs_id
        && !template
            .iter()
            .any(|level| matches!(level, Level::Name("sensor_id") | Level::Names("sensor_id")))
    {
        report.impossible(
            &[
                &topic,
                &format,
                &format!("formats.{}.id", subscription.format),
            ],
            "no sensor id: the format has no `id` and no {sensor_id} in `topic` or `each`, nor has \
             the template",
            "write a template such as \"gateway/{sensor_id}\", or give the format an `id`",
        );
    }
}

/// Reports impossible combinations within one subscription.
fn check_subscription(path: &str, subscription: &Subscription, way: Way, report: &mut Report) {
    let filter = format!("{path}.filter");
    let topic = format!("{path}.topic");
    let format = format!("{path}.format");
    let Ok(template) = parse_template(&subscription.topic) else {
        return;
    };
    if subscription.format == "scalar" {
        for name in ["sensor_id", "field"] {
            if !template.contains(&Level::Name(name)) {
                report.impossible(
                    &[&topic, &format],
                    format!(
                        "a scalar payload carries no {name}, and the template has no \
                        {{{name}}}"
                    ),
                    "write a template such as \"sensors/{sensor_id}/{field}\", or format = \
                     \"json\"",
                );
            }
        }
    }
    if subscription.format == SPARKPLUG {
        check_sparkplug(path, subscription, way, report);
    }
    if let Some(why) = never_meets(&subscription.filter, &template) {
        let advice = "change filter or topic so that they describe the same topics";
        report.impossible(
            &[&topic, &filter],
            format!("no message can match it: {why}"),
            advice,
        );
    }
}

/// Sparkplug B defines its topics, and the meaning of a message depends on earlier ones.
fn check_sparkplug(path: &str, subscription: &Subscription, way: Way, report: &mut Report) {
    let filter = format!("{path}.filter");
    let format = format!("{path}.format");
    if way == Way::Direct {
        report.impossible(
            &[&format],
            "Sparkplug B nodes subscribe to commands, and devices that connect directly cannot \
             subscribe",
            "connect the nodes to a broker, and move this entry to [[mqtt.subscriptions]]",
        );
    } else if subscription.is_shared() {
        report.impossible(
            &[&format, &filter],
            "with a shared subscription, a node's births and its data could reach different \
             instances",
            "write filter = \"spBv1.0/#\", or give each instance the filters of some groups of \
             nodes",
        );
    } else if !subscription.filter.starts_with("spBv1.0/") {
        report.impossible(
            &[&format, &filter],
            "Sparkplug B topics begin with spBv1.0/",
            "write filter = \"spBv1.0/#\", and remove topic or begin it with spBv1.0/",
        );
    }
}

/// Reports impossible combinations within one broker's settings.
fn check_broker(path: &str, mqtt: &Mqtt, report: &mut Report) {
    let key = |name: &str| format!("{path}.{name}");
    if mqtt.subscriptions.is_empty() {
        report.impossible(
            &[&key("subscriptions"), path],
            "the broker has no subscriptions, so it would send nothing",
            "add [[mqtt.subscriptions]] below it, with filter, topic and format",
        );
    }
    if mqtt.ca_file.is_some() && uri::check_broker(&mqtt.url) == Ok(false) {
        report.impossible(
            &[&key("ca_file"), &key("url")],
            "the connection is not encrypted, so there is no certificate to check",
            "write mqtts:// or wss:// in url, or remove ca_file",
        );
    }
    tls::check_pair(
        path,
        "a client certificate is",
        [&mqtt.cert_file, &mqtt.key_file],
        report,
    );
    if mqtt.cert_file.is_some() && uri::check_broker(&mqtt.url) == Ok(false) {
        report.impossible(
            &[&key("cert_file"), &key("url")],
            "the connection is not encrypted, so no client certificate can be presented",
            "write mqtts:// or wss:// in url, or remove cert_file and key_file",
        );
    }
    let with_tags = mqtt
        .subscriptions
        .iter()
        .position(|s| !s.user_property_tags.is_empty());
    if let Some(i) = with_tags.filter(|_| mqtt.protocol == MqttProtocol::V4) {
        report.impossible(
            &[
                &key(&format!("subscriptions[{i}].user_property_tags")),
                &key("protocol"),
            ],
            "MQTT 3.1.1 has no user properties",
            "write protocol = 5, or remove it",
        );
    }
    if mqtt.password.is_some() && mqtt.username.is_none() {
        let keys = [&*key("username"), &key("password_file"), &key("password")];
        report.impossible(&keys, "a password without a username", "set username too");
    }
    if mqtt.protocol == MqttProtocol::V4 && report.is_set(&key("session_expiry")) {
        report.impossible(
            &[&key("session_expiry"), &key("protocol")],
            "MQTT 3.1.1 has no session expiry",
            "remove the key and configure the expiry in the broker, or write protocol = 5",
        );
    }
}
