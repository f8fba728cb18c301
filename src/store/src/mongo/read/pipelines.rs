//! The documented queries for the raw readings of a sensor and a time range: one for each storage
//! mode, and one for a database with both. They return equal rows for equal readings:
//!
//! ```text
//! { ts: ISODate("2024-03-01T10:00:00Z"), sensor_id: "S1", temp: 22.4, humid: 60 }
//! ```
//!
//! ordered by `ts` (the order of readings with the same `ts` is undefined). Each query starts with
//! a `$match` that uses the index of its collection.

use mongodb::bson::{DateTime, Document, doc};

use crate::mongo::pack::SERIES;
use model::Span;
use model::collections::{BUCKETS, READINGS};

/// Where the readings are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadingsLocation {
    /// In pages: run the query on `sensor_buckets`.
    Pages,
    /// As measurements: run the query on `sensor_readings`.
    Measurements,
    /// In both, as after a change of `store.mode` or a conversion: run the query on
    /// `sensor_buckets`. The bucket's document decides, so leftover measurements of a conversion
    /// are not returned. Costs about four times as much as `Measurements`.
    Both,
}

/// The pipeline for the readings of one sensor in `from_ms..to_ms` (milliseconds since 1970).
/// `span` is `bucket.span`.
pub fn raw_readings_pipeline(
    storage_mode: ReadingsLocation,
    sensor_id: &str,
    from_ms: i64,
    to_ms: i64,
    span: Span,
) -> Vec<Document> {
    let from = DateTime::from_millis(from_ms);
    let to = DateTime::from_millis(to_ms);
    let pages = || {
        let first = DateTime::from_millis(span.floor(from_ms).0);
        vec![
            doc! { "$match": { "sensor_id": sensor_id, "bucket_start": { "$gte": first, "$lt": to } } },
            // A bucket in time-series mode has no such field and returns no rows.
            doc! { "$unwind": "$readings" },
            doc! { "$match": { "readings.ts": { "$gte": from, "$lt": to } } },
            // `sensor_id` appears twice: the first sets its position, the second keeps it if a
            // value has the same name.
            doc! { "$replaceWith": { "$mergeObjects": [
                { "ts": "$readings.ts", "sensor_id": "$sensor_id" }, "$readings", { "sensor_id": "$sensor_id" },
            ] } },
        ]
    };
    let measurements = || {
        vec![
            doc! { "$match": { "meta.sensor_id": sensor_id, "ts": { "$gte": from, "$lt": to } } },
            doc! { "$replaceWith": { "$mergeObjects": [
                { "ts": "$ts", "sensor_id": "$meta.sensor_id" }, "$$ROOT", { "sensor_id": "$meta.sensor_id" },
            ] } },
            doc! { "$unset": ["_id", "meta"] },
        ]
    };
    let mut pipeline = match storage_mode {
        ReadingsLocation::Pages => pages(),
        ReadingsLocation::Measurements => measurements(),
        ReadingsLocation::Both => {
            let mut both = pages();
            let first = DateTime::from_millis(span.floor(from_ms).0);
            let mut of_bucket = measurements();
            // Both conditions in one stage: the constants use the index, the variables restrict the
            // rows to the bucket. (As a separate stage, MongoDB 6.0 caches the first one with the
            // variables of one bucket.)
            of_bucket[0] = doc! { "$match": {
                "meta.sensor_id": sensor_id,
                "ts": { "$gte": from, "$lt": to },
                "$expr": { "$and": [{ "$gte": ["$ts", "$$start"] }, { "$lt": ["$ts", "$$end"] }] },
            } };
            let series = vec![
                doc! { "$match": {
                    "sensor_id": sensor_id, "bucket_start": { "$gte": first, "$lt": to }, "page": 0, "storage": SERIES,
                } },
                doc! { "$lookup": {
                    "from": READINGS,
                    "let": { "start": "$bucket_start", "end": "$bucket_end" },
                    "pipeline": of_bucket,
                    "as": "reading",
                } },
                doc! { "$unwind": "$reading" },
                doc! { "$replaceWith": "$reading" },
            ];
            both.push(doc! { "$unionWith": { "coll": BUCKETS, "pipeline": series } });
            both
        }
    };
    pipeline.push(doc! { "$sort": { "ts": 1 } });
    pipeline
}
