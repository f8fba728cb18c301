//! Pending readings of one bucket in compact form: each field schema once (nearly always there is
//! only one), then the rows in a byte buffer.
//!
//! A row: time (i64 ms), flags (u8), number of numeric values (u8), length of the values (u8), then
//! the values in compact form ([`super::value`]), copied from the batch. A row with two numbers has
//! 29 bytes. A row with another schema than the first, or with more than 255 bytes of values, is
//! [`WIDE`]: instead of the length it has the schema and the length (u32 each), and so is a row that
//! [`REPEATS`] others, which has their number (u32) too. There is one allocation per bucket, or one
//! per 4 KiB of a large one.
//!
//! The first rows of a bucket have their numbers in fewer bytes ([`packed`]), and are [`PACKED`]:
//! most sensors send so rarely that they have no other rows, and the memory for these decides how
//! long readings of a large fleet can be held.

mod chunked_buffer;
mod packed;
mod schemas;
mod split;
#[cfg(test)]
mod tests;

pub use split::StatementLimits;

use std::sync::Arc;

use super::field_schema::FieldSchema;
use super::reading::{Reading, ReadingKey};
use super::value::{Cursor, ValueRef};
use chunked_buffer::ChunkedBuffer;
use schemas::RowSchemas;

/// Properties of a row. Kept when the row is moved to another [`Rows`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RowFlags(u8);

impl RowFlags {
    /// The sender gave no time: see [`Reading::receipt_time`].
    pub const RECEIPT_TIME: RowFlags = RowFlags(1);
    /// Replayed from the journal: may have been stored before.
    pub const REPLAYED: RowFlags = RowFlags(2);
    /// Was in a statement that failed with a conflict: another process may have stored it.
    pub const REFUSED: RowFlags = RowFlags(4);
    /// Was in a statement without an answer: that statement may have stored it.
    pub const LOST: RowFlags = RowFlags(8);

    /// The union of both.
    pub fn with(self, other: RowFlags) -> RowFlags {
        RowFlags(self.0 | other.0)
    }

    /// Whether any of `other` is set.
    pub fn any(self, other: RowFlags) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether the row may already be stored, regardless of its time.
    pub fn suspect(self) -> bool {
        self.any(
            RowFlags::REPLAYED
                .with(RowFlags::REFUSED)
                .with(RowFlags::LOST),
        )
    }
}

/// Rows and the names of their fields.
#[derive(Debug, Clone, Default)]
pub struct Rows {
    schemas: RowSchemas,
    data: ChunkedBuffer,
    count: u32,
    /// How much earlier than `last_ts_ms` the first time is (ms); [`LONG`] if a u32 is too small.
    span_ms: u32,
    stored_bytes: u64,
    last_ts_ms: i64,
}

/// The rows' first time is searched for: they span 49 days or more. Those of a bucket never do.
const LONG: u32 = u32::MAX;

/// A row of [`Rows`].
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// Milliseconds since 1970.
    pub ts_ms: i64,
    /// How it was received, and whether it may already be stored.
    pub flags: RowFlags,
    /// See [`ReadingRef::repeat`](super::ReadingRef::repeat).
    pub repeat: u32,
    numbers: u8,
    is_packed: bool,
    schema: &'a Arc<FieldSchema>,
    /// Indexes of its fields in [`Rows::fields`]; `None` if the order is the same.
    fields: Option<&'a [u32]>,
    payload: &'a [u8],
}

impl<'a> Row<'a> {
    /// Fields (indexes into [`Rows::fields`]) and values, in received order.
    #[inline]
    pub fn values(&self) -> impl Iterator<Item = (u32, ValueRef<'a>)> + use<'a> {
        let fields = self.fields;
        let field = move |i: usize| fields.map_or(i as u32, |f| f[i]);
        (0..self.schema.names().len())
            .map(field)
            .zip(self.unnamed())
    }

    /// Field names and values, in received order.
    #[inline]
    pub fn named(&self) -> impl Iterator<Item = (&'a str, ValueRef<'a>)> + use<'a> {
        let names = self.schema.names().iter().map(|name| &**name);
        names.zip(self.unnamed())
    }

