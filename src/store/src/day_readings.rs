//! Reads the readings of a sensor and day, bucket by bucket, wherever they are: in pages, as
//! measurements, or only in columns, because they were removed from the former.
//!
//! Memory: the readings of one bucket, and those of the whole day in compact form while a bucket is
//! read from columns.

use std::collections::{BTreeMap, VecDeque};

use columns::{DayEncoder, HoursEncoder, Weighting};
use model::{BucketKey, BucketStart, Rows, SensorId, Span, StorageMode};

use crate::columns::{ColumnsQuery, DAY_BYTES_MAX, DayColumns, bounds, part_bytes};
use crate::days::SensorDay;
use crate::maintain::StoredPage;
use crate::reading::{MeasurementQuery, PageQuery};
use crate::tier::{ComparedPage, damaged, only_stored};
use crate::{Store, StoreError};

/// Measurements in one answer.
const MEASUREMENTS_MAX: usize = 200_000;

/// Reads one day.
pub struct DayReadings<'s> {
    store: &'s dyn Store,
    span: Span,
    sensor_id: SensorId,
    /// What is still to be read; `None`: all pages are in `pages`.
    query: Option<PageQuery>,
    pages: VecDeque<(BucketStart, StoredPage)>,
    day: SensorDay,
    tags: BTreeMap<String, String>,
    /// Those that have readings.
    read: Vec<ComparedPage>,
}

/// The readings of a bucket.
#[derive(Debug)]
pub struct BucketReadings {
    /// Its start.
    pub start: BucketStart,
    /// In any order.
    pub rows: Rows,
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
    pub fn new(store: &'s dyn Store, span: Span, day: &SensorDay) -> DayReadings<'s> {
        DayReadings {
            store,
            span,
            sensor_id: day.sensor_id.clone(),
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
        }
    }

    /// The readings of the next bucket that has a page; `None` at the end.
    ///
    /// # Errors
    /// The store failed, or columns that are needed cannot be decoded.
    pub async fn next(&mut self) -> Result<Option<BucketReadings>, StoreError> {
        let Some(bucket) = self.next_bucket().await? else {
            return Ok(None);
        };
        let FoundBucket {
            start, mut rows, ..
        } = bucket;
        let missing = bucket.counted.saturating_sub(rows.len() as u64);
        if bucket.removed > 0 || missing > 0 {
            let stored = self.stored_in(start).await?;
            let missing = bucket.removed.max(missing);
            let stored = only_stored(stored, [&rows], missing);
            rows.append(&stored);
        }
        Ok(Some(BucketReadings { start, rows }))
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
                        sensor_id: self.sensor_id.clone(),
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
            sensor_id: self.sensor_id.clone(),
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
        let within = start.0..self.span.end(start);
        let mut stored = stored_readings(self.store, &self.day).await?;
        stored.retain(|row| within.contains(&row.ts_ms));
        Ok(stored)
    }
}

/// The readings of a day in columns.
///
/// # Errors
/// The store failed, or they cannot be decoded.
pub async fn stored_readings(store: &dyn Store, day: &SensorDay) -> Result<Rows, StoreError> {
    let mut rows = Rows::default();
    let Some(columns) = store.columns() else {
        return Ok(rows);
    };
    let query = ColumnsQuery {
        sensor_ids: vec![day.sensor_id.clone()],
        from_ms: day.day.start_ms,
        to_ms: day.day.start_ms + 1,
        fields: vec![],
    };
    for day in columns.columns_of(&query).await?.days {
        for part in &day.parts {
            let decoded = part.decode();
            rows.append(
                &decoded
                    .map_err(|error| damaged(&day.sensor_id, &error))?
                    .rows(),
            );
        }
    }
    Ok(rows)
}

/// Why a day has no columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoColumns {
    /// It has no readings.
    Empty,
    /// They would have more than 64 MiB.
    TooLarge,
}

/// Encodes a day from its readings. `weighting`: of a field.
///
/// # Errors
/// The store failed.
pub async fn encode_day<W: Fn(&str) -> Weighting>(
    store: &dyn Store,
    span: Span,
    day: &SensorDay,
    weighting: W,
) -> Result<Result<DayColumns, NoColumns>, StoreError> {
    let mut readings = DayReadings::new(store, span, day);
    let mut encoder = DayEncoder::default();
    let mut hours = HoursEncoder::new(bounds(day, span), weighting);
    let mut parts = vec![];
    let mut bytes = 0;
    while let Some(bucket) = readings.next().await? {
        hours.add(&bucket.rows);
        for part in encoder.add(&bucket.rows) {
            bytes += part_bytes(&part);
            parts.push(part);
        }
        if bytes > DAY_BYTES_MAX {
            return Ok(Err(NoColumns::TooLarge));
        }
        // A day of many readings takes a while to encode.
        tokio::task::yield_now().await;
    }
    parts.extend(encoder.finish());
    if parts.is_empty() {
        return Ok(Err(NoColumns::Empty));
    }
    Ok(Ok(DayColumns {
        tags: readings.into_tags(),
        parts,
        hours: hours.finish(),
    }))
}
