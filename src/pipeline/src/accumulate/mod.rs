//! Accumulate: one task owns one shard and its open buckets; there are no locks. [`state`] and
//! [`bucket`] are pure and make all decisions. The task ([`ShardTask`]) delivers events to the state
//! and sends its jobs to the flush stage.

mod arrivals;
pub mod bucket;
mod dedup;
pub mod query;
pub mod state;

pub use bucket::{PageLimits, UnstoredBucket};
pub use query::{QueryHandle, ShardClosed};

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::dead_letters::DeadLetters;
use crate::enrich::Registry;
use crate::flush::{Flusher, Lane, Permit};
use crate::latest::LatestHandle;
use crate::rollup::RollupHandle;
use model::ack::Ack;
use model::{Clock, DeadLetter, ReadingBatch, RowPosition, Rows};
use query::QueryWorker;
use state::failing::Quarantined;
use state::{
    Job, JobResult, RejectCause, RejectedRows, Shard, ShardCounts, ShardSettings, ShardUsage,
};
use telemetry::log_limit::LineLimit;
use telemetry::metrics::{self, Source};
use telemetry::rejected::{self, Reject};

/// The readings of one batch that belong to one shard.
#[derive(Debug)]
pub struct ShardBatch {
    /// The batch, shared with the other shards.
    pub batch: Arc<ReadingBatch>,
    /// The rows of `batch` that belong to the shard.
    pub row_refs: Vec<RowPosition>,
    /// Delivered when all of them are stored.
    pub ack: Ack,
    /// See [`Shard::accept`].
    pub replayed: bool,
}

/// The handle of one shard.
#[derive(Debug, Clone)]
pub struct ShardHandle {
    shard_batches: mpsc::Sender<ShardBatch>,
    shard_batches_sent: Arc<AtomicU64>,
    query_handle: QueryHandle,
}

impl ShardHandle {
    /// Sends readings to the shard; waits while it is full.
    ///
    /// # Errors
    /// The shard's task has ended. The shard batch is dropped, so its acknowledgement reports *not
    /// delivered*.
    pub async fn send(&self, shard_batch: ShardBatch) -> Result<(), ShardClosed> {
        self.shard_batches
            .send(shard_batch)
            .await
            .map_err(|_| ShardClosed)?;
        self.shard_batches_sent.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// For queries of what the shard has in memory. It does not keep the shard alive.
    pub fn query_handle(&self) -> QueryHandle {
        self.query_handle.clone()
    }
}

/// What a shard holds, for the metrics, and a sign of life for the watchdog.
#[derive(Debug, Default)]
pub struct ShardGauges {
    usage: Mutex<ShardUsage>,
    rounds: AtomicU64,
    waits: AtomicBool,
    settled: AtomicU64,
    jobs: AtomicUsize,
    quarantined: AtomicUsize,
    named: Mutex<Vec<Quarantined>>,
    store_rejects: Mutex<StoreRejects>,
}

/// The readings since the start that the store has rejected because of their content.
#[derive(Debug, Clone, Default)]
pub struct StoreRejects {
    /// Never decreases.
    pub readings: u64,
    /// Monotonic time of the last rejection.
    pub last_ms: u64,
    /// The text of the last rejection; empty before the first.
    pub detail: String,
}

impl ShardGauges {
    /// A number that changes every [`TICK`] while the shard is alive. `None` while it waits for the
    /// next stage, which may take as long as the store is unavailable.
    pub fn rounds(&self) -> Option<u64> {
        (!self.waits.load(Ordering::Relaxed)).then(|| self.rounds.load(Ordering::Relaxed))
    }

