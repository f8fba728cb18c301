//! Executes the queries of the read API ([`crate::reading`]): finds on the sensor indexes
//! with majority read concern, each with a server-side time limit.
//!
//! Every filter names the sensor, and so targets one shard of a cluster. The exception is the list
//! of sensors, which reads one id after another, each with an index seek (a loose index scan; a
//! `$group` would read the index of all sensors before its first result).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt, TryStreamExt};
use mongodb::Collection;
use mongodb::bson::{DateTime, Document, RawDocumentBuf, doc};
use mongodb::error::Result as Found;

use crate::StoreError;
use crate::maintain::StoredPage;
use crate::mongo::connection::Connection;
use crate::mongo::dead_letters::read_dead_letter;
use crate::mongo::detected::Detected;
use crate::mongo::document::{between, values};
use crate::mongo::expiry::Expiry;
use crate::mongo::read::bucket_reader::{Collections, key_of, measured_in, push};
use crate::mongo::read::{samples, summaries};
use crate::reading::{
    DeadLetterQuery, EdgeQuery, Edges, MeasurementQuery, MeasurementResults, PageQuery,
    PageResults, SensorQuery, StoredDeadLetter, StoredSensor, SummaryQuery, SummaryResults,
};
use crate::samples::{SampleQuery, SampleStream};
use model::collections::{DEAD_LETTERS, LATEST};
use model::{BucketKey, BucketStart, Rows, SensorId, StorageMode, keep_newer};
use telemetry::metrics::{self, StoreCommand};

/// Maximum pages in one result, and their maximum bytes.
const PAGES_MAX: usize = 2000;
const PAGES_BYTES_MAX: usize = 8 << 20;
/// Maximum bytes of the measurements in one result.
const MEASUREMENTS_BYTES_MAX: usize = 32 << 20;
/// Maximum measurements of one millisecond, which are returned together.
const SAME_TIME_MAX: usize = 4_000_000;
/// Newest readings of a page in which the last value of a field is searched.
const LAST_READINGS: i32 = 20;
/// Maximum pages of one bucket that are read to find the latest time.
const LAST_PAGES_MAX: i64 = 64;
/// Sensors that are read concurrently.
const SENSORS_AT_ONCE: usize = 8;
/// Server-side limit; below the limit of a whole request, so that the server reports the timeout.
const TIME_MAX: Duration = Duration::from_secs(8);

/// Reads every collection but `sensor_catalog`; changes nothing.
#[derive(Debug, Clone)]
pub(crate) struct Reader {
    connection: Connection,
    detected: Arc<Detected>,
    expiry: Expiry,
    /// `latest.enabled`: `sensor_latest` is kept.
    has_latest: bool,
}

impl Reader {
    pub(crate) fn new(connection: Connection, detected: Arc<Detected>, expiry: Expiry) -> Reader {
        Reader {
            connection,
            detected,
            expiry,
            has_latest: false,
        }
    }

    /// The same; `has_latest`: `sensor_latest` is kept.
    pub(crate) fn with_latest(self, has_latest: bool) -> Reader {
        Reader { has_latest, ..self }
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(crate) fn detected(&self) -> &Detected {
        &self.detected
    }

    pub(crate) fn collections(&self) -> Collections {
        Collections::new(&self.connection, &self.detected)
    }

    /// Runs a query, once the collections are prepared.
    pub(crate) async fn query<T: Send + 'static>(
        &self,
        operation: impl Future<Output = Found<T>> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.detected.check_prepared()?;
        let begun = Instant::now();
        let result = self.connection.ask(operation).await;
        metrics::store_command(StoreCommand::Read, 1, begun.elapsed().as_secs_f64());
        result
    }

