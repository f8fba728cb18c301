//! The read API with a real MongoDB, in both modes: a reading that was answered with 200 is
//! returned immediately and exactly once, across pages and hours; lists, formats and cursors.

#![allow(clippy::unwrap_used, reason = "a test")]

use super::promql::escaped;
use crate::support;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::support::block_on;
use crate::support::fleet::now_ms;
use crate::support::mongod::{Mongod, unique_database};
use crate::support::service::Service;
use mongodb::bson::{Document, doc};
use serde_json::{Value, json};

pub(super) const PATIENCE: Duration = Duration::from_secs(60);
const MINUTE: i64 = 60_000;

fn start(mode: &str, database: &str, more: &str) -> Service {
    let uri = Mongod::shared().uri();
    let text = format!("store.mode = \"{mode}\"\n{more}");
    let service = Service::start(
        &text,
        &[("STORE__URI", &uri), ("STORE__DATABASE", database)],
    );
    prepared(&service);
    service
}

/// Before its collections are prepared it accepts readings, but answers no queries.
pub(super) fn prepared(service: &Service) {
    support::wait_until("the collections are prepared", PATIENCE, || {
        let (_, text) = service.get_admin("/readyz")?;
        (!serde_json::from_str::<Value>(&text).ok()?["mode"].is_null()).then_some(())
    });
}

#[track_caller]
pub(super) fn get(service: &Service, path: &str) -> Value {
    let (status, text) = service.get_admin(path).unwrap();
    assert_eq!(status, 200, "{path}: {text}");
    serde_json::from_str(&text).unwrap()
}

/// The answer once it is complete: a service that gets too little of the processor may lag by more
/// than the query waits for, and says so.
#[track_caller]
pub(super) fn get_complete(service: &Service, path: &str) -> Value {
    support::wait_until("the answer is complete", PATIENCE, || {
        let answer = get(service, path);
        (answer["complete"] == true).then_some(answer)
    })
}

#[track_caller]
pub(super) fn post(service: &Service, lines: &str) {
    let (status, text) = service
        .post("/v1/readings", "application/x-ndjson", lines.as_bytes())
        .unwrap();
    assert_eq!(status, 200, "{text}");
}

/// Every page of a list of readings: time and `n`.
fn all_readings(
    service: &Service,
    sensor: &str,
    from: i64,
    to: i64,
    limit: usize,
) -> Vec<(String, i64)> {
    let mut found = vec![];
    let mut after = String::new();
    loop {
        let path =
            format!("/v1/sensors/{sensor}/readings?from={from}&to={to}&limit={limit}{after}");
        let answer = get_complete(service, &path);
        let readings = answer["readings"].as_array().unwrap();
        assert!(readings.len() <= limit);
        found.extend(readings.iter().map(|r| {
            (
                r["ts"].as_str().unwrap().to_owned(),
                r["values"]["n"].as_i64().unwrap(),
            )
        }));
        match answer["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => return found,
        }
    }
}

/// Posts readings and immediately queries them, repeatedly, while pages are filled, sealed and
/// written and minutes end.
fn immediately_and_once(mode: &str) {
    let database = unique_database(&format!("read_{mode}"));
    let text = "bucket.span = \"1m\"\nbucket.max_readings = 20\nflush.max_age = \"60ms\"\n\
        log.level = \"warn\"\n";
    let service = start(mode, &database, text);
    let first = now_ms() / MINUTE * MINUTE - 5 * MINUTE;
    let mut rng = fastrand::Rng::with_seed(7);
    // Several readings per step, some late, some in one millisecond; six minutes in a few seconds.
    let (mut sent, mut ts): (Vec<(i64, i64)>, i64) = (vec![], first);
    let to = first + 8 * MINUTE;
    let steps = 260;
    for step in 0..steps {
        let mut lines = String::new();
        for _ in 0..rng.usize(1..6) {
            ts += rng.i64(0..1000);
            let at = if rng.u8(0..8) == 0 {
                (ts - rng.i64(0..2 * MINUTE)).max(first)
            } else {
                ts
            };
            let n = sent.len() as i64;
            sent.push((at, n));
            lines += &format!("{{\"sensor_id\":\"a/b c\",\"ts\":{at},\"n\":{n},\"x\":0.5}}\n");
        }
        post(&service, &lines);
        let since = if step % 20 == 0 {
            first
        } else {
            (ts - MINUTE).max(first)
        };
        let found = all_readings(&service, "a%2Fb%20c", since, to, 37 + rng.usize(0..200));
        let mut returned: Vec<i64> = found.iter().map(|(_, n)| *n).collect();
        assert!(
            found.is_sorted_by_key(|(ts, _)| ts.clone()),
            "step {step}: not in order"
        );
        returned.sort_unstable();
        let mut expected: Vec<i64> = sent
            .iter()
            .filter(|(at, _)| *at >= since)
            .map(|(_, n)| *n)
            .collect();
        expected.sort_unstable();
        assert_eq!(returned, expected, "step {step}");
        if step % 10 == 0 {
            hours_fit(&service, first, to, &sent);
        }
    }
    let metrics = service.wait_settled(sent.len() as u64, PATIENCE);
    assert!(
        metrics.get("store_statements_total") > 50.0,
        "hardly anything was written meanwhile"
    );
    assert!(
        metrics.labelled("http_requests_total", "route", "/v1/sensors/{id}/readings")
            >= f64::from(steps)
    );
    hours_fit(&service, first, to, &sent);
    // The same after a restart, from the store alone.
    let mut service = service;
    assert_eq!(service.terminate(PATIENCE), 0);
    service.restart();
    prepared(&service);
    assert_eq!(
        all_readings(&service, "a%2Fb%20c", first, to, 1000).len(),
        sent.len()
    );
    hours_fit(&service, first, to, &sent);
}

