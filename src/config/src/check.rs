//! Checks combinations across sections: each value is valid by itself, but together they cannot
//! work.

use std::path::PathBuf;
use std::time::Duration;

use super::reader::Report;
use super::units::{DAY, write_duration, write_size};
use super::{AckMode, Config, check_mqtt, fields, forward, is_loopback, ranges};
use model::Zone;

/// The longest `bucket.span` with a daily rollup.
const ROLLUP_SPAN_MAX_MS: i64 = 12 * 60 * 60 * 1000;
/// A day is computed from its hours up to this long after `limits.past`: a day may begin 25 hours
/// before its last reading, and the rest is for the time until it is computed.
pub(super) const ROLLUP_MARGIN: Duration = DAY.saturating_mul(2);

pub(super) use super::check_mqtt::complete;

/// Reports combinations that cannot work: when, the keys, what is wrong, and advice.
macro_rules! impossible {
    ($report:expr; $($when:expr => [$($key:expr),+], $what:expr, $advice:expr;)*) => {
        $(if $when {
            $report.impossible(&[$($key),+], $what, $advice);
        })*
    };
}
pub(super) use impossible;

/// Reports every impossible combination.
pub(super) fn combinations(config: &Config, report: &mut Report) {
    ports(config, report);
    check_mqtt::combinations(config, report);
    fields::combinations(config, report);
    ranges::combinations(config, report);
    listening(config, report);
    sizes(config, report);
    times(config, report);
    rollup(config, report);
    forward::combinations(config, report);
    let sensors = &config.sensors;
    let retired_min = 2 * sensors.silent_after;
    impossible! { report;
        sensors.retired_after < retired_min => ["sensors.retired_after", "sensors.silent_after"],
            "a sensor would be retired before or soon after it counts as silent",
            format!("set sensors.retired_after to at least {}", write_duration(retired_min));
    }
}

/// Reports impossible combinations within the section of a port.
fn ports(config: &Config, report: &mut Report) {
    for (path, tls) in [
        ("http.tls", &config.http.tls),
        ("admin.tls", &config.admin.tls),
    ] {
        let files = [&tls.cert_file, &tls.key_file, &tls.client_ca_file];
        check_files(path, "client", files, report);
    }
    for (port, proxies) in [
        ("http", &config.http.proxies),
        ("admin", &config.admin.proxies),
    ] {
        let header = format!("{port}.proxy_header");
        let key = format!("{port}.trusted_proxies");
        impossible! { report;
            proxies.trusted.is_empty() && report.is_set(&header) => [&header, &key],
                format!("no proxy is trusted to send it, because {key} is not set"),
                format!("set {key}, or remove {header}");
        }
    }
    let mqtt = &config.listen.mqtt;
    let files = [&mqtt.cert_file, &mqtt.key_file, &mqtt.client_ca_file];
    check_files("listen.mqtt", "device", files, report);
    let jwt = &config.jwt;
    let is_any_issuer = jwt.issuer.is_none() || jwt.audience.is_empty();
    impossible! { report;
        mqtt.allow_anonymous && mqtt.tokens_file.is_some()
            => ["listen.mqtt.allow_anonymous", "listen.mqtt.tokens_file"],
            "anonymous writing is allowed, but a tokens file is set",
            "remove one of them";
        mqtt.enabled && mqtt.topics.is_empty() => ["listen.mqtt.topics", "listen.mqtt.enabled"],
            "no topics are configured, so no message could be accepted",
            "add [[listen.mqtt.topics]] below it, with filter, topic and format";
        // What the provider issued for any other service would be accepted.
        jwt.is_on() && is_any_issuer => ["jwt.keys_file", "jwt.issuer", "jwt.audience"],
            "without issuer and audience, what the provider issues for other services would be \
             accepted here",
            "set jwt.issuer to the claim `iss` of the JWTs, and jwt.audience to what `aud` \
             contains for this service";
    }
}

/// Checks certificate, key and CA of a port; `who` names the peers in messages.
fn check_files(path: &str, who: &str, files: [&Option<PathBuf>; 3], report: &mut Report) {
    let key = |name: &str| format!("{path}.{name}");
    let [cert_file, key_file, client_ca_file] = files;
    for name in ["client_auth", "client_crl_file"] {
        impossible! { report;
            report.is_set(&key(name)) && client_ca_file.is_none()
                => [&key(name), &key("client_ca_file")],
                "without client_ca_file, client certificates cannot be verified",
                format!("set client_ca_file, or remove {name}");
        }
    }
    check_pair(path, "TLS needs", [cert_file, key_file], report);
    impossible! { report;
        client_ca_file.is_some() && cert_file.is_none()
            => [&key("client_ca_file"), &key("cert_file")],
            format!("without TLS no {who} can present a certificate"),
            "set cert_file and key_file, or remove client_ca_file";
    }
}

