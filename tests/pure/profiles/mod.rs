//! The shipped profiles, each with messages of its vendor: which values are stored, skipped and
//! rejected.

#![allow(clippy::unwrap_used, reason = "what a helper cannot do fails the test")]

mod devices;
mod lorawan;
mod platforms;

use std::time::Duration;

use config::Config;
use decode::{Context, Formats, Rejects};
use model::{BatchBuilder, Reading, Value};

/// 2024-03-01T11:00:00Z
const NOW_MS: i64 = 1_709_290_800_000;

/// Each reading as `id@time{name=value ...}[tag=text ...]`, with the time in milliseconds or `now`
/// for the time of receipt; then each reject by its reason.
fn listed(profile: &str, topic: &str, payload: &str) -> Vec<String> {
    listed_with(&Config::default(), profile, topic, payload)
}

fn listed_with(config: &Config, profile: &str, topic: &str, payload: &str) -> Vec<String> {
    let mut config = config.clone();
    config.limits.past = Duration::from_secs(20 * 365 * 86_400);
    let decoding = config.decoding();
    // Only the token of ThingsBoard's devices is known.
    let sensor_id = (profile == "thingsboard-telemetry" && topic.is_empty()).then_some("token-7");
    let cx = Context {
        sensor_id,
        ..Context::new(&decoding, NOW_MS)
    };
    let mut out = BatchBuilder::new(config.limits.fields_max);
    let mut rejects = Rejects::new();
    let decoder = Formats::new(&config.decoding()).get(profile).unwrap();
    decoder.decode(
        payload.as_bytes(),
        Some(topic).filter(|t| !t.is_empty()),
        &cx,
        &mut out,
        &mut rejects,
    );
    let readings = out.finish().to_readings();
    readings
        .iter()
        .map(show)
        .chain(rejects.list().iter().map(|r| r.reason.to_string()))
        .collect()
}

fn show(reading: &Reading) -> String {
    let values = reading.values.iter().map(|(name, value)| match value {
        Value::Double(v) => format!("{name}={v:?}"),
        Value::Int(v) => format!("{name}={v}"),
        Value::Bool(v) => format!("{name}={v}"),
        Value::Str(v) => format!("{name}={v:?}"),
    });
    let tags: Vec<String> = reading
        .tags
        .iter()
        .map(|(name, text)| format!("{name}={text}"))
        .collect();
    let time = if reading.receipt_time {
        "now".to_owned()
    } else {
        reading.ts_ms.to_string()
    };
    let tags = if tags.is_empty() {
        String::new()
    } else {
        format!("[{}]", tags.join(" "))
    };
    format!(
        "{}@{time}{{{}}}{tags}",
        reading.sensor_id,
        values.collect::<Vec<_>>().join(" ")
    )
}

/// Topic, payload and expected lines; an empty topic is none.
fn check(profile: &str, cases: &[(&str, &str, &[&str])]) {
    for (topic, payload, expected) in cases {
        assert_eq!(
            listed(profile, topic, payload),
            *expected,
            "{profile} {topic} {payload}"
        );
    }
}
