//! Executes the requests of a [`Conversion`] in MongoDB.

use mongodb::ClientSession;
use mongodb::bson::{DateTime, Document, RawDocumentBuf, doc};
use mongodb::error::{
    ErrorKind, TRANSIENT_TRANSACTION_ERROR, UNKNOWN_TRANSACTION_COMMIT_RESULT, WriteFailure,
};
use mongodb::options::{ReadConcern, WriteConcern};

use crate::maintain::convert::{
    Answer, Conclusion, Conversion, ConversionSettings, EqualReadings, Insertion, LeftoverRemoval,
    Replacement, Request,
};
use crate::maintain::{MaintainError, PageSize, Step, StoredBucket};
use crate::mongo::document::tags_document;
use crate::mongo::error::{Applied, command_code};
use crate::mongo::maintenance::repair::{is_duplicate, page_document, unchanged_filter};
use crate::mongo::read::bucket_reader::{Collections, failed, measured_in, value_bson};
use model::summary::PAGE_SUMMARY_BYTES_MAX;
use model::{BucketKey, StorageMode};

/// Measurements per insert. Each takes some hundred bytes with `meta`, so an insert stays far below
/// the size limit of a command.
const INSERT_MAX: usize = 1000;
/// Attempts to determine whether a commit was applied.
const COMMITS: u32 = 5;

/// Called after each step; an error ends the conversion there, as a crash would.
pub(crate) type StepHook<'a> =
    &'a (dyn Fn(Step, &BucketKey) -> Result<(), MaintainError> + Send + Sync);

/// A conversion that ends if another writer changes the bucket, and leaves leftovers.
pub(crate) fn one_attempt(into: StorageMode, page: PageSize) -> ConversionSettings {
    ConversionSettings {
        into,
        page,
        summary_bytes_max: PAGE_SUMMARY_BYTES_MAX,
        insert_max: INSERT_MAX,
        tries_max: 1,
        equal: EqualReadings::KeepAll,
        leftovers: LeftoverRemoval::Leave,
    }
}

impl Collections {
    /// Executes a conversion to its end.
    pub(crate) async fn convert(
        &self,
        mut conversion: Conversion,
        on_step: StepHook<'_>,
    ) -> Result<Conclusion, MaintainError> {
        let key = conversion.key().clone();
        loop {
            let answer = match conversion.request() {
                Request::ReadDocuments => Answer::Documents(self.read_documents(&key).await?),
                Request::ReadMeasurements { end_ms } => {
                    Answer::Measurements(self.read_measurements(&key, end_ms).await?)
                }
                Request::Insert(insertion) => {
                    self.insert_measurements(&key, insertion).await?;
                    Answer::Inserted
                }
                Request::Replace(replacement) => {
                    match self.replace(&key, replacement, on_step).await? {
                        Applied::Yes => Answer::Replaced,
                        Applied::Conflict => Answer::Changed,
                    }
                }
                Request::RemoveMeasurements { end_ms } => {
                    let all = measured_in(&key, end_ms);
                    match self.measurements.delete_many(all).await {
                        Ok(result) => Answer::Removed(result.deleted_count),
                        // The server is older than 7.0: it deletes only by `meta`.
                        Err(error) if is_refusal(&error) => Answer::RemovalRefused,
                        Err(error) => return Err(failed("removing measurements")(error)),
                    }
                }
                Request::End(conclusion) => return Ok(conclusion.clone()),
            };
            for step in conversion.answer(answer) {
                on_step(*step, &key)?;
            }
        }
    }

    /// Folds the stray pages of a time-series bucket into measurements.
    pub(crate) async fn fold(
        &self,
        bucket: &StoredBucket,
        page: PageSize,
    ) -> Result<Applied, MaintainError> {
        let settings = one_attempt(StorageMode::TimeSeries, page);
        let conversion = Conversion::new(bucket.key.clone(), settings);
        let concluded = self.convert(conversion, &|_, _| Ok(())).await?;
        Ok(match concluded {
            Conclusion::Done(_) => Applied::Yes,
            _ => Applied::Conflict,
        })
    }

