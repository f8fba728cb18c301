//! Stores, counts and evicts dead letters for the service. ([`super::dead_letters`] has the operations of the
//! maintenance commands.)
//!
//! **The byte limit** (`dead_letters.max_bytes`) is enforced by removing the oldest dead letters, and not with a capped
//! collection. A capped collection does not allow deletes before MongoDB 5.0 (which `replay` and `purge` need), has no
//! TTL, and cannot be sharded. The total size is the server's own statistic (`$collStats`). It needs no read of
//! documents, and is the same for all instances, regardless of which of them stored or purged. After a crash of a
//! standalone server it may miss what was stored since the last checkpoint (60 s) until `validate` is run; a replica
//! set corrects it during recovery.
//!
//! **Only dead letters of senders are evicted.** Those with [`OWN_SOURCE`] hold acknowledged readings, and neither
//! eviction nor the TTL removes them. Both use the same index: `received_at`, restricted to dead letters whose source
//! sorts before `store`. So the oldest ones are found without reading the others, however many there are.
//!
//! Two instances that evict concurrently select the same dead letters; at worst each removes one batch more than
//! needed.

use mongodb::bson::{Bson, DateTime, RawDocumentBuf, doc};
use mongodb::error::{ErrorKind, InsertManyError};
use mongodb::options::{ReadConcern, ReadPreference, SelectionCriteria};

use crate::model::DeadLetter;
use crate::store::mongo::MongoStore;
use crate::store::mongo::dead_letters;
use crate::store::mongo::document::int;
use crate::store::mongo::error::{StatementError, command_code, command_error, describe, statement_error};
use crate::store::mongo::in_part;
use crate::store::mongo::setup::NAMESPACE_NOT_FOUND;
use crate::store::{BoxFuture, DeadLetterWritten, Evicted, StoreError, StoreErrorKind};

/// Maximum dead letters per delete: their ids fit into a small command.
const EVICTED_MAX: usize = 1000;
/// Bytes after which one call stops removing.
const EVICTED_BYTES_MAX: u64 = 64 << 20;
/// Batch size. The server reads each dead letter to determine its size, and few may be needed.
const LOOK_AT: u32 = 32;

impl MongoStore {
    /// Stores dead letters in one command; one that is refused for its data as a whole is halved until the dead letter at fault
    /// stands alone.
    pub(in crate::store::mongo) fn keep_dead_letters<'a>(
        &'a self,
        dead_letters: &'a [DeadLetter],
    ) -> BoxFuture<'a, Result<Vec<DeadLetterWritten>, StoreError>> {
        Box::pin(async move {
            let (all, documents) =
                (self.dead.clone(), dead_letters.iter().map(dead_letters::document).collect::<Vec<_>>());
            let concern = self.options.write_concern.driver();
            let insert = async move { all.insert_many(documents).ordered(false).write_concern(concern).await };
            let error = match self.limited(insert).await? {
                Ok(_) => return Ok(vec![DeadLetterWritten::Done; dead_letters.len()]),
                Err(error) => error,
            };
            match error.kind.as_ref() {
                ErrorKind::InsertMany(errors) => refused(errors, dead_letters.len(), &error),
                _ if !is_of_the_data(&error) => Err(command_error(&error)),
                _ if dead_letters.len() == 1 => Ok(vec![DeadLetterWritten::Rejected { detail: describe(&error) }]),
                _ => {
                    let (a, b) = dead_letters.split_at(dead_letters.len() / 2);
                    let mut answers = self.keep_dead_letters(a).await?;
                    answers.extend(self.keep_dead_letters(b).await.map_err(in_part)?);
                    Ok(answers)
                }
            }
        })
    }

    pub(in crate::store::mongo) async fn dead_letter_bytes(&self) -> Result<u64, StoreError> {
        let dead = self.dead.clone_with_type::<RawDocumentBuf>();
        let size = async move {
            // On a sharded cluster: one row per shard. This reads no documents and allows no other read concern.
            let size =
                [doc! { "$collStats": { "storageStats": {} } }, doc! { "$project": { "size": "$storageStats.size" } }];
            let ask = dead.aggregate(size).read_concern(ReadConcern::local());
            let mut rows = ask.selection_criteria(primary()).with_type::<RawDocumentBuf>().await?;
            let mut bytes = 0;
            while rows.advance().await? {
                bytes += rows.current().get("size").ok().flatten().and_then(int).unwrap_or(0);
            }
            Ok(u64::try_from(bytes).unwrap_or(0))
        };
        match self.limited(size).await? {
            Err(error) if command_code(&error) == Some(NAMESPACE_NOT_FOUND) => Ok(0),
            done => done.map_err(|e| command_error(&e)),
        }
    }

    pub(in crate::store::mongo) async fn evict(&self, bytes: u64) -> Result<Evicted, StoreError> {
        let (dead, wanted) = (self.dead.clone(), bytes.min(EVICTED_BYTES_MAX));
        let concern = self.options.write_concern.driver();
        let evict = async move {
            let (ids, found) = oldest(dead.clone_with_type(), wanted).await?;
            if ids.is_empty() {
                return Ok(found);
            }
            let mut these = dead_letters::of_senders();
            these.insert("_id", doc! { "$in": &ids });
            let dead_letters = dead.delete_many(these).write_concern(concern).await?.deleted_count;
            // Another instance may have removed some of them first.
            Ok(Evicted { dead_letters, bytes: found.bytes * dead_letters / ids.len() as u64, ..found })
        };
        self.limited(evict).await?.map_err(|e| command_error(&e))
    }
}

