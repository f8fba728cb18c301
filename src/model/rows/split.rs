//! The rows of one statement, taken off the front: bounded by count, by the bytes of the readings, and by those of their
//! summary.
//!
//! Rows with the same names over and over need no look at their summary: all names together are few. Only where the names
//! of all rows would not fit are the rows counted one by one.

use super::Rows;
use crate::model::summary::entry_bytes;

/// What a statement may hold.
#[derive(Debug, Clone, Copy)]
pub struct StatementLimits {
    /// Rows.
    pub rows: usize,
    /// Bytes of the rows as a BSON array.
    pub bytes: u64,
    /// Bytes of their summary in a page.
    pub summary_bytes: u64,
}

impl Rows {
    /// Takes the first rows off, as many as there is room for (the first one always goes). Also says whether the summary is
    /// what ended it: the next row's fields have no room any more.
    pub fn take_room(&mut self, room: StatementLimits) -> (Rows, bool) {
        let Some(within) = self.within_summary(room.summary_bytes) else {
            return (self.take_front(room.rows, room.bytes), false);
        };
        let taken = self.take_front(room.rows.min(within), room.bytes);
        // What is left keeps all names, and these rows need few of them: a statement must not cost by all of them.
        let mut rows = Rows::default();
        taken.iter().for_each(|row| rows.push_row(&row));
        let is_cut = rows.len() == within;
        (rows, is_cut)
    }

    /// How many of the first rows have a summary of at most so many bytes, and at least one; `None` where all have.
    fn within_summary(&self, bytes_max: u64) -> Option<usize> {
        let fields = self.fields();
        if fields.iter().map(|name| entry_bytes(name)).sum::<u64>() <= bytes_max {
            return None;
        }
        let (mut known, mut bytes) = (vec![false; fields.len()], 0);
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
    use crate::model::summary::{stored_bytes, summarise};
    use crate::model::{RowFlags, ValueRef};

    fn rows(names: &[&[&str]]) -> Rows {
        let mut rows = Rows::default();
        for (ts_ms, names) in names.iter().enumerate() {
            let values: Vec<_> = names.iter().map(|name| (*name, ValueRef::Int(1))).collect();
            rows.push_named(ts_ms as i64, RowFlags::default(), &values);
        }
        rows
    }

    const ANY: StatementLimits = StatementLimits { rows: usize::MAX, bytes: u64::MAX, summary_bytes: u64::MAX };

    #[test]
    fn rows_go_while_the_summary_of_their_fields_has_room() {
        let all: [&[&str]; 6] = [&["a"], &["b", "a"], &["a", "b"], &["c"], &["d"], &["a"]];
        let two = StatementLimits { summary_bytes: 2 * entry_bytes("a"), ..ANY };
        let mut rest = rows(&all);
        let (front, is_cut) = rest.take_room(two);
        assert_eq!((front.len(), is_cut), (3, true), "a and b");
        assert_eq!(stored_bytes(front.fields(), &summarise(&front)), two.summary_bytes);
        let (front, is_cut) = rest.take_room(StatementLimits { rows: 1, ..two });
        assert_eq!((front.len(), is_cut), (1, false), "the count has ended it");
        let (front, is_cut) = rest.take_room(two);
        assert_eq!((front.len(), is_cut, rest.len()), (2, false, 0), "d and a");
        let (front, is_cut) = rows(&all).take_room(ANY);
        assert_eq!((front.len(), is_cut), (6, false));
    }

    #[test]
    fn a_row_with_more_fields_than_there_is_room_for_goes_alone() {
        let mut rest = rows(&[&["a", "b", "c"], &["a"], &["d"]]);
        let small = StatementLimits { summary_bytes: 1, ..ANY };
        let lengths: Vec<_> = (0..3).map(|_| rest.take_room(small)).map(|(rows, cut)| (rows.len(), cut)).collect();
        assert_eq!(lengths, [(1, true), (1, true), (1, false)]);
        assert!(rest.is_empty());
    }

    #[test]
    fn text_and_booleans_take_no_room() {
        let mut rows = Rows::default();
        for i in 0..100 {
            let name = format!("text{i}");
            rows.push_named(i, RowFlags::default(), &[(&name, ValueRef::Str("x")), ("on", ValueRef::Bool(true))]);
        }
        assert_eq!(rows.take_room(StatementLimits { summary_bytes: 100, ..ANY }).0.len(), 100);
    }
}
