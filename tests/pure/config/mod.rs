//! The configuration as a user sees it: the shipped file, the environment that overrides it, and
//! the messages about mistakes.

#![allow(clippy::unwrap_used, reason = "what a helper cannot do fails the test")]

mod conflicts;
mod files;
mod written;

use std::path::{Path, PathBuf};
use std::time::Duration;

use hourbucket::config::{self, Config, ConfigErrors, Loaded, MqttProtocol};

/// A directory with the files that the examples name.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        place.file("tokens.toml", "");
        place.file("jwks.json", "");
        place.file("crl.pem", "");
        place.file("ca.pem", "");
        place.file("client.pem", "");
        place.file("client.key", "");
        place.file("server.pem", "");
        place.file("server.key", "");
        place.file("mqtt-password", "from-file\n");
        place
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Loads a text with the environment over it; the names of the example files become their
    /// paths.
    fn load(&self, text: &str, env: &[(&str, &str)]) -> Result<Loaded, ConfigErrors> {
        let mut text = text.to_owned();
        for name in [
            "tokens.toml",
            "jwks.json",
            "crl.pem",
            "ca.pem",
            "client.pem",
            "client.key",
            "server.pem",
            "server.key",
            "mqtt-password",
        ] {
            text = text.replace(
                &format!("\"{name}\""),
                &format!("{:?}", self.0.path().join(name)),
            );
        }
        let path = self.file("hourbucket.toml", &text);
        config::load(
            Some(&path),
            env.iter()
                .map(|(name, value)| (name.to_string(), value.to_string())),
        )
    }

    fn good(&self, text: &str, env: &[(&str, &str)]) -> Config {
        self.load(text, env)
            .unwrap_or_else(|e| panic!("{text}\n{e}"))
            .config
    }

    fn bad(&self, text: &str, env: &[(&str, &str)]) -> Vec<String> {
        let errors = self
            .load(text, env)
            .err()
            .unwrap_or_else(|| panic!("accepted: {text} {env:?}"));
        errors.problems.iter().map(ToString::to_string).collect()
    }
}

/// docs/design.md, section 4, with other file names.
const DESIGN: &str = r#"
[ingest]
ack = "journal"                  # or "stored"
[http]
listen = "127.0.0.1:8080"
tokens_file = "tokens.toml"      # absent: loopback only
body_max_bytes = 8388608
[admin]
listen = "127.0.0.1:8081"
[store]
uri = "mongodb://127.0.0.1:27017/?replicaSet=rs0"
database = "hourbucket"
mode = "auto"                    # bucket | timeseries | auto
retention = "365d"               # absent: kept for ever
[bucket]
span = "1h"
max_readings = 1000
[flush]
max_age = "15s"                  # the longest a reading waits in memory while the store is well
[accumulate]
max_bytes = "512MiB"
[journal]
dir = "journal"
max_bytes = "16GiB"
[limits]
past = "365d"
future = "10m"
[[mqtt]]
url = "mqtt://127.0.0.1:1883"    # mqtts, ws, wss
client_id = "hourbucket-1"
protocol = 5                     # or 4
clean_start = false
username = "…"
password_file = "mqtt-password"
[[mqtt.subscriptions]]
filter = "sensors/+/+"
qos = 1
topic = "sensors/{sensor_id}/{field}"
format = "scalar"
"#;

#[test]
fn the_design_loads() {
    let config = Place::new().good(DESIGN, &[]);
    assert_eq!(
        config.store.retention,
        Some(Duration::from_secs(365 * 86_400))
    );
    assert_eq!(
        config.mqtt[0].password.as_ref().map(|p| p.reveal()),
        Some("from-file")
    );
    assert_eq!(
        config.mqtt[0].subscriptions[0].topic,
        "sensors/{sensor_id}/{field}"
    );
}

#[test]
fn a_named_file_must_be_there() {
    let missing = Path::new("no/such/file.toml");
    let text = config::load(Some(missing), std::iter::empty())
        .unwrap_err()
        .to_string();
    assert!(text.contains("no/such/file.toml"), "{text}");
}

