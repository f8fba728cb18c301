//! Rollup: what is computed of a sensor and day when the day is over: `sensor_days` from its stored
//! hours (`rollup.days`), `sensor_columns` and `sensor_day_hours` from its readings
//! (`columns.enabled`); which of them, [`DayKinds`] says.
//!
//! ```text
//!  shard ─[RollupHandle: arrivals, settled readings]─> state ─[task]─> marks, days ─[flush]─> store
//! ```
//!
//! A day's documents are functions of the stored pages of its hours ([`store::days`],
//! [`store::columns`]). So nothing is added to them: when the hours of a day have changed, the day is
//! computed again, and its documents are replaced.
//!
//! **Life of a change.** A reading arrives at its shard, which passes it on: its day gets an entry
//! in [`state`], and a *mark* in the collection `rollup_pending`, before the journal may release
//! the reading. When the reading's write is confirmed (or the reading was found stored, or became a
//! dead letter) the shard reports it as *settled*, and the day is changed. An open day is computed
//! after it has ended and `rollup.settle` has passed, any other day when no reading has arrived for
//! `rollup.late`. Then the entry and the mark go, if no reading of the day arrived meanwhile. An
//! open day costs one mark, one computation and one removal per sensor and instance, however many
//! readings it has.
//!
//! **Crash.** The marks of this instance (its id is a file in the journal's directory) are read at
//! the start, and their days computed. A reading whose mark was not durable is still in the
//! journal, and its replay marks the day again, although the reading is found stored. With `ack =
//! "stored"` the id changes with every start; marks that are older than [`state::ORPHAN_MS`] are
//! taken over by any instance, by the clocks of the services, which must not differ by days.
//!
//! **Two instances.** Each marks and computes what it wrote. Of two computations of a day, the one
//! that begins after the last confirmed write of both reads everything, so it counts the most
//! readings, and a document is only replaced by one that counts at least as many. Each instance
//! computes after its own last write, so the later of the two is complete.
//!
//! **Full.** Entries stay within `rollup.max_bytes`. From three quarters on, days are computed
//! before they are due; at the limit the shard accepts nothing. Computing continues meanwhile, so
//! there is always room again.
//!
//! **Yielding.** All tasks together read hours with one command at a time, under a separate permit;
//! then the task pauses for the same time. Marks and documents are written under the permits of
//! page writes, in few statements.
//!
//! Invariants: an acknowledgement is held until the mark of its day is durable. A mark is removed
//! only with the version that this entry knows, after a computation that began after the last
//! change. An entry without a durable mark is never dropped.

mod compute;
pub mod recovery;
pub mod state;

pub use compute::DayKinds;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::flush::backoff::Backoff;
use crate::flush::days::DaysPermit;
use crate::flush::{Flusher, Permit};
use model::ack::Ack;
use model::{Clock, Day, ReadingBatch, RowPosition};
use state::{Rollup, RollupSettings, RollupUsage, Settled};
use store::StoreError;
use store::days::{DayMark, SensorDay};
use telemetry::metrics::{self, DayResult};

/// Marks in one command.
const MARKS_MAX: usize = 1000;
/// Days in one computation: at first, and at most. Each reads the pages of a day.
const DAYS_FIRST: usize = 16;
const DAYS_MAX: usize = 128;
/// How often an idle task checks its wheel.
const TICK: Duration = Duration::from_millis(50);

struct Shared {
    state: Mutex<Rollup>,
    wake: Notify,
    closed: AtomicBool,
    clock: Arc<dyn Clock>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, Rollup> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The handle for the shard. The task ends when it is dropped.
pub struct RollupHandle(Arc<Shared>);

impl RollupHandle {
    /// Adds readings that arrive, duplicates too. Holds a part of `ack` until the marks of their
    /// days are durable.
    pub fn accept(&self, batch: &ReadingBatch, row_refs: &[RowPosition], ack: &Ack) {
        let mut state = self.0.state();
        state.accept(batch, row_refs, ack, self.0.clock.now());
        if state.has_marks() {
            self.0.wake.notify_one();
        }
    }

    /// Reports readings that are stored, or will not be.
    pub fn settled(&self, settled: &[Settled]) {
        if settled.is_empty() {
            return;
        }
        let mut state = self.0.state();
        let now = self.0.clock.now();
        settled.iter().for_each(|s| state.settled(s, now));
    }

