//! The sensors of a shard, by id, with their open buckets. Pure.
//!
//! Life of a sensor: its first reading creates it. Its readings open buckets. A bucket without rows
//! is idle; it is kept for late readings until a sweep drops it, and a sensor without buckets with
//! it. Of dropped sensors the reporting intervals stay for the fleet page ([`EvictedSensors`]).
//!
//! Full: the sweep drops idle buckets sooner, and lets the others remember fewer stored readings
//! ([`IdleSweep`]). A dropped bucket is loaded again when it is needed.
//!
//! Invariants: a sensor has at least one bucket. A bucket with rows, or in a queue of the schedule, is
//! never dropped. [`Sensors::memory`] has every change of a bucket, so its memory is changed only by
//! [`OpenBucket::change`].

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use hashbrown::HashTable;
use slab::Slab;

use super::BucketRef;
use super::arrival_rate::ArrivalRate;
use super::buckets::Buckets;
use super::catalogued::Confirmed;
use super::reporting_interval::{EvictedSensors, Reports};
use crate::accumulate::bucket::Bucket;
use model::{
    BucketStart, NewBuckets, Now, ReadingRef, RowPosition, Rows, SensorId, TagSets, Tags,
    sensor_id_memory,
};

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

pub(super) struct Sensor {
    pub(super) id: SensorId,
    pub(super) hash: u64,
    pub(super) tags: SensorTags,
    pub(super) reports: Reports,
    /// What the catalogue is known to hold.
    pub(super) confirmed: Confirmed,
    pub(super) rate: ArrivalRate,
}

/// A sensor and its open buckets.
pub(super) struct Entry {
    pub(super) sensor: Sensor,
    /// Nearly always one: a sensor then needs no allocation besides its slot.
    pub(super) buckets: Buckets,
}

/// Approximate memory of a sensor with an idle bucket.
pub(super) const IDLE_BYTES: usize = size_of::<Entry>() + 40;

impl Entry {
    /// Bytes of the sensor: the slab entry with room for one bucket, the id, the index. Not the
    /// heap bytes of its buckets.
    fn memory(&self) -> usize {
        size_of::<Entry>() + sensor_id_memory(&self.sensor.id) + 8
    }

    /// The bucket at this position, to be changed; `bytes`: those that its memory is counted in.
    fn open<'s>(&'s mut self, slot: u32, position: usize, bytes: &'s mut usize) -> OpenBucket<'s> {
        let is_latest = position + 1 == self.buckets.len();
        let bucket = &mut self.buckets[position];
        let start = bucket.start;
        OpenBucket {
            bucket_ref: BucketRef { slot, start },
            sensor: &mut self.sensor,
            is_latest,
            bucket,
            bytes,
        }
    }

    /// The latest known time of the sensor's readings.
    pub(super) fn last_ts_ms(&self) -> Option<i64> {
        let of_buckets = self.buckets.iter().filter_map(Bucket::last_ts_ms).max();
        of_buckets.max(self.sensor.reports.interval.last_ts_ms())
    }
}

/// The tags in the messages of a sensor.
pub(super) struct SensorTags {
    /// Those of the message that arrived last, for pages.
    latest: Option<Arc<Tags>>,
    /// Those of the newest reading, for the catalogue.
    newest: Option<Arc<Tags>>,
    /// The time of that reading; the earliest time if there is none.
    newest_ts_ms: i64,
}

impl SensorTags {
    /// A reading has these tags. A late one with other tags is stored with its own, but does not
    /// change those of the catalogue.
    fn note(&mut self, ts_ms: i64, tags: &[u8], sets: &mut TagSets) {
        if tags.is_empty() {
            return;
        }
        if (self.latest.as_ref()).is_none_or(|held| held.as_bytes() != tags) {
            self.latest = Some(sets.shared(tags));
        }
        if ts_ms >= self.newest_ts_ms {
            self.newest_ts_ms = ts_ms;
            if self.newest.as_ref().map(Arc::as_ptr) != self.latest.as_ref().map(Arc::as_ptr) {
                self.newest.clone_from(&self.latest);
            }
        }
    }

