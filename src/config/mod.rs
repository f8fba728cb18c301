//! The configuration as the rest of the service uses it: checked, complete and with units in the types.
//!
//! [`load()`] merges environment over file over default. It reports all problems together, each with its key.
//!
//! **File.** TOML, at the given path or `config/hourbucket.toml`, which may be missing. Relative paths, on the command
//! line and inside the file, are resolved against the working directory of the process, not against the file. So
//! `journal.dir` and `--config` mean the same as in a shell, and moving the file moves no data.
//!
//! **Environment.** `HOURBUCKET_<SECTION>__<KEY>`, such as `HOURBUCKET_STORE__URI`; list elements by number, such as
//! `HOURBUCKET_MQTT__0__SUBSCRIPTIONS__0__FILTER`. The number after the last one appends an element. The key's type
//! determines how the text is parsed: `true`, `5000`, `15s`, `512MiB`. A variable that ends in `_FILE` names a file
//! that holds the value; its last line ending is dropped (a key that itself ends in `_file`, such as
//! `http.tokens_file`, keeps its meaning). An empty variable counts as not set. `HOURBUCKET_` variables without a
//! double underscore belong to other tools and are ignored; with one, an unknown name is an error.

mod check;
mod connections;
mod dump;
mod error;
mod formats;
mod listen;
mod live;
mod load;
mod manager;
pub mod mapping;
mod mqtt;
mod permissions;
mod reader;
mod reference;
pub mod reload;
mod secret;
mod sections;
mod suggest;
mod tls;
mod topic;
mod tree;
mod units;
mod uri;
mod warnings;

pub use connections::{Connections, HttpTimes};
pub use error::{ConfigErrors, Problem};
pub use live::{Live, Setter};
pub use load::{DEFAULT_PATH, Loaded, environment, known_keys, load};
pub use manager::{Manager, manager};
pub use reader::SecretFileError;
pub use reference::reference;
pub use secret::Secret;
pub(crate) use suggest::nearest;
pub use tls::{ClientAuth, Tls, TlsVersion};
pub(crate) use units::write_duration;
pub use units::{parse_duration, parse_size};

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use chrono_tz::Tz;
use mapping::Mapping;

use crate::model::Span;

/// All settings. The shipped `config/hourbucket.toml` shows each key with its default and a comment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// `[ingest]`
    pub ingest: Ingest,
    /// `[quota]`
    pub quota: Quota,
    /// `[http]`
    pub http: Http,
    /// `[admin]`
    pub admin: Admin,
    /// `[store]`
    pub store: Store,
    /// `[bucket]`
    pub bucket: Bucket,
    /// `[flush]`
    pub flush: Flush,
    /// `[accumulate]`
    pub accumulate: Accumulate,
    /// `[journal]`
    pub journal: Journal,
    /// `[latest]`
    pub latest: Latest,
    /// `[enrich]`
    pub enrich: Enrich,
    /// `[limits]`
    pub limits: Limits,
    /// `[line]`
    pub line: Line,
    /// `[otlp]`
    pub otlp: Otlp,
    /// `[dead_letters]`
    pub dead_letters: DeadLetters,
    /// `[shutdown]`
    pub shutdown: Shutdown,
    /// `[log]`
    pub log: Log,
    /// `[formats.NAME]`, sorted by name.
    pub formats: Vec<Arc<Mapping>>,
    /// `[[mqtt]]`
    pub mqtt: Vec<Mqtt>,
    /// `[listen]`
    pub listen: Listen,
}

/// The settings that decoding depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decoding {
    /// `[limits]`
    pub limits: Limits,
    /// `[line]`
    pub line: Line,
    /// `[formats.NAME]`
    pub formats: Vec<Arc<Mapping>>,
    /// `[otlp]`
    pub otlp: Otlp,
    /// `ingest.sender_tag`
    pub sender_tag: Option<Arc<str>>,
}

impl Config {
    /// Copies the settings that decoding depends on.
    pub fn decoding(&self) -> Decoding {
        Decoding {
            limits: self.limits.clone(),
            line: self.line.clone(),
            otlp: self.otlp.clone(),
            formats: self.formats.clone(),
            sender_tag: self.ingest.sender_tag.clone(),
        }
    }
}

/// When a sender is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckMode {
    /// After the journal's fdatasync.
    Journal,
    /// After the store's majority write; no journal.
    Stored,
}

/// `[ingest]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ingest {
    /// `ack`: `journal` or `stored`.
    pub ack: AckMode,
    /// `queue_max`: ingest batches that may wait for the next stage (default 1024).
    pub queue_max: usize,
    /// `queue_max_bytes`: their bytes (default 64MiB).
    pub queue_max_bytes: u64,
    /// `sender_tag`: the tag that records the id of the sender; if absent, it is not recorded.
    pub sender_tag: Option<Arc<str>>,
}

