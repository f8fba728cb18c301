//! Starts and connects the stages between admission and the store: shards, latest state, daily
//! rollup, journal, router, dead letters.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::StartError;
use super::context::ServiceContext;
use super::rollup::Rollups;
use ::forward::ForwardStatus;
use config::{AckMode, Config, Decoding, Live};
use journal::admission::IngestReceiver;
use journal::{Follower, Journal, JournalHandle};
use model::catalog::arrival_step_ms;
use model::summary::PAGE_SUMMARY_BYTES_MAX;
use pipeline::accumulate::state::ShardSettings;
use pipeline::accumulate::{PageLimits, QueryHandle, ShardHandle};
use pipeline::accumulate::{ShardGauges, ShardTask};
use pipeline::dead_letters::DeadLetters;
use pipeline::enrich::{Enrichment, Registry};
use pipeline::flush::backoff::Backoff;
use pipeline::flush::due::DuePolicy;
use pipeline::latest::state::LatestSettings;
use pipeline::latest::{LatestGauges, LatestHandle, LatestTask};
use pipeline::route::Router;
use pipeline::route::aliases::AliasView;
use pipeline::route::oldest::Oldest;
use store::Store;
use store::registry::RegistryQuery;

/// Capacity of the channel for dead letters, in deliveries.
const DEAD_QUEUE_MAX: usize = 64;
/// Stored readings that a bucket remembers to find duplicates: 128 KiB, or 64 readings under memory
/// pressure.
const SEEN_MAX: usize = 8192;

pub(super) struct Stages {
    /// With `ack = "journal"`.
    pub(super) journal: Option<Journal>,
    pub(super) router: JoinHandle<()>,
    pub(super) shards: Vec<JoinHandle<()>>,
    /// One per shard with `latest.enabled`, else empty.
    pub(super) latest: Vec<JoinHandle<()>>,
    pub(super) rollups: Rollups,
    pub(super) dead: JoinHandle<()>,
    pub(super) gauges: Vec<Arc<ShardGauges>>,
    pub(super) latest_gauges: Vec<Arc<LatestGauges>>,
    pub(super) oldest: Arc<Oldest>,
    /// With `[forward]`; then there are no shards.
    pub(super) forward: Option<Arc<ForwardStatus>>,
}

/// Knows which readings are not stored, with a journal and without one.
#[derive(Clone)]
pub(super) struct Unstored {
    journal: Option<JournalHandle>,
    oldest: Arc<Oldest>,
}

/// The unstored readings at one moment.
pub(super) struct Backlog {
    /// The age of the oldest unstored reading in milliseconds; `None` if all are stored.
    pub(super) age_ms: Option<u64>,
    /// Whether all that an earlier process has left in the journal was handed to the shards.
    pub(super) is_replayed: bool,
}

impl Unstored {
    pub(super) fn from_stages(stages: &Stages) -> Unstored {
        Unstored {
            journal: stages.journal.as_ref().map(Journal::handle),
            oldest: stages.oldest.clone(),
        }
    }

    #[cfg(test)]
    pub(super) fn without_journal(oldest: Arc<Oldest>) -> Unstored {
        let journal = None;
        Unstored { journal, oldest }
    }

    /// `mono_ms`: the monotonic clock.
    pub(super) fn backlog(&self, mono_ms: u64) -> Backlog {
        match self.journal.as_ref().map(JournalHandle::stats) {
            Some(stats) => Backlog {
                age_ms: stats.oldest_unstored_age_ms,
                is_replayed: stats.replay_done >= stats.replay_total,
            },
            None => Backlog {
                age_ms: self
                    .oldest
                    .since_ms()
                    .map(|since_ms| mono_ms.saturating_sub(since_ms)),
                is_replayed: true,
            },
        }
    }
}

