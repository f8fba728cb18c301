//! The environment, which overrides the file.

use std::time::Duration;

use config::MqttProtocol;

use super::{DESIGN, Place};

#[test]
fn the_environment_overrides_the_file_and_is_parsed_by_the_type_of_the_key() {
    let place = Place::new();
    let secret = place.file("uri", "mongodb://user:pass@db/\n");
    let env = [
        ("HOURBUCKET_STORE__URI_FILE", secret.to_str().unwrap()),
        ("HOURBUCKET_HTTP__ENABLED", "false"),
        ("HOURBUCKET_BUCKET__MAX_READINGS", "500"),
        ("HOURBUCKET_FLUSH__MAX_AGE", "1m30s"),
        ("HOURBUCKET_JOURNAL__MAX_BYTES", "1GiB"),
        ("HOURBUCKET_STORE__WRITE_CONCERN", "1"),
        ("HOURBUCKET_STORE__RETENTION", ""),
        ("HOURBUCKET_ENRICH__FIELDS", "site, place.room"),
        ("HOURBUCKET_MQTT__0__CLIENT_ID", "other"),
        ("HOURBUCKET_MQTT__0__PASSWORD", "from-env"),
        ("HOURBUCKET_MQTT__0__SUBSCRIPTIONS__1__FILTER", "more/+"),
        (
            "HOURBUCKET_MQTT__0__SUBSCRIPTIONS__1__TOPIC",
            "more/{sensor_id}",
        ),
        ("HOURBUCKET_MQTT__0__SUBSCRIPTIONS__1__FORMAT", "json"),
        ("HOURBUCKET_MQTT__1__URL", "mqtts://second"),
        ("HOURBUCKET_MQTT__1__CLIENT_ID", "c"),
        ("HOURBUCKET_MQTT__1__PROTOCOL", "4"),
        ("HOURBUCKET_MQTT__1__SUBSCRIPTIONS__0__FILTER", "#"),
        (
            "HOURBUCKET_MQTT__1__SUBSCRIPTIONS__0__TOPIC",
            "{sensor_id}/#",
        ),
        ("HOURBUCKET_MQTT__1__SUBSCRIPTIONS__0__FORMAT", "json"),
        ("HOURBUCKET_LOG", "debug"),
        ("HOURBUCKET_DEMO_KEEP", "1"),
        ("HOURBUCKET_MONGOD", "/usr/bin/mongod"),
        ("HOURBUCKET_STORE", "x"),
        ("HOURBUCKET_STORE_MODE", ""),
        ("PATH__X", "y"),
    ];
    let text = DESIGN.replace("[limits]", "[enrich]\nfields = [\"other\"]\n[limits]");
    let loaded = place.load(&text, &env).unwrap_or_else(|e| panic!("{e}"));
    let config = loaded.config;
    assert_eq!(config.store.uri.reveal(), "mongodb://user:pass@db/");
    assert!(!config.http.enabled);
    assert_eq!(config.bucket.max_readings, 500);
    assert_eq!(config.flush.max_age, Duration::from_secs(90));
    assert_eq!(config.journal.max_bytes, 1 << 30);
    assert_eq!(config.store.write_concern, "1");
    assert_eq!(
        config.store.retention,
        Some(Duration::from_secs(365 * 86_400)),
        "an empty variable counts as not set"
    );
    assert_eq!(config.enrich.fields, ["site", "place.room"]);
    assert_eq!(config.mqtt[0].client_id, "other");
    assert_eq!(
        config.mqtt[0].password.as_ref().map(|p| p.reveal()),
        Some("from-env")
    );
    assert_eq!(config.mqtt[0].subscriptions[1].filter, "more/+");
    assert_eq!(config.mqtt[1].protocol, MqttProtocol::V4);
    assert_eq!(config.mqtt[1].subscriptions.len(), 1);
    assert_eq!(loaded.variables.len(), 18);
}

#[test]
fn keys_that_end_in_file_keep_their_meaning_in_the_environment() {
    let place = Place::new();
    let tokens = place.file("t.toml", "secret");
    let password = place.file("p", "pw\r\n");
    let config = place.good(
        DESIGN,
        &[
            ("HOURBUCKET_HTTP__TOKENS_FILE", tokens.to_str().unwrap()),
            (
                "HOURBUCKET_MQTT__0__PASSWORD_FILE",
                password.to_str().unwrap(),
            ),
        ],
    );
    assert_eq!(config.http.tokens_file, Some(tokens));
    assert_eq!(
        config.mqtt[0].password.as_ref().map(|p| p.reveal()),
        Some("pw")
    );
}

#[test]
fn mistakes_in_the_environment_are_reported_by_variable() {
    let place = Place::new();
    for (name, value, parts) in [
        (
            "HOURBUCKET_STORE__URL",
            "x",
            &["HOURBUCKET_STORE__URL", "HOURBUCKET_STORE__URI"][..],
        ),
        ("HOURBUCKET_STORR__MODE", "x", &["no such key", "store"]),
        (
            "HOURBUCKET_HTTP__ENABLED",
            "yes",
            &["http.enabled", "HOURBUCKET_HTTP__ENABLED", "true or false"],
        ),
        (
            "HOURBUCKET_MQTT__URL",
            "mqtt://x",
            &["is a list", "HOURBUCKET_MQTT__0__"],
        ),
        ("HOURBUCKET_MQTT__2__URL", "mqtt://x", &["the next is 1"]),
        (
            "HOURBUCKET_HTTP__LISTEN__X",
            "1",
            &["`listen` is a text, not a section"],
        ),
        (
            "HOURBUCKET_STORE__URI_FILE",
            "/no/such",
            &["store.uri", "/no/such cannot be read"],
        ),
        (
            "HOURBUCKET_STORE_URI",
            "mongodb://geheim@h",
            &["HOURBUCKET_STORE_URI", "write HOURBUCKET_STORE__URI"],
        ),
        (
            "HOURBUCKET_LISTEN_MQTT_TOKENS_FILE",
            "t.toml",
            &["write HOURBUCKET_LISTEN__MQTT__TOKENS_FILE"],
        ),
        (
            "HOURBUCKET_MQTT_1_SUBSCRIPTIONS_2_QOS",
            "1",
            &["write HOURBUCKET_MQTT__1__SUBSCRIPTIONS__2__QOS"],
        ),
        (
            "HOURBUCKET_MQTT_PASSWORD_FILE",
            "p",
            &["write HOURBUCKET_MQTT__0__PASSWORD_FILE"],
        ),
        ("HOURBUCKET___URI", "x", &["is missing"]),
        ("HOURBUCKET_STORE__", "x", &["is missing"]),
    ] {
        let problems = place.bad(DESIGN, &[(name, value)]);
        assert_eq!(problems.len(), 1, "{name}: {problems:?}");
        for part in parts {
            assert!(problems[0].contains(part), "{name}: {}", problems[0]);
        }
    }
    let both = place.bad(
        DESIGN,
        &[
            ("HOURBUCKET_STORE__URI", "mongodb://geheim@h"),
            ("HOURBUCKET_STORE__URI_FILE", "/no/such"),
        ],
    );
    assert!(
        both[0].contains("set twice") && !both[0].contains("geheim"),
        "{both:?}"
    );
}
