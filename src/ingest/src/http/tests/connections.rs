//! Connections: how long an idle one is kept, how long a head may take, how many there may be, and
//! what an address with wrong tokens meets.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::lifecycle::metric;
use super::readings::tokens_file;
use super::rig::{Answer, LONG, Request, Rig, post};
use telemetry::metrics;
use testkit::SetClock;

const SHORT: Duration = Duration::from_millis(100);

/// Sends `GET /ping` and reads the answer; false if the connection has ended.
async fn ping(stream: &mut TcpStream) -> bool {
    if stream
        .write_all(b"GET /ping HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .await
        .is_err()
    {
        return false;
    }
    Answer::read(stream)
        .await
        .is_some_and(|answer| answer.status == 204)
}

/// Waits until the other side closes the connection; returns how long that took.
async fn ended(stream: &mut TcpStream) -> Duration {
    let since = Instant::now();
    let mut rest = Vec::new();
    // A reset is an end as well.
    let _ = timeout(LONG, stream.read_to_end(&mut rest))
        .await
        .expect("the connection stays open");
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
        for byte in b"GET /ping HTTP/1.1\r\nhost: "
            .iter()
            .chain(std::iter::repeat_n(&b'x', 1000))
        {
            if stream.write_all(&[*byte]).await.is_err() {
                break;
            }
            tokio::time::sleep(SHORT / 4).await;
        }
    };
    timeout(LONG, trickle)
        .await
        .expect("the head goes on for ever");
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
    let mut rig =
        Rig::new(|cfg| (cfg.times.keep_alive, cfg.times.header_timeout) = (SHORT, SHORT)).await;
    let addr = rig.addr;
    let request = post(r#"{"sensor_id":"S1","ts":"2024-03-01T10:00:00Z","temp":1}"#);
    let answer = tokio::spawn(async move { request.send(addr).await });
    let (_, ack) = rig.ingest_batch().await;
    tokio::time::sleep(4 * SHORT).await;
    ack.delivered();
    assert_eq!(answer.await.unwrap().status, 200);
}

/// A connection that has sent `GET /ping`, and is idle now.
async fn idle(rig: &Rig) -> TcpStream {
    let mut stream = TcpStream::connect(rig.addr).await.unwrap();
    assert!(ping(&mut stream).await, "refused");
    stream
}

/// A connection with a request whose body is arriving.
async fn arriving(rig: &Rig) -> TcpStream {
    let mut stream = TcpStream::connect(rig.addr).await.unwrap();
    stream
        .write_all(format!("{}content-length: 100\r\n\r\n", post("").head()).as_bytes())
        .await
        .unwrap();
    tokio::time::sleep(SHORT / 2).await;
    stream
}

/// Whether a new connection is closed without an answer.
async fn is_refused(rig: &Rig) -> bool {
    let mut stream = TcpStream::connect(rig.addr).await.unwrap();
    !ping(&mut stream).await
}

fn refused(reason: &str) -> f64 {
    let labels = ["port=\"http\"", &format!("reason=\"{reason}\"")];
    metric("hourbucket_http_connections_refused_total", &labels)
}

#[tokio::test]
async fn idle_connections_keep_no_others_out() {
    metrics::install().unwrap();
    let rig = Rig::new(|cfg| cfg.connections.max = 4).await;
    let evicted = || {
        metric(
            "hourbucket_http_connections_closed_total",
            &["port=\"http\"", "reason=\"evicted\""],
        )
    };
    let before = evicted();
    let mut open = Vec::new();
    for _ in 0..40 {
        open.push(idle(&rig).await);
    }
    let last = open.split_off(36);
    for mut stream in open {
        ended(&mut stream).await;
    }
    for mut stream in last {
        assert!(ping(&mut stream).await, "the longest idle ones go first");
    }
    assert!(evicted() - before >= 36.0);
}

#[tokio::test]
async fn silent_connections_and_half_heads_keep_no_others_out() {
    let rig = Rig::new(|cfg| cfg.connections.max = 4).await;
    let mut open = Vec::new();
    for begun in ["", "GET /ping", "", "GET"].into_iter().cycle().take(12) {
        let mut stream = TcpStream::connect(rig.addr).await.unwrap();
        stream.write_all(begun.as_bytes()).await.unwrap();
        open.push(stream);
        idle(&rig).await;
    }
}

#[tokio::test]
async fn requests_in_progress_are_not_cut_and_one_more_is_refused() {
    metrics::install().unwrap();
    let mut rig = Rig::new(|cfg| cfg.connections.max = 2).await;
    let mut open = vec![arriving(&rig).await, arriving(&rig).await];
    let before = refused("limit");
    for _ in 0..5 {
        assert!(is_refused(&rig).await);
    }
    assert!(refused("limit") - before >= 5.0);
    for stream in &mut open {
        stream
            .write_all(
                format!(
                    "{:100}",
                    r#"{"sensor_id":"S1","ts":"2024-03-01T10:00:00Z","temp":1}"#
                )
                .as_bytes(),
            )
            .await
            .unwrap();
        rig.ingest_batch().await.1.delivered();
        assert_eq!(Answer::read(stream).await.unwrap().status, 200);
    }
    // Both are idle now.
    idle(&rig).await;
    ended(&mut open[0]).await;
    assert!(ping(&mut open[1]).await);
}

#[tokio::test]
async fn a_refused_request_whose_body_does_not_arrive_keeps_no_others_out() {
    let dir = tempfile::tempdir().unwrap();
    let rig =
        Rig::new(|cfg| (cfg.connections.max, cfg.tokens_file) = (2, Some(tokens_file(&dir)))).await;
    let mut open = Vec::new();
    for _ in 0..6 {
        open.push(arriving(&rig).await);
        idle(&rig).await;
    }
}

#[tokio::test]
async fn one_address_takes_its_share_and_no_more() {
    metrics::install().unwrap();
    let rig = Rig::new(|cfg| cfg.connections.max = 12).await;
    rig.limits.exempt_none();
    let mut open = vec![arriving(&rig).await, arriving(&rig).await, idle(&rig).await];
    // A quarter of them. It makes room among its own.
    let mut new = idle(&rig).await;
    ended(&mut open[2]).await;
    assert!(ping(&mut new).await);
    open.push(arriving(&rig).await);
    ended(&mut new).await;
    let before = refused("address_limit");
    assert!(is_refused(&rig).await && refused("address_limit") - before >= 1.0);
}

fn with_token(token: &str) -> Request {
    post("[]").header("authorization", format!("Bearer {token}"))
}

#[tokio::test]
async fn an_address_with_wrong_tokens_is_paused_and_valid_ones_pass() {
    metrics::install().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let pause = 10 * SHORT;
    let rig = Rig::new(|cfg| {
        cfg.tokens_file = Some(tokens_file(&dir));
        (
            cfg.connections.failed_auth_max,
            cfg.connections.failed_auth_pause,
        ) = (3, pause);
    });
    let rig = rig.await;
    let failures = || {
        metric(
            "hourbucket_auth_failures_total",
            &["port=\"http\"", "reason=\"invalid_token\""],
        )
    };
    // This machine's addresses are never paused: a proxy may run here.
    for _ in 0..10 {
        assert_eq!(with_token("gw1.wrong").send(rig.addr).await.status, 401);
    }
    rig.limits.exempt_none();
    let before = failures();
    for _ in 0..3 {
        assert_eq!(with_token("gw1.wrong").send(rig.addr).await.status, 401);
    }
    for wrong in ["gw1.wrong", "malformed"] {
        let answer = with_token(wrong).send(rig.addr).await;
        assert_eq!((answer.status, answer.reason().as_str()), (429, "paused"));
        assert!(answer.retry_after_s() >= 1 && answer.header("connection") == Some("close"));
    }
    assert!(failures() - before >= 4.0);
    // 400: the body is empty, but the token is valid.
    assert_eq!(with_token("gw1.secret").send(rig.addr).await.status, 400);
    assert_eq!(
        post("[]").send(rig.addr).await.status,
        401,
        "some clients send each request without a token first"
    );
    tokio::time::sleep(pause).await;
    assert_eq!(with_token("gw1.wrong").send(rig.addr).await.status, 401);
}

#[tokio::test]
async fn a_paused_address_has_few_connections_that_have_shown_no_token() {
    metrics::install().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let clock = Arc::new(SetClock::new(1));
    let settings = |cfg: &mut config::Http| {
        (cfg.tokens_file, cfg.connections.failed_auth_max) = (Some(tokens_file(&dir)), 1);
    };
    let rig = Rig::with_clock(settings, clock.clone()).await;
    rig.limits.exempt_none();
    for status in [401, 429] {
        assert_eq!(with_token("gw1.wrong").send(rig.addr).await.status, status);
    }
    // The answers above may arrive before their connections have ended.
    tokio::time::sleep(SHORT).await;
    let mut unproven = Vec::new();
    for _ in 0..8 {
        unproven.push(idle(&rig).await);
    }
    let before = refused("paused");
    assert!(is_refused(&rig).await && refused("paused") - before >= 1.0);
    // One of them shows its token; then there is room for another.
    let request = with_token("gw1.secret");
    unproven[0]
        .write_all(format!("{}content-length: 2\r\n\r\n[]", request.head()).as_bytes())
        .await
        .unwrap();
    assert_eq!(Answer::read(&mut unproven[0]).await.unwrap().status, 400);
    unproven.push(idle(&rig).await);
    assert!(is_refused(&rig).await);
    // One that had time to show a token, and has not, makes room.
    clock.advance(1000);
    unproven.push(idle(&rig).await);
    assert!(ping(&mut unproven[0]).await, "it has shown a token");
}
