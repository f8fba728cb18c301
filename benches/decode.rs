//! CPU time of decoding the same readings in each format, in one thread. `cargo bench --bench
//! decode`.
//!
//! The payload is a gateway's body: a thousand readings of two hundred sensors, with two tags and
//! five fields each.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark that prints its results"
)]

use std::fmt::Write;

use hourbucket::config::Config;
use hourbucket::decode::{Context, Format, Rejects, decode};
use hourbucket::model::BatchBuilder;

const NOW: i64 = 1_709_290_800_000;
const READINGS: usize = 1000;
const ROUNDS: usize = 300;

/// CPU time of this thread in seconds. On a busy machine, elapsed time is not meaningful.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    stat.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e9
}

fn main() {
    let config = Config::default();
    let mut tagged = String::new();
    let mut series = String::new();
    let mut json = String::new();
    for i in 0..READINGS {
        let sensor = i % 200;
        let ts = NOW - 1000 * i as i64;
        let n = i as f64;
        let a = 20.0 + n / 100.0;
        let b = 1000.5 - n / 7.0;
        let c = i % 100;
        let fields =
            format!("temperature={a:.2},pressure={b:.3},humidity={c}i,battery=3.02,on=true");
        let end = format!("{fields} {ts}000000");
        writeln!(
            tagged,
            "weather,floor=2,sensor_id=S{sensor:06},site=north {end}"
        )
        .unwrap();
        writeln!(
            series,
            "weather,device=S{sensor:06},floor=2,site=north {end}"
        )
        .unwrap();
        writeln!(
            json,
            "{{\"sensor_id\":\"S{sensor:06}\",\"ts\":{ts},\"tags\":{{\"floor\":\"2\",\"site\":\"north\"}},\"values\":\
             {{\"temperature\":{a:.2},\"pressure\":{b:.3},\"humidity\":{c},\"battery\":3.02,\"on\":true}}}}"
        )
        .unwrap();
    }
    println!(
        "{:<36}{:>12}{:>14}{:>12}",
        "", "MB", "readings/s", "CPU-s/M"
    );
    for (what, format, payload) in [
        ("line, the sensor in a tag", Format::Line, &tagged),
        ("line, the sensor is the series", Format::Line, &series),
        ("ndjson", Format::Ndjson, &json),
    ] {
        let cx = Context {
            limits: &config.limits,
            line: &config.line,
            received_at_ms: NOW,
            ts_unit: format.ts_unit_usual(),
            sensor_id: None,
            field: None,
            tags: &[],
            ..Context::usual()
        };
        let mut out = BatchBuilder::new(config.limits.fields_max);
        let mut rejects = Rejects::new();
        let before = cpu_seconds();
        for _ in 0..ROUNDS {
            decode(format, payload.as_bytes(), &cx, &mut out, &mut rejects);
            assert_eq!((out.finish().len(), rejects.total()), (READINGS, 0));
        }
        let took = cpu_seconds() - before;
        let n = (READINGS * ROUNDS) as f64;
        let megabytes = (payload.len() * ROUNDS) as f64 / 1e6;
        println!(
            "{what:<36}{megabytes:>12.0}{:>14.0}{:>12.2}",
            n / took,
            took / n * 1e6
        );
    }
}
