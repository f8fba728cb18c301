//! Only one conversion of a database at a time: a second one would insert the measurements of the
//! same bucket between the first one's read and its inserts, and they would be stored twice. The same
//! holds for a removal: a second one would clear the marks of days that the first one still changes.
//!
//! A conversion names its connections, and lists those of the server. A connection ends with its
//! process, so nothing is left behind by one that is killed.

use std::time::Duration;

use mongodb::Client;
use mongodb::bson::doc;
use mongodb::options::ClientOptions;
use tokio::time::Instant;

use crate::maintain::MaintainError;
use crate::mongo::error::describe;

/// A server may notice after some seconds that the process of a connection was killed.
const PATIENCE: Duration = Duration::from_secs(15);
const PAUSE: Duration = Duration::from_millis(500);

/// Held while a conversion or a removal runs.
#[derive(Debug)]
pub struct Alone {
    /// Its connections are open until it is dropped.
    _client: Client,
}

/// Waits a moment until no other conversion or removal of this database runs.
///
/// # Errors
/// Another one runs, or the server cannot be asked.
pub async fn alone(config: &config::Store) -> Result<Alone, MaintainError> {
    let server = |error: mongodb::error::Error| MaintainError::Server(describe(&error));
    let every = format!("hourbucket convert {} ", config.database);
    let mine = format!("{every}{:016x}", fastrand::u64(..));
    // The driver's message may quote the URI with its password.
    let mut options = ClientOptions::parse(config.uri.reveal())
        .await
        .map_err(|_| MaintainError::Refused("store.uri cannot be parsed".into()))?;
    options.app_name = Some(mine.clone());
    options.server_selection_timeout = Some(config.connect_timeout);
    let client = Client::with_options(options).map_err(server)?;
    let until = Instant::now() + PATIENCE;
    // Own operations need no privilege. The list has the idle connections too.
    let list = doc! { "currentOp": 1, "$ownOps": true, "$all": true };
    loop {
        let reply = client.database("admin").run_command(list.clone()).await;
        let reply = reply.map_err(server)?;
        let connections = reply.get_array("inprog").map_or(&[][..], Vec::as_slice);
        let is_other = connections.iter().any(|connection| {
            let name = connection
                .as_document()
                .and_then(|connection| connection.get_str("appName").ok());
            name.is_some_and(|name| name.starts_with(&every) && name != mine)
        });
        if !is_other {
            return Ok(Alone { _client: client });
        }
        if Instant::now() >= until {
            return Err(MaintainError::Refused(
                "another conversion or removal of this database is running; wait until it has ended".into(),
            ));
        }
        tokio::time::sleep(PAUSE).await;
    }
}
