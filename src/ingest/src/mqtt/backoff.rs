//! The wait before the next connection attempt.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(30);
/// A session that ends earlier is short. Longer than the longest wait: two clients that take over
/// each other's session each live as long as the other one waits.
pub(super) const SHORT: Duration = Duration::from_secs(60);

/// Doubles from 100 ms to 30 s with each attempt that fails, and with each session in a row that is
/// lost soon after it began. Each wait is shortened by a random part of up to half, so that many
/// instances do not reconnect together.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    tries: u32,
    short_sessions: u32,
}

impl Backoff {
    pub(super) fn wait(&mut self) -> Duration {
        let doublings = self.tries.max(self.short_sessions).min(16);
        let whole = FIRST.saturating_mul(1 << doublings).min(LONGEST);
        self.tries += 1;
        whole.mul_f64(1.0 - fastrand::f64() / 2.0)
    }

    /// The broker accepted the session, which then did something useful: attempts start again from
    /// 100 ms.
    pub(super) fn reset(&mut self) {
        self.tries = 0;
    }

    /// A session was lost that lasted this long.
    pub(super) fn lost(&mut self, lasted: Duration) {
        if lasted < SHORT {
            self.short_sessions += 1;
        } else {
            *self = Backoff::default();
        }
    }

    /// Sessions in a row that were lost soon.
    pub(super) fn short_sessions(&self) -> u32 {
        self.short_sessions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_their_limit_and_start_again() {
        let mut backoff = Backoff::default();
        let first = backoff.wait();
        assert!(first >= FIRST / 2 && first <= FIRST);
        let last = (0..40).map(|_| backoff.wait()).last().unwrap();
        assert!(last >= LONGEST / 2 && last <= LONGEST);
        backoff.reset();
        assert!(backoff.wait() <= FIRST);
    }

    /// Two clients take over each other's session, and each acknowledges messages.
    #[test]
    fn short_sessions_make_waits_grow_although_each_was_useful() {
        let mut backoff = Backoff::default();
        let mut waited = Duration::ZERO;
        let mut attempts = 0;
        while waited < Duration::from_secs(40) {
            backoff.reset();
            backoff.lost(Duration::from_millis(200));
            waited += backoff.wait();
            attempts += 1;
        }
        assert!(attempts <= 11, "{attempts}");
        assert_eq!(backoff.short_sessions(), attempts);
        backoff.lost(SHORT);
        assert_eq!(backoff.short_sessions(), 0);
        assert!(backoff.wait() <= FIRST);
    }
}
