//! Reads `[quota]`: how much one sender may send.

use std::time::Duration;

use super::reader::Section;
use super::units::{HOUR, SECOND};

/// `[quota]`: how much one sender may send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quota {
    /// `readings_per_second`; `None`: any number.
    pub readings_per_second: Option<u64>,
    /// `bytes_per_second`: bytes of bodies and messages, before decompression; `None`: any number.
    pub bytes_per_second: Option<u64>,
    /// `burst`: so much of both rates may be sent at once after a pause (default 10s).
    pub burst: Duration,
    /// `connections_max`: MQTT connections; `None`: any number.
    pub connections_max: Option<usize>,
    /// `requests_max`: concurrent HTTP requests (default 64); `None`: any number.
    pub requests_max: Option<usize>,
    /// `journal_share_percent`: unstored bytes in the journal, in percent of `journal.max_bytes`
    /// (default 25).
    pub journal_share_percent: u64,
}

pub(super) fn read(mut s: Section<'_>) -> Quota {
    const MOST: u64 = 1_000_000_000_000;
    let limit = |n: u64| (n > 0).then_some(n);
    let quota = Quota {
        readings_per_second: limit(s.count("readings_per_second", 0, 0..=MOST)),
        bytes_per_second: limit(s.size("bytes_per_second", 0, 0..=MOST)),
        burst: s.duration("burst", 10 * SECOND, SECOND..=HOUR),
        connections_max: Some(s.count("connections_max", 0, 0..=1_000_000)).filter(|n| *n > 0),
        requests_max: Some(s.count("requests_max", 64, 0..=65_536)).filter(|n| *n > 0),
        journal_share_percent: s.count("journal_share_percent", 25, 1..=100),
    };
    s.end();
    quota
}
