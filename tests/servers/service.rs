//! The binary as users see it: answers, documents and exit codes, with a real MongoDB and a real
//! mosquitto.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::process::Command;
use std::time::Duration;

use crate::support::fleet::now_ms;
use crate::support::mongod::{Mongod, unique_database};
use crate::support::mosquitto::Mosquitto;
use crate::support::service::Service;
use crate::support::{block_on, stored, wait_until};
use model::Span;
use mongodb::bson::{Document, doc};
use store::mongo::{ReadingsLocation, raw_readings_pipeline};

const PATIENCE: Duration = Duration::from_secs(60);
const HOUR: i64 = 3_600_000;

/// A service on the shared MongoDB, with its own database.
fn service(test: &str, config: &str) -> (Service, String) {
    let database = unique_database(test);
    let text = format!("flush.max_age = \"200ms\"\n{config}");
    let service = Service::start(
        &text,
        &[
            ("STORE__URI", &Mongod::shared().uri()),
            ("STORE__DATABASE", &database),
        ],
    );
    (service, database)
}

fn find(database: &str, collection: &str, filter: Document) -> Vec<Document> {
    block_on(async {
        let client = mongodb::Client::with_uri_str(Mongod::shared().uri())
            .await
            .unwrap();
        let collection = client.database(database).collection::<Document>(collection);
        let mut cursor = collection
            .find(filter)
            .sort(doc! { "_id": 1 })
            .await
            .unwrap();
        let mut found = vec![];
        while cursor.advance().await.unwrap() {
            found.push(cursor.deserialize_current().unwrap());
        }
        found
    })
}

fn json(service: &Service, body: &str) -> (u16, serde_json::Value) {
    let (status, text) = service
        .post("/v1/readings", "application/json", body.as_bytes())
        .expect("an answer");
    (status, serde_json::from_str(&text).unwrap())
}

/// The rows of an aggregation.
fn rows(database: &str, collection: &str, pipeline: Vec<Document>) -> Vec<Document> {
    block_on(async {
        let client = mongodb::Client::with_uri_str(Mongod::shared().uri())
            .await
            .unwrap();
        let collection = client.database(database).collection::<Document>(collection);
        let mut cursor = collection.aggregate(pipeline).await.unwrap();
        let mut found = vec![];
        while cursor.advance().await.unwrap() {
            found.push(cursor.deserialize_current().unwrap());
        }
        found
    })
}

#[test]
fn hours_pages_duplicates_and_late_readings_are_the_same_in_both_modes() {
    let start = (now_ms() - 5 * HOUR) / HOUR * HOUR;
    let pages = [
        (start - HOUR, 0, 1, None),
        (start, 0, 100, Some(true)),
        (start, 1, 100, Some(true)),
        (start, 2, 51, None),
        (start + HOUR, 0, 1, None),
    ];
    let series = [
        (start - HOUR, 0, 1, None),
        (start, 0, 251, None),
        (start + HOUR, 0, 1, None),
    ];
    let bucket = hours_pages_duplicates_and_late_readings("bucket", start, &pages);
    let timeseries = hours_pages_duplicates_and_late_readings("timeseries", start, &series);
    let summaries = |database: &str| {
        let rows = rows(
            database,
            "sensor_summaries",
            vec![doc! { "$sort": { "bucket_start": 1 } }],
        );
        assert_eq!(rows.len(), 3);
        rows
    };
    assert_eq!(summaries(&bucket), summaries(&timeseries));
    let raw = |database: &str, collection, storage_mode| {
        let pipeline = raw_readings_pipeline(
            storage_mode,
            "S1",
            start - HOUR,
            start + 2 * HOUR,
            Span::HOUR,
        );
        let rows = rows(database, collection, pipeline);
        assert_eq!(rows.len(), 253);
        rows
    };
    let of_pages = raw(&bucket, "sensor_buckets", ReadingsLocation::Pages);
    assert_eq!(
        of_pages,
        raw(
            &timeseries,
            "sensor_readings",
            ReadingsLocation::Measurements
        )
    );
    assert_eq!(
        of_pages,
        raw(&timeseries, "sensor_buckets", ReadingsLocation::Both)
    );
}

