//! Which days are marked, changed and due, by sensor and day. Pure: readings and their settlement
//! go in ([`Rollup::accept`], [`Rollup::settled`]), marks and days come out
//! ([`Rollup::take_marks`], [`Rollup::take_days`], [`Rollup::take_clears`]), and their results go
//! in again. [`due_days`] decides when a day is computed.

mod due_days;

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashTable;
use slab::Slab;

use crate::flush::due::DueWheel;
use model::ack::{Ack, Acks};
use model::{
    BucketStart, Day, Now, ReadingBatch, RowPosition, SensorId, Span, Zone, sensor_id_memory,
    stable_hash,
};
use store::days::DayMark;

/// The settings of one shard's rollup, fixed at its start.
#[derive(Debug, Clone)]
pub struct RollupSettings {
    /// `rollup.zone`
    pub zone: Zone,
    /// `bucket.span`
    pub span: Span,
    /// The id of this instance, which owns its marks.
    pub instance: Arc<str>,
    /// `rollup.settle`, in milliseconds.
    pub settle_ms: u64,
    /// `rollup.late`, in milliseconds.
    pub late_ms: u64,
    /// `store.retention`, in milliseconds; `None`: hours are kept forever.
    pub hours_kept_ms: Option<i64>,
    /// This shard's part of `rollup.max_bytes`.
    pub bytes_max: usize,
}

/// A mark is set again after this long, so that the marks of a running instance are always younger
/// than [`ORPHAN_MS`].
const MARK_AGAIN_MS: u64 = 24 * 60 * 60 * 1000;
/// Marks that are older belong to an instance whose journal was lost; any instance computes their
/// days.
pub(crate) const ORPHAN_MS: i64 = 2 * 24 * 60 * 60 * 1000;
/// Resolution of the wheel.
const GRAIN_MS: u64 = 100;

/// Readings of one bucket that are stored now, or will not be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settled {
    /// The sensor.
    pub sensor_id: SensorId,
    /// The bucket.
    pub start: BucketStart,
    /// Number of readings.
    pub rows: u32,
}

/// What a task holds in memory.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct RollupUsage {
    /// Days with changes that are not in their document yet, including open days.
    pub days: usize,
    /// Estimated bytes.
    pub bytes: usize,
    /// How long the most overdue day has been due, in milliseconds.
    pub overdue_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// This instance needs none: it computes the day for another one.
    Absent,
    /// Not durable yet: waits in the queue, or is in flight.
    Pending,
    /// Durable since this time (monotonic ms).
    Durable(u64),
}

/// An entry in a queue; stale if the slot has another generation by then.
type Queued = (u32, u64);

struct Entry {
    /// Distinguishes it from an earlier entry in the same slot.
    generation: u64,
    sensor_id: SensorId,
    hash: u64,
    day: Day,
    /// Acknowledgements that wait for the mark.
    waiting: Acks,
    mark: Mark,
    version: i64,
    /// Marks of other instances, and of an earlier process of this one.
    others: Vec<DayMark>,
    /// Readings that are not settled.
    unstored: u32,
    /// Changed since the last computation began.
    is_changed: bool,
    is_computing: bool,
    /// Whether it is in the wheel or in `ready`.
    is_queued: bool,
    /// When it changed first since the last computation, and last (monotonic ms).
    first_change_ms: u64,
    last_change_ms: u64,
}

impl Entry {
    fn memory(&self) -> usize {
        size_of::<Entry>()
            + sensor_id_memory(&self.sensor_id)
            + 24
            + self.others.len() * size_of::<DayMark>()
    }
}

/// The days of one shard's sensors that have unstored or uncomputed readings.
pub struct Rollup {
    settings: RollupSettings,
    entries: Slab<Entry>,
    index: HashTable<u32>,
    /// The entry and the day of the previous row: most batches hold runs of one sensor.
    last_slot: Option<u32>,
    last_day: Day,
    /// Entries whose mark must be written.
    to_mark: VecDeque<u32>,
    /// Marks to remove.
    to_clear: VecDeque<DayMark>,
    wheel: DueWheel<Queued>,
    /// Due entries, and since when (monotonic ms).
    ready: VecDeque<(Queued, u64)>,
    /// Since when the days being computed have been due.
    computing_since_ms: Option<u64>,
    changed: usize,
    bytes: usize,
    generation: u64,
    last_version: i64,
    sweep_at: usize,
}

impl Rollup {
    /// Without any days.
    pub fn new(settings: RollupSettings) -> Rollup {
        Rollup {
            settings,
            entries: Slab::new(),
            index: HashTable::new(),
            last_slot: None,
            last_day: Day {
                start_ms: 0,
                end_ms: 0,
            },
            to_mark: VecDeque::new(),
            to_clear: VecDeque::new(),
            wheel: DueWheel::new(GRAIN_MS),
            ready: VecDeque::new(),
            computing_since_ms: None,
            changed: 0,
            bytes: 0,
            generation: 0,
            last_version: i64::MIN,
            sweep_at: 0,
        }
    }