#[test]
fn invalid_toml_is_reported_by_line_without_secrets() {
    let problems = Place::new().bad("[store]\nuri = \"mongodb://user:geheim@host\n", &[]);
    assert!(problems[0].contains("hourbucket.toml:2"), "{problems:?}");
    assert!(!problems.concat().contains("geheim"), "{problems:?}");
}

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

#[test]
fn all_mistakes_are_reported_together_each_with_its_line() {
    let text = r#"[htpp]
enabled = true
[http]
lisetn = "127.0.0.1:1"
body_max_bytes = "8 megs"
header_timeout = 10
[store]
write_concern = "0"
max_age = "1s"
[bucket]
span = "7m"
max_readings = 20000
[limits]
past = "0s"
fields_max = "many"
[log]
level = "inof"
"#;
    let problems = Place::new().bad(text, &[]);
    let has = |line: usize, parts: &[&str]| {
        let line = format!("hourbucket.toml:{line})");
        let found = problems
            .iter()
            .any(|p| p.contains(&line) && parts.iter().all(|part| p.contains(part)));
        assert!(found, "{line} {parts:?}\n{}", problems.join("\n"));
    };
    has(1, &["htpp", "section `http`"]);
    has(4, &["http.lisetn", "`http.listen`"]);
    has(5, &["http.body_max_bytes", "8 megs", "512MiB"]);
    has(6, &["http.header_timeout", "10", "15s"]);
    has(8, &["store.write_concern", "majority"]);
    has(9, &["store.max_age", "`flush.max_age`"]);
    has(11, &["bucket.span", "divide a day"]);
    has(12, &["bucket.max_readings", "1 to 10000"]);
    has(14, &["limits.past", "out of range"]);
    has(15, &["limits.fields_max", "many"]);
    has(17, &["log.level", "inof"]);
    assert_eq!(problems.len(), 11, "{problems:#?}");
}

