//! Reads the readings of a sensor and day, bucket by bucket, wherever they are: in pages, as
//! measurements, or only in columns, because they were removed from the former.
//!
//! Memory: the readings of one bucket, and those of the whole day in compact form while a bucket is
//! read from columns.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use columns::{DayEncoder, HoursEncoder, Part, Weightings};
use model::{BucketKey, BucketStart, Rows, Span, StorageMode};

use crate::columns::{DAY_BYTES_MAX, DayColumns, bounds, part_bytes, readings_of};
use crate::days::SensorDay;
use crate::maintain::StoredPage;
use crate::reading::{MeasurementQuery, PageQuery};
use crate::tier::{ComparedPage, only_stored};
use crate::{Store, StoreError};

/// Measurements in one answer.
const MEASUREMENTS_MAX: usize = 200_000;

/// Reads one day.
pub(crate) struct DayReadings<'s> {
    store: &'s dyn Store,
    span: Span,
    /// What is still to be read; `None`: all pages are in `pages`.
    query: Option<PageQuery>,
    pages: VecDeque<(BucketStart, StoredPage)>,
    day: SensorDay,
    tags: BTreeMap<String, String>,
    /// Those that have readings.
    read: Vec<ComparedPage>,
    /// Readings that its pages count and that are nowhere.
    lost: u64,
}

/// What pages and measurements have of a bucket.
struct FoundBucket {
    start: BucketStart,
    rows: Rows,
    /// How many readings its pages count.
    counted: u64,
    /// How many of these are in pages whose readings were removed.
    removed: u64,
}

impl<'s> DayReadings<'s> {
    /// Reads from `store`, whose buckets have this span.
    pub(crate) fn new(store: &'s dyn Store, span: Span, day: &SensorDay) -> DayReadings<'s> {
        DayReadings {
            store,
            span,
            query: Some(PageQuery {
                sensor_id: day.sensor_id.clone(),
                from: BucketStart(day.day.start_ms),
                to_ms: day.day.end_ms,
                after: None,
                readings_from_ms: Some(i64::MIN),
            }),
            pages: VecDeque::new(),
            day: day.clone(),
            tags: BTreeMap::new(),
            read: vec![],
            lost: 0,
        }
    }

    /// The same, only of buckets between two times (ms since 1970).
    pub(crate) fn within(mut self, within_ms: &Range<i64>) -> DayReadings<'s> {
        if let Some(query) = &mut self.query {
            query.from = query.from.max(self.span.floor(within_ms.start));
            query.to_ms = query.to_ms.min(within_ms.end);
        }
        self
    }

    /// The readings of the next bucket that has a page, in any order; `None` at the end.
    ///
    /// # Errors
    /// The store failed, or columns that are needed cannot be decoded.
    pub(crate) async fn next(&mut self) -> Result<Option<Rows>, StoreError> {
        let Some(bucket) = self.next_bucket().await? else {
            return Ok(None);
        };
        let mut rows = bucket.rows;
        let missing = bucket.counted.saturating_sub(rows.len() as u64);
        let missing = missing.max(bucket.removed);
        if missing > 0 {
            let stored = self.stored_in(bucket.start).await?;
            let stored = only_stored(stored, [&rows], missing);
            rows.append(&stored);
            self.lost += bucket.counted.saturating_sub(rows.len() as u64);
        }
        Ok(Some(rows))
    }

    /// How many readings the pages that were read count, and nothing has: they were removed.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    /// The tags of the last bucket that was read and has tags.
    pub(crate) fn tags(&self) -> &BTreeMap<String, String> {
        &self.tags
    }

    /// The tags of the last bucket that was read and has tags.
    pub(crate) fn into_tags(self) -> BTreeMap<String, String> {
        self.tags
    }

    /// The pages that were read and have readings of their own.
    pub(crate) fn into_pages(self) -> Vec<ComparedPage> {
        self.read
    }

