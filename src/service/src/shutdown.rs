//! The shutdown protocol: who may start it, in which order things end, the deadline, and the exit
//! code.
//!
//! Phases: 1. admission closes; ingest stops receiving and answers what it has; 2. the journal (or
//! admission's queue) is drained to the shards; 3. the shards flush; 4. the journal and the admin
//! port close. All phases share one deadline, `shutdown.deadline`.

use std::sync::Arc;

use tokio::sync::watch;

use journal::admission::AdmissionControl;

/// How the service ended, which determines the exit code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExitReason {
    /// All acknowledged readings are stored. Exit code 0.
    Clean,
    /// The deadline passed, or the store was unavailable: acknowledged readings that are not stored
    /// are in the journal, and the next start stores them. Exit code 3.
    Unstored {
        /// Journal entries, or with `ack = "stored"` readings that were not acknowledged.
        left: u64,
    },
    /// A part failed, for this reason. Exit code 1.
    Broken(String),
}

impl ExitReason {
    /// The exit code of the process: 0, 1 or 3.
    pub fn exit_code(&self) -> u8 {
        match self {
            ExitReason::Clean => 0,
            ExitReason::Broken(_) => 1,
            ExitReason::Unstored { .. } => 3,
        }
    }
}

/// Reports the failure of a part, which ends the whole service.
#[derive(Debug, Clone)]
pub struct FailureSignal {
    reason: Arc<watch::Sender<Option<String>>>,
    admission_control: AdmissionControl,
}

impl FailureSignal {
    /// `admission_control` is closed on failure.
    pub fn new(admission_control: AdmissionControl) -> FailureSignal {
        FailureSignal {
            reason: Arc::new(watch::Sender::new(None)),
            admission_control,
        }
    }

    /// Reports a failure and closes the admission permanently. The first reason is kept.
    pub fn fail(&self, reason: impl Into<String>) {
        self.admission_control.broken();
        self.reason.send_if_modified(|current| {
            let first = current.is_none();
            if first {
                *current = Some(reason.into());
            }
            first
        });
    }

    /// The reason of the first failure.
    pub fn reason(&self) -> Option<String> {
        self.reason.borrow().clone()
    }

    /// Waits until a part fails.
    pub async fn wait(&self) -> String {
        let mut reason = self.reason.subscribe();
        let reason = reason
            .wait_for(Option::is_some)
            .await
            .ok()
            .and_then(|reason| reason.clone());
        match reason {
            Some(reason) => reason,
            // The sender lives as long as `self`.
            None => std::future::pending().await,
        }
    }
}

/// A stream of SIGHUPs. Signals that arrive while one is handled are merged into one.
///
/// # Errors
/// The handler cannot be installed.
pub(crate) fn hangups() -> std::io::Result<tokio::signal::unix::Signal> {
    tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup())
}

/// Handles SIGXFSZ by doing nothing. By default it ends the process without a message when a file
/// grows beyond the limit on file sizes (`ulimit -f`); handled, the write fails like one on a full
/// disk. The handler stays when the stream of signals is dropped.
///
/// # Errors
/// The handler cannot be installed.
pub(crate) fn survive_file_size_limit() -> std::io::Result<()> {
    let number = rustix::process::Signal::XFSZ.as_raw();
    tokio::signal::unix::signal(tokio::signal::unix::SignalKind::from_raw(number)).map(drop)
}

/// Waits for SIGTERM or SIGINT and returns the signal's name.
///
/// # Errors
/// The handlers cannot be installed.
pub fn signal() -> std::io::Result<impl Future<Output = &'static str>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = term.recv() => "SIGTERM",
            _ = int.recv() => "SIGINT",
        }
    })
}
