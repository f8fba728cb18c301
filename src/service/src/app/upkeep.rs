//! Background tasks: ping the store, update gauges and health, and remove old entries of the catalogue.
//! Health also follows the outcome of each request to the store.

use std::sync::Arc;
use std::time::Duration;

use super::context::ServiceContext;
use super::journal_report::JournalReport;
use super::progress::{Observation, Progress};
use super::recent_rejects::RecentRejects;
use config::AckMode;
use journal::admission::AdmissionError;
use model::{Clock, Now};
use pipeline::accumulate::state::ShardUsage;
use pipeline::accumulate::state::failing::NAMED_MAX;
use pipeline::accumulate::{ANSWERS_WITHIN, ShardGauges};
use pipeline::flush::OnStoreOutcome;
use pipeline::latest::LatestGauges;
use pipeline::route::oldest::Oldest;
use query::admin::Health;
use query::admin::health::{Quarantine, QuarantinedBucket, StoreLogEvent, StoreLogLine};
use store::Store;
use telemetry::audit;
use telemetry::metrics::{self, AdmissionClosed};

/// How often entries without buckets are searched.
const EXPIRE: Duration = Duration::from_secs(6 * 60 * 60);
/// How often gauges and health are updated.
const UPKEEP: Duration = Duration::from_secs(1);
/// How often the store is pinged.
const PING: Duration = Duration::from_secs(5);
/// The collections are checked once in this many pings: every ten seconds.
const CHECK_EVERY: u32 = 2;
/// The histograms are cleaned up, and the numbers of suppressed lines of the audit log written,
/// once in this many updates.
const TIDY_EVERY: u32 = 5;
/// How often a stall is logged while it lasts.
const STALL_LOG_MS: u64 = 60_000;

/// Returns the callback that reports to health, and logs when requests of one kind fail and when
/// they succeed again.
pub(super) fn on_store(health: Arc<Health>, clock: Arc<dyn Clock>) -> OnStoreOutcome {
    Arc::new(move |ability, outcome| {
        if let Some(line) = health.store_requested(ability, outcome, clock.now()) {
            log(&line);
        }
    })
}

fn log(line: &StoreLogLine) {
    let StoreLogLine {
        ability,
        event,
        failures,
        seconds,
    } = line;
    let requests = ability.as_str();
    match event {
        StoreLogEvent::Fail {
            error,
            oldest_waiting_seconds,
        } => tracing::warn!(
            requests,
            %error,
            failures,
            seconds,
            oldest_waiting_seconds,
            "store requests fail; retrying"
        ),
        StoreLogEvent::Succeed => {
            tracing::info!(requests, failures, seconds, "store requests succeed again");
        }
        StoreLogEvent::Settled => tracing::info!(
            requests,
            failures,
            seconds,
            "store requests that failed are settled; no reading waits for one"
        ),
    }
}

impl ServiceContext {
    /// Removes entries of the catalogue that have no buckets, until the service ends. Begins after the
    /// store is prepared.
    pub(super) async fn catalogue(self: Arc<Self>, store: Arc<dyn Store>) {
        drop(self.flusher.permit().await);
        loop {
            tokio::time::sleep(EXPIRE).await;
            match store.expire_catalog(self.clock.now().wall_ms).await {
                Ok(0) => {}
                Ok(removed) => tracing::info!(
                    removed,
                    "catalogue entries removed; their sensors have no buckets"
                ),
                Err(error) => {
                    tracing::warn!(%error, "cannot remove old entries of the catalogue; trying \
                        again later")
                }
            }
        }
    }

    /// Updates gauges and health. Pings run concurrently, because one takes up to
    /// `store.connect_timeout` if the store is unavailable.
    pub(super) async fn upkeep(
        self: Arc<Self>,
        store: Arc<dyn Store>,
        gauges: Vec<Arc<ShardGauges>>,
        latest: Vec<Arc<LatestGauges>>,
        journal: Option<journal::JournalHandle>,
        oldest: Arc<Oldest>,
    ) {
        tokio::join!(
            self.gauges(&gauges, &latest, journal.as_ref(), &oldest),
            self.pings(&*store)
        );
    }

