//! The connection that a request came on: who sent it, and what the check of its token means for that address.

use std::sync::Arc;

use axum::http::Extensions;

use super::error::IngestError;
use super::port::Connection;

/// The sender's side of the connection, an extension of each request.
#[derive(Clone)]
pub(crate) struct Peer(pub(super) Arc<Connection>);

impl Peer {
    /// `None` only for a request that did not come over a port.
    pub(crate) fn of(extensions: &Extensions) -> Option<&Peer> {
        extensions.get()
    }

    /// The request is refused, so its connection may be cut for another one while the body is discarded.
    pub(super) fn refused(&self) {
        self.0.rest();
    }

    /// Notes the result of the check of a token, and returns it. If the token is wrong and the address is paused, the
    /// error is another one.
    ///
    /// A request without a token counts and is logged, but is no attempt to guess one: some clients send each request
    /// without it first.
    fn judge<T>(&self, checked: Result<T, IngestError>) -> Result<T, IngestError> {
        let error = match checked {
            Ok(passed) => {
                self.0.place.proved();
                return Ok(passed);
            }
            Err(error) => error,
        };
        let is_guess = match error {
            IngestError::NoToken => false,
            IngestError::WrongToken | IngestError::MalformedToken => true,
            other => return Err(other),
        };
        let paused = self.0.unauthorized(error.reason(), is_guess);
        Err(paused.map_or(error, |seconds| IngestError::Paused { seconds }))
    }
}

/// Like [`Peer::judge`], for a request that may have none.
pub(super) fn judge<T>(peer: Option<&Peer>, checked: Result<T, IngestError>) -> Result<T, IngestError> {
    match peer {
        Some(peer) => peer.judge(checked),
        None => checked,
    }
}
