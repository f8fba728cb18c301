//! `[native]` and `[scalar]`: how the formats without a vendor are read.

/// `[native]`: how the native format is read, in JSON, CBOR and MessagePack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Native {
    /// `nested`: the treatment of an object or array as a value (default flatten).
    pub nested: Nested,
    /// `time`: members that are the time of a reading without `ts` if they hold one; the first such
    /// of this list counts (default `timestamp`, `time`, `datetime`, `t`, `@timestamp`).
    pub time: Vec<String>,
}

/// The treatment of an object or array as a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nested {
    /// Each scalar in it becomes a field, named by its path: `energy_power`, `total_0`.
    Flatten,
    /// The reading is rejected.
    Reject,
    /// It is left out, and the response says so. In an object `values` it rejects the reading.
    LeaveOut,
}

/// `[scalar]`: how bare values are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScalarFormat {
    /// `texts`: whether a payload that is not a number or boolean is a text (default), or rejected.
    pub texts_allowed: bool,
    /// `decimal_comma`: whether `21,5` is the number 21.5 (default false).
    pub decimal_comma: bool,
}
