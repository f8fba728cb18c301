//! Queries to a shard, apart from the flow of readings.
//!
//! The shard's own task answers them between shard batches: one step per shard batch, so that
//! neither delays the other, and immediately if there is nothing else to do. A query is answered
//! after all shard batches that were sent before it ([`QueryHandle::query`] counts them). A full
//! shard accepts no shard batches; it then answers without waiting for them, and marks the answer
//! as `incomplete`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{mpsc, oneshot};

use super::state::Shard;
use super::state::snapshot::{
    CatalogScan, FleetScan, IdScan, SensorSnapshot, ShardFleet, UnstoredRows,
};
use model::{CatalogUpdate, Now, SensorId, stable_hash};

/// Queries in one shard's queue; further callers wait.
const QUERIES_MAX: usize = 16;

/// The queries that a shard answers.
#[derive(Debug)]
pub enum ShardQuery {
    /// The rows of one sensor that are not known to be stored, in a time range (ms since 1970, end
    /// exclusive).
    View {
        /// The exact sensor id.
        sensor_id: SensorId,
        /// Start of the range, ms since 1970.
        from_ms: i64,
        /// End of the range, exclusive.
        to_ms: i64,
    },
    /// The first ids, in byte order, of sensors with rows that are not known to be stored.
    Ids {
        /// Only ids with this prefix; empty for all.
        prefix: String,
        /// Only ids after this one, in byte order.
        after: Option<String>,
        /// The maximum number of ids.
        limit: usize,
    },
    /// The data in memory that the catalogue may not know, of the first of these sensors (or of
    /// all) in byte order.
    Catalog {
        /// Only these sensors.
        sensor_ids: Option<Vec<SensorId>>,
        /// Only sensors whose id begins with one of these, which are sorted; none begins with
        /// another.
        prefixes: Vec<String>,
        /// Only sensors after this one.
        after: Option<SensorId>,
        /// The maximum number of sensors.
        limit: usize,
    },
    /// The newest state of these sensors.
    Snapshots(Vec<SensorId>),
    /// This shard's part of the fleet.
    Fleet {
        /// The catalogue counts sensors as silent whose last arrival is before this time (ms since
        /// 1970).
        silent_before_ms: i64,
    },
}

/// The response to the [`ShardQuery`] of the same name.
#[derive(Debug)]
pub enum ShardResponse {
    /// To [`ShardQuery::View`].
    View(UnstoredRows),
    /// To [`ShardQuery::Ids`], in byte order.
    Ids(Vec<SensorId>),
    /// To [`ShardQuery::Catalog`], ordered by sensor.
    Catalog(Vec<CatalogUpdate>),
    /// To [`ShardQuery::Snapshots`], in the order of the query.
    Snapshots(Vec<SensorSnapshot>),
    /// To [`ShardQuery::Fleet`].
    Fleet(ShardFleet),
}

/// A response, and whether it lacks readings that were sent before the query.
#[derive(Debug)]
pub struct QueryReply {
    /// The variant matches the query.
    pub response: ShardResponse,
    /// The shard was full and had not accepted all readings that were sent before the query.
    pub incomplete: bool,
}

/// The handle for queries to one shard. It does not keep the shard alive.
#[derive(Debug, Clone)]
pub struct QueryHandle {
    queries: mpsc::Sender<PendingQuery>,
    shard_batches_sent: Arc<AtomicU64>,
}

/// The error if a shard's task has ended.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("a shard task has ended")]
pub struct ShardClosed;

#[derive(Debug)]
pub(super) struct PendingQuery {
    query: ShardQuery,
    /// Shard batches that must be accepted first.
    after: u64,
    reply: oneshot::Sender<QueryReply>,
}

impl QueryHandle {
    /// The handle, and the worker for the shard's task. `shard_batches_sent` counts the shard
    /// batches sent to it.
    pub(super) fn new(shard_batches_sent: Arc<AtomicU64>) -> (QueryHandle, QueryWorker) {
        let (queries, rx) = mpsc::channel(QUERIES_MAX);
        (
            QueryHandle {
                queries,
                shard_batches_sent,
            },
            QueryWorker::new(rx),
        )
    }

    /// Sends a query and waits for the response. Callers put a timeout around it; cancelling is
    /// safe.
    ///
    /// # Errors
    /// The shard has ended.
    pub async fn query(&self, query: ShardQuery) -> Result<QueryReply, ShardClosed> {
        let (reply, response) = oneshot::channel();
        let after = self.shard_batches_sent.load(Ordering::Acquire);
        self.queries
            .send(PendingQuery {
                query,
                after,
                reply,
            })
            .await
            .map_err(|_| ShardClosed)?;
        response.await.map_err(|_| ShardClosed)
    }
}

