//! What the sensors of a shard bring to the catalogue: with a page write, and for queries.

use std::collections::BTreeMap;

use super::catalogued::Confirmed;
use super::{Sensor, Shard};
use model::catalog::floor_arrival;
use model::{CatalogUpdate, Rows, SensorId, Summary, Tags, has_prefix, stable_hash};

impl Shard {
    /// What the catalogue must know before these rows of a sensor are written; `None` if it does.
    pub(super) fn catalog_update(
        &self,
        sensor: &Sensor,
        rows: &Rows,
        summary: Option<&Summary>,
    ) -> Option<CatalogUpdate> {
        let tags = self.registry.tags(&sensor.id, sensor.newest_tags.as_ref());
        let tags = tags.as_deref().filter(|tags| !tags.as_bytes().is_empty());
        let arrived_ms = floor_arrival(self.wall_ms, sensor.hash, self.settings.arrival_step_ms);
        let covered = rows.is_empty()
            || sensor
                .confirmed
                .covers(sensor.hash, rows, summary, tags, arrived_ms);
        let tags = tags.map(|tags| (sensor.time_of(tags, rows), tags));
        (!covered).then(|| CatalogUpdate {
            created_ms: self.wall_ms,
            ..CatalogUpdate::of_rows(sensor.id.clone(), rows, tags, arrived_ms)
        })
    }

    /// The catalogue holds this update.
    pub(super) fn catalogued(&mut self, slot: usize, update: &CatalogUpdate) {
        if let Some(sensor) = self
            .sensors
            .get_mut(slot)
            .filter(|sensor| sensor.id == update.sensor_id)
        {
            sensor
                .confirmed
                .note(sensor.hash, update, &mut self.confirmed);
        }
    }

    /// Forgets the confirmed entries if they use more than a sixteenth of the memory; they are read
    /// again from the store.
    pub(super) fn evict_confirmed(&mut self) {
        if self.confirmed.memory_bytes() > self.settings.bytes_max / 16 {
            self.sensors
                .iter_mut()
                .for_each(|(_, sensor)| sensor.confirmed = Confirmed::default());
            self.confirmed.sweep();
            self.count_shared();
        }
    }

    /// What the unstored rows of a sensor add to the catalogue.
    pub(super) fn unstored_update(&self, sensor: &Sensor) -> Option<CatalogUpdate> {
        if sensor.buckets.is_empty() {
            return None;
        }
        let rows = sensor
            .buckets
            .iter()
            .flat_map(super::super::bucket::Bucket::rows);
        let updates = rows.filter_map(|rows| self.catalog_update(sensor, rows, None));
        updates.reduce(|mut merged, update| {
            merged.merge(&update);
            merged
        })
    }
}

impl Sensor {
    /// When tags applied that are written with these rows: at the reading that had them. Those of
    /// the registry apply to every reading.
    fn time_of(&self, tags: &Tags, rows: &Rows) -> i64 {
        match &self.newest_tags {
            Some(own) if own.as_bytes() == tags.as_bytes() => self.tags_ts_ms,
            _ => self.tags_ts_ms.max(rows.last_ts_ms()),
        }
    }
}

/// A scan for the sensors with unstored rows that the catalogue may not know.
#[derive(Debug)]
pub(crate) struct CatalogScan {
    sensor_ids: Option<Vec<SensorId>>,
    prefixes: Vec<String>,
    after: Option<SensorId>,
    limit: usize,
    at: usize,
    found: BTreeMap<SensorId, CatalogUpdate>,
}

impl CatalogScan {
    /// A scan for the first `limit` of these sensors (or of all) that begin with one of the
    /// prefixes, after `after` in byte order.
    pub(crate) fn new(
        sensor_ids: Option<Vec<SensorId>>,
        prefixes: Vec<String>,
        after: Option<SensorId>,
        limit: usize,
    ) -> CatalogScan {
        CatalogScan {
            sensor_ids,
            prefixes,
            after,
            limit,
            at: 0,
            found: Default::default(),
        }
    }

    fn look(&mut self, shard: &Shard, sensor: &Sensor) {
        let full = self.found.len() >= self.limit;
        if !has_prefix(&sensor.id, &self.prefixes)
            || self.after.as_ref().is_some_and(|after| sensor.id <= *after)
            || full
                && self
                    .found
                    .last_key_value()
                    .is_none_or(|(last, _)| sensor.id > *last)
        {
            return;
        }
        let Some(update) = shard.unstored_update(sensor) else {
            return;
        };
        if full {
            self.found.pop_last();
        }
        self.found.insert(sensor.id.clone(), update);
    }

    /// The updates found, ordered by sensor.
    pub(crate) fn into_updates(self) -> Vec<CatalogUpdate> {
        self.found.into_values().collect()
    }
}

/// Sensors that are looked up by id in one step of a scan.
const LOOK_UP_STEP: usize = 256;

impl Shard {
    /// Does one step of a scan; `true` at the end.
    pub(crate) fn scan_catalog(&self, scan: &mut CatalogScan) -> bool {
        let Some(ids) = scan.sensor_ids.take() else {
            let (sensors, is_last) = self.step(&mut scan.at);
            sensors.for_each(|sensor| scan.look(self, sensor));
            return is_last;
        };
        let from = scan.at;
        scan.at = ids.len().min(from + LOOK_UP_STEP);
        for id in &ids[from..scan.at] {
            if let Some(sensor) = self.known(stable_hash(id), id) {
                scan.look(self, sensor);
            }
        }
        let is_last = scan.at >= ids.len();
        scan.sensor_ids = Some(ids);
        is_last
    }
}
