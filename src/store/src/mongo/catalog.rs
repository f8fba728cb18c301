//! `sensor_catalog`: one document per sensor. [`crate::catalog`] has its rules,
//! [`super::catalog_document`] its form. `hourbucket_meta` `{_id: "running", at}` has the time up to
//! which an instance is known to have run, as precise as it looks for silent sensors.
//!
//! The indexes of `labels` and `field_names` end with `_id`, so that a query by tag or field
//! returns one page after another in the order of the ids, on every server version, without
//! sorting. The index of `last_arrival` counts silent sensors without reading a document; that of
//! `created` finds the newest ones.
//!
//! An update is merged in rounds: the entries are read, missing ones are inserted, and those that
//! lack something are updated with operators that commute (`$min`, `$max`, `$addToSet`); nothing is
//! sent for the others. So a sensor that is known costs one lookup (6 µs of mongod) and a new one
//! an insert, not an upsert (about ten times as much). Tags are replaced only if the stored ones
//! are those that were read. If an insert or update finds that another instance was faster, the
//! entries of the batch are read again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mongodb::bson::{Bson, Document, doc};
use mongodb::options::{Hint, ReadConcern};
use mongodb::{Collection, Cursor};

use crate::catalog::{COUNT_MAX, CatalogCounts, CatalogEntry, CatalogQuery, LATEST_MAX};
use crate::mongo::catalog_document::{date, document_of, entry_of, filter, statement};
use crate::mongo::connection::Connection;
use crate::mongo::detected::Detected;
use crate::mongo::document::from_primary;
use crate::mongo::error::{
    Applied, StatementError, changed_documents, statement_error, write_errors,
};
use crate::mongo::pack::WriteConcern;
use crate::mongo::setup::{SchemaError, Setup};
use crate::{StoreError, StoreErrorKind};
use model::SensorId;
use model::catalog::{CatalogUpdate, by_sensor};
use model::collections::{CATALOG, META};
use telemetry::metrics::{self, StoreCommand};

/// Sensors in one round.
const SENSORS_MAX: usize = 1000;
/// Fields in one round, unless one sensor has more: as documents they take some 3 MB, and several
/// rounds may run at a time.
const FIELDS_MAX: usize = 4000;
/// Estimated bytes of the statements in one command, far below MongoDB's limit of 48 MB for a
/// message.
const COMMAND_BYTES_MAX: usize = 8 << 20;
/// Rounds before a batch fails and the flush stage waits; only other instances that write the same
/// entries, or an entry that is not majority committed yet, cause more than one.
const ROUNDS_MAX: u32 = 8;
/// Wait before the second round; doubled before each further one.
const ROUND_WAIT: Duration = Duration::from_millis(5);
/// Server-side limit of a query.
const TIME_MAX: Duration = Duration::from_secs(8);
/// Ids in the filter of one query, each of up to 256 bytes.
const IDS_MAX: usize = 10_000;

/// The keys of the index that finds silent sensors.
fn arrival_key() -> Document {
    doc! { "last_arrival": 1 }
}

/// The keys of the index that finds the newest sensors.
fn created_key() -> Document {
    doc! { "created": 1 }
}

/// Creates the collection and its indexes if they are missing. Returns one line if it did.
///
/// # Errors
/// The first step that failed.
pub(super) async fn prepare(setup: &Setup<'_>) -> Result<Option<String>, SchemaError> {
    let found = setup.list(&[CATALOG]).await?;
    let line = setup.create_missing(&found, CATALOG, &doc! {}).await?;
    for wanted in [
        doc! { "key": { "labels": 1, "_id": 1 }, "name": "label_sensor" },
        doc! { "key": { "field_names": 1, "_id": 1 }, "name": "field_sensor" },
        doc! { "key": arrival_key(), "name": "arrival" },
        doc! { "key": created_key(), "name": "created" },
    ] {
        setup.create_index(CATALOG, wanted).await?;
    }
    Ok(line)
}

/// Reads and writes documents of `sensor_catalog`.
#[derive(Debug, Clone)]
pub(super) struct Catalog {
    connection: Connection,
    detected: Arc<Detected>,
}

impl Catalog {
    pub(super) fn new(connection: Connection, detected: Arc<Detected>) -> Catalog {
        Catalog {
            connection,
            detected,
        }
    }

    /// See [`crate::Store::merge_catalog`].
    pub(super) async fn merge(&self, updates: &[&CatalogUpdate]) -> Result<u64, StoreError> {
        let updates: Vec<CatalogUpdate> =
            by_sensor(updates.iter().copied()).into_values().collect();
        let begun = Instant::now();
        let mut refused = 0;
        let mut rest = &updates[..];
        while !rest.is_empty() {
            let mut fields = 0;
            let fits = |update: &&CatalogUpdate| {
                fields += update.fields.len();
                fields <= FIELDS_MAX
            };
            let (batch, later) = rest.split_at(
                rest.iter()
                    .take(SENSORS_MAX)
                    .take_while(fits)
                    .count()
                    .max(1),
            );
            refused += self.merge_batch(batch.to_vec()).await?;
            rest = later;
        }
        metrics::store_command(
            StoreCommand::Catalog,
            updates.len() as u64,
            begun.elapsed().as_secs_f64(),
        );
        Ok(refused)
    }

