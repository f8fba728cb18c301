//! Field names that never repeat, sent to the service: `HOURBUCKET_NAMES` of them (70,000) from one
//! sensor in one hour, in both storage modes.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test, with figures"
)]

use std::time::{Duration, Instant};

use crate::support::mongod::{Mongod, unique_database};
use crate::support::service::Service;
use crate::support::stored::{self, Stored};
use crate::support::{block_on, setting, wait_until};
use mongodb::bson::{Document, doc};

use super::overflow::{FIELDS, START, name};
use super::overflow_documents::{largest, rows};

/// The number of names that are sent to the service.
fn names() -> i64 {
    setting("HOURBUCKET_NAMES", 70_000)
}

/// A database; each runtime needs its own client.
async fn database_of(name: &str) -> mongodb::Database {
    mongodb::Client::with_uri_str(Mongod::shared().uri())
        .await
        .unwrap()
        .database(name)
}

/// Readings with 63 new names each, and their `n`; 60 readings per body, which may have 4,096
/// names.
fn bodies(from: i64, to: i64) -> Vec<(String, std::ops::Range<i64>)> {
    let line = |i: i64| {
        let names: String = (1..FIELDS)
            .map(|f| format!(",\"{}\":{i}", name(i * FIELDS + f)))
            .collect();
        format!(
            "{{\"sensor_id\":\"wide\",\"ts\":{},\"n\":{i}{names}}}\n",
            START.0 + i * 10
        )
    };
    let body = |first: i64| (first..(first + 60).min(to)).map(line).collect::<String>();
    (from..to)
        .step_by(60)
        .map(|first| (body(first), first..(first + 60).min(to)))
        .collect()
}

/// Repeats a body until there is an answer: connections from before the restart are broken.
fn post(service: &Service, body: &str) {
    let answer = wait_until("an answer", Duration::from_secs(60), || {
        service
            .post("/v1/readings", "application/x-ndjson", body.as_bytes())
            .filter(|(status, _)| *status != 429)
    });
    assert!(
        answer.0 == 200 && answer.1.contains("\"rejected\":0"),
        "{answer:?}"
    );
}

/// Sends one reading of each of 40 other sensors.
fn post_others(service: &Service, round: i64) -> Vec<Stored> {
    let readings: Vec<Stored> = (0..40)
        .map(|s| (format!("s{s}"), START.0 + round * 1000, round))
        .collect();
    let lines: String = readings
        .iter()
        .map(|(s, ts, n)| format!("{{\"sensor_id\":\"{s}\",\"ts\":{ts},\"n\":{n}}}\n"))
        .collect();
    post(service, &lines);
    readings
}

/// Sends names, kills the service halfway, and checks the stored documents.
fn never_repeating_names(mode: &str) {
    let uri = Mongod::shared().uri();
    let database = unique_database(mode);
    let max_age = Duration::from_secs(2);
    let readings = names() / (FIELDS - 1) + 1;
    let text = format!(
        "store.mode = \"{mode}\"\nflush.max_age = \"{}s\"\nlimits.past = \"2000d\"\n\
         limits.bucket_fields_max = 1000000\nlog.level = \"info\"\n",
        max_age.as_secs()
    );
    let mut service = Service::start(
        &text,
        &[("STORE__URI", &uri), ("STORE__DATABASE", &database)],
    );
    let stored_of = |sensors: &str, round: i64| {
        let collection = if mode == "timeseries" {
            "sensor_readings"
        } else {
            "sensor_buckets"
        };
        let (id, n) = if mode == "timeseries" {
            ("meta.sensor_id", "n")
        } else {
            ("sensor_id", "readings.n")
        };
        let filter = doc! { id: { "$regex": sensors }, n: round };
        block_on(async {
            database_of(&database)
                .await
                .collection::<Document>(collection)
                .count_documents(filter)
                .await
                .unwrap()
        })
    };
    let mut all = vec![];
    let mut waited = Duration::ZERO;
    for half in 0..2i64 {
        for (body, range) in bodies(half * readings / 2, (half + 1) * readings / 2) {
            post(&service, &body);
            all.extend(range.map(|i| ("wide".to_owned(), START.0 + i * 10, i)));
        }
        if half == 0 {
            // Some of it is in flight.
            std::thread::sleep(max_age);
            service.restart();
        }
        for round in half * 10..half * 10 + 3 {
            let begun = Instant::now();
            all.extend(post_others(&service, round));
            wait_until(
                "innocent readings are stored",
                max_age + Duration::from_secs(15),
                || (stored_of("^s", round) == 40).then_some(()),
            );
            waited = waited.max(begun.elapsed());
        }
    }
    wait_until("everything is stored", Duration::from_secs(600), || {
        let metrics = service.metrics();
        (metrics.get("readings_in_flight") == 0.0).then_some(())
    });
    let stored = stored::readings(&uri, &database);
    stored::exactly_once(&stored, all);
    let largest = block_on(async { largest(&database_of(&database).await).await });
    println!(
        "{mode}: {} names, largest document {largest} bytes, others waited {waited:?}",
        names()
    );
    // A summary of 1 MiB; in bucket mode also `bucket.max_bytes` of readings.
    assert!(
        largest < if mode == "bucket" { 5 << 19 } else { 2 << 20 },
        "{largest}"
    );
    let from = START.0 / 1000;
    let to = START.0 / 1000 + 3600;
    let (status, answer) = service
        .get_admin(&format!("/v1/sensors/wide/hourly?from={from}&to={to}"))
        .unwrap();
    assert_eq!(status, 200, "{answer}");
    let hour: serde_json::Value = serde_json::from_str(&answer).unwrap();
    let bucket = &hour["buckets"][0];
    assert_eq!(bucket["count"], readings, "{}", &answer[..300]);
    assert_eq!(bucket["summary_truncated"], names() > 16_384);
    let row = block_on(async { rows(&database_of(&database).await, doc! {}).await })
        .remove("wide")
        .unwrap();
    assert_eq!(i64::from(row.get_i32("count").unwrap()), readings);
}

#[test]
fn names_that_never_repeat_are_stored_in_time_series_mode() {
    never_repeating_names("timeseries");
}

#[test]
fn names_that_never_repeat_are_stored_in_bucket_mode() {
    never_repeating_names("bucket");
}
