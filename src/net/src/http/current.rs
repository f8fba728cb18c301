//! The routes that a reload can replace while requests are served.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use axum::Router;
use axum::http::Request;
use tokio::sync::watch;
use tower::Service;

/// The current routes, for the requests of one connection. A request keeps the routes that it
/// started with.
#[derive(Debug, Clone)]
pub(super) struct Current {
    pub(super) routes: watch::Receiver<Router>,
    /// The other side of the connection.
    pub(super) peer: SocketAddr,
}

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
        let mut router = self.routes.borrow().clone();
        router.call(request)
    }
}
