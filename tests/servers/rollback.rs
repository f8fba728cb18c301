//! Exactly once on a replica set whose old primary rolls back what it wrote alone.

#![allow(clippy::print_stdout, reason = "a test, with figures")]

use std::time::Duration;

use mongodb::options::ReadConcern;

use crate::support::fleet::Gateway;
use crate::support::replica_set::ReplicaSet;
use crate::support::service::Service;
use crate::support::stored::Stored;
use crate::support::wait_until;

use super::replica_set::{PATIENCE, count, cut_off, exactly_once_everywhere, turn};

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
    let replicated = count(&uri, ReadConcern::local())?;
    while set.is_primary(primary) {
        if let Some(alone) = count(&uri, ReadConcern::local()).map(|all| all - replicated)
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
