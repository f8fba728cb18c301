//! Days in columns: `sensor_columns`, the readings of a sensor and day as parts ([`columns::Part`]),
//! and `sensor_day_hours`, the rich summaries of its hours.
//!
//! The contract:
//! - What [`ColumnStore::write_columns`] stores is a function of the readings of the day. It replaces
//!   what is stored of the day only by something that counts at least as many readings. Except by
//!   `hourbucket remove`, readings are only added to a day, so what is older never replaces what is
//!   newer.
//! - A day of one part is one document, which is replaced at once. The parts of another day are a
//!   *set*: they are added under new numbers, and the replacement of part 0 makes them the day's at
//!   once. Then the parts of the former set are removed. So after a crash at any moment a day that was
//!   stored can be read; a reader that meets a replacement reads again.
//! - The hours are written after the columns, and may be missing or older for a moment. A reader
//!   compares their counts.
//! - All calls may be repeated after any error.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use columns::{DayHours, Decoded, FieldHour, Part};
use model::{Day, Rows, Sample, SensorId, Span};

use super::days::{DayWritten, SensorDay};
use super::samples::number;
use super::{BoxFuture, StoreError, StoreErrorKind};

/// A day whose parts have more bytes stays in its pages.
pub(crate) const DAY_BYTES_MAX: usize = 64 << 20;

/// What is stored of a day beside its pages.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DayColumns {
    /// The tags of the last hour that has tags.
    pub tags: BTreeMap<String, String>,
    /// Its readings, in order.
    pub parts: Vec<Part>,
    /// Its hours.
    pub hours: DayHours,
    /// The same fields, of the whole day.
    pub whole: BTreeMap<Arc<str>, FieldHour>,
}

impl DayColumns {
    /// Number of readings.
    pub fn count(&self) -> u64 {
        count(&self.parts)
    }

    /// The times of the first and the last reading (ms since 1970); `None` without readings.
    pub fn times(&self) -> Option<(i64, i64)> {
        let first = self.parts.first()?;
        Some((first.first_ts_ms, self.parts.last()?.last_ts_ms))
    }

    /// About the bytes of its documents.
    pub fn about_bytes(&self) -> usize {
        let sketch = |(_, hour): &(usize, FieldHour)| {
            let sketch = hour.numbers.as_ref().and_then(|of| of.sketch.as_ref());
            sketch.map_or(0, |sketch| 32 + sketch.bins().len() * 16)
        };
        let hours = |(name, hours): (&Arc<str>, &Vec<_>)| {
            name.len() + 512 + hours.len() * 160 + hours.iter().map(sketch).sum::<usize>()
        };
        2048 + self.parts.iter().map(part_bytes).sum::<usize>()
            + self.hours.fields.iter().map(hours).sum::<usize>()
    }
}

/// Number of readings of these parts.
pub fn count(parts: &[Part]) -> u64 {
    parts.iter().map(|part| u64::from(part.count)).sum()
}

/// About the bytes of a part's document.
pub(crate) fn part_bytes(part: &Part) -> usize {
    let entry = |entry: &columns::Entry| {
        let texts = match &entry.kind {
            columns::EntryKind::Text(dictionary) => dictionary.iter().map(|t| t.len() + 12).sum(),
            _ => 0,
        };
        64 + entry.data.len() + entry.present.as_ref().map_or(0, Vec::len) + texts
    };
    let column = |(name, entries): (&Arc<str>, &Vec<_>)| {
        16 + name.len() + entries.iter().map(entry).sum::<usize>()
    };
    256 + part.ts.len() + part.columns.iter().map(column).sum::<usize>()
}

/// Selects the columns or the hours of several sensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnsQuery {
    /// The sensors, each once.
    pub sensor_ids: Vec<SensorId>,
    /// Days that begin at or after this, in milliseconds since 1970.
    pub from_ms: i64,
    /// Days that begin before this, in milliseconds since 1970.
    pub to_ms: i64,
    /// The fields that are needed, others may be missing; empty: all.
    pub fields: Vec<String>,
}

impl ColumnsQuery {
    /// A day of one sensor, all fields.
    pub(crate) fn of_day(sensor_id: &SensorId, day: Day) -> ColumnsQuery {
        ColumnsQuery {
            sensor_ids: vec![sensor_id.clone()],
            from_ms: day.start_ms,
            to_ms: day.start_ms + 1,
            fields: vec![],
        }
    }
}

/// The columns of a day.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredColumns {
    /// The sensor.
    pub sensor_id: SensorId,
    /// The start of the day, in milliseconds since 1970.
    pub day_ms: i64,
    /// Its tags.
    pub tags: BTreeMap<String, String>,
    /// Its readings, in order; of those fields that were asked for.
    pub parts: Vec<Part>,
}

