//! Whether collections are still the same as when they were prepared.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use mongodb::bson::{Bson, Document};

use crate::mongo::setup::Listing;

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
    let of = |entry: &Document| {
        let name = entry.get_str("name").ok()?.to_owned();
        let uuid = entry.get_document("info").ok().and_then(|i| i.get("uuid"));
        Some((name, (entry.get("type").cloned(), uuid.cloned())))
    };
    found.0.iter().filter_map(of).collect()
}
