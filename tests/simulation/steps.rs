//! The pure state, step by step, with an injected clock: crashes between any two steps, lost answers, statements that are
//! applied long after their answer was given up, late and duplicate readings, several shards (another number after each
//! start), a second instance on the same sensors, outages longer than memory, sensor clocks within the limits, a service
//! clock that is wrong at the start and is set while it runs, sums that round, a high-water mark whose answer is lost, and
//! what else changes the same documents (`beside.rs`, `convert.rs`, `remove.rs`).
//!
//! Oracle: what was acknowledged is stored exactly once (or a dead letter, if the readings of its bucket were removed), what was sent and not acknowledged at most once, summaries equal
//! those of the readings, and no acknowledgement comes before its readings are stored. Questions (`queries.rs`) show what was
//! acknowledged exactly once, too, at any moment.

#[path = "beside.rs"]
mod beside;
#[path = "convert.rs"]
mod convert;
#[path = "end.rs"]
mod end;
#[path = "queries.rs"]
mod queries;
#[path = "remove.rs"]
mod remove;

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use hourbucket::accumulate::PageLimits;
use hourbucket::accumulate::state::{Job, JobResult, RejectedRows, Shard, ShardSettings};
use hourbucket::ack::{Ack, AckOutcome};
use hourbucket::flush::backoff::Backoff;
use hourbucket::flush::due::DuePolicy;
use hourbucket::model::{BucketStart, NewBuckets, Now, PageWrite, Reading, ReadingBatch, Span, StorageMode, Value};
use hourbucket::route::row_refs;
use hourbucket::store::memory::{Conversion, Pages};
use hourbucket::store::{PageWriteResult, StoreError, StoreErrorKind};

use super::{HOUR, Identities, Identity, identities, identity};

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

fn note_stored(known: &mut Identities<Known>, write: &PageWrite) {
    for id in identities(write) {
        known.get_mut(&id).expect("it was sent").stored = true;
    }
}

/// What the flush stage does before it sends the writes.
fn catalogue(pages: &mut Pages, writes: &[PageWrite]) {
    writes.iter().filter_map(|write| write.catalog.as_deref()).for_each(|update| pages.merge_catalog(update));
}

/// Carries out one statement and notes what it stored.
fn apply(pages: &mut Pages, known: &mut Identities<Known>, write: &PageWrite) -> PageWriteResult {
    let written = pages.write(write);
    if matches!(written, PageWriteResult::Done { .. }) || write.storage_mode == StorageMode::TimeSeries {
        note_stored(known, write);
    }
    written
}

/// A journal entry, or with `ack = "stored"` a parcel that its sender keeps until it is acknowledged.
struct Entry {
    id: usize,
    /// When it was handed in.
    wall_ms: i64,
    readings: Rc<[Reading]>,
    batch: ReadingBatch,
    ids: Rc<[Identity]>,
    synced: bool,
    stored: bool,
}

impl Entry {
    /// It keeps its place in the journal.
    fn clear(&mut self) {
        (self.readings, self.ids, self.batch) = (Rc::default(), Rc::default(), ReadingBatch::default());
    }
}

/// Up to where the mark must have been raised before this job is sent.
fn through(job: &Job) -> BucketStart {
    let (Job::Load(tickets, _) | Job::Write(tickets, _)) = job;
    tickets.iter().map(|t| t.start()).max().map_or(BucketStart(i64::MIN), |start| BucketStart(start.0 + HOUR))
}

/// The measurements of a statement, and not its summary; or not all of the statements of its recount.
fn insert(rng: &mut fastrand::Rng, pages: &mut Pages, known: &mut Identities<Known>, write: &PageWrite) {
    pages.insert(write);
    pages.recompute_in_part(&write.sensor_id, write.start, rng.usize(0..6).saturating_sub(1));
    note_stored(known, write);
}

