//! Exactly once on a replica set that changes its primary: stepped down, killed, without a
//! majority, rolled back.
//!
//! Elections here start after 2 s without a primary, instead of MongoDB's default of 10 s. Long
//! runs, and the figures with the default: `HOURBUCKET_ELECTIONS=40 HOURBUCKET_ELECTION_MS=10000
//! cargo test --test servers replica_set::elections -- --nocapture`.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test, with figures"
)]

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mongodb::bson::{Document, doc};
use mongodb::options::ReadConcern;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::support::fleet::{Devices, Gateway};
use crate::support::mosquitto::Mosquitto;
use crate::support::replica_set::ReplicaSet;
use crate::support::service::Service;
use crate::support::stored::{self, Stored};
use crate::support::{block_on, setting, wait_until};

/// A limit for each wait; two cores are shared by all processes.
const PATIENCE: Duration = Duration::from_secs(120);

/// Three members and their load need up to one of two cores, so at most two of these tests run at a
/// time.
fn turn() -> SemaphorePermit<'static> {
    static RUNNING: Semaphore = Semaphore::const_new(2);
    block_on(RUNNING.acquire()).expect("it is never closed")
}

/// Compares the readings of every member with those that were sent.
fn exactly_once_everywhere(set: &ReplicaSet, sent: &[Stored]) {
    // The last write has reached a majority; the third member may lag a little.
    wait_until("the members have the same", PATIENCE, || {
        let counts: Vec<i64> = (0..3)
            .map(|i| count(&set.direct_uri(i)))
            .collect::<Option<_>>()?;
        counts.iter().all(|n| *n == counts[0]).then_some(())
    });
    for member in 0..3 {
        stored::exactly_once(
            &stored::readings(&set.direct_uri(member), "hourbucket"),
            sent.iter().cloned(),
        );
    }
}

/// Readings in pages and measurements on one member, whether or not others have them; `None` if it
/// does not answer.
fn count(uri: &str) -> Option<i64> {
    block_on(async move {
        let client = mongodb::Client::with_uri_str(uri).await.expect("a client");
        let database = client.database("hourbucket");
        let mut all = 0;
        let pages = [
            doc! { "$match": { "storage": { "$exists": false } } },
            doc! { "$group": { "_id": 0, "n": { "$sum": "$count" } } },
        ];
        let measurements = [doc! { "$group": { "_id": 0, "n": { "$sum": 1 } } }];
        for (name, sum) in [
            ("sensor_buckets", &pages[..]),
            ("sensor_readings", &measurements[..]),
        ] {
            let collection = database.collection::<Document>(name);
            let mut cursor = collection
                .aggregate(sum.to_vec())
                .read_concern(ReadConcern::local())
                .await
                .ok()?;
            if cursor.advance().await.ok()? {
                let sum: Document = cursor.deserialize_current().expect("a sum");
                all += sum
                    .get_i64("n")
                    .or(sum.get_i32("n").map(i64::from))
                    .expect("a number");
            }
        }
        Some(all)
    })
}

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
    let metrics = service.wait_settled(sent.len() as u64, PATIENCE);
    assert_eq!(metrics.get("readings_rejected_total"), 0.0);
    exactly_once_everywhere(&set, &sent);
}

#[test]
fn elections_in_bucket_mode() {
    elections("bucket");
}

#[test]
fn elections_in_time_series_mode() {
    elections("timeseries");
}

/// Kills all members but the primary, and begins again if `alone` finds no readings that only the
/// primary has. Returns the primary, the others, and what `alone` found.
fn cut_off<T>(
    set: &mut ReplicaSet,
    alone: impl Fn(&mut ReplicaSet, usize) -> Option<T>,
) -> (usize, Vec<usize>, T) {
    loop {
        let primary = set.wait_primary();
        let others: Vec<usize> = (0..3).filter(|&i| i != primary).collect();
        others.iter().for_each(|&i| set.kill9(i));
        if let Some(found) = alone(set, primary) {
            return (primary, others, found);
        }
        println!("no reading arrived at member {primary} alone while it was primary; once more");
        others.iter().for_each(|&i| set.restart_in_background(i));
        others.iter().for_each(|&i| set.wait_member(i));
    }
}

/// Readings that only one member has.
struct Alone {
    /// All readings of that member.
    readings: i64,
    /// Readings that counted as stored when the missing majority had been noticed.
    before: f64,
}

