//! Both storage modes of a bucket give the same results, and the documented queries and the shard
//! keys have the indexes that they need.

use std::collections::BTreeMap;

use crate::support::mongod::Mongod;
use model::Span;
use mongodb::bson::{Bson, DateTime, Document, doc};
use store::mongo::{ReadingsLocation, raw_readings_pipeline};

use super::{HOUR_MS, Rig, START_MS};

/// Readings of a sensor around two hours: `(ts, values)`, not in order, with one `ts` twice with
/// different values.
fn readings() -> Vec<(i64, Document)> {
    let mut readings: Vec<(i64, Document)> = (0..150)
        .map(|i| {
            let mut values = doc! { "temp": f64::from(i) / 2.0, "n": i64::from(i) };
            if i % 7 == 0 {
                values.insert("state", "on");
                values.insert("open", i % 2 == 0);
            }
            (START_MS + i64::from(i) * 60_000 - 20 * 60_000, values)
        })
        .collect();
    readings.push((START_MS, doc! { "temp": -1.5 }));
    readings.swap(3, 90);
    readings
}

/// The documents of one hour: its summary in both modes.
fn bucket(sensor: &str, start_ms: i64, page: i32, readings: &[(i64, Document)]) -> Document {
    let date = |ms| Bson::DateTime(DateTime::from_millis(ms));
    let times = readings.iter().map(|(ts, _)| *ts);
    let temps: Vec<f64> = readings
        .iter()
        .filter_map(|(_, v)| v.get_f64("temp").ok())
        .collect();
    let summary = doc! { "temp": {
        "min": temps.iter().copied().fold(f64::INFINITY, f64::min),
        "max": temps.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        "sum": temps.iter().sum::<f64>(),
        "count": temps.len() as i32,
    } };
    doc! {
        "_id": { "sensor_id": sensor, "bucket_start": date(start_ms), "page": page },
        "schema_version": 1, "sensor_id": sensor,
        "bucket_start": date(start_ms), "bucket_end": date(start_ms + HOUR_MS), "page": page,
        "count": readings.len() as i32,
        "first_ts": date(times.clone().min().unwrap()), "last_ts": date(times.max().unwrap()),
        "summary": summary,
    }
}

/// Writes the readings of the hours in `hours` in one mode.
async fn insert(rig: &Rig, sensor: &str, native: bool, hours: &[i64]) {
    let mut by_hour = BTreeMap::<i64, Vec<(i64, Document)>>::new();
    for (ts, values) in readings() {
        by_hour
            .entry(Span::HOUR.floor(ts).0)
            .or_default()
            .push((ts, values));
    }
    let date = |ms| Bson::DateTime(DateTime::from_millis(ms));
    let reading = |(ts, values): &(i64, Document), mut head: Document| {
        head.insert("ts", date(*ts));
        head.extend(values.clone());
        head
    };
    for (start_ms, readings) in by_hour.iter().filter(|(start, _)| hours.contains(start)) {
        let buckets = rig.db.collection::<Document>("sensor_buckets");
        if native {
            let mut document = bucket(sensor, *start_ms, 0, readings);
            document.insert("storage", "timeseries");
            buckets.insert_one(document).await.unwrap();
            let meta = doc! { "meta": { "sensor_id": sensor, "tags": { "site": "north" } } };
            let measurements = readings.iter().map(|r| reading(r, meta.clone()));
            rig.db
                .collection("sensor_readings")
                .insert_many(measurements)
                .await
                .unwrap();
        } else {
            for (page, readings) in readings.chunks(40).enumerate() {
                let mut document = bucket(sensor, *start_ms, page as i32, readings);
                let stored: Vec<Document> = readings.iter().map(|r| reading(r, doc! {})).collect();
                document.insert("readings", stored);
                document.insert("has_overflow", true);
                buckets.insert_one(document).await.unwrap();
            }
        }
    }
}

/// The result of the documented query, without the sensor; sorted by `ts` as required, and by
/// `temp` within one `ts`.
async fn rows(
    rig: &Rig,
    storage_mode: ReadingsLocation,
    sensor: &str,
    from_ms: i64,
    to_ms: i64,
) -> Vec<Document> {
    let collection = if storage_mode == ReadingsLocation::Measurements {
        "sensor_readings"
    } else {
        "sensor_buckets"
    };
    let mut rows = rig
        .aggregate(
            collection,
            raw_readings_pipeline(storage_mode, sensor, from_ms, to_ms, Span::HOUR),
        )
        .await;
    let ts = |row: &Document| row.get_datetime("ts").unwrap().timestamp_millis();
    assert!(rows.is_sorted_by_key(ts), "{rows:?}");
    for row in &mut rows {
        assert_eq!(row.remove("sensor_id"), Some(Bson::from(sensor)));
    }
    rows.sort_by_cached_key(|row| (ts(row), row.get("temp").unwrap().to_string()));
    rows
}

