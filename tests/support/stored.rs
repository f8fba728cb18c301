//! Reads the contents of MongoDB, and recomputes and checks them.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};

use mongodb::bson::{Bson, Document, doc};

use super::block_on;

/// A stored reading: sensor, time (ms) and its field `n`.
pub type Stored = (String, i64, i64);

/// Reads every bucket of a database in either storage mode, checks each page or summary against its
/// readings, and counts the readings.
///
/// # Panics
/// A page's count, times, summary, number or seal is wrong, or there are measurements without a
/// summary.
pub fn readings(uri: &str, database: &str) -> BTreeMap<Stored, u32> {
    block_on(async {
        let client = mongodb::Client::with_uri_str(uri).await.expect("a client");
        let database = client.database(database);
        let collection = database.collection::<Document>("sensor_buckets");
        let measurements = database.collection::<Document>("sensor_readings");
        let mut measured = 0;
        let mut cursor = collection
            .find(doc! {})
            .sort(doc! { "_id": 1 })
            .await
            .expect("a cursor");
        let mut all = BTreeMap::new();
        let (mut before, mut series): (Option<Document>, Option<Document>) = (None, None);
        while cursor.advance().await.expect("the next page") {
            let page: Document = cursor.deserialize_current().expect("a document");
            follows(before.as_ref(), &page);
            let is_series = page.get_str("storage").is_ok();
            if let Some(held) = series.take_if(|held| {
                page.get_i32("page").unwrap() > 0 && is_series && follows_on(held, &page)
            }) {
                // The pages together count the measurements.
                before = Some(page.clone());
                series = Some(merged(held, &page));
                continue;
            }
            if let Some(whole) = series.take() {
                measured += series_bucket(&measurements, whole, &mut all).await;
            }
            before = Some(page.clone());
            match is_series {
                true => series = Some(page),
                false => recompute_summary(&page, &mut all),
            }
        }
        if let Some(whole) = series.take() {
            measured += series_bucket(&measurements, whole, &mut all).await;
        }
        // In bucket mode this collection does not exist and contains nothing.
        let count = measurements
            .count_documents(doc! {})
            .await
            .expect("a count");
        assert_eq!(
            count, measured,
            "measurements, and those of buckets with a summary"
        );
        all
    })
}

/// All readings of a database in bucket mode, by sensor and time: each with its values, `ts`, `id`
/// and `tags`.
pub fn documents(uri: &str, database: &str) -> Vec<Document> {
    block_on(async {
        let client = mongodb::Client::with_uri_str(uri).await.unwrap();
        let collection = client
            .database(database)
            .collection::<Document>("sensor_buckets");
        let flat = [
            doc! { "$unwind": "$readings" },
            doc! { "$replaceRoot": { "newRoot": { "$mergeObjects": ["$readings", { "id": "$sensor_id", "tags": "$tags" }] } } },
            doc! { "$sort": { "id": 1, "ts": 1 } },
        ];
        let mut cursor = collection.aggregate(flat).await.unwrap();
        let mut found = vec![];
        while cursor.advance().await.unwrap() {
            found.push(cursor.deserialize_current().unwrap());
        }
        found
    })
}

/// The fields of a sensor, each with its kinds.
type Fields = BTreeMap<String, BTreeSet<&'static str>>;

/// What the catalogue must say of a sensor, by its stored readings.
struct Noted {
    fields: Fields,
    first_ms: i64,
    last_ms: i64,
}

impl Noted {
    fn none() -> Noted {
        Noted {
            fields: Fields::new(),
            first_ms: i64::MAX,
            last_ms: i64::MIN,
        }
    }

    fn note(&mut self, reading: &Document) {
        let ts_ms = reading.get_datetime("ts").unwrap().timestamp_millis();
        self.first_ms = self.first_ms.min(ts_ms);
        self.last_ms = self.last_ms.max(ts_ms);
        for (name, value) in reading
            .iter()
            .filter(|(name, _)| !matches!(&***name, "_id" | "ts" | "meta"))
        {
            let kind = match value {
                Bson::Boolean(_) => "bool",
                Bson::String(_) => "text",
                _ => "number",
            };
            self.fields.entry(name.clone()).or_default().insert(kind);
        }
    }

