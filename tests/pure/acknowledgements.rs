//! When a shard acknowledges: a sensor that sends so much that every statement leaves rows keeps no
//! acknowledgement forever, and none comes before its readings are stored.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hourbucket::accumulate::PageLimits;
use hourbucket::ack::{Ack, AckOutcome};
use hourbucket::model::StorageMode;

use crate::shard_rig::{START_MS, ShardRig, reading, shard};

#[test]
fn acknowledgements_leave_although_each_statement_leaves_rows() {
    for storage_mode in [StorageMode::Bucket, StorageMode::TimeSeries] {
        let limits = PageLimits {
            readings: 5,
            bytes: 1 << 20,
            summary_bytes: 1 << 20,
        };
        let mut rig = ShardRig::new(storage_mode, shard(100, limits));
        let done = Arc::new(AtomicUsize::new(0));
        let mut left = 0;
        for round in 0..100_i64 {
            let count = done.clone();
            let ack = Ack::with(move |outcome| {
                assert_eq!(outcome, AckOutcome::Delivered);
                count.fetch_add(1, Ordering::Relaxed);
            });
            let first_ms = START_MS + round * 100;
            rig.accept_all(
                (0..7).map(|n| reading("s", first_ms + n, n)).collect(),
                ack,
                false,
            );
            rig.write_full_pages();
            let stored = rig.pages.readings().count();
            let acked = done.load(Ordering::Relaxed);
            assert!(
                acked * 7 <= stored,
                "round {round}: {acked} acknowledged, {stored} readings stored"
            );
            assert!(
                acked as i64 >= round - 2,
                "round {round}: {acked} acknowledged"
            );
            left += usize::from(stored < (round as usize + 1) * 7);
        }
        assert!(left >= 80, "rows were left in {left} rounds of 100");
        rig.flush(1);
        assert_eq!(
            (done.load(Ordering::Relaxed), rig.pages.readings().count()),
            (100, 700),
            "{storage_mode:?}"
        );
    }
}
