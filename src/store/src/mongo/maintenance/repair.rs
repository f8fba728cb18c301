//! Guarded changes to a stored bucket, one at a time. [`super::reconcile`] explains which changes
//! are made and why they are safe while the service runs.

use std::collections::{BTreeMap, HashSet};

use mongodb::bson::{Array, Bson, DateTime, Document, RawDocumentBuf, doc};

use crate::maintain::bucket::{Recomputed, without_duplicates};
use crate::maintain::convert::NewPage;
use crate::maintain::{MaintainError, StoredBucket, StoredPage};
use crate::mongo::document::{is_set, summary_document, tags_document};
use crate::mongo::error::{Applied, StatementError, command_code, statement_error};
use crate::mongo::pack::{CONVERTED, GATE, SCHEMA_VERSION, SERIES};
use crate::mongo::read::bucket_reader::{Collections, failed, page_id, value_bson};
use model::{BucketKey, Rows, StorageMode};

/// A filter that matches a page only if it is exactly as it was read: same version, seal and
/// storage mode. Every writer changes at least one of them. The number of `readings` is compared as
/// well, against manual changes.
pub(crate) fn unchanged_filter(key: &BucketKey, page: &StoredPage) -> Document {
    let count = match page.count {
        Some(n) => Bson::Int64(n),
        None => Bson::from(doc! { "$not": { "$type": "number" } }),
    };
    let mut filter = doc! {
        "_id": page_id(key, page.page),
        "sensor_id": &*key.sensor_id,
        "bucket_start": DateTime::from_millis(key.start.0),
        "count": count,
        "has_overflow": is_set(page.sealed),
    };
    if page.storage_mode == StorageMode::TimeSeries {
        filter.insert("storage", SERIES);
    } else {
        filter.insert("storage", doc! { "$ne": SERIES });
        filter.insert("readings_removed", is_set(page.readings_removed));
        let n = page.rows.len() + page.unreadable as usize;
        if n > 0 {
            filter.insert("readings", doc! { "$size": n as i32 });
        }
    }
    filter
}

/// Rows as the field `readings` of a page.
pub(crate) fn readings(rows: &Rows) -> Array {
    let reading = |row: model::rows::Row<'_>| {
        let mut reading = doc! { "ts": DateTime::from_millis(row.ts_ms) };
        reading.extend(
            row.named()
                .map(|(name, value)| (name.to_owned(), value_bson(value))),
        );
        Bson::from(reading)
    };
    rows.iter().map(reading).collect()
}

/// The fields that a recomputation sets in a document.
pub(crate) fn counted(recomputed: &Recomputed, unreadable: u32) -> Document {
    let mut set = doc! {
        "count": (recomputed.count + u64::from(unreadable)) as i32,
        "summary": summary_document(recomputed.fields.iter().map(|(name, (s, _))| (name, s))),
    };
    if recomputed.count > 0 {
        set.insert("first_ts", DateTime::from_millis(recomputed.first_ts_ms));
        set.insert("last_ts", DateTime::from_millis(recomputed.last_ts_ms));
    }
    set
}

/// A complete document of a bucket.
pub(crate) fn page_document(bucket: &StoredBucket, number: u32, page: &NewPage) -> Document {
    let mut document = doc! {
        "_id": page_id(&bucket.key, number),
        "schema_version": SCHEMA_VERSION,
        "sensor_id": &*bucket.key.sensor_id,
        "bucket_start": DateTime::from_millis(bucket.key.start.0),
        "bucket_end": DateTime::from_millis(bucket.end_ms),
        "page": number as i32,
        "tags": tags_document(&page.tags),
        "count": page.count as i32,
        "first_ts": DateTime::from_millis(page.first_ts_ms),
        "last_ts": DateTime::from_millis(page.last_ts_ms),
        "summary": summary_document(&page.summary),
    };
    match page.storage_mode {
        StorageMode::Bucket => document.insert("readings", readings(&page.rows)),
        StorageMode::TimeSeries => {
            document.insert("storage", SERIES);
            document.insert(CONVERTED, true)
        }
    };
    if page.sealed {
        document.insert("has_overflow", true);
    }
    document
}

