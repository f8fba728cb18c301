//! Measurements with years of data, for a quiet machine and a release build
//! (`HOURBUCKET_TEST_BINARY`): `tests/run.sh --test servers years:: -- --ignored --nocapture
//! --test-threads 1`. The figures in docs/mongodb.md come from them.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement")]

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mongodb::Database;
use mongodb::bson::{DateTime, Document, RawArrayBuf, RawDocumentBuf, cstr, doc, rawdoc};

use super::promql::escaped;
use crate::support::fleet::now_ms;
use crate::support::large;
use crate::support::mongod::Mongod;
use crate::support::service::Service;
use crate::support::usage::cpu_s;
use crate::support::{setting, wait_until};

const HOUR: i64 = 3_600_000;
const DAY: i64 = 24 * HOUR;
const DATABASE: &str = "hourbucket";
const PAGES_AT_ONCE: usize = 5000;
const PATIENCE: Duration = Duration::from_secs(120);

fn with<T: Send>(uri: &str, work: impl AsyncFnOnce(Database) -> T + Send) -> T {
    large::with(uri, DATABASE, work)
}

/// The temperatures of a sensor in the hour from `start` on, in hundredths. Those of other sensors
/// differ: MongoDB compresses neighbouring pages together.
fn temperatures(sensor: &str, start: i64, count: i64) -> Vec<f64> {
    let seed = sensor.bytes().fold(start as u64, |hash, byte| {
        hash.wrapping_mul(31).wrapping_add(byte.into())
    });
    let mut random = fastrand::Rng::with_seed(seed);
    let mut hundredths = 1800 + start / HOUR % 24 * 25 + random.i64(0..200);
    let mut next = || {
        hundredths += random.i64(-5..=5);
        hundredths as f64 / 100.0
    };
    (0..count).map(|_| next()).collect()
}

/// The page of an hour with `count` readings; they are in it if `is_whole`.
fn page(sensor: &str, start: i64, count: i64, is_whole: bool) -> RawDocumentBuf {
    let at = |i: i64| DateTime::from_millis(start + 7000 + i * HOUR / count);
    let temps = temperatures(sensor, start, count);
    let sum: f64 = temps.iter().sum();
    let min = temps.iter().copied().fold(f64::INFINITY, f64::min);
    let max = temps.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let start_at = DateTime::from_millis(start);
    let mut page = rawdoc! {
        "_id": { "sensor_id": sensor, "bucket_start": start_at, "page": 0 },
        "schema_version": 1,
        "sensor_id": sensor,
        "bucket_start": start_at,
        "bucket_end": DateTime::from_millis(start + HOUR),
        "page": 0,
        "tags": { "site": "north" },
        "count": count as i32,
        "first_ts": at(0),
        "last_ts": at(count - 1),
        "summary": { "temp": { "min": min, "max": max, "sum": sum, "count": count as i32 } },
    };
    if is_whole {
        let mut readings = RawArrayBuf::new();
        for (i, temp) in (0..).zip(temps) {
            readings.push(rawdoc! { "ts": at(i), "temp": temp });
        }
        page.append(cstr!("readings"), readings);
    } else {
        page.append(cstr!("readings_removed"), true);
    }
    page
}

/// Writes the hours of sensors `S0`, `S1`, ..., each with `count` readings, which are in the pages
/// from `whole_from` on.
fn fill(uri: &str, sensors: usize, (from, to): (i64, i64), count: i64, whole_from: i64) {
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for part in 0..2 {
            scope.spawn(move || {
                with(uri, async |db| {
                    let pages = db.collection::<RawDocumentBuf>("sensor_buckets");
                    // Hour by hour, as the service writes them: pages of one hour are neighbours.
                    let sensors: Vec<String> = (part..sensors)
                        .step_by(2)
                        .map(|n| format!("S{n}"))
                        .collect();
                    let hours = (PAGES_AT_ONCE / sensors.len()).max(1) as i64 * HOUR;
                    for first in (from..to).step_by(hours as usize) {
                        let starts = (first..to.min(first + hours)).step_by(HOUR as usize);
                        let some = starts.flat_map(|start| {
                            let page = move |sensor: &String| {
                                page(sensor, start, count, start >= whole_from)
                            };
                            sensors.iter().map(page)
                        });
                        pages.insert_many(some).ordered(false).await.unwrap();
                    }
                });
            });
        }
    });
    with(uri, async |db| {
        let entry = |n| {
            doc! {
                "_id": format!("S{n}"), "tags": { "site": "north" }, "labels": ["site=north"],
                "fields": { "temp": ["number"] }, "field_names": ["temp"],
                "first_ts": DateTime::from_millis(from), "last_ts": DateTime::from_millis(to),
                "last_arrival": DateTime::from_millis(to), "created": DateTime::from_millis(from),
            }
        };
        let entries = db.collection::<Document>("sensor_catalog");
        entries.insert_many((0..sensors).map(entry)).await.unwrap();
    });
    let hours = sensors as i64 * (to - from) / HOUR;
    println!(
        "{hours} hours of {sensors} sensors written in {:.0?}",
        begun.elapsed()
    );
}

