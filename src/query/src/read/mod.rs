//! Read: returns every acknowledged reading exactly once, stored or not. Nothing here is part of
//! the ingest pipeline.
//!
//! **Guarantee.** A reading that was acknowledged before the query is in the answer exactly once,
//! whether it is pending in a shard, in flight or stored; unless the answer has `complete: false`.
//!
//! **How.** Three steps, in this order, each at its own point in time:
//! 1. *Position of the router.* With the journal, a sender is acknowledged before its readings are
//!    in a shard. So the end of the acknowledged entries is noted, and the query waits until the
//!    router has sent them to the shards ([`WAIT_MAX`]; less if nothing moves). If it has not, or
//!    if a shard is too full to accept them, `complete` is false. With `ack = "stored"`
//!    acknowledged readings are stored, and there is no wait.
//! 2. *The sensor's shard*, after all shard batches that were sent to it: a copy of the rows that
//!    are not known to be stored, pending and in flight ([`pipeline::accumulate::query`], limited in
//!    bytes).
//! 3. *The store*: data that a majority has; measurements as of one point in time. Rows leave
//!    memory only when the store has confirmed them, so a reading that was not in the shard in step
//!    2 is found here.
//!
//! So nothing is missing. A row may be found twice if it was in memory in step 2 and in the store
//! in step 3: in flight, with a lost answer, refused as a conflict, replayed after a crash, or
//! simply written in between. The bucket itself decides which rows are stored, with the same code
//! as after a lost answer ([`pipeline::accumulate::bucket`]): by identity for readings with their own
//! time; by position (for measurements, by the list of this process's own writes) for those with
//! the receipt time, of which several may be equal. The stored versions need not match those that
//! the shard expected, so no query has to be repeated.
//!
//! In a time-series bucket measurements are written before the document that counts them. So the
//! document only determines the storage mode, and its summary is used only if nothing of the bucket
//! is in memory: then both were stored before the shard was queried. Otherwise the measurements are
//! added up. A bucket without a document is also searched for among the measurements.
//!
//! **Limits.** `admin.queries_max` queries run concurrently; others wait for a second and then fail
//! as busy. Each has a time limit ([`TIME_MAX`]). An answer copies up to 16 MiB of rows from a
//! shard and 32 MiB of stored readings, then ends early with a cursor. An unavailable store causes
//! an error, never an unlimited wait.

pub mod catalog;
mod columns;
pub mod days;
pub mod fleet;
pub mod hours;
pub mod merge;
mod outage;
pub(crate) mod rich_hours;
mod room;
mod samples;
pub mod selector;
pub mod sensors;
pub mod series;
pub mod silence;
mod sketches;
mod windows;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};

use ::columns::{Line, Weighting, Weightings};
use fleet::FleetCache;
use hours::{Hour, Hours, OpenHour};
use journal::JournalHandle;
use merge::{ANSWER_BYTES_MAX, MergedReadings, ReadingMerge, Window};
use model::{BucketStart, Clock, SensorId, Span, Zone, stable_hash};
use outage::Outage;
use pipeline::accumulate::QueryHandle;
use pipeline::accumulate::query::{QueryReply, ShardQuery};
use pipeline::accumulate::state::snapshot::{UnstoredRows, ViewQuery};
use pipeline::rollup::{DayKinds, RollupView};
use pipeline::route::aliases::AliasView;
use pipeline::route::shard_of;
use silence::Silence;
use store::reading::{
    DeadLetterQuery, MeasurementQuery, MeasurementResults, PageQuery, StoredDeadLetter,
};
use store::{Store, StoreError};

/// How long a query waits for its turn.
const TURN_MAX: Duration = Duration::from_secs(1);
/// Time limit of one query.
const TIME_MAX: Duration = Duration::from_secs(10);
/// How long to wait for the router, and how long if it does not advance.
const WAIT_MAX: Duration = Duration::from_secs(2);
const STUCK_MAX: Duration = Duration::from_millis(250);
/// Time limit for the response of a shard.
const SHARD_MAX: Duration = Duration::from_secs(3);
/// Measurements of a bucket that are loaded in one request.
const MEASUREMENTS_MAX: usize = 100_000;
/// Fields of all buckets in one answer, checked between store responses of 8 MiB of pages: about
/// 150 MB with usual names.
const FIELDS_MAX: usize = 1 << 20;

