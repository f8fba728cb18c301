//! Read: what was acknowledged, shown at once and once. Nothing here is on the way of a reading.
//!
//! **The promise.** A reading that was acknowledged before the question is in the answer exactly once, whether it waits in
//! a shard, is on its way to the store or is stored; unless the answer says `complete: false`.
//!
//! **How.** Three looks, in this order, each at a moment of its own:
//! 1. *How far the router is.* With the journal, a sender is acknowledged before its readings are in a shard. So the end
//!    of what is acknowledged is noted, and the question waits until the router has handed that over ([`WAIT_MAX`]; less
//!    where nothing moves). Where it has not, and where a shard is too full to take it in, `complete` is false. With
//!    `ack = "stored"` whatever is acknowledged is stored, and nothing is waited for.
//! 2. *The sensor's shard*, behind all shard batches that were handed over to it: a copy of the rows that are not known to be
//!    stored, waiting and in flight ([`crate::accumulate::ask`], limited in bytes).
//! 3. *The store*, as a majority has it. Rows leave memory only when the store has said `JobResult`, so whatever was not in the
//!    shard in step 2 is seen here.
//!
//! So nothing is missing. What may be seen twice is a row that was in memory in step 2 and in the store in step 3: in
//! flight, of a lost answer, refused as a conflict, replayed after a crash, or simply written in between. Which of them
//! are stored is decided by the bucket itself, with the very code that decides it after a lost answer
//! ([`crate::accumulate::bucket`]): identity for readings with a time of their own; position (or, of measurements, what
//! this process knows to be its own) for those with the time of receipt, which may be equal and yet several. The stored
//! versions need not be those that the shard believed in, so nothing has to be asked again.
//!
//! In a time-series bucket measurements come before the document that counts them. So the document tells the form only,
//! and its summary is used where nothing of the bucket is in memory: then both were stored before the shard was asked.
//! Otherwise the measurements are added up. A bucket without a document is looked for among the measurements as well.
//!
//! **Limits.** [`READS_MAX`] questions at once, the others wait for a second and are told that it is busy; a limit of time
//! for each ([`TIME_MAX`]); 16 MiB of rows copied from a shard, 32 MiB of stored readings, then the answer ends early with
//! a cursor. The store being away costs an error, never a wait without end.

pub mod fleet;
pub mod hours;
pub mod merge;
pub mod sensors;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};

use crate::accumulate::QueryHandle;
use crate::accumulate::query::{QueryReply, ShardQuery, ShardResponse};
use crate::accumulate::state::snapshot::UnstoredRows;
use crate::journal::JournalHandle;
use crate::model::{BucketStart, Clock, SensorId, Span, stable_hash};
use crate::route::shard_of;
use crate::store::reading::{DeadLetterQuery, MeasurementQuery, MeasurementResults, PageQuery, StoredDeadLetter};
use crate::store::{Store, StoreError};
use fleet::FleetCache;
use hours::{Hour, Hours, OpenHour};
use merge::{MergedReadings, ReadingMerge, Window};

/// Questions that are worked on at once.
const READS_MAX: usize = 8;
/// Answers with readings that are being sent, of some MiB each.
const ANSWERS_MAX: usize = 64;
/// How long others wait for their turn.
const TURN_MAX: Duration = Duration::from_secs(1);
/// For one question.
const TIME_MAX: Duration = Duration::from_secs(10);
/// How long the router is waited for, and how long where it does not move at all.
const WAIT_MAX: Duration = Duration::from_secs(2);
const STUCK_MAX: Duration = Duration::from_millis(250);
/// For the answer of a shard.
const SHARD_MAX: Duration = Duration::from_secs(3);
/// Measurements of a bucket that are added up at once.
const MEASUREMENTS_MAX: usize = 100_000;
/// Fields of all buckets in one answer, looked at between shard batches of 8 MiB of pages: about 150 MB with usual names.
const FIELDS_MAX: usize = 1 << 20;

/// Why a question has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The store does not answer, or not well.
    #[error("the store cannot be read: {0}")]
    Store(#[from] StoreError),
    /// It took too long.
    #[error("no answer within {} s; ask for less, or try again", TIME_MAX.as_secs())]
    TimedOut,
    /// Too many ask.
    #[error("too many questions at once; try again")]
    Busy,
    /// A shard does not answer.
    #[error("the service is stopping or has failed")]
    Gone,
}

