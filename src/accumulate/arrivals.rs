//! How long ago readings with the time of receipt came, as seen in their own times. Pure.
//!
//! Two equal readings of one sensor that got the same time of receipt came within a moment of each other. What is known of
//! the first must be kept until the second can no longer come, or the second is taken for the first when its answer is
//! lost. The service's clock may be set at any time, so two times of receipt cannot be compared with each other. Arrivals
//! can: each one is put on a time line that only goes forward.
//! - A time within [`MOMENT_MS`] of the latest one moves the line on by the difference, or not at all if it is earlier.
//! - Any other time means that nothing came for long, or that the clock was set. It moves the line on by [`STEP_MS`], so
//!   after a few of them a moment is over, however rarely readings come.

/// Two readings received in the same millisecond come at most this far apart (ms): see `journal::tracker`.
pub(super) const MOMENT_MS: i64 = 5000;
/// What a step of the clock counts for, in either direction (ms).
const STEP_MS: i64 = MOMENT_MS / 8;

/// The time line.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Arrivals {
    /// The latest time of receipt since the last step.
    latest_ts_ms: i64,
    /// Where the line is now.
    at_ms: i64,
}

impl Arrivals {
    /// A reading with this time of receipt comes. Returns where on the line.
    pub(super) fn note(&mut self, ts_ms: i64) -> i64 {
        let by_ms = ts_ms.saturating_sub(self.latest_ts_ms);
        if by_ms.unsigned_abs() > MOMENT_MS.unsigned_abs() {
            (self.latest_ts_ms, self.at_ms) = (ts_ms, self.at_ms + STEP_MS);
        } else if by_ms > 0 {
            (self.latest_ts_ms, self.at_ms) = (ts_ms, self.at_ms + by_ms);
        }
        self.at_ms
    }

    /// Where the line is now.
    pub(super) fn at_ms(&self) -> i64 {
        self.at_ms
    }

    /// What came at or before this place on the line has no equal that is still to come.
    pub(super) fn over_ms(&self) -> i64 {
        self.at_ms - MOMENT_MS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(times: &[i64]) -> (Vec<i64>, i64) {
        let mut arrivals = Arrivals::default();
        (times.iter().map(|ts_ms| arrivals.note(*ts_ms)).collect(), arrivals.over_ms())
    }

    #[test]
    fn a_moment_is_over_by_the_times_and_not_by_a_step_of_the_clock() {
        let (places, over_ms) = places(&[1_000_000, 1_000_100, 1_000_050, 7_000_000, 50, 1_000_060]);
        assert!(places.is_sorted() && places.iter().all(|at| *at > over_ms), "{places:?}, over {over_ms}");
        let (places, over_ms) = self::places(&[1_000_000, 1_004_000, 1_007_000]);
        assert_eq!(places.iter().filter(|at| **at > over_ms).count(), 2, "{places:?}, over {over_ms}");
    }

    #[test]
    fn a_moment_ends_however_rarely_readings_come() {
        let (places, over_ms) = places(&[0i64, 1, 2, 3, 4, 5, 6, 7, 8, 9].map(|n| n * 3_600_000));
        assert!(places[0] <= over_ms, "{places:?}, over {over_ms}");
    }
}
