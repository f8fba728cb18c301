//! The cost of the latest state.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement")]

use std::time::Duration;

use model::{Reading, ReadingBatch, Value};
use pipeline::latest::state::{Latest, LatestSettings};
use pipeline::route::row_refs;

use super::latest::{now, reading, settings};
use crate::support;
use crate::support::mongod::Mongod;
use crate::support::service::Service;
use crate::support::usage::{cpu_s, thread_cpu_s};

const PATIENCE: Duration = Duration::from_secs(60);

/// The cost of the setting, printed: a thousand sensors with two fields at 1 Hz, a thousand seconds
/// in twenty, with the defaults of `flush.max_age` and `latest.interval` reduced by the same
/// factor, so that there are as many statements as in real time. `cargo test --release --test
/// servers latest_cost:: -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn cost_per_million_readings() {
    const FASTER: u64 = 50;
    let sensors = 1000;
    let seconds = 1000;
    let mongod = Mongod::start();
    let modes = ["bucket", "timeseries"]
        .into_iter()
        .flat_map(|mode| [(mode, false), (mode, true)]);
    for (round, (mode, latest)) in modes
        .chain([("bucket", false), ("bucket", true)])
        .enumerate()
    {
        let text = format!(
            "[store]\nmode = \"{mode}\"\ndatabase = \"cost{round}\"\n[flush]\nmax_age = \"{}ms\"\n\
             [latest]\nenabled = {latest}\ninterval = \"{}ms\"\n",
            15_000 / FASTER,
            10_000 / FASTER
        );
        let mut service = Service::start(&text, &[("STORE__URI", &mongod.uri())]);
        let begun_ms = support::fleet::now_ms() / 1000 * 1000 - seconds * 1000;
        let begun = std::time::Instant::now();
        let before = (cpu_s(mongod.pid()), cpu_s(service.pid()));
        for second in 0..seconds {
            let body: String = (0..sensors)
                .map(|s| {
                    let ts = begun_ms + second * 1000;
                    let temp = (second * 7 + s) % 400;
                    format!(
                        "{{\"sensor_id\":\"sensor-{s}\",\"ts\":{ts},\"temp\":{}.5,\"humid\":{}}}\n",
                        temp / 10,
                        temp % 90
                    )
                })
                .collect();
            let answer = service.post("/v1/readings", "application/x-ndjson", body.as_bytes());
            assert_eq!(answer.unwrap().0, 200);
            let at = Duration::from_millis((second as u64 + 1) * 1000 / FASTER);
            std::thread::sleep(at.saturating_sub(begun.elapsed()));
        }
        let metrics = service.wait_settled((sensors * seconds) as u64, PATIENCE);
        let statements = metrics.labelled("store_statements_total", "kind", "latest");
        let millions = (sensors * seconds) as f64 / 1e6;
        let used = [
            cpu_s(mongod.pid()) - before.0,
            cpu_s(service.pid()) - before.1,
        ]
        .map(|s| s / millions);
        println!(
            "{mode}, latest {latest}: mongod {:.1} CPU-s, service {:.1} CPU-s a million readings; \
             {} updates of sensor_latest, {} other statements; {:.0} s",
            used[0],
            used[1],
            statements as u64,
            metrics.get("store_statements_total") - statements,
            begun.elapsed().as_secs_f64()
        );
        service.terminate(PATIENCE);
    }
}

/// The cost of a reading in the stage itself, printed.
#[test]
#[ignore = "a measurement"]
fn cost_of_one_reading_in_memory() {
    let readings: Vec<Reading> = (0..1000)
        .map(|i| {
            reading(
                &format!("sensor-{i}"),
                0,
                &[("humid", Value::Int(i)), ("temp", Value::Double(0.5))],
            )
        })
        .collect();
    for interval_s in [1, 10, 60, 60] {
        let mut state = Latest::new(LatestSettings {
            recent_max: 10,
            bytes_max: 1 << 30,
            command_statements_max: 5000,
            command_bytes_max: 12 << 20,
            ..settings()
        });
        let batches: Vec<ReadingBatch> = (0..60)
            .map(|s| {
                readings
                    .iter()
                    .map(|r| Reading {
                        ts_ms: s * 1000,
                        ..r.clone()
                    })
                    .collect()
            })
            .collect();
        let begun = thread_cpu_s();
        for round in 0..20 {
            for (s, batch) in batches.iter().enumerate() {
                state.accept(batch, &row_refs(batch, 1)[0], None, now(0));
                if (s + 1) % interval_s == 0 {
                    state.drain();
                    assert_eq!(state.take(now(0)).len(), 1000, "round {round}");
                }
            }
        }
        let ns = (thread_cpu_s() - begun) * 1e9 / (20.0 * 60.0 * 1000.0);
        println!(
            "a sensor written every {interval_s:>2} readings: {ns:.0} ns of CPU a reading, finding \
             its shard included"
        );
    }
}
