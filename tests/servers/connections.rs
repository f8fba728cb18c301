//! Attacks on the connections of the HTTP ports, and the service for good clients meanwhile,
//! measured from outside. The quick tests have lowered limits. The full-size one has the defaults;
//! with `HOURBUCKET_TEST_BINARY` it attacks another version of the service.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test, with figures"
)]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::fleet::now_ms;
use crate::support::mongod::{Mongod, unique_database};
use crate::support::service::Service;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// A good client that gets no answer within this time has got none.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Of the good clients, 99 of 100 must get their answer within this time. Two cores may be busy.
const P99_MAX: Duration = Duration::from_secs(2);
/// The time between two good requests.
const PROBE_EVERY: Duration = Duration::from_millis(50);

fn service(test: &str, settings: &str) -> Service {
    let uri = Mongod::shared().uri();
    let database = unique_database(test);
    Service::start(
        settings,
        &[("STORE__URI", &uri), ("STORE__DATABASE", &database)],
    )
}

fn addr(url: &str) -> SocketAddr {
    url.strip_prefix("http://").unwrap().parse().unwrap()
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(work)
}

fn get(path: &str, more: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{more}\r\n")
}

fn reading() -> String {
    format!(
        r#"{{"sensor_id":"good","ts":{},"values":{{"n":1}}}}"#,
        now_ms()
    )
}

fn post(body: &str, more: &str) -> String {
    let n = body.len();
    format!(
        "POST /v1/readings HTTP/1.1\r\nhost: 127.0.0.1\r\n{more}content-length: {n}\r\n\r\n{body}"
    )
}

/// Sends a request on a new connection; the status, or why there is none.
async fn ask(addr: SocketAddr, request: &str) -> Result<String, &'static str> {
    let asked = async {
        let mut stream = TcpStream::connect(addr)
            .await
            .map_err(|_| "no connection")?;
        stream
            .write_all(request.as_bytes())
            .await
            .map_err(|_| "closed")?;
        status(&mut stream).await.ok_or("closed")
    };
    timeout(ANSWER_WITHIN, asked)
        .await
        .unwrap_or(Err("no answer"))
}

/// Reads the status line; `None` if the connection has ended.
async fn status(stream: &mut TcpStream) -> Option<String> {
    let mut line = vec![0; 12];
    stream.read_exact(&mut line).await.ok()?;
    Some(String::from_utf8_lossy(&line[9..]).into_owned())
}

/// Reads a whole answer with Content-Length or without a body; `None` if the connection has ended.
async fn answer(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    let length = head
        .split("content-length: ")
        .nth(1)
        .and_then(|rest| rest.lines().next()?.parse().ok())
        .unwrap_or(0);
    stream.read_exact(&mut vec![0; length]).await.ok()?;
    Some(head[9..12].to_owned())
}

/// What good clients got.
#[derive(Default)]
struct Probed {
    answers: BTreeMap<String, usize>,
    latencies: Vec<Duration>,
}

impl Probed {
    fn share(&self, status: &str) -> f64 {
        let all: usize = self.answers.values().sum();
        *self.answers.get(status).unwrap_or(&0) as f64 / all.max(1) as f64
    }

    fn p99(&mut self) -> Duration {
        self.latencies.sort_unstable();
        self.latencies[self.latencies.len() * 99 / 100]
    }

    /// Prints the figures; all must have got this status, and in time.
    fn must_all_be(mut self, what: &str, status: &str) {
        let p99 = self.p99();
        println!("{what}: good clients got {:?}, p99 {p99:?}", self.answers);
        assert!(
            self.share(status) == 1.0 && p99 < P99_MAX,
            "{what}: {:?}, p99 {p99:?}",
            self.answers
        );
    }
}

