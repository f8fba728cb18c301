//! The store's contract (`src/store/mod.rs`), against the memory store and a real MongoDB; and what
//! only a real one has: the documents, the view, the validator, the indexes.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::support::mongod::{Mongod, unique_database};
use futures_util::TryStreamExt;
use hourbucket::config;
use hourbucket::maintain::StoredPage;
use hourbucket::model::batch::Tags;
use hourbucket::model::summary::summarise;
use hourbucket::model::{
    BatchBuilder, BucketKey, BucketStart, DeadLetter, PageKind, PageWrite, Reading, Rows, SensorId,
    Span, StorageMode, Value,
};
use hourbucket::store::memory::MemoryStore;
use hourbucket::store::mongo::MongoStore;
use hourbucket::store::reading::{PageQuery, SensorQuery};
use hourbucket::store::summaries::{EdgeQuery, SummaryQuery};
use hourbucket::store::{
    LoadRequest, LoadResult, LoadedBucket, LoadedPage, PageWriteResult, Store, StoreError,
};
use mongodb::bson::{Bson, DateTime, Document, doc};

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

fn append(sensor: &str, known_count: u32, seal: bool, readings: &[Reading]) -> PageWrite {
    page(sensor, 0, PageKind::Append { known_count }, seal, readings)
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
    seals(store).await;
    mixed(store).await;
    loads(store).await;
    many(store).await;
    summaries_and_edges(store).await;
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
    pages(store).await;
    sensors(store).await;
    crate::catalog::contract(store).await;
    store.ping().await.unwrap();
}

/// The pages of several sensors in one request, and the readings at the first millisecond of
/// buckets.
async fn summaries_and_edges(store: &dyn Store) {
    let at = |ms: i64, n: i64| {
        reading(
            START.0 + ms,
            &[("n", Value::Int(n)), ("text", Value::Str("x".into()))],
        )
    };
    let first = [at(5, 2), at(0, 1), at(0, 3)];
    assert_eq!(
        write(store, page("E1", 0, PageKind::Create, true, &first)).await,
        PageWriteResult::Done { count: 3 }
    );
    let late = [at(9, 4), at(0, 5)];
    assert_eq!(
        write(store, page("E1", 1, PageKind::Create, false, &late)).await,
        PageWriteResult::Done { count: 2 }
    );
    let none = [at(1, 6)];
    assert_eq!(
        write(store, page("E2", 0, PageKind::Create, false, &none)).await,
        PageWriteResult::Done { count: 1 }
    );
    let sensor_ids: Vec<SensorId> = vec!["E1".into(), "E2".into(), "E3".into()];
    let from = START;
    let to_ms = START.0 + HOUR;
    let query = SummaryQuery {
        sensor_ids: sensor_ids.clone(),
        from,
        to_ms,
        fields: vec!["n".to_owned()],
    };
    let mut found = store.summaries(&query).await.unwrap();
    assert!(found.rest.is_empty());
    found
        .pages
        .sort_by_key(|(key, page)| (key.clone(), std::cmp::Reverse(page.page)));
    let shown = |(key, page): &(BucketKey, StoredPage)| {
        let n = page.summary["n"].unwrap();
        assert!(page.rows.is_empty() && key.start == START);
        (
            key.sensor_id.to_string(),
            page.count,
            page.first_ts_ms.unwrap() - START.0,
            n.sum.as_f64() as i64,
        )
    };
    let shown: Vec<_> = found.pages.iter().map(shown).collect();
    assert_eq!(
        shown,
        [
            ("E1".into(), Some(2), 0, 9),
            ("E1".into(), Some(3), 0, 6),
            ("E2".into(), Some(1), 1, 6)
        ]
    );
    let earlier = SummaryQuery {
        to_ms: START.0,
        ..query
    };
    assert!(store.summaries(&earlier).await.unwrap().pages.is_empty());

    let starts = vec![START, BucketStart(START.0 + HOUR)];
    let edges = store
        .edges(&EdgeQuery { sensor_ids, starts })
        .await
        .unwrap();
    assert_eq!(edges.keys().map(|id| &**id).collect::<Vec<_>>(), ["E1"]);
    let mut values: Vec<String> = edges["E1"]
        .iter()
        .map(|row| format!("{:?}", row.named().next()))
        .collect();
    values.sort();
    assert_eq!(
        values,
        [1, 3, 5].map(|n| format!("Some((\"n\", Int({n})))"))
    );
    assert!(edges["E1"].iter().all(|row| row.ts_ms == START.0));
}