    async fn merge_batch(&self, mut updates: Vec<CatalogUpdate>) -> Result<u64, StoreError> {
        let mut refused = 0;
        for round in 0..ROUNDS_MAX {
            if round > 0 {
                tokio::time::sleep(ROUND_WAIT * 2u32.pow(round - 1)).await;
            }
            let changes = self.changes(&updates).await?;
            let mut applied = Applied::Yes;
            let mut at_fault = vec![];
            for (kind, list, statements) in [
                ("insert", "documents", changes.inserts),
                ("update", "updates", changes.updates),
            ] {
                let mut rest = &statements[..];
                while !rest.is_empty() {
                    let (now, later) = rest.split_at(fitting(rest));
                    rest = later;
                    let statements: Vec<&Document> = now.iter().map(|(_, s)| s).collect();
                    let command = doc! { kind: CATALOG, list: statements, "ordered": false };
                    applied = applied.and(self.send(command, now, &mut at_fault).await?);
                }
            }
            refused += at_fault.len() as u64;
            updates.retain(|update| !at_fault.contains(&update.sensor_id));
            if applied == Applied::Yes {
                return Ok(refused);
            }
        }
        Err(StoreError::not_applied(
            StoreErrorKind::Timeout,
            format!("entries of {CATALOG} were changed by other instances in {ROUNDS_MAX} rounds"),
        ))
    }

    /// What the stored entries lack.
    async fn changes(&self, updates: &[CatalogUpdate]) -> Result<Changes, StoreError> {
        let entries = self.entries();
        let updates = updates.to_vec();
        let read = async move {
            let ids: Vec<&str> = updates.iter().map(|u| &*u.sensor_id).collect();
            let mut missing: BTreeMap<&str, &CatalogUpdate> =
                updates.iter().map(|u| (&*u.sensor_id, u)).collect();
            let mut changes = Changes::default();
            let find = entries
                .find(doc! { "_id": { "$in": ids } })
                .projection(doc! { "labels": 0, "field_names": 0 });
            let mut cursor = find.await?;
            while cursor.advance().await? {
                let document = cursor.current();
                let Some(entry) = entry_of(document) else {
                    continue;
                };
                let Some(update) = missing.remove(&*entry.sensor_id) else {
                    continue;
                };
                let expires = document.get("expires").is_ok_and(|at| at.is_some());
                if expires || !entry.covers(update) {
                    changes
                        .updates
                        .push((update.sensor_id.clone(), statement(&entry, update)));
                }
            }
            let insert = |update: &CatalogUpdate| {
                (
                    update.sensor_id.clone(),
                    document_of(&CatalogEntry::new(update)),
                )
            };
            changes.inserts.extend(missing.into_values().map(insert));
            Ok(changes)
        };
        self.connection.ask(read).await
    }

    /// Sends a command. The sensors whose entries the store refuses are added to `at_fault`. After
    /// [`Applied::Conflict`], the caller reads the entries again and builds new statements.
    async fn send(
        &self,
        command: Document,
        statements: &[(SensorId, Document)],
        at_fault: &mut Vec<SensorId>,
    ) -> Result<Applied, StoreError> {
        let reply = self.connection.confirm(command).await?;
        let mut refused = 0;
        for error in write_errors(&reply) {
            let statement = error.index.and_then(|i| statements.get(i));
            match (statement_error(error.code), statement) {
                (StatementError::Conflict, _) => {}
                (StatementError::Data, Some((sensor_id, _))) => {
                    tracing::error!(%sensor_id, error = error.text, "the store refuses an entry of \
                        the catalogue");
                    at_fault.push(sensor_id.clone());
                    refused += 1;
                }
                _ => return Err(StoreError::unknown(StoreErrorKind::Command, error.text)),
            }
        }
        match changed_documents(&reply) + refused >= statements.len() as u64 {
            true => Ok(Applied::Yes),
            false => Ok(Applied::Conflict),
        }
    }

    /// See [`crate::Store::find_catalog`].
    pub(super) async fn find(&self, q: &CatalogQuery) -> Result<Vec<CatalogEntry>, StoreError> {
        self.detected.check_prepared()?;
        let mut found: Vec<CatalogEntry> = vec![];
        let Some(ids) = &q.sensor_ids else {
            return self.find_some(q, None).await;
        };
        let mut ids: Vec<SensorId> = ids
            .iter()
            .filter(|id| q.after.as_ref().is_none_or(|a| *id > a))
            .cloned()
            .collect();
        ids.sort_unstable();
        ids.dedup();
        for ids in ids.chunks(IDS_MAX) {
            let rest = CatalogQuery {
                limit: q.limit - found.len(),
                ..q.clone()
            };
            found.extend(self.find_some(&rest, Some(ids)).await?);
        }
        Ok(found)
    }

