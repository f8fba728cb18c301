//! Reads a broker's packets as they pass on their way to rumqttc, and notes what they say about the
//! connection. Pure.
//!
//! rumqttc loses two of them. A DISCONNECT of MQTT 5 may end with its reason code (§3.14.2.2.1), and
//! mosquitto's does; a broker that speaks 3.1.1 only answers with a CONNACK that has no properties.
//! rumqttc's codec removes such a packet from its buffer, waits for more bytes, and then reports a
//! connection that was closed without a reason.
//!
//! Nothing is changed or held back. Of CONNACK and DISCONNECT the first bytes are kept
//! ([`KEPT_BYTES_MAX`]), of other packets none.

use super::reason::{self, Packet};
use crate::packet_fields::{REASON_STRING, SERVER_REFERENCE, integer, text_property};
use config::MqttProtocol;

/// Packet types (MQTT 5 §2.1.2).
const CONNACK: u8 = 2;
const SUBACK: u8 = 9;
const DISCONNECT: u8 = 14;

/// Bytes that are kept of a packet after its fixed header.
const KEPT_BYTES_MAX: usize = 1024;
/// Characters that are kept of a text of the broker.
const TEXT_CHARS_MAX: usize = 200;

/// Why the broker refuses or ends a connection, in its own packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EndReason {
    packet: Packet,
    code: u8,
    meaning: &'static str,
    /// The broker's own words (Reason String).
    text: Option<String>,
    /// The server that it names (Server Reference).
    server: Option<String>,
}

impl EndReason {
    /// Another client with this client id has connected.
    pub(super) fn is_takeover(&self) -> bool {
        (self.packet, self.code) == (Packet::Disconnect, 0x8E)
    }
}

impl std::fmt::Display for EndReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let EndReason { meaning, code, .. } = self;
        let packet = match self.packet {
            Packet::ConnAck => "CONNACK",
            Packet::Disconnect => "DISCONNECT",
        };
        write!(f, "{meaning} ({packet} {code:#04x}")?;
        if let Some(text) = &self.text {
            write!(f, ", {text:?}")?;
        }
        if let Some(server) = &self.server {
            write!(f, ", server {server:?}")?;
        }
        f.write_str(")")
    }
}

/// How a connection ended, as far as the broker is concerned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Ended {
    /// The broker said why.
    #[error("{0}")]
    Said(EndReason),
    /// It was closed after CONNECT.
    #[error(
        "the broker closed the connection instead of answering CONNECT: check that mqtt.url names \
         its port for MQTT with or without TLS, set protocol = 4 if it is old, and look at its log \
         (AWS IoT Core closes if a policy does not allow the client_id)"
    )]
    BeforeConnAck,
    /// It was closed after SUBSCRIBE.
    #[error(
        "the broker closed the connection instead of answering SUBSCRIBE: check that its access \
         rules allow the filters of mqtt.subscriptions, and look at its log (AWS IoT Core closes \
         if a policy does not allow a filter)"
    )]
    BeforeSubAck,
    /// It was closed later.
    #[error("the broker closed the connection without a reason")]
    Silently,
}

/// What a packet says about the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Notice {
    /// CONNACK accepts the connection.
    Accepted,
    /// A SUBACK.
    Subscribed,
    /// CONNACK refuses the connection, or DISCONNECT ends it. No packet follows.
    Ended(EndReason),
}

#[derive(Debug)]
enum State {
    /// In a fixed header, of at most five bytes (§2.1).
    Head { bytes: [u8; 5], len: usize },
    /// After the fixed header of a packet with this first byte.
    Body { first: u8, left: usize },
    /// Bytes that are not MQTT; rumqttc reports them.
    Lost,
}

impl State {
    const BETWEEN: State = State::Head {
        bytes: [0; 5],
        len: 0,
    };
}

/// The packets of one connection, in order.
#[derive(Debug)]
pub(super) struct PacketObserver {
    protocol: MqttProtocol,
    state: State,
    kept: Vec<u8>,
}

