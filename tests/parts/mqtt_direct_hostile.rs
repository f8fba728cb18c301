//! Devices that send invalid or excessive messages to the MQTT listener: their messages are kept,
//! and the next message is served. The test plays the next stage.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::process::Command;
use std::time::Duration;

use crate::support::direct_rig::*;
use crate::support::raw_mqtt::{
    Raw, connect_with, disconnect_reason, packet, publish, publish_with,
};
use journal::admission::IngestBatch;
use model::DeadLetter;

/// Time in which an answer must not arrive.
const MOMENT: Duration = Duration::from_millis(200);

/// Maximum size of a packet in these tests.
const PACKET_BYTES_MAX: u32 = 20_000;

/// No answer arrives for a moment.
async fn silent(device: &mut Raw) {
    assert!(
        tokio::time::timeout(MOMENT, device.answer()).await.is_err(),
        "there must be no answer yet"
    );
}

/// The dead letter of an ingest batch that has nothing else.
fn only_dead_letter(ingest_batch: &IngestBatch) -> DeadLetter {
    assert!(ingest_batch.batch.is_empty());
    assert_eq!(ingest_batch.dead.len(), 1, "{:?}", ingest_batch.dead);
    ingest_batch.dead[0].clone()
}

/// Sends a reading, which shows that the connection still works.
async fn still_serves(direct: &mut Direct, device: &mut Raw, protocol: u8) {
    device
        .send(&publish(protocol, "sensors/S/temp", "1", 1, 99))
        .await;
    let ingest_batch = direct.ingest_batch().await;
    assert_eq!(ingest_batch.batch.len(), 1);
    ingest_batch.into_parts().2.delivered();
    assert_eq!(device.answer().await, Some((0x40, vec![0, 99])));
}

#[tokio::test]
async fn a_topic_without_a_rule_is_a_dead_letter_before_its_acknowledgement() {
    for protocol in [4, 5] {
        let mut direct = Direct::start(&settings()).await;
        let mut device = Raw::connect(direct.port, protocol, "d").await;
        let long = format!("sensors/S/{}", "x".repeat(2000));
        for (topic, reason) in [
            ("elsewhere/a", "no_subscription"),
            (long.as_str(), "topic_too_long"),
        ] {
            for (qos, answer) in [(1, 0x40), (2, 0x50)] {
                device.send(&publish(protocol, topic, "21.5", qos, 5)).await;
                let ingest_batch = direct.ingest_batch().await;
                let dead_letter = only_dead_letter(&ingest_batch);
                assert_eq!(
                    (dead_letter.topic.as_str(), dead_letter.reason.as_str()),
                    (topic, reason)
                );
                assert_eq!(
                    (dead_letter.source.as_str(), dead_letter.payload.as_slice()),
                    ("mqtt_direct", &b"21.5"[..])
                );
                silent(&mut device).await;
                ingest_batch.into_parts().2.delivered();
                // Success, which MQTT 5 indicates by a missing reason code.
                assert_eq!(device.answer().await, Some((answer, vec![0, 5])));
                if qos == 2 {
                    device.send(&packet(0x62, &[0, 5])).await;
                    assert_eq!(device.answer().await, Some((0x70, vec![0, 5])));
                }
            }
            device.send(&publish(protocol, topic, "22", 0, 0)).await;
            let ingest_batch = direct.ingest_batch().await;
            assert_eq!(only_dead_letter(&ingest_batch).reason, reason);
            ingest_batch.into_parts().2.delivered();
        }
        still_serves(&mut direct, &mut device, protocol).await;
        direct.finish().await;
    }
}

#[tokio::test]
async fn a_dead_letter_that_cannot_be_kept_is_not_acknowledged() {
    let mut direct = Direct::start(&settings()).await;
    let mut device = Raw::connect(direct.port, 5, "d").await;
    device.send(&publish(5, "elsewhere", "1", 1, 5)).await;
    drop(direct.ingest_batch().await);
    let (first, body) = device.answer().await.unwrap();
    assert_eq!((first, disconnect_reason(&body).0), (0xe0, 0x89));
    direct.finish().await;
}

