//! MongoDB: bucket pages through raw commands ([`pack`]), loads ([`load`]), the collections ([`schema`]) and what its
//! errors mean ([`error`]).
//!
//! Every operation runs in a task of its own and its handle is waited for with a limit: the driver has no time-out for
//! an operation, and one that is given up may still be carried out by the server, which is exactly what
//! [`StoreError::Unknown`] says.

mod bson;
mod error;
mod latest;
mod load;
mod pack;
mod patterns;
mod registry;
mod schema;

use std::time::{Duration, Instant};

use mongodb::bson::{Binary, DateTime, Document, RawDocumentBuf, doc, spec::BinarySubtype};
use mongodb::options::{ClientOptions, WriteConcern as DriverWriteConcern};
use mongodb::{Client, Collection, Database};

pub use latest::LATEST;
pub use pack::BUCKETS;
pub use patterns::{Patterns, TAGS_INDEX};
pub use schema::{DEAD_LETTERS, SUMMARIES};

use super::registry::{Query, Reader};
use super::{BoxFuture, LatestWritten, LoadRequest, LoadedBucket, PrepareError, Prepared, Store, StoreError, Written};
use crate::config;
use crate::model::{DeadLetter, LatestUpdate, PageKind, PageWrite, Span};
use crate::telemetry::metrics;
use error::{StatementError, command_code, command_error, describe, statement_error};
use pack::{CommandOptions, WriteConcern};
use schema::SchemaError;

/// The MongoDB store in bucket mode.
#[derive(Debug, Clone)]
pub struct MongoStore {
    db: Database,
    buckets: Collection<RawDocumentBuf>,
    dead: Collection<Document>,
    options: CommandOptions,
    timeout: Duration,
    retention: Option<Duration>,
    dead_letters_retention: Duration,
    mode: config::StoreMode,
    patterns: Patterns,
}

impl MongoStore {
    /// A store on the configured server. Nothing is sent yet.
    ///
    /// # Errors
    /// The URI or the write concern makes no sense; the text does not show the URI.
    pub async fn new(config: &config::Store, span: Span, dead_letters: Duration) -> Result<MongoStore, String> {
        // The driver's message may quote the URI, which may hold a password.
        let mut options = ClientOptions::parse(config.uri.reveal())
            .await
            .map_err(|_| "store.uri: not a connection string that the driver understands".to_owned())?;
        options.app_name.get_or_insert_with(|| "hourbucket".to_owned());
        options.max_pool_size.get_or_insert(config.pool_max);
        options.max_connecting.get_or_insert(4);
        options.server_selection_timeout = Some(config.connect_timeout);
        options.connect_timeout = Some(config.connect_timeout);
        let client = Client::with_options(options).map_err(|e| format!("store.uri: {}", describe(&e)))?;
        let db = client.database(&config.database);
        let write_concern = match config.write_concern.as_str() {
            "majority" => WriteConcern::Majority,
            n => WriteConcern::Members(n.parse().map_err(|_| "store.write_concern: `majority` or a number")?),
        };
        let wtimeout_ms = i32::try_from(config.timeout.as_millis()).unwrap_or(i32::MAX);
        Ok(MongoStore {
            buckets: db.collection(pack::BUCKETS),
            dead: db.collection(DEAD_LETTERS),
            db,
            options: CommandOptions { span, write_concern, wtimeout_ms },
            timeout: config.timeout,
            retention: config.retention,
            dead_letters_retention: dead_letters,
            mode: config.mode,
            patterns: Patterns::default(),
        })
    }

    /// The same store, which prepares what these need as well.
    #[must_use]
    pub fn with_patterns(self, patterns: Patterns) -> MongoStore {
        MongoStore { patterns, ..self }
    }

    /// What the server is: version, topology, and what an operator should know.
    async fn server(&self) -> Result<(String, String, Vec<String>), SchemaError> {
        let build =
            self.db.run_command(doc! { "buildInfo": 1 }).await.map_err(schema::failed("asking for the version"))?;
        let hello =
            self.db.run_command(doc! { "hello": 1 }).await.map_err(schema::failed("asking for the topology"))?;
        let version = build.get_str("version").unwrap_or("unknown").to_owned();
        let mut warnings = vec![];
        let topology = match (hello.get_str("setName"), hello.get_str("msg")) {
            (Ok(set), _) => format!("replica set {set}"),
            (_, Ok("isdbgrid")) => "sharded cluster".to_owned(),
            _ => {
                let text = "the server is standalone: nothing survives the loss of its disk; use a replica set";
                warnings.push(text.to_owned());
                "standalone".to_owned()
            }
        };
        if self.options.write_concern != WriteConcern::Majority {
            warnings.push("store.write_concern is not majority: an acknowledged reading can be rolled back".to_owned());
        }
        Ok((version, topology, warnings))
    }

