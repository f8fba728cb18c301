//! Removes the readings of old pages ([`crate::retention`]): finds the oldest ones that have
//! any, and changes each under the guard of the version that was found.
//!
//! Unlike other writes, these are not synced to the disk, and wait for no other member: a removal
//! that is lost is done again. So they cost ingest no sync, and the pages are found in the state of
//! the primary, which the guard refers to.

use std::ops::Range;

use mongodb::bson::{Bson, DateTime, Document, doc};
use mongodb::options::{Hint, ReadConcern};

use crate::StoreError;
use crate::mongo::connection::Connection;
use crate::mongo::document::{between, from_primary, is_set};
use crate::mongo::error::all_applied;
use crate::mongo::pack::{GATE, SERIES};
use crate::retention::RemovedReadings;
use crate::tier::ComparedPage;
use model::collections::BUCKETS;
use model::{BucketKey, BucketStart};

/// The index of `sensor_buckets` that finds the oldest pages with readings.
pub(crate) const REMOVAL_INDEX: &str = "readings_removal";

/// Pages of a day that are emptied in one command.
const PAGES_MAX: usize = 25;

/// The keys of [`REMOVAL_INDEX`].
pub(crate) fn removal_key() -> Document {
    doc! { "storage": 1, "readings_removed": 1, "bucket_end": 1 }
}

/// Removes readings from the documents of `sensor_buckets`.
#[derive(Debug, Clone)]
pub(crate) struct ReadingsRemoval {
    connection: Connection,
}

impl ReadingsRemoval {
    pub(crate) fn new(connection: Connection) -> ReadingsRemoval {
        ReadingsRemoval { connection }
    }

    /// See [`crate::Store::remove_readings`].
    pub(crate) async fn remove(
        &self,
        ended_before_ms: i64,
        pages_max: usize,
    ) -> Result<RemovedReadings, StoreError> {
        let found = self
            .find_oldest(i64::MIN..ended_before_ms, pages_max.max(1))
            .await?;
        let oldest_end_ms = found
            .first()
            .and_then(|page| page.get_datetime("bucket_end").ok())
            .map(|end| end.timestamp_millis());
        let mut removed = RemovedReadings {
            found: found.len(),
            pages: 0,
            oldest_end_ms,
        };
        if !found.is_empty() && pages_max > 0 {
            let updates: Vec<Document> = found.iter().map(update).collect();
            let command = doc! { "update": BUCKETS, "updates": updates, "ordered": false, "writeConcern": { "w": 1 } };
            removed.pages = all_applied(&self.connection.run(command).await?)?;
        }
        Ok(removed)
    }

    /// See [`crate::Store::find_removable`].
    pub(crate) async fn find_removable(
        &self,
        ended_ms: Range<i64>,
        pages_max: usize,
    ) -> Result<Vec<BucketKey>, StoreError> {
        let found = self.find_oldest(ended_ms, pages_max).await?;
        let key = |page: &Document| {
            Some(BucketKey {
                sensor_id: page.get_str("sensor_id").ok()?.into(),
                start: BucketStart(page.get_datetime("bucket_start").ok()?.timestamp_millis()),
            })
        };
        let mut buckets: Vec<BucketKey> = found.iter().filter_map(key).collect();
        buckets.dedup();
        Ok(buckets)
    }

    /// See [`crate::Store::remove_compared`].
    pub(crate) async fn remove_compared(&self, pages: &[ComparedPage]) -> Result<u64, StoreError> {
        let mut removed = 0;
        for some in pages.chunks(PAGES_MAX) {
            let updates: Vec<Document> = some.iter().map(update_compared).collect();
            let command = doc! { "update": BUCKETS, "updates": updates, "ordered": false, "writeConcern": { "w": 1 } };
            removed += all_applied(&self.connection.run(command).await?)?;
        }
        Ok(removed)
    }

    /// The oldest pages that have readings and ended in this range.
    async fn find_oldest(
        &self,
        ended_ms: Range<i64>,
        pages_max: usize,
    ) -> Result<Vec<Document>, StoreError> {
        let ended = between(ended_ms.start, ended_ms.end);
        let filter =
            doc! { "storage": Bson::Null, "readings_removed": Bson::Null, "bucket_end": ended };
        let projection = doc! { "sensor_id": 1, "bucket_start": 1, "bucket_end": 1, "count": 1, "has_overflow": 1 };
        let options = from_primary(ReadConcern::local());
        let db = self.connection.db();
        let buckets = db.collection_with_options::<Document>(BUCKETS, options);
        let find = async move {
            let find = buckets
                .find(filter)
                .projection(projection)
                .sort(doc! { "bucket_end": 1 });
            let mut cursor = find
                .limit(pages_max as i64)
                .hint(Hint::Keys(removal_key()))
                .await?;
            let mut found = vec![];
            while cursor.advance().await? {
                found.push(cursor.deserialize_current()?);
            }
            Ok(found)
        };
        self.connection.ask(find).await
    }
}

/// The same for a page that was compared with columns; it is sealed too.
fn update_compared(page: &ComparedPage) -> Document {
    let filter = doc! {
        "_id": {
            "sensor_id": &*page.bucket.sensor_id,
            "bucket_start": DateTime::from_millis(page.bucket.start.0),
            "page": page.page as i32,
        },
        "sensor_id": &*page.bucket.sensor_id,
        "bucket_start": DateTime::from_millis(page.bucket.start.0),
        "count": i64::from(page.count),
        "has_overflow": is_set(page.sealed),
        "storage": { "$ne": SERIES },
        "readings_removed": { "$ne": true },
    };
    let change = doc! {
        "$set": { "readings_removed": true, "has_overflow": true },
        "$unset": { "readings": "", GATE: "" },
    };
    doc! { "q": filter, "u": change, "hint": "_id_" }
}

fn update(page: &Document) -> Document {
    let of_page = |name: &str| page.get(name).cloned().unwrap_or(Bson::Null);
    let filter = doc! {
        "_id": of_page("_id"),
        "sensor_id": of_page("sensor_id"),
        "bucket_start": of_page("bucket_start"),
        "count": of_page("count"),
        "has_overflow": is_set(page.get_bool("has_overflow").unwrap_or(false)),
        "storage": { "$ne": SERIES },
        "readings_removed": { "$ne": true },
    };
    let change =
        doc! { "$set": { "readings_removed": true }, "$unset": { "readings": "", GATE: "" } };
    doc! { "q": filter, "u": change, "hint": "_id_" }
}
