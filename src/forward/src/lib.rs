//! Sends what the journal holds to another instance, the centre, in place of a store.
//!
//! In: the journal's entries in order, from its [`Follower`]. Out: bodies of
//! [`decode::forwarded`] over HTTP, and the journal's acknowledgements once the centre has answered.
//!
//! **One effect.** Every reading that leaves has a time, or had none and got that of its receipt when
//! it was journaled. Equal ones of a millisecond that came without a time are numbered ([`equal`]).
//! So the centre recognises whatever is sent again, after a lost answer, a restart here or there, or
//! from a journal that is replayed: with its comparison of duplicates, the same as for any sender.
//!
//! **Order.** A sensor belongs to one of `forward.window` *lanes* by the hash of its id. A lane has one
//! request in flight and sends its readings in the order of the journal ([`lane`], pure). So there is
//! at most one request with readings of a sensor, and a lost answer delays no other lane.
//!
//! **Life of a reading.** [`Forwarder::follow`] gives each lane its readings of an entry, with a part of
//! its acknowledgement. The lane collects for `forward.linger`, or until a body is full. It sends the
//! body until the centre answers 200, or 400 with a list of rejects, and then delivers the parts.
//! What the centre rejects is first written to the file of rejects ([`rejected`]). If all lanes are
//! full, the follower waits: the journal is the buffer.
//!
//! **Newest first.** With `forward.order = "newest"` what is journaled now goes first: a backlog that is
//! older than [`NEWEST_AFTER_MS`] is left to a second follower and a separate lane ([`newest`]).
//!
//! **Crash.** What was not acknowledged is replayed at the next start and sent again.
//!
//! **Invariants.** A part is delivered only after the centre's answer about all of its readings, and
//! after its rejects are on disk. A reading is never given up because of a status: the lane keeps it,
//! says why ([`ForwardStatus`]) and tries again.
//!
//! What must not be here: what a duplicate is, and any format but that of the body.

mod answer;
mod client;
mod equal;
mod lane;
mod newest;
mod rejected;

pub use answer::{Answer, ItemReject, Items};
pub use client::{CentreAway, Client, ClientError};
pub use equal::EqualReadings;
pub use lane::{Confirmed, Lane, LaneSettings, Next, Outcome, Part, RejectedReading};
pub use newest::{KeptBack, Newest, rows_of_lanes};
pub use rejected::RejectedFile;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use config::ForwardOrder;
use journal::{EntryKind, Follower, JournalEntry};
use model::ack::Ack;
use model::{Clock, ReadingBatch};
use rejected::dead_letter;
use telemetry::metrics::{self, ForwardResult, Source};

/// Parts that may wait for a lane; beyond that the follower waits.
const PARTS_MAX: usize = 4;
/// With `forward.order = "newest"`: the age of an entry from which on those behind it are left for later
/// (ms).
const NEWEST_AFTER_MS: i64 = 60_000;
/// Backlogs that are left at a time and ends of such, at most; further ones go first.
const BACKLOGS_MAX: usize = 64;
/// How often a backlog looks whether everything before it is stored.
const OLDEST_AGAIN: Duration = Duration::from_millis(100);
/// How often a part of the file of rejects is tried again if the disk refuses it.
const REJECTED_AGAIN: Duration = Duration::from_secs(5);

/// The stage behind the journal.
pub struct Forwarder {
    client: Arc<Client>,
    settings: LaneSettings,
    lanes: usize,
    is_newest_first: bool,
    pacer: Arc<Pacer>,
    rejected: Arc<RejectedFile>,
    status: Arc<ForwardStatus>,
    clock: Arc<dyn Clock>,
}

/// Why it ended before the journal did.
#[derive(Debug, thiserror::Error)]
#[error("a task that forwards readings has ended")]
pub struct LaneEnded;

impl Forwarder {
    /// `dir`: where the file of rejects is, `journal.dir`.
    ///
    /// # Errors
    /// `forward.url` is not set, or a file with certificates cannot be used.
    pub fn new(
        forward: &config::Forward,
        dir: &Path,
        clock: Arc<dyn Clock>,
    ) -> Result<Forwarder, ClientError> {
        let client = Arc::new(Client::new(forward)?);
        let status = ForwardStatus {
            url: client.url().to_owned(),
            // And that of backlogs.
            lanes: Mutex::new(vec![None; forward.window + 1]),
        };
        Ok(Forwarder {
            settings: LaneSettings::new(forward),
            lanes: forward.window,
            is_newest_first: forward.order == ForwardOrder::Newest,
            pacer: Arc::new(Pacer::new(forward.rate_max)),
            rejected: Arc::new(RejectedFile::new(dir, forward.rejected_max_bytes)),
            status: Arc::new(status),
            client,
            clock,
        })
    }

