//! The only module that connects the stages: who sends to whom, with which capacity, and the order of start and end.
//!
//! ```text
//!  http ──┐ Admission (ingest.queue_max ingest batches, queue_max_bytes)
//!  listen ┤
//!  mqtt ──┴──> journal ──Follower──> router ──ShardBatch (4 a shard)──> shards ──permits (flush.commands_max)──> store
//!         └───────────(ack = "stored")──┘  └──> dead letters    └──> latest (4 batches a shard) ───────────┘
//! ```
//!
//! Start: store (nothing is sent) → shards → journal or admission → router → ports → brokers. Meanwhile the collections
//! are prepared; the first permit is released after that. End: the phases of [`crate::shutdown`], upstream stages
//! first, so that every stage ends because the one before it ended.

mod progress;
mod reload;
mod upkeep;
mod watch;

pub use self::reload::{Reloaded, Reloader};

use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::reload::Running;
use crate::accumulate::state::ShardSettings;
use crate::accumulate::task::{ShardGauges, ShardTask};
use crate::accumulate::{PageLimits, ShardHandle};
use crate::admin::{Admin, AdminError, Health, TokenSource};
use crate::admission::{Admission, AdmissionControl, IngestReceiver, admission_channel};
use crate::config::{AckMode, Config, Decoding, Live};
use crate::enrich::{Enrichment, Registry};
use crate::flush::Flusher;
use crate::flush::backoff::Backoff;
use crate::flush::dead_letters::DeadLetters;
use crate::flush::due::DuePolicy;
use crate::ingest;
use crate::ingest::http::{HttpError, HttpIngest};
use crate::ingest::listen::{ListenError, MqttListener};
use crate::ingest::mqtt::{self, BrokerStatus, SetupError};
use crate::ingest::tokens::TokensError;
use crate::journal::{self, Journal, JournalError};
use crate::latest::state::LatestSettings;
use crate::latest::{LatestGauges, LatestHandle, LatestTask};
use crate::model::summary::PAGE_SUMMARY_BYTES_MAX;
use crate::model::{Clock, FieldLimiter};
use crate::read::ReadService;
use crate::route::Router;
use crate::route::oldest::Oldest;
use crate::shutdown::{ExitReason, FailureSignal};
use crate::store::Store;
use crate::store::registry::RegistryQuery;
use crate::systemd::Notifier;

/// Capacity of the channel for dead letters, in deliveries.
const DEAD_QUEUE_MAX: usize = 64;
/// Stored readings that a bucket remembers to find duplicates: 128 KiB, or 64 readings under memory pressure.
const SEEN_MAX: usize = 8192;
/// Time for the admin port's last responses, beyond the deadline.
const ADMIN_GRACE: Duration = Duration::from_secs(1);

