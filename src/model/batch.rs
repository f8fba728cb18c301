//! Readings on their way from a decoder to a shard, in one run of bytes.
//!
//! Constraints: a gateway's body holds a thousand readings of a thousand sensors, a broker's message one. No allocation
//! per reading; the journal must be able to write the batch as it is and read it back; a shard must be able to start at
//! any reading. So: field names are interned once a batch, everything else stands in line.
//!
//! A record: flags (u8), time (i64 ms), sensor id (u16 length, bytes), tags where flagged (u16 length, bytes), number
//! of values (u8), then each value: name (u16, an index into the batch's names) and the value ([`super::value`]). All
//! little-endian. [`ReadingBatch::encode`] puts the names before the records.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::reading::Reading;
use super::value::{Cursor, ValueRef};

const FLAG_RECEIPT_TIME: u8 = 1;
const FLAG_TAGS: u8 = 2;

/// Most values a record can hold (`limits.fields_max` cannot be set higher): their number is one byte.
pub const VALUES_MAX: usize = 255;
/// Most names a batch can hold: an index is two bytes. A builder that is full says so, and the batch is sent on.
pub const NAMES_MAX: usize = 4096;
/// Up to this many names are found by comparing, which is faster than hashing; more are found in a table, so that a
/// payload full of distinct names costs linear time.
const NAMES_COMPARED_MAX: usize = 16;

/// A sensor's tags in canonical form: `(u8 key length, key, u16 value length, value)*`, sorted by key. Compared as bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Tags(Box<[u8]>);

impl Tags {
    /// Tags from their canonical form, as [`ReadingRef::tags`] gives it.
    pub fn from_canonical(bytes: &[u8]) -> Tags {
        Tags(bytes.into())
    }

    /// The canonical form.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Key and value, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        tags_iter(&self.0)
    }
}

fn tags_iter(bytes: &[u8]) -> impl Iterator<Item = (&str, &str)> {
    let mut cursor = Cursor { rest: bytes };
    std::iter::from_fn(move || {
        let n = usize::from(cursor.u8()?);
        let key = cursor.text(n)?;
        let n = usize::from(cursor.u16()?);
        Some((key, cursor.text(n)?))
    })
}

/// Readings, immutable from here on; shared by the shards they go to.
#[derive(Debug, Clone, Default)]
pub struct ReadingBatch {
    names: Vec<Box<str>>,
    records: Vec<u8>,
    count: u32,
}

/// A reading within a batch.
#[derive(Debug, Clone, Copy)]
pub struct ReadingRef<'a> {
    /// The series.
    pub sensor_id: &'a str,
    /// Milliseconds since 1970.
    pub ts_ms: i64,
    /// See [`Reading::receipt_time`].
    pub receipt_time: bool,
    /// The tags in canonical form; empty where there are none.
    pub tags: &'a [u8],
    /// How many values.
    pub value_count: u8,
    values: &'a [u8],
}

impl<'a> ReadingRef<'a> {
    /// Index into the batch's names, and the value.
    pub fn values(&self) -> impl Iterator<Item = (u16, ValueRef<'a>)> + use<'a> {
        let mut cursor = Cursor { rest: self.values };
        (0..self.value_count).map_while(move |_| Some((cursor.u16()?, cursor.value()?)))
    }

    /// An owned copy.
    pub fn to_reading(&self, batch: &ReadingBatch) -> Reading {
        Reading {
            sensor_id: self.sensor_id.to_owned(),
            ts_ms: self.ts_ms,
            receipt_time: self.receipt_time,
            tags: tags_iter(self.tags).map(|(k, v)| (k.to_owned(), v.to_owned())).collect(),
            values: self.values().map(|(i, v)| (batch.name(i).to_owned(), v.to_value())).collect(),
        }
    }
}

impl ReadingBatch {
    /// How many readings.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The interned field names.
    pub fn names(&self) -> &[Box<str>] {
        &self.names
    }

    /// The name behind an index of [`ReadingRef::values`].
    pub fn name(&self, index: u16) -> &str {
        &self.names[usize::from(index)]
    }

