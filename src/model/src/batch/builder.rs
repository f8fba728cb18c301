//! Builds a batch reading by reading.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{
    BYTES_MAX, FLAG_RECEIPT_TIME, FLAG_REPEATS, HEAD_BYTES, NAMES_MAX, ReadingBatch, RowPosition,
    VALUES_MAX,
};
use crate::fields::{BucketFieldsFull, FieldGuard, FieldLimiter};
use crate::ids::stable_hash;
use crate::ranges::{Implausible, LastValues, RangeGuard, Ranges, Verdict};
use crate::reading::Reading;
use crate::sensor_patterns::SensorPatterns;
use crate::span::Span;
use crate::value::{Cursor, ValueRef};

/// Up to this many names (or schemas) are searched linearly, which is faster than hashing. More are
/// found in a hash table, so that a payload of distinct names takes linear time.
const COMPARED_MAX: usize = 16;

/// Memory reserved for readings that are expected; small enough to be wasted if they do not come.
const RESERVED_BYTES_MAX: usize = 256 << 10;

/// A limit that a reading exceeds; the decoder makes a reject of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BuildError {
    /// The reading already has this field name.
    DuplicateField,
    /// More values than the builder allows; see [`BatchBuilder::new`].
    TooManyFields,
    /// More than [`NAMES_MAX`] names in one batch.
    TooManyNames,
    /// The batch would be larger than this; see [`BatchBuilder::limit_bytes`].
    BatchFull {
        /// The limit in bytes.
        bytes_max: usize,
    },
    /// The sender may not write this sensor; see [`BatchBuilder::allow_only`].
    NotAllowed,
    /// The reading does not have its own time; see [`BatchBuilder::require_own_time`].
    NoTime,
    /// The tags are too long together with that of the sender.
    TagsTooLong,
    /// The sensor would exceed the field limit in its bucket.
    BucketFieldsFull(BucketFieldsFull),
    /// A value is outside of its range; see [`BatchBuilder::refuse_out_of_range`].
    OutOfRange,
}

/// A position in a batch that is being built; see [`BatchBuilder::rollback`].
#[derive(Debug, Clone, Copy)]
pub struct Mark {
    bytes: usize,
    count: usize,
    retimed: usize,
}

/// Writes a batch, reading by reading: [`begin`](BatchBuilder::begin), values, then
/// [`commit`](BatchBuilder::commit) or [`abort`](BatchBuilder::abort). An aborted reading leaves
/// only its names.
///
/// The commit takes the sensor id, time and tags, because in JSON they may follow the values.
#[derive(Debug, Default)]
pub struct BatchBuilder {
    batch: ReadingBatch,
    values: Vec<u8>,
    numbers: u8,
    /// See [`super::ReadingRef::repeat`].
    repeat: u32,
    /// Names of the values so far.
    used: Vec<u16>,
    /// The schema, if it is known before the values.
    like: Option<u32>,
    /// The schema of the last committed reading.
    committed: u32,
    values_max: usize,
    last: Vec<u16>,
    names: Index,
    schemas: Index,
    guard: Option<Box<FieldGuard>>,
    ranges: Option<Box<RangeGuard>>,
    /// Values outside of their ranges.
    implausible: Vec<Implausible>,
    /// The sensors that the sender may write; `None`: all.
    allowed: Option<SensorPatterns>,
    sender_tag: Option<SenderTag>,
    own_time: bool,
    bytes_max: usize,
    /// Bytes of the names and schemas, encoded.
    interned_bytes: usize,
    is_overfull: bool,
}

/// The tag that records the sender of a reading. One that the reading has by itself does not stay,
/// unless its sender is trusted.
#[derive(Debug, Clone)]
pub struct SenderTag {
    /// Its name, as stored.
    pub name: Arc<str>,
    /// The id of the sender; `None`: unknown, so no such tag is stored.
    pub id: Option<Arc<str>>,
    /// Whether a reading that has this tag keeps it: it names the sender's own sender.
    pub is_kept: bool,
}

/// Finds names or schemas by hash, once there are more than [`COMPARED_MAX`]. Each such batch has a
/// new random seed, so that no sender can prepare colliding names.
#[derive(Debug, Default)]
struct Index {
    table: HashTable<u32>,
    seed: u64,
}

/// Keys of an [`Index`].
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
        let mix = |hash: u64, n: &u16| {
            (hash ^ u64::from(*n))
                .wrapping_mul(0x9E37_79B9_7F4A_7C15)
                .rotate_left(29)
        };
        self.iter().fold(seed, mix)
    }
}