/// A query of the read API: pages of a sensor.
async fn pages(store: &dyn Store) {
    let all = temps(0..6);
    let mut next_hour = page(
        "read/1",
        0,
        PageKind::Create,
        false,
        &[reading(START.0 + HOUR, &[("n", Value::Int(9))])],
    );
    next_hour.start = BucketStart(START.0 + HOUR);
    let writes = [
        page("read/1", 0, PageKind::Create, true, &all[..4]),
        page("read/1", 1, PageKind::Create, false, &all[4..]),
        page("read/10", 0, PageKind::Create, false, &all[..1]),
        next_hour,
    ];
    // One command never has two pages of one bucket.
    for one in writes {
        assert!(matches!(
            write(store, one).await,
            PageWriteResult::Done { .. }
        ));
    }
    let question = PageQuery {
        sensor_id: "read/1".into(),
        from: START,
        to_ms: START.0 + 2 * HOUR,
        after: None,
        readings_from_ms: Some(i64::MIN),
    };
    let found = all_pages(store, &question).await;
    let places: Vec<_> = found
        .iter()
        .map(|(start, page)| ((start.0 - START.0) / HOUR, page.page, page.rows.len()))
        .collect();
    assert_eq!(
        places,
        [(0, 1, 2), (0, 0, 4), (1, 0, 1)],
        "by bucket, the last page of each first"
    );
    assert_eq!(
        found[1]
            .1
            .rows
            .iter()
            .map(|row| row.key())
            .collect::<Vec<_>>(),
        all[..4].iter().map(Reading::key).collect::<Vec<_>>()
    );
    assert_eq!((found[1].1.count, found[1].1.sealed), (Some(4), true));
    let one_hour = PageQuery {
        to_ms: START.0 + 1,
        ..question.clone()
    };
    assert_eq!(
        all_pages(store, &one_hour).await.len(),
        2,
        "a bucket that begins before the end counts"
    );
    let later = PageQuery {
        from: BucketStart(START.0 + HOUR),
        ..question.clone()
    };
    assert_eq!(all_pages(store, &later).await.len(), 1);
    let after = PageQuery {
        after: Some((START, 1)),
        ..question.clone()
    };
    assert_eq!(all_pages(store, &after).await.len(), 2);
    let heads = all_pages(
        store,
        &PageQuery {
            readings_from_ms: None,
            ..question.clone()
        },
    )
    .await;
    assert!(
        heads.len() == 3
            && heads
                .iter()
                .all(|(_, page)| page.rows.is_empty() && !page.summary.is_empty())
    );
    let late = PageQuery {
        readings_from_ms: Some(START.0 + 4000),
        ..question
    };
    let late: Vec<_> = all_pages(store, &late)
        .await
        .iter()
        .map(|(_, page)| (page.page, page.rows.len()))
        .collect();
    assert_eq!(
        late.first(),
        Some(&(1, 2)),
        "pages that end before that time are left out: {late:?}"
    );
}

/// All pages, with as many queries as necessary.
async fn all_pages(store: &dyn Store, question: &PageQuery) -> Vec<(BucketStart, StoredPage)> {
    let mut question = question.clone();
    let mut all = vec![];
    loop {
        let found = store.pages(&question).await.unwrap();
        all.extend(found.pages);
        match found.next {
            Some(next) => question.after = Some(next),
            None => return all,
        }
    }
}

