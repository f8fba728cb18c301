//! Daily rollups: the contract of both stores ([`hourbucket::store::days`]), and days on real
//! servers with late readings, two instances and SIGKILL: they equal those recomputed from every
//! acknowledged reading.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test, with figures"
)]

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::mongod::{Mongod, unique_database};
use crate::support::service::Service;
use crate::support::{block_on, setting, wait_until};
use hourbucket::config;
use hourbucket::maintain::Hour;
use hourbucket::model::summary::summarise;
use hourbucket::model::{
    BucketStart, Day, Number, PageKind, PageWrite, Rows, Span, StorageMode, Value, Zone,
};
use hourbucket::store::days::{
    DayMark, DayQuery, DayStore, DaySummary, DayWritten, DaysQuery, MarkQuery, MarksOf, SensorDay,
};
use hourbucket::store::memory::MemoryStore;
use hourbucket::store::mongo::{MongoStore, RollupSchema};
use hourbucket::store::{PageWriteResult, Store};
use mongodb::bson::{DateTime, Document, doc};

const HOUR: i64 = 3_600_000;
const DAY: i64 = 24 * HOUR;
/// 2024-03-01T00:00:00Z
const START: i64 = 1_709_251_200_000;
const PATIENCE: Duration = Duration::from_secs(120);

async fn mongo(database: &str, zone: &str) -> Result<MongoStore, String> {
    let uri = config::Secret::new(Mongod::shared().uri());
    let settings = config::Store {
        uri,
        database: database.into(),
        ..config::Config::default().store
    };
    let store = MongoStore::new(&settings, Span::HOUR, Duration::from_secs(3600))
        .await
        .unwrap();
    let zone = Zone::from(zone.parse::<chrono_tz::Tz>().unwrap());
    // Long enough for days of 2024: MongoDB removes expired documents once a minute.
    let retention = Some(Duration::from_secs(20_000 * 86_400));
    let store = store.with_rollup(Some(RollupSchema { zone, retention }));
    store
        .prepare()
        .await
        .map(|_| store)
        .map_err(|e| e.to_string())
}

fn day(sensor: &str, start_ms: i64) -> SensorDay {
    SensorDay {
        day: Day {
            start_ms,
            end_ms: start_ms + DAY,
        },
        sensor_id: sensor.into(),
    }
}

fn mark(instance: &str, start_ms: i64, sensor: &str, version: i64) -> DayMark {
    DayMark {
        instance: instance.into(),
        day_ms: start_ms,
        sensor_id: sensor.into(),
        version,
    }
}

async fn write(store: &dyn Store, sensor: &str, ts_ms: i64, page: u32, value: i64) {
    let mut rows = Rows::default();
    rows.push_reading(&hourbucket::model::Reading {
        sensor_id: sensor.into(),
        ts_ms,
        receipt_time: false,
        tags: BTreeMap::new(),
        values: [
            ("n".to_owned(), Value::Int(value)),
            ("on".to_owned(), Value::Bool(true)),
        ]
        .into(),
    });
    let summary = summarise(&rows);
    let write = PageWrite {
        sensor_id: sensor.into(),
        start: BucketStart(ts_ms.div_euclid(HOUR) * HOUR),
        page,
        kind: PageKind::Create,
        storage_mode: StorageMode::Bucket,
        seal: true,
        tags: None,
        rows: rows.into(),
        summary,
        catalog: None,
    };
    assert_eq!(
        store.write(&[write]).await.unwrap(),
        [PageWriteResult::Done { count: 1 }]
    );
}

/// Days of several sensors in one request. `stored`: those of A, the only ones.
async fn days_of_many(days: &dyn DayStore, stored: [Hour; 2]) {
    let sensor_ids = vec!["A".into(), "C".into()];
    let many = DaysQuery {
        sensor_ids,
        from_ms: START,
        to_ms: START + 2 * DAY,
        fields: vec!["n".to_owned()],
    };
    let found = days.days_of(&many).await.unwrap();
    let [first, second] = stored;
    assert_eq!(
        found.days,
        [
            ("A".into(), START, first),
            ("A".into(), START + DAY, second)
        ]
    );
    assert!(found.rest.is_empty());
}

