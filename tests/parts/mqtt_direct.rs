//! Devices that connect to hourbucket: the answers and their timing. The test plays the next stage;
//! the devices are raw bytes, rumqttc and mosquitto's own tools.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::process::{Command, Output};
use std::time::Duration;

use crate::support::direct_rig::*;
use crate::support::raw_mqtt::{Raw, connect, packet, publish};
use rumqttc_v4 as mqtt;
use tokio::io::AsyncWriteExt;

/// `mosquitto_pub` with a message on `sensors/S/temp`.
pub(super) async fn tool(port: u16, arguments: &[&str]) -> Output {
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