/// An answer, and whether all that was acknowledged before the question is in it.
#[derive(Debug, Clone)]
pub struct QueryResult<T> {
    /// The answer.
    pub answer: T,
    /// False where the journal holds acknowledged readings that are not in memory yet.
    pub complete: bool,
}

/// The handle for questions.
pub struct ReadService {
    shards: Vec<QueryHandle>,
    journal: Option<JournalHandle>,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    span: Span,
    turns: Semaphore,
    answers: Arc<Semaphore>,
    fleet: FleetCache,
}

impl ReadService {
    /// `journal`: where senders are acknowledged by it.
    pub fn new(
        shards: Vec<QueryHandle>,
        journal: Option<JournalHandle>,
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        span: Span,
    ) -> ReadService {
        let (turns, fleet) = (Semaphore::new(READS_MAX), FleetCache::default());
        let answers = Arc::new(Semaphore::new(ANSWERS_MAX));
        ReadService { shards, journal, store, clock, span, turns, answers, fleet }
    }

    /// `bucket.span`.
    pub fn span(&self) -> Span {
        self.span
    }

    /// Now, in milliseconds since 1970.
    pub fn now_ms(&self) -> i64 {
        self.clock.now().wall_ms
    }

    /// The right to hold an answer until it is sent; whoever receives slowly holds it for long.
    ///
    /// # Errors
    /// Too many are held.
    pub fn sending(&self) -> Result<OwnedSemaphorePermit, ReadError> {
        self.answers.clone().try_acquire_owned().map_err(|_| ReadError::Busy)
    }

