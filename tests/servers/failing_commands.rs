//! Commands that MongoDB answers with an error while others succeed: those that prepare the database
//! at the start, and the writes of readings. Real MongoDB with a fail point, the binary.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::time::{Duration, Instant};

use crate::support::mongod::{Kind, Mongod, unique_database};
use crate::support::service::Service;
use crate::support::{block_on, wait_until};
use mongodb::Client;
use mongodb::bson::{Bson, Document, doc};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(60);
/// Longer than the time between two pings of the store.
const A_PING: Duration = Duration::from_secs(6);
/// 2024-03-01T10:00:00Z
const START_MS: i64 = 1_709_287_200_000;

/// Lets commands fail with this code until [`answers_again`].
fn fails(mongod: &Mongod, code: i32, commands: &[&str]) {
    let data = doc! { "errorCode": code, "failCommands": commands.to_vec() };
    set(mongod, "alwaysOn".into(), data);
}

/// The same for inserts into one collection.
fn inserts_fail(mongod: &Mongod, code: i32, namespace: String) {
    let data = doc! { "errorCode": code, "failCommands": ["insert"], "namespace": namespace };
    set(mongod, "alwaysOn".into(), data);
}

fn answers_again(mongod: &Mongod) {
    set(mongod, "off".into(), doc! {});
}

fn set(mongod: &Mongod, mode: Bson, data: Document) {
    let uri = mongod.uri();
    block_on(async {
        let client = Client::with_uri_str(&uri).await.unwrap();
        let command = doc! { "configureFailPoint": "failCommand", "mode": mode, "data": data };
        client.database("admin").run_command(command).await.unwrap();
    });
}

fn is_catalogued(mongod: &Mongod, db: &str, sensor: &str) -> bool {
    let uri = mongod.uri();
    block_on(async {
        let client = Client::with_uri_str(&uri).await.unwrap();
        let entries = client.database(db).collection::<Document>("sensor_catalog");
        let found = entries.find_one(doc! { "_id": sensor }).await;
        found.unwrap().is_some()
    })
}

fn readyz(service: &Service) -> Value {
    let (_, text) = service.get_admin("/readyz").unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Waits until requests of this kind fail with this code.
fn wait_failing(service: &Service, requests: &str, code: &str) {
    wait_until("the failure in /readyz", PATIENCE, || {
        let report = readyz(service);
        let failing = report["store"]["failing"].as_array()?;
        let is_named =
            |f: &Value| f["requests"] == requests && f["error"].as_str().unwrap().contains(code);
        failing.iter().any(is_named).then_some(())
    });
}

#[test]
fn errors_at_the_start_and_of_writes_are_named_until_they_end() {
    let mongod = Mongod::start_kind(Kind {
        fail_points: true,
        ..Kind::default()
    });
    for mode in ["bucket", "timeseries"] {
        let begun = Instant::now();
        let db = unique_database(mode);
        // SnapshotTooOld, AtlasError, and a code that no server has.
        let codes = [239, 8000, 4242];
        fails(&mongod, codes[0], &["findAndModify"]);
        let service = Service::start(
            "limits.past = \"20000d\"\nflush.max_age = \"200ms\"\n",
            &[
                ("STORE__URI", &mongod.uri()),
                ("STORE__DATABASE", &db),
                ("STORE__MODE", mode),
            ],
        );
        service.write_lines(&format!("m,sensor_id=A v=1 {START_MS}"));
        for code in codes {
            fails(&mongod, code, &["findAndModify"]);
            wait_failing(&service, "prepare", &format!("({code})"));
            assert_eq!(
                readyz(&service)["ready"],
                true,
                "the journal accepts readings"
            );
        }
        answers_again(&mongod);
        service.wait_settled(1, PATIENCE);

        // A reading does not wait for the catalogue, and the next one brings the entry again.
        inserts_fail(&mongod, 14031, format!("{db}.sensor_catalog"));
        service.write_lines(&format!("m,sensor_id=C v=1 {START_MS}"));
        service.wait_settled(2, PATIENCE);
        wait_failing(&service, "catalog", "(14031)");
        assert_eq!(readyz(&service)["store"]["ok"], true);
        answers_again(&mongod);
        service.write_lines(&format!("m,sensor_id=C v=2 {}", START_MS + 1));
        service.wait_settled(3, PATIENCE);
        assert!(is_catalogued(&mongod, &db, "C"));

        // OutOfDiskSpace. Loads and pings succeed.
        fails(&mongod, 14031, &["insert", "update"]);
        for n in 0..200 {
            let sensor = n % 20;
            service.write_lines(&format!("m,sensor_id=B{sensor} v={n} {}", START_MS + n));
        }
        wait_failing(&service, "write", "(14031)");
        wait_until("the age of the oldest reading", PATIENCE, || {
            readyz(&service)["store"]["oldest_waiting_seconds"].as_u64()
        });
        let end = Instant::now() + A_PING;
        while Instant::now() < end {
            let report = readyz(&service);
            let store = &report["store"];
            assert_eq!(store["ok"], false, "{report}");
            assert!(
                store["error"].as_str().unwrap().contains("(14031)"),
                "{report}"
            );
            assert!(store["oldest_waiting_seconds"].is_u64(), "{report}");
            let reason = report["reasons"][0].as_str().unwrap();
            assert!(
                reason.contains("(14031)") && reason.contains("has waited"),
                "{report}"
            );
            let summary = report["summary"].as_str().unwrap();
            assert!(
                summary.starts_with("MongoDB answers, but stores no readings; readings are kept"),
                "{report}"
            );
            std::thread::sleep(Duration::from_millis(100));
        }
        let log = service.log();
        let lines = |text: &str, kind: &str| {
            let is_of = |line: &&str| line.contains(text) && line.contains(kind);
            log.lines().filter(is_of).count()
        };
        assert_eq!(lines("succeed again", "requests=\"write\""), 0, "{log}");
        // Of the preparation, the catalogue, loads and writes: two in a minute.
        let minutes = 1 + begun.elapsed().as_secs() as usize / 60;
        assert!(lines("store requests", "") <= 4 * 2 * minutes, "{log}");
        answers_again(&mongod);
        let metrics = service.wait_settled(203, PATIENCE);
        assert_eq!(metrics.get("readings_stored_total"), 203.0);
        wait_until("the end of the failure", PATIENCE, || {
            let report = readyz(&service);
            let is_well =
                report["store"]["ok"] == true && report["reasons"] == Value::Array(vec![]);
            is_well.then_some(())
        });
    }
}
