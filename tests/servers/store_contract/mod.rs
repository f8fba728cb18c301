//! The store's contract (`src/store/src/lib.rs`), against the memory store and a real MongoDB; and what
//! only a real one has ([`documents`]).

#![allow(clippy::unwrap_used, reason = "a test")]

mod documents;
mod gates;
mod reads;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::mongod::{Mongod, unique_database};
use model::summary::summarise;
use model::{
    BucketKey, BucketStart, DeadLetter, Gate, PageKind, PageWrite, Reading, Rows, Span,
    StorageMode, Value,
};
use mongodb::bson::{Document, doc};
use store::mongo::MongoStore;
use store::{
    LoadRequest, LoadResult, LoadedBucket, LoadedPage, PageWriteResult, PrepareErrorEnd, Store,
    StoreError,
};
use testkit::memory_store::MemoryStore;

const HOUR: i64 = 3_600_000;
/// 2024-03-01T10:00:00Z
pub(super) const START: BucketStart = BucketStart(1_709_287_200_000);

pub(super) fn settings(database: &str) -> config::Store {
    let uri = config::Secret::new(Mongod::shared().uri());
    config::Store {
        uri,
        database: database.into(),
        ..config::Config::default().store
    }
}

pub(super) async fn mongo(test: &str) -> (MongoStore, mongodb::Database) {
    prepared(settings(&unique_database(test))).await
}

/// On MongoDB 4.4.
pub(super) async fn mongo_v44(test: &str) -> (MongoStore, mongodb::Database) {
    let uri = config::Secret::new(Mongod::shared_v44().uri());
    prepared(config::Store {
        uri,
        ..settings(&unique_database(test))
    })
    .await
}

