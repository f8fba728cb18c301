//! Readings over HTTP: the port that gateways post to.
//!
//! A request passes these steps, in this order:
//! - `foreign`: without tokens, refuses requests of web pages of other sites, and of clients that a
//!   proxy names on other machines.
//! - `admit`: metrics, token, open admission, and whether there is room among the concurrent
//!   requests.
//! - The route's handler (`readings`, `hooks`, `otlp`, `thingsboard`, `influx`): headers and query.
//! - `body`: reads the body within its limits. Only then does the request count as running
//!   (`http.concurrency_max`).
//! - `idempotency`: whether the request is a repeat.
//! - `pipeline`: decompression (`encoding`), pairs to an object (`form`), decoding, admission
//!   ([`journal::admission`]), and the wait for the acknowledgement.
//!
//! Every refusal is one variant of `IngestError` with its status.
//!
//! Invariants:
//! - 2xx is sent only after every accepted reading of the request was acknowledged as delivered.
//! - A refused request leaves nothing in the pipeline, unless the refusal came after the hand-over
//!   (no acknowledgement). It is safe to send such a request again, because readings with a
//!   timestamp are stored once.
//! - A request uses at most twice `http.body_max_bytes` (and a zstd window of at most 8 MiB while
//!   it is decompressed). All bodies together use at most the budget of `body`. Each step has a
//!   time limit.
//!
//! Shutdown has two steps, so that senders get an answer for as long as possible. First the app
//! closes admission ([`journal::admission::AdmissionControl::stop`]): new requests get 503, while
//! requests that are already handed over get their acknowledgement. Then `shutdown` of
//! [`HttpIngest::serve`] is cancelled: running requests get the rest of the deadline, new ones still
//! get 503, and when no request is left, all connections end. The port does not wait for a body
//! that is still arriving: its readings would be refused. From then on it only refuses
//! (`refusing`), until `closed`.

mod admit;
mod answer;
mod body;
mod error;
mod form;
mod hooks;
mod idempotency;
mod influx;
mod media;
mod otlp;
mod pipeline;
mod readings;
mod remote_write;
mod routes;
mod thingsboard;

#[cfg(test)]
mod tests;

pub(crate) use self::hooks::Target as HookTarget;
pub use self::routes::ROUTES;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use self::admit::Shared;
use self::body::BodyBudget;
use self::error::IngestError;
use self::routes::{HOOKS_BEGIN, READINGS, with_slash};
use config::{Live, Setter};
use decode::Formats;
use journal::admission::Admission;
use model::Clock;
use net::access::{Credentials, GrantDefaults, TokensError};
use net::http::refusing::RefusingPort;
use net::http::server::{self, End};
use net::http::{BindError, Peer, Port, PortSetter, foreign, open_tls, refused_body};
use net::tls::{Certificates, OnTls, TlsError};
use telemetry::metrics::PortName;

