//! A number at a time: what queries compute with.

/// One value of a series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Milliseconds since 1970.
    pub ts_ms: i64,
    /// The value.
    pub value: f64,
}