fn counted(uri: &str, collection: &str) -> u64 {
    with(uri, async |db| {
        db.collection::<Document>(collection)
            .estimated_document_count()
            .await
            .unwrap()
    })
}

/// Bytes of data and of indexes on the disk, after a checkpoint.
fn on_disk(uri: &str, collection: &str) -> (i64, i64) {
    with(uri, async |db| {
        db.client()
            .database("admin")
            .run_command(doc! { "fsync": 1 })
            .await
            .unwrap();
        let stats = db
            .run_command(doc! { "collStats": collection })
            .await
            .unwrap();
        let bytes = |name: &str| {
            stats
                .get_i64(name)
                .or(stats.get_i32(name).map(i64::from))
                .unwrap()
        };
        (bytes("storageSize"), bytes("totalIndexSize"))
    })
}

/// `hourbucket init --rollup-from`, until it has ended or `stop` says so; then it gets SIGKILL.
/// Returns what it printed.
fn fill_days(uri: &str, from: i64, stop: impl Fn() -> bool) -> String {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(
        dir.path().join("hourbucket.toml"),
        "store.mode = \"bucket\"\nrollup.days = true\n",
    )
    .unwrap();
    let printed = std::fs::File::create(dir.path().join("printed")).unwrap();
    let date = chrono::DateTime::from_timestamp_millis(from)
        .unwrap()
        .format("%Y-%m-%d")
        .to_string();
    let binary = std::env::var_os("HOURBUCKET_TEST_BINARY")
        .unwrap_or_else(|| env!("CARGO_BIN_EXE_hourbucket").into());
    let mut child = Command::new(binary)
        .args([
            "init",
            "--rollup-from",
            &date,
            "--config",
            "hourbucket.toml",
        ])
        .current_dir(dir.path())
        .env("HOURBUCKET_STORE__URI", uri)
        .stderr(Stdio::from(printed.try_clone().unwrap()))
        .stdout(Stdio::from(printed))
        .spawn()
        .expect("it starts");
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            let printed = std::fs::read_to_string(dir.path().join("printed")).unwrap();
            assert!(status.success(), "{printed}");
            return printed;
        }
        if stop() {
            child.kill().unwrap();
            child.wait().unwrap();
            return std::fs::read_to_string(dir.path().join("printed")).unwrap();
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// How long an answer of the admin port takes, and the answer.
fn timed(service: &Service, what: &str, path: &str) -> String {
    let mut last = String::new();
    let mut took: Vec<f64> = (0..51)
        .map(|_| {
            let begun = Instant::now();
            let (status, text) = service.get_admin(path).unwrap();
            assert_eq!(status, 200, "{text}");
            last = text;
            begun.elapsed().as_secs_f64() * 1000.0
        })
        .collect();
    took.sort_by(f64::total_cmp);
    println!(
        "{what}: median {:.1} ms, slowest of {} {:.1} ms",
        took[took.len() / 2],
        took.len(),
        took[took.len() - 1]
    );
    last
}

/// Three years of 200 sensors: days filled by a command that is killed once, then charts of one
/// year.
#[test]
#[ignore = "a measurement of about fifteen minutes"]
fn charts_of_a_year_with_three_years_of_two_hundred_sensors() {
    let sensors = setting("HOURBUCKET_YEARS_SENSORS", 200usize);
    let days = setting("HOURBUCKET_YEARS_DAYS", 1095i64);
    let mongod = Mongod::start();
    let uri = mongod.uri();
    large::prepare(&uri, DATABASE, config::StoreMode::Bucket);
    let today = now_ms().div_euclid(DAY) * DAY;
    let from = today - days * DAY;
    fill(&uri, sensors, (from, today), 60, today - 90 * DAY);

    let begun = Instant::now();
    let all = sensors as u64 * days as u64;
    let first = fill_days(&uri, from, || counted(&uri, "sensor_days") >= all / 3);
    println!(
        "init --rollup-from was killed after {:.0?}, with {} days:\n{first}",
        begun.elapsed(),
        counted(&uri, "sensor_days")
    );
    let begun = Instant::now();
    let second = fill_days(&uri, from, || false);
    println!(
        "and again, {:.0?}, {} days:\n{second}",
        begun.elapsed(),
        counted(&uri, "sensor_days")
    );
    assert_eq!(counted(&uri, "sensor_days"), all);

    let service = Service::start(
        "rollup.days = true\nlog.level = \"warn\"\n",
        &[("STORE__URI", &uri)],
    );
    let year = format!("from={}&to={}", today - 365 * DAY, today);
    let answer = timed(
        &service,
        "read API, a year of days of one sensor",
        &format!("/v1/sensors/S7/daily?{year}"),
    );
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(
        answer["days"].as_array().unwrap().len() as i64,
        365.min(days),
        "{answer}"
    );
    let query = escaped("avg_over_time(temp{sensor_id=\"S7\"}[1d])");
    let start = (today - 364 * DAY) / 1000;
    let end = today / 1000;
    let path =
        format!("/prometheus/api/v1/query_range?query={query}&start={start}&end={end}&step=86400");
    timed(
        &service,
        "PromQL, avg_over_time(temp[1d]) of one sensor over a year",
        &path,
    );
    with(&uri, async |db| {
        db.run_command(doc! { "profile": 2 }).await.unwrap()
    });
    service.get_admin(&path).unwrap();
    service
        .get_admin(&format!("/v1/sensors/S7/daily?{year}"))
        .unwrap();
    let hours = with(&uri, async |db| {
        db.run_command(doc! { "profile": 0 }).await.unwrap();
        let hours = doc! { "ns": format!("{DATABASE}.sensor_buckets"), "command.filter.sensor_id": { "$exists": true } };
        let mut found = db
            .collection::<Document>("system.profile")
            .find(hours)
            .await
            .unwrap();
        let mut all = vec![];
        while found.advance().await.unwrap() {
            let one: Document = found.deserialize_current().unwrap();
            all.push((
                one.get_i32("nreturned").unwrap_or(0),
                one.get_document("command").unwrap().to_string(),
            ));
        }
        all
    });
    println!(
        "hours read for both: {}, in {} requests",
        hours.iter().map(|(n, _)| n).sum::<i32>(),
        hours.len()
    );
    hours.iter().for_each(|(n, command)| {
        println!("{n}: {}", command.chars().take(300).collect::<String>())
    });
    for collection in ["sensor_buckets", "sensor_days"] {
        let (data, indexes) = on_disk(&uri, collection);
        println!("{collection}: {data} bytes of data, {indexes} of indexes");
    }
}

/// The disk space of a sensor with a reading of one field per minute for a year, in each tier.
#[test]
#[ignore = "a measurement of two minutes"]
fn bytes_of_a_sensor_and_year() {
    const SENSORS: usize = 20;
    let today = now_ms().div_euclid(DAY) * DAY;
    let from = today - 365 * DAY;
    println!("| a sensor and year | data | indexes |\n|---|---|---|");
    let print = |what: &str, (data, indexes): (i64, i64)| {
        println!(
            "| {what} | {} kB | {} kB |",
            data / SENSORS as i64 / 1000,
            indexes / SENSORS as i64 / 1000
        );
    };
    for (what, whole_from) in [
        ("hours with their readings", from),
        ("hours without readings", today),
    ] {
        let mongod = Mongod::start();
        let uri = mongod.uri();
        large::prepare(&uri, DATABASE, config::StoreMode::Bucket);
        fill(&uri, SENSORS, (from, today), 60, whole_from);
        print(what, on_disk(&uri, "sensor_buckets"));
        if whole_from == today {
            fill_days(&uri, from, || false);
            print("days", on_disk(&uri, "sensor_days"));
        }
    }
}

/// Prints mongod's processor time for days of 200 sensors that report once a minute, without and
/// with their rollup, each with the same time in which MongoDB has nothing else to do. The readings
/// arrive as fast as they are taken, so that ingest is as cheap as it can be, and the rollup's
/// share larger than with a fleet that reports live.
#[test]
#[ignore = "a measurement of about ten minutes"]
fn what_days_cost_mongod() {
    const REST: Duration = Duration::from_secs(70);
    let sensors = setting("HOURBUCKET_YEARS_SENSORS", 200i64);
    let days = setting("HOURBUCKET_YEARS_DAYS", 20i64);
    for mode in ["bucket", "timeseries"] {
        for has_days in [false, true] {
            let mongod = Mongod::start();
            let text = format!(
                "store.mode = \"{mode}\"\nlog.level = \"warn\"\n[rollup]\ndays = {has_days}\n\
                 late = \"20s\"\nsettle = \"20s\"\n"
            );
            let mut service = Service::start(&text, &[("STORE__URI", &mongod.uri())]);
            let begun = cpu_s(mongod.pid());
            let base = now_ms().div_euclid(DAY) * DAY - (days + 1) * DAY;
            for minute in 0..days * 24 * 60 {
                let ts = base + minute * 60_000 + 7000;
                let line = |n: i64| {
                    format!(
                        "s,sensor_id=S{n},site={} temp={} {ts}\n",
                        n % 20,
                        20 + n % 10
                    )
                };
                let body: String = (0..sensors).map(line).collect();
                service.write_lines(&body);
            }
            let count = days * 24 * 60 * sensors;
            service.wait_settled(count as u64, Duration::from_secs(600));
            let stored = Instant::now();
            if has_days {
                let all = (days * sensors) as f64;
                wait_until("the days are computed", PATIENCE, || {
                    std::thread::sleep(Duration::from_secs(1));
                    let metrics = service.metrics();
                    let written = metrics.labelled("rollup_computed_total", "result", "written");
                    (written >= all && metrics.get("rollup_pending") == 0.0).then_some(())
                });
            }
            std::thread::sleep(REST.saturating_sub(stored.elapsed()));
            let took = cpu_s(mongod.pid()) - begun;
            println!(
                "{mode}, days {has_days}: {took:.1} s of mongod for {count} readings, {:.3} per \
                 million",
                took / count as f64 * 1e6
            );
            assert_eq!(service.terminate(PATIENCE), 0, "{}", service.log());
        }
    }
}

/// 20,000 readings per second from four gateways until `stop`; returns the latencies from the
/// intended times, sorted (ms).
fn ingest(service: &Service, stop: &AtomicBool) -> Vec<f64> {
    const EVERY: Duration = Duration::from_millis(200);
    let mut all: Vec<f64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4u32)
            .map(|gateway| {
                scope.spawn(move || {
                    let begun = Instant::now() + EVERY * gateway / 4;
                    let mut took = vec![];
                    for n in 0u32.. {
                        let intended = begun + EVERY * n;
                        std::thread::sleep(intended.saturating_duration_since(Instant::now()));
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                        let ts = now_ms();
                        let line = |i: u32| format!("load,sensor_id=G{gateway}-{i} v={n} {ts}\n");
                        let body: String = (0..1000).map(line).collect();
                        service.write_lines(&body);
                        took.push(intended.elapsed().as_secs_f64() * 1000.0);
                    }
                    took
                })
            })
            .collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().expect("a gateway"))
            .collect()
    });
    all.sort_by(f64::total_cmp);
    all
}

