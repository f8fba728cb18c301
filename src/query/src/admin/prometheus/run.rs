//! Runs a query: parses it, finds its series, and evaluates it while they are read. Remote read has
//! its series read here too, and listings run here.
//!
//! Each query has a separate thread, with a stack for the deepest expression that the parser
//! accepts. So no query delays an acknowledgement by occupying a worker of the runtime, and the
//! system gives those that answer senders the larger share of the processor.
//!
//! The life of a query:
//! 1. It is parsed. One that needs no store and little time is answered immediately.
//! 2. It enters the [queue](super::queue) as a light one. When its turn comes, its series are found
//!    in the catalogue, which tells its [cost](crate::cost).
//! 3. If it is expensive, it waits for a place of the heavy lane, and gives way after each chunk:
//!    what it reads and computes in [`CHUNK`].
//! 4. It is refused if stored counts show that its samples do not fit into memory.
//! 5. It ends: with a result, an error, when its time is up, or when the client goes away. Then what
//!    it waits for is dropped, which ends its commands in MongoDB, and a computation stops at its
//!    next check, which is after one series or step. With its thread ends its place.
//!
//! Threads are limited by the connections of the port (`admin.connections`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures_util::TryStreamExt;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::timeout_at;
use tokio_util::sync::CancellationToken;

use super::answer::{PrometheusError, result_text, unrecorded_fields};
use super::queue::{Place, Queue, Turn};
use crate::admin::access::Reader;
use crate::cost::Cost;
use crate::priority;
use crate::promql::{
    Evaluated, Part, PromqlError, QueryTime, SelectorRequest, Source, Stop, evaluate, parse,
    requests, steps,
};
use crate::read::ReadService;
use crate::read::series::{FoundSeries, Missing, Parts};
use config::Promql;
use model::rfc3339;
use telemetry::metrics;

/// Bytes of the stack on which a query is parsed and evaluated; the system provides the pages that
/// are used.
pub(super) const STACK_BYTES: usize = 64 << 20;
/// Bytes of a query's text in the log.
const LOGGED_BYTES: usize = 500;
/// A heavy query works for about so long before others have their turn.
const CHUNK: Duration = Duration::from_millis(50);

/// What queries need.
#[derive(Clone)]
pub(super) struct Runner {
    pub(super) reads: Arc<ReadService>,
    pub(super) settings: Arc<Promql>,
    queue: Arc<Queue>,
    /// Since when queries run, ms since 1970.
    pub(super) started_ms: i64,
}

/// Stops the query's thread when the client goes away: its request is dropped then.
struct StopOnDrop {
    stop: Stop,
    token: CancellationToken,
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.stop.cancel();
        self.token.cancel();
    }
}

impl Runner {
    pub(super) fn new(reads: Arc<ReadService>, settings: Promql) -> Runner {
        let queue = Arc::new(Queue::new(settings.queries_max));
        Runner {
            started_ms: reads.now_ms(),
            reads,
            settings: Arc::new(settings),
            queue,
        }
    }

    /// Runs a query within its time limit, and formats its result, of at most `limit` series unless
    /// that is 0. `within` may shorten the time.
    pub(super) async fn run(
        &self,
        text: String,
        time: QueryTime,
        reader: Reader,
        within: Option<Duration>,
        limit: usize,
    ) -> Result<String, PrometheusError> {
        let shown = Shown::default();
        let _ = shown.set(text.clone());
        self.in_thread(reader, shown, within, move |work| {
            let evaluated = work.evaluate(&text, time)?;
            Ok(result_text(evaluated, time.start_ms, limit))
        })
        .await
    }

