//! Which buckets are old enough to be removed, or may have expired: by the clock of the server
//! alone, since the clock of a service may be wrong by years.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mongodb::bson::doc;

use super::connection::{Connection, server_ms};
use crate::retention::is_expiring;
use crate::{StoreError, StoreErrorKind};
use model::BucketStart;

/// How long the server's time is continued with the own monotonic clock before it is asked again.
const ASK_AFTER: Duration = Duration::from_secs(10);

/// The server's time, and which buckets it removes.
#[derive(Debug, Clone)]
pub(super) struct Expiry {
    connection: Connection,
    /// `store.retention_readings`
    retention_readings: Option<Duration>,
    /// The server's last answer (ms since 1970), and the time of the request.
    last: Arc<Mutex<Option<(i64, Instant)>>>,
}

impl Expiry {
    pub(super) fn new(connection: Connection, retention_readings: Option<Duration>) -> Expiry {
        Expiry {
            connection,
            retention_readings,
            last: Arc::default(),
        }
    }

    /// The time of the primary, in milliseconds since 1970.
    pub(super) async fn now_ms(&self) -> Result<i64, StoreError> {
        // Continued from here, the time is ahead by at most the time of the answer.
        let asked = Instant::now();
        let reply = self.connection.run(doc! { "hello": 1 }).await?;
        let now_ms = server_ms(&reply).ok_or_else(|| {
            let detail = "the server does not tell its time (localTime of `hello`)";
            StoreError::not_applied(StoreErrorKind::Command, detail)
        })?;
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some((now_ms, asked));
        Ok(now_ms)
    }

    /// The same, from an answer of the last seconds if there is one.
    pub(super) async fn about_now_ms(&self) -> Result<i64, StoreError> {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match last.map(|(ms, at)| (ms, at.elapsed())) {
            Some((ms, age)) if age < ASK_AFTER => Ok(ms + age.as_millis() as i64),
            _ => self.now_ms().await,
        }
    }

    /// Whether the server removes measurements before their summaries.
    pub(super) fn removes_measurements(&self) -> bool {
        self.retention_readings.is_some()
    }

    /// Whether the server removes measurements of a bucket now, or soon will.
    pub(super) fn is_expiring(&self, start: BucketStart, now_ms: i64) -> bool {
        let end_ms = self.connection.span().end(start);
        self.retention_readings
            .is_some_and(|kept| is_expiring(end_ms, kept, now_ms))
    }
}
