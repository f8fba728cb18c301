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
//! A database without a mark (written by a version that had none, or restored without it) gets one
//! a day after the later of its last bucket and the server's time. Data that is imported into a
//! database in use must be older than its mark.

use mongodb::bson::{Bson, DateTime, doc};

use crate::mongo::MongoStore;
use crate::mongo::error::{command_error, concern_error, text_of};
use crate::mongo::hello::server_ms;
use crate::mongo::names::{BUCKETS, META, READINGS};
use crate::mongo::pack::{CommandOptions, WriteConcern};
use crate::mongo::setup::{DUPLICATE_KEY, SchemaError, Setup};
use crate::{StoreError, StoreErrorKind};
use model::BucketStart;

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
    let find = doc! { "find": META, "filter": { "_id": "high_water" }, "limit": 1 };
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
            "q": { "_id": "high_water" }, "u": { "$max": { "bucket_start": DateTime::from_millis(mark) } },
        };
        let change = setup
            .change(doc! { "update": META, "updates": [update] })
            .await;
        return change.map(|_| mark > NEVER_MS).map_err(|f| f.at(STEP));
    }
    let insert = doc! {
        "insert": META,
        "documents": [{ "_id": "high_water", "bucket_start": DateTime::from_millis(mark) }],
    };
    let reply = setup.change(insert).await.map_err(|f| f.at(STEP))?;
    let error = reply
        .get_array("writeErrors")
        .ok()
        .and_then(|e| e.first())
        .and_then(Bson::as_document);
    match error {
        None => Ok(true),
        // Another instance created it in the meantime.
        Some(e) if e.get_i32("code").is_ok_and(|code| code == DUPLICATE_KEY) => Ok(false),
        Some(e) => Err(SchemaError::unexpected(STEP, text_of(e, "refused"))),
    }
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

impl MongoStore {
    /// See [`crate::Store::raise_high_water`].
    pub(crate) async fn raise_mark(&self, through: BucketStart) -> Result<BucketStart, StoreError> {
        if let Some(before) = self.try_raise(through).await? {
            return Ok(before);
        }
        // The document was deleted. Derive the mark again from the stored data.
        let db = self.db.clone();
        let options = self.options.clone();
        let made = self
            .limited(async move { Ok(create_if_missing(&Setup::new(&db, &options)).await) })
            .await?;
        let made = made.map_err(|e| command_error(&e))?;
        made.map_err(|e| StoreError::NotApplied {
            kind: StoreErrorKind::Command,
            detail: e.to_string(),
        })?;
        let missing = || StoreError::NotApplied {
            kind: StoreErrorKind::Command,
            detail: format!("{STEP}: the document is missing"),
        };
        self.try_raise(through).await?.ok_or_else(missing)
    }

    /// Raises the mark; returns `None` if there is none.
    async fn try_raise(&self, through: BucketStart) -> Result<Option<BucketStart>, StoreError> {
        // Majority, independent of store.write_concern: a mark that is rolled back would make
        // written buckets new again.
        let concern = CommandOptions {
            write_concern: WriteConcern::Majority,
            ..self.options.clone()
        }
        .document();
        let command = doc! {
            "findAndModify": META,
            "query": { "_id": "high_water" },
            "update": { "$max": { "bucket_start": DateTime::from_millis(through.0) } },
            "new": false,
            "maxTimeMS": self.options.wtimeout_ms,
            "writeConcern": concern,
        };
        let db = self.db.clone();
        let reply = self
            .limited(async move { db.run_command(command).await })
            .await?;
        let reply = reply.map_err(|e| command_error(&e))?;
        if let Some(detail) = concern_error(&reply) {
            return Err(StoreError::Unknown {
                kind: StoreErrorKind::WriteConcern,
                detail,
            });
        }
        let before = reply.get_document("value").ok();
        Ok(before
            .and_then(|d| d.get_datetime("bucket_start").ok())
            .map(|d| BucketStart(d.timestamp_millis())))
    }
}
