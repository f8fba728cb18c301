//! Readings to parts and back.

use std::collections::BTreeMap;

use model::{ReadingKey, ValueRef};

use super::*;

fn named(rows: &Rows) -> Vec<(i64, BTreeMap<String, Value>)> {
    let values = |row: model::rows::Row<'_>| {
        row.named()
            .map(|(n, v)| (n.to_owned(), v.to_value()))
            .collect()
    };
    rows.iter().map(|row| (row.ts_ms, values(row))).collect()
}

fn keys(rows: &Rows) -> Vec<ReadingKey> {
    rows.iter().map(|row| row.key()).collect()
}

proptest! {
    #[test]
    fn what_is_decoded_is_what_was_encoded(
        readings in readings(60),
        shuffled in any::<prop::sample::Index>(),
    ) {
        let stored = rows(&readings);
        let encoded = parts(&stored);
        let back = decoded(&encoded);
        prop_assert!(same_readings(&back, &stored), "{readings:?}");
        prop_assert!(keys(&back).is_sorted());

        // The same bytes, in whatever order and buckets they come.
        let mut other = readings.clone();
        other.rotate_left(shuffled.index(readings.len()));
        prop_assert_eq!(&parts(&rows(&other)), &encoded);
        other.sort_by_key(|reading| reading.ts_ms);
        let mut encoder = DayEncoder::default();
        for bucket in other.chunk_by(|a, b| a.ts_ms == b.ts_ms) {
            prop_assert!(encoder.add(&rows(bucket)).is_empty());
        }
        let last = encoder.finish();
        prop_assert_eq!(last.as_slice(), &encoded);

        // One that differs is noticed.
        let mut less = readings.clone();
        let (_, value) = &mut less[shuffled.index(readings.len())].values[0];
        *value = match value {
            Value::Double(v) => Value::Double(-*v),
            Value::Int(v) => Value::Double(*v as f64),
            Value::Bool(v) => Value::Int(i64::from(*v)),
            Value::Str(v) => Value::Str(format!("{v} ")),
        };
        prop_assert!(!same_readings(&back, &rows(&less)));
        prop_assert!(!same_readings(&back, &rows(&readings[1..])));
    }

    #[test]
    fn a_range_of_some_fields_is_that_of_all(
        readings in readings(60),
        from in -60_000i64..1_600_000,
        length in 0i64..500_000,
        wanted in prop::sample::subsequence(FIELDS.to_vec(), 0..=FIELDS.len()),
    ) {
        let encoded = parts(&rows(&readings));
        let to = from + length;
        let some = encoded[0].decode_range(from, to, |name| wanted.contains(&name)).unwrap();
        let mut expected = named(&decoded(&encoded));
        expected.retain(|(ts_ms, _)| (from..to).contains(ts_ms));
        prop_assert!(some.times().iter().eq(expected.iter().map(|(ts_ms, _)| ts_ms)));
        for name in FIELDS {
            let values = some.values(name).map(|(ts_ms, value)| (ts_ms, value.to_value()));
            let with = expected.iter().filter(|_| wanted.contains(&name));
            let naive = with.filter_map(|(ts_ms, all)| Some((*ts_ms, all.get(name)?.clone())));
            prop_assert_eq!(values.collect::<Vec<_>>(), naive.collect::<Vec<_>>());
        }
        expected.iter_mut().for_each(|(_, all)| all.retain(|name, _| wanted.contains(&&**name)));
        expected.retain(|(_, all)| !all.is_empty());
        prop_assert_eq!(named(&some.rows()), expected);
    }

    #[test]
    fn damaged_bytes_are_an_error_or_other_values(
        readings in readings(300),
        places in prop::collection::vec((any::<prop::sample::Index>(), 0u8..8), 1..4),
        which in any::<prop::sample::Index>(),
        cut in any::<bool>(),
    ) {
        let mut part = parts(&rows(&readings)).remove(0);
        let mut all: Vec<&mut Vec<u8>> = vec![&mut part.ts];
        for entry in part.columns.values_mut().flatten() {
            all.push(&mut entry.data);
            all.extend(entry.present.as_mut());
        }
        let which = which.index(all.len());
        let bytes = &mut all[which];
        for (at, bit) in places {
            let at = at.index(bytes.len());
            if cut && at > 0 {
                bytes.truncate(at);
            } else {
                bytes[at] ^= 1 << bit;
            }
        }
        if let Ok(decoded) = part.decode() {
            prop_assert!(decoded.rows().len() <= part.count as usize);
        }
        let _ = part.decode_range(0, 300_000, |name| name != "temp");
    }
}