    /// Does work in a separate thread, and returns its result.
    pub(super) async fn in_thread<T: Send + 'static>(
        &self,
        reader: Reader,
        shown: Shown,
        within: Option<Duration>,
        job: impl FnOnce(&Work) -> Result<T, PrometheusError> + Send + 'static,
    ) -> Result<T, PrometheusError> {
        let limit = within
            .unwrap_or(self.settings.timeout)
            .min(self.settings.timeout);
        if limit.is_zero() {
            return Err(PrometheusError::Queued);
        }
        let begun = Instant::now();
        let deadline = tokio::time::Instant::now() + limit;
        let guard = StopOnDrop {
            stop: Stop::default(),
            token: CancellationToken::new(),
        };
        let (reply, answer) = oneshot::channel();
        let is_queued = Arc::new(AtomicBool::new(false));
        let runner = self.clone();
        let stop = guard.stop.clone();
        let token = guard.token.clone();
        let runtime = Handle::current();
        let queued = is_queued.clone();
        let thread = std::thread::Builder::new()
            .name("promql".to_owned())
            .stack_size(STACK_BYTES);
        let spawned = thread.spawn(move || {
            priority::lower_own(priority::QUERIES);
            let work = Work {
                reads: runner.reads,
                settings: runner.settings,
                reader,
                stop,
                token,
                runtime,
                queue: runner.queue,
                is_queued: queued,
                place: OnceLock::new(),
            };
            // An error means that the client has gone.
            let _ = reply.send(job(&work));
        });
        if let Err(error) = spawned {
            tracing::error!(%error, "cannot start a thread for a query");
            return Err(PrometheusError::Internal);
        }
        let result = match timeout_at(deadline, answer).await {
            Ok(Ok(result)) => result,
            // The thread has panicked.
            Ok(Err(_)) => Err(PrometheusError::Internal),
            Err(_) => {
                guard.stop.time_out();
                match is_queued.load(Ordering::Relaxed) {
                    true => Err(PrometheusError::Queued),
                    false => Err(PromqlError::TimedOut.into()),
                }
            }
        };
        if begun.elapsed() >= self.settings.slow {
            let query: String = shown
                .get()
                .map(String::as_str)
                .unwrap_or_default()
                .chars()
                .take(LOGGED_BYTES)
                .collect();
            tracing::warn!(
                query,
                seconds = begun.elapsed().as_secs_f64(),
                ok = result.is_ok(),
                "slow query"
            );
        }
        result
    }
}

/// The text of a query in the log, once it is known.
pub(super) type Shown = Arc<OnceLock<String>>;

/// What a query's thread needs.
pub(super) struct Work {
    pub(super) reads: Arc<ReadService>,
    pub(super) settings: Arc<Promql>,
    pub(super) reader: Reader,
    pub(super) stop: Stop,
    token: CancellationToken,
    runtime: Handle,
    queue: Arc<Queue>,
    /// Waits for its first turn, or for its first one in the heavy lane.
    is_queued: Arc<AtomicBool>,
    /// Once it has entered the queue.
    place: OnceLock<(Place, metrics::PromqlRunning)>,
}

impl Work {
    fn evaluate(&self, text: &str, time: QueryTime) -> Result<Evaluated, PrometheusError> {
        let parsed = parse(text).and_then(|query| {
            if time.step_ms.is_some() {
                query.check_steps()?;
            }
            Ok(query)
        });
        let query = parsed.map_err(|error| match error {
            PromqlError::BadData(problem) => {
                PrometheusError::bad_data(format!("invalid parameter \"query\": {problem}"))
            }
            other => other.into(),
        })?;
        let requests = requests(&query, time);
        let own_cost = Cost::of_steps(steps(&query, time));
        let mut source = match requests.is_empty() && !own_cost.is_heavy() {
            true => self.source(vec![], false),
            false => self.find(requests, own_cost)?,
        };
        let samples_max = self.settings.samples_max;
        let evaluated = evaluate(&query, time, &mut source, samples_max, &self.stop);
        let mut evaluated = evaluated.map_err(|error| source.failure(error))?;
        evaluated.warnings.extend(warnings(source.missing));
        Ok(evaluated)
    }

    /// Enters the queue, and waits for its turn.
    pub(super) fn enter(&self) -> Result<(), PrometheusError> {
        self.is_queued.store(true, Ordering::Relaxed);
        let (place, turn) = Place::enter(&self.queue, self.reader.owner());
        self.wait(turn)?;
        self.is_queued.store(false, Ordering::Relaxed);
        let _ = self.place.set((place, metrics::promql_running()));
        Ok(())
    }

