//! The connection that a request came on: its sender, and the effect of its token's check on that
//! address.

use std::net::IpAddr;
use std::sync::Arc;

use axum::http::{Extensions, HeaderMap};

use super::access_error::AccessError;
use super::port::Connection;
use crate::access::{Grant, QuotaExceeded};
use crate::tls::ClientCertificate;
use model::Named;
use telemetry::audit::{AuditEvent, AuditKind};
use telemetry::metrics;

/// The sender's side of the connection, an extension of each request.
#[derive(Clone)]
pub struct Peer {
    connection: Arc<Connection>,
    /// The address for which a trusted proxy asks.
    asks_for: Option<IpAddr>,
}

impl Peer {
    /// Who sends a request with these headers.
    pub(super) fn new(connection: Arc<Connection>, headers: &HeaderMap) -> Peer {
        let asks_for = connection.asks_for(headers);
        Peer {
            connection,
            asks_for,
        }
    }

    /// The sender's address: that of the connection, or the one that a trusted proxy names.
    pub fn address(&self) -> IpAddr {
        let of_connection = || self.connection.place.peer().ip();
        self.asks_for.unwrap_or_else(of_connection)
    }

    /// Whether the sender is a program on this machine, as far as the port and its proxies know.
    pub fn is_on_this_machine(&self) -> bool {
        config::is_loopback(self.address())
    }

    fn audit(&self, kind: AuditKind, reason: &'static str) -> AuditEvent<'static> {
        self.connection.audit(self.asks_for, kind, reason)
    }

    /// The certificate of its connection.
    pub(super) fn certificate(&self) -> Option<&ClientCertificate> {
        self.connection.client.get()
    }

    /// `None` only for a request that did not come over a port.
    pub fn find(extensions: &Extensions) -> Option<&Peer> {
        extensions.get()
    }

    /// The request is refused, so its connection may be cut for another one while the body is
    /// discarded.
    pub(super) fn refused(&self) {
        self.connection.rest();
    }

    /// The connection may be cut for another one while the rest of the request's body arrives,
    /// until [`Peer::arrived`]. The caller limits the time.
    pub fn arriving(&self) {
        self.connection.await_body();
    }

    /// The body has arrived, so the request is in progress.
    pub fn arrived(&self) {
        self.connection.place.begin();
    }

    /// The sender of the request is authenticated.
    pub fn sent_by(&self, grant: &Arc<Grant>) {
        self.connection.place.sent_by(grant);
    }

    /// Counts and logs that a valid token is refused: it has expired, or is not for this.
    pub fn denied(&self, grant: &Grant, error: &impl Named) {
        metrics::auth_failures_total(self.connection.port.name, error, 1);
        self.audit(AuditKind::AuthFailed, error.as_str())
            .token(&grant.id)
            .record();
    }

    /// Logs that a sender has reached its quota.
    pub(super) fn over_quota(&self, grant: &Grant, exceeded: QuotaExceeded) {
        self.audit(AuditKind::QuotaExceeded, exceeded.limit.as_str())
            .token(&grant.id)
            .record();
    }

    /// Logs a query with a token.
    pub fn queried(&self, grant: &Grant, path: &str, status: u16) {
        let event = self.audit(AuditKind::Query, "token");
        AuditEvent {
            status: Some(status),
            ..event
        }
        .token(&grant.id)
        .detail(path)
        .record();
    }

    /// Notes the result of the check of a token, and returns it. If the token is wrong and the
    /// address is paused, the error is another one.
    ///
    /// A request without a token or certificate counts and is logged, but is not an attempt to
    /// guess one: some clients send each request without it first.
    fn judge<T>(&self, checked: Result<T, AccessError>) -> Result<T, AccessError> {
        let error = match checked {
            Ok(passed) => {
                self.connection.place.proved();
                return Ok(passed);
            }
            Err(error) => error,
        };
        let is_guess = match error {
            AccessError::NoToken | AccessError::NoIdentity => false,
            AccessError::WrongToken | AccessError::MalformedToken => true,
            AccessError::Jwt(fault) => fault.is_forged(),
            other => return Err(other),
        };
        let paused = self
            .connection
            .unauthorized(self.asks_for, &error, is_guess);
        Err(paused.map_or(error, |seconds| AccessError::Paused { seconds }))
    }
}

/// Counts and logs that a sender has reached its quota, and returns the error.
pub fn over_quota(peer: Option<&Peer>, grant: &Grant, exceeded: QuotaExceeded) -> AccessError {
    metrics::quota_exceeded_total(exceeded.limit, 1);
    if let Some(peer) = peer {
        peer.over_quota(grant, exceeded);
    }
    exceeded.into()
}

/// Like [`Peer::judge`], for a request that may have none.
pub fn judge<T>(peer: Option<&Peer>, checked: Result<T, AccessError>) -> Result<T, AccessError> {
    match peer {
        Some(peer) => peer.judge(checked),
        None => checked,
    }
}
