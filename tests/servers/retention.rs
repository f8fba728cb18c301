//! Tiered retention (`store.retention_readings`): what the stores remove, and the result for late
//! readings.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test, with figures"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::fleet::now_ms;
use crate::support::mongod::{Mongod, unique_database};
use crate::support::proxy::{Direction, Proxy};
use crate::support::seed::{self, Seed};
use crate::support::service::Service;
use crate::support::{block_on, wait_until};
use futures_util::TryStreamExt;
use hourbucket::config;
use hourbucket::model::summary::summarise;
use hourbucket::model::{
    BucketKey, BucketStart, PageKind, PageWrite, Rows, Span, StorageMode, Value,
};
use hourbucket::store::memory::MemoryStore;
use hourbucket::store::mongo::MongoStore;
use hourbucket::store::reading::PageQuery;
use hourbucket::store::retention::RemovedReadings;
use hourbucket::store::{LoadRequest, LoadedBucket, PageWriteResult, Store};
use mongodb::Database;
use mongodb::bson::{Document, doc};

const HOUR: i64 = 3_600_000;
const DAY_S: u64 = 86_400;
/// 2024-03-01T10:00:00Z, more than 400 days ago.
const START: i64 = 1_709_287_200_000;

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
        PageKind::Append { known_count: 2 },
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
        PageKind::Append { known_count: 3 },
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

/// In time-series mode the server removes measurements: those that may be gone are neither compared
/// nor added up again, also after the retention was made longer.
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
    let summary = mongodb::bson::doc! {
        "_id": { "sensor_id": "S1", "bucket_start": mongodb::bson::DateTime::from_millis(START), "page": 0 },
        "schema_version": 1, "sensor_id": "S1", "bucket_start": mongodb::bson::DateTime::from_millis(START),
        "bucket_end": mongodb::bson::DateTime::from_millis(START + HOUR), "page": 0, "tags": {}, "count": 9,
        "first_ts": mongodb::bson::DateTime::from_millis(START), "last_ts": mongodb::bson::DateTime::from_millis(START + 8000),
        "summary": { "n": { "min": 0, "max": 8, "sum": 36, "count": 9 } }, "storage": "timeseries",
    };
    let pages = db.collection::<Document>("sensor_buckets");
    pages.insert_one(&summary).await.unwrap();
    // One is left, the others have expired.
    let one = doc! { "ts": mongodb::bson::DateTime::from_millis(START + 8000), "meta": { "sensor_id": "S1" }, "n": 8i64 };
    db.collection::<Document>("sensor_readings")
        .insert_one(one)
        .await
        .unwrap();
    for (days, removed) in [(Some(400), true), (Some(2000), true), (None, true)] {
        let store = at(&uri, db.name(), mode, days).await;
        let bucket = load(&store, "S1", true).await;
        assert_eq!(bucket.readings_removed(), removed, "{days:?}: {bucket:?}");
        assert_eq!((bucket.pages[0].count, bucket.pages[0].keys.len()), (9, 0));
    }
    assert_eq!(kept().await, None);
    assert_eq!(
        pages.find_one(doc! {}).await.unwrap().unwrap(),
        summary,
        "the summary is not computed again"
    );
    drop(store);
}

const PATIENCE: Duration = Duration::from_secs(120);

#[test]
fn late_readings_of_removed_hours_are_dead_letters_and_summaries_stay() {
    tiers("bucket");
}

#[test]
fn late_readings_of_removed_hours_are_dead_letters_and_summaries_stay_with_time_series() {
    tiers("timeseries");
}

