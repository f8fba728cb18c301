//! Summaries: the operands of `$min`, `$max` and `$inc` for the fields of one page.

use std::sync::Arc;

use super::rows::Rows;
use super::value::Number;

/// The largest integer sum that a statement sends as an integer. A page receives at most
/// `bucket.max_readings` (≤ 10,000 < 2^14) statements. So its integer sum stays below 2^49 · 2^14 =
/// 2^63, and `$inc` never overflows (the server rejects an overflowing `$inc`). Larger sums are
/// sent as doubles. A time-series bucket has no such limit of statements: if its `$inc` is
/// rejected, the bucket is recomputed, and [`Number::plus`] turns the sum into a double there too.
///
/// A sum of doubles may become infinite or NaN (`inf - inf`), as in the server. `min`, `max` and
/// `count` stay correct.
const SUM_INT_MAX: i128 = 1 << 49;

/// The summary of one field; `avg = sum / count`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FieldSummary {
    /// The smallest value.
    pub min: Number,
    /// The largest value.
    pub max: Number,
    /// An integer if all values are integers and the sum is not too large (2^49 per statement);
    /// else a double.
    pub sum: Number,
    /// Number of values.
    pub count: u32,
}

/// The summaries of rows: the index into [`Rows::fields`] and its summary, only for fields with
/// numbers.
pub type Summary = Vec<(u32, FieldSummary)>;

/// A sum of numbers in progress, as [`FieldSummary::sum`] has it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sum {
    ints: i128,
    doubles: f64,
    has_doubles: bool,
}

impl Sum {
    /// Adds a number.
    #[inline]
    pub fn add(&mut self, v: Number) {
        match v {
            Number::Int(v) => self.ints += i128::from(v),
            Number::Double(v) => {
                self.doubles += v;
                self.has_doubles = true;
            }
        }
    }

    /// The sum so far.
    pub fn total(self) -> Number {
        let as_int = !self.has_doubles && self.ints.abs() <= SUM_INT_MAX;
        if as_int {
            Number::Int(self.ints as i64)
        } else {
            Number::Double(self.doubles + self.ints as f64)
        }
    }
}

/// Accumulates the summary of one field.
#[derive(Clone, Copy)]
struct Running {
    min: Number,
    max: Number,
    sum: Sum,
    count: u32,
}

impl Running {
    fn first(v: Number) -> Running {
        let mut sum = Sum::default();
        sum.add(v);
        Running {
            min: v,
            max: v,
            sum,
            count: 1,
        }
    }

    #[inline]
    fn add(&mut self, v: Number) {
        if v.order(self.min).is_lt() {
            self.min = v;
        }
        if v.order(self.max).is_gt() {
            self.max = v;
        }
        self.sum.add(v);
        self.count += 1;
    }

    fn finish(self) -> FieldSummary {
        FieldSummary {
            min: self.min,
            max: self.max,
            sum: self.sum.total(),
            count: self.count,
        }
    }
}

/// Size of a field's entry in a stored summary, without its name: type, NUL and length (6), `min`,
/// `max` and `sum` (type, name, NUL, 8 bytes: 13 each), `count` (type, name, NUL, 4 bytes: 11),
/// terminator (1).
const ENTRY_BYTES: u64 = 6 + 3 * 13 + 11 + 1;

/// Maximum size of a page's summary. With names of 128 bytes these are 5,667 fields of 185 bytes;
/// with names of one byte, 18,078 of 58. A page has this summary, its readings (`bucket.max_bytes`
/// ≤ 8 MiB), and at most one reading more than fits (255 fields of 185 bytes, 47 KB): far below the
/// server's limit of 16 MiB. In a command, a field takes at most 4 times its name plus 100 bytes,
/// or 3.4 MiB for a whole page. So a command of 12 MiB that ends with such a statement stays below
/// 16 MiB.
pub const PAGE_SUMMARY_BYTES_MAX: u64 = 1 << 20;

/// Size of a field with this name in a stored summary.
pub fn entry_bytes(name: &str) -> u64 {
    ENTRY_BYTES + name.len() as u64
}

/// Size of these summaries in a page.
pub fn stored_bytes(fields: &[Arc<str>], summary: &Summary) -> u64 {
    summary
        .iter()
        .map(|(i, _)| entry_bytes(&fields[*i as usize]))
        .sum()
}

/// Computes the summary of rows in one pass.
pub fn summarise(rows: &Rows) -> Summary {
    let mut running: Vec<Option<Running>> = vec![None; rows.fields().len()];
    for row in rows.iter() {
        for (field, value) in row.values() {
            let Some(v) = value.num() else { continue };
            match &mut running[field as usize] {
                Some(r) => r.add(v),
                slot => *slot = Some(Running::first(v)),
            }
        }
    }
    let finish = |(i, r): (usize, Option<Running>)| r.map(|r| (i as u32, r.finish()));
    running.into_iter().enumerate().filter_map(finish).collect()
}

impl FieldSummary {
    /// Merges two summaries as `$min`, `$max` and `$inc` do.
    pub fn merge(self, other: FieldSummary) -> FieldSummary {
        FieldSummary {
            min: if other.min.order(self.min).is_lt() {
                other.min
            } else {
                self.min
            },
            max: if other.max.order(self.max).is_gt() {
                other.max
            } else {
                self.max
            },
            sum: self.sum.plus(other.sum),
            count: self.count + other.count,
        }
    }
}

/// The summary by field name, for comparison and output.
pub fn by_name(
    fields: &[Arc<str>],
    summary: &Summary,
) -> std::collections::BTreeMap<String, FieldSummary> {
    summary
        .iter()
        .map(|(i, s)| (fields[*i as usize].to_string(), *s))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RowFlags, ValueRef};

    fn of(values: &[ValueRef<'_>]) -> FieldSummary {
        let mut rows = Rows::default();
        for (ts_ms, value) in (0..).zip(values) {
            rows.push_named(ts_ms, RowFlags::default(), &[("t", *value)]);
        }
        by_name(rows.fields(), &summarise(&rows))["t"]
    }

    #[test]
    fn an_integer_sum_beyond_64_bits_becomes_a_double_in_any_order_of_addition() {
        let large = ValueRef::Int(SUM_INT_MAX as i64);
        assert!(matches!(of(&[large]).sum, Number::Int(_)));
        assert!(
            matches!(of(&[large, large]).sum, Number::Double(_)),
            "of one statement"
        );
        // Merges statements that fit individually, like a recomputation of its parts. 2^63 exceeds
        // the range by one.
        let mut sum = of(&[large]);
        let mut statements = 1u64;
        while matches!(sum.sum, Number::Int(_)) {
            sum = sum.merge(of(&[large]));
            statements += 1;
        }
        assert_eq!(
            (statements, sum.sum),
            (1 << 14, Number::Double((1u64 << 63) as f64))
        );
    }

    #[test]
    fn an_overflowing_sum_leaves_the_rest_of_the_summary_correct() {
        let [a, b] = [1e308, -1e308].map(ValueRef::Double);
        let up = of(&[a, a]);
        assert_eq!(
            (up.sum.as_f64(), up.max, up.count),
            (f64::INFINITY, Number::Double(1e308), 2)
        );
        let none = up.merge(of(&[b, b]));
        assert!(none.sum.as_f64().is_nan());
        assert_eq!(
            (none.min, none.max, none.count),
            (Number::Double(-1e308), Number::Double(1e308), 4)
        );
    }
}
