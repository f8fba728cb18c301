//! Field names that never repeat, in MongoDB's documents: their size, and everything that reads and
//! repairs them, namely the recomputation of a summary, the view, `reconcile` and `convert`.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;

use crate::support::mongod::Mongod;
use crate::support::stored;
use futures_util::TryStreamExt;
use model::StorageMode;
use mongodb::bson::{Bson, DateTime, Document, doc};
use store::PageWriteResult;
use store::maintain::{PageSize, Selection};
use store::mongo::{ConvertOptions, ReconcileOptions};

use super::overflow::{
    AFTER, CREATE, DONE, FIELDS, START, load, mongo, name, sent, statement, wide, write,
};

const HOUR: i64 = 3_600_000;
const PAGE: PageSize = PageSize {
    readings_max: 1000,
    bytes_max: 1 << 20,
};

/// The filter for page `n` of the sensor `wide`.
fn page_of(n: i32) -> Document {
    doc! { "sensor_id": "wide", "page": n }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_recomputation_is_repeated() {
    let (store, db) = mongo("wide_crash", config::StoreMode::Timeseries).await;
    let buckets = db.collection::<Document>("sensor_buckets");
    assert_eq!(
        write(
            &store,
            statement(StorageMode::TimeSeries, 0, CREATE, false, wide(0..40))
        )
        .await,
        DONE(40)
    );
    let late = statement(StorageMode::TimeSeries, 0, AFTER(7), false, wide(40..100));
    assert_eq!(write(&store, late).await, PageWriteResult::SummaryConflict);
    load(&store, None, true).await;
    // The state after a crash: the counts add up to too much, and some fields are missing. And page
    // 0 was deleted manually.
    let half = doc! { "$inc": { "count": 5 }, "$set": { "summary": {} } };
    buckets.update_one(page_of(1), half).await.unwrap();
    for page_0_is_there in [true, false] {
        if !page_0_is_there {
            buckets.delete_one(page_of(0)).await.unwrap();
        }
        let bucket = load(&store, None, true).await;
        assert_eq!(bucket.pages.iter().map(|page| page.count).sum::<u32>(), 100);
        stored::exactly_once(
            &stored::readings(&Mongod::shared().uri(), db.name()),
            sent("wide", 0..100),
        );
    }
}

/// More fields than are held in memory together: they are written in two passes.
#[tokio::test(flavor = "multi_thread")]
async fn a_quarter_of_a_million_names_are_recomputed() {
    let (store, db) = mongo("wide_passes", config::StoreMode::Timeseries).await;
    let buckets = db.collection::<Document>("sensor_buckets");
    let readings = 250_000 / (FIELDS - 1) + 1;
    // `n` and 80 times 63 names of 185 bytes: a page.
    for (page, first) in (0..readings).step_by(80).enumerate() {
        let rows = wide(first..(first + 80).min(readings));
        let count = rows.len() as u32;
        let write_page = statement(StorageMode::TimeSeries, page as u32, CREATE, true, rows);
        assert_eq!(write(&store, write_page).await, DONE(count));
    }
    buckets.delete_many(doc! {}).await.unwrap();
    let bucket = load(&store, None, true).await;
    assert_eq!(
        bucket
            .pages
            .iter()
            .map(|page| i64::from(page.count))
            .sum::<i64>(),
        readings
    );
    assert!(bucket.pages.len() >= 45, "{} pages", bucket.pages.len());
    assert!(largest(&db).await < (1 << 20) + 1000);
    stored::exactly_once(
        &stored::readings(&Mongod::shared().uri(), db.name()),
        sent("wide", 0..readings),
    );
}

/// A document in time-series mode with these fields, written by the test.
fn document(sensor: &str, page: i32, fields: std::ops::Range<i64>, sealed: bool) -> Document {
    let start = DateTime::from_millis(START.0);
    let field = doc! { "min": 1i64, "max": 3i64, "sum": 4i64, "count": 2 };
    let summary: Document = fields
        .map(|n| (name(n), Bson::from(field.clone())))
        .collect();
    let mut document = doc! {
        "_id": { "sensor_id": sensor, "bucket_start": start, "page": page },
        "schema_version": 1, "sensor_id": sensor, "bucket_start": start,
        "bucket_end": DateTime::from_millis(START.0 + HOUR), "page": page, "tags": {}, "count": 10 + page,
        "first_ts": DateTime::from_millis(START.0 + i64::from(page)),
        "last_ts": DateTime::from_millis(START.0 + 1000 + i64::from(page)),
        "summary": summary, "storage": "timeseries",
    };
    if sealed {
        document.insert("has_overflow", true);
    }
    document
}

pub(super) async fn rows(db: &mongodb::Database, filter: Document) -> BTreeMap<String, Document> {
    let cursor = db
        .collection::<Document>("sensor_summaries")
        .find(filter)
        .await
        .unwrap();
    let rows: Vec<Document> = cursor.try_collect().await.unwrap();
    rows.into_iter()
        .map(|row| (row.get_str("sensor_id").unwrap().to_owned(), row))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_with_too_many_fields_for_a_row_of_the_view_affects_no_other() {
    let (_, db) = mongo("wide_view", config::StoreMode::Timeseries).await;
    let buckets = db.collection::<Document>("sensor_buckets");
    buckets
        .insert_one(document("good", 0, 0..3, false))
        .await
        .unwrap();
    // Fields of several pages are merged.
    buckets
        .insert_one(document("two", 0, 0..3, true))
        .await
        .unwrap();
    buckets
        .insert_one(document("two", 1, 2..5, false))
        .await
        .unwrap();
    // 250,000 names; and one document of the maximum size, from before the limit.
    for page in 0..50 {
        let fields = i64::from(page) * 5000;
        buckets
            .insert_one(document("poison", page, fields..fields + 5000, page < 49))
            .await
            .unwrap();
    }
    buckets
        .insert_one(document("huge", 0, 0..90_000, false))
        .await
        .unwrap();
    let found = rows(&db, doc! {}).await;
    assert_eq!(found.len(), 4);
    let good = &found["good"];
    let two = &found["two"];
    assert_eq!(
        (
            good.get_i32("count").unwrap(),
            good.get_document("summary").unwrap().len()
        ),
        (10, 3)
    );
    let fields = two.get_document("summary").unwrap();
    assert_eq!((two.get_i32("count").unwrap(), fields.len()), (21, 5));
    let both = doc! { "min": 1i64, "max": 3i64, "sum": 8i64, "count": 4, "avg": 2.0 };
    assert_eq!(fields.get_document(name(2)).unwrap(), &both);
    let one = doc! { "min": 1i64, "max": 3i64, "sum": 4i64, "count": 2, "avg": 2.0 };
    assert_eq!(fields.get_document(name(4)).unwrap(), &one);
    assert_eq!(
        good.get_document("summary")
            .unwrap()
            .get_document(name(1))
            .unwrap(),
        &one
    );
    for row in [good, two] {
        assert!(!row.contains_key("summary_truncated"), "{row}");
        assert_eq!(
            row.get_datetime("first_ts").unwrap().timestamp_millis(),
            START.0
        );
    }
    assert_eq!(
        two.get_datetime("last_ts").unwrap().timestamp_millis(),
        START.0 + 1001
    );
    let widest = &found["poison"];
    assert_eq!(
        widest.get_i32("count").unwrap(),
        (0..50).map(|page| 10 + page).sum::<i32>(),
        "of all pages"
    );
    assert_eq!(
        widest.get_datetime("last_ts").unwrap().timestamp_millis(),
        START.0 + 1049
    );
    for row in [widest, &found["huge"]] {
        assert_eq!(row.get_document("summary").unwrap().len(), 16_384);
        assert!(row.get_bool("summary_truncated").unwrap());
    }
    assert_eq!(
        rows(
            &db,
            doc! { "sensor_id": "two", "bucket_start": { "$gte": DateTime::from_millis(START.0) } }
        )
        .await
        .len(),
        1
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn reconcile_and_convert_know_the_pages_of_a_time_series_bucket() {
    let uri = Mongod::shared().uri();
    let (store, db) = mongo("wide_maintain", config::StoreMode::Timeseries).await;
    let buckets = db.collection::<Document>("sensor_buckets");
    for (page, range) in [(0, 0..50), (1, 50..90), (2, 90..100)] {
        let seal = page < 2;
        let count = range.end - range.start;
        assert_eq!(
            write(
                &store,
                statement(StorageMode::TimeSeries, page, CREATE, seal, wide(range))
            )
            .await,
            DONE(count as u32)
        );
    }
    let selection = Selection {
        from_ms: START.0,
        to_ms: START.0 + HOUR,
        sensors: vec![],
    };
    let reconcile = async |repair| {
        let options = ReconcileOptions {
            selection: selection.clone(),
            repair,
            drop_duplicates: false,
            ignore_duplicates: false,
            leftovers: true,
            now_ms: START.0,
            settled_before_ms: 0,
            listed_max: 10,
            page: PAGE,
        };
        store.maintenance().reconcile(&options).await.unwrap()
    };
    let report = reconcile(false).await;
    assert_eq!(
        (
            report.buckets,
            report.documents,
            report.readings,
            report.differences
        ),
        (1, 3, 100, 0),
        "{report:?}"
    );
    buckets
        .update_one(page_of(1), doc! { "$inc": { "summary.n.sum": 1 } })
        .await
        .unwrap();
    let report = reconcile(false).await;
    assert_eq!(report.differences, 1, "{report:?}");
    let report = reconcile(true).await;
    assert_eq!((report.differences, report.repaired), (1, 1), "{report:?}");
    stored::exactly_once(&stored::readings(&uri, db.name()), sent("wide", 0..100));
    buckets.delete_one(page_of(1)).await.unwrap();
    let report = reconcile(true).await;
    assert!(report.is_equal() && report.repaired > 0, "{report:?}");
    stored::exactly_once(&stored::readings(&uri, db.name()), sent("wide", 0..100));
    for (into, forms) in [(StorageMode::Bucket, 0), (StorageMode::TimeSeries, 1)] {
        let options = ConvertOptions {
            selection: selection.clone(),
            ended_before_ms: START.0 + HOUR,
            into,
            page: PAGE,
            drop_leftovers: true,
            hook: None,
        };
        let done = store.maintenance().convert(&options, |_| {}).await.unwrap();
        assert_eq!(
            (done.buckets, done.readings, done.skipped_total),
            (1, 100, 0),
            "{done:?}"
        );
        stored::exactly_once(&stored::readings(&uri, db.name()), sent("wide", 0..100));
        let found: Vec<Document> = buckets
            .find(doc! {})
            .await
            .unwrap()
            .try_collect()
            .await
            .unwrap();
        assert!(
            found.len() > 1
                && found
                    .iter()
                    .all(|page| page.contains_key("storage") == (forms == 1))
        );
        let report = reconcile(false).await;
        assert_eq!(report.differences, 0, "{report:?}");
    }
}

/// The size of the largest document of `sensor_buckets`.
pub(super) async fn largest(db: &mongodb::Database) -> i64 {
    let size = doc! { "$group": { "_id": null, "max": { "$max": { "$bsonSize": "$$ROOT" } } } };
    let found = db
        .collection::<Document>("sensor_buckets")
        .aggregate([size])
        .await
        .unwrap();
    let found: Vec<Document> = found.try_collect().await.unwrap();
    found
        .first()
        .map_or(0, |row| i64::from(row.get_i32("max").unwrap()))
}
