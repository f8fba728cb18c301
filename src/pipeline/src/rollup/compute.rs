//! Computes days and writes them.

use columns::Weightings;

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
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DayKinds {
    /// `rollup.days`: its summary.
    pub days: bool,
    /// `columns.enabled`: its columns and hours, with these weightings.
    pub columns: Option<Weightings>,
}

impl DayKinds {
    /// Computes days and writes them; returns which documents are as new as the computation.
    ///
    /// # Errors
    /// The store failed; any of them may be written.
    pub(super) async fn compute(
        &self,
        flusher: &Flusher,
        permit: &DaysPermit,
        days: &[SensorDay],
    ) -> Result<Vec<bool>, StoreError> {
        let mut answers = vec![true; days.len()];
        let mut written = 0;
        if self.days {
            written = summarize(flusher, permit, days, &mut answers).await?;
        }
        if let Some(weightings) = &self.columns {
            written = encode(flusher, permit, days, weightings, &answers).await?;
        }
        metrics::rollup_computed_total(DayResult::Written, written);
        Ok(answers)
    }
}

/// Answers for each day whether it was computed; returns how many documents are written.
async fn summarize(
    flusher: &Flusher,
    permit: &DaysPermit,
    days: &[SensorDay],
    answers: &mut [bool],
) -> Result<u64, StoreError> {
    let computed = flusher.compute_days(permit, days).await?;
    let mut writes = vec![];
    for ((day, summary), answer) in days.iter().zip(computed).zip(answers) {
        *answer = summary.is_some();
        // Without hours there is no document.
        let summary = summary.filter(|summary| summary.hour.count > 0);
        writes.extend(summary.map(|summary| (day.clone(), summary)));
    }
    if writes.is_empty() {
        return Ok(0);
    }
    let written = flusher.write_days(flusher.permit().await, &writes).await?;
    Ok(report(&writes, written, "document"))
}

/// Encodes those days that are still to be written; returns how many are.
async fn encode(
    flusher: &Flusher,
    permit: &DaysPermit,
    days: &[SensorDay],
    weightings: &Weightings,
    answers: &[bool],
) -> Result<u64, StoreError> {
    let mut written = 0;
    let mut writes: Vec<(SensorDay, DayColumns)> = vec![];
    let mut bytes = 0;
    for (day, is_wanted) in days.iter().zip(answers) {
        if !is_wanted {
            continue;
        }
        match flusher.encode_day(permit, day, weightings).await? {
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
        if bytes >= WRITE_BYTES {
            written += write(flusher, &mut writes).await?;
            bytes = 0;
        }
    }
    Ok(written + write(flusher, &mut writes).await?)
}

async fn write(
    flusher: &Flusher,
    writes: &mut Vec<(SensorDay, DayColumns)>,
) -> Result<u64, StoreError> {
    if writes.is_empty() {
        return Ok(0);
    }
    let permit = flusher.permit().await;
    let written = flusher.write_columns(permit, writes).await?;
    let days = report(writes, written, "columns");
    writes.clear();
    Ok(days)
}

/// Counts and logs the days that the store refuses; returns the number of the others.
fn report<T>(days: &[(SensorDay, T)], written: Vec<DayWritten>, what: &str) -> u64 {
    let mut refused = 0;
    for ((day, _), written) in days.iter().zip(written) {
        if let DayWritten::Rejected { detail } = written {
            refused += 1;
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
    metrics::rollup_computed_total(DayResult::Refused, refused);
    days.len() as u64 - refused
}
