//! A query's view of a bucket: a copy of its rows, and of the state that determines which of them
//! are stored. Pure.
//!
//! The reader queries the store afterwards, and by then any of the rows may have been stored. So
//! the view is handled as the bucket would be if every outstanding answer were lost:
//! [`UnstoredBucket::left`] uses the same [`Bucket::loaded`] that finds duplicates in that case.

use super::{Bucket, ExternalWrites, Pending};
use model::{BucketStart, RowFlags, Rows, StorageMode};
use store::LoadedBucket;

/// The rows of a bucket that are not known to be stored.
#[derive(Debug)]
pub struct UnstoredBucket {
    bucket: Bucket,
    since_ms: i64,
}

impl Bucket {
    /// Whether it has rows that are not known to be stored.
    pub(crate) fn holds_rows(&self) -> bool {
        self.rows().next().is_some()
    }

    /// The rows in flight, then the pending ones.
    pub(crate) fn rows(&self) -> impl Iterator<Item = &Rows> {
        let in_flight = self.in_flight.as_ref().and_then(|f| f.rows.as_deref());
        let pending = self.pending.as_ref().map(|w| &w.rows);
        in_flight
            .into_iter()
            .chain(pending)
            .filter(|rows| !rows.is_empty())
    }

    /// The latest known time of its readings.
    pub(crate) fn last_ts_ms(&self) -> Option<i64> {
        let pending = self.rows().map(Rows::last_ts_ms).max();
        pending.max(Some(self.high_water_ms).filter(|ts| *ts > i64::MIN))
    }

    /// A view of the rows in `from_ms..to_ms`; `None` if there are none.
    pub(crate) fn view(&self, from_ms: i64, to_ms: i64) -> Option<UnstoredBucket> {
        let mut pending = Pending::new(0);
        for row in self
            .rows()
            .flat_map(Rows::iter)
            .filter(|row| (from_ms..to_ms).contains(&row.ts_ms))
        {
            pending.rows.push_row(&row);
        }
        let since_ms = pending.rows.iter().map(|row| row.ts_ms).min()?;
        pending.rows.mark(RowFlags::LOST);
        pending.check = true;
        let mut bucket = Bucket::new(self.start, true);
        (bucket.stored, bucket.storage_mode, bucket.high_water_ms) =
            (self.stored, self.storage_mode, self.high_water_ms);
        bucket.external = self.external.as_deref().map(|f| Box::new(f.clone()));
        bucket.pending = Some(Box::new(pending));
        Some(UnstoredBucket { bucket, since_ms })
    }
}

impl UnstoredBucket {
    /// The bucket's start; the sensor is the queried one.
    pub fn start(&self) -> BucketStart {
        self.bucket.start
    }

    /// The earliest of the rows, in ms since 1970: stored readings before it need not be compared.
    pub fn since_ms(&self) -> i64 {
        self.since_ms
    }

    /// The rows that are not among the stored readings. `stored`: the bucket as loaded after the
    /// view was made, with the keys of at least all its readings since
    /// [`UnstoredBucket::since_ms`].
    pub fn left(mut self, stored: &LoadedBucket) -> Rows {
        if stored.storage_mode == StorageMode::TimeSeries {
            // Measurements have no position: the bucket's list of its own writes determines whose
            // they are.
            self.bucket
                .external
                .get_or_insert_with(|| Box::new(ExternalWrites::default()));
        }
        self.bucket.loaded(stored, Some(self.since_ms), usize::MAX);
        self.bucket
            .pending
            .map(|pending| pending.rows)
            .unwrap_or_default()
    }
}
