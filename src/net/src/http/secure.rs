//! TLS on an HTTP port, before the first byte of a request.
//!
//! A connection has `header_timeout` for its handshake, and counts toward the port's connection
//! limit from its start. At most [`HANDSHAKES_MAX`] handshakes run their expensive part
//! concurrently; the others wait within the same time limit. A client that speaks plain HTTP gets
//! an error answer in plain HTTP.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use super::connection::timed;
use super::port::Port;
use super::timed_stream::TimedStream;
use crate::tls::{Certificates, ClientCertificate, TlsStream};
use telemetry::metrics::{self, Handshake};

/// Concurrent handshakes. A core does some thousands a second, so a storm of reconnects is over in
/// seconds, and these use a few megabytes.
const HANDSHAKES_MAX: usize = 512;

/// How much of a plain request is read and discarded, and for how long. Otherwise the kernel
/// discards the answer.
const PLAIN_BYTES_MAX: usize = 64 << 10;
const PLAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// The answer to a plain HTTP request.
const PLAIN_BODY: &str = r#"{"error":{"reason":"tls_required","detail":"this port requires TLS; use https:// instead of http://"}}"#;

/// Accepts connections and performs the TLS handshake.
pub(super) struct Secured {
    port: Arc<Port>,
    certificates: Certificates,
    handshakes: Semaphore,
}

impl Secured {
    pub(super) fn new(port: Arc<Port>, certificates: Certificates) -> Secured {
        Secured {
            port,
            certificates,
            handshakes: Semaphore::new(HANDSHAKES_MAX),
        }
    }

    /// Accepts a connection, within the limits of the port.
    ///
    /// # Errors
    /// It is refused, or its handshake failed, which is counted.
    pub(super) async fn accept(
        &self,
        mut stream: TcpStream,
        peer: SocketAddr,
    ) -> io::Result<TimedStream<TlsStream>> {
        let connection = self.port.enter(&mut stream, peer).await?;
        let limit = self.port.times.now().header_timeout;
        let shaken = tokio::select! {
            shaken = tokio::time::timeout(limit, self.shake_hands(stream)) => shaken,
            () = connection.place.cut() => Ok(Err(Failed(Handshake::Evicted))),
        };
        let port = self.certificates.port();
        match shaken.unwrap_or(Err(Failed(Handshake::Timeout))) {
            Ok((stream, client)) => {
                if let Some(client) = client {
                    let _ = connection.client.set(client);
                }
                metrics::tls_handshakes_total(port, Handshake::Ok, 1);
                Ok(timed(connection, stream))
            }
            Err(Failed(label)) => {
                metrics::tls_handshakes_total(port, label, 1);
                // This error is not shown: the connection is closed.
                Err(io::Error::other(label.as_str()))
            }
        }
    }

    async fn shake_hands(
        &self,
        mut stream: TcpStream,
    ) -> Result<(TlsStream, Option<ClientCertificate>), Failed> {
        let mut first = [0];
        if stream.peek(&mut first).await.is_ok_and(|n| n == 1) && first[0].is_ascii_alphabetic() {
            // HTTP methods start with an alphabetic byte; a TLS handshake record starts with 22.
            let _ = tokio::time::timeout(PLAIN_TIMEOUT, refuse_plain(&mut stream)).await;
            return Err(Failed(Handshake::PlainHttp));
        }
        self.certificates
            .accept(stream, self.handshakes.acquire())
            .await
            .map_err(|error| {
                tracing::debug!(%error, "TLS handshake failed");
                Failed(Handshake::Failed)
            })
    }
}

/// The metrics label of a failed handshake.
struct Failed(Handshake);

/// Sends the error in plain HTTP.
async fn refuse_plain(stream: &mut TcpStream) -> io::Result<()> {
    let head = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n\
        content-length: ";
    stream
        .write_all(format!("{head}{}\r\n\r\n{PLAIN_BODY}", PLAIN_BODY.len()).as_bytes())
        .await?;
    stream.shutdown().await?;
    let mut left = vec![0; PLAIN_BYTES_MAX];
    // Until the sender closes its side, or has sent too much.
    let mut read = 0;
    while read < PLAIN_BYTES_MAX {
        match stream.read(&mut left).await? {
            0 => break,
            n => read += n,
        }
    }
    Ok(())
}
