//! The store in memory: all of the contract, none of the database. For tests and simulations, with faults on demand.
//!
//! [`Pages`] is the store itself, synchronous and deterministic, so that a simulation can drive it step by step.
//! [`MemoryStore`] puts it behind the [`Store`] trait and lets a [`Script`] say what goes wrong with each command.

pub mod latest;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{
    BoxFuture, LatestWritten, LoadRequest, LoadedBucket, LoadedPage, PrepareError, Prepared, Store, StoreError, Written,
};
use crate::model::rows::ARRAY_KEY_BYTES_MAX;
use crate::model::{BucketStart, DeadLetter, FieldSummary, LatestUpdate, PageKind, PageWrite, Reading, Rows};
use latest::LatestDocument;

/// A stored page.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// Number of readings, the version.
    pub count: u32,
    /// Takes no more.
    pub sealed: bool,
    /// The readings in stored order.
    pub readings: Vec<Reading>,
    /// What the summaries added up to, statement by statement, by field.
    pub summary: BTreeMap<String, FieldSummary>,
    bytes: u64,
}

/// All pages and dead letters.
#[derive(Debug, Clone, Default)]
pub struct Pages {
    /// By sensor, bucket and page.
    pub pages: BTreeMap<(String, BucketStart, u32), Page>,
    /// In the order they came.
    pub dead: Vec<DeadLetter>,
    /// By sensor.
    pub latest: BTreeMap<String, LatestDocument>,
}

impl Pages {
    /// Carries out one statement under the version gate.
    pub fn write(&mut self, write: &PageWrite) -> Written {
        let key = (write.sensor_id.to_string(), write.start, write.page);
        let matches = match (write.kind, self.pages.get(&key)) {
            (PageKind::Create, None) => true,
            (PageKind::Append { known_count }, Some(page)) => page.count == known_count && !page.sealed,
            // Upsert: an append to a page that somebody removed makes it anew.
            (PageKind::Append { .. }, None) => true,
            (PageKind::Create, Some(_)) => false,
        };
        if !matches {
            return Written::Conflict;
        }
        let page = self.pages.entry(key).or_default();
        page.readings.extend(write.rows.to_readings(&write.sensor_id));
        page.count += write.rows.len() as u32;
        page.bytes += stored_bytes(&write.rows);
        page.sealed |= write.seal;
        for (i, summary) in &write.summary {
            let name = write.rows.fields()[usize::from(*i)].to_string();
            let merged = page.summary.get(&name).map_or(*summary, |s| s.merge(*summary));
            page.summary.insert(name, merged);
        }
        Written::Done { count: page.count }
    }

    /// Merges one update into its sensor's latest state.
    pub fn merge_latest(&mut self, update: &LatestUpdate) {
        self.latest.entry(update.sensor_id.to_string()).or_default().merge(update);
    }

    /// Looks at one bucket.
    pub fn load(&self, request: &LoadRequest) -> LoadedBucket {
        let page = |n: u32| self.pages.get(&(request.bucket.sensor_id.to_string(), request.bucket.start, n));
        let loaded = |page: &Page| LoadedPage {
            count: page.count,
            sealed: page.sealed,
            last_ts_ms: page.readings.iter().map(|r| r.ts_ms).max().unwrap_or(i64::MIN),
            bytes: page.bytes,
            keys: if request.readings { page.readings.iter().map(Reading::key).collect() } else { vec![] },
        };
        LoadedBucket { pages: (0..).map_while(page).map(loaded).collect() }
    }

    /// Every stored reading.
    pub fn readings(&self) -> impl Iterator<Item = &Reading> {
        self.pages.values().flat_map(|p| &p.readings)
    }

    /// Checks what must hold of any stored state: a page's count and summary are those of its readings, it belongs to
    /// its bucket, pages have no gaps, and exactly those with a next page are sealed (the last one may be, just before
    /// its successor is made).
    ///
    /// # Errors
    /// What does not hold, and where.
    pub fn check(&self, max_readings: u32) -> Result<(), String> {
        for ((sensor, start, n), page) in &self.pages {
            let at = format!("page {n} of {sensor} at {}", start.0);
            if page.count as usize != page.readings.len() || page.count > max_readings {
                return Err(format!("{at}: count {} but {} readings", page.count, page.readings.len()));
            }
            let mut rows = Rows::default();
            page.readings.iter().for_each(|r| rows.push_reading(r));
            let expected = crate::model::summary::by_name(rows.fields(), &crate::model::summary::summarise(&rows));
            let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1.0);
            let same = expected.len() == page.summary.len()
                && expected.iter().all(|(name, e)| {
                    page.summary.get(name).is_some_and(|s| {
                        s.min == e.min && s.max == e.max && s.count == e.count && near(s.sum.as_f64(), e.sum.as_f64())
                    })
                });
            if !same {
                return Err(format!("{at}: summary {:?}, from its readings {expected:?}", page.summary));
            }
            let next = self.pages.get(&(sensor.clone(), *start, n + 1));
            if next.is_some() && !page.sealed {
                return Err(format!("{at}: has a next page and is not sealed"));
            }
            if *n > 0 && !self.pages.contains_key(&(sensor.clone(), *start, n - 1)) {
                return Err(format!("{at}: the page before it is missing"));
            }
        }
        Ok(())
    }
}

