//! `hourbucket reconcile` on a real MongoDB: its findings, reports and repairs.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::time::Duration;

use crate::support::fleet::now_ms;
use crate::support::mongod::Mongod;
use crate::support::seed::{HOUR, SPAN, START, Seed, page, readings, run, sent, series};
use crate::support::stored;
use mongodb::bson::{DateTime, Document, doc};
use serde_json::Value;
use store::maintain::{PageSize, Reconciled, Selection};
use store::mongo::{MongoStore, ReconcileOptions};

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

pub(super) fn command<'a>(more: &[&'a str]) -> Vec<&'a str> {
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
        ("gone", None, "missing_measurements"),
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

/// All measurements of one hour, and the first ones of another, were removed by an earlier
/// retention or by hand. Nothing recomputes their summaries from what is left.
#[tokio::test(flavor = "multi_thread")]
async fn summaries_of_removed_measurements_are_neither_repaired_nor_converted() {
    let seed = Seed::new("removed_measurements").await;
    seed.native().await;
    let hours = [START, START + HOUR, START + 2 * HOUR];
    let all = hours.map(|start| readings(start, 0..20));
    seed.pages((0..3).map(|n| series("s", hours[n], &all[n])))
        .await;
    seed.measure("s", &all[1][8..]).await;
    seed.measure("s", &all[2]).await;
    let pages = async || {
        let mut pages = vec![];
        for start in hours {
            pages.push(seed.page("s", start, 0).await.unwrap());
        }
        pages
    };
    let before = pages().await;
    for more in [&[][..], &["--repair"]] {
        let (code, text, _) = seed.run(&command(more));
        let found = text.matches("missing_measurements").count();
        assert!(code == 1 && found >= 2, "{text}");
        assert_eq!(pages().await, before);
    }
    // It compares the range when it is done.
    let (code, text, _) = seed.run(&[&["convert", "--into", "bucket"][..], &SPAN].concat());
    assert!(
        code == 1 && text.contains("converted 1 buckets with 20 readings"),
        "{text}"
    );
    assert_eq!(pages().await[..2], before[..2]);
}

pub(super) async fn reconcile(
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
        page: PageSize {
            readings_max: 1000,
            bytes_max: 1 << 20,
        },
        listed_max: 1000,
    };
    store.maintenance().reconcile(&options).await.unwrap()
}