    /// Counts an iteration of the task.
    pub fn count_round(&self) {
        self.rounds.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits for the next stage. Meanwhile [`ShardGauges::rounds`] is `None`, so that the watchdog
    /// does not take the shard for stuck.
    pub async fn waiting_for<T>(&self, next_stage: impl Future<Output = T>) -> T {
        self.waits.store(true, Ordering::Relaxed);
        let done = next_stage.await;
        self.waits.store(false, Ordering::Relaxed);
        done
    }

    /// Readings since the start that were stored, found stored, or handed over as dead letters.
    pub fn settled(&self) -> u64 {
        self.settled.load(Ordering::Relaxed)
    }

    /// Commands in flight.
    pub fn jobs(&self) -> usize {
        self.jobs.load(Ordering::Relaxed)
    }

    /// Number of quarantined buckets.
    pub fn quarantined(&self) -> usize {
        self.quarantined.load(Ordering::Relaxed)
    }

    /// The quarantined buckets, longest failing first; at most `NAMED_MAX`.
    pub fn named(&self) -> Vec<Quarantined> {
        held(&self.named).clone()
    }

    /// See [`StoreRejects`].
    pub fn store_rejects(&self) -> StoreRejects {
        held(&self.store_rejects).clone()
    }

    fn note_store_rejects(&self, readings: u64, detail: &str, now_ms: u64) {
        let mut rejects = held(&self.store_rejects);
        rejects.readings += readings;
        rejects.last_ms = now_ms;
        detail.clone_into(&mut rejects.detail);
    }

    fn set_quarantined(&self, state: &Shard) {
        let count = state.quarantined_count();
        if self.quarantined.swap(count, Ordering::Relaxed) > 0 || count > 0 {
            *held(&self.named) = state.quarantined();
        }
    }

    fn set(&self, usage: ShardUsage) {
        self.count_round();
        *held(&self.usage) = usage;
    }

    /// The values at the end of the task's last iteration.
    pub fn get(&self) -> ShardUsage {
        *held(&self.usage)
    }
}

/// Ignores poisoning: every value is replaced as a whole, or is only text for an operator.
fn held<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Capacity of a shard's channel, in shard batches.
const QUEUE_MAX: usize = 4;
/// How often an idle shard checks its wheel.
const TICK: Duration = Duration::from_millis(20);
/// The store counts as answering if any request was answered within this time.
pub const ANSWERS_WITHIN: Duration = Duration::from_secs(15);

/// A shard with everything that its task needs.
pub struct ShardTask {
    state: Shard,
    shard_batches: mpsc::Receiver<ShardBatch>,
    query_worker: QueryWorker,
    flusher: Flusher,
    dead: DeadLetters,
    clock: Arc<dyn Clock>,
    gauges: Arc<ShardGauges>,
    jobs: JoinSet<(Lane, JobResult)>,
    /// Jobs in flight and their maximum, by lane.
    in_flight: [(usize, usize); 3],
    latest: Option<LatestHandle>,
    rollup: Option<RollupHandle>,
    /// A store may fail or reject each bucket, so these lines are limited.
    quarantined_log: LineLimit,
    rejected_log: LineLimit,
}

impl ShardTask {
    /// A shard's handle and task. `jobs_max`: the shard's writes in flight; half as many loads, and
    /// one retry.
    pub fn new(
        settings: ShardSettings,
        jobs_max: usize,
        flusher: Flusher,
        dead: DeadLetters,
        clock: Arc<dyn Clock>,
        gauges: Arc<ShardGauges>,
    ) -> (ShardHandle, ShardTask) {
        let (tx, shard_batches) = mpsc::channel(QUEUE_MAX);
        let state = Shard::new(settings);
        let jobs = JoinSet::new();
        let shard_batches_sent = Arc::new(AtomicU64::new(0));
        let (query_handle, query_worker) = QueryHandle::new(shard_batches_sent.clone());
        let handle = ShardHandle {
            shard_batches: tx,
            shard_batches_sent,
            query_handle,
        };
        let in_flight = [(0, jobs_max), (0, (jobs_max / 2).max(1)), (0, 1)];
        (
            handle,
            ShardTask {
                state,
                shard_batches,
                query_worker,
                flusher,
                dead,
                clock,
                gauges,
                jobs,
                in_flight,
                latest: None,
                rollup: None,
                quarantined_log: LineLimit::new("bucket quarantined"),
                rejected_log: LineLimit::new("store refused readings"),
            },
        )
    }

    /// The same task with the optional features: the registry's tags, and the latest state of the
    /// sensors.
    #[must_use]
    pub fn with_latest_and_tags(
        mut self,
        registry: Registry,
        latest: Option<LatestHandle>,
    ) -> ShardTask {
        self.state.set_registry(registry);
        ShardTask { latest, ..self }
    }

