//! Dead letters in the commands: selecting them ([`DeadLetterFilter`]) and printing them
//! ([`line()`]). Pure.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;

use crate::maintain::time;
use model::{DeadLetter, glob};

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

    /// Whether it matches this dead letter.
    pub fn matches(&self, dead_letter: &DeadLetter) -> bool {
        let DeadLetter {
            received_at_ms,
            source,
            topic,
            reason,
            ..
        } = dead_letter;
        (self.reasons.is_empty() || self.reasons.contains(reason))
            && !self.except_reasons.contains(reason)
            && (self.sources.is_empty() || self.sources.contains(source))
            && self
                .topic
                .as_ref()
                .is_none_or(|pattern| glob::matches(pattern, topic))
            && self
                .since_ms
                .is_none_or(|since_ms| *received_at_ms >= since_ms)
            && self
                .until_ms
                .is_none_or(|until_ms| *received_at_ms < until_ms)
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
    fn a_filter_selects_what_its_conditions_match() {
        let dead_letter = DeadLetter::keep(1000, "mqtt", "sensors/a/temp", b"x", "too_old", "d");
        let all = DeadLetterFilter::default;
        let topic = |glob: &str| DeadLetterFilter {
            topic: Some(glob.to_owned()),
            ..all()
        };
        assert!(all().matches(&dead_letter));
        for (glob, is_match) in [
            ("*", true),
            ("sensors/*/te?p", true),
            ("*a*te*p", true),
            ("sensors/a", false),
            ("*temp?", false),
            ("?ensors/a/temp**", true),
            ("", false),
        ] {
            assert_eq!(topic(glob).matches(&dead_letter), is_match, "{glob}");
        }
        for (filter, is_match) in [
            (
                DeadLetterFilter {
                    reasons: vec!["too_old".into()],
                    ..all()
                },
                true,
            ),
            (
                DeadLetterFilter {
                    reasons: vec!["other".into()],
                    ..all()
                },
                false,
            ),
            (
                DeadLetterFilter {
                    except_reasons: vec!["too_old".into()],
                    ..all()
                },
                false,
            ),
            (
                DeadLetterFilter {
                    sources: vec!["http".into()],
                    ..all()
                },
                false,
            ),
            (
                DeadLetterFilter {
                    since_ms: Some(1000),
                    until_ms: Some(1001),
                    ..all()
                },
                true,
            ),
            (
                DeadLetterFilter {
                    until_ms: Some(1000),
                    ..all()
                },
                false,
            ),
        ] {
            assert_eq!(filter.matches(&dead_letter), is_match, "{filter:?}");
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
