//! Readings between a decoder and a shard, packed into one byte buffer.
//!
//! Constraints: a gateway's body has a thousand readings of a thousand sensors; a broker's message
//! has one. There is no allocation per reading. The journal writes the batch unchanged and reads it
//! back. A shard can start at any reading and copy its values without decoding each. So field names
//! are interned once per batch, and so are their combinations (*field schemas*: few, because the
//! readings of one kind of sensor have the same fields). Everything else is stored inline.
//!
//! A record: flags (u8), time (i64 ms), length of the sensor id (u16), length of the tags (u16),
//! schema (u32), number of numeric values (u8), length of the values (u32); then sensor id, tags,
//! and one value ([`super::value`]) for each name of the schema; then, of a reading that repeats
//! others, how many (u32). All numbers are little-endian.
//! [`ReadingBatch::encode`] writes names and schemas before the records. The offset of each record
//! and the hash of its sensor are kept separately, for the router.

mod builder;
#[cfg(test)]
mod size_tests;

pub use builder::{BatchBuilder, BuildError, Checks, Mark, SenderTag};

use super::ids::stable_hash;
use super::memory;
use super::reading::{Reading, ReadingKey};
use super::value::{Cursor, ValueRef};

const FLAG_RECEIPT_TIME: u8 = 1;
/// The record ends with [`ReadingRef::repeat`].
const FLAG_REPEATS: u8 = 2;

/// Bytes of a record before its sensor id.
const HEAD_BYTES: usize = 1 + 8 + 2 + 2 + 4 + 1 + 4;
/// Where in a record the length of the sensor id is.
const ID_LENGTH: usize = 1 + 8;

/// Maximum number of values in a record, because it is stored in one byte. Upper limit of
/// `limits.fields_max`.
pub const VALUES_MAX: usize = 255;
/// The usual limit of [`BatchBuilder::limit_bytes`]: far below the limits of an offset in a batch
/// and of an entry in the journal.
pub const BYTES_MAX: usize = 512 << 20;
/// Maximum number of names in a batch. A name index has two bytes. When a builder reaches it, the
/// batch is sent on.
pub const NAMES_MAX: usize = 4096;

/// A sensor's tags in canonical form: `(u8 key length, key, u16 value length, value)*`, sorted by
/// key. Compared as bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Tags(Box<[u8]>);

impl Tags {
    /// Tags from their canonical form, as in [`ReadingRef::tags`].
    pub fn from_canonical(bytes: &[u8]) -> Tags {
        Tags(bytes.into())
    }

    /// The canonical form.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Keys and values, sorted by key.
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

/// The first and the last receipt time in a set of readings; empty if no reading has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReceiptTimes(Option<(i64, i64)>);

impl ReceiptTimes {
    /// Those of readings that are not known: they may be any.
    pub const ANY: ReceiptTimes = ReceiptTimes(Some((i64::MIN, i64::MAX)));

    /// Adds a receipt time (milliseconds since 1970).
    pub fn add(&mut self, ts_ms: i64) {
        self.join(ReceiptTimes(Some((ts_ms, ts_ms))));
    }

    /// Extends the range by that of other readings.
    pub fn join(&mut self, other: ReceiptTimes) {
        if let Some((first, last)) = other.0 {
            self.0 = Some(
                self.0
                    .map_or((first, last), |(a, b)| (a.min(first), b.max(last))),
            );
        }
    }

    /// Whether no reading has a receipt time.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Whether both ranges may contain the same time.
    pub fn overlap(&self, other: &ReceiptTimes) -> bool {
        self.0
            .zip(other.0)
            .is_some_and(|((a_first, a_last), (b_first, b_last))| {
                a_first <= b_last && b_first <= a_last
            })
    }
}

/// Packed readings; immutable, and shared by the shards that receive them.
#[derive(Debug, Clone, Default)]
pub struct ReadingBatch {
    names: Vec<Box<str>>,
    schemas: Vec<Box<[u16]>>,
    records: Vec<u8>,
    places: Vec<RowPosition>,
    receipt_times: ReceiptTimes,
    /// Not written to the journal.
    retimed: usize,
}

/// The position of a reading in its batch, and the hash of its sensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowPosition {
    /// Argument of [`ReadingBatch::at`].
    pub offset: u32,
    /// [`stable_hash`] of the sensor id.
    pub hash: u64,
}

