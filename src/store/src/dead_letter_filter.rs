//! Dead letters in the commands: selecting them ([`DeadLetterFilter`]) and printing them
//! ([`line()`]). Pure.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;

use crate::maintain::time;
use model::DeadLetter;

/// Selects dead letters; all conditions must match.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeadLetterFilter {
    /// One of these reasons; empty: any.
    pub reasons: Vec<String>,
    /// None of these reasons.
    pub except_reasons: Vec<String>,
    /// One of these sources; empty: any.
    pub sources: Vec<String>,
    /// Topic pattern: `*` matches any text, `?` one character.
    pub topic: Option<String>,
    /// Received at or after this, in milliseconds since 1970.
    pub since_ms: Option<i64>,
    /// Received before this, in milliseconds since 1970.
    pub until_ms: Option<i64>,
}

impl DeadLetterFilter {
    /// Whether it matches every dead letter.
    pub fn is_all(&self) -> bool {
        *self == DeadLetterFilter::default()
    }
}

/// Converts a pattern with `*` and `?` to a regular expression in MongoDB's syntax.
pub(crate) fn pattern_of(glob: &str) -> String {
    let mut pattern = String::from("^");
    for c in glob.chars() {
        match c {
            '*' => pattern.push_str(".*"),
            '?' => pattern.push('.'),
            c => {
                if c.is_ascii() && !c.is_ascii_alphanumeric() {
                    pattern.push('\\');
                }
                pattern.push(c);
            }
        }
    }
    pattern + "$"
}

/// A dead letter as a line of JSON: `{"id", "received_at", "source", "topic", "reason", "detail",
/// "bytes"}`, and `payload` if it is text, otherwise `payload_base64`.
pub fn line(id: &str, dead_letter: &DeadLetter) -> String {
    let mut listed = serde_json::json!({
        "id": id,
        "received_at": time(dead_letter.received_at_ms),
        "source": dead_letter.source,
        "topic": dead_letter.topic,
        "reason": dead_letter.reason,
        "detail": dead_letter.detail,
        "bytes": dead_letter.payload.len(),
    });
    match std::str::from_utf8(&dead_letter.payload) {
        Ok(text) => listed["payload"] = text.into(),
        Err(_) => listed["payload_base64"] = BASE64.encode(&dead_letter.payload).into(),
    }
    listed.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_become_equivalent_patterns() {
        for (glob, pattern) in [
            ("a/b", "^a\\/b$"),
            ("sensors/*/te?p", "^sensors\\/.*\\/te.p$"),
            ("a.b+c^(\\", "^a\\.b\\+c\\^\\(\\\\$"),
            ("ü_*", "^ü\\_.*$"),
        ] {
            assert_eq!(pattern_of(glob), pattern);
        }
    }

    #[test]
    fn payloads_are_shown_as_text_if_they_are_utf8() {
        let dead_letter =
            |payload: &[u8]| DeadLetter::keep(1_709_290_800_000, "mqtt", "a", payload, "r", "d");
        let text = line("7", &dead_letter(b"21,5"));
        assert!(
            text.contains(r#""payload":"21,5""#) && text.contains("2024-03-01T11:00:00Z"),
            "{text}"
        );
        assert!(line("7", &dead_letter(&[0xff, 0])).contains(r#""payload_base64":"/wA=""#));
    }
}
