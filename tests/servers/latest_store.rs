//! `sensor_latest` in the stores: the memory store and MongoDB are compared with one naive model
//! ([`model`]); and a service is killed.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::support;
use crate::support::block_on;
use crate::support::mongod::{Mongod, unique_database};
use crate::support::service::Service;
use model::{LatestUpdate, Reading, Rows, Span, Value};
use mongodb::bson::{Bson, Document, doc};
use proptest::strategy::{Strategy, ValueTree};
use store::mongo::{LATEST, MongoStore, OptionalIndexes};
use store::{LatestWriteResult, PrepareErrorEnd, Store};
use testkit::memory_store::MemoryStore;
use testkit::memory_store::latest::LatestDocument;

use super::latest::{RECENT, model, number, reading, run, steps};

const PATIENCE: Duration = Duration::from_secs(60);

async fn mongo(test: &str) -> (MongoStore, mongodb::Database) {
    let uri = config::Secret::new(Mongod::shared().uri());
    let settings = config::Store {
        uri,
        database: unique_database(test),
        ..config::Config::default().store
    };
    let client = mongodb::Client::with_uri_str(settings.uri.reveal())
        .await
        .unwrap();
    let database = client.database(&settings.database);
    let store = MongoStore::new(&settings, Span::HOUR, Duration::from_secs(3600))
        .await
        .unwrap();
    let store = store.with_latest_and_tags(OptionalIndexes {
        latest: true,
        tags_index: false,
    });
    store.prepare().await.unwrap();
    (store, database)
}

fn value(bson: &Bson) -> Value {
    match bson {
        Bson::Double(v) => Value::Double(*v),
        Bson::Int64(v) => Value::Int(*v),
        Bson::Boolean(v) => Value::Bool(*v),
        Bson::String(v) => Value::Str(v.clone()),
        other => panic!("unexpected value: {other}"),
    }
}

/// `sensor_latest` as stored. Nothing else may be in a document, and readings have their time
/// first.
async fn stored(database: &mongodb::Database) -> BTreeMap<String, LatestDocument> {
    let mut cursor = database
        .collection::<Document>(LATEST)
        .find(doc! {})
        .await
        .unwrap();
    let mut all = BTreeMap::new();
    while cursor.advance().await.unwrap() {
        let found: Document = cursor.deserialize_current().unwrap();
        let names: BTreeSet<&str> = found.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            BTreeSet::from(["_id", "last_ts", "recent", "values"])
        );
        let ts = |d: &Document, name: &str| d.get_datetime(name).unwrap().timestamp_millis();
        let newest = |(name, v): (&String, &Bson)| {
            let v = v.as_document().unwrap();
            (name.clone(), (ts(v, "ts"), value(v.get("value").unwrap())))
        };
        let recent = |r: &Bson| {
            let r = r.as_document().unwrap();
            assert_eq!(r.keys().next().unwrap(), "ts");
            let values = r
                .iter()
                .skip(1)
                .map(|(name, v)| (name.clone(), value(v)))
                .collect();
            (ts(r, "ts"), values)
        };
        let document = LatestDocument {
            last_ts_ms: ts(&found, "last_ts"),
            values: found
                .get_document("values")
                .unwrap()
                .iter()
                .map(newest)
                .collect(),
            recent: found
                .get_array("recent")
                .unwrap()
                .iter()
                .map(recent)
                .collect(),
        };
        all.insert(found.get_str("_id").unwrap().to_owned(), document);
    }
    all
}

fn update(readings: &[Reading], recent_max: usize) -> LatestUpdate {
    let mut rows = Rows::default();
    readings.iter().for_each(|r| rows.push_reading(r));
    LatestUpdate {
        sensor_id: readings[0].sensor_id.as_str().into(),
        rows,
        recent_max,
    }
}

/// The contract of [`Store::latest`], for memory and MongoDB: the same random histories end in the
/// same documents.
#[tokio::test]
async fn memory_and_mongodb_end_with_the_same_documents() {
    let (store, database) = mongo("latest_contract").await;
    let memory = MemoryStore::new();
    let mut rng = proptest::test_runner::TestRunner::deterministic();
    let mut all = vec![];
    for round in 0..60 {
        let steps = steps().new_tree(&mut rng).unwrap().current();
        let mut updates: Vec<LatestUpdate> = vec![];
        all.extend(run(&steps, |update| updates.push(update.clone())));
        for update in &updates {
            for store in [&store as &dyn Store, &memory] {
                assert_eq!(
                    store.latest(std::slice::from_ref(update)).await.unwrap(),
                    [LatestWriteResult::Done]
                );
            }
        }
        assert_eq!(
            stored(&database).await,
            model(&all, RECENT),
            "round {round}"
        );
        assert_eq!(memory.pages().latest, model(&all, RECENT));
    }
}