#[tokio::test]
async fn qos_2_has_the_whole_handshake_and_is_durable_before_pubrec() {
    for protocol in [4, 5] {
        let mut direct = Direct::start(&settings()).await;
        let mut device = Raw::connect(direct.port, protocol, "d").await;
        let message = publish(protocol, "sensors/S/temp", "1", 2, 7);
        device.send(&message).await;
        let ingest_batch = direct.ingest_batch().await;
        silent(&mut device).await;
        // The same id again before PUBREC: one message, one PUBREC.
        device.send(&message).await;
        silent(&mut device).await;
        ingest_batch.into_parts().2.delivered();
        assert_eq!(device.answer().await, Some((0x50, vec![0, 7])));
        // And between PUBREC and PUBREL (MQTT-4.3.3-2, MQTT 5: MQTT-4.3.3-10).
        device.send(&message).await;
        assert_eq!(device.answer().await, Some((0x50, vec![0, 7])));
        silent(&mut device).await;
        assert!(direct.ingest_batches.is_empty(), "it is one message");
        device.send(&packet(0x62, &[0, 7])).await;
        assert_eq!(device.answer().await, Some((0x70, vec![0, 7])));
        // An unknown id; MQTT 5 has a reason code for it.
        device.send(&packet(0x62, &[0, 8])).await;
        let (first, body) = device.answer().await.unwrap();
        assert_eq!(
            (first, &body[..2], body.get(2).copied()),
            (0x70, &[0, 8][..], (protocol == 5).then_some(0x92))
        );
        // After PUBCOMP the id belongs to another message.
        device.send(&message).await;
        direct.deliver(1).await;
        assert_eq!(device.answer().await, Some((0x50, vec![0, 7])));
        direct.finish().await;
    }
}

#[tokio::test]
async fn mqtt_5_is_offered_qos_2_and_the_window() {
    let mut small = settings();
    small.window = 3;
    let direct = Direct::start(&small).await;
    let mut device = Raw::open(direct.port).await;
    device.send(&connect_with(5, "d", 60, None, &[])).await;
    let (_, body) = device.answer().await.unwrap();
    let properties = &body[3..];
    assert!(
        properties.windows(3).any(|w| w == [0x21, 0, 3]),
        "receive maximum 3: {properties:x?}"
    );
    // Maximum QoS (0x24) is sent only if it is 0 or 1 (MQTT 5 §3.2.2.3.4).
    assert_eq!(properties[0], 0x21, "{properties:x?}");
    assert_eq!(
        properties[3], 0x27,
        "the largest packet is next, so no Maximum QoS: {properties:x?}"
    );
    direct.finish().await;
}

#[tokio::test]
async fn an_oversize_message_is_skipped_kept_in_part_and_acknowledged() {
    let mut small = settings();
    small.packet_max_bytes = PACKET_BYTES_MAX;
    for protocol in [4, 5] {
        let mut direct = Direct::start(&small).await;
        let mut device = Raw::connect(direct.port, protocol, "d").await;
        for (topic, n) in [
            ("sensors/S/temp", 20_001),
            ("sensors/S/temp", 3_000_000),
            ("elsewhere", 100_000),
        ] {
            let payload: String = (0..n).map(|i| char::from(b'a' + (i % 26) as u8)).collect();
            for (qos, answer) in [(0, None), (1, Some(0x40)), (2, Some(0x50))] {
                device
                    .send(&publish(protocol, topic, &payload, qos, 6))
                    .await;
                let ingest_batch = direct.ingest_batch().await;
                let dead_letter = only_dead_letter(&ingest_batch);
                assert_eq!(
                    (dead_letter.topic.as_str(), dead_letter.reason.as_str()),
                    (topic, "payload_too_large")
                );
                assert_eq!(dead_letter.payload, &payload.as_bytes()[..16 * 1024]);
                let kept = format!("; the first 16384 of {n} bytes are kept");
                assert!(
                    dead_letter.detail.ends_with(&kept),
                    "{}",
                    dead_letter.detail
                );
                assert!(
                    dead_letter.detail.contains("packet_max_bytes = 20000"),
                    "{}",
                    dead_letter.detail
                );
                assert!(
                    !dead_letter.is_complete(),
                    "a truncated payload is marked as such"
                );
                ingest_batch.into_parts().2.delivered();
                if let Some(answer) = answer {
                    assert_eq!(device.answer().await, Some((answer, vec![0, 6])));
                }
                if qos == 2 {
                    device.send(&packet(0x62, &[0, 6])).await;
                    assert_eq!(device.answer().await, Some((0x70, vec![0, 6])));
                }
                still_serves(&mut direct, &mut device, protocol).await;
            }
        }
        direct.finish().await;
    }
}

#[tokio::test]
async fn an_oversize_message_of_mqtt_5_has_its_properties_skipped() {
    let mut small = settings();
    small.packet_max_bytes = PACKET_BYTES_MAX;
    let mut direct = Direct::start(&small).await;
    let mut device = Raw::connect(direct.port, 5, "d").await;
    let properties = [0x26, 0, 0, 0, 0].repeat(30_000);
    device
        .send(&publish_with("sensors/S/temp", &properties, b"21.5", 1, 6))
        .await;
    let ingest_batch = direct.ingest_batch().await;
    let dead_letter = only_dead_letter(&ingest_batch);
    assert_eq!(
        (dead_letter.reason.as_str(), dead_letter.payload.as_slice()),
        ("payload_too_large", &b"21.5"[..])
    );
    ingest_batch.into_parts().2.delivered();
    assert_eq!(device.answer().await, Some((0x40, vec![0, 6])));
    still_serves(&mut direct, &mut device, 5).await;
    direct.finish().await;
}

