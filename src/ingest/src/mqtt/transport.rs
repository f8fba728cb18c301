//! The stream of a broker connection below rumqttc: TCP, TLS and a WebSocket if the URL asks for
//! them, and the [`PacketObserver`] that reads what the broker says.
//!
//! TLS and the WebSocket are set up here and not by rumqttc, because the observer has to see the
//! bytes of MQTT, and rumqttc takes the payload of a WebSocket's ping for such bytes.
//!
//! Once the broker has refused or ended the connection, the stream ends. rumqttc may not have
//! understood that packet, and would wait for more.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use async_tungstenite::bytes::{ByteReader, ByteWriter};
use async_tungstenite::tokio::client_async;
use async_tungstenite::tungstenite::client::IntoClientRequest;
use async_tungstenite::tungstenite::error::{Error as WsError, ProtocolError};
use async_tungstenite::tungstenite::http::HeaderValue;
use async_tungstenite::tungstenite::http::header::SEC_WEBSOCKET_PROTOCOL;
use futures_util::TryStreamExt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_util::either::Either;

use super::observe::{EndReason, Ended, Notice, PacketObserver};
use super::socket::{Coalescing, Handle};
use super::target::{Scheme, Target};
use config::MqttProtocol;
use net::tls::ClientTls;

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

    /// Notes that the broker has closed the connection, if that is the error.
    fn note_error(&self, error: &io::Error) {
        use ProtocolError::{HandshakeIncomplete, ResetWithoutClosingHandshake};
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
        let within = error.get_ref().and_then(|error| error.downcast_ref());
        let is_closed = match within {
            Some(WsError::Protocol(fault)) => {
                matches!(fault, HandshakeIncomplete | ResetWithoutClosingHandshake)
            }
            Some(_) => false,
            None => matches!(
                error.kind(),
                BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof
            ),
        };
        if is_closed {
            self.observed().is_closed = true;
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

/// The name of MQTT within a WebSocket (MQTT 5 §6).
const SUBPROTOCOL: HeaderValue = HeaderValue::from_static("mqtt");

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
    /// Tries every address of the host name.
    ///
    /// # Errors
    /// No connection, or TLS or the WebSocket failed.
    pub(super) async fn dial(
        self,
    ) -> io::Result<BrokerStream<impl AsyncRead + AsyncWrite + Send + Sync + Unpin>> {
        let host = self.target.host.as_str();
        let socket = TcpStream::connect((host, self.target.port)).await?;
        // Writes are coalesced already; Nagle's algorithm would delay every PUBACK of a quiet
        // connection.
        socket.set_nodelay(true)?;
        let socket = Coalescing::new(socket, self.socket);
        let named =
            |of: &str, error: io::Error| io::Error::new(error.kind(), format!("{of}: {error}"));
        let stream = match self.tls {
            None => Either::Left(socket),
            Some(tls) => {
                let connected = tls.connect(host, socket).await;
                Either::Right(connected.map_err(|error| named("TLS", error))?)
            }
        };
        let stream = match self.target.scheme {
            Scheme::Mqtt | Scheme::Mqtts => Either::Left(stream),
            Scheme::Ws | Scheme::Wss => {
                let upgraded = upgrade(self.target.websocket_url(), stream).await;
                Either::Right(upgraded.map_err(|error| {
                    self.observations.note_error(&error);
                    named("WebSocket", error)
                })?)
            }
        };
        Ok(BrokerStream {
            stream,
            observer: PacketObserver::new(self.protocol),
            observations: self.observations,
        })
    }
}

/// Opens a WebSocket within a stream, whose data are the bytes of MQTT.
async fn upgrade(
    url: String,
    stream: impl AsyncRead + AsyncWrite + Send + Sync + Unpin,
) -> io::Result<impl AsyncRead + AsyncWrite + Send + Sync + Unpin> {
    let failed = |error| match error {
        WsError::Io(error) => error,
        other => io::Error::other(other),
    };
    let mut request = url.into_client_request().map_err(failed)?;
    let headers = request.headers_mut();
    headers.insert(SEC_WEBSOCKET_PROTOCOL, SUBPROTOCOL);
    let (socket, answer) = client_async(request, stream).await.map_err(failed)?;
    if answer.headers().get(SEC_WEBSOCKET_PROTOCOL) != Some(&SUBPROTOCOL) {
        return Err(io::Error::other(
            "the answer does not name the subprotocol mqtt",
        ));
    }
    let (sender, receiver) = socket.split();
    // An empty message would look like the end of the stream.
    let data = receiver.try_filter(|message| {
        let is_data = message.is_binary() || message.is_text();
        std::future::ready(is_data && !message.is_empty())
    });
    Ok(tokio::io::join(
        ByteReader::new(data),
        ByteWriter::new(sender),
    ))
}

/// A stream whose received packets are observed.
#[derive(Debug)]
pub(super) struct BrokerStream<S> {
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
        match &read {
            Ok(()) if bytes.is_empty() => observations.observed().is_closed = true,
            Ok(()) => {}
            Err(error) => observations.note_error(error),
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

#[cfg(test)]
mod tests {
    use async_tungstenite::tokio::accept_hdr_async;
    use async_tungstenite::tungstenite::Message;
    use async_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;

    async fn dialer() -> (Dialer, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let target = Target::parse(&format!("ws://127.0.0.1:{port}/mqtt")).unwrap();
        let dialer = Dialer {
            target: Arc::new(target),
            protocol: MqttProtocol::V5,
            tls: None,
            socket: Handle::default(),
            observations: Observations::default(),
        };
        (dialer, listener)
    }

    #[tokio::test]
    async fn only_the_data_of_a_websocket_is_mqtt() {
        #[expect(clippy::result_large_err, reason = "the signature is tungstenite's")]
        fn select(_: &Request, mut answer: Response) -> Result<Response, ErrorResponse> {
            let headers = answer.headers_mut();
            headers.insert(SEC_WEBSOCKET_PROTOCOL, SUBPROTOCOL);
            Ok(answer)
        }
        let (dialer, listener) = dialer().await;
        let observations = dialer.observations.clone();
        let broker = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut socket = accept_hdr_async(stream, select).await.unwrap();
            for message in [
                Message::binary(&b"\x20\x03\x00"[..]),
                Message::Ping(b"ping"[..].into()),
                Message::Ping(b""[..].into()),
                Message::binary(&b""[..]),
                Message::binary(&b"\x00\x00\xe0\x01"[..]),
                Message::binary(&b"\x8e"[..]),
            ] {
                socket.send(message).await.unwrap();
            }
        });
        let mut stream = dialer.dial().await.unwrap();
        let mut read = [0; 8];
        stream.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"\x20\x03\x00\x00\x00\xe0\x01\x8e");
        assert!(matches!(observations.ended(), Some(Ended::Said(_))));
        broker.await.unwrap();
    }

    #[tokio::test]
    async fn a_broker_that_is_no_websocket_server_has_closed_the_connection() {
        let (dialer, listener) = dialer().await;
        let observations = dialer.observations.clone();
        let broker = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert!(stream.read(&mut [0; 1024]).await.unwrap() > 0);
        });
        assert!(dialer.dial().await.is_err());
        assert_eq!(observations.ended(), Some(Ended::BeforeConnAck));
        broker.await.unwrap();
    }
}
