//! Why a call to a store failed.

/// Why a whole call failed, with no result for its parts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Nothing was applied and nothing will be: the caller may send the same again later.
    #[error("{kind}: {detail}")]
    NotApplied {
        /// A metric label from a fixed set (`network`, `no_primary`, `overload`, `unauthorized`, …).
        kind: &'static str,
        /// The error text for an operator.
        detail: String,
    },
    /// The response was lost, or it reports that the write may be lost. Load and compare before sending anything again.
    #[error("{kind}: {detail}")]
    Unknown {
        /// A metric label as above, and `timeout`, `write_concern`.
        kind: &'static str,
        /// The error text for an operator.
        detail: String,
    },
}

impl StoreError {
    /// The result of a request that was not started because other requests used up the time limit.
    pub fn deferred() -> StoreError {
        StoreError::NotApplied { kind: "deferred", detail: "not started within the time limit of its batch".into() }
    }

    /// Whether the whole store is unreachable; the same request can be sent again later.
    pub fn is_away(&self) -> bool {
        matches!(self.kind(), "network" | "no_primary" | "unauthorized")
    }

    /// Whether this is [`StoreError::deferred`].
    pub fn is_deferred(&self) -> bool {
        self.kind() == "deferred"
    }

    /// The kind of the error, a metric label.
    pub fn kind(&self) -> &'static str {
        match self {
            StoreError::NotApplied { kind, .. } | StoreError::Unknown { kind, .. } => kind,
        }
    }
}