#[tokio::test]
async fn an_oversize_packet_of_another_kind_ends_the_connection() {
    let mut small = settings();
    small.packet_max_bytes = PACKET_BYTES_MAX;
    let direct = Direct::start(&small).await;
    for protocol in [4, 5] {
        let mut device = Raw::connect(direct.port, protocol, "d").await;
        // SUBSCRIBE; the fixed header is enough.
        device.send(&packet(0x82, &[0; 30_000])[..8]).await;
        if protocol == 5 {
            let (first, body) = device.answer().await.unwrap();
            let (code, why) = disconnect_reason(&body);
            assert_eq!((first, code), (0xe0, 0x95));
            assert!(why.contains("20000"), "{why}");
        }
        assert_eq!(device.answer().await, None);
    }
    direct.finish().await;
}

#[tokio::test]
async fn mosquitto_pub_sends_qos_2_with_mqtt_5_and_a_file_that_is_too_large_with_3() {
    let mut small = settings();
    small.packet_max_bytes = PACKET_BYTES_MAX;
    let mut direct = Direct::start(&small).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), vec![b'7'; 1 << 20]).unwrap();
    let path = file.path().to_str().unwrap().to_owned();
    for arguments in [
        vec!["-V", "mqttv5", "-q", "2", "-m", "1"],
        vec!["-V", "mqttv311", "-q", "2", "-f", &path],
    ] {
        let mut command = Command::new("mosquitto_pub");
        command
            .args(["-p", &direct.port.to_string(), "-t", "sensors/S/temp"])
            .args(&arguments);
        let tool =
            tokio::task::spawn_blocking(move || command.output().expect("mosquitto-clients"));
        let ingest_batch = direct.ingest_batch().await;
        assert_eq!(
            (
                ingest_batch.batch.len() + ingest_batch.dead.len(),
                ingest_batch.dead.len()
            ),
            (1, usize::from(arguments[4] == "-f"))
        );
        ingest_batch.into_parts().2.delivered();
        let done = tool.await.unwrap();
        assert!(
            done.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&done.stderr)
        );
    }
    direct.finish().await;
}

/// A device that sends more than the window is not read until there is room. That also goes for
/// MQTT 5: clients such as paho send their whole backlog when they connect, whatever the receive
/// maximum is.
#[tokio::test]
async fn more_than_the_window_waits() {
    let mut small = settings();
    small.window = 10;
    for topic in ["sensors/S/temp", "elsewhere"] {
        for (version, qos) in [(4, 1), (4, 2), (5, 1), (5, 2)] {
            let mut direct = Direct::start(&small).await;
            direct.admission_control.full(true);
            let mut device = Raw::connect(direct.port, version, "d").await;
            let more: Vec<u8> = (1..=1000)
                .flat_map(|id| publish(version, topic, "1", qos, id))
                .collect();
            device.send(&more).await;
            silent(&mut device).await;
            direct.admission_control.full(false);
            direct.deliver(1000).await;
            for id in 1..=1000u16 {
                let first = if qos == 1 { 0x40 } else { 0x50 };
                assert_eq!(
                    device.answer().await,
                    Some((first, id.to_be_bytes().to_vec())),
                    "{topic}, version {version}"
                );
            }
            direct.finish().await;
        }
    }
}

/// What a device has sent before a mistake is acknowledged before it is disconnected: otherwise it
/// would send the same again on each connection.
#[tokio::test]
async fn accepted_messages_are_acknowledged_before_a_protocol_error_ends_the_connection() {
    let mut direct = Direct::start(&settings()).await;
    let mut device = Raw::connect(direct.port, 5, "d").await;
    let mut bytes: Vec<u8> = (1..=3)
        .flat_map(|id| publish(5, "sensors/S/temp", "1", 1, id))
        .collect();
    // A PINGREQ with a payload.
    bytes.extend([0xc0, 1, 0]);
    device.send(&bytes).await;
    direct.deliver(3).await;
    for id in 1..=3 {
        assert_eq!(device.answer().await, Some((0x40, vec![0, id])));
    }
    let (first, body) = device.answer().await.unwrap();
    assert_eq!((first, disconnect_reason(&body).0), (0xe0, 0x81));
    direct.finish().await;
}

/// A device that does not read its answers does not delay the end of the service.
#[tokio::test]
async fn the_service_stops_although_a_device_does_not_read() {
    let mut slow = settings();
    slow.write_timeout = Duration::from_secs(600);
    let direct = Direct::start(&slow).await;
    let mut device = Raw::connect(direct.port, 4, "d").await;
    let pings = [0xc0, 0].repeat(16 << 20);
    let sent = tokio::time::timeout(Duration::from_secs(2), device.send(&pings)).await;
    assert!(sent.is_err(), "the answers have room");
    direct.finish().await;
}

