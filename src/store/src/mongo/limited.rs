//! Operations with a time limit, and the error if one ends early.

use std::time::Duration;

use crate::{StoreError, StoreErrorKind};

/// Runs an operation in a separate task for at most this time, and cancels it when the caller stops
/// waiting: abandoned tasks would pile up with the retries. The driver closes a connection whose
/// command is dropped midway.
pub(super) async fn limited<T: Send + 'static>(
    time: Duration,
    operation: impl Future<Output = mongodb::error::Result<T>> + Send + 'static,
) -> Result<mongodb::error::Result<T>, StoreError> {
    let mut task = AbortOnDrop(tokio::spawn(operation));
    match tokio::time::timeout(time, &mut task.0).await {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(_)) => Err(StoreError::Unknown {
            kind: StoreErrorKind::Driver,
            detail: "the driver's task panicked".into(),
        }),
        Err(_) => Err(timed_out(time)),
    }
}

/// The error of an operation that did not finish within `store.timeout`.
pub(super) fn timed_out(time: Duration) -> StoreError {
    StoreError::Unknown {
        kind: StoreErrorKind::Timeout,
        detail: format!("no answer within store.timeout ({time:?})"),
    }
}

struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// An error after a part was stored: the outcome of the whole is unknown.
pub(super) fn in_part(error: StoreError) -> StoreError {
    match error {
        StoreError::NotApplied { kind, detail } => StoreError::Unknown { kind, detail },
        unknown => unknown,
    }
}
