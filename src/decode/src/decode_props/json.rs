//! Properties of JSON: arrays, lines and concatenated objects of valid and invalid readings, and
//! lines that are alike.

use std::collections::BTreeMap;

use crate::{Format, RejectReason};
use model::{Reading, Value};
use proptest::prelude::*;

use super::{NOW, run};

/// A text that sometimes needs every kind of escape.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[a-z]{1,8}",
        1 => "[ -~]{0,12}",
        1 => prop::collection::vec(any::<char>(), 0..8).prop_map(String::from_iter),
        1 => Just("],[{\"},{\"\\\n\u{1F600}\u{7f}".to_owned()),
    ]
}

/// A name that is stored unchanged.
fn name() -> impl Strategy<Value = String> {
    text().prop_filter("renamed names are tested elsewhere", |n| {
        !n.is_empty()
            && !n.starts_with('$')
            && !n.contains(['.', '\0'])
            && !matches!(&**n, "ts" | "meta" | "_id")
    })
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<i64>().prop_map(Value::Int),
        (-1000i64..1000).prop_map(Value::Int),
        any::<f64>()
            .prop_filter("finite", |v| v.is_finite())
            .prop_map(Value::Double),
        (-1_000_000i64..1_000_000).prop_map(|v| Value::Double(v as f64 / 100.0)),
        any::<bool>().prop_map(Value::Bool),
        text().prop_map(Value::Str),
    ]
}

fn reading() -> impl Strategy<Value = Reading> {
    let sensor_id = text().prop_filter("an id", |id| !id.is_empty() && !id.contains('\0'));
    let ts = prop_oneof![
        Just(None),
        (-2_000_000_000_000i64..4_000_000_000_000).prop_map(Some),
        (-3000i64..3000).prop_map(Some)
    ];
    let tags = prop::collection::btree_map(name(), text(), 0..4);
    (
        sensor_id,
        ts,
        tags,
        prop::collection::btree_map(name(), value(), 1..6),
    )
        .prop_map(
            |(sensor_id, ts, tags, values): (_, Option<i64>, BTreeMap<_, _>, BTreeMap<_, _>)| {
                Reading {
                    sensor_id,
                    ts_ms: ts.unwrap_or(NOW),
                    receipt_time: ts.is_none(),
                    tags,
                    values,
                }
            },
        )
}

/// How a reading is written: order of the members, form of the time, escapes.
#[derive(Debug, Clone, Copy)]
struct Style {
    values_first: bool,
    time: u8,
    escape_all: bool,
}

fn style() -> impl Strategy<Value = Style> {
    (any::<bool>(), 0..5u8, any::<bool>()).prop_map(|(values_first, time, escape_all)| Style {
        values_first,
        time,
        escape_all,
    })
}

fn quoted(text: &str, escape_all: bool) -> String {
    if !escape_all {
        return serde_json::to_string(text).unwrap();
    }
    text.encode_utf16()
        .map(|unit| format!("\\u{unit:04x}"))
        .fold(String::from("\""), |s, u| s + &u)
        + "\""
}

