//! Measurements are read once although MongoDB moves their documents in its index meanwhile
//! (src/store/src/mongo/snapshot.rs). The server pauses scans after each document here, which it
//! otherwise does every 10 ms.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use mongodb::bson::doc;

use crate::read_api::{PATIENCE, get_complete, post, prepared};
use crate::support::block_on;
use crate::support::fleet::now_ms;
use crate::support::mongod::{Mongod, unique_database};
use crate::support::service::Service;

const HOUR: i64 = 3_600_000;
/// Every so many readings one is this much late. Then MongoDB begins a document that has the late
/// reading first, and the newest ones after it: in the index it is before older documents.
const LATE_EVERY: i64 = 25;
const LATE_MS: i64 = 36_000;
/// Readings in an answer, at least.
const WINDOW: i64 = 2000;
const READS: usize = 250;

#[test]
fn readings_are_returned_once_while_others_are_stored() {
    let mongod = Mongod::start();
    let pause = doc! { "setParameter": 1, "internalQueryExecYieldIterations": 1 };
    let uri = mongod.uri();
    block_on(async move {
        let client = mongodb::Client::with_uri_str(uri).await.unwrap();
        client.database("admin").run_command(pause).await.unwrap();
    });
    let database = unique_database("read_while_stored");
    let text = "store.mode = \"timeseries\"\nflush.max_age = \"10ms\"\nlog.level = \"warn\"\n";
    let uri = mongod.uri();
    let service = Service::start(
        text,
        &[("STORE__URI", &uri), ("STORE__DATABASE", &database)],
    );
    prepared(&service);
    let from = now_ms() / HOUR * HOUR - HOUR;
    let send = |some: Range<i64>| post(&service, &some.map(|n| line(from, n)).collect::<String>());
    send(0..WINDOW);
    let sent = AtomicI64::new(WINDOW);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = WINDOW;
            while !ended.load(Ordering::Acquire) {
                send(n..n + 3);
                n += 3;
                sent.store(n, Ordering::Release);
                // So that a document gets its readings by several inserts.
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let ends = EndOnDrop(&ended);
        for read in 0..READS {
            let acknowledged = sent.load(Ordering::Acquire);
            let first = acknowledged - WINDOW;
            let found = numbers(&service, from + first * 20, from + 2 * HOUR);
            let distinct: BTreeSet<i64> = found.iter().copied().collect();
            assert_eq!(distinct.len(), found.len(), "read {read}: some twice");
            let missing: Vec<i64> = (first..acknowledged)
                .filter(|n| n % LATE_EVERY != 0 && !distinct.contains(n))
                .collect();
            assert!(missing.is_empty(), "read {read}: {missing:?} are missing");
        }
        drop(ends);
    });
    let sent = sent.load(Ordering::Acquire);
    let metrics = service.wait_settled(sent as u64, PATIENCE);
    assert_eq!(metrics.get("readings_stored_total"), sent as f64);
}

/// Ends the sender, also if an assertion fails.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Reading `n`; 20 ms apart.
fn line(from: i64, n: i64) -> String {
    let late = if n % LATE_EVERY == 0 { LATE_MS } else { 0 };
    let ts = (from + n * 20 - late).max(from);
    format!("{{\"sensor_id\":\"a\",\"ts\":{ts},\"n\":{n}}}\n")
}

fn numbers(service: &Service, from: i64, to: i64) -> Vec<i64> {
    let path = format!("/v1/sensors/a/readings?from={from}&to={to}&limit=10000");
    let answer = get_complete(service, &path);
    assert_eq!(answer["next"], serde_json::Value::Null);
    let readings = answer["readings"].as_array().unwrap();
    readings
        .iter()
        .map(|reading| reading["values"]["n"].as_i64().unwrap())
        .collect()
}
