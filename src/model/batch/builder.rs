//! Building a batch, reading by reading.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{FLAG_RECEIPT_TIME, HEAD_BYTES, NAMES_MAX, ReadingBatch, RowPosition, VALUES_MAX};
use crate::model::fields::{BucketFieldsFull, FieldGuard};
use crate::model::ids::stable_hash;
use crate::model::reading::Reading;
use crate::model::value::ValueRef;

/// Up to this many names (or shapes) are found by comparing, which is faster than hashing; more are found in a table, so
/// that a payload full of distinct ones costs linear time.
const COMPARED_MAX: usize = 16;

/// What a builder could not take; the decoder makes a reject of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BuildError {
    /// The reading has this name already.
    DuplicateField,
    /// More than the allowed number of values, [`VALUES_MAX`] at most.
    TooManyFields,
    /// More than [`NAMES_MAX`] names in one batch.
    TooManyNames,
    /// The sensor would have too many names in its bucket.
    BucketFieldsFull(BucketFieldsFull),
}

/// A place in a batch that is being built.
#[derive(Debug, Clone, Copy)]
pub struct Mark {
    bytes: usize,
    count: usize,
}

/// Writes a batch, reading by reading: [`begin`](BatchBuilder::begin), values, then [`commit`](BatchBuilder::commit) or
/// [`abort`](BatchBuilder::abort). Nothing of an aborted reading stays but its names.
///
/// The sensor id, time and tags are given at the commit, since in JSON they may come after the values.
#[derive(Debug, Default)]
pub struct BatchBuilder {
    batch: ReadingBatch,
    values: Vec<u8>,
    numbers: u8,
    /// Names of the values so far.
    used: Vec<u16>,
    /// The shape, where it is known before the values.
    like: Option<u32>,
    /// The shape of the reading that was committed last.
    committed: u32,
    values_max: usize,
    last: Vec<u16>,
    names: Index,
    schemas: Index,
    guard: Option<Box<FieldGuard>>,
}

/// Finds names or shapes by hash, once there are more than [`COMPARED_MAX`]. The seed is drawn anew for each batch that
/// is so large: nobody can prepare names that all collide.
#[derive(Debug, Default)]
struct Index {
    table: HashTable<u32>,
    seed: u64,
}

/// What an [`Index`] is of.
trait Key {
    fn hash(&self, seed: u64) -> u64;
}

impl Key for str {
    fn hash(&self, seed: u64) -> u64 {
        xxh3_64_with_seed(self.as_bytes(), seed)
    }
}

impl Key for [u16] {
    fn hash(&self, seed: u64) -> u64 {
        let mix = |hash: u64, n: &u16| (hash ^ u64::from(*n)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
        self.iter().fold(seed, mix)
    }
}

impl Index {
    /// The place of `wanted` in `all`.
    fn find<T: Key + PartialEq + ?Sized>(&self, all: &[Box<T>], wanted: &T) -> Option<u32> {
        if all.len() <= COMPARED_MAX {
            return all.iter().position(|t| **t == *wanted).map(|i| i as u32);
        }
        self.table.find(wanted.hash(self.seed), |&i| *all[i as usize] == *wanted).copied()
    }

    /// Takes in what was added since the last time.
    fn grow<T: Key + ?Sized>(&mut self, all: &[Box<T>]) {
        if all.len() <= COMPARED_MAX {
            return;
        }
        if self.table.is_empty() {
            self.seed = RandomState::new().hash_one(0);
        }
        let seed = self.seed;
        let hash = |&i: &u32| all[i as usize].hash(seed);
        for i in self.table.len() as u32..all.len() as u32 {
            self.table.insert_unique(hash(&i), i, hash);
        }
    }
}

impl BatchBuilder {
    /// A builder that takes at most `values_max` values a reading.
    pub fn new(values_max: usize) -> BatchBuilder {
        BatchBuilder { values_max: values_max.min(VALUES_MAX), ..BatchBuilder::default() }
    }

    /// From here to the end of the batch readings are refused that bring too many names. To be called while it is empty.
    pub fn guard(&mut self, guard: FieldGuard) {
        debug_assert!(self.is_empty());
        self.guard = Some(Box::new(guard));
    }

    /// Drops what an unfinished reading left and starts the next.
    pub fn begin(&mut self) {
        self.values.clear();
        self.used.clear();
        self.numbers = 0;
        self.like = None;
    }

    /// How many values the current reading has.
    pub fn value_count(&self) -> usize {
        self.used.len()
    }

    /// How many readings are committed.
    pub fn len(&self) -> usize {
        self.batch.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.batch.is_empty()
    }

    /// Bytes held so far.
    pub fn memory_bytes(&self) -> usize {
        self.batch.records.len()
    }

    /// Adds a value to the current reading.
    ///
    /// # Errors
    /// A name twice, or too many values or names; the reading can still be committed without this value or aborted.
    pub fn value(&mut self, name: &str, value: ValueRef<'_>) -> Result<(), BuildError> {
        if self.used.len() >= self.values_max {
            return Err(BuildError::TooManyFields);
        }
        let index = self.intern(name)?;
        if self.used.contains(&index) {
            return Err(BuildError::DuplicateField);
        }
        self.used.push(index);
        self.put(value);
        Ok(())
    }

    fn put(&mut self, value: ValueRef<'_>) {
        self.numbers += u8::from(value.is_number());
        value.encode(&mut self.values);
    }

