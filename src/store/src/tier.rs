//! Readings that only columns have. `store.retention_readings` removes the readings of a day from its
//! pages once its columns are durable and were compared with them; from then on the columns are the
//! readings.
//!
//! **Removal** ([`compare_day`], [`Store::remove_compared`]). All pages of a day are read and compared
//! with its columns, bit by bit. If they differ, the columns are written again and compared once more.
//! Then each page loses its readings under the guard of the version that was compared, and is sealed, so
//! that a late reading begins another page. A kill at any moment leaves pages with their readings, which
//! the next removal finds.
//!
//! **Late readings.** A shard that loads such a bucket gets the keys from the columns
//! ([`Tier::complete_loads`]), so it compares as if the readings were still in the pages. What is new
//! goes into a new page, its day is marked as by any reading, and the columns are computed again: from
//! the stored columns and the pages that have readings ([`crate::day_readings`]). Then the new page
//! loses its readings too.
//!
//! **Reads** ([`Tier::complete_pages`]). A page without readings is returned with those of the columns,
//! so a reader of pages need not know where the readings are.
//!
//! Time-series mode: before MongoDB 7.0 the server deletes measurements by their age only, whatever the
//! state of the columns, so with columns they stay until `store.retention`.

use std::collections::{BTreeSet, HashMap};

use columns::{Weightings, same_readings};
use model::{BucketKey, BucketStart, ReadingKey, Rows, SensorId, Span, StorageMode, Zone};

use crate::columns::{ColumnStore, readings_of};
use crate::day_readings::{DayReadings, encode_day, stored_readings};
use crate::days::SensorDay;
use crate::maintain::{ReadingCounts, StoredPage};
use crate::reading::{Edges, PageQuery, PageResults};
use crate::{BoxFuture, LoadRequest, LoadResult, Store, StoreError};

/// A page whose readings are to be removed, as it was compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComparedPage {
    /// Its bucket.
    pub bucket: BucketKey,
    /// Its number.
    pub page: u32,
    /// Its version.
    pub count: u32,
    /// Whether it is closed for appends.
    pub sealed: bool,
}

/// The pages of a day that have readings, if its columns have them all; they are computed again if they
/// do not. `None`: the day is too large for columns, or the store refuses them.
///
/// # Errors
/// The store failed.
pub async fn compare_day(
    store: &dyn Store,
    span: Span,
    day: &SensorDay,
    weightings: &Weightings,
) -> Result<Option<Vec<ComparedPage>>, StoreError> {
    if let Some(pages) = compared_pages(store, span, day).await? {
        return Ok(Some(pages));
    }
    let Some(columns) = store.columns() else {
        return Ok(None);
    };
    let Ok(computed) = encode_day(store, span, day, weightings).await? else {
        return Ok(None);
    };
    let computed = [(day.clone(), computed)];
    columns.write_columns(&computed, false).await?;
    compared_pages(store, span, day).await
}

/// The pages of a day that have readings, if its columns have them all.
async fn compared_pages(
    store: &dyn Store,
    span: Span,
    day: &SensorDay,
) -> Result<Option<Vec<ComparedPage>>, StoreError> {
    let mut readings = DayReadings::new(store, span, day);
    let mut actual = Rows::default();
    while let Some(rows) = readings.next().await? {
        actual.append(&rows);
    }
    let stored = stored_readings(store, day).await?;
    Ok(same_readings(&actual, &stored).then(|| readings.into_pages()))
}

/// Completes what was read of pages by what columns have.
#[derive(Clone, Copy)]
pub struct Tier<'s> {
    columns: &'s dyn ColumnStore,
    zone: Zone,
    span: Span,
}