enum RunningQuery {
    View {
        sensor_id: SensorId,
        from_ms: i64,
        to_ms: i64,
    },
    Ids(IdScan),
    Catalog(CatalogScan),
    SensorSnapshot {
        ids: VecDeque<SensorId>,
        snapshot: Vec<SensorSnapshot>,
    },
    Fleet(FleetScan),
}

/// The shard's side: one query at a time, step by step.
pub(super) struct QueryWorker {
    queries: mpsc::Receiver<PendingQuery>,
    /// The query that waits for shard batches.
    pending: Option<PendingQuery>,
    work: Option<(RunningQuery, oneshot::Sender<QueryReply>, bool)>,
    accepted: u64,
}

/// Sensor snapshots per step.
const SNAPSHOTS_STEP: usize = 16;

impl QueryWorker {
    fn new(queries: mpsc::Receiver<PendingQuery>) -> QueryWorker {
        QueryWorker {
            queries,
            pending: None,
            work: None,
            accepted: 0,
        }
    }

    pub(super) fn accepted_shard_batch(&mut self) {
        self.accepted += 1;
    }

    /// Waits until a step can be done; never returns if all handles are dropped.
    pub(super) async fn ready(&mut self) {
        if self.work.is_some() {
            return tokio::task::yield_now().await;
        }
        if self.pending.is_none() {
            match self.queries.recv().await {
                Some(query) => self.pending = Some(query),
                None => return std::future::pending().await,
            }
        }
        if self
            .pending
            .as_ref()
            .is_some_and(|query| query.after > self.accepted)
        {
            // The next shard batch wakes the task, which checks again then.
            std::future::pending().await
        }
    }

    /// Does one step of work, if there is any.
    pub(super) fn step(&mut self, shard: &Shard, now: Now) {
        if self.work.is_none() {
            self.begin(shard.full(), now);
        }
        let Some((work, reply, incomplete)) = self.work.take() else {
            return;
        };
        if reply.is_closed() {
            return;
        }
        match run_step(work, shard) {
            // An error means that the caller no longer waits.
            Ok(response) => drop(reply.send(QueryReply {
                response,
                incomplete,
            })),
            Err(work) => self.work = Some((work, reply, incomplete)),
        }
    }

    /// Starts the next query, if the shard batches before it are accepted or the shard is full.
    fn begin(&mut self, full: bool, now: Now) {
        let Some(query) = self.pending.take().or_else(|| self.queries.try_recv().ok()) else {
            return;
        };
        let incomplete = query.after > self.accepted;
        if incomplete && !full && !query.reply.is_closed() {
            self.pending = Some(query);
            return;
        }
        let work = match query.query {
            ShardQuery::View {
                sensor_id,
                from_ms,
                to_ms,
            } => RunningQuery::View {
                sensor_id,
                from_ms,
                to_ms,
            },
            ShardQuery::Ids {
                prefix,
                after,
                limit,
            } => RunningQuery::Ids(IdScan::new(prefix, after, limit)),
            ShardQuery::Catalog {
                sensor_ids,
                prefixes,
                after,
                limit,
            } => RunningQuery::Catalog(CatalogScan::new(sensor_ids, prefixes, after, limit)),
            ShardQuery::Snapshots(ids) => RunningQuery::SensorSnapshot {
                snapshot: Vec::with_capacity(ids.len()),
                ids: ids.into(),
            },
            ShardQuery::Fleet { silent_before_ms } => {
                RunningQuery::Fleet(FleetScan::new(now, silent_before_ms))
            }
        };
        self.work = Some((work, query.reply, incomplete));
    }
}

/// Does one step; returns the response, or the remaining work.
fn run_step(work: RunningQuery, shard: &Shard) -> Result<ShardResponse, RunningQuery> {
    match work {
        RunningQuery::View {
            sensor_id,
            from_ms,
            to_ms,
        } => Ok(ShardResponse::View(shard.view(
            stable_hash(&sensor_id),
            &sensor_id,
            from_ms,
            to_ms,
        ))),
        RunningQuery::Ids(mut scan) => match shard.scan_ids(&mut scan) {
            true => Ok(ShardResponse::Ids(scan.into_ids())),
            false => Err(RunningQuery::Ids(scan)),
        },
        RunningQuery::Catalog(mut scan) => match shard.scan_catalog(&mut scan) {
            true => Ok(ShardResponse::Catalog(scan.into_updates())),
            false => Err(RunningQuery::Catalog(scan)),
        },
        RunningQuery::SensorSnapshot {
            mut ids,
            mut snapshot,
        } => {
            for id in ids.drain(..ids.len().min(SNAPSHOTS_STEP)) {
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
