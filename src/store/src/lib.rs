//! The store interface: the requests that the flush stage and the read API send to a database, and
//! the possible responses. [`mongo`] is the implementation; tests have a complete one in memory
//! (`testkit::memory_store`). Both pass the same contract suite (`tests/servers/store_contract/`).
//!
//! The contract:
//! - [`Store::write`] executes page writes independently and in any order; no two writes of one
//!   call address the same bucket. Each write is atomic. A `Create` succeeds only if the page does
//!   not exist. An `Append` succeeds only if the page exists, is not sealed and has exactly the
//!   given count. Otherwise the result is [`PageWriteResult::Conflict`] and nothing changes.
//! - `Ok` means durable with the configured write concern. [`StoreError::NotApplied`] means that
//!   nothing of the call was or will be applied. [`StoreError::Unknown`] means that any part of it
//!   may have been applied, or may still be.
//! - [`Store::load`] sees every write that returned `Ok` (majority read concern). It may not yet
//!   see the effects of a write that returned `Unknown`.
//! - A write in [`StorageMode::TimeSeries`] first stores its measurements, which no version guards,
//!   and then the summary. If the stored summary does not have the expected version, the result is
//!   [`PageWriteResult::SummaryConflict`]. After this result, and after an `Unknown`, the bucket
//!   must be loaded with `doubt` before the next write to it. That load waits until no abandoned
//!   statement of this process on this bucket can still be applied, and recomputes the summary if
//!   it differs from the measurements.
//! - The readings of old pages may be removed ([`retention`]). An `Append` to such a page is a
//!   conflict.
//! - A bucket that cannot be loaded does not fail the others: [`Store::load`] returns one result
//!   per request.

mod ability;
mod absent;
pub mod aliases;
pub mod catalog;
pub mod columns;
pub mod day_readings;
pub mod days;
pub mod dead_letter_filter;
mod error;
pub mod export;
pub mod maintain;
pub mod maintain_columns;
pub mod mongo;
pub mod reading;
pub mod registry;
pub mod retention;
pub mod samples;
pub mod summary_pages;
pub mod tier;

pub use ability::{Ability, Outcome};
pub use absent::NoStore;
pub use error::{PrepareError, PrepareErrorEnd, StoreError, StoreErrorKind};

use std::pin::Pin;
use std::time::Duration;

use catalog::{CatalogCounts, CatalogEntry, CatalogQuery};
use model::{
    BucketKey, BucketStart, CatalogUpdate, DeadLetter, LatestUpdate, PageWrite, ReadingKey,
    SensorId, StorageMode,
};
use reading::{
    DeadLetterQuery, MeasurementQuery, MeasurementResults, PageQuery, PageResults, SensorQuery,
    StoredDeadLetter, StoredSensor,
};
use retention::{Extent, RemovedReadings};

/// A boxed future, so that the store can be chosen at run time; costs one allocation per command.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The result of one page write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PageWriteResult {
    /// Applied. `count` is the number of readings in the page now: usually the known count plus the
    /// rows sent. If an append found that the page had been deleted, only the rows sent.
    Done {
        /// The new version of the page.
        count: u32,
    },
    /// The stored page does not have the expected version; nothing was changed.
    Conflict,
    /// Only in [`StorageMode::TimeSeries`]: the measurements are stored, but the stored summary
    /// does not have the expected version. Load the bucket with `doubt`, which updates the summary.
    SummaryConflict,
    /// Unknown whether this statement was applied, although other statements of the call have
    /// results. Load the bucket.
    Unknown {
        /// The store's error text.
        detail: String,
    },
    /// The store rejects this statement permanently; its readings become dead letters.
    Rejected {
        /// The store's error text.
        detail: String,
    },
}

/// The result of one update of a sensor's latest state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LatestWriteResult {
    /// Applied.
    Done,
    /// The document would be too large: applied in part, at least its time.
    Reduced {
        /// The store's error text, and what was left out.
        detail: String,
    },
    /// Not applied this time (a concurrent upsert won, or the server was busy): send the same
    /// update again.
    Again,
    /// The store rejects this update permanently.
    Rejected {
        /// The store's error text.
        detail: String,
    },
}

/// The result of storing one dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeadLetterWritten {
    /// Stored.
    Done,
    /// The store rejects this dead letter permanently.
    Rejected {
        /// The store's error text.
        detail: String,
    },
}

