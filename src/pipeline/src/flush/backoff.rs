//! The wait after a failure: doubles from a minimum to a maximum, with full jitter in the upper
//! half. Pure.

use std::time::Duration;

/// The bounds.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    /// The first wait.
    pub min: Duration,
    /// The longest wait.
    pub max: Duration,
}

impl Default for Backoff {
    /// Short enough that a lost connection is not noticed, and long enough for a server that is away.
    fn default() -> Backoff {
        Backoff {
            min: Duration::from_millis(50),
            max: Duration::from_secs(5),
        }
    }
}

impl Backoff {
    /// The wait after `failures` failures in a row (1 for the first). `jitter` in `[0, 1)` selects
    /// a point in the upper half, so that many waiters do not retry together.
    pub fn wait(&self, failures: u32, jitter: f64) -> Duration {
        let doubled = self
            .min
            .saturating_mul(1u32 << failures.saturating_sub(1).min(20))
            .min(self.max);
        doubled.mul_f64(0.5 + 0.5 * jitter.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_the_limit() {
        let backoff = Backoff::default();
        for (failures, jitter, ms) in [
            (1, 1.0, 50),
            (1, 0.0, 25),
            (2, 1.0, 100),
            (8, 1.0, 5000),
            (1000, 1.0, 5000),
        ] {
            assert_eq!(
                backoff.wait(failures, jitter),
                Duration::from_millis(ms),
                "{failures} {jitter}"
            );
        }
    }
}
