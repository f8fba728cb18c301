//! Behind proxies: whose limits count, and refused headers.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::lifecycle::metric;
use super::readings::tokens_file;
use super::rig::{Answer, LONG, Request, Rig, post};
use config::{Network, Proxies, ProxyHeader};
use telemetry::metrics;

const SHORT: Duration = Duration::from_millis(100);

fn trusting(network: &str, header: ProxyHeader) -> Proxies {
    Proxies {
        trusted: [Network::parse(network).unwrap()].into(),
        header,
    }
}

/// A port behind such a proxy, with the token `gw1.secret`, that pauses an address after three
/// failures.
async fn rig(network: &str, header: ProxyHeader, change: impl FnOnce(&mut config::Http)) -> Rig {
    metrics::install().unwrap();
    let dir = tempfile::tempdir().unwrap();
    Rig::new(|cfg| {
        cfg.tokens_file = Some(tokens_file(&dir));
        (cfg.proxies, cfg.connections.failed_auth_max) = (trusting(network, header), 3);
        change(cfg);
    })
    .await
}

/// A PROXY header for TCP over IPv4.
fn header(version_and_command: u8, ip: [u8; 4]) -> Vec<u8> {
    let fixed = [
        &b"\r\n\r\n\0\r\nQUIT\n"[..],
        &[version_and_command, 0x11, 0, 12],
    ]
    .concat();
    [&fixed[..], &ip, &[10, 0, 0, 1, 0x12, 0x34, 0x1f, 0x90]].concat()
}

fn with_token(token: &str) -> Request {
    post("[]").header("authorization", format!("Bearer {token}"))
}

async fn open(rig: &Rig, first: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(rig.addr).await.unwrap();
    stream.write_all(first).await.unwrap();
    stream
}

/// The answer to a request on a connection for this address.
async fn ask(rig: &Rig, ip: [u8; 4], token: &str) -> Option<u16> {
    let mut stream = open(rig, &header(0x21, ip)).await;
    let request = format!("{}content-length: 2\r\n\r\n[]", with_token(token).head());
    stream.write_all(request.as_bytes()).await.ok()?;
    Answer::read(&mut stream).await.map(|answer| answer.status)
}

/// Whether the port closes the connection without an answer.
async fn is_closed(mut stream: TcpStream) -> bool {
    let mut rest = Vec::new();
    let _ = timeout(LONG, stream.read_to_end(&mut rest))
        .await
        .expect("the connection stays open");
    rest.is_empty()
}

fn refused() -> f64 {
    metric(
        "hourbucket_http_connections_refused_total",
        &["port=\"http\"", "reason=\"proxy_header\""],
    )
}

#[tokio::test]
async fn the_address_in_the_proxy_header_counts_for_limits_and_pauses() {
    let rig = rig("127.0.0.1", ProxyHeader::ProxyV2, |cfg| {
        cfg.connections.per_address_max = 2
    })
    .await;
    let bad = [192, 0, 2, 1];
    let good = [192, 0, 2, 2];
    for status in [401, 401, 401, 429] {
        assert_eq!(ask(&rig, bad, "gw1.wrong").await, Some(status));
    }
    assert_eq!(
        ask(&rig, good, "gw1.wrong").await,
        Some(401),
        "another address is not paused"
    );
    // 400: the token is valid, and the body empty.
    assert_eq!(ask(&rig, good, "gw1.secret").await, Some(400));
    // Two connections with requests that do not end; a third one is too many for this address, not
    // for another.
    let half = format!(
        "{}content-length: 100\r\n\r\n[",
        with_token("gw1.secret").head()
    );
    let mut held = Vec::new();
    for _ in 0..2 {
        held.push(open(&rig, &[&header(0x21, good), half.as_bytes()].concat()).await);
    }
    tokio::time::sleep(SHORT).await;
    assert!(is_closed(open(&rig, &header(0x21, good)).await).await);
    assert_eq!(ask(&rig, [192, 0, 2, 3], "gw1.secret").await, Some(400));
    // The proxy looks whether the service answers.
    let mut local = open(&rig, &header(0x20, [0; 4])).await;
    local
        .write_all(b"GET /ping HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .await
        .unwrap();
    assert_eq!(Answer::read(&mut local).await.unwrap().status, 204);
}

#[tokio::test]
async fn without_a_whole_header_a_proxy_is_refused_in_bounded_time_and_bytes() {
    let rig = rig("127.0.0.0/8", ProxyHeader::ProxyV2, |cfg| {
        cfg.times.header_timeout = 10 * SHORT
    })
    .await;
    let before = refused();
    let good = header(0x21, [192, 0, 2, 1]);
    let mut long = good.clone();
    (long[14], long[15]) = (0xff, 0xff);
    let bad: [&[u8]; 6] = [
        b"GET /ping HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"PROXY TCP4 192.0.2.1 10.0.0.1 4660 8080\r\nGET /ping HTTP/1.1\r\nhost: localhost\r\n\r\n",
        &long,
        &header(0x31, [192, 0, 2, 1]),
        &good[..1],
        &good[..20],
    ];
    for first in bad {
        assert!(is_closed(open(&rig, first).await).await, "{first:?}");
    }
    // Cut by the other side, in the middle.
    for n in [5, 16, 27] {
        let mut stream = open(&rig, &good[..n]).await;
        stream.shutdown().await.unwrap();
        assert!(is_closed(stream).await, "{n}");
    }
    // A byte now and then.
    let mut stream = open(&rig, &[]).await;
    let begun = tokio::time::Instant::now();
    for byte in good.iter().cycle() {
        if stream.write_all(&[*byte]).await.is_err() {
            break;
        }
        tokio::time::sleep(SHORT).await;
    }
    assert!(begun.elapsed() < LONG / 2, "{:?}", begun.elapsed());
    assert!(refused() - before >= 10.0, "{}", refused() - before);
}

#[tokio::test]
async fn a_header_of_another_is_not_believed() {
    let rig = rig("192.0.2.1", ProxyHeader::ProxyV2, |_| {}).await;
    let before = refused();
    for first in [
        header(0x21, [192, 0, 2, 9]),
        b"PROXY TCP4 192.0.2.9 10.0.0.1 1 2\r\n".to_vec(),
    ] {
        assert!(is_closed(open(&rig, &first).await).await);
    }
    assert!(refused() - before >= 2.0);
    assert_eq!(
        with_token("gw1.secret").send(rig.addr).await.status,
        400,
        "without one it is a client like any other"
    );

    let rig = self::rig("192.0.2.1", ProxyHeader::XForwardedFor, |_| {}).await;
    rig.limits.exempt_none();
    for (status, ip) in [
        (401, "198.51.100.1"),
        (401, "198.51.100.2"),
        (401, "198.51.100.3"),
        (429, "198.51.100.4"),
    ] {
        let answer = with_token("gw1.wrong")
            .header("x-forwarded-for", ip)
            .send(rig.addr)
            .await;
        assert_eq!(
            answer.status, status,
            "its own address is paused, whatever it claims"
        );
    }
}

#[tokio::test]
async fn the_address_in_a_header_of_a_request_counts_for_pauses() {
    let rig = rig("127.0.0.1", ProxyHeader::XForwardedFor, |_| {}).await;
    rig.limits.exempt_none();
    let client = ["198.51.100.9, 192.0.2.1", "1.1.1.1, 192.0.2.1, 127.0.0.1"];
    let ask = async |token: &str, name: &'static str, value: &str| {
        with_token(token)
            .header(name, value)
            .send(rig.addr)
            .await
            .status
    };
    let name = "x-forwarded-for";
    for (n, status) in [401, 401, 401, 429, 429].into_iter().enumerate() {
        assert_eq!(ask("gw1.wrong", name, client[n % 2]).await, status, "{n}");
    }
    assert_eq!(
        ask("gw1.secret", name, client[0]).await,
        400,
        "a valid token is served"
    );
    assert_eq!(
        ask("gw1.wrong", name, "192.0.2.1, 192.0.2.2").await,
        401,
        "another address is not paused"
    );
    // Headers of other names are ones that the client may have sent itself. Without the right one
    // the proxy itself asks.
    for (name, value) in [("forwarded", "for=192.0.2.1"), ("x-real-ip", "192.0.2.1")] {
        for _ in 0..5 {
            assert_eq!(ask("gw1.wrong", name, value).await, 401, "{name}");
        }
    }
}

