//! `sensor_latest`: if readings are split, repeated, late or replayed, the document is the same as
//! after sorting all readings. The rule is compared with a naive model; `latest_store.rs` compares
//! the stores with the same one.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};

use model::ack::Ack;
use model::{LatestUpdate, Now, Reading, ReadingBatch, Value};
use pipeline::latest::state::{Latest, LatestSettings, Pending};
use pipeline::route::row_refs;
use proptest::prelude::*;
use testkit::memory_store::Pages;
use testkit::memory_store::latest::LatestDocument;

pub(super) const RECENT: usize = 4;

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
pub(super) fn model(readings: &[Reading], recent_max: usize) -> BTreeMap<String, LatestDocument> {
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
pub(super) enum Step {
    Arrive(usize, Vec<Reading>),
    /// Time passes and a job is taken. Then it is written, written twice, returned unwritten, or
    /// returned although it was written.
    Write(usize, u8),
}

pub(super) fn steps() -> impl Strategy<Value = Vec<Step>> {
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
pub(super) fn run(steps: &[Step], mut write: impl FnMut(&LatestUpdate)) -> Vec<Reading> {
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
