//! Client certificates that openssl makes: as the identity of HTTP clients, readers and
//! mosquitto_pub, and revoked.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::SemaphorePermit;

use crate::support::https::{Https, Trust};
use crate::support::in_process::InProcess;
use crate::support::openssl::Ca;
use crate::support::raw_mqtt::connect;
use hourbucket::app::Reloaded;
use net::access::hash_secret;
use telemetry::metrics;

const PATIENCE: Duration = Duration::from_secs(60);

async fn start(
    dir: &Path,
    ca: &Ca,
    auth: &str,
    http: &str,
    mqtt: &str,
    sections: &str,
) -> (SemaphorePermit<'static>, InProcess) {
    crate::install_metrics();
    let permit = crate::http_tls_service().await;
    let tls = ca.settings() + auth;
    let sections = format!("[http.tls]\n{tls}\n[admin.tls]\n{tls}\n{sections}");
    let service = InProcess::start(dir, http, &format!("{tls}\n{mqtt}"), &sections).await;
    (permit, service)
}

fn client(ca: &Ca, name: &str) -> Trust {
    let identity = Some((
        ca.text(&format!("{name}.pem")),
        ca.text(&format!("{name}.key")),
    ));
    Trust {
        ca: ca.text("ca.pem"),
        identity,
        only_12: false,
    }
}

/// Posts a reading of this sensor; the status, or `None` if the handshake or the connection fails.
async fn post(rig: &InProcess, trust: &Trust, token: Option<&str>, sensor: &str) -> Option<u16> {
    let mut connection = Https::connect(rig.http, trust).await.ok()?;
    post_on(&mut connection, token, sensor).await
}

async fn post_on(connection: &mut Https, token: Option<&str>, sensor: &str) -> Option<u16> {
    let reading = format!("{{\"sensor_id\":\"{sensor}\",\"n\":{}}}", fastrand::u32(..));
    connection.post("/v1/readings", token, &reading).await.ok()
}

/// `mosquitto_pub` to `sensors/SENSOR/n` with this certificate.
async fn publish(rig: &InProcess, ca: &Ca, name: &str, sensor: &str, more: &[&str]) -> Output {
    let port = rig.mqtt.port().to_string();
    let topic = format!("sensors/{sensor}/n");
    let file = |name: String| ca.dir.join(name).display().to_string();
    let mut command = Command::new("mosquitto_pub");
    command.args([
        "-h",
        "127.0.0.1",
        "-p",
        &port,
        "-q",
        "1",
        "-t",
        &topic,
        "-m",
        "7",
        "--cafile",
        &file("ca.pem".into()),
    ]);
    command
        .args([
            "--cert",
            &file(format!("{name}.pem")),
            "--key",
            &file(format!("{name}.key")),
        ])
        .args(more);
    let ran = tokio::task::spawn_blocking(move || command.output());
    ran.await
        .unwrap()
        .expect("mosquitto_pub is in the package mosquitto-clients")
}

/// Connects a device and returns the code of its CONNACK (MQTT 5); `None` if the connection is
/// closed.
async fn device(rig: &InProcess, trust: &Trust, client_id: &str) -> Option<(Https, u8)> {
    let mut device = Https::connect(rig.mqtt, trust).await.ok()?;
    device
        .0
        .write_all(&connect(5, client_id, 60, None))
        .await
        .ok()?;
    let (first, body) = packet(&mut device).await?;
    assert_eq!(first, 0x20);
    Some((device, body[1]))
}

