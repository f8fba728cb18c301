//! The decoders against real payloads from the field, each with the readings that a person would
//! expect.
//!
//! The collection is not part of the repository: `HOURBUCKET_PAYLOADS` names its directory, default
//! `../shared/payloads`; without one the test reports that. It contains `expected.jsonl`, a line
//! for each file. [`RULES`] defines how each family is decoded; a new format is a few lines there.
//! The results are printed by family, with each sample that differs from the expectation: `cargo
//! test --test pure payloads:: -- --nocapture`.
//!
//! The marked families must match: everything is as expected, or listed in [`CHOSEN`].

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test, and a report"
)]

mod rules;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use config::{Config, Line};
use decode::sparkplug::Sparkplug;
use decode::{Captured, Context, Formats, RejectReason, Rejects, TopicTemplate, TsUnit};
use model::{BatchBuilder, Reading, Value};
use serde_json::Value as Json;

use rules::{CHOSEN, RULES, Rule};

const NOW: i64 = 1_790_000_000_000;

fn directory() -> Option<PathBuf> {
    let named = std::env::var_os("HOURBUCKET_PAYLOADS").map(PathBuf::from);
    let dir = named.unwrap_or_else(|| {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("../shared/payloads")
    });
    dir.join("expected.jsonl").is_file().then_some(dir)
}

/// The configuration: defaults, and the formats in `tests/payloads`.
fn config() -> Config {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .join("tests/payloads/formats.toml");
    let mut config = config::load(Some(&path), std::iter::empty())
        .unwrap_or_else(|e| panic!("{e}"))
        .config;
    let ever = Duration::from_secs(9000 * 365 * 86_400);
    (config.limits.past, config.limits.future) = (ever, ever);
    config
}

fn decoded(config: &Config, rule: &Rule, sample: &Json, payload: &[u8]) -> (Vec<Reading>, Rejects) {
    let line = Line {
        sensor_id_tag: rule.sensor_id_tag.to_owned(),
        field_prefix: rule.sensor_id_tag != "sensor_id",
    };
    let templates: Vec<TopicTemplate> = rule
        .templates
        .iter()
        .map(|t| TopicTemplate::parse(t).unwrap())
        .collect();
    let topic = sample["topic"].as_str();
    let captured = topic.and_then(|topic| {
        templates
            .iter()
            .find_map(|template| template.capture(topic))
    });
    let Captured {
        sensor_id,
        field,
        tags,
    } = captured.unwrap_or_default();
    if rule.format == "sparkplug" {
        return sparkplug(sample, payload, config);
    }
    // Only the caller knows the text in angle brackets: the device that a token belongs to.
    let of_token = sample["readings"][0]["sensor"]
        .as_str()
        .filter(|sensor| sensor.starts_with('<'));
    let of_token = of_token.or((topic == Some("v1/devices/me/telemetry")).then_some("<device>"));
    let decoder = Formats::new(&config.decoding()).get(rule.format).unwrap();
    let ts_unit =
        precision(sample["http"].as_str().unwrap_or_default()).or(decoder.ts_unit_usual());
    let limits = &config.limits;
    let sensor_id = sensor_id.or(of_token);
    let cx = Context {
        limits,
        line: &line,
        received_at_ms: NOW,
        ts_unit,
        sensor_id,
        field,
        tags: &tags,
        ..Context::usual()
    };
    let mut out = BatchBuilder::new(limits.fields_max);
    let mut rejects = Rejects::new();
    decoder.decode(payload, topic, &cx, &mut out, &mut rejects);
    (out.finish().to_readings(), rejects)
}

/// A message of Sparkplug B, after a birth if the expectation requires one.
fn sparkplug(sample: &Json, payload: &[u8], config: &Config) -> (Vec<Reading>, Rejects) {
    let limits = &config.limits;
    let line = &config.line;
    let cx = Context {
        limits,
        line,
        received_at_ms: NOW,
        ..Context::usual()
    };
    let mut state = Sparkplug::new();
    let mut take = |topic: &str, payload: &[u8]| {
        let mut out = BatchBuilder::new(limits.fields_max);
        let mut rejects = Rejects::new();
        state.decode(topic, payload, &cx, &mut out, &mut rejects);
        (out.finish().to_readings(), rejects)
    };
    let file = sample["file"].as_str().unwrap();
    let topic = sample["topic"].as_str().unwrap();
    if file.contains("NDATA_GAP") || file.contains("NDATA_WRAPAROUND") {
        let birth = std::fs::read(
            directory()
                .unwrap()
                .join("07_sparkplug_b/umh_NBIRTH_V1.pb.bin"),
        )
        .unwrap();
        assert_eq!(take("spBv1.0/G/NBIRTH/E1", &birth).0.len(), 1);
    }
    take(topic, payload)
}

