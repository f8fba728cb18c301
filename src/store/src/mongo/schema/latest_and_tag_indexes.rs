//! The optional objects in addition to the buckets (docs/design.md, section 3): the collection
//! `sensor_latest`, and the wildcard index on tags. Objects that are already correct are not
//! changed.

use mongodb::bson::doc;

use crate::mongo::setup::{SchemaError, Setup};
use model::collections::{BUCKETS, LATEST};

/// The index for queries such as "all sensors of site north".
pub const TAGS_INDEX: &str = "tags_wildcard";

/// Which optional objects are enabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OptionalIndexes {
    /// `latest.enabled`
    pub latest: bool,
    /// `store.tags_index`
    pub tags_index: bool,
}

/// Creates enabled objects that are missing, and drops the index if it is disabled. Returns one
/// line per change.
///
/// # Errors
/// The first step that failed.
pub(crate) async fn prepare(
    setup: &Setup<'_>,
    wanted: OptionalIndexes,
) -> Result<Vec<String>, SchemaError> {
    let mut done = vec![];
    if wanted.latest {
        // It needs no index but `_id`.
        let found = setup.list(&[LATEST]).await?;
        done.extend(setup.create_missing(&found, LATEST, &doc! {}).await?);
    }
    let there = setup.has_index(BUCKETS, TAGS_INDEX).await?;
    if wanted.tags_index && !there {
        let index = doc! { "key": { "tags.$**": 1 }, "name": TAGS_INDEX };
        let command = doc! { "createIndexes": BUCKETS, "indexes": [index] };
        setup
            .change(command)
            .await
            .map_err(|f| f.at(format!("creating the tags index of {BUCKETS}")))?;
        done.push(format!("created index {TAGS_INDEX} on {BUCKETS}"));
    }
    if there && !wanted.tags_index {
        let dropped = setup.drop_index(BUCKETS, TAGS_INDEX).await;
        // Or another instance dropped it first.
        if dropped.map_err(|f| f.at(format!("dropping the tags index of {BUCKETS}")))? {
            done.push(format!(
                "dropped index {TAGS_INDEX} on {BUCKETS} (store.tags_index is off)"
            ));
        }
    }
    Ok(done)
}