    /// What pages and measurements have of the next bucket.
    async fn next_bucket(&mut self) -> Result<Option<FoundBucket>, StoreError> {
        let mut bucket: Option<FoundBucket> = None;
        let mut is_measured = false;
        loop {
            if self.pages.is_empty()
                && let Some(query) = &mut self.query
            {
                let found = self.store.stored_pages(query).await?;
                self.pages.extend(found.pages);
                query.after = found.next;
                if query.after.is_none() {
                    self.query = None;
                }
                if self.pages.is_empty() {
                    continue;
                }
            }
            let open = bucket.as_ref().map(|bucket| bucket.start);
            let is_other = |(start, _): &(_, _)| open.is_some_and(|open| open != *start);
            if self.pages.front().is_none_or(is_other) {
                break;
            }
            let Some((start, page)) = self.pages.pop_front() else {
                break;
            };
            let found = bucket.get_or_insert_with(|| FoundBucket {
                start,
                rows: Rows::default(),
                counted: 0,
                removed: 0,
            });
            let is_removed = page.readings_removed;
            if page.storage_mode == StorageMode::Bucket && !is_removed {
                self.read.push(ComparedPage {
                    bucket: BucketKey {
                        sensor_id: self.day.sensor_id.clone(),
                        start,
                    },
                    page: page.page,
                    count: page.counted(),
                    sealed: page.sealed,
                });
            }
            found.rows.append(&page.rows);
            found.counted += page.counted::<u64>();
            found.removed += if is_removed { page.counted() } else { 0 };
            is_measured |= page.storage_mode == StorageMode::TimeSeries;
            if !page.tags.is_empty() {
                self.tags = page.tags;
            }
        }
        if is_measured && let Some(found) = &mut bucket {
            self.measure(found.start, &mut found.rows).await?;
        }
        Ok(bucket)
    }

    async fn measure(&self, start: BucketStart, rows: &mut Rows) -> Result<(), StoreError> {
        let mut query = MeasurementQuery {
            sensor_id: self.day.sensor_id.clone(),
            from_ms: start.0,
            to_ms: self.span.end(start),
            limit: MEASUREMENTS_MAX,
        };
        while query.from_ms < query.to_ms {
            let found = self.store.measurements(&query).await?;
            rows.append(&found.rows);
            query.from_ms = found.until_ms;
        }
        Ok(())
    }

    /// The readings of a bucket in columns, read after its pages: what a page has lost by then, they
    /// have.
    async fn stored_in(&self, start: BucketStart) -> Result<Rows, StoreError> {
        let within_ms = start.0..self.span.end(start);
        match self.store.columns() {
            Some(columns) => {
                readings_of(columns, &self.day.sensor_id, self.day.day, within_ms).await
            }
            None => Ok(Rows::default()),
        }
    }
}

/// The readings of a day in columns.
///
/// # Errors
/// The store failed, or they cannot be decoded.
pub async fn stored_readings(store: &dyn Store, day: &SensorDay) -> Result<Rows, StoreError> {
    match store.columns() {
        Some(columns) => readings_of(columns, &day.sensor_id, day.day, i64::MIN..i64::MAX).await,
        None => Ok(Rows::default()),
    }
}

/// Why a day has no columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoColumns {
    /// It has no readings.
    Empty,
    /// They would have more than 64 MiB.
    TooLarge,
}

/// Encodes a day from its readings.
///
/// # Errors
/// The store failed.
pub async fn encode_day(
    store: &dyn Store,
    span: Span,
    day: &SensorDay,
    weightings: &Weightings,
) -> Result<Result<DayColumns, NoColumns>, StoreError> {
    let mut readings = DayReadings::new(store, span, day);
    let mut encoder = DayEncoder::default();
    let mut hours = HoursEncoder::new(bounds(day, span), weightings.clone());
    let mut parts: Vec<Part> = vec![];
    let is_too_large = |parts: &[Part]| parts.iter().map(part_bytes).sum::<usize>() > DAY_BYTES_MAX;
    while let Some(rows) = readings.next().await? {
        hours.add(&rows);
        parts.extend(encoder.add(&rows));
        if is_too_large(&parts) {
            return Ok(Err(NoColumns::TooLarge));
        }
        // A day of many readings takes a while to encode.
        tokio::task::yield_now().await;
    }
    parts.extend(encoder.finish());
    if is_too_large(&parts) {
        return Ok(Err(NoColumns::TooLarge));
    }
    if parts.is_empty() {
        return Ok(Err(NoColumns::Empty));
    }
    let mut hours = hours.finish();
    hours.limit_sketches();
    Ok(Ok(DayColumns {
        tags: readings.into_tags(),
        parts,
        whole: hours.whole(weightings),
        hours,
    }))
}