/// The precision of the request, if there is exactly one.
fn precision(http: &str) -> Option<TsUnit> {
    let mut named = http
        .split("precision=")
        .skip(1)
        .filter(|_| !http.contains('|'));
    let name = named
        .next()?
        .split(|c: char| !c.is_ascii_alphanumeric())
        .next()?;
    match name {
        "second" => Some(TsUnit::S),
        "u" => Some(TsUnit::Us),
        other => other.parse().ok(),
    }
}

/// The accepted times: milliseconds, or `receive`; empty if the expectation does not define one.
fn times(words: &str) -> Vec<String> {
    let tokens: Vec<&str> = words
        .split_whitespace()
        .map(|t| t.trim_matches(['(', ')', ',']))
        .collect();
    if let ["receive", "-", seconds, "s", ..] = tokens[..] {
        return vec![(NOW - (seconds.parse::<f64>().unwrap() * 1000.0) as i64).to_string()];
    }
    let mut right: Vec<String> = tokens
        .iter()
        .filter(|t| **t == "receive")
        .map(|t| (*t).to_owned())
        .collect();
    for (i, token) in tokens.iter().enumerate() {
        if let Ok(time) = chrono::DateTime::parse_from_rfc3339(token) {
            right.push(time.timestamp_millis().to_string());
        }
        if let (Ok(ns), Some(&"ns")) = (token.parse::<i64>(), tokens.get(i + 1)) {
            right.push(ns.div_euclid(1_000_000).to_string());
        }
    }
    right
}

fn written(value: &Json) -> Option<String> {
    match value {
        Json::Bool(v) => Some(v.to_string()),
        Json::Number(v) => Some(format!("{:?}", v.as_f64()? + 0.0)),
        Json::String(v) => Some(format!("{v:?}")),
        _ => None,
    }
}

fn of_value(value: &Value) -> String {
    match value {
        Value::Double(v) => format!("{:?}", v + 0.0),
        Value::Int(v) => format!("{:?}", *v as f64),
        Value::Bool(v) => v.to_string(),
        Value::Str(v) => format!("{v:?}"),
    }
}

/// Whether a sensor id is the expected one. In the collection, a series has only its measurement as
/// id.
fn same_sensor(rule: &Rule, expected: &str, id: &str) -> bool {
    // Text in parentheses after the id is additional.
    let expected = expected.split(" (").next().unwrap_or_default();
    id == expected
        || (rule.format == "line"
            && id
                .strip_prefix(expected)
                .is_some_and(|rest| rest.starts_with(',')))
}

