//! `sensor_latest`: if readings are split, repeated, late or replayed, the document is the same as
//! after sorting all readings. The rule, the memory store and MongoDB are compared with one naive
//! model; and a service is killed.

#![allow(clippy::unwrap_used, reason = "a test")]

use crate::support;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::support::block_on;
use crate::support::mongod::{Mongod, unique_database};
use crate::support::service::Service;
use hourbucket::ack::Ack;
use hourbucket::config;
use hourbucket::latest::state::{Latest, LatestSettings, Pending};
use hourbucket::model::{LatestUpdate, Now, Reading, ReadingBatch, Rows, Span, Value};
use hourbucket::route::row_refs;
use hourbucket::store::memory::latest::LatestDocument;
use hourbucket::store::memory::{MemoryStore, Pages};
use hourbucket::store::mongo::{LATEST, MongoStore, OptionalIndexes};
use hourbucket::store::{LatestWriteResult, Store};
use mongodb::bson::{Bson, Document, doc};
use proptest::prelude::*;
use proptest::strategy::ValueTree;

const RECENT: usize = 4;
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn reading(sensor: &str, ts_ms: i64, values: &[(&str, Value)]) -> Reading {
    let values = values
        .iter()
        .map(|(k, v)| (k.to_string(), v.clone()))
        .collect();
    Reading {
        sensor_id: sensor.into(),
        ts_ms,
        receipt_time: false,
        tags: BTreeMap::new(),
        values,
    }
}

pub(super) fn number(sensor: &str, ts_ms: i64, n: i64) -> Reading {
    reading(sensor, ts_ms, &[("n", Value::Int(n))])
}

/// Few times and few values, so that equal ones occur. Each field has one kind of number: 1 and 1.0
/// are equal for MongoDB, and which of the two is kept is not defined.
fn any_reading() -> impl Strategy<Value = Reading> {
    let n = (-3i64..4).prop_map(Value::Int);
    let half = prop_oneof![Just(-1e300), Just(0.5), Just(1.5)].prop_map(Value::Double);
    let text = prop_oneof![
        "[a-c]{0,2}".prop_map(Value::Str),
        any::<bool>().prop_map(Value::Bool)
    ];
    let values = (
        prop::option::of(n),
        prop::option::of(half),
        prop::option::of(text),
    );
    (0u8..3, -3i64..9, values).prop_map(|(sensor, ts, (n, half, text))| {
        let mut values: Vec<(&str, Value)> = vec![];
        values.extend(n.map(|v| ("n", v)));
        values.extend(half.map(|v| ("a half", v)));
        values.extend(text.map(|v| ("word", v)));
        if values.is_empty() {
            values.push(("z", Value::Int(ts % 2)));
        }
        reading(&format!("s{sensor}"), ts * 1000, &values)
    })
}

/// A value as MongoDB orders it, implemented differently than in the service: kind, number, text.
fn sort_key(value: &Value) -> (u8, i64, String) {
    // All numbers here are halves of small integers, or one that is far below them.
    let halves = |v: f64| if v < -1e9 { i64::MIN } else { (v * 2.0) as i64 };
    match value {
        Value::Int(v) => (0, v * 2, String::new()),
        Value::Double(v) => (0, halves(*v), String::new()),
        Value::Str(v) => (1, 0, v.clone()),
        Value::Bool(v) => (2, i64::from(*v), String::new()),
    }
}

/// The expected documents: everything sorted.
fn model(readings: &[Reading], recent_max: usize) -> BTreeMap<String, LatestDocument> {
    let mut documents = BTreeMap::new();
    let sensors: BTreeSet<&String> = readings.iter().map(|r| &r.sensor_id).collect();
    for sensor in sensors {
        let mut own: Vec<&Reading> = readings.iter().filter(|r| r.sensor_id == *sensor).collect();
        let order = |r: &Reading| {
            let values: Vec<_> = r
                .values
                .iter()
                .map(|(k, v)| (sort_key(v).0, k.clone(), sort_key(v).1, sort_key(v).2))
                .collect();
            (r.ts_ms, values)
        };
        own.sort_by_key(|r| order(r));
        own.dedup_by_key(|r| order(r));
        let mut document = LatestDocument {
            last_ts_ms: own.last().unwrap().ts_ms,
            ..LatestDocument::default()
        };
        for r in &own {
            for (name, value) in &r.values {
                let held = document.values.get(name);
                if held.is_none_or(|(ts, v)| (*ts, sort_key(v)) <= (r.ts_ms, sort_key(value))) {
                    document
                        .values
                        .insert(name.clone(), (r.ts_ms, value.clone()));
                }
            }
        }
        let newest = &own[own.len().saturating_sub(recent_max)..];
        document.recent = newest.iter().map(|r| (r.ts_ms, r.values.clone())).collect();
        documents.insert(sensor.clone(), document);
    }
    documents
}

pub(super) fn settings() -> LatestSettings {
    LatestSettings {
        interval_ms: 1000,
        recent_max: RECENT,
        command_bytes_max: 1 << 20,
        command_statements_max: 2,
        bytes_max: 1 << 20,
        sensors_max: 1000,
    }
}

pub(super) fn now(mono_ms: u64) -> Now {
    Now {
        wall_ms: 0,
        mono_ms,
    }
}

