//! Removes entries of the catalogue whose sensors no longer have a bucket.
//!
//! This takes two passes, a week apart: the first marks the entry, the second removes it if it is
//! still marked and there is still no bucket. Every process confirms the entry of an active sensor
//! at least once a day, and that removes the mark. So an entry is never removed between a process's
//! read of it and the write of a page.

use std::time::Duration;

use mongodb::bson::{Bson, DateTime, doc};

use crate::StoreError;
use crate::mongo::catalog::Catalog;
use crate::mongo::connection::Connection;
use crate::mongo::read::queries::Reader;
use crate::retention::ms;
use model::SensorId;
use model::catalog::CATALOG_STEP_MS;
use model::collections::CATALOG;

/// How long an entry is marked before it is removed (ms).
const MARKED_MS: i64 = 7 * CATALOG_STEP_MS;
/// Entries that are read in one step of a pass.
const ENTRIES_MAX: i64 = 500;

/// An entry, and when it was marked.
type Found = (SensorId, Option<DateTime>);

/// Removes documents of `sensor_catalog`.
#[derive(Debug, Clone)]
pub(crate) struct CatalogExpiry {
    connection: Connection,
    catalog: Catalog,
    reader: Reader,
    /// `store.retention`
    retention: Option<Duration>,
}

impl CatalogExpiry {
    pub(crate) fn new(
        connection: Connection,
        catalog: Catalog,
        reader: Reader,
        retention: Option<Duration>,
    ) -> CatalogExpiry {
        CatalogExpiry {
            connection,
            catalog,
            reader,
            retention,
        }
    }

    /// See [`crate::Store::expire_catalog`].
    pub(crate) async fn expire(&self, now_ms: i64) -> Result<u64, StoreError> {
        let Some(retention) = self.retention else {
            return Ok(0);
        };
        let margin_ms = 2 * CATALOG_STEP_MS + 2 * self.connection.span().ms();
        let before_ms = now_ms - ms(retention).min(i64::MAX / 2) - margin_ms;
        let mut after = String::new();
        let mut removed = 0;
        loop {
            let found = self.find_old(&after, before_ms).await?;
            let Some((last, _)) = found.last() else {
                return Ok(removed);
            };
            after = last.to_string();
            removed += self.expire_some(&found, now_ms).await?;
        }
    }

    /// The next entries whose last reading is before this time.
    async fn find_old(&self, after: &str, before_ms: i64) -> Result<Vec<Found>, StoreError> {
        let before = DateTime::from_millis(before_ms);
        let filter = doc! { "_id": { "$gt": after }, "last_ts": { "$lt": before } };
        let entries = self.catalog.entries();
        let find = async move {
            let find = entries
                .find(filter)
                .projection(doc! { "expires": 1 })
                .sort(doc! { "_id": 1 });
            let mut cursor = find.limit(ENTRIES_MAX).await?;
            let mut found = vec![];
            while cursor.advance().await? {
                let document = cursor.deserialize_current()?;
                if let Ok(id) = document.get_str("_id") {
                    let marked = document.get_datetime("expires").ok().copied();
                    found.push((SensorId::from(id), marked));
                }
            }
            Ok(found)
        };
        self.connection.ask(find).await
    }

    /// Marks or removes those of these entries that have no bucket.
    async fn expire_some(&self, found: &[Found], now_ms: i64) -> Result<u64, StoreError> {
        let ids: Vec<SensorId> = found.iter().map(|(id, _)| id.clone()).collect();
        let buckets = self.reader.first_buckets(&ids).await?;
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
            let command = doc! { "update": CATALOG, "updates": marks, "ordered": false };
            self.connection.apply_all(command).await?;
        }
        if deletes.is_empty() {
            return Ok(0);
        }
        let command = doc! { "delete": CATALOG, "deletes": deletes, "ordered": false };
        self.connection.apply_all(command).await
    }
}
