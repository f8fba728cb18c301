//! The stream of an HTTP connection with its time limits.
//!
//! - A request's head must be complete within `header_timeout` of its first byte; a connection's
//!   first head, of the opening of the connection (with TLS: of the end of the handshake).
//! - Between requests a connection may be idle for `keep_alive`. hyper's `header_read_timeout` does
//!   not distinguish the two: it runs from the end of the previous response.
//! - A write may be pending for `write_timeout` without progress. Then the peer reads nothing, and
//!   the response, with everything that it holds, is dropped.
//!
//! - A connection whose client certificate is revoked or expires fails immediately.
//!
//! While a request is in progress reads have no limit here: a body has its own (`ingest::http::body`, on
//! the admin port [`super::peer::Peer::arriving`]). A read that exceeds its limit looks like the end
//! of the stream, so the remaining bytes are sent, and TLS is closed in order.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use super::port::Connection;
use crate::connections::phase::{Awaited, Doing};
use config::HttpTimes;
use telemetry::metrics::{self, ConnectionClosed};

pub(super) struct TimedStream<S> {
    stream: S,
    connection: Arc<Connection>,
    times: HttpTimes,
    /// Wakes a connection that waits for a request, at its limit or earlier: not reset for each
    /// request.
    reading: Option<Pin<Box<Sleep>>>,
    /// The limit of the write that is pending.
    writing: Option<Pin<Box<Sleep>>>,
    is_over: bool,
    /// Ends when the client's certificate is no longer valid.
    revoked: Option<Revoked>,
}

type Revoked = Pin<Box<dyn Future<Output = ()> + Send>>;

impl<S> TimedStream<S> {
    pub(super) fn new(stream: S, connection: Arc<Connection>, times: HttpTimes) -> TimedStream<S> {
        let revoked = connection
            .client
            .get()
            .map(|client| Box::pin(client.clone().ended()) as Revoked);
        TimedStream {
            stream,
            connection,
            times,
            reading: None,
            writing: None,
            is_over: false,
            revoked,
        }
    }

    pub(super) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Fails once the client's certificate is no longer valid, also while a request is in progress.
    fn check_client(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let is_revoked = |revoked: &mut Revoked| revoked.as_mut().poll(cx).is_ready();
        if self.revoked.as_mut().is_some_and(is_revoked) {
            // A future must not be polled again after its end; the connection is dropped with the
            // error.
            self.revoked = None;
            let _ = self.over(ConnectionClosed::Certificate);
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(())
    }

    /// Whether the wait for a request is over, because of its limit or because the connection was
    /// cut.
    fn poll_end_of_wait(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.connection.place.phase().poll_cut(cx).is_ready() {
                return self.over(ConnectionClosed::Evicted);
            }
            let Doing::Waiting { since_ms, awaited } = self.connection.place.phase().now() else {
                return Poll::Pending;
            };
            let (limit, reason) = match awaited {
                Awaited::Head => (self.times.header_timeout, ConnectionClosed::HeaderTimeout),
                Awaited::Request => (self.times.keep_alive, ConnectionClosed::KeepAlive),
                Awaited::Body => return Poll::Pending,
            };
            let waited = Duration::from_millis(self.connection.now_ms().saturating_sub(since_ms));
            let Some(left) = limit.checked_sub(waited).filter(|left| !left.is_zero()) else {
                return self.over(reason);
            };
            let at = Instant::now() + left;
            let timer = self
                .reading
                .get_or_insert_with(|| Box::pin(sleep_until(at)));
            if timer.is_elapsed() || timer.deadline() > at {
                timer.as_mut().reset(at);
            }
            std::task::ready!(timer.as_mut().poll(cx));
        }
    }

    /// The wait is over; counts why, once.
    fn over(&mut self, reason: ConnectionClosed) -> Poll<()> {
        if !std::mem::replace(&mut self.is_over, true) {
            metrics::http_connections_closed_total(self.connection.port.name, reason, 1);
        }
        Poll::Ready(())
    }