impl Collections {
    async fn set(&self, filter: Document, set: Document) -> Result<Applied, MaintainError> {
        let result = self
            .buckets
            .update_one(filter, doc! { "$set": set, "$unset": { GATE: "" } })
            .await
            .map_err(failed("repairing a page"))?;
        Ok(Applied::to_one(result.matched_count))
    }

    /// Corrects the count, the times and the summary of a page. With `drop`, first removes the
    /// readings that are already in `drop`.
    ///
    /// A repair never lowers the count of an open page. The count is its version, and a service
    /// that has read an earlier count could match the same number again after further appends. A
    /// page whose count is lowered is sealed.
    pub(crate) async fn rewrite(
        &self,
        key: &BucketKey,
        page: &StoredPage,
        drop: Option<&mut HashSet<model::ReadingKey>>,
    ) -> Result<Applied, MaintainError> {
        let kept = drop
            .filter(|_| page.unreadable == 0)
            .map(|seen| without_duplicates(&page.rows, seen));
        let kept = kept.filter(|rows| rows.len() < page.rows.len());
        let recomputed = Recomputed::from_rows([kept.as_ref().unwrap_or(&page.rows)]);
        let mut set = counted(&recomputed, page.unreadable);
        let actual = (recomputed.count + u64::from(page.unreadable)) as i64;
        if page.count.is_some_and(|stored| actual < stored) {
            set.insert("has_overflow", true);
        }
        if let Some(rows) = &kept {
            set.insert("readings", readings(rows));
        }
        self.set(unchanged_filter(key, page), set).await
    }

    /// Seals a page that has a successor.
    pub(crate) async fn seal(
        &self,
        key: &BucketKey,
        page: &StoredPage,
    ) -> Result<Applied, MaintainError> {
        self.set(unchanged_filter(key, page), doc! { "has_overflow": true })
            .await
    }

    /// Inserts an empty sealed page in place of a missing one, so that the pages after it are found
    /// again.
    pub(crate) async fn fill_gap(
        &self,
        bucket: &StoredBucket,
        page: u32,
    ) -> Result<Applied, MaintainError> {
        let Some(next) = bucket.pages.iter().find(|p| p.page > page) else {
            return Ok(Applied::Conflict);
        };
        // Times within those of the bucket: the view uses the earliest and the latest of all pages.
        let ts_ms = next.first_ts_ms.unwrap_or(bucket.key.start.0);
        let empty = NewPage {
            storage_mode: bucket.storage_mode(),
            count: 0,
            sealed: true,
            first_ts_ms: ts_ms,
            last_ts_ms: ts_ms,
            summary: BTreeMap::new(),
            tags: next.tags.clone(),
            rows: Rows::default(),
        };
        self.insert_page(bucket, page, &empty).await
    }

    /// Inserts a page that does not exist yet.
    pub(crate) async fn insert_page(
        &self,
        bucket: &StoredBucket,
        number: u32,
        page: &NewPage,
    ) -> Result<Applied, MaintainError> {
        self.insert(page_document(bucket, number, page)).await
    }

    async fn insert(&self, document: Document) -> Result<Applied, MaintainError> {
        let raw = RawDocumentBuf::try_from(&document)
            .map_err(|e| MaintainError::Server(e.to_string()))?;
        match self.buckets.insert_one(raw).await {
            Ok(_) => Ok(Applied::Yes),
            // Another writer inserted it first.
            Err(error) if is_duplicate(&error) => Ok(Applied::Conflict),
            Err(error) => Err(failed("inserting a page")(error)),
        }
    }
}

/// Whether an insert failed because a document with the same id exists.
pub(crate) fn is_duplicate(error: &mongodb::error::Error) -> bool {
    use mongodb::error::{ErrorKind, WriteFailure};
    let code = match error.kind.as_ref() {
        ErrorKind::Write(WriteFailure::WriteError(e)) => Some(e.code),
        _ => command_code(error),
    };
    code.is_some_and(|code| statement_error(code) == StatementError::Conflict)
}
