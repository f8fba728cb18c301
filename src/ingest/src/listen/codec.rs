//! The packets of MQTT 3.1.1 and 5 in common types, as far as a publishing device uses them.
//! rumqttc's codecs parse and write the bytes; this module and [`super::connection`] define what a
//! packet means.

use bytes::{Buf, Bytes, BytesMut};
use rumqttc_v4::mqttbytes as m4;
use rumqttc_v5::mqttbytes as m5;
use rumqttc_v5::mqttbytes::v5::DisconnectReasonCode as Reason;

/// The protocol of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// MQTT 3.1.1.
    V4,
    /// MQTT 5.
    V5,
}

/// A parsed PUBLISH.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publish {
    /// UTF-8. Empty if a topic alias stands for it (MQTT 5); the device is then disconnected.
    pub topic: Bytes,
    /// May be empty. Cut if the message was skipped.
    pub payload: Bytes,
    /// 0, 1 or 2.
    pub qos: u8,
    /// 0 with QoS 0.
    pub id: u16,
    pub(super) has_alias: bool,
    /// The user properties (MQTT 5) that a rule needs, each name once. None if the message was
    /// skipped.
    pub properties: Vec<(String, String)>,
    /// Size of the packet as it was sent.
    pub packet_bytes: usize,
    /// Bytes in memory that topic and payload hold: their own, or those of the packet whose parts
    /// they are.
    pub(super) held_bytes: usize,
    /// Set if the message was skipped; topic and payload are then the kept parts.
    pub oversize: Option<Oversize>,
}

/// The original sizes of a skipped message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Oversize {
    /// The whole topic.
    pub topic_bytes: usize,
    /// The whole payload.
    pub payload_bytes: usize,
}

impl Publish {
    /// Memory in addition to the struct itself.
    pub fn memory_bytes(&self) -> usize {
        let texts: usize = self
            .properties
            .iter()
            .map(|(name, value)| name.capacity() + value.capacity())
            .sum();
        self.held_bytes + texts + self.properties.capacity() * size_of::<(String, String)>()
    }
}

/// A packet that a device can send after CONNECT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Packet {
    /// A message; if it was skipped, the kept parts of it.
    Publish(Publish),
    /// Second step of QoS 2.
    PubRel(u16),
    /// Packet id and number of filters.
    Subscribe(u16, usize),
    /// Packet id and number of filters.
    Unsubscribe(u16, usize),
    /// PINGREQ.
    Ping,
    /// DISCONNECT, with any reason code.
    Disconnect,
    /// PUBACK, PUBREC or PUBCOMP. This side publishes nothing, but a device may repeat one after a
    /// reconnect, for a message of another server (MQTT-4.4.0-1).
    Unsolicited,
    /// A packet that only a server may send, or that is not allowed at this point.
    Unexpected,
}

/// A packet that is sent to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reply {
    PubAck(u16),
    /// MQTT 5: the device may not send this message.
    PubAckRefused(u16),
    PubRec(u16),
    /// MQTT 5: the device may not send this message.
    PubRecRefused(u16),
    PubComp(u16),
    /// For a PUBREL without its PUBLISH. MQTT 3.1.1 has no code for that.
    PubCompUnknown(u16),
    /// Packet id, and the number of filters that are all refused.
    SubAck(u16, usize),
    UnsubAck(u16, usize),
    Pong,
}

/// Malformed bytes, or a packet that is too large.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProtocolError(pub Reason);

/// Parses the next packet if it has arrived completely; removes used bytes from `buf`.
/// [`super::frames`] has checked its size before, and sets it in a PUBLISH.
pub(super) fn read_packet(
    version: Version,
    buf: &mut BytesMut,
) -> Result<Option<Packet>, ProtocolError> {
    match version {
        Version::V4 => match m4::v4::Packet::read(buf, usize::MAX) {
            Ok(packet) => Ok(Some(of_v4(packet))),
            Err(m4::Error::InsufficientBytes(_)) => Ok(None),
            Err(_) => Err(ProtocolError(Reason::MalformedPacket)),
        },
        Version::V5 if buf.starts_with(&REASON_ONLY) => reason_only(buf),
        Version::V5 => match m5::v5::Packet::read(buf, None) {
            Ok(packet) => Ok(Some(of_v5(packet))),
            Err(m5::Error::InsufficientBytes(_)) => Ok(None),
            Err(_) => Err(ProtocolError(Reason::MalformedPacket)),
        },
    }
}

