//! Whole processes under paused time: the real shard tasks, flush stage and dead letters, with a
//! database that fails ([`super::server`]). Two [`oracles`] check every history: the stored
//! readings at the end, and *liveness* at any time: despite the faults, the readings of each
//! innocent sensor are stored within the longest age (`flush.max_age`, or `flush.max_age_busy` in
//! histories whose age is stretched) + 15 s during which the database responds, and no entry keeps
//! the journal for longer than `flush.quarantine_after` beyond that. In some histories the readings
//! of old buckets are removed ([`super::removal`]); later readings of such a bucket may become dead
//! letters, also after a replay. In others, each process removes the readings of days that columns
//! have ([`store::tier`]), and no reading may become a dead letter because of that.

mod oracles;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use model::{BucketStart, Reading, Span, StorageMode, Value, Zone};
use pipeline::accumulate::PageLimits;
use pipeline::accumulate::state::ShardSettings;
use pipeline::flush::backoff::Backoff;
use pipeline::flush::due::DuePolicy;
use pipeline::rollup::state::RollupSettings;
use tokio::time::Instant;

use super::days;
use super::process::{Instance, World};
use super::server::{AWKWARD, Pace, Server, Trouble};
use super::{HOUR, Identities, Identity, again, identity, removal};

/// A failure of a bucket affects readings that come up to this much later.
const REMEMBERED: Duration = Duration::from_secs(120);
const STEP: Duration = Duration::from_millis(100);

/// A reading that was acknowledged and is not stored yet.
struct Watched {
    id: Identity,
    instance: usize,
    /// In milliseconds during which the database responds.
    since_ms: u64,
    /// Random failures of its sensor count from then on.
    hits_from: Instant,
}

struct Life {
    seed: u64,
    rng: fastrand::Rng,
    world: Arc<World>,
    instances: Vec<Instance>,
    /// Each sensor's clock error.
    sensors: BTreeMap<String, i64>,
    /// The readings sent, and whether they had no time.
    sent: Identities<bool>,
    watched: Vec<Watched>,
    batches: Vec<Vec<Reading>>,
    trouble: Trouble,
    /// The same at the start of the history.
    kind: Trouble,
    /// Milliseconds during which the database responded, and since when it does.
    up_ms: u64,
    calm: Instant,
    /// `journal.commit_delay`, up to the longest that may be configured.
    commit_delay: Duration,
    backfill: usize,
    /// Hours of the backfill that was sent, and all buckets of the awkward sensor.
    backfilled: usize,
    awkward: BTreeSet<BucketStart>,
    dead_seen: usize,
    /// Readings without a time that were in a dead letter, and in how many.
    replayed: Identities<u32>,
    /// Readings are removed this long after the end of their bucket, by the true time.
    removes_after_ms: Option<i64>,
    /// The dead letters because of that.
    too_late: Identities<()>,
}

pub(crate) fn run(seed: u64) {
    // The jitter of the flush stage's waits.
    fastrand::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let mut life = Life::new(seed);
        for i in 0..life.instances.len() {
            life.start(i);
        }
        for _ in 0..life.rng.usize(300..1500) {
            life.step().await;
        }
        life.rest().await;
        life.check();
    });
}

fn settings(rng: &mut fastrand::Rng, span: Span) -> ShardSettings {
    let backoff = Backoff {
        min: Duration::from_millis(50),
        max: Duration::from_secs(rng.u64(1..6)),
    };
    let linger = rng.u8(0..4) == 0;
    ShardSettings {
        span,
        page: PageLimits {
            readings: rng.u32(2..40),
            bytes: if rng.u8(0..4) == 0 { 400 } else { 1 << 20 },
            summary_bytes: 1 << 20,
        },
        due: if linger {
            DuePolicy::Linger(rng.u64(1..50))
        } else {
            DuePolicy::Age(rng.u64(500..6000))
        },
        command_bytes_max: 4 << 20,
        command_statements_max: rng.usize(4..400),
        bytes_max: 4 << 20,
        sensors_max: 1000,
        dedup_keys_max: rng.usize(0..4000),
        quarantine_after_ms: rng.u64(5..40) * 1000,
        arrival_step_ms: 60_000,
        backoff,
    }
}

fn trouble(rng: &mut fastrand::Rng) -> Trouble {
    match rng.u8(0..10) {
        0 => Trouble::WritesHang,
        1 | 2 => Trouble::WritesFail,
        3 | 4 => Trouble::LoadsHang,
        5 => Trouble::LoadsFail,
        6 => Trouble::LoadsSlow(Duration::from_millis(rng.u64(500..20_000))),
        7 => Trouble::FieldsMax(rng.usize(2..10)),
        _ => Trouble::None,
    }
}