/// The difference between the result and the expectation, or nothing.
fn difference(
    rule: &Rule,
    sample: &Json,
    readings: &[Reading],
    rejects: &Rejects,
) -> Option<String> {
    let outcome = sample["outcome"].as_str().unwrap();
    let reject_text = || {
        rejects.list().first().map_or("no reject".to_owned(), |r| {
            format!("{}: {}", r.reason, r.detail)
        })
    };
    let n = readings.len();
    match outcome {
        "no-crash" => return None,
        "limit" => return rejects.is_empty().then(|| "no limit was met".to_owned()),
        "reject" if n > 0 || rejects.is_empty() => {
            return Some(format!("{n} readings, {}", reject_text()));
        }
        "empty" if n > 0 => return Some(format!("{n} readings")),
        "no-readings" if n > 0 || !rejects.is_empty() => {
            return Some(format!("{n} readings, {}", reject_text()));
        }
        "reject" | "empty" | "no-readings" => return None,
        // Rejected with a reason, as the collection allows for these.
        "readings" if is_bad_time(sample, rejects) => return None,
        "partial" if rejects.is_empty() => return Some("nothing was rejected".to_owned()),
        "readings" if !rejects.is_empty() => return Some(reject_text()),
        _ => {}
    }
    let mut left: Vec<(&Reading, &str, String)> = readings
        .iter()
        .flat_map(|r| {
            r.values
                .iter()
                .map(move |(name, value)| (r, name.as_str(), of_value(value)))
        })
        .collect();
    let mut open = false;
    for expected in sample["readings"].as_array().into_iter().flatten() {
        let sensor = expected["sensor"].as_str().unwrap();
        let right = times(expected["time"].as_str().unwrap());
        let members = |key: &str| expected[key].as_object().cloned().unwrap_or_default();
        for (name, value) in members("fields").into_iter().chain(members("strings")) {
            if name == "..." {
                open = true;
                continue;
            }
            let name = if name.is_empty() {
                "_".to_owned()
            } else {
                name.replace('.', "_")
            };
            let value = written(&value)?;
            let found = left.iter().position(|(r, field, v)| {
                let time = if r.receipt_time {
                    "receive".to_owned()
                } else {
                    r.ts_ms.to_string()
                };
                let in_time = right.is_empty() || right.contains(&time);
                in_time && same_sensor(rule, sensor, &r.sensor_id) && *field == name && *v == value
            });
            match found {
                Some(i) => drop(left.swap_remove(i)),
                None => {
                    return Some(format!(
                        "no {sensor} {} {name} = {value}",
                        right.join(" or ")
                    ));
                }
            }
        }
        for (name, value) in members("tags") {
            let tag = |r: &Reading| {
                r.tags.get(&name.replace('.', "_")).map(String::as_str) == value.as_str()
            };
            if !readings
                .iter()
                .any(|r| same_sensor(rule, sensor, &r.sensor_id) && tag(r))
            {
                return Some(format!("no tag {name} = {value} of {sensor}"));
            }
        }
    }
    // Texts other than the measured values are not listed in the collection.
    left.retain(|(_, _, value)| !value.starts_with('"'));
    let (r, name, value) = left.first().filter(|_| !open)?;
    Some(format!("not expected: {} {name} = {value}", r.sensor_id))
}

/// Whether a bad time was expected, and rejected as such.
fn is_bad_time(sample: &Json, rejects: &Rejects) -> bool {
    let expected = sample["readings"][0]["time"]
        .as_str()
        .is_some_and(|time| time.contains("reject-time"));
    expected
        && rejects
            .list()
            .iter()
            .all(|reject| reject.reason == RejectReason::BadTimestamp)
        && !rejects.is_empty()
}

/// The results of a family.
#[derive(Default)]
struct Family {
    samples: usize,
    right: usize,
    chosen: usize,
    undecoded: usize,
}

#[test]
fn payloads_from_the_field_give_the_expected_readings() {
    let Some(dir) = directory() else {
        println!("skipped: no collection of payloads (HOURBUCKET_PAYLOADS, or ../shared/payloads)");
        return;
    };
    let expected = std::fs::read_to_string(dir.join("expected.jsonl")).unwrap();
    let config = config();
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut broken = vec![];
    for line in expected.lines() {
        let sample: Json = serde_json::from_str(line).unwrap();
        let file = sample["file"].as_str().unwrap();
        let payload = std::fs::read(dir.join(file)).unwrap();
        let family = families
            .entry(sample["family"].as_str().unwrap().to_owned())
            .or_default();
        family.samples += 1;
        let fits = |rule: &&Rule| {
            file.starts_with(rule.begins) && rule.ends.iter().any(|end| file.ends_with(end))
        };
        let Some(rule) = RULES.iter().find(fits) else {
            family.undecoded += 1;
            continue;
        };
        let (readings, rejects) = decoded(&config, rule, &sample, &payload);
        let chosen = CHOSEN.iter().find(|(name, _)| *name == file);
        match (difference(rule, &sample, &readings, &rejects), chosen) {
            (None, _) => family.right += 1,
            (Some(what), Some((_, why))) => {
                family.chosen += 1;
                println!("{file}: {what}\n    chosen: {why}");
            }
            (Some(what), None) => {
                println!("{file}: {what}");
                if rule.held {
                    broken.push(format!("{file}: {what}"));
                }
            }
        }
    }
    println!(
        "\n{:<28}{:>8}{:>10}{:>8}{:>8}{:>12}",
        "family", "samples", "expected", "chosen", "other", "no decoder"
    );
    for (name, f) in &families {
        let other = f.samples - f.right - f.chosen - f.undecoded;
        println!(
            "{name:<28}{:>8}{:>10}{:>8}{other:>8}{:>12}",
            f.samples, f.right, f.chosen, f.undecoded
        );
    }
    assert!(
        broken.is_empty(),
        "not as expected, and not in CHOSEN:\n{}",
        broken.join("\n")
    );
}
