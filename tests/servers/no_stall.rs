//! One unusual sensor must not delay the others: a backlog of many hours over a slow line, and an
//! hour that is too large to be read within `store.timeout`. Real MongoDB with a proxy before it,
//! the binary.
//!
//! Long runs: `cargo test --test servers no_stall:: -- --ignored --nocapture --test-threads 1`.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test, with figures"
)]

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::support::fleet::now_ms;
use crate::support::large::{self, STEP_MS, counted, summed};
use crate::support::mongod::{Mongod, unique_database};
use crate::support::proxy::{Direction, Proxy};
use crate::support::service::Service;
use crate::support::steady::Steady;
use crate::support::stored::{self, Stored};
use crate::support::{block_on, wait_until};
use config::StoreMode;
use mongodb::bson::{Document, doc};

const HOUR_MS: i64 = 3_600_000;
const MAX_AGE: Duration = Duration::from_secs(1);
/// The maximum wait of a reading of another sensor (docs/design.md, section 1).
const LIMIT: Duration = Duration::from_secs(15 + MAX_AGE.as_secs());
/// For a large hour, on a machine with other work.
const PATIENCE: Duration = Duration::from_secs(180);
const OTHERS: usize = 40;
const BACKLOG: &str = "backlog";
const LARGE: &str = "large";

/// The tests measure times on two cores, so they do not run in parallel.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A service with a slow line to the store, and sensors that send continuously.
struct Rig {
    /// Must live as long as the service.
    _proxy: Proxy,
    service: Service,
    steady: Steady,
    uri: String,
    database: String,
}

impl Rig {
    fn start(database: String, mode: &str, round_trip: Duration, settings: &str) -> Rig {
        let uri = Mongod::shared().uri();
        let proxy = Proxy::start(Mongod::shared().port());
        proxy.round_trip(round_trip);
        let text = format!("store.mode = \"{mode}\"\nflush.max_age = \"{MAX_AGE:?}\"\n{settings}");
        let environment = [
            ("STORE__URI", proxy.uri()),
            ("STORE__DATABASE", database.clone()),
        ];
        let service = Service::start(
            &text,
            &environment
                .each_ref()
                .map(|(key, value)| (*key, value.as_str())),
        );
        let steady = Steady::start(service.http(), uri.clone(), &database, OTHERS, LIMIT);
        wait_until(
            "the first readings of the other sensors are stored",
            LIMIT,
            || (summed(&uri, &database, "steady-0") > 0).then_some(()),
        );
        Rig {
            _proxy: proxy,
            service,
            steady,
            uri,
            database,
        }
    }

    /// Posts readings, all of which are accepted.
    fn post(&self, readings: &[Stored]) {
        let line = |(sensor, ts, n): &Stored| {
            format!("{{\"sensor_id\":\"{sensor}\",\"ts\":{ts},\"n\":{n}}}\n")
        };
        let body: String = readings.iter().map(line).collect();
        let answer = self
            .service
            .post("/v1/readings", "application/x-ndjson", body.as_bytes());
        let (status, text) = answer.expect("an answer");
        assert_eq!(status, 200, "{text}");
        assert!(
            text.contains(&format!("\"accepted\":{}", readings.len())),
            "{text}"
        );
    }

    /// Waits until the summaries of `sensor` count this many readings, and checks the other sensors
    /// meanwhile.
    #[track_caller]
    fn wait_counted(&self, sensor: &str, count: i64, within: Duration) -> Duration {
        let begun = Instant::now();
        wait_until(
            &format!("{count} readings of {sensor} are stored"),
            within,
            || {
                self.steady.check();
                (summed(&self.uri, &self.database, sensor) == count).then_some(())
            },
        );
        begun.elapsed()
    }
}

#[test]
fn months_of_hours_of_one_sensor_delay_no_other() {
    backlog(
        "bucket",
        2000,
        Duration::from_millis(20),
        Duration::from_secs(120),
    );
}

#[test]
fn months_of_hours_of_one_sensor_delay_no_other_with_time_series() {
    backlog(
        "timeseries",
        2000,
        Duration::from_millis(20),
        Duration::from_secs(120),
    );
}

#[test]
#[ignore = "a long run: up to ten minutes"]
fn a_year_of_hours_over_a_long_line() {
    backlog(
        "bucket",
        8700,
        Duration::from_millis(100),
        Duration::from_secs(600),
    );
}

#[test]
#[ignore = "a long run: up to ten minutes"]
fn a_year_of_hours_over_a_long_line_with_time_series() {
    backlog(
        "timeseries",
        8700,
        Duration::from_millis(100),
        Duration::from_secs(600),
    );
}