impl PacketObserver {
    /// Before the first byte; `protocol` is that of our CONNECT.
    pub(super) fn new(protocol: MqttProtocol) -> PacketObserver {
        PacketObserver {
            protocol,
            state: State::BETWEEN,
            kept: vec![],
        }
    }

    /// Reads the next bytes.
    pub(super) fn observe(&mut self, mut bytes: &[u8], mut notice: impl FnMut(Notice)) {
        while let Some((&first, rest)) = bytes.split_first() {
            match &mut self.state {
                State::Head { bytes: head, len } => {
                    head[*len] = first;
                    *len += 1;
                    bytes = rest;
                    if let Some((left, _)) = integer(&head[1..*len]) {
                        let first = head[0];
                        self.state = State::Body { first, left };
                    } else if *len == head.len() {
                        self.state = State::Lost;
                    }
                }
                State::Body { first, left } => {
                    let (body, rest) = bytes.split_at(bytes.len().min(*left));
                    *left -= body.len();
                    bytes = rest;
                    if matches!(*first >> 4, CONNACK | DISCONNECT) {
                        let room = KEPT_BYTES_MAX - self.kept.len();
                        self.kept.extend_from_slice(&body[..body.len().min(room)]);
                    }
                }
                State::Lost => return,
            }
            if let State::Body { first, left: 0 } = self.state {
                notice_of(self.protocol, first >> 4, &self.kept).map(&mut notice);
                self.kept.clear();
                self.state = State::BETWEEN;
            }
        }
    }
}

/// What a packet of this type with this content after its fixed header says.
fn notice_of(protocol: MqttProtocol, kind: u8, body: &[u8]) -> Option<Notice> {
    match (kind, body) {
        (SUBACK, _) => Some(Notice::Subscribed),
        (DISCONNECT, _) => {
            let code = body.first().copied().unwrap_or(0);
            let meaning = reason::v5(Packet::Disconnect, code);
            Some(ended(Packet::Disconnect, code, meaning, body.get(1..)))
        }
        // Flags and a return code: the form of 3.1.1.
        (CONNACK, [_, code]) if protocol == MqttProtocol::V5 => {
            let meaning = reason::connack_without_properties(*code);
            Some(ended(Packet::ConnAck, *code, meaning, None))
        }
        (CONNACK, [_, 0, ..]) => Some(Notice::Accepted),
        (CONNACK, [_, code, properties @ ..]) => {
            let meaning = match protocol {
                MqttProtocol::V4 => reason::connack_v4(*code),
                MqttProtocol::V5 => reason::v5(Packet::ConnAck, *code),
            };
            Some(ended(Packet::ConnAck, *code, meaning, Some(properties)))
        }
        _ => None,
    }
}

