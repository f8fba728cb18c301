//! Readings over HTTP: the port that gateways post to.
//!
//! A request passes, in this order: `admit` (observed, token, open door, concurrency), the route's handler
//! (`readings`, `hooks`, `otlp`, `thingsboard`, `influx`: headers and query), `body` within its limits, and `passage`: `encoding`, decode, the door
//! ([`crate::intake`]), and the wait for its acknowledgement. Every refusal is one variant of `Refusal` with its status.
//!
//! Invariants:
//! - 2xx is sent only after every accepted reading of the request was acknowledged as delivered.
//! - A refused request left nothing in the pipeline, except where the refusal came after the hand-over (no
//!   acknowledgement); that is safe to send again, since readings with a timestamp are stored once.
//! - A request costs at most `http.body_max_bytes` twice (and a zstd window of at most 8 MiB while it is decompressed),
//!   and the bodies of all together at most the budget of `body`; the time of each step is limited.
//!
//! Stopping has two steps, so that senders get an answer as long as possible. The app first closes the door
//! ([`crate::intake::Gate::stop`]): new requests get 503 while those already handed over get their acknowledgement.
//! Cancelling the token given to [`HttpIngest::serve`] then ends the port: running requests are given the rest of the
//! deadline, new ones still get 503, and the socket closes when none is left.

mod admit;
pub(crate) mod answer;
mod body;
mod encoding;
mod hooks;
mod influx;
mod media;
mod otlp;
mod passage;
mod readings;
mod refusal;
pub(crate) mod server;
mod thingsboard;
pub mod tokens;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::post;
use axum_server::Handle;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use self::admit::Shared;
use self::body::Budget;
use self::tokens::{Tokens, TokensError};
use crate::config;
use crate::decode::Formats;
use crate::intake::Intake;
use crate::model::Clock;

pub(in crate::ingest) use self::hooks::Hooks;
pub use self::server::BindError;

const READINGS: &str = "/v1/readings";

/// Every route, as in the label `route` of the metrics and in the description of the API.
pub const ROUTES: [&str; 10] = [
    READINGS,
    hooks::HOOKS,
    otlp::METRICS,
    thingsboard::TELEMETRY,
    influx::WRITE_V2,
    influx::WRITE_V1,
    influx::WRITE_V3,
    influx::QUERY,
    influx::PING,
    influx::HEALTH,
];

/// Those that take readings, for messages.
const WRITE_ROUTES: [&str; 7] = [
    READINGS,
    hooks::HOOKS,
    otlp::METRICS,
    thingsboard::TELEMETRY,
    influx::WRITE_V2,
    influx::WRITE_V1,
    influx::WRITE_V3,
];

/// How long connections may take, once the last request is answered, to carry the answers away.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// Why the port cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The file of tokens is not usable.
    #[error(transparent)]
    Tokens(#[from] TokensError),
    /// Readings would be taken from anybody who can reach the machine.
    #[error(
        "http.listen: {0} is not a loopback address and there are no tokens; set http.tokens_file, listen on 127.0.0.1, \
         or set http.allow_anonymous = true to take readings from anybody"
    )]
    Anonymous(SocketAddr),
    /// The address is taken or not ours.
    #[error(transparent)]
    Bind(#[from] BindError),
}

/// The port, open but not served yet.
pub struct HttpIngest {
    listener: TcpListener,
    addr: SocketAddr,
    shared: Arc<Shared>,
}

impl HttpIngest {
    /// Reads the tokens and opens the port. Connections wait in the kernel until [`HttpIngest::serve`].
    ///
    /// # Errors
    /// The tokens or the address cannot be used; nothing is open then.
    pub async fn bind(
        cfg: &config::Http,
        decoding: Arc<config::Decoding>,
        intake: Intake,
        clock: Arc<dyn Clock>,
    ) -> Result<HttpIngest, HttpError> {
        let tokens = cfg.tokens_file.as_deref().map(|path| Tokens::load("http.tokens_file", path)).transpose()?;
        if tokens.is_none() && !cfg.allow_anonymous && !cfg.listen.ip().to_canonical().is_loopback() {
            return Err(HttpError::Anonymous(cfg.listen));
        }
        let listener = server::bind(cfg.listen, "http.listen").await?;
        let addr = listener.local_addr().unwrap_or(cfg.listen);
        let running = Arc::new(Semaphore::new(cfg.concurrency_max));
        let (bodies, stopping) = (Budget::new(cfg.body_max_bytes), AtomicBool::new(false));
        let cfg = cfg.clone();
        let formats = Formats::new(&decoding);
        let shared = Arc::new(Shared { cfg, decoding, formats, intake, clock, tokens, running, bodies, stopping });
        Ok(HttpIngest { listener, addr, shared })
    }

    /// The address in use; differs from the setting where that says port 0.
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// Serves until `shutdown` is cancelled, then answers the running requests for at most `deadline`, then closes the
    /// connections whatever is left. Only requests whose readings are not acknowledged yet can be left, and their
    /// senders send again.
    ///
    /// # Errors
    /// The socket failed.
    pub async fn serve(self, shutdown: CancellationToken, deadline: Duration) -> std::io::Result<()> {
        let HttpIngest { listener, addr, shared } = self;
        tracing::info!(%addr, tokens = shared.tokens.as_ref().map(Tokens::len), "taking readings over HTTP");
        let handle = Handle::new();
        let server = server::serve(listener, router(shared.clone()), shared.cfg.header_timeout, handle.clone());
        let stop = async {
            shutdown.cancelled().await;
            shared.stopping.store(true, Ordering::Release);
            // All permits back means that no request is being worked on; new ones take none.
            let all = u32::try_from(shared.cfg.concurrency_max).unwrap_or(u32::MAX);
            let idle = tokio::time::timeout(deadline, shared.running.acquire_many(all)).await;
            if idle.is_err() {
                let running = shared.cfg.concurrency_max - shared.running.available_permits();
                tracing::warn!(running, "requests were not done within the deadline; their senders will send again");
            }
            handle.graceful_shutdown(Some(LAST_ANSWERS));
        };
        tokio::pin!(server);
        tokio::select! {
            ended = &mut server => ended,
            () = stop => server.await,
        }
    }
}

fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route(READINGS, post(readings::post).route_layer(from_fn_with_state(shared.clone(), admit::admit)))
        .merge(hooks::routes(&shared))
        .merge(otlp::routes(&shared))
        .merge(thingsboard::routes(&shared))
        .merge(influx::routes(&shared))
        .fallback(admit::not_found)
        .method_not_allowed_fallback(admit::method_not_allowed)
        .layer(from_fn(admit::observe))
        .with_state(shared)
}
