//! Numbers in fewer bytes. Pure.
//!
//! Sensors send numbers of few digits: 21.37 is 21370 thousandths, which need two bytes instead of
//! eight. A packed number is a byte `1tuu 0nnn`, with the type `t` (1: double), the unit `u` (ones,
//! thousandths, millionths) and the number of bytes `n`, and then these bytes, the lowest first: the
//! value in this unit, with a sign. A number is packed only if exactly the same number is read back,
//! bit by bit; others, strings and booleans have their usual form ([`super::super::value`]).
//!
//! Three units instead of each power of ten, because most of the cost is the divisions.

use super::super::value::{Cursor, ValueRef};

/// Set in the first byte of a packed number; in no kind byte of a value.
const IS_PACKED: u8 = 1 << 7;
const IS_DOUBLE: u8 = 1 << 6;
const UNIT_AT: u32 = 4;
const UNIT_BITS: u8 = 3;
const LENGTH_BITS: u8 = 7;
/// How many of each unit are one. Whole numbers need no division.
const PER_ONE: [f64; 4] = [1.0, 1e3, 1e6, 1.0];

/// Longest payload that is packed.
pub(super) const PAYLOAD_MAX: usize = u8::MAX as usize;
/// A packed payload, and room to write eight bytes of which fewer count.
pub(super) type Buffer = [u8; PAYLOAD_MAX + 8];
/// An empty one.
pub(super) const BUFFER: Buffer = [0; PAYLOAD_MAX + 8];
/// A number in its usual form, with the kind byte.
const NUMBER_BYTES: usize = 1 + 8;
/// Up to here all integers are exact as doubles, so the division that reads a number back has only
/// one rounding, the same as that of the decimal text.
const EXACT_MAX: u64 = 1 << 53;

/// Packs the values of a row into `out` and returns them; they are never longer. `None` if the payload
/// is too long or not valid.
pub(super) fn pack<'a>(payload: &[u8], out: &'a mut Buffer) -> Option<&'a [u8]> {
    if payload.len() > PAYLOAD_MAX {
        return None;
    }
    let mut cursor = Cursor { rest: payload };
    let mut len = 0;
    while !cursor.rest.is_empty() {
        let before = cursor.rest;
        let packed = match cursor.value()? {
            ValueRef::Double(v) => in_units(v).map(|(n, unit)| (IS_DOUBLE | unit, n)),
            ValueRef::Int(v) => Some((0, v)),
            ValueRef::Bool(_) | ValueRef::Str(_) => None,
        };
        let bytes = packed.map_or(8, |(_, n)| bytes_needed(n));
        match packed {
            Some((kind, n)) if bytes < 8 => {
                out[len] = IS_PACKED | kind | bytes as u8;
                out[len + 1..len + 9].copy_from_slice(&n.to_le_bytes());
                len += 1 + bytes;
            }
            _ => {
                let usual = &before[..before.len() - cursor.rest.len()];
                out[len..][..usual.len()].copy_from_slice(usual);
                len += usual.len();
            }
        }
    }
    Some(&out[..len])
}

/// The next value, packed or not; `None` at the end.
#[inline]
pub(super) fn value<'a>(cursor: &mut Cursor<'a>) -> Option<ValueRef<'a>> {
    let rest = cursor.rest;
    let &first = rest.first()?;
    if first & IS_PACKED == 0 {
        return cursor.value();
    }
    let bytes = usize::from(first & LENGTH_BITS);
    cursor.rest = rest.get(1 + bytes..)?;
    let n = match rest[1..].first_chunk() {
        Some(eight) => i64::from_le_bytes(*eight),
        None => {
            let mut eight = [0; 8];
            eight[..bytes].copy_from_slice(&rest[1..=bytes]);
            i64::from_le_bytes(eight)
        }
    };
    // Drops what follows, and extends the sign.
    let unused = 64 - 8 * bytes as u32;
    let n = if bytes == 0 { 0 } else { n << unused >> unused };
    Some(match (first & IS_DOUBLE, first >> UNIT_AT & UNIT_BITS) {
        (0, _) => ValueRef::Int(n),
        (_, 0) => ValueRef::Double(n as f64),
        (_, unit) => ValueRef::Double(n as f64 / PER_ONE[usize::from(unit)]),
    })
}

/// Length of the payload with all values in their usual form.
pub(super) fn usual_bytes(payload: &[u8]) -> usize {
    let mut cursor = Cursor { rest: payload };
    let mut bytes = 0;
    loop {
        let before = cursor.rest.len();
        bytes += match value(&mut cursor) {
            Some(value) if value.is_number() => NUMBER_BYTES,
            Some(_) => before - cursor.rest.len(),
            None => return bytes,
        };
    }
}

