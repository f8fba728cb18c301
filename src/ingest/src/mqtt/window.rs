//! Monitors the window of unacknowledged messages: the age of the oldest, how long the window has
//! been full, and the cause if that lasts. Pure.
//!
//! When the window is full the broker stops sending, so throughput is the window divided by the
//! time of an acknowledgement. Either that time is too long, for one of a few reasons that can be
//! distinguished here, or the window is too small.

use config::AckMode;
use journal::admission::AdmissionError;

const SAMPLE_MS: u64 = 1000;
/// Thresholds for a log line: the age of the oldest message, and the share of recent time that the
/// window was full.
const OLD_SECONDS: f64 = 5.0;
const FULL_SHARE: f64 = 0.5;
/// Weight of one sample in the moving average of the full share.
const WEIGHT: f64 = 0.2;
/// Acknowledgements faster than this are not the cause.
const QUICK_SECONDS: f64 = 1.0;
/// Interval of log lines.
const LOG_MS: u64 = 60_000;

/// Measurements since the previous sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Sample {
    /// Unacknowledged messages.
    pub(super) pending: usize,
    /// Age of the oldest of them.
    pub(super) oldest_seconds: f64,
    /// Whole seconds for which the window was full; fractions are carried into the next one.
    pub(super) full_seconds: u64,
    /// A log line is due: a threshold is exceeded, and none was written for a while.
    pub(super) log_due: bool,
}

#[derive(Debug)]
pub(super) struct Window {
    size: usize,
    full_since_ms: Option<u64>,
    /// Not yet part of a sample.
    full_ms: u64,
    sampled_ms: u64,
    /// Share of recent time that the window was full, 0 to 1.
    share: f64,
    logged_ms: Option<u64>,
}

impl Window {
    /// A window of `size` messages.
    pub(super) fn new(size: usize) -> Window {
        Window {
            size,
            full_since_ms: None,
            full_ms: 0,
            sampled_ms: 0,
            share: 0.0,
            logged_ms: None,
        }
    }

    /// Records the number of waiting messages and the receipt time of the oldest. Call at changes,
    /// and once a second without changes.
    pub(super) fn observe(
        &mut self,
        pending: usize,
        oldest_ms: Option<u64>,
        now_ms: u64,
    ) -> Option<Sample> {
        let is_full = pending >= self.size;
        if let Some(since) = self.full_since_ms.take() {
            self.full_ms += now_ms.saturating_sub(since);
        }
        self.full_since_ms = is_full.then_some(now_ms);
        let passed_ms = now_ms.saturating_sub(self.sampled_ms);
        if passed_ms < SAMPLE_MS {
            return None;
        }
        self.sampled_ms = now_ms;
        let share = (self.full_ms as f64 / passed_ms as f64).min(1.0);
        self.share += (share - self.share) * WEIGHT;
        let full_seconds = self.full_ms / 1000;
        self.full_ms %= 1000;
        let oldest_seconds =
            oldest_ms.map_or(0.0, |since| now_ms.saturating_sub(since) as f64 / 1000.0);
        let is_bad = oldest_seconds >= OLD_SECONDS || self.share >= FULL_SHARE;
        let log_due = is_bad
            && self
                .logged_ms
                .is_none_or(|at| now_ms.saturating_sub(at) >= LOG_MS);
        if log_due {
            self.logged_ms = Some(now_ms);
        }
        Some(Sample {
            pending,
            oldest_seconds,
            full_seconds,
            log_due,
        })
    }
}

/// The cause of the wait, for the log.
pub(super) fn cause(
    admission: Result<(), AdmissionError>,
    ack: AckMode,
    oldest_seconds: f64,
) -> &'static str {
    match (admission, ack) {
        (Err(AdmissionError::Full), _) => {
            "the journal is full: the store is too slow or unreachable (speed it up, or increase \
             journal.max_bytes), or its disk refuses writes; /readyz says which"
        }
        _ if oldest_seconds < QUICK_SECONDS => {
            "the window is too small for the broker's rate: acknowledgements are fast; increase \
             mqtt.window (with protocol = 4 the broker's own limit)"
        }
        (_, AckMode::Stored) => {
            "the store is slow, and acknowledgements wait for it (ingest.ack = \"stored\")"
        }
        (_, AckMode::Journal) => {
            "the journal's disk is slow (see journal_sync_seconds), or the machine is overloaded"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_time_is_counted_in_whole_seconds_and_nothing_of_it_is_lost() {
        let mut window = Window::new(10);
        let mut reported = 0;
        let mut now = 0;
        // 700 ms of each second.
        for _ in 0..100 {
            reported += window
                .observe(10, Some(now), now)
                .map_or(0, |s| s.full_seconds);
            now += 700;
            reported += window
                .observe(9, Some(now), now)
                .map_or(0, |s| s.full_seconds);
            now += 300;
        }
        assert!((68..=70).contains(&reported), "{reported}");
    }

    #[test]
    fn samples_come_once_a_second_and_lines_once_a_minute() {
        let mut window = Window::new(2);
        let samples: Vec<Sample> = (0..=120_000)
            .step_by(100)
            .filter_map(|now| window.observe(2, Some(0), now))
            .collect();
        assert_eq!(samples.len(), 120);
        assert_eq!(samples.iter().filter(|s| s.log_due).count(), 2);
        assert_eq!(samples.iter().map(|s| s.full_seconds).sum::<u64>(), 120);
        assert_eq!(samples[119].oldest_seconds, 120.0);
        let mut idle = Window::new(2);
        assert!(
            (0..=600_000)
                .step_by(500)
                .filter_map(|now| idle.observe(1, Some(now), now))
                .all(|s| !s.log_due)
        );
    }

    #[test]
    fn an_old_message_is_logged_even_if_the_window_is_not_full() {
        let mut window = Window::new(100);
        let first = (0..)
            .step_by(1000)
            .find(|now| window.observe(1, Some(0), *now).is_some_and(|s| s.log_due));
        assert_eq!(first, Some(5000));
    }

    #[test]
    fn causes_are_distinguished() {
        let journal = AckMode::Journal;
        for (admission, ack, oldest, part) in [
            (Err(AdmissionError::Full), journal, 9.0, "journal is full"),
            (Err(AdmissionError::Full), journal, 0.1, "journal is full"),
            (Ok(()), journal, 9.0, "disk"),
            (Ok(()), AckMode::Stored, 9.0, "store is slow"),
            (Ok(()), journal, 0.1, "window is too small"),
            (Ok(()), AckMode::Stored, 0.1, "window is too small"),
        ] {
            assert!(cause(admission, ack, oldest).contains(part), "{part}");
        }
    }
}
