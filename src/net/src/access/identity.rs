//! Who a sender or reader is: the name that every kind of credentials leads to. Pure.

use model::SensorPatterns;
use model::sensor_patterns::InvalidPattern;

/// The longest identity: it is a key of the quotas, a tag and part of log lines.
const IDENTITY_MAX_BYTES: usize = 128;

/// Whether it can be the identity in a JWT or certificate: not a pattern, printable as a word.
pub(super) fn valid_identity(id: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-_.:@/|+=".contains(&b);
    !id.is_empty() && id.len() <= IDENTITY_MAX_BYTES && id.bytes().all(allowed)
}

/// The patterns of the sender with this identity, which replaces `{id}`.
pub(super) fn own_patterns(texts: &[&str], id: &str) -> Result<SensorPatterns, InvalidPattern> {
    let own: Vec<String> = texts.iter().map(|text| text.replace("{id}", id)).collect();
    SensorPatterns::parse(own.iter().map(String::as_str))
}
