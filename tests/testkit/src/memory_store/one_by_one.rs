//! Answers queries for several sensors by one for each: what a store must do to answer them faster.

use model::{BucketKey, StorageMode};
use store::days::{DayQuery, DayStore, DaysQuery, DaysResults};
use store::reading::{EdgeQuery, Edges, MeasurementQuery, PageQuery, SummaryQuery, SummaryResults};
use store::{Store, StoreError};

/// Measurements of one millisecond; more are returned if there are more.
const EDGE_MEASUREMENTS: usize = 1000;

/// Answers [`Store::summaries`] with [`Store::pages`].
///
/// # Errors
/// Those of the store.
pub async fn summaries(store: &dyn Store, q: &SummaryQuery) -> Result<SummaryResults, StoreError> {
    let mut found = SummaryResults::default();
    for sensor_id in &q.sensor_ids {
        let mut query = PageQuery {
            sensor_id: sensor_id.clone(),
            from: q.from,
            to_ms: q.to_ms,
            after: None,
            readings_from_ms: None,
        };
        loop {
            let results = store.pages(&query).await?;
            let key = |start| BucketKey {
                sensor_id: sensor_id.clone(),
                start,
            };
            let pages = results.pages.into_iter();
            found
                .pages
                .extend(pages.map(|(start, page)| (key(start), page)));
            query.after = results.next;
            if query.after.is_none() {
                break;
            }
        }
    }
    Ok(found)
}

/// Answers [`Store::edges`] with some queries for each bucket.
///
/// # Errors
/// Those of the store.
pub async fn edges(store: &dyn Store, q: &EdgeQuery) -> Result<Edges, StoreError> {
    let mut edges = Edges::new();
    for sensor_id in &q.sensor_ids {
        let rows = edges.entry(sensor_id.clone()).or_default();
        for start in &q.starts {
            let from_ms = start.0;
            let to_ms = from_ms + 1;
            let mut query = PageQuery {
                sensor_id: sensor_id.clone(),
                from: *start,
                to_ms,
                after: None,
                readings_from_ms: Some(from_ms),
            };
            let mut is_measured = false;
            loop {
                let results = store.pages(&query).await?;
                for (_, page) in &results.pages {
                    is_measured |= page.storage_mode == StorageMode::TimeSeries;
                    let first = page.rows.iter().filter(|row| row.ts_ms == from_ms);
                    first.for_each(|row| rows.push_row(&row));
                }
                query.after = results.next;
                if query.after.is_none() {
                    break;
                }
            }
            if is_measured {
                let query = MeasurementQuery {
                    sensor_id: sensor_id.clone(),
                    from_ms,
                    to_ms,
                    limit: EDGE_MEASUREMENTS,
                };
                let measured = store.measurements(&query).await?;
                measured.rows.iter().for_each(|row| rows.push_row(&row));
            }
        }
    }
    edges.retain(|_, rows| !rows.is_empty());
    Ok(edges)
}

/// Answers [`DayStore::days_of`] with [`DayStore::stored_days`].
///
/// # Errors
/// Those of the store.
pub async fn days(store: &dyn DayStore, q: &DaysQuery) -> Result<DaysResults, StoreError> {
    let mut all = DaysResults::default();
    for sensor_id in &q.sensor_ids {
        let mut query = DayQuery {
            sensor_id: sensor_id.clone(),
            from_ms: q.from_ms,
            to_ms: q.to_ms,
        };
        loop {
            let found = store.stored_days(&query).await?;
            let Some((last_ms, _)) = found.last() else {
                break;
            };
            query.from_ms = last_ms + 1;
            let found = found.into_iter();
            let found = found.map(|(day_ms, summary)| (sensor_id.clone(), day_ms, summary.hour));
            all.days.extend(found);
        }
    }
    Ok(all)
}
