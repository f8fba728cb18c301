//! Middleware for every request: records metrics for every outcome, and on a route admits or
//! refuses the request before its body is read.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request, State};
use axum::http::Uri;
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

use super::body::{BodyBudget, ReceivedBody};
use super::error::IngestError;
use super::idempotency;
use super::routes::{DEVICE_API, ROUTES, UNMATCHED};
use config::Live;
use decode::Formats;
use journal::admission::{Admission, AdmissionError};
use model::Clock;
use net::access::{Credentials, Grant, Held, Protocol};
use net::http::access_error::AccessError;
use net::http::peer::{Peer, judge, over_quota};
use net::http::refused_body::Payer;
use net::http::tokens::identify;
use telemetry::metrics;

/// The status in the metrics if the sender disconnected before the answer (nginx's 499). It is
/// never sent.
const SENDER_LEFT: u16 = 499;

/// How often a closed admission is checked again.
const DOOR_EVERY: Duration = Duration::from_millis(50);

/// A place among the concurrent requests, of the port and of the sender, until dropped.
pub(super) struct Running {
    _permit: OwnedSemaphorePermit,
    _held: Option<Held>,
}

/// State shared by all requests.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) cfg: config::Http,
    pub(super) decoding: Arc<config::Decoding>,
    /// The formats that a request can name.
    pub(super) formats: Formats,
    pub(super) admission: Admission,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) credentials: Option<Arc<Credentials>>,
    /// Those after the last reload.
    pub(super) newest: Live<Option<Arc<Credentials>>>,
    /// One permit per request whose body has arrived, until its answer is made;
    /// `http.concurrency_max` in total.
    pub(super) running: Arc<Semaphore>,
    pub(super) bodies: BodyBudget,
    pub(super) stopping: Arc<AtomicBool>,
}

impl Shared {
    /// The same without the next stage. Requests are refused as soon as the port stops.
    pub(super) fn without_next_stage(&self) -> Shared {
        Shared {
            admission: self.admission.without_next_stage(),
            ..self.clone()
        }
    }

    /// Admits a request before its body is read, at the cost of at most one hash; returns its
    /// sender. `check` verifies the token; it is called only if credentials are configured.
    ///
    /// A body that is still arriving takes no permit: its sender decides how long that lasts.
    /// [`Shared::start`] takes it. The hand-over checks admission again. Checking both here saves
    /// sending, reading and decoding the body.
    pub(super) fn admit(
        &self,
        peer: Option<&Peer>,
        check: impl FnOnce(&Credentials) -> Result<Arc<Grant>, AccessError>,
    ) -> Result<Sender, IngestError> {
        let sender = self.open(peer, check)?;
        self.admission.check()?;
        drop(hold(peer, sender.0.as_ref())?);
        if self.running.available_permits() > 0 {
            Ok(sender)
        } else {
            Err(IngestError::Concurrency)
        }
    }

    /// Like [`Shared::admit`], for senders that send only once: they wait for room in
    /// [`Shared::start_patiently`].
    pub(super) fn open(
        &self,
        peer: Option<&Peer>,
        check: impl FnOnce(&Credentials) -> Result<Arc<Grant>, AccessError>,
    ) -> Result<Sender, IngestError> {
        if self.stopping.load(Ordering::Acquire) {
            return Err(IngestError::Admission(AdmissionError::Stopping));
        }
        let Some(credentials) = &self.credentials else {
            return Ok(Sender(None));
        };
        let grant = judge(peer, identify(credentials, peer, check))?;
        let now = self.clock.now();
        check_sender(peer, &grant, now.wall_ms)?;
        peer.inspect(|peer| peer.sent_by(&grant));
        grant.usage.note_used(now.wall_ms);
        grant
            .check_quota(now)
            .map_err(|exceeded| over_quota(peer, &grant, exceeded))?;
        Ok(Sender(Some(grant)))
    }

    /// Checks the sender of a request once more, and gives the body its present rules: while it
    /// arrived, the token may have expired, or been revoked or changed. Counts the request for it.
    fn check_again(
        &self,
        parts: &Parts,
        body: &mut ReceivedBody,
    ) -> Result<Option<Held>, IngestError> {
        let peer = Peer::find(&parts.extensions);
        let sender = &mut body.held.sender;
        let newest = self.newest.now();
        if let (Some(grant), Some(newest)) = (&mut *sender, &*newest) {
            let is_reloaded = self
                .credentials
                .as_ref()
                .is_none_or(|known| !Arc::ptr_eq(known, newest));
            if is_reloaded {
                *grant = newest.renewed(grant).ok_or(AccessError::WrongToken)?;
            }
            check_sender(peer, grant, self.clock.now().wall_ms)?;
        }
        Ok(hold(peer, sender.as_ref())?)
    }

    /// The permit of a request whose body has arrived. Waits for it up to `http.queue_timeout`:
    /// otherwise the sender would have to send the whole body again. Then its key begins, if it has
    /// one.
    pub(super) async fn start(
        &self,
        parts: &Parts,
        body: &mut ReceivedBody,
    ) -> Result<Running, IngestError> {
        let held = self.check_again(parts, body)?;
        let permit = self
            .room(self.running.clone().acquire_owned(), self.cfg.queue_timeout)
            .await?;
        body.held.key = idempotency::begin(self.admission.keys(), &*self.clock, parts, body)?;
        Ok(Running {
            _permit: permit,
            _held: held,
        })
    }

