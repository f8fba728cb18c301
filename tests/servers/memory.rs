//! Memory stays within its budgets for hostile input: field names that never repeat, and schemas,
//! tags and sensor ids chosen to use memory, while MongoDB is unreachable, until the journal is
//! full. Measured in /proc, for the real binary.
//!
//! Long run: `HOURBUCKET_HOSTILE=8 tests/run.sh --test servers memory::` with eight times the
//! budgets and the input.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test, with figures"
)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::mongod::Mongod;
use crate::support::service::Service;
use crate::support::usage::resident_kib;
use crate::support::{setting, wait_until};

const MIB: u64 = 1 << 20;
/// The configured budgets.
const ACCUMULATE_MIB: u64 = 6;
const QUEUE_MIB: u64 = 4;
const JOURNAL_MIB: u64 = 6;
/// The newest entries of the journal, which stay in memory.
const TAIL_MIB: u64 = 32;
/// Memory of buffers, bodies and the allocator, beyond these budgets and the idle program. The
/// documented limit is 200 MiB beyond the configured budgets in total; a real service has more
/// threads and connections than this one. Between 5 and 45 MiB were measured (2026-11-25, five
/// kinds, four times each, all at the same time).
const SLACK_MIB: u64 = 72;
/// The minimum amount of each kind of input; sending continues until the journal is full.
const SENT_MIB: u64 = 6;
const PATIENCE: Duration = Duration::from_secs(240);

/// Factor for the budgets and the input.
fn scale() -> u64 {
    setting("HOURBUCKET_HOSTILE", 1)
}

/// The kinds of input.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// 60 names of 100 bytes per reading, none repeated.
    LongNames,
    /// 60 names of a few bytes per reading, none repeated.
    ShortNames,
    /// The same names, always in another order.
    FieldSchemas,
    /// Tags that never repeat.
    Tags,
    /// Sensors that never repeat, each with one small value.
    Sensors,
}

const KINDS: [Kind; 5] = [
    Kind::LongNames,
    Kind::ShortNames,
    Kind::FieldSchemas,
    Kind::Tags,
    Kind::Sensors,
];

impl Kind {
    /// One body; `n` never repeats.
    fn body(self, n: u64, now_ms: u64) -> String {
        let mut body = String::from("[");
        for i in 0..100 {
            let reading = n * 100 + i;
            let comma = if i == 0 { "" } else { "," };
            // A few readings each, so that the limit for names does not apply.
            let sensor = match self {
                Kind::Sensors => format!("{reading:0>200}"),
                _ => format!("S{}", reading / 8),
            };
            let values: Vec<String> = match self {
                Kind::LongNames => (0..60)
                    .map(|k| format!(r#""{reading:0>90}-{k}":1"#))
                    .collect(),
                Kind::ShortNames => (0..60)
                    .map(|k| format!(r#""{:x}":1"#, reading * 60 + k))
                    .collect(),
                Kind::FieldSchemas => (0..60)
                    .map(|k| format!(r#""f{}":1"#, (k * (2 * reading + 1) + reading) % 64))
                    .collect(),
                Kind::Tags | Kind::Sensors => vec![r#""v":1"#.into()],
            };
            let tags: Vec<String> = match self {
                Kind::Tags => (0..8)
                    .map(|k| format!(r#""t{k}":"{reading:0>200}""#))
                    .collect(),
                _ => vec![],
            };
            let values = values.join(",");
            let tags = tags.join(",");
            let ts = now_ms - (n % 50) * 60_000;
            body += &format!(
                r#"{comma}{{"sensor_id":"{sensor}","ts":{ts},"values":{{{values}}},"tags":{{{tags}}}}}"#
            );
        }
        body + "]"
    }
}

/// Sends one kind from two threads; returns the maximum resident memory, and whether the journal
/// was full.
fn send(service: &Service, kind: Kind, first: &AtomicU64) -> (u64, bool) {
    let sent = AtomicU64::new(0);
    let full = AtomicBool::new(false);
    let now_ms = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_millis() as u64;
    let begun = Instant::now();
    let is_over =
        || full.load(Ordering::Relaxed) || sent.load(Ordering::Relaxed) >= scale() * SENT_MIB * MIB;
    let most = std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over() {
                    let body = kind.body(first.fetch_add(1, Ordering::Relaxed), now_ms);
                    let (status, text) = service
                        .post("/v1/readings", "application/json", body.as_bytes())
                        .unwrap();
                    match status {
                        200 => drop(sent.fetch_add(body.len() as u64, Ordering::Relaxed)),
                        429 if text.contains("journal is full") => {
                            full.store(true, Ordering::Relaxed)
                        }
                        429 => std::thread::sleep(Duration::from_millis(10)),
                        _ => panic!("{kind:?}: {status} {text}"),
                    }
                }
            });
        }
        let mut most = 0;
        while !is_over() {
            assert!(
                begun.elapsed() < PATIENCE,
                "{kind:?}: {} bytes were accepted",
                sent.load(Ordering::Relaxed)
            );
            most = most.max(resident_kib(service.pid()) / 1024);
            std::thread::sleep(Duration::from_millis(10));
        }
        most
    });
    (most, full.into_inner())
}

fn within_the_budgets(mode: &str, kinds: &[Kind]) {
    let mut mongod = Mongod::start();
    let [accumulate, queue, journal] =
        [ACCUMULATE_MIB, QUEUE_MIB, JOURNAL_MIB].map(|mib| scale() * mib);
    let text = format!(
        "store.mode = \"{mode}\"\nflush.max_age = \"2s\"\n\
         accumulate.max_bytes = \"{accumulate}MiB\"\n\
         ingest.queue_max_bytes = \"{queue}MiB\"\njournal.segment_bytes = \"2MiB\"\n\
         journal.max_bytes = \"{journal}MiB\""
    );
    let service = Service::start(&text, &[("STORE__URI", &mongod.uri())]);
    let idle = resident_kib(service.pid()) / 1024;
    let first = AtomicU64::new(0);
    let mut was_full = false;
    let limit = idle + accumulate + queue + journal.min(TAIL_MIB) + SLACK_MIB;
    for kind in kinds.iter().copied() {
        mongod.kill9();
        let (most, full) = send(&service, kind, &first);
        was_full |= full;
        let gauge = service.metrics().get("accumulate_bytes") as u64 / MIB;
        println!(
            "{mode}, {kind:?}: {most} MiB resident at most ({idle} idle), full: {full}, \
             accumulate_bytes {gauge} MiB"
        );
        assert!(
            most <= limit,
            "{kind:?}: {most} MiB are resident, {limit} are within the budgets"
        );
        mongod.restart();
        service.wait_settled(1, PATIENCE);
        // Stored data is released, in the counters and in memory. Sensors without pending readings
        // stay until the memory is full: their next reading needs no load.
        let share = match kind {
            Kind::Sensors => 1.0,
            _ => 0.9,
        };
        wait_until("names, schemas and tags are released", PATIENCE, || {
            (service.metrics().get("accumulate_bytes") < (accumulate * MIB) as f64 * share)
                .then_some(())
        });
    }
    assert!(was_full, "the journal was never full");
}

#[test]
fn hostile_input_stays_within_the_budgets() {
    within_the_budgets("bucket", &KINDS);
}

#[test]
fn hostile_input_stays_within_the_budgets_with_time_series() {
    // Names and sensors are kept differently there.
    within_the_budgets("timeseries", &[Kind::LongNames, Kind::Sensors]);
}
