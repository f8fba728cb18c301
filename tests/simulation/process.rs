//! A process of the service and its journal, which survives it: real shards, flush stage and dead
//! letters; the router is the real one's loop with a journal in memory.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use columns::{Line, Weighting, Weightings};
use model::ack::{Ack, AckOutcome};
use model::{Clock, DeadLetter, Now, Reading, ReadingBatch, StorageMode, Value};
use pipeline::accumulate::state::ShardSettings;
use pipeline::accumulate::{ShardBatch, ShardHandle};
use pipeline::accumulate::{ShardGauges, ShardTask};
use pipeline::dead_letters::DeadLetters;
use pipeline::flush::Flusher;
use pipeline::flush::due::DuePolicy;
use pipeline::rollup::state::RollupSettings;
use pipeline::rollup::{DayKinds, RollupTask, recovery};
use pipeline::route::row_refs;
use store::Store;
use store::days::SensorDay;
use store::tier::compare_day;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::client::Client;
use super::identity;
use super::server::Server;

/// Of the hours. Readings are at most minutes apart.
pub(crate) const WEIGHTING: Weighting = Weighting {
    line: Line::Straight,
    gap_max_ms: 600_000,
};

/// The parts and settings that all processes of a history share.
pub(crate) struct World {
    pub(crate) server: Arc<Server>,
    pub(crate) settings: ShardSettings,
    /// Without the name of the instance.
    pub(crate) rollup: RollupSettings,
    pub(crate) shards: usize,
    pub(crate) commands_max: usize,
    /// Like `flush.max_age_busy`; the age moves between that of `settings.due` and this one.
    pub(crate) age_busy_ms: u64,
    pub(crate) begin: Instant,
    /// The true time at the start of the history.
    pub(crate) begin_ms: i64,
}

impl World {
    pub(crate) fn true_ms(&self) -> i64 {
        self.begin_ms + self.begin.elapsed().as_millis() as i64
    }
}

/// A wall clock with an error, and a monotonic clock that starts with the process.
struct WrongClock {
    world: Arc<World>,
    wrong_ms: Arc<AtomicI64>,
    begin: Instant,
}

impl Clock for WrongClock {
    fn now(&self) -> Now {
        let wall_ms = self.world.true_ms() + self.wrong_ms.load(Ordering::Relaxed);
        Now {
            wall_ms,
            mono_ms: self.begin.elapsed().as_millis() as u64,
        }
    }
}

/// An entry of the journal; all of it is acknowledged.
pub(crate) struct Entry {
    readings: Vec<Reading>,
    wall_ms: i64,
    pub(crate) stored: bool,
    /// When it was journaled or the process started again, in milliseconds during which the
    /// database responded.
    pub(crate) since_ms: u64,
    /// Random failures of a sensor count from then on.
    pub(crate) hits_from: Instant,
}

type Journal = Arc<Mutex<Vec<Entry>>>;

pub(crate) struct Instance {
    journal: Journal,
    /// The instance id in its marks.
    name: Arc<str>,
    pub(crate) storage_mode: StorageMode,
    ever_measured: bool,
    pub(crate) wrong_ms: Arc<AtomicI64>,
    pub(crate) process: Option<Process>,
    /// The unacknowledged batches that the journal's writer collects, and the time of their sync.
    group: Vec<Vec<Reading>>,
    group_due: Instant,
}

pub(crate) struct Process {
    feed: mpsc::UnboundedSender<(usize, bool)>,
    tasks: Vec<JoinHandle<()>>,
    alive: Arc<AtomicBool>,
    /// Entries that the following stages have acknowledged since the last check.
    done: Arc<Mutex<Vec<(usize, AckOutcome)>>>,
    server: Arc<Server>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

static PROCESSES: AtomicU64 = AtomicU64::new(0);

impl Instance {
    pub(crate) fn new(name: &str, storage_mode: StorageMode, wrong_ms: Arc<AtomicI64>) -> Instance {
        Instance {
            journal: Journal::default(),
            name: name.into(),
            storage_mode,
            ever_measured: false,
            wrong_ms,
            process: None,
            group: vec![],
            group_due: Instant::now(),
        }
    }

