//! The store, in words: what the flush stage asks of a database, and the answers it can get. [`memory`] is a full
//! implementation for tests, [`mongo`] the real one; both pass the same contract suite (`tests/servers/store_contract.rs`).
//!
//! The contract:
//! - [`Store::write`] carries out page writes, each by itself, in any order; no two of a batch are for the same bucket.
//!   Each is atomic. A `Create` succeeds only where the page does not exist; an `Append` only where it exists, is not
//!   sealed and has exactly the count named. Anything else is [`PageWriteResult::Conflict`] and changes nothing.
//! - `Ok` means durable with the write concern. [`StoreError::NotApplied`] means that nothing of the batch was or will be
//!   applied. [`StoreError::Unknown`] means that any part may have been, or may still be.
//! - [`Store::load`] sees everything that an `Ok` was given for (majority read concern), and may not see yet what an
//!   `Unknown` left.
//! - Writes of [`StorageMode::TimeSeries`] store their measurements first, which no version guards, and then the summary. If the
//!   summary is not what was believed they answer [`PageWriteResult::SummaryConflict`]. After that, and after an `Unknown`, the
//!   bucket must be loaded with `doubt` before anything more is written to it: that load waits until no statement of this
//!   process on the bucket that was given up can still be applied, and recomputes the summary if it differs ([`recompute_summary`]).
//! - One bucket that cannot be loaded does not fail the others: [`Store::load`] answers each request by itself.

pub mod memory;
pub mod mongo;
pub mod reading;
pub mod registry;
pub(crate) mod summary_pages;

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use crate::model::{BucketKey, BucketStart, DeadLetter, LatestUpdate, PageWrite, ReadingKey, SensorId, StorageMode};
use reading::{
    DeadLetterQuery, MeasurementQuery, MeasurementResults, PageQuery, PageResults, SensorQuery, StoredDeadLetter,
    StoredSensor,
};

/// A boxed future, so that the store can be chosen at run time; one allocation a command.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The answer to one page write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PageWriteResult {
    /// Done. `count` is what the page holds now (usually what was known plus what was sent; after an append to a page
    /// that somebody had removed, only what was sent).
    Done {
        /// The page's version from here on.
        count: u32,
    },
    /// The stored page is not what was believed; nothing was changed.
    Conflict,
    /// Of [`StorageMode::TimeSeries`]: the measurements are stored, but the summary is not what was believed. Load the bucket with
    /// `doubt`, which brings the summary in line.
    SummaryConflict,
    /// It is not known whether this statement was applied, although others of the batch were answered: load the bucket.
    Unknown {
        /// Why, in the store's words.
        detail: String,
    },
    /// The store will never take this statement, whatever is tried: its readings become dead letters.
    Rejected {
        /// Why, in the store's words.
        detail: String,
    },
}

/// The answer to one update of a sensor's latest state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LatestWriteResult {
    /// Merged in.
    Done,
    /// Not this time (another upsert was faster, the server was busy): send the same again.
    Again,
    /// The store will never take this update.
    Rejected {
        /// Why, in the store's words.
        detail: String,
    },
}

/// The answer to one dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeadLetterWritten {
    /// It is stored.
    Done,
    /// The store will never take this dead letter as it is.
    Rejected {
        /// Why, in the store's words.
        detail: String,
    },
}

/// What was removed to make room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Evicted {
    /// Dead letters that this call has removed.
    pub dead_letters: u64,
    /// Their bytes.
    pub bytes: u64,
    /// When the last one of them was received, in milliseconds since 1970.
    pub until_ms: i64,
    /// No dead letter is left that may be removed.
    pub exhausted: bool,
}

/// Why a command as a whole has no answers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Nothing was applied and nothing will be: send the same again, later.
    #[error("{kind}: {detail}")]
    NotApplied {
        /// A metric label of a fixed set (`network`, `no_primary`, `overload`, `unauthorized`, …).
        kind: &'static str,
        /// In words.
        detail: String,
    },
    /// The answer never came, or it says that the write may be lost: load and compare before anything is sent again.
    #[error("{kind}: {detail}")]
    Unknown {
        /// As above, and `timeout`, `write_concern`.
        kind: &'static str,
        /// In words.
        detail: String,
    },
}

