//! More sensors than the memory holds many readings of: a shard with its age control, a slow store,
//! and the journal as the buffer. Each simulated sensor stands for a hundred: the memory is a
//! hundredth, and a statement takes a hundred times as long. The shard and its estimate of the
//! memory are the real ones.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use model::ack::Ack;
use model::{
    BucketStart, NewBuckets, Now, PageKind, PageWrite, Reading, ReadingBatch, SensorId, Span,
    StorageMode, Value,
};
use pipeline::accumulate::PageLimits;
use pipeline::accumulate::state::{Job, JobResult, Shard, ShardSettings};
use pipeline::flush::age::{AgeControl, AgeSample};
use pipeline::flush::backoff::Backoff;
use pipeline::flush::due::DuePolicy;
use pipeline::route::row_refs;
use testkit::memory_store::Pages;

use super::HOUR;

/// A quarter of an hour before the next hour.
const START_MS: i64 = 472_222 * HOUR + 45 * 60_000;
const STEP_MS: u64 = 100;
const MINUTE_MS: u64 = 60_000;
const MAX_AGE_MS: u64 = 15_000;
const BUSY_MS: u64 = 360_000;
/// The real figures, divided by a hundred.
const SENSORS: usize = 10_000;
const BYTES_MAX: usize = (512 << 20) / 100;
const STATEMENTS_MAX: usize = 50;
/// Of a page that is created with its entry of the catalogue, and of one that is appended to: times
/// a hundred. Measured in `wide`, with mongod on 1.3 cores.
const CREATE_S: f64 = 210e-6 * 100.0;
const APPEND_S: f64 = 90e-6 * 100.0;
/// Of the head of a page that is loaded.
const LOAD_S: f64 = 20e-6 * 100.0;
/// Documents that are in one page of the store's disk: a command of 50 appends in random order
/// changes about 49 pages.
const NEIGHBOURS: usize = 20;
/// Readings in a batch, and how many the journal can give in a step.
const BATCH: usize = 10;
const FED_MAX: usize = 500;

struct Sim {
    shard: Shard,
    pages: Pages,
    now: Now,
    control: AgeControl,
    sample: AgeSample,
    /// The job in the store, and when it is done.
    job: Option<(Job, f64)>,
    /// Readings arrive one sensor after the other, so many per second, while `arrives`.
    rate: u64,
    arrives: bool,
    arrived: u64,
    /// The number of the next reading that the shard receives.
    fed: u64,
    statements: u64,
    rows: u64,
    loads: u64,
    /// When each document was created, as a number. Documents that were created together are
    /// neighbours in the store.
    created: HashMap<(SensorId, BucketStart), usize>,
    /// Groups of neighbours that commands of appends changed, and their statements.
    groups: u64,
    appends: u64,
}

impl Sim {
    fn new(rate: u64) -> Sim {
        let settings = ShardSettings {
            span: Span::HOUR,
            page: PageLimits {
                readings: 1000,
                bytes: 1 << 20,
                summary_bytes: 1 << 20,
            },
            due: DuePolicy::Age(MAX_AGE_MS),
            command_bytes_max: 12 << 20,
            command_statements_max: STATEMENTS_MAX,
            bytes_max: BYTES_MAX,
            sensors_max: 20_000,
            dedup_keys_max: 1000,
            quarantine_after_ms: 600_000,
            arrival_step_ms: 60_000,
            backoff: Backoff {
                min: Duration::from_millis(1),
                max: Duration::from_millis(1),
            },
        };
        let mut shard = Shard::new(settings);
        shard.set_new_buckets(NewBuckets::NONE.raised(
            BucketStart(START_MS - 2 * HOUR),
            BucketStart(START_MS + 10 * HOUR),
        ));
        Sim {
            shard,
            pages: Pages::default(),
            now: Now {
                wall_ms: START_MS,
                mono_ms: 1000,
            },
            control: AgeControl::new(MAX_AGE_MS, BUSY_MS),
            sample: AgeSample::default(),
            job: None,
            rate,
            arrives: true,
            arrived: 0,
            fed: 0,
            statements: 0,
            rows: 0,
            loads: 0,
            created: HashMap::new(),
            groups: 0,
            appends: 0,
        }
    }

    /// Resets the figures, runs for `minutes`, and returns the readings per statement.
    fn run(&mut self, what: &str, minutes: u64) -> f64 {
        (self.statements, self.rows, self.loads) = (0, 0, 0);
        (self.groups, self.appends) = (0, 0);
        for _ in 0..minutes * MINUTE_MS / STEP_MS {
            self.step();
        }
        let per_statement = self.rows as f64 / self.statements.max(1) as f64;
        assert_eq!(
            self.shard.counted_bytes(),
            self.shard.usage().bytes,
            "every change of memory is counted"
        );
        println!(
            "{what}: minute {}, age {} s, {per_statement:.2} readings per statement, backlog {}, \
             memory {:.2}, loads {}, {:.2} groups of neighbours per append",
            (self.now.mono_ms - 1000) / MINUTE_MS,
            self.control.age_ms() / 1000,
            self.backlog(),
            self.memory(),
            self.loads,
            self.groups_per_append(),
        );
        per_statement
    }

    /// 1 if no two appends of a command change neighbours.
    fn groups_per_append(&self) -> f64 {
        self.groups as f64 / self.appends.max(1) as f64
    }

    /// Notes which documents a command changes.
    fn note_neighbours(&mut self, writes: &[PageWrite]) {
        let mut groups = HashSet::new();
        for write in writes {
            let key = (write.sensor_id.clone(), write.start);
            match write.kind {
                PageKind::Create => {
                    let n = self.created.len();
                    self.created.insert(key, n);
                }
                PageKind::Append { .. } => {
                    groups.insert(self.created[&key] / NEIGHBOURS);
                    self.appends += 1;
                }
            }
        }
        self.groups += groups.len() as u64;
    }