impl<'s> Tier<'s> {
    /// With the days of this zone and the buckets of this span.
    pub fn new(columns: &'s dyn ColumnStore, zone: Zone, span: Span) -> Tier<'s> {
        Tier {
            columns,
            zone,
            span,
        }
    }

    /// Adds the keys of readings that only columns have. A bucket that columns do not have wholly
    /// stays as it is.
    pub async fn complete_loads(&self, requests: &[LoadRequest], answers: &mut [LoadResult]) {
        for (request, answer) in requests.iter().zip(answers) {
            let (Some(from_ms), Ok(bucket)) = (request.readings_from, &mut *answer) else {
                continue;
            };
            let is_removed = bucket.storage_mode == StorageMode::Bucket;
            if !is_removed || !bucket.readings_removed() {
                continue;
            }
            let start = request.bucket.start;
            let removed = bucket.pages.iter().filter(|page| page.readings_removed);
            let counted: u64 = removed.map(|page| u64::from(page.count)).sum();
            let end_ms = self.span.end(start);
            let rows = match self
                .readings(&request.bucket.sensor_id, start.0, end_ms)
                .await
            {
                Ok(rows) => rows,
                Err(error) => {
                    *answer = Err(error);
                    continue;
                }
            };
            if (rows.len() as u64) < counted {
                continue;
            }
            let keys = bucket.pages.iter().flat_map(|page| &page.keys);
            let mut live = ReadingCounts::from_keys(keys.copied());
            let wanted = rows.iter().filter(|row| row.ts_ms >= from_ms);
            let keys = wanted.map(|row| row.key()).filter(|key| !live.take(key));
            let mut keys = keys.collect();
            for page in bucket.pages.iter_mut().filter(|page| page.readings_removed) {
                page.readings_removed = false;
                page.sealed = true;
                page.keys = std::mem::take(&mut keys);
            }
        }
    }

    /// Adds the readings that only columns have. A bucket that columns do not have wholly stays as it
    /// is. `read` reads pages as they are.
    ///
    /// # Errors
    /// The store failed.
    pub async fn complete_pages(
        &self,
        query: &PageQuery,
        results: &mut PageResults,
        read: impl Fn(PageQuery) -> BoxFuture<'s, Result<PageResults, StoreError>> + Send + Sync,
    ) -> Result<(), StoreError> {
        let starts = results.pages.iter().filter(|(_, page)| is_removed(page));
        let starts: BTreeSet<BucketStart> = starts.map(|(start, _)| *start).collect();
        let (Some(first), Some(last)) = (starts.first(), starts.last()) else {
            return Ok(());
        };
        if query.readings_from_ms.is_none() {
            return Ok(());
        }
        let to_ms = self.span.end(*last);
        let rows = self.readings(&query.sensor_id, first.0, to_ms).await?;
        let mut by_bucket: HashMap<BucketStart, Rows> = HashMap::new();
        for row in rows.iter() {
            let bucket = by_bucket.entry(self.span.floor(row.ts_ms)).or_default();
            bucket.push_row(&row);
        }
        // The pages of a bucket can be completed only together, but the answer may begin or end
        // within one.
        let cuts = [query.after, results.next];
        let cuts = cuts.into_iter().flatten().filter(|(_, page)| *page > 0);
        let cuts: BTreeSet<BucketStart> = cuts.map(|(start, _)| start).collect();
        for bucket in results.pages.chunk_by_mut(|(a, _), (b, _)| a == b) {
            let start = bucket[0].0;
            if !starts.contains(&start) {
                continue;
            }
            let rows = by_bucket.remove(&start).unwrap_or_default();
            let missing = match cuts.contains(&start) {
                true => missing_rows(rows, &self.whole_bucket(query, start, &read).await?),
                false => missing_rows(rows, bucket),
            };
            let Some((first, rows)) = missing else {
                continue;
            };
            for (_, page) in bucket.iter_mut().filter(|(_, page)| is_removed(page)) {
                page.readings_removed = false;
                if page.page == first {
                    page.rows = rows.clone();
                }
            }
        }
        Ok(())
    }

    async fn whole_bucket(
        &self,
        query: &PageQuery,
        start: BucketStart,
        read: &(impl Fn(PageQuery) -> BoxFuture<'s, Result<PageResults, StoreError>> + Send + Sync),
    ) -> Result<Vec<(BucketStart, StoredPage)>, StoreError> {
        let mut pages = vec![];
        let mut query = PageQuery {
            sensor_id: query.sensor_id.clone(),
            from: start,
            to_ms: start.0 + 1,
            after: None,
            readings_from_ms: Some(i64::MIN),
        };
        loop {
            let found = read(query.clone()).await?;
            pages.extend(found.pages);
            query.after = found.next;
            if query.after.is_none() {
                return Ok(pages);
            }
        }
    }

    /// Adds the readings at the first millisecond of these buckets.
    ///
    /// # Errors
    /// The store failed.
    pub(crate) async fn complete_edges(
        &self,
        removed: &BTreeSet<BucketKey>,
        edges: &mut Edges,
    ) -> Result<(), StoreError> {
        for BucketKey { sensor_id, start } in removed {
            let found = self.readings(sensor_id, start.0, start.0 + 1).await?;
            let rows = edges.entry(sensor_id.clone()).or_default();
            let at_start = rows.iter().filter(|row| row.ts_ms == start.0);
            let known: BTreeSet<ReadingKey> = at_start.map(|row| row.key()).collect();
            let new = found.iter().filter(|row| !known.contains(&row.key()));
            new.for_each(|row| rows.push_row(&row));
        }
        Ok(())
    }

    /// The readings that columns have of a sensor between two times (ms since 1970).
    async fn readings(
        &self,
        sensor_id: &SensorId,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<Rows, StoreError> {
        let mut rows = Rows::default();
        for day in self.zone.days(from_ms, to_ms) {
            rows.append(&readings_of(self.columns, sensor_id, day, from_ms..to_ms).await?);
        }
        Ok(rows)
    }
}

/// Whether only columns have the readings of a page.
fn is_removed(page: &StoredPage) -> bool {
    page.readings_removed && page.storage_mode == StorageMode::Bucket
}

/// Of all pages of a bucket, the number of the first one without readings, and what they had together:
/// `stored`, the readings of the bucket in columns, without those that other pages have. `None` if
/// columns do not have them.
fn missing_rows(stored: Rows, pages: &[(BucketStart, StoredPage)]) -> Option<(u32, Rows)> {
    let pages = || pages.iter().map(|(_, page)| page);
    let removed = || pages().filter(|page| is_removed(page));
    let first = removed().map(|page| page.page).min()?;
    let counted: u64 = removed().map(StoredPage::counted::<u64>).sum();
    let has_all = stored.len() as u64 >= counted;
    let rows = pages().map(|page| &page.rows);
    has_all.then(|| (first, only_stored(stored, rows, counted)))
}

/// Of the readings that columns have of a bucket, those that its pages do not have. `missing`: how many
/// readings the pages count and do not have.
///
/// Columns have these, and what was computed of the pages that still have readings. So as many of
/// these are twice as columns have too many.
pub(crate) fn only_stored<'p>(
    mut stored: Rows,
    pages: impl IntoIterator<Item = &'p Rows>,
    missing: u64,
) -> Rows {
    let mut twice = (stored.len() as u64).saturating_sub(missing);
    let mut known = ReadingCounts::from_rows(pages);
    stored.retain(|row| {
        let is_twice = twice > 0 && known.take(&row.key());
        twice -= u64::from(is_twice);
        !is_twice
    });
    stored
}