#[test]
fn a_field_of_several_kinds_has_an_entry_for_each() {
    let values = [
        ValueRef::Double(21.5),
        ValueRef::Int(21),
        ValueRef::Double(21.25),
        ValueRef::Double(-0.0),
        ValueRef::Str("unavailable"),
        ValueRef::Double(22.0),
        ValueRef::Bool(true),
        ValueRef::Int((1 << 53) + 1),
        ValueRef::Double(20.0),
        ValueRef::Double(19.75),
    ];
    let mut rows = Rows::default();
    for (ts_ms, value) in (0..).zip(values) {
        rows.push_named(ts_ms, RowFlags::default(), &[("t", value)]);
    }
    let parts = parts(&rows);
    let kinds: Vec<_> = parts[0].columns["t"]
        .iter()
        .map(|entry| (entry.kind.clone(), entry.present.clone().expect("not all")))
        .collect();
    let text = EntryKind::Text(vec!["unavailable".to_owned()]);
    assert_eq!(
        kinds,
        [
            (EntryKind::Double(None), vec![0b0010_1101, 0b11]),
            (EntryKind::Int, vec![0b1000_0010, 0]),
            (EntryKind::Bool, vec![0b0100_0000, 0]),
            (text, vec![0b0001_0000, 0]),
        ]
    );
    assert!(same_readings(&decoded(&parts), &rows));
}

#[test]
fn integers_among_doubles_share_their_column() {
    let values = [
        ValueRef::Double(20.5),
        ValueRef::Int(20),
        ValueRef::Double(20.0),
        ValueRef::Bool(true),
        ValueRef::Int(-(1 << 53)),
    ];
    let mut rows = Rows::default();
    for (ts_ms, value) in (0..).zip(values) {
        rows.push_named(ts_ms, RowFlags::default(), &[("t", value)]);
    }
    let parts = parts(&rows);
    let entries = &parts[0].columns["t"];
    assert_eq!(entries[0].kind, EntryKind::Double(Some(vec![0b1010])));
    assert_eq!(entries[0].present, Some(vec![0b1_0111]));
    assert_eq!(entries[1].kind, EntryKind::Bool);
    assert!(same_readings(&decoded(&parts), &rows));
    let mut broken = parts[0].clone();
    let t = broken.columns.get_mut("t").unwrap();
    t[0].kind = EntryKind::Double(Some(vec![0b0001]));
    assert!(broken.decode().unwrap_err().to_string().contains("`ints`"));
}

#[test]
fn a_part_that_contradicts_itself_is_refused() {
    let mut rows = Rows::default();
    for ts_ms in 0..9 {
        let state = if ts_ms < 5 { "on" } else { "off" };
        let number = if ts_ms < 7 {
            ValueRef::Int(ts_ms)
        } else {
            ValueRef::Str("x")
        };
        rows.push_named(
            ts_ms,
            RowFlags::default(),
            &[
                ("door", ValueRef::Bool(true)),
                ("n", number),
                ("state", ValueRef::Str(state)),
            ],
        );
    }
    let part = parts(&rows).remove(0);
    let broken = |breaks: fn(&mut Part)| {
        let mut part = part.clone();
        breaks(&mut part);
        part.decode()
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default()
    };
    fn entry<'p>(part: &'p mut Part, field: &str) -> &'p mut Entry {
        &mut part.columns.get_mut(field).unwrap()[0]
    }
    assert_eq!(broken(|_| {}), "");
    assert_eq!(
        broken(|part| part.count += 1),
        "`ts`: the data have 9 values; expected 10"
    );
    assert_eq!(
        broken(|part| part.count = u32::MAX),
        "`ts`: more than 4294967295 values"
    );
    assert!(broken(|part| part.last_ts_ms += 1).contains("the times are not in order"));
    assert!(
        broken(|part| part.ts = numbers::encode_ints(&[0, 2, 1, 3, 4, 5, 6, 7, 8]))
            .contains("order")
    );
    for present in [
        None,
        Some(vec![0xFF]),
        Some(vec![0x7F, 2]),
        Some(vec![0xFF, 0]),
        Some(vec![0, 0]),
    ] {
        let mut part = part.clone();
        entry(&mut part, "n").present = present.clone();
        let error = part.decode().expect_err("it does not fit").to_string();
        assert!(error.contains("`n`: "), "{present:?}: {error}");
    }
    assert!(
        broken(|part| entry(part, "state").kind = EntryKind::Text(vec!["on".into()]))
            .contains("index")
    );
    assert!(broken(|part| entry(part, "n").kind = EntryKind::Bool).contains("neither 0 nor 1"));
    assert!(broken(|part| entry(part, "door").kind = EntryKind::Double(None)).contains("`door`: "));
}
