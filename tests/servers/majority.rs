//! Exactly once on a replica set whose primary has lost its majority: what it writes alone is
//! unknown, is compared, and is stored once.

#![allow(clippy::print_stdout, reason = "a test, with figures")]

use std::cell::Cell;
use std::time::{Duration, Instant};

use mongodb::options::ReadConcern;

use crate::support::fleet::Gateway;
use crate::support::replica_set::ReplicaSet;
use crate::support::service::Service;
use crate::support::wait_until;

use super::replica_set::{PATIENCE, count, cut_off, exactly_once_everywhere, turn};

/// Readings that only one member has.
struct Alone {
    /// All readings of that member.
    readings: i64,
    /// Those that a majority had.
    of_majority: i64,
}

/// Waits until a primary without a majority has readings that no other member has; `None` if it
/// got none before it stepped down.
fn alone(set: &mut ReplicaSet, primary: usize, is_noticed: impl Fn() -> bool) -> Option<Alone> {
    let uri = set.direct_uri(primary);
    let deadline = Instant::now() + PATIENCE;
    let mut stepped_down: Option<Instant> = None;
    // The service may notice a step-down later than this does.
    while stepped_down.is_none_or(|at| at.elapsed() < Duration::from_secs(10)) {
        if is_noticed() {
            let of_majority = count(&uri, ReadConcern::majority());
            let readings = count(&uri, ReadConcern::local());
            if let (Some(of_majority), Some(readings)) = (of_majority, readings)
                && of_majority < readings
            {
                return Some(Alone {
                    readings,
                    of_majority,
                });
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
            .then(|| alone(set, primary, || errors() >= times / 2.0))
            .flatten()
    });
    wait_until("it is noticed again", PATIENCE, || {
        (errors() >= times).then_some(())
    });
    // A write that was answered too late may have had its majority; that is noticed when it is
    // compared.
    let counted = stored();
    assert!(
        counted <= alone.of_majority as f64,
        "{counted} readings count as stored, and a majority has {}",
        alone.of_majority
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
