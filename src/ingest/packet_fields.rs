//! Fields of MQTT packets, as bytes: texts, variable byte integers and the properties of MQTT 5.
//! Pure. The sections are those of MQTT 5.0.

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
pub(super) fn of<'a>(value: &'a [u8], next: &[u8]) -> &'a [u8] {
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
        3 | 8 | 9 | 18 | 21 | 22 | 26 | 28 | 31 => after_text(bytes),
        USER_PROPERTY => after_text(bytes).and_then(after_text),
        _ => None,
    }
}
