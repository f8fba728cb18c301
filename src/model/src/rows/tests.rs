//! Tests of rows: what goes in comes out, from the front, and memory is proportional.

use super::*;
use crate::Value;

fn reading(ts_ms: i64, values: &[(&str, Value)]) -> Reading {
    let values = values
        .iter()
        .map(|(n, v)| (n.to_string(), v.clone()))
        .collect();
    Reading {
        sensor_id: "s".into(),
        ts_ms,
        receipt_time: false,
        tags: Default::default(),
        values,
    }
}

#[test]
fn rows_come_back_as_they_went_in() {
    let a = reading(5, &[("t", Value::Double(1.5)), ("on", Value::Bool(true))]);
    let b = reading(
        -3,
        &[
            ("n", Value::Int(i64::MIN)),
            ("s", Value::Str("ü".into())),
            ("t", Value::Double(-0.0)),
        ],
    );
    let mut rows = Rows::default();
    rows.push_reading(&a);
    rows.push_reading(&b);
    rows.push_reading(&a);
    let keys: Vec<_> = rows.iter().map(|r| r.key()).collect();
    assert_eq!(keys, [a.key(), b.key(), a.key()]);
    assert_eq!(
        (rows.first_ts_ms(), rows.last_ts_ms(), rows.len()),
        (-3, 5, 3)
    );
    let fields: Vec<&str> = rows.fields().iter().map(|f| &**f).collect();
    assert_eq!(
        fields,
        ["on", "t", "n", "s"],
        "each once, in the order of first use"
    );
    for row in rows.iter() {
        assert!(
            row.named().eq(row
                .values()
                .map(|(field, value)| (fields[field as usize], value)))
        );
    }
    let before = rows.clone();
    rows.mark(RowFlags::LOST);
    assert!(
        rows.iter().all(|r| r.flags.any(RowFlags::LOST))
            && !before.iter().any(|r| r.flags.suspect())
    );
    assert_eq!(rows.retain(|r| r.ts_ms == 5), 1);
    assert_eq!(
        rows.iter().map(|r| r.key()).collect::<Vec<_>>(),
        [a.key(), a.key()]
    );
}

#[test]
fn takes_from_the_front_by_count_and_by_bytes() {
    let mut rows = Rows::default();
    (0..10).for_each(|ts| rows.push_reading(&reading(ts, &[("t", Value::Int(ts))])));
    let row_bytes = rows.stored_bytes() / 10 + ARRAY_KEY_BYTES_MAX;
    let front = rows.take_front(3, u64::MAX);
    assert_eq!((front.len(), front.last_ts_ms(), rows.len()), (3, 2, 7));
    assert_eq!(rows.iter().next().unwrap().ts_ms, 3);
    let front = rows.take_front(100, 2 * row_bytes);
    assert_eq!((front.len(), rows.len()), (2, 5));
    let front = rows.take_front(100, 1);
    assert_eq!(
        (front.len(), rows.len()),
        (1, 4),
        "a single row is always taken"
    );
    assert_eq!(rows.stored_bytes(), 4 * (row_bytes - ARRAY_KEY_BYTES_MAX));
    rows.push_reading(&reading(3, &[("u", Value::Int(1))]));
    let last = rows.take_front(100, u64::MAX);
    assert_eq!(
        (last.len(), last.first_ts_ms(), last.last_ts_ms()),
        (5, 3, 9),
        "the taken rows have exact times"
    );
    assert_eq!(
        last.iter().map(|r| r.ts_ms).collect::<Vec<_>>(),
        [6, 7, 8, 9, 3]
    );
    assert!(rows.is_empty() && rows.iter().next().is_none());
}

#[test]
fn memory_of_names_that_never_repeat_is_proportional_and_freed() {
    const ROWS: usize = 250_000;
    let mut rows = Rows::default();
    for i in 0..ROWS {
        let name = format!("n{i}");
        rows.push_named(
            i as i64,
            RowFlags::default(),
            &[("t", ValueRef::Int(1)), (&name, ValueRef::Int(i as i64))],
        );
        // A shard queries this for every reading.
        assert!(rows.memory_bytes() > i);
    }
    assert_eq!(rows.fields().len(), ROWS + 1);
    let mut taken = 0;
    while !rows.is_empty() {
        let front = rows.take_front(1000, u64::MAX);
        assert_eq!(front.fields().len(), 1001, "only those of its rows");
        assert!(
            rows.schemas.len() <= 2 * rows.len() + 1000 + SCHEMAS_KEPT,
            "{} left",
            rows.len()
        );
        for (i, row) in front.iter().enumerate() {
            assert_eq!(
                row.named().nth(1),
                Some((
                    &*format!("n{}", taken + i),
                    ValueRef::Int((taken + i) as i64)
                ))
            );
        }
        taken += front.len();
    }
    assert_eq!(taken, ROWS);
}

#[test]
fn the_first_time_is_known_for_any_span() {
    for times in [
        &[5, -3, 8][..],
        &[0, i64::from(LONG) - 1],
        &[0, i64::from(LONG), 7],
        &[i64::MAX, i64::MIN, 0],
        &[i64::MIN, i64::MAX],
    ] {
        let mut rows = Rows::default();
        for (i, ts_ms) in times.iter().enumerate() {
            rows.push_reading(&reading(*ts_ms, &[("t", Value::Int(1))]));
            let before = &times[..=i];
            assert_eq!(
                Some(rows.first_ts_ms()),
                before.iter().copied().min(),
                "{before:?}"
            );
            assert_eq!(
                Some(rows.last_ts_ms()),
                before.iter().copied().max(),
                "{before:?}"
            );
        }
    }
}

#[test]
fn rows_without_a_reading_are_small() {
    assert_eq!(
        size_of::<Rows>(),
        80,
        "each sensor with pending readings has one"
    );
}

#[test]
fn packed_rows_are_equal_to_others_and_smaller() {
    let values = [
        ("t", Value::Double(21.37)),
        ("n", Value::Int(-5)),
        ("on", Value::Bool(true)),
        ("id", Value::Int(i64::MIN)),
        ("s", Value::Str("ü".into())),
    ];
    let expected = reading(7, &values);
    let mut rows = Rows::default();
    let count = 2 * PACKED_ROWS as usize;
    (0..count).for_each(|_| rows.push_reading(&expected));
    rows.mark(RowFlags::LOST);
    let mut copy = Rows::default();
    copy.append(&rows);
    for rows in [&rows, &copy] {
        let is_packed: Vec<bool> = rows.iter().map(|row| row.is_packed).collect();
        assert!(
            is_packed
                .iter()
                .enumerate()
                .all(|(i, is)| *is == (i < count / 2))
        );
        let row_bytes = rows.iter().next().unwrap().stored_bytes();
        assert_eq!(rows.stored_bytes(), row_bytes * count as u64);
        for row in rows.iter() {
            assert_eq!(row.stored_bytes(), row_bytes);
            assert_eq!(row.key(), expected.key());
            assert_eq!(row.flags, RowFlags::LOST);
        }
    }
    let front = rows.take_front(count / 2, u64::MAX);
    let bytes = |rows: &Rows| rows.data.iter().map(<[u8]>::len).sum::<usize>();
    assert!(
        bytes(&front) + 13 * count / 2 == bytes(&rows),
        "{} {}",
        bytes(&front),
        bytes(&rows)
    );
    assert_eq!(front.stored_bytes(), rows.stored_bytes());
}