    /// Checks the entry of this sensor.
    fn fits(&self, entry: &Document) {
        let kinds = |list: &Bson| -> Vec<String> {
            let list = list
                .as_array()
                .unwrap()
                .iter()
                .map(|kind| kind.as_str().unwrap().to_owned());
            list.collect::<BTreeSet<_>>().into_iter().collect()
        };
        let held: BTreeMap<&String, Vec<String>> = entry
            .get_document("fields")
            .unwrap()
            .iter()
            .map(|(name, list)| (name, kinds(list)))
            .collect();
        let expected: BTreeMap<&String, Vec<String>> = self
            .fields
            .iter()
            .map(|(name, kinds)| (name, kinds.iter().map(|k| (*k).to_owned()).collect()))
            .collect();
        assert_eq!(held, expected, "{entry}");
        let names: BTreeSet<&str> = entry
            .get_array("field_names")
            .unwrap()
            .iter()
            .filter_map(Bson::as_str)
            .collect();
        assert_eq!(
            names,
            self.fields
                .keys()
                .map(String::as_str)
                .collect::<BTreeSet<_>>(),
            "{entry}"
        );
        let time = |name: &str| entry.get_datetime(name).unwrap().timestamp_millis();
        let first = time("first_ts");
        let last = time("last_ts");
        let day = 86_400_000;
        assert!(
            first - day <= self.first_ms && self.last_ms <= last + day && first <= last,
            "{entry}"
        );
    }
}

/// What the catalogue must say of every sensor, by all stored readings in either storage mode.
async fn noted(database: &mongodb::Database) -> BTreeMap<String, Noted> {
    let mut stored: BTreeMap<String, Noted> = BTreeMap::new();
    let mut cursor = database
        .collection::<Document>("sensor_buckets")
        .find(doc! {})
        .await
        .unwrap();
    while cursor.advance().await.unwrap() {
        let page: Document = cursor.deserialize_current().unwrap();
        let sensor = page.get_str("sensor_id").unwrap().to_owned();
        let all = stored.entry(sensor).or_insert_with(Noted::none);
        let readings = page
            .get_array("readings")
            .into_iter()
            .flatten()
            .filter_map(Bson::as_document);
        readings.for_each(|reading| all.note(reading));
    }
    let mut cursor = database
        .collection::<Document>("sensor_readings")
        .find(doc! {})
        .await
        .unwrap();
    while cursor.advance().await.unwrap() {
        let reading: Document = cursor.deserialize_current().unwrap();
        let sensor = reading
            .get_document("meta")
            .unwrap()
            .get_str("sensor_id")
            .unwrap()
            .to_owned();
        stored
            .entry(sensor)
            .or_insert_with(Noted::none)
            .note(&reading);
    }
    stored
}

/// Checks that the catalogue has every stored sensor and field with its kinds, and nothing else,
/// and times that include those of the readings. Returns the number of sensors.
///
/// # Panics
/// It does not.
pub fn catalogued(uri: &str, database: &str) -> usize {
    block_on(async {
        let client = mongodb::Client::with_uri_str(uri).await.expect("a client");
        let database = client.database(database);
        let stored = noted(&database).await;
        let mut cursor = database
            .collection::<Document>("sensor_catalog")
            .find(doc! {})
            .await
            .unwrap();
        let mut entries = 0;
        while cursor.advance().await.unwrap() {
            let entry: Document = cursor.deserialize_current().unwrap();
            stored
                .get(entry.get_str("_id").unwrap())
                .unwrap_or_else(|| panic!("not stored: {entry}"))
                .fits(&entry);
            entries += 1;
        }
        assert_eq!(entries, stored.len(), "entries, and stored sensors");
        entries
    })
}

/// The number of readings that the documents count, in either mode. Cheap, and correct at any
/// moment. ([`readings`] compares documents with measurements that are read later, so nothing may
/// be written meanwhile.)
pub fn counted(uri: &str, database: &str) -> u64 {
    counted_of(uri, database, doc! {})
}

