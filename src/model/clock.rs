//! The one place that reads a clock. Everything else is handed a [`Now`].

use std::time::Duration;

/// An instant, on both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds since 1970, UTC; may jump when the machine's clock is set.
    pub wall_ms: i64,
    /// Milliseconds since the clock was made; never goes back. Ages and deadlines use this one.
    pub mono_ms: u64,
}

/// Where the time comes from: the machine, or a test.
pub trait Clock: Send + Sync + 'static {
    /// The present.
    fn now(&self) -> Now;
}

/// The machine's clock. Its monotonic half is tokio's, so a test with paused time moves it too.
#[derive(Debug)]
pub struct SystemClock {
    origin: tokio::time::Instant,
}

impl SystemClock {
    /// A clock whose monotonic half starts at zero now.
    pub fn new() -> SystemClock {
        SystemClock { origin: tokio::time::Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> SystemClock {
        SystemClock::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Now {
        let elapsed: Duration = self.origin.elapsed();
        Now { wall_ms: chrono::Utc::now().timestamp_millis(), mono_ms: elapsed.as_millis() as u64 }
    }
}
