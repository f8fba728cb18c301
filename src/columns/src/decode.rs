//! Parts back to readings: all of them, or those of a range of time and only some fields.
//!
//! Nothing in a part is trusted. What is decoded is in order, belongs to the number of readings that
//! the part declares, and no reading has two values of a field. Anything else is an error that names
//! the place. Memory is 8 bytes for each time and value, at most 24 MB; texts stay in the part's
//! dictionaries.

use std::ops::Range;

use model::{RowFlags, Rows, ValueRef};

use super::encode::EXACT_MAX;
use super::numbers::{decode_doubles, decode_ints};
use super::part::{
    BYTES_MAX, Entry, EntryKind, Part, READINGS_MAX, is_present, is_set, present_before,
};
use super::{DamagedPart, Fault};

/// Most values of the decoded fields of a part. In a page a value takes at least three bytes: its
/// type, the end of its name, a boolean.
const VALUES_MAX: usize = BYTES_MAX / 3;

/// Decoded readings of a part.
#[derive(Debug)]
pub struct Decoded<'p> {
    ts: Vec<i64>,
    /// Those of the readings that were asked for.
    range: Range<usize>,
    /// Ordered by name.
    columns: Vec<(&'p str, Vec<DecodedEntry<'p>>)>,
}

#[derive(Debug)]
struct DecodedEntry<'p> {
    values: Values<'p>,
    present: Option<&'p [u8]>,
}

#[derive(Debug)]
enum Values<'p> {
    Double(Vec<f64>, Option<&'p [u8]>),
    Int(Vec<i64>),
    Bool(Vec<i64>),
    Text(Vec<i64>, &'p [String]),
}

impl Part {
    /// Number of values of all fields.
    pub fn values(&self) -> usize {
        let entries = self.columns.values().flatten();
        let ones = |bits: &Vec<u8>| bits.iter().map(|byte| byte.count_ones() as usize).sum();
        entries
            .map(|entry| entry.present.as_ref().map_or(self.count as usize, ones))
            .sum()
    }

    /// Decodes all readings.
    pub fn decode(&self) -> Result<Decoded<'_>, DamagedPart> {
        let ts = self.decode_ts()?;
        let range = 0..ts.len();
        self.decode_columns(ts, range, |_| true)
    }

    /// Decodes the readings from `from_ms` to before `to_ms` (ms since 1970), and of their fields
    /// those that `wants` names.
    pub fn decode_range(
        &self,
        from_ms: i64,
        to_ms: i64,
        wants: impl Fn(&str) -> bool,
    ) -> Result<Decoded<'_>, DamagedPart> {
        let ts = self.decode_ts()?;
        let start = ts.partition_point(|ts_ms| *ts_ms < from_ms);
        let end = ts.partition_point(|ts_ms| *ts_ms < to_ms).max(start);
        self.decode_columns(ts, start..end, wants)
    }

    fn decode_ts(&self) -> Result<Vec<i64>, DamagedPart> {
        let count = self.count as usize;
        let decode = || {
            if count > READINGS_MAX {
                return Err(Fault::TooMany(count));
            }
            let ts = decode_ints(&self.ts, count, count)?;
            let is_declared =
                ts.first() == Some(&self.first_ts_ms) && ts.last() == Some(&self.last_ts_ms);
            (is_declared && ts.is_sorted())
                .then_some(ts)
                .ok_or(Fault::Times)
        };
        decode().map_err(|fault| DamagedPart::new("ts", fault))
    }

    fn decode_columns(
        &self,
        ts: Vec<i64>,
        range: Range<usize>,
        wants: impl Fn(&str) -> bool,
    ) -> Result<Decoded<'_>, DamagedPart> {
        let mut room = VALUES_MAX;
        let wanted = self.columns.iter().filter(|(name, _)| wants(name));
        let columns = wanted.map(|(name, entries)| {
            let decoded = decode_column(entries, ts.len(), range.end, &mut room);
            let named = decoded.map(|entries| (&**name, entries));
            named.map_err(|fault| DamagedPart::new(name, fault))
        });
        Ok(Decoded {
            columns: columns.collect::<Result<_, _>>()?,
            ts,
            range,
        })
    }
}

/// The entries of a field of `count` readings, up to reading `upto`.
fn decode_column<'p>(
    entries: &'p [Entry],
    count: usize,
    upto: usize,
    room: &mut usize,
) -> Result<Vec<DecodedEntry<'p>>, Fault> {
    let mut taken = vec![
        0;
        if entries.len() > 1 {
            count.div_ceil(8)
        } else {
            0
        }
    ];
    let decode = |entry: &'p Entry| {
        let present = entry.present.as_deref();
        let ones = check_present(present, count)?;
        if entries.len() > 1 {
            let present = present.ok_or(Fault::Present)?;
            if taken
                .iter()
                .zip(present)
                .any(|(taken, bits)| taken & bits != 0)
            {
                return Err(Fault::Present);
            }
            taken
                .iter_mut()
                .zip(present)
                .for_each(|(taken, bits)| *taken |= bits);
        }
        *room = room.checked_sub(ones).ok_or(Fault::TooMany(VALUES_MAX))?;
        let values = decode_values(entry, ones, present_before(present, upto))?;
        Ok(DecodedEntry { values, present })
    };
    entries.iter().map(decode).collect()
}

/// Checks a `present` for so many readings; returns how many bits are set.
fn check_present(present: Option<&[u8]>, count: usize) -> Result<usize, Fault> {
    let Some(bits) = present else {
        return Ok(count);
    };
    if bits.len() != count.div_ceil(8) {
        return Err(Fault::Present);
    }
    let ones = present_before(present, count);
    // None is set behind the last reading.
    let is_valid = ones > 0 && ones == present_before(present, 8 * bits.len());
    is_valid.then_some(ones).ok_or(Fault::Present)
}