    /// Bytes held.
    pub fn memory_bytes(&self) -> usize {
        self.records.len() + self.names.iter().map(|n| n.len() + 16).sum::<usize>()
    }

    /// Each reading with the offset at which [`ReadingBatch::at`] finds it again.
    pub fn iter(&self) -> impl Iterator<Item = (u32, ReadingRef<'_>)> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let (reading, next) = parse(&self.records, at)?;
            Some((std::mem::replace(&mut at, next) as u32, reading))
        })
    }

    /// The reading at an offset that [`ReadingBatch::iter`] gave; `None` elsewhere.
    pub fn at(&self, offset: u32) -> Option<ReadingRef<'_>> {
        parse(&self.records, offset as usize).map(|(reading, _)| reading)
    }

    /// Owned copies of all readings (tests and tools).
    pub fn to_readings(&self) -> Vec<Reading> {
        self.iter().map(|(_, r)| r.to_reading(self)).collect()
    }

    /// Appends the whole batch in a form that [`ReadingBatch::decode`] reads back: number of readings (u32), number of
    /// names (u16), each name (u16 length, bytes), then the records.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.reserve(self.memory_bytes() + 8);
        out.extend_from_slice(&self.count.to_le_bytes());
        out.extend_from_slice(&(self.names.len() as u16).to_le_bytes());
        for name in &self.names {
            out.extend_from_slice(&(name.len() as u16).to_le_bytes());
            out.extend_from_slice(name.as_bytes());
        }
        out.extend_from_slice(&self.records);
    }

    /// Reads what [`ReadingBatch::encode`] wrote, checking every record; `None` where it is not whole.
    pub fn decode(bytes: &[u8]) -> Option<ReadingBatch> {
        let mut cursor = Cursor { rest: bytes };
        let count = cursor.u32()?;
        let names = cursor.u16()?;
        let name = |cursor: &mut Cursor<'_>| {
            let n = usize::from(cursor.u16()?);
            cursor.text(n).map(Box::from)
        };
        let names = (0..names).map(|_| name(&mut cursor)).collect::<Option<Vec<Box<str>>>>()?;
        let batch = ReadingBatch { names, records: cursor.rest.to_vec(), count };
        let (mut at, mut seen) = (0, 0);
        while let Some((reading, next)) = parse(&batch.records, at) {
            if !reading.values().all(|(i, _)| usize::from(i) < batch.names.len()) {
                return None;
            }
            (at, seen) = (next, seen + 1);
        }
        (at == batch.records.len() && seen == count).then_some(batch)
    }
}

fn parse(records: &[u8], at: usize) -> Option<(ReadingRef<'_>, usize)> {
    let mut cursor = Cursor { rest: records.get(at..).filter(|rest| !rest.is_empty())? };
    let (flags, ts_ms) = (cursor.u8()?, cursor.i64()?);
    let n = usize::from(cursor.u16()?);
    let sensor_id = cursor.text(n)?;
    let tags = if flags & FLAG_TAGS != 0 {
        let n = usize::from(cursor.u16()?);
        cursor.take(n)?
    } else {
        &[]
    };
    let value_count = cursor.u8()?;
    let values = cursor.rest;
    for _ in 0..value_count {
        cursor.u16()?;
        cursor.value()?;
    }
    let values = &values[..values.len() - cursor.rest.len()];
    let receipt_time = flags & FLAG_RECEIPT_TIME != 0;
    let reading = ReadingRef { sensor_id, ts_ms, receipt_time, tags, value_count, values };
    Some((reading, records.len() - cursor.rest.len()))
}

/// What a builder could not take; the decoder makes a reject of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BuildError {
    /// The reading has this name already.
    DuplicateField,
    /// More than the allowed number of values, [`VALUES_MAX`] at most.
    TooManyFields,
    /// More than [`NAMES_MAX`] names in one batch.
    TooManyNames,
}

/// A place in a batch that is being built.
#[derive(Debug, Clone, Copy)]
pub struct Mark {
    bytes: usize,
    count: u32,
}

