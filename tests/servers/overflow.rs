//! Field names that never repeat: the summary of a page has a size limit, and further fields go to
//! further pages, in both storage modes. Tests the stores' contract for that, the documents, and
//! everything that reads and repairs them; and the service itself with `HOURBUCKET_NAMES` of them
//! (250,000) from one sensor in one hour.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test, with figures"
)]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::support::mongod::{Mongod, unique_database};
use crate::support::service::Service;
use crate::support::stored::{self, Stored};
use crate::support::{block_on, setting, wait_until};
use futures_util::TryStreamExt;
use hourbucket::config;
use hourbucket::maintain::Selection;
use hourbucket::model::summary::{PAGE_SUMMARY_BYTES_MAX, summarise};
use hourbucket::model::{
    BucketKey, BucketStart, PageKind, PageWrite, RowFlags, Rows, Span, StorageMode, ValueRef,
};
use hourbucket::store::memory::MemoryStore;
use hourbucket::store::mongo::{ConvertOptions, MongoStore, ReconcileOptions};
use hourbucket::store::{LoadRequest, LoadedBucket, PageWriteResult, Store};
use mongodb::bson::{Bson, DateTime, Document, doc};

const HOUR: i64 = 3_600_000;
/// 2024-03-01T10:00:00Z
const START: BucketStart = BucketStart(1_709_287_200_000);
/// Fields per reading.
const FIELDS: i64 = 64;
/// Time between two readings: 4,000 of them in an hour.
const STEP: i64 = 800;

async fn mongo(test: &str, mode: config::StoreMode) -> (MongoStore, mongodb::Database) {
    let uri = config::Secret::new(Mongod::shared().uri());
    let database = unique_database(test);
    let settings = config::Store {
        uri,
        database,
        mode,
        ..config::Config::default().store
    };
    let client = mongodb::Client::with_uri_str(settings.uri.reveal())
        .await
        .unwrap();
    let database = client.database(&settings.database);
    let store = MongoStore::new(&settings, Span::HOUR, Duration::from_secs(3600))
        .await
        .unwrap();
    store.prepare().await.unwrap();
    (store, database)
}

/// A name of 128 bytes.
fn name(n: i64) -> String {
    format!("{n:06}-{}", "x".repeat(121))
}

/// Readings, each with a field `n` and 63 fields that no other reading has.
fn wide(range: std::ops::Range<i64>) -> Rows {
    let mut rows = Rows::default();
    for i in range {
        let names: Vec<String> = (1..FIELDS).map(|f| name(i * FIELDS + f)).collect();
        let mut values = vec![("n", ValueRef::Int(i))];
        values.extend(names.iter().map(|name| (name.as_str(), ValueRef::Int(i))));
        rows.push_named(START.0 + i * STEP, RowFlags::default(), &values);
    }
    rows
}

fn sent(sensor: &str, range: std::ops::Range<i64>) -> Vec<Stored> {
    range
        .map(|i| (sensor.to_owned(), START.0 + i * STEP, i))
        .collect()
}

fn statement(
    storage_mode: StorageMode,
    page: u32,
    kind: PageKind,
    seal: bool,
    rows: Rows,
) -> PageWrite {
    let sensor_id = "wide".into();
    let summary = summarise(&rows);
    PageWrite {
        sensor_id,
        start: START,
        page,
        kind,
        storage_mode,
        seal,
        tags: None,
        rows: rows.into(),
        summary,
        catalog: None,
    }
}

async fn write(store: &dyn Store, write: PageWrite) -> PageWriteResult {
    store.write(&[write]).await.unwrap().remove(0)
}

async fn load(store: &dyn Store, readings_from: Option<i64>, doubt: bool) -> LoadedBucket {
    let bucket = BucketKey {
        sensor_id: "wide".into(),
        start: START,
    };
    store
        .load(
            &[LoadRequest {
                bucket,
                readings_from,
                doubt,
            }],
            None,
        )
        .await
        .unwrap()
        .remove(0)
        .unwrap()
}

const CREATE: PageKind = PageKind::Create;
const AFTER: fn(u32) -> PageKind = |known_count| PageKind::Append { known_count };
const DONE: fn(u32) -> PageWriteResult = |count| PageWriteResult::Done { count };

fn counts(bucket: &LoadedBucket) -> Vec<(u32, bool)> {
    bucket
        .pages
        .iter()
        .map(|page| (page.count, page.sealed))
        .collect()
}