/// Returns the database.
fn hours_pages_duplicates_and_late_readings(
    mode: &str,
    start: i64,
    expected: &[(i64, i32, i32, Option<bool>)],
) -> String {
    let text = format!("bucket.max_readings = 100\nstore.mode = \"{mode}\"");
    let (mut service, database) = service(&format!("pages_{mode}"), &text);
    let reading = |ts: i64, n: &str| format!("{{\"sensor_id\":\"S1\",\"ts\":{ts},\"n\":{n}}}");
    // 250 readings of one hour, shuffled; both ends of the hour; the next hour; some repeated in
    // other batches, at last by a program that sends 21.0 for 21.
    let mut all: Vec<(i64, i64)> = (0..250).map(|n| (start + n * 1000, n)).collect();
    all.extend([
        (start - 1, 1000),
        (start + HOUR - 1, 1001),
        (start + HOUR, 1002),
    ]);
    fastrand::Rng::with_seed(7).shuffle(&mut all);
    let mut sent = 0;
    for (part, decimals) in [(&all[..90], ""), (&all[60..], ""), (&all[..30], ".0")] {
        let body: Vec<String> = part
            .iter()
            .map(|(ts, n)| reading(*ts, &format!("{n}{decimals}")))
            .collect();
        let (status, answer) = json(&service, &format!("[{}]", body.join(",")));
        assert_eq!(
            (status, answer["accepted"].as_u64()),
            (200, Some(part.len() as u64)),
            "{answer}"
        );
        sent += part.len();
        service.wait_settled(sent as u64, PATIENCE);
    }
    let stored = stored::readings(&Mongod::shared().uri(), &database);
    stored::exactly_once(
        &stored,
        all.iter().map(|(ts, n)| ("S1".to_owned(), *ts, *n)),
    );
    let pages = find(&database, "sensor_buckets", doc! {});
    let shape: Vec<(i64, i32, i32, Option<bool>)> = pages
        .iter()
        .map(|p| {
            let start = p.get_datetime("bucket_start").unwrap().timestamp_millis();
            (
                start,
                p.get_i32("page").unwrap(),
                p.get_i32("count").unwrap(),
                p.get_bool("has_overflow").ok(),
            )
        })
        .collect();
    assert_eq!(shape, expected);
    let metrics = service.metrics();
    assert_eq!(metrics.get("readings_duplicate_total"), 60.0);
    assert_eq!(metrics.get("readings_stored_total"), 253.0);
    assert_eq!(service.terminate(PATIENCE), 0);
    database
}

#[test]
fn bad_readings_are_reported_and_the_others_are_stored() {
    let (service, database) = service("bad", "");
    let now = now_ms();
    let body = format!(
        "[{{\"sensor_id\":\"ok1\",\"ts\":{now},\"t\":1}},{{\"ts\":{now},\"t\":1}},{{\"sensor_id\":\"a\",\"ts\":{now},\"t\":NaN}},\
         {{\"sensor_id\":\"a\",\"ts\":\"2010-12-31T23:59:59Z\",\"t\":1}},{{\"sensor_id\":\"a\",\"ts\":{now},\"t\":null}},\
         {{\"sensor_id\":\"ok2\",\"ts\":{now},\"a.b\":1,\"$c\":2}},{{\"sensor_id\":\"a\""
    );
    let (status, answer) = json(&service, &body);
    assert_eq!(
        (status, &answer["accepted"], &answer["rejected"]),
        (200, &2.into(), &5.into()),
        "{answer}"
    );
    let errors = answer["errors"].as_array().unwrap();
    let reasons: Vec<(u64, &str)> = errors
        .iter()
        .map(|e| (e["index"].as_u64().unwrap(), e["reason"].as_str().unwrap()))
        .collect();
    let expected = [
        (1, "missing_sensor_id"),
        (2, "not_finite"),
        (3, "too_old"),
        (4, "no_values"),
        (6, "invalid_json"),
    ];
    assert_eq!(reasons, expected);
    assert!(
        errors
            .iter()
            .all(|e| !e["detail"].as_str().unwrap().is_empty())
    );
    service.wait_settled(2, PATIENCE);
    let pages = find(&database, "sensor_buckets", doc! { "sensor_id": "ok2" });
    let summary = pages[0].get_document("summary").unwrap();
    assert_eq!(summary.keys().collect::<Vec<_>>(), ["a_b", "_c"]);
    let (status, answer) = json(&service, "{\"sensor_id\":");
    assert_eq!(
        (status, &answer["accepted"], &answer["rejected"]),
        (400, &0.into(), &1.into()),
        "{answer}"
    );
}