pub(super) async fn prepared(settings: config::Store) -> (MongoStore, mongodb::Database) {
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

fn reading(ts_ms: i64, values: &[(&str, Value)]) -> Reading {
    let values: BTreeMap<String, Value> = values
        .iter()
        .map(|(k, v)| (k.to_string(), v.clone()))
        .collect();
    Reading {
        sensor_id: "S1".into(),
        ts_ms,
        receipt_time: false,
        tags: BTreeMap::new(),
        values,
    }
}

fn temps(range: std::ops::Range<i64>) -> Vec<Reading> {
    range
        .map(|i| {
            reading(
                START.0 + i * 1000,
                &[
                    ("temp", Value::Double(i as f64 / 2.0)),
                    ("n", Value::Int(i)),
                ],
            )
        })
        .collect()
}

fn page(sensor: &str, page: u32, kind: PageKind, seal: bool, readings: &[Reading]) -> PageWrite {
    let mut rows = Rows::default();
    readings.iter().for_each(|r| rows.push_reading(r));
    let summary = summarise(&rows);
    PageWrite {
        sensor_id: sensor.into(),
        start: START,
        page,
        kind,
        storage_mode: StorageMode::Bucket,
        seal,
        tags: None,
        rows: rows.into(),
        summary,
        catalog: None,
    }
}

fn appends(known_count: u32, gate: Gate) -> PageKind {
    PageKind::Append { known_count, gate }
}

fn append(sensor: &str, known_count: u32, seal: bool, readings: &[Reading]) -> PageWrite {
    page(
        sensor,
        0,
        appends(known_count, Gate::Closes),
        seal,
        readings,
    )
}

async fn write(store: &dyn Store, write: PageWrite) -> PageWriteResult {
    store.write(&[write]).await.unwrap().remove(0)
}

fn found(answers: Result<Vec<LoadResult>, StoreError>) -> Vec<LoadedBucket> {
    answers.unwrap().into_iter().map(Result::unwrap).collect()
}

async fn load(store: &dyn Store, sensor: &str, readings: bool) -> Vec<LoadedPage> {
    let bucket = BucketKey {
        sensor_id: sensor.into(),
        start: START,
    };
    let readings_from = readings.then_some(i64::MIN);
    store
        .load(
            &[LoadRequest {
                bucket,
                readings_from,
                doubt: false,
            }],
            None,
        )
        .await
        .unwrap()
        .remove(0)
        .unwrap()
        .pages
}

/// The behaviour that both stores must have.
async fn contract(store: &dyn Store) {
    expected_versions(store).await;
    without_numbers(store).await;
    gates::contract(store).await;
    seals(store).await;
    mixed(store).await;
    loads(store).await;
    many(store).await;
    reads::summaries_and_edges(store).await;
    // Received now: MongoDB removes old ones of senders, once a minute.
    let now_ms = crate::support::fleet::now_ms();
    let dead_letter = DeadLetter {
        received_at_ms: now_ms,
        source: "mqtt".into(),
        topic: "sensors/x".into(),
        payload: vec![0, 255, b'{'],
        reason: "invalid_json".into(),
        detail: "expected `}`".into(),
    };
    store
        .write_dead_letters(&[dead_letter.clone(), dead_letter])
        .await
        .unwrap();
    super::store_dead_letters::find_contract(store, now_ms).await;
    reads::pages(store).await;
    reads::sensors(store).await;
    reads::last_values(store).await;
    crate::catalog_contract::contract(store).await;
    store.ping().await.unwrap();
}

async fn expected_versions(store: &dyn Store) {
    let all = temps(0..6);
    assert_eq!(
        write(store, page("gate", 0, PageKind::Create, false, &all[..2])).await,
        PageWriteResult::Done { count: 2 }
    );
    let again = page("gate", 0, PageKind::Create, false, &all[2..4]);
    assert_eq!(
        write(store, again).await,
        PageWriteResult::Conflict,
        "a page is created once"
    );
    for wrong in [0, 1, 3] {
        assert_eq!(
            write(store, append("gate", wrong, false, &all[2..3])).await,
            PageWriteResult::Conflict,
            "{wrong} is not 2"
        );
    }
    assert_eq!(
        write(store, append("gate", 2, false, &all[2..5])).await,
        PageWriteResult::Done { count: 5 }
    );
    assert_eq!(
        write(store, append("gate", 2, false, &all[2..5])).await,
        PageWriteResult::Conflict,
        "the same write once only"
    );
    let loaded = load(store, "gate", true).await;
    let keys: Vec<_> = all[..5].iter().map(Reading::key).collect();
    assert_eq!(
        (loaded.len(), loaded[0].count, &loaded[0].keys),
        (1, 5, &keys)
    );
    assert_eq!(
        write(store, append("removed", 7, false, &all[..2])).await,
        PageWriteResult::Done { count: 2 },
        "created again"
    );
    assert_eq!(load(store, "removed", false).await[0].count, 2);
}

/// Readings without numbers have no summary, but the same answers.
async fn without_numbers(store: &dyn Store) {
    let all: Vec<Reading> = (0..5)
        .map(|n| reading(START.0 + n * 1000, &[("state", Value::Str("open".into()))]))
        .collect();
    let new = page("door", 0, PageKind::Create, false, &all[..2]);
    assert_eq!(write(store, new).await, PageWriteResult::Done { count: 2 });
    for gate in [Gate::Closes, Gate::Opens] {
        for wrong in [1, 3] {
            let wrong = page("door", 0, appends(wrong, gate), false, &all[2..3]);
            assert_eq!(write(store, wrong).await, PageWriteResult::Conflict);
        }
    }
    assert_eq!(
        write(store, append("door", 2, false, &all[2..3])).await,
        PageWriteResult::Done { count: 3 }
    );
    assert_eq!(
        write(store, append("no door", 7, false, &all[..1])).await,
        PageWriteResult::Done { count: 1 },
        "created again"
    );
    assert_eq!(load(store, "no door", true).await[0].count, 1);
}

async fn seals(store: &dyn Store) {
    let all = temps(0..4);
    assert_eq!(
        write(store, page("seal", 0, PageKind::Create, true, &all[..2])).await,
        PageWriteResult::Done { count: 2 }
    );
    assert_eq!(
        write(store, append("seal", 2, false, &all[2..3])).await,
        PageWriteResult::Conflict,
        "a sealed page is closed"
    );
    assert_eq!(
        write(store, page("seal", 1, PageKind::Create, false, &all[2..3])).await,
        PageWriteResult::Done { count: 1 }
    );
    let empty = page("seal", 1, appends(1, Gate::Closes), true, &[]);
    assert_eq!(
        write(store, empty).await,
        PageWriteResult::Done { count: 1 },
        "sealing alone changes no count"
    );
    let late = page("seal", 1, appends(1, Gate::Closes), false, &all[3..]);
    assert_eq!(write(store, late).await, PageWriteResult::Conflict);
    let loaded = load(store, "seal", true).await;
    assert_eq!(
        loaded
            .iter()
            .map(|p| (p.count, p.sealed))
            .collect::<Vec<_>>(),
        [(2, true), (1, true)]
    );
}

async fn mixed(store: &dyn Store) {
    let all = temps(0..3);
    write(
        store,
        page("mixed-1", 0, PageKind::Create, false, &all[..1]),
    )
    .await;
    let batch = [
        page("mixed-0", 0, PageKind::Create, false, &all[..1]),
        page("mixed-1", 0, PageKind::Create, false, &all[1..2]),
        page("mixed-2", 0, PageKind::Create, false, &all[..1]),
        append("mixed-1", 1, false, &all[1..3]),
        append("mixed-1b", 9, false, &all[..3]),
    ];
    let done = |count| PageWriteResult::Done { count };
    let answers = store.write(&batch).await.unwrap();
    assert_eq!(
        answers,
        [
            done(1),
            PageWriteResult::Conflict,
            done(1),
            done(3),
            done(3)
        ],
        "each statement by itself"
    );
}

async fn loads(store: &dyn Store) {
    assert!(load(store, "unknown", true).await.is_empty());
    let kinds = [
        reading(
            START.0 - 1,
            &[("ü", Value::Double(-0.0)), ("on", Value::Bool(true))],
        ),
        reading(
            START.0 + 5,
            &[
                ("big", Value::Int(i64::MAX)),
                ("s", Value::Str("a\u{0}b ✓".into())),
                ("e", Value::Str("".into())),
            ],
        ),
        reading(-HOUR, &[("tiny", Value::Double(5e-324))]),
    ];
    write(store, page("kinds", 0, PageKind::Create, false, &kinds)).await;
    let loaded = load(store, "kinds", true).await;
    assert_eq!(
        loaded[0].keys,
        kinds.iter().map(Reading::key).collect::<Vec<_>>()
    );
    assert_eq!(loaded[0].last_ts_ms, START.0 + 5);
    let heads = load(store, "kinds", false).await;
    assert!(heads[0].keys.is_empty() && heads[0].count == 3 && heads[0].bytes >= 100);
}

async fn many(store: &dyn Store) {
    let one = temps(0..1);
    let writes: Vec<_> = (0..5000)
        .map(|i| page(&format!("many-{i}"), 0, PageKind::Create, false, &one))
        .collect();
    let answers = store.write(&writes).await.unwrap();
    assert!(
        answers
            .iter()
            .all(|a| *a == PageWriteResult::Done { count: 1 })
    );
    let requests: Vec<_> = (0..6000)
        .map(|i| LoadRequest {
            bucket: BucketKey {
                sensor_id: format!("many-{i}").into(),
                start: START,
            },
            readings_from: (i % 2 == 0).then_some(i64::MIN),
            doubt: false,
        })
        .collect();
    let loaded = found(store.load(&requests, None).await);
    for (i, bucket) in loaded.iter().enumerate() {
        assert_eq!(bucket.pages.len(), usize::from(i < 5000), "{i}");
    }
}

#[tokio::test]
async fn the_memory_store_keeps_the_contract() {
    let store = MemoryStore::new();
    contract(&store).await;
    assert_eq!(store.pages().dead.len(), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn mongodb_keeps_the_contract() {
    let (store, db) = mongo("contract").await;
    contract(&store).await;
    let dead = db
        .collection::<Document>("dead_letters")
        .find_one(doc! {})
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        dead.get_binary_generic("payload").unwrap(),
        &vec![0, 255, b'{']
    );
    assert_eq!(dead.get_str("reason").unwrap(), "invalid_json");
}

#[tokio::test(flavor = "multi_thread")]
async fn mongodb_4_4_keeps_the_contract_with_buckets() {
    let (store, db) = mongo_v44("contract_v44").await;
    contract(&store).await;
    assert_eq!(store.mode(), "bucket");
    // As the flush stage does before the first write.
    store.raise_high_water(START).await.unwrap();
    let prepared = store.prepare().await.unwrap();
    assert!(
        prepared.server_version.starts_with("4.4."),
        "{}",
        prepared.server_version
    );
    let reason = &prepared.mode_reason;
    for part in [
        "store.mode is auto",
        "no native time-series",
        "timeseries' is an unknown field",
        "replica set rs0",
    ] {
        assert!(reason.contains(part), "{part}: {reason}");
    }
    assert!(
        prepared.changes.is_empty() && prepared.warnings.is_empty(),
        "{prepared:?}"
    );
    assert!(
        !db.list_collection_names()
            .await
            .unwrap()
            .contains(&"sensor_readings".to_owned())
    );
    // If the mode is required, the result is an error with advice.
    let uri = config::Secret::new(Mongod::shared_v44().uri());
    let settings = config::Store {
        uri,
        mode: config::StoreMode::Timeseries,
        ..settings(db.name())
    };
    let store = MongoStore::new(&settings, Span::HOUR, Duration::from_secs(3600))
        .await
        .unwrap();
    let error = store.prepare().await.unwrap_err();
    assert!(
        error.end == PrepareErrorEnd::Operator
            && error.detail.contains("set store.mode to auto or bucket"),
        "{error}"
    );
    assert!(
        store
            .schema()
            .inspect()
            .await
            .unwrap_err()
            .to_string()
            .contains("set store.mode to auto or bucket")
    );
}
