//! Remembers that the store cannot be reached, so that one query waits for it and the others are
//! told immediately.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::{ReadError, TIME_MAX};

/// After a failure, how long no query tries again.
const PAUSE: Duration = Duration::from_secs(1);

/// The last failure, and when a query may try again.
#[derive(Default)]
pub(super) struct Outage(Mutex<Option<(ReadError, Instant)>>);

impl Outage {
    fn state(&self) -> MutexGuard<'_, Option<(ReadError, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a query may try. If the store was away, it is the only one until [`Outage::note`], or
    /// until its time limit.
    ///
    /// # Errors
    /// The last failure.
    pub(super) fn check(&self) -> Result<(), ReadError> {
        let now = Instant::now();
        match &mut *self.state() {
            Some((error, again_at)) if now < *again_at => Err(error.clone()),
            Some((_, again_at)) => {
                *again_at = now + TIME_MAX;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Notes how a query ended that was allowed to try.
    pub(super) fn note<T>(&self, result: &Result<T, ReadError>) {
        let failure = match result {
            Err(error @ ReadError::Store(of_store)) if of_store.is_away() => Some(error.clone()),
            _ => None,
        };
        *self.state() = failure.map(|error| (error, Instant::now() + PAUSE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::{StoreError, StoreErrorKind};

    #[tokio::test(start_paused = true)]
    async fn one_query_at_a_time_tries_a_store_that_is_away() {
        let outage = Outage::default();
        let away = ReadError::Store(StoreError::NotApplied {
            kind: StoreErrorKind::NoPrimary,
            detail: "Topology: { … }".to_owned(),
        });
        let text = away.to_string();
        assert!(text.starts_with("MongoDB does not answer") && !text.contains("Topology"));
        assert_eq!(outage.check(), Ok(()));
        outage.note::<()>(&Err(away.clone()));
        assert_eq!(outage.check(), Err(away.clone()), "immediately");
        tokio::time::sleep(PAUSE).await;
        assert_eq!(outage.check(), Ok(()), "this one tries");
        assert_eq!(outage.check(), Err(away.clone()), "the others do not");
        outage.note::<()>(&Err(away.clone()));
        assert_eq!(outage.check(), Err(away));
        tokio::time::sleep(PAUSE).await;
        assert_eq!(outage.check(), Ok(()));
        outage.note(&Ok(()));
        assert_eq!([outage.check(), outage.check()], [Ok(()), Ok(())]);
        outage.note::<()>(&Err(ReadError::Busy));
        assert_eq!(outage.check(), Ok(()), "the store is not to blame");
    }
}
