//! CSV files from the field, and the readings of their rows.

use std::io::Write;

use clap::Parser;
use serde_json::json;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    csv: CsvArgs,
}

fn args(line: &[&str]) -> CsvArgs {
    Line::try_parse_from([&["import"], line].concat())
        .unwrap()
        .csv
}

fn file(text: &[u8]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text).unwrap();
    file
}

/// The readings, and line and reason of each reject.
fn rows(text: &[u8], line: &[&str]) -> (Vec<Value>, Vec<(u64, &'static str)>) {
    let file = file(text);
    let read = |input: &Input| {
        let mut rows = open(input, (0, 0), &args(line), false).unwrap();
        let mut out = vec![];
        let mut rejects = vec![];
        while let Some(record) = rows.next(&mut out).unwrap() {
            rejects.extend(record.reject.map(|reject| (record.line, reject.reason)));
        }
        (out, rejects)
    };
    let (out, rejects) = read(&Input::new(file.path()).unwrap());
    let piped = Input::standard(std::io::Cursor::new(text.to_vec())).unwrap();
    assert_eq!(
        read(&piped),
        (out.clone(), rejects.clone()),
        "the same from standard input"
    );
    let text = String::from_utf8(out).unwrap();
    (
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect(),
        rejects,
    )
}

#[test]
fn a_usual_file_needs_no_option() {
    let text = b"\xef\xbb\xbfsensor_id,time,temp,on,note,\r\n\
        S1,2020-03-01T10:00:00Z,22.5,true,\"a, \"\"b\"\"\",\r\n\r\nS1,1583056860,NaN,,7,\r\n";
    let (readings, rejects) = rows(text, &[]);
    assert_eq!(
        readings,
        [
            json!({"sensor_id": "S1", "ts": "2020-03-01T10:00:00Z", "values": {"temp": 22.5, "on": true, "note": "a, \"b\""}}),
            json!({"sensor_id": "S1", "ts": "1583056860", "values": {"note": 7}}),
        ]
    );
    assert!(rejects.is_empty(), "{rejects:?}");
}

#[test]
fn annotations_of_an_export_tell_tags_and_texts() {
    let text = b"sensor_id,ts,site|tag,n,state|string,a|b|value\n\
        S1,1583056860,north,7,7,1\nS1,1583056861,,,\\,\nS1,1583056862,,, x ,\nS1,1583056863,,,\\\\n,\n";
    let (readings, rejects) = rows(text, &[]);
    let of = |second: u64, values: Value| json!({"sensor_id": "S1", "ts": (1_583_056_860 + second).to_string(), "values": values});
    let mut first = of(0, json!({"n": 7, "state": "7", "a|b": 1}));
    first["tags"] = json!({"site": "north"});
    let expected = [
        first,
        of(1, json!({"state": ""})),
        of(2, json!({"state": " x "})),
        of(3, json!({"state": "\\n"})),
    ];
    assert_eq!((readings, rejects), (expected.to_vec(), vec![]));
    // Named columns are as they are named.
    let (readings, _) = rows(text, &["--value", "n", "--tag", "site|tag=place"]);
    assert_eq!(readings[0]["values"], json!({"n": 7}));
    assert_eq!(readings[0]["tags"], json!({"place": "north"}));
}

#[test]
fn a_byte_order_mark_at_the_begin_of_a_later_row_is_cut() {
    let text = b"sensor_id,time,temp\nS1,1583056860,1\n\xef\xbb\xbfS1,1583056920,2\n";
    let (readings, rejects) = rows(text, &[]);
    assert_eq!(readings[1]["sensor_id"], "S1");
    assert_eq!((readings.len(), rejects), (2, vec![]));
}

#[test]
fn a_german_export_with_preamble_two_time_columns_and_tags() {
    let text = b"Export 2020\r\nG\xe4rtner\r\nMesser;Datum;Uhrzeit;Temp;Ort\r\n\
        S1;29.03.2020;03:30:00;-1.234,5;S\xfcd\r\nS1;25.10.2020;02:30:00;7;\r\n";
    let line = [
        "--delimiter",
        ";",
        "--skip-lines",
        "2",
        "--sensor",
        "Messer",
        "--time",
        "Datum",
        "--time",
        "Uhrzeit",
    ];
    let more = [
        "--time-format",
        "%d.%m.%Y %H:%M:%S",
        "--zone",
        "Europe/Berlin",
        "--decimal-comma",
        "--latin1",
    ];
    let names = ["--value", "Temp=temp", "--tag", "Ort=site"];
    let (readings, rejects) = rows(text, &[&line[..], &more, &names].concat());
    assert_eq!(
        readings,
        [
            // 03:30 summer time; 02:30 occurs twice, and the first counts.
            json!({"sensor_id": "S1", "ts": 1_585_445_400_000_i64, "ts_unit": "ms", "values": {"temp": -1234.5}, "tags": {"site": "Süd"}}),
            json!({"sensor_id": "S1", "ts": 1_603_585_800_000_i64, "ts_unit": "ms", "values": {"temp": 7}}),
        ]
    );
    assert!(rejects.is_empty());
}

#[test]
fn with_decimal_commas_points_separate_thousands() {
    let text = b"sensor_id;ts;v\nS;1;1.234\nS;2;-12.345.678\nS;3;1.234,5\nS;4;1.5\nS;5;0.123\nS;6;1234.567\nS;7;1,5e3\n";
    let (readings, _) = rows(text, &["--decimal-comma", "--delimiter", ";"]);
    let values: Vec<Value> = readings.iter().map(|r| r["values"]["v"].clone()).collect();
    let expected = json!([1234, -12_345_678, 1234.5, 1.5, 0.123, 1234.567, 1500.0]);
    assert_eq!(Value::from(values), expected);
}

#[test]
fn one_value_per_row_and_columns_by_number() {
    let text = b"S1\t2020-03-01 10:00:00\ttemp\t22\n";
    let line = [
        "--delimiter",
        "tab",
        "--no-header",
        "--sensor",
        "1",
        "--time",
        "2",
        "--zone",
        "UTC",
    ];
    let (readings, _) = rows(
        text,
        &[&line[..], &["--field", "3", "--value", "4"]].concat(),
    );
    let expected = json!({"sensor_id": "S1", "ts": 1_583_056_800_000_i64, "ts_unit": "ms", "values": {"temp": 22}});
    assert_eq!(readings, [expected]);
}

#[test]
fn a_bad_row_is_named_by_its_line_and_the_next_one_is_read() {
    let text = b"sensor_id,ts,temp,note\nS1,5\n\"S\n1\",6,1,\nS1,,1,\nS1,7,1,\xff\nS1,8,1,x\n";
    let (readings, rejects) = rows(text, &[]);
    assert_eq!(
        rejects,
        [
            (2, "wrong_columns"),
            (5, "missing_timestamp"),
            (6, "invalid_utf8")
        ]
    );
    assert_eq!(readings.len(), 2);
    let (readings, rejects) = rows(
        b"sensor_id,ts,temp\nS1,1.3.20,1\n",
        &["--time-format", "%d.%m.%Y", "--zone", "UTC"],
    );
    assert!(readings.len() + rejects.len() == 1);
}

#[test]
fn a_file_that_does_not_fit_the_mapping_is_refused_with_its_columns() {
    for (text, line, expected) in [
        (
            &b"sensor;ts;temp\nS1;1;2\n"[..],
            &[][..],
            "add --delimiter ';'",
        ),
        (
            b"meter,ts,temp\n",
            &[],
            "--sensor or --sensor-id; the header has: meter, ts, temp",
        ),
        (b"sensor_id,when,temp\n", &[], "name it with --time"),
        (
            b"sensor_id,ts,temp\n",
            &["--value", "humid"],
            "no column humid (--value)",
        ),
        (
            b"sensor_id,ts,temp\n",
            &["--delimiter", ";;"],
            "--delimiter",
        ),
        (
            b"sensor_id,ts,temp\n",
            &["--time-format", "%d.%m.%Y"],
            "needs --zone",
        ),
        (
            b"sensor_id,ts,h\xf6he,temp\n",
            &[],
            "column 3 (h\u{fffd}he) is not UTF-8; is the file in ISO 8859-1 (--latin1)?",
        ),
        (
            b"sensor_id,ts,temp,humid, temp ,\n",
            &[],
            "columns 3 and 5 have the same name, temp; rename one",
        ),
        (
            b"sensor_id,ts,\"temp\nS1,1,2\n",
            &[],
            "line 1: the file ends within quotes",
        ),
    ] {
        let error = open(
            &Input::new(file(text).path()).unwrap(),
            (0, 0),
            &args(line),
            false,
        )
        .err()
        .unwrap()
        .to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_quote_that_is_not_closed_ends_the_import_with_its_line_and_little_memory() {
    let mut text = b"sensor_id,ts,temp\nS1,1,2\nS1,2,\"3\n".to_vec();
    text.extend(std::iter::repeat_n(&b"S1,3,4\n"[..], 1 << 20).flatten());
    let file = file(&text);
    let mut rows = open(&Input::new(file.path()).unwrap(), (0, 0), &args(&[]), false).unwrap();
    let mut out = vec![];
    rows.next(&mut out).unwrap().unwrap();
    let error = rows.next(&mut out).unwrap_err().to_string();
    assert!(
        error.starts_with("line 3: ") && error.contains("quote"),
        "{error}"
    );
}

#[test]
fn a_quote_that_is_not_closed_in_a_small_file_is_refused_with_its_line() {
    let head = "Export\nsensor_id,ts,temp,note\nS1,1,2,\"a\n\"\"b\"\nS1,2,5\" pipe,\n";
    for rest in [
        "S1,3,\"170,x\nS1,4,5,\n",
        "S1,3,\"170,x\nS1,4,5,",
        "S1,3,4,\"\n",
        "S1,3,4,\"",
        "S1,3,4,\"x\"\"\n",
    ] {
        let file = file(format!("{head}{rest}").as_bytes());
        let input = Input::new(file.path()).unwrap();
        let args = args(&["--skip-lines", "1"]);
        let mut rows = open(&input, (0, 0), &args, false).unwrap();
        let mut out = vec![];
        let mut read = || rows.next(&mut out);
        assert_eq!(read().unwrap().unwrap().line, 3, "{rest:?}");
        assert_eq!(read().unwrap().unwrap().line, 5, "{rest:?}");
        let error = read().unwrap_err().to_string();
        assert!(
            error.starts_with("line 6: ") && error.contains("quote not closed"),
            "{rest:?}: {error}"
        );
    }
}

#[test]
fn a_later_run_continues_where_a_row_ended_with_the_same_lines() {
    let text = b"sensor_id,ts,temp\nS1,1,2\nS1,2,\"3\"\r\nS1,3,bad,4\nS1,4,5\n";
    let file = file(text);
    let mut all = open(&Input::new(file.path()).unwrap(), (0, 0), &args(&[]), false).unwrap();
    let mut out = vec![];
    let mut ends = vec![];
    while let Some(record) = all.next(&mut out).unwrap() {
        ends.push((record.line, record.end));
    }
    let mut rest = open(
        &Input::new(file.path()).unwrap(),
        ends[1].1,
        &args(&[]),
        false,
    )
    .unwrap();
    let mut again = vec![];
    let mut out = vec![];
    while let Some(record) = rest.next(&mut out).unwrap() {
        again.push((record.line, record.end));
    }
    assert_eq!(again, ends[2..]);
    assert_eq!(
        ends.iter().map(|(line, _)| *line).collect::<Vec<_>>(),
        [2, 3, 4, 5]
    );
}

#[test]
fn a_last_row_without_an_end_is_read_and_a_later_run_begins_before_it() {
    let rows = "sensor_id,ts,note\nS1,1,2\n\r\n";
    for last in ["S1,2,2", "S1,2,2\r", "S1,2", "S1,2,5\" pipe", "S1,2,\"3\""] {
        let file = file(format!("{rows}{last}").as_bytes());
        let read = |start| {
            let input = Input::new(file.path()).unwrap();
            let mut rows = open(&input, start, &args(&[]), false).unwrap();
            let mut out = vec![];
            let mut found = vec![];
            while let Some(record) = rows.next(&mut out).unwrap() {
                found.push((record.line, record.end));
            }
            found
        };
        let before = (rows.len() as u64, 3);
        assert_eq!(read((0, 0)), [(2, (25, 2)), (4, before)], "{last:?}");
        assert_eq!(read(before), [(4, before)], "{last:?}");
    }
}
