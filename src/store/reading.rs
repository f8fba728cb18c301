//! What the read API asks of a store, and what it gets. All of it is what a majority has, and sees everything that an
//! `Ok` was given for before the question. Every answer has a limit of its own, and says where it ended.

use std::collections::BTreeMap;

use crate::maintain::StoredPage;
use crate::model::{BucketStart, DeadLetter, Rows, SensorId, Value};

/// Which pages of a sensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageQuery {
    /// Whose.
    pub sensor_id: SensorId,
    /// The first bucket.
    pub from: BucketStart,
    /// The time (ms since 1970) before which the buckets begin.
    pub to_ms: i64,
    /// The page behind which to go on, in the order of the answer.
    pub after: Option<(BucketStart, u32)>,
    /// With readings, of the pages that can have some at or after this time (ms since 1970); without, of all pages all
    /// but the readings.
    pub readings_from_ms: Option<i64>,
}

/// Pages by their buckets' time; those of one bucket from the last to the first. (A page is sealed before the next one is
/// made, so what is read in this order fits together.)
#[derive(Debug, Clone, Default)]
pub struct PageResults {
    /// The next pages.
    pub pages: Vec<(BucketStart, StoredPage)>,
    /// The page behind which there may be more, to be given as `after`.
    pub next: Option<(BucketStart, u32)>,
}

/// Which measurements of a sensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeasurementQuery {
    /// Whose.
    pub sensor_id: SensorId,
    /// From when on, in milliseconds since 1970.
    pub from_ms: i64,
    /// Until when, exclusive.
    pub to_ms: i64,
    /// How many are enough.
    pub limit: usize,
}

/// Measurements by time.
#[derive(Debug, Clone, Default)]
pub struct MeasurementResults {
    /// Those before `until_ms`, all of them.
    pub rows: Rows,
    /// The end of what was asked for, or before it where there are more than `limit`. Never the begin: those of one
    /// millisecond are given together.
    pub until_ms: i64,
}

/// Which sensors.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SensorQuery {
    /// How their ids begin.
    pub prefix: String,
    /// Behind this one.
    pub after: Option<String>,
    /// How many at most.
    pub limit: usize,
}

/// The newest state of a sensor.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StoredSensor {
    /// The latest time of its readings, in milliseconds since 1970.
    pub last_ts_ms: Option<i64>,
    /// Of its newest bucket.
    pub tags: BTreeMap<String, String>,
    /// By field: time and value of the newest one, among the readings that came last.
    pub values: BTreeMap<String, (i64, Value)>,
}

/// Which dead letters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeadLetterQuery {
    /// With this reason.
    pub reason: Option<String>,
    /// Received at or before this time (ms since 1970), without so many of that very millisecond.
    pub before: Option<(i64, u32)>,
    /// How many at most.
    pub limit: usize,
    /// Bytes of payload after which no more are read.
    pub bytes_max: usize,
}

/// A dead letter and its id in the collection.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredDeadLetter {
    /// The id, as text.
    pub id: String,
    /// The dead letter.
    pub dead_letter: DeadLetter,
}