async fn contract(store: &dyn Store) {
    let days = store.days().expect("it has days");
    for hour in [-1, 0, 5, 23, 24] {
        write(store, "A", START + hour * HOUR + 7, 0, hour).await;
    }
    write(store, "A", START + 5 * HOUR + 9, 1, 100).await;
    write(store, "B", START + HOUR, 0, 4).await;

    // Days are computed from whole buckets, each once; sensors and days in any order.
    let requests = [
        day("B", START),
        day("A", START),
        day("A", START + DAY),
        day("C", START),
    ];
    let mut computed = vec![None; requests.len()];
    while computed.iter().any(Option::is_none) {
        let left: Vec<usize> = (0..requests.len())
            .filter(|i| computed[*i].is_none())
            .collect();
        let some: Vec<SensorDay> = left.iter().map(|i| requests[*i].clone()).collect();
        let answers = days.compute_days(&some).await.unwrap();
        assert!(answers.iter().any(Option::is_some));
        left.into_iter()
            .zip(answers)
            .for_each(|(i, answer)| computed[i] = answer);
    }
    let computed: Vec<_> = computed.into_iter().flatten().collect();
    assert_eq!(
        computed.iter().map(|d| d.hour.count).collect::<Vec<_>>(),
        [1, 4, 1, 0]
    );
    let a = &computed[1].hour;
    assert_eq!(
        (a.first_ts_ms, a.last_ts_ms),
        (Some(START + 7), Some(START + 23 * HOUR + 7))
    );
    let n = a.summary["n"];
    assert_eq!(
        (n.min, n.max, n.sum, n.count),
        (Number::Int(0), Number::Int(100), Number::Int(128), 4)
    );
    assert_eq!(a.summary.len(), 1, "numbers only");

    // A document is replaced only by one that counts at least as many.
    let full = (day("A", START), computed[1].clone());
    let mut old = full.clone();
    old.1.hour.count = 3;
    let put = async |entry: &(SensorDay, DaySummary), replace: bool| {
        days.write_days(std::slice::from_ref(entry), replace)
            .await
            .unwrap()
            .remove(0)
    };
    assert_eq!(put(&old, false).await, DayWritten::Done);
    assert_eq!(put(&full, false).await, DayWritten::Done);
    assert_eq!(put(&full, false).await, DayWritten::Done, "repeated");
    assert_eq!(put(&old, false).await, DayWritten::Newer);
    let query = DayQuery {
        sensor_id: "A".into(),
        from_ms: START,
        to_ms: START + DAY,
    };
    assert_eq!(
        days.stored_days(&query).await.unwrap(),
        [(START, full.1.clone())]
    );
    assert_eq!(put(&old, true).await, DayWritten::Done, "a repair");
    assert_eq!(days.stored_days(&query).await.unwrap()[0].1.hour.count, 3);
    let next = (day("A", START + DAY), computed[2].clone());
    let both = days
        .write_days(&[full.clone(), next.clone()], false)
        .await
        .unwrap();
    assert_eq!(both, [DayWritten::Done, DayWritten::Done]);
    let query = DayQuery {
        to_ms: START + 2 * DAY,
        ..query
    };
    assert_eq!(
        days.stored_days(&query).await.unwrap(),
        [(START, full.1.clone()), (START + DAY, next.1.clone())]
    );
    days_of_many(days, [full.1.hour, next.1.hour]).await;
    let none = DayQuery {
        sensor_id: "C".into(),
        ..query
    };
    assert_eq!(days.stored_days(&none).await.unwrap(), []);

    marks_of(days).await;
}