/// The behaviour of both stores with several pages in either mode.
async fn pages_of(store: &dyn Store, storage_mode: StorageMode) {
    let write_page = |page, kind, seal, range| {
        write(
            store,
            statement(storage_mode, page, kind, seal, wide(range)),
        )
    };
    assert_eq!(write_page(0, CREATE, false, 0..10).await, DONE(10));
    let one = load(store, None, false).await.pages.remove(0).summary_bytes;
    assert!(
        (116_608..116_620).contains(&one),
        "630 fields of 185 bytes, one of 58: {one}"
    );
    assert_eq!(write_page(0, AFTER(10), true, 10..11).await, DONE(11));
    assert_eq!(write_page(1, CREATE, false, 11..13).await, DONE(2));
    assert_eq!(write_page(1, AFTER(2), false, 13..14).await, DONE(3));
    // Sealed by a separate statement.
    assert_eq!(write_page(1, AFTER(3), true, 0..0).await, DONE(3));
    assert_eq!(write_page(2, CREATE, false, 14..15).await, DONE(1));
    let bucket = load(store, Some(START.0 + 12 * STEP), false).await;
    assert_eq!(
        (bucket.storage_mode, counts(&bucket)),
        (storage_mode, vec![(11, true), (3, true), (1, false)])
    );
    let mut times: Vec<i64> = bucket
        .pages
        .iter()
        .flat_map(|p| &p.keys)
        .map(|key| key.ts_ms - START.0)
        .collect();
    times.retain(|ts| *ts >= 12 * STEP);
    times.sort_unstable();
    assert_eq!(times, [12 * STEP, 13 * STEP, 14 * STEP]);
    assert_eq!(
        bucket.pages.iter().map(|page| page.last_ts_ms).max(),
        Some(START.0 + 14 * STEP)
    );
    assert_eq!(
        load(store, None, true).await.pages.len(),
        3,
        "nothing is in doubt"
    );
}

/// The summary of a time-series bucket with more names than fit in a page is recomputed over
/// several pages.
async fn recomputed(store: &dyn Store) {
    let series =
        |page, kind, range| statement(StorageMode::TimeSeries, page, kind, false, wide(range));
    assert_eq!(write(store, series(0, CREATE, 0..40)).await, DONE(40));
    // The writer does not know page 0. The load in doubt recomputes the summary, which does not fit
    // in one page.
    assert_eq!(
        write(store, series(0, AFTER(7), 40..100)).await,
        PageWriteResult::SummaryConflict
    );
    let bucket = load(store, None, true).await;
    let sums = |bucket: &LoadedBucket| bucket.pages.iter().map(|page| page.count).sum::<u32>();
    assert_eq!(sums(&bucket), 100);
    assert!(
        bucket
            .pages
            .iter()
            .all(|p| p.sealed && p.summary_bytes < PAGE_SUMMARY_BYTES_MAX + 100),
        "{bucket:?}"
    );
    let next = bucket.pages.len() as u32;
    assert_eq!(write(store, series(next, CREATE, 100..101)).await, DONE(1));
    assert_eq!(load(store, None, true).await.pages.len() as u32, next + 1);
    // A version that no longer exists.
    assert_eq!(
        write(store, series(next, CREATE, 101..102)).await,
        PageWriteResult::SummaryConflict
    );
    let again = load(store, Some(START.0 + 99 * STEP), true).await;
    assert_eq!((sums(&again), again.pages[0].keys.len()), (102, 3));
    assert!(again.pages.iter().all(|page| page.sealed));
}

