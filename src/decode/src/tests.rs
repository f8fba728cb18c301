//! The contents of the native format and where they come from: values, numbers, names, the topic.

use super::*;
use config::{Limits, Line};
use model::{Reading, ReadingBatch, Value};

/// 2024-03-01T11:00:00Z
pub(super) const NOW: i64 = 1_709_290_800_000;

pub(super) fn limits() -> Limits {
    Context::usual().limits.clone()
}

/// The default settings of line protocol.
pub(super) fn line() -> Line {
    Context::usual().line.clone()
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

pub(super) fn run_with(
    format: Format,
    payload: &[u8],
    cx: &Context<'_>,
) -> (Vec<Reading>, Rejects) {
    let mut out = BatchBuilder::new(cx.limits.fields_max);
    // Readings of another message in the batch stay unchanged, and do not count.
    out.value("other", model::ValueRef::Int(1)).unwrap();
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

pub(super) fn run(
    format: Format,
    payload: impl AsRef<[u8]>,
) -> (Vec<Reading>, Vec<(usize, RejectReason)>) {
    let limits = limits();
    let line = line();
    let cx = bare(&limits, &line);
    let (readings, rejects) = run_with(format, payload.as_ref(), &cx);
    (
        readings,
        rejects.list().iter().map(|r| (r.index, r.reason)).collect(),
    )
}

pub(super) fn json(payload: impl AsRef<[u8]>) -> (Vec<Reading>, Vec<(usize, RejectReason)>) {
    run(Format::Json, payload)
}

pub(super) fn only_reject(payload: impl AsRef<[u8]>) -> RejectReason {
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

pub(super) fn only_reading(payload: impl AsRef<[u8]>) -> Reading {
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

pub(super) fn ids(readings: &[Reading]) -> Vec<&str> {
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
    for empty in ["\n\n", "\u{feff}\u{feff}", "\u{feff}\n\u{feff}\n"] {
        let rejects = run(Format::Ndjson, empty).1;
        assert_eq!(rejects, [(0, RejectReason::EmptyPayload)], "{empty:?}");
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
