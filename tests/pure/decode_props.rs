//! Properties of the decoder: nothing panics, every element becomes one reading or one reject,
//! valid readings are unchanged, and the way in which readings are concatenated does not matter.
// Clippy does not recognize the helpers of a test program as test code.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::time::Duration;

use hourbucket::config::{Config, Limits};
use hourbucket::decode::{Context, Format, RejectReason, Rejects, decode};
use hourbucket::model::{BatchBuilder, Reading, Value};
use proptest::prelude::*;

const NOW: i64 = 1_709_290_800_000;

fn limits() -> Limits {
    // Back to the year 1900, and as far ahead.
    let years = Duration::from_secs(125 * 365 * 86_400);
    Limits {
        past: years,
        future: years,
        unset_before_ms: i64::MIN,
        ..Config::default().limits
    }
}

fn run(format: Format, payload: &[u8]) -> (Vec<Reading>, Rejects) {
    run_with(format, payload, &[])
}

/// The same without the fast path, which is not used if readings get tags of the topic.
fn run_one_by_one(format: Format, payload: &[u8]) -> (Vec<Reading>, Rejects) {
    let (mut readings, rejects) = run_with(format, payload, &[("of the topic", "")]);
    for reading in &mut readings {
        assert_eq!(reading.tags.remove("of the topic").as_deref(), Some(""));
    }
    (readings, rejects)
}

fn run_with(format: Format, payload: &[u8], tags: &[(&str, &str)]) -> (Vec<Reading>, Rejects) {
    let limits = limits();
    let cx = Context {
        limits: &limits,
        line: &Config::default().line,
        received_at_ms: NOW,
        ts_unit: format.ts_unit_usual(),
        sensor_id: None,
        field: Some("field"),
        tags,
        ..Context::usual()
    };
    let mut out = BatchBuilder::new(64);
    let mut rejects = Rejects::new();
    decode(format, payload, &cx, &mut out, &mut rejects);
    let batch = out.finish();
    let mut bytes = vec![];
    batch.encode(&mut bytes);
    assert!(
        hourbucket::model::ReadingBatch::decode(&bytes).is_some(),
        "the batch must be readable again"
    );
    (batch.to_readings(), rejects)
}

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

/// A text with characters that line protocol escapes; none ends with a backslash, which a name
/// cannot have.
fn line_text() -> impl Strategy<Value = String> {
    let mixed = prop::collection::vec(
        prop::sample::select(vec!["a", "ü", " ", ",", "=", "\\", "\"", "#", "\t", "1"]),
        0..8,
    );
    prop_oneof![3 => "[a-z]{1,8}", 2 => mixed.prop_map(|parts| parts.concat()), 1 => "[ -~]{0,12}"]
        .prop_map(|text| text.trim_end_matches('\\').to_owned())
}

fn line_name() -> impl Strategy<Value = String> {
    line_text().prop_filter("renamed names are tested elsewhere", |n| {
        !n.is_empty()
            && !n.starts_with('$')
            && !n.contains('.')
            && !matches!(&**n, "ts" | "meta" | "_id" | "sensor_id")
    })
}

/// A reading that line protocol can represent, with its measurement.
fn line_reading() -> impl Strategy<Value = (String, Reading)> {
    let text = prop_oneof![4 => line_text(), 1 => "[a-z\n\\\\\"]{0,9}"];
    let value = prop_oneof![
        any::<i64>().prop_map(Value::Int),
        any::<f64>()
            .prop_filter("finite", |v| v.is_finite())
            .prop_map(Value::Double),
        (-1_000_000i64..1_000_000).prop_map(|v| Value::Double(v as f64 / 100.0)),
        any::<bool>().prop_map(Value::Bool),
        text.prop_map(Value::Str),
    ];
    let some = |text: String| {
        if text.is_empty() {
            "x".to_owned()
        } else {
            text
        }
    };
    let measurement = line_name().prop_filter("not a comment, and no blank before it", |m| {
        !m.starts_with(['#', ' ', '\t'])
    });
    // Field names do not begin with a blank, which would be skipped.
    let field = line_name().prop_map(|name| name.replace('\t', "_"));
    let tags = prop::collection::btree_map(line_name(), line_text().prop_map(some), 0..4);
    let values = prop::collection::btree_map(field, value, 1..6);
    let ts = prop::option::of(-2_000_000_000_000i64..4_000_000_000_000);
    (measurement, line_text().prop_map(some), ts, tags, values).prop_map(
        |(measurement, sensor_id, ts, tags, values)| {
            let ts_ms = ts.unwrap_or(NOW);
            let receipt_time = ts.is_none();
            (
                measurement,
                Reading {
                    sensor_id,
                    ts_ms,
                    receipt_time,
                    tags,
                    values,
                },
            )
        },
    )
}

