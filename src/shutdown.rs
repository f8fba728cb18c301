//! Shutdown as a protocol: who may ask for it, in which order things end, how long it may take, and what the exit code
//! says.
//!
//! Phases: 1. admission closes, ingest stops taking and answers what it has; 2. the journal (or admission's queue) is
//! handed over to the shards; 3. the shards flush; 4. the journal and the admin port close. All of them share one
//! deadline, `shutdown.deadline`.

use std::sync::Arc;

use tokio::sync::watch;

use crate::admission::AdmissionControl;

/// How the service ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExitReason {
    /// Everything that was acknowledged is stored. Exit code 0.
    Clean,
    /// The deadline passed, or the store was away: what is acknowledged and not stored is in the journal, and will be
    /// stored after the next start. Exit code 3.
    Unstored {
        /// Journal entries, or with `ack = "stored"` readings that nobody was told are stored.
        left: u64,
    },
    /// A part failed. Exit code 1.
    Broken(String),
}

impl ExitReason {
    /// The exit code of the process.
    pub fn exit_code(&self) -> u8 {
        match self {
            ExitReason::Clean => 0,
            ExitReason::Broken(_) => 1,
            ExitReason::Unstored { .. } => 3,
        }
    }
}

/// One failed part ends the service: nothing goes on half dead.
#[derive(Debug, Clone)]
pub struct FailureSignal {
    reason: Arc<watch::Sender<Option<String>>>,
    admission_control: AdmissionControl,
}

impl FailureSignal {
    /// For a service behind this admission.
    pub fn new(admission_control: AdmissionControl) -> FailureSignal {
        FailureSignal { reason: Arc::new(watch::Sender::new(None)), admission_control }
    }

    /// A part has failed: admission closes for good. The first reason stays.
    pub fn failure_signal(&self, reason: impl Into<String>) {
        self.admission_control.broken();
        self.reason.send_if_modified(|current| {
            let first = current.is_none();
            if first {
                *current = Some(reason.into());
            }
            first
        });
    }

    /// Why, if a part has failed.
    pub fn reason(&self) -> Option<String> {
        self.reason.borrow().clone()
    }

    /// Waits until a part fails.
    pub async fn wait(&self) -> String {
        let mut reason = self.reason.subscribe();
        let reason = reason.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
        match reason {
            Some(reason) => reason,
            // The sender lives as long as `self`.
            None => std::future::pending().await,
        }
    }
}

/// SIGHUP, as often as it comes; several that come while one is worked on are one.
///
/// # Errors
/// The handler cannot be installed.
pub fn hangups() -> std::io::Result<tokio::signal::unix::Signal> {
    tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup())
}

/// Waits for SIGTERM or SIGINT; returns its name.
///
/// # Errors
/// The handlers cannot be installed.
pub fn signal() -> std::io::Result<impl Future<Output = &'static str>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = term.recv() => "SIGTERM",
            _ = int.recv() => "SIGINT",
        }
    })
}
