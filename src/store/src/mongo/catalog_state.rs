//! Whether the catalogue is complete, and the removal of entries whose sensors no longer have a
//! bucket.
//!
//! ```text
//! hourbucket_meta: { _id: "catalog", complete: false, after: "S123" }
//! hourbucket_meta: { _id: "running", at: ISODate(…) }
//! ```
//!
//! `running` is when an instance last received readings, as precise as it looks for silent sensors.
//!
//! A database without buckets has a complete catalogue from the start; any other is filled first
//! ([`crate::fill_catalog`]).
//!
//! **Removal** takes two passes, a week apart: the first marks the entry, the second removes it if
//! it is still marked and there is still no bucket. Every process confirms the entry of an active
//! sensor at least once a day, and that removes the mark. So an entry is never removed between a
//! process's read of it and the write of a page.

use std::sync::atomic::Ordering;

use mongodb::bson::{Bson, DateTime, Document, doc};

use crate::StoreError;
use crate::StoreErrorKind;
use crate::catalog::CatalogFill;
use crate::mongo::MongoStore;
use crate::mongo::error::{command_error, text_of};
use crate::mongo::names::{BUCKETS, CATALOG, META, READINGS};
use crate::mongo::setup::{DUPLICATE_KEY, SchemaError, Setup};
use model::SensorId;
use model::catalog::CATALOG_STEP_MS;

const STEP: &str = "recording whether the catalogue is complete (hourbucket_meta)";
/// How long an entry is marked before it is removed (ms).
const MARKED_MS: i64 = 7 * CATALOG_STEP_MS;
/// Entries that are read in one step of a pass.
const ENTRIES_MAX: i64 = 500;

/// Records that the catalogue of a database without buckets is complete; reads whether it is.
///
/// # Errors
/// The server's error, with the step.
pub(super) async fn prepare(setup: &Setup<'_>) -> Result<bool, SchemaError> {
    if let Some(found) = first(setup, META, doc! { "_id": "catalog" }).await? {
        return Ok(found.get_bool("complete").unwrap_or(false));
    }
    let is_empty = first(setup, BUCKETS, doc! {}).await?.is_none()
        && first(setup, READINGS, doc! {}).await?.is_none();
    let insert = doc! { "insert": META, "documents": [{ "_id": "catalog", "complete": is_empty }] };
    let reply = setup.change(insert).await.map_err(|f| f.at(STEP))?;
    let error = reply
        .get_array("writeErrors")
        .ok()
        .and_then(|e| e.first())
        .and_then(Bson::as_document);
    match error {
        None => Ok(is_empty),
        // Another instance was faster.
        Some(e) if e.get_i32("code").is_ok_and(|code| code == DUPLICATE_KEY) => {
            let found = first(setup, META, doc! { "_id": "catalog" }).await?;
            Ok(found.is_some_and(|d| d.get_bool("complete").unwrap_or(false)))
        }
        Some(e) => Err(SchemaError::unexpected(STEP, text_of(e, "refused"))),
    }
}

async fn first(
    setup: &Setup<'_>,
    collection: &str,
    filter: Document,
) -> Result<Option<Document>, SchemaError> {
    let find = doc! {
        "find": collection, "filter": filter, "limit": 1, "projection": { "readings": 0, "summary": 0 },
        "readConcern": { "level": "majority" },
    };
    setup.first(find).await.map_err(|f| f.at(STEP))
}

impl MongoStore {
    /// See [`Store::catalog_fill`].
    pub(crate) async fn read_fill(&self) -> Result<CatalogFill, StoreError> {
        let db = self.db.clone();
        let options = self.options.clone();
        let found = self.limited(async move {
            let setup = Setup::new(&db, &options);
            Ok(first(&setup, META, doc! { "_id": "catalog" }).await)
        });
        let found = found.await?.map_err(|e| command_error(&e))?;
        let failed = |e: SchemaError| StoreError::NotApplied {
            kind: StoreErrorKind::Command,
            detail: e.to_string(),
        };
        let found = found.map_err(failed)?.unwrap_or_default();
        let is_complete = found.get_bool("complete").unwrap_or(false);
        self.catalog_complete.store(is_complete, Ordering::Relaxed);
        Ok(CatalogFill {
            is_complete,
            after: found.get_str("after").ok().map(ToOwned::to_owned),
        })
    }

