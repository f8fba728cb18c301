//! MQTT ingest: transports other than plain TCP, credentials, and a broker that refuses.

#![allow(clippy::unwrap_used, reason = "a test")]

use crate::support::free_port;
use crate::support::mosquitto::Mosquitto;
use crate::support::mqtt_rig::*;
use config::MqttProtocol::{V4, V5};
use config::{Mqtt, Secret};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// What the broker says is read within each transport: that it accepted the sessions which another
/// client ends. A session may end before its last acknowledgements are sent. Then the other client
/// gets these messages again, and nothing delivers them.
async fn is_named_when_taken_over(mut ingest: Ingest, config: Mqtt) {
    let other = Ingest::spawn(config);
    ingest.until(names_another_client).await;
    other.cut().await;
    ingest.cut().await;
}

#[tokio::test]
async fn websockets() {
    for protocol in [V4, V5] {
        let free = free_port();
        let broker = Mosquitto::start(&format!("listener {free} 127.0.0.1\nprotocol websockets"));
        let config = config(&format!("ws://127.0.0.1:{free}/mqtt"), protocol);
        let mut ingest = Ingest::start(config.clone()).await;
        publish_sensors(broker.port(), (0..1000).map(|i| format!("S{i}"))).await;
        let ingest_batches = ingest.ingest_batches(1000).await;
        deliver(ingest_batches);
        if protocol == V5 {
            is_named_when_taken_over(ingest, config).await;
        } else {
            ingest.finish().await;
        }
    }
}

/// TLS with a private CA (`tests/support/mqtt_tls`, valid for a hundred years, its key deleted)
/// works over TCP and WebSockets; without the CA we do not connect.
#[tokio::test]
async fn tls() {
    let dir = tempfile::tempdir().unwrap();
    let open = |mode| <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(mode);
    std::fs::set_permissions(dir.path(), open(0o755)).unwrap();
    for (name, text) in [
        ("ca.pem", include_str!("../support/mqtt_tls/ca.pem")),
        ("server.pem", include_str!("../support/mqtt_tls/server.pem")),
        ("server.key", include_str!("../support/mqtt_tls/server.key")),
    ] {
        std::fs::write(dir.path().join(name), text).unwrap();
        std::fs::set_permissions(dir.path().join(name), open(0o644)).unwrap();
    }
    let files = format!(
        "certfile {0}/server.pem\nkeyfile {0}/server.key",
        dir.path().display()
    );
    let [tcp, ws] = [free_port(), free_port()];
    let listeners = format!(
        "listener {tcp} 127.0.0.1\n{files}\nlistener {ws} 127.0.0.1\nprotocol websockets\n{files}"
    );
    let broker = Mosquitto::start(&listeners);
    for (url, protocol) in [
        (format!("mqtts://127.0.0.1:{tcp}"), V4),
        (format!("mqtts://127.0.0.1:{tcp}"), V5),
        (format!("wss://127.0.0.1:{ws}/mqtt"), V4),
        (format!("wss://127.0.0.1:{ws}/mqtt"), V5),
    ] {
        let mut trusting = config(&url, protocol);
        // A session of its own: a takeover may come before the last acknowledgements are sent, and
        // the broker delivers those messages to the next client of the session again.
        trusting.client_id = format!("hourbucket-{url}-{protocol:?}");
        let mut wary = Ingest::spawn(trusting.clone());
        wary.until(|status| status.problem.is_some()).await;
        assert!(!wary.status.borrow().connected);
        wary.finish().await;
        trusting.ca_file = Some(dir.path().join("ca.pem"));
        let mut ingest = Ingest::start(trusting.clone()).await;
        publish_sensors(broker.port(), (0..1000).map(|i| format!("S{i}"))).await;
        deliver(ingest.ingest_batches(1000).await);
        if protocol == V5 {
            is_named_when_taken_over(ingest, trusting).await;
        } else {
            ingest.finish().await;
        }
    }
}

/// A scripted broker: it sends CONNACK, then refuses the second of two filters.
#[tokio::test]
async fn a_refused_subscription_is_reported_and_keeps_the_broker_not_ready() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let broker = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut packet = [0; 1024];
        assert!(socket.read(&mut packet).await.unwrap() > 0);
        socket.write_all(&[0x20, 2, 0, 0]).await.unwrap();
        assert!(socket.read(&mut packet).await.unwrap() > 4);
        assert_eq!(packet[0], 0x82);
        socket
            .write_all(&[0x90, 4, packet[2], packet[3], 1, 0x80])
            .await
            .unwrap();
        while socket.read(&mut packet).await.is_ok_and(|n| n > 0) {}
    });
    let mut two = config(&format!("mqtt://127.0.0.1:{port}"), V4);
    two.subscriptions
        .push(subscription("secret/#", "secret/{sensor_id}", "json"));
    let mut ingest = Ingest::spawn(two);
    ingest.until(|status| status.problem.is_some()).await;
    let status = ingest.status.borrow().clone();
    assert!(status.connected && !status.is_ready(), "{status:?}");
    assert!(
        status.problem.as_ref().unwrap().contains("secret/#"),
        "{status:?}"
    );
    ingest.finish().await;
    broker.await.unwrap();
}

/// An unreachable or refusing broker is reported and retried; a stop ends the retries immediately.
#[tokio::test]
async fn a_broker_that_cannot_be_reached_is_reported() {
    let free = free_port();
    let mut ingest = Ingest::spawn(config(&format!("mqtt://127.0.0.1:{free}"), V5));
    ingest.until(|status| status.problem.is_some()).await;
    ingest.finish().await;
}

