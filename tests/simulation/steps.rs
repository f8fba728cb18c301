//! The pure state, step by step, with an injected clock: crashes between any two steps, lost
//! responses, statements that are applied long after their sender gave up, late and duplicate
//! readings, several shards (another number after each start), a second instance on the same
//! sensors, outages longer than memory, sensor clocks within the limits, a service clock that is
//! wrong at the start and is set while it runs, sums that round, a high-water mark whose response
//! is lost, and everything else that changes the same documents (`other_writers.rs`, `convert.rs`,
//! `remove.rs`).
//!
//! Oracle: an acknowledged reading is stored exactly once (or is a dead letter, if the readings of
//! its bucket were removed), an unacknowledged one at most once; summaries equal those of the
//! readings; and no acknowledgement comes before its readings are stored. Queries (`queries.rs`)
//! return each acknowledged reading exactly once, too, at any moment.

#[path = "convert.rs"]
mod convert;
#[path = "end.rs"]
mod end;
#[path = "other_writers.rs"]
mod other_writers;
#[path = "queries.rs"]
mod queries;
#[path = "remove.rs"]
mod remove;
#[path = "twins.rs"]
mod twins;
#[path = "work.rs"]
mod work;

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use model::ack::{Ack, AckOutcome};
use model::{
    BucketStart, NewBuckets, Now, PageWrite, Reading, ReadingBatch, Span, StorageMode, Value,
};
use pipeline::accumulate::PageLimits;
use pipeline::accumulate::state::{Job, JobResult, RejectedRows, Shard, ShardSettings};
use pipeline::flush::backoff::Backoff;
use pipeline::flush::due::DuePolicy;
use pipeline::route::row_refs;
use store::maintain::convert::Conversion;
use store::{PageWriteResult, StoreError, StoreErrorKind};
use testkit::memory_store::Pages;

use super::{HOUR, Identities, Identity, again, identities, identity, key};

/// What is known about the readings of one identity.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    receipt_time: bool,
    /// How often one was sent, and acknowledged.
    sent: u32,
    acked: u32,
    /// One was stored at some time, or kept as a dead letter.
    stored: bool,
}

/// A journal entry, or with `ack = "stored"` a batch that its sender keeps until it is
/// acknowledged.
struct Entry {
    id: usize,
    readings: Rc<[Reading]>,
    batch: ReadingBatch,
    ids: Rc<[Identity]>,
    synced: bool,
    stored: bool,
}

impl Entry {
    /// Removes the readings; the entry keeps its place in the journal.
    fn clear(&mut self) {
        (self.readings, self.ids, self.batch) =
            (Rc::default(), Rc::default(), ReadingBatch::default());
    }
}

type Outcomes = Arc<Mutex<Vec<(usize, usize, AckOutcome)>>>;

/// One process: shards and their jobs in flight. Lost in a crash.
struct Process {
    shards: Vec<Shard>,
    jobs: Vec<(usize, Job)>,
    /// Responses that the shards have not received yet.
    responses: VecDeque<(usize, JobResult)>,
    /// Entries that the router has not sent to the shards yet.
    backlog: VecDeque<(usize, bool)>,
    /// The database's high-water mark as this process knows it, and the buckets that are new
    /// because of it.
    mark: BucketStart,
    new: NewBuckets,
}

/// An instance with its journal, which survives crashes.
struct Instance {
    journal: Vec<Entry>,
    /// Everything before this entry is acknowledged by the shards.
    unstored_from: usize,
    process: Process,
    generation: usize,
}

impl Instance {
    /// Where a replay starts, as the journal's tracker determines it: at the first outstanding
    /// entry, or earlier at one whose receipt times overlap those of an outstanding one. Then both
    /// may hold a twin of the same reading, and the two must be counted together.
    fn replay_from(&self) -> usize {
        let first = self.unstored_from;
        let has_twin = |entry: &Entry| {
            let times = entry.batch.receipt_times();
            let mut out = self.journal[first..].iter().filter(|later| !later.stored);
            out.any(|later| later.batch.receipt_times().overlap(&times))
        };
        let earlier = self.journal[..first].iter().position(has_twin);
        earlier.unwrap_or(first)
    }
}

