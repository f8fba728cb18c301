//! Days: the contract of both stores ([`store::days`], [`store::columns`]), and the days of the
//! past: filled, checked and repaired.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::mongod::{Mongod, unique_database};
use columns::{DayEncoder, HoursEncoder, Line, Weighting, Weightings, same_readings};
use model::summary::summarise;
use model::{
    BucketStart, Day, Number, PageKind, PageWrite, RowFlags, Rows, Span, StorageMode, Value,
    ValueRef, Zone,
};
use mongodb::bson::{DateTime, Document, doc};
use store::columns::{ColumnsQuery, DayColumns, bounds, count};
use store::day_readings::{NoColumns, encode_day, stored_readings};
use store::days::{
    DayMark, DayQuery, DayStore, DaySummary, DayWritten, DaysQuery, MarkQuery, MarksOf, SensorDay,
};
use store::maintain::Hour;
use store::mongo::{MongoStore, RollupSchema};
use store::{PageWriteResult, Store};
use testkit::memory_store::MemoryStore;

const HOUR: i64 = 3_600_000;
const DAY: i64 = 24 * HOUR;
/// 2024-03-01T00:00:00Z
const START: i64 = 1_709_251_200_000;

async fn unprepared(database: &str, zone: &str) -> MongoStore {
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
    let kept = Some(Duration::from_secs(20_000 * 86_400));
    store.with_rollup(Some(RollupSchema {
        zone,
        days: Some(kept),
        columns: Some(kept),
    }))
}

