//! Silent sensors: by arrival and not by the times of readings, over restarts, and with two
//! instances.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support;
use crate::support::fleet::now_ms;
use crate::support::mongod::{Mongod, unique_database};
use crate::support::service::Service;
use serde_json::{Value, json};

/// `sensors.silent_after` is 8 s and arrivals are precise to 2 s, so silence is seen after 10 s,
/// and within a second more.
const SETTINGS: &str = "flush.max_age = \"200ms\"\nlog.level = \"warn\"\nlimits.past = \"36500d\"\n\
                        [sensors]\nsilent_after = \"8s\"\nretired_after = \"1h\"\n";
const SEEN_WITHIN: Duration = Duration::from_secs(40);
const DAY: i64 = 86_400_000;

fn start(database: &str) -> Service {
    Service::start(
        SETTINGS,
        &[
            ("STORE__URI", &Mongod::shared().uri()),
            ("STORE__DATABASE", database),
        ],
    )
}

fn send(service: &Service, sensor: &str, ts_ms: i64) {
    let body =
        json!({ "sensor_id": sensor, "ts": ts_ms, "values": { "temp": ts_ms % 100 } }).to_string();
    let answer = service.post("/v1/readings", "application/json", body.as_bytes());
    assert_eq!(
        answer.as_ref().map(|(status, _)| *status),
        Some(200),
        "{answer:?}"
    );
}

fn get(service: &Service, path: &str) -> Option<Value> {
    let (status, text) = service.get_admin(path)?;
    (status == 200).then(|| serde_json::from_str(&text).unwrap())
}

/// The ids of `/v1/sensors?silent=true`; `None` if they are not known yet.
fn silent(service: &Service) -> Option<Vec<String>> {
    let list = get(service, "/v1/sensors?silent=true")?;
    let sensors = list["sensors"].as_array().unwrap();
    assert!(sensors.iter().all(|s| s["silent"] == true), "{list}");
    Some(
        sensors
            .iter()
            .map(|s| s["sensor_id"].as_str().unwrap().to_owned())
            .collect(),
    )
}

/// Sends `steady` with the current time, and `backfill` with times eight years ago, until `wanted`
/// are silent, and checks that no others ever are.
fn until_silent(to: &Service, at: &[&Service], wanted: &[&str]) {
    let begun = Instant::now();
    let mut right = 0;
    // For a second of looks in a row: a first look may come before the silence is judged again.
    while right < 5 {
        let now = now_ms();
        send(to, "steady", now);
        send(to, "backfill", now - 3000 * DAY);
        std::thread::sleep(Duration::from_millis(200));
        let found: Vec<Vec<String>> = at.iter().filter_map(|service| silent(service)).collect();
        for ids in &found {
            assert!(
                ids.iter().all(|id| wanted.contains(&id.as_str())),
                "{ids:?}, not only {wanted:?}"
            );
        }
        right = if found.len() == at.len() && found.iter().all(|ids| ids == wanted) {
            right + 1
        } else {
            0
        };
        assert!(
            begun.elapsed() < SEEN_WITHIN,
            "{found:?} and not {wanted:?} are silent"
        );
    }
}

#[test]
fn silence_is_by_arrival_and_survives_restarts_and_downtime() {
    let database = unique_database("silence");
    let mut service = start(&database);
    send(&service, "quiet", now_ms());
    until_silent(&service, &[&service], &[]);
    until_silent(&service, &[&service], &["quiet"]);
    let metrics = service.metrics();
    assert_eq!(
        (metrics.get("sensors_known"), metrics.get("sensors_silent")),
        (3.0, 1.0)
    );
    let fleet = get(&service, "/v1/fleet").unwrap();
    assert_eq!(
        (&fleet["known"], &fleet["silent_total"]),
        (&json!(3), &json!(1)),
        "{fleet}"
    );
    assert_eq!(fleet["silent"][0]["sensor_id"], "quiet", "{fleet}");
    assert_eq!(fleet["silent"].as_array().unwrap().len(), 1, "{fleet}");

    // A restart forgets nothing, and silent sensors are known before they could have become silent
    // again.
    service.kill9();
    service.restart();
    let begun = Instant::now();
    until_silent(&service, &[&service], &["quiet"]);
    assert!(
        begun.elapsed() < Duration::from_secs(8),
        "{:?}",
        begun.elapsed()
    );

    // While the service is down nothing can arrive, for longer than `silent_after`: no sensor has
    // become silent.
    service.kill9();
    std::thread::sleep(Duration::from_secs(12));
    service.restart();
    support::wait_until("silent sensors are known", SEEN_WITHIN, || silent(&service));
    assert_eq!(silent(&service).unwrap(), ["quiet"]);
    until_silent(&service, &[&service], &["quiet"]);

    send(&service, "quiet", now_ms());
    support::wait_until("it has reported", SEEN_WITHIN, || {
        silent(&service)?.is_empty().then_some(())
    });
    let page = get(&service, "/v1/sensors?prefix=qui").unwrap();
    assert_eq!(page["sensors"][0]["silent"], false, "{page}");
    assert_eq!(
        page["sensors"][0]["fields"],
        json!({ "temp": ["number"] }),
        "{page}"
    );
}

#[test]
fn two_instances_agree_on_the_silent_sensors() {
    let database = unique_database("silence2");
    let one = start(&database);
    let two = start(&database);
    let stop = AtomicBool::new(false);
    let both = [&one, &two];
    std::thread::scope(|scope| {
        // Only the second instance hears these.
        let other = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                send(&two, "other", now_ms());
                std::thread::sleep(Duration::from_millis(300));
            }
        });
        send(&one, "quiet", now_ms());
        until_silent(&one, &both, &["quiet"]);
        assert_eq!(one.metrics().get("sensors_known"), 4.0);
        stop.store(true, Ordering::Relaxed);
        other.join().unwrap();
    });
    until_both(&one, &two);
    for service in both {
        assert_eq!(service.metrics().get("sensors_silent"), 2.0);
    }
}

/// `other` becomes silent for both, also for the one that never heard it.
fn until_both(one: &Service, two: &Service) {
    let begun = Instant::now();
    while [one, two]
        .iter()
        .any(|service| silent(service).unwrap() != ["other", "quiet"])
    {
        let now = now_ms();
        send(one, "steady", now);
        send(one, "backfill", now - 3000 * DAY);
        assert!(begun.elapsed() < SEEN_WITHIN);
        std::thread::sleep(Duration::from_millis(200));
    }
    // The gauges are set after the list changes.
    std::thread::sleep(Duration::from_secs(2));
}
