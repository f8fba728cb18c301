//! Which buckets still have all of their readings: the commands leave the others alone.

use crate::maintain::MaintainError;
use crate::store::mongo::MongoStore;
use crate::store::mongo::read::bucket_reader::Native;
use crate::store::mongo::schema::expired_before;
use crate::store::mongo::setup::Setup;

impl MongoStore {
    /// The start of the first bucket that cannot have partly expired; `None` if none can.
    pub(super) async fn kept_from(
        &self,
        native: Native,
        now_ms: i64,
    ) -> Result<Option<i64>, MaintainError> {
        let expire_s = match native {
            Native::There { expire_s } => {
                self.read_expired_before().await?;
                expire_s
            }
            Native::Absent => None,
        };
        let retention_s = self.retention.and_then(|r| i64::try_from(r.as_secs()).ok());
        let kept_s = [expire_s, retention_s].into_iter().flatten().min();
        let of_settings = kept_s.map(|kept| now_ms.saturating_sub(kept.saturating_mul(1000)));
        let recorded = Some(self.clock.expired_before_ms()).filter(|ms| *ms > i64::MIN);
        let span = self.options.span;
        let expired = of_settings.max(recorded);
        Ok(expired.map(|ms| span.end(span.floor(ms))))
    }

    /// Reads up to when measurements expired with an earlier, shorter retention. A service does so
    /// when it prepares the collections, which these commands do not.
    pub(super) async fn read_expired_before(&self) -> Result<(), MaintainError> {
        let setup = Setup::new(&self.db, &self.options);
        let before = expired_before::read(&setup)
            .await
            .map_err(|error| MaintainError::Server(error.to_string()))?;
        self.clock.set_expired_before(before);
        Ok(())
    }
}
