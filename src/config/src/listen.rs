//! Reads `[listen.mqtt]`: devices that connect to hourbucket directly.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use super::connections::connections;
use super::mapping::Mapping;
use super::mqtt::topics;
use super::proxies::mqtt_proxies;
use super::reader::{Report, Section};
use super::units::{HOUR, KIB, MIB, SECOND};
use super::{ClientAuth, Listen, ListenMqtt, tls};

/// Reads the section. A topic can name one of the `formats`.
pub(crate) fn read(mut s: Section<'_>, formats: &[Arc<Mapping>]) -> Listen {
    let listen = Listen {
        mqtt: mqtt(s.section("mqtt"), formats),
    };
    s.end();
    listen
}

fn mqtt(mut s: Section<'_>, formats: &[Arc<Mapping>]) -> ListenMqtt {
    let mqtt = ListenMqtt {
        enabled: s.flag("enabled", false),
        listen: s.address("listen", SocketAddr::from((Ipv4Addr::LOCALHOST, 1883))),
        tokens_file: s.file("tokens_file"),
        allow_anonymous: s.flag("allow_anonymous", false),
        cert_file: s.file("cert_file"),
        key_file: s.file("key_file"),
        client_ca_file: s.file("client_ca_file"),
        client_crl_file: s.file("client_crl_file"),
        client_auth: s.choice(
            "client_auth",
            ClientAuth::Required,
            &[
                ("required", ClientAuth::Required),
                ("identity", ClientAuth::Identity),
            ],
        ),
        connections: connections(&mut s, 10_000),
        proxies: mqtt_proxies(&mut s),
        connect_timeout: s.duration("connect_timeout", 10 * SECOND, SECOND..=600 * SECOND),
        // MQTT's keep-alive is a 16-bit number of seconds.
        keep_alive_max: s.duration("keep_alive_max", HOUR, SECOND..=65_535 * SECOND),
        packet_max_bytes: u32::try_from(s.size("packet_max_bytes", 256 * KIB, KIB..=256 * MIB - 1))
            .unwrap_or(u32::MAX),
        write_timeout: s.duration("write_timeout", 30 * SECOND, SECOND..=600 * SECOND),
        packet_grace: s.duration("packet_grace", 30 * SECOND, SECOND..=HOUR),
        packet_rate_min: s.size("packet_rate_min", 2 * KIB, 1..=MIB),
        topic_max_bytes: s.count("topic_max_bytes", 1024, 1..=65_535),
        window: s.count("window", 100, 1..=65_535),
        topics: topics(&mut s, formats),
    };
    let path = s.key("");
    check(path.trim_end_matches('.'), &mqtt, s.report);
    s.end();
    mqtt
}

/// Reports impossible combinations within the section.
fn check(path: &str, mqtt: &ListenMqtt, report: &mut Report) {
    let key = |name: &str| format!("{path}.{name}");
    tls::check_files(
        path,
        "device",
        [&mqtt.cert_file, &mqtt.key_file, &mqtt.client_ca_file],
        report,
    );
    tls::check_clients(path, mqtt.client_ca_file.is_some(), report);
    if mqtt.allow_anonymous && mqtt.tokens_file.is_some() {
        report.impossible(
            &[&key("allow_anonymous"), &key("tokens_file")],
            "anonymous writing is allowed, but a tokens file is set",
            "remove one of them",
        );
    }
    if !mqtt.enabled {
        return;
    }
    if mqtt.topics.is_empty() {
        report.impossible(
            &[&key("topics"), &key("enabled")],
            "no topics are configured, so no message could be accepted",
            "add [[listen.mqtt.topics]] below it, with filter, topic and format",
        );
    }
}
