//! The limit on the connections of a port.

use std::future::{Ready, ready};
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum_server::accept::Accept;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower::Service;

/// Accepts connections up to a limit.
#[derive(Debug, Clone)]
pub(super) struct Limited(pub(super) Arc<Semaphore>);

impl<S> Accept<TcpStream, S> for Limited {
    type Stream = TcpStream;
    type Service = Counted<S>;
    type Future = Ready<io::Result<(TcpStream, Counted<S>)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let permit = self.0.clone().try_acquire_owned().map_err(io::Error::other);
        ready(permit.and_then(|permit| {
            // Small answers must not wait for the TCP acknowledgement of the previous one.
            stream.set_nodelay(true)?;
            Ok((stream, Counted { service, _permit: Arc::new(permit) }))
        }))
    }
}

/// The service of one connection; dropping its last clone releases the permit.
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
