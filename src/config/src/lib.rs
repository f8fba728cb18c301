//! The configuration as the rest of the service uses it: checked, complete and with units in the
//! types.
//!
//! In: a file, the environment, defaults. Out: a [`Config`], or all problems with their keys; what a
//! reload applies ([`mod@reload`]); the reference and a masked dump.
//!
//! Invariants: a value that another crate sees was checked; a secret is a [`Secret`], which prints as
//! stars. What must not be here: what a setting does.
//!
//! [`load()`] merges environment over file over default. It reports all problems together, each
//! with its key.
//!
//! **File.** TOML, at the given path or `config/hourbucket.toml`, which may be missing. Relative
//! paths, on the command line and inside the file, are resolved against the working directory of
//! the process, not against the file. So `journal.dir` and `--config` mean the same as in a shell,
//! and moving the file moves no data.
//!
//! **Environment.** `HOURBUCKET_<SECTION>__<KEY>`, such as `HOURBUCKET_STORE__URI`; list elements
//! by number, such as `HOURBUCKET_MQTT__0__SUBSCRIPTIONS__0__FILTER`. The number after the last one
//! appends an element. The key's type determines how the text is parsed: `true`, `5000`, `15s`,
//! `512MiB`. A variable that ends in `_FILE` names a file that holds the value; its last line
//! ending is dropped (a key that itself ends in `_file`, such as `http.tokens_file`, keeps its
//! meaning). An empty variable counts as not set. With a double underscore, an unknown name is an
//! error. Without one, the name of a key is an error (`HOURBUCKET_STORE_URI`), and all others belong
//! to other tools and are ignored.

mod certificates;
mod check;
mod connections;
mod dump;
mod error;
mod formats;
pub mod hardening;
#[cfg(test)]
mod hardening_tests;
mod jwt;
mod listen;
mod live;
mod load;
mod manager;
pub mod mapping;
mod mqtt;
mod mqtt_settings;
mod permissions;
mod proxies;
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
mod values;
mod warnings;

pub use certificates::{Certificates, ClientIdentity};
pub use connections::{Connections, HttpTimes};
pub use error::{ConfigErrors, Problem};
pub use formats::{Line, Native, Nested, Otlp, PointAttributes, RemoteWrite, ScalarFormat};
pub use jwt::{Jwt, JwtAlgorithm};
pub use live::{Live, Setter};
pub use load::load_for_new_tokens;
pub use load::{Loaded, environment, known_keys, load};
pub use manager::{Manager, manager};
pub use mqtt_settings::{Listen, ListenMqtt, Mqtt, MqttProtocol, Retained, Subscription};
pub use proxies::is_loopback;
pub use proxies::{Network, Proxies, ProxyHeader};
pub use reference::reference;
pub use suggest::nearest;
pub use tls::{ClientAuth, Tls, TlsVersion};
pub use topic::is_topic_filter;
pub use units::write_duration;
pub use units::{parse_duration, parse_size};
pub use values::Secret;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use chrono_tz::Tz;
use mapping::Mapping;

use model::Span;

/// All settings. The shipped `config/hourbucket.toml` shows each key with its default and a
/// comment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// `[ingest]`
    pub ingest: Ingest,
    /// `[quota]`
    pub quota: Quota,
    /// `[jwt]`
    pub jwt: Jwt,
    /// `[certificates]`
    pub certificates: Certificates,
    /// `[http]`
    pub http: Http,
    /// `[admin]`
    pub admin: Admin,
    /// `[promql]`
    pub promql: Promql,
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
    /// `[rollup]`
    pub rollup: Rollup,
    /// `[sensors]`
    pub sensors: Sensors,
    /// `[enrich]`
    pub enrich: Enrich,
    /// `[limits]`
    pub limits: Limits,
    /// `[line]`
    pub line: Line,
    /// `[native]`
    pub native: Native,
    /// `[scalar]`
    pub scalar: ScalarFormat,
    /// `[otlp]`
    pub otlp: Otlp,
    /// `[remote_write]`
    pub remote_write: RemoteWrite,
    /// `[dead_letters]`
    pub dead_letters: DeadLetters,
    /// `[shutdown]`
    pub shutdown: Shutdown,
    /// `[audit]`
    pub audit: Audit,
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
    /// How old a reading of an import may be: `limits.import_past`, or less if it would soon be
    /// removed.
    pub import_past: Duration,
    /// `[line]`
    pub line: Line,
    /// `[formats.NAME]`
    pub formats: Vec<Arc<Mapping>>,
    /// `[native]`
    pub native: Native,
    /// `[scalar]`
    pub scalar: ScalarFormat,
    /// `[otlp]`
    pub otlp: Otlp,
    /// `[remote_write]`
    pub remote_write: RemoteWrite,
    /// `ingest.sender_tag`
    pub sender_tag: Option<Arc<str>>,
}

