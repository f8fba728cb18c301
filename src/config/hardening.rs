//! The hardening checklist: how well the settings protect the service from strangers, and from
//! senders that turn bad. `hourbucket check` prints it, and docs/security.md explains each line (a
//! test compares them). Pure.
//!
//! It judges the settings alone. What they cannot tell has a line as well, which says where to
//! look.

use std::net::SocketAddr;

use super::{Config, Connections, ListenMqtt, Mqtt, Proxies};

/// One line of the checklist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChecklistLine {
    /// The settings, or the subject, that the line is about.
    pub key: &'static str,
    /// What should be true.
    pub goal: &'static str,
    /// Whether it is.
    pub verdict: Verdict,
}

/// Whether a line of the checklist is fulfilled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It is.
    Good,
    /// It does not apply: the part is off, or not reachable from other machines.
    NotNeeded,
    /// It is not; what to do.
    Improve(String),
    /// The settings cannot tell; where to look.
    Unknown(&'static str),
}

impl Config {
    /// The hardening checklist, in the order of docs/security.md.
    pub fn hardening(&self) -> Vec<ChecklistLine> {
        let line = |key, goal, verdict| ChecklistLine { key, goal, verdict };
        vec![
            line(
                "http.tokens_file",
                "Senders over HTTP authenticate.",
                self.http_senders(),
            ),
            line("http.tls.cert_file", "HTTP is encrypted.", self.http_tls()),
            line(
                "listen.mqtt.tokens_file",
                "MQTT devices authenticate.",
                self.devices(),
            ),
            line(
                "listen.mqtt.cert_file",
                "MQTT devices are encrypted.",
                self.devices_tls(),
            ),
            line(
                "admin.listen",
                "The admin port is for this machine only, or encrypted.",
                self.admin(),
            ),
            line(
                "trusted_proxies",
                "Only proxies are trusted to name addresses.",
                self.proxies(),
            ),
            line(
                "failed_auth_max",
                "Guessing secrets is slowed down.",
                self.guessing(),
            ),
            line(
                "connections_per_address_max",
                "One address cannot take all connections.",
                self.addresses(),
            ),
            line(
                "http.body_rate_min",
                "Bodies that trickle in are refused.",
                self.slow_bodies(),
            ),
            line(
                "quota.readings_per_second",
                "A token that turns bad is limited.",
                self.quota(),
            ),
            line(
                "audit.file",
                "Refusals and queries are recorded in full.",
                self.audit_file(),
            ),
            line(
                "ingest.sender_tag",
                "Stored readings name their sender.",
                self.sender_tag(),
            ),
            line(
                "store.uri",
                "MongoDB requires a user, and is encrypted.",
                self.store_uri(),
            ),
            line(
                "mqtt.url",
                "Brokers require a user, and are encrypted.",
                self.brokers(),
            ),
            line(
                "tokens",
                "Tokens have rules and an end.",
                Verdict::Unknown(
                    "look at `hourbucket tokens list`: each token should write its own sensors \
                     only, and have an end",
                ),
            ),
            line(
                "firewall",
                "Only who must reaches the ports.",
                Verdict::Unknown(
                    "look from another machine, for example with nmap: the admin port is for \
                     operators and Prometheus",
                ),
            ),
            line(
                "disk",
                "Journal and backups are private.",
                Verdict::Unknown(
                    "the journal and MongoDB's files hold readings; encrypt their disks, and \
                     restrict who reads backups",
                ),
            ),
            line(
                "clock",
                "The clock is right.",
                Verdict::Unknown(
                    "`expires` of tokens, and certificates, depend on it; see the alert \
                     HourbucketClockOff",
                ),
            ),
        ]
    }

    fn http_senders(&self) -> Verdict {
        let http = &self.http;
        if !http.enabled {
            return Verdict::NotNeeded;
        }
        let is_good = http.tokens_file.is_some() || http.tls.is_gate();
        let what = if is_local(http.listen) {
            "every program on this machine"
        } else {
            "anyone who reaches the port"
        };
        improve(is_good, || {
            format!("{what} can write; set http.tokens_file (`hourbucket tokens add`)")
        })
    }

    fn http_tls(&self) -> Verdict {
        if !self.http.enabled || is_local(self.http.listen) {
            return Verdict::NotNeeded;
        }
        improve(self.http.tls.is_on(), || {
            "tokens and readings are sent in clear text; set http.tls.cert_file and key_file, or \
             let a proxy terminate TLS and listen on 127.0.0.1"
                .to_owned()
        })
    }

    fn devices(&self) -> Verdict {
        let ListenMqtt {
            enabled,
            tokens_file,
            client_ca_file,
            listen,
            ..
        } = &self.listen.mqtt;
        if !enabled {
            return Verdict::NotNeeded;
        }
        let what = if is_local(*listen) {
            "every program on this machine"
        } else {
            "anyone who reaches the port"
        };
        improve(tokens_file.is_some() || client_ca_file.is_some(), || {
            format!("{what} can write; set listen.mqtt.tokens_file, or client_ca_file")
        })
    }