/// The error of a sensor's clock.
fn clock(rng: &mut fastrand::Rng) -> i64 {
    match rng.u8(0..4) {
        0 => rng.i64(-3 * HOUR..HOUR),
        1 => rng.i64(-120_000..120_000),
        _ => rng.i64(-500..500),
    }
}

impl Life {
    fn new(seed: u64) -> Life {
        let mut rng = fastrand::Rng::with_seed(seed);
        let pace = Pace {
            round_trip: Duration::from_millis(if rng.bool() {
                rng.u64(1..5)
            } else {
                rng.u64(5..100)
            }),
            statement: Duration::from_micros(rng.u64(10..300)),
            reading: Duration::from_micros(rng.u64(1..20)),
            timeout: Duration::from_millis(rng.u64(1000..6000)),
        };
        let server = Arc::new(Server::new(rng.u64(..), pace));
        let span = if rng.bool() {
            Span::HOUR
        } else {
            Span::from_ms(60_000).expect("a minute")
        };
        let storage_mode = if rng.u8(0..3) > 0 {
            StorageMode::TimeSeries
        } else {
            StorageMode::Bucket
        };
        let rollup = RollupSettings {
            // In Athens a day begins at the start of the history.
            zone: if rng.bool() {
                Zone::UTC
            } else {
                Zone::from(chrono_tz::Tz::Europe__Athens)
            },
            span,
            instance: "".into(),
            settle_ms: rng.u64(1..5000),
            late_ms: rng.u64(1..5000),
            hours_kept_ms: None,
            bytes_max: 1 << 20,
        };
        let mut world = World {
            server,
            settings: settings(&mut rng, span),
            rollup,
            shards: rng.usize(1..4),
            commands_max: rng.usize(1..5),
            age_busy_ms: if rng.bool() { rng.u64(0..40_000) } else { 0 },
            begin: Instant::now(),
            // Shortly before a bucket begins.
            begin_ms: 472_222 * HOUR - rng.i64(0..90_000),
        };
        let trouble = trouble(&mut rng);
        let instances = if rng.u8(0..4) == 0 { 2 } else { 1 };
        let instances = (0..instances)
            .map(|i| Instance::new(&format!("i{i}"), storage_mode, Arc::new(AtomicI64::new(0))))
            .collect();
        let mut sensors: BTreeMap<String, i64> = (0..rng.usize(1..9))
            .map(|i| (format!("s{i}"), clock(&mut rng)))
            .collect();
        sensors.insert(AWKWARD.to_owned(), clock(&mut rng));
        let one = !matches!(trouble, Trouble::FieldsMax(_)) && rng.u8(0..6) > 0;
        let commit_delay = Duration::from_millis([0, 2, 100][rng.usize(0..3)]);
        let backfill = if trouble == Trouble::None {
            rng.usize(0..1500)
        } else {
            0
        };
        if backfill == 0 && rng.bool() {
            // Days are computed before they are due.
            world.rollup.bytes_max = rng.usize(6000..20_000);
        }
        let removes_after_ms = (rng.u8(0..4) == 0).then(|| rng.i64(0..3 * span.ms()));
        let is_tiered = removes_after_ms.is_none() && rng.bool();
        world.server.state().pages.days.zone = is_tiered.then_some(world.rollup.zone);
        world.server.state().faults = [0, 60, 20][rng.usize(0..3)];
        world.server.state().trouble = trouble;
        world.server.state().bucket = one.then(|| span.floor(world.begin_ms + sensors[AWKWARD]));
        Life {
            seed,
            rng,
            calm: world.begin,
            world: Arc::new(world),
            instances,
            sensors,
            sent: Identities::default(),
            watched: vec![],
            batches: vec![],
            trouble,
            kind: trouble,
            up_ms: 0,
            commit_delay,
            backfill,
            backfilled: 0,
            awkward: BTreeSet::new(),
            dead_seen: 0,
            replayed: Identities::default(),
            removes_after_ms,
            too_late: Identities::default(),
        }
    }

