//! The state of a shard: its sensors, their open buckets, and the order in which these become due.
//! Pure: events go in ([`Shard::accept`], [`Shard::finished`], [`Shard::tick`]), jobs come out
//! ([`Shard::take`]).
//!
//! Life of a bucket: its first reading opens it. When rows are pending it is put into the wheel. It
//! moves to the queue of its next operation (load, create, append) when it is due or overfull, when
//! memory pressure evicts it, or when the shard drains. While the store is busy, a due bucket with
//! few rows waits for its sensor's turn first. A job takes it from there, and the job's answer
//! returns it. Queues are read only when a command may be sent, so the longer the store takes, the
//! larger the jobs become, without an explicit rule.
//!
//! Limits: `bytes_max` and `sensors_max`. Beyond half of `bytes_max` buckets remember few stored
//! readings, beyond [`EVICT_SIXTEENTHS`] buckets are evicted before they are due, at the limit the
//! shard accepts nothing ([`Shard::full`]). At `sensors_max` idle sensors are dropped first, then
//! the rules for bytes apply.

mod answers;
mod arrival_rate;
mod buckets;
pub mod catalog;
mod catalogued;
pub mod failing;
mod held;
mod jobs;
mod reporting_interval;
mod sensors;
pub mod snapshot;

pub use failing::{RejectCause, RejectedRows};

use std::collections::VecDeque;
use std::sync::Arc;

use arrival_rate::ArrivalRate;
use buckets::Buckets;
use catalogued::{Confirmed, ConfirmedSets};
use failing::FailingBuckets;
use hashbrown::HashTable;
use reporting_interval::{EvictedSensors, Reports};
use sensors::NewSensor;

use slab::Slab;

use super::arrivals::Arrivals;
use super::bucket::{AT_ITS_TURN, Bucket, IncomingReading, NextOp, PageLimits};
use crate::enrich::Registry;
use crate::flush::Lane;
use crate::flush::backoff::Backoff;
use crate::flush::due::{DuePolicy, DueWheel};
use crate::flush::turns::Turns;
use model::ack::Ack;
use model::{
    BucketStart, FieldSchemas, NewBuckets, Now, PageWrite, ReadingBatch, ReadingKey, RowFlags,
    SensorId, Span, TagSets, Tags,
};
use store::{LoadRequest, LoadResult, PageWriteResult, StoreError};

/// The settings of a shard, fixed at its start.
#[derive(Debug, Clone)]
pub struct ShardSettings {
    /// `bucket.span`.
    pub span: Span,
    /// `bucket.max_readings` and `bucket.max_bytes`.
    pub page: PageLimits,
    /// From `flush.max_age` or `flush.linger`. `flush.max_age_busy` acts through
    /// [`Shard::set_age_ms`].
    pub due: DuePolicy,
    /// `flush.command_max_bytes`.
    pub command_bytes_max: u64,
    /// `flush.command_max_statements`.
    pub command_statements_max: usize,
    /// This shard's part of `accumulate.max_bytes`.
    pub bytes_max: usize,
    /// This shard's part of `accumulate.max_sensors`.
    pub sensors_max: usize,
    /// Maximum stored readings that a bucket remembers, 16 bytes each; a 128th of it under memory
    /// pressure.
    pub dedup_keys_max: usize,
    /// `flush.quarantine_after`: how long a bucket may fail before its readings become dead
    /// letters.
    pub quarantine_after_ms: u64,
    /// The precision of arrivals in the catalogue
    /// ([`arrival_step_ms`](model::catalog::arrival_step_ms)).
    pub arrival_step_ms: i64,
    /// For buckets that the store keeps refusing.
    pub backoff: Backoff,
}

/// The row of a reading in its batch, and its sensor's hash.
pub type RowRef = (u32, u64);

/// Identifies a bucket of this shard; valid while the bucket has something in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BucketRef {
    slot: u32,
    start: BucketStart,
}

impl BucketRef {
    /// The start of its bucket.
    pub fn start(self) -> BucketStart {
        self.start
    }
}

/// One command for the store. Bucket references and writes or requests are in the same order.
#[derive(Debug)]
pub enum Job {
    /// Page writes, all of one kind.
    Write(Vec<BucketRef>, Vec<PageWrite>),
    /// Loads.
    Load(Vec<BucketRef>, Vec<LoadRequest>),
}

