//! The store in memory: implements the full contract without a database, with faults on demand.
//!
//! [`Pages`] is the store itself, synchronous and deterministic, so that a simulation can run it
//! step by step. [`MemoryStore`] implements the [`Store`] trait with it; a [`Script`] decides the
//! fault of each command.

mod catalog;
mod check;
mod columns;
mod convert_bucket;
mod days;
mod dead_letters;
mod judge;
pub mod latest;
pub mod one_by_one;
mod pages;
mod read;
mod recompute_summary;
mod remove_readings;

pub use check::{BrokenInvariant, InvalidPage, same_sum};
pub use judge::{Judge, Verdict};
pub use pages::{Days, Page, Pages};

use std::ops::Range;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::{
    BucketKey, BucketStart, CatalogUpdate, DeadLetter, LatestUpdate, PageWrite, SensorId, Span,
    StorageMode,
};
use store::catalog::{CatalogCounts, CatalogEntry, CatalogQuery};
use store::columns::ColumnStore;
use store::days::DayStore;
use store::reading::{
    DeadLetterQuery, EdgeQuery, Edges, MeasurementQuery, MeasurementResults, PageQuery,
    PageResults, SensorQuery, StoredDeadLetter, StoredSensor, SummaryQuery, SummaryResults,
};
use store::retention::RemovedReadings;
use store::tier::{ComparedPage, Tier};
use store::{
    BoxFuture, DeadLetterWritten, Evicted, LatestWriteResult, LoadRequest, LoadResult,
    PageWriteResult, PrepareError, PreparedStore, Store, StoreError, StoreErrorKind,
};

/// The fault of one command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Succeeds.
    None,
    /// Fails; nothing is applied.
    NotApplied,
    /// The response is lost; nothing was applied.
    LostBefore,
    /// The response is lost; everything was applied.
    LostAfter,
    /// The response is lost; only the first half of the statements was applied, and the
    /// measurements of all time-series writes.
    LostHalf,
    /// Every statement is rejected permanently.
    Rejected,
}

/// Decides for each command its fault and how long it takes.
pub type Script = Box<dyn FnMut() -> (Fault, Duration) + Send>;

/// The errors of attempts to prepare the store; `None`: it is prepared.
pub type PrepareScript = Box<dyn FnMut() -> Option<PrepareError> + Send>;

/// The memory store behind the trait.
pub struct MemoryStore {
    pages: Mutex<Pages>,
    prepare: Mutex<PrepareScript>,
    script: Mutex<Script>,
    judge: Mutex<Judge>,
    storage_mode: StorageMode,
    now_ms: AtomicI64,
}

impl Default for MemoryStore {
    fn default() -> MemoryStore {
        MemoryStore::new()
    }
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MemoryStore")
    }
}

impl MemoryStore {
    /// A store without faults.
    pub fn new() -> MemoryStore {
        MemoryStore::with_script(Box::new(|| (Fault::None, Duration::ZERO)))
    }

    /// A store that calls `script` for every command.
    pub fn with_script(script: Script) -> MemoryStore {
        let judge: Judge = Box::new(|_| Verdict::Takes);
        MemoryStore {
            pages: Mutex::default(),
            prepare: Mutex::new(Box::new(|| None)),
            script: Mutex::new(script),
            judge: Mutex::new(judge),
            storage_mode: StorageMode::Bucket,
            now_ms: AtomicI64::new(0),
        }
    }

    /// The same store with this storage mode for new buckets.
    pub fn with_storage_mode(self, storage_mode: StorageMode) -> MemoryStore {
        MemoryStore {
            storage_mode,
            ..self
        }
    }

    /// Replaces the script.
    pub fn set_script(&self, script: Script) {
        *lock(&self.script) = script;
    }

    /// Replaces the script of the preparation.
    pub fn set_prepare_script(&self, script: PrepareScript) {
        *lock(&self.prepare) = script;
    }