/// A gateway was offline for so many hours and sends its backlog, one reading per hour.
fn backlog(mode: &str, hours: i64, round_trip: Duration, within: Duration) {
    let _one = one_at_a_time();
    let rig = Rig::start(
        unique_database(&format!("year_{mode}")),
        mode,
        round_trip,
        "",
    );
    let now = now_ms();
    let backlog: Vec<Stored> = (1..=hours)
        .map(|n| (BACKLOG.to_owned(), now - n * HOUR_MS, n))
        .collect();
    rig.post(&backlog);
    let took = rig.wait_counted(BACKLOG, hours, within);
    let (sent, worst) = rig.steady.finish();
    println!("{mode}, {round_trip:?}: stored after {took:?}; the others waited {worst:?} at most");
    stored::exactly_once(
        &stored::readings(&rig.uri, &rig.database),
        sent.into_iter().chain(backlog),
    );
}

#[test]
fn a_large_hour_is_continued_after_a_restart() {
    large_pages(250_000);
}

#[test]
fn a_large_hour_is_continued_after_a_restart_with_time_series() {
    large_measurements(250_000);
}

#[test]
#[ignore = "a long run: some minutes"]
fn an_hour_of_a_million_readings_is_continued_after_a_restart() {
    large_pages(1_000_000);
}

#[test]
#[ignore = "a long run: some minutes"]
fn an_hour_of_a_million_readings_is_continued_after_a_restart_with_time_series() {
    large_measurements(1_000_000);
}

fn large_pages(readings: i64) {
    let _one = one_at_a_time();
    let uri = Mongod::shared().uri();
    let database = unique_database("large_pages");
    let start = last_hour();
    large::prepare(&uri, &database, StoreMode::Bucket);
    // The last page is half full.
    let count = readings - 500;
    large::paged_hour(&uri, &database, LARGE, start, count, 1000);
    a_large_hour("bucket", database, start, count);
}

fn large_measurements(count: i64) {
    let _one = one_at_a_time();
    let uri = Mongod::shared().uri();
    let database = unique_database("large");
    let start = last_hour();
    large::prepare(&uri, &database, StoreMode::Timeseries);
    large::measured_hours(&uri, &database, &[LARGE.to_owned()], start, count);
    a_large_hour("timeseries", database, start, count);
}

/// Not the current hour: an unknown part of it is over. For a service that has just started, every
/// hour before its start is equivalent.
fn last_hour() -> i64 {
    (now_ms() / HOUR_MS - 1) * HOUR_MS
}

/// An hour of `count` readings is stored, and the service has just started and has not loaded it.
/// Reading it page by page, or measurement by measurement, takes longer than `store.timeout`.
fn a_large_hour(mode: &str, database: String, start: i64, count: i64) {
    let sum = count * (count - 1) / 2;
    assert_eq!(
        counted(&Mongod::shared().uri(), &database, LARGE),
        [(count, sum); 2],
        "written wrongly"
    );
    let rig = Rig::start(
        database,
        mode,
        Duration::from_millis(20),
        "store.timeout = \"2s\"",
    );
    let reading = |ms: i64, n: i64| (LARGE.to_owned(), start + ms, n);
    // The next ten, and the last stored one again.
    let mut next: Vec<Stored> = (0..10)
        .map(|i| reading(3_100_000 + i * 1000, count + i))
        .collect();
    next.push(reading((count - 1) * STEP_MS, count - 1));
    rig.post(&next);
    let took = rig.wait_counted(LARGE, count + 10, PATIENCE);
    let sum = sum + (0..10).map(|i| count + i).sum::<i64>();
    assert_eq!(
        counted(&rig.uri, &rig.database, LARGE),
        [(count + 10, sum); 2]
    );
    // Repeats the first ones and one from the middle, and adds a new one with an equal time.
    let late = [
        reading(0, 0),
        reading(STEP_MS, 1),
        reading(count / 2 * STEP_MS, count / 2),
        reading(0, 7),
    ];
    rig.post(&late);
    let took_late = rig.wait_counted(LARGE, count + 11, PATIENCE);
    wait_until("the repeated readings are duplicates", LIMIT, || {
        (rig.service.metrics().get("readings_duplicate_total") == 4.0).then_some(())
    });
    assert_eq!(
        counted(&rig.uri, &rig.database, LARGE),
        [(count + 11, sum + 7); 2]
    );
    let (_, worst) = rig.steady.finish();
    println!(
        "{mode}: continued after {took:?}, late ones after {took_late:?}; the others waited \
         {worst:?} at most"
    );
}

