//! What the document patterns of the fleet need beside the buckets (DESIGN section 3): the collection `sensor_latest`, and
//! the wildcard index on tags. What is right already is left alone.

use mongodb::Database;
use mongodb::bson::{Document, doc};
use mongodb::error::Error;

use super::error::command_code;
use super::latest::LATEST;
use super::pack::BUCKETS;

/// The index that answers "all sensors of site north".
pub const TAGS_INDEX: &str = "tags_wildcard";

const NAMESPACE_EXISTS: i32 = 48;
const NAMESPACE_NOT_FOUND: i32 = 26;
const INDEX_NOT_FOUND: i32 = 27;

/// Which of them are switched on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Patterns {
    /// `latest.enabled`
    pub latest: bool,
    /// `store.tags_index`
    pub tags_index: bool,
}

/// Makes what is wanted and missing, and drops the index where it is not wanted; returns a line for each change.
///
/// # Errors
/// What was being done, and why it did not work.
pub(super) async fn prepare(db: &Database, wanted: Patterns) -> Result<Vec<String>, (String, Error)> {
    let mut done = vec![];
    if wanted.latest && create_latest(db).await? {
        done.push(format!("created collection {LATEST}"));
    }
    let there = has_tags_index(db).await?;
    if wanted.tags_index && !there {
        let index = doc! { "key": { "tags.$**": 1 }, "name": TAGS_INDEX };
        let command = doc! { "createIndexes": BUCKETS, "indexes": [index] };
        db.run_command(command).await.map_err(|e| (format!("creating the index of tags of {BUCKETS}"), e))?;
        done.push(format!("created index {TAGS_INDEX} of {BUCKETS}"));
    }
    if there && !wanted.tags_index {
        match db.run_command(doc! { "dropIndexes": BUCKETS, "index": TAGS_INDEX }).await {
            Ok(_) => done.push(format!("dropped index {TAGS_INDEX} of {BUCKETS} (store.tags_index is off)")),
            // Another instance was faster.
            Err(error) if command_code(&error) == Some(INDEX_NOT_FOUND) => {}
            Err(error) => return Err((format!("dropping the index of tags of {BUCKETS}"), error)),
        }
    }
    Ok(done)
}

/// `false` where it exists. `_id` is all it needs of indexes.
async fn create_latest(db: &Database) -> Result<bool, (String, Error)> {
    let step = |e| (format!("creating collection {LATEST}"), e);
    let names = doc! { "listCollections": 1, "nameOnly": true, "filter": { "name": LATEST } };
    let found = db.run_command(names).await.map_err(step)?;
    if !first_batch(&found).is_empty() {
        return Ok(false);
    }
    let command = doc! {
        "create": LATEST,
        "storageEngine": { "wiredTiger": { "configString": "block_compressor=zstd" } },
    };
    match db.run_command(command).await {
        Ok(_) => Ok(true),
        Err(error) if command_code(&error) == Some(NAMESPACE_EXISTS) => Ok(false),
        Err(error) => Err(step(error)),
    }
}

async fn has_tags_index(db: &Database) -> Result<bool, (String, Error)> {
    match db.run_command(doc! { "listIndexes": BUCKETS }).await {
        Ok(found) => Ok(first_batch(&found).iter().any(|index| index.get_str("name").is_ok_and(|n| n == TAGS_INDEX))),
        Err(error) if command_code(&error) == Some(NAMESPACE_NOT_FOUND) => Ok(false),
        Err(error) => Err((format!("looking at the indexes of {BUCKETS}"), error)),
    }
}

/// The cursor's first batch, which is all there is: 64 indexes at most.
fn first_batch(reply: &Document) -> Vec<Document> {
    let batch = reply.get_document("cursor").and_then(|c| c.get_array("firstBatch"));
    batch.map(|b| b.iter().filter_map(|d| d.as_document().cloned()).collect()).unwrap_or_default()
}