    pub(crate) fn journal(&self) -> MutexGuard<'_, Vec<Entry>> {
        lock(&self.journal)
    }

    pub(crate) fn wall_ms(&self, world: &World) -> i64 {
        world.true_ms() + self.wrong_ms.load(Ordering::Relaxed)
    }

    /// Whether every batch is stored, or kept as a dead letter.
    pub(crate) fn at_rest(&self) -> bool {
        self.process.is_some() && self.group.is_empty() && self.journal().iter().all(|e| e.stored)
    }

    /// Adds readings to the group, which waits for more up to `commit_delay` after its first ones.
    pub(crate) fn collect(&mut self, readings: Vec<Reading>, commit_delay: Duration) {
        if self.group.is_empty() {
            self.group_due = Instant::now() + commit_delay;
        }
        self.group.push(readings);
    }

    /// The group, if it is due.
    pub(crate) fn take_group(&mut self, now: Instant) -> Vec<Vec<Reading>> {
        if now >= self.group_due {
            self.drop_group()
        } else {
            vec![]
        }
    }

    /// The group, due or not.
    pub(crate) fn drop_group(&mut self) -> Vec<Vec<Reading>> {
        std::mem::take(&mut self.group)
    }

    pub(crate) fn append(
        &mut self,
        world: &World,
        readings: Vec<Reading>,
        since_ms: u64,
        hits_from: Instant,
    ) {
        let wall_ms = self.wall_ms(world);
        let mut journal = self.journal();
        journal.push(Entry {
            readings,
            wall_ms,
            stored: false,
            since_ms,
            hits_from,
        });
        if let Some(process) = &self.process {
            let _ = process.feed.send((journal.len() - 1, false));
        }
    }

    pub(crate) fn start(&mut self, world: &Arc<World>) {
        self.ever_measured |= self.storage_mode == StorageMode::TimeSeries;
        let process = PROCESSES.fetch_add(1, Ordering::Relaxed);
        let client = Arc::new(Client {
            server: world.server.clone(),
            process,
            storage_mode: self.storage_mode,
            span: world.settings.span,
        });
        let clock: Arc<dyn Clock> = Arc::new(WrongClock {
            world: world.clone(),
            wrong_ms: self.wrong_ms.clone(),
            begin: Instant::now(),
        });
        let flusher = Flusher::new(
            client.clone(),
            world.settings.backoff,
            world.settings.span,
            Arc::new(|_, _| {}),
        );
        let (dead, dead_letters_task) = DeadLetters::new(flusher.clone(), 16, u64::MAX);
        let mut tasks = vec![tokio::spawn(dead_letters_task)];
        let mut shards = vec![];
        let mut views = vec![];
        for _ in 0..world.shards {
            let settings = world.settings.clone();
            let gauges = Arc::new(ShardGauges::default());
            let (handle, task) = ShardTask::new(
                settings,
                world.commands_max,
                flusher.clone(),
                dead.clone(),
                clock.clone(),
                gauges,
            );
            shards.push(handle);
            let rollup = RollupSettings {
                instance: self.name.clone(),
                ..world.rollup.clone()
            };
            let gauges = Arc::default();
            let backoff = world.settings.backoff;
            let (rollup, view, rollup_task) = RollupTask::new(
                rollup,
                // Everything is computed of a day.
                DayKinds {
                    days: true,
                    columns: Some(WEIGHTING.into()),
                },
                flusher.clone(),
                backoff,
                clock.clone(),
                gauges,
            );
            views.push(view);
            tasks.push(tokio::spawn(rollup_task.run()));
            tasks.push(tokio::spawn(task.with_rollup(Some(rollup)).run()));
        }
        let shard_of = pipeline::route::shard_of;
        tasks.push(tokio::spawn(recovery::recover(
            self.name.clone(),
            views,
            shard_of,
            flusher.clone(),
            clock,
        )));
        let wait = self.ever_measured;
        let commands_max = world.commands_max;
        tasks.push(tokio::spawn(stretch(world.clone(), flusher.clone())));
        tasks.push(tokio::spawn(remove_days(world.clone(), client.clone())));
        tasks.push(tokio::spawn(upkeep(client, flusher, wait, commands_max)));
        let (feed, fed) = mpsc::unbounded_channel();
        let alive = Arc::new(AtomicBool::new(true));
        let done = Arc::default();
        let router = Router {
            shards,
            journal: self.journal.clone(),
            alive: alive.clone(),
            done: Arc::clone(&done),
        };
        tasks.push(tokio::spawn(router.run(fed)));
        // The replay begins with the first entry of the same millisecond as the first unstored one.
        let journal = self.journal();
        let unstored = journal
            .iter()
            .find(|e| !e.stored)
            .map_or(i64::MAX, |e| e.wall_ms);
        let first = journal
            .iter()
            .position(|e| !e.stored || e.wall_ms == unstored)
            .unwrap_or(journal.len());
        (first..journal.len())
            .try_for_each(|id| feed.send((id, true)))
            .expect("the router lives");
        drop(journal);
        self.process = Some(Process {
            feed,
            tasks,
            alive,
            done,
            server: world.server.clone(),
        });
    }

