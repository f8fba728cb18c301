//! The view `sensor_summaries`: one row for each sensor and bucket, its pages merged, averages added.
//!
//! **Cost.** It begins with page 0 and looks the others up; a `$group` over all pages would read the whole collection before
//! its first row, and a filter on the view's sensor or time would not reach the index. Most buckets have one page: their
//! lookup asks the index for pages that cannot be, and finds none. Those that are sealed are looked up from page 0 on, and
//! their fields grouped by name, so that a bucket costs by its fields and not by their square.
//!
//! **Bounds.** A row is a document, and so below 16 MiB, whatever names have arrived; a row beyond that would end the
//! query, for the rows of all other sensors too. So the row of a bucket shows the fields of its first [`PAGES_MAX`] pages, and
//! of these the first [`FIELDS_MAX`] by name. If it leaves any out it says `summary_truncated: true`; then the summary of
//! a field may lack what stands in later pages. `count`, `first_ts` and `last_ts` are always those of all pages.

use mongodb::bson::{Bson, Document, doc};

use super::pack::BUCKETS;

/// Pages whose fields a row shows. A summary takes [`crate::model::summary::PAGE_SUMMARY_BYTES_MAX`], 1 MiB, and as an
/// array with averages less than twice that: 8 MiB for all of them, in what `$lookup` may hand over (16 MiB).
const PAGES_MAX: i32 = 4;
/// Fields of a row: with names of 128 bytes, 200 bytes each, 3.2 MB.
const FIELDS_MAX: i32 = 16_384;
/// A page that no bucket has.
const NO_PAGE: i32 = i32::MAX;

/// The pipeline of the view, on the collection of pages.
pub(super) fn summaries_pipeline() -> Vec<Document> {
    let merged = doc! { "$gt": [{ "$size": "$merged" }, 0] };
    // The first of the groups has no name: it is about the pages.
    let either = |name: &str| {
        let of_all = doc! { "$arrayElemAt": [format!("$merged.{name}"), 0] };
        doc! { "$cond": [merged.clone(), of_all, format!("${name}")] }
    };
    let of_merged = doc! { "$slice": ["$merged", 1, FIELDS_MAX + 1] };
    let own = doc! { "$map": {
        "input": { "$slice": [fields_of("$summary"), FIELDS_MAX + 1] },
        "as": "f",
        // Whatever stands there: an expression that fails would end the query for all.
        "in": { "$let": {
            "vars": { "sum": { "$sum": "$$f.v.sum" }, "count": { "$sum": "$$f.v.count" } },
            "in": { "k": "$$f.k", "v": {
                "min": "$$f.v.min", "max": "$$f.v.max", "sum": "$$sum", "count": "$$count",
                "avg": average("$$sum", "$$count"),
            } },
        } },
    } };
    let cut = doc! { "$or": [
        { "$gt": [{ "$size": "$fields" }, FIELDS_MAX] }, { "$gt": ["$last_page", PAGES_MAX - 1] },
    ] };
    let shown = doc! { "$map": {
        "input": { "$slice": ["$fields", FIELDS_MAX] }, "as": "f", "in": { "k": "$$f.k", "v": "$$f.v" },
    } };
    vec![
        doc! { "$match": { "page": 0 } },
        doc! { "$lookup": {
            "from": BUCKETS,
            "let": {
                "sensor": "$sensor_id", "start": "$bucket_start",
                "from": { "$cond": [{ "$eq": ["$has_overflow", true] }, 0, NO_PAGE] },
            },
            "pipeline": all_pages(),
            "as": "merged",
        } },
        doc! { "$project": {
            "_id": 0, "sensor_id": 1, "bucket_start": 1,
            "count": either("count"), "first_ts": either("first_ts"), "last_ts": either("last_ts"),
            "last_page": either("page"),
            "fields": { "$cond": [merged, of_merged, own] },
        } },
        doc! { "$project": {
            "sensor_id": 1, "bucket_start": 1, "count": 1, "first_ts": 1, "last_ts": 1,
            "summary": { "$arrayToObject": shown },
            "summary_truncated": { "$cond": [cut, true, "$$REMOVE"] },
        } },
    ]
}

/// `summary` as an array of names and values.
fn fields_of(summary: &str) -> Document {
    doc! { "$objectToArray": { "$ifNull": [summary, {}] } }
}

fn average(sum: &str, count: &str) -> Document {
    doc! { "$cond": [{ "$gt": [count, 0] }, { "$divide": [sum, count] }, null] }
}

const NULL: Bson = Bson::Null;

/// All pages of a bucket as one array: what is about all of them, and then their fields by name, merged.
fn all_pages() -> Vec<Document> {
    let of_bucket = doc! { "$and": [
        { "$eq": ["$sensor_id", "$$sensor"] }, { "$eq": ["$bucket_start", "$$start"] }, { "$gte": ["$page", "$$from"] },
    ] };
    let about = doc! { "k": NULL, "v": { "count": "$count" } };
    let fields = doc! { "$cond": [{ "$lt": ["$page", PAGES_MAX] }, fields_of("$summary"), []] };
    vec![
        doc! { "$match": { "$expr": of_bucket } },
        doc! { "$project": {
            "page": 1, "first_ts": 1, "last_ts": 1, "f": { "$concatArrays": [[about], fields] },
        } },
        doc! { "$unwind": "$f" },
        doc! { "$group": {
            "_id": "$f.k",
            "page": { "$max": "$page" }, "first_ts": { "$min": "$first_ts" }, "last_ts": { "$max": "$last_ts" },
            "min": { "$min": "$f.v.min" }, "max": { "$max": "$f.v.max" },
            "sum": { "$sum": "$f.v.sum" }, "count": { "$sum": "$f.v.count" },
        } },
        // Nothing comes before every name.
        doc! { "$sort": { "_id": 1 } },
        doc! { "$limit": FIELDS_MAX + 2 },
        doc! { "$project": {
            "_id": 0,
            "k": "$_id",
            "page": of_first("$page"), "count": of_first("$count"),
            "first_ts": of_first("$first_ts"), "last_ts": of_first("$last_ts"),
            "v": { "$cond": [{ "$eq": ["$_id", null] }, "$$REMOVE", {
                "min": "$min", "max": "$max", "sum": "$sum", "count": "$count", "avg": average("$sum", "$count"),
            }] },
        } },
    ]
}

/// Only where it is about the pages: each field would carry it otherwise.
fn of_first(value: &str) -> Document {
    doc! { "$cond": [{ "$eq": ["$_id", null] }, value, "$$REMOVE"] }
}