#[tokio::test]
async fn numbers_of_both_kinds_keep_their_kind_and_are_ordered_exactly() {
    let (store, database) = mongo("latest_numbers").await;
    let memory = MemoryStore::new();
    let big = 1i64 << 53;
    let values = [
        Value::Int(big + 1),
        Value::Double(big as f64),
        Value::Int(i64::MAX),
        Value::Double(9_223_372_036_854_775_808.0),
        Value::Int(i64::MIN),
        Value::Double(-0.5),
        Value::Str("$n".into()),
        Value::Str("é".into()),
        Value::Bool(false),
    ];
    for chunk in [&values[..4], &values[4..], &values[2..6]] {
        let readings: Vec<_> = chunk
            .iter()
            .map(|v| reading("s", 1000, &[("v", v.clone())]))
            .collect();
        for store in [&store as &dyn Store, &memory] {
            store.latest(&[update(&readings, 6)]).await.unwrap();
        }
        assert_eq!(stored(&database).await, memory.pages().latest);
    }
    let kept = memory.pages().latest["s"].clone();
    assert_eq!(kept.values["v"], (1000, Value::Bool(false)));
    let last: Vec<Value> = kept.recent.iter().map(|(_, v)| v["v"].clone()).collect();
    let expected = [2, 3, 6, 7, 8].map(|i| values[i].clone());
    assert_eq!(
        last[1..],
        expected,
        "2^53 and 2^53 + 1 are different values"
    );
}

#[tokio::test]
async fn a_smaller_recent_applies_zero_keeps_none_and_one_command_has_many() {
    let (store, database) = mongo("latest_recent").await;
    let readings: Vec<_> = (0..8).map(|n| number("s", n, n)).collect();
    store.latest(&[update(&readings, 8)]).await.unwrap();
    store.latest(&[update(&readings[..1], 3)]).await.unwrap();
    assert_eq!(
        stored(&database).await["s"]
            .recent
            .iter()
            .map(|r| r.0)
            .collect::<Vec<_>>(),
        [5, 6, 7]
    );
    store.latest(&[update(&readings[..1], 0)]).await.unwrap();
    let document = stored(&database).await.remove("s").unwrap();
    assert_eq!(
        (document.recent.len(), document.values["n"].clone()),
        (0, (7, Value::Int(7)))
    );
    let many: Vec<_> = (0..3000)
        .map(|i| update(&[number(&format!("m{i}"), i, i)], 2))
        .collect();
    let answers = store.latest(&many).await.unwrap();
    assert!(answers.len() == 3000 && answers.iter().all(|a| *a == LatestWriteResult::Done));
    assert_eq!(stored(&database).await.len(), 3001);
}

#[tokio::test]
async fn a_view_of_that_name_is_refused_at_the_start() {
    let (store, database) = mongo("latest_view").await;
    database
        .collection::<Document>(LATEST)
        .drop()
        .await
        .unwrap();
    database
        .run_command(doc! { "create": LATEST, "viewOn": "x", "pipeline": [] })
        .await
        .unwrap();
    let error = store.prepare().await.unwrap_err();
    assert!(
        error.end == PrepareErrorEnd::Operator && error.detail.contains("latest.enabled = false"),
        "{error}"
    );
}

#[tokio::test]
async fn a_document_changed_by_another_program_is_repaired() {
    let (store, database) = mongo("latest_mended").await;
    let latest = database.collection::<Document>(LATEST);
    latest
        .insert_one(doc! { "_id": "s", "recent": "none", "values": 1, "last_ts": null })
        .await
        .unwrap();
    assert_eq!(
        store
            .latest(&[update(&[number("s", 5, 5)], 3)])
            .await
            .unwrap(),
        [LatestWriteResult::Done]
    );
    assert_eq!(stored(&database).await, model(&[number("s", 5, 5)], 3));
}

#[tokio::test]
async fn a_refused_update_is_distinguished_from_the_others() {
    let (store, database) = mongo("latest_refused").await;
    let command = doc! { "collMod": LATEST, "validator": { "_id": { "$ne": "bad" } } };
    database.run_command(command).await.unwrap();
    let updates = ["a", "bad", "c"].map(|id| update(&[number(id, 1, 1)], 2));
    let answers = store.latest(&updates).await.unwrap();
    assert!(
        matches!(&answers[1], LatestWriteResult::Rejected { detail } if detail.contains("121")),
        "{answers:?}"
    );
    assert_eq!(
        (&answers[0], &answers[2]),
        (&LatestWriteResult::Done, &LatestWriteResult::Done)
    );
    assert_eq!(
        stored(&database).await.keys().collect::<Vec<_>>(),
        ["a", "c"]
    );
    // One document that is too large for MongoDB, together with a good one.
    let text = |n: i64| reading("large", n, &[("t", Value::Str("x".repeat(200_000)))]);
    let large = update(&(0..100).map(text).collect::<Vec<_>>(), 100);
    let answers = store
        .latest(&[large, update(&[number("d", 1, 1)], 2)])
        .await
        .unwrap();
    assert!(
        matches!(&answers[0], LatestWriteResult::Reduced { .. }),
        "{answers:?}"
    );
    assert_eq!(answers[1], LatestWriteResult::Done);
}

