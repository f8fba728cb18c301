//! The state of a shard. Pure: events go in ([`Shard::accept`], [`Shard::finished`],
//! [`Shard::tick`]), jobs come out ([`Shard::take`]).
//!
//! The shard coordinates parts, each with its own design:
//! - [`sensors`]: the sensors and their open buckets, and the memory that they take;
//! - [`schedule`]: when a bucket is due, and the queue of its next operation;
//! - [`jobs`]: the commands for the store, and its answers;
//! - [`failing`]: buckets that keep failing;
//! - [`outcomes`]: what becomes of the readings;
//! - [`catalog`]: what the sensors bring to the catalogue.
//!
//! Life of a bucket: its first reading opens it, and it waits in the schedule until it is due. A job
//! takes it from its queue, and the job's answer returns it. Without rows it is idle, until a sweep
//! drops it.
//!
//! Limits: `bytes_max` and `sensors_max`. Beyond half of `bytes_max` buckets remember few stored
//! readings, beyond [`EVICT_SIXTEENTHS`] buckets are evicted before they are due, at the limit the
//! shard accepts nothing ([`Shard::full`]). At `sensors_max` idle sensors are dropped first, then
//! the rules for bytes apply.

mod arrival_rate;
mod buckets;
mod catalog;
mod catalogued;
pub mod failing;
mod jobs;
mod outcomes;
mod reporting_interval;
mod schedule;
mod sensors;
pub mod snapshot;

pub use jobs::{Job, JobResult};
pub use outcomes::{RejectCause, RejectedRows, ShardCounts};

use super::arrivals::Arrivals;
use super::bucket::{IncomingReading, PageLimits};
use crate::enrich::Registry;
use crate::flush::backoff::Backoff;
use crate::flush::due::DuePolicy;
use crate::rollup::state::Settled;
use catalog::ShardCatalog;
use failing::{FailingBuckets, Quarantined};
use model::ack::Ack;
use model::{
    BucketStart, FieldSchemas, NewBuckets, Now, ReadingBatch, ReadingKey, RowFlags, RowPosition,
    Span,
};
use outcomes::Outcomes;
use schedule::{Arrived, Schedule, Waited};
use sensors::{IDLE_BYTES, IdleSweep, Sensors};

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
/// Rows of a batch for which [`Sensors::read_ahead`] is called together.
const READ_AHEAD: usize = 16;
/// Unless room is needed, a sweep for idle buckets visits all sensors within so many ticks, 20 s, but
/// at least so many sensors in each. A million sensors in 2.5 s took a twentieth of the service's
/// time, because each is a cache miss.
const SWEEP_TICKS: usize = 1024;
const SWEEP_STEP_MIN: usize = 256;
/// Sensors visited per tick if room is needed: a few milliseconds of work. All of a million sensors
/// in each tick would leave no time for readings.
const SWEEP_STEP_FULL: usize = 64 * 1024;
/// How often schemas, names and tags are swept for unused ones, normally and when the shard is full
/// (ms). A check costs about 20 ns each.
const SWEEP_MS: u64 = 10_000;
const SWEEP_FULL_MS: u64 = 1000;

/// One shard.
pub struct Shard {
    settings: ShardSettings,
    sensors: Sensors,
    schedule: Schedule,
    failing: FailingBuckets,
    outcomes: Outcomes,
    catalog: ShardCatalog,
    /// The field schemas of all rows.
    schemas: FieldSchemas,
    /// When unused schemas, names and tags were last dropped (monotonic ms).
    swept_ms: u64,
    /// Of readings with the time of receipt; they are received, journaled and replayed in nearly
    /// this order.
    arrivals: Arrivals,
}

/// Which idle buckets may be dropped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Droppable {
    /// Those whose span has ended.
    Ended,
    /// Those of any time.
    All,
    /// Also those that still [count](super::bucket::Bucket::counts_since).
    EvenCounting,
}

impl Shard {
    /// An empty shard.
    pub fn new(settings: ShardSettings) -> Shard {
        Shard {
            sensors: Sensors::new(),
            schedule: Schedule::new(&settings),
            failing: FailingBuckets::new(settings.quarantine_after_ms, settings.bytes_max),
            outcomes: Outcomes::default(),
            catalog: ShardCatalog::new(settings.arrival_step_ms),
            schemas: FieldSchemas::default(),
            swept_ms: 0,
            arrivals: Arrivals::default(),
            settings,
        }
    }

