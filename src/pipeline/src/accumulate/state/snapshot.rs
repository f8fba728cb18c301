//! Read-only views of a shard for queries. Each step is short: few sensors, or [`SCAN_STEP`] slots of
//! the slab, so that a shard of a million sensors continues its work in between. Pure.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Range;
use std::sync::Arc;

pub use super::sensors::NewSensor;

use super::Shard;
use super::reporting_interval::ReportingInterval;
use super::sensors::Entry;
use crate::accumulate::bucket::{Bucket, UnstoredBucket};
use crate::accumulate::query::ShardQuery;
use model::catalog::floor_arrival;
use model::{CatalogUpdate, Now, Rows, SensorId, Tags, Value, has_prefix, keep_newer, stable_hash};

/// Slab slots per step of a scan: about half a millisecond if none of it is in the CPU cache.
const SCAN_STEP: usize = 2048;
/// Sensors that are looked up by id in one step of a scan.
const LOOK_UP_STEP: usize = 256;
/// Sensor snapshots per step.
const SNAPSHOTS_STEP: usize = 16;

/// Sensors whose rows are copied in one step.
const VIEWS_STEP: usize = 8;
/// Maximum bytes of rows that one view copies.
const VIEW_BYTES_MAX: usize = 16 << 20;

/// Maximum entries in the lists `busiest` and `silent` of a [`ShardFleet`].
pub const FLEET_MAX: usize = 20;

/// One sensor's rows that are not known to be stored.
#[derive(Debug, Default)]
pub struct UnstoredRows {
    /// Ordered by start.
    pub buckets: Vec<UnstoredBucket>,
    /// If the view was truncated: the time (ms) from which on it contains nothing.
    pub cut_ms: Option<i64>,
}

/// Asks for the rows of sensors that are not known to be stored; answered in their order.
#[derive(Debug)]
pub struct ViewQuery {
    sensor_ids: Vec<SensorId>,
    from_ms: i64,
    to_ms: i64,
    views: Vec<UnstoredRows>,
}

impl ViewQuery {
    /// Rows of these sensors in a time range, ms since 1970, end exclusive.
    pub fn new(sensor_ids: Vec<SensorId>, from_ms: i64, to_ms: i64) -> ViewQuery {
        ViewQuery {
            views: Vec::with_capacity(sensor_ids.len()),
            sensor_ids,
            from_ms,
            to_ms,
        }
    }
}

impl ShardQuery for ViewQuery {
    type Answer = Vec<UnstoredRows>;

    fn step(&mut self, shard: &Shard, _: Now) -> Option<Vec<UnstoredRows>> {
        let next = self.sensor_ids.iter().skip(self.views.len());
        let view = |id: &SensorId| shard.view(stable_hash(id), id, self.from_ms, self.to_ms);
        self.views.extend(next.map(view).take(VIEWS_STEP));
        (self.views.len() == self.sensor_ids.len()).then(|| std::mem::take(&mut self.views))
    }
}

/// The newest state of a sensor in memory.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SensorSnapshot {
    /// The latest time of its readings, including stored ones.
    pub last_ts_ms: Option<i64>,
    /// The tags of its messages and of the registry.
    pub tags: Option<Arc<Tags>>,
    /// The time of the reading that the tags of its messages are from.
    pub tags_ts_ms: Option<i64>,
    /// Per field: time and value of the newest reading that is not known to be stored.
    pub values: BTreeMap<String, (i64, Value)>,
}

/// Asks for the newest state of sensors; answered in their order.
#[derive(Debug)]
pub struct SnapshotQuery {
    ids: Vec<SensorId>,
    snapshots: Vec<SensorSnapshot>,
}

impl SnapshotQuery {
    /// A query for these sensors.
    pub fn new(ids: Vec<SensorId>) -> SnapshotQuery {
        SnapshotQuery {
            snapshots: Vec::with_capacity(ids.len()),
            ids,
        }
    }
}

impl ShardQuery for SnapshotQuery {
    type Answer = Vec<SensorSnapshot>;

