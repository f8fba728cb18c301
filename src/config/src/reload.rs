//! Which settings can change while the service runs: the keys in which two configurations differ,
//! which of them are applied, and why the others need a restart. The declaration of each key says
//! so (`declare`).

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use super::declare::{Key, List, Settings, Value, Visit, Visitor};
use super::describe::join;
use super::mapping::{self, Mapping};
use super::{Config, is_loopback};

/// A key that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The key, such as `limits.past` or `mqtt[0].url`. An added or removed format or broker is one
    /// change.
    pub key: String,
    /// Why the change needs a restart; `None`: it is applied.
    pub waits: Option<&'static str>,
}

const TLS: &str = "a port enables TLS when it is opened";

/// The value of every key that is set.
type Values = BTreeMap<String, Box<dyn Any>>;

/// Visits every key with its full path, and what another configuration has there.
struct Walk<F> {
    path: String,
    each: F,
}

impl<F: FnMut(String, &Key, &mut dyn Value)> Visitor for Walk<F> {
    fn key(&mut self, key: &Key, value: &mut dyn Value) {
        (self.each)(join(&self.path, key.name), key, value);
    }

    fn section(&mut self, key: &Key, keys: Visit<'_>) {
        let path = join(&self.path, key.name);
        let above = std::mem::replace(&mut self.path, path);
        keys(self);
        self.path = above;
    }

    fn list(&mut self, key: &Key, list: &mut dyn List) {
        let path = join(&self.path, key.name);
        for i in 0..list.len() {
            let above = std::mem::replace(&mut self.path, format!("{path}[{i}]"));
            list.visit(i, self);
            self.path = above;
        }
    }

    fn formats(&mut self, _: &Key, _: &mut Vec<Arc<Mapping>>) {}
}

fn walk(config: &mut Config, each: impl FnMut(String, &Key, &mut dyn Value)) {
    let path = String::new();
    config.visit(&mut Walk { path, each });
}

fn values(config: &Config) -> Values {
    let mut values = Values::new();
    walk(&mut config.clone(), |path, _, value| {
        values.insert(path, value.copy());
    });
    values
}

/// The keys in which two configurations differ, in alphabetical order.
pub fn changes(old: &Config, new: &Config) -> Vec<Change> {
    let before = values(old);
    let after = values(new);
    let mut found = BTreeMap::new();
    // Of a list of sections, those that both have are compared, and the others are one change each.
    for config in [old, new] {
        walk(&mut config.clone(), |path, key, value| {
            let (Some(_), Some(other)) = (before.get(&path), after.get(&path)) else {
                found.insert(whole(&path, &before, &after), key.restart);
                return;
            };
            if !value.is(&**other) {
                let waits = switched(&path, old, new).or(key.restart);
                found.insert(path, waits);
            }
        });
    }
    for name in changed_formats(&old.formats, &new.formats) {
        found.insert(join("formats", name), None);
    }
    found
        .into_iter()
        .map(|(key, waits)| Change { key, waits })
        .collect()
}

/// The names of formats that only one has, or that differ.
fn changed_formats<'a>(old: &'a [Arc<Mapping>], new: &'a [Arc<Mapping>]) -> BTreeSet<&'a str> {
    let changed = |a: &'a [Arc<Mapping>], b: &'a [Arc<Mapping>]| {
        let is_changed = move |format: &&Arc<Mapping>| !b.contains(format);
        a.iter()
            .filter(is_changed)
            .map(|format| format.name.as_str())
    };
    changed(old, new).chain(changed(new, old)).collect()
}

/// The broker or subscription of a key that only one of the two configurations has.
fn whole(path: &str, before: &Values, after: &Values) -> String {
    let has = |values: &Values, section: &str| values.keys().any(|key| key.starts_with(section));
    let mut sections = path.match_indices(']').map(|(at, _)| &path[..=at]);
    let found = sections.find(|section| has(before, section) != has(after, section));
    found.unwrap_or(path).to_owned()
}

/// The new settings as far as they can be applied, and the old ones for the rest.
pub fn taken_over(old: &Config, new: &Config) -> Config {
    let values = values(new);
    let mut config = old.clone();
    walk(&mut config, |path, key, value| {
        let is_applied = key.restart.is_none() && switched(&path, old, new).is_none();
        if let Some(new) = values.get(&path).filter(|_| is_applied) {
            value.set(&**new);
        }
    });
    // A reload can add or remove elements of these.
    config.formats.clone_from(&new.formats);
    config.ranges.clone_from(&new.ranges);
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
