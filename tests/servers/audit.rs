//! The audit log of the service: the actions of strangers, senders and readers are in its file,
//! with their address and without secrets; the file can be rotated; a tool that bans addresses
//! finds those to ban in it, and no others.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

use serde_json::Value as Json;

use crate::support::http_client::agent;
use crate::support::mongod::{Mongod, unique_database};
use crate::support::raw_mqtt::{Raw, connect};
use crate::support::service::Service;
use crate::support::{free_port, wait_until};
use net::access::hash_secret;

const PATIENCE: Duration = Duration::from_secs(60);
/// A client id that pretends to be the rest of a line.
const FORGED: &str = "x\",\"address\":\"198.51.100.99\"}\n\
    {\"ts\":\"2026-01-01T00:00:00.000Z\",\"event\":\"auth_failed\",\"address\":\"198.51.100.98\"";

/// One for all calls: a connection belongs to the runtime that opened it.
static RUNTIME: LazyLock<tokio::runtime::Runtime> =
    LazyLock::new(|| tokio::runtime::Runtime::new().unwrap());

fn block_on<T>(future: impl Future<Output = T>) -> T {
    RUNTIME.block_on(future)
}

struct Rig {
    service: Service,
    mqtt_port: u16,
    dir: tempfile::TempDir,
}

impl Rig {
    fn start(test: &str) -> Rig {
        Rig::with(test, "", "")
    }

    /// With more keys, at the top and in `[listen.mqtt]`.
    fn with(test: &str, first: &str, of_listener: &str) -> Rig {
        let uri = Mongod::shared().uri();
        let database = unique_database(test);
        let mqtt_port = free_port();
        let dir = tempfile::tempdir().unwrap();
        write_tokens(
            dir.path(),
            &[
                ("gw1", ""),
                ("d1", ""),
                ("old", "expires = 2024-01-01"),
                ("slow", "rate = 1"),
            ],
        );
        let tokens = dir.path().join("tokens.toml");
        let file = dir.path().join("audit.log");
        let text = format!(
            "{first}\nflush.max_age = \"200ms\"\nhttp.tokens_file = {tokens:?}\n[audit]\n\
             file = {file:?}\n[listen.mqtt]\nenabled = true\n\
             listen = \"127.0.0.1:{mqtt_port}\"\ntokens_file = {tokens:?}\n{of_listener}\n\
             [[listen.mqtt.topics]]\nfilter = \"fleet/+\"\n\
             topic = \"fleet/{{sensor_id}}\"\nformat = \"json\"\n"
        );
        let service = Service::start(
            &text,
            &[("STORE__URI", &uri), ("STORE__DATABASE", &database)],
        );
        Rig {
            service,
            mqtt_port,
            dir,
        }
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("audit.log")
    }

    fn post(&self, token: &str) -> u16 {
        let readings =
            r#"[{"sensor_id":"S1","n":1},{"sensor_id":"S1","n":2},{"sensor_id":"S1","n":3}]"#;
        let request = agent().post(format!("{}/v1/readings", self.service.http()));
        let request = request
            .header("content-type", "application/json")
            .header("authorization", token);
        request.send(readings).unwrap().status().as_u16()
    }

    fn read(&self, path: &str, token: &str) -> u16 {
        let request = agent()
            .get(format!("{}{path}", self.service.admin()))
            .header("authorization", token);
        request.call().unwrap().status().as_u16()
    }

    fn reload(&self) {
        let reloads = || {
            self.service
                .metrics()
                .labelled("config_reloads_total", "result", "applied")
        };
        let before = reloads();
        self.service.sighup();
        wait_until("the settings are read again", PATIENCE, || {
            (reloads() > before).then_some(())
        });
    }

    /// Waits until the file has so many lines; returns them.
    fn lines(&self, path: &Path, n: usize) -> Vec<Json> {
        let lines = || {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            text.lines()
                .map(|line| serde_json::from_str(line).unwrap())
                .collect::<Vec<Json>>()
        };
        wait_until("the events are in the file", PATIENCE, || {
            Some(lines()).filter(|lines| lines.len() >= n)
        })
    }
}

fn write_tokens(dir: &Path, tokens: &[(&str, &str)]) {
    let hash = hash_secret("geheim");
    let entry = |(id, rules): &(&str, &str)| {
        format!("[[tokens]]\nid = \"{id}\"\nsha256 = \"{hash}\"\n{rules}\n")
    };
    std::fs::write(
        dir.join("tokens.toml"),
        tokens.iter().map(entry).collect::<String>(),
    )
    .unwrap();
}