    /// What columns add to pages; `None` without columns.
    fn tier(&self) -> Option<Tier<'_>> {
        let zone = self.pages().days.zone?;
        Some(Tier::new(self, zone, Span::HOUR))
    }

    /// The stored state, locked.
    pub fn pages(&self) -> MutexGuard<'_, Pages> {
        lock(&self.pages)
    }

    /// A read that fails or is slow according to the script.
    async fn read<T>(&self, read: impl FnOnce(&Pages) -> T + Send) -> Result<T, StoreError> {
        let (fault, delay) = self.fate();
        pause(delay).await;
        match fault {
            Fault::None | Fault::Rejected => Ok(read(&self.pages())),
            _ => Err(not_applied()),
        }
    }

    fn fate(&self) -> (Fault, Duration) {
        (lock(&self.script))()
    }
}

/// A panic in a test must not hide the stored state.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn not_applied() -> StoreError {
    StoreError::NotApplied {
        kind: StoreErrorKind::Network,
        detail: "scripted failure".into(),
    }
}

fn unknown() -> StoreError {
    StoreError::Unknown {
        kind: StoreErrorKind::Timeout,
        detail: "scripted loss of the answer".into(),
    }
}

/// Yields even for a zero duration: other tasks must be able to run between any two commands.
async fn pause(delay: Duration) {
    if delay.is_zero() {
        tokio::task::yield_now().await;
    } else {
        tokio::time::sleep(delay).await;
    }
}

