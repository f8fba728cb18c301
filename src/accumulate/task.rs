//! The task around a shard: carries events to the state and its jobs to the flush stage. No decisions here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::ask::{Asker, Desk};
use super::state::{Counts, Done, Holding, Job, Pick, Refused, Shard, ShardSettings};
use crate::ack::Ack;
use crate::enrich::Registry;
use crate::flush::dead::DeadLetters;
use crate::flush::{Flusher, Permit};
use crate::latest::LatestHandle;
use crate::model::{Clock, DeadLetter, PageWrite, ReadingBatch, Value};
use crate::telemetry::metrics::{self, Source};

/// Readings of one batch for one shard.
#[derive(Debug)]
pub struct Portion {
    /// The batch, shared with the other shards.
    pub batch: Arc<ReadingBatch>,
    /// Which readings of it.
    pub picks: Vec<Pick>,
    /// Delivered when all of them are stored.
    pub ack: Ack,
    /// See [`Shard::accept`].
    pub replayed: bool,
}

/// The handle of one shard.
#[derive(Debug, Clone)]
pub struct ShardHandle {
    portions: mpsc::Sender<Portion>,
    handed_over: Arc<AtomicU64>,
    asker: Asker,
}

impl ShardHandle {
    /// Hands over readings, waiting while the shard is full.
    ///
    /// # Errors
    /// The shard is gone; the portion's acknowledgement says so by being dropped.
    pub async fn send(&self, portion: Portion) -> Result<(), ShardGone> {
        self.portions.send(portion).await.map_err(|_| ShardGone)?;
        self.handed_over.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// The handle for questions.
    pub fn asker(&self) -> Asker {
        self.asker.clone()
    }
}

/// A shard's task has ended.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("a shard has ended")]
pub struct ShardGone;

/// What a shard holds, for the metrics.
#[derive(Debug, Default)]
pub struct Gauges {
    bytes: AtomicUsize,
    buckets: AtomicUsize,
    sensors: AtomicUsize,
    readings: AtomicUsize,
}

impl Gauges {
    fn set(&self, holding: Holding) {
        self.bytes.store(holding.bytes, Ordering::Relaxed);
        self.buckets.store(holding.buckets, Ordering::Relaxed);
        self.sensors.store(holding.sensors, Ordering::Relaxed);
        self.readings.store(holding.readings, Ordering::Relaxed);
    }

    /// The last values set.
    pub fn get(&self) -> Holding {
        Holding {
            bytes: self.bytes.load(Ordering::Relaxed),
            buckets: self.buckets.load(Ordering::Relaxed),
            sensors: self.sensors.load(Ordering::Relaxed),
            readings: self.readings.load(Ordering::Relaxed),
        }
    }
}

/// Portions that wait for one shard.
const QUEUE_MAX: usize = 4;
/// How often a shard looks at its wheel when nothing happens.
const TICK: Duration = Duration::from_millis(20);

/// A shard with all that its task needs.
pub struct ShardTask {
    state: Shard,
    portions: mpsc::Receiver<Portion>,
    desk: Desk,
    flusher: Flusher,
    dead: DeadLetters,
    clock: Arc<dyn Clock>,
    gauges: Arc<Gauges>,
    jobs: JoinSet<Done>,
    jobs_max: usize,
    latest: Option<LatestHandle>,
}

impl ShardTask {
    /// A shard's handle and task. `jobs_max`: commands it may have in flight itself.
    pub fn new(
        settings: ShardSettings,
        jobs_max: usize,
        flusher: Flusher,
        dead: DeadLetters,
        clock: Arc<dyn Clock>,
        gauges: Arc<Gauges>,
    ) -> (ShardHandle, ShardTask) {
        let (tx, portions) = mpsc::channel(QUEUE_MAX);
        let (state, jobs, handed_over) = (Shard::new(settings), JoinSet::new(), Arc::new(AtomicU64::new(0)));
        let (asker, desk) = Asker::new(handed_over.clone());
        let handle = ShardHandle { portions: tx, handed_over, asker };
        (handle, ShardTask { state, portions, desk, flusher, dead, clock, gauges, jobs, jobs_max, latest: None })
    }

    /// The same task with the patterns that are switched on: the registry's tags, and the sensors' latest state.
    #[must_use]
    pub fn with_patterns(self, registry: Registry, latest: Option<LatestHandle>) -> ShardTask {
        ShardTask { state: self.state.with_registry(registry), latest, ..self }
    }

