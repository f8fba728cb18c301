//! Flush: when buckets are written ([`due`]), and how a command is carried through ([`Flusher`]).
//!
//! A shard asks for a permit before it builds a job; there are `flush.commands_max` of them for all shards. That bound is
//! what makes batches grow: while the store is slow no permit is free, and what becomes due meanwhile goes into the next
//! job. A command that certainly changed nothing is sent again after a wait; a write whose answer never came goes back to
//! its shard, which loads and compares; a load is asked until it is answered.

pub mod backoff;
pub mod dead;
pub mod due;

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::model::{Form, LatestUpdate, PageWrite};
use crate::store::{LatestWritten, LoadRequest, LoadedBucket, Store, StoreError, Written};
use crate::telemetry::metrics;
use backoff::Backoff;

/// Told about every success and failure of the store, for readiness and the log.
pub type OnStore = Arc<dyn Fn(Result<(), &StoreError>) + Send + Sync>;

/// The handle of this stage: sends commands to the store.
#[derive(Clone)]
pub struct Flusher {
    store: Arc<dyn Store>,
    permits: Arc<Semaphore>,
    backoff: Backoff,
    on_store: OnStore,
}

/// The right to have one command in flight.
#[derive(Debug)]
pub struct Permit(#[allow(dead_code)] OwnedSemaphorePermit);

impl Flusher {
    /// A stage that sends nothing until it is [`open`](Flusher::open)ed.
    pub fn new(store: Arc<dyn Store>, backoff: Backoff, on_store: OnStore) -> Flusher {
        Flusher { store, permits: Arc::new(Semaphore::new(0)), backoff, on_store }
    }

    /// The collections are prepared: from now on there may be `commands_max` commands in flight.
    pub fn open(&self, commands_max: usize) {
        self.permits.add_permits(commands_max);
    }

    /// Waits for the right to send a command; first come, first served.
    pub async fn permit(&self) -> Permit {
        match self.permits.clone().acquire_owned().await {
            Ok(permit) => Permit(permit),
            // The semaphore is never closed.
            Err(_) => std::future::pending().await,
        }
    }

    /// Where the readings of new buckets go; to be asked with a permit in hand, when the store is prepared.
    pub fn form(&self) -> Form {
        self.store.form()
    }

    /// The label `mode`.
    pub fn mode(&self) -> &'static str {
        self.store.mode()
    }

    /// Writes, until there are answers or nobody knows.
    ///
    /// # Errors
    /// The answer never came: any part may have been applied.
    pub async fn write(&self, _permit: Permit, writes: &[PageWrite]) -> Result<Vec<Written>, StoreError> {
        let mut failures = 0;
        loop {
            match self.store.write(writes).await {
                Ok(answers) => {
                    (self.on_store)(Ok(()));
                    return Ok(answers);
                }
                Err(error @ StoreError::NotApplied { .. }) => self.wait(&error, &mut failures).await,
                Err(error) => {
                    self.failed(&error);
                    return Err(error);
                }
            }
        }
    }

    /// Loads; asks until there is an answer.
    pub async fn load(&self, _permit: Permit, requests: &[LoadRequest]) -> Vec<LoadedBucket> {
        let mut failures = 0;
        loop {
            match self.store.load(requests).await {
                Ok(loaded) => {
                    (self.on_store)(Ok(()));
                    return loaded;
                }
                Err(error) => self.wait(&error, &mut failures).await,
            }
        }
    }

    /// Merges latest states, once: whoever asks keeps them and asks again, so that no permit is held while it waits.
    /// Whether the store is well is told by the pages alone.
    ///
    /// # Errors
    /// Any part may have been applied.
    pub async fn latest(&self, _permit: Permit, updates: &[LatestUpdate]) -> Result<Vec<LatestWritten>, StoreError> {
        self.store.latest(updates).await.inspect_err(|error| metrics::store_error(error.kind(), 1))
    }

    fn failed(&self, error: &StoreError) {
        metrics::store_error(error.kind(), 1);
        (self.on_store)(Err(error));
    }

    async fn wait(&self, error: &StoreError, failures: &mut u32) {
        self.failed(error);
        *failures += 1;
        tokio::time::sleep(self.backoff.wait(*failures, fastrand::f64())).await;
        metrics::store_retry();
    }
}

impl std::fmt::Debug for Flusher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Flusher")
    }
}
