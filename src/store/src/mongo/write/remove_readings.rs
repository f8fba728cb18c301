//! Removes the readings of old pages ([`crate::retention`]): finds the oldest ones that have
//! any, and changes each under the guard of the version that was found.
//!
//! Unlike other writes, these are not synced to the disk, and wait for no other member: a removal
//! that is lost is done again. So they cost ingest no sync, and the pages are found in the state of
//! the primary, which the guard refers to.

use mongodb::bson::{Bson, DateTime, Document, RawDocumentBuf, doc};
use mongodb::options::{Hint, ReadConcern, ReadPreference, SelectionCriteria};

use crate::StoreError;
use crate::mongo::MongoStore;
use crate::mongo::error::{all_applied, command_error};
use crate::mongo::names::{BUCKETS, removal_key};
use crate::mongo::pack::{GATE, SERIES};
use crate::retention::RemovedReadings;

impl MongoStore {
    /// See [`crate::Store::remove_readings`].
    pub(crate) async fn remove_old_readings(
        &self,
        ended_before_ms: i64,
        pages_max: usize,
    ) -> Result<RemovedReadings, StoreError> {
        let before = DateTime::from_millis(ended_before_ms);
        let filter = doc! { "storage": Bson::Null, "readings_removed": Bson::Null, "bucket_end": { "$lt": before } };
        let projection = doc! { "sensor_id": 1, "bucket_start": 1, "bucket_end": 1, "count": 1, "has_overflow": 1 };
        let buckets = self.buckets.clone_with_type::<RawDocumentBuf>();
        let found = self.limited(async move {
            let find = buckets
                .find(filter)
                .projection(projection)
                .sort(doc! { "bucket_end": 1 });
            let find = find
                .limit(pages_max.max(1) as i64)
                .hint(Hint::Keys(removal_key()));
            let primary = SelectionCriteria::ReadPreference(ReadPreference::Primary);
            let mut cursor = find
                .read_concern(ReadConcern::local())
                .selection_criteria(primary)
                .await?;
            let mut found: Vec<Document> = vec![];
            while cursor.advance().await? {
                found.push(
                    cursor
                        .current()
                        .try_into()
                        .map_err(mongodb::error::Error::custom)?,
                );
            }
            Ok(found)
        });
        let found = found.await?.map_err(|e| command_error(&e))?;
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
            let db = self.db.clone();
            let reply = self
                .limited(async move { db.run_command(command).await })
                .await?;
            let reply = all_applied(reply.map_err(|e| command_error(&e))?)?;
            removed.pages = reply
                .get_i32("n")
                .ok()
                .and_then(|n| u64::try_from(n).ok())
                .unwrap_or(0);
        }
        Ok(removed)
    }
}

fn update(page: &Document) -> Document {
    let of_page = |name: &str| page.get(name).cloned().unwrap_or(Bson::Null);
    let is_sealed = page.get_bool("has_overflow").unwrap_or(false);
    let filter = doc! {
        "_id": of_page("_id"),
        "sensor_id": of_page("sensor_id"),
        "bucket_start": of_page("bucket_start"),
        "count": of_page("count"),
        "has_overflow": if is_sealed { Bson::Boolean(true) } else { Bson::from(doc! { "$ne": true }) },
        "storage": { "$ne": SERIES },
        "readings_removed": { "$ne": true },
    };
    let change =
        doc! { "$set": { "readings_removed": true }, "$unset": { "readings": "", GATE: "" } };
    doc! { "q": filter, "u": change, "hint": "_id_" }
}
