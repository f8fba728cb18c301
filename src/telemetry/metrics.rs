//! Every metric, as a typed function: the names are an interface (DESIGN section 4), so the macros are used here and
//! nowhere else. Called once a batch, a command or a request, never once a reading. No label holds a sensor id.

use std::sync::OnceLock;

use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use super::catalog::{Kind, METRICS, Metric};
use super::process;
use crate::model::{Clock, SystemClock};

/// Where readings come from, the label `source`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// A broker.
    Mqtt,
    /// A device that is connected to us.
    MqttDirect,
    /// A POST.
    Http,
    /// The journal, read again after a start.
    Replay,
    /// Refused by the store after it was accepted.
    Store,
}

impl Source {
    /// The label's value.
    pub fn label(self) -> &'static str {
        match self {
            Source::Mqtt => "mqtt",
            Source::MqttDirect => "mqtt_direct",
            Source::Http => "http",
            Source::Replay => "replay",
            Source::Store => "store",
        }
    }
}

/// Seconds: from the fastest fdatasync to a store that is in trouble.
const LATENCY_BUCKETS: [f64; 16] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0];

static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();

/// Installs the recorder (once a process; later calls do nothing) and describes every metric.
///
/// # Errors
/// Another recorder is installed already.
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

/// The text that Prometheus scrapes; empty before [`install`].
pub fn render() -> String {
    let Some(handle) = HANDLE.get() else { return String::new() };
    // At the moment of the scrape: the scraper compares it with its own.
    gauge!("hourbucket_clock_seconds").set(SystemClock::new().now().wall_ms as f64 / 1000.0);
    let mut text = handle.render();
    process::render(&mut text);
    text
}

/// Folds what has been recorded; the exporter needs it called every few seconds.
pub fn run_upkeep() {
    if let Some(handle) = HANDLE.get() {
        handle.run_upkeep();
    }
}

/// Series that everybody watches are there from the start: a rate over a counter that appears with its first event misses
/// that event, and an alert on an absent series never fires.
fn start_at_zero() {
    for source in [Source::Mqtt, Source::MqttDirect, Source::Http] {
        received(source, 0);
        accepted(source, 0);
        acks_pending(source, 0);
    }
    mqtt_direct_connections_change(0);
    duplicate(0);
    store_conflicts(0);
    counter!("hourbucket_store_retries_total").increment(0);
    // The one reason that loses a message which nobody sends again, and the one that concerns what was acknowledged.
    rejected(Source::Mqtt, "queue_full", 0);
    rejected(Source::Store, "store_rejected", 0);
    for cause in ["limit", "refused"] {
        dead_letters_dropped(cause, 0);
    }
    readings_in_flight(0);
    oldest_unstored_seconds(0.0);
    accumulate(0, 0);
    journal_bytes(0);
    ready(false);
    intake_closed(None);
    store_up(false);
    for result in ["applied", "restart_needed", "invalid"] {
        config_reload(result, 0);
    }
}

fn describe() {
    for Metric { name, kind, help, .. } in METRICS {
        match kind {
            Kind::Counter => describe_counter!(*name, *help),
            Kind::Gauge => describe_gauge!(*name, *help),
            Kind::Histogram => describe_histogram!(*name, *help),
        }
    }
}

/// Counts readings that arrived.
pub fn received(source: Source, n: u64) {
    counter!("hourbucket_readings_received_total", "source" => source.label()).increment(n);
}

/// Counts readings taken over.
pub fn accepted(source: Source, n: u64) {
    counter!("hourbucket_readings_accepted_total", "source" => source.label()).increment(n);
}

/// Counts readings refused. `reason` is one of a fixed set.
pub fn rejected(source: Source, reason: &'static str, n: u64) {
    counter!("hourbucket_readings_rejected_total", "source" => source.label(), "reason" => reason).increment(n);
}

/// Counts accepted readings that were stored already.
pub fn duplicate(n: u64) {
    counter!("hourbucket_readings_duplicate_total").increment(n);
}

/// Counts readings stored.
pub fn stored(mode: &'static str, n: u64) {
    counter!("hourbucket_readings_stored_total", "mode" => mode).increment(n);
}

/// Sets how many readings are in memory and not stored.
pub fn readings_in_flight(n: u64) {
    gauge!("hourbucket_readings_in_flight").set(n as f64);
}

/// Sets how many messages or requests wait for their acknowledgement.
pub fn acks_pending(source: Source, n: u64) {
    gauge!("hourbucket_acks_pending", "source" => source.label()).set(n as f64);
}

/// Moves the number of messages or requests that wait for their acknowledgement.
pub fn acks_pending_change(source: Source, change: i64) {
    gauge!("hourbucket_acks_pending", "source" => source.label()).increment(change as f64);
}

