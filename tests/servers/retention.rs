//! Tiered retention (`store.retention_readings`): what the stores remove.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::fleet::now_ms;
use crate::support::mongod::{Mongod, unique_database};
use futures_util::TryStreamExt;
use model::summary::summarise;
use model::{BucketKey, BucketStart, Gate, PageKind, PageWrite, Rows, Span, StorageMode, Value};
use mongodb::Database;
use mongodb::bson::{Document, doc};
use store::mongo::MongoStore;
use store::reading::PageQuery;
use store::retention::RemovedReadings;
use store::{LoadRequest, LoadedBucket, PageWriteResult, Store};
use testkit::memory_store::MemoryStore;

const HOUR: i64 = 3_600_000;
const DAY_S: u64 = 86_400;
/// 2024-03-01T10:00:00Z, more than 400 days ago.
const START: i64 = 1_709_287_200_000;
const PATIENCE: Duration = Duration::from_secs(120);

fn write(
    sensor: &str,
    start: i64,
    n: u32,
    kind: PageKind,
    seal: bool,
    values: std::ops::Range<i64>,
) -> PageWrite {
    let mut rows = Rows::default();
    values.for_each(|n| {
        rows.push_named(
            start + n * 1000,
            Default::default(),
            &[("n", Value::Int(n).as_ref())],
        )
    });
    let summary = summarise(&rows);
    let rows = Arc::new(rows);
    let sensor_id = sensor.into();
    let start = BucketStart(start);
    let storage_mode = StorageMode::Bucket;
    PageWrite {
        sensor_id,
        start,
        page: n,
        kind,
        storage_mode,
        seal,
        tags: None,
        rows,
        summary,
        catalog: None,
    }
}

async fn load(store: &dyn Store, sensor: &str, doubt: bool) -> LoadedBucket {
    let bucket = BucketKey {
        sensor_id: sensor.into(),
        start: BucketStart(START),
    };
    let request = LoadRequest {
        bucket,
        readings_from: Some(i64::MIN),
        doubt,
    };
    store
        .load(&[request], None)
        .await
        .unwrap()
        .remove(0)
        .unwrap()
}