    /// The tags of the newest reading.
    pub(super) fn newest(&self) -> Option<&Arc<Tags>> {
        self.newest.as_ref()
    }

    /// The time of the newest reading with tags.
    pub(super) fn newest_ts_ms(&self) -> Option<i64> {
        self.newest.as_ref().map(|_| self.newest_ts_ms)
    }

    /// When tags applied that are written with these rows: at the reading that had them. Those of
    /// the registry apply to every reading.
    pub(super) fn time_of(&self, tags: &Tags, rows: &Rows) -> i64 {
        match &self.newest {
            Some(own) if own.as_bytes() == tags.as_bytes() => self.newest_ts_ms,
            _ => self.newest_ts_ms.max(rows.last_ts_ms()),
        }
    }

    /// The tags for a page of this bucket. That of the newest reading has its tags, even if a late
    /// reading brought others since.
    pub(super) fn of_page(&self, bucket: &Bucket) -> Option<&Arc<Tags>> {
        let last_ts_ms = bucket.last_ts_ms();
        let has_newest = last_ts_ms.is_some_and(|ts_ms| ts_ms >= self.newest_ts_ms);
        match has_newest {
            true => self.newest.as_ref(),
            false => self.latest.as_ref(),
        }
    }
}

/// A bucket, to be changed.
pub(super) struct OpenBucket<'s> {
    pub(super) bucket_ref: BucketRef,
    pub(super) sensor: &'s mut Sensor,
    /// Whether it is the sensor's latest.
    pub(super) is_latest: bool,
    pub(super) bucket: &'s mut Bucket,
    /// See [`Sensors::memory`].
    bytes: &'s mut usize,
}

impl OpenBucket<'_> {
    /// Changes the bucket and counts its memory.
    pub(super) fn change<T>(&mut self, change: impl FnOnce(&mut Bucket) -> T) -> T {
        let before = self.bucket.memory();
        let changed = change(self.bucket);
        *self.bytes = *self.bytes + self.bucket.memory() - before;
        changed
    }

    /// Whether another reading is expected before the first one is this old. Not if the sensor has
    /// begun a later bucket, or reports less often.
    pub(super) fn expects_more(&self, age_ms: u64) -> bool {
        let usual_ms = self.sensor.reports.interval.usual_ms();
        self.is_latest && usual_ms.is_none_or(|ms| ms <= age_ms)
    }
}

/// What a sweep drops and trims.
pub(super) struct IdleSweep {
    /// Idle buckets that start before this time (ms since 1970).
    pub(super) before_ms: i64,
    /// Also those that [count](Bucket::counts_since) since `over_ms`.
    pub(super) even_counting: bool,
    pub(super) over_ms: i64,
    /// If memory is short: how many stored readings each bucket may remember.
    pub(super) keys_max: Option<usize>,
}

pub(super) struct Sensors {
    entries: Slab<Entry>,
    index: HashTable<u32>,
    tags: TagSets,
    /// Bytes of the entries and their buckets.
    bytes: usize,
    buckets: usize,
    /// Buckets that no other process can have written.
    new: NewBuckets,
    /// The latest bucket that was dropped.
    evicted_until: Option<BucketStart>,
    /// The slot that the next sweep begins with.
    sweep_at: usize,
    evicted: EvictedSensors,
    new_sensors: VecDeque<NewSensor>,
}

impl Sensors {
    pub(super) fn new() -> Sensors {
        Sensors {
            entries: Slab::new(),
            index: HashTable::new(),
            tags: TagSets::default(),
            bytes: 0,
            buckets: 0,
            new: NewBuckets::NONE,
            evicted_until: None,
            sweep_at: 0,
            evicted: EvictedSensors::default(),
            new_sensors: VecDeque::new(),
        }
    }