/// A job with the store's answer.
#[derive(Debug)]
pub enum JobResult {
    /// Result of a [`Job::Write`]: the job's contents, and one result per write.
    Write(
        Vec<BucketRef>,
        Vec<PageWrite>,
        Result<Vec<PageWriteResult>, StoreError>,
    ),
    /// Result of a [`Job::Load`]: the job's contents, and one result per request.
    Load(
        Vec<BucketRef>,
        Vec<LoadRequest>,
        Result<Vec<LoadResult>, StoreError>,
    ),
}

/// Events since the last call of [`Shard::take_counts`], for the metrics.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ShardCounts {
    /// Readings now known to be stored.
    pub stored: u64,
    /// Readings dropped as duplicates.
    pub duplicates: u64,
    /// Statements that found another version of their page.
    pub conflicts: u64,
    /// Buckets that began to wait for a statement, each its sensor's latest: only those may be
    /// held.
    pub began: u64,
    /// Pages that became full when their first reading had waited for longer than `flush.max_age`.
    pub filled_late: u64,
    /// Buckets that were dropped although they still knew which readings without a time they had
    /// written: nothing else could make room.
    pub forgotten: u64,
}

/// What a shard holds in memory.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ShardUsage {
    /// Estimated memory in bytes, compared with `bytes_max`.
    pub bytes: usize,
    /// Open buckets, including idle ones that are kept for late readings.
    pub buckets: usize,
    /// Sensors, compared with `sensors_max`.
    pub sensors: usize,
    /// Readings that are not stored yet, pending or in flight.
    pub readings: usize,
}

/// The part of `bytes_max` beyond which buckets are evicted. The rest is for the readings that
/// arrive meanwhile.
const EVICT_SIXTEENTHS: usize = 15;
/// Buckets in the queues that are enough when memory is short: a command of this many costs hardly
/// more per statement than a larger one.
const EVICTED_QUEUE: usize = 500;
/// Failures in a row after which every further conflict counts as a fault: another instance is not
/// always faster.
const CONFLICTS_MAX: u32 = 4;
/// Faults after which a bucket is alone in its jobs.
const ALONE_AFTER_FAULTS: u32 = 2;
/// A job that failed as a whole makes the next jobs a quarter as large; each one that succeeds
/// doubles them again.
const SHRINK_BITS: u32 = 2;
const SHRINK_BITS_MAX: u32 = 12;

/// Rows of a batch for which [`Shard::read_ahead`] is called together.
const READ_AHEAD: usize = 16;

struct Sensor {
    id: SensorId,
    hash: u64,
    /// Those of the message that arrived last, for pages.
    tags: Option<Arc<Tags>>,
    /// Those of the newest reading, for the catalogue.
    newest_tags: Option<Arc<Tags>>,
    /// The time of that reading; the earliest time if there is none.
    tags_ts_ms: i64,
    reports: Reports,
    /// What the catalogue is known to hold.
    confirmed: Confirmed,
    rate: ArrivalRate,
    /// Nearly always one: a sensor then needs no allocation besides its slot.
    buckets: Buckets,
}

/// One shard.
pub struct Shard {
    settings: ShardSettings,
    /// Tags in addition to those in the messages.
    registry: Registry,
    sensors: Slab<Sensor>,
    index: HashTable<u32>,
    schemas: FieldSchemas,
    tags: TagSets,
    confirmed: ConfirmedSets,
    /// The wall clock at the last event (ms since 1970).
    wall_ms: i64,
    /// The bytes of `schemas` and `tags` included in `usage`, and when they were last swept
    /// (monotonic ms).
    shared_bytes: usize,
    swept_ms: u64,
    wheel: DueWheel<BucketRef>,
    /// Buckets that wait for their sensor's turn, and when its hand was last moved (monotonic ms).
    turns: Turns<BucketRef>,
    turned_ms: u64,
    loads: VecDeque<BucketRef>,
    creates: VecDeque<BucketRef>,
    appends: VecDeque<BucketRef>,
    /// Buckets that are the only one in their job, for any operation.
    retries: VecDeque<BucketRef>,
    /// Since when page writes are queued without a break (monotonic ms).
    queued_since_ms: Option<u64>,
    /// By how many bits jobs are reduced, after jobs that failed as a whole.
    shrink: u32,
    failing: FailingBuckets,
    /// Failing buckets alone fill the shard, see [`failing`].
    is_blocked: bool,
    /// How old a reading may get now (ms): above the age of `settings.due` while the store is busy.
    age_ms: u64,
    /// Buckets that no other process can have written.
    new: NewBuckets,
    usage: ShardUsage,
    counts: ShardCounts,
    rejected_rows: Vec<RejectedRows>,
    /// With the daily rollup: the rows settled since the last call of [`Shard::take_settled`].
    settled: Option<Vec<crate::rollup::state::Settled>>,
    /// Of readings with the time of receipt; they are received, journaled and replayed in nearly
    /// this order.
    arrivals: Arrivals,
    /// The latest bucket that was forgotten.
    evicted_until: Option<BucketStart>,
    sweep_at: usize,
    /// Evicted sensors, and the newest ones.
    evicted: EvictedSensors,
    new_sensors: VecDeque<NewSensor>,
}

