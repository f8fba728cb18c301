//! Latest: `sensor_latest`, one document per sensor with its last values and readings. Off by
//! default.
//!
//! ```text
//!  shard ─[LatestHandle]─> task ─[state]─> updates ─[flush]─> store
//! ```
//!
//! Life of a reading: its shard passes its batch on after adding it to its own state, whether new,
//! replayed or duplicate. [`state`] copies the reading into its sensor's entry, which keeps only
//! what can still matter. When the sensor is due, at its own phase once per `latest.interval`, the
//! entry becomes one statement and is removed. The store *merges* the statement into the document
//! by time ([`model::latest`]). So a statement may be sent twice, late, or concurrently with
//! that of another instance, and the document never goes back in time. Nothing is read before a
//! write.
//!
//! **Crash.** With a journal, a part of the readings' acknowledgement is held until their document
//! is written. The journal keeps them that long, at most `latest.interval` while the store is
//! healthy, and replays them after the next start. With `ack = "stored"` nothing is held, since a
//! sender waits: after a crash the document of a sensor that sends nothing more may be one interval
//! old.
//!
//! **Full.** There is one entry per sensor; all entries together stay within `latest.max_bytes` and
//! `accumulate.max_sensors`. From three quarters of the bytes on, the entries due next are written
//! early. At the limit nothing more is accepted and the shards wait. If the store is unavailable
//! the shards fill up first.
//!
//! **Too large.** A document has at most 16 MB. The store then writes a part, at least the time of
//! the newest reading. That is counted, and the log names the sensor once.
//!
//! **Refused.** A statement that the store refuses permanently, or keeps answering with an error,
//! is counted, logged and dropped: its readings are stored in their pages anyway, and it must not
//! block the journal. A command that failed or got no answer returns its readings to their entries,
//! and the next command is sent after the backoff.
//!
//! Invariants: at most one command of a task is in flight, so a sensor has at most one statement in
//! flight; a sensor has at most one entry.

pub mod state;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::flush::backoff::Backoff;
use crate::flush::{Flusher, Permit};
use model::ack::Ack;
use model::{Clock, ReadingBatch, RowPosition, SensorId};
use state::{Latest, LatestSettings, LatestUsage, Pending};
use store::{LatestWriteResult, StoreError, StoreErrorKind};
use telemetry::log_limit::LineLimit;
use telemetry::metrics::{self, UpdateResult};

/// Capacity of the task's channel, in batches. The task only copies them into memory, so few are
/// enough.
const QUEUE_MAX: usize = 4;
/// How often an update is tried if the store answers with an error that may be temporary. With the
/// default backoff this takes about half a minute. Then it is dropped, because the journal keeps
/// its entries until then.
const TRIES_MAX: u32 = 10;
/// The kind of a [`StoreError`] that the server answered with and that is not known to be
/// temporary.
const ANSWERED: StoreErrorKind = StoreErrorKind::Command;
/// Sensors whose state was too large that are remembered, so that each is logged once. When there
/// are more, all are forgotten.
const LOGGED_MAX: usize = 1000;
/// How often an idle task checks its wheel.
const TICK: Duration = Duration::from_millis(20);

struct Arrival {
    batch: Arc<ReadingBatch>,
    row_refs: Vec<RowPosition>,
    ack: Option<Ack>,
}

/// The handle of the task, for its shard.
#[derive(Debug, Clone)]
pub struct LatestHandle {
    arrivals: mpsc::Sender<Arrival>,
    hold_acks: bool,
}

impl LatestHandle {
    /// The part of an acknowledgement to pass to [`LatestHandle::send`], if it is to be held.
    pub fn hold(&self, ack: &Ack) -> Option<Ack> {
        self.hold_acks.then(|| ack.clone())
    }

    /// Sends readings to the task; waits while it is at its limit of memory.
    pub async fn send(
        &self,
        batch: Arc<ReadingBatch>,
        row_refs: Vec<RowPosition>,
        ack: Option<Ack>,
    ) {
        // The task lives as long as its shard unless it panics, which ends the service. The
        // acknowledgements that it held are then not delivered.
        let _ = self
            .arrivals
            .send(Arrival {
                batch,
                row_refs,
                ack,
            })
            .await;
    }
}

/// What a task holds in memory, for the metrics.
#[derive(Debug, Default)]
pub struct LatestGauges(Mutex<LatestUsage>);

