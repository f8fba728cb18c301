//! The size of the collection of dead letters, kept below `dead_letters.max_bytes`.
//!
//! Between two looks at the store's own account the dead letters that this process has stored are added to it. The account is
//! looked at when these are a part of the limit ([`LOOK_AFTER`]), once a minute ([`LOOK_EVERY`]), and before anything is
//! removed; so what other instances store and what is purged or expires is seen, and nothing is removed for an estimate.
//! After each batch of dead letters the oldest ones are removed for up to [`KEEP_FOR`], which is many times what a batch can have
//! even if these are small: a collection at its limit stays near it however fast dead letters come, and the next batch never waits
//! longer than that.

use std::time::Duration;

use tokio::time::Instant;

use super::log_limit::LogLimit;
use crate::flush::{Flusher, Permit};
use crate::store::{Evicted, StoreError};
use crate::telemetry::metrics;

/// Between two looks at the store's account.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// One look for so much of the limit that this process has stored itself: one part of it.
const LOOK_AFTER: u64 = 64;
/// Removals at one go; then dead letters that wait are stored first.
const KEEP_FOR: Duration = Duration::from_secs(2);
/// Between two log lines of what was removed.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// The limit, and what is known of the collection.
#[derive(Debug)]
pub(super) struct Limit {
    bytes_max: u64,
    /// As the store has said.
    bytes: u64,
    /// Stored by this process since.
    since: u64,
    due_at: Instant,
    /// Removed since the last log line.
    removed: Evicted,
    logged_at: Option<Instant>,
    warned: LogLimit,
}

impl Limit {
    pub(super) fn new(bytes_max: u64) -> Limit {
        metrics::dead_letters_max_bytes(bytes_max);
        let (removed, due_at) = (Evicted::default(), Instant::now());
        Limit { bytes_max, bytes: 0, since: 0, due_at, removed, logged_at: None, warned: LogLimit::default() }
    }

    /// This process has stored more.
    pub(super) fn stored(&mut self, bytes: u64) {
        self.since += bytes;
        metrics::dead_letters_bytes(self.bytes + self.since);
        if self.since >= self.bytes_max / LOOK_AFTER || self.bytes + self.since > self.bytes_max {
            self.due_at = Instant::now();
        }
    }

    /// When [`Limit::keep`] is to be called next.
    pub(super) fn due_at(&self) -> Instant {
        self.due_at
    }

    pub(super) fn is_due(&self) -> bool {
        Instant::now() >= self.due_at
    }

    /// Looks at the store's account, and removes the oldest dead letters if it is above the limit. What fails is tried again
    /// with the next batch or look; nobody waits for it.
    pub(super) async fn keep(&mut self, flusher: &Flusher, permit: Permit) {
        let until = Instant::now() + KEEP_FOR;
        self.due_at = Instant::now() + LOOK_EVERY;
        let mut permit = Some(permit);
        while let Some(held) = permit.take() {
            let done = self.look_and_remove(flusher).await;
            drop(held);
            match done {
                Ok(true) => {}
                Ok(false) if Instant::now() < until => permit = Some(flusher.permit().await),
                Ok(false) => self.due_at = Instant::now(),
                Err(error) => self.failed(&error),
            }
        }
    }

    /// One look and one removal; `false` if more are needed.
    async fn look_and_remove(&mut self, flusher: &Flusher) -> Result<bool, StoreError> {
        (self.bytes, self.since) = (flusher.store.dead_letter_bytes().await?, 0);
        let mut done = true;
        if self.bytes > self.bytes_max {
            let removed = flusher.store.evict_dead_letters(self.bytes - self.bytes_max).await?;
            self.bytes = self.bytes.saturating_sub(removed.bytes);
            done = self.bytes <= self.bytes_max || removed.exhausted;
            self.note(removed);
        }
        metrics::dead_letters_bytes(self.bytes);
        Ok(done)
    }

    fn failed(&mut self, error: &StoreError) {
        metrics::store_error(error.kind(), 1);
        if let Some(more) = self.warned.due() {
            tracing::warn!(more, "the size of the collection of dead letters is not kept, trying again: {error}");
        }
    }

    /// Counts what was removed, and says so now and then.
    fn note(&mut self, removed: Evicted) {
        metrics::dead_letters_dropped("limit", removed.dead_letters);
        self.removed.dead_letters += removed.dead_letters;
        self.removed.bytes += removed.bytes;
        if removed.dead_letters > 0 {
            self.removed.until_ms = removed.until_ms;
        }
        if self.removed.dead_letters > 0 && self.logged_at.is_none_or(|at| at.elapsed() >= LOG_EVERY) {
            let Evicted { dead_letters, bytes, until_ms, .. } = std::mem::take(&mut self.removed);
            self.logged_at = Some(Instant::now());
            tracing::warn!(
                dead_letters,
                bytes,
                received_until_ms = until_ms,
                "dead_letters.max_bytes is reached: the oldest dead letters are removed"
            );
        }
    }
}