/// The middle of an hour in which all sensors of a shard send often.
#[test]
#[ignore = "a long run: several minutes"]
fn an_hour_of_two_thousand_sensors_is_continued_after_a_restart_with_time_series() {
    let _one = one_at_a_time();
    let uri = Mongod::shared().uri();
    let database = unique_database("many");
    let start = last_hour();
    let count = 10_000;
    large::prepare(&uri, &database, StoreMode::Timeseries);
    let sensors: Vec<String> = (0..2000).map(|i| format!("large-{i}")).collect();
    large::measured_hours(&uri, &database, &sensors, start, count);
    let rig = Rig::start(
        database,
        "timeseries",
        Duration::ZERO,
        "accumulate.shards = 1",
    );
    let next =
        |(i, sensor): (usize, &String)| (sensor.clone(), start + 3_100_000 + i as i64, count);
    rig.post(&sensors.iter().enumerate().map(next).collect::<Vec<_>>());
    let all = block_on(async {
        let client = mongodb::Client::with_uri_str(&rig.uri).await.unwrap();
        let pages = client
            .database(&rig.database)
            .collection::<Document>("sensor_buckets");
        let begun = Instant::now();
        while pages
            .count_documents(doc! { "count": count as i32 + 1 })
            .await
            .unwrap()
            < 2000
        {
            rig.steady.check();
            assert!(
                begun.elapsed() < Duration::from_secs(600),
                "they are not stored within ten minutes"
            );
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        begun.elapsed()
    });
    let (_, worst) = rig.steady.finish();
    println!("2000 sensors continued after {all:?}; the others waited {worst:?} at most");
    for sensor in &sensors {
        let both = (count + 1, count * (count - 1) / 2 + count);
        assert_eq!(
            counted(&rig.uri, &rig.database, sensor),
            [both; 2],
            "{sensor}"
        );
    }
}

/// Tests the proxy itself: its effects on a client's commands.
#[test]
fn the_proxy_delays_stops_withholds_and_cuts() {
    let _one = one_at_a_time();
    let proxy = Proxy::start(Mongod::shared().port());
    // The driver retries nothing, and the pool has connections before the line becomes slow.
    let uri = format!("{}&retryReads=false&retryWrites=false", proxy.uri());
    block_on(async {
        let database = mongodb::Client::with_uri_str(&uri)
            .await
            .unwrap()
            .database("proxy");
        let ping = async || {
            let begun = Instant::now();
            database.run_command(doc! { "ping": 1 }).await.unwrap();
            begun.elapsed()
        };
        // Long enough for a busy machine, and the limit of the wait for answers that never arrive.
        let enough = Duration::from_secs(20);
        let short = Duration::from_millis(500);
        let insert = async |n: i32, bytes: usize, limit: Duration| {
            let one = doc! { "_id": n, "text": "x".repeat(bytes) };
            let collection = database.collection::<Document>("c");
            tokio::time::timeout(limit, async move { collection.insert_one(one).await }).await
        };
        ping().await;
        proxy.round_trip(Duration::from_millis(100));
        let slow = ping().await;
        assert!(slow.as_millis() >= 100, "{slow:?}");
        proxy.round_trip(Duration::ZERO);
        proxy.bytes_per_second(1_000_000);
        let begun = Instant::now();
        insert(1, 300_000, enough).await.expect("in time").unwrap();
        assert!(
            begun.elapsed() >= Duration::from_millis(290),
            "{:?}",
            begun.elapsed()
        );
        proxy.bytes_per_second(u32::MAX);
        proxy.stop(Some(Direction::ToServer));
        insert(2, 1, short).await.expect_err("it does not arrive");
        proxy.cut();
        proxy.stop(None);
        proxy.withhold_answers_to(b"proxy-needle");
        ping().await;
        let needle = doc! { "_id": 3, "text": "proxy-needle" };
        let collection = database.collection::<Document>("c");
        let lost = async move { collection.insert_one(needle).await };
        tokio::time::timeout(short, lost)
            .await
            .expect_err("the answer is withheld");
        insert(4, 1, enough)
            .await
            .expect("another connection has its answers")
            .unwrap();
        proxy.answer_again();
        // The stopped write was cut before it arrived; the one without an answer is stored.
        let collection = database.collection::<Document>("c");
        assert_eq!(
            collection.distinct("_id", doc! {}).await.unwrap(),
            [1, 3, 4].map(mongodb::bson::Bson::from)
        );
        let waiting = tokio::spawn(async move {
            collection
                .find_one(doc! { "$where": "sleep(2000) || true" })
                .await
        });
        tokio::time::sleep(Duration::from_millis(300)).await;
        proxy.cut();
        waiting.await.unwrap().expect_err("its connection is cut");
    });
}