/// As a line, with `gap` additional blanks.
fn line((measurement, reading): &(String, Reading), gap: usize) -> String {
    let escaped = |text: &str, escapes: &[char]| {
        let escape = |c: char| {
            if escapes.contains(&c) {
                format!("\\{c}")
            } else {
                c.to_string()
            }
        };
        text.chars().map(escape).collect::<String>()
    };
    let name = |text: &str| escaped(text, &[',', '=', ' ']);
    let value = |v: &Value| match v {
        Value::Double(v) => format!("{v:?}"),
        Value::Int(v) => format!("{v}i"),
        Value::Bool(v) => if *v { "T" } else { "false" }.to_owned(),
        Value::Str(v) => format!("\"{}\"", escaped(v, &['"', '\\'])),
    };
    let blanks = " ".repeat(gap);
    let tags: String = reading
        .tags
        .iter()
        .map(|(k, v)| format!(",{}={}", name(k), name(v)))
        .collect();
    let fields: Vec<String> = reading
        .values
        .iter()
        .map(|(k, v)| format!("{}={}", name(k), value(v)))
        .collect();
    let time = if reading.receipt_time {
        String::new()
    } else {
        format!(" {blanks}{}000000", reading.ts_ms)
    };
    let measurement = escaped(measurement, &[',', ' ']);
    let id = name(&reading.sensor_id);
    format!(
        "{blanks}{measurement},sensor_id={id}{tags} {blanks}{}{time}{blanks}",
        fields.join(",")
    )
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
    fn arbitrary_bytes_never_panic(payload in prop::collection::vec(any::<u8>(), 0..300)) {
        for format in [Format::Json, Format::Ndjson, Format::Scalar, Format::Line] {
            run(format, &payload);
        }
    }

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

    /// After a cut at any place, an array loses only the truncated reading, with a reject, and
    /// gains none. A single line is never compared with an earlier one, so it is the reference.
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

    /// The same for line protocol, with lines of a few series in turns.
    #[test]
    fn similar_lines_of_line_protocol_decode_like_single_ones(
        sources in prop::collection::vec((line_reading(), 0usize..2), 1..4),
        row_refs in prop::collection::vec((any::<prop::sample::Index>(), "[a-z=\\\\]{1,4}", -1000i64..1000, 0u32..4), 1..40),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 1u8..127), 0..3),
    ) {
        let mut lines: Vec<Vec<u8>> = row_refs.iter().map(|(source, text, v, places)| {
            let ((measurement, reading), gap) = &sources[source.index(sources.len())];
            let mut reading = reading.clone();
            reading.tags.values_mut().take(1).for_each(|tag| tag.push_str(text.trim_end_matches('\\')));
            for (i, value) in reading.values.values_mut().enumerate() {
                match value {
                    Value::Double(d) if i % 2 == 0 => *d = *v as f64 / 10f64.powi(*places as i32),
                    Value::Int(n) => *n = n.wrapping_add(*v),
                    _ => {}
                }
            }
            line(&(measurement.clone(), reading), *gap).into_bytes()
        }).collect();
        for (line, at, byte) in damage {
            let n = line.index(lines.len());
            let at = at.index(lines[n].len());
            lines[n][at] = byte;
        }
        // A text may have several lines, so only complete lines can be compared.
        let payload = lines.join(&b"\n"[..]);
        let (all, rejects) = run(Format::Line, &payload);
        let (expected, expected_rejects) = run_one_by_one(Format::Line, &payload);
        prop_assert_eq!(format!("{all:?}"), format!("{expected:?}"));
        prop_assert_eq!(rejects.list(), expected_rejects.list());
    }

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

    #[test]
    fn a_scalar_is_the_number_that_was_written(v in any::<f64>(), i in any::<i64>()) {
        let limits = limits();
        let cx = Context {
            limits: &limits, line: &Config::default().line, received_at_ms: NOW, ts_unit: None, sensor_id: Some("S"), field: Some("f"), tags: &[], ..Context::usual() };
        let one = |text: String| {
            let mut out = BatchBuilder::new(64);
            let mut rejects = Rejects::new();
            decode(Format::Scalar, text.as_bytes(), &cx, &mut out, &mut rejects);
            out.finish().to_readings().pop().map(|r| r.values["f"].clone())
        };
        prop_assert_eq!(one(i.to_string()), Some(Value::Int(i)));
        prop_assert_eq!(one(format!("{v:?}")), v.is_finite().then_some(Value::Double(v)));
    }

    #[test]
    fn line_protocol_round_trips(
        lines in prop::collection::vec(prop_oneof![4 => (line_reading(), 0..3usize).prop_map(Ok), 1 => Just(Err(()))], 1..8),
        crlf in any::<bool>(),
    ) {
        let bad = "m,t= f=1 # no value";
        let texts: Vec<String> =
            lines.iter().map(|l| l.as_ref().map_or_else(|()| bad.to_owned(), |(l, gap)| line(l, *gap))).collect();
        let payload = texts.join(if crlf { "\r\n# a comment\r\n\r\n" } else { "\n" });
        let (readings, rejects) = run(Format::Line, payload.as_bytes());
        let good: Vec<&Reading> = lines.iter().filter_map(|l| l.as_ref().ok().map(|((_, reading), _)| reading)).collect();
        prop_assert_eq!(format!("{:?}", readings), format!("{:?}", good), "{}", payload);
        prop_assert_eq!(rejects.total(), lines.len() - good.len(), "{}", payload);
        for reject in rejects.list() {
            prop_assert_eq!(payload.split('\n').nth(reject.index).map(str::trim_end), Some(bad));
        }
    }

    /// A payload that is cut anywhere, or has other bytes in it, gives no reading that was not
    /// sent.
    #[test]
    fn damaged_line_protocol_invents_nothing(
        lines in prop::collection::vec(line_reading(), 1..5),
        at in any::<prop::sample::Index>(),
    ) {
        let texts: Vec<String> = lines.iter().map(|l| line(l, 0)).collect();
        let payload = texts.join("\n").into_bytes();
        let cut = at.index(payload.len());
        let (readings, rejects) = run(Format::Line, &payload[..cut]);
        // A truncated number or time has another value; the line breaks determine the maximum
        // number of lines.
        prop_assert!(readings.len() + rejects.total() <= lines.len() + payload.iter().filter(|b| **b == b'\n').count());
        let mut damaged = payload.clone();
        damaged[cut] = 0xff;
        let (_, rejects) = run(Format::Line, &damaged);
        prop_assert!(!rejects.is_empty(), "a line that is not UTF-8 is not accepted");
    }
}