/// Sensors in byte order over several pages; their newest state and their first bucket.
async fn sensors(store: &dyn Store) {
    // As bytes: "list/A" < "list/A!" < "list/A/x" < "list/B" < "list/a" < "list/ä".
    let ids = [
        "list/ä", "list/a", "list/B", "list/A/x", "list/A!", "list/A",
    ];
    for id in ids {
        write(store, page(id, 0, PageKind::Create, false, &temps(0..3))).await;
    }
    let sorted = [
        "list/A", "list/A!", "list/A/x", "list/B", "list/a", "list/ä",
    ];
    for limit in [1, 2, 5, 100] {
        let mut listed = vec![];
        let mut after = None;
        loop {
            let question = SensorQuery {
                prefix: "list/".into(),
                after,
                limit,
            };
            let some = store.sensors(&question).await.unwrap();
            assert!(some.len() <= limit);
            let is_last = some.len() < limit;
            after = some.last().cloned();
            listed.extend(some);
            if is_last {
                break;
            }
        }
        assert_eq!(listed, sorted, "{limit} at a time");
    }
    let prefix = SensorQuery {
        prefix: "list/A".into(),
        after: None,
        limit: 10,
    };
    assert_eq!(store.sensors(&prefix).await.unwrap(), sorted[..3]);
    let asked = ["list/B", "unknown", "read/1"].map(SensorId::from);
    let newest = store.newest(&asked).await.unwrap();
    assert_eq!(newest[0].last_ts_ms, Some(START.0 + 2000));
    assert_eq!(newest[0].values["n"], (START.0 + 2000, Value::Int(2)));
    assert_eq!(
        (newest[1].last_ts_ms, newest[2].last_ts_ms),
        (None, Some(START.0 + HOUR))
    );
    assert_eq!(
        store.first_buckets(&asked).await.unwrap(),
        [Some(START), None, Some(START)]
    );
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
    let empty = page("seal", 1, PageKind::Append { known_count: 1 }, true, &[]);
    assert_eq!(
        write(store, empty).await,
        PageWriteResult::Done { count: 1 },
        "sealing alone changes no count"
    );
    let late = page(
        "seal",
        1,
        PageKind::Append { known_count: 1 },
        false,
        &all[3..],
    );
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
        !error.transient && error.detail.contains("set store.mode to auto or bucket"),
        "{error}"
    );
    assert!(
        store
            .inspect()
            .await
            .unwrap_err()
            .to_string()
            .contains("set store.mode to auto or bucket")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_has_the_documented_form() {
    let (store, db) = mongo("document").await;
    let mut builder = BatchBuilder::new(10);
    builder
        .value("x", hourbucket::model::ValueRef::Int(1))
        .unwrap();
    builder
        .commit("S1", 0, false, &[("floor", "2"), ("site", "north")])
        .unwrap();
    let batch = builder.finish();
    let tags = Arc::new(Tags::from_canonical(batch.iter().next().unwrap().1.tags));
    let readings = [
        reading(
            START.0,
            &[("humid", Value::Int(60)), ("temp", Value::Double(22.5))],
        ),
        reading(
            START.0 + 60_000,
            &[
                ("humid", Value::Int(58)),
                ("on", Value::Bool(true)),
                ("temp", Value::Double(23.0)),
            ],
        ),
    ];
    let first = PageWrite {
        tags: Some(tags),
        ..page("S1", 0, PageKind::Create, false, &readings[..1])
    };
    write(&store, first).await;
    write(&store, append("S1", 1, true, &readings[1..])).await;
    let found = db
        .collection::<Document>("sensor_buckets")
        .find_one(doc! {})
        .await
        .unwrap()
        .unwrap();
    let date = |ms| Bson::DateTime(DateTime::from_millis(ms));
    let expected = doc! {
        "_id": { "sensor_id": "S1", "bucket_start": date(START.0), "page": 0 },
        "schema_version": 1,
        "sensor_id": "S1",
        "bucket_start": date(START.0),
        "bucket_end": date(START.0 + HOUR),
        "page": 0,
        "tags": { "floor": "2", "site": "north" },
        "count": 2,
        "first_ts": date(START.0),
        "last_ts": date(START.0 + 60_000),
        "summary": {
            "humid": { "min": 58i64, "max": 60i64, "sum": 118i64, "count": 2 },
            "temp": { "min": 22.5, "max": 23.0, "sum": 45.5, "count": 2 },
        },
        "readings": [
            { "ts": date(START.0), "humid": 60i64, "temp": 22.5 },
            { "ts": date(START.0 + 60_000), "humid": 58i64, "on": true, "temp": 23.0 },
        ],
        "has_overflow": true,
    };
    assert_eq!(found, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_view_merges_pages_and_finds_a_sensor_by_its_index() {
    let (store, db) = mongo("view").await;
    view(&store, &db).await;
    let (store, db) = mongo_v44("view_v44").await;
    view(&store, &db).await;
}

async fn view(store: &MongoStore, db: &mongodb::Database) {
    let all = temps(0..10);
    write(store, page("S1", 0, PageKind::Create, true, &all[..6])).await;
    write(store, page("S1", 1, PageKind::Create, false, &all[6..])).await;
    write(
        store,
        page(
            "S2",
            0,
            PageKind::Create,
            false,
            &[reading(START.0, &[("state", Value::Str("on".into()))])],
        ),
    )
    .await;
    let others: Vec<_> = (0..500)
        .map(|i| page(&format!("x{i}"), 0, PageKind::Create, false, &all[..2]))
        .collect();
    store.write(&others).await.unwrap();
    let view = db.collection::<Document>("sensor_summaries");
    let rows = |filter| async {
        view.find(filter)
            .await
            .unwrap()
            .try_collect::<Vec<_>>()
            .await
            .unwrap()
    };
    let row = rows(doc! { "sensor_id": "S1", "bucket_start": DateTime::from_millis(START.0) })
        .await
        .remove(0);
    assert_eq!(
        row.keys().collect::<std::collections::BTreeSet<_>>().len(),
        6,
        "{row}"
    );
    assert_eq!(row.get_i32("count").unwrap(), 10);
    assert_eq!(
        row.get_datetime("last_ts").unwrap().timestamp_millis(),
        START.0 + 9000
    );
    let summary = row.get_document("summary").unwrap();
    let temp = doc! { "min": 0.0, "max": 4.5, "sum": 22.5, "count": 10, "avg": 2.25 };
    assert_eq!(summary.get_document("temp").unwrap(), &temp);
    assert_eq!(
        summary.get_document("n").unwrap(),
        &doc! { "min": 0i64, "max": 9i64, "sum": 45i64, "count": 10, "avg": 4.5 }
    );
    assert!(
        rows(doc! { "sensor_id": "S2" }).await[0]
            .get_document("summary")
            .unwrap()
            .is_empty()
    );
    assert_eq!(rows(doc! {}).await.len(), 502);
    let explain = doc! {
        "explain": { "find": "sensor_summaries", "filter": { "sensor_id": "S1" } }, "verbosity": "executionStats",
    };
    let plan = db.run_command(explain).await.unwrap().to_string();
    assert!(
        plan.contains("IXSCAN") && !plan.contains("COLLSCAN"),
        "the view reads everything for one sensor: {plan}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn preparing_is_repeatable_follows_the_retention_and_refuses_other_documents() {
    let name = unique_database("prepare");
    let settings = settings(&name);
    let client = mongodb::Client::with_uri_str(settings.uri.reveal())
        .await
        .unwrap();
    let db = client.database(&name);
    for (days, ttl) in [
        (None, None),
        (Some(30), Some(30 * 86_400)),
        (Some(7), Some(7 * 86_400)),
        (None, None),
    ] {
        let settings = config::Store {
            retention: days.map(|d| Duration::from_secs(d * 86_400)),
            ..settings.clone()
        };
        let store = MongoStore::new(&settings, Span::HOUR, Duration::from_secs(86_400))
            .await
            .unwrap();
        store.prepare().await.unwrap();
        let indexes = db
            .run_command(doc! { "listIndexes": "sensor_buckets" })
            .await
            .unwrap();
        let batch = indexes
            .get_document("cursor")
            .unwrap()
            .get_array("firstBatch")
            .unwrap()
            .clone();
        let expire = batch.iter().find_map(|i| {
            let seconds = i.as_document()?.get("expireAfterSeconds")?;
            seconds
                .as_i64()
                .or(seconds.as_i32().map(i64::from))
                .or(seconds.as_f64().map(|f| f as i64))
        });
        assert_eq!(expire, ttl);
        let wanted = doc! { "sensor_id": 1, "bucket_start": -1, "page": 1 };
        assert!(
            batch.iter().any(|i| i
                .as_document()
                .unwrap()
                .get_document("key")
                .is_ok_and(|k| *k == wanted)),
            "{batch:?}"
        );
    }
    let other = db
        .collection::<Document>("sensor_buckets")
        .insert_one(doc! { "sensor_id": 5 })
        .await;
    assert!(
        other.unwrap_err().to_string().contains("validation"),
        "the validator is off"
    );
    let options = doc! { "listCollections": 1, "filter": { "name": "sensor_buckets" } };
    let options = db.run_command(options).await.unwrap().to_string();
    assert!(
        options.contains("block_compressor=zstd") && options.contains("moderate"),
        "{options}"
    );
}