    /// Whether the shard should accept nothing.
    pub fn full(&self) -> bool {
        self.0.state().full()
    }
}

impl Drop for RollupHandle {
    fn drop(&mut self) {
        self.0.closed.store(true, Ordering::Release);
        self.0.wake.notify_one();
    }
}

/// The handle for queries and for the recovery of marks.
#[derive(Clone)]
pub struct RollupView(Arc<Shared>);

impl RollupView {
    /// The days of a sensor that may differ from their documents.
    pub fn pending(&self, sensor_id: &str, days: impl Iterator<Item = Day>) -> Vec<Day> {
        let state = self.0.state();
        days.filter(|day| state.is_pending(sensor_id, *day))
            .collect()
    }

    /// Adds stored marks. Returns `false`, and adds nothing, if the state is full.
    pub fn recover(&self, marks: Vec<DayMark>) -> bool {
        let mut state = self.0.state();
        let has_room = !state.full();
        if has_room {
            state.recover(marks, self.0.clock.now());
        }
        has_room
    }
}

/// What a task holds in memory, for the metrics.
#[derive(Debug, Default)]
pub struct RollupGauges(Mutex<RollupUsage>);

impl RollupGauges {
    fn set(&self, usage: RollupUsage) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = usage;
    }

    /// The values at the end of the task's last iteration.
    pub fn get(&self) -> RollupUsage {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Done {
    Marked(Vec<DayMark>, Result<(), StoreError>),
    Cleared(Vec<DayMark>, Result<(), StoreError>),
    /// The days, and how long it took (ms).
    Computed(Vec<SensorDay>, Result<Vec<bool>, StoreError>, u64),
}

/// Writes the marks and days of one shard's sensors.
pub struct RollupTask {
    shared: Arc<Shared>,
    flusher: Flusher,
    kinds: DayKinds,
    gauges: Arc<RollupGauges>,
    backoff: Backoff,
    /// At most one command for marks, and one for days.
    jobs: JoinSet<Done>,
    is_marking: bool,
    is_computing: bool,
    days_most: usize,
    mark_failures: u32,
    day_failures: u32,
    /// Nothing of this kind is sent before this time (monotonic ms).
    marks_from_ms: u64,
    days_from_ms: u64,
}

impl RollupTask {
    /// The handles and their task.
    pub fn new(
        settings: RollupSettings,
        kinds: DayKinds,
        flusher: Flusher,
        backoff: Backoff,
        clock: Arc<dyn Clock>,
        gauges: Arc<RollupGauges>,
    ) -> (RollupHandle, RollupView, RollupTask) {
        let state = Mutex::new(Rollup::new(settings));
        let shared = Arc::new(Shared {
            state,
            wake: Notify::new(),
            closed: AtomicBool::new(false),
            clock,
        });
        let task = RollupTask {
            shared: shared.clone(),
            flusher,
            kinds,
            gauges,
            backoff,
            jobs: JoinSet::new(),
            is_marking: false,
            is_computing: false,
            days_most: DAYS_FIRST,
            mark_failures: 0,
            day_failures: 0,
            marks_from_ms: 0,
            days_from_ms: 0,
        };
        (RollupHandle(shared.clone()), RollupView(shared), task)
    }

    /// Runs until the shard's handle is dropped and all marks are durable. Days that are not
    /// computed by then are computed after the next start.
    pub async fn run(mut self) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            let now = self.shared.clock.now();
            let closed = self.shared.closed.load(Ordering::Acquire);
            let (marks, days) = {
                let mut state = self.shared.state();
                self.gauges.set(state.usage(now));
                if closed && self.jobs.is_empty() && state.is_marked() {
                    return;
                }
                (state.has_marks(), !closed && state.has_days(now))
            };
            let marks = marks && !self.is_marking && now.mono_ms >= self.marks_from_ms;
            let days = days && !self.is_computing && now.mono_ms >= self.days_from_ms;
            tokio::select! {
                biased;
                Some(done) = self.jobs.join_next() => match done {
                    Ok(done) => self.finished(done),
                    Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                    // A command is aborted only when the runtime ends.
                    Err(_) => return,
                },
                permit = self.flusher.permit(), if marks => self.send_marks(permit),
                permit = self.flusher.days_permit(), if days => self.compute(permit),
                () = self.shared.wake.notified() => {}
                _ = ticks.tick() => {}
            }
        }
    }

