//! A clock that a test sets.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use model::{Clock, Now};

/// A clock that a test sets.
#[derive(Debug)]
pub struct SetClock {
    wall_ms: AtomicI64,
    mono_ms: AtomicU64,
}

impl SetClock {
    /// The wall clock is at the begin of 1970.
    pub fn new(mono_ms: u64) -> SetClock {
        SetClock {
            wall_ms: 0.into(),
            mono_ms: mono_ms.into(),
        }
    }

    /// In milliseconds since 1970; may go back. The monotonic clock does not change.
    pub fn set_wall(&self, wall_ms: i64) {
        self.wall_ms.store(wall_ms, Ordering::Relaxed);
    }

    /// Advances the monotonic clock.
    pub fn advance(&self, ms: u64) {
        self.mono_ms.fetch_add(ms, Ordering::Relaxed);
    }
}

impl Clock for SetClock {
    fn now(&self) -> Now {
        Now {
            wall_ms: self.wall_ms.load(Ordering::Relaxed),
            mono_ms: self.mono_ms.load(Ordering::Relaxed),
        }
    }
}
