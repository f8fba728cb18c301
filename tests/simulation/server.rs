//! A database under paused time. Commands take time by their size, and continue without their
//! client: a client that gives up or is killed leaves its statements behind, and they end one by
//! one.
//!
//! It fails in three ways: as a whole (`down`), at random, and always for the buckets of one sensor
//! ([`Trouble`]), like a page that cannot be stored or read.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::{BucketKey, BucketStart, DeadLetter, PageWrite, StorageMode};
use store::{LoadRequest, LoadResult, PageWriteResult, StoreError, StoreErrorKind};
use testkit::memory_store::Pages;
use tokio::time::Instant;

use super::{Identities, identities};

/// The sensor whose buckets are in trouble.
pub(crate) const AWKWARD: &str = "awkward";

/// The failure of the awkward sensor's buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// None: it is a sensor like others.
    None,
    /// A command with one of its statements takes longer than the clients wait.
    WritesHang,
    /// Each of its statements fails.
    WritesFail,
    /// Its loads never end.
    LoadsHang,
    /// Each of its loads fails.
    LoadsFail,
    /// Its loads take this long.
    LoadsSlow(Duration),
    /// Its documents become too large with more fields than this.
    FieldsMax(usize),
}

/// The random fate of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Well,
    /// Refused; nothing was done.
    NotApplied,
    /// It never arrives, and there is no response.
    Lost,
    /// It is carried out, and the connection breaks meanwhile.
    NoResponse,
    /// It is carried out, long after the client has given up.
    Late,
    /// Some statements fail with an unspecific error.
    Partly,
}

/// Whether a command without a response is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Applied {
    Never,
    Now,
    Later,
}

/// Its speed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) round_trip: Duration,
    pub(crate) statement: Duration,
    pub(crate) reading: Duration,
    /// `store.timeout` of the clients.
    pub(crate) timeout: Duration,
}

