//! The samples of many sensors, of both stores and in both modes: those that were written, whatever
//! pages and measurements they are in.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use futures_util::TryStreamExt;

use crate::support::mongod::{Mongod, unique_database};
use model::summary::summarise;
use model::{
    BucketKey, BucketStart, PageKind, PageWrite, Reading, Rows, Sample, SensorId, Span,
    StorageMode, Value,
};
use store::mongo::MongoStore;
use store::samples::{SampleQuery, SensorSamples, number};
use store::{PageWriteResult, Store};
use testkit::memory_store::MemoryStore;

const HOUR: i64 = 3_600_000;
/// 2024-03-01T10:00:00Z
const START: i64 = 1_709_287_200_000;
const FIELDS: [&str; 4] = ["temp", "n", "is_on", "text"];

async fn mongo(test: &str, mongod: &Mongod) -> MongoStore {
    let settings = config::Store {
        uri: config::Secret::new(mongod.uri()),
        database: unique_database(test),
        ..config::Config::default().store
    };
    let store = MongoStore::new(&settings, Span::HOUR, Duration::from_secs(3600))
        .await
        .unwrap();
    store.prepare().await.unwrap();
    store
}

/// What was written: the readings of each bucket.
type Written = BTreeMap<BucketKey, Vec<Reading>>;

fn reading(sensor: &str, ts_ms: i64, rng: &mut fastrand::Rng) -> Reading {
    let mut values = BTreeMap::new();
    for field in FIELDS {
        if rng.u8(0..4) == 0 {
            continue;
        }
        let value = match field {
            "temp" => Value::Double(f64::from(rng.u8(0..4)) / 4.0),
            "n" => Value::Int(rng.i64(0..3)),
            "is_on" => Value::Bool(rng.bool()),
            _ => Value::Str("x".into()),
        };
        values.insert(field.to_owned(), value);
    }
    values.insert("other".to_owned(), Value::Int(1));
    Reading {
        sensor_id: sensor.to_owned(),
        ts_ms,
        receipt_time: false,
        tags: BTreeMap::new(),
        values,
    }
}

async fn write(store: &dyn Store, key: &BucketKey, page: u32, kind: PageKind, of: &[Reading]) {
    let mut rows = Rows::default();
    of.iter().for_each(|reading| rows.push_reading(reading));
    let write = PageWrite {
        sensor_id: key.sensor_id.clone(),
        start: key.start,
        page,
        kind,
        storage_mode: store.storage_mode(),
        seal: false,
        tags: None,
        summary: summarise(&rows),
        rows: rows.into(),
        catalog: None,
    };
    let written = store.write(&[write]).await.unwrap().remove(0);
    assert!(matches!(written, PageWriteResult::Done { .. }), "{key:?}");
}

/// Some sensors with some readings in some hours, in one page or, in bucket mode, in several.
async fn fill(store: &dyn Store, rng: &mut fastrand::Rng) -> Written {
    let mut written = Written::new();
    for sensor in ["a", "b/1", "b/10", "c", "z"] {
        for hour in 0..4 {
            if rng.u8(0..3) == 0 {
                continue;
            }
            let key = BucketKey {
                sensor_id: sensor.into(),
                start: BucketStart(START + hour * HOUR),
            };
            let pages = match store.storage_mode() {
                StorageMode::Bucket => rng.u32(1..4),
                StorageMode::TimeSeries => 1,
            };
            for page in 0..pages {
                let of: Vec<Reading> = (0..rng.i64(1..6))
                    .map(|_| {
                        // Few times, so that some have several readings.
                        let ts_ms = key.start.0 + rng.i64(0..12) * HOUR / 12;
                        reading(sensor, ts_ms, rng)
                    })
                    .collect();
                write(store, &key, page, PageKind::Create, &of).await;
                written.entry(key.clone()).or_default().extend(of);
            }
        }
    }
    written
}

fn is_in(key: &BucketKey, sensor_id: &SensorId, range: &Range<i64>) -> bool {
    let end_ms = key.start.0 + HOUR;
    key.sensor_id == *sensor_id && key.start.0 < range.end && end_ms > range.start
}

/// All stretches of a query, one for each sensor, in the order of their sensors.
async fn ask(store: &dyn Store, query: &SampleQuery) -> Vec<SensorSamples> {
    let found: Vec<SensorSamples> = store.samples(query.clone()).try_collect().await.unwrap();
    let mut joined: Vec<SensorSamples> = vec![];
    for stretch in found {
        match joined
            .last_mut()
            .filter(|last| last.sensor_id == stretch.sensor_id)
        {
            Some(last) => {
                assert_eq!(last.until_ms, stretch.from_ms);
                last.until_ms = stretch.until_ms;
                for (all, more) in last.fields.iter_mut().zip(stretch.fields) {
                    all.extend(more);
                }
            }
            None => {
                assert_eq!(stretch.from_ms, query.from_ms);
                joined.push(stretch);
            }
        }
    }
    assert!(joined.iter().all(|of| of.until_ms == query.to_ms));
    joined.sort_by(|a, b| a.sensor_id.cmp(&b.sensor_id));
    let ids: Vec<&SensorId> = joined.iter().map(|of| &of.sensor_id).collect();
    let mut asked: Vec<&SensorId> = query.sensor_ids.iter().collect();
    asked.sort();
    assert_eq!(ids, asked, "each sensor once, and its stretches together");
    joined
}