fn print_latencies(what: &str, took: &[f64]) {
    let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize];
    println!(
        "{what}: {} bodies of 1,000 readings, acknowledged after {:.1} ms (median), {:.1} ms \
         (p99), {:.1} ms (slowest)",
        took.len(),
        at(0.5),
        at(0.99),
        at(1.0)
    );
}

/// Runs `work` during ingest; returns the latencies.
fn latencies(service: &Service, work: impl FnOnce()) -> Vec<f64> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| ingest(service, &stop));
        work();
        stop.store(true, Ordering::Relaxed);
        load.join().expect("the gateways")
    })
}

/// Runs `work` during ingest, and prints the latencies.
pub(super) fn beside_ingest(service: &Service, what: &str, work: impl FnOnce()) {
    print_latencies(what, &latencies(service, work));
}

/// The readings of a million pages are due to be removed while 20,000 readings per second arrive.
#[test]
#[ignore = "a measurement of about eleven hours, or less with HOURBUCKET_YEARS_PAGES"]
fn a_million_pages_lose_their_readings_beside_ingest() {
    let pages = setting("HOURBUCKET_YEARS_PAGES", 1_000_000i64);
    let mongod = Mongod::start();
    let uri = mongod.uri();
    large::prepare(&uri, DATABASE, config::StoreMode::Bucket);
    let end = now_ms().div_euclid(HOUR) * HOUR - 200 * DAY;
    let sensors = 1000;
    let from = end - pages / sensors * HOUR;
    fill(&uri, sensors as usize, (from, end), 60, from);

    let text = "limits.past = \"7d\"\nlog.level = \"warn\"\n";
    let part = Duration::from_secs(setting("HOURBUCKET_YEARS_SECONDS", 120u64));
    let mut service = Service::start(text, &[("STORE__URI", &uri)]);
    beside_ingest(&service, "before", || std::thread::sleep(part));
    assert_eq!(service.terminate(PATIENCE), 0, "{}", service.log());

    let text = format!("{text}store.retention_readings = \"90d\"\n");
    std::fs::write(service.dir().join("hourbucket.toml"), text).unwrap();
    service.restart();
    let begun = Instant::now();
    beside_ingest(&service, "while readings are removed", || {
        let mut printed = Instant::now();
        loop {
            let metrics = service.metrics();
            let removed = metrics.get("readings_removed_pages_total");
            let lag = metrics.get("readings_removal_lag_seconds");
            if printed.elapsed() > Duration::from_secs(120) || removed >= pages as f64 {
                println!(
                    "{:.0?}: {removed} pages, lag {:.1} days",
                    begun.elapsed(),
                    lag / 86_400.0
                );
                printed = Instant::now();
            }
            if removed >= pages as f64 {
                break;
            }
            std::thread::sleep(Duration::from_secs(1));
        }
    });
    println!("{pages} pages in {:.0?}", begun.elapsed());
    beside_ingest(&service, "afterwards", || std::thread::sleep(part));
    assert_eq!(service.metrics().get("readings_removal_lag_seconds"), 0.0);
    assert_eq!(service.terminate(PATIENCE), 0, "{}", service.log());
}

