//! A message, or a reading, that cannot be stored as it is: kept with the reason, so that it can be looked at and replayed.

/// Bytes of a payload that a dead letter keeps: a document has at most 16 MiB, and a dead letter is there to be read.
pub const DEAD_PAYLOAD_BYTES_MAX: usize = 1 << 20;

/// The end of the detail of a letter whose payload is not whole.
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
        let kept = payload.len().min(DEAD_PAYLOAD_BYTES_MAX);
        let mut detail = detail.to_owned();
        if kept < payload.len() {
            detail += &format!("; the first {kept} of {}{NOT_WHOLE}", payload.len());
        }
        let (source, topic, reason) = (source.to_owned(), topic.into(), reason.to_owned());
        DeadLetter { received_at_ms, source, topic, payload: payload[..kept].to_vec(), reason, detail }
    }

    /// Whether the payload is all that came. What is not cannot be read again: its last number may be half of one.
    pub fn is_whole(&self) -> bool {
        self.payload.len() != DEAD_PAYLOAD_BYTES_MAX || !self.detail.ends_with(NOT_WHOLE)
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
    }
}
