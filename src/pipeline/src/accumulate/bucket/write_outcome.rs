//! The changes that an answer of the store caused.

/// The effect of an answer.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WriteOutcome {
    /// Readings now known to be stored.
    pub stored: u64,
    /// Readings dropped because they had been stored before.
    pub duplicates: u64,
}