    fn step(&mut self, shard: &Shard, _: Now) -> Option<Vec<SensorSnapshot>> {
        let next = self.ids.iter().skip(self.snapshots.len());
        let snapshots = next.map(|id| shard.snapshot(stable_hash(id), id));
        self.snapshots.extend(snapshots.take(SNAPSHOTS_STEP));
        (self.snapshots.len() == self.ids.len()).then(|| std::mem::take(&mut self.snapshots))
    }
}

/// A sensor with a high rate of readings.
#[derive(Debug, Clone, PartialEq)]
pub struct BusySensor {
    /// The id as sent.
    pub sensor_id: SensorId,
    /// Of the last minutes, by arrival.
    pub readings_per_minute: f64,
    /// The time of its latest reading, ms since 1970.
    pub last_ts_ms: i64,
}

/// A sensor that has stopped reporting.
#[derive(Debug, Clone, PartialEq)]
pub struct SilentSensor {
    /// The id as sent.
    pub sensor_id: SensorId,
    /// The time of its latest reading, ms since 1970.
    pub last_ts_ms: i64,
    /// When it last arrived, ms since 1970.
    pub arrived_ms: i64,
}

/// One shard's part of the fleet.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct ShardFleet {
    /// Number of sensors in memory.
    pub sensors: usize,
    /// Sensors that this process has heard, without those that are silent by the catalogue.
    pub heard: u64,
    /// Those of them that are late by their own interval
    /// ([`reporting_interval`](super::reporting_interval)).
    pub late: u64,
    /// The busiest first.
    pub busiest: Vec<BusySensor>,
    /// The most recently silent first.
    pub silent: Vec<SilentSensor>,
    /// The newest first.
    pub new_sensors: Vec<NewSensor>,
}

/// Asks for a shard's part of the fleet.
#[derive(Debug)]
pub struct FleetScan {
    silent_before_ms: i64,
    /// The time of the present step.
    now: Now,
    /// The precision of the last arrival in the catalogue.
    arrival_step_ms: i64,
    at: usize,
    heard: u64,
    late: u64,
    /// Readings per minute (the bits of non-negative doubles sort like the doubles), last time.
    busiest: BinaryHeap<Reverse<(u64, i64, SensorId)>>,
    /// Last arrival, time of the latest reading.
    silent: BinaryHeap<Reverse<(i64, i64, SensorId)>>,
}

impl FleetScan {
    /// The catalogue counts sensors as silent whose last arrival is before `silent_before_ms` (ms
    /// since 1970).
    pub fn new(silent_before_ms: i64) -> FleetScan {
        FleetScan {
            silent_before_ms,
            now: Now {
                wall_ms: 0,
                mono_ms: 0,
            },
            arrival_step_ms: 1000,
            at: 0,
            heard: 0,
            late: 0,
            busiest: BinaryHeap::new(),
            silent: BinaryHeap::new(),
        }
    }

    fn look(&mut self, entry: &Entry) {
        let sensor = &entry.sensor;
        let rate = sensor.rate.per_minute(self.now.mono_ms);
        let last_ts_ms = entry.last_ts_ms();
        if let Some(last_ts_ms) = last_ts_ms.filter(|_| rate > 0.0) {
            let least = self.busiest.peek().map_or(0, |Reverse((bits, ..))| *bits);
            if self.busiest.len() < FLEET_MAX || rate.to_bits() > least {
                push_bounded(
                    &mut self.busiest,
                    (rate.to_bits(), last_ts_ms, sensor.id.clone()),
                );
            }
        }
        let arrivals = sensor.reports.arrivals;
        self.look_silent(&sensor.id, sensor.hash, arrivals, last_ts_ms);
    }

    fn look_silent(
        &mut self,
        id: &SensorId,
        hash: u64,
        arrivals: ReportingInterval,
        last_ts_ms: Option<i64>,
    ) {
        let Some(arrived_ms) = arrivals.silent_since(self.now.wall_ms) else {
            self.heard += 1;
            return;
        };
        if floor_arrival(arrived_ms, hash, self.arrival_step_ms) >= self.silent_before_ms {
            self.heard += 1;
            self.late += 1;
        }
        let least = self.silent.peek().map_or(i64::MIN, |Reverse((at, ..))| *at);
        if self.silent.len() < FLEET_MAX || arrived_ms > least {
            push_bounded(
                &mut self.silent,
                (arrived_ms, last_ts_ms.unwrap_or(arrived_ms), id.clone()),
            );
        }
    }
}

