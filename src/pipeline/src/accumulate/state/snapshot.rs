//! Read-only views of a shard for queries. Each step is short: one sensor, or [`SCAN_STEP`] slots
//! of the slab, so that a shard of a million sensors continues its work in between.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

pub use super::sensors::NewSensor;

use super::super::bucket::UnstoredBucket;
use super::reporting_interval::ReportingInterval;
use super::{Sensor, Shard};
use model::catalog::floor_arrival;
use model::{Now, Rows, SensorId, Tags, Value, keep_newer, stable_hash};

/// Slab slots per step of a scan: about half a millisecond if none of it is in the CPU cache.
const SCAN_STEP: usize = 2048;

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

/// A scan over all sensors that collects ids.
#[derive(Debug)]
pub(crate) struct IdScan {
    prefix: String,
    after: Option<String>,
    limit: usize,
    at: usize,
    found: BinaryHeap<SensorId>,
}

impl IdScan {
    /// A scan for the first `limit` ids after `after`, in byte order, that begin with `prefix`.
    pub(crate) fn new(prefix: String, after: Option<String>, limit: usize) -> IdScan {
        IdScan {
            prefix,
            after,
            limit,
            at: 0,
            found: BinaryHeap::new(),
        }
    }

    fn look(&mut self, sensor: &Sensor) {
        let id = &sensor.id;
        let wanted =
            id.starts_with(&self.prefix) && self.after.as_deref().is_none_or(|after| **id > *after);
        let full = self.found.len() >= self.limit;
        if !wanted || full && self.found.peek().is_some_and(|last| id >= last) {
            return;
        }
        if !sensor
            .buckets
            .iter()
            .any(super::super::bucket::Bucket::holds_rows)
        {
            return;
        }
        if full {
            self.found.pop();
        }
        self.found.push(id.clone());
    }

    /// The ids found, in byte order.
    pub(crate) fn into_ids(self) -> Vec<SensorId> {
        self.found.into_sorted_vec()
    }
}

/// A scan over all sensors for the lists of the fleet.
#[derive(Debug)]
pub(crate) struct FleetScan {
    now_ms: i64,
    mono_ms: u64,
    silent_before_ms: i64,
    at: usize,
    heard: u64,
    late: u64,
    /// Readings per minute (the bits of non-negative doubles sort like the doubles), last time.
    busiest: BinaryHeap<Reverse<(u64, i64, SensorId)>>,
    /// Last arrival, time of the latest reading.
    silent: BinaryHeap<Reverse<(i64, i64, SensorId)>>,
}

impl FleetScan {
    /// A scan as of now. `silent_before_ms`: see [`ShardQuery::Fleet`](super::super::query).
    pub(crate) fn new(now: Now, silent_before_ms: i64) -> FleetScan {
        let Now {
            wall_ms: now_ms,
            mono_ms,
        } = now;
        FleetScan {
            now_ms,
            mono_ms,
            silent_before_ms,
            at: 0,
            heard: 0,
            late: 0,
            busiest: BinaryHeap::new(),
            silent: BinaryHeap::new(),
        }
    }

    fn look(&mut self, sensor: &Sensor, step_ms: i64) {
        let rate = sensor.rate.per_minute(self.mono_ms);
        let last_ts_ms = sensor.last_ts_ms();
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
        self.look_silent((&sensor.id, sensor.hash), step_ms, arrivals, last_ts_ms);
    }