/// The shards and the tasks of their latest state.
#[derive(Default)]
struct ShardSet {
    handles: Vec<ShardHandle>,
    tasks: Vec<JoinHandle<()>>,
    gauges: Vec<Arc<ShardGauges>>,
    /// One per shard with `latest.enabled`, else empty.
    latest: Vec<JoinHandle<()>>,
    latest_gauges: Vec<Arc<LatestGauges>>,
    rollups: Rollups,
}

impl ServiceContext {
    /// Starts and connects the stages. Returns them, and a query handle of each shard. `repeats`:
    /// the readings may be stored already.
    pub(super) async fn stages(
        &self,
        registry: &Registry,
        aliases: &AliasView,
        ingest_batches: IngestReceiver,
        repeats: bool,
    ) -> Result<(Stages, Vec<QueryHandle>), StartError> {
        if self.config.forward.is_on() {
            let stages = self.forwarding_stages(ingest_batches).await?;
            return Ok((stages, vec![]));
        }
        let oldest = Arc::new(Oldest::default());
        let (dead_handle, dead) = DeadLetters::new(
            self.flusher.clone(),
            DEAD_QUEUE_MAX,
            self.config.dead_letters.max_bytes,
        );
        let ShardSet {
            handles,
            tasks: shards,
            gauges,
            latest,
            latest_gauges,
            rollups,
        } = self.shards(&dead_handle, registry)?;
        let query_handles = handles.iter().map(ShardHandle::query_handle).collect();
        let router = Router::new(handles, dead_handle).repeating(repeats);
        let router = router.with_aliases(aliases.clone());
        let (router, journal) = self.route(router, ingest_batches, oldest.clone()).await?;
        let dead = self.spawn_storing("dead letters", dead);
        Ok((
            Stages {
                journal,
                router,
                shards,
                latest,
                rollups,
                dead,
                gauges,
                latest_gauges,
                oldest,
                forward: None,
            },
            query_handles,
        ))
    }

    fn shards(&self, dead: &DeadLetters, registry: &Registry) -> Result<ShardSet, StartError> {
        let config = &self.config;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let n = if config.accumulate.shards == 0 {
            cores
        } else {
            config.accumulate.shards
        };
        let settings = shard_settings(config, n);
        let mut shards = ShardSet {
            rollups: self.rollups()?,
            ..ShardSet::default()
        };
        for i in 0..n {
            let latest = config
                .latest
                .enabled
                .then(|| self.latest(i, n, &mut shards));
            let rollup = self.rollup(i, n, &mut shards.rollups);
            let gauge = Arc::new(ShardGauges::default());
            let flusher = self.flusher.clone();
            let clock = self.clock.clone();
            let (handle, task) = ShardTask::new(
                settings.clone(),
                config.flush.commands_max,
                flusher,
                dead.clone(),
                clock,
                gauge.clone(),
            );
            let task = task
                .with_latest_and_tags(registry.clone(), latest)
                .with_rollup(rollup);
            shards.handles.push(handle);
            shards
                .tasks
                .push(self.spawn_storing(format!("shard {i}"), task.run()));
            shards.gauges.push(gauge);
        }
        Ok(shards)
    }

    /// Spawns the latest-state task of shard `i` of `n`.
    fn latest(&self, i: usize, n: usize, shards: &mut ShardSet) -> LatestHandle {
        let config = &self.config;
        let settings = LatestSettings {
            interval_ms: u64::try_from(config.latest.interval.as_millis()).unwrap_or(u64::MAX),
            recent_max: config.latest.recent,
            command_bytes_max: config.flush.command_max_bytes,
            command_statements_max: config.flush.command_max_statements,
            bytes_max: usize::try_from(config.latest.max_bytes).unwrap_or(usize::MAX) / n,
            sensors_max: (config.accumulate.max_sensors / n).max(1),
        };
        let hold_acks = config.ingest.ack == AckMode::Journal;
        let flusher = self.flusher.clone();
        let clock = self.clock.clone();
        let gauges = Arc::new(LatestGauges::default());
        let (handle, task) = LatestTask::new(
            settings,
            hold_acks,
            flusher,
            Backoff::default(),
            clock,
            gauges.clone(),
        );
        shards
            .latest
            .push(self.spawn_storing(format!("latest state of shard {i}"), task.run()));
        shards.latest_gauges.push(gauges);
        handle
    }

