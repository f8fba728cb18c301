//! Two equal readings with the same time of receipt are two readings, and both are stored, even if
//! the service's clock is set shortly before or after and the answer to a write is lost, or the
//! readings of another page were removed.

use model::{Reading, Span, StorageMode};
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