    /// See [`crate::Store::pages`].
    pub(crate) async fn pages(&self, q: &PageQuery) -> Result<PageResults, StoreError> {
        let of = self.collections();
        let q = q.clone();
        let mut found = self.query(async move { pages(&of, &q).await }).await?;
        let has_series = found
            .pages
            .iter()
            .any(|(_, page)| page.storage_mode == StorageMode::TimeSeries);
        if has_series && self.expiry.removes_measurements() {
            let now_ms = self.expiry.about_now_ms().await?;
            for (start, page) in &mut found.pages {
                if page.storage_mode == StorageMode::TimeSeries {
                    page.readings_removed = self.expiry.is_expiring(*start, now_ms);
                }
            }
        }
        Ok(found)
    }

    /// See [`crate::Store::measurements`].
    pub(crate) async fn measurements(
        &self,
        q: &MeasurementQuery,
    ) -> Result<MeasurementResults, StoreError> {
        let of = self.collections();
        let q = q.clone();
        self.query(async move { measurements(&of, &q).await }).await
    }

    /// See [`crate::Store::samples`].
    pub(crate) fn samples(&self, q: SampleQuery) -> SampleStream<'static> {
        samples::read(self.clone(), q)
    }

    pub(crate) fn expiry(&self) -> &Expiry {
        &self.expiry
    }

    /// See [`crate::Store::summaries`].
    pub(crate) async fn summaries(&self, q: &SummaryQuery) -> Result<SummaryResults, StoreError> {
        let of = self.collections();
        let q = q.clone();
        self.query(async move { summaries::find_summaries(&of, &q).await })
            .await
    }

    /// See [`crate::Store::edges`]. Also the buckets of which only columns have them.
    pub(crate) async fn edges(
        &self,
        q: &EdgeQuery,
    ) -> Result<(Edges, BTreeSet<BucketKey>), StoreError> {
        let of = self.collections();
        let q = q.clone();
        self.query(async move { summaries::find_edges(&of, &q).await })
            .await
    }

    /// See [`crate::Store::sensors`].
    pub(crate) async fn sensors(&self, q: &SensorQuery) -> Result<Vec<String>, StoreError> {
        let of = self.collections();
        let q = q.clone();
        self.query(async move { next_sensors(&of.buckets, &q).await })
            .await
    }

    /// See [`crate::Store::newest`].
    pub(crate) async fn newest(
        &self,
        sensors: &[SensorId],
    ) -> Result<Vec<StoredSensor>, StoreError> {
        let of = self.collections();
        let sensors = sensors.to_vec();
        let db = self.connection.db();
        let latest = self
            .has_latest
            .then(|| db.collection::<RawDocumentBuf>(LATEST));
        self.query(async move {
            let lookups = stream::iter(sensors.clone())
                .map(|id| newest(of.clone(), id))
                .buffered(SENSORS_AT_ONCE);
            let mut found: Vec<StoredSensor> = lookups.try_collect().await?;
            if let Some(latest) = latest {
                merge_latest(&latest, &sensors, &mut found).await?;
            }
            Ok(found)
        })
        .await
    }

    /// The start of each sensor's first bucket; `None` if it has none.
    pub(crate) async fn first_buckets(
        &self,
        sensors: &[SensorId],
    ) -> Result<Vec<Option<BucketStart>>, StoreError> {
        let of = self.collections();
        let sensors = sensors.to_vec();
        self.query(async move {
            stream::iter(sensors)
                .map(|id| first(of.clone(), id))
                .buffered(SENSORS_AT_ONCE)
                .try_collect()
                .await
        })
        .await
    }

    /// See [`crate::Store::find_dead_letters`].
    pub(crate) async fn dead_letters(
        &self,
        q: &DeadLetterQuery,
    ) -> Result<Vec<StoredDeadLetter>, StoreError> {
        let dead = self.connection.majority::<Document>(DEAD_LETTERS);
        let q = q.clone();
        self.query(async move {
            let mut filter = Document::new();
            if let Some(reason) = &q.reason {
                filter.insert("reason", reason);
            }
            if let Some((at_ms, _)) = q.before {
                filter.insert("received_at", doc! { "$lte": DateTime::from_millis(at_ms) });
            }
            let find = dead
                .find(filter)
                .sort(doc! { "received_at": -1, "_id": -1 })
                .limit(q.limit as i64)
                .max_time(TIME_MAX);
            let mut cursor = find
                .skip(q.before.map_or(0, |(_, n)| u64::from(n)))
                .batch_size(16)
                .await?;
            let mut dead_letters = vec![];
            let mut bytes = 0;
            while bytes < q.bytes_max && cursor.advance().await? {
                let (id, dead_letter) = read_dead_letter(cursor.deserialize_current()?);
                bytes += dead_letter.payload.len();
                dead_letters.push(StoredDeadLetter { id, dead_letter });
            }
            Ok(dead_letters)
        })
        .await
    }
}

