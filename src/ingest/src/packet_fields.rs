//! Fields of MQTT packets, as bytes: texts, variable byte integers and the properties of MQTT 5.
//! Pure. The sections are those of MQTT 5.0.

/// A property with a text for the operator (§2.2.2.2).
pub(super) const REASON_STRING: u8 = 31;
/// A property that names another server.
pub(super) const SERVER_REFERENCE: u8 = 28;
/// The property that may occur several times.
pub(super) const USER_PROPERTY: u8 = 38;
/// The property whose value is a variable byte integer.
pub(super) const SUBSCRIPTION_IDENTIFIER: u8 = 11;

/// What follows a text or binary data (§1.5.4, §1.5.6).
pub(super) fn after_text(bytes: &[u8]) -> Option<&[u8]> {
    let (length, rest) = bytes.split_first_chunk::<2>()?;
    rest.get(usize::from(u16::from_be_bytes(*length))..)
}

/// A variable byte integer (§1.5.5), and what follows it.
pub(super) fn integer(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let end = bytes.iter().take(4).position(|byte| *byte < 0x80)?;
    let value = bytes[..=end]
        .iter()
        .rev()
        .fold(0, |sum, byte| sum << 7 | usize::from(byte & 0x7f));
    Some((value, &bytes[end + 1..]))
}

/// The value at the beginning of these bytes, from what follows it.
pub(super) fn value_before<'a>(value: &'a [u8], next: &[u8]) -> &'a [u8] {
    &value[..value.len() - next.len()]
}

/// What follows the value of a property (§2.2.2.2); `None` if the property is unknown or its value
/// incomplete. Every known id is below 64.
pub(super) fn after_value(id: u8, bytes: &[u8]) -> Option<&[u8]> {
    match id {
        1 | 23 | 25 | 36 | 37 | 40..=42 => bytes.get(1..),
        19 | 33..=35 => bytes.get(2..),
        2 | 17 | 24 | 39 => bytes.get(4..),
        SUBSCRIPTION_IDENTIFIER => integer(bytes).map(|(_, rest)| rest),
        3 | 8 | 9 | 18 | 21 | 22 | 26 | SERVER_REFERENCE | REASON_STRING => after_text(bytes),
        USER_PROPERTY => after_text(bytes).and_then(after_text),
        _ => None,
    }
}

/// The text of the first property with this id; `None` if there is none before the end of these
/// bytes, which may be cut off.
pub(super) fn text_property(mut properties: &[u8], wanted: u8) -> Option<&str> {
    while let Some((&id, value)) = properties.split_first() {
        let next = after_value(id, value)?;
        if id == wanted {
            return std::str::from_utf8(value_before(value, next).get(2..)?).ok();
        }
        properties = next;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_found_among_the_properties() {
        let properties = b"\x11\x00\x00\x00\x01\x26\x00\x01k\x00\x01v\x1f\x00\x03why";
        assert_eq!(text_property(properties, REASON_STRING), Some("why"));
        assert_eq!(text_property(properties, SERVER_REFERENCE), None);
        let cut = &properties[..properties.len() - 1];
        assert_eq!(text_property(cut, REASON_STRING), None);
        assert_eq!(
            text_property(b"\x1f\x00\x01\xff", REASON_STRING),
            None,
            "not UTF-8"
        );
    }
}
