//! Every metric in words: name, type, labels, unit and meaning. The exporter's HELP lines and the table of
//! docs/monitoring.md are made of this list, and `tests/servers/monitoring.rs` scrapes a running service and compares.

use std::fmt::Write as _;

/// What kind of metric it is, in Prometheus' words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows, until the process ends.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts in buckets, with a sum.
    Histogram,
}

impl Kind {
    /// As in a TYPE line.
    pub fn label(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// One metric.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// With its prefix.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// Its labels, beside `le` of a histogram.
    pub labels: &'static [&'static str],
    /// What its value counts.
    pub unit: &'static str,
    /// One sentence; the HELP line.
    pub help: &'static str,
}

const fn counter(
    name: &'static str,
    labels: &'static [&'static str],
    unit: &'static str,
    help: &'static str,
) -> Metric {
    Metric { name, kind: Kind::Counter, labels, unit, help }
}

const fn gauge(name: &'static str, labels: &'static [&'static str], unit: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Gauge, labels, unit, help }
}

const fn histogram(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, kind: Kind::Histogram, labels, unit: "seconds", help }
}

/// All that `/metrics` can show, in the order of a reading's way.
#[rustfmt::skip]
pub const METRICS: &[Metric] = &[
    counter("hourbucket_readings_received_total", &["source"], "readings", "Readings that arrived, good or bad."),
    counter("hourbucket_readings_accepted_total", &["source"], "readings", "Readings taken over; at rest, stored plus duplicate."),
    counter("hourbucket_readings_rejected_total", &["source", "reason"], "readings", "Readings or messages refused, by reason."),
    counter("hourbucket_readings_duplicate_total", &[], "readings", "Accepted readings that were stored already."),
    counter("hourbucket_readings_stored_total", &["mode"], "readings", "Readings that MongoDB has stored, with the write concern."),
    gauge("hourbucket_readings_in_flight", &[], "readings", "Readings in memory that are not stored yet."),
    gauge("hourbucket_oldest_unstored_seconds", &[], "seconds", "Age of the oldest accepted reading that is not stored yet."),
    gauge("hourbucket_stalled_seconds", &[], "seconds", "How long the oldest unstored reading has been the same although MongoDB answers; 0 while readings make progress."),
    gauge("hourbucket_quarantined_buckets", &[], "buckets", "Buckets that MongoDB keeps failing while it answers others; /readyz names them."),
    gauge("hourbucket_acks_pending", &["source"], "messages", "Messages or requests that wait for their acknowledgement."),
    histogram("hourbucket_ack_seconds", &["source"], "Time from decoded to acknowledged, once for each request or group of messages."),
    gauge("hourbucket_ready", &[], "0 or 1", "1 while readings sent now would be taken, as /readyz says."),
    gauge("hourbucket_intake_closed", &["reason"], "0 or 1", "1 while nothing is taken for this reason: the journal is full, the service is stopping, or it is broken."),
    gauge("hourbucket_open_buckets", &[], "buckets", "Buckets held by the shards."),
    gauge("hourbucket_accumulate_bytes", &[], "bytes", "Memory held by the shards, against accumulate.max_bytes."),
    gauge("hourbucket_accumulate_max_bytes", &[], "bytes", "The setting accumulate.max_bytes."),
    gauge("hourbucket_journal_bytes", &[], "bytes", "Size of the journal on disk, against journal.max_bytes."),
    gauge("hourbucket_journal_max_bytes", &[], "bytes", "The setting journal.max_bytes; absent without a journal."),
    gauge("hourbucket_journal_unstored_entries", &[], "entries", "Entries of the journal from the first that is not stored on; one entry is one request or group of messages."),
    histogram("hourbucket_journal_sync_seconds", &[], "Time of one fdatasync of the journal."),
    gauge("hourbucket_store_up", &[], "0 or 1", "1 while the last answer of MongoDB was good."),
    gauge("hourbucket_store_mode", &["mode"], "1", "1 for the mode in use; absent until MongoDB was reached."),
    counter("hourbucket_store_statements_total", &["kind"], "statements", "Statements sent to the store, by kind."),
    histogram("hourbucket_store_write_seconds", &["kind"], "Time of one command to the store, by kind."),
    counter("hourbucket_store_errors_total", &["kind"], "errors", "Commands or statements that failed, by kind of error."),
    counter("hourbucket_store_retries_total", &[], "commands", "Commands sent again."),
    counter("hourbucket_store_conflicts_total", &[], "statements", "Statements that found another version of their page."),
    counter("hourbucket_dead_letters_total", &["reason"], "letters", "Messages and readings kept as dead letters, by reason."),
    gauge("hourbucket_dead_letters_bytes", &[], "bytes", "Size of the collection dead_letters, uncompressed, against dead_letters.max_bytes."),
    gauge("hourbucket_dead_letters_max_bytes", &[], "bytes", "The setting dead_letters.max_bytes."),
    counter("hourbucket_dead_letters_dropped_total", &["cause"], "letters", "Dead letters removed because the collection was at its limit (limit), or given up because MongoDB refuses them (refused)."),
    counter("hourbucket_latest_updates_total", &["result"], "updates", "Updates of sensor_latest, by result."),
    gauge("hourbucket_latest_sensors", &[], "sensors", "Sensors whose document in sensor_latest is to be updated."),
    gauge("hourbucket_latest_bytes", &[], "bytes", "Memory held for them, against latest.max_bytes."),
    gauge("hourbucket_registry_sensors", &[], "sensors", "Sensors of the registry collection that are known."),
    gauge("hourbucket_registry_left_out", &[], "sensors", "Sensors of it beyond enrich.max_sensors, which get no tags."),
    counter("hourbucket_registry_loads_total", &["result"], "loads", "Times that the registry was read whole, by result."),
    counter("hourbucket_registry_changes_total", &[], "changes", "Changes taken over from the registry's change stream."),
    gauge("hourbucket_mqtt_connected", &["broker"], "0 or 1", "1 while connected to the broker."),
    counter("hourbucket_mqtt_reconnects_total", &["broker"], "connections", "Connections to the broker after the first."),
    gauge("hourbucket_mqtt_unacked", &["broker"], "messages", "Messages of the broker that wait for their PUBACK."),
    gauge("hourbucket_mqtt_oldest_unacked_seconds", &["broker"], "seconds", "Age of the oldest of them."),
    counter("hourbucket_mqtt_window_full_seconds_total", &["broker"], "seconds", "Seconds for which mqtt.window was full (MQTT 5)."),
    counter("hourbucket_mqtt_left_out_total", &["broker"], "messages", "Retained messages that were not taken (mqtt.subscriptions.retained)."),
    counter("hourbucket_sparkplug_rebirths_total", &["broker"], "commands", "Times that a node of Sparkplug B was asked for its births."),
    gauge("hourbucket_mqtt_direct_connections", &[], "connections", "Devices that are connected to us."),
    counter("hourbucket_mqtt_direct_connects_total", &["result"], "connections", "Tries of devices to connect, by result."),
    counter("hourbucket_mqtt_direct_disconnects_total", &["reason"], "connections", "Connections of devices that ended, by reason: left and lost are the device's own, all others were ended by the service."),
    counter("hourbucket_http_requests_total", &["route", "status"], "requests", "Requests answered, by route and status."),
    histogram("hourbucket_http_request_seconds", &["route"], "Time from the request's head to its answer, by route."),
    gauge("hourbucket_tls_not_after_seconds", &["port"], "seconds since 1970", "When the port's certificate expires."),
    gauge("hourbucket_tls_files_ok", &["port"], "0 or 1", "0 while the port's certificate files cannot be used and older ones hold."),
    counter("hourbucket_tls_reads_total", &["port", "result"], "reads", "Times that a port's certificates were read, by result."),
    counter("hourbucket_tls_handshakes_total", &["port", "result"], "handshakes", "TLS handshakes of the ports for HTTP, by result."),
    counter("hourbucket_config_reloads_total", &["result"], "reloads", "Times that the settings were read again (SIGHUP), by result."),
    gauge("hourbucket_config_last_reload_success_timestamp_seconds", &[], "seconds since 1970", "When settings were last taken over, at the start or by SIGHUP."),
    gauge("hourbucket_clock_seconds", &[], "seconds since 1970", "The machine's time when it was scraped."),
    gauge("hourbucket_build_info", &["version"], "1", "1, with the version as label."),
    counter("process_cpu_seconds_total", &[], "seconds", "User and system CPU time of the process."),
    gauge("process_resident_memory_bytes", &[], "bytes", "Resident memory of the process."),
    gauge("process_virtual_memory_bytes", &[], "bytes", "Virtual memory of the process."),
    gauge("process_open_fds", &[], "descriptors", "Open file descriptors: files and connections."),
    gauge("process_max_fds", &[], "descriptors", "How many of them the process may have."),
    gauge("process_start_time_seconds", &[], "seconds since 1970", "When the process was started."),
];

/// The table of docs/monitoring.md.
pub fn table() -> String {
    let mut text = String::from("| metric | type | labels | unit | meaning |\n|---|---|---|---|---|\n");
    for metric in METRICS {
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        let (name, kind, unit, help) = (metric.name, metric.kind.label(), metric.unit, metric.help);
        let _ = writeln!(text, "| `{name}` | {kind} | {} | {unit} | {help} |", labels.join(", "));
    }
    text
}

/// The entry of a metric that is shown.
pub(super) fn find(name: &str) -> &'static Metric {
    METRICS.iter().find(|metric| metric.name == name).unwrap_or_else(|| panic!("{name} is not in the catalog"))
}
