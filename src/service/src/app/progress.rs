//! Whether acknowledged readings make progress while the store answers. Pure.
//!
//! There are two conditions. *Stalled*: the oldest acknowledged reading that is not stored has been
//! the same for longer than it should take. One bucket is enough for that; the others may be fine.
//! *Stuck*: readings are waiting and none has been settled for much longer than that. Only a
//! restart may help, so the service manager's watchdog is no longer fed. Time in which the store
//! does not answer counts for neither.

use std::time::Duration;

/// Time that readings may wait beyond the age at which they are due, while the store answers.
const GRACE: Duration = Duration::from_secs(15);
/// Time without any settled reading, beyond the time after which a failing bucket is given up.
const STUCK_AFTER: Duration = Duration::from_secs(300);

/// The state at one moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Observation {
    /// Identifies the oldest unstored reading: changes when another one becomes the oldest. `None`:
    /// everything is stored.
    pub(super) oldest: Option<u64>,
    /// Readings settled since the start.
    pub(super) settled: u64,
    /// Whether the store has answered lately.
    pub(super) store_answers: bool,
    /// By how much readings may now be older than `max_age`, because the store is busy (ms).
    pub(super) held_ms: u64,
}

/// The result of an observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ProgressStatus {
    /// If too long: how long the oldest reading has been the same (ms).
    pub(super) stalled_ms: Option<u64>,
    /// Readings are no longer settled.
    pub(super) stuck: bool,
}

/// Tracks progress over time.
#[derive(Debug)]
pub(super) struct Progress {
    stalled_after_ms: u64,
    stuck_after_ms: u64,
    /// The oldest reading, and since when (monotonic ms).
    oldest: (Option<u64>, u64),
    /// The number of settled readings, and since when (monotonic ms).
    settled: (u64, u64),
}

impl Progress {
    /// `max_age`: a reading is written after this time at the latest; `quarantine_after`: a failing
    /// bucket is given up after this time.
    pub(super) fn new(max_age: Duration, quarantine_after: Duration) -> Progress {
        let ms = |d: Duration| d.as_millis() as u64;
        Progress {
            stalled_after_ms: ms(max_age + GRACE),
            stuck_after_ms: ms(max_age + quarantine_after + STUCK_AFTER),
            oldest: (None, 0),
            settled: (0, 0),
        }
    }

    /// Adds an observation; `now_ms` is monotonic.
    pub(super) fn observe(&mut self, seen: Observation, now_ms: u64) -> ProgressStatus {
        let waits = seen.oldest.is_some() && seen.store_answers;
        if !waits || seen.oldest != self.oldest.0 {
            self.oldest = (seen.oldest, now_ms);
        }
        if !waits || seen.settled != self.settled.0 {
            self.settled = (seen.settled, now_ms);
        }
        let stalled_ms = now_ms - self.oldest.1;
        ProgressStatus {
            stalled_ms: (stalled_ms > self.stalled_after_ms + seen.held_ms).then_some(stalled_ms),
            stuck: now_ms - self.settled.1 > self.stuck_after_ms + seen.held_ms,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress() -> Progress {
        Progress::new(Duration::from_secs(15), Duration::from_secs(600))
    }

    fn seen(oldest: u64, settled: u64) -> Observation {
        Observation {
            oldest: Some(oldest),
            settled,
            store_answers: true,
            held_ms: 0,
        }
    }

    #[test]
    fn readings_that_are_held_while_the_store_is_busy_are_no_stall() {
        let mut progress = progress();
        for s in 0..2000 {
            let status = progress.observe(
                Observation {
                    held_ms: 285_000,
                    ..seen(7, 1)
                },
                s * 1000,
            );
            assert_eq!(status.stalled_ms, (s > 315).then_some(s * 1000), "{s} s");
            assert_eq!(status.stuck, s > 915 + 285, "{s} s");
        }
    }

    #[test]
    fn one_old_reading_is_a_stall_and_not_stuck_while_others_are_settled() {
        let mut progress = progress();
        for s in 0..2000 {
            let status = progress.observe(seen(7, s), s * 1000);
            assert_eq!(status.stalled_ms, (s > 30).then_some(s * 1000), "{s} s");
            assert!(!status.stuck);
        }
        assert_eq!(
            progress.observe(seen(8, 2000), 2_000_000),
            ProgressStatus::default(),
            "the oldest is another one"
        );
    }

    #[test]
    fn nothing_settled_for_longer_than_a_bucket_may_fail_is_stuck() {
        let mut progress = progress();
        progress.observe(seen(7, 1), 0);
        assert!(!progress.observe(seen(7, 1), 915_000).stuck);
        assert!(progress.observe(seen(7, 1), 915_001).stuck);
    }

    #[test]
    fn an_unreachable_store_and_an_idle_service_are_neither_stall_nor_stuck() {
        let mut progress = progress();
        for s in 0..5000 {
            let away = Observation {
                store_answers: false,
                ..seen(7, 1)
            };
            assert_eq!(progress.observe(away, s * 1000), ProgressStatus::default());
        }
        let rest = Observation {
            oldest: None,
            ..seen(0, 1)
        };
        assert_eq!(progress.observe(rest, 9_000_000), ProgressStatus::default());
        assert_eq!(
            progress.observe(seen(8, 1), 9_010_000),
            ProgressStatus::default(),
            "it begins to wait now"
        );
    }
}