    /// The same for an instance that forwards.
    pub(super) async fn upkeep_without_store(
        self: Arc<Self>,
        journal: Option<journal::JournalHandle>,
        oldest: Arc<Oldest>,
    ) {
        self.gauges(&[], &[], journal.as_ref(), &oldest).await;
    }

    /// Pings the store, one ping at a time, and checks the collections.
    async fn pings(&self, store: &dyn Store) {
        let mut dropped = None;
        for n in 0u32.. {
            tokio::time::sleep(PING).await;
            let result = store.ping().await;
            if result.is_ok() {
                self.flusher.note_answer();
            }
            self.health
                .store_pinged(result.as_ref().copied(), self.clock.now());
            if n.is_multiple_of(CHECK_EVERY) {
                self.check_collections(store, &mut dropped).await;
            }
        }
    }

    /// Reports collections that were dropped or replaced; logs what is new since `before`. An error
    /// says nothing about them: if MongoDB is away, the pings report it.
    async fn check_collections(&self, store: &dyn Store, before: &mut Option<String>) {
        let Ok(found) = store.check_collections().await else {
            return;
        };
        if let Some(problem) = found.as_ref().filter(|_| found != *before) {
            tracing::error!(problem, "collections changed while the service runs");
        }
        self.health.collections(found.clone());
        *before = found;
    }

    async fn gauges(
        &self,
        gauges: &[Arc<ShardGauges>],
        latest: &[Arc<LatestGauges>],
        journal: Option<&journal::JournalHandle>,
        oldest: &Oldest,
    ) {
        let mut ticks = tokio::time::interval(UPKEEP);
        let age = match self.config.ingest.ack {
            AckMode::Journal => self.config.flush.max_age,
            AckMode::Stored => self.config.flush.linger,
        };
        let mut progress =
            ProgressReport::new(Progress::new(age, self.config.flush.quarantine_after));
        let mut journal_report = JournalReport::default();
        let mut rejects = RecentRejects::default();
        for n in 1u32.. {
            ticks.tick().await;
            self.report(gauges, journal, oldest, &mut journal_report);
            let of_shards: Vec<_> = gauges.iter().map(|g| g.store_rejects()).collect();
            let rejected = rejects.observe(&of_shards, self.clock.now().mono_ms);
            self.health.store_rejects(rejected);
            let line = match journal {
                Some(journal) => journal.stats().unstored_from,
                None => oldest.since_ms(),
            };
            self.report_progress(&mut progress, gauges, line);
            if self.config.latest.enabled {
                let waiting: Vec<_> = latest.iter().map(|g| g.get()).collect();
                let sum = |f: fn(&pipeline::latest::state::LatestUsage) -> usize| {
                    waiting.iter().map(f).sum::<usize>() as u64
                };
                metrics::latest_sensors(sum(|h| h.sensors));
                metrics::latest_bytes(sum(|h| h.bytes));
            }
            if n.is_multiple_of(TIDY_EVERY) {
                metrics::run_upkeep();
                audit::log_suppressed();
            }
        }
    }

    fn report(
        &self,
        gauges: &[Arc<ShardGauges>],
        journal: Option<&journal::JournalHandle>,
        oldest: &Oldest,
        journal_report: &mut JournalReport,
    ) {
        let now = self.clock.now();
        let holding: Vec<_> = gauges.iter().map(|g| g.get()).collect();
        self.adjust_age();
        let sum = |f: fn(&ShardUsage) -> usize| holding.iter().map(f).sum::<usize>() as u64;
        metrics::open_buckets(sum(|h| h.buckets));
        metrics::accumulate_bytes(sum(|h| h.bytes));
        metrics::accumulate_max_bytes(self.config.accumulate.max_bytes);
        metrics::readings_in_flight(sum(|h| h.readings));
        let closed = self.admission_control.check().err();
        let closed = closed.map(|why| match why {
            AdmissionError::Full | AdmissionError::Busy => AdmissionClosed::Full,
            AdmissionError::Stopping => AdmissionClosed::Stopping,
            AdmissionError::Broken => AdmissionClosed::Broken,
        });
        for reason in AdmissionClosed::ALL {
            metrics::intake_closed(reason, closed == Some(reason));
        }
        self.report_journal(now, journal, oldest, journal_report);
        let health = self.health.report();
        metrics::ready(health.ready);
        metrics::store_up(health.store.ok || health.forward.is_some());
    }