async fn pages(of: &Collections, q: &PageQuery) -> Found<PageResults> {
    let mut found = PageResults::default();
    let mut bytes = 0;
    let starts = |from: Option<BucketStart>| match from {
        Some(from) => {
            doc! { "$gt": DateTime::from_millis(from.0), "$lt": DateTime::from_millis(q.to_ms) }
        }
        None => between(q.from.0, q.to_ms),
    };
    let mut filters = vec![];
    if let Some((start, page)) = q.after.filter(|(_, page)| *page > 0) {
        filters.push(doc! { "bucket_start": DateTime::from_millis(start.0), "page": { "$lt": i64::from(page) } });
    }
    filters.push(doc! { "bucket_start": starts(q.after.map(|(start, _)| start)) });
    for filter in filters {
        let mut all = doc! { "sensor_id": &*q.sensor_id };
        all.extend(filter);
        // Traverses the index backwards.
        let mut find = of
            .buckets
            .find(all)
            .sort(doc! { "sensor_id": -1, "bucket_start": 1, "page": -1 });
        if q.readings_from_ms.is_none() {
            find = find.projection(doc! { "readings": 0 });
        }
        let mut cursor = find.max_time(TIME_MAX).batch_size(100).await?;
        while cursor.advance().await? {
            let document = cursor.current();
            bytes += document.as_bytes().len();
            let Some((key, _, page)) = of.parse(document) else {
                continue;
            };
            let place = (key.start, page.page);
            let late = q
                .readings_from_ms
                .is_some_and(|from| page.last_ts_ms.is_some_and(|last| last < from));
            if !late || page.storage_mode == StorageMode::TimeSeries {
                found.pages.push((key.start, page));
            }
            if found.pages.len() >= PAGES_MAX || bytes >= PAGES_BYTES_MAX {
                found.next = Some(place);
                return Ok(found);
            }
        }
    }
    Ok(found)
}

async fn measurements(of: &Collections, q: &MeasurementQuery) -> Found<MeasurementResults> {
    let mut limit = q.limit;
    loop {
        let found = some_measurements(of, q, limit).await?;
        match found {
            Some(found) => return Ok(found),
            None if limit >= SAME_TIME_MAX => {
                let text =
                    format!("more than {SAME_TIME_MAX} measurements in the same millisecond");
                return Err(mongodb::error::Error::custom(text));
            }
            None => limit *= 4,
        }
    }
}

/// Returns the first `limit` measurements without those of the last millisecond, which may have
/// more. `None` if no others are left.
async fn some_measurements(
    of: &Collections,
    q: &MeasurementQuery,
    limit: usize,
) -> Found<Option<MeasurementResults>> {
    let filter = doc! { "meta.sensor_id": &*q.sensor_id, "ts": between(q.from_ms, q.to_ms) };
    let find = of
        .measurements
        .find(filter)
        .sort(doc! { "ts": 1 })
        .limit(limit as i64 + 1)
        .max_time(TIME_MAX);
    let mut cursor = find.await?;
    let mut rows = Rows::default();
    let mut read = 0;
    let mut until_ms = q.to_ms;
    while cursor.advance().await? {
        let document = cursor.current();
        read += 1;
        if read > limit || rows.memory_bytes() > MEASUREMENTS_BYTES_MAX {
            until_ms = document
                .get_datetime("ts")
                .map_or(q.to_ms, |ts| ts.timestamp_millis());
            break;
        }
        push(&mut rows, document, &["_id", "ts", "meta"]);
    }
    if until_ms < q.to_ms {
        rows.retain(|row| row.ts_ms < until_ms);
        if rows.is_empty() {
            return Ok(None);
        }
    }
    Ok(Some(MeasurementResults { rows, until_ms }))
}

