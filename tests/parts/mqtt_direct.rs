//! Devices that connect to hourbucket: the answers and their timing. The test plays the next stage;
//! the devices are raw bytes, rumqttc and mosquitto's own tools.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use crate::support::direct_rig::*;
use crate::support::raw_mqtt::{Raw, connect, packet, publish};
use hourbucket::access::hash_secret;
use rumqttc_v4 as mqtt;
use tokio::io::AsyncWriteExt;

/// `mosquitto_pub` with a message on `sensors/S/temp`.
async fn tool(port: u16, arguments: &[&str]) -> Output {
    let arguments: Vec<String> = arguments.iter().map(|a| (*a).to_owned()).collect();
    tokio::task::spawn_blocking(move || {
        let mut command = Command::new("mosquitto_pub");
        command
            .args(["-p", &port.to_string(), "-t", "sensors/S/temp", "-m", "1"])
            .args(arguments);
        command
            .output()
            .expect("mosquitto_pub is in the package mosquitto-clients")
    })
    .await
    .unwrap()
}

#[tokio::test]
async fn acknowledged_in_order_when_durable() {
    for protocol in [4, 5] {
        let mut direct = Direct::start(&settings()).await;
        let mut device = Raw::connect(direct.port, protocol, "d").await;
        let mut ingest_batches = vec![];
        for id in [7, 3] {
            device
                .send(&publish(protocol, "sensors/S/temp", "1", 1, id))
                .await;
            ingest_batches.push(direct.ingest_batch().await);
        }
        let [first, second]: [_; 2] = ingest_batches.try_into().expect("two were pushed");
        // The second is durable before the first: its acknowledgement waits for the first.
        second.into_parts().2.delivered();
        device.send(&packet(0xc0, &[])).await;
        assert_eq!(
            device.answer().await,
            Some((0xd0, vec![])),
            "a ping is answered meanwhile"
        );
        first.into_parts().2.delivered();
        assert_eq!(device.answer().await, Some((0x40, vec![0, 7])));
        assert_eq!(device.answer().await, Some((0x40, vec![0, 3])));
        direct.finish().await;
    }
}

#[tokio::test]
async fn mosquitto_pub_is_served() {
    let mut direct = Direct::start(&settings()).await;
    for (version, qos) in ["mqttv311", "mqttv5"]
        .into_iter()
        .flat_map(|v| ["0", "1", "2"].map(|qos| (v, qos)))
    {
        let arguments = [
            "-V",
            version,
            "-q",
            qos,
            "-i",
            "tool",
            "--will-topic",
            "w",
            "--will-payload",
            "x",
            "-r",
        ];
        let port = direct.port;
        let sent = direct.deliver(1);
        let (done, sensors) = tokio::join!(tool(port, &arguments), sent);
        assert!(
            done.status.success(),
            "{version} {qos}: {}",
            String::from_utf8_lossy(&done.stderr)
        );
        assert_eq!(sensors, ["S"]);
    }
    let tagged = [
        "-V",
        "mqttv5",
        "-q",
        "1",
        "-D",
        "publish",
        "user-property",
        "site",
        "north",
    ];
    let port = direct.port;
    let ingest_batch = async {
        let ingest_batch = direct.ingest_batch().await;
        let reading = ingest_batch.batch.to_readings().remove(0);
        ingest_batch.into_parts().2.delivered();
        reading
    };
    let (done, reading) = tokio::join!(tool(port, &tagged), ingest_batch);
    assert!(done.status.success());
    assert_eq!(reading.tags["site"], "north");
    assert!(direct.ingest_batches.is_empty());
    direct.finish().await;
}

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
    let connected = async |id: &str, code: u8| {
        let mut device = Raw::open(direct.port).await;
        device.send(&connect(5, id, 60, Some((id, "geheim")))).await;
        assert_eq!(device.answer().await.unwrap().1[1], code, "{id}");
        device
    };
    let mut fast = connected("fast", 0).await;
    let mut other = connected("other", 0).await;
    connected("fast", 0x97).await;
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

