//! The four kinds of values: double, int64, bool and string. Integers are stored as integers. The
//! decoders reject NaN and infinities.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

/// A borrowed value. `==` also compares the kinds: 21 is not 21.0. To compare readings, use
/// [`super::ReadingKey`]; to compare numbers, [`Number`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ValueRef<'a> {
    /// A finite double.
    Double(f64),
    /// A 64-bit signed integer.
    Int(i64),
    /// A boolean; not part of a summary.
    Bool(bool),
    /// A string; not part of a summary.
    Str(&'a str),
}

/// An owned value, for tests, tools and error texts; the hot path uses [`ValueRef`].
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A finite double.
    Double(f64),
    /// A 64-bit signed integer.
    Int(i64),
    /// A boolean.
    Bool(bool),
    /// A string.
    Str(String),
}

impl Value {
    /// The same value, borrowed.
    pub fn as_ref(&self) -> ValueRef<'_> {
        match self {
            Value::Double(v) => ValueRef::Double(*v),
            Value::Int(v) => ValueRef::Int(*v),
            Value::Bool(v) => ValueRef::Bool(*v),
            Value::Str(v) => ValueRef::Str(v),
        }
    }
}

impl ValueRef<'_> {
    /// The same value, owned.
    pub fn to_value(self) -> Value {
        match self {
            ValueRef::Double(v) => Value::Double(v),
            ValueRef::Int(v) => Value::Int(v),
            ValueRef::Bool(v) => Value::Bool(v),
            ValueRef::Str(v) => Value::Str(v.to_owned()),
        }
    }

    /// The number, if it is one: only numbers enter a summary.
    pub fn num(self) -> Option<Number> {
        match self {
            ValueRef::Double(v) => Some(Number::Double(v)),
            ValueRef::Int(v) => Some(Number::Int(v)),
            ValueRef::Bool(_) | ValueRef::Str(_) => None,
        }
    }

    /// The common form of equal values: a double whose value is an integer, such as 21.0 and -0.0,
    /// becomes an integer. Exact: 9007199254740992.0 does not become 9007199254740993.
    pub(super) fn canonical(self) -> Self {
        match self {
            // The cast saturates at 2^63 - 1, which is rounded to 2^63 for the comparison.
            ValueRef::Double(v) if v as i64 as f64 == v && v < TWO_63 => ValueRef::Int(v as i64),
            other => other,
        }
    }

    pub(super) const TAG_DOUBLE: u8 = 0;
    pub(super) const TAG_INT: u8 = 1;
    pub(super) const TAG_FALSE: u8 = 2;
    pub(super) const TAG_TRUE: u8 = 3;
    pub(super) const TAG_STR: u8 = 4;

    /// Whether it is an integer or a double.
    pub(super) fn is_number(self) -> bool {
        matches!(self, ValueRef::Double(_) | ValueRef::Int(_))
    }

    /// Appends the compact form: a kind byte, then 8 bytes for a number, nothing for a boolean, or
    /// length (u32) and bytes for a string. All numbers are little-endian.
    #[inline]
    pub(super) fn encode(self, out: &mut Vec<u8>) {
        match self {
            ValueRef::Double(v) => {
                out.push(Self::TAG_DOUBLE);
                out.extend_from_slice(&v.to_le_bytes());
            }
            ValueRef::Int(v) => {
                out.push(Self::TAG_INT);
                out.extend_from_slice(&v.to_le_bytes());
            }
            ValueRef::Bool(v) => out.push(if v { Self::TAG_TRUE } else { Self::TAG_FALSE }),
            ValueRef::Str(v) => {
                out.push(Self::TAG_STR);
                out.extend_from_slice(&(v.len() as u32).to_le_bytes());
                out.extend_from_slice(v.as_bytes());
            }
        }
    }
}

/// As JSON has it: a number, a boolean or a text.
impl Serialize for ValueRef<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            ValueRef::Double(v) => v.serialize(serializer),
            ValueRef::Int(v) => v.serialize(serializer),
            ValueRef::Bool(v) => v.serialize(serializer),
            ValueRef::Str(v) => v.serialize(serializer),
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.as_ref().serialize(serializer)
    }
}

/// Updates the newest values by field with those of a reading: time (ms since 1970) and value. Of
/// two values with the same time, the later call wins.
pub fn keep_newer<'a>(
    values: &mut BTreeMap<String, (i64, Value)>,
    ts_ms: i64,
    reading: impl Iterator<Item = (&'a str, ValueRef<'a>)>,
) {
    for (name, value) in reading {
        match values.get_mut(name) {
            Some((held_ms, _)) if *held_ms > ts_ms => {}
            Some(held) => *held = (ts_ms, value.to_value()),
            // Allocates the name only for a new field.
            None => drop(values.insert(name.to_owned(), (ts_ms, value.to_value()))),
        }
    }
}

/// An integer or a double. Equal and ordered by value, exactly: 21 equals 21.0, and 0.0 equals -0.0.
#[derive(Debug, Clone, Copy)]
pub enum Number {
    /// A 64-bit signed integer.
    Int(i64),
    /// A finite double.
    Double(f64),
}

impl Number {
    /// The value as a double; integers beyond 2^53 are rounded.
    pub fn as_f64(self) -> f64 {
        match self {
            Number::Int(v) => v as f64,
            Number::Double(v) => v,
        }
    }

