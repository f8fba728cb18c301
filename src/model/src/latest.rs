//! Reduces a sensor's readings to its latest state in `sensor_latest`: the newest value of each
//! field, and the newest readings.
//!
//! All choices use one total order, that of MongoDB over the stored form: by time, then by values.
//! So merging is commutative, associative and idempotent, and gives the same result here, in the
//! memory store, and in an update on the server. Values that MongoDB considers equal (1 and 1.0,
//! 0.0 and -0.0) are equal in this order too. If two readings differ only in this, it is undefined
//! which one is in `recent`.

use std::cmp::Ordering;

use super::ids::SensorId;
use super::rows::Rows;
use super::value::ValueRef;

/// Readings of one sensor to merge into its document.
#[derive(Debug, Clone)]
pub struct LatestUpdate {
    /// The sensor of the document.
    pub sensor_id: SensorId,
    /// At least one reading, in any order. Surplus and equal readings are harmless.
    pub rows: Rows,
    /// Number of readings that the document keeps; may be 0.
    pub recent_max: usize,
}

/// Approximate size of an update with these rows on the wire: each row as a reading, the newest
/// value of each field (at most all values once more) with its operator and the name twice, the id,
/// and the fixed parts.
pub fn wire_bytes(sensor_id: &str, rows: &Rows) -> u64 {
    let names: usize = rows.fields().iter().map(|name| name.len() * 3 + 130).sum();
    let keys = rows.len() as u64 * super::rows::ARRAY_KEY_BYTES_MAX;
    rows.stored_bytes() * 2 + keys + (names + sensor_id.len() + 1024) as u64
}

/// The newest value of a field.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NewestValue<'a> {
    /// The field name.
    pub name: &'a str,
    /// Time of the measurement, in milliseconds since 1970.
    pub ts_ms: i64,
    /// The value at that time.
    pub value: ValueRef<'a>,
}

/// A reading as stored in `recent`.
#[derive(Debug, Clone, PartialEq)]
pub struct RecentReading<'a> {
    /// Milliseconds since 1970.
    pub ts_ms: i64,
    /// The values, sorted by name: the stored form must not depend on the order of fields in a
    /// message.
    pub values: Vec<(&'a str, ValueRef<'a>)>,
}

impl RecentReading<'_> {
    /// Orders by time, then by values.
    pub fn order(&self, other: &RecentReading<'_>) -> Ordering {
        self.ts_ms.cmp(&other.ts_ms).then_with(|| {
            for ((a_name, a), (b_name, b)) in self.values.iter().zip(&other.values) {
                // As MongoDB compares documents: element by element, by kind, name and value.
                let by = kind(*a)
                    .cmp(&kind(*b))
                    .then_with(|| a_name.cmp(b_name))
                    .then_with(|| order_values(*a, *b));
                if by != Ordering::Equal {
                    return by;
                }
            }
            self.values.len().cmp(&other.values.len())
        })
    }
}

/// Result of [`newest`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Newest<'a> {
    /// Time of the newest reading, in milliseconds since 1970.
    pub last_ts_ms: i64,
    /// One value per field, sorted by name.
    pub values: Vec<NewestValue<'a>>,
    /// The newest readings without duplicates, newest last.
    pub recent: Vec<RecentReading<'a>>,
}

/// MongoDB's order of values: numbers (integers and doubles by value), then strings, then booleans.
pub fn order_values(a: ValueRef<'_>, b: ValueRef<'_>) -> Ordering {
    if let (Some(a), Some(b)) = (a.num(), b.num()) {
        return a.order(b);
    }
    match (a, b) {
        (ValueRef::Str(a), ValueRef::Str(b)) => a.cmp(b),
        (ValueRef::Bool(a), ValueRef::Bool(b)) => a.cmp(&b),
        (a, b) => kind(a).cmp(&kind(b)),
    }
}

fn kind(value: ValueRef<'_>) -> u8 {
    match value {
        ValueRef::Int(_) | ValueRef::Double(_) => 0,
        ValueRef::Str(_) => 1,
        ValueRef::Bool(_) => 2,
    }
}

/// Reduces rows to the newest values and the newest `recent_max` readings.
pub fn newest(rows: &Rows, recent_max: usize) -> Newest<'_> {
    let (readings, recent) = pick_recent(rows, recent_max);
    let mut values: Vec<NewestValue<'_>> = pick_values(rows)
        .into_iter()
        .flatten()
        .map(|(value, _)| value)
        .collect();
    values.sort_unstable_by(|a, b| a.name.cmp(b.name));
    let last_ts_ms = readings.iter().map(|r| r.ts_ms).max().unwrap_or(i64::MIN);
    let mut readings: Vec<Option<RecentReading<'_>>> = readings.into_iter().map(Some).collect();
    let recent = recent
        .into_iter()
        .filter_map(|i| readings[i].take())
        .collect();
    Newest {
        last_ts_ms,
        values,
        recent,
    }
}

