//! `[rollup]`: daily summaries.

use std::time::Duration;

use chrono_tz::Tz;

use super::mapping;
use super::reader::Section;
use super::units::{DAY, GIB, HOUR, MIB, MINUTE};

/// MongoDB stores `expireAfterSeconds` in 32 bit, which is 24,855 days and a bit.
pub(super) const RETENTION_MAX: Duration = DAY.saturating_mul(24_855);

/// `[rollup]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rollup {
    /// `days`: whether `sensor_days` is maintained (default false).
    pub days: bool,
    /// `zone`: the time zone of the days (default UTC).
    pub zone: Tz,
    /// `retention`: how long days are kept; if absent, forever.
    pub retention: Option<Duration>,
    /// `settle`: the least time between the end of a day and its computation (default 10m).
    pub settle: Duration,
    /// `late`: a day that has ended is computed when no reading of it has arrived for this time
    /// (default 1m).
    pub late: Duration,
    /// `max_bytes`: memory for days with changes (default 256MiB).
    pub max_bytes: u64,
}

pub(super) fn read(mut s: Section<'_>) -> Rollup {
    let rollup = Rollup {
        days: s.flag("days", false),
        zone: s.parse("zone", mapping::zone).unwrap_or(Tz::UTC),
        retention: s.duration_opt("retention", DAY..=RETENTION_MAX),
        settle: s.duration("settle", 10 * MINUTE, Duration::from_millis(100)..=6 * HOUR),
        late: s.duration("late", MINUTE, Duration::from_millis(100)..=HOUR),
        max_bytes: s.size("max_bytes", 256 * MIB, MIB..=1024 * GIB),
    };
    s.end();
    rollup
}
