//! `hourbucket reconcile` on a real MongoDB: its findings, reports and repairs, alone and while a
//! service runs.

#![allow(clippy::unwrap_used, reason = "a test")]

use crate::support;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::fleet::{Gateway, now_ms};
use crate::support::mongod::{Kind, Mongod, unique_database};
use crate::support::seed::{HOUR, SPAN, START, Seed, page, readings, run, sent, series};
use crate::support::service::Service;
use crate::support::{block_on, stored};
use hourbucket::config;
use hourbucket::maintain::{Reconciled, Selection};
use hourbucket::model::Span;
use hourbucket::store::mongo::{MongoStore, ReconcileOptions};
use mongodb::bson::{DateTime, Document, doc};
use serde_json::Value;

/// Sensor, page and kind of every entry of a JSON report.
fn findings(json: &str) -> BTreeSet<(String, Option<u64>, String)> {
    let report: Value = serde_json::from_str(json).unwrap();
    let entry = |e: &Value| {
        let text = |name: &str| e[name].as_str().unwrap().to_owned();
        (text("sensor_id"), e["page"].as_u64(), text("kind"))
    };
    report["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(entry)
        .collect()
}

fn set(entries: &[(&str, Option<u64>, &str)]) -> BTreeSet<(String, Option<u64>, String)> {
    entries
        .iter()
        .map(|(s, p, k)| (s.to_string(), *p, k.to_string()))
        .collect()
}

fn command<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["reconcile"][..], &SPAN, more].concat()
}

/// Pages with every kind of difference that a repair can correct.
async fn broken_pages(seed: &Seed) {
    let all = readings(START, 0..90);
    seed.pages([
        page("good", START, 0, true, &all[..60]),
        page("good", START, 1, false, &all[60..]),
    ])
    .await;
    for sensor in ["count", "many", "sum", "field", "times", "unsealed"] {
        let sealed = sensor != "unsealed";
        seed.pages([
            page(sensor, START, 0, sealed, &all[..60]),
            page(sensor, START, 1, false, &all[60..]),
        ])
        .await;
    }
    seed.update("count", START, 0, doc! { "$set": { "count": 59 } })
        .await;
    seed.update("many", START, 1, doc! { "$set": { "count": 31 } })
        .await;
    seed.update(
        "sum",
        START,
        1,
        doc! { "$inc": { "summary.n.sum": 1, "summary.half.count": 1 } },
    )
    .await;
    let change = doc! { "$unset": { "summary.half": 1 }, "$set": { "summary.ghost": { "min": 1, "max": 1, "sum": 1, "count": 1 } } };
    seed.update("field", START, 0, change).await;
    let first = DateTime::from_millis(START - 1);
    let last = DateTime::from_millis(START);
    seed.update(
        "times",
        START,
        0,
        doc! { "$set": { "first_ts": first, "last_ts": last } },
    )
    .await;
    let twice = [&all[..10], &all[5..10]].concat();
    let again = [&all[8..10], &all[10..20]].concat();
    seed.pages([
        page("twice", START, 0, true, &twice),
        page("twice", START, 1, false, &again),
    ])
    .await;
}

const BROKEN: [(&str, Option<u64>, &str); 9] = [
    ("count", Some(0), "count"),
    ("many", Some(1), "count"),
    ("sum", Some(1), "summary"),
    ("field", Some(0), "summary"),
    ("times", Some(0), "first_ts"),
    ("times", Some(0), "last_ts"),
    ("unsealed", Some(0), "not_sealed"),
    ("twice", Some(0), "possible_duplicates"),
    ("twice", Some(1), "possible_duplicates"),
];

