//! What is written of a group is read back, and an interrupted export continues behind its place.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use columns::DayEncoder;
use model::{RowFlags, Rows, ValueRef};
use store::export::ExportPart;

use super::group::{COLUMNS_MAX, Column, Group, Kind, Needs, Progress};
use super::parquet_file::{ParquetFile, names};
use super::text_file::TextFile;

type Values<'v> = &'v [(&'v str, ValueRef<'v>)];

fn part(sensor: &str, tags: &[(&str, &str)], readings: &[(i64, Values<'_>)]) -> ExportPart {
    let mut rows = Rows::default();
    for (ts_ms, values) in readings {
        rows.push_named(*ts_ms, RowFlags::default(), values);
    }
    let mut encoder = DayEncoder::default();
    assert!(encoder.add(&rows).is_empty());
    let tags = tags.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
    ExportPart {
        sensor_id: sensor.into(),
        tags: Arc::new(tags.collect::<BTreeMap<_, _>>()),
        part: encoder.finish().unwrap(),
    }
}

fn group(needs: Needs, parts: Vec<ExportPart>) -> Group {
    let mut group = Group::new(needs);
    for part in parts {
        group.add(part, i64::MIN..i64::MAX);
    }
    group
}

/// Kinds that change, a tag with the name of a field, and texts that CSV could mistake.
fn parts() -> Vec<ExportPart> {
    let first: Values<'_> = &[
        ("temp", ValueRef::Double(20.0)),
        ("door", ValueRef::Bool(true)),
    ];
    let second: Values<'_> = &[
        ("temp", ValueRef::Int(20)),
        ("state", ValueRef::Str("")),
        ("a|b", ValueRef::Double(-0.0)),
    ];
    let third: Values<'_> = &[
        ("temp", ValueRef::Str("20, \"x\"\n")),
        ("state", ValueRef::Str("\\")),
        ("big", ValueRef::Int(i64::MAX)),
    ];
    vec![
        part("S1", &[], &[(-1, first), (1_709_287_200_250, second)]),
        part("S2", &[("temp", "t"), ("site", "a,b")], &[(5, third)]),
    ]
}

fn written(group: &Group, format: super::Format) -> Vec<u8> {
    let readings = group.decode(&mut Progress::default()).unwrap();
    let columns = &group.columns;
    match format {
        super::Format::Parquet => {
            let mut file = ParquetFile::new(vec![], columns).unwrap();
            file.write(&readings).unwrap();
            file.write(&readings).unwrap();
            file.finish().unwrap()
        }
        super::Format::Csv => {
            let mut file = TextFile::csv(vec![], columns).unwrap();
            file.write(&readings).unwrap();
            file.finish()
        }
        super::Format::Ndjson => {
            let mut file = TextFile::ndjson(vec![]);
            file.write(&readings).unwrap();
            assert!(file.bytes() > 0);
            file.finish()
        }
    }
}

#[test]
fn ndjson_has_the_native_format() {
    let group = group(Needs::Nothing, parts());
    let text = String::from_utf8(written(&group, super::Format::Ndjson)).unwrap();
    let lines = [
        r#"{"sensor_id":"S1","ts":"1969-12-31T23:59:59.999Z","values":{"door":true,"temp":20.0}}"#,
        r#"{"sensor_id":"S1","ts":"2024-03-01T10:00:00.250Z","values":{"a|b":-0.0,"state":"","temp":20}}"#,
        r#"{"sensor_id":"S2","ts":"1970-01-01T00:00:00.005Z","values":{"big":9223372036854775807,"state":"\\","temp":"20, \"x\"\n"},"tags":{"site":"a,b","temp":"t"}}"#,
    ];
    assert_eq!(text.lines().collect::<Vec<_>>(), lines);
    assert!(group.columns.is_empty());
}

#[test]
fn csv_says_in_its_header_what_cells_do_not() {
    let group = group(Needs::Texts, parts());
    let text = String::from_utf8(written(&group, super::Format::Csv)).unwrap();
    let expected = "\
sensor_id,ts,site|tag,temp|tag,a|b|value,big,door,temp,state|string,temp|string
S1,1969-12-31T23:59:59.999Z,,,,,true,20.0,,
S1,2024-03-01T10:00:00.250Z,,,-0.0,,,20,\\,
S2,1970-01-01T00:00:00.005Z,\"a,b\",t,,9223372036854775807,,,\\\\,\"20, \"\"x\"\"\n\"
";
    assert_eq!(text, expected);
}

