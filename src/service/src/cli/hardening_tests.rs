//! Tests of the hardening checklist: its verdicts, and that docs/security.md has the same lines.

use super::hardening::{Verdict, checklist};
use config::{Config, load};

/// The verdict of a line with these settings; `$file` is a file that can be read.
fn verdict(key: &str, text: &str) -> Verdict {
    let file = tempfile::NamedTempFile::new().unwrap();
    let config = tempfile::NamedTempFile::new().unwrap();
    let text = text.replace("$file", &format!("{:?}", file.path()));
    std::fs::write(config.path(), text).unwrap();
    let config = load(Some(config.path()), std::iter::empty())
        .unwrap_or_else(|e| panic!("{e}"))
        .config;
    checklist(&config)
        .into_iter()
        .find(|line| line.key == key)
        .unwrap()
        .verdict
}

const TOKENS: &str = "http.tokens_file = $file";
const OPEN: &str = "http.listen = \"0.0.0.0:8080\"";

/// Checks that a line is fulfilled with the good settings, and not with the bad ones, whose remedy
/// names this.
fn check_line(key: &str, good: &str, bad: &str, remedy: &str) {
    assert_eq!(verdict(key, good), Verdict::Good, "{key}: {good}");
    let Verdict::Improve(advice) = verdict(key, bad) else {
        panic!("{key}: {bad}")
    };
    assert!(advice.contains(remedy), "{key}: {advice}");
}

#[test]
fn each_line_about_access_and_encryption_tells_good_settings_from_bad_ones() {
    const TOPIC: &str = "[[listen.mqtt.topics]]\nfilter = \"a/+\"\ntopic = \"a/{sensor_id}\"\n\
        format = \"json\"";
    let listener = |text: &str| format!("[listen.mqtt]\nenabled = true\n{text}\n{TOPIC}");
    let broker = |text: &str| {
        format!(
            "[[mqtt]]\nclient_id = \"c\"\n{text}\n[[mqtt.subscriptions]]\nfilter = \"a/+\"\n\
             topic = \"a/{{sensor_id}}\"\n\
             format = \"json\""
        )
    };
    for (key, good, bad, remedy) in [
        (
            "http.tokens_file",
            TOKENS.to_owned(),
            String::new(),
            "tokens add",
        ),
        (
            "http.tokens_file",
            format!(
                "{OPEN}\n[http.tls]\ncert_file = $file\nkey_file = $file\n\
                 client_ca_file = $file"
            ),
            format!("{OPEN}\nhttp.allow_anonymous = true"),
            "anyone who reaches",
        ),
        (
            "http.tls.cert_file",
            format!("{OPEN}\n{TOKENS}\n[http.tls]\ncert_file = $file\nkey_file = $file"),
            format!("{OPEN}\n{TOKENS}"),
            "http.tls.cert_file",
        ),
        (
            "listen.mqtt.tokens_file",
            listener("tokens_file = $file"),
            listener(""),
            "listen.mqtt.tokens_file",
        ),
        (
            "listen.mqtt.cert_file",
            listener(
                "listen = \"0.0.0.0:1\"\ntokens_file = $file\ncert_file = $file\n\
                 key_file = $file",
            ),
            listener("listen = \"0.0.0.0:1\"\ntokens_file = $file"),
            "listen.mqtt.cert_file",
        ),
        (
            "admin.listen",
            "[admin]\nlisten = \"0.0.0.0:1\"\n[admin.tls]\ncert_file = $file\nkey_file = $file"
                .to_owned(),
            "admin.listen = \"0.0.0.0:1\"".to_owned(),
            "admin.tls.cert_file",
        ),
        (
            "mqtt.url",
            broker("url = \"mqtts://b\"\nusername = \"u\"\npassword_file = $file")
                .replace("$file", "\"Cargo.toml\""),
            broker("url = \"mqtt://b:1883\""),
            "mqtts://",
        ),
    ] {
        check_line(key, &good, &bad, remedy);
    }
}