#[test]
fn an_invalid_message_becomes_a_dead_letter_and_blocks_nothing() {
    let broker = Mosquitto::start("");
    let text = format!(
        "[[mqtt]]\nurl = \"{}\"\nclient_id = \"poison\"\n[[mqtt.subscriptions]]\n\
         filter = \"fleet/+\"\n\
         topic = \"fleet/{{sensor_id}}\"\nformat = \"json\"\n",
        broker.url()
    );
    let (service, database) = service("poison", &text);
    // The broker drops messages that are published before the first subscription.
    service.wait_subscribed();
    let publish = |payload: &str| {
        let port = broker.port().to_string();
        let arguments = ["-p", &port, "-q", "1", "-t", "fleet/S1", "-m", payload];
        assert!(
            Command::new("mosquitto_pub")
                .args(arguments)
                .status()
                .expect("mosquitto_pub")
                .success()
        );
    };
    publish("{\"t\": 1");
    publish("{\"t\": 2}");
    service.wait_settled(1, PATIENCE);
    let dead_letters = wait_until("the dead letter", PATIENCE, || {
        Some(find(&database, "dead_letters", doc! {}))
            .filter(|dead_letters| !dead_letters.is_empty())
    });
    assert_eq!(dead_letters.len(), 1);
    assert_eq!(
        (
            dead_letters[0].get_str("reason").unwrap(),
            dead_letters[0].get_str("topic").unwrap()
        ),
        ("invalid_json", "fleet/S1")
    );
    assert_eq!(
        dead_letters[0].get_binary_generic("payload").unwrap(),
        b"{\"t\": 1"
    );
    // Counted when the answers have come, which may be after the document can be read.
    wait_until("both are counted", PATIENCE, || {
        let metrics = service.metrics();
        let counted = metrics.labelled("dead_letters_total", "reason", "invalid_json");
        (counted == 1.0 && metrics.get("readings_rejected_total") == 1.0).then_some(())
    });
}