/// One change to the text of DESIGN, and what its only problem must contain.
#[test]
fn each_value_has_its_limits() {
    let place = Place::new();
    for (from, to, key, part) in [
        (
            "listen = \"127.0.0.1:8080\"",
            "listen = \":8080\"",
            "http.listen",
            "0.0.0.0:8080",
        ),
        (
            "tokens_file = \"tokens.toml\"",
            "tokens_file = \"none.toml\"",
            "http.tokens_file",
            "cannot be read",
        ),
        (
            "body_max_bytes = 8388608",
            "body_max_bytes = \"1GiB\"",
            "http.body_max_bytes",
            "512MiB",
        ),
        (
            "mongodb://127",
            "http://user:geheim@127",
            "store.uri",
            "mongodb+srv://",
        ),
        (
            "database = \"hourbucket\"",
            "database = \"a.b\"",
            "store.database",
            "63 bytes",
        ),
        (
            "database = \"hourbucket\"",
            "database = \"admin\"",
            "store.database",
            "MongoDB's own",
        ),
        (
            "mode = \"auto\"",
            "mode = \"fast\"",
            "store.mode",
            "\"timeseries\" or \"auto\"",
        ),
        (
            "retention = \"365d\"",
            "retention = \"0s\"",
            "store.retention",
            "out of range",
        ),
        (
            "retention = \"365d\"",
            "retention = \"30000d\"",
            "store.retention",
            "24855d",
        ),
        (
            "retention = \"365d\"",
            "write_concern = 0",
            "store.write_concern",
            "majority",
        ),
        (
            "retention = \"365d\"",
            "pool_max = 0",
            "store.pool_max",
            "1 to 1000",
        ),
        ("span = \"1h\"", "span = \"2d\"", "bucket.span", "1m"),
        (
            "max_readings = 1000",
            "max_readings = 0",
            "bucket.max_readings",
            "10000",
        ),
        (
            "max_readings = 1000",
            "max_readings = \"1000\"",
            "bucket.max_readings",
            "not understood",
        ),
        (
            "max_readings = 1000",
            "max_readings = 1.5",
            "bucket.max_readings",
            "whole number",
        ),
        (
            "max_readings = 1000",
            "max_bytes = \"9MiB\"",
            "bucket.max_bytes",
            "8MiB",
        ),
        (
            "max_age = \"15s\"",
            "max_age = 15",
            "flush.max_age",
            "\"15s\"",
        ),
        (
            "max_age = \"15s\"",
            "command_max_bytes = \"13MiB\"",
            "flush.command_max_bytes",
            "12MiB",
        ),
        (
            "max_age = \"15s\"",
            "command_max_statements = 5001",
            "flush.command_max_statements",
            "5000",
        ),
        (
            "future = \"10m\"",
            "fields_max = 256",
            "limits.fields_max",
            "255",
        ),
        (
            "future = \"10m\"",
            "sensor_id_max_bytes = 1025",
            "limits.sensor_id_max_bytes",
            "1024",
        ),
        (
            "future = \"10m\"",
            "string_max_bytes = 16385",
            "limits.string_max_bytes",
            "16384",
        ),
        ("future = \"10m\"", "tags_max = 65", "limits.tags_max", "64"),
        (
            "[limits]",
            "[latest]\nrecent = 101\n[limits]",
            "latest.recent",
            "from 0 to 100",
        ),
        (
            "[limits]",
            "[latest]\ninterval = \"2h\"\n[limits]",
            "latest.interval",
            "1h",
        ),
        (
            "[limits]",
            "[enrich]\ncollection = \"sensor_latest\"\n[limits]",
            "enrich.collection",
            "hourbucket writes",
        ),
        (
            "[limits]",
            "[enrich]\nfields = \"site\"\n[limits]",
            "enrich.fields",
            "a list of fields",
        ),
        (
            "[limits]",
            "[enrich]\nfields = [\"a\", \"a.b\"]\n[limits]",
            "enrich.fields",
            "overlap",
        ),
        (
            "[limits]",
            "[enrich]\nid_field = \"$a\"\n[limits]",
            "enrich.id_field",
            "name of a field",
        ),
        (
            "mqtt://127.0.0.1:1883",
            "tcp://127.0.0.1:1883",
            "mqtt[0].url",
            "mqtts://",
        ),
        (
            "mqtt://127.0.0.1:1883",
            "mqtt://zoe9:geheim@127.0.0.1:1883",
            "mqtt[0].url",
            "password_file",
        ),
        (
            "url = \"mqtt://127.0.0.1:1883\"",
            "",
            "mqtt[0].url",
            "missing",
        ),
        (
            "client_id = \"hourbucket-1\"",
            "client_id = \"\"",
            "mqtt[0].client_id",
            "256 characters",
        ),
        ("protocol = 5", "protocol = 3", "mqtt[0].protocol", "3.1.1"),
        (
            "password_file = \"mqtt-password\"",
            "password = \"geheim\"",
            "mqtt[0].password",
            "password_file",
        ),
        (
            "qos = 1",
            "retained = \"twice\"",
            "mqtt[0].subscriptions[0].retained",
            "\"always\"",
        ),
        (
            "qos = 1",
            "user_property_tags = [\"a.b\"]",
            "mqtt[0].subscriptions[0].user_property_tags",
            "letters",
        ),
        (
            "qos = 1",
            "user_property_tags = [\"ts\"]",
            "mqtt[0].subscriptions[0].user_property_tags",
            "use this name",
        ),
        (
            "qos = 1",
            "user_property_tags = [\"a\", \"a\"]",
            "mqtt[0].subscriptions[0].user_property_tags",
            "twice",
        ),
        (
            "protocol = 5",
            "status_topic = \"a/#\"",
            "mqtt[0].status_topic",
            "without +",
        ),
        (
            "protocol = 5",
            "key_file = \"client.key\"",
            "mqtt[0].key_file",
            "cert_file",
        ),
        (
            "qos = 1",
            "qos = 3",
            "mqtt[0].subscriptions[0].qos",
            "write 1",
        ),
        (
            "qos = 1",
            "ts_unit = \"min\"",
            "mqtt[0].subscriptions[0].ts_unit",
            "\"ns\"",
        ),
        (
            "\"sensors/+/+\"",
            "\"sensors/#/+\"",
            "mqtt[0].subscriptions[0].filter",
            "last level",
        ),
        (
            "\"sensors/+/+\"",
            "\"$share/g\"",
            "mqtt[0].subscriptions[0].filter",
            "$share/group/filter",
        ),
        (
            "\"sensors/{sensor_id}/{field}\"",
            "\"{a b}\"",
            "mqtt[0].subscriptions[0].topic",
            "letters",
        ),
        (
            "format = \"scalar\"",
            "format = \"scaler\"",
            "mqtt[0].subscriptions[0].format",
            "did you mean \"scalar\"",
        ),
        (
            "format = \"scalar\"",
            "",
            "mqtt[0].subscriptions[0].format",
            "missing",
        ),
    ] {
        one_problem(&place, &DESIGN.replacen(from, to, 1), key, part);
    }
}

