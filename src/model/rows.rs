//! Readings of one bucket in compact form, waiting to be written: field names once, then one run of bytes.
//!
//! A row: time (i64 ms), flags (u8), number of values (u8), then for each value its field (u16, an index into the
//! names) and the value in compact form ([`super::value`]). About 30 bytes for two numbers, one allocation for a bucket.

use std::sync::Arc;

use super::reading::{Reading, ReadingKey};
use super::value::{Cursor, ValueRef};

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
    fields: Vec<Arc<str>>,
    data: Vec<u8>,
    /// Where the first row begins: those before it were taken.
    head: usize,
    count: u32,
    stored_bytes: u64,
    first_ts_ms: i64,
    last_ts_ms: i64,
}

/// One row.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// Milliseconds since 1970.
    pub ts_ms: i64,
    /// What is known of it.
    pub flags: RowFlags,
    fields: &'a [Arc<str>],
    count: u8,
    values: &'a [u8],
}

impl<'a> Row<'a> {
    /// Field index and value, in the order they came.
    pub fn values(&self) -> impl Iterator<Item = (u16, ValueRef<'a>)> + use<'a> {
        let mut cursor = Cursor { rest: self.values };
        (0..self.count).map_while(move |_| Some((cursor.u16()?, cursor.value()?)))
    }

    /// Field name and value, in the order they came.
    pub fn named(&self) -> impl Iterator<Item = (&'a str, ValueRef<'a>)> + use<'a> {
        let fields = self.fields;
        self.values().map(move |(i, v)| (&*fields[usize::from(i)], v))
    }

    /// The identity of this reading within its sensor.
    pub fn key(&self) -> ReadingKey {
        ReadingKey::new(self.ts_ms, self.named())
    }

    /// Bytes that this row takes as a BSON document.
    pub fn stored_bytes(&self) -> u64 {
        ROW_BYTES + self.values().map(|(i, v)| element_bytes(self.fields[usize::from(i)].len(), v)).sum::<u64>()
    }
}

/// What a row takes as a BSON document beside its values: length, `ts` (type, "ts\0", 8 bytes), terminator.
const ROW_BYTES: u64 = 4 + (1 + 3 + 8) + 1;

/// What a value takes as a BSON element: type, name, NUL, payload.
fn element_bytes(name_len: usize, value: ValueRef<'_>) -> u64 {
    let payload = match value {
        ValueRef::Double(_) | ValueRef::Int(_) => 8,
        ValueRef::Bool(_) => 1,
        ValueRef::Str(s) => 4 + s.len() + 1,
    };
    (1 + name_len + 1 + payload) as u64
}

/// Appends one row; values go in with [`RowWriter::value`], and dropping it ends the row.
pub struct RowWriter<'a> {
    rows: &'a mut Rows,
    start: usize,
    ts_ms: i64,
    bytes: u64,
}

impl RowWriter<'_> {
    /// Adds a value of field `field` (an index that [`Rows::field`] gave).
    pub fn value(&mut self, field: u16, value: ValueRef<'_>) {
        self.rows.data.extend_from_slice(&field.to_le_bytes());
        value.encode(&mut self.rows.data);
        self.rows.data[self.start + 9] += 1;
        self.bytes += element_bytes(self.rows.fields[usize::from(field)].len(), value);
    }
}

impl Drop for RowWriter<'_> {
    fn drop(&mut self) {
        let rows = &mut *self.rows;
        rows.note(self.ts_ms, self.bytes);
    }
}

impl Rows {
    /// The names, in the order in which they were first seen.
    pub fn fields(&self) -> &[Arc<str>] {
        &self.fields
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
        self.data.capacity() + self.fields.capacity() * size_of::<Arc<str>>()
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

    /// The index of `name`, looked for at `hint` first: the next reading of a sensor has nearly always the same fields
    /// in the same order, and interned names are the same pointer.
    pub fn field(&mut self, name: &Arc<str>, hint: usize) -> u16 {
        if self.fields.get(hint).is_some_and(|f| Arc::ptr_eq(f, name)) {
            return hint as u16;
        }
        match self.fields.iter().position(|f| f == name) {
            Some(i) => i as u16,
            None => {
                self.fields.push(name.clone());
                (self.fields.len() - 1) as u16
            }
        }
    }

    /// Begins a row.
    pub fn push(&mut self, ts_ms: i64, flags: RowFlags) -> RowWriter<'_> {
        let start = self.data.len();
        self.data.extend_from_slice(&ts_ms.to_le_bytes());
        self.data.push(flags.0);
        self.data.push(0);
        RowWriter { rows: self, start, ts_ms, bytes: ROW_BYTES }
    }

