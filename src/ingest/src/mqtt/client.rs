//! A broker's poll task: connects, receives, hands over, acknowledges, and reconnects. And the submit
//! task of each of its connections.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio_util::task::AbortOnDropHandle;

use super::acks::AckTracker;
use super::backoff::Backoff;
use super::births_file::{BirthsFile, births_path};
use super::broker::{Broker, BrokerStatus, OnStatus};
use super::collect::{Collector, Settings};
use super::connection::{CloseReason, Connection};
use super::link;
use super::losses::{Losses, lasting_problem};
use super::presence::{Host, Presence};
use super::target::{Credentials, SetupError, Target};
use super::window::Window;
use crate::IngestDeps;
use config::{Mqtt, MqttProtocol};
use journal::admission::{Admission, AdmissionError, IngestBatch};
use journal::commit_delay::CommitDelay;
use telemetry::metrics::{self, Source};

/// Maximum queued ingest batches. At 256 KiB each, 64 MiB per broker; at 512 messages each, more
/// than the 65,535 messages that a broker may have unacknowledged.
pub(super) const BATCHES_MAX: usize = 256;

/// How often a closed admission is checked again.
const RETRY: Duration = Duration::from_millis(50);

/// Starts the tasks of one broker of all that are configured. They end after `stop` when all accepted messages are
/// acknowledged, or at `drained` if that comes first.
///
/// # Errors
/// The URL or a topic template cannot be used (the configuration's check should have found it).
pub fn spawn(
    mut config: Mqtt,
    all: &[Mqtt],
    deps: IngestDeps,
    on_status: OnStatus,
) -> Result<JoinHandle<()>, SetupError> {
    let IngestDeps {
        decoding,
        ack,
        admission,
        commit_delay,
        clock,
        stop,
        drained,
        births_dir,
        sparkplug_host,
        ..
    } = deps;
    let host = sparkplug_host.and_then(|id| Host::new(&id, &config));
    config
        .subscriptions
        .extend(host.as_ref().map(Host::subscription));
    let births_file = births_dir.map(|dir| births_path(&dir, &config));
    let target = Target::parse(&config.url)?;
    let settings = Settings {
        source: Source::Mqtt.as_str(),
        payload_bytes_max: config.packet_max_bytes as usize,
        status_topic: config.status_topic.clone(),
    };
    let collector = Collector::new(&config.subscriptions, settings, decoding.now())?;
    let collector = collector
        .checking(admission.checks())
        .limiting_readings(admission.readings_bytes_max());
    // With 3.1.1 the broker's limit applies and is not announced. Packet ids have 16 bits.
    let window = if config.protocol == MqttProtocol::V5 {
        config.window
    } else {
        u16::MAX
    };
    let name = target.name_among(all, &config);
    let (settled_tx, settled) = mpsc::unbounded_channel();
    let status = BrokerStatus {
        broker: name.clone(),
        connected: false,
        subscribed: false,
        problem: None,
    };
    let births = BirthsFile::new(name.clone(), births_file);
    let broker = Broker {
        config: Arc::new(config),
        name,
        clock,
        stop,
        drained,
        collector,
        decoding,
        ack_tracker: AckTracker::default(),
        window: Window::new(usize::from(window)),
        ack,
        admission,
        file_problem: None,
        session_problem: None,
        losses: Losses::default(),
        settled_tx,
        settled,
        connections: 0,
        status,
        on_status,
        target,
        host,
        material: None,
        backoff: Backoff::default(),
        pending_reported: 0,
        births,
        delay: CommitDelay::new(commit_delay),
    };
    Ok(tokio::spawn(broker.run()))
}

