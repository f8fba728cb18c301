//! A database under paused time. What it is asked takes time by its size, and goes on when nobody waits for it any more:
//! a client that gives up, or is killed, leaves its statements behind, and they come to their end one by one.
//!
//! It fails in three ways: as a whole (`down`), now and then at random, and always for the buckets of one sensor
//! ([`Trouble`]), as a page that cannot be stored or read would.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hourbucket::model::{
    BucketKey, BucketStart, CatalogUpdate, DeadLetter, LatestUpdate, PageWrite, SensorId, StorageMode,
};
use hourbucket::store::catalog::{CatalogEntry, CatalogQuery};
use hourbucket::store::days::DayStore;
use hourbucket::store::memory::Pages;
use hourbucket::store::reading::{
    DeadLetterQuery, MeasurementQuery, MeasurementResults, PageQuery, PageResults, SensorQuery, StoredDeadLetter,
    StoredSensor,
};
use hourbucket::store::{
    BoxFuture, DeadLetterWritten, LatestWriteResult, LoadRequest, LoadResult, PageWriteResult, PrepareError,
    PreparedStore, Store, StoreError, StoreErrorKind,
};
use tokio::time::Instant;

use super::{Identities, identities};

/// The sensor whose buckets are in trouble.
pub(crate) const AWKWARD: &str = "awkward";

/// What the database cannot do with the awkward sensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Nothing: it is a sensor like others.
    None,
    /// A command with one of its statements takes longer than anybody waits.
    WritesHang,
    /// Its statements fail, each by itself.
    WritesFail,
    /// Its loads do not come to an end.
    LoadsHang,
    /// Its loads fail, each by itself.
    LoadsFail,
    /// Its loads take as long as this.
    LoadsSlow(Duration),
    /// Its documents become too large with more fields than this.
    FieldsMax(usize),
}

/// What happens to one command at random.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Well,
    /// Refused; nothing was done.
    NotApplied,
    /// It never arrives, and no answer comes.
    Lost,
    /// It is carried out, and the connection breaks meanwhile.
    Unanswered,
    /// It is carried out, long after the client has given up.
    Late,
    /// Some statements are answered with an error that says nothing.
    Partly,
}

/// Whether a command without an answer is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Applied {
    Never,
    Now,
    Later,
}

/// How fast it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) round_trip: Duration,
    pub(crate) statement: Duration,
    pub(crate) reading: Duration,
    /// `store.timeout` of the clients.
    pub(crate) timeout: Duration,
}

/// A command that is under way.
struct Running {
    process: u64,
    buckets: HashSet<BucketKey>,
    ends: Instant,
    given_up: bool,
}

pub(crate) struct State {
    pub(crate) pages: Pages,
    /// Every identity that was ever stored.
    pub(crate) stored: Identities<()>,
    running: BTreeMap<u64, Running>,
    next: u64,
    pub(crate) rng: fastrand::Rng,
    pub(crate) down: bool,
    /// One command in so many fails at random; 0: none.
    pub(crate) faults: u32,
    pub(crate) trouble: Trouble,
    /// The bucket in trouble; `None`: all of the awkward sensor.
    pub(crate) bucket: Option<BucketStart>,
    /// When a sensor was hit by a failure that it had no part in; all of them under the empty name.
    pub(crate) hits: BTreeMap<String, Vec<Instant>>,
}

pub(crate) struct Server {
    state: Mutex<State>,
    pub(crate) pace: Pace,
}

