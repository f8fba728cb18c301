//! Exactly once on a replica set whose primary is stepped down or killed, under load.
//!
//! Elections here start after 2 s without a primary, instead of MongoDB's default of 10 s. Long
//! runs, and the figures with the default: `HOURBUCKET_ELECTIONS=40 HOURBUCKET_ELECTION_MS=10000
//! cargo test --test servers elections:: -- --nocapture`.

#![allow(clippy::print_stdout, reason = "a test, with figures")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::fleet::{Devices, Gateway};
use crate::support::mosquitto::Mosquitto;
use crate::support::replica_set::ReplicaSet;
use crate::support::service::Service;
use crate::support::{setting, wait_until};

use super::replica_set::{PATIENCE, exactly_once_everywhere, turn};

/// The times at which the number of stored readings increased.
struct Seen(Vec<Instant>);

impl Seen {
    /// Reads the service's counter at short intervals until `stop`.
    fn watch(service: &Service, stop: &AtomicBool) -> Seen {
        let mut seen = vec![Instant::now()];
        let mut last = 0.0;
        while !stop.load(Ordering::Relaxed) {
            let stored = service.metrics().get("readings_stored_total");
            if stored > last {
                seen.push(Instant::now());
            }
            last = stored;
            std::thread::sleep(Duration::from_millis(25));
        }
        Seen(seen)
    }

    /// The longest time without an increase that overlaps this span.
    fn longest_gap(&self, from: Instant, to: Instant) -> Duration {
        let pairs = self
            .0
            .windows(2)
            .filter(|pair| pair[1] > from && pair[0] < to);
        pairs
            .map(|pair| pair[1] - pair[0])
            .max()
            .unwrap_or_default()
    }
}

/// Changes the primary once; returns when that began.
fn change_primary(set: &mut ReplicaSet, kill: bool) -> Instant {
    let old = set.wait_primary();
    let begun = Instant::now();
    if kill {
        set.kill9(old);
    } else {
        set.step_down(old);
    }
    let new = wait_until("another primary", PATIENCE, || {
        Some(set.wait_primary()).filter(|&new| new != old)
    });
    let what = if kill { "SIGKILL to" } else { "stepped down" };
    println!(
        "{what} member {old}: member {new} after {:.1?}",
        begun.elapsed()
    );
    if kill {
        // Later, so that the set works with two members for a while.
        std::thread::sleep(Duration::from_secs(1));
        set.restart_in_background(old);
        set.wait_member(old);
    }
    begun
}

/// Load continues while the primary changes repeatedly, alternately by a step-down and a kill.
fn elections(mode: &str) {
    let _turn = turn();
    let changes = setting("HOURBUCKET_ELECTIONS", 2);
    let mut set = ReplicaSet::start(Duration::from_millis(setting(
        "HOURBUCKET_ELECTION_MS",
        2000,
    )));
    let broker = Mosquitto::start("max_inflight_messages 1000\nmax_queued_messages 0\n");
    let text = format!(
        "store.mode = \"{mode}\"\nflush.max_age = \"300ms\"\n[[mqtt]]\nurl = \"{}\"\n\
         client_id = \"set\"\n\
         [[mqtt.subscriptions]]\nfilter = \"fleet/+\"\ntopic = \"fleet/{{sensor_id}}\"\n\
         format = \"json\"\n",
        broker.url()
    );
    let service = Service::start(&text, &[("STORE__URI", &set.uri())]);
    let gateways: Vec<_> = (0..2)
        .map(|g| Gateway::start_slow(&format!("g{g}"), service.http(), 50, 40))
        .collect();
    service.wait_subscribed();
    let devices = Devices::start(broker.port(), 100, usize::MAX, 2000);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| Seen::watch(&service, &stop));
        wait_until("writes flow", PATIENCE, || {
            (service.metrics().get("readings_stored_total") > 5000.0).then_some(())
        });
        let quiet = Instant::now();
        std::thread::sleep(Duration::from_secs(2));
        let mut spans = vec![("nothing happened".to_owned(), quiet, Instant::now())];
        for change in 0..changes {
            let kill = change % 2 == 1;
            let begun = change_primary(&mut set, kill);
            // Writes must have resumed before the next change.
            let stored = service.metrics().get("readings_stored_total");
            wait_until("writes go on", PATIENCE, || {
                (service.metrics().get("readings_stored_total") > stored).then_some(())
            });
            let what = if kill {
                "the primary was killed"
            } else {
                "the primary stepped down"
            };
            spans.push((what.to_owned(), begun, Instant::now()));
        }
        stop.store(true, Ordering::Relaxed);
        let seen = watch.join().expect("the watch");
        for (what, from, to) in spans {
            println!(
                "{mode}: {what}: {:.2?} without writes at most",
                seen.longest_gap(from, to)
            );
        }
    });
    let mut sent: Vec<_> = gateways.into_iter().flat_map(Gateway::finish).collect();
    sent.extend(devices.finish(true));
    println!(
        "{mode}: {} readings acknowledged, {changes} elections",
        sent.len()
    );
    let metrics = service.wait_stored(sent.len() as u64, PATIENCE);
    assert_eq!(metrics.get("readings_rejected_total"), 0.0);
    exactly_once_everywhere(&set, &sent);
}

#[test]
fn in_bucket_mode() {
    elections("bucket");
}

#[test]
fn in_time_series_mode() {
    elections("timeseries");
}
