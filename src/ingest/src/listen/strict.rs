//! Rules of MQTT that rumqttc's codecs do not check: a property that may occur once occurs once,
//! properties end where their length says and have allowed values, a response topic has no
//! wildcard, SUBSCRIBE and UNSUBSCRIBE have filters, each of them valid, and no packet has bytes
//! after its last field. Pure. The sections are those of MQTT 5.0, unless 3.1.1 is named.
//!
//! If a packet ends before the length of its properties, nothing is reported here: the codec
//! refuses it, unless they are optional.

use rumqttc_v5::mqttbytes::v5::DisconnectReasonCode as Reason;

use super::codec::{ProtocolError, Version};
use super::packet_fields::{
    SUBSCRIPTION_IDENTIFIER, USER_PROPERTY, after_text, after_value, integer, value_before,
};
use config::is_topic_filter;

/// Packet types (§2.1.2).
const PUBLISH: u8 = 3;
const PUBACK: u8 = 4;
const PUBREC: u8 = 5;
const PUBREL: u8 = 6;
const PUBCOMP: u8 = 7;
const SUBSCRIBE: u8 = 8;
const UNSUBSCRIBE: u8 = 10;
const PINGREQ: u8 = 12;
const PINGRESP: u8 = 13;
const DISCONNECT: u8 = 14;

/// Properties with special rules (§2.2.2.2).
const PAYLOAD_FORMAT: u8 = 1;
const RESPONSE_TOPIC: u8 = 8;
const REQUEST_PROBLEM_INFORMATION: u8 = 23;
const REQUEST_RESPONSE_INFORMATION: u8 = 25;
const RECEIVE_MAXIMUM: u8 = 33;
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
        (SUBSCRIBE | UNSUBSCRIBE, Version::V4) => {
            return check_filters(kind, rest.get(2..).ok_or(MALFORMED)?);
        }
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
        PUBACK | PUBREC | PUBREL | PUBCOMP => rest.get(3..),
        SUBSCRIBE | UNSUBSCRIBE => rest.get(2..),
        DISCONNECT => rest.get(1..),
        _ => None,
    };
    let Some((properties, payload)) = before.map_or(Ok(None), properties)? else {
        return Ok(());
    };
    // MQTT-3.3.4-6: only a server sends a subscription identifier.
    check_properties(properties, kind == PUBLISH)?;
    match kind {
        PUBLISH => Ok(()),
        SUBSCRIBE | UNSUBSCRIBE => check_filters(kind, payload),
        _ if payload.is_empty() => Ok(()),
        _ => Err(MALFORMED),
    }
}