    /// The result of a write, or an error if it has been pending for too long.
    fn limited<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.writing = None;
            return written;
        }
        let limit = self.times.write_timeout;
        let timer = self.writing.get_or_insert_with(|| Box::pin(sleep(limit)));
        std::task::ready!(timer.as_mut().poll(cx));
        if !std::mem::replace(&mut self.is_over, true) {
            self.connection.stuck();
        }
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        this.check_client(cx)?;
        let before = buf.filled().len();
        match Pin::new(&mut this.stream).poll_read(cx, buf) {
            Poll::Ready(Ok(())) if buf.filled().len() > before => {
                if !this
                    .connection
                    .place
                    .phase()
                    .received(this.connection.now_ms())
                {
                    // Its place is given away already.
                    buf.set_filled(before);
                    return this.over(ConnectionClosed::Evicted).map(Ok);
                }
                Poll::Ready(Ok(()))
            }
            Poll::Pending => this.poll_end_of_wait(cx).map(Ok),
            done => done,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check_client(cx)?;
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.limited(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check_client(cx)?;
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.limited(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.limited(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.limited(cx, closed)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::timeout;

    use super::super::port::Port;
    use super::*;
    use config::Config;
    use model::SystemClock;
    use telemetry::metrics::PortName;

    const SECOND: Duration = Duration::from_secs(1);

    /// A connection that has just been opened, and its peer. Up to 64 bytes wait between them.
    fn pair() -> (TimedStream<DuplexStream>, DuplexStream) {
        let times = HttpTimes {
            header_timeout: 10 * SECOND,
            keep_alive: 75 * SECOND,
            write_timeout: 10 * SECOND,
        };
        let http = Config::default().http;
        let (port, _) = Port::new(
            PortName::Http,
            Arc::new(SystemClock::new()),
            http.connections,
            http.proxies,
            times,
        );
        let (stream, peer) = duplex(64);
        (
            TimedStream::new(
                stream,
                port.entered(([127, 0, 0, 1], 1).into()).unwrap(),
                times,
            ),
            peer,
        )
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_nothing_for_ten_seconds_fails_the_write() {
        let (mut stream, mut peer) = pair();
        let since = Instant::now();
        let writing = tokio::spawn(async move { stream.write_all(&[0; 1000]).await });
        // It takes a little now and then.
        for _ in 0..5 {
            tokio::time::sleep(9 * SECOND).await;
            peer.read_exact(&mut [0; 64]).await.unwrap();
        }
        let written = timeout(100 * SECOND, writing)
            .await
            .expect("the write is pending for ever");
        let error = written.unwrap().unwrap_err();
        assert_eq!(
            (error.kind(), since.elapsed().as_secs()),
            (io::ErrorKind::TimedOut, 55)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_wait_for_a_request_ends_like_a_stream() {
        let (mut stream, mut peer) = pair();
        let since = Instant::now();
        let mut read = async || {
            let n = stream.read(&mut [0; 64]).await.unwrap();
            (n, since.elapsed().as_secs())
        };
        // The first head, from the opening on.
        tokio::time::sleep(4 * SECOND).await;
        peer.write_all(b"GET").await.unwrap();
        assert_eq!(read().await, (3, 4));
        assert_eq!(read().await, (0, 10));
        let (mut stream, mut peer) = pair();
        let connection = stream.connection.clone();
        let since = Instant::now();
        connection.place.begin();
        tokio::time::sleep(100 * SECOND).await;
        connection.rest();
        tokio::time::sleep(70 * SECOND).await;
        peer.write_all(b"GET").await.unwrap();
        assert_eq!(stream.read(&mut [0; 64]).await.unwrap(), 3);
        assert_eq!(stream.read(&mut [0; 64]).await.unwrap(), 0);
        assert_eq!(since.elapsed().as_secs(), 180);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_has_no_limit_here_but_its_connection_can_be_cut() {
        let (mut stream, mut peer) = pair();
        let connection = stream.connection.clone();
        connection.place.begin();
        connection.await_body();
        peer.write_all(b"query=").await.unwrap();
        assert_eq!(stream.read(&mut [0; 64]).await.unwrap(), 6);
        let reading = tokio::spawn(async move { stream.read(&mut [0; 64]).await.unwrap() });
        tokio::time::sleep(100 * SECOND).await;
        assert!(!reading.is_finished());
        let phase = connection.place.phase();
        let Doing::Waiting { since_ms, .. } = phase.now() else {
            panic!("{:?}", phase.now());
        };
        assert!(phase.cut(since_ms));
        assert_eq!(reading.await.unwrap(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_is_cut_ends_and_what_has_arrived_is_not_read() {
        let (mut stream, mut peer) = pair();
        let connection = stream.connection.clone();
        let reading =
            tokio::spawn(async move { (stream.read(&mut [0; 64]).await.unwrap(), stream) });
        tokio::task::yield_now().await;
        assert!(connection.place.phase().cut(0));
        let (n, mut stream) = reading.await.unwrap();
        peer.write_all(b"GET").await.unwrap();
        assert_eq!((n, stream.read(&mut [0; 64]).await.unwrap()), (0, 0));
    }
}