/// The addresses that a tool finds in a file which matches on what docs/security.md names, one for
/// each line that matches.
fn to_ban(log: &Path) -> Vec<String> {
    let address = |line: &str| {
        let (_, event) = line.split_once(",\"event\":\"")?;
        let (event, rest) = event.split_once("\",\"address\":\"")?;
        let (address, rest) = rest.split_once('"')?;
        let guessed = ["invalid_token", "malformed_token", "wrong_credentials"]
            .iter()
            .any(|reason| rest.contains(&format!("\"reason\":\"{reason}\"")));
        (event == "address_paused" || event == "auth_failed" && guessed).then(|| address.to_owned())
    };
    let text = std::fs::read_to_string(log).unwrap();
    text.lines().filter_map(address).collect()
}

/// Everything that the audit log is about, once. A device stays connected.
fn act(rig: &Rig) -> Raw {
    assert_eq!(rig.post("Bearer gw1.falsch"), 401);
    assert_eq!(rig.post("geheim"), 401);
    assert_eq!(rig.post("Bearer old.geheim"), 401);
    assert_eq!(rig.post("Bearer slow.geheim"), 200);
    assert_eq!(rig.post("Bearer slow.geheim"), 429);
    rig.service.wait_settled(3, PATIENCE);
    assert_eq!(
        rig.read("/v1/sensors/S1/readings", "Bearer gw1.geheim"),
        200
    );
    assert_eq!(rig.read("/v1/fleet", "Bearer gw1.falsch"), 401);
    block_on(async {
        for (id, secret) in [
            ("pump-7", "falsch"),
            (FORGED, "falsch"),
            ("falsch-7", "falsch"),
        ] {
            let mut stranger = Raw::open(rig.mqtt_port).await;
            stranger
                .send(&connect(5, id, 60, Some(("d1", secret))))
                .await;
            assert_eq!(stranger.answer().await.unwrap().0, 0x20);
        }
        let mut device = Raw::open(rig.mqtt_port).await;
        device
            .send(&connect(5, "pump-8", 60, Some(("d1", "geheim"))))
            .await;
        assert_eq!(device.answer().await.unwrap().1[1], 0, "accepted");
        device
    })
}

/// The events of [`act`] before the connected device loses its access: fields of each.
const EVENTS: [&[(&str, &str)]; 9] = [
    &[
        ("event", "auth_failed"),
        ("port", "http"),
        ("reason", "invalid_token"),
    ],
    &[
        ("event", "auth_failed"),
        ("port", "http"),
        ("reason", "malformed_token"),
    ],
    &[
        ("event", "auth_failed"),
        ("port", "http"),
        ("reason", "expired_token"),
        ("token", "old"),
    ],
    &[
        ("event", "quota_exceeded"),
        ("port", "http"),
        ("reason", "readings"),
        ("token", "slow"),
    ],
    &[
        ("event", "query"),
        ("port", "admin"),
        ("token", "gw1"),
        ("detail", "/v1/sensors/S1/readings"),
    ],
    &[
        ("event", "auth_failed"),
        ("port", "admin"),
        ("reason", "invalid_token"),
    ],
    &[
        ("event", "auth_failed"),
        ("port", "listen.mqtt"),
        ("reason", "wrong_credentials"),
        ("client", "pump-7"),
    ],
    &[
        ("event", "auth_failed"),
        ("port", "listen.mqtt"),
        ("reason", "wrong_credentials"),
        ("client", FORGED),
    ],
    &[
        ("event", "auth_failed"),
        ("port", "listen.mqtt"),
        ("client", "(holds a secret)"),
    ],
];

/// Whether an event has all of these fields.
fn has(line: &Json, fields: &[(&str, &str)]) -> bool {
    fields.iter().all(|(key, value)| line[*key] == *value)
}