    /// Its writes also include the registry's tags.
    pub(crate) fn set_registry(&mut self, registry: Registry) {
        self.catalog.set_registry(registry);
    }

    /// Sets which buckets no other process can have written; any other is loaded before its first
    /// write.
    pub fn set_new_buckets(&mut self, new: NewBuckets) {
        self.sensors.set_new_buckets(new);
    }

    /// Sets how old a reading may get before it is written, see [`crate::flush::age`].
    pub fn set_age_ms(&mut self, age_ms: u64) {
        self.schedule.set_age_ms(age_ms);
    }

    /// Sets whether the store has answered any request lately. Until it does, no bucket is given
    /// up.
    pub fn set_store_answers(&mut self, answers: bool) {
        self.failing.set_store_answers(answers);
    }

    /// Notes when the store last confirmed a page write, of any shard (monotonic ms).
    pub fn note_pages_written(&mut self, at_ms: u64) {
        self.failing.note_pages_written(at_ms);
    }

    /// What the shard holds now.
    pub fn usage(&self) -> ShardUsage {
        ShardUsage {
            bytes: self.memory(),
            buckets: self.sensors.buckets(),
            sensors: self.sensors.len(),
            readings: self.outcomes.unstored(),
        }
    }

    fn memory(&self) -> usize {
        self.sensors.memory() + self.schemas.memory_bytes() + self.catalog.memory()
    }

    /// The counts since the last call.
    pub fn take_counts(&mut self) -> ShardCounts {
        std::mem::take(&mut self.outcomes.counts)
    }

    /// Readings of permanently refused statements and quarantined buckets since the last call.
    pub fn take_rejected_rows(&mut self) -> Vec<RejectedRows> {
        self.outcomes.take_rejected_rows()
    }

    /// From now on, [`Shard::take_settled`] returns which readings are settled.
    pub(crate) fn report_settled(&mut self) {
        self.outcomes.report_settled();
    }

    /// The rows settled since the last call: stored, found stored, or rejected.
    pub(crate) fn take_settled(&mut self) -> Vec<Settled> {
        self.outcomes.take_settled()
    }

    /// Number of quarantined buckets, also of those that [`Shard::quarantined`] does not list.
    pub(crate) fn quarantined_count(&self) -> usize {
        self.failing.quarantined_count()
    }

    /// The quarantined buckets, at most [`failing::NAMED_MAX`], longest failing first.
    pub fn quarantined(&self) -> Vec<Quarantined> {
        self.failing.quarantined()
    }

    /// Buckets quarantined since the last call, at most [`failing::NAMED_MAX`].
    pub(crate) fn take_quarantined(&mut self) -> Vec<Quarantined> {
        self.failing.take_quarantined()
    }

    /// Whether a limit is reached: the caller should send nothing until something is stored.
    pub fn full(&self) -> bool {
        self.memory() >= self.settings.bytes_max || self.has_all_sensors()
    }

    fn has_all_sensors(&self) -> bool {
        self.sensors.len() >= self.settings.sensors_max
    }

    /// Whether no rows are pending or in flight.
    pub fn empty(&self) -> bool {
        self.outcomes.unstored() == 0
    }

    /// How many stored readings each bucket may remember.
    fn keys_max(&self) -> usize {
        let max = self.settings.dedup_keys_max;
        if self.memory() < self.settings.bytes_max / 2 {
            return max;
        }
        // All buckets together use at most a quarter of the memory.
        let buckets = self.sensors.buckets().max(1);
        let share = self.settings.bytes_max / 4 / buckets / size_of::<ReadingKey>();
        share.min(max / 128)
    }