/// Records how long the sender of a request, or of the first of a group of messages, has waited until all of it was safe.
pub fn acknowledged(source: Source, seconds: f64) {
    histogram!("hourbucket_ack_seconds", "source" => source.label()).record(seconds);
}

/// Sets whether readings sent now would be taken.
pub fn ready(ready: bool) {
    gauge!("hourbucket_ready").set(f64::from(u8::from(ready)));
}

/// Why admission is closed, the label `reason`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdmissionClosed {
    /// The journal has no room.
    Full,
    /// The service is shutting down.
    Stopping,
    /// A part has failed.
    Broken,
}

/// Sets why admission is closed; `None`: it is open.
pub fn intake_closed(why: Option<AdmissionClosed>) {
    for (reason, label) in
        [(AdmissionClosed::Full, "full"), (AdmissionClosed::Stopping, "stopping"), (AdmissionClosed::Broken, "broken")]
    {
        gauge!("hourbucket_intake_closed", "reason" => label).set(f64::from(u8::from(why == Some(reason))));
    }
}

/// Sets whether the store answers.
pub fn store_up(up: bool) {
    gauge!("hourbucket_store_up").set(f64::from(u8::from(up)));
}

/// Sets the age of the oldest accepted reading that is not stored.
pub fn oldest_unstored_seconds(seconds: f64) {
    gauge!("hourbucket_oldest_unstored_seconds").set(seconds);
}

/// Sets for how long the oldest unstored reading has made no progress, and how many buckets are quarantined.
pub fn progress(stalled_seconds: f64, quarantined_buckets: u64) {
    gauge!("hourbucket_stalled_seconds").set(stalled_seconds);
    gauge!("hourbucket_quarantined_buckets").set(quarantined_buckets as f64);
}

/// Sets the number of buckets and the memory that the shards hold.
pub fn accumulate(open_buckets: u64, bytes: u64) {
    gauge!("hourbucket_open_buckets").set(open_buckets as f64);
    gauge!("hourbucket_accumulate_bytes").set(bytes as f64);
}

/// Sets the limit of the shards' memory.
pub fn accumulate_max_bytes(bytes: u64) {
    gauge!("hourbucket_accumulate_max_bytes").set(bytes as f64);
}

/// Sets the journal's limit, and how many of its entries wait for the store.
pub fn journal(max_bytes: u64, unstored_entries: u64) {
    gauge!("hourbucket_journal_max_bytes").set(max_bytes as f64);
    gauge!("hourbucket_journal_unstored_entries").set(unstored_entries as f64);
}

/// Sets the size of the journal.
pub fn journal_bytes(bytes: u64) {
    gauge!("hourbucket_journal_bytes").set(bytes as f64);
}

/// Records one fdatasync of the journal.
pub fn journal_sync(seconds: f64) {
    histogram!("hourbucket_journal_sync_seconds").record(seconds);
}

/// Records one command of `statements` statements to the store.
pub fn store_command(kind: &'static str, statements: u64, seconds: f64) {
    counter!("hourbucket_store_statements_total", "kind" => kind).increment(statements);
    histogram!("hourbucket_store_write_seconds", "kind" => kind).record(seconds);
}

/// Counts failed commands or statements by kind of error.
pub fn store_error(kind: &'static str, n: u64) {
    counter!("hourbucket_store_errors_total", "kind" => kind).increment(n);
}

/// Counts a command sent again.
pub fn store_retry() {
    counter!("hourbucket_store_retries_total").increment(1);
}

/// Counts statements that found another version of their page.
pub fn store_conflicts(n: u64) {
    counter!("hourbucket_store_conflicts_total").increment(n);
}

/// Counts dead letters.
pub fn dead_letter(reason: &str, n: u64) {
    counter!("hourbucket_dead_letters_total", "reason" => reason.to_owned()).increment(n);
}

/// Counts dead letters that are no more, by why: `limit` or `refused`.
pub fn dead_letters_dropped(cause: &'static str, n: u64) {
    counter!("hourbucket_dead_letters_dropped_total", "cause" => cause).increment(n);
}

/// Sets the size of the collection of dead letters.
pub fn dead_letters_bytes(bytes: u64) {
    gauge!("hourbucket_dead_letters_bytes").set(bytes as f64);
}

/// Sets what it may have.
pub fn dead_letters_max_bytes(bytes: u64) {
    gauge!("hourbucket_dead_letters_max_bytes").set(bytes as f64);
}

/// Counts updates of `sensor_latest`.
pub fn latest_updates(written: u64, refused: u64) {
    counter!("hourbucket_latest_updates_total", "result" => "written").increment(written);
    counter!("hourbucket_latest_updates_total", "result" => "refused").increment(refused);
}