    async fn find_some(
        &self,
        q: &CatalogQuery,
        ids: Option<&[SensorId]>,
    ) -> Result<Vec<CatalogEntry>, StoreError> {
        let entries = self.entries();
        let filter = filter(q, ids);
        if q.limit == 0 {
            return Ok(vec![]);
        }
        // 0: none.
        let limit = i64::try_from(q.limit).unwrap_or(0);
        let begun = Instant::now();
        let mut projection = doc! { "labels": 0, "field_names": 0 };
        if q.without_fields {
            projection.insert("fields", 0);
        }
        let read = async move {
            let find = entries
                .find(filter)
                .projection(projection)
                .sort(doc! { "_id": 1 });
            collected(find.limit(limit).max_time(TIME_MAX).await?).await
        };
        let found = self.connection.ask(read).await;
        metrics::store_command(StoreCommand::Read, 1, begun.elapsed().as_secs_f64());
        found
    }

    /// See [`crate::Store::count_catalog`].
    pub(super) async fn count(
        &self,
        (from_ms, to_ms): (i64, i64),
    ) -> Result<CatalogCounts, StoreError> {
        let entries = self.entries();
        let begun = Instant::now();
        let read = async move {
            let range = doc! { "last_arrival": { "$gte": date(from_ms), "$lt": date(to_ms) } };
            let counted = entries
                .count_documents(range.clone())
                .hint(Hint::Keys(arrival_key()));
            let arrived = counted.limit(COUNT_MAX).max_time(TIME_MAX).await?;
            let known = entries
                .estimated_document_count()
                .max_time(TIME_MAX)
                .await?;
            let first_by = |key: Document, filter: Document| {
                let find = entries.find(filter).hint(Hint::Keys(key.clone()));
                let backwards: Document = key.keys().map(|k| (k.clone(), Bson::from(-1))).collect();
                find.sort(backwards)
                    .projection(
                        doc! { "first_ts": 1, "last_ts": 1, "last_arrival": 1, "created": 1 },
                    )
                    .limit(LATEST_MAX as i64)
                    .max_time(TIME_MAX)
            };
            let latest = collected(first_by(arrival_key(), range).await?).await?;
            let newest = collected(first_by(created_key(), doc! {}).await?).await?;
            Ok(CatalogCounts {
                known,
                arrived,
                latest,
                newest,
            })
        };
        let counts = self.connection.ask(read).await;
        metrics::store_command(StoreCommand::Read, 4, begun.elapsed().as_secs_f64());
        counts
    }

    /// See [`crate::Store::note_running`].
    pub(super) async fn record_running(&self, at_ms: i64) -> Result<Option<i64>, StoreError> {
        let command = doc! {
            "findAndModify": META,
            "query": { "_id": "running" },
            "update": { "$max": { "at": date(at_ms) } },
            "new": false,
            "upsert": true,
        };
        let reply = self.connection.confirm(command).await?;
        let before = reply.get("value").and_then(Bson::as_document);
        Ok(before
            .and_then(|d| d.get_datetime("at").ok())
            .map(|at| at.timestamp_millis()))
    }

    /// The collection. Reads are as durable as writes: an entry that is seen and then rolled back
    /// would be missing permanently.
    pub(super) fn entries(&self) -> Collection<Document> {
        let concern = match self.connection.options().write_concern {
            WriteConcern::Majority => ReadConcern::majority(),
            WriteConcern::Members(_) => ReadConcern::local(),
        };
        let db = self.connection.db();
        db.collection_with_options(CATALOG, from_primary(concern))
    }
}

async fn collected(mut cursor: Cursor<Document>) -> mongodb::error::Result<Vec<CatalogEntry>> {
    let mut found = vec![];
    while cursor.advance().await? {
        found.extend(entry_of(cursor.current()));
    }
    Ok(found)
}

/// The statements of one round.
#[derive(Default)]
struct Changes {
    inserts: Vec<(SensorId, Document)>,
    updates: Vec<(SensorId, Document)>,
}

/// How many of the first statements fit into one command, at least one.
fn fitting(statements: &[(SensorId, Document)]) -> usize {
    let mut bytes = 0;
    let fits = |(_, statement): &&(SensorId, Document)| {
        bytes += estimate(statement);
        bytes <= COMMAND_BYTES_MAX
    };
    statements.iter().take_while(fits).count().max(1)
}

/// Estimates the size of a statement from its field names: everything else is small, or as long as
/// a tag.
fn estimate(statement: &Document) -> usize {
    let part = |(name, value): (&String, &Bson)| {
        name.len()
            + match value {
                Bson::Document(inner) => estimate(inner),
                Bson::Array(list) => {
                    list.iter()
                        .map(|v| v.as_str().map_or(32, |s| s.len() + 8))
                        .sum::<usize>()
                        + 8
                }
                Bson::String(text) => text.len() + 8,
                _ => 16,
            }
    };
    statement.iter().map(part).sum::<usize>() + 16
}
