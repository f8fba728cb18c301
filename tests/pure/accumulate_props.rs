//! The accumulator against a naive model: for any input in any order, each bucket holds exactly the
//! readings of its time once, in as few full pages as necessary, also before 1970.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use model::ack::Ack;
use model::{BucketStart, NewBuckets, Now, Reading, ReadingBatch, Span, StorageMode, Value};
use pipeline::accumulate::PageLimits;
use pipeline::accumulate::state::{Job, JobResult, Shard, ShardSettings};
use pipeline::flush::backoff::Backoff;
use pipeline::flush::due::DuePolicy;
use pipeline::route::row_refs;
use proptest::prelude::*;
use store::PageWriteResult;
use testkit::memory_store::Pages;

const HOUR: i64 = 3_600_000;

/// Times at and near the boundaries of hours, before and after 1970 and the start of the process.
fn time() -> impl Strategy<Value = i64> {
    let edge = prop_oneof![-3i64..3, 472_000i64..472_003].prop_map(|hour| hour * HOUR);
    (edge, prop_oneof![-2i64..3, 0..HOUR]).prop_map(|(edge, offset)| edge + offset)
}

/// The field `n` is an integer or an equal double; for 0 it is -0.0.
fn reading() -> impl Strategy<Value = Reading> {
    (0u8..3, time(), -2i64..3, any::<bool>()).prop_map(|(sensor, ts_ms, n, is_int)| {
        let number = match is_int {
            true => Value::Int(n),
            false => Value::Double(-(-n as f64)),
        };
        Reading {
            sensor_id: format!("s{sensor}"),
            ts_ms,
            receipt_time: false,
            tags: BTreeMap::new(),
            values: BTreeMap::from([
                ("n".into(), number),
                ("half".into(), Value::Double(n as f64 / 2.0)),
            ]),
        }
    })
}

/// What distinguishes the readings of a sensor: the time, and `half`, which determines `n`.
type Identity = (i64, String);

fn identity(reading: &Reading) -> Identity {
    (reading.ts_ms, format!("{:?}", reading.values["half"]))
}

/// A step between two batches.
#[derive(Debug, Clone)]
enum Step {
    Batch(Vec<Reading>),
    Flush,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let batch = prop::collection::vec(reading(), 1..20).prop_map(Step::Batch);
    prop::collection::vec(prop_oneof![3 => batch, 1 => Just(Step::Flush)], 1..20)
}

fn shard(page: u32, dedup_keys_max: usize) -> Shard {
    let mut shard = Shard::new(ShardSettings {
        span: Span::HOUR,
        page: PageLimits {
            readings: page,
            bytes: 1 << 20,
            summary_bytes: 1 << 20,
        },
        due: DuePolicy::Age(1000),
        command_bytes_max: 4 << 20,
        command_statements_max: 3,
        bytes_max: 1 << 20,
        sensors_max: 100,
        dedup_keys_max,
        quarantine_after_ms: 600_000,
        arrival_step_ms: 60_000,
        backoff: Backoff {
            min: Duration::from_millis(1),
            max: Duration::from_millis(1),
        },
    });
    // Some buckets are new, and others must be loaded first.
    let at = |hours: i64| BucketStart(hours * HOUR);
    shard.set_new_buckets(NewBuckets::NONE.raised(at(472_000), at(480_000)));
    shard
}

/// Executes everything that is due until nothing is left. If a bucket is in backoff, the clock
/// advances.
fn flush(shard: &mut Shard, pages: &mut Pages, mut now: Now, storage_mode: StorageMode) {
    let mut waits = 0;
    while !shard.empty() {
        shard.drain();
        let Some(job) = shard.take(storage_mode) else {
            waits += 1;
            assert!(
                waits < 100,
                "readings are pending, but there is no job for them"
            );
            now.mono_ms += 10;
            shard.promote(now);
            continue;
        };
        let done = match job {
            Job::Write(tickets, writes) => {
                let answers = writes.iter().map(|w| pages.write(w)).collect();
                JobResult::Write(tickets, writes, Ok(answers))
            }
            Job::Load(tickets, requests) => {
                let loaded = requests
                    .iter()
                    .map(|r| pages.load(r, storage_mode))
                    .collect();
                JobResult::Load(tickets, requests, Ok(loaded))
            }
        };
        shard.finished(done, now);
    }
}

