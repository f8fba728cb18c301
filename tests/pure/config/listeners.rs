//! The settings of the ports: MQTT and HTTPS.

use super::{Place, direct, one_problem};

#[test]
fn the_mqtt_listener_needs_its_settings() {
    let place = Place::new();
    let good = place.good(&direct(""), &[]);
    assert_eq!(
        (
            good.listen.mqtt.listen.to_string().as_str(),
            good.warnings().len()
        ),
        ("127.0.0.1:1883", 0)
    );
    place.good(&format!("http.enabled = false\n{}", direct("")), &[]);
    let plain = place.good(
        &direct("listen = \"0.0.0.0:1883\"\ntokens_file = \"tokens.toml\""),
        &[],
    );
    assert!(plain.warnings()[0].contains("unencrypted"));
    for (text, key, part) in [
        (
            direct("listen = \"0.0.0.0:1883\""),
            "listen.mqtt.listen",
            "anyone could write",
        ),
        (
            direct("listen = \"127.0.0.1:8080\""),
            "listen.mqtt.listen",
            "the same address",
        ),
        (
            direct("cert_file = \"server.pem\""),
            "listen.mqtt.cert_file",
            "key_file is not set",
        ),
        (
            direct("client_ca_file = \"ca.pem\""),
            "listen.mqtt.client_ca_file",
            "without TLS",
        ),
        (
            direct("tokens_file = \"tokens.toml\"\nallow_anonymous = true"),
            "listen.mqtt.allow_anonymous",
            "tokens",
        ),
        (direct("window = 0"), "listen.mqtt.window", "1 to 65535"),
        (
            direct("").replace("a/+", "$share/g/a/+"),
            "listen.mqtt.topics[0].filter",
            "nothing is shared",
        ),
        (
            direct("").replace("format", "qos = 1\nformat"),
            "listen.mqtt.topics[0].qos",
            "no such key",
        ),
        (
            "[listen.mqtt]\nenabled = true\n".to_owned(),
            "listen.mqtt.enabled",
            "no topics are configured",
        ),
    ] {
        one_problem(&place, &text, key, part);
    }
}

#[test]
fn an_https_port_needs_its_settings() {
    let place = Place::new();
    let tls = "[http.tls]\ncert_file = \"server.pem\"\nkey_file = \"server.key\"\n";
    let outside = "[http]\nlisten = \"0.0.0.0:8080\"\n";
    let tokens = "tokens_file = \"tokens.toml\"\n";
    let ca = "client_ca_file = \"ca.pem\"\n";
    for (text, in_clear) in [
        (format!("{outside}{tokens}"), true),
        (format!("{outside}{tokens}{tls}"), false),
        (format!("{outside}{tls}{ca}"), false),
    ] {
        let warnings = place.good(&text, &[]).warnings();
        assert_eq!(
            warnings
                .iter()
                .any(|warning| warning.contains("unencrypted")),
            in_clear,
            "{text}: {warnings:?}"
        );
    }
    for (text, key, part) in [
        (
            format!("{outside}{tls}"),
            "http.listen",
            "anyone could write",
        ),
        (
            format!("{outside}{tls}{ca}client_auth = \"optional\"\n"),
            "http.listen",
            "anyone could write",
        ),
        (
            "[admin.tls]\ncert_file = \"server.pem\"\n".into(),
            "admin.tls.cert_file",
            "key_file is not set",
        ),
        (
            "[http.tls]\nkey_file = \"server.key\"\n".into(),
            "http.tls.key_file",
            "cert_file is not set",
        ),
        (
            format!("[admin.tls]\n{ca}"),
            "admin.tls.client_ca_file",
            "without TLS",
        ),
        (
            format!("{tls}client_auth = \"required\"\n"),
            "http.tls.client_auth",
            "without client_ca_file",
        ),
        (
            format!("{tls}{ca}client_auth = \"maybe\"\n"),
            "http.tls.client_auth",
            "\"optional\" or \"identity\"",
        ),
        (
            format!("{tls}min_version = \"1.1\"\n"),
            "http.tls.min_version",
            "\"1.2\" or \"1.3\"",
        ),
        (
            format!("{tls}ca_file = \"ca.pem\"\n"),
            "http.tls.ca_file",
            "no such key",
        ),
    ] {
        one_problem(&place, &text, key, part);
    }
}