fn decode_values(entry: &Entry, count: usize, upto: usize) -> Result<Values<'_>, Fault> {
    let ints = || decode_ints(&entry.data, count, upto);
    let below = |end: usize| {
        let ints = ints()?;
        let is_below = |n: &i64| usize::try_from(*n).is_ok_and(|n| n < end);
        ints.iter()
            .all(is_below)
            .then_some(ints)
            .ok_or(Fault::Index)
    };
    Ok(match &entry.kind {
        EntryKind::Double(ints) => {
            let values = decode_doubles(&entry.data, count, upto)?;
            let ints = ints.as_deref();
            check_ints(&values, ints, count)?;
            Values::Double(values, ints)
        }
        EntryKind::Int => Values::Int(ints()?),
        EntryKind::Bool => Values::Bool(below(2)?),
        EntryKind::Text(dictionary) => Values::Text(below(dictionary.len())?, dictionary),
    })
}

/// Checks that the values that were integers are whole, and exact.
fn check_ints(values: &[f64], ints: Option<&[u8]>, count: usize) -> Result<(), Fault> {
    let Some(ints) = ints else { return Ok(()) };
    let is_exact = |value: f64| value.fract() == 0.0 && value.abs() <= EXACT_MAX as f64;
    let flagged = (0..).zip(values).filter(|(i, _)| is_set(ints, *i));
    let is_valid = ints.len() == count.div_ceil(8) && flagged.map(|(_, v)| *v).all(is_exact);
    is_valid.then_some(()).ok_or(Fault::Ints)
}

impl<'p> Decoded<'p> {
    /// The times of the readings, in milliseconds since 1970.
    pub fn times(&self) -> &[i64] {
        &self.ts[self.range.clone()]
    }

    /// Times and values of a field, in the order of the readings.
    pub fn values(&self, field: &str) -> impl Iterator<Item = (i64, ValueRef<'_>)> {
        let found = self.columns.binary_search_by_key(&field, |(name, _)| name);
        let mut cursor = found.ok().map(|at| self.cursor(&self.columns[at].1));
        let readings = if cursor.is_some() {
            self.range.clone()
        } else {
            0..0
        };
        readings.filter_map(move |at| Some((self.ts[at], cursor.as_mut()?.value(at)?)))
    }

    /// Leaves out the first readings.
    #[must_use]
    pub fn skip(mut self, readings: usize) -> Decoded<'p> {
        self.range.start = self.range.end.min(self.range.start + readings);
        self
    }

    /// The fields in the order of their names, each with its value in every reading.
    pub fn fields(
        &self,
    ) -> impl Iterator<Item = (&str, impl Iterator<Item = Option<ValueRef<'_>>>)> {
        self.cursors().map(|(name, mut cursor)| {
            let values = self.range.clone().map(move |at| cursor.value(at));
            (name, values)
        })
    }

    /// The value of a field in every reading; `None` if no reading of the part has it.
    pub fn field(&self, name: &str) -> Option<impl Iterator<Item = Option<ValueRef<'_>>>> {
        let found = self.columns.binary_search_by_key(&name, |(name, _)| name);
        let mut cursor = self.cursor(&self.columns[found.ok()?].1);
        Some(self.range.clone().map(move |at| cursor.value(at)))
    }

    fn cursors(&self) -> impl Iterator<Item = (&str, Cursor<'_>)> {
        let columns = self.columns.iter();
        columns.map(|(name, entries)| (*name, self.cursor(entries)))
    }

    /// The readings. Those without any of the decoded fields are left out.
    pub fn rows(&self) -> Rows {
        let mut cursors: Vec<_> = self.cursors().collect();
        let mut rows = Rows::default();
        let mut values = Vec::with_capacity(cursors.len());
        for at in self.range.clone() {
            values.clear();
            for (name, cursor) in &mut cursors {
                values.extend(cursor.value(at).map(|value| (*name, value)));
            }
            if !values.is_empty() {
                rows.push_named(self.ts[at], RowFlags::default(), &values);
            }
        }
        rows
    }

    /// Reads the entries of a field from the first reading of the range on.
    fn cursor<'d>(&self, entries: &'d [DecodedEntry<'p>]) -> Cursor<'d> {
        let start = self.range.start;
        let entries = entries
            .iter()
            .map(|entry| (entry, present_before(entry.present, start)));
        Cursor(entries.collect())
    }
}

/// The entries of a field, each with the place of its next value.
struct Cursor<'d>(Vec<(&'d DecodedEntry<'d>, usize)>);

impl<'d> Cursor<'d> {
    /// The value of the next reading.
    fn value(&mut self, at: usize) -> Option<ValueRef<'d>> {
        let mut entries = self.0.iter_mut();
        let (entry, next) = entries.find(|(entry, _)| is_present(entry.present, at))?;
        let i = std::mem::replace(next, *next + 1);
        Some(match &entry.values {
            Values::Double(values, ints) => match ints.is_some_and(|ints| is_set(ints, i)) {
                true => ValueRef::Int(values[i] as i64),
                false => ValueRef::Double(values[i]),
            },
            Values::Int(values) => ValueRef::Int(values[i]),
            Values::Bool(values) => ValueRef::Bool(values[i] == 1),
            Values::Text(values, dictionary) => ValueRef::Str(&dictionary[values[i] as usize]),
        })
    }
}
