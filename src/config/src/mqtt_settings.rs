//! The settings of MQTT: the brokers that the service subscribes to, and the port that devices
//! connect to.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use chrono_tz::Tz;

use super::connections::Connections;
use super::proxies::Proxies;
use super::tls::ClientAuth;
use super::values::Secret;

/// The protocol version of a broker's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MqttProtocol {
    /// MQTT 3.1.1.
    V4,
    /// MQTT 5.
    V5,
}

/// `[[mqtt]]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mqtt {
    /// `url`: `mqtt://`, `mqtts://`, `ws://` or `wss://` host and port, without credentials.
    pub url: String,
    /// `client_id`: unique for each broker and instance.
    pub client_id: String,
    /// `protocol`: 4 or 5 (default).
    pub protocol: MqttProtocol,
    /// `clean_start` (default false: a persistent session).
    pub clean_start: bool,
    /// `session_expiry`: MQTT 5 only, how long the broker keeps the session (default 7d).
    pub session_expiry: Duration,
    /// `username`
    pub username: Option<String>,
    /// The content of `password_file` at the time of loading, or `password` from the environment.
    pub password: Option<Secret>,
    /// `password_file`: read again for each connection; absent if the environment holds the
    /// password itself.
    pub password_file: Option<PathBuf>,
    /// `ca_file`: PEM; if absent, the system's roots. Read again for each connection, as are the
    /// next two.
    pub ca_file: Option<PathBuf>,
    /// `cert_file`: PEM, the client certificate that the broker requires, with its chain.
    pub cert_file: Option<PathBuf>,
    /// `key_file`: PEM, the key of `cert_file`.
    pub key_file: Option<PathBuf>,
    /// `keep_alive` (default 30s).
    pub keep_alive: Duration,
    /// `packet_max_bytes` (default 1MiB; a larger message becomes a dead letter).
    pub packet_max_bytes: u32,
    /// `window`: messages that may wait for their acknowledgement (default 10,000; MQTT 5: receive
    /// maximum, at most 65,535).
    pub window: u16,
    /// `status_topic`: where `online` and `offline` are published, retained.
    pub status_topic: Option<String>,
    /// `[[mqtt.subscriptions]]`
    pub subscriptions: Vec<Subscription>,
    /// Another `[[mqtt]]` has the same `url`.
    pub is_url_shared: bool,
}

/// `[[mqtt.subscriptions]]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscription {
    /// `filter`: a topic filter, also `$share/group/…`.
    pub filter: String,
    /// `qos`: 0, 1 (default), or 2, which is treated as 1 (see [`Subscription::qos_asked`]).
    pub qos: u8,
    /// `topic`: a template such as `sensors/{sensor_id}/{field}` (default `#` if the format reads
    /// topics itself).
    pub topic: String,
    /// `format`: a built-in format such as `json`, a built-in mapping such as `zigbee2mqtt`, or one
    /// of `[formats.NAME]`.
    pub format: String,
    /// `ts_unit`: unit of numeric times: `s`, `ms`, `us`, `ns`; if absent, by magnitude (for
    /// `line`: `ns`).
    pub ts_unit: Option<String>,
    /// `zone` for times without one; if absent, `limits.zone`. A zone in the format overrides it.
    pub zone: Option<Tz>,
    /// `retained`: which retained messages are accepted (default once).
    pub retained: Retained,
    /// `user_property_tags`: names of MQTT 5 user properties that become tags (default none).
    pub user_property_tags: Vec<String>,
}

impl Subscription {
    /// Whether the broker shares its messages among several clients (MQTT 5 §4.8.2).
    pub fn is_shared(&self) -> bool {
        self.filter.starts_with("$share/")
    }

    /// The QoS to request from the broker. QoS 2 would guarantee nothing that QoS 1 does not,
    /// because readings that arrive twice are stored once.
    pub fn qos_asked(&self) -> u8 {
        self.qos.min(1)
    }
}

/// Which retained messages are accepted. This concerns messages that the broker sends because of a
/// subscription, not those published at that moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retained {
    /// Each once: an accepted message is not accepted again after a reconnect (`ingest::mqtt`
    /// defines this exactly).
    Once,
    /// All of them, at each connection.
    Always,
    /// None.
    Never,
}

/// `[listen]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listen {
    /// `[listen.mqtt]`
    pub mqtt: ListenMqtt,
}

/// `[listen.mqtt]`: devices connect to hourbucket directly.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenMqtt {
    /// `enabled` (default false).
    pub enabled: bool,
    /// `listen` (default 127.0.0.1:1883).
    pub listen: SocketAddr,
    /// `tokens_file`: tokens of the devices that may connect; if absent, loopback only.
    pub tokens_file: Option<PathBuf>,
    /// `allow_anonymous` (default false).
    pub allow_anonymous: bool,
    /// `cert_file`: PEM, with its chain; enables TLS. Read again when it changes.
    pub cert_file: Option<PathBuf>,
    /// `key_file`: PEM, the key of `cert_file`.
    pub key_file: Option<PathBuf>,
    /// `client_ca_file`: PEM; devices must present a certificate from this CA.
    pub client_ca_file: Option<PathBuf>,
    /// `client_crl_file`: PEM; revocation lists of device certificates. Read again when it changes.
    pub client_crl_file: Option<PathBuf>,
    /// `client_auth`: `required` (default), or `identity`: the certificate is the identity of the
    /// device.
    pub client_auth: ClientAuth,
    /// Limits on connections (default 10,000 in total); further ones are closed.
    pub connections: Connections,
    /// The proxies in front of the port.
    pub proxies: Proxies,
    /// `connect_timeout`: time limit for TLS and CONNECT together (default 10s).
    pub connect_timeout: Duration,
    /// `keep_alive_max`: a device is disconnected after a silence of at most one and a half times
    /// this (default 1h).
    pub keep_alive_max: Duration,
    /// `packet_max_bytes` (default 256KiB); a larger packet ends the connection.
    pub packet_max_bytes: u32,
    /// `write_timeout`: how long a device may receive none of the bytes sent to it (default 30s).
    pub write_timeout: Duration,
    /// `packet_grace`: the time that a large packet has whatever its rate (default 30s).
    pub packet_grace: Duration,
    /// `packet_rate_min`: a large packet has a second more for each of these bytes (default 2KiB).
    pub packet_rate_min: u64,
    /// `topic_max_bytes` (default 1024).
    pub topic_max_bytes: usize,
    /// `window`: messages of one connection that may wait for their acknowledgement (default 100).
    pub window: u16,
    /// `[[listen.mqtt.topics]]`: like subscriptions, with QoS 1.
    pub topics: Vec<Subscription>,
}

impl ListenMqtt {
    /// As [`Http::is_guarded`](crate::Http::is_guarded).
    pub fn is_guarded(&self) -> bool {
        self.tokens_file.is_some() || self.client_ca_file.is_some() || self.allow_anonymous
    }

    /// As [`Tls::is_identity`](crate::Tls::is_identity).
    pub fn is_identity(&self) -> bool {
        self.client_ca_file.is_some() && self.client_auth == ClientAuth::Identity
    }
}
