//! The sensors of a shard and their buckets: lookup, creation, eviction.

use std::sync::Arc;

use super::super::bucket::Bucket;
use super::reporting_interval::Reports;
use super::{RowRef, Sensor, Shard};
use model::{BucketStart, Now, ReadingRef, SensorId, sensor_id_memory};

/// Unless room is needed, a sweep for idle buckets visits all sensors within so many ticks, 20 s, but
/// at least so many sensors in each. A million sensors in 2.5 s took a twentieth of the service's
/// time, because each is a cache miss.
const SWEEP_TICKS: usize = 1024;
const SWEEP_STEP_MIN: usize = 256;
/// Sensors visited per tick if room is needed: a few milliseconds of work. All of a million sensors
/// in each tick would leave no time for readings.
const SWEEP_STEP_FULL: usize = 64 * 1024;
/// Approximate memory of a sensor with an idle bucket.
const IDLE_BYTES: usize = size_of::<Sensor>() + 40;

/// How often schemas, names and tags are swept for unused ones, normally and when the shard is full
/// (ms). A check costs about 20 ns each.
const SWEEP_MS: u64 = 10_000;
const SWEEP_FULL_MS: u64 = 1000;

/// Maximum number of new sensors remembered.
const NEW_SENSORS_MAX: usize = 256;

/// A sensor that reported for the first time since the start, or for the first time since it was
/// dropped.
#[derive(Debug, Clone, PartialEq)]
pub struct NewSensor {
    /// The id as sent.
    pub sensor_id: SensorId,
    /// When its first reading arrived, ms since 1970.
    pub at_ms: i64,
}

/// Which buckets a sweep may drop.
#[derive(Clone, Copy)]
struct IdleSweep {
    /// Idle buckets of any time, not only old ones.
    all: bool,
    /// Except those that [count](Bucket::counts_since) since this time.
    since_ms: i64,
    now: Now,
}

impl Shard {
    /// The slot of a sensor; creates the sensor if it does not exist.
    pub(super) fn sensor(&mut self, hash: u64, reading: &ReadingRef<'_>, now: Now) -> usize {
        let id = reading.sensor_id_bytes();
        if let Some(slot) = self.index.find(hash, |&slot| {
            self.sensors[slot as usize].id.as_bytes() == id
        }) {
            return *slot as usize;
        }
        let id = SensorId::from(reading.sensor_id());
        let reports = self.evicted.back(reading.sensor_id());
        if reports == Reports::default() {
            if self.new_sensors.len() >= NEW_SENSORS_MAX {
                self.new_sensors.pop_front();
            }
            self.new_sensors.push_back(NewSensor {
                sensor_id: id.clone(),
                at_ms: now.wall_ms,
            });
        }
        let (rate, confirmed, buckets) = Default::default();
        let sensor = Sensor {
            id,
            hash,
            tags: None,
            newest_tags: None,
            tags_ts_ms: i64::MIN,
            reports,
            rate,
            confirmed,
            buckets,
        };
        self.usage.bytes += sensor.memory();
        self.usage.sensors += 1;
        let slot = self.sensors.insert(sensor);
        self.index
            .insert_unique(hash, slot as u32, |&slot| self.sensors[slot as usize].hash);
        slot
    }

    /// Brings the memory that these rows will be appended to into the CPU caches, by reading from it.
    /// It is different memory for each sensor. When the rows are added one after another, each waits
    /// for its own; these reads do not depend on each other, so the processor waits once for several.
    pub(super) fn read_ahead(&self, row_refs: &[RowRef]) {
        let last_bytes = row_refs.iter().map(|&(_, hash)| {
            let slot = self
                .index
                .find(hash, |&slot| self.sensors[slot as usize].hash == hash);
            slot.and_then(|&slot| self.sensors[slot as usize].buckets.last())
                .map_or(0, Bucket::last_byte)
        });
        // The result has no meaning, but the compiler must not omit the reads.
        std::hint::black_box(last_bytes.fold(0, |all, byte| all ^ byte));
    }

    /// The index of a bucket within its sensor; creates the bucket if it does not exist.
    /// `replayed`: for a row of the journal's replay.
    pub(super) fn bucket(&mut self, slot: usize, start: BucketStart, replayed: bool) -> usize {
        let buckets = &mut self.sensors[slot].buckets;
        match buckets.last() {
            Some(last) if last.start == start => return buckets.len() - 1,
            _ => {}
        }
        match buckets.binary_search_by_key(&start, |b| b.start) {
            Ok(position) => position,
            Err(position) => {
                // No other process can have written it, and this one has not evicted it before.
                let evicted_until = self.evicted_until.is_some_and(|latest| start <= latest);
                let believed_new = self.new.contains(start) && !evicted_until && !replayed;
                let before = buckets.memory();
                buckets.insert(position, Bucket::new(start, believed_new));
                self.usage.bytes = self.usage.bytes + buckets.memory() - before;
                self.usage.buckets += 1;
                position
            }
        }
    }

    /// How long an idle bucket is kept after its end, for late readings.
    pub(super) fn keep_ms(&self) -> i64 {
        self.settings.span.ms() / 12
    }

    /// A reading has these tags. A late one with other tags is stored with its own, but does not
    /// change those of the catalogue.
    pub(super) fn set_tags(&mut self, slot: usize, ts_ms: i64, tags: &[u8]) {
        let sensor = &mut self.sensors[slot];
        if tags.is_empty() {
            return;
        }
        let held = sensor.tags.as_ref();
        if held.is_none_or(|held| held.as_bytes() != tags) {
            sensor.tags = Some(self.tags.shared(tags));
        }
        if ts_ms >= sensor.tags_ts_ms {
            sensor.tags_ts_ms = ts_ms;
            let newest = sensor.newest_tags.as_ref().map(Arc::as_ptr);
            if newest != sensor.tags.as_ref().map(Arc::as_ptr) {
                sensor.newest_tags.clone_from(&sensor.tags);
            }
        }
    }