#[track_caller]
fn hours_fit(service: &Service, from: i64, to: i64, sent: &[(i64, i64)]) {
    let answer = get(
        service,
        &format!("/v1/sensors/a%2Fb%20c/hourly?from={from}&to={to}"),
    );
    let mut expected: BTreeMap<i64, (i64, i64, i64)> = BTreeMap::new();
    for (at, n) in sent {
        let bucket = expected
            .entry(at / MINUTE * MINUTE)
            .or_insert((0, i64::MAX, 0));
        *bucket = (bucket.0 + 1, bucket.1.min(*n), bucket.2 + n);
    }
    let buckets = answer["buckets"].as_array().unwrap();
    assert_eq!(buckets.len(), expected.len(), "{answer}");
    for (bucket, (count, min, sum)) in buckets.iter().zip(expected.values()) {
        let n = &bucket["summary"]["n"];
        assert_eq!(
            (&bucket["count"], &n["min"], &n["sum"], &n["count"]),
            (&json!(count), &json!(min), &json!(sum), &json!(count))
        );
        assert_eq!(n["avg"].as_f64().unwrap(), *sum as f64 / *count as f64);
        assert_eq!(bucket["summary"]["x"]["max"], json!(0.5));
    }
}

#[test]
fn acknowledged_readings_are_returned_immediately_and_once_from_buckets() {
    immediately_and_once("bucket");
}

#[test]
fn acknowledged_readings_are_returned_immediately_and_once_from_time_series() {
    immediately_and_once("timeseries");
}

