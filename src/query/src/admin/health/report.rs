//! The response of `/readyz`: [`Report`] and its parts.

use chrono::{DateTime, SecondsFormat};
use serde::Serialize;

/// The response of `/readyz`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Whether readings sent now are accepted.
    pub ready: bool,
    /// The state in one sentence; absent if there is no reason.
    pub summary: Option<String>,
    /// Problems that prevent readiness, then those that do not.
    pub reasons: Vec<String>,
    /// `bucket` or `timeseries`; absent until the store has been reached.
    pub mode: Option<&'static str>,
    /// Why this mode was chosen.
    pub mode_reason: Option<String>,
    /// The version of MongoDB.
    pub server_version: Option<String>,
    /// The connection to the store.
    pub store: StoreReport,
    /// The instance that readings are sent to; absent without `forward.url`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forward: Option<ForwardReport>,
    /// The brokers, ordered by name.
    pub mqtt: Vec<BrokerReport>,
    /// The URL of HTTP ingest: scheme, address and port; absent if it is off.
    pub http: Option<String>,
    /// Absent with `ack = "stored"`.
    pub journal: Option<JournalState>,
    /// The ports with TLS.
    pub tls: Vec<TlsReport>,
    /// When settings were applied.
    pub config: ConfigReport,
    /// Buckets whose reads or writes keep failing while others succeed; at most 20.
    pub quarantine: Vec<QuarantinedBucket>,
    /// How old readings may get before they are written, in milliseconds: `flush.max_age` to
    /// `flush.max_age_busy`. Absent with `ack = "stored"`.
    pub(crate) flush_age_ms: Option<u64>,
}

/// A port with TLS in [`Report`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TlsReport {
    /// The configuration section of the port.
    pub port: &'static str,
    /// Expiry of the certificate (RFC 3339).
    pub not_after: Option<String>,
    /// Unusable files, a certificate that is not valid now, or a revocation list that is out of
    /// date.
    pub problem: Option<String>,
}

/// The centre in [`Report`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ForwardReport {
    /// `forward.url`
    pub url: String,
    /// Whether it takes what is sent to it.
    pub ok: bool,
    /// Why not; absent if it does.
    pub error: Option<String>,
    /// For how long it has not, in seconds.
    pub failing_seconds: Option<u64>,
    /// Age of the oldest reading that it has not acknowledged, in seconds; absent if there is none.
    pub oldest_seconds: Option<u64>,
}

/// The settings in [`Report`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConfigReport {
    /// When settings were last applied (RFC 3339).
    pub taken_over: Option<String>,
    /// The last reload since the start.
    pub last_reload: Option<ReloadReport>,
}

/// A reload in [`ConfigReport`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReloadReport {
    /// Time of the reload (RFC 3339).
    pub at: Option<String>,
    /// `applied`; `restart_needed`: applied in part, the rest needs a restart; `invalid`: nothing
    /// changed.
    pub result: &'static str,
    /// The settings that were applied and those that were not, or the error.
    pub detail: String,
}

/// The store in [`Report`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StoreReport {
    /// Whether readings can be stored: the store answers pings, and no kind of request that this
    /// needs is failing. `false` before the first answer.
    pub ok: bool,
    /// The last error that prevents it; absent if it is `ok`.
    pub error: Option<String>,
    /// Time of the last ping or request that succeeded (RFC 3339).
    pub(crate) last_ok: Option<String>,
    /// The kinds of requests that fail. One may fail while others succeed.
    pub failing: Vec<FailingReport>,
    /// How long the oldest reading has waited that is accepted and not stored; absent if all are
    /// stored.
    pub oldest_waiting_seconds: Option<u64>,
}

/// A kind of request that fails, in [`StoreReport`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FailingReport {
    /// The requests: `prepare`, `write`, `load`, `catalog`, `dead_letters`, `latest`, `day_marks`.
    pub requests: &'static str,
    /// The last error.
    pub error: String,
    /// Time of the first failure since such a request last succeeded (RFC 3339).
    pub since: Option<String>,
    /// Number of failures since then.
    pub failures: u64,
}

/// One broker in [`Report`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BrokerReport {
    /// Host and port, as in the label `broker` of the metrics.
    pub broker: String,
    /// Whether connected and subscribed.
    pub connected: bool,
    /// Why it is not connected, or a warning.
    pub detail: Option<String>,
}

/// The state of the journal.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct JournalState {
    /// Bytes on disk.
    pub bytes: u64,
    /// The setting `journal.max_bytes`.
    pub max_bytes: u64,
    /// Bytes from the first unstored entry on.
    pub unstored_bytes: u64,
    /// Seconds until it is full if nothing were stored and readings kept arriving as in the last
    /// minutes; absent if none arrive, and 0 while it is full.
    pub lasts_seconds: Option<u64>,
    /// Whether it rejects entries: until the store has caught up, or until the disk takes a write.
    pub full: bool,
    /// The error of the operating system, if it is full because the disk refuses writes.
    pub disk_error: Option<String>,
    /// For how long the write and fdatasync in progress have lasted, if that is so long that the
    /// disk does not answer: readings are not acknowledged until it does.
    pub hangs_seconds: Option<u64>,
    /// Entries from the first unstored one to the newest.
    pub unstored_entries: u64,
    /// Entries of an earlier run that have been handed to the shards, which store them. While the
    /// shards have no memory for the next one, this waits for the store.
    pub replayed: u64,
    /// Entries of an earlier run to replay. While it exceeds `replayed`, the service still replays,
    /// and accepts readings.
    pub replay_total: u64,
}

/// A quarantined bucket in [`Report`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct QuarantinedBucket {
    /// The sensor id of the bucket.
    pub sensor_id: String,
    /// The start of its span (RFC 3339).
    pub bucket_start: Option<String>,
    /// The last error of the store.
    pub reason: String,
    /// Time of the first failure (RFC 3339).
    pub since: Option<String>,
}

impl QuarantinedBucket {
    /// Both times are in milliseconds since 1970.
    pub fn new(
        sensor_id: &str,
        bucket_start_ms: i64,
        reason: &str,
        since_ms: i64,
    ) -> QuarantinedBucket {
        let sensor_id = sensor_id.to_owned();
        let reason = reason.to_owned();
        QuarantinedBucket {
            sensor_id,
            bucket_start: rfc3339(bucket_start_ms),
            reason,
            since: rfc3339(since_ms),
        }
    }
}

/// `None` if the time is out of the range of RFC 3339.
pub(super) fn rfc3339(at_ms: i64) -> Option<String> {
    DateTime::from_timestamp_millis(at_ms).map(|at| at.to_rfc3339_opts(SecondsFormat::Millis, true))
}
