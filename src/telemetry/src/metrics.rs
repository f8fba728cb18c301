//! One typed function per metric. Metric names are a public interface, so the `metrics` macros are
//! used only here. Call these functions once per batch, command or request, never once per reading.
//! No label holds a sensor id. [`super::catalog`] describes each metric.

#![allow(clippy::disallowed_macros, reason = "the place of the metric macros")]

use std::sync::OnceLock;

use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use super::audit_limits::AuditKind;
use super::catalog::{Kind, METRICS, Metric};
pub use super::labels::{AdmissionClosed, ReloadResult};
pub use super::labels::{DayResult, Source};
use super::process;
use model::{Clock, SystemClock};

/// In seconds: from the fastest fdatasync to a store that hardly answers.
const LATENCY_BUCKETS: [f64; 16] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    10.0, 30.0,
];

/// The values of `kind` of [`store_command`].
const STORE_COMMANDS: [&str; 9] = [
    "load",
    "insert",
    "update",
    "measurement",
    "recount",
    "latest",
    "catalog",
    "dead_letter",
    "read",
];
/// The values of `kind` of [`store_error`]: those of `StoreErrorKind`, and `refused`, one document
/// that the server refuses.
const STORE_ERRORS: [&str; 11] = [
    "network",
    "no_primary",
    "unauthorized",
    "timeout",
    "write_concern",
    "command",
    "driver",
    "registry",
    "not_prepared",
    "deferred",
    "refused",
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
    gauge!("hourbucket_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    Ok(HANDLE.get_or_init(|| handle))
}

/// Prometheus text format 0.0.4; empty before [`install`].
pub fn render() -> String {
    let Some(handle) = HANDLE.get() else {
        return String::new();
    };
    // Set at the scrape, because an alert compares it with the clock of Prometheus.
    gauge!("hourbucket_clock_seconds").set(SystemClock::new().now().wall_ms as f64 / 1000.0);
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

/// Creates the series that alerts and panels use. A rate over a counter that appears with its first
/// event misses that event, and an alert on an absent series never fires.
fn start_at_zero() {
    gauge!("hourbucket_promql_queries_running").set(0.0);
    catalog_updates(0, 0);
    for source in [Source::Mqtt, Source::MqttDirect, Source::Http] {
        received(source, 0);
        accepted(source, 0);
        altered(source, 0, 0);
        acks_pending(source, 0);
    }
    messages_empty(Source::Mqtt, 0);
    messages_empty(Source::MqttDirect, 0);
    rollup_pending(0, 0, 0.0);
    readings_removed(0, 0.0);
    for result in DayResult::ALL {
        days_computed(result, 0);
    }
    start_connections_at_zero();
    for kind in AuditKind::ALL {
        counter!("hourbucket_audit_events_total", "event" => kind.as_str()).increment(0);
    }
    for reason in ["limit", "queue", "write"] {
        counter!("hourbucket_audit_dropped_total", "reason" => reason).increment(0);
    }
    duplicate(0);
    store_conflicts(0);
    buckets_forgotten(0);
    for limit in ["readings", "bytes", "journal", "requests", "connections"] {
        quota_exceeded_by(limit, 0);
    }
    start_store_at_zero();
    // `queue_full` loses messages that no sender repeats (QoS 0). Those of the store concern
    // acknowledged readings.
    rejected(Source::Mqtt, "queue_full", 0);
    for reason in ["store_rejected", "quarantined", "readings_removed"] {
        rejected(Source::Store, reason, 0);
    }
    for cause in ["limit", "refused", "behind"] {
        dead_letters_dropped(cause, 0);
    }
    dead_letters_postponed(0);
    readings_in_flight(0);
    oldest_unstored_seconds(0.0);
    flush_age_seconds(0.0);
    accumulate(0, 0);
    journal_bytes(0);
    ready(false);
    intake_closed(None);
    store_up(false);
    for result in ReloadResult::ALL {
        config_reload(result, 0);
    }
}

/// The series of journal and store, for [`start_at_zero`].
fn start_store_at_zero() {
    for mode in ["bucket", "timeseries"] {
        stored(mode, 0);
    }
    registry_changes(0);
    // A histogram is exported from its registration on.
    let _ = histogram!("hourbucket_journal_sync_seconds");
    for kind in STORE_COMMANDS {
        counter!("hourbucket_store_statements_total", "kind" => kind).increment(0);
        let _ = histogram!("hourbucket_store_write_seconds", "kind" => kind);
    }
    for kind in STORE_ERRORS {
        store_error(kind, 0);
    }
    counter!("hourbucket_store_retries_total").increment(0);
}

/// The series of connections and of failed authentication, for [`start_at_zero`].
fn start_connections_at_zero() {
    mqtt_direct_connections_change(0);
    for port in ["http", "admin"] {
        http_connections_change(port, 0);
        for reason in ["limit", "address_limit", "paused", "proxy_header"] {
            counter!("hourbucket_http_connections_refused_total", "port" => port, "reason" => reason).increment(0);
        }
        for reason in ["evicted", "header_timeout", "keep_alive", "write_timeout"] {
            counter!("hourbucket_http_connections_closed_total", "port" => port, "reason" => reason).increment(0);
        }
        for reason in [
            "no_token",
            "malformed_token",
            "invalid_token",
            "invalid_jwt",
            "expired_token",
            "token_not_yet_valid",
            "not_allowed",
        ] {
            counter!("hourbucket_auth_failures_total", "port" => port, "reason" => reason)
                .increment(0);
        }
    }
    for reason in [
        "no_credentials",
        "wrong_credentials",
        "jwt",
        "expired",
        "not_yet_valid",
        "not_allowed",
    ] {
        counter!("hourbucket_auth_failures_total", "port" => "listen.mqtt", "reason" => reason)
            .increment(0);
    }
    for result in ["too_many", "address_limit", "paused", "proxy_header"] {
        counter!("hourbucket_mqtt_direct_connects_total", "result" => result).increment(0);
    }
}

fn describe() {
    for Metric {
        name, kind, help, ..
    } in METRICS
    {
        match kind {
            Kind::Counter => describe_counter!(*name, *help),
            Kind::Gauge => describe_gauge!(*name, *help),
            Kind::Histogram => describe_histogram!(*name, *help),
        }
    }
}

/// Counts readings when they are decoded, valid or not.
pub fn received(source: Source, n: u64) {
    counter!("hourbucket_readings_received_total", "source" => source.label()).increment(n);
}

/// Counts readings whose acknowledgement reports *delivered*; with [`Source::Replay`], those that
/// are replayed from the journal.
pub fn accepted(source: Source, n: u64) {
    counter!("hourbucket_readings_accepted_total", "source" => source.label()).increment(n);
}

/// `retimed`: readings that got the time of receipt in place of their own; `left_out`: parts that are not stored.
pub fn altered(source: Source, retimed: u64, left_out: u64) {
    counter!("hourbucket_readings_retimed_total", "source" => source.label()).increment(retimed);
    counter!("hourbucket_values_left_out_total", "source" => source.label()).increment(left_out);
}

/// Counts MQTT messages without a payload: a sign-off, or a retained message that is cleared.
pub fn messages_empty(source: Source, n: u64) {
    counter!("hourbucket_messages_empty_total", "source" => source.label()).increment(n);
}

/// Counts rejected readings, or messages if none of their readings could be decoded. `reason` is
/// one of a fixed set.
pub fn rejected(source: Source, reason: &'static str, n: u64) {
    counter!("hourbucket_readings_rejected_total", "source" => source.label(), "reason" => reason)
        .increment(n);
}

/// Counts accepted readings that were already stored.
pub fn duplicate(n: u64) {
    counter!("hourbucket_readings_duplicate_total").increment(n);
}

/// Counts readings that the store has confirmed. `mode` is `bucket` or `timeseries`.
pub fn stored(mode: &'static str, n: u64) {
    counter!("hourbucket_readings_stored_total", "mode" => mode).increment(n);
}

/// Readings in memory that are not stored yet, over all shards.
pub fn readings_in_flight(n: u64) {
    gauge!("hourbucket_readings_in_flight").set(n as f64);
}

pub(crate) fn acks_pending(source: Source, n: u64) {
    gauge!("hourbucket_acks_pending", "source" => source.label()).set(n as f64);
}

/// Adds `change` to the number that [`acks_pending`] sets.
pub fn acks_pending_change(source: Source, change: i64) {
    gauge!("hourbucket_acks_pending", "source" => source.label()).increment(change as f64);
}

/// `seconds`: how long the request, or the first of a group of messages, waited until all of it was
/// durable or stored.
pub fn acknowledged(source: Source, seconds: f64) {
    histogram!("hourbucket_ack_seconds", "source" => source.label()).record(seconds);
}

/// Whether new readings are accepted, as in `/readyz`.
pub fn ready(ready: bool) {
    gauge!("hourbucket_ready").set(f64::from(u8::from(ready)));
}

/// `None`: admission is open.
pub fn intake_closed(why: Option<AdmissionClosed>) {
    for reason in AdmissionClosed::ALL {
        gauge!("hourbucket_intake_closed", "reason" => reason.label())
            .set(f64::from(u8::from(why == Some(reason))));
    }
}

/// False also if pings succeed, but a kind of request that readings need fails.
pub fn store_up(up: bool) {
    gauge!("hourbucket_store_up").set(f64::from(u8::from(up)));
}

/// `seconds`: 0 if all accepted readings are stored.
pub fn oldest_unstored_seconds(seconds: f64) {
    gauge!("hourbucket_oldest_unstored_seconds").set(seconds);
}

/// How old readings may get before they are written; more than `flush.max_age` while the store is
/// busy.
pub fn flush_age_seconds(seconds: f64) {
    gauge!("hourbucket_flush_age_seconds").set(seconds);
}

/// `stalled_seconds`: for how long the oldest unstored reading has not changed although the store
/// answers; 0 while readings make progress.
pub fn progress(stalled_seconds: f64, quarantined_buckets: u64) {
    gauge!("hourbucket_stalled_seconds").set(stalled_seconds);
    gauge!("hourbucket_quarantined_buckets").set(quarantined_buckets as f64);
}

/// `bytes`: the memory of all shards together.
pub fn accumulate(open_buckets: u64, bytes: u64) {
    gauge!("hourbucket_open_buckets").set(open_buckets as f64);
    gauge!("hourbucket_accumulate_bytes").set(bytes as f64);
}

/// The setting `accumulate.max_bytes`.
pub fn accumulate_max_bytes(bytes: u64) {
    gauge!("hourbucket_accumulate_max_bytes").set(bytes as f64);
}

/// `max_bytes`: the setting `journal.max_bytes`. `unstored_entries`: from the first unstored entry
/// to the newest. Not called without a journal.
pub fn journal(max_bytes: u64, unstored_entries: u64) {
    gauge!("hourbucket_journal_max_bytes").set(max_bytes as f64);
    gauge!("hourbucket_journal_unstored_entries").set(unstored_entries as f64);
}

/// `written`: since the start.
pub fn journal_backlog(unstored: u64, written: u64) {
    gauge!("hourbucket_journal_unstored_bytes").set(unstored as f64);
    counter!("hourbucket_journal_written_bytes_total").absolute(written);
}

/// The size on disk.
pub fn journal_bytes(bytes: u64) {
    gauge!("hourbucket_journal_bytes").set(bytes as f64);
}

/// Records the duration of an fdatasync.
pub fn journal_sync(seconds: f64) {
    histogram!("hourbucket_journal_sync_seconds").record(seconds);
}

/// `seconds`: 0 while the writer waits for ingest batches.
pub fn journal_commit_age(seconds: f64) {
    gauge!("hourbucket_journal_commit_age_seconds").set(seconds);
}

/// Records a command to the store that held this many `statements`. `kind` is one of
/// [`STORE_COMMANDS`], so that its series exist from the start.
pub fn store_command(kind: &'static str, statements: u64, seconds: f64) {
    counter!("hourbucket_store_statements_total", "kind" => kind).increment(statements);
    histogram!("hourbucket_store_write_seconds", "kind" => kind).record(seconds);
}

/// `kind` is one of [`STORE_ERRORS`].
pub fn store_error(kind: &'static str, n: u64) {
    counter!("hourbucket_store_errors_total", "kind" => kind).increment(n);
}

/// Counts a failed request to the store that is tried again.
pub fn store_retry() {
    counter!("hourbucket_store_retries_total").increment(1);
}

/// Counts buckets that left the memory although an equal reading without a time could still arrive:
/// after a lost answer it may be taken for a stored one.
pub fn buckets_forgotten(n: u64) {
    counter!("hourbucket_buckets_forgotten_total").increment(n);
}

/// Counts statements that found an unexpected version of their page.
pub fn store_conflicts(n: u64) {
    counter!("hourbucket_store_conflicts_total").increment(n);
}

/// Counts dead letters that the store has kept. `reason` is one of a fixed set.
pub fn dead_letter(reason: &str, n: u64) {
    counter!("hourbucket_dead_letters_total", "reason" => reason.to_owned()).increment(n);
}

/// Dead letters that wait in the journal, because they come faster than the store keeps them.
pub fn dead_letters_postponed(n: u64) {
    gauge!("hourbucket_dead_letters_postponed").set(n as f64);
}

/// `cause` is `limit`, `refused` or `behind`.
pub fn dead_letters_dropped(cause: &'static str, n: u64) {
    counter!("hourbucket_dead_letters_dropped_total", "cause" => cause).increment(n);
}

/// The uncompressed size of the collection: that of the last query, and what was written since.
pub fn dead_letters_bytes(bytes: u64) {
    gauge!("hourbucket_dead_letters_bytes").set(bytes as f64);
}

/// The setting `dead_letters.max_bytes`.
pub fn dead_letters_max_bytes(bytes: u64) {
    gauge!("hourbucket_dead_letters_max_bytes").set(bytes as f64);
}

/// Counts updates of `sensor_latest`. `reduced`: written in part, because the whole is too large
/// for a document. `refused`: given up.
pub fn latest_updates(written: u64, reduced: u64, refused: u64) {
    counter!("hourbucket_latest_updates_total", "result" => "written").increment(written);
    counter!("hourbucket_latest_updates_total", "result" => "reduced").increment(reduced);
    counter!("hourbucket_latest_updates_total", "result" => "refused").increment(refused);
}

/// Counts a PromQL query as running until the result is dropped.
#[must_use]
pub fn promql_running() -> PromqlRunning {
    gauge!("hourbucket_promql_queries_running").increment(1.0);
    PromqlRunning
}

/// A running query; see [`promql_running`].
pub struct PromqlRunning;

impl Drop for PromqlRunning {
    fn drop(&mut self) {
        gauge!("hourbucket_promql_queries_running").decrement(1.0);
    }
}

/// `silent`: sensors of which nothing has arrived for `sensors.silent_after`. Not called before the
/// catalog was read.
pub fn sensors(known: u64, silent: u64) {
    gauge!("hourbucket_sensors_known").set(known as f64);
    gauge!("hourbucket_sensors_silent").set(silent as f64);
}

/// Counts updates of `sensor_catalog`. `written` includes those that changed nothing.
pub fn catalog_updates(written: u64, refused: u64) {
    counter!("hourbucket_catalog_updates_total", "result" => "written").increment(written);
    counter!("hourbucket_catalog_updates_total", "result" => "refused").increment(refused);
}

/// The pending updates of `sensor_latest`, one per sensor, and the memory that they use.
pub fn latest_waiting(sensors: u64, bytes: u64) {
    gauge!("hourbucket_latest_sensors").set(sensors as f64);
    gauge!("hourbucket_latest_bytes").set(bytes as f64);
}

/// Counts days that were due; each sensor has its own.
pub fn days_computed(result: DayResult, days: u64) {
    counter!("hourbucket_rollup_computed_total", "result" => result.label()).increment(days);
}

/// `overdue_s`: how long the most overdue day has been due.
pub fn rollup_pending(days: u64, bytes: u64, overdue_s: f64) {
    gauge!("hourbucket_rollup_pending").set(days as f64);
    gauge!("hourbucket_rollup_bytes").set(bytes as f64);
    gauge!("hourbucket_rollup_overdue_seconds").set(overdue_s);
}

/// Counts pages whose readings were removed. `lag_s`: for how long the oldest page with readings
/// has been due.
pub fn readings_removed(pages: u64, lag_s: f64) {
    counter!("hourbucket_readings_removed_pages_total").increment(pages);
    gauge!("hourbucket_readings_removal_lag_seconds").set(lag_s);
    readings_removals_failed(0);
}

/// Counts commands that failed to remove old readings; they are repeated.
pub fn readings_removals_failed(commands: u64) {
    counter!("hourbucket_readings_removal_errors_total").increment(commands);
}

/// `left_out`: sensors beyond `enrich.max_sensors`.
pub fn registry(sensors: u64, left_out: u64) {
    gauge!("hourbucket_registry_sensors").set(sensors as f64);
    gauge!("hourbucket_registry_left_out").set(left_out as f64);
}

/// Counts an attempt to load the whole registry.
pub fn registry_load(ok: bool) {
    counter!("hourbucket_registry_loads_total", "result" => if ok { "ok" } else { "failed" })
        .increment(1);
}

/// Counts changes from the registry's change stream that were applied.
pub fn registry_changes(n: u64) {
    counter!("hourbucket_registry_changes_total").increment(n);
}

/// `broker` is host and port, without credentials. Also creates the counters of the broker.
pub fn mqtt_connected(broker: &str, connected: bool) {
    gauge!("hourbucket_mqtt_connected", "broker" => broker.to_owned())
        .set(f64::from(u8::from(connected)));
    counter!("hourbucket_mqtt_reconnects_total", "broker" => broker.to_owned()).increment(0);
    mqtt_left_out(broker, 0);
    sparkplug_rebirths(broker, 0);
}

/// Counts a connection after the first. `broker`: as in [`mqtt_connected`].
pub fn mqtt_reconnect(broker: &str) {
    counter!("hourbucket_mqtt_reconnects_total", "broker" => broker.to_owned()).increment(1);
}

/// `full_seconds`: whole seconds, since the last call, for which the window was full.
pub fn mqtt_window(broker: &str, unacked: u64, oldest_seconds: f64, full_seconds: u64) {
    gauge!("hourbucket_mqtt_unacked", "broker" => broker.to_owned()).set(unacked as f64);
    gauge!("hourbucket_mqtt_oldest_unacked_seconds", "broker" => broker.to_owned())
        .set(oldest_seconds);
    counter!("hourbucket_mqtt_window_full_seconds_total", "broker" => broker.to_owned())
        .increment(full_seconds);
}

/// Counts retained messages that were acknowledged and skipped: already received, or not wanted.
pub fn mqtt_left_out(broker: &str, n: u64) {
    counter!("hourbucket_mqtt_left_out_total", "broker" => broker.to_owned()).increment(n);
}

/// Counts a rebirth command that was sent to a node. `broker`: as in [`mqtt_connected`].
pub fn sparkplug_rebirth(broker: &str) {
    sparkplug_rebirths(broker, 1);
}

fn sparkplug_rebirths(broker: &str, n: u64) {
    counter!("hourbucket_sparkplug_rebirths_total", "broker" => broker.to_owned()).increment(n);
}

/// `limit` is `readings`, `bytes`, `journal`, `requests` or `connections`.
pub fn quota_exceeded(limit: &'static str) {
    quota_exceeded_by(limit, 1);
}

fn quota_exceeded_by(limit: &'static str, n: u64) {
    counter!("hourbucket_quota_exceeded_total", "limit" => limit).increment(n);
}

/// Adds `change` to the number of connected devices.
pub fn mqtt_direct_connections_change(change: i64) {
    gauge!("hourbucket_mqtt_direct_connections").increment(change as f64);
}

/// `result` is `accepted`, or one of a fixed set of reasons.
pub fn mqtt_direct_connect(result: &'static str) {
    counter!("hourbucket_mqtt_direct_connects_total", "result" => result).increment(1);
}

/// `reason` is one of a fixed set. The device causes `left` and `lost`, the service all others.
pub fn mqtt_direct_disconnect(reason: &'static str) {
    counter!("hourbucket_mqtt_direct_disconnects_total", "reason" => reason).increment(1);
}

/// Adds `change` to the number of open connections of an HTTP port.
pub fn http_connections_change(port: &'static str, change: i64) {
    gauge!("hourbucket_http_connections", "port" => port).increment(change as f64);
}

/// `reason` is `limit`, `address_limit`, `paused` or `proxy_header`.
pub fn http_connection_refused(port: &'static str, reason: &'static str) {
    counter!("hourbucket_http_connections_refused_total", "port" => port, "reason" => reason)
        .increment(1);
}

/// `reason` is `evicted`, `header_timeout`, `keep_alive` or `write_timeout`.
pub fn http_connection_closed(port: &'static str, reason: &'static str) {
    counter!("hourbucket_http_connections_closed_total", "port" => port, "reason" => reason)
        .increment(1);
}

/// `port`: the section of the configuration. `reason` is one of a fixed set.
pub fn auth_failure(port: &'static str, reason: &'static str) {
    counter!("hourbucket_auth_failures_total", "port" => port, "reason" => reason).increment(1);
}

/// Counts an event of the audit log.
pub(super) fn audit_event(event: &'static str) {
    counter!("hourbucket_audit_events_total", "event" => event).increment(1);
}

/// Counts a line that `audit.file` does not have.
pub(super) fn audit_dropped(reason: &'static str) {
    counter!("hourbucket_audit_dropped_total", "reason" => reason).increment(1);
}

/// `route` is the pattern, not the path: the number of series is bounded.
pub fn http_request(route: &'static str, status: u16, seconds: f64) {
    counter!("hourbucket_http_requests_total", "route" => route, "status" => status.to_string())
        .increment(1);
    histogram!("hourbucket_http_request_seconds", "route" => route).record(seconds);
}

/// `not_after_s`, `crl_until_s`: in seconds since 1970, the expiry of the certificate and the time
/// by which a revocation list is to be replaced. `ok`: the files on disk are usable.
pub fn tls(port: &'static str, not_after_s: i64, crl_until_s: Option<i64>, ok: bool) {
    let until_s = crl_until_s.map_or(f64::INFINITY, |until_s| until_s as f64);
    gauge!("hourbucket_tls_crl_next_update_seconds", "port" => port).set(until_s);
    gauge!("hourbucket_tls_not_after_seconds", "port" => port).set(not_after_s as f64);
    gauge!("hourbucket_tls_files_ok", "port" => port).set(f64::from(u8::from(ok)));
}

/// Counts an attempt to load the certificates of a port.
pub fn tls_read(port: &'static str, ok: bool) {
    let result = if ok { "ok" } else { "failed" };
    counter!("hourbucket_tls_reads_total", "port" => port, "result" => result).increment(1);
}

/// Counts a handshake of an HTTP port. `result` is `ok`, or one of a fixed set of reasons.
pub fn tls_handshake(port: &'static str, result: &'static str) {
    counter!("hourbucket_tls_handshakes_total", "port" => port, "result" => result).increment(1);
}

/// Counts reloads by SIGHUP.
pub fn config_reload(result: ReloadResult, n: u64) {
    counter!("hourbucket_config_reloads_total", "result" => result.label()).increment(n);
}

/// Whether the newest settings are valid and in effect, as far as they can be without a restart.
pub fn config_valid(valid: bool) {
    gauge!("hourbucket_config_last_reload_successful").set(f64::from(u8::from(valid)));
}

/// `at_s`: seconds since 1970.
pub fn config_taken_over(at_s: i64) {
    gauge!("hourbucket_config_last_reload_success_timestamp_seconds").set(at_s as f64);
}

/// `mode` is `bucket` or `timeseries`; known once the store is prepared.
pub fn store_mode(mode: &'static str) {
    gauge!("hourbucket_store_mode", "mode" => mode).set(1.0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_design_names_is_there_before_its_first_event() {
        install().unwrap();
        mqtt_connected("b:1883", false);
        let text = render();
        for series in [
            "hourbucket_journal_sync_seconds_count",
            "hourbucket_journal_sync_seconds_bucket{le=\"+Inf\"}",
            "hourbucket_store_statements_total{kind=\"insert\"}",
            "hourbucket_store_write_seconds_count{kind=\"measurement\"}",
            "hourbucket_store_errors_total{kind=\"no_primary\"}",
            "hourbucket_mqtt_reconnects_total{broker=\"b:1883\"}",
            "hourbucket_mqtt_left_out_total{broker=\"b:1883\"}",
            "hourbucket_sparkplug_rebirths_total{broker=\"b:1883\"}",
            "hourbucket_readings_stored_total{mode=\"bucket\"}",
            "hourbucket_readings_stored_total{mode=\"timeseries\"}",
            "hourbucket_registry_changes_total",
            "hourbucket_readings_rejected_total{source=\"store\",reason=\"quarantined\"}",
            "hourbucket_readings_rejected_total{source=\"store\",reason=\"readings_removed\"}",
        ] {
            assert!(
                text.lines()
                    .any(|line| line.starts_with(&format!("{series} "))),
                "{series} in {text}"
            );
        }
    }
}