impl ShardQuery for FleetScan {
    type Answer = ShardFleet;

    fn step(&mut self, shard: &Shard, now: Now) -> Option<ShardFleet> {
        self.now = now;
        self.arrival_step_ms = shard.settings.arrival_step_ms;
        let slots = shard.next_slots(&mut self.at);
        let sensors = shard.sensors.in_slots(slots);
        sensors.for_each(|entry| self.look(entry));
        if !shard.is_last(self.at) {
            return None;
        }
        for (id, reports) in shard.sensors.evicted() {
            let last_ts_ms = reports.interval.last_ts_ms();
            self.look_silent(id, stable_hash(id), reports.arrivals, last_ts_ms);
        }
        let busiest = std::mem::take(&mut self.busiest).into_sorted_vec();
        let busy = |Reverse((bits, last_ts_ms, sensor_id))| BusySensor {
            sensor_id,
            readings_per_minute: f64::from_bits(bits),
            last_ts_ms,
        };
        let silent = std::mem::take(&mut self.silent).into_sorted_vec();
        let silent_sensor = |Reverse((arrived_ms, last_ts_ms, sensor_id))| SilentSensor {
            sensor_id,
            last_ts_ms,
            arrived_ms,
        };
        Some(ShardFleet {
            sensors: shard.sensors.len(),
            heard: self.heard,
            late: self.late,
            busiest: busiest.into_iter().map(busy).collect(),
            silent: silent.into_iter().map(silent_sensor).collect(),
            new_sensors: shard.sensors.newest().cloned().collect(),
        })
    }
}

/// Asks for what the catalogue may not know, of sensors with unstored rows; ordered by sensor.
#[derive(Debug)]
pub struct CatalogScan {
    sensor_ids: Option<Vec<SensorId>>,
    prefixes: Vec<String>,
    after: Option<SensorId>,
    limit: usize,
    at: usize,
    found: BTreeMap<SensorId, CatalogUpdate>,
}

impl CatalogScan {
    /// A scan for the first `limit` of these sensors (or of all), in byte order, whose id begins
    /// with one of the prefixes, which are sorted and of which none begins with another, and is
    /// after `after`.
    pub fn new(
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

    fn look(&mut self, shard: &Shard, entry: &Entry) {
        let sensor = &entry.sensor;
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
        let Some(update) = shard.catalog.unstored_update(entry) else {
            return;
        };
        if full {
            self.found.pop_last();
        }
        self.found.insert(sensor.id.clone(), update);
    }
}

impl ShardQuery for CatalogScan {
    type Answer = Vec<CatalogUpdate>;