fn primary() -> SelectionCriteria {
    SelectionCriteria::ReadPreference(ReadPreference::Primary)
}

/// The ids of the oldest dead letters with a total of `wanted` bytes, and their total.
async fn oldest(
    dead: mongodb::Collection<RawDocumentBuf>,
    wanted: u64,
) -> mongodb::error::Result<(Vec<Bson>, Evicted)> {
    let (mut ids, mut found) = (vec![], Evicted::default());
    let shown = doc! { "received_at": 1, "bytes": { "$bsonSize": "$$ROOT" } };
    let find =
        dead.find(dead_letters::of_senders()).sort(doc! { "received_at": 1 }).projection(shown).batch_size(LOOK_AT);
    let mut cursor = find.selection_criteria(primary()).await?;
    while found.bytes < wanted && ids.len() < EVICTED_MAX {
        if !cursor.advance().await? {
            found.exhausted = true;
            break;
        }
        let dead_letter = cursor.current();
        let Some(id) = dead_letter.get("_id")? else { continue };
        ids.push(id.try_into()?);
        found.bytes += dead_letter.get("bytes")?.and_then(int).and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
        found.until_ms = dead_letter.get_datetime("received_at").map_or(found.until_ms, DateTime::timestamp_millis);
    }
    Ok((ids, found))
}

/// Whether a command was rejected because of its content: by the server, or by the driver for a document above 16 MiB.
fn is_of_the_data(error: &mongodb::error::Error) -> bool {
    matches!(error.kind.as_ref(), ErrorKind::InvalidArgument { .. })
        || command_code(error).is_some_and(|code| statement_error(code) != StatementError::Retryable)
}

/// The results of an insert in which some dead letters were rejected.
fn refused(
    errors: &InsertManyError,
    dead_letters: usize,
    error: &mongodb::error::Error,
) -> Result<Vec<DeadLetterWritten>, StoreError> {
    if errors.write_concern_error.is_some() {
        return Err(StoreError::Unknown { kind: StoreErrorKind::WriteConcern, detail: describe(error) });
    }
    let mut answers = vec![DeadLetterWritten::Done; dead_letters];
    for error in errors.write_errors.iter().flatten() {
        let detail = format!("{} ({})", error.message, error.code);
        match (answers.get_mut(error.index), statement_error(error.code)) {
            // A duplicate key comes from a unique index that hourbucket did not create.
            (Some(answer), StatementError::Data | StatementError::Conflict) => {
                *answer = DeadLetterWritten::Rejected { detail }
            }
            _ => return Err(StoreError::Unknown { kind: StoreErrorKind::Command, detail }),
        }
    }
    Ok(answers)
}
