//! The stream of a broker connection below rumqttc: TCP, TLS if the URL asks for it, and the
//! [`PacketObserver`] that reads what the broker says. Above it rumqttc has only the WebSocket.
//!
//! TLS is set up here and not by rumqttc, because the observer has to see the decrypted bytes.
//!
//! Once the broker has refused or ended the connection, the stream ends. rumqttc may not have
//! understood that packet, and would wait for more.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_util::either::Either;

use super::observe::{EndReason, Ended, Notice, PacketObserver};
use super::socket::{Coalescing, Handle};
use super::target::{Scheme, Target};
use config::MqttProtocol;
use net::tls::{ClientStream, ClientTls};

#[derive(Debug, Default)]
struct Observed {
    is_accepted: bool,
    /// A SUBSCRIBE waits for its SUBACK.
    is_subscribing: bool,
    reason: Option<EndReason>,
    /// The broker has closed the connection.
    is_closed: bool,
}

/// What the broker has said on a connection. Shared by the stream and those who use the connection.
#[derive(Debug, Clone, Default)]
pub(super) struct Observations(Arc<Mutex<Observed>>);

impl Observations {
    fn observed(&self) -> MutexGuard<'_, Observed> {
        // Each field is valid by itself, so it stays usable after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a SUBSCRIBE is sent.
    pub(super) fn subscribing(&self) {
        self.observed().is_subscribing = true;
    }

    /// How the broker ended the connection; `None` if it did not.
    pub(super) fn ended(&self) -> Option<Ended> {
        let observed = self.observed();
        match &observed.reason {
            Some(reason) => Some(Ended::Said(reason.clone())),
            None if !observed.is_closed => None,
            None if !observed.is_accepted => Some(Ended::BeforeConnAck),
            None if observed.is_subscribing => Some(Ended::BeforeSubAck),
            None => Some(Ended::Silently),
        }
    }

    fn note(&self, notice: Notice) {
        let mut observed = self.observed();
        match notice {
            Notice::Accepted => observed.is_accepted = true,
            Notice::Subscribed => observed.is_subscribing = false,
            Notice::Ended(reason) => observed.reason = observed.reason.take().or(Some(reason)),
        }
    }
}

type Socket = Coalescing<TcpStream>;

/// Opens the stream of one connection.
#[derive(Debug, Clone)]
pub(super) struct Dialer {
    pub(super) target: Arc<Target>,
    /// The protocol of our CONNECT.
    pub(super) protocol: MqttProtocol,
    /// `None`: the connection is not encrypted.
    pub(super) tls: Option<ClientTls>,
    pub(super) socket: Handle<TcpStream>,
    pub(super) observations: Observations,
}

impl Dialer {
    /// Whether rumqttc puts a WebSocket into the stream.
    pub(super) fn is_websocket(&self) -> bool {
        matches!(self.target.scheme, Scheme::Ws | Scheme::Wss)
    }

    /// Tries every address of the host name.
    ///
    /// # Errors
    /// No connection, or TLS failed.
    pub(super) async fn dial(self) -> io::Result<BrokerStream> {
        let observer = PacketObserver::new(self.protocol, self.is_websocket());
        let host = self.target.host.as_str();
        let socket = TcpStream::connect((host, self.target.port)).await?;
        // Writes are coalesced already; Nagle's algorithm would delay every PUBACK of a quiet
        // connection.
        socket.set_nodelay(true)?;
        let socket = Coalescing::new(socket, self.socket);
        let stream = match self.tls {
            None => Either::Left(socket),
            Some(tls) => {
                let named =
                    |error: io::Error| io::Error::new(error.kind(), format!("TLS: {error}"));
                Either::Right(tls.connect(host, socket).await.map_err(named)?)
            }
        };
        Ok(BrokerStream {
            stream,
            observer,
            observations: self.observations,
        })
    }
}

/// A stream whose received packets are observed.
#[derive(Debug)]
pub(super) struct BrokerStream<S = Either<Socket, ClientStream<Socket>>> {
    stream: S,
    observer: PacketObserver,
    observations: Observations,
}

impl<S: AsyncRead + Unpin> AsyncRead for BrokerStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
        let BrokerStream {
            stream,
            observer,
            observations,
        } = self.get_mut();
        if observations.observed().reason.is_some() {
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        let read = ready!(Pin::new(stream).poll_read(cx, buf));
        let bytes = &buf.filled()[before..];
        let is_closed = match &read {
            Ok(()) => bytes.is_empty(),
            Err(error) => matches!(
                error.kind(),
                BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof
            ),
        };
        if is_closed {
            observations.observed().is_closed = true;
        }
        observer.observe(bytes, |notice| observations.note(notice));
        Poll::Ready(read)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for BrokerStream<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