/// `[quota]`: how much one sender may send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quota {
    /// `readings_per_second`; `None`: any number.
    pub readings_per_second: Option<u64>,
    /// `bytes_per_second`: bytes of bodies and messages, before decompression; `None`: any number.
    pub bytes_per_second: Option<u64>,
    /// `burst`: so much of both rates may be sent at once after a pause (default 10s).
    pub burst: Duration,
    /// `connections_max`: MQTT connections; `None`: any number.
    pub connections_max: Option<usize>,
    /// `requests_max`: concurrent HTTP requests (default 64); `None`: any number.
    pub requests_max: Option<usize>,
    /// `journal_share_percent`: unstored bytes in the journal, in percent of `journal.max_bytes` (default 25).
    pub journal_share_percent: u64,
}

/// `[http]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Http {
    /// `enabled` (default true).
    pub enabled: bool,
    /// `listen` (default 127.0.0.1:8080).
    pub listen: SocketAddr,
    /// `tokens_file`: if absent, the service listens on loopback only.
    pub tokens_file: Option<PathBuf>,
    /// `allow_anonymous`: allows other addresses than loopback without tokens (default false).
    pub allow_anonymous: bool,
    /// `body_max_bytes`: limit before and after decompression (default 8388608).
    pub body_max_bytes: u64,
    /// Limits on connections (default 8192 in total for `[http]`, 256 for `[admin]`).
    pub connections: Connections,
    /// Time limits of connections.
    pub times: HttpTimes,
    /// `bodies_max_bytes`: limit of all bodies in progress (default 128MiB); further ones get 429.
    pub bodies_max_bytes: u64,
    /// `body_timeout`: time limit for the body of a request (default 30s).
    pub body_timeout: Duration,
    /// `body_grace`: the time that a body has whatever its rate (default 10s).
    pub body_grace: Duration,
    /// `body_rate_min`: bytes per second that a body must have arrived at after that (default 256); 0: no limit.
    pub body_rate_min: u64,
    /// `concurrency_max`: requests in progress whose body has arrived (default 256); further ones get 429.
    pub concurrency_max: usize,
    /// `queue_timeout`: how long a request waits for space in the queue before it gets 429 (default 1s).
    pub queue_timeout: Duration,
    /// `ack_timeout`: how long a request waits for durability before it gets 503 (default 60s).
    pub ack_timeout: Duration,
    /// `[http.tls]`
    pub tls: Tls,
}

impl Http {
    /// Whether the port may listen on other addresses than loopback: writing needs a token or a certificate, or
    /// anonymous writing is explicitly allowed.
    pub fn is_guarded(&self) -> bool {
        self.tokens_file.is_some() || self.allow_anonymous || self.tls.is_gate()
    }
}

/// `[admin]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admin {
    /// `listen` (default 127.0.0.1:8081).
    pub listen: SocketAddr,
    /// Limits on connections (default 8192 in total for `[http]`, 256 for `[admin]`).
    pub connections: Connections,
    /// Time limits of connections.
    pub times: HttpTimes,
    /// `queries_max`: concurrent queries of the read API (default 8); others wait for a second.
    pub queries_max: usize,
    /// `answers_max`: responses with readings that are being sent (default 64); further ones get 503.
    pub answers_max: usize,
    /// `[admin.tls]`
    pub tls: Tls,
}

/// How readings are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreMode {
    /// In the pages.
    Bucket,
    /// In a native time-series collection.
    Timeseries,
    /// In a time-series collection if the server supports it, else in the pages.
    Auto,
}

/// `[store]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Store {
    /// `uri`, a secret: never printed (also `HOURBUCKET_STORE__URI`, `…_FILE`).
    pub uri: Secret,
    /// `database` (default hourbucket).
    pub database: String,
    /// `mode`: `bucket`, `timeseries` or `auto` (default).
    pub mode: StoreMode,
    /// `retention`: if absent, data is kept forever.
    pub retention: Option<Duration>,
    /// `write_concern`: `majority` (default) or a number of members.
    pub write_concern: String,
    /// `timeout`: time limit of one command, after which its outcome counts as unknown (default 10s).
    pub timeout: Duration,
    /// `connect_timeout`: time limit for finding a server (default 5s).
    pub connect_timeout: Duration,
    /// `pool_max`: connections (default 16).
    pub pool_max: u32,
    /// `tags_index`: whether a wildcard index on the tags of the buckets is kept (default false: it is dropped).
    pub tags_index: bool,
}