/// A reading within a batch.
#[derive(Debug, Clone, Copy)]
pub struct ReadingRef<'a> {
    id: &'a [u8],
    /// Milliseconds since 1970.
    pub ts_ms: i64,
    /// See [`Reading::receipt_time`].
    pub receipt_time: bool,
    /// How many equal readings its sender sent before it that are other readings nevertheless; 0
    /// for nearly all. An instance that forwards has given them their times, and the sensor had
    /// none.
    pub repeat: u32,
    /// The tags in canonical form; may be empty.
    pub tags: &'a [u8],
    /// Index for [`ReadingBatch::schema`].
    pub schema: u32,
    /// Number of its numeric values.
    pub numbers: u8,
    /// Its values in compact form ([`super::value`]), one for each name of its schema.
    pub payload: &'a [u8],
    names: &'a [u16],
}

impl<'a> ReadingRef<'a> {
    /// Borrowed from the batch; each call validates its UTF-8.
    pub fn sensor_id(&self) -> &'a str {
        // Checked when the batch was built or decoded.
        std::str::from_utf8(self.id).unwrap_or_default()
    }

    /// The bytes of the sensor id, without the cost of UTF-8 validation.
    pub fn sensor_id_bytes(&self) -> &'a [u8] {
        self.id
    }

    /// Name indexes (see [`ReadingBatch::name`]) and values.
    pub fn values(&self) -> impl Iterator<Item = (u16, ValueRef<'a>)> + use<'a> {
        let mut cursor = Cursor { rest: self.payload };
        self.names
            .iter()
            .map_while(move |&name| Some((name, cursor.value()?)))
    }

    /// An owned copy, for tests and tools.
    pub fn to_reading(&self, batch: &ReadingBatch) -> Reading {
        Reading {
            sensor_id: self.sensor_id().to_owned(),
            ts_ms: self.ts_ms,
            receipt_time: self.receipt_time,
            tags: tags_iter(self.tags)
                .map(|(k, v)| (k.to_owned(), v.to_owned()))
                .collect(),
            values: self
                .values()
                .map(|(i, v)| (batch.name(i).to_owned(), v.to_value()))
                .collect(),
        }
    }
}

impl ReadingBatch {
    /// Number of readings.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether the batch has no readings.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The interned field names.
    pub fn names(&self) -> &[Box<str>] {
        &self.names
    }

    /// The name for an index of [`ReadingRef::values`].
    pub fn name(&self, index: u16) -> &str {
        &self.names[usize::from(index)]
    }

    /// Number of field schemas.
    pub(crate) fn schema_count(&self) -> usize {
        self.schemas.len()
    }

    /// The names of a schema, as indexes for [`ReadingBatch::name`].
    pub fn schema(&self, index: u32) -> &[u16] {
        &self.schemas[index as usize]
    }

    /// Memory use, in bytes.
    pub fn memory_bytes(&self) -> usize {
        memory::block(self.records.capacity())
            + memory::block(self.places.capacity() * size_of::<RowPosition>())
            + memory::block(self.names.capacity() * size_of::<Box<str>>())
            + memory::block(self.schemas.capacity() * size_of::<Box<[u16]>>())
            + self
                .names
                .iter()
                .map(|name| memory::block(name.len()))
                .sum::<usize>()
            + self
                .schemas
                .iter()
                .map(|schema| memory::block(size_of_val(&**schema)))
                .sum::<usize>()
    }