    fn devices_tls(&self) -> Verdict {
        let mqtt = &self.listen.mqtt;
        if !mqtt.enabled || is_local(mqtt.listen) {
            return Verdict::NotNeeded;
        }
        improve(mqtt.cert_file.is_some(), || {
            "secrets and readings are sent in clear text; set listen.mqtt.cert_file and key_file"
                .to_owned()
        })
    }

    fn admin(&self) -> Verdict {
        let is_good = is_local(self.admin.listen) || self.admin.tls.is_on();
        improve(is_good, || {
            "metrics, sensor data and tokens of readers are sent in clear text; set admin.listen = \
             \"127.0.0.1:8081\", or admin.tls.cert_file and key_file"
                .to_owned()
        })
    }

    fn proxies(&self) -> Verdict {
        let ports = [
            ("http", self.http.enabled, &self.http.proxies),
            ("admin", true, &self.admin.proxies),
            (
                "listen.mqtt",
                self.listen.mqtt.enabled,
                &self.listen.mqtt.proxies,
            ),
        ];
        let used = ports
            .into_iter()
            .filter(|(_, is_on, proxies)| *is_on && !proxies.trusted.is_empty());
        let used: Vec<(&str, &Proxies)> = used.map(|(port, _, proxies)| (port, proxies)).collect();
        if used.is_empty() {
            return Verdict::NotNeeded;
        }
        let wide = used.into_iter().find_map(|(port, proxies)| {
            proxies
                .trusted
                .iter()
                .find(|network| network.is_wide())
                .map(|network| (port, network))
        });
        wide.map_or(Verdict::Good, |(port, network)| {
            Verdict::Improve(format!(
                "everyone in {network} can pretend any address; name only the proxies in \
                 {port}.trusted_proxies"
            ))
        })
    }

    /// The ports that are on, with their limits.
    fn limits_of_ports(&self) -> impl Iterator<Item = (&'static str, &Connections)> {
        let mqtt = &self.listen.mqtt;
        [
            ("http", self.http.enabled, &self.http.connections),
            ("admin", true, &self.admin.connections),
            ("listen.mqtt", mqtt.enabled, &mqtt.connections),
        ]
        .into_iter()
        .filter_map(|(port, is_on, connections)| is_on.then_some((port, connections)))
    }

    fn guessing(&self) -> Verdict {
        let off = self
            .limits_of_ports()
            .find(|(_, connections)| connections.failed_auth_max == 0);
        off.map_or(Verdict::Good, |(port, _)| {
            Verdict::Improve(format!(
                "{port}.failed_auth_max is 0; remove it (default 30)"
            ))
        })
    }

    fn addresses(&self) -> Verdict {
        let all = self
            .limits_of_ports()
            .find(|(_, connections)| connections.per_address() >= connections.max);
        all.map_or(Verdict::Good, |(port, _)| {
            Verdict::Improve(format!(
                "{port}.connections_per_address_max is not below connections_max; remove it \
                 (default: a quarter)"
            ))
        })
    }

    fn slow_bodies(&self) -> Verdict {
        if !self.http.enabled {
            return Verdict::NotNeeded;
        }
        improve(self.http.body_rate_min > 0, || {
            "http.body_rate_min is 0; remove it (default 256)".to_owned()
        })
    }

    fn quota(&self) -> Verdict {
        let quota = &self.quota;
        let has_tokens = self.http.enabled && self.http.tokens_file.is_some()
            || self.listen.mqtt.enabled && self.listen.mqtt.tokens_file.is_some();
        if !has_tokens {
            return Verdict::NotNeeded;
        }
        improve(
            quota.readings_per_second.is_some() || quota.bytes_per_second.is_some(),
            || {
                "one token may send at any rate, up to its share of the journal; set \
                 quota.readings_per_second to some times what a gateway sends, or `rate` in the \
                 tokens file"
                    .to_owned()
            },
        )
    }

    fn audit_file(&self) -> Verdict {
        improve(self.audit.file.is_some(), || {
            "the normal log has only ten lines a minute of each kind; set audit.file".to_owned()
        })
    }

    fn sender_tag(&self) -> Verdict {
        improve(self.ingest.sender_tag.is_some(), || {
            "what a stolen token wrote cannot be found later; set ingest.sender_tag = \"sender\""
                .to_owned()
        })
    }

    fn store_uri(&self) -> Verdict {
        let StoreUri {
            has_user,
            has_tls,
            is_local,
        } = StoreUri::read(self.store.uri.reveal());
        let missing = match (has_user, has_tls || is_local) {
            (true, true) => return Verdict::Good,
            (false, true) => {
                "anyone who reaches MongoDB can change readings; create a user, and put it into \
                 the URI"
            }
            (true, false) => {
                "readings and the password's proof are sent in clear text; add tls=true to the URI"
            }
            (false, false) => {
                "without a user and TLS anyone on the network can change readings; add both to the \
                 URI"
            }
        };
        Verdict::Improve(format!("{missing} (a secret: HOURBUCKET_STORE__URI_FILE)"))
    }