#[test]
fn a_full_journal_refuses_readings_and_recovers_by_itself() {
    let mut mongod = Mongod::start();
    let text = "journal.max_bytes = \"4MiB\"\njournal.segment_bytes = \"1MiB\"\n\
        flush.max_age = \"200ms\"\n\
                accumulate.max_bytes = \"1MiB\"";
    let service = Service::start(text, &[("STORE__URI", &mongod.uri())]);
    mongod.kill9();
    let post = |batch: i64| {
        let ts = now_ms();
        let readings: Vec<_> = (0..1000)
            .map(|i| (format!("s{}", i % 7), ts, batch * 1000 + i))
            .collect();
        let line = |(s, ts, n): &stored::Stored| {
            format!("{{\"sensor_id\":\"{s}\",\"ts\":{ts},\"n\":{n}}}\n")
        };
        let body: String = readings.iter().map(line).collect();
        let (status, text) = service
            .post("/v1/readings", "application/x-ndjson", body.as_bytes())
            .expect("an answer");
        (status, text, readings)
    };
    let mut sent = vec![];
    let mut batch = 0;
    let refused = wait_until("the journal is full", PATIENCE, || {
        batch += 1;
        let (status, text, readings) = post(batch);
        if status == 200 {
            sent.extend(readings);
        }
        (status != 200).then_some((status, text))
    });
    assert_eq!(refused.0, 429, "{}", refused.1);
    wait_until("a full journal is not ready", PATIENCE, || {
        service
            .get_admin("/readyz")
            .filter(|(status, text)| *status == 503 && text.contains("journal"))
    });
    wait_until("its metrics report that too", PATIENCE, || {
        let metrics = service.metrics();
        let full = metrics.labelled("intake_closed", "reason", "full") == 1.0
            && metrics.get("intake_closed") == 1.0;
        (full && metrics.get("ready") == 0.0 && metrics.get("journal_max_bytes") == 4_194_304.0)
            .then_some(())
    });
    mongod.restart();
    wait_until("it takes readings again", PATIENCE, || {
        batch += 1;
        let (status, _, readings) = post(batch);
        (status == 200).then(|| sent.extend(readings))
    });
    service.wait_settled(sent.len() as u64, PATIENCE);
    stored::exactly_once(&stored::readings(&mongod.uri(), "hourbucket"), sent);
}

#[test]
fn stopped_while_mongodb_is_unreachable_it_reports_that_and_stores_after_a_restart() {
    let mut mongod = Mongod::start();
    let text = "shutdown.deadline = \"1s\"\nstore.connect_timeout = \"300ms\"";
    let mut service = Service::start(text, &[("STORE__URI", &mongod.uri())]);
    mongod.kill9();
    let ts = now_ms();
    let body = format!("{{\"sensor_id\":\"S1\",\"ts\":{ts},\"n\":1}}");
    assert_eq!(json(&service, &body).0, 200, "the journal has it");
    assert_eq!(service.terminate(PATIENCE), 3, "{}", service.log());
    mongod.restart();
    service.restart();
    service.wait_settled(1, PATIENCE);
    stored::exactly_once(
        &stored::readings(&mongod.uri(), "hourbucket"),
        [("S1".to_owned(), ts, 1)],
    );
    assert_eq!(service.terminate(PATIENCE), 0);
}

#[test]
fn other_commands_and_a_journal_in_use() {
    let (service, database) = service("commands", "");
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_hourbucket"))
            .args(arguments)
            .current_dir(service.dir())
            .env("HOURBUCKET_STORE__URI", Mongod::shared().uri())
            .env("HOURBUCKET_STORE__DATABASE", &database)
            .env("HOURBUCKET_JOURNAL__DIR", service.dir().join("journal"))
            .env("HOURBUCKET_HTTP__LISTEN", "127.0.0.1:0")
            .env("HOURBUCKET_ADMIN__LISTEN", "127.0.0.1:0")
            .output()
            .expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        (output.status.code(), text)
    };
    let (code, text) = run(&["check", "--config", "hourbucket.toml"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("MongoDB 6") || text.contains("MongoDB "),
        "{text}"
    );
    // The hardening checklist, which changes no exit code.
    for line in [
        "good     hardening      failed_auth_max: Guessing secrets is slowed down.",
        "advice   hardening      audit.file: Refusals and queries are recorded in full. ",
        "look     hardening      firewall: ",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let (code, text) = run(&["init", "--config", "hourbucket.toml"]);
    assert_eq!(code, Some(0), "{text}");
    let (code, text) = run(&["run", "--config", "hourbucket.toml"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("journal") && text.contains("in use"),
        "{text}"
    );
    let (code, text) = run(&["run", "--config", "nowhere.toml"]);
    assert_eq!(code, Some(78), "{text}");
    assert!(text.contains("nowhere.toml"), "{text}");
}
