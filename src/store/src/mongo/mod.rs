//! The MongoDB store. [`MongoStore`] only composes its parts and answers for them. Each part has its
//! own fields and names the collections that it reads (r) or writes (w):
//!
//! | part | layer | collections |
//! |---|---|---|
//! | [`Writer`] | write | `sensor_buckets` w, `sensor_readings` w |
//! | [`SummaryRecompute`] | write | `sensor_readings` r, `sensor_buckets` rw |
//! | [`HighWater`] | write | `hourbucket_meta` rw |
//! | [`LatestWriter`] | write | `sensor_latest` w |
//! | [`ReadingsRemoval`] | write | `sensor_buckets` rw |
//! | [`DayWriter`] | write | `sensor_days` w, `rollup_pending` w |
//! | [`ColumnWriter`] | write | `sensor_columns` w, `sensor_day_hours` w |
//! | [`Loader`] | read | `sensor_buckets` r, `sensor_readings` r |
//! | [`Reader`] | read | all but `sensor_catalog` and `hourbucket_meta`, r |
//! | [`DayRollups`] | read | `sensor_days` r, `rollup_pending` r; writes with [`DayWriter`] |
//! | [`ColumnDays`] | read | `sensor_columns` r, `sensor_day_hours` r; writes with [`ColumnWriter`] |
//! | [`Catalog`] | | `sensor_catalog` rw; `hourbucket_meta` rw |
//! | [`MongoAliases`] | | `sensor_aliases` rw; `hourbucket_meta` rw |
//! | [`DeadLetterStore`] | | `dead_letters` rw |
//! | [`Schema`] | schema | all: their options, indexes and validators; `hourbucket_meta` rw |
//! | [`Maintenance`] | maintenance | `sensor_buckets` rw, `sensor_readings` rw, `sensor_days` rw |
//! | [`CatalogExpiry`] | maintenance | `sensor_catalog` rw |
//!
//! The parts share three things: the [`Connection`], what the preparation has [`Detected`], and the
//! [`Fence`] of abandoned statements. A part of a layer knows only those below it.
//!
//! Every operation runs in a separate task that is awaited with a time limit, since the driver has
//! no timeout for an operation. An operation that exceeds the limit is cancelled on this side and
//! its connection is closed. The server may still execute it, which is exactly what
//! [`StoreError::Unknown`] means.

mod aliases;
mod bson;
mod catalog;
mod catalog_document;
mod column_document;
mod connection;
mod dead_letters;
mod detected;
mod document;
mod elements;
mod error;
mod expiry;
mod logged_out;
mod maintenance;
mod pack;
mod read;
mod registry;
mod schema;
mod setup;
mod uri;
mod write;

pub use dead_letters::{DeadLetterDocument, DeadLetterId, DeadLetterStore};
pub use maintenance::Maintenance;
pub use maintenance::alone::{Alone, alone};
pub use maintenance::convert::{ConvertOptions, Hook};
pub use maintenance::reconcile::ReconcileOptions;
pub use maintenance::remove::{MoveKind, MoveOptions, Moved, RemoveOptions, Removed};
pub use model::collections::{BUCKETS, CATALOG, LATEST, READINGS};
pub use pack::packed_bytes;
pub use read::pipelines::{ReadingsLocation, raw_readings_pipeline};
pub use schema::Schema;
pub use schema::days::{Kept, RollupSchema};
pub use schema::latest_and_tag_indexes::{OptionalIndexes, TAGS_INDEX};

use std::num::ParseIntError;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use mongodb::Client;
use mongodb::bson::doc;
use mongodb::error::ErrorKind;
use mongodb::options::ClientOptions;