#[test]
fn each_line_about_limits_and_records_tells_good_settings_from_bad_ones() {
    for (key, good, bad, remedy) in [
        (
            "trusted_proxies",
            "http.trusted_proxies = [\"10.0.0.0/8\"]".to_owned(),
            "admin.trusted_proxies = [\"10.0.0.1\", \"0.0.0.0/0\"]".to_owned(),
            "admin.trusted_proxies",
        ),
        (
            "failed_auth_max",
            String::new(),
            "admin.failed_auth_max = 0".to_owned(),
            "admin.failed_auth_max",
        ),
        (
            "connections_per_address_max",
            String::new(),
            "http.connections_per_address_max = 8192".to_owned(),
            "http.connections_per_address_max",
        ),
        (
            "http.body_rate_min",
            String::new(),
            "http.body_rate_min = 0".to_owned(),
            "http.body_rate_min",
        ),
        (
            "quota.readings_per_second",
            format!("{TOKENS}\nquota.readings_per_second = 5"),
            TOKENS.to_owned(),
            "quota.readings_per_second",
        ),
        (
            "audit.file",
            "audit.file = \"a\"".to_owned(),
            String::new(),
            "audit.file",
        ),
        (
            "ingest.sender_tag",
            "ingest.sender_tag = \"sender\"".to_owned(),
            String::new(),
            "ingest.sender_tag",
        ),
    ] {
        check_line(key, &good, &bad, remedy);
    }
}

#[test]
fn what_is_off_or_local_needs_nothing() {
    for (key, text) in [
        ("http.tls.cert_file", ""),
        ("listen.mqtt.tokens_file", ""),
        ("listen.mqtt.cert_file", ""),
        ("trusted_proxies", ""),
        ("quota.readings_per_second", ""),
        ("mqtt.url", ""),
    ] {
        assert_eq!(verdict(key, text), Verdict::NotNeeded, "{key}");
    }
}

#[test]
fn the_uri_of_the_store_is_judged_by_user_and_tls() {
    for (uri, is_good) in [
        ("mongodb://127.0.0.1:27017/?replicaSet=rs0", false),
        (
            "mongodb://u:p@127.0.0.1:27017,[::1]:27018/?replicaSet=rs0",
            true,
        ),
        ("mongodb://u:p@db1:27017/?replicaSet=rs0", false),
        ("mongodb://u:p@localhost,db1/?replicaSet=rs0", false),
        ("mongodb://u:p@db1/?replicaSet=rs0&tls=true", true),
        ("mongodb://db1/?tls=true", false),
        (
            "mongodb://db1/?tls=true&authMechanism=MONGODB-X509&authSource=$external",
            true,
        ),
        ("mongodb+srv://u:p@cluster.example", true),
        ("mongodb+srv://u:p@cluster.example/?tls=false", false),
        ("mongodb://u:p@db1/x?ssl=true", true),
    ] {
        let found = verdict("store.uri", &format!("store.uri = {uri:?}"));
        assert_eq!(found == Verdict::Good, is_good, "{uri}: {found:?}");
        assert!(!format!("{found:?}").contains("u:p"), "{found:?}");
    }
}

#[test]
fn what_the_settings_cannot_tell_says_where_to_look() {
    let unknown = |key| matches!(verdict(key, ""), Verdict::Unknown(_));
    assert!(
        ["tokens", "firewall", "disk", "clock"]
            .into_iter()
            .all(unknown)
    );
}

/// The table below "Hardening checklist": key and goal of each line, in the same order.
#[test]
fn the_documentation_has_the_same_checklist() {
    let text = include_str!("../../../../docs/security.md");
    let section = text
        .split("\n## ")
        .find(|section| section.starts_with("Hardening checklist"))
        .unwrap();
    let rows = section
        .lines()
        .filter(|line| line.starts_with("| `") || line.starts_with("| *"));
    let documented: Vec<(String, String)> = rows
        .map(|row| {
            let mut cells = row.trim_matches('|').split(" | ").map(str::trim);
            let key = cells.next().unwrap().trim_matches(['`', '*']).to_owned();
            (key, cells.next().unwrap().to_owned())
        })
        .collect();
    let lines = checklist(&Config::default());
    let lines: Vec<_> = lines
        .iter()
        .map(|line| (line.key.to_owned(), line.goal.to_owned()))
        .collect();
    assert_eq!(documented, lines);
}
