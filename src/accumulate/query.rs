//! Questions to a shard, beside the way of the readings.
//!
//! A question is answered by the shard's own task, in between: one piece of work for each shard batch of readings, so that
//! neither holds the other up, and at once where nothing else is to be done. It is answered behind all shard batches that were
//! handed over before it was asked ([`QueryHandle::query`] counts them); a shard that is full takes no shard batches, and then says
//! that it is behind instead of letting the query handle wait.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{mpsc, oneshot};

use super::state::Shard;
use super::state::snapshot::{FleetScan, IdScan, SensorSnapshot, ShardFleet, UnstoredRows};
use super::task::ShardClosed;
use crate::model::{Now, SensorId, stable_hash};

/// Questions that wait for one shard; those who ask wait for a place.
const QUERIES_MAX: usize = 16;

/// What can be asked.
#[derive(Debug)]
pub enum ShardQuery {
    /// One sensor's rows that are not known to be stored, in a span of time (ms since 1970, the end exclusive).
    View {
        /// Which sensor.
        sensor_id: SensorId,
        /// From when on.
        from_ms: i64,
        /// Until when.
        to_ms: i64,
    },
    /// The first ids of sensors with rows that are not known to be stored.
    Ids {
        /// How they begin.
        prefix: String,
        /// Behind this one.
        after: Option<String>,
        /// How many.
        limit: usize,
    },
    /// The newest state of these sensors.
    Snapshots(Vec<SensorId>),
    /// This shard's part of the fleet.
    Fleet,
}

/// What is answered, to the question of the same name.
#[derive(Debug)]
pub enum ShardResponse {
    /// To [`ShardQuery::View`].
    View(UnstoredRows),
    /// To [`ShardQuery::Ids`]: in the order of their bytes.
    Ids(Vec<SensorId>),
    /// To [`ShardQuery::Snapshots`]: in their order.
    Snapshots(Vec<SensorSnapshot>),
    /// To [`ShardQuery::Fleet`].
    Fleet(ShardFleet),
}

/// An answer, and whether it lacks readings that were handed over before the question.
#[derive(Debug)]
pub struct QueryReply {
    /// The answer.
    pub response: ShardResponse,
    /// The shard is full and had not taken them in.
    pub behind: bool,
}

/// The handle for questions to one shard. It keeps no shard alive.
#[derive(Debug, Clone)]
pub struct QueryHandle {
    queries: mpsc::Sender<PendingQuery>,
    handed_over: Arc<AtomicU64>,
}

/// A question on its way.
#[derive(Debug)]
pub(super) struct PendingQuery {
    query: ShardQuery,
    /// Shard batches that must be taken in before.
    behind: u64,
    reply: oneshot::Sender<QueryReply>,
}

impl QueryHandle {
    /// A handle, and the end for the shard's task. `handed_over` counts the shard batches sent to it.
    pub(super) fn new(handed_over: Arc<AtomicU64>) -> (QueryHandle, QueryWorker) {
        let (queries, rx) = mpsc::channel(QUERIES_MAX);
        (QueryHandle { queries, handed_over }, QueryWorker::new(rx))
    }

    /// Asks. Whoever asks puts a time limit around it; cancelling is no harm.
    ///
    /// # Errors
    /// The shard has ended.
    pub async fn query(&self, query: ShardQuery) -> Result<QueryReply, ShardClosed> {
        let (reply, response) = oneshot::channel();
        let behind = self.handed_over.load(Ordering::Acquire);
        self.queries.send(PendingQuery { query, behind, reply }).await.map_err(|_| ShardClosed)?;
        response.await.map_err(|_| ShardClosed)
    }
}

/// A question that is being answered.
enum RunningQuery {
    View { sensor_id: SensorId, from_ms: i64, to_ms: i64 },
    Ids(IdScan),
    SensorSnapshot { ids: VecDeque<SensorId>, snapshot: Vec<SensorSnapshot> },
    Fleet(FleetScan),
}

