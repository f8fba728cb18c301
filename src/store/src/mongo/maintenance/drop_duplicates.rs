//! Removes duplicate measurements from a time-series bucket, for `reconcile --drop-duplicates`.
//!
//! Whether the server can delete single measurements from a time-series collection is determined by
//! trying, never from its version:
//! - **MongoDB 7.0 and later** delete by any filter. Equal measurements differ only in their `_id`,
//!   so all of them except the one with the lowest `_id` are deleted by it; two concurrent repairs
//!   choose the same ones. Then the document is recomputed under its guard. A crash before that
//!   leaves a document that counts too many; the next run finds and repairs it.
//! - **Earlier servers** can delete only by `meta`, which would remove a whole series. The same
//!   applies to equal measurements that share an `_id`, which no index prevents. Instead the bucket
//!   is converted to pages without the duplicates, as `convert --into bucket` does. One statement
//!   (a transaction, if it needs several pages) replaces the document, and from then on readers use
//!   the pages. Before this statement nothing has changed; after it the conversion is complete. The
//!   measurements become leftovers. No reader that follows the documents sees them, and retention
//!   removes them (see [`super::convert`]).
//!
//! Concurrency with a running service: like a conversion, this touches only buckets that ended long
//! ago. If a measurement arrives nevertheless, the document's count has changed, and the guard
//! fails. A conversion to time-series mode must not run at the same time: it would take the
//! leftovers for its own copies, as described in [`super::convert`].

use std::collections::HashMap;

use mongodb::bson::{Bson, doc, oid::ObjectId};

use crate::maintain::convert::{
    Conclusion, Conversion, ConversionSettings, EqualReadings, Outcome,
};
use crate::maintain::{MaintainError, PageSize, StoredBucket};
use crate::mongo::document::key_of;
use crate::mongo::maintenance::convert_bucket::{is_refusal, one_attempt};
use crate::mongo::read::bucket_reader::{Collections, failed, measured_in};
use model::{ReadingKey, StorageMode};

/// Measurements deleted per command.
const DELETE_MAX: usize = 1000;

/// How duplicates were removed from a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dropped {
    /// Measurements were deleted; the bucket must be recomputed.
    Deleted,
    /// The bucket now consists of pages.
    Converted,
    /// Another writer changed it, or something else must be repaired first: read it again.
    Again,
    /// The bucket needs several pages, and the server has no transactions.
    NoTransactions,
}

/// Measurements to delete.
#[derive(Debug, Default)]
struct Extras {
    /// The `_id`s to delete by.
    ids: Vec<Bson>,
    /// Number of duplicates that cannot be deleted by `_id`.
    alike: u64,
}

impl Collections {
    /// Removes all but one of equal measurements from a time-series bucket; `page`: the size of pages,
    /// if it must be converted.
    pub(crate) async fn drop_measured(
        &self,
        bucket: &StoredBucket,
        page: PageSize,
    ) -> Result<Dropped, MaintainError> {
        let extras = self.extras(bucket).await?;
        if extras.alike == 0 && self.delete_extras(bucket, &extras.ids).await? == Deletion::Done {
            return Ok(Dropped::Deleted);
        }
        let settings = ConversionSettings {
            equal: EqualReadings::KeepFirst,
            ..one_attempt(StorageMode::Bucket, page)
        };
        let conversion = Conversion::new(bucket.key.clone(), settings);
        match self.convert(conversion, &|_, _| Ok(())).await {
            Ok(Conclusion::Done(Outcome { moved: Some(_), .. })) => Ok(Dropped::Converted),
            Ok(_) => Ok(Dropped::Again),
            Err(MaintainError::Refused(_)) => Ok(Dropped::NoTransactions),
            Err(error) => Err(error),
        }
    }

