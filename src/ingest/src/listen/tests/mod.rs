//! Hostile streams while the next stage accepts nothing (the journal is full): the held memory
//! stays within its budgets, and the counted memory equals the held memory.

#![allow(clippy::unwrap_used, reason = "a test")]

mod served;

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use bytes::BytesMut;
use rumqttc_v5::mqttbytes::v5::DisconnectReasonCode as Reason;
use tokio::io::DuplexStream;
use tokio_util::sync::CancellationToken;

use super::authorization::Authorization;
use super::batcher::QUEUE_MAX;
use super::close_reason::CloseReason;
use super::codec::Version;
use super::connect::Client;
use super::connection::Connection;
use super::shared::{BYTES_MAX, LARGE_BYTES_MAX};
use super::*;
use config::{AckMode, Config, Retained, Subscription};
use journal::admission::{AdmissionControl, admission_channel};
use model::SystemClock;

fn settings(window: u16) -> ListenMqtt {
    let mut settings = Config::default().listen.mqtt;
    settings.window = window;
    settings.packet_max_bytes = 64 * 1024;
    settings.topics = vec![Subscription {
        filter: "s/+".into(),
        qos: 1,
        topic: "s/{sensor_id}".into(),
        format: "json".into(),
        ts_unit: None,
        zone: None,
        retained: Retained::Always,
        user_property_tags: vec!["site".into()],
    }];
    settings
}

fn shared(settings: &ListenMqtt) -> Arc<Shared> {
    let (admission, _) = admission_channel(1, 1, AdmissionControl::default());
    let deps = IngestDeps {
        decoding: Live::fixed(Config::default().decoding()),
        on_tls: Arc::new(|_| {}),
        ack: AckMode::Journal,
        grants: GrantDefaults::unlimited(),
        admission,
        commit_delay: Duration::from_millis(2),
        clock: Arc::new(SystemClock::new()),
        births_dir: None,
        sparkplug_host: None,
        stop: CancellationToken::new(),
        drained: CancellationToken::new(),
    };
    Arc::new(Shared::new(settings, deps, Live::fixed(None)))
}

/// A connection whose batcher accepts nothing.
fn connection(
    shared: &Arc<Shared>,
    version: Version,
    tx: &mpsc::Sender<Incoming>,
) -> Connection<DuplexStream> {
    let (near, _) = tokio::io::duplex(1);
    connection_of(0, near, shared, version, tx)
}

/// A connection of the sender with this number: without tokens, its address.
fn connection_of(
    sender: u32,
    stream: DuplexStream,
    shared: &Arc<Shared>,
    version: Version,
    tx: &mpsc::Sender<Incoming>,
) -> Connection<DuplexStream> {
    let anonymous = Authorization::new(Live::fixed(None), |_| Err(())).unwrap();
    authorized(anonymous, sender, stream, shared, version, tx)
}

fn authorized(
    authorization: Authorization,
    sender: u32,
    stream: DuplexStream,
    shared: &Arc<Shared>,
    version: Version,
    tx: &mpsc::Sender<Incoming>,
) -> Connection<DuplexStream> {
    let ip = IpAddr::from(Ipv4Addr::from_bits(sender));
    let client = Client {
        version,
        token: "t".into(),
        id: "d".into(),
        silence_max: Duration::from_secs(90),
        shown: "d".into(),
        peer: (ip, 1).into(),
        wants_reason_string: true,
        packet_bytes_max: usize::MAX,
    };
    Connection::new(
        stream,
        shared.clone(),
        client,
        authorization,
        tx.clone(),
        BytesMut::new(),
        BytesMut::new(),
    )
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u16).to_be_bytes(), text.as_bytes()].concat()
}

/// A PUBLISH with this number of empty user properties and one that is wanted.
fn publish(
    version: Version,
    topic: &str,
    qos: u8,
    id: u16,
    properties: usize,
    payload: usize,
) -> Vec<u8> {
    let mut rest = text(topic);
    if qos > 0 {
        rest.extend(id.to_be_bytes());
    }
    let length = |mut n: usize, out: &mut Vec<u8>| {
        while n > 127 {
            out.push((n % 128) as u8 | 0x80);
            n /= 128;
        }
        out.push(n as u8);
    };
    if version == Version::V5 {
        let mut all = [0x26, 0, 0, 0, 0].repeat(properties);
        all.extend([vec![0x26], text("site"), text("n")].concat());
        length(all.len(), &mut rest);
        rest.extend(all);
    }
    rest.extend(vec![b'x'; payload]);
    let mut bytes = vec![0x30 | qos << 1];
    length(rest.len(), &mut bytes);
    bytes.extend(rest);
    bytes
}

/// Sends until nothing more is accepted; returns how it ended and how many bytes were sent.
fn flood(
    connection: &mut Connection<DuplexStream>,
    mut bytes: impl FnMut(u16) -> Vec<u8>,
) -> (Option<CloseReason>, usize) {
    let mut sent = 0;
    for n in 0..400_000u32 {
        let bytes = bytes((n % 65_535) as u16 + 1);
        sent += bytes.len();
        if let Err(end) = connection.receive(&bytes) {
            return (Some(end), sent);
        }
        if !connection.reads() {
            return (None, sent);
        }
    }
    panic!("{sent} bytes were accepted without an end");
}

