//! The listening socket, the HTTP/1 settings and the replaceable routes, shared by both HTTP ports.
//!
//! HTTP/1 only. A server that also supports HTTP/2 waits for its preface without a timeout, so a slow client could hold
//! the connection open for ever; and no common sender needs HTTP/2. With TLS, ALPN announces HTTP/1.1 to the client.

use std::convert::Infallible;
use std::future::ready;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use axum_server::accept::Accept;
use axum_server::{Handle, Server};
use hyper_util::rt::TokioTimer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tower::{Service, service_fn};

use super::connection_limit::{Counted, Limited};
use super::secure::Secured;
use crate::ingest::tls::Certificates;

/// Maximum connections of one port, idle ones included; one more is closed immediately. Each may hold a read buffer.
const CONNECTIONS_MAX: usize = 8192;

/// Largest head of a request, and the maximum that is read ahead of a body (hyper's default is 400 KiB). With
/// [`CONNECTIONS_MAX`] that is at most 512 MiB.
const READ_BUFFER_BYTES_MAX: usize = 64 << 10;

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
pub(crate) async fn bind(addr: SocketAddr, key: &'static str) -> Result<TcpListener, BindError> {
    TcpListener::bind(addr).await.map_err(|source| BindError { key, addr, source })
}

/// Serves until `handle` requests a shutdown and the last connection has ended. A connection that does not deliver a
/// complete head within `header_timeout`, for the first or a later request, is closed; a handshake has the same limit.
/// A request is handled by the routes that are current when it arrives.
pub(crate) async fn serve(
    listener: TcpListener,
    routes: watch::Receiver<Router>,
    header_timeout: Duration,
    handle: Handle<SocketAddr>,
    certificates: Option<Certificates>,
) -> io::Result<()> {
    let plain = Limited(Arc::new(Semaphore::new(CONNECTIONS_MAX)));
    match certificates {
        None => serve_with(listener, plain, routes, header_timeout, handle).await,
        Some(certificates) => {
            let secured = Secured::new(plain, certificates, header_timeout);
            serve_with(listener, secured, routes, header_timeout, handle).await
        }
    }
}

async fn serve_with<A>(
    listener: TcpListener,
    acceptor: A,
    routes: watch::Receiver<Router>,
    header_timeout: Duration,
    handle: Handle<SocketAddr>,
) -> io::Result<()>
where
    A: Accept<TcpStream, Current, Service = Counted<Current>, Future: Send> + Clone + Send + Sync + 'static,
    A::Stream: AsyncRead + AsyncWrite + Unpin + Send,
{
    // The order matters: `acceptor` resets `http1_only` (axum-server 0.8).
    let mut server = Server::<SocketAddr>::from_listener(listener).acceptor(acceptor).http1_only();
    let mut http1 = server.http_builder().http1();
    http1.timer(TokioTimer::new()).header_read_timeout(header_timeout).max_buf_size(READ_BUFFER_BYTES_MAX);
    let connection = service_fn(move |_: SocketAddr| ready(Ok::<_, Infallible>(Current(routes.clone()))));
    server.handle(handle).serve(connection).await
}

/// The current routes. A request keeps the routes that it started with.
#[derive(Debug, Clone)]
pub(super) struct Current(watch::Receiver<Router>);

impl<B> Service<Request<B>> for Current
where
    Router: Service<Request<B>, Error = Infallible>,
{
    type Response = <Router as Service<Request<B>>>::Response;
    type Error = Infallible;
    type Future = <Router as Service<Request<B>>>::Future;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // A router is always ready.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let mut router = self.0.borrow().clone();
        router.call(request)
    }
}
