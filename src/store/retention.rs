//! The removal of old readings (`store.retention_readings`): a page keeps its count, summary, times
//! and tags.
//!
//! **Bucket mode.** A page loses its readings some hours ([`MARGIN`]) after the end of its bucket
//! plus the retention, by the clock of the store. The change names the version that was read, like
//! every other write, and sets `readings_removed`, which is part of the guard of appends: a writer
//! that knew the page meets a conflict, and loads it. Pages that are done are no longer found, so
//! the removal needs no position, can be killed at any moment, and may run in several instances.
//!
//! **Time-series mode.** The server expires measurements after the retention, the margin and a
//! span. Nothing marks the documents. So a bucket counts as removed half of the margin before that,
//! by the clock of the server: until then all of its measurements are stored, and from then on they
//! are neither compared nor added up.
//!
//! **Late rows.** Once readings are removed, no reading can be compared with them. A row is
//! therefore added to a bucket without a load only by a shard that still knows which of its
//! readings are stored. Any other shard loads the bucket, finds that readings were removed, and
//! keeps the row as a dead letter, unless it is among the remaining readings. So
//! - a summary never counts a reading twice: what is added is known to be new, under the version
//!   that was known;
//! - no acknowledged reading is lost: it is counted, or it is a dead letter;
//! - a dead letter may repeat a counted reading: its statement was applied, the answer was lost,
//!   and the readings were removed before the bucket was loaded again. A replay of the dead letter
//!   does not change the summary.
//!
//! Such rows are rare. `limits.past` is at most the retention, so only a reading that waited longer
//! than the margin (an outage of MongoDB, or of an instance with a backlog) can be one, or one of a
//! service whose clock is wrong.

use std::time::Duration;

/// From the end of the retention to the removal: time for accepted readings to be stored.
pub const MARGIN: Duration = Duration::from_secs(6 * 60 * 60);

/// The result of one removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RemovedReadings {
    /// Pages that were found: as many as requested if there may be more.
    pub found: usize,
    /// Pages whose readings were removed: those that no writer has changed meanwhile.
    pub pages: u64,
    /// The end of the bucket of the oldest page that was found, in milliseconds since 1970.
    pub oldest_end_ms: Option<i64>,
}

/// Whether measurements of a bucket that ended then may have expired.
pub(crate) fn may_have_expired(end_ms: i64, retention: Duration, now_ms: i64) -> bool {
    now_ms >= end_ms.saturating_add(ms(retention + MARGIN / 2))
}

pub(crate) fn ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