    /// The same task; it passes readings on to the daily rollup.
    #[must_use]
    pub fn with_rollup(mut self, rollup: Option<RollupHandle>) -> ShardTask {
        if rollup.is_some() {
            self.state.report_settled();
        }
        ShardTask { rollup, ..self }
    }

    /// Runs until every handle is dropped and everything is stored. A panic of the state or of a
    /// command ends it: its readings are then not delivered, and the owner of this task must stop
    /// the service.
    pub async fn run(mut self) {
        let mut draining = false;
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        while !(draining && self.state.empty() && self.jobs.is_empty()) {
            let now = self.clock.now();
            self.state.promote(now);
            let behind = draining || self.state.is_behind(now);
            let [write, load, retry] =
                [Lane::Write, Lane::Load, Lane::Retry].map(|lane| self.may_launch(lane));
            tokio::select! {
                biased;
                Some(done) = self.jobs.join_next() => self.finished(done).await,
                permit = self.flusher.page_permit(behind), if write => self.launch(permit),
                permit = self.flusher.permit_in(Lane::Load), if load => self.launch(permit),
                permit = self.flusher.permit_in(Lane::Retry), if retry => self.launch(permit),
                shard_batch = self.shard_batches.recv(), if !draining && !self.full() => match shard_batch {
                    Some(p) => {
                        self.accept(p).await;
                        self.query_worker.accepted_shard_batch();
                        self.query_worker.step(&self.state, self.clock.now());
                    }
                    None => draining = true,
                },
                _ = ticks.tick() => {
                    self.observe_store();
                    self.state.set_age_ms(self.flusher.age_ms());
                    self.state.tick(self.clock.now());
                    self.end_logs();
                    self.gauges.set_quarantined(&self.state);
                    self.query_worker.step(&self.state, self.clock.now());
                }
                () = self.query_worker.ready() => self.query_worker.step(&self.state, self.clock.now()),
            }
            if draining {
                self.state.drain();
            }
            if let Some(rollup) = &self.rollup {
                rollup.settled(&self.state.take_settled());
            }
            self.report();
        }
    }

    /// Tells the state what all shards have seen of the store.
    fn observe_store(&mut self) {
        let answers = self.flusher.answered_within(ANSWERS_WITHIN);
        self.state.set_store_answers(answers);
        if let Some(ago) = self.flusher.page_written_ago() {
            let ago_ms = u64::try_from(ago.as_millis()).unwrap_or(u64::MAX);
            let at_ms = self.clock.now().mono_ms.saturating_sub(ago_ms);
            self.state.note_pages_written(at_ms);
        }
    }

    fn full(&self) -> bool {
        self.state.full() || self.rollup.as_ref().is_some_and(RollupHandle::full)
    }

    /// Adds readings, and passes them on to the latest state, duplicates too: after a crash that
    /// stage may not have written them.
    async fn accept(&mut self, shard_batch: ShardBatch) {
        let ShardBatch {
            batch,
            row_refs,
            ack,
            replayed,
        } = shard_batch;
        let held = self.latest.as_ref().and_then(|latest| latest.hold(&ack));
        self.state.set_new_buckets(self.flusher.new_buckets());
        if let Some(rollup) = &self.rollup {
            rollup.accept(&batch, &row_refs, &ack);
        }
        self.state
            .accept(&batch, &row_refs, ack, replayed, self.clock.now());
        if let Some(latest) = &self.latest {
            self.gauges
                .waiting_for(latest.send(batch, row_refs, held))
                .await;
        }
    }

    fn may_launch(&self, lane: Lane) -> bool {
        let (jobs, most) = self.in_flight[lane as usize];
        jobs < most && self.state.wants(lane)
    }

    fn launch(&mut self, permit: Permit) {
        let flusher = self.flusher.clone();
        let lane = permit.lane();
        match self.state.take_in(lane, self.flusher.storage_mode()) {
            None => return,
            Some(Job::Write(bucket_refs, mut writes)) => {
                self.jobs.spawn(async move {
                    let response = flusher.write(permit, &mut writes).await;
                    (lane, JobResult::Write(bucket_refs, writes, response))
                });
            }
            Some(Job::Load(bucket_refs, requests)) => {
                self.jobs.spawn(async move {
                    let response = flusher.load(permit, &requests).await;
                    (lane, JobResult::Load(bucket_refs, requests, response))
                });
            }
        }
        self.in_flight[lane as usize].0 += 1;
    }

