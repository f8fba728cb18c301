//! The high-water mark: no process has ever written a bucket that begins after it.
//!
//! ```text
//! hourbucket_meta: { _id: "high_water", bucket_start: ISODate("2024-03-01T11:00:00Z") }
//! ```
//!
//! A native time-series collection cannot refuse a duplicate measurement. So before the first
//! measurement of a sensor's hour the service must check whether there are any, unless it is
//! certain that no process can have written that hour. The service's clock cannot prove this:
//! sensors' clocks may be ahead, and its own may be wrong. Therefore every process raises this
//! mark, with majority write concern, before it writes a bucket beyond it. Buckets between the old
//! and the new mark are new.
//!
//! A database without a mark (restored without it) gets one a day after the later of its last bucket
//! and the server's time. Data that is imported into a
//! database in use must be older than its mark.

use mongodb::bson::{Bson, DateTime, doc};

use crate::mongo::connection::{Connection, server_ms};
use crate::mongo::error::check_concern;
use crate::mongo::setup::{SchemaError, Setup};
use crate::{StoreError, StoreErrorKind};
use model::BucketStart;
use model::collections::{BUCKETS, META, READINGS};

const ID: &str = "high_water";
/// Earlier than any bucket: 0001-01-01, which every tool can display.
const NEVER_MS: i64 = -62_135_596_800_000;
/// Margin after the last summary of a database without a mark, for measurements of sensors whose
/// clocks are ahead.
const MARGIN_MS: i64 = 24 * 60 * 60 * 1000;
const STEP: &str = "recording the high-water mark (hourbucket_meta)";

/// Creates the mark if there is none; returns whether it did.
///
/// # Errors
/// The server's error, with the step.
pub(crate) async fn create_if_missing(setup: &Setup<'_>) -> Result<bool, SchemaError> {
    let find = doc! { "find": META, "filter": { "_id": ID }, "limit": 1 };
    let found = setup.first(find).await.map_err(|f| f.at(STEP))?;
    let found = found.and_then(|d| d.get_datetime("bucket_start").copied().ok());
    let never = DateTime::from_millis(NEVER_MS);
    if found.is_some_and(|mark| mark > never) {
        return Ok(false);
    }
    let mark = initial(setup).await?;
    if found.is_some() {
        // No process that uses the mark has written yet. Existing data was restored or imported.
        let update = doc! {
            "q": { "_id": ID }, "u": { "$max": { "bucket_start": DateTime::from_millis(mark) } },
        };
        let change = setup
            .change(doc! { "update": META, "updates": [update] })
            .await;
        return change.map(|_| mark > NEVER_MS).map_err(|f| f.at(STEP));
    }
    // Another instance may create it in the meantime.
    let fields = doc! { "bucket_start": DateTime::from_millis(mark) };
    let created = setup.find_or_insert(ID, fields).await;
    created.map(|(_, is_new)| is_new).map_err(|f| f.at(STEP))
}

/// The initial mark of a database that has none.
async fn initial(setup: &Setup<'_>) -> Result<i64, SchemaError> {
    // A covered query: it reads only the index.
    let latest = doc! {
        "aggregate": BUCKETS,
        "pipeline": [
            { "$project": { "_id": 0, "bucket_start": 1 } },
            { "$group": { "_id": Bson::Null, "latest": { "$max": "$bucket_start" } } },
        ],
        "hint": { "sensor_id": 1, "bucket_start": -1, "page": 1 },
        "cursor": {},
    };
    let latest = setup.first(latest).await.map_err(|f| f.at(STEP))?;
    let latest = latest.and_then(|d| d.get_datetime("latest").copied().ok());
    let measured = doc! { "find": READINGS, "limit": 1, "projection": { "ts": 1 } };
    let measured = setup.first(measured).await.map_err(|f| f.at(STEP))?;
    if latest.is_none() && measured.is_none() {
        return Ok(NEVER_MS);
    }
    let hello = setup
        .ask(doc! { "hello": 1 })
        .await
        .map_err(|f| f.at(STEP))?;
    let server = server_ms(&hello).map_or_else(DateTime::now, DateTime::from_millis);
    Ok(latest
        .map_or(server, |latest| latest.max(server))
        .timestamp_millis()
        + MARGIN_MS)
}

/// Raises the mark; `hourbucket_meta` has it.
#[derive(Debug, Clone)]
pub(crate) struct HighWater {
    connection: Connection,
}

impl HighWater {
    pub(crate) fn new(connection: Connection) -> HighWater {
        HighWater { connection }
    }

    /// See [`crate::Store::raise_high_water`].
    pub(crate) async fn raise(&self, through: BucketStart) -> Result<BucketStart, StoreError> {
        if let Some(before) = self.raise_existing(through).await? {
            return Ok(before);
        }
        // The document was deleted. Derive the mark again from the stored data.
        let connection = self.connection.clone();
        let create = async move { Ok(create_if_missing(&connection.setup()).await) };
        let failed = |detail: String| StoreError::not_applied(StoreErrorKind::Command, detail);
        let created = self.connection.ask(create).await?;
        created.map_err(|e| failed(e.to_string()))?;
        let raised = self.raise_existing(through).await?;
        raised.ok_or_else(|| failed(format!("{STEP}: the document is missing")))
    }

    /// Raises the mark; returns `None` if there is none.
    async fn raise_existing(
        &self,
        through: BucketStart,
    ) -> Result<Option<BucketStart>, StoreError> {
        let options = self.connection.options();
        let command = doc! {
            "findAndModify": META,
            "query": { "_id": ID },
            "update": { "$max": { "bucket_start": DateTime::from_millis(through.0) } },
            "new": false,
            "maxTimeMS": options.wtimeout_ms,
            // Independent of store.write_concern: a mark that is rolled back would make written
            // buckets new again.
            "writeConcern": options.majority_document(),
        };
        let reply = check_concern(self.connection.run(command).await?)?;
        let before = reply.get_document("value").ok();
        Ok(before
            .and_then(|d| d.get_datetime("bucket_start").ok())
            .map(|d| BucketStart(d.timestamp_millis())))
    }
}