/// `[bucket]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    /// `span`: a divisor of a day, from 1m to 1d (default 1h).
    pub span: Span,
    /// `max_readings`: readings in a page, 1 to 10,000 (default 1000).
    pub max_readings: u32,
    /// `max_bytes`: bytes of the readings of a page (default 1MiB, at most 8MiB).
    pub max_bytes: u64,
}

/// `[flush]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flush {
    /// `max_age`: the longest a reading waits in memory while the store is healthy (default 15s).
    pub max_age: Duration,
    /// `linger`: the same with `ack = "stored"`, when senders wait for the write (default 5ms).
    pub linger: Duration,
    /// `commands_max`: commands in flight (default 4).
    pub commands_max: usize,
    /// `command_max_bytes`: size of one command (default 12MiB, at most 12MiB).
    pub command_max_bytes: u64,
    /// `command_max_statements`: statements of one command (default 5000).
    pub command_max_statements: usize,
    /// `backoff_min`: first wait before a retry (default 50ms).
    pub backoff_min: Duration,
    /// `backoff_max`: longest wait before a retry (default 5s).
    pub backoff_max: Duration,
    /// `quarantine_after`: how long a bucket may fail while the store answers for others (default 10m). Then its readings
    /// become dead letters.
    pub quarantine_after: Duration,
}

/// `[accumulate]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accumulate {
    /// `shards`: 0 (default) means one per core.
    pub shards: usize,
    /// `max_bytes`: memory of all shards (default 512MiB).
    pub max_bytes: u64,
    /// `max_sensors`: sensors kept in memory (default 2,000,000).
    pub max_sensors: usize,
}

/// `[journal]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Journal {
    /// `dir` (default journal).
    pub dir: PathBuf,
    /// `max_bytes` (default 16GiB).
    pub max_bytes: u64,
    /// `segment_bytes` (default 64MiB).
    pub segment_bytes: u64,
}

/// `[latest]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Latest {
    /// `enabled`: whether `sensor_latest` is maintained (default false).
    pub enabled: bool,
    /// `interval`: a sensor's document is written at most once per interval (default 10s).
    pub interval: Duration,
    /// `recent`: newest readings in a document, 0 to 100 (default 10).
    pub recent: usize,
    /// `max_bytes`: memory for unwritten state (default 128MiB).
    pub max_bytes: u64,
}

/// `[enrich]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enrich {
    /// `collection`: the registry of sensors in `store.database`; if absent, enrichment is off.
    pub collection: Option<String>,
    /// `id_field`: the field with the sensor's id (default `_id`).
    pub id_field: String,
    /// `fields`: the fields that become tags (default: all scalar ones at the top level).
    pub fields: Vec<String>,
    /// `interval`: how often the whole registry is read if there is no change stream (default 60s).
    pub interval: Duration,
    /// `max_sensors`: sensors kept in memory (default 1,000,000).
    pub max_sensors: usize,
}

/// `[limits]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// `past`: how old a reading may be (default 365d).
    pub past: Duration,
    /// `future`: how far ahead a reading may be (default 10m).
    pub future: Duration,
    /// `unset_before`, in milliseconds since 1970: a device time before it counts as an unset clock and is ignored
    /// (default 2001-01-01).
    pub unset_before_ms: i64,
    /// `zone` for times without one; if absent, such times are rejected.
    pub zone: Option<Tz>,
    /// `fields_max`: values of a reading (default 64, at most 255).
    pub fields_max: usize,
    /// `bucket_fields_max`: distinct field names of a sensor in one bucket (default 1024, at least `fields_max`).
    pub bucket_fields_max: usize,
    /// `name_max_bytes`: length of a field or tag name (default 128, at most 255).
    pub name_max_bytes: usize,
    /// `sensor_id_max_bytes` (default 256, at most 1024).
    pub sensor_id_max_bytes: usize,
    /// `string_max_bytes`: length of a text value or a tag's value (default 1024, at most 16384).
    pub string_max_bytes: usize,
    /// `tags_max`: tags of a reading (default 32, at most 64).
    pub tags_max: usize,
    /// `batch_max_readings`: readings in one HTTP body or MQTT message (default 100,000).
    pub batch_max_readings: usize,
}

/// `[line]`: how InfluxDB line protocol is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// `sensor_id_tag`: the tag whose value is the sensor's id (default sensor_id). Without the tag, measurement and
    /// tags form the id.
    pub sensor_id_tag: String,
    /// `field_prefix`: fields are named `measurement_field` (default false).
    pub field_prefix: bool,
}

