//! Stored states written by tests, and the commands that check them.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use futures_util::TryStreamExt;
use model::Span;
use mongodb::Database;
use mongodb::bson::{Bson, DateTime, Document, doc};
use store::Store;
use store::mongo::MongoStore;

use super::mongod::{Mongod, unique_database};
use super::stored::Stored;

pub const HOUR: i64 = 3_600_000;
/// 2024-03-01T10:00:00Z
pub const START: i64 = 1_709_287_200_000;
/// A time range for the commands that contains all buckets near [`START`].
pub const SPAN: [&str; 4] = ["--from", "2024-03-01", "--to", "2024-03-02"];

/// A database for one test, with the collections as `init` creates them in bucket mode.
pub struct Seed {
    pub name: String,
    pub db: Database,
    pub store: MongoStore,
    uri: String,
}

impl Seed {
    /// Without data.
    pub async fn new(test: &str) -> Seed {
        Seed::with(test, None).await
    }

    /// With `store.retention`.
    pub async fn with(test: &str, retention: Option<Duration>) -> Seed {
        Seed::at(Mongod::shared().uri(), test, retention).await
    }

    /// On another server.
    pub async fn at(uri: String, test: &str, retention: Option<Duration>) -> Seed {
        let name = unique_database(test);
        let client = mongodb::Client::with_uri_str(&uri).await.unwrap();
        let secret = config::Secret::new(uri.clone());
        let settings = config::Store {
            uri: secret,
            database: name.clone(),
            mode: config::StoreMode::Bucket,
            retention,
            ..config::Config::default().store
        };
        let store = MongoStore::new(&settings, Span::HOUR, Duration::from_secs(3600))
            .await
            .unwrap();
        store.prepare().await.unwrap();
        Seed {
            db: client.database(&name),
            name,
            store,
            uri,
        }
    }

    /// Creates the native collection of measurements.
    pub async fn native(&self) {
        let series = doc! { "timeField": "ts", "metaField": "meta", "granularity": "seconds" };
        self.db
            .run_command(doc! { "create": "sensor_readings", "timeseries": series })
            .await
            .unwrap();
    }

    /// Inserts documents of `sensor_buckets`.
    pub async fn pages(&self, pages: impl IntoIterator<Item = Document>) {
        self.db
            .collection::<Document>("sensor_buckets")
            .insert_many(pages)
            .await
            .unwrap();
    }

    /// Inserts measurements.
    pub async fn measure(&self, sensor: &str, readings: &[(i64, i64)]) {
        let meta = doc! { "sensor_id": sensor, "tags": { "site": "north" } };
        let measurement = |r: &(i64, i64)| {
            let mut whole = reading(r);
            whole.insert("meta", meta.clone());
            whole
        };
        let all: Vec<Document> = readings.iter().map(measurement).collect();
        self.db
            .collection::<Document>("sensor_readings")
            .insert_many(all)
            .await
            .unwrap();
    }

    /// A stored page.
    pub async fn page(&self, sensor: &str, start: i64, page: i32) -> Option<Document> {
        self.db
            .collection::<Document>("sensor_buckets")
            .find_one(of(sensor, start, page))
            .await
            .unwrap()
    }

    /// Changes a page.
    pub async fn update(&self, sensor: &str, start: i64, page: i32, update: Document) {
        let pages = self.db.collection::<Document>("sensor_buckets");
        assert_eq!(
            pages
                .update_one(of(sensor, start, page), update)
                .await
                .unwrap()
                .matched_count,
            1
        );
    }

    /// The number of measurements.
    pub async fn measured(&self) -> u64 {
        self.db
            .collection::<Document>("sensor_readings")
            .count_documents(doc! {})
            .await
            .unwrap()
    }

    /// Every reading as seen by a reader that follows the documents: those in pages, and the
    /// measurements of buckets whose document has time-series mode.
    pub async fn readings(&self) -> BTreeMap<Stored, u32> {
        let measured = doc! { "$match": { "$expr": { "$and": [
            "$$series",
            { "$eq": ["$meta.sensor_id", "$$sensor"] },
            { "$gte": ["$ts", "$$from"] },
            { "$lt": ["$ts", "$$to"] },
        ] } } };
        let series =
            doc! { "$and": [{ "$eq": ["$storage", "timeseries"] }, { "$eq": ["$page", 0] }] };
        let lookup = doc! { "$lookup": {
            "from": "sensor_readings",
            "let": { "sensor": "$sensor_id", "from": "$bucket_start", "to": "$bucket_end", "series": series },
            "pipeline": [measured],
            "as": "measured",
        } };
        let all = doc! { "$concatArrays": [{ "$ifNull": ["$readings", []] }, "$measured"] };
        let pipeline = [
            lookup,
            doc! { "$project": { "sensor_id": 1, "all": all } },
            doc! { "$unwind": "$all" },
        ];
        let mut cursor = self
            .db
            .collection::<Document>("sensor_buckets")
            .aggregate(pipeline)
            .await
            .unwrap();
        let mut found = BTreeMap::new();
        while let Some(row) = cursor.try_next().await.unwrap() {
            let one = row.get_document("all").unwrap();
            let key = (
                row.get_str("sensor_id").unwrap().to_owned(),
                one.get_datetime("ts").unwrap().timestamp_millis(),
                one.get_i64("n").unwrap(),
            );
            *found.entry(key).or_default() += 1;
        }
        found
    }

