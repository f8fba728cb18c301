//! The collection `dead_letters`: the service stores, counts and evicts dead letters; the commands
//! list, replay and purge them, in the order of receipt. `pipeline::dead_letters` has the design.
//!
//! **The byte limit** (`dead_letters.max_bytes`) is enforced by removing the oldest dead letters,
//! and not with a capped collection. A capped collection does not allow deletes before MongoDB 5.0
//! (which `replay` and `purge` need), has no TTL, and cannot be sharded. The total size is the
//! server's own statistic (`$collStats`). It needs no read of documents, and is the same for all
//! instances, regardless of which of them stored or purged. After a crash of a standalone server it
//! may miss what was stored since the last checkpoint (60 s) until `validate` is run; a replica set
//! corrects it during recovery.
//!
//! **Only dead letters of senders are evicted.** Those with [`OWN_SOURCE`] hold acknowledged
//! readings, and neither eviction nor the TTL removes them. Both use the same index: `received_at`,
//! restricted to dead letters whose source sorts before `store`. So the oldest ones are found
//! without reading the others, however many there are.
//!
//! Two instances that evict concurrently select the same dead letters; at worst each removes one
//! batch more than needed.

use std::time::Instant;

use mongodb::Collection;
use mongodb::bson::{Binary, Bson, DateTime, Document, RawDocumentBuf, doc, spec::BinarySubtype};
use mongodb::error::{ErrorKind, InsertManyError};
use mongodb::options::ReadConcern;

use crate::dead_letter_filter::{DeadLetterFilter, pattern_of};
use crate::maintain::MaintainError;
use crate::mongo::connection::{Connection, in_part};
use crate::mongo::document::{from_primary, int};
use crate::mongo::error::{
    StatementError, command_code, command_error, describe, shortened, statement_error,
};
use crate::mongo::setup::NAMESPACE_NOT_FOUND;
use crate::{BoxFuture, DeadLetterWritten, Evicted, StoreError, StoreErrorKind};
use model::collections::DEAD_LETTERS;
use model::{DeadLetter, OWN_SOURCE};
use telemetry::metrics::{self, StoreCommand};

/// Maximum dead letters per delete: their ids fit into a small command.
const EVICTED_MAX: usize = 1000;
/// Bytes after which one call stops removing.
const EVICTED_BYTES_MAX: u64 = 64 << 20;
/// Batch size. The server reads each dead letter to determine its size, and few may be needed.
const LOOK_AT: u32 = 32;

/// The `_id` of a dead letter.
#[derive(Debug, Clone, PartialEq)]
pub struct DeadLetterId(Bson);

impl std::fmt::Display for DeadLetterId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Bson::ObjectId(id) => f.write_str(&id.to_hex()),
            other => other.fmt(f),
        }
    }
}

/// A stored dead letter.
#[derive(Debug, Clone, PartialEq)]
pub struct DeadLetterDocument {
    /// Its `_id`.
    pub id: DeadLetterId,
    /// Its content.
    pub dead_letter: DeadLetter,
}

fn document(dead_letter: &DeadLetter) -> Document {
    doc! {
        "received_at": DateTime::from_millis(dead_letter.received_at_ms),
        "source": &dead_letter.source,
        "topic": &dead_letter.topic,
        "payload": Binary { subtype: BinarySubtype::Generic, bytes: dead_letter.payload.clone() },
        "reason": &dead_letter.reason,
        "detail": &dead_letter.detail,
    }
}

/// Converts a document back. Other programs may have written incomplete documents; missing fields
/// become empty.
fn dead_letter(mut document: Document) -> DeadLetterDocument {
    let mut text = |name: &str| match document.remove(name) {
        Some(Bson::String(text)) => text,
        _ => String::new(),
    };
    let source = text("source");
    let topic = text("topic");
    let reason = text("reason");
    let detail = text("detail");
    let received_at_ms = document
        .get_datetime("received_at")
        .map_or(0, |t| t.timestamp_millis());
    let payload = match document.remove("payload") {
        Some(Bson::Binary(binary)) => binary.bytes,
        Some(Bson::String(text)) => text.into_bytes(),
        _ => vec![],
    };
    let id = DeadLetterId(document.remove("_id").unwrap_or(Bson::Null));
    DeadLetterDocument {
        id,
        dead_letter: DeadLetter {
            received_at_ms,
            source,
            topic,
            payload,
            reason,
            detail,
        },
    }
}

