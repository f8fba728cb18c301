//! How a report writes a time.

use chrono::{DateTime, SecondsFormat};

/// A time as RFC 3339 in UTC, with milliseconds if they are not zero.
pub fn time(ms: i64) -> String {
    match DateTime::from_timestamp_millis(ms) {
        Some(t) => t.to_rfc3339_opts(SecondsFormat::AutoSi, true),
        None => format!("{ms} ms"),
    }
}