/// Checks the payload of a SUBSCRIBE or UNSUBSCRIBE. The codec checks the options of a filter.
fn check_filters(kind: u8, mut rest: &[u8]) -> Result<(), ProtocolError> {
    const NO_LOCAL: u8 = 4;
    // MQTT-3.8.3-2 and MQTT-3.10.3-2: a protocol error.
    if rest.is_empty() {
        return Err(FORBIDDEN);
    }
    while !rest.is_empty() {
        let after_filter = after_text(rest).ok_or(MALFORMED)?;
        let filter =
            std::str::from_utf8(&value_before(rest, after_filter)[2..]).map_err(|_| MALFORMED)?;
        // MQTT-4.7.1-1, MQTT-4.7.1-2, MQTT-4.7.3-1 to -3, MQTT-4.8.2-1 and -2.
        if !is_topic_filter(filter) {
            return Err(MALFORMED);
        }
        rest = match (kind, after_filter.split_first()) {
            (UNSUBSCRIBE, _) => after_filter,
            (_, None) => return Err(MALFORMED),
            // MQTT-3.8.3-4. With 3.1.1 the bit is reserved.
            (_, Some((options, _))) if options & NO_LOCAL != 0 && filter.starts_with("$share/") => {
                return Err(FORBIDDEN);
            }
            (_, Some((_, next))) => next,
        };
    }
    Ok(())
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
            value_before(value, next)[2..]
                .iter()
                .any(|byte| matches!(byte, b'+' | b'#'))
        };
        match id {
            SUBSCRIPTION_IDENTIFIER if is_publish => return Err(FORBIDDEN),
            // MQTT-3.3.2-14.
            RESPONSE_TOPIC if has_wildcard() => return Err(FORBIDDEN),
            // §3.1.2.11.3, §3.1.2.11.4 and §3.8.2.1.2: zero is a protocol error.
            RECEIVE_MAXIMUM | MAXIMUM_PACKET_SIZE | SUBSCRIPTION_IDENTIFIER
                if value_before(value, next).iter().all(|byte| *byte == 0) =>
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subscribe_and_unsubscribe_have_valid_filters() {
        let filters = |first: u8, filters: &[(&str, u8)]| {
            let payload: Vec<u8> = filters
                .iter()
                .flat_map(|(filter, options)| {
                    let length = (filter.len() as u16).to_be_bytes();
                    let options = (first == 0x82).then_some(*options);
                    [&length, filter.as_bytes()]
                        .concat()
                        .into_iter()
                        .chain(options)
                })
                .collect();
            let v4 = check(Version::V4, first, &[&[0, 1][..], &payload].concat());
            let v5 = check(Version::V5, first, &[&[0, 1, 0][..], &payload].concat());
            assert_eq!(v4, v5, "{filters:?}");
            v5
        };
        for first in [0x82, 0xa2] {
            for allowed in ["a", "+/a/#", "$share/g/a/+"] {
                assert_eq!(
                    filters(first, &[("x", 0), (allowed, 1)]),
                    Ok(()),
                    "{allowed}"
                );
            }
            for wrong in ["", "a/#/b", "ab/+e", "a\0", "$share/g"] {
                for filter in [
                    &[(wrong, 0)][..],
                    &[(wrong, 0), ("a", 0)],
                    &[("a", 0), (wrong, 0)],
                ] {
                    assert_eq!(filters(first, filter), Err(MALFORMED), "{filter:?}");
                }
            }
            assert_eq!(filters(first, &[]), Err(FORBIDDEN));
            // A filter that is not UTF-8, and one that is longer than its packet.
            for rest in [
                &b"\x00\x01\x00\x00\x01\xff\x00"[..],
                b"\x00\x01\x00\x00\x02a",
            ] {
                assert_eq!(check(Version::V5, first, rest), Err(MALFORMED), "{rest:?}");
            }
        }
        assert_eq!(filters(0x82, &[("$share/g/a", 4)]), Err(FORBIDDEN));
        assert_eq!(filters(0x82, &[("a", 4)]), Ok(()), "no local");
        let without_options = check(Version::V4, 0x82, b"\x00\x01\x00\x01a");
        assert_eq!(without_options, Err(MALFORMED));
    }

    #[test]
    fn nothing_follows_the_last_field() {
        for first in [0x40, 0x50, 0x62, 0x70] {
            for rest in [&b"\x00\x01"[..], b"\x00\x01\x00", b"\x00\x01\x00\x00"] {
                assert_eq!(
                    check(Version::V5, first, rest),
                    Ok(()),
                    "{first:x} {rest:?}"
                );
            }
            for rest in [&b"\x00\x01\x00\x00\x00"[..], b"\x00\x01\x00\x01"] {
                assert_eq!(check(Version::V5, first, rest), Err(MALFORMED), "{first:x}");
            }
        }
        for (rest, result) in [
            (&b""[..], Ok(())),
            (b"\x04", Ok(())),
            (b"\x04\x00", Ok(())),
            (b"\x04\x00\x00", Err(MALFORMED)),
        ] {
            assert_eq!(check(Version::V5, 0xe0, rest), result, "{rest:?}");
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