/// The result of evicting dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Evicted {
    /// Number of dead letters that this call removed.
    pub dead_letters: u64,
    /// Their size in bytes, as the store counts it.
    pub bytes: u64,
    /// Receipt time of the newest removed dead letter, in milliseconds since 1970.
    pub until_ms: i64,
    /// `true` if no evictable dead letter is left.
    pub exhausted: bool,
}

/// The result of one [`LoadRequest`].
pub type LoadResult = Result<LoadedBucket, StoreError>;

/// Which bucket to load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadRequest {
    /// Sensor and start time.
    pub bucket: BucketKey,
    /// Return readings from this time on (ms since 1970). `None` returns no readings and costs
    /// about a tenth.
    pub readings_from: Option<i64>,
    /// Whether an abandoned statement or an earlier process may have left measurements in a
    /// [`StorageMode::TimeSeries`] bucket that its summary does not count, or that have no summary
    /// yet.
    pub doubt: bool,
}

/// The stored state of one bucket.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LoadedBucket {
    /// Where its readings are. For a bucket that is not stored: the mode of new buckets.
    pub storage_mode: StorageMode,
    /// Its pages in order from page 0, without gaps; empty if the bucket is not stored.
    pub pages: Vec<LoadedPage>,
}

/// The stored state of one page.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LoadedPage {
    /// Number of readings; the version of the page.
    pub count: u32,
    /// Whether it is closed for appends.
    pub sealed: bool,
    /// Earliest time of its readings, in milliseconds since 1970.
    pub first_ts_ms: i64,
    /// Latest time of its readings, in milliseconds since 1970.
    pub last_ts_ms: i64,
    /// Size of the readings as a BSON array, in bytes.
    pub bytes: u64,
    /// Size of its summary in bytes.
    pub summary_bytes: u64,
    /// Keys of all readings of the page in stored order, if readings were requested and the page
    /// holds one of the requested time or later; otherwise empty. In [`StorageMode::TimeSeries`]:
    /// only keys of the requested time or later, unordered, all in page 0.
    pub keys: Vec<ReadingKey>,
    /// Its readings were removed ([`retention`]). In [`StorageMode::TimeSeries`]: at least some of
    /// them, or the store is about to; and `keys` is empty. Known with `doubt` only, except in the
    /// latter case.
    pub readings_removed: bool,
}

impl LoadedPage {
    /// What it counts.
    pub fn extent(&self) -> Extent {
        Extent {
            count: u64::from(self.count),
            first_ts_ms: self.first_ts_ms,
        }
    }
}

impl LoadedBucket {
    /// Whether a reading can be stored that is not in `keys`, because the readings of a page were
    /// removed.
    pub fn readings_removed(&self) -> bool {
        self.pages.iter().any(|page| page.readings_removed)
    }
}

/// The result of preparing the store.
#[derive(Debug, Clone, Default)]
pub struct PreparedStore {
    /// Why this storage mode was chosen.
    pub mode_reason: String,
    /// Server version, such as `6.0.5`.
    pub server_version: String,
    /// One line for each object that was created or changed.
    pub changes: Vec<String>,
    /// Warnings for the operator.
    pub warnings: Vec<String>,
}

