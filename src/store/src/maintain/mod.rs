//! Checks, repairs and converts stored data; this half needs no database. [`bucket`] models a
//! stored bucket, [`mod@audit`] finds its faults, [`report`] prints the findings, [`convert`] plans
//! the conversion of a bucket, `addition` how readings are added to one. The other half,
//! `store::mongo::{reconcile, convert}`, reads and writes. Pure.

pub(crate) mod addition;
pub mod audit;
pub mod bucket;
pub mod condition;
pub mod convert;
pub mod hour;
pub mod removal;
pub mod report;

pub(crate) use audit::audit;
pub use audit::{Finding, Kind};
pub use bucket::{BucketMeasurements, StoredBucket, StoredPage};
pub use hour::Hour;
pub use report::{Entry, Reconciled, RepairOutcome};

use std::collections::HashMap;

use model::{BucketKey, ReadingKey, Rows, Span};

/// The buckets that a command works on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// Buckets that begin at or after this, in milliseconds since 1970.
    pub from_ms: i64,
    /// Buckets that begin before this, in milliseconds since 1970.
    pub to_ms: i64,
    /// Only these sensors; empty: all.
    pub sensors: Vec<String>,
}

/// The size of a new page: `bucket.max_readings` and `bucket.max_bytes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageSize {
    /// Maximum readings.
    pub readings_max: u32,
    /// Maximum bytes of the readings.
    pub bytes_max: u64,
}

/// Why a maintenance command ended early.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MaintainError {
    /// The server failed or refused; the same command may be run again.
    #[error("{0}")]
    Server(String),
    /// Impossible in this setup; the text includes what to do.
    #[error("{0}")]
    Refused(String),
    /// A test's hook has stopped it, as a crash would.
    #[error("stopped at {step:?} of {bucket:?}")]
    Stopped {
        /// The last completed step.
        step: Step,
        /// The bucket that was being converted.
        bucket: BucketKey,
    },
}

/// The last step of a conversion of one bucket; tests stop after each of them, as a crash would.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The bucket was read and is valid.
    Read,
    /// Some readings were copied, by one insert.
    PartCopied,
    /// All readings were copied.
    Copied,
    /// The copy was read back and compared.
    Verified,
    /// All statements of the swap were sent, but not committed.
    Swapping,
    /// The documents have the new storage mode.
    Swapped,
    /// The leftovers of the old mode were removed.
    Removed,
}

/// Progress of `convert`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Buckets that were processed.
    pub buckets: u64,
    /// Approximate total number of buckets.
    pub buckets_total: u64,
    /// Readings that were moved.
    pub readings: u64,
}

/// Result of `convert`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Converted {
    /// Buckets whose storage mode was changed.
    pub buckets: u64,
    /// The readings of these buckets.
    pub readings: u64,
    /// Buckets that were not converted, and why: at most the first [`LISTED_MAX`].
    pub skipped: Vec<(BucketKey, String)>,
    /// Number of buckets that were not converted.
    pub skipped_total: u64,
    /// Leftover measurements that no document counts and that the server did not remove.
    pub leftovers: u64,
    /// Leftover measurements that were removed.
    pub removed: u64,
}

/// Progress of computing the days, or the columns, of the past.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filled {
    /// Sensors done by this run.
    pub sensors: u64,
    /// Days written by this run.
    pub days: u64,
    /// Days that are too large for columns, or that MongoDB refused.
    pub refused: u64,
}

/// The result of a check of days or of their columns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DaysChecked {
    /// Days that were compared.
    pub days: u64,
    /// Days that are marked or open, and were not compared.
    pub pending: u64,
    /// Days that differ from their hours, or columns from their readings.
    pub differences: u64,
    /// Those that were repaired.
    pub repaired: u64,
    /// The first ones: sensor, start of the day (ms since 1970), stored and actual number of
    /// readings.
    pub listed: Vec<(String, i64, u64, u64)>,
}

