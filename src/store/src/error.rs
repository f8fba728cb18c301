//! Why a call to a store failed, and why it could not be prepared.

/// Why a whole call failed, with no result for its parts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Nothing was applied and nothing will be: the caller may send the same again later.
    #[error("{kind}: {detail}")]
    NotApplied {
        /// What failed.
        kind: StoreErrorKind,
        /// The error text for an operator.
        detail: String,
    },
    /// The response was lost, or it reports that the write may be lost. Load and compare before
    /// sending anything again.
    #[error("{kind}: {detail}")]
    Unknown {
        /// What failed.
        kind: StoreErrorKind,
        /// The error text for an operator.
        detail: String,
    },
}

model::closed_set! {
    /// What failed, for the metrics and for the choice of the next step.
    pub enum StoreErrorKind {
        /// The server cannot be reached, or the connection was lost.
        Network => "network",
        /// No server accepts writes.
        NoPrimary => "no_primary",
        /// The server refuses the user.
        Unauthorized => "unauthorized",
        /// No answer in time.
        Timeout => "timeout",
        /// Applied, but not on as many members as requested.
        WriteConcern => "write_concern",
        /// The server refused the command, or its answer is not valid.
        Command => "command",
        /// The driver failed before anything was sent, or panicked.
        Driver => "driver",
        /// The change stream of the registry ended.
        Registry => "registry",
        /// The collections are not prepared yet.
        NotPrepared => "not_prepared",
        /// Not started, because other requests used up the time limit.
        Deferred => "deferred",
    }
}

/// Why the store could not be prepared.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{detail}")]
pub struct PrepareError {
    /// The error text, with what to do.
    pub detail: String,
    /// What ends it.
    pub end: PrepareErrorEnd,
}

/// What ends an error of the preparation. Only what an operator must change is final; an error that
/// is not known may pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrepareErrorEnd {
    /// It may pass by itself: retry until it does.
    MayPass(StoreErrorKind),
    /// Rights that the user lacks. They may have been granted just now, or soon: retry for some
    /// minutes.
    Rights,
    /// A change of the settings or of the database, by an operator.
    Operator,
}

impl StoreError {
    pub(crate) fn not_applied(kind: StoreErrorKind, detail: impl Into<String>) -> StoreError {
        StoreError::NotApplied {
            kind,
            detail: detail.into(),
        }
    }

    pub(crate) fn unknown(kind: StoreErrorKind, detail: impl Into<String>) -> StoreError {
        StoreError::Unknown {
            kind,
            detail: detail.into(),
        }
    }

    /// The result of a request that was not started because other requests used up the time limit.
    pub fn deferred() -> StoreError {
        let detail = "not started within the time limit of its batch";
        StoreError::not_applied(StoreErrorKind::Deferred, detail)
    }

    /// Whether the whole store is unreachable; the same request can be sent again later.
    pub fn is_away(&self) -> bool {
        matches!(
            self.kind(),
            StoreErrorKind::Network | StoreErrorKind::NoPrimary | StoreErrorKind::Unauthorized
        )
    }

    /// Whether this is [`StoreError::deferred`].
    pub fn is_deferred(&self) -> bool {
        self.kind() == StoreErrorKind::Deferred
    }

    /// What failed.
    pub fn kind(&self) -> StoreErrorKind {
        match self {
            StoreError::NotApplied { kind, .. } | StoreError::Unknown { kind, .. } => *kind,
        }
    }
}