    fn unnamed(&self) -> impl Iterator<Item = ValueRef<'a>> + use<'a> {
        let mut cursor = Cursor { rest: self.payload };
        std::iter::from_fn(move || packed::value(&mut cursor))
    }

    /// Time and values as a key: equal for readings that are equal, also if one
    /// [repeats](Row::repeat) the other.
    pub fn key(&self) -> ReadingKey {
        ReadingKey::new(self.ts_ms, self.named())
    }

    /// The identity of the reading within its sensor.
    pub fn identity(&self) -> ReadingKey {
        self.key().repeated(self.repeat)
    }

    /// Size of this row as a BSON document.
    #[inline]
    pub fn stored_bytes(&self) -> u64 {
        let payload_bytes = if self.is_packed {
            packed::usual_bytes(self.payload)
        } else {
            self.payload.len()
        };
        stored_bytes(self.schema, self.numbers, payload_bytes)
    }
}

/// Size of a row as a BSON document without its values: length, `ts` (type, "ts\0", 8 bytes),
/// terminator.
const ROW_BYTES: u64 = 4 + (1 + 3 + 8) + 1;

/// A value has the same size in compact form as in BSON, except that a number has one byte more:
/// its kind byte, which BSON has in the element type. (A string's kind byte offsets its terminator,
/// and a boolean is only its kind byte.)
fn stored_bytes(schema: &FieldSchema, numbers: u8, payload_bytes: usize) -> u64 {
    ROW_BYTES + u64::from(schema.element_bytes()) + payload_bytes as u64 - u64::from(numbers)
}

/// Bytes of a row before its values, and those of a wide one.
const HEAD_BYTES: usize = 8 + 1 + 1 + 1;
const HEAD_BYTES_WIDE: usize = 8 + 1 + 1 + 4 + 4;
/// Offset of the flags in a row.
const FLAGS_AT: usize = 8;
/// The bit of the flags that a wide row has; none of [`RowFlags`].
const WIDE: u8 = 1 << 7;
/// The bit of the flags of a row with packed numbers; none of [`RowFlags`].
const PACKED: u8 = 1 << 6;
/// The bit of the flags of a wide row that has [`Row::repeat`]; none of [`RowFlags`].
const REPEATS: u8 = 1 << 5;
/// The number of first rows that are packed. A sensor that sends rarely has fewer when it is written;
/// in a bucket with many, packing would cost more time than its memory is worth.
const PACKED_ROWS: u32 = 16;