    /// Copies a row of other rows to the end of these.
    pub fn push_row(&mut self, row: &Row<'_>) {
        self.push_row_as(row, row.flags);
    }

    fn push_row_as(&mut self, row: &Row<'_>, flags: RowFlags) {
        let indexes: Vec<u16> =
            row.values().map(|(i, _)| self.field(&row.fields[usize::from(i)], usize::from(i))).collect();
        let mut writer = self.push(row.ts_ms, flags);
        for (i, (_, value)) in indexes.into_iter().zip(row.values()) {
            writer.value(i, value);
        }
    }

    /// Adds a reading (tests and tools).
    pub fn push_reading(&mut self, reading: &Reading) {
        let indexes: Vec<u16> = reading.values.keys().map(|n| self.field(&Arc::from(n.as_str()), usize::MAX)).collect();
        let flags = if reading.receipt_time { RowFlags::RECEIPT_TIME } else { RowFlags::default() };
        let mut writer = self.push(reading.ts_ms, flags);
        for (i, value) in indexes.into_iter().zip(reading.values.values()) {
            writer.value(i, value.as_ref());
        }
    }

    /// The rows in the order they were added.
    pub fn iter(&self) -> impl Iterator<Item = Row<'_>> {
        let mut at = self.head;
        std::iter::from_fn(move || {
            let (row, next) = self.row_at(at)?;
            at = next;
            Some(row)
        })
    }

    /// Takes the first rows off: at most `rows_max`, and while the BSON array they make stays within `bytes_max` (the
    /// first row always goes). Returns them; the rest stays. Costs by what is taken, whatever is left: a bucket far
    /// behind is written page by page.
    pub fn take_front(&mut self, rows_max: usize, bytes_max: u64) -> Rows {
        let mut front = Rows { fields: self.fields.clone(), ..Rows::default() };
        let (mut at, mut array_bytes) = (self.head, 0);
        while let Some((row, next)) = self.row_at(at) {
            let bytes = row.stored_bytes();
            array_bytes += bytes + ARRAY_KEY_BYTES_MAX;
            if front.len() >= rows_max || (!front.is_empty() && array_bytes > bytes_max) {
                break;
            }
            front.note(row.ts_ms, bytes);
            at = next;
        }
        if at == self.data.len() {
            front.data = std::mem::take(&mut self.data);
            front.head = self.head;
            *self = Rows::default();
            return front;
        }
        front.data = self.data[self.head..at].to_vec();
        self.head = at;
        self.count -= front.count;
        self.stored_bytes -= front.stored_bytes;
        if self.head > self.data.len() / 2 {
            self.data.drain(..self.head);
            self.head = 0;
        }
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
        let mut marked = Rows { fields: self.fields.clone(), ..Rows::default() };
        for row in self.iter() {
            marked.push_row_as(&row, row.flags.with(flags));
        }
        *self = marked;
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

    fn row_at(&self, at: usize) -> Option<(Row<'_>, usize)> {
        let mut cursor = Cursor { rest: self.data.get(at..).filter(|rest| !rest.is_empty())? };
        let (ts_ms, flags, count) = (cursor.i64()?, cursor.u8()?, cursor.u8()?);
        let values = cursor.rest;
        for _ in 0..count {
            cursor.u16()?;
            cursor.value()?;
        }
        let values = &values[..values.len() - cursor.rest.len()];
        let row = Row { ts_ms, flags: RowFlags(flags), fields: &self.fields, count, values };
        Some((row, self.data.len() - cursor.rest.len()))
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
        let keys: Vec<_> = rows.iter().map(|r| r.key()).collect();
        assert_eq!(keys, [a.key(), b.key()]);
        assert_eq!((rows.first_ts_ms(), rows.last_ts_ms(), rows.len()), (-3, 5, 2));
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
