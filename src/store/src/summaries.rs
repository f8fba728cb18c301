//! Queries for the summaries and edges of many sensors, which PromQL sends. Reads are as those of
//! [`super::reading`].

use std::collections::BTreeMap;

use super::reading::{MeasurementQuery, MeasurementResults, PageQuery, PageResults};
use crate::maintain::StoredPage;
use crate::{BoxFuture, StoreError};
use model::{BucketKey, BucketStart, Rows, SensorId, StorageMode};

/// Measurements of one millisecond; more are returned if there are more.
const EDGE_MEASUREMENTS: usize = 1000;

/// Selects pages of several sensors, without their readings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SummaryQuery {
    /// The sensors, each once.
    pub sensor_ids: Vec<SensorId>,
    /// The first bucket to return.
    pub from: BucketStart,
    /// Return buckets that begin before this time (ms since 1970).
    pub to_ms: i64,
    /// The fields whose summaries are needed; others may be missing.
    pub fields: Vec<String>,
}

/// Pages of several sensors.
#[derive(Debug, Clone, Default)]
pub struct SummaryResults {
    /// All pages of all sensors but those in `rest`; of each sensor in the order of
    /// [`super::reading::PageResults`].
    pub pages: Vec<(BucketKey, StoredPage)>,
    /// Sensors that did not fit into the result. If these are all requested sensors, the first of
    /// them has too many pages: read them one sensor at a time.
    pub rest: Vec<SensorId>,
}

/// Selects the readings at the first millisecond of buckets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EdgeQuery {
    /// The sensors, each once.
    pub sensor_ids: Vec<SensorId>,
    /// The buckets, the same of each sensor.
    pub starts: Vec<BucketStart>,
}

/// The readings of each sensor that has some, in any order.
pub type Edges = BTreeMap<SensorId, Rows>;

/// Answers a query by one for each sensor.
pub(super) async fn by_pages<'a>(
    q: &SummaryQuery,
    read: impl Fn(PageQuery) -> BoxFuture<'a, Result<PageResults, StoreError>> + Send + Sync,
) -> Result<SummaryResults, StoreError> {
    let mut found = SummaryResults::default();
    for sensor_id in &q.sensor_ids {
        let from = q.from;
        let to_ms = q.to_ms;
        let mut query = PageQuery {
            sensor_id: sensor_id.clone(),
            from,
            to_ms,
            after: None,
            readings_from_ms: None,
        };
        loop {
            let pages = read(query.clone()).await?;
            let key = |start| BucketKey {
                sensor_id: sensor_id.clone(),
                start,
            };
            found.pages.extend(
                pages
                    .pages
                    .into_iter()
                    .map(|(start, page)| (key(start), page)),
            );
            query.after = pages.next;
            if query.after.is_none() {
                break;
            }
        }
    }
    Ok(found)
}

/// Answers a query by some for each bucket.
pub(super) async fn by_buckets<'a>(
    q: &EdgeQuery,
    read: impl Fn(PageQuery) -> BoxFuture<'a, Result<PageResults, StoreError>> + Send + Sync,
    measure: impl Fn(MeasurementQuery) -> BoxFuture<'a, Result<MeasurementResults, StoreError>>
    + Send
    + Sync,
) -> Result<Edges, StoreError> {
    let mut edges = Edges::new();
    for sensor_id in &q.sensor_ids {
        let rows = edges.entry(sensor_id.clone()).or_default();
        for start in &q.starts {
            let from_ms = start.0;
            let to_ms = start.0 + 1;
            let sensor_id = || sensor_id.clone();
            let readings_from_ms = Some(from_ms);
            let mut query = PageQuery {
                sensor_id: sensor_id(),
                from: *start,
                to_ms,
                after: None,
                readings_from_ms,
            };
            let mut is_measured = false;
            loop {
                let pages = read(query.clone()).await?;
                for (_, page) in &pages.pages {
                    is_measured |= page.storage_mode == StorageMode::TimeSeries;
                    page.rows
                        .iter()
                        .filter(|row| row.ts_ms == from_ms)
                        .for_each(|row| rows.push_row(&row));
                }
                query.after = pages.next;
                if query.after.is_none() {
                    break;
                }
            }
            if is_measured {
                let query = MeasurementQuery {
                    sensor_id: sensor_id(),
                    from_ms,
                    to_ms,
                    limit: EDGE_MEASUREMENTS,
                };
                measure(query)
                    .await?
                    .rows
                    .iter()
                    .for_each(|row| rows.push_row(&row));
            }
        }
    }
    edges.retain(|_, rows| !rows.is_empty());
    Ok(edges)
}
