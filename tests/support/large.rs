//! Buckets with more readings than a test can send: writes them directly into MongoDB, and counts
//! them there.
//!
//! Reading `i` of such a bucket has the time `start + i * STEP_MS` and the value `n = i`.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::time::Duration;

use config::StoreMode;
use model::Span;
use mongodb::bson::{Bson, DateTime, Document, RawArrayBuf, RawDocumentBuf, doc, rawdoc};
use mongodb::{Client, Database};
use store::Store;
use store::mongo::MongoStore;

use super::{block_on, stored};

/// Time between two readings: a million of them take 50 minutes.
pub const STEP_MS: i64 = 3;
const HOUR_MS: i64 = 3_600_000;
/// Measurements and pages per command.
const MEASUREMENTS: i64 = 50_000;
const PAGES: usize = 100;

/// Creates the collections, as `init` does.
pub fn prepare(uri: &str, database: &str, mode: StoreMode) {
    let uri = config::Secret::new(uri.to_owned());
    let settings = config::Store {
        uri,
        database: database.to_owned(),
        mode,
        ..config::Config::default().store
    };
    block_on(async {
        let store = MongoStore::new(&settings, Span::HOUR, Duration::from_secs(30 * 86_400))
            .await
            .unwrap();
        store.prepare().await.unwrap();
    });
}

/// Writes `count` measurements in one hour for each of these sensors, and their summaries.
pub fn measured_hours(uri: &str, database: &str, sensors: &[String], start: i64, count: i64) {
    with(uri, database, async |db| {
        let measurements = db.collection::<RawDocumentBuf>("sensor_readings");
        for sensor in sensors {
            for first in (0..count).step_by(MEASUREMENTS as usize) {
                let measurement = |n| {
                    let meta = rawdoc! { "sensor_id": sensor.as_str(), "tags": {} };
                    rawdoc! { "ts": DateTime::from_millis(start + n * STEP_MS), "meta": meta, "n": n }
                };
                let some = (first..count.min(first + MEASUREMENTS)).map(measurement);
                measurements.insert_many(some).ordered(false).await.unwrap();
            }
            let mut summary = head(sensor, start, 0, 0, count);
            summary.insert("storage", "timeseries");
            db.collection::<Document>("sensor_buckets")
                .insert_one(summary)
                .await
                .unwrap();
        }
    });
}

/// Writes `count` readings in one hour, in pages of `page_max`; the last page is open if `count` is
/// not a multiple of it.
pub fn paged_hour(uri: &str, database: &str, sensor: &str, start: i64, count: i64, page_max: i64) {
    with(uri, database, async |db| {
        let mut pages = vec![];
        for (page, first) in (0..).zip((0..count).step_by(page_max as usize)) {
            let of_page = count.min(first + page_max) - first;
            let mut document =
                RawDocumentBuf::try_from(&head(sensor, start, page, first, of_page)).unwrap();
            let mut readings = RawArrayBuf::new();
            for n in first..first + of_page {
                readings.push(rawdoc! { "ts": DateTime::from_millis(start + n * STEP_MS), "n": n });
            }
            document.append(mongodb::bson::cstr!("readings"), readings);
            if first + of_page < count {
                document.append(mongodb::bson::cstr!("has_overflow"), true);
            }
            pages.push(document);
        }
        for some in pages.chunks(PAGES) {
            db.collection::<RawDocumentBuf>("sensor_buckets")
                .insert_many(some)
                .await
                .unwrap();
        }
    });
}

/// Counts on the server: a sensor's readings and the sum of `n`, and the same two values according
/// to the summaries.
pub fn counted(uri: &str, database: &str, sensor: &str) -> [(i64, i64); 2] {
    with(uri, database, async |db| {
        let one = |count: Bson, sum: Bson| doc! { "$group": { "_id": null, "count": { "$sum": count }, "sum": { "$sum": sum } } };
        let in_pages = doc! { "$size": { "$ifNull": ["$readings", []] } };
        let of_pages = doc! { "$sum": "$readings.n" };
        let pages = [("sensor_id", "sensor_buckets")];
        let measured = [("meta.sensor_id", "sensor_readings")];
        let ask = async |(field, collection): (&str, &str), group: Document| {
            let pipeline = [doc! { "$match": { field: sensor } }, group];
            let mut cursor = db
                .collection::<Document>(collection)
                .aggregate(pipeline)
                .await
                .unwrap();
            if !cursor.advance().await.unwrap() {
                return (0, 0);
            }
            let row = cursor.deserialize_current().unwrap();
            let number = |name: &str| {
                row.get_i64(name)
                    .or(row.get_i32(name).map(i64::from))
                    .unwrap()
            };
            (number("count"), number("sum"))
        };
        let paged = ask(pages[0], one(in_pages.into(), of_pages.into())).await;
        let native = ask(measured[0], one(1.into(), "$n".into())).await;
        let summed = ask(pages[0], one("$count".into(), "$summary.n.sum".into())).await;
        [(paged.0 + native.0, paged.1 + native.1), summed]
    })
}

/// The number of readings according to the summaries of a sensor. Cheap for any number.
pub fn summed(uri: &str, database: &str, sensor: &str) -> i64 {
    stored::counted_of(uri, database, doc! { "sensor_id": sensor }) as i64
}

/// Calls `ask` with a database, in a separate thread and runtime.
pub fn with<T: Send>(uri: &str, database: &str, ask: impl AsyncFnOnce(Database) -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async {
                ask(Client::with_uri_str(uri)
                    .await
                    .expect("a client")
                    .database(database))
                .await
            })
        });
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The page of the readings from `first` on, without its readings.
fn head(sensor: &str, start: i64, page: i32, first: i64, count: i64) -> Document {
    let start_at = DateTime::from_millis(start);
    let last = first + count - 1;
    let sum = (first + last) * count / 2;
    doc! {
        "_id": { "sensor_id": sensor, "bucket_start": start_at, "page": page },
        "schema_version": 1,
        "sensor_id": sensor,
        "bucket_start": start_at,
        "bucket_end": DateTime::from_millis(start + HOUR_MS),
        "page": page,
        "tags": {},
        "count": count as i32,
        "first_ts": DateTime::from_millis(start + first * STEP_MS),
        "last_ts": DateTime::from_millis(start + last * STEP_MS),
        "summary": { "n": { "min": first, "max": last, "sum": sum, "count": count as i32 } },
    }
}
