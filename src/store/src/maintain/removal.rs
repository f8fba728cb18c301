//! What `hourbucket remove` takes from the readings of a bucket. Pure.

use std::collections::HashSet;
use std::sync::Arc;

use model::rows::Row;
use model::{ReadingKey, RowFlags, Rows};

use super::ReadingCounts;
use super::condition::Condition;

/// Which readings, or which of their values, are removed.
#[derive(Debug, Clone)]
pub struct Removal {
    /// Readings at or after this, in milliseconds since 1970.
    pub from_ms: i64,
    /// Readings before this, in milliseconds since 1970.
    pub to_ms: i64,
    /// Only the value of this field; a reading without another value goes too.
    pub field: Option<String>,
    /// Only readings for which this holds.
    pub condition: Condition,
    /// Which of them.
    pub keys: Keys,
}

/// Selects readings by what they are.
#[derive(Debug, Clone, Default)]
pub enum Keys {
    /// All.
    #[default]
    All,
    /// Only these.
    Only(Arc<HashSet<ReadingKey>>),
    /// All but these.
    Except(Arc<HashSet<ReadingKey>>),
}

impl Keys {
    fn select(&self, row: &Row<'_>) -> bool {
        match self {
            Keys::All => true,
            Keys::Only(keys) => keys.contains(&row.key()),
            Keys::Except(keys) => !keys.contains(&row.key()),
        }
    }
}

/// What a removal leaves.
#[derive(Debug, Default)]
pub(crate) struct Left {
    /// The readings that stay, in their order.
    pub rows: Rows,
    /// Number of readings that go.
    pub readings: u64,
    /// Number of readings that stay without a value that they had.
    pub values: u64,
}

impl Left {
    /// Whether anything goes.
    pub(crate) fn is_changed(&self) -> bool {
        self.readings + self.values > 0
    }
}

impl Removal {
    /// Whether it takes every reading of this time range (ms since 1970), whatever its values.
    pub(crate) fn covers(&self, from_ms: i64, to_ms: i64) -> bool {
        let is_whole =
            self.field.is_none() && self.condition.is_empty() && matches!(self.keys, Keys::All);
        is_whole && self.from_ms <= from_ms && to_ms <= self.to_ms
    }

    /// Whether it may take a reading between these times (ms since 1970, inclusive).
    pub(crate) fn may_match(&self, first_ms: i64, last_ms: i64) -> bool {
        first_ms < self.to_ms && last_ms >= self.from_ms
    }

    /// What is left of the pages of a bucket.
    ///
    /// Without a value two readings may be equal, and equal readings are one: the later of them goes.
    pub(crate) fn apply<'r>(&self, pages: impl IntoIterator<Item = &'r Rows> + Clone) -> Vec<Left> {
        let mut seen: HashSet<ReadingKey> = HashSet::new();
        if self.field.is_some() {
            let rows = pages.clone().into_iter().flat_map(Rows::iter);
            seen.extend(rows.filter(|row| !self.takes(row)).map(|row| row.key()));
        }
        let pages = pages.into_iter();
        pages.map(|rows| self.apply_to(rows, &mut seen)).collect()
    }

    /// Whether something of this reading goes.
    pub(crate) fn takes(&self, row: &Row<'_>) -> bool {
        let has_field = |field: &String| row.named().any(|(name, _)| name == field);
        (self.from_ms..self.to_ms).contains(&row.ts_ms)
            && self.field.as_ref().is_none_or(has_field)
            && self.condition.holds(row)
            && self.keys.select(row)
    }

    fn apply_to(&self, rows: &Rows, seen: &mut HashSet<ReadingKey>) -> Left {
        let mut left = Left::default();
        for row in rows.iter() {
            if !self.takes(&row) {
                left.rows.push_row(&row);
                continue;
            }
            let is_other = |name: &str| self.field.as_ref().is_some_and(|field| *field != name);
            let values: Vec<_> = row.named().filter(|(name, _)| is_other(name)).collect();
            if values.is_empty() || !seen.insert(ReadingKey::new(row.ts_ms, values.iter().copied()))
            {
                left.readings += 1;
                continue;
            }
            left.rows
                .push_named(row.ts_ms, RowFlags::default(), &values);
            left.values += 1;
        }
        left
    }
}

