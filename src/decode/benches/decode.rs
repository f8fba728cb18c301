//! CPU time of decoding the same readings in each format, in one thread. `cargo bench --bench
//! decode`.
//!
//! The payloads are a gateway's bodies: a thousand readings of two hundred sensors, with two tags and
//! five fields each. The numbers have lengths that vary at random, and there are many bodies. With
//! one body that repeats, the processor learns after which byte each number ends. Many of the
//! temperatures have all the digits of a double, as programs print a value they computed.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark that prints its results"
)]

use std::fmt::Write;

use config::Config;
use decode::{Context, Format, Rejects, decode};
use model::BatchBuilder;

/// The service's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const NOW: i64 = 1_709_290_800_000;
const BODIES: usize = 50;
const READINGS: usize = 1000;
const ROUNDS: usize = 60;

/// CPU time of this thread in seconds. On a busy machine, elapsed time is not meaningful.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    stat.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e9
}

/// The next number of a sequence that looks random, below `limit`.
fn next(seed: &mut u64, limit: u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed % limit
}

/// A body in each format.
#[derive(Default)]
struct Body {
    tagged: String,
    series: String,
    json: String,
    array: String,
}

impl Body {
    fn new(seed: &mut u64) -> Body {
        let mut body = Body::default();
        for i in 0..READINGS {
            let sensor = next(seed, 200);
            let site = ["north", "south-west", "roof"][next(seed, 3) as usize];
            let ts = NOW - 1000 * i as i64;
            let a = next(seed, 4000) as f64 / 100.0 - 10.0;
            let b = next(seed, 200_000) as f64 / 100.0;
            let c = next(seed, 5000);
            let d = next(seed, 1000) as f64 / 1000.0;
            let fields = format!("temperature={a},pressure={b},humidity={c}i,battery={d},on=true");
            let end = format!("{fields} {ts}000000");
            writeln!(
                body.tagged,
                "weather,floor=2,sensor_id=S{sensor:06},site={site} {end}"
            )
            .unwrap();
            writeln!(
                body.series,
                "weather,device=S{sensor:06},floor=2,site={site} {end}"
            )
            .unwrap();
            writeln!(
                body.json,
                "{{\"sensor_id\":\"S{sensor:06}\",\"ts\":{ts},\"tags\":{{\"floor\":\"2\",\"site\":\"{site}\"}},\"values\":\
                 {{\"temperature\":{a},\"pressure\":{b},\"humidity\":{c},\"battery\":{d},\"on\":true}}}}"
            )
            .unwrap();
        }
        body.array = format!("[{}]", body.json.trim_end().replace('\n', ","));
        body
    }
}

fn main() {
    let config = Config::default();
    let mut seed = 1;
    let bodies: Vec<Body> = (0..BODIES).map(|_| Body::new(&mut seed)).collect();
    println!(
        "{:<36}{:>12}{:>14}{:>12}",
        "", "MB", "readings/s", "CPU-s/M"
    );
    type Part = fn(&Body) -> &str;
    let formats: [(_, _, Part); 4] = [
        ("line, the sensor in a tag", Format::Line, |body| {
            &body.tagged
        }),
        ("line, the sensor is the series", Format::Line, |body| {
            &body.series
        }),
        ("ndjson", Format::Ndjson, |body| &body.json),
        ("json, an array", Format::Json, |body| &body.array),
    ];
    for (what, format, part) in formats {
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
        for body in std::iter::repeat_n(&bodies, ROUNDS).flatten() {
            decode(format, part(body).as_bytes(), &cx, &mut out, &mut rejects);
            assert_eq!((out.finish().len(), rejects.total()), (READINGS, 0));
        }
        let took = cpu_seconds() - before;
        let n = (READINGS * BODIES * ROUNDS) as f64;
        let bytes: usize = bodies.iter().map(|body| part(body).len()).sum();
        let megabytes = (bytes * ROUNDS) as f64 / 1e6;
        println!(
            "{what:<36}{megabytes:>12.0}{:>14.0}{:>12.2}",
            n / took,
            took / n * 1e6
        );
    }
}
