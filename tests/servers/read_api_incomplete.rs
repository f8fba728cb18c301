//! The read API while MongoDB does not write: an answer without readings that are not in memory yet
//! says that it is incomplete.

#![allow(clippy::unwrap_used, reason = "a test")]

use crate::support::block_on;
use crate::support::fleet::now_ms;
use crate::support::mongod::{Mongod, unique_database};
use crate::support::service::Service;
use model::stable_hash;
use mongodb::bson::doc;
use pipeline::route::shard_of;

use super::read_api::{PATIENCE, get, post, prepared};

/// Readings per request of [`post_many`].
const MANY: i64 = 100;

/// Locks MongoDB for writes, or unlocks it; reads are possible meanwhile. (If it were stopped, no
/// answer could show whether it is complete.)
fn lock(mongod: &Mongod, is_locked: bool) {
    let command = if is_locked {
        doc! { "fsync": 1, "lock": true }
    } else {
        doc! { "fsyncUnlock": 1 }
    };
    block_on(async {
        let client = mongodb::Client::with_uri_str(mongod.uri()).await.unwrap();
        client.database("admin").run_command(command).await.unwrap();
    });
}

/// Posts about 100 KiB of readings of a sensor, numbered from `n`.
fn post_many(service: &Service, sensor: &str, from_ms: i64, n: i64) {
    let text = "x".repeat(1000);
    let line = |n: i64| {
        format!(
            "{{\"sensor_id\":\"{sensor}\",\"ts\":{},\"n\":{n},\"text\":\"{text}\"}}\n",
            from_ms + n
        )
    };
    post(service, &(n..n + MANY).map(line).collect::<String>());
}

/// The numbers of a sensor's readings in the answer, and whether the answer is marked as complete.
fn returned(service: &Service, sensor: &str, from_ms: i64) -> (Vec<i64>, bool) {
    let answer = get(
        service,
        &format!("/v1/sensors/{sensor}/readings?from={from_ms}&limit=100000"),
    );
    let ns = answer["readings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r["values"]["n"].as_i64().unwrap())
        .collect();
    (ns, answer["complete"].as_bool().unwrap())
}

#[test]
fn an_answer_without_readings_that_are_not_in_memory_yet_is_incomplete() {
    let mongod = Mongod::start();
    let uri = mongod.uri();
    let database = unique_database("read_incomplete");
    let text = "flush.max_age = \"100ms\"\nlog.level = \"warn\"\n[accumulate]\nshards = 2\n\
        max_bytes = \"1MiB\"\n";
    let service = Service::start(
        text,
        &[("STORE__URI", &uri), ("STORE__DATABASE", &database)],
    );
    prepared(&service);
    let of_shard = |shard| {
        let mut names = (0..).map(|i| format!("s{i}"));
        names
            .find(|name| shard_of(stable_hash(name), 2) == shard)
            .unwrap()
    };
    let full = of_shard(0);
    let other = of_shard(1);
    let from_ms = now_ms() / 3_600_000 * 3_600_000 - 3_600_000;
    let hourly = |sensor: &str| -> (i64, bool) {
        let answer = get(
            &service,
            &format!("/v1/sensors/{sensor}/hourly?from={from_ms}"),
        );
        let buckets = answer["buckets"].as_array().unwrap();
        (
            buckets.iter().map(|b| b["count"].as_i64().unwrap()).sum(),
            answer["complete"].as_bool().unwrap(),
        )
    };
    for sensor in [&full, &other] {
        post_many(&service, sensor, from_ms, 0);
    }
    service.wait_settled(2 * MANY as u64, PATIENCE);
    lock(&mongod, true);

    // The shard accepts as much as fits. Until then each answer is complete; from then on it says
    // that it is not.
    let mut sent = MANY;
    let accepted = loop {
        post_many(&service, &full, from_ms, sent);
        sent += MANY;
        let (ns, is_complete) = returned(&service, &full, from_ms);
        assert!(ns.is_sorted_by(|a, b| a < b), "each once");
        if !is_complete {
            break ns.len() as i64;
        }
        assert_eq!(ns.len() as i64, sent, "it says that it is complete");
        assert!(
            sent < 50 * MANY,
            "{sent} readings of 1 KiB are in a shard with half a MiB"
        );
    };
    assert!((2 * MANY..sent).contains(&accepted), "{accepted} of {sent}");
    assert_eq!(hourly(&full), (accepted, false));
    assert_eq!(
        returned(&service, &other, from_ms),
        ((0..MANY).collect(), true),
        "the other shard has no readings"
    );

    // After some more readings the router waits for that shard: later readings are in no shard, not
    // even in the one with free memory.
    for _ in 0..8 {
        post_many(&service, &full, from_ms, sent);
        sent += MANY;
    }
    post_many(&service, &other, from_ms, MANY);
    assert_eq!(
        returned(&service, &other, from_ms),
        ((0..MANY).collect(), false)
    );
    assert_eq!(hourly(&other), (MANY, false));
    let path = format!("/v1/sensors/{other}/readings?from={from_ms}&format=csv");
    let agent = ureq::Agent::config_builder()
        .proxy(None)
        .build()
        .new_agent();
    let csv = agent
        .get(format!("{}{path}", service.admin()))
        .call()
        .unwrap();
    assert_eq!(csv.headers()["x-hourbucket-complete"], "false");

    lock(&mongod, false);
    service.wait_settled((sent + 2 * MANY) as u64, PATIENCE);
    for (sensor, n) in [(&full, sent), (&other, 2 * MANY)] {
        assert_eq!(
            returned(&service, sensor, from_ms),
            ((0..n).collect(), true)
        );
        assert_eq!(hourly(sensor), (n, true));
    }
}