/// An instance has readings of an old hour in its journal, and is killed while MongoDB does not
/// answer. Another one removes the readings of that hour. Then the journal is replayed.
fn tiers(mode: &str) {
    let uri = Mongod::shared().uri();
    let database = unique_database(&format!("tiers_{mode}"));
    let proxy = Proxy::start(Mongod::shared().port());
    let text = |more: &str| {
        format!(
            "store.mode = \"{mode}\"\nstore.timeout = \"1s\"\nflush.max_age = \"500ms\"\n\
             rollup.days = true\n\
             rollup.settle = \"1s\"\nrollup.late = \"1s\"\n{more}\n"
        )
    };
    let tiers = text("store.retention_readings = \"400d\"\nlimits.past = \"400d\"");
    let settings = |uri: &str| {
        [
            ("STORE__URI", uri.to_owned()),
            ("STORE__DATABASE", database.clone()),
        ]
    };
    let start_with = |text: &str, uri: &str| {
        let settings = settings(uri);
        Service::start(
            text,
            &settings
                .each_ref()
                .map(|(key, value)| (*key, value.as_str())),
        )
    };
    let mut first = start_with(&text("limits.past = \"1200d\""), &proxy.uri());
    let day = (now_ms() - 450 * 24 * HOUR).div_euclid(24 * HOUR) * 24 * HOUR;
    let start = day + 10 * HOUR;
    let post = |service: &Service, values: &[i64]| {
        let line = |n: &i64| {
            format!(
                "{{\"sensor_id\":\"late\",\"ts\":{},\"n\":{n}}}\n",
                start + n * 1000
            )
        };
        let body: String = values.iter().map(line).collect();
        let (status, text) = service
            .post("/v1/readings", "application/x-ndjson", body.as_bytes())
            .expect("an answer");
        assert!(
            status == 200 && text.contains(&format!("\"accepted\":{}", values.len())),
            "{text}"
        );
    };
    post(&first, &[0, 1, 2, 3, 4]);
    first.wait_settled(5, PATIENCE);
    proxy.stop(Some(Direction::ToServer));
    // One that is stored already, and one that is not.
    post(&first, &[2, 7]);
    first.kill9();

    let mut second = start_with(&tiers, &uri);
    if mode == "bucket" {
        wait_until("readings are removed", PATIENCE, || {
            (second.metrics().get("readings_removed_pages_total") >= 1.0).then_some(())
        });
        assert_eq!(second.metrics().get("readings_removal_lag_seconds"), 0.0);
    }
    proxy.stop(None);
    std::fs::write(first.dir().join("hourbucket.toml"), &tiers).unwrap();
    first.restart();
    // The journal may replay those that were stored, too: they are dead letters then, and still
    // counted once.
    wait_until("the late readings are dead letters", PATIENCE, || {
        let dead = dead(&uri, &database);
        assert!(
            dead.iter().all(|n| [0, 1, 2, 3, 4, 7].contains(n)),
            "{dead:?}"
        );
        (dead.contains(&2) && dead.contains(&7)).then_some(())
    });

    for service in [&first, &second] {
        answers(service, day, start);
    }
    wait_until("the day is computed from its hours", PATIENCE, || {
        (day_count(&uri, &database) == Some(5)).then_some(())
    });
    assert_eq!(
        (first.terminate(PATIENCE), second.terminate(PATIENCE)),
        (0, 0),
        "everything is settled: {}",
        first.log()
    );
    block_on(async {
        let db = mongodb::Client::with_uri_str(&uri)
            .await
            .unwrap()
            .database(&database);
        let page = db
            .collection::<Document>("sensor_buckets")
            .find_one(doc! {})
            .await
            .unwrap()
            .unwrap();
        assert_eq!(
            page.get_bool("readings_removed").is_ok(),
            mode == "bucket",
            "{page}"
        );
        assert_eq!(
            (
                page.get_i32("count").unwrap(),
                page.contains_key("readings")
            ),
            (5, false),
            "{page}"
        );
    });
    let (code, printed, _) = crate::support::seed::run(&database, &uri, &["reconcile"]);
    assert_eq!(code, 0, "{printed}");
}

/// The read API counts the stored readings, and reports the removed ones.
fn answers(service: &Service, day: i64, start: i64) {
    let get = |what: &str, range: &str| -> serde_json::Value {
        let (status, text) = service
            .get_admin(&format!("/v1/sensors/late/{what}?{range}"))
            .expect("an answer");
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).unwrap()
    };
    let range = format!("from={}&to={}", start, start + 2 * HOUR);
    let hours = get("hourly", &range);
    let hour = &hours["buckets"][0];
    assert_eq!(
        (hour["count"].as_i64(), hour["summary"]["n"]["sum"].as_f64()),
        (Some(5), Some(10.0)),
        "{hours}"
    );
    let days = get("daily", &format!("from={day}&to={}", day + 24 * HOUR));
    assert!(days.to_string().contains("\"count\":5"), "{days}");
    let readings = get("readings", &range);
    let until = readings["readings_until"]
        .as_str()
        .unwrap_or_else(|| panic!("{readings}"));
    let until = chrono::DateTime::parse_from_rfc3339(until)
        .unwrap()
        .timestamp_millis();
    assert_eq!(until, start + HOUR, "{readings}");
    let recent = get("readings", "");
    assert!(recent.get("readings_until").is_none(), "{recent}");
}