/// The same load with and without removal in turns, since the latencies of one turn differ from
/// those of the next by more than what the removal costs. The last line has all turns of each kind.
#[test]
#[ignore = "a measurement of about half an hour"]
fn removal_in_turns_beside_ingest() {
    let turns = setting("HOURBUCKET_YEARS_TURNS", 10i64);
    let part = Duration::from_secs(setting("HOURBUCKET_YEARS_SECONDS", 60u64));
    let mongod = Mongod::start();
    let uri = mongod.uri();
    large::prepare(&uri, DATABASE, config::StoreMode::Bucket);
    let end = now_ms().div_euclid(HOUR) * HOUR - 200 * DAY;
    let sensors = 1000;
    // More than it can remove.
    let hours = (part.as_secs() as i64 + 30) * turns * 30 / sensors + 1;
    let from = end - hours * HOUR;
    fill(&uri, sensors as usize, (from, end), 60, from);
    let text = |kept: &str| {
        format!(
            "limits.past = \"7d\"\nlog.level = \"warn\"\nstore.retention_readings = \"{kept}\"\n"
        )
    };
    let mut service = Service::start(&text("9000d"), &[("STORE__URI", &uri)]);
    let mut took = [vec![], vec![]];
    // The first is for warming up.
    for turn in 0..=2 * turns {
        // Off, on, on, off: a slow change of the machine concerns both equally.
        let is_on = [false, false, true, true][turn as usize % 4];
        assert_eq!(service.terminate(PATIENCE), 0, "{}", service.log());
        let kept = if is_on { "90d" } else { "9000d" };
        std::fs::write(service.dir().join("hourbucket.toml"), text(kept)).unwrap();
        service.restart();
        // Not measured: the service has just started, and loads the buckets of these sensors.
        latencies(&service, || std::thread::sleep(Duration::from_secs(15)));
        let removed = || service.metrics().get("readings_removed_pages_total");
        let before = removed();
        let of_turn = latencies(&service, || std::thread::sleep(part));
        let rate = (removed() - before) / part.as_secs_f64();
        assert_eq!(rate > 0.0, is_on, "{rate} pages/s removed");
        print_latencies(&format!("turn {turn}, {rate:.0} pages/s removed"), &of_turn);
        if turn > 0 {
            took[usize::from(is_on)].extend(of_turn);
        }
    }
    for (what, all) in ["without removal", "with removal"].iter().zip(&mut took) {
        all.sort_by(f64::total_cmp);
        print_latencies(what, all);
    }
    assert_eq!(service.terminate(PATIENCE), 0, "{}", service.log());
}
