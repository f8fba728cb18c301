//! Which settings can change while the service runs: the keys in which two configurations differ,
//! which of them are applied, and why the others need a restart. A key that is not listed needs a
//! restart.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::suggest::pattern;
use super::{Config, Decoding, Mqtt, is_loopback, mapping};

/// A key that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The key, such as `limits.past` or `mqtt[0].url`. An added or removed format or broker is one
    /// change.
    pub key: String,
    /// Why the change needs a restart; `None`: it is applied.
    pub waits: Option<&'static str>,
}

const PORT: &str = "ports and their limits are set up at startup";
const TLS: &str = "a port enables TLS when it is opened";
const BROKER: &str = "connections and subscriptions of brokers are set up at startup (password and \
    certificate files are read again at each connection)";

/// Keys whose changes are applied, by prefix.
const TAKEN_OVER: &[&str] = &[
    "quota.",
    "jwt.",
    "certificates.",
    "http.tokens_file",
    "http.allow_anonymous",
    "http.body_max_bytes",
    "http.bodies_max_bytes",
    "http.body_timeout",
    "http.body_grace",
    "http.body_rate_min",
    "http.queue_timeout",
    "http.ack_timeout",
    "http.connections_",
    "http.trusted_proxies",
    "http.proxy_header",
    "http.failed_auth_",
    "http.header_timeout",
    "http.keep_alive",
    "http.write_timeout",
    "http.tls.",
    "admin.connections_",
    "admin.trusted_proxies",
    "admin.proxy_header",
    "admin.failed_auth_",
    "admin.header_timeout",
    "admin.keep_alive",
    "admin.write_timeout",
    "admin.tls.",
    "limits.",
    "line.",
    "native.",
    "scalar.",
    "otlp.",
    "remote_write.",
    "formats.",
    "log.level",
    "audit.",
    "listen.mqtt.connections_",
    "listen.mqtt.trusted_proxies",
    "listen.mqtt.failed_auth_",
    "listen.mqtt.tokens_file",
    "listen.mqtt.cert_file",
    "listen.mqtt.key_file",
    "listen.mqtt.client_",
];

/// Why changes of other keys need a restart, by prefix; the first match counts.
const WAITING: &[(&str, &str)] = &[
    ("ingest.", "the pipeline is built at startup"),
    ("http.", PORT),
    ("admin.", PORT),
    ("promql.", "the admin port is opened with it at startup"),
    ("listen.", PORT),
    (
        "store.",
        "the store is opened and its collections are prepared at startup",
    ),
    (
        "bucket.",
        "the shards and the store are created with it at startup",
    ),
    ("flush.", "the shards are created with it at startup"),
    ("accumulate.", "the shards are created with it at startup"),
    ("journal.", "the journal is opened at startup"),
    ("latest.", "its tasks are started at startup"),
    (
        "rollup.",
        "its tasks are started and its collections prepared at startup",
    ),
    (
        "sensors.",
        "the shards and the read API are created with it at startup",
    ),
    ("enrich.", "the registry reader is started at startup"),
    (
        "dead_letters.",
        "the collection is prepared and its task started at startup",
    ),
    ("shutdown.", "it is read only at startup"),
    ("log.", "the log is opened at startup"),
    ("mqtt.", BROKER),
];

/// Why a change of a key (without list indexes) needs a restart; `None`: it is applied.
pub(super) fn waits(key: &str) -> Option<&'static str> {
    if TAKEN_OVER
        .iter()
        .any(|beginning| key.starts_with(beginning))
    {
        return None;
    }
    let why = WAITING
        .iter()
        .find(|(beginning, _)| key.starts_with(beginning));
    Some(why.map_or("it is read only at startup", |(_, why)| why))
}

/// The keys in which two configurations differ, in alphabetical order.
pub fn changes(old: &Config, new: &Config) -> Vec<Change> {
    let before = flat(old);
    let after = flat(new);
    let mut keys: Vec<&String> = before.keys().chain(after.keys()).collect();
    keys.sort();
    keys.dedup();
    let differing = keys
        .into_iter()
        .filter(|key| before.get(*key) != after.get(*key));
    let mut found: Vec<Change> = Vec::new();
    for key in differing.map(|key| whole(key, &before, &after)) {
        if found.iter().all(|change| change.key != key) {
            // The appended dot makes a whole section match the prefixes of its keys.
            let waits = switched(&key, old, new).or_else(|| waits(&format!("{}.", pattern(&key))));
            found.push(Change { key, waits });
        }
    }
    found
}