/// Why a query failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The store did not answer, or with an error. The driver's text is for the log.
    #[error("{}", of_store(.0))]
    Store(#[from] StoreError),
    /// The query exceeded its time limit.
    #[error("no answer within {} s; request less, or try again", TIME_MAX.as_secs())]
    TimedOut,
    /// The catalogue has not been read yet.
    #[error(
        "silent sensors are not known yet: the catalogue of sensors is being read; try again later"
    )]
    NotKnownYet,
    /// A list in another order than that of the ids would be of too many sensors.
    #[error(
        "more than {} sensors match, which are only listed forward in the order of their ids; add \
         prefix or tag",
        sensors::SORTED_MAX
    )]
    TooManySensors,
    /// The fields of the hours that are asked for would be too many.
    #[error(
        "the answer would have too many fields; ask for fewer hours, or for one field with `field`"
    )]
    TooManyFields,
    /// Too many concurrent queries, or answers that are being sent.
    #[error("too many queries, or answers that are still being sent; try again later")]
    Busy,
    /// A shard's task has ended.
    #[error("the service is stopping or has failed")]
    Gone,
}

fn of_store(error: &StoreError) -> String {
    match error.is_away() {
        true => "MongoDB does not answer; queries are answered again when it does".to_owned(),
        false => format!("MongoDB answered with an error: {error}"),
    }
}

/// An answer, and whether it contains every reading that was acknowledged before the query.
#[derive(Debug, Clone)]
pub struct QueryResult<T> {
    /// The data, from memory and store.
    pub answer: T,
    /// False if the journal has acknowledged readings that are not in memory yet.
    pub complete: bool,
}

/// The handle for queries.
pub struct ReadService {
    shards: Vec<QueryHandle>,
    journal: Option<JournalHandle>,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    span: Span,
    turns: Semaphore,
    answers: Arc<Semaphore>,
    answers_max: usize,
    fleet: FleetCache,
    zone: Zone,
    /// One per shard if days are computed, else empty.
    rollups: Vec<RollupView>,
    /// What is computed of a day.
    kinds: DayKinds,
    /// How values are weighted by time.
    weightings: Weightings,
    /// How long buckets are kept after their end; `None`: forever.
    hours_kept: Option<Duration>,
    silence: Arc<Silence>,
    aliases: AliasView,
    outage: Outage,
}

impl ReadService {
    /// `journal`: with `ack = "journal"`, else `None`. `queries_max` and `answers_max`: see
    /// [`config::Admin`].
    pub fn new(
        shards: Vec<QueryHandle>,
        journal: Option<JournalHandle>,
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        span: Span,
        (queries_max, answers_max): (usize, usize),
    ) -> ReadService {
        let turns = Semaphore::new(queries_max);
        let fleet = FleetCache::default();
        let answers = Arc::new(Semaphore::new(answers_max));
        let zone = Zone::UTC;
        let rollups = vec![];
        let silence = Arc::new(Silence::new(Duration::MAX, Duration::MAX));
        ReadService {
            shards,
            journal,
            store,
            clock,
            span,
            turns,
            answers,
            answers_max,
            fleet,
            zone,
            rollups,
            kinds: DayKinds::default(),
            weightings: Weightings::from(Weighting {
                line: Line::Straight,
                gap_max_ms: i64::MAX,
            }),
            hours_kept: None,
            silence,
            aliases: AliasView::default(),
            outage: Outage::default(),
        }
    }

    /// The same service, which knows silent sensors.
    #[must_use]
    pub fn with_silence(self, silence: Arc<Silence>) -> ReadService {
        ReadService { silence, ..self }
    }

    /// The same service, which knows former ids of sensors.
    #[must_use]
    pub fn with_aliases(self, aliases: AliasView) -> ReadService {
        ReadService { aliases, ..self }
    }

    /// The sensor for which readings with this id count now, if not that of the id.
    pub(crate) fn renamed_to(&self, id: &str) -> Option<SensorId> {
        self.aliases.renamed_to(id)
    }

