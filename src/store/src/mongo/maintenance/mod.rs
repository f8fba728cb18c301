//! Commands of the operator on stored data: reconcile, convert, remove, fill and check days; and the
//! removal of entries of the catalogue.

pub(super) mod alone;
pub(super) mod convert;
pub(super) mod convert_bucket;
pub(super) mod days;
pub(super) mod drop_duplicates;
pub(super) mod expire_catalog;
pub(super) mod reconcile;
pub(super) mod remove;
pub(super) mod repair;

use std::time::Duration;

use crate::mongo::read::queries::Reader;
use crate::mongo::write::days::DayWriter;
use crate::mongo::write::recompute_summary::SummaryRecompute;

/// Changes stored buckets and days under their guards, while a service runs.
#[derive(Debug, Clone)]
pub struct Maintenance {
    reader: Reader,
    recompute: SummaryRecompute,
    days: DayWriter,
    /// `store.retention`
    retention: Option<Duration>,
}

impl Maintenance {
    pub(super) fn new(
        reader: Reader,
        recompute: SummaryRecompute,
        days: DayWriter,
        retention: Option<Duration>,
    ) -> Maintenance {
        Maintenance {
            reader,
            recompute,
            days,
            retention,
        }
    }
}