    /// Adjusts how old readings may get, and reports it.
    fn adjust_age(&self) {
        if self.config.ingest.ack == AckMode::Stored {
            // Senders wait for each write, so nothing is held.
            return;
        }
        self.flusher.adjust_age();
        let age_ms = self.flusher.age_ms();
        metrics::flush_age_seconds(age_ms as f64 / 1000.0);
        self.health.flush_age(age_ms);
    }

    /// By how much readings may now be older than `flush.max_age`. A change of the age reaches
    /// every bucket within `flush.max_age`, so that is added while it is stretched.
    fn held_ms(&self) -> u64 {
        let max_age_ms = self.config.flush.max_age.as_millis() as u64;
        let age_ms = self.flusher.age_ms();
        if self.config.ingest.ack == AckMode::Journal && age_ms > max_age_ms {
            age_ms
        } else {
            0
        }
    }

    /// Reports progress in the gauges, the health and the log. `oldest` identifies the oldest
    /// unstored reading.
    fn report_progress(
        &self,
        progress: &mut ProgressReport,
        gauges: &[Arc<ShardGauges>],
        oldest: Option<u64>,
    ) {
        let settled = gauges.iter().map(|g| g.settled()).sum();
        let store_answers = self.flusher.answered_within(ANSWERS_WITHIN);
        let now_ms = self.clock.now().mono_ms;
        let observation = Observation {
            oldest,
            settled,
            store_answers,
            held_ms: self.held_ms(),
        };
        let status = progress.progress.observe(observation, now_ms);
        let count: usize = gauges.iter().map(|g| g.quarantined()).sum();
        let named = gauges.iter().flat_map(|g| g.named()).take(NAMED_MAX);
        let buckets: Vec<_> = named
            .map(|q| QuarantinedBucket::new(&q.sensor_id, q.start.0, &q.reason, q.since_wall_ms))
            .collect();
        metrics::stalled_seconds(status.stalled_ms.unwrap_or(0) as f64 / 1000.0);
        metrics::quarantined_buckets(count as u64);
        let why = status.stalled_ms.map(|ms| {
            let waits_for = match buckets.first() {
                Some(bucket) => format!(
                    "a bucket of sensor {} whose requests keep failing",
                    bucket.sensor_id
                ),
                None => self.in_flight(gauges),
            };
            let s = ms / 1000;
            format!(
                "stalled: the oldest unstored reading has made no progress for {s} s although \
                MongoDB answers; waiting for {waits_for}"
            )
        });
        progress.log(why.as_deref(), now_ms);
        self.health.stalled(why);
        self.health.stuck(status.stuck);
        self.health.quarantine(Quarantine { count, buckets });
    }

    /// What the store works on, for the reason of a stall.
    fn in_flight(&self, gauges: &[Arc<ShardGauges>]) -> String {
        let jobs: usize = gauges.iter().map(|g| g.jobs()).sum();
        match self.flusher.dead_letters_fail().filter(|_| jobs == 0) {
            Some(error) => format!("dead letters, which MongoDB does not store: {error}"),
            None => format!("{jobs} commands in flight"),
        }
    }

    fn report_journal(
        &self,
        now: Now,
        journal: Option<&journal::JournalHandle>,
        oldest: &Oldest,
        report: &mut JournalReport,
    ) {
        let Some(journal) = journal else {
            let age_ms = |since_ms| now.mono_ms.saturating_sub(since_ms);
            return self.report_oldest(now, oldest.since_ms().map(age_ms));
        };
        let stats = journal.stats();
        self.report_oldest(now, stats.oldest_unstored_age_ms);
        metrics::journal_bytes(stats.bytes);
        metrics::journal_max_bytes(stats.bytes_max);
        metrics::journal_unstored_entries(stats.unstored_entries);
        metrics::journal_unstored_bytes(stats.unstored_bytes);
        metrics::journal_written_bytes_total(stats.written_bytes);
        metrics::journal_commit_age_seconds(stats.commit_age_ms.unwrap_or(0) as f64 / 1000.0);
        self.health.journal(report.observe(&stats, now.mono_ms));
    }