/// The same with its id as text.
pub(super) fn read_dead_letter(document: Document) -> (String, DeadLetter) {
    let DeadLetterDocument { id, dead_letter } = dead_letter(document);
    (id.to_string(), dead_letter)
}

/// Dead letters that may expire and be evicted.
pub(super) fn of_senders() -> Document {
    doc! { "source": { "$lt": OWN_SOURCE } }
}

/// Stores, finds and removes documents of `dead_letters`.
#[derive(Debug, Clone)]
pub struct DeadLetterStore {
    connection: Connection,
}

impl DeadLetterStore {
    pub(super) fn new(connection: Connection) -> DeadLetterStore {
        DeadLetterStore { connection }
    }

    fn collection<T: Send + Sync>(&self) -> Collection<T> {
        self.connection.db().collection(DEAD_LETTERS)
    }

    /// See [`crate::Store::write_dead_letters`].
    pub(super) async fn write(
        &self,
        dead_letters: &[DeadLetter],
    ) -> Result<Vec<DeadLetterWritten>, StoreError> {
        let begun = Instant::now();
        let written = self.write_halved(dead_letters).await;
        metrics::store_command(
            StoreCommand::DeadLetter,
            dead_letters.len() as u64,
            begun.elapsed().as_secs_f64(),
        );
        written
    }

    /// Stores dead letters in one command. A command that is refused as a whole because of its data
    /// is halved until the dead letter at fault is alone.
    fn write_halved<'a>(
        &'a self,
        dead_letters: &'a [DeadLetter],
    ) -> BoxFuture<'a, Result<Vec<DeadLetterWritten>, StoreError>> {
        Box::pin(async move {
            let all = self.collection();
            let documents = dead_letters.iter().map(document).collect::<Vec<_>>();
            let concern = self.connection.options().write_concern.driver();
            let insert = async move {
                all.insert_many(documents)
                    .ordered(false)
                    .write_concern(concern)
                    .await
            };
            let error = match self.connection.limited(insert).await? {
                Ok(_) => return Ok(vec![DeadLetterWritten::Done; dead_letters.len()]),
                Err(error) => error,
            };
            match error.kind.as_ref() {
                ErrorKind::InsertMany(errors) => refused(errors, dead_letters.len(), &error),
                _ if !is_of_the_data(&error) => Err(command_error(&error)),
                _ if dead_letters.len() == 1 => Ok(vec![DeadLetterWritten::Rejected {
                    detail: describe(&error),
                }]),
                _ => {
                    let (a, b) = dead_letters.split_at(dead_letters.len() / 2);
                    let mut answers = self.write_halved(a).await?;
                    answers.extend(self.write_halved(b).await.map_err(in_part)?);
                    Ok(answers)
                }
            }
        })
    }

    /// See [`crate::Store::dead_letter_bytes`].
    pub(super) async fn bytes(&self) -> Result<u64, StoreError> {
        let dead = self.on_primary::<Document>();
        let size = async move {
            // On a sharded cluster: one row per shard. This reads no documents and allows no other
            // read concern.
            let size = [
                doc! { "$collStats": { "storageStats": {} } },
                doc! { "$project": { "size": "$storageStats.size" } },
            ];
            let ask = dead.aggregate(size).with_type::<RawDocumentBuf>();
            let mut rows = ask.await?;
            let mut bytes = 0;
            while rows.advance().await? {
                bytes += rows
                    .current()
                    .get("size")
                    .ok()
                    .flatten()
                    .and_then(int)
                    .unwrap_or(0);
            }
            Ok(u64::try_from(bytes).unwrap_or(0))
        };
        match self.connection.limited(size).await? {
            Err(error) if command_code(&error) == Some(NAMESPACE_NOT_FOUND) => Ok(0),
            done => done.map_err(|e| command_error(&e)),
        }
    }

    /// See [`crate::Store::evict_dead_letters`].
    pub(super) async fn evict(&self, bytes: u64) -> Result<Evicted, StoreError> {
        let dead = self.collection::<Document>();
        let oldest_first = self.on_primary();
        let wanted = bytes.min(EVICTED_BYTES_MAX);
        let concern = self.connection.options().write_concern.driver();
        let evict = async move {
            let (ids, found) = oldest(oldest_first, wanted).await?;
            if ids.is_empty() {
                return Ok(found);
            }
            let mut these = of_senders();
            these.insert("_id", doc! { "$in": &ids });
            let dead_letters = dead
                .delete_many(these)
                .write_concern(concern)
                .await?
                .deleted_count;
            // Another instance may have removed some of them first.
            Ok(Evicted {
                dead_letters,
                bytes: found.bytes * dead_letters / ids.len() as u64,
                ..found
            })
        };
        self.connection.ask(evict).await
    }

    /// To be read in the state of the primary, whatever other members have.
    fn on_primary<T: Send + Sync>(&self) -> Collection<T> {
        let options = from_primary(ReadConcern::local());
        let db = self.connection.db();
        db.collection_with_options(DEAD_LETTERS, options)
    }
}