/// Waits until a primary without a majority has readings that no other member has; `None` if it
/// got none before it stepped down.
fn alone(
    set: &mut ReplicaSet,
    primary: usize,
    is_noticed: impl Fn() -> bool,
    stored: impl Fn() -> f64,
) -> Option<Alone> {
    let uri = set.direct_uri(primary);
    let deadline = Instant::now() + PATIENCE;
    let mut before = None;
    let mut stepped_down: Option<Instant> = None;
    // The service may notice a step-down later than this does.
    while stepped_down.is_none_or(|at| at.elapsed() < Duration::from_secs(10)) {
        if is_noticed() {
            let before = *before.get_or_insert_with(&stored);
            let readings = count(&uri).filter(|&n| n as f64 > before);
            if let Some(readings) = readings {
                return Some(Alone { readings, before });
            }
        }
        if !set.is_primary(primary) {
            stepped_down.get_or_insert_with(Instant::now);
        }
        assert!(
            Instant::now() < deadline,
            "no reading arrived at member {primary} alone within {PATIENCE:?}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    None
}

/// Two members are down while readings arrive. Writes that only the primary has are unknown, are
/// compared, and are stored once. The error `kind` must have occurred at least `times` times.
fn without_a_majority(mode: &str, election: Duration, timeout: &str, kind: &str, times: f64) {
    let _turn = turn();
    let mut set = ReplicaSet::start(election);
    let text = format!(
        "store.mode = \"{mode}\"\nstore.timeout = \"{timeout}\"\nflush.max_age = \"200ms\""
    );
    let service = Service::start(&text, &[("STORE__URI", &set.uri())]);
    let gateway = Gateway::start_slow("g", service.http(), 20, 20);
    let stored = || service.metrics().get("readings_stored_total");
    wait_until("readings are stored", PATIENCE, || {
        (stored() > 200.0).then_some(())
    });
    let all_errors = || {
        service
            .metrics()
            .labelled("store_errors_total", "kind", kind)
    };
    let earlier = Cell::new(0.0);
    let errors = || all_errors() - earlier.get();
    // On a busy machine there may be such errors before, and an election between any two lines.
    let (_, others, alone) = cut_off(&mut set, |set, primary| {
        earlier.set(all_errors());
        set.is_primary(primary)
            .then(|| alone(set, primary, || errors() >= times / 2.0, stored))
            .flatten()
    });
    wait_until("it is noticed again", PATIENCE, || {
        (errors() >= times).then_some(())
    });
    assert_eq!(
        stored(),
        alone.before,
        "nothing counts as stored without a majority"
    );
    others.iter().for_each(|&i| set.restart_in_background(i));
    let asked = Instant::now();
    wait_until("they are stored", PATIENCE, || {
        (stored() >= alone.readings as f64).then_some(())
    });
    println!(
        "{kind}: {} times; stored {:.1?} after the members were started again",
        errors(),
        asked.elapsed()
    );
    let sent = gateway.finish();
    service.wait_settled(sent.len() as u64, PATIENCE);
    (0..3).for_each(|i| set.wait_member(i));
    exactly_once_everywhere(&set, &sent);
}

#[test]
fn without_a_majority_in_time_a_write_is_retried_and_compared() {
    // Long enough for the primary to stay primary without a majority. It answers before the timeout
    // (`wtimeout`).
    without_a_majority(
        "bucket",
        Duration::from_secs(20),
        "400ms",
        "write_concern",
        6.0,
    );
}

#[test]
fn without_a_majority_in_time_a_write_is_retried_in_time_series_mode() {
    without_a_majority(
        "timeseries",
        Duration::from_secs(20),
        "400ms",
        "timeout",
        6.0,
    );
}

#[test]
fn a_write_without_majority_before_a_step_down_is_compared() {
    // The primary steps down long before the timeout, and answers waiting commands with a
    // writeConcernError. Until then it has time to take writes, on a busy machine too.
    without_a_majority(
        "bucket",
        Duration::from_secs(5),
        "30s",
        "write_concern",
        1.0,
    );
}

#[test]
fn writes_of_a_primary_without_majority_are_rolled_back_and_stored_once() {
    rolled_back("bucket");
}

#[test]
fn writes_of_a_primary_without_majority_are_rolled_back_and_stored_once_in_time_series_mode() {
    rolled_back("timeseries");
}

/// How many readings this primary has that the killed others cannot have; `None` if it stepped down
/// without one.
fn written_alone(set: &mut ReplicaSet, primary: usize) -> Option<i64> {
    let uri = set.direct_uri(primary);
    // The others may have all readings until now, also those that no majority has acknowledged.
    let replicated = count(&uri)?;
    while set.is_primary(primary) {
        if let Some(alone) = count(&uri).map(|all| all - replicated)
            && alone > 0
        {
            return Some(alone);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    None
}

fn rolled_back(mode: &str) {
    let _turn = turn();
    let mut set = ReplicaSet::start(Duration::from_secs(4));
    let text =
        format!("store.mode = \"{mode}\"\nstore.timeout = \"1s\"\nflush.max_age = \"200ms\"");
    // One service whose senders are answered from the journal, and one whose senders wait for the
    // majority.
    let one = Service::start(&text, &[("STORE__URI", &set.uri())]);
    let two = Service::start(
        &format!("{text}\ningest.ack = \"stored\""),
        &[("STORE__URI", &set.uri())],
    );
    let gateways = [
        Gateway::start_slow("one", one.http(), 20, 20),
        Gateway::start_slow("two", two.http(), 20, 20),
    ];
    let stored =
        || one.metrics().get("readings_stored_total") + two.metrics().get("readings_stored_total");
    wait_until("readings are stored", PATIENCE, || {
        (stored() > 400.0).then_some(())
    });
    let (old, others, alone) = cut_off(&mut set, written_alone);
    // Its own journal is written every 100 ms: it must still have the readings after its restart.
    std::thread::sleep(Duration::from_millis(300));
    set.kill9(old);
    others.iter().for_each(|&i| set.restart_in_background(i));
    let new = set.wait_primary();
    assert!(others.contains(&new));
    let before = stored();
    wait_until("the new primary takes writes", PATIENCE, || {
        (stored() > before + 100.0).then_some(())
    });
    set.restart_in_background(old);
    set.wait_member(old);
    // Its rollback files do not contain measurements; its log reports the rollback in both modes.
    wait_until("the old primary has rolled back", PATIENCE, || {
        set.log(old).contains("Rollback summary").then_some(())
    });
    set.wait_member(old);
    println!("{mode}: {alone} readings on the old primary alone, rolled back");
    let mut sent: Vec<Stored> = vec![];
    for (gateway, service) in gateways.into_iter().zip([&one, &two]) {
        let own = gateway.finish();
        service.wait_settled(own.len() as u64, PATIENCE);
        sent.extend(own);
    }
    exactly_once_everywhere(&set, &sent);
}
