//! The view `sensor_summaries`: one row per sensor and bucket, with its pages merged and averages
//! added.
//!
//! **Cost.** The pipeline starts with page 0. A `$group` over all pages would read the whole
//! collection before its first row, and a filter on the view's sensor or time would not reach the
//! index. Most buckets have one page, which is not sealed: these become rows directly, without a
//! lookup. Sealed ones come from a second pipeline (`$unionWith`, into which the server also pushes
//! the filter), which looks up all their pages and groups the fields by name. So the cost of a
//! bucket grows with its number of fields and not with the square of it.
//!
//! **Limits.** A row is a document and must stay below 16 MiB, whatever field names have arrived. A
//! larger row would abort the query, and with it the rows of all other sensors. So a row shows the
//! fields of the first [`PAGES_MAX`] pages of its bucket, and of these the first [`FIELDS_MAX`] by
//! name. If fields are missing, the row contains `summary_truncated: true`; then the summary of a
//! field may lack values from later pages. `count`, `first_ts` and `last_ts` always cover all
//! pages.

use mongodb::bson::{Document, doc};

use model::collections::BUCKETS;

/// Pages whose fields a row shows. The server groups all their fields, at most `PAGES_MAX *
/// (FIELDS_MAX + 1)`, in memory (about 200 bytes each: 13 MB of the 100 MB that it allows).
const PAGES_MAX: i32 = 4;
/// Fields per row. With names of 128 bytes: 200 bytes each, 3.2 MB; as `$lookup` returns them 300,
/// 4.9 MB of 16 MiB.
const FIELDS_MAX: i32 = 16_384;

/// The pipeline of the view, on the collection of pages.
pub(crate) fn summaries_pipeline() -> Vec<Document> {
    let of_one = vec![
        doc! { "$match": { "page": 0, "has_overflow": { "$ne": true } } },
        row_of_one_page(),
    ];
    let of_several = vec![
        doc! { "$match": { "page": 0, "has_overflow": true } },
        doc! { "$lookup": {
            "from": BUCKETS,
            "let": { "sensor": "$sensor_id", "start": "$bucket_start" },
            "pipeline": all_pages(),
            "as": "merged",
        } },
        row_of_several_pages(),
    ];
    let mut pipeline = of_one;
    pipeline.push(doc! { "$unionWith": { "coll": BUCKETS, "pipeline": of_several } });
    pipeline
}

/// `summary` as an array of names and values, one more than a row shows.
fn fields() -> Document {
    doc! { "$slice": [{ "$objectToArray": { "$ifNull": ["$summary", {}] } }, FIELDS_MAX + 1] }
}

/// One field of the row. Accepts any stored content: an expression that fails would abort the query
/// for all sensors.
fn entry(name: &str, value: &str) -> Document {
    let of = |part: &str| format!("{value}.{part}");
    doc! { "$let": {
        "vars": { "sum": { "$sum": of("sum") }, "count": { "$sum": of("count") } },
        "in": { "k": name, "v": {
            "min": of("min"), "max": of("max"), "sum": "$$sum", "count": "$$count",
            "avg": { "$cond": [{ "$gt": ["$$count", 0] }, { "$divide": ["$$sum", "$$count"] }, null] },
        } },
    } }
}

fn row_of_one_page() -> Document {
    let summary = doc! { "$map": {
        "input": { "$slice": [fields(), FIELDS_MAX] }, "as": "f", "in": entry("$$f.k", "$$f.v"),
    } };
    doc! { "$project": {
        "_id": 0, "sensor_id": 1, "bucket_start": 1, "count": 1, "first_ts": 1, "last_ts": 1, "readings_removed": 1,
        "summary": { "$arrayToObject": summary },
        "summary_truncated": { "$cond": [{ "$gt": [{ "$size": fields() }, FIELDS_MAX] }, true, "$$REMOVE"] },
    } }
}

/// All pages of a bucket, merged by field name. The first element has no name and holds the fields
/// of the pages themselves. (The server parses this pipeline again for each bucket, so everything
/// that can be outside of it is.)
fn all_pages() -> Vec<Document> {
    let of_bucket = doc! { "$and": [{ "$eq": ["$sensor_id", "$$sensor"] }, { "$eq": ["$bucket_start", "$$start"] }] };
    let fields = doc! { "$cond": [{ "$lt": ["$page", PAGES_MAX] }, fields(), []] };
    let all = doc! { "$concatArrays": [[{ "v": { "count": "$count" } }], fields] };
    vec![
        doc! { "$match": { "$expr": of_bucket } },
        doc! { "$project": { "page": 1, "first_ts": 1, "last_ts": 1, "f": all } },
        doc! { "$unwind": "$f" },
        doc! { "$group": {
            "_id": "$f.k",
            "min": { "$min": "$f.v.min" }, "max": { "$max": "$f.v.max" },
            "sum": { "$sum": "$f.v.sum" }, "count": { "$sum": "$f.v.count" },
            "page": { "$max": "$page" }, "first_ts": { "$min": "$first_ts" }, "last_ts": { "$max": "$last_ts" },
        } },
        // A missing name sorts before every name.
        doc! { "$sort": { "_id": 1 } },
        doc! { "$limit": FIELDS_MAX + 2 },
    ]
}

fn row_of_several_pages() -> Document {
    let about = |name: &str| doc! { "$arrayElemAt": [format!("$merged.{name}"), 0] };
    let summary = doc! { "$map": {
        "input": { "$slice": ["$merged", 1, FIELDS_MAX] }, "as": "f", "in": entry("$$f._id", "$$f"),
    } };
    let cut = doc! { "$or": [
        { "$gt": [{ "$size": "$merged" }, FIELDS_MAX + 1] }, { "$gte": [about("page"), PAGES_MAX] },
    ] };
    doc! { "$project": {
        "_id": 0, "sensor_id": 1, "bucket_start": 1, "readings_removed": 1,
        "count": about("count"), "first_ts": about("first_ts"), "last_ts": about("last_ts"),
        "summary": { "$arrayToObject": summary },
        "summary_truncated": { "$cond": [cut, true, "$$REMOVE"] },
    } }
}
