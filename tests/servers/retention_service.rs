//! Tiered retention (`store.retention_readings`) of the service: the result for late readings, and
//! a removal that is killed.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test, with figures"
)]

use std::time::Duration;

use crate::support::fleet::now_ms;
use crate::support::mongod::{Mongod, unique_database};
use crate::support::proxy::{Direction, Proxy};
use crate::support::seed::{self, Seed};
use crate::support::service::Service;
use crate::support::{block_on, wait_until};
use futures_util::TryStreamExt;
use mongodb::bson::{Document, doc};

const HOUR: i64 = 3_600_000;
const PATIENCE: Duration = Duration::from_secs(120);

#[test]
fn late_readings_of_removed_hours_are_dead_letters_and_summaries_stay() {
    tiers("bucket");
}

#[test]
fn late_readings_of_removed_hours_are_dead_letters_and_summaries_stay_with_time_series() {
    tiers("timeseries");
}

/// An instance has readings of an old hour in its journal, and is killed while MongoDB does not
/// answer. Another one removes the readings of that hour. Then the journal is replayed.
fn tiers(mode: &str) {
    let uri = Mongod::shared().uri();
    let database = unique_database(&format!("tiers_{mode}"));
    let proxy = Proxy::start(Mongod::shared().port());
    let text = |more: &str| {
        format!(
            "store.mode = \"{mode}\"\nstore.timeout = \"1s\"\nflush.max_age = \"500ms\"\n\
             rollup.days = true\n\
             rollup.settle = \"1s\"\nrollup.late = \"1s\"\n{more}\n"
        )
    };
    let tiers = text("store.retention_readings = \"400d\"\nlimits.past = \"400d\"");
    let settings = |uri: &str| {
        [
            ("STORE__URI", uri.to_owned()),
            ("STORE__DATABASE", database.clone()),
        ]
    };
    let start_with = |text: &str, uri: &str| {
        let settings = settings(uri);
        Service::start(
            text,
            &settings
                .each_ref()
                .map(|(key, value)| (*key, value.as_str())),
        )
    };
    let mut first = start_with(&text("limits.past = \"1200d\""), &proxy.uri());
    let day = (now_ms() - 450 * 24 * HOUR).div_euclid(24 * HOUR) * 24 * HOUR;
    let start = day + 10 * HOUR;
    post(&first, start, &[0, 1, 2, 3, 4]);
    first.wait_settled(5, PATIENCE);
    proxy.stop(Some(Direction::ToServer));
    // One that is stored already, and one that is not.
    post(&first, start, &[2, 7]);
    first.kill9();

    let mut second = start_with(&tiers, &uri);
    if mode == "bucket" {
        wait_until("readings are removed", PATIENCE, || {
            (second.metrics().get("readings_removed_pages_total") >= 1.0).then_some(())
        });
        assert_eq!(second.metrics().get("readings_removal_lag_seconds"), 0.0);
    }
    proxy.stop(None);
    std::fs::write(first.dir().join("hourbucket.toml"), &tiers).unwrap();
    first.restart();
    // The journal may replay those that were stored, too: they are dead letters then, and still
    // counted once.
    wait_until("the late readings are dead letters", PATIENCE, || {
        let dead = dead(&uri, &database);
        assert!(
            dead.iter().all(|n| [0, 1, 2, 3, 4, 7].contains(n)),
            "{dead:?}"
        );
        (dead.contains(&2) && dead.contains(&7)).then_some(())
    });

    for service in [&first, &second] {
        answers(service, day, start);
    }
    wait_until("the day is computed from its hours", PATIENCE, || {
        (day_count(&uri, &database) == Some(5)).then_some(())
    });
    assert_eq!(
        (first.terminate(PATIENCE), second.terminate(PATIENCE)),
        (0, 0),
        "everything is settled: {}",
        first.log()
    );
    let page = first_page(&uri, &database);
    assert_eq!(
        page.get_bool("readings_removed").is_ok(),
        mode == "bucket",
        "{page}"
    );
    assert_eq!(
        (
            page.get_i32("count").unwrap(),
            page.contains_key("readings")
        ),
        (5, false),
        "{page}"
    );
    let (code, printed, _) = crate::support::seed::run(&database, &uri, &["reconcile"]);
    assert_eq!(code, 0, "{printed}");
}

