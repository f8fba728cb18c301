//! The MongoDB store. Bucket pages are written with raw commands ([`pack`], [`write::pages`]),
//! measurements of time-series buckets with [`write::time_series`], [`write::fence`] and
//! [`write::recompute_summary`]. [`read::load`] reads buckets back; [`error`] classifies server
//! errors. Before all that, [`schema::prepare`] detects what the server supports
//! ([`schema::detect`]), checks what the database was written with ([`schema::metadata`]) and
//! creates the collections ([`schema::collections`]).
//!
//! Every operation runs in a separate task that is awaited with a time limit, since the driver has
//! no timeout for an operation. An operation that exceeds the limit is cancelled on this side and
//! its connection is closed. The server may still execute it, which is exactly what
//! [`StoreError::Unknown`] means.

mod bson;
mod catalog;
mod catalog_document;
mod catalog_state;
mod dead_letters;
mod document;
mod error;
mod expiry;
mod hello;
mod limited;
mod logged_out;
mod maintenance;
mod names;
mod pack;
mod read;
mod registry;
mod schema;
mod server_clock;
mod setup;
mod snapshot;
mod uri;
mod write;

pub use dead_letters::{DeadLetterDocument, DeadLetterId};
pub use maintenance::alone::alone;
pub use maintenance::convert::{ConvertOptions, Hook};
pub use maintenance::days::{DaysChecked, Filled};
pub use maintenance::reconcile::ReconcileOptions;
use names::DEAD_LETTERS;
pub use names::{BUCKETS, CATALOG, LATEST, READINGS};
pub use pack::packed_bytes;
pub use read::pipelines::{ReadingsLocation, raw_readings_pipeline};
pub use schema::latest_and_tag_indexes::{OptionalIndexes, TAGS_INDEX};
pub use schema::rollup_schema::RollupSchema;

use std::num::ParseIntError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use mongodb::bson::{Document, RawDocumentBuf, doc};
use mongodb::error::ErrorKind;
use mongodb::options::ClientOptions;
use mongodb::{Client, Collection, Database};

use super::catalog::{CatalogCounts, CatalogEntry, CatalogFill, CatalogQuery};
use super::reading::{
    DeadLetterQuery, MeasurementQuery, MeasurementResults, PageQuery, PageResults, SensorQuery,
    StoredDeadLetter, StoredSensor,
};
use super::registry::{RegistryQuery, RegistryReader};
use super::retention::RemovedReadings;
use super::summaries::{EdgeQuery, Edges, SummaryQuery, SummaryResults};
use super::{
    BoxFuture, DeadLetterWritten, Evicted, LatestWriteResult, LoadRequest, LoadResult,
    PageWriteResult, PrepareError, PrepareErrorEnd, PreparedStore, Store, StoreError,
    StoreErrorKind,
};
use error::{all_applied, command_error, concern_error, describe};
use limited::{in_part, limited, timed_out};
use model::{
    BucketStart, CatalogUpdate, DeadLetter, LatestUpdate, PageKind, PageWrite, SensorId, Span,
    StorageMode,
};
use pack::{CommandOptions, WriteConcern};
use schema::identities::Prepared;
use server_clock::ServerClock;
use telemetry::metrics;
use uri::UriError;
use write::time_series_writer::TimeSeriesWriter;

/// The result of detecting native time-series collections.
#[derive(Debug)]
struct Native {
    /// New buckets use [`StorageMode::TimeSeries`].
    chosen: bool,
    /// The time-series collection exists, even if the mode is another. It may be created at any
    /// time.
    there: AtomicBool,
}