    fn step(&mut self, shard: &Shard, _: Now) -> Option<Vec<CatalogUpdate>> {
        let is_last = if let Some(ids) = self.sensor_ids.take() {
            let from = self.at;
            self.at = ids.len().min(from + LOOK_UP_STEP);
            for id in &ids[from..self.at] {
                if let Some(entry) = shard.sensors.by_id(stable_hash(id), id) {
                    self.look(shard, entry);
                }
            }
            let is_last = self.at == ids.len();
            self.sensor_ids = Some(ids);
            is_last
        } else {
            let slots = shard.next_slots(&mut self.at);
            let sensors = shard.sensors.in_slots(slots);
            sensors.for_each(|entry| self.look(shard, entry));
            shard.is_last(self.at)
        };
        is_last.then(|| std::mem::take(&mut self.found).into_values().collect())
    }
}

/// Keeps the [`FLEET_MAX`] largest.
fn push_bounded<T: Ord>(heap: &mut BinaryHeap<Reverse<T>>, value: T) {
    heap.push(Reverse(value));
    if heap.len() > FLEET_MAX {
        heap.pop();
    }
}

impl Shard {
    /// A view of one sensor's rows in `from_ms..to_ms`; empty if there are none.
    pub fn view(&self, hash: u64, sensor_id: &str, from_ms: i64, to_ms: i64) -> UnstoredRows {
        let mut view = UnstoredRows::default();
        let Some(entry) = self.sensors.by_id(hash, sensor_id) else {
            return view;
        };
        let span = self.settings.span;
        let mut bytes = 0;
        for bucket in entry.buckets.iter() {
            let overlaps = bucket.start.0 < to_ms && span.end(bucket.start) > from_ms;
            if !overlaps || !bucket.holds_rows() {
                continue;
            }
            let held: usize = bucket.rows().map(Rows::memory_bytes).sum();
            let mut end_ms = to_ms;
            if bytes + held > VIEW_BYTES_MAX {
                end_ms = cut(
                    bucket.rows(),
                    from_ms,
                    VIEW_BYTES_MAX.saturating_sub(bytes),
                    bytes == 0,
                )
                .min(to_ms);
                view.cut_ms = Some(end_ms).filter(|end| *end < to_ms);
            }
            view.buckets.extend(bucket.view(from_ms, end_ms));
            bytes += held;
            if view.cut_ms.is_some() {
                break;
            }
        }
        view
    }

    /// The newest state of one sensor, as far as it is in memory.
    pub fn snapshot(&self, hash: u64, sensor_id: &str) -> SensorSnapshot {
        let Some(entry) = self.sensors.by_id(hash, sensor_id) else {
            return SensorSnapshot::default();
        };
        let mut values = BTreeMap::new();
        let rows = entry.buckets.iter().flat_map(Bucket::rows);
        for row in rows.flat_map(Rows::iter) {
            keep_newer(&mut values, row.ts_ms, row.named());
        }
        SensorSnapshot {
            last_ts_ms: entry.last_ts_ms(),
            tags: self.catalog.newest_tags(&entry.sensor),
            tags_ts_ms: entry.sensor.tags.newest_ts_ms(),
            values,
        }
    }

    /// The slots of a scan's next step; none at the end.
    fn next_slots(&self, at: &mut usize) -> Range<usize> {
        let from = *at;
        *at += SCAN_STEP;
        from..self.sensors.slots().min(*at)
    }

    fn is_last(&self, at: usize) -> bool {
        at >= self.sensors.slots()
    }
}

/// The time before which the rows take at most `bytes_max`. If the rows of the first instant take
/// more and `some` is set, the time just after that instant.
fn cut<'a>(
    rows: impl Iterator<Item = &'a Rows>,
    from_ms: i64,
    bytes_max: usize,
    some: bool,
) -> i64 {
    let mut sizes: Vec<(i64, usize)> = rows
        .flat_map(Rows::iter)
        .filter(|row| row.ts_ms >= from_ms)
        .map(|row| (row.ts_ms, row.stored_bytes() as usize))
        .collect();
    sizes.sort_unstable();
    let mut bytes = 0;
    let first = sizes.first().map_or(i64::MAX, |(ts_ms, _)| *ts_ms);
    for (ts_ms, size) in sizes {
        bytes += size;
        if bytes > bytes_max {
            return if some && ts_ms == first {
                ts_ms + 1
            } else {
                ts_ms
            };
        }
    }
    i64::MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_sensors_are_counted_until_the_catalogue_has_them_as_silent() {
        let mut scan = FleetScan::new(50_000_000);
        scan.now.wall_ms = 100_000_000;
        // The last arrival (s) of sensors that report every ten seconds.
        for (id, last_s) in [
            ("on time", 100_000),
            ("late", 99_280),
            ("later", 60_000),
            ("silent", 40_000),
        ] {
            let mut arrivals = ReportingInterval::default();
            for before_s in [20, 10, 0] {
                arrivals.note((last_s - before_s) * 1000);
            }
            scan.look_silent(&id.into(), 0, arrivals, None);
        }
        assert_eq!((scan.heard, scan.late), (3, 2));
        assert_eq!(scan.silent.len(), 3, "the list has silent ones, too");
    }
}
