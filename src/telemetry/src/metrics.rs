//! The metrics, each declared once: [`declare!`](super::catalog::declare) makes its function, its
//! HELP and TYPE lines, its entry in docs/monitoring.md and its series at zero.
//!
//! Metric names are a public interface, so the `metrics` macros are used only by the declarations.
//! Call the functions once per batch, command or request, never once per reading. No label holds a
//! sensor id.

#![allow(clippy::disallowed_macros, reason = "the place of the metric macros")]

use std::fmt::Write as _;
use std::sync::OnceLock;

use metrics::{counter, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use super::audit_limits::AuditKind;
use super::catalog::{Kind, Metric, NamedText as _, Number, Text as _, declare, describe};
pub use super::labels::*;
use super::process;
use model::ranges::{RangeAction, Ranges};
use model::{Clock, Named, StorageMode, SystemClock};

declare! {
    /// Readings received, valid or not.
    counter readings_received_total(source: Source) in "readings", zero (source in Source::SENDERS);

    /// Readings accepted, source replay: by an earlier process, and replayed from the journal.
    /// Equals stored plus duplicate when nothing is pending and MongoDB rejected none.
    counter readings_accepted_total(source: Source) in "readings", zero (source in Source::SENDERS);

    /// Readings or messages rejected, by reason.
    counter readings_rejected_total(source: Source, reason: impl Named) in "readings";

    /// Readings decoded with the time of receipt in place of a time that could not be used: an
    /// unset clock, or an unreadable time in a format that allows it.
    counter readings_retimed_total(source: Source) in "readings", zero (source in Source::SENDERS);

    /// Members of decoded readings that are not stored: beside an object values, nested with
    /// native.nested = leave-out, bytes, the buckets of histograms, texts of line protocol that are
    /// too long, samples of remote write without a finite number, and values that [[ranges]] leaves
    /// out.
    counter values_left_out_total(source: Source) in "values", zero (source in Source::SENDERS);

    /// Values outside of a range of [[ranges]], by the fields of the range and what it does with
    /// them: reject, leave-out, keep-apart.
    counter values_out_of_range_total(fields: &str, action: RangeAction) in "values";

    /// Entries of [[ranges]] in effect.
    gauge ranges_active() in "ranges";

    /// Names of fields and tags that are stored differently, because a document cannot have them
    /// (a.b becomes a_b): each once for a body, or for MQTT messages that are decoded together, and
    /// at most 100.
    counter names_renamed_total(source: Source) in "names", zero (source in Source::SENDERS);

    /// MQTT messages without a payload, which hold no reading: a sign-off, or a retained message
    /// that is cleared.
    counter messages_empty_total(source: Source) in "messages",
        zero (source in [Source::Mqtt, Source::MqttDirect]);

    /// Accepted readings that were already stored.
    counter readings_duplicate_total() in "readings", zero ();

    /// Requests over HTTP that were recognised as repeats by their Idempotency-Key. Their readings
    /// count as accepted and as duplicate.
    counter idempotency_repeats_total() in "requests", zero ();

    /// Keys of requests that are remembered.
    gauge idempotency_keys() in "keys", zero ();

    /// Keys of requests that were forgotten before their time, because more than
    /// ingest.idempotency_keys_max would be remembered.
    counter idempotency_keys_forgotten_total() in "keys", zero ();

    /// Readings that MongoDB confirmed with the configured write concern.
    counter readings_stored_total(mode: StorageMode) in "readings", zero (mode in StorageMode::ALL);

    /// Readings in memory that are not yet stored.
    gauge readings_in_flight() in "readings", zero ();

    /// How old readings may get before they are written: flush.max_age, or more while MongoDB is
    /// busy with statements of few readings.
    gauge flush_age_seconds() in "seconds", zero ();

    /// Age of the oldest accepted reading that is not yet stored.
    gauge oldest_unstored_seconds() in "seconds", zero ();

    /// Time for which the oldest unstored reading has not changed although MongoDB answers; 0 while
    /// readings make progress.
    gauge stalled_seconds() in "seconds";

    /// Buckets whose reads or writes keep failing while others succeed; /readyz lists them.
    gauge quarantined_buckets() in "buckets";

    /// Messages or requests waiting for their acknowledgement.
    level acks_pending(source: Source) in "messages", zero (source in Source::SENDERS);

    /// Time from decoding to acknowledgement, observed once per request or group of messages.
    histogram ack_seconds(source: Source) in "seconds";

    /// 1 while new readings are accepted, as reported by /readyz.
    gauge ready() in "0 or 1", zero ();

    /// 1 while admission is closed for this reason: the journal is full, the service is stopping,
    /// or a part has failed.
    gauge intake_closed(reason: AdmissionClosed) in "0 or 1", zero (reason in AdmissionClosed::ALL);

    /// Buckets in the memory of the shards.
    gauge open_buckets() in "buckets", zero ();

    /// Memory used by the shards; limited by accumulate.max_bytes.
    gauge accumulate_bytes() in "bytes", zero ();

    /// Value of accumulate.max_bytes.
    gauge accumulate_max_bytes() in "bytes";

    /// Size of the journal on disk; limited by journal.max_bytes.
    gauge journal_bytes() in "bytes", zero ();

    /// Value of journal.max_bytes; absent without a journal.
    gauge journal_max_bytes() in "bytes";

    /// Bytes of the journal from the first unstored entry on; at journal.max_bytes senders are
    /// refused.
    gauge journal_unstored_bytes() in "bytes";

    /// Bytes written to the journal.
    total journal_written_bytes_total() in "bytes";

    /// Journal entries from the first unstored one to the newest; an entry is one request or group
    /// of messages.
    gauge journal_unstored_entries() in "entries";

    /// Duration of an fdatasync of the journal.
    histogram journal_sync_seconds() in "seconds", zero ();

    /// Time for which the journal has been writing and syncing the present group of messages; 0
    /// between groups. Many seconds: its disk does not answer, and nothing is acknowledged.
    gauge journal_commit_age_seconds() in "seconds";

    /// 1 while MongoDB answers pings and no kind of request that readings need (prepare, write,
    /// load) fails; and with forward.url, which needs no MongoDB.
    gauge store_up() in "0 or 1", zero ();

    /// 1 for the storage mode in use; absent until MongoDB has been reached.
    gauge store_mode(mode: StorageMode) in "1";

    /// Statements sent to the store, by kind.
    counter store_statements_total(kind: StoreCommand) in "statements",
        zero (kind in StoreCommand::ALL);

    /// Duration of a command to the store, by kind; of load, catalog, dead_letter and read: of a
    /// request of one or more commands.
    histogram store_write_seconds(kind: StoreCommand) in "seconds",
        zero (kind in StoreCommand::ALL);

    /// Commands or statements that failed, by kind of error.
    counter store_errors_total(kind: impl Named) in "errors", zero (kind in DocumentError::ALL);

    /// Commands retried.
    counter store_retries_total() in "commands", zero ();

    /// Buckets that left the memory although an equal reading without a time could still arrive:
    /// after a lost answer it may be taken for a stored one. Raise accumulate.max_bytes or
    /// accumulate.max_sensors.
    counter buckets_forgotten_total() in "buckets", zero ();

    /// Statements that found an unexpected version of their page.
    counter store_conflicts_total() in "statements", zero ();

    /// Messages and readings kept as dead letters, by reason.
    counter dead_letters_total(reason: &str) in "letters";

    /// Uncompressed size of the collection dead_letters; limited by dead_letters.max_bytes.
    gauge dead_letters_bytes() in "bytes";

    /// Value of dead_letters.max_bytes.
    gauge dead_letters_max_bytes() in "bytes";

    /// Dead letters removed because the collection reached its limit (limit), or discarded because
    /// MongoDB rejected them (refused), or because they came faster than it stored them until the
    /// journal was three quarters full (behind).
    counter dead_letters_dropped_total(cause: DeadLetterDropped) in "letters",
        zero (cause in DeadLetterDropped::ALL);

    /// Dead letters that wait in the journal, because they come faster than MongoDB stores them.
    /// Readings pass them.
    gauge dead_letters_postponed() in "letters", zero ();

    /// Updates of sensor_catalog, by result; written includes those that changed nothing.
    counter catalog_updates_total(result: UpdateResult) in "updates",
        zero (result in [UpdateResult::Written, UpdateResult::Refused]);

    /// Sensors in sensor_catalog; absent until it is read.
    gauge sensors_known() in "sensors";

    /// Sensors of which nothing has arrived for sensors.silent_after, by sensor_catalog and so the
    /// same in every instance; absent until it is read, at most 1000000.
    gauge sensors_silent() in "sensors";

    /// PromQL queries that are being evaluated, those that wait for others included.
    level promql_queries_running() in "queries", zero ();

    /// Updates of sensor_latest, by result. A reduced one was too large for a document and is
    /// written in part.
    counter latest_updates_total(result: UpdateResult) in "updates";

    /// Sensors with a pending update of sensor_latest.
    gauge latest_sensors() in "sensors";

    /// Memory used by pending updates of sensor_latest; limited by latest.max_bytes.
    gauge latest_bytes() in "bytes";

    /// Pages whose readings were removed (store.retention_readings), by this instance.
    counter readings_removed_pages_total() in "pages", zero ();

    /// For how long the oldest page with readings has been due to lose them; 0 if none is.
    gauge readings_removal_lag_seconds() in "seconds", zero ();

    /// Commands that remove old readings and failed; they are repeated.
    counter readings_removal_errors_total() in "commands", zero ();

    /// Age of the oldest reading that is journaled and that the centre has not acknowledged; absent
    /// without forward.url.
    gauge forward_oldest_seconds() in "seconds";

    /// Readings that the centre has acknowledged, also again.
    counter forward_readings_total() in "readings", zero ();

    /// Bytes of bodies sent to the centre, after compression, also of those without an answer.
    counter forward_bytes_total() in "bytes", zero ();

    /// Requests to the centre, by result: ok, too_large (sent again in parts), busy (429, 503 and
    /// other statuses that pass), unauthorized (401, 403), refused (any other answer), failed (no
    /// answer).
    counter forward_requests_total(result: ForwardResult) in "requests",
        zero (result in ForwardResult::ALL);

    /// Readings that the centre rejected; they are kept in the file of rejects.
    counter forward_rejected_total() in "readings", zero ();

    /// Days of sensors that changed since their document was computed, including the open days.
    gauge rollup_pending() in "days", zero ();

    /// How long the most overdue day has been due to be computed; 0 if none is.
    gauge rollup_overdue_seconds() in "seconds", zero ();

    /// Memory used by days with changes; limited by rollup.max_bytes.
    gauge rollup_bytes() in "bytes", zero ();

    /// Days that were computed, by result: written, failed (tried again), refused by MongoDB,
    /// expired (hours may be missing, so not computed).
    counter rollup_computed_total(result: DayResult) in "days", zero (result in DayResult::ALL);

    /// Sensors of the registry that are loaded.
    gauge registry_sensors() in "sensors";

    /// Sensors of the registry beyond enrich.max_sensors; they get no tags.
    gauge registry_left_out() in "sensors";

    /// Full loads of the registry, by result.
    counter registry_loads_total(result: LoadResult) in "loads";

    /// Changes applied from the registry's change stream.
    counter registry_changes_total() in "changes", zero ();

    /// 1 while connected to the broker, with every subscription granted.
    gauge mqtt_connected(broker: &str) in "0 or 1";

    /// Connections to the broker after the first.
    counter mqtt_reconnects_total(broker: &str) in "connections";

    /// Messages from the broker waiting for their PUBACK.
    gauge mqtt_unacked(broker: &str) in "messages";

    /// Age of the oldest message from the broker waiting for its PUBACK.
    gauge mqtt_oldest_unacked_seconds(broker: &str) in "seconds";

    /// Time for which mqtt.window was full (MQTT 5).
    counter mqtt_window_full_seconds_total(broker: &str) in "seconds";

    /// Retained messages skipped because of mqtt.subscriptions.retained.
    counter mqtt_left_out_total(broker: &str) in "messages";

    /// Rebirth commands sent to Sparkplug B nodes.
    counter sparkplug_rebirths_total(broker: &str) in "commands";

    /// Devices connected to the listener.
    level mqtt_direct_connections() in "connections", zero ();

    /// Requests refused, and pauses and connections of MQTT devices, because the sender (token) had
    /// reached its quota.
    counter quota_exceeded_total(limit: impl Named) in "messages";

    /// Connection attempts of devices, by result.
    counter mqtt_direct_connects_total(result: impl Named) in "connections",
        zero (result in ConnectOutcome::ALL);

    /// Closed connections of devices, by reason: the device causes left and lost, the service all
    /// others.
    counter mqtt_direct_disconnects_total(reason: impl Named) in "connections";

    /// Requests answered, by route and status.
    counter http_requests_total(route: Route, status: u16) in "requests";

    /// Open connections of an HTTP port, idle ones included.
    level http_connections(port: PortName) in "connections", zero (port in PortName::HTTP);

    /// Connections of an HTTP port that were closed immediately, by reason: limit
    /// (connections_max), address_limit (connections_per_address_max), paused (failed
    /// authentications), proxy_header (no usable PROXY header, or one from an address that is not
    /// trusted).
    counter http_connections_refused_total(port: PortName, reason: impl Named) in "connections";

    /// Connections that an HTTP port ended, by reason: evicted (idle, for a new connection),
    /// header_timeout, keep_alive, write_timeout, certificate (no longer valid).
    counter http_connections_closed_total(port: PortName, reason: ConnectionClosed) in "connections",
        zero (port in PortName::HTTP, reason in ConnectionClosed::ALL);

    /// Requests and MQTT connections whose credentials were missing, wrong, expired or not valid
    /// for the port, by port and reason.
    counter auth_failures_total(port: PortName, reason: impl Named) in "attempts";

    /// Events of the audit log, written or not.
    counter audit_events_total(event: AuditKind) in "events", zero (event in AuditKind::ALL);

    /// Lines that audit.file does not have, by reason: limit (audit.lines_per_second, or too many
    /// about one address), queue (the disk is too slow), write (it failed).
    counter audit_dropped_total(reason: AuditDropped) in "lines",
        zero (reason in AuditDropped::ALL);

    /// Time from receiving a request's head to its response, by route.
    histogram http_request_seconds(route: Route) in "seconds";

    /// Expiry time of the port's certificate.
    gauge tls_not_after_seconds(port: PortName) in "seconds since 1970";

    /// Time by which the earliest of the port's revocation lists is to be replaced; +Inf without a
    /// list.
    gauge tls_crl_next_update_seconds(port: PortName) in "seconds since 1970";

    /// 0 while the port's certificate files are unusable and previously loaded ones stay in use.
    gauge tls_files_ok(port: PortName) in "0 or 1";

    /// Reads of a port's certificates, by result.
    counter tls_reads_total(port: PortName, result: LoadResult) in "reads";

    /// TLS handshakes of the HTTP ports, by result.
    counter tls_handshakes_total(port: PortName, result: Handshake) in "handshakes";

    /// Configuration reloads (SIGHUP), by result.
    counter config_reloads_total(result: ReloadResult) in "reloads",
        zero (result in ReloadResult::ALL);

    /// 0 if the newest settings were invalid when they were loaded, so that the previous ones are
    /// in effect.
    gauge config_last_reload_successful() in "0 or 1";

    /// Time of the last successful configuration load, at startup or by SIGHUP.
    gauge config_last_reload_success_timestamp_seconds() in "seconds since 1970";

    /// System time of the machine at the scrape.
    gauge clock_seconds() in "seconds since 1970";

    /// Always 1; the label holds the version.
    gauge build_info(version: &str) in "1";

    /// User and system CPU time of the process.
    text_counter process_cpu_seconds_total() in "seconds";

    /// Resident memory of the process.
    text_gauge process_resident_memory_bytes() in "bytes";

    /// Virtual memory of the process.
    text_gauge process_virtual_memory_bytes() in "bytes";

    /// Open file descriptors (files and connections).
    text_gauge process_open_fds() in "descriptors";

    /// Maximum number of open file descriptors.
    text_gauge process_max_fds() in "descriptors";

    /// Start time of the process.
    text_gauge process_start_time_seconds() in "seconds since 1970";
}

/// In seconds: from the fastest fdatasync to a store that hardly answers.
const LATENCY_BUCKETS: [f64; 16] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    10.0, 30.0,
];

