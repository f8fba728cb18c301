//! Why a call to a store failed, and why it could not be prepared.

use std::fmt;

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

/// What failed, for the metrics and for the choice of the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreErrorKind {
    /// The server cannot be reached, or the connection was lost.
    Network,
    /// No server accepts writes.
    NoPrimary,
    /// The server refuses the user.
    Unauthorized,
    /// No answer in time.
    Timeout,
    /// Applied, but not on as many members as requested.
    WriteConcern,
    /// The server refused the command, or its answer is not valid.
    Command,
    /// The driver failed before anything was sent, or panicked.
    Driver,
    /// The change stream of the registry ended.
    Registry,
    /// The collections are not prepared yet.
    NotPrepared,
    /// Not started, because other requests used up the time limit.
    Deferred,
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

impl StoreErrorKind {
    /// The label `kind` of the metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            StoreErrorKind::Network => "network",
            StoreErrorKind::NoPrimary => "no_primary",
            StoreErrorKind::Unauthorized => "unauthorized",
            StoreErrorKind::Timeout => "timeout",
            StoreErrorKind::WriteConcern => "write_concern",
            StoreErrorKind::Command => "command",
            StoreErrorKind::Driver => "driver",
            StoreErrorKind::Registry => "registry",
            StoreErrorKind::NotPrepared => "not_prepared",
            StoreErrorKind::Deferred => "deferred",
        }
    }
}

impl fmt::Display for StoreErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
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
