//! Why a query fails, by Prometheus' types of errors.

/// The text is the one that the client is shown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PromqlError {
    /// The query or a parameter is not valid (`bad_data`).
    #[error("{0}")]
    BadData(String),
    /// The query is valid but its evaluation failed (`execution`).
    #[error("{0}")]
    Execution(String),
    /// The time limit was reached (`timeout`).
    #[error("query timed out in expression evaluation")]
    TimedOut,
    /// The samples could not be read: their source knows why.
    #[error("the samples could not be read")]
    Unread,
    /// The client went away (`canceled`).
    #[error("query was canceled in expression evaluation")]
    Cancelled,
}

impl PromqlError {
    pub(crate) fn execution(text: impl Into<String>) -> PromqlError {
        PromqlError::Execution(text.into())
    }

    pub(crate) fn bad_data(text: impl Into<String>) -> PromqlError {
        PromqlError::BadData(text.into())
    }

    /// The error at the limit of series.
    pub(crate) fn too_many_series(series_max: usize) -> PromqlError {
        PromqlError::execution(format!(
            "the query selects more than {series_max} series (promql.series_max); select fewer"
        ))
    }

    /// The error at the limit of samples.
    pub(crate) fn too_many_samples() -> PromqlError {
        PromqlError::execution(
            "query processing would load too many samples into memory in query execution",
        )
    }
}
