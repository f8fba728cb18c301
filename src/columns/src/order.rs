//! The order of readings in columns, and what is compared with it.
//!
//! Readings are ordered by time, within a millisecond by the hash of their values ([`ReadingKey`], as
//! in the read API), and equal ones by their kinds and bits. So the order depends on the readings
//! alone, and not on how they arrived.

use std::cmp::Ordering;

use model::rows::Row;
use model::{ReadingKey, RowFlags, Rows, ValueRef};

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

/// Merges late readings into the stored readings of a day, part by part.
///
/// A late reading is left out if an equal one is stored, or came before it. One with its receipt time
/// is another reading even if it is equal, unless it may be stored already
/// ([`RowFlags::suspect`]): then it is matched with one stored reading, and that one with no other.
#[derive(Debug)]
pub struct LateMerge<'l> {
    late: std::iter::Peekable<std::vec::IntoIter<Row<'l>>>,
    /// The key of the last late reading that was decided, or that stored readings were equal to.
    key: Option<ReadingKey>,
    /// Stored readings with this key that no late reading was matched with.
    unmatched: usize,
    /// Whether a reading with this key and its own time is stored.
    is_known: bool,
    added: usize,
}

impl<'l> LateMerge<'l> {
    /// The late readings of a day, in any order.
    pub fn new(late: &'l Rows) -> LateMerge<'l> {
        LateMerge {
            late: sorted(late).into_iter().peekable(),
            key: None,
            unmatched: 0,
            is_known: false,
            added: 0,
        }
    }

    /// Merges the next part: its readings, with the late ones before its last reading, in the order of
    /// columns.
    pub fn part(&mut self, stored: &Rows) -> Rows {
        let mut merged = Rows::default();
        for row in sorted(stored) {
            // The key of a row is needed only where a late reading has its time.
            while let Some(late) = self.late.peek().filter(|late| late.ts_ms <= row.ts_ms) {
                let key = late.key();
                match key.cmp(&row.key()) {
                    Ordering::Less => self.decide(&mut merged),
                    Ordering::Equal => {
                        self.turn_to(key);
                        self.unmatched += 1;
                        self.is_known = true;
                        break;
                    }
                    Ordering::Greater => break,
                }
            }
            merged.push_row(&row);
        }
        merged
    }

    /// The late readings behind the last part, and how many late readings were added in all.
    pub fn rest(mut self) -> (Rows, usize) {
        let mut rest = Rows::default();
        while self.late.peek().is_some() {
            self.decide(&mut rest);
        }
        (rest, self.added)
    }

    fn turn_to(&mut self, key: ReadingKey) {
        if self.key != Some(key) {
            self.key = Some(key);
            self.unmatched = 0;
            self.is_known = false;
        }
    }

    /// Adds or leaves out the next late reading. All stored readings up to it have been seen.
    fn decide(&mut self, merged: &mut Rows) {
        let Some(late) = self.late.next() else {
            return;
        };
        self.turn_to(late.key());
        let is_duplicate = if !late.flags.any(RowFlags::RECEIPT_TIME) {
            std::mem::replace(&mut self.is_known, true)
        } else if late.flags.suspect() && self.unmatched > 0 {
            self.unmatched -= 1;
            true
        } else {
            false
        };
        if !is_duplicate {
            merged.push_row(&late);
            self.added += 1;
        }
    }
}