/// The new settings as far as they can be applied, and the old ones for the rest.
pub fn taken_over(old: &Config, new: &Config) -> Config {
    let mut config = old.clone();
    (config.quota, config.jwt) = (new.quota.clone(), new.jwt.clone());
    config.certificates = new.certificates.clone();
    let http = &mut config.http;
    let from = &new.http;
    (http.tokens_file, http.allow_anonymous) = (from.tokens_file.clone(), from.allow_anonymous);
    (http.body_max_bytes, http.bodies_max_bytes) = (from.body_max_bytes, from.bodies_max_bytes);
    (http.body_timeout, http.body_grace, http.body_rate_min) =
        (from.body_timeout, from.body_grace, from.body_rate_min);
    (http.times, config.admin.times) = (from.times, new.admin.times);
    (http.connections, config.admin.connections) = (from.connections, new.admin.connections);
    (http.proxies, config.admin.proxies) = (from.proxies.clone(), new.admin.proxies.clone());
    (http.queue_timeout, http.ack_timeout) = (from.queue_timeout, from.ack_timeout);
    for (tls, from) in [
        (&mut config.http.tls, &new.http.tls),
        (&mut config.admin.tls, &new.admin.tls),
    ] {
        if tls.is_on() == from.is_on() {
            *tls = from.clone();
        }
    }
    let mqtt = &mut config.listen.mqtt;
    let from = &new.listen.mqtt;
    (mqtt.tokens_file, mqtt.connections) = (from.tokens_file.clone(), from.connections);
    mqtt.proxies = from.proxies.clone();
    if mqtt.cert_file.is_some() == from.cert_file.is_some() {
        (mqtt.cert_file, mqtt.key_file) = (from.cert_file.clone(), from.key_file.clone());
        mqtt.client_ca_file = from.client_ca_file.clone();
        (mqtt.client_crl_file, mqtt.client_auth) = (from.client_crl_file.clone(), from.client_auth);
    }
    let Decoding {
        limits,
        line,
        formats,
        native,
        scalar,
        otlp,
        remote_write,
        // Derived, also from settings that wait for a restart.
        import_past: _,
        sender_tag: _,
    } = new.decoding();
    (config.limits, config.line, config.formats, config.otlp) = (limits, line, formats, otlp);
    (config.native, config.scalar, config.remote_write) = (native, scalar, remote_write);
    (config.log.level, config.audit) = (new.log.level.clone(), new.audit.clone());
    config
}

/// Why new settings cannot be applied next to those that stay until a restart.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReloadConflict {
    /// A route that stays uses a format that was removed.
    #[error(
        "formats.{format} was removed, but messages of {filter} use it until a restart; restore \
         it, or restart"
    )]
    FormatInUse {
        /// The name of the format.
        format: String,
        /// The topic filter of the route.
        filter: String,
    },
    /// The HTTP port would accept readings from anyone.
    #[error(
        "http listens on {0} until a restart, and without tokens anyone could write; restore \
         http.tokens_file, or restart"
    )]
    HttpUnguarded(SocketAddr),
    /// The MQTT listener would accept readings from anyone.
    #[error(
        "listen.mqtt listens on {0} until a restart, and without tokens anyone could write; \
         restore listen.mqtt.tokens_file, or restart"
    )]
    MqttUnguarded(SocketAddr),
}

/// Checks that the applied settings fit those that stay: each configuration was valid by itself.
///
/// # Errors
/// The first conflict.
pub fn fits(config: &Config) -> Result<(), ReloadConflict> {
    let of_brokers = config.mqtt.iter().flat_map(|mqtt| &mqtt.subscriptions);
    for route in of_brokers.chain(&config.listen.mqtt.topics) {
        let built_in = super::formats::FORMATS.contains(&route.format.as_str());
        if !built_in && mapping::find(&config.formats, &route.format).is_none() {
            return Err(ReloadConflict::FormatInUse {
                format: route.format.clone(),
                filter: route.filter.clone(),
            });
        }
    }
    let http = &config.http;
    if http.enabled && !is_loopback(http.listen.ip()) && !http.is_guarded() && !config.jwt.is_on() {
        return Err(ReloadConflict::HttpUnguarded(http.listen));
    }
    let mqtt = &config.listen.mqtt;
    let is_guarded = mqtt.is_guarded() || config.jwt.is_on();
    if mqtt.enabled && !is_loopback(mqtt.listen.ip()) && !is_guarded {
        return Err(ReloadConflict::MqttUnguarded(mqtt.listen));
    }
    Ok(())
}