/// What could not be started, and why.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The admin port.
    #[error("{0}")]
    Admin(#[from] AdminError),
    /// The port for readings over HTTP.
    #[error("{0}")]
    Http(#[from] HttpError),
    /// The port for MQTT devices.
    #[error("{0}")]
    MqttListener(#[from] ListenError),
    /// The tokens of readers, if the HTTP port is disabled.
    #[error("{0}")]
    Tokens(#[from] TokensError),
    /// The connection to a broker.
    #[error("{0}")]
    Broker(#[from] SetupError),
    /// The journal cannot be opened.
    #[error("{0}")]
    Journal(#[from] JournalError),
    /// The task that opens the journal panicked.
    #[error("{0}")]
    JournalTask(#[source] JoinError),
    /// The threads of the journal.
    #[error("{0}")]
    JournalThreads(#[source] std::io::Error),
}

/// A running service.
pub struct Service {
    /// The address for readings over HTTP; `None` with `http.enabled = false`.
    pub http_addr: Option<SocketAddr>,
    /// The address for MQTT devices; `None` unless `listen.mqtt.enabled`.
    pub mqtt_addr: Option<SocketAddr>,
    /// The address of the admin port.
    pub admin_addr: SocketAddr,
    config: Config,
    clock: Arc<dyn Clock>,
    health: Arc<Health>,
    admission_control: AdmissionControl,
    failure_signal: FailureSignal,
    stop: CancellationToken,
    drained: CancellationToken,
    admin_stop: CancellationToken,
    /// The ingest tasks, in no order; they hold admission handles.
    front: Vec<JoinHandle<()>>,
    journal: Option<Journal>,
    router: JoinHandle<()>,
    shards: Vec<JoinHandle<()>>,
    latest: Vec<JoinHandle<()>>,
    dead: JoinHandle<()>,
    side: Vec<JoinHandle<()>>,
    admin: JoinHandle<()>,
    gauges: Vec<Arc<ShardGauges>>,
    notifier: Arc<Notifier>,
    reloader: Reloader,
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
}

/// The dependencies that the parts of the start share.
struct ServiceContext {
    config: Config,
    clock: Arc<dyn Clock>,
    health: Arc<Health>,
    admission_control: AdmissionControl,
    failure_signal: FailureSignal,
    flusher: Flusher,
}

impl ServiceContext {
    /// Spawns a task; if it panics, the service ends.
    fn spawn(&self, name: impl Into<String>, part: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        let (name, failure_signal) = (name.into(), self.failure_signal.clone());
        tokio::spawn(async move {
            if let Err(panic) = AssertUnwindSafe(part).catch_unwind().await {
                let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
                let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
                failure_signal.fail(format!("task {name} panicked: {text}"));
            }
        })
    }

    fn shards(&self, dead: &DeadLetters, registry: &Registry) -> ShardSet {
        let config = &self.config;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let n = if config.accumulate.shards == 0 { cores } else { config.accumulate.shards };
        let ms = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
        let settings = ShardSettings {
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
            backoff: backoff(config),
        };
        let mut shards = ShardSet::default();
        for i in 0..n {
            let latest = config.latest.enabled.then(|| self.latest(i, n, &mut shards));
            let gauge = Arc::new(ShardGauges::default());
            let (flusher, clock) = (self.flusher.clone(), self.clock.clone());
            let (handle, task) = ShardTask::new(
                settings.clone(),
                config.flush.commands_max,
                flusher,
                dead.clone(),
                clock,
                gauge.clone(),
            );
            let task = task.with_latest_and_tags(registry.clone(), latest);
            shards.handles.push(handle);
            shards.tasks.push(self.spawn(format!("shard {i}"), task.run()));
            shards.gauges.push(gauge);
        }
        shards
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
        let (flusher, clock, gauges) = (self.flusher.clone(), self.clock.clone(), Arc::new(LatestGauges::default()));
        let (handle, task) = LatestTask::new(settings, hold_acks, flusher, backoff(config), clock, gauges.clone());
        shards.latest.push(self.spawn(format!("latest state of shard {i}"), task.run()));
        shards.latest_gauges.push(gauges);
        handle
    }

    /// The task that fills the tag registry; `None` if it is disabled.
    fn enrichment(&self, store: &Arc<dyn Store>, registry: &Registry, decoding: Live<Decoding>) -> Option<Enrichment> {
        let settings = &self.config.enrich;
        let query = RegistryQuery {
            collection: settings.collection.clone()?,
            id_field: settings.id_field.clone(),
            fields: settings.fields.clone(),
        };
        let (reader, interval) = (store.registry(query)?, settings.interval);
        Some(Enrichment::new(reader, registry.clone(), decoding, interval, settings.max_sensors))
    }

    /// Starts the router, and with `ack = "journal"` the journal before it.
    async fn route(
        &self,
        router: Router,
        ingest_batches: IngestReceiver,
        oldest: Arc<Oldest>,
    ) -> Result<(JoinHandle<()>, Option<Journal>), StartError> {
        let failure_signal = self.failure_signal.clone();
        let ended = move |result: Result<(), crate::route::RouteError>| {
            if let Err(error) = result {
                failure_signal.fail(error.to_string());
            }
        };
        if self.config.ingest.ack == AckMode::Stored {
            let clock = self.clock.clone();
            let task = self.spawn("router", async move { ended(router.take(ingest_batches, oldest, clock).await) });
            return Ok((task, None));
        }
        let broken = self.failure_signal.clone();
        let env = journal::JournalDeps {
            fs: Arc::new(journal::fs::RealFs),
            clock: self.clock.clone(),
            admission_control: self.admission_control.clone(),
            on_broken: Box::new(move |why| broken.fail(format!("journal: {why}"))),
        };
        let config = self.config.journal.clone();
        let opened = tokio::task::spawn_blocking(move || Journal::open(&config, env)).await;
        let mut opened = opened.map_err(StartError::JournalTask)??;
        opened.journal.start(ingest_batches).map_err(StartError::JournalThreads)?;
        let task = self.spawn("router", async move { ended(router.follow(opened.follower).await) });
        Ok((task, Some(opened.journal)))
    }
}

fn backoff(config: &Config) -> Backoff {
    Backoff { min: config.flush.backoff_min, max: config.flush.backoff_max }
}

impl Service {
    /// Starts everything. If the store is unavailable the service starts anyway and retries.
    ///
    /// # Errors
    /// A port, the journal or the settings of a broker cannot be used; then nothing runs.
    pub async fn start(config: Config, store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Result<Service, StartError> {
        Service::start_with(config, store, clock, false).await.map(|(service, _)| service)
    }

    /// Like [`Service::start`], and reports to the service manager.
    ///
    /// # Errors
    /// See [`Service::start`].
    pub async fn start_watched(
        config: Config,
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        notifier: Notifier,
    ) -> Result<Service, StartError> {
        let (mut service, admission) = Service::start_with(config, store, clock, false).await?;
        service.tell(notifier, admission).await;
        Ok(service)
    }

    /// A second instance for a command, next to a running or stopped service: without ports for senders, brokers and
    /// journal. The caller submits readings, which may be stored already, to the returned admission; they are
    /// acknowledged when they are stored. The instance ends when the admission is dropped and [`Service::run_until`] is
    /// asked to stop.
    ///
    /// # Errors
    /// See [`Service::start`].
    pub async fn start_fed(
        mut config: Config,
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
    ) -> Result<(Service, Admission), StartError> {
        config.ingest.ack = AckMode::Stored;
        config.http.enabled = false;
        config.mqtt.clear();
        config.listen.mqtt.enabled = false;
        // Any free port: the service's own may be in use, and no client connects to this one.
        config.admin.listen = SocketAddr::from(([127, 0, 0, 1], 0));
        Service::start_with(config, store, clock, true).await
    }

    async fn start_with(
        config: Config,
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        repeats: bool,
    ) -> Result<(Service, Admission), StartError> {
        let admission_control = AdmissionControl::default();
        let failure_signal = FailureSignal::new(admission_control.clone());
        let health = Arc::new(Health::new(config.ingest.ack));
        let on_store = upkeep::on_store(health.clone(), clock.clone());
        let flusher = Flusher::new(store.clone(), backoff(&config), config.bucket.span, on_store);
        let bytes_max = u32::try_from(config.ingest.queue_max_bytes).unwrap_or(u32::MAX);
        let (admission, ingest_batches) =
            admission_channel(config.ingest.queue_max, bytes_max, admission_control.clone());
        let admission = admission.counting_fields(FieldLimiter::new(config.bucket.span));
        let context = Arc::new(ServiceContext {
            config: config.clone(),
            clock: clock.clone(),
            health: health.clone(),
            admission_control: admission_control.clone(),
            failure_signal: failure_signal.clone(),
            flusher: flusher.clone(),
        });
        // Ports first: they fail most often, and nothing else has started yet.
        let admin = Admin::bind(&config.admin, health.clone(), clock.clone()).await?;
        let (stop, drained) = (CancellationToken::new(), CancellationToken::new());
        let ((setter, decoding), of_ports) = (Live::new(config.decoding()), health.clone());
        let env = ingest::IngestDeps {
            decoding,
            on_tls: Arc::new(move |status| of_ports.tls(status)),
            ack: config.ingest.ack,
            admission: admission.clone(),
            clock: clock.clone(),
            stop: stop.clone(),
            drained: drained.clone(),
        };
        let ports = IngestPorts::bind(&config, &env).await?;
        // Readers are authorized by the tokens of HTTP writers, also if the HTTP port is disabled.
        let readers = match &ports.http {
            Some(http) => http.tokens(),
            None if repeats => None,
            None => ingest::http::tokens(&config.http)?,
        };
        let readers = TokenSource::new(readers);
        let reloader = Reloader::new(Running {
            config: config.clone(),
            clock: clock.clone(),
            health: health.clone(),
            decoding: setter,
            http: ports.http.as_ref().map(HttpIngest::renewal),
            admin: admin.certificates().cloned(),
            readers: readers.clone(),
            devices: ports.devices.as_ref().map(MqttListener::renewal),
        });
        let oldest = Arc::new(Oldest::default());
        let (dead_handle, dead) = DeadLetters::new(flusher, DEAD_QUEUE_MAX, config.dead_letters.max_bytes);
        let registry = if config.enrich.collection.is_some() { Registry::new() } else { Registry::default() };
        let enrichment = context.enrichment(&store, &registry, env.decoding.clone());
        let ShardSet { handles, tasks: shards, gauges, latest, latest_gauges } =
            context.shards(&dead_handle, &registry);
        let query_handles = handles.iter().map(ShardHandle::query_handle).collect();
        let router = Router::new(handles, dead_handle).repeating(repeats);
        let (router, journal) = context.route(router, ingest_batches, oldest.clone()).await?;
        let dead = context.spawn("dead letters", dead);
        let (http_addr, admin_addr) = (ports.http.as_ref().map(HttpIngest::local_addr), admin.local_addr());
        let mqtt_addr = ports.devices.as_ref().map(MqttListener::local_addr);
        if let Some(addr) = http_addr {
            let scheme = if config.http.tls.cert_file.is_some() { "https" } else { "http" };
            health.http(format!("{scheme}://{addr}"));
        }
        let journal_handle = journal.as_ref().map(Journal::handle);
        let reads =
            ReadService::new(query_handles, journal_handle.clone(), store.clone(), clock.clone(), config.bucket.span);
        let admin = if repeats { admin } else { admin.with_reads(Arc::new(reads), readers) };
        let upkeep = context.clone().upkeep(store.clone(), gauges.clone(), latest_gauges, journal_handle, oldest);
        let side = vec![
            context.spawn("store preparation", context.clone().prepare(store, enrichment)),
            context.spawn("upkeep", upkeep),
        ];
        let admin_token = CancellationToken::new();
        let admin = context.spawn("admin port", logged("admin port", admin.serve(admin_token.clone())));
        let front = start_front(&context, ports, env)?;
        health.started();
        let service = Service {
            http_addr,
            mqtt_addr,
            admin_addr,
            config,
            clock,
            health,
            admission_control,
            failure_signal,
            stop,
            drained,
            admin_stop: admin_token,
            front,
            journal,
            router,
            shards,
            latest,
            dead,
            side,
            admin,
            gauges,
            notifier: Arc::default(),
            reloader,
        };
        Ok((service, admission))
    }

    /// Reports to the service manager that the service is ready, and its state from then on. `admission` is the handle
    /// returned by [`Service::start_with`].
    async fn tell(&mut self, notifier: Notifier, admission: Admission) {
        self.notifier = Arc::new(notifier);
        self.notifier.ready(&watch::line(&self.health.report())).await;
        if !self.notifier.is_open() {
            return;
        }
        let journal = self.journal.as_ref().map(Journal::handle);
        let admission = watch::probe_handle(self.config.ingest.ack, admission);
        let parts = watch::Parts { gauges: self.gauges.clone(), journal, admission };
        self.side.push(tokio::spawn(watch::watch(self.notifier.clone(), self.health.clone(), parts)));
    }

    /// The connection to the service manager, for reports about reloads.
    pub fn notifier(&self) -> Arc<Notifier> {
        self.notifier.clone()
    }

    /// The handle that applies changed settings at runtime.
    pub fn reloader(&self) -> Reloader {
        self.reloader.clone()
    }

    /// Runs until `stop` completes or a part fails, then shuts down in order.
    pub async fn run_until(self, stop: impl Future<Output = &'static str>) -> ExitReason {
        let failure_signal = self.failure_signal.clone();
        let broken = tokio::select! {
            why = stop => {
                tracing::info!(reason = why, "stopping");
                None
            }
            reason = failure_signal.wait() => {
                tracing::error!(reason, "service failed; stopping");
                self.health.broken(reason.clone());
                Some(reason)
            }
        };
        let ended = self.shut_down().await;
        match broken.or_else(|| failure_signal.reason()) {
            Some(reason) => ExitReason::Broken(reason),
            None => ended,
        }
    }

    async fn shut_down(mut self) -> ExitReason {
        let deadline = Instant::now() + self.config.shutdown.deadline;
        let begun = self.clock.now().mono_ms;
        self.admission_control.stop();
        self.health.stopping();
        self.notifier.stopping(self.config.shutdown.deadline).await;
        self.stop.cancel();
        self.reloader.end().await;
        let mut in_time = true;
        for task in &mut self.front {
            in_time &= tokio::time::timeout_at(deadline, task).await.is_ok();
        }
        self.drained.cancel();
        if let Some(journal) = self.journal.as_mut() {
            in_time &= tokio::time::timeout_at(deadline, journal.close()).await.is_ok();
        }
        in_time &= tokio::time::timeout_at(deadline, &mut self.router).await.is_ok();
        // Shards send dead letters and latest states, so those tasks end after them.
        for task in self.shards.iter_mut().chain(&mut self.latest).chain([&mut self.dead]) {
            in_time &= tokio::time::timeout_at(deadline, task).await.is_ok();
        }
        let mut left = self.gauges.iter().map(|g| g.get().readings as u64).sum();
        if let Some(journal) = self.journal.take() {
            let handle = journal.handle();
            journal.finish().await;
            left = handle.stats().unstored_entries;
        }
        // Tasks that did not end in time are aborted: the journal has their readings, or these were not acknowledged.
        self.shards.iter().chain(&self.latest).chain(&self.front).chain(&self.side).for_each(JoinHandle::abort);
        self.router.abort();
        self.dead.abort();
        self.admin_stop.cancel();
        let _ = tokio::time::timeout(ADMIN_GRACE, self.admin).await;
        let took_ms = self.clock.now().mono_ms - begun;
        if in_time && left == 0 {
            tracing::info!(took_ms, "stopped; everything that was acknowledged is stored");
            ExitReason::Clean
        } else {
            match self.config.ingest.ack {
                AckMode::Journal => tracing::error!(
                    took_ms,
                    left,
                    "stopped before everything was stored; the journal keeps the rest for the next start"
                ),
                AckMode::Stored => tracing::error!(
                    took_ms,
                    left,
                    "stopped before everything was stored; the rest was not acknowledged, and its senders send it again"
                ),
            }
            ExitReason::Unstored { left }
        }
    }
}

/// The ports for readings, bound but not served yet.
struct IngestPorts {
    http: Option<HttpIngest>,
    devices: Option<MqttListener>,
}

impl IngestPorts {
    async fn bind(config: &Config, env: &ingest::IngestDeps) -> Result<IngestPorts, StartError> {
        let mut ports = IngestPorts { http: None, devices: None };
        if config.http.enabled {
            let (decoding, admission, clock) = (env.decoding.now(), env.admission.clone(), env.clock.clone());
            let http = HttpIngest::bind(&config.http, decoding, admission, clock, &env.on_tls).await;
            ports.http = Some(http?);
        }
        if config.listen.mqtt.enabled {
            let devices = MqttListener::bind(&config.listen.mqtt, env.clone()).await;
            ports.devices = Some(devices?);
        }
        Ok(ports)
    }
}

/// Starts HTTP, the MQTT listener and the brokers. They own all admission handles; the caller keeps none.
fn start_front(
    context: &Arc<ServiceContext>,
    ports: IngestPorts,
    env: ingest::IngestDeps,
) -> Result<Vec<JoinHandle<()>>, StartError> {
    let mut front = vec![];
    for broker in &context.config.mqtt {
        let health = context.health.clone();
        let on_status = Arc::new(move |status: BrokerStatus| {
            health.mqtt(&status.broker, status.is_ready(), status.problem);
        });
        let task = mqtt::spawn(broker.clone(), env.clone(), on_status)?;
        front.push(watched(context, broker.url.clone(), task));
    }
    if let Some(devices) = ports.devices {
        front.push(watched(context, "MQTT listener".to_owned(), devices.spawn()));
    }
    if let Some(http) = ports.http {
        let serve = http.serve(env.stop.clone(), context.config.shutdown.deadline);
        front.push(context.spawn("http", logged("http", serve)));
    }
    Ok(front)
}

/// Spawns a watcher for an ingest task; if the task panics, the service ends.
fn watched(context: &Arc<ServiceContext>, name: String, task: JoinHandle<()>) -> JoinHandle<()> {
    let failure_signal = context.failure_signal.clone();
    context.spawn(name.clone(), async move {
        if task.await.is_err_and(|e| e.is_panic()) {
            failure_signal.fail(format!("task {name} panicked"));
        }
    })
}

/// Runs a server and logs its failure.
async fn logged(name: &'static str, server: impl Future<Output = std::io::Result<()>>) {
    if let Err(error) = server.await {
        tracing::error!(server = name, %error, "server failed");
    }
}
