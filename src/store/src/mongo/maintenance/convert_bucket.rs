//! Converts one bucket from one storage mode to the other, or folds a stray page into it.
//! [`super::convert`] explains the order of the steps.

use std::collections::HashSet;

use mongodb::ClientSession;
use mongodb::bson::{Bson, DateTime, Document, RawDocumentBuf, doc};
use mongodb::error::{TRANSIENT_TRANSACTION_ERROR, UNKNOWN_TRANSACTION_COMMIT_RESULT};
use mongodb::options::{ReadConcern, WriteConcern};

use crate::maintain::bucket::{Recomputed, without_duplicates};
use crate::maintain::{Kind, MaintainError, ReadingCounts, Step, StoredBucket, StoredPage, audit};
use crate::mongo::document::tags_document;
use crate::mongo::error::command_code;
use crate::mongo::maintenance::repair::{
    document, is_duplicate, readings, summaries, unchanged_filter,
};
use crate::mongo::read::bucket_reader::{Collections, failed, value_bson};
use model::rows::{Row, StatementLimits};
use model::summary::PAGE_SUMMARY_BYTES_MAX;
use model::{BucketKey, Rows, StorageMode};

/// Measurements per insert. Each takes some hundred bytes with `meta`, so an insert stays far below
/// the size limit of a command.
const INSERT_MAX: usize = 1000;
/// Attempts to determine whether a commit was applied.
const COMMITS: u32 = 5;

/// The outcome of one attempt to convert a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// The documents now have the new storage mode; number of readings.
    Done(u64),
    /// There was nothing to do.
    Nothing,
    /// Another writer changed the bucket: read it again.
    Again,
    /// The bucket cannot be converted, and why.
    Skip(String),
}

/// Called after each step; an error ends the conversion there, as a crash would.
pub(crate) type StepHook<'a> =
    &'a (dyn Fn(Step, &BucketKey) -> Result<(), MaintainError> + Send + Sync);

/// The writes of a swap: a replacement for page 0, pages to delete and pages to insert. Atomic.
struct BucketConversion {
    head: (Document, Document),
    removed: Vec<Document>,
    inserted: Vec<Document>,
}

impl Collections {
    /// Converts pages to measurements. If the bucket is in time-series mode already, converts only
    /// its stray pages.
    pub(crate) async fn move_to_series(
        &self,
        key: &BucketKey,
        on_step: StepHook<'_>,
    ) -> Result<Attempt, MaintainError> {
        let bucket = self.bucket(key, true).await?;
        let mixed = bucket.storage_mode() == StorageMode::TimeSeries;
        if bucket.pages.is_empty() || (mixed && bucket.strays().next().is_none()) {
            return Ok(Attempt::Nothing);
        }
        // Its summaries could not be computed again from measurements.
        if bucket.pages.iter().any(|page| page.readings_removed) {
            return Ok(Attempt::Nothing);
        }
        if let Some(why) = unfit(&bucket) {
            return Ok(Attempt::Skip(why));
        }
        on_step(Step::Read, key)?;
        let before = bucket
            .measured
            .as_ref()
            .map(|m| ReadingCounts::of([&m.rows]))
            .unwrap_or_default();
        let mut there = before.clone();
        let sources: Vec<&StoredPage> = if mixed {
            bucket.strays().collect()
        } else {
            bucket.pages.iter().collect()
        };
        let missing = missing_measurements(&bucket, &sources, &mut there)?;
        if !mixed && there.total() > 0 {
            return Ok(Attempt::Skip(format!(
                "sensor_readings has {} measurements of it that are not in its pages: remove them \
                 first",
                there.total()
            )));
        }
        let n = missing.len() as u64;
        self.insert_measurements(&missing, key, on_step).await?;
        on_step(Step::Copied, key)?;
        // Read back with majority read concern: the compared documents are not rolled back.
        let mut copy = StoredBucket {
            measured: None,
            ..bucket.clone()
        };
        self.measure(&mut copy).await?;
        let Some(measured) = &copy.measured else {
            return Ok(Attempt::Again);
        };
        if !is_complete(&measured.rows, &bucket, &sources, before.total() + n) {
            return Ok(Attempt::Again);
        }
        on_step(Step::Verified, key)?;
        // The tags of the last page that has any.
        let tagged = bucket.pages.iter().rev().find(|p| !p.tags.is_empty());
        let tags = tagged.map(|p| tags_document(&p.tags)).unwrap_or_default();
        let mut pages = summaries(&bucket, &tags, &Recomputed::of([&measured.rows])).into_iter();
        let Some(head) = pages.next() else {
            return Ok(Attempt::Again);
        };
        let swap = BucketConversion {
            head: (unchanged_filter(key, &bucket.pages[0]), head),
            removed: bucket.pages[1..]
                .iter()
                .map(|p| unchanged_filter(key, p))
                .collect(),
            inserted: pages.collect(),
        };
        if !self.swap(swap, key, on_step).await? {
            return Ok(Attempt::Again);
        }
        on_step(Step::Swapped, key)?;
        Ok(Attempt::Done(if mixed { n } else { bucket.paged() }))
    }

