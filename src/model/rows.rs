//! Readings of one bucket in compact form, waiting to be written: the shapes of the readings once, nearly always one, then
//! one run of bytes.
//!
//! A row: time (i64 ms), flags (u8), how many values are numbers (u8), shape (u32), length of the values (u32), then the
//! values in compact form ([`super::value`]), as they stand in a batch. 36 bytes for two numbers; one allocation for a
//! bucket, or for every 4 KiB of a large one.

mod front;
mod pieces;

use std::collections::HashMap;
use std::sync::Arc;

use super::reading::{Reading, ReadingKey};
use super::shape::Shape;
use super::value::{Cursor, ValueRef};
pub use front::Room;
use pieces::Pieces;

/// What is known of a row beside its values; survives being moved from one [`Rows`] to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RowFlags(u8);

impl RowFlags {
    /// The sender gave no time: see [`Reading::receipt_time`].
    pub const RECEIPT_TIME: RowFlags = RowFlags(1);
    /// Read again from the journal after a start: may have been stored before.
    pub const REPLAYED: RowFlags = RowFlags(2);
    /// Was in a statement that the store refused as a conflict: may have been stored by somebody else.
    pub const REFUSED: RowFlags = RowFlags(4);
    /// Was in a statement whose answer never came: may have been stored by it.
    pub const LOST: RowFlags = RowFlags(8);

    /// Both.
    pub fn with(self, other: RowFlags) -> RowFlags {
        RowFlags(self.0 | other.0)
    }

    /// Whether any of `other` is set.
    pub fn any(self, other: RowFlags) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether the row may be in the store already, whatever its time says.
    pub fn suspect(self) -> bool {
        self.any(RowFlags::REPLAYED.with(RowFlags::REFUSED).with(RowFlags::LOST))
    }
}

/// The rows and the names of their fields.
#[derive(Debug, Clone, Default)]
pub struct Rows {
    shapes: RowShapes,
    data: Pieces,
    count: u32,
    stored_bytes: u64,
    first_ts_ms: i64,
    last_ts_ms: i64,
}

/// The shapes of rows.
#[derive(Debug, Clone, Default)]
enum RowShapes {
    #[default]
    None,
    /// All rows have this one: the fields of the rows are its names.
    One(Arc<Shape>),
    Many(Box<Many>),
}

/// Several shapes.
#[derive(Debug, Clone)]
struct Many {
    /// Each with the place of its names in `fields`.
    shapes: Vec<(Arc<Shape>, Box<[u32]>)>,
    fields: Vec<Arc<str>>,
    /// Shapes by address. The same names may stand in two shapes.
    index: HashMap<usize, u32>,
    last: u32,
}

/// One row.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// Milliseconds since 1970.
    pub ts_ms: i64,
    /// What is known of it.
    pub flags: RowFlags,
    numbers: u8,
    shape: &'a Arc<Shape>,
    /// Where its fields are in those of the rows; `None`: in the same order.
    fields: Option<&'a [u32]>,
    payload: &'a [u8],
}

impl<'a> Row<'a> {
    /// Field (index into [`Rows::fields`]) and value, in the order they came.
    pub fn values(&self) -> impl Iterator<Item = (u32, ValueRef<'a>)> + use<'a> {
        let mut cursor = Cursor { rest: self.payload };
        let fields = self.fields;
        let field = move |i: usize| fields.map_or(i as u32, |f| f[i]);
        (0..self.shape.names().len()).map_while(move |i| Some((field(i), cursor.value()?)))
    }

    /// Field name and value, in the order they came.
    pub fn named(&self) -> impl Iterator<Item = (&'a str, ValueRef<'a>)> + use<'a> {
        self.shape.values(self.payload)
    }

    /// The identity of this reading within its sensor.
    pub fn key(&self) -> ReadingKey {
        ReadingKey::new(self.ts_ms, self.named())
    }

    /// Bytes that this row takes as a BSON document.
    pub fn stored_bytes(&self) -> u64 {
        stored_bytes(self.shape, self.numbers, self.payload)
    }
}

/// What a row takes as a BSON document beside its values: length, `ts` (type, "ts\0", 8 bytes), terminator.
const ROW_BYTES: u64 = 4 + (1 + 3 + 8) + 1;

/// A value takes as many bytes in compact form as in BSON, a number one more: its kind stands in the element's type there.
/// (A string's kind makes up for its terminator, and a boolean is its kind.)
fn stored_bytes(shape: &Shape, numbers: u8, payload: &[u8]) -> u64 {
    ROW_BYTES + u64::from(shape.element_bytes()) + payload.len() as u64 - u64::from(numbers)
}

