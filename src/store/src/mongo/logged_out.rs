//! Closes connections that MongoDB has logged out.
//!
//! If a user is dropped, MongoDB logs out its connections, and they stay logged out although the
//! user is created again. The driver logs in only once per connection, keeps connections after such
//! errors, and has no call to close them. It closes a connection whose command is dropped midway,
//! and it hands out the connection that was used last. So a command that the server answers late is
//! sent and dropped, until a connection is logged in. If the user is still missing, the login of
//! the next connection fails, on which the driver closes all of them.

use std::time::Duration;

use mongodb::bson::doc;
use mongodb::error::ErrorKind;

use crate::StoreError;
use crate::mongo::connection::{Connection, limited};
use crate::mongo::error::command_error;

/// Connections that one call closes at most; the next ping continues.
const CLOSED_MAX: usize = 20;
/// Enough to send a command; the answer would take [`ANSWER_MS`].
const SENT_WITHIN: Duration = Duration::from_millis(50);
const ANSWER_MS: i32 = 10_000;

/// Closes idle connections that are logged out, if `store.uri` has a user.
///
/// # Errors
/// The server is unreachable, or does not know the user.
pub(super) async fn close_logged_out(
    connection: &Connection,
    has_user: bool,
) -> Result<(), StoreError> {
    for _ in 0..CLOSED_MAX {
        if !has_user || !is_logged_out(connection).await? {
            break;
        }
        close_last(connection).await?;
    }
    Ok(())
}

/// Whether the connection that was used last has no user.
async fn is_logged_out(connection: &Connection) -> Result<bool, StoreError> {
    let db = connection.db().clone();
    let ask = async move { db.run_command(doc! { "connectionStatus": 1 }).await };
    match connection.limited(ask).await? {
        Ok(reply) => Ok(reply
            .get_document("authInfo")
            .and_then(|info| info.get_array("authenticatedUsers"))
            .is_ok_and(Vec::is_empty)),
        // An emulation without this command.
        Err(error) if matches!(error.kind.as_ref(), ErrorKind::Command(_)) => Ok(false),
        Err(error) => Err(command_error(&error)),
    }
}

async fn close_last(connection: &Connection) -> Result<(), StoreError> {
    let reply = connection.run(doc! { "hello": 1 }).await?;
    // MongoDB 4.4 and later answer only when the topology changes.
    let Some(version) = reply.get("topologyVersion") else {
        return Ok(());
    };
    let wait = doc! { "hello": 1, "topologyVersion": version, "maxAwaitTimeMS": ANSWER_MS };
    let db = connection.db().clone();
    let _ = limited(SENT_WITHIN, async move { db.run_command(wait).await }).await;
    Ok(())
}