#[tokio::test(flavor = "multi_thread")]
async fn differences_in_pages_are_reported_and_repaired() {
    let seed = Seed::new("pages").await;
    broken_pages(&seed).await;
    let (code, table, _) = seed.run(&command(&[]));
    assert_eq!(code, 1, "{table}");
    assert!(
        table.starts_with("SENSOR") && table.contains("2024-03-01T10:00:00Z"),
        "{table}"
    );
    for text in [
        "summary ghost",
        "count 60, max 29.5, min 0.0, sum 885.0",
        "possible_duplicates",
    ] {
        assert!(table.contains(text), "{text}: {table}");
    }
    assert!(
        table.ends_with("16 documents, 657 readings: 11 differences\n"),
        "{table}"
    );
    let (code, json, _) = seed.run(&command(&["--json"]));
    assert_eq!((code, findings(&json)), (1, set(&BROKEN)), "{json}");
    let report: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&report["differences"], &report["equal"], &report["buckets"]),
        (&11.into(), &false.into(), &8.into())
    );
    let count = report["findings"]
        .as_array()
        .unwrap()
        .iter()
        .find(|f| f["sensor_id"] == "count")
        .unwrap();
    assert_eq!(
        (&count["stored"], &count["actual"], &count["outcome"]),
        (&59.into(), &60.into(), &"found".into())
    );
    let (code, json, _) = seed.run(&command(&["--repair", "--json"]));
    let report: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (code, &report["repaired"]),
        (1, &9.into()),
        "possible duplicates stay unless requested: {json}"
    );
    let (code, json, _) = seed.run(&command(&["--json", "--ignore-duplicates"]));
    assert_eq!((code, findings(&json).len()), (0, 0), "{json}");
    let (code, table, _) = seed.run(&command(&["--repair", "--drop-duplicates"]));
    assert_eq!(code, 0, "{table}");
    assert!(table.ends_with("2 differences, all repaired\n"), "{table}");
    let (code, table, _) = seed.run(&command(&[]));
    assert!(code == 0 && table.ends_with("all equal\n"), "{table}");
    let sealed = |page: Document| page.get_bool("has_overflow").unwrap_or(false);
    for (sensor, is_sealed) in [
        ("many", true),
        ("twice", true),
        ("sum", false),
        ("good", false),
    ] {
        let last = seed.page(sensor, START, 1).await.unwrap();
        assert_eq!(
            sealed(last),
            is_sealed,
            "{sensor}: a page whose count decreased accepts no more"
        );
    }
    let all = readings(START, 0..90);
    let sensors = ["good", "count", "many", "sum", "field", "times", "unsealed"];
    let expected = sensors
        .iter()
        .flat_map(|s| sent(s, &all))
        .chain(sent("twice", &all[..20]));
    stored::exactly_once(
        &stored::readings(&Mongod::shared().uri(), &seed.name),
        expected,
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_repaired_is_left_and_reported() {
    let seed = Seed::new("beyond").await;
    let all = readings(START, 0..30);
    let outside = [&all[..5], &[(START + HOUR, 7), (START - 1, 8)]].concat();
    seed.pages([page("outside", START, 0, false, &outside)])
        .await;
    let mut odd = page("odd", START, 0, false, &all[..3]);
    odd.insert("count", 5);
    odd.get_array_mut("readings")
        .unwrap()
        .extend([doc! { "n": 1 }.into(), "nothing".into()]);
    seed.pages([odd]).await;
    seed.pages([
        page("gap", START, 0, true, &all[..10]),
        page("gap", START, 3, false, &all[10..]),
    ])
    .await;
    seed.pages([page("headless", START, 1, false, &all)]).await;
    let now = now_ms() / HOUR * HOUR;
    let young = readings(now, 0..5);
    seed.pages([page(
        "young",
        now,
        0,
        false,
        &[&young[..], &young[..1]].concat(),
    )])
    .await;
    let expected = [
        ("outside", Some(0), "outside_bucket"),
        ("odd", Some(0), "unreadable"),
        ("gap", Some(1), "missing_page"),
        ("gap", Some(2), "missing_page"),
        ("headless", Some(0), "missing_page"),
    ];
    let (code, json, _) = seed.run(&command(&["--json", "--repair", "--drop-duplicates"]));
    assert_eq!((code, findings(&json)), (1, set(&expected)), "{json}");
    let report: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&report["differences"], &report["repaired"]),
        (&5.into(), &3.into()),
        "{json}"
    );
    let (code, json, _) = seed.run(&command(&[
        "--json", "--sensor", "gap", "--sensor", "headless",
    ]));
    assert_eq!(code, 0, "{json}");
    let summaries = seed.summaries().await;
    assert_eq!(
        summaries[&("headless".to_owned(), START)],
        (30, 435),
        "the view finds it again by its page 0"
    );
    assert_eq!(summaries[&("gap".to_owned(), START)], (30, 435));
    let filled = seed.page("gap", START, 2).await.unwrap();
    assert!(
        filled.get_bool("has_overflow").unwrap()
            && filled.get_array("readings").unwrap().is_empty(),
        "{filled}"
    );
    let from = "1970-01-01";
    let to = "2100-01-01";
    let (code, table, _) = seed.run(&[
        "reconcile",
        "--from",
        from,
        "--to",
        to,
        "--sensor",
        "young",
        "--repair",
        "--drop-duplicates",
    ]);
    assert_eq!(code, 1, "{table}");
    assert!(table.contains("ended too recently"), "{table}");
    let (code, table, _) = seed.run(&["reconcile"]);
    assert_eq!(
        code, 0,
        "the default span ends where the open bucket begins: {table}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_in_time_series_mode_are_compared_with_measurements() {
    let seed = Seed::new("series").await;
    seed.native().await;
    let all = readings(START, 0..40);
    for sensor in ["good", "outdated", "alone", "mixed", "left"] {
        seed.measure(sensor, &all).await;
    }
    seed.measure("twice", &[&all[..], &all[..2]].concat()).await;
    let mut outdated = series("outdated", START, &all[..30]);
    outdated.insert("first_ts", DateTime::from_millis(START + 1));
    seed.pages([
        series("good", START, &all),
        outdated,
        series("gone", START, &all),
    ])
    .await;
    seed.pages([
        series("mixed", START, &all),
        page("mixed", START, 1, false, &readings(START, 35..50)),
    ])
    .await;
    seed.pages([
        page("left", START, 0, false, &all),
        series("twice", START, &[&all[..], &all[..2]].concat()),
    ])
    .await;
    let (code, json, _) = seed.run(&command(&["--json"]));
    let mut expected = set(&[
        ("outdated", Some(0), "count"),
        ("outdated", Some(0), "first_ts"),
        ("outdated", Some(0), "last_ts"),
        ("outdated", Some(0), "summary"),
        ("alone", None, "no_document"),
        ("gone", None, "no_measurements"),
        ("mixed", Some(1), "stray_page"),
        ("left", None, "leftover_measurements"),
        ("twice", None, "possible_duplicates"),
    ]);
    assert_eq!((code, findings(&json)), (1, expected.clone()), "{json}");
    let (code, json, _) = seed.run(&command(&["--json", "--repair", "--drop-duplicates"]));
    let report: Value = serde_json::from_str(&json).unwrap();
    // This server cannot delete single measurements, so the bucket is converted to pages.
    let converted = ("twice".to_owned(), None, "leftover_measurements".to_owned());
    expected.insert(converted);
    assert_eq!(
        (code, findings(&json), &report["repaired"]),
        (1, expected.clone(), &8.into()),
        "{json}"
    );
    let (code, json, _) = seed.run(&command(&["--json"]));
    expected.retain(|(s, _, kind)| {
        ["gone", "left"].contains(&s.as_str()) || kind == "leftover_measurements"
    });
    assert_eq!((code, findings(&json)), (1, expected), "{json}");
    let (code, json, _) = seed.run(&command(&["--json", "--sensor", "left"]));
    assert_eq!(
        (code, findings(&json).len()),
        (0, 1),
        "leftovers are a note: {json}"
    );
    let folded = seed.page("mixed", START, 1).await.unwrap();
    assert!(
        folded.get_str("storage").is_ok() && !folded.contains_key("readings"),
        "{folded}"
    );
    let alone = seed.page("alone", START, 0).await.unwrap();
    let mut right = series("alone", START, &all);
    right.remove("bucket_start");
    assert!(
        right
            .iter()
            .all(|(name, value)| alone.get(name) == Some(value)),
        "{alone}"
    );
    let stored = seed.readings().await;
    let of = |s: &str| {
        stored
            .iter()
            .filter(|((sensor, ..), _)| sensor == s)
            .map(|(k, n)| (k.clone(), *n))
            .collect()
    };
    stored::exactly_once(&of("mixed"), sent("mixed", &readings(START, 0..50)));
    stored::exactly_once(&of("alone"), sent("alone", &all));
    stored::exactly_once(&of("left"), sent("left", &all));
    stored::exactly_once(&of("twice"), sent("twice", &all));
}