impl Shard {
    /// An empty shard.
    pub fn new(settings: ShardSettings) -> Shard {
        let wheel = DueWheel::new(settings.due.grain_ms());
        Shard {
            settings,
            registry: Registry::default(),
            sensors: Slab::new(),
            index: HashTable::new(),
            schemas: FieldSchemas::default(),
            tags: TagSets::default(),
            confirmed: ConfirmedSets::default(),
            wall_ms: 0,
            shared_bytes: 0,
            swept_ms: 0,
            wheel,
            turns: Turns::default(),
            turned_ms: 0,
            loads: VecDeque::new(),
            creates: VecDeque::new(),
            appends: VecDeque::new(),
            retries: VecDeque::new(),
            queued_since_ms: None,
            shrink: 0,
            failing: FailingBuckets::default(),
            is_blocked: false,
            age_ms: 0,
            new: NewBuckets::NONE,
            usage: ShardUsage::default(),
            counts: ShardCounts::default(),
            rejected_rows: Vec::new(),
            settled: None,
            arrivals: Arrivals::default(),
            evicted_until: None,
            sweep_at: 0,
            evicted: EvictedSensors::default(),
            new_sensors: VecDeque::new(),
        }
    }

    /// The same shard; its writes also include the registry's tags.
    #[must_use]
    pub(crate) fn with_registry(self, registry: Registry) -> Shard {
        Shard { registry, ..self }
    }

    /// Sets which buckets no other process can have written; any other is loaded before its first
    /// write.
    pub fn set_new_buckets(&mut self, new: NewBuckets) {
        self.new = new;
    }

    /// What the shard holds now.
    pub fn usage(&self) -> ShardUsage {
        self.usage
    }

    /// The counts since the last call.
    pub fn take_counts(&mut self) -> ShardCounts {
        std::mem::take(&mut self.counts)
    }

    /// Readings of permanently refused statements and quarantined buckets since the last call.
    pub fn take_rejected_rows(&mut self) -> Vec<RejectedRows> {
        std::mem::take(&mut self.rejected_rows)
    }

    /// Whether a limit is reached: the caller should send nothing until something is stored.
    pub fn full(&self) -> bool {
        self.usage.bytes >= self.settings.bytes_max
            || self.usage.sensors >= self.settings.sensors_max
    }

    /// Whether no rows are pending or in flight.
    pub fn empty(&self) -> bool {
        self.usage.readings == 0
    }

    /// How many stored readings each bucket may remember.
    fn keys_max(&self) -> usize {
        let max = self.settings.dedup_keys_max;
        if self.usage.bytes < self.settings.bytes_max / 2 {
            return max;
        }
        // All buckets together use at most a quarter of the memory.
        let share =
            self.settings.bytes_max / 4 / self.usage.buckets.max(1) / size_of::<ReadingKey>();
        share.min(max / 128)
    }

