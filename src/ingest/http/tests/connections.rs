//! Connections: how long an idle one is kept, how long a head may take, and peers that take nothing.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::rig::{Answer, LONG, Rig, post};

const SHORT: Duration = Duration::from_millis(100);

/// Sends `GET /ping` and reads the answer; false if the connection has ended.
async fn ping(stream: &mut TcpStream) -> bool {
    if stream.write_all(b"GET /ping HTTP/1.1\r\nhost: localhost\r\n\r\n").await.is_err() {
        return false;
    }
    Answer::read(stream).await.is_some_and(|answer| answer.status == 204)
}

/// Waits until the other side closes the connection; returns how long that took.
async fn ended(stream: &mut TcpStream) -> Duration {
    let since = Instant::now();
    let mut rest = Vec::new();
    // A reset is an end as well.
    let _ = timeout(LONG, stream.read_to_end(&mut rest)).await.expect("the connection stays open");
    assert!(rest.is_empty(), "{}", String::from_utf8_lossy(&rest));
    since.elapsed()
}

#[tokio::test]
async fn an_idle_connection_is_kept_longer_than_a_head_may_take() {
    let rig = Rig::new(|cfg| cfg.times.header_timeout = SHORT).await;
    let mut stream = TcpStream::connect(rig.addr).await.unwrap();
    for _ in 0..3 {
        assert!(ping(&mut stream).await, "closed although it was only idle");
        tokio::time::sleep(3 * SHORT).await;
    }
    // From the first byte on it is a head.
    stream.write_all(b"GET /ping").await.unwrap();
    assert!(ended(&mut stream).await < LONG / 2);
}

#[tokio::test]
async fn a_head_that_trickles_has_the_time_of_one_head() {
    let rig = Rig::new(|cfg| cfg.times.header_timeout = 3 * SHORT).await;
    let mut stream = TcpStream::connect(rig.addr).await.unwrap();
    assert!(ping(&mut stream).await);
    let trickle = async {
        for byte in b"GET /ping HTTP/1.1\r\nhost: ".iter().chain(std::iter::repeat_n(&b'x', 1000)) {
            if stream.write_all(&[*byte]).await.is_err() {
                break;
            }
            tokio::time::sleep(SHORT / 4).await;
        }
    };
    timeout(LONG, trickle).await.expect("the head goes on for ever");
}

#[tokio::test]
async fn an_idle_connection_ends_after_keep_alive() {
    let rig = Rig::new(|cfg| cfg.times.keep_alive = 2 * SHORT).await;
    let mut stream = TcpStream::connect(rig.addr).await.unwrap();
    for _ in 0..3 {
        assert!(ping(&mut stream).await);
        tokio::time::sleep(SHORT).await;
    }
    assert!(ping(&mut stream).await);
    let took = ended(&mut stream).await;
    assert!(took >= SHORT && took < LONG / 2, "{took:?}");
}

#[tokio::test]
async fn a_request_in_progress_is_not_idle() {
    let mut rig = Rig::new(|cfg| (cfg.times.keep_alive, cfg.times.header_timeout) = (SHORT, SHORT)).await;
    let addr = rig.addr;
    let request = post(r#"{"sensor_id":"S1","ts":"2024-03-01T10:00:00Z","temp":1}"#);
    let answer = tokio::spawn(async move { request.send(addr).await });
    let (_, ack) = rig.ingest_batch().await;
    tokio::time::sleep(4 * SHORT).await;
    ack.delivered();
    assert_eq!(answer.await.unwrap().status, 200);
}