/// Bytes of a row before its values.
const HEAD_BYTES: usize = 8 + 1 + 1 + 4 + 4;
/// Where a row's flags are.
const FLAGS_AT: usize = 8;
/// Where the length of its values is.
const PAYLOAD_BYTES_AT: usize = 14;

impl RowShapes {
    fn fields(&self) -> &[Arc<str>] {
        match self {
            RowShapes::None => &[],
            RowShapes::One(shape) => shape.names(),
            RowShapes::Many(many) => &many.fields,
        }
    }

    fn get(&self, index: u32) -> Option<(&Arc<Shape>, Option<&[u32]>)> {
        match self {
            RowShapes::One(shape) if index == 0 => Some((shape, None)),
            RowShapes::Many(many) => many.shapes.get(index as usize).map(|(shape, fields)| (shape, Some(&**fields))),
            _ => None,
        }
    }

    /// The index of a shape, added where it is new.
    fn index(&mut self, shape: &Arc<Shape>) -> u32 {
        match self {
            RowShapes::None => {
                *self = RowShapes::One(shape.clone());
                0
            }
            RowShapes::One(one) if Arc::ptr_eq(one, shape) => 0,
            RowShapes::One(one) => {
                let mut many = Many { shapes: vec![], fields: vec![], index: HashMap::new(), last: 0 };
                many.index(one);
                let index = many.index(shape);
                *self = RowShapes::Many(Box::new(many));
                index
            }
            RowShapes::Many(many) => many.index(shape),
        }
    }

    /// A shape with these names, an earlier one where there is one.
    fn named(&self, names: &[&str]) -> Arc<Shape> {
        let is = |shape: &&Arc<Shape>| shape.is(names.iter().copied());
        let known = match self {
            RowShapes::None => None,
            RowShapes::One(one) => Some(one).filter(is),
            RowShapes::Many(many) => {
                many.shapes.get(many.last as usize).into_iter().chain(&many.shapes).map(|(shape, _)| shape).find(is)
            }
        };
        known.cloned().unwrap_or_else(|| Arc::new(Shape::new(names.iter().map(|n| Arc::from(*n)))))
    }

    fn memory_bytes(&self) -> usize {
        match self {
            RowShapes::None | RowShapes::One(_) => 0,
            RowShapes::Many(many) => {
                many.fields.capacity() * size_of::<Arc<str>>()
                    + many.shapes.iter().map(|(_, fields)| 64 + fields.len() * 4).sum::<usize>()
            }
        }
    }
}

impl Many {
    fn index(&mut self, shape: &Arc<Shape>) -> u32 {
        if self.shapes.get(self.last as usize).is_some_and(|(last, _)| Arc::ptr_eq(last, shape)) {
            return self.last;
        }
        let (shapes, fields) = (&mut self.shapes, &mut self.fields);
        self.last = *self.index.entry(Arc::as_ptr(shape) as usize).or_insert_with(|| {
            let mut place = |name: &Arc<str>| match fields.iter().position(|f| f == name) {
                Some(place) => place as u32,
                None => {
                    fields.push(name.clone());
                    fields.len() as u32 - 1
                }
            };
            let places = shape.names().iter().map(&mut place).collect();
            shapes.push((shape.clone(), places));
            shapes.len() as u32 - 1
        });
        self.last
    }
}

impl Rows {
    /// The names, in the order in which they were first seen.
    pub fn fields(&self) -> &[Arc<str>] {
        self.shapes.fields()
    }

    /// How many rows.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes held in memory by the rows.
    pub fn memory_bytes(&self) -> usize {
        self.data.memory_bytes() + self.shapes.memory_bytes()
    }

    /// Bytes of the rows as BSON documents (without the array's keys).
    pub fn stored_bytes(&self) -> u64 {
        self.stored_bytes
    }

    /// The earliest time, in milliseconds since 1970; of the rows that are left after [`Rows::take_front`] a lower bound.
    /// Meaningless when empty.
    pub fn first_ts_ms(&self) -> i64 {
        self.first_ts_ms
    }

    /// The latest time, in milliseconds since 1970; of the rows that are left after [`Rows::take_front`] an upper bound.
    /// Meaningless when empty.
    pub fn last_ts_ms(&self) -> i64 {
        self.last_ts_ms
    }

