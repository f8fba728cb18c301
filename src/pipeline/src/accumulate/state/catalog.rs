//! What the sensors of a shard bring to the catalogue: with a page write, and for queries. Pure.
//!
//! An update is made only of what the catalogue is not known to hold ([`catalogued`]). It is noted
//! when the write is confirmed, so an update whose write failed is made again.
//!
//! Full: what is known is forgotten if it uses more than its part of the memory. It is read again
//! from the store with each sensor's next write.
//!
//! [`catalogued`]: super::catalogued

use std::sync::Arc;

use super::catalogued::ConfirmedSets;
use super::sensors::{Entry, OpenBucket, Sensor, Sensors};
use crate::accumulate::bucket::Bucket;
use crate::enrich::Registry;
use model::catalog::floor_arrival;
use model::{CatalogUpdate, Rows, Summary, Tags};

pub(super) struct ShardCatalog {
    /// Tags in addition to those in the messages.
    registry: Registry,
    confirmed: ConfirmedSets,
    /// The precision of arrivals.
    arrival_step_ms: i64,
    /// The wall clock at the last event (ms since 1970).
    wall_ms: i64,
}

impl ShardCatalog {
    pub(super) fn new(arrival_step_ms: i64) -> ShardCatalog {
        ShardCatalog {
            registry: Registry::default(),
            confirmed: ConfirmedSets::default(),
            arrival_step_ms,
            wall_ms: 0,
        }
    }

    pub(super) fn set_registry(&mut self, registry: Registry) {
        self.registry = registry;
    }

    pub(super) fn set_wall_ms(&mut self, wall_ms: i64) {
        self.wall_ms = wall_ms;
    }

    /// The tags for a page of this bucket.
    pub(super) fn page_tags(&self, open: &OpenBucket<'_>) -> Option<Arc<Tags>> {
        let own = open.sensor.tags.of_page(open.bucket);
        self.registry.tags(&open.sensor.id, own)
    }

    /// The newest tags of a sensor.
    pub(super) fn newest_tags(&self, sensor: &Sensor) -> Option<Arc<Tags>> {
        self.registry.tags(&sensor.id, sensor.tags.newest())
    }

    /// What the catalogue must know before these rows of a sensor are written; `None` if it does.
    pub(super) fn update(
        &self,
        sensor: &Sensor,
        rows: &Rows,
        summary: Option<&Summary>,
    ) -> Option<CatalogUpdate> {
        let tags = self.newest_tags(sensor);
        let tags = tags.as_deref().filter(|tags| !tags.as_bytes().is_empty());
        let arrived_ms = floor_arrival(self.wall_ms, sensor.hash, self.arrival_step_ms);
        let covered = rows.is_empty()
            || sensor
                .confirmed
                .covers(sensor.hash, rows, summary, tags, arrived_ms);
        let tags = tags.map(|tags| (sensor.tags.time_of(tags, rows), tags));
        (!covered).then(|| CatalogUpdate {
            created_ms: self.wall_ms,
            ..CatalogUpdate::of_rows(sensor.id.clone(), rows, tags, arrived_ms)
        })
    }

    /// What the unstored rows of a sensor add to the catalogue.
    pub(super) fn unstored_update(&self, entry: &Entry) -> Option<CatalogUpdate> {
        let rows = entry.buckets.iter().flat_map(Bucket::rows);
        let updates = rows.filter_map(|rows| self.update(&entry.sensor, rows, None));
        updates.reduce(|mut merged, update| {
            merged.merge(&update);
            merged
        })
    }

    /// The catalogue holds this update.
    pub(super) fn confirm(&mut self, sensor: &mut Sensor, update: &CatalogUpdate) {
        sensor
            .confirmed
            .note(sensor.hash, update, &mut self.confirmed);
    }

    /// Forgets what is confirmed if it uses more than `bytes_max`.
    pub(super) fn limit(&mut self, sensors: &mut Sensors, bytes_max: usize) {
        if self.memory() > bytes_max {
            sensors.forget_confirmed();
            self.confirmed.sweep();
        }
    }

    /// Drops what no sensor has.
    pub(super) fn sweep(&mut self) {
        self.confirmed.sweep();
    }

    /// Bytes, without those of the sensors.
    pub(super) fn memory(&self) -> usize {
        self.confirmed.memory_bytes()
    }
}
