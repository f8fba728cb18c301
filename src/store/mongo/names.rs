//! Names of the collections and views (documented in `docs/mongodb.md`).

/// The time-series collection of measurements.
pub const READINGS: &str = "sensor_readings";
/// Schema version, span and high-water mark, one document each.
pub(crate) const META: &str = "hourbucket_meta";
/// The view with one row for each sensor and bucket.
pub(crate) const SUMMARIES: &str = "sensor_summaries";
/// The collection of messages and readings that could not be decoded or stored.
pub(crate) const DEAD_LETTERS: &str = "dead_letters";
/// The collection of bucket pages.
pub const BUCKETS: &str = "sensor_buckets";
/// The collection of the newest state of each sensor.
pub const LATEST: &str = "sensor_latest";