/// Checks a certificate and its key. `what` begins the message and names the feature that needs
/// both.
pub(super) fn check_pair(
    path: &str,
    what: &str,
    files: [&Option<PathBuf>; 2],
    report: &mut Report,
) {
    let key = |name: &str| format!("{path}.{name}");
    let (there, missing) = match files.map(Option::is_some) {
        [true, false] => ("cert_file", "key_file"),
        [false, true] => ("key_file", "cert_file"),
        _ => return,
    };
    report.impossible(
        &[&key(there), &key(missing)],
        format!("{what} a certificate and its key, but {missing} is not set"),
        format!("set {missing} too, or remove {there}"),
    );
}

fn listening(config: &Config, report: &mut Report) {
    let http = &config.http;
    let mqtt = &config.listen.mqtt;
    let has_jwt = config.jwt.is_on();
    let is_open = |listen: std::net::SocketAddr| !is_loopback(listen.ip()) && !has_jwt;
    let open = |listen: std::net::SocketAddr| {
        format!("{listen} is not a loopback address, and without tokens anyone could write")
    };
    let jwt_or_anonymous = "anonymous writing is allowed, but JWTs are configured, which every \
        port then requires (or a token)";
    impossible! { report;
        http.enabled && is_open(http.listen) && !http.is_guarded()
            => ["http.listen", "http.tokens_file", "http.allow_anonymous"],
            open(http.listen),
            "set http.tokens_file, listen on 127.0.0.1, or set http.allow_anonymous = true to \
             allow it";
        http.allow_anonymous && http.tokens_file.is_some()
            => ["http.allow_anonymous", "http.tokens_file"],
            "anonymous writing is allowed, but a tokens file is set",
            "remove one of them";
        http.enabled && http.listen == config.admin.listen && http.listen.port() != 0
            => ["admin.listen", "http.listen"],
            "http and admin listen on the same address",
            "set admin.listen to another port, such as 127.0.0.1:8081";
        mqtt.enabled && is_open(mqtt.listen) && !mqtt.is_guarded()
            => ["listen.mqtt.listen", "listen.mqtt.tokens_file", "listen.mqtt.client_ca_file",
                "listen.mqtt.allow_anonymous"],
            open(mqtt.listen),
            "set tokens_file or client_ca_file, listen on 127.0.0.1, or set allow_anonymous = true \
             to allow it";
        http.enabled && http.allow_anonymous && has_jwt
            => ["http.allow_anonymous", "jwt.keys_file"], jwt_or_anonymous, "remove one of them";
        mqtt.enabled && mqtt.allow_anonymous && has_jwt
            => ["listen.mqtt.allow_anonymous", "jwt.keys_file"],
            jwt_or_anonymous, "remove one of them";
        !http.enabled && config.mqtt.is_empty() && !mqtt.enabled => ["http.enabled", "mqtt"],
            "no input is configured: http and listen.mqtt are disabled and there is no [[mqtt]]",
            "set http.enabled = true, add [[mqtt]], or set listen.mqtt.enabled = true";
    }
    let ports = [
        ("http.listen", http.enabled.then_some(http.listen)),
        ("admin.listen", Some(config.admin.listen)),
    ];
    for (key, addr) in ports {
        impossible! { report;
            mqtt.enabled && addr == Some(mqtt.listen) && mqtt.listen.port() != 0
                => ["listen.mqtt.listen", key],
                format!("listen.mqtt.listen and {key} are the same address"),
                "set listen.mqtt.listen to another port, such as 127.0.0.1:1883";
        }
    }
}

