//! How long to wait before the next try to connect.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(30);

/// Doubles from 100 ms to 30 s, each with up to half taken off at random, so that many instances do not come back at once.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    tries: u32,
}

impl Backoff {
    /// The next wait.
    pub(super) fn wait(&mut self) -> Duration {
        let whole = FIRST.saturating_mul(1 << self.tries.min(16)).min(LONGEST);
        self.tries += 1;
        whole.mul_f64(1.0 - fastrand::f64() / 2.0)
    }

    /// The connection was of use: begin anew.
    pub(super) fn reset(&mut self) {
        self.tries = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_their_limit_and_begin_anew() {
        let mut backoff = Backoff::default();
        let first = backoff.wait();
        assert!(first >= FIRST / 2 && first <= FIRST);
        let last = (0..40).map(|_| backoff.wait()).last().unwrap();
        assert!(last >= LONGEST / 2 && last <= LONGEST);
        backoff.reset();
        assert!(backoff.wait() <= FIRST);
    }
}