/// The fixed header of a DISCONNECT that ends with its reason code.
const REASON_ONLY: [u8; 2] = [0xe0, 1];

/// Parses a DISCONNECT without a property length, which then is 0 (§3.14.2.2.1). rumqttc's codec
/// refuses it.
fn reason_only(buf: &mut BytesMut) -> Result<Option<Packet>, ProtocolError> {
    let Some(code) = buf.get(REASON_ONLY.len()) else {
        return Ok(None);
    };
    Reason::try_from(*code).map_err(|_| ProtocolError(Reason::MalformedPacket))?;
    buf.advance(REASON_ONLY.len() + 1);
    Ok(Some(Packet::Disconnect))
}

fn of_v4(packet: m4::v4::Packet) -> Packet {
    use m4::v4::Packet as P;
    match packet {
        P::Publish(p) => Packet::Publish(Publish {
            has_alias: false,
            packet_bytes: 0,
            held_bytes: p.topic.len() + p.payload.len(),
            oversize: None,
            topic: p.topic,
            payload: p.payload,
            qos: p.qos as u8,
            id: p.pkid,
            properties: vec![],
        }),
        P::PubRel(p) => Packet::PubRel(p.pkid),
        P::Subscribe(p) => Packet::Subscribe(p.pkid, p.filters.len()),
        P::Unsubscribe(p) => Packet::Unsubscribe(p.pkid, p.topics.len()),
        P::PingReq => Packet::Ping,
        P::PubAck(_) | P::PubRec(_) | P::PubComp(_) => Packet::Unsolicited,
        P::Disconnect => Packet::Disconnect,
        _ => Packet::Unexpected,
    }
}

fn of_v5(packet: m5::v5::Packet) -> Packet {
    use m5::v5::Packet as P;
    match packet {
        P::Publish(p) => {
            let properties = p.properties.unwrap_or_default();
            Packet::Publish(Publish {
                has_alias: properties.topic_alias.is_some(),
                packet_bytes: 0,
                held_bytes: p.topic.len() + p.payload.len(),
                oversize: None,
                topic: p.topic,
                payload: p.payload,
                qos: p.qos as u8,
                id: p.pkid,
                properties: properties.user_properties,
            })
        }
        P::PubRel(p) => Packet::PubRel(p.pkid),
        P::Subscribe(p) => Packet::Subscribe(p.pkid, p.filters.len()),
        P::Unsubscribe(p) => Packet::Unsubscribe(p.pkid, p.filters.len()),
        P::PingReq => Packet::Ping,
        P::PubAck(_) | P::PubRec(_) | P::PubComp(_) => Packet::Unsolicited,
        P::Disconnect(_) => Packet::Disconnect,
        _ => Packet::Unexpected,
    }
}

/// Appends a reply; returns whether it did. A device with MQTT 5 may refuse packets of more than
/// `bytes_max` bytes (MQTT-3.1.2-24).
#[must_use]
pub(super) fn write(version: Version, reply: Reply, bytes_max: usize, out: &mut BytesMut) -> bool {
    // The codecs also refuse packets that are too long or have packet id 0. A reply is neither,
    // because it answers a packet that was parsed.
    match version {
        Version::V4 => {
            let _ = to_v4(reply).write(out, usize::MAX);
            true
        }
        Version::V5 => {
            let packet = to_v5(reply);
            let fits = packet.size() <= bytes_max;
            if fits {
                let _ = packet.write(out, None);
            }
            fits
        }
    }
}

/// Appends DISCONNECT with a Reason String if the packet then has at most `bytes_max` bytes
/// (MQTT-3.14.2-3), else without; nothing if that is too large as well. With MQTT 3.1.1 a server
/// cannot send this packet: nothing is written.
pub(super) fn write_disconnect(
    version: Version,
    reason: Reason,
    text: Option<&str>,
    bytes_max: usize,
    out: &mut BytesMut,
) {
    use m5::v5::{Disconnect, DisconnectProperties, Packet as P};
    if version == Version::V4 {
        return;
    }
    let properties = text.map(|text| DisconnectProperties {
        session_expiry_interval: None,
        reason_string: Some(text.to_owned()),
        user_properties: vec![],
        server_reference: None,
    });
    let with_words = P::Disconnect(Disconnect {
        reason_code: reason,
        properties,
    });
    let bare = P::Disconnect(Disconnect {
        reason_code: reason,
        properties: None,
    });
    let mut packets = [with_words, bare].into_iter();
    if let Some(packet) = packets.find(|packet| packet.size() <= bytes_max) {
        let _ = packet.write(out, None);
    }
}