/// Why the settings of the store cannot be used. The text does not contain the URI.
#[derive(Debug, thiserror::Error)]
pub enum StoreConfigError {
    /// The URI cannot be parsed.
    #[error("store.uri: {0}")]
    Uri(#[from] UriError),
    /// The driver refuses the options of the URI.
    #[error("store.uri: {}", describe(.0))]
    Options(#[source] mongodb::error::Error),
    /// `store.write_concern` is neither `majority` nor a number.
    #[error("store.write_concern: expected `majority` or a number")]
    WriteConcern(#[from] ParseIntError),
}

impl StoreConfigError {
    /// Whether only another configuration helps: not if a name cannot be resolved, or a file cannot
    /// be read, at the moment.
    pub fn is_permanent(&self) -> bool {
        match self {
            StoreConfigError::Options(error) => {
                matches!(error.kind.as_ref(), ErrorKind::InvalidArgument { .. })
            }
            StoreConfigError::Uri(_) | StoreConfigError::WriteConcern(_) => true,
        }
    }
}

/// The MongoDB store.
#[derive(Debug, Clone)]
pub struct MongoStore {
    client: Client,
    db: Database,
    buckets: Collection<RawDocumentBuf>,
    dead: Collection<Document>,
    options: CommandOptions,
    timeout: Duration,
    retention: Option<Duration>,
    retention_readings: Option<Duration>,
    clock: Arc<ServerClock>,
    dead_letters_retention: Duration,
    mode: config::StoreMode,
    /// Set by preparing; see [`MongoStore::native`].
    native: Arc<OnceLock<Native>>,
    /// Every stored sensor has an entry in the catalogue.
    catalog_complete: Arc<AtomicBool>,
    /// For [`Store::check_collections`].
    prepared: Arc<Prepared>,
    /// `store.uri` has a user.
    has_user: bool,
    series: Arc<TimeSeriesWriter>,
    /// Whether appends use the gates of pages ([`pack`]). Not on a sharded cluster, where a filter
    /// needs the shard key, not only `_id`; and not before the server was asked.
    with_gates: Arc<AtomicBool>,
    optional_indexes: OptionalIndexes,
    rollup: Option<RollupSchema>,
}

impl MongoStore {
    /// Creates a store for the configured server. Sends nothing yet.
    ///
    /// # Errors
    /// The URI or the write concern is invalid.
    pub async fn new(
        config: &config::Store,
        span: Span,
        dead_letters: Duration,
    ) -> Result<MongoStore, StoreConfigError> {
        let mut options = ClientOptions::parse(uri::parse(config.uri.reveal())?)
            .await
            .map_err(StoreConfigError::Options)?;
        options
            .app_name
            .get_or_insert_with(|| "hourbucket".to_owned());
        options.max_pool_size.get_or_insert(config.pool_max);
        options.max_connecting.get_or_insert(4);
        // Those of the URI would apply to operations that do not name their own.
        (options.read_concern, options.write_concern) = (None, None);
        options.selection_criteria = None;
        options.server_selection_timeout = Some(config.connect_timeout);
        options.connect_timeout = Some(config.connect_timeout);
        let has_user = options.credential.is_some();
        let client = Client::with_options(options).map_err(StoreConfigError::Options)?;
        let db = client.database(&config.database);
        let write_concern = match config.write_concern.as_str() {
            "majority" => WriteConcern::Majority,
            n => WriteConcern::Members(n.parse()?),
        };
        // Shorter than this process' own timeout, so that the server can report what it waited for.
        let wtimeout_ms = i32::try_from(config.timeout.as_millis() / 4 * 3)
            .unwrap_or(i32::MAX)
            .max(1);
        let options = CommandOptions {
            span,
            write_concern,
            wtimeout_ms,
        };
        Ok(MongoStore {
            series: Arc::new(TimeSeriesWriter::new(&db, options.clone(), config.timeout)),
            buckets: db.collection(BUCKETS),
            dead: db.collection(DEAD_LETTERS),
            db,
            client,
            options,
            timeout: config.timeout,
            retention: config.retention,
            retention_readings: config.retention_readings,
            clock: Arc::default(),
            dead_letters_retention: dead_letters,
            mode: config.mode,
            native: Arc::default(),
            catalog_complete: Arc::default(),
            prepared: Arc::default(),
            has_user,
            with_gates: Arc::default(),
            optional_indexes: OptionalIndexes::default(),
            rollup: None,
        })
    }

    /// Also prepares these optional indexes.
    #[must_use]
    pub fn with_latest_and_tags(self, optional_indexes: OptionalIndexes) -> MongoStore {
        MongoStore {
            optional_indexes,
            ..self
        }
    }

    /// Also prepares the collections of the daily rollup.
    #[must_use]
    pub fn with_rollup(self, rollup: Option<RollupSchema>) -> MongoStore {
        MongoStore { rollup, ..self }
    }

    /// Runs an operation in a separate task for at most `store.timeout`; cancels it when the caller
    /// stops waiting.
    async fn limited<T: Send + 'static>(
        &self,
        operation: impl Future<Output = mongodb::error::Result<T>> + Send + 'static,
    ) -> Result<mongodb::error::Result<T>, StoreError> {
        limited(self.timeout, operation).await
    }

    /// Runs a command that changes something, with the store's write concern, and returns the
    /// reply.
    async fn changed(
        &self,
        mut command: Document,
    ) -> Result<mongodb::error::Result<Document>, StoreError> {
        command.insert("writeConcern", self.options.document());
        let db = self.db.clone();
        self.limited(async move { db.run_command(command).await })
            .await
    }

    /// Like [`MongoStore::changed`]; the write concern must be satisfied.
    async fn confirmed(&self, command: Document) -> Result<Document, StoreError> {
        let reply = self
            .changed(command)
            .await?
            .map_err(|e| command_error(&e))?;
        match concern_error(&reply) {
            None => Ok(reply),
            Some(detail) => Err(StoreError::Unknown {
                kind: StoreErrorKind::WriteConcern,
                detail,
            }),
        }
    }

    /// Like [`MongoStore::confirmed`]; every statement must be applied as well.
    async fn all_applied(&self, command: Document) -> Result<Document, StoreError> {
        all_applied(self.confirmed(command).await?)
    }
}

impl Store for MongoStore {
    fn prepare(&self) -> BoxFuture<'_, Result<PreparedStore, PrepareError>> {
        Box::pin(async move {
            let prepared = self.prepare_all().await?;
            if self.measured() {
                let waiting = "waiting for statements of an earlier process";
                let failed = |why, kind| PrepareError {
                    detail: format!("{waiting}: {why}"),
                    end: PrepareErrorEnd::MayPass(kind),
                };
                let earlier = write::fence::wait_for_earlier(&self.db, &self.options);
                let over = tokio::time::timeout(self.timeout, earlier).await;
                let still = |_| {
                    let why = "the server still runs some (see db.currentOp())".to_owned();
                    failed(why, StoreErrorKind::Timeout)
                };
                over.map_err(still)?
                    .map_err(|e| failed(describe(&e), command_error(&e).kind()))?;
            }
            Ok(prepared)
        })
    }

    fn write<'a>(
        &'a self,
        writes: &'a [PageWrite],
    ) -> BoxFuture<'a, Result<Vec<PageWriteResult>, StoreError>> {
        Box::pin(async move {
            // The flush stage sends one kind per command, and mixes storage modes only after a
            // change of mode.
            let group = |w: &PageWrite| {
                (
                    w.storage_mode == StorageMode::TimeSeries,
                    w.kind == PageKind::Create,
                )
            };
            let mut answers = Vec::with_capacity(writes.len());
            for run in writes.chunk_by(|a, b| group(a) == group(b)) {
                let written = match run[0].storage_mode {
                    StorageMode::TimeSeries => self.write_series(run).await,
                    StorageMode::Bucket => {
                        self.write_kind(&run.iter().collect::<Vec<_>>(), None).await
                    }
                };
                // The groups before this one are stored.
                answers.extend(if answers.is_empty() {
                    written?
                } else {
                    written.map_err(in_part)?
                });
            }
            Ok(answers)
        })
    }

    fn now_ms(&self) -> BoxFuture<'_, Result<i64, StoreError>> {
        Box::pin(self.server_now_ms())
    }

    fn remove_readings(
        &self,
        ended_before_ms: i64,
        pages_max: usize,
    ) -> BoxFuture<'_, Result<RemovedReadings, StoreError>> {
        Box::pin(self.remove_old_readings(ended_before_ms, pages_max))
    }

    fn load<'a>(
        &'a self,
        requests: &'a [LoadRequest],
        within: Option<Duration>,
    ) -> BoxFuture<'a, Result<Vec<LoadResult>, StoreError>> {
        Box::pin(async move {
            let begun = Instant::now();
            let answers = self.load_all(requests, within).await;
            metrics::store_command("load", requests.len() as u64, begun.elapsed().as_secs_f64());
            let mut errors = answers.iter().filter_map(|a| a.as_ref().err());
            // If no bucket has a result, the store failed, not individual buckets. Of one bucket that
            // the server answers with an error, that is unknown; others tell.
            let is_of_bucket =
                |error: &StoreError| answers.len() == 1 && error.kind() == StoreErrorKind::Command;
            match errors
                .clone()
                .find(|e| e.is_away())
                .or_else(|| errors.find(|e| !e.is_deferred()))
            {
                Some(error)
                    if error.is_away()
                        || (answers.iter().all(Result::is_err) && !is_of_bucket(error)) =>
                {
                    Err(error.clone())
                }
                None if !answers.is_empty() && answers.iter().all(Result::is_err) => {
                    Err(timed_out(self.timeout))
                }
                _ => Ok(answers),
            }
        })
    }

    fn raise_high_water(
        &self,
        through: BucketStart,
    ) -> BoxFuture<'_, Result<BucketStart, StoreError>> {
        Box::pin(self.raise_mark(through))
    }

    fn merge_catalog<'a>(
        &'a self,
        updates: &'a [&'a CatalogUpdate],
    ) -> BoxFuture<'a, Result<u64, StoreError>> {
        Box::pin(self.merge_entries(updates))
    }

    fn find_catalog<'a>(
        &'a self,
        q: &'a CatalogQuery,
    ) -> BoxFuture<'a, Result<Vec<CatalogEntry>, StoreError>> {
        Box::pin(self.find_entries(q))
    }

    fn note_running(&self, at_ms: i64) -> BoxFuture<'_, Result<Option<i64>, StoreError>> {
        Box::pin(self.record_running(at_ms))
    }

    fn count_catalog(
        &self,
        arrived_ms: (i64, i64),
    ) -> BoxFuture<'_, Result<CatalogCounts, StoreError>> {
        Box::pin(self.count_entries(arrived_ms))
    }

    fn is_catalog_complete(&self) -> bool {
        self.catalog_complete.load(Ordering::Relaxed)
    }

    fn catalog_fill(&self) -> BoxFuture<'_, Result<CatalogFill, StoreError>> {
        Box::pin(self.read_fill())
    }

    fn set_catalog_fill<'a>(
        &'a self,
        fill: &'a CatalogFill,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(self.record_fill(fill))
    }

    fn expire_catalog(&self, now_ms: i64) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(self.expire_entries(now_ms))
    }

    fn latest<'a>(
        &'a self,
        updates: &'a [LatestUpdate],
    ) -> BoxFuture<'a, Result<Vec<LatestWriteResult>, StoreError>> {
        Box::pin(self.merge_latest(updates))
    }

    fn registry(&self, query: RegistryQuery) -> Option<std::sync::Arc<dyn RegistryReader>> {
        Some(std::sync::Arc::new(registry::MongoRegistry::new(
            &self.db,
            query,
            self.timeout,
        )))
    }

    fn write_dead_letters<'a>(
        &'a self,
        dead_letters: &'a [DeadLetter],
    ) -> BoxFuture<'a, Result<Vec<DeadLetterWritten>, StoreError>> {
        Box::pin(async move {
            let begun = Instant::now();
            let kept = self.keep_dead_letters(dead_letters).await;
            metrics::store_command(
                "dead_letter",
                dead_letters.len() as u64,
                begun.elapsed().as_secs_f64(),
            );
            kept
        })
    }

    fn dead_letter_bytes(&self) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(self.dead_letter_bytes())
    }

    fn evict_dead_letters(&self, bytes: u64) -> BoxFuture<'_, Result<Evicted, StoreError>> {
        Box::pin(self.evict(bytes))
    }

    fn pages<'a>(&'a self, q: &'a PageQuery) -> BoxFuture<'a, Result<PageResults, StoreError>> {
        Box::pin(self.read_pages(q))
    }

    fn measurements<'a>(
        &'a self,
        q: &'a MeasurementQuery,
    ) -> BoxFuture<'a, Result<MeasurementResults, StoreError>> {
        Box::pin(self.read_measurements(q))
    }

    fn summaries<'a>(
        &'a self,
        q: &'a SummaryQuery,
    ) -> BoxFuture<'a, Result<SummaryResults, StoreError>> {
        Box::pin(self.read_summaries(q))
    }

    fn edges<'a>(&'a self, q: &'a EdgeQuery) -> BoxFuture<'a, Result<Edges, StoreError>> {
        Box::pin(self.read_edges(q))
    }

    fn newest<'a>(
        &'a self,
        sensors: &'a [SensorId],
    ) -> BoxFuture<'a, Result<Vec<StoredSensor>, StoreError>> {
        Box::pin(self.read_newest(sensors))
    }

    fn sensors<'a>(&'a self, q: &'a SensorQuery) -> BoxFuture<'a, Result<Vec<String>, StoreError>> {
        Box::pin(self.read_sensors(q))
    }

    fn find_dead_letters<'a>(
        &'a self,
        q: &'a DeadLetterQuery,
    ) -> BoxFuture<'a, Result<Vec<StoredDeadLetter>, StoreError>> {
        Box::pin(self.read_dead_letters(q))
    }

    fn days(&self) -> Option<&dyn super::days::DayStore> {
        Some(self)
    }

    fn ping(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let db = self.db.clone();
            let result = self
                .limited(async move { db.run_command(doc! { "ping": 1 }).await })
                .await;
            result?.map_err(|e| command_error(&e))?;
            self.close_logged_out().await
        })
    }

    fn check_collections(&self) -> BoxFuture<'_, Result<Option<String>, PrepareError>> {
        Box::pin(self.find_dropped())
    }

    fn storage_mode(&self) -> StorageMode {
        if self.native() {
            StorageMode::TimeSeries
        } else {
            StorageMode::Bucket
        }
    }

    fn mode(&self) -> &'static str {
        if self.native() {
            "timeseries"
        } else {
            "bucket"
        }
    }
}