#[test]
fn a_span_is_any_divisor_of_a_day() {
    let place = Place::new();
    let with = |span: &str| DESIGN.replacen("span = \"1h\"", &format!("span = \"{span}\""), 1);
    for (span, minutes) in [
        ("1m", 1.0),
        ("90s", 1.5),
        ("15m", 15.0),
        ("1h", 60.0),
        ("1h30m", 90.0),
        ("6h", 360.0),
        ("24h", 1440.0),
        ("1d", 1440.0),
    ] {
        let ms = place.good(&with(span), &[]).bucket.span.ms();
        assert_eq!(ms as f64, minutes * 60_000.0, "{span}");
    }
    for span in ["59s", "30s", "7m", "5h", "25h", "2d", "0s"] {
        one_problem(&place, &with(span), "bucket.span", "divisor of a day");
    }
}

fn one_problem(place: &Place, text: &str, key: &str, part: &str) {
    let problems = place
        .load(text, &[])
        .err()
        .unwrap_or_else(|| panic!("accepted, but {key}: {part}\n{text}"))
        .problems;
    let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(problems.len(), 1, "{key}: {texts:#?}");
    assert_eq!(problems[0].key, key, "{texts:?}");
    assert!(texts[0].contains(part), "{part} is not in {}", texts[0]);
    assert!(
        !problems[0].advice.is_empty(),
        "{texts:?} does not say what to write instead"
    );
    assert!(
        !texts[0].contains("geheim"),
        "a secret is shown: {}",
        texts[0]
    );
}

/// A subscription of DESIGN's broker with another format and, if it has one, a template.
fn subscribed(format: &str, topic: Option<&str>, formats: &str) -> String {
    let topic = topic
        .map(|topic| format!("topic = \"{topic}\""))
        .unwrap_or_default();
    let text = DESIGN.replacen("topic = \"sensors/{sensor_id}/{field}\"", &topic, 1);
    format!(
        "{}{formats}",
        text.replacen("format = \"scalar\"", &format!("format = \"{format}\""), 1)
    )
}

#[test]
fn a_subscription_can_name_a_profile_or_a_configured_format() {
    let place = Place::new();
    let config = place.good(&subscribed("zigbee2mqtt", None, ""), &[]);
    assert_eq!(
        (
            config.mqtt[0].subscriptions[0].topic.as_str(),
            config.formats.len()
        ),
        ("#", 0)
    );
    let own = "\n[formats.own]\nid = \"/id\"\n[formats.tasmota]\nzone = \"Europe/Berlin\"\n";
    let config = place.good(&subscribed("own", None, own), &[]);
    assert_eq!(
        config
            .formats
            .iter()
            .map(|f| f.name.as_str())
            .collect::<Vec<_>>(),
        ["own", "tasmota"]
    );
    let format = "mqtt[0].subscriptions[0].format";
    let topic = "mqtt[0].subscriptions[0].topic";
    one_problem(
        &place,
        &subscribed("zigbe2mqtt", Some("#"), ""),
        format,
        "did you mean \"zigbee2mqtt\"",
    );
    one_problem(
        &place,
        &subscribed("onw", Some("#"), own),
        format,
        "did you mean \"own\"",
    );
    one_problem(&place, &subscribed("json", None, ""), topic, "missing");
    let bare = "\n[formats.bare]\nvalues = \"/v\"\n";
    one_problem(&place, &subscribed("bare", None, bare), format, "no `id`");
    place.good(
        &subscribed("bare", Some("sensors/{sensor_id}/+"), bare),
        &[],
    );
    one_problem(
        &place,
        &subscribed("own", None, &own.replace("/id", "{")),
        "formats.own.id",
        "without its }",
    );
    one_problem(
        &place,
        &subscribed(
            "own",
            Some("sensors/{sensor_id}/+"),
            "\n[formats]\nown = 5\n",
        )
        .replace("\"own\"", "\"json\""),
        "formats.own",
        "a section",
    );
}

