//! HTTPS on the HTTP ports: certificates that are replaced under load, broken ones, client
//! certificates, and connections that do not use TLS.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::https::{Https, Trust};
use config::{ClientAuth, Config, Tls, TlsVersion};
use hourbucket::app::Service;
use hourbucket::shutdown::ExitReason;
use model::SystemClock;
use testkit::memory_store::MemoryStore;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::SemaphorePermit;
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(60);

const CA: &str = include_str!("../support/mqtt_tls/ca.pem");
const FIRST: [&str; 2] = [
    include_str!("../support/mqtt_tls/server.pem"),
    include_str!("../support/mqtt_tls/server.key"),
];
const OTHER_CA: &str = include_str!("../support/mqtt_tls/mutual/ca.pem");
const SECOND: [&str; 2] = [
    include_str!("../support/mqtt_tls/mutual/server.pem"),
    include_str!("../support/mqtt_tls/mutual/server.key"),
];
const CLIENT: (&str, &str) = (
    include_str!("../support/mqtt_tls/mutual/client.pem"),
    include_str!("../support/mqtt_tls/mutual/client.key"),
);
const EXPIRED: [&str; 2] = [
    include_str!("../support/mqtt_tls/expired/server.pem"),
    include_str!("../support/mqtt_tls/expired/server.key"),
];

fn trust(ca: &'static str) -> Trust {
    Trust {
        ca,
        ..Trust::default()
    }
}

/// Copies certificate and key one after another, not atomically.
fn put(dir: &Path, [cert, key]: [&str; 2]) -> Tls {
    std::fs::write(dir.join("server.pem"), cert).unwrap();
    std::fs::write(dir.join("server.key"), key).unwrap();
    Tls {
        cert_file: Some(dir.join("server.pem")),
        key_file: Some(dir.join("server.key")),
        client_ca_file: None,
        client_crl_file: None,
        client_auth: ClientAuth::Required,
        min_version: TlsVersion::V12,
    }
}

/// A service on the memory store.
struct Rig {
    http: SocketAddr,
    admin: SocketAddr,
    store: Arc<MemoryStore>,
    stop: CancellationToken,
    running: tokio::task::JoinHandle<ExitReason>,
    _permit: SemaphorePermit<'static>,
}

impl Rig {
    async fn start(dir: &Path, change: impl FnOnce(&mut Config)) -> Rig {
        Rig::start_with(crate::http_tls_service().await, dir, change).await
    }

    /// For a test that reads the metrics of `http.tls`.
    async fn start_alone(dir: &Path, change: impl FnOnce(&mut Config)) -> Rig {
        Rig::start_with(crate::only_http_tls_service().await, dir, change).await
    }

    async fn start_with(
        permit: SemaphorePermit<'static>,
        dir: &Path,
        change: impl FnOnce(&mut Config),
    ) -> Rig {
        crate::install_metrics();
        let mut config = Config::default();
        config.http.listen = "127.0.0.1:0".parse().unwrap();
        config.admin.listen = "127.0.0.1:0".parse().unwrap();
        config.journal.dir = dir.join("journal");
        config.flush.max_age = Duration::from_millis(20);
        change(&mut config);
        let store = Arc::new(MemoryStore::default());
        let service = Service::start(config, store.clone(), Arc::new(SystemClock::new()))
            .await
            .unwrap();
        let http = service.http_addr.unwrap();
        let admin = service.admin_addr;
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let running = tokio::spawn(service.run_until(async move {
            stopped.cancelled().await;
            "the test"
        }));
        Rig {
            http,
            admin,
            store,
            stop,
            running,
            _permit: permit,
        }
    }

    async fn end(self) -> Arc<MemoryStore> {
        self.stop.cancel();
        let ended = tokio::time::timeout(PATIENCE, self.running)
            .await
            .expect("it ends")
            .unwrap();
        assert_eq!(ended, ExitReason::Clean);
        self.store
    }

    async fn get(&self, path: &str) -> String {
        raw(
            self.admin,
            format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                .as_bytes(),
        )
        .await
    }