    /// `step_ms`: the precision of the last arrival in the catalogue.
    fn look_silent(
        &mut self,
        (id, hash): (&SensorId, u64),
        step_ms: i64,
        arrivals: ReportingInterval,
        last_ts_ms: Option<i64>,
    ) {
        let Some(arrived_ms) = arrivals.silent_since(self.now_ms) else {
            self.heard += 1;
            return;
        };
        if floor_arrival(arrived_ms, hash, step_ms) >= self.silent_before_ms {
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

/// Keeps the [`FLEET_MAX`] largest.
fn push_bounded<T: Ord>(heap: &mut BinaryHeap<Reverse<T>>, value: T) {
    heap.push(Reverse(value));
    if heap.len() > FLEET_MAX {
        heap.pop();
    }
}

impl Sensor {
    fn last_ts_ms(&self) -> Option<i64> {
        self.buckets
            .iter()
            .filter_map(super::super::bucket::Bucket::last_ts_ms)
            .max()
            .max(self.reports.interval.last_ts_ms())
    }
}

impl Shard {
    /// A view of one sensor's rows in `from_ms..to_ms`; empty if there are none.
    pub fn view(&self, hash: u64, sensor_id: &str, from_ms: i64, to_ms: i64) -> UnstoredRows {
        let mut view = UnstoredRows::default();
        let Some(sensor) = self.known(hash, sensor_id) else {
            return view;
        };
        let span = self.settings.span;
        let mut bytes = 0;
        for bucket in sensor.buckets.iter() {
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
        let Some(sensor) = self.known(hash, sensor_id) else {
            return SensorSnapshot::default();
        };
        let mut snapshot = SensorSnapshot {
            last_ts_ms: sensor.last_ts_ms(),
            ..SensorSnapshot::default()
        };
        snapshot.tags = self.registry.tags(&sensor.id, sensor.newest_tags.as_ref());
        snapshot.tags_ts_ms = sensor.newest_tags.is_some().then_some(sensor.tags_ts_ms);
        for row in sensor
            .buckets
            .iter()
            .flat_map(super::super::bucket::Bucket::rows)
            .flat_map(Rows::iter)
        {
            keep_newer(&mut snapshot.values, row.ts_ms, row.named());
        }
        snapshot
    }

    /// Continues a scan for ids; returns `true` at its end. Finds every sensor that exists during
    /// the whole scan.
    pub(crate) fn scan_ids(&self, scan: &mut IdScan) -> bool {
        let (sensors, is_last) = self.step(&mut scan.at);
        sensors.for_each(|sensor| scan.look(sensor));
        is_last
    }

    /// Continues a scan of the fleet; returns the result at its end.
    pub(crate) fn scan_fleet(&self, scan: &mut FleetScan) -> Option<ShardFleet> {
        let step_ms = self.settings.arrival_step_ms;
        let (sensors, is_last) = self.step(&mut scan.at);
        sensors.for_each(|sensor| scan.look(sensor, step_ms));
        if !is_last {
            return None;
        }
        for (id, reports) in self.evicted.iter() {
            let of = (id, stable_hash(id));
            let last_ts_ms = reports.interval.last_ts_ms();
            scan.look_silent(of, step_ms, reports.arrivals, last_ts_ms);
        }
        let busiest = std::mem::take(&mut scan.busiest)
            .into_sorted_vec()
            .into_iter();
        let busy = |Reverse((bits, last_ts_ms, sensor_id))| BusySensor {
            sensor_id,
            readings_per_minute: f64::from_bits(bits),
            last_ts_ms,
        };
        let silent = std::mem::take(&mut scan.silent)
            .into_sorted_vec()
            .into_iter();
        Some(ShardFleet {
            sensors: self.usage.sensors,
            heard: scan.heard,
            late: scan.late,
            busiest: busiest.map(busy).collect(),
            silent: silent
                .map(
                    |Reverse((arrived_ms, last_ts_ms, sensor_id))| SilentSensor {
                        sensor_id,
                        last_ts_ms,
                        arrived_ms,
                    },
                )
                .collect(),
            new_sensors: self.new_sensors.iter().rev().cloned().collect(),
        })
    }

    /// The sensors of a scan's next step, and whether it is the last one.
    pub(super) fn step<'a>(
        &'a self,
        at: &mut usize,
    ) -> (impl Iterator<Item = &'a Sensor> + use<'a>, bool) {
        let from = *at;
        let end = self.sensors.capacity();
        *at += SCAN_STEP;
        (
            (from..end.min(*at)).filter_map(|slot| self.sensors.get(slot)),
            *at >= end,
        )
    }

    pub(super) fn known(&self, hash: u64, sensor_id: &str) -> Option<&Sensor> {
        let slot = self
            .index
            .find(hash, |&slot| *self.sensors[slot as usize].id == *sensor_id)?;
        self.sensors.get(*slot as usize)
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
        let now = Now {
            wall_ms: 100_000_000,
            mono_ms: 0,
        };
        let mut scan = FleetScan::new(now, 50_000_000);
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
            scan.look_silent((&id.into(), 0), 1000, arrivals, None);
        }
        assert_eq!((scan.heard, scan.late), (3, 2));
        assert_eq!(scan.silent.len(), 3, "the list has silent ones, too");
    }
}