    fn brokers(&self) -> Verdict {
        let remote = |mqtt: &&Mqtt| {
            !is_loopback_host(host(
                mqtt.url.split_once("://").map_or("", |(_, rest)| rest),
            ))
        };
        let remote: Vec<&Mqtt> = self.mqtt.iter().filter(remote).collect();
        if remote.is_empty() {
            return Verdict::NotNeeded;
        }
        let is_plain =
            |mqtt: &Mqtt| mqtt.url.starts_with("mqtt://") || mqtt.url.starts_with("ws://");
        if remote.iter().any(|mqtt| is_plain(mqtt)) {
            let remedy =
                "passwords and readings are sent in clear text; use mqtts:// or wss:// in mqtt.url";
            return Verdict::Improve(remedy.to_owned());
        }
        improve(
            remote
                .iter()
                .all(|mqtt| mqtt.username.is_some() || mqtt.cert_file.is_some()),
            || {
                "anyone can publish to a broker without users; set mqtt.username and \
                 password_file, or cert_file"
                    .to_owned()
            },
        )
    }
}

fn improve(is_good: bool, remedy: impl FnOnce() -> String) -> Verdict {
    if is_good {
        Verdict::Good
    } else {
        Verdict::Improve(remedy())
    }
}

fn is_local(addr: SocketAddr) -> bool {
    addr.ip().to_canonical().is_loopback()
}

/// The host of `host[:port][/…]`.
fn host(rest: &str) -> &str {
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    match authority
        .strip_prefix('[')
        .and_then(|rest| rest.split_once(']'))
    {
        Some((v6, _)) => v6,
        None => authority
            .rsplit_once(':')
            .map_or(authority, |(host, _)| host),
    }
}

fn is_loopback_host(host: &str) -> bool {
    host == "localhost"
        || host
            .parse::<std::net::IpAddr>()
            .is_ok_and(|ip| ip.is_loopback())
}

/// What the URI of the store says about its protection.
struct StoreUri {
    has_user: bool,
    has_tls: bool,
    /// All hosts are this machine.
    is_local: bool,
}

impl StoreUri {
    fn read(uri: &str) -> StoreUri {
        let (scheme, rest) = uri.split_once("://").unwrap_or_default();
        let (authority, options) = match rest.find(['/', '?']) {
            Some(end) => (
                &rest[..end],
                rest[end..]
                    .split_once('?')
                    .map_or("", |(_, options)| options),
            ),
            None => (rest, ""),
        };
        let (user, hosts) = authority
            .rsplit_once('@')
            .map_or(("", authority), |(user, hosts)| (user, hosts));
        let mut options = options
            .split('&')
            .filter_map(|option| option.split_once('='));
        let is_x509 = options.clone().any(|(key, value)| {
            key.eq_ignore_ascii_case("authMechanism") && value.eq_ignore_ascii_case("MONGODB-X509")
        });
        let tls = options
            .find(|(key, _)| key.eq_ignore_ascii_case("tls") || key.eq_ignore_ascii_case("ssl"))
            .map(|(_, value)| value == "true");
        StoreUri {
            has_user: !user.is_empty() || is_x509,
            // Names of `mongodb+srv` imply it.
            has_tls: tls.unwrap_or(scheme == "mongodb+srv"),
            is_local: scheme == "mongodb" && hosts.split(',').all(|of| is_loopback_host(host(of))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::load;
    use super::*;

    /// The verdict of a line with these settings; `$file` is a file that can be read.
    fn verdict(key: &str, text: &str) -> Verdict {
        let file = tempfile::NamedTempFile::new().unwrap();
        let config = tempfile::NamedTempFile::new().unwrap();
        let text = text.replace("$file", &format!("{:?}", file.path()));
        std::fs::write(config.path(), text).unwrap();
        let config = load(Some(config.path()), std::iter::empty())
            .unwrap_or_else(|e| panic!("{e}"))
            .config;
        config
            .hardening()
            .into_iter()
            .find(|line| line.key == key)
            .unwrap()
            .verdict
    }

    const TOKENS: &str = "http.tokens_file = $file";
    const OPEN: &str = "http.listen = \"0.0.0.0:8080\"";

    /// Settings with which each line is fulfilled, and some with which it is not and the remedy
    /// names this.
    #[test]
    fn each_line_tells_good_settings_from_bad_ones() {
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
            (
                "mqtt.url",
                broker("url = \"mqtts://b\"\nusername = \"u\"\npassword_file = $file")
                    .replace("$file", "\"Cargo.toml\""),
                broker("url = \"mqtt://b:1883\""),
                "mqtts://",
            ),
        ] {
            assert_eq!(verdict(key, &good), Verdict::Good, "{key}: {good}");
            let Verdict::Improve(advice) = verdict(key, &bad) else {
                panic!("{key}: {bad}")
            };
            assert!(advice.contains(remedy), "{key}: {advice}");
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
        let text = include_str!("../../docs/security.md");
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
        let lines = Config::default().hardening();
        let lines: Vec<_> = lines
            .iter()
            .map(|line| (line.key.to_owned(), line.goal.to_owned()))
            .collect();
        assert_eq!(documented, lines);
    }
}
