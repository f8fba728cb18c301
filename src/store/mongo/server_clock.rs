//! The server's time, as known to this process.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long the time is continued with the own monotonic clock before the server is asked again.
const ASK_AFTER: Duration = Duration::from_secs(10);

/// The server's time, as known to this process.
#[derive(Debug)]
pub(super) struct ServerClock {
    /// The last answer (ms since 1970), and the time of the request.
    last: Mutex<Option<(i64, Instant)>>,
    /// See [`super::schema::expired_before`].
    expired_before_ms: AtomicI64,
}

impl Default for ServerClock {
    fn default() -> ServerClock {
        ServerClock {
            last: Mutex::default(),
            expired_before_ms: AtomicI64::new(i64::MIN),
        }
    }
}

impl ServerClock {
    /// Measurements of buckets that ended before this time (ms since 1970) may have expired.
    pub(super) fn set_expired_before(&self, ms: Option<i64>) {
        self.expired_before_ms
            .fetch_max(ms.unwrap_or(i64::MIN), Ordering::Relaxed);
    }

    /// See [`ServerClock::set_expired_before`].
    pub(super) fn expired_before_ms(&self) -> i64 {
        self.expired_before_ms.load(Ordering::Relaxed)
    }

    /// Notes the answer to a question that was asked at `asked`.
    pub(super) fn note(&self, now_ms: i64, asked: Instant) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some((now_ms, asked));
    }

    /// The time now, if an answer of the last seconds is known (ms since 1970).
    pub(super) fn known_ms(&self) -> Option<i64> {
        let (ms, at) = (*self.last.lock().unwrap_or_else(PoisonError::into_inner))?;
        let age = at.elapsed();
        (age < ASK_AFTER).then(|| ms + age.as_millis() as i64)
    }
}
