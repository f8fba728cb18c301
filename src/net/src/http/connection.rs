//! The service that handles the requests of one connection, and how a connection without TLS is
//! accepted.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::Request;
use axum::response::Response;
use http_body::{Frame, SizeHint};
use tokio::net::TcpStream;
use tower::Service;

use super::current::Current;
use super::peer::Peer;
use super::port::{Connection, Port};
use super::timed_stream::TimedStream;

/// Puts the time limits on the stream of a connection, whose requests the routes handle.
pub(super) fn serve<S>(
    connection: Arc<Connection>,
    stream: S,
    routes: Current,
) -> (TimedStream<S>, Requests) {
    connection.place.phase().start_over(connection.now_ms());
    let times = *connection.port.times.now();
    (
        TimedStream::new(stream, connection.clone(), times),
        Requests { routes, connection },
    )
}

/// Accepts a connection without TLS, within the limits of the port.
///
/// # Errors
/// It is refused, which is counted and logged.
pub(super) async fn accept(
    port: &Arc<Port>,
    mut stream: TcpStream,
    routes: Current,
) -> io::Result<(TimedStream<TcpStream>, Requests)> {
    let connection = port.enter(&mut stream, routes.peer).await?;
    Ok(serve(connection, stream, routes))
}

/// The service of one connection.
#[derive(Clone)]
pub(super) struct Requests {
    routes: Current,
    connection: Arc<Connection>,
}

impl<B> Service<Request<B>> for Requests
where
    Current: Service<Request<B>, Response = Response, Error = Infallible, Future: Unpin>,
{
    type Response = Response<WatchedBody>;
    type Error = Infallible;
    type Future = Answering<<Current as Service<Request<B>>>::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.routes.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let peer = Peer::new(self.connection.clone(), request.headers());
        request.extensions_mut().insert(peer);
        let working = Working::begin(&self.connection);
        Answering {
            response: self.routes.call(request),
            working: Some(working),
        }
    }
}

/// A request in progress, until the last part of its response is produced.
struct Working(Arc<Connection>);

impl Working {
    fn begin(connection: &Arc<Connection>) -> Working {
        connection.place.begin();
        Working(connection.clone())
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.0.rest();
    }
}

/// The response to come.
pub(super) struct Answering<F> {
    response: F,
    working: Option<Working>,
}

impl<F: Future<Output = Result<Response, Infallible>> + Unpin> Future for Answering<F> {
    type Output = Result<Response<WatchedBody>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Poll::Ready(Ok(response)) = Pin::new(&mut self.response).poll(cx) else {
            return Poll::Pending;
        };
        let working = self.working.take();
        Poll::Ready(Ok(response.map(|body| WatchedBody {
            body,
            _working: working,
        })))
    }
}

/// A response's body. While it exists, its request is in progress.
pub(super) struct WatchedBody {
    body: Body,
    _working: Option<Working>,
}

impl HttpBody for WatchedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