impl Store for MemoryStore {
    fn prepare(&self) -> BoxFuture<'_, Result<PreparedStore, PrepareError>> {
        Box::pin(async {
            match (lock(&self.prepare))() {
                Some(error) => Err(error),
                None => Ok(PreparedStore {
                    mode_reason: "in memory".into(),
                    ..PreparedStore::default()
                }),
            }
        })
    }

    fn raise_high_water(
        &self,
        through: BucketStart,
    ) -> BoxFuture<'_, Result<BucketStart, StoreError>> {
        Box::pin(async move {
            let (fault, delay) = self.fate();
            pause(delay).await;
            match fault {
                Fault::None | Fault::Rejected => Ok(self.pages().raise_high_water(through)),
                Fault::NotApplied | Fault::LostBefore => Err(not_applied()),
                Fault::LostAfter | Fault::LostHalf => {
                    self.pages().raise_high_water(through);
                    Err(unknown())
                }
            }
        })
    }

    fn write<'a>(
        &'a self,
        writes: &'a [PageWrite],
    ) -> BoxFuture<'a, Result<Vec<PageWriteResult>, StoreError>> {
        Box::pin(async move {
            let (fault, delay) = self.fate();
            pause(delay).await;
            let apply = |n: usize| {
                writes[..n]
                    .iter()
                    .map(|w| self.pages().write(w))
                    .collect::<Vec<_>>()
            };
            match fault {
                Fault::None => Ok(apply(writes.len())),
                Fault::NotApplied => Err(not_applied()),
                Fault::LostBefore => Err(unknown()),
                Fault::LostAfter => {
                    apply(writes.len());
                    Err(unknown())
                }
                Fault::LostHalf => {
                    apply(writes.len() / 2);
                    let rest = writes[writes.len() / 2..]
                        .iter()
                        .filter(|w| w.storage_mode == StorageMode::TimeSeries);
                    rest.for_each(|w| self.pages().insert(w));
                    Err(unknown())
                }
                Fault::Rejected => Ok(writes
                    .iter()
                    .map(|_| PageWriteResult::Rejected {
                        detail: "scripted refusal".into(),
                    })
                    .collect()),
            }
        })
    }

    fn now_ms(&self) -> BoxFuture<'_, Result<i64, StoreError>> {
        Box::pin(self.read(|_| self.now_ms.load(Ordering::Relaxed)))
    }

    fn remove_readings(
        &self,
        ended_before_ms: i64,
        pages_max: usize,
    ) -> BoxFuture<'_, Result<RemovedReadings, StoreError>> {
        Box::pin(async move {
            let (fault, delay) = self.fate();
            pause(delay).await;
            let remove = |n| self.pages().remove_readings(Span::HOUR, ended_before_ms, n);
            match fault {
                Fault::None | Fault::Rejected => Ok(remove(pages_max)),
                Fault::NotApplied | Fault::LostBefore => Err(not_applied()),
                Fault::LostAfter => {
                    remove(pages_max);
                    Err(unknown())
                }
                Fault::LostHalf => {
                    remove(pages_max / 2);
                    Err(unknown())
                }
            }
        })
    }

    fn find_removable(
        &self,
        ended_ms: Range<i64>,
        pages_max: usize,
    ) -> BoxFuture<'_, Result<Vec<BucketKey>, StoreError>> {
        Box::pin(self.read(move |pages| pages.find_removable(Span::HOUR, ended_ms, pages_max)))
    }

    fn remove_compared<'a>(
        &'a self,
        compared: &'a [ComparedPage],
    ) -> BoxFuture<'a, Result<u64, StoreError>> {
        let remove = |pages: &mut Pages, page: &ComparedPage| pages.remove_compared(page);
        Box::pin(async move {
            let removed = self.change(compared, remove).await?;
            Ok(removed.iter().filter(|is_removed| **is_removed).count() as u64)
        })
    }

    fn load<'a>(
        &'a self,
        requests: &'a [LoadRequest],
        _within: Option<Duration>,
    ) -> BoxFuture<'a, Result<Vec<LoadResult>, StoreError>> {
        Box::pin(async move {
            let (fault, delay) = self.fate();
            pause(delay).await;
            let load = |r: &LoadRequest| self.pages().load(r, self.storage_mode);
            let mut answers = match fault {
                Fault::None | Fault::Rejected => requests.iter().map(load).collect::<Vec<_>>(),
                // The second half of the results is missing.
                Fault::LostHalf => {
                    let half = requests.len() / 2;
                    let missing = requests[half..].iter().map(|_| Err(unknown()));
                    requests[..half].iter().map(load).chain(missing).collect()
                }
                Fault::LostAfter => return Err(unknown()),
                _ => return Err(not_applied()),
            };
            if let Some(tier) = self.tier() {
                tier.complete_loads(requests, &mut answers).await;
            }
            Ok(answers)
        })
    }

    fn merge_catalog<'a>(
        &'a self,
        updates: &'a [&'a CatalogUpdate],
    ) -> BoxFuture<'a, Result<u64, StoreError>> {
        Box::pin(async move {
            // Without a separate fault: the write that follows has one, and a script counts its
            // commands.
            pause(Duration::ZERO).await;
            updates
                .iter()
                .for_each(|update| self.pages().merge_catalog(update));
            Ok(0)
        })
    }

    fn find_catalog<'a>(
        &'a self,
        query: &'a CatalogQuery,
    ) -> BoxFuture<'a, Result<Vec<CatalogEntry>, StoreError>> {
        Box::pin(self.read(move |pages| pages.find_catalog(query)))
    }

    fn note_running(&self, at_ms: i64) -> BoxFuture<'_, Result<Option<i64>, StoreError>> {
        let before_ms = self.pages().running_ms;
        self.pages().running_ms = before_ms.max(Some(at_ms));
        Box::pin(async move { Ok(before_ms) })
    }

    fn count_catalog(
        &self,
        arrived_ms: (i64, i64),
    ) -> BoxFuture<'_, Result<CatalogCounts, StoreError>> {
        Box::pin(self.read(move |pages| pages.count_catalog(arrived_ms)))
    }

    fn latest<'a>(
        &'a self,
        updates: &'a [LatestUpdate],
    ) -> BoxFuture<'a, Result<Vec<LatestWriteResult>, StoreError>> {
        Box::pin(async move {
            let (fault, delay) = self.fate();
            pause(delay).await;
            let apply = |n: usize| {
                updates[..n]
                    .iter()
                    .for_each(|u| self.pages().merge_latest(u))
            };
            match fault {
                Fault::None => {
                    apply(updates.len());
                    Ok(vec![LatestWriteResult::Done; updates.len()])
                }
                Fault::NotApplied => Err(not_applied()),
                Fault::LostBefore => Err(unknown()),
                Fault::LostAfter => {
                    apply(updates.len());
                    Err(unknown())
                }
                Fault::LostHalf => {
                    apply(updates.len() / 2);
                    Err(unknown())
                }
                Fault::Rejected => Ok(updates
                    .iter()
                    .map(|_| LatestWriteResult::Rejected {
                        detail: "scripted refusal".into(),
                    })
                    .collect()),
            }
        })
    }

    fn write_dead_letters<'a>(
        &'a self,
        dead_letters: &'a [DeadLetter],
    ) -> BoxFuture<'a, Result<Vec<DeadLetterWritten>, StoreError>> {
        Box::pin(async move {
            let (fault, delay) = self.fate();
            pause(delay).await;
            match fault {
                Fault::None | Fault::Rejected => Ok(self.keep_dead_letters(dead_letters)?),
                Fault::NotApplied => Err(not_applied()),
                Fault::LostBefore | Fault::LostAfter | Fault::LostHalf => Err(unknown()),
            }
        })
    }

    fn dead_letter_bytes(&self) -> BoxFuture<'_, Result<u64, StoreError>> {
        // Without a fault: a timer calls this, and the script's sequence of commands must not
        // depend on it.
        Box::pin(async { Ok(self.pages().dead_letter_bytes()) })
    }

    fn evict_dead_letters(&self, bytes: u64) -> BoxFuture<'_, Result<Evicted, StoreError>> {
        Box::pin(async move {
            let (fault, delay) = self.fate();
            pause(delay).await;
            match fault {
                Fault::None | Fault::Rejected => Ok(self.pages().evict_dead_letters(bytes)),
                _ => Err(not_applied()),
            }
        })
    }

    fn pages<'a>(&'a self, q: &'a PageQuery) -> BoxFuture<'a, Result<PageResults, StoreError>> {
        Box::pin(async move {
            let mut results = self.read(move |pages| pages.read_pages(q)).await?;
            if let Some(tier) = self.tier() {
                let read = |q: PageQuery| -> BoxFuture<'_, _> {
                    Box::pin(async move { self.read(|pages| pages.read_pages(&q)).await })
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
        Box::pin(self.read(move |pages| pages.read_pages(q)))
    }

    fn measurements<'a>(
        &'a self,
        q: &'a MeasurementQuery,
    ) -> BoxFuture<'a, Result<MeasurementResults, StoreError>> {
        Box::pin(self.read(move |pages| pages.read_measurements(q)))
    }

    fn summaries<'a>(
        &'a self,
        q: &'a SummaryQuery,
    ) -> BoxFuture<'a, Result<SummaryResults, StoreError>> {
        Box::pin(one_by_one::summaries(self, q))
    }

    fn edges<'a>(&'a self, q: &'a EdgeQuery) -> BoxFuture<'a, Result<Edges, StoreError>> {
        Box::pin(one_by_one::edges(self, q))
    }

    fn newest<'a>(
        &'a self,
        sensors: &'a [SensorId],
    ) -> BoxFuture<'a, Result<Vec<StoredSensor>, StoreError>> {
        Box::pin(self.read(move |pages| pages.read_newest(sensors)))
    }

    fn sensors<'a>(&'a self, q: &'a SensorQuery) -> BoxFuture<'a, Result<Vec<String>, StoreError>> {
        Box::pin(self.read(move |pages| pages.read_sensors(q)))
    }

    fn find_dead_letters<'a>(
        &'a self,
        q: &'a DeadLetterQuery,
    ) -> BoxFuture<'a, Result<Vec<StoredDeadLetter>, StoreError>> {
        Box::pin(self.read(move |pages| pages.read_dead_letters(q)))
    }

    fn days(&self) -> Option<&dyn DayStore> {
        Some(self)
    }

    fn columns(&self) -> Option<&dyn ColumnStore> {
        Some(self)
    }

    fn ping(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.read(|_| ()))
    }

    fn storage_mode(&self) -> StorageMode {
        self.storage_mode
    }
}
