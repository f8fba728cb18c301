//! `hourbucket remove` on a real MongoDB: pages, measurements, days, columns, latest states and the
//! catalogue afterwards; and removals that are killed again and again while two services write.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test, with figures"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::emulation;
use crate::support::fleet::now_ms;
use crate::support::mongod::Mongod;
use crate::support::seed::{HOUR, START, Seed, page, readings, sent, series};
use crate::support::service::Service;
use crate::support::{block_on, setting, wait_until};
use columns::{Line, Weighting, Weightings};
use futures_util::TryStreamExt;
use model::{Day, Span, Zone};
use mongodb::Database;
use mongodb::bson::{Bson, DateTime, Document, doc};
use store::Store;
use store::day_readings::{encode_day, stored_readings};
use store::days::SensorDay;
use store::mongo::{MongoStore, RollupSchema};
use store::tier::compare_day;

pub(crate) const DAY: i64 = 24 * HOUR;
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Everything from the start of [`START`]'s day.
const ALL: [&str; 3] = ["remove", "--from", "2024-03-01"];

fn removal<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&ALL[..], more].concat()
}

pub(crate) async fn documents(db: &Database, collection: &str, filter: Document) -> Vec<Document> {
    let found = db.collection::<Document>(collection).find(filter).await;
    found.unwrap().try_collect().await.unwrap()
}