/// Lets statements that nobody waits for come to their end: not at all, a time-series one by half, or whole.
fn settle(
    rng: &mut fastrand::Rng,
    zombies: &mut Vec<PageWrite>,
    pages: &mut Pages,
    known: &mut Identities<Known>,
    which: impl Fn(&PageWrite) -> bool,
) {
    for write in zombies.extract_if(.., |w| which(w)) {
        match rng.u8(0..3) {
            0 => {}
            1 if write.storage_mode == StorageMode::TimeSeries => insert(rng, pages, known, &write),
            _ => drop(apply(pages, known, &write)),
        }
    }
}

type Outcomes = Arc<Mutex<Vec<(usize, usize, AckOutcome)>>>;

/// One process: shards and what they have in flight. A crash throws it away.
struct Process {
    shards: Vec<Shard>,
    jobs: Vec<(usize, Job)>,
    /// Answers on their way back.
    answers: VecDeque<(usize, JobResult)>,
    /// Entries that the router has not handed over yet.
    backlog: VecDeque<(usize, bool)>,
    /// The database's high-water mark as this process knows it, and what is new because of it.
    mark: BucketStart,
    new: NewBuckets,
}

/// An instance with its journal, which survives crashes.
struct Instance {
    journal: Vec<Entry>,
    process: Process,
    generation: usize,
}

struct Sim {
    rng: fastrand::Rng,
    seed: u64,
    now: Now,
    /// How far the service's clock is ahead of the true time; sensors have clock errors of their own.
    wrong_ms: i64,
    clocks: Vec<i64>,
    retention_ms: Option<i64>,
    /// How long after the end of their bucket readings are removed; and those that came after that.
    removes_after_ms: Option<i64>,
    dead: Identities<u32>,
    /// What else was rejected.
    given_up: Vec<RejectedRows>,
    /// Time-series buckets that a `reconcile` may have left half done.
    interrupted: HashSet<(String, BucketStart)>,
    /// Whether buckets are converted, which ones were, and those under way.
    converts: bool,
    converted: BTreeMap<(String, BucketStart), StorageMode>,
    conversions: Vec<Conversion>,
    /// Whether a query is under way, and the bucket of which it has read some pages.
    asked: bool,
    reading: Option<(String, BucketStart)>,
    pages: Pages,
    /// Statements sent by somebody who no longer waits for the answer: applied at any later time, or never.
    zombies: Vec<PageWrite>,
    instances: Vec<Instance>,
    outcomes: Outcomes,
    page: PageLimits,
    due: DuePolicy,
    faulty: bool,
    journaled: bool,
    /// Of new buckets; another one now and then after a start.
    storage_mode: StorageMode,
    /// Every identity that was ever sent.
    known: Identities<Known>,
    sensors: u64,
    budget: usize,
    batches_seen: Vec<Rc<[Reading]>>,
    /// Batches that were sent again after a crash, with other times of receipt.
    resent: Vec<Rc<[Reading]>>,
    /// The last reading without a time of its own, and the instance that it went to.
    receipt_last: Option<(usize, Reading)>,
}

