//! Runs a query: parses it, loads its series and evaluates it. Remote read has its series loaded
//! here too, and listings run here.
//!
//! Each query has a separate thread, with a stack for the deepest expression that the parser
//! accepts. So no query delays an acknowledgement by occupying a worker of the runtime, and the
//! system gives those that answer senders the larger share of the processor. The thread holds one
//! of `promql.queries_max` permits until it has ended, also if the client goes away or the time is
//! up: then it stops at its next check, which is after one series or step.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout_at;
use tokio_util::sync::CancellationToken;

use super::answer::{PrometheusError, result_text, unrecorded_fields};
use crate::admin::access::Reader;
use crate::priority;
use crate::promql::{
    Evaluated, PromqlError, QueryTime, SelectedSeries, SelectorRequest, Stop, evaluate, parse,
    requests,
};
use crate::read::ReadService;
use crate::read::series::{Missing, SelectLimits};
use config::Promql;
use model::rfc3339;
use telemetry::metrics;

/// Bytes of the stack on which a query is parsed and evaluated; the system provides the pages that
/// are used.
pub(super) const STACK_BYTES: usize = 64 << 20;
/// Bytes of a query's text in the log.
const LOGGED_BYTES: usize = 500;

/// What queries need.
#[derive(Clone)]
pub(super) struct Runner {
    pub(super) reads: Arc<ReadService>,
    pub(super) settings: Arc<Promql>,
    turns: Arc<Semaphore>,
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
        let turns = Arc::new(Semaphore::new(settings.queries_max));
        Runner {
            started_ms: reads.now_ms(),
            reads,
            settings: Arc::new(settings),
            turns,
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
        self.in_thread(shown, within, move |work| {
            let evaluated = work.evaluate(&text, time, &reader)?;
            Ok(result_text(evaluated, time.start_ms, limit))
        })
        .await
    }

    /// Does work in a separate thread, and returns its result.
    pub(super) async fn in_thread<T: Send + 'static>(
        &self,
        shown: Shown,
        within: Option<Duration>,
        job: impl FnOnce(&Work) -> Result<T, PrometheusError> + Send + 'static,
    ) -> Result<T, PrometheusError> {
        let limit = within
            .unwrap_or(self.settings.timeout)
            .min(self.settings.timeout);
        let begun = Instant::now();
        let deadline = tokio::time::Instant::now() + limit;
        let permit = match timeout_at(deadline, self.turns.clone().acquire_owned()).await {
            Ok(Ok(permit)) if !limit.is_zero() => permit,
            _ => return Err(PrometheusError::Queued),
        };
        let guard = StopOnDrop {
            stop: Stop::default(),
            token: CancellationToken::new(),
        };
        let (reply, answer) = oneshot::channel();
        let work = Work {
            reads: self.reads.clone(),
            settings: self.settings.clone(),
            stop: guard.stop.clone(),
            token: guard.token.clone(),
            runtime: Handle::current(),
        };
        let thread = std::thread::Builder::new()
            .name("promql".to_owned())
            .stack_size(STACK_BYTES);
        let spawned = thread.spawn(move || {
            priority::lower_own(priority::QUERIES);
            let _running = metrics::promql_running();
            // An error means that the client has gone.
            let _ = reply.send(job(&work));
            drop(permit);
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
                Err(PromqlError::TimedOut.into())
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
    pub(super) stop: Stop,
    token: CancellationToken,
    runtime: Handle,
}

impl Work {
    fn evaluate(
        &self,
        text: &str,
        time: QueryTime,
        reader: &Reader,
    ) -> Result<Evaluated, PrometheusError> {
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
        let (data, missing) = self.select(&requests(&query, time), reader)?;
        let mut evaluated = evaluate(&query, time, data, self.settings.samples_max, &self.stop)?;
        if missing.recent {
            evaluated
                .warnings
                .push("readings that were acknowledged just now may be missing".to_owned());
        }
        if let Some(until) = missing.removed_until_ms.map(rfc3339) {
            evaluated
                .warnings
                .push(format!("readings before {until} were removed"));
        }
        if let Some(until) = missing.expired_until_ms.map(rfc3339) {
            evaluated.warnings.push(format!(
                "hours before {until} were removed (store.retention)"
            ));
        }
        if missing.fields {
            evaluated.warnings.push(unrecorded_fields());
        }
        Ok(evaluated)
    }

    /// Loads the series of each request, and says what may be missing.
    pub(super) fn select(
        &self,
        all: &[SelectorRequest],
        reader: &Reader,
    ) -> Result<(Vec<Vec<SelectedSeries>>, Missing), PrometheusError> {
        let all: Vec<_> = all.iter().map(SelectorRequest::stored).collect();
        self.until_stopped(self.load(&all, reader))
    }

    /// Waits for what is loaded, unless the client goes away or the time is up.
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

    async fn load(
        &self,
        requests: &[SelectorRequest],
        reader: &Reader,
    ) -> Result<(Vec<Vec<SelectedSeries>>, Missing), PrometheusError> {
        let limits = SelectLimits::new(self.settings.series_max, self.settings.samples_max);
        let may_read = |sensor_id: &str| reader.may_read(sensor_id);
        let mut all = vec![];
        let mut missing = Missing::default();
        for request in requests {
            let (series, of_series) = self.reads.select(request, &limits, &may_read).await?;
            missing = missing.and(of_series);
            all.push(series);
        }
        Ok((all, missing))
    }
}
