//! Since when appends use the gates of pages, for all instances:
//!
//! ```text
//! hourbucket_meta: { _id: "gates", since: ISODate("2026-11-28T12:00:00Z") }
//! ```
//!
//! See [`GateSupport`](crate::store::mongo::gate_support).

use mongodb::bson::{DateTime, doc};

use crate::store::mongo::names::META;
use crate::store::mongo::setup::{Failure, SchemaError, Setup};

const STEP: &str = "recording since when appends use gates (hourbucket_meta)";
const DUPLICATE_KEY: i32 = 11000;
/// For the upgrade of all instances.
const DAY_MS: i64 = 86_400_000;

/// Returns that time in ms since 1970, and records it if it is missing. `now_ms`: the server's
/// time. `is_new`: no earlier version can have written the database.
///
/// # Errors
/// The server does not answer, or refuses it.
pub(in crate::store::mongo) async fn since(
    setup: &Setup<'_>,
    now_ms: i64,
    is_new: bool,
) -> Result<i64, SchemaError> {
    let since_ms = if is_new { now_ms } else { now_ms + DAY_MS };
    let command = doc! {
        "findAndModify": META,
        "query": { "_id": "gates" },
        "update": { "$setOnInsert": { "since": DateTime::from_millis(since_ms) } },
        "upsert": true,
        "new": true,
    };
    let reply = match setup.change(command).await {
        Ok(reply) => reply,
        // Another instance did the same concurrently; the later time is right as well.
        Err(Failure {
            code: Some(DUPLICATE_KEY),
            ..
        }) => return Ok(now_ms + DAY_MS),
        Err(failure) => return Err(failure.at(STEP)),
    };
    let since = reply
        .get_document("value")
        .and_then(|found| found.get_datetime("since"));
    Ok(since.map_or(now_ms + DAY_MS, |at| at.timestamp_millis()))
}
