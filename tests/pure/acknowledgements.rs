//! When a shard acknowledges: a sensor that sends so much that every statement leaves rows keeps no
//! acknowledgement forever, and none comes before its readings are stored. Of the journal's, which
//! have positions, the earliest is kept for all readings with their own time.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use model::ack::{Ack, AckOutcome};
use model::{Reading, StorageMode};
use pipeline::accumulate::PageLimits;

use crate::shard_rig::{START_MS, ShardRig, reading, shard};

/// Pages limited by their readings only.
fn limits(readings: u32) -> PageLimits {
    PageLimits {
        readings,
        bytes: 1 << 20,
        summary_bytes: 1 << 20,
    }
}

#[test]
fn acknowledgements_leave_although_each_statement_leaves_rows() {
    for storage_mode in [StorageMode::Bucket, StorageMode::TimeSeries] {
        let limits = limits(5);
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

/// Acknowledgements with positions, and which of them are done.
#[derive(Default)]
struct Log {
    done: Arc<Mutex<BTreeSet<u64>>>,
}

impl Log {
    fn ack(&self, position: u64) -> Ack {
        let done = self.done.clone();
        Ack::at(position, move |outcome| {
            assert_eq!(outcome, AckOutcome::Delivered);
            assert!(done.lock().unwrap().insert(position), "{position} twice");
        })
    }

    fn is_done(&self, position: u64) -> bool {
        self.done.lock().unwrap().contains(&position)
    }

    /// The first position that is outstanding: the journal keeps what is there and after it.
    fn oldest(&self) -> u64 {
        (0..).find(|&position| !self.is_done(position)).unwrap()
    }
}

#[test]
fn the_journal_keeps_what_is_not_stored_and_nothing_forever() {
    for storage_mode in [StorageMode::Bucket, StorageMode::TimeSeries] {
        for own_times in [7, 4, 0] {
            let limits = limits(5);
            let mut rig = ShardRig::new(storage_mode, shard(100, limits));
            let log = Log::default();
            for round in 0..100_u64 {
                let first_ms = START_MS + round as i64 * 100;
                let batch = (0..7).map(|n| Reading {
                    receipt_time: n >= own_times,
                    ..reading("s", first_ms + n, n)
                });
                rig.accept_all(batch.collect(), log.ack(round), false);
                if round % 3 > 0 {
                    rig.write_full_pages();
                }
                let stored = rig.pages.readings().count() as u64;
                let oldest = log.oldest();
                assert!(
                    oldest * 7 <= stored,
                    "round {round}: outstanding from {oldest}, {stored} stored"
                );
                assert!(
                    oldest + 5 >= round,
                    "round {round}: outstanding from {oldest}"
                );
            }
            rig.flush(1);
            assert_eq!(
                (log.oldest(), rig.pages.readings().count()),
                (100, 700),
                "{storage_mode:?}"
            );
        }
    }
}

#[test]
fn the_earliest_position_is_kept_for_readings_with_their_own_time_only() {
    let limits = limits(100);
    for receipt_time in [false, true] {
        let mut rig = ShardRig::new(StorageMode::Bucket, shard(100, limits));
        let log = Log::default();
        for position in 0..3 {
            let reading = Reading {
                receipt_time,
                ..reading("s", START_MS + position as i64, 1)
            };
            rig.accept_all([reading].into_iter().collect(), log.ack(position), false);
        }
        assert_eq!(
            [0, 1, 2].map(|position| log.is_done(position)),
            [false, !receipt_time, !receipt_time]
        );
        rig.flush(1);
        assert_eq!(log.oldest(), 3);
    }
}