    /// SIGKILL: the tasks end; the database continues the statements that it has received.
    pub(crate) async fn kill(&mut self) {
        let Some(process) = self.process.take() else {
            return;
        };
        process.alive.store(false, Ordering::Relaxed);
        process.tasks.iter().for_each(JoinHandle::abort);
        for task in process.tasks {
            let _ = task.await;
        }
    }

    /// Checks the acknowledgements since the last call, and that no task has panicked.
    pub(crate) async fn check(&mut self, seed: u64) {
        let Some(process) = self.process.as_mut() else {
            return;
        };
        while let Some(ended) = process.tasks.iter().position(JoinHandle::is_finished) {
            let ended = process.tasks.swap_remove(ended).await;
            assert!(ended.is_ok(), "seed {seed}: a task has panicked: {ended:?}");
        }
        let done = std::mem::take(&mut *lock(&process.done));
        let state = process.server.state();
        let mut journal = lock(&self.journal);
        done.iter().for_each(|(id, _)| journal[*id].stored = true);
        for (id, outcome) in done {
            assert_eq!(
                outcome,
                AckOutcome::Delivered,
                "seed {seed}: an acknowledgement was dropped without a crash"
            );
            for reading in journal[id]
                .readings
                .iter()
                .filter(|r| !state.stored.contains_key(&identity(r)))
            {
                let is = |r: &Reading| identity(r) == identity(reading);
                // A duplicate of a reading that is about to become a dead letter: the journal has
                // the first one.
                let journaled = || {
                    journal
                        .iter()
                        .filter(|e| !e.stored)
                        .any(|e| e.readings.iter().any(is))
                };
                let kept = state
                    .pages
                    .dead
                    .iter()
                    .flat_map(dead_letter_readings)
                    .any(|r| is(&r))
                    || journaled();
                let entries = || {
                    (0..journal.len())
                        .filter(|i| journal[*i].readings.iter().any(is))
                        .collect::<Vec<_>>()
                };
                assert!(
                    kept,
                    "seed {seed}: entry {id} is acknowledged before it was stored: {reading:?}, in \
                     entries {:?}",
                    entries()
                );
            }
        }
    }
}

