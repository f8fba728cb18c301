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

    /// Whether a query may try. If the store was away, it is the only one until it ends.
    ///
    /// # Errors
    /// The last failure.
    pub(super) fn check(&self) -> Result<Attempt<'_>, ReadError> {
        let now = Instant::now();
        let mut state = self.state();
        let is_alone = state.is_some();
        match &mut *state {
            Some((error, again_at)) if now < *again_at => return Err(error.clone()),
            Some((_, again_at)) => *again_at = now + TIME_MAX,
            None => {}
        }
        drop(state);
        Ok(Attempt {
            outage: self,
            is_alone,
        })
    }
}

/// A query that was allowed to try.
pub(super) struct Attempt<'a> {
    outage: &'a Outage,
    is_alone: bool,
}

impl Attempt<'_> {
    /// Notes how it ended.
    pub(super) fn end<T>(mut self, result: &Result<T, ReadError>) {
        self.is_alone = false;
        let failure = match result {
            Err(error @ ReadError::Store(of_store)) if of_store.is_away() => Some(error.clone()),
            _ => None,
        };
        *self.outage.state() = failure.map(|error| (error, Instant::now() + PAUSE));
    }
}

impl Drop for Attempt<'_> {
    /// Its client has gone: another query may try.
    fn drop(&mut self) {
        if let (true, Some((_, again_at))) = (self.is_alone, &mut *self.outage.state()) {
            *again_at = Instant::now();
        }
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
        let check = || outage.check().map(drop);
        let end = |result: Result<(), ReadError>| outage.check().unwrap().end(&result);
        end(Err(away.clone()));
        assert_eq!(check(), Err(away.clone()), "immediately");
        tokio::time::sleep(PAUSE).await;
        let one = outage.check().unwrap();
        assert_eq!(check(), Err(away.clone()), "the others do not try");
        one.end::<()>(&Err(away.clone()));
        assert_eq!(check(), Err(away.clone()));
        tokio::time::sleep(PAUSE).await;
        let gone = outage.check().unwrap();
        assert_eq!(check(), Err(away));
        drop(gone);
        end(Ok(()));
        assert_eq!([check(), check()], [Ok(()), Ok(())]);
        end(Err(ReadError::Busy));
        assert_eq!(check(), Ok(()), "the store is not to blame");
    }
}