    /// The rows of the view `sensor_summaries`: sensor and bucket, with count and sum of `n`.
    pub async fn summaries(&self) -> BTreeMap<(String, i64), (i64, i64)> {
        let view = self.db.collection::<Document>("sensor_summaries");
        let rows: Vec<Document> = view
            .find(doc! {})
            .await
            .unwrap()
            .try_collect()
            .await
            .unwrap();
        let int = |v: &Bson| v.as_i64().or(v.as_i32().map(i64::from)).unwrap();
        let row = |row: &Document| {
            let start = row.get_datetime("bucket_start").unwrap().timestamp_millis();
            let sum = row
                .get_document("summary")
                .unwrap()
                .get_document("n")
                .unwrap()
                .get("sum")
                .unwrap();
            (
                (row.get_str("sensor_id").unwrap().to_owned(), start),
                (int(row.get("count").unwrap()), int(sum)),
            )
        };
        // An emptied hour counts no reading.
        let has_some = |of: &&Document| int(of.get("count").unwrap()) > 0;
        rows.iter().filter(has_some).map(row).collect()
    }

    /// Runs the binary on this database: exit code, standard output, standard error.
    pub fn run(&self, arguments: &[&str]) -> (i32, String, String) {
        run(&self.name, &self.uri, arguments)
    }
}

/// Runs the binary on a database: exit code, standard output, standard error.
pub fn run(database: &str, uri: &str, arguments: &[&str]) -> (i32, String, String) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(
        dir.path().join("hourbucket.toml"),
        "store.mode = \"bucket\"\n",
    )
    .unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_hourbucket"))
        .args(arguments)
        .args(["--config", "hourbucket.toml"])
        .current_dir(dir.path())
        .env("HOURBUCKET_STORE__URI", uri)
        .env("HOURBUCKET_STORE__DATABASE", database)
        .env("HOURBUCKET_STORE__CONNECT_TIMEOUT", "2s")
        .output()
        .expect("it runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code().expect("it ends by itself"),
        text(output.stdout),
        text(output.stderr),
    )
}

fn of(sensor: &str, start: i64, page: i32) -> Document {
    doc! { "_id": { "sensor_id": sensor, "bucket_start": DateTime::from_millis(start), "page": page } }
}

/// A reading as time and `n`; `half`: as a double.
pub fn reading((ts, n): &(i64, i64)) -> Document {
    doc! { "ts": DateTime::from_millis(*ts), "n": *n, "half": *n as f64 / 2.0 }
}

/// `range` of readings, a second apart, from the start of a bucket.
pub fn readings(start: i64, range: std::ops::Range<i64>) -> Vec<(i64, i64)> {
    range.map(|n| (start + n * 1000, n)).collect()
}

/// The same in the form of [`Seed::readings`].
pub fn sent(sensor: &str, readings: &[(i64, i64)]) -> Vec<Stored> {
    readings
        .iter()
        .map(|(ts, n)| (sensor.to_owned(), *ts, *n))
        .collect()
}

/// A correct page.
pub fn page(sensor: &str, start: i64, number: i32, sealed: bool, all: &[(i64, i64)]) -> Document {
    let mut page = head(sensor, start, number, all);
    page.insert(
        "readings",
        all.iter()
            .map(|r| Bson::from(reading(r)))
            .collect::<Vec<_>>(),
    );
    if sealed {
        page.insert("has_overflow", true);
    }
    page
}

/// A correct document in time-series mode.
pub fn series(sensor: &str, start: i64, all: &[(i64, i64)]) -> Document {
    let mut page = head(sensor, start, 0, all);
    page.insert("storage", "timeseries");
    page
}

fn head(sensor: &str, start: i64, number: i32, all: &[(i64, i64)]) -> Document {
    let ns = || all.iter().map(|(_, n)| *n);
    let times = || all.iter().map(|(ts, _)| *ts);
    let min = ns().min().unwrap();
    let max = ns().max().unwrap();
    let sum = ns().sum::<i64>();
    let count = all.len() as i32;
    let mut page = of(sensor, start, number);
    page.extend(doc! {
        "schema_version": 1,
        "sensor_id": sensor,
        "bucket_start": DateTime::from_millis(start),
        "bucket_end": DateTime::from_millis(start + HOUR),
        "page": number,
        "tags": { "site": "north" },
        "count": count,
        "first_ts": DateTime::from_millis(times().min().unwrap()),
        "last_ts": DateTime::from_millis(times().max().unwrap()),
        "summary": {
            "n": { "min": min, "max": max, "sum": sum, "count": count },
            "half": { "min": min as f64 / 2.0, "max": max as f64 / 2.0, "sum": sum as f64 / 2.0, "count": count },
        },
    });
    page
}