    async fn insert_measurements(
        &self,
        key: &BucketKey,
        insertion: &Insertion,
    ) -> Result<(), MaintainError> {
        let tags = tags_document(&insertion.tags);
        let meta = doc! { "sensor_id": &*key.sensor_id, "tags": tags };
        let mut measurements = vec![];
        for row in insertion.rows.iter() {
            let mut document = doc! { "ts": DateTime::from_millis(row.ts_ms), "meta": &meta };
            let values = row.named();
            document.extend(values.map(|(name, value)| (name.to_owned(), value_bson(value))));
            measurements.push(raw(&document)?);
        }
        let inserted = self.measurements.insert_many(measurements).await;
        inserted.map(drop).map_err(failed("inserting measurements"))
    }

    /// Replaces the documents of a bucket if all of them are unchanged.
    async fn replace(
        &self,
        key: &BucketKey,
        Replacement { old, new }: &Replacement,
        on_step: StepHook<'_>,
    ) -> Result<Applied, MaintainError> {
        let what = failed("replacing the documents of a bucket");
        let mut guards = old.pages.iter().map(|page| unchanged_filter(key, page));
        let mut documents = (0..)
            .zip(new)
            .map(|(number, page)| raw(&page_document(old, number, page)));
        let (Some(guard), Some(head)) = (guards.next(), documents.next()) else {
            return Ok(Applied::Conflict);
        };
        let head = head?;
        let removed: Vec<Document> = guards.collect();
        let inserted = documents.collect::<Result<Vec<_>, _>>()?;
        if removed.is_empty() && inserted.is_empty() {
            on_step(Step::Swapping, key)?;
            let replaced = self.buckets.replace_one(guard, head).await;
            return Ok(Applied::to_one(replaced.map_err(&what)?.matched_count));
        }
        let mut session = self.buckets.client().start_session().await.map_err(&what)?;
        let begun = session
            .start_transaction()
            .read_concern(ReadConcern::snapshot());
        begun
            .write_concern(WriteConcern::majority())
            .await
            .map_err(&what)?;
        let sent = self
            .statements(&mut session, guard, head, removed, inserted)
            .await;
        let done = match sent {
            Ok(Applied::Yes) => {
                on_step(Step::Swapping, key)?;
                commit(&mut session).await.map(|()| Applied::Yes)
            }
            other => {
                // An uncommitted transaction has no effect; if this abort does not reach the
                // server, the transaction expires.
                let _ = session.abort_transaction().await;
                other
            }
        };
        match done {
            Err(error) if error.contains_label(TRANSIENT_TRANSACTION_ERROR) => {
                Ok(Applied::Conflict)
            }
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
    ) -> mongodb::error::Result<Applied> {
        if self
            .buckets
            .replace_one(filter, head)
            .session(&mut *session)
            .await?
            .matched_count
            != 1
        {
            return Ok(Applied::Conflict);
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
                return Ok(Applied::Conflict);
            }
        }
        for page in inserted {
            match self.buckets.insert_one(page).session(&mut *session).await {
                Ok(_) => {}
                // Another writer inserted this page; the next attempt reads it.
                Err(e) if is_duplicate(&e) => return Ok(Applied::Conflict),
                Err(e) => return Err(e),
            }
        }
        Ok(Applied::Yes)
    }
}

/// The error code of a standalone server that is sent a transaction.
const ILLEGAL_OPERATION: i32 = 20;

async fn commit(session: &mut ClientSession) -> mongodb::error::Result<()> {
    for _ in 1..COMMITS {
        match session.commit_transaction().await {
            Err(error) if error.contains_label(UNKNOWN_TRANSACTION_COMMIT_RESULT) => {}
            done => return done,
        }
    }
    session.commit_transaction().await
}

fn raw(document: &Document) -> Result<RawDocumentBuf, MaintainError> {
    RawDocumentBuf::try_from(document).map_err(|e| MaintainError::Server(e.to_string()))
}

/// Whether the server refused this kind of delete: InvalidOptions (6.0), IllegalOperation, or
/// CommandNotSupported.
pub(crate) fn is_refusal(error: &mongodb::error::Error) -> bool {
    let code = match error.kind.as_ref() {
        ErrorKind::Write(WriteFailure::WriteError(e)) => Some(e.code),
        _ => command_code(error),
    };
    matches!(code, Some(72 | 20 | 115))
}
