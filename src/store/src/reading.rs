//! Queries that the read API and PromQL send to a store, and their results. Reads use majority read concern
//! and see every write that returned `Ok` before the query. Each result has its own size limit and
//! reports where it ended.

use std::collections::BTreeMap;

use crate::maintain::StoredPage;
use model::{BucketKey, BucketStart, DeadLetter, Rows, SensorId, Value};

/// Selects pages of one sensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageQuery {
    /// The sensor.
    pub sensor_id: SensorId,
    /// The first bucket to return.
    pub from: BucketStart,
    /// Return buckets that begin before this time (ms since 1970).
    pub to_ms: i64,
    /// Continue after this page, in the order of the results.
    pub after: Option<(BucketStart, u32)>,
    /// If set, return readings, and only the pages that can hold one at or after this time (ms
    /// since 1970). If not, return all pages without their readings.
    pub readings_from_ms: Option<i64>,
}

/// Pages ordered by bucket time, and within one bucket from the last page to the first. (A page is
/// sealed before the next one is created, so pages read in this order are consistent.)
#[derive(Debug, Clone, Default)]
pub struct PageResults {
    /// Start of the bucket, and the page.
    pub pages: Vec<(BucketStart, StoredPage)>,
    /// Pass this as `after` to continue; `None` at the end.
    pub next: Option<(BucketStart, u32)>,
}

/// Selects measurements of one sensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeasurementQuery {
    /// The sensor.
    pub sensor_id: SensorId,
    /// Start of the time range, inclusive, in milliseconds since 1970.
    pub from_ms: i64,
    /// End of the time range, exclusive, in milliseconds since 1970.
    pub to_ms: i64,
    /// Maximum number of measurements to return.
    pub limit: usize,
}

/// Measurements ordered by time.
#[derive(Debug, Clone, Default)]
pub struct MeasurementResults {
    /// All measurements before `until_ms`.
    pub rows: Rows,
    /// End of the requested range, or an earlier time if there are more than `limit`. Always after
    /// the start of the range: measurements of the same millisecond are returned together.
    pub until_ms: i64,
}

/// Selects sensors.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SensorQuery {
    /// Only ids with this prefix.
    pub prefix: String,
    /// Only ids after this one.
    pub after: Option<String>,
    /// Maximum number of ids to return.
    pub limit: usize,
}

/// The newest state of a sensor.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StoredSensor {
    /// The latest time of its readings, in milliseconds since 1970.
    pub last_ts_ms: Option<i64>,
    /// By field: time and value of the newest one among the last stored readings.
    pub values: BTreeMap<String, (i64, Value)>,
}

/// Selects dead letters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeadLetterQuery {
    /// Only with this reason.
    pub reason: Option<String>,
    /// Only those received at or before this time (ms since 1970), skipping this many of that
    /// millisecond.
    pub before: Option<(i64, u32)>,
    /// Maximum number of dead letters to return.
    pub limit: usize,
    /// Stop after this many bytes of payload.
    pub bytes_max: usize,
}

/// A dead letter and its id in the collection.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredDeadLetter {
    /// The id as text.
    pub id: String,
    /// The content of the document.
    pub dead_letter: DeadLetter,
}

/// Selects pages of several sensors, without their readings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SummaryQuery {
    /// The sensors, each once.
    pub sensor_ids: Vec<SensorId>,
    /// The first bucket to return.
    pub from: BucketStart,
    /// Return buckets that begin before this time (ms since 1970).
    pub to_ms: i64,
    /// The fields whose summaries are needed; others may be missing.
    pub fields: Vec<String>,
}

/// Pages of several sensors.
#[derive(Debug, Clone, Default)]
pub struct SummaryResults {
    /// All pages of all sensors but those in `rest`; of each sensor in the order of
    /// [`PageResults`].
    pub pages: Vec<(BucketKey, StoredPage)>,
    /// Sensors that did not fit into the result. If these are all requested sensors, the first of
    /// them has too many pages: read them one sensor at a time.
    pub rest: Vec<SensorId>,
}

/// Selects the readings at the first millisecond of buckets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EdgeQuery {
    /// The sensors, each once.
    pub sensor_ids: Vec<SensorId>,
    /// The buckets, the same of each sensor.
    pub starts: Vec<BucketStart>,
}

/// The readings of each sensor that has some, in any order.
pub type Edges = BTreeMap<SensorId, Rows>;
