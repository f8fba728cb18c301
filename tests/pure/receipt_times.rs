//! Two equal readings with the same time of receipt are two readings, and both are stored, even if the service's clock
//! is set shortly before or after and the answer to a write is lost.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::time::Duration;

use hourbucket::accumulate::PageLimits;
use hourbucket::accumulate::state::{Job, JobResult, Shard, ShardSettings};
use hourbucket::ack::Ack;
use hourbucket::flush::backoff::Backoff;
use hourbucket::flush::due::DuePolicy;
use hourbucket::model::{Now, Reading, ReadingBatch, Span, StorageMode, Value};
use hourbucket::route::row_refs;
use hourbucket::store::memory::Pages;
use hourbucket::store::{StoreError, StoreErrorKind};

const HOUR: i64 = 3_600_000;
const START_MS: i64 = 472_222 * HOUR;

struct Rig {
    shard: Shard,
    pages: Pages,
    storage_mode: StorageMode,
    now: Now,
}

impl Rig {
    fn new(storage_mode: StorageMode, sensors_max: usize) -> Rig {
        let shard = Shard::new(ShardSettings {
            span: Span::HOUR,
            page: PageLimits { readings: 1000, bytes: 1 << 20, summary_bytes: 1 << 20 },
            due: DuePolicy::Linger(1),
            command_bytes_max: 4 << 20,
            command_statements_max: 100,
            bytes_max: 1 << 20,
            sensors_max,
            dedup_keys_max: 1000,
            quarantine_after_ms: 600_000,
            backoff: Backoff { min: Duration::from_millis(1), max: Duration::from_millis(1) },
        });
        Rig { shard, pages: Pages::default(), storage_mode, now: Now { wall_ms: START_MS, mono_ms: 1000 } }
    }

    /// Receives a reading without its own time, at this time of the service's clock.
    fn receive(&mut self, sensor: &str, ts_ms: i64, value: i64) {
        let values = BTreeMap::from([("n".to_owned(), Value::Int(value))]);
        let reading = Reading { sensor_id: sensor.into(), ts_ms, receipt_time: true, tags: BTreeMap::new(), values };
        let batch: ReadingBatch = std::iter::once(reading).collect();
        self.now = Now { wall_ms: ts_ms, mono_ms: self.now.mono_ms + 10 };
        self.shard.accept(&batch, &row_refs(&batch, 1)[0], Ack::none(), false, self.now);
    }

    /// Writes everything; the first `lost` writes do not reach the store, and have no answer.
    fn flush(&mut self, mut lost: usize) {
        while !self.shard.empty() {
            self.now.mono_ms += 10;
            self.shard.drain();
            let done = match self.shard.take(self.storage_mode).expect("something waits") {
                Job::Write(tickets, writes) if lost > 0 => {
                    lost -= 1;
                    let error = StoreError::Unknown { kind: StoreErrorKind::Timeout, detail: String::new() };
                    JobResult::Write(tickets, writes, Err(error))
                }
                Job::Write(tickets, writes) => {
                    let answers = writes.iter().map(|w| self.pages.write(w)).collect();
                    JobResult::Write(tickets, writes, Ok(answers))
                }
                Job::Load(tickets, requests) => {
                    let loaded = requests.iter().map(|r| self.pages.load(r, self.storage_mode)).collect();
                    JobResult::Load(tickets, requests, Ok(loaded))
                }
            };
            self.shard.finished(done, self.now);
        }
    }

    fn stored(&self, sensor: &str, ts_ms: i64) -> usize {
        self.pages.readings().filter(|r| r.sensor_id == sensor && r.ts_ms == ts_ms).count()
    }
}

#[test]
fn the_clock_is_set_back_and_the_answer_to_the_second_is_lost() {
    for storage_mode in [StorageMode::Bucket, StorageMode::TimeSeries] {
        let mut rig = Rig::new(storage_mode, 100);
        rig.receive("s", START_MS + 3_000_000, 1);
        rig.receive("s", START_MS + 100, 2);
        rig.flush(0);
        rig.receive("s", START_MS + 100, 2);
        rig.flush(1);
        assert_eq!(rig.stored("s", START_MS + 100), 2, "{storage_mode:?}");
    }
}

#[test]
fn the_clock_is_set_forward_and_the_answer_to_the_second_is_lost() {
    for storage_mode in [StorageMode::Bucket, StorageMode::TimeSeries] {
        let mut rig = Rig::new(storage_mode, 100);
        // The journal's writer may append a reading from after the step before one from before it.
        (0..10).for_each(|n| rig.receive("s", START_MS + n, 1));
        rig.receive("s", START_MS + 100, 2);
        rig.flush(0);
        rig.receive("s", START_MS + 3_000_000, 1);
        rig.flush(0);
        rig.receive("s", START_MS + 100, 2);
        rig.flush(1);
        assert_eq!(rig.stored("s", START_MS + 100), 2, "{storage_mode:?}");
    }
}

#[test]
fn a_full_shard_keeps_the_first_reading_after_the_clock_was_set_back() {
    for storage_mode in [StorageMode::Bucket, StorageMode::TimeSeries] {
        let mut rig = Rig::new(storage_mode, 2);
        rig.receive("other", START_MS + 3_000_000, 1);
        rig.receive("s", START_MS + 100, 2);
        rig.flush(0);
        // A reading is pending, so that the shard does not have to drop what it should keep.
        rig.receive("other", START_MS + 101, 1);
        rig.shard.tick(rig.now);
        rig.receive("s", START_MS + 100, 2);
        rig.flush(1);
        assert_eq!(rig.stored("s", START_MS + 100), 2, "{storage_mode:?}");
    }
}
