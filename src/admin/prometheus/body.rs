//! Receives the body of a request, a form or a remote read, within limits of size and time.
//!
//! The admin port has few connections, and probes and scrapes must find room among them. So while a
//! body arrives, its connection may be closed for a new one, as if it were idle.

use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use futures_util::StreamExt;

use super::answer::PrometheusError;
use crate::ingest::http::Peer;

/// Time limit of a body. The same as the default of `http.body_timeout`.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The body of a request; at most `bytes_max` bytes.
pub(super) async fn receive(
    request: Request,
    bytes_max: usize,
) -> Result<Vec<u8>, PrometheusError> {
    let peer = Peer::of(request.extensions()).cloned();
    if let Some(peer) = &peer {
        peer.arriving();
    }
    let received = tokio::time::timeout(TIMEOUT, collect(request.into_body(), bytes_max));
    let late = PrometheusError::BodyTimeout {
        seconds: TIMEOUT.as_secs(),
    };
    // After an error the connection may still be closed for a new one.
    let body = received.await.unwrap_or(Err(late))?;
    if let Some(peer) = &peer {
        peer.arrived();
    }
    Ok(body)
}

async fn collect(body: Body, bytes_max: usize) -> Result<Vec<u8>, PrometheusError> {
    let too_large = || PrometheusError::TooLarge { bytes_max };
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(too_large());
    }
    let mut stream = body.into_data_stream();
    let mut bytes = Vec::new();
    while let Some(chunk) = stream.next().await {
        let broken = |error| PrometheusError::bad_data(format!("the body is incomplete: {error}"));
        let chunk = chunk.map_err(broken)?;
        if bytes.len() + chunk.len() > bytes_max {
            return Err(too_large());
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::Arc;

    use axum::body::Bytes;
    use futures_util::stream;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::time::{Instant, timeout};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::admin::{Admin, Health, TokenSource};
    use crate::config::{AckMode, Config};
    use crate::model::{Span, SystemClock};
    use crate::read::ReadService;
    use crate::store::memory::MemoryStore;

    /// A served port with room for this many connections.
    async fn port(connections_max: usize) -> SocketAddr {
        let Config {
            mut admin, promql, ..
        } = Config::default();
        admin.listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        admin.connections.max = connections_max;
        let clock = Arc::new(SystemClock::new());
        let store = Arc::new(MemoryStore::new());
        let reads = ReadService::new(vec![], None, store, clock.clone(), Span::HOUR, (4, 4));
        let health = Arc::new(Health::new(AckMode::Journal));
        let admin = Admin::bind(&admin, health, clock).await.unwrap();
        let admin = admin.with_reads(Arc::new(reads), promql, TokenSource::default());
        let addr = admin.local_addr();
        tokio::spawn(admin.serve(CancellationToken::new()));
        addr
    }

    /// A connection that sends this, with a body of which more may follow.
    async fn begun(addr: SocketAddr, path: &str, length: usize, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        let head = format!(
            "POST /prometheus/api/v1/{path} HTTP/1.1\r\nhost: localhost\r\nconnection: \
             close\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream
    }

    /// What arrives until the connection ends.
    async fn rest(mut stream: TcpStream) -> String {
        let mut all = Vec::new();
        // A reset is an end as well.
        let _ = timeout(Duration::from_secs(20), stream.read_to_end(&mut all))
            .await
            .expect("the connection stays open");
        String::from_utf8(all).unwrap()
    }

    #[tokio::test]
    async fn unfinished_bodies_keep_no_probe_out() {
        let addr = port(4).await;
        let mut unfinished = vec![];
        for path in ["query", "read"].into_iter().cycle().take(12) {
            unfinished.push(begun(addr, path, 100, "query=").await);
            // The handler waits for the body from now on.
            tokio::time::sleep(Duration::from_millis(20)).await;
            let mut probe = TcpStream::connect(addr).await.unwrap();
            let request = b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
            let _ = probe.write_all(request).await;
            let answer = rest(probe).await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer:?}");
        }
    }

    #[tokio::test]
    async fn a_body_that_arrives_in_parts_is_read() {
        let addr = port(4).await;
        let mut stream = begun(addr, "format_query", 9, "query=1").await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        stream.write_all(b"23").await.unwrap();
        let answer = rest(stream).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_end_is_refused_after_its_time() {
        let first = stream::iter([Ok::<_, Infallible>(Bytes::from_static(b"query="))]);
        let body = Body::from_stream(first.chain(stream::pending()));
        let since = Instant::now();
        let refused = receive(Request::new(body), 10).await.unwrap_err();
        assert_eq!((refused.status().as_u16(), since.elapsed()), (408, TIMEOUT));
        let long = Body::from_stream(stream::iter([Ok::<_, Infallible>(vec![0; 11])]));
        let refused = receive(Request::new(long), 10).await.unwrap_err();
        assert_eq!(refused, PrometheusError::TooLarge { bytes_max: 10 });
        let whole = receive(Request::new(Body::from("0123456789")), 10).await;
        assert_eq!(whole, Ok(b"0123456789".to_vec()));
    }
}