    /// Finds the series of these requests by their stored names, once it is the query's turn. `more`: what it costs
    /// besides.
    pub(super) fn find(
        &self,
        requests: Vec<SelectorRequest>,
        more: Cost,
    ) -> Result<Loading<'_>, PrometheusError> {
        self.enter()?;
        let may_read = |sensor_id: &str| self.reader.may_read(sensor_id);
        let mut left = self.settings.series_max;
        let mut found = vec![];
        for request in requests {
            let series = self
                .reads
                .find_series(request.stored(), &mut left, &may_read);
            let series = self.until_stopped(async { Ok(series.await?) })?;
            let too_many = || PromqlError::too_many_series(self.settings.series_max);
            found.push(series.ok_or_else(too_many)?);
        }
        let costs = found.iter().map(|series| series.cost(&self.reads));
        let is_heavy = costs.fold(more, Cost::plus).is_heavy();
        if let Some((place, _)) = self.place.get().filter(|_| is_heavy) {
            self.is_queued.store(true, Ordering::Relaxed);
            self.wait(place.become_heavy())?;
            self.is_queued.store(false, Ordering::Relaxed);
        }
        for series in &found {
            let room = self.reads.check_room(series, self.settings.samples_max);
            self.until_stopped(async { Ok(room.await?) })?;
        }
        Ok(self.source(found, is_heavy))
    }

    fn source(&self, found: Vec<FoundSeries>, is_heavy: bool) -> Loading<'_> {
        let lacks_fields = found.iter().any(|series| series.lacks_fields);
        let parts = |series| self.reads.parts(series, self.settings.samples_max);
        Loading {
            work: self,
            parts: found.into_iter().map(parts).collect(),
            missing: Missing {
                fields: lacks_fields,
                ..Missing::default()
            },
            is_heavy,
            since: Instant::now(),
            failed: None,
        }
    }

    /// Waits for something, unless the client goes away or the time is up.
    pub(super) fn until_stopped<T>(
        &self,
        loading: impl Future<Output = Result<T, PrometheusError>>,
    ) -> Result<T, PrometheusError> {
        self.runtime.block_on(async {
            tokio::select! {
                loaded = loading => loaded,
                () = self.token.cancelled() => Err(self.stop.check().err().unwrap_or(PromqlError::Cancelled).into()),
            }
        })
    }

    /// Waits until the query may work.
    fn wait(&self, turn: Turn) -> Result<(), PrometheusError> {
        // The place, which would end the wait with an error, is held.
        self.until_stopped(async { turn.await.map_err(|_| PrometheusError::Internal) })
    }

    /// Gives way to other queries.
    fn give_way(&self) -> Result<(), PrometheusError> {
        match self.place.get() {
            Some((place, _)) => self.wait(place.give_way()),
            None => Ok(()),
        }
    }
}

/// The series of a query's selectors, while they are read.
pub(super) struct Loading<'a> {
    work: &'a Work,
    /// Of each selector.
    parts: Vec<Parts<'a>>,
    missing: Missing,
    is_heavy: bool,
    /// The beginning of the chunk.
    since: Instant,
    /// Why nothing more can be read.
    failed: Option<PrometheusError>,
}

impl Loading<'_> {
    /// The next part of a selector's series; `None` at the end.
    pub(super) fn read_part(&mut self, selector: usize) -> Result<Option<Part>, PrometheusError> {
        if self.is_heavy && self.since.elapsed() >= CHUNK {
            self.work.give_way()?;
            self.since = Instant::now();
        }
        let Some(parts) = self.parts.get_mut(selector) else {
            return Ok(None);
        };
        let next = self
            .work
            .until_stopped(async { Ok(parts.try_next().await?) });
        Ok(next?.map(|(part, missing)| {
            self.missing = self.missing.and(missing);
            part
        }))
    }

    /// The error of an evaluation: that of this source, if it has failed.
    pub(super) fn failure(&mut self, error: PromqlError) -> PrometheusError {
        self.failed.take().unwrap_or(error.into())
    }
}

impl Source for Loading<'_> {
    fn next(&mut self, selector: usize) -> Result<Option<Part>, PromqlError> {
        self.read_part(selector).map_err(|error| {
            self.failed = Some(error);
            PromqlError::Unread
        })
    }
}

/// What an answer that lacks something tells.
fn warnings(missing: Missing) -> impl Iterator<Item = String> {
    let recent = "readings that were acknowledged just now may be missing";
    let removed = missing.removed_until_ms.map(rfc3339);
    let expired = missing.expired_until_ms.map(rfc3339);
    [
        missing.recent.then(|| recent.to_owned()),
        removed.map(|until| format!("readings before {until} were removed")),
        expired.map(|until| format!("hours before {until} were removed (store.retention)")),
        missing.fields.then(unrecorded_fields),
    ]
    .into_iter()
    .flatten()
}