#[tokio::test(flavor = "multi_thread")]
async fn both_modes_give_the_same_rows() {
    let rig = Rig::new("forms").await;
    rig.prepare().await.unwrap();
    let hours = [
        START_MS - HOUR_MS,
        START_MS,
        START_MS + HOUR_MS,
        START_MS + 2 * HOUR_MS,
    ];
    insert(&rig, "pages", false, &hours).await;
    insert(&rig, "native", true, &hours).await;
    // A change of mode, and a change back.
    insert(&rig, "mixed", false, &hours[..2]).await;
    insert(&rig, "mixed", true, &hours[2..3]).await;
    insert(&rig, "mixed", false, &hours[3..]).await;

    let begin = START_MS - 20 * 60_000;
    let end = START_MS + 130 * 60_000;
    for (from_ms, to_ms) in [
        (begin, end),
        (START_MS + 1, START_MS + HOUR_MS),
        (START_MS, START_MS + 1),
        (end, end + 5),
    ] {
        let expected = readings()
            .iter()
            .filter(|(ts, _)| (from_ms..to_ms).contains(ts))
            .count();
        let pages = rows(&rig, ReadingsLocation::Pages, "pages", from_ms, to_ms).await;
        assert_eq!(pages.len(), expected, "{from_ms}..{to_ms}");
        let native = rows(
            &rig,
            ReadingsLocation::Measurements,
            "native",
            from_ms,
            to_ms,
        )
        .await;
        assert_eq!(native, pages, "{from_ms}..{to_ms}");
        for sensor in ["pages", "native", "mixed"] {
            let both = rows(&rig, ReadingsLocation::Both, sensor, from_ms, to_ms).await;
            assert_eq!(both, pages, "{sensor} {from_ms}..{to_ms}");
        }
    }

    // The query for both modes does not need sensor_readings, so it works on servers without
    // time-series collections.
    let old = Rig::on(Mongod::shared_v44(), "forms_v44").await;
    old.prepare().await.unwrap();
    insert(&old, "pages", false, &hours).await;
    let pages = rows(&rig, ReadingsLocation::Pages, "pages", begin, end).await;
    for storage_mode in [ReadingsLocation::Pages, ReadingsLocation::Both] {
        assert_eq!(
            rows(&old, storage_mode, "pages", begin, end).await,
            pages,
            "{storage_mode:?} on 4.4"
        );
    }

    let summaries = |sensor: &'static str| {
        let pipeline = vec![
            doc! { "$match": { "sensor_id": sensor } },
            doc! { "$unset": "sensor_id" },
            doc! { "$sort": { "bucket_start": 1 } },
        ];
        rig.aggregate("sensor_summaries", pipeline)
    };
    let pages = summaries("pages").await;
    assert_eq!(pages.len(), 4);
    let first = pages[1]
        .get_document("summary")
        .unwrap()
        .get_document("temp")
        .unwrap();
    assert_eq!(
        (
            first.get_f64("min").unwrap(),
            first.get_i32("count").unwrap()
        ),
        (-1.5, 61)
    );
    assert!(first.get_f64("avg").unwrap() > 0.0);
    assert_eq!(summaries("native").await, pages);
    assert_eq!(summaries("mixed").await, pages);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_queries_for_readings_use_an_index() {
    let rig = Rig::new("explain").await;
    rig.prepare().await.unwrap();
    for i in 0..20 {
        for native in [false, true] {
            insert(
                &rig,
                ["pages", "native"][usize::from(native)],
                native,
                &[START_MS - HOUR_MS + i * HOUR_MS],
            )
            .await;
        }
    }
    for (storage_mode, collection) in [
        (ReadingsLocation::Pages, "sensor_buckets"),
        (ReadingsLocation::Measurements, "sensor_readings"),
        (ReadingsLocation::Both, "sensor_buckets"),
    ] {
        let pipeline = raw_readings_pipeline(
            storage_mode,
            "native",
            START_MS,
            START_MS + HOUR_MS,
            Span::HOUR,
        );
        let explain = doc! {
            "explain": { "aggregate": collection, "pipeline": pipeline, "cursor": {} }, "verbosity": "queryPlanner",
        };
        let plan = rig.db.run_command(explain).await.unwrap().to_string();
        assert!(
            plan.contains("IXSCAN") && !plan.contains("COLLSCAN"),
            "{storage_mode:?}: {plan}"
        );
    }
}

/// The command that a mongos sends to a shard before it shards a collection with data; a replica
/// set answers it too.
#[tokio::test(flavor = "multi_thread")]
async fn the_collections_have_the_indexes_that_their_shard_keys_need() {
    let rig = Rig::new("shard_keys").await;
    rig.prepare().await.unwrap();
    insert(&rig, "S1", true, &[START_MS]).await;
    let supports = async |collection: &str, key: Document| {
        let check = doc! { "checkShardingIndex": format!("{}.{collection}", rig.db.name()), "keyPattern": key };
        rig.db.run_command(check).await.is_ok()
    };
    assert!(
        supports(
            "system.buckets.sensor_readings",
            doc! { "meta.sensor_id": 1 }
        )
        .await
    );
    let pages = doc! { "sensor_id": 1, "bucket_start": 1 };
    assert!(
        !supports("sensor_buckets", pages.clone()).await,
        "`init --shard` does not need to create an index"
    );
    let index = doc! { "createIndexes": "sensor_buckets", "indexes": [{ "key": pages.clone(), "name": "shard_key" }] };
    rig.db.run_command(index).await.unwrap();
    assert!(supports("sensor_buckets", pages).await);
}