/// Creates a file that mosquitto, which runs as another user, can read.
fn write_open(path: &std::path::Path, text: &str) {
    std::fs::write(path, text).unwrap();
    let open = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o644);
    std::fs::set_permissions(path, open).unwrap();
}

/// The broker requires a certificate. Ours is read again for each connection: one that it does not
/// accept is replaced by one that it accepts, and then by a broken one, which is not used.
#[tokio::test]
async fn client_certificates_are_used_and_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let open = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
    std::fs::set_permissions(dir.path(), open).unwrap();
    for (name, text) in [
        ("ca.pem", include_str!("../support/mqtt_tls/mutual/ca.pem")),
        (
            "server.pem",
            include_str!("../support/mqtt_tls/mutual/server.pem"),
        ),
        (
            "server.key",
            include_str!("../support/mqtt_tls/mutual/server.key"),
        ),
    ] {
        write_open(&dir.path().join(name), text);
    }
    for protocol in [V4, V5] {
        // Issued by another CA.
        let cert = dir.path().join("client.pem");
        let key = dir.path().join("client.key");
        write_open(&cert, include_str!("../support/mqtt_tls/server.pem"));
        write_open(&key, include_str!("../support/mqtt_tls/server.key"));
        let free = free_port();
        let mut broker = Mosquitto::start(&format!(
            "listener {free} 127.0.0.1\ncafile {0}/ca.pem\ncertfile {0}/server.pem\n\
             keyfile {0}/server.key\n\
             require_certificate true",
            dir.path().display()
        ));
        let mut mutual = config(&format!("mqtts://127.0.0.1:{free}"), protocol);
        mutual.ca_file = Some(dir.path().join("ca.pem"));
        (mutual.cert_file, mutual.key_file) = (Some(cert.clone()), Some(key.clone()));
        let mut ingest = Ingest::spawn(mutual);
        ingest.until(|status| status.problem.is_some()).await;
        assert!(!ingest.status.borrow().connected);

        write_open(&key, include_str!("../support/mqtt_tls/mutual/client.key"));
        write_open(&cert, include_str!("../support/mqtt_tls/mutual/client.pem"));
        ingest.until(|status| status.is_ready()).await;
        assert_eq!(ingest.status.borrow().problem, None);

        write_open(&key, "-----BEGIN PRIVATE KEY-----\nhalf of it");
        broker.stop();
        ingest.until(|status| !status.connected).await;
        broker.restart();
        ingest.until(|status| status.is_ready()).await;
        let problem = ingest.status.borrow().problem.clone().unwrap();
        assert!(
            problem.contains("client.key") && problem.contains("the previous content is used"),
            "{problem}"
        );
        assert!(!problem.contains("half of it"), "{problem}");
        publish_sensors(broker.port(), ["S".to_owned()]).await;
        deliver(ingest.ingest_batches(1).await);
        ingest.finish().await;
    }
}

/// Creates mosquitto's password file with one user.
fn passwords(path: &std::path::Path, password: &str) {
    let made = std::process::Command::new("mosquitto_passwd")
        .args(["-c", "-b", path.to_str().unwrap(), "sensor", password])
        .status();
    assert!(
        made.is_ok_and(|status| status.success()),
        "mosquitto_passwd is in the package mosquitto"
    );
    let readable = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o644);
    std::fs::set_permissions(path, readable).unwrap();
}

#[tokio::test]
async fn credentials_are_accepted() {
    let file = tempfile::NamedTempFile::new().unwrap();
    passwords(file.path(), "geheim");
    let extra = format!(
        "allow_anonymous false\npassword_file {}",
        file.path().display()
    );
    for protocol in [V4, V5] {
        let broker = Mosquitto::start(&extra);
        let mut known = config(&broker.url(), protocol);
        let mut stranger = Ingest::spawn(known.clone());
        stranger.until(|status| status.problem.is_some()).await;
        stranger.finish().await;
        known.username = Some("sensor".into());
        known.password = Some(Secret::new("geheim".into()));
        Ingest::start(known).await.finish().await;
    }
}

/// The password changes on both sides while we are connected. It is read again for the next
/// connection; if the file is empty then, the previous password stays in use.
#[tokio::test]
async fn a_rotated_password_is_read_again() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let ours = tempfile::NamedTempFile::new().unwrap();
    let extra = format!(
        "allow_anonymous false\npassword_file {}",
        file.path().display()
    );
    for protocol in [V4, V5] {
        passwords(file.path(), "first");
        std::fs::write(ours.path(), "first\n").unwrap();
        let mut broker = Mosquitto::start(&extra);
        let mut known = config(&broker.url(), protocol);
        known.username = Some("sensor".into());
        known.password = Some(Secret::new("first".into()));
        known.password_file = Some(ours.path().to_owned());
        let mut ingest = Ingest::start(known).await;
        for (theirs, text) in [("second", "second\n"), ("second", "")] {
            broker.stop();
            ingest.until(|status| !status.connected).await;
            passwords(file.path(), theirs);
            std::fs::write(ours.path(), text).unwrap();
            broker.restart();
            ingest.until(|status| status.is_ready()).await;
            let problem = ingest.status.borrow().problem.clone();
            assert_eq!(
                problem.is_some_and(|p| p.contains("password_file") && p.contains("is empty")),
                text.is_empty()
            );
        }
        ingest.finish().await;
    }
}