/// A command in progress.
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
    /// One command in this many fails at random; 0: none.
    pub(crate) faults: u32,
    pub(crate) trouble: Trouble,
    /// The bucket in trouble; `None`: all of the awkward sensor.
    pub(crate) bucket: Option<BucketStart>,
    /// The times of random failures by sensor; those that affect all sensors have the empty name.
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
        Server {
            state: Mutex::new(state),
            pace,
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the statements in progress, as a process does when it starts.
    pub(crate) async fn settled(&self) {
        let ends = self.state().running.values().map(|r| r.ends).max();
        if let Some(ends) = ends {
            tokio::time::sleep_until(ends + Duration::from_millis(1)).await;
        }
    }

    /// Carries out the statements of a process, and responds like a driver with a time limit.
    pub(crate) async fn write(
        self: &Arc<Server>,
        process: u64,
        writes: &[PageWrite],
    ) -> Result<Vec<PageWriteResult>, StoreError> {
        let begun = Instant::now();
        let response = self.try_write(process, writes).await;
        let list = || {
            writes
                .iter()
                .map(|w| format!("{}@{}", w.sensor_id, w.start.0))
                .collect::<Vec<_>>()
        };
        trace(|| {
            format!(
                "{process} write {:?} took {:?}: {response:?}",
                list(),
                begun.elapsed()
            )
        });
        response
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
        let mut time =
            self.pace.statement * writes.len() as u32 + self.pace.reading * readings as u32;
        let hangs = {
            let state = self.state();
            state.trouble == Trouble::WritesHang
                && writes.iter().any(|w| state.awkward(&w.sensor_id, w.start))
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
        let server = self.clone();
        let list = writes.to_vec();
        let run = tokio::spawn(async move { server.carry_out(id, list, time, fate).await });
        let response = async {
            if fate == Fate::NoResponse {
                tokio::time::sleep(time / 2).await;
                return None;
            }
            let written = tokio::time::timeout(self.pace.timeout, run)
                .await
                .ok()?
                .ok();
            tokio::time::sleep(self.pace.round_trip / 2).await;
            written
        };
        let response = response.await;
        if response.is_none()
            && let Some(running) = self.state().running.get_mut(&id)
        {
            running.given_up = true;
        }
        response.ok_or_else(unknown)
    }

    fn begin(&self, process: u64, writes: &[PageWrite], ends: Instant) -> u64 {
        let mut state = self.state();
        state.next += 1;
        let id = state.next;
        let buckets = writes.iter().map(PageWrite::bucket).collect();
        state.running.insert(
            id,
            Running {
                process,
                buckets,
                ends,
                given_up: false,
            },
        );
        id
    }

    /// First measurements, then pages and summaries, half of them at a time.
    async fn carry_out(
        &self,
        id: u64,
        writes: Vec<PageWrite>,
        time: Duration,
        fate: Fate,
    ) -> Vec<PageWriteResult> {
        tokio::time::sleep(time / 3).await;
        // A statement is refused with both of its parts.
        let list: Vec<(&PageWrite, bool)> = writes.iter().map(|w| (w, self.refuses(w))).collect();
        for (write, _) in list
            .iter()
            .filter(|(w, refused)| w.storage_mode == StorageMode::TimeSeries && !refused)
        {
            self.state().insert(write);
        }
        let mut responses = vec![];
        for half in list.chunks(list.len().div_ceil(2).max(1)) {
            tokio::time::sleep(time / 3).await;
            for (write, refused) in half {
                responses.push(match refused {
                    true => PageWriteResult::Unknown {
                        detail: "scripted".to_owned(),
                    },
                    false => self.statement(write, fate),
                });
            }
        }
        self.state().running.remove(&id);
        responses
    }

    fn refuses(&self, write: &PageWrite) -> bool {
        let state = self.state();
        state.trouble == Trouble::WritesFail && state.awkward(&write.sensor_id, write.start)
    }

    fn statement(&self, write: &PageWrite, fate: Fate) -> PageWriteResult {
        let mut state = self.state();
        if let (Trouble::FieldsMax(most), true) =
            (state.trouble, state.awkward(&write.sensor_id, write.start))
        {
            let page =
                state
                    .pages
                    .pages
                    .get(&(write.sensor_id.to_string(), write.start, write.page));
            let stored: HashSet<&str> = page
                .iter()
                .flat_map(|p| p.summary.keys())
                .map(String::as_str)
                .collect();
            let new = write
                .rows
                .fields()
                .iter()
                .filter(|f| !stored.contains(&***f))
                .count();
            if stored.len() + new > most && write.storage_mode == StorageMode::Bucket {
                return PageWriteResult::Rejected {
                    detail: "Resulting document is too large (17419)".into(),
                };
            }
        }
        // An error of one statement: it may have been applied.
        if fate == Fate::Partly && state.rng.u8(0..3) == 0 {
            if state.rng.bool() && write.storage_mode == StorageMode::Bucket {
                state.write(write);
            }
            state.hit(&write.sensor_id);
            return PageWriteResult::Unknown {
                detail: "scripted".to_owned(),
            };
        }
        match write.storage_mode {
            StorageMode::TimeSeries => state.pages.summarise(write),
            StorageMode::Bucket => state.write(write),
        }
    }

    /// Draws the fate of the next command, and records random failures for their sensors.
    fn fate<'a>(&self, sensors: impl Iterator<Item = &'a str>) -> Result<Fate, StoreError> {
        let mut state = self.state();
        if state.down {
            return Err(not_applied());
        }
        let one_in = state.faults;
        if one_in == 0 || state.rng.u32(0..one_in) > 0 {
            return Ok(Fate::Well);
        }
        let all = [
            Fate::NotApplied,
            Fate::Lost,
            Fate::NoResponse,
            Fate::Late,
            Fate::Partly,
        ];
        let fate = all[state.rng.usize(0..all.len())];
        if fate != Fate::Partly {
            for sensor in sensors {
                state.hit(sensor);
            }
        }
        Ok(fate)
    }

    /// The outcome of a command without page writes; with an error, whether it is carried out
    /// nevertheless. It takes a permit, so it delays all sensors.
    pub(crate) async fn outcome(&self) -> Result<(), (StoreError, Applied)> {
        tokio::time::sleep(self.pace.round_trip / 2).await;
        let fate = self
            .fate(std::iter::once(""))
            .map_err(|error| (error, Applied::Never))?;
        match fate {
            Fate::Well | Fate::Partly => Ok(()),
            Fate::NotApplied => Err((not_applied(), Applied::Never)),
            Fate::Lost => Err((unknown(), Applied::Never)),
            Fate::NoResponse => Err((unknown(), Applied::Now)),
            Fate::Late => Err((unknown(), Applied::Later)),
        }
    }

    /// The time until no abandoned statement of this process writes the bucket.
    fn fence(&self, process: u64, bucket: &BucketKey) -> Duration {
        let state = self.state();
        let mine = state
            .running
            .values()
            .filter(|r| r.given_up && r.process == process && r.buckets.contains(bucket));
        mine.map(|r| r.ends + Duration::from_millis(401) - Instant::now())
            .max()
            .unwrap_or_default()
    }
}