    fn step(&mut self) {
        self.now = Now {
            wall_ms: self.now.wall_ms + STEP_MS as i64,
            mono_ms: self.now.mono_ms + STEP_MS,
        };
        self.arrived += if self.arrives {
            self.rate * STEP_MS / 1000
        } else {
            0
        };
        for _ in 0..FED_MAX / BATCH {
            if self.shard.full() || self.backlog() == 0 {
                break;
            }
            self.feed();
        }
        self.shard.set_age_ms(self.control.age_ms());
        self.shard.tick(self.now);
        self.store();
        if self.now.mono_ms.is_multiple_of(1000) {
            let counts = self.shard.take_counts();
            (self.sample.began, self.sample.filled_late) = (counts.began, counts.filled_late);
            let sample = std::mem::take(&mut self.sample);
            self.control.observe(AgeSample {
                elapsed_ms: 1000,
                ..sample
            });
        }
    }

    /// Readings that the shard has not received.
    fn backlog(&self) -> u64 {
        self.arrived - self.fed
    }

    fn memory(&self) -> f64 {
        self.shard.usage().bytes as f64 / BYTES_MAX as f64
    }

    fn feed(&mut self) {
        let until = self.arrived.min(self.fed + BATCH as u64);
        let batch: ReadingBatch = (self.fed..until).map(|n| self.reading(n)).collect();
        self.fed = until;
        self.shard.accept(
            &batch,
            &row_refs(&batch, 1)[0],
            Ack::none(),
            false,
            self.now,
        );
    }

    fn reading(&self, n: u64) -> Reading {
        Reading {
            sensor_id: format!("sensor-{:06}", n % SENSORS as u64),
            ts_ms: START_MS + (n * 1000 / self.rate) as i64,
            receipt_time: false,
            tags: BTreeMap::new(),
            values: BTreeMap::from([
                ("temp".to_owned(), Value::Double(n as f64)),
                ("humid".to_owned(), Value::Int(1)),
            ]),
        }
    }

    /// One command at a time.
    fn store(&mut self) {
        let now_s = self.now.mono_ms as f64 / 1000.0;
        let mut free_s = now_s - STEP_MS as f64 / 1000.0;
        loop {
            if let Some((_, done_s)) = &self.job {
                if *done_s > now_s {
                    return;
                }
                free_s = *done_s;
                self.job_is_done();
            }
            let Some(job) = self.shard.take(StorageMode::Bucket) else {
                return;
            };
            let takes_s: f64 = match &job {
                Job::Load(_, requests) => requests.len() as f64 * LOAD_S,
                Job::Write(_, writes) => {
                    let is_create = |kind| kind == PageKind::Create;
                    let takes_s = writes
                        .iter()
                        .map(|w| {
                            if is_create(w.kind) {
                                CREATE_S
                            } else {
                                APPEND_S
                            }
                        })
                        .sum();
                    self.sample.measured += writes.len() as u64;
                    self.sample.measured_s += takes_s;
                    takes_s
                }
            };
            self.job = Some((job, free_s + takes_s));
        }
    }

    fn job_is_done(&mut self) {
        let (bucket_refs, writes) = match self.job.take() {
            None => return,
            Some((Job::Load(bucket_refs, requests), _)) => {
                self.loads += requests.len() as u64;
                let loaded = requests
                    .iter()
                    .map(|r| self.pages.load(r, StorageMode::Bucket))
                    .collect();
                return self
                    .shard
                    .finished(JobResult::Load(bucket_refs, requests, Ok(loaded)), self.now);
            }
            Some((Job::Write(bucket_refs, writes), _)) => (bucket_refs, writes),
        };
        self.note_neighbours(&writes);
        self.statements += writes.len() as u64;
        self.rows += writes.iter().map(|w| w.rows.len() as u64).sum::<u64>();
        self.sample.count(&writes);
        let answers = writes.iter().map(|w| self.pages.write(w)).collect();
        self.shard
            .finished(JobResult::Write(bucket_refs, writes, Ok(answers)), self.now);
    }
}

#[test]
fn a_million_sensors_in_the_default_memory_share_their_statements() {
    // 1.2 readings per minute and sensor, as `wide`.
    let mut sim = Sim::new(200);
    sim.run("pages are created", 6);
    let per_statement = sim.run("then", 6);
    assert!(
        per_statement >= 3.5,
        "{per_statement} readings per statement"
    );
    assert_eq!(sim.backlog(), 0, "the store keeps up");
    // Commands are small here; in random order nearly every append would change another group.
    assert!(
        sim.groups_per_append() < 0.7,
        "in the order of the documents"
    );
    sim.run("the next hour begins", 8);
    assert_eq!(sim.backlog(), 0, "the store keeps up");
    let per_statement = sim.run("then", 6);
    assert!(
        per_statement >= 3.5,
        "{per_statement} readings per statement"
    );
    sim.arrives = false;
    sim.run("silence", 6);
    assert_eq!(
        (
            sim.shard.usage().readings,
            sim.pages.readings().count() as u64
        ),
        (0, sim.arrived)
    );
}

#[test]
fn a_backlog_of_a_million_sensors_is_stored_in_statements_of_several_readings() {
    let mut sim = Sim::new(200);
    // An hour without the store: 72 readings of each sensor are in the journal.
    sim.arrived = 72 * SENSORS as u64;
    let per_statement = sim.run("backlog", 5);
    assert!(
        per_statement >= 3.5,
        "{per_statement} readings per statement"
    );
}