fn to_v4(reply: Reply) -> m4::v4::Packet {
    use m4::v4::{Packet as P, PubAck, PubComp, PubRec, SubAck, SubscribeReasonCode, UnsubAck};
    match reply {
        Reply::PubAck(id) | Reply::PubAckRefused(id) => P::PubAck(PubAck::new(id)),
        Reply::PubRec(id) | Reply::PubRecRefused(id) => P::PubRec(PubRec::new(id)),
        Reply::PubComp(id) | Reply::PubCompUnknown(id) => P::PubComp(PubComp::new(id)),
        Reply::SubAck(id, n) => P::SubAck(SubAck::new(id, vec![SubscribeReasonCode::Failure; n])),
        Reply::UnsubAck(id, _) => P::UnsubAck(UnsubAck::new(id)),
        Reply::Pong => P::PingResp,
    }
}

fn to_v5(reply: Reply) -> m5::v5::Packet {
    use m5::v5::{
        Packet as P, PubAck, PubAckReason, PubComp, PubCompReason, PubRec, PubRecReason, SubAck,
        SubscribeReasonCode, UnsubAck, UnsubAckReason,
    };
    match reply {
        Reply::PubAck(id) => P::PubAck(PubAck::new(id, None)),
        Reply::PubAckRefused(id) => P::PubAck(PubAck {
            pkid: id,
            reason: PubAckReason::NotAuthorized,
            properties: None,
        }),
        Reply::PubRec(id) => P::PubRec(PubRec::new(id, None)),
        Reply::PubRecRefused(id) => P::PubRec(PubRec {
            pkid: id,
            reason: PubRecReason::NotAuthorized,
            properties: None,
        }),
        Reply::PubComp(id) => P::PubComp(PubComp::new(id, None)),
        Reply::PubCompUnknown(id) => P::PubComp(PubComp {
            pkid: id,
            reason: PubCompReason::PacketIdentifierNotFound,
            properties: None,
        }),
        Reply::SubAck(id, n) => {
            let return_codes = vec![SubscribeReasonCode::NotAuthorized; n];
            P::SubAck(SubAck {
                pkid: id,
                return_codes,
                properties: None,
            })
        }
        Reply::UnsubAck(id, n) => {
            let reasons = vec![UnsubAckReason::NoSubscriptionExisted; n];
            P::UnsubAck(UnsubAck {
                pkid: id,
                reasons,
                properties: None,
            })
        }
        Reply::Pong => P::PingResp,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const VERSIONS: [Version; 2] = [Version::V4, Version::V5];

    /// The bytes of complete packets, one of each kind.
    fn samples(version: Version) -> Vec<Vec<u8>> {
        let publish: &[&[u8]] = match version {
            Version::V4 => &[b"\x32\x07\x00\x01a\x00\x01hi", b"\x30\x05\x00\x01ahi"],
            Version::V5 => &[
                b"\x32\x08\x00\x01a\x00\x01\x00hi",
                b"\x30\x06\x00\x01a\x00hi",
                b"\x32\x0f\x00\x01a\x00\x01\x07\x26\x00\x01k\x00\x01vhi",
            ],
        };
        let rest: &[&[u8]] = match version {
            Version::V4 => &[
                b"\x82\x06\x00\x01\x00\x01a\x00",
                b"\xa2\x05\x00\x02\x00\x01a",
                b"\xc0\x00",
                b"\xe0\x00",
            ],
            Version::V5 => &[
                b"\x82\x07\x00\x01\x00\x00\x01a\x00",
                b"\xa2\x06\x00\x02\x00\x00\x01a",
                b"\xc0\x00",
                b"\xe0\x00",
            ],
        };
        publish
            .iter()
            .chain(rest)
            .map(|bytes| bytes.to_vec())
            .collect()
    }

    #[test]
    fn packets_are_read_one_by_one_when_they_are_whole() {
        for version in VERSIONS {
            for bytes in samples(version) {
                for cut in 0..bytes.len() {
                    let mut part = BytesMut::from(&bytes[..cut]);
                    assert_eq!(read_packet(version, &mut part), Ok(None));
                    assert_eq!(part.len(), cut);
                }
                let mut two = BytesMut::from(&bytes[..]);
                two.extend_from_slice(&bytes);
                let first = read_packet(version, &mut two).unwrap().unwrap();
                assert_ne!(first, Packet::Unexpected, "{bytes:x?}");
                assert_eq!(read_packet(version, &mut two), Ok(Some(first)));
                assert!(two.is_empty());
            }
        }
        let mut bytes = BytesMut::from(&samples(Version::V5)[2][..]);
        let Ok(Some(Packet::Publish(publish))) = read_packet(Version::V5, &mut bytes) else {
            panic!("a PUBLISH")
        };
        assert_eq!(publish.properties, [("k".to_owned(), "v".to_owned())]);
        assert_eq!(
            (
                &publish.topic[..],
                &publish.payload[..],
                publish.qos,
                publish.id
            ),
            (&b"a"[..], &b"hi"[..], 1, 1)
        );
    }

    #[test]
    fn subscriptions_are_refused_in_each_protocols_words() {
        for (version, suback) in [
            (Version::V4, &b"\x90\x04\x00\x07\x80\x80"[..]),
            (Version::V5, b"\x90\x05\x00\x07\x00\x87\x87"),
        ] {
            let mut out = BytesMut::new();
            assert!(write(version, Reply::SubAck(7, 2), suback.len(), &mut out));
            assert_eq!(out, suback);
            out.clear();
            write_disconnect(
                version,
                Reason::ServerShuttingDown,
                Some("why"),
                11,
                &mut out,
            );
            let with_words: &[u8] = if version == Version::V4 {
                b""
            } else {
                b"\xe0\x08\x8b\x06\x1f\x00\x03why"
            };
            assert_eq!(out, with_words);
            out.clear();
            write_disconnect(
                version,
                Reason::ServerShuttingDown,
                Some("why"),
                9,
                &mut out,
            );
            assert_eq!(
                out,
                if version == Version::V4 {
                    &b""[..]
                } else {
                    b"\xe0\x02\x8b\x00"
                },
                "it does not fit"
            );
        }
    }

    #[test]
    fn mqtt_5_gets_no_packet_that_is_larger_than_it_accepts() {
        let mut out = BytesMut::new();
        for (reply, bytes) in [
            (Reply::SubAck(7, 2), 7),
            (Reply::UnsubAck(7, 2), 7),
            (Reply::PubAck(7), 4),
            (Reply::PubAckRefused(7), 6),
            (Reply::Pong, 2),
        ] {
            assert!(!write(Version::V5, reply, bytes - 1, &mut out), "{reply:?}");
            assert!(out.is_empty());
            assert!(write(Version::V5, reply, bytes, &mut out), "{reply:?}");
            assert_eq!(out.split().len(), bytes, "{reply:?}");
        }
        write_disconnect(Version::V5, Reason::ServerBusy, Some("why"), 3, &mut out);
        assert!(out.is_empty());
    }

    #[test]
    fn a_reason_code_without_properties_is_valid() {
        for (bytes, packet) in [
            (&b"\xe0\x01\x04\xc0\x00"[..], Packet::Disconnect),
            (b"\xe0\x01\x00\xc0\x00", Packet::Disconnect),
            (b"\x62\x03\x00\x07\x00\xc0\x00", Packet::PubRel(7)),
        ] {
            let mut buf = BytesMut::from(bytes);
            assert_eq!(read_packet(Version::V5, &mut buf), Ok(Some(packet)));
            assert_eq!(buf, b"\xc0\x00"[..]);
        }
        let mut buf = BytesMut::from(&b"\xe0\x01\x05"[..]);
        assert!(
            read_packet(Version::V5, &mut buf).is_err(),
            "an unknown code"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]
        /// Any bytes are a packet, a part of one or an error: no panic, and no loop without
        /// progress.
        #[test]
        fn any_bytes_end(
            which in any::<prop::sample::Index>(),
            noise in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
            tail in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            for version in VERSIONS {
                let samples = samples(version);
                let mut bytes = samples[which.index(samples.len())].clone();
                for (at, byte) in &noise {
                    let at = at.index(bytes.len());
                    bytes[at] = *byte;
                }
                bytes.extend_from_slice(&tail);
                let mut buf = BytesMut::from(&bytes[..]);
                loop {
                    let before = buf.len();
                    match read_packet(version, &mut buf) {
                        Ok(Some(_)) => prop_assert!(buf.len() < before),
                        Ok(None) | Err(_) => break,
                    }
                }
            }
        }
    }
}