#[tokio::test]
async fn the_reason_of_a_disconnect_is_sent_as_text_if_the_device_accepts_it() {
    let direct = Direct::start(&settings()).await;
    // Request Problem Information 0; a Maximum Packet Size too small for the Reason String;
    // neither.
    for (properties, has_words) in [
        (&[0x17, 0][..], false),
        (&[0x27, 0, 0, 0, 20], false),
        (&[0x17, 1], true),
    ] {
        let mut device = Raw::open(direct.port).await;
        device
            .send(&connect_with(5, "d", 60, None, properties))
            .await;
        assert_eq!(device.answer().await.unwrap().0, 0x20);
        // A topic alias, which the server did not offer.
        device
            .send(&packet(0x30, &[0, 0, 3, 0x23, 0, 1, b'1']))
            .await;
        let (first, body) = device.answer().await.unwrap();
        let (code, why) = disconnect_reason(&body);
        assert_eq!(
            (first, code, !why.is_empty()),
            (0xe0, 0x94, has_words),
            "{why}"
        );
        assert_eq!(device.answer().await, None);
    }
    direct.finish().await;
}

#[tokio::test]
async fn a_device_gets_no_packet_that_is_larger_than_it_accepts() {
    let direct = Direct::start(&settings()).await;
    // The CONNACK of a refusal has 5 bytes, that of an accepted device more than 10.
    for (bytes_max, answer) in [(10, Some((0x20, vec![0, 0x83, 0]))), (4, None)] {
        let mut device = Raw::open(direct.port).await;
        let properties = [0x27, 0, 0, 0, bytes_max];
        device
            .send(&connect_with(5, "d", 60, None, &properties))
            .await;
        assert_eq!(device.answer().await, answer);
        if answer.is_some() {
            assert_eq!(device.answer().await, None);
        }
    }
    // SUBSCRIBE and UNSUBSCRIBE; their answers have a byte for each filter.
    let filters = |filter: &[u8]| [&[0, 1, 0][..], &filter.repeat(50)].concat();
    for bytes in [
        packet(0x82, &filters(b"\x00\x01a\x00")),
        packet(0xa2, &filters(b"\x00\x01a")),
    ] {
        let mut device = Raw::open(direct.port).await;
        device
            .send(&connect_with(5, "d", 60, None, &[0x27, 0, 0, 0, 40]))
            .await;
        assert_eq!(device.answer().await.unwrap().0, 0x20);
        device.send(&bytes).await;
        let (first, body) = device.answer().await.unwrap();
        assert_eq!(
            (first, disconnect_reason(&body)),
            (0xe0, (0x95, String::new()))
        );
        assert_eq!(device.answer().await, None);
    }
    direct.finish().await;
}

#[tokio::test]
async fn what_mqtt_5_forbids_ends_the_connection_with_its_reason() {
    let direct = Direct::start(&settings()).await;
    let response_topic =
        |topic: &str| [&[0x08, 0, topic.len() as u8][..], topic.as_bytes()].concat();
    for (bytes, reason) in [
        // Content Type twice (§3.3.2.3.9), a wildcard (MQTT-3.3.2-14), a PINGREQ with a payload
        // (§3.12).
        (
            publish_with("sensors/S/temp", b"\x03\x00\x01t\x03\x00\x01t", b"1", 1, 1),
            0x82,
        ),
        (
            publish_with("sensors/S/temp", &response_topic("r/#"), b"1", 1, 1),
            0x82,
        ),
        (packet(0xc0, b"x"), 0x81),
    ] {
        let mut device = Raw::connect(direct.port, 5, "d").await;
        device.send(&bytes).await;
        let (first, body) = device.answer().await.expect("DISCONNECT");
        assert_eq!(
            (first, disconnect_reason(&body).0),
            (0xe0, reason),
            "{bytes:x?}"
        );
        assert_eq!(device.answer().await, None);
    }
    // MQTT 3.1.1 has no reason to give.
    for first in [0xc0, 0xe0] {
        let mut device = Raw::connect(direct.port, 4, "d").await;
        device.send(&packet(first, b"x")).await;
        assert_eq!(device.answer().await, None, "{first:x}");
    }
    // Receive Maximum twice (§3.1.2.11.3).
    let mut device = Raw::open(direct.port).await;
    device
        .send(&connect_with(5, "d", 60, None, b"\x21\x00\x09\x21\x00\x09"))
        .await;
    let (first, body) = device.answer().await.expect("CONNACK");
    assert_eq!((first, &body[..2]), (0x20, &[0, 0x82][..]));
    assert_eq!(device.answer().await, None);
    direct.finish().await;
}
