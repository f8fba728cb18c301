//! Reads the summaries of many sensors in one request, and of buckets only the readings at their
//! first millisecond.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use mongodb::bson::{Bson, DateTime, Document, RawDocument, doc};
use mongodb::error::Result as Found;

use crate::mongo::document::{between, storage_mode_of};
use crate::mongo::read::bucket_reader::{Collections, key_of, push};
use crate::reading::{EdgeQuery, Edges, SummaryQuery, SummaryResults};
use model::{BucketKey, BucketStart, SensorId, StorageMode};

/// Pages in one result: 69 months of hours. With one field, a page has about 300 bytes.
const PAGES_MAX: usize = 50_000;
/// Bytes of the pages in one result.
const BYTES_MAX: usize = 32 << 20;
/// Fields that a projection names; with more, the whole summary is read.
const FIELDS_MAX: usize = 100;
/// Buckets of one condition on the measurements: MongoDB turns each into a range of times.
const TIMES_MAX: usize = 200;
/// Up to so many buckets of a range for each that is wanted, the whole range is searched.
const DENSE: i64 = 2;
/// Conditions that are answered at the same time.
const CONCURRENT: usize = 2;
/// Server-side limit; below the limit of a whole request.
const TIME_MAX: Duration = Duration::from_secs(8);

/// Projects the other members of a page or day that are needed, and the summaries of these fields:
/// of all, if the list is empty or too long.
pub(crate) fn projection(others: &[&str], fields: &[String]) -> Document {
    let mut projection = doc! { "_id": 0 };
    projection.extend(
        others
            .iter()
            .map(|name| ((*name).to_owned(), Bson::Int32(1))),
    );
    if fields.is_empty() || fields.len() > FIELDS_MAX {
        projection.insert("summary", 1);
    } else {
        projection.extend(
            fields
                .iter()
                .map(|name| (format!("summary.{name}"), Bson::Int32(1))),
        );
    }
    projection
}

fn ids(sensors: &[SensorId]) -> Vec<&str> {
    sensors.iter().map(|id| &**id).collect()
}

pub(crate) async fn find_summaries(of: &Collections, q: &SummaryQuery) -> Found<SummaryResults> {
    let within = between(q.from.0, q.to_ms);
    let filter = doc! { "sensor_id": { "$in": ids(&q.sensor_ids) }, "bucket_start": within };
    let others = [
        "sensor_id",
        "bucket_start",
        "page",
        "count",
        "first_ts",
        "last_ts",
        "storage",
        "has_overflow",
    ];
    // Traverses the index backwards.
    let sort = doc! { "sensor_id": -1, "bucket_start": 1, "page": -1 };
    let find = of
        .buckets
        .find(filter)
        .sort(sort)
        .projection(projection(&others, &q.fields));
    let mut cursor = find.max_time(TIME_MAX).batch_size(2000).await?;
    let mut found = SummaryResults::default();
    let mut bytes = 0;
    while cursor.advance().await? {
        let document = cursor.current();
        bytes += document.as_bytes().len();
        let Some((key, _, page)) = of.parse(document) else {
            continue;
        };
        if found.pages.len() >= PAGES_MAX || bytes >= BYTES_MAX {
            // This sensor may have more, and those that follow in descending order were not
            // reached.
            let cut = key.sensor_id;
            found.pages.retain(|(key, _)| key.sensor_id > cut);
            found.rest = q
                .sensor_ids
                .iter()
                .filter(|id| **id <= cut)
                .cloned()
                .collect();
            break;
        }
        found.pages.push((key, page));
    }
    Ok(found)
}

/// The edges in pages and measurements, and the buckets of which only columns have them.
pub(crate) async fn find_edges(
    of: &Collections,
    q: &EdgeQuery,
) -> Found<(Edges, BTreeSet<BucketKey>)> {
    let (mut edges, in_series, removed) = edges_of_pages(of, q).await?;
    if !in_series.is_empty() {
        edges_of_measurements(of, &in_series, &mut edges).await?;
    }
    Ok((edges, removed))
}

