//! The optional objects in addition to the buckets (docs/design.md, section 3): the collection
//! `sensor_latest`, and the wildcard index on tags. Objects that are already correct are not
//! changed.

use mongodb::bson::doc;

use crate::mongo::names::{BUCKETS, LATEST};
use crate::mongo::setup::{Failure, INDEX_NOT_FOUND, NAMESPACE_EXISTS, SchemaError, Setup};

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
    if wanted.latest && create_latest(setup).await? {
        done.push(format!("created collection {LATEST}"));
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
        match setup
            .change(doc! { "dropIndexes": BUCKETS, "index": TAGS_INDEX })
            .await
        {
            Ok(_) => done.push(format!(
                "dropped index {TAGS_INDEX} on {BUCKETS} (store.tags_index is off)"
            )),
            // Another instance dropped it first.
            Err(Failure {
                code: Some(INDEX_NOT_FOUND),
                ..
            }) => {}
            Err(failure) => return Err(failure.at(format!("dropping the tags index of {BUCKETS}"))),
        }
    }
    Ok(done)
}

/// Returns `false` if it exists. It needs no index but `_id`.
async fn create_latest(setup: &Setup<'_>) -> Result<bool, SchemaError> {
    let step = format!("creating collection {LATEST}");
    let listing = setup.list(&[LATEST]).await?;
    if listing.get(LATEST).is_some() {
        return Ok(false);
    }
    match setup.create(LATEST, &doc! {}).await {
        Ok(()) => Ok(true),
        Err(Failure {
            code: Some(NAMESPACE_EXISTS),
            ..
        }) => Ok(false),
        Err(failure) => Err(failure.at(step)),
    }
}