    /// What prevents it from sending, if anything.
    pub fn status(&self) -> Arc<ForwardStatus> {
        self.status.clone()
    }

    /// Follows the journal until it is closed and everything in it is acknowledged.
    ///
    /// # Errors
    /// The task of a lane has panicked.
    pub async fn follow(self, mut follower: Follower) -> Result<(), LaneEnded> {
        let (lanes, mut tasks) = self.lanes(0..self.lanes);
        let (later, later_tasks) = self.lanes(self.lanes..self.lanes + 1);
        tasks.extend(later_tasks);
        let (backlogs, parts) = mpsc::channel(BACKLOGS_MAX);
        let of_backlogs = tokio::spawn(send_backlogs(parts, later));
        let of_backlogs = AbortOnDropHandle::new(of_backlogs);
        let mut newest = Newest::default();
        loop {
            let wait = self.wait_for_end(&newest);
            let Ok(next) = tokio::time::timeout(wait, follower.next()).await else {
                send_end(&backlogs, newest.take_end(None)).await?;
                continue;
            };
            let wall_ms = next.as_ref().map(|entry| entry.wall_ms);
            send_end(&backlogs, newest.take_end(wall_ms)).await?;
            let Some(entry) = next else {
                break;
            };
            let rows =
                |batch: &Arc<_>| newest.rows(batch, entry.wall_ms, &entry.ack, lanes.all.len());
            lanes.hand(&entry, rows).await?;
            let now_ms = self.clock.now().wall_ms;
            let is_old = now_ms.saturating_sub(entry.wall_ms) > NEWEST_AFTER_MS;
            entry.ack.delivered();
            // Its end needs room too.
            let has_room = backlogs.capacity() >= 2;
            let leaves = self.is_newest_first && is_old && has_room && !newest.is_leaving();
            if leaves && let Some(backlog) = follower.leave_backlog() {
                let backlog = Backlog::Entries(Box::new(backlog), newest.leave(now_ms));
                backlogs.send(backlog).await.map_err(|_| LaneEnded)?;
            }
        }
        drop((lanes, backlogs));
        of_backlogs.await.map_err(|_| LaneEnded)??;
        for task in tasks {
            task.await.map_err(|_| LaneEnded)?;
        }
        Ok(())
    }

    /// How long to wait for an entry.
    fn wait_for_end(&self, newest: &Newest) -> Duration {
        let left_ms = |due_ms: i64| due_ms.saturating_sub(self.clock.now().wall_ms);
        match newest.end_due_ms() {
            Some(due_ms) => Duration::from_millis(left_ms(due_ms).clamp(1, 60_000).cast_unsigned()),
            None => Duration::MAX,
        }
    }

    /// Starts lanes.
    fn lanes(&self, indexes: std::ops::Range<usize>) -> (Lanes, Vec<AbortOnDropHandle<()>>) {
        let start = |index| {
            let (sender, parts) = mpsc::channel(PARTS_MAX);
            let task = tokio::spawn(self.task(index).run(parts));
            (sender, AbortOnDropHandle::new(task))
        };
        let (all, tasks) = indexes.map(start).unzip();
        let rejected = self.rejected.clone();
        (Lanes { all, rejected }, tasks)
    }

    fn task(&self, index: usize) -> LaneTask {
        LaneTask {
            index,
            lane: Lane::new(self.settings),
            client: self.client.clone(),
            pacer: self.pacer.clone(),
            rejected: self.rejected.clone(),
            status: self.status.clone(),
            clock: self.clock.clone(),
        }
    }
}

/// Lanes, and where dead letters go.
struct Lanes {
    all: Vec<Sender<Part>>,
    rejected: Arc<RejectedFile>,
}

