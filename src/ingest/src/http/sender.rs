//! Who sends a request. Middleware puts it into the extensions of an admitted request.

use std::sync::Arc;

use axum::extract::{MatchedPath, Request};
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::Response;

use super::routes::UNMATCHED;
use net::access::Grant;
use net::http::payer::Payer;

/// Who sends a request, in its extensions; `None` without tokens.
#[derive(Debug, Clone)]
pub(super) struct Sender(pub(super) Option<Arc<Grant>>);

impl Sender {
    /// Runs the rest of an admitted request.
    pub(super) async fn run(self, mut request: Request, next: Next) -> Response {
        if let Some(grant) = &self.0 {
            Payer::set(request.extensions(), grant);
        }
        request.extensions_mut().insert(self);
        next.run(request).await
    }

    /// The sender of an admitted request.
    pub(super) fn of(parts: &Parts) -> Option<&Arc<Grant>> {
        parts
            .extensions
            .get::<Sender>()
            .and_then(|Sender(grant)| grant.as_ref())
    }
}

/// The sender of a request for display: the id of its token, else the route.
pub(super) fn shown_sender(parts: &Parts) -> String {
    let route = || {
        parts
            .extensions
            .get::<MatchedPath>()
            .map_or(UNMATCHED, |path| path.as_str())
            .to_owned()
    };
    Sender::of(parts).map_or_else(route, |grant| grant.id.to_string())
}