    /// The task that fills the tag registry; `None` if it is disabled.
    pub(super) fn enrichment(
        &self,
        store: &Arc<dyn Store>,
        registry: &Registry,
        decoding: Live<Decoding>,
    ) -> Option<Enrichment> {
        let settings = &self.config.enrich;
        let query = RegistryQuery {
            collection: settings.collection.clone()?,
            id_field: settings.id_field.clone(),
            fields: settings.fields.clone(),
        };
        let reader = store.registry(query)?;
        let interval = settings.interval;
        Some(Enrichment::new(
            reader,
            registry.clone(),
            decoding,
            interval,
            settings.max_sensors,
        ))
    }

    /// Starts the router, and with `ack = "journal"` the journal before it.
    async fn route(
        &self,
        router: Router,
        ingest_batches: IngestReceiver,
        oldest: Arc<Oldest>,
    ) -> Result<(JoinHandle<()>, Option<Journal>), StartError> {
        let failure_signal = self.failure_signal.clone();
        let ended = move |result: Result<(), pipeline::route::RouteError>| {
            if let Err(error) = result {
                failure_signal.fail(error.to_string());
            }
        };
        if self.config.ingest.ack == AckMode::Stored {
            let clock = self.clock.clone();
            let task = self.spawn_storing("router", async move {
                ended(router.take(ingest_batches, oldest, clock).await)
            });
            return Ok((task, None));
        }
        let (journal, follower) = self.open_journal(ingest_batches).await?;
        let task = self.spawn_storing(
            "router",
            async move { ended(router.follow(follower).await) },
        );
        Ok((task, Some(journal)))
    }

    /// Opens the journal and starts its writer.
    pub(super) async fn open_journal(
        &self,
        ingest_batches: IngestReceiver,
    ) -> Result<(Journal, Follower), StartError> {
        let broken = self.failure_signal.clone();
        let env = journal::JournalDeps {
            fs: Arc::new(journal::fs::RealFs),
            clock: self.clock.clone(),
            admission_control: self.admission_control.clone(),
            on_broken: Box::new(move |why| broken.fail(format!("journal: {why}"))),
            keys: self.keys.clone(),
        };
        let config = self.config.journal.clone();
        let opened = tokio::task::spawn_blocking(move || Journal::open(&config, env)).await;
        let mut opened = opened.map_err(StartError::JournalTask)??;
        opened
            .journal
            .start(ingest_batches)
            .map_err(StartError::JournalThreads)?;
        Ok((opened.journal, opened.follower))
    }
}

fn shard_settings(config: &Config, n: usize) -> ShardSettings {
    let ms = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
    ShardSettings {
        span: config.bucket.span,
        page: PageLimits {
            readings: config.bucket.max_readings,
            bytes: config.bucket.max_bytes,
            summary_bytes: PAGE_SUMMARY_BYTES_MAX,
        },
        due: match config.ingest.ack {
            AckMode::Journal => DuePolicy::Age(ms(config.flush.max_age)),
            AckMode::Stored => DuePolicy::Linger(ms(config.flush.linger)),
        },
        command_bytes_max: config.flush.command_max_bytes,
        command_statements_max: config.flush.command_max_statements,
        bytes_max: usize::try_from(config.accumulate.max_bytes).unwrap_or(usize::MAX) / n,
        sensors_max: (config.accumulate.max_sensors / n).max(1),
        dedup_keys_max: SEEN_MAX,
        quarantine_after_ms: ms(config.flush.quarantine_after),
        arrival_step_ms: arrival_step_ms(config.sensors.silent_after),
        backoff: Backoff::default(),
    }
}