proptest! {
    #[test]
    fn every_bucket_matches_the_naive_model(steps in steps(), page in 1u32..8, dedup_keys_max in 0usize..20, series: bool) {
        let storage_mode = if series { StorageMode::TimeSeries } else { StorageMode::Bucket };
        let now = Now { wall_ms: 472_002 * HOUR, mono_ms: 1000 };
        let mut shard = shard(page, dedup_keys_max);
        let mut pages = Pages::default();
        // Of equal readings, the first.
        let mut model: BTreeMap<(String, i64), BTreeMap<Identity, Reading>> = BTreeMap::new();
        let mut sent = 0;
        let mut distinct = 0;
        for step in &steps {
            match step {
                Step::Flush => flush(&mut shard, &mut pages, now, storage_mode),
                Step::Batch(readings) => {
                    let batch: ReadingBatch = readings.iter().cloned().collect();
                    shard.accept(&batch, &row_refs(&batch, 1)[0], Ack::none(), false, now);
                    sent += readings.len() as u64;
                    for r in readings {
                        // Rounded towards the past, implemented differently than in the code.
                        let hour = if r.ts_ms >= 0 { r.ts_ms / HOUR } else { -((HOUR - 1 - r.ts_ms) / HOUR) };
                        let bucket = model.entry((r.sensor_id.clone(), hour * HOUR)).or_default();
                        if let Entry::Vacant(first) = bucket.entry(identity(r)) {
                            first.insert(r.clone());
                            distinct += 1;
                        }
                    }
                }
            }
        }
        flush(&mut shard, &mut pages, now, storage_mode);
        prop_assert_eq!(pages.check(page), Ok(()));
        let counts = shard.take_counts();
        prop_assert_eq!((counts.stored, counts.duplicates, counts.conflicts), (distinct, sent - distinct, 0));
        let mut stored: BTreeMap<(String, i64), Vec<Reading>> = BTreeMap::new();
        let mut full: BTreeMap<(String, i64), u32> = BTreeMap::new();
        for ((sensor, start, _), p) in &pages.pages {
            let of_series = pages.series.get(&(sensor.clone(), *start)).map(Vec::as_slice).unwrap_or_default();
            let readings = p.readings.iter().chain(of_series);
            stored.entry((sensor.clone(), start.0)).or_default().extend(readings.cloned());
            *full.entry((sensor.clone(), start.0)).or_default() += 1;
        }
        for (bucket, readings) in &model {
            let mut found = stored.remove(bucket).unwrap_or_default();
            found.sort_by_key(identity);
            prop_assert_eq!(&found, &readings.values().cloned().collect::<Vec<_>>(), "{:?}", bucket);
            let expected = if series { 1 } else { (readings.len() as u32).div_ceil(page) };
            prop_assert_eq!(full[bucket], expected, "pages of {:?}", bucket);
        }
        prop_assert!(stored.is_empty(), "never sent: {:?}", stored);
    }
}

/// Readings with sensors, names and tags that never repeat.
fn unique(from: usize, n: usize) -> ReadingBatch {
    let reading = |i: usize| Reading {
        sensor_id: format!("S{}", i / 50),
        ts_ms: 472_001 * HOUR + i as i64,
        receipt_time: false,
        tags: BTreeMap::from([("tag".into(), format!("{i:0>100}"))]),
        values: (0..4)
            .map(|k| (format!("{i:0>60} {k}"), Value::Int(1)))
            .collect(),
    };
    (from..from + n).map(reading).collect()
}

#[test]
fn names_schemas_and_tags_are_counted_and_released_when_unused() {
    let mut shard = shard(1000, 0);
    let mut pages = Pages::default();
    let mut now = Now {
        wall_ms: 472_001 * HOUR,
        mono_ms: 1000,
    };
    let mut sent = 0;
    for round in 0..3 {
        while !shard.full() {
            let before = shard.usage().bytes;
            let batch = unique(sent, 100);
            shard.accept(&batch, &row_refs(&batch, 1)[0], Ack::none(), false, now);
            sent += 100;
            // 400 names of 62 bytes, and 100 schemas of four; the tags of two sensors.
            let grown = shard.usage().bytes - before;
            assert!(
                grown >= 400 * 62 + 100 * 4 * 16 + 2 * 100,
                "{grown} bytes in round {round}"
            );
        }
        flush(&mut shard, &mut pages, now, StorageMode::Bucket);
        // Two hours later nothing is pending, and the buckets are dropped.
        now = Now {
            wall_ms: now.wall_ms + 2 * HOUR,
            mono_ms: now.mono_ms + 2 * HOUR as u64,
        };
        (0..3).for_each(|_| shard.tick(now));
        let holding = shard.usage();
        assert_eq!((holding.sensors, holding.readings), (0, 0));
        assert!(
            holding.bytes < 64 << 10,
            "{} unused bytes are held in round {round}",
            holding.bytes
        );
        now.wall_ms -= 2 * HOUR;
    }
    assert_eq!(shard.take_counts().stored, sent as u64);
}