    /// Starts an instance; its clock may have any error.
    fn start(&mut self, instance: usize) {
        let wrong = match self.rng.u8(0..5) {
            0 => self.rng.i64(-10 * 365 * 24 * HOUR..10 * 365 * 24 * HOUR),
            1 => self.rng.i64(-3 * HOUR..3 * HOUR),
            2 => self.rng.i64(-90_000..90_000),
            _ => 0,
        };
        let one = self.instances.len() == 1;
        let inst = &mut self.instances[instance];
        inst.wrong_ms
            .store(wrong, std::sync::atomic::Ordering::Relaxed);
        if one && inst.process.is_none() && self.rng.u8(0..6) == 0 {
            inst.storage_mode = if self.rng.bool() {
                StorageMode::TimeSeries
            } else {
                StorageMode::Bucket
            };
        }
        inst.start(&self.world);
        // Unstored readings wait from now on.
        for watched in self.watched.iter_mut().filter(|w| w.instance == instance) {
            watched.since_ms = self.up_ms;
        }
        inst.journal()
            .iter_mut()
            .for_each(|e| e.since_ms = self.up_ms);
    }

    fn reading(&mut self, sensor: &str, instance: usize) -> Reading {
        let receipt_time = self.rng.u8(0..6) == 0;
        let late = if self.rng.u8(0..6) == 0 {
            self.rng.i64(0..3 * self.world.settings.span.ms())
        } else {
            0
        };
        let ts_ms = match receipt_time {
            true => self.instances[instance].wall_ms(&self.world),
            false => self.world.true_ms() + self.sensors[sensor] - late,
        };
        let mut values = super::numbers(&mut self.rng);
        if receipt_time {
            values.insert("u".to_owned(), Value::Int(self.rng.i64(..) / 4096));
        }
        if sensor == AWKWARD && matches!(self.trouble, Trouble::FieldsMax(_)) {
            values.insert(format!("f{}", self.rng.u8(0..30)), Value::Int(1));
        }
        Reading {
            sensor_id: sensor.to_owned(),
            ts_ms,
            receipt_time,
            tags: BTreeMap::new(),
            values,
        }
    }

    fn send(&mut self, instance: usize) {
        let mut readings = vec![];
        for sensor in self.sensors.keys().cloned().collect::<Vec<_>>() {
            for _ in 0..if self.rng.u8(0..4) == 0 {
                self.rng.usize(1..4)
            } else {
                0
            } {
                readings.push(self.reading(&sensor, instance));
            }
        }
        if self.rng.u8(0..6) == 0 && !self.batches.is_empty() {
            let old = &self.batches[self
                .rng
                .usize(self.batches.len().saturating_sub(10)..self.batches.len())];
            let old = old.iter().filter(|r| !r.receipt_time);
            readings.extend(old.map(|r| again(&mut self.rng, r)));
        }
        if self.backfill > 0 && self.rng.u8(0..100) == 0 {
            self.backfilled = std::mem::take(&mut self.backfill);
            let hours = self.backfilled as i64;
            let end = self.world.true_ms();
            readings.extend((0..hours).map(|h| Reading {
                ts_ms: end - h * self.world.settings.span.ms(),
                receipt_time: false,
                ..self.reading(AWKWARD, instance)
            }));
        }
        if !readings.is_empty() {
            self.batches.push(readings.clone());
            self.accept(instance, readings);
        }
    }

    /// Adds a batch to the group that the journal's writer collects; it is acknowledged with the
    /// group.
    fn accept(&mut self, instance: usize, readings: Vec<Reading>) {
        self.instances[instance].collect(readings, self.commit_delay);
    }

    /// Syncs the groups that have waited for `commit_delay`.
    fn sync(&mut self) {
        for instance in 0..self.instances.len() {
            for readings in self.instances[instance].take_group(Instant::now()) {
                self.journaled(instance, readings);
            }
        }
    }

    /// Writes a batch to the journal, acknowledges it, and sends it on.
    fn journaled(&mut self, instance: usize, readings: Vec<Reading>) {
        let hits_from = Instant::now() - REMEMBERED.min(self.world.begin.elapsed());
        for reading in &readings {
            let id = identity(reading);
            let fresh = !self.sent.contains_key(&id);
            self.sent.entry(id).or_insert(reading.receipt_time);
            if reading.sensor_id == AWKWARD {
                self.awkward
                    .insert(self.world.settings.span.floor(reading.ts_ms));
            } else if fresh {
                self.watched.push(Watched {
                    id,
                    instance,
                    since_ms: self.up_ms,
                    hits_from,
                });
            }
        }
        self.instances[instance].append(&self.world, readings, self.up_ms, hits_from);
    }