impl Server {
    pub(crate) fn new(seed: u64, pace: Pace) -> Server {
        let state = State {
            pages: Pages::default(),
            stored: Identities::default(),
            running: BTreeMap::new(),
            next: 0,
            rng: fastrand::Rng::with_seed(seed),
            down: false,
            faults: 0,
            trouble: Trouble::None,
            bucket: None,
            hits: BTreeMap::new(),
        };
        Server { state: Mutex::new(state), pace }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the statements that run now, as a process does before it begins.
    pub(crate) async fn settled(&self) {
        let ends = self.state().running.values().map(|r| r.ends).max();
        if let Some(ends) = ends {
            tokio::time::sleep_until(ends + Duration::from_millis(1)).await;
        }
    }

    /// Carries out the statements of a process and answers like a driver with a time limit.
    pub(crate) async fn write(
        self: &Arc<Server>,
        process: u64,
        writes: &[PageWrite],
    ) -> Result<Vec<PageWriteResult>, StoreError> {
        let begun = Instant::now();
        let answer = self.try_write(process, writes).await;
        let list = || writes.iter().map(|w| format!("{}@{}", w.sensor_id, w.start.0)).collect::<Vec<_>>();
        trace(|| format!("{process} write {:?} took {:?}: {answer:?}", list(), begun.elapsed()));
        answer
    }

    async fn try_write(
        self: &Arc<Server>,
        process: u64,
        writes: &[PageWrite],
    ) -> Result<Vec<PageWriteResult>, StoreError> {
        tokio::time::sleep(self.pace.round_trip / 2).await;
        let sensors = || writes.iter().map(|w| w.sensor_id.as_ref());
        let fate = self.fate(sensors())?;
        let readings: usize = writes.iter().map(|w| w.rows.len()).sum();
        let mut time = self.pace.statement * writes.len() as u32 + self.pace.reading * readings as u32;
        let hangs = {
            let state = self.state();
            state.trouble == Trouble::WritesHang && writes.iter().any(|w| state.awkward(&w.sensor_id, w.start))
        };
        if hangs || fate == Fate::Late {
            time += self.pace.timeout.mul_f64(1.0 + self.state().rng.f64());
        }
        match fate {
            Fate::NotApplied => return Err(not_applied()),
            Fate::Lost => {
                tokio::time::sleep(self.pace.timeout).await;
                return Err(unknown());
            }
            _ => {}
        }
        let id = self.begin(process, writes, Instant::now() + time);
        let (server, list) = (self.clone(), writes.to_vec());
        let run = tokio::spawn(async move { server.carry_out(id, list, time, fate).await });
        let answer = async {
            if fate == Fate::Unanswered {
                tokio::time::sleep(time / 2).await;
                return None;
            }
            let written = tokio::time::timeout(self.pace.timeout, run).await.ok()?.ok();
            tokio::time::sleep(self.pace.round_trip / 2).await;
            written
        };
        let answer = answer.await;
        if answer.is_none()
            && let Some(running) = self.state().running.get_mut(&id)
        {
            running.given_up = true;
        }
        answer.ok_or_else(unknown)
    }

    fn begin(&self, process: u64, writes: &[PageWrite], ends: Instant) -> u64 {
        let mut state = self.state();
        state.next += 1;
        let id = state.next;
        let buckets = writes.iter().map(PageWrite::bucket).collect();
        state.running.insert(id, Running { process, buckets, ends, given_up: false });
        id
    }

    /// Measurements first, then pages and summaries, half of them at a time.
    async fn carry_out(&self, id: u64, writes: Vec<PageWrite>, time: Duration, fate: Fate) -> Vec<PageWriteResult> {
        tokio::time::sleep(time / 3).await;
        // Both parts of a statement are refused, or none.
        let list: Vec<(&PageWrite, bool)> = writes.iter().map(|w| (w, self.refuses(w))).collect();
        for (write, _) in list.iter().filter(|(w, refused)| w.storage_mode == StorageMode::TimeSeries && !refused) {
            self.state().insert(write);
        }
        let mut answers = vec![];
        for half in list.chunks(list.len().div_ceil(2).max(1)) {
            tokio::time::sleep(time / 3).await;
            for (write, refused) in half {
                answers.push(match refused {
                    true => PageWriteResult::Unknown { detail: "scripted".to_owned() },
                    false => self.statement(write, fate),
                });
            }
        }
        self.state().running.remove(&id);
        answers
    }

    fn refuses(&self, write: &PageWrite) -> bool {
        let state = self.state();
        state.trouble == Trouble::WritesFail && state.awkward(&write.sensor_id, write.start)
    }

    fn statement(&self, write: &PageWrite, fate: Fate) -> PageWriteResult {
        let mut state = self.state();
        if let (Trouble::FieldsMax(most), true) = (state.trouble, state.awkward(&write.sensor_id, write.start)) {
            let page = state.pages.pages.get(&(write.sensor_id.to_string(), write.start, write.page));
            let stored: HashSet<&str> = page.iter().flat_map(|p| p.summary.keys()).map(String::as_str).collect();
            let new = write.rows.fields().iter().filter(|f| !stored.contains(&***f)).count();
            if stored.len() + new > most && write.storage_mode == StorageMode::Bucket {
                return PageWriteResult::Rejected { detail: "Resulting document is too large (17419)".into() };
            }
        }
        // An error of one statement: it may have been applied.
        if fate == Fate::Partly && state.rng.u8(0..3) == 0 {
            if state.rng.bool() && write.storage_mode == StorageMode::Bucket {
                state.write(write);
            }
            state.hit(&write.sensor_id);
            return PageWriteResult::Unknown { detail: "scripted".to_owned() };
        }
        match write.storage_mode {
            StorageMode::TimeSeries => state.pages.summarise(write),
            StorageMode::Bucket => state.write(write),
        }
    }

    /// What happens to the next command; failures that hit a sensor by chance are counted.
    fn fate<'a>(&self, sensors: impl Iterator<Item = &'a str>) -> Result<Fate, StoreError> {
        let mut state = self.state();
        if state.down {
            return Err(not_applied());
        }
        let one_in = state.faults;
        if one_in == 0 || state.rng.u32(0..one_in) > 0 {
            return Ok(Fate::Well);
        }
        let all = [Fate::NotApplied, Fate::Lost, Fate::Unanswered, Fate::Late, Fate::Partly];
        let fate = all[state.rng.usize(0..all.len())];
        if fate != Fate::Partly {
            for sensor in sensors {
                state.hit(sensor);
            }
        }
        Ok(fate)
    }

