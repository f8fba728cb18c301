//! Rules of MQTT that rumqttc's codecs do not check: a property that may occur once occurs once,
//! properties end where their length says and have allowed values, a response topic has no wildcard,
//! an UNSUBSCRIBE has a filter, and a packet that is only a fixed header has nothing after it. Pure. The sections are those of MQTT 5.0, unless 3.1.1
//! is named.
//!
//! If a packet ends before the length of its properties, nothing is reported here: the codec
//! refuses it, unless they are optional.

use rumqttc_v5::mqttbytes::v5::DisconnectReasonCode as Reason;

use super::codec::{ProtocolError, Version};

/// Packet types (§2.1.2).
const PUBLISH: u8 = 3;
const PUBREL: u8 = 6;
const SUBSCRIBE: u8 = 8;
const UNSUBSCRIBE: u8 = 10;
const PINGREQ: u8 = 12;
const PINGRESP: u8 = 13;
const DISCONNECT: u8 = 14;

/// Properties with special rules (§2.2.2.2).
const PAYLOAD_FORMAT: u8 = 1;
const RESPONSE_TOPIC: u8 = 8;
const SUBSCRIPTION_IDENTIFIER: u8 = 11;
const REQUEST_PROBLEM_INFORMATION: u8 = 23;
const REQUEST_RESPONSE_INFORMATION: u8 = 25;
const RECEIVE_MAXIMUM: u8 = 33;
const USER_PROPERTY: u8 = 38;
const MAXIMUM_PACKET_SIZE: u8 = 39;

const MALFORMED: ProtocolError = ProtocolError(Reason::MalformedPacket);
const FORBIDDEN: ProtocolError = ProtocolError(Reason::ProtocolError);

/// Checks a complete packet after CONNECT: the first byte of its fixed header, and what follows
/// that header.
pub(super) fn check(version: Version, first: u8, rest: &[u8]) -> Result<(), ProtocolError> {
    let kind = first >> 4;
    match (kind, version) {
        // §3.12 and §3.13, and 3.1.1 §3.14: the remaining length is 0.
        (PINGREQ | PINGRESP, _) | (DISCONNECT, Version::V4) => {
            return if rest.is_empty() {
                Ok(())
            } else {
                Err(MALFORMED)
            };
        }
        // MQTT-3.10.3-2 of 3.1.1: it has at least one filter after the packet id.
        (UNSUBSCRIBE, Version::V4) if rest.len() <= 2 => return Err(MALFORMED),
        (_, Version::V4) => return Ok(()),
        (_, Version::V5) => {}
    }
    let before = match kind {
        PUBLISH => after_text(rest).and_then(|rest| {
            if first & 6 == 0 {
                Some(rest)
            } else {
                rest.get(2..)
            }
        }),
        // Packet id and reason code; both may be the last.
        PUBREL => rest.get(3..),
        SUBSCRIBE | UNSUBSCRIBE => rest.get(2..),
        DISCONNECT => rest.get(1..),
        _ => None,
    };
    match before.map_or(Ok(None), properties)? {
        // MQTT-3.10.3-2: a protocol error.
        Some((_, [])) if kind == UNSUBSCRIBE => Err(FORBIDDEN),
        // MQTT-3.3.4-6: only a server sends it.
        Some((properties, _)) => check_properties(properties, kind == PUBLISH),
        None => Ok(()),
    }
}

/// Checks what follows the fixed header of a complete CONNECT of MQTT 5.
pub(super) fn check_connect(rest: &[u8]) -> Result<(), ProtocolError> {
    const WILL: u8 = 4;
    // Protocol name and version, flags, keep-alive (§3.1.2).
    let Some((of_connect, payload)) = rest.get(10..).map_or(Ok(None), properties)? else {
        return Ok(());
    };
    check_properties(of_connect, false)?;
    let of_will = after_text(payload)
        .filter(|_| rest[7] & WILL != 0)
        .map_or(Ok(None), properties)?;
    of_will.map_or(Ok(()), |(of_will, _)| check_properties(of_will, false))
}

/// What follows a text or binary data (§1.5.4, §1.5.6).
fn after_text(bytes: &[u8]) -> Option<&[u8]> {
    let (length, rest) = bytes.split_first_chunk::<2>()?;
    rest.get(usize::from(u16::from_be_bytes(*length))..)
}

/// What follows a variable byte integer, and its value (§1.5.5).
fn integer(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let end = bytes.iter().take(4).position(|byte| *byte < 0x80)?;
    let value = bytes[..=end]
        .iter()
        .rev()
        .fold(0, |sum, byte| sum << 7 | usize::from(byte & 0x7f));
    Some((value, &bytes[end + 1..]))
}

/// Properties, and what follows them.
type Properties<'a> = (&'a [u8], &'a [u8]);