impl DaysChecked {
    /// Whether there is no difference, or all are repaired.
    pub fn is_equal(&self) -> bool {
        self.differences == self.repaired
    }
}

/// Maximum skipped buckets that are listed individually.
pub const LISTED_MAX: usize = 100;

impl Converted {
    /// Adds a bucket that was not converted.
    pub fn skip(&mut self, bucket: BucketKey, why: String) {
        self.skipped_total += 1;
        if self.skipped.len() < LISTED_MAX {
            self.skipped.push((bucket, why));
        }
    }
}

/// How often each reading occurs in `rows`. Equal ones are counted, not merged, since readings
/// without a time of their own may be equal (docs/design.md, section 2).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ReadingCounts(HashMap<ReadingKey, u32>);

impl ReadingCounts {
    /// Counts all rows.
    pub(crate) fn from_rows<'a>(rows: impl IntoIterator<Item = &'a Rows>) -> ReadingCounts {
        let rows = rows.into_iter().flat_map(Rows::iter);
        ReadingCounts::from_keys(rows.map(|row| row.key()))
    }

    pub(crate) fn from_keys(keys: impl IntoIterator<Item = ReadingKey>) -> ReadingCounts {
        let mut tally = ReadingCounts::default();
        for key in keys {
            *tally.0.entry(key).or_default() += 1;
        }
        tally
    }

    /// Removes one occurrence; returns `false` if there is none.
    pub(crate) fn take(&mut self, key: &ReadingKey) -> bool {
        match self.0.get_mut(key) {
            Some(n) if *n > 0 => {
                *n -= 1;
                true
            }
            _ => false,
        }
    }

    /// Whether there is at least one occurrence.
    pub(crate) fn holds(&self, key: &ReadingKey) -> bool {
        self.0.get(key).is_some_and(|n| *n > 0)
    }

    /// The number of remaining occurrences.
    pub(crate) fn total(&self) -> u64 {
        self.0.values().map(|n| u64::from(*n)).sum()
    }
}

/// A time as RFC 3339 in UTC, with milliseconds if they are not zero.
pub fn time(ms: i64) -> String {
    match chrono::DateTime::from_timestamp_millis(ms) {
        Some(t) => t.to_rfc3339_opts(chrono::SecondsFormat::AutoSi, true),
        None => format!("{ms} ms"),
    }
}

/// A text is neither a time nor a date.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected RFC 3339, such as 2024-03-01T10:00:00Z, or a date, such as 2024-03-01")]
pub struct InvalidMoment;

/// Parses a time: RFC 3339, or a date, which means its start in UTC. Returns milliseconds
/// since 1970.
///
/// # Errors
/// The text is neither; the error names the accepted forms.
pub fn moment(text: &str) -> Result<i64, InvalidMoment> {
    if let Ok(time) = chrono::DateTime::parse_from_rfc3339(text) {
        return Ok(time.timestamp_millis());
    }
    match chrono::NaiveDate::parse_from_str(text, "%Y-%m-%d") {
        Ok(date) => Ok(date
            .and_time(chrono::NaiveTime::MIN)
            .and_utc()
            .timestamp_millis()),
        Err(_) => Err(InvalidMoment),
    }
}

/// How long a bucket is excluded after its end from commands that must not collide with a service
/// that keeps it in memory: an hour, for readings that may wait in memory or in a journal, plus a
/// twelfth of the span, for which idle buckets are kept.
pub fn settled_ms(span: Span) -> i64 {
    3_600_000 + span.ms() / 12
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_times_and_dates() {
        for (text, ms) in [
            ("2024-03-01T10:00:00Z", Some(1_709_287_200_000)),
            ("2024-03-01T11:00:00.250+01:00", Some(1_709_287_200_250)),
            ("2024-03-01", Some(1_709_251_200_000)),
            ("1969-12-31", Some(-86_400_000)),
            ("2024-02-30", None),
            ("yesterday", None),
            ("2024-03-01T10:00:00", None),
        ] {
            assert_eq!(moment(text).ok(), ms, "{text}");
        }
    }
}