use super::aliases::AliasStore;
use super::catalog::{CatalogCounts, CatalogEntry, CatalogQuery};
use super::columns::ColumnStore;
use super::days::DayStore;
use super::reading::{
    DeadLetterQuery, EdgeQuery, Edges, MeasurementQuery, MeasurementResults, PageQuery,
    PageResults, SensorQuery, StoredDeadLetter, StoredSensor, SummaryQuery, SummaryResults,
};
use super::registry::{RegistryQuery, RegistryReader};
use super::retention::RemovedReadings;
use super::samples::{SampleQuery, SampleStream, with_removed};
use super::tier::{ComparedPage, Tier};
use super::{
    BoxFuture, DeadLetterWritten, Evicted, LatestWriteResult, LoadRequest, LoadResult,
    PageWriteResult, PrepareError, PreparedStore, Store, StoreError,
};
use aliases::MongoAliases;
use catalog::Catalog;
use connection::Connection;
use detected::Detected;
use error::describe;
use expiry::Expiry;
use maintenance::expire_catalog::CatalogExpiry;
use model::{
    BucketKey, BucketStart, CatalogUpdate, DeadLetter, LatestUpdate, PageWrite, SensorId, Span,
    StorageMode,
};
use pack::{CommandOptions, WriteConcern};
use read::columns::ColumnDays;
use read::days::DayRollups;
use read::load::Loader;
use read::queries::Reader;
use uri::UriError;
use write::Writer;
use write::columns::ColumnWriter;
use write::days::DayWriter;
use write::fence::Fence;
use write::high_water::HighWater;
use write::recompute_summary::SummaryRecompute;
use write::remove_readings::ReadingsRemoval;
use write::send_latest::LatestWriter;

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

/// The MongoDB store: its parts, each with the collections that it reads or writes.
#[derive(Debug, Clone)]
pub struct MongoStore {
    connection: Connection,
    /// `store.uri` has a user.
    has_user: bool,
    detected: Arc<Detected>,
    schema: Schema,
    writer: Writer,
    high_water: HighWater,
    latest: LatestWriter,
    removal: ReadingsRemoval,
    expiry: Expiry,
    loader: Loader,
    reader: Reader,
    days: DayRollups,
    columns: ColumnDays,
    catalog: Catalog,
    catalog_expiry: CatalogExpiry,
    aliases: MongoAliases,
    dead_letters: DeadLetterStore,
    maintenance: Maintenance,
}

impl MongoStore {
    /// Creates a store for the configured server. Sends nothing yet.
    ///
    /// # Errors
    /// The URI or the write concern is invalid.
    pub async fn new(
        config: &config::Store,
        span: Span,
        retention_dead_letters: Duration,
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
        let connection =
            Connection::new(client.database(&config.database), options, config.timeout);
        let settings = schema::Settings {
            retention: config.retention,
            retention_readings: config.retention_readings,
            retention_dead_letters,
            optional_indexes: OptionalIndexes::default(),
            rollup: None,
        };
        Ok(MongoStore::of_parts(
            &connection,
            Arc::new(Detected::new(config.mode)),
            settings,
            has_user,
        ))
    }

    fn of_parts(
        connection: &Connection,
        detected: Arc<Detected>,
        settings: schema::Settings,
        has_user: bool,
    ) -> MongoStore {
        let own = || connection.clone();
        let known = || detected.clone();
        let fence = Arc::new(Fence::new());
        let expiry = Expiry::new(own(), settings.measurements_kept());
        let recompute = SummaryRecompute::new(own(), known(), fence.clone());
        let reader = Reader::new(own(), known(), expiry.clone());
        let days = DayWriter::new(own());
        let catalog = Catalog::new(own(), known());
        let retention = settings.retention;
        MongoStore {
            has_user,
            schema: Schema::new(own(), known(), settings),
            writer: Writer::new(connection, &detected, &fence),
            high_water: HighWater::new(own()),
            latest: LatestWriter::new(own()),
            removal: ReadingsRemoval::new(own()),
            loader: Loader::new(own(), known(), recompute.clone(), expiry.clone(), fence),
            expiry,
            days: DayRollups::new(reader.clone(), days.clone()),
            columns: ColumnDays::new(reader.clone(), ColumnWriter::new(own())),
            catalog_expiry: CatalogExpiry::new(own(), catalog.clone(), reader.clone(), retention),
            catalog,
            aliases: MongoAliases::new(own()),
            dead_letters: DeadLetterStore::new(own()),
            maintenance: Maintenance::new(reader.clone(), recompute, days, retention),
            reader,
            connection: own(),
            detected,
        }
    }

    /// Also prepares these optional indexes.
    #[must_use]
    pub fn with_latest_and_tags(self, optional_indexes: OptionalIndexes) -> MongoStore {
        MongoStore {
            schema: self.schema.with_optional_indexes(optional_indexes),
            reader: self.reader.with_latest(optional_indexes.latest),
            ..self
        }
    }

