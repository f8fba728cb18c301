//! The texts about the keys: the shipped file, the dump of a configuration, and the reference in
//! docs.

use std::collections::BTreeSet;
use std::path::Path;

use config::Config;

use super::Place;

const SHIPPED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/hourbucket.toml");

fn shipped() -> String {
    std::fs::read_to_string(SHIPPED).unwrap()
}

/// The shipped file with every commented-out key and section active.
fn everything_on() -> String {
    shipped()
        .lines()
        .map(|line| format!("{}\n", setting(line).unwrap_or(line)))
        .collect()
}

/// A line with a key or a section header, commented out or not.
fn setting(line: &str) -> Option<&str> {
    let line = line.strip_prefix("# ").unwrap_or(line);
    let is_header = line.starts_with('[') && line.ends_with(']');
    let key = line.split_once(" = ").map(|(key, _)| key);
    let is_key = key.is_some_and(|key| {
        !key.is_empty() && key.chars().all(|c| c.is_ascii_lowercase() || c == '_')
    });
    (is_header || is_key).then_some(line)
}

#[test]
fn the_shipped_file_has_the_defaults() {
    let loaded = config::load(Some(Path::new(SHIPPED)), std::iter::empty())
        .unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(loaded.config, Config::default());
    assert_eq!(loaded.file.as_deref(), Some(Path::new(SHIPPED)));
}

#[test]
fn the_shipped_file_has_exactly_the_keys_in_the_order_of_reading() {
    let mut section = String::new();
    let mut keys = Vec::new();
    for line in shipped().lines().filter_map(setting) {
        match line.split_once(" = ") {
            Some((key, _)) => keys.push(format!("{section}.{key}")),
            None => section = line.trim_matches(['[', ']']).to_owned(),
        }
    }
    // The only key that can be set in the environment alone.
    let known: Vec<String> = config::known_keys()
        .into_iter()
        .filter(|key| key != "mqtt.password")
        .collect();
    assert_eq!(keys, known);
}

#[test]
fn the_examples_in_the_shipped_file_work_and_show_the_defaults() {
    let place = Place::new();
    let all = place.good(&everything_on(), &[]);
    let broker = &all.mqtt[0];
    let short = place.good(
        "[[mqtt]]\nurl = \"mqtts://b\"\nclient_id = \"c\"\n[[mqtt.subscriptions]]\nfilter = \"#\"\n\
         topic = \"#\"\nformat = \"json\"",
        &[],
    );
    let defaults = &short.mqtt[0];
    assert_eq!(broker.protocol, defaults.protocol);
    assert_eq!(broker.clean_start, defaults.clean_start);
    assert_eq!(broker.session_expiry, defaults.session_expiry);
    assert_eq!(broker.keep_alive, defaults.keep_alive);
    assert_eq!(broker.packet_max_bytes, defaults.packet_max_bytes);
    assert_eq!(broker.window, defaults.window);
    assert_eq!(broker.subscriptions[0].qos, defaults.subscriptions[0].qos);
}

#[test]
fn the_dump_hides_secrets_has_every_key_and_parses_again() {
    let place = Place::new();
    // Readings are either stored or forwarded.
    let text = everything_on()
        .replace("mongodb://127", "mongodb://zoe9:geheim@127")
        .replace("url = \"https://centre.example:8080\"\n", "");
    let config = place.good(&text, &[]);
    let dump = config.masked();
    for secret in ["geheim", "from-file", "zoe9"] {
        assert!(
            !dump.contains(secret) && !format!("{config:?}").contains(secret),
            "{secret} is shown:\n{dump}"
        );
    }
    assert!(
        dump.contains("mongodb://***@127.0.0.1:27017/?replicaSet=rs0"),
        "{dump}"
    );
    let from_env = place
        .good(&text, &[("HOURBUCKET_MQTT__0__PASSWORD", "geheim")])
        .masked();
    assert!(
        from_env.contains("password = \"***\"") && !from_env.contains("geheim"),
        "{from_env}"
    );
    let table: toml::Table = dump.parse().unwrap();
    let known = config::known_keys();
    let keys: BTreeSet<String> = flat("", &toml::Value::Table(table), &known)
        .into_iter()
        .collect();
    let absent = ["mqtt.password", "forward.url"];
    for key in known.iter().filter(|key| !absent.contains(&key.as_str())) {
        assert!(keys.contains(key), "{key} is missing in\n{dump}");
    }
    assert_eq!(keys.len(), known.len() - absent.len());

    let again = place.good(&dump.replace("***@", "zoe9:geheim@"), &[]);
    assert_eq!(again, config);
}

/// Every key below this table, without the numbers of list elements; a known key may have a table
/// as its value.
fn flat(path: &str, value: &toml::Value, known: &[String]) -> Vec<String> {
    if known.iter().any(|key| key == path) {
        return vec![path.to_owned()];
    }
    match value {
        toml::Value::Table(table) => {
            let dot = if path.is_empty() { "" } else { "." };
            table
                .iter()
                .flat_map(|(key, value)| flat(&format!("{path}{dot}{key}"), value, known))
                .collect()
        }
        toml::Value::Array(items) => items
            .iter()
            .flat_map(|item| flat(path, item, known))
            .collect(),
        _ => vec![path.to_owned()],
    }
}

#[test]
fn the_reference_has_every_key() {
    let reference = config::reference();
    for key in config::known_keys()
        .iter()
        .filter(|key| *key != "mqtt.password")
    {
        let name = key.rsplit('.').next().unwrap();
        assert!(
            reference.contains(&format!("| `{name}` | ")),
            "{key} is missing"
        );
    }
    assert!(!reference.contains("` |  |"), "a key without a type");
}