/// Whether a change would switch TLS of a port on or off.
fn switched(key: &str, old: &Config, new: &Config) -> Option<&'static str> {
    let a = &old.listen.mqtt;
    let b = &new.listen.mqtt;
    let is_switched = match key {
        _ if key.starts_with("http.tls.") => old.http.tls.is_on() != new.http.tls.is_on(),
        _ if key.starts_with("admin.tls.") => old.admin.tls.is_on() != new.admin.tls.is_on(),
        "listen.mqtt.cert_file"
        | "listen.mqtt.key_file"
        | "listen.mqtt.client_ca_file"
        | "listen.mqtt.client_crl_file"
        | "listen.mqtt.client_auth" => a.cert_file.is_some() != b.cert_file.is_some(),
        _ => false,
    };
    is_switched.then_some(TLS)
}

/// The broker or subscription of a key if only one of the two configurations has it.
fn whole(key: &str, before: &BTreeMap<String, String>, after: &BTreeMap<String, String>) -> String {
    for (at, _) in key.match_indices(']') {
        let section = &key[..=at];
        let has = |keys: &BTreeMap<String, String>| keys.keys().any(|key| key.starts_with(section));
        if has(before) != has(after) {
            return section.to_owned();
        }
    }
    key.to_owned()
}

/// Every key with its value. Secrets are included in clear text, so never print the result.
fn flat(config: &Config) -> BTreeMap<String, String> {
    let mut keys = BTreeMap::new();
    // The dump is TOML and contains every key (a test checks this).
    let table: toml::Table = config.masked().parse().unwrap_or_default();
    walk("", &toml::Value::Table(table), &mut keys);
    keys.insert("store.uri".to_owned(), config.store.uri.reveal().to_owned());
    for (i, mqtt) in config.mqtt.iter().enumerate() {
        // A password in a file is read again at each connection.
        if let Mqtt {
            password: Some(password),
            password_file: None,
            ..
        } = mqtt
        {
            keys.insert(format!("mqtt[{i}].password"), password.reveal().to_owned());
        }
    }
    keys
}