/// Marks: by instance, sensor and age; removed with their own version only.
async fn marks_of(days: &dyn DayStore) {
    let marks = [
        mark("i1", START, "A", 5),
        mark("i1", START, "B", 6),
        mark("i1", START + DAY, "A", 7),
    ];
    days.mark_days(&marks).await.unwrap();
    days.mark_days(&[mark("i10", START, "A", 8)]).await.unwrap();
    let list = async |of: MarksOf, after: Option<DayMark>, limit| {
        days.day_marks(&MarkQuery { of, after, limit })
            .await
            .unwrap()
    };
    assert_eq!(list(MarksOf::Instance("i1".into()), None, 10).await, marks);
    assert_eq!(
        list(MarksOf::Instance("i1".into()), None, 2).await,
        marks[..2]
    );
    assert_eq!(
        list(MarksOf::Instance("i1".into()), Some(marks[1].clone()), 2).await,
        marks[2..]
    );
    assert_eq!(
        list(MarksOf::Sensor("B".into()), None, 10).await,
        marks[1..2]
    );
    assert_eq!(
        list(MarksOf::Sensors(vec!["X".into(), "B".into()]), None, 10).await,
        marks[1..2]
    );
    assert_eq!(list(MarksOf::Before(7), None, 10).await, marks[..2]);
    days.mark_days(&[mark("i1", START, "A", 9)]).await.unwrap();
    days.clear_marks(&marks).await.unwrap();
    days.clear_marks(&marks).await.unwrap();
    assert_eq!(
        list(MarksOf::Instance("i1".into()), None, 10).await,
        [mark("i1", START, "A", 9)],
        "it has a later version"
    );
    assert_eq!(
        list(MarksOf::Instance("i10".into()), None, 10).await.len(),
        1
    );

    // The clock was set back: a mark with an earlier version than the stored one stays when that is
    // removed late.
    let ahead = mark("clock", START, "$A", 50);
    let now = mark("clock", START, "$A", 10);
    for mark in [&ahead, &ahead, &now] {
        days.mark_days(std::slice::from_ref(mark)).await.unwrap();
    }
    days.clear_marks(std::slice::from_ref(&ahead))
        .await
        .unwrap();
    let left = list(MarksOf::Sensor("$A".into()), None, 10).await;
    assert_eq!(left, [mark("clock", START, "$A", 51)]);
    days.clear_marks(&left).await.unwrap();
    assert_eq!(list(MarksOf::Sensor("$A".into()), None, 10).await, []);
}