#[test]
fn sensors_only_in_memory_are_listed_with_their_last_values() {
    for mode in ["bucket", "timeseries"] {
        let database = unique_database("read_list");
        let service = start(mode, &database, "flush.max_age = \"200ms\"\n");
        let now = now_ms();
        let names = ["Z", "a", "a/1", "a/2", "ab", "b", "ä", "ü/1", "z"];
        for (i, name) in names.iter().enumerate().step_by(2) {
            post(
                &service,
                &format!(
                    "{{\"sensor_id\":\"{name}\",\"ts\":{now},\"n\":{i},\"old\":true,\"tags\":{{\"site\":\"x\"}}}}\n"
                ),
            );
        }
        service.wait_settled(5, PATIENCE);
        // From here on, nothing is stored for a while.
        let mut service = service;
        assert_eq!(service.terminate(PATIENCE), 0);
        drop(service);
        let service = start(mode, &database, "flush.max_age = \"1h\"\n");
        for (i, name) in names.iter().enumerate() {
            post(
                &service,
                &format!(
                    "{{\"sensor_id\":\"{name}\",\"ts\":{},\"n\":{}}}\n",
                    now + 1000,
                    i + 100
                ),
            );
        }
        for limit in [1, 2, 3, 100] {
            let (mut found, mut after): (Vec<Value>, _) = (vec![], String::new());
            loop {
                let answer = get(&service, &format!("/v1/sensors?limit={limit}{after}"));
                found.extend(answer["sensors"].as_array().unwrap().iter().cloned());
                let Some(next) = answer["next"].as_str() else {
                    break;
                };
                after = format!(
                    "&after={}",
                    next.replace('/', "%2F")
                        .replace('ä', "%C3%A4")
                        .replace('ü', "%C3%BC")
                );
            }
            let ids: Vec<&str> = found
                .iter()
                .map(|s| s["sensor_id"].as_str().unwrap())
                .collect();
            assert_eq!(
                ids,
                ["Z", "a", "a/1", "a/2", "ab", "b", "z", "ä", "ü/1"],
                "{mode} {limit}: by their bytes"
            );
            for sensor in &found {
                let i = names
                    .iter()
                    .position(|n| *n == sensor["sensor_id"])
                    .unwrap();
                assert_eq!(sensor["last"]["n"]["value"], json!(i + 100), "{sensor}");
                assert_eq!(sensor["last"]["old"].is_object(), i % 2 == 0, "{sensor}");
                assert_eq!(sensor["last_ts"], sensor["last"]["n"]["ts"]);
            }
            assert_eq!(
                found.iter().find(|s| s["sensor_id"] == "a/1").unwrap()["tags"],
                json!({"site": "x"})
            );
        }
        let ids = |path: &str| -> Vec<String> {
            let answer = get(&service, path);
            answer["sensors"]
                .as_array()
                .unwrap()
                .iter()
                .map(|s| s["sensor_id"].as_str().unwrap().to_owned())
                .collect()
        };
        assert_eq!(ids("/v1/sensors?prefix=a"), ["a", "a/1", "a/2", "ab"]);
        assert_eq!(ids("/v1/sensors?prefix=a%2F&after=a%2F1"), ["a/2"]);
        assert_eq!(
            ids("/v1/sensors?prefix=a&after=Z"),
            ["a", "a/1", "a/2", "ab"]
        );
        assert!(ids("/v1/sensors?prefix=a&after=b").is_empty());
        assert!(ids("/v1/sensors?prefix=none").is_empty());
        assert_eq!(ids("/v1/sensors?search=A"), ["a", "a/1", "a/2", "ab"]);
        let tagged = ["Z", "a/1", "ab", "z", "ä"];
        assert_eq!(ids("/v1/sensors?search=SITE%3DX"), tagged);
        assert_eq!(ids("/v1/sensors?tag=site%3Dx"), tagged);
        assert!(ids("/v1/sensors?tag=site%3Dx&tag=floor%3D1").is_empty());
        pages_go_back(&service);
        one_sensor_and_what_is_unknown(&service);
        fleet_and_dead_letters(&service, &names);
    }
}

/// One sensor; an unknown one is 404, an unknown parameter 400.
fn one_sensor_and_what_is_unknown(service: &Service) {
    let one = get(service, "/v1/sensors/a%2F1");
    assert_eq!(
        (&one["sensor_id"], &one["tags"]["site"]),
        (&json!("a/1"), &json!("x"))
    );
    for path in ["", "/hourly", "/daily", "/readings"] {
        let (status, text) = service
            .get_admin(&format!("/v1/sensors/none{path}"))
            .unwrap();
        assert!(
            status == 404 && text.contains("unknown_sensor"),
            "{path}: {status} {text}"
        );
        // A sensor that has no readings in the time range is known.
        let (status, text) = service
            .get_admin(&format!(
                "/v1/sensors/a%2F1{path}{}",
                if path.is_empty() { "" } else { "?from=0&to=1" }
            ))
            .unwrap();
        assert_eq!(status, 200, "{path}: {text}");
    }
    for (path, known) in [
        ("/v1/sensors?site=x", "`tag`"),
        ("/v1/sensors/a%2F1?from=0", "from"),
        ("/v1/sensors/a%2F1/readings?start=0", "`from`"),
        ("/v1/sensors/a%2F1/hourly?start=0", "`to`"),
        ("/v1/dead-letters?sensor=a", "`reason`"),
        ("/v1/fleet?limit=1", "limit"),
        ("/v1/sensors?tag=site", "NAME=VALUE"),
        ("/v1/sensors?sort=temp", "last_arrival"),
        ("/v1/sensors?after=a&before=b", "together"),
        ("/v1/sensors?sort=first_ts&after=b", "`next`"),
    ] {
        let (status, text) = service.get_admin(path).unwrap();
        assert!(
            status == 400 && text.contains(known),
            "{path}: {status} {text}"
        );
    }
}

