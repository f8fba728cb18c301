//! A message, or a reading, that cannot be stored as it is: kept with the reason, so that it can be looked at and replayed.

/// One document of the collection `dead_letters`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// When it was received, in milliseconds since 1970.
    pub received_at_ms: i64,
    /// Where it came from: `mqtt`, `http` or `store`.
    pub source: String,
    /// The MQTT topic; empty where there was none.
    pub topic: String,
    /// The bytes as they came, or for a reading that the store refused its JSON form.
    pub payload: Vec<u8>,
    /// Why, one of a fixed set of names (a metric label).
    pub reason: String,
    /// Why, in words for a person.
    pub detail: String,
}