    /// Sets which buckets no other process can have written.
    pub(super) fn set_new_buckets(&mut self, new: NewBuckets) {
        self.new = new;
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Number of open buckets, including idle ones.
    pub(super) fn buckets(&self) -> usize {
        self.buckets
    }

    /// Estimated bytes of the sensors, their tags and buckets.
    pub(super) fn memory(&self) -> usize {
        self.bytes + self.tags.memory_bytes()
    }

    /// The same, added up from all sensors: every change must have been counted.
    pub(super) fn counted_memory(&self) -> usize {
        let buckets = |entry: &Entry| entry.buckets.iter().map(Bucket::memory).sum::<usize>();
        let bytes = |entry: &Entry| entry.memory() + entry.buckets.memory() + buckets(entry);
        self.entries.iter().map(|(_, e)| bytes(e)).sum::<usize>() + self.tags.memory_bytes()
    }

    /// Brings the memory that these rows will be appended to into the CPU caches, by reading from it.
    /// It is different memory for each sensor. When the rows are added one after another, each waits
    /// for its own; these reads do not depend on each other, so the processor waits once for several.
    pub(super) fn read_ahead(&self, row_refs: &[RowPosition]) {
        let last_bytes = row_refs.iter().map(|&RowPosition { hash, .. }| {
            let slot = self.index.find(hash, |&slot| {
                self.entries[slot as usize].sensor.hash == hash
            });
            slot.and_then(|&slot| self.entries[slot as usize].buckets.last())
                .map_or(0, Bucket::last_byte)
        });
        // The result has no meaning, but the compiler must not omit the reads.
        std::hint::black_box(last_bytes.fold(0, |all, byte| all ^ byte));
    }

    /// Notes the arrival of a reading, and returns its bucket; creates sensor and bucket if they do
    /// not exist. `replayed`: for a row of the journal's replay.
    pub(super) fn receive(
        &mut self,
        reading: &ReadingRef<'_>,
        hash: u64,
        start: BucketStart,
        replayed: bool,
        now: Now,
    ) -> OpenBucket<'_> {
        let slot = self.slot(hash, reading, now);
        let entry = &mut self.entries[slot];
        let Entry { sensor, buckets } = &mut *entry;
        sensor
            .tags
            .note(reading.ts_ms, reading.tags, &mut self.tags);
        sensor.reports.note(reading.ts_ms, now.wall_ms);
        if !replayed {
            sensor.rate.note(now.mono_ms);
        }
        let position = match buckets.last() {
            Some(last) if last.start == start => buckets.len() - 1,
            _ => match buckets.binary_search_by_key(&start, |b| b.start) {
                Ok(position) => position,
                Err(position) => {
                    // No other process can have written it, and this one has not evicted it before.
                    let evicted = self.evicted_until.is_some_and(|latest| start <= latest);
                    let believed_new = self.new.contains(start) && !evicted && !replayed;
                    let before = buckets.memory();
                    buckets.insert(position, Bucket::new(start, believed_new));
                    self.bytes = self.bytes + buckets.memory() - before;
                    self.buckets += 1;
                    position
                }
            },
        };
        entry.open(slot as u32, position, &mut self.bytes)
    }

    /// The slot of a sensor; creates the sensor if it does not exist.
    fn slot(&mut self, hash: u64, reading: &ReadingRef<'_>, now: Now) -> usize {
        let id = reading.sensor_id_bytes();
        if let Some(slot) = self.index.find(hash, |&slot| {
            self.entries[slot as usize].sensor.id.as_bytes() == id
        }) {
            return *slot as usize;
        }
        let id = SensorId::from(reading.sensor_id());
        let reports = self.evicted.take(&id);
        if reports == Reports::default() {
            if self.new_sensors.len() >= NEW_SENSORS_MAX {
                self.new_sensors.pop_front();
            }
            self.new_sensors.push_back(NewSensor {
                sensor_id: id.clone(),
                at_ms: now.wall_ms,
            });
        }
        let sensor = Sensor {
            id,
            hash,
            tags: SensorTags {
                latest: None,
                newest: None,
                newest_ts_ms: i64::MIN,
            },
            reports,
            confirmed: Confirmed::default(),
            rate: ArrivalRate::default(),
        };
        let entry = Entry {
            sensor,
            buckets: Buckets::default(),
        };
        self.bytes += entry.memory();
        let slot = self.entries.insert(entry);
        self.index.insert_unique(hash, slot as u32, |&slot| {
            self.entries[slot as usize].sensor.hash
        });
        slot
    }

