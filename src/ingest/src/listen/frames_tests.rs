//! Packets split anywhere, of any size: the same packets are parsed, and little stays in memory.

#![allow(clippy::unwrap_used, reason = "a test")]

use proptest::prelude::*;

use super::*;

fn limits(packet_bytes_max: usize) -> Limits {
    Limits {
        packet_bytes_max,
        topic_bytes_max: 64,
        user_properties: Arc::from(["site".to_owned(), "rack".to_owned()]),
    }
}

/// The bytes of a packet: fixed head and rest.
fn packet(first: u8, rest: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    let mut n = rest.len();
    loop {
        let low = (n % 128) as u8;
        n /= 128;
        bytes.push(if n > 0 { low | 0x80 } else { low });
        if n == 0 {
            break;
        }
    }
    bytes.extend_from_slice(rest);
    bytes
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u16).to_be_bytes(), text.as_bytes()].concat()
}

fn publish(
    version: Version,
    qos: u8,
    topic: &str,
    properties: &[(&str, &str)],
    payload: &[u8],
) -> Vec<u8> {
    let mut rest = text(topic);
    if qos > 0 {
        rest.extend([0, 7]);
    }
    if version == Version::V5 {
        let properties: Vec<u8> = properties
            .iter()
            .flat_map(|(k, v)| [vec![0x26], text(k), text(v)].concat())
            .collect();
        rest.extend(&packet(0, &properties)[1..]);
    }
    rest.extend_from_slice(payload);
    packet(0x30 | qos << 1, &rest)
}

/// All packets parsed from these pieces, and the error at their end.
fn read(
    version: Version,
    limits: Limits,
    pieces: &[&[u8]],
) -> (Vec<Packet>, Option<ProtocolError>) {
    let mut frames = Frames::new(version, limits.clone());
    let mut buf = BytesMut::new();
    let mut packets = vec![];
    for piece in pieces {
        buf.extend_from_slice(piece);
        loop {
            match frames.next(&mut buf) {
                Ok(Next::More) => break,
                Ok(Next::Packet(packet)) => packets.push(packet),
                Ok(Next::Large(bytes)) => {
                    assert!(bytes > SMALL_BYTES && bytes <= limits.packet_bytes_max);
                    frames.gather(bytes);
                }
                Ok(Next::Oversize(bytes)) => {
                    assert!(bytes > limits.packet_bytes_max);
                    match frames.skip(&mut buf, KEPT_BYTES) {
                        Ok(()) => assert_eq!(frames.missing(&buf), 0),
                        Err(fault) => return (packets, Some(fault)),
                    }
                }
                Err(fault) => return (packets, Some(fault)),
            }
        }
        match &frames.state {
            State::Skipping(_) => assert!(buf.len() < 2, "skipped bytes are not kept"),
            State::Between => assert!(buf.len() < 5, "only a part of a fixed head is kept"),
            State::Gathering(bytes) => assert_eq!(frames.missing(&buf), bytes - buf.len()),
        }
    }
    (packets, None)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    #[test]
    fn cuts_change_nothing(
        is_v5 in any::<bool>(),
        messages in prop::collection::vec((0..3u8, 1..80usize, 0..200usize, 0..9u8), 1..8),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let version = if is_v5 { Version::V5 } else { Version::V4 };
        let mut stream = vec![];
        for (qos, topic, payload, kind) in &messages {
            // Small, large and oversize ones.
            let n = match kind { 0..=5 => *payload, 6 | 7 => SMALL_BYTES + payload * 10, _ => 9_000 + payload * 100 };
            stream.extend(publish(version, *qos, &"t".repeat(*topic), &[("site", "north"), ("", "")], &vec![b'x'; n]));
            stream.extend([0xc0, 0]);
        }
        let mut cuts: Vec<usize> = cuts.iter().map(|at| at.index(stream.len())).chain([0, stream.len()]).collect();
        cuts.sort_unstable();
        let pieces: Vec<&[u8]> = cuts.windows(2).map(|w| &stream[w[0]..w[1]]).collect();
        let (whole, fault) = read(version, limits(8_000), &[&stream]);
        prop_assert_eq!(fault, None);
        prop_assert_eq!(whole.len(), 2 * messages.len());
        let oversize = |p: &&Packet| matches!(p, Packet::Publish(Publish { oversize: Some(_), .. }));
        prop_assert_eq!(whole.iter().filter(oversize).count(), messages.iter().filter(|(.., kind)| *kind == 8).count());
        let every_byte: Vec<&[u8]> = stream.chunks(1).collect();
        prop_assert_eq!(&read(version, limits(8_000), &pieces).0, &whole);
        prop_assert_eq!(&read(version, limits(8_000), &every_byte).0, &whole);
    }
}