static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();

/// Installs the global recorder and describes every metric. Later calls do nothing.
///
/// # Errors
/// Another recorder is already installed.
pub fn install() -> Result<&'static PrometheusHandle, metrics_exporter_prometheus::BuildError> {
    if let Some(handle) = HANDLE.get() {
        return Ok(handle);
    }
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &LATENCY_BUCKETS)?
        .install_recorder()?;
    describe();
    start_at_zero();
    build_info(env!("CARGO_PKG_VERSION"), 1.0);
    Ok(HANDLE.get_or_init(|| handle))
}

/// Prometheus text format 0.0.4; empty before [`install`].
pub fn render() -> String {
    let Some(handle) = HANDLE.get() else {
        return String::new();
    };
    // Set at the scrape, because an alert compares it with the clock of Prometheus.
    clock_seconds(SystemClock::new().now().wall_ms as f64 / 1000.0);
    let mut text = handle.render();
    process::render(&mut text);
    text
}

/// Folds recorded histogram samples. The exporter requires a call every few seconds.
pub fn run_upkeep() {
    if let Some(handle) = HANDLE.get() {
        handle.run_upkeep();
    }
}

/// Records a command to the store that held this many `statements`.
pub fn store_command(kind: StoreCommand, statements: u64, seconds: f64) {
    store_statements_total(kind, statements);
    store_write_seconds(kind, seconds);
}

