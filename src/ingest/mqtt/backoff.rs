//! The wait before the next connection attempt.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(30);

/// Doubles from 100 ms to 30 s. Each wait is shortened by a random part of up to half, so that many
/// instances do not reconnect together.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    tries: u32,
}

impl Backoff {
    pub(super) fn wait(&mut self) -> Duration {
        let whole = FIRST.saturating_mul(1 << self.tries.min(16)).min(LONGEST);
        self.tries += 1;
        whole.mul_f64(1.0 - fastrand::f64() / 2.0)
    }

    /// Starts again from 100 ms, after a useful connection.
    pub(super) fn reset(&mut self) {
        self.tries = 0;
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
}
