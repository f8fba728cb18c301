//! Prometheus' API on a served admin port.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

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

/// The answer to a `GET`; empty if the port refuses the connection.
async fn get(addr: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    let _ = stream.write_all(request.as_bytes()).await;
    rest(stream).await
}

#[tokio::test]
async fn unfinished_bodies_keep_no_probe_out() {
    let addr = port(4).await;
    let mut unfinished = vec![];
    for path in ["query", "read"].into_iter().cycle().take(12) {
        unfinished.push(begun(addr, path, 100, "query=").await);
        // The handler waits for the body from now on.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let answer = get(addr, "/livez").await;
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

#[tokio::test]
async fn a_path_that_is_no_text_is_refused_in_prometheus_form() {
    let answer = get(port(4).await, "/prometheus/api/v1/label/%ff/values").await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer:?}");
    assert!(answer.contains(r#""errorType":"bad_data""#), "{answer:?}");
}

#[tokio::test]
async fn a_query_without_time_times_out() {
    let answer = get(port(4).await, "/prometheus/api/v1/query?query=1&timeout=0").await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer:?}");
    assert!(answer.contains(r#""errorType":"timeout""#), "{answer:?}");
}

#[tokio::test]
async fn remote_read_says_which_method_it_accepts() {
    let answer = get(port(4).await, "/prometheus/api/v1/read").await;
    assert!(answer.starts_with("HTTP/1.1 405"), "{answer:?}");
    assert!(answer.to_lowercase().contains("allow: post"), "{answer:?}");
    assert!(answer.contains("accepts only POST"), "{answer:?}");
}
