//! TLS on a port for HTTP, before the first byte of a request.
//!
//! A connection has `header_timeout` for its handshake, and counts among the port's connections from its first moment on.
//! The part of a handshake that costs something is done for at most [`HANDSHAKES_MAX`] at a time; the others wait for
//! their turn within the same time. Who speaks plain HTTP is told so.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum_server::accept::Accept;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use super::server::{Counted, Limited};
use crate::ingest::tls::{Certificates, TlsStream};
use crate::telemetry::metrics;

/// Handshakes at a time. A core does some thousands a second, so a storm of reconnects is through in seconds, and these
/// hold a few megabytes.
const HANDSHAKES_MAX: usize = 512;

/// How much of a plain request is read and thrown away, and for how long: else the kernel throws the answer away.
const PLAIN_BYTES_MAX: usize = 64 << 10;
const PLAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// What a plain request gets.
const PLAIN_BODY: &str =
    r#"{"error":{"reason":"tls_required","detail":"this port speaks HTTPS: write https:// in place of http://"}}"#;

/// Accepts connections and shakes hands.
#[derive(Clone)]
pub(super) struct Secured {
    limited: Limited,
    certificates: Certificates,
    handshakes: Arc<Semaphore>,
    timeout: Duration,
}

impl Secured {
    pub(super) fn new(limited: Limited, certificates: Certificates, timeout: Duration) -> Secured {
        Secured { limited, certificates, handshakes: Arc::new(Semaphore::new(HANDSHAKES_MAX)), timeout }
    }

    async fn shake_hands(&self, mut stream: TcpStream) -> Result<TlsStream, Failed> {
        let mut first = [0];
        if stream.peek(&mut first).await.is_ok_and(|n| n == 1) && first[0].is_ascii_alphabetic() {
            // The methods of HTTP are dead letters; a record of TLS begins with 22.
            let _ = tokio::time::timeout(PLAIN_TIMEOUT, refuse_plain(&mut stream)).await;
            return Err(Failed("plain_http"));
        }
        self.certificates.accept(stream, self.handshakes.acquire()).await.map_err(|error| {
            tracing::debug!("no TLS: {error}");
            Failed("failed")
        })
    }
}

/// The label of a handshake that did not come about.
struct Failed(&'static str);

impl<S: Send + 'static> Accept<TcpStream, S> for Secured {
    type Stream = TlsStream;
    type Service = Counted<S>;
    type Future = Pin<Box<dyn Future<Output = io::Result<(TlsStream, Counted<S>)>> + Send>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            let (stream, service) = this.limited.accept(stream, service).await?;
            let shaken = tokio::time::timeout(this.timeout, this.shake_hands(stream)).await;
            let port = this.certificates.port();
            match shaken.unwrap_or(Err(Failed("timeout"))) {
                Ok(stream) => {
                    metrics::tls_handshake(port, "ok");
                    Ok((stream, service))
                }
                Err(Failed(label)) => {
                    metrics::tls_handshake(port, label);
                    // Seen by nobody: the connection is closed.
                    Err(io::Error::other(label))
                }
            }
        })
    }
}

/// Says what is wrong in plain HTTP.
async fn refuse_plain(stream: &mut TcpStream) -> io::Result<()> {
    let head = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: ";
    stream.write_all(format!("{head}{}\r\n\r\n{PLAIN_BODY}", PLAIN_BODY.len()).as_bytes()).await?;
    stream.shutdown().await?;
    let mut left = vec![0; PLAIN_BYTES_MAX];
    // Until the sender has closed its side too, or has sent too much.
    let mut read = 0;
    while read < PLAIN_BYTES_MAX {
        match stream.read(&mut left).await? {
            0 => break,
            n => read += n,
        }
    }
    Ok(())
}