/// Measurements count as removed only if they were: not because an earlier retention could have
/// removed them, or because a collection of the user had another one.
#[test]
fn what_no_retention_has_removed_is_stored_after_a_restart_with_time_series() {
    let day = "limits.past = \"24h\"\n";
    // Made longer; the readings come from a gateway that was offline for almost a day.
    unremoved(
        "longer",
        &format!("{day}store.retention = \"24h\""),
        &format!("{day}store.retention = \"7d\""),
        22,
        |_| {},
    );
    // A collection of the user.
    unremoved("own", day, day, 3, |db| {
        let options = doc! {
            "create": "sensor_readings", "expireAfterSeconds": 3600,
            "timeseries": { "timeField": "ts", "metaField": "meta" },
        };
        block_on(async {
            let client = mongodb::Client::with_uri_str(Mongod::shared().uri());
            let db = client.await.unwrap().database(db);
            db.run_command(options).await.unwrap();
        });
    });
}

/// Half of an hour's readings are stored; after a restart with other settings all of them are sent,
/// from the last to the first.
fn unremoved(name: &str, before: &str, after: &str, hours_ago: i64, prepare: impl Fn(&str)) {
    let uri = Mongod::shared().uri();
    let database = unique_database(&format!("unremoved_{name}"));
    prepare(&database);
    let text =
        |more: &str| format!("store.mode = \"timeseries\"\nflush.max_age = \"500ms\"\n{more}\n");
    let settings = [("STORE__URI", &*uri), ("STORE__DATABASE", &*database)];
    let mut service = Service::start(&text(before), &settings);
    let start = now_ms().div_euclid(HOUR) * HOUR - hours_ago * HOUR;
    let values: Vec<i64> = (0..20).collect();
    post(&service, start, &values[..10]);
    service.wait_stored(10, PATIENCE);
    assert_eq!(service.terminate(PATIENCE), 0, "{}", service.log());

    std::fs::write(service.dir().join("hourbucket.toml"), text(after)).unwrap();
    service.restart();
    let backwards: Vec<i64> = values.iter().rev().copied().collect();
    post(&service, start, &backwards);
    service.wait_settled(20, PATIENCE);
    assert_eq!(dead(&uri, &database), [0; 0], "{}", service.log());
    let (status, text) = service
        .get_admin(&format!(
            "/v1/sensors/late/readings?from={start}&to={}",
            start + HOUR
        ))
        .expect("an answer");
    let found: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, &found["complete"]), (200, &true.into()), "{text}");
    assert!(found.get("readings_until").is_none(), "{text}");
    let ns = found["readings"].as_array().unwrap().iter();
    let ns: Vec<i64> = ns.map(|r| r["values"]["n"].as_i64().unwrap()).collect();
    assert_eq!(ns, values);
    let page = first_page(&uri, &database);
    assert_eq!(page.get_i32("count").unwrap(), 20, "{page}");
    assert_eq!(service.terminate(PATIENCE), 0, "{}", service.log());
}

/// Posts readings of the sensor `late`, with these values in the seconds after `start`.
fn post(service: &Service, start: i64, values: &[i64]) {
    let line = |n: &i64| {
        format!(
            "{{\"sensor_id\":\"late\",\"ts\":{},\"n\":{n}}}\n",
            start + n * 1000
        )
    };
    let body: String = values.iter().map(line).collect();
    let (status, text) = service
        .post("/v1/readings", "application/x-ndjson", body.as_bytes())
        .expect("an answer");
    assert!(
        status == 200 && text.contains(&format!("\"accepted\":{}", values.len())),
        "{text}"
    );
}