/// The hours of a day.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredHours {
    /// The sensor.
    pub sensor_id: SensorId,
    /// The start of the day, in milliseconds since 1970.
    pub day_ms: i64,
    /// Its tags.
    pub tags: BTreeMap<String, String>,
    /// Number of readings of the day.
    pub count: u64,
    /// The times of its first and its last reading (ms since 1970).
    pub times: (i64, i64),
    /// The hours, of those fields that were asked for.
    pub hours: DayHours,
}

/// An answer about several sensors.
#[derive(Debug, Clone, PartialEq)]
pub struct OfSensors<T> {
    /// All days of all sensors but those in `rest`, by sensor and day.
    pub days: Vec<T>,
    /// Sensors that did not fit into the answer. If these are all requested sensors, the first of
    /// them is too large: ask for fewer days.
    pub rest: Vec<SensorId>,
}

impl<T> Default for OfSensors<T> {
    fn default() -> OfSensors<T> {
        OfSensors {
            days: vec![],
            rest: vec![],
        }
    }
}

/// The columns of a store.
pub trait ColumnStore: Send + Sync {
    /// Writes days; the results are in the same order. `replace`: also if what is stored counts more
    /// readings (for removals and repairs only); then a day without parts is removed.
    fn write_columns<'a>(
        &'a self,
        days: &'a [(SensorDay, DayColumns)],
        replace: bool,
    ) -> BoxFuture<'a, Result<Vec<DayWritten>, StoreError>>;

    /// Reads columns.
    fn columns_of<'a>(
        &'a self,
        query: &'a ColumnsQuery,
    ) -> BoxFuture<'a, Result<OfSensors<StoredColumns>, StoreError>>;

    /// Reads hours.
    fn hours_of<'a>(
        &'a self,
        query: &'a ColumnsQuery,
    ) -> BoxFuture<'a, Result<OfSensors<StoredHours>, StoreError>>;
}

impl StoredColumns {
    /// The readings between two times (ms since 1970), of the fields that `wants` names.
    fn decode(
        &self,
        within_ms: &Range<i64>,
        wants: impl Fn(&str) -> bool,
    ) -> impl Iterator<Item = Result<Decoded<'_>, StoreError>> {
        let damaged = |error| StoreError::NotApplied {
            kind: StoreErrorKind::Command,
            detail: format!("the columns of {} are damaged: {error}", self.sensor_id),
        };
        let parts = self.parts.iter();
        parts.map(move |part| {
            let decoded = part.decode_range(within_ms.start, within_ms.end, &wants);
            decoded.map_err(damaged)
        })
    }

    /// The samples of each of these fields between two times (ms since 1970, end exclusive), ordered
    /// by time. Of a millisecond with several values the last one, in the order of readings.
    ///
    /// # Errors
    /// A part is damaged.
    pub fn samples(
        &self,
        fields: &[&str],
        within_ms: Range<i64>,
    ) -> Result<Vec<Vec<Sample>>, StoreError> {
        let mut all = vec![vec![]; fields.len()];
        for decoded in self.decode(&within_ms, |name| fields.contains(&name)) {
            let decoded = decoded?;
            for (field, samples) in fields.iter().zip(&mut all) {
                for (ts_ms, value) in decoded.values(field) {
                    let Some(value) = number(value) else {
                        continue;
                    };
                    match samples.last_mut() {
                        Some(Sample {
                            ts_ms: last_ms,
                            value: last,
                        }) if *last_ms == ts_ms => *last = value,
                        _ => samples.push(Sample { ts_ms, value }),
                    }
                }
            }
        }
        Ok(all)
    }
}

/// The readings that columns have of a sensor and day between two times (ms since 1970, end
/// exclusive).
///
/// # Errors
/// The store failed, or they cannot be decoded.
pub(crate) async fn readings_of(
    columns: &dyn ColumnStore,
    sensor_id: &SensorId,
    day: Day,
    within_ms: Range<i64>,
) -> Result<Rows, StoreError> {
    let mut rows = Rows::default();
    let query = ColumnsQuery::of_day(sensor_id, day);
    for found in columns.columns_of(&query).await?.days {
        for decoded in found.decode(&within_ms, |_| true) {
            rows.append(&decoded?.rows());
        }
    }
    Ok(rows)
}

/// The starts of the buckets of a day, and the end of the last one (ms since 1970).
pub fn bounds(day: &SensorDay, span: Span) -> Vec<i64> {
    let mut bounds: Vec<i64> = std::iter::successors(Some(day.day.start_ms), |start_ms| {
        Some(start_ms + span.ms())
    })
    .take_while(|start_ms| *start_ms < day.day.end_ms)
    .collect();
    bounds.extend(bounds.last().map(|start_ms| start_ms + span.ms()));
    bounds
}