#[tokio::test]
async fn unsupported_requests_are_refused_with_the_codes_of_the_protocol() {
    let direct = Direct::start(&settings()).await;
    for (protocol, no) in [(4, 0x80), (5, 0x87)] {
        let mut device = Raw::connect(direct.port, protocol, "d").await;
        let properties: &[u8] = if protocol == 5 { &[0] } else { &[] };
        device
            .send(&packet(
                0x82,
                &[&[0, 9], properties, &[0, 1, b'#', 1]].concat(),
            ))
            .await;
        let (first, body) = device.answer().await.unwrap();
        assert_eq!((first, body[1], *body.last().unwrap()), (0x90, 9, no));
        device
            .send(&packet(
                0xa2,
                &[&[0, 8], properties, &[0, 1, b'#']].concat(),
            ))
            .await;
        assert_eq!(device.answer().await.unwrap().0, 0xb0);
    }
    // Protocol errors end the connection; MQTT 5 has a reason code.
    let alias = packet(0x30, &[0, 0, 3, 0x23, 0, 1, b'1']);
    for (bytes, reason) in [
        (&alias[..], 0x94),
        (&packet(0x36, &[0, 1, b'a', 0, 1, 0])[..], 0x81),
        (&connect(5, "d", 60, None)[..], 0x82),
    ] {
        let mut device = Raw::connect(direct.port, 5, "d").await;
        device.send(bytes).await;
        let (first, body) = device.answer().await.unwrap();
        assert_eq!((first, body[0]), (0xe0, reason));
        assert_eq!(device.answer().await, None);
    }
    let mut device = Raw::connect(direct.port, 4, "d").await;
    device.send(&connect(4, "d", 60, None)).await;
    assert_eq!(device.answer().await, None, "MQTT 3.1.1 has no code for it");
    let mut browser = Raw::open(direct.port).await;
    browser.send(b"GET / HTTP/1.1\r\n\r\n").await;
    assert_eq!(browser.answer().await, None);
    direct.finish().await;
}

#[tokio::test]
async fn connections_are_limited_and_silent_ones_are_closed() {
    let mut small = settings();
    small.connections.max = 1;
    small.connect_timeout = Duration::from_secs(1);
    let direct = Direct::start(&small).await;
    let mut silent = Raw::open(direct.port).await;
    // It occupies the only connection until its time for CONNECT is over.
    assert_eq!(Raw::open(direct.port).await.answer().await, None);
    assert_eq!(silent.answer().await, None);
    // Another connection is accepted shortly after this one is closed.
    let begun = std::time::Instant::now();
    let mut device = loop {
        let mut device = Raw::open(direct.port).await;
        let sent = device.0.write_all(&connect(5, "d", 1, None)).await;
        if sent.is_ok()
            && device
                .answer()
                .await
                .is_some_and(|(first, _)| first == 0x20)
        {
            break device;
        }
        assert!(
            begun.elapsed() < PATIENCE,
            "no other connection is accepted"
        );
    };
    let (first, body) = device.answer().await.unwrap();
    assert_eq!(
        (first, body[0]),
        (0xe0, 0x8d),
        "silent for longer than its keep-alive"
    );
    direct.finish().await;
}

#[tokio::test]
async fn a_second_connection_of_a_client_closes_the_first() {
    let direct = Direct::start(&settings()).await;
    let mut first = Raw::connect(direct.port, 5, "same").await;
    let mut second = Raw::connect(direct.port, 5, "same").await;
    let (byte, body) = first.answer().await.unwrap();
    assert_eq!((byte, body[0]), (0xe0, 0x8e));
    second.send(&packet(0xc0, &[])).await;
    assert_eq!(second.answer().await, Some((0xd0, vec![])));
    direct.finish().await;
}

#[tokio::test]
async fn undelivered_messages_are_not_acknowledged_and_earlier_ones_are() {
    let mut direct = Direct::start(&settings()).await;
    let mut device = Raw::connect(direct.port, 5, "d").await;
    let mut ingest_batches = vec![];
    for id in [1, 2] {
        device.send(&publish(5, "sensors/S/temp", "1", 1, id)).await;
        ingest_batches.push(direct.ingest_batch().await);
    }
    drop(ingest_batches.pop());
    ingest_batches.pop().unwrap().into_parts().2.delivered();
    assert_eq!(device.answer().await, Some((0x40, vec![0, 1])));
    let (first, body) = device.answer().await.unwrap();
    assert_eq!((first, body[0]), (0xe0, 0x89));
    assert_eq!(device.answer().await, None);
    direct.finish().await;
}

#[tokio::test]
async fn a_stop_waits_for_what_was_taken() {
    let mut direct = Direct::start(&settings()).await;
    let mut device = Raw::connect(direct.port, 5, "d").await;
    device.send(&publish(5, "sensors/S/temp", "1", 1, 1)).await;
    let ingest_batch = direct.ingest_batch().await;
    direct.stop.cancel();
    device.send(&publish(5, "sensors/S/temp", "2", 1, 2)).await;
    ingest_batch.into_parts().2.delivered();
    assert_eq!(device.answer().await, Some((0x40, vec![0, 1])));
    let (first, body) = device.answer().await.unwrap();
    assert_eq!((first, body[0]), (0xe0, 0x8b));
    assert_eq!(device.answer().await, None);
    direct.finish().await;
}

/// Publishes this many messages with QoS 1 (MQTT 3.1.1) over one connection; ends when all are
/// acknowledged.
async fn publish_many(port: u16, n: usize) {
    let mut options =
        mqtt::MqttOptions::new(format!("many-{}", fastrand::u64(..)), ("127.0.0.1", port));
    options.set_inflight(1000).set_keep_alive(1);
    let (client, mut events) = mqtt::AsyncClient::builder(options).capacity(100).build();
    let sending = async {
        for i in 0..n {
            let options = mqtt::PublishOptions::at_least_once();
            client
                .publish(format!("sensors/S{i}/temp"), "21.5", options)
                .await
                .unwrap();
        }
    };
    let acknowledged = async {
        let mut missing = n;
        while missing > 0 {
            if let mqtt::Event::Incoming(mqtt::Packet::PubAck(_)) = events.poll().await.unwrap() {
                missing -= 1;
            }
        }
    };
    tokio::time::timeout(PATIENCE, async { tokio::join!(sending, acknowledged) })
        .await
        .expect("nothing is accepted");
}