/// The same for the documents that match.
pub fn counted_of(uri: &str, database: &str, filter: Document) -> u64 {
    block_on(async {
        let client = mongodb::Client::with_uri_str(uri).await.expect("a client");
        let buckets = client
            .database(database)
            .collection::<Document>("sensor_buckets");
        let sum = doc! { "$group": { "_id": null, "n": { "$sum": "$count" } } };
        let mut found = buckets
            .aggregate([doc! { "$match": filter }, sum])
            .await
            .expect("a sum");
        if !found.advance().await.expect("a sum") {
            return 0;
        }
        let sum: Document = found.deserialize_current().expect("a sum");
        number(sum.get("n").unwrap()).unwrap() as u64
    })
}

/// Checks the count of a time-series bucket, its pages merged; returns its measurements.
async fn series_bucket(
    measurements: &mongodb::Collection<Document>,
    mut whole: Document,
    all: &mut BTreeMap<Stored, u32>,
) -> u64 {
    let of_bucket = measurements_of(measurements, &whole).await;
    let n = of_bucket.len() as u64;
    whole.insert("readings", of_bucket);
    recompute_summary(&whole, all);
    n
}

fn follows_on(held: &Document, page: &Document) -> bool {
    held.get("sensor_id") == page.get("sensor_id")
        && held.get("bucket_start") == page.get("bucket_start")
}

/// Merges two pages of a time-series bucket.
fn merged(mut held: Document, page: &Document) -> Document {
    let time = |d: &Document, name: &str| *d.get_datetime(name).unwrap();
    held.insert(
        "count",
        held.get_i32("count").unwrap() + page.get_i32("count").unwrap(),
    );
    held.insert(
        "first_ts",
        time(&held, "first_ts").min(time(page, "first_ts")),
    );
    held.insert("last_ts", time(&held, "last_ts").max(time(page, "last_ts")));
    let fields = held.get_document_mut("summary").unwrap();
    for (name, more) in page.get_document("summary").unwrap() {
        let more = more.as_document().unwrap();
        let Some(Bson::Document(sum)) = fields.get_mut(name) else {
            fields.insert(name.clone(), more.clone());
            continue;
        };
        let of = |d: &Document, name: &str| number(d.get(name).unwrap()).unwrap();
        *sum = doc! {
            "min": of(sum, "min").min(of(more, "min")), "max": of(sum, "max").max(of(more, "max")),
            "sum": of(sum, "sum") + of(more, "sum"),
            "count": sum.get_i32("count").unwrap() + more.get_i32("count").unwrap(),
        };
    }
    held
}

/// The measurements of a time-series bucket as readings.
async fn measurements_of(
    collection: &mongodb::Collection<Document>,
    page: &Document,
) -> Vec<Document> {
    let from = page.get_datetime("bucket_start").unwrap();
    let to = page.get_datetime("bucket_end").unwrap();
    assert_eq!(page.get_str("storage").unwrap(), "timeseries");
    let filter = doc! { "meta.sensor_id": page.get_str("sensor_id").unwrap(), "ts": { "$gte": from, "$lt": to } };
    let mut cursor = collection.find(filter).await.expect("a cursor");
    let mut found = vec![];
    while cursor.advance().await.expect("the next measurement") {
        let mut measurement: Document = cursor.deserialize_current().expect("a document");
        measurement.remove("_id");
        measurement.remove("meta");
        found.push(measurement);
    }
    found
}

/// The pages of a bucket are numbered from 0 without gaps, and exactly those with a successor are
/// sealed.
fn follows(before: Option<&Document>, page: &Document) {
    let bucket = |p: &Document| {
        (
            p.get_str("sensor_id").unwrap().to_owned(),
            *p.get_datetime("bucket_start").unwrap(),
        )
    };
    let sealed = |p: &Document| p.get_bool("has_overflow").unwrap_or(false);
    let n = page.get_i32("page").unwrap();
    match before.filter(|b| bucket(b) == bucket(page)) {
        Some(before) => {
            assert_eq!(
                n,
                before.get_i32("page").unwrap() + 1,
                "a gap before {}",
                page.get_document("_id").unwrap()
            );
            assert!(
                sealed(before),
                "has a next page and is not sealed: {}",
                before.get_document("_id").unwrap()
            );
        }
        None => assert_eq!(
            n,
            0,
            "the first page is missing: {}",
            page.get_document("_id").unwrap()
        ),
    }
}

