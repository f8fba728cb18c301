//! Checks the brokers and the topics of readings: combinations within one, and names of formats.

use super::check::impossible;
use super::formats::{FORMATS, SPARKPLUG};
use super::mapping::{self, profiles};
use super::mqtt::SESSION_EXPIRY;
use super::reader::{Bad, Report, one_of, quoted, read_secret};
use super::suggest::nearest;
use super::topic::{Level, never_meets, parse_template};
use super::{Config, Mqtt, MqttProtocol, Subscription, check, uri};

/// Where messages come from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Broker,
    Direct,
}

/// Fills in what depends on other keys: the environment holds the password in place of its file,
/// and a format that reads topics itself needs no template.
pub(super) fn complete(config: &mut Config, report: &mut Report) {
    let Config {
        formats,
        mqtt,
        listen,
        ..
    } = config;
    for broker in &mut *mqtt {
        broker.password_file = broker
            .password_file
            .take()
            .filter(|_| broker.password.is_none());
    }
    let brokers = mqtt.iter_mut().enumerate();
    let subscriptions = brokers.flat_map(|(i, broker)| {
        let all = broker.subscriptions.iter_mut().enumerate();
        all.map(move |(j, route)| (format!("mqtt[{i}].subscriptions[{j}].topic"), route))
    });
    let topics = listen.mqtt.topics.iter_mut().enumerate();
    let topics = topics.map(|(i, route)| (format!("listen.mqtt.topics[{i}].topic"), route));
    for (path, route) in subscriptions.chain(topics) {
        if report.is_set(&path) {
            continue;
        }
        if mapping::find(formats, &route.format).is_some() {
            route.topic = "#".to_owned();
        } else if route.format == SPARKPLUG {
            route.topic = "spBv1.0/#".to_owned();
        } else {
            let advice = "write for example topic = \"sensors/{sensor_id}/{field}\"";
            report.bad(&path, Bad::new("missing", advice));
        }
    }
}

/// Reports impossible combinations.
pub(super) fn combinations(config: &Config, report: &mut Report) {
    for (i, broker) in config.mqtt.iter().enumerate() {
        let path = format!("mqtt[{i}]");
        routes(
            config,
            &format!("{path}.subscriptions"),
            &broker.subscriptions,
            Way::Broker,
            report,
        );
        check_broker(&path, broker, report);
        let is_same = |other: &Mqtt| {
            other.url == broker.url && other.client_id == broker.client_id && !broker.url.is_empty()
        };
        impossible! { report;
            config.mqtt[..i].iter().any(is_same)
                => [&format!("{path}.client_id"), &format!("{path}.url")],
                "another [[mqtt]] has the same url and client_id, but a broker allows one \
                 connection per client_id",
                "give each a different client_id, or put the subscriptions into one [[mqtt]]";
        }
    }
    check_host(config, report);
    let topics = &config.listen.mqtt.topics;
    routes(config, "listen.mqtt.topics", topics, Way::Direct, report);
}

/// A connection has one will.
fn check_host(config: &Config, report: &mut Report) {
    let is_host = config.sparkplug.host_id.is_some();
    let key = "sparkplug.host_id";
    for (i, broker) in config.mqtt.iter().enumerate() {
        let status_topic = format!("mqtt[{i}].status_topic");
        impossible! { report;
            is_host && broker.reads_sparkplug() && broker.status_topic.is_some() => [&status_topic, &key],
                "a connection has one last will, and the one of this broker is the state of the \
                 Sparkplug host",
                "remove status_topic, or give it to another [[mqtt]] of the same broker";
        }
    }
}

fn routes(config: &Config, path: &str, routes: &[Subscription], way: Way, report: &mut Report) {
    for (i, route) in routes.iter().enumerate() {
        let path = format!("{path}[{i}]");
        let filter = format!("{path}.filter");
        if way == Way::Direct && route.is_shared() {
            report.bad(
                &filter,
                Bad::new(
                    "devices connect directly, so nothing is shared between instances",
                    "write a topic filter such as \"sensors/+/+\"",
                ),
            );
        }
        check_format(config, &path, route, report);
        check_subscription(&path, route, way, report);
        let is_same = |other: &Subscription| other.filter == route.filter;
        impossible! { report;
            !route.filter.is_empty() && routes[..i].iter().any(is_same) => [&filter],
                format!("the filter \"{}\" occurs twice", route.filter),
                "remove one of the two";
        }
    }
}

