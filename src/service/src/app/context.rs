//! What the parts of the service share, and how their tasks are spawned.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::upkeep::on_store;
use crate::shutdown::FailureSignal;
use config::{AckMode, Config};
use journal::RequestKeys;
use journal::admission::{Admission, AdmissionControl, IngestReceiver, admission_channel};
use model::{Checks, Clock};
use pipeline::flush::Flusher;
use pipeline::flush::backoff::Backoff;
use query::admin::Health;
use store::Store;

/// Batches that may wait at admission, besides `ingest.queue_max_bytes`.
const BATCHES_MAX: usize = 1024;

/// The dependencies that the parts of the start share.
pub(super) struct ServiceContext {
    pub(super) config: Config,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) health: Arc<Health>,
    pub(super) admission_control: AdmissionControl,
    pub(super) failure_signal: FailureSignal,
    pub(super) flusher: Flusher,
    pub(super) keys: RequestKeys,
    /// The runtime of the stages after the journal.
    pub(super) storing: Handle,
}

impl ServiceContext {
    /// Creates the context, and the two ends of admission. The flusher sends nothing before it is
    /// opened. `storing`: the runtime of the stages after the journal.
    pub(super) fn new(
        config: Config,
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        storing: Handle,
    ) -> (Arc<ServiceContext>, Admission, IngestReceiver) {
        let admission_control = AdmissionControl::default();
        let failure_signal = FailureSignal::new(admission_control.clone());
        let health = Arc::new(Health::new(config.ingest.ack));
        let on_store = on_store(health.clone(), clock.clone());
        let flusher = Flusher::new(store, Backoff::default(), config.bucket.span, on_store)
            .with_ages(config.flush.max_age, config.flush.max_age_busy);
        let bytes_max = u32::try_from(config.ingest.queue_max_bytes).unwrap_or(u32::MAX);
        let (admission, ingest_batches) =
            admission_channel(BATCHES_MAX, bytes_max, admission_control.clone());
        let ingest = &config.ingest;
        let keys_max = ingest.idempotency_keys_max as usize;
        let keys = RequestKeys::new(ingest.idempotency_for, keys_max, clock.clone());
        let admission = admission
            .checking(Checks::new(config.bucket.span))
            .remembering(keys.clone());
        let admission = match config.ingest.ack {
            AckMode::Journal => {
                admission.limiting_readings(journal::readings_bytes_max(&config.journal))
            }
            AckMode::Stored => admission,
        };
        let context = ServiceContext {
            config,
            clock,
            health,
            admission_control,
            failure_signal,
            flusher,
            keys,
            storing,
        };
        (Arc::new(context), admission, ingest_batches)
    }

    /// Spawns a task; if it panics, the service ends.
    pub(super) fn spawn(
        &self,
        name: impl Into<String>,
        part: impl Future<Output = ()> + Send + 'static,
    ) -> JoinHandle<()> {
        tokio::spawn(self.guarded(name.into(), part))
    }

    /// The same for a task that no acknowledgement waits for.
    pub(super) fn spawn_storing(
        &self,
        name: impl Into<String>,
        part: impl Future<Output = ()> + Send + 'static,
    ) -> JoinHandle<()> {
        self.storing.spawn(self.guarded(name.into(), part))
    }

    fn guarded(
        &self,
        name: String,
        part: impl Future<Output = ()> + Send + 'static,
    ) -> impl Future<Output = ()> + Send + 'static {
        let failure_signal = self.failure_signal.clone();
        async move {
            if let Err(panic) = AssertUnwindSafe(part).catch_unwind().await {
                let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
                let text = text
                    .or_else(|| panic.downcast_ref::<String>().cloned())
                    .unwrap_or_default();
                failure_signal.fail(format!("task {name} panicked: {text}"));
            }
        }
    }
}

/// Runs a server and logs its failure.
pub(super) async fn logged(name: &'static str, server: impl Future<Output = std::io::Result<()>>) {
    if let Err(error) = server.await {
        tracing::error!(server = name, %error, "server failed");
    }
}