    /// Runs until every handle is gone and all is stored. A panic of the state or of a command ends it: the readings
    /// that it held are then not delivered, and whoever waits for this task must stop the service.
    pub async fn run(mut self) {
        let mut draining = false;
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        while !(draining && self.state.empty() && self.jobs.is_empty()) {
            let now = self.clock.now();
            let due = self.state.next_due_ms().is_some_and(|ms| ms <= now.mono_ms) && self.jobs.len() < self.jobs_max;
            tokio::select! {
                biased;
                Some(done) = self.jobs.join_next() => self.finished(done).await,
                permit = self.flusher.permit(), if due => self.launch(permit),
                portion = self.portions.recv(), if !draining && !self.state.full() => match portion {
                    Some(p) => {
                        self.accept(p).await;
                        self.desk.took_in();
                        self.desk.step(&self.state, self.clock.now());
                    }
                    None => draining = true,
                },
                _ = ticks.tick() => {
                    self.state.tick(self.clock.now());
                    self.desk.step(&self.state, self.clock.now());
                }
                () = self.desk.something() => self.desk.step(&self.state, self.clock.now()),
            }
            if draining {
                self.state.drain();
            }
            self.report();
        }
    }

    /// Takes readings in, and hands them on to where their sensors' latest state is kept, duplicates too: after a crash
    /// they are what that stage has not written.
    async fn accept(&mut self, portion: Portion) {
        let Portion { batch, picks, ack, replayed } = portion;
        let held = self.latest.as_ref().and_then(|latest| latest.hold(&ack));
        self.state.accept(&batch, &picks, ack, replayed, self.clock.now());
        if let Some(latest) = &self.latest {
            latest.send(batch, picks, held).await;
        }
    }

    fn launch(&mut self, permit: Permit) {
        self.state.promote(self.clock.now());
        let flusher = self.flusher.clone();
        match self.state.take(self.flusher.form()) {
            None => {}
            Some(Job::Write(tickets, writes)) => {
                self.jobs.spawn(async move {
                    let answer = flusher.write(permit, &writes).await;
                    Done::Write(tickets, writes, answer)
                });
            }
            Some(Job::Load(tickets, requests)) => {
                self.jobs.spawn(async move {
                    let loaded = flusher.load(permit, &requests).await;
                    Done::Load(tickets, requests, Ok(loaded))
                });
            }
        }
    }

    async fn finished(&mut self, done: Result<Done, tokio::task::JoinError>) {
        match done {
            Ok(done) => self.state.finished(done, self.clock.now()),
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // Nobody aborts a command but the end of the runtime.
            Err(_) => return,
        }
        for refused in self.state.take_refused() {
            self.refuse(refused).await;
        }
    }

    /// A statement that the store will never take is kept as dead letters, in the native JSON shape, a reading a line,
    /// so that it can be replayed.
    async fn refuse(&self, refused: Refused) {
        let Refused { write, detail, acks } = refused;
        tracing::error!(readings = write.rows.len(), %detail, "the store refuses readings; they are kept as dead letters");
        metrics::rejected(Source::Store, STORE_REJECTED, write.rows.len() as u64);
        let letter = |payload| DeadLetter {
            received_at_ms: self.clock.now().wall_ms,
            source: Source::Store.label().into(),
            topic: String::new(),
            payload,
            reason: STORE_REJECTED.into(),
            detail: detail.clone(),
        };
        self.dead.send(as_lines(&write).into_iter().map(letter).collect(), acks).await;
    }

    fn report(&mut self) {
        let Counts { stored, duplicates, conflicts } = self.state.take_counts();
        if stored > 0 {
            metrics::stored(self.flusher.mode(), stored);
        }
        if duplicates > 0 {
            metrics::duplicate(duplicates);
        }
        if conflicts > 0 {
            metrics::store_conflicts(conflicts);
        }
        self.gauges.set(self.state.holding());
    }
}

impl std::fmt::Debug for ShardTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.state.fmt(f)
    }
}

/// Why a reading of [`Refused`] is a dead letter.
const STORE_REJECTED: &str = "store_rejected";
/// A dead letter is a document of its own, and must be well below 16 MiB.
const DEAD_PAYLOAD_BYTES: usize = 1 << 20;

/// The readings of a statement as lines of JSON, in pieces of about [`DEAD_PAYLOAD_BYTES`].
fn as_lines(write: &PageWrite) -> Vec<Vec<u8>> {
    let (mut pieces, mut piece) = (vec![], vec![]);
    for reading in write.rows.to_readings(&write.sensor_id) {
        let values: serde_json::Map<String, serde_json::Value> =
            reading.values.into_iter().map(|(name, value)| (name, as_json(value))).collect();
        let line = serde_json::json!({ "sensor_id": reading.sensor_id, "ts": reading.ts_ms, "ts_unit": "ms", "values": values });
        piece.extend_from_slice(line.to_string().as_bytes());
        piece.push(b'\n');
        if piece.len() >= DEAD_PAYLOAD_BYTES {
            pieces.push(std::mem::take(&mut piece));
        }
    }
    if !piece.is_empty() {
        pieces.push(piece);
    }
    pieces
}

fn as_json(value: Value) -> serde_json::Value {
    match value {
        Value::Double(v) => v.into(),
        Value::Int(v) => v.into(),
        Value::Bool(v) => v.into(),
        Value::Str(v) => v.into(),
    }
}
