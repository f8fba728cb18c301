//! Failing buckets in a shard that is full: the others go on.

use model::ack::Ack;
use model::{Reading, StorageMode};
use pipeline::accumulate::PageLimits;
use pipeline::accumulate::state::{Job, JobResult, Shard, ShardSettings};
use store::{StoreError, StoreErrorKind};

use crate::shard_rig::{START_MS, ShardRig, reading, settings, shard};

const PAGE: PageLimits = PageLimits {
    summary_bytes: 1 << 20,
    readings: 1000,
    bytes: 1 << 20,
};
const SENSORS_MAX: usize = 20;

fn received(sensor: &str) -> Reading {
    Reading {
        receipt_time: true,
        ..reading(sensor, START_MS, 1)
    }
}

fn is_bad(sensor: &str) -> bool {
    sensor.starts_with("bad")
}

/// The page writes of other shards.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Others {
    Succeed,
    Fail,
}

/// Some rounds in which the store fails each job with a bad sensor.
fn rounds(rig: &mut ShardRig, rounds: usize, others: Others) {
    for _ in 0..rounds {
        rig.now.mono_ms += 10;
        rig.shard.tick(rig.now);
        rig.shard.drain();
        if others == Others::Succeed {
            rig.shard.note_pages_written(rig.now.mono_ms - 1);
        }
        while let Some(job) = rig.shard.take(StorageMode::Bucket) {
            let failed = || StoreError::Unknown {
                kind: StoreErrorKind::Timeout,
                detail: "damaged".into(),
            };
            let result = match job {
                Job::Write(tickets, writes) if writes.iter().any(|w| is_bad(&w.sensor_id)) => {
                    JobResult::Write(tickets, writes, Err(failed()))
                }
                Job::Load(tickets, requests)
                    if requests.iter().any(|r| is_bad(&r.bucket.sensor_id)) =>
                {
                    JobResult::Load(tickets, requests, Err(failed()))
                }
                job => {
                    rig.carry_out(job, false);
                    continue;
                }
            };
            rig.shard.finished(result, rig.now);
        }
    }
}

fn rig(sensors: &[String]) -> ShardRig {
    let mut rig = ShardRig::new(StorageMode::Bucket, shard(SENSORS_MAX, PAGE));
    rig.shard.set_store_answers(true);
    let readings = sensors.iter().map(|sensor| received(sensor));
    rig.accept_all(readings.collect(), Ack::none(), false);
    assert!(rig.shard.full());
    rig
}

#[test]
fn one_failing_bucket_keeps_no_other_sensor_out_of_a_full_shard() {
    let mut sensors: Vec<String> = (1..SENSORS_MAX).map(|n| format!("good{n}")).collect();
    sensors.push("bad".into());
    let mut rig = rig(&sensors);
    rounds(&mut rig, 20, Others::Succeed);
    assert_eq!(rig.pages.readings().count(), SENSORS_MAX - 1);
    assert!(
        !rig.shard.full(),
        "the stored sensors make room, although they have just reported"
    );
    assert_eq!(rig.shard.quarantined().len(), 1);
    assert!(rig.shard.take_rejected_rows().is_empty(), "it is kept");
}

#[test]
fn failing_buckets_that_fill_the_shard_are_given_up() {
    let sensors: Vec<String> = (0..SENSORS_MAX).map(|n| format!("bad{n}")).collect();
    let mut rig = rig(&sensors);
    rounds(&mut rig, 1000, Others::Succeed);
    let given_up = rig.shard.take_rejected_rows();
    assert!(!given_up.is_empty());
    assert!(!rig.shard.full(), "there is room for others");
    assert!(
        given_up.len() < SENSORS_MAX,
        "only until there is room: {}",
        given_up.len()
    );
}

