//! A part of a day in columns, as it is stored: one document of `sensor_columns`.
//!
//! | field | content |
//! |---|---|
//! | `count`, `first_ts`, `last_ts` | of its readings |
//! | `ts` | pco, int64: milliseconds since 1970, ascending |
//! | `columns.<field>` | `kind` and `data`, and where needed `dictionary`, `present`, `ints`, `others` |
//!
//! | `kind` | `data`, in pco's standalone format |
//! |---|---|
//! | `double` | float64; decimal numbers of few digits as multiples of their unit ([`super::decimals`]) |
//! | `int` | integers |
//! | `bool` | integers 0 and 1 |
//! | `text` | integers: indices into `dictionary`, which is in the order of first appearance |
//!
//! Integers are int16, int32 or int64 of pco, the narrowest that holds all of them. `data` has the
//! values in the order of their readings. `present` tells which readings these are: the bit `i % 8`
//! (the lowest is 0) of byte `i / 8` belongs to reading `i`; the bits behind the last one are 0. It
//! is absent if all readings have a value.
//!
//! A field may have values of several kinds. Integers up to 2^53 are among its doubles, and `ints` tells
//! which of the values these are, in the same way. The other kinds have an entry each: the one with the
//! most values is the column, the others are in its `others`, in the same form. No reading is in two
//! entries of a field.
//!
//! The order of the readings is that of their times, and within a millisecond that of [`super::order`].
//! The order of the fields within a reading is not kept: it is not part of a reading's identity.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Most readings of a part: a day of one a second has one part.
pub(crate) const READINGS_MAX: usize = 100_000;
/// Most bytes of the readings of a part, in their form in a page, with what columns add to them. A
/// part with one reading may have more: up to `bucket.max_bytes`, 8 MiB as well. A document is never
/// larger than this, apart from its tags.
pub(crate) const BYTES_MAX: usize = 8 << 20;
/// What an entry needs besides its values, its name and `present`: the descriptions of pco (at most
/// 91 bytes) and of BSON.
pub(crate) const ENTRY_BYTES: usize = 256;

/// A part of a sensor's day.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Part {
    /// Number of readings, at least 1.
    pub count: u32,
    /// The time of the first reading, in milliseconds since 1970.
    pub first_ts_ms: i64,
    /// The time of the last reading, in milliseconds since 1970.
    pub last_ts_ms: i64,
    /// The times of the readings.
    pub ts: Vec<u8>,
    /// By field: its values; several entries if they are of several kinds, that with the most values
    /// first.
    pub columns: BTreeMap<Arc<str>, Vec<Entry>>,
}

/// Values of one kind of one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Their kind.
    pub kind: EntryKind,
    /// The values or indices, in the order of the readings.
    pub data: Vec<u8>,
    /// Which readings have one; `None`: all.
    pub present: Option<Vec<u8>>,
}

/// The kind of the values of an [`Entry`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryKind {
    /// Doubles, and which of them were integers: a sensor that sends 20 for 20.0 has one column.
    /// `None`: none of them.
    Double(Option<Vec<u8>>),
    /// 64-bit signed integers.
    Int,
    /// Booleans.
    Bool,
    /// Texts, with the dictionary.
    Text(Vec<String>),
}

/// Bits, one for each reading.
#[derive(Debug, Default)]
pub(crate) struct Bits(Vec<u8>);

impl Bits {
    /// Sets a bit behind all others.
    pub(crate) fn set(&mut self, at: usize) {
        self.0.resize(at / 8 + 1, 0);
        self.0[at / 8] |= 1 << (at % 8);
    }

    pub(crate) fn get(&self, at: usize) -> bool {
        is_set(&self.0, at)
    }

    /// The field `present`; `ones`: how many bits are set.
    pub(crate) fn present(mut self, ones: usize, count: usize) -> Option<Vec<u8>> {
        (ones < count).then(|| {
            self.0.resize(count.div_ceil(8), 0);
            self.0
        })
    }
}

/// Whether a reading is present.
pub(crate) fn is_present(present: Option<&[u8]>, at: usize) -> bool {
    present.is_none_or(|bits| is_set(bits, at))
}

/// Whether a bit is set; those behind the last byte are not.
pub(crate) fn is_set(bits: &[u8], at: usize) -> bool {
    bits.get(at / 8)
        .is_some_and(|byte| byte >> (at % 8) & 1 == 1)
}

/// How many of the first `upto` readings are present.
pub(crate) fn present_before(present: Option<&[u8]>, upto: usize) -> usize {
    let Some(bits) = present else {
        return upto;
    };
    let whole: u32 = bits[..upto / 8].iter().map(|byte| byte.count_ones()).sum();
    let rest = match upto % 8 {
        0 => 0,
        n => (bits[upto / 8] & ((1 << n) - 1)).count_ones(),
    };
    (whole + rest) as usize
}