    async fn finished(&mut self, done: Result<(Lane, JobResult), tokio::task::JoinError>) {
        match done {
            Ok((lane, done)) => {
                self.in_flight[lane as usize].0 -= 1;
                self.state.finished(done, self.clock.now());
            }
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // A command is aborted only when the runtime ends.
            Err(_) => return,
        }
        for bucket in self.state.take_quarantined() {
            let Quarantined {
                sensor_id,
                start,
                reason,
                ..
            } = bucket;
            self.quarantined_log.line(self.clock.now().mono_ms, || {
                tracing::error!(%sensor_id, bucket_start_ms = start.0, reason, "bucket \
                    quarantined; it keeps failing");
            });
        }
        for refused in self.state.take_rejected_rows() {
            self.refuse(refused).await;
        }
    }

    /// Logs the numbers of suppressed lines.
    fn end_logs(&self) {
        let now_ms = self.clock.now().mono_ms;
        self.quarantined_log.end(now_ms);
        self.rejected_log.end(now_ms);
    }

    /// Keeps readings that the store refuses as dead letters, in the native JSON format, one
    /// reading per line, so that they can be replayed.
    async fn refuse(&mut self, refused: RejectedRows) {
        let RejectedRows {
            sensor_id,
            rows,
            reason,
            detail,
            acks,
        } = refused;
        let readings = rows.len() as u64;
        let now = self.clock.now();
        let at_ms = now.wall_ms;
        self.rejected_log.line(now.mono_ms, || {
            tracing::error!(%sensor_id, readings, reason = reason.as_str(), detail, "store \
                refused readings; kept as dead letters");
        });
        if reason == RejectCause::StoreRejected {
            self.gauges
                .note_store_rejects(readings, &detail, now.mono_ms);
        }
        metrics::readings_rejected_total(Source::Store, reason, readings);
        rejected::note(Reject {
            source: Source::Store,
            name: &sensor_id,
            reason: reason.as_str(),
            count: readings,
            detail: &detail,
            at_ms,
        });
        let dead_letter = |payload| DeadLetter {
            received_at_ms: at_ms,
            source: Source::Store.as_str().into(),
            topic: String::new(),
            payload,
            reason: reason.as_str().into(),
            detail: detail.clone(),
        };
        let dead_letters = as_lines(&sensor_id, &rows)
            .into_iter()
            .map(dead_letter)
            .collect();
        self.gauges.settled.fetch_add(readings, Ordering::Relaxed);
        self.gauges
            .waiting_for(self.dead.send(dead_letters, acks))
            .await;
    }

    fn report(&mut self) {
        let ShardCounts {
            stored,
            duplicates,
            conflicts,
            began,
            filled_late,
            forgotten,
        } = self.state.take_counts();
        if began > 0 || filled_late > 0 {
            self.flusher.note_waiting(began, filled_late);
        }
        if stored > 0 {
            metrics::readings_stored_total(self.flusher.storage_mode(), stored);
        }
        if duplicates > 0 {
            metrics::readings_duplicate_total(duplicates);
        }
        if conflicts > 0 {
            metrics::store_conflicts_total(conflicts);
        }
        if forgotten > 0 {
            metrics::buckets_forgotten_total(forgotten);
        }
        self.gauges
            .settled
            .fetch_add(stored + duplicates, Ordering::Relaxed);
        self.gauges.jobs.store(self.jobs.len(), Ordering::Relaxed);
        self.gauges.set(self.state.usage());
    }
}

/// Approximate size of a dead letter's payload. Each is one document and must stay well below 16
/// MiB.
const DEAD_PAYLOAD_BYTES: usize = 1 << 20;

/// Readings as lines of JSON, in chunks of about [`DEAD_PAYLOAD_BYTES`].
fn as_lines(sensor_id: &str, rows: &Rows) -> Vec<Vec<u8>> {
    let mut pieces = vec![];
    let mut piece = vec![];
    for reading in rows.to_readings(sensor_id) {
        let line = serde_json::json!({
            "sensor_id": reading.sensor_id, "ts": reading.ts_ms, "ts_unit": "ms", "values": reading.values,
        });
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