    /// The readings of a sensor in a window, in order.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn readings(&self, sensor_id: &str, window: Window) -> Result<QueryResult<MergedReadings>, ReadError> {
        self.within(self.gather(sensor_id.into(), window)).await
    }

    /// The summaries of the sensor's buckets that overlap a span of time (ms since 1970, the end exclusive).
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn hours(&self, sensor_id: &str, from_ms: i64, to_ms: i64) -> Result<QueryResult<Hours>, ReadError> {
        self.within(self.add_up(sensor_id.into(), from_ms, to_ms)).await
    }

    /// Dead letters, the one received last first.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn dead_letters(&self, query: &DeadLetterQuery) -> Result<Vec<StoredDeadLetter>, ReadError> {
        self.within(async { Ok(self.store.find_dead_letters(query).await?) }).await
    }

    /// Waits for a turn, and no longer than the time there is.
    async fn within<T>(&self, query: impl Future<Output = Result<T, ReadError>>) -> Result<T, ReadError> {
        let _turn = self.turn().await?;
        timeout(TIME_MAX, query).await.unwrap_or(Err(ReadError::TimedOut))
    }

    async fn turn(&self) -> Result<SemaphorePermit<'_>, ReadError> {
        match timeout(TURN_MAX, self.turns.acquire()).await {
            Ok(Ok(turn)) => Ok(turn),
            _ => Err(ReadError::Busy),
        }
    }

    /// Whether everything that was acknowledged until now is handed over to the shards; waits a little for it.
    async fn caught_up(&self) -> bool {
        let Some(journal) = &self.journal else { return true };
        let target = journal.acknowledged_to();
        let (mut seen, begun) = (journal.handed_to(), Instant::now());
        let (mut moved, mut pause) = (begun, Duration::from_micros(200));
        while seen < target {
            if begun.elapsed() > WAIT_MAX || moved.elapsed() > STUCK_MAX {
                return false;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(10));
            let now = journal.handed_to();
            if now > seen {
                (seen, moved) = (now, Instant::now());
            }
        }
        true
    }

    async fn query(&self, shard: usize, query: ShardQuery) -> Result<QueryReply, ReadError> {
        let asked = timeout(SHARD_MAX, self.shards[shard].query(query)).await;
        asked.map_err(|_| ReadError::Busy)?.map_err(|_| ReadError::Gone)
    }

    async fn view(
        &self,
        sensor_id: &SensorId,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<QueryResult<UnstoredRows>, ReadError> {
        let caught_up = self.caught_up().await;
        let shard = shard_of(stable_hash(sensor_id), self.shards.len());
        let answered = self.query(shard, ShardQuery::View { sensor_id: sensor_id.clone(), from_ms, to_ms }).await?;
        match answered.response {
            ShardResponse::View(answer) => Ok(QueryResult { answer, complete: caught_up && !answered.behind }),
            _ => Err(ReadError::Gone),
        }
    }

    async fn gather(&self, sensor_id: SensorId, window: Window) -> Result<QueryResult<MergedReadings>, ReadError> {
        let (from_ms, to_ms) = (window.begin_ms(), window.to_ms);
        if from_ms >= to_ms {
            return Ok(QueryResult { answer: MergedReadings::default(), complete: true });
        }
        let QueryResult { answer: view, complete } = self.view(&sensor_id, from_ms, to_ms).await?;
        let mut gather = ReadingMerge::new(window, self.span, view);
        let mut query = PageQuery {
            sensor_id: sensor_id.clone(),
            from: self.span.floor(from_ms),
            to_ms,
            after: None,
            readings_from_ms: Some(from_ms),
        };
        let until_ms = loop {
            let found = self.store.pages(&query).await?;
            for (start, page) in &found.pages {
                gather.page(*start, page);
            }
            if found.next.is_none() {
                break to_ms;
            }
            if gather.is_enough() {
                break gather.whole_until_ms();
            }
            query.after = found.next;
        };
        let limit = window.limit + window.after.map_or(0, |after| after.given as usize) + 1;
        let query = MeasurementQuery { sensor_id, from_ms, to_ms: until_ms, limit };
        let measured = match from_ms < until_ms {
            true => self.store.measurements(&query).await?,
            false => MeasurementResults { until_ms, ..MeasurementResults::default() },
        };
        Ok(QueryResult { answer: gather.finish(until_ms, &measured), complete })
    }

    async fn add_up(&self, sensor_id: SensorId, from_ms: i64, to_ms: i64) -> Result<QueryResult<Hours>, ReadError> {
        if from_ms >= to_ms {
            return Ok(QueryResult { answer: Hours::default(), complete: true });
        }
        let first = self.span.floor(from_ms);
        let end_ms = self.span.end(self.span.floor(to_ms - 1));
        let QueryResult { answer: view, complete } = self.view(&sensor_id, first.0, end_ms).await?;
        let complete = complete && view.cut_ms.is_none();
        let open: Vec<OpenHour> = view.buckets.into_iter().map(OpenHour::new).collect();
        let is_open = |start: BucketStart| open.binary_search_by_key(&start, OpenHour::start).is_ok();
        let mut hours = Hours::new();
        let mut after = None;
        loop {
            let query = PageQuery { sensor_id: sensor_id.clone(), from: first, to_ms, after, readings_from_ms: None };
            let found = self.store.pages(&query).await?;
            let held: usize = hours.values().map(|hour| hour.summary.len()).sum();
            for (start, page) in found.pages.iter().filter(|(start, _)| !is_open(*start)) {
                let hour = hours.entry(*start).or_default();
                if held < FIELDS_MAX { hour.add_page(page) } else { hour.add_count(page) }
            }
            after = found.next;
            if after.is_none() {
                break;
            }
        }
        for bucket in open {
            let (start, hour) = self.add_up_open(&sensor_id, bucket).await?;
            hours.insert(start, hour);
        }
        hours.retain(|_, hour| hour.count > 0);
        Ok(QueryResult { answer: hours, complete })
    }

    /// A bucket of which some is in memory: its pages whole, or its measurements.
    async fn add_up_open(&self, sensor_id: &SensorId, mut bucket: OpenHour) -> Result<(BucketStart, Hour), ReadError> {
        let start = bucket.start();
        let mut query = PageQuery {
            sensor_id: sensor_id.clone(),
            from: start,
            to_ms: start.0 + 1,
            after: None,
            readings_from_ms: Some(i64::MIN),
        };
        loop {
            let found = self.store.pages(&query).await?;
            for (_, page) in &found.pages {
                bucket.add_page(page);
            }
            query.after = found.next;
            if found.next.is_none() {
                break;
            }
        }
        let (mut from_ms, to_ms) = (start.0, self.span.end(start));
        while bucket.is_measured() && from_ms < to_ms {
            let sensor_id = sensor_id.clone();
            let query = MeasurementQuery { sensor_id, from_ms, to_ms, limit: MEASUREMENTS_MAX };
            let found = self.store.measurements(&query).await?;
            bucket.add_measurements(&found.rows);
            from_ms = found.until_ms;
        }
        Ok(bucket.finish())
    }
}

impl std::fmt::Debug for ReadService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ReadService")
    }
}
