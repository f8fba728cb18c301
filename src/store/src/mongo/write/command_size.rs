//! How many measurements an insert command has.
//!
//! MongoDB stores some hundred thousand measurements per second, but only a few thousand while it
//! is overloaded. A command that takes longer than `store.timeout` has an unknown outcome: the
//! service reads all its buckets again, which adds to the overload, and meanwhile more readings
//! arrive for the next command. So commands become smaller before they take that long, and larger
//! again when MongoDB is fast. They never become very small, since a command also takes time that
//! does not depend on its size, such as the wait for a majority.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The fewest and the most measurements of a full command. The server accepts 100,000.
const MIN: usize = 5_000;
const MAX: usize = 50_000;

/// A command should take at most this fraction of `store.timeout`.
const FRACTION: u32 = 4;

/// The current limit, from the commands that were sent; shared by all that are sent at a time.
#[derive(Debug)]
pub(crate) struct CommandSize {
    measurements: AtomicUsize,
    /// How long a command should take at most.
    enough: Duration,
}

impl CommandSize {
    /// `timeout`: `store.timeout`.
    pub(crate) fn new(timeout: Duration) -> CommandSize {
        CommandSize {
            measurements: AtomicUsize::new(MAX),
            enough: timeout / FRACTION,
        }
    }

    /// The most measurements of the next command.
    pub(crate) fn measurements_max(&self) -> usize {
        self.measurements.load(Ordering::Relaxed)
    }

    /// Notes that a command with `sent` measurements was executed in `took`, or that it failed or
    /// was abandoned after that time. One that fails fast, without a primary for example, does not
    /// show that the server is fast.
    pub(crate) fn note(&self, sent: usize, took: Duration, executed: bool) {
        let next = |max| {
            let next = next(max, sent, took, self.enough);
            if executed { next } else { next.min(max) }
        };
        // Always succeeds.
        let _ = self
            .measurements
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |max| Some(next(max)));
    }
}

/// The limit after a command. A full and fast one doubles it; a slow one reduces it to what would
/// have been fast enough.
fn next(max: usize, sent: usize, took: Duration, enough: Duration) -> usize {
    if took > enough {
        let fits = sent as f64 * enough.as_secs_f64() / took.as_secs_f64();
        return (fits as usize).clamp(MIN, max);
    }
    if sent >= max && took < enough / 2 {
        return (max * 2).min(MAX);
    }
    max
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    /// Sends full commands to a server with this cost; returns how long each took, at most
    /// [`TIMEOUT`].
    fn send(size: &CommandSize, commands: usize, of_one: Duration, of_all: Duration) -> Vec<f64> {
        (0..commands)
            .map(|_| {
                let sent = size.measurements_max();
                let took = (of_all + of_one * sent as u32).min(TIMEOUT);
                size.note(sent, took, took < TIMEOUT);
                took.as_secs_f64()
            })
            .collect()
    }

    #[test]
    fn an_overloaded_server_gets_small_commands_and_a_fast_one_large_commands_again() {
        let size = CommandSize::new(TIMEOUT);
        send(&size, 3, Duration::from_micros(3), Duration::ZERO);
        assert_eq!(size.measurements_max(), MAX);
        let took = send(&size, 10, Duration::from_micros(300), Duration::ZERO);
        assert_eq!(took[0], 10.0, "it comes without warning");
        assert!(took[2..].iter().all(|s| (1.0..3.0).contains(s)), "{took:?}");
        let took = send(&size, 10, Duration::from_micros(3), Duration::ZERO);
        assert!(took.iter().all(|s| *s < 1.0), "{took:?}");
        assert_eq!(size.measurements_max(), MAX);
    }

    #[test]
    fn commands_that_are_slow_for_another_reason_stay_large_enough() {
        let size = CommandSize::new(TIMEOUT);
        send(&size, 20, Duration::from_micros(3), TIMEOUT / 2);
        assert_eq!(size.measurements_max(), MIN);
        // Small commands show nothing about large ones.
        size.note(10, Duration::from_millis(1), true);
        assert_eq!(size.measurements_max(), MIN);
    }

    #[test]
    fn a_command_that_fails_fast_does_not_make_the_next_one_larger() {
        let size = CommandSize::new(TIMEOUT);
        size.note(MAX, TIMEOUT, false);
        let after_timeout = size.measurements_max();
        assert!(after_timeout < MAX / 2, "{after_timeout}");
        size.note(after_timeout, Duration::from_millis(1), false);
        assert_eq!(size.measurements_max(), after_timeout);
        size.note(after_timeout, Duration::from_millis(1), true);
        assert_eq!(size.measurements_max(), after_timeout * 2);
    }
}
