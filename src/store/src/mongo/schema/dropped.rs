//! Notices collections that were dropped while the service runs. MongoDB creates a missing
//! collection with the next insert, but a plain one without validator and indexes.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use mongodb::bson::{Bson, Document};

use crate::mongo::connection::timed_out;
use crate::mongo::schema::{Schema, detect};
use crate::mongo::setup::Listing;
use crate::{PrepareError, PrepareErrorEnd, StoreErrorKind};
use model::StorageMode;
use model::collections::READINGS;

/// What identifies each collection: its type and `uuid` as in `listCollections`. A collection that
/// was created again has another one; views and time-series collections have none.
type Identities = BTreeMap<String, (Option<Bson>, Option<Bson>)>;

/// The collections as they were prepared; `None` before the first check.
#[derive(Debug, Default)]
pub(crate) struct Prepared(Mutex<Option<Identities>>);

impl Prepared {
    /// The names that are missing or not the same any more. Remembers the first listing.
    pub(super) fn changed(&self, found: &Listing) -> Vec<String> {
        let now = identities(found);
        let mut prepared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = prepared.get_or_insert_with(|| now.clone());
        before
            .iter()
            .filter(|(name, identity)| now.get(*name) != Some(*identity))
            .map(|(name, _)| name.clone())
            .collect()
    }

    pub(super) fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

fn identities(found: &Listing) -> Identities {
    let identity = |entry: &Document| {
        let name = entry.get_str("name").ok()?.to_owned();
        let uuid = entry.get_document("info").ok().and_then(|i| i.get("uuid"));
        Some((name, (entry.get("type").cloned(), uuid.cloned())))
    };
    found.0.iter().filter_map(identity).collect()
}

impl Schema {
    /// See [`crate::Store::check_collections`].
    pub(crate) async fn check_collections(&self) -> Result<Option<String>, PrepareError> {
        if !self.detected.is_prepared() {
            return Ok(None);
        }
        let timeout = self.connection.timeout();
        match tokio::time::timeout(timeout, self.find_dropped()).await {
            Ok(found) => found,
            Err(_) => Err(PrepareError {
                detail: timed_out(timeout).to_string(),
                end: PrepareErrorEnd::MayPass(StoreErrorKind::Timeout),
            }),
        }
    }

    async fn find_dropped(&self) -> Result<Option<String>, PrepareError> {
        let setup = self.connection.setup();
        let mut names = self.settings.expected_names();
        // After a change to bucket mode, an operator may drop it.
        if self.detected.storage_mode() == StorageMode::Bucket {
            names.retain(|name| *name != READINGS);
        }
        if !self.detected.has_measurements() && detect::is_there(&setup).await? {
            self.detected.note_measurements();
        }
        let found = setup.list(&names).await?;
        let changed = self.prepared.changed(&found);
        let Some(_) = changed.first() else {
            return Ok(None);
        };
        let names = changed.join(", ");
        match self.prepare_collections().await {
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