/// In every order, `next` leads through all sensors, and `previous` back through the same pages.
fn pages_go_back(service: &Service) {
    let forward = ["Z", "a", "a/1", "a/2", "ab", "b", "z", "ä", "ü/1"];
    let mut backward = forward;
    backward.reverse();
    for (sort, wanted) in [
        ("id", Some(forward)),
        ("-id", Some(backward)),
        ("last_arrival", None),
        ("-first_ts", None),
    ] {
        let page = |cursor: Option<(&str, &str)>| {
            let place = cursor.map(|(name, at)| format!("&{name}={}", escaped(at)));
            let path = format!(
                "/v1/sensors?limit=4&sort={sort}{}",
                place.unwrap_or_default()
            );
            get(service, &path)
        };
        let ids = |page: &Value| -> Vec<String> {
            let sensors = page["sensors"].as_array().unwrap().iter();
            sensors
                .map(|s| s["sensor_id"].as_str().unwrap().to_owned())
                .collect()
        };
        let mut pages = vec![page(None)];
        while let Some(next) = pages.last().unwrap()["next"].as_str() {
            let next = page(Some(("after", next)));
            pages.push(next);
        }
        let all: Vec<String> = pages.iter().flat_map(ids).collect();
        match wanted {
            Some(wanted) => assert_eq!(all, wanted, "{sort}"),
            None => {
                let mut sorted = all.clone();
                sorted.sort();
                assert_eq!(sorted, forward, "{sort}");
            }
        }
        assert!(pages[0]["previous"].is_null(), "{sort}");
        for (before, this) in pages.iter().zip(&pages[1..]) {
            let previous = page(Some(("before", this["previous"].as_str().unwrap())));
            assert_eq!(ids(&previous), ids(before), "{sort}");
        }
    }
}

/// Late readings are stored behind the newest one, in a later write.
#[test]
fn the_last_values_are_the_newest_although_late_readings_follow() {
    for mode in ["bucket", "timeseries"] {
        let database = unique_database("read_late");
        let mut service = start(mode, &database, "flush.max_age = \"200ms\"\n");
        let newest = now_ms() / (60 * MINUTE) * (60 * MINUTE) - 10 * MINUTE;
        post(
            &service,
            &format!("{{\"sensor_id\":\"late\",\"ts\":{newest},\"n\":99}}\n"),
        );
        service.wait_settled(1, PATIENCE);
        let late: String = (1..=25)
            .map(|i| {
                let ts = newest - i * 10_000;
                format!("{{\"sensor_id\":\"late\",\"ts\":{ts},\"n\":{i}}}\n")
            })
            .collect();
        post(&service, &late);
        service.wait_settled(26, PATIENCE);
        // From the store alone.
        assert_eq!(service.terminate(PATIENCE), 0);
        service.restart();
        prepared(&service);
        let sensor = support::wait_until("the sensor is listed", PATIENCE, || {
            get(&service, "/v1/sensors")["sensors"].get(0).cloned()
        });
        assert_eq!(sensor["last"]["n"]["value"], 99, "{mode}: {sensor}");
        assert_eq!(
            sensor["last"]["n"]["ts"], sensor["last_ts"],
            "{mode}: {sensor}"
        );
    }
}

fn fleet_and_dead_letters(service: &Service, names: &[&str]) {
    let (status, _) = service
        .post("/v1/hooks/json", "application/json", b"{broken")
        .unwrap();
    assert_eq!(status, 202);
    let (status, _) = service
        .post("/v1/hooks/json", "application/json", b"\xff\xfe")
        .unwrap();
    assert_eq!(status, 202);
    let fleet = get(service, "/v1/fleet");
    assert_eq!(fleet["sensors"], json!(names.len()), "{fleet}");
    assert_eq!(fleet["busiest"].as_array().unwrap().len(), names.len());
    assert!(fleet["busiest"][0]["readings_per_minute"].as_f64().unwrap() > 0.0);
    let rejected = fleet["rejected"].as_array().unwrap();
    assert!(
        rejected
            .iter()
            .any(|r| r["source"] == "http" && r["reason"] == "invalid_json"),
        "{fleet}"
    );
    let dead_letters = support::wait_until("the dead letters are stored", PATIENCE, || {
        let answer = get(service, "/v1/dead-letters");
        (answer["letters"].as_array()?.len() >= 2).then_some(answer)
    });
    let dead_letters = dead_letters["letters"].as_array().unwrap();
    let base64 = dead_letters
        .iter()
        .find(|l| l["payload_base64"].is_string())
        .unwrap();
    assert_eq!(
        (&base64["payload_base64"], &base64["payload_bytes"]),
        (&json!("//4="), &json!(2))
    );
    assert!(
        dead_letters
            .iter()
            .any(|l| l["payload_text"] == "{broken" && l["source"] == "http")
    );
    let mut ids = BTreeSet::new();
    let mut before = String::new();
    loop {
        let answer = get(service, &format!("/v1/dead-letters?limit=1{before}"));
        ids.extend(
            answer["letters"]
                .as_array()
                .unwrap()
                .iter()
                .map(|l| l["id"].as_str().unwrap().to_owned()),
        );
        let Some(next) = answer["next"].as_str() else {
            break;
        };
        before = format!("&before={next}");
    }
    assert_eq!(
        ids.len(),
        dead_letters.len(),
        "each once, with pages of one"
    );
    assert!(
        get(service, "/v1/dead-letters?reason=nothing")["letters"]
            .as_array()
            .unwrap()
            .is_empty()
    );
}

