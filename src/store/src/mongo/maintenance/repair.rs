//! Guarded changes to a stored bucket, one at a time. [`super::reconcile`] explains which changes
//! are made and why they are safe while the service runs.

use std::collections::{BTreeMap, HashSet};

use mongodb::bson::{Array, Bson, DateTime, Document, RawDocumentBuf, doc};

use crate::maintain::bucket::{Recomputed, without_duplicates};
use crate::maintain::{MaintainError, StoredBucket, StoredPage};
use crate::mongo::document::{is_set, summary_document, tags_document};
use crate::mongo::error::{StatementError, command_code, statement_error};
use crate::mongo::pack::{GATE, SCHEMA_VERSION, SERIES};
use crate::mongo::read::bucket_reader::{Collections, failed, page_id, value_bson};
use crate::summary_pages::chunks;
use model::summary::PAGE_SUMMARY_BYTES_MAX;
use model::{BucketKey, FieldSummary, Rows, StorageMode};

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
fn counted(recomputed: &Recomputed, unreadable: u32) -> Document {
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

/// A complete document of a bucket, without readings.
pub(crate) fn document(
    bucket: &StoredBucket,
    page: u32,
    tags: Document,
    recomputed: &Recomputed,
) -> Document {
    let start = DateTime::from_millis(bucket.key.start.0);
    let mut document = doc! {
        "_id": page_id(&bucket.key, page),
        "schema_version": SCHEMA_VERSION,
        "sensor_id": &*bucket.key.sensor_id,
        "bucket_start": start,
        "bucket_end": DateTime::from_millis(bucket.end_ms),
        "page": page as i32,
        "tags": tags,
        "count": 0,
        "first_ts": start,
        "last_ts": start,
        "summary": {},
    };
    document.extend(counted(recomputed, 0));
    document
}

/// The documents of a bucket in time-series mode: one, or as many as its fields need or a writer
/// expects. How the count of measurements is distributed over them has no meaning
/// ([`crate::summary_pages`]); all but the last are sealed.
pub(crate) fn summaries(
    bucket: &StoredBucket,
    tags: &Document,
    recomputed: &Recomputed,
) -> Vec<Document> {
    let fields: BTreeMap<String, FieldSummary> = recomputed
        .fields
        .iter()
        .map(|(name, (s, _))| (name.clone(), *s))
        .collect();
    let mut chunks = chunks(fields, PAGE_SUMMARY_BYTES_MAX);
    chunks.resize(chunks.len().max(bucket.expected_pages()), vec![]);
    let pages = chunks.len() as u64;
    let mut left = recomputed.count;
    let document = |(n, chunk): (u64, Vec<(String, FieldSummary)>)| {
        let count = left.div_ceil(pages - n);
        left -= count;
        let fields = chunk
            .into_iter()
            .map(|(name, field)| (name, (field, 0.0)))
            .collect();
        let mut document = document(
            bucket,
            n as u32,
            tags.clone(),
            &Recomputed {
                count,
                fields,
                ..*recomputed
            },
        );
        document.insert("first_ts", DateTime::from_millis(recomputed.first_ts_ms));
        document.insert("last_ts", DateTime::from_millis(recomputed.last_ts_ms));
        document.insert("storage", SERIES);
        if n + 1 < pages {
            document.insert("has_overflow", true);
        }
        document
    };
    (0..).zip(chunks).map(document).collect()
}

/// Whether the change was applied: `false` if the document had changed since it was read.
pub(crate) type Applied = Result<bool, MaintainError>;

impl Collections {
    async fn set(&self, filter: Document, set: Document) -> Applied {
        let result = self
            .buckets
            .update_one(filter, doc! { "$set": set, "$unset": { GATE: "" } })
            .await
            .map_err(failed("repairing a page"))?;
        Ok(result.matched_count == 1)
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
    ) -> Applied {
        let kept = drop
            .filter(|_| page.unreadable == 0)
            .map(|seen| without_duplicates(&page.rows, seen));
        let kept = kept.filter(|rows| rows.len() < page.rows.len());
        let recomputed = Recomputed::of([kept.as_ref().unwrap_or(&page.rows)]);
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
    pub(crate) async fn seal(&self, key: &BucketKey, page: &StoredPage) -> Applied {
        self.set(unchanged_filter(key, page), doc! { "has_overflow": true })
            .await
    }

    /// Inserts an empty sealed page in place of a missing one, so that the pages after it are found
    /// again.
    pub(crate) async fn fill_gap(&self, bucket: &StoredBucket, page: u32) -> Applied {
        let Some(next) = bucket.pages.iter().find(|p| p.page > page) else {
            return Ok(false);
        };
        let mut document = document(
            bucket,
            page,
            tags_document(&next.tags),
            &Recomputed::default(),
        );
        // Times within those of the bucket: the view uses the earliest and the latest of all pages.
        for (name, ms) in [
            ("first_ts", next.first_ts_ms),
            ("last_ts", next.first_ts_ms),
        ] {
            document.insert(
                name,
                DateTime::from_millis(ms.unwrap_or(bucket.key.start.0)),
            );
        }
        match bucket.storage_mode() {
            StorageMode::Bucket => document.insert("readings", Array::new()),
            StorageMode::TimeSeries => document.insert("storage", SERIES),
        };
        document.insert("has_overflow", true);
        self.insert(document).await
    }

    async fn insert(&self, document: Document) -> Applied {
        let raw = RawDocumentBuf::try_from(&document)
            .map_err(|e| MaintainError::Server(e.to_string()))?;
        match self.buckets.insert_one(raw).await {
            Ok(_) => Ok(true),
            // Another writer inserted it first: read again.
            Err(error) if is_duplicate(&error) => Ok(false),
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