    /// What the server is, in a line, and what an operator should know; changes nothing.
    ///
    /// # Errors
    /// It cannot be reached or does not let us ask.
    pub async fn inspect(&self) -> Result<(String, Vec<String>), String> {
        let (version, topology, warnings) = self.server().await.map_err(|e| e.to_string())?;
        let list = doc! { "listCollections": 1, "nameOnly": true, "filter": { "name": pack::BUCKETS } };
        let found = self.db.run_command(list).await.map_err(|e| describe(&e))?;
        let batch = found.get_document("cursor").and_then(|c| c.get_array("firstBatch"));
        let made = if batch.is_ok_and(|b| !b.is_empty()) { "collections exist" } else { "collections to be made" };
        Ok((format!("MongoDB {version}, {topology}, {made}"), warnings))
    }

    async fn prepare_all(&self) -> Result<Prepared, SchemaError> {
        if self.mode == config::StoreMode::Timeseries {
            let detail = "this version of hourbucket writes bucket pages only; set store.mode to auto or bucket".into();
            return Err(SchemaError { step: "store.mode is timeseries".into(), detail, transient: false });
        }
        let (server_version, topology, warnings) = self.server().await?;
        let seconds = |d: Duration| i64::try_from(d.as_secs()).unwrap_or(i64::from(i32::MAX));
        let mut changes =
            schema::prepare(&self.db, self.retention.map(seconds), seconds(self.dead_letters_retention)).await?;
        changes.extend(patterns::prepare(&self.db, self.patterns).await.map_err(|(step, e)| schema::failed(&step)(e))?);
        let mode_reason = match self.mode {
            config::StoreMode::Bucket => format!("store.mode is bucket ({topology})"),
            _ => format!("store.mode is auto, and this version of hourbucket writes buckets only ({topology})"),
        };
        Ok(Prepared { mode_reason, server_version, changes, warnings })
    }

    /// Runs an operation in a task of its own, for at most `store.timeout`.
    async fn limited<T: Send + 'static>(
        &self,
        operation: impl Future<Output = mongodb::error::Result<T>> + Send + 'static,
    ) -> Result<mongodb::error::Result<T>, StoreError> {
        match tokio::time::timeout(self.timeout, tokio::spawn(operation)).await {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(_)) => Err(StoreError::Unknown { kind: "driver", detail: "the driver's task panicked".into() }),
            Err(_) => Err(StoreError::Unknown {
                kind: "timeout",
                detail: format!("no answer within store.timeout ({:?})", self.timeout),
            }),
        }
    }

    /// Writes of one kind as one command; a command that is refused for its data as a whole is halved until the
    /// statement at fault stands alone.
    fn write_kind<'a>(&'a self, writes: &'a [PageWrite]) -> BoxFuture<'a, Result<Vec<Written>, StoreError>> {
        Box::pin(async move {
            let kind = if writes[0].kind == PageKind::Create { "insert" } else { "update" };
            let command = pack::command(writes, &self.options)
                .map_err(|e| StoreError::NotApplied { kind: "driver", detail: e.to_string() })?;
            let begun = Instant::now();
            let db = self.db.clone();
            let result = self.limited(async move { db.run_raw_command(command).await }).await;
            metrics::store_command(kind, writes.len() as u64, begun.elapsed().as_secs_f64());
            match result? {
                Ok(reply) => answers(writes, &reply),
                Err(error) if command_code(&error).is_some_and(|c| statement_error(c) == StatementError::Data) => {
                    if writes.len() == 1 {
                        return Ok(vec![Written::Rejected { detail: describe(&error) }]);
                    }
                    let (a, b) = writes.split_at(writes.len() / 2);
                    let mut answers = self.write_kind(a).await?;
                    answers.extend(self.write_kind(b).await?);
                    Ok(answers)
                }
                Err(error) => Err(command_error(&error)),
            }
        })
    }
}

/// Reads the reply to a command: one answer a statement.
fn answers(writes: &[PageWrite], reply: &Document) -> Result<Vec<Written>, StoreError> {
    if let Ok(concern) = reply.get_document("writeConcernError") {
        let detail = concern.get_str("errmsg").unwrap_or("write concern not satisfied").to_owned();
        return Err(StoreError::Unknown { kind: "write_concern", detail });
    }
    let done = |w: &PageWrite| match w.kind {
        PageKind::Create => Written::Done { count: w.rows.len() as u32 },
        PageKind::Append { known_count } => Written::Done { count: known_count + w.rows.len() as u32 },
    };
    let mut answers: Vec<Written> = writes.iter().map(done).collect();
    let index = |d: &Document| usize::try_from(d.get_i32("index").ok()?).ok().filter(|i| *i < writes.len());
    let documents = |name: &str| -> Vec<Document> {
        let list = reply.get_array(name).map(Vec::as_slice).unwrap_or_default();
        list.iter().filter_map(|d| d.as_document().cloned()).collect()
    };
    for upserted in documents("upserted") {
        if let Some(i) = index(&upserted) {
            answers[i] = Written::Done { count: writes[i].rows.len() as u32 };
        }
    }
    for error in documents("writeErrors") {
        let detail = || error.get_str("errmsg").unwrap_or_default().to_owned();
        let code = error.get_i32("code").unwrap_or_default();
        let Some(i) = index(&error) else {
            return Err(StoreError::Unknown { kind: "command", detail: detail() });
        };
        answers[i] = match statement_error(code) {
            StatementError::Conflict => Written::Conflict,
            StatementError::Data => Written::Rejected { detail: format!("{} ({code})", detail()) },
            StatementError::Retryable => {
                return Err(StoreError::Unknown { kind: "command", detail: format!("{} ({code})", detail()) });
            }
        };
    }
    Ok(answers)
}

