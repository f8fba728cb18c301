//! The listening socket and the HTTP/1 settings, shared by both HTTP ports.
//!
//! HTTP/1 only: no common sender needs HTTP/2. With TLS, ALPN announces HTTP/1.1 to the client.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::connection;
use super::port::Port;
use super::secure::Secured;
use super::timed_stream::TimedStream;
use crate::tls::Certificates;

/// Largest head of a request, and the maximum that is read ahead of a body (hyper's default is 400
/// KiB). With 8192 connections (`http.connections_max`) that is at most 512 MiB.
const READ_BUFFER_BYTES_MAX: usize = 64 << 10;

/// hyper's own limit for a head, which includes the time that a connection is idle. The limits are
/// those of [`super::timed_stream`], at most 10 minutes and an hour; but hyper reads again when a
/// response is done, which starts them, only if it has its own limit.
const HYPER_HEADER_TIMEOUT: Duration = Duration::from_secs(2 * 60 * 60);

/// How long no connection is accepted after an error, such as too many open files.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

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
) {
    let serve = async {
        match certificates {
            None => {
                let port = port.clone();
                serve_with(listener, routes, end, move |stream, peer| {
                    let port = port.clone();
                    async move { connection::accept(&port, stream, peer).await }
                })
                .await
            }
            Some(certificates) => {
                let secured = Arc::new(Secured::new(port.clone(), certificates));
                serve_with(listener, routes, end, move |stream, peer| {
                    let secured = secured.clone();
                    async move { secured.accept(stream, peer).await }
                })
                .await
            }
        }
    };
    tokio::select! {
        () = serve => {}
        never = port.log_suppressed() => match never {},
    }
    port.close_log();
}

async fn serve_with<S, A>(
    listener: TcpListener,
    routes: watch::Receiver<Router>,
    end: End,
    accept: impl Fn(TcpStream, SocketAddr) -> A,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    A: Future<Output = io::Result<TimedStream<S>>> + Send + 'static,
{
    let connections = TaskTracker::new();
    let cut = CancellationToken::new();
    loop {
        let accepted = tokio::select! {
            () = end.token.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, peer)) = accepted else {
            tokio::time::sleep(ACCEPT_AGAIN).await;
            continue;
        };
        let accepted = accept(stream, peer);
        connections.spawn(handle(
            accepted,
            routes.clone(),
            end.token.clone(),
            cut.clone(),
        ));
    }
    // From now on connections are refused, unless another server has the socket.
    drop(listener);
    connections.close();
    if tokio::time::timeout(end.last_answers, connections.wait())
        .await
        .is_err()
    {
        cut.cancel();
    }
}

/// Handles the requests of a connection. At the end of the port (`ended`) the current one is the
/// last; `cut` ends it too.
async fn handle<S>(
    accepted: impl Future<Output = io::Result<TimedStream<S>>>,
    routes: watch::Receiver<Router>,
    ended: CancellationToken,
    cut: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // Who refuses a connection counts it.
    let Ok(stream) = accepted.await else {
        return;
    };
    let connection = stream.connection().clone();
    let mut http1 = http1::Builder::new();
    http1
        .timer(TokioTimer::new())
        .header_read_timeout(HYPER_HEADER_TIMEOUT)
        .max_buf_size(READ_BUFFER_BYTES_MAX);
    let answer = service_fn(|request| connection::answer(&connection, &routes, request));
    let served = http1.serve_connection(TokioIo::new(stream), answer);
    tokio::pin!(served);
    // A connection fails because of its peer: it has left, or sent something other than HTTP.
    tokio::select! {
        _ = &mut served => return,
        () = ended.cancelled() => served.as_mut().graceful_shutdown(),
    }
    tokio::select! {
        _ = &mut served => {}
        () = cut.cancelled() => {}
    }
}