    /// Adds readings of a batch. This shard's part of `ack` is delivered when all of them are
    /// stored. `replayed`: the journal's replay has sent them.
    pub fn accept(
        &mut self,
        batch: &ReadingBatch,
        row_refs: &[RowPosition],
        ack: Ack,
        replayed: bool,
        now: Now,
    ) {
        let of_replay = match replayed {
            true => RowFlags::REPLAYED,
            false => RowFlags::default(),
        };
        self.catalog.set_wall_ms(now.wall_ms);
        self.schemas.begin(batch);
        for rows in row_refs.chunks(READ_AHEAD) {
            self.sensors.read_ahead(rows);
            for &RowPosition { offset, hash } in rows {
                let Some(reading) = batch.at(offset) else {
                    continue;
                };
                let start = self.settings.span.floor(reading.ts_ms);
                let mut open = self.sensors.receive(&reading, hash, start, replayed, now);
                let (flags, arrived_ms) = match reading.receipt_time {
                    true => {
                        let flags = of_replay.with(RowFlags::RECEIPT_TIME);
                        (flags, self.arrivals.note(reading.ts_ms))
                    }
                    false => (of_replay, i64::MIN),
                };
                let incoming = IncomingReading {
                    ts_ms: reading.ts_ms,
                    flags,
                    repeat: reading.repeat,
                    arrived_ms,
                    schema: self.schemas.intern(batch, reading.schema),
                    numbers: reading.numbers,
                    payload: reading.payload,
                };
                if open.change(|bucket| bucket.arrive(&incoming, &ack, now.mono_ms)) {
                    self.outcomes.note_pending();
                } else {
                    self.outcomes.note_duplicate(&open.sensor.id, start);
                }
                match self.schedule.arrived(&mut open, now.mono_ms) {
                    Arrived::Nothing => {}
                    Arrived::Waits => self.outcomes.counts.began += 1,
                    Arrived::FilledLate => self.outcomes.counts.filled_late += 1,
                }
            }
        }
        self.schemas.end();
        ack.delivered();
    }

    /// Moves due buckets into the queues.
    pub fn promote(&mut self, now: Now) {
        self.catalog.set_wall_ms(now.wall_ms);
        while let Some(due) = self.schedule.pop_due(now.mono_ms) {
            for bucket_ref in due {
                if let Some(mut open) = self.sensors.find(bucket_ref)
                    && (self.schedule).still_waits(open.bucket, Waited::InWheel(now.mono_ms))
                {
                    self.schedule.enqueue_or_hold(&mut open, now.mono_ms);
                }
            }
        }
        let in_turn = self.schedule.pop_turns(now.mono_ms);
        self.enqueue(in_turn, Waited::ForTurn);
        self.schedule.note_queued(now.mono_ms);
    }

    /// Queues the buckets of valid entries.
    fn enqueue(&mut self, bucket_refs: Vec<BucketRef>, waited: Waited) {
        for bucket_ref in bucket_refs {
            if let Some(mut open) = self.sensors.find(bucket_ref)
                && self.schedule.still_waits(open.bucket, waited)
            {
                self.schedule.enqueue(&mut open);
            }
        }
    }

    /// Whether page writes have been queued for longer than one command after the other can keep up
    /// with, or memory is short. Call it after [`Shard::promote`].
    pub fn is_behind(&self, now: Now) -> bool {
        self.schedule.is_behind(now.mono_ms) || self.full()
    }

