//! Notices collections that were dropped while the service runs. MongoDB creates a missing
//! collection with the next insert, but a plain one without validator and indexes.

use crate::mongo::MongoStore;
use crate::mongo::limited::timed_out;
use crate::mongo::names::READINGS;
use crate::mongo::schema::detect;
use crate::mongo::setup::Setup;
use crate::{PrepareError, PrepareErrorEnd, StoreErrorKind};

impl MongoStore {
    /// See [`crate::Store::check_collections`].
    pub(crate) async fn find_dropped(&self) -> Result<Option<String>, PrepareError> {
        if self.native.get().is_none() {
            return Ok(None);
        }
        match tokio::time::timeout(self.timeout, self.dropped()).await {
            Ok(found) => found,
            Err(_) => Err(PrepareError {
                detail: timed_out(self.timeout).to_string(),
                end: PrepareErrorEnd::MayPass(StoreErrorKind::Timeout),
            }),
        }
    }

    async fn dropped(&self) -> Result<Option<String>, PrepareError> {
        let setup = Setup::new(&self.db, &self.options);
        let mut names = self.expected_names();
        // After a change to bucket mode, an operator may drop it.
        names.retain(|name| self.native() || *name != READINGS);
        if !self.measured() && detect::is_there(&setup).await? {
            self.note_measured();
        }
        let found = setup.list(&names).await?;
        let changed = self.prepared.changed(&found);
        let Some(_) = changed.first() else {
            return Ok(None);
        };
        let names = changed.join(", ");
        match self.prepare_all().await {
            Ok(done) => {
                self.prepared.forget();
                let done = done.changes.join("; ");
                Ok(Some(format!(
                    "{names} was dropped; created again ({done}); what it held is lost, unless it \
                     was renamed"
                )))
            }
            Err(error) if error.is_of_the_connection() => Err(error.into()),
            Err(error) => {
                let rest = if changed.iter().any(|name| name == READINGS) {
                    "; until then measurements are stored without time-series, see docs/mongodb.md \
                     for how to keep them"
                } else {
                    ""
                };
                Ok(Some(format!("{names} was dropped; {error}{rest}")))
            }
        }
    }
}
