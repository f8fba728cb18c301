//! The state of one broker, which its connections share one after the other.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::acks::{AckTracker, Group};
use super::backoff::Backoff;
use super::births_file::BirthsFile;
use super::collect::Collector;
use super::event::Receipt;
use super::losses::Losses;
use super::presence::Host;
use super::retained::Note;
use super::target::{Credentials, Target};
use super::window::Window;
use config::{AckMode, Decoding, Live, Mqtt};
use journal::admission::Admission;
use journal::commit_delay::CommitDelay;
use model::Clock;
use model::ack::AckOutcome;
use telemetry::metrics::{self, Source};

/// Connection status of a broker, for readiness.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerStatus {
    /// `host:port`, as in the metrics label `broker`.
    pub broker: String,
    /// Whether the connection is open.
    pub connected: bool,
    /// Whether the broker has granted every subscription.
    pub subscribed: bool,
    /// Why the broker is not ready, or is degraded: also a subscription granted with a lower QoS
    /// than requested.
    pub problem: Option<String>,
}

impl BrokerStatus {
    /// Whether messages of every subscription can arrive.
    pub fn is_ready(&self) -> bool {
        self.connected && self.subscribed
    }
}

/// Called at every change, in the broker's task. It must not block.
pub type OnStatus = Arc<dyn Fn(BrokerStatus) + Send + Sync>;

/// A message that waits for its PUBACK.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pending {
    pub(super) receipt: Receipt,
    /// Remembered once the message is acknowledged.
    pub(super) note: Option<Note>,
    /// Time of receipt on the monotonic clock.
    pub(super) since_ms: u64,
}

/// State shared by the connections of a broker.
pub(super) struct Broker {
    pub(super) config: Arc<Mqtt>,
    pub(super) name: String,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) stop: CancellationToken,
    pub(super) drained: CancellationToken,
    pub(super) collector: Collector,
    pub(super) decoding: Live<Decoding>,
    pub(super) ack_tracker: AckTracker<Pending>,
    pub(super) window: Window,
    pub(super) ack: AckMode,
    pub(super) admission: Admission,
    /// Why the previous content of the files is used.
    pub(super) file_problem: Option<String>,
    /// Why sessions end soon after they begin.
    pub(super) session_problem: Option<String>,
    pub(super) losses: Losses,
    /// One outcome per ingest batch in flight, also of older connections. Ingest batches are
    /// bounded by the queue and by admission.
    pub(super) settled_tx: mpsc::UnboundedSender<(Group, AckOutcome)>,
    pub(super) settled: mpsc::UnboundedReceiver<(Group, AckOutcome)>,
    /// Connections opened so far.
    pub(super) connections: u64,
    pub(super) status: BrokerStatus,
    pub(super) on_status: OnStatus,
    pub(super) target: Target,
    /// `None`: the service is not a Sparkplug host at this broker.
    pub(super) host: Option<Host>,
    /// Certificates and password of the last connection.
    pub(super) material: Option<Credentials>,
    pub(super) backoff: Backoff,
    pub(super) pending_reported: i64,
    pub(super) births: BirthsFile,
    /// How long messages are collected.
    pub(super) delay: CommitDelay,
}

impl Broker {
    /// Publishes the status of an open connection with these problems of its own.
    pub(super) fn report_open(&mut self, problems: &BTreeMap<String, String>) {
        let lasting = self.file_problem.iter().chain(&self.session_problem);
        let all: Vec<&str> = lasting
            .chain(problems.values())
            .map(String::as_str)
            .collect();
        self.status.problem = (!all.is_empty()).then(|| all.join("; "));
        self.report();
    }

    /// Publishes the status.
    pub(super) fn report(&self) {
        metrics::mqtt_connected(&self.name, self.status.is_ready());
        (self.on_status)(self.status.clone());
    }

    /// Updates the gauge of messages that wait for their PUBACK, by difference, because other
    /// brokers add to the same gauge.
    pub(super) fn show_pending(&mut self) {
        let pending = self.ack_tracker.pending() as i64;
        if pending != self.pending_reported {
            metrics::acks_pending(Source::Mqtt, pending - self.pending_reported);
            self.pending_reported = pending;
        }
    }
}
