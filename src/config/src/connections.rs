//! The limits and time limits of a port's connections, which have the same keys on every port.

use std::time::Duration;

use super::reader::Section;
use super::units::{HOUR, MINUTE, MS, SECOND};

/// Limits on the connections of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connections {
    /// `connections_max`: in total.
    pub max: usize,
    /// `connections_per_address_max`: of one address (IPv6: of one /64); 0 (default): a quarter of
    /// `max`.
    pub per_address_max: usize,
    /// `failed_auth_max`: failed authentications of an address within a minute (default 30) after
    /// which it is paused; 0: no limit.
    pub failed_auth_max: u32,
    /// `failed_auth_pause`: how long (default 30s).
    pub failed_auth_pause: Duration,
}

impl Connections {
    /// The limit for one address.
    pub fn per_address(&self) -> usize {
        let quarter = self.max.div_ceil(4);
        if self.per_address_max == 0 {
            quarter
        } else {
            self.per_address_max
        }
    }
}

/// Time limits of the connections of an HTTP port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpTimes {
    /// `header_timeout`: for the head of a request, from its first byte (default 10s).
    pub header_timeout: Duration,
    /// `keep_alive`: how long a connection may be idle between two requests (default 75s).
    pub keep_alive: Duration,
    /// `write_timeout`: how long a response may make no progress (default 10s).
    pub write_timeout: Duration,
}

/// Reads the limits; `max` is the default of `connections_max`.
pub(super) fn connections(s: &mut Section<'_>, max: usize) -> Connections {
    Connections {
        max: s.count("connections_max", max, 1..=1_000_000),
        per_address_max: s.count("connections_per_address_max", 0, 0..=1_000_000),
        failed_auth_max: s.count("failed_auth_max", 30, 0..=1_000_000),
        failed_auth_pause: s.duration("failed_auth_pause", 30 * SECOND, MS..=HOUR),
    }
}

/// Reads the time limits of an HTTP port.
pub(super) fn http_times(s: &mut Section<'_>) -> HttpTimes {
    HttpTimes {
        header_timeout: s.duration("header_timeout", 10 * SECOND, MS..=10 * MINUTE),
        keep_alive: s.duration("keep_alive", 75 * SECOND, MS..=HOUR),
        write_timeout: s.duration("write_timeout", 10 * SECOND, MS..=10 * MINUTE),
    }
}