/// Writes a batch, reading by reading: [`begin`](BatchBuilder::begin), values, then [`commit`](BatchBuilder::commit) or
/// [`abort`](BatchBuilder::abort). Nothing of an aborted reading stays but its names.
///
/// The sensor id, time and tags are given at the commit, since in JSON they may come after the values.
#[derive(Debug, Default)]
pub struct BatchBuilder {
    batch: ReadingBatch,
    values: Vec<u8>,
    used: Vec<u16>,
    values_max: usize,
    last: Vec<u16>,
    index: NameIndex,
}

/// Finds names by hash, once there are more than [`NAMES_COMPARED_MAX`]. The seed is drawn once a process: nobody can
/// prepare names that all collide.
#[derive(Debug, Default)]
struct NameIndex {
    table: HashTable<u16>,
    seed: u64,
}

impl NameIndex {
    fn find(&self, names: &[Box<str>], name: &str) -> Option<u16> {
        let hash = xxh3_64_with_seed(name.as_bytes(), self.seed);
        self.table.find(hash, |&i| *names[usize::from(i)] == *name).copied()
    }

    /// Takes in the names that were added since the last time.
    fn grow(&mut self, names: &[Box<str>]) {
        if self.table.is_empty() {
            self.seed = RandomState::new().hash_one(0);
        }
        let seed = self.seed;
        let hash = |&i: &u16| xxh3_64_with_seed(names[usize::from(i)].as_bytes(), seed);
        for i in self.table.len() as u16..names.len() as u16 {
            self.table.insert_unique(hash(&i), i, hash);
        }
    }
}

impl BatchBuilder {
    /// A builder that takes at most `values_max` values a reading.
    pub fn new(values_max: usize) -> BatchBuilder {
        BatchBuilder { values_max: values_max.min(VALUES_MAX), ..BatchBuilder::default() }
    }

    /// Drops what an unfinished reading left and starts the next.
    pub fn begin(&mut self) {
        self.values.clear();
        self.used.clear();
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
        self.values.extend_from_slice(&index.to_le_bytes());
        value.encode(&mut self.values);
        Ok(())
    }

    /// Ends the current reading. `tags` must be sorted by key, keys at most 255 and values at most 65,535 bytes, 65,535
    /// in all; `sensor_id` at most 65,535 bytes. The decoders' limits are far below.
    pub fn commit(&mut self, sensor_id: &str, ts_ms: i64, receipt_time: bool, tags: &[(&str, &str)]) {
        let records = &mut self.batch.records;
        let mut flags = if receipt_time { FLAG_RECEIPT_TIME } else { 0 };
        if !tags.is_empty() {
            flags |= FLAG_TAGS;
        }
        records.push(flags);
        records.extend_from_slice(&ts_ms.to_le_bytes());
        records.extend_from_slice(&(sensor_id.len() as u16).to_le_bytes());
        records.extend_from_slice(sensor_id.as_bytes());
        if !tags.is_empty() {
            let bytes: usize = tags.iter().map(|(k, v)| 3 + k.len() + v.len()).sum();
            records.extend_from_slice(&(bytes as u16).to_le_bytes());
            for (key, value) in tags {
                records.push(key.len() as u8);
                records.extend_from_slice(key.as_bytes());
                records.extend_from_slice(&(value.len() as u16).to_le_bytes());
                records.extend_from_slice(value.as_bytes());
            }
        }
        records.push(self.used.len() as u8);
        records.extend_from_slice(&self.values);
        self.batch.count += 1;
        std::mem::swap(&mut self.last, &mut self.used);
        self.begin();
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
        Mark { bytes: self.batch.records.len(), count: self.batch.count }
    }

    /// Takes back every reading committed since `mark`.
    pub fn rollback(&mut self, mark: Mark) {
        self.batch.records.truncate(mark.bytes);
        self.batch.count = mark.count;
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
        self.commit(&reading.sensor_id, reading.ts_ms, reading.receipt_time, &tags);
        Ok(())
    }

