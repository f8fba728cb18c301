//! The readings of a day, bucket by bucket, to parts.
//!
//! A part ends where the next reading would exceed [`READINGS_MAX`] or [`BYTES_MAX`]. So the parts
//! depend on the readings alone, and memory is that of one part, of at most 16 bytes for each value.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use model::rows::Row;
use model::{Rows, ValueRef};

use super::numbers::{encode_doubles, encode_ints};
use super::order::sorted;
use super::part::{BYTES_MAX, Bits, ENTRY_BYTES, Entry, EntryKind, Part, READINGS_MAX};

/// Integers up to here are exact as doubles.
pub(crate) const EXACT_MAX: u64 = 1 << 53;

/// Encodes the readings of one sensor and day.
#[derive(Debug, Default)]
pub struct DayEncoder {
    open: OpenPart,
}

impl DayEncoder {
    /// Adds readings in any order, none of them earlier than those of the call before (a bucket);
    /// returns the parts that are full.
    pub fn add(&mut self, rows: &Rows) -> Vec<Part> {
        let mut full = Vec::new();
        // The columns of the fields of `rows`, in the open part.
        let mut places = vec![None; rows.fields().len()];
        for row in sorted(rows) {
            if !self.open.has_room(&row) {
                full.extend(std::mem::take(&mut self.open).finish());
                places.fill(None);
            }
            self.open.push(&row, rows.fields(), &mut places);
        }
        full
    }

    /// The last part; `None` if there were no readings since the last full one.
    pub fn finish(self) -> Option<Part> {
        self.open.finish()
    }
}

#[derive(Debug, Default)]
struct OpenPart {
    ts: Vec<i64>,
    columns: Vec<OpenColumn>,
    by_name: HashMap<Arc<str>, usize>,
    /// Of the readings, as pages keep them.
    stored_bytes: usize,
    /// How many entries the columns have.
    entries: usize,
}

impl OpenPart {
    fn has_room(&self, row: &Row<'_>) -> bool {
        let count = self.ts.len() + 1;
        // Each field of the row may be a new one, or of a new kind.
        let (_, fields) = row.named().size_hint();
        let entries = self.entries + fields.unwrap_or_default();
        let bytes = self.stored_bytes
            + row.stored_bytes() as usize
            + entries * (ENTRY_BYTES + count.div_ceil(8));
        self.ts.is_empty() || count <= READINGS_MAX && bytes <= BYTES_MAX
    }

    fn push(&mut self, row: &Row<'_>, fields: &[Arc<str>], places: &mut [Option<usize>]) {
        let at = self.ts.len();
        for (field, value) in row.values() {
            let place = *places[field as usize].get_or_insert_with(|| {
                let new = self.columns.len();
                let name = &fields[field as usize];
                let place = *self.by_name.entry(name.clone()).or_insert(new);
                if place == new {
                    self.columns.push(OpenColumn::default());
                }
                place
            });
            let is_new_entry = self.columns[place].push(at, value);
            self.entries += usize::from(is_new_entry);
        }
        self.ts.push(row.ts_ms);
        self.stored_bytes += row.stored_bytes() as usize;
    }

    fn finish(mut self) -> Option<Part> {
        let count = self.ts.len();
        let mut entries = |place: usize| std::mem::take(&mut self.columns[place]).finish(count);
        let columns = self
            .by_name
            .drain()
            .map(|(name, place)| (name, entries(place)));
        let columns: BTreeMap<_, _> = columns.collect();
        Some(Part {
            count: count as u32,
            first_ts_ms: *self.ts.first()?,
            last_ts_ms: *self.ts.last()?,
            ts: encode_ints(&self.ts),
            columns,
        })
    }
}

/// The values of one field.
#[derive(Debug, Default)]
struct OpenColumn {
    doubles: OpenEntry<f64>,
    ints: OpenEntry<i64>,
    bools: OpenEntry<i64>,
    texts: OpenEntry<i64>,
    dictionary: Vec<String>,
    by_text: HashMap<Box<str>, usize>,
}

/// The values of one kind, and which readings have them.
#[derive(Debug)]
struct OpenEntry<T> {
    values: Vec<T>,
    present: Bits,
}

impl<T> Default for OpenEntry<T> {
    fn default() -> OpenEntry<T> {
        OpenEntry {
            values: Vec::new(),
            present: Bits::default(),
        }
    }
}

impl<T> OpenEntry<T> {
    /// Adds the value of reading `at`; returns whether it is the first.
    fn push(&mut self, at: usize, value: T) -> bool {
        self.present.set(at);
        self.values.push(value);
        self.values.len() == 1
    }

    /// The number of values, and the entry, if there are any.
    fn finish(
        self,
        count: usize,
        kind: EntryKind,
        encode: fn(&[T]) -> Vec<u8>,
    ) -> Option<(usize, Entry)> {
        let ones = self.values.len();
        let entry = || Entry {
            kind,
            data: encode(&self.values),
            present: self.present.present(ones, count),
        };
        (ones > 0).then(|| (ones, entry()))
    }
}

impl OpenColumn {
    fn push(&mut self, at: usize, value: ValueRef<'_>) -> bool {
        match value {
            ValueRef::Double(v) => self.doubles.push(at, v),
            ValueRef::Int(v) => self.ints.push(at, v),
            ValueRef::Bool(v) => self.bools.push(at, i64::from(v)),
            ValueRef::Str(v) => {
                let index = self.by_text.get(v).copied().unwrap_or_else(|| {
                    let index = self.dictionary.len();
                    self.by_text.insert(v.into(), index);
                    self.dictionary.push(v.to_owned());
                    index
                });
                self.texts.push(at, index as i64)
            }
        }
    }

    fn finish(self, count: usize) -> Vec<Entry> {
        let (doubles, flags, ints) = join_numbers(self.doubles, self.ints, count);
        let mut entries: Vec<_> = [
            doubles.finish(count, EntryKind::Double(flags), encode_doubles),
            ints.finish(count, EntryKind::Int, encode_ints),
            self.bools.finish(count, EntryKind::Bool, encode_ints),
            self.texts
                .finish(count, EntryKind::Text(self.dictionary), encode_ints),
        ]
        .into_iter()
        .flatten()
        .collect();
        entries.sort_by_key(|(ones, _)| std::cmp::Reverse(*ones));
        entries.into_iter().map(|(_, entry)| entry).collect()
    }
}

/// Puts integers among the doubles if there are both, and the integers are exact as doubles. Also
/// returns which of the doubles are integers, if there are some.
fn join_numbers(
    doubles: OpenEntry<f64>,
    ints: OpenEntry<i64>,
    count: usize,
) -> (OpenEntry<f64>, Option<Vec<u8>>, OpenEntry<i64>) {
    let are_exact = ints.values.iter().all(|n| n.unsigned_abs() <= EXACT_MAX);
    if doubles.values.is_empty() || ints.values.is_empty() || !are_exact {
        return (doubles, None, ints);
    }
    let mut joined = OpenEntry::default();
    let mut flags = Bits::default();
    let mut next_double = doubles.values.iter();
    let mut next_int = ints.values.iter();
    for at in 0..count {
        let value = match (doubles.present.get(at), ints.present.get(at)) {
            (true, _) => next_double.next().copied(),
            (false, true) => {
                flags.set(joined.values.len());
                next_int.next().map(|n| *n as f64)
            }
            (false, false) => None,
        };
        if let Some(value) = value {
            joined.push(at, value);
        }
    }
    let values = joined.values.len();
    (
        joined,
        flags.present(ints.values.len(), values),
        OpenEntry::default(),
    )
}
