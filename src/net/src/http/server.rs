//! The listening socket and the HTTP/1 settings, shared by both HTTP ports.
//!
//! HTTP/1 only. A server that also supports HTTP/2 waits for its preface without a timeout, so a
//! slow client could hold the connection open forever; and no common sender needs HTTP/2. With TLS,
//! ALPN announces HTTP/1.1 to the client.

use std::convert::Infallible;
use std::future::ready;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum_server::accept::Accept;
use axum_server::{Handle, Server};
use hyper_util::rt::TokioTimer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tower::service_fn;

use super::connection::{Limited, Requests};
use super::current::Current;
use super::port::Port;
use super::secure::Secured;
use crate::tls::Certificates;

/// Largest head of a request, and the maximum that is read ahead of a body (hyper's default is 400
/// KiB). With 8192 connections (`http.connections_max`) that is at most 512 MiB.
const READ_BUFFER_BYTES_MAX: usize = 64 << 10;

/// hyper's own limit for a head, which includes the time that a connection is idle. The limits are
/// those of [`super::timed_stream`], at most 10 minutes and an hour; but hyper reads again when a
/// response is done, which starts them, only if it has its own limit.
const HYPER_HEADER_TIMEOUT: Duration = Duration::from_secs(2 * 60 * 60);

/// Why a port cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("{key}: cannot listen on {addr}: {source}")]
pub struct BindError {
    /// The setting that gives the address.
    pub key: &'static str,
    /// The configured address.
    pub addr: SocketAddr,
    /// The error of the socket call.
    pub source: io::Error,
}

/// Opens the port; `key` is the setting that gives its address.
pub async fn bind(addr: SocketAddr, key: &'static str) -> Result<TcpListener, BindError> {
    TcpListener::bind(addr)
        .await
        .map_err(|source| BindError { key, addr, source })
}

/// How a port ends.
pub struct End {
    /// Ends it.
    pub token: CancellationToken,
    /// How long connections may then take to send their last answers.
    pub last_answers: Duration,
}

/// Serves until `end`, and then until the last connection has ended. The limits of a connection are
/// those of [`super::timed_stream`]; a handshake has the limit of a head. A request is handled by
/// the routes that are current when it arrives.
pub async fn serve(
    listener: TcpListener,
    routes: watch::Receiver<Router>,
    port: Arc<Port>,
    certificates: Option<Certificates>,
    end: End,
) -> io::Result<()> {
    let handle = Handle::new();
    let serve = async {
        match certificates {
            None => serve_with(listener, Limited(port.clone()), routes, handle.clone()).await,
            Some(certificates) => {
                serve_with(
                    listener,
                    Secured::new(port.clone(), certificates),
                    routes,
                    handle.clone(),
                )
                .await
            }
        }
    };
    let ended = async {
        end.token.cancelled().await;
        handle.graceful_shutdown(Some(end.last_answers));
        std::future::pending::<Infallible>().await
    };
    let served = tokio::select! {
        served = serve => served,
        never = port.log_suppressed() => match never {},
        never = ended => match never {},
    };
    port.close_log();
    served
}

async fn serve_with<A>(
    listener: TcpListener,
    acceptor: A,
    routes: watch::Receiver<Router>,
    handle: Handle<SocketAddr>,
) -> io::Result<()>
where
    A: Accept<TcpStream, Current, Service = Requests, Future: Send> + Clone + Send + Sync + 'static,
    A::Stream: AsyncRead + AsyncWrite + Unpin + Send,
{
    // The order matters: `acceptor` resets `http1_only` (axum-server 0.8).
    let mut server = Server::<SocketAddr>::from_listener(listener)
        .acceptor(acceptor)
        .http1_only();
    let mut http1 = server.http_builder().http1();
    http1
        .timer(TokioTimer::new())
        .header_read_timeout(HYPER_HEADER_TIMEOUT)
        .max_buf_size(READ_BUFFER_BYTES_MAX);
    let connection = service_fn(move |peer| {
        ready(Ok::<_, Infallible>(Current {
            routes: routes.clone(),
            peer,
        }))
    });
    server.handle(handle).serve(connection).await
}
