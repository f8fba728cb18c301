//! Devices that connect to hourbucket with a token or a certificate: who is accepted, what they may
//! write and how fast, and that new certificates are used.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;
use std::time::Duration;

use crate::support::direct_rig::*;
use crate::support::raw_mqtt::{Raw, connect, publish};
use net::access::hash_secret;

use super::mqtt_direct::tool;

/// A file with one token, `d1` with the secret `geheim`.
fn tokens(dir: &Path) -> std::path::PathBuf {
    let path = dir.join("tokens.toml");
    std::fs::write(
        &path,
        format!(
            "[[tokens]]\nid = \"d1\"\nsha256 = \"{}\"\n",
            hash_secret("geheim")
        ),
    )
    .unwrap();
    path
}

#[tokio::test]
async fn a_device_with_a_valid_token_is_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let mut guarded = settings();
    guarded.tokens_file = Some(tokens(dir.path()));
    let mut direct = Direct::start(&guarded).await;
    for arguments in [
        ["-u", "d1", "-P", "geheim"],
        ["-u", "any", "-P", "d1.geheim"],
    ] {
        let port = direct.port;
        let sent = direct.deliver(1);
        let arguments = [&arguments[..], &["-q", "1"]].concat();
        let (done, _) = tokio::join!(tool(port, &arguments), sent);
        assert!(
            done.status.success(),
            "{}",
            String::from_utf8_lossy(&done.stderr)
        );
    }
    assert!(
        !tool(direct.port, &["-u", "d1", "-P", "wrong"])
            .await
            .status
            .success()
    );
    for (protocol, credentials, code) in [
        (4, None, 5),
        (5, None, 0x87),
        (4, Some(("d1", "wrong")), 4),
        (5, Some(("d1", "wrong")), 0x86),
        (4, Some(("unknown", "geheim")), 4),
    ] {
        let mut stranger = Raw::open(direct.port).await;
        stranger
            .send(&connect(protocol, "x", 60, credentials))
            .await;
        let (first, body) = stranger.answer().await.unwrap();
        assert_eq!((first, body[1]), (0x20, code));
        assert_eq!(stranger.answer().await, None);
    }
    assert!(direct.ingest_batches.is_empty());
    direct.finish().await;
}

#[tokio::test]
async fn what_a_token_may_not_write_is_refused_or_kept_apart() {
    let dir = tempfile::tempdir().unwrap();
    let mut guarded = settings();
    let path = tokens(dir.path());
    let text = std::fs::read_to_string(&path).unwrap() + "write = [\"{id}\"]\n";
    std::fs::write(&path, text).unwrap();
    guarded.tokens_file = Some(path);
    let mut direct = Direct::start(&guarded).await;
    for protocol in [4, 5] {
        let mut device = Raw::open(direct.port).await;
        device
            .send(&connect(protocol, "x", 60, Some(("d1", "geheim"))))
            .await;
        assert_eq!(device.answer().await.unwrap().1[1], 0);
        for (id, (topic, qos)) in (1..).zip([("d1", 1), ("d2", 1), ("d2", 2), ("d1", 1)]) {
            device
                .send(&publish(
                    protocol,
                    &format!("sensors/{topic}/temp"),
                    "1",
                    qos,
                    id,
                ))
                .await;
        }
        let mut own = 0;
        let mut dead = vec![];
        // The two of d2 are refused with MQTT 5, and dead letters with 3.1.1.
        while own + dead.len() < if protocol == 5 { 2 } else { 4 } {
            let (batch, dead_letters, ack) = direct.ingest_batch().await.into_parts();
            assert!(batch.to_readings().iter().all(|r| r.sensor_id == "d1"));
            own += batch.len();
            dead.extend(dead_letters);
            ack.delivered();
        }
        assert!(
            dead.iter()
                .all(|one| one.reason == "not_allowed" && one.topic == "sensors/d2/temp")
        );
        assert_eq!(
            (own, dead.len()),
            if protocol == 5 { (2, 0) } else { (2, 2) }
        );
        let refusal = |id| {
            if protocol == 5 {
                vec![0, id, 0x87, 0]
            } else {
                vec![0, id]
            }
        };
        let expected = [
            (0x40, vec![0, 1]),
            (0x40, refusal(2)),
            (0x50, refusal(3)),
            (0x40, vec![0, 4]),
        ];
        for answer in expected {
            // Messages that were refused alone may need a separate batch to be acknowledged.
            while let Ok(batch) = direct.ingest_batches.try_recv() {
                batch.into_parts().2.delivered();
            }
            assert_eq!(device.answer().await, Some(answer));
        }
        if protocol == 5 {
            // A PUBREC with an error ends the exchange: the id is free for another message.
            device
                .send(&publish(protocol, "sensors/d1/temp", "2", 2, 3))
                .await;
            assert_eq!(direct.deliver(1).await, ["d1"]);
            assert_eq!(device.answer().await, Some((0x50, vec![0, 3])));
        }
    }
    direct.finish().await;
}

