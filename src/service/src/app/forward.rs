//! The stages of an instance that forwards: the journal, and what sends it to the centre.

use std::sync::Arc;
use std::time::Duration;

use super::StartError;
use super::context::ServiceContext;
use super::stages::Stages;
use ::forward::{ForwardStatus, Forwarder};
use journal::JournalHandle;
use journal::admission::IngestReceiver;
use query::admin::health::ForwardReport;
use telemetry::metrics;

/// How often health and gauges are updated.
const EVERY: Duration = Duration::from_secs(1);
/// Problems that last less are not logged: every restart of the centre is one.
const LOG_AFTER_MS: u64 = 10_000;

impl ServiceContext {
    /// Starts the journal and the lanes behind it.
    pub(super) async fn forwarding_stages(
        &self,
        ingest_batches: IngestReceiver,
    ) -> Result<Stages, StartError> {
        let config = &self.config;
        // Before the journal, which cannot be left behind half open.
        let forwarder = Forwarder::new(&config.forward, &config.journal.dir, self.clock.clone())?;
        let status = forwarder.status();
        let (journal, follower) = self.open_journal(ingest_batches).await?;
        self.report_forward_once(&status, &journal.handle());
        let failure_signal = self.failure_signal.clone();
        let router = self.spawn_storing("forward", async move {
            if let Err(error) = forwarder.follow(follower).await {
                failure_signal.fail(error.to_string());
            }
        });
        let dead = self.spawn_storing("dead letters", async {});
        Ok(Stages {
            journal: Some(journal),
            router,
            shards: vec![],
            latest: vec![],
            rollups: Default::default(),
            dead,
            gauges: vec![],
            latest_gauges: vec![],
            oldest: Arc::default(),
            forward: Some(status),
        })
    }

    /// Reports what prevents readings from being sent, in the health, the gauge and the log.
    pub(super) async fn report_forward(
        self: Arc<Self>,
        status: Arc<ForwardStatus>,
        journal: Option<JournalHandle>,
    ) {
        let Some(journal) = journal else { return };
        let mut logged = false;
        loop {
            let report = self.report_forward_once(&status, &journal);
            let failing_ms = 1000 * report.failing_seconds.unwrap_or_default();
            match (&report.error, logged) {
                (Some(error), false) if failing_ms >= LOG_AFTER_MS => {
                    let url = report.url.as_str();
                    tracing::warn!(
                        url,
                        error,
                        "the centre takes no readings; the journal keeps them"
                    );
                    logged = true;
                }
                (None, true) => {
                    tracing::info!(url = report.url, "the centre takes readings again");
                    logged = false;
                }
                _ => {}
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    fn report_forward_once(
        &self,
        status: &ForwardStatus,
        journal: &JournalHandle,
    ) -> ForwardReport {
        let now_ms = self.clock.now().mono_ms;
        let oldest_ms = journal.stats().oldest_unstored_age_ms;
        metrics::forward_oldest_seconds(oldest_ms.unwrap_or_default() as f64 / 1000.0);
        let problem = status.problem();
        let report = ForwardReport {
            url: status.url().to_owned(),
            ok: problem.is_none(),
            failing_seconds: problem
                .as_ref()
                .map(|(_, since_ms)| now_ms.saturating_sub(*since_ms) / 1000),
            error: problem.map(|(problem, _)| problem),
            oldest_seconds: oldest_ms.map(|ms| ms / 1000),
        };
        self.health.forward(report.clone());
        report
    }
}