impl Index {
    /// The index of `wanted` in `all`.
    fn find<T: Key + PartialEq + ?Sized>(&self, all: &[Box<T>], wanted: &T) -> Option<u32> {
        if all.len() <= COMPARED_MAX {
            return all.iter().position(|t| **t == *wanted).map(|i| i as u32);
        }
        self.table
            .find(wanted.hash(self.seed), |&i| *all[i as usize] == *wanted)
            .copied()
    }

    /// Indexes the elements added since the last call.
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
    /// A builder that accepts at most `values_max` values per reading, capped at [`VALUES_MAX`].
    pub fn new(values_max: usize) -> BatchBuilder {
        BatchBuilder {
            values_max: values_max.min(VALUES_MAX),
            bytes_max: BYTES_MAX,
            ..BatchBuilder::default()
        }
    }

    /// Enforces the field limit until the end of the batch. Call it while the batch is empty.
    pub fn guard(&mut self, guard: FieldGuard) {
        assert!(self.is_empty(), "a field guard in the middle of a batch");
        self.guard = Some(Box::new(guard));
    }

    /// Checks the values of readings until the end of the batch. Call it while the batch is empty.
    fn check_ranges(&mut self, ranges: Option<RangeGuard>) {
        assert!(self.is_empty(), "a range guard in the middle of a batch");
        self.ranges = ranges.map(Box::new);
    }

    /// The values outside of their ranges since the last call.
    pub fn take_implausible(&mut self) -> Vec<Implausible> {
        std::mem::take(&mut self.implausible)
    }

    /// Notes the value for which the last commit returned [`BuildError::OutOfRange`], and says what
    /// is wrong with it.
    pub fn refuse_out_of_range(&mut self) -> String {
        let ranges = self.ranges.as_mut();
        let found = ranges.and_then(|ranges| ranges.take_refusal());
        let text = found.as_ref().map(Implausible::to_string);
        self.implausible.extend(found);
        text.unwrap_or_default()
    }

    /// Accepts readings up to this size of a batch, as [`ReadingBatch::encode`] writes it; at most
    /// [`BYTES_MAX`], the default. A payload says many things once, such as the tags of a resource,
    /// that each of its readings repeats in a batch. So no limit on payloads bounds a batch.
    pub fn limit_bytes(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max.min(BYTES_MAX);
    }

    /// Whether a reading has exceeded the limit since the last call.
    pub fn take_is_overfull(&mut self) -> bool {
        std::mem::take(&mut self.is_overfull)
    }

    /// Accepts only these sensors from here on; `None`: all, as at the start of a batch.
    pub fn allow_only(&mut self, sensors: Option<SensorPatterns>) {
        self.allowed = sensors;
    }

    /// Accepts only readings with their own time from here on, until the end of the batch.
    pub fn require_own_time(&mut self) {
        self.own_time = true;
    }

    /// Adds this tag to the readings from here on, in place of one of the same name; `None`: adds
    /// no tag.
    pub fn tag_sender(&mut self, tag: Option<SenderTag>) {
        self.sender_tag = tag;
    }

    /// Discards an unfinished reading and starts the next.
    pub fn begin(&mut self) {
        self.values.clear();
        self.used.clear();
        self.numbers = 0;
        self.repeat = 0;
        self.like = None;
    }

    /// Number of values of the current reading.
    pub fn value_count(&self) -> usize {
        self.used.len()
    }

    /// Number of committed readings.
    pub fn len(&self) -> usize {
        self.batch.len()
    }

    /// Whether no reading is committed.
    pub fn is_empty(&self) -> bool {
        self.batch.is_empty()
    }

    /// Bytes of the committed records.
    pub fn memory_bytes(&self) -> usize {
        self.batch.records.len()
    }

    /// Adds a value to the current reading.
    ///
    /// # Errors
    /// A duplicate name, too many values or names, or too large a batch. The reading can still be
    /// committed without this value, or aborted.
    #[inline]
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

    /// Sets [`repeat`](super::ReadingRef::repeat) of the current reading.
    #[inline]
    pub fn repeats(&mut self, repeat: u32) {
        self.repeat = repeat;
    }

    #[inline]
    fn put(&mut self, value: ValueRef<'_>) {
        self.numbers += u8::from(value.is_number());
        value.encode(&mut self.values);
    }

