//! Checks combinations across sections: each value is valid by itself, but together they cannot work.

use super::reader::Report;
use super::units::{write_duration, write_size};
use super::{AckMode, Config};

/// Reports every impossible combination.
pub(super) fn combinations(config: &Config, report: &mut Report) {
    listening(config, report);
    sizes(config, report);
    counts(config, report);
    times(config, report);
}

fn listening(config: &Config, report: &mut Report) {
    let http = &config.http;
    if http.enabled && !http.listen.ip().is_loopback() && !http.is_guarded() {
        report.impossible(
            &["http.listen", "http.tokens_file", "http.allow_anonymous"],
            format!("{} is not a loopback address, and without tokens anyone could write", http.listen),
            "set http.tokens_file, listen on 127.0.0.1, or set http.allow_anonymous = true to allow it",
        );
    }
    if http.allow_anonymous && http.tokens_file.is_some() {
        report.impossible(
            &["http.allow_anonymous", "http.tokens_file"],
            "anonymous writing is allowed, but a tokens file is set",
            "remove one of them",
        );
    }
    if http.enabled && http.listen == config.admin.listen && http.listen.port() != 0 {
        report.impossible(
            &["admin.listen", "http.listen"],
            "http and admin listen on the same address",
            "set admin.listen to another port, such as 127.0.0.1:8081",
        );
    }
    let mqtt = &config.listen.mqtt;
    let ports = [("http.listen", http.enabled.then_some(http.listen)), ("admin.listen", Some(config.admin.listen))];
    for (key, addr) in ports.into_iter().filter(|_| mqtt.enabled) {
        if addr == Some(mqtt.listen) && mqtt.listen.port() != 0 {
            report.impossible(
                &["listen.mqtt.listen", key],
                format!("listen.mqtt.listen and {key} are the same address"),
                "set listen.mqtt.listen to another port, such as 127.0.0.1:1883",
            );
        }
    }
    if !http.enabled && config.mqtt.is_empty() && !mqtt.enabled {
        report.impossible(
            &["http.enabled", "mqtt"],
            "no input is configured: http and listen.mqtt are disabled and there is no [[mqtt]]",
            "set http.enabled = true, add [[mqtt]], or set listen.mqtt.enabled = true",
        );
    }
}

fn sizes(config: &Config, report: &mut Report) {
    let (bucket, flush, journal) = (&config.bucket, &config.flush, &config.journal);
    if bucket.max_bytes > flush.command_max_bytes {
        report.impossible(
            &["bucket.max_bytes", "flush.command_max_bytes"],
            format!(
                "a page of {} does not fit into a command of {}",
                write_size(bucket.max_bytes),
                write_size(flush.command_max_bytes)
            ),
            "decrease bucket.max_bytes or increase flush.command_max_bytes (at most 12MiB)",
        );
    }
    if config.ingest.ack == AckMode::Journal && journal.max_bytes / 2 < journal.segment_bytes {
        report.impossible(
            &["journal.max_bytes", "journal.segment_bytes"],
            format!(
                "{} is less than two segments of {}, and only whole segments can be freed",
                write_size(journal.max_bytes),
                write_size(journal.segment_bytes)
            ),
            "set journal.max_bytes to at least twice journal.segment_bytes",
        );
    }
}

fn counts(config: &Config, report: &mut Report) {
    let limits = &config.limits;
    if limits.bucket_fields_max < limits.fields_max {
        report.impossible(
            &["limits.bucket_fields_max", "limits.fields_max"],
            "a single reading could have more fields than its whole bucket may have",
            "set limits.bucket_fields_max to at least limits.fields_max",
        );
    }
    let (flush, store) = (&config.flush, &config.store);
    if flush.backoff_min > flush.backoff_max {
        report.impossible(
            &["flush.backoff_min", "flush.backoff_max"],
            "the first wait is longer than the longest one",
            "set flush.backoff_min to at most flush.backoff_max",
        );
    }
    if flush.commands_max > store.pool_max as usize {
        report.impossible(
            &["flush.commands_max", "store.pool_max"],
            format!("{} concurrent commands need more than {} connections", flush.commands_max, store.pool_max),
            "set store.pool_max to at least flush.commands_max",
        );
    }
}

fn times(config: &Config, report: &mut Report) {
    let past = config.limits.past;
    if let Some(retention) = config.store.retention.filter(|retention| *retention < past) {
        report.impossible(
            &["store.retention", "limits.past"],
            format!(
                "limits.past accepts readings up to {} old, but store.retention removes them after {}, soon after they \
                 are acknowledged",
                write_duration(past),
                write_duration(retention)
            ),
            "increase store.retention to at least limits.past, or decrease limits.past",
        );
    }
}
