//! Days whose readings are read from their columns (`sensor_columns`) instead of from pages or
//! measurements.
//!
//! The order makes them current, as that of [`super::days`]: first the rows in memory, then the days
//! that are pending and the marks of all instances, then the columns. The columns of a day are used if
//! the day is over, has no row in memory and is neither pending nor marked. A day without columns is
//! read from pages: the past may not be filled, the sensor may have been silent, or the day may be too
//! large.

use std::collections::{BTreeMap, BTreeSet};

use super::series::{Wanted, fields_of};
use super::{ReadError, ReadService};
use model::{Day, SensorId};
use store::columns::{ColumnsQuery, StoredColumns};

/// Buckets of one sensor, and of all together, whose pages cost less than the search for columns.
const BUCKETS_MIN: i64 = 6;
const BUCKETS_OF_ALL_MIN: i64 = 48;
/// Days of a query whose columns are searched for: ten years. Longer ones take pages.
const DAYS_MAX: usize = 3660;

/// The columns of a sensor that are used, by day.
pub(super) type ColumnedDays = BTreeMap<Day, StoredColumns>;

impl ReadService {
    /// The days of a range (ms since 1970, end exclusive) that may have columns which are cheaper
    /// than pages, for so many sensors.
    pub(super) fn days_with_columns(
        &self,
        sensors: usize,
        (from_ms, to_ms): (i64, i64),
    ) -> Vec<Day> {
        let from_ms = self.span().floor(from_ms).0;
        let has_columns = self.kinds.columns.is_some() && self.store.columns().is_some();
        let buckets = to_ms.saturating_sub(from_ms) / self.span().ms();
        let of_all = buckets.saturating_mul(i64::try_from(sensors).unwrap_or(i64::MAX));
        if !has_columns || buckets < BUCKETS_MIN || of_all < BUCKETS_OF_ALL_MIN {
            return vec![];
        }
        let now_ms = self.now_ms();
        let over = self.zone.days(from_ms, to_ms);
        let over = over.take_while(|day| day.end_ms <= now_ms);
        let over: Vec<Day> = over.take(DAYS_MAX + 1).collect();
        match over.len() > DAYS_MAX {
            true => vec![],
            false => over,
        }
    }

    /// For each sensor the columns of these days that are not in `changed`; and the sensors that must be
    /// asked for again, because their columns do not fit into this answer.
    pub(super) async fn columned_days(
        &self,
        wanted: &[Wanted],
        days: &[Day],
        changed: &[BTreeSet<Day>],
    ) -> Result<(Vec<ColumnedDays>, BTreeSet<SensorId>), ReadError> {
        let mut usable = vec![ColumnedDays::new(); wanted.len()];
        let (Some(first), Some(last), Some(store)) =
            (days.first(), days.last(), self.store.columns())
        else {
            return Ok((usable, BTreeSet::new()));
        };
        let query = ColumnsQuery {
            sensor_ids: wanted.iter().map(|of| of.sensor_id.clone()).collect(),
            from_ms: first.start_ms,
            to_ms: last.end_ms,
            fields: fields_of(wanted),
        };
        let place: BTreeMap<&SensorId, usize> = query.sensor_ids.iter().zip(0..).collect();
        let found = store.columns_of(&query).await?;
        for stored in found.days {
            let Some(i) = place.get(&stored.sensor_id).copied() else {
                continue;
            };
            let day = self.zone.day(stored.day_ms);
            if day.start_ms == stored.day_ms && !changed[i].contains(&day) {
                usable[i].insert(day, stored);
            }
        }
        let mut rest: BTreeSet<SensorId> = found.rest.into_iter().collect();
        if rest.len() == wanted.len() {
            // The first one is too large for an answer: its pages are read.
            rest.pop_first();
        }
        Ok((usable, rest))
    }
}
