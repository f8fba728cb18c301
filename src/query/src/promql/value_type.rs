//! The types of PromQL's values.

/// What an expression evaluates to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueType {
    /// One number at each step.
    Scalar,
    /// Series with one sample at each step.
    Vector,
    /// Series with many samples at each step.
    Matrix,
    /// A text.
    String,
}

impl ValueType {
    /// The name in Prometheus' API.
    pub fn as_str(self) -> &'static str {
        match self {
            ValueType::Scalar => "scalar",
            ValueType::Vector => "vector",
            ValueType::Matrix => "matrix",
            ValueType::String => "string",
        }
    }
}