/// The answer to one [`LoadRequest`].
pub type LoadResult = Result<LoadedBucket, StoreError>;

impl StoreError {
    /// The answer to a request that was not begun because the time was used up by others.
    pub fn deferred() -> StoreError {
        StoreError::NotApplied { kind: "deferred", detail: "not begun within the time of its batch".into() }
    }

    /// Whether the store as a whole is out of reach: the same can be asked again later.
    pub fn is_away(&self) -> bool {
        matches!(self.kind(), "network" | "no_primary" | "unauthorized")
    }

    /// Whether this is [`StoreError::deferred`].
    pub fn is_deferred(&self) -> bool {
        self.kind() == "deferred"
    }

    /// The kind, a metric label.
    pub fn kind(&self) -> &'static str {
        match self {
            StoreError::NotApplied { kind, .. } | StoreError::Unknown { kind, .. } => kind,
        }
    }
}

/// Which bucket to look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadRequest {
    /// The bucket.
    pub bucket: BucketKey,
    /// The time (ms since 1970) from which on the readings are wanted; without any the answer is about ten times cheaper.
    pub readings_from: Option<i64>,
    /// Whether a statement without an answer, or an earlier process, may have left a [`StorageMode::TimeSeries`] bucket with
    /// measurements that its summary does not know, or that have no summary yet.
    pub doubt: bool,
}

/// A bucket as it is stored, in the order of the requests.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LoadedBucket {
    /// Where its readings are; of new buckets where there is none.
    pub storage_mode: StorageMode,
    /// Its pages in order, without gaps, from page 0; empty where there is none.
    pub pages: Vec<LoadedPage>,
}

/// One stored page.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LoadedPage {
    /// Its version.
    pub count: u32,
    /// Whether it takes no more.
    pub sealed: bool,
    /// Latest time in it, in milliseconds since 1970.
    pub last_ts_ms: i64,
    /// Bytes of the readings as a BSON array.
    pub bytes: u64,
    /// Bytes of its summary.
    pub summary_bytes: u64,
    /// The identities of all its readings in stored order, where readings were asked for and it holds one of that time
    /// or later; otherwise empty. Of [`StorageMode::TimeSeries`] only those of that time or later, in any order, all with page 0.
    pub keys: Vec<ReadingKey>,
}

/// What preparing the store found.
#[derive(Debug, Clone, Default)]
pub struct PreparedStore {
    /// Why this mode, in words.
    pub mode_reason: String,
    /// Such as `6.0.5`.
    pub server_version: String,
    /// What was made or changed.
    pub changes: Vec<String>,
    /// What an operator should know.
    pub warnings: Vec<String>,
}

/// Why the store could not be prepared.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{detail}")]
pub struct PrepareError {
    /// In words, with what to do.
    pub detail: String,
    /// Whether the same may work later.
    pub transient: bool,
}

