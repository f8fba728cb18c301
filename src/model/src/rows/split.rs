//! Splits off the rows of one statement, limited by their number, their size, and the size of their
//! summary.
//!
//! If the summary of all fields fits, as it does when names repeat, no row needs to be examined.
//! Otherwise the fields are counted row by row.

use super::Rows;
use crate::summary::entry_bytes;

/// Limits of one statement.
#[derive(Debug, Clone, Copy)]
pub struct StatementLimits {
    /// Number of rows.
    pub rows: usize,
    /// Size of the rows as a BSON array, in bytes.
    pub bytes: u64,
    /// Size of their summary in a page, in bytes.
    pub summary_bytes: u64,
}

impl Rows {
    /// Removes and returns the first rows that fit, but at least one. Also returns whether the
    /// summary was the limit, so that the fields of the next row do not fit.
    pub fn take_room(&mut self, room: StatementLimits) -> (Rows, bool) {
        let Some(within) = self.within_summary(room.summary_bytes) else {
            return (self.take_front(room.rows, room.bytes), false);
        };
        let taken = self.take_front(room.rows.min(within), room.bytes);
        // Copies the rows, so that the statement has only their names and its cost does not depend
        // on all names.
        let mut rows = Rows::default();
        taken.iter().for_each(|row| rows.push_row(&row));
        let is_cut = rows.len() == within;
        (rows, is_cut)
    }

    /// The number of first rows whose summary has at most `bytes_max` bytes, but at least one;
    /// `None` if all fit.
    fn within_summary(&self, bytes_max: u64) -> Option<usize> {
        let fields = self.fields();
        if fields.iter().map(|name| entry_bytes(name)).sum::<u64>() <= bytes_max {
            return None;
        }
        let mut known = vec![false; fields.len()];
        let mut bytes = 0;
        for (n, row) in self.iter().enumerate() {
            for (field, _) in row.values().filter(|(_, value)| value.is_number()) {
                if !std::mem::replace(&mut known[field as usize], true) {
                    bytes += entry_bytes(&fields[field as usize]);
                }
            }
            if bytes > bytes_max && n > 0 {
                return Some(n);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::{stored_bytes, summarise};
    use crate::{RowFlags, ValueRef};

    fn rows(names: &[&[&str]]) -> Rows {
        let mut rows = Rows::default();
        for (ts_ms, names) in names.iter().enumerate() {
            let values: Vec<_> = names.iter().map(|name| (*name, ValueRef::Int(1))).collect();
            rows.push_named(ts_ms as i64, RowFlags::default(), &values);
        }
        rows
    }

    const ANY: StatementLimits = StatementLimits {
        rows: usize::MAX,
        bytes: u64::MAX,
        summary_bytes: u64::MAX,
    };

    #[test]
    fn rows_are_taken_while_the_summary_of_their_fields_fits() {
        let all: [&[&str]; 6] = [&["a"], &["b", "a"], &["a", "b"], &["c"], &["d"], &["a"]];
        let two = StatementLimits {
            summary_bytes: 2 * entry_bytes("a"),
            ..ANY
        };
        let mut rest = rows(&all);
        let (front, is_cut) = rest.take_room(two);
        assert_eq!((front.len(), is_cut), (3, true), "a and b");
        assert_eq!(
            stored_bytes(front.fields(), &summarise(&front)),
            two.summary_bytes
        );
        let (front, is_cut) = rest.take_room(StatementLimits { rows: 1, ..two });
        assert_eq!(
            (front.len(), is_cut),
            (1, false),
            "the row count was the limit"
        );
        let (front, is_cut) = rest.take_room(two);
        assert_eq!((front.len(), is_cut, rest.len()), (2, false, 0), "d and a");
        let (front, is_cut) = rows(&all).take_room(ANY);
        assert_eq!((front.len(), is_cut), (6, false));
    }

    #[test]
    fn a_row_with_too_many_fields_for_the_page_is_taken_alone() {
        let mut rest = rows(&[&["a", "b", "c"], &["a"], &["d"]]);
        let small = StatementLimits {
            summary_bytes: 1,
            ..ANY
        };
        let lengths: Vec<_> = (0..3)
            .map(|_| rest.take_room(small))
            .map(|(rows, cut)| (rows.len(), cut))
            .collect();
        assert_eq!(lengths, [(1, true), (1, true), (1, false)]);
        assert!(rest.is_empty());
    }

    #[test]
    fn text_and_booleans_take_no_room() {
        let mut rows = Rows::default();
        for i in 0..100 {
            let name = format!("text{i}");
            rows.push_named(
                i,
                RowFlags::default(),
                &[(&name, ValueRef::Str("x")), ("on", ValueRef::Bool(true))],
            );
        }
        assert_eq!(
            rows.take_room(StatementLimits {
                summary_bytes: 100,
                ..ANY
            })
            .0
            .len(),
            100
        );
    }
}
