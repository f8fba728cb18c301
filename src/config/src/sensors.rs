//! `[sensors]`: when a sensor counts as silent.

use std::time::Duration;

use super::reader::Section;
use super::units::{DAY, SECOND};

/// `[sensors]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sensors {
    /// `silent_after`: a sensor is silent if nothing of it has arrived for this long (default 1d).
    pub silent_after: Duration,
    /// `retired_after`: a sensor of which nothing has arrived for this long is no longer counted as
    /// silent (default 30d).
    pub retired_after: Duration,
}

pub(super) fn read(mut s: Section<'_>) -> Sensors {
    let sensors = Sensors {
        silent_after: s.duration("silent_after", DAY, 4 * SECOND..=366 * DAY),
        retired_after: s.duration("retired_after", 30 * DAY, 10 * SECOND..=36_500 * DAY),
    };
    s.end();
    sensors
}
