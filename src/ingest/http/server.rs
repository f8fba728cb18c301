//! The listening socket, the HTTP/1 settings and the routes, which may be replaced, that both ports share.
//!
//! HTTP/1 only: a server that also waits for HTTP/2's preface reads the first bytes of a connection without a timeout,
//! which a slow client could hold open for ever, and no common sender needs HTTP/2. With TLS the client is told so (ALPN).

use std::convert::Infallible;
use std::future::{Ready, ready};
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
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tower::{Service, service_fn};

use super::secure::Secured;
use crate::ingest::tls::Certificates;

/// Most connections of one port, idle ones too; one more is closed at once. Each may hold a read buffer.
const CONNECTIONS_MAX: usize = 8192;

/// Largest head of a request, and the most that is read ahead of a body (hyper's default is 400 KiB). With
/// [`CONNECTIONS_MAX`] that is 512 MiB at the very worst.
const READ_BUFFER_BYTES_MAX: usize = 64 << 10;

/// Why a port cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("{key}: cannot listen on {addr}: {source}")]
pub struct BindError {
    /// The setting that names the address.
    pub key: &'static str,
    /// The address.
    pub addr: SocketAddr,
    /// Why.
    pub source: io::Error,
}

/// Opens the port; `key` is the setting that names it.
pub(crate) async fn bind(addr: SocketAddr, key: &'static str) -> Result<TcpListener, BindError> {
    TcpListener::bind(addr).await.map_err(|source| BindError { key, addr, source })
}

/// Serves until `handle` says to stop and the last connection has ended. A connection on which no whole head arrives
/// within `header_timeout`, the first or another, is closed; a handshake has that time too. A request is answered by the
/// routes as they are when it arrives.
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
    // In this order: `acceptor` forgets (axum-server 0.8) that HTTP/1 alone was asked for.
    let mut server = Server::<SocketAddr>::from_listener(listener).acceptor(acceptor).http1_only();
    let mut http1 = server.http_builder().http1();
    http1.timer(TokioTimer::new()).header_read_timeout(header_timeout).max_buf_size(READ_BUFFER_BYTES_MAX);
    let connection = service_fn(move |_: SocketAddr| ready(Ok::<_, Infallible>(Current(routes.clone()))));
    server.handle(handle).serve(connection).await
}

/// The routes as they are: a request keeps those that it began with.
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

/// Accepts connections up to a number.
#[derive(Debug, Clone)]
pub(super) struct Limited(Arc<Semaphore>);

impl<S> Accept<TcpStream, S> for Limited {
    type Stream = TcpStream;
    type Service = Counted<S>;
    type Future = Ready<io::Result<(TcpStream, Counted<S>)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let permit = self.0.clone().try_acquire_owned().map_err(io::Error::other);
        ready(permit.and_then(|permit| {
            // Small answers must not wait for the acknowledgement of the one before.
            stream.set_nodelay(true)?;
            Ok((stream, Counted { service, _permit: Arc::new(permit) }))
        }))
    }
}

/// The service of one connection; the permit goes with the last of its clones.
#[derive(Debug, Clone)]
pub(super) struct Counted<S> {
    service: S,
    _permit: Arc<OwnedSemaphorePermit>,
}

impl<S: Service<R>, R> Service<R> for Counted<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> S::Future {
        self.service.call(request)
    }
}
