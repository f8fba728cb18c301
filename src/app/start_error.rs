//! Why the service cannot start.

use tokio::task::JoinError;

use crate::admin::AdminError;
use crate::ingest::http::HttpError;
use crate::ingest::listen::ListenError;
use crate::ingest::mqtt::SetupError;
use crate::ingest::tokens::TokensError;
use crate::journal::JournalError;

/// What could not be started, and why.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The admin port.
    #[error("{0}")]
    Admin(#[from] AdminError),
    /// The port for readings over HTTP.
    #[error("{0}")]
    Http(#[from] HttpError),
    /// The port for MQTT devices.
    #[error("{0}")]
    MqttListener(#[from] ListenError),
    /// The tokens of readers, if the HTTP port is disabled.
    #[error("{0}")]
    Tokens(#[from] TokensError),
    /// The connection to a broker.
    #[error("{0}")]
    Broker(#[from] SetupError),
    /// The journal cannot be opened.
    #[error("{0}")]
    Journal(#[from] JournalError),
    /// The task that opens the journal panicked.
    #[error("{0}")]
    JournalTask(#[source] JoinError),
    /// The threads of the journal.
    #[error("{0}")]
    JournalThreads(#[source] std::io::Error),
}