    /// The outcome of a command without page writes; with an error, whether it is carried out all the same. It takes a
    /// permit, so it keeps all waiting.
    pub(crate) async fn outcome(&self) -> Result<(), (StoreError, Applied)> {
        tokio::time::sleep(self.pace.round_trip / 2).await;
        let fate = self.fate(std::iter::once("")).map_err(|error| (error, Applied::Never))?;
        match fate {
            Fate::Well | Fate::Partly => Ok(()),
            Fate::NotApplied => Err((not_applied(), Applied::Never)),
            Fate::Lost => Err((unknown(), Applied::Never)),
            Fate::Unanswered => Err((unknown(), Applied::Now)),
            Fate::Late => Err((unknown(), Applied::Later)),
        }
    }

    /// How long until no statement of this process that was given up writes the bucket.
    fn fence(&self, process: u64, bucket: &BucketKey) -> Duration {
        let state = self.state();
        let mine = state.running.values().filter(|r| r.given_up && r.process == process && r.buckets.contains(bucket));
        mine.map(|r| r.ends + Duration::from_millis(401) - Instant::now()).max().unwrap_or_default()
    }
}

impl State {
    /// The measurements of a statement, and not its summary.
    pub(crate) fn insert(&mut self, write: &PageWrite) {
        self.pages.insert(write);
        self.note(write);
    }

    fn write(&mut self, write: &PageWrite) -> PageWriteResult {
        let written = self.pages.write(write);
        if matches!(written, PageWriteResult::Done { .. }) {
            self.note(write);
        }
        written
    }

    fn hit(&mut self, sensor: &str) {
        self.hits.entry(sensor.to_owned()).or_default().push(Instant::now());
    }