/// Memory of the messages in a batcher's queue; asserts that each holds as much of the budget.
fn held_bytes(incoming: &mut mpsc::Receiver<Incoming>) -> usize {
    let mut all = 0;
    while let Ok(Incoming {
        message, permits, ..
    }) = incoming.try_recv()
    {
        let texts: usize = message
            .properties
            .iter()
            .map(|(k, v)| k.capacity() + v.capacity())
            .sum();
        let properties = message.properties.capacity() * size_of::<(String, String)>() + texts;
        let bytes =
            message.topic.len() + message.payload.len() + properties + size_of::<Incoming>();
        assert!(
            permits.of_all.num_permits() >= bytes.min(BYTES_MAX),
            "{} for {bytes}",
            permits.of_all.num_permits()
        );
        assert!(
            message.payload.len() > 4096
                || message.payload.is_empty()
                || message.payload.is_unique()
        );
        all += bytes;
    }
    all
}

/// Topics that a rule wants and others, every QoS, few and many properties, small and large: one
/// connection.
#[test]
fn a_connection_takes_no_more_than_its_window_and_its_budget() {
    for version in [Version::V4, Version::V5] {
        for topic in ["s/a", "elsewhere"] {
            for qos in 0..=2 {
                for (properties, payload) in [
                    (0, 0),
                    (0, 3),
                    (100, 0),
                    (10_000, 2),
                    (0, 50_000),
                    (0, 70_000),
                ] {
                    let shared = shared(&settings(100));
                    let (tx, mut rx) = mpsc::channel(QUEUE_MAX);
                    let mut connection = connection(&shared, version, &tx);
                    let (end, sent) = flood(&mut connection, |id| {
                        publish(version, topic, qos, id, properties, payload)
                    });
                    let what = format!(
                        "{version:?} {topic} QoS {qos}, {properties} properties, {payload} bytes: \
                         {sent}"
                    );
                    assert_eq!(end, None, "{what}");
                    assert!(
                        connection.in_flight() <= 100,
                        "{what}: {} in flight",
                        connection.in_flight()
                    );
                    let counted = BYTES_MAX - shared.bytes.available_permits();
                    let held = held_bytes(&mut rx);
                    assert!(
                        held <= counted && counted <= BYTES_MAX,
                        "{what}: {held} held, {counted} counted"
                    );
                    if qos > 0 {
                        assert!(held < 100 * 60_000, "{what}: {held}");
                    }
                    drop(connection);
                    assert_eq!(
                        shared.bytes.available_permits(),
                        BYTES_MAX,
                        "{what}: all is returned"
                    );
                    assert_eq!(
                        shared.large.free(),
                        LARGE_BYTES_MAX,
                        "{what}: all is returned"
                    );
                }
            }
        }
    }
}

/// Many senders with large packets, complete ones and ones that never end: they share two budgets.
#[test]
fn all_connections_together_keep_to_the_budgets() {
    let shared = shared(&settings(100));
    let (tx, mut rx) = mpsc::channel(QUEUE_MAX);
    let mut connections: Vec<_> = (0..3000)
        .map(|sender| {
            let (near, _) = tokio::io::duplex(1);
            connection_of(sender, near, &shared, Version::V4, &tx)
        })
        .collect();
    for (i, connection) in connections.iter_mut().enumerate() {
        let whole = publish(Version::V4, "elsewhere", 1, 7, 0, 60_000);
        let bytes = if i % 2 == 0 {
            &whole[..]
        } else {
            &whole[..100]
        };
        assert_eq!(connection.receive(bytes), Ok(()));
    }
    let waiting = shared.bytes.available_permits();
    let gathering = shared.large.free();
    assert!(
        waiting < 100_000 && gathering < 100_000,
        "both are used up: {waiting}, {gathering} left"
    );
    // Of the connections whose packet never ends, only as many continue to read as have room for
    // it.
    let waiting = connections
        .iter()
        .skip(1)
        .step_by(2)
        .filter(|connection| !connection.reads())
        .count();
    assert!(waiting > 500, "{waiting} wait");
    // A connection without room holds no more than the kernel gave it in one read.
    let held: usize = connections
        .iter()
        .filter(|c| !c.reads())
        .map(Connection::buffered)
        .sum();
    assert!(
        connections.iter().filter(|c| !c.reads()).count() > 1000 && held <= 3000 * 60_100,
        "{held}"
    );
    // A small message passes, because it needs no room; and an oversize one is skipped.
    let mut small = connection(&shared, Version::V4, &tx);
    assert_eq!(
        small.receive(&publish(Version::V4, "s/a", 1, 7, 0, 10)),
        Ok(())
    );
    assert!(held_bytes(&mut rx) <= BYTES_MAX);
    drop((connections, small));
    assert_eq!(
        (shared.bytes.available_permits(), shared.large.free()),
        (BYTES_MAX, LARGE_BYTES_MAX)
    );
}