#[test]
fn what_a_message_holds_is_counted_and_no_more_than_it_needs() {
    // Fifty thousand empty properties: 5 bytes each as sent, 48 in memory.
    let empty = vec![("", ""); 50_000];
    let many: Vec<(&str, &str)> = [
        ("site", ""),
        ("site", "north"),
        ("site", "south"),
        ("other", "x"),
    ]
    .repeat(1000);
    for (properties, payload, kept) in [
        (&empty[..], 2, 0),
        (&many, 2, 1),
        (&many, 200_000, 1),
        (&[("rack", "r"), ("site", "s")], 2, 2),
    ] {
        let bytes = publish(Version::V5, 1, "a/b", properties, &vec![b'x'; payload]);
        let (packets, fault) = read(Version::V5, limits(1 << 20), &[&bytes]);
        assert_eq!(fault, None);
        let Packet::Publish(publish) = &packets[0] else {
            panic!("{packets:?}")
        };
        assert_eq!(
            (publish.properties.len(), publish.payload.len()),
            (kept, payload)
        );
        assert_eq!(
            publish.properties.capacity(),
            kept,
            "no capacity is left for the dropped ones"
        );
        let own = publish.topic.len() + payload + kept * (size_of::<(String, String)>() + 2);
        assert!(
            publish.memory_bytes() >= own,
            "{} of {own}",
            publish.memory_bytes()
        );
        // A large payload holds the packet that it arrived in, a small one only its own bytes.
        let most = if payload > SMALL_BYTES {
            bytes.len() + 200
        } else {
            own + 20
        };
        assert!(
            publish.memory_bytes() <= most,
            "{} of {most}",
            publish.memory_bytes()
        );
        assert_eq!(publish.topic.is_unique(), payload <= SMALL_BYTES);
    }
    let (packets, _) = read(
        Version::V5,
        limits(1 << 20),
        &[&publish(Version::V5, 1, "a", &many, b"")],
    );
    let Packet::Publish(publish) = &packets[0] else {
        panic!("{packets:?}")
    };
    assert_eq!(
        publish.properties,
        [("site".to_owned(), "north".to_owned())],
        "the first that is not empty"
    );
}

#[test]
fn a_large_packet_leaves_no_large_buffer_behind() {
    let mut stream = publish(Version::V4, 1, "a", &[], &vec![b'x'; 200_000]);
    let large = stream.len();
    stream.extend([0xc0, 0]);
    let mut frames = Frames::new(Version::V4, limits(1 << 20));
    let mut buf = BytesMut::from(&stream[..]);
    assert_eq!(frames.next(&mut buf), Ok(Next::Large(large)));
    assert_eq!(
        frames.next(&mut buf),
        Ok(Next::Large(large)),
        "not before room is reserved"
    );
    frames.gather(large);
    assert!(matches!(
        frames.next(&mut buf),
        Ok(Next::Packet(Packet::Publish(_)))
    ));
    // The packet is dropped, so its memory would be kept only if the buffer still held a part of
    // it.
    buf.reserve(SMALL_BYTES);
    assert!(buf.capacity() < 3 * SMALL_BYTES, "{}", buf.capacity());
    assert_eq!(frames.next(&mut buf), Ok(Next::Packet(Packet::Ping)));
}