    /// Whether a bucket is one of those in trouble.
    fn awkward(&self, sensor: &str, start: BucketStart) -> bool {
        sensor == AWKWARD && self.bucket.is_none_or(|bucket| bucket == start)
    }

    fn note(&mut self, write: &PageWrite) {
        self.stored.extend(identities(write).map(|id| (id, ())));
    }
}

fn not_applied() -> StoreError {
    StoreError::NotApplied { kind: StoreErrorKind::Network, detail: "scripted: no connection".into() }
}

fn unknown() -> StoreError {
    StoreError::Unknown { kind: StoreErrorKind::Timeout, detail: "scripted: no answer".into() }
}

/// `HOURBUCKET_SIM_TRACE=1` prints what the database was asked.
pub(crate) fn trace(line: impl FnOnce() -> String) {
    static ON: LazyLock<bool> = LazyLock::new(|| std::env::var_os("HOURBUCKET_SIM_TRACE").is_some());
    static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    if *ON {
        println!("{:>10.3} {}", BEGIN.elapsed().as_secs_f64(), line());
    }
}

/// Loads that run at the same time.
pub(crate) const LOADS_AT_ONCE: usize = 8;

impl Server {
    /// Looks at buckets, a few at a time; the answers are those of [`hourbucket::store::Store::load`].
    pub(crate) async fn load(
        &self,
        process: u64,
        requests: &[LoadRequest],
        within: Option<Duration>,
        storage_mode: StorageMode,
    ) -> Result<Vec<LoadResult>, StoreError> {
        let fate = self.fate(requests.iter().map(|r| &*r.bucket.sensor_id))?;
        match fate {
            Fate::NotApplied => return Err(not_applied()),
            Fate::Lost | Fate::Late | Fate::Unanswered => {
                tokio::time::sleep(within.unwrap_or(self.pace.timeout).min(self.pace.timeout)).await;
                return Err(unknown());
            }
            _ => {}
        }
        let mut lanes = [Duration::ZERO; LOADS_AT_ONCE];
        let mut plan = vec![];
        let mut end = Duration::ZERO;
        for request in requests {
            let lane = lanes.iter_mut().min().expect("there are lanes");
            let begun = *lane;
            if within.is_some_and(|within| begun >= within) {
                plan.push(Some(StoreError::deferred()));
                continue;
            }
            let time = self.load_time(process, request);
            // With no limit for the whole, parts keep coming; a load that hangs brings none.
            let limit = within.map_or(self.pace.timeout, |w| w - begun);
            let hangs = time.is_none() || (within.is_some() && time.is_some_and(|t| t > limit));
            *lane += time.filter(|_| !hangs).unwrap_or(limit);
            end = end.max(*lane);
            plan.push(hangs.then(unknown));
        }
        tokio::time::sleep(end).await;
        let mut answers = vec![];
        for (request, failed) in requests.iter().zip(plan) {
            answers.push(match failed {
                Some(error) => Err(error),
                None => self.look(request, storage_mode, fate),
            });
        }
        tokio::time::sleep(self.pace.round_trip / 2).await;
        // As the real store does: nothing found out at all is a failure of the whole.
        let mut errors = answers.iter().filter_map(|a| a.as_ref().err());
        match errors.clone().find(|e| !e.is_deferred()).or(errors.next()) {
            Some(error) if answers.iter().all(Result::is_err) => {
                Err(if error.is_deferred() { unknown() } else { error.clone() })
            }
            _ => Ok(answers),
        }
    }

