//! Whether acknowledged readings make progress while the store answers. Pure.
//!
//! Two things are watched. *Stalled*: the oldest acknowledged reading that is not stored has been the same for longer than
//! it should take; one bucket is enough for that, and the others may be fine. *Stuck*: readings wait and not a single one
//! has been settled for much longer than that; only a restart may help, so the service manager's watchdog is not fed any
//! more. Time in which the store did not answer does not count: it is the store's then.

use std::time::Duration;

/// How long readings may wait beyond the age at which they are due, while the store answers.
const GRACE: Duration = Duration::from_secs(15);
/// How long nothing at all may be settled, beyond the time after which a bucket that fails is given up.
const STUCK_AFTER: Duration = Duration::from_secs(300);

/// What is seen at one moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Observation {
    /// Names the oldest unstored reading: the same as long as it is the same one. `None`: everything is stored.
    pub(super) oldest: Option<u64>,
    /// Readings settled since the start.
    pub(super) settled: u64,
    /// Whether the store has answered lately.
    pub(super) store_answers: bool,
}

/// What follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ProgressStatus {
    /// How long the oldest reading has been the same, if that is too long (ms).
    pub(super) stalled_ms: Option<u64>,
    /// Nothing is settled any more.
    pub(super) stuck: bool,
}

/// Watches the progress.
#[derive(Debug)]
pub(super) struct Progress {
    stalled_after_ms: u64,
    stuck_after_ms: u64,
    /// What the oldest reading was, and since when.
    oldest: (Option<u64>, u64),
    /// How many were settled, and since when.
    settled: (u64, u64),
}

impl Progress {
    /// `max_age`: after which a reading is written at the latest; `quarantine_after`: after which a failing bucket is given
    /// up.
    pub(super) fn new(max_age: Duration, quarantine_after: Duration) -> Progress {
        let ms = |d: Duration| d.as_millis() as u64;
        Progress {
            stalled_after_ms: ms(max_age + GRACE),
            stuck_after_ms: ms(max_age + quarantine_after + STUCK_AFTER),
            oldest: (None, 0),
            settled: (0, 0),
        }
    }

    /// Takes an observation in; `now_ms` is monotonic.
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
            stalled_ms: (stalled_ms > self.stalled_after_ms).then_some(stalled_ms),
            stuck: now_ms - self.settled.1 > self.stuck_after_ms,
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
        Observation { oldest: Some(oldest), settled, store_answers: true }
    }

    #[test]
    fn one_reading_that_stays_is_a_stall_and_not_stuck_while_others_are_settled() {
        let mut progress = progress();
        for s in 0..2000 {
            let status = progress.observe(seen(7, s), s * 1000);
            assert_eq!(status.stalled_ms, (s > 30).then_some(s * 1000), "{s} s");
            assert!(!status.stuck);
        }
        assert_eq!(progress.observe(seen(8, 2000), 2_000_000), ProgressStatus::default(), "the oldest is another one");
    }

    #[test]
    fn nothing_settled_for_longer_than_a_bucket_may_fail_is_stuck() {
        let mut progress = progress();
        progress.observe(seen(7, 1), 0);
        assert!(!progress.observe(seen(7, 1), 915_000).stuck);
        assert!(progress.observe(seen(7, 1), 915_001).stuck);
    }

    #[test]
    fn a_store_that_is_away_and_a_service_at_rest_are_neither() {
        let mut progress = progress();
        for s in 0..5000 {
            let away = Observation { store_answers: false, ..seen(7, 1) };
            assert_eq!(progress.observe(away, s * 1000), ProgressStatus::default());
        }
        let rest = Observation { oldest: None, ..seen(0, 1) };
        assert_eq!(progress.observe(rest, 9_000_000), ProgressStatus::default());
        assert_eq!(progress.observe(seen(8, 1), 9_010_000), ProgressStatus::default(), "it begins to wait now");
    }
}
