//! The collections, their validator, indexes and view: made where they are missing, brought up to date where they are
//! not. Every step can be repeated, by several instances at once.

use mongodb::Database;
use mongodb::bson::{Document, doc};

use super::error::{command_code, describe};
use super::pack::BUCKETS;

/// The view with one row a sensor and bucket.
pub const SUMMARIES: &str = "sensor_summaries";
/// The collection of messages that could not be stored.
pub const DEAD_LETTERS: &str = "dead_letters";

const NAMESPACE_EXISTS: i32 = 48;
const INDEX_OPTIONS_CONFLICT: i32 = 85;
const NAMESPACE_NOT_FOUND: i32 = 26;

/// What can go wrong while the collections are prepared, in words for the operator.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {detail}")]
pub(super) struct SchemaError {
    /// What was being done.
    pub(super) step: String,
    /// Why it did not work, in the server's words.
    pub(super) detail: String,
    /// Whether another try may work (no server, no primary).
    pub(super) transient: bool,
}

pub(super) fn failed(step: &str) -> impl FnOnce(mongodb::error::Error) -> SchemaError + '_ {
    move |error| SchemaError {
        step: step.to_owned(),
        detail: describe(&error),
        transient: !matches!(error.kind.as_ref(), mongodb::error::ErrorKind::Command(_))
            || matches!(command_code(&error), Some(10107 | 13435 | 11600 | 11602 | 189 | 91 | 112)),
    }
}

/// Prepares everything; returns a line for each thing that was made or changed.
///
/// # Errors
/// The first step that failed.
pub(super) async fn prepare(
    db: &Database,
    retention_s: Option<i64>,
    dead_letters_s: i64,
) -> Result<Vec<String>, SchemaError> {
    let mut done = vec![];
    if create(db, BUCKETS, doc! { "validator": validator(), "validationLevel": "moderate" }).await? {
        done.push(format!("created collection {BUCKETS}"));
    } else {
        let update = doc! { "collMod": BUCKETS, "validator": validator(), "validationLevel": "moderate" };
        db.run_command(update).await.map_err(failed("updating the validator of sensor_buckets (collMod)"))?;
    }
    let key = doc! { "sensor_id": 1, "bucket_start": -1, "page": 1 };
    index(db, BUCKETS, doc! { "key": key, "name": "sensor_bucket_page" }).await?;
    ttl(db, BUCKETS, "bucket_end", "bucket_end_ttl", retention_s).await?;
    if create(db, DEAD_LETTERS, doc! {}).await? {
        done.push(format!("created collection {DEAD_LETTERS}"));
    }
    ttl(db, DEAD_LETTERS, "received_at", "received_at_ttl", Some(dead_letters_s)).await?;
    if view(db).await? {
        done.push(format!("created view {SUMMARIES}"));
    }
    Ok(done)
}

/// Creates a collection with zstd compression; `false` where it exists.
async fn create(db: &Database, name: &str, options: Document) -> Result<bool, SchemaError> {
    let mut command = doc! {
        "create": name,
        "storageEngine": { "wiredTiger": { "configString": "block_compressor=zstd" } },
    };
    command.extend(options);
    match db.run_command(command).await {
        Ok(_) => Ok(true),
        Err(error) if command_code(&error) == Some(NAMESPACE_EXISTS) => Ok(false),
        Err(error) => Err(failed(&format!("creating collection {name}"))(error)),
    }
}

async fn index(db: &Database, collection: &str, index: Document) -> Result<(), SchemaError> {
    let command = doc! { "createIndexes": collection, "indexes": [index] };
    db.run_command(command).await.map(drop).map_err(failed(&format!("creating an index of {collection}")))
}

/// Makes, changes or drops the TTL index on `field`, as `seconds` says.
async fn ttl(db: &Database, coll: &str, field: &str, name: &str, seconds: Option<i64>) -> Result<(), SchemaError> {
    let step = format!("setting the retention of {coll}");
    let Some(seconds) = seconds else {
        return match db.run_command(doc! { "dropIndexes": coll, "index": name }).await {
            // IndexNotFound: there was none.
            Err(error) if !matches!(command_code(&error), Some(27 | NAMESPACE_NOT_FOUND)) => Err(failed(&step)(error)),
            _ => Ok(()),
        };
    };
    let index = doc! { "key": { field: 1 }, "name": name, "expireAfterSeconds": seconds };
    match db.run_command(doc! { "createIndexes": coll, "indexes": [index] }).await {
        Ok(_) => Ok(()),
        Err(error) if command_code(&error) == Some(INDEX_OPTIONS_CONFLICT) => {
            let change = doc! { "collMod": coll, "index": { "name": name, "expireAfterSeconds": seconds } };
            db.run_command(change).await.map(drop).map_err(failed(&step))
        }
        Err(error) => Err(failed(&step)(error)),
    }
}