fn walk(path: &str, value: &toml::Value, keys: &mut BTreeMap<String, String>) {
    // A format is applied as a whole.
    let is_format = path
        .strip_prefix("formats.")
        .is_some_and(|name| !name.is_empty());
    match value {
        toml::Value::Table(table) if !is_format => {
            let dot = if path.is_empty() { "" } else { "." };
            table
                .iter()
                .for_each(|(key, value)| walk(&format!("{path}{dot}{key}"), value, keys));
        }
        toml::Value::Array(items) if items.iter().any(toml::Value::is_table) && !is_format => {
            items
                .iter()
                .enumerate()
                .for_each(|(i, item)| walk(&format!("{path}[{i}]"), item, keys));
        }
        other => {
            keys.insert(path.to_owned(), other.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::load;
    use super::*;

    fn config(text: &str) -> Config {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        load(Some(file.path()), std::iter::empty())
            .unwrap_or_else(|e| panic!("{e}"))
            .config
    }

    const BROKER: &str = "[[mqtt]]\nurl = \"mqtt://b\"\nclient_id = \"c\"\n[[mqtt.subscriptions]]\n\
        filter = \"a/#\"\ntopic = \"a/#\"\nformat = \"own\"\n[formats.own]\nid = \"/id\"\n";

    #[test]
    fn changed_keys_are_named_with_the_reason_why_they_wait() {
        let old = config("");
        for (text, key, waits) in [
            ("[limits]\npast = \"2d\"", "limits.past", false),
            ("[limits]\nzone = \"UTC\"", "limits.zone", false),
            ("[log]\nlevel = \"debug\"", "log.level", false),
            ("[log]\nformat = \"json\"", "log.format", true),
            (
                "[store]\nuri = \"mongodb://u:p@127.0.0.1:27017/?replicaSet=rs0\"",
                "store.uri",
                true,
            ),
            (
                "[http]\nbody_max_bytes = 4096",
                "http.body_max_bytes",
                false,
            ),
            (
                "[http]\nconnections_max = 96",
                "http.connections_max",
                false,
            ),
            ("[admin]\nkeep_alive = \"5s\"", "admin.keep_alive", false),
            (
                "[listen.mqtt]\ntrusted_proxies = [\"10.0.0.0/8\"]",
                "listen.mqtt.trusted_proxies",
                false,
            ),
            (
                "[listen.mqtt]\nfailed_auth_max = 1",
                "listen.mqtt.failed_auth_max",
                false,
            ),
            ("[http]\nlisten = \"127.0.0.1:1\"", "http.listen", true),
            ("[formats.own]\nid = \"/id\"", "formats.own", false),
            ("[line]\nfield_prefix = true", "line.field_prefix", false),
            ("[audit]\nfile = \"a.log\"", "audit.file", false),
            ("[flush]\nmax_age = \"1s\"", "flush.max_age", true),
        ] {
            let new = config(text);
            let found = changes(&old, &new);
            assert_eq!(found.len(), 1, "{text}: {found:?}");
            assert_eq!(
                (found[0].key.as_str(), found[0].waits.is_some()),
                (key, waits),
                "{text}"
            );
            let left = changes(&taken_over(&old, &new), &new);
            assert_eq!(
                left.is_empty(),
                !waits,
                "{text}: a change that needs a restart stays: {left:?}"
            );
        }
        assert_eq!(changes(&old, &config("")), []);
        let added: Vec<_> = changes(&config("[formats.own]\nid = \"/id\""), &config(BROKER));
        assert_eq!(added.len(), 1, "{added:?}");
        assert_eq!(
            (added[0].key.as_str(), added[0].waits.is_some()),
            ("mqtt[0]", true)
        );
    }

    #[test]
    fn after_a_reload_exactly_the_reported_keys_still_differ() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, "").unwrap();
            path.display().to_string()
        };
        let a = path("a");
        let b = path("b");
        let text = |file: &str, n: u32, extra: &str| {
            let tls =
                format!("cert_file = {file:?}\nkey_file = {file:?}\nclient_ca_file = {file:?}");
            format!(
                "[http]\ntokens_file = {file:?}\nbody_max_bytes = {n}\nack_timeout = \"{n}ms\"\n\
                 header_timeout = \"{n}ms\"\nconcurrency_max = {n}\n[http.tls]\n{tls}\n\
                 [admin.tls]\n{tls}\n[listen.mqtt]\ntokens_file = {file:?}\n{tls}\nwindow = {n}\n\
                 [limits]\ntags_max = {}\n\
                 [otlp]\nsensor_id_default = \"{n}\"\n[remote_write]\n\
                 sensor_id_labels = [\"{n}\"]\n[journal]\ndir = \"j{n}\"\n{extra}",
                n % 64
            )
        };
        let old = config(&text(&a, 2000, BROKER));
        let new = config(&text(&b, 3000, &BROKER.replace("/id", "/i")));
        let all = changes(&old, &new);
        let waiting: Vec<_> = all
            .iter()
            .filter(|change| change.waits.is_some())
            .cloned()
            .collect();
        let keys: Vec<&str> = waiting.iter().map(|change| change.key.as_str()).collect();
        assert_eq!(
            keys,
            ["http.concurrency_max", "journal.dir", "listen.mqtt.window"]
        );
        assert_eq!(changes(&taken_over(&old, &new), &new), waiting);
        assert!(
            all.iter()
                .any(|change| change.key == "formats.own" && change.waits.is_none()),
            "{all:?}"
        );
    }

    #[test]
    fn a_reload_that_changes_nothing_applies_nothing() {
        for text in [
            "",
            "store.retention = \"400d\"",
            "store.retention = \"400d\"\nstore.retention_readings = \"370d\"\nrollup.days = true",
            BROKER,
        ] {
            let same = config(text);
            assert_eq!(taken_over(&same, &same), same, "{text}");
        }
        // The first is applied with what the store keeps until a restart.
        let old = config("store.retention = \"400d\"");
        let new = config("store.retention = \"500d\"\nlimits.import_past = \"450d\"");
        let applied = taken_over(&old, &new);
        let day = std::time::Duration::from_secs(86_400);
        assert_eq!(applied.limits.import_past, 450 * day);
        assert_eq!(applied.decoding().import_past, 400 * day);
    }

    #[test]
    fn switching_tls_on_or_off_needs_a_restart() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let plain = config("");
        for section in ["http.tls", "admin.tls", "listen.mqtt"] {
            let tls = config(&format!(
                "[{section}]\ncert_file = {0:?}\nkey_file = {0:?}",
                file.path()
            ));
            for (old, new) in [(&plain, &tls), (&tls, &plain)] {
                let found = changes(old, new);
                assert_eq!(
                    found
                        .iter()
                        .filter(|change| change.waits == Some(TLS))
                        .count(),
                    2,
                    "{found:?}"
                );
                assert_eq!(changes(&taken_over(old, new), new), found);
            }
        }
    }

    #[test]
    fn a_format_in_use_until_a_restart_cannot_be_removed() {
        let old = config(BROKER);
        let merged = taken_over(&old, &config(""));
        assert!(
            fits(&merged)
                .unwrap_err()
                .to_string()
                .contains("formats.own"),
            "{:?}",
            fits(&merged)
        );
        assert_eq!(fits(&old), Ok(()));
    }
}
