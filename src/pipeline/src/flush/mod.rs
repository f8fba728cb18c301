//! Flush: when buckets are written ([`due`]), and how a command is executed ([`Flusher`]).
//!
//! A shard acquires a permit before it builds a job. For all shards together there are
//! `flush.commands_max` permits for writes, half as many for loads, and one for retries ([`Lane`]).
//! So loads never delay writes, and a bucket that fails or takes long delays only other such
//! buckets. The limit also makes batches grow: while the store is slow no permit is free, and
//! buckets that become due meanwhile go into the next job.
//!
//! While page writes keep up, all shards together have one command in flight. Several occupy every
//! core of a MongoDB on the same machine, and acknowledgements wait for a core. A shard whose writes
//! have been queued for a sixteenth of `flush.max_age`, or a second, may use any free permit.
//!
//! A job that failed because the store is unavailable is retried after a backoff, without a permit
//! during the wait. A write whose answer was lost, and a load that timed out, return to their
//! shard, which makes the next job smaller.
//!
//! Reads of the daily rollup have one permit of their own, so they delay neither writes nor loads.
//!
//! Latest states, dead letters and daily rollups are written under the same permits; their tasks
//! decide about retries.
//!
//! **Catalogue.** A page is not written before the catalogue has its sensor, fields and tags
//! ([`PageWrite::catalog`]). If the store answers that it cannot keep an entry, this is logged and
//! counted, and the pages are written without it: the catalogue must not stop readings. If it does
//! not answer, or the user lacks the rights, the job waits as for its pages: an entry is sent only
//! once, so without it the sensor would stay unknown.
//!
//! While the store is busy with statements of few readings, readings may get older before they are
//! due ([`age`]).
//!
//! No bucket beyond the database's high-water mark is loaded or written before the mark was raised
//! ([`HighWater`]).

pub mod age;
pub mod backoff;
pub mod days;
pub mod due;
mod high_water;
mod present_age;
mod seen;
#[cfg(test)]
mod tests;
pub mod turns;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use backoff::Backoff;
use high_water::HighWater;
use model::{
    BucketStart, CatalogUpdate, DeadLetter, LatestUpdate, NewBuckets, PageWrite, Span, StorageMode,
};
use present_age::PresentAge;
use seen::{PagesShow, StoreSeen};
use store::{
    Ability, DeadLetterWritten, Evicted, LatestWriteResult, LoadRequest, LoadResult, Outcome,
    PageWriteResult, Store, StoreError, StoreErrorKind,
};
use telemetry::metrics::{self, UpdateResult};

/// Called with the outcome of every request to the store, for readiness and the log.
pub type OnStoreOutcome = Arc<dyn Fn(Ability, Outcome<'_>) + Send + Sync>;

/// How long a load of many buckets may take; unfinished ones are then deferred to a later job.
const LOAD_TIME_MAX: Duration = Duration::from_secs(4);

/// The pool of permits that a job uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// Page writes and all other writes.
    Write,
    /// Loads of many buckets, each bounded in time.
    Load,
    /// One bucket that has failed before, or that is too large to be loaded with others; without a
    /// time limit.
    Retry,
}

/// The handle of this stage, which sends commands to the store.
#[derive(Clone)]
pub struct Flusher {
    store: Arc<dyn Store>,
    lanes: Arc<[Arc<Semaphore>; 3]>,
    /// For page writes that keep up: one at a time.
    single: Arc<Semaphore>,
    /// For reads of the daily rollup: one at a time, and none that a load waits for.
    days: Arc<Semaphore>,
    backoff: Backoff,
    on_store: OnStoreOutcome,
    high_water: Arc<HighWater>,
    span: Span,
    seen: Arc<StoreSeen>,
    age: Arc<PresentAge>,
}

/// Allows one command in flight.
#[derive(Debug)]
pub struct Permit {
    lane: Lane,
    _permit: OwnedSemaphorePermit,
    /// Of a page write that keeps up.
    _single: Option<OwnedSemaphorePermit>,
}

impl Permit {
    /// The lane that it was acquired in.
    pub(crate) fn lane(&self) -> Lane {
        self.lane
    }
}