impl Rows {
    /// The field names, in the order of their first use.
    pub fn fields(&self) -> &[Arc<str>] {
        self.schemas.fields()
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Memory use of the rows, in bytes.
    #[inline]
    pub fn memory_bytes(&self) -> usize {
        self.data.memory_bytes() + self.schemas.memory_bytes()
    }

    /// The last byte of the last row, 0 if empty: to read from the memory that the next row is
    /// appended to.
    pub fn last_byte(&self) -> u8 {
        self.data.last_byte()
    }

    /// Size of the rows as BSON documents, without the keys of the array.
    pub fn stored_bytes(&self) -> u64 {
        self.stored_bytes
    }

    /// The earliest time, in milliseconds since 1970; after [`Rows::take_front`] only a lower
    /// bound. Undefined if empty.
    #[inline]
    pub fn first_ts_ms(&self) -> i64 {
        match self.span_ms {
            LONG => self.iter().map(|row| row.ts_ms).min().unwrap_or_default(),
            span_ms => self.last_ts_ms - i64::from(span_ms),
        }
    }

    /// The latest time, in milliseconds since 1970; after [`Rows::take_front`] only an upper bound.
    /// Undefined if empty.
    pub fn last_ts_ms(&self) -> i64 {
        self.last_ts_ms
    }

    /// Adds a row: the encoded values of a reading from its batch, with the names of `schema`.
    pub fn push(
        &mut self,
        ts_ms: i64,
        flags: RowFlags,
        schema: &Arc<FieldSchema>,
        numbers: u8,
        payload: &[u8],
    ) {
        self.push_repeat(ts_ms, flags, 0, schema, numbers, payload);
    }

    /// Like [`Rows::push`], for a reading that repeats others ([`Row::repeat`]).
    pub fn push_repeat(
        &mut self,
        ts_ms: i64,
        flags: RowFlags,
        repeat: u32,
        schema: &Arc<FieldSchema>,
        numbers: u8,
        payload: &[u8],
    ) {
        let bytes = stored_bytes(schema, numbers, payload.len());
        let mut short;
        let packed = if self.count < PACKED_ROWS {
            short = packed::BUFFER;
            packed::pack(payload, &mut short)
        } else {
            None
        };
        match packed {
            Some(values) => {
                self.append_row(ts_ms, flags.0 | PACKED, repeat, schema, numbers, values);
            }
            None => self.append_row(ts_ms, flags.0, repeat, schema, numbers, payload),
        }
        self.note(ts_ms, bytes);
    }

    /// Appends a row with the values as they are. `flags`: with [`PACKED`].
    fn append_row(
        &mut self,
        ts_ms: i64,
        flags: u8,
        repeat: u32,
        schema: &Arc<FieldSchema>,
        numbers: u8,
        payload: &[u8],
    ) {
        let index = self.schemas.index(schema);
        let data = match u8::try_from(payload.len()) {
            Ok(bytes) if index == 0 && repeat == 0 => {
                let data = self.data.room(HEAD_BYTES + payload.len());
                data.extend_from_slice(&ts_ms.to_le_bytes());
                data.extend_from_slice(&[flags, numbers, bytes]);
                data
            }
            _ => {
                let (flag, repeat_bytes) = match repeat {
                    0 => (WIDE, 0),
                    _ => (WIDE | REPEATS, size_of::<u32>()),
                };
                let bytes = HEAD_BYTES_WIDE + repeat_bytes + payload.len();
                let data = self.data.room(bytes);
                data.extend_from_slice(&ts_ms.to_le_bytes());
                data.extend_from_slice(&[flags | flag, numbers]);
                data.extend_from_slice(&index.to_le_bytes());
                data.extend_from_slice(&(payload.len() as u32).to_le_bytes());
                data.extend_from_slice(&repeat.to_le_bytes()[..repeat_bytes]);
                data
            }
        };
        data.extend_from_slice(payload);
    }

    /// Appends a copy of a row.
    pub fn push_row(&mut self, row: &Row<'_>) {
        let flags = row.flags.0 | if row.is_packed { PACKED } else { 0 };
        let Row { ts_ms, repeat, .. } = *row;
        self.append_row(ts_ms, flags, repeat, row.schema, row.numbers, row.payload);
        self.note(row.ts_ms, row.stored_bytes());
    }

    /// Adds a row of named values (for rows loaded from the store, tools and tests).
    pub fn push_named(&mut self, ts_ms: i64, flags: RowFlags, values: &[(&str, ValueRef<'_>)]) {
        let names: Vec<&str> = values.iter().map(|(name, _)| *name).collect();
        let schema = self.schemas.named(&names);
        let mut payload = vec![];
        let mut numbers = 0;
        for (_, value) in values {
            value.encode(&mut payload);
            numbers += u8::from(value.is_number());
        }
        self.push(ts_ms, flags, &schema, numbers, &payload);
    }

    /// Adds a reading (tests and tools).
    pub fn push_reading(&mut self, reading: &Reading) {
        let flags = if reading.receipt_time {
            RowFlags::RECEIPT_TIME
        } else {
            RowFlags::default()
        };
        let values: Vec<_> = reading
            .values
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_ref()))
            .collect();
        self.push_named(reading.ts_ms, flags, &values);
    }

    /// The rows in the order of insertion.
    pub fn iter(&self) -> impl Iterator<Item = Row<'_>> {
        rows(&self.schemas, &self.data)
    }