/// Hours in which some or all measurements are stored twice: a small one, one of several pages, one
/// with an incorrect document as well, and one without duplicates.
async fn stored_twice(seed: &Seed) -> Vec<stored::Stored> {
    let few = readings(START, 0..40);
    let many = readings(START, 0..2500);
    let twice = |all: &[(i64, i64)], again: usize| [all, &all[..again]].concat();
    // Equal times with different values: two readings.
    let good = [&few[..], &[(START, 77)]].concat();
    for (sensor, all, again) in [
        ("few", &few, 2),
        ("many", &many, 2500),
        ("wrong", &few, 40),
        ("good", &good, 0),
    ] {
        seed.measure(sensor, &twice(all, again)).await;
        let mut document = series(sensor, START, &twice(all, again));
        if sensor == "wrong" {
            document.insert("count", 41);
        }
        seed.pages([document]).await;
    }
    [
        sent("few", &few),
        sent("many", &many),
        sent("wrong", &few),
        sent("good", &good),
    ]
    .concat()
}

async fn dropped(seed: &Seed, all: Vec<stored::Stored>) -> String {
    let (code, text, errors) = seed.run(&command(&["--repair"]));
    assert_eq!(code, 1, "{text} {errors}");
    assert!(
        text.contains("kept: readings without a time of their own may be equal"),
        "{text}"
    );
    let (code, text, errors) = seed.run(&command(&["--repair", "--drop-duplicates"]));
    assert_eq!(code, 0, "{text} {errors}");
    let (code, again, errors) = seed.run(&command(&[]));
    assert!(code == 0 && again.contains("all equal"), "{again} {errors}");
    stored::exactly_once(&seed.readings().await, all.clone());
    let of = |sensor: &str| {
        let all: Vec<_> = all.iter().filter(|(s, ..)| s == sensor).collect();
        (
            (sensor.to_owned(), START),
            (all.len() as i64, all.iter().map(|(.., n)| n).sum::<i64>()),
        )
    };
    assert_eq!(
        seed.summaries().await,
        ["few", "good", "many", "wrong"].map(of).into(),
        "the summaries are correct"
    );
    text
}