    /// How long one bucket takes; `None`: for ever.
    fn load_time(&self, process: u64, request: &LoadRequest) -> Option<Duration> {
        let mut time = self.pace.round_trip + self.fence(process, &request.bucket);
        let state = self.state();
        let key = (request.bucket.sensor_id.to_string(), request.bucket.start);
        let (first, last) = ((key.0.clone(), key.1, 0), (key.0.clone(), key.1, u32::MAX));
        let pages = state.pages.pages.range(first..=last).map(|(_, p)| p.count).sum::<u32>();
        let measured = state.pages.series.get(&key).map_or(0, Vec::len) as u32;
        if request.doubt || request.readings_from.is_some() {
            time += self.pace.reading * (pages + measured);
        }
        match state.trouble {
            Trouble::LoadsHang if state.awkward(&key.0, key.1) => return None,
            Trouble::LoadsSlow(slow) if state.awkward(&key.0, key.1) => time += slow,
            _ => {}
        }
        Some(time)
    }

    fn look(&self, request: &LoadRequest, storage_mode: StorageMode, fate: Fate) -> LoadResult {
        let mut state = self.state();
        if state.trouble == Trouble::LoadsFail && state.awkward(&request.bucket.sensor_id, request.bucket.start) {
            return Err(StoreError::Unknown {
                kind: StoreErrorKind::Command,
                detail: "scripted: BSONObjectTooLarge".into(),
            });
        }
        if fate == Fate::Partly && state.rng.u8(0..3) == 0 {
            state.hit(&request.bucket.sensor_id);
            return Err(unknown());
        }
        state.pages.load(request, storage_mode)
    }

    /// Raises the mark; a lost answer leaves it raised or not.
    pub(crate) async fn raise(&self, through: BucketStart) -> Result<BucketStart, StoreError> {
        tokio::time::sleep(self.pace.round_trip / 2).await;
        // It keeps all waiting.
        let fate = self.fate(std::iter::once(""))?;
        let raised = {
            let mut state = self.state();
            let lost = fate == Fate::Lost || fate == Fate::NotApplied;
            (!lost).then(|| state.pages.raise_high_water(through))
        };
        match (fate, raised) {
            (Fate::NotApplied, _) => Err(not_applied()),
            (Fate::Well | Fate::Partly, Some(before)) => {
                tokio::time::sleep(self.pace.round_trip / 2).await;
                Ok(before)
            }
            _ => {
                tokio::time::sleep(self.pace.timeout / 2).await;
                Err(unknown())
            }
        }
    }

    pub(crate) async fn keep(&self, letters: &[DeadLetter]) -> Result<(), StoreError> {
        tokio::time::sleep(self.pace.round_trip).await;
        match self.fate(std::iter::once(""))? {
            Fate::Well | Fate::Partly => {
                self.state().pages.dead.extend_from_slice(letters);
                Ok(())
            }
            Fate::NotApplied => Err(not_applied()),
            // Kept, perhaps, and the answer is lost.
            fate => {
                if fate != Fate::Lost {
                    self.state().pages.dead.extend_from_slice(letters);
                }
                Err(unknown())
            }
        }
    }
}

/// The database as one process sees it.
pub(crate) struct Client {
    pub(crate) server: Arc<Server>,
    pub(crate) process: u64,
    pub(crate) storage_mode: StorageMode,
}

impl Client {
    pub(crate) fn ask<'a, T: Send + 'a>(
        &'a self,
        read: impl FnOnce(&Pages) -> T + Send + 'a,
    ) -> BoxFuture<'a, Result<T, StoreError>> {
        Box::pin(async move {
            tokio::time::sleep(self.server.pace.round_trip).await;
            let state = self.server.state();
            if state.down { Err(not_applied()) } else { Ok(read(&state.pages)) }
        })
    }
}

