//! Bad input and its rejects, and good input next to it.

use std::time::{Duration, Instant};

use super::*;
use crate::config::{Limits, Line};
use crate::model::{Reading, ReadingBatch, Value};

/// 2024-03-01T11:00:00Z
pub(super) const NOW: i64 = 1_709_290_800_000;

pub(super) fn limits() -> Limits {
    crate::config::Config::default().limits
}

/// The default settings of line protocol.
pub(super) fn line() -> Line {
    crate::config::Config::default().line
}

/// A context without a topic, unit or tags.
pub(super) fn bare<'a>(limits: &'a Limits, line: &'a Line) -> Context<'a> {
    Context {
        limits,
        line,
        received_at_ms: NOW,
        ..Context::usual()
    }
}

fn run_with(format: Format, payload: &[u8], cx: &Context<'_>) -> (Vec<Reading>, Rejects) {
    let mut out = BatchBuilder::new(cx.limits.fields_max);
    // Readings of another message in the batch stay unchanged, and do not count.
    out.value("other", crate::model::ValueRef::Int(1)).unwrap();
    out.commit("other", 1, false, &[]).unwrap();
    let mut rejects = Rejects::new();
    decode(format, payload, cx, &mut out, &mut rejects);
    let batch: ReadingBatch = out.finish();
    let mut readings = batch.to_readings();
    assert_eq!(readings.remove(0).sensor_id, "other");
    for reject in rejects.list() {
        assert!(
            !reject.detail.is_empty() && reject.detail.len() < 500,
            "{reject:?}"
        );
    }
    assert_eq!(
        rejects.by_reason().iter().map(|(_, n)| n).sum::<usize>(),
        rejects.total()
    );
    (readings, rejects)
}

fn run(format: Format, payload: impl AsRef<[u8]>) -> (Vec<Reading>, Vec<(usize, RejectReason)>) {
    let limits = limits();
    let line = line();
    let cx = bare(&limits, &line);
    let (readings, rejects) = run_with(format, payload.as_ref(), &cx);
    (
        readings,
        rejects.list().iter().map(|r| (r.index, r.reason)).collect(),
    )
}

fn json(payload: impl AsRef<[u8]>) -> (Vec<Reading>, Vec<(usize, RejectReason)>) {
    run(Format::Json, payload)
}

fn only_reject(payload: impl AsRef<[u8]>) -> RejectReason {
    let text = String::from_utf8_lossy(payload.as_ref())
        .chars()
        .take(200)
        .collect::<String>();
    let (readings, rejects) = json(payload);
    assert_eq!(
        (readings.len(), rejects.len()),
        (0, 1),
        "{text}: {readings:?} {rejects:?}"
    );
    rejects[0].1
}

fn only_reading(payload: impl AsRef<[u8]>) -> Reading {
    let (mut readings, rejects) = json(payload);
    assert_eq!((readings.len(), &rejects[..]), (1, &[][..]));
    readings.remove(0)
}