    /// The bucket of a reference, if it still exists.
    pub(super) fn find(&mut self, bucket_ref: BucketRef) -> Option<OpenBucket<'_>> {
        let entry = self.entries.get_mut(bucket_ref.slot as usize)?;
        let start = bucket_ref.start;
        let position = entry.buckets.binary_search_by_key(&start, |b| b.start);
        Some(entry.open(bucket_ref.slot, position.ok()?, &mut self.bytes))
    }

    /// The sensor with this id, if it is in memory.
    pub(super) fn by_id(&self, hash: u64, sensor_id: &str) -> Option<&Entry> {
        let slot = self.index.find(hash, |&slot| {
            *self.entries[slot as usize].sensor.id == *sensor_id
        })?;
        self.entries.get(*slot as usize)
    }

    /// The sensors in these slots.
    pub(super) fn in_slots(&self, slots: Range<usize>) -> impl Iterator<Item = &Entry> {
        slots.filter_map(|slot| self.entries.get(slot))
    }

    /// Evicted sensors, with their reporting intervals.
    pub(super) fn evicted(&self) -> impl Iterator<Item = (&SensorId, Reports)> {
        self.evicted.iter()
    }

    /// The newest sensors, the newest first.
    pub(super) fn newest(&self) -> impl Iterator<Item = &NewSensor> {
        self.new_sensors.iter().rev()
    }

    /// Forgets what the catalogue is known to hold; it is read again from the store.
    pub(super) fn forget_confirmed(&mut self) {
        for (_, entry) in &mut self.entries {
            entry.sensor.confirmed = Confirmed::default();
        }
    }

    /// Number of slots, including free ones.
    pub(super) fn slots(&self) -> usize {
        self.entries.capacity()
    }

    /// Drops tags that no sensor has.
    pub(super) fn sweep_tags(&mut self) {
        self.tags.sweep();
    }

    /// Visits the next `steps` slots: drops idle buckets, and sensors without buckets. Returns how
    /// many of the dropped buckets still counted.
    pub(super) fn sweep(&mut self, steps: usize, sweep: &IdleSweep) -> u64 {
        let mut forgotten = 0;
        for _ in 0..steps.min(self.entries.capacity()) {
            let slot = self.sweep_at;
            let next = slot + 1;
            self.sweep_at = if next < self.entries.capacity() {
                next
            } else {
                0
            };
            let Some(Entry { sensor, buckets }) = self.entries.get_mut(slot) else {
                continue;
            };
            let list_before = buckets.memory();
            let mut freed = 0;
            buckets.retain_mut(|bucket| {
                if let Some(keys_max) = sweep.keys_max {
                    let before = bucket.memory();
                    bucket.trim(keys_max);
                    freed += before - bucket.memory();
                }
                let counts = bucket.counts_since(sweep.over_ms);
                let is_unused = bucket.idle() && !bucket.queued && (sweep.even_counting || !counts);
                let drops = is_unused && bucket.start.0 < sweep.before_ms;
                if drops {
                    self.evicted_until = self.evicted_until.max(Some(bucket.start));
                    self.buckets -= 1;
                    freed += bucket.memory();
                    forgotten += u64::from(counts);
                }
                !drops
            });
            self.bytes -= freed + list_before - buckets.memory();
            if buckets.is_empty()
                && let Ok(found) = self.index.find_entry(sensor.hash, |&s| s == slot as u32)
            {
                found.remove();
                let entry = self.entries.remove(slot);
                self.bytes -= entry.memory();
                self.evicted.add(entry.sensor.id, entry.sensor.reports);
            }
        }
        forgotten
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sensor_without_pending_readings_is_small() {
        assert!(
            size_of::<Bucket>() <= 104 && size_of::<Entry>() <= 208,
            "{} {}",
            size_of::<Bucket>(),
            size_of::<Entry>()
        );
    }
}
