//! Why the service cannot start.

use tokio::task::JoinError;

use crate::access::TokensError;
use crate::admin::AdminError;
use crate::ingest::http::HttpError;
use crate::ingest::listen::ListenError;
use crate::ingest::mqtt::SetupError;
use crate::journal::JournalError;

/// What could not be started, and why.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The admin port.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// The port for readings over HTTP.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The port for MQTT devices.
    #[error(transparent)]
    MqttListener(#[from] ListenError),
    /// The tokens of readers, if the HTTP port is disabled.
    #[error(transparent)]
    Tokens(#[from] TokensError),
    /// The connection to a broker.
    #[error(transparent)]
    Broker(#[from] SetupError),
    /// The journal cannot be opened.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The task that opens the journal panicked.
    #[error(transparent)]
    JournalTask(JoinError),
    /// The threads of the journal.
    #[error(transparent)]
    JournalThreads(std::io::Error),
}