    /// Orders by value, exactly, as MongoDB's `$min` and `$max` do. NaN, which only a sum can be, is
    /// lower than all others.
    pub fn order(self, other: Number) -> Ordering {
        match (self, other) {
            (Number::Int(a), Number::Int(b)) => a.cmp(&b),
            (Number::Double(a), Number::Double(b)) => a
                .partial_cmp(&b)
                .unwrap_or_else(|| b.is_nan().cmp(&a.is_nan())),
            (Number::Int(a), Number::Double(b)) => order_mixed(a, b),
            (Number::Double(a), Number::Int(b)) => order_mixed(b, a).reverse(),
        }
    }

    /// Adds like MongoDB's `$inc`: two integers give an integer, anything else a double. An integer
    /// overflow, which `$inc` rejects, gives a double here; [`super::summary`] keeps sums far below
    /// it.
    pub fn plus(self, other: Number) -> Number {
        match (self, other) {
            (Number::Int(a), Number::Int(b)) => a
                .checked_add(b)
                .map_or(Number::Double(a as f64 + b as f64), Number::Int),
            (a, b) => Number::Double(a.as_f64() + b.as_f64()),
        }
    }
}

/// A sum that has overflowed is null in JSON.
impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Number::Int(v) => v.serialize(serializer),
            Number::Double(v) => v.serialize(serializer),
        }
    }
}

const TWO_63: f64 = 9_223_372_036_854_775_808.0;

/// Orders an integer and a double. Exact: a conversion to doubles would make distinct integers
/// beyond 2^53 equal.
fn order_mixed(int: i64, double: f64) -> Ordering {
    if double >= TWO_63 {
        return Ordering::Less;
    }
    if double < -TWO_63 || double.is_nan() {
        return Ordering::Greater;
    }
    let whole = double.trunc();
    let rest = 0.0_f64.partial_cmp(&(double - whole));
    int.cmp(&(whole as i64))
        .then(rest.unwrap_or(Ordering::Equal))
}

impl PartialEq for Number {
    fn eq(&self, other: &Number) -> bool {
        self.order(*other) == Ordering::Equal
    }
}

/// Reads little-endian fields from a byte slice; `None` at the first incomplete field.
pub(super) struct Cursor<'a> {
    pub(super) rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    #[inline]
    pub(super) fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.rest.split_at_checked(n)?;
        self.rest = tail;
        Some(head)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.rest.split_first_chunk::<N>()?;
        self.rest = tail;
        Some(*head)
    }

    #[inline]
    pub(super) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|b| b[0])
    }

    #[inline]
    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    #[inline]
    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    #[inline]
    pub(super) fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_le_bytes)
    }

    #[inline]
    pub(super) fn text(&mut self, n: usize) -> Option<&'a str> {
        std::str::from_utf8(self.take(n)?).ok()
    }

    #[inline]
    pub(super) fn value(&mut self) -> Option<ValueRef<'a>> {
        Some(match self.u8()? {
            ValueRef::TAG_DOUBLE => ValueRef::Double(f64::from_le_bytes(self.array()?)),
            ValueRef::TAG_INT => ValueRef::Int(self.i64()?),
            ValueRef::TAG_FALSE => ValueRef::Bool(false),
            ValueRef::TAG_TRUE => ValueRef::Bool(true),
            ValueRef::TAG_STR => {
                let n = self.u32()? as usize;
                ValueRef::Str(self.text(n)?)
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_keeps_its_newest_value_and_of_one_time_the_last() {
        let mut held = BTreeMap::new();
        for (ts_ms, name, n) in [
            (5, "a", 1),
            (5, "a", 2),
            (4, "a", 3),
            (4, "b", 4),
            (6, "b", 5),
        ] {
            keep_newer(&mut held, ts_ms, std::iter::once((name, ValueRef::Int(n))));
        }
        assert_eq!(
            held.into_values().collect::<Vec<_>>(),
            [(5, Value::Int(2)), (6, Value::Int(5))]
        );
    }

    #[test]
    fn integers_and_doubles_are_ordered_exactly() {
        use Number::{Double, Int};
        const TWO_53: i64 = 1 << 53;
        let ascending = [
            Double(-1e300),
            Int(i64::MIN),
            Int(-TWO_53 - 1),
            Double(-TWO_53 as f64),
            Int(-2),
            Double(-1.5),
            Int(-1),
            Double(-0.5),
            Int(0),
            Double(0.5),
            Int(1),
            Double(1.5),
            Double(TWO_53 as f64),
            Int(TWO_53 + 1),
            Double((TWO_53 + 2) as f64),
            Int(i64::MAX),
            Double(i64::MAX as f64),
        ];
        for (i, a) in ascending.into_iter().enumerate() {
            for (j, b) in ascending.into_iter().enumerate() {
                assert_eq!(a.order(b), i.cmp(&j), "{a:?} {b:?}");
            }
        }
        for (int, double) in [
            (0, 0.0),
            (0, -0.0),
            (TWO_53, TWO_53 as f64),
            (i64::MIN, i64::MIN as f64),
        ] {
            assert_eq!(Int(int), Double(double));
        }
        assert_eq!(Double(0.0), Double(-0.0));
        let nan = Double(f64::NAN);
        assert_eq!(nan, Double(-f64::NAN));
        for number in ascending {
            assert_eq!(nan.order(number), Ordering::Less);
            assert_eq!(number.order(nan), Ordering::Greater);
        }
    }
}
