//! Orders readings with the time of receipt by their arrival, from their own times only. Pure.
//!
//! Two equal readings of one sensor with the same time of receipt arrived within a short window of
//! each other ([`MOMENT_MS`]). The shard must remember the first until the second can no longer
//! arrive. Otherwise, if the answer to the second one's write is lost, the stored first one would
//! be mistaken for it. The clock of the service may be set at any time, so two times of receipt
//! cannot be compared with each other. Instead, every arrival gets a position on a time line that
//! never goes back:
//! - A time within [`MOMENT_MS`] of the latest one advances the line by the difference, or not at
//!   all if it is earlier.
//! - Any other time means that nothing arrived for long, or that the clock was set. It advances the
//!   line by [`STEP_MS`], so the window ends after a few such times, even if readings are rare.

/// The maximum distance of the arrivals of two readings received in the same millisecond (ms): see
/// `journal::tracker`.
pub(super) const MOMENT_MS: i64 = 5000;
/// By how much a step of the clock, in either direction, advances the line (ms).
const STEP_MS: i64 = MOMENT_MS / 8;

/// The time line.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Arrivals {
    /// The latest time of receipt since the last step.
    latest_ts_ms: i64,
    /// The current end of the line.
    at_ms: i64,
}

impl Arrivals {
    /// Records the arrival of a reading with this time of receipt. Returns its position on the
    /// line.
    pub(super) fn note(&mut self, ts_ms: i64) -> i64 {
        let by_ms = ts_ms.saturating_sub(self.latest_ts_ms);
        if by_ms.unsigned_abs() > MOMENT_MS.unsigned_abs() {
            (self.latest_ts_ms, self.at_ms) = (ts_ms, self.at_ms + STEP_MS);
        } else if by_ms > 0 {
            (self.latest_ts_ms, self.at_ms) = (ts_ms, self.at_ms + by_ms);
        }
        self.at_ms
    }

    /// The current end of the line.
    pub(super) fn at_ms(&self) -> i64 {
        self.at_ms
    }

    /// A reading that arrived at or before this position has no equal reading that can still
    /// arrive.
    pub(super) fn over_ms(&self) -> i64 {
        self.at_ms - MOMENT_MS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(times: &[i64]) -> (Vec<i64>, i64) {
        let mut arrivals = Arrivals::default();
        (
            times.iter().map(|ts_ms| arrivals.note(*ts_ms)).collect(),
            arrivals.over_ms(),
        )
    }

    #[test]
    fn the_window_ends_by_the_times_of_readings_and_not_by_one_step_of_the_clock() {
        let (places, over_ms) =
            places(&[1_000_000, 1_000_100, 1_000_050, 7_000_000, 50, 1_000_060]);
        assert!(
            places.is_sorted() && places.iter().all(|at| *at > over_ms),
            "{places:?}, over {over_ms}"
        );
        let (places, over_ms) = self::places(&[1_000_000, 1_004_000, 1_007_000]);
        assert_eq!(
            places.iter().filter(|at| **at > over_ms).count(),
            2,
            "{places:?}, over {over_ms}"
        );
    }

    #[test]
    fn the_window_ends_even_if_readings_are_rare() {
        let (places, over_ms) = places(&[0i64, 1, 2, 3, 4, 5, 6, 7, 8, 9].map(|n| n * 3_600_000));
        assert!(places[0] <= over_ms, "{places:?}, over {over_ms}");
    }
}
