//! The limits of a part, and what columns take.

use model::ValueRef;

use super::*;

/// What a part takes in a document, at most: keys of BSON of 8 bytes, names, texts with their keys.
fn document_bytes(part: &Part) -> usize {
    let text = |text: &String| text.len() + 16;
    let entry = |name: &str, entry: &Entry| {
        let dictionary = match &entry.kind {
            EntryKind::Text(dictionary) => dictionary.iter().map(text).sum(),
            _ => 0,
        };
        let present = entry.present.as_ref().map_or(0, Vec::len);
        name.len() + entry.data.len() + present + dictionary + 100
    };
    let columns = part.columns.iter();
    part.ts.len()
        + columns
            .flat_map(|(n, e)| e.iter().map(move |e| entry(n, e)))
            .sum::<usize>()
}

fn assert_bounded(rows: &Rows, more_than: usize) {
    let parts = parts(rows);
    assert!(parts.len() > more_than, "{} parts", parts.len());
    for part in &parts {
        assert!(part.count as usize <= READINGS_MAX);
        let bytes = document_bytes(part);
        assert!(bytes <= BYTES_MAX, "{bytes} bytes");
    }
    assert!(same_readings(&decoded(&parts), rows));
}

#[test]
fn a_part_ends_before_it_is_too_large() {
    let mut random = fastrand::Rng::with_seed(3);
    let mut rows = Rows::default();
    for ts_ms in 0..READINGS_MAX as i64 + 5 {
        rows.push_named(
            ts_ms,
            RowFlags::default(),
            &[("n", ValueRef::Int(random.i64(..)))],
        );
    }
    assert_bounded(&rows, 1);
    // Names that never repeat: each has bits for all readings.
    let mut rows = Rows::default();
    for ts_ms in 0..9_000 {
        let name = format!("n{ts_ms}");
        rows.push_named(ts_ms, RowFlags::default(), &[(&name, ValueRef::Int(ts_ms))]);
    }
    assert_bounded(&rows, 1);
    // Texts that never repeat, and a reading that is larger than a part.
    let mut rows = Rows::default();
    let mut text = "x".repeat(1 << 20);
    for ts_ms in 0..10 {
        text.push('x');
        rows.push_named(ts_ms, RowFlags::default(), &[("t", ValueRef::Str(&text))]);
    }
    assert_bounded(&rows, 1);
    let text = "x".repeat(BYTES_MAX + 1);
    rows.push_named(11, RowFlags::default(), &[("t", ValueRef::Str(&text))]);
    assert_eq!(parts(&rows).last().map(|part| part.count), Some(1));
}

/// Bytes of a value. The exact bytes: another version of pco that gives others would make the
/// documents of two instances differ.
#[test]
fn a_day_takes_about_a_byte_a_value() {
    let mut random = fastrand::Rng::with_seed(9);
    let mut energy = 123_456_789;
    let mut temp = 2137;
    let mut rows = Rows::default();
    for minute in 0..1440 {
        energy += random.i64(0..=3);
        temp += random.i64(-3..=3);
        let values = [
            ("temp", ValueRef::Double(temp as f64 / 100.0)),
            ("energy", ValueRef::Double(energy as f64 / 1000.0)),
            (
                "status",
                ValueRef::Str(["ok", "ok", "on"][minute as usize / 480]),
            ),
            ("door", ValueRef::Bool(minute / 60 % 2 == 0)),
        ];
        rows.push_named(minute * 60_000, RowFlags::default(), &values);
    }
    let part = parts(&rows).remove(0);
    let bytes = |name: &str| part.columns[name][0].data.len();
    assert_eq!(
        [
            bytes("temp"),
            bytes("energy"),
            bytes("status"),
            bytes("door"),
            part.ts.len()
        ],
        [704, 548, 36, 61, 29]
    );
}
