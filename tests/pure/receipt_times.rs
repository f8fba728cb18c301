//! Two equal readings with the same time of receipt are two readings, and both are stored, even if
//! the service's clock is set shortly before or after and the answer to a write is lost, or the
//! readings of another page were removed. Those that another instance forwards are stored as often as
//! it received them, however often it sends them.

#![allow(clippy::unwrap_used, reason = "a test")]

use model::ack::Ack;
use model::{BatchBuilder, Reading, ReadingBatch, Span, StorageMode, ValueRef};
use pipeline::accumulate::PageLimits;

use crate::shard_rig::{HOUR, START_MS, ShardRig, reading, shard};

const LARGE: PageLimits = PageLimits {
    readings: 1000,
    bytes: 1 << 20,
    summary_bytes: 1 << 20,
};

fn rig(storage_mode: StorageMode, sensors_max: usize) -> ShardRig {
    ShardRig::new(storage_mode, shard(sensors_max, LARGE))
}

/// A reading without its own time, received at this time of the service's clock.
fn received(sensor: &str, ts_ms: i64, value: i64) -> Reading {
    Reading {
        receipt_time: true,
        ..reading(sensor, ts_ms, value)
    }
}

#[test]
fn the_clock_is_set_back_and_the_answer_to_the_second_is_lost() {
    for storage_mode in [StorageMode::Bucket, StorageMode::TimeSeries] {
        let mut rig = rig(storage_mode, 100);
        rig.accept(received("s", START_MS + 3_000_000, 1), false);
        rig.accept(received("s", START_MS + 100, 2), false);
        rig.flush(0);
        rig.accept(received("s", START_MS + 100, 2), false);
        rig.flush(1);
        assert_eq!(rig.stored("s", START_MS + 100), 2, "{storage_mode:?}");
    }
}

#[test]
fn the_clock_is_set_forward_and_the_answer_to_the_second_is_lost() {
    for storage_mode in [StorageMode::Bucket, StorageMode::TimeSeries] {
        let mut rig = rig(storage_mode, 100);
        // The journal's writer may append a reading from after the step before one from before it.
        (0..10).for_each(|n| rig.accept(received("s", START_MS + n, 1), false));
        rig.accept(received("s", START_MS + 100, 2), false);
        rig.flush(0);
        rig.accept(received("s", START_MS + 3_000_000, 1), false);
        rig.flush(0);
        rig.accept(received("s", START_MS + 100, 2), false);
        rig.flush(1);
        assert_eq!(rig.stored("s", START_MS + 100), 2, "{storage_mode:?}");
    }
}

#[test]
fn a_full_shard_keeps_the_first_reading_after_the_clock_was_set_back() {
    for storage_mode in [StorageMode::Bucket, StorageMode::TimeSeries] {
        let mut rig = rig(storage_mode, 2);
        rig.accept(received("other", START_MS + 3_000_000, 1), false);
        rig.accept(received("s", START_MS + 100, 2), false);
        rig.flush(0);
        // A reading is pending, so that the shard does not have to drop the state that it should
        // keep.
        rig.accept(received("other", START_MS + 101, 1), false);
        rig.shard.tick(rig.now);
        rig.accept(received("s", START_MS + 100, 2), false);
        rig.flush(1);
        assert_eq!(rig.stored("s", START_MS + 100), 2, "{storage_mode:?}");
    }
}

#[test]
fn both_are_replayed_one_after_the_other_after_the_readings_of_another_page_were_removed() {
    let one = || {
        shard(
            100,
            PageLimits {
                readings: 1,
                ..LARGE
            },
        )
    };
    let mut rig = ShardRig::new(StorageMode::Bucket, one());
    rig.accept(received("s", START_MS + 100, 1), false);
    rig.accept(received("s", START_MS + 200, 2), false);
    rig.flush(0);
    assert_eq!(
        rig.pages
            .remove_readings(Span::HOUR, START_MS + 2 * HOUR, 1)
            .pages,
        1
    );
    // After a crash.
    rig.shard = one();
    for _ in 0..2 {
        rig.accept(received("s", START_MS + 200, 2), true);
        rig.flush(0);
    }
    let rejected = rig.shard.take_rejected_rows();
    let late = rejected
        .iter()
        .flat_map(|rejected| rejected.rows.iter())
        .filter(|row| row.ts_ms == START_MS + 200);
    assert_eq!(late.count() + rig.stored("s", START_MS + 200), 2);
}

/// A reading that another instance received without a time, after `repeat` equal ones.
fn forwarded(readings: &[(i64, i64, u32)]) -> ReadingBatch {
    let mut batch = BatchBuilder::new(8);
    for (ts_ms, value, repeat) in readings {
        batch.begin();
        batch.value("n", ValueRef::Int(*value)).unwrap();
        batch.repeats(*repeat);
        batch.commit("s", *ts_ms, false, &[]).unwrap();
    }
    batch.finish()
}

/// The journal of an instance that forwards: equal readings of a millisecond, some often, and not all
/// of them next to each other.
fn received_at_the_edge(random: &mut fastrand::Rng) -> Vec<(i64, i64, u32)> {
    let mut all: Vec<(i64, i64, u32)> = vec![];
    for moment in 0..random.i64(1..12) {
        for _ in 0..random.usize(1..9) {
            let ts_ms = START_MS + 7 * moment;
            let value = random.i64(0..3);
            let is_equal = |r: &&(i64, i64, u32)| (r.0, r.1) == (ts_ms, value);
            let repeat = all.iter().filter(is_equal).count();
            all.push((ts_ms, value, repeat as u32));
        }
    }
    all
}

#[test]
fn forwarded_readings_are_stored_as_often_as_they_were_received() {
    for seed in 0..400 {
        let mut random = fastrand::Rng::with_seed(seed);
        let storage_mode = match seed % 2 {
            0 => StorageMode::Bucket,
            _ => StorageMode::TimeSeries,
        };
        let readings = if random.bool() { 3 } else { 1000 };
        let page = PageLimits { readings, ..LARGE };
        let mut rig = ShardRig::new(storage_mode, shard(100, page));
        let all = received_at_the_edge(&mut random);
        let mut acknowledged = 0;
        // In the journal of the centre, and not stored.
        let mut unstored = vec![];
        while acknowledged < all.len() {
            let from = acknowledged - random.usize(0..=acknowledged.min(6));
            let to = random.usize(acknowledged..=all.len());
            let batch = forwarded(&all[from..to]);
            rig.accept_all(batch.clone(), Ack::none(), false);
            unstored.push(batch);
            // The answer may be lost.
            acknowledged = if random.bool() { to } else { acknowledged };
            match random.u8(0..4) {
                0 => {
                    rig.flush(random.usize(0..2));
                    unstored.clear();
                }
                1 => {
                    rig.shard = shard(100, page);
                    for batch in &unstored {
                        rig.accept_all(batch.clone(), Ack::none(), true);
                    }
                }
                _ => {}
            }
        }
        rig.flush(random.usize(0..2));
        let mut expected: Vec<_> = all.iter().map(|r| (r.0, r.1)).collect();
        let value = |r: &Reading| match r.values["n"] {
            model::Value::Int(value) => value,
            _ => unreachable!(),
        };
        let mut stored: Vec<_> = rig.pages.readings().map(|r| (r.ts_ms, value(r))).collect();
        expected.sort_unstable();
        stored.sort_unstable();
        assert_eq!(stored, expected, "seed {seed}, {storage_mode:?}");
    }
}