/// The edges in pages, the buckets whose readings are measurements, and those with an edge that was
/// removed.
async fn edges_of_pages(
    of: &Collections,
    q: &EdgeQuery,
) -> Found<(
    Edges,
    BTreeSet<(SensorId, BucketStart)>,
    BTreeSet<BucketKey>,
)> {
    let starts: Vec<DateTime> = q
        .starts
        .iter()
        .map(|start| DateTime::from_millis(start.0))
        .collect();
    // A page whose first time is one of these starts has it as its own start: a page has only times
    // of its bucket.
    let filter = doc! {
        "sensor_id": { "$in": ids(&q.sensor_ids) },
        "bucket_start": { "$in": &starts },
        "first_ts": { "$in": &starts },
    };
    let readings = doc! { "$filter": {
        "input": { "$ifNull": ["$readings", []] }, "as": "reading", "cond": { "$eq": ["$$reading.ts", "$bucket_start"] },
    } };
    let projection = doc! { "_id": 0, "sensor_id": 1, "bucket_start": 1, "storage": 1, "readings_removed": 1, "readings": readings };
    let mut cursor = of
        .buckets
        .find(filter)
        .projection(projection)
        .max_time(TIME_MAX)
        .batch_size(2000)
        .await?;
    let mut edges = Edges::new();
    let mut in_series = BTreeSet::new();
    let mut removed = BTreeSet::new();
    while cursor.advance().await? {
        let document = cursor.current();
        let Some(BucketKey { sensor_id, start }) = key_of(document) else {
            continue;
        };
        if storage_mode_of(document) == StorageMode::TimeSeries {
            in_series.insert((sensor_id, start));
            continue;
        }
        if document.get_bool("readings_removed").unwrap_or(false) {
            removed.insert(BucketKey { sensor_id, start });
            continue;
        }
        let rows = edges.entry(sensor_id).or_default();
        for reading in document.get_array("readings").into_iter().flatten() {
            if let Some(reading) = reading.ok().and_then(|reading| reading.as_document()) {
                push(rows, reading, &["ts"]);
            }
        }
    }
    Ok((edges, in_series, removed))
}

async fn edges_of_measurements(
    of: &Collections,
    wanted: &BTreeSet<(SensorId, BucketStart)>,
    edges: &mut Edges,
) -> Found<()> {
    let sensors: BTreeSet<&str> = wanted.iter().map(|(id, _)| &**id).collect();
    let starts: BTreeSet<BucketStart> = wanted.iter().map(|(_, start)| *start).collect();
    let starts: Vec<BucketStart> = starts.into_iter().collect();
    let filters = starts.chunks(TIMES_MAX).map(|starts| {
        let mut filter =
            doc! { "meta.sensor_id": { "$in": sensors.iter().copied().collect::<Vec<_>>() } };
        filter.extend(at_starts(starts, of.span_ms));
        filter
    });
    let requests = filters.map(|filter| async move {
        let mut cursor = of
            .measurements
            .find(filter)
            .max_time(TIME_MAX)
            .batch_size(2000)
            .await?;
        let mut found = vec![];
        while cursor.advance().await? {
            found.push(cursor.current().to_owned());
        }
        Found::Ok(found)
    });
    let mut requests = stream::iter(requests.collect::<Vec<_>>()).buffered(CONCURRENT);
    while let Some(found) = requests.try_next().await? {
        for document in &found {
            let Some((sensor_id, ts_ms)) = measured_key(document) else {
                continue;
            };
            // A conversion may have left measurements behind: the bucket's document determines
            // where its readings are.
            if wanted.contains(&(sensor_id.clone(), BucketStart(ts_ms))) {
                push(
                    edges.entry(sensor_id).or_default(),
                    document,
                    &["_id", "ts", "meta"],
                );
            }
        }
    }
    Ok(())
}

/// The condition for measurements at these starts of buckets, in ascending order. MongoDB compares
/// every measurement of an hour with every time of an `$or`, so for most hours of a range one test
/// for the start of any bucket takes half as long.
fn at_starts(starts: &[BucketStart], span_ms: i64) -> Document {
    let time = |start: &BucketStart| DateTime::from_millis(start.0);
    match starts {
        [first, .., last] if (last.0 - first.0) / span_ms < DENSE * starts.len() as i64 => doc! {
            "ts": { "$gte": time(first), "$lte": time(last) },
            "$expr": { "$eq": [{ "$mod": [{ "$toLong": "$ts" }, span_ms] }, 0i64] },
        },
        _ => {
            doc! { "$or": starts.iter().map(|start| doc! { "ts": time(start) }).collect::<Vec<_>>() }
        }
    }
}

fn measured_key(document: &RawDocument) -> Option<(SensorId, i64)> {
    let sensor_id = document
        .get_document("meta")
        .ok()?
        .get_str("sensor_id")
        .ok()?;
    Some((
        sensor_id.into(),
        document.get_datetime("ts").ok()?.timestamp_millis(),
    ))
}
