//! A message or reading that could not be decoded or stored. It is kept with the reason, for
//! inspection and replay.

/// Longer payloads are truncated to this many bytes. A MongoDB document has at most 16 MiB, and
/// dead letters are read by people.
pub const DEAD_PAYLOAD_BYTES_MAX: usize = 1 << 20;

/// The detail of a dead letter with a truncated payload ends with this, the number of kept bytes, "
/// of ", the number of received bytes, and [`CUT_SUFFIX`].
const KEPT: &str = "; the first ";
/// The `source` of dead letters for acknowledged readings that the store rejected.
/// `dead_letters.retention` and `dead_letters.max_bytes` do not apply to them, because no
/// acknowledged reading is dropped.
///
/// It is alphabetically the last source. The index for expiry and eviction of dead letters covers
/// `source < OWN_SOURCE`, because MongoDB 4.4 has no partial index with "not equal".
pub const OWN_SOURCE: &str = "store";

const CUT_SUFFIX: &str = " bytes are kept";
/// Memory of a dead letter in addition to its texts and payload.
const DEAD_LETTER_BYTES: usize = 256;

/// A document of the collection `dead_letters`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// Receipt time, in milliseconds since 1970.
    pub received_at_ms: i64,
    /// `mqtt`, `mqtt_direct`, `http` or `store` ([`OWN_SOURCE`]).
    pub source: String,
    /// The MQTT topic; for HTTP, the path with the query parameters about readings; else empty.
    pub topic: String,
    /// The received bytes, decompressed. For readings that the store rejected: JSON, one reading
    /// per line.
    pub payload: Vec<u8>,
    /// One of a fixed set of names (a metric label).
    pub reason: String,
    /// Description for a person.
    pub detail: String,
}

impl DeadLetter {
    /// Truncates the payload to [`DEAD_PAYLOAD_BYTES_MAX`]; `detail` then ends with the numbers of
    /// bytes.
    pub fn keep(
        received_at_ms: i64,
        source: &str,
        topic: impl Into<String>,
        payload: &[u8],
        reason: &str,
        detail: &str,
    ) -> DeadLetter {
        DeadLetter::keep_part(
            received_at_ms,
            source,
            topic,
            payload,
            payload.len(),
            reason,
            detail,
        )
    }

    /// The same if only the first bytes of the payload are available; `payload_bytes` is its full
    /// length.
    pub fn keep_part(
        received_at_ms: i64,
        source: &str,
        topic: impl Into<String>,
        payload: &[u8],
        payload_bytes: usize,
        reason: &str,
        detail: &str,
    ) -> DeadLetter {
        let kept = payload.len().min(DEAD_PAYLOAD_BYTES_MAX);
        let mut detail = detail.to_owned();
        if kept < payload_bytes {
            detail += &cut_to(kept, payload_bytes);
        }
        let source = source.to_owned();
        let topic = topic.into();
        let reason = reason.to_owned();
        DeadLetter {
            received_at_ms,
            source,
            topic,
            payload: payload[..kept].to_vec(),
            reason,
            detail,
        }
    }

    /// Whether the payload is complete. A truncated one must not be decoded again: its last number
    /// may be cut.
    pub fn is_complete(&self) -> bool {
        let numbers = self
            .detail
            .strip_suffix(CUT_SUFFIX)
            .and_then(|detail| detail.rsplit_once(KEPT));
        let kept = numbers
            .and_then(|(_, numbers)| numbers.split_once(" of "))
            .and_then(|(kept, _)| kept.parse().ok());
        kept != Some(self.payload.len())
    }

    /// Whether it has acknowledged readings ([`OWN_SOURCE`]).
    pub fn is_own(&self) -> bool {
        self.source == OWN_SOURCE
    }

    /// Approximate size in memory, and as a document.
    pub fn memory_bytes(&self) -> usize {
        let texts = self.source.len() + self.topic.len() + self.reason.len() + self.detail.len();
        DEAD_LETTER_BYTES + texts + self.payload.len()
    }

    /// A copy with at most `bytes_max` of its payload, and `why` appended to the detail.
    #[must_use]
    pub fn cut(&self, bytes_max: usize, why: &str) -> DeadLetter {
        let kept = bytes_max.min(self.payload.len());
        let len = self.payload.len();
        let detail = format!("{}; {why}{}", self.detail, cut_to(kept, len));
        DeadLetter {
            payload: self.payload[..kept].to_vec(),
            detail,
            ..self.clone()
        }
    }
}

fn cut_to(kept: usize, len: usize) -> String {
    format!("{KEPT}{kept} of {len}{CUT_SUFFIX}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_letter_records_whether_it_is_truncated() {
        let dead_letter =
            |n| DeadLetter::keep(1, "mqtt", "a/b", &vec![b'1'; n], "not_finite", "why");
        let whole = dead_letter(DEAD_PAYLOAD_BYTES_MAX);
        assert!(
            whole.is_complete()
                && whole.detail == "why"
                && whole.payload.len() == DEAD_PAYLOAD_BYTES_MAX
        );
        let part = dead_letter(DEAD_PAYLOAD_BYTES_MAX + 1);
        assert_eq!(
            part.detail,
            "why; the first 1048576 of 1048577 bytes are kept"
        );
        assert!(!part.is_complete() && part.payload.len() == DEAD_PAYLOAD_BYTES_MAX);
        let begin = DeadLetter::keep_part(
            1,
            "mqtt_direct",
            "a/b",
            b"12",
            9,
            "payload_too_large",
            "why",
        );
        assert_eq!(
            (begin.detail.as_str(), begin.payload.as_slice()),
            ("why; the first 2 of 9 bytes are kept", &b"12"[..])
        );
        assert!(!begin.is_complete());
        // A detail that quotes such text from a sender does not make a dead letter incomplete.
        let quoted = DeadLetter::keep(
            1,
            "mqtt",
            "a/b",
            b"12",
            "not_finite",
            "`x; the first 9 of 99 bytes are kept`",
        );
        assert!(quoted.is_complete());
        let cut = whole.cut(10, "the store refused it: too large");
        assert_eq!(
            cut.detail,
            "why; the store refused it: too large; the first 10 of 1048576 bytes are kept"
        );
        assert!(!cut.is_complete() && cut.payload.len() == 10);
    }

    #[test]
    fn its_memory_is_that_of_its_texts_and_its_payload() {
        let small = DeadLetter::keep(1, "mqtt", "", b"", "r", "d").memory_bytes();
        let large =
            DeadLetter::keep(1, "mqtt", "t".repeat(60_000), &[0; 5000], "r", "d").memory_bytes();
        assert_eq!(large - small, 65_000);
    }
}
