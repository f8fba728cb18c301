//! Measurements that are stored twice, taken out of a bucket in time-series form, for `reconcile --drop-duplicates`.
//!
//! What a server can delete from a time-series collection is found out by trying, never by its version:
//! - **MongoDB 7.0 and later** delete by any filter. Equal measurements differ in their `_id` alone, so all of them but the one
//!   with the lowest `_id` are deleted by it; two repairs at the same time choose the same ones. Then the document is counted
//!   anew, under its gate. A crash before that leaves a document that counts too many: the next run sees and mends it.
//! - **Before** (and for equal measurements that share an `_id`, which no index forbids) a delete can only match `meta`, so a
//!   whole series would go. Instead the bucket is brought into pages, as `convert --into bucket` does it, without the
//!   duplicates: one statement (a transaction, if it takes several pages) replaces the document, and from then on the pages
//!   are what is read. Before it nothing has changed; after it all is done. What the measurements were is left over, seen by
//!   no reader that goes by the documents, until retention removes it (see [`crate::store::mongo::maintenance::convert`]).
//!
//! Beside a running service: as for a conversion, only buckets are touched that ended long ago. If a measurement comes all the
//! same, the document's count has changed, and the gate fails. A conversion into time-series form must not run at the same
//! time: it would take the left over measurements for its own copies, as in [`crate::store::mongo::maintenance::convert`].

use std::collections::HashMap;

use mongodb::bson::{Bson, doc, oid::ObjectId};

use crate::maintain::{MaintainError, StoredBucket};
use crate::model::ReadingKey;
use crate::store::mongo::document::key_of;
use crate::store::mongo::maintenance::convert::is_refusal;
use crate::store::mongo::maintenance::convert_bucket::Turn;
use crate::store::mongo::read::bucket_reader::{Collections, failed, measured_in};

/// Measurements deleted by one command.
const DELETE_MAX: usize = 1000;

/// How duplicates were taken out of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store::mongo) enum Dropped {
    /// Measurements were deleted; the bucket is to be recomputed.
    Deleted,
    /// The bucket is pages now.
    Converted,
    /// Somebody else has written, or something else has to be repaired first: read it again.
    Again,
    /// The bucket takes several pages, and the server has no transactions.
    NoTransactions,
}

/// Which measurements are deleted by their `_id`.
#[derive(Debug, Default)]
struct Extras {
    /// Of these.
    ids: Vec<Bson>,
    /// Equal ones that cannot be told apart by it.
    alike: u64,
}

impl Collections {
    /// Takes all but one of equal measurements out of a bucket in time-series form; `pages`: readings and bytes of a page.
    pub(in crate::store::mongo) async fn drop_measured(
        &self,
        bucket: &StoredBucket,
        pages: (u32, u64),
    ) -> Result<Dropped, MaintainError> {
        let extras = self.extras(bucket).await?;
        if extras.alike == 0 && self.delete_extras(bucket, &extras.ids).await? {
            return Ok(Dropped::Deleted);
        }
        match self.move_to_pages(&bucket.key, pages, true, &|_, _| Ok(())).await {
            Ok(Turn::Done(_)) => Ok(Dropped::Converted),
            Ok(Turn::Nothing | Turn::Again | Turn::Skip(_)) => Ok(Dropped::Again),
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

    /// `false` if the server does not delete single measurements.
    async fn delete_extras(&self, bucket: &StoredBucket, ids: &[Bson]) -> Result<bool, MaintainError> {
        for some in ids.chunks(DELETE_MAX) {
            let mut these = measured_in(&bucket.key, bucket.end_ms);
            these.insert("_id", doc! { "$in": some });
            match self.measurements.delete_many(these).await {
                Ok(_) => {}
                Err(error) if is_refusal(&error) => return Ok(false),
                Err(error) => return Err(failed("removing measurements")(error)),
            }
        }
        Ok(true)
    }
}

/// Of equal measurements all but the one with the lowest `_id`.
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
    use crate::model::ValueRef;

    fn key(ts_ms: i64) -> ReadingKey {
        ReadingKey::new(ts_ms, [("n", ValueRef::Int(1))].into_iter())
    }

    fn id(n: u8) -> ObjectId {
        ObjectId::from_bytes([n; 12])
    }

    #[test]
    fn all_but_the_one_with_the_lowest_id_go_whatever_their_order() {
        let all = [(key(1), 4), (key(2), 2), (key(1), 3), (key(1), 9), (key(3), 1), (key(2), 7)];
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
    fn an_id_that_is_there_more_than_once_or_is_none_of_the_servers_deletes_nothing() {
        let found = extras(vec![(key(1), Some(id(1))), (key(1), Some(id(1)))]);
        assert_eq!((found.ids.len(), found.alike), (0, 1), "a delete would remove both");
        let found = extras(vec![(key(1), Some(id(1))), (key(1), Some(id(2))), (key(2), Some(id(2)))]);
        assert_eq!((found.ids.len(), found.alike), (0, 1), "a delete would remove another reading");
        let found = extras(vec![(key(1), None), (key(1), Some(id(2)))]);
        assert_eq!((found.ids.len(), found.alike), (1, 0));
        let found = extras(vec![(key(1), None), (key(1), None), (key(2), None)]);
        assert_eq!((found.ids.len(), found.alike), (0, 1));
    }
}