/// MongoDB 6.0 deletes only whole series, so such an hour is converted to pages.
#[tokio::test(flavor = "multi_thread")]
async fn duplicates_among_measurements_are_dropped_by_a_server_that_deletes_whole_series_only() {
    let seed = Seed::new("twice60").await;
    seed.native().await;
    let all = stored_twice(&seed).await;
    let before = seed.measured().await;
    let text = dropped(&seed, all.clone()).await;
    assert!(
        text.contains("3 buckets are pages now, without the duplicates"),
        "{text}"
    );
    assert_eq!(
        seed.measured().await,
        before,
        "left over, and invisible to readers"
    );
    for (sensor, n, native) in [
        ("few", 0, false),
        ("many", 2, false),
        ("wrong", 0, false),
        ("good", 0, true),
    ] {
        let page = seed.page(sensor, START, n).await.unwrap();
        assert_eq!(page.contains_key("storage"), native, "{sensor}: {page}");
    }
    assert_eq!(
        seed.page("many", START, 2)
            .await
            .unwrap()
            .get_i32("count")
            .unwrap(),
        500
    );
    assert_eq!(
        seed.page("many", START, 3).await,
        None,
        "cut without the duplicates"
    );
    // Leftover measurements of whole sensors can be removed, duplicates included.
    let only = |s: &str| ["--sensor".to_owned(), s.to_owned()];
    let sensors: Vec<String> = ["few", "many", "wrong"]
        .iter()
        .flat_map(|s| only(s))
        .collect();
    let sensors: Vec<&str> = sensors.iter().map(String::as_str).collect();
    let (code, text, _) = seed.run(
        &[
            &["convert", "--into", "bucket", "--drop-leftovers"][..],
            &SPAN,
            &sensors,
        ]
        .concat(),
    );
    assert_eq!((code, seed.measured().await), (0, 41), "{text}");
    stored::exactly_once(&seed.readings().await, all);
}