/// If a device sends more than the queue holds while admission is closed, it is not read, and
/// nothing is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_admission_stops_reading_and_nothing_is_lost() {
    let mut small = settings();
    small.window = 10;
    let mut direct = Direct::start(&small).await;
    direct.admission_control.full(true);
    let port = direct.port;
    let mut device = Raw::connect(port, 4, "raw").await;
    // Three times the maximum in flight.
    let all: Vec<u8> = (1..=30)
        .flat_map(|id| publish(4, &format!("sensors/S{id}/temp"), "1", 1, id))
        .collect();
    device.send(&all).await;
    // Another device's ping is answered: only this one is stopped.
    let mut other = Raw::connect(port, 4, "other").await;
    other.send(&packet(0xc0, &[])).await;
    assert_eq!(other.answer().await, Some((0xd0, vec![])));
    assert!(direct.ingest_batches.is_empty());
    direct.admission_control.full(false);
    let mut sensors = vec![];
    for id in 1..=30u16 {
        if sensors.len() < usize::from(id) {
            sensors.extend(direct.deliver(1).await);
        }
        assert_eq!(
            device.answer().await,
            Some((0x40, id.to_be_bytes().to_vec()))
        );
    }
    assert_eq!(
        sensors,
        (1..=30).map(|id| format!("S{id}")).collect::<Vec<_>>()
    );
    direct.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_messages_pass_a_small_window() {
    let mut small = settings();
    small.window = 20;
    let direct = Direct::start(&small).await;
    let port = direct.port;
    let delivering = direct.deliver_all();
    publish_many(port, 10_000).await;
    delivering.abort();
}

/// Two ingest batches are in flight, so further messages are collected: many devices share few
/// ingest batches.
#[tokio::test]
async fn many_connections_share_ingest_batches() {
    let mut direct = Direct::start(&settings()).await;
    let mut devices = vec![];
    for i in 0..300 {
        devices.push(Raw::connect(direct.port, 4, &format!("d{i}")).await);
    }
    for (i, device) in devices.iter_mut().enumerate() {
        device
            .send(&publish(4, &format!("sensors/S{i}/temp"), "1", 1, 1))
            .await;
    }
    let mut seen = 0;
    let mut ingest_batches = vec![];
    while seen < devices.len() {
        let ingest_batch = direct.ingest_batch().await;
        seen += ingest_batch.batch.len();
        ingest_batches.push(ingest_batch);
    }
    assert!(
        ingest_batches.len() < devices.len() / 2,
        "{} ingest batches for {} messages",
        ingest_batches.len(),
        devices.len()
    );
    ingest_batches
        .into_iter()
        .for_each(|ingest_batch| ingest_batch.into_parts().2.delivered());
    for device in &mut devices {
        assert_eq!(device.answer().await, Some((0x40, vec![0, 1])));
    }
    direct.finish().await;
}

/// The throughput with a hundred connections of ten messages in flight each, and the size of ingest
/// batches; `cargo test --test parts mqtt_direct::throughput -- --ignored --nocapture`. The next
/// stage acknowledges immediately.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
#[allow(clippy::print_stdout, reason = "a measurement")]
async fn throughput() {
    const DEVICES: usize = 100;
    const MESSAGES: usize = 3000;
    let mut direct = Direct::start(&settings()).await;
    let port = direct.port;
    let devices: Vec<_> = (0..DEVICES)
        .map(|i| {
            tokio::spawn(async move {
                let mut device = Raw::connect(port, 4, &format!("d{i}")).await;
                let ten: Vec<u8> = (1..=10)
                    .flat_map(|id| publish(4, &format!("sensors/S{i}/temp"), "21.5", 1, id))
                    .collect();
                for _ in 0..MESSAGES / 10 {
                    device.send(&ten).await;
                    for id in 1..=10 {
                        assert_eq!(device.answer().await, Some((0x40, vec![0, id])));
                    }
                }
            })
        })
        .collect();
    let begun = std::time::Instant::now();
    let mut seen = 0;
    let mut ingest_batches = 0;
    while seen < DEVICES * MESSAGES {
        let ingest_batch = direct.ingest_batch().await;
        seen += ingest_batch.batch.len();
        ingest_batches += 1;
        ingest_batch.into_parts().2.delivered();
    }
    for device in devices {
        device.await.unwrap();
    }
    let rate = seen as f64 / begun.elapsed().as_secs_f64();
    let each = seen as f64 / f64::from(ingest_batches);
    println!(
        "{rate:.0} messages/s with the devices on the same two cores, {each:.0} per ingest batch"
    );
    direct.finish().await;
}
