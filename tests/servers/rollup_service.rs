//! Daily rollups of the service, on real servers with late readings, two instances and SIGKILL: the
//! days equal those recomputed from every acknowledged reading.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test, with figures"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::read_api::{get_complete, prepared};
use crate::support::mongod::Mongod;
use crate::support::service::Service;
use crate::support::{block_on, setting, wait_until};
use model::{Number, Span, ValueRef, Zone};
use mongodb::bson::{Document, doc};
use store::Store;
use store::columns::ColumnsQuery;
use store::mongo::MongoStore;

const HOUR: i64 = 3_600_000;
const DAY: i64 = 24 * HOUR;
const PATIENCE: Duration = Duration::from_secs(120);

/// A day's count, minimum, maximum and sum of `n`.
type Summed = (i64, i64, i64, i64);
/// The readings of days, by sensor and day: time and `n`.
type Sent = BTreeMap<(String, i64), BTreeSet<(i64, i64)>>;

#[test]
fn days_equal_the_acknowledged_readings_whatever_is_killed() {
    killed("bucket");
}

#[test]
fn days_equal_the_acknowledged_readings_whatever_is_killed_with_time_series() {
    killed("timeseries");
}

/// The read API returns the days as well, from the documents.
fn the_read_api_agrees(service: &Service, expected: &BTreeMap<(String, i64), Summed>) {
    // It may just have been started again, and the other instance may have computed all days.
    prepared(service);
    for ((sensor, start), day) in expected.iter().take(5) {
        let (status, text) = service
            .get_admin(&format!(
                "/v1/sensors/{sensor}/daily?from={start}&to={}",
                start + 1
            ))
            .unwrap();
        assert_eq!(status, 200, "{text}");
        let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
        let shown = &answer["days"][0];
        let n = &shown["summary"]["n"];
        assert_eq!(
            (shown["count"].as_i64(), n["sum"].as_i64()),
            (Some(day.0), Some(day.3)),
            "{text}"
        );
    }
}

