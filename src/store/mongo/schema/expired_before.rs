//! The end of the expired measurements, if their retention was made longer since: one document.
//!
//! ```text
//! hourbucket_meta: { _id: "readings_removed", before: ISODate("2026-01-01T00:00:00Z") }
//! ```
//!
//! The measurements of buckets that ended before that time may be gone, even with a longer
//! retention now. Without this, a late reading of such a bucket would be compared with nothing, and
//! its summary computed from the rest.

use mongodb::bson::{DateTime, doc};

use crate::store::mongo::hello::server_ms;
use crate::store::mongo::names::META;
use crate::store::mongo::setup::{Failure, NAMESPACE_NOT_FOUND, SchemaError, Setup};

const STEP: &str = "recording up to when readings were removed (hourbucket_meta)";
const ID: &str = "readings_removed";

/// Records that measurements may have expired that were kept for `kept_ms`, by the clock of the
/// server.
///
/// # Errors
/// The server failed.
pub(in crate::store::mongo) async fn record(
    setup: &Setup<'_>,
    kept_ms: i64,
) -> Result<(), SchemaError> {
    let hello = setup
        .ask(doc! { "hello": 1 })
        .await
        .map_err(|f| f.at(STEP))?;
    let now_ms = server_ms(&hello)
        .ok_or_else(|| SchemaError::unexpected(STEP, "the server reports no time"))?;
    let before = DateTime::from_millis(now_ms.saturating_sub(kept_ms));
    let update = doc! { "q": { "_id": ID }, "u": { "$max": { "before": before } }, "upsert": true };
    setup
        .change(doc! { "update": META, "updates": [update] })
        .await
        .map(drop)
        .map_err(|f| f.at(STEP))
}

/// The recorded time, in milliseconds since 1970.
///
/// # Errors
/// The server failed.
pub(in crate::store::mongo) async fn read(setup: &Setup<'_>) -> Result<Option<i64>, SchemaError> {
    let find = doc! {
        "find": META, "filter": { "_id": ID }, "limit": 1, "readConcern": { "level": "majority" },
    };
    let found = match setup.first(find).await {
        Err(Failure {
            code: Some(NAMESPACE_NOT_FOUND),
            ..
        }) => return Ok(None),
        found => found.map_err(|f| f.at(STEP))?,
    };
    Ok(found
        .and_then(|d| d.get_datetime("before").copied().ok())
        .map(DateTime::timestamp_millis))
}