    /// Adds a row: a reading's values as they stand in its batch, under the names of `shape`.
    pub fn push(&mut self, ts_ms: i64, flags: RowFlags, shape: &Arc<Shape>, numbers: u8, payload: &[u8]) {
        let index = self.shapes.index(shape);
        let mut head = [0; HEAD_BYTES];
        head[..8].copy_from_slice(&ts_ms.to_le_bytes());
        head[FLAGS_AT] = flags.0;
        head[FLAGS_AT + 1] = numbers;
        head[10..14].copy_from_slice(&index.to_le_bytes());
        head[PAYLOAD_BYTES_AT..].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        let data = self.data.room(HEAD_BYTES + payload.len());
        data.extend_from_slice(&head);
        data.extend_from_slice(payload);
        self.note(ts_ms, stored_bytes(shape, numbers, payload));
    }

    /// Copies a row of other rows to the end of these.
    pub fn push_row(&mut self, row: &Row<'_>) {
        self.push(row.ts_ms, row.flags, row.shape, row.numbers, row.payload);
    }

    /// Adds a row of values with their names (what is read back from the store, tools and tests).
    pub fn push_named(&mut self, ts_ms: i64, flags: RowFlags, values: &[(&str, ValueRef<'_>)]) {
        let names: Vec<&str> = values.iter().map(|(name, _)| *name).collect();
        let shape = self.shapes.named(&names);
        let (mut payload, mut numbers) = (vec![], 0);
        for (_, value) in values {
            value.encode(&mut payload);
            numbers += u8::from(value.is_number());
        }
        self.push(ts_ms, flags, &shape, numbers, &payload);
    }

    /// Adds a reading (tests and tools).
    pub fn push_reading(&mut self, reading: &Reading) {
        let flags = if reading.receipt_time { RowFlags::RECEIPT_TIME } else { RowFlags::default() };
        let values: Vec<_> = reading.values.iter().map(|(name, value)| (name.as_str(), value.as_ref())).collect();
        self.push_named(reading.ts_ms, flags, &values);
    }

    /// The rows in the order they were added.
    pub fn iter(&self) -> impl Iterator<Item = Row<'_>> {
        self.data.iter().flat_map(move |piece| {
            let mut rest = piece;
            std::iter::from_fn(move || self.next_row(&mut rest))
        })
    }

    /// Takes the first rows off: at most `rows_max`, and while the BSON array they make stays within `bytes_max` (the
    /// first row always goes). Returns them; the rest stays. Costs by what is taken, whatever is left: a bucket far
    /// behind is written page by page.
    pub fn take_front(&mut self, rows_max: usize, bytes_max: u64) -> Rows {
        let mut front = Rows { shapes: self.shapes.clone(), ..Rows::default() };
        let (mut array_bytes, mut end) = (0, None);
        'pieces: for (i, piece) in self.data.iter().enumerate() {
            let mut rest = piece;
            loop {
                let at = piece.len() - rest.len();
                let Some(row) = self.next_row(&mut rest) else { break };
                let bytes = row.stored_bytes();
                array_bytes += bytes + ARRAY_KEY_BYTES_MAX;
                if front.len() >= rows_max || (!front.is_empty() && array_bytes > bytes_max) {
                    end = Some((i, at));
                    break 'pieces;
                }
                front.note(row.ts_ms, bytes);
            }
        }
        let Some((whole, bytes)) = end else {
            front.data = std::mem::take(self).data;
            return front;
        };
        front.data = self.data.take_front(whole, bytes);
        self.count -= front.count;
        self.stored_bytes -= front.stored_bytes;
        front
    }

    /// Keeps the rows for which `keep` says so; returns how many went.
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

    /// Puts `later` behind these rows.
    pub fn append(&mut self, later: &Rows) {
        for row in later.iter() {
            self.push_row(&row);
        }
    }

    /// Marks every row with `flags`, beside what it has.
    pub fn mark(&mut self, flags: RowFlags) {
        for piece in self.data.iter_mut() {
            let mut at = 0;
            while let Some(&length) = piece.get(at + PAYLOAD_BYTES_AT..).and_then(<[u8]>::first_chunk) {
                piece[at + FLAGS_AT] |= flags.0;
                at += HEAD_BYTES + u32::from_le_bytes(length) as usize;
            }
        }
    }