/// What the document of the day counts.
fn day_count(uri: &str, database: &str) -> Option<i64> {
    block_on(async {
        let db = mongodb::Client::with_uri_str(uri)
            .await
            .unwrap()
            .database(database);
        let day = db
            .collection::<Document>("sensor_days")
            .find_one(doc! { "sensor_id": "late" })
            .await
            .unwrap()?;
        day.get_i64("count")
            .or(day.get_i32("count").map(i64::from))
            .ok()
    })
}

/// The values `n` of the dead letters.
fn dead(uri: &str, database: &str) -> Vec<i64> {
    block_on(async {
        let db = mongodb::Client::with_uri_str(uri)
            .await
            .unwrap()
            .database(database);
        let dead = db.collection::<Document>("dead_letters");
        let found = dead.find(doc! { "reason": "readings_removed", "source": "store" });
        let mut values = vec![];
        for dead_letter in found.await.unwrap().try_collect::<Vec<_>>().await.unwrap() {
            let payload =
                String::from_utf8(dead_letter.get_binary_generic("payload").unwrap().clone())
                    .unwrap();
            let n = |line: &str| {
                serde_json::from_str::<serde_json::Value>(line).unwrap()["values"]["n"]
                    .as_i64()
                    .unwrap()
            };
            values.extend(payload.lines().map(n));
        }
        values.sort_unstable();
        values
    })
}

/// Two instances remove the readings of old pages. Both get SIGKILL in the middle, and MongoDB too.
#[test]
fn a_removal_that_is_killed_goes_on_and_changes_no_summary() {
    const PAGES: u64 = 3000;
    let mut mongod = Mongod::start();
    // One for all: the client of `seed` works in the runtime that it began in.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let seed = runtime.block_on(Seed::at(mongod.uri(), "killed", None));
    let pages = (0..PAGES as i64).map(|n| {
        let start = seed::START + n / 20 * HOUR;
        seed::page(
            &format!("S{}", n % 20),
            start,
            0,
            false,
            &seed::readings(start, n % 5..n % 5 + 4),
        )
    });
    runtime.block_on(seed.pages(pages));
    let before = runtime.block_on(seed.summaries());
    let text =
        "store.mode = \"bucket\"\nstore.retention_readings = \"400d\"\nlimits.past = \"7d\"\n";
    let settings = [
        ("STORE__URI", &*mongod.uri()),
        ("STORE__DATABASE", &*seed.name),
    ];
    let mut services = [0; 2].map(|_| Service::start(text, &settings));
    let left = || {
        let pages = seed.db.collection::<Document>("sensor_buckets");
        runtime.block_on(async {
            pages
                .count_documents(doc! { "readings": { "$exists": true } })
                .await
                .ok()
        })
    };
    for kill in 1..=2 {
        wait_until("readings are removed", PATIENCE, || {
            (left()? <= PAGES - kill * PAGES / 4).then_some(())
        });
        services.iter_mut().for_each(Service::kill9);
        if kill == 2 {
            mongod.kill9();
            mongod.restart();
        }
        let left = left().expect("MongoDB answers");
        assert!(left > 0, "killed in the middle");
        println!("killed with {left} of {PAGES} pages left");
        services.iter_mut().for_each(Service::restart);
    }
    wait_until("all readings are removed", PATIENCE, || {
        (left()? == 0).then_some(())
    });
    wait_until("nothing is due any more", PATIENCE, || {
        (services
            .iter()
            .all(|s| s.metrics().get("readings_removal_lag_seconds") == 0.0))
        .then_some(())
    });
    assert_eq!(runtime.block_on(seed.summaries()), before);
    for service in &mut services {
        assert_eq!(service.terminate(PATIENCE), 0, "{}", service.log());
    }
    let (code, printed, _) = seed.run(&["reconcile", "--from", "2024-03-01", "--to", "2024-03-10"]);
    assert_eq!(code, 0, "{printed}");
}
