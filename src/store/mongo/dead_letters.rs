//! The collection `dead_letters` for the commands that list, replay and purge dead letters, in the order of receipt.
//! ([`crate::store::Store::write_dead_letters`] writes them.)

use mongodb::bson::{Binary, Bson, DateTime, Document, doc, spec::BinarySubtype};
use mongodb::options::ReadConcern;

use crate::maintain::MaintainError;
use crate::maintain::dead_letters::{DeadLetterFilter, pattern_of};
use crate::model::{DeadLetter, OWN_SOURCE};
use crate::store::mongo::MongoStore;
use crate::store::mongo::error::describe;

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

/// A dead letter as a BSON document.
pub(super) fn document(dead_letter: &DeadLetter) -> Document {
    doc! {
        "received_at": DateTime::from_millis(dead_letter.received_at_ms),
        "source": &dead_letter.source,
        "topic": &dead_letter.topic,
        "payload": Binary { subtype: BinarySubtype::Generic, bytes: dead_letter.payload.clone() },
        "reason": &dead_letter.reason,
        "detail": &dead_letter.detail,
    }
}

/// Converts a document back. Other programs may have written incomplete documents; missing fields become empty.
fn dead_letter(mut document: Document) -> DeadLetterDocument {
    let mut text = |name: &str| match document.remove(name) {
        Some(Bson::String(text)) => text,
        _ => String::new(),
    };
    let (source, topic, reason, detail) = (text("source"), text("topic"), text("reason"), text("detail"));
    let received_at_ms = document.get_datetime("received_at").map_or(0, |t| t.timestamp_millis());
    let payload = match document.remove("payload") {
        Some(Bson::Binary(binary)) => binary.bytes,
        Some(Bson::String(text)) => text.into_bytes(),
        _ => vec![],
    };
    let id = DeadLetterId(document.remove("_id").unwrap_or(Bson::Null));
    DeadLetterDocument { id, dead_letter: DeadLetter { received_at_ms, source, topic, payload, reason, detail } }
}

/// The same with its id as text.
pub(super) fn read_dead_letter(document: Document) -> (String, DeadLetter) {
    let DeadLetterDocument { id, dead_letter } = dead_letter(document);
    (id.to_string(), dead_letter)
}

fn query(filter: &DeadLetterFilter) -> Document {
    let mut query = Document::new();
    if !filter.reasons.is_empty() {
        query.insert("reason", doc! { "$in": &filter.reasons });
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

impl MongoStore {
    /// Reads the next dead letters, oldest first, starting after `after`. Returns at most `dead_letters_max`, and stops
    /// once they hold `bytes_max` bytes of payload.
    ///
    /// # Errors
    /// The server failed.
    pub async fn dead_letters_after(
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
            let behind = doc! { "received_at": at, "_id": { "$gt": &id.0 } };
            query = doc! { "$and": [query, { "$or": [later, behind] }] };
        }
        self.dead_letters(query, 1, dead_letters_max, bytes_max).await
    }

    /// Reads the newest dead letters, newest first.
    ///
    /// # Errors
    /// The server failed.
    pub async fn newest_dead_letters(
        &self,
        filter: &DeadLetterFilter,
        dead_letters_max: usize,
        bytes_max: usize,
    ) -> Result<Vec<DeadLetterDocument>, MaintainError> {
        self.dead_letters(query(filter), -1, dead_letters_max, bytes_max).await
    }

    async fn dead_letters(
        &self,
        query: Document,
        order: i32,
        dead_letters_max: usize,
        bytes_max: usize,
    ) -> Result<Vec<DeadLetterDocument>, MaintainError> {
        let limit = i64::try_from(dead_letters_max).unwrap_or(i64::MAX);
        let find = self.dead.find(query).sort(doc! { "received_at": order, "_id": order }).limit(limit);
        let mut cursor = find.read_concern(ReadConcern::majority()).await.map_err(failed)?;
        let (mut dead_letters, mut bytes) = (vec![], 0);
        while bytes < bytes_max && cursor.advance().await.map_err(failed)? {
            let found = dead_letter(cursor.deserialize_current().map_err(failed)?);
            bytes += found.dead_letter.payload.len();
            dead_letters.push(found);
        }
        Ok(dead_letters)
    }

    /// Removes these dead letters and returns how many existed. Ids that do not exist are ignored.
    ///
    /// # Errors
    /// The server failed; some of them may be removed.
    pub async fn remove_dead_letters(&self, dead_letters: &[DeadLetterId]) -> Result<u64, MaintainError> {
        let ids: Vec<Bson> = dead_letters.iter().map(|id| id.0.clone()).collect();
        self.delete(doc! { "_id": { "$in": ids } }).await
    }

    /// Removes all dead letters that match the filter and returns how many.
    ///
    /// # Errors
    /// The server failed; some of them may be removed.
    pub async fn purge_dead_letters(&self, filter: &DeadLetterFilter) -> Result<u64, MaintainError> {
        self.delete(query(filter)).await
    }

    async fn delete(&self, query: Document) -> Result<u64, MaintainError> {
        let concern = self.options.write_concern.driver();
        let deleted = self.dead.delete_many(query).write_concern(concern).await;
        deleted.map(|d| d.deleted_count).map_err(failed)
    }
}

/// Dead letters that may expire and be evicted.
pub(super) fn of_senders() -> Document {
    doc! { "source": { "$lt": OWN_SOURCE } }
}
