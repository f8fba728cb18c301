//! Since when appends use the gates of pages, for all instances:
//!
//! ```text
//! hourbucket_meta: { _id: "gates", since: ISODate("2026-11-28T12:00:00Z") }
//! ```
//!
//! See [`GateSupport`](crate::store::mongo::gate_support).

use mongodb::bson::{DateTime, Document, doc};

use crate::store::mongo::hello::server_ms;
use crate::store::mongo::names::META;
use crate::store::mongo::setup::{SchemaError, Setup};

const STEP: &str = "recording since when appends use gates (hourbucket_meta)";
/// For the upgrade of all instances.
const DAY_MS: i64 = 86_400_000;

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store::mongo) enum Asks {
    /// An instance or command that prepares a database in which nothing was written yet: gates
    /// begin now. If two do so at once, one may find what the other has recorded; then they begin
    /// in a day.
    First,
    /// A service: gates begin in a day.
    Service,
    /// A command such as `init`. An operator may use it long before the first service of the new
    /// version starts, so it begins nothing.
    Command,
}

/// Returns that time in ms since 1970, and records it if it is missing; `None` if it is not
/// recorded yet. `hello`: the server's reply, whose clock counts.
///
/// # Errors
/// The server does not answer, refuses it, or reports no time.
pub(in crate::store::mongo) async fn find_or_record(
    setup: &Setup<'_>,
    hello: &Document,
    asks: Asks,
) -> Result<Option<i64>, SchemaError> {
    let no_time = || SchemaError::unexpected(STEP, "the server reports no time");
    let now_ms = server_ms(hello).ok_or_else(no_time)?;
    let wait_ms = match asks {
        Asks::First => Some(0),
        Asks::Service => Some(DAY_MS),
        Asks::Command => None,
    };
    let found = match wait_ms {
        Some(wait_ms) => {
            let since = DateTime::from_millis(now_ms + wait_ms);
            let fields = doc! { "since": since };
            setup
                .find_or_insert("gates", fields)
                .await
                .map(|(found, _)| Some(found))
        }
        None => {
            let find = doc! { "find": META, "filter": { "_id": "gates" }, "limit": 1 };
            setup.first(find).await
        }
    };
    let found = found.map_err(|f| f.at(STEP))?;
    let since = found.and_then(|found| found.get_datetime("since").ok().copied());
    Ok(since.map(DateTime::timestamp_millis))
}