/// The ids of the oldest dead letters with a total of `wanted` bytes, and their total.
async fn oldest(
    dead: Collection<RawDocumentBuf>,
    wanted: u64,
) -> mongodb::error::Result<(Vec<Bson>, Evicted)> {
    let mut ids = vec![];
    let mut found = Evicted::default();
    let shown = doc! { "received_at": 1, "bytes": { "$bsonSize": "$$ROOT" } };
    let find = dead
        .find(of_senders())
        .sort(doc! { "received_at": 1 })
        .projection(shown)
        .batch_size(LOOK_AT);
    let mut cursor = find.await?;
    while found.bytes < wanted && ids.len() < EVICTED_MAX {
        if !cursor.advance().await? {
            found.exhausted = true;
            break;
        }
        let dead_letter = cursor.current();
        let Some(id) = dead_letter.get("_id")? else {
            continue;
        };
        ids.push(id.try_into()?);
        found.bytes += dead_letter
            .get("bytes")?
            .and_then(int)
            .and_then(|n| u64::try_from(n).ok())
            .unwrap_or(0);
        found.until_ms = dead_letter
            .get_datetime("received_at")
            .map_or(found.until_ms, DateTime::timestamp_millis);
    }
    Ok((ids, found))
}

/// Whether a command was rejected because of its content: by the server, or by the driver for a
/// document above 16 MiB.
fn is_of_the_data(error: &mongodb::error::Error) -> bool {
    matches!(error.kind.as_ref(), ErrorKind::InvalidArgument { .. })
        || command_code(error)
            .is_some_and(|code| statement_error(code) != StatementError::Retryable)
}

/// The results of an insert in which some dead letters were rejected.
fn refused(
    errors: &InsertManyError,
    dead_letters: usize,
    error: &mongodb::error::Error,
) -> Result<Vec<DeadLetterWritten>, StoreError> {
    if errors.write_concern_error.is_some() {
        return Err(StoreError::unknown(
            StoreErrorKind::WriteConcern,
            describe(error),
        ));
    }
    let mut answers = vec![DeadLetterWritten::Done; dead_letters];
    for error in errors.write_errors.iter().flatten() {
        let detail = format!("{} ({})", shortened(&error.message), error.code);
        match (answers.get_mut(error.index), statement_error(error.code)) {
            // A duplicate key comes from a unique index that hourbucket did not create.
            (Some(answer), StatementError::Data | StatementError::Conflict) => {
                *answer = DeadLetterWritten::Rejected { detail }
            }
            _ => return Err(StoreError::unknown(StoreErrorKind::Command, detail)),
        }
    }
    Ok(answers)
}

fn query(filter: &DeadLetterFilter) -> Document {
    let mut query = Document::new();
    let mut reasons = doc! {};
    if !filter.reasons.is_empty() {
        reasons.insert("$in", &filter.reasons);
    }
    if !filter.except_reasons.is_empty() {
        reasons.insert("$nin", &filter.except_reasons);
    }
    if !reasons.is_empty() {
        query.insert("reason", reasons);
    }
    if !filter.sources.is_empty() {
        query.insert("source", doc! { "$in": &filter.sources });
    }
    if let Some(topic) = &filter.topic {
        query.insert("topic", doc! { "$regex": pattern_of(topic) });
    }
    let mut received = Document::new();
    for (operator, at_ms) in [("$gte", filter.since_ms), ("$lt", filter.until_ms)] {
        if let Some(at_ms) = at_ms {
            received.insert(operator, DateTime::from_millis(at_ms));
        }
    }
    if !received.is_empty() {
        query.insert("received_at", received);
    }
    query
}