/// A database of bucket pages.
pub trait Store: Send + Sync + 'static {
    /// Creates missing collections, indexes, validator and view, and updates existing ones. Must
    /// succeed before any other call; retry unless the error is final ([`PrepareErrorEnd`]).
    fn prepare(&self) -> BoxFuture<'_, Result<PreparedStore, PrepareError>>;

    /// Raises the database's high-water mark to at least `through` and returns its previous value.
    /// The mark is as durable as the buckets (majority write concern). A process must not write a
    /// bucket that begins after the mark, so a bucket that begins after the returned value has
    /// never been written: see [`NewBuckets`](model::NewBuckets). Idempotent: may be called
    /// again after any error.
    fn raise_high_water(
        &self,
        through: BucketStart,
    ) -> BoxFuture<'_, Result<BucketStart, StoreError>>;

    /// Executes the writes; the results are in the same order.
    fn write<'a>(
        &'a self,
        writes: &'a [PageWrite],
    ) -> BoxFuture<'a, Result<Vec<PageWriteResult>, StoreError>>;

    /// Merges updates into the sensors' entries of the catalogue, and returns how many it refuses
    /// permanently. Several updates may be for the same sensor. Idempotent: may be called again
    /// after any error. `Ok` means as durable as the pages.
    fn merge_catalog<'a>(
        &'a self,
        updates: &'a [&'a CatalogUpdate],
    ) -> BoxFuture<'a, Result<u64, StoreError>>;

    /// Finds entries of the catalogue, ordered by the bytes of the sensors' ids. Fewer than the
    /// limit means that there are no more.
    fn find_catalog<'a>(
        &'a self,
        query: &'a CatalogQuery,
    ) -> BoxFuture<'a, Result<Vec<CatalogEntry>, StoreError>>;

    /// Counts the entries, and those whose last arrival is in this time range (ms since 1970, end
    /// exclusive).
    fn count_catalog(
        &self,
        arrived_ms: (i64, i64),
    ) -> BoxFuture<'_, Result<CatalogCounts, StoreError>> {
        let _ = arrived_ms;
        Box::pin(async { Ok(CatalogCounts::default()) })
    }

    /// Records that an instance is running and receives readings at this time (ms since 1970).
    /// Returns the latest time that was recorded before, by any instance.
    fn note_running(&self, at_ms: i64) -> BoxFuture<'_, Result<Option<i64>, StoreError>> {
        let _ = at_ms;
        Box::pin(async { Ok(None) })
    }

    /// Removes entries of sensors that have had no bucket for a week, because retention removed
    /// them all. Returns their number.
    fn expire_catalog(&self, now_ms: i64) -> BoxFuture<'_, Result<u64, StoreError>> {
        let _ = now_ms;
        Box::pin(async { Ok(0) })
    }

    /// The store's own clock (ms since 1970), which decides whether a reading is too old.
    fn now_ms(&self) -> BoxFuture<'_, Result<i64, StoreError>> {
        Box::pin(async { Ok(0) })
    }

    /// Removes the readings of at most `pages_max` pages whose bucket ended before
    /// `ended_before_ms`, oldest first; see [`retention`]. With 0 only the oldest one is found. May
    /// be called again after any error.
    fn remove_readings(
        &self,
        ended_before_ms: i64,
        pages_max: usize,
    ) -> BoxFuture<'_, Result<RemovedReadings, StoreError>> {
        let _ = (ended_before_ms, pages_max);
        Box::pin(async { Ok(RemovedReadings::default()) })
    }

    /// The buckets of the oldest pages that have readings in their documents, ended before this time
    /// and at or after the other (ms since 1970): each once, oldest first,
    /// of at most so many pages.
    fn find_removable(
        &self,
        ended_ms: std::ops::Range<i64>,
        pages_max: usize,
    ) -> BoxFuture<'_, Result<Vec<BucketKey>, StoreError>> {
        let _ = (ended_ms, pages_max);
        Box::pin(async { Ok(vec![]) })
    }

    /// Removes the readings of pages that have not changed since they were compared with columns,
    /// and seals them; returns how many. See [`tier`].
    fn remove_compared<'a>(
        &'a self,
        pages: &'a [tier::ComparedPage],
    ) -> BoxFuture<'a, Result<u64, StoreError>> {
        let _ = pages;
        Box::pin(async { Ok(0) })
    }

    /// Loads buckets; the results are in the order of the requests. `within` limits the whole call:
    /// a bucket that is not complete by then gets a timeout, and one that was not started gets
    /// [`StoreError::deferred`]. Without a limit, a bucket may take as long as its parts keep
    /// arriving.
    ///
    /// # Errors
    /// Nothing could be determined about any of the buckets.
    fn load<'a>(
        &'a self,
        requests: &'a [LoadRequest],
        within: Option<Duration>,
    ) -> BoxFuture<'a, Result<Vec<LoadResult>, StoreError>>;

    /// Merges readings into the sensors' documents of `sensor_latest` ([`model::latest`]).
    /// The results are in the order of the updates; no two updates are for the same sensor.
    /// Idempotent: the same update may be sent again after any error.
    fn latest<'a>(
        &'a self,
        updates: &'a [LatestUpdate],
    ) -> BoxFuture<'a, Result<Vec<LatestWriteResult>, StoreError>>;

    /// A reader of the registry collection that `query` names; `None` if the store has no registry.
    fn registry(
        &self,
        query: registry::RegistryQuery,
    ) -> Option<std::sync::Arc<dyn registry::RegistryReader>> {
        let _ = query;
        None
    }

    /// The aliases of sensors; `None` if the store has none.
    fn aliases(&self) -> Option<&dyn aliases::AliasStore> {
        None
    }

    /// Stores dead letters; the results are in the same order. A retry after an `Unknown` may store
    /// some of them twice.
    fn write_dead_letters<'a>(
        &'a self,
        dead_letters: &'a [DeadLetter],
    ) -> BoxFuture<'a, Result<Vec<DeadLetterWritten>, StoreError>>;

    /// Total size of all stored dead letters in bytes as the store counts them, including those of
    /// other instances.
    fn dead_letter_bytes(&self) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async { Ok(0) })
    }

    /// Removes the oldest dead letters until `bytes` are freed; one call may free less to stay
    /// short. Dead letters that [hold acknowledged readings](DeadLetter::is_own) are never removed.
    fn evict_dead_letters(&self, bytes: u64) -> BoxFuture<'_, Result<Evicted, StoreError>> {
        let _ = bytes;
        Box::pin(async {
            Ok(Evicted {
                exhausted: true,
                ..Evicted::default()
            })
        })
    }

    /// Reads the pages of one sensor; see [`reading`].
    fn pages<'a>(&'a self, query: &'a PageQuery) -> BoxFuture<'a, Result<PageResults, StoreError>>;

    /// The same, as they are stored: without the readings that only columns have ([`tier`]).
    fn stored_pages<'a>(
        &'a self,
        query: &'a PageQuery,
    ) -> BoxFuture<'a, Result<PageResults, StoreError>> {
        self.pages(query)
    }

    /// Reads the measurements of one sensor, including those of buckets in [`StorageMode::Bucket`]
    /// (a conversion may have left some). Empty if the store has no time-series collection.
    fn measurements<'a>(
        &'a self,
        query: &'a MeasurementQuery,
    ) -> BoxFuture<'a, Result<MeasurementResults, StoreError>>;

    /// Reads the pages of several sensors, without their readings.
    fn summaries<'a>(
        &'a self,
        query: &'a reading::SummaryQuery,
    ) -> BoxFuture<'a, Result<reading::SummaryResults, StoreError>>;

    /// Reads the readings at the first millisecond of buckets.
    fn edges<'a>(
        &'a self,
        query: &'a reading::EdgeQuery,
    ) -> BoxFuture<'a, Result<reading::Edges, StoreError>>;

    /// Reads the samples of some fields of several sensors.
    fn samples(&self, query: samples::SampleQuery) -> samples::SampleStream<'_> {
        samples::by_pages(self, query)
    }

    /// Lists sensors that have a bucket, ordered by the bytes of their ids. Fewer than the limit
    /// means that there are no more.
    fn sensors<'a>(
        &'a self,
        query: &'a SensorQuery,
    ) -> BoxFuture<'a, Result<Vec<String>, StoreError>>;

    /// Reads the newest state of these sensors, in the same order.
    fn newest<'a>(
        &'a self,
        sensors: &'a [SensorId],
    ) -> BoxFuture<'a, Result<Vec<StoredSensor>, StoreError>>;

    /// Reads dead letters, newest receipt time first.
    fn find_dead_letters<'a>(
        &'a self,
        query: &'a DeadLetterQuery,
    ) -> BoxFuture<'a, Result<Vec<StoredDeadLetter>, StoreError>>;

    /// The daily rollups; `None` if the store has none.
    fn days(&self) -> Option<&dyn days::DayStore> {
        None
    }

    /// The days in columns; `None` if the store has none.
    fn columns(&self) -> Option<&dyn columns::ColumnStore> {
        None
    }

    /// Checks that the collections are still those that were prepared, and prepares them again if
    /// not. Returns what was wrong, and what an operator must do.
    fn check_collections(&self) -> BoxFuture<'_, Result<Option<String>, PrepareError>> {
        Box::pin(async { Ok(None) })
    }

    /// Checks that the store responds.
    fn ping(&self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Where the readings of new buckets are stored. Known once the store is prepared.
    fn storage_mode(&self) -> StorageMode;

    /// Its name.
    fn mode(&self) -> &'static str {
        self.storage_mode().as_str()
    }
}