/// The format must exist, and a mapping that never names the sensor needs a template that does.
fn check_format(config: &Config, path: &str, route: &Subscription, report: &mut Report) {
    let topic = format!("{path}.topic");
    let format = format!("{path}.format");
    let name = route.format.as_str();
    let mapping = mapping::find(&config.formats, name);
    if mapping.is_none() && !FORMATS.contains(&name) && report.is_usable(&format) {
        let own = config.formats.iter().map(|mapping| mapping.name.as_str());
        let names: Vec<&str> = own
            .chain(FORMATS.iter().map(|name| -> &str { name }))
            .chain(profiles::names().map(|name| -> &str { name }))
            .collect();
        let mut advice = one_of(&names);
        if let Some(near) = nearest(name, names.iter().copied()) {
            advice = format!("did you mean \"{near}\"? {advice}");
        }
        let what = format!("{} is not understood", quoted(name));
        report.bad(&format, Bad::new(what, advice));
    }
    let Ok(template) = parse_template(&route.topic) else {
        return;
    };
    let names_sensor =
        |level: &Level<'_>| matches!(level, Level::Name("sensor_id") | Level::Names("sensor_id"));
    let needs_id = mapping.is_some_and(|mapping| mapping.never_names_a_sensor());
    impossible! { report;
        needs_id && !template.iter().any(names_sensor)
            => [&topic, &format, &format!("formats.{name}.id")],
            "no sensor id: the format has no `id` and no {sensor_id} in `topic` or `each`, nor has \
             the template",
            "write a template such as \"gateway/{sensor_id}\", or give the format an `id`";
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
    for name in ["sensor_id", "field"] {
        impossible! { report;
            subscription.format == "scalar" && !template.contains(&Level::Name(name))
                => [&topic, &format],
                format!("a scalar payload carries no {name}, and the template has no {{{name}}}"),
                "write a template such as \"sensors/{sensor_id}/{field}\", or format = \"json\"";
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
    let is_direct = way == Way::Direct;
    let is_shared = subscription.is_shared();
    let is_own = subscription.filter.starts_with("spBv1.0/");
    impossible! { report;
        is_direct => [&format],
            "Sparkplug B nodes subscribe to commands, and devices that connect directly cannot \
             subscribe",
            "connect the nodes to a broker, and move this entry to [[mqtt.subscriptions]]";
        !is_direct && is_shared => [&format, &filter],
            "with a shared subscription, a node's births and its data could reach different \
             instances",
            "write filter = \"spBv1.0/#\", or give each instance the filters of some groups of \
             nodes";
        !is_direct && !is_shared && !is_own => [&format, &filter],
            "Sparkplug B topics begin with spBv1.0/",
            "write filter = \"spBv1.0/#\", and remove topic or begin it with spBv1.0/";
    }
}

/// Reports impossible combinations within one broker's settings.
fn check_broker(path: &str, mqtt: &Mqtt, report: &mut Report) {
    let key = |name: &str| format!("{path}.{name}");
    let is_plain = uri::check_broker(&mqtt.url) == Ok(false);
    let is_v4 = mqtt.protocol == MqttProtocol::V4;
    let has_password = mqtt.password.is_some() || mqtt.password_file.is_some();
    check::check_pair(
        path,
        "a client certificate is",
        [&mqtt.cert_file, &mqtt.key_file],
        report,
    );
    let mut subscriptions = mqtt.subscriptions.iter();
    let with_tags = subscriptions.position(|s| !s.user_property_tags.is_empty());
    let tags = format!(
        "subscriptions[{}].user_property_tags",
        with_tags.unwrap_or(0)
    );
    if let Some(Err(error)) = mqtt.password_file.as_deref().map(read_secret) {
        report.bad(&key("password_file"), error.into());
    }
    impossible! { report;
        mqtt.subscriptions.is_empty() => [&key("subscriptions"), path],
            "the broker has no subscriptions, so it would send nothing",
            "add [[mqtt.subscriptions]] below it, with filter, topic and format";
        is_plain && mqtt.ca_file.is_some() => [&key("ca_file"), &key("url")],
            "the connection is not encrypted, so there is no certificate to check",
            "write mqtts:// or wss:// in url, or remove ca_file";
        is_plain && mqtt.cert_file.is_some() => [&key("cert_file"), &key("url")],
            "the connection is not encrypted, so no client certificate can be presented",
            "write mqtts:// or wss:// in url, or remove cert_file and key_file";
        is_v4 && with_tags.is_some() => [&key(&tags), &key("protocol")],
            "MQTT 3.1.1 has no user properties",
            "write protocol = 5, or remove it";
        has_password && mqtt.username.is_none()
            => [&key("username"), &key("password_file"), &key("password")],
            "a password without a username", "set username too";
        is_v4 && mqtt.session_expiry != SESSION_EXPIRY
            => [&key("session_expiry"), &key("protocol")],
            "MQTT 3.1.1 has no session expiry",
            "remove the key and configure the expiry in the broker, or write protocol = 5";
    }
}
