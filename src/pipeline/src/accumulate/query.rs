//! Queries to a shard, apart from the flow of readings.
//!
//! The shard's own task answers them between shard batches: one step per shard batch, so that
//! neither delays the other, and immediately if there is nothing else to do. A query is answered
//! after all shard batches that were sent before it ([`QueryHandle::query`] counts them). A full
//! shard accepts no shard batches; it then answers without waiting for them, and marks the answer
//! as `incomplete`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{mpsc, oneshot};

use super::state::Shard;
use model::Now;

/// Queries in one shard's queue; further callers wait.
const QUERIES_MAX: usize = 16;

/// A question about what a shard has in memory, answered in short steps.
pub trait ShardQuery: Send + 'static {
    /// The answer.
    type Answer: Send + 'static;

    /// Does one step; returns the answer at the end.
    fn step(&mut self, shard: &Shard, now: Now) -> Option<Self::Answer>;
}

/// An answer, and whether it lacks readings that were sent before the query.
#[derive(Debug)]
pub struct QueryReply<T> {
    /// The answer to the query.
    pub answer: T,
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

/// Does one step, and replies at the end; the flag is that of [`PendingQuery`]. `false`: there is
/// more to do.
type Step = dyn FnMut(&Shard, Now, bool) -> bool + Send;

struct PendingQuery {
    /// Shard batches that must be accepted first.
    after: u64,
    /// Not all of them were.
    incomplete: bool,
    step: Box<Step>,
}

impl QueryHandle {
    /// The handle, and the worker for the shard's task. `shard_batches_sent` counts the shard
    /// batches sent to it.
    pub(super) fn new(shard_batches_sent: Arc<AtomicU64>) -> (QueryHandle, QueryWorker) {
        let (queries, rx) = mpsc::channel(QUERIES_MAX);
        let handle = QueryHandle {
            queries,
            shard_batches_sent,
        };
        let worker = QueryWorker {
            queries: rx,
            pending: None,
            running: None,
            accepted: 0,
        };
        (handle, worker)
    }

    /// Sends a query and waits for the answer. Callers put a timeout around it; cancelling is safe.
    ///
    /// # Errors
    /// The shard has ended.
    pub async fn query<Q: ShardQuery>(
        &self,
        mut query: Q,
    ) -> Result<QueryReply<Q::Answer>, ShardClosed> {
        let (reply, replied) = oneshot::channel();
        let mut reply = Some(reply);
        let step = move |shard: &Shard, now, incomplete| {
            // After an error the caller no longer waits.
            if reply.as_ref().is_none_or(oneshot::Sender::is_closed) {
                return true;
            }
            let Some(answer) = query.step(shard, now) else {
                return false;
            };
            if let Some(reply) = reply.take() {
                let _ = reply.send(QueryReply { answer, incomplete });
            }
            true
        };
        let pending = PendingQuery {
            after: self.shard_batches_sent.load(Ordering::Acquire),
            incomplete: false,
            step: Box::new(step),
        };
        self.queries.send(pending).await.map_err(|_| ShardClosed)?;
        replied.await.map_err(|_| ShardClosed)
    }
}

/// The shard's side: one query at a time, step by step.
pub(super) struct QueryWorker {
    queries: mpsc::Receiver<PendingQuery>,
    /// The query that waits for shard batches.
    pending: Option<PendingQuery>,
    running: Option<PendingQuery>,
    accepted: u64,
}

impl QueryWorker {
    pub(super) fn accepted_shard_batch(&mut self) {
        self.accepted += 1;
    }

    /// Waits until a step can be done; never returns if all handles are dropped.
    pub(super) async fn ready(&mut self) {
        if self.running.is_some() {
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
        if self.running.is_none() {
            self.begin(shard.full());
        }
        if let Some(query) = &mut self.running
            && (query.step)(shard, now, query.incomplete)
        {
            self.running = None;
        }
    }

    /// Starts the next query, if the shard batches before it are accepted or the shard is full.
    fn begin(&mut self, full: bool) {
        let next = self.pending.take().or_else(|| self.queries.try_recv().ok());
        let Some(mut query) = next else { return };
        query.incomplete = query.after > self.accepted;
        if query.incomplete && !full {
            self.pending = Some(query);
        } else {
            self.running = Some(query);
        }
    }
}