    /// Makes every bucket due, except those in backoff after a failure.
    pub fn drain(&mut self) {
        let mut in_wheel = vec![];
        while let Some((early, waited)) = self.schedule.pop_early() {
            match waited {
                Waited::ForTurn => self.enqueue(early, waited),
                Waited::InWheel(_) => in_wheel.extend(early),
            }
        }
        for bucket_ref in in_wheel {
            if let Some(mut open) = self.sensors.find(bucket_ref) {
                self.schedule.drain(&mut open);
            }
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

    /// Frees memory. Each call drops the idle buckets of a few sensors whose span ended some time
    /// ago. If the shard is full, those whose span has just ended too, and every bucket drops most
    /// of its dedup window; if sensors fill the shard, every idle bucket is dropped (and loaded
    /// again when needed).
    fn evict_idle(&mut self, now: Now) {
        if !self.full() {
            self.failing.set_blocked(false);
            let step = (self.sensors.slots() / SWEEP_TICKS).max(SWEEP_STEP_MIN);
            return self.sweep(step, Droppable::Ended, now);
        }
        self.catalog
            .limit(&mut self.sensors, self.settings.bytes_max / 16);
        // Pending readings do not count: they leave by themselves, and a dropped bucket has to be
        // loaded again.
        let idle = self.sensors.len() * IDLE_BYTES;
        let are_many = self.has_all_sensors() || idle >= self.settings.bytes_max / 2;
        let droppable = match are_many {
            true => Droppable::All,
            false => Droppable::Ended,
        };
        self.sweep(SWEEP_STEP_FULL, droppable, now);
        // No pending write could make room: drop all idle buckets except those that count.
        let only_failing = self.full() && self.holds_only_failing();
        if only_failing {
            self.sweep(usize::MAX, Droppable::All, now);
        }
        // Then those too, but no more than necessary: a forgotten count can lose a reading. So if
        // memory is the limit, the rows of failing buckets become dead letters first. If sensors are
        // the limit, that would free only one each.
        if only_failing && (self.has_all_sensors() || self.empty()) {
            for _ in 0..self.sensors.slots() {
                if !self.full() {
                    break;
                }
                self.sweep(1, Droppable::EvenCounting, now);
            }
        }
        self.failing.set_blocked(only_failing && self.full());
    }

    /// Drops idle buckets of the next sensors, in so many slots. An idle bucket is kept for late
    /// readings for a twelfth of its span.
    fn sweep(&mut self, slots: usize, droppable: Droppable, now: Now) {
        let full = self.full();
        let span_ms = self.settings.span.ms();
        let keep_ms = if full { 0 } else { span_ms / 12 };
        let ended_ms = now.wall_ms - keep_ms - span_ms;
        let sweep = IdleSweep {
            before_ms: match droppable {
                Droppable::Ended => ended_ms,
                Droppable::All | Droppable::EvenCounting => i64::MAX,
            },
            even_counting: droppable == Droppable::EvenCounting,
            over_ms: self.arrivals.over_ms(),
            keys_max: full.then(|| self.keys_max()),
        };
        self.outcomes.counts.forgotten += self.sensors.sweep(slots, &sweep);
    }

    /// Whether all rows that are pending or in flight are those of failing buckets.
    fn holds_only_failing(&mut self) -> bool {
        let sensors = &mut self.sensors;
        let rows = |bucket_ref| Some(sensors.find(bucket_ref)?.bucket.unstored_rows());
        let failing: usize = self.failing.bucket_refs().filter_map(rows).sum();
        self.outcomes.unstored() <= failing
    }

    /// Frees schemas, names and tags that no bucket uses; more often when the shard is full.
    fn sweep_shared(&mut self, now: Now) {
        let every_ms = if self.full() { SWEEP_FULL_MS } else { SWEEP_MS };
        if now.mono_ms >= self.swept_ms + every_ms {
            self.swept_ms = now.mono_ms;
            self.schemas.sweep();
            self.sensors.sweep_tags();
            self.catalog.sweep();
        }
    }

    /// Above [`EVICT_SIXTEENTHS`] of the memory, or at the limit of sensors, queues buckets before
    /// they are due: those whose turn comes next, then those that are due soonest. At the limit of
    /// sensors all of them, because only sensors without readings can be dropped.
    ///
    /// A statement costs the store nearly the same for one reading as for ten. So only as many are
    /// queued as one command needs. The others gather readings meanwhile, and the order of the
    /// turns remains.
    fn evict_buckets(&mut self) {
        let enough = if self.has_all_sensors() {
            self.settings.command_statements_max
        } else if self.memory() >= self.settings.bytes_max / 16 * EVICT_SIXTEENTHS {
            EVICTED_QUEUE
        } else {
            return;
        };
        while self.schedule.queued() < enough
            && let Some((early, waited)) = self.schedule.pop_early()
        {
            self.enqueue(early, waited);
        }
    }

    /// The estimated memory, added up from all sensors, for tests: every change must have been
    /// counted in `usage`.
    pub fn counted_bytes(&self) -> usize {
        self.sensors.counted_memory() + self.schemas.memory_bytes() + self.catalog.memory()
    }
}

impl std::fmt::Debug for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shard")
            .field("holding", &self.usage())
            .finish_non_exhaustive()
    }
}