    /// Its current contents.
    pub fn usage(&self, now: Now) -> RollupUsage {
        let since = [
            self.ready.front().map(|(_, since)| *since),
            self.computing_since_ms,
            self.wheel.next_ms(),
        ];
        let since_ms = since.into_iter().flatten().min().unwrap_or(u64::MAX);
        let bytes = self.bytes + self.to_clear.len() * size_of::<DayMark>();
        RollupUsage {
            days: self.changed,
            bytes,
            overdue_ms: now.mono_ms.saturating_sub(since_ms),
        }
    }

    /// Whether the limit of memory is reached: the caller should send nothing until days are
    /// computed.
    pub fn full(&self) -> bool {
        self.bytes + self.to_clear.len() * size_of::<DayMark>() >= self.settings.bytes_max
    }

    /// Whether no acknowledgement waits for a mark.
    pub(crate) fn is_marked(&self) -> bool {
        self.entries
            .iter()
            .all(|(_, entry)| entry.mark != Mark::Pending)
    }

    /// Adds readings that arrive. A part of `ack` is held until the marks of their days are
    /// durable.
    pub fn accept(&mut self, batch: &ReadingBatch, row_refs: &[RowPosition], ack: &Ack, now: Now) {
        for &RowPosition { offset, hash } in row_refs {
            let Some(reading) = batch.at(offset) else {
                continue;
            };
            let day = self.day(self.settings.span.floor(reading.ts_ms));
            let slot = self.slot(hash, reading.sensor_id(), day, now);
            let entry = &mut self.entries[slot as usize];
            entry.unstored = entry.unstored.saturating_add(1);
            let is_needed = match entry.mark {
                Mark::Absent => true,
                Mark::Pending => false,
                Mark::Durable(since_ms) => now.mono_ms >= since_ms + MARK_AGAIN_MS,
            };
            if is_needed {
                entry.mark = Mark::Pending;
                entry.version = next_version(&mut self.last_version, now);
                self.to_mark.push_back(slot);
            }
            if entry.mark == Mark::Pending {
                entry.waiting.join(ack);
            }
        }
    }

    /// Records that readings are stored, or will not be: their day has changed.
    pub fn settled(&mut self, settled: &Settled, now: Now) {
        let day = self.day(settled.start);
        let Some(slot) = self.find(stable_hash(&settled.sensor_id), &settled.sensor_id, day) else {
            return;
        };
        let entry = &mut self.entries[slot as usize];
        debug_assert!(
            entry.unstored >= settled.rows,
            "a reading is settled once: {settled:?}"
        );
        entry.unstored = entry.unstored.saturating_sub(settled.rows);
        entry.last_change_ms = now.mono_ms;
        self.change(slot, now);
    }

    /// Adds marks that are stored already: of an earlier process with the same id, or of a lost
    /// instance.
    pub fn recover(&mut self, marks: Vec<DayMark>, now: Now) {
        for mark in marks {
            // Of a time when the clock was ahead, perhaps. A later mark of the day has a later
            // version, so that it can be removed.
            self.last_version = self.last_version.max(mark.version);
            let hash = stable_hash(&mark.sensor_id);
            let day = self.settings.zone.day(mark.day_ms);
            let slot = match self.find(hash, &mark.sensor_id, day) {
                Some(slot) => slot,
                None => {
                    let is_own = mark.instance == self.settings.instance;
                    let own = if is_own {
                        Mark::Durable(now.mono_ms)
                    } else {
                        Mark::Absent
                    };
                    self.insert(hash, &mark.sensor_id, day, own, mark.version)
                }
            };
            let entry = &mut self.entries[slot as usize];
            let is_known =
                |other: &DayMark| other.instance == mark.instance && other.version == mark.version;
            if !entry.others.iter().any(is_known) {
                self.bytes -= entry.memory();
                entry.others.push(mark);
                self.bytes += entry.memory();
            }
            entry.last_change_ms = now.mono_ms;
            self.change(slot, now);
        }
    }

    /// Whether a day of a sensor may differ from its document.
    pub fn is_pending(&self, sensor_id: &str, day: Day) -> bool {
        self.find(stable_hash(sensor_id), sensor_id, day).is_some()
    }

    /// The next marks to write.
    pub(crate) fn take_marks(&mut self, most: usize) -> Vec<DayMark> {
        let slots = self
            .to_mark
            .drain(..self.to_mark.len().min(most))
            .collect::<Vec<_>>();
        slots
            .into_iter()
            .map(|slot| own_mark(&self.settings.instance, &self.entries[slot as usize]))
            .collect()
    }

