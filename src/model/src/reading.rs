//! An owned reading, and the identity of a reading. The hot path uses [`super::ReadingRef`]
//! instead.

use std::collections::BTreeMap;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::value::{Value, ValueRef};

/// An owned reading, for tests and tools.
#[derive(Debug, Clone, PartialEq)]
pub struct Reading {
    /// The id of the sensor.
    pub sensor_id: String,
    /// Time of the measurement, in milliseconds since 1970.
    pub ts_ms: i64,
    /// True if the sender gave no time and `ts_ms` is the receipt time. Two equal such readings are
    /// not duplicates.
    pub receipt_time: bool,
    /// Tags of the sensor; not part of the identity.
    pub tags: BTreeMap<String, String>,
    /// Values by field name.
    pub values: BTreeMap<String, Value>,
}

/// One value of a series: what queries compute with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Milliseconds since 1970.
    pub ts_ms: i64,
    /// The value.
    pub value: f64,
}

/// The identity of a reading within its sensor: its time, and a hash of its values that does not
/// depend on their order. Two readings of a sensor in the same millisecond with different values
/// collide with a probability of 2^-64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReadingKey {
    /// Milliseconds since 1970.
    pub ts_ms: i64,
    /// Sum of the hashes of the values.
    pub values_hash: u64,
}

impl ReadingKey {
    /// The key of the reading at `ts_ms` with these values. Numbers are compared by exact value: 21
    /// and 21.0 have the same key, and so have 0.0 and -0.0.
    pub fn new<'a>(
        ts_ms: i64,
        values: impl Iterator<Item = (&'a str, ValueRef<'a>)>,
    ) -> ReadingKey {
        let values_hash = values.fold(0, |sum: u64, (name, value)| {
            sum.wrapping_add(value_hash(name, value))
        });
        ReadingKey { ts_ms, values_hash }
    }

    /// The key of a reading with this many equal ones before it ([`ReadingRef::repeat`]).
    ///
    /// [`ReadingRef::repeat`]: super::ReadingRef::repeat
    pub fn repeated(self, repeat: u32) -> ReadingKey {
        let offset = u64::from(repeat).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        ReadingKey {
            values_hash: self.values_hash.wrapping_add(offset),
            ..self
        }
    }
}

fn value_hash(name: &str, value: ValueRef<'_>) -> u64 {
    // Each kind has its own rotation, so that 1, true and "\x01…" differ. The hash of the name
    // seeds that of the value.
    let name_hash = xxh3_64_with_seed(name.as_bytes(), 0x9E37_79B9_7F4A_7C15);
    let (kind, hash) = match value.canonical() {
        ValueRef::Double(v) => (1, xxh3_64_with_seed(&v.to_bits().to_le_bytes(), name_hash)),
        ValueRef::Int(v) => (2, xxh3_64_with_seed(&v.to_le_bytes(), name_hash)),
        ValueRef::Bool(v) => (3, xxh3_64_with_seed(&[u8::from(v)], name_hash)),
        ValueRef::Str(v) => (4, xxh3_64_with_seed(v.as_bytes(), name_hash)),
    };
    hash.rotate_left(kind * 7)
}

impl Reading {
    /// The identity within the sensor.
    pub fn key(&self) -> ReadingKey {
        ReadingKey::new(
            self.ts_ms,
            self.values.iter().map(|(n, v)| (n.as_str(), v.as_ref())),
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn order_does_not_matter_but_names_kinds_and_time_do() {
        let key =
            |ts, v: &[(&'static str, ValueRef<'static>)]| ReadingKey::new(ts, v.iter().copied());
        let a = ("a", ValueRef::Int(1));
        let b = ("b", ValueRef::Double(2.0));
        assert_eq!(key(1, &[a, b]), key(1, &[b, a]));
        let same = key(1, &[a]);
        for other in [
            key(2, &[a]),
            key(1, &[("b", ValueRef::Int(1))]),
            key(1, &[("a", ValueRef::Bool(true))]),
            key(1, &[("a", ValueRef::Str("1"))]),
            key(1, &[a, b]),
        ] {
            assert_ne!(same, other);
        }
        assert_ne!(
            key(1, &[("a", ValueRef::Int(1)), ("b", ValueRef::Int(2))]),
            key(1, &[("a", ValueRef::Int(2)), ("b", ValueRef::Int(1))])
        );
    }

    /// Values around those where a comparison of integers and doubles could go wrong.
    fn value() -> impl Strategy<Value = Value> {
        const TWO_53: i128 = 1 << 53;
        const TWO_63: i128 = 1 << 63;
        let middle = prop::sample::select(vec![0, 21, TWO_53, -TWO_53, TWO_63, -TWO_63]);
        (middle, -2i128..3, 0..5).prop_map(|(middle, offset, kind)| {
            let number = middle + offset;
            match kind {
                0 => Value::Int(number.clamp(-TWO_63, TWO_63 - 1) as i64),
                1 => Value::Double(number as f64),
                2 => Value::Double(-(number as f64) / 2.0),
                3 => Value::Bool(number > 0),
                _ => Value::Str(number.to_string()),
            }
        })
    }

    /// The exact decimal digits of a number; any other value with its kind.
    fn digits(value: &Value) -> String {
        match value {
            Value::Int(v) => v.to_string(),
            Value::Double(v) if *v == 0.0 => "0".to_owned(),
            Value::Double(v) if v.fract() == 0.0 => format!("{v:.0}"),
            Value::Double(v) => v.to_string(),
            other => format!("{other:?}"),
        }
    }

    proptest! {
        #[test]
        fn readings_have_the_same_key_exactly_if_their_values_have_the_same_digits(
            a in value(),
            b in value(),
        ) {
            let key = |value: &Value| ReadingKey::new(1, [("a", value.as_ref())].into_iter());
            let are_equal = digits(&a) == digits(&b);
            prop_assert_eq!(key(&a) == key(&b), are_equal);
            if let (Some(a), Some(b)) = (a.as_ref().num(), b.as_ref().num()) {
                prop_assert_eq!(a == b, are_equal);
            }
        }
    }
}