fn accept(state: &mut Latest, readings: &[Reading], ack: Option<Ack>, at_ms: u64) {
    let batch = readings.iter().cloned().collect::<ReadingBatch>();
    let row_refs = row_refs(&batch, 1).remove(0);
    state.accept(&batch, &row_refs, ack, now(at_ms));
}

/// A step between readings, and its instance.
#[derive(Debug, Clone)]
enum Step {
    Arrive(usize, Vec<Reading>),
    /// Time passes and a job is taken. Then it is written, written twice, returned unwritten, or
    /// returned although it was written.
    Write(usize, u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let arrive = (0usize..2, prop::collection::vec(any_reading(), 1..12))
        .prop_map(|(i, r)| Step::Arrive(i, r));
    let write = (0usize..2, 0u8..4).prop_map(|(i, fate)| Step::Write(i, fate));
    prop::collection::vec(prop_oneof![arrive, write], 1..30)
}

fn step(state: &mut Latest, fate: u8, at_ms: u64, mut write: impl FnMut(&LatestUpdate)) {
    let job: Vec<Pending> = state.take(now(at_ms));
    assert!(job.len() <= 2, "more statements than a command may have");
    for pending in job {
        if fate != 2 {
            write(&pending.update);
        }
        match fate {
            0 => {}
            1 => write(&pending.update),
            _ => state.came_back(pending),
        }
    }
}

/// Runs the steps on two instances; every update that reaches a store is passed to `write`. Returns
/// all readings.
fn run(steps: &[Step], mut write: impl FnMut(&LatestUpdate)) -> Vec<Reading> {
    let mut instances = [Latest::new(settings()), Latest::new(settings())];
    let mut all = vec![];
    let mut at_ms = 0;
    for step_ in steps {
        match step_ {
            Step::Arrive(i, readings) => {
                all.extend_from_slice(readings);
                accept(&mut instances[*i], readings, None, at_ms);
            }
            Step::Write(i, fate) => {
                at_ms += 700;
                step(&mut instances[*i], *fate, at_ms, &mut write);
            }
        }
    }
    for state in &mut instances {
        state.drain();
        while !state.empty() {
            step(state, 0, at_ms, &mut write);
        }
        // Unused field schemas are swept periodically; their empty tables keep a little memory.
        state.tick(Now {
            wall_ms: 0,
            mono_ms: at_ms + 60_000,
        });
        state.tick(Now {
            wall_ms: 0,
            mono_ms: at_ms + 120_000,
        });
        let left = state.usage();
        assert!(
            left.sensors == 0 && left.bytes <= 2048,
            "the counters are not zero at the end: {left:?}"
        );
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn in_any_order_repeated_and_split_it_equals_the_sorted_readings(steps in steps()) {
        let mut pages = Pages::default();
        let mut before: BTreeMap<String, LatestDocument> = BTreeMap::new();
        let all = run(&steps, |update| {
            pages.merge_latest(update);
            let id = update.sensor_id.to_string();
            let document = pages.latest[&id].clone();
            if let Some(was) = before.insert(id, document.clone()) {
                assert!(was.last_ts_ms <= document.last_ts_ms, "back in time");
                for (name, (ts, _)) in &was.values {
                    assert!(*ts <= document.values[name].0, "{name} went back in time");
                }
            }
        });
        prop_assert_eq!(&pages.latest, &model(&all, RECENT));
    }
}

#[test]
fn a_fast_sensor_uses_no_more_memory_than_its_kept_readings() {
    let mut state = Latest::new(LatestSettings {
        interval_ms: 3_600_000,
        ..settings()
    });
    accept(
        &mut state,
        &[
            number("s", -5, 0),
            reading("s", -4, &[("rare", Value::Bool(true))]),
        ],
        None,
        0,
    );
    accept(
        &mut state,
        &(0..30).map(|n| number("s", n, n)).collect::<Vec<_>>(),
        None,
        0,
    );
    let bytes = state.usage().bytes;
    for n in 30..20_000 {
        accept(&mut state, &[number("s", n, n)], None, 0);
    }
    assert!(
        state.usage().bytes < 2 * bytes + 1000,
        "{} and {bytes} before",
        state.usage().bytes
    );
    state.drain();
    let update = state.take(now(0)).remove(0).update;
    let mut document = LatestDocument::default();
    document.merge(&update);
    assert_eq!(
        document.values["rare"],
        (-4, Value::Bool(true)),
        "the newest of a rare field is kept"
    );
    assert_eq!(
        document.recent.iter().map(|r| r.0).collect::<Vec<_>>(),
        [19_996, 19_997, 19_998, 19_999]
    );
}

#[test]
fn at_its_limits_it_writes_early_and_then_accepts_no_more() {
    let mut state = Latest::new(LatestSettings {
        interval_ms: 3_600_000,
        sensors_max: 3,
        ..settings()
    });
    for i in 0..3 {
        assert!(!state.full());
        accept(&mut state, &[number(&format!("s{i}"), 0, 0)], None, 0);
    }
    assert!(state.full());
    assert_eq!(
        state.next_due_ms(),
        Some(0),
        "the next ones are due though the hour is not over"
    );
    assert!(!state.take(now(0)).is_empty());
    assert!(!state.full());
}

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
        !error.transient && error.detail.contains("latest.enabled = false"),
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
        matches!(&answers[0], LatestWriteResult::Rejected { .. }),
        "{answers:?}"
    );
    assert_eq!(answers[1], LatestWriteResult::Done);
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