#[tokio::test]
async fn without_tokens_the_clients_of_a_proxy_must_be_on_this_machine() {
    const BODY: &str = r#"{"sensor_id":"S1","temp":1}"#;
    let anonymous = |cfg: &mut config::Http| cfg.tokens_file = None;
    let mut rig = rig("127.0.0.1", ProxyHeader::XForwardedFor, anonymous).await;
    let through = |client: &str| post(BODY).header("x-forwarded-for", client);
    for client in ["203.0.113.5", "127.0.0.1, 203.0.113.5", "2001:db8::1"] {
        let answer = through(client).send(rig.addr).await;
        assert_eq!(
            (answer.status, answer.reason()),
            (403, "foreign_origin".into())
        );
        assert!(
            answer.text.contains("http.allow_anonymous"),
            "{}",
            answer.text
        );
    }
    rig.nothing_came();
    for client in ["127.0.0.2", "::1"] {
        assert_eq!(
            rig.delivered(through(client)).await.0.status,
            200,
            "{client}"
        );
    }
    assert_eq!(
        rig.delivered(post(BODY)).await.0.status,
        200,
        "the proxy itself"
    );

    let rig = self::rig("127.0.0.1", ProxyHeader::ProxyV2, anonymous).await;
    let ping = async |ip| {
        let mut stream = open(&rig, &header(0x21, ip)).await;
        let head = post("").method("GET").to("/ping").head() + "\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        Answer::read(&mut stream).await.unwrap().status
    };
    assert_eq!(
        (ping([192, 0, 2, 1]).await, ping([127, 0, 0, 1]).await),
        (403, 204)
    );

    let mut open_to_all = self::rig("127.0.0.1", ProxyHeader::XForwardedFor, |cfg| {
        (cfg.tokens_file, cfg.allow_anonymous) = (None, true)
    })
    .await;
    assert_eq!(
        open_to_all.delivered(through("203.0.113.5")).await.0.status,
        200
    );
}

#[tokio::test]
async fn what_a_client_puts_before_its_address_does_not_hide_it() {
    let values = [&b"\xff, 192.0.2.1"[..], &b"\", 192.0.2.1"[..]];
    let rig = rig("127.0.0.1", ProxyHeader::XForwardedFor, |_| {}).await;
    rig.limits.exempt_none();
    let head = format!(
        "{}content-length: 2\r\nx-forwarded-for: ",
        with_token("gw1.wrong").head()
    );
    for (n, status) in [401, 401, 401, 429].into_iter().enumerate() {
        let request = [head.as_bytes(), values[n % 2], b"\r\n\r\n[]"].concat();
        let mut stream = open(&rig, &request).await;
        let answer = Answer::read(&mut stream).await.unwrap();
        assert_eq!(answer.status, status, "{n}");
    }
}
