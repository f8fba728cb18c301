//! Names of the collections and views (documented in `docs/mongodb.md`).

/// The time-series collection of measurements.
pub const READINGS: &str = "sensor_readings";
/// The collection of the one document.
pub const META: &str = "hourbucket_meta";
/// The view with one row a sensor and bucket.
pub const SUMMARIES: &str = "sensor_summaries";
/// The collection of messages that could not be stored.
pub const DEAD_LETTERS: &str = "dead_letters";
/// The collection of bucket pages.
pub const BUCKETS: &str = "sensor_buckets";
/// The collection of the fleet's newest state.
pub const LATEST: &str = "sensor_latest";