/// Sends a good request at regular intervals, each on a new connection, for some time.
async fn probe(addr: SocketAddr, time: Duration, request: impl Fn() -> String) -> Probed {
    let mut probes = JoinSet::new();
    let probed = Arc::new(Mutex::new(Probed::default()));
    let begun = Instant::now();
    while begun.elapsed() < time {
        let request = request();
        let probed = probed.clone();
        probes.spawn(async move {
            let since = Instant::now();
            let got = ask(addr, &request).await.unwrap_or_else(str::to_owned);
            let mut probed = probed.lock().unwrap();
            *probed.answers.entry(got).or_default() += 1;
            probed.latencies.push(since.elapsed());
        });
        sleep(PROBE_EVERY).await;
    }
    probes.join_all().await;
    Arc::into_inner(probed).unwrap().into_inner().unwrap()
}

/// Attackers, until they are dropped.
#[derive(Default)]
struct Attack {
    attackers: JoinSet<()>,
    /// Connections that did what they were opened for.
    begun: Arc<AtomicUsize>,
}

impl Attack {
    /// Waits until so many connections have begun.
    async fn begun(&self, n: usize) {
        let since = Instant::now();
        while self.begun.load(Ordering::Relaxed) < n {
            assert!(
                since.elapsed() < Duration::from_secs(60),
                "{:?} of {n} begun",
                self.begun
            );
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// `n` connections that are kept open with a request now and then; one that is closed is opened
    /// again.
    fn idle(addr: SocketAddr, n: usize, path: &'static str) -> Attack {
        let mut attack = Attack::default();
        for _ in 0..n {
            let begun = attack.begun.clone();
            attack.attackers.spawn(async move {
                loop {
                    if let Ok(mut stream) = TcpStream::connect(addr).await {
                        let mut is_first = true;
                        while stream.write_all(get(path, "").as_bytes()).await.is_ok()
                            && answer(&mut stream).await.is_some()
                        {
                            begun.fetch_add(
                                usize::from(std::mem::take(&mut is_first)),
                                Ordering::Relaxed,
                            );
                            sleep(Duration::from_secs(4)).await;
                        }
                    }
                    sleep(Duration::from_millis(500)).await;
                }
            });
        }
        attack
    }

    /// `n` bodies at 2 bytes per second; one that is refused is sent again.
    fn slow_bodies(addr: SocketAddr, n: usize) -> Attack {
        let mut attack = Attack::default();
        for _ in 0..n {
            let begun = attack.begun.clone();
            attack.attackers.spawn(async move {
                loop {
                    if let Ok(mut stream) = TcpStream::connect(addr).await {
                        let head = post("", "").replace("length: 0", "length: 100000");
                        let _ = stream.write_all(head.as_bytes()).await;
                        begun.fetch_add(1, Ordering::Relaxed);
                        while stream.write_all(b"  ").await.is_ok() {
                            sleep(Duration::from_secs(1)).await;
                        }
                    }
                    sleep(Duration::from_millis(100)).await;
                }
            });
        }
        attack
    }

    /// `n` responses that are never read.
    fn unread(addr: SocketAddr, n: usize, path: &'static str) -> Attack {
        let mut attack = Attack::default();
        for _ in 0..n {
            let begun = attack.begun.clone();
            attack.attackers.spawn(async move {
                loop {
                    let socket = TcpSocket::new_v4().unwrap();
                    socket.set_recv_buffer_size(4096).unwrap();
                    let mut stream = socket.connect(addr).await.unwrap();
                    stream.write_all(get(path, "").as_bytes()).await.unwrap();
                    if status(&mut stream).await.as_deref() == Some("200") {
                        begun.fetch_add(1, Ordering::Relaxed);
                        std::future::pending::<()>().await;
                    }
                    sleep(Duration::from_millis(50)).await;
                }
            });
        }
        attack
    }
}

/// Stores a sensor whose readings make a response of a few MiB, more than the kernel buffers.
fn seed(service: &Service) {
    let begin = now_ms() - 3_000_000;
    for part in 0..3 {
        let line = |i| {
            let ts = begin + part * 10_000 + i;
            format!(
                "{{\"sensor_id\":\"big\",\"ts\":{ts},\"values\":{{\"t\":\"{:050}\",\"n\":{i}}}}}\n",
                i
            )
        };
        let body: String = (0..10_000).map(line).collect();
        let (status, text) = service
            .post("/v1/readings", "application/x-ndjson", body.as_bytes())
            .unwrap();
        assert_eq!(status, 200, "{text}");
    }
}

const BIG: &str = "/v1/sensors/big/readings?limit=30000";
const SMALL: &str = "/v1/sensors/big/readings?limit=10";

/// No one takes `n` responses; returns after how long a good reader gets one again.
async fn unread_responses(service: &Service, n: usize) -> Duration {
    let admin = addr(&service.admin());
    let attack = Attack::unread(admin, n, BIG);
    attack.begun(n).await;
    let since = Instant::now();
    loop {
        match ask(admin, &get(SMALL, "connection: close\r\n"))
            .await
            .as_deref()
        {
            Ok("200") => return since.elapsed(),
            Ok("503") => assert!(
                since.elapsed() < Duration::from_secs(40),
                "still 503, and for ever"
            ),
            other => panic!("{other:?}"),
        }
        sleep(Duration::from_millis(50)).await;
    }
}

#[test]
fn idle_connections_leave_room_for_good_clients_and_probes() {
    let service = service(
        "idle",
        "http.connections_max = 64\nadmin.connections_max = 32",
    );
    let http = addr(&service.http());
    let admin = addr(&service.admin());
    block_on(async {
        let attacks = [
            Attack::idle(http, 128, "/ping"),
            Attack::idle(admin, 64, "/livez"),
        ];
        attacks[0].begun(128).await;
        attacks[1].begun(64).await;
        let time = Duration::from_secs(5);
        let (good, probes) = tokio::join!(
            probe(http, time, || post(&reading(), "")),
            probe(admin, time, || get("/readyz", ""))
        );
        good.must_all_be("128 idle connections at a limit of 64", "200");
        probes.must_all_be("64 idle connections at the admin port's limit of 32", "200");
        let open = tokio::task::block_in_place(|| service.metrics()).labelled(
            "http_connections",
            "port",
            "http",
        );
        assert!((32.0..=64.0).contains(&open), "{open}");
    });
    let metrics = service.metrics();
    let evicted = |port: &str| {
        let closed = metrics
            .text()
            .lines()
            .filter(|line| line.starts_with("hourbucket_http_connections_closed_total"));
        let line = closed
            .filter(|l| l.contains(port))
            .find(|line| line.contains("\"evicted\""))
            .unwrap();
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    assert!(
        evicted("\"http\"") >= 64.0 && evicted("\"admin\"") >= 32.0,
        "{}",
        metrics.text()
    );
}

#[test]
fn slow_bodies_leave_room_for_good_clients() {
    // On a busy machine a dozen good requests are under way at the same time.
    let service = service(
        "slow",
        "http.concurrency_max = 32\nhttp.body_grace = \"2s\"",
    );
    let http = addr(&service.http());
    block_on(async {
        let attack = Attack::slow_bodies(http, 128);
        attack.begun(128).await;
        let good = probe(http, Duration::from_secs(5), || post(&reading(), "")).await;
        good.must_all_be(
            "128 bodies at 2 bytes per second, 32 concurrent requests",
            "200",
        );
    });
    let cut = service
        .metrics()
        .labelled("http_requests_total", "status", "408");
    assert!(cut >= 128.0, "{cut} slow bodies were cut");
}

#[test]
fn unread_responses_are_dropped() {
    let service = service(
        "unread",
        "admin.answers_max = 4\nadmin.write_timeout = \"2s\"",
    );
    seed(&service);
    let took = block_on(unread_responses(&service, 4));
    println!("4 of 4 responses unread: a good reader waits {took:?}");
    let metrics = service.metrics();
    let closed = metrics.labelled("http_connections_closed_total", "reason", "write_timeout");
    assert!(closed >= 1.0, "{closed}");
    assert!(
        service
            .log()
            .contains("its peer takes nothing of the response"),
        "{}",
        service.log()
    );
}

#[test]
fn wrong_tokens_are_counted_and_logged_with_their_address() {
    let tokens = tempfile::NamedTempFile::new().unwrap();
    let hash = net::access::hash_secret("secret");
    std::fs::write(
        tokens.path(),
        format!("[[tokens]]\nid = \"gw1\"\nsha256 = \"{hash}\"\n"),
    )
    .unwrap();
    let service = service("wrong", &format!("http.tokens_file = {:?}", tokens.path()));
    let http = addr(&service.http());
    let admin = addr(&service.admin());
    block_on(async {
        let wrong = "authorization: Bearer gw1.guess\r\n";
        let close = "connection: close\r\n";
        for _ in 0..200 {
            assert_eq!(
                ask(http, &post("[]", &format!("{wrong}{close}")))
                    .await
                    .as_deref(),
                Ok("401")
            );
            assert_eq!(ask(http, &post("[]", close)).await.as_deref(), Ok("401"));
        }
        assert_eq!(
            ask(admin, &get("/v1/fleet", wrong)).await.as_deref(),
            Ok("401")
        );
        let right = "authorization: Bearer gw1.secret\r\n";
        assert_eq!(
            ask(http, &post(&reading(), right)).await.as_deref(),
            Ok("200")
        );
    });
    let metrics = service.metrics();
    for (label, is, n) in [
        ("reason", "invalid_token", 201.0),
        ("reason", "no_token", 200.0),
        ("port", "admin", 1.0),
    ] {
        assert_eq!(
            metrics.labelled("auth_failures_total", label, is),
            n,
            "{is}"
        );
    }
    let log = service.log();
    let lines = log
        .lines()
        .filter(|line| line.contains("authentication failed"))
        .collect::<Vec<_>>();
    assert!(
        (2..=24).contains(&lines.len()),
        "a few lines a minute: {lines:?}"
    );
    assert!(
        lines.iter().all(|line| line.contains("127.0.0.1:")),
        "{lines:?}"
    );
    assert!(!log.contains("guess"), "{log}");
}

/// As in the report of the attacks: everything at the defaults. Takes two minutes, and two
/// processor cores.
#[test]
#[ignore = "full size"]
fn attacks_of_full_size_leave_room_for_good_clients() {
    let full = |test| service(test, "");
    let time = Duration::from_secs(20);
    let mut failed = Vec::new();
    let mut run = |what: &'static str, work: &dyn Fn()| {
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err() {
            failed.push(what);
        }
    };
    run("idle connections", &|| {
        let service = full("full_idle");
        let http = addr(&service.http());
        block_on(async {
            let attack = Attack::idle(http, 8192, "/ping");
            attack.begun(8000).await;
            let good = probe(http, time, || post(&reading(), "")).await;
            good.must_all_be("8192 connections kept alive with /ping", "200");
        });
    });
    run("idle connections of the admin port", &|| {
        let service = full("full_admin");
        let http = addr(&service.http());
        let admin = addr(&service.admin());
        block_on(async {
            let attacks = [
                Attack::idle(admin, 8192, "/livez"),
                Attack::slow_bodies(http, 256),
            ];
            attacks[0].begun(8000).await;
            let probes = probe(admin, time, || get("/readyz", "")).await;
            probes.must_all_be(
                "8192 idle connections of the admin port, 256 slow bodies",
                "200",
            );
        });
    });
    run("slow bodies", &|| {
        let service = full("full_slow");
        let http = addr(&service.http());
        block_on(async {
            let attack = Attack::slow_bodies(http, 256);
            attack.begun(256).await;
            let good = probe(http, time, || post(&reading(), "")).await;
            good.must_all_be("256 bodies at 2 bytes per second", "200");
        });
    });
    run("unread responses", &|| {
        let service = full("full_unread");
        seed(&service);
        let took = block_on(unread_responses(&service, 64));
        println!("64 responses unread: a good reader waits {took:?}");
    });
    run("keep-alive", &|| {
        let service = full("full_keep_alive");
        block_on(async {
            let mut stream = TcpStream::connect(addr(&service.http())).await.unwrap();
            for _ in 0..3 {
                stream
                    .write_all(post(&reading(), "").as_bytes())
                    .await
                    .unwrap();
                assert_eq!(
                    answer(&mut stream).await.as_deref(),
                    Some("200"),
                    "closed after Telegraf's interval"
                );
                sleep(Duration::from_millis(10_200)).await;
            }
        });
    });
    assert!(failed.is_empty(), "{failed:?}");
}