#[test]
fn a_message_that_is_too_large_is_known_by_its_first_bytes() {
    for version in [Version::V4, Version::V5] {
        let payload: Vec<u8> = (0..300_000).map(|i| i as u8).collect();
        let topic = "ü".repeat(50);
        let bytes = publish(version, 2, &topic, &[("site", "north")], &payload);
        let (packets, fault) = read(version, limits(8_000), &[&bytes]);
        assert_eq!((packets.len(), fault), (1, None));
        let Packet::Publish(publish) = &packets[0] else {
            panic!("{packets:?}")
        };
        assert_eq!((publish.qos, publish.id, publish.has_alias), (2, 7, false));
        assert_eq!(&publish.payload[..], &payload[..KEPT_BYTES]);
        // 64 bytes may be kept, and no partial character.
        assert_eq!(
            std::str::from_utf8(&publish.topic),
            Ok("ü".repeat(32).as_str())
        );
        let oversize = publish.oversize.unwrap();
        assert_eq!(
            (
                publish.packet_bytes,
                oversize.topic_bytes,
                oversize.payload_bytes
            ),
            (bytes.len(), 100, payload.len())
        );
        assert_eq!(publish.memory_bytes(), KEPT_BYTES + 64);
    }
}

#[test]
fn lengths_that_lie_are_faults() {
    let long = |rest: &[u8]| [rest, &[b'x'; 9_000][..rest.len().max(9_000) - rest.len()]].concat();
    for (version, first, rest, reason) in [
        // Only PUBLISH is skipped.
        (Version::V4, 0x82, long(&[]), Reason::PacketTooLarge),
        (Version::V5, 0x10, long(&[]), Reason::PacketTooLarge),
        // No QoS 3, and no dup flag with QoS 0.
        (Version::V4, 0x36, long(&text("a")), Reason::MalformedPacket),
        (Version::V4, 0x38, long(&text("a")), Reason::MalformedPacket),
        // A topic longer than the packet, an empty one, one with a wildcard, one with NUL, and
        // none.
        (
            Version::V4,
            0x30,
            long(&[0xff, 0xff]),
            Reason::MalformedPacket,
        ),
        (Version::V4, 0x30, long(&text("")), Reason::MalformedPacket),
        (
            Version::V5,
            0x30,
            long(&text("")),
            Reason::TopicAliasInvalid,
        ),
        (
            Version::V4,
            0x30,
            long(&text("a/#")),
            Reason::MalformedPacket,
        ),
        (
            Version::V4,
            0x30,
            long(&text("a\0")),
            Reason::MalformedPacket,
        ),
        (
            Version::V4,
            0x30,
            long(&[0, 2, 0xff, 0xff]),
            Reason::MalformedPacket,
        ),
        // A packet id of 0.
        (
            Version::V4,
            0x32,
            long(&[&text("a")[..], &[0, 0]].concat()),
            Reason::MalformedPacket,
        ),
        // Properties longer than the packet, and a length of five bytes.
        (
            Version::V5,
            0x30,
            long(&[&text("a")[..], &[0xff, 0xff, 0x7f]].concat()),
            Reason::MalformedPacket,
        ),
        (
            Version::V5,
            0x30,
            long(&[&text("a")[..], &[0xff; 5]].concat()),
            Reason::MalformedPacket,
        ),
    ] {
        let bytes = packet(first, &rest);
        assert_eq!(
            read(version, limits(8_000), &[&bytes]).1,
            Some(ProtocolError(reason)),
            "{:x?}",
            &bytes[..12]
        );
    }
    // A property that extends beyond the properties, into the payload.
    let overrun = packet(
        0x30,
        &[&text("a")[..], &[5, 0x26, 0, 0, 0, 2], b"21.5"].concat(),
    );
    assert_eq!(
        read(Version::V5, limits(8_000), &[&overrun]).1,
        Some(ProtocolError(Reason::MalformedPacket))
    );
    assert_eq!(
        read(
            Version::V4,
            limits(8_000),
            &[&[0x30, 0xff, 0xff, 0xff, 0xff]]
        )
        .1,
        Some(ProtocolError(Reason::MalformedPacket))
    );
}

/// A complete MQTT 5 packet that is refused, and why.
fn fault_v5(bytes: &[u8]) -> Option<Reason> {
    read(Version::V5, limits(8_000), &[bytes])
        .1
        .map(|ProtocolError(reason)| reason)
}