impl Broker {
    async fn run(mut self) {
        self.report();
        metrics::mqtt_broker(&self.name);
        self.births.restore(&mut self.collector).await;
        while !self.stop.is_cancelled() {
            // If admission is closed permanently, connecting would only make the broker send the
            // same messages again and again.
            if !matches!(
                self.admission.check(),
                Err(AdmissionError::Stopping | AdmissionError::Broken)
            ) {
                let (end, lasted) = self.connection().await;
                self.disconnected(&end, lasted);
            }
            let wait = self.backoff.wait();
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.stop.cancelled() => {}
            }
        }
        self.births.keep_finally(self.collector.births()).await;
        tracing::info!(broker = %self.name, "MQTT client stopped");
    }

    /// Opens a connection and serves it until it ends. Returns how long its session lasted, if the
    /// broker accepted it.
    async fn connection(&mut self) -> (CloseReason, Option<Duration>) {
        let (sender, mut link, presence) = match self.open().await {
            Ok(opened) => opened,
            Err(error) => return (CloseReason::Setup(error), None),
        };
        self.ack_tracker.reconnect();
        // Messages collected on the previous connection are sent again by the broker.
        drop(self.collector.finish());
        let taken = Arc::new(Notify::new());
        let (queue, ingest_batches) = mpsc::channel(BATCHES_MAX);
        let _submitter = AbortOnDropHandle::new(tokio::spawn(submit(
            ingest_batches,
            self.admission.clone(),
            taken.clone(),
        )));
        let mut connection = Connection::new(self, sender, presence, queue, taken);
        let end = connection.serve(&mut link).await;
        let lasted = connection.lasted();
        let was_useful = connection.was_useful();
        connection.close(link, &end).await;
        if was_useful {
            self.backoff.reset();
        }
        self.ack_tracker.reconnect();
        self.show_pending();
        (end, lasted)
    }

    /// Creates both halves of a new connection, with the current content of the files, and what it
    /// publishes about the service.
    async fn open(&mut self) -> Result<(link::Sender, link::Link, Option<Presence>), SetupError> {
        let config = self.config.clone();
        let target = self.target.clone();
        let before = self.material.clone();
        let read = tokio::task::spawn_blocking(move || {
            Credentials::load(&config, &target, before.as_ref())
        })
        .await;
        let (material, problem) = read.map_err(SetupError::options)??;
        if let Some(problem) = problem.as_ref().filter(|_| self.file_problem != problem) {
            tracing::warn!(broker = %self.name, problem, "cannot read credential files; using \
                their previous content");
        }
        self.file_problem = problem;
        let now_ms = self.clock.now().wall_ms;
        let presence = Presence::new(&self.config, self.host.as_mut(), now_ms);
        let opened = link::open(&self.config, &self.target, &material, presence.as_ref());
        self.material = Some(material);
        opened.map(|(sender, link)| (sender, link, presence))
    }

    fn disconnected(&mut self, end: &CloseReason, lasted: Option<Duration>) {
        let mut problem = end.to_string();
        if let (CloseReason::Lost(error), Some(lasted)) = (end, lasted) {
            self.backoff.lost(lasted);
            self.session_problem = lasting_problem(error, self.backoff.short_sessions());
            problem = self.session_problem.clone().unwrap_or(problem);
        }
        let broker = &self.name;
        match end {
            CloseReason::Stopped => {}
            CloseReason::Setup(error) => {
                tracing::error!(%broker, %error, "MQTT connection cannot be configured")
            }
            CloseReason::Lost(_) => {
                let now_ms = self.clock.now().mono_ms;
                if let Some(suppressed) = self.losses.log(&problem, now_ms) {
                    let suppressed = (suppressed > 0).then_some(suppressed);
                    tracing::warn!(
                        %broker, error = problem, suppressed, "no MQTT connection; reconnecting"
                    );
                }
            }
            CloseReason::OldState => tracing::warn!(
                %broker,
                "a Sparkplug STATE of sparkplug.host_id is newer than this connection; reconnecting \
                 with a later time"
            ),
            CloseReason::Blocked => tracing::warn!(
                %broker,
                "messages not accepted; reconnecting so that the broker sends them again"
            ),
        }
        self.status.connected = false;
        if !matches!(end, CloseReason::Stopped) {
            self.status.problem = Some(problem);
        }
        self.report();
    }
}

/// The submit task of a connection: submits its ingest batches to admission, in order, and waits
/// while admission is closed, so that the poll task never has to wait.
///
/// It ends with its connection. Ingest batches that are still queued are dropped, because the
/// broker sends their messages again.
///
/// Runs until the queue is closed or admission is closed permanently. Notifies `taken` of each
/// ingest batch taken off the queue.
pub(crate) async fn submit(
    mut queue: mpsc::Receiver<IngestBatch>,
    admission: Admission,
    taken: Arc<Notify>,
) {
    while let Some(ingest_batch) = queue.recv().await {
        taken.notify_one();
        // Checked before, because `submit` drops an ingest batch that it refuses.
        while let Err(AdmissionError::Busy | AdmissionError::Full) = admission.check() {
            tokio::time::sleep(RETRY).await;
        }
        match admission.submit(ingest_batch).await {
            Ok(()) => {}
            // Admission closed while the ingest batch waited. Its acknowledgement has reported
            // that, and the connection ends when all messages before it are acknowledged.
            Err(AdmissionError::Busy | AdmissionError::Full) => {}
            Err(AdmissionError::Stopping | AdmissionError::Broken) => return,
        }
    }
}
