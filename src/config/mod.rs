//! The configuration, as the rest of the service sees it: checked, complete and with units in the types.
//!
//! [`load()`] puts environment over file over default; whatever is wrong is reported at once, each with its key.
//!
//! **File.** TOML, the path given or else `config/hourbucket.toml`, which may be missing. Relative paths, on the command
//! line and inside the file, start in the working directory of the process, wherever the file lies: so `journal.dir`
//! and `--config` mean the same as in a shell, and moving the file moves no data.
//!
//! **Environment.** `HOURBUCKET_<SECTION>__<KEY>`, such as `HOURBUCKET_STORE__URI`; elements of lists by number, such as
//! `HOURBUCKET_MQTT__0__SUBSCRIPTIONS__0__FILTER`, where the number after the last appends one. The text is read by the
//! key's type: `true`, `5000`, `15s`, `512MiB`. With `_FILE` behind the name the value is read from that file, without
//! its last line ending (a key that itself ends in `_file`, such as `http.tokens_file`, keeps its meaning). An empty
//! variable counts as not set. Variables of ours without a double underscore are for other tools and left alone; with
//! one, an unknown name is an error.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use chrono_tz::Tz;

use self::mapping::Mapping;
use crate::model::Span;

mod check;
mod dump;
mod error;
mod listen;
mod live;
mod load;
mod manager;
pub mod mapping;
mod mqtt;
mod reader;
mod reference;
pub mod reload;
mod sections;
mod suggest;
mod tls;
mod topic;
mod tree;
mod units;
mod uri;
mod warnings;

pub use error::{ConfigErrors, Problem};
pub use live::{Live, Setter};
pub use load::{DEFAULT_PATH, Loaded, environment, known_keys, load};
pub use manager::{Manager, manager};
pub use reference::reference;
pub(crate) use suggest::nearest;
pub use tls::{ClientAuth, Tls, TlsVersion};
pub use units::parse_duration;
pub(crate) use units::write_duration;

/// Everything that can be set. The shipped `config/hourbucket.toml` shows each key with its default and a comment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// `[ingest]`
    pub ingest: Ingest,
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
    /// `[formats.NAME]`, in the order of their names.
    pub formats: Vec<Arc<Mapping>>,
    /// `[[mqtt]]`
    pub mqtt: Vec<Mqtt>,
    /// `[listen]`
    pub listen: Listen,
}

/// What decoding a payload depends on, for whoever takes payloads.
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
}

impl Config {
    /// A copy of what decoding depends on.
    pub fn decoding(&self) -> Decoding {
        Decoding {
            limits: self.limits.clone(),
            line: self.line.clone(),
            otlp: self.otlp.clone(),
            formats: self.formats.clone(),
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
    /// `queue_max`: ingest batches that wait for the next stage (default 1024).
    pub queue_max: usize,
    /// `queue_max_bytes`: their bytes (default 64MiB).
    pub queue_max_bytes: u64,
}

/// `[http]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Http {
    /// `enabled` (default true).
    pub enabled: bool,
    /// `listen` (default 127.0.0.1:8080).
    pub listen: SocketAddr,
    /// `tokens_file`: absent, the service listens on loopback only.
    pub tokens_file: Option<PathBuf>,
    /// `allow_anonymous`: listens elsewhere than loopback without tokens (default false).
    pub allow_anonymous: bool,
    /// `body_max_bytes`: before and after decompression (default 8388608).
    pub body_max_bytes: u64,
    /// `header_timeout`: for the head of a request (default 10s).
    pub header_timeout: Duration,
    /// `body_timeout`: for the body of a request (default 30s).
    pub body_timeout: Duration,
    /// `concurrency_max`: requests being worked on (default 256); one more gets 429.
    pub concurrency_max: usize,
    /// `queue_timeout`: how long a request waits for a place in the queue before 429 (default 1s).
    pub queue_timeout: Duration,
    /// `ack_timeout`: how long a request waits to be durable before 503 (default 60s).
    pub ack_timeout: Duration,
    /// `[http.tls]`
    pub tls: Tls,
}

impl Http {
    /// Whether it may be reached from elsewhere: not everybody can write, or that is meant.
    pub fn is_guarded(&self) -> bool {
        self.tokens_file.is_some() || self.allow_anonymous || self.tls.is_gate()
    }
}

/// `[admin]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admin {
    /// `listen` (default 127.0.0.1:8081).
    pub listen: SocketAddr,
    /// `[admin.tls]`
    pub tls: Tls,
}

/// How readings are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreMode {
    /// Readings in the pages.
    Bucket,
    /// Readings in a native time-series collection.
    Timeseries,
    /// Time-series where the server really has it.
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
    /// `retention`: absent, kept for ever.
    pub retention: Option<Duration>,
    /// `write_concern`: `majority` (default) or a number of members.
    pub write_concern: String,
    /// `timeout`: for one command, after which its answer counts as lost (default 10s).
    pub timeout: Duration,
    /// `connect_timeout`: for finding a server (default 5s).
    pub connect_timeout: Duration,
    /// `pool_max`: connections (default 16).
    pub pool_max: u32,
    /// `tags_index`: a wildcard index on the tags of the buckets (default false: dropped).
    pub tags_index: bool,
}