#[test]
fn a_bucket_that_has_failed_is_written_after_its_load_and_not_held_for_a_full_page() {
    let mut shard = shard(4, 10);
    let mut now = Now {
        wall_ms: 472_001 * HOUR,
        mono_ms: 1000,
    };
    let reading = |i: i64| Reading {
        sensor_id: "s".into(),
        ts_ms: 472_001 * HOUR + i,
        receipt_time: false,
        tags: BTreeMap::new(),
        values: BTreeMap::from([("n".into(), Value::Int(i))]),
    };
    let batch: ReadingBatch = (0..3).map(reading).collect();
    shard.accept(&batch, &row_refs(&batch, 1)[0], Ack::none(), false, now);
    let pages = &mut Pages::default();
    // Due at first; then after a backoff of a millisecond, and with three quarters of a page within
    // that time.
    for wait_ms in [2000, 5, 5, 5] {
        now.mono_ms += wait_ms;
        shard.promote(now);
        let Some(Job::Write(tickets, writes)) = shard.take(StorageMode::Bucket) else {
            panic!("it waits")
        };
        let answers = vec![PageWriteResult::Conflict; writes.len()];
        shard.finished(JobResult::Write(tickets, writes, Ok(answers)), now);
        now.mono_ms += 5;
        shard.promote(now);
        let Some(Job::Load(tickets, requests)) = shard.take(StorageMode::Bucket) else {
            panic!("it waits")
        };
        let loaded = requests
            .iter()
            .map(|r| pages.load(r, StorageMode::Bucket))
            .collect();
        shard.finished(JobResult::Load(tickets, requests, Ok(loaded)), now);
    }
}

/// A reading of sensor `s`, `s` seconds into an hour that no other process has written.
fn at_second(s: i64) -> ReadingBatch {
    at_ms(s * 1000)
}

/// The same, `ms` milliseconds into it.
fn at_ms(ms: i64) -> ReadingBatch {
    let values = BTreeMap::from([("n".into(), Value::Int(ms))]);
    let ts_ms = 472_001 * HOUR + ms;
    [Reading {
        sensor_id: "s".into(),
        ts_ms,
        receipt_time: false,
        tags: BTreeMap::new(),
        values,
    }]
    .into_iter()
    .collect()
}

/// Accepts a reading every `interval_s`, with the age stretched to a minute; returns when they are
/// written (ms after the start), and how many at a time.
fn written_while_busy(page: u32, interval_s: u64, until_s: u64) -> Vec<(u64, usize)> {
    let mut shard = shard(page, 10);
    shard.set_age_ms(60_000);
    written(&mut shard, interval_s * 1000, until_s)
}

/// The same with any interval and a shard of which the age is set.
fn written(shard: &mut Shard, interval_ms: u64, until_s: u64) -> Vec<(u64, usize)> {
    let mut pages = Pages::default();
    let mut written = vec![];
    for mono_ms in (0..until_s * 1000).step_by(100) {
        let now = Now {
            wall_ms: 472_001 * HOUR + mono_ms as i64,
            mono_ms: 1_000_000 + mono_ms,
        };
        if mono_ms % interval_ms == 0 {
            let batch = at_ms(mono_ms as i64);
            shard.accept(&batch, &row_refs(&batch, 1)[0], Ack::none(), false, now);
        }
        shard.tick(now);
        while let Some(Job::Write(tickets, writes)) = shard.take(StorageMode::Bucket) {
            written.extend(writes.iter().map(|w| (mono_ms, w.rows.len())));
            let answers = writes.iter().map(|w| pages.write(w)).collect();
            shard.finished(JobResult::Write(tickets, writes, Ok(answers)), now);
        }
    }
    written
}