fn written(reading: &Reading, style: Style) -> String {
    let q = |text: &str| quoted(text, style.escape_all);
    let value = |v: &Value| match v {
        Value::Double(v) => serde_json::to_string(v).unwrap(),
        Value::Int(v) => v.to_string(),
        Value::Bool(v) => v.to_string(),
        Value::Str(v) => q(v),
    };
    let object = |members: Vec<String>| format!("{{{}}}", members.join(","));
    let values = object(
        reading
            .values
            .iter()
            .map(|(k, v)| format!("{}:{}", q(k), value(v)))
            .collect(),
    );
    let tags = object(
        reading
            .tags
            .iter()
            .map(|(k, v)| format!("{}:{}", q(k), q(v)))
            .collect(),
    );
    let ms = reading.ts_ms;
    let utc = chrono::DateTime::from_timestamp_millis(ms).unwrap();
    let sign = if ms < 0 { "-" } else { "" };
    let ts = match style.time {
        0 => format!(r#""ts":"{}""#, utc.to_rfc3339().replace("+00:00", "Z")),
        1 => {
            format!(
                r#""ts":"{}""#,
                utc.with_timezone(&chrono::FixedOffset::west_opt(5400).unwrap())
                    .to_rfc3339()
            )
        }
        2 => format!(r#""ts":{ms},"ts_unit":"ms""#),
        3 => format!(
            r#""ts_unit":"s","ts":{sign}{}.{:03}"#,
            ms.abs() / 1000,
            ms.abs() % 1000
        ),
        _ => format!(r#""ts":"{}","ts_unit":"us""#, ms * 1000 + 999),
    };
    let mut members = vec![
        format!(r#""sensor_id":{}"#, q(&reading.sensor_id)),
        format!(r#""tags":{tags}"#),
    ];
    if !reading.receipt_time {
        members.push(ts);
    }
    let values = format!(r#""values":{values}"#);
    members.insert(if style.values_first { 0 } else { members.len() }, values);
    object(members)
}

/// An invalid reading with its reason; none has a line break. Each begins as an object: a `7` after
/// a truncated one is read as a part of it, one reject for both.
fn bad() -> impl Strategy<Value = (String, RejectReason)> {
    use RejectReason::*;
    prop::sample::select(vec![
        (r#"{"sensor_id":"x","values":{"v":NaN}}"#, NotFinite),
        (r#"{"sensor_id":"x","values":{"v":-Infinity}}"#, NotFinite),
        (r#"{"sensor_id":"x","values":{"v":1e999}}"#, NotFinite),
        (
            r#"{"sensor_id":"x","values":{"v":18446744073709551616}}"#,
            IntegerOutOfRange,
        ),
        (
            r#"{"sensor_id":"x","values":{"v":9223372036854775808}}"#,
            IntegerOutOfRange,
        ),
        (r#"{"sensor_id":"x","values":{"v":1}"#, InvalidJson),
        (r#"{"sensor_id":"x","values":{"v":1"#, InvalidJson),
        (r#"{"sensor_id":"x","values":{"v":"#, InvalidJson),
        (r#"{"sensor_id":"x","values":{"v"#, InvalidJson),
        (r#"{"sensor_id":"x","values":{"v":"abc"#, InvalidJson),
        (r#"{"sensor_id":"x","values":{v:1}}"#, InvalidJson),
        (r#"{"sensor_id":"x","values":{}}"#, NoValues),
        (r#"{"sensor_id":"x","values":{"v":null}}"#, NoValues),
        (r#"{"sensor_id":"x","values":{"v":{}}}"#, NoValues),
        (
            r#"{"sensor_id":"x","values":{"v":{"a":1,"a":2}}}"#,
            DuplicateKey,
        ),
        (
            r#"{"sensor_id":"x","values":{"v":{"a":1},"v_a":2}}"#,
            DuplicateKey,
        ),
        (
            r#"{"sensor_id":"x","tags":{"v":{}},"values":{"v":1}}"#,
            NestedValue,
        ),
        (r#"{"sensor_id":"x","values":{"v":1,"v":2}}"#, DuplicateKey),
        (
            r#"{"sensor_id":"x","ts":"yesterday","values":{"v":1}}"#,
            BadTimestamp,
        ),
        (
            r#"{"sensor_id":"x","ts":"9999-01-01T00:00:00Z","values":{"v":1}}"#,
            TooFarAhead,
        ),
        (
            r#"{"sensor_id":"x","ts":"0001-01-01T00:00:00Z","values":{"v":1}}"#,
            TooOld,
        ),
        (r#"{"sensor_id":"","values":{"v":1}}"#, EmptySensorId),
        (r#"{"sensor_id":7,"values":{"v":1}}"#, SensorIdNotText),
        (r#"{"values":{"v":1}}"#, MissingSensorId),
    ])
    .prop_map(|(text, reason)| (text.to_owned(), reason))
}

type Item = Result<(Reading, Style), (String, RejectReason)>;

fn items() -> impl Strategy<Value = Vec<Item>> {
    let item = prop_oneof![3 => (reading(), style()).prop_map(Ok), 1 => bad().prop_map(Err)];
    prop::collection::vec(item, 1..12)
}

fn texts(items: &[Item]) -> Vec<String> {
    let text = |item: &Item| match item {
        Ok((reading, style)) => written(reading, *style),
        Err((text, _)) => text.clone(),
    };
    items.iter().map(text).collect()
}

/// The valid readings are equal and in order; the invalid ones were rejected with position and
/// reason.
fn check(items: &[Item], format: Format, payload: &str) -> Result<(), TestCaseError> {
    let (readings, rejects) = run(format, payload.as_bytes());
    let good: Vec<&Reading> = items
        .iter()
        .filter_map(|i| i.as_ref().ok().map(|(r, _)| r))
        .collect();
    let bad: Vec<_> = items
        .iter()
        .enumerate()
        .filter_map(|(i, item)| item.as_ref().err().map(|(_, reason)| (i, *reason)))
        .collect();
    // As debug text, which distinguishes -0.0 from 0.0 and 1 from 1.0.
    prop_assert_eq!(
        format!("{:?}", readings),
        format!("{:?}", good),
        "{}",
        payload
    );
    let found: Vec<_> = rejects.list().iter().map(|r| (r.index, r.reason)).collect();
    prop_assert_eq!(found, bad, "{}", payload);
    prop_assert_eq!(readings.len() + rejects.total(), items.len());
    Ok(())
}

/// A line as a gateway's program writes it: of one of a few forms, each with its own keys, and a
/// token in each slot.
fn alike() -> impl Strategy<Value = String> {
    let token = prop_oneof![
        8 => (-100_000i64..100_000, 0u32..4).prop_map(|(v, places)| format!("{:.*}", places as usize, v as f64 / 100.0)),
        2 => any::<i64>().prop_map(|v| v.to_string()),
        2 => (100_000_000_000_000i64..1_000_000_000_000_000_000, 1usize..15).prop_map(|(v, places)| {
            let digits = v.to_string();
            let (whole, fraction) = digits.split_at(digits.len() - places);
            format!("{whole}.{fraction}")
        }),
        2 => any::<f64>().prop_filter("finite", |v| v.is_finite()).prop_map(|v| serde_json::to_string(&v).unwrap()),
        2 => text().prop_map(|t| serde_json::to_string(&t).unwrap()),
        3 => prop::sample::select(vec![
            "true", "false", "null", "-0", "-0.0", "0", "1e3", "1E-2", "01", "1.", ".5", "+1", "NaN", "[]", "{}", "\"\"",
            "-1e+3", "1.e5", "1e", "1e5.5", "00.5", "-00.5", "1e-400", "-1e-400", "9300000000000000000.5", "12-3.5",
            "9007199254740993.5", "123456789012345678", "1234567890123456789", "0.1234567890123456789", "1.5e400", "tru",
            "\"a\\nb\"", "\"\u{fc}\"", "\"\t\"", "\"open", "",
        ]).prop_map(str::to_owned),
    ];
    let time = prop_oneof![
        6 => (-3_000_000_000_000i64..3_000_000_000_000).prop_map(|v| v.to_string()),
        2 => Just("\"2024-03-01T10:00:00.123Z\"".to_owned()),
        1 => prop::sample::select(vec!["\"1709290800\"", "1709290800.5", "\"noon\"", "null", "true", "99999999999999999", "-0"])
            .prop_map(str::to_owned),
    ];
    let id = prop_oneof![6 => "[a-z]{1,6}", 1 => text()]
        .prop_map(|t| serde_json::to_string(&t).unwrap());
    let forms = vec![
        r#"{"sensor_id":ID,"ts":TS,"tags":{"site":ID,"floor":ID},"values":{"a":V,"b":V,"c":V}}"#,
        r#"{"sensor_id":ID,"ts":TS,"tags":{"site":ID,"floor":ID},"values":{"a":V,"b":V}}"#,
        r#"{"sensor_id": ID, "ts": TS, "values": {"a": V, "b.x": V}}"#,
        r#"{"values":{"b":V,"a":V},"sensor_id":ID,"ts":TS}"#,
        r#"{"sensor_id":ID,"ts":TS,"a":V,"b":V}"#,
        r#"{"sensor_id":ID,"values":{"a":V},"tags":{"a.b":ID}}"#,
        r#"{"sensor_id":ID,"values":{"a":V},"tags":{"t":V}}"#,
        r#"{"sensor_id":ID,"ts":TS,"ts_unit":"s","values":{"a":V}}"#,
        r#"{"sensor_id":ID,"ts":TS,"values":{"a":V},"a":V}"#,
        r#"{"sensor_id":ID,"ts":TS,"values":{"a":V},"tags":null}"#,
        r#"{"sensor_id":ID,"ts":TS,"a":{"x":V,"y":V},"b":[V,V]}"#,
        r#"{"sensor_id":ID,"ts":TS,"values":{"a":{"x":V,"":{"y":V}},"b":[V, {"z":V}]}}"#,
        r#"{"sensor_id":ID,"a":{"x":V},"a_x":V,"b":[[],{}]}"#,
        r#"{"sensor_id":ID,"timestamp":TS,"a":V,"b":V}"#,
        r#"{"sensor_id":ID,"time":TS,"values":{"a":V}}"#,
        r#"{"sensor_id":ID,"t":V,"a":V}"#,
        r#"{"sensor_id":ID,"ts":TS,"time":V,"a":V}"#,
        r#"{"sensor_id":ID,"t":TS,"timestamp":V,"a":V}"#,
    ];
    let tokens = prop::collection::vec(token, 4);
    let suffix =
        prop_oneof![9 => Just(""), 1 => prop::sample::select(vec![" ", "}", " 1", ",", "{}"])];
    (
        prop::sample::select(forms),
        id.clone(),
        id,
        time,
        tokens,
        suffix,
    )
        .prop_map(|(storage_mode, id, other, time, tokens, suffix)| {
            let mut line = storage_mode
                .replacen("ID", &id, 1)
                .replace("ID", &other)
                .replace("TS", &time);
            tokens.iter().for_each(|t| line = line.replacen("V", t, 1));
            line + suffix
        })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn json_like_text_never_panics_and_is_never_ignored(
        pieces in prop::collection::vec(prop::sample::select(vec![
            "{", "}", "[", "]", ",", ":", "\"", "\\", "\n", " ", "1", "-0", "1e999", "NaN", "null", "true",
            "\"sensor_id\"", "\"a\"", "\"values\"", "\"ts\"", "{\"sensor_id\":\"a\",\"v\":1}", "\u{feff}", "\0",
            "\"tags\":{", "99999999999999999999",
        ]), 0..40)
    ) {
        let payload = pieces.concat();
        for format in [Format::Json, Format::Ndjson] {
            let (readings, rejects) = run(format, payload.as_bytes());
            let bare: String = payload.trim_start_matches('\u{feff}').split_whitespace().collect();
            prop_assert!(!readings.is_empty() || !rejects.is_empty() || bare.starts_with("[]"), "{payload}");
        }
        run(Format::Scalar, payload.as_bytes());
    }

    #[test]
    fn in_an_array_each_is_accepted_or_rejected_alone(items in items()) {
        check(&items, Format::Json, &format!("[{}]", texts(&items).join(",")))?;
        check(&items, Format::Json, &format!(" [\n{} ]\n", texts(&items).join("\n,\n ")))?;
    }

    #[test]
    fn in_lines_each_is_accepted_or_rejected_alone(items in items()) {
        check(&items, Format::Ndjson, &texts(&items).join("\n"))?;
        check(&items, Format::Ndjson, &(texts(&items).join("\r\n \r\n") + "\r\n"))?;
    }

    #[test]
    fn concatenated_in_any_way_they_are_the_same(good in prop::collection::vec((reading(), style()), 1..8)) {
        let items: Vec<Item> = good.into_iter().map(Ok).collect();
        let texts = texts(&items);
        for payload in [texts.concat(), texts.join("\n"), texts.join(" \r\n\t"), format!("[{}]", texts.join(","))] {
            check(&items, Format::Json, &payload)?;
        }
    }

    /// A single line is never compared with an earlier one, so it is the reference.
    #[test]
    fn similar_lines_decode_like_single_ones(
        lines in prop::collection::vec(alike(), 1..40),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 1u8..127), 0..3),
    ) {
        // Repeats valid lines, with the invalid ones between them.
        let mut lines: Vec<Vec<u8>> = lines.into_iter().map(String::into_bytes).collect();
        for (line, at, byte) in damage {
            let n = line.index(lines.len());
            let at = at.index(lines[n].len());
            lines[n][at] = if byte == b'\n' { b' ' } else { byte };
        }
        let mut readings = vec![];
        let mut rejects = vec![];
        for (i, line) in lines.iter().enumerate() {
            let (one, none) = run(Format::Ndjson, line);
            prop_assert_eq!(one.len() + none.total(), 1);
            readings.extend(one);
            rejects.extend(none.list().iter().map(|r| (i, r.reason)));
        }
        let (all, none) = run(Format::Ndjson, &lines.join(&b"\n"[..]));
        prop_assert_eq!(format!("{all:?}"), format!("{readings:?}"));
        prop_assert_eq!(none.list().iter().map(|r| (r.index, r.reason)).collect::<Vec<_>>(), rejects.clone());
        if rejects.is_empty() {
            for array in [[&b"["[..], &lines.join(&b", "[..]), b"]"].concat(), lines.concat()] {
                prop_assert_eq!(format!("{:?}", run(Format::Json, &array).0), format!("{readings:?}"));
            }
        }
    }

    /// After a cut at any place, an array loses only the truncated reading, with a reject, and
    /// gains none.
    #[test]
    fn a_truncated_array_keeps_its_complete_readings(
        good in prop::collection::vec((reading(), style()), 1..6),
        at in any::<prop::sample::Index>(),
    ) {
        let items: Vec<Item> = good.iter().cloned().map(Ok).collect();
        let payload = format!("[{}]", texts(&items).join(","));
        let cut = at.index(payload.len() - 1) + 1;
        let (readings, rejects) = run(Format::Json, &payload.as_bytes()[..cut]);
        prop_assert!(readings.len() <= good.len());
        for (reading, (whole, _)) in readings.iter().zip(&good) {
            prop_assert_eq!(format!("{:?}", reading), format!("{:?}", whole));
        }
        prop_assert_eq!(rejects.total(), 1);
        prop_assert_eq!(rejects.list()[0].index, readings.len());
    }
}
