//! Since when appends use the gates of pages, for all instances:
//!
//! ```text
//! hourbucket_meta: { _id: "gates", since: ISODate("2026-11-28T12:00:00Z") }
//! ```
//!
//! See [`GateSupport`](crate::store::mongo::gate_support).

use mongodb::bson::{DateTime, Document, doc};

use crate::store::mongo::hello::server_ms;
use crate::store::mongo::setup::{SchemaError, Setup};

const STEP: &str = "recording since when appends use gates (hourbucket_meta)";
/// For the upgrade of all instances.
const DAY_MS: i64 = 86_400_000;

/// Returns that time in ms since 1970, and records it if it is missing. `hello`: the server's reply,
/// whose clock counts. `is_new`: no earlier version can have written the database.
///
/// # Errors
/// The server does not answer, refuses it, or reports no time.
pub(in crate::store::mongo) async fn find_or_record(
    setup: &Setup<'_>,
    hello: &Document,
    is_new: bool,
) -> Result<i64, SchemaError> {
    let no_time = || SchemaError::permanent(STEP, "the server reports no time");
    let now_ms = server_ms(hello).ok_or_else(no_time)?;
    let first_ms = if is_new { now_ms } else { now_ms + DAY_MS };
    let (found, _) = setup
        .find_or_insert("gates", doc! { "since": DateTime::from_millis(first_ms) })
        .await
        .map_err(|f| f.at(STEP))?;
    let since = found.get_datetime("since");
    Ok(since.map_or(now_ms + DAY_MS, |at| at.timestamp_millis()))
}
