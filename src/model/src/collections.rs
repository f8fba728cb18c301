//! Names of the collections and views in `store.database` that hourbucket owns (documented in
//! `docs/mongodb.md`).

/// The time-series collection of measurements.
pub const READINGS: &str = "sensor_readings";
/// Schema version, span and high-water mark, one document each.
pub const META: &str = "hourbucket_meta";
/// The view with one row for each sensor and bucket.
pub const SUMMARIES: &str = "sensor_summaries";
/// The collection of messages and readings that could not be decoded or stored.
pub const DEAD_LETTERS: &str = "dead_letters";
/// The collection of bucket pages.
pub const BUCKETS: &str = "sensor_buckets";
/// The collection of all sensors with their tags and fields.
pub const CATALOG: &str = "sensor_catalog";
/// The collection of the newest state of each sensor.
pub const LATEST: &str = "sensor_latest";
/// The collection of daily summaries.
pub const DAYS: &str = "sensor_days";
/// The view of daily summaries with averages.
pub const DAY_SUMMARIES: &str = "sensor_day_summaries";
/// The collection of marks of days that must be computed again.
pub const PENDING_DAYS: &str = "rollup_pending";
/// The collection of the readings of days, in columns.
pub const COLUMNS: &str = "sensor_columns";
/// The collection of the rich summaries of hours, one document for a day.
pub const DAY_HOURS: &str = "sensor_day_hours";
/// The view with one row for each hour that has a rich summary.
pub const RICH_HOURS: &str = "sensor_rich_hours";

/// The collection of former ids of sensors.
pub const ALIASES: &str = "sensor_aliases";

/// All of them. No setting may name one of these as a collection of the user.
pub const OWN: [&str; 14] = [
    READINGS,
    META,
    SUMMARIES,
    DEAD_LETTERS,
    BUCKETS,
    CATALOG,
    LATEST,
    DAYS,
    DAY_SUMMARIES,
    PENDING_DAYS,
    COLUMNS,
    DAY_HOURS,
    RICH_HOURS,
    ALIASES,
];
