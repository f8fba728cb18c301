//! Whether the catalogue is complete, and when an instance was last known to run.
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

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mongodb::bson::{Bson, DateTime, Document, doc};

use crate::StoreError;
use crate::catalog::CatalogFill;
use crate::mongo::connection::Connection;
use crate::mongo::setup::{SchemaError, Setup};
use model::collections::{BUCKETS, META, READINGS};

const ID: &str = "catalog";
const STEP: &str = "recording whether the catalogue is complete (hourbucket_meta)";

/// Reads and writes two documents of `hourbucket_meta`.
#[derive(Debug, Clone)]
pub(super) struct CatalogState {
    connection: Connection,
    /// Every stored sensor has an entry in the catalogue.
    is_complete: Arc<AtomicBool>,
}

impl CatalogState {
    pub(super) fn new(connection: Connection) -> CatalogState {
        CatalogState {
            connection,
            is_complete: Arc::default(),
        }
    }

    /// See [`crate::Store::is_catalog_complete`].
    pub(super) fn is_complete(&self) -> bool {
        self.is_complete.load(Ordering::Relaxed)
    }

    /// Records that the catalogue of a database without buckets is complete; reads whether it is.
    ///
    /// # Errors
    /// The server's error, with the step.
    pub(super) async fn prepare(&self, setup: &Setup<'_>) -> Result<(), SchemaError> {
        let found = match first(setup, META, doc! { "_id": ID }).await? {
            Some(found) => found,
            None => {
                let is_empty = first(setup, BUCKETS, doc! {}).await?.is_none()
                    && first(setup, READINGS, doc! {}).await?.is_none();
                let created = setup
                    .find_or_insert(ID, doc! { "complete": is_empty })
                    .await;
                created.map_err(|f| f.at(STEP))?.0
            }
        };
        self.note(fill_in(&found));
        Ok(())
    }

    fn note(&self, fill: CatalogFill) -> CatalogFill {
        self.is_complete.store(fill.is_complete, Ordering::Relaxed);
        fill
    }

    /// See [`crate::Store::catalog_fill`].
    pub(super) async fn read_fill(&self) -> Result<CatalogFill, StoreError> {
        let meta = self.connection.majority::<Document>(META);
        let find = async move { meta.find_one(doc! { "_id": ID }).await };
        let found = self.connection.ask(find).await?;
        Ok(self.note(fill_in(&found.unwrap_or_default())))
    }

    /// See [`crate::Store::set_catalog_fill`].
    pub(super) async fn record_fill(&self, fill: &CatalogFill) -> Result<(), StoreError> {
        let mut set = doc! { "complete": fill.is_complete };
        if let Some(after) = &fill.after {
            set.insert("after", after);
        }
        let update = doc! { "q": { "_id": ID }, "u": { "$set": set }, "upsert": true };
        let command = doc! { "update": META, "updates": [update] };
        self.connection.apply_all(command).await?;
        self.note(fill.clone());
        Ok(())
    }

    /// See [`crate::Store::note_running`].
    pub(super) async fn record_running(&self, at_ms: i64) -> Result<Option<i64>, StoreError> {
        let command = doc! {
            "findAndModify": META,
            "query": { "_id": "running" },
            "update": { "$max": { "at": DateTime::from_millis(at_ms) } },
            "new": false,
            "upsert": true,
        };
        let reply = self.connection.confirm(command).await?;
        let before = reply.get("value").and_then(Bson::as_document);
        Ok(before
            .and_then(|d| d.get_datetime("at").ok())
            .map(|at| at.timestamp_millis()))
    }
}

fn fill_in(found: &Document) -> CatalogFill {
    CatalogFill {
        is_complete: found.get_bool("complete").unwrap_or(false),
        after: found.get_str("after").ok().map(ToOwned::to_owned),
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