    /// Begins a reading with the fields of this shape, a [`BatchBuilder::committed_shape`] of this batch; its values
    /// follow with [`BatchBuilder::next_value`], one for each field, in order.
    pub fn begin_like(&mut self, schema: u32) {
        self.begin();
        self.like = Some(schema);
    }

    /// Adds the value of the next field.
    pub fn next_value(&mut self, value: ValueRef<'_>) {
        self.put(value);
    }

    /// Ends the current reading. `tags` must be sorted by key, keys at most 255 and values at most 65,535 bytes, 65,535
    /// in all; `sensor_id` at most 65,535 bytes. The decoders' limits are far below.
    ///
    /// # Errors
    /// The [guard](BatchBuilder::guard) refuses it; the reading can only be aborted.
    pub fn commit(
        &mut self,
        sensor_id: &str,
        ts_ms: i64,
        receipt_time: bool,
        tags: &[(&str, &str)],
    ) -> Result<(), BuildError> {
        let schema = match self.like {
            Some(schema) => schema,
            None => self.schema(),
        };
        if let Some(guard) = &mut self.guard {
            let admitted = guard.admit(&self.batch.names, &self.batch.schemas, schema, sensor_id, ts_ms);
            admitted.map_err(BuildError::BucketFieldsFull)?;
        }
        let tags_bytes: usize = tags.iter().map(|(k, v)| 3 + k.len() + v.len()).sum();
        let offset = self.batch.records.len() as u32;
        let records = &mut self.batch.records;
        records.reserve(HEAD_BYTES + sensor_id.len() + tags_bytes + self.values.len());
        let mut head = [0; HEAD_BYTES];
        head[0] = if receipt_time { FLAG_RECEIPT_TIME } else { 0 };
        head[1..9].copy_from_slice(&ts_ms.to_le_bytes());
        head[9..11].copy_from_slice(&(sensor_id.len() as u16).to_le_bytes());
        head[11..13].copy_from_slice(&(tags_bytes as u16).to_le_bytes());
        head[13..17].copy_from_slice(&schema.to_le_bytes());
        head[17] = self.numbers;
        head[18..].copy_from_slice(&(self.values.len() as u32).to_le_bytes());
        records.extend_from_slice(&head);
        records.extend_from_slice(sensor_id.as_bytes());
        for (key, value) in tags {
            records.push(key.len() as u8);
            records.extend_from_slice(key.as_bytes());
            records.extend_from_slice(&(value.len() as u16).to_le_bytes());
            records.extend_from_slice(value.as_bytes());
        }
        records.extend_from_slice(&self.values);
        self.batch.places.push(RowPosition { offset, hash: stable_hash(sensor_id) });
        if receipt_time {
            self.batch.receipt_times.add(ts_ms);
        }
        if self.like.is_none() {
            std::mem::swap(&mut self.last, &mut self.used);
        }
        self.begin();
        self.committed = schema;
        Ok(())
    }

    /// The shape of the reading that was committed last.
    pub fn committed_shape(&self) -> u32 {
        self.committed
    }

    /// Drops the current reading.
    pub fn abort(&mut self) {
        self.begin();
    }

    /// How many names are interned; at [`NAMES_MAX`] the batch should be sent on.
    pub fn names_len(&self) -> usize {
        self.batch.names.len()
    }

    /// Where the batch stands, for [`BatchBuilder::rollback`].
    pub fn mark(&self) -> Mark {
        Mark { bytes: self.batch.records.len(), count: self.batch.places.len() }
    }

    /// Takes back every reading committed since `mark`.
    pub fn rollback(&mut self, mark: Mark) {
        self.batch.records.truncate(mark.bytes);
        self.batch.places.truncate(mark.count);
        self.begin();
    }

    /// Adds an owned reading (tests and tools).
    ///
    /// # Errors
    /// As [`BatchBuilder::value`].
    pub fn push(&mut self, reading: &Reading) -> Result<(), BuildError> {
        self.begin();
        for (name, value) in &reading.values {
            self.value(name, value.as_ref())?;
        }
        let tags: Vec<(&str, &str)> = reading.tags.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        self.commit(&reading.sensor_id, reading.ts_ms, reading.receipt_time, &tags)
    }

    /// The batch; the builder is as new.
    pub fn finish(&mut self) -> ReadingBatch {
        self.begin();
        self.last.clear();
        self.names.table.clear();
        self.schemas.table.clear();
        self.guard = None;
        std::mem::take(&mut self.batch)
    }

    /// Interns a name. The value at the same place of the reading before nearly always has the same one.
    fn intern(&mut self, name: &str) -> Result<u16, BuildError> {
        let names = &self.batch.names;
        if let Some(&guess) = self.last.get(self.used.len())
            && names.get(usize::from(guess)).is_some_and(|n| **n == *name)
        {
            return Ok(guess);
        }
        if let Some(i) = self.names.find(names, name) {
            return Ok(i as u16);
        }
        if names.len() >= NAMES_MAX {
            return Err(BuildError::TooManyNames);
        }
        self.batch.names.push(name.into());
        self.names.grow(&self.batch.names);
        Ok((self.batch.names.len() - 1) as u16)
    }

    /// The shape of the current reading. There is no limit to them: each is smaller than the reading that brought it.
    fn schema(&mut self) -> u32 {
        let schemas = &mut self.batch.schemas;
        if let Some(known) = self.schemas.find(schemas, &self.used[..]) {
            return known;
        }
        schemas.push(self.used[..].into());
        self.schemas.grow(schemas);
        (schemas.len() - 1) as u32
    }
}