impl Sim {
    fn new(seed: u64) -> Sim {
        let mut rng = fastrand::Rng::with_seed(seed);
        let bytes = if rng.u8(0..4) == 0 { 150 } else { 1 << 20 };
        // A field of a short name takes 58 bytes of a summary: one to eight of them to a page, or any number.
        let summary_bytes = if rng.bool() { rng.u64(50..500) } else { 1 << 20 };
        let page = PageLimits { readings: rng.u32(1..9), bytes, summary_bytes };
        let due = if rng.bool() { DuePolicy::Age(rng.u64(1..20_000)) } else { DuePolicy::Linger(rng.u64(0..50)) };
        // Often shortly before a bucket begins.
        let into = if rng.bool() { rng.i64(0..HOUR) } else { HOUR - rng.i64(0..10_000) };
        let wall_ms = 472_222 * HOUR + into;
        let clock = |rng: &mut fastrand::Rng| match rng.u8(0..4) {
            0 => rng.i64(-3 * HOUR..HOUR),
            1 => rng.i64(-60_000..60_000),
            _ => 0,
        };
        let clocks = (0..6).map(|_| clock(&mut rng)).collect();
        let mut sim = Sim {
            seed,
            now: Now { wall_ms, mono_ms: 1000 },
            wrong_ms: 0,
            clocks,
            interrupted: HashSet::new(),
            converts: false,
            converted: BTreeMap::new(),
            conversions: vec![],
            asked: false,
            reading: None,
            retention_ms: (rng.u8(0..3) == 0).then(|| rng.i64(2 * HOUR..12 * HOUR)),
            removes_after_ms: rng.bool().then(|| rng.i64(0..3 * HOUR)),
            dead: Identities::default(),
            given_up: vec![],
            pages: Pages { summary_bytes_max: Some(page.summary_bytes), ..Pages::default() },
            zombies: vec![],
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
        // Time-series buckets are exact with one instance a sensor.
        let (instances, series) = if sim.rng.bool() { (1, sim.rng.bool()) } else { (2, false) };
        if series {
            sim.storage_mode = StorageMode::TimeSeries;
        }
        sim.converts = instances == 1 && sim.rng.bool();
        for _ in 0..instances {
            let process = sim.start();
            sim.instances.push(Instance { journal: vec![], process, generation: 0 });
        }
        sim
    }

    /// How often a reading must be in the store, and how often it may be.
    fn expected(&self, id: &Identity) -> RangeInclusive<u32> {
        let known = self.known[id];
        if !known.receipt_time {
            return known.acked.min(1)..=1;
        }
        let bucket = (id.sensor.as_str().to_owned(), Span::HOUR.floor(id.key.ts_ms));
        match self.converted.contains_key(&bucket) {
            // See `convert.rs`.
            true => known.acked.min(1)..=u32::MAX,
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
            // At least the sensors there are: a shard that can hold no more must forget what it counts.
            sensors_max: self.rng.usize(6..100),
            dedup_keys_max: self.rng.usize(0..30) * self.rng.usize(1..128),
            quarantine_after_ms: 600_000,
            arrival_step_ms: 60_000,
            backoff: Backoff { min: std::time::Duration::from_millis(5), max: std::time::Duration::from_millis(500) },
        };
        let shards = (0..self.rng.usize(1..4)).map(|_| Shard::new(settings.clone())).collect();
        let (mark, new) = (BucketStart(i64::MIN), NewBuckets::NONE);
        Process { shards, jobs: vec![], answers: VecDeque::new(), backlog: VecDeque::new(), mark, new }
    }

    fn reading(&mut self) -> Reading {
        let receipt_time = self.rng.u8(0..4) == 0;
        let late = if self.rng.u8(0..5) == 0 { self.rng.i64(0..5 * HOUR) } else { self.rng.i64(-3..3) };
        let sensor = self.rng.u64(0..self.sensors);
        let measured = self.now.wall_ms - self.wrong_ms + self.clocks[sensor as usize] - late;
        let ts_ms = if receipt_time { self.now.wall_ms } else { measured };
        let mut values = super::numbers(&mut self.rng);
        if self.rng.u8(0..3) == 0 {
            values.insert(format!("f{}", self.rng.u8(0..30)), Value::Int(self.rng.i64(-3..3)));
        }
        if receipt_time {
            // Unique in the whole history but for the doubles that `send` makes on purpose.
            values.insert("u".to_string(), Value::Int(self.rng.i64(..) / 4096));
        }
        let sensor_id = format!("s{sensor}");
        Reading { sensor_id, ts_ms, receipt_time, tags: BTreeMap::new(), values }
    }

    /// A sender sends a batch: new readings, doubles within it, and now and then an old batch again.
    fn send(&mut self, instance: usize) {
        let mut readings: Vec<Reading> = (0..self.rng.usize(1..12)).map(|_| self.reading()).collect();
        if self.rng.u8(0..4) == 0 {
            let twin = readings[self.rng.usize(0..readings.len())].clone();
            readings.push(twin);
        }
        if self.rng.u8(0..4) == 0 && !self.batches_seen.is_empty() {
            let old = &self.batches_seen[self.rng.usize(0..self.batches_seen.len())];
            readings.extend(old.iter().filter(|r| !r.receipt_time).cloned());
        }
        // Somebody else measures the same in the same millisecond and gives no time either: another reading. (Sent to
        // two instances, they can be taken for one; DESIGN says so.)
        if self.instances.len() == 1
            && self.rng.u8(0..4) == 0
            && let Some((to, twin)) = &self.receipt_last
            && (*to, twin.ts_ms) == (instance, self.now.wall_ms)
        {
            readings.push(twin.clone());
        }
        if let Some(reading) = readings.iter().find(|r| r.receipt_time) {
            self.receipt_last = Some((instance, reading.clone()));
        }
        let readings: Rc<[Reading]> = readings.into();
        self.batches_seen.push(readings.clone());
        self.hand_in(instance, readings);
    }

    fn hand_in(&mut self, instance: usize, readings: Rc<[Reading]>) {
        let ids: Rc<[Identity]> = readings.iter().map(identity).collect();
        for (reading, id) in readings.iter().zip(&*ids) {
            let known = self.known.entry(*id).or_default();
            known.receipt_time = reading.receipt_time;
            known.sent += 1;
        }
        let inst = &mut self.instances[instance];
        let (id, batch, wall_ms) = (inst.journal.len(), readings.iter().cloned().collect(), self.now.wall_ms);
        inst.journal.push(Entry { id, wall_ms, readings, batch, ids, synced: !self.journaled, stored: false });
        if !self.journaled {
            inst.process.backlog.push_back((id, false));
        }
    }

    /// The journal's fdatasync: everything appended is durable, acknowledged, and goes on to the router.
    fn sync(&mut self, instance: usize) {
        let inst = &mut self.instances[instance];
        let first = inst.journal.iter().rposition(|e| e.synced).map_or(0, |at| at + 1);
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
        let Some((id, replayed)) = inst.process.backlog.pop_front() else { return };
        let batch = &inst.journal[id].batch;
        let (outcomes, generation) = (self.outcomes.clone(), inst.generation);
        let ack = Ack::with(move |outcome| {
            let key = instance * 1_000_000 + generation;
            outcomes.lock().unwrap().push((key, id, outcome));
        });
        let row_refs = row_refs(batch, inst.process.shards.len());
        for (shard, row_refs) in inst.process.shards.iter_mut().zip(row_refs) {
            if !row_refs.is_empty() {
                shard.set_new_buckets(inst.process.new);
                shard.accept(batch, &row_refs, ack.clone(), replayed, self.now);
            }
        }
        ack.delivered();
    }

    /// What the outcomes mean: an entry is stored, which must be true, or its sender sends it again.
    fn settle_outcomes(&mut self) {
        let outcomes = std::mem::take(&mut *self.outcomes.lock().unwrap());
        for (key, id, outcome) in outcomes {
            let (instance, generation) = (key / 1_000_000, key % 1_000_000);
            if self.instances[instance].generation != generation {
                continue;
            }
            assert_eq!(
                outcome,
                AckOutcome::Delivered,
                "seed {}: an acknowledgement was dropped without a crash",
                self.seed
            );
            for id in &*self.instances[instance].journal[id].ids {
                let known = self.known.get_mut(id).expect("it was sent");
                assert!(known.stored, "seed {}: acknowledged before it was stored: {id:?}", self.seed);
                known.acked += u32::from(!self.journaled);
            }
            self.instances[instance].journal[id].stored = true;
        }
    }

    fn take_jobs(&mut self, instance: usize) {
        let process = &mut self.instances[instance].process;
        for s in 0..process.shards.len() {
            if self.rng.u8(0..20) == 0 {
                process.shards[s].set_age_ms([0, self.rng.u64(0..60_000)][self.rng.usize(0..2)]);
            }
            process.shards[s].tick(self.now);
            if process.jobs.len() < 3
                && let Some(job) = process.shards[s].take(self.storage_mode)
            {
                process.jobs.push((s, job));
            }
        }
    }

    /// The store works on one of the jobs in flight, with any fault.
    fn work(&mut self, instance: usize) {
        let process = &mut self.instances[instance].process;
        if process.jobs.is_empty() {
            return;
        }
        let (shard, job) = process.jobs.swap_remove(self.rng.usize(0..process.jobs.len()));
        // As the flush stage does it before anything is asked.
        let through = through(&job);
        let lost = if self.faulty && through > process.mark { self.rng.u8(0..10) } else { 255 };
        if lost < 2 {
            // Nothing was sent, and the mark was raised or not.
            if lost == 0 {
                self.pages.raise_high_water(through);
            }
            return process.jobs.push((shard, job));
        }
        if through > process.mark {
            let before = self.pages.raise_high_water(through);
            (process.mark, process.new) = (through.max(before), process.new.raised(before, through));
        }
        let fault = if self.faulty { self.rng.u8(0..12) } else { 255 };
        let unknown = || StoreError::Unknown { kind: StoreErrorKind::Timeout, detail: String::new() };
        let done = match job {
            Job::Load(tickets, requests) => {
                if fault < 2 {
                    JobResult::Load(tickets, requests, Err(unknown()))
                } else {
                    if requests.iter().any(|r| r.doubt) {
                        // What such a load waits for.
                        let series = |w: &PageWrite| {
                            w.storage_mode == StorageMode::TimeSeries
                                && requests.iter().any(|r| r.doubt && r.bucket == w.bucket())
                        };
                        settle(&mut self.rng, &mut self.zombies, &mut self.pages, &mut self.known, series);
                    }
                    let loaded = requests.iter().map(|r| self.pages.load(r, self.storage_mode)).collect();
                    JobResult::Load(tickets, requests, Ok(loaded))
                }
            }
            Job::Write(tickets, writes) => {
                // Before the pages; the first fault is one of this command.
                let catalogued = if fault == 0 { writes.len() / 2 } else { writes.len() };
                catalogue(&mut self.pages, &writes[..catalogued]);
                let (pages, known) = (&mut self.pages, &mut self.known);
                let mut apply =
                    |n: usize| -> Vec<PageWriteResult> { writes[..n].iter().map(|w| apply(pages, known, w)).collect() };
                let answer = match fault {
                    0 => Err(StoreError::NotApplied { kind: StoreErrorKind::Network, detail: String::new() }),
                    1 => {
                        self.zombies.extend(writes.iter().cloned());
                        Err(unknown())
                    }
                    2 | 3 => {
                        apply(writes.len());
                        Err(unknown())
                    }
                    4 => {
                        apply(writes.len() / 2);
                        self.zombies.extend(writes[writes.len() / 2..].iter().cloned());
                        Err(unknown())
                    }
                    5 if writes.iter().all(|w| w.storage_mode == StorageMode::TimeSeries) => {
                        writes.iter().for_each(|w| insert(&mut self.rng, pages, known, w));
                        Err(unknown())
                    }
                    _ => Ok(apply(writes.len())),
                };
                JobResult::Write(tickets, writes, answer)
            }
        };
        process.answers.push_back((shard, done));
    }

    fn answer(&mut self, instance: usize) {
        let process = &mut self.instances[instance].process;
        if let Some((shard, done)) = process.answers.pop_front() {
            process.shards[shard].finished(done, self.now);
            self.keep_late_rows(instance);
        }
    }

    /// The process dies. What it had sent may still be applied; what was not synced is lost; the rest is replayed from
    /// the first entry that was received in the same moment as the first unstored one (a reading without a time of its
    /// own may have a twin there, and the two must be counted together).
    fn crash(&mut self, instance: usize) {
        if self.rng.u8(0..3) == 0 {
            self.set_clock();
        }
        let started = self.start();
        let inst = &mut self.instances[instance];
        inst.generation += 1;
        let old = std::mem::replace(&mut inst.process, started);
        for (_, job) in old.jobs {
            // What lies beyond the mark was not sent.
            let sent = through(&job) <= old.mark;
            if let (Job::Write(_, writes), true) = (job, sent) {
                catalogue(&mut self.pages, &writes);
                self.zombies.extend(writes);
            }
        }
        if self.instances.len() == 1 && self.rng.u8(0..3) == 0 {
            self.storage_mode = if self.rng.bool() { StorageMode::TimeSeries } else { StorageMode::Bucket };
        }
        if self.storage_mode == StorageMode::TimeSeries
            || self.converts
            || !self.pages.series.is_empty()
            || self.zombies.iter().any(|w| w.storage_mode == StorageMode::TimeSeries)
        {
            // Where there is a time-series collection, the next process waits for the statements of this one.
            settle(&mut self.rng, &mut self.zombies, &mut self.pages, &mut self.known, |_| true);
        }
        let inst = &mut self.instances[instance];
        let mut resend = vec![];
        if self.journaled {
            let unstored = inst.journal.iter().find(|e| e.synced && !e.stored).map_or(i64::MAX, |e| e.wall_ms);
            let first = inst.journal.iter().position(|e| e.wall_ms >= unstored).unwrap_or(inst.journal.len());
            for entry in &mut inst.journal[first..] {
                if entry.synced {
                    inst.process.backlog.push_back((entry.id, true));
                } else {
                    // Lost with the crash, and never sent again: its id stays as an empty entry.
                    entry.clear();
                    (entry.synced, entry.stored) = (true, true);
                }
            }
        } else {
            for entry in inst.journal.iter_mut().filter(|e| !e.stored) {
                entry.stored = true;
                resend.push(entry.readings.to_vec());
                entry.clear();
            }
        }
        // Unacknowledged messages are redelivered by the broker, to any instance; receipt times are then new.
        for mut readings in resend {
            readings.iter_mut().filter(|r| r.receipt_time).for_each(|r| r.ts_ms = self.now.wall_ms);
            let to = self.rng.usize(0..self.instances.len());
            let readings: Rc<[Reading]> = readings.into();
            self.resent.push(readings.clone());
            self.hand_in(to, readings);
        }
    }

    fn step(&mut self) {
        if self.rng.u8(0..60) == 0 {
            self.asked = true;
            self.ask();
            self.asked = false;
        }
        self.go_on();
    }

    fn go_on(&mut self) {
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
            76..88 => self.answer(instance),
            88..95 => {
                let ms = if self.rng.u8(0..20) == 0 { HOUR as u64 } else { self.rng.u64(0..2000) };
                self.now = Now { wall_ms: self.now.wall_ms + ms as i64, mono_ms: self.now.mono_ms + ms };
            }
            95 if self.rng.u8(0..4) == 0 => self.set_clock(),
            95 if self.rng.u8(0..3) == 0 => self.expire(),
            95 if self.rng.bool() => self.reconcile(),
            95..98 => self.zombie(),
            98 if self.rng.bool() => self.crash(instance),
            _ => {}
        }
        self.settle_outcomes();
    }

    /// Somebody sets the service's clock, or it was wrong at the start.
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

    fn zombie(&mut self) {
        if !self.zombies.is_empty() {
            let write = self.zombies.swap_remove(self.rng.usize(0..self.zombies.len()));
            if self.rng.bool() {
                apply(&mut self.pages, &mut self.known, &write);
            }
        }
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
