//! The server's time, as known to this process.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long the time is continued with the own monotonic clock before the server is asked again.
const ASK_AFTER: Duration = Duration::from_secs(10);

/// The server's time, as known to this process.
#[derive(Debug, Default)]
pub(super) struct ServerClock {
    /// The last answer (ms since 1970), and the time of the request.
    last: Mutex<Option<(i64, Instant)>>,
}

impl ServerClock {
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