/// How long connections may take to send the last answers after the last request is done.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// Why the port cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The tokens file is not usable.
    #[error(transparent)]
    Tokens(#[from] TokensError),
    /// The port would accept readings from any host that can reach the machine.
    #[error(
        "http.listen: {0} is not a loopback address and no tokens are configured; set \
         http.tokens_file, listen on 127.0.0.1, require client certificates \
         (http.tls.client_ca_file), or set http.allow_anonymous = true to accept readings from any \
         sender"
    )]
    Anonymous(SocketAddr),
    /// The certificates are not usable.
    #[error("http.tls: {0}")]
    Tls(#[from] TlsError),
    /// The address is in use, or is not an address of this machine.
    #[error(transparent)]
    Bind(#[from] BindError),
}

/// The port: open, but not served yet.
pub struct HttpIngest {
    listener: TcpListener,
    addr: SocketAddr,
    shared: Arc<Shared>,
    newest: NewestCredentials,
    routes: watch::Sender<Router>,
    port: Arc<Port>,
    port_setter: PortSetter,
    certificates: Option<Certificates>,
}

/// Replaces the credentials for requests that are already being received.
type NewestCredentials = Setter<Option<Arc<Credentials>>>;

/// Replaces settings, credentials and certificates of a port that is being served.
pub struct Renewal {
    shared: Arc<Shared>,
    newest: NewestCredentials,
    routes: watch::Sender<Router>,
    port: PortSetter,
    /// `None` without TLS.
    pub certificates: Option<Certificates>,
}

impl Renewal {
    /// Applies the settings from the next request on, those of connections from the next connection
    /// on. Running requests keep the settings they started with. The number of concurrent requests
    /// does not change.
    pub fn put(
        &mut self,
        cfg: &config::Http,
        decoding: Arc<config::Decoding>,
        credentials: Option<Arc<Credentials>>,
    ) {
        let before = &self.shared;
        // Running requests hold permits of the budget that they were counted in.
        let sizes = |cfg: &config::Http| (cfg.body_max_bytes, cfg.bodies_max_bytes);
        let is_same = sizes(&before.cfg) == sizes(cfg);
        let bodies = if is_same {
            before.bodies.clone()
        } else {
            BodyBudget::new(cfg)
        };
        let shared = Shared {
            cfg: cfg.clone(),
            formats: Formats::new(&decoding),
            decoding,
            credentials: credentials.clone(),
            bodies,
            ..(**before).clone()
        };
        self.shared = Arc::new(shared);
        self.port
            .set(cfg.connections, cfg.proxies.clone(), cfg.times);
        self.newest.set(credentials.clone());
        // Running requests hold the previous routes.
        drop(self.routes.send_replace(router(self.shared.clone())));
        self.port.revoke(credentials.as_deref());
    }
}

/// Loads the credentials of the port; `None` if none are configured.
///
/// # Errors
/// The tokens file cannot be read or is not valid.
pub fn credentials(
    cfg: &config::Http,
    grants: &GrantDefaults,
) -> Result<Option<Arc<Credentials>>, TokensError> {
    let path = cfg.tokens_file.as_deref();
    let by_certificate = cfg.tls.is_identity();
    Ok(Credentials::load("http.tokens_file", path, by_certificate, grants)?.map(Arc::new))
}

/// The credentials of the admin port: its own certificates, or the tokens and JWTs of HTTP writers.
/// `of_writers`: theirs, if they are loaded; the file is not read again then, so that both ports
/// have the same tokens.
///
/// # Errors
/// See [`credentials`].
pub fn reader_credentials(
    config: &config::Config,
    grants: &GrantDefaults,
    of_writers: Option<&Credentials>,
) -> Result<Option<Arc<Credentials>>, TokensError> {
    let path = config.http.tokens_file.as_deref();
    let by_certificate = config.admin.tls.is_identity();
    let credentials = match of_writers {
        Some(of_writers) => of_writers.for_port(by_certificate),
        None => Credentials::load("http.tokens_file", path, by_certificate, grants)?,
    };
    Ok(credentials.map(Arc::new))
}

impl HttpIngest {
    /// Reads the tokens and opens the port. Connections wait in the kernel until
    /// [`HttpIngest::serve`].
    ///
    /// # Errors
    /// The tokens or the address cannot be used. Nothing is open then.
    pub async fn bind(
        cfg: &config::Http,
        decoding: Arc<config::Decoding>,
        admission: Admission,
        clock: Arc<dyn Clock>,
        on_tls: &OnTls,
        grants: &GrantDefaults,
    ) -> Result<HttpIngest, HttpError> {
        let credentials = credentials(cfg, grants)?;
        if credentials.is_none() && !cfg.is_guarded() && !config::is_loopback(cfg.listen.ip()) {
            return Err(HttpError::Anonymous(cfg.listen));
        }
        let certificates = open_tls(PortName::Http, &cfg.tls, &clock, on_tls).await?;
        let listener = server::bind(cfg.listen, "http.listen").await?;
        let addr = listener.local_addr().unwrap_or(cfg.listen);
        let running = Arc::new(Semaphore::new(cfg.concurrency_max));
        let bodies = BodyBudget::new(cfg);
        let stopping = Arc::new(AtomicBool::new(false));
        let cfg = cfg.clone();
        let formats = Formats::new(&decoding);
        let (newest_setter, newest) = Live::new(credentials.clone());
        let shared = Arc::new(Shared {
            cfg,
            decoding,
            formats,
            admission,
            clock,
            credentials,
            newest,
            running,
            bodies,
            stopping,
        });
        let routes = watch::Sender::new(router(shared.clone()));
        let config::Http {
            connections,
            times,
            proxies,
            ..
        } = &shared.cfg;
        let (port, port_setter) = Port::new(
            PortName::Http,
            shared.clock.clone(),
            *connections,
            proxies.clone(),
            *times,
        );
        Ok(HttpIngest {
            listener,
            addr,
            shared,
            newest: newest_setter,
            routes,
            port,
            port_setter,
            certificates,
        })
    }

    /// The bound address; differs from the setting if the setting has port 0.
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// The credentials of its senders; `None` if none are configured.
    pub fn credentials(&self) -> Option<&Credentials> {
        self.shared.credentials.as_deref()
    }

    /// Take it before [`HttpIngest::serve`], which consumes the port.
    pub fn renewal(&self) -> Renewal {
        let shared = self.shared.clone();
        let routes = self.routes.clone();
        let port = self.port_setter.clone();
        Renewal {
            shared,
            newest: self.newest.clone(),
            routes,
            port,
            certificates: self.certificates.clone(),
        }
    }

    /// Serves until `shutdown` is cancelled, then completes running requests for at most
    /// `deadline`, then ends all connections. Requests can be left unanswered only if their
    /// readings are not acknowledged yet; their senders send again. A task answers 503 from then on
    /// until `closed`.
    ///
    /// # Errors
    /// The socket cannot be shared with that task: too many open files.
    pub async fn serve(
        self,
        shutdown: CancellationToken,
        closed: CancellationToken,
        deadline: Duration,
    ) -> std::io::Result<()> {
        let HttpIngest {
            listener,
            addr,
            shared,
            routes,
            port,
            certificates,
            ..
        } = self;
        let credentials = shared.credentials.as_deref();
        let tokens = credentials.and_then(Credentials::tokens);
        let jwt = credentials.is_some_and(Credentials::accepts_jwt);
        tracing::info!(%addr, tokens, jwt, tls = certificates.is_some(), "HTTP ingest listening");
        if let Some(credentials) = credentials {
            credentials.log_tokens_without_rules("http.tokens_file");
        }
        if let Some(certificates) = certificates.clone() {
            tokio::spawn(certificates.watch(shutdown.clone()));
        }
        let refusing = RefusingPort::new(&listener, port.clone(), certificates.clone())?;
        let answered = CancellationToken::new();
        let end = End {
            token: answered.clone(),
            last_answers: LAST_ANSWERS,
        };
        let server = server::serve(listener, routes.subscribe(), port, certificates, end);
        let stop = async {
            shutdown.cancelled().await;
            shared.stopping.store(true, Ordering::Release);
            // All permits are available only when no request is running; new ones do not acquire
            // any.
            let all = u32::try_from(shared.cfg.concurrency_max).unwrap_or(u32::MAX);
            let idle = tokio::time::timeout(deadline, shared.running.acquire_many(all)).await;
            if idle.is_err() {
                let running = shared.cfg.concurrency_max - shared.running.available_permits();
                tracing::warn!(
                    running,
                    "requests not completed by the deadline; their senders send again"
                );
            }
            let refusals = router(Arc::new(shared.without_next_stage()));
            tokio::spawn(refusing.serve(refusals, closed));
            answered.cancel();
        };
        tokio::pin!(server);
        tokio::select! {
            () = &mut server => {}
            () = stop => server.await,
        }
        Ok(())
    }
}

fn router(shared: Arc<Shared>) -> Router {
    let readings = post(readings::post)
        .get(admit::health_check)
        .route_layer(from_fn_with_state(shared.clone(), admit::admit));
    with_slash(READINGS, readings)
        .merge(hooks::routes(&shared))
        .merge(otlp::routes(&shared))
        .merge(remote_write::routes(&shared))
        .merge(thingsboard::routes(&shared))
        .merge(influx::routes(&shared))
        .fallback(admit::not_found)
        .method_not_allowed_fallback(admit::method_not_allowed)
        .layer(from_fn_with_state(shared.clone(), refuse_foreign))
        .layer(from_fn(refused_body::discard_rest))
        .layer(from_fn(admit::observe))
        .with_state(shared)
}

/// Middleware of every path. Tokens and client certificates are something that a page of another
/// site does not have.
async fn refuse_foreign(
    State(shared): State<Arc<Shared>>,
    request: Request,
    next: Next,
) -> Response {
    let Shared {
        cfg, credentials, ..
    } = &*shared;
    if credentials.is_some() || cfg.tls.is_gate() {
        return next.run(request).await;
    }
    let is_hook = request.method() == Method::GET && request.uri().path().starts_with(HOOKS_BEGIN);
    let is_near = Peer::find(request.extensions()).is_none_or(Peer::is_on_this_machine);
    let checked = if is_near || cfg.allow_anonymous {
        foreign::check(request.headers(), is_hook, cfg.allow_anonymous)
    } else {
        Err(foreign::Foreign::Client)
    };
    match checked {
        Ok(()) => next.run(request).await,
        Err(foreign) => {
            let error = IngestError::Foreign(foreign);
            let path = request.uri().path().trim_end_matches('/');
            match influx::Dialect::of_path(path) {
                Some(dialect) => dialect.refuse(&error),
                None => otlp::refuse_at(path, request.headers(), &error)
                    .unwrap_or_else(|| error.into_response()),
            }
        }
    }
}