    /// Removes and returns the first rows: at most `rows_max`, and only as many as fit into a BSON
    /// array of `bytes_max`, but at least one. The cost depends only on the removed rows, not on
    /// the remaining ones or the number of schemas, because a bucket with a large backlog is
    /// written page by page.
    pub fn take_front(&mut self, rows_max: usize, bytes_max: u64) -> Rows {
        let mut front = Rows::default();
        let mut array_bytes = 0;
        let mut end = None;
        'chunks: for (i, chunk) in self.data.iter().enumerate() {
            let mut rest = chunk;
            loop {
                let at = chunk.len() - rest.len();
                let Some(row) = next_row(&self.schemas, &mut rest) else {
                    break;
                };
                let bytes = row.stored_bytes();
                array_bytes += bytes + ARRAY_KEY_BYTES_MAX;
                if front.len() >= rows_max || (!front.is_empty() && array_bytes > bytes_max) {
                    end = Some((i, at));
                    break 'chunks;
                }
                front.note(row.ts_ms, bytes);
            }
        }
        let Some((whole, bytes)) = end else {
            let all = std::mem::take(self);
            if all.schemas.rows_taken() > 0 && all.schemas.len() > SCHEMAS_KEPT {
                return Rows::copy(all.iter());
            }
            return Rows {
                schemas: all.schemas,
                data: all.data,
                ..front
            };
        };
        let data = self.data.take_front(whole, bytes);
        self.count -= front.count;
        self.schemas.count_taken(front.count);
        self.stored_bytes -= front.stored_bytes;
        if self.schemas.copy_cost() > front.len() {
            front = Rows::copy(rows(&self.schemas, &data));
        } else {
            (front.schemas, front.data) = (self.schemas.copy(), data);
        }
        self.drop_unused_schemas();
        front
    }

    /// Drops schemas that no remaining row uses. The cost depends on the remaining rows, so it runs
    /// only if more rows were removed since the last time.
    fn drop_unused_schemas(&mut self) {
        if self.schemas.len() > SCHEMAS_KEPT && self.schemas.rows_taken() > self.count {
            *self = Rows::copy(self.iter());
        }
    }

    /// Copies rows, with only their schemas.
    fn copy<'r>(rows: impl Iterator<Item = Row<'r>>) -> Rows {
        let mut copy = Rows::default();
        rows.for_each(|row| copy.push_row(&row));
        copy
    }

    /// Keeps the rows for which `keep` returns true; returns the number of removed rows.
    pub fn retain(&mut self, mut keep: impl FnMut(&Row<'_>) -> bool) -> usize {
        let mut kept = Rows::default();
        for row in self.iter() {
            if keep(&row) {
                kept.push_row(&row);
            }
        }
        let gone = self.len() - kept.len();
        if gone > 0 {
            *self = kept;
        }
        gone
    }

    /// Appends copies of `later`.
    pub fn append(&mut self, later: &Rows) {
        for row in later.iter() {
            self.push_row(&row);
        }
    }

    /// Adds `flags` to every row.
    pub fn mark(&mut self, flags: RowFlags) {
        for chunk in self.data.iter_mut() {
            let mut at = 0;
            while let Some(head) = Head::parse(&mut Cursor { rest: &chunk[at..] }) {
                chunk[at + FLAGS_AT] |= flags.0;
                at += head.bytes() + head.payload_bytes;
            }
        }
    }

    /// The rows as owned readings of `sensor_id` (for tests, tools and dead letters).
    pub fn to_readings(&self, sensor_id: &str) -> Vec<Reading> {
        let reading = |row: Row<'_>| Reading {
            sensor_id: sensor_id.to_owned(),
            ts_ms: row.ts_ms,
            receipt_time: row.flags.any(RowFlags::RECEIPT_TIME),
            tags: Default::default(),
            values: row
                .named()
                .map(|(n, v)| (n.to_owned(), v.to_value()))
                .collect(),
        };
        self.iter().map(reading).collect()
    }

    /// Updates the counts for an added row.
    fn note(&mut self, ts_ms: i64, bytes: u64) {
        self.stored_bytes += bytes;
        let (first_ms, last_ms) = match (self.count, self.span_ms) {
            (0, _) => (ts_ms, ts_ms),
            (_, LONG) => (i64::MIN, self.last_ts_ms.max(ts_ms)),
            _ => (self.first_ts_ms().min(ts_ms), self.last_ts_ms.max(ts_ms)),
        };
        self.last_ts_ms = last_ms;
        self.span_ms = last_ms
            .checked_sub(first_ms)
            .and_then(|span_ms| u32::try_from(span_ms).ok())
            .unwrap_or(LONG);
        self.count += 1;
    }
}