/// Everything that is stored equals its readings.
pub(crate) fn is_consistent(seed: &Seed) {
    let all = ["reconcile", "--from", "2024-03-01", "--to", "2024-03-02"];
    let (code, table, error) = seed.run(&all);
    assert_eq!(code, 0, "{table}{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spike_goes_after_a_confirmation_and_the_rest_stays() {
    let seed = Seed::new("spike").await;
    let next = START + HOUR;
    let many = readings(next, 0..90);
    let one = readings(START, 0..60);
    seed.pages([
        page("a", START, 0, false, &one),
        page("a", next, 0, true, &many[..60]),
        page("a", next, 1, false, &many[60..]),
        page("b", START, 0, false, &one),
    ])
    .await;
    let fields = doc! { "n": ["number"], "half": ["number"] };
    let entry = doc! { "_id": "a", "fields": fields, "field_names": ["n", "half"], "tags": {},
    "labels": [], "first_ts": DateTime::from_millis(START), "last_ts": DateTime::from_millis(next) };
    seed.db
        .collection::<Document>("sensor_catalog")
        .insert_one(entry)
        .await
        .unwrap();
    let before = seed.readings().await;

    let wanted = removal(&["--sensor", "a", "--where", "n >= 50 and n < 55"]);
    let (code, text, _) = seed.run(&[&wanted[..], &["--dry-run"]].concat());
    assert_eq!(code, 0, "{text}");
    let first =
        "would remove 10 readings from 2 hours of 1 sensor:\n  a 2024-03-01T11:00:50Z half=";
    assert!(text.starts_with(first), "{text}");
    let (code, _, error) = seed.run(&wanted);
    assert!(code == 2 && error.contains("add --yes"), "{code} {error}");
    assert_eq!(seed.readings().await, before);
    let (code, text, error) = seed.run(&[&wanted[..], &["--yes"]].concat());
    assert_eq!(code, 0, "{text}{error}");
    assert!(
        text.contains("removed 10 readings from 2 hours of 1 sensor"),
        "{text}"
    );
    is_consistent(&seed);
    let mut left = before.clone();
    left.retain(|(sensor, _, n), _| sensor == "b" || !(50..55).contains(n));
    assert_eq!(seed.readings().await, left);
    let changed = seed.page("a", START, 0).await.unwrap();
    assert_eq!(
        changed.get_bool("has_overflow").ok(),
        Some(true),
        "its count is lower"
    );
    let unchanged = seed.page("a", next, 1).await.unwrap();
    assert!(!unchanged.contains_key("has_overflow"));
    let (code, text, _) = seed.run(&wanted);
    let nothing = "nothing to remove: no reading of 1 sensor matches";
    assert!(code == 0 && text.contains(nothing), "{text}");

    // Only one value, of an open page: its version stays.
    let wanted = removal(&[
        "--sensor", "a", "--field", "half", "--where", "n == 70", "--yes",
    ]);
    let (code, text, error) = seed.run(&wanted);
    assert_eq!(code, 0, "{text}{error}");
    is_consistent(&seed);
    let changed = seed.page("a", next, 1).await.unwrap();
    assert_eq!(changed.get_i32("count").ok(), Some(30));
    assert!(!changed.contains_key("has_overflow"));
    assert_eq!(seed.readings().await, left);

    // Whole hours: a single open page is deleted, others are emptied: the view shows no reading.
    let (code, text, error) = seed.run(&["remove", "--sensor", "b", "--to", "2024-03-02", "--yes"]);
    assert_eq!(code, 0, "{text}{error}");
    assert_eq!(seed.page("b", START, 0).await, None);
    let (code, text, error) = seed.run(&["remove", "--sensor", "a", "--to", "2024-03-02", "--yes"]);
    assert_eq!(code, 0, "{text}{error}");
    assert!(
        seed.page("a", next, 1)
            .await
            .is_some_and(|page| page.get_i32("count").ok() == Some(0))
    );
    assert_eq!(seed.readings().await, BTreeMap::new());
    assert_eq!(seed.summaries().await, BTreeMap::new());
    is_consistent(&seed);
    let (code, _, error) = seed.run(&removal(&["--sensor", "a", "--yes"]));
    assert_eq!(code, 0, "{error}");
    assert_eq!(documents(&seed.db, "sensor_catalog", doc! {}).await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_are_named() {
    let seed = Seed::new("mistakes").await;
    seed.pages([page("a", START, 0, false, &readings(START, 0..3))])
        .await;
    let fields = doc! { "n": ["number"], "half": ["number"] };
    let entry = doc! { "_id": "a", "fields": fields };
    seed.db
        .collection::<Document>("sensor_catalog")
        .insert_one(entry)
        .await
        .unwrap();
    for (more, wanted) in [
        (
            &["--sensor", "a", "--where", "n < abc"][..],
            "\n  n < abc\n      ^",
        ),
        (
            &["--sensor", "a", "--field", "temp"],
            "no matching sensor has a field `temp`; they have: half, n",
        ),
        (
            &["--sensor", "a", "--where", "temp < 1"],
            "has a field `temp`",
        ),
        (&["--sensor", "x*"], "no stored sensor matches"),
        (
            &["--sensor", "a", "--to", "2024-02-01"],
            "--from must be before --to",
        ),
        (&["--sensor", ""], "must not be empty"),
    ] {
        let (code, text, error) = seed.run(&removal(more));
        assert!(
            code == 2 && error.contains(wanted),
            "{more:?}: {code} {text}{error}"
        );
    }
    // An hour that a service may have in memory.
    let start = now_ms().div_euclid(HOUR) * HOUR;
    seed.pages([page("a", start, 0, false, &readings(start, 0..3))])
        .await;
    let (code, text, error) = seed.run(&removal(&["--sensor", "a", "--where", "n == 1", "--yes"]));
    assert!(
        code == 1 && text.contains("it ended too recently"),
        "{code} {text}{error}"
    );
    assert!(text.contains("removed 1 reading from 1 hour"), "{text}");
    // An hour of which only the summary is left.
    let gone = doc! { "$unset": { "readings": "" }, "$set": { "readings_removed": true } };
    seed.update("a", START, 0, gone).await;
    let (code, text, error) = seed.run(&removal(&["--sensor", "a", "--where", "n == 2", "--yes"]));
    assert!(
        code == 1 && text.contains("only its summary"),
        "{code} {text}{error}"
    );
    let hour = ["--to", "2024-03-01T11:00:00Z", "--yes"];
    let (code, text, error) = seed.run(&removal(&[&["--sensor", "a"], &hour[..]].concat()));
    assert_eq!(code, 0, "{text}{error}");
    assert_eq!(
        seed.page("a", START, 0)
            .await
            .unwrap()
            .get_i32("count")
            .ok(),
        Some(0)
    );
}

async fn measured(seed: &Seed, is_deleted: bool) {
    let all = readings(START, 0..60);
    seed.measure("a", &all).await;
    seed.pages([series("a", START, &all)]).await;
    let (code, text, error) = seed.run(&removal(&["--sensor", "a", "--where", "n < 10", "--yes"]));
    assert_eq!(code, 0, "{text}{error}");
    let is_noted = text.contains("deletes only whole series");
    assert_eq!(is_noted, !is_deleted, "{text}");
    assert_eq!(seed.measured().await, if is_deleted { 0 } else { 60 });
    let left: BTreeMap<_, _> = sent("a", &all[10..]).into_iter().map(|r| (r, 1)).collect();
    assert_eq!(seed.readings().await, left);
    is_consistent(seed);
}

#[tokio::test(flavor = "multi_thread")]
async fn hours_of_measurements_become_pages_with_what_is_left() {
    let seed = Seed::new("measured").await;
    seed.native().await;
    measured(&seed, false).await;
    let (code, text, error) = seed.run(&["remove", "--sensor", "a", "--yes"]);
    assert_eq!(code, 0, "{text}{error}");
    assert_eq!(seed.measured().await, 0, "whole series can be deleted");
    assert_eq!(seed.readings().await, BTreeMap::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_deletes_measurements_deletes_them() {
    let uri = emulation::deletes_measurements(Mongod::shared().port());
    let seed = Seed::at(uri, "deleted", None).await;
    measured(&seed, true).await;
}

/// A database with days and columns, and the service's commands for it.
struct WithColumns {
    seed: Seed,
    store: MongoStore,
}

const WEIGHTING: Weighting = Weighting {
    line: Line::Straight,
    gap_max_ms: HOUR,
};

impl WithColumns {
    async fn new(test: &str) -> WithColumns {
        let seed = Seed::new(test).await;
        let kept = Some(Duration::from_secs(20_000 * 86_400));
        let store = seed.store.clone().with_rollup(Some(RollupSchema {
            zone: Zone::UTC,
            days: Some(kept),
            columns: Some(kept),
        }));
        store.prepare().await.unwrap();
        WithColumns { seed, store }
    }

    fn day(sensor: &str) -> SensorDay {
        let start_ms = START.div_euclid(DAY) * DAY;
        let end_ms = start_ms + DAY;
        SensorDay {
            day: Day { start_ms, end_ms },
            sensor_id: sensor.into(),
        }
    }

    /// Computes the day of a sensor as the service does.
    async fn compute(&self, sensor: &str) {
        let day = WithColumns::day(sensor);
        let columns = encode_day(&self.store, Span::HOUR, &day, &Weightings::from(WEIGHTING)).await;
        let columns = [(day.clone(), columns.unwrap().unwrap())];
        self.store
            .columns()
            .unwrap()
            .write_columns(&columns, false)
            .await
            .unwrap();
        let days = self.store.days().unwrap();
        let computed = days
            .compute_days(std::slice::from_ref(&day))
            .await
            .unwrap()
            .remove(0);
        days.write_days(&[(day, computed.unwrap())], false)
            .await
            .unwrap();
    }

    /// Removes the readings of the pages of a sensor, as the service does.
    async fn empty_pages(&self, sensor: &str) {
        let day = WithColumns::day(sensor);
        let pages = compare_day(&self.store, Span::HOUR, &day, &Weightings::from(WEIGHTING))
            .await
            .unwrap();
        assert!(self.store.remove_compared(&pages.unwrap()).await.unwrap() > 0);
    }

    fn run(&self, arguments: &[&str]) -> (i32, String) {
        let output = command(&self.seed.name, &Mongod::shared().uri(), arguments)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        (output.status.code().unwrap(), text + &error)
    }

    /// Time and `n` of the readings that columns have.
    async fn in_columns(&self, sensor: &str) -> BTreeSet<(i64, String)> {
        let rows = stored_readings(&self.store, &WithColumns::day(sensor))
            .await
            .unwrap();
        let shown = |row: model::rows::Row<'_>| (row.ts_ms, format!("{:?}", row.named().next()));
        rows.iter().map(shown).collect()
    }
}

/// `hourbucket` with days and columns.
pub(crate) fn command(database: &str, uri: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hourbucket"));
    command
        .args(arguments)
        .current_dir(std::env::temp_dir())
        .env("HOURBUCKET_STORE__URI", uri)
        .env("HOURBUCKET_STORE__DATABASE", database)
        .env("HOURBUCKET_ROLLUP__DAYS", "true")
        .env("HOURBUCKET_COLUMNS__ENABLED", "true")
        .env("HOURBUCKET_LATEST__ENABLED", "true")
        .env("HOURBUCKET_SENSORS__SILENT_AFTER", "4s");
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn readings_that_only_columns_have_are_removed_and_the_day_is_computed_again() {
    let with = WithColumns::new("columns").await;
    let next = START + HOUR;
    let many = readings(next, 0..90);
    with.seed
        .pages([
            page("a", START, 0, false, &readings(START, 0..60)),
            page("a", next, 0, true, &many[..60]),
            page("a", next, 1, false, &many[60..]),
        ])
        .await;
    with.compute("a").await;
    with.empty_pages("a").await;
    let before = with.in_columns("a").await;
    assert_eq!(before.len(), 150);
    let old = with.seed.page("a", START, 0).await.unwrap();
    let wanted = removal(&[
        "--sensor",
        "a",
        "--from",
        "2024-03-01T11:00:00Z",
        "--where",
        "n < 80",
        "--yes",
    ]);
    let wanted = [&["remove"], &wanted[3..]].concat();
    let (code, text) = with.run(&wanted);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("removed 80 readings from 1 hour"), "{text}");
    let mut left = before.clone();
    left.retain(|(ts_ms, _)| *ts_ms < next || *ts_ms >= next + 80_000);
    assert_eq!(with.in_columns("a").await, left);
    assert_eq!(
        with.seed.page("a", START, 0).await,
        Some(old),
        "another hour"
    );
    let days = documents(&with.seed.db, "sensor_days", doc! {}).await;
    assert_eq!(days.len(), 1);
    assert_eq!(days[0].get_i64("count").ok(), Some(70));
    assert_eq!(
        documents(&with.seed.db, "rollup_pending", doc! {}).await,
        []
    );
    let (code, text) = with.run(&["reconcile", "--from", "2024-03-01", "--to", "2024-03-02"]);
    assert_eq!(code, 0, "{text}");
    // What is left leaves the pages again, and the day can go as a whole.
    with.empty_pages("a").await;
    let (code, text) = with.run(&["remove", "--sensor", "a", "--to", "2024-03-02", "--yes"]);
    assert_eq!(code, 0, "{text}");
    for collection in [
        "sensor_days",
        "sensor_columns",
        "sensor_day_hours",
        "rollup_pending",
    ] {
        assert_eq!(
            documents(&with.seed.db, collection, doc! {}).await,
            [],
            "{collection}"
        );
    }
    assert_eq!(with.seed.summaries().await, BTreeMap::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sensor_is_removed_wholly() {
    let with = WithColumns::new("whole").await;
    for sensor in ["person-1", "person-2", "other"] {
        with.seed
            .pages([page(sensor, START, 0, false, &readings(START, 0..60))])
            .await;
        with.compute(sensor).await;
        let now = DateTime::from_millis(now_ms());
        let entry = doc! { "_id": sensor, "last_arrival": now };
        with.seed
            .db
            .collection::<Document>("sensor_catalog")
            .insert_one(entry)
            .await
            .unwrap();
        let latest = doc! { "_id": sensor, "last_ts": now, "values": {}, "recent": [] };
        with.seed
            .db
            .collection::<Document>("sensor_latest")
            .insert_one(latest)
            .await
            .unwrap();
    }
    let (code, text) = with.run(&["remove", "--sensor", "person-*", "--dry-run"]);
    assert!(
        code == 0 && text.contains("would remove 120 readings from 2 hours of 2 sensors"),
        "{text}"
    );
    let (code, text) = with.run(&["remove", "--sensor", "person-*", "--yes"]);
    assert!(
        code == 0 && text.contains("2 entries of the catalogue stay"),
        "{text}"
    );
    tokio::time::sleep(Duration::from_secs(3)).await;
    let (code, text) = with.run(&["remove", "--sensor", "person-*", "--yes"]);
    assert!(
        code == 0 && text.contains("2 entries of the catalogue"),
        "{text}"
    );
    for collection in [
        "sensor_buckets",
        "sensor_days",
        "sensor_columns",
        "sensor_day_hours",
        "sensor_latest",
        "sensor_catalog",
    ] {
        let left = documents(&with.seed.db, collection, doc! {}).await;
        assert_eq!(left.len(), 1, "{collection}");
        let id = left[0].get("_id").unwrap();
        let sensor = id
            .as_document()
            .map_or(id, |id| id.get("sensor_id").unwrap());
        assert_eq!(sensor, &Bson::from("other"), "{collection}");
    }
}

#[test]
fn nothing_else_is_lost_whatever_is_killed() {
    killed("bucket");
}

#[test]
fn nothing_else_is_lost_whatever_is_killed_with_time_series() {
    killed("timeseries");
}

/// What is stored of the readings: sensor, time and `n`, with how often.
pub(crate) type Stored = BTreeMap<(String, i64, i64), u32>;

/// Two services that keep everything that is derived from readings, with small pages and short waits.
pub(crate) fn two_services(mode: &str, uri: &str, more_latest: &str) -> [Service; 2] {
    let config = format!(
        "store.mode = \"{mode}\"\nflush.max_age = \"200ms\"\nbucket.max_readings = 40\n\
         sensors.silent_after = \"4s\"\nsensors.retired_after = \"1h\"\n\
         [rollup]\ndays = true\nlate = \"400ms\"\nsettle = \"1s\"\n\
         [columns]\nenabled = true\n[latest]\nenabled = true\n{more_latest}"
    );
    [0, 1].map(|_| Service::start(&config, &[("STORE__URI", uri)]))
}

/// Two services get late readings, of which those with a negative `n` are removed again and again by
/// commands that are killed. A last removal, when nothing arrives any more, leaves exactly the others.
fn killed(mode: &str) {
    let kills = setting("HOURBUCKET_REMOVE_KILLS", 5);
    let seed = setting("HOURBUCKET_SEED", fastrand::usize(..1_000_000));
    println!("HOURBUCKET_SEED={seed}");
    let mut rng = fastrand::Rng::with_seed(seed as u64);
    let mongod = Mongod::start();
    let uri = mongod.uri();
    let services = two_services(mode, &uri, "");
    let begin_ms = now_ms().div_euclid(HOUR) * HOUR - 2 * DAY;
    let mut wanted = Stored::new();
    let mut n = 0;
    for kill in 0..=kills {
        for _ in 0..rng.usize(5..20) {
            let service = rng.usize(0..2);
            let readings: Vec<(String, i64, i64)> = (0..rng.usize(1..60))
                .map(|_| {
                    n += 1;
                    // In bucket mode both instances write the same sensors.
                    let owner = if mode == "bucket" { 9 } else { service };
                    let ts_ms = begin_ms + rng.i64(0..20 * HOUR);
                    let sign = if rng.u8(0..4) == 0 { -1 } else { 1 };
                    (format!("s{owner}-{}", rng.u8(0..3)), ts_ms, sign * n)
                })
                .collect();
            let line = |(s, ts, n): &(String, i64, i64)| {
                let spike = if *n < 0 { ",\"spike\":true" } else { "" };
                format!("{{\"sensor_id\":\"{s}\",\"ts\":{ts},\"n\":{n}{spike}}}\n")
            };
            let body: String = readings.iter().map(line).collect();
            let answer =
                services[service].post("/v1/readings", "application/x-ndjson", body.as_bytes());
            assert_eq!(answer.unwrap().0, 200);
            wanted.extend(readings.into_iter().filter(|r| r.2 > 0).map(|r| (r, 1)));
            std::thread::sleep(Duration::from_millis(rng.u64(0..60)));
        }
        if kill < kills {
            let mut removal = command(
                "hourbucket",
                &uri,
                &["remove", "--sensor", "*", "--where", "n < 0", "--yes"],
            );
            let mut removal = removal
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            std::thread::sleep(Duration::from_millis(rng.u64(0..2500)));
            removal.kill().unwrap();
            removal.wait().unwrap();
        }
    }
    for service in &services {
        service.wait_settled(1, PATIENCE);
    }
    // The catalogue is narrowed when the sensors have been silent.
    std::thread::sleep(Duration::from_secs(3));
    let last = command(
        "hourbucket",
        &uri,
        &["remove", "--sensor", "*", "--where", "n < 0", "--yes"],
    )
    .output();
    let last = last.unwrap();
    let text = String::from_utf8(last.stdout).unwrap() + &String::from_utf8(last.stderr).unwrap();
    assert_eq!(last.status.code(), Some(0), "{text}");
    println!(
        "{mode}: {} of {n} readings left, {kills} kills: {text}",
        wanted.len()
    );
    let db = || async {
        mongodb::Client::with_uri_str(&uri)
            .await
            .unwrap()
            .database("hourbucket")
    };
    wait_until("no day is marked", PATIENCE, || {
        let marks = block_on(async { documents(&db().await, "rollup_pending", doc! {}).await });
        marks.is_empty().then_some(())
    });
    assert_eq!(block_on(async { stored(&db().await).await }), wanted);
    let from = (begin_ms - DAY) / 1000;
    let from = chrono::DateTime::from_timestamp(from, 0)
        .unwrap()
        .to_rfc3339();
    let checked = command("hourbucket", &uri, &["reconcile", "--from", &from])
        .output()
        .unwrap();
    let text =
        String::from_utf8(checked.stdout).unwrap() + &String::from_utf8(checked.stderr).unwrap();
    assert_eq!(checked.status.code(), Some(0), "{text}");
    assert!(
        text.contains("days in columns") && text.contains("0 differences"),
        "{text}"
    );
    block_on(async { derived_is_of(&db().await, &wanted).await });
}

/// The stored readings as a reader sees them.
pub(crate) async fn stored(db: &Database) -> Stored {
    let mut found = Stored::new();
    let mut add = |sensor: &str, reading: &Document| {
        let ts_ms = reading.get_datetime("ts").unwrap().timestamp_millis();
        let key = (sensor.to_owned(), ts_ms, reading.get_i64("n").unwrap());
        *found.entry(key).or_default() += 1;
    };
    let mut series = BTreeSet::new();
    for page in documents(db, "sensor_buckets", doc! {}).await {
        let sensor = page.get_str("sensor_id").unwrap();
        let start = page
            .get_datetime("bucket_start")
            .unwrap()
            .timestamp_millis();
        if page.contains_key("storage") {
            series.insert((sensor.to_owned(), start));
        }
        for reading in page.get_array("readings").into_iter().flatten() {
            add(sensor, reading.as_document().unwrap());
        }
    }
    for measurement in documents(db, "sensor_readings", doc! {}).await {
        let sensor = measurement
            .get_document("meta")
            .unwrap()
            .get_str("sensor_id")
            .unwrap();
        let ts_ms = measurement.get_datetime("ts").unwrap().timestamp_millis();
        if series.contains(&(sensor.to_owned(), ts_ms.div_euclid(HOUR) * HOUR)) {
            add(sensor, &measurement);
        }
    }
    found
}

/// Days, latest states and the catalogue are those of these readings.
pub(crate) async fn derived_is_of(db: &Database, wanted: &Stored) {
    let mut by_sensor: BTreeMap<&str, Vec<(i64, i64)>> = BTreeMap::new();
    let mut by_day: BTreeMap<(&str, i64), (i64, i64)> = BTreeMap::new();
    for (sensor, ts_ms, n) in wanted.keys() {
        by_sensor.entry(sensor).or_default().push((*ts_ms, *n));
        let day = by_day
            .entry((sensor, ts_ms.div_euclid(DAY) * DAY))
            .or_default();
        *day = (day.0 + 1, day.1 + n);
    }
    let days = documents(db, "sensor_days", doc! {}).await;
    let found = days.iter().map(|day| {
        let n = day
            .get_document("summary")
            .unwrap()
            .get_document("n")
            .unwrap();
        let at = day.get_datetime("day").unwrap().timestamp_millis();
        let key = (day.get_str("sensor_id").unwrap(), at);
        (
            key,
            (day.get_i64("count").unwrap(), n.get_i64("sum").unwrap()),
        )
    });
    assert_eq!(found.collect::<BTreeMap<_, _>>(), by_day);
    for day in &days {
        let part = doc! { "sensor_id": day.get("sensor_id"), "day": day.get("day"), "part": 0 };
        if documents(db, "sensor_columns", part).await.is_empty() {
            continue;
        }
        let of = |whole: &str, entry: &str| {
            let fields = day
                .get_document(whole)
                .and_then(|all| all.get_document("n"));
            let fields = fields.unwrap_or_else(|_| panic!("{day}"));
            fields.get(entry).cloned().unwrap()
        };
        for entry in ["count", "min", "max", "sum"] {
            assert_eq!(of("fields", entry), of("summary", entry), "{day}");
        }
    }
    for (sensor, readings) in by_sensor {
        let first_ms = readings.iter().map(|r| r.0).min().unwrap();
        let last_ms = readings.iter().map(|r| r.0).max().unwrap();
        let latest = documents(db, "sensor_latest", doc! { "_id": sensor })
            .await
            .remove(0);
        let time = |of: &Document, name: &str| of.get_datetime(name).unwrap().timestamp_millis();
        assert_eq!(time(&latest, "last_ts"), last_ms, "{latest}");
        let values = latest.get_document("values").unwrap();
        assert_eq!(
            time(values.get_document("n").unwrap(), "ts"),
            last_ms,
            "{latest}"
        );
        assert!(!values.contains_key("spike"), "{latest}");
        let recent = latest.get_array("recent").unwrap().iter();
        let recent = recent.map(|r| r.as_document().unwrap());
        let recent: Vec<(i64, i64)> = recent
            .map(|r| (time(r, "ts"), r.get_i64("n").unwrap()))
            .collect();
        let mut newest = readings.clone();
        newest.sort_unstable();
        assert_eq!(
            recent,
            newest[newest.len().saturating_sub(10)..],
            "{sensor}"
        );
        let entry = documents(db, "sensor_catalog", doc! { "_id": sensor })
            .await
            .remove(0);
        let fields: Vec<&String> = entry.get_document("fields").unwrap().keys().collect();
        assert_eq!(fields, ["n"], "{entry}");
        assert_eq!(entry.get_array("field_names").unwrap(), &[Bson::from("n")]);
        assert!(
            time(&entry, "first_ts") - first_ms < DAY && last_ms - time(&entry, "last_ts") < DAY
        );
        assert!(
            time(&entry, "first_ts") >= first_ms && time(&entry, "last_ts") <= last_ms,
            "{entry}"
        );
    }
}