#[test]
fn a_property_that_may_occur_once_occurs_once() {
    // MQTT 5 §3.3.2.3: all properties of PUBLISH that a device may send, each with a value.
    let once: [&[u8]; 5] = [
        &[0x01, 1],
        &[0x02, 0, 0, 0, 60],
        &[0x03, 0, 1, b't'],
        &[0x08, 0, 3, b'a', b'/', b'b'],
        &[0x09, 0, 2, 0xff, 0],
    ];
    let publish = |properties: &[u8]| {
        let length = &packet(0, properties)[1..];
        packet(0x30, &[&text("a")[..], length, b"21.5"].concat())
    };
    let user = [&[0x26][..], &text("k"), &text("v")].concat();
    assert_eq!(
        fault_v5(&publish(&[once.concat(), user.repeat(3)].concat())),
        None,
        "user properties may be repeated"
    );
    for property in once {
        assert_eq!(
            fault_v5(&publish(&property.repeat(2))),
            Some(Reason::ProtocolError),
            "{property:x?}"
        );
        let apart = [property, &user, property].concat();
        assert_eq!(
            fault_v5(&publish(&apart)),
            Some(Reason::ProtocolError),
            "{property:x?}"
        );
    }
    // A topic alias is not offered either way (0x94 for one).
    assert_eq!(
        fault_v5(&publish(&[0x23, 0, 1, 0x23, 0, 1])),
        Some(Reason::ProtocolError)
    );
    // Only a server sends it (MQTT-3.3.4-6).
    assert_eq!(fault_v5(&publish(&[0x0b, 1])), Some(Reason::ProtocolError));

    let reason_string = [&[0x1f][..], &text("why")].concat();
    let with = |properties: &[u8]| packet(0, properties)[1..].to_vec();
    for (first, before, property, after) in [
        // PUBREL: packet id, reason code (§3.6.2.2); SUBSCRIBE (§3.8.2.1); DISCONNECT (§3.14.2.2).
        (0x62, &[0, 1, 0][..], &reason_string[..], &[][..]),
        (0x82, &[0, 1], &[0x0b, 1], b"\x00\x01a\x00"),
        (0xe0, &[0], &reason_string, b""),
        (0xe0, &[0], &[0x11, 0, 0, 0, 0], b""),
    ] {
        let good = packet(first, &[before, &with(property), after].concat());
        assert_eq!(fault_v5(&good), None, "{good:x?}");
        let bad = packet(first, &[before, &with(&property.repeat(2)), after].concat());
        assert_eq!(fault_v5(&bad), Some(Reason::ProtocolError), "{bad:x?}");
    }
}

#[test]
fn a_response_topic_has_no_wildcard() {
    // MQTT-3.3.2-14.
    for (topic, fault) in [
        ("a/b", None),
        ("a/+", Some(Reason::ProtocolError)),
        ("#", Some(Reason::ProtocolError)),
    ] {
        let property = [&[0x08][..], &text(topic)].concat();
        let bytes = packet(
            0x30,
            &[&text("a")[..], &packet(0, &property)[1..], b"1"].concat(),
        );
        assert_eq!(fault_v5(&bytes), fault, "{topic}");
    }
}

#[test]
fn packets_that_are_only_a_head_have_nothing_behind_it() {
    // PINGREQ (§3.12), PINGRESP (§3.13); DISCONNECT of 3.1.1 (§3.14).
    for (version, first) in [
        (Version::V4, 0xc0),
        (Version::V5, 0xc0),
        (Version::V4, 0xd0),
        (Version::V5, 0xd0),
        (Version::V4, 0xe0),
    ] {
        for rest in [&[0][..], b"abc", &[0; 5000]] {
            let (packets, fault) = read(version, limits(8_000), &[&packet(first, rest)]);
            assert_eq!(
                (packets.len(), fault),
                (0, Some(ProtocolError(Reason::MalformedPacket))),
                "{first:x}"
            );
        }
        assert_eq!(read(version, limits(8_000), &[&[first, 0]]).1, None);
    }
}
