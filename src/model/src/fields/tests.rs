//! Tests of the limiter against a model of the names that each sensor really used.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::batch::BuildError;
use crate::{BatchBuilder, ReadingBatch, ValueRef};
use proptest::prelude::*;

const HOUR: i64 = 3_600_000;

/// Builds a batch of readings, each with the names of its sensor. Returns which of them were
/// accepted.
fn send(
    limiter: &FieldLimiter,
    max: usize,
    now_ms: i64,
    readings: &[(&str, i64, Vec<String>)],
) -> (Vec<bool>, ReadingBatch) {
    let mut builder = BatchBuilder::new(255);
    builder.guard(limiter.guard(max, now_ms));
    let mut taken = vec![];
    for (sensor, ts_ms, names) in readings {
        builder.begin();
        names
            .iter()
            .for_each(|name| builder.value(name, ValueRef::Int(1)).unwrap());
        let committed = builder.commit(sensor, *ts_ms, false, &[]);
        if committed.is_err() {
            builder.abort();
        }
        taken.push(committed.is_ok());
    }
    (taken, builder.finish())
}

fn names(from: usize, to: usize) -> Vec<String> {
    (from..to).map(|i| format!("name{i}")).collect()
}

fn one(sensor: &str, ts_ms: i64, names: Vec<String>) -> [(&str, i64, Vec<String>); 1] {
    [(sensor, ts_ms, names)]
}

#[test]
fn a_sensor_alone_is_stopped_exactly_at_the_limit_in_one_batch_and_over_many() {
    let limiter = FieldLimiter::new(Span::HOUR);
    let each: Vec<_> = (0..1100).map(|i| ("S", 5, names(i, i + 1))).collect();
    let (taken, batch) = send(&limiter, 1024, 0, &each);
    assert!(taken[..1024].iter().all(|taken| *taken) && taken[1024..].iter().all(|taken| !taken));
    assert_eq!(batch.len(), 1024);
    for i in 0..1100 {
        assert_eq!(
            send(&limiter, 1024, 0, &one("S", 6, names(i, i + 1))).0,
            [i < 1024],
            "again: {i}"
        );
    }
    assert_eq!(
        send(&limiter, 1024, 0, &one("S", HOUR, names(1024, 1100))).0,
        [true],
        "another bucket"
    );
    assert_eq!(
        send(&limiter, 1024, 0, &one("T", 5, names(1024, 1100))).0,
        [true],
        "another sensor"
    );
    let mut many = BatchBuilder::new(255);
    many.guard(limiter.guard(1024, 0));
    (1000..1030).for_each(|i| many.value(&format!("name{i}"), ValueRef::Int(1)).unwrap());
    let refused = many.commit("S", 7, false, &[]);
    assert_eq!(
        refused,
        Err(BuildError::BucketFieldsFull(BucketFieldsFull {
            used: 1024,
            new: 6,
            max: 1024
        }))
    );
    many.abort();
    assert!(many.finish().is_empty());
}

#[test]
fn many_sensors_with_the_same_thousands_of_names_are_stopped_near_the_limit() {
    let limiter = FieldLimiter::new(Span::HOUR);
    let sensors: Vec<String> = (0..40).map(|i| format!("S{i}")).collect();
    let mut used = BTreeMap::<&str, usize>::new();
    for i in 0..2000 {
        let all: Vec<_> = sensors
            .iter()
            .map(|sensor| (&**sensor, 5, names(i, i + 1)))
            .collect();
        let (taken, _) = send(&limiter, 1024, 0, &all);
        taken
            .iter()
            .zip(&sensors)
            .filter(|(taken, _)| **taken)
            .for_each(|(_, s)| *used.entry(s).or_default() += 1);
    }
    assert!(
        used.values()
            .all(|used| (1024..=1024 + shared_max(1024)).contains(used)),
        "{used:?}"
    );
}

#[test]
fn a_fleet_with_the_same_names_is_not_counted() {
    let limiter = FieldLimiter::new(Span::HOUR);
    let sensors: Vec<String> = (0..1000).map(|i| format!("S{i}")).collect();
    let all: Vec<_> = sensors
        .iter()
        .map(|sensor| (&**sensor, 5, names(0, 20)))
        .collect();
    for _ in 0..3 {
        assert!(
            send(&limiter, 1024, 0, &all[..2])
                .0
                .iter()
                .all(|taken| *taken)
        );
    }
    let before = limiter.memory_bytes();
    assert!(send(&limiter, 1024, 0, &all).0.iter().all(|taken| *taken));
    assert_eq!(
        limiter.memory_bytes(),
        before,
        "readings with only shared names leave no trace"
    );
    assert!(
        send(&limiter, 1024, 2 * HOUR, &all)
            .0
            .iter()
            .all(|taken| *taken)
    );
    let after = limiter.memory_bytes();
    assert!(after > before, "the shared names are determined again");
    assert!(
        send(&limiter, 1024, 2 * HOUR + 1, &all)
            .0
            .iter()
            .all(|taken| *taken)
    );
    assert_eq!(limiter.memory_bytes(), after, "and are shared again");
}

#[test]
fn memory_is_bounded_for_every_input() {
    let limiter = FieldLimiter::new(Span::HOUR);
    let mut most = 0;
    for sensor in 0..12_000 {
        let id = format!("S{sensor}");
        send(
            &limiter,
            1024,
            0,
            &one(&id, 5, names(sensor * 200, sensor * 200 + 200)),
        );
        if sensor % 1000 == 0 {
            most = most.max(limiter.memory_bytes());
        }
    }
    assert!(
        most > MEMORY_MAX / 4 && most <= MEMORY_MAX + STRIPES * 10_000,
        "{most} bytes"
    );
}

/// Readings of three sensors in two hours, each with one to four of thirty names.
fn readings() -> impl Strategy<Value = Vec<Vec<(u8, u8, Vec<u8>)>>> {
    let reading = (0u8..3, 0u8..2, prop::collection::btree_set(0u8..30, 1..5));
    let reading =
        reading.prop_map(|(sensor, hour, names)| (sensor, hour, names.into_iter().collect()));
    prop::collection::vec(prop::collection::vec(reading, 1..12), 1..20)
}

proptest! {
    #[test]
    fn no_sensor_within_the_limit_is_refused_and_none_gets_far_beyond(batches in readings(), max in 4usize..24) {
        let limiter = FieldLimiter::new(Span::HOUR);
        let mut sent = BTreeMap::<(u8, u8), BTreeSet<u8>>::new();
        let mut kept = BTreeMap::<(u8, u8), BTreeSet<u8>>::new();
        for batch in &batches {
            let ids: Vec<String> = batch.iter().map(|(sensor, ..)| sensor.to_string()).collect();
            let named = |names: &Vec<u8>| names.iter().map(u8::to_string).collect();
            let readings: Vec<_> =
                batch.iter().zip(&ids).map(|((_, hour, names), id)| (&**id, i64::from(*hour) * HOUR, named(names))).collect();
            let (taken, _) = send(&limiter, max, 0, &readings);
            for ((sensor, hour, names), taken) in batch.iter().zip(taken) {
                let sent = sent.entry((*sensor, *hour)).or_default();
                sent.extend(names);
                prop_assert!(taken || sent.len() > max, "within the limit, and refused");
                if taken {
                    kept.entry((*sensor, *hour)).or_default().extend(names);
                }
            }
        }
        for names in kept.values() {
            prop_assert!(names.len() <= max + shared_max(max), "{} of {max}", names.len());
        }
    }
}