    fn send_marks(&mut self, permit: Permit) {
        let flusher = self.flusher.clone();
        let (marks, clears) = {
            let mut state = self.shared.state();
            let marks = state.take_marks(MARKS_MAX);
            // Acknowledgements wait for marks, nothing for their removal.
            let clears = if marks.is_empty() {
                state.take_clears(MARKS_MAX)
            } else {
                vec![]
            };
            (marks, clears)
        };
        if !marks.is_empty() {
            self.is_marking = true;
            self.jobs.spawn(async move {
                let result = flusher.mark_days(permit, &marks).await;
                Done::Marked(marks, result)
            });
        } else if !clears.is_empty() {
            self.is_marking = true;
            self.jobs.spawn(async move {
                let result = flusher.clear_marks(permit, &clears).await;
                Done::Cleared(clears, result)
            });
        }
    }

    fn compute(&mut self, permit: DaysPermit) {
        let (days, expired) = self
            .shared
            .state()
            .take_days(self.days_most, self.shared.clock.now());
        if let Some(first) = expired.first() {
            metrics::rollup_computed_total(DayResult::Expired, expired.len() as u64);
            let sensor_id = &*first.sensor_id;
            let day_ms = first.day.start_ms;
            let days = expired.len();
            tracing::error!(
                sensor_id,
                day_ms,
                days,
                "days not computed: some of their hours may have expired"
            );
        }
        if days.is_empty() {
            // Memory is short, but every day waits for readings on their way.
            self.days_from_ms = self.shared.clock.now().mono_ms + TICK.as_millis() as u64;
            return;
        }
        let flusher = self.flusher.clone();
        let clock = self.shared.clock.clone();
        let kinds = self.kinds.clone();
        self.is_computing = true;
        self.jobs.spawn(async move {
            let begun_ms = clock.now().mono_ms;
            let result = kinds.compute(&flusher, &permit, &days).await;
            Done::Computed(days, result, clock.now().mono_ms - begun_ms)
        });
    }

    fn finished(&mut self, done: Done) {
        let now = self.shared.clock.now();
        match done {
            Done::Marked(marks, result) => {
                self.is_marking = false;
                self.shared.state().marked(&marks, result.is_ok(), now);
                self.marks_ended(result);
            }
            Done::Cleared(marks, result) => {
                self.is_marking = false;
                if result.is_err() {
                    self.shared.state().not_cleared(marks);
                }
                self.marks_ended(result);
            }
            Done::Computed(days, result, took_ms) => {
                self.is_computing = false;
                let written = result
                    .as_ref()
                    .map_or_else(|_| vec![false; days.len()], Clone::clone);
                self.shared.state().computed(days.iter().zip(written), now);
                match result {
                    Ok(_) => {
                        self.day_failures = 0;
                        self.days_most = (self.days_most * 2).min(DAYS_MAX);
                        self.days_from_ms = now.mono_ms + took_ms;
                    }
                    Err(error) => {
                        metrics::rollup_computed_total(DayResult::Failed, days.len() as u64);
                        self.days_most = (self.days_most / 4).max(1);
                        self.day_failures += 1;
                        self.days_from_ms = now.mono_ms + self.wait_ms(&error, self.day_failures);
                    }
                }
            }
        }
    }

    fn marks_ended(&mut self, result: Result<(), StoreError>) {
        match result {
            Ok(()) => self.mark_failures = 0,
            Err(error) => {
                self.mark_failures += 1;
                self.marks_from_ms =
                    self.shared.clock.now().mono_ms + self.wait_ms(&error, self.mark_failures);
            }
        }
    }

    /// The wait before the next attempt. Logs the first failure in a row; the store's health has
    /// its own log.
    fn wait_ms(&self, error: &StoreError, failures: u32) -> u64 {
        if failures == 1 {
            tracing::warn!(%error, "daily rollup: request failed; retrying");
        }
        metrics::store_retries_total(1);
        self.backoff.wait(failures, fastrand::f64()).as_millis() as u64
    }
}