    /// The batch; the builder is as new.
    pub fn finish(&mut self) -> ReadingBatch {
        self.begin();
        self.last.clear();
        self.index.table.clear();
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
        let found = if names.len() <= NAMES_COMPARED_MAX {
            names.iter().position(|n| **n == *name).map(|i| i as u16)
        } else {
            self.index.find(names, name)
        };
        if let Some(i) = found {
            return Ok(i);
        }
        if names.len() >= NAMES_MAX {
            return Err(BuildError::TooManyNames);
        }
        self.batch.names.push(name.into());
        if self.batch.names.len() > NAMES_COMPARED_MAX {
            self.index.grow(&self.batch.names);
        }
        Ok((self.batch.names.len() - 1) as u16)
    }
}

/// A batch of owned readings (tests and tools); readings that cannot be built are left out.
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
    use crate::model::Value;

    fn readings() -> Vec<Reading> {
        let reading = |id: &str, ts_ms, receipt_time, tags: &[(&str, &str)], values: &[(&str, Value)]| Reading {
            sensor_id: id.into(),
            ts_ms,
            receipt_time,
            tags: tags.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect(),
            values: values.iter().map(|(k, v)| (k.to_string(), v.clone())).collect(),
        };
        vec![
            reading("S1", 1, false, &[], &[("humid", Value::Int(60)), ("temp", Value::Double(22.4))]),
            reading(
                "Sensor ü",
                -1,
                true,
                &[("site", "north"), ("floor", "")],
                &[("on", Value::Bool(false)), ("state", Value::Str("".into()))],
            ),
            reading("", i64::MAX, false, &[], &[("temp", Value::Double(-0.0))]),
        ]
    }

    #[test]
    fn a_batch_gives_back_what_was_pushed_directly_by_offset_and_encoded() {
        let batch: ReadingBatch = readings().into_iter().collect();
        assert_eq!(batch.to_readings(), readings());
        for (offset, reading) in batch.iter() {
            assert_eq!(batch.at(offset).unwrap().to_reading(&batch), reading.to_reading(&batch));
        }
        let mut bytes = vec![];
        batch.encode(&mut bytes);
        assert_eq!(ReadingBatch::decode(&bytes).unwrap().to_readings(), readings());
        for cut in 0..bytes.len() {
            assert!(ReadingBatch::decode(&bytes[..cut]).is_none(), "cut at {cut}");
        }
    }

    #[test]
    fn names_are_interned_once_however_many_there_are() {
        let mut builder = BatchBuilder::new(VALUES_MAX);
        // Twice, since a finished builder starts anew.
        for _ in 0..2 {
            for i in (0..NAMES_MAX).chain((0..NAMES_MAX).rev()) {
                builder.value(&format!("name {i}"), ValueRef::Int(i as i64)).unwrap();
                builder.commit("s", 0, false, &[]);
            }
            assert_eq!(builder.names_len(), NAMES_MAX);
            assert_eq!(builder.value("one more", ValueRef::Int(0)), Err(BuildError::TooManyNames));
            let batch = builder.finish();
            assert_eq!(batch.len(), 2 * NAMES_MAX);
            for (_, reading) in batch.iter() {
                let (name, value) = reading.values().next().unwrap();
                assert_eq!(value, ValueRef::Int(batch.name(name)["name ".len()..].parse().unwrap()));
            }
        }
    }

    #[test]
    fn an_aborted_reading_leaves_nothing() {
        let mut builder = BatchBuilder::new(2);
        builder.value("a", ValueRef::Int(1)).unwrap();
        assert_eq!(builder.value("a", ValueRef::Int(2)), Err(BuildError::DuplicateField));
        builder.value("b", ValueRef::Int(1)).unwrap();
        assert_eq!(builder.value("c", ValueRef::Int(2)), Err(BuildError::TooManyFields));
        builder.abort();
        builder.value("b", ValueRef::Int(3)).unwrap();
        builder.commit("s", 0, false, &[]);
        let batch = builder.finish();
        assert_eq!(batch.len(), 1);
        assert_eq!(batch.to_readings()[0].values.len(), 1);
        assert!(builder.finish().is_empty());
    }
}