fn check(found: &SensorSamples, query: &SampleQuery, written: &Written) {
    let range = query.from_ms..query.to_ms;
    let of_sensor = written
        .iter()
        .filter(|(key, _)| is_in(key, &found.sensor_id, &range));
    let (whole, read): (Vec<_>, Vec<_>) = of_sensor.partition(|(key, _)| query.whole.contains(key));
    for (place, field) in query.fields.iter().enumerate() {
        let mut expected: BTreeMap<i64, Vec<f64>> = BTreeMap::new();
        let readings = read.iter().flat_map(|(_, readings)| *readings);
        for reading in readings.filter(|reading| range.contains(&reading.ts_ms)) {
            let value = reading.values.get(field).and_then(|v| number(v.as_ref()));
            expected.entry(reading.ts_ms).or_default().extend(value);
        }
        expected.retain(|_, values| !values.is_empty());
        let samples = &found.fields[place];
        let times: Vec<i64> = samples.iter().map(|sample| sample.ts_ms).collect();
        assert_eq!(times, expected.keys().copied().collect::<Vec<_>>());
        for Sample { ts_ms, value } in samples {
            let values = &expected[ts_ms];
            assert!(values.contains(value), "{field} at {ts_ms}");
            let is_doubtful = values.iter().any(|other| other != value);
            assert!(!is_doubtful || found.doubtful.contains(ts_ms));
        }
    }
    let mut held: BTreeMap<BucketStart, usize> = BTreeMap::new();
    for (start, page) in &found.pages {
        *held.entry(*start).or_default() += page.rows.len();
    }
    for row in found.measured.iter() {
        *held.entry(Span::HOUR.floor(row.ts_ms)).or_default() += 1;
    }
    held.retain(|_, rows| *rows > 0);
    for (key, readings) in whole {
        // The readings before the range may be left out.
        let wanted = readings
            .iter()
            .filter(|reading| range.contains(&reading.ts_ms));
        let held = held.remove(&key.start).unwrap_or(0);
        assert!((wanted.count()..=readings.len()).contains(&held), "{key:?}");
    }
    assert!(held.is_empty());
    assert_eq!(found.removed_until_ms, None);
}

async fn random_samples(store: &dyn Store, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let written = fill(store, &mut rng).await;
    for _ in 0..40 {
        let mut sensor_ids: Vec<SensorId> = ["z", "a", "b/10", "none", "b/1", "c"]
            .map(SensorId::from)
            .into();
        rng.shuffle(&mut sensor_ids);
        sensor_ids.truncate(rng.usize(1..7));
        let mut fields: Vec<String> = FIELDS.map(str::to_owned).into();
        rng.shuffle(&mut fields);
        fields.truncate(rng.usize(1..5));
        let from_ms = START + rng.i64(-6..40) * HOUR / 12;
        let query = SampleQuery {
            sensor_ids,
            fields,
            from_ms,
            to_ms: from_ms + rng.i64(1..40) * HOUR / 12,
            span: Span::HOUR,
            whole: written
                .keys()
                .filter(|_| rng.u8(0..8) == 0)
                .cloned()
                .collect(),
            is_narrow: rng.bool(),
        };
        for found in ask(store, &query).await {
            check(&found, &query, &written);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn samples_are_those_of_the_readings_in_the_range() {
    for seed in 0..4 {
        random_samples(&MemoryStore::new(), seed).await;
        random_samples(&mongo("samples", Mongod::shared_v44()).await, seed).await;
        let series = mongo("samples_series", Mongod::shared()).await;
        assert_eq!(series.storage_mode(), StorageMode::TimeSeries);
        random_samples(&series, seed).await;
    }
}

/// A sensor of 46 days between two others is given in stretches, which follow one another.
async fn long_sensor(store: &dyn Store) {
    let mut rng = fastrand::Rng::with_seed(7);
    let mut written = Written::new();
    for (sensor, hours, each) in [("a", 2, 3), ("m", 1100, 240), ("y", 1, 1), ("z", 2, 3)] {
        for hour in 0..hours {
            let key = BucketKey {
                sensor_id: sensor.into(),
                start: BucketStart(START + hour * HOUR),
            };
            let at = |n: i64| key.start.0 + n * 1000;
            let of: Vec<Reading> = (0..each)
                .map(|n| reading(sensor, at(n), &mut rng))
                .collect();
            write(store, &key, 0, PageKind::Create, &of).await;
            written.insert(key, of);
        }
    }
    let query = SampleQuery {
        sensor_ids: ["a", "m", "y", "z"].map(SensorId::from).into(),
        fields: vec!["temp".to_owned(), "n".to_owned()],
        from_ms: START,
        to_ms: START + 1100 * HOUR,
        span: Span::HOUR,
        whole: BTreeSet::new(),
        is_narrow: true,
    };
    let found: Vec<SensorSamples> = store.samples(query.clone()).try_collect().await.unwrap();
    assert!(found.len() > 4, "{} stretches", found.len());
    for found in ask(store, &query).await {
        check(&found, &query, &written);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_sensor_is_given_in_stretches() {
    long_sensor(&mongo("stretches", Mongod::shared_v44()).await).await;
    long_sensor(&mongo("stretches_series", Mongod::shared()).await).await;
}