/// Two instances get late readings of five days, those of a sensor by one of them; both and MongoDB
/// are killed.
fn killed(mode: &str) {
    let kills = setting("HOURBUCKET_ROLLUP_KILLS", 5);
    let seed = setting("HOURBUCKET_SEED", fastrand::usize(..1_000_000));
    println!("HOURBUCKET_SEED={seed}");
    let mut rng = fastrand::Rng::with_seed(seed as u64);
    let mut mongod = Mongod::start();
    let config = format!(
        "store.mode = \"{mode}\"\nflush.max_age = \"300ms\"\njournal.segment_bytes = \"64KiB\"\n\
         [rollup]\ndays = true\nzone = \"Europe/Berlin\"\nlate = \"400ms\"\nsettle = \"1s\"\n\
         [columns]\nenabled = true\n"
    );
    let uri = mongod.uri();
    let mut services: Vec<Service> = (0..2)
        .map(|_| Service::start(&config, &[("STORE__URI", &uri)]))
        .collect();
    let zone = Zone::from(chrono_tz::Tz::Europe__Berlin);
    let now_ms = crate::support::fleet::now_ms();
    let mut expected: BTreeMap<(String, i64), Summed> = BTreeMap::new();
    let mut sent = Sent::new();
    let mut n = 0;
    let mut acknowledged = 0;
    for kill in 0..kills {
        for _ in 0..rng.usize(5..30) {
            let service = rng.usize(0..2);
            let readings: Vec<(String, i64, i64)> = (0..rng.usize(1..60))
                .map(|_| {
                    n += 1;
                    // In bucket mode both instances write the same sensors.
                    let owner = if mode == "bucket" { 9 } else { service };
                    let ts_ms = now_ms - DAY - rng.i64(0..5 * DAY);
                    (format!("s{owner}-{}", rng.u8(0..6)), ts_ms, n)
                })
                .collect();
            let body: String = readings
                .iter()
                .map(|(s, ts, n)| format!("{{\"sensor_id\":\"{s}\",\"ts\":{ts},\"n\":{n}}}\n"))
                .collect();
            // Without an answer the sender repeats it, by the same instance.
            wait_until("a batch is acknowledged", PATIENCE, || {
                let answer =
                    services[service].post("/v1/readings", "application/x-ndjson", body.as_bytes());
                (answer?.0 == 200).then_some(())
            });
            acknowledged += readings.len();
            for (sensor, ts_ms, n) in readings {
                let start = zone.day(ts_ms.div_euclid(HOUR) * HOUR).start_ms;
                let key = (sensor, start);
                sent.entry(key.clone()).or_default().insert((ts_ms, n));
                let day = expected.entry(key).or_insert((0, n, n, 0));
                *day = (day.0 + 1, day.1.min(n), day.2.max(n), day.3 + n);
            }
            std::thread::sleep(Duration::from_millis(rng.u64(0..60)));
        }
        std::thread::sleep(Duration::from_millis(rng.u64(0..900)));
        if kill % 3 == 1 {
            mongod.kill9();
            mongod.restart_in_background();
        }
        services[kill % 2].restart();
    }
    let days = || stored_days(&uri);
    wait_until("no day is marked and all are equal", PATIENCE, || {
        let marked = block_on(async {
            let client = mongodb::Client::with_uri_str(&uri).await.ok()?;
            let marks = client
                .database("hourbucket")
                .collection::<Document>("rollup_pending");
            marks.count_documents(doc! {}).await.ok()
        })?;
        (marked == 0 && days().values().map(|d| d.0).sum::<i64>() == acknowledged as i64)
            .then_some(())
    });
    assert_eq!(days(), expected);
    the_columns_are_the_readings(&uri, &sent);
    println!(
        "{mode}: {acknowledged} readings, {} days, {kills} kills",
        expected.len()
    );
    the_read_api_agrees(&services[0], &expected);
    for service in &mut services {
        assert_eq!(
            service.terminate(Duration::from_secs(40)),
            0,
            "{}",
            service.log()
        );
    }
}

/// The columns decode to what was acknowledged, and the hours are those of a naive computation.
fn the_columns_are_the_readings(uri: &str, sent: &Sent) {
    let settings = config::Store {
        uri: config::Secret::new(uri.to_owned()),
        ..config::Config::default().store
    };
    let (columns, hours) = block_on(async {
        let store = MongoStore::new(&settings, Span::HOUR, Duration::from_secs(3600))
            .await
            .unwrap();
        store.prepare().await.unwrap();
        let query = ColumnsQuery {
            sensor_ids: sent
                .keys()
                .map(|(sensor, _)| sensor.as_str().into())
                .collect::<BTreeSet<_>>()
                .into_iter()
                .collect(),
            from_ms: i64::MIN / 2,
            to_ms: i64::MAX / 2,
            fields: vec![],
        };
        let columns = store.columns().unwrap();
        let hours = columns.hours_of(&query).await.unwrap().days;
        (columns.columns_of(&query).await.unwrap().days, hours)
    });
    let mut decoded = Sent::new();
    for day in columns {
        let key = (day.sensor_id.to_string(), day.day_ms);
        for part in &day.parts {
            let part = part.decode().unwrap();
            let readings = decoded.entry(key.clone()).or_default();
            for (ts_ms, value) in part.values("n") {
                let ValueRef::Int(n) = value else {
                    panic!("{value:?}")
                };
                assert!(readings.insert((ts_ms, n)), "twice: {key:?} {ts_ms}");
            }
        }
    }
    assert_eq!(&decoded, sent);
    assert_eq!(hours.len(), sent.len());
    for day in hours {
        let readings = &sent[&(day.sensor_id.to_string(), day.day_ms)];
        for (at, hour) in &day.hours.fields["n"] {
            let from_ms = day.day_ms + *at as i64 * HOUR;
            let of_hour = readings.range((from_ms, 0)..(from_ms + HOUR, 0));
            let values: Vec<(i64, i64)> = of_hour.copied().collect();
            let numbers = hour.numbers.as_ref().unwrap();
            assert_eq!(numbers.count as usize, values.len());
            let sum: i64 = values.iter().map(|(_, n)| n).sum();
            assert_eq!(numbers.sum, Number::Int(sum));
            assert_eq!(numbers.first_ts_ms, values[0].0);
            assert_eq!(numbers.last_ts_ms, values[values.len() - 1].0);
            let rises = values.windows(2).map(|pair| {
                if pair[1].1 < pair[0].1 {
                    pair[1].1
                } else {
                    pair[1].1 - pair[0].1
                }
            });
            let same_ms = values.windows(2).any(|pair| pair[0].0 == pair[1].0);
            assert!(same_ms || numbers.increase == rises.sum::<i64>() as f64);
        }
    }
}