#[test]
fn formats_and_old_buckets_of_the_other_mode() {
    let database = unique_database("read_forms");
    let mut service = start("bucket", &database, "flush.max_age = \"100ms\"\n");
    let first = now_ms() / MINUTE * MINUTE - 3 * 3_600_000;
    post(
        &service,
        &format!("{{\"sensor_id\":\"S\",\"ts\":{first},\"n\":1,\"t\":\"a,\\\"b\\\"\"}}\n"),
    );
    post(
        &service,
        &format!("{{\"sensor_id\":\"S\",\"ts\":{},\"n\":2}}\n", first + 1),
    );
    service.wait_settled(2, PATIENCE);
    assert_eq!(service.terminate(PATIENCE), 0);
    drop(service);
    // From here on in the other mode: the sensor has buckets of both modes, and a leftover
    // measurement of a conversion.
    let service = start("timeseries", &database, "flush.max_age = \"100ms\"\n");
    post(
        &service,
        &format!(
            "{{\"sensor_id\":\"S\",\"ts\":{},\"n\":3}}\n",
            first + 3_600_000
        ),
    );
    post(
        &service,
        &format!("{{\"sensor_id\":\"S\",\"ts\":{},\"n\":4}}\n", first + 2),
    );
    service.wait_settled(2, PATIENCE);
    let uri = Mongod::shared().uri();
    let name = database.clone();
    block_on(async move {
        let client = mongodb::Client::with_uri_str(uri).await.unwrap();
        let left = doc! { "ts": mongodb::bson::DateTime::from_millis(first), "meta": { "sensor_id": "S" }, "n": 1i64 };
        client
            .database(&name)
            .collection::<Document>("sensor_readings")
            .insert_one(left)
            .await
            .unwrap();
    });
    let path = format!("/v1/sensors/S/readings?from={first}");
    let ns: Vec<Value> = get(&service, &path)["readings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r["values"]["n"].clone())
        .collect();
    assert_eq!(json!(ns), json!([1, 2, 4, 3]));
    let hours = get(&service, &format!("/v1/sensors/S/hourly?from={first}"));
    let counts: Vec<&Value> = hours["buckets"]
        .as_array()
        .unwrap()
        .iter()
        .map(|b| &b["count"])
        .collect();
    assert_eq!(json!(counts), json!([3, 1]), "{hours}");
    let (_, csv) = service
        .get_admin(&format!("{path}&format=csv&limit=2"))
        .unwrap();
    let lines: Vec<&str> = csv.split("\r\n").collect();
    assert_eq!((lines[0], lines.len()), ("ts,n,t", 4), "{csv}");
    assert!(
        lines[1].ends_with("Z,1,\"a,\"\"b\"\"\"") && lines[2].ends_with("Z,2,"),
        "{csv}"
    );
    let (_, ndjson) = service.get_admin(&format!("{path}&format=ndjson")).unwrap();
    assert_eq!(ndjson.lines().count(), 4);
    for wrong in [
        "limit=0",
        "limit=100001",
        "after=x",
        "from=x",
        "format=xml",
        "from=5&to=4",
        "to=99999999999999999999",
    ] {
        let (status, text) = service
            .get_admin(&format!("/v1/sensors/S/readings?{wrong}"))
            .unwrap();
        assert_eq!(status, 400, "{wrong}: {text}");
    }
    let (status, _) = service.get_admin("/v1/sensors/S/hourly?from=0").unwrap();
    assert_eq!(status, 400, "half a million hours");
    for (query, expected) in [
        ("format=csv&csv=excel", 200),
        ("format=json&csv=excel", 400),
        ("format=csv&csv=x", 400),
    ] {
        assert_eq!(
            service
                .get_admin(&format!("/v1/sensors/S/readings?{query}"))
                .unwrap()
                .0,
            expected,
            "{query}"
        );
    }
}
