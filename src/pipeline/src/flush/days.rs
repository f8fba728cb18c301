//! Requests of the daily rollup, without retries: its task decides about them, so that no permit is
//! held during a backoff.

use tokio::sync::OwnedSemaphorePermit;

use super::{Flusher, Permit, acquire};
use columns::Weightings;
use store::columns::DayColumns;
use store::day_readings::{NoColumns, encode_day};
use store::days::{DayMark, DayStore, DaySummary, DayWritten, MarkQuery, SensorDay};
use store::{Ability, Outcome, StoreError, StoreErrorKind};
use telemetry::metrics;

/// Allows one read of the daily rollup.
#[derive(Debug)]
pub struct DaysPermit {
    _permit: OwnedSemaphorePermit,
}

impl Flusher {
    /// Waits for the permit for reads of the daily rollup.
    pub(crate) async fn days_permit(&self) -> DaysPermit {
        DaysPermit {
            _permit: acquire(&self.days).await,
        }
    }

    /// See [`DayStore::mark_days`].
    ///
    /// # Errors
    /// Any mark may be set.
    pub async fn mark_days(&self, permit: Permit, marks: &[DayMark]) -> Result<(), StoreError> {
        let result = self.day_store()?.mark_days(marks).await;
        match &result {
            Ok(()) => self.report(Ability::MarkDays, Outcome::Success),
            Err(error) => self.failed(Ability::MarkDays, error, permit.lane),
        }
        result
    }

    /// See [`DayStore::clear_marks`].
    ///
    /// # Errors
    /// Any mark may be removed.
    pub async fn clear_marks(&self, _permit: Permit, marks: &[DayMark]) -> Result<(), StoreError> {
        counted(self.day_store()?.clear_marks(marks).await)
    }

    /// See [`DayStore::day_marks`].
    ///
    /// # Errors
    /// The store failed.
    pub async fn day_marks(
        &self,
        _permit: DaysPermit,
        query: &MarkQuery,
    ) -> Result<Vec<DayMark>, StoreError> {
        counted(self.day_store()?.day_marks(query).await)
    }

    /// See [`DayStore::compute_days`].
    ///
    /// # Errors
    /// Nothing was computed: request fewer.
    pub async fn compute_days(
        &self,
        _permit: &DaysPermit,
        days: &[SensorDay],
    ) -> Result<Vec<Option<DaySummary>>, StoreError> {
        counted(self.day_store()?.compute_days(days).await)
    }

    /// See [`DayStore::write_days`].
    ///
    /// # Errors
    /// Any day may be written.
    pub async fn write_days(
        &self,
        _permit: Permit,
        days: &[(SensorDay, DaySummary)],
    ) -> Result<Vec<DayWritten>, StoreError> {
        counted(self.day_store()?.write_days(days, false).await)
    }

    /// See [`encode_day`].
    ///
    /// # Errors
    /// The store failed.
    pub(crate) async fn encode_day(
        &self,
        _permit: &DaysPermit,
        day: &SensorDay,
        weightings: &Weightings,
    ) -> Result<Result<DayColumns, NoColumns>, StoreError> {
        counted(encode_day(&*self.store, self.span, day, weightings).await)
    }

    /// See [`store::columns::ColumnStore::write_columns`].
    ///
    /// # Errors
    /// Any day may be written.
    pub(crate) async fn write_columns(
        &self,
        _permit: Permit,
        days: &[(SensorDay, DayColumns)],
    ) -> Result<Vec<DayWritten>, StoreError> {
        let columns = self.store.columns();
        counted(
            columns
                .ok_or_else(no_days)?
                .write_columns(days, false)
                .await,
        )
    }

    fn day_store(&self) -> Result<&dyn DayStore, StoreError> {
        self.store.days().ok_or_else(no_days)
    }
}

fn no_days() -> StoreError {
    StoreError::NotApplied {
        kind: StoreErrorKind::Command,
        detail: "this store has no days".to_owned(),
    }
}

fn counted<T>(result: Result<T, StoreError>) -> Result<T, StoreError> {
    result.inspect_err(|error| metrics::store_errors_total(error.kind(), 1))
}
