//! Daily rollups in a store: `sensor_days`, one document for each sensor and day, and
//! `rollup_pending`, the marks of the days that must be computed again.
//!
//! The contract:
//! - A day's document is a function of the stored pages of its hours, without their readings.
//!   [`DayStore::compute_days`] reads the pages (majority) and merges them in a fixed order, so two
//!   instances compute the same document from the same pages.
//! - [`DayStore::write_days`] replaces a document only by one that counts at least as many
//!   readings. Pages only grow, so an older computation never replaces a newer one.
//! - A mark has a version. Marking raises it, by one if it is later already, and clearing removes
//!   the mark only if it still has the version given. So a late or repeated statement never removes
//!   a mark that was set after the removal was decided, even if the clock was set back in between.
//!   A mark that was raised by one stays until the next start of its instance, which computes the
//!   day once more.
//! - A mark of the instance [`REMOVAL`] shows that readings of the day are being removed. Only
//!   `hourbucket remove` replaces the day by one that counts less, and removes the mark.
//! - All calls may be repeated after any error.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{BoxFuture, StoreError};
use crate::maintain::{Hour, StoredPage};
use model::{Day, SensorId};

/// The instance of the marks that `hourbucket remove` sets.
pub const REMOVAL: &str = "hourbucket remove";

/// The summary of one sensor's day.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DaySummary {
    /// Count, times and fields of all hours.
    pub hour: Hour,
    /// The tags of the last hour that has tags.
    pub tags: BTreeMap<String, String>,
}

impl DaySummary {
    /// Adds the next page, in the order of their hours, and within an hour from the last page to
    /// the first.
    pub fn add_page(&mut self, page: &StoredPage) {
        self.hour.add_page(page);
        if !page.tags.is_empty() {
            self.tags.clone_from(&page.tags);
        }
    }
}

/// One day of one sensor.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SensorDay {
    /// The day.
    pub day: Day,
    /// The sensor.
    pub sensor_id: SensorId,
}

/// Records that a day must be computed again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DayMark {
    /// The id of the instance that set it and removes it.
    pub instance: Arc<str>,
    /// Start of the day, in milliseconds since 1970.
    pub day_ms: i64,
    /// The sensor.
    pub sensor_id: SensorId,
    /// Its version, near the time at which it was set (ms since 1970).
    pub version: i64,
}

/// Selects marks, in the order of instance, day and sensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MarkQuery {
    /// Which marks.
    pub of: MarksOf,
    /// Continue after this mark.
    pub after: Option<DayMark>,
    /// Maximum number of marks to return.
    pub limit: usize,
}

/// Whose marks a [`MarkQuery`] selects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MarksOf {
    /// Those of one instance.
    Instance(Arc<str>),
    /// Those of one sensor, of all instances.
    Sensor(SensorId),
    /// Those of several sensors, of all instances.
    Sensors(Vec<SensorId>),
    /// Those of all instances with a version before this one.
    Before(i64),
}

/// The result of writing one day.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DayWritten {
    /// Stored.
    Done,
    /// The stored document counts more readings, and is kept.
    Newer,
    /// The store rejects this document permanently.
    Rejected {
        /// The store's error text.
        detail: String,
    },
}

/// Selects days of one sensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DayQuery {
    /// The sensor.
    pub sensor_id: SensorId,
    /// Days that begin at or after this, in milliseconds since 1970.
    pub from_ms: i64,
    /// Days that begin before this, in milliseconds since 1970.
    pub to_ms: i64,
}

/// Selects days of several sensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaysQuery {
    /// The sensors, each once.
    pub sensor_ids: Vec<SensorId>,
    /// Days that begin at or after this, in milliseconds since 1970.
    pub from_ms: i64,
    /// Days that begin before this, in milliseconds since 1970.
    pub to_ms: i64,
    /// The fields whose summaries are needed; others may be missing.
    pub fields: Vec<String>,
}

/// Days of several sensors.
#[derive(Debug, Clone, Default)]
pub struct DaysResults {
    /// All days of all sensors but those in `rest`, by their start (ms since 1970).
    pub days: Vec<(SensorId, i64, Hour)>,
    /// Sensors that did not fit into the result. If these are all requested sensors, the first of
    /// them is too large.
    pub rest: Vec<SensorId>,
}

/// The daily rollups of a store.
pub trait DayStore: Send + Sync {
    /// Sets marks, durably (majority).
    fn mark_days<'a>(&'a self, marks: &'a [DayMark]) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Removes the marks that still have these versions.
    fn clear_marks<'a>(&'a self, marks: &'a [DayMark]) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Lists marks.
    fn day_marks<'a>(
        &'a self,
        query: &'a MarkQuery,
    ) -> BoxFuture<'a, Result<Vec<DayMark>, StoreError>>;

    /// Computes days from their hours; the results are in the order of the requests. `None`: not
    /// this time, because the answer would be too large; at least one is computed.
    fn compute_days<'a>(
        &'a self,
        days: &'a [SensorDay],
    ) -> BoxFuture<'a, Result<Vec<Option<DaySummary>>, StoreError>>;

    /// Writes days; the results are in the same order. `replace`: also if the stored document
    /// counts more readings (for removals and repairs only).
    fn write_days<'a>(
        &'a self,
        days: &'a [(SensorDay, DaySummary)],
        replace: bool,
    ) -> BoxFuture<'a, Result<Vec<DayWritten>, StoreError>>;

    /// Reads days of one sensor, by their start (ms since 1970), in order. May return fewer than
    /// are stored; the caller continues after the last one. An empty answer means that there are no
    /// more.
    fn stored_days<'a>(
        &'a self,
        query: &'a DayQuery,
    ) -> BoxFuture<'a, Result<Vec<(i64, DaySummary)>, StoreError>>;

    /// Reads days of several sensors.
    fn days_of<'a>(
        &'a self,
        query: &'a DaysQuery,
    ) -> BoxFuture<'a, Result<DaysResults, StoreError>>;
}