impl Lanes {
    /// Hands over an entry. `rows`: of its batch, by lane.
    async fn hand(
        &self,
        entry: &JournalEntry,
        rows: impl FnOnce(&Arc<ReadingBatch>) -> Vec<Vec<(u32, u32)>>,
    ) -> Result<(), LaneEnded> {
        match &entry.kind {
            EntryKind::Readings(batch) => {
                if entry.replayed {
                    metrics::readings_accepted_total(Source::Replay, batch.len() as u64);
                }
                self.send(batch, rows(batch), &entry.ack).await
            }
            EntryKind::Dead(dead_letters) => {
                keep(&self.rejected, dead_letters.clone()).await;
                Ok(())
            }
        }
    }

    async fn send(
        &self,
        batch: &Arc<ReadingBatch>,
        rows: Vec<Vec<(u32, u32)>>,
        ack: &Ack,
    ) -> Result<(), LaneEnded> {
        for (lane, rows) in self.all.iter().zip(rows) {
            if !rows.is_empty() {
                let part = Part::new(batch.clone(), rows, ack.clone());
                lane.send(part).await.map_err(|_| LaneEnded)?;
            }
        }
        Ok(())
    }
}

/// A backlog, and then its end.
enum Backlog {
    Entries(Box<Follower>, EqualReadings),
    End(Vec<KeptBack>),
}

async fn send_end(backlogs: &Sender<Backlog>, end: Option<Vec<KeptBack>>) -> Result<(), LaneEnded> {
    match end {
        Some(end) => backlogs
            .send(Backlog::End(end))
            .await
            .map_err(|_| LaneEnded),
        None => Ok(()),
    }
}

/// Sends backlogs one after the other, each in the order of the journal.
async fn send_backlogs(mut backlogs: Receiver<Backlog>, lanes: Lanes) -> Result<(), LaneEnded> {
    let n = lanes.all.len();
    let mut equal = EqualReadings::default();
    while let Some(next) = backlogs.recv().await {
        match next {
            Backlog::Entries(mut follower, counts) => {
                equal = counts;
                // See `newest`.
                while !follower.is_oldest() {
                    tokio::time::sleep(OLDEST_AGAIN).await;
                }
                while let Some(entry) = follower.next().await {
                    let rows = |batch: &Arc<_>| rows_of_lanes(batch, &mut equal, entry.wall_ms, n);
                    lanes.hand(&entry, rows).await?;
                    entry.ack.delivered();
                }
            }
            Backlog::End(kept) => {
                for entry in kept {
                    let rows = entry.rows(&mut equal, n);
                    lanes.send(&entry.batch, rows, &entry.ack).await?;
                    entry.ack.delivered();
                }
            }
        }
    }
    Ok(())
}

/// Writes dead letters to the file, for as long as it takes: nothing acknowledged is dropped.
async fn keep(rejected: &Arc<RejectedFile>, dead_letters: Vec<model::DeadLetter>) {
    let dead_letters = Arc::new(dead_letters);
    loop {
        let file = rejected.clone();
        let all = dead_letters.clone();
        let done = tokio::task::spawn_blocking(move || file.append(&all)).await;
        match done {
            Ok(Ok(())) => break,
            Ok(Err(error)) => {
                tracing::error!(%error, "cannot keep rejected readings; trying again");
            }
            Err(error) => tracing::error!(%error, "keeping rejected readings panicked"),
        }
        tokio::time::sleep(REJECTED_AGAIN).await;
    }
    for dead_letter in dead_letters.iter() {
        metrics::dead_letters_total(&dead_letter.reason, 1);
    }
}

/// What prevents readings from being sent, by lane.
#[derive(Debug)]
pub struct ForwardStatus {
    url: String,
    /// The problem, and since when (ms, monotonic).
    lanes: Mutex<Vec<Option<(String, u64)>>>,
}

impl ForwardStatus {
    /// The centre.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The problem that has lasted longest, and since when (ms, monotonic); `None` if readings are
    /// sent.
    pub fn problem(&self) -> Option<(String, u64)> {
        let lanes = self.lanes();
        lanes
            .iter()
            .flatten()
            .min_by_key(|(_, since)| *since)
            .cloned()
    }

    fn set(&self, lane: usize, problem: Option<String>, now_ms: u64) {
        let place = &mut self.lanes()[lane];
        *place = problem.map(|problem| {
            let since = place.as_ref().map_or(now_ms, |(_, since)| *since);
            (problem, since)
        });
    }

