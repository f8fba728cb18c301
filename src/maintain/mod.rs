//! Checking, mending and moving what is stored, without a database: what a stored bucket is ([`bucket`]), what is wrong
//! with it ([`mod@audit`]), and how that is told ([`report`]). The other half, which reads and writes, is
//! `store::mongo::{reconcile, convert}`. Pure.

pub mod audit;
pub mod bucket;
pub mod dead_letters;
pub mod report;

use std::collections::HashMap;

use crate::model::{BucketKey, ReadingKey, Rows, Span};

pub use audit::{Finding, Kind, audit};
pub use bucket::{BucketMeasurements, StoredBucket, StoredPage};
pub use report::{Entry, Reconciled, RepairOutcome};

/// Which buckets a command is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// Buckets that begin at or after this, in milliseconds since 1970.
    pub from_ms: i64,
    /// Buckets that begin before this, in milliseconds since 1970.
    pub to_ms: i64,
    /// Of these sensors; of all where empty.
    pub sensors: Vec<String>,
}

/// Why a command on the stored data ended early.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MaintainError {
    /// The server failed or refused; the same command may be given again.
    #[error("{0}")]
    Server(String),
    /// It cannot be done here; the text says what to do.
    #[error("{0}")]
    Refused(String),
    /// A test's hook has ended it, as a crash would.
    #[error("stopped at {step:?} of {bucket:?}")]
    Stopped {
        /// After which step.
        step: Step,
        /// Of which bucket.
        bucket: BucketKey,
    },
}

/// What a conversion has just done to a bucket; tests end it there, as a crash would.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Read and found in order.
    Read,
    /// A part of the readings was copied.
    PartCopied,
    /// All of them were.
    Copied,
    /// The copy was read back and compared.
    Verified,
    /// All statements of the swap were sent, and not committed.
    Swapping,
    /// The documents say the new storage_mode.
    Swapped,
    /// What the old form has left was removed.
    Removed,
}

/// How `convert` gets on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Buckets looked at.
    pub buckets: u64,
    /// About how many there are.
    pub buckets_total: u64,
    /// Readings moved.
    pub readings: u64,
}

/// What `convert` did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Converted {
    /// Buckets whose form was changed.
    pub buckets: u64,
    /// Their readings.
    pub readings: u64,
    /// Buckets left as they were, and why: the first [`LISTED_MAX`] of them.
    pub skipped: Vec<(BucketKey, String)>,
    /// How many were.
    pub skipped_total: u64,
    /// Measurements that no document speaks of any more and that the server would not remove.
    pub leftovers: u64,
    /// Leftover measurements that were removed.
    pub removed: u64,
}

/// Skipped buckets that are listed one by one.
pub const LISTED_MAX: usize = 100;

impl Converted {
    /// Notes a bucket that was left as it was.
    pub fn skip(&mut self, bucket: BucketKey, why: String) {
        self.skipped_total += 1;
        if self.skipped.len() < LISTED_MAX {
            self.skipped.push((bucket, why));
        }
    }
}

/// How often each reading is in `rows`: equal ones are counted, not merged, since readings without a time of their own
/// may be equal (DESIGN section 2).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReadingCounts(HashMap<ReadingKey, u32>);

impl ReadingCounts {
    /// Counts all rows.
    pub fn of<'a>(rows: impl IntoIterator<Item = &'a Rows>) -> ReadingCounts {
        let mut tally = ReadingCounts::default();
        for row in rows.into_iter().flat_map(Rows::iter) {
            *tally.0.entry(row.key()).or_default() += 1;
        }
        tally
    }

    /// Takes one out; `false` where there is none.
    pub fn take(&mut self, key: &ReadingKey) -> bool {
        match self.0.get_mut(key) {
            Some(n) if *n > 0 => {
                *n -= 1;
                true
            }
            _ => false,
        }
    }

    /// Whether there is one.
    pub fn holds(&self, key: &ReadingKey) -> bool {
        self.0.get(key).is_some_and(|n| *n > 0)
    }

    /// How many are left.
    pub fn total(&self) -> u64 {
        self.0.values().map(|n| u64::from(*n)).sum()
    }
}

/// A moment as people write it: RFC 3339, or a date, which is its first instant in UTC; in milliseconds since 1970.
///
/// # Errors
/// It is neither; the text says what to write.
pub fn moment(text: &str) -> Result<i64, String> {
    if let Ok(time) = chrono::DateTime::parse_from_rfc3339(text) {
        return Ok(time.timestamp_millis());
    }
    match chrono::NaiveDate::parse_from_str(text, "%Y-%m-%d") {
        Ok(date) => Ok(date.and_time(chrono::NaiveTime::MIN).and_utc().timestamp_millis()),
        Err(_) => Err("write RFC 3339, such as 2024-03-01T10:00:00Z, or a date, such as 2024-03-01".to_owned()),
    }
}

/// After its end a bucket is left alone for this long by what must not meet a service that still keeps it in memory: an
/// hour for what may wait in memory or in a journal, and a twelfth of the span, for which idle buckets are kept.
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