    /// Reports the age of the oldest unstored reading.
    fn report_oldest(&self, now: Now, age_ms: Option<u64>) {
        metrics::oldest_unstored_seconds(age_ms.unwrap_or(0) as f64 / 1000.0);
        let lines = self.health.oldest_waiting(age_ms, now);
        lines.iter().for_each(log);
    }
}

/// The progress state between two updates.
struct ProgressReport {
    progress: Progress,
    /// When a stall was last logged (monotonic ms).
    logged_ms: Option<u64>,
}

impl ProgressReport {
    fn new(progress: Progress) -> ProgressReport {
        ProgressReport {
            progress,
            logged_ms: None,
        }
    }

    /// Logs a stall when it is found and every minute after that.
    fn log(&mut self, stall: Option<&str>, now_ms: u64) {
        match (stall, self.logged_ms) {
            (Some(why), None) => tracing::warn!(reason = why, "readings make no progress"),
            (Some(why), Some(at)) if now_ms - at >= STALL_LOG_MS => {
                tracing::warn!(reason = why, "readings make no progress");
            }
            (None, Some(_)) => {
                tracing::info!("readings make progress again");
                self.logged_ms = None;
                return;
            }
            _ => return,
        }
        self.logged_ms = Some(now_ms);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::shutdown::FailureSignal;
    use config::{AckMode, Config};
    use journal::admission::{AdmissionControl, IngestBatch};
    use journal::{Journal, JournalDeps};
    use model::ack::Ack;
    use model::{DeadLetter, ReadingBatch, SystemClock};
    use pipeline::flush::Flusher;
    use pipeline::flush::backoff::Backoff;
    use testkit::memory_fs::MemFs;
    use testkit::memory_store::{Fault, MemoryStore};

    #[tokio::test(start_paused = true)]
    async fn gauges_are_updated_while_a_ping_hangs_and_only_one_ping_runs() {
        let pings = Arc::new(AtomicUsize::new(0));
        let asked = pings.clone();
        let script = move || {
            asked.fetch_add(1, Ordering::Relaxed);
            (Fault::NotApplied, Duration::from_secs(60))
        };
        let store = Arc::new(MemoryStore::with_script(Box::new(script)));
        let config = Config::default();
        let admission_control = AdmissionControl::default();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let health = Arc::new(Health::new(AckMode::Journal));
        let fs = Arc::new(MemFs::new());
        let env = JournalDeps {
            fs,
            clock: clock.clone(),
            admission_control: admission_control.clone(),
            on_broken: Box::new(|_| ()),
            keys: Default::default(),
        };
        let mut opened = Journal::open(&config.journal, env).unwrap();
        let on_store = on_store(health.clone(), clock.clone());
        let context = Arc::new(ServiceContext {
            flusher: Flusher::new(
                store.clone(),
                Backoff::default(),
                config.bucket.span,
                on_store,
            ),
            keys: Default::default(),
            failure_signal: FailureSignal::new(admission_control.clone()),
            health: health.clone(),
            config,
            clock,
            admission_control,
            storing: tokio::runtime::Handle::current(),
        });
        let journal = Some(opened.journal.handle());
        let upkeep = tokio::spawn(context.upkeep(store, vec![], vec![], journal, Arc::default()));
        let unstored = || health.report().journal.unwrap().unstored_entries;
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert_eq!(
            (pings.load(Ordering::Relaxed), unstored()),
            (1, 0),
            "the first ping is pending"
        );
        let dead_letter = DeadLetter {
            received_at_ms: 0,
            source: "http".into(),
            topic: String::new(),
            payload: vec![],
            reason: "bad_json".into(),
            detail: String::new(),
        };
        assert!(opened.journal.append_now(vec![IngestBatch::new(
            ReadingBatch::default(),
            vec![dead_letter],
            Ack::none()
        )]));
        tokio::time::sleep(Duration::from_secs(50)).await;
        assert_eq!(
            (pings.load(Ordering::Relaxed), unstored()),
            (1, 1),
            "it still is, and the gauges are updated"
        );
        assert!(!health.report().store.ok && health.report().store.error.is_none());
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(pings.load(Ordering::Relaxed), 2);
        assert!(health.report().store.error.is_some());
        upkeep.abort();
    }
}