/// The next packet (of less than 128 bytes); `None` if the connection ends.
async fn packet(device: &mut Https) -> Option<(u8, Vec<u8>)> {
    let read = async {
        let first = device.0.read_u8().await.ok()?;
        let mut body = vec![0; usize::from(device.0.read_u8().await.ok()?)];
        device.0.read_exact(&mut body).await.ok()?;
        Some((first, body))
    };
    tokio::time::timeout(PATIENCE, read)
        .await
        .expect("no packet")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_certificate_is_refused_and_its_open_connections_end() {
    let dir = tempfile::tempdir().unwrap();
    let ca = Ca::new(&dir.path().join("ca"));
    let namesake = Ca::new(&dir.path().join("namesake"));
    for name in ["good", "bad"] {
        ca.issue(name, &format!("/CN={name}"), "");
    }
    for auth in ["", "client_auth = \"identity\""] {
        let (_permit, rig) = start(
            dir.path(),
            &ca,
            auth,
            "",
            "",
            "[certificates]\nwrite_default = [\"*\"]",
        )
        .await;
        let good = client(&ca, "good");
        let bad = client(&ca, "bad");
        if auth.is_empty() {
            let [mut kept, mut ended] = [
                Https::connect(rig.http, &good).await.unwrap(),
                Https::connect(rig.http, &bad).await.unwrap(),
            ];
            assert_eq!(post_on(&mut kept, None, "a").await, Some(200));
            assert_eq!(post_on(&mut ended, None, "a").await, Some(200));
            let (mut good_device, code) = device(&rig, &good, "good").await.unwrap();
            assert_eq!(code, 0);
            let (mut bad_device, code) = device(&rig, &bad, "bad").await.unwrap();
            assert_eq!(code, 0);
            ca.revoke("bad");
            let begun = Instant::now();
            assert!(matches!(rig.reload().await, Reloaded::Applied(_)));
            let (first, body) = packet(&mut bad_device).await.expect("DISCONNECT");
            assert_eq!((first, body[0]), (0xe0, 0x87));
            let ended = tokio::time::timeout(PATIENCE, ended.0.read_u8())
                .await
                .expect("it is closed");
            assert!(ended.is_err());
            assert!(
                begun.elapsed() < Duration::from_secs(2),
                "{:?}",
                begun.elapsed()
            );
            good_device.0.write_all(&[0xc0, 0]).await.unwrap();
            assert_eq!(
                packet(&mut good_device).await,
                Some((0xd0, vec![])),
                "the other certificate's stay"
            );
            assert_eq!(post_on(&mut kept, None, "a").await, Some(200));
        }
        // With and without identity.
        assert_eq!(post(&rig, &good, None, "a").await, Some(200), "{auth}");
        assert_eq!(post(&rig, &bad, None, "a").await, None, "{auth}");
        assert!(
            publish(&rig, &ca, "good", "a", &["-i", "good"])
                .await
                .status
                .success(),
            "{auth}"
        );
        assert!(
            !publish(&rig, &ca, "bad", "a", &["-i", "bad"])
                .await
                .status
                .success(),
            "{auth}"
        );
        // A list that cannot be used changes nothing: one that is none, and one of another CA with
        // the same name.
        let list = ca.text("crl.pem");
        let none = "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n";
        for (other, says) in [
            (none, "usable certificate revocation list"),
            (namesake.text("crl.pem"), "\"test-ca\" is not signed"),
        ] {
            std::fs::write(ca.dir.join("crl.pem"), other).unwrap();
            let Reloaded::Invalid(why) = rig.reload().await else {
                panic!("{says}")
            };
            assert!(why.contains("crl.pem") && why.contains(says), "{why}");
            assert_eq!(post(&rig, &good, None, "a").await, Some(200), "{auth}");
            assert_eq!(post(&rig, &bad, None, "a").await, None, "{auth}");
        }
        std::fs::write(ca.dir.join("crl.pem"), list).unwrap();
        rig.end().await;
        std::fs::remove_dir_all(dir.path().join("journal")).unwrap();
    }
}

/// How often the HTTP port has refused a certificate for its names.
fn without_identity() -> u64 {
    let series = "hourbucket_auth_failures_total{port=\"http\",reason=\"no_identity\"} ";
    let text = metrics::render();
    let count = text.lines().find_map(|line| line.strip_prefix(series));
    count.map_or(0, |count| count.parse().unwrap())
}

/// HTTP: by the entry; without one its own sensor; a token has no meaning.
async fn posts_as_its_identity(rig: &InProcess, ca: &Ca) {
    let before = without_identity();
    let [gw1, plain, two] = ["gw1", "plain", "two"].map(|name| client(ca, name));
    for (trust, token, sensor, status) in [
        (&gw1, None, "gw1-1", 200),
        (&gw1, None, "plain.example", 400),
        (&plain, None, "plain.example", 200),
        (&plain, None, "gw1-1", 400),
        (&plain, Some("t1.secret"), "gw1-1", 400),
        (&two, None, "gw1-1", 403),
    ] {
        assert_eq!(
            post(rig, trust, token, sensor).await,
            Some(status),
            "{token:?} {sensor}"
        );
    }
    assert!(without_identity() > before, "it is counted");
    assert_eq!(
        post(
            rig,
            &Trust {
                ca: ca.text("ca.pem"),
                ..Trust::default()
            },
            Some("t1.secret"),
            "gw1-1"
        )
        .await,
        None
    );
}

/// The status of a query of the read API.
async fn read(rig: &InProcess, trust: &Trust) -> String {
    let mut connection = Https::connect(rig.admin, trust).await.unwrap();
    connection
        .0
        .write_all(b"GET /v1/fleet HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut answer = vec![];
    let _ = tokio::time::timeout(PATIENCE, connection.0.read_to_end(&mut answer))
        .await
        .expect("an answer");
    String::from_utf8_lossy(&answer[9..12]).into_owned()
}

/// MQTT: inside and outside the scope, also with the token of another one.
async fn publishes_as_its_identity(rig: &InProcess, ca: &Ca) {
    let said = |done: &Output| String::from_utf8_lossy(&done.stderr).into_owned();
    for version in ["mqttv311", "mqttv5"] {
        let done = publish(rig, ca, "gw1", "gw1-2", &["-V", version, "-i", "gw1/a"]).await;
        assert!(done.status.success(), "{}", said(&done));
        let done = publish(
            rig,
            ca,
            "plain",
            "plain.example",
            &["-V", version, "-i", "plain.example"],
        )
        .await;
        assert!(done.status.success(), "{}", said(&done));
        let done = publish(rig, ca, "plain", "gw1-2", &["-V", version, "-i", "gw1"]).await;
        assert!(
            !done.status.success(),
            "the client id of another one: {}",
            said(&done)
        );
        let done = publish(rig, ca, "two", "gw1-2", &["-V", version, "-i", "gw1"]).await;
        assert!(
            !done.status.success(),
            "a certificate with two names: {}",
            said(&done)
        );
    }
    let stolen = [
        "-V",
        "mqttv5",
        "-i",
        "plain.example",
        "-u",
        "t1",
        "-P",
        "secret",
    ];
    let done = publish(rig, ca, "plain", "gw1-2", &stolen).await;
    assert!(said(&done).contains("Not authorized"), "{}", said(&done));
}

/// No other identity takes over a session. Returns the last connection, which is still open.
async fn keeps_its_session(rig: &InProcess, gw1: &Trust, plain: &Trust) -> Https {
    let (mut first, code) = device(rig, gw1, "gw1").await.unwrap();
    assert_eq!(code, 0);
    assert_eq!(
        device(rig, plain, "gw1").await.map(|(_, code)| code),
        Some(0x85),
        "client identifier not valid"
    );
    first.0.write_all(&[0xc0, 0]).await.unwrap();
    assert_eq!(
        packet(&mut first).await,
        Some((0xd0, vec![])),
        "the first is still connected"
    );
    let (second, code) = device(rig, gw1, "gw1").await.unwrap();
    assert_eq!(
        (code, packet(&mut first).await.map(|(_, body)| body[0])),
        (0, Some(0x8e)),
        "its own takes over"
    );
    second
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_writes_and_reads_as_its_identity_and_as_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let ca = Ca::new(&dir.path().join("ca"));
    for (name, subject) in [
        ("gw1", "/CN=gw1"),
        ("plain", "/CN=plain.example"),
        ("two", "/CN=gw1/CN=plain"),
    ] {
        ca.issue(name, subject, "");
    }
    let entry = |id: &str, rest: &str| format!("[[tokens]]\nid = \"{id}\"\n{rest}\n");
    let tokens = dir.path().join("tokens.toml");
    let scope = "certificate = true\nwrite = [\"{id}-*\"]\nread = [\"*\"]";
    let token = format!("sha256 = \"{}\"", hash_secret("secret"));
    std::fs::write(&tokens, entry("gw1", scope) + &entry("t1", &token)).unwrap();
    let file = format!("tokens_file = \"{}\"", tokens.display());
    let (_permit, rig) = start(
        dir.path(),
        &ca,
        "client_auth = \"identity\"",
        &file,
        &file,
        "",
    )
    .await;
    let [gw1, plain, two] = ["gw1", "plain", "two"].map(|name| client(&ca, name));
    posts_as_its_identity(&rig, &ca).await;
    assert_eq!(
        (
            read(&rig, &gw1).await,
            read(&rig, &plain).await,
            read(&rig, &two).await
        ),
        ("200".into(), "403".into(), "403".into())
    );
    publishes_as_its_identity(&rig, &ca).await;
    let _second = keeps_its_session(&rig, &gw1, &plain).await;
    // An entry that is removed: the default applies from now on, also to open connections.
    std::fs::write(&tokens, entry("t1", &token)).unwrap();
    assert!(matches!(rig.reload().await, Reloaded::Applied(_)));
    assert_eq!(post(&rig, &gw1, None, "gw1-1").await, Some(400));
    assert_eq!(post(&rig, &gw1, None, "gw1").await, Some(200));
    let stored = rig.stored(5).await;
    assert!(
        stored
            .iter()
            .all(|id| id.starts_with("gw1") || id == "plain.example"),
        "{stored:?}"
    );
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_identity_can_be_an_alternative_name() {
    let dir = tempfile::tempdir().unwrap();
    let ca = Ca::new(&dir.path().join("ca"));
    ca.issue("d", "/CN=shared", "DNS:d7.example,URI:urn:device:7");
    ca.issue(
        "several",
        "/CN=shared",
        "DNS:a.example,DNS:b.example,URI:urn:a,URI:urn:b",
    );
    for (kind, id) in [
        ("dns", "d7.example"),
        ("uri", "urn:device:7"),
        ("cn", "shared"),
    ] {
        let section = format!("[certificates]\nidentity = \"{kind}\"");
        let (_permit, rig) = start(
            dir.path(),
            &ca,
            "client_auth = \"identity\"",
            "",
            "",
            &section,
        )
        .await;
        let one = client(&ca, "d");
        let several = client(&ca, "several");
        assert_eq!(post(&rig, &one, None, id).await, Some(200), "{kind}");
        assert_eq!(post(&rig, &one, None, "x").await, Some(400), "{kind}");
        let of_several = post(&rig, &several, None, "shared").await;
        assert_eq!(
            of_several,
            Some(if kind == "cn" { 200 } else { 403 }),
            "{kind}"
        );
        rig.end().await;
        std::fs::remove_dir_all(dir.path().join("journal")).unwrap();
    }
}