    /// A row as an owned reading of `sensor_id` (tests, tools and dead letters).
    pub fn to_readings(&self, sensor_id: &str) -> Vec<Reading> {
        let reading = |row: Row<'_>| Reading {
            sensor_id: sensor_id.to_owned(),
            ts_ms: row.ts_ms,
            receipt_time: row.flags.any(RowFlags::RECEIPT_TIME),
            tags: Default::default(),
            values: row.named().map(|(n, v)| (n.to_owned(), v.to_value())).collect(),
        };
        self.iter().map(reading).collect()
    }

    /// Counts a row that is added.
    fn note(&mut self, ts_ms: i64, bytes: u64) {
        self.stored_bytes += bytes;
        self.first_ts_ms = if self.count == 0 { ts_ms } else { self.first_ts_ms.min(ts_ms) };
        self.last_ts_ms = if self.count == 0 { ts_ms } else { self.last_ts_ms.max(ts_ms) };
        self.count += 1;
    }

    /// The row at the beginning of `rest`, which is shortened by it.
    fn next_row<'a>(&'a self, rest: &mut &'a [u8]) -> Option<Row<'a>> {
        let mut cursor = Cursor { rest: Some(*rest).filter(|rest| !rest.is_empty())? };
        let (ts_ms, flags, numbers) = (cursor.i64()?, cursor.u8()?, cursor.u8()?);
        let (shape, payload) = (cursor.u32()?, cursor.u32()? as usize);
        let (shape, fields) = self.shapes.get(shape)?;
        let payload = cursor.take(payload)?;
        *rest = cursor.rest;
        Some(Row { ts_ms, flags: RowFlags(flags), numbers, shape, fields, payload })
    }
}

/// What an element of a BSON array costs beside its document: type byte, index in decimal (up to 5 digits), NUL.
pub const ARRAY_KEY_BYTES_MAX: u64 = 1 + 5 + 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Value;

    fn reading(ts_ms: i64, values: &[(&str, Value)]) -> Reading {
        let values = values.iter().map(|(n, v)| (n.to_string(), v.clone())).collect();
        Reading { sensor_id: "s".into(), ts_ms, receipt_time: false, tags: Default::default(), values }
    }

    #[test]
    fn rows_come_back_as_they_went_in() {
        let a = reading(5, &[("t", Value::Double(1.5)), ("on", Value::Bool(true))]);
        let b = reading(-3, &[("n", Value::Int(i64::MIN)), ("s", Value::Str("ü".into())), ("t", Value::Double(-0.0))]);
        let mut rows = Rows::default();
        rows.push_reading(&a);
        rows.push_reading(&b);
        rows.push_reading(&a);
        let keys: Vec<_> = rows.iter().map(|r| r.key()).collect();
        assert_eq!(keys, [a.key(), b.key(), a.key()]);
        assert_eq!((rows.first_ts_ms(), rows.last_ts_ms(), rows.len()), (-3, 5, 3));
        let fields: Vec<&str> = rows.fields().iter().map(|f| &**f).collect();
        assert_eq!(fields, ["on", "t", "n", "s"], "each once, as they were first seen");
        for row in rows.iter() {
            assert!(row.named().eq(row.values().map(|(field, value)| (fields[field as usize], value))));
        }
        let before = rows.clone();
        rows.mark(RowFlags::LOST);
        assert!(rows.iter().all(|r| r.flags.any(RowFlags::LOST)) && !before.iter().any(|r| r.flags.suspect()));
        assert_eq!(rows.retain(|r| r.ts_ms == 5), 1);
        assert_eq!(rows.iter().map(|r| r.key()).collect::<Vec<_>>(), [a.key(), a.key()]);
    }

    #[test]
    fn takes_from_the_front_by_count_and_by_bytes() {
        let mut rows = Rows::default();
        (0..10).for_each(|ts| rows.push_reading(&reading(ts, &[("t", Value::Int(ts))])));
        let row_bytes = rows.stored_bytes() / 10 + ARRAY_KEY_BYTES_MAX;
        let front = rows.take_front(3, u64::MAX);
        assert_eq!((front.len(), front.last_ts_ms(), rows.len()), (3, 2, 7));
        assert_eq!(rows.iter().next().unwrap().ts_ms, 3);
        let front = rows.take_front(100, 2 * row_bytes);
        assert_eq!((front.len(), rows.len()), (2, 5));
        let front = rows.take_front(100, 1);
        assert_eq!((front.len(), rows.len()), (1, 4), "a single row always goes");
        assert_eq!(rows.stored_bytes(), 4 * (row_bytes - ARRAY_KEY_BYTES_MAX));
        rows.push_reading(&reading(3, &[("u", Value::Int(1))]));
        let last = rows.take_front(100, u64::MAX);
        assert_eq!((last.len(), last.first_ts_ms(), last.last_ts_ms()), (5, 3, 9), "exact again once they are taken");
        assert_eq!(last.iter().map(|r| r.ts_ms).collect::<Vec<_>>(), [6, 7, 8, 9, 3]);
        assert!(rows.is_empty() && rows.iter().next().is_none());
    }
}