    /// Inserts the measurements that are missing.
    async fn insert_measurements(
        &self,
        missing: &[RawDocumentBuf],
        key: &BucketKey,
        on_step: StepHook<'_>,
    ) -> Result<(), MaintainError> {
        for (i, chunk) in missing.chunks(INSERT_MAX).enumerate() {
            self.measurements
                .insert_many(chunk)
                .await
                .map_err(failed("inserting measurements"))?;
            if i == 0 {
                on_step(Step::PartCopied, key)?;
            }
        }
        Ok(())
    }

    /// Folds the stray pages of a time-series bucket into measurements; returns `false` if another
    /// writer changed the bucket.
    pub(crate) async fn fold(&self, bucket: &StoredBucket) -> Result<bool, MaintainError> {
        Ok(matches!(
            self.move_to_series(&bucket.key, &|_, _| Ok(())).await?,
            Attempt::Done(_) | Attempt::Nothing
        ))
    }

    /// Converts measurements to pages of at most `limits` readings and bytes; `once`: keep only the
    /// first of equal ones.
    pub(crate) async fn move_to_pages(
        &self,
        key: &BucketKey,
        limits: (u32, u64),
        once: bool,
        on_step: StepHook<'_>,
    ) -> Result<Attempt, MaintainError> {
        let bucket = self.bucket(key, true).await?;
        let (Some(head), Some(measured), StorageMode::TimeSeries) = (
            bucket.pages.first(),
            &bucket.measured,
            bucket.storage_mode(),
        ) else {
            return Ok(Attempt::Nothing);
        };
        if bucket.strays().next().is_some() {
            return Ok(Attempt::Skip(
                "has stray pages: run `hourbucket reconcile --repair` first".into(),
            ));
        }
        if bucket.has_lost_measurements() {
            return Ok(Attempt::Nothing);
        }
        if let Some(why) = unfit(&bucket) {
            return Ok(Attempt::Skip(why));
        }
        on_step(Step::Read, key)?;
        let single = once.then(|| without_duplicates(&measured.rows, &mut HashSet::new()));
        let rows = single.as_ref().unwrap_or(&measured.rows);
        let mut pages = cut(&bucket, rows, limits).into_iter();
        let Some(first) = pages.next() else {
            return Ok(Attempt::Nothing);
        };
        let removed = bucket.pages[1..]
            .iter()
            .map(|page| unchanged_filter(key, page))
            .collect();
        let swap = BucketConversion {
            head: (unchanged_filter(key, head), first),
            removed,
            inserted: pages.collect(),
        };
        if !self.swap(swap, key, on_step).await? {
            return Ok(Attempt::Again);
        }
        on_step(Step::Swapped, key)?;
        Ok(Attempt::Done(rows.len() as u64))
    }