/// The read API counts the stored readings, and reports the removed ones.
fn answers(service: &Service, day: i64, start: i64) {
    let get = |what: &str, range: &str| -> serde_json::Value {
        let (status, text) = service
            .get_admin(&format!("/v1/sensors/late/{what}?{range}"))
            .expect("an answer");
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).unwrap()
    };
    let range = format!("from={}&to={}", start, start + 2 * HOUR);
    let hours = get("hourly", &range);
    let hour = &hours["buckets"][0];
    assert_eq!(
        (hour["count"].as_i64(), hour["summary"]["n"]["sum"].as_f64()),
        (Some(5), Some(10.0)),
        "{hours}"
    );
    let days = get("daily", &format!("from={day}&to={}", day + 24 * HOUR));
    assert!(days.to_string().contains("\"count\":5"), "{days}");
    let readings = get("readings", &range);
    let until = readings["readings_until"]
        .as_str()
        .unwrap_or_else(|| panic!("{readings}"));
    let until = chrono::DateTime::parse_from_rfc3339(until)
        .unwrap()
        .timestamp_millis();
    assert_eq!(until, start + HOUR, "{readings}");
    let recent = get("readings", "");
    assert!(recent.get("readings_until").is_none(), "{recent}");
    // The second window covers the hour, which the first one cuts.
    let seconds = start / 1000;
    let path = format!(
        "/prometheus/api/v1/query_range?query=count_over_time(n%5B1h%5D)&step=2&start={}&end={}",
        seconds + 2,
        seconds + 4
    );
    let (status, text) = service.get_admin(&path).expect("an answer");
    assert_eq!(status, 200, "{text}");
    let counts: serde_json::Value = serde_json::from_str(&text).unwrap();
    let values = counts["data"]["result"][0]["values"].as_array();
    let last = values.and_then(|all| all.last());
    assert_eq!(
        last,
        Some(&serde_json::json!([seconds + 4, "5"])),
        "{counts}"
    );
    assert!(
        text.contains("readings before") && text.contains("were removed"),
        "{text}"
    );
}

/// The first document of `sensor_buckets`.
fn first_page(uri: &str, database: &str) -> Document {
    block_on(async {
        let db = mongodb::Client::with_uri_str(uri)
            .await
            .unwrap()
            .database(database);
        db.collection::<Document>("sensor_buckets")
            .find_one(doc! {})
            .await
            .unwrap()
            .unwrap()
    })
}

/// What the document of the day counts.
fn day_count(uri: &str, database: &str) -> Option<i64> {
    block_on(async {
        let db = mongodb::Client::with_uri_str(uri)
            .await
            .unwrap()
            .database(database);
        let day = db
            .collection::<Document>("sensor_days")
            .find_one(doc! { "sensor_id": "late" })
            .await
            .unwrap()?;
        day.get_i64("count")
            .or(day.get_i32("count").map(i64::from))
            .ok()
    })
}

/// The values `n` of the dead letters.
fn dead(uri: &str, database: &str) -> Vec<i64> {
    block_on(async {
        let db = mongodb::Client::with_uri_str(uri)
            .await
            .unwrap()
            .database(database);
        let dead = db.collection::<Document>("dead_letters");
        let found = dead.find(doc! { "reason": "readings_removed", "source": "store" });
        let mut values = vec![];
        for dead_letter in found.await.unwrap().try_collect::<Vec<_>>().await.unwrap() {
            let payload =
                String::from_utf8(dead_letter.get_binary_generic("payload").unwrap().clone())
                    .unwrap();
            let n = |line: &str| {
                serde_json::from_str::<serde_json::Value>(line).unwrap()["values"]["n"]
                    .as_i64()
                    .unwrap()
            };
            values.extend(payload.lines().map(n));
        }
        values.sort_unstable();
        values
    })
}