fn failed(error: mongodb::error::Error) -> MaintainError {
    MaintainError::Server(describe(&error))
}

/// For the commands, without a time limit.
impl DeadLetterStore {
    /// Reads the next dead letters, oldest first, starting after `after`. Returns at most
    /// `dead_letters_max`, and stops once they hold `bytes_max` bytes of payload.
    ///
    /// # Errors
    /// The server failed.
    pub async fn find_after(
        &self,
        filter: &DeadLetterFilter,
        after: Option<&DeadLetterDocument>,
        dead_letters_max: usize,
        bytes_max: usize,
    ) -> Result<Vec<DeadLetterDocument>, MaintainError> {
        let mut query = query(filter);
        if let Some(DeadLetterDocument { id, dead_letter }) = after {
            let at = DateTime::from_millis(dead_letter.received_at_ms);
            let later = doc! { "received_at": { "$gt": at } };
            let same_time = doc! { "received_at": at, "_id": { "$gt": &id.0 } };
            query = doc! { "$and": [query, { "$or": [later, same_time] }] };
        }
        let mut dead_letters = vec![];
        let mut bytes = 0;
        self.find(query, 1, dead_letters_max, |found| {
            bytes += found.dead_letter.payload.len();
            dead_letters.push(found.clone());
            bytes < bytes_max
        })
        .await?;
        Ok(dead_letters)
    }

    /// Passes the newest dead letters to `on_found`, newest first and one by one, since their
    /// payloads together may be large. Ends after `dead_letters_max`, or when it returns `false`.
    ///
    /// # Errors
    /// The server failed.
    pub async fn find_newest(
        &self,
        filter: &DeadLetterFilter,
        dead_letters_max: usize,
        on_found: impl FnMut(&DeadLetterDocument) -> bool,
    ) -> Result<(), MaintainError> {
        self.find(query(filter), -1, dead_letters_max, on_found)
            .await
    }

    /// The receipt time of the newest matching dead letter of a sender, in milliseconds since 1970.
    ///
    /// # Errors
    /// The server failed.
    pub async fn newest_of_senders(
        &self,
        filter: &DeadLetterFilter,
    ) -> Result<Option<i64>, MaintainError> {
        let mut newest_ms = None;
        let on_found = |found: &DeadLetterDocument| {
            newest_ms = Some(found.dead_letter.received_at_ms);
            false
        };
        let query = doc! { "$and": [query(filter), of_senders()] };
        self.find(query, -1, 1, on_found).await?;
        Ok(newest_ms)
    }

    async fn find(
        &self,
        query: Document,
        order: i32,
        dead_letters_max: usize,
        mut on_found: impl FnMut(&DeadLetterDocument) -> bool,
    ) -> Result<(), MaintainError> {
        let limit = i64::try_from(dead_letters_max).unwrap_or(i64::MAX);
        let dead = self.collection::<Document>();
        let find = dead
            .find(query)
            .sort(doc! { "received_at": order, "_id": order })
            .limit(limit)
            .read_concern(ReadConcern::majority());
        let mut cursor = find.await.map_err(failed)?;
        while cursor.advance().await.map_err(failed)? {
            let found = dead_letter(cursor.deserialize_current().map_err(failed)?);
            if !on_found(&found) {
                break;
            }
        }
        Ok(())
    }

    /// Removes these dead letters and returns how many existed. Ids that do not exist are ignored.
    ///
    /// # Errors
    /// The server failed; some of them may be removed.
    pub async fn remove(&self, dead_letters: &[DeadLetterId]) -> Result<u64, MaintainError> {
        let ids: Vec<Bson> = dead_letters.iter().map(|id| id.0.clone()).collect();
        self.delete(doc! { "_id": { "$in": ids } }).await
    }

    /// Removes all dead letters that match the filter and returns how many.
    ///
    /// # Errors
    /// The server failed; some of them may be removed.
    pub async fn purge(&self, filter: &DeadLetterFilter) -> Result<u64, MaintainError> {
        self.delete(query(filter)).await
    }

    async fn delete(&self, query: Document) -> Result<u64, MaintainError> {
        let concern = self.connection.options().write_concern.driver();
        let dead = self.collection::<Document>();
        let deleted = dead.delete_many(query).write_concern(concern).await;
        deleted.map(|d| d.deleted_count).map_err(failed)
    }
}