struct Sim {
    rng: fastrand::Rng,
    seed: u64,
    now: Now,
    /// How far the service's clock is ahead of the true time; sensors have their own clock errors.
    wrong_ms: i64,
    clocks: Vec<i64>,
    retention_ms: Option<i64>,
    /// Readings are removed this long after the end of their bucket; and the dead letters because
    /// of that.
    removes_after_ms: Option<i64>,
    dead: Identities<u32>,
    /// Rows that were rejected for any other reason.
    given_up: Vec<RejectedRows>,
    /// Time-series buckets that a `reconcile` may have left half repaired.
    interrupted: HashSet<(String, BucketStart)>,
    /// Whether buckets are converted; the converted ones; and the conversions in progress.
    converts: bool,
    converted: BTreeMap<(String, BucketStart), StorageMode>,
    /// Buckets that a full shard dropped with their counts.
    forgotten: u64,
    conversions: Vec<Conversion>,
    /// Whether a query is in progress, and the bucket that it has read some pages of.
    is_querying: bool,
    reading: Option<(String, BucketStart)>,
    pages: Pages,
    /// Statements whose sender no longer waits for the response: applied at any later time, or
    /// never.
    abandoned: Vec<PageWrite>,
    instances: Vec<Instance>,
    outcomes: Outcomes,
    page: PageLimits,
    due: DuePolicy,
    faulty: bool,
    journaled: bool,
    /// Of new buckets; sometimes a different one after a start.
    storage_mode: StorageMode,
    /// Every identity that was ever sent.
    known: Identities<Known>,
    sensors: u64,
    budget: usize,
    batches_seen: Vec<Rc<[Reading]>>,
    /// Batches that were sent again after a crash, with other times of receipt.
    resent: Vec<Rc<[Reading]>>,
    /// The last reading without its own time, and the instance that it went to.
    receipt_last: Option<(usize, Reading)>,
}

impl Sim {
    fn new(seed: u64) -> Sim {
        let mut rng = fastrand::Rng::with_seed(seed);
        let bytes = if rng.u8(0..4) == 0 { 150 } else { 1 << 20 };
        // A field of a short name takes 58 bytes of a summary: one to eight of them to a page, or
        // any number.
        let summary_bytes = if rng.bool() {
            rng.u64(50..500)
        } else {
            1 << 20
        };
        let page = PageLimits {
            readings: rng.u32(1..9),
            bytes,
            summary_bytes,
        };
        let due = if rng.bool() {
            DuePolicy::Age(rng.u64(1..20_000))
        } else {
            DuePolicy::Linger(rng.u64(0..50))
        };
        // Often shortly before a bucket begins.
        let into = if rng.bool() {
            rng.i64(0..HOUR)
        } else {
            HOUR - rng.i64(0..10_000)
        };
        let wall_ms = 472_222 * HOUR + into;
        let clock = |rng: &mut fastrand::Rng| match rng.u8(0..4) {
            0 => rng.i64(-3 * HOUR..HOUR),
            1 => rng.i64(-60_000..60_000),
            _ => 0,
        };
        let clocks = (0..6).map(|_| clock(&mut rng)).collect();
        let mut sim = Sim {
            seed,
            now: Now {
                wall_ms,
                mono_ms: 1000,
            },
            wrong_ms: 0,
            clocks,
            interrupted: HashSet::new(),
            converts: false,
            converted: BTreeMap::new(),
            forgotten: 0,
            conversions: vec![],
            is_querying: false,
            reading: None,
            retention_ms: (rng.u8(0..3) == 0).then(|| rng.i64(2 * HOUR..12 * HOUR)),
            removes_after_ms: rng.bool().then(|| rng.i64(0..3 * HOUR)),
            dead: Identities::default(),
            given_up: vec![],
            pages: Pages {
                summary_bytes_max: Some(page.summary_bytes),
                ..Pages::default()
            },
            abandoned: vec![],
            instances: vec![],
            outcomes: Outcomes::default(),
            page,
            due,
            faulty: true,
            journaled: rng.u8(0..3) > 0,
            known: Identities::default(),
            sensors: rng.u64(1..6),
            budget: if rng.u8(0..3) == 0 { 24_000 } else { 1 << 20 },
            batches_seen: vec![],
            resent: vec![],
            receipt_last: None,
            storage_mode: StorageMode::Bucket,
            rng,
        };
        // Time-series buckets are exact only if each sensor has one instance.
        let (instances, series) = if sim.rng.bool() {
            (1, sim.rng.bool())
        } else {
            (2, false)
        };
        if series {
            sim.storage_mode = StorageMode::TimeSeries;
        }
        sim.converts = instances == 1 && sim.rng.bool();
        for _ in 0..instances {
            let process = sim.start();
            sim.instances.push(Instance {
                journal: vec![],
                unstored_from: 0,
                process,
                generation: 0,
            });
        }
        sim
    }

