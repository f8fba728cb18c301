//! The hardening checklist: how well the settings protect the service from strangers, and from
//! senders that turn bad. `hourbucket check` prints it, and docs/security.md explains each line (a
//! test compares them). Pure.
//!
//! It judges the settings alone. What they cannot tell has a line as well, which says where to
//! look.

use std::fmt;

use config::{Config, Connections, ListenMqtt, Mqtt, Proxies, is_loopback};

/// One line of the checklist.
#[derive(Debug)]
pub(super) struct ChecklistLine {
    /// The settings, or the subject, that the line is about.
    pub(super) key: &'static str,
    /// What should be true.
    pub(super) goal: &'static str,
    /// Whether it is.
    pub(super) verdict: Verdict,
}

impl fmt::Display for ChecklistLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ChecklistLine { key, goal, verdict } = self;
        let (word, more) = match verdict {
            Verdict::Good => ("good", String::new()),
            Verdict::NotNeeded => ("good", " (not needed with these settings)".to_owned()),
            Verdict::Improve(remedy) => ("advice", format!(" {remedy}")),
            Verdict::Unknown(look) => ("look", format!(" {look}")),
        };
        write!(f, "{word:8} {:14} {key}: {goal}{more}", "hardening")
    }
}

/// Whether a line of the checklist is fulfilled.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is.
    Good,
    /// It does not apply: the part is off, or not reachable from other machines.
    NotNeeded,
    /// It is not; what to do.
    Improve(String),
    /// The settings cannot tell; where to look.
    Unknown(&'static str),
}

/// Lines of the checklist: settings, what should be true, whether it is.
macro_rules! checklist {
    ($($key:literal: $goal:literal, $verdict:expr;)*) => {
        vec![$(ChecklistLine { key: $key, goal: $goal, verdict: $verdict }),*]
    };
}

/// The hardening checklist, in the order of docs/security.md.
pub(super) fn checklist(config: &Config) -> Vec<ChecklistLine> {
    Settings(config).checklist()
}

struct Settings<'a>(&'a Config);