#[test]
fn times_and_zones_are_read_and_refused() {
    let place = Place::new();
    let with =
        |line: &str| DESIGN.replacen("future = \"10m\"", &format!("future = \"10m\"\n{line}"), 1);
    let limits = place
        .good(
            &with("unset_before = \"1990-06-01\"\nzone = \"Asia/Kolkata\""),
            &[],
        )
        .limits;
    assert_eq!(
        (limits.unset_before_ms, limits.zone.map(|zone| zone.name())),
        (644_198_400_000, Some("Asia/Kolkata"))
    );
    assert_eq!(
        place.good(DESIGN, &[]).limits.unset_before_ms,
        978_307_200_000
    );
    one_problem(
        &place,
        &with("unset_before = \"2001\""),
        "limits.unset_before",
        "a date in quotes",
    );
    one_problem(
        &place,
        &with("unset_before = 2001-01-01"),
        "limits.unset_before",
        "a date in quotes",
    );
    one_problem(&place, &with("zone = \"CEST\""), "limits.zone", "IANA");
    let zone = DESIGN.replacen("qos = 1", "qos = 1\nzone = \"Berlin\"", 1);
    one_problem(
        &place,
        &zone,
        "mqtt[0].subscriptions[0].zone",
        "Europe/Berlin",
    );
}

#[test]
fn a_constant_sensor_id_is_a_warning() {
    let place = Place::new();
    let warnings = |text: &str| place.good(text, &[]).warnings();
    let [id] = &warnings(&subscribed(
        "own",
        None,
        "\n[formats.own]\nid = \"weather\"\n",
    ))[..] else {
        panic!("one")
    };
    assert!(
        id.contains("formats.own") && id.contains("one sensor"),
        "{id}"
    );
    let template = DESIGN.replacen("sensors/{sensor_id}/{field}", "{sensor_id}/+/{field}", 1);
    let [topic] = &warnings(&template)[..] else {
        panic!("one")
    };
    assert!(
        topic.contains("mqtt[0].subscriptions[0].topic") && topic.contains("`sensors`"),
        "{topic}"
    );
}

#[test]
fn unlikely_settings_are_a_warning() {
    let place = Place::new();
    let warnings = |from: &str, to: &str| place.good(&DESIGN.replacen(from, to, 1), &[]).warnings();
    assert_eq!(warnings("x", "x"), Vec::<String>::new());
    let [qos] = &warnings("qos = 1", "qos = 2")[..] else {
        panic!("one warning")
    };
    assert!(
        qos.starts_with("mqtt[0].subscriptions[0].qos = 2 is treated as 1"),
        "{qos}"
    );
    let shared = (
        "\"sensors/+/+\"",
        "\"$share/g/sensors/+/+\"\nretained = \"always\"",
    );
    let [retained] = &warnings(shared.0, shared.1)[..] else {
        panic!("one warning")
    };
    assert!(retained.contains("no effect"), "{retained}");
    let text = DESIGN
        .replacen(shared.0, "\"$share/g/sensors/+/+\"", 1)
        .replace("clean_start = false", "clean_start = true");
    let [lost] = &place.good(&text, &[]).warnings()[..] else {
        panic!("one warning")
    };
    assert!(lost.contains("can be lost"), "{lost}");
}

/// `[listen.mqtt]` with these keys and a topic.
fn direct(keys: &str) -> String {
    format!(
        "[listen.mqtt]\nenabled = true\n{keys}\n[[listen.mqtt.topics]]\nfilter = \"a/+\"\n\
         topic = \"a/{{sensor_id}}\"\n\
         format = \"json\"\n"
    )
}

#[test]
fn remote_write_that_merges_series_is_remarked() {
    let place = Place::new();
    let remarks = |text: &str| place.good(text, &[]).remarks();
    let [remark] = &remarks("")[..] else {
        panic!("one remark")
    };
    assert!(
        remark.starts_with("remote_write.other_labels = \"tags\"")
            && remark.contains("\"sensor_id\""),
        "{remark}"
    );
    assert_eq!(
        remarks("remote_write.other_labels = \"sensor_id\"\n"),
        [""; 0]
    );
}

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
