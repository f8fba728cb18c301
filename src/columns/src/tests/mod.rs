//! Columns and hours against naive ones, for arbitrary readings.

mod columns;
mod hours;
mod sizes;

use model::{RowFlags, Rows, Value};
use proptest::prelude::*;

use super::*;
use crate::hours::{FIELD_HOURS_MAX, OTHER_STATES, SKETCH_BINS_MAX, STATE_BYTES_MAX, STATES_MAX};
use crate::part::{BYTES_MAX, READINGS_MAX};

/// A reading: time, flags, values.
#[derive(Debug, Clone)]
struct Plain {
    ts_ms: i64,
    flags: RowFlags,
    values: Vec<(&'static str, Value)>,
}

const FIELDS: [&str; 4] = ["temp", "count", "state", "a field with a long name"];
const FLAGS: [RowFlags; 3] = [RowFlags::REPLAYED, RowFlags::RECEIPT_TIME, RowFlags::LOST];

fn value() -> impl Strategy<Value = Value> {
    let double = any::<u64>().prop_map(f64::from_bits);
    let special = prop::sample::select(vec![0.0, -0.0, 0.1 + 0.2, f64::INFINITY, 1e300, 5e-324]);
    let beyond = (1i64 << 53) - 2..(1i64 << 53) + 3;
    prop_oneof![
        8 => (-5000i64..5000, 0u8..4).prop_map(|(n, digits)| Value::Double(n as f64 / 10f64.powi(i32::from(digits)))),
        2 => double.prop_filter("a NaN equals nothing", |v| !v.is_nan()).prop_map(Value::Double),
        1 => special.prop_map(Value::Double),
        4 => (-5i64..5).prop_map(Value::Int),
        1 => any::<i64>().prop_map(Value::Int),
        1 => beyond.prop_map(Value::Int),
        2 => any::<bool>().prop_map(Value::Bool),
        2 => prop::sample::select(vec!["on", "off", "", "true"]).prop_map(|t| Value::Str(t.into())),
        1 => ".{0,80}".prop_map(Value::Str),
    ]
}

/// Readings of which many have the same time, and some are equal.
fn readings(max: usize) -> impl Strategy<Value = Vec<Plain>> {
    let fields = prop::sample::subsequence(FIELDS.to_vec(), 1..=FIELDS.len()).prop_shuffle();
    let flags = prop::sample::subsequence(FLAGS.to_vec(), 0..=FLAGS.len());
    let reading = (
        0i64..40,
        fields,
        prop::collection::vec(value(), FIELDS.len()),
        flags,
    );
    let reading = reading.prop_map(|(ts_ms, fields, values, flags)| Plain {
        ts_ms: ts_ms * ts_ms * 1000 - 50_000,
        flags: flags.into_iter().fold(RowFlags::default(), RowFlags::with),
        values: fields.into_iter().zip(values).collect(),
    });
    let copies = prop::collection::vec(any::<prop::sample::Index>(), 0..5);
    (prop::collection::vec(reading, 1..max), copies).prop_map(|(mut readings, copies)| {
        for copy in copies {
            readings.push(copy.get(&readings).clone());
        }
        readings
    })
}

fn rows<'a>(readings: impl IntoIterator<Item = &'a Plain>) -> Rows {
    let mut rows = Rows::default();
    for reading in readings {
        let values: Vec<_> = reading
            .values
            .iter()
            .map(|(n, v)| (*n, v.as_ref()))
            .collect();
        rows.push_named(reading.ts_ms, reading.flags, &values);
    }
    rows
}

/// The parts of a day, given as one bucket.
fn parts(rows: &Rows) -> Vec<Part> {
    let mut encoder = DayEncoder::default();
    let mut parts = encoder.add(rows);
    parts.extend(encoder.finish());
    parts
}

fn decoded(parts: &[Part]) -> Rows {
    let mut all = Rows::default();
    for part in parts {
        all.append(&part.decode().expect("it was encoded").rows());
    }
    all
}
