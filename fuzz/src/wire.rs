//! What must hold for any bytes that a device sends to `listen.mqtt`, however they are cut. Shared
//! by the fuzzer and by `tests/pure/fuzz_corpus.rs`.
//!
//! An input is a byte that chooses the protocol (its lowest bit) and the pieces that the stream
//! comes in (the others), and the stream of bytes after CONNECT.

use std::sync::Arc;

use bytes::BytesMut;
use rumqttc_v5::mqttbytes::v5::DisconnectReasonCode as Reason;

use ingest::listen::codec::{Packet, ProtocolError, Publish, Version};
use ingest::listen::frames::{Frames, KEPT_BYTES, Limits, Next};

/// The name of this in `HOURBUCKET_FUZZ` and of its corpus.
pub(crate) const NAME: &str = "mqtt-listen";
const TOPIC_BYTES_MAX: usize = 20;
const WANTED: &str = "site";
/// A limit that no input reaches (but by a length that lies), and one that many do.
const WIDE: usize = 1 << 20;
const NARROW: usize = 24;

/// Looks at what comes out of an input.
///
/// # Panics
/// Something does not hold.
pub(crate) fn check(input: &[u8]) {
    let Some((&first, stream)) = input.split_first() else {
        return;
    };
    let version = if first & 1 == 0 {
        Version::V4
    } else {
        Version::V5
    };
    let piece = usize::from(first >> 1).max(1);
    for packet_bytes_max in [WIDE, NARROW] {
        let whole = read(version, packet_bytes_max, stream, stream.len().max(1));
        assert_eq!(
            read(version, packet_bytes_max, stream, piece),
            whole,
            "in pieces of {piece}"
        );
    }
    let wide = read(version, WIDE, stream, 64);
    let narrow = read(version, NARROW, stream, 64);
    same(&wide, &narrow);
}

/// Packets, and the fault that ended them.
type Read = (Vec<Packet>, Option<ProtocolError>);

fn read(version: Version, packet_bytes_max: usize, stream: &[u8], piece: usize) -> Read {
    let limits = Limits {
        packet_bytes_max,
        topic_bytes_max: TOPIC_BYTES_MAX,
        user_properties: Arc::from([WANTED.to_owned()]),
    };
    let mut frames = Frames::new(version, limits);
    let mut buf = BytesMut::new();
    let mut packets = vec![];
    for piece in stream.chunks(piece) {
        buf.extend_from_slice(piece);
        loop {
            let before = buf.len();
            let taken = match frames.next(&mut buf) {
                Ok(Next::More) => break,
                Ok(Next::Large(bytes)) => {
                    assert!(bytes <= packet_bytes_max && buf.len() == before);
                    frames.gather(bytes);
                    continue;
                }
                Ok(Next::Oversize(bytes)) => {
                    assert!(bytes > packet_bytes_max && buf.len() == before);
                    frames.skip(&mut buf, KEPT_BYTES).map(|()| None)
                }
                Ok(Next::Packet(packet)) => Ok(Some(packet)),
                Err(fault) => Err(fault),
            };
            match taken {
                Ok(packet) => {
                    packets.extend(packet.inspect(|packet| good(packet, stream.len())));
                    assert!(buf.len() < before, "it goes on");
                }
                Err(fault) => return (packets, Some(fault)),
            }
        }
        assert!(
            buf.len() <= packet_bytes_max.max(5),
            "{} bytes are kept",
            buf.len()
        );
    }
    (packets, None)
}

fn good(packet: &Packet, stream_bytes: usize) {
    let Packet::Publish(publish) = packet else {
        return;
    };
    let Publish {
        topic,
        payload,
        qos,
        id,
        properties,
        ..
    } = publish;
    assert!(*qos <= 2 && (*qos == 0) == (*id == 0), "{publish:?}");
    let topic = std::str::from_utf8(topic).expect("a topic is UTF-8");
    assert!(!topic.contains(['+', '#', '\0']), "{publish:?}");
    assert!(
        properties.len() <= 1 && properties.iter().all(|(k, v)| k == WANTED && !v.is_empty()),
        "{publish:?}"
    );
    assert!(
        publish.memory_bytes() >= topic.len() + payload.len()
            && publish.memory_bytes() <= stream_bytes + 100
    );
    if let Some(oversize) = publish.oversize {
        assert!(
            !topic.is_empty() && topic.len() <= oversize.topic_bytes.min(TOPIC_BYTES_MAX),
            "{publish:?}"
        );
        assert_eq!(
            payload.len(),
            oversize.payload_bytes.min(KEPT_BYTES),
            "{publish:?}"
        );
        assert!(
            oversize.topic_bytes + oversize.payload_bytes < publish.packet_bytes,
            "{publish:?}"
        );
    }
}

/// A message that is skipped is the message that it would have been, as far as it was kept.
fn same((wide, wide_fault): &Read, (narrow, narrow_fault): &Read) {
    for (at, (whole, part)) in wide.iter().zip(narrow).enumerate() {
        match (whole, part) {
            (Packet::Publish(whole), Packet::Publish(part)) => match part.oversize {
                None => assert_eq!(whole, part),
                Some(oversize) => {
                    assert_eq!((whole.qos, whole.id), (part.qos, part.id));
                    assert!(
                        whole.topic.starts_with(&part.topic)
                            && oversize.topic_bytes == whole.topic.len()
                    );
                    assert!(
                        whole.payload.starts_with(&part.payload)
                            && oversize.payload_bytes == whole.payload.len()
                    );
                }
            },
            (whole, part) => assert_eq!(whole, part, "packet {at}"),
        }
    }
    if narrow.len() < wide.len() {
        // It ends sooner only for what is too large, and for an alias in place of a topic.
        let is_alias =
            matches!(&wide[narrow.len()], Packet::Publish(publish) if publish.topic.is_empty());
        let expected = if is_alias {
            Reason::TopicAliasInvalid
        } else {
            Reason::PacketTooLarge
        };
        assert_eq!(*narrow_fault, Some(ProtocolError(expected)));
    }
    // Properties are not looked into while they are skipped, so only that can be a fault which was
    // not one before.
    if narrow.len() > wide.len() {
        assert!(
            wide_fault.is_some()
                || matches!(&narrow[wide.len()], Packet::Publish(p) if p.oversize.is_some())
        );
    }
}
