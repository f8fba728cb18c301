//! Fleet overview: the busiest sensors, the newest, and those that have become silent.
//!
//! The shards are scanned step by step, at most once per [`FRESH`], however many clients query. The
//! data is from this process: a restart begins empty, and a second instance has its own. The
//! catalogue knows the newest sensors and long silence ([`super::silence`]), as last counted.
//!
//! A sensor is as new as its entry in the catalogue, whatever the times of its readings. One without
//! an entry is newer: its first readings are not written yet.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::{ReadError, ReadService, TIME_MAX};
use model::SensorId;
use pipeline::accumulate::state::snapshot::{
    BusySensor, FLEET_MAX, FleetScan, NewSensor, ShardFleet, SilentSensor,
};
use store::catalog::{CatalogCounts, CatalogEntry, CatalogQuery};

/// How long a result is reused.
const FRESH: Duration = Duration::from_secs(3);
/// New sensors that are looked up in the store in one request.
const LOOK_UP_MAX: usize = 256;
/// Time limit of that lookup.
const LOOK_UP_TIME: Duration = Duration::from_secs(2);

/// The sensors of all shards: their number, the busiest, the newest and the silent ones.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Fleet {
    /// When the shards were scanned, ms since 1970.
    pub(crate) as_of_ms: i64,
    /// Sensors in memory: those with readings of the last hour or so.
    pub sensors: usize,
    /// Sensors in the catalogue, and those of them that are silent; 0 until it is read.
    pub known: u64,
    /// See `known`.
    pub silent_total: u64,
    /// `sensors.silent_after`, ms.
    pub(crate) silent_after_ms: i64,
    /// Sensors that this process has heard and that are not silent. Of those that have left the
    /// memory, the last 4,096 of each shard at most.
    pub heard: u64,
    /// Those of them that are late by their own interval.
    pub(crate) late_total: u64,
    /// The busiest first.
    pub busiest: Vec<BusySensor>,
    /// The newest first.
    pub newest: Vec<NewSensor>,
    /// Late and silent ones, the most recently silent first.
    pub silent: Vec<SilentSensor>,
}

impl Fleet {
    /// Whether half of the sensors that this process has heard are late, or half of all are silent.
    /// Sensors that are out of use are not silent, but count as known.
    pub(crate) fn is_half_away(&self) -> bool {
        let is_half = |part: u64, whole: u64| part > 0 && part.saturating_mul(2) >= whole;
        is_half(self.late_total, self.heard) || is_half(self.silent_total, self.known)
    }
}

/// The last result.
#[derive(Default)]
pub(super) struct FleetCache(Mutex<Cached>);

#[derive(Default)]
struct Cached {
    fleet: Option<(Instant, Fleet)>,
    /// Of the sensors that the shards have met: when the entry in the catalogue was created.
    created: BTreeMap<SensorId, i64>,
}

impl ReadService {
    /// The fleet, at most a few seconds old.
    ///
    /// # Errors
    /// See [`ReadError`]. The fleet does not depend on the store.
    pub async fn fleet(&self) -> Result<Fleet, ReadError> {
        timeout(TIME_MAX, self.look())
            .await
            .unwrap_or(Err(ReadError::TimedOut))
    }

    async fn look(&self) -> Result<Fleet, ReadError> {
        let mut cached = self.fleet.0.lock().await;
        if let Some((at, fleet)) = &cached.fleet
            && at.elapsed() < FRESH
        {
            return Ok(fleet.clone());
        }
        let as_of_ms = self.now_ms();
        let silent_ms = self.silence.arrivals_ms();
        let silent_before_ms = silent_ms.map_or(i64::MIN, |(_, to_ms)| to_ms);
        let asks =
            (0..self.shards.len()).map(|shard| self.query(shard, FleetScan::new(silent_before_ms)));
        let answers = try_join_all(asks).await?;
        let parts = answers.into_iter().map(|answered| answered.answer);
        let mut fleet = merged(parts.collect(), as_of_ms);
        let counts = self.silence.counts();
        add_silent(&mut fleet, &counts);
        fleet.silent_after_ms = self.silence.silent_after_ms();
        let mut met = std::mem::take(&mut fleet.newest);
        met.truncate(LOOK_UP_MAX);
        let all_known = self.look_up(&met, &mut cached.created).await;
        fleet.newest = newest(met, &cached.created, all_known, counts.newest);
        cached.fleet = Some((Instant::now(), fleet.clone()));
        Ok(fleet)
    }

    /// Looks up when the entries of these sensors were created, of those that are not in `created`
    /// yet; forgets all others. `false`: the catalogue did not answer.
    async fn look_up(&self, met: &[NewSensor], created: &mut BTreeMap<SensorId, i64>) -> bool {
        let met: BTreeSet<&SensorId> = met.iter().map(|met| &met.sensor_id).collect();
        created.retain(|id, _| met.contains(id));
        let ids = met.into_iter().filter(|id| !created.contains_key(*id));
        let ids: Vec<SensorId> = ids.cloned().collect();
        if ids.is_empty() {
            return true;
        }
        let query = CatalogQuery {
            sensor_ids: Some(ids),
            ..CatalogQuery::default()
        };
        let found = timeout(LOOK_UP_TIME, self.store.find_catalog(&query)).await;
        let Ok(Ok(found)) = found else {
            return false;
        };
        created.extend(found.into_iter().map(|e| (e.sensor_id, e.created_ms)));
        true
    }
}