impl Flusher {
    /// A flusher that sends nothing until it is [`open`](Flusher::open)ed. `span`: `bucket.span`.
    pub fn new(
        store: Arc<dyn Store>,
        backoff: Backoff,
        span: Span,
        on_store: OnStoreOutcome,
    ) -> Flusher {
        let lanes = Arc::new(std::array::from_fn(|_| Arc::new(Semaphore::new(0))));
        let high_water = Arc::new(HighWater::new());
        let age = Arc::new(PresentAge::new(0, 0));
        let [single, days] = std::array::from_fn(|_| Arc::new(Semaphore::new(0)));
        Flusher {
            store,
            lanes,
            single,
            days,
            backoff,
            on_store,
            high_water,
            span,
            seen: Arc::new(StoreSeen::new()),
            age,
        }
    }

    /// The same flusher with an age between `flush.max_age` and `flush.max_age_busy`. Without this
    /// call no bucket is held beyond the age of its [`DuePolicy`](due::DuePolicy).
    #[must_use]
    pub fn with_ages(self, max_age: Duration, max_age_busy: Duration) -> Flusher {
        let ms = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
        Flusher {
            age: Arc::new(PresentAge::new(ms(max_age), ms(max_age_busy))),
            ..self
        }
    }

    /// How old a reading may get now before it is written (ms).
    pub fn age_ms(&self) -> u64 {
        self.age.age_ms()
    }

    /// Adjusts the age to the load of the store; call it about once a second.
    pub fn adjust_age(&self) {
        self.age.update();
    }

    /// Sets the age, for simulations.
    pub fn set_age_ms(&self, age_ms: u64) {
        self.age.set(age_ms);
    }

    /// Counts buckets that began to wait for a statement, and pages that became full when their
    /// first reading had waited for longer than `flush.max_age`.
    pub(crate) fn note_waiting(&self, began: u64, filled_late: u64) {
        self.age.waiting(began, filled_late);
    }

    /// Records that the store has answered.
    pub fn note_answer(&self) {
        self.seen.answer();
    }

    /// Whether the store has answered within this time.
    pub fn answered_within(&self, time: Duration) -> bool {
        self.seen.answered_ago().is_some_and(|ago| ago <= time)
    }

    /// How long ago the store last confirmed a page write; `None` before the first.
    pub(crate) fn page_written_ago(&self) -> Option<Duration> {
        self.seen.page_written_ago()
    }

    /// Records a page write that the store has confirmed, for tests.
    #[cfg(test)]
    pub(crate) fn note_page_written(&self) {
        self.seen.pages(&PagesShow::Stored);
    }

    /// Whether page writes fail: one has failed, and none was confirmed since.
    pub(crate) fn page_writes_fail(&self) -> bool {
        self.seen.page_writes_fail()
    }

    /// The error of the last dead letters, unless they were stored.
    pub fn dead_letters_fail(&self) -> Option<String> {
        self.seen.dead_letters_fail()
    }

    /// Releases the permits once the collections are prepared: `commands_max` writes, and loads and
    /// retries besides.
    pub fn open(&self, commands_max: usize) {
        for (lane, permits) in [
            (Lane::Write, commands_max),
            (Lane::Load, (commands_max / 2).max(1)),
            (Lane::Retry, 1),
        ] {
            self.lanes[lane as usize].add_permits(permits);
        }
        self.single.add_permits(1);
        self.days.add_permits(1);
    }

    /// Waits for a write permit; first come, first served.
    pub async fn permit(&self) -> Permit {
        self.permit_in(Lane::Write).await
    }

    /// Waits for a permit for page writes. If they are not `behind`, also until no other such
    /// command is in flight.
    pub(crate) async fn page_permit(&self, behind: bool) -> Permit {
        let single = if behind {
            None
        } else {
            Some(acquire(&self.single).await)
        };
        Permit {
            _single: single,
            ..self.permit().await
        }
    }

    /// Waits for a permit in this lane; first come, first served.
    pub(crate) async fn permit_in(&self, lane: Lane) -> Permit {
        Permit {
            lane,
            _permit: acquire(&self.lanes[lane as usize]).await,
            _single: None,
        }
    }

    /// The storage mode of new buckets. Call it while holding a permit: only then is the store
    /// prepared.
    pub fn storage_mode(&self) -> StorageMode {
        self.store.storage_mode()
    }

