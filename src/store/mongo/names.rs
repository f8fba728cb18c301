//! Names of the collections and views (documented in `docs/mongodb.md`).

use mongodb::bson::{Document, doc};

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
/// The collection of all sensors with their tags and fields.
pub const CATALOG: &str = "sensor_catalog";
/// The collection of the newest state of each sensor.
pub const LATEST: &str = "sensor_latest";
/// The collection of daily summaries.
pub(crate) const DAYS: &str = "sensor_days";
/// The view of daily summaries with averages.
pub(crate) const DAY_SUMMARIES: &str = "sensor_day_summaries";
/// The collection of marks of days that must be computed again.
pub(crate) const PENDING_DAYS: &str = "rollup_pending";
/// The index of `sensor_buckets` that finds the oldest pages with readings.
pub(crate) const REMOVAL_INDEX: &str = "readings_removal";

/// The keys of [`REMOVAL_INDEX`].
pub(crate) fn removal_key() -> Document {
    doc! { "storage": 1, "readings_removed": 1, "bucket_end": 1 }
}