/// The readings of which a bucket with these pages has none, or fewer.
pub(crate) fn missing<'r>(pages: impl IntoIterator<Item = &'r Rows>, readings: &Rows) -> Rows {
    let mut held = ReadingCounts::from_rows(pages);
    let mut missing = readings.clone();
    missing.retain(|row| !held.take(&row.key()));
    missing
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::ValueRef;

    fn rows(of: &[(i64, &[(&str, i64)])]) -> Rows {
        let mut rows = Rows::default();
        for (ts_ms, values) in of {
            let values: Vec<_> = values
                .iter()
                .map(|(name, value)| (*name, ValueRef::Int(*value)))
                .collect();
            rows.push_named(*ts_ms, RowFlags::default(), &values);
        }
        rows
    }

    fn removal(field: Option<&str>, condition: &str) -> Removal {
        Removal {
            from_ms: 10,
            to_ms: 20,
            field: field.map(str::to_owned),
            condition: match condition {
                "" => Condition::default(),
                text => text.parse().unwrap(),
            },
            keys: Keys::All,
        }
    }

    #[test]
    fn readings_within_the_range_go_if_the_condition_holds() {
        let all = rows(&[
            (9, &[("a", 1)]),
            (10, &[("a", 1)]),
            (15, &[("a", 2), ("b", 1)]),
            (20, &[("a", 1)]),
        ]);
        let left = removal(None, "").apply([&all]).remove(0);
        assert_eq!((left.readings, left.values), (2, 0));
        assert_eq!(
            left.rows.iter().map(|row| row.ts_ms).collect::<Vec<_>>(),
            [9, 20]
        );
        let left = removal(None, "a > 1").apply([&all]).remove(0);
        assert_eq!((left.readings, left.rows.len()), (1, 3));
        assert!(removal(None, "").covers(10, 20) && !removal(None, "").covers(9, 20));
        assert!(!removal(Some("a"), "").covers(10, 20) && !removal(None, "a > 1").covers(10, 20));
    }

    #[test]
    fn a_reading_stays_without_the_value_unless_it_was_the_last_or_equals_another() {
        let first = rows(&[
            (10, &[("a", 1)]),
            (11, &[("a", 1), ("b", 1)]),
            (12, &[("a", 1), ("b", 1)]),
            (12, &[("a", 2), ("b", 1)]),
            (25, &[("a", 1), ("b", 1)]),
        ]);
        // Equal to one of the first page when that has lost its value.
        let second = rows(&[(11, &[("b", 1)]), (12, &[("b", 2)])]);
        let left = removal(Some("a"), "").apply([&first, &second]);
        assert_eq!((left[0].readings, left[0].values), (3, 1));
        let kept: Vec<_> = left[0]
            .rows
            .iter()
            .map(|row| (row.ts_ms, row.named().count()))
            .collect();
        assert_eq!(kept, [(12, 1), (25, 2)]);
        assert!(!left[1].is_changed() && left[1].rows.len() == 2);
    }

    #[test]
    fn readings_are_selected_by_what_they_are() {
        let all = rows(&[
            (10, &[("a", 1)]),
            (11, &[("a", 1)]),
            (15, &[("a", 2)]),
            (20, &[("a", 1)]),
        ]);
        let keys: HashSet<ReadingKey> = all.iter().take(2).map(|row| row.key()).collect();
        let keys = Arc::new(keys);
        for (keys, left) in [
            (Keys::Only(keys.clone()), vec![15, 20]),
            (Keys::Except(keys), vec![10, 11, 20]),
        ] {
            let removal = Removal {
                keys,
                ..removal(None, "")
            };
            assert!(!removal.covers(10, 20));
            let found = removal.apply([&all]).remove(0).rows;
            assert_eq!(found.iter().map(|row| row.ts_ms).collect::<Vec<_>>(), left);
        }
    }

    #[test]
    fn of_equal_readings_as_many_stay_as_one_side_has() {
        let one: (i64, &[(&str, i64)]) = (10, &[("a", 1)]);
        let held = [rows(&[one, (11, &[("a", 1)])]), rows(&[one])];
        let given = rows(&[one, one, one, (12, &[("a", 1)])]);
        let left = missing(&held, &given);
        let times: Vec<i64> = left.iter().map(|row| row.ts_ms).collect();
        assert_eq!(times, [10, 12]);
        // Given once more after a kill, nothing is added.
        let mut all = held.to_vec();
        all.push(left);
        assert!(missing(&all, &given).is_empty());
    }
}