/// The shard's side: one question at a time, step by step.
pub(super) struct QueryWorker {
    queries: mpsc::Receiver<PendingQuery>,
    /// The one that waits for shard batches.
    pending: Option<PendingQuery>,
    work: Option<(RunningQuery, oneshot::Sender<QueryReply>, bool)>,
    taken_in: u64,
}

/// Sensors whose news are told in one step.
const NEWS_STEP: usize = 16;

impl QueryWorker {
    fn new(queries: mpsc::Receiver<PendingQuery>) -> QueryWorker {
        QueryWorker { queries, pending: None, work: None, taken_in: 0 }
    }

    /// A shard batch was taken in.
    pub(super) fn took_in(&mut self) {
        self.taken_in += 1;
    }

    /// Waits until there is something to do; pending for ever where nobody asks any more.
    pub(super) async fn something(&mut self) {
        if self.work.is_some() {
            return tokio::task::yield_now().await;
        }
        if self.pending.is_none() {
            match self.queries.recv().await {
                Some(query) => self.pending = Some(query),
                None => return std::future::pending().await,
            }
        }
        if self.pending.as_ref().is_some_and(|query| query.behind > self.taken_in) {
            // The next shard batch comes by itself, and the task looks again then.
            std::future::pending().await
        }
    }

    /// Does a step where there is one to do.
    pub(super) fn step(&mut self, shard: &Shard, now: Now) {
        if self.work.is_none() {
            self.begin(shard.full(), now);
        }
        let Some((work, reply, behind)) = self.work.take() else { return };
        if reply.is_closed() {
            return;
        }
        match carry_on(work, shard) {
            // Nobody waits any more: no harm.
            Ok(response) => drop(reply.send(QueryReply { response, behind })),
            Err(work) => self.work = Some((work, reply, behind)),
        }
    }

    /// Takes the next question up, where its turn has come.
    fn begin(&mut self, full: bool, now: Now) {
        let Some(query) = self.pending.take().or_else(|| self.queries.try_recv().ok()) else { return };
        let is_behind = query.behind > self.taken_in;
        if is_behind && !full && !query.reply.is_closed() {
            self.pending = Some(query);
            return;
        }
        let work = match query.query {
            ShardQuery::View { sensor_id, from_ms, to_ms } => RunningQuery::View { sensor_id, from_ms, to_ms },
            ShardQuery::Ids { prefix, after, limit } => RunningQuery::Ids(IdScan::new(prefix, after, limit)),
            ShardQuery::Snapshots(ids) => {
                RunningQuery::SensorSnapshot { snapshot: Vec::with_capacity(ids.len()), ids: ids.into() }
            }
            ShardQuery::Fleet => RunningQuery::Fleet(FleetScan::new(now.wall_ms)),
        };
        self.work = Some((work, query.reply, is_behind));
    }
}

/// One step; the answer, or what is left to do.
fn carry_on(work: RunningQuery, shard: &Shard) -> Result<ShardResponse, RunningQuery> {
    match work {
        RunningQuery::View { sensor_id, from_ms, to_ms } => {
            Ok(ShardResponse::View(shard.view(stable_hash(&sensor_id), &sensor_id, from_ms, to_ms)))
        }
        RunningQuery::Ids(mut scan) => match shard.scan_ids(&mut scan) {
            true => Ok(ShardResponse::Ids(scan.into_ids())),
            false => Err(RunningQuery::Ids(scan)),
        },
        RunningQuery::SensorSnapshot { mut ids, mut snapshot } => {
            for id in ids.drain(..ids.len().min(NEWS_STEP)) {
                snapshot.push(shard.snapshot(stable_hash(&id), &id));
            }
            if ids.is_empty() {
                Ok(ShardResponse::Snapshots(snapshot))
            } else {
                Err(RunningQuery::SensorSnapshot { ids, snapshot })
            }
        }
        RunningQuery::Fleet(mut scan) => match shard.scan_fleet(&mut scan) {
            Some(part) => Ok(ShardResponse::Fleet(part)),
            None => Err(RunningQuery::Fleet(scan)),
        },
    }
}