/// Unused schemas are kept up to this number.
const SCHEMAS_KEPT: usize = 16;

fn rows<'a>(schemas: &'a RowSchemas, data: &'a ChunkedBuffer) -> impl Iterator<Item = Row<'a>> {
    let mut chunks = data.iter();
    let mut rest: &[u8] = &[];
    // Each reading passes here several times, and the compiler inlines one loop better than `flat_map`.
    std::iter::from_fn(move || {
        loop {
            if let Some(row) = next_row(schemas, &mut rest) {
                return Some(row);
            }
            rest = chunks.next()?;
        }
    })
}

/// Parses the row at the start of `rest` and advances `rest`.
#[inline]
fn next_row<'a>(schemas: &'a RowSchemas, rest: &mut &'a [u8]) -> Option<Row<'a>> {
    let mut cursor = Cursor { rest };
    let head = Head::parse(&mut cursor)?;
    let (schema, fields) = schemas.get(head.schema)?;
    let payload = cursor.take(head.payload_bytes)?;
    *rest = cursor.rest;
    let ts_ms = head.ts_ms;
    let flags = RowFlags(head.flags & !(WIDE | PACKED | REPEATS));
    let is_packed = head.flags & PACKED != 0;
    let numbers = head.numbers;
    Some(Row {
        ts_ms,
        flags,
        repeat: head.repeat,
        numbers,
        is_packed,
        schema,
        fields,
        payload,
    })
}

/// The part of a row before its values.
struct Head {
    ts_ms: i64,
    /// With [`WIDE`], [`PACKED`] and [`REPEATS`].
    flags: u8,
    numbers: u8,
    schema: u32,
    payload_bytes: usize,
    repeat: u32,
}

impl Head {
    /// `None` at the end of the rows.
    #[inline]
    fn parse(cursor: &mut Cursor<'_>) -> Option<Head> {
        let ts_ms = cursor.i64()?;
        let flags = cursor.u8()?;
        let numbers = cursor.u8()?;
        let (schema, payload_bytes, repeat) = match flags & (WIDE | REPEATS) {
            0 => (0, usize::from(cursor.u8()?), 0),
            WIDE => (cursor.u32()?, cursor.u32()? as usize, 0),
            _ => (cursor.u32()?, cursor.u32()? as usize, cursor.u32()?),
        };
        Some(Head {
            ts_ms,
            flags,
            numbers,
            schema,
            payload_bytes,
            repeat,
        })
    }

    fn bytes(&self) -> usize {
        match self.flags & (WIDE | REPEATS) {
            0 => HEAD_BYTES,
            WIDE => HEAD_BYTES_WIDE,
            _ => HEAD_BYTES_WIDE + size_of::<u32>(),
        }
    }
}

/// Size of a BSON array element without its document: type byte, decimal index (up to 5 digits),
/// NUL.
pub const ARRAY_KEY_BYTES_MAX: u64 = 1 + 5 + 1;