async fn mongo(database: &str, zone: &str) -> Result<MongoStore, String> {
    let store = unprepared(database, zone).await;
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
    rows.push_reading(&model::Reading {
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
    columns_of(store).await;
}

/// Readings of two fields, `n` of them from a time on; the values are `seed` and what follows it.
fn many(ts_ms: i64, n: i64, seed: i64) -> Rows {
    let mut rows = Rows::default();
    for at in 0..n {
        let values = [
            ("n", ValueRef::Int(seed + at)),
            ("text", ValueRef::Str(["a", "b"][at as usize % 2])),
        ];
        rows.push_named(ts_ms + at, RowFlags::default(), &values);
    }
    rows
}

fn encoded(day: &SensorDay, rows: &Rows) -> DayColumns {
    let mut encoder = DayEncoder::default();
    let mut parts = encoder.add(rows);
    parts.extend(encoder.finish());
    let mut hours = HoursEncoder::new(bounds(day, Span::HOUR), WEIGHTING.into());
    hours.add(rows);
    DayColumns {
        tags: [("site".to_owned(), "north".to_owned())].into(),
        parts,
        whole: Default::default(),
        hours: hours.finish(),
    }
}

const WEIGHTING: Weighting = Weighting {
    line: Line::Straight,
    gap_max_ms: HOUR,
};

/// Columns and hours: of the readings of pages, replaced only by those that count at least as many.
async fn columns_of(store: &dyn Store) {
    let columns = store.columns().expect("it has columns");
    let of_pages = async |day: &SensorDay| {
        encode_day(store, Span::HOUR, day, &Weightings::from(WEIGHTING)).await
    };
    let a = day("A", START);
    let computed = of_pages(&a).await.unwrap().unwrap();
    assert_eq!(computed.count(), 4);
    assert_eq!(computed.times(), Some((START + 7, START + 23 * HOUR + 7)));
    let nothing = of_pages(&day("C", START)).await.unwrap();
    assert_eq!(nothing, Err(NoColumns::Empty));

    let put = async |day: &SensorDay, columns_of_day: &DayColumns| {
        let entry = (day.clone(), columns_of_day.clone());
        columns
            .write_columns(&[entry], false)
            .await
            .unwrap()
            .remove(0)
    };
    let stored = async |sensors: &[&str], fields: &[&str]| {
        let query = ColumnsQuery {
            sensor_ids: sensors.iter().map(|id| (*id).into()).collect(),
            from_ms: START,
            to_ms: START + DAY,
            fields: fields.iter().map(|name| (*name).to_owned()).collect(),
        };
        let hours = columns.hours_of(&query).await.unwrap();
        (columns.columns_of(&query).await.unwrap().days, hours.days)
    };
    let few = encoded(&a, &many(START, 3, 1));
    assert_eq!(put(&a, &few).await, DayWritten::Done);
    assert_eq!(put(&a, &computed).await, DayWritten::Done);
    assert_eq!(put(&a, &computed).await, DayWritten::Done, "repeated");
    assert_eq!(put(&a, &few).await, DayWritten::Newer);
    let (parts, hours) = stored(&["A", "C"], &[]).await;
    assert_eq!(parts.len(), 1);
    assert_eq!((&parts[0].parts, parts[0].day_ms), (&computed.parts, START));
    assert_eq!(hours[0].hours, computed.hours);
    assert_eq!(
        (hours[0].count, Some(hours[0].times)),
        (4, computed.times())
    );
    let decoded = stored_readings(store, &a).await.unwrap();
    assert_eq!(decoded.len(), 4);

    // Only some fields, of several sensors.
    let b = day("B", START);
    let two = encoded(&b, &many(START, 2, 1));
    assert_eq!(put(&b, &two).await, DayWritten::Done);
    let (parts, hours) = stored(&["A", "B"], &["text"]).await;
    assert_eq!((parts.len(), hours.len()), (2, 2));
    let text = parts[1].parts[0].decode().unwrap().rows();
    assert_eq!(
        text.iter().next().unwrap().named().last().unwrap().0,
        "text"
    );
    assert_eq!(hours[1].tags, two.tags);

    // A day of several parts is replaced as a whole, whatever it was before.
    let mut before = 2;
    for n in [100_001, 100_003, 250_000] {
        let large = encoded(&b, &many(START, n, 7));
        assert_eq!(large.parts.len() as i64, n / 100_000 + 1);
        assert_eq!(put(&b, &large).await, DayWritten::Done);
        assert_eq!(put(&b, &large).await, DayWritten::Done, "repeated");
        assert_eq!(
            put(&b, &two).await,
            DayWritten::Newer,
            "instead of {before}"
        );
        let (parts, hours) = stored(&["B"], &["n"]).await;
        assert_eq!(count(&parts[0].parts), n as u64);
        assert_eq!(hours[0].count, n as u64);
        before = n;
    }
    let rows = stored_readings(store, &b).await.unwrap();
    assert!(same_readings(&rows, &many(START, 250_000, 7)));

    // A removal replaces it by less, and by nothing.
    let forced = async |day: &SensorDay, columns_of_day: &DayColumns| {
        let entry = (day.clone(), columns_of_day.clone());
        columns
            .write_columns(&[entry], true)
            .await
            .unwrap()
            .remove(0)
    };
    for less in [encoded(&b, &many(START, 100_003, 7)), two] {
        assert_eq!(forced(&b, &less).await, DayWritten::Done);
        let (parts, hours) = stored(&["B"], &[]).await;
        assert_eq!(parts[0].parts, less.parts);
        assert_eq!(
            (hours[0].count, &hours[0].hours),
            (less.count(), &less.hours)
        );
    }
    assert_eq!(forced(&b, &DayColumns::default()).await, DayWritten::Done);
    let (parts, hours) = stored(&["B"], &[]).await;
    assert_eq!((parts.len(), hours.len()), (0, 0));
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
    let both = [mark("i1", START, "A", 9), mark("new", START, "A", 9)];
    days.mark_days(&both).await.unwrap();
    assert_eq!(
        list(MarksOf::Instance("new".into()), None, 10).await,
        both[1..],
        "one exists and the other does not"
    );
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
    unprepared(&name, "UTC")
        .await
        .schema()
        .inspect()
        .await
        .unwrap();
    let store = mongo(&name, "Europe/Berlin").await.unwrap();
    let refused = mongo(&name, "UTC").await.unwrap_err();
    let checked = unprepared(&name, "UTC")
        .await
        .schema()
        .inspect()
        .await
        .unwrap_err();
    for error in [refused, checked.to_string()] {
        for part in ["Europe/Berlin", "rollup.zone = ", "init --rollup-from"] {
            assert!(error.contains(part), "{part}: {error}");
        }
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
    days.write_days(&[(one.clone(), summary)], false)
        .await
        .unwrap();
    let columns = encode_day(&store, Span::HOUR, &one, &Weightings::from(WEIGHTING)).await;
    let columns = [(one, columns.unwrap().unwrap())];
    let written = store.columns().unwrap().write_columns(&columns, false);
    assert_eq!(written.await.unwrap(), [DayWritten::Done]);
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
    let fields = row.get_document("fields").unwrap();
    let n = fields.get_document("n").unwrap();
    assert_eq!(n.get_i64("last").unwrap(), 3, "{n}");
    assert_eq!(n.get_f64("stddev").unwrap(), 0.0, "{n}");
    assert!(
        !n.contains_key("time_weighted_avg"),
        "one value covers no time: {n}"
    );
    // Prepared again, nothing changes.
    mongo(&name, "Europe/Berlin").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_past_is_filled_also_after_an_interruption_and_checked() {
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
    let filled = store
        .maintenance()
        .fill_days(zone, START, START + 200 * HOUR, |_, at| {
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
    let selection = |sensors: &[String]| store::maintain::Selection {
        from_ms: START - 100 * DAY,
        to_ms: START + 200 * HOUR,
        sensors: sensors.to_vec(),
    };
    let check = async |sensors: &[String], repair: bool| {
        store
            .maintenance()
            .check_days(zone, &selection(sensors), START + 200 * HOUR, repair)
            .await
            .unwrap()
    };
    let before = check(&[], false).await;
    assert!(!before.is_equal() && before.days == 24, "{before:?}");
    // Not by a service with `rollup.days`, which would mark the day.
    write(&store, &sensors[0], START + 3 * HOUR, 0, 3).await;
    let filled = store
        .maintenance()
        .fill_days(zone, START, START + 200 * HOUR, |_, _| {})
        .await
        .unwrap();
    assert_eq!(filled.sensors, 6, "also those before the interruption");
    // The day before the start is not filled.
    let after = check(&[], false).await;
    assert_eq!((after.days, after.differences), (24, 6), "{after:?}");
    let again = store
        .maintenance()
        .fill_days(zone, START - 2 * DAY, START + 200 * HOUR, |_, _| {})
        .await
        .unwrap();
    assert_eq!((again.sensors, again.days), (6, 24));
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
