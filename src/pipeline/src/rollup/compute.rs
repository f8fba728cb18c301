//! Computes days and writes them.

use columns::Weighting;

use crate::flush::Flusher;
use crate::flush::days::DaysPermit;
use store::StoreError;
use store::columns::DayColumns;
use store::day_readings::NoColumns;
use store::days::{DayWritten, SensorDay};
use telemetry::metrics::{self, DayResult};

/// Bytes of the columns that are written together.
const WRITE_BYTES: usize = 4 << 20;

/// What is computed of a day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DayKinds {
    /// `rollup.days`: its summary.
    pub days: bool,
    /// `columns.enabled`: its columns and hours, with this weighting.
    pub columns: Option<Weighting>,
}

impl DayKinds {
    /// Computes days and writes them; returns which documents are as new as the computation.
    ///
    /// # Errors
    /// The store failed; any of them may be written.
    pub(super) async fn compute(
        self,
        flusher: &Flusher,
        permit: &DaysPermit,
        days: &[SensorDay],
    ) -> Result<Vec<bool>, StoreError> {
        let answers = match self.days {
            true => summarize(flusher, permit, days).await?,
            false => vec![true; days.len()],
        };
        if let Some(weighting) = self.columns {
            encode(flusher, permit, days, weighting, &answers).await?;
        }
        let computed = answers.iter().filter(|is_written| **is_written).count();
        metrics::rollup_computed_total(DayResult::Written, computed as u64);
        Ok(answers)
    }
}

async fn summarize(
    flusher: &Flusher,
    permit: &DaysPermit,
    days: &[SensorDay],
) -> Result<Vec<bool>, StoreError> {
    let computed = flusher.compute_days(permit, days).await?;
    let mut answers = vec![false; days.len()];
    let mut writes = vec![];
    for ((day, summary), answer) in days.iter().zip(computed).zip(&mut answers) {
        if let Some(summary) = summary {
            *answer = true;
            // Without hours there is no document.
            if summary.hour.count > 0 {
                writes.push((day.clone(), summary));
            }
        }
    }
    if !writes.is_empty() {
        let written = flusher.write_days(flusher.permit().await, &writes).await?;
        report(writes.iter().map(|(day, _)| day).zip(written), "document");
    }
    Ok(answers)
}

/// Encodes those days that are still to be written.
async fn encode(
    flusher: &Flusher,
    permit: &DaysPermit,
    days: &[SensorDay],
    weighting: Weighting,
    answers: &[bool],
) -> Result<(), StoreError> {
    let mut writes: Vec<(SensorDay, DayColumns)> = vec![];
    let mut bytes = 0;
    let mut wanted: Vec<&SensorDay> = vec![];
    for (day, is_wanted) in days.iter().zip(answers) {
        wanted.extend(is_wanted.then_some(day));
    }
    for (at, day) in wanted.iter().copied().enumerate() {
        match flusher.encode_day(permit, day, weighting).await? {
            Ok(columns) => {
                bytes += columns.about_bytes();
                writes.push((day.clone(), columns));
            }
            Err(NoColumns::Empty) => {}
            Err(NoColumns::TooLarge) => {
                metrics::rollup_computed_total(DayResult::TooLarge, 1);
                let sensor_id = &*day.sensor_id;
                let day_ms = day.day.start_ms;
                tracing::warn!(
                    sensor_id,
                    day_ms,
                    "a day is too large for columns; it stays in its pages"
                );
            }
        }
        if bytes >= WRITE_BYTES || at + 1 == wanted.len() && !writes.is_empty() {
            let written = flusher
                .write_columns(flusher.permit().await, &writes)
                .await?;
            report(writes.iter().map(|(day, _)| day).zip(written), "columns");
            writes.clear();
            bytes = 0;
        }
    }
    Ok(())
}

/// Counts and logs the days that the store refuses.
fn report<'d>(written: impl Iterator<Item = (&'d SensorDay, DayWritten)>, what: &str) {
    for (day, written) in written {
        if let DayWritten::Rejected { detail } = written {
            metrics::rollup_computed_total(DayResult::Refused, 1);
            let sensor_id = &*day.sensor_id;
            let day_ms = day.day.start_ms;
            tracing::error!(
                sensor_id,
                day_ms,
                what,
                detail,
                "store refused what was computed of a day"
            );
        }
    }
}