    /// Adds readings of a batch. This shard's part of `ack` is delivered when all of them are
    /// stored.
    pub fn accept(
        &mut self,
        batch: &ReadingBatch,
        row_refs: &[RowRef],
        ack: Ack,
        replayed: bool,
        now: Now,
    ) {
        self.wall_ms = now.wall_ms;
        self.schemas.begin(batch);
        for (i, &(offset, hash)) in row_refs.iter().enumerate() {
            if i % READ_AHEAD == 0 {
                self.read_ahead(&row_refs[i..row_refs.len().min(i + READ_AHEAD)]);
            }
            let Some(reading) = batch.at(offset) else {
                continue;
            };
            let slot = self.sensor(hash, &reading, now);
            self.set_tags(slot, reading.ts_ms, reading.tags);
            let start = self.settings.span.floor(reading.ts_ms);
            let position = self.bucket(slot, start, replayed);
            let mut flags = if reading.receipt_time {
                RowFlags::RECEIPT_TIME
            } else {
                RowFlags::default()
            };
            if replayed {
                flags = flags.with(RowFlags::REPLAYED);
            }
            let incoming = IncomingReading {
                ts_ms: reading.ts_ms,
                flags,
                arrived_ms: if reading.receipt_time {
                    self.arrivals.note(reading.ts_ms)
                } else {
                    i64::MIN
                },
                schema: self.schemas.intern(batch, reading.schema),
                numbers: reading.numbers,
                payload: reading.payload,
            };
            let sensor = &mut self.sensors[slot];
            sensor.reports.note(reading.ts_ms, now.wall_ms);
            let is_latest = position + 1 == sensor.buckets.len();
            if !replayed {
                sensor.rate.note(now.mono_ms);
            }
            let bucket = &mut sensor.buckets[position];
            let before = bucket.memory();
            let kept = bucket.arrive(&incoming, &ack, now.mono_ms);
            self.usage.bytes = self.usage.bytes + bucket.memory() - before;
            if kept {
                self.usage.readings += 1;
            } else {
                self.counts.duplicates += 1;
            }
            let bucket_ref = BucketRef {
                slot: slot as u32,
                start,
            };
            if !kept {
                self.note_settled(bucket_ref.slot, start, 1);
            }
            let sensor = &mut self.sensors[slot];
            let bucket = &mut sensor.buckets[position];
            if !bucket.queued && bucket.overfull(self.settings.page) {
                self.fill(bucket_ref, now);
                continue;
            }
            match bucket.due_ms {
                0 if !bucket.queued && !bucket.idle() => self.counts.began += u64::from(is_latest),
                AT_ITS_TURN if bucket.is_worthwhile() => {}
                _ => continue,
            }
            bucket.due_ms = self.settings.due.due_ms(now.mono_ms, sensor.hash).max(1);
            self.wheel.push(bucket.due_ms, bucket_ref);
        }
        self.schemas.end();
        self.count_shared();
        ack.delivered();
    }

    /// Moves due buckets into the queues.
    pub fn promote(&mut self, now: Now) {
        self.wall_ms = now.wall_ms;
        while let Some(due) = self.wheel.pop_due(now.mono_ms) {
            for bucket_ref in due {
                if self.is_current(bucket_ref, now.mono_ms) {
                    self.enqueue_or_hold(bucket_ref, now);
                }
            }
        }
        self.take_turns(now);
        self.queued_since_ms = self
            .wants(Lane::Write)
            .then(|| self.queued_since_ms.unwrap_or(now.mono_ms));
    }

    /// Whether page writes have been queued for longer than one command after the other can keep up
    /// with, or memory is short. Call it after [`Shard::promote`].
    pub fn is_behind(&self, now: Now) -> bool {
        let behind = self.queued_since_ms.is_some_and(|since_ms| {
            now.mono_ms.saturating_sub(since_ms) >= self.settings.due.behind_after_ms()
        });
        behind || self.full()
    }

    /// Whether an entry from a slot of the wheel at or before `until_ms` is still valid. A bucket
    /// that was queued before it was due (overfull, evicted) leaves its entry in the wheel, and may
    /// have a later one.
    fn is_current(&mut self, bucket_ref: BucketRef, until_ms: u64) -> bool {
        let due_ms =
            bucket_of(&mut self.sensors, bucket_ref).map_or(0, |(bucket, _)| bucket.due_ms);
        due_ms != 0 && self.wheel.slot_ms(due_ms) <= until_ms
    }

    /// Queues a due bucket, unless it is worth waiting for the rest of its page, or for more
    /// readings while the store is busy.
    fn enqueue_or_hold(&mut self, bucket_ref: BucketRef, now: Now) {
        let age_ms = if self.expects_more(bucket_ref) {
            self.age_ms
        } else {
            0
        };
        let Some((bucket, hash)) = bucket_of(&mut self.sensors, bucket_ref) else {
            return;
        };
        let due = self.settings.due;
        let turn_ms = self.turns.until_ms(hash, due.round_ms(self.age_ms));
        match bucket.hold_until_ms(due, self.settings.page, now.mono_ms, age_ms, turn_ms) {
            Some(until_ms) if !bucket.queued => {
                bucket.due_ms = until_ms;
                match until_ms {
                    AT_ITS_TURN => self.turns.push(hash, bucket_ref),
                    _ => self.wheel.push(until_ms, bucket_ref),
                }
            }
            _ => self.enqueue(bucket_ref),
        }
    }