    /// The same service with days of this zone. `rollups`: one per shard if any of `kinds` is
    /// computed, else empty. `hours_kept`: `store.retention`.
    #[must_use]
    pub fn with_rollup(
        self,
        zone: Zone,
        rollups: Vec<RollupView>,
        kinds: DayKinds,
        hours_kept: Option<Duration>,
    ) -> ReadService {
        ReadService {
            zone,
            rollups,
            kinds,
            hours_kept,
            ..self
        }
    }

    /// `bucket.span`: the span of the buckets in [`ReadService::hours`].
    pub fn span(&self) -> Span {
        self.span
    }

    /// Buckets that end by this time (ms since 1970) have expired, and the store removes them.
    fn expired_until_ms(&self) -> i64 {
        self.hours_kept.map_or(i64::MIN, |kept| {
            let kept_ms = i64::try_from(kept.as_millis()).unwrap_or(i64::MAX);
            self.span.floor(self.now_ms().saturating_sub(kept_ms)).0
        })
    }

    /// The current time of the service's clock, ms since 1970.
    pub fn now_ms(&self) -> i64 {
        self.clock.now().wall_ms
    }

    /// A permit for an answer that is in memory until it is sent; a slow client holds it for long.
    /// One of more than [`ANSWER_BYTES_MAX`] counts as several.
    ///
    /// # Errors
    /// Too many answers are being sent.
    pub fn sending(&self, bytes: usize) -> Result<OwnedSemaphorePermit, ReadError> {
        let answers = bytes.div_ceil(ANSWER_BYTES_MAX).max(1);
        self.answers
            .clone()
            .try_acquire_many_owned(u32::try_from(answers).unwrap_or(u32::MAX))
            .map_err(|_| ReadError::Busy)
    }

    /// Bytes of the largest answer that can be sent, alone.
    pub(crate) fn sending_bytes_max(&self) -> usize {
        self.answers_max * ANSWER_BYTES_MAX
    }

    /// The readings of a sensor in a window, in the order of [`merge`].
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn readings(
        &self,
        sensor_id: &str,
        window: Window,
    ) -> Result<QueryResult<MergedReadings>, ReadError> {
        self.within(self.gather(sensor_id.into(), window)).await
    }

    /// The summaries of the sensor's buckets that overlap a time range (ms since 1970, end
    /// exclusive).
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn hours(
        &self,
        sensor_id: &str,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<QueryResult<Hours>, ReadError> {
        self.within(self.add_up(sensor_id.into(), from_ms, to_ms))
            .await
    }

    /// Dead letters, newest first.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn dead_letters(
        &self,
        query: &DeadLetterQuery,
    ) -> Result<Vec<StoredDeadLetter>, ReadError> {
        self.within(async { Ok(self.store.find_dead_letters(query).await?) })
            .await
    }

    /// Waits for a turn, then runs the query with its time limit.
    async fn within<T>(
        &self,
        query: impl Future<Output = Result<T, ReadError>>,
    ) -> Result<T, ReadError> {
        let _turn = self.turn().await?;
        let attempt = self.outage.check()?;
        let result = timeout(TIME_MAX, query).await;
        let result = result.unwrap_or(Err(ReadError::TimedOut));
        attempt.end(&result);
        result
    }