/// `[bucket]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    /// `span`: a divisor of a day, from 1m to 1d (default 1h).
    pub span: Span,
    /// `max_readings`: in a page, 1 to 10,000 (default 1000).
    pub max_readings: u32,
    /// `max_bytes`: of the readings of a page (default 1MiB, at most 8MiB).
    pub max_bytes: u64,
}

/// `[flush]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flush {
    /// `max_age`: the longest a reading waits in memory while the store is well (default 15s).
    pub max_age: Duration,
    /// `linger`: the same with `ack = "stored"`, where a sender waits (default 5ms).
    pub linger: Duration,
    /// `commands_max`: in flight at once (default 4).
    pub commands_max: usize,
    /// `command_max_bytes`: size of one command (default 12MiB, at most 12MiB).
    pub command_max_bytes: u64,
    /// `command_max_statements`: statements of one command (default 5000).
    pub command_max_statements: usize,
    /// `backoff_min`: first wait after a failure (default 50ms).
    pub backoff_min: Duration,
    /// `backoff_max`: longest wait (default 5s).
    pub backoff_max: Duration,
    /// `quarantine_after`: how long a bucket may fail, while the store answers, before its readings are kept as dead letters
    /// (default 10m).
    pub quarantine_after: Duration,
}

/// `[accumulate]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accumulate {
    /// `shards`: 0 (default) takes the number of cores.
    pub shards: usize,
    /// `max_bytes`: memory of all shards (default 512MiB).
    pub max_bytes: u64,
    /// `max_sensors`: known at once (default 2,000,000).
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
    /// `enabled`: keep `sensor_latest` (default false).
    pub enabled: bool,
    /// `interval`: a sensor's document is written at most once in it (default 10s).
    pub interval: Duration,
    /// `recent`: newest readings in a document, 0 to 100 (default 10).
    pub recent: usize,
    /// `max_bytes`: memory for what is not written yet (default 128MiB).
    pub max_bytes: u64,
}

/// `[enrich]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enrich {
    /// `collection`: the registry of sensors in `store.database`; absent: off.
    pub collection: Option<String>,
    /// `id_field`: the field with the sensor's id (default `_id`).
    pub id_field: String,
    /// `fields`: those that become tags (default: all scalar ones at the top level).
    pub fields: Vec<String>,
    /// `interval`: between two readings of the whole, where there is no change stream (default 60s).
    pub interval: Duration,
    /// `max_sensors`: kept in memory (default 1,000,000).
    pub max_sensors: usize,
}

/// `[limits]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// `past`: how old a reading may be (default 365d).
    pub past: Duration,
    /// `future`: how far ahead a reading may be (default 10m).
    pub future: Duration,
    /// `unset_before`, in milliseconds since 1970: a device's time before it is that of a clock not set, and counts as
    /// none (default 2001-01-01).
    pub unset_before_ms: i64,
    /// `zone` of times that say none; absent, such times are refused.
    pub zone: Option<Tz>,
    /// `fields_max`: values of a reading (default 64, at most 255).
    pub fields_max: usize,
    /// `bucket_fields_max`: different field names of a sensor in one bucket (default 1024, at least `fields_max`).
    pub bucket_fields_max: usize,
    /// `name_max_bytes`: a field's or tag's name (default 128, at most 255).
    pub name_max_bytes: usize,
    /// `sensor_id_max_bytes` (default 256, at most 1024).
    pub sensor_id_max_bytes: usize,
    /// `string_max_bytes`: a string value or a tag's value (default 1024, at most 16384).
    pub string_max_bytes: usize,
    /// `tags_max`: tags of a reading (default 32, at most 64).
    pub tags_max: usize,
    /// `batch_max_readings`: in one HTTP body or MQTT message (default 100,000).
    pub batch_max_readings: usize,
}

/// `[line]`: how InfluxDB's line protocol is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// `sensor_id_tag`: the tag whose value is the sensor's id (default sensor_id); without it, measurement and tags are.
    pub sensor_id_tag: String,
    /// `field_prefix`: fields are named `measurement_field` (default false).
    pub field_prefix: bool,
}

/// `[otlp]`: how the metrics of OpenTelemetry are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Otlp {
    /// `sensor_id_attributes`: the first of these that a data point or its resource has is the sensor's id (default
    /// `sensor_id`, `device.id`, `service.instance.id`, `host.name`, `service.name`).
    pub sensor_id_attributes: Vec<String>,
    /// `sensor_id_default`: the id where there is none of these; empty: such points are rejected (default `unknown`).
    pub sensor_id_default: String,
    /// `point_attributes` (default `tags`).
    pub point_attributes: PointAttributes,
}

