//! Bytes and time of each value of a day, a reading a minute: encoded, decoded, and as rich hours, in
//! one thread. `cargo bench -p columns --bench columns`.
//!
//! Below them what is done with whole days: of a sensor with three fields, and of a range of
//! one of them.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark that prints its results"
)]

use std::hint::black_box;

use columns::{DayEncoder, HoursEncoder, Line, Part, Weighting, same_readings};
use model::{RowFlags, Rows, ValueRef};

/// The service's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const READINGS: usize = 1440;
const MINUTE: i64 = 60_000;
const DAY_MS: i64 = 24 * 60 * MINUTE;
const ROUNDS: usize = 200;

/// CPU time of this thread in nanoseconds. On a busy machine, elapsed time is not meaningful.
fn cpu_ns() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    stat.split(' ').next().unwrap().parse().unwrap()
}

/// CPU time of a call for each of `values`, in nanoseconds.
fn ns<T>(values: usize, mut call: impl FnMut() -> T) -> f64 {
    black_box(call());
    let before = cpu_ns();
    for _ in 0..ROUNDS {
        black_box(call());
    }
    (cpu_ns() - before) / (ROUNDS * values) as f64
}

fn encode(rows: &Rows) -> Part {
    let mut encoder = DayEncoder::default();
    assert!(encoder.add(rows).is_empty());
    encoder.finish().unwrap()
}

/// What the first hours of all fields rose by.
fn hours(rows: &Rows) -> f64 {
    let bounds = (0..=24).map(|hour| hour * 60 * MINUTE).collect();
    let weighting = Weighting {
        line: Line::Straight,
        gap_max_ms: i64::MAX,
    };
    let mut encoder = HoursEncoder::new(bounds, weighting.into());
    encoder.add(rows);
    let day = encoder.finish();
    let first = day.fields.values().map(|hours| &hours[0].1);
    first
        .filter_map(|hour| Some(hour.numbers.as_ref()?.increase))
        .sum()
}

fn rows<'v>(
    times: impl Fn(i64) -> i64,
    mut values: impl FnMut() -> Vec<(&'v str, ValueRef<'v>)>,
) -> Rows {
    let mut rows = Rows::default();
    for minute in 0..READINGS as i64 {
        rows.push_named(times(minute), RowFlags::default(), &values());
    }
    rows
}

fn steady(minute: i64) -> i64 {
    minute * MINUTE
}

fn main() {
    values();
    times();
    days();
}

/// Values of several kinds, each alone in its day.
fn values() {
    println!(
        "{:<34}{:>9}{:>11}{:>11}{:>11}",
        "", "bytes", "encode ns", "decode ns", "hours ns"
    );
    let mut random = fastrand::Rng::with_seed(7);
    let mut temp = 2137;
    let mut energy = 123_456_789;
    let mut status = "ok";
    let mut one = |what: &str, value: &mut dyn FnMut(&mut fastrand::Rng) -> ValueRef<'static>| {
        let all = rows(steady, || vec![("v", value(&mut random))]);
        let part = encode(&all);
        let entries = &part.columns["v"];
        let bytes: usize = entries.iter().map(|entry| entry.data.len()).sum();
        // Without the times, which are those of every row.
        let times = rows(steady, Vec::new);
        println!(
            "{what:<34}{:>9.3}{:>11.1}{:>11.1}{:>11.1}",
            bytes as f64 / READINGS as f64,
            ns(READINGS, || encode(&all)) - ns(READINGS, || encode(&times)),
            ns(READINGS, || part.decode().unwrap())
                - ns(READINGS, || part
                    .decode_range(0, DAY_MS, |_| false)
                    .unwrap()),
            ns(READINGS, || hours(&all)),
        );
    };
    one("temperature in hundredths", &mut |random| {
        temp += random.i64(-3..=3);
        ValueRef::Double(temp as f64 / 100.0)
    });
    one("energy counter", &mut |random| {
        energy += random.i64(0..=3);
        ValueRef::Double(energy as f64 / 1000.0)
    });
    one("noise in tenths", &mut |random| {
        let sum: i64 = (0..6).map(|_| random.i64(0..=40)).sum();
        ValueRef::Double((400 + sum) as f64 / 10.0)
    });
    one("status, a text", &mut |random| {
        if random.u8(..) < 6 {
            status = ["ok", "on", "off", "unavailable"][random.usize(..4)];
        }
        ValueRef::Str(status)
    });
    one("booleans at random", &mut |random| {
        ValueRef::Bool(random.bool())
    });
    one("full doubles", &mut |random| {
        ValueRef::Double(20.0 + random.f64())
    });
}

fn times() {
    let jittery = |minute| minute * MINUTE + minute * minute * 7919 % 389;
    for (what, times) in [
        ("times at a steady minute", &steady as &dyn Fn(i64) -> i64),
        ("times at a jittery minute", &jittery),
    ] {
        let all = rows(times, Vec::new);
        let part = encode(&all);
        println!(
            "{what:<34}{:>9.3}{:>11.1}{:>11.1}",
            part.ts.len() as f64 / READINGS as f64,
            ns(READINGS, || encode(&all)),
            ns(READINGS, || part.decode().unwrap()),
        );
    }
}

/// What is done with the whole day of a sensor.
fn days() {
    let mut random = fastrand::Rng::with_seed(9);
    let mut temp = 2137;
    let mut energy = 123_456_789;
    let all = rows(steady, || {
        temp += random.i64(-3..=3);
        energy += random.i64(0..=3);
        vec![
            ("temp", ValueRef::Double(temp as f64 / 100.0)),
            ("energy", ValueRef::Double(energy as f64 / 1000.0)),
            ("door", ValueRef::Bool(random.u8(..) < 9)),
        ]
    });
    let part = encode(&all);
    let decoded = part.decode().unwrap();
    println!("\n{:<34}{:>11}", "a day with three fields", "ns/reading");
    let print = |what: &str, ns: f64| println!("{what:<34}{ns:>11.1}");
    print("encode", ns(READINGS, || encode(&all)));
    print("hours", ns(READINGS, || hours(&all)));
    print(
        "decode to columns",
        ns(READINGS, || part.decode().unwrap().times().len()),
    );
    print(
        "values of a field",
        ns(READINGS, || decoded.values("temp").count()),
    );
    print("rows", ns(READINGS, || decoded.rows()));
    print(
        "compare",
        ns(READINGS, || same_readings(&decoded.rows(), &all)),
    );
}