    /// Starts a reading with the fields of this schema, a [`BatchBuilder::committed_schema`] of
    /// this batch. Add its values with [`BatchBuilder::next_value`], one for each field, in order.
    pub fn begin_like(&mut self, schema: u32) {
        self.begin();
        self.like = Some(schema);
    }

    /// Adds the value of the next field of the schema; see [`BatchBuilder::begin_like`].
    #[inline]
    pub fn next_value(&mut self, value: ValueRef<'_>) {
        self.put(value);
    }

    /// Ends the current reading. `tags` must be sorted by key, with keys of at most 255 bytes,
    /// values of at most 65,535 bytes, and 65,535 bytes in total. `sensor_id` has at most 65,535
    /// bytes. The limits of the decoders are far lower.
    ///
    /// # Errors
    /// The sender may not write this sensor, the reading lacks a required time, a value is outside
    /// of its [range](Checks::apply), or the reading exceeds the
    /// [field limit](BatchBuilder::guard), the [size of a batch](BatchBuilder::limit_bytes) or, with
    /// the [tag of the sender](BatchBuilder::tag_sender), the length of all tags. It can only be
    /// aborted.
    pub fn commit(
        &mut self,
        sensor_id: &str,
        ts_ms: i64,
        receipt_time: bool,
        tags: &[(&str, &str)],
    ) -> Result<(), BuildError> {
        let Some(SenderTag { name, id, is_kept }) = self.sender_tag.clone() else {
            return self.commit_as_is(sensor_id, ts_ms, receipt_time, tags);
        };
        if is_kept && tags.iter().any(|(key, _)| **key == *name) {
            return self.commit_as_is(sensor_id, ts_ms, receipt_time, tags);
        }
        let mut all = Vec::with_capacity(tags.len() + 1);
        all.extend(tags.iter().filter(|(key, _)| **key < *name));
        all.extend(id.as_deref().map(|id| (&*name, id)));
        all.extend(tags.iter().filter(|(key, _)| **key > *name));
        if all
            .iter()
            .map(|(k, v)| 3 + k.len() + v.len())
            .sum::<usize>()
            > usize::from(u16::MAX)
        {
            return Err(BuildError::TagsTooLong);
        }
        self.commit_as_is(sensor_id, ts_ms, receipt_time, &all)
    }

    fn commit_as_is(
        &mut self,
        sensor_id: &str,
        ts_ms: i64,
        receipt_time: bool,
        tags: &[(&str, &str)],
    ) -> Result<(), BuildError> {
        if self
            .allowed
            .as_ref()
            .is_some_and(|allowed| !allowed.matches(sensor_id))
        {
            return Err(BuildError::NotAllowed);
        }
        if receipt_time && self.own_time {
            return Err(BuildError::NoTime);
        }
        let sent = match self.ranges {
            Some(_) => self.keep_in_range(sensor_id, ts_ms)?,
            None => None,
        };
        let tags_bytes: usize = tags.iter().map(|(k, v)| 3 + k.len() + v.len()).sum();
        let (repeat_flag, repeat_bytes) = match self.repeat {
            0 => (0, 0),
            _ => (FLAG_REPEATS, size_of::<u32>()),
        };
        let record_bytes =
            HEAD_BYTES + sensor_id.len() + tags_bytes + self.values.len() + repeat_bytes;
        self.check_room(record_bytes + self.schema_bytes())?;
        let schema = match self.like {
            Some(schema) => schema,
            None => self.schema(),
        };
        if let Some(guard) = &mut self.guard {
            let admitted = guard.admit(
                &self.batch.names,
                &self.batch.schemas,
                schema,
                sensor_id,
                ts_ms,
            );
            admitted.map_err(BuildError::BucketFieldsFull)?;
        }
        let offset = self.batch.records.len() as u32;
        let records = &mut self.batch.records;
        records.reserve(record_bytes);
        let mut head = [0; HEAD_BYTES];
        head[0] = repeat_flag | if receipt_time { FLAG_RECEIPT_TIME } else { 0 };
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
        if self.repeat > 0 {
            records.extend_from_slice(&self.repeat.to_le_bytes());
        }
        self.batch.places.push(RowPosition {
            offset,
            hash: stable_hash(sensor_id),
        });
        if receipt_time {
            self.batch.receipt_times.add(ts_ms);
        }
        if self.like.is_none() {
            std::mem::swap(&mut self.last, &mut self.used);
        }
        if let Some(ranges) = &mut self.ranges {
            ranges.commit(&mut self.implausible);
        }
        self.begin();
        self.committed = sent.unwrap_or(schema);
        Ok(())
    }

