//! The catalog of metrics: name, type, labels, unit and meaning. The exporter's HELP lines and the
//! table of docs/monitoring.md are generated from it. `tests/servers/monitoring.rs` compares it
//! with a scrape of a running service.

use std::fmt::Write as _;

/// A metric type of Prometheus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Never decreases; starts at 0 with the process.
    Counter,
    /// Can increase and decrease.
    Gauge,
    /// Observations counted in buckets, with their sum.
    Histogram,
}

impl Kind {
    /// The word of the TYPE line.
    pub fn label(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// A metric that `/metrics` can show.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// The full name, with its prefix.
    pub name: &'static str,
    /// The type in the TYPE line.
    pub kind: Kind,
    /// The label names, without `le` of histograms.
    pub labels: &'static [&'static str],
    /// The unit of the value.
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
    Metric {
        name,
        kind: Kind::Counter,
        labels,
        unit,
        help,
    }
}

const fn gauge(
    name: &'static str,
    labels: &'static [&'static str],
    unit: &'static str,
    help: &'static str,
) -> Metric {
    Metric {
        name,
        kind: Kind::Gauge,
        labels,
        unit,
        help,
    }
}

const fn histogram(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Metric {
    Metric {
        name,
        kind: Kind::Histogram,
        labels,
        unit: "seconds",
        help,
    }
}

/// All metrics, ordered along the pipeline.
#[rustfmt::skip]
pub const METRICS: &[Metric] = &[
    counter("hourbucket_readings_received_total", &["source"], "readings", "Readings received, \
        valid or not."),
    counter("hourbucket_readings_accepted_total", &["source"], "readings", "Readings accepted, \
        source replay: by an earlier process, and replayed from the journal. Equals stored plus \
        duplicate when nothing is pending and MongoDB rejected none."),
    counter("hourbucket_readings_rejected_total", &["source", "reason"], "readings", "Readings or messages rejected, by reason."),
    counter("hourbucket_readings_retimed_total", &["source"], "readings", "Readings decoded with \
        the time of receipt in place of a time that could not be used: an unset clock, or an \
        unreadable time in a format that allows it."),
    counter("hourbucket_values_left_out_total", &["source"], "values", "Members of decoded \
        readings that are not stored: beside an object values, nested with native.nested = \
        leave-out, bytes, the buckets of histograms, texts of line protocol that are too long, and \
        samples of remote write without a finite number."),
    counter("hourbucket_messages_empty_total", &["source"], "messages", "MQTT messages without a \
        payload, which hold no reading: a sign-off, or a retained message that is cleared."),
    counter("hourbucket_readings_duplicate_total", &[], "readings", "Accepted readings that were \
        already stored."),
    counter("hourbucket_readings_stored_total", &["mode"], "readings", "Readings that MongoDB \
        confirmed with the configured write concern."),
    gauge("hourbucket_readings_in_flight", &[], "readings", "Readings in memory that are not yet \
        stored."),
    gauge("hourbucket_flush_age_seconds", &[], "seconds", "How old readings may get before they \
        are written: flush.max_age, or more while MongoDB is busy with statements of few readings."),
    gauge("hourbucket_oldest_unstored_seconds", &[], "seconds", "Age of the oldest accepted \
        reading that is not yet stored."),
    gauge("hourbucket_stalled_seconds", &[], "seconds", "Time for which the oldest unstored \
        reading has not changed although MongoDB answers; 0 while readings make progress."),
    gauge("hourbucket_quarantined_buckets", &[], "buckets", "Buckets whose reads or writes keep \
        failing while others succeed; /readyz lists them."),
    gauge("hourbucket_acks_pending", &["source"], "messages", "Messages or requests waiting for \
        their acknowledgement."),
    histogram("hourbucket_ack_seconds", &["source"], "Time from decoding to acknowledgement, \
        observed once per request or group of messages."),
    gauge("hourbucket_ready", &[], "0 or 1", "1 while new readings are accepted, as reported by \
        /readyz."),
    gauge("hourbucket_intake_closed", &["reason"], "0 or 1", "1 while admission is closed for this \
        reason: the journal is full, the service is stopping, or a part has failed."),
    gauge("hourbucket_open_buckets", &[], "buckets", "Buckets in the memory of the shards."),
    gauge("hourbucket_accumulate_bytes", &[], "bytes", "Memory used by the shards; limited by \
        accumulate.max_bytes."),
    gauge("hourbucket_accumulate_max_bytes", &[], "bytes", "Value of accumulate.max_bytes."),
    gauge("hourbucket_journal_bytes", &[], "bytes", "Size of the journal on disk; limited by \
        journal.max_bytes."),
    gauge("hourbucket_journal_max_bytes", &[], "bytes", "Value of journal.max_bytes; absent \
        without a journal."),
    gauge("hourbucket_journal_unstored_bytes", &[], "bytes", "Bytes of the journal from the first \
        unstored entry on; at journal.max_bytes senders are refused."),
    counter("hourbucket_journal_written_bytes_total", &[], "bytes", "Bytes written to the journal."),
    gauge("hourbucket_journal_unstored_entries", &[], "entries", "Journal entries from the first \
        unstored one to the newest; an entry is one request or group of messages."),
    histogram("hourbucket_journal_sync_seconds", &[], "Duration of an fdatasync of the journal."),
    gauge("hourbucket_journal_commit_age_seconds", &[], "seconds", "Time for which the journal has \
        been writing and syncing the present group of messages; 0 between groups. Many seconds: \
        its disk does not answer, and nothing is acknowledged."),
    gauge("hourbucket_store_up", &[], "0 or 1", "1 while MongoDB answers pings and no kind of request that readings need (prepare, write, load) fails."),
    gauge("hourbucket_store_mode", &["mode"], "1", "1 for the storage mode in use; absent until \
        MongoDB has been reached."),
    counter("hourbucket_store_statements_total", &["kind"], "statements", "Statements sent to the \
        store, by kind."),
    histogram("hourbucket_store_write_seconds", &["kind"], "Duration of a command to the store, by \
        kind; of load, catalog, dead_letter and read: of a request of one or more commands."),
    counter("hourbucket_store_errors_total", &["kind"], "errors", "Commands or statements that \
        failed, by kind of error."),
    counter("hourbucket_store_retries_total", &[], "commands", "Commands retried."),
    counter("hourbucket_buckets_forgotten_total", &[], "buckets", "Buckets that left the memory \
        although an equal reading without a time could still arrive: after a lost answer it may be \
        taken for a stored one. Raise accumulate.max_bytes or accumulate.max_sensors."),
    counter("hourbucket_store_conflicts_total", &[], "statements", "Statements that found an \
        unexpected version of their page."),
    counter("hourbucket_dead_letters_total", &["reason"], "letters", "Messages and readings kept \
        as dead letters, by reason."),
    gauge("hourbucket_dead_letters_bytes", &[], "bytes", "Uncompressed size of the collection \
        dead_letters; limited by dead_letters.max_bytes."),
    gauge("hourbucket_dead_letters_max_bytes", &[], "bytes", "Value of dead_letters.max_bytes."),
    counter("hourbucket_dead_letters_dropped_total", &["cause"], "letters", "Dead letters removed \
        because the collection reached its limit (limit), or discarded because MongoDB rejected \
        them (refused), or because they came faster than it stored them until the journal \
        was three quarters full (behind)."),
    gauge("hourbucket_dead_letters_postponed", &[], "letters", "Dead letters that wait in the \
        journal, because they come faster than MongoDB stores them. Readings pass them."),
    counter("hourbucket_catalog_updates_total", &["result"], "updates", "Updates of sensor_catalog, by result; written includes those that changed nothing."),
    gauge("hourbucket_sensors_known", &[], "sensors", "Sensors in sensor_catalog; absent until it \
        is read."),
    gauge("hourbucket_sensors_silent", &[], "sensors", "Sensors of which nothing has arrived for \
        sensors.silent_after, by sensor_catalog and so the same in every instance; absent until it \
        is read, at most 1000000."),
    gauge("hourbucket_promql_queries_running", &[], "queries", "PromQL queries that are being \
        evaluated; limited by promql.queries_max."),
    counter("hourbucket_latest_updates_total", &["result"], "updates", "Updates of sensor_latest, \
        by result. A reduced one was too large for a document and is written in part."),
    gauge("hourbucket_latest_sensors", &[], "sensors", "Sensors with a pending update of \
        sensor_latest."),
    gauge("hourbucket_latest_bytes", &[], "bytes", "Memory used by pending updates of \
        sensor_latest; limited by latest.max_bytes."),
    counter("hourbucket_readings_removed_pages_total", &[], "pages", "Pages whose readings were \
        removed (store.retention_readings), by this instance."),
    gauge("hourbucket_readings_removal_lag_seconds", &[], "seconds", "For how long the oldest page \
        with readings has been due to lose them; 0 if none is."),
    counter("hourbucket_readings_removal_errors_total", &[], "commands", "Commands that remove old \
        readings and failed; they are repeated."),
    gauge("hourbucket_rollup_pending", &[], "days", "Days of sensors that changed since their \
        document was computed, including the open days."),
    gauge("hourbucket_rollup_overdue_seconds", &[], "seconds", "How long the most overdue day has \
        been due to be computed; 0 if none is."),
    gauge("hourbucket_rollup_bytes", &[], "bytes", "Memory used by days with changes; limited by \
        rollup.max_bytes."),
    counter("hourbucket_rollup_computed_total", &["result"], "days", "Days that were computed, by \
        result: written, failed (tried again), refused by MongoDB, expired (hours may be missing, \
        so not computed)."),
    gauge("hourbucket_registry_sensors", &[], "sensors", "Sensors of the registry that are loaded."),
    gauge("hourbucket_registry_left_out", &[], "sensors", "Sensors of the registry beyond \
        enrich.max_sensors; they get no tags."),
    counter("hourbucket_registry_loads_total", &["result"], "loads", "Full loads of the registry, \
        by result."),
    counter("hourbucket_registry_changes_total", &[], "changes", "Changes applied from the \
        registry's change stream."),
    gauge("hourbucket_mqtt_connected", &["broker"], "0 or 1", "1 while connected to the broker, with every subscription granted."),
    counter("hourbucket_mqtt_reconnects_total", &["broker"], "connections", "Connections to the \
        broker after the first."),
    gauge("hourbucket_mqtt_unacked", &["broker"], "messages", "Messages from the broker waiting \
        for their PUBACK."),
    gauge("hourbucket_mqtt_oldest_unacked_seconds", &["broker"], "seconds", "Age of the oldest \
        message from the broker waiting for its PUBACK."),
    counter("hourbucket_mqtt_window_full_seconds_total", &["broker"], "seconds", "Time for which \
        mqtt.window was full (MQTT 5)."),
    counter("hourbucket_mqtt_left_out_total", &["broker"], "messages", "Retained messages skipped \
        because of mqtt.subscriptions.retained."),
    counter("hourbucket_sparkplug_rebirths_total", &["broker"], "commands", "Rebirth commands sent \
        to Sparkplug B nodes."),
    gauge("hourbucket_mqtt_direct_connections", &[], "connections", "Devices connected to the \
        listener."),
    counter("hourbucket_quota_exceeded_total", &["limit"], "messages", "Requests refused, and \
        pauses and connections of MQTT devices, because the sender (token) had reached its quota."),
    counter("hourbucket_mqtt_direct_connects_total", &["result"], "connections", "Connection attempts of devices, by result."),
    counter("hourbucket_mqtt_direct_disconnects_total", &["reason"], "connections", "Closed connections of devices, by reason: the device causes left and lost, the service all others."),
    counter("hourbucket_http_requests_total", &["route", "status"], "requests", "Requests answered, by route and status."),
    gauge("hourbucket_http_connections", &["port"], "connections", "Open connections of an HTTP \
        port, idle ones included."),
    counter("hourbucket_http_connections_refused_total", &["port", "reason"], "connections", "Connections of an HTTP port that were closed immediately, by reason: limit (connections_max), address_limit (connections_per_address_max), paused (failed authentications), proxy_header (no usable PROXY header, or one from an address that is not trusted)."),
    counter("hourbucket_http_connections_closed_total", &["port", "reason"], "connections", "Connections that an HTTP port ended, by reason: evicted (idle, for a new connection), header_timeout, keep_alive, write_timeout."),
    counter("hourbucket_auth_failures_total", &["port", "reason"], "attempts", "Requests and MQTT \
        connections whose credentials were missing, wrong, expired or not valid for the port, by \
        port and reason."),
    counter("hourbucket_audit_events_total", &["event"], "events", "Events of the audit log, \
        written or not."),
    counter("hourbucket_audit_dropped_total", &["reason"], "lines", "Lines that audit.file does \
        not have, by reason: limit (audit.lines_per_second, or too many about one address), queue \
        (the disk is too slow), write (it failed)."),
    histogram("hourbucket_http_request_seconds", &["route"], "Time from receiving a request's head \
        to its response, by route."),
    gauge("hourbucket_tls_not_after_seconds", &["port"], "seconds since 1970", "Expiry time of the \
        port's certificate."),
    gauge("hourbucket_tls_crl_next_update_seconds", &["port"], "seconds since 1970", "Time by which the earliest of the port's revocation lists is to be replaced; +Inf without a list."),
    gauge("hourbucket_tls_files_ok", &["port"], "0 or 1", "0 while the port's certificate files \
        are unusable and previously loaded ones stay in use."),
    counter("hourbucket_tls_reads_total", &["port", "result"], "reads", "Reads of a port's \
        certificates, by result."),
    counter("hourbucket_tls_handshakes_total", &["port", "result"], "handshakes", "TLS handshakes \
        of the HTTP ports, by result."),
    counter("hourbucket_config_reloads_total", &["result"], "reloads", "Configuration reloads \
        (SIGHUP), by result."),
    gauge("hourbucket_config_last_reload_successful", &[], "0 or 1", "0 if the newest settings \
        were invalid when they were loaded, so that the previous ones are in effect."),
    gauge("hourbucket_config_last_reload_success_timestamp_seconds", &[], "seconds since 1970", "Time of the last successful configuration load, at startup or by SIGHUP."),
    gauge("hourbucket_clock_seconds", &[], "seconds since 1970", "System time of the machine at \
        the scrape."),
    gauge("hourbucket_build_info", &["version"], "1", "Always 1; the label holds the version."),
    counter("process_cpu_seconds_total", &[], "seconds", "User and system CPU time of the process."),
    gauge("process_resident_memory_bytes", &[], "bytes", "Resident memory of the process."),
    gauge("process_virtual_memory_bytes", &[], "bytes", "Virtual memory of the process."),
    gauge("process_open_fds", &[], "descriptors", "Open file descriptors (files and connections)."),
    gauge("process_max_fds", &[], "descriptors", "Maximum number of open file descriptors."),
    gauge("process_start_time_seconds", &[], "seconds since 1970", "Start time of the process."),
];

/// The table of docs/monitoring.md, in Markdown.
pub fn table() -> String {
    let mut text =
        String::from("| metric | type | labels | unit | meaning |\n|---|---|---|---|---|\n");
    for metric in METRICS {
        let labels: Vec<String> = metric
            .labels
            .iter()
            .map(|label| format!("`{label}`"))
            .collect();
        let name = metric.name;
        let kind = metric.kind.label();
        let unit = metric.unit;
        let help = metric.help;
        let _ = writeln!(
            text,
            "| `{name}` | {kind} | {} | {unit} | {help} |",
            labels.join(", ")
        );
    }
    text
}

/// Panics if the catalog does not list the metric.
pub(super) fn find(name: &str) -> &'static Metric {
    METRICS
        .iter()
        .find(|metric| metric.name == name)
        .unwrap_or_else(|| panic!("{name} is not in the catalog"))
}