#[test]
fn days_whose_hours_have_expired_answer_whole_windows_and_the_others_are_warned_about() {
    const DAY: i64 = 24 * HOUR;
    let uri = Mongod::shared().uri();
    let database = unique_database("expired_hours");
    let settings = [("STORE__URI", &*uri), ("STORE__DATABASE", &*database)];
    let text = "store.mode = \"bucket\"\nflush.max_age = \"500ms\"\nrollup.days = true\n\
         rollup.settle = \"1s\"\nrollup.late = \"1s\"\n";
    let mut service = Service::start(&format!("{text}limits.past = \"90d\"\n"), &settings);
    let first = (now_ms() - 60 * DAY).div_euclid(DAY) * DAY;
    let seconds: Vec<i64> = (0..48).map(|hour| hour * 3600 + 600).collect();
    post(&service, first, &seconds);
    service.wait_settled(48, PATIENCE);
    // A day with a mark may not be current, so it is not used.
    wait_until("both days are stored and not marked", PATIENCE, || {
        (block_on(async {
            let client = mongodb::Client::with_uri_str(&uri).await.unwrap();
            let count = async |name, filter| {
                let collection = client.database(&database).collection::<Document>(name);
                collection.count_documents(filter).await.unwrap()
            };
            let days = count("sensor_days", doc! { "count": 24 }).await;
            (days, count("rollup_pending", doc! {}).await)
        }) == (2, 0))
            .then_some(())
    });
    assert_eq!(service.terminate(PATIENCE), 0, "{}", service.log());
    // As MongoDB does it once a minute.
    block_on(async {
        let client = mongodb::Client::with_uri_str(&uri).await.unwrap();
        let hours = client
            .database(&database)
            .collection::<Document>("sensor_buckets");
        hours.delete_many(doc! {}).await.unwrap();
    });
    let text = format!("{text}store.retention = \"30d\"\nlimits.past = \"1d\"\n");
    std::fs::write(service.dir().join("hourbucket.toml"), &text).unwrap();
    service.restart();

    let ask = |step: &str| {
        let path = format!(
            "/prometheus/api/v1/query_range?query=count_over_time(n%5B1d%5D)&step={step}&start={}&end={}",
            (first + DAY) / 1000,
            (first + 2 * DAY) / 1000
        );
        wait_until("the collections are prepared", PATIENCE, || {
            service
                .get_admin(&path)
                .filter(|(status, _)| *status == 200)
        })
        .1
    };
    let wanted = format!(
        "[[{},\"24\"],[{},\"24\"]]",
        (first + DAY) / 1000,
        (first + 2 * DAY) / 1000
    );
    let whole = ask("1d");
    assert!(
        whole.contains(&wanted) && !whole.contains("warnings"),
        "{whole}"
    );
    let cut = ask("12h");
    assert!(cut.contains(&wanted), "{cut}");
    assert!(
        cut.contains("hours before") && cut.contains("were removed (store.retention)"),
        "{cut}"
    );
}

/// Two instances remove the readings of old pages. Both get SIGKILL in the middle, and MongoDB too.
#[test]
fn a_removal_that_is_killed_goes_on_and_changes_no_summary() {
    const PAGES: u64 = 1200;
    let mut mongod = Mongod::start();
    // One for all: the client of `seed` works in the runtime that it began in.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let seed = runtime.block_on(Seed::at(mongod.uri(), "killed", None));
    let pages = (0..PAGES as i64).map(|n| {
        let start = seed::START + n / 20 * HOUR;
        seed::page(
            &format!("S{}", n % 20),
            start,
            0,
            false,
            &seed::readings(start, n % 5..n % 5 + 4),
        )
    });
    runtime.block_on(seed.pages(pages));
    let before = runtime.block_on(seed.summaries());
    let text =
        "store.mode = \"bucket\"\nstore.retention_readings = \"400d\"\nlimits.past = \"7d\"\n";
    let settings = [
        ("STORE__URI", &*mongod.uri()),
        ("STORE__DATABASE", &*seed.name),
    ];
    let mut services = [0; 2].map(|_| Service::start(text, &settings));
    let left = || {
        let pages = seed.db.collection::<Document>("sensor_buckets");
        runtime.block_on(async {
            pages
                .count_documents(doc! { "readings": { "$exists": true } })
                .await
                .ok()
        })
    };
    for kill in 1..=2 {
        wait_until("readings are removed", PATIENCE, || {
            (left()? <= PAGES - kill * PAGES / 4).then_some(())
        });
        services.iter_mut().for_each(Service::kill9);
        if kill == 2 {
            mongod.kill9();
            mongod.restart();
        }
        let left = left().expect("MongoDB answers");
        assert!(left > 0, "killed in the middle");
        println!("killed with {left} of {PAGES} pages left");
        services.iter_mut().for_each(Service::restart);
    }
    wait_until("all readings are removed", PATIENCE, || {
        (left()? == 0).then_some(())
    });
    wait_until("nothing is due any more", PATIENCE, || {
        (services
            .iter()
            .all(|s| s.metrics().get("readings_removal_lag_seconds") == 0.0))
        .then_some(())
    });
    assert_eq!(runtime.block_on(seed.summaries()), before);
    for service in &mut services {
        assert_eq!(service.terminate(PATIENCE), 0, "{}", service.log());
    }
    let (code, printed, _) = seed.run(&["reconcile", "--from", "2024-03-01", "--to", "2024-03-10"]);
    assert_eq!(code, 0, "{printed}");
}