/// Creates or updates the view; `false` where it existed.
async fn view(db: &Database) -> Result<bool, SchemaError> {
    let create = doc! { "create": SUMMARIES, "viewOn": BUCKETS, "pipeline": summaries_pipeline() };
    match db.run_command(create).await {
        Ok(_) => Ok(true),
        Err(error) if command_code(&error) == Some(NAMESPACE_EXISTS) => {
            let change = doc! { "collMod": SUMMARIES, "viewOn": BUCKETS, "pipeline": summaries_pipeline() };
            db.run_command(change).await.map(|_| false).map_err(failed("updating the view sensor_summaries (collMod)"))
        }
        Err(error) => Err(failed("creating the view sensor_summaries")(error)),
    }
}

/// The shape of a page (DESIGN section 3). `moderate`: documents that were wrong before are left alone.
fn validator() -> Document {
    let number = doc! { "bsonType": ["int", "long"], "minimum": 0 };
    let summary_of_field = doc! {
        "bsonType": "object",
        "required": ["min", "max", "sum", "count"],
        "properties": {
            "min": { "bsonType": "number" }, "max": { "bsonType": "number" },
            "sum": { "bsonType": "number" }, "count": number.clone(),
        },
    };
    doc! { "$jsonSchema": {
        "bsonType": "object",
        "required": ["_id", "schema_version", "sensor_id", "bucket_start", "bucket_end", "page", "count", "first_ts", "last_ts", "summary"],
        "properties": {
            "_id": {
                "bsonType": "object",
                "required": ["sensor_id", "bucket_start", "page"],
            },
            "schema_version": { "bsonType": ["int", "long"], "minimum": 1 },
            "sensor_id": { "bsonType": "string", "minLength": 1 },
            "bucket_start": { "bsonType": "date" },
            "bucket_end": { "bsonType": "date" },
            "page": number.clone(),
            "tags": { "bsonType": "object" },
            "count": number,
            "first_ts": { "bsonType": "date" },
            "last_ts": { "bsonType": "date" },
            "summary": { "bsonType": "object", "additionalProperties": summary_of_field },
            // Not each element: checking a thousand readings again at every append would cost more than the append.
            "readings": { "bsonType": "array" },
            "has_overflow": { "bsonType": "bool" },
            "storage": { "bsonType": "string" },
        },
    } }
}

/// One row a sensor and bucket: pages merged, averages added.
fn summaries_pipeline() -> Vec<Document> {
    let per_field = doc! { "$let": {
        "vars": { "same": { "$filter": { "input": "$fields", "as": "f", "cond": { "$eq": ["$$f.k", "$$name"] } } } },
        "in": { "$let": {
            "vars": { "sum": { "$sum": "$$same.v.sum" }, "count": { "$sum": "$$same.v.count" } },
            "in": {
                "min": { "$min": "$$same.v.min" },
                "max": { "$max": "$$same.v.max" },
                "sum": "$$sum",
                "count": "$$count",
                "avg": { "$cond": [{ "$gt": ["$$count", 0] }, { "$divide": ["$$sum", "$$count"] }, null] },
            },
        } },
    } };
    let names = doc! { "$setUnion": [{ "$map": { "input": "$fields", "as": "f", "in": "$$f.k" } }, []] };
    let map = doc! { "$map": { "input": names, "as": "name", "in": { "k": "$$name", "v": per_field } } };
    let of_bucket = doc! { "$and": [
        { "$eq": ["$sensor_id", "$$sensor"] }, { "$eq": ["$bucket_start", "$$start"] }, { "$gt": ["$page", 0] },
    ] };
    let summary = |of: &str| doc! { "$objectToArray": { "$ifNull": [of, {}] } };
    let more = doc! { "$reduce": {
        "input": "$more", "initialValue": [], "in": { "$concatArrays": ["$$value", summary("$$this.summary")] },
    } };
    // Page 0 with the others looked up, and not a $group over pages: a filter on the view's sensor or time then reaches
    // the index (a $group would read the whole collection first), and most buckets have one page.
    vec![
        doc! { "$match": { "page": 0 } },
        doc! { "$lookup": {
            "from": BUCKETS,
            "let": { "sensor": "$sensor_id", "start": "$bucket_start" },
            "pipeline": [
                { "$match": { "$expr": of_bucket } },
                { "$project": { "count": 1, "first_ts": 1, "last_ts": 1, "summary": 1 } },
            ],
            "as": "more",
        } },
        doc! { "$project": {
            "_id": 0, "sensor_id": 1, "bucket_start": 1,
            "count": { "$add": ["$count", { "$sum": "$more.count" }] },
            "first_ts": { "$min": ["$first_ts", { "$min": "$more.first_ts" }] },
            "last_ts": { "$max": ["$last_ts", { "$max": "$more.last_ts" }] },
            "fields": { "$concatArrays": [summary("$summary"), more] },
        } },
        doc! { "$project": {
            "sensor_id": 1, "bucket_start": 1, "count": 1, "first_ts": 1, "last_ts": 1,
            "summary": { "$arrayToObject": map },
        } },
    ]
}