fn values(body: &str) -> Vec<(String, Value)> {
    only_reading(format!(r#"{{"sensor_id":"S1","values":{body}}}"#))
        .values
        .into_iter()
        .collect()
}

fn ids(readings: &[Reading]) -> Vec<&str> {
    readings.iter().map(|r| r.sensor_id.as_str()).collect()
}

#[test]
fn the_native_shape() {
    let reading = only_reading(
        r#" {"values":{"temp":22.4,"humid":60,"on":true,"state":"o\"k","gone":null},"tags":{"site":"north","n":3,"f":1.0,"b":false,"x":null},
            "ts":"2024-03-01T11:00:00+01:00","sensor_id":"S1"} "#,
    );
    assert_eq!(
        (
            reading.sensor_id.as_str(),
            reading.ts_ms,
            reading.receipt_time
        ),
        ("S1", NOW - 3_600_000, false)
    );
    let tags: Vec<_> = reading
        .tags
        .iter()
        .map(|(k, v)| (k.as_str(), v.as_str()))
        .collect();
    assert_eq!(
        tags,
        [("b", "false"), ("f", "1.0"), ("n", "3"), ("site", "north")]
    );
    let expected = [
        ("humid", Value::Int(60)),
        ("on", Value::Bool(true)),
        ("state", Value::Str("o\"k".into())),
        ("temp", Value::Double(22.4)),
    ];
    assert_eq!(
        reading.values.into_iter().collect::<Vec<_>>(),
        expected.map(|(k, v)| (k.to_owned(), v))
    );
}

#[test]
fn without_values_the_other_scalars_are_the_values() {
    let reading = only_reading(
        r#"{"sensor_id":"S1","ts":1709290800,"temp":1,"deep":{"a":[1,{"b":2}]},"list":[1],"tags":{},"off":null,"n":"x"}"#,
    );
    assert_eq!(
        reading.values.keys().collect::<Vec<_>>(),
        ["deep_a_0", "deep_a_1_b", "list_0", "n", "temp"]
    );
    assert_eq!(reading.ts_ms, NOW);
    // Next to `values`, before it or after, other members are not values, and their faults do not
    // count.
    let long = "x".repeat(2000);
    let text = format!(
        r#"{{"temp":1,"text":"{long}","big":99999999999999999999,"sensor_id":"S1","values":{{"a":1}},"z":1e999}}"#
    );
    assert_eq!(only_reading(text).values.keys().collect::<Vec<_>>(), ["a"]);
    assert_eq!(
        only_reading(r#"{"sensor_id":"S1","values":null,"a":1}"#)
            .values
            .len(),
        1
    );
    assert_eq!(
        only_reading(r#"{"sensor_id":"S1","values":{"a":1},"tags":null,"ts":null}"#).ts_ms,
        NOW
    );
}

#[test]
fn numbers_keep_their_kind_and_their_value() {
    for (literal, value) in [
        ("0", Value::Int(0)),
        ("-0", Value::Int(0)),
        ("9007199254740993", Value::Int(9_007_199_254_740_993)),
        ("9223372036854775807", Value::Int(i64::MAX)),
        ("-9223372036854775808", Value::Int(i64::MIN)),
        ("22.0", Value::Double(22.0)),
        ("1e3", Value::Double(1000.0)),
        ("-0.0", Value::Double(-0.0)),
        ("1e20", Value::Double(1e20)),
        ("100000000000000000000.0", Value::Double(1e20)),
        ("1.7976931348623157e308", Value::Double(f64::MAX)),
        ("4.9e-324", Value::Double(5e-324)),
        ("123.456e-789", Value::Double(0.0)),
        ("0.1000000000000000055511151231257827", Value::Double(0.1)),
        (
            "2.2250738585072011e-308",
            Value::Double(2.225_073_858_507_201e-308),
        ),
    ] {
        let got = values(&format!(r#"{{"v":{literal}}}"#)).remove(0).1;
        assert_eq!(format!("{got:?}"), format!("{value:?}"), "{literal}");
    }
    for (literal, reason) in [
        ("9223372036854775808", RejectReason::IntegerOutOfRange),
        ("18446744073709551616", RejectReason::IntegerOutOfRange),
        ("-9223372036854775809", RejectReason::IntegerOutOfRange),
        (
            "123456789012345678901234567890",
            RejectReason::IntegerOutOfRange,
        ),
        ("1e999", RejectReason::NotFinite),
        ("-1e999", RejectReason::NotFinite),
        ("NaN", RejectReason::NotFinite),
        ("nan", RejectReason::NotFinite),
        ("Infinity", RejectReason::NotFinite),
        ("-Infinity", RejectReason::NotFinite),
        ("-inf", RejectReason::NotFinite),
        ("012", RejectReason::InvalidJson),
        ("+1", RejectReason::InvalidJson),
        (".5", RejectReason::InvalidJson),
        ("21,5", RejectReason::InvalidJson),
    ] {
        for wrapped in [
            format!(r#"{{"v":{literal}}}"#),
            format!(r#"{{"a":-0, "v" : {literal} }}"#),
        ] {
            assert_eq!(
                only_reject(format!(r#"{{"sensor_id":"S1","values":{wrapped}}}"#)),
                reason,
                "{wrapped}"
            );
        }
        // Next to good readings, it rejects only itself.
        let array = format!(
            r#"[{{"sensor_id":"a","v":1}},{{"sensor_id":"x","v":{literal}}},{{"sensor_id":"b","v":2}}]"#
        );
        let (readings, rejects) = json(array);
        assert_eq!(
            (ids(&readings), &rejects[..]),
            (vec!["a", "b"], &[(1, reason)][..]),
            "{literal}"
        );
    }
    // A tag is a text: a long serial number is stored unchanged.
    let reading = only_reading(
        r#"{"sensor_id":"S1","v":1,"tags":{"serial":123456789012345678901234567890}}"#,
    );
    assert_eq!(reading.tags["serial"], "123456789012345678901234567890");
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn bad_input_and_what_it_gets() {
    use RejectReason::*;
    let s = |n| "s".repeat(n);
    let nulls = |n: usize| {
        (0..n)
            .map(|i| format!(r#""f{i}":null"#))
            .collect::<Vec<_>>()
            .join(",")
    };
    let fields = |n: usize| {
        (0..n)
            .map(|i| format!(r#""f{i}":{i}"#))
            .collect::<Vec<_>>()
            .join(",")
    };
    let table: Vec<(String, RejectReason)> = vec![
        (String::new(), EmptyPayload),
        (" \n ".into(), EmptyPayload),
        ("\u{feff}".into(), EmptyPayload),
        ("{".into(), InvalidJson),
        (r#"{"a"#.into(), InvalidJson),
        (r#"{"sensor_id":"S1","v":1"#.into(), InvalidJson),
        (r#"{"sensor_id":"S1","v":1,}"#.into(), InvalidJson),
        (r#"{'sensor_id':'S1','v':1}"#.into(), InvalidJson),
        (r#"{"sensor_id":"S1","v":"\uDADA"}"#.into(), InvalidJson),
        ("<sensor id=\"t1\"/>".into(), InvalidJson),
        ("2024-02-29T12:34:56Z,t1,21.5".into(), InvalidJson),
        (r#""21.5""#.into(), NotAnObject),
        ("21.5".into(), NotAnObject),
        ("null".into(), NotAnObject),
        ("[1]".into(), NotAnObject),
        ("[[]]".into(), NotAnObject),
        ("[null]".into(), NotAnObject),
        ("[NaN]".into(), NotFinite),
        (r#"{"v":1}"#.into(), MissingSensorId),
        (r#"{"sensor_id":null,"v":1}"#.into(), MissingSensorId),
        (r#"{"sensor_id":"","v":1}"#.into(), EmptySensorId),
        (r#"{"sensor_id":7,"v":1}"#.into(), SensorIdNotText),
        (r#"{"sensor_id":["S1"],"v":1}"#.into(), SensorIdNotText),
        (r#"{"sensor_id":"a\u0000b","v":1}"#.into(), SensorIdHasNul),
        (
            format!(r#"{{"sensor_id":"{}","v":1}}"#, s(257)),
            SensorIdTooLong,
        ),
        (r#"{"sensor_id":"S1"}"#.into(), NoValues),
        (r#"{"sensor_id":"S1","values":{}}"#.into(), NoValues),
        (
            r#"{"sensor_id":"S1","values":{"a":null},"b":1}"#.into(),
            NoValues,
        ),
        (r#"{"sensor_id":"S1","values":{"a":{}}}"#.into(), NoValues),
        (
            r#"{"sensor_id":"S1","v":1,"tags":{"a":{"b":1}}}"#.into(),
            NestedValue,
        ),
        (
            r#"{"sensor_id":"S1","v":1,"tags":{"a":[]}}"#.into(),
            NestedValue,
        ),
        (r#"{"sensor_id":"S1","values":[1]}"#.into(), WrongType),
        (r#"{"sensor_id":"S1","values":1}"#.into(), WrongType),
        (r#"{"sensor_id":"S1","v":1,"tags":"x"}"#.into(), WrongType),
        (r#"{"sensor_id":"S1","v":1,"v":2}"#.into(), DuplicateKey),
        (
            r#"{"sensor_id":"S1","v":1,"\u0076":1}"#.into(),
            DuplicateKey,
        ),
        (r#"{"sensor_id":"S1","v":null,"v":2}"#.into(), DuplicateKey),
        (
            r#"{"sensor_id":"S1","sensor_id":"S1","v":2}"#.into(),
            DuplicateKey,
        ),
        (
            r#"{"sensor_id":"S1","v":1,"x":{},"x":[]}"#.into(),
            DuplicateKey,
        ),
        (
            r#"{"sensor_id":"S1","values":{"a":1,"a":1}}"#.into(),
            DuplicateKey,
        ),
        (
            r#"{"sensor_id":"S1","values":{"a":1},"values":{"b":1}}"#.into(),
            DuplicateKey,
        ),
        (
            r#"{"sensor_id":"S1","values":{"a":1},"z":1,"z":1}"#.into(),
            DuplicateKey,
        ),
        (
            r#"{"sensor_id":"S1","v":1,"tags":{"a":"1","a":"1"}}"#.into(),
            DuplicateKey,
        ),
        (
            r#"{"sensor_id":"S1","v":1,"tags":{"a.b":"1","a_b":"1"}}"#.into(),
            DuplicateKey,
        ),
        (r#"{"sensor_id":"S1","a.b":1,"a_b":1}"#.into(), DuplicateKey),
        (
            r#"{"sensor_id":"S1","values":{"":1,"_":1}}"#.into(),
            DuplicateKey,
        ),
        (
            r#"{"sensor_id":"S1","ts":1,"ts":1,"v":1}"#.into(),
            DuplicateKey,
        ),
        (
            format!(r#"{{"sensor_id":"S1","{}":1}}"#, s(129)),
            NameTooLong,
        ),
        (
            format!(r#"{{"sensor_id":"S1","v":1,"tags":{{"{}":1}}}}"#, s(129)),
            NameTooLong,
        ),
        (
            format!(r#"{{"sensor_id":"S1","v":"{}"}}"#, s(1025)),
            StringTooLong,
        ),
        (
            format!(r#"{{"sensor_id":"S1","v":1,"tags":{{"a":"{}"}}}}"#, s(1025)),
            StringTooLong,
        ),
        (
            format!(r#"{{"sensor_id":"S1","values":{{{}}}}}"#, fields(65)),
            TooManyFields,
        ),
        (
            format!(r#"{{"sensor_id":"S1",{}}}"#, fields(65)),
            TooManyFields,
        ),
        (
            format!(r#"{{"sensor_id":"S1","v":1,{}}}"#, nulls(600)),
            TooManyFields,
        ),
        (
            format!(r#"{{"sensor_id":"S1","v":1,"tags":{{{}}}}}"#, fields(33)),
            TooManyTags,
        ),
        (r#"{"sensor_id":"S1","v":1,"ts":true}"#.into(), BadTimestamp),
        (
            r#"{"sensor_id":"S1","v":1,"ts":{"$date":1}}"#.into(),
            BadTimestamp,
        ),
        (
            r#"{"sensor_id":"S1","v":1,"ts":"tomorrow"}"#.into(),
            BadTimestamp,
        ),
        (
            r#"{"sensor_id":"S1","v":1,"ts":1e999}"#.into(),
            BadTimestamp,
        ),
        (
            r#"{"sensor_id":"S1","v":1,"ts":5,"ts_unit":"h"}"#.into(),
            BadTimestamp,
        ),
        (r#"{"sensor_id":"S1","v":1,"ts":1000000000}"#.into(), TooOld),
        (
            r#"{"sensor_id":"S1","v":1,"ts":"2001-01-01T00:00:00Z"}"#.into(),
            TooOld,
        ),
        (
            r#"{"sensor_id":"S1","v":1,"ts":"2099-01-01T00:00:00Z"}"#.into(),
            TooFarAhead,
        ),
        (
            r#"{"sensor_id":"S1","v":1,"ts":99999999999999999999}"#.into(),
            TooFarAhead,
        ),
    ];
    for (payload, reason) in table {
        assert_eq!(
            only_reject(&payload),
            reason,
            "{}",
            &payload[..payload.len().min(120)]
        );
    }
    for payload in [
        &b"{\"sensor_id\":\"\xE9\",\"v\":1}"[..],
        b"\xFF\xFE{\0\"\0",
        b"\xef\xbb{}",
        b"[\"\xe9\"]",
        b"\xa1ktemp\xfb@5\x80\0\0\0\0\0",
    ] {
        assert_eq!(only_reject(payload), InvalidUtf8, "{payload:?}");
    }
}

#[test]
fn names_are_renamed_where_the_store_needs_it() {
    let names: Vec<String> = values(
        r#"{"$where":1,"a.b":2,"_id":3,"__proto__":4,"":5," ":6,"ts":7,"meta":8,"n\u0000l":9}"#,
    )
    .into_iter()
    .map(|(k, _)| k)
    .collect();
    assert_eq!(
        names,
        [
            " ",
            "_",
            "__id",
            "__proto__",
            "_meta",
            "_ts",
            "_where",
            "a_b",
            "n_l"
        ]
    );
    let reading = only_reading(r#"{"sensor_id":"S1","v":1,"tags":{"a.b":"x","$c":1}}"#);
    assert_eq!(reading.tags.keys().collect::<Vec<_>>(), ["_c", "a_b"]);
}

#[test]
fn values_from_the_topic() {
    let limits = limits();
    let tags = [("site", "north"), ("floor", "2")];
    let cx = Context {
        limits: &limits,
        line: &line(),
        received_at_ms: NOW,
        ts_unit: Some(TsUnit::Ms),
        sensor_id: Some("T1"),
        field: None,
        tags: &tags,
        ..Context::usual()
    };
    let payload = format!(
        r#"[{{"v":1,"ts":{NOW}}},{{"sensor_id":"S1","v":1,"tags":{{"site":"south"}},"ts":{},"ts_unit":"s"}},{{"sensor_id":"","v":1}}]"#,
        NOW / 1000
    );
    let (readings, rejects) = run_with(Format::Json, payload.as_bytes(), &cx);
    assert_eq!(ids(&readings), ["T1", "S1"]);
    assert!(
        readings
            .iter()
            .all(|r| r.ts_ms == NOW && r.tags["floor"] == "2")
    );
    assert_eq!(
        (
            readings[0].tags["site"].as_str(),
            readings[1].tags["site"].as_str()
        ),
        ("north", "south")
    );
    assert_eq!(rejects.list()[0].reason, RejectReason::EmptySensorId);
    // A reading with a guessed start could be a fragment, so it does not get the topic's sensor.
    let (readings, rejects) = run_with(Format::Json, br#"[{"v":1,{"inner":2},{"v":3}]"#, &cx);
    assert_eq!(
        readings.iter().map(|r| &r.values["v"]).collect::<Vec<_>>(),
        [&Value::Int(3)]
    );
    let reasons: Vec<_> = rejects.list().iter().map(|r| r.reason).collect();
    assert_eq!(
        reasons,
        [RejectReason::InvalidJson, RejectReason::MissingSensorId]
    );
}

#[test]
fn arrays_and_streams_and_lines_give_the_same() {
    let one = |id: &str| format!(r#"{{"sensor_id":"{id}","v":1}}"#);
    let all = [one("a"), one("b"), one("c")];
    let pretty = "{\n  \"sensor_id\": \"a\",\n  \"values\":\n  {\n    \"v\": 1\n  }\n}\n";
    for (format, payload) in [
        (Format::Json, format!("[{}]", all.join(","))),
        (Format::Json, format!(" [ {} ]\n", all.join(" , "))),
        (Format::Json, format!("\u{feff}{}\0", all.join("\n"))),
        (Format::Json, all.join("\r\n") + "\r\n"),
        (Format::Json, all.concat()),
        (Format::Json, all.join(" ")),
        (Format::Json, format!("{pretty}{}\n{}", one("b"), one("c"))),
        (Format::Json, format!("[{}]", all.join(" "))),
        (Format::Ndjson, all.join("\n")),
        (
            Format::Ndjson,
            format!("\u{feff}\r\n{}\r\n\r\n", all.join("\n \n")),
        ),
    ] {
        let (readings, rejects) = run(format, &payload);
        assert_eq!(
            (ids(&readings), &rejects[..]),
            (vec!["a", "b", "c"], &[][..]),
            "{payload}"
        );
    }
    assert_eq!(json("[]"), (vec![], vec![]));
    assert_eq!(json(" [ ] "), (vec![], vec![]));
    assert_eq!(
        run(Format::Ndjson, "\n\n").1,
        [(0, RejectReason::EmptyPayload)]
    );
}

#[test]
fn good_neighbours_are_kept() {
    use RejectReason::*;
    let a = r#"{"sensor_id":"a","v":1}"#;
    let b = r#"{"sensor_id":"b","v":1}"#;
    let c = r#"{"sensor_id":"c","v":1}"#;
    for (bad, reason) in [
        (r#"{"sensor_id":"x","v":NaN}"#, Some(NotFinite)),
        (r#"{"sensor_id":"x","v":1"#, Some(InvalidJson)),
        (r#"{"sensor_id":"x","values":{"v":1"#, Some(InvalidJson)),
        (r#"{"sensor_id":"x","v":"cut"#, Some(InvalidJson)),
        (r#"{"sensor_id":"x","v"#, Some(InvalidJson)),
        (r#"{"sensor_id":"x","v":"#, Some(InvalidJson)),
        (r#"{"sensor_id":"x","v":tru"#, Some(InvalidJson)),
        (r#"{"sensor_id":"x" "v":1}"#, Some(InvalidJson)),
        (r#"{"sensor_id":"x","v":1}}"#, Some(InvalidJson)),
        (r#"{"sensor_id":"x","v":"],[{"}"#, None),
        (r#"{"#, Some(InvalidJson)),
        ("xyz", Some(InvalidJson)),
        ("1 2", Some(InvalidJson)),
    ] {
        let Some(reason) = reason else {
            assert_eq!(json(format!("[{a},{bad},{b}]")).0.len(), 3);
            continue;
        };
        let array = format!("[{a},{bad},{b},{bad},{c}]");
        let (readings, rejects) = json(&array);
        let expected = [(1, reason), (3, reason)];
        assert_eq!(
            (ids(&readings), &rejects[..]),
            (vec!["a", "b", "c"], &expected[..]),
            "{array}"
        );
        let (readings, rejects) = run(Format::Ndjson, [a, bad, b, bad, c].join("\n"));
        assert_eq!(
            (ids(&readings), &rejects[..]),
            (vec!["a", "b", "c"], &expected[..]),
            "{bad}"
        );
        // Also at the end, where the array's own bracket may be missing.
        for end in ["]", ""] {
            let (readings, rejects) = json(format!("[{a},{b},{bad}{end}"));
            assert_eq!(
                (ids(&readings), rejects[0]),
                (vec!["a", "b"], (2, reason)),
                "{bad}{end}"
            );
        }
    }
    assert_eq!(json(format!("[{a},{b}")).1, [(2, InvalidJson)]);
    assert_eq!(json(format!("[{a},{b},")).1, [(2, InvalidJson)]);
    assert_eq!(json(format!("[{a},,{b}]")).1, [(1, InvalidJson)]);
    assert_eq!(json(format!("[{a},{b}]x")).1, [(2, TrailingData)]);
    assert_eq!(json(format!("[{a}][{b}]")).1, [(1, TrailingData)]);
    assert_eq!(json(format!("{a}x")).1, [(1, TrailingData)]);
    let (readings, rejects) = json(format!(
        "{a}\nxyz\n{b}\n{{\"sensor_id\":\"x\",\"v\":1\n{c}\n"
    ));
    assert_eq!(
        (ids(&readings), &rejects[..]),
        (
            vec!["a", "b", "c"],
            &[(1, TrailingData), (3, InvalidJson)][..]
        )
    );
    let bytes = [
        format!("[{a},").as_bytes(),
        b"{\"sensor_id\":\"\xE9\",\"v\":1},",
        b.as_bytes(),
        b"]",
    ]
    .concat();
    let (readings, rejects) = json(bytes);
    assert_eq!(
        (ids(&readings), &rejects[..]),
        (vec!["a", "b"], &[(1, InvalidUtf8)][..])
    );
}

#[test]
fn more_readings_than_allowed_are_counted() {
    let mut limits = limits();
    limits.batch_max_readings = 3;
    let line = line();
    let cx = Context {
        sensor_id: Some("S"),
        ..bare(&limits, &line)
    };
    let items = [
        r#"{"v":1}"#,
        "{}",
        r#"{"v":2}"#,
        r#"{"v":3}"#,
        r#"{"v":4}"#,
        r#"{"v":"5},"}"#,
        "{}",
    ];
    for (format, payload) in [
        (Format::Json, format!("[{}]", items.join(", "))),
        (Format::Json, items.concat()),
        (Format::Json, items.join("\n")),
        (Format::Ndjson, items.join("\n")),
    ] {
        let (readings, rejects) = run_with(format, payload.as_bytes(), &cx);
        assert_eq!((readings.len(), rejects.total()), (3, 4), "{payload}");
        assert_eq!(
            rejects.by_reason(),
            [
                (RejectReason::NoValues, 1),
                (RejectReason::TooManyReadings, 3)
            ]
        );
        let last = &rejects.list()[1];
        assert_eq!(last.index, 4);
        assert!(last.detail.starts_with("3 readings"), "{}", last.detail);
    }
}

#[test]
fn too_many_field_names_in_a_batch_reject_the_reading() {
    let items: Vec<String> = (0..5000)
        .map(|i| format!(r#"{{"sensor_id":"S","f{i}":1}}"#))
        .collect();
    let (readings, rejects) = json(format!("[{}]", items.join(",")));
    // One name belongs to the reading that was in the batch before.
    assert_eq!(readings.len(), crate::model::batch::NAMES_MAX - 1);
    assert_eq!(
        rejects[0],
        (readings.len(), RejectReason::TooManyFieldNames)
    );
}

#[test]
fn tags_that_do_not_fit_a_record_are_refused() {
    let mut limits = limits();
    (limits.string_max_bytes, limits.tags_max) = (16_384, 64);
    let line = line();
    let cx = Context {
        sensor_id: Some("S"),
        ..bare(&limits, &line)
    };
    let tags: Vec<String> = (0..4)
        .map(|i| format!(r#""t{i}":"{}""#, "x".repeat(16_384)))
        .collect();
    let payload = format!(r#"{{"v":1,"tags":{{{}}}}}"#, tags.join(","));
    let (readings, rejects) = run_with(Format::Json, payload.as_bytes(), &cx);
    assert_eq!(
        (readings.len(), rejects.list()[0].reason),
        (0, RejectReason::TagsTooLong)
    );
}

#[test]
fn deep_nesting_is_refused_everywhere() {
    let nest = |n: usize| "[".repeat(n) + &"]".repeat(n);
    let maps = |n: usize| "{\"a\":".repeat(n) + "1" + &"}".repeat(n);
    let reading = |inner: String| format!(r#"{{"sensor_id":"S1","v":1,"x":{inner}}}"#);
    assert_eq!(only_reading(reading(nest(126))).values.len(), 1);
    // The same depth is allowed in an array, and when parsed the exact way.
    assert_eq!(
        only_reading(format!("[{}]", reading(nest(126))))
            .values
            .len(),
        1
    );
    assert_eq!(
        only_reading(format!("[{}]", reading(nest(126)).replace(":1,", ":-0,")))
            .values
            .len(),
        1
    );
    for n in [127, 128, 129, 100_000] {
        for payload in [
            reading(nest(n)),
            reading(nest(n)).replace(":1,", ":-0,"),
            reading(maps(n)),
            format!(r#"{{"sensor_id":"S1","values":{{"v":{}}}}}"#, nest(n)),
            format!("[{}]", reading(nest(n))),
        ] {
            assert_eq!(only_reject(payload), RejectReason::TooDeep, "{n}");
        }
    }
    for payload in [
        "[".repeat(100_000),
        "[{\"\":".repeat(50_000),
        "{\"a\":".repeat(100_000),
    ] {
        assert_eq!(only_reject(payload), RejectReason::TooDeep);
    }
    let (readings, rejects) = json(format!(
        r#"[{{"sensor_id":"a","v":1}},{},{{"sensor_id":"b","v":1}}]"#,
        nest(100_000)
    ));
    assert_eq!(
        (ids(&readings), &rejects[..]),
        (vec!["a", "b"], &[(1, RejectReason::TooDeep)][..])
    );
}

/// Two megabytes of the worst case for this code. Quadratic work would take minutes; linear work
/// takes a second.
#[test]
fn hostile_payloads_take_linear_time() {
    const BYTES: usize = 2 << 20;
    let fill = |piece: &str| piece.repeat(BYTES / piece.len());
    let names: Vec<String> = (0..BYTES / 16)
        .map(|i| format!(r#"{{"f{i:08}":1}}"#))
        .collect();
    for (what, payload) in [
        ("brackets", fill("[")),
        ("scalars", format!("[{}1]", fill("1,"))),
        ("commas", format!("[{}]", fill(","))),
        ("empty objects", format!("[{}1]", fill("{},"))),
        ("glued objects", fill("{}")),
        ("unclosed objects", format!("[{}", fill("{\"a\":1,"))),
        ("unclosed strings", format!("[{}", fill("{\"a\":\"x,"))),
        (
            "minus zero and unclosed strings",
            format!("[{}", fill("{\"a\":-0,\"b\":\"x,")),
        ),
        (
            "escapes before a cut",
            format!("[{}", fill("{\"a\":\"x\\,")),
        ),
        (
            "nested unclosed",
            format!("[{}", fill("{\"a\": {\"a\": 1, ")),
        ),
        (
            "lists of objects unclosed",
            format!("[{}", fill("{\"a\":[1,1,1,")),
        ),
        ("closers", format!("[{}", fill("}"))),
        ("quotes", format!("[{}", fill("\""))),
        ("lines of a stream", fill("{\"a\":1\n")),
        ("text between objects", fill("{}x")),
        ("distinct names", format!("[{}]", names.join(","))),
        (
            "one object of many keys",
            format!(
                "{{{}\"z\":1}}",
                names
                    .iter()
                    .map(|n| n[1..n.len() - 1].to_owned() + ",")
                    .collect::<String>()
            ),
        ),
        ("a long number", format!("[{{\"a\":{}}}]", fill("1"))),
    ] {
        let start = Instant::now();
        for format in [Format::Json, Format::Ndjson] {
            let (readings, rejects) = run(format, &payload);
            assert!(
                readings.is_empty() && !rejects.is_empty() && rejects.len() <= KEPT_MAX,
                "{what}"
            );
        }
        let took = start.elapsed();
        println!("{what}: {took:?}");
        assert!(took < Duration::from_secs(30), "{what}: {took:?}");
    }
}

#[test]
fn formats_and_units_have_names() {
    assert_eq!("ndjson".parse(), Ok(Format::Ndjson));
    assert_eq!("us".parse(), Ok(TsUnit::Us));
    assert_eq!(
        "JSON".parse::<Format>().unwrap_err().to_string(),
        "unknown format `JSON`; expected one of json, ndjson, scalar, line, cbor, msgpack, senml \
         or senml-cbor"
    );
    assert!("h".parse::<TsUnit>().is_err());
}

/// A builder that accepts `max` names of each sensor and bucket.
fn counting(max: usize) -> BatchBuilder {
    let mut out = BatchBuilder::new(64);
    out.guard(crate::model::FieldLimiter::new(crate::model::Span::HOUR).guard(max, NOW));
    out
}

#[test]
fn in_every_format_one_name_too_many_rejects_only_its_own_reading() {
    let limits = limits();
    let line = line();
    let of_topic = Context {
        sensor_id: Some("S"),
        field: Some("c"),
        ..bare(&limits, &line)
    };
    let lines = |separator: &str| {
        let reading = |name: &str| format!(r#"{{"sensor_id":"S","values":{{"{name}":1}}}}"#);
        ["a", "b", "c", "a"].map(reading).join(separator)
    };
    let cbor = |name: u8| [&[0xa1, 0x61, name, 0x01][..]].concat();
    let msgpack = |name: u8| [&[0x81, 0xa1, name, 0x01][..]].concat();
    let payloads: [(Format, Vec<u8>); 7] = [
        (Format::Json, format!("[{}]", lines(",")).into()),
        (Format::Ndjson, lines("\n").into()),
        (Format::Line, "m,sensor_id=S a=1\nm,sensor_id=S b=1\nm,sensor_id=S c=1\n\
            m,sensor_id=S a=2\n".into()),
        (Format::Cbor, [&[0x84][..], &cbor(b'a'), &cbor(b'b'), &cbor(b'c'), &cbor(b'a')].concat()),
        (Format::MessagePack, [&[0x94][..], &msgpack(b'a'), &msgpack(b'b'), &msgpack(b'c'), &msgpack(b'a')].concat()),
        (
            Format::Senml,
            r#"[{"n":"a","v":1,"t":-9},{"n":"b","v":1,"t":-8},{"n":"c","v":1,"t":-7},{"n":"a","v":1,"t":-6}]"#.into(),
        ),
        (Format::Scalar, "1".into()),
    ];
    for (format, payload) in payloads {
        let mut out = counting(2);
        let mut rejects = Rejects::new();
        let mut wanted = (3, 2);
        if format == Format::Scalar {
            for name in ["a", "b"] {
                out.value(name, crate::model::ValueRef::Int(1)).unwrap();
                out.commit("S", NOW, false, &[]).unwrap();
            }
            wanted = (2, 0);
        }
        decode(format, &payload, &of_topic, &mut out, &mut rejects);
        let rejected: Vec<_> = rejects.list().iter().map(|r| (r.index, r.reason)).collect();
        assert_eq!(
            (out.finish().len(), &rejected[..]),
            (wanted.0, &[(wanted.1, RejectReason::BucketFields)][..]),
            "{format:?}"
        );
        assert!(
            rejects.list()[0]
                .detail
                .contains("limits.bucket_fields_max = 2"),
            "{:?}",
            rejects.list()
        );
    }
}

#[test]
fn lines_and_objects_read_the_fast_way_are_counted_too() {
    let limits = limits();
    let line = line();
    let cx = bare(&limits, &line);
    let lines = "m,sensor_id=S x=1\nm,sensor_id=T x=2\nm,sensor_id=U y=3\nm,sensor_id=U x=4\n\
        m,sensor_id=S x=5\n";
    let object =
        |id: &str, name: &str| format!(r#"{{"sensor_id":"{id}","values":{{"{name}":1.5}}}}"#);
    let objects = [("S", "x"), ("T", "x"), ("U", "y"), ("U", "x"), ("S", "x")]
        .map(|(id, name)| object(id, name));
    for (format, payload) in [
        (Format::Line, lines.to_owned()),
        (Format::Ndjson, objects.join("\n")),
    ] {
        let mut out = counting(1);
        let mut rejects = Rejects::new();
        decode(format, payload.as_bytes(), &cx, &mut out, &mut rejects);
        let rejected: Vec<_> = rejects.list().iter().map(|r| (r.index, r.reason)).collect();
        assert_eq!(
            (out.finish().len(), &rejected[..]),
            (4, &[(3, RejectReason::BucketFields)][..]),
            "{format:?}"
        );
    }
}