    /// Whether marks wait to be written or removed.
    pub(crate) fn has_marks(&self) -> bool {
        !self.to_mark.is_empty() || !self.to_clear.is_empty()
    }

    /// Applies the result of writing marks: they are durable, or must be written again.
    pub fn marked(&mut self, marks: &[DayMark], is_durable: bool, now: Now) {
        for mark in marks {
            let day = self.settings.zone.day(mark.day_ms);
            // Only a durable mark lets an entry go, so this one is still there.
            let Some(slot) = self.find(stable_hash(&mark.sensor_id), &mark.sensor_id, day) else {
                continue;
            };
            if !is_durable {
                self.to_mark.push_back(slot);
                continue;
            }
            let entry = &mut self.entries[slot as usize];
            entry.mark = Mark::Durable(now.mono_ms);
            std::mem::take(&mut entry.waiting).delivered();
            self.schedule(slot, now);
        }
    }

    /// The next marks to remove.
    pub(crate) fn take_clears(&mut self, most: usize) -> Vec<DayMark> {
        self.to_clear
            .drain(..self.to_clear.len().min(most))
            .collect()
    }

    /// Marks that may not have been removed.
    pub(crate) fn not_cleared(&mut self, marks: Vec<DayMark>) {
        self.to_clear.extend(marks);
    }

    fn day(&mut self, start: BucketStart) -> Day {
        if !self.last_day.contains(start.0) {
            self.last_day = self.settings.zone.day(start.0);
        }
        self.last_day
    }

    fn find(&self, hash: u64, sensor_id: &str, day: Day) -> Option<u32> {
        let is = |slot: &u32| {
            let entry = &self.entries[*slot as usize];
            entry.day.start_ms == day.start_ms && *entry.sensor_id == *sensor_id
        };
        self.index.find(of_day(hash, day), is).copied()
    }

    /// The entry of a sensor's day; a new one waits for its mark.
    fn slot(&mut self, hash: u64, sensor_id: &str, day: Day, now: Now) -> u32 {
        let last = self.last_slot.filter(|slot| {
            let last = self.entries.get(*slot as usize);
            last.is_some_and(|e| {
                e.hash == of_day(hash, day) && e.day == day && *e.sensor_id == *sensor_id
            })
        });
        let found = last.or_else(|| self.find(hash, sensor_id, day));
        let slot = found.unwrap_or_else(|| {
            let version = next_version(&mut self.last_version, now);
            let slot = self.insert(hash, sensor_id, day, Mark::Pending, version);
            self.to_mark.push_back(slot);
            slot
        });
        self.last_slot = Some(slot);
        slot
    }

    fn insert(&mut self, hash: u64, sensor_id: &str, day: Day, mark: Mark, version: i64) -> u32 {
        self.generation += 1;
        let entry = Entry {
            generation: self.generation,
            sensor_id: sensor_id.into(),
            hash: of_day(hash, day),
            day,
            waiting: Acks::default(),
            mark,
            version,
            others: vec![],
            unstored: 0,
            is_changed: false,
            is_computing: false,
            is_queued: false,
            first_change_ms: 0,
            last_change_ms: 0,
        };
        self.bytes += entry.memory();
        let slot = self.entries.insert(entry) as u32;
        self.index.insert_unique(of_day(hash, day), slot, |slot| {
            self.entries[*slot as usize].hash
        });
        slot
    }

    /// Drops an entry whose document has all its readings, and has its marks removed. Keeps it if
    /// it changed meanwhile or if readings are on their way.
    fn let_go(&mut self, slot: u32) {
        let entry = &self.entries[slot as usize];
        if entry.is_changed || entry.unstored > 0 || entry.is_queued || entry.mark == Mark::Pending
        {
            return;
        }
        if let Ok(found) = self.index.find_entry(entry.hash, |&s| s == slot) {
            found.remove();
        }
        self.bytes -= entry.memory();
        let mut entry = self.entries.remove(slot as usize);
        let own = own_mark(&self.settings.instance, &entry);
        self.to_clear
            .extend(entry.others.drain(..).filter(|other| *other != own));
        if entry.mark != Mark::Absent {
            self.to_clear.push_back(own);
        }
    }
}

fn own_mark(instance: &Arc<str>, entry: &Entry) -> DayMark {
    DayMark {
        instance: instance.clone(),
        day_ms: entry.day.start_ms,
        sensor_id: entry.sensor_id.clone(),
        version: entry.version,
    }
}

/// A version after all earlier ones.
fn next_version(last: &mut i64, now: Now) -> i64 {
    *last = now.wall_ms.max(last.saturating_add(1));
    *last
}

fn of_day(hash: u64, day: Day) -> u64 {
    hash ^ (day.start_ms as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

#[cfg(test)]
mod tests;
