//! `hourbucket reconcile` while a service runs: repairs lose and duplicate nothing that it appends.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::fleet::{Gateway, now_ms};
use crate::support::mongod::{Mongod, unique_database};
use crate::support::seed::{HOUR, run};
use crate::support::service::Service;
use crate::support::{block_on, stored};
use model::Span;
use mongodb::bson::{DateTime, Document, doc};
use store::mongo::MongoStore;

use super::reconcile::reconcile;

fn store(database: &str) -> config::Store {
    let uri = config::Secret::new(Mongod::shared().uri());
    config::Store {
        uri,
        database: database.to_owned(),
        ..config::Config::default().store
    }
}

/// Changes stored pages directly, in ways that no writer does, until it is stopped.
async fn damage_pages(db: mongodb::Database, stop: &AtomicBool) -> u32 {
    let pages = db.collection::<Document>("sensor_buckets");
    let mut n = 0;
    while !stop.load(Ordering::Relaxed) {
        let updates = [
            doc! { "$inc": { "summary.n.sum": 7 } },
            doc! { "$inc": { "count": 3 } },
            doc! { "$unset": { "summary.half": 1 } },
            doc! { "$inc": { "count": -1 } },
            doc! { "$set": { "first_ts": DateTime::from_millis(0) } },
        ];
        // The last pages, to which the service appends.
        let sample = [
            doc! { "$sort": { "page": -1 } },
            doc! { "$limit": 3 },
            doc! { "$sample": { "size": 1 } },
            doc! { "$project": { "_id": 1 } },
        ];
        let mut cursor = pages.aggregate(sample).await.unwrap();
        if cursor.advance().await.unwrap() {
            let id = cursor.deserialize_current().unwrap();
            pages
                .update_one(id, updates[n as usize % updates.len()].clone())
                .await
                .unwrap();
            n += 1;
        }
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    n
}

/// The count of a page is its version. Here both this task and repairs change it while the service
/// appends.
#[test]
fn repairs_during_a_running_service_lose_and_duplicate_nothing() {
    let uri = Mongod::shared().uri();
    let database = unique_database("beside");
    let text = "flush.max_age = \"40ms\"\nbucket.max_readings = 1000\nstore.mode = \"bucket\"";
    let mut service = Service::start(
        text,
        &[("STORE__URI", &uri), ("STORE__DATABASE", &database)],
    );
    let gateway = Gateway::start_slow("g", service.http(), 3, 12);
    let stop = AtomicBool::new(false);
    let begun = Instant::now();
    let (repaired, damaged) = block_on(async {
        let client = mongodb::Client::with_uri_str(&uri).await.unwrap();
        let db = client.database(&database);
        let store = MongoStore::new(&store(&database), Span::HOUR, Duration::from_secs(3600))
            .await
            .unwrap();
        let repairs = async {
            let mut repaired = 0;
            while begun.elapsed() < Duration::from_secs(8) || repaired < 20 {
                let now = now_ms();
                repaired += reconcile(&store, now - 2 * HOUR, now + 2 * HOUR, true, now)
                    .await
                    .repaired;
            }
            stop.store(true, Ordering::Relaxed);
            repaired
        };
        tokio::join!(repairs, damage_pages(db, &stop))
    });
    let sent = gateway.finish();
    let metrics = service.wait_settled(sent.len() as u64, Duration::from_secs(60));
    let conflicts = metrics.get("store_conflicts_total");
    println!(
        "{} readings, {damaged} damaged, {repaired} repaired, {conflicts} conflicts",
        sent.len()
    );
    assert!(conflicts > 0.0 && damaged > 20, "there were no conflicts");
    let from = "2020-01-01";
    let to = "2100-01-01";
    let (code, table, _) = run(
        &database,
        &uri,
        &["reconcile", "--from", from, "--to", to, "--repair"],
    );
    assert_eq!(code, 0, "{table}");
    stored::exactly_once(&stored::readings(&uri, &database), sent);
    assert_eq!(service.terminate(Duration::from_secs(60)), 0);
}

/// Here a repair writes whole arrays of readings. A repair that ignored the version would lose
/// readings that were appended after it read the page.
#[test]
fn only_duplicates_are_removed_during_a_running_service() {
    let uri = Mongod::shared().uri();
    let database = unique_database("twice");
    let text = "flush.max_age = \"5ms\"\nstore.mode = \"bucket\"";
    let service = Service::start(
        text,
        &[("STORE__URI", &uri), ("STORE__DATABASE", &database)],
    );
    let start = (now_ms() - 5 * HOUR) / HOUR * HOUR;
    let stop = AtomicBool::new(false);
    let (sent, repaired) = std::thread::scope(|scope| {
        let poster = scope.spawn(|| {
            let mut n = 0;
            while !stop.load(Ordering::Relaxed) {
                let line =
                    |n: i64| format!("{{\"sensor_id\":\"S\",\"ts\":{},\"n\":{n}}}\n", start + n);
                let body: String = (n..n + 3).map(line).collect();
                let answer = service.post("/v1/readings", "application/x-ndjson", body.as_bytes());
                assert_eq!(answer.expect("an answer").0, 200);
                n += 3;
            }
            n
        });
        let repaired = block_on(async {
            let client = mongodb::Client::with_uri_str(&uri).await.unwrap();
            let pages = client
                .database(&database)
                .collection::<Document>("sensor_buckets");
            let store = MongoStore::new(&store(&database), Span::HOUR, Duration::from_secs(3600))
                .await
                .unwrap();
            let begun = Instant::now();
            let mut repaired = 0;
            while begun.elapsed() < Duration::from_secs(6) || repaired < 20 {
                // Repeats the first reading of the last page, and changes the version.
                let twice =
                    doc! { "$concatArrays": ["$readings", [{ "$arrayElemAt": ["$readings", 0] }]] };
                let change = vec![
                    doc! { "$set": { "readings": twice, "count": { "$add": ["$count", 1] } } },
                ];
                pages
                    .find_one_and_update(doc! {}, change)
                    .sort(doc! { "page": -1 })
                    .await
                    .unwrap();
                let now = now_ms();
                repaired += reconcile(&store, start, start + HOUR, true, now)
                    .await
                    .repaired;
            }
            repaired
        });
        stop.store(true, Ordering::Relaxed);
        (poster.join().unwrap(), repaired)
    });
    let metrics = service.wait_settled(sent as u64, Duration::from_secs(60));
    let conflicts = metrics.get("store_conflicts_total");
    println!("{sent} readings, {repaired} repaired, {conflicts} conflicts");
    let from = "2020-01-01";
    let to = "2100-01-01";
    let (code, table, _) = run(
        &database,
        &uri,
        &[
            "reconcile",
            "--from",
            from,
            "--to",
            to,
            "--repair",
            "--drop-duplicates",
        ],
    );
    assert_eq!(code, 0, "{table}");
    let stored = stored::readings(&uri, &database);
    stored::exactly_once(&stored, (0..sent).map(|n| ("S".to_owned(), start + n, n)));
}