/// Sets how many sensors wait for their update of `sensor_latest`, and the memory that they take.
pub fn latest_waiting(sensors: u64, bytes: u64) {
    gauge!("hourbucket_latest_sensors").set(sensors as f64);
    gauge!("hourbucket_latest_bytes").set(bytes as f64);
}

/// Sets how many sensors of the registry are known, and how many are not for want of room.
pub fn registry(sensors: u64, left_out: u64) {
    gauge!("hourbucket_registry_sensors").set(sensors as f64);
    gauge!("hourbucket_registry_left_out").set(left_out as f64);
}

/// Counts a try to read the registry whole.
pub fn registry_load(ok: bool) {
    counter!("hourbucket_registry_loads_total", "result" => if ok { "ok" } else { "failed" }).increment(1);
}

/// Counts changes of the registry that were taken over one by one.
pub fn registry_changes(n: u64) {
    counter!("hourbucket_registry_changes_total").increment(n);
}

/// Sets whether the broker is connected. `broker` is host and port, without credentials.
pub fn mqtt_connected(broker: &str, connected: bool) {
    gauge!("hourbucket_mqtt_connected", "broker" => broker.to_owned()).set(f64::from(u8::from(connected)));
}

/// Counts a connection to the broker after the first.
pub fn mqtt_reconnect(broker: &str) {
    counter!("hourbucket_mqtt_reconnects_total", "broker" => broker.to_owned()).increment(1);
}

/// Sets how many messages of the broker wait for their acknowledgement and for how long the oldest does, and counts for
/// how many whole seconds the window was full.
pub fn mqtt_window(broker: &str, unacked: u64, oldest_seconds: f64, full_seconds: u64) {
    gauge!("hourbucket_mqtt_unacked", "broker" => broker.to_owned()).set(unacked as f64);
    gauge!("hourbucket_mqtt_oldest_unacked_seconds", "broker" => broker.to_owned()).set(oldest_seconds);
    counter!("hourbucket_mqtt_window_full_seconds_total", "broker" => broker.to_owned()).increment(full_seconds);
}

/// Counts messages that were acknowledged and left out: retained ones that were taken before or are not wanted.
pub fn mqtt_left_out(broker: &str, n: u64) {
    counter!("hourbucket_mqtt_left_out_total", "broker" => broker.to_owned()).increment(n);
}

/// Counts a command to a node of Sparkplug B to send its births again.
pub fn sparkplug_rebirth(broker: &str) {
    counter!("hourbucket_sparkplug_rebirths_total", "broker" => broker.to_owned()).increment(1);
}

/// Moves the number of devices that are connected to us.
pub fn mqtt_direct_connections_change(change: i64) {
    gauge!("hourbucket_mqtt_direct_connections").increment(change as f64);
}

/// Counts a device's try to connect, by what became of it.
pub fn mqtt_direct_connect(result: &'static str) {
    counter!("hourbucket_mqtt_direct_connects_total", "result" => result).increment(1);
}

/// Counts a device's connection that has ended, by why.
pub fn mqtt_direct_disconnect(reason: &'static str) {
    counter!("hourbucket_mqtt_direct_disconnects_total", "reason" => reason).increment(1);
}

/// Records one request. `route` is the pattern, not the path.
pub fn http_request(route: &'static str, status: u16, seconds: f64) {
    counter!("hourbucket_http_requests_total", "route" => route, "status" => status.to_string()).increment(1);
    histogram!("hourbucket_http_request_seconds", "route" => route).record(seconds);
}

/// Says until when the certificate of a port is good, and whether its files can be used.
pub fn tls(port: &'static str, not_after_s: i64, ok: bool) {
    gauge!("hourbucket_tls_not_after_seconds", "port" => port).set(not_after_s as f64);
    gauge!("hourbucket_tls_files_ok", "port" => port).set(f64::from(u8::from(ok)));
}

/// Counts a try to read the certificates of a port.
pub fn tls_read(port: &'static str, ok: bool) {
    let result = if ok { "ok" } else { "failed" };
    counter!("hourbucket_tls_reads_total", "port" => port, "result" => result).increment(1);
}

/// Counts a handshake by what became of it.
pub fn tls_handshake(port: &'static str, result: &'static str) {
    counter!("hourbucket_tls_handshakes_total", "port" => port, "result" => result).increment(1);
}

/// Counts a try to read the settings again.
pub fn config_reload(result: &'static str, n: u64) {
    counter!("hourbucket_config_reloads_total", "result" => result).increment(n);
}

/// Says when settings were taken over.
pub fn config_taken_over(at_s: i64) {
    gauge!("hourbucket_config_last_reload_success_timestamp_seconds").set(at_s as f64);
}

/// Says which mode is in use.
pub fn store_mode(mode: &'static str) {
    gauge!("hourbucket_store_mode", "mode" => mode).set(1.0);
    stored(mode, 0);
}