    /// Like [`Shared::start`], but waits up to `patience`, for open admission too. Returned permits
    /// go to waiting requests first, so new requests of senders that retry by themselves come
    /// second.
    pub(super) async fn start_patiently(
        &self,
        parts: &Parts,
        body: &mut ReceivedBody,
        patience: Duration,
    ) -> Result<Running, IngestError> {
        let held = self.check_again(parts, body)?;
        let admitted = async {
            while let Err(AdmissionError::Busy | AdmissionError::Full) = self.admission.check() {
                tokio::time::sleep(DOOR_EVERY).await;
            }
            self.running.clone().acquire_owned().await
        };
        let permit = self.room(admitted, patience).await?;
        self.admission.check()?;
        body.held.key = idempotency::begin(self.admission.keys(), &*self.clock, parts, body)?;
        Ok(Running {
            _permit: permit,
            _held: held,
        })
    }

    async fn room(
        &self,
        permit: impl Future<Output = Result<OwnedSemaphorePermit, AcquireError>>,
        patience: Duration,
    ) -> Result<OwnedSemaphorePermit, IngestError> {
        let permit = tokio::time::timeout(patience, permit).await;
        // The permits are all taken once the port stops.
        if self.stopping.load(Ordering::Acquire) {
            return Err(IngestError::Admission(AdmissionError::Stopping));
        }
        let late = |_| {
            self.admission
                .check()
                .err()
                .map_or(IngestError::Concurrency, IngestError::from)
        };
        permit.map_err(late)?.map_err(|_| IngestError::Concurrency)
    }
}

/// Whether this sender may write now. Counts and logs if not.
fn check_sender(peer: Option<&Peer>, grant: &Grant, now_ms: i64) -> Result<(), AccessError> {
    grant
        .check_sender(Protocol::Http, now_ms)
        .map_err(|denied| {
            let error = AccessError::Denied(denied);
            peer.inspect(|peer| peer.denied(grant, &error));
            error
        })
}

/// Counts the request for its sender.
fn hold(peer: Option<&Peer>, sender: Option<&Arc<Grant>>) -> Result<Option<Held>, AccessError> {
    let held = |grant: &Arc<Grant>| {
        grant
            .usage
            .request(&grant.quota)
            .map_err(|e| over_quota(peer, grant, e))
    };
    sender.map(held).transpose()
}

/// Middleware of the routes: tokens, open admission, concurrency.
pub(super) async fn admit(
    State(shared): State<Arc<Shared>>,
    request: Request,
    next: Next,
) -> Response {
    match shared.admit(Peer::find(request.extensions()), |credentials| {
        credentials.check(request.headers())
    }) {
        Ok(sender) => sender.run(request, next).await,
        Err(error) => error.into_response(),
    }
}

/// Outermost middleware: counts the request, and turns a panic into an answer instead of a broken
/// connection.
pub(super) async fn observe(request: Request, next: Next) -> Response {
    let matched = request.extensions().get::<MatchedPath>();
    let route = matched.and_then(|path| {
        ROUTES
            .into_iter()
            .find(|route| *route == path.as_str().trim_end_matches('/'))
    });
    let mut seen = RequestGuard {
        route: route.unwrap_or(UNMATCHED),
        status: SENDER_LEFT,
        since: Instant::now(),
    };
    let response = match AssertUnwindSafe(next.run(request)).catch_unwind().await {
        Ok(response) => response,
        Err(_) => {
            tracing::error!(
                route = seen.route,
                "request handler panicked; this is a bug, please report it"
            );
            IngestError::Internal.into_response()
        }
    };
    seen.status = response.status().as_u16();
    response
}

/// Counts the request when dropped, also if the sender disconnected and the handler was dropped.
struct RequestGuard {
    route: &'static str,
    status: u16,
    /// Finer than the milliseconds of [`Clock`]. For the histogram only; no decision depends on it.
    since: Instant,
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        metrics::http_request(self.route, self.status, self.since.elapsed().as_secs_f64());
    }
}

/// `GET` and `HEAD` of a path that accepts readings: Vector and load balancers ask there whether
/// they may send. The middleware has checked that.
pub(super) async fn health_check() -> &'static str {
    "ready for readings; send them with POST\n"
}

/// For paths that match no route.
pub(super) async fn not_found(uri: Uri) -> Response {
    IngestError::NotFound {
        is_device_api: uri.path().starts_with(DEVICE_API),
    }
    .into_response()
}

/// For methods that a route does not support; axum adds the header Allow.
pub(super) async fn method_not_allowed() -> Response {
    IngestError::Method.into_response()
}

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
    pub(super) fn find(parts: &Parts) -> Option<&Arc<Grant>> {
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
    Sender::find(parts).map_or_else(route, |grant| grant.id.to_string())
}