/// Returns the next sensor ids in order: one index seek each, without reading a document.
pub(crate) async fn next_sensors(
    buckets: &Collection<RawDocumentBuf>,
    q: &SensorQuery,
) -> Found<Vec<String>> {
    let mut ids: Vec<String> = vec![];
    let mut after = q.after.clone();
    while ids.len() < q.limit {
        let bound = match &after {
            Some(after) if *after >= q.prefix => doc! { "$gt": after },
            _ => doc! { "$gte": &q.prefix },
        };
        let sort = doc! { "sensor_id": 1, "bucket_start": -1, "page": 1 };
        let find = buckets
            .find(doc! { "sensor_id": bound })
            .sort(sort)
            .limit(1)
            .max_time(TIME_MAX);
        let mut cursor = find.projection(doc! { "_id": 0, "sensor_id": 1 }).await?;
        if !cursor.advance().await? {
            break;
        }
        let Ok(id) = cursor.current().get_str("sensor_id") else {
            break;
        };
        if !id.starts_with(&q.prefix) {
            break;
        }
        after = Some(id.to_owned());
        ids.push(id.to_owned());
    }
    Ok(ids)
}

async fn newest(of: Collections, sensor_id: SensorId) -> Found<StoredSensor> {
    let mut sensor = StoredSensor::default();
    let sort = doc! { "sensor_id": 1, "bucket_start": -1, "page": 1 };
    // A removal may leave empty pages.
    let find = of
        .buckets
        .find(doc! { "sensor_id": &*sensor_id, "count": { "$ne": 0 } })
        .sort(sort)
        .limit(1)
        .max_time(TIME_MAX);
    let mut cursor = find.projection(newest_readings()).await?;
    if !cursor.advance().await? {
        return Ok(sensor);
    }
    let Some((key, _, page)) = of.parse(cursor.current()) else {
        return Ok(sensor);
    };
    if page.storage_mode == StorageMode::TimeSeries {
        sensor.last_ts_ms = page.last_ts_ms;
        newest_measurements(&of, &key, &mut sensor).await?;
        return Ok(sensor);
    }
    keep_newest(&mut sensor, &page);
    if page.sealed {
        let at = DateTime::from_millis(key.start.0);
        let filter = doc! { "sensor_id": &*sensor_id, "bucket_start": at, "page": { "$gt": 0 } };
        let find = of
            .buckets
            .find(filter)
            .sort(doc! { "page": -1 })
            .limit(LAST_PAGES_MAX)
            .max_time(TIME_MAX);
        let mut cursor = find.projection(newest_readings()).await?;
        while cursor.advance().await? {
            if let Some((_, _, page)) = of.parse(cursor.current()) {
                keep_newest(&mut sensor, &page);
            }
        }
    }
    Ok(sensor)
}

/// The projection of a page for its newest readings: the last ones in the array, and those before
/// them that are not older than all of these. Readings are appended as they arrive, so late ones
/// can be behind the newest. (`$sortArray` needs MongoDB 5.2.)
fn newest_readings() -> Document {
    let all = doc! { "$cond": [{ "$isArray": "$readings" }, "$readings", []] };
    let last = doc! { "$slice": ["$$all", -LAST_READINGS] };
    let since = doc! { "$let": { "vars": { "last": last }, "in": { "$min": "$$last.ts" } } };
    let is_newer = doc! { "$gte": ["$$reading.ts", "$$since"] };
    let newest = doc! { "$filter": { "input": "$$all", "as": "reading", "cond": is_newer } };
    let newest = doc! { "$let": { "vars": { "since": since }, "in": newest } };
    doc! {
        "_id": 0, "sensor_id": 1, "bucket_start": 1, "page": 1, "storage": 1, "has_overflow": 1,
        "last_ts": 1,
        "readings": { "$let": { "vars": { "all": all }, "in": newest } },
    }
}