    /// Moves due buckets into the queues, drops idle buckets and sensors, and evicts buckets under
    /// memory pressure.
    pub fn tick(&mut self, now: Now) {
        self.promote(now);
        self.evict_idle(now);
        self.sweep_shared(now);
        self.evict_buckets();
    }

    /// The estimated memory, added up from all sensors, for tests: every change must have been
    /// counted in `usage`.
    pub fn counted_bytes(&self) -> usize {
        let buckets = |sensor: &Sensor| sensor.buckets.iter().map(Bucket::memory).sum::<usize>();
        let sensor = |sensor: &Sensor| sensor.memory() + sensor.buckets.memory() + buckets(sensor);
        self.shared_bytes + self.sensors.iter().map(|(_, s)| sensor(s)).sum::<usize>()
    }

    /// Makes every bucket due, except those in backoff after a failure.
    pub fn drain(&mut self) {
        while self.take_next_turn() {}
        let mut later = vec![];
        while let Some((_, due)) = self.wheel.pop_first() {
            for bucket_ref in due {
                match bucket_of(&mut self.sensors, bucket_ref) {
                    Some((bucket, _)) if bucket.attempts() > 1 && bucket.due_ms > 0 => {
                        later.push((bucket.due_ms, bucket_ref))
                    }
                    _ => self.enqueue(bucket_ref),
                }
            }
        }
        later
            .into_iter()
            .for_each(|(due_ms, bucket_ref)| self.wheel.push(due_ms, bucket_ref));
    }

    /// Puts a bucket into the queue of its next operation. Wheel entries may be stale: the bucket
    /// may be queued already, in flight (its answer returns it) or dropped.
    fn enqueue(&mut self, bucket_ref: BucketRef) {
        let Some((bucket, _)) = bucket_of(&mut self.sensors, bucket_ref) else {
            return;
        };
        bucket.due_ms = 0;
        if bucket.queued {
            return;
        }
        let queue = match bucket.next_op(self.settings.page) {
            NextOp::Nothing => return,
            _ if bucket.faults() >= ALONE_AFTER_FAULTS => &mut self.retries,
            NextOp::Load => &mut self.loads,
            NextOp::Create => &mut self.creates,
            NextOp::Append => &mut self.appends,
        };
        bucket.queued = true;
        queue.push_back(bucket_ref);
    }

    /// Number of buckets in the queues, without the retries: those may be many, are sent one at a
    /// time, and must not keep others from being evicted.
    fn queued(&self) -> usize {
        self.loads.len() + self.creates.len() + self.appends.len()
    }

    /// Above [`EVICT_SIXTEENTHS`] of the memory, or at the limit of sensors, queues buckets before
    /// they are due: those whose turn comes next, then those that are due soonest. At the limit of
    /// sensors all of them, because only sensors without readings can be dropped.
    ///
    /// A statement costs the store nearly the same for one reading as for ten. So only as many are
    /// queued as one command needs. The others gather readings meanwhile, and the order of the
    /// turns remains.
    fn evict_buckets(&mut self) {
        let at_sensors_max = self.usage.sensors >= self.settings.sensors_max;
        if self.usage.bytes < self.settings.bytes_max / 16 * EVICT_SIXTEENTHS && !at_sensors_max {
            return;
        }
        let enough = if at_sensors_max {
            self.settings.command_statements_max
        } else {
            EVICTED_QUEUE
        };
        while self.queued() < enough {
            if self.take_next_turn() {
                continue;
            }
            let Some((slot_ms, early)) = self.wheel.pop_first() else {
                return;
            };
            for bucket_ref in early {
                if self.is_current(bucket_ref, slot_ms) {
                    self.enqueue(bucket_ref);
                }
            }
        }
    }
}

/// The bucket of a reference, if it still exists, and its sensor's hash.
fn bucket_of(sensors: &mut Slab<Sensor>, bucket_ref: BucketRef) -> Option<(&mut Bucket, u64)> {
    let sensor = sensors.get_mut(bucket_ref.slot as usize)?;
    let position = sensor
        .buckets
        .binary_search_by_key(&bucket_ref.start, |b| b.start)
        .ok()?;
    Some((&mut sensor.buckets[position], sensor.hash))
}

/// A pseudo-random number in `[0, 1)` that is constant per sensor.
fn fraction(hash: u64) -> f64 {
    (hash >> 11) as f64 / (1u64 << 53) as f64
}

impl std::fmt::Debug for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shard")
            .field("holding", &self.usage)
            .finish_non_exhaustive()
    }
}