fn ended(packet: Packet, code: u8, meaning: &'static str, properties: Option<&[u8]>) -> Notice {
    let properties = properties
        .and_then(integer)
        .map(|(_, properties)| properties);
    let text = |id| {
        let text = text_property(properties?, id)?;
        Some(text.chars().take(TEXT_CHARS_MAX).collect::<String>())
    };
    Notice::Ended(EndReason {
        packet,
        code,
        meaning,
        text: text(REASON_STRING),
        server: text(SERVER_REFERENCE),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notices(protocol: MqttProtocol, bytes: &[u8]) -> Vec<String> {
        let all = |step| {
            let mut observer = PacketObserver::new(protocol);
            let mut seen = vec![];
            for part in bytes.chunks(step) {
                observer.observe(part, |notice| {
                    seen.push(match notice {
                        Notice::Ended(reason) => reason.to_string(),
                        other => format!("{other:?}"),
                    })
                });
            }
            seen
        };
        let whole = all(bytes.len());
        for step in 1..bytes.len() {
            assert_eq!(all(step), whole, "in steps of {step}");
        }
        whole
    }

    const V4: MqttProtocol = MqttProtocol::V4;
    const V5: MqttProtocol = MqttProtocol::V5;

    #[test]
    fn a_disconnect_of_every_length_is_read() {
        let taken_over = "another client uses this client_id: give each client of the broker its \
            own mqtt.client_id (DISCONNECT 0x8e";
        for (bytes, more) in [
            (&b"\xe0\x01\x8e"[..], ")"),
            (b"\xe0\x02\x8e\x00", ")"),
            (b"\xe0\x08\x8e\x06\x1f\x00\x03why", ", \"why\")"),
            (
                b"\xe0\x0d\x8e\x0b\x1f\x00\x03why\x1c\x00\x02b2",
                ", \"why\", server \"b2\")",
            ),
            // A text that is cut off.
            (b"\xe0\x05\x8e\x03\x1f\x00\x09", ")"),
        ] {
            let sent = [
                b"\x20\x03\x00\x00\x00\x90\x04\x00\x01\x00\x01\xd0\x00",
                bytes,
            ]
            .concat();
            let ended = format!("{taken_over}{more}");
            assert_eq!(notices(V5, &sent), ["Accepted", "Subscribed", &ended]);
        }
        let without = "the broker ended the session without a reason: look at its log";
        assert_eq!(
            notices(V5, b"\xe0\x00"),
            [format!("{without} (DISCONNECT 0x00)")]
        );
    }

    #[test]
    fn a_connack_says_which_protocol_the_broker_speaks() {
        for (protocol, bytes, expected) in [
            (
                V5,
                &b"\x20\x02\x00\x01"[..],
                "speaks 3.1.1 only: set protocol = 4 (CONNACK 0x01)",
            ),
            (
                V5,
                b"\x20\x02\x00\x00",
                "speaks 3.1.1 only: set protocol = 4 (CONNACK 0x00)",
            ),
            (
                V5,
                b"\x20\x02\x00\x84",
                "speaks 3.1.1 only: set protocol = 4 (CONNACK 0x84)",
            ),
            (
                V5,
                b"\x20\x03\x00\x84\x00",
                "speaks 3.1.1 only: set protocol = 4 (CONNACK 0x84)",
            ),
            (V5, b"\x20\x02\x00\x05", "may not connect"),
            (V5, b"\x20\x03\x00\x86\x00", "wrong user name or password"),
            (V5, b"\x20\x03\x00\x00\x00", "Accepted"),
            (V4, b"\x20\x02\x00\x00", "Accepted"),
            (
                V4,
                b"\x20\x02\x00\x01",
                "does not speak 3.1.1: set protocol = 5 (CONNACK 0x01)",
            ),
            (
                V4,
                b"\x20\x03\x00\x84\x00",
                "does not speak 3.1.1: set protocol = 5",
            ),
            (V4, b"\x20\x02\x00\x04", "wrong user name or password"),
        ] {
            let seen = notices(protocol, bytes);
            assert!(
                matches!(&seen[..], [one] if one.contains(expected)),
                "{bytes:x?}: {seen:?}"
            );
        }
    }

    /// Packets that hold what looks like a DISCONNECT, a long one, and bytes that are not MQTT.
    #[test]
    fn other_packets_are_passed_over() {
        let publish = [
            &b"\x30\x82\x02\x00\x01a\x00"[..],
            &b"\xe0\x01\x8e".repeat(100)[..254],
        ];
        let sent = [
            &b"\x20\x03\x00\x00\x00"[..],
            &publish.concat(),
            b"\x90\x03\x00\x01\x01",
        ];
        assert_eq!(notices(V5, &sent.concat()), ["Accepted", "Subscribed"]);
        let long = [
            &b"\xe0\xff\x7f\x8e\xfb\x7f"[..],
            &[0x26; 16_380],
            b"\xd0\x00",
        ]
        .concat();
        assert_eq!(notices(V5, &long).len(), 1);
        assert_eq!(notices(V5, b"\xff\xff\xff\xff\xff\xe0\x01\x8e"), [""; 0]);
        assert_eq!(notices(V5, b"\x20\x00\x20\x01\x00"), [""; 0], "too short");
    }
}
