//! One shard on the memory store, driven step by step.

use std::collections::BTreeMap;
use std::time::Duration;

use model::ack::Ack;
use model::{BucketStart, Now, Reading, ReadingBatch, Span, StorageMode, Value};
use pipeline::accumulate::PageLimits;
use pipeline::accumulate::state::{Job, JobResult, Shard, ShardSettings};
use pipeline::flush::backoff::Backoff;
use pipeline::flush::due::DuePolicy;
use pipeline::route::row_refs;
use store::{StoreError, StoreErrorKind};
use testkit::memory_store::Pages;

pub(crate) const HOUR: i64 = 3_600_000;
pub(crate) const START_MS: i64 = 472_222 * HOUR;

pub(crate) struct ShardRig {
    pub(crate) shard: Shard,
    pub(crate) pages: Pages,
    /// The tags that each bucket got.
    pub(crate) tags: BTreeMap<BucketStart, BTreeMap<String, String>>,
    storage_mode: StorageMode,
    pub(crate) now: Now,
}

pub(crate) fn shard(sensors_max: usize, page: PageLimits) -> Shard {
    Shard::new(settings(sensors_max, page))
}

pub(crate) fn settings(sensors_max: usize, page: PageLimits) -> ShardSettings {
    ShardSettings {
        span: Span::HOUR,
        page,
        due: DuePolicy::Linger(1),
        command_bytes_max: 4 << 20,
        command_statements_max: 100,
        bytes_max: 1 << 20,
        sensors_max,
        dedup_keys_max: 1000,
        quarantine_after_ms: 600_000,
        arrival_step_ms: 60_000,
        backoff: Backoff {
            min: Duration::from_millis(1),
            max: Duration::from_millis(1),
        },
    }
}

/// A reading of one field, `n`, with its own time.
pub(crate) fn reading(sensor: &str, ts_ms: i64, value: i64) -> Reading {
    let values = BTreeMap::from([("n".to_owned(), Value::Int(value))]);
    Reading {
        sensor_id: sensor.into(),
        ts_ms,
        receipt_time: false,
        tags: BTreeMap::new(),
        values,
    }
}

impl ShardRig {
    pub(crate) fn new(storage_mode: StorageMode, shard: Shard) -> ShardRig {
        ShardRig {
            shard,
            pages: Pages::default(),
            tags: BTreeMap::new(),
            storage_mode,
            now: Now {
                wall_ms: START_MS,
                mono_ms: 1000,
            },
        }
    }

    /// Accepts a reading at the time that it has.
    pub(crate) fn accept(&mut self, reading: Reading, is_replayed: bool) {
        self.now = Now {
            wall_ms: reading.ts_ms,
            mono_ms: self.now.mono_ms + 10,
        };
        self.accept_all(std::iter::once(reading).collect(), Ack::none(), is_replayed);
    }

    /// Accepts readings now.
    pub(crate) fn accept_all(&mut self, batch: ReadingBatch, ack: Ack, is_replayed: bool) {
        self.shard
            .accept(&batch, &row_refs(&batch, 1)[0], ack, is_replayed, self.now);
    }

    /// Writes everything; the first `lost` writes do not reach the store, and have no answer.
    pub(crate) fn flush(&mut self, mut lost: usize) {
        for round in 0.. {
            if self.shard.empty() {
                return;
            }
            assert!(round < 100, "it does not come to rest: {:?}", self.shard);
            self.now.mono_ms += 10;
            self.shard.drain();
            // A bucket that needs another operation than the one it was queued for is only moved to
            // the other queue.
            let Some(job) = self.shard.take(self.storage_mode) else {
                continue;
            };
            let is_lost = lost > 0 && matches!(job, Job::Write(..));
            lost -= usize::from(is_lost);
            self.carry_out(job, is_lost);
        }
    }

    /// Writes the rows that no longer fit into a page, and leaves the rest.
    pub(crate) fn write_full_pages(&mut self) {
        while let Some(job) = self.shard.take(self.storage_mode) {
            self.carry_out(job, false);
        }
    }

    pub(crate) fn carry_out(&mut self, job: Job, is_lost: bool) {
        let done = match job {
            Job::Write(tickets, writes) if is_lost => {
                let error = StoreError::Unknown {
                    kind: StoreErrorKind::Timeout,
                    detail: String::new(),
                };
                JobResult::Write(tickets, writes, Err(error))
            }
            Job::Write(tickets, writes) => {
                writes
                    .iter()
                    .filter_map(|write| write.catalog.as_deref())
                    .for_each(|update| self.pages.merge_catalog(update));
                for write in &writes {
                    if let Some(tags) = &write.tags {
                        let tags = tags.iter().map(|(k, v)| (k.to_owned(), v.to_owned()));
                        self.tags.insert(write.start, tags.collect());
                    }
                }
                let answers = writes.iter().map(|w| self.pages.write(w)).collect();
                JobResult::Write(tickets, writes, Ok(answers))
            }
            Job::Load(tickets, requests) => {
                let loaded = requests
                    .iter()
                    .map(|r| self.pages.load(r, self.storage_mode))
                    .collect();
                JobResult::Load(tickets, requests, Ok(loaded))
            }
        };
        self.shard.finished(done, self.now);
    }

    pub(crate) fn stored(&self, sensor: &str, ts_ms: i64) -> usize {
        self.pages
            .readings()
            .filter(|r| r.sensor_id == sensor && r.ts_ms == ts_ms)
            .count()
    }
}
