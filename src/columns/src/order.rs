//! The order of readings in columns, and what is compared with it.
//!
//! Readings are ordered by time, within a millisecond by the hash of their values
//! ([`model::ReadingKey`], as in the read API), and equal ones by their kinds and bits. So the order
//! depends on the readings alone, and not on how they arrived.

use std::cmp::Ordering;

use model::rows::Row;
use model::{Rows, ValueRef};

/// The rows in the order of columns.
pub(crate) fn sorted(rows: &Rows) -> Vec<Row<'_>> {
    let mut sorted: Vec<Row<'_>> = rows.iter().collect();
    // Nearly all pages are in order. The sort notices, and the keys are not computed.
    sorted.sort_by(|a, b| {
        let by_key = || a.key().cmp(&b.key()).then_with(|| exact_order(a, b));
        a.ts_ms.cmp(&b.ts_ms).then_with(by_key)
    });
    sorted
}

/// Orders two readings by names, kinds and bits; equal only if nothing but the order of the fields
/// differs.
fn exact_order(a: &Row<'_>, b: &Row<'_>) -> Ordering {
    exact_values(a).cmp(&exact_values(b))
}

fn exact_values<'a>(row: &Row<'a>) -> Vec<(&'a str, u8, u64, &'a str)> {
    let exact = |(name, value)| match value {
        ValueRef::Double(v) => (name, 0, v.to_bits(), ""),
        ValueRef::Int(v) => (name, 1, v as u64, ""),
        ValueRef::Bool(v) => (name, 2, u64::from(v), ""),
        ValueRef::Str(v) => (name, 3, 0, v),
    };
    let mut values: Vec<_> = row.named().map(exact).collect();
    values.sort_unstable_by_key(|value| value.0);
    values
}

/// Whether both have the same readings, each value with the same kind and bits, in whatever order.
/// To be asked before readings leave their pages: a bucket at a time.
pub fn same_readings(a: &Rows, b: &Rows) -> bool {
    let same = |(a, b): (&Row<'_>, &Row<'_>)| a.ts_ms == b.ts_ms && exact_order(a, b).is_eq();
    a.len() == b.len() && sorted(a).iter().zip(&sorted(b)).all(same)
}