/// The second of two equal readings without a time must not be taken for the first, of which this
/// process knows that it wrote it.
#[test]
fn failing_buckets_that_fill_the_memory_are_given_up_before_counts_are_forgotten() {
    let mut rig = ShardRig::new(
        StorageMode::Bucket,
        Shard::new(ShardSettings {
            bytes_max: 64 << 10,
            ..settings(1000, PAGE)
        }),
    );
    rig.shard.set_store_answers(true);
    rig.accept(received("good"), false);
    rig.flush(0);
    // Each has less than an eighth of the memory: with more it would be given up anyway.
    for value in 0.. {
        if rig.shard.full() {
            break;
        }
        let bad = (0..40).map(|n| reading(&format!("bad{n}"), START_MS, value));
        rig.accept_all(bad.collect(), Ack::none(), false);
    }
    rounds(&mut rig, 1000, Others::Succeed);
    assert!(!rig.shard.full(), "there is room for others");
    assert!(!rig.shard.take_rejected_rows().is_empty());
    // The others recover.
    while !rig.shard.empty() {
        assert!(rig.now.mono_ms < 1_000_000, "{:?}", rig.shard);
        rig.now.mono_ms += 10;
        rig.shard.tick(rig.now);
        rig.shard.drain();
        rig.write_full_pages();
    }
    rig.accept(received("good"), false);
    rig.flush(1);
    assert_eq!(rig.stored("good", START_MS), 2);
}

/// `/readyz` and the metrics would otherwise never show it.
#[test]
fn a_bucket_that_fails_slowly_is_named_before_it_is_given_up() {
    let mut rig = ShardRig::new(StorageMode::Bucket, shard(SENSORS_MAX, PAGE));
    rig.shard.set_store_answers(true);
    rig.accept(received("bad"), false);
    let mut named = vec![];
    while rig.shard.take_rejected_rows().is_empty() {
        named.push(rig.shard.quarantined().len());
        assert!(named.len() < 100);
        // Its fourth fault comes after `flush.quarantine_after`.
        rig.now.mono_ms += 300_000;
        rounds(&mut rig, 1, Others::Succeed);
    }
    assert_eq!(named.last(), Some(&1), "{named:?}");
    assert!(rig.shard.quarantined().is_empty());
}

#[test]
fn nothing_is_given_up_while_the_store_does_not_answer() {
    let sensors: Vec<String> = (0..SENSORS_MAX).map(|n| format!("bad{n}")).collect();
    let mut rig = rig(&sensors);
    rig.shard.set_store_answers(false);
    rounds(&mut rig, 1000, Others::Succeed);
    assert!(rig.shard.take_rejected_rows().is_empty());
    assert!(rig.shard.full());
}

/// Many rounds, in which nothing is written at all.
fn nothing_is_written(sensors_max: usize) -> ShardRig {
    let mut rig = ShardRig::new(StorageMode::Bucket, shard(sensors_max, PAGE));
    rig.shard.set_store_answers(true);
    let sensors = (0..SENSORS_MAX).map(|n| received(&format!("bad{n}")));
    rig.accept_all(sensors.collect(), Ack::none(), false);
    // Of the time before.
    rig.shard.note_pages_written(rig.now.mono_ms);
    rounds(&mut rig, 10_000, Others::Fail);
    assert!(rig.shard.quarantined().is_empty());
    rig
}

#[test]
fn a_store_that_refuses_everything_is_no_fault_of_its_buckets() {
    let mut rig = nothing_is_written(100);
    rig.now.mono_ms += 600_000;
    rounds(&mut rig, 10_000, Others::Fail);
    assert!(rig.shard.quarantined().is_empty());
    assert!(rig.shard.take_rejected_rows().is_empty());
    // Now others succeed, and these still fail.
    rounds(&mut rig, 1000, Others::Succeed);
    assert_eq!(rig.shard.take_rejected_rows().len(), SENSORS_MAX);
}

#[test]
fn a_full_shard_waits_longer_if_nothing_at_all_is_written() {
    let mut rig = nothing_is_written(SENSORS_MAX);
    assert!(rig.shard.take_rejected_rows().is_empty());
    rig.now.mono_ms += 600_000;
    rounds(&mut rig, 10, Others::Fail);
    let given_up = rig.shard.take_rejected_rows().len();
    assert!((1..SENSORS_MAX).contains(&given_up), "{given_up}");
}