/// MongoDB 7.0 and later delete single measurements; such a server is emulated, see
/// [`support::emulation`].
#[tokio::test(flavor = "multi_thread")]
async fn duplicates_among_measurements_are_deleted_by_a_server_that_can() {
    let seed = Seed::at(
        support::emulation::deletes_measurements(Mongod::shared().port()),
        "twice70",
        None,
    )
    .await;
    let all = stored_twice(&seed).await;
    let text = dropped(&seed, all.clone()).await;
    assert!(!text.contains("pages now"), "{text}");
    assert_eq!(seed.measured().await, all.len() as u64);
    for sensor in ["few", "many", "wrong", "good"] {
        let page = seed.page(sensor, START, 0).await.unwrap();
        assert!(
            page.contains_key("storage") && !page.contains_key("readings"),
            "{sensor}: {page}"
        );
    }
}

/// Without transactions an hour of several pages stays unchanged, and the report gives advice; the
/// others are repaired.
#[tokio::test(flavor = "multi_thread")]
async fn a_standalone_server_before_7_0_keeps_duplicates_of_an_hour_of_several_pages_and_says_why()
{
    let alone = Mongod::start_kind(Kind {
        standalone: true,
        ..Kind::default()
    });
    let seed = Seed::at(alone.uri(), "alone", None).await;
    seed.native().await;
    stored_twice(&seed).await;
    let (code, text, errors) = seed.run(&command(&["--repair", "--drop-duplicates"]));
    assert_eq!(code, 1, "{text} {errors}");
    assert!(
        text.contains("make the server a replica set") && text.contains("2 buckets are pages now"),
        "{text}"
    );
    assert!(
        seed.page("many", START, 0)
            .await
            .unwrap()
            .contains_key("storage"),
        "unchanged"
    );
    assert!(
        !seed
            .page("few", START, 0)
            .await
            .unwrap()
            .contains_key("storage")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn partly_expired_buckets_are_skipped_and_failures_are_exit_code_2() {
    // So long that MongoDB removes none of these old buckets while the test runs.
    let retention = Duration::from_secs(20_000 * 86_400);
    let seed = Seed::with("expired", Some(retention)).await;
    let all = readings(START, 0..10);
    let mut wrong = page("s", START, 0, false, &all);
    wrong.insert("count", 3);
    seed.pages([wrong]).await;
    let report = reconcile(
        &seed.store,
        START,
        START + HOUR,
        false,
        START + 20_000 * 86_400_000 + HOUR,
    )
    .await;
    assert_eq!(
        (report.buckets, report.is_equal(), report.notes.len()),
        (0, true, 2),
        "{report:?}"
    );
    let report = reconcile(
        &seed.store,
        START,
        START + HOUR,
        false,
        START + 19_999 * 86_400_000,
    )
    .await;
    assert_eq!(
        (report.buckets, report.is_equal(), report.notes.len()),
        (1, false, 0),
        "{report:?}"
    );
    for arguments in [
        &["reconcile", "--from", "yesterday"][..],
        &["reconcile", "--from", "2024-03-02", "--to", "2024-03-01"],
        &["reconcile", "--drop-duplicates"],
        &["convert", "--into", "rows"],
    ] {
        let (code, _, errors) = seed.run(arguments);
        assert!(
            code == 2 && !errors.is_empty(),
            "{arguments:?}: {code} {errors}"
        );
    }
    let nowhere = "mongodb://127.0.0.1:9/?directConnection=true";
    for command in [&["reconcile"][..], &["convert", "--into", "bucket"]] {
        let (code, _, errors) = run(&seed.name, nowhere, command);
        assert!(
            code == 2 && errors.contains("is MongoDB running"),
            "{code} {errors}"
        );
    }
}

fn store(database: &str) -> config::Store {
    let uri = config::Secret::new(Mongod::shared().uri());
    config::Store {
        uri,
        database: database.to_owned(),
        ..config::Config::default().store
    }
}

async fn reconcile(
    store: &MongoStore,
    from_ms: i64,
    to_ms: i64,
    repair: bool,
    now_ms: i64,
) -> Reconciled {
    let options = ReconcileOptions {
        selection: Selection {
            from_ms,
            to_ms,
            sensors: vec![],
        },
        repair,
        drop_duplicates: repair,
        ignore_duplicates: false,
        leftovers: true,
        now_ms,
        settled_before_ms: now_ms - HOUR,
        page: (1000, 1 << 20),
        listed_max: 1000,
    };
    store.reconcile(&options).await.unwrap()
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
    let gateway = Gateway::start("g", service.http(), 3, 12);
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