fn stored_bytes(rows: &Rows) -> u64 {
    rows.stored_bytes() + rows.len() as u64 * ARRAY_KEY_BYTES_MAX
}

/// What goes wrong with one command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// It fails, and nothing is applied.
    NotApplied,
    /// The answer is lost; nothing was applied.
    LostBefore,
    /// The answer is lost; everything was applied.
    LostAfter,
    /// The answer is lost; only the first half of the statements was applied.
    LostHalf,
    /// It is refused for good, statement by statement.
    Rejected,
}

/// Decides the fate of each command: a fault, and how long the command takes.
pub type Script = Box<dyn FnMut() -> (Fault, Duration) + Send>;

/// The memory store behind the trait.
pub struct MemoryStore {
    pages: Mutex<Pages>,
    script: Mutex<Script>,
}

impl Default for MemoryStore {
    fn default() -> MemoryStore {
        MemoryStore::new()
    }
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MemoryStore")
    }
}

impl MemoryStore {
    /// A store in which nothing goes wrong.
    pub fn new() -> MemoryStore {
        MemoryStore::with_script(Box::new(|| (Fault::None, Duration::ZERO)))
    }

    /// A store in which `script` is asked about every command.
    pub fn with_script(script: Script) -> MemoryStore {
        MemoryStore { pages: Mutex::default(), script: Mutex::new(script) }
    }

    /// Another script from now on.
    pub fn set_script(&self, script: Script) {
        *lock(&self.script) = script;
    }

    /// What is stored.
    pub fn pages(&self) -> MutexGuard<'_, Pages> {
        lock(&self.pages)
    }

    fn fate(&self) -> (Fault, Duration) {
        (lock(&self.script))()
    }
}

/// A panic of a test elsewhere must not hide what is stored.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn not_applied() -> StoreError {
    StoreError::NotApplied { kind: "network", detail: "scripted failure".into() }
}

fn unknown() -> StoreError {
    StoreError::Unknown { kind: "timeout", detail: "scripted loss of the answer".into() }
}

/// A pause also for a zero duration: other tasks must be able to come between any two commands.
async fn pause(delay: Duration) {
    if delay.is_zero() {
        tokio::task::yield_now().await;
    } else {
        tokio::time::sleep(delay).await;
    }
}

impl Store for MemoryStore {
    fn prepare(&self) -> BoxFuture<'_, Result<Prepared, PrepareError>> {
        Box::pin(async { Ok(Prepared { mode_reason: "in memory".into(), ..Prepared::default() }) })
    }

    fn write<'a>(&'a self, writes: &'a [PageWrite]) -> BoxFuture<'a, Result<Vec<Written>, StoreError>> {
        Box::pin(async move {
            let (fault, delay) = self.fate();
            pause(delay).await;
            let apply = |n: usize| writes[..n].iter().map(|w| self.pages().write(w)).collect::<Vec<_>>();
            match fault {
                Fault::None => Ok(apply(writes.len())),
                Fault::NotApplied => Err(not_applied()),
                Fault::LostBefore => Err(unknown()),
                Fault::LostAfter => {
                    apply(writes.len());
                    Err(unknown())
                }
                Fault::LostHalf => {
                    apply(writes.len() / 2);
                    Err(unknown())
                }
                Fault::Rejected => {
                    Ok(writes.iter().map(|_| Written::Rejected { detail: "scripted refusal".into() }).collect())
                }
            }
        })
    }

    fn load<'a>(&'a self, requests: &'a [LoadRequest]) -> BoxFuture<'a, Result<Vec<LoadedBucket>, StoreError>> {
        Box::pin(async move {
            let (fault, delay) = self.fate();
            pause(delay).await;
            match fault {
                Fault::None | Fault::Rejected => Ok(requests.iter().map(|r| self.pages().load(r)).collect()),
                _ => Err(not_applied()),
            }
        })
    }

    fn latest<'a>(&'a self, updates: &'a [LatestUpdate]) -> BoxFuture<'a, Result<Vec<LatestWritten>, StoreError>> {
        Box::pin(async move {
            let (fault, delay) = self.fate();
            pause(delay).await;
            let apply = |n: usize| updates[..n].iter().for_each(|u| self.pages().merge_latest(u));
            match fault {
                Fault::None => {
                    apply(updates.len());
                    Ok(vec![LatestWritten::Done; updates.len()])
                }
                Fault::NotApplied => Err(not_applied()),
                Fault::LostBefore => Err(unknown()),
                Fault::LostAfter => {
                    apply(updates.len());
                    Err(unknown())
                }
                Fault::LostHalf => {
                    apply(updates.len() / 2);
                    Err(unknown())
                }
                Fault::Rejected => {
                    Ok(updates.iter().map(|_| LatestWritten::Rejected { detail: "scripted refusal".into() }).collect())
                }
            }
        })
    }

    fn dead_letters<'a>(&'a self, letters: &'a [DeadLetter]) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let (fault, delay) = self.fate();
            pause(delay).await;
            if !matches!(fault, Fault::None | Fault::Rejected) {
                return Err(not_applied());
            }
            self.pages().dead.extend_from_slice(letters);
            Ok(())
        })
    }

    fn ping(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async { Ok(()) })
    }

    fn mode(&self) -> &'static str {
        "bucket"
    }
}