impl Settings<'_> {
    fn checklist(&self) -> Vec<ChecklistLine> {
        checklist! {
            // Who may use each port, and whether it is encrypted.
            "http.tokens_file": "Senders over HTTP authenticate.", self.http_senders();
            "http.tls.cert_file": "HTTP is encrypted.", self.http_tls();
            "listen.mqtt.tokens_file": "MQTT devices authenticate.", self.devices();
            "listen.mqtt.cert_file": "MQTT devices are encrypted.", self.devices_tls();
            "admin.listen": "The admin port is for this machine only, or encrypted.", self.admin();
            // How much one address or one token can do.
            "trusted_proxies": "Only proxies are trusted to name addresses.", self.proxies();
            "failed_auth_max": "Guessing secrets is slowed down.", self.guessing();
            "connections_per_address_max": "One address cannot take all connections.",
                self.addresses();
            "http.body_rate_min": "Bodies that trickle in are refused.", self.slow_bodies();
            "quota.readings_per_second": "A token that turns bad is limited.", self.quota();
            // What can be found out later.
            "audit.file": "Refusals and queries are recorded in full.", self.audit_file();
            "ingest.sender_tag": "Stored readings name their sender.", self.sender_tag();
            // The servers that the service connects to.
            "store.uri": "MongoDB requires a user, and is encrypted.", self.store_uri();
            "mqtt.url": "Brokers require a user, and are encrypted.", self.brokers();
            // What the settings cannot tell, with where to look.
            "tokens": "Tokens have rules and an end.", Verdict::Unknown(
                "look at `hourbucket tokens list`: each token should write its own sensors \
                 only, and have an end",
            );
            "firewall": "Only who must reaches the ports.", Verdict::Unknown(
                "look from another machine, for example with nmap: the admin port is for \
                 operators and Prometheus",
            );
            "disk": "Journal and backups are private.", Verdict::Unknown(
                "the journal and MongoDB's files hold readings; encrypt their disks, and \
                 restrict who reads backups",
            );
            "clock": "The clock is right.", Verdict::Unknown(
                "`expires` of tokens, and certificates, depend on it; see the alert \
                 HourbucketClockOff",
            );
        }
    }

    fn http_senders(&self) -> Verdict {
        let http = &self.0.http;
        if !http.enabled {
            return Verdict::NotNeeded;
        }
        let is_good = http.tokens_file.is_some() || http.tls.is_gate();
        let what = if is_loopback(http.listen.ip()) {
            "every program on this machine"
        } else {
            "anyone who reaches the port"
        };
        improve(is_good, || {
            format!("{what} can write; set http.tokens_file (`hourbucket tokens add`)")
        })
    }

    fn http_tls(&self) -> Verdict {
        if !self.0.http.enabled || is_loopback(self.0.http.listen.ip()) {
            return Verdict::NotNeeded;
        }
        improve(self.0.http.tls.is_on(), || {
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
        } = &self.0.listen.mqtt;
        if !enabled {
            return Verdict::NotNeeded;
        }
        let what = if is_loopback(listen.ip()) {
            "every program on this machine"
        } else {
            "anyone who reaches the port"
        };
        improve(tokens_file.is_some() || client_ca_file.is_some(), || {
            format!("{what} can write; set listen.mqtt.tokens_file, or client_ca_file")
        })
    }

    fn devices_tls(&self) -> Verdict {
        let mqtt = &self.0.listen.mqtt;
        if !mqtt.enabled || is_loopback(mqtt.listen.ip()) {
            return Verdict::NotNeeded;
        }
        improve(mqtt.cert_file.is_some(), || {
            "secrets and readings are sent in clear text; set listen.mqtt.cert_file and key_file"
                .to_owned()
        })
    }

    fn admin(&self) -> Verdict {
        let is_good = is_loopback(self.0.admin.listen.ip()) || self.0.admin.tls.is_on();
        improve(is_good, || {
            "metrics, sensor data and tokens of readers are sent in clear text; set admin.listen = \
             \"127.0.0.1:8081\", or admin.tls.cert_file and key_file"
                .to_owned()
        })
    }

    fn proxies(&self) -> Verdict {
        let ports = [
            ("http", self.0.http.enabled, &self.0.http.proxies),
            ("admin", true, &self.0.admin.proxies),
            (
                "listen.mqtt",
                self.0.listen.mqtt.enabled,
                &self.0.listen.mqtt.proxies,
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
        let mqtt = &self.0.listen.mqtt;
        [
            ("http", self.0.http.enabled, &self.0.http.connections),
            ("admin", true, &self.0.admin.connections),
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
        if !self.0.http.enabled {
            return Verdict::NotNeeded;
        }
        improve(self.0.http.body_rate_min > 0, || {
            "http.body_rate_min is 0; remove it (default 256)".to_owned()
        })
    }

    fn quota(&self) -> Verdict {
        let quota = &self.0.quota;
        let has_tokens = self.0.http.enabled && self.0.http.tokens_file.is_some()
            || self.0.listen.mqtt.enabled && self.0.listen.mqtt.tokens_file.is_some();
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
        improve(self.0.audit.file.is_some(), || {
            "the normal log has only ten lines a minute of each kind; set audit.file".to_owned()
        })
    }

    fn sender_tag(&self) -> Verdict {
        improve(self.0.ingest.sender_tag.is_some(), || {
            "what a stolen token wrote cannot be found later; set ingest.sender_tag = \"sender\""
                .to_owned()
        })
    }

    fn store_uri(&self) -> Verdict {
        let StoreUri {
            has_user,
            has_tls,
            is_local,
        } = StoreUri::read(self.0.store.uri.reveal());
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
        let remote: Vec<&Mqtt> = self.0.mqtt.iter().filter(remote).collect();
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
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(is_loopback)
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