/// Updates the state with the newest readings of a page. Of those with the same time, the one that
/// was stored last counts.
fn keep_newest(sensor: &mut StoredSensor, page: &StoredPage) {
    sensor.last_ts_ms = sensor.last_ts_ms.max(page.last_ts_ms);
    let mut rows: Vec<_> = page.rows.iter().collect();
    rows.sort_by_key(|row| row.ts_ms);
    let older = rows.len().saturating_sub(LAST_READINGS as usize);
    rows.iter()
        .skip(older)
        .for_each(|row| keep_newer(&mut sensor.values, row.ts_ms, row.named()));
}

async fn newest_measurements(
    of: &Collections,
    key: &BucketKey,
    sensor: &mut StoredSensor,
) -> Found<()> {
    let find = of
        .measurements
        .find(measured_in(key, key.start.0 + of.span_ms))
        .sort(doc! { "ts": -1 })
        .limit(i64::from(LAST_READINGS));
    let mut cursor = find.max_time(TIME_MAX).await?;
    while cursor.advance().await? {
        let Ok(ts) = cursor.current().get_datetime("ts") else {
            continue;
        };
        let ts_ms = ts.timestamp_millis();
        sensor.last_ts_ms = sensor.last_ts_ms.max(Some(ts_ms));
        keep_newer(&mut sensor.values, ts_ms, values(cursor.current()));
    }
    Ok(())
}

/// Merges the state in `sensor_latest`, which also has fields that were not reported for a long
/// time.
async fn merge_latest(
    latest: &Collection<RawDocumentBuf>,
    sensors: &[SensorId],
    found: &mut [StoredSensor],
) -> Found<()> {
    let ids: Vec<&str> = sensors.iter().map(|id| &**id).collect();
    let find = latest
        .find(doc! { "_id": { "$in": ids } })
        .projection(doc! { "recent": 0 })
        .max_time(TIME_MAX);
    let documents: Vec<RawDocumentBuf> = find.await?.try_collect().await?;
    let mut by_id: BTreeMap<&str, &RawDocumentBuf> = BTreeMap::new();
    for document in &documents {
        by_id.insert(document.get_str("_id").unwrap_or_default(), document);
    }
    for (id, sensor) in sensors.iter().zip(found) {
        let Some(document) = by_id.get(&**id) else {
            continue;
        };
        let last = document
            .get_datetime("last_ts")
            .ok()
            .map(|ts| ts.timestamp_millis());
        sensor.last_ts_ms = sensor.last_ts_ms.max(last);
        for (name, field) in document
            .get_document("values")
            .into_iter()
            .flatten()
            .flatten()
        {
            let Some(field) = field.as_document() else {
                continue;
            };
            let (Ok(ts), Some((_, value))) = (field.get_datetime("ts"), values(field).next())
            else {
                continue;
            };
            let ts_ms = ts.timestamp_millis();
            keep_newer(
                &mut sensor.values,
                ts_ms,
                std::iter::once((name.as_str(), value)),
            );
        }
    }
    Ok(())
}

async fn first(of: Collections, sensor_id: SensorId) -> Found<Option<BucketStart>> {
    let find = of
        .buckets
        .find(doc! { "sensor_id": &*sensor_id })
        .sort(doc! { "sensor_id": -1, "bucket_start": 1, "page": -1 });
    let mut cursor = find
        .limit(1)
        .projection(doc! { "sensor_id": 1, "bucket_start": 1 })
        .max_time(TIME_MAX)
        .await?;
    if !cursor.advance().await? {
        return Ok(None);
    }
    Ok(key_of(cursor.current()).map(|key| key.start))
}