/// Drops rows that cannot affect [`newest`], even after merging with other rows. Keeps the newest
/// readings, the row with the newest value of each field, and possibly some more: at most 1.5 times
/// `recent_max`, plus one per field.
pub fn prune(rows: &Rows, recent_max: usize) -> Rows {
    let times: Vec<i64> = rows.iter().map(|row| row.ts_ms).collect();
    let mut latest = times.clone();
    latest.sort_unstable_by(|a, b| b.cmp(a));
    latest.dedup();
    let from = match recent_max {
        0 => i64::MAX,
        n => latest.get(n - 1).copied().unwrap_or(i64::MIN),
    };
    let mut keep: Vec<bool> = times.iter().map(|ts| *ts >= from).collect();
    // Comparing only times is much cheaper than comparing values, but keeps too many rows if many
    // share a time.
    if keep.iter().filter(|keep| **keep).count() > recent_max * 3 / 2 {
        keep.fill(false);
        pick_recent(rows, recent_max)
            .1
            .into_iter()
            .for_each(|i| keep[i] = true);
    }
    pick_values(rows)
        .into_iter()
        .flatten()
        .for_each(|(_, i)| keep[i] = true);
    let mut kept = Rows::default();
    rows.iter()
        .zip(keep)
        .filter(|(_, keep)| *keep)
        .for_each(|(row, _)| kept.push_row(&row));
    kept
}

/// All rows as readings, and the indexes of the newest ones, newest last.
fn pick_recent(rows: &Rows, recent_max: usize) -> (Vec<RecentReading<'_>>, Vec<usize>) {
    let readings: Vec<RecentReading<'_>> = rows
        .iter()
        .map(|row| {
            let mut values: Vec<_> = row.named().collect();
            values.sort_unstable_by(|a, b| a.0.cmp(b.0));
            RecentReading {
                ts_ms: row.ts_ms,
                values,
            }
        })
        .collect();
    let mut order: Vec<usize> = (0..readings.len()).collect();
    order.sort_by(|a, b| readings[*a].order(&readings[*b]));
    order.dedup_by(|a, b| readings[*a].order(&readings[*b]) == Ordering::Equal);
    order.drain(..order.len().saturating_sub(recent_max));
    (readings, order)
}

/// For each field: its newest value, and the index of its row.
fn pick_values(rows: &Rows) -> Vec<Option<(NewestValue<'_>, usize)>> {
    let mut best: Vec<Option<(NewestValue<'_>, usize)>> = vec![None; rows.fields().len()];
    for (i, row) in rows.iter().enumerate() {
        for (field, value) in row.values() {
            let slot = &mut best[field as usize];
            let newer = slot.as_ref().is_none_or(|(held, _)| {
                row.ts_ms
                    .cmp(&held.ts_ms)
                    .then_with(|| order_values(value, held.value))
                    == Ordering::Greater
            });
            if newer {
                let name = &*rows.fields()[field as usize];
                *slot = Some((
                    NewestValue {
                        name,
                        ts_ms: row.ts_ms,
                        value,
                    },
                    i,
                ));
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Reading, Value};

    fn rows(readings: &[(i64, &[(&str, Value)])]) -> Rows {
        let mut rows = Rows::default();
        for (ts_ms, values) in readings {
            let values = values
                .iter()
                .map(|(n, v)| (n.to_string(), v.clone()))
                .collect();
            let tags = Default::default();
            rows.push_reading(&Reading {
                sensor_id: "s".into(),
                ts_ms: *ts_ms,
                receipt_time: false,
                tags,
                values,
            });
        }
        rows
    }

    #[test]
    fn each_field_keeps_its_own_newest_value_and_readings_are_kept_once() {
        let one = Value::Int(1);
        let two = Value::Double(2.0);
        let all = rows(&[
            (30, &[("t", two.clone())]),
            (10, &[("on", Value::Bool(true)), ("t", one.clone())]),
            (30, &[("t", two.clone())]),
            (20, &[("t", one.clone())]),
        ]);
        let found = newest(&all, 2);
        assert_eq!(found.last_ts_ms, 30);
        let values: Vec<_> = found.values.iter().map(|v| (v.name, v.ts_ms)).collect();
        assert_eq!(values, [("on", 10), ("t", 30)]);
        assert_eq!(
            found.recent.iter().map(|r| r.ts_ms).collect::<Vec<_>>(),
            [20, 30]
        );
        let pruned = prune(&all, 2);
        assert_eq!(
            pruned.len(),
            4,
            "two recent ones, one of them twice, and the only one with `on`"
        );
        assert_eq!(newest(&pruned, 2), found);
        let same_time: Vec<_> = (0..40).map(|n| [("t", Value::Int(n))]).collect();
        let same_time: Vec<(i64, &[(&str, Value)])> =
            same_time.iter().map(|v| (5, &v[..])).collect();
        let same_time = rows(&same_time);
        assert_eq!(
            prune(&same_time, 3).len(),
            3,
            "rows of equal time are ordered by values"
        );
        assert_eq!(newest(&prune(&same_time, 3), 3), newest(&same_time, 3));
        assert_eq!(prune(&same_time, 0).len(), 1);
        assert!(newest(&all, 0).recent.is_empty());
    }

    #[test]
    fn values_are_ordered_exactly_and_by_kind() {
        let big = 1i64 << 53;
        let ascending = [
            ValueRef::Double(-1e300),
            ValueRef::Int(i64::MIN),
            ValueRef::Double(-0.5),
            ValueRef::Int(0),
            ValueRef::Double(0.5),
            ValueRef::Double(big as f64),
            ValueRef::Int(big + 1),
            ValueRef::Int(i64::MAX),
            ValueRef::Double(9_223_372_036_854_775_808.0),
            ValueRef::Str(""),
            ValueRef::Str("a"),
            ValueRef::Bool(false),
            ValueRef::Bool(true),
        ];
        for (i, a) in ascending.iter().enumerate() {
            for (j, b) in ascending.iter().enumerate() {
                assert_eq!(order_values(*a, *b), i.cmp(&j), "{a:?} and {b:?}");
            }
        }
        assert_eq!(
            order_values(ValueRef::Int(1), ValueRef::Double(1.0)),
            Ordering::Equal
        );
    }
}
