//! The ports for senders, which are bound first and served last, and the connections to brokers.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::StartError;
use super::context::{ServiceContext, logged};
use super::reload::{Reloader, Running};
use config::{AckMode, Config, Decoding, Live, Setter};
use ingest::IngestDeps;
use ingest::http::HttpIngest;
use ingest::listen::MqttListener;
use ingest::mqtt::{self, BrokerStatus};
use journal::admission::Admission;
use net::access::{GrantDefaults, Jwt, JwtKeysError, Usages};
use query::admin::{Admin, TokenSource};
use telemetry::metrics;

impl ServiceContext {
    /// What grants are made with; their usages start at zero.
    fn grants(&self) -> Result<GrantDefaults, JwtKeysError> {
        let quota = Some(self.config.quota.clone());
        let jwt = Jwt::load(&self.config.jwt)?.map(Arc::new);
        let certificates = self.config.certificates.clone();
        let journal_bytes_max = self.config.journal.max_bytes;
        Ok(GrantDefaults {
            quota,
            journal_bytes_max,
            usages: Usages::default(),
            jwt,
            certificates,
        })
    }

    /// What all protocols need, and the setter of the decoders' settings.
    pub(super) fn ingest_deps(
        &self,
        admission: &Admission,
    ) -> Result<(Setter<Decoding>, IngestDeps), StartError> {
        let decoding = self.config.decoding();
        metrics::ranges(&decoding.ranges);
        let (setter, decoding) = Live::new(decoding);
        let health = self.health.clone();
        let deps = IngestDeps {
            decoding,
            on_tls: Arc::new(move |status| health.tls(status)),
            ack: self.config.ingest.ack,
            grants: self.grants()?,
            admission: admission.clone(),
            commit_delay: match self.config.ingest.ack {
                AckMode::Journal => self.config.journal.commit_delay,
                AckMode::Stored => Duration::ZERO,
            },
            clock: self.clock.clone(),
            births_dir: Some(self.config.journal.dir.clone()),
            sparkplug_host: self.config.sparkplug.host_id.as_deref().map(Arc::from),
            stop: CancellationToken::new(),
            drained: CancellationToken::new(),
        };
        Ok((setter, deps))
    }
}

/// The ports for readings, bound but not served yet.
pub(super) struct IngestPorts {
    pub(super) http: Option<HttpIngest>,
    pub(super) devices: Option<MqttListener>,
}

impl IngestPorts {
    pub(super) async fn bind(
        config: &Config,
        deps: &IngestDeps,
    ) -> Result<IngestPorts, StartError> {
        let mut ports = IngestPorts {
            http: None,
            devices: None,
        };
        if config.http.enabled {
            let decoding = deps.decoding.now();
            let admission = deps.admission.clone();
            let clock = deps.clock.clone();
            let http = HttpIngest::bind(
                &config.http,
                decoding,
                admission,
                clock,
                &deps.on_tls,
                &deps.grants,
            )
            .await;
            ports.http = Some(http?);
        }
        if config.listen.mqtt.enabled {
            let devices = MqttListener::bind(&config.listen.mqtt, deps.clone()).await;
            ports.devices = Some(devices?);
        }
        Ok(ports)
    }

    /// The credentials that authorize readers: tokens and JWTs are those of HTTP writers, also if
    /// the HTTP port is disabled. None for a second instance (`repeats`), which serves no readings.
    pub(super) fn readers(
        &self,
        config: &Config,
        grants: &GrantDefaults,
        repeats: bool,
    ) -> Result<TokenSource, StartError> {
        if repeats {
            return Ok(TokenSource::new(None));
        }
        let of_writers = self.http.as_ref().and_then(HttpIngest::credentials);
        Ok(TokenSource::new(ingest::http::reader_credentials(
            config, grants, of_writers,
        )?))
    }

    /// The handle that applies changed settings to these ports.
    pub(super) fn reloader(
        &self,
        context: &ServiceContext,
        decoding: Setter<Decoding>,
        admin: &Admin,
        readers: TokenSource,
        grants: GrantDefaults,
    ) -> Reloader {
        Reloader::new(Running {
            config: context.config.clone(),
            clock: context.clock.clone(),
            health: context.health.clone(),
            decoding,
            http: self.http.as_ref().map(HttpIngest::renewal),
            admin: admin.renewal(),
            readers,
            grants,
            devices: self.devices.as_ref().map(MqttListener::renewal),
        })
    }

    /// The URL of the port for readings over HTTP.
    pub(super) fn http_url(&self, config: &Config) -> Option<String> {
        let addr = self.http.as_ref().map(HttpIngest::local_addr)?;
        let scheme = if config.http.tls.cert_file.is_some() {
            "https"
        } else {
            "http"
        };
        Some(format!("{scheme}://{addr}"))
    }
}

/// Starts HTTP, the MQTT listener and the brokers. They own all admission handles; the caller keeps
/// none. `closed`: until when HTTP answers.
pub(super) fn start_front(
    context: &Arc<ServiceContext>,
    ports: IngestPorts,
    deps: IngestDeps,
    closed: CancellationToken,
) -> Result<Vec<JoinHandle<()>>, StartError> {
    let mut front = vec![];
    let brokers = &context.config.mqtt;
    for broker in brokers {
        let health = context.health.clone();
        let on_status = Arc::new(move |status: BrokerStatus| {
            health.mqtt(&status.broker, status.is_ready(), status.problem);
        });
        let task = mqtt::spawn(broker.clone(), brokers, deps.clone(), on_status)?;
        front.push(watched(context, broker.url.clone(), task));
    }
    if let Some(devices) = ports.devices {
        front.push(watched(
            context,
            "MQTT listener".to_owned(),
            devices.spawn(),
        ));
    }
    if let Some(http) = ports.http {
        let deadline = context.config.shutdown.deadline;
        let serve = http.serve(deps.stop.clone(), closed, deadline);
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