#[tokio::test]
async fn beyond_its_rate_a_device_is_read_more_slowly_and_others_as_before() {
    let dir = tempfile::tempdir().unwrap();
    let mut guarded = settings();
    let path = dir.path().join("tokens.toml");
    let entry = |id: &str, rules: &str| {
        format!(
            "[[tokens]]\nid = \"{id}\"\nsha256 = \"{}\"\n{rules}\n",
            hash_secret("geheim")
        )
    };
    let rules = "rate = { readings_per_second = 50, burst = \"1s\", connections_max = 1 }";
    std::fs::write(&path, entry("fast", rules) + &entry("other", "")).unwrap();
    (guarded.tokens_file, guarded.window) = (Some(path), 1000);
    let direct = Direct::start(&guarded).await;
    let connected = async |client: &str, id: &str, code: u8| {
        let mut device = Raw::open(direct.port).await;
        device
            .send(&connect(5, client, 60, Some((id, "geheim"))))
            .await;
        assert_eq!(device.answer().await.unwrap().1[1], code, "{id}");
        device
    };
    let lost = connected("fast", "fast", 0).await;
    // It comes back although its old connection is not known to be dead.
    let mut fast = connected("fast", "fast", 0).await;
    let mut other = connected("other", "other", 0).await;
    connected("second", "fast", 0x97).await;
    drop(lost);
    let delivering = direct.deliver_all();
    let begun = std::time::Instant::now();
    let flood: Vec<u8> = (1..=150)
        .flat_map(|id| publish(5, "sensors/fast/v", "1", 1, id))
        .collect();
    fast.send(&flood).await;
    for id in 1..=20 {
        let sent = std::time::Instant::now();
        other.send(&publish(5, "sensors/other/v", "1", 1, id)).await;
        assert_eq!(other.answer().await.unwrap().0, 0x40);
        assert!(
            sent.elapsed() < Duration::from_secs(1),
            "the other waited {:?}",
            sent.elapsed()
        );
    }
    for _ in 0..150 {
        assert_eq!(fast.answer().await.unwrap().0, 0x40, "none is lost");
    }
    // Of 150 readings at 50 a second, one second's worth is a burst.
    assert!(
        begun.elapsed() > Duration::from_millis(1900),
        "it took {:?}",
        begun.elapsed()
    );
    delivering.abort();
}

#[tokio::test]
async fn a_token_without_mqtt_is_not_let_in() {
    let dir = tempfile::tempdir().unwrap();
    for (rules, labels) in [
        ("via = [\"http\"]", "via"),
        ("write = []", "write"),
        ("expires = 2020-01-01", "expires"),
    ] {
        let mut guarded = settings();
        let path = tokens(dir.path());
        let text = std::fs::read_to_string(&path).unwrap() + rules;
        std::fs::write(&path, text).unwrap();
        guarded.tokens_file = Some(path);
        let direct = Direct::start(&guarded).await;
        for (protocol, code) in [(4, 5), (5, 0x87)] {
            let mut device = Raw::open(direct.port).await;
            device
                .send(&connect(protocol, "x", 60, Some(("d1", "geheim"))))
                .await;
            assert_eq!(device.answer().await.unwrap().1[1], code, "{labels}");
        }
        direct.finish().await;
    }
}

/// Copies certificates to a directory where they can be replaced.
fn certificates(dir: &Path, cert: &str, key: &str) {
    std::fs::write(dir.join("server.key"), key).unwrap();
    std::fs::write(dir.join("server.pem"), cert).unwrap();
}

#[tokio::test]
async fn tls_with_certificates_on_both_sides_which_are_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name);
    for (name, text) in [
        ("ca.pem", include_str!("../support/mqtt_tls/mutual/ca.pem")),
        (
            "client.pem",
            include_str!("../support/mqtt_tls/mutual/client.pem"),
        ),
        (
            "client.key",
            include_str!("../support/mqtt_tls/mutual/client.key"),
        ),
        ("other-ca.pem", include_str!("../support/mqtt_tls/ca.pem")),
    ] {
        std::fs::write(file(name), text).unwrap();
    }
    certificates(
        dir.path(),
        include_str!("../support/mqtt_tls/mutual/server.pem"),
        include_str!("../support/mqtt_tls/mutual/server.key"),
    );
    let mut encrypted = settings();
    (encrypted.cert_file, encrypted.key_file) =
        (Some(file("server.pem")), Some(file("server.key")));
    encrypted.client_ca_file = Some(file("ca.pem"));
    let direct = Direct::start(&encrypted).await;
    let port = direct.port;
    let ca = file("ca.pem");
    let other = file("other-ca.pem");
    let cert = file("client.pem");
    let key = file("client.key");
    let [ca, other, cert, key] = [&ca, &other, &cert, &key].map(|path| path.to_str().unwrap());
    let delivering = direct.deliver_all();
    let good = [
        "-q",
        "1",
        "-h",
        "127.0.0.1",
        "--cafile",
        ca,
        "--cert",
        cert,
        "--key",
        key,
    ];
    let done = tool(port, &good).await;
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    assert!(
        !tool(port, &["-q", "1", "-h", "127.0.0.1", "--cafile", ca])
            .await
            .status
            .success(),
        "without a certificate"
    );
    assert!(
        !tool(port, &["-q", "1", "-h", "127.0.0.1"])
            .await
            .status
            .success(),
        "without TLS"
    );

    // Another certificate is used soon.
    certificates(
        dir.path(),
        include_str!("../support/mqtt_tls/server.pem"),
        include_str!("../support/mqtt_tls/server.key"),
    );
    let renewed = [
        "-q",
        "1",
        "-h",
        "127.0.0.1",
        "--cafile",
        other,
        "--cert",
        cert,
        "--key",
        key,
    ];
    let begun = std::time::Instant::now();
    while !tool(port, &renewed).await.status.success() {
        assert!(
            begun.elapsed() < PATIENCE,
            "the new certificate is never used"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(!tool(port, &good).await.status.success());
    delivering.abort();
}