    /// Leaves out or renames the values that are outside of their range. Returns the schema that
    /// the reading had before, if it has another one now.
    fn keep_in_range(&mut self, sensor_id: &str, ts_ms: i64) -> Result<Option<u32>, BuildError> {
        let Some(guard) = &mut self.ranges else {
            return Ok(None);
        };
        let fields = match self.like {
            Some(schema) => &self.batch.schemas[schema as usize][..],
            None => &self.used[..],
        };
        let mut cursor = Cursor { rest: &self.values };
        let values = std::iter::from_fn(|| cursor.value());
        let changed = match guard.check(&self.batch.names, fields, values, sensor_id, ts_ms) {
            Verdict::Plausible => return Ok(None),
            Verdict::Rejected => return Err(BuildError::OutOfRange),
            Verdict::Changed(changed) => changed,
        };
        let fields = fields.to_vec();
        let sent = match self.like {
            Some(schema) => schema,
            None => {
                self.check_room(self.schema_bytes())?;
                self.schema()
            }
        };
        let encoded = std::mem::take(&mut self.values);
        let repeat = self.repeat;
        self.begin();
        self.repeat = repeat;
        let mut changed = changed.into_iter().peekable();
        let mut cursor = Cursor { rest: &encoded };
        let mut apart = vec![];
        for (position, field) in fields.into_iter().enumerate() {
            let Some(value) = cursor.value() else { break };
            match changed.next_if(|(of_value, _)| *of_value == position) {
                Some((_, Some(name))) => apart.push((name, value)),
                Some((_, None)) => {}
                None => {
                    self.used.push(field);
                    self.put(value);
                }
            }
        }
        // After the others, so that a field that the sender has named so stays.
        for (name, value) in apart {
            let _ = self.value(&name, value);
        }
        match self.used.is_empty() {
            true => Err(BuildError::OutOfRange),
            false => Ok(Some(sent)),
        }
    }

    /// Records that the last committed reading had a time that could not be used, and has the time
    /// of receipt instead.
    pub fn note_retimed(&mut self) {
        self.batch.retimed += 1;
    }

    /// The schema of the last committed reading.
    pub fn committed_schema(&self) -> u32 {
        self.committed
    }

    /// Reserves memory for `n` more readings like the last committed one, so that the batch need not
    /// be copied as it grows.
    pub fn reserve_like_last(&mut self, n: usize) {
        let records = &mut self.batch.records;
        let Some(last) = self.batch.places.last() else {
            return;
        };
        let record_bytes = records.len() - last.offset as usize;
        let n = n.min(RESERVED_BYTES_MAX / record_bytes.max(1));
        reserve(records, n * record_bytes);
        reserve(&mut self.batch.places, n);
    }

    /// Discards the current reading.
    pub fn abort(&mut self) {
        self.begin();
    }

    /// Number of interned names. At [`NAMES_MAX`] the batch should be sent on.
    pub fn names_len(&self) -> usize {
        self.batch.names.len()
    }

    /// The current position, for [`BatchBuilder::rollback`].
    pub fn mark(&self) -> Mark {
        Mark {
            bytes: self.batch.records.len(),
            count: self.batch.places.len(),
            retimed: self.batch.retimed,
        }
    }

    /// Removes all readings committed since `mark`.
    pub fn rollback(&mut self, mark: Mark) {
        self.batch.records.truncate(mark.bytes);
        self.batch.places.truncate(mark.count);
        self.batch.retimed = mark.retimed;
        self.begin();
    }

    /// Adds an owned reading (tests and tools).
    ///
    /// # Errors
    /// Like [`BatchBuilder::value`] and [`BatchBuilder::commit`].
    pub fn push(&mut self, reading: &Reading) -> Result<(), BuildError> {
        self.begin();
        for (name, value) in &reading.values {
            self.value(name, value.as_ref())?;
        }
        let tags: Vec<(&str, &str)> = reading
            .tags
            .iter()
            .map(|(k, v)| (k.as_str(), v.as_str()))
            .collect();
        self.commit(
            &reading.sensor_id,
            reading.ts_ms,
            reading.receipt_time,
            &tags,
        )
    }

    /// Returns the batch and resets the builder.
    pub fn finish(&mut self) -> ReadingBatch {
        self.begin();
        self.last.clear();
        self.names.table.clear();
        self.schemas.table.clear();
        (self.guard, self.ranges) = (None, None);
        self.implausible.clear();
        (self.allowed, self.sender_tag, self.own_time) = (None, None, false);
        (self.interned_bytes, self.is_overfull) = (0, false);
        std::mem::take(&mut self.batch)
    }

