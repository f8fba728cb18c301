//! Two instances write one sensor in bucket mode: a reading that one has stored is a duplicate to
//! the other.

use std::sync::Arc;

use model::{BucketStart, Gate, PageKind, PageWrite, Rows, StorageMode, summary};
use pipeline::accumulate::PageLimits;
use pipeline::accumulate::state::{Shard, ShardSettings};
use pipeline::flush::due::DuePolicy;

use crate::shard_rig::{START_MS, ShardRig, reading, settings, shard};

/// An append of the other instance.
fn append(known_count: u32, ts_ms: i64) -> PageWrite {
    let mut rows = Rows::default();
    rows.push_reading(&reading("s", ts_ms, 1));
    let summary = summary::summarise(&rows);
    let rows = Arc::new(rows);
    PageWrite {
        sensor_id: "s".into(),
        start: BucketStart(START_MS),
        page: 0,
        kind: PageKind::Append {
            known_count,
            gate: Gate::Closes,
        },
        storage_mode: StorageMode::Bucket,
        seal: false,
        tags: None,
        rows,
        summary,
        catalog: None,
    }
}

#[test]
fn what_the_other_stored_is_found_after_the_size_of_the_summary_was_looked_up() {
    // A statement adds 58 bytes to the estimated size, which is looked up beyond half of the limit.
    let mut rig = ShardRig::new(
        StorageMode::Bucket,
        shard(
            100,
            PageLimits {
                readings: 1000,
                bytes: 1 << 20,
                summary_bytes: 200,
            },
        ),
    );
    rig.accept(reading("s", START_MS + 100, 1), false);
    rig.flush(0);
    // Late, so the stored readings from its time on are loaded, and kept.
    rig.accept(reading("s", START_MS + 50, 1), false);
    rig.flush(0);
    rig.pages.write(&append(2, START_MS + 300));
    // Later than all that is known: only the size is looked up, and the other's reading is noticed.
    rig.accept(reading("s", START_MS + 400, 1), false);
    rig.flush(0);
    rig.accept(reading("s", START_MS + 300, 1), false);
    rig.flush(0);
    assert_eq!(rig.pages.readings().count(), 4);
    assert_eq!(rig.stored("s", START_MS + 300), 1);
}

#[test]
fn rows_that_the_other_left_no_room_for_do_not_wait_once_more() {
    const AGE_MS: u64 = 20_000;
    let page = PageLimits {
        readings: 6,
        bytes: 1 << 20,
        summary_bytes: 1 << 20,
    };
    let mut shard = Shard::new(ShardSettings {
        due: DuePolicy::Age(1000),
        ..settings(100, page)
    });
    shard.set_age_ms(AGE_MS);
    let mut rig = ShardRig::new(StorageMode::Bucket, shard);
    rig.accept(reading("s", START_MS, 0), false);
    rig.flush(0);
    // Of a sensor that reports so often, the shard expects more.
    let begun_ms = rig.now.mono_ms;
    (1..=4).for_each(|n| rig.accept(reading("s", START_MS + 10 + 10 * n, n), false));
    rig.pages.write(&append(1, START_MS + 1));
    rig.pages.write(&append(2, START_MS + 2));
    rig.pages.write(&append(3, START_MS + 3));
    rig.now.mono_ms += AGE_MS / 2;
    // Now there are more than the page had room for, before the other's. They are written; two fit,
    // and four are left.
    (5..=6).for_each(|n| rig.accept(reading("s", START_MS + 10 + 10 * n, n), false));
    rig.write_full_pages();
    while rig.now.mono_ms < begun_ms + AGE_MS {
        rig.now.mono_ms += 100;
        rig.shard.promote(rig.now);
        rig.write_full_pages();
    }
    assert_eq!(rig.stored("s", START_MS + 50), 1);
}
