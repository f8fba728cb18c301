//! Starts the parts of the service in order; the documentation of [`crate::app`] has the order.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;

use super::Service;
use super::context::ServiceContext;
use super::files::within_files;
use super::last_used::LastUsedFile;
use super::ports::{IngestPorts, start_front};
use super::rollup::weightings;
use super::stages::{Stages, Unstored};
use ::forward::ClientError;
use config::Config;
use ingest::http::{HttpError, HttpIngest};
use ingest::listen::{ListenError, MqttListener};
use ingest::mqtt::SetupError;
use journal::admission::Admission;
use journal::{Journal, JournalError};
use model::{Clock, Zone};
use net::access::{JwtKeysError, TokensError};
use pipeline::accumulate::QueryHandle;
use pipeline::enrich::{Enrichment, Registry};
use pipeline::route::aliases::AliasSetter;
use query::admin::{Admin, AdminError};
use query::read::ReadService;
use query::read::silence::Silence;
use store::Store;

/// What could not be started, and why.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The admin port.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// The port for readings over HTTP.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The port for MQTT devices.
    #[error(transparent)]
    MqttListener(#[from] ListenError),
    /// The tokens of readers, if the HTTP port is disabled.
    #[error(transparent)]
    Tokens(#[from] TokensError),
    /// The keys of JWTs.
    #[error(transparent)]
    Jwt(#[from] JwtKeysError),
    /// The connection to a broker.
    #[error(transparent)]
    Broker(#[from] SetupError),
    /// The journal cannot be opened.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The task that opens the journal panicked.
    #[error(transparent)]
    JournalTask(JoinError),
    /// The file with the id of this instance.
    #[error(
        "the file `instance` in journal.dir ({}) cannot be read or created: {error}; the service \
         must be able to write there",
        .dir.display()
    )]
    Instance {
        /// `journal.dir`
        dir: PathBuf,
        /// Why not.
        error: std::io::Error,
    },
    /// The threads of the journal.
    #[error(transparent)]
    JournalThreads(std::io::Error),
    /// The files that `[forward]` names.
    #[error(transparent)]
    Forward(#[from] ClientError),
}

impl Service {
    /// Starts all parts. `repeats`: a second instance, whose readings may be stored already
    /// ([`Service::start_fed`]).
    pub(super) async fn start_with(
        config: Config,
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        storing: Handle,
        repeats: bool,
    ) -> Result<(Service, Admission), StartError> {
        let (context, admission, ingest_batches) =
            ServiceContext::new(config, store.clone(), clock, storing);
        let ServiceContext {
            config,
            health,
            clock,
            ..
        } = &*context;
        // Ports first: they fail most often, and nothing else has started yet.
        let fitted = within_files(config);
        let admin = Admin::bind(&fitted.admin, health.clone(), clock.clone()).await?;
        let (decoding, deps) = context.ingest_deps(&admission)?;
        let ports = IngestPorts::bind(&fitted, &deps).await?;
        let readers = ports.readers(config, &deps.grants, repeats)?;
        let reloader = ports.reloader(
            &context,
            decoding,
            &admin,
            readers.clone(),
            deps.grants.clone(),
        );
        let registry = if config.enrich.collection.is_some() {
            Registry::new()
        } else {
            Registry::default()
        };
        let enrichment = context.enrichment(&store, &registry, deps.decoding.clone());
        let (alias_setter, aliases) = AliasSetter::new();
        let (stages, query_handles) = context
            .stages(&registry, &aliases, ingest_batches, repeats)
            .await?;
        let instance = context.instance()?;
        if let Some(url) = ports.http_url(config) {
            health.http(url);
        }
        let http_addr = ports.http.as_ref().map(HttpIngest::local_addr);
        let mqtt_addr = ports.devices.as_ref().map(MqttListener::local_addr);
        let admin_addr = admin.local_addr();
        let sensors = &config.sensors;
        let silence = Arc::new(Silence::new(sensors.silent_after, sensors.retired_after));
        let reads = context
            .reads(&stages, query_handles, store.clone())
            .with_silence(silence.clone())
            .with_aliases(aliases);
        let admin = if repeats {
            admin
        } else if let Some(elsewhere) = config.forward.elsewhere() {
            admin.with_reads_elsewhere(elsewhere, readers)
        } else {
            admin.with_reads(Arc::new(reads), config.promql.clone(), readers)
        };
        let unstored = Unstored::from_stages(&stages);
        let followed =
            context
                .clone()
                .follow_aliases(store.clone(), alias_setter, instance.clone(), unstored);
        let mut side = context.start_side(store.clone(), &stages, enrichment, silence, repeats);
        side.push(context.spawn_storing("aliases", followed));
        let last_used = LastUsedFile::new(config, clock.clone(), deps.grants.usages.clone());
        side.push(context.spawn("last uses", last_used.clone().run()));
        let ports_stop = CancellationToken::new();
        let admin = context.spawn("admin port", admin.serve(ports_stop.clone()));
        let stop = deps.stop.clone();
        let drained = deps.drained.clone();
        // Last, because readings arrive from here on.
        let front = start_front(&context, ports, deps, ports_stop.clone())?;
        health.started();
        let notifier = Arc::default();
        let service = Service {
            http_addr,
            mqtt_addr,
            admin_addr,
            context,
            stop,
            drained,
            ports_stop,
            front,
            stages,
            last_used,
            side,
            admin,
            notifier,
            reloader,
            store,
            instance,
        };
        Ok((service, admission))
    }
}

impl ServiceContext {
    /// Answers queries from the store, the shards and the journal.
    fn reads(
        &self,
        stages: &Stages,
        query_handles: Vec<QueryHandle>,
        store: Arc<dyn Store>,
    ) -> ReadService {
        let journal = stages.journal.as_ref().map(Journal::handle);
        let config = &self.config;
        let limits = (config.admin.queries_max, config.admin.answers_max);
        ReadService::new(
            query_handles,
            journal,
            store,
            self.clock.clone(),
            config.bucket.span,
            limits,
        )
        .with_rollup(
            Zone::from(config.rollup.zone),
            stages.rollups.views.clone(),
            self.day_kinds(),
            config.store.retention,
        )
        .with_weightings(weightings(config))
    }

    /// Starts the background tasks. An instance of a command (`repeats`) neither removes readings
    /// nor records that the service runs, which decides which sensors are silent.
    fn start_side(
        self: &Arc<Self>,
        store: Arc<dyn Store>,
        stages: &Stages,
        enrichment: Option<Enrichment>,
        silence: Arc<Silence>,
        repeats: bool,
    ) -> Vec<JoinHandle<()>> {
        let gauges = stages.gauges.clone();
        let latest_gauges = stages.latest_gauges.clone();
        let journal = stages.journal.as_ref().map(Journal::handle);
        if let Some(status) = &stages.forward {
            let report = self.clone().report_forward(status.clone(), journal.clone());
            let oldest = stages.oldest.clone();
            let upkeep = self.clone().upkeep_without_store(journal, oldest);
            return vec![
                self.spawn("upkeep", upkeep),
                self.spawn("forward report", report),
            ];
        }
        let upkeep = self.clone().upkeep(
            store.clone(),
            gauges,
            latest_gauges,
            journal,
            stages.oldest.clone(),
        );
        let preparation = self.spawn_storing(
            "store preparation",
            self.clone().prepare(store.clone(), enrichment),
        );
        let unstored = Unstored::from_stages(stages);
        let removal = self
            .clone()
            .remove_readings(store.clone(), unstored.clone());
        let removal = (!repeats).then(|| self.spawn_storing("removal of readings", removal));
        let silence = self.clone().silence(store.clone(), silence, unstored);
        let silence = (!repeats).then(|| self.spawn_storing("silent sensors", silence));
        let catalogue = self.spawn_storing("catalogue", self.clone().catalogue(store));
        let upkeep = self.spawn("upkeep", upkeep);
        let rollup = self.rollup_upkeep(&stages.rollups);
        let tasks = [
            Some(catalogue),
            silence,
            Some(preparation),
            Some(upkeep),
            removal,
            rollup,
        ];
        tasks.into_iter().flatten().collect()
    }
}
