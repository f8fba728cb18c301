//! Which buckets are old enough to be removed, or may have expired: by the clock of the server
//! alone, since the clock of a service may be wrong by years.

use std::time::Instant;

use mongodb::bson::doc;

use super::MongoStore;
use super::error::command_error;
use super::hello::server_ms;
use crate::retention::is_expiring;
use crate::{StoreError, StoreErrorKind};
use model::BucketStart;

impl MongoStore {
    /// The time of the primary, in milliseconds since 1970.
    pub(super) async fn server_now_ms(&self) -> Result<i64, StoreError> {
        let db = self.db.clone();
        // Continued from here, the time is ahead by at most the time of the answer.
        let asked = Instant::now();
        let reply = self
            .limited(async move { db.run_command(doc! { "hello": 1 }).await })
            .await?;
        let reply = reply.map_err(|e| command_error(&e))?;
        let now_ms = server_ms(&reply).ok_or_else(|| StoreError::NotApplied {
            kind: StoreErrorKind::Command,
            detail: "the server does not tell its time (localTime of `hello`)".into(),
        })?;
        self.clock.note(now_ms, asked);
        Ok(now_ms)
    }

    /// The same, from an answer of the last seconds if there is one.
    pub(super) async fn about_now_ms(&self) -> Result<i64, StoreError> {
        match self.clock.known_ms() {
            Some(now_ms) => Ok(now_ms),
            None => self.server_now_ms().await,
        }
    }

    /// Whether the server removes measurements before their summaries.
    pub(super) fn expires_measurements(&self) -> bool {
        self.retention_readings.is_some()
    }

    /// Whether the server removes measurements of a bucket now, or soon will.
    pub(super) fn is_expiring(&self, start: BucketStart, now_ms: i64) -> bool {
        let end_ms = self.options.span.end(start);
        self.retention_readings
            .is_some_and(|kept| is_expiring(end_ms, kept, now_ms))
    }
}