    /// Interns a name. Guesses first that it is the name at the same position of the previous
    /// reading.
    #[inline]
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
        let bytes = 2 + name.len();
        self.check_room(bytes)?;
        self.interned_bytes += bytes;
        self.batch.names.push(name.into());
        self.names.grow(&self.batch.names);
        Ok((self.batch.names.len() - 1) as u16)
    }

    /// Whether this many bytes more are within the limit.
    fn check_room(&mut self, bytes: usize) -> Result<(), BuildError> {
        let bytes_max = self.bytes_max;
        if self.encoded_bytes() + bytes > bytes_max {
            self.is_overfull = true;
            return Err(BuildError::BatchFull { bytes_max });
        }
        Ok(())
    }

    /// Size of the batch, as [`ReadingBatch::encode`] writes it.
    fn encoded_bytes(&self) -> usize {
        4 + 2 + 4 + self.interned_bytes + self.batch.records.len()
    }

    /// Size of the schema of the current reading if it is a new one.
    fn schema_bytes(&self) -> usize {
        1 + 2 * self.used.len()
    }

    /// The schema of the current reading. The number of schemas needs no limit: each is smaller
    /// than its first reading.
    fn schema(&mut self) -> u32 {
        let bytes = self.schema_bytes();
        let schemas = &mut self.batch.schemas;
        if let Some(known) = self.schemas.find(schemas, &self.used[..]) {
            return known;
        }
        self.interned_bytes += bytes;
        schemas.push(self.used[..].into());
        self.schemas.grow(schemas);
        (schemas.len() - 1) as u32
    }
}

/// What a process remembers in order to check readings, shared by all threads that decode. By
/// default without a limit on field names.
#[derive(Debug, Clone, Default)]
pub struct Checks {
    fields: Option<FieldLimiter>,
    last_values: LastValues,
}

impl Checks {
    /// With the field limit, for buckets of this span.
    pub fn new(span: Span) -> Checks {
        Checks {
            fields: Some(FieldLimiter::new(span)),
            ..Checks::default()
        }
    }

    /// Lets a builder of an empty batch check what it is given at this time (ms since 1970), by
    /// `limits.bucket_fields_max` and the ranges.
    pub fn apply(&self, out: &mut BatchBuilder, fields_max: usize, ranges: &Ranges, now_ms: i64) {
        if let Some(fields) = &self.fields {
            out.guard(fields.guard(fields_max, now_ms));
        }
        out.check_ranges(RangeGuard::new(ranges, &self.last_values));
    }
}

/// Reserves room for `more` elements. A reallocation copies all of the capacity, so if hardly any of
/// it is used, the elements move to a new allocation instead.
fn reserve<T: Clone>(all: &mut Vec<T>, more: usize) {
    let is_short = all.capacity() - all.len() < more;
    if is_short && all.len() <= more / 8 {
        let mut larger = Vec::with_capacity(all.len() + more);
        larger.extend_from_slice(all);
        *all = larger;
    } else {
        all.reserve(more);
    }
}

/// Builds a batch of owned readings (tests and tools); skips readings that exceed a limit.
impl FromIterator<Reading> for ReadingBatch {
    fn from_iter<I: IntoIterator<Item = Reading>>(readings: I) -> ReadingBatch {
        let mut builder = BatchBuilder::new(VALUES_MAX);
        for reading in readings {
            if builder.push(&reading).is_err() {
                builder.abort();
            }
        }
        builder.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_reserved_holds_the_readings_that_follow_and_is_bounded() {
        let add = |builder: &mut BatchBuilder| {
            builder.begin();
            builder.value("temp", ValueRef::Int(1)).unwrap();
            builder.commit("S", 1, false, &[]).unwrap();
        };
        let mut builder = BatchBuilder::new(8);
        builder.reserve_like_last(1000);
        add(&mut builder);
        builder.reserve_like_last(1000);
        let reserved = builder.batch.records.capacity();
        for _ in 0..1000 {
            add(&mut builder);
        }
        assert_eq!(builder.batch.records.capacity(), reserved);
        builder.reserve_like_last(usize::MAX);
        let most = builder.batch.records.len() + RESERVED_BYTES_MAX;
        assert!(builder.batch.records.capacity() <= most.max(2 * reserved));
    }
}