fn sizes(config: &Config, report: &mut Report) {
    let Config {
        bucket,
        flush,
        journal,
        limits,
        store,
        ..
    } = config;
    let has_journal = config.ingest.ack == AckMode::Journal;
    impossible! { report;
        bucket.max_bytes > flush.command_max_bytes
            => ["bucket.max_bytes", "flush.command_max_bytes"],
            format!(
                "a page of {} does not fit into a command of {}",
                write_size(bucket.max_bytes),
                write_size(flush.command_max_bytes)
            ),
            "decrease bucket.max_bytes or increase flush.command_max_bytes (at most 12MiB)";
        has_journal && journal.max_bytes / 2 < journal.segment_bytes
            => ["journal.max_bytes", "journal.segment_bytes"],
            format!(
                "{} is less than two segments of {}, and only whole segments can be freed",
                write_size(journal.max_bytes),
                write_size(journal.segment_bytes)
            ),
            "set journal.max_bytes to at least twice journal.segment_bytes";
        limits.bucket_fields_max < limits.fields_max
            => ["limits.bucket_fields_max", "limits.fields_max"],
            "a single reading could have more fields than its whole bucket may have",
            "set limits.bucket_fields_max to at least limits.fields_max";
        flush.commands_max > store.pool_max as usize => ["flush.commands_max", "store.pool_max"],
            format!(
                "{} concurrent commands need more than {} connections",
                flush.commands_max, store.pool_max
            ),
            "set store.pool_max to at least flush.commands_max";
    }
}

fn times(config: &Config, report: &mut Report) {
    let past = config.limits.past;
    if let Some(retention) = config.store.retention {
        impossible! { report;
            retention < past => ["store.retention", "limits.past"],
                format!(
                    "limits.past accepts readings up to {} old, but store.retention removes them \
                     after {}, soon after they are acknowledged",
                    write_duration(past),
                    write_duration(retention)
                ),
                "increase store.retention to at least limits.past, or decrease limits.past";
        }
    }
    let Some(readings) = config.store.retention_readings else {
        return;
    };
    // With columns a late reading is compared with them.
    impossible! { report;
        readings < past && !config.columns.enabled => ["store.retention_readings", "limits.past"],
            format!(
                "limits.past accepts readings up to {} old, but store.retention_readings removes \
                 readings after {}, and no other reading of their hour can be stored then",
                write_duration(past),
                write_duration(readings)
            ),
            "decrease limits.past to at most store.retention_readings, increase \
             store.retention_readings, or set columns.enabled = true";
    }
    if let Some(retention) = config.store.retention {
        impossible! { report;
            readings >= retention => ["store.retention_readings", "store.retention"],
                format!(
                    "store.retention removes hours after {}, with their readings",
                    write_duration(retention)
                ),
                "set store.retention_readings to less than store.retention, or remove it";
        }
    }
}

fn rollup(config: &Config, report: &mut Report) {
    let rollup = &config.rollup;
    if !rollup.days && !config.columns.enabled {
        return;
    }
    let span = config.bucket.span;
    let zone = Zone::from(rollup.zone);
    let is_day = span.ms() > ROLLUP_SPAN_MAX_MS;
    impossible! { report;
        is_day => ["bucket.span", "rollup.days"],
            "with this span a day would be a single bucket",
            "set rollup.days and columns.enabled = false, or use a bucket.span of at most \"12h\"";
    }
    if let Some(day) = zone.misaligned(span) {
        impossible! { report;
            !is_day => ["rollup.zone", "bucket.span"],
                format!(
                    "{} begins within a bucket in {}, and a bucket cannot belong to two days",
                    zone.date(day.start_ms),
                    zone.name()
                ),
                "use a bucket.span that divides the zone's offset from UTC, such as \"15m\" (only \
                 in a new store.database), or another zone";
        }
    }
    let hours = config.store.retention;
    let past = config.limits.past;
    if let Some(hours) = hours {
        impossible! { report;
            hours < past + ROLLUP_MARGIN => ["store.retention", "limits.past", "rollup.days"],
                format!(
                    "store.retention removes hours after {}, but limits.past accepts readings up \
                     to {} old, and their days are computed from all hours of the day",
                    write_duration(hours),
                    write_duration(past)
                ),
                format!(
                    "set store.retention to at least {}, or decrease limits.past",
                    write_duration(past + ROLLUP_MARGIN)
                );
        }
    }
    for (key, what, kept) in [
        ("rollup.retention", "days", rollup.retention),
        ("columns.retention", "columns", config.columns.retention),
    ] {
        let Some(kept) = kept else { continue };
        impossible! { report;
            hours.is_none_or(|hours| kept < hours) => [key, "store.retention"],
                format!(
                    "{what} are removed after {}, before their hours",
                    write_duration(kept)
                ),
                format!("set {key} to at least store.retention, or remove it to keep {what} forever");
        }
    }
}