/// `[otlp]`: how OpenTelemetry metrics are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Otlp {
    /// `sensor_id_attributes`: the first of these that a data point or its resource has is the sensor's id (default
    /// `sensor_id`, `device.id`, `service.instance.id`, `host.name`, `service.name`).
    pub sensor_id_attributes: Vec<String>,
    /// `sensor_id_default`: the id if none of these is present; if it is empty, such points are rejected (default
    /// `unknown`).
    pub sensor_id_default: String,
    /// `point_attributes` (default `tags`).
    pub point_attributes: PointAttributes,
}

/// How the attributes of a data point are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PointAttributes {
    /// As tags of the sensor.
    Tags,
    /// As tags and as part of the sensor's id, so that each series is a sensor.
    SensorId,
}

/// `[dead_letters]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetters {
    /// `retention` (default 30d).
    pub retention: Duration,
    /// `max_bytes`: limit for all dead letters in the collection (default 1GiB).
    pub max_bytes: u64,
}

/// `[shutdown]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shutdown {
    /// `deadline` (default 30s).
    pub deadline: Duration,
}

/// How the log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// `[log]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// `level`: a `tracing` filter (default info).
    pub level: String,
    /// `format`: `text` (default) or `json`.
    pub format: LogFormat,
}

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
    /// `password_file`: read again for each connection; absent if the environment holds the password itself.
    pub password_file: Option<PathBuf>,
    /// `ca_file`: PEM; if absent, the system's roots. Read again for each connection, as are the next two.
    pub ca_file: Option<PathBuf>,
    /// `cert_file`: PEM, the client certificate that the broker requires, with its chain.
    pub cert_file: Option<PathBuf>,
    /// `key_file`: PEM, the key of `cert_file`.
    pub key_file: Option<PathBuf>,
    /// `keep_alive` (default 30s).
    pub keep_alive: Duration,
    /// `packet_max_bytes` (default 1MiB; a larger message becomes a dead letter).
    pub packet_max_bytes: u32,
    /// `window`: messages that may wait for their acknowledgement (default 10,000; MQTT 5: receive maximum, at most
    /// 65,535).
    pub window: u16,
    /// `status_topic`: where `online` and `offline` are published, retained.
    pub status_topic: Option<String>,
    /// `[[mqtt.subscriptions]]`
    pub subscriptions: Vec<Subscription>,
}

/// `[[mqtt.subscriptions]]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscription {
    /// `filter`: a topic filter, also `$share/group/…`.
    pub filter: String,
    /// `qos`: 0, 1 (default), or 2, which is treated as 1 (see [`Subscription::qos_asked`]).
    pub qos: u8,
    /// `topic`: a template such as `sensors/{sensor_id}/{field}` (default `#` if the format reads topics itself).
    pub topic: String,
    /// `format`: a built-in format such as `json`, a built-in mapping such as `zigbee2mqtt`, or one of
    /// `[formats.NAME]`.
    pub format: String,
    /// `ts_unit`: unit of numeric times: `s`, `ms`, `us`, `ns`; if absent, by magnitude (for `line`: `ns`).
    pub ts_unit: Option<String>,
    /// `zone` for times without one; if absent, `limits.zone`. A zone in the format overrides it.
    pub zone: Option<Tz>,
    /// `retained`: which retained messages are accepted (default once).
    pub retained: Retained,
    /// `user_property_tags`: names of MQTT 5 user properties that become tags (default none).
    pub user_property_tags: Vec<String>,
}

impl Subscription {
    /// The QoS to request from the broker. QoS 2 would guarantee nothing that QoS 1 does not, because readings that
    /// arrive twice are stored once.
    pub fn qos_asked(&self) -> u8 {
        self.qos.min(1)
    }
}

/// Which retained messages are accepted. This concerns messages that the broker sends because of a subscription, not
/// those published at that moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retained {
    /// Each once: an accepted message is not accepted again after a reconnect (`ingest::mqtt` defines this exactly).
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
    /// Limits on connections (default 10,000 in total); further ones are closed.
    pub connections: Connections,
    /// `connect_timeout`: time limit for TLS and CONNECT together (default 10s).
    pub connect_timeout: Duration,
    /// `keep_alive_max`: a device is disconnected after a silence of at most one and a half times this (default 1h).
    pub keep_alive_max: Duration,
    /// `packet_max_bytes` (default 256KiB); a larger packet ends the connection.
    pub packet_max_bytes: u32,
    /// `topic_max_bytes` (default 1024).
    pub topic_max_bytes: usize,
    /// `window`: messages of one connection that may wait for their acknowledgement (default 100).
    pub window: u16,
    /// `[[listen.mqtt.topics]]`: like subscriptions, with QoS 1.
    pub topics: Vec<Subscription>,
}