    async fn extras(&self, bucket: &StoredBucket) -> Result<Extras, MaintainError> {
        let what = failed("reading measurements");
        let filter = measured_in(&bucket.key, bucket.end_ms);
        let mut cursor = self.measurements.find(filter).await.map_err(&what)?;
        let mut all = vec![];
        while cursor.advance().await.map_err(&what)? {
            let found = cursor.current();
            if let Some(key) = key_of(found) {
                all.push((key, found.get_object_id("_id").ok()));
            }
        }
        Ok(extras(all))
    }

    /// Deletes these measurements.
    async fn delete_extras(
        &self,
        bucket: &StoredBucket,
        ids: &[Bson],
    ) -> Result<Deletion, MaintainError> {
        for some in ids.chunks(DELETE_MAX) {
            let mut these = measured_in(&bucket.key, bucket.end_ms);
            these.insert("_id", doc! { "$in": some });
            match self.measurements.delete_many(these).await {
                Ok(_) => {}
                Err(error) if is_refusal(&error) => return Ok(Deletion::NotSupported),
                Err(error) => return Err(failed("removing measurements")(error)),
            }
        }
        Ok(Deletion::Done)
    }
}

#[derive(PartialEq)]
enum Deletion {
    Done,
    /// The server cannot delete single measurements.
    NotSupported,
}

/// Selects all but the one with the lowest `_id` of equal measurements.
fn extras(all: Vec<(ReadingKey, Option<ObjectId>)>) -> Extras {
    let mut by_key: HashMap<ReadingKey, Vec<Option<ObjectId>>> = HashMap::new();
    let mut times: HashMap<ObjectId, u32> = HashMap::new();
    for (key, id) in all {
        if let Some(id) = id {
            *times.entry(id).or_default() += 1;
        }
        by_key.entry(key).or_default().push(id);
    }
    let mut extras = Extras::default();
    for mut equal in by_key.into_values().filter(|equal| equal.len() > 1) {
        equal.sort_unstable();
        for id in equal.into_iter().skip(1) {
            match id {
                Some(id) if times.get(&id) == Some(&1) => extras.ids.push(Bson::ObjectId(id)),
                _ => extras.alike += 1,
            }
        }
    }
    extras
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::ValueRef;

    fn key(ts_ms: i64) -> ReadingKey {
        ReadingKey::new(ts_ms, [("n", ValueRef::Int(1))].into_iter())
    }

    fn id(n: u8) -> ObjectId {
        ObjectId::from_bytes([n; 12])
    }

    #[test]
    fn all_but_the_one_with_the_lowest_id_go_whatever_their_order() {
        let all = [
            (key(1), 4),
            (key(2), 2),
            (key(1), 3),
            (key(1), 9),
            (key(3), 1),
            (key(2), 7),
        ];
        let mut wanted: Vec<Bson> = [4, 9, 7].map(|n| Bson::ObjectId(id(n))).to_vec();
        wanted.sort_by_key(ToString::to_string);
        for turn in 0..all.len() {
            let mut turned = all.map(|(key, n)| (key, Some(id(n)))).to_vec();
            turned.rotate_left(turn);
            let mut found = extras(turned);
            found.ids.sort_by_key(ToString::to_string);
            assert_eq!((found.ids, found.alike), (wanted.clone(), 0));
        }
    }

    #[test]
    fn a_repeated_or_foreign_id_deletes_nothing() {
        let found = extras(vec![(key(1), Some(id(1))), (key(1), Some(id(1)))]);
        assert_eq!(
            (found.ids.len(), found.alike),
            (0, 1),
            "a delete would remove both"
        );
        let found = extras(vec![
            (key(1), Some(id(1))),
            (key(1), Some(id(2))),
            (key(2), Some(id(2))),
        ]);
        assert_eq!(
            (found.ids.len(), found.alike),
            (0, 1),
            "a delete would remove another reading"
        );
        let found = extras(vec![(key(1), None), (key(1), Some(id(2)))]);
        assert_eq!((found.ids.len(), found.alike), (1, 0));
        let found = extras(vec![(key(1), None), (key(1), None), (key(2), None)]);
        assert_eq!((found.ids.len(), found.alike), (0, 1));
    }
}