/// The newest of the sensors that the shards have met since the start, and of those that the
/// catalogue has counted. `all_known`: those that are not in `created` have no entry.
fn newest(
    met: Vec<NewSensor>,
    created: &BTreeMap<SensorId, i64>,
    all_known: bool,
    counted: Vec<CatalogEntry>,
) -> Vec<NewSensor> {
    let counted = counted.into_iter().map(|e| (e.sensor_id, e.created_ms));
    let mut all: BTreeMap<SensorId, i64> = counted.collect();
    for NewSensor { sensor_id, at_ms } in met {
        let unwritten = all_known.then_some(at_ms);
        if let Some(at_ms) = created.get(&sensor_id).copied().or(unwritten) {
            all.insert(sensor_id, at_ms);
        }
    }
    let as_new = |(sensor_id, at_ms)| NewSensor { sensor_id, at_ms };
    let mut newest: Vec<NewSensor> = all.into_iter().map(as_new).collect();
    newest.sort_by_key(|new| std::cmp::Reverse(new.at_ms));
    newest.truncate(FLEET_MAX);
    newest
}

fn merged(parts: Vec<ShardFleet>, as_of_ms: i64) -> Fleet {
    let mut fleet = Fleet {
        as_of_ms,
        ..Fleet::default()
    };
    for part in parts {
        fleet.sensors += part.sensors;
        fleet.heard += part.heard;
        fleet.late_total += part.late;
        fleet.busiest.extend(part.busiest);
        fleet.silent.extend(part.silent);
        fleet.newest.extend(part.new_sensors);
    }
    fleet.busiest.sort_by(|a, b| {
        b.readings_per_minute
            .total_cmp(&a.readings_per_minute)
            .then_with(|| a.sensor_id.cmp(&b.sensor_id))
    });
    fleet.silent.sort_by(|a, b| {
        b.arrived_ms
            .cmp(&a.arrived_ms)
            .then_with(|| a.sensor_id.cmp(&b.sensor_id))
    });
    fleet.newest.sort_by(|a, b| {
        b.at_ms
            .cmp(&a.at_ms)
            .then_with(|| a.sensor_id.cmp(&b.sensor_id))
    });
    fleet.busiest.truncate(FLEET_MAX);
    fleet.silent.truncate(FLEET_MAX);
    fleet
}

/// Adds those that the catalogue knows to be silent, also since before the start and of other
/// instances.
fn add_silent(fleet: &mut Fleet, counts: &CatalogCounts) {
    (fleet.known, fleet.silent_total) = (counts.known, counts.arrived);
    for entry in &counts.latest {
        if fleet.silent.len() < FLEET_MAX
            && !fleet.silent.iter().any(|s| s.sensor_id == entry.sensor_id)
        {
            let sensor_id = entry.sensor_id.clone();
            let last_ts_ms = entry.last_ts_ms;
            let arrived_ms = entry.arrived_ms;
            fleet.silent.push(SilentSensor {
                sensor_id,
                last_ts_ms,
                arrived_ms,
            });
        }
    }
    fleet.silent.sort_by(|a, b| {
        b.arrived_ms
            .cmp(&a.arrived_ms)
            .then_with(|| a.sensor_id.cmp(&b.sensor_id))
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{CatalogUpdate, RowFlags, Rows, ValueRef};

    fn entry(sensor_id: &str, created_ms: i64) -> CatalogEntry {
        // Readings of an earlier time, as in a backfill.
        let mut rows = Rows::default();
        rows.push_named(0, RowFlags::default(), &[("temp", ValueRef::Int(1))]);
        let update = CatalogUpdate::of_rows(sensor_id.into(), &rows, None, created_ms);
        CatalogEntry::new(&update)
    }

    fn met(sensor_id: &str, at_ms: i64) -> NewSensor {
        let sensor_id = sensor_id.into();
        NewSensor { sensor_id, at_ms }
    }

    #[test]
    fn a_sensor_is_as_new_as_its_entry_in_the_catalogue() {
        // After a restart every sensor is new to the shards.
        let shards = vec![
            met("unwritten", 9000),
            met("back", 8500),
            met("backfilled", 8000),
        ];
        let created = [("back".into(), 10), ("backfilled".into(), 8005)].into();
        let counted = vec![entry("other instance", 8700), entry("backfilled", 8005)];
        let expected = [
            met("unwritten", 9000),
            met("other instance", 8700),
            met("backfilled", 8005),
            met("back", 10),
        ];
        let all = newest(shards.clone(), &created, true, counted.clone());
        assert_eq!(all, expected);
        // Without an answer, "unwritten" may be an old sensor.
        assert_eq!(newest(shards, &created, false, counted), expected[1..]);
        let many = (0..100).map(|n| met(&n.to_string(), n)).collect();
        let newest = newest(many, &BTreeMap::new(), true, vec![]);
        assert_eq!((newest.len(), newest[0].at_ms), (FLEET_MAX, 99));
    }

    #[test]
    fn half_of_the_fleet_late_or_silent_is_away() {
        let is_away = |heard, late_total, known, silent_total| {
            let fleet = Fleet {
                heard,
                late_total,
                known,
                silent_total,
                ..Fleet::default()
            };
            fleet.is_half_away()
        };
        assert!(!is_away(0, 0, 0, 0) && !is_away(100, 49, 100, 0));
        assert!(is_away(100, 50, 100, 0) && is_away(1, 1, 0, 0));
        // After a day they are silent.
        assert!(is_away(50, 0, 100, 50) && is_away(0, 0, 100, 100));
        assert!(!is_away(51, 0, 100, 49));
    }
}
