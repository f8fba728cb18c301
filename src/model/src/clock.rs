//! The only place that reads a clock. All other code receives a [`Now`]. Also the text form of a
//! time.

use std::time::{SystemTime, UNIX_EPOCH};

/// An instant on both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds since 1970, UTC. Jumps when the clock of the machine is set.
    pub wall_ms: i64,
    /// Milliseconds since the clock was created. Never decreases. Used for ages and deadlines.
    pub mono_ms: u64,
}

/// The source of time: the system, or a test.
pub trait Clock: Send + Sync + 'static {
    /// Both clocks, read at the same moment.
    fn now(&self) -> Now;
}

/// The system clock. Its monotonic part is tokio's, so a test with paused time controls it too.
#[derive(Debug)]
pub struct SystemClock {
    origin: tokio::time::Instant,
}

impl SystemClock {
    /// A clock whose monotonic part starts at zero now.
    pub fn new() -> SystemClock {
        SystemClock {
            origin: tokio::time::Instant::now(),
        }
    }
}

impl Default for SystemClock {
    fn default() -> SystemClock {
        SystemClock::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Now {
        let wall_ms = match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => since.as_millis() as i64,
            Err(before) => -(before.duration().as_millis() as i64),
        };
        Now {
            wall_ms,
            mono_ms: self.origin.elapsed().as_millis() as u64,
        }
    }
}

/// A time (ms since 1970) as responses and the audit log show it: RFC 3339, UTC with milliseconds.
/// A time that no date can show is shown as 1970.
pub fn rfc3339(ms: i64) -> String {
    let time = chrono::DateTime::from_timestamp_millis(ms).unwrap_or_default();
    time.to_rfc3339_opts(chrono::SecondsFormat::Millis, true)
}