    /// The buckets that no other process can have written.
    pub(crate) fn new_buckets(&self) -> NewBuckets {
        self.high_water.new_buckets()
    }

    /// Sends page writes. While the store is unavailable, retries after a backoff without a permit.
    /// If the store refuses their updates of the catalogue, they are written without them, and
    /// leave here without them: the next writes of these sensors bring them again.
    ///
    /// # Errors
    /// The answer was lost: any part may have been applied.
    pub async fn write(
        &self,
        mut permit: Permit,
        writes: &mut [PageWrite],
    ) -> Result<Vec<PageWriteResult>, StoreError> {
        let latest = writes.iter().map(|w| w.start).max();
        let mut failures = 0;
        loop {
            let prepared = match self.cover(latest).await {
                Ok(()) => self.catalogue(writes).await,
                Err(error) => Err(error),
            };
            let written = match prepared {
                Ok(()) => {
                    let sent = Instant::now();
                    self.store
                        .write(writes)
                        .await
                        .inspect(|_| self.age.written(writes, sent.elapsed()))
                }
                // Nothing was sent.
                Err(StoreError::Unknown { kind, detail }) => {
                    Err(StoreError::NotApplied { kind, detail })
                }
                Err(error) => Err(error),
            };
            let show = PagesShow::from_answers(&written);
            self.seen.pages(&show);
            match &show {
                PagesShow::Stored => self.report(Ability::WritePages, Outcome::Success),
                PagesShow::Failed(error) => self.failed(Ability::WritePages, error, permit.lane),
                PagesShow::Nothing => {}
            }
            match written {
                Ok(answers) => {
                    self.note_answer();
                    return Ok(answers);
                }
                Err(StoreError::NotApplied { .. }) => {
                    permit = self.wait(permit, &mut failures).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends loads. While the store is unavailable, retries after a backoff without a permit.
    ///
    /// # Errors
    /// No bucket was loaded in time: request fewer.
    pub async fn load(
        &self,
        mut permit: Permit,
        requests: &[LoadRequest],
    ) -> Result<Vec<LoadResult>, StoreError> {
        let latest = requests.iter().map(|r| r.bucket.start).max();
        let within = (permit.lane != Lane::Retry).then_some(LOAD_TIME_MAX);
        let mut failures = 0;
        loop {
            // The mark is raised by a write.
            let (ability, loaded) = match self.cover(latest).await {
                Ok(()) => {
                    let loaded = self.store.load(requests, within).await;
                    (Ability::LoadBuckets, loaded)
                }
                Err(error) => (Ability::WritePages, Err(error)),
            };
            match loaded {
                Ok(answers) => {
                    if answers.iter().any(Result::is_ok) {
                        self.note_answer();
                        self.report(ability, Outcome::Success);
                    }
                    let failed = answers
                        .iter()
                        .filter_map(|a| a.as_ref().err())
                        .filter(|e| !e.is_deferred());
                    failed.for_each(|error| metrics::store_errors_total(error.kind(), 1));
                    return Ok(answers);
                }
                Err(error) => {
                    self.failed(ability, &error, permit.lane);
                    if !error.is_away() {
                        return Err(error);
                    }
                    permit = self.wait(permit, &mut failures).await;
                }
            }
        }
    }

    /// Merges latest states, without retries: the caller keeps them and sends them again, so that
    /// no permit is held during a backoff.
    ///
    /// # Errors
    /// Any part may have been applied.
    pub async fn latest(
        &self,
        permit: Permit,
        updates: &[LatestUpdate],
    ) -> Result<Vec<LatestWriteResult>, StoreError> {
        let answers = self.store.latest(updates).await;
        let is_written = |answer: &LatestWriteResult| {
            matches!(
                answer,
                LatestWriteResult::Done | LatestWriteResult::Reduced { .. }
            )
        };
        match &answers {
            Ok(answers) if answers.iter().any(is_written) => {
                self.report(Ability::UpdateLatest, Outcome::Success);
            }
            Ok(_) => {}
            Err(error) => self.failed(Ability::UpdateLatest, error, permit.lane),
        }
        answers
    }

    /// Stores dead letters, without retries: the caller keeps those that are not stored and sends
    /// them again, after a [`pause`](Flusher::pause). `lane`: [`Lane::Retry`] for one that has
    /// failed alone.
    ///
    /// # Errors
    /// Any of them may be stored.
    pub async fn write_dead_letters(
        &self,
        lane: Lane,
        dead_letters: &[DeadLetter],
    ) -> Result<Vec<DeadLetterWritten>, StoreError> {
        let permit = self.permit().await;
        let answers = self.store.write_dead_letters(dead_letters).await;
        drop(permit);
        match &answers {
            Ok(answers) if answers.contains(&DeadLetterWritten::Done) => {
                self.report(Ability::WriteDeadLetters, Outcome::Success);
            }
            Ok(_) => {}
            Err(error) => self.failed(Ability::WriteDeadLetters, error, lane),
        }
        self.seen.dead_letters(answers.as_ref().err());
        answers
    }

    /// The total size of all stored dead letters, in bytes as the store counts them.
    ///
    /// # Errors
    /// The store failed.
    pub async fn dead_letter_bytes(&self, _permit: &Permit) -> Result<u64, StoreError> {
        self.store.dead_letter_bytes().await
    }

    /// Removes the oldest dead letters of senders, see [`Store::evict_dead_letters`].
    ///
    /// # Errors
    /// Any of them may be removed.
    pub async fn evict_dead_letters(
        &self,
        _permit: &Permit,
        bytes: u64,
    ) -> Result<Evicted, StoreError> {
        self.store.evict_dead_letters(bytes).await
    }

    /// Updates the catalogue as far as these writes require it. Removes from them what the store
    /// refuses with an error that may pass: a reading does not wait for the catalogue.
    async fn catalogue(&self, writes: &mut [PageWrite]) -> Result<(), StoreError> {
        let updates: Vec<&CatalogUpdate> =
            writes.iter().filter_map(|w| w.catalog.as_deref()).collect();
        if updates.is_empty() {
            return Ok(());
        }
        let count = updates.len() as u64;
        let refused = match self.store.merge_catalog(&updates).await {
            Ok(refused) => {
                self.report(Ability::UpdateCatalog, Outcome::Success);
                refused
            }
            Err(error) if error.kind() == StoreErrorKind::Command => {
                self.failed(Ability::UpdateCatalog, &error, Lane::Write);
                writes.iter_mut().for_each(|w| w.catalog = None);
                count
            }
            Err(error) => return Err(error),
        };
        metrics::catalog_updates_total(UpdateResult::Written, count - refused);
        metrics::catalog_updates_total(UpdateResult::Refused, refused);
        Ok(())
    }

    async fn cover(&self, latest: Option<BucketStart>) -> Result<(), StoreError> {
        let Some(latest) = latest else { return Ok(()) };
        self.high_water
            .cover(&*self.store, latest, self.span.ms())
            .await
    }

    /// Reports the outcome of a request.
    pub fn report(&self, ability: Ability, outcome: Outcome<'_>) {
        (self.on_store)(ability, outcome);
    }

    /// Counts and reports a failure.
    fn failed(&self, ability: Ability, error: &StoreError, lane: Lane) {
        metrics::store_errors_total(error.kind(), 1);
        let outcome = if lane == Lane::Retry && !error.is_away() {
            Outcome::OfOne(error)
        } else {
            Outcome::Failure(error)
        };
        self.report(ability, outcome);
    }

    /// Releases the permit, waits, and acquires another one.
    async fn wait(&self, permit: Permit, failures: &mut u32) -> Permit {
        let lane = permit.lane;
        drop(permit);
        self.pause(failures).await;
        self.permit_in(lane).await
    }

    /// Waits after a failure. The caller must not hold a permit.
    pub async fn pause(&self, failures: &mut u32) {
        *failures += 1;
        tokio::time::sleep(self.backoff.wait(*failures, fastrand::f64())).await;
        metrics::store_retries_total(1);
    }
}

/// Waits for a permit; first come, first served.
async fn acquire(semaphore: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    match semaphore.clone().acquire_owned().await {
        Ok(permit) => permit,
        // None of them is ever closed.
        Err(_) => std::future::pending().await,
    }
}

impl std::fmt::Debug for Flusher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Flusher")
    }
}
