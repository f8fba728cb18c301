//! The database, and how commands reach it: with a time limit, and with the configured write
//! concern if they change something.

use std::time::Duration;

use futures_util::StreamExt;
use mongodb::bson::{Document, RawDocumentBuf};
use mongodb::options::ReadConcern;
use mongodb::raw_batch_cursor::{RawBatch, RawBatchCursor};
use mongodb::{Collection, Database};
use tokio::sync::mpsc;

use crate::mongo::document::from_primary;
use crate::mongo::error::{all_applied, check_concern, command_error};
use crate::mongo::pack::CommandOptions;
use crate::mongo::setup::Setup;
use crate::{StoreError, StoreErrorKind};
use model::Span;

/// The configured database; a clone uses the same connections.
#[derive(Debug, Clone)]
pub(super) struct Connection {
    db: Database,
    options: CommandOptions,
    /// `store.timeout`
    timeout: Duration,
}

impl Connection {
    pub(super) fn new(db: Database, options: CommandOptions, timeout: Duration) -> Connection {
        Connection {
            db,
            options,
            timeout,
        }
    }

    pub(super) fn db(&self) -> &Database {
        &self.db
    }

    pub(super) fn options(&self) -> &CommandOptions {
        &self.options
    }

    /// `bucket.span`
    pub(super) fn span(&self) -> Span {
        self.options.span
    }

    /// `store.timeout`
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(super) fn setup(&self) -> Setup<'_> {
        Setup::new(&self.db, &self.options)
    }

    /// Any collection, read with majority from the primary.
    pub(super) fn majority<T: Send + Sync>(&self, name: &str) -> Collection<T> {
        let options = from_primary(ReadConcern::majority());
        self.db.collection_with_options(name, options)
    }

    /// Runs an operation in a separate task for at most `store.timeout`; cancels it when the caller
    /// stops waiting.
    pub(super) async fn limited<T: Send + 'static>(
        &self,
        operation: impl Future<Output = mongodb::error::Result<T>> + Send + 'static,
    ) -> Result<mongodb::error::Result<T>, StoreError> {
        limited(self.timeout, operation).await
    }

    /// The result of an operation within the time limit, with its error classified.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        operation: impl Future<Output = mongodb::error::Result<T>> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.limited(operation)
            .await?
            .map_err(|e| command_error(&e))
    }

    /// Runs a command as it is.
    pub(super) async fn run(&self, command: Document) -> Result<Document, StoreError> {
        let db = self.db.clone();
        self.ask(async move { db.run_command(command).await }).await
    }

    /// Runs a command that was encoded with its write concern.
    pub(super) async fn run_raw(
        &self,
        command: RawDocumentBuf,
    ) -> Result<mongodb::error::Result<Document>, StoreError> {
        let db = self.db.clone();
        self.limited(async move { db.run_raw_command(command).await })
            .await
    }

    /// Runs a command that changes something, with the store's write concern, and returns the
    /// reply.
    pub(super) async fn change(
        &self,
        mut command: Document,
    ) -> Result<mongodb::error::Result<Document>, StoreError> {
        command.insert("writeConcern", self.options.document());
        let db = self.db.clone();
        self.limited(async move { db.run_command(command).await })
            .await
    }

    /// Like [`Connection::change`]; the write concern must be satisfied.
    pub(super) async fn confirm(&self, command: Document) -> Result<Document, StoreError> {
        let reply = self.change(command).await?;
        check_concern(reply.map_err(|e| command_error(&e))?)
    }

    /// Like [`Connection::confirm`]; every statement must be applied as well. Returns the number of
    /// documents.
    pub(super) async fn apply_all(&self, command: Document) -> Result<u64, StoreError> {
        all_applied(&self.confirm(command).await?)
    }

    /// Runs one step of a longer operation for at most `store.timeout`.
    pub(super) async fn in_time<T>(
        &self,
        step: impl Future<Output = mongodb::error::Result<T>>,
    ) -> mongodb::error::Result<T> {
        match tokio::time::timeout(self.timeout, step).await {
            Ok(done) => done,
            Err(_) => Err(std::io::Error::new(
                std::io::ErrorKind::TimedOut,
                timed_out(self.timeout).to_string(),
            )
            .into()),
        }
    }
}

/// Runs an operation in a separate task for at most this time, and cancels it when the caller stops
/// waiting: abandoned tasks would pile up with the retries. The driver closes a connection whose
/// command is dropped midway.
pub(super) async fn limited<T: Send + 'static>(
    time: Duration,
    operation: impl Future<Output = mongodb::error::Result<T>> + Send + 'static,
) -> Result<mongodb::error::Result<T>, StoreError> {
    let mut task = AbortOnDrop(tokio::spawn(operation));
    match tokio::time::timeout(time, &mut task.0).await {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(_)) => Err(StoreError::unknown(
            StoreErrorKind::Driver,
            "the driver's task panicked",
        )),
        Err(_) => Err(timed_out(time)),
    }
}

/// The batches of a cursor, each within `store.timeout`. While the caller works on one, the next is
/// fetched. Dropping it ends the command that runs on the server, and its cursor.
pub(super) struct Batches {
    fetched: mpsc::Receiver<mongodb::error::Result<RawBatch>>,
    timeout: Duration,
    _task: AbortOnDrop<()>,
}

impl Connection {
    pub(super) fn batches(
        &self,
        open: impl Future<Output = mongodb::error::Result<RawBatchCursor>> + Send + 'static,
    ) -> Batches {
        let (send, fetched) = mpsc::channel(1);
        let fetch = async move {
            let mut cursor = match open.await {
                Ok(cursor) => cursor,
                // An error means that the receiver is gone, here and below.
                Err(error) => return drop(send.send(Err(error)).await),
            };
            while let Some(batch) = cursor.next().await {
                if send.send(batch).await.is_err() {
                    return;
                }
            }
        };
        Batches {
            fetched,
            timeout: self.timeout,
            _task: AbortOnDrop(tokio::spawn(fetch)),
        }
    }
}

impl Batches {
    /// `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<RawBatch>, StoreError> {
        let next = tokio::time::timeout(self.timeout, self.fetched.recv()).await;
        let next = next.map_err(|_| timed_out(self.timeout))?;
        next.transpose().map_err(|error| command_error(&error))
    }
}

struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The error of an operation that did not finish within `store.timeout`.
pub(super) fn timed_out(time: Duration) -> StoreError {
    let detail = format!("no answer within store.timeout ({time:?})");
    StoreError::unknown(StoreErrorKind::Timeout, detail)
}

/// An error after a part was stored: the outcome of the whole is unknown.
pub(super) fn in_part(error: StoreError) -> StoreError {
    match error {
        StoreError::NotApplied { kind, detail } => StoreError::Unknown { kind, detail },
        unknown => unknown,
    }
}

/// Whether a reply to `hello` is from a mongos of a sharded cluster.
pub(super) fn is_mongos(hello: &Document) -> bool {
    hello.get_str("msg").is_ok_and(|msg| msg == "isdbgrid")
}

/// The time of the server in a reply to `hello`, in ms since 1970.
pub(super) fn server_ms(hello: &Document) -> Option<i64> {
    let now = hello.get_datetime("localTime").ok()?;
    Some(now.timestamp_millis())
}