impl State {
    /// Stores the measurements of a statement without its summary.
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
        self.hits
            .entry(sensor.to_owned())
            .or_default()
            .push(Instant::now());
    }

    /// Whether a bucket is in trouble.
    fn awkward(&self, sensor: &str, start: BucketStart) -> bool {
        sensor == AWKWARD && self.bucket.is_none_or(|bucket| bucket == start)
    }

    fn note(&mut self, write: &PageWrite) {
        self.stored.extend(identities(write).map(|id| (id, ())));
    }
}

pub(super) fn not_applied() -> StoreError {
    StoreError::NotApplied {
        kind: StoreErrorKind::Network,
        detail: "scripted: no connection".into(),
    }
}

fn unknown() -> StoreError {
    StoreError::Unknown {
        kind: StoreErrorKind::Timeout,
        detail: "scripted: no response".into(),
    }
}

/// `HOURBUCKET_SIM_TRACE=1` prints the commands.
pub(crate) fn trace(line: impl FnOnce() -> String) {
    static ON: LazyLock<bool> =
        LazyLock::new(|| std::env::var_os("HOURBUCKET_SIM_TRACE").is_some());
    static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    if *ON {
        println!("{:>10.3} {}", BEGIN.elapsed().as_secs_f64(), line());
    }
}

/// Loads that run at the same time.
pub(crate) const LOADS_AT_ONCE: usize = 8;

impl Server {
    /// Loads buckets, a few at a time; the results are those of [`store::Store::load`].
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
            Fate::Lost | Fate::Late | Fate::NoResponse => {
                tokio::time::sleep(within.unwrap_or(self.pace.timeout).min(self.pace.timeout))
                    .await;
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
            // Without a limit for the whole, partial results keep coming; a load that hangs has
            // none.
            let limit = within.map_or(self.pace.timeout, |w| w - begun);
            let hangs = time.is_none() || (within.is_some() && time.is_some_and(|t| t > limit));
            *lane += time.filter(|_| !hangs).unwrap_or(limit);
            end = end.max(*lane);
            plan.push(hangs.then(unknown));
        }
        tokio::time::sleep(end).await;
        let mut responses = vec![];
        for (request, failed) in requests.iter().zip(plan) {
            responses.push(match failed {
                Some(error) => Err(error),
                None => self.load_one(request, storage_mode, fate),
            });
        }
        tokio::time::sleep(self.pace.round_trip / 2).await;
        // As in the real store: if no load succeeds, the whole fails.
        let mut errors = responses.iter().filter_map(|a| a.as_ref().err());
        match errors.clone().find(|e| !e.is_deferred()).or(errors.next()) {
            Some(error) if responses.iter().all(Result::is_err) => Err(if error.is_deferred() {
                unknown()
            } else {
                error.clone()
            }),
            _ => Ok(responses),
        }
    }

    /// The time of a bucket's load; `None`: it never ends.
    fn load_time(&self, process: u64, request: &LoadRequest) -> Option<Duration> {
        let mut time = self.pace.round_trip + self.fence(process, &request.bucket);
        let state = self.state();
        let key = (request.bucket.sensor_id.to_string(), request.bucket.start);
        let first = (key.0.clone(), key.1, 0);
        let last = (key.0.clone(), key.1, u32::MAX);
        let pages = state
            .pages
            .pages
            .range(first..=last)
            .map(|(_, p)| p.count)
            .sum::<u32>();
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

    fn load_one(&self, request: &LoadRequest, storage_mode: StorageMode, fate: Fate) -> LoadResult {
        let mut state = self.state();
        if state.trouble == Trouble::LoadsFail
            && state.awkward(&request.bucket.sensor_id, request.bucket.start)
        {
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

    /// Raises the high-water mark; without a response it is raised or not.
    pub(crate) async fn raise(&self, through: BucketStart) -> Result<BucketStart, StoreError> {
        tokio::time::sleep(self.pace.round_trip / 2).await;
        // It delays all sensors.
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

    pub(crate) async fn keep(&self, dead_letters: &[DeadLetter]) -> Result<(), StoreError> {
        tokio::time::sleep(self.pace.round_trip).await;
        match self.fate(std::iter::once(""))? {
            Fate::Well | Fate::Partly => {
                self.state().pages.dead.extend_from_slice(dead_letters);
                Ok(())
            }
            Fate::NotApplied => Err(not_applied()),
            // Stored or not, without a response.
            fate => {
                if fate != Fate::Lost {
                    self.state().pages.dead.extend_from_slice(dead_letters);
                }
                Err(unknown())
            }
        }
    }
}