#[tokio::test]
async fn the_memory_store_keeps_the_contract() {
    pages_of(&MemoryStore::new(), StorageMode::Bucket).await;
    for test in [0, 1] {
        let store = MemoryStore::new().with_storage_mode(StorageMode::TimeSeries);
        match test {
            0 => pages_of(&store, StorageMode::TimeSeries).await,
            _ => recomputed(&store).await,
        }
        store.pages().check(1000).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mongodb_keeps_the_contract() {
    let uri = Mongod::shared().uri();
    let (store, db) = mongo("wide_pages", config::StoreMode::Bucket).await;
    pages_of(&store, StorageMode::Bucket).await;
    stored::exactly_once(&stored::readings(&uri, db.name()), sent("wide", 0..15));
    let (store, db) = mongo("wide_series", config::StoreMode::Timeseries).await;
    pages_of(&store, StorageMode::TimeSeries).await;
    stored::exactly_once(&stored::readings(&uri, db.name()), sent("wide", 0..15));
    let (store, db) = mongo("wide_recomputed", config::StoreMode::Timeseries).await;
    recomputed(&store).await;
    stored::exactly_once(&stored::readings(&uri, db.name()), sent("wide", 0..102));
}

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

#[tokio::test(flavor = "multi_thread")]
async fn a_document_of_16_mb_from_an_earlier_version_continues_on_further_pages() {
    let (store, db) = mongo("wide_legacy", config::StoreMode::Timeseries).await;
    let buckets = db.collection::<Document>("sensor_buckets");
    assert_eq!(
        write(
            &store,
            statement(StorageMode::TimeSeries, 0, CREATE, false, wide(0..1))
        )
        .await,
        DONE(1)
    );
    // 16 MiB minus five bytes: not even `has_overflow` fits.
    let mut page = buckets.find_one(page_of(0)).await.unwrap().unwrap();
    let field = doc! { "min": 1i64, "max": 1i64, "sum": 1i64, "count": 1 };
    page.insert(
        "summary",
        (0..90_600)
            .map(|n| (name(n), Bson::from(field.clone())))
            .collect::<Document>(),
    );
    page.insert("tags", doc! { "pad": "" });
    let left = (16 << 20) - 5 - page.to_vec().unwrap().len();
    page.insert("tags", doc! { "pad": "x".repeat(left) });
    buckets.delete_one(page_of(0)).await.unwrap();
    buckets.insert_one(page).await.unwrap();
    assert!(load(&store, None, false).await.pages[0].summary_bytes > 16_700_000);
    let more = statement(StorageMode::TimeSeries, 0, AFTER(1), false, wide(1..100));
    assert_eq!(write(&store, more).await, PageWriteResult::SummaryConflict);
    load(&store, None, true).await;
    stored::exactly_once(
        &stored::readings(&Mongod::shared().uri(), db.name()),
        sent("wide", 0..100),
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

async fn rows(db: &mongodb::Database, filter: Document) -> BTreeMap<String, Document> {
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
    let reconcile = |repair| ReconcileOptions {
        selection: selection.clone(),
        repair,
        drop_duplicates: false,
        ignore_duplicates: false,
        leftovers: true,
        now_ms: START.0,
        settled_before_ms: 0,
        listed_max: 10,
        page: (1000, 1 << 20),
    };
    let report = store.reconcile(&reconcile(false)).await.unwrap();
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
    let report = store.reconcile(&reconcile(false)).await.unwrap();
    assert_eq!(report.differences, 1, "{report:?}");
    let report = store.reconcile(&reconcile(true)).await.unwrap();
    assert_eq!((report.differences, report.repaired), (1, 1), "{report:?}");
    stored::exactly_once(&stored::readings(&uri, db.name()), sent("wide", 0..100));
    buckets.delete_one(page_of(1)).await.unwrap();
    let report = store.reconcile(&reconcile(true)).await.unwrap();
    assert!(report.is_equal() && report.repaired > 0, "{report:?}");
    stored::exactly_once(&stored::readings(&uri, db.name()), sent("wide", 0..100));
    for (into, forms) in [(StorageMode::Bucket, 0), (StorageMode::TimeSeries, 1)] {
        let options = ConvertOptions {
            selection: selection.clone(),
            ended_before_ms: START.0 + HOUR,
            into,
            page: (1000, 1 << 20),
            drop_leftovers: true,
            hook: None,
        };
        let done = store.convert(&options, |_| {}).await.unwrap();
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
        let report = store.reconcile(&reconcile(false)).await.unwrap();
        assert_eq!(report.differences, 0, "{report:?}");
    }
}

/// The number of names that are sent to the service.
fn names() -> i64 {
    setting("HOURBUCKET_NAMES", 250_000)
}

/// The size of the largest document of `sensor_buckets`.
async fn largest(db: &mongodb::Database) -> i64 {
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

/// A database; each runtime needs its own client.
async fn database_of(name: &str) -> mongodb::Database {
    mongodb::Client::with_uri_str(Mongod::shared().uri())
        .await
        .unwrap()
        .database(name)
}

/// Readings with 63 new names each, and their `n`; 60 readings per body, which may have 4,096
/// names.
fn bodies(from: i64, to: i64) -> Vec<(String, std::ops::Range<i64>)> {
    let line = |i: i64| {
        let names: String = (1..FIELDS)
            .map(|f| format!(",\"{}\":{i}", name(i * FIELDS + f)))
            .collect();
        format!(
            "{{\"sensor_id\":\"wide\",\"ts\":{},\"n\":{i}{names}}}\n",
            START.0 + i * 10
        )
    };
    let body = |first: i64| (first..(first + 60).min(to)).map(line).collect::<String>();
    (from..to)
        .step_by(60)
        .map(|first| (body(first), first..(first + 60).min(to)))
        .collect()
}

/// Repeats a body until there is an answer: connections from before the restart are broken.
fn post(service: &Service, body: &str) {
    let answer = wait_until("an answer", Duration::from_secs(60), || {
        service
            .post("/v1/readings", "application/x-ndjson", body.as_bytes())
            .filter(|(status, _)| *status != 429)
    });
    assert!(
        answer.0 == 200 && answer.1.contains("\"rejected\":0"),
        "{answer:?}"
    );
}

/// Sends one reading of each of 40 other sensors.
fn post_others(service: &Service, round: i64) -> Vec<Stored> {
    let readings: Vec<Stored> = (0..40)
        .map(|s| (format!("s{s}"), START.0 + round * 1000, round))
        .collect();
    let lines: String = readings
        .iter()
        .map(|(s, ts, n)| format!("{{\"sensor_id\":\"{s}\",\"ts\":{ts},\"n\":{n}}}\n"))
        .collect();
    post(service, &lines);
    readings
}

/// Sends names, kills the service halfway, and checks the stored documents.
fn never_repeating_names(mode: &str) {
    let uri = Mongod::shared().uri();
    let database = unique_database(mode);
    let max_age = Duration::from_secs(2);
    let readings = names() / (FIELDS - 1) + 1;
    let text = format!(
        "store.mode = \"{mode}\"\nflush.max_age = \"{}s\"\nlimits.past = \"2000d\"\n\
         limits.bucket_fields_max = 1000000\nlog.level = \"info\"\n",
        max_age.as_secs()
    );
    let mut service = Service::start(
        &text,
        &[("STORE__URI", &uri), ("STORE__DATABASE", &database)],
    );
    let stored_of = |sensors: &str, round: i64| {
        let collection = if mode == "timeseries" {
            "sensor_readings"
        } else {
            "sensor_buckets"
        };
        let (id, n) = if mode == "timeseries" {
            ("meta.sensor_id", "n")
        } else {
            ("sensor_id", "readings.n")
        };
        let filter = doc! { id: { "$regex": sensors }, n: round };
        block_on(async {
            database_of(&database)
                .await
                .collection::<Document>(collection)
                .count_documents(filter)
                .await
                .unwrap()
        })
    };
    let mut all = vec![];
    let mut waited = Duration::ZERO;
    for half in 0..2i64 {
        for (body, range) in bodies(half * readings / 2, (half + 1) * readings / 2) {
            post(&service, &body);
            all.extend(range.map(|i| ("wide".to_owned(), START.0 + i * 10, i)));
        }
        if half == 0 {
            // Some of it is in flight.
            std::thread::sleep(max_age);
            service.restart();
        }
        for round in half * 10..half * 10 + 3 {
            let begun = Instant::now();
            all.extend(post_others(&service, round));
            wait_until(
                "innocent readings are stored",
                max_age + Duration::from_secs(15),
                || (stored_of("^s", round) == 40).then_some(()),
            );
            waited = waited.max(begun.elapsed());
        }
    }
    wait_until("everything is stored", Duration::from_secs(600), || {
        let metrics = service.metrics();
        (metrics.get("readings_in_flight") == 0.0).then_some(())
    });
    let stored = stored::readings(&uri, &database);
    stored::exactly_once(&stored, all);
    let largest = block_on(async { largest(&database_of(&database).await).await });
    println!(
        "{mode}: {} names, largest document {largest} bytes, others waited {waited:?}",
        names()
    );
    // A summary of 1 MiB; in bucket mode also `bucket.max_bytes` of readings.
    assert!(
        largest < if mode == "bucket" { 5 << 19 } else { 2 << 20 },
        "{largest}"
    );
    let from = START.0 / 1000;
    let to = START.0 / 1000 + 3600;
    let (status, answer) = service
        .get_admin(&format!("/v1/sensors/wide/hourly?from={from}&to={to}"))
        .unwrap();
    assert_eq!(status, 200, "{answer}");
    let hour: serde_json::Value = serde_json::from_str(&answer).unwrap();
    let bucket = &hour["buckets"][0];
    assert_eq!(bucket["count"], readings, "{}", &answer[..300]);
    assert_eq!(bucket["summary_truncated"], names() > 16_384);
    let row = block_on(async { rows(&database_of(&database).await, doc! {}).await })
        .remove("wide")
        .unwrap();
    assert_eq!(i64::from(row.get_i32("count").unwrap()), readings);
}

#[test]
fn names_that_never_repeat_are_stored_in_time_series_mode() {
    never_repeating_names("timeseries");
}

#[test]
fn names_that_never_repeat_are_stored_in_bucket_mode() {
    never_repeating_names("bucket");
}
