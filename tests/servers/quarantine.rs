//! One bucket that MongoDB can no longer write or read: the other sensors are not affected, the
//! bucket is reported, its readings become dead letters after a limited time, and a replay stores
//! them after the cause is fixed. Real MongoDB with a proxy before it, the binary.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test, with figures"
)]

use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::fleet::now_ms;
use crate::support::mongod::{Mongod, unique_database};
use crate::support::proxy::Proxy;
use crate::support::service::Service;
use crate::support::steady::Steady;
use crate::support::stored::{self, Stored};
use crate::support::{block_on, wait_until};
use chrono::DateTime;
use futures_util::TryStreamExt;
use mongodb::bson::{Document, doc};
use serde_json::Value;

const HOUR_MS: i64 = 3_600_000;
const MAX_AGE: Duration = Duration::from_secs(1);
/// The maximum wait of a reading of another sensor (docs/design.md, section 1).
const LIMIT: Duration = Duration::from_secs(15 + MAX_AGE.as_secs());
const PATIENCE: Duration = Duration::from_secs(60);
const BAD: &str = "bad-1";

/// The fault of the bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// Commands that contain its name are executed or not, and never answered.
    NoAnswer,
    /// The count of its document is two and a half: no write that names an integer version matches,
    /// and in time-series mode no recomputation does.
    Damaged,
}

#[test]
fn a_bucket_without_answers_affects_no_other() {
    one_bad_bucket("bucket", Cause::NoAnswer);
}

#[test]
fn a_bucket_without_answers_affects_no_other_with_time_series() {
    one_bad_bucket("timeseries", Cause::NoAnswer);
}

#[test]
fn a_damaged_bucket_affects_no_other() {
    one_bad_bucket("bucket", Cause::Damaged);
}

#[test]
fn a_damaged_bucket_affects_no_other_with_time_series() {
    one_bad_bucket("timeseries", Cause::Damaged);
}

/// Short, if the settings have this key.
fn quarantine_after() -> &'static str {
    let shipped = include_str!("../../config/hourbucket.toml");
    if shipped.contains("quarantine_after") {
        "flush.quarantine_after = \"10s\""
    } else {
        ""
    }
}

fn one_bad_bucket(mode: &str, cause: Cause) {
    let uri = Mongod::shared().uri();
    let database = unique_database(&format!("bad_{mode}_{cause:?}"));
    let proxy = Proxy::start(Mongod::shared().port());
    // If answers arrive, a permit that is never returned shows soonest if there is only one.
    let permits = if cause == Cause::Damaged { 1 } else { 4 };
    let text = format!(
        "store.mode = \"{mode}\"\nstore.timeout = \"1s\"\nflush.max_age = \"{MAX_AGE:?}\"\n\
         flush.commands_max = {permits}\n{}",
        quarantine_after()
    );
    let mut service = Service::start(
        &text,
        &[("STORE__URI", &proxy.uri()), ("STORE__DATABASE", &database)],
    );
    let start = (now_ms() / HOUR_MS - 1) * HOUR_MS;
    let readings = |of: std::ops::Range<i64>| -> Vec<Stored> {
        of.map(|n| (BAD.to_owned(), start + n * 1000, n)).collect()
    };
    post(&service, &readings(0..2));
    service.wait_settled(2, PATIENCE);
    let steady = Steady::start(service.http(), uri.clone(), &database, 20, LIMIT);
    match cause {
        // As a text in BSON; the same name in the payload of a dead letter is not.
        Cause::NoAnswer => {
            proxy.withhold_answers_to(&[b"\x06\0\0\0", BAD.as_bytes(), b"\0"].concat())
        }
        Cause::Damaged => set_count(&uri, &database, start, doc! { "count": 2.5 }),
    }
    post(&service, &readings(2..5));
    if cause == Cause::Damaged {
        // Open buckets are loaded then, and this one among them.
        service.restart();
    }
    let begun = Instant::now();
    wait_until("/readyz names the bucket", PATIENCE, || {
        steady.check();
        is_named(&service, start).then_some(())
    });
    let named = begun.elapsed();
    assert!(service.metrics().get("quarantined_buckets") >= 1.0);
    assert!(
        service.log().contains(BAD),
        "the log does not name the sensor"
    );
    wait_until("its readings are dead letters", PATIENCE, || {
        steady.check();
        (quarantined(&uri, &database) == [2, 3, 4]).then_some(())
    });
    let kept = begun.elapsed();
    // The other sensors continue, and nothing keeps the journal's segments.
    wait_until("no old reading waits", LIMIT, || {
        steady.check();
        (service.metrics().get("oldest_unstored_seconds") < LIMIT.as_secs_f64()).then_some(())
    });
    let (others, worst) = steady.finish();
    println!(
        "{mode}, {cause:?}: named after {named:?}, dead letters after {kept:?}; the others waited \
         {worst:?} at most"
    );
    assert_eq!(service.terminate(PATIENCE), 0, "{}", service.log());

    match cause {
        Cause::NoAnswer => proxy.answer_again(),
        Cause::Damaged => set_count(&uri, &database, start, doc! { "count": 2 }),
    }
    replay(&service, &uri, &database);
    stored::exactly_once(
        &stored::readings(&uri, &database),
        others.into_iter().chain(readings(0..5)),
    );
    assert_eq!(quarantined(&uri, &database), [] as [i64; 0]);
}

