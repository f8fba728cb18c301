//! A message, or a reading, that cannot be stored as it is: kept with the reason, so that it can be looked at and replayed.

/// Bytes of a payload that a dead letter keeps: a document has at most 16 MiB, and a dead letter is there to be read.
pub const DEAD_PAYLOAD_BYTES_MAX: usize = 1 << 20;

/// The detail of a letter whose payload is not whole ends with these around two numbers: bytes kept, and bytes received.
const KEPT: &str = "; the first ";
const NOT_WHOLE: &str = " bytes are kept";

/// One document of the collection `dead_letters`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// When it was received, in milliseconds since 1970.
    pub received_at_ms: i64,
    /// Where it came from: `mqtt`, `http` or `store`.
    pub source: String,
    /// The MQTT topic, or over HTTP the path with what its query says about the readings; empty where there was none.
    pub topic: String,
    /// The bytes as they came (decompressed), or for readings that the store refused their JSON form, one a line.
    pub payload: Vec<u8>,
    /// Why, one of a fixed set of names (a metric label).
    pub reason: String,
    /// Why, in words for a person.
    pub detail: String,
}

impl DeadLetter {
    /// A letter with as much of the payload as is kept; where that is not all, `detail` says so.
    pub fn keep(
        received_at_ms: i64,
        source: &str,
        topic: impl Into<String>,
        payload: &[u8],
        reason: &str,
        detail: &str,
    ) -> DeadLetter {
        DeadLetter::keep_part(received_at_ms, source, topic, (payload, payload.len()), reason, detail)
    }

    /// The same of a payload of which only the begin is there, with the number of bytes that it had.
    pub fn keep_part(
        received_at_ms: i64,
        source: &str,
        topic: impl Into<String>,
        (payload, payload_bytes): (&[u8], usize),
        reason: &str,
        detail: &str,
    ) -> DeadLetter {
        let kept = payload.len().min(DEAD_PAYLOAD_BYTES_MAX);
        let mut detail = detail.to_owned();
        if kept < payload_bytes {
            detail += &format!("{KEPT}{kept} of {payload_bytes}{NOT_WHOLE}");
        }
        let (source, topic, reason) = (source.to_owned(), topic.into(), reason.to_owned());
        DeadLetter { received_at_ms, source, topic, payload: payload[..kept].to_vec(), reason, detail }
    }

    /// Whether the payload is all that came. What is not cannot be read again: its last number may be half of one.
    pub fn is_whole(&self) -> bool {
        let numbers = self.detail.strip_suffix(NOT_WHOLE).and_then(|detail| detail.rsplit_once(KEPT));
        let kept = numbers.and_then(|(_, numbers)| numbers.split_once(" of ")).and_then(|(kept, _)| kept.parse().ok());
        kept != Some(self.payload.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_knows_whether_it_is_whole() {
        let letter = |n| DeadLetter::keep(1, "mqtt", "a/b", &vec![b'1'; n], "not_finite", "why");
        let whole = letter(DEAD_PAYLOAD_BYTES_MAX);
        assert!(whole.is_whole() && whole.detail == "why" && whole.payload.len() == DEAD_PAYLOAD_BYTES_MAX);
        let part = letter(DEAD_PAYLOAD_BYTES_MAX + 1);
        assert_eq!(part.detail, "why; the first 1048576 of 1048577 bytes are kept");
        assert!(!part.is_whole() && part.payload.len() == DEAD_PAYLOAD_BYTES_MAX);
        let begin = DeadLetter::keep_part(1, "mqtt_direct", "a/b", (b"12", 9), "payload_too_large", "why");
        assert_eq!(
            (begin.detail.as_str(), begin.payload.as_slice()),
            ("why; the first 2 of 9 bytes are kept", &b"12"[..])
        );
        assert!(!begin.is_whole());
        // What a sender wrote into a detail does not make a letter one that is not whole.
        let quoted = DeadLetter::keep(1, "mqtt", "a/b", b"12", "not_finite", "`x; the first 9 of 99 bytes are kept`");
        assert!(quoted.is_whole());
    }
}