#[test]
fn every_event_is_in_the_file_once_and_the_addresses_to_ban_are_found() {
    let rig = Rig::start("audit");
    let device = act(&rig);
    // d1 is revoked, and the file rotated.
    let before = rig.lines(&rig.file(), 9);
    write_tokens(rig.dir.path(), &[("gw1", "")]);
    let rotated = rig.dir.path().join("audit.log.1");
    std::fs::rename(rig.file(), &rotated).unwrap();
    rig.reload();
    block_on(async {
        let mut device = device;
        assert_eq!(device.answer().await.unwrap().0, 0xe0, "DISCONNECT");
    });
    let after = rig.lines(&rig.file(), 1);
    for fields in EVENTS {
        assert_eq!(
            before
                .iter()
                .filter(|line| has(line, fields))
                .count()
                .min(1),
            1,
            "{fields:?}: {before:#?}"
        );
    }
    assert_eq!(before.len(), EVENTS.len(), "{before:#?}");
    assert!(
        before
            .iter()
            .chain(&after)
            .all(|line| line["address"] == "127.0.0.1"),
        "{before:#?}"
    );
    let ended = [
        ("event", "access_ended"),
        ("reason", "revoked"),
        ("token", "d1"),
        ("client", "pump-8"),
    ];
    assert!(after.len() == 1 && has(&after[0], &ended), "{after:#?}");
    for path in [rig.file(), rotated.clone()] {
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(
            !text.contains("geheim") && !text.contains("falsch"),
            "a secret: {text}"
        );
    }
    // Wrong and malformed ones, on three ports; not the expired token.
    assert_eq!(to_ban(&rotated), ["127.0.0.1"; 6]);
    assert_eq!(to_ban(&rig.file()), [""; 0]);
    let metrics = rig.service.metrics();
    for (event, n) in [
        ("auth_failed", 7.0),
        ("quota_exceeded", 1.0),
        ("query", 1.0),
        ("access_ended", 1.0),
    ] {
        assert_eq!(
            metrics.labelled("audit_events_total", "event", event),
            n,
            "{event}"
        );
    }
    assert_eq!(
        metrics.labelled("auth_failures_total", "reason", "expired_token"),
        1.0
    );
    assert_eq!(metrics.get("audit_dropped_total"), 0.0);
    // The normal log has them, too.
    let log = rig.service.log();
    for text in [
        "authentication failed",
        "quota exceeded",
        "connection ended: its access has ended",
        "query",
    ] {
        assert!(
            log.lines()
                .any(|line| line.contains(" audit: ") && line.contains(text)),
            "{text}: {log}"
        );
    }
}

/// 5,000 wrong tokens from one address: the file has the lines that an address may have, and counts
/// the rest.
#[test]
fn a_flood_fills_neither_the_file_nor_the_log() {
    let rig = Rig::start("audit_flood");
    let agent = agent();
    let request = || {
        let request = agent.get(format!("{}/v1/fleet", rig.service.admin()));
        request
            .header("authorization", "Bearer gw1.falsch")
            .call()
            .unwrap()
    };
    (0..5000).for_each(|_| assert_eq!(request().status().as_u16(), 401));
    let suppressed = || {
        let lines = rig.lines(&rig.file(), 1);
        let of = lines
            .iter()
            .filter(|line| line["event"] == "suppressed" && line["of"] == "auth_failed");
        let suppressed: u64 = of.map(|line| line["count"].as_u64().unwrap()).sum();
        let written = lines
            .iter()
            .filter(|line| line["event"] == "auth_failed")
            .count() as u64;
        (written + suppressed == 5000).then_some(written)
    };
    let written = wait_until("all are accounted for", PATIENCE, suppressed);
    // Two minutes can begin meanwhile.
    assert!((20..=360).contains(&written), "{written}");
    let metrics = rig.service.metrics();
    assert_eq!(
        metrics.labelled("audit_dropped_total", "reason", "limit") as u64,
        5000 - written
    );
}

#[test]
fn a_file_that_cannot_be_opened_is_refused_at_start_and_at_a_reload() {
    let rig = Rig::start("audit_refused");
    let settings = rig.service.dir().join("hourbucket.toml");
    let text = std::fs::read_to_string(&settings).unwrap();
    std::fs::write(&settings, text.replace("audit.log", "none/audit.log")).unwrap();
    rig.service.sighup();
    wait_until("the reload is refused", PATIENCE, || {
        rig.service
            .log()
            .contains("audit.file: cannot open")
            .then_some(())
    });
    assert_eq!(rig.post("Bearer gw1.falsch"), 401);
    assert_eq!(
        rig.lines(&rig.file(), 1).len(),
        1,
        "the old file is still in use"
    );
    let output = Command::new(env!("CARGO_BIN_EXE_hourbucket"))
        .args(["run", "--config"])
        .arg(&settings)
        .current_dir(rig.dir.path())
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && error.contains("audit.file: cannot open"),
        "{error}"
    );
}