/// Connections of one sender with large packets that never end: they have half of the budget.
#[test]
fn one_sender_leaves_room_for_the_large_packets_of_others() {
    let shared = shared(&settings(100));
    let (tx, mut rx) = mpsc::channel(QUEUE_MAX);
    let large = publish(Version::V4, "s/a", 1, 7, 0, 60_000);
    let mut connections: Vec<_> = (0..1000)
        .map(|_| connection(&shared, Version::V4, &tx))
        .collect();
    for connection in &mut connections {
        assert_eq!(connection.receive(&large[..100]), Ok(()));
    }
    let reading = connections.iter().filter(|c| c.reads()).count();
    assert_eq!(reading, LARGE_BYTES_MAX / 2 / large.len());
    for sender in 1..=4 {
        let (near, _) = tokio::io::duplex(1);
        let mut other = connection_of(sender, near, &shared, Version::V4, &tx);
        assert_eq!(other.receive(&large), Ok(()));
        assert!(
            other.reads() && rx.try_recv().is_ok(),
            "sender {sender} waits"
        );
    }
    // Of a message that is skipped, nothing is kept beyond the half.
    let mut skipping = connection(&shared, Version::V4, &tx);
    let oversize = publish(Version::V4, "s/a", 1, 7, 0, 70_000);
    assert_eq!(skipping.receive(&oversize), Ok(()));
    assert!(rx.try_recv().unwrap().message.payload.is_empty());
    drop((connections, skipping));
    assert_eq!(shared.large.free(), LARGE_BYTES_MAX);
}

/// How a connection ends, if it does, after these bytes.
fn end_after(version: Version, bytes: &[u8]) -> Option<CloseReason> {
    let (tx, _rx) = mpsc::channel(QUEUE_MAX);
    connection(&shared(&settings(100)), version, &tx)
        .receive(bytes)
        .err()
}

#[test]
fn a_repeated_acknowledgement_is_ignored_and_a_malformed_packet_ends_the_connection() {
    let malformed = Some(CloseReason::ProtocolError(Reason::MalformedPacket));
    for version in [Version::V4, Version::V5] {
        for kind in [0x40, 0x50, 0x70] {
            assert_eq!(end_after(version, &[kind, 2, 0, 7]), None, "{kind:x}");
            assert_eq!(
                end_after(version, &[kind, 2, 0, 0]),
                malformed,
                "no packet id"
            );
            assert_eq!(end_after(version, &[kind, 1, 0]), malformed);
            assert_eq!(end_after(version, &[kind | 1, 2, 0, 7]), malformed);
        }
        // PUBREL among them.
        for kind in [0x40, 0x50, 0x62, 0x70] {
            let trailing = [kind, 5, 0, 7, 0, 0, 0];
            assert_eq!(end_after(version, &trailing), malformed, "{kind:x}");
        }
        let filter: &[&[u8]] = match version {
            Version::V4 => &[&[0x82, 5, 0, 1, 0, 0, 0], &[0xa2, 4, 0, 1, 0, 0]],
            Version::V5 => &[&[0x82, 6, 0, 1, 0, 0, 0, 0], &[0xa2, 5, 0, 1, 0, 0, 0]],
        };
        for bytes in filter {
            assert_eq!(end_after(version, bytes), malformed, "an empty filter");
        }
        let none = Some(CloseReason::ProtocolError(Reason::ProtocolError));
        for kind in [0x82, 0xa2] {
            let bytes: &[u8] = match version {
                Version::V4 => &[kind, 2, 0, 1],
                Version::V5 => &[kind, 3, 0, 1, 0],
            };
            assert_eq!(end_after(version, bytes), none, "no filter");
        }
    }
}

#[test]
fn the_documentation_has_the_fixed_limits() {
    let page = include_str!("../../../../../docs/configuration.md");
    let small = super::frames::SMALL_BYTES;
    let kept = super::frames::KEPT_BYTES;
    for (limit, bytes) in [
        (
            "CONNECT over MQTT",
            super::connect::CONNECT_BYTES_MAX as usize,
        ),
        (
            "packet over MQTT that is taken without a share of the room",
            small,
        ),
        ("message over MQTT above `packet_max_bytes`", kept),
        (
            "replies over MQTT that are sent together",
            super::connection::OUT_BYTES_MAX,
        ),
    ] {
        let row = format!("| {limit} | {} KiB |", bytes / 1024);
        assert!(bytes.is_multiple_of(1024) && page.contains(&row), "{row}");
    }
    let client_id = format!(
        "| client id over MQTT | {} bytes |",
        super::connect::CLIENT_ID_MAX_BYTES
    );
    assert!(page.contains(&client_id), "{client_id}");
    assert!(page.contains(&format!(
        "in the {} MiB of arriving packets",
        super::shared::LARGE_BYTES_MAX >> 20
    )));
}