    /// Number of bytes that [`ReadingBatch::encode`] appends.
    pub fn encoded_bytes(&self) -> usize {
        let names: usize = self.names.iter().map(|name| 2 + name.len()).sum();
        let schemas: usize = self.schemas.iter().map(|schema| 1 + 2 * schema.len()).sum();
        4 + 2 + names + 4 + schemas + self.records.len()
    }

    /// The number of readings that have the time of receipt in place of a time that could not be
    /// used. Only known to the builder of the batch.
    pub fn retimed(&self) -> usize {
        self.retimed
    }

    /// The receipt times of its readings, including those removed by [`BatchBuilder::rollback`].
    pub fn receipt_times(&self) -> ReceiptTimes {
        self.receipt_times
    }

    /// The positions of the readings, in order.
    pub fn places(&self) -> &[RowPosition] {
        &self.places
    }

    /// Each reading with its offset for [`ReadingBatch::at`].
    pub fn iter(&self) -> impl Iterator<Item = (u32, ReadingRef<'_>)> {
        self.places
            .iter()
            .filter_map(|place| Some((place.offset, self.at(place.offset)?)))
    }

    /// The reading at an offset of [`ReadingBatch::places`]. Other offsets give `None` or an
    /// invalid reading.
    #[inline]
    pub fn at(&self, offset: u32) -> Option<ReadingRef<'_>> {
        self.parse(offset as usize).map(|(reading, _)| reading)
    }

    /// The same readings, each with the id that `now` returns for its id and time; `None` if it
    /// returns none for any of them.
    pub(crate) fn with_ids<'i>(
        &self,
        now: impl Fn(&str, i64) -> Option<&'i str>,
    ) -> Option<ReadingBatch> {
        let id_of = |reading: &ReadingRef<'_>| now(reading.sensor_id(), reading.ts_ms);
        self.iter().find(|(_, reading)| id_of(reading).is_some())?;
        let mut records = Vec::with_capacity(self.records.len());
        let mut places = Vec::with_capacity(self.places.len());
        let ends = self
            .places
            .iter()
            .skip(1)
            .map(|place| place.offset as usize);
        let ends = ends.chain([self.records.len()]);
        for (i, ((start, reading), end)) in self.iter().zip(ends).enumerate() {
            let record = &self.records[start as usize..end];
            let offset = records.len() as u32;
            let hash = match id_of(&reading) {
                None => {
                    records.extend_from_slice(record);
                    self.places[i].hash
                }
                Some(id) => {
                    records.extend_from_slice(&record[..ID_LENGTH]);
                    records.extend_from_slice(&(id.len() as u16).to_le_bytes());
                    records.extend_from_slice(&record[ID_LENGTH + 2..HEAD_BYTES]);
                    records.extend_from_slice(id.as_bytes());
                    records.extend_from_slice(&record[HEAD_BYTES + reading.id.len()..]);
                    stable_hash(id)
                }
            };
            places.push(RowPosition { offset, hash });
        }
        Some(ReadingBatch {
            names: self.names.clone(),
            schemas: self.schemas.clone(),
            records,
            places,
            receipt_times: self.receipt_times,
            retimed: self.retimed,
        })
    }

    /// Owned copies of all readings (tests and tools).
    pub fn to_readings(&self) -> Vec<Reading> {
        self.iter().map(|(_, r)| r.to_reading(self)).collect()
    }

    /// Encodes the batch for [`ReadingBatch::decode`]: number of readings (u32), number of names
    /// (u16), each name (u16 length, bytes), number of schemas (u32), each schema (u8 length, names
    /// as u16), then the records.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.reserve(self.encoded_bytes());
        out.extend_from_slice(&(self.len() as u32).to_le_bytes());
        out.extend_from_slice(&(self.names.len() as u16).to_le_bytes());
        for name in &self.names {
            out.extend_from_slice(&(name.len() as u16).to_le_bytes());
            out.extend_from_slice(name.as_bytes());
        }
        out.extend_from_slice(&(self.schemas.len() as u32).to_le_bytes());
        for schema in &self.schemas {
            out.push(schema.len() as u8);
            schema
                .iter()
                .for_each(|name| out.extend_from_slice(&name.to_le_bytes()));
        }
        out.extend_from_slice(&self.records);
    }

    /// Decodes the bytes of [`ReadingBatch::encode`] and checks every record; `None` if they are
    /// incomplete or invalid.
    pub fn decode(bytes: &[u8]) -> Option<ReadingBatch> {
        let mut cursor = Cursor { rest: bytes };
        let count = cursor.u32()? as usize;
        let mut names = vec![];
        for _ in 0..cursor.u16()? {
            let n = usize::from(cursor.u16()?);
            names.push(cursor.text(n).map(Box::from)?);
        }
        let mut schemas: Vec<Box<[u16]>> = vec![];
        for _ in 0..cursor.u32()? {
            let n = cursor.u8()?;
            let schema =
                (0..n).map(|_| cursor.u16().filter(|name| usize::from(*name) < names.len()));
            schemas.push(schema.collect::<Option<_>>()?);
        }
        let mut batch = ReadingBatch {
            names,
            schemas,
            records: cursor.rest.to_vec(),
            ..ReadingBatch::default()
        };
        let mut receipt_times = ReceiptTimes::default();
        let mut at = 0;
        let mut places = Vec::with_capacity(count.min(batch.records.len() / HEAD_BYTES));
        while at < batch.records.len() {
            let (reading, next) = batch.parse(at)?;
            let hash = stable_hash(reading.checked()?);
            places.push(RowPosition {
                offset: at as u32,
                hash,
            });
            if reading.receipt_time {
                receipt_times.add(reading.ts_ms);
            }
            at = next;
        }
        batch.places = places;
        batch.receipt_times = receipt_times;
        (batch.len() == count).then_some(batch)
    }

    #[inline]
    fn parse(&self, at: usize) -> Option<(ReadingRef<'_>, usize)> {
        let mut cursor = Cursor {
            rest: self.records.get(at..).filter(|rest| !rest.is_empty())?,
        };
        let flags = cursor.u8()?;
        let ts_ms = cursor.i64()?;
        let id = usize::from(cursor.u16()?);
        let tags = usize::from(cursor.u16()?);
        let schema = cursor.u32()?;
        let numbers = cursor.u8()?;
        let payload = cursor.u32()? as usize;
        let reading = ReadingRef {
            ts_ms,
            receipt_time: flags & FLAG_RECEIPT_TIME != 0,
            schema,
            numbers,
            id: cursor.take(id)?,
            tags: cursor.take(tags)?,
            payload: cursor.take(payload)?,
            names: self.schemas.get(schema as usize)?,
            repeat: match flags & FLAG_REPEATS {
                0 => 0,
                _ => cursor.u32()?,
            },
        };
        Some((reading, self.records.len() - cursor.rest.len()))
    }
}

