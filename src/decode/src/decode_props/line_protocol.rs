//! Properties of line protocol: readings are unchanged, and damage invents none.

use crate::{Format, Rejects};
use model::{Reading, Value};
use proptest::prelude::*;

use super::{NOW, run, run_with};

/// The same without the fast path, which is not used if readings get tags of the topic.
fn run_one_by_one(format: Format, payload: &[u8]) -> (Vec<Reading>, Rejects) {
    let (mut readings, rejects) = run_with(format, payload, &[("of the topic", "")]);
    for reading in &mut readings {
        assert_eq!(reading.tags.remove("of the topic").as_deref(), Some(""));
    }
    (readings, rejects)
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

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Like lines of JSON that are alike, with lines of a few series in turns.
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