fn stored_days(uri: &str) -> BTreeMap<(String, i64), Summed> {
    block_on(async {
        let client = mongodb::Client::with_uri_str(uri).await.unwrap();
        let collection = client
            .database("hourbucket")
            .collection::<Document>("sensor_days");
        let mut cursor = collection.find(doc! {}).await.unwrap();
        let mut days = BTreeMap::new();
        while cursor.advance().await.unwrap() {
            let day: Document = cursor.deserialize_current().unwrap();
            let key = (
                day.get_str("sensor_id").unwrap().to_owned(),
                day.get_datetime("day").unwrap().timestamp_millis(),
            );
            let n = day
                .get_document("summary")
                .unwrap()
                .get_document("n")
                .unwrap();
            let int = |name: &str| n.get_i64(name).unwrap();
            days.insert(
                key,
                (
                    day.get_i64("count").unwrap(),
                    int("min"),
                    int("max"),
                    int("sum"),
                ),
            );
        }
        days
    })
}

#[test]
fn the_open_day_and_late_readings_are_in_the_answer_at_once() {
    let mongod = Mongod::start();
    let config =
        "flush.max_age = \"200ms\"\n[rollup]\ndays = true\nlate = \"300ms\"\nsettle = \"1s\"\n";
    let service = Service::start(config, &[("STORE__URI", &mongod.uri())]);
    let today = crate::support::fleet::now_ms().div_euclid(DAY) * DAY;
    let send = |ts_ms: i64, n: i64| {
        let body = format!("{{\"sensor_id\":\"a\",\"ts\":{ts_ms},\"n\":{n}}}\n");
        assert_eq!(
            service
                .post("/v1/readings", "application/x-ndjson", body.as_bytes())
                .unwrap()
                .0,
            200
        );
    };
    let days = || {
        let path = format!(
            "/v1/sensors/a/daily?from={}&to={}",
            today - 9 * DAY,
            today + 1
        );
        let answer = get_complete(&service, &path);
        assert_eq!(answer["zone"], "UTC");
        answer["days"]
            .as_array()
            .unwrap()
            .iter()
            .map(|d| d["count"].as_i64().unwrap())
            .collect::<Vec<_>>()
    };
    prepared(&service);
    send(today - 5 * DAY, 1);
    send(today, 2);
    assert_eq!(days(), [1, 1]);
    wait_until("the past day is computed", PATIENCE, || {
        (stored_days(&mongod.uri()).len() == 1).then_some(())
    });
    assert_eq!(days(), [1, 1]);
    for n in 0..20 {
        send(today - 5 * DAY + HOUR + n, n);
        assert_eq!(
            days(),
            [2 + n, 1],
            "a late reading is in the answer immediately"
        );
    }
    wait_until("the day is computed again", PATIENCE, || {
        (stored_days(&mongod.uri()).values().next()?.0 == 21).then_some(())
    });
    assert_eq!(days(), [21, 1]);
    wait_until("only the open day is pending", PATIENCE, || {
        (service.metrics().get("rollup_pending") == 1.0).then_some(())
    });
}
