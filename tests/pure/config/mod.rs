//! The configuration as a user sees it: the shipped file, the environment that overrides it, and
//! the messages about mistakes.

#![allow(clippy::unwrap_used, reason = "what a helper cannot do fails the test")]

mod conflicts;
mod environment;
mod files;
mod listeners;
mod values;
mod warnings;
mod written;

use std::path::{Path, PathBuf};
use std::time::Duration;

use config::{Config, ConfigErrors, Loaded};

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
        place.file("forward-token", "site.secret\n");
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
            "forward-token",
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
    let place = Place::new();
    let config = place.good(DESIGN, &[]);
    assert_eq!(
        config.store.retention,
        Some(Duration::from_secs(365 * 86_400))
    );
    let password = config.mqtt[0].password_now().unwrap();
    assert_eq!(password.as_ref().map(|p| p.reveal()), Some("from-file"));
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

/// One change each to the text of DESIGN, and the key and the text of its only problem.
fn one_problem_each(cases: &[(&str, &str, &str, &str)]) {
    let place = Place::new();
    for &(from, to, key, part) in cases {
        one_problem(&place, &DESIGN.replacen(from, to, 1), key, part);
    }
}

/// `[listen.mqtt]` with these keys and a topic.
fn direct(keys: &str) -> String {
    format!(
        "[listen.mqtt]\nenabled = true\n{keys}\n[[listen.mqtt.topics]]\nfilter = \"a/+\"\n\
         topic = \"a/{{sensor_id}}\"\n\
         format = \"json\"\n"
    )
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
