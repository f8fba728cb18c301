//! What every request passes: it is observed whatever becomes of it, and on a route it is let in or refused before its
//! body is looked at.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request, State};
use axum::http::HeaderMap;
use axum::http::header::EXPECT;
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::body::{BodyBudget, drain};
use super::error::IngestError;
use super::tokens::Tokens;
use crate::admission::{Admission, AdmissionError};
use crate::config;
use crate::decode::Formats;
use crate::model::Clock;
use crate::telemetry::metrics;

/// The label `route` of a request that no route takes.
const UNMATCHED: &str = "unmatched";

/// The status in the metrics of a request whose sender left before the answer (nginx's 499; nobody receives it).
const SENDER_LEFT: u16 = 499;

/// How often a closed admission is tried again.
const DOOR_EVERY: Duration = Duration::from_millis(50);

/// What all requests share.
pub(super) struct Shared {
    pub(super) cfg: config::Http,
    pub(super) decoding: Arc<config::Decoding>,
    /// Those that a request can name.
    pub(super) formats: Formats,
    pub(super) admission: Admission,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) tokens: Option<Arc<Tokens>>,
    /// A permit for each request being worked on, `http.concurrency_max` in all.
    pub(super) running: Arc<Semaphore>,
    pub(super) bodies: BodyBudget,
    pub(super) stopping: Arc<AtomicBool>,
}

impl Shared {
    /// Lets a request in, at no more cost than one hash: `check` looks for a token where there must be one.
    pub(super) fn admit(
        &self,
        check: impl FnOnce(&Tokens) -> Result<(), IngestError>,
    ) -> Result<OwnedSemaphorePermit, IngestError> {
        if self.stopping.load(Ordering::Acquire) {
            return Err(IngestError::Admission(AdmissionError::Stopping));
        }
        if let Some(tokens) = &self.tokens {
            check(tokens)?;
        }
        // A closed admission is seen again at the hand-over; seen here, it saves reading and decoding the body.
        self.admission.check()?;
        self.running.clone().try_acquire_owned().map_err(|_| IngestError::Concurrency)
    }

    /// Whether the sender may send, where there are tokens.
    pub(super) fn may_send(&self, check: impl FnOnce(&Tokens) -> Result<(), IngestError>) -> Result<(), IngestError> {
        self.tokens.as_deref().map_or(Ok(()), check)
    }

    /// Whom a request is from, to be shown: the id of its token, else the path.
    pub(super) fn sender(&self, parts: &Parts) -> String {
        let id = self.tokens.as_ref().and_then(|tokens| tokens.sender(&parts.headers));
        id.unwrap_or_else(|| parts.uri.path().to_owned())
    }

    /// As [`Shared::admit`], once [`Shared::may_send`] was asked, for senders that send only once: waits up to
    /// `patience` while there is no room. Permits that come back go to those who wait, so those who try again by
    /// themselves, and do not wait here, come second.
    pub(super) async fn admit_patiently(&self, patience: Duration) -> Result<OwnedSemaphorePermit, IngestError> {
        if self.stopping.load(Ordering::Acquire) {
            return Err(IngestError::Admission(AdmissionError::Stopping));
        }
        let open = async {
            while let Err(AdmissionError::Busy | AdmissionError::Full) = self.admission.check() {
                tokio::time::sleep(DOOR_EVERY).await;
            }
            self.admission.check()
        };
        let admitted = async {
            open.await?;
            self.running.clone().acquire_owned().await.map_err(|_| IngestError::Concurrency)
        };
        let late = |_| Err(self.admission.check().err().map_or(IngestError::Concurrency, IngestError::from));
        tokio::time::timeout(patience, admitted).await.unwrap_or_else(late)
    }
}

/// Whether the sender waits for "100 Continue" before it sends the body.
pub(super) fn asks_before_sending(headers: &HeaderMap) -> bool {
    headers.get(EXPECT).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

/// Around the routes: tokens, open admission, concurrency. The permit is held until the answer is made.
pub(super) async fn admit(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    match shared.admit(|tokens| tokens.check(request.headers())) {
        Ok(_permit) => next.run(request).await,
        Err(error) => refuse(request, error).await,
    }
}

/// Answers a request whose body nobody reads.
pub(super) async fn refuse(request: Request, error: IngestError) -> Response {
    drained(request).await;
    error.into_response()
}

/// Throws a request's body away.
pub(super) async fn drained(request: Request) {
    let asked = asks_before_sending(request.headers());
    drain(request.into_body(), asked).await;
}

/// Around everything: counts the request, and makes a panic an answer instead of a broken connection.
pub(super) async fn observe(request: Request, next: Next) -> Response {
    let matched = request.extensions().get::<MatchedPath>();
    let route =
        matched.and_then(|path| super::ROUTES.into_iter().find(|route| *route == path.as_str().trim_end_matches('/')));
    let mut seen = RequestGuard { route: route.unwrap_or(UNMATCHED), status: SENDER_LEFT, since: Instant::now() };
    let response = match AssertUnwindSafe(next.run(request)).catch_unwind().await {
        Ok(response) => response,
        Err(_) => {
            tracing::error!(route = seen.route, "a request panicked; this is a bug, please report it");
            IngestError::Internal.into_response()
        }
    };
    seen.status = response.status().as_u16();
    response
}

/// Counts the request when dropped, also where the sender left and the handler went with it.
struct RequestGuard {
    route: &'static str,
    status: u16,
    /// Finer than the milliseconds of [`Clock`], for the histogram only; nothing is decided by it.
    since: Instant,
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        metrics::http_request(self.route, self.status, self.since.elapsed().as_secs_f64());
    }
}

/// For paths that no route has.
pub(super) async fn not_found(request: Request) -> Response {
    let path = request.uri().path().to_owned();
    refuse(request, IngestError::NotFound { path }).await
}

/// For methods that a route does not have; axum adds the header Allow.
pub(super) async fn method_not_allowed(request: Request) -> Response {
    let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
    refuse(request, IngestError::Method { method, path }).await
}
