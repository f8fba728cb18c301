//! Pending updates of `sensor_latest`, by sensor, and when they are due. Pure: readings go in
//! ([`Latest::accept`]), jobs come out ([`Latest::take`]), and unwritten ones are returned
//! ([`Latest::came_back`]).
//!
//! Every reading passes through here, so the work per reading is small: look up its sensor's entry,
//! append. The newest readings are determined only when an entry has grown to twice what it can
//! keep, and when it is written.

use std::collections::VecDeque;

use hashbrown::HashTable;
use slab::Slab;

use crate::flush::due::{DuePolicy, DueWheel};
use model::ack::{Ack, Acks};
use model::latest::{prune, wire_bytes};

use model::{
    FieldSchemas, LatestUpdate, Now, ReadingBatch, RowFlags, RowPosition, Rows, SensorId,
    sensor_id_memory, stable_hash,
};

/// The settings of a task, fixed at its start.
#[derive(Debug, Clone)]
pub struct LatestSettings {
    /// `latest.interval`, in milliseconds.
    pub interval_ms: u64,
    /// `latest.recent`.
    pub recent_max: usize,
    /// `flush.command_max_bytes`.
    pub command_bytes_max: u64,
    /// `flush.command_max_statements`.
    pub command_statements_max: usize,
    /// This task's part of `latest.max_bytes`.
    pub bytes_max: usize,
    /// This task's part of `accumulate.max_sensors`.
    pub sensors_max: usize,
}

/// How often schemas are swept for unused ones, normally and when the task is full (ms).
const SWEEP_MS: u64 = 10_000;
const SWEEP_FULL_MS: u64 = 1000;

/// An update and its acknowledgements.
#[derive(Debug)]
pub struct Pending {
    /// The statement to merge into the sensor's document.
    pub update: LatestUpdate,
    /// Delivered when the update is written or given up.
    pub acks: Acks,
    /// How often the store has answered it with an error.
    pub tries: u32,
}

/// What the task holds in memory, without the updates in flight.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct LatestUsage {
    /// Sensors with readings that are not in their document yet.
    pub sensors: usize,
    /// Bytes of their entries and of the shared schemas.
    pub bytes: usize,
}

struct Entry {
    id: SensorId,
    hash: u64,
    rows: Rows,
    acks: Acks,
    tries: u32,
}

impl Entry {
    /// Bytes: the slab entry, the shared id, the index and wheel entries, the rows, the
    /// acknowledgements.
    fn memory(&self) -> usize {
        size_of::<Entry>()
            + sensor_id_memory(&self.id)
            + 16
            + self.rows.memory_bytes()
            + self.acks.memory_bytes()
    }
}

/// The sensors with unwritten updates.
pub struct Latest {
    settings: LatestSettings,
    due: DuePolicy,
    entries: Slab<Entry>,
    index: HashTable<u32>,
    /// Every entry is either here or in `ready`, exactly once.
    wheel: DueWheel<u32>,
    ready: VecDeque<u32>,
    usage: LatestUsage,
    schemas: FieldSchemas,
    /// The bytes of `schemas` included in `usage`, and when they were last swept (monotonic ms).
    schemas_bytes: usize,
    swept_ms: u64,
}

impl Latest {
    /// Without any entries.
    pub fn new(settings: LatestSettings) -> Latest {
        let due = DuePolicy::Age(settings.interval_ms);
        Latest {
            settings,
            due,
            entries: Slab::new(),
            index: HashTable::new(),
            wheel: DueWheel::new(due.grain_ms()),
            ready: VecDeque::new(),
            usage: LatestUsage::default(),
            schemas: FieldSchemas::default(),
            schemas_bytes: 0,
            swept_ms: 0,
        }
    }

    /// Its current contents.
    pub fn usage(&self) -> LatestUsage {
        self.usage
    }

    /// Whether a limit is reached: the caller should send nothing until something is written.
    pub fn full(&self) -> bool {
        self.usage.bytes >= self.settings.bytes_max
            || self.usage.sensors >= self.settings.sensors_max
    }

    /// Whether there are no entries.
    pub fn empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds readings of a batch. A part of `ack`, if given, is held by every sensor in it.
    pub fn accept(
        &mut self,
        batch: &ReadingBatch,
        row_refs: &[RowPosition],
        ack: Option<Ack>,
        now: Now,
    ) {
        self.schemas.begin(batch);
        for &RowPosition { offset, hash } in row_refs {
            let Some(reading) = batch.at(offset) else {
                continue;
            };
            let slot = self.slot(hash, reading.sensor_id(), |due| {
                due.due_ms(now.mono_ms, hash)
            });
            let entry = &mut self.entries[slot as usize];
            let before = entry.memory();
            let schema = self.schemas.intern(batch, reading.schema);
            entry.rows.push(
                reading.ts_ms,
                RowFlags::default(),
                schema,
                reading.numbers,
                reading.payload,
            );
            if let Some(ack) = &ack {
                entry.acks.join(ack);
            }
            self.shrink(slot, before);
        }
        if let Some(ack) = ack {
            ack.delivered();
        }
        self.schemas.end();
        self.count_schemas();
        self.evict();
    }

