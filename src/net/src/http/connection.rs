//! How the requests of one connection are answered, and how a connection without TLS is accepted.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::Request;
use axum::response::Response;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tower::Service;

use super::peer::Peer;
use super::port::{Connection, Port};
use super::timed_stream::TimedStream;

/// Accepts a connection without TLS, within the limits of the port.
///
/// # Errors
/// It is refused, which is counted and logged.
pub(super) async fn accept(
    port: &Arc<Port>,
    mut stream: TcpStream,
    peer: SocketAddr,
) -> io::Result<TimedStream<TcpStream>> {
    let connection = port.enter(&mut stream, peer).await?;
    Ok(timed(connection, stream))
}

/// Puts the time limits on the stream of a connection.
pub(super) fn timed<S>(connection: Arc<Connection>, stream: S) -> TimedStream<S> {
    connection.place.phase().start_over(connection.now_ms());
    let times = *connection.port.times.now();
    TimedStream::new(stream, connection, times)
}

/// The answer to a request of this connection, by the current routes.
pub(super) fn answer(
    connection: &Arc<Connection>,
    routes: &watch::Receiver<Router>,
    mut request: Request<Incoming>,
) -> impl Future<Output = Result<Response<WatchedBody>, Infallible>> + use<> {
    let peer = Peer::new(connection.clone(), request.headers());
    request.extensions_mut().insert(peer);
    let working = Working::begin(connection);
    let mut routes = routes.borrow().clone();
    let answered = routes.call(request);
    async move {
        let response = answered.await?;
        Ok(response.map(|body| WatchedBody {
            body,
            _working: working,
        }))
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

/// A response's body. While it exists, its request is in progress.
pub(super) struct WatchedBody {
    body: Body,
    _working: Working,
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