impl Store for MongoStore {
    fn prepare(&self) -> BoxFuture<'_, Result<Prepared, PrepareError>> {
        Box::pin(async move {
            self.prepare_all().await.map_err(|e| PrepareError { detail: e.to_string(), transient: e.transient })
        })
    }

    fn write<'a>(&'a self, writes: &'a [PageWrite]) -> BoxFuture<'a, Result<Vec<Written>, StoreError>> {
        Box::pin(async move {
            let create = |w: &PageWrite| w.kind == PageKind::Create;
            let Some(first) = writes.first() else { return Ok(vec![]) };
            if writes.iter().all(|w| create(w) == create(first)) {
                return self.write_kind(writes).await;
            }
            // The flush stage sends one kind a command; others may not.
            let mut answers = Vec::with_capacity(writes.len());
            for run in writes.chunk_by(|a, b| create(a) == create(b)) {
                answers.extend(self.write_kind(run).await?);
            }
            Ok(answers)
        })
    }

    fn load<'a>(&'a self, requests: &'a [LoadRequest]) -> BoxFuture<'a, Result<Vec<LoadedBucket>, StoreError>> {
        Box::pin(async move {
            let (buckets, owned) = (self.buckets.clone(), requests.to_vec());
            let begun = Instant::now();
            let result = self.limited(async move { load::load(&buckets, &owned).await }).await;
            metrics::store_command("load", requests.len() as u64, begun.elapsed().as_secs_f64());
            result?.map_err(|e| command_error(&e))
        })
    }

    fn latest<'a>(&'a self, updates: &'a [LatestUpdate]) -> BoxFuture<'a, Result<Vec<LatestWritten>, StoreError>> {
        Box::pin(async move {
            let Some(_) = updates.first() else { return Ok(vec![]) };
            let command = latest::command(updates, &self.options)
                .map_err(|e| StoreError::NotApplied { kind: "driver", detail: e.to_string() })?;
            let begun = Instant::now();
            let db = self.db.clone();
            let result = self.limited(async move { db.run_raw_command(command).await }).await;
            metrics::store_command("latest", updates.len() as u64, begun.elapsed().as_secs_f64());
            match result? {
                Ok(reply) => latest::answers(updates.len(), &reply),
                Err(error) if latest::forbidden(&error) || (updates.len() == 1 && latest::at_fault(&error)) => {
                    Ok(vec![LatestWritten::Rejected { detail: describe(&error) }; updates.len()])
                }
                Err(error) if latest::at_fault(&error) => {
                    let (a, b) = updates.split_at(updates.len() / 2);
                    let mut answers = self.latest(a).await?;
                    answers.extend(self.latest(b).await?);
                    Ok(answers)
                }
                Err(error) => Err(command_error(&error)),
            }
        })
    }

    fn registry(&self, query: Query) -> Option<std::sync::Arc<dyn Reader>> {
        Some(std::sync::Arc::new(registry::MongoRegistry::new(&self.db, query, self.timeout)))
    }

    fn dead_letters<'a>(&'a self, letters: &'a [DeadLetter]) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let document = |d: &DeadLetter| {
                doc! {
                    "received_at": DateTime::from_millis(d.received_at_ms),
                    "source": &d.source,
                    "topic": &d.topic,
                    "payload": Binary { subtype: BinarySubtype::Generic, bytes: d.payload.clone() },
                    "reason": &d.reason,
                    "detail": &d.detail,
                }
            };
            let (dead, documents) = (self.dead.clone(), letters.iter().map(document).collect::<Vec<_>>());
            let concern = match self.options.write_concern {
                WriteConcern::Majority => DriverWriteConcern::builder().w(mongodb::options::Acknowledgment::Majority),
                WriteConcern::Members(n) => {
                    DriverWriteConcern::builder().w(mongodb::options::Acknowledgment::Nodes(n as u32))
                }
            };
            let concern = concern.journal(true).build();
            let begun = Instant::now();
            let insert = async move { dead.insert_many(documents).ordered(false).write_concern(concern).await };
            let result = self.limited(insert).await;
            metrics::store_command("dead_letter", letters.len() as u64, begun.elapsed().as_secs_f64());
            result?.map(drop).map_err(|e| command_error(&e))
        })
    }

    fn ping(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let db = self.db.clone();
            let result = self.limited(async move { db.run_command(doc! { "ping": 1 }).await }).await;
            result?.map(drop).map_err(|e| command_error(&e))
        })
    }

    fn mode(&self) -> &'static str {
        "bucket"
    }
}