    /// How often a reading must be stored at least, and may be stored at most.
    fn expected(&self, id: &Identity) -> RangeInclusive<u32> {
        let known = self.known[id];
        if !known.receipt_time {
            return known.acked.min(1)..=1;
        }
        let bucket = (
            id.sensor.as_str().to_owned(),
            Span::HOUR.floor(id.key.ts_ms),
        );
        match self.converted.contains_key(&bucket) {
            // See `convert.rs`.
            true => known.acked.min(1)..=u32::MAX,
            // A shard full of nothing that could leave: docs/guarantees.md has this exception.
            false if self.forgotten > 0 => known.acked.min(1)..=known.sent,
            false => known.acked..=known.sent,
        }
    }

    fn start(&mut self) -> Process {
        let settings = ShardSettings {
            span: Span::HOUR,
            page: self.page,
            due: self.due,
            command_bytes_max: (1 << 20) + self.rng.u64(0..4000),
            command_statements_max: self.rng.usize(1..10),
            bytes_max: self.budget,
            // At least the number of sensors: a full shard evicts a sensor together with its
            // counts.
            sensors_max: self.rng.usize(6..100),
            dedup_keys_max: self.rng.usize(0..30) * self.rng.usize(1..128),
            quarantine_after_ms: 600_000,
            arrival_step_ms: 60_000,
            backoff: Backoff {
                min: std::time::Duration::from_millis(5),
                max: std::time::Duration::from_millis(500),
            },
        };
        let shards = (0..self.rng.usize(1..4))
            .map(|_| Shard::new(settings.clone()))
            .collect();
        let mark = BucketStart(i64::MIN);
        let new = NewBuckets::NONE;
        Process {
            shards,
            jobs: vec![],
            responses: VecDeque::new(),
            backlog: VecDeque::new(),
            mark,
            new,
        }
    }

    fn reading(&mut self) -> Reading {
        let receipt_time = self.rng.u8(0..4) == 0;
        let sensor = self.rng.u64(0..self.sensors);
        self.reading_of(sensor, receipt_time)
    }

    fn reading_of(&mut self, sensor: u64, receipt_time: bool) -> Reading {
        let late = if self.rng.u8(0..5) == 0 {
            self.rng.i64(0..5 * HOUR)
        } else {
            self.rng.i64(-3..3)
        };
        let measured = self.now.wall_ms - self.wrong_ms + self.clocks[sensor as usize] - late;
        let ts_ms = if receipt_time {
            self.now.wall_ms
        } else {
            measured
        };
        let mut values = super::numbers(&mut self.rng);
        if self.rng.u8(0..3) == 0 {
            values.insert(
                format!("f{}", self.rng.u8(0..30)),
                Value::Int(self.rng.i64(-3..3)),
            );
        }
        if receipt_time {
            // Unique in the whole history, except for the duplicates that `send` makes.
            values.insert("u".to_string(), Value::Int(self.rng.i64(..) / 4096));
        }
        let sensor_id = format!("s{sensor}");
        Reading {
            sensor_id,
            ts_ms,
            receipt_time,
            tags: BTreeMap::new(),
            values,
        }
    }