    /// Every change is complete, so a panic leaves a consistent state.
    fn lanes(&self) -> MutexGuard<'_, Vec<Option<(String, u64)>>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Spreads bodies over time, so that all together keep `forward.rate_max`.
#[derive(Debug)]
struct Pacer {
    bytes_per_second: Option<u64>,
    next: Mutex<Instant>,
}

impl Pacer {
    fn new(bytes_per_second: Option<u64>) -> Pacer {
        Pacer {
            bytes_per_second: bytes_per_second.filter(|rate| *rate > 0),
            next: Mutex::new(Instant::now()),
        }
    }

    /// When a body of this size may leave.
    fn at(&self, bytes: usize) -> Instant {
        let now = Instant::now();
        let Some(rate) = self.bytes_per_second else {
            return now;
        };
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let at = (*next).max(now);
        *next = at + Duration::from_secs_f64(bytes as f64 / rate as f64);
        at
    }
}

/// The task around a lane.
struct LaneTask {
    index: usize,
    lane: Lane,
    client: Arc<Client>,
    pacer: Arc<Pacer>,
    rejected: Arc<RejectedFile>,
    status: Arc<ForwardStatus>,
    clock: Arc<dyn Clock>,
}

impl LaneTask {
    /// Runs until there are no more parts and all are acknowledged.
    async fn run(mut self, mut parts: Receiver<Part>) {
        let mut is_open = true;
        loop {
            let until = match self.lane.next(self.now_ms()) {
                Next::Send(body) => {
                    let answer = self.send(body, &mut parts, &mut is_open).await;
                    self.answered(answer).await;
                    continue;
                }
                Next::Idle if is_open => None,
                Next::Idle => return,
                Next::At(at_ms) => Some(at_ms),
            };
            let wait = async {
                match until {
                    Some(at_ms) => {
                        let wait_ms = at_ms.saturating_sub(self.clock.now().mono_ms);
                        tokio::time::sleep(Duration::from_millis(wait_ms.max(1))).await;
                    }
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = wait => {}
                part = parts.recv(), if is_open && !self.lane.is_full() => {
                    take(&mut self.lane, part, self.clock.now().mono_ms, &mut is_open);
                }
            }
        }
    }

    fn now_ms(&self) -> u64 {
        self.clock.now().mono_ms
    }

    /// Sends a body, and collects for the next one meanwhile.
    async fn send(
        &mut self,
        body: Arc<Vec<u8>>,
        parts: &mut Receiver<Part>,
        is_open: &mut bool,
    ) -> Answer {
        let bytes = body.len();
        let at = self.pacer.at(bytes);
        let client = self.client.clone();
        let lane = self.index;
        let sending = async move {
            tokio::time::sleep_until(at).await;
            tokio::task::spawn_blocking(move || client.send(lane, &body)).await
        };
        tokio::pin!(sending);
        let answer = loop {
            tokio::select! {
                answer = &mut sending => break answer,
                part = parts.recv(), if *is_open && !self.lane.is_full() => {
                    take(&mut self.lane, part, self.clock.now().mono_ms, is_open);
                }
            }
        };
        metrics::forward_bytes_total(bytes as u64);
        answer.unwrap_or_else(|panic| Answer::None(panic.to_string()))
    }

    async fn answered(&mut self, answer: Answer) {
        let now_ms = self.now_ms();
        let (result, problem) = match self.lane.answered(answer, now_ms, fastrand::f64()) {
            Outcome::Confirmed(confirmed) => {
                let Confirmed {
                    readings,
                    rejected,
                    acks,
                } = confirmed;
                metrics::forward_readings_total((readings - rejected.len()) as u64);
                metrics::forward_rejected_total(rejected.len() as u64);
                if !rejected.is_empty() {
                    let wall_ms = self.clock.now().wall_ms;
                    let all = rejected.iter().map(|r| dead_letter(r, wall_ms)).collect();
                    keep(&self.rejected, all).await;
                }
                acks.into_iter().for_each(model::ack::Ack::delivered);
                (ForwardResult::Ok, None)
            }
            Outcome::Smaller => (ForwardResult::TooLarge, None),
            Outcome::Later { result, problem } => (result, Some(problem)),
        };
        metrics::forward_requests_total(result, 1);
        if let Some(problem) = &problem {
            tracing::debug!(lane = self.index, problem, "a request failed");
        }
        self.status.set(self.index, problem, now_ms);
    }
}

fn take(lane: &mut Lane, part: Option<Part>, now_ms: u64, is_open: &mut bool) {
    match part {
        Some(part) => lane.push(part, now_ms),
        None => {
            *is_open = false;
            lane.drain();
        }
    }
}