impl Store for Client {
    fn prepare(&self) -> BoxFuture<'_, Result<PreparedStore, PrepareError>> {
        Box::pin(async {
            self.server.settled().await;
            Ok(PreparedStore::default())
        })
    }

    fn raise_high_water(&self, through: BucketStart) -> BoxFuture<'_, Result<BucketStart, StoreError>> {
        Box::pin(self.server.raise(through))
    }

    fn write<'a>(&'a self, writes: &'a [PageWrite]) -> BoxFuture<'a, Result<Vec<PageWriteResult>, StoreError>> {
        Box::pin(self.server.write(self.process, writes))
    }

    fn load<'a>(
        &'a self,
        requests: &'a [LoadRequest],
        within: Option<Duration>,
    ) -> BoxFuture<'a, Result<Vec<LoadResult>, StoreError>> {
        Box::pin(async move {
            let begun = Instant::now();
            let answer = self.server.load(self.process, requests, within, self.storage_mode).await;
            let list =
                || requests.iter().map(|r| format!("{}@{}", r.bucket.sensor_id, r.bucket.start.0)).collect::<Vec<_>>();
            trace(|| {
                let well = answer.as_ref().map(|a| a.iter().map(Result::is_ok).collect::<Vec<_>>());
                format!("{} load {:?} within {within:?} took {:?}: {well:?}", self.process, list(), begun.elapsed())
            });
            answer
        })
    }

    fn merge_catalog<'a>(&'a self, updates: &'a [&'a CatalogUpdate]) -> BoxFuture<'a, Result<u64, StoreError>> {
        Box::pin(async move {
            let mut state = self.server.state();
            if state.down {
                return Err(not_applied());
            }
            updates.iter().for_each(|update| state.pages.merge_catalog(update));
            Ok(0)
        })
    }

    fn find_catalog<'a>(&'a self, q: &'a CatalogQuery) -> BoxFuture<'a, Result<Vec<CatalogEntry>, StoreError>> {
        self.ask(move |pages| pages.find_catalog(q))
    }

    fn latest<'a>(&'a self, updates: &'a [LatestUpdate]) -> BoxFuture<'a, Result<Vec<LatestWriteResult>, StoreError>> {
        Box::pin(async move {
            updates.iter().for_each(|u| self.server.state().pages.merge_latest(u));
            Ok(vec![LatestWriteResult::Done; updates.len()])
        })
    }

    fn write_dead_letters<'a>(
        &'a self,
        letters: &'a [DeadLetter],
    ) -> BoxFuture<'a, Result<Vec<DeadLetterWritten>, StoreError>> {
        Box::pin(async move { self.server.keep(letters).await.map(|()| vec![DeadLetterWritten::Done; letters.len()]) })
    }

    fn pages<'a>(&'a self, q: &'a PageQuery) -> BoxFuture<'a, Result<PageResults, StoreError>> {
        self.ask(move |pages| pages.read_pages(q))
    }

    fn measurements<'a>(&'a self, q: &'a MeasurementQuery) -> BoxFuture<'a, Result<MeasurementResults, StoreError>> {
        self.ask(move |pages| pages.read_measurements(q))
    }

    fn sensors<'a>(&'a self, q: &'a SensorQuery) -> BoxFuture<'a, Result<Vec<String>, StoreError>> {
        self.ask(move |pages| pages.read_sensors(q))
    }

    fn newest<'a>(&'a self, sensors: &'a [SensorId]) -> BoxFuture<'a, Result<Vec<StoredSensor>, StoreError>> {
        self.ask(move |pages| pages.read_newest(sensors))
    }

    fn first_buckets<'a>(
        &'a self,
        sensors: &'a [SensorId],
    ) -> BoxFuture<'a, Result<Vec<Option<BucketStart>>, StoreError>> {
        self.ask(move |pages| pages.read_first_buckets(sensors))
    }

    fn find_dead_letters<'a>(
        &'a self,
        q: &'a DeadLetterQuery,
    ) -> BoxFuture<'a, Result<Vec<StoredDeadLetter>, StoreError>> {
        self.ask(move |pages| pages.read_dead_letters(q))
    }

    fn days(&self) -> Option<&dyn DayStore> {
        Some(self)
    }

    fn ping(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.ask(|_| ())
    }

    fn storage_mode(&self) -> StorageMode {
        self.storage_mode
    }

    fn mode(&self) -> &'static str {
        if self.storage_mode == StorageMode::TimeSeries { "timeseries" } else { "bucket" }
    }
}