/// A database of bucket pages.
pub trait Store: Send + Sync + 'static {
    /// Makes collections, indexes, validator and view where they are missing, and brings them up to date. To be done
    /// before anything else, and again as long as the error is transient.
    fn prepare(&self) -> BoxFuture<'_, Result<PreparedStore, PrepareError>>;

    /// Raises the database's high-water mark to at least `through` and returns what it was before. The mark survives
    /// everything that the buckets survive (majority write concern). A process must not write a bucket that begins after
    /// the mark, so a bucket after the returned mark has never been written: see [`NewBuckets`](crate::model::NewBuckets).
    /// May be called again after any error.
    fn raise_high_water(&self, through: BucketStart) -> BoxFuture<'_, Result<BucketStart, StoreError>>;

    /// Carries out the writes; the answers are in their order.
    fn write<'a>(&'a self, writes: &'a [PageWrite]) -> BoxFuture<'a, Result<Vec<PageWriteResult>, StoreError>>;

    /// Looks at buckets; the answers are in the order of the requests. A bucket that was not finished `within` this time
    /// is answered with a timeout, and one that was not even begun with [`StoreError::deferred`]; without a limit each
    /// bucket may take as long as its parts keep coming.
    ///
    /// # Errors
    /// Nothing could be found out about any of them.
    fn load<'a>(
        &'a self,
        requests: &'a [LoadRequest],
        within: Option<Duration>,
    ) -> BoxFuture<'a, Result<Vec<LoadResult>, StoreError>>;

    /// Merges readings into the sensors' documents of `sensor_latest` ([`crate::model::latest`]); the answers are in
    /// their order, no two for the same sensor. The same may be sent again after any error: merged twice is merged once.
    fn latest<'a>(&'a self, updates: &'a [LatestUpdate]) -> BoxFuture<'a, Result<Vec<LatestWriteResult>, StoreError>>;

    /// A reader of the registry collection that `query` names; `None` where the store has no such thing.
    fn registry(&self, query: registry::RegistryQuery) -> Option<std::sync::Arc<dyn registry::RegistryReader>> {
        let _ = query;
        None
    }

    /// Keeps dead letters; the answers are in their order. May keep some twice when it is called again after an `Unknown`.
    fn write_dead_letters<'a>(
        &'a self,
        dead_letters: &'a [DeadLetter],
    ) -> BoxFuture<'a, Result<Vec<DeadLetterWritten>, StoreError>>;

    /// Bytes of all dead letters that are stored, as the store counts them: those of other instances are among them.
    fn dead_letter_bytes(&self) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async { Ok(0) })
    }

    /// Removes the oldest dead letters until `bytes` are gone, or fewer where one call would take long. Dead letters that
    /// [hold acknowledged readings](DeadLetter::is_own) are never removed.
    fn evict_dead_letters(&self, bytes: u64) -> BoxFuture<'_, Result<Evicted, StoreError>> {
        let _ = bytes;
        Box::pin(async { Ok(Evicted { exhausted: true, ..Evicted::default() }) })
    }

    /// The pages of one sensor; see [`reading`].
    fn pages<'a>(&'a self, query: &'a PageQuery) -> BoxFuture<'a, Result<PageResults, StoreError>>;

    /// The measurements of one sensor, those of buckets in [`StorageMode::Bucket`] too (a conversion may have left some); none where
    /// the store has no time-series collection.
    fn measurements<'a>(&'a self, query: &'a MeasurementQuery)
    -> BoxFuture<'a, Result<MeasurementResults, StoreError>>;

    /// Sensors that have a bucket, by the bytes of their ids. Fewer than asked for mean that there are no more.
    fn sensors<'a>(&'a self, query: &'a SensorQuery) -> BoxFuture<'a, Result<Vec<String>, StoreError>>;

    /// The newest state of these sensors, in their order.
    fn newest<'a>(&'a self, sensors: &'a [SensorId]) -> BoxFuture<'a, Result<Vec<StoredSensor>, StoreError>>;

    /// Of each of these sensors the begin of its first bucket; `None` of one that has none.
    fn first_buckets<'a>(
        &'a self,
        sensors: &'a [SensorId],
    ) -> BoxFuture<'a, Result<Vec<Option<BucketStart>>, StoreError>>;

    /// Dead letters, the one received last first.
    fn find_dead_letters<'a>(
        &'a self,
        query: &'a DeadLetterQuery,
    ) -> BoxFuture<'a, Result<Vec<StoredDeadLetter>, StoreError>>;

    /// Whether the store answers.
    fn ping(&self) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Where the readings of new buckets go. Known when the store is prepared.
    fn storage_mode(&self) -> StorageMode;

    /// `bucket` or `timeseries`: the label `mode`.
    fn mode(&self) -> &'static str;
}
