//! Why the service cannot start.

use std::path::PathBuf;

use tokio::task::JoinError;

use ingest::http::HttpError;
use ingest::listen::ListenError;
use ingest::mqtt::SetupError;
use journal::JournalError;
use net::access::{JwtKeysError, TokensError};
use query::admin::AdminError;

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
    /// The keys of JWTs.
    #[error(transparent)]
    Jwt(#[from] JwtKeysError),
    /// The connection to a broker.
    #[error(transparent)]
    Broker(#[from] SetupError),
    /// The journal cannot be opened.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The task that opens the journal panicked.
    #[error(transparent)]
    JournalTask(JoinError),
    /// The file with the id of this instance.
    #[error(
        "the file `instance` in journal.dir ({}) cannot be read or created: {error}; the service \
         must be able to write there",
        .dir.display()
    )]
    Instance {
        /// `journal.dir`
        dir: PathBuf,
        /// Why not.
        error: std::io::Error,
    },
    /// The threads of the journal.
    #[error(transparent)]
    JournalThreads(std::io::Error),
}