/// Opens the flush stage when the database is prepared, and pings the database regularly.
async fn upkeep(client: Arc<Client>, flusher: Flusher, wait: bool, commands_max: usize) {
    if wait {
        let _ = client.prepare().await;
    }
    flusher.open(commands_max);
    loop {
        if client.ping().await.is_ok() {
            flusher.note_answer();
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
}

/// Removes the readings of days that have ended, if columns have them; in histories with it, and
/// whatever the clock of the process.
async fn remove_days(world: Arc<World>, client: Arc<Client>) {
    let mut rng = fastrand::Rng::with_seed(client.process ^ world.begin_ms as u64);
    let zone = world.rollup.zone;
    let span = world.settings.span;
    while client.tier().is_some() {
        tokio::time::sleep(Duration::from_millis(rng.u64(100..20_000))).await;
        let before_ms = zone.day(world.true_ms()).start_ms;
        let found = client.find_removable(i64::MIN..before_ms + 1, rng.usize(1..6));
        let buckets = found.await.unwrap_or_default();
        for bucket in buckets {
            let day = SensorDay {
                day: zone.day(bucket.start.0),
                sensor_id: bucket.sensor_id,
            };
            if let Ok(Some(pages)) =
                compare_day(&*client, span, &day, &Weightings::from(WEIGHTING)).await
            {
                let _ = client.remove_compared(&pages).await;
            }
        }
    }
}

/// Moves the age up and down as fast as the controller may: up by two seconds per second, down by
/// one.
async fn stretch(world: Arc<World>, flusher: Flusher) {
    let DuePolicy::Age(max_age_ms) = world.settings.due else {
        return;
    };
    let mut rng = fastrand::Rng::with_seed(world.begin_ms as u64);
    let mut age_ms = max_age_ms;
    let mut grows = true;
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        if rng.u8(0..100) == 0 {
            grows = rng.bool();
        }
        let moved = if grows {
            age_ms + 200
        } else {
            age_ms.saturating_sub(100)
        };
        age_ms = moved.clamp(max_age_ms, world.age_busy_ms.max(max_age_ms));
        flusher.set_age_ms(age_ms);
    }
}

struct Router {
    shards: Vec<ShardHandle>,
    journal: Journal,
    alive: Arc<AtomicBool>,
    done: Arc<Mutex<Vec<(usize, AckOutcome)>>>,
}

impl Router {
    async fn run(self, mut fed: mpsc::UnboundedReceiver<(usize, bool)>) {
        while let Some((id, replayed)) = fed.recv().await {
            let batch: Arc<ReadingBatch> =
                Arc::new(lock(&self.journal)[id].readings.iter().cloned().collect());
            let alive = self.alive.clone();
            let done = self.done.clone();
            let ack = Ack::with(move |outcome| {
                if alive.load(Ordering::Relaxed) {
                    lock(&done).push((id, outcome));
                }
            });
            for (shard, row_refs) in self.shards.iter().zip(row_refs(&batch, self.shards.len())) {
                if !row_refs.is_empty() {
                    let shard_batch = ShardBatch {
                        batch: batch.clone(),
                        row_refs,
                        ack: ack.clone(),
                        replayed,
                    };
                    shard.send(shard_batch).await.expect("the shard lives");
                }
            }
            ack.delivered();
        }
    }
}

/// The readings of a dead letter, as a replay reads them.
pub(crate) fn dead_letter_readings(dead_letter: &DeadLetter) -> Vec<Reading> {
    let lines = dead_letter
        .payload
        .split(|b| *b == b'\n')
        .filter(|l| !l.is_empty());
    let value = |value: &serde_json::Value| match value {
        serde_json::Value::Number(n) if n.is_i64() => Value::Int(n.as_i64().expect("an integer")),
        serde_json::Value::Number(n) => Value::Double(n.as_f64().expect("a double")),
        other => panic!("{other}"),
    };
    let reading = |line: &[u8]| {
        let line: serde_json::Value = serde_json::from_slice(line).expect("JSON");
        let values = line["values"].as_object().expect("values");
        Reading {
            sensor_id: line["sensor_id"].as_str().expect("a sensor").to_owned(),
            ts_ms: line["ts"].as_i64().expect("a time"),
            receipt_time: false,
            tags: Default::default(),
            values: values.iter().map(|(n, v)| (n.clone(), value(v))).collect(),
        }
    };
    lines.map(reading).collect()
}