impl LatestGauges {
    fn set(&self, usage: LatestUsage) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = usage;
    }

    /// The values at the end of the task's last iteration.
    pub fn get(&self) -> LatestUsage {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Answer = (Vec<Pending>, Result<Vec<LatestWriteResult>, StoreError>);

/// The state of one shard's sensors with everything that its task needs.
pub struct LatestTask {
    state: Latest,
    arrivals: mpsc::Receiver<Arrival>,
    flusher: Flusher,
    clock: Arc<dyn Clock>,
    gauges: Arc<LatestGauges>,
    backoff: Backoff,
    /// At most one job.
    job: JoinSet<Answer>,
    failures: u32,
    /// Backoff after a failure: nothing is sent before this time (monotonic ms).
    not_before_ms: u64,
    /// Sensors that the log has named because their state is too large.
    logged: HashSet<SensorId>,
    log: LineLimit,
}

impl LatestTask {
    /// A handle and its task. `hold_acks`: acknowledgements wait until the documents are written.
    pub fn new(
        settings: LatestSettings,
        hold_acks: bool,
        flusher: Flusher,
        backoff: Backoff,
        clock: Arc<dyn Clock>,
        gauges: Arc<LatestGauges>,
    ) -> (LatestHandle, LatestTask) {
        let (tx, arrivals) = mpsc::channel(QUEUE_MAX);
        let state = Latest::new(settings);
        let job = JoinSet::new();
        let task = LatestTask {
            state,
            arrivals,
            flusher,
            clock,
            gauges,
            backoff,
            job,
            failures: 0,
            not_before_ms: 0,
            logged: HashSet::new(),
            log: LineLimit::new("latest state too large"),
        };
        (
            LatestHandle {
                arrivals: tx,
                hold_acks,
            },
            task,
        )
    }

    /// Runs until every handle is dropped and everything is written.
    pub async fn run(mut self) {
        let mut draining = false;
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        while !(draining && self.state.empty() && self.job.is_empty()) {
            let now = self.clock.now().mono_ms;
            let due = self.job.is_empty()
                && now >= self.not_before_ms
                && self.state.next_due_ms().is_some_and(|due_ms| due_ms <= now);
            tokio::select! {
                biased;
                Some(answer) = self.job.join_next() => match answer {
                    Ok((job, result)) => self.answered(job, result),
                    Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                    // A command is aborted only when the runtime ends.
                    Err(_) => return,
                },
                permit = self.flusher.permit(), if due => self.launch(permit),
                arrival = self.arrivals.recv(), if !draining && !self.state.full() => match arrival {
                    Some(a) => self.state.accept(&a.batch, &a.row_refs, a.ack, self.clock.now()),
                    None => draining = true,
                },
                _ = ticks.tick() => self.state.tick(self.clock.now()),
            }
            if draining {
                self.state.drain();
            }
            self.gauges.set(self.state.usage());
        }
    }

    fn launch(&mut self, permit: Permit) {
        let (updates, waiting): (Vec<_>, Vec<_>) = self
            .state
            .take(self.clock.now())
            .into_iter()
            .map(|p| (p.update, (p.acks, p.tries)))
            .unzip();
        if updates.is_empty() {
            return;
        }
        let flusher = self.flusher.clone();
        self.job.spawn(async move {
            let result = flusher.latest(permit, &updates).await;
            let pending = |(update, (acks, tries))| Pending {
                update,
                acks,
                tries,
            };
            (
                updates.into_iter().zip(waiting).map(pending).collect(),
                result,
            )
        });
    }

    fn answered(&mut self, job: Vec<Pending>, result: Result<Vec<LatestWriteResult>, StoreError>) {
        // Merging is idempotent: everything may be sent again, regardless of what was applied.
        let (answers, answered, mut why) = match result {
            Ok(answers) => (answers, true, String::new()),
            Err(error) => (
                vec![LatestWriteResult::Again; job.len()],
                error.kind() == ANSWERED,
                error.to_string(),
            ),
        };
        let mut written = 0;
        let mut reduced = 0;
        let mut dropped = 0;
        let mut again = 0u64;
        for (mut pending, answer) in job.into_iter().zip(answers) {
            pending.tries += u32::from(answered);
            match answer {
                LatestWriteResult::Done => {
                    written += 1;
                    pending.acks.delivered();
                }
                LatestWriteResult::Reduced { detail } => {
                    reduced += 1;
                    pending.acks.delivered();
                    self.log_reduced(&pending.update.sensor_id, &detail);
                }
                LatestWriteResult::Again if pending.tries < TRIES_MAX => {
                    again += 1;
                    self.state.came_back(pending);
                }
                answer => {
                    if let LatestWriteResult::Rejected { detail } = answer {
                        why = detail;
                    }
                    dropped += 1;
                    pending.acks.delivered();
                }
            }
        }
        metrics::latest_updates_total(UpdateResult::Written, written);
        metrics::latest_updates_total(UpdateResult::Reduced, reduced);
        metrics::latest_updates_total(UpdateResult::Refused, dropped);
        if dropped > 0 {
            tracing::error!(
                documents = dropped,
                error = why,
                "dropping latest state of sensors: the store refuses it"
            );
        }
        if again == 0 {
            self.failures = 0;
            return;
        }
        self.failures += 1;
        let wait = self.backoff.wait(self.failures, fastrand::f64());
        self.not_before_ms = self.clock.now().mono_ms + wait.as_millis() as u64;
        metrics::store_retries_total(1);
    }

    fn log_reduced(&mut self, sensor_id: &SensorId, detail: &str) {
        if self.logged.len() >= LOGGED_MAX {
            self.logged.clear();
        }
        if self.logged.insert(sensor_id.clone()) {
            self.log.line(self.clock.now().mono_ms, || {
                tracing::warn!(
                    %sensor_id,
                    detail,
                    "latest state of a sensor is too large for a document, written in part"
                );
            });
        }
    }
}
