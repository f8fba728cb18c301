//! What the tests of a replica set share: [`elections`](super::elections),
//! [`majority`](super::majority) and [`rollback`](super::rollback). libtest starts tests in the
//! order of their names, so three modules, whose names are far apart, leave other threads to other
//! tests while these wait for their [turn].

#![allow(clippy::print_stdout, reason = "a test, with figures")]

use std::time::Duration;

use mongodb::bson::{Document, doc};
use mongodb::options::ReadConcern;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::support::replica_set::ReplicaSet;
use crate::support::stored::{self, Stored};
use crate::support::{block_on, wait_until};

/// A limit for each wait; two cores are shared by all processes.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// Three members and their load need up to one of two cores, so at most two of these tests run at a
/// time.
pub(super) fn turn() -> SemaphorePermit<'static> {
    static RUNNING: Semaphore = Semaphore::const_new(2);
    block_on(RUNNING.acquire()).expect("it is never closed")
}

/// Compares the readings of every member with those that were sent.
pub(super) fn exactly_once_everywhere(set: &ReplicaSet, sent: &[Stored]) {
    // The last write has reached a majority; the third member may lag a little.
    wait_until("the members have the same", PATIENCE, || {
        let counts: Vec<i64> = (0..3)
            .map(|i| count(&set.direct_uri(i), ReadConcern::local()))
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

/// Readings in pages and measurements on one member; `None` if it does not answer. Those with read
/// concern `local` include what no other member has.
pub(super) fn count(uri: &str, concern: ReadConcern) -> Option<i64> {
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
                .read_concern(concern.clone())
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

/// Kills all members but the primary, and begins again if `alone` finds no readings that only the
/// primary has. Returns the primary, the others, and what `alone` found.
pub(super) fn cut_off<T>(
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
