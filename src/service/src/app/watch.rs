//! Reports to the service manager while the service runs: a status line, and signs of life for its
//! watchdog.
//!
//! A sign of life is proof, not a timer. Before each one, the journal's writer has acknowledged an
//! empty ingest batch, every shard has completed an iteration, and the journal's lock was acquired.
//! If one of these never happens, no sign is sent, and the manager ends the process; acknowledged
//! readings are in the journal. An unavailable store is not a reason: shards continue without it,
//! and a restart would not bring it back. Readings that are not settled although the store answers are
//! a reason ([`super::progress`]).

use std::sync::Arc;
use std::time::Duration;

use crate::systemd::Notifier;
use config::AckMode;
use journal::admission::{Admission, IngestBatch};
use model::ReadingBatch;
use model::ack::Ack;
use pipeline::accumulate::ShardGauges;
use query::admin::Health;
use query::admin::health::Report;

/// How often the status line is updated.
const STATUS_EVERY: Duration = Duration::from_secs(2);
/// How often a shard that has not completed an iteration is polled.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// Signs of life per watchdog timeout, so that one may be late.
const SIGNS: u32 = 3;

/// The parts that must prove that they are alive.
pub(super) struct Parts {
    pub(super) gauges: Vec<Arc<ShardGauges>>,
    pub(super) journal: Option<journal::JournalHandle>,
    /// Only with a journal: without one, the ingest batches in admission may wait for the store.
    pub(super) admission: Option<Admission>,
}

/// The line for `systemctl status`.
pub(super) fn line(report: &Report) -> String {
    let state = if report.ready {
        "accepting readings"
    } else {
        "not accepting readings"
    };
    let store = match (&report.server_version, report.mode) {
        (Some(version), Some(mode)) => format!(", MongoDB {version} ({mode})"),
        _ => String::new(),
    };
    match report.reasons.as_slice() {
        [] => format!("{state}{store}"),
        reasons => format!("{state}{store}; {}", reasons.join("; ")),
    }
}

/// Runs until it is aborted.
pub(super) async fn watch(notifier: Arc<Notifier>, health: Arc<Health>, parts: Parts) {
    tokio::join!(
        report_status(&notifier, &health),
        send_alive(&notifier, &health, &parts)
    );
}

async fn report_status(notifier: &Notifier, health: &Health) {
    let mut reported = line(&health.report());
    loop {
        tokio::time::sleep(STATUS_EVERY).await;
        let now = line(&health.report());
        // During a shutdown the status line of the shutdown stays.
        if now != reported && !health.is_stopping() {
            notifier.status(&now).await;
            reported = now;
        }
    }
}

async fn send_alive(notifier: &Notifier, health: &Health, parts: &Parts) {
    let Some(within) = notifier.watchdog() else {
        return;
    };
    loop {
        let before: Vec<_> = parts.gauges.iter().map(|g| g.rounds()).collect();
        tokio::time::sleep(within / SIGNS).await;
        // A shutdown has its own deadline, and stages end during it.
        if !health.is_stopping() {
            parts.proof(&before, health).await;
        }
        notifier.alive().await;
    }
}

impl Parts {
    /// Returns when everything has proven to be alive, or the service stops.
    async fn proof(&self, before: &[Option<u64>], health: &Health) {
        if let Some(journal) = &self.journal {
            // Acquires its lock.
            let _ = journal.stats();
        }
        if let Some(admission) = &self.admission {
            let (ack, answer) = Ack::channel();
            let ingest_batch = IngestBatch::new(ReadingBatch::default(), vec![], ack);
            // A closed admission has answered as well.
            if admission.submit(ingest_batch).await.is_ok() {
                answer.outcome().await;
            }
        }
        while health.is_stuck() && !health.is_stopping() {
            tokio::time::sleep(ASK_AGAIN).await;
        }
        for (gauges, before) in self.gauges.iter().zip(before) {
            while gauges.rounds().is_some_and(|now| Some(now) == *before) && !health.is_stopping() {
                tokio::time::sleep(ASK_AGAIN).await;
            }
        }
    }
}