fn number(value: &Bson) -> Option<f64> {
    match value {
        Bson::Double(v) => Some(*v),
        Bson::Int32(v) => Some(f64::from(*v)),
        Bson::Int64(v) => Some(*v as f64),
        _ => None,
    }
}

fn recompute_summary(page: &Document, all: &mut BTreeMap<Stored, u32>) {
    let id = page.get_document("_id").unwrap().to_string();
    let sensor = page.get_str("sensor_id").unwrap();
    let span = page.get_datetime("bucket_start").unwrap()..page.get_datetime("bucket_end").unwrap();
    let mut summary: BTreeMap<String, (f64, f64, f64, i32)> = BTreeMap::new();
    let mut first = i64::MAX;
    let mut last = i64::MIN;
    let readings = page.get_array("readings").unwrap();
    for reading in readings.iter().map(|r| r.as_document().unwrap()) {
        let ts = reading.get_datetime("ts").unwrap();
        assert!(
            span.contains(&ts),
            "{id}: a reading of another hour: {reading}"
        );
        (first, last) = (
            first.min(ts.timestamp_millis()),
            last.max(ts.timestamp_millis()),
        );
        for (name, value) in reading {
            if let Some(v) = number(value) {
                let s = summary.entry(name.clone()).or_insert((v, v, 0.0, 0));
                *s = (s.0.min(v), s.1.max(v), s.2 + v, s.3 + 1);
            }
        }
        let n = reading.get("n").and_then(number).unwrap_or(-1.0) as i64;
        *all.entry((sensor.to_owned(), ts.timestamp_millis(), n))
            .or_default() += 1;
    }
    assert_eq!(
        page.get_i32("count").unwrap() as usize,
        readings.len(),
        "{id}: count"
    );
    let times = ["first_ts", "last_ts"].map(|name| page.get_datetime(name).unwrap());
    if readings.is_empty() {
        assert!(times.iter().all(|ts| span.contains(ts)), "{id}: {times:?}");
    } else {
        assert_eq!(
            times.map(|ts| ts.timestamp_millis()),
            [first, last],
            "{id}: first_ts, last_ts"
        );
    }
    let stored = page.get_document("summary").unwrap();
    assert_eq!(
        stored.keys().collect::<Vec<_>>().len(),
        summary.len(),
        "{id}: fields of the summary"
    );
    for (name, (min, max, sum, count)) in summary {
        let s = stored.get_document(&name).unwrap();
        let value = |key: &str| number(s.get(key).unwrap()).unwrap();
        assert_eq!(
            (value("min"), value("max"), s.get_i32("count").unwrap()),
            (min, max, count),
            "{id}: {name}"
        );
        assert!(
            (value("sum") - sum).abs() <= 1e-9 * sum.abs().max(1.0),
            "{id}: sum of {name}: {} and {sum}",
            value("sum")
        );
    }
}

/// Reports readings that are missing, stored twice or were never sent.
///
/// # Panics
/// There are any.
pub fn exactly_once(stored: &BTreeMap<Stored, u32>, sent: impl IntoIterator<Item = Stored>) {
    let mut missing = vec![];
    let mut twice = vec![];
    let mut n = 0u64;
    let mut rest = stored.clone();
    for reading in sent {
        n += 1;
        match rest.remove(&reading) {
            None => missing.push(reading),
            Some(1) => {}
            Some(times) => twice.push((reading, times)),
        }
    }
    let some = |list: &[Stored]| format!("{:?}", &list[..list.len().min(5)]);
    assert!(
        missing.is_empty(),
        "{} of {n} are missing: {}…",
        missing.len(),
        some(&missing)
    );
    assert!(
        twice.is_empty(),
        "{} of {n} are stored more than once: {:?}…",
        twice.len(),
        &twice[..twice.len().min(5)]
    );
    let strange: Vec<Stored> = rest.into_keys().collect();
    assert!(
        strange.is_empty(),
        "{} were never sent: {}…",
        strange.len(),
        some(&strange)
    );
}
