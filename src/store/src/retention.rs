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
//! span. It removes its own buckets of at most an hour whole, oldest first, once all times in them
//! have expired. So an hour may lose a part of its measurements, and nothing marks its document.
//! - An hour counts as removed half of the margin before the server begins with it, by the clock of
//!   the server ([`is_expiring`]). From then on measurements may disappear at any moment, so they
//!   are neither compared nor added up.
//! - Any other hour is judged by what is left of it, not by settings: an earlier retention, or a
//!   collection of the user, may have removed measurements or not. Measurements are stored before
//!   their document counts them. So if the one with its first time is not stored, or fewer than it
//!   counts, some were removed ([`Extent::has_lost`]). Otherwise all are there. Every load with
//!   `doubt` counts them, and a process that knows a bucket began with such a load, or created the
//!   bucket. A load never lowers the count of a document: only `reconcile --repair` does, and not
//!   if measurements were removed.
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

/// How many readings a bucket has, and the earliest time of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Those that documents count, or those that are stored.
    pub count: u64,
    /// In milliseconds since 1970; [`i64::MAX`] without readings.
    pub first_ts_ms: i64,
}

impl Extent {
    /// Without readings.
    pub const NONE: Extent = Extent {
        count: 0,
        first_ts_ms: i64::MAX,
    };

    /// The sum of what the documents of a bucket count. (One that counts nothing has no meaningful
    /// time.)
    pub fn sum(pages: impl IntoIterator<Item = Extent>) -> Extent {
        let pages = pages.into_iter().filter(|page| page.count > 0);
        pages.fold(Extent::NONE, Extent::plus)
    }

    pub(crate) fn plus(self, other: Extent) -> Extent {
        Extent {
            count: self.count + other.count,
            first_ts_ms: self.first_ts_ms.min(other.first_ts_ms),
        }
    }

    /// Whether measurements that documents count (`self`, in so many pages) are no longer among the
    /// stored ones. Several pages may count too many, after a recomputation that was interrupted
    /// ([`super::summary_pages`]).
    pub fn has_lost(self, pages: usize, stored: Extent) -> bool {
        stored.first_ts_ms > self.first_ts_ms || (pages == 1 && stored.count < self.count)
    }
}

/// Whether measurements of a bucket that ended then are being removed, or soon will be.
pub(crate) fn is_expiring(end_ms: i64, retention: Duration, now_ms: i64) -> bool {
    now_ms >= end_ms.saturating_add(ms(retention + MARGIN / 2))
}

/// In milliseconds; [`i64::MAX`] if they are more.
pub fn ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_has_lost_measurements_if_fewer_or_only_later_ones_are_stored() {
        let of = |count, first_ts_ms| Extent { count, first_ts_ms };
        let counted = of(10, 1000);
        for (stored, has_lost) in [
            (of(10, 1000), false),
            // Stored, but not counted yet; also an earlier one.
            (of(12, 1000), false),
            (of(12, 500), false),
            (of(9, 1000), true),
            (Extent::NONE, true),
            // The first were removed, and as many or more were not counted yet.
            (of(10, 3000), true),
            (of(12, 3000), true),
        ] {
            assert_eq!(counted.has_lost(1, stored), has_lost, "{stored:?}");
            assert!(!Extent::NONE.has_lost(0, stored), "no document counts any");
        }
        assert!(
            !counted.has_lost(2, of(9, 1000)),
            "counted twice by two pages"
        );
        assert!(counted.has_lost(2, of(12, 3000)));
    }
}