/// The properties at the beginning of these bytes (§2.2.2); `None` if their length is missing. The
/// codecs do not check for every property that it ends within the packet.
fn properties(bytes: &[u8]) -> Result<Option<Properties<'_>>, ProtocolError> {
    let Some((length, rest)) = integer(bytes) else {
        return Ok(None);
    };
    rest.split_at_checked(length).map(Some).ok_or(MALFORMED)
}

fn check_properties(mut rest: &[u8], is_publish: bool) -> Result<(), ProtocolError> {
    let mut seen = 0u64;
    while let Some((&id, value)) = rest.split_first() {
        // Not to extend beyond the properties, which the codecs allow.
        let next = after_value(id, value).ok_or(MALFORMED)?;
        // §2.2.2.2 and the section of each packet: to include any other property twice is a
        // protocol error.
        let bit = 1 << id;
        if id != USER_PROPERTY && seen & bit != 0 {
            return Err(FORBIDDEN);
        }
        seen |= bit;
        // Without the two bytes of its length.
        let has_wildcard = || {
            of(value, next)[2..]
                .iter()
                .any(|byte| matches!(byte, b'+' | b'#'))
        };
        match id {
            SUBSCRIPTION_IDENTIFIER if is_publish => return Err(FORBIDDEN),
            // MQTT-3.3.2-14.
            RESPONSE_TOPIC if has_wildcard() => return Err(FORBIDDEN),
            // §3.1.2.11.3, §3.1.2.11.4 and §3.8.2.1.2: zero is a protocol error.
            RECEIVE_MAXIMUM | MAXIMUM_PACKET_SIZE | SUBSCRIPTION_IDENTIFIER
                if of(value, next).iter().all(|byte| *byte == 0) =>
            {
                return Err(FORBIDDEN);
            }
            // §3.1.2.11.6, §3.1.2.11.7 and §3.3.2.3.2: 0 or 1.
            PAYLOAD_FORMAT | REQUEST_PROBLEM_INFORMATION | REQUEST_RESPONSE_INFORMATION
                if value[0] > 1 =>
            {
                return Err(FORBIDDEN);
            }
            _ => {}
        }
        rest = next;
    }
    Ok(())
}

/// The value at the beginning of these bytes, from what follows it.
fn of<'a>(value: &'a [u8], next: &[u8]) -> &'a [u8] {
    &value[..value.len() - next.len()]
}

/// What follows the value of a property (§2.2.2.2); `None` if the property is unknown or its value
/// incomplete. Every known id is below 64.
fn after_value(id: u8, bytes: &[u8]) -> Option<&[u8]> {
    match id {
        1 | 23 | 25 | 36 | 37 | 40..=42 => bytes.get(1..),
        19 | 33..=35 => bytes.get(2..),
        2 | 17 | 24 | 39 => bytes.get(4..),
        SUBSCRIPTION_IDENTIFIER => integer(bytes).map(|(_, rest)| rest),
        3 | RESPONSE_TOPIC | 9 | 18 | 21 | 22 | 26 | 28 | 31 => after_text(bytes),
        USER_PROPERTY => after_text(bytes).and_then(after_text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unsubscribe_has_a_filter() {
        for (version, rest, result) in [
            (Version::V4, &b"\x00\x01"[..], Err(MALFORMED)),
            (Version::V4, b"\x00\x01\x00\x01a", Ok(())),
            (Version::V5, b"\x00\x01\x00", Err(FORBIDDEN)),
            (Version::V5, b"\x00\x01\x00\x00\x01a", Ok(())),
        ] {
            assert_eq!(check(version, 0xa2, rest), result, "{version:?} {rest:?}");
        }
    }

    #[test]
    fn properties_have_allowed_values() {
        let connect = |properties: &[u8]| {
            let length = [properties.len() as u8];
            let head = b"\x00\x04MQTT\x05\x02\x00\x3c";
            check_connect(&[&head[..], &length, properties, b"\x00\x01x"].concat())
        };
        for (properties, is_allowed) in [
            (&b"\x21\x00\x01"[..], true),
            (b"\x21\x00\x00", false),
            (b"\x27\x00\x00\x01\x00", true),
            (b"\x27\x00\x00\x00\x00", false),
            (b"\x17\x00", true),
            (b"\x17\x02", false),
            (b"\x19\x01", true),
            (b"\x19\x02", false),
        ] {
            let expected = if is_allowed { Ok(()) } else { Err(FORBIDDEN) };
            assert_eq!(connect(properties), expected, "{properties:?}");
        }
        let publish = |format| check(Version::V5, 0x30, &[0, 1, b'a', 2, 1, format, b'x']);
        assert_eq!((publish(1), publish(2)), (Ok(()), Err(FORBIDDEN)));
        let subscribe = |id| check(Version::V5, 0x82, &[0, 1, 2, 11, id, 0, 1, b'a', 0]);
        assert_eq!((subscribe(1), subscribe(0)), (Ok(()), Err(FORBIDDEN)));
    }
}
