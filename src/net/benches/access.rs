//! CPU time that access control takes from each reading: its share of decoding, in one thread.
//! `cargo bench -p net --bench access`.
//!
//! - *sensors*: the patterns in `write`, compared with the sensor id of each reading.
//! - *tag*: `ingest.sender_tag`.
//! - *quota*: what a request costs beside its readings: the token's hash, its lookup, rates and
//!   share of the journal. It is spread over the readings of one body here, as in `loadtest pair
//!   gateway`, whose bodies have as many.
//!
//! The limit is 3 % of the service's CPU time per reading in `loadtest pair gateway`;
//! loadtest/README.md has the command. Decoding is about half of that time.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark that prints its results"
)]

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use config::Config;
use decode::{Context, Format, Rejects, decode};
use model::{BatchBuilder, Now, SensorPatterns};
use net::access::{Grant, GrantDefaults, Quota, Tokens, hash_secret};

const NOW: i64 = 1_709_290_800_000;
/// Of one body.
const READINGS: usize = 1000;
/// Bodies of one measurement, and measurements of each kind, of which the fastest counts.
const BODIES: usize = 200;
const MEASUREMENTS: usize = 7;

/// CPU time of this thread in seconds. On a busy machine, elapsed time is not meaningful.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    stat.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e9
}

/// CPU time per reading in nanoseconds: the fastest of several measurements.
fn per_reading(mut body: impl FnMut()) -> f64 {
    let mut measure = || {
        let before = cpu_seconds();
        (0..BODIES).for_each(|_| body());
        (cpu_seconds() - before) / (BODIES * READINGS) as f64 * 1e9
    };
    (0..MEASUREMENTS)
        .map(|_| measure())
        .fold(f64::INFINITY, f64::min)
}

/// Decodes a body for a sender, as a request does.
fn decoding(config: &Config, body: &str, sender: Option<Arc<Grant>>, tag: Option<&str>) -> f64 {
    let mut out = BatchBuilder::new(config.limits.fields_max);
    let mut rejects = Rejects::new();
    let tag = tag.map(Arc::from);
    per_reading(|| {
        let cx = Context {
            limits: &config.limits,
            line: &config.line,
            received_at_ms: NOW,
            ts_unit: Format::Line.ts_unit_usual(),
            ..Context::usual()
        };
        Grant::apply(sender.as_ref(), tag.as_ref(), false, &mut out);
        decode(Format::Line, body.as_bytes(), &cx, &mut out, &mut rejects);
        assert_eq!((out.finish().len(), rejects.total()), (READINGS, 0));
    })
}

/// The work for one request beside its readings.
fn request(body_bytes: usize) -> f64 {
    let file = tempfile::NamedTempFile::new().unwrap();
    let entry = |n: usize| {
        format!(
            "[[tokens]]\nid = \"gw{n}\"\nsha256 = \"{}\"\n",
            hash_secret(&format!("secret{n}"))
        )
    };
    std::fs::write(file.path(), (0..1000).map(entry).collect::<String>()).unwrap();
    let tokens = Tokens::load("bench", file.path(), &GrantDefaults::unlimited()).unwrap();
    let quota = Quota {
        readings_per_second: Some(u64::MAX >> 12),
        bytes_per_second: Some(u64::MAX >> 12),
        burst: Duration::from_secs(3600),
        journal_bytes: Some(u64::MAX),
        requests_max: Some(64),
        ..Quota::unlimited()
    };
    let mut mono_ms = 0;
    per_reading(|| {
        mono_ms += 1;
        let grant = tokens.of_secret("gw500", "secret500").unwrap();
        grant
            .check_sender(net::access::Protocol::Http, NOW)
            .unwrap();
        grant
            .usage
            .check(
                &quota,
                Now {
                    wall_ms: NOW,
                    mono_ms,
                }
                .mono_ms,
            )
            .unwrap();
        let held = grant.usage.request(&quota).unwrap();
        grant.usage.charge(&quota, READINGS, body_bytes);
        drop(held);
    })
}

fn main() {
    let config = Config::default();
    let mut body = String::new();
    for i in 0..READINGS {
        let sensor = i;
        let ts = NOW - 1000 * i as i64;
        let n = i as f64;
        let a = 20.0 + n / 100.0;
        let b = 1000.5 - n / 7.0;
        writeln!(
            body,
            "weather,floor=2,sensor_id=gw1-{sensor:06},site=north \
             temperature={a:.2},pressure={b:.3} {ts}000000"
        )
        .unwrap();
    }
    let grant = |patterns: &[&'static str]| {
        let write = Some(SensorPatterns::parse(patterns.iter().copied()).unwrap());
        Some(Arc::new(Grant {
            write,
            ..Grant::unlimited("gw1")
        }))
    };
    // The last of a hundred matches.
    let hundred: Vec<&'static str> = (0..99).map(|_| "other-*-x").chain(["gw1-*"]).collect();
    let plain = decoding(&config, &body, None, None);
    println!("{:<44}{:>14}{:>10}", "", "ns per reading", "more");
    println!("{:<44}{plain:>14.1}", "decoding without access control");
    for (what, took) in [
        (
            "sensors: one pattern",
            decoding(&config, &body, grant(&["gw1-*"]), None),
        ),
        (
            "sensors: three patterns, the last matches",
            decoding(&config, &body, grant(&["a-*", "b", "gw1-*"]), None),
        ),
        (
            "sensors: a hundred patterns, the last matches",
            decoding(&config, &body, grant(&hundred), None),
        ),
        (
            "tag",
            decoding(&config, &body, grant(&["*"]), Some("sender")),
        ),
        ("quota", plain + request(body.len())),
    ] {
        println!(
            "{what:<44}{took:>14.1}{:>9.1}%",
            (took / plain - 1.0) * 100.0
        );
    }
}