    /// A sender sends a batch: new readings, duplicates within the batch, and sometimes an old
    /// batch again.
    fn send(&mut self, instance: usize) {
        let mut readings: Vec<Reading> =
            (0..self.rng.usize(1..12)).map(|_| self.reading()).collect();
        if self.rng.u8(0..4) == 0 {
            let twin = self.rng.usize(0..readings.len());
            readings.push(again(&mut self.rng, &readings[twin]));
        }
        if self.rng.u8(0..4) == 0 && !self.batches_seen.is_empty() {
            let old = &self.batches_seen[self.rng.usize(0..self.batches_seen.len())];
            let old = old.iter().filter(|r| !r.receipt_time);
            readings.extend(old.map(|r| again(&mut self.rng, r)));
        }
        // Another sender sends the same values in the same millisecond, also without a time: a
        // different reading. (Two instances may take them for one; docs/design.md says so.)
        if self.instances.len() == 1
            && self.rng.u8(0..4) == 0
            && let Some((to, twin)) = &self.receipt_last
            && (*to, twin.ts_ms) == (instance, self.now.wall_ms)
        {
            readings.push(again(&mut self.rng, twin));
        }
        if let Some(reading) = readings.iter().find(|r| r.receipt_time) {
            self.receipt_last = Some((instance, reading.clone()));
        }
        let readings: Rc<[Reading]> = readings.into();
        self.batches_seen.push(readings.clone());
        self.accept(instance, readings);
    }

    fn accept(&mut self, instance: usize, readings: Rc<[Reading]>) {
        let ids: Rc<[Identity]> = readings.iter().map(identity).collect();
        for (reading, id) in readings.iter().zip(&*ids) {
            let known = self.known.entry(*id).or_default();
            known.receipt_time = reading.receipt_time;
            known.sent += 1;
        }
        let inst = &mut self.instances[instance];
        let id = inst.journal.len();
        let batch = readings.iter().cloned().collect();
        inst.journal.push(Entry {
            id,
            readings,
            batch,
            ids,
            synced: !self.journaled,
            stored: false,
        });
        if !self.journaled {
            inst.process.backlog.push_back((id, false));
        }
    }

    /// The journal's fdatasync: everything appended is durable, acknowledged, and sent to the
    /// router.
    fn sync(&mut self, instance: usize) {
        let inst = &mut self.instances[instance];
        let first = inst
            .journal
            .iter()
            .rposition(|e| e.synced)
            .map_or(0, |at| at + 1);
        for entry in &mut inst.journal[first..] {
            entry.synced = true;
            inst.process.backlog.push_back((entry.id, false));
            for id in &*entry.ids {
                self.known.get_mut(id).expect("it was sent").acked += 1;
            }
        }
    }

    fn route(&mut self, instance: usize) {
        let inst = &mut self.instances[instance];
        if inst.process.shards.iter().any(Shard::full) {
            return;
        }
        let Some((id, replayed)) = inst.process.backlog.pop_front() else {
            return;
        };
        let batch = &inst.journal[id].batch;
        let outcomes = self.outcomes.clone();
        let generation = inst.generation;
        let done = move |outcome| {
            let key = instance * 1_000_000 + generation;
            outcomes.lock().unwrap().push((key, id, outcome));
        };
        let ack = if self.journaled {
            Ack::at(id as u64, done)
        } else {
            Ack::with(done)
        };
        let row_refs = row_refs(batch, inst.process.shards.len());
        for (shard, row_refs) in inst.process.shards.iter_mut().zip(row_refs) {
            if !row_refs.is_empty() {
                shard.set_new_buckets(inst.process.new);
                shard.accept(batch, &row_refs, ack.clone(), replayed, self.now);
            }
        }
        ack.delivered();
    }

    /// Checks the outcomes. A sender's acknowledgement says that its readings are stored. One of the
    /// journal says that together with all before it.
    fn settle_outcomes(&mut self) {
        let outcomes = std::mem::take(&mut *self.outcomes.lock().unwrap());
        for (key, id, outcome) in outcomes {
            let instance = key / 1_000_000;
            let generation = key % 1_000_000;
            if self.instances[instance].generation != generation {
                continue;
            }
            assert_eq!(
                outcome,
                AckOutcome::Delivered,
                "seed {}: an acknowledgement was dropped without a crash",
                self.seed
            );
            self.instances[instance].journal[id].stored = true;
            if self.journaled {
                self.settle_journal(instance);
            } else {
                self.settle_entry(instance, id);
            }
        }
    }

