//! The only module that connects the stages: who sends to whom, with which capacity, and the order
//! of start and end.
//!
//! ```text
//!  http ──┐ Admission (1024 ingest batches, ingest.queue_max_bytes)
//!  listen ┤
//!  mqtt ──┴──> journal ──Follower──> router ──ShardBatch (4 a shard)──> shards ──permits (flush.commands_max)──> store
//!         └───────────(ack = "stored")──┘  └──> dead letters    └──> latest (4 batches a shard) ───────────┘
//!                                                               └──> rollup (shared state, rollup.max_bytes) ──┘
//! ```
//!
//! With `[forward]` the journal is followed by lanes that send it to another instance (`forward`), and
//! there is neither router nor store.
//!
//! Start (`start`, with `context`, `ports` and `stages`): store (nothing is sent) → shards →
//! journal or admission → router → ports → brokers. Meanwhile the collections are prepared; the
//! first permit is released after that. End (`shut_down`): the phases of [`crate::shutdown`],
//! upstream stages first, so that every stage ends because the one before it ended.

mod aliases;
mod context;
mod files;
mod forward;
mod journal_report;
mod last_used;
mod ports;
mod prepare;
mod progress;
mod recent_rejects;
mod reload;
mod retention;
mod rollup;
mod shut_down;
mod silence;
mod stages;
mod start;
mod upkeep;
mod watch;

pub use self::reload::{Reloaded, Reloader};
pub(crate) use self::rollup::weightings;
pub use self::start::StartError;

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use self::context::ServiceContext;
use self::last_used::LastUsedFile;
use self::stages::Stages;
use crate::shutdown::ExitReason;
use crate::systemd::Notifier;
use config::{AckMode, Config};
use journal::Journal;
use journal::admission::Admission;
use model::Clock;
use store::Store;

/// A running service.
pub struct Service {
    /// The address for readings over HTTP; `None` with `http.enabled = false`.
    pub http_addr: Option<SocketAddr>,
    /// The address for MQTT devices; `None` unless `listen.mqtt.enabled`.
    pub mqtt_addr: Option<SocketAddr>,
    /// The address of the admin port.
    pub admin_addr: SocketAddr,
    context: Arc<ServiceContext>,
    stop: CancellationToken,
    drained: CancellationToken,
    ports_stop: CancellationToken,
    /// The ingest tasks, in no order; they hold admission handles.
    front: Vec<JoinHandle<()>>,
    stages: Stages,
    last_used: Arc<LastUsedFile>,
    side: Vec<JoinHandle<()>>,
    admin: JoinHandle<()>,
    notifier: Arc<Notifier>,
    reloader: Reloader,
    store: Arc<dyn Store>,
    /// The id of this instance.
    instance: Arc<str>,
}

impl Service {
    /// Starts everything. If the store is unavailable the service starts anyway and retries.
    ///
    /// # Errors
    /// A port, the journal or the settings of a broker cannot be used; then nothing runs.
    pub async fn start(
        config: Config,
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
    ) -> Result<Service, StartError> {
        Service::start_with(config, store, clock, Handle::current(), false)
            .await
            .map(|(service, _)| service)
    }

    /// Like [`Service::start`], and reports to the service manager. `storing`: the runtime of the
    /// stages after the journal.
    ///
    /// # Errors
    /// See [`Service::start`].
    pub(crate) async fn start_watched(
        config: Config,
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        notifier: Notifier,
        storing: Handle,
    ) -> Result<Service, StartError> {
        let (mut service, admission) =
            Service::start_with(config, store, clock, storing, false).await?;
        service.report_ready(notifier, admission).await;
        Ok(service)
    }

    /// A second instance for a command, next to a running or stopped service: without ports for
    /// senders, brokers and journal. The caller submits readings, which may be stored already, to
    /// the returned admission; they are acknowledged when they are stored. The instance ends when
    /// the admission is dropped and [`Service::run_until`] is asked to stop.
    ///
    /// # Errors
    /// See [`Service::start`].
    pub(crate) async fn start_fed(
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
        Service::start_with(config, store, clock, Handle::current(), true).await
    }

    /// Reports to the service manager that the service is ready, and its state from then on.
    /// `admission` is the handle returned by [`Service::start_with`].
    async fn report_ready(&mut self, notifier: Notifier, admission: Admission) {
        self.notifier = Arc::new(notifier);
        self.notifier
            .ready(&watch::line(&self.context.health.report()))
            .await;
        if !self.notifier.is_open() {
            return;
        }
        let journal = self.stages.journal.as_ref().map(Journal::handle);
        let admission = watch::probe_handle(self.context.config.ingest.ack, admission);
        let parts = watch::Parts {
            gauges: self.stages.gauges.clone(),
            journal,
            admission,
        };
        self.side.push(tokio::spawn(watch::watch(
            self.notifier.clone(),
            self.context.health.clone(),
            parts,
        )));
    }

    /// The connection to the service manager, for reports about reloads.
    pub(crate) fn notifier(&self) -> Arc<Notifier> {
        self.notifier.clone()
    }

    /// The handle that applies changed settings at runtime.
    pub fn reloader(&self) -> Reloader {
        self.reloader.clone()
    }

    /// Runs until `stop` completes or a part fails, then shuts down in order.
    pub async fn run_until(self, stop: impl Future<Output = &'static str>) -> ExitReason {
        let failure_signal = self.context.failure_signal.clone();
        let broken = tokio::select! {
            why = stop => {
                tracing::info!(reason = why, "stopping");
                None
            }
            reason = failure_signal.wait() => {
                tracing::error!(reason, "service failed; stopping");
                self.context.health.broken(reason.clone());
                Some(reason)
            }
        };
        let ended = self.shut_down().await;
        match broken.or_else(|| failure_signal.reason()) {
            Some(reason) => ExitReason::Broken(reason),
            None => ended,
        }
    }
}