#[test]
fn parquet_is_read_back_with_all_kinds_from_any_row_on() {
    let group = group(Needs::Kinds, parts());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.parquet");
    std::fs::write(&path, written(&group, super::Format::Parquet)).unwrap();
    let all = crate::cli::import::parquet_lines(&path, 0);
    let once = [
        r#"{"sensor_id":"S1","ts":-1,"ts_unit":"ms","values":{"door":true,"temp":20.0}}"#,
        r#"{"sensor_id":"S1","ts":1709287200250,"ts_unit":"ms","values":{"a|b":-0.0,"state":"","temp":20}}"#,
        r#"{"sensor_id":"S2","ts":5,"ts_unit":"ms","values":{"big":9223372036854775807,"state":"\\","temp":"20, \"x\"\n"},"tags":{"site":"a,b","temp":"t"}}"#,
    ];
    assert_eq!(all.lines().collect::<Vec<_>>(), [once, once].concat());
    for skipped in 0..=6 {
        let rest = crate::cli::import::parquet_lines(&path, skipped as u64);
        let lines: Vec<&str> = all.lines().skip(skipped).collect();
        assert_eq!(rest.lines().collect::<Vec<_>>(), lines, "after {skipped}");
    }
}

#[test]
fn names_of_columns_differ_also_without_their_case() {
    let of = |kind: Kind, name: &str| -> Column { (kind, name.into()) };
    let columns: BTreeSet<Column> = [
        of(Kind::Number, "temp"),
        of(Kind::Int, "temp"),
        of(Kind::Text, "temp"),
        of(Kind::Bool, "temp"),
        of(Kind::Tag, "temp"),
        of(Kind::Number, "Temp"),
        of(Kind::Number, "temp_int"),
        of(Kind::Text, "sensor_id"),
        of(Kind::Bool, "door"),
        of(Kind::Tag, "site"),
    ]
    .into();
    let columns: Vec<Column> = columns.into_iter().collect();
    let named = names(&columns);
    let mut found: Vec<(Kind, &str, &str)> = columns
        .iter()
        .zip(&named)
        .map(|((kind, name), column)| (*kind, &**name, &**column))
        .collect();
    found.sort_unstable();
    assert_eq!(
        found,
        [
            (Kind::Tag, "site", "site"),
            (Kind::Tag, "temp", "temp_tag"),
            (Kind::Number, "Temp", "Temp"),
            (Kind::Number, "temp", "temp_"),
            (Kind::Number, "temp_int", "temp_int"),
            (Kind::Int, "temp", "temp_int_"),
            (Kind::Text, "sensor_id", "sensor_id_"),
            (Kind::Text, "temp", "temp_text"),
            (Kind::Bool, "door", "door"),
            (Kind::Bool, "temp", "temp_bool"),
        ]
    );
}

#[test]
fn an_export_continues_behind_any_reading() {
    let values = |n: i64| [("n", ValueRef::Int(n))];
    // Several readings of one millisecond, in one part and in two.
    let times = [[1, 1, 2, 3, 3], [3, 3, 3, 4, 5]];
    let all: Vec<[(&str, ValueRef<'_>); 1]> = (0..10).map(values).collect();
    let rows = |which: usize| -> Vec<(i64, Values<'_>)> {
        let row = |at: usize| (times[which][at], &all[which * 5 + at][..]);
        (0..5).map(row).collect()
    };
    let parts = || vec![part("S1", &[], &rows(0)), part("S1", &[], &rows(1))];
    let exported = |progress: &mut Progress, parts: Vec<ExportPart>| -> usize {
        let group = group(Needs::Nothing, parts);
        let readings = group.decode(progress).unwrap();
        readings.iter().map(|r| r.decoded.times().len()).sum()
    };
    let mut whole = Progress::default();
    assert_eq!(exported(&mut whole, parts()), 10);
    for n in 1..=10 {
        let times = times.concat();
        let given = times[..n]
            .iter()
            .rev()
            .take_while(|ts| **ts == times[n - 1]);
        let place = super::group::Place {
            sensor_id: "S1".to_owned(),
            ts_ms: times[n - 1],
            given: given.count(),
        };
        let mut rest = Progress::new(Some(place.clone()));
        assert_eq!(exported(&mut rest, parts()), 10 - n, "{place:?}");
        assert_eq!(rest.place, whole.place);
        if n == 5 {
            let mut half = Progress::default();
            let mut first = parts();
            first.truncate(1);
            assert_eq!(exported(&mut half, first), 5);
            assert_eq!(half.place, Some(place));
        }
    }
    let mut other = Progress::new(whole.place);
    assert_eq!(exported(&mut other, vec![part("S2", &[], &rows(0))]), 5);
}

#[test]
fn a_group_has_a_limit_of_columns_and_of_readings() {
    let wide = |sensor: &str| {
        let names: Vec<String> = (0..COLUMNS_MAX / 2)
            .map(|n| format!("{sensor}{n}"))
            .collect();
        let values: Vec<_> = names.iter().map(|n| (&**n, ValueRef::Int(1))).collect();
        // A reading has at most 255 values.
        let readings: Vec<_> = values.chunks(200).map(|some| (1, some)).collect();
        part(sensor, &[], &readings)
    };
    let mut group = group(Needs::Kinds, vec![]);
    assert!(!group.is_too_wide(&wide("a")), "alone it has a file");
    group.add(wide("a"), i64::MIN..i64::MAX);
    assert!(group.is_too_wide(&wide("b")) && !group.is_too_wide(&wide("a")));
    assert!(!group.is_full());
}