#[test]
fn while_the_store_is_busy_few_readings_are_held_up_to_the_age_and_no_longer() {
    let written = written_while_busy(1000, 20, 600);
    assert!(
        written[1..].iter().all(|(_, rows)| (2..=3).contains(rows)),
        "{written:?}"
    );
    assert!(written.len() >= 9, "{written:?}");
    // Enough readings for a statement, a full page, and a sensor that reports more rarely than the
    // age.
    let dense = written_while_busy(1000, 1, 100);
    assert!(dense.len() >= 3, "{dense:?}");
    let mut stored = 0;
    for (_, rows) in &dense {
        // 30 more than its page, and up to two until its phase.
        assert!(*rows <= stored + 32, "{dense:?}");
        stored += rows;
    }
    let full = written_while_busy(3, 2, 60);
    // Its turn comes once in a minute, while the page is not full.
    let partial = full.iter().filter(|(_, rows)| *rows < 3).count();
    assert!(full.len() >= 8 && partial <= 2, "{full:?}");
    let rare = written_while_busy(1000, 70, 700);
    for (n, (at_ms, _)) in rare.iter().enumerate().skip(3) {
        assert!(at_ms - n as u64 * 70_000 <= 1100, "{rare:?}");
    }
}

#[test]
fn while_the_store_is_busy_a_page_that_fills_a_little_late_is_written_whole() {
    // The first reading beyond a page of 15 comes after 1.5 s; readings may wait for 1 s.
    for (age_ms, is_whole) in [(0, false), (1200, false), (1600, true), (60_000, true)] {
        let mut shard = shard(15, 10);
        shard.set_age_ms(age_ms);
        let written = written(&mut shard, 100, 30);
        let full = written.iter().filter(|(_, rows)| *rows == 15).count();
        let late = shard.take_counts().filled_late as usize;
        if is_whole {
            // One of 60 s may be divided by its sensor's turn.
            let parts = written.len() - full;
            assert!(full >= 18 && parts <= 2, "{age_ms} ms: {written:?}");
            assert!(late >= 18, "{late} with {age_ms} ms");
        } else {
            assert!(full <= 3 && written.len() >= 30, "{age_ms} ms: {written:?}");
            assert!(late <= 3, "{late} with {age_ms} ms");
        }
    }
}

#[test]
fn writes_that_are_queued_too_long_are_behind() {
    let mut shard = shard(1000, 10);
    let mut now = Now {
        wall_ms: 472_001 * HOUR,
        mono_ms: 1_000_000,
    };
    let batch = at_second(0);
    shard.accept(&batch, &row_refs(&batch, 1)[0], Ack::none(), false, now);
    let mut is_behind_after = |shard: &mut Shard, ms| {
        now.mono_ms += ms;
        shard.promote(now);
        shard.is_behind(now)
    };
    assert!(!is_behind_after(&mut shard, 100), "nothing is due");
    assert!(!is_behind_after(&mut shard, 1000), "due just now");
    assert!(is_behind_after(&mut shard, 1000 / 16), "queued too long");
    assert!(shard.take(StorageMode::Bucket).is_some());
    assert!(!is_behind_after(&mut shard, 100), "nothing is queued");
}

#[test]
fn a_full_shard_is_behind_before_anything_is_due() {
    let limits = PageLimits {
        readings: 1000,
        bytes: 1 << 20,
        summary_bytes: 1 << 20,
    };
    let mut shard = crate::shard_rig::shard(1, limits);
    let now = Now {
        wall_ms: 472_001 * HOUR,
        mono_ms: 1_000_000,
    };
    shard.promote(now);
    assert!(!shard.is_behind(now), "it has room");
    let batch = at_second(0);
    shard.accept(&batch, &row_refs(&batch, 1)[0], Ack::none(), false, now);
    shard.promote(now);
    assert!(shard.full() && shard.is_behind(now));
}

#[test]
fn a_shutdown_ends_the_hold() {
    let mut shard = shard(1000, 10);
    shard.set_age_ms(3_600_000);
    let mut now = Now {
        wall_ms: 472_001 * HOUR,
        mono_ms: 1_000_000,
    };
    let first = at_second(0);
    let later = at_second(3600);
    shard.accept(&first, &row_refs(&first, 1)[0], Ack::none(), false, now);
    now.mono_ms += 1000;
    shard.tick(now);
    assert!(shard.take(StorageMode::Bucket).is_none(), "it is held");
    shard.accept(&later, &row_refs(&later, 1)[0], Ack::none(), false, now);
    now.mono_ms += 1100;
    shard.tick(now);
    assert!(
        shard.take(StorageMode::Bucket).is_none(),
        "both wait for their sensor's turn"
    );
    shard.drain();
    let Some(Job::Write(_, writes)) = shard.take(StorageMode::Bucket) else {
        panic!("the shard drains")
    };
    assert_eq!(
        writes.iter().map(|w| w.start.0).collect::<Vec<_>>(),
        [472_001 * HOUR, 472_002 * HOUR]
    );
}