    /// Frees schemas and names that no entry uses; more often when the task is full.
    pub fn tick(&mut self, now: Now) {
        let every_ms = if self.full() { SWEEP_FULL_MS } else { SWEEP_MS };
        if now.mono_ms >= self.swept_ms + every_ms {
            self.swept_ms = now.mono_ms;
            self.schemas.sweep();
            self.count_schemas();
        }
    }

    fn count_schemas(&mut self) {
        let bytes = self.schemas.memory_bytes();
        self.usage.bytes = self.usage.bytes + bytes - self.schemas_bytes;
        self.schemas_bytes = bytes;
    }

    /// When the next entry is due (monotonic ms); 0 if one is ready already.
    pub fn next_due_ms(&self) -> Option<u64> {
        if self.ready.is_empty() {
            self.wheel.next_ms()
        } else {
            Some(0)
        }
    }

    /// The next job, as large as a command may be; empty if nothing is due.
    pub fn take(&mut self, now: Now) -> Vec<Pending> {
        while let Some(due) = self.wheel.pop_due(now.mono_ms) {
            self.ready.extend(due);
        }
        let mut job = vec![];
        let mut bytes = 0;
        while job.len() < self.settings.command_statements_max
            && let Some(&slot) = self.ready.front()
        {
            bytes += self
                .entries
                .get(slot as usize)
                .map_or(0, |e| wire_bytes(&e.id, &e.rows));
            if !job.is_empty() && bytes > self.settings.command_bytes_max {
                break;
            }
            self.ready.pop_front();
            job.extend(self.remove(slot));
        }
        self.evict();
        job
    }

    /// Takes back an update that was not written, or may not have been. It is due again
    /// immediately, together with newer readings of its sensor.
    pub fn came_back(&mut self, pending: Pending) {
        let Pending {
            update,
            mut acks,
            tries,
        } = pending;
        let hash = stable_hash(&update.sensor_id);
        let slot = self.slot(hash, &update.sensor_id, |_| 0);
        let entry = &mut self.entries[slot as usize];
        let before = entry.memory();
        entry.rows.append(&update.rows);
        entry.acks.append(&mut acks);
        entry.tries = tries;
        self.shrink(slot, before);
    }

    /// Makes every entry due, when the service ends.
    pub fn drain(&mut self) {
        while let Some((_, slots)) = self.wheel.pop_first() {
            self.ready.extend(slots);
        }
    }

    /// The slot of a sensor; a new one gets its due time from `due`.
    fn slot(&mut self, hash: u64, id: &str, due: impl FnOnce(DuePolicy) -> u64) -> u32 {
        if let Some(slot) = self
            .index
            .find(hash, |&slot| *self.entries[slot as usize].id == *id)
        {
            return *slot;
        }
        let entry = Entry {
            id: id.into(),
            hash,
            rows: Rows::default(),
            acks: Acks::default(),
            tries: 0,
        };
        self.usage.bytes += entry.memory();
        self.usage.sensors += 1;
        let slot = self.entries.insert(entry) as u32;
        self.index
            .insert_unique(hash, slot, |&slot| self.entries[slot as usize].hash);
        self.wheel.push(due(self.due), slot);
        slot
    }

    fn remove(&mut self, slot: u32) -> Option<Pending> {
        let entry = self.entries.try_remove(slot as usize)?;
        if let Ok(found) = self.index.find_entry(entry.hash, |&s| s == slot) {
            found.remove();
        }
        self.usage.bytes -= entry.memory();
        self.usage.sensors -= 1;
        let update = LatestUpdate {
            sensor_id: entry.id,
            rows: entry.rows,
            recent_max: self.settings.recent_max,
        };
        Some(Pending {
            update,
            acks: entry.acks,
            tries: entry.tries,
        })
    }

    /// Drops readings that can no longer matter, if there may be many, and updates the usage.
    fn shrink(&mut self, slot: u32, before: usize) {
        let entry = &mut self.entries[slot as usize];
        // Three times what pruning can leave, and a margin, so that the cost per reading is small.
        let most = 4 * self.settings.recent_max + 2 * entry.rows.fields().len() + 16;
        if entry.rows.len() > most {
            entry.rows = prune(&entry.rows, self.settings.recent_max);
        }
        self.usage.bytes = self.usage.bytes + entry.memory() - before;
    }

    /// Near the limit of memory, makes the entries due next ready now.
    fn evict(&mut self) {
        let high = self.usage.bytes >= self.settings.bytes_max / 4 * 3 || self.full();
        if high
            && self.ready.is_empty()
            && let Some((_, early)) = self.wheel.pop_first()
        {
            self.ready.extend(early);
        }
    }
}
