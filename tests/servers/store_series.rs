//! Time-series buckets, the part of the store's contract without pages: against the memory store
//! and a real MongoDB; and the documented form of the documents.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::support::mongod::{Mongod, unique_database};
use futures_util::TryStreamExt;
use model::batch::Tags;
use model::summary::summarise;
use model::{
    BatchBuilder, BucketKey, BucketStart, Gate, PageKind, PageWrite, Reading, Rows, Span,
    StorageMode, Value, ValueRef,
};
use mongodb::bson::{DateTime, Document, doc};
use store::mongo::MongoStore;
use store::{LoadRequest, LoadResult, LoadedBucket, PageWriteResult, Store, StoreError};
use testkit::memory_store::MemoryStore;

const HOUR: i64 = 3_600_000;
/// 2024-03-01T10:00:00Z
const START: BucketStart = BucketStart(1_709_287_200_000);

async fn mongo(test: &str) -> (MongoStore, mongodb::Database) {
    let uri = config::Secret::new(Mongod::shared().uri());
    let database = unique_database(test);
    let settings = config::Store {
        uri,
        database,
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
    assert_eq!(
        (store.mode(), store.storage_mode()),
        ("timeseries", StorageMode::TimeSeries)
    );
    (store, database)
}

fn temps(range: std::ops::Range<i64>) -> Vec<Reading> {
    let values = |i: i64| {
        BTreeMap::from([
            ("temp".into(), Value::Double(i as f64 / 2.0)),
            ("n".into(), Value::Int(i)),
        ])
    };
    let of = |i: i64| Reading {
        sensor_id: String::new(),
        ts_ms: START.0 + i * 1000,
        receipt_time: false,
        tags: BTreeMap::new(),
        values: values(i),
    };
    range.map(of).collect()
}

fn write_of(sensor: &str, kind: PageKind, readings: &[Reading]) -> PageWrite {
    let mut rows = Rows::default();
    readings.iter().for_each(|r| rows.push_reading(r));
    let summary = summarise(&rows);
    let storage_mode = StorageMode::TimeSeries;
    let sensor_id = sensor.into();
    PageWrite {
        sensor_id,
        start: START,
        page: 0,
        kind,
        storage_mode,
        seal: false,
        tags: None,
        rows: rows.into(),
        summary,
        catalog: None,
    }
}

async fn write(store: &dyn Store, write: PageWrite) -> PageWriteResult {
    store.write(&[write]).await.unwrap().remove(0)
}

fn found(answers: Result<Vec<LoadResult>, StoreError>) -> Vec<LoadedBucket> {
    answers.unwrap().into_iter().map(Result::unwrap).collect()
}

async fn load(
    store: &dyn Store,
    sensor: &str,
    readings_from: Option<i64>,
    doubt: bool,
) -> LoadedBucket {
    let bucket = BucketKey {
        sensor_id: sensor.into(),
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

const DONE_3: PageWriteResult = PageWriteResult::Done { count: 3 };
const AFTER: fn(u32) -> PageKind = |known_count| PageKind::Append {
    known_count,
    gate: Gate::Closes,
};

/// The behaviour that both stores must have.
async fn contract(store: &dyn Store) {
    let all = temps(0..10);
    assert_eq!(
        write(store, write_of("a", PageKind::Create, &all[..3])).await,
        DONE_3
    );
    assert_eq!(
        write(store, write_of("a", AFTER(3), &all[3..5])).await,
        PageWriteResult::Done { count: 5 }
    );
    let bucket = load(store, "a", None, false).await;
    assert_eq!(
        (
            bucket.storage_mode,
            bucket.pages.len(),
            bucket.pages[0].count
        ),
        (StorageMode::TimeSeries, 1, 5)
    );
    assert_eq!(
        (bucket.pages[0].last_ts_ms, bucket.pages[0].sealed),
        (all[4].ts_ms, false)
    );
    let mut bucket = load(store, "a", Some(all[2].ts_ms), false).await;
    bucket.pages[0].keys.sort();
    assert_eq!(
        bucket.pages[0].keys,
        all[2..5].iter().map(Reading::key).collect::<Vec<_>>()
    );
    // The expected version was wrong: the measurements are stored, and a load in doubt corrects the
    // summary.
    assert_eq!(
        write(store, write_of("a", AFTER(4), &all[5..6])).await,
        PageWriteResult::SummaryConflict
    );
    assert_eq!(
        write(store, write_of("a", PageKind::Create, &all[6..8])).await,
        PageWriteResult::SummaryConflict
    );
    assert_eq!(load(store, "a", None, false).await.pages[0].count, 5);
    assert_eq!(load(store, "a", None, true).await.pages[0].count, 8);
    assert_eq!(
        write(store, write_of("a", AFTER(8), &all[8..9])).await,
        PageWriteResult::Done { count: 9 }
    );
    // Measurements are inserted without a version check.
    assert_eq!(
        write(store, write_of("a", AFTER(9), &all[8..9])).await,
        PageWriteResult::Done { count: 10 }
    );
    let bucket = load(store, "a", Some(all[8].ts_ms), true).await;
    assert_eq!((bucket.pages[0].count, bucket.pages[0].keys.len()), (10, 2));
    for doubt in [false, true] {
        let nothing = load(store, "unknown", Some(i64::MIN), doubt).await;
        assert!(nothing.pages.is_empty() && nothing.storage_mode == StorageMode::TimeSeries);
    }
    // Pages and measurements of different sensors in one batch, as after a change of mode.
    let pages = PageWrite {
        storage_mode: StorageMode::Bucket,
        ..write_of("p", PageKind::Create, &all[..2])
    };
    let batch = [
        pages,
        write_of("b", PageKind::Create, &all[..3]),
        write_of("c", AFTER(7), &all[..3]),
    ];
    // The page of "c" that was appended to does not exist.
    assert_eq!(
        store.write(&batch).await.unwrap(),
        [
            PageWriteResult::Done { count: 2 },
            DONE_3,
            PageWriteResult::SummaryConflict
        ]
    );
    assert_eq!(
        load(store, "p", None, true).await.storage_mode,
        StorageMode::Bucket
    );
    let requests = ["p", "b", "c"].map(|s| LoadRequest {
        bucket: BucketKey {
            sensor_id: s.into(),
            start: START,
        },
        readings_from: Some(START.0),
        doubt: s != "b",
    });
    let loaded = found(store.load(&requests, None).await);
    let counts: Vec<_> = loaded
        .iter()
        .map(|b| (b.pages[0].count, b.pages[0].keys.len()))
        .collect();
    assert_eq!(counts, [(2, 2), (3, 3), (3, 3)]);
}

#[tokio::test]
async fn the_memory_store_keeps_the_contract() {
    let store = MemoryStore::new().with_storage_mode(StorageMode::TimeSeries);
    contract(&store).await;
    // A process was killed between measurements and summary.
    let late = temps(3..5);
    store.pages().insert(&write_of("b", AFTER(3), &late));
    store
        .pages()
        .insert(&write_of("new", PageKind::Create, &late));
    assert_eq!(load(&store, "b", None, false).await.pages[0].count, 3);
    assert_eq!(load(&store, "b", None, true).await.pages[0].count, 5);
    assert_eq!(load(&store, "new", None, true).await.pages[0].count, 2);
    store.pages().check(1000).unwrap();
}

/// A summary as seen by the tests of the store.
async fn summary(db: &mongodb::Database, sensor: &str) -> Document {
    let found = db
        .collection::<Document>("sensor_buckets")
        .find_one(doc! { "sensor_id": sensor })
        .await
        .unwrap();
    found.unwrap_or_else(|| panic!("no document of {sensor}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn mongodb_keeps_the_contract() {
    let (store, db) = mongo("series").await;
    contract(&store).await;
    let a = summary(&db, "a").await;
    let expected = doc! {
        "n": { "min": 0i64, "max": 8i64, "sum": 44i64, "count": 10 },
        "temp": { "min": 0.0, "max": 4.0, "sum": 22.0, "count": 10 },
    };
    assert_eq!(a.get_document("summary").unwrap(), &expected);
    assert_eq!(
        (a.get_i32("count").unwrap(), a.get_str("storage").unwrap()),
        (10, "timeseries")
    );
    // A process was killed between measurements and summary, or before there was one.
    let measurement = |sensor: &str, r: &Reading| {
        doc! { "ts": DateTime::from_millis(r.ts_ms), "meta": { "sensor_id": sensor, "tags": { "site": "x" } },
        "n": 7i64, "temp": 1.5 }
    };
    let readings = db.collection::<Document>("sensor_readings");
    for sensor in ["b", "new"] {
        readings
            .insert_many(temps(3..5).iter().map(|r| measurement(sensor, r)))
            .await
            .unwrap();
    }
    assert_eq!(load(&store, "b", None, false).await.pages[0].count, 3);
    let bucket = load(&store, "b", Some(START.0 + 3000), true).await;
    assert_eq!((bucket.pages[0].count, bucket.pages[0].keys.len()), (5, 2));
    let temp = doc! { "min": 0.0, "max": 1.5, "sum": 4.5, "count": 5 };
    assert_eq!(
        summary(&db, "b")
            .await
            .get_document("summary")
            .unwrap()
            .get_document("temp")
            .unwrap(),
        &temp
    );
    assert!(load(&store, "new", None, false).await.pages.is_empty());
    let bucket = load(&store, "new", None, true).await;
    assert_eq!(
        (
            bucket.storage_mode,
            bucket.pages[0].count,
            bucket.pages[0].last_ts_ms
        ),
        (StorageMode::TimeSeries, 2, START.0 + 4000)
    );
    let new = summary(&db, "new").await;
    assert_eq!(new.get_document("tags").unwrap(), &doc! { "site": "x" });
    assert_eq!(
        new.get_datetime("bucket_end").unwrap().timestamp_millis(),
        START.0 + HOUR
    );
    // A removed summary is created again, complete.
    db.collection::<Document>("sensor_buckets")
        .delete_one(doc! { "sensor_id": "b" })
        .await
        .unwrap();
    assert_eq!(
        write(&store, write_of("b", AFTER(5), &temps(5..6))).await,
        PageWriteResult::SummaryConflict
    );
    assert_eq!(load(&store, "b", None, true).await.pages[0].count, 6);
    assert_eq!(summary(&db, "b").await.get_i32("count").unwrap(), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_without_a_document_may_have_measurements_in_any_mode() {
    let (series, db) = mongo("series_then_pages").await;
    write(&series, write_of("a", PageKind::Create, &temps(0..3))).await;
    let buckets = db.collection::<Document>("sensor_buckets");
    buckets.delete_many(doc! {}).await.unwrap();
    let uri = config::Secret::new(Mongod::shared().uri());
    let mode = config::StoreMode::Bucket;
    let settings = config::Store {
        uri,
        database: db.name().into(),
        mode,
        ..config::Config::default().store
    };
    let store = MongoStore::new(&settings, Span::HOUR, Duration::from_secs(3600))
        .await
        .unwrap();
    store.prepare().await.unwrap();
    assert_eq!(store.storage_mode(), StorageMode::Bucket);
    let bucket = load(&store, "a", Some(i64::MIN), true).await;
    assert_eq!(
        (
            bucket.storage_mode,
            bucket.pages[0].count,
            bucket.pages[0].keys.len()
        ),
        (StorageMode::TimeSeries, 3, 3)
    );
    assert_eq!(load(&store, "b", None, true).await, LoadedBucket::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_has_measurements_and_a_document_of_the_documented_form() {
    let (store, db) = mongo("series_document").await;
    let mut builder = BatchBuilder::new(10);
    builder.value("x", ValueRef::Int(1)).unwrap();
    builder
        .commit("S1", 0, false, &[("floor", "2"), ("site", "north")])
        .unwrap();
    let batch = builder.finish();
    let tags = Some(Arc::new(Tags::from_canonical(
        batch.iter().next().unwrap().1.tags,
    )));
    let mut readings = temps(0..2);
    readings[0].values = BTreeMap::from([
        ("temp".into(), Value::Double(22.5)),
        ("on".into(), Value::Bool(true)),
    ]);
    readings[1].values = BTreeMap::from([
        ("humid".into(), Value::Int(58)),
        ("temp".into(), Value::Double(23.0)),
    ]);
    write(
        &store,
        PageWrite {
            tags: tags.clone(),
            ..write_of("S1", PageKind::Create, &readings)
        },
    )
    .await;
    write(
        &store,
        PageWrite {
            tags,
            ..write_of("S1", AFTER(2), &temps(2..3))
        },
    )
    .await;
    let start = DateTime::from_millis(START.0);
    let second = DateTime::from_millis(START.0 + 1000);
    let expected = doc! {
        "_id": { "sensor_id": "S1", "bucket_start": start, "page": 0 },
        "schema_version": 1,
        "sensor_id": "S1",
        "bucket_start": start,
        "bucket_end": DateTime::from_millis(START.0 + HOUR),
        "page": 0,
        "tags": { "floor": "2", "site": "north" },
        "count": 3,
        "first_ts": start,
        "last_ts": DateTime::from_millis(START.0 + 2000),
        "storage": "timeseries",
    };
    let mut found = summary(&db, "S1").await;
    let fields = found.remove("summary").unwrap();
    assert_eq!(found, expected);
    let temp = doc! { "min": 1.0, "max": 23.0, "sum": 46.5, "count": 3 };
    assert_eq!(
        fields.as_document().unwrap().get_document("temp").unwrap(),
        &temp
    );
    let cursor = db
        .collection::<Document>("sensor_readings")
        .find(doc! {})
        .sort(doc! { "ts": 1 })
        .await
        .unwrap();
    let mut found: Vec<Document> = cursor.try_collect().await.unwrap();
    found.iter_mut().for_each(|d| drop(d.remove("_id")));
    let meta = doc! { "sensor_id": "S1", "tags": { "floor": "2", "site": "north" } };
    assert_eq!(
        found[..2],
        [
            doc! { "ts": start, "meta": &meta, "on": true, "temp": 22.5 },
            doc! { "ts": second, "meta": &meta, "humid": 58i64, "temp": 23.0 },
        ]
    );
    assert_eq!(found.len(), 3);
    let row = db
        .collection::<Document>("sensor_summaries")
        .find_one(doc! { "sensor_id": "S1" })
        .await
        .unwrap();
    let row = row.unwrap();
    let avg = row
        .get_document("summary")
        .unwrap()
        .get_document("temp")
        .unwrap()
        .get_f64("avg")
        .unwrap();
    assert_eq!((row.get_i32("count").unwrap(), avg), (3, 15.5));
}

#[tokio::test(flavor = "multi_thread")]
async fn more_measurements_than_fit_in_one_command() {
    let (store, db) = mongo("series_many").await;
    let writes: Vec<_> = (0..120)
        .map(|s| write_of(&format!("s{s:03}"), PageKind::Create, &temps(0..1000)))
        .collect();
    let answers = store.write(&writes).await.unwrap();
    assert!(
        answers
            .iter()
            .all(|a| *a == PageWriteResult::Done { count: 1000 })
    );
    let count = db
        .collection::<Document>("sensor_readings")
        .count_documents(doc! {})
        .await
        .unwrap();
    assert_eq!(count, 120_000);
    let requests: Vec<_> = (0..120)
        .map(|s| LoadRequest {
            bucket: BucketKey {
                sensor_id: format!("s{s:03}").into(),
                start: START,
            },
            readings_from: Some(START.0 + 999_000),
            doubt: true,
        })
        .collect();
    let loaded = found(store.load(&requests, None).await);
    assert!(
        loaded
            .iter()
            .all(|b| b.pages[0].count == 1000 && b.pages[0].keys.len() == 1)
    );
}