/// A PROXY header, version 2, for TCP over IPv4.
fn proxy_header(ip: [u8; 4]) -> Vec<u8> {
    [
        &b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"[..],
        &ip,
        &[127, 0, 0, 1, 0x12, 0x34, 0x1f, 0x90],
    ]
    .concat()
}

/// The test is the proxy. The limits of an address apply to the one that it names, and so do the
/// records.
#[test]
fn behind_a_proxy_the_address_that_it_names_is_recorded_paused_and_banned() {
    use std::io::{Read, Write};

    let proxies = "trusted_proxies = [\"127.0.0.1\"]";
    let rig = Rig::with(
        "audit_proxy",
        &format!(
            "http.{proxies}\nhttp.proxy_header = \"proxy-v2\"\nhttp.failed_auth_max = 3\n\
             admin.{proxies}"
        ),
        proxies,
    );
    let http = rig
        .service
        .http()
        .strip_prefix("http://")
        .unwrap()
        .to_owned();
    let ask = |first: &[u8]| {
        let mut stream = std::net::TcpStream::connect(&http).unwrap();
        let head = "POST /v1/readings HTTP/1.1\r\nhost: 127.0.0.1\r\n\
            authorization: Bearer gw1.falsch\r\n\
                    connection: close\r\ncontent-length: 0\r\n\r\n";
        // The connection may be closed meanwhile.
        let _ = stream.write_all(&[first, head.as_bytes()].concat());
        let mut text = String::new();
        let _ = stream.read_to_string(&mut text);
        text.get(9..12).unwrap_or("none").to_owned()
    };
    let statuses: Vec<String> = (0..5)
        .map(|_| ask(&proxy_header([203, 0, 113, 7])))
        .collect();
    assert_eq!(statuses, ["401", "401", "401", "429", "429"]);
    assert_eq!(ask(&proxy_header([203, 0, 113, 8])), "401");
    assert_eq!(ask(b""), "none", "a proxy without a header");
    let mqtt = block_on(async {
        let mut device = Raw::open(rig.mqtt_port).await;
        device.send(&proxy_header([203, 0, 113, 9])).await;
        device
            .send(&connect(5, "pump-7", 60, Some(("d1", "falsch"))))
            .await;
        let refused = device.answer().await.unwrap().0;
        let mut bare = Raw::open(rig.mqtt_port).await;
        bare.send(&connect(5, "pump-7", 60, Some(("d1", "geheim"))))
            .await;
        (refused, bare.answer().await)
    });
    assert_eq!(mqtt, (0x20, None));
    let admin = agent().get(format!("{}/v1/fleet", rig.service.admin()));
    let admin = admin
        .header("authorization", "Bearer gw1.falsch")
        .header("x-forwarded-for", "9.9.9.9, 203.0.113.10");
    assert_eq!(admin.call().unwrap().status().as_u16(), 401);

    let lines = rig.lines(&rig.file(), 11);
    let of = |event: &str| {
        let of = lines.iter().filter(|line| line["event"] == event);
        let mut of: Vec<String> = of
            .map(|line| {
                format!(
                    "{} {}",
                    line["port"].as_str().unwrap(),
                    line["address"].as_str().unwrap()
                )
            })
            .collect();
        of.sort();
        of
    };
    let failed = [
        "admin 203.0.113.10",
        "http 203.0.113.7",
        "http 203.0.113.8",
        "listen.mqtt 203.0.113.9",
    ];
    let mut once = of("auth_failed");
    assert_eq!(once.len(), 8, "{lines:#?}");
    once.dedup();
    assert_eq!(once, failed);
    assert_eq!(of("address_paused"), ["http 203.0.113.7"]);
    assert_eq!(
        of("connection_refused"),
        ["http 127.0.0.1", "listen.mqtt 127.0.0.1"]
    );
    let mut banned = to_ban(&rig.file());
    banned.sort();
    banned.dedup();
    assert_eq!(
        banned,
        ["203.0.113.10", "203.0.113.7", "203.0.113.8", "203.0.113.9"]
    );
    let metrics = rig.service.metrics();
    assert_eq!(
        metrics.labelled("http_connections_refused_total", "reason", "proxy_header"),
        1.0
    );
    assert_eq!(
        metrics.labelled("mqtt_direct_connects_total", "result", "proxy_header"),
        1.0
    );
}