fn post(service: &Service, readings: &[Stored]) {
    let line = |(sensor, ts, n): &Stored| {
        format!("{{\"sensor_id\":\"{sensor}\",\"ts\":{ts},\"n\":{n}}}\n")
    };
    let body: String = readings.iter().map(line).collect();
    let (status, text) = service
        .post("/v1/readings", "application/x-ndjson", body.as_bytes())
        .expect("an answer");
    assert_eq!(status, 200, "{text}");
    assert!(
        text.contains(&format!("\"accepted\":{}", readings.len())),
        "{text}"
    );
}

/// Sets fields in the document of the bad bucket, bypassing the validator.
fn set_count(uri: &str, database: &str, start: i64, fields: Document) {
    let start = mongodb::bson::DateTime::from_millis(start);
    block_on(async {
        let pages = mongodb::Client::with_uri_str(uri)
            .await
            .unwrap()
            .database(database);
        let pages = pages.collection::<Document>("sensor_buckets");
        let id = doc! { "_id": { "sensor_id": BAD, "bucket_start": start, "page": 0 } };
        let update = pages
            .update_one(id, doc! { "$set": fields })
            .bypass_document_validation(true);
        assert_eq!(update.await.unwrap().modified_count, 1);
    });
}

/// Whether `/readyz` reports it: sensor, hour, reason and since when, in the list and among the
/// reasons.
fn is_named(service: &Service, start: i64) -> bool {
    let Some((_, text)) = service.get_admin("/readyz") else {
        return false;
    };
    let report: Value = serde_json::from_str(&text).unwrap();
    let time = |entry: &Value, name: &str| {
        let text = entry[name]
            .as_str()
            .unwrap_or_else(|| panic!("{name} of {entry}"));
        DateTime::parse_from_rfc3339(text)
            .unwrap_or_else(|e| panic!("{name} of {entry}: {e}"))
            .timestamp_millis()
    };
    let list = report["quarantine"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    assert!(
        list.iter().all(|entry| entry["sensor_id"] == BAD),
        "another bucket is reported: {text}"
    );
    let Some(entry) = list.first() else {
        return false;
    };
    assert_eq!(time(entry, "bucket_start"), start, "{text}");
    assert!(
        (0..PATIENCE.as_millis() as i64).contains(&(now_ms() - time(entry, "since"))),
        "{text}"
    );
    assert!(!entry["reason"].as_str().unwrap().is_empty(), "{text}");
    let reasons = report["reasons"].as_array().unwrap();
    assert!(
        reasons
            .iter()
            .any(|reason| reason.as_str().unwrap().contains(BAD)),
        "{text}"
    );
    true
}

/// The values `n` of the readings in dead letters with this reason.
fn quarantined(uri: &str, database: &str) -> Vec<i64> {
    block_on(async {
        let database = mongodb::Client::with_uri_str(uri)
            .await
            .unwrap()
            .database(database);
        let dead_letters = database.collection::<Document>("dead_letters");
        let dead_letters = dead_letters
            .find(doc! { "reason": "quarantined" })
            .await
            .unwrap();
        let dead_letters: Vec<Document> = dead_letters.try_collect().await.unwrap();
        let mut found = vec![];
        for dead_letter in &dead_letters {
            let bytes = dead_letter
                .get_binary_generic("payload")
                .expect("a payload")
                .clone();
            for line in String::from_utf8(bytes).unwrap().lines() {
                let reading: Value = serde_json::from_str(line).unwrap();
                assert_eq!(reading["sensor_id"], BAD, "{reading}");
                found.push(reading["values"]["n"].as_i64().unwrap());
            }
        }
        found.sort_unstable();
        found
    })
}

/// Replays the dead letters, with the settings of the service.
fn replay(service: &Service, uri: &str, database: &str) {
    let output = Command::new(env!("CARGO_BIN_EXE_hourbucket"))
        .args([
            "dead-letters",
            "replay",
            "--reason",
            "quarantined",
            "--config",
            "hourbucket.toml",
        ])
        .current_dir(service.dir())
        .env("HOURBUCKET_STORE__URI", uri)
        .env("HOURBUCKET_STORE__DATABASE", database)
        // With time series it waits as long as a service with its settings may hold readings, which
        // starts with this one.
        .env("HOURBUCKET_FLUSH__MAX_AGE_BUSY", "1s")
        .output()
        .expect("it runs");
    let printed = [output.stdout, output.stderr].concat();
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&printed)
    );
}
