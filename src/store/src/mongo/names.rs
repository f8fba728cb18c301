//! Names in the database: those of [`model::collections`], and of indexes.

use mongodb::bson::{Document, doc};

pub use model::collections::{BUCKETS, CATALOG, LATEST, READINGS};
pub(crate) use model::collections::{
    DAY_SUMMARIES, DAYS, DEAD_LETTERS, META, PENDING_DAYS, SUMMARIES,
};

/// The index of `sensor_buckets` that finds the oldest pages with readings.
pub(crate) const REMOVAL_INDEX: &str = "readings_removal";

/// The keys of [`REMOVAL_INDEX`].
pub(crate) fn removal_key() -> Document {
    doc! { "storage": 1, "readings_removed": 1, "bucket_end": 1 }
}
