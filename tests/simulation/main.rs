//! Seeded simulations of router, accumulator, flush and store, with crashes, lost responses, wrong
//! clocks and a database that fails, in three kinds of histories:
//!
//! - [`steps`]: the pure state, driven step by step, with a crash between any two steps. Fast, and
//!   with the finest order.
//! - [`live`]: whole processes under paused time, with the real tasks, time limits, retries and
//!   permits. Liveness is a second oracle here.
//! - [`lost_answers`]: the real tasks without a process around them, on the memory store. Answers
//!   are lost after a write. Between the other two in speed.
//!
//! [`age`] checks figures: the control loop of the flush age with a simulated store, and
//! [`memory_pressure`], with a real shard that has less memory than its sensors need.
//!
//! A seed determines its history: `HOURBUCKET_SIM_SEED=17 cargo test --test simulation` runs one
//! of each kind; `HOURBUCKET_SIM_SEEDS=100000` is the long run, which continues after a failure
//! with `HOURBUCKET_SIM_ALL=1`. Live histories take a thousand times as long, so there are fewer of
//! them: `HOURBUCKET_SIM_LIVE_SEEDS`; of the last kind `HOURBUCKET_LOST_SEEDS`.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_macros,
    reason = "a test, with figures"
)]

mod age;
mod client;
mod days;
mod live;
mod lost_answers;
mod memory_pressure;
mod process;
mod removal;
mod server;
mod steps;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::{BuildHasherDefault, DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use model::{PageWrite, Reading, ReadingKey, Value, ValueRef};

const HOUR: i64 = 3_600_000;

/// The id of a sensor, of at most eight bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Sensor([u8; 8]);

impl Sensor {
    fn new(id: &str) -> Sensor {
        let mut bytes = [0; 8];
        bytes[..id.len()].copy_from_slice(id.as_bytes());
        Sensor(bytes)
    }

    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0)
            .expect("text")
            .trim_end_matches('\0')
    }
}

impl fmt::Debug for Sensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The identity of a reading, with a key of [`key`]. A history looks up thousands of them, so it is
/// small and its hash is cheap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Identity {
    sensor: Sensor,
    pub key: ReadingKey,
}

impl Hash for Identity {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(
            u64::from_le_bytes(self.sensor.0) ^ self.key.values_hash ^ self.key.ts_ms as u64,
        );
    }
}

/// The hasher of [`Identity`], which contains a hash already.
#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("an identity writes a number");
    }

    fn write_u64(&mut self, n: u64) {
        let wide = u128::from(n) * 0x9E37_79B9_7F4A_7C15;
        self.0 = (wide >> 64) as u64 ^ wide as u64;
    }
}

type Identities<T> = HashMap<Identity, T, BuildHasherDefault<Spread>>;

fn identity(reading: &Reading) -> Identity {
    Identity {
        sensor: Sensor::new(&reading.sensor_id),
        key: key(
            reading.ts_ms,
            reading.values.iter().map(|(n, v)| (n.as_str(), v.as_ref())),
        ),
    }
}

/// The key of a reading, determined differently than in the code: numbers are compared by all their
/// digits.
fn key<'a>(ts_ms: i64, values: impl Iterator<Item = (&'a str, ValueRef<'a>)>) -> ReadingKey {
    let digits = |value| match value {
        ValueRef::Int(v) => Ok(i128::from(v)),
        ValueRef::Double(v) if v as i128 as f64 == v => Ok(v as i128),
        ValueRef::Double(v) => Err(v.to_bits()),
        other => panic!("no history sends {other:?}"),
    };
    let values_hash = values.fold(0, |sum: u64, (name, value)| {
        let mut hasher = DefaultHasher::new();
        (name, digits(value)).hash(&mut hasher);
        sum.wrapping_add(hasher.finish())
    });
    ReadingKey { ts_ms, values_hash }
}

/// A reading that is sent again: half of the time by a program with other types of numbers, which
/// sends 21.0 for 21. A large number may be rounded, and then it is another reading.
fn again(rng: &mut fastrand::Rng, reading: &Reading) -> Reading {
    let mut reading = reading.clone();
    if rng.bool() {
        for value in reading.values.values_mut() {
            *value = match *value {
                Value::Int(v) => Value::Double(v as f64),
                Value::Double(0.0) => Value::Double(-0.0),
                Value::Double(v) if v.fract() == 0.0 => Value::Int(v as i64),
                _ => continue,
            };
        }
    }
    reading
}

/// The identities of the readings of a statement.
fn identities(write: &PageWrite) -> impl Iterator<Item = Identity> {
    let sensor = Sensor::new(&write.sensor_id);
    write.rows.iter().map(move |row| Identity {
        sensor,
        key: key(row.ts_ms, row.named()),
    })
}

/// Numbers whose sums round, are near the limits of integers, or sometimes overflow.
fn numbers(rng: &mut fastrand::Rng) -> BTreeMap<String, Value> {
    let double = match rng.u8(0..40) {
        0 => f64::MAX / f64::from(rng.i32(-4..4) * 2 + 1),
        1 => f64::from(rng.i32(-9..9)) * 1e18,
        _ => f64::from(rng.i32(-20..20)) * 0.1,
    };
    let mut values = BTreeMap::from([("v".to_owned(), Value::Double(double))]);
    if rng.bool() {
        let int = match rng.u8(0..20) {
            0 => i64::MAX - rng.i64(0..3),
            1 => i64::MIN + rng.i64(0..3),
            2 => (1 << 49) + rng.i64(-2..3),
            _ => rng.i64(-3..3),
        };
        values.insert("n".to_owned(), Value::Int(int));
    }
    values
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|n| n.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Runs the seed that the environment names, or as many as `variable` says.
fn run_all(kind: &str, variable: &str, default: u64, run: fn(u64)) {
    if let Some(seed) = number("HOURBUCKET_SIM_SEED") {
        println!("{kind}: seed {seed}");
        return run(seed);
    }
    let first = number("HOURBUCKET_SIM_FIRST").unwrap_or(0);
    let seeds = number(variable).unwrap_or(default);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicU64::new(first);
    let failed = AtomicU64::new(0);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + seeds {
                        break;
                    }
                    if std::panic::catch_unwind(|| run(seed)).is_err() {
                        eprintln!("{kind}: HOURBUCKET_SIM_SEED={seed}");
                        failed.fetch_add(1, Ordering::Relaxed);
                        if number("HOURBUCKET_SIM_ALL").is_none() {
                            next.store(first + seeds, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    let seconds = begun.elapsed().as_secs_f64();
    let done = next.into_inner().min(first + seeds) - first;
    let failed = failed.into_inner();
    assert_eq!(
        failed, 0,
        "{kind}: failed, of {done} seeds from {first} on; each is named above"
    );
    println!(
        "{kind}: {seeds} seeds in {seconds:.1} s, {:.0} a second",
        seeds as f64 / seconds
    );
}

#[test]
fn what_was_acknowledged_is_stored_exactly_once_whatever_happens() {
    run_all("steps", "HOURBUCKET_SIM_SEEDS", 600, steps::run);
}

#[test]
fn an_awkward_sensor_does_not_delay_others_and_nothing_is_lost() {
    run_all("live", "HOURBUCKET_SIM_LIVE_SEEDS", 60, live::run);
}

#[test]
fn nothing_is_lost_and_nothing_is_stored_twice() {
    run_all(
        "lost answers",
        "HOURBUCKET_LOST_SEEDS",
        600,
        lost_answers::run,
    );
}