/// Counts a PromQL query as running until the result is dropped.
#[must_use]
pub fn promql_running() -> PromqlRunning {
    promql_queries_running(1);
    PromqlRunning
}

/// A running query; see [`promql_running`].
pub struct PromqlRunning;

impl Drop for PromqlRunning {
    fn drop(&mut self) {
        promql_queries_running(-1);
    }
}

/// Creates the series of these ranges.
pub fn ranges(ranges: &Ranges) {
    ranges_active(ranges.rules().len() as f64);
    for rule in ranges.rules() {
        values_out_of_range_total(&rule.label, rule.action, 0);
    }
}

/// Creates the counters of a broker: host and port, without credentials.
pub fn mqtt_broker(broker: &str) {
    mqtt_reconnects_total(broker, 0);
    mqtt_left_out_total(broker, 0);
    sparkplug_rebirths_total(broker, 0);
}

/// Records an answered request. `route` is the pattern, not the path.
pub fn http_request(route: &'static str, status: u16, seconds: f64) {
    http_requests_total(Route(route), status, 1);
    http_request_seconds(Route(route), seconds);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_design_names_is_there_before_its_first_event() {
        install().unwrap();
        mqtt_broker("b:1883");
        let text = render();
        for series in [
            "hourbucket_journal_sync_seconds_count",
            "hourbucket_journal_sync_seconds_bucket{le=\"+Inf\"}",
            "hourbucket_store_statements_total{kind=\"insert\"}",
            "hourbucket_store_write_seconds_count{kind=\"measurement\"}",
            "hourbucket_mqtt_reconnects_total{broker=\"b:1883\"}",
            "hourbucket_mqtt_left_out_total{broker=\"b:1883\"}",
            "hourbucket_sparkplug_rebirths_total{broker=\"b:1883\"}",
            "hourbucket_readings_stored_total{mode=\"bucket\"}",
            "hourbucket_readings_stored_total{mode=\"timeseries\"}",
            "hourbucket_registry_changes_total",
        ] {
            assert!(
                text.lines()
                    .any(|line| line.starts_with(&format!("{series} "))),
                "{series} in {text}"
            );
        }
    }
}
