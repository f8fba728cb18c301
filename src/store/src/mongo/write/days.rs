//! Writes marks in `rollup_pending` and documents in `sensor_days`.
//!
//! ```text
//! rollup_pending: { _id: { instance, day, sensor_id }, sensor_id, marked_at }
//! ```

use mongodb::bson::{Bson, DateTime, Document, doc};

use crate::days::{DayMark, DaySummary, DayWritten, SensorDay};
use crate::maintain::Hour;
use crate::mongo::connection::{Connection, in_part};
use crate::mongo::document::{summary_document, tags_document};
use crate::mongo::error::{StatementError, statement_error, write_errors};
use crate::mongo::pack::SCHEMA_VERSION;
use crate::mongo::write::replace::replace_all;
use crate::{BoxFuture, StoreError, StoreErrorKind};
use model::collections::{DAYS, PENDING_DAYS};

/// Bytes of the documents of one command.
const COMMAND_BYTES_MAX: usize = 8 << 20;

/// The id of a mark.
pub(crate) fn mark_id(mark: &DayMark) -> Document {
    doc! { "instance": &*mark.instance, "day": DateTime::from_millis(mark.day_ms), "sensor_id": &*mark.sensor_id }
}

fn mark_document(mark: &DayMark) -> Document {
    doc! {
        "_id": mark_id(mark),
        "marked_at": DateTime::from_millis(mark.version),
        "sensor_id": &*mark.sensor_id,
    }
}

/// Writes documents of `sensor_days` and `rollup_pending`.
#[derive(Debug, Clone)]
pub(crate) struct DayWriter {
    connection: Connection,
}

impl DayWriter {
    pub(crate) fn new(connection: Connection) -> DayWriter {
        DayWriter { connection }
    }

    /// Inserts them: few days are marked already, and an upsert takes mongod five times as long.
    pub(crate) async fn set_marks(&self, marks: &[DayMark]) -> Result<(), StoreError> {
        let documents: Vec<Document> = marks.iter().map(mark_document).collect();
        let command = doc! { "insert": PENDING_DAYS, "documents": documents, "ordered": false };
        let reply = self.connection.confirm(command).await?;
        let mut existing = vec![];
        for error in write_errors(&reply) {
            let mark = error.index.and_then(|at| marks.get(at));
            match (mark, statement_error(error.code)) {
                (Some(mark), StatementError::Conflict) => existing.push(mark),
                _ => return Err(StoreError::unknown(StoreErrorKind::Command, error.detail())),
            }
        }
        if existing.is_empty() {
            return Ok(());
        }
        self.raise_marks(&existing).await.map_err(in_part)
    }

    /// Upserts, because a mark may have been removed meanwhile.
    async fn raise_marks(&self, marks: &[&DayMark]) -> Result<(), StoreError> {
        let statement = |mark: &&DayMark| {
            let at = DateTime::from_millis(mark.version);
            let is_later = doc! { "$gt": ["$marked_at", at] };
            let marked_at = doc! { "$cond": [is_later, { "$add": ["$marked_at", 1] }, at] };
            let set =
                doc! { "marked_at": marked_at, "sensor_id": { "$literal": &*mark.sensor_id } };
            doc! { "q": { "_id": mark_id(mark) }, "u": [{ "$set": set }], "upsert": true }
        };
        let updates: Vec<Document> = marks.iter().map(statement).collect();
        let command = doc! { "update": PENDING_DAYS, "updates": updates, "ordered": false };
        self.connection.apply_all(command).await.map(drop)
    }

    pub(crate) async fn remove_marks(&self, marks: &[DayMark]) -> Result<(), StoreError> {
        let statement = |mark: &DayMark| {
            let at = DateTime::from_millis(mark.version);
            doc! { "q": { "_id": mark_id(mark), "marked_at": at }, "limit": 1 }
        };
        let deletes: Vec<Document> = marks.iter().map(statement).collect();
        let command = doc! { "delete": PENDING_DAYS, "deletes": deletes, "ordered": false };
        self.connection.apply_all(command).await.map(drop)
    }

    /// See [`crate::days::DayStore::write_days`].
    pub(crate) fn put_days<'a>(
        &'a self,
        days: &'a [(SensorDay, DaySummary)],
        replace: bool,
    ) -> BoxFuture<'a, Result<Vec<DayWritten>, StoreError>> {
        Box::pin(async move {
            let mut written = Vec::with_capacity(days.len());
            let mut rest = days;
            while !rest.is_empty() {
                let mut bytes = 0;
                let fits = |(_, summary): &&(SensorDay, DaySummary)| {
                    bytes += about_bytes(&summary.hour);
                    bytes <= COMMAND_BYTES_MAX
                };
                let (some, others) = rest.split_at(rest.iter().take_while(fits).count().max(1));
                let updates = some
                    .iter()
                    .map(|(day, summary)| statement(day, summary, replace));
                let answers = replace_all(&self.connection, DAYS, updates.collect()).await;
                written.extend(if written.is_empty() {
                    answers?
                } else {
                    answers.map_err(in_part)?
                });
                rest = others;
            }
            Ok(written)
        })
    }
}

fn statement(day: &SensorDay, summary: &DaySummary, replace: bool) -> Document {
    let document = document(day, summary);
    let id = document.get("_id").cloned().unwrap_or(Bson::Null);
    let start = DateTime::from_millis(day.day.start_ms);
    let mut q = doc! { "_id": id, "sensor_id": &*day.sensor_id, "day": start };
    if !replace {
        q.insert("count", doc! { "$lte": summary.hour.count as i64 });
    }
    doc! { "q": q, "u": document, "upsert": true }
}

/// The document of a day.
fn document(day: &SensorDay, DaySummary { hour, tags }: &DaySummary) -> Document {
    let date = |ms: Option<i64>| Bson::from(DateTime::from_millis(ms.unwrap_or(day.day.start_ms)));
    let start = DateTime::from_millis(day.day.start_ms);
    let mut document = doc! {
        "_id": { "sensor_id": &*day.sensor_id, "day": start },
        "schema_version": SCHEMA_VERSION,
        "sensor_id": &*day.sensor_id,
        "day": start,
        "count": hour.count as i64,
        "first_ts": date(hour.first_ts_ms),
        "last_ts": date(hour.last_ts_ms),
        "summary": summary_document(&hour.summary),
    };
    if !tags.is_empty() {
        document.insert("tags", tags_document(tags));
    }
    if hour.is_truncated {
        document.insert("summary_truncated", true);
    }
    document
}

fn about_bytes(hour: &Hour) -> usize {
    1024 + hour
        .summary
        .keys()
        .map(|name| name.len() + 80)
        .sum::<usize>()
}