    /// Updates the usage by what the buckets share: schemas, names and tags.
    pub(super) fn count_shared(&mut self) {
        let bytes =
            self.schemas.memory_bytes() + self.tags.memory_bytes() + self.confirmed.memory_bytes();
        self.usage.bytes = self.usage.bytes + bytes - self.shared_bytes;
        self.shared_bytes = bytes;
    }

    /// Frees schemas, names and tags that no bucket uses; more often when the shard is full.
    pub(super) fn sweep_shared(&mut self, now: Now) {
        let every_ms = if self.full() { SWEEP_FULL_MS } else { SWEEP_MS };
        if now.mono_ms >= self.swept_ms + every_ms {
            self.swept_ms = now.mono_ms;
            self.schemas.sweep();
            self.tags.sweep();
            self.confirmed.sweep();
            self.count_shared();
        }
    }

    /// Frees memory. Each call drops the idle buckets of a few sensors whose span ended some time
    /// ago. If the shard is full, those whose span has just ended too, and every bucket drops most
    /// of its dedup window; if sensors fill the shard, every idle bucket is dropped (and loaded
    /// again when needed).
    pub(super) fn evict_idle(&mut self, now: Now) {
        let since_ms = self.arrivals.over_ms();
        if !self.full() {
            self.is_blocked = false;
            return self.sweep(
                (self.sensors.capacity() / SWEEP_TICKS).max(SWEEP_STEP_MIN),
                IdleSweep {
                    all: false,
                    since_ms,
                    now,
                },
            );
        }
        self.evict_confirmed();
        // Pending readings do not count: they leave by themselves, and a dropped bucket has to be
        // loaded again.
        let idle = self.usage.sensors * IDLE_BYTES;
        let all =
            self.usage.sensors >= self.settings.sensors_max || idle >= self.settings.bytes_max / 2;
        self.sweep(SWEEP_STEP_FULL, IdleSweep { all, since_ms, now });
        // No pending write could make room: drop all idle buckets except those that count.
        let only_failing = self.full() && self.holds_only_failing();
        let of_any_time = IdleSweep {
            all: true,
            since_ms,
            now,
        };
        if only_failing {
            self.sweep(usize::MAX, of_any_time);
        }
        // Then those too, but no more than necessary: a forgotten count can lose a reading. So if
        // memory is the limit, the rows of failing buckets become dead letters first. If sensors are
        // the limit, that would free only one each.
        let has_all_sensors = self.usage.sensors >= self.settings.sensors_max;
        if only_failing && (has_all_sensors || self.empty()) {
            let even_those_that_count = IdleSweep {
                since_ms: i64::MAX,
                ..of_any_time
            };
            for _ in 0..self.sensors.capacity() {
                if !self.full() {
                    break;
                }
                self.sweep(1, even_those_that_count);
            }
        }
        self.is_blocked = only_failing && self.full();
    }

    /// Visits the next `steps` sensors: drops idle buckets, and sensors without buckets.
    fn sweep(&mut self, steps: usize, sweep: IdleSweep) {
        let full = self.full();
        let keys_max = self.keys_max();
        let over_ms = self.arrivals.over_ms();
        let keep_ms = if full { 0 } else { self.keep_ms() };
        let idle_before_ms = sweep.now.wall_ms - keep_ms - self.settings.span.ms();
        for _ in 0..steps.min(self.sensors.capacity()) {
            let slot = self.sweep_at;
            self.sweep_at = if slot + 1 >= self.sensors.capacity() {
                0
            } else {
                slot + 1
            };
            let Some(sensor) = self.sensors.get_mut(slot) else {
                continue;
            };
            let mut freed = 0;
            let mut evicted = 0;
            let mut forgotten = 0;
            let listed = sensor.buckets.memory();
            sensor.buckets.retain_mut(|bucket| {
                if full {
                    let before = bucket.memory();
                    bucket.trim(keys_max);
                    freed += before - bucket.memory();
                }
                let unused =
                    bucket.idle() && !bucket.queued && !bucket.counts_since(sweep.since_ms);
                let drop = unused && (sweep.all || bucket.start.0 < idle_before_ms);
                if drop {
                    self.evicted_until = self.evicted_until.max(Some(bucket.start));
                    freed += bucket.memory();
                    evicted += 1;
                    forgotten += u64::from(bucket.counts_since(over_ms));
                }
                !drop
            });
            self.usage.bytes -= freed + listed - sensor.buckets.memory();
            self.usage.buckets -= evicted;
            self.counts.forgotten += forgotten;
            if sensor.buckets.is_empty() {
                self.usage.bytes -= sensor.memory();
                self.usage.sensors -= 1;
                if let Ok(entry) = self.index.find_entry(sensor.hash, |&s| s == slot as u32) {
                    entry.remove();
                }
                let sensor = self.sensors.remove(slot);
                self.evicted.add(sensor.id, sensor.reports);
            }
        }
    }
}

impl Sensor {
    /// Bytes of the sensor: the slab entry with room for one bucket, the id, the index. Not the
    /// heap bytes of its buckets.
    pub(super) fn memory(&self) -> usize {
        size_of::<Sensor>() + sensor_id_memory(&self.id) + 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sensor_without_pending_readings_is_small() {
        assert!(
            size_of::<Bucket>() <= 104 && size_of::<Sensor>() <= 208,
            "{} {}",
            size_of::<Bucket>(),
            size_of::<Sensor>()
        );
    }
}