    /// Executes a swap if all its documents are unchanged; returns `false` if one has changed since
    /// it was read.
    async fn swap(
        &self,
        swap: BucketConversion,
        key: &BucketKey,
        on_step: StepHook<'_>,
    ) -> Result<bool, MaintainError> {
        let what = failed("replacing the documents of a bucket");
        let head = raw(&swap.head.1)?;
        if swap.removed.is_empty() && swap.inserted.is_empty() {
            on_step(Step::Swapping, key)?;
            return Ok(self
                .buckets
                .replace_one(swap.head.0, head)
                .await
                .map_err(&what)?
                .matched_count
                == 1);
        }
        let inserted = swap
            .inserted
            .iter()
            .map(raw)
            .collect::<Result<Vec<_>, _>>()?;
        let mut session = self.buckets.client().start_session().await.map_err(&what)?;
        let begun = session
            .start_transaction()
            .read_concern(ReadConcern::snapshot());
        begun
            .write_concern(WriteConcern::majority())
            .await
            .map_err(&what)?;
        let sent = self
            .statements(&mut session, swap.head.0, head, swap.removed, inserted)
            .await;
        let done = match sent {
            Ok(true) => {
                on_step(Step::Swapping, key)?;
                commit(&mut session).await
            }
            other => {
                // An uncommitted transaction has no effect; if this abort does not reach the
                // server, the transaction expires.
                let _ = session.abort_transaction().await;
                other
            }
        };
        match done {
            Err(error) if error.contains_label(TRANSIENT_TRANSACTION_ERROR) => Ok(false),
            Err(error) if command_code(&error) == Some(ILLEGAL_OPERATION) => Err(MaintainError::Refused(
                "the server does not support transactions, which a bucket of several pages needs: \
                 make it a replica set (one member is enough)"
                    .into(),
            )),
            done => done.map_err(&what),
        }
    }

