//! `hourbucket sensors rename | merge | replace` and `import --replace` on a real MongoDB: readings, days, columns, latest
//! states and the catalogue afterwards; and commands that are killed again and again while two
//! services write under former and present ids.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test, with figures"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::remove::{
    DAY, PATIENCE, command, derived_is_of, documents, is_consistent, stored, two_services,
};
use crate::support::fleet::now_ms;
use crate::support::mongod::Mongod;
use crate::support::seed::{HOUR, START, Seed, page, readings, run, sent, series};
use crate::support::service::Service;
use crate::support::{block_on, setting, wait_until};
use mongodb::bson::{DateTime, Document, doc};

fn all_of(parts: &[(&str, &[(i64, i64)])]) -> BTreeMap<(String, i64, i64), u32> {
    let of = |(sensor, readings): &(&str, &[(i64, i64)])| sent(sensor, readings);
    parts
        .iter()
        .flat_map(of)
        .map(|reading| (reading, 1))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sensor_gets_another_id_with_its_history() {
    let seed = Seed::new("rename").await;
    let next = START + HOUR;
    let third = next + HOUR;
    let one = readings(START, 0..60);
    let many = readings(next, 0..90);
    let gone = readings(third, 0..5);
    seed.pages([
        page("a", START, 0, false, &one),
        page("a", next, 0, true, &many[..60]),
        page("a", next, 1, false, &many[60..]),
        page("a", third, 0, true, &gone),
        page("other", START, 0, false, &one),
    ])
    .await;
    // An hour of which only the summary is left.
    let summary_only = doc! { "$unset": { "readings": "" }, "$set": { "readings_removed": true } };
    seed.update("a", third, 0, summary_only).await;
    let before = seed.readings().await;
    let dry = ["sensors", "rename", "a", "b", "--dry-run"];
    let (code, text, error) = seed.run(&dry);
    assert_eq!(code, 0, "{text}{error}");
    assert!(
        text.starts_with("would move 155 readings from 3 hours of a to b; "),
        "{text}"
    );
    let (code, _, error) = seed.run(&dry[..4]);
    assert!(code == 2 && error.contains("add --yes"), "{code} {error}");
    assert_eq!(seed.readings().await, before);
    assert_eq!(documents(&seed.db, "sensor_aliases", doc! {}).await, []);
    let rename = ["sensors", "rename", "a", "b", "--yes"];
    let (code, text, error) = seed.run(&rename);
    assert_eq!(code, 0, "{text}{error}");
    assert!(
        text.contains("moved 155 readings from 3 hours of a to b"),
        "{text}"
    );
    assert_eq!(
        seed.readings().await,
        all_of(&[("b", &one), ("b", &many), ("other", &one)])
    );
    assert_eq!(
        documents(&seed.db, "sensor_buckets", doc! { "sensor_id": "a" }).await,
        []
    );
    let copied = seed.page("b", third, 0).await.unwrap();
    assert_eq!(
        copied.get_bool("readings_removed").ok(),
        Some(true),
        "{copied}"
    );
    assert_eq!(copied.get_i32("count").ok(), Some(5), "{copied}");
    assert_eq!(seed.summaries().await[&("b".to_owned(), third)].0, 5);
    is_consistent(&seed);
    let alias = doc! { "_id": "a", "sensor_id": "b" };
    assert_eq!(
        documents(&seed.db, "sensor_aliases", doc! {}).await,
        [alias]
    );
    // What comes late under the former id is found by the next run.
    seed.pages([page("a", START, 0, false, &one[..3])]).await;
    let late = readings(START + 500, 0..3);
    seed.pages([page(
        "a",
        next,
        0,
        false,
        &late
            .iter()
            .map(|(ts, n)| (ts + HOUR, *n))
            .collect::<Vec<_>>(),
    )])
    .await;
    let (code, text, error) = seed.run(&rename);
    assert_eq!(code, 0, "{text}{error}");
    let late: Vec<(i64, i64)> = late.iter().map(|(ts, n)| (ts + HOUR, *n)).collect();
    let wanted = all_of(&[("b", &one), ("b", &many), ("b", &late), ("other", &one)]);
    assert_eq!(seed.readings().await, wanted);
    is_consistent(&seed);
}

#[tokio::test(flavor = "multi_thread")]
async fn days_without_hours_move_or_go_and_ambiguous_ones_stay() {
    let seed = Seed::new("rename_days").await;
    let one = readings(START, 0..60);
    seed.pages([
        page("a", START, 0, false, &one),
        page(
            "a",
            START + 2 * DAY,
            0,
            false,
            &readings(START + 2 * DAY, 0..60),
        ),
    ])
    .await;
    let midnight = START - 10 * HOUR;
    let day = |days: i64, first_ms: i64, count: i32| {
        let day = DateTime::from_millis(midnight + days * DAY);
        let first = DateTime::from_millis(first_ms);
        doc! {
            "_id": { "sensor_id": "a", "day": day }, "schema_version": 1, "sensor_id": "a", "day": day,
            "count": count, "first_ts": first, "last_ts": first, "summary": {},
        }
    };
    // A service computed the first one before its hour moved. The hours of the second one are gone, and
    // some of those of the last one: its first reading is older than the hours of the new id.
    let days = seed.db.collection::<Document>("sensor_days");
    let late = midnight + 2 * DAY + HOUR;
    let all = [day(0, START, 60), day(1, START + DAY, 7), day(2, late, 9)];
    let of = |document: &Document| {
        let id = document.get_str("sensor_id").unwrap().to_owned();
        (id, document.get_i32("count").unwrap())
    };
    days.insert_many(&all[1..]).await.unwrap();
    let rename = ["sensors", "rename", "a", "b", "--yes"];
    let (code, text, error) = seed.run(&rename);
    assert_eq!(code, 1, "{text}{error}");
    assert!(text.contains("note: kept 1 day of the former id"), "{text}");
    days.insert_one(&all[0]).await.unwrap();
    let (code, text, error) = seed.run(&rename);
    assert_eq!(code, 1, "{text}{error}");
    let left = documents(&seed.db, "sensor_days", doc! {}).await;
    let left: BTreeSet<(String, i32)> = left.iter().map(of).collect();
    let wanted = [("a".to_owned(), 9), ("b".to_owned(), 7)];
    assert_eq!(left, wanted.into());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let seed = Seed::new("refused").await;
    let one = readings(START, 0..6);
    for sensor in ["a", "b"] {
        seed.pages([page(sensor, START, 0, false, &one)]).await;
    }
    let aliases = seed.db.collection("sensor_aliases");
    aliases
        .insert_one(doc! { "_id": "x", "sensor_id": "b" })
        .await
        .unwrap();
    let before = seed.readings().await;
    for (arguments, why) in [
        (&["rename", "a", "a"][..], "is the same id"),
        (&["rename", "a", "b"], "hourbucket sensors merge a into b"),
        (&["rename", "c", "d"], "no readings of `c` are stored"),
        (
            &["merge", "a", "into", "c"],
            "hourbucket sensors rename a c",
        ),
        (&["merge", "a", "into", "x"], "`x` is a former id of `b`"),
        (&["rename", "x", "y"], "`x` is a former id of `b` already"),
        (&["rename", "b", "x"], "`x` is a former id of `b`"),
        (&["rename", "a", ""], "cannot be the id of a sensor"),
        (
            &["replace", "c", "d", "--at", "2024-03-01"],
            "no readings of `c` are stored",
        ),
    ] {
        let (code, text, error) = seed.run(&[&["sensors"], arguments, &["--yes"]].concat());
        assert!(
            code == 2 && error.contains(why),
            "{arguments:?}: {code} {text}{error}"
        );
    }
    assert_eq!(seed.readings().await, before);
    // Another name for what has a former id already leaves no chain.
    let (code, text, error) = seed.run(&["sensors", "rename", "b", "d", "--yes"]);
    assert_eq!(code, 0, "{text}{error}");
    let mut found = documents(&seed.db, "sensor_aliases", doc! {}).await;
    found.sort_by_key(|alias| alias.get_str("_id").unwrap().to_owned());
    let alias = |former: &str| doc! { "_id": former, "sensor_id": "d" };
    assert_eq!(found, [alias("b"), alias("x")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_sensors_are_joined_and_equal_readings_are_one() {
    let seed = Seed::new("merge").await;
    seed.native().await;
    let next = START + HOUR;
    let first = readings(START, 0..60);
    let second = readings(START, 40..100);
    let measured = readings(next, 0..30);
    let more = readings(next, 20..50);
    seed.pages([
        page("a", START, 0, false, &first),
        page("b", START, 0, true, &second[..20]),
        page("b", START, 1, false, &second[20..]),
        series("a", next, &measured),
        series("b", next, &more),
    ])
    .await;
    seed.measure("a", &measured).await;
    seed.measure("b", &more).await;
    let (code, text, error) = seed.run(&["sensors", "merge", "a", "INTO", "b", "--yes"]);
    assert_eq!(code, 0, "{text}{error}");
    let wanted = all_of(&[
        ("b", &readings(START, 0..100)),
        ("b", &readings(next, 0..50)),
    ]);
    assert_eq!(seed.readings().await, wanted);
    assert_eq!(
        documents(&seed.db, "sensor_buckets", doc! { "sensor_id": "a" }).await,
        []
    );
    let left = doc! { "meta.sensor_id": "a" };
    assert_eq!(documents(&seed.db, "sensor_readings", left).await, []);
    is_consistent(&seed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_successor_continues_the_history_from_a_time_on() {
    let seed = Seed::new("replace").await;
    let before = readings(START, 0..60);
    let both = readings(START, 30..90);
    seed.pages([
        page("old", START, 0, false, &before),
        page("new", START, 0, false, &both),
    ])
    .await;
    let at = "2024-03-01T10:01:00Z";
    let (code, text, error) = seed.run(&["sensors", "replace", "old", "new", "--at", at, "--yes"]);
    assert_eq!(code, 0, "{text}{error}");
    let wanted = all_of(&[("old", &readings(START, 0..90)), ("new", &both[..30])]);
    assert_eq!(seed.readings().await, wanted);
    let from = DateTime::from_millis(START + 60_000);
    let alias = doc! { "_id": "new", "sensor_id": "old", "from": from };
    assert_eq!(
        documents(&seed.db, "sensor_aliases", doc! {}).await,
        [alias]
    );
    is_consistent(&seed);
}

#[test]
fn readings_of_this_hour_move_and_later_ones_count_for_the_new_id() {
    let mongod = Mongod::start();
    let uri = mongod.uri();
    let config = "store.mode = \"bucket\"\nflush.max_age = \"200ms\"\n";
    let mut service = Service::start(config, &[("STORE__URI", &uri)]);
    let start = now_ms() - 60_000;
    let send = |service: &Service, sensor: &str, range: std::ops::Range<i64>| {
        let line = |n| {
            format!(
                "{{\"sensor_id\":\"{sensor}\",\"ts\":{},\"n\":{n}}}\n",
                start + n * 100
            )
        };
        let body: String = range.map(line).collect();
        let answer = service.post("/v1/readings", "application/x-ndjson", body.as_bytes());
        assert_eq!(answer.unwrap().0, 200);
    };
    send(&service, "a", 0..50);
    service.wait_settled(50, PATIENCE);
    let (code, text, error) = run(
        "hourbucket",
        &uri,
        &["sensors", "rename", "a", "b", "--yes"],
    );
    assert_eq!(code, 0, "{text}{error}");
    // Half of them again, and after a kill also what the journal replays.
    send(&service, "a", 25..75);
    service.wait_settled(100, PATIENCE);
    send(&service, "a", 70..90);
    service.kill9();
    service.restart();
    send(&service, "b", 85..100);
    service.wait_settled(1, PATIENCE);
    let wanted: BTreeMap<_, _> = (0..100)
        .map(|n| (("b".to_owned(), start + n * 100, n), 1))
        .collect();
    let found = block_on(async {
        let client = mongodb::Client::with_uri_str(&uri).await.unwrap();
        stored(&client.database("hourbucket")).await
    });
    assert_eq!(found, wanted);
    let (status, body) = service.get_admin("/v1/sensors/a").unwrap();
    let error: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (status, &error["error"]["reason"]),
        (404, &"former_id".into()),
        "{body}"
    );
    assert_eq!(error["error"]["sensor_id"], "b", "{body}");
    let (status, body) = service.get_admin("/v1/sensors/b").unwrap();
    assert!(
        status == 200 && body.contains("\"former_ids\":[\"a\"]"),
        "{status} {body}"
    );
    let (_, body) = service.get_admin("/v1/sensors").unwrap();
    assert_eq!(body.matches("\"sensor_id\"").count(), 1, "{body}");
}

#[test]
fn a_file_replaces_the_readings_of_its_range_whatever_is_killed() {
    replaced("bucket");
}

#[test]
fn a_file_replaces_the_readings_of_its_range_whatever_is_killed_with_time_series() {
    replaced("timeseries");
}

fn replaced(mode: &str) {
    let seed = setting("HOURBUCKET_SEED", fastrand::usize(..1_000_000));
    println!("HOURBUCKET_SEED={seed}");
    let mut rng = fastrand::Rng::with_seed(seed as u64);
    let mongod = Mongod::start();
    let uri = mongod.uri();
    let config = format!(
        "store.mode = \"{mode}\"\nflush.max_age = \"200ms\"\nbucket.max_readings = 40\n\
         [rollup]\ndays = true\nlate = \"400ms\"\nsettle = \"1s\"\n[columns]\nenabled = true\n\
         [latest]\nenabled = true\ninterval = \"500ms\"\n"
    );
    let service = Service::start(&config, &[("STORE__URI", &uri)]);
    let begin_ms = now_ms().div_euclid(HOUR) * HOUR - 2 * DAY;
    let send = |readings: &[(&str, i64, i64)]| {
        let line = |(s, ts, n): &(&str, i64, i64)| {
            format!("{{\"sensor_id\":\"{s}\",\"ts\":{ts},\"n\":{n}}}\n")
        };
        let body: String = readings.iter().map(line).collect();
        let answer = service.post("/v1/readings", "application/x-ndjson", body.as_bytes());
        assert_eq!(answer.unwrap().0, 200);
    };
    let all: Vec<(&str, i64, i64)> = (0..600)
        .map(|i| {
            (
                ["m", "other"][i % 2],
                begin_ms + rng.i64(0..6 * HOUR),
                i as i64,
            )
        })
        .collect();
    send(&all);
    service.wait_settled(600, PATIENCE);
    // The middle of it, with other values; some are as they were.
    let range = begin_ms + HOUR..begin_ms + 5 * HOUR;
    let of_m = |r: &&(&str, i64, i64)| r.0 == "m" && range.contains(&r.1);
    let changed =
        |(s, ts, n): &(&'static str, i64, i64)| (*s, *ts, if n % 3 == 0 { *n } else { -n });
    let corrected: Vec<(&str, i64, i64)> = all.iter().filter(of_m).map(changed).collect();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("m.ndjson");
    let line = |(s, ts, n): &(&str, i64, i64)| {
        format!("{{\"sensor_id\":\"{s}\",\"ts\":{ts},\"n\":{n}}}\n")
    };
    std::fs::write(&file, corrected.iter().map(line).collect::<String>()).unwrap();
    let import = |more: &[&str]| {
        let path = file.to_str().unwrap();
        let url = service.http();
        let arguments = [&["import", "--replace", path, "--url", &url], more].concat();
        let mut import = command("hourbucket", &uri, &arguments);
        import.current_dir(dir.path());
        import.env("HOURBUCKET_LATEST__INTERVAL", "500ms");
        import
    };
    let wanted: BTreeMap<_, _> = all
        .iter()
        .filter(|r| !of_m(r))
        .chain(&corrected)
        .map(|(s, ts, n)| (((*s).to_owned(), *ts, *n), 1))
        .collect();
    let dry = import(&["--dry-run"]).output().unwrap();
    let text = String::from_utf8(dry.stdout).unwrap() + &String::from_utf8(dry.stderr).unwrap();
    let n = corrected.len();
    assert!(
        text.starts_with(&format!("would store {n} readings of 1 sensor")),
        "{text}"
    );
    for _ in 0..setting("HOURBUCKET_MOVE_KILLS", 3) {
        let mut killed = import(&["--yes"]);
        let killed = killed.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut killed = killed.unwrap();
        std::thread::sleep(Duration::from_millis(rng.u64(0..1500)));
        killed.kill().unwrap();
        killed.wait().unwrap();
    }
    let last = import(&["--yes"]).output().unwrap();
    let text = String::from_utf8(last.stdout).unwrap() + &String::from_utf8(last.stderr).unwrap();
    assert_eq!(last.status.code(), Some(0), "{text}");
    service.wait_settled(1, PATIENCE);
    let from = chrono::DateTime::from_timestamp_millis(begin_ms - DAY).unwrap();
    let reconcile = ["reconcile", "--from", &from.to_rfc3339()];
    check_stored(&uri, &wanted, command("hourbucket", &uri, &reconcile));
}

#[test]
fn every_reading_is_once_under_its_new_id_whatever_is_killed() {
    killed("bucket", setting("HOURBUCKET_MOVE_KILLS", 5));
}

#[test]
fn every_reading_is_once_under_its_new_id_whatever_is_killed_with_time_series() {
    killed("timeseries", setting("HOURBUCKET_MOVE_KILLS", 5));
}

#[test]
#[ignore = "takes minutes"]
fn every_reading_is_once_under_its_new_id_after_fifty_kills() {
    killed("bucket", 50);
    killed("timeseries", 50);
}

/// Who sends it, its sensor, time and value.
type Sent = (usize, String, i64, i64);

fn post(service: &Service, readings: &[Sent]) {
    let line = |(_, s, ts, n): &Sent| format!("{{\"sensor_id\":\"{s}\",\"ts\":{ts},\"n\":{n}}}\n");
    let body: String = readings.iter().map(line).collect();
    let answer = service.post("/v1/readings", "application/x-ndjson", body.as_bytes());
    assert_eq!(answer.unwrap().0, 200);
}

/// The commands that move the sensors of an owner; one of them from a time on.
fn moves(owner: usize, at: &str) -> [Vec<String>; 3] {
    [
        format!("sensors rename old{owner} new{owner} --yes"),
        format!("sensors merge a{owner} into b{owner} --yes"),
        format!("sensors replace device{owner} successor{owner} --at {at} --yes"),
    ]
    .map(|text| text.split(' ').map(str::to_owned).collect())
}

/// The id that a reading has after the moves.
fn moved_id(id: &str, is_replaced: bool) -> String {
    match id.starts_with("successor") {
        true if is_replaced => id.replace("successor", "device"),
        true => id.to_owned(),
        false if id.starts_with("device") => id.to_owned(),
        false => id.replace("old", "new").replace('a', "b"),
    }
}

/// Two services get late readings and redeliveries under present and former ids, while commands move
/// them and are killed. A last run of each command, and each reading sent once more, leave every
/// reading once under its id.
fn killed(mode: &str, kills: usize) {
    let seed = setting("HOURBUCKET_SEED", fastrand::usize(..1_000_000));
    println!("HOURBUCKET_SEED={seed}");
    let mut rng = fastrand::Rng::with_seed(seed as u64);
    let mongod = Mongod::start();
    let uri = mongod.uri();
    let services = two_services(mode, &uri, "interval = \"500ms\"\n");
    let begin_ms = now_ms().div_euclid(HOUR) * HOUR - 2 * DAY;
    let at_ms = begin_ms + 10 * HOUR + 1_234_567;
    let at = chrono::DateTime::from_timestamp_millis(at_ms)
        .unwrap()
        .to_rfc3339();
    // In bucket mode both instances write the same sensors.
    let owners: &[usize] = if mode == "bucket" { &[9] } else { &[0, 1] };
    let commands: Vec<Vec<String>> = owners.iter().flat_map(|o| moves(*o, &at)).collect();
    let mut sent: Vec<Sent> = vec![];
    let post = |service: usize, readings: &[Sent]| post(&services[service], readings);
    let run = |arguments: &[String]| -> Command {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut run = command("hourbucket", &uri, &arguments);
        run.env("HOURBUCKET_LATEST__INTERVAL", "500ms");
        run
    };
    let ids = ["old", "a", "b", "device", "successor"];
    for kill in 0..=kills {
        for _ in 0..rng.usize(5..20) {
            let service = rng.usize(0..2);
            let mut readings = vec![];
            for _ in 0..rng.usize(1..60) {
                let owner = if mode == "bucket" { 9 } else { service };
                let mine = |r: &&Sent| mode == "bucket" || r.0 == owner;
                // A redelivery now and then.
                let again = sent.len().checked_sub(rng.usize(1..200)).map(|i| &sent[i]);
                if let Some(again) = again.filter(|_| rng.u8(0..4) == 0).filter(mine) {
                    readings.push(again.clone());
                    continue;
                }
                let id = format!("{}{owner}", ids[rng.usize(0..ids.len())]);
                let ts_ms = begin_ms + rng.i64(0..20 * HOUR);
                readings.push((owner, id, ts_ms, sent.len() as i64 + readings.len() as i64));
            }
            post(service, &readings);
            sent.extend(readings);
            std::thread::sleep(Duration::from_millis(rng.u64(0..60)));
        }
        if kill < kills {
            let mut moving = run(&commands[rng.usize(0..commands.len())]);
            let moving = moving.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
            let mut moving = moving.unwrap();
            std::thread::sleep(Duration::from_millis(rng.u64(0..6000)));
            moving.kill().unwrap();
            moving.wait().unwrap();
        }
    }
    for service in &services {
        service.wait_settled(1, PATIENCE);
    }
    for arguments in &commands {
        let last = run(arguments).output().unwrap();
        let text =
            String::from_utf8(last.stdout).unwrap() + &String::from_utf8(last.stderr).unwrap();
        assert_eq!(last.status.code(), Some(0), "{arguments:?}: {text}");
        println!("{mode}, {kills} kills: {text}");
    }
    for some in sent.chunks(100) {
        let service = if mode == "bucket" { rng.usize(0..2) } else { 0 };
        if mode == "bucket" {
            post(service, some);
        } else {
            for owner in 0..2 {
                let own: Vec<_> = some.iter().filter(|r| r.0 == owner).cloned().collect();
                // An empty body is refused.
                if !own.is_empty() {
                    post(owner, &own);
                }
            }
        }
    }
    for service in &services {
        service.wait_settled(1, PATIENCE);
    }
    let wanted = sent
        .iter()
        .map(|(_, id, ts_ms, n)| ((moved_id(id, *ts_ms >= at_ms), *ts_ms, *n), 1))
        .collect();
    let from = chrono::DateTime::from_timestamp_millis(begin_ms - DAY).unwrap();
    let checked = run(&["reconcile".into(), "--from".into(), from.to_rfc3339()]);
    check_stored(&uri, &wanted, checked);
}

/// Everything that is stored is `wanted`, days and columns are those of it, and nothing is left of
/// former ids that moved wholly.
fn check_stored(uri: &str, wanted: &BTreeMap<(String, i64, i64), u32>, mut reconcile: Command) {
    let db = || async {
        let client = mongodb::Client::with_uri_str(uri).await.unwrap();
        client.database("hourbucket")
    };
    wait_until("no day is marked", PATIENCE, || {
        let marks = block_on(async { documents(&db().await, "rollup_pending", doc! {}).await });
        marks.is_empty().then_some(())
    });
    assert_eq!(&block_on(async { stored(&db().await).await }), wanted);
    let checked = reconcile.output().unwrap();
    let text =
        String::from_utf8(checked.stdout).unwrap() + &String::from_utf8(checked.stderr).unwrap();
    assert_eq!(checked.status.code(), Some(0), "{text}");
    assert!(
        text.contains("days in columns") && text.contains("0 differences"),
        "{text}"
    );
    block_on(async { derived_is_of(&db().await, wanted).await });
    for (collection, id) in [
        ("sensor_latest", "_id"),
        ("sensor_catalog", "_id"),
        ("sensor_buckets", "sensor_id"),
    ] {
        let former = doc! { id: { "$regex": "^(old|a)" } };
        let left = block_on(async { documents(&db().await, collection, former).await });
        assert_eq!(left, [], "{collection}");
    }
}