    /// Also prepares the collections of days.
    #[must_use]
    pub fn with_rollup(self, rollup: Option<RollupSchema>) -> MongoStore {
        let settings = self.schema.settings_with(rollup);
        let optional_indexes = settings.optional_indexes;
        MongoStore::of_parts(&self.connection, self.detected, settings, self.has_user)
            .with_latest_and_tags(optional_indexes)
    }

    /// What columns add to pages; `None` without columns.
    fn tier(&self) -> Option<Tier<'_>> {
        let zone = self.schema.columns_zone()?;
        Some(Tier::new(&self.columns, zone, self.connection.span()))
    }

    /// Checks and shards the collections, for the commands.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// Finds and removes dead letters, for the commands.
    pub fn dead_letters(&self) -> &DeadLetterStore {
        &self.dead_letters
    }

    /// Reconciles and converts stored data, for the commands.
    pub fn maintenance(&self) -> &Maintenance {
        &self.maintenance
    }
}

impl Store for MongoStore {
    fn prepare(&self) -> BoxFuture<'_, Result<PreparedStore, PrepareError>> {
        Box::pin(self.schema.prepare())
    }

    fn check_collections(&self) -> BoxFuture<'_, Result<Option<String>, PrepareError>> {
        Box::pin(self.schema.check_collections())
    }

    fn write<'a>(
        &'a self,
        writes: &'a [PageWrite],
    ) -> BoxFuture<'a, Result<Vec<PageWriteResult>, StoreError>> {
        Box::pin(self.writer.write(writes))
    }

    fn raise_high_water(
        &self,
        through: BucketStart,
    ) -> BoxFuture<'_, Result<BucketStart, StoreError>> {
        Box::pin(self.high_water.raise(through))
    }

    fn latest<'a>(
        &'a self,
        updates: &'a [LatestUpdate],
    ) -> BoxFuture<'a, Result<Vec<LatestWriteResult>, StoreError>> {
        Box::pin(self.latest.merge(updates))
    }

    fn remove_readings(
        &self,
        ended_before_ms: i64,
        pages_max: usize,
    ) -> BoxFuture<'_, Result<RemovedReadings, StoreError>> {
        Box::pin(self.removal.remove(ended_before_ms, pages_max))
    }

    fn find_removable(
        &self,
        ended_ms: Range<i64>,
        pages_max: usize,
    ) -> BoxFuture<'_, Result<Vec<BucketKey>, StoreError>> {
        Box::pin(self.removal.find_removable(ended_ms, pages_max))
    }

    fn remove_compared<'a>(
        &'a self,
        pages: &'a [ComparedPage],
    ) -> BoxFuture<'a, Result<u64, StoreError>> {
        Box::pin(self.removal.remove_compared(pages))
    }

    fn now_ms(&self) -> BoxFuture<'_, Result<i64, StoreError>> {
        Box::pin(self.expiry.now_ms())
    }

    fn load<'a>(
        &'a self,
        requests: &'a [LoadRequest],
        within: Option<Duration>,
    ) -> BoxFuture<'a, Result<Vec<LoadResult>, StoreError>> {
        Box::pin(async move {
            let mut answers = self.loader.load(requests, within).await?;
            if let Some(tier) = self.tier() {
                tier.complete_loads(requests, &mut answers).await;
            }
            Ok(answers)
        })
    }

    fn pages<'a>(&'a self, q: &'a PageQuery) -> BoxFuture<'a, Result<PageResults, StoreError>> {
        Box::pin(async move {
            let mut results = self.reader.pages(q).await?;
            if let Some(tier) = self.tier() {
                let read = |q: PageQuery| -> BoxFuture<'_, _> {
                    Box::pin(async move { self.reader.pages(&q).await })
                };
                tier.complete_pages(q, &mut results, read).await?;
            }
            Ok(results)
        })
    }

    fn stored_pages<'a>(
        &'a self,
        q: &'a PageQuery,
    ) -> BoxFuture<'a, Result<PageResults, StoreError>> {
        Box::pin(self.reader.pages(q))
    }

    fn measurements<'a>(
        &'a self,
        q: &'a MeasurementQuery,
    ) -> BoxFuture<'a, Result<MeasurementResults, StoreError>> {
        Box::pin(self.reader.measurements(q))
    }

    fn summaries<'a>(
        &'a self,
        q: &'a SummaryQuery,
    ) -> BoxFuture<'a, Result<SummaryResults, StoreError>> {
        Box::pin(self.reader.summaries(q))
    }

    fn edges<'a>(&'a self, q: &'a EdgeQuery) -> BoxFuture<'a, Result<Edges, StoreError>> {
        Box::pin(async move {
            let (mut edges, removed) = self.reader.edges(q).await?;
            if let Some(tier) = self.tier() {
                tier.complete_edges(&removed, &mut edges).await?;
            }
            Ok(edges)
        })
    }

    fn samples(&self, query: SampleQuery) -> SampleStream<'_> {
        let found = self.reader.samples(query.clone());
        if self.tier().is_none() {
            return found;
        }
        let query = Arc::new(query);
        let complete = move |found| {
            let query = query.clone();
            async move { with_removed(self, &query, found).await }
        };
        found.and_then(complete).boxed()
    }

    fn newest<'a>(
        &'a self,
        sensors: &'a [SensorId],
    ) -> BoxFuture<'a, Result<Vec<StoredSensor>, StoreError>> {
        Box::pin(self.reader.newest(sensors))
    }

    fn sensors<'a>(&'a self, q: &'a SensorQuery) -> BoxFuture<'a, Result<Vec<String>, StoreError>> {
        Box::pin(self.reader.sensors(q))
    }

    fn find_dead_letters<'a>(
        &'a self,
        q: &'a DeadLetterQuery,
    ) -> BoxFuture<'a, Result<Vec<StoredDeadLetter>, StoreError>> {
        Box::pin(self.reader.dead_letters(q))
    }

    fn days(&self) -> Option<&dyn DayStore> {
        Some(&self.days)
    }

    fn columns(&self) -> Option<&dyn ColumnStore> {
        Some(&self.columns)
    }

    fn merge_catalog<'a>(
        &'a self,
        updates: &'a [&'a CatalogUpdate],
    ) -> BoxFuture<'a, Result<u64, StoreError>> {
        Box::pin(self.catalog.merge(updates))
    }

    fn find_catalog<'a>(
        &'a self,
        q: &'a CatalogQuery,
    ) -> BoxFuture<'a, Result<Vec<CatalogEntry>, StoreError>> {
        Box::pin(self.catalog.find(q))
    }

    fn count_catalog(
        &self,
        arrived_ms: (i64, i64),
    ) -> BoxFuture<'_, Result<CatalogCounts, StoreError>> {
        Box::pin(self.catalog.count(arrived_ms))
    }

    fn expire_catalog(&self, now_ms: i64) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(self.catalog_expiry.expire(now_ms))
    }

    fn note_running(&self, at_ms: i64) -> BoxFuture<'_, Result<Option<i64>, StoreError>> {
        Box::pin(self.catalog.record_running(at_ms))
    }

    fn registry(&self, query: RegistryQuery) -> Option<Arc<dyn RegistryReader>> {
        let connection = &self.connection;
        Some(Arc::new(registry::MongoRegistry::new(
            connection.db(),
            query,
            connection.timeout(),
        )))
    }

    fn write_dead_letters<'a>(
        &'a self,
        dead_letters: &'a [DeadLetter],
    ) -> BoxFuture<'a, Result<Vec<DeadLetterWritten>, StoreError>> {
        Box::pin(self.dead_letters.write(dead_letters))
    }

    fn dead_letter_bytes(&self) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(self.dead_letters.bytes())
    }

    fn evict_dead_letters(&self, bytes: u64) -> BoxFuture<'_, Result<Evicted, StoreError>> {
        Box::pin(self.dead_letters.evict(bytes))
    }

    fn ping(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            self.connection.run(doc! { "ping": 1 }).await?;
            logged_out::close_logged_out(&self.connection, self.has_user).await
        })
    }

    fn aliases(&self) -> Option<&dyn AliasStore> {
        Some(&self.aliases)
    }

    fn storage_mode(&self) -> StorageMode {
        self.detected.storage_mode()
    }
}