    async fn statements(
        &self,
        session: &mut ClientSession,
        filter: Document,
        head: RawDocumentBuf,
        removed: Vec<Document>,
        inserted: Vec<RawDocumentBuf>,
    ) -> mongodb::error::Result<bool> {
        if self
            .buckets
            .replace_one(filter, head)
            .session(&mut *session)
            .await?
            .matched_count
            != 1
        {
            return Ok(false);
        }
        for filter in removed {
            if self
                .buckets
                .delete_one(filter)
                .session(&mut *session)
                .await?
                .deleted_count
                != 1
            {
                return Ok(false);
            }
        }
        for page in inserted {
            match self.buckets.insert_one(page).session(&mut *session).await {
                Ok(_) => {}
                // Another writer inserted this page; the next attempt reads it.
                Err(e) if is_duplicate(&e) => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }
}

/// The error code of a standalone server that is sent a transaction.
const ILLEGAL_OPERATION: i32 = 20;

async fn commit(session: &mut ClientSession) -> mongodb::error::Result<bool> {
    for _ in 1..COMMITS {
        match session.commit_transaction().await {
            Err(error) if error.contains_label(UNKNOWN_TRANSACTION_COMMIT_RESULT) => {}
            done => return done.map(|()| true),
        }
    }
    session.commit_transaction().await.map(|()| true)
}

/// Why a bucket must be repaired before its storage mode can change.
fn unfit(bucket: &StoredBucket) -> Option<String> {
    let fits = |kind: &Kind| {
        matches!(
            kind,
            Kind::Duplicates { .. } | Kind::Leftover { .. } | Kind::Stray { .. }
        )
    };
    let unreadable = bucket.strays().any(|p| p.unreadable > 0);
    // The document of a bucket with stray pages is rewritten from the measurements anyway.
    let mixed =
        bucket.storage_mode() == StorageMode::TimeSeries && bucket.strays().next().is_some();
    let found: Vec<&str> = match mixed {
        true if unreadable => vec!["unreadable"],
        true => vec![],
        false => audit(bucket)
            .iter()
            .filter(|f| !fits(&f.kind))
            .map(|f| f.kind.name())
            .collect(),
    };
    (!found.is_empty()).then(|| {
        format!(
            "differs ({}): run `hourbucket reconcile` first",
            found.join(", ")
        )
    })
}

/// The readings of these pages that are not in `there`, as measurements. Removes from `there` those
/// that are, except for stray pages.
fn missing_measurements(
    bucket: &StoredBucket,
    sources: &[&StoredPage],
    there: &mut ReadingCounts,
) -> Result<Vec<RawDocumentBuf>, MaintainError> {
    let mixed = bucket.storage_mode() == StorageMode::TimeSeries;
    let mut missing = vec![];
    for page in sources {
        // A page that an append recreated has no tags, and another `meta` would start another
        // series.
        let tags = if mixed && page.tags.is_empty() {
            &bucket.pages[0].tags
        } else {
            &page.tags
        };
        let meta = doc! { "sensor_id": &*bucket.key.sensor_id, "tags": tags_document(tags) };
        for row in page.rows.iter() {
            // A stray page may be a copy of existing measurements; equal readings in a bucket's own
            // pages are counted.
            let is_known = if mixed {
                there.holds(&row.key())
            } else {
                there.take(&row.key())
            };
            if !is_known {
                missing.push(measurement(&row, &meta)?);
            }
        }
    }
    Ok(missing)
}

/// Whether the copy is complete. Measurements of a bucket's own pages must be exactly their
/// readings. With stray pages there must be `total` of them, with every reading of these pages.
fn is_complete(
    measured: &Rows,
    bucket: &StoredBucket,
    sources: &[&StoredPage],
    total: u64,
) -> bool {
    let now = ReadingCounts::of([measured]);
    if bucket.storage_mode() == StorageMode::TimeSeries {
        now.total() == total
            && sources
                .iter()
                .all(|p| p.rows.iter().all(|r| now.holds(&r.key())))
    } else {
        now == ReadingCounts::of(bucket.pages.iter().map(|p| &p.rows))
    }
}

fn measurement(row: &Row<'_>, meta: &Document) -> Result<RawDocumentBuf, MaintainError> {
    let mut document = doc! { "ts": DateTime::from_millis(row.ts_ms), "meta": meta };
    document.extend(
        row.named()
            .map(|(name, value)| (name.to_owned(), value_bson(value))),
    );
    raw(&document)
}

fn raw(document: &Document) -> Result<RawDocumentBuf, MaintainError> {
    RawDocumentBuf::try_from(document).map_err(|e| MaintainError::Server(e.to_string()))
}

/// Splits readings into pages, and adds empty ones if a writer expects more; all but the last are
/// sealed.
fn cut(bucket: &StoredBucket, rows: &Rows, (readings_max, bytes_max): (u32, u64)) -> Vec<Document> {
    let tags = bucket
        .measured
        .as_ref()
        .map(|m| tags_document(&m.tags))
        .unwrap_or_default();
    let room = StatementLimits {
        rows: readings_max as usize,
        bytes: bytes_max,
        summary_bytes: PAGE_SUMMARY_BYTES_MAX,
    };
    let mut rest = rows.clone();
    let mut pages = vec![];
    loop {
        let (part, _) = rest.take_room(room);
        let mut page = document(
            bucket,
            pages.len() as u32,
            tags.clone(),
            &Recomputed::of([&part]),
        );
        page.insert("readings", Bson::Array(readings(&part)));
        if part.is_empty() {
            // Times within those of the bucket: the view uses the earliest and the latest of all
            // pages.
            page.insert("first_ts", DateTime::from_millis(rows.last_ts_ms()));
            page.insert("last_ts", DateTime::from_millis(rows.last_ts_ms()));
        }
        if rest.is_empty() && pages.len() + 1 >= bucket.expected_pages() {
            pages.push(page);
            return pages;
        }
        page.insert("has_overflow", true);
        pages.push(page);
    }
}