/// The value as a number of units, and the unit (in its place in the first byte).
fn in_units(value: f64) -> Option<(i64, u8)> {
    let is_same = |read: f64| read.to_bits() == value.to_bits();
    // The conversions saturate.
    let ones = value as i64;
    if is_same(ones as f64) && ones.unsigned_abs() <= EXACT_MAX {
        return Some((ones, 0));
    }
    for unit in 1..=2 {
        let per_one = PER_ONE[usize::from(unit)];
        let scaled = value * per_one;
        let nearest = (scaled + 0.5f64.copysign(scaled)) as i64;
        if nearest.unsigned_abs() > EXACT_MAX {
            return None;
        }
        if is_same(nearest as f64 / per_one) {
            return Some((nearest, unit << UNIT_AT));
        }
    }
    None
}

/// Bytes for the integer with its sign: 0 to 8.
fn bytes_needed(value: i64) -> usize {
    let magnitude = if value < 0 { !value } else { value };
    match value {
        0 => 0,
        _ => (64 - magnitude.leading_zeros() as usize) / 8 + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(values: &[ValueRef<'_>]) -> Vec<u8> {
        let mut payload = vec![];
        values.iter().for_each(|value| value.encode(&mut payload));
        payload
    }

    fn packed(payload: &[u8]) -> Vec<u8> {
        let mut out = BUFFER;
        pack(payload, &mut out)
            .expect("it is short enough")
            .to_vec()
    }

    /// Bits, because 0 and -0 compare equal.
    fn assert_same(a: ValueRef<'_>, b: ValueRef<'_>) {
        match (a, b) {
            (ValueRef::Double(a), ValueRef::Double(b)) => {
                assert_eq!(a.to_bits(), b.to_bits(), "{a} {b}");
            }
            (a, b) => assert_eq!(a, b),
        }
    }

    fn assert_comes_back(values: &[ValueRef<'_>]) -> usize {
        let usual = payload(values);
        let short = packed(&usual);
        assert!(short.len() <= usual.len(), "{values:?}");
        assert_eq!(usual_bytes(&short), usual.len(), "{values:?}");
        let mut cursor = Cursor { rest: &short };
        for expected in values {
            assert_same(value(&mut cursor).expect("a value"), *expected);
        }
        assert!(value(&mut cursor).is_none());
        short.len()
    }

    #[test]
    fn numbers_of_few_digits_are_short() {
        let short = |value| assert_comes_back(&[value]);
        let double = |v| short(ValueRef::Double(v));
        assert_eq!([0.0, 1.0, -1.0, 127.0].map(double), [1, 2, 2, 2]);
        assert_eq!([-128.0, 128.0, 21.37, -21.37].map(double), [2, 3, 3, 3]);
        assert_eq!([51.12345, 1e15, 0.000_001].map(double), [5, 8, 2]);
        let int = |v| short(ValueRef::Int(v));
        assert_eq!([0, -1, 300, i64::MAX, i64::MIN].map(int), [1, 2, 3, 9, 9]);
        assert_eq!([(1 << 55) - 1, 1 << 55, -(1 << 55)].map(int), [8, 9, 8]);
    }

    #[test]
    fn every_value_comes_back_bit_by_bit() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..20_000 {
            let values: Vec<ValueRef<'_>> = (0..random.usize(..12))
                .map(|_| match random.u8(..6) {
                    0 => ValueRef::Double(f64::from_bits(random.u64(..))),
                    1 => {
                        let power = 10f64.powi(random.i32(-9..=9));
                        ValueRef::Double(random.i64(-1_000_000..1_000_000) as f64 / power)
                    }
                    2 => ValueRef::Int(random.i64(..) >> random.u32(..64)),
                    3 => ValueRef::Bool(random.bool()),
                    4 => ValueRef::Str("grün"),
                    _ => ValueRef::Double(
                        *random
                            .choice(
                                [
                                    -0.0,
                                    f64::MAX,
                                    0.1 + 0.2,
                                    f64::MIN_POSITIVE,
                                    9_007_199_254_740_993.0,
                                ]
                                .iter(),
                            )
                            .expect("one"),
                    ),
                })
                .filter(|value| !matches!(value, ValueRef::Double(v) if v.is_nan()))
                .collect();
            assert_comes_back(&values);
        }
    }

    #[test]
    fn a_long_or_damaged_payload_is_not_packed() {
        let mut out = BUFFER;
        let long = "x".repeat(PAYLOAD_MAX);
        assert_eq!(pack(&payload(&[ValueRef::Str(&long)]), &mut out), None);
        assert_eq!(pack(&[ValueRef::TAG_INT, 1], &mut out), None);
        assert_eq!(pack(&[IS_PACKED], &mut out), None);
    }
}