#[tokio::test]
async fn the_memory_store_keeps_the_contract_of_days() {
    contract(&MemoryStore::new()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mongodb_keeps_the_contract_of_days() {
    contract(&mongo(&unique_database("days"), "UTC").await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_zone_of_a_database_stays_and_the_view_has_averages() {
    let name = unique_database("zone");
    let store = mongo(&name, "Europe/Berlin").await.unwrap();
    let error = mongo(&name, "UTC").await.unwrap_err();
    for part in ["Europe/Berlin", "rollup.zone = ", "init --rollup-from"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    write(&store, "A", START, 0, 3).await;
    let days = store.days().unwrap();
    let one = day("A", START);
    let summary = days
        .compute_days(std::slice::from_ref(&one))
        .await
        .unwrap()
        .remove(0)
        .unwrap();
    days.write_days(&[(one, summary)], false).await.unwrap();
    let client = mongodb::Client::with_uri_str(Mongod::shared().uri())
        .await
        .unwrap();
    let view = client
        .database(&name)
        .collection::<Document>("sensor_day_summaries");
    let row = view
        .find_one(doc! { "sensor_id": "A" })
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        row.get_datetime("day").unwrap(),
        &DateTime::from_millis(START)
    );
    let n = row
        .get_document("summary")
        .unwrap()
        .get_document("n")
        .unwrap();
    assert_eq!(
        (n.get_f64("avg").unwrap(), n.get_i64("sum").unwrap()),
        (3.0, 3)
    );
    // Prepared again, nothing changes.
    mongo(&name, "Europe/Berlin").await.unwrap();
}

/// A day's count, minimum, maximum and sum of `n`.
type Summed = (i64, i64, i64, i64);

#[test]
fn days_equal_the_acknowledged_readings_whatever_is_killed() {
    killed("bucket");
}

#[test]
fn days_equal_the_acknowledged_readings_whatever_is_killed_with_time_series() {
    killed("timeseries");
}

/// Two instances get late readings of five days, those of a sensor by one of them; both and MongoDB
/// are killed. The read API returns the days as well, from the documents.
fn the_read_api_agrees(service: &Service, expected: &BTreeMap<(String, i64), Summed>) {
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

fn killed(mode: &str) {
    let kills = setting("HOURBUCKET_ROLLUP_KILLS", 6);
    let seed = setting("HOURBUCKET_SEED", fastrand::usize(..1_000_000));
    println!("HOURBUCKET_SEED={seed}");
    let mut rng = fastrand::Rng::with_seed(seed as u64);
    let mut mongod = Mongod::start();
    let config = format!(
        "store.mode = \"{mode}\"\nflush.max_age = \"300ms\"\njournal.segment_bytes = \"64KiB\"\n\
         [rollup]\ndays = true\nzone = \"Europe/Berlin\"\nlate = \"400ms\"\nsettle = \"1s\"\n"
    );
    let uri = mongod.uri();
    let mut services: Vec<Service> = (0..2)
        .map(|_| Service::start(&config, &[("STORE__URI", &uri)]))
        .collect();
    let zone = Zone::from(chrono_tz::Tz::Europe__Berlin);
    let now_ms = crate::support::fleet::now_ms();
    let mut expected: BTreeMap<(String, i64), Summed> = BTreeMap::new();
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
                let day = expected.entry((sensor, start)).or_insert((0, n, n, 0));
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
        let (status, text) = service.get_admin(&path).unwrap();
        let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(
            status == 200 && answer["complete"] == true && answer["zone"] == "UTC",
            "{text}"
        );
        answer["days"]
            .as_array()
            .unwrap()
            .iter()
            .map(|d| d["count"].as_i64().unwrap())
            .collect::<Vec<_>>()
    };
    wait_until("the store is prepared", PATIENCE, || {
        (service.get_admin("/v1/sensors/a/daily")?.0 == 200).then_some(())
    });
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

#[tokio::test(flavor = "multi_thread")]
async fn the_past_is_filled_resumed_and_checked() {
    let name = unique_database("fill");
    let store = mongo(&name, "UTC").await.unwrap();
    let zone = Zone::UTC;
    let sensors: Vec<String> = (0..6).map(|i| format!("s{i}")).collect();
    for (i, sensor) in sensors.iter().enumerate() {
        for hour in [-30, 1, 2, 30, 100] {
            write(&store, sensor, START + hour * HOUR, 0, i as i64 * 10 + hour).await;
        }
    }
    // Interrupted after the third sensor.
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let mut stop = Some(stop);
    let filled = store.fill_days(zone, START, START + 200 * HOUR, |_, at| {
        if at.sensors == 3 {
            stop.take().unwrap().send(()).unwrap();
            std::thread::sleep(Duration::from_millis(300));
        }
    });
    tokio::select! {
        biased;
        _ = stopped => {}
        filled = filled => panic!("not interrupted: {filled:?}"),
    }
    let selection = |sensors: &[String]| hourbucket::maintain::Selection {
        from_ms: START - 100 * DAY,
        to_ms: START + 200 * HOUR,
        sensors: sensors.to_vec(),
    };
    let check = async |sensors: &[String], repair: bool| {
        store
            .check_days(zone, &selection(sensors), START + 200 * HOUR, repair)
            .await
            .unwrap()
    };
    let before = check(&[], false).await;
    assert!(!before.is_equal() && before.days == 24, "{before:?}");
    let filled = store
        .fill_days(zone, START, START + 200 * HOUR, |_, _| {})
        .await
        .unwrap();
    assert!(
        filled.continued_after.is_some() && filled.sensors <= 3,
        "{filled:?}"
    );
    // The day before the start is not filled.
    let after = check(&[], false).await;
    assert_eq!((after.days, after.differences), (24, 6), "{after:?}");
    let again = store
        .fill_days(zone, START - 2 * DAY, START + 200 * HOUR, |_, _| {})
        .await
        .unwrap();
    assert_eq!(
        (again.continued_after, again.sensors, again.days),
        (None, 6, 24)
    );
    assert!(check(&[], false).await.is_equal());

    // A changed document, a missing one, and one that is marked.
    let client = mongodb::Client::with_uri_str(Mongod::shared().uri())
        .await
        .unwrap();
    let days = client.database(&name).collection::<Document>("sensor_days");
    let of =
        |sensor: &str, day: i64| doc! { "sensor_id": sensor, "day": DateTime::from_millis(day) };
    days.update_one(
        of("s1", START),
        doc! { "$inc": { "count": 5i64, "summary.n.sum": 1i64 } },
    )
    .await
    .unwrap();
    days.delete_one(of("s2", START)).await.unwrap();
    days.delete_one(of("s3", START)).await.unwrap();
    store
        .days()
        .unwrap()
        .mark_days(&[mark("other", START, "s3", 7)])
        .await
        .unwrap();
    let found = check(&[], true).await;
    assert_eq!(
        found.listed,
        [
            ("s1".to_owned(), START, 7, 2),
            ("s2".to_owned(), START, 0, 2)
        ]
    );
    assert_eq!(
        (found.differences, found.repaired, found.pending),
        (2, 2, 1)
    );
    assert!(
        check(&["s1".to_owned(), "s2".to_owned()], false)
            .await
            .is_equal()
    );
}
