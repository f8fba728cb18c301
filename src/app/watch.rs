//! What the service manager is told while the service runs: a line about its state, and that it lives.
//!
//! A sign of life is a proof, not a timer: before each one the journal's writer has answered a parcel that holds nothing,
//! every shard has gone round, and the journal's lock could be had. Whatever of that never comes keeps the sign from being
//! sent, and the manager ends the process; the journal has what was acknowledged. A store that is away is no reason:
//! shards go round without it, and a restart would not bring it back.

use std::sync::Arc;
use std::time::Duration;

use super::Gauges;
use crate::ack::Ack;
use crate::admin::Health;
use crate::admin::health::Report;
use crate::config::AckMode;
use crate::intake::{Intake, Parcel};
use crate::journal;
use crate::model::ReadingBatch;
use crate::systemd::Notifier;

/// How often the state is looked at for the manager's line.
const STATUS_EVERY: Duration = Duration::from_secs(2);
/// How often a shard that has not gone round yet is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// Signs of life within the time of the watchdog: one may come late without an end.
const SIGNS: u32 = 3;

/// What the proof is taken from.
pub(super) struct Parts {
    pub(super) gauges: Vec<Arc<Gauges>>,
    pub(super) journal: Option<journal::Handle>,
    /// With a journal; without one, what waits at the door may wait for the store.
    pub(super) door: Option<Intake>,
}

/// The line for `systemctl status`.
pub(super) fn line(report: &Report) -> String {
    let state = if report.ready { "taking readings" } else { "taking no readings" };
    let store = match (&report.server_version, report.mode) {
        (Some(version), Some(mode)) => format!(", MongoDB {version} ({mode})"),
        _ => String::new(),
    };
    match report.reasons.as_slice() {
        [] => format!("{state}{store}"),
        reasons => format!("{state}{store}; {}", reasons.join("; ")),
    }
}

/// Tells until it is aborted.
pub(super) async fn watch(notifier: Arc<Notifier>, health: Arc<Health>, parts: Parts) {
    tokio::join!(tell(&notifier, &health), signs(&notifier, &health, &parts));
}

async fn tell(notifier: &Notifier, health: &Health) {
    let mut told = line(&health.report());
    loop {
        tokio::time::sleep(STATUS_EVERY).await;
        let now = line(&health.report());
        // While it stops, the line of the shutdown stands.
        if now != told && !health.is_stopping() {
            notifier.status(&now).await;
            told = now;
        }
    }
}

async fn signs(notifier: &Notifier, health: &Health, parts: &Parts) {
    let Some(within) = notifier.watchdog() else { return };
    loop {
        let before: Vec<_> = parts.gauges.iter().map(|g| g.rounds()).collect();
        tokio::time::sleep(within / SIGNS).await;
        // A shutdown has a deadline of its own, and stages end in it.
        if !health.is_stopping() {
            parts.proof(&before, health).await;
        }
        notifier.alive().await;
    }
}

impl Parts {
    /// Comes back when everything has shown that it lives, or the service stops.
    async fn proof(&self, before: &[Option<u64>], health: &Health) {
        if let Some(journal) = &self.journal {
            // Takes its lock.
            let _ = journal.stats();
        }
        if let Some(door) = &self.door {
            let (ack, answer) = Ack::channel();
            let parcel = Parcel::new(ReadingBatch::default(), vec![], ack);
            // A door that is closed has answered as well.
            if door.submit(parcel).await.is_ok() {
                answer.outcome().await;
            }
        }
        for (gauges, before) in self.gauges.iter().zip(before) {
            while gauges.rounds().is_some_and(|now| Some(now) == *before) && !health.is_stopping() {
                tokio::time::sleep(ASK_AGAIN).await;
            }
        }
    }
}

/// The door for the proof, where what waits there waits for the journal alone.
pub(super) fn door(ack: AckMode, intake: Intake) -> Option<Intake> {
    (ack == AckMode::Journal).then_some(intake)
}