impl Config {
    /// `limits.import_past`, up to what `[store]` keeps: an older reading would be acknowledged and
    /// soon removed.
    fn import_past(&self) -> Duration {
        // The days of a rollup need all of their hours.
        let margin = if self.rollup.days {
            Duration::from_secs(2 * 86_400)
        } else {
            Duration::ZERO
        };
        let kept = self.store.retention.map(|kept| kept.saturating_sub(margin));
        // Once an hour's readings are removed, no more readings can be stored for it.
        let kept = kept.into_iter().chain(self.store.retention_readings);
        kept.fold(self.limits.import_past, Duration::min)
    }

    /// Copies the settings that decoding depends on.
    pub fn decoding(&self) -> Decoding {
        Decoding {
            limits: self.limits.clone(),
            import_past: self.import_past(),
            line: self.line.clone(),
            native: self.native.clone(),
            scalar: self.scalar,
            otlp: self.otlp.clone(),
            remote_write: self.remote_write.clone(),
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
    /// `journal_share_percent`: unstored bytes in the journal, in percent of `journal.max_bytes`
    /// (default 25).
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
    /// The proxies in front of the port.
    pub proxies: Proxies,
    /// Time limits of connections.
    pub times: HttpTimes,
    /// `bodies_max_bytes`: limit of all bodies in progress (default 128MiB); further ones get 429. One
    /// sender gets at most half of it.
    pub bodies_max_bytes: u64,
    /// `body_timeout`: time limit for the body of a request (default 30s).
    pub body_timeout: Duration,
    /// `body_grace`: the time that a body has whatever its rate (default 10s).
    pub body_grace: Duration,
    /// `body_rate_min`: bytes per second that a body must have arrived at after that (default 256);
    /// 0: no limit.
    pub body_rate_min: u64,
    /// `concurrency_max`: requests in progress whose body has arrived (default 256); further ones
    /// get 429.
    pub concurrency_max: usize,
    /// `queue_timeout`: how long a request waits for space in the queue before it gets 429 (default
    /// 1s).
    pub queue_timeout: Duration,
    /// `ack_timeout`: how long a request waits for durability before it gets 503 (default 60s).
    pub ack_timeout: Duration,
    /// `[http.tls]`
    pub tls: Tls,
}

impl Flush {
    /// The longest that a reading may be held in memory before it is due.
    pub fn longest_age(&self) -> Duration {
        self.max_age_busy.max(self.max_age)
    }
}

impl Http {
    /// Whether the port may listen on other addresses than loopback: writing needs a token or a
    /// certificate, or anonymous writing is explicitly allowed.
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
    /// The proxies in front of the port.
    pub proxies: Proxies,
    /// Time limits of connections.
    pub times: HttpTimes,
    /// `queries_max`: concurrent queries of the read API (default 8); others wait for a second.
    pub queries_max: usize,
    /// `answers_max`: responses with readings that are being sent (default 64), of up to 8 MiB each;
    /// further ones get 503.
    pub answers_max: usize,
    /// `[admin.tls]`
    pub tls: Tls,
}

/// `[promql]`: limits of queries below `/prometheus` on the admin port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Promql {
    /// `lookback`: how old the newest sample may be that an instant selector takes (default 5m).
    pub lookback: Duration,
    /// `timeout` of one query, waiting for its turn included (default 30s).
    pub timeout: Duration,
    /// `queries_max`: concurrent queries (default 4).
    pub queries_max: usize,
    /// `series_max`: series that one query may select (default 200000).
    pub series_max: usize,
    /// `samples_max`: samples that one query may hold in memory (default 10000000); 16 bytes each.
    pub samples_max: usize,
    /// `slow`: queries that take longer are logged (default 10s).
    pub slow: Duration,
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
    /// `retention_readings`: readings are removed before their summaries; if absent, together with
    /// them.
    pub retention_readings: Option<Duration>,
    /// `write_concern`: `majority` (default) or a number of members.
    pub write_concern: String,
    /// `timeout`: time limit of one command, after which its outcome counts as unknown (default
    /// 10s).
    pub timeout: Duration,
    /// `connect_timeout`: time limit for finding a server (default 5s).
    pub connect_timeout: Duration,
    /// `pool_max`: connections (default 16).
    pub pool_max: u32,
    /// `tags_index`: whether a wildcard index on the tags of the buckets is kept (default false: it
    /// is dropped).
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
    /// `max_age`: the longest a reading waits in memory while the store has capacity (default 15s).
    pub max_age: Duration,
    /// `max_age_busy`: the same while the store is busy with statements of few readings (default
    /// 6m).
    pub max_age_busy: Duration,
    /// `linger`: the same with `ack = "stored"`, when senders wait for the write (default 5ms).
    pub linger: Duration,
    /// `commands_max`: the most commands in flight (default 4).
    pub commands_max: usize,
    /// `command_max_bytes`: size of one command (default 12MiB, at most 12MiB).
    pub command_max_bytes: u64,
    /// `command_max_statements`: statements of one command (default 5000).
    pub command_max_statements: usize,
    /// `backoff_min`: first wait before a retry (default 50ms).
    pub backoff_min: Duration,
    /// `backoff_max`: longest wait before a retry (default 5s).
    pub backoff_max: Duration,
    /// `quarantine_after`: how long a bucket may fail while the store answers for others (default
    /// 10m). Then its readings become dead letters.
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
    /// `commit_delay`: how long a sync waits for more while messages keep arriving (default 2ms);
    /// 0: not at all.
    pub commit_delay: Duration,
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

/// `[rollup]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rollup {
    /// `days`: whether `sensor_days` is maintained (default false).
    pub days: bool,
    /// `zone`: the time zone of the days (default UTC).
    pub zone: Tz,
    /// `retention`: how long days are kept; if absent, forever.
    pub retention: Option<Duration>,
    /// `settle`: the least time between the end of a day and its computation (default 10m).
    pub settle: Duration,
    /// `late`: a day that has ended is computed when no reading of it has arrived for this time
    /// (default 1m).
    pub late: Duration,
    /// `max_bytes`: memory for days with changes (default 256MiB).
    pub max_bytes: u64,
}

/// `[sensors]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sensors {
    /// `silent_after`: a sensor is silent if nothing of it has arrived for this long (default 1d).
    pub silent_after: Duration,
    /// `retired_after`: a sensor of which nothing has arrived for this long is no longer counted as
    /// silent (default 30d).
    pub retired_after: Duration,
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
    /// `import_past`: how old a reading of an import may be (default 7300d).
    pub import_past: Duration,
    /// `future`: how far ahead a reading may be (default 10m).
    pub future: Duration,
    /// `unset_before`, in milliseconds since 1970: a device time before it counts as an unset clock
    /// and is ignored (default 2001-01-01).
    pub unset_before_ms: i64,
    /// `unset_over_http`: whether such a reading is rejected if it comes over HTTP (the default),
    /// instead of getting the time of receipt.
    pub unset_over_http_refused: bool,
    /// `zone` for times without one; if absent, such times are rejected.
    pub zone: Option<Tz>,
    /// `fields_max`: values of a reading (default 64, at most 255).
    pub fields_max: usize,
    /// `bucket_fields_max`: distinct field names of a sensor in one bucket (default 1024, at least
    /// `fields_max`).
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

/// `[dead_letters]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetters {
    /// `retention` (default 30d).
    pub retention: Duration,
    /// `max_bytes`: limit for all dead letters in the collection (default 1GiB).
    pub max_bytes: u64,
}

/// `[audit]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Audit {
    /// `file` of the audit log; `None`: only the normal log has its events.
    pub file: Option<PathBuf>,
    /// `lines_per_second`: limit for each kind of event in the file (default 20).
    pub lines_per_second: u32,
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
