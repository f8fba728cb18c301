//! Queries for the summaries and edges of many sensors, which PromQL sends. Reads are as those of
//! [`super::reading`].

use std::collections::BTreeMap;

use crate::maintain::StoredPage;
use model::{BucketKey, BucketStart, Rows, SensorId};

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
    /// [`super::reading::PageResults`].
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