    /// See [`Store::set_catalog_fill`].
    pub(crate) async fn record_fill(&self, fill: &CatalogFill) -> Result<(), StoreError> {
        let mut set = doc! { "complete": fill.is_complete };
        set.extend(
            fill.after
                .as_ref()
                .map(|after| ("after".to_owned(), Bson::from(after))),
        );
        let update = doc! { "q": { "_id": "catalog" }, "u": { "$set": set }, "upsert": true };
        self.catalog_command(doc! { "update": META, "updates": [update] })
            .await?;
        self.catalog_complete
            .store(fill.is_complete, Ordering::Relaxed);
        Ok(())
    }

    /// See [`Store::note_running`].
    pub(crate) async fn record_running(&self, at_ms: i64) -> Result<Option<i64>, StoreError> {
        let command = doc! {
            "findAndModify": META,
            "query": { "_id": "running" },
            "update": { "$max": { "at": DateTime::from_millis(at_ms) } },
            "new": false,
            "upsert": true,
        };
        let reply = self.confirmed(command).await?;
        let before = reply.get_document("value").ok();
        Ok(before
            .and_then(|d| d.get_datetime("at").ok())
            .map(|at| at.timestamp_millis()))
    }

    /// Runs a command whose statements must all be applied, and returns the number of documents.
    async fn catalog_command(&self, command: Document) -> Result<u64, StoreError> {
        let reply = self.all_applied(command).await?;
        Ok(reply
            .get_i32("n")
            .ok()
            .and_then(|n| u64::try_from(n).ok())
            .unwrap_or(0))
    }

    /// See [`Store::expire_catalog`].
    pub(crate) async fn expire_entries(&self, now_ms: i64) -> Result<u64, StoreError> {
        let Some(retention) = self.retention else {
            return Ok(0);
        };
        let margin = 2 * CATALOG_STEP_MS + 2 * self.options.span.ms();
        let before_ms =
            now_ms - i64::try_from(retention.as_millis()).unwrap_or(i64::MAX / 2) - margin;
        let mut after = String::new();
        let mut removed = 0;
        loop {
            let filter = doc! { "_id": { "$gt": &after }, "last_ts": { "$lt": DateTime::from_millis(before_ms) } };
            let entries = self.entries();
            let found = self.limited(async move {
                let find = entries
                    .find(filter)
                    .projection(doc! { "expires": 1 })
                    .sort(doc! { "_id": 1 });
                let mut cursor = find.limit(ENTRIES_MAX).await?;
                let mut found = vec![];
                while cursor.advance().await? {
                    let document = cursor.deserialize_current()?;
                    if let Ok(id) = document.get_str("_id") {
                        found.push((
                            SensorId::from(id),
                            document.get_datetime("expires").ok().copied(),
                        ));
                    }
                }
                Ok(found)
            });
            let found = found.await?.map_err(|e| command_error(&e))?;
            let Some((last, _)) = found.last() else {
                return Ok(removed);
            };
            after = last.to_string();
            removed += self.expire_some(&found, now_ms).await?;
        }
    }

    /// Marks or removes those of these entries that have no bucket.
    async fn expire_some(
        &self,
        found: &[(SensorId, Option<DateTime>)],
        now_ms: i64,
    ) -> Result<u64, StoreError> {
        let ids: Vec<SensorId> = found.iter().map(|(id, _)| id.clone()).collect();
        let buckets = self.read_first_buckets(&ids).await?;
        let line = DateTime::from_millis(now_ms - MARKED_MS);
        let mut marks = vec![];
        let mut deletes = vec![];
        for ((id, marked), _) in found
            .iter()
            .zip(buckets)
            .filter(|(_, bucket)| bucket.is_none())
        {
            match marked {
                None => marks.push(doc! {
                    "q": { "_id": &**id, "expires": Bson::Null },
                    "u": { "$set": { "expires": DateTime::from_millis(now_ms) } },
                }),
                Some(at) if *at <= line => {
                    deletes.push(doc! { "q": { "_id": &**id, "expires": *at }, "limit": 1 })
                }
                Some(_) => {}
            }
        }
        if !marks.is_empty() {
            self.catalog_command(doc! { "update": CATALOG, "updates": marks, "ordered": false })
                .await?;
        }
        if deletes.is_empty() {
            return Ok(0);
        }
        self.catalog_command(doc! { "delete": CATALOG, "deletes": deletes, "ordered": false })
            .await
    }
}