    /// Waits until `/readyz` reports the wanted state for the port `http`.
    async fn wait_tls(&self, what: &str, good: impl Fn(&serde_json::Value) -> bool) {
        let begun = Instant::now();
        loop {
            let text = self.get("/readyz").await;
            let report: serde_json::Value =
                serde_json::from_str(text.split("\r\n\r\n").nth(1).unwrap()).unwrap();
            if good(&report) {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "{what}: {report}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Everything received until the connection ends.
async fn raw(addr: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut answer = vec![];
    // A reset connection has ended too.
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer))
        .await
        .expect("the connection stays open");
    String::from_utf8_lossy(&answer).into_owned()
}

fn reading(sender: u64, n: u64) -> String {
    format!(
        "{{\"sensor_id\":\"s{sender}\",\"ts\":{},\"n\":{n}}}",
        now_ms() + n
    )
}

fn now_ms() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_millis() as u64
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_replaced_under_load_and_no_connection_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let tls = put(dir.path(), FIRST);
    let rig = Rig::start_alone(dir.path(), |config| config.http.tls = tls).await;
    let stop = Arc::new(AtomicBool::new(false));
    let accepted = Arc::new(AtomicU64::new(0));
    let mut senders = vec![];
    for sender in 0..8 {
        let mut kept = Https::connect(rig.http, &trust(CA)).await.unwrap();
        assert_eq!(kept.protocol(), Some(&b"http/1.1"[..]));
        let stop = stop.clone();
        let accepted = accepted.clone();
        senders.push(tokio::spawn(async move {
            let mut n = 0;
            while !stop.load(Ordering::Relaxed) {
                let status = kept
                    .post("/v1/readings", None, &reading(sender, n))
                    .await
                    .expect("the connection stays open");
                assert_eq!(status, 200);
                n += 1;
                accepted.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }));
    }
    put(dir.path(), SECOND);
    let begun = Instant::now();
    while Https::connect(rig.http, &trust(OTHER_CA)).await.is_err() {
        assert!(
            begun.elapsed() < PATIENCE,
            "the new certificate is never used"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(
        Https::connect(rig.http, &trust(CA)).await.is_err(),
        "the old certificate is still used"
    );

    // A key that does not match the certificate, as while both are being replaced: the second
    // certificate stays in use, and the problem is reported.
    std::fs::write(dir.path().join("server.key"), FIRST[1]).unwrap();
    rig.wait_tls("the problem is reported", |report| {
        let problem = report["tls"][0]["problem"].as_str().unwrap_or_default();
        problem.contains("server.key") && problem.contains("stay in use") && report["ready"] == true
    })
    .await;
    assert!(
        rig.get("/metrics")
            .await
            .contains("hourbucket_tls_files_ok{port=\"http\"} 0")
    );
    Https::connect(rig.http, &trust(OTHER_CA))
        .await
        .expect("the previous certificate is used");
    put(dir.path(), FIRST);
    rig.wait_tls("the problem is gone", |report| {
        report["tls"][0]["problem"].is_null()
    })
    .await;
    Https::connect(rig.http, &trust(CA))
        .await
        .expect("the first again");
    let page = rig.get("/metrics").await;
    assert!(
        page.contains("hourbucket_tls_files_ok{port=\"http\"} 1"),
        "{page}"
    );
    assert!(
        page.contains("hourbucket_tls_not_after_seconds{port=\"http\"} 4948849250"),
        "{page}"
    );

    stop.store(true, Ordering::Relaxed);
    for sender in senders {
        sender.await.unwrap();
    }
    let accepted = accepted.load(Ordering::Relaxed);
    assert!(accepted > 100, "{accepted} readings are too few");
    let store = rig.end().await;
    assert_eq!(store.pages().readings().count() as u64, accepted);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_need_a_valid_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let mut tls = put(dir.path(), SECOND);
    std::fs::write(dir.path().join("ca.pem"), OTHER_CA).unwrap();
    tls.client_ca_file = Some(dir.path().join("ca.pem"));
    let right = Trust {
        identity: Some(CLIENT),
        ..trust(OTHER_CA)
    };
    let wrong = Trust {
        identity: Some((FIRST[0], FIRST[1])),
        ..trust(OTHER_CA)
    };
    let post = async |addr, trust: &Trust| {
        let mut connection = Https::connect(addr, trust).await?;
        connection.post("/v1/readings", None, &reading(1, 1)).await
    };
    for auth in [ClientAuth::Required, ClientAuth::Optional] {
        tls.client_auth = auth;
        let rig = Rig::start(dir.path(), |config| config.http.tls = tls.clone()).await;
        for only_12 in [false, true] {
            let of = |trust: &Trust| Trust {
                only_12,
                ..trust.clone()
            };
            assert_eq!(post(rig.http, &of(&right)).await.unwrap(), 200, "{auth:?}");
            assert!(
                post(rig.http, &of(&wrong)).await.is_err(),
                "{auth:?}: of another CA"
            );
            let without = post(rig.http, &of(&trust(OTHER_CA))).await;
            assert_eq!(
                without.ok(),
                (auth == ClientAuth::Optional).then_some(200),
                "{auth:?}: without one"
            );
            // A web page could use another name, but it has no certificate.
            let mut named = Https::connect(rig.http, &of(&right)).await.unwrap();
            let status = named
                .post_as("gateway.example", "/v1/readings", None, &reading(1, 1))
                .await
                .unwrap();
            assert_eq!(
                status,
                if auth == ClientAuth::Required {
                    200
                } else {
                    403
                },
                "{auth:?}: by another name"
            );
        }
        rig.end().await;
    }
    // A port that requires client certificates may listen on other addresses.
    for (auth, starts) in [(ClientAuth::Required, true), (ClientAuth::Optional, false)] {
        tls.client_auth = auth;
        let _permit = crate::http_tls_service().await;
        let mut config = Config::default();
        (config.http.listen, config.admin.listen) =
            ("0.0.0.0:0".parse().unwrap(), "127.0.0.1:0".parse().unwrap());
        (config.journal.dir, config.http.tls) = (dir.path().join("open"), tls.clone());
        let clock = Arc::new(SystemClock::new());
        let service = Service::start(config, Arc::new(MemoryStore::default()), clock).await;
        assert_eq!(service.is_ok(), starts, "{auth:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_handshake_is_answered_or_closed_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let mut tls = put(dir.path(), FIRST);
    tls.min_version = TlsVersion::V13;
    let of_admin = tls.clone();
    let rig = Rig::start(dir.path(), |config| {
        (config.http.tls, config.admin.tls) = (tls, of_admin);
        config.http.times.header_timeout = Duration::from_millis(400);
        config.http.times.keep_alive = Duration::from_millis(400);
    })
    .await;
    let long = format!(
        "POST /v1/readings HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50000\r\n\r\n{}",
        "x".repeat(50_000)
    );
    for (addr, request) in [
        (rig.http, long.as_str()),
        (rig.admin, "GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n"),
    ] {
        let answer = raw(addr, request.as_bytes()).await;
        assert!(
            answer.starts_with("HTTP/1.1 400 ") && answer.contains("use https://"),
            "{answer}"
        );
    }
    // Nothing, the beginning of a record, and an invalid record: closed within the time for a
    // header.
    for bytes in [&b""[..], b"\x16", b"\x16\x03\x01\x02\x00", b"\x00\x01\x02"] {
        let begun = Instant::now();
        let answer = raw(rig.http, bytes).await;
        assert!(!answer.contains("HTTP"), "{answer}");
        assert!(
            begun.elapsed() < Duration::from_secs(10),
            "{bytes:?} holds a connection"
        );
    }
    assert!(
        Https::connect(
            rig.http,
            &Trust {
                only_12: true,
                ..trust(CA)
            }
        )
        .await
        .is_err(),
        "TLS 1.2"
    );
    let mut kept = Https::connect(rig.http, &trust(CA)).await.unwrap();
    assert_eq!(
        kept.post("/v1/readings", None, &reading(1, 1))
            .await
            .unwrap(),
        200
    );
    // A persistent connection that sends nothing more is closed as on the plain port.
    tokio::time::sleep(Duration::from_millis(900)).await;
    assert!(
        kept.post("/v1/readings", None, &reading(1, 2))
            .await
            .is_err()
    );
    // curl, which offers HTTP/2 as well; and the admin port with TLS.
    let ca = dir.path().join("ca.pem");
    std::fs::write(&ca, CA).unwrap();
    let url = format!("https://{}/readyz", rig.admin);
    let done = tokio::task::spawn_blocking(move || {
        Command::new("curl")
            .args(["-sS", "--noproxy", "*", "--cacert"])
            .arg(ca)
            .arg(url)
            .output()
            .expect("curl")
    });
    let done = done.await.unwrap();
    let report: serde_json::Value = serde_json::from_slice(&done.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&done.stderr)));
    assert_eq!(report["tls"].as_array().unwrap().len(), 2, "{report}");
    let begun = Instant::now();
    rig.end().await;
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "unfinished handshakes delay the shutdown"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn handshakes_that_never_end_do_not_keep_others_out() {
    let dir = tempfile::tempdir().unwrap();
    let tls = put(dir.path(), FIRST);
    let rig = Rig::start(dir.path(), |config| {
        (config.http.tls, config.http.connections.max) = (tls, 2)
    })
    .await;
    let mut silent = vec![];
    for n in 1..=4 {
        for _ in 0..2 {
            silent.push(TcpStream::connect(rig.http).await.unwrap());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        let mut good = Https::connect(rig.http, &trust(CA))
            .await
            .expect("shut out by handshakes that never end");
        assert_eq!(
            good.post("/v1/readings", None, &reading(1, n))
                .await
                .unwrap(),
            200
        );
    }
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revocation_list_that_is_out_of_date_is_reported_and_still_counts() {
    let dir = tempfile::tempdir().unwrap();
    let mut tls = put(dir.path(), FIRST);
    let file = |name: &str, text: &str| {
        std::fs::write(dir.path().join(name), text).unwrap();
        Some(dir.path().join(name))
    };
    let ca = include_str!("../support/mqtt_tls/client_ca.pem");
    tls.client_ca_file = file("ca.pem", ca);
    let list = include_str!("../support/mqtt_tls/crl_of_2024.pem");
    tls.client_crl_file = file("crl.pem", list);
    let rig = Rig::start_alone(dir.path(), |config| config.http.tls = tls).await;
    rig.wait_tls("it is reported", |report| {
        report["tls"][0]["problem"]
            .as_str()
            .is_some_and(|problem| problem.contains("out of date since 2024-01-31"))
            && report["ready"] == true
            && report["reasons"].to_string().contains("tls http: ")
            && report["summary"]
                .as_str()
                .is_some_and(|summary| summary.contains("a revocation list"))
    })
    .await;
    let page = rig.get("/metrics").await;
    assert!(
        page.contains("hourbucket_tls_crl_next_update_seconds{port=\"http\"} 1706659200"),
        "{page}"
    );
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_certificate_is_used_and_reported() {
    let dir = tempfile::tempdir().unwrap();
    let tls = put(dir.path(), EXPIRED);
    let rig = Rig::start(dir.path(), |config| config.http.tls = tls).await;
    let refused = Https::connect(
        rig.http,
        &trust(include_str!("../support/mqtt_tls/expired/ca.pem")),
    )
    .await;
    assert!(refused.err().unwrap().to_string().contains("expired"));
    rig.wait_tls("it is reported", |report| {
        report["tls"][0]["problem"]
            .as_str()
            .is_some_and(|problem| problem.contains("expired on 2020-02-01"))
            && report["tls"][0]["not_after"] == "2020-02-01T00:00:00.000Z"
            && report["reasons"].to_string().contains("tls http: ")
    })
    .await;
    rig.end().await;
}

#[test]
fn check_reports_problems_of_certificates() {
    let dir = tempfile::tempdir().unwrap();
    let chained = format!("{}{}", FIRST[0], OTHER_CA);
    let whole = format!("{}{CA}", FIRST[0]);
    let turned = format!("{CA}{}", FIRST[0]);
    for ([cert, key], expected) in [
        (
            [&whole, FIRST[1]],
            "ok       http tls       TLS until 2126-10-28",
        ),
        (EXPIRED, "expired on 2020-02-01"),
        ([FIRST[0], SECOND[1]], "cannot be used together"),
        ([&turned, FIRST[1]], "must be the first in its file"),
        (
            [&chained, FIRST[1]],
            "certificate 1 was not issued by certificate 2",
        ),
        (["nonsense", FIRST[1]], "contains no usable certificate"),
    ] {
        put(dir.path(), [cert, key]);
        let text = "[http.tls]\ncert_file = \"server.pem\"\nkey_file = \"server.key\"\n[store]\n\
            uri = \"mongodb://127.0.0.1:9\"\n\
                    connect_timeout = \"10ms\"\n";
        std::fs::write(dir.path().join("c.toml"), text).unwrap();
        let done = Command::new(env!("CARGO_BIN_EXE_hourbucket"))
            .args(["check", "--config", "c.toml"])
            .current_dir(dir.path())
            .output()
            .unwrap();
        let out = String::from_utf8_lossy(&done.stdout);
        let line = out
            .lines()
            .find(|line| line.contains("http tls"))
            .unwrap_or_else(|| panic!("{out}"));
        assert!(line.contains(expected), "{expected}: {out}");
        assert_eq!(line.starts_with("ok"), expected.starts_with("ok"), "{out}");
    }
}