/// What the attributes of a data point are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PointAttributes {
    /// Tags of the sensor.
    Tags,
    /// Also part of the sensor's id, so that each series is a sensor.
    SensorId,
}

/// `[dead_letters]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetters {
    /// `retention` (default 30d).
    pub retention: Duration,
    /// `max_bytes`: of all of them in the collection (default 1GiB).
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
    /// For a person.
    Text,
    /// One JSON object a line.
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
    /// `client_id`: one a broker and instance.
    pub client_id: String,
    /// `protocol`: 4 or 5 (default).
    pub protocol: MqttProtocol,
    /// `clean_start` (default false: a persistent session).
    pub clean_start: bool,
    /// `session_expiry`: MQTT 5 only, how long the broker keeps the session (default 7d).
    pub session_expiry: Duration,
    /// `username`
    pub username: Option<String>,
    /// What `password_file` held when it was read, or `password` by environment.
    pub password: Option<Secret>,
    /// `password_file`: read again for each connection; absent where the environment has the password itself.
    pub password_file: Option<PathBuf>,
    /// `ca_file`: PEM; absent, the system's roots. Read again for each connection, as are the next two.
    pub ca_file: Option<PathBuf>,
    /// `cert_file`: PEM, the certificate that the broker asks of us, with its chain.
    pub cert_file: Option<PathBuf>,
    /// `key_file`: PEM, its key.
    pub key_file: Option<PathBuf>,
    /// `keep_alive` (default 30s).
    pub keep_alive: Duration,
    /// `packet_max_bytes` (default 1MiB; a larger message becomes a dead letter).
    pub packet_max_bytes: u32,
    /// `window`: messages that may wait for their acknowledgement (default 10,000; MQTT 5: receive maximum, at most 65,535).
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
    /// `qos`: 0, 1 (default), or 2, which is taken as 1 (see [`Subscription::qos_asked`]).
    pub qos: u8,
    /// `topic`: a template such as `sensors/{sensor_id}/{field}` (default `#` where the format reads topics itself).
    pub topic: String,
    /// `format`: a built-in one such as `json`, a shipped profile such as `zigbee2mqtt`, or one of `[formats.NAME]`.
    pub format: String,
    /// `ts_unit`: of numbers as time: `s`, `ms`, `us`, `ns`; absent, by magnitude (of `line`: `ns`).
    pub ts_unit: Option<String>,
    /// `zone` of times that say none; absent, that of `limits.zone`. A format's own counts before it.
    pub zone: Option<Tz>,
    /// `retained`: which retained messages are taken (default once).
    pub retained: Retained,
    /// `user_property_tags`: names of MQTT 5 user properties that become tags (default none).
    pub user_property_tags: Vec<String>,
}

impl Subscription {
    /// The QoS that the broker is asked for: QoS 2 promises nothing here that QoS 1 does not, since readings that arrive
    /// twice are stored once.
    pub fn qos_asked(&self) -> u8 {
        self.qos.min(1)
    }
}

/// Which messages that the broker has retained are taken when they are sent because of a subscription, not because
/// somebody published just now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retained {
    /// Each once; what was taken is not taken again after a reconnect (see `ingest::mqtt` for what that means exactly).
    Once,
    /// At every connection.
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

/// `[listen.mqtt]`: devices connect to hourbucket itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenMqtt {
    /// `enabled` (default false).
    pub enabled: bool,
    /// `listen` (default 127.0.0.1:1883).
    pub listen: SocketAddr,
    /// `tokens_file`: who may connect; absent, loopback only.
    pub tokens_file: Option<PathBuf>,
    /// `allow_anonymous` (default false).
    pub allow_anonymous: bool,
    /// `cert_file`: PEM, with its chain; TLS where it is set. Read again when it changes.
    pub cert_file: Option<PathBuf>,
    /// `key_file`: PEM, its key.
    pub key_file: Option<PathBuf>,
    /// `client_ca_file`: PEM; devices must show a certificate of this CA.
    pub client_ca_file: Option<PathBuf>,
    /// `connections_max` (default 10,000).
    pub connections_max: usize,
    /// `connect_timeout`: for TLS and CONNECT together (default 10s).
    pub connect_timeout: Duration,
    /// `keep_alive_max`: the longest silence that is borne is one and a half of it (default 1h).
    pub keep_alive_max: Duration,
    /// `packet_max_bytes` (default 256KiB); a larger packet ends the connection.
    pub packet_max_bytes: u32,
    /// `topic_max_bytes` (default 1024).
    pub topic_max_bytes: usize,
    /// `window`: messages of one connection that may wait for their acknowledgement (default 100).
    pub window: u16,
    /// `[[listen.mqtt.topics]]`: as subscriptions, with QoS 1.
    pub topics: Vec<Subscription>,
}

/// A text that never shows itself.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hides a text.
    pub fn new(text: String) -> Secret {
        Secret(text)
    }

    /// The text itself; for the one place that needs it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}