/// The admission for the proof, if ingest batches in it wait only for the journal.
pub(super) fn probe_handle(ack: AckMode, admission: Admission) -> Option<Admission> {
    (ack == AckMode::Journal).then_some(admission)
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixDatagram;

    use super::*;
    use config::Manager;
    use journal::admission::{AdmissionControl, admission_channel};

    const WATCHDOG: Duration = Duration::from_millis(150);

    /// A manager's socket, and a notifier connected to it.
    fn manager(dir: &std::path::Path) -> (UnixDatagram, Arc<Notifier>) {
        let path = dir.join("notify");
        let listener = UnixDatagram::bind(&path).unwrap();
        let manager = Manager {
            notify_socket: Some(path.into()),
            watchdog: Some(WATCHDOG),
        };
        (listener, Arc::new(Notifier::new(&manager).unwrap()))
    }

    /// The message received within the time for several signs.
    async fn received(listener: &UnixDatagram) -> Option<String> {
        let mut buf = [0; 256];
        let n = tokio::time::timeout(WATCHDOG * 4, listener.recv(&mut buf))
            .await
            .ok()?
            .unwrap();
        Some(String::from_utf8(buf[..n].to_vec()).unwrap())
    }

    #[tokio::test]
    async fn no_watchdog_message_until_the_writer_has_answered() {
        let dir = tempfile::tempdir().unwrap();
        let (listener, notifier) = manager(dir.path());
        let (admission, mut ingest_batches) =
            admission_channel(8, 1 << 20, AdmissionControl::default());
        let health = Arc::new(Health::new(AckMode::Journal));
        let parts = Parts {
            gauges: vec![],
            journal: None,
            admission: Some(admission),
        };
        let watching = tokio::spawn(watch(notifier, health.clone(), parts));
        let ingest_batch = ingest_batches.recv().await.unwrap();
        assert_eq!(received(&listener).await, None, "the writer hangs");
        ingest_batch.into_parts().2.delivered();
        assert_eq!(received(&listener).await.as_deref(), Some("WATCHDOG=1"));
        let _hangs = ingest_batches.recv().await.unwrap();
        assert_eq!(received(&listener).await, None, "it hangs again");
        watching.abort();
    }

    #[tokio::test]
    async fn no_watchdog_message_while_nothing_is_settled() {
        let dir = tempfile::tempdir().unwrap();
        let (listener, notifier) = manager(dir.path());
        let health = Arc::new(Health::new(AckMode::Stored));
        let parts = Parts {
            gauges: vec![],
            journal: None,
            admission: None,
        };
        let watching = tokio::spawn(watch(notifier, health.clone(), parts));
        assert_eq!(received(&listener).await.as_deref(), Some("WATCHDOG=1"));
        health.stuck(true);
        while received(&listener).await.is_some() {}
        health.stuck(false);
        assert_eq!(received(&listener).await.as_deref(), Some("WATCHDOG=1"));
        watching.abort();
    }

    #[tokio::test]
    async fn no_watchdog_message_while_a_shard_makes_no_progress() {
        let dir = tempfile::tempdir().unwrap();
        let (listener, notifier) = manager(dir.path());
        let turning = Arc::new(ShardGauges::default());
        let still = Arc::new(ShardGauges::default());
        let health = Arc::new(Health::new(AckMode::Stored));
        let parts = Parts {
            gauges: vec![turning.clone(), still.clone()],
            journal: None,
            admission: None,
        };
        let watching = tokio::spawn(watch(notifier, health.clone(), parts));
        let turns = tokio::spawn(async move {
            loop {
                turning.count_round();
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        assert_eq!(received(&listener).await, None, "one shard hangs");
        still.count_round();
        assert_eq!(received(&listener).await.as_deref(), Some("WATCHDOG=1"));
        assert_eq!(received(&listener).await, None, "once is not for ever");
        let waits =
            tokio::spawn(async move { still.waiting_for(std::future::pending::<()>()).await });
        assert_eq!(
            received(&listener).await.as_deref(),
            Some("WATCHDOG=1"),
            "it waits for the next stage"
        );
        health.stopping();
        assert_eq!(received(&listener).await.as_deref(), Some("WATCHDOG=1"));
        [watching, turns, waits]
            .iter()
            .for_each(tokio::task::JoinHandle::abort);
    }
}
