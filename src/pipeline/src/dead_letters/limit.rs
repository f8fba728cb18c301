//! The size of the collection of dead letters, kept below `dead_letters.max_bytes`.
//!
//! The size is the store's own count plus the bytes that this process has stored since. The count
//! is queried when these reach a fraction of the limit ([`LOOK_AFTER`]), once a minute
//! ([`LOOK_EVERY`]), and before anything is removed. So writes of other instances, purges and
//! expiry are included, and nothing is removed because of an estimate. After each batch of dead
//! letters the oldest ones are removed for up to [`KEEP_FOR`], which removes many times the size of
//! a batch, even of small ones. So a collection at its limit stays near it however fast dead
//! letters arrive, and the next batch waits no longer than that.

use std::time::Duration;

use tokio::time::Instant;

use crate::flush::{Flusher, Permit};
use store::{Evicted, StoreError};
use telemetry::log_limit::CountedLine;
use telemetry::metrics::{self, DeadLetterDropped};

/// Interval between queries of the store's count.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// The count is queried when this process has stored this fraction (1/n) of the limit.
const LOOK_AFTER: u64 = 64;
/// Maximum time of one round of removals; then queued dead letters are stored first.
const KEEP_FOR: Duration = Duration::from_secs(2);

/// The limit, and the known size of the collection.
#[derive(Debug)]
pub(super) struct Limit {
    bytes_max: u64,
    /// The store's last count.
    bytes: u64,
    /// Bytes stored by this process since that count.
    since: u64,
    due_at: Instant,
    /// Removed since the last log line.
    removed_bytes: u64,
    removed_log: CountedLine,
    failed_log: CountedLine,
}

impl Limit {
    pub(super) fn new(bytes_max: u64) -> Limit {
        metrics::dead_letters_max_bytes(bytes_max);
        let due_at = Instant::now();
        Limit {
            bytes_max,
            bytes: 0,
            since: 0,
            due_at,
            removed_bytes: 0,
            removed_log: CountedLine::default(),
            failed_log: CountedLine::default(),
        }
    }

    /// Adds bytes that this process has stored.
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

    /// Queries the store's count, and removes the oldest dead letters if it is above the limit. A
    /// failure is retried with the next batch or interval.
    pub(super) async fn keep(&mut self, flusher: &Flusher, permit: Permit) {
        let until = Instant::now() + KEEP_FOR;
        self.due_at = Instant::now() + LOOK_EVERY;
        let mut permit = Some(permit);
        while let Some(held) = permit.take() {
            let removal = self.look_and_remove(flusher, &held).await;
            drop(held);
            match removal {
                Ok(Removal::Enough) => {}
                Ok(Removal::MoreNeeded) if Instant::now() < until => {
                    permit = Some(flusher.permit().await);
                }
                Ok(Removal::MoreNeeded) => self.due_at = Instant::now(),
                Err(error) => self.failed(&error),
            }
        }
    }

    /// One query and, above the limit, one removal.
    async fn look_and_remove(
        &mut self,
        flusher: &Flusher,
        permit: &Permit,
    ) -> Result<Removal, StoreError> {
        (self.bytes, self.since) = (flusher.dead_letter_bytes(permit).await?, 0);
        let mut removal = Removal::Enough;
        if self.bytes > self.bytes_max {
            let removed = flusher
                .evict_dead_letters(permit, self.bytes - self.bytes_max)
                .await?;
            self.bytes = self.bytes.saturating_sub(removed.bytes);
            if self.bytes > self.bytes_max && !removed.exhausted {
                removal = Removal::MoreNeeded;
            }
            self.note(removed);
        }
        metrics::dead_letters_bytes(self.bytes);
        Ok(removal)
    }

    fn failed(&mut self, error: &StoreError) {
        metrics::store_errors_total(error.kind(), 1);
        if let Some(failures) = self.failed_log.add(1) {
            tracing::warn!(failures, %error, "size limit of the dead letters not enforced; retrying");
        }
    }

    /// Counts and logs removals.
    fn note(&mut self, removed: Evicted) {
        metrics::dead_letters_dropped_total(DeadLetterDropped::Limit, removed.dead_letters);
        if removed.dead_letters == 0 {
            return;
        }
        self.removed_bytes += removed.bytes;
        if let Some(dead_letters) = self.removed_log.add(removed.dead_letters) {
            tracing::warn!(
                dead_letters,
                bytes = std::mem::take(&mut self.removed_bytes),
                received_until_ms = removed.until_ms,
                "dead_letters.max_bytes reached; removed the oldest dead letters"
            );
        }
    }
}

/// What a removal has left of its task.
enum Removal {
    /// The limit is kept, or nothing more can be removed.
    Enough,
    MoreNeeded,
}
