//! Whether messages arrive so fast that they should be read in groups. Pure.
//!
//! A broker sends each message by itself, and each one that arrives at an idle connection wakes its
//! task. At 50,000 messages a second the wake-ups cost more than the messages. A pause between two
//! reads lets about as many messages as arrive in a millisecond share one wake-up.
//!
//! At a low rate that would save little. Nor does it pay if the broker waits for acknowledgements:
//! with a window of 20 messages each pause would delay the next 20. Such a connection does not
//! reach [`BUSY_PER_SECOND`].

/// From this rate on, reads pause.
const BUSY_PER_SECOND: u64 = 20_000;
/// The rate is determined over at least this time.
const WINDOW_MS: u64 = 100;

/// The rate of a connection's messages.
#[derive(Debug, Default)]
pub(super) struct Pace {
    since_ms: u64,
    messages: u64,
    is_busy: bool,
}

impl Pace {
    /// Counts a message; returns whether reads should pause, if that has changed.
    pub(super) fn message(&mut self, now_ms: u64) -> Option<bool> {
        self.messages += 1;
        let passed_ms = now_ms.saturating_sub(self.since_ms);
        if passed_ms < WINDOW_MS {
            return None;
        }
        let is_busy = self.messages * 1000 >= BUSY_PER_SECOND * passed_ms;
        (self.since_ms, self.messages) = (now_ms, 0);
        let has_changed = std::mem::replace(&mut self.is_busy, is_busy) != is_busy;
        has_changed.then_some(is_busy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The changes while `per_ms` messages arrive in each of these milliseconds.
    fn changes(pace: &mut Pace, per_ms: u64, during_ms: std::ops::Range<u64>) -> Vec<(u64, bool)> {
        during_ms
            .flat_map(|ms| std::iter::repeat_n(ms, per_ms as usize))
            .filter_map(|ms| Some((ms, pace.message(ms)?)))
            .collect()
    }

    #[test]
    fn only_a_high_rate_is_busy() {
        let mut pace = Pace::default();
        assert_eq!(changes(&mut pace, 19, 0..1000), []);
        assert_eq!(changes(&mut pace, 21, 1000..2000), [(1100, true)]);
        assert_eq!(changes(&mut pace, 19, 2000..3000), [(2100, false)]);
    }

    #[test]
    fn the_first_message_after_a_quiet_time_ends_it() {
        let mut pace = Pace::default();
        assert!(changes(&mut pace, 50, 0..1000).ends_with(&[(100, true)]));
        assert_eq!(pace.message(60_000), Some(false));
    }
}