impl<'a> ReadingRef<'a> {
    /// The identity within its sensor. `batch`: the one that it is in.
    pub fn key(&self, batch: &ReadingBatch) -> ReadingKey {
        let values = self.values().map(|(name, value)| (batch.name(name), value));
        ReadingKey::new(self.ts_ms, values).repeated(self.repeat)
    }

    /// The sensor id, if the whole record is valid. Records from a file may not be.
    fn checked(&self) -> Option<&'a str> {
        let mut cursor = Cursor { rest: self.payload };
        let mut numbers = 0;
        for _ in self.names {
            numbers += usize::from(cursor.value()?.is_number());
        }
        let whole = cursor.rest.is_empty() && numbers == usize::from(self.numbers);
        std::str::from_utf8(self.id).ok().filter(|_| whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Value;

    fn readings() -> Vec<Reading> {
        let reading =
            |id: &str, ts_ms, receipt_time, tags: &[(&str, &str)], values: &[(&str, Value)]| {
                Reading {
                    sensor_id: id.into(),
                    ts_ms,
                    receipt_time,
                    tags: tags
                        .iter()
                        .map(|(k, v)| (k.to_string(), v.to_string()))
                        .collect(),
                    values: values
                        .iter()
                        .map(|(k, v)| (k.to_string(), v.clone()))
                        .collect(),
                }
            };
        vec![
            reading(
                "S1",
                1,
                false,
                &[],
                &[("humid", Value::Int(60)), ("temp", Value::Double(22.4))],
            ),
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
    fn a_batch_returns_its_readings_directly_by_offset_and_encoded() {
        let batch: ReadingBatch = readings().into_iter().collect();
        assert_eq!(batch.to_readings(), readings());
        for (offset, reading) in batch.iter() {
            assert_eq!(
                batch.at(offset).unwrap().to_reading(&batch),
                reading.to_reading(&batch)
            );
        }
        let mut bytes = vec![];
        batch.encode(&mut bytes);
        assert_eq!(bytes.len(), batch.encoded_bytes());
        let back = ReadingBatch::decode(&bytes).unwrap();
        assert_eq!(back.to_readings(), readings());
        let of_receipt = ReceiptTimes(Some((-1, -1)));
        assert_eq!(
            (batch.receipt_times(), back.receipt_times()),
            (of_receipt, of_receipt)
        );
        for cut in 0..bytes.len() {
            assert!(
                ReadingBatch::decode(&bytes[..cut]).is_none(),
                "cut at {cut}"
            );
        }
    }

    #[test]
    fn receipt_times_overlap_if_one_time_may_be_in_both() {
        let of = |times: &[i64]| {
            let mut all = ReceiptTimes::default();
            times.iter().for_each(|t| all.add(*t));
            all
        };
        let early = of(&[3, 1]);
        let late = of(&[4, 9]);
        let both = of(&[9, 3]);
        assert!(!early.overlap(&late) && early.overlap(&both) && both.overlap(&late));
        assert!(of(&[]).is_empty() && !of(&[]).overlap(&both) && !both.overlap(&of(&[])));
    }

    #[test]
    fn names_are_interned_once_however_many_there_are() {
        let mut builder = BatchBuilder::new(VALUES_MAX);
        // Twice, because a finished builder is reused.
        for _ in 0..2 {
            for i in (0..NAMES_MAX).chain((0..NAMES_MAX).rev()) {
                builder
                    .value(&format!("name {i}"), ValueRef::Int(i as i64))
                    .unwrap();
                builder.commit("s", 0, false, &[]).unwrap();
            }
            assert_eq!(builder.names_len(), NAMES_MAX);
            assert_eq!(
                builder.value("one more", ValueRef::Int(0)),
                Err(BuildError::TooManyNames)
            );
            let batch = builder.finish();
            assert_eq!(batch.len(), 2 * NAMES_MAX);
            for (_, reading) in batch.iter() {
                let (name, value) = reading.values().next().unwrap();
                assert_eq!(
                    value,
                    ValueRef::Int(batch.name(name)["name ".len()..].parse().unwrap())
                );
            }
        }
    }

    #[test]
    fn an_aborted_reading_leaves_nothing() {
        let mut builder = BatchBuilder::new(2);
        builder.value("a", ValueRef::Int(1)).unwrap();
        assert_eq!(
            builder.value("a", ValueRef::Int(2)),
            Err(BuildError::DuplicateField)
        );
        builder.value("b", ValueRef::Int(1)).unwrap();
        assert_eq!(
            builder.value("c", ValueRef::Int(2)),
            Err(BuildError::TooManyFields)
        );
        builder.abort();
        builder.value("b", ValueRef::Int(3)).unwrap();
        builder.commit("s", 0, false, &[]).unwrap();
        let batch = builder.finish();
        assert_eq!(batch.len(), 1);
        assert_eq!(batch.to_readings()[0].values.len(), 1);
        assert!(builder.finish().is_empty());
    }
}