    async fn turn(&self) -> Result<SemaphorePermit<'_>, ReadError> {
        match timeout(TURN_MAX, self.turns.acquire()).await {
            Ok(Ok(turn)) => Ok(turn),
            _ => Err(ReadError::Busy),
        }
    }

    /// Whether all entries that are acknowledged now were sent to the shards; waits a little for
    /// it.
    async fn caught_up(&self) -> bool {
        let Some(journal) = &self.journal else {
            return true;
        };
        let target = journal.acknowledged_to();
        let mut seen = journal.handed_to();
        let begun = Instant::now();
        let mut moved = begun;
        let mut pause = Duration::from_micros(200);
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

    async fn query<Q: ShardQuery>(
        &self,
        shard: usize,
        query: Q,
    ) -> Result<QueryReply<Q::Answer>, ReadError> {
        let asked = timeout(SHARD_MAX, self.shards[shard].query(query)).await;
        asked
            .map_err(|_| ReadError::Busy)?
            .map_err(|_| ReadError::Gone)
    }

    async fn view(
        &self,
        sensor_id: &SensorId,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<QueryResult<UnstoredRows>, ReadError> {
        let QueryResult {
            mut answer,
            complete,
        } = self
            .views(std::slice::from_ref(sensor_id), from_ms, to_ms)
            .await?;
        Ok(QueryResult {
            answer: answer.pop().unwrap_or_default(),
            complete,
        })
    }

    /// The views of several sensors, in their order.
    async fn views(
        &self,
        sensor_ids: &[SensorId],
        from_ms: i64,
        to_ms: i64,
    ) -> Result<QueryResult<Vec<UnstoredRows>>, ReadError> {
        let mut complete = self.caught_up().await;
        let mut of_shard: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (place, id) in sensor_ids.iter().enumerate() {
            let shard = shard_of(stable_hash(id), self.shards.len());
            of_shard.entry(shard).or_default().push(place);
        }
        let asked = of_shard.iter().map(|(shard, places)| {
            let ids = places.iter().map(|place| sensor_ids[*place].clone());
            self.query(*shard, ViewQuery::new(ids.collect(), from_ms, to_ms))
        });
        let mut views: Vec<UnstoredRows> = vec![];
        views.resize_with(sensor_ids.len(), UnstoredRows::default);
        for (reply, places) in try_join_all(asked)
            .await?
            .into_iter()
            .zip(of_shard.values())
        {
            complete &= !reply.incomplete;
            for (place, view) in places.iter().zip(reply.answer) {
                views[*place] = view;
            }
        }
        Ok(QueryResult {
            answer: views,
            complete,
        })
    }

    async fn gather(
        &self,
        sensor_id: SensorId,
        window: Window,
    ) -> Result<QueryResult<MergedReadings>, ReadError> {
        let from_ms = window.begin_ms();
        let to_ms = window.to_ms;
        if from_ms >= to_ms {
            return Ok(QueryResult {
                answer: MergedReadings::default(),
                complete: true,
            });
        }
        let QueryResult {
            answer: view,
            complete,
        } = self.view(&sensor_id, from_ms, to_ms).await?;
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
        let query = MeasurementQuery {
            sensor_id,
            from_ms,
            to_ms: until_ms,
            limit,
        };
        let measured = match from_ms < until_ms {
            true => self.store.measurements(&query).await?,
            false => MeasurementResults {
                until_ms,
                ..MeasurementResults::default()
            },
        };
        Ok(QueryResult {
            answer: gather.finish(until_ms, &measured),
            complete,
        })
    }

    async fn add_up(
        &self,
        sensor_id: SensorId,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<QueryResult<Hours>, ReadError> {
        if from_ms >= to_ms {
            return Ok(QueryResult {
                answer: Hours::default(),
                complete: true,
            });
        }
        let first = self.span.floor(from_ms);
        let end_ms = self.span.end(self.span.floor(to_ms - 1));
        let QueryResult {
            answer: view,
            complete,
        } = self.view(&sensor_id, first.0, end_ms).await?;
        let complete = complete && view.cut_ms.is_none();
        let open: Vec<OpenHour> = view.buckets.into_iter().map(OpenHour::new).collect();
        let is_open =
            |start: BucketStart| open.binary_search_by_key(&start, OpenHour::start).is_ok();
        let mut hours = Hours::new();
        let mut after = None;
        loop {
            let query = PageQuery {
                sensor_id: sensor_id.clone(),
                from: first,
                to_ms,
                after,
                readings_from_ms: None,
            };
            let found = self.store.pages(&query).await?;
            let held: usize = hours.values().map(|hour| hour.summary.len()).sum();
            for (start, page) in found.pages.iter().filter(|(start, _)| !is_open(*start)) {
                let hour = hours.entry(*start).or_default();
                if held < FIELDS_MAX {
                    hour.add_page(page)
                } else {
                    hour.add_count(page)
                }
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
        Ok(QueryResult {
            answer: hours,
            complete,
        })
    }

    /// Adds up a bucket that is partly in memory: all of its pages, or its measurements.
    async fn add_up_open(
        &self,
        sensor_id: &SensorId,
        mut bucket: OpenHour,
    ) -> Result<(BucketStart, Hour), ReadError> {
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
        let mut from_ms = start.0;
        let to_ms = self.span.end(start);
        while bucket.is_measured() && from_ms < to_ms {
            let sensor_id = sensor_id.clone();
            let query = MeasurementQuery {
                sensor_id,
                from_ms,
                to_ms,
                limit: MEASUREMENTS_MAX,
            };
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
