//! Ends the parts of the service in the order of the stream, within `shutdown.deadline` (see
//! [`crate::shutdown`]).

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::Service;
use crate::shutdown::ExitReason;
use config::AckMode;

/// Time to write when tokens were last used, beyond the deadline.
const LAST_USED_GRACE: Duration = Duration::from_secs(1);
/// Time to record that the instance has ended, beyond the deadline.
const RETIRE_GRACE: Duration = Duration::from_secs(1);
/// Time for the admin port's last responses, beyond the deadline.
const ADMIN_GRACE: Duration = Duration::from_secs(1);

impl Service {
    /// Ends the parts in order, and everything that is left at the deadline.
    pub(super) async fn shut_down(mut self) -> ExitReason {
        let deadline = Instant::now() + self.context.config.shutdown.deadline;
        let begun = self.context.clock.now().mono_ms;
        self.context.admission_control.stop();
        self.context.health.stopping();
        self.notifier
            .stopping(self.context.config.shutdown.deadline)
            .await;
        self.stop.cancel();
        self.reloader.end().await;
        let stages = &mut self.stages;
        let mut in_time = true;
        for task in &mut self.front {
            in_time &= tokio::time::timeout_at(deadline, task).await.is_ok();
        }
        self.drained.cancel();
        if let Some(journal) = stages.journal.as_mut() {
            in_time &= tokio::time::timeout_at(deadline, journal.close())
                .await
                .is_ok();
        }
        in_time &= tokio::time::timeout_at(deadline, &mut stages.router)
            .await
            .is_ok();
        // Shards send dead letters, latest states and changed days, so those tasks end after them.
        for task in stages
            .shards
            .iter_mut()
            .chain(&mut stages.latest)
            .chain(&mut stages.rollups.tasks)
            .chain([&mut stages.dead])
        {
            in_time &= tokio::time::timeout_at(deadline, task).await.is_ok();
        }
        let mut left = stages.gauges.iter().map(|g| g.get().readings as u64).sum();
        if let Some(journal) = stages.journal.take() {
            let handle = journal.handle();
            journal.finish().await;
            left = handle.stats().unstored_entries;
        }
        // Tasks that did not end in time are aborted: the journal has their readings, or these were
        // not acknowledged.
        let tasks = stages
            .shards
            .iter()
            .chain(&stages.latest)
            .chain(&stages.rollups.tasks);
        tasks
            .chain(&self.front)
            .chain(&self.side)
            .for_each(JoinHandle::abort);
        stages.router.abort();
        stages.dead.abort();
        let _ = tokio::time::timeout(LAST_USED_GRACE, self.last_used.update()).await;
        if in_time
            && left == 0
            && let Some(aliases) = self.store.aliases()
        {
            // Otherwise commands wait until it was not seen for some time.
            let retire = aliases.retire(&self.instance);
            let _ = tokio::time::timeout(RETIRE_GRACE, retire).await;
        }
        self.ports_stop.cancel();
        let _ = tokio::time::timeout(ADMIN_GRACE, &mut self.admin).await;
        let took_ms = self.context.clock.now().mono_ms - begun;
        exit_reason(in_time, left, took_ms, self.context.config.ingest.ack)
    }
}

/// Logs how the service ended. `left`: readings that are not stored.
fn exit_reason(in_time: bool, left: u64, took_ms: u64, ack: AckMode) -> ExitReason {
    if in_time && left == 0 {
        tracing::info!(
            took_ms,
            "stopped; everything that was acknowledged is stored"
        );
        ExitReason::Clean
    } else {
        match ack {
            AckMode::Journal => tracing::error!(
                took_ms,
                left,
                "stopped before everything was stored; the journal keeps the rest for the next \
                 start"
            ),
            AckMode::Stored => tracing::error!(
                took_ms,
                left,
                "stopped before everything was stored; the rest was not acknowledged, and its \
                 senders send it again"
            ),
        }
        ExitReason::Unstored { left }
    }
}