    /// Advances over the entries that are acknowledged with all before them.
    fn settle_journal(&mut self, instance: usize) {
        loop {
            let inst = &self.instances[instance];
            let id = inst.unstored_from;
            if inst.journal.get(id).is_none_or(|entry| !entry.stored) {
                break;
            }
            self.settle_entry(instance, id);
            self.instances[instance].unstored_from += 1;
        }
    }

    /// The readings of an acknowledged entry must be stored.
    fn settle_entry(&mut self, instance: usize, entry: usize) {
        for id in &*self.instances[instance].journal[entry].ids {
            let known = self.known.get_mut(id).expect("it was sent");
            assert!(
                known.stored,
                "seed {}: acknowledged before it was stored: {id:?}",
                self.seed
            );
            known.acked += u32::from(!self.journaled);
        }
    }

    fn take_jobs(&mut self, instance: usize) {
        let process = &mut self.instances[instance].process;
        for s in 0..process.shards.len() {
            if self.rng.u8(0..20) == 0 {
                process.shards[s].set_age_ms([0, self.rng.u64(0..60_000)][self.rng.usize(0..2)]);
            }
            process.shards[s].tick(self.now);
            self.forgotten += process.shards[s].take_counts().forgotten;
            let counted = process.shards[s].counted_bytes();
            assert_eq!(
                process.shards[s].usage().bytes,
                counted,
                "seed {}: a change of memory is not counted",
                self.seed
            );
            if process.jobs.len() < 3
                && let Some(job) = process.shards[s].take(self.storage_mode)
            {
                process.jobs.push((s, job));
            }
        }
    }

    fn step(&mut self) {
        if self.rng.u8(0..60) == 0 {
            self.is_querying = true;
            self.query();
            self.is_querying = false;
        }
        self.step_without_query();
    }

    fn step_without_query(&mut self) {
        if self.converts && self.rng.u8(0..8) == 0 {
            return self.convert();
        }
        if self.removes_after_ms.is_some() && self.rng.u8(0..30) == 0 {
            return self.remove_readings();
        }
        let instance = self.rng.usize(0..self.instances.len());
        match self.rng.u32(0..100) {
            0..12 => self.send(instance),
            12..20 => self.sync(instance),
            20..38 => self.route(instance),
            38..58 => self.take_jobs(instance),
            58..76 => self.work(instance),
            76..88 => self.respond(instance),
            88..95 => {
                let ms = if self.rng.u8(0..20) == 0 {
                    HOUR as u64
                } else {
                    self.rng.u64(0..2000)
                };
                self.now = Now {
                    wall_ms: self.now.wall_ms + ms as i64,
                    mono_ms: self.now.mono_ms + ms,
                };
            }
            95 if self.rng.u8(0..4) == 0 => self.set_clock(),
            95 if self.rng.u8(0..3) == 0 => self.expire(),
            95 if self.rng.bool() => self.reconcile(),
            95..98 => self.apply_abandoned(),
            98 if self.rng.bool() => self.crash(instance),
            99 if self.journaled && self.instances.len() == 1 && self.rng.u8(0..6) == 0 => {
                self.twins();
            }
            _ => {}
        }
        self.settle_outcomes();
    }

    /// Sets the service's clock: it was wrong at the start, or an operator changes it.
    fn set_clock(&mut self) {
        let by = match self.rng.u8(0..4) {
            0 => self.rng.i64(-10 * 365 * 24 * HOUR..10 * 365 * 24 * HOUR),
            1 => -self.wrong_ms,
            2 => self.rng.i64(-2 * HOUR..2 * HOUR),
            _ => self.rng.i64(-5000..5000),
        };
        self.now.wall_ms += by;
        self.wrong_ms += by;
    }
}

pub(crate) fn run(seed: u64) {
    let mut sim = Sim::new(seed);
    for _ in 0..sim.rng.usize(50..1500) {
        sim.step();
    }
    sim.drain();
    sim.check();
}
