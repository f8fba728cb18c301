//! Collections that are dropped while the service runs. Real MongoDB, the binary.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::time::Duration;

use crate::support::mongod::{Mongod, unique_database};
use crate::support::service::Service;
use crate::support::{block_on, wait_until};
use mongodb::Client;
use mongodb::bson::{Document, doc};

/// The collections are checked every ten seconds.
const PATIENCE: Duration = Duration::from_secs(120);
/// 2024-03-01T10:00:00Z
const START_MS: i64 = 1_709_287_200_000;

fn start(test: &str, mode: &str) -> (String, Service) {
    let db = unique_database(test);
    let service = Service::start(
        "limits.past = \"20000d\"\nflush.max_age = \"500ms\"\n",
        &[
            ("STORE__URI", &Mongod::shared().uri()),
            ("STORE__DATABASE", &db),
            ("STORE__MODE", mode),
        ],
    );
    service.write_lines(&format!("m,sensor_id=A v=1 {START_MS}"));
    service.wait_settled(1, PATIENCE);
    // After the first check, which is that of the first ping.
    std::thread::sleep(Duration::from_secs(7));
    (db, service)
}

fn run(db: &str, command: Document) -> Document {
    let uri = Mongod::shared().uri();
    block_on(async {
        let client = Client::with_uri_str(&uri).await.unwrap();
        client.database(db).run_command(command).await.unwrap()
    })
}

fn first_batch(reply: &Document) -> Vec<Document> {
    let cursor = reply.get_document("cursor").unwrap();
    let batch = cursor.get_array("firstBatch").unwrap();
    let documents = batch.iter().map(|d| d.as_document().unwrap().clone());
    documents.collect()
}

fn entry(db: &str, name: &str) -> Document {
    let list = doc! { "listCollections": 1, "filter": { "name": name } };
    first_batch(&run(db, list)).remove(0)
}

fn wait_for_reason(service: &Service, part: &str) {
    wait_until("the state of the store", PATIENCE, || {
        let (_, text) = service.get_admin("/readyz")?;
        let report: serde_json::Value = serde_json::from_str(&text).ok()?;
        let reasons = report["reasons"].as_array()?;
        reasons
            .iter()
            .any(|r| r.as_str().is_some_and(|r| r.contains(part)))
            .then_some(())
    });
}

#[test]
fn pages_get_their_validator_and_indexes_again() {
    let (db, service) = start("pages", "bucket");
    run(&db, doc! { "drop": "sensor_buckets" });
    let later_ms = START_MS + 3_600_000;
    service.write_lines(&format!("m,sensor_id=B v=1 {later_ms}"));
    service.wait_settled(2, PATIENCE);
    wait_for_reason(&service, "sensor_buckets was dropped");
    let options = entry(&db, "sensor_buckets");
    let options = options.get_document("options").unwrap();
    assert!(options.contains_key("validator"), "{options}");
    let indexes = first_batch(&run(&db, doc! { "listIndexes": "sensor_buckets" }));
    let is_ours = |index: &Document| index.get_str("name").unwrap() == "sensor_bucket_page";
    assert!(indexes.iter().any(is_ours), "{indexes:?}");
    assert!(service.log().contains("sensor_buckets was dropped"));
}

#[test]
fn measurements_in_a_plain_collection_are_reported() {
    let (db, service) = start("measured", "timeseries");
    run(&db, doc! { "drop": "sensor_readings" });
    // Another sensor: of the hour of A a measurement is missing now.
    service.write_lines(&format!("m,sensor_id=B v=2 {}", START_MS + 1));
    service.wait_settled(2, PATIENCE);
    wait_for_reason(&service, "rename or drop sensor_readings");
    // Once it is out of the way, the time-series collection is created again.
    run(&db, doc! { "drop": "sensor_readings" });
    wait_for_reason(&service, "sensor_readings was dropped; created again");
    let created = entry(&db, "sensor_readings");
    assert_eq!(created.get_str("type").unwrap(), "timeseries");
}
