//! Combinations across sections that cannot work, though each value is right by itself.

use super::reader::Report;
use super::units::{write_duration, write_size};
use super::{AckMode, Config};

/// Notes every impossible combination.
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
            format!("{} can be reached from elsewhere, and without tokens anyone could write", http.listen),
            "set http.tokens_file, listen on 127.0.0.1, or set http.allow_anonymous = true if that is what you want",
        );
    }
    if http.allow_anonymous && http.tokens_file.is_some() {
        report.impossible(
            &["http.allow_anonymous", "http.tokens_file"],
            "anyone is let in, and tokens are asked for",
            "remove http.allow_anonymous, or http.tokens_file",
        );
    }
    if http.enabled && http.listen == config.admin.listen && http.listen.port() != 0 {
        report.impossible(
            &["admin.listen", "http.listen"],
            "http and admin listen on the same address",
            "give admin.listen another port, such as 127.0.0.1:8081",
        );
    }
    let mqtt = &config.listen.mqtt;
    let ports = [("http.listen", http.enabled.then_some(http.listen)), ("admin.listen", Some(config.admin.listen))];
    for (key, addr) in ports.into_iter().filter(|_| mqtt.enabled) {
        if addr == Some(mqtt.listen) && mqtt.listen.port() != 0 {
            report.impossible(
                &["listen.mqtt.listen", key],
                format!("listen.mqtt and {key} are the same address"),
                "give listen.mqtt.listen another port, such as 127.0.0.1:1883",
            );
        }
    }
    if !http.enabled && config.mqtt.is_empty() && !mqtt.enabled {
        report.impossible(
            &["http.enabled", "mqtt"],
            "http is off and there is no broker, so no reading can ever arrive",
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
                "a page of {} does not fit a command of {}",
                write_size(bucket.max_bytes),
                write_size(flush.command_max_bytes)
            ),
            "make bucket.max_bytes smaller, or flush.command_max_bytes larger (at most 12MiB)",
        );
    }
    if config.ingest.ack == AckMode::Journal && journal.max_bytes / 2 < journal.segment_bytes {
        report.impossible(
            &["journal.max_bytes", "journal.segment_bytes"],
            format!(
                "{} does not hold two segments of {}, and only whole segments can be given back",
                write_size(journal.max_bytes),
                write_size(journal.segment_bytes)
            ),
            "make journal.max_bytes at least twice journal.segment_bytes",
        );
    }
}

fn counts(config: &Config, report: &mut Report) {
    let limits = &config.limits;
    if limits.bucket_fields_max < limits.fields_max {
        report.impossible(
            &["limits.bucket_fields_max", "limits.fields_max"],
            "one reading may have more fields than all readings of its bucket together",
            "make limits.bucket_fields_max at least limits.fields_max",
        );
    }
    let (flush, store) = (&config.flush, &config.store);
    if flush.backoff_min > flush.backoff_max {
        report.impossible(
            &["flush.backoff_min", "flush.backoff_max"],
            "the first wait is longer than the longest",
            "make flush.backoff_min at most flush.backoff_max",
        );
    }
    if flush.commands_max > store.pool_max as usize {
        report.impossible(
            &["flush.commands_max", "store.pool_max"],
            format!("{} commands at once cannot share {} connections", flush.commands_max, store.pool_max),
            "make store.pool_max at least flush.commands_max",
        );
    }
}

fn times(config: &Config, report: &mut Report) {
    let past = config.limits.past;
    if let Some(retention) = config.store.retention.filter(|retention| *retention < past) {
        report.impossible(
            &["store.retention", "limits.past"],
            format!(
                "limits.past accepts readings that are {} old, and store.retention removes them after {}, soon after they \
                 were acknowledged",
                write_duration(past),
                write_duration(retention)
            ),
            "make store.retention at least limits.past, or limits.past shorter",
        );
    }
}
