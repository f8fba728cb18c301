//! Exactly once in time-series mode while MongoDB interrupts inserts: the primary steps down again
//! and again, and running inserts are ended with `killOp`.
//!
//! MongoDB 6.0.5 then stores measurements of an unordered insert that it has reported as failed, and
//! takes much memory. A longer run: `HOURBUCKET_INTERRUPTED_S=120 cargo test --test servers
//! interrupted_inserts:: -- --nocapture`.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test, with figures"
)]

use std::time::{Duration, Instant};

use mongodb::bson::doc;

use crate::support::fleet::Gateway;
use crate::support::mongod::Mongod;
use crate::support::service::Service;
use crate::support::{block_on, setting, stored};

const PATIENCE: Duration = Duration::from_secs(120);

/// Ends inserts of measurements for this time, and lets the primary step down in between; returns
/// how often each was done.
fn interrupt(mongod: &Mongod, for_: Duration) -> (usize, usize) {
    block_on(async {
        let client = mongodb::Client::with_uri_str(mongod.uri()).await.unwrap();
        let admin = client.database("admin");
        let begun = Instant::now();
        let mut ended = 0;
        let mut stepped_down = 0;
        while begun.elapsed() < for_ {
            let running =
                doc! { "currentOp": 1, "op": "insert", "ns": "hourbucket.sensor_readings" };
            // Without a primary for a moment: the next round tries again.
            let Ok(reply) = admin.run_command(running).await else {
                continue;
            };
            let operations = reply.get_array("inprog").unwrap();
            for operation in operations.iter().filter_map(|o| o.as_document()) {
                let kill = doc! { "killOp": 1, "op": operation.get("opid").unwrap() };
                ended += usize::from(admin.run_command(kill).await.is_ok());
            }
            let seconds = begun.elapsed().as_secs() as usize;
            if seconds / 3 > stepped_down {
                let down = doc! { "replSetStepDown": 1, "force": true };
                stepped_down += usize::from(admin.run_command(down).await.is_ok());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        (ended, stepped_down)
    })
}

#[test]
fn interrupted_measurements_are_stored_exactly_once() {
    let mongod = Mongod::start();
    let text = "store.mode = \"timeseries\"\nflush.max_age = \"200ms\"\n";
    let service = Service::start(text, &[("STORE__URI", &mongod.uri())]);
    let gateways: Vec<_> = (0..3)
        .map(|g| Gateway::start_slow(&format!("g{g}"), service.http(), 100, 100))
        .collect();
    let seconds = setting("HOURBUCKET_INTERRUPTED_S", 5);
    let (ended, stepped_down) = interrupt(&mongod, Duration::from_secs(seconds as u64));
    let sent: Vec<_> = gateways.into_iter().flat_map(Gateway::finish).collect();
    let acknowledged = sent.len();
    println!(
        "{acknowledged} readings, {ended} inserts ended, {stepped_down} times without primary"
    );
    assert!(ended > 0 && stepped_down > 0);
    service.wait_settled(acknowledged as u64, PATIENCE);
    stored::exactly_once(&stored::readings(&mongod.uri(), "hourbucket"), sent);
}