    async fn step(&mut self) {
        let instance = self.rng.usize(0..self.instances.len());
        if self.instances[instance].process.is_some() && self.rng.bool() {
            self.send(instance);
        }
        let span_ms = self.world.settings.span.ms();
        let before_turn = span_ms - self.world.true_ms().rem_euclid(span_ms) < 3000;
        match self.rng.u32(0..1000) {
            0..3 => self.restart(instance).await,
            3..30 if before_turn => self.restart(instance).await,
            30..35 => {
                let by = if self.rng.bool() {
                    self.rng.i64(-2 * HOUR..2 * HOUR)
                } else {
                    self.rng.i64(-5000..5000)
                };
                self.instances[instance]
                    .wrong_ms
                    .fetch_add(by, std::sync::atomic::Ordering::Relaxed);
            }
            35..37 => self.world.server.state().down = true,
            37..45 => self.world.server.state().down = false,
            // Only while the database is up.
            60..70 if !self.world.server.state().down => self.remove_readings(),
            45..47 if self.trouble != Trouble::None && self.rng.u8(0..4) == 0 => self.heal(),
            _ => {}
        }
        self.pass().await;
    }

    fn remove_readings(&mut self) {
        let Some(kept_ms) = self.removes_after_ms else {
            return;
        };
        let before_ms = self.world.true_ms() - kept_ms;
        let pages = &mut self.world.server.state().pages;
        removal::remove_some(pages, self.world.settings.span, before_ms, &mut self.rng);
    }

    fn heal(&mut self) {
        self.trouble = Trouble::None;
        self.world.server.state().trouble = Trouble::None;
    }

    /// Kills an instance and starts it again with the same journal; the senders resend their last
    /// batch. The unacknowledged group is lost, or was synced nevertheless.
    async fn restart(&mut self, instance: usize) {
        let group = self.instances[instance].drop_group();
        self.instances[instance].kill().await;
        if self.rng.bool() {
            group
                .into_iter()
                .for_each(|readings| self.journaled(instance, readings));
        }
        for _ in 0..self.rng.usize(0..20) {
            self.pass().await;
        }
        self.start(instance);
        if self.rng.bool() && !self.batches.is_empty() {
            let last = self.batches[self.batches.len() - 1].clone();
            self.accept(
                instance,
                last.into_iter().filter(|r| !r.receipt_time).collect(),
            );
        }
    }

    /// Lets a tenth of a second pass, and checks the oracles.
    async fn pass(&mut self) {
        tokio::time::sleep(STEP).await;
        self.sync();
        let now = Instant::now();
        if self.world.server.state().down {
            // Failed statements are retried after their backoff, when those in flight have timed
            // out.
            self.calm = now + self.world.settings.backoff.max + self.world.server.pace.timeout;
        } else if now >= self.calm {
            self.up_ms += STEP.as_millis() as u64;
        }
        for inst in &mut self.instances {
            inst.check(self.seed).await;
        }
        self.alive();
    }

    /// Ends all faults and sends nothing more; replays the dead letters.
    async fn rest(&mut self) {
        for round in 0..2 {
            self.heal();
            (
                self.world.server.state().down,
                self.world.server.state().faults,
            ) = (false, 0);
            for i in 0..self.instances.len() {
                if self.instances[i].process.is_none() {
                    self.start(i);
                }
            }
            let mut steps = 0;
            while !self.instances.iter().all(Instance::at_rest) {
                self.pass().await;
                steps += 1;
                assert!(
                    steps < 6000,
                    "seed {}: not at rest after ten minutes",
                    self.seed
                );
            }
            if round == 0 {
                let dead_letters = std::mem::take(&mut self.world.server.state().pages.dead);
                self.dead_seen = 0;
                for dead_letter in dead_letters {
                    let readings = super::process::dead_letter_readings(&dead_letter);
                    for id in readings.iter().map(identity).filter(|id| self.sent[id]) {
                        *self.replayed.entry(id).or_default() += 1;
                    }
                    self.accept(0, readings);
                }
            }
        }
        self.world.server.settled().await;
        self.roll_up().await;
    }

    /// Starts all instances again days later, which makes the open days due, until all marked days
    /// are computed. Twice: readings whose clock was ahead may have marked a day that is still open
    /// the first time.
    async fn roll_up(&mut self) {
        // Late changes end within this time.
        tokio::time::sleep(Duration::from_secs(30)).await;
        let mut wrong = None;
        for days in [3, 5] {
            for inst in &mut self.instances {
                inst.kill().await;
                inst.wrong_ms
                    .store(days * 24 * HOUR, std::sync::atomic::Ordering::Relaxed);
                inst.start(&self.world);
            }
            for _ in 0..600 {
                tokio::time::sleep(Duration::from_secs(1)).await;
                wrong = days::find_wrong_day(&self.world.server.state().pages, &self.world.rollup);
                if wrong.is_none() {
                    return;
                }
            }
        }
        panic!("seed {}: {}", self.seed, wrong.unwrap_or_default());
    }
}