/// Loads a bucket until all of its readings are removed: loads read what a majority has, which is a
/// moment later.
async fn load_removed(store: &dyn Store, sensor: &str) -> LoadedBucket {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let bucket = load(store, sensor, true).await;
        if bucket.readings_removed() && bucket.pages.iter().all(|page| page.keys.is_empty()) {
            return bucket;
        }
        assert!(Instant::now() < deadline, "{bucket:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn mongo(
    uri: String,
    test: &str,
    mode: config::StoreMode,
    kept_days: Option<u64>,
) -> (MongoStore, Database) {
    let database = unique_database(test);
    (
        at(&uri, &database, mode, kept_days).await,
        mongodb::Client::with_uri_str(uri)
            .await
            .unwrap()
            .database(&database),
    )
}

async fn at(
    uri: &str,
    database: &str,
    mode: config::StoreMode,
    kept_days: Option<u64>,
) -> MongoStore {
    let settings = config::Store {
        uri: config::Secret::new(uri.to_owned()),
        database: database.into(),
        mode,
        retention_readings: kept_days.map(|days| Duration::from_secs(days * DAY_S)),
        ..config::Config::default().store
    };
    let store = MongoStore::new(&settings, Span::HOUR, Duration::from_secs(3600))
        .await
        .unwrap();
    store.prepare().await.unwrap();
    store
}

/// The contract of both stores.
async fn contract(store: &dyn Store) {
    let create = PageKind::Create;
    for page in [
        write("S1", START, 0, create, true, 0..4),
        write("S1", START, 1, create, false, 4..6),
        write("S2", START + HOUR, 0, create, false, 0..3),
        write("S3", START - HOUR, 0, create, false, 0..1),
    ] {
        assert!(matches!(
            store.write(&[page]).await.unwrap()[0],
            PageWriteResult::Done { .. }
        ));
    }
    let removed = |found, pages, oldest_end_ms| RemovedReadings {
        found,
        pages,
        oldest_end_ms,
    };
    let none = removed(0, 0, None);
    assert_eq!(
        store.remove_readings(START, 10).await.unwrap(),
        none,
        "a bucket that ended then is not older"
    );
    let before = START + HOUR + 1;
    assert_eq!(
        store.remove_readings(before, 0).await.unwrap(),
        removed(1, 0, Some(START)),
        "only looks"
    );
    assert!(!load(store, "S1", false).await.readings_removed());
    // The oldest first, as many as requested.
    assert_eq!(
        store.remove_readings(before, 2).await.unwrap(),
        removed(2, 2, Some(START))
    );
    assert_eq!(
        store.remove_readings(before, 2).await.unwrap(),
        removed(1, 1, Some(START + HOUR))
    );
    assert_eq!(
        store.remove_readings(before, 2).await.unwrap(),
        none,
        "what is done is not found again"
    );
    let bucket = load_removed(store, "S1").await;
    let heads: Vec<_> = bucket
        .pages
        .iter()
        .map(|page| (page.count, page.sealed, page.last_ts_ms))
        .collect();
    assert_eq!(heads, [(4, true, START + 3000), (2, false, START + 5000)]);
    // A writer that knows the version cannot add anything to it, not even with the right count.
    let append = write(
        "S1",
        START,
        1,
        PageKind::Append {
            known_count: 2,
            gate: Gate::Closes,
        },
        false,
        6..7,
    );
    assert_eq!(
        store.write(&[append]).await.unwrap(),
        [PageWriteResult::Conflict]
    );
    let query = PageQuery {
        sensor_id: "S1".into(),
        from: BucketStart(START),
        to_ms: START + 1,
        after: None,
        readings_from_ms: Some(START),
    };
    let pages = store.pages(&query).await.unwrap().pages;
    assert_eq!(pages.len(), 2);
    for (_, page) in &pages {
        let summary = page.summary["n"].expect("a summary");
        assert!(page.readings_removed && page.rows.is_empty(), "{page:?}");
        assert_eq!(Some(i64::from(summary.count)), page.count);
    }
    // Others are untouched.
    let append = write(
        "S2",
        START + HOUR,
        0,
        PageKind::Append {
            known_count: 3,
            gate: Gate::Closes,
        },
        false,
        3..4,
    );
    assert_eq!(
        store.write(&[append]).await.unwrap(),
        [PageWriteResult::Done { count: 4 }]
    );
}

#[tokio::test]
async fn the_memory_store_removes_readings_and_keeps_summaries() {
    let store = MemoryStore::new();
    contract(&store).await;
    store.pages().check(10).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn mongodb_removes_readings_and_keeps_summaries() {
    for uri in [Mongod::shared().uri(), Mongod::shared_v44().uri()] {
        let (store, db) = mongo(uri.clone(), "removal", config::StoreMode::Bucket, Some(400)).await;
        contract(&store).await;
        assert!(
            (store.now_ms().await.unwrap() - now_ms()).abs() < 60_000,
            "the clock of the server"
        );
        let pages = db.collection::<Document>("sensor_buckets");
        let left: Vec<Document> = pages
            .find(doc! { "readings": { "$exists": true } })
            .await
            .unwrap()
            .try_collect()
            .await
            .unwrap();
        assert_eq!(left.len(), 1, "{left:?}");
        let row = db
            .collection::<Document>("sensor_summaries")
            .find_one(doc! { "sensor_id": "S1" })
            .await
            .unwrap()
            .unwrap();
        assert_eq!(
            (
                row.get_i32("count").unwrap(),
                row.get_bool("readings_removed").unwrap()
            ),
            (6, true),
            "{row}"
        );
        let sum = row
            .get_document("summary")
            .unwrap()
            .get_document("n")
            .unwrap()
            .get_i64("sum")
            .unwrap();
        assert_eq!(sum, 15);
        // Reads neither finished pages nor time-series documents, and needs no sort.
        let filter = doc! { "storage": null, "readings_removed": null, "bucket_end": { "$lt": mongodb::bson::DateTime::now() } };
        let find = doc! {
            "find": "sensor_buckets", "filter": filter, "sort": { "bucket_end": 1 }, "hint": "readings_removal", "limit": 9,
        };
        let explain = doc! { "explain": find, "verbosity": "executionStats" };
        let stats = db.run_command(explain).await.unwrap();
        let stats = stats.get_document("executionStats").unwrap();
        assert_eq!(stats.get_i32("totalDocsExamined").unwrap(), 1, "{stats}");
        assert!(!stats.to_string().contains("\"SORT\""), "{stats}");
        // Without the setting the index goes.
        at(&uri, db.name(), config::StoreMode::Bucket, None).await;
        assert!(
            !pages
                .list_index_names()
                .await
                .unwrap()
                .contains(&"readings_removal".to_owned())
        );
    }
}

/// In time-series mode the server removes measurements. Those that it is removing are neither
/// compared nor added up again. After the retention was made longer, what is left of an hour shows
/// whether some were removed, whatever could have been.
#[tokio::test(flavor = "multi_thread")]
async fn measurements_expire_before_their_summaries_and_these_are_not_computed_again() {
    let uri = Mongod::shared().uri();
    let mode = config::StoreMode::Timeseries;
    let (store, db) = mongo(uri.clone(), "expire_readings", mode, Some(400)).await;
    let kept = || async {
        let list = doc! { "listCollections": 1, "filter": { "name": "sensor_readings" } };
        let found = db.run_command(list).await.unwrap();
        let batch = found
            .get_document("cursor")
            .unwrap()
            .get_array("firstBatch")
            .unwrap();
        let options = batch[0]
            .as_document()
            .unwrap()
            .get_document("options")
            .unwrap();
        options
            .get("expireAfterSeconds")
            .map(|s| s.as_i64().or(s.as_i32().map(i64::from)).unwrap())
    };
    assert_eq!(
        kept().await,
        Some(400 * 86_400 + 6 * 3600 + 3600),
        "the retention, the margin and a span"
    );
    let time = mongodb::bson::DateTime::from_millis;
    let summary = |sensor: &str| {
        doc! {
            "_id": { "sensor_id": sensor, "bucket_start": time(START), "page": 0 },
            "schema_version": 1, "sensor_id": sensor, "bucket_start": time(START),
            "bucket_end": time(START + HOUR), "page": 0, "tags": {}, "count": 9,
            "first_ts": time(START), "last_ts": time(START + 8000),
            "summary": { "n": { "min": 0, "max": 8, "sum": 36, "count": 9 } },
            "storage": "timeseries",
        }
    };
    // What is left of nine: all; the last one; none; nine, of which the last four are not counted
    // yet, because a process ended before that.
    let sensors = [
        ("all", 0..9),
        ("one", 8..9),
        ("none", 0..0),
        ("mixed", 4..13),
    ];
    let pages = db.collection::<Document>("sensor_buckets");
    let measurements = db.collection::<Document>("sensor_readings");
    for (sensor, left) in sensors.clone() {
        pages.insert_one(summary(sensor)).await.unwrap();
        for n in left {
            let ts = time(START + n * 1000);
            let one = doc! { "ts": ts, "meta": { "sensor_id": sensor }, "n": n };
            measurements.insert_one(one).await.unwrap();
        }
    }
    for days in [Some(400), Some(2000), None] {
        let store = at(&uri, db.name(), mode, days).await;
        for (sensor, left) in sensors.clone() {
            let bucket = load(&store, sensor, true).await;
            let is_whole = left == (0..9) && days != Some(400);
            let keys = if is_whole { 9 } else { 0 };
            assert_eq!(bucket.readings_removed(), !is_whole, "{days:?}: {bucket:?}");
            assert_eq!(
                (bucket.pages[0].count, bucket.pages[0].keys.len()),
                (9, keys)
            );
        }
    }
    assert_eq!(kept().await, None);
    for (sensor, _) in sensors {
        let stored = pages.find_one(doc! { "sensor_id": sensor }).await.unwrap();
        assert_eq!(stored.unwrap(), summary(sensor), "it is not computed again");
    }
    drop(store);
}

/// The same in memory.
#[tokio::test]
async fn the_memory_store_finds_what_is_left_of_measurements() {
    let store = MemoryStore::new().with_storage_mode(StorageMode::TimeSeries);
    let series = |sensor: &str, kind, values| PageWrite {
        storage_mode: StorageMode::TimeSeries,
        ..write(sensor, START, 0, kind, false, values)
    };
    for sensor in ["all", "some", "mixed"] {
        store
            .write(&[series(sensor, PageKind::Create, 0..9)])
            .await
            .unwrap();
    }
    for sensor in ["some", "mixed"] {
        store
            .pages()
            .remove_measurements(sensor, BucketStart(START), 4);
    }
    let uncounted = PageKind::Append {
        known_count: 9,
        gate: Gate::Closes,
    };
    store.pages().insert(&series("mixed", uncounted, 9..13));
    for (sensor, keys) in [("all", 9), ("some", 0), ("mixed", 0)] {
        let bucket = load(&store, sensor, true).await;
        assert_eq!(bucket.readings_removed(), keys == 0, "{sensor}");
        assert_eq!(
            (bucket.pages[0].count, bucket.pages[0].keys.len()),
            (9, keys)
        );
    }
    store.pages().begin_expiring("all", BucketStart(START));
    assert!(load(&store, "all", false).await.readings_removed());
    store.pages().end_expiring();
    assert!(!load(&store, "all", true).await.readings_removed());
}
