//! Running summaries: what `$min`, `$max` and `$inc` carry for one field of one page.

use std::sync::Arc;

use super::rows::Rows;
use super::value::Num;

/// Largest integer sum one statement may carry as an integer. A page takes at most `bucket.max_readings` (≤ 10,000 <
/// 2^14) statements, so a page's integer sum stays below 2^49 · 2^14 = 2^63 and `$inc` never overflows (the server
/// refuses an overflowing `$inc`). Larger sums are carried as doubles.
const SUM_INT_MAX: i128 = 1 << 49;

/// The numbers of one field: `avg = sum / count`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FieldSummary {
    /// The smallest value.
    pub min: Num,
    /// The largest value.
    pub max: Num,
    /// Sum of the values; an integer where all of them are and it is not huge.
    pub sum: Num,
    /// How many values.
    pub count: u32,
}

/// The summaries of a run of readings: index into [`Rows::fields`] and its numbers, only for fields with numbers.
pub type Summary = Vec<(u32, FieldSummary)>;

/// One field's summary while it is being added up.
#[derive(Clone, Copy)]
struct Running {
    min: Num,
    max: Num,
    int_sum: i128,
    double_sum: f64,
    doubles: bool,
    count: u32,
}

impl Running {
    fn first(v: Num) -> Running {
        let mut running = Running { min: v, max: v, int_sum: 0, double_sum: 0.0, doubles: false, count: 0 };
        running.add(v);
        running
    }

    fn add(&mut self, v: Num) {
        if v.order(self.min).is_lt() {
            self.min = v;
        }
        if v.order(self.max).is_gt() {
            self.max = v;
        }
        match v {
            Num::Int(v) => self.int_sum += i128::from(v),
            Num::Double(v) => {
                self.double_sum += v;
                self.doubles = true;
            }
        }
        self.count += 1;
    }

    fn finish(self) -> FieldSummary {
        let as_int = !self.doubles && self.int_sum.abs() <= SUM_INT_MAX;
        let sum =
            if as_int { Num::Int(self.int_sum as i64) } else { Num::Double(self.double_sum + self.int_sum as f64) };
        FieldSummary { min: self.min, max: self.max, sum, count: self.count }
    }
}

/// Bytes of a field's entry in a stored summary beside its name: type, NUL and length (6), `min`, `max` and `sum` (type,
/// name, NUL, 8 bytes: 13 each), `count` (type, name, NUL, 4 bytes: 11), terminator (1).
const ENTRY_BYTES: u64 = 6 + 3 * 13 + 11 + 1;

/// Bytes that a page's summary may take. With names of 128 bytes that is 5,667 fields of 185 bytes, with names of one byte
/// 18,078 of 58. A page is this, its readings (`bucket.max_bytes` ≤ 8 MiB), and one reading more than fits (255 fields of
/// 185 bytes, 47 KB): far from the server's 16 MiB. In a command a field takes at most 4 times its name and 100 bytes,
/// 3.4 MiB for all of a page, so a command of 12 MiB that ends with such a statement stays below 16 MiB.
pub const PAGE_SUMMARY_BYTES_MAX: u64 = 1 << 20;

/// Bytes that a field of this name takes in a stored summary.
pub fn entry_bytes(name: &str) -> u64 {
    ENTRY_BYTES + name.len() as u64
}

/// Bytes that these summaries take in a page.
pub fn stored_bytes(fields: &[Arc<str>], summary: &Summary) -> u64 {
    summary.iter().map(|(i, _)| entry_bytes(&fields[*i as usize])).sum()
}

/// Summarises rows in one pass.
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
    /// Both together, as `$min`, `$max` and `$inc` would leave it.
    pub fn merge(self, other: FieldSummary) -> FieldSummary {
        FieldSummary {
            min: if other.min.order(self.min).is_lt() { other.min } else { self.min },
            max: if other.max.order(self.max).is_gt() { other.max } else { self.max },
            sum: self.sum.plus(other.sum),
            count: self.count + other.count,
        }
    }
}

/// The summary by field name, for comparing and printing.
pub fn by_name(fields: &[Arc<str>], summary: &Summary) -> std::collections::BTreeMap<String, FieldSummary> {
    summary.iter().map(|(i, s)| (fields[*i as usize].to_string(), *s)).collect()
}