/// Each time what matters least is left out, and everything else is written.
#[tokio::test]
async fn of_a_state_that_is_too_large_a_part_is_written() {
    let (store, database) = mongo("latest_large").await;
    let texts = |prefix: &str, n: usize| -> Vec<(String, Value)> {
        let text = |i| (format!("{prefix}{i}"), Value::Str("x".repeat(200_000)));
        (0..n).map(text).collect()
    };
    let of = |ts_ms: i64, values: &[(String, Value)]| {
        let values: Vec<(&str, Value)> = values
            .iter()
            .map(|(name, value)| (name.as_str(), value.clone()))
            .collect();
        reading("s", ts_ms, &values)
    };
    let merge = async |readings: &[Reading]| {
        let mut answers = store.latest(&[update(readings, 10)]).await.unwrap();
        match answers.remove(0) {
            LatestWriteResult::Reduced { detail } => detail,
            other => panic!("{other:?}"),
        }
    };
    // Ten readings of 2 MB: one fits, ten do not.
    let first = texts("a", 10);
    let readings: Vec<Reading> = (1..=10).map(|ts_ms| of(ts_ms, &first)).collect();
    let detail = merge(&readings).await;
    assert!(
        detail.ends_with("left out: the recent readings"),
        "{detail}"
    );
    let document = stored(&database).await.remove("s").unwrap();
    assert_eq!(
        (document.last_ts_ms, document.values.len()),
        (10, first.len())
    );
    assert!(document.recent.is_empty());
    // Fields of 2 MB and 15 MB do not fit together, the new number does.
    let mut second = texts("b", 75);
    second.push(("n".to_owned(), Value::Int(7)));
    let detail = merge(&[of(20, &second)]).await;
    assert!(detail.contains("texts of more than"), "{detail}");
    let document = stored(&database).await.remove("s").unwrap();
    assert_eq!(document.last_ts_ms, 20);
    assert_eq!(document.values["n"], (20, Value::Int(7)));
    assert_eq!(document.values.len(), first.len() + 1);
    assert_eq!(document.values["a0"].0, 10);
    // Short values that do not fit either: only the time.
    let mut third: Vec<(String, Value)> = (0..32_000)
        .map(|i| (format!("c{i:0>250}"), Value::Bool(true)))
        .collect();
    third.push(("n".to_owned(), Value::Int(8)));
    let detail = merge(&[of(30, &third)]).await;
    assert!(detail.contains("everything but the time"), "{detail}");
    let document = stored(&database).await.remove("s").unwrap();
    assert_eq!(document.last_ts_ms, 30);
    assert_eq!(document.values["n"], (20, Value::Int(7)));
}

/// The service is killed at random moments with a long interval. In the end the documents have
/// everything that was acknowledged, also for sensors that no longer send.
#[test]
fn killed_at_random_moments_the_latest_state_is_what_was_acknowledged() {
    let mongod = Mongod::shared();
    let database = unique_database("latest_crash");
    let text =
        "[flush]\nmax_age = \"100ms\"\n[latest]\nenabled = true\ninterval = \"1s\"\nrecent = 4\n";
    let settings = [
        ("STORE__URI", mongod.uri()),
        ("STORE__DATABASE", database.clone()),
    ];
    let settings: Vec<(&str, &str)> = settings.iter().map(|(k, v)| (*k, v.as_str())).collect();
    let mut service = Service::start(text, &settings);
    let begun = support::fleet::now_ms();
    let mut acked = vec![];
    for round in 0..6i64 {
        for n in 0..20 {
            // Each sensor except the first sends in one round only; every fourth reading is late.
            let silent = format!("r{round}");
            let ts = begun + round * 1000 + n * 10 - if n % 4 == 3 { 5000 } else { 0 };
            let readings = [
                number("steady", ts, n),
                number(&silent, ts, round * 100 + n),
            ];
            let body: String = readings
                .iter()
                .map(|r| {
                    let n = if let Value::Int(n) = r.values["n"] {
                        n
                    } else {
                        0
                    };
                    format!(
                        "{{\"sensor_id\":\"{}\",\"ts\":{},\"n\":{n}}}\n",
                        r.sensor_id, r.ts_ms
                    )
                })
                .collect();
            let answer = service.post("/v1/readings", "application/x-ndjson", body.as_bytes());
            assert_eq!(answer.unwrap().0, 200);
            acked.extend(readings);
        }
        // This does not wait for a condition: by now most pages are written, and most documents are
        // not.
        std::thread::sleep(Duration::from_millis(fastrand::u64(0..600)));
        service.kill9();
        service.restart();
    }
    assert_eq!(service.terminate(PATIENCE), 0, "{}", service.log());
    let found = block_on(async {
        let client = mongodb::Client::with_uri_str(mongod.uri()).await.unwrap();
        stored(&client.database(&database)).await
    });
    assert_eq!(found, model(&acked, 4));
}
