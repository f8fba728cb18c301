//! Which documents PromQL reads: MongoDB's profiler records every request while a query runs.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::time::Duration;

use mongodb::bson::{Document, doc};
use serde_json::Value;

use super::promql::escaped;
use crate::support::mongod::{Mongod, unique_database};
use crate::support::service::Service;
use crate::support::{block_on, wait_until};

pub(super) const PATIENCE: Duration = Duration::from_secs(90);
pub(super) const MINUTE: i64 = 60_000;
pub(super) const HOUR: i64 = 60 * MINUTE;
pub(super) const DAY: i64 = 24 * HOUR;

/// A service and the profiler of its database.
pub(super) struct Rig {
    pub(super) service: Service,
    database: String,
}

/// One request that the profiler recorded: the collection, and the whole record.
#[derive(Debug)]
struct Recorded {
    collection: String,
    command: Document,
    returned: i64,
    examined: i64,
}

impl Rig {
    pub(super) fn start(mode: &str, more: &str) -> Rig {
        let database = unique_database(&format!("promql_reads_{mode}"));
        let text = format!(
            "store.mode = \"{mode}\"\nflush.max_age = \"300ms\"\nlog.level = \"warn\"\n{more}"
        );
        let settings = [
            ("STORE__URI", &*Mongod::shared().uri()),
            ("STORE__DATABASE", &*database),
        ];
        Rig {
            service: Service::start(&text, &settings),
            database,
        }
    }

    pub(super) fn run<T: Send, F>(&self, work: impl FnOnce(mongodb::Database) -> F + Send) -> T
    where
        F: Future<Output = mongodb::error::Result<T>> + Send,
    {
        block_on(async {
            let client = mongodb::Client::with_uri_str(Mongod::shared().uri())
                .await
                .unwrap();
            work(client.database(&self.database)).await.unwrap()
        })
    }

    /// Posts a reading at each of these times; its value is the number of the minute in its hour,
    /// and 1.
    fn post(&self, sensor: &str, times: impl Iterator<Item = i64>) {
        let times: Vec<i64> = times.collect();
        for times in times.chunks(5000) {
            let line = |ts: &i64| {
                let temp = ts.div_euclid(MINUTE) % 60 + 1;
                format!(
                    "{{\"sensor_id\":\"{sensor}\",\"ts\":{ts},\"values\":{{\"temp\":{temp}}},\"tags\":{{\"s\":\"1\"}}}}\n"
                )
            };
            let body: String = times.iter().map(line).collect();
            let (status, text) = self
                .service
                .post("/v1/readings", "application/x-ndjson", body.as_bytes())
                .unwrap();
            assert_eq!(status, 200, "{text}");
        }
    }

    /// Ends, in ms, and values of the only series of a range query.
    #[track_caller]
    fn range(&self, query: &str, (start_ms, end_ms, step_ms): (i64, i64, i64)) -> Vec<(i64, f64)> {
        let query = escaped(query);
        let seconds = |ms: i64| ms as f64 / 1000.0;
        let path = format!(
            "/prometheus/api/v1/query_range?query={query}&start={}&end={}&step={}",
            seconds(start_ms),
            seconds(end_ms),
            seconds(step_ms),
        );
        let (status, text) = self.service.get_admin(&path).unwrap();
        assert_eq!(status, 200, "{text}");
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            answer["data"]["result"].as_array().map(Vec::len),
            Some(1),
            "{text}"
        );
        let values = answer["data"]["result"][0]["values"].as_array().unwrap();
        let pair = |v: &Value| {
            (
                (v[0].as_f64().unwrap() * 1000.0) as i64,
                v[1].as_str().unwrap().parse().unwrap(),
            )
        };
        values.iter().map(pair).collect()
    }

    /// The reads of these collections while the query ran, and its values.
    #[track_caller]
    fn recorded(&self, query: &str, times: (i64, i64, i64)) -> (Vec<Recorded>, Vec<(i64, f64)>) {
        self.reads_while(|| self.range(query, times))
    }

    /// The reads of these collections while an instant query is refused because its samples do not fit.
    #[track_caller]
    fn refused(&self, query: &str, at_ms: i64) -> Vec<Recorded> {
        let time = at_ms as f64 / 1000.0;
        let path = format!(
            "/prometheus/api/v1/query?query={}&time={time}",
            escaped(query)
        );
        let (found, (status, text)) = self.reads_while(|| self.service.get_admin(&path).unwrap());
        assert!(
            status == 422 && text.contains("too many samples"),
            "{query}: {status} {text}"
        );
        found
    }

    fn reads_while<T>(&self, query: impl FnOnce() -> T) -> (Vec<Recorded>, T) {
        self.run(|db| async move {
            db.run_command(doc! { "profile": 0 }).await?;
            db.collection::<Document>("system.profile").drop().await?;
            db.run_command(doc! { "create": "system.profile", "capped": true, "size": 64 << 20 })
                .await?;
            db.run_command(doc! { "profile": 2 }).await
        });
        let answer = query();
        let found = self.run(|db| async move {
            db.run_command(doc! { "profile": 0 }).await?;
            let mut all = vec![];
            let mut cursor = db
                .collection::<Document>("system.profile")
                .find(doc! {})
                .sort(doc! { "$natural": 1 })
                .await?;
            while cursor.advance().await? {
                let record: Document = cursor.deserialize_current()?;
                let collection = record
                    .get_str("ns")
                    .unwrap()
                    .split_once('.')
                    .unwrap()
                    .1
                    .to_owned();
                let collection = collection.trim_start_matches("system.buckets.").to_owned();
                let command = record.get_document("command").cloned().unwrap_or_default();
                let command = record
                    .get_document("originatingCommand")
                    .cloned()
                    .unwrap_or(command);
                let number = |name: &str| {
                    record
                        .get(name)
                        .and_then(|n| n.as_i64().or(n.as_i32().map(i64::from)))
                        .unwrap_or(0)
                };
                let is_data = [
                    "sensor_buckets",
                    "sensor_readings",
                    "sensor_days",
                    "sensor_columns",
                ]
                .contains(&&*collection);
                let op = record.get_str("op").unwrap_or_default();
                // Not those of upkeep, which are about no sensor.
                if is_data
                    && op != "insert"
                    && op != "update"
                    && command.to_string().contains("sensor_id")
                {
                    all.push(Recorded {
                        collection,
                        command,
                        returned: number("nreturned"),
                        examined: number("docsExamined"),
                    });
                }
            }
            Ok(all)
        });
        (found, answer)
    }
}

/// The requests for readings: pages with their readings, or measurements.
fn with_readings(all: &[Recorded]) -> Vec<&Recorded> {
    let is_page = |r: &Recorded| r.collection == "sensor_buckets";
    let has_readings = |r: &Recorded| match r.command.get_document("projection") {
        Ok(projection) => projection
            .get("readings")
            .is_some_and(|shown| shown.as_document().is_some()),
        Err(_) => true,
    };
    all.iter()
        .filter(|r| r.collection == "sensor_readings" || is_page(r) && has_readings(r))
        .collect()
}

fn returned(all: &[Recorded], collection: &str) -> i64 {
    all.iter()
        .filter(|r| r.collection == collection)
        .map(|r| r.returned)
        .sum()
}

/// The sum over the window of what [`Rig::post`] sends at these times.
fn sum(times: impl Iterator<Item = i64>, end_ms: i64, range_ms: i64) -> f64 {
    let within = times.filter(|ts| *ts > end_ms - range_ms && *ts <= end_ms);
    within
        .map(|ts| (ts.div_euclid(MINUTE) % 60 + 1) as f64)
        .sum()
}

pub(super) fn today() -> i64 {
    crate::support::fleet::now_ms().div_euclid(DAY) * DAY
}

fn hours(mode: &str) {
    let rig = Rig::start(mode, "promql.samples_max = 1000");
    let base = today() - 3 * DAY;
    // `off` reports half a minute after the full minute, `on` on it.
    let off = || (0..26 * 60).map(move |m| base + m * MINUTE + MINUTE / 2);
    let on = || (0..26 * 60).map(move |m| base + m * MINUTE);
    rig.post("off", off());
    rig.post("on", on());
    rig.service.wait_settled(2 * 26 * 60, PATIENCE);

    let whole = (base + HOUR, base + 24 * HOUR, HOUR);
    let (found, values) = rig.recorded("sum_over_time(temp{sensor_id=\"off\"}[1h])", whole);
    assert_eq!(values.len(), 24);
    values
        .iter()
        .for_each(|(end_ms, value)| assert_eq!(*value, sum(off(), *end_ms, HOUR), "{end_ms}"));
    assert!(with_readings(&found).is_empty(), "whole hours: {found:?}");
    assert!(
        (24..=26).contains(&returned(&found, "sensor_buckets")),
        "{found:?}"
    );
    assert_eq!(found.len(), 1, "one request: {found:?}");

    // A reading on each edge: those, and no others.
    let (found, values) = rig.recorded("sum_over_time(temp{sensor_id=\"on\"}[1h])", whole);
    values
        .iter()
        .for_each(|(end_ms, value)| assert_eq!(*value, sum(on(), *end_ms, HOUR), "{end_ms}"));
    let edges = with_readings(&found);
    let shown = format!("{edges:?}");
    assert!(
        edges.iter().all(
            |r| r.command.to_string().contains("first_ts") || r.collection == "sensor_readings"
        ),
        "{shown}"
    );
    match mode {
        "bucket" => assert!(edges.len() == 1 && edges[0].examined <= 26, "{shown}"),
        _ => assert!(
            edges.len() == 2 && returned(&found, "sensor_readings") <= 26,
            "{shown}"
        ),
    }

    // What cannot fit is refused by the counts of hours: no reading is read.
    for query in [
        "quantile_over_time(0.5, temp{sensor_id=\"off\"}[20h])",
        "count_over_time(temp[10h:1m]) + last_over_time(temp[19h])",
        "temp[10h]",
    ] {
        let found = rig.refused(query, base + 25 * HOUR);
        assert!(with_readings(&found).is_empty(), "{query}: {found:?}");
    }
    let fits = "quantile_over_time(0, temp{sensor_id=\"off\"}[16h])";
    let at = (base + 25 * HOUR, base + 25 * HOUR, HOUR);
    assert_eq!(rig.range(fits, at), [(at.0, 1.0)]);

    // Cut within an hour at both ends: the readings of two hours.
    let cut = (
        base + 10 * HOUR + 30 * MINUTE,
        base + 10 * HOUR + 30 * MINUTE,
        HOUR,
    );
    let range_ms = 5 * HOUR + 15 * MINUTE;
    let (found, values) = rig.recorded("sum_over_time(temp{sensor_id=\"off\"}[5h15m])", cut);
    assert_eq!(values[0].1, sum(off(), cut.0, range_ms));
    let edges = with_readings(&found);
    let pages: Vec<&&Recorded> = edges
        .iter()
        .filter(|r| r.collection == "sensor_buckets")
        .collect();
    assert_eq!(pages.len(), 2, "{edges:?}");
    for (page, hour) in pages.iter().zip([5, 10]) {
        assert!(
            page.returned == 1 && page.command.to_string().contains("off"),
            "{hour}: {edges:?}"
        );
    }
    if mode == "timeseries" {
        assert_eq!(returned(&found, "sensor_readings"), 2 * 60, "{edges:?}");
    }

    // Every window cuts an hour, once a day: runs of one hour, not everything from the first to the
    // last.
    let (found, values) = rig.recorded(
        "sum_over_time(temp{sensor_id=\"off\"}[12h])",
        (cut.0 + 3 * HOUR, cut.0 + 15 * HOUR, 12 * HOUR),
    );
    values
        .iter()
        .for_each(|(end_ms, value)| assert_eq!(*value, sum(off(), *end_ms, 12 * HOUR), "{end_ms}"));
    let pages: i64 = with_readings(&found)
        .iter()
        .filter(|r| r.collection == "sensor_buckets")
        .map(|r| r.returned)
        .sum();
    assert!(pages <= 4, "{found:?}");
}

#[test]
fn whole_hours_are_read_without_readings_in_bucket_mode() {
    hours("bucket");
}

#[test]
fn whole_hours_are_read_without_readings_in_timeseries_mode() {
    hours("timeseries");
}

fn days(mode: &str) {
    const DAYS: i64 = 300;
    let rig = Rig::start(
        mode,
        "[rollup]\ndays = true\nlate = \"300ms\"\nsettle = \"1s\"\n",
    );
    let base = today() - (DAYS + 2) * DAY;
    let off = || (0..DAYS * 24).map(move |h| base + h * HOUR + 17 * MINUTE);
    let on = || (0..20 * 24).map(move |h| base + h * HOUR);
    rig.post("off", off());
    rig.post("on", on());
    let count = (DAYS + 20) * 24;
    rig.service.wait_settled(count as u64, PATIENCE);
    let days_are_stored = || {
        wait_until("the days are stored", PATIENCE, || {
            let count = |name: &'static str| {
                rig.run(|db| async move {
                    db.collection::<Document>(name)
                        .count_documents(doc! {})
                        .await
                })
            };
            (count("sensor_days") >= (DAYS + 20) as u64 && count("rollup_pending") == 0)
                .then_some(())
        });
    };
    days_are_stored();

    let year = (base + DAY, base + DAYS * DAY, DAY);
    let (found, values) = rig.recorded("avg_over_time(temp{sensor_id=\"off\"}[1d])", year);
    assert_eq!(values.len(), DAYS as usize);
    assert!(values.iter().all(|(_, value)| *value == 18.0), "{values:?}");
    assert_eq!(
        returned(&found, "sensor_buckets") + returned(&found, "sensor_readings"),
        0,
        "{found:?}"
    );
    assert_eq!(returned(&found, "sensor_days"), DAYS, "{found:?}");

    // A reading on each midnight: those, and no hour.
    let (found, values) = rig.recorded(
        "sum_over_time(temp{sensor_id=\"on\"}[1d])",
        (base + DAY, base + 19 * DAY, DAY),
    );
    values
        .iter()
        .for_each(|(end_ms, value)| assert_eq!(*value, sum(on(), *end_ms, DAY), "{end_ms}"));
    let hours = |all: &[Recorded]| -> i64 {
        let is_hours = |r: &&Recorded| {
            r.collection == "sensor_buckets" && !r.command.to_string().contains("first_ts\": {")
        };
        all.iter().filter(is_hours).map(|r| r.returned).sum()
    };
    assert_eq!(hours(&found), 0, "{found:?}");
    assert!(
        with_readings(&found)
            .iter()
            .map(|r| r.returned)
            .sum::<i64>()
            <= 42,
        "{found:?}"
    );

    // Cut at noon: hours of the two days at the ends, and no reading.
    let noon = (
        base + 20 * DAY + 12 * HOUR,
        base + 20 * DAY + 12 * HOUR,
        DAY,
    );
    let (found, values) = rig.recorded("sum_over_time(temp{sensor_id=\"off\"}[10d])", noon);
    assert_eq!(values[0].1, sum(off(), noon.0, 10 * DAY));
    assert!(
        hours(&found) <= 26 && with_readings(&found).is_empty(),
        "{found:?}"
    );

    // A late reading counts before its day is computed again, and afterwards.
    let late = base + 100 * DAY + 5 * HOUR + 30 * MINUTE;
    rig.post("off", std::iter::once(late));
    let at = base + 101 * DAY;
    let wanted = sum(off().chain([late]), at, DAY);
    for _ in 0..20 {
        assert_eq!(
            rig.range("sum_over_time(temp{sensor_id=\"off\"}[1d])", (at, at, DAY))[0].1,
            wanted
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    days_are_stored();
    let (found, values) = rig.recorded("sum_over_time(temp{sensor_id=\"off\"}[1d])", (at, at, DAY));
    assert_eq!(
        (values[0].1, returned(&found, "sensor_buckets")),
        (wanted, 0),
        "{found:?}"
    );
}

#[test]
fn whole_days_are_read_without_hours_in_bucket_mode() {
    days("bucket");
}

#[test]
fn whole_days_are_read_without_hours_in_timeseries_mode() {
    days("timeseries");
}

/// A sensor that reports every ten minutes for 30 days, but not on the tenth.
fn columns(mode: &str) {
    const DAYS: i64 = 30;
    let rig = Rig::start(
        mode,
        // The samples of a month are more: those of one window count.
        "columns.enabled = true\npromql.samples_max = 2000\n[rollup]\nlate = \"300ms\"\nsettle = \"1s\"\n",
    );
    let base = today() - (DAYS + 2) * DAY;
    let times = || {
        let all = (0..DAYS * 144).map(move |n| base + n * 10 * MINUTE + 7 * MINUTE);
        all.filter(move |ts| (ts - base) / DAY != 10)
    };
    rig.post("a", times());
    rig.service
        .wait_settled(((DAYS - 1) * 144) as u64, PATIENCE);
    let columns_are_stored = || {
        wait_until("the columns are stored", PATIENCE, || {
            let count = |name: &'static str| {
                rig.run(|db| async move {
                    db.collection::<Document>(name)
                        .count_documents(doc! {})
                        .await
                })
            };
            (count("sensor_columns") >= (DAYS - 1) as u64 && count("rollup_pending") == 0)
                .then_some(())
        });
    };
    columns_are_stored();
    let wanted = |late: Option<i64>, end_ms: i64| -> f64 {
        let all = times().chain(late);
        let newest = all.filter(|ts| *ts <= end_ms && *ts > end_ms - 20 * MINUTE);
        newest
            .max()
            .map_or(f64::NAN, |ts| (ts.div_euclid(MINUTE) % 60 + 1) as f64)
    };
    let month = (base + DAY, base + (DAYS + 1) * DAY, HOUR);
    let query = "last_over_time(temp{sensor_id=\"a\"}[20m])";
    let check = |values: &[(i64, f64)], late: Option<i64>| {
        let mut steps = (0..=DAYS * 24).map(|n| base + DAY + n * HOUR);
        let expected = steps
            .by_ref()
            .map(|at| (at, wanted(late, at)))
            .filter(|(_, value)| !value.is_nan());
        assert_eq!(values, expected.collect::<Vec<_>>());
    };
    let (found, values) = rig.recorded(query, month);
    check(&values, None);
    assert_eq!(returned(&found, "sensor_columns"), DAYS - 1, "{found:?}");
    assert_eq!(returned(&found, "sensor_buckets"), 0, "{found:?}");
    // Neither are the summaries of hours.
    let (found, values) = rig.recorded("count_over_time(temp{sensor_id=\"a\"}[1h])", month);
    // The first window is the last hour of a day.
    assert_eq!(values.len(), (DAYS - 2) as usize * 24 + 1, "{values:?}");
    assert!(values.iter().all(|(_, count)| *count == 6.0), "{values:?}");
    assert_eq!(returned(&found, "sensor_columns"), DAYS - 1, "{found:?}");
    assert_eq!(returned(&found, "sensor_buckets"), 0, "{found:?}");

    // A late reading counts before its day is computed again, and afterwards.
    let late = base + 12 * DAY + 5 * HOUR + 59 * MINUTE;
    rig.post("a", std::iter::once(late));
    for _ in 0..20 {
        check(&rig.range(query, month), Some(late));
        std::thread::sleep(Duration::from_millis(100));
    }
    columns_are_stored();
    let (found, values) = rig.recorded(query, month);
    check(&values, Some(late));
    let read: i64 = with_readings(&found).iter().map(|r| r.returned).sum();
    assert_eq!(read, 0, "{found:?}");
}

#[test]
fn days_in_columns_are_read_without_pages_in_bucket_mode() {
    columns("bucket");
}

#[test]
fn days_in_columns_are_read_without_pages_in_timeseries_mode() {
    columns("timeseries");
}

/// Readings of four days with everything that makes a day special: silent days, several values in a
/// millisecond, fields of changing kinds, late readings whose day waits to be computed.
/// `once` has one value in a millisecond: summaries count several, samples have the last.
fn random_readings(
    rng: &mut fastrand::Rng,
    known: &mut BTreeSet<(usize, i64)>,
    base: i64,
    count: usize,
) -> String {
    let mut lines = String::new();
    for _ in 0..count {
        let sensor = rng.usize(0..5);
        let day = rng.i64(0..4);
        // Some sensors are silent on some days.
        if (sensor as i64 + day) % 4 == 3 {
            continue;
        }
        let ts = base + day * DAY + rng.i64(0..DAY / MINUTE / 5) * 5 * MINUTE;
        let temp = match rng.u8(0..6) {
            0 => "true".to_owned(),
            1 => "\"broken\"".to_owned(),
            2 => rng.i32(-5..5).to_string(),
            _ => format!("{:?}", f64::from(rng.i32(-50..50)) / 4.0),
        };
        let mut other = match rng.bool() {
            true => format!(",\"n_total\":{}", rng.u32(0..1000)),
            false => String::new(),
        };
        if known.insert((sensor, ts)) {
            other += &format!(",\"once\":{}", f64::from(rng.i32(-50..50)) / 4.0);
        }
        lines += &format!(
            "{{\"sensor_id\":\"S{sensor}\",\"ts\":{ts},\"values\":{{\"temp\":{temp}{other}}},\"tags\":{{\"s\":\"{}\"}}}}\n",
            sensor % 2
        );
    }
    lines
}

/// The answers with and without columns are the same, whatever is in memory, stored or late.
fn same_answers(mode: &str) {
    let rig = Rig::start(
        mode,
        "columns.enabled = true\n[rollup]\nlate = \"2s\"\nsettle = \"1s\"\n",
    );
    let base = today() - 5 * DAY;
    let text = format!("store.mode = \"{mode}\"\nlog.level = \"warn\"\n");
    let settings = [
        ("STORE__URI", &*Mongod::shared().uri()),
        ("STORE__DATABASE", &*rig.database),
    ];
    let without = Service::start(&text, &settings);
    wait_until("the other instance is prepared", PATIENCE, || {
        let (_, text) = without.get_admin("/readyz")?;
        let ready: Value = serde_json::from_str(&text).ok()?;
        (!ready["mode"].is_null()).then_some(())
    });
    let mut rng = fastrand::Rng::with_seed(11);
    let mut known = BTreeSet::new();
    for round in 0..2 {
        let count = if round == 0 { 3000 } else { 200 };
        let body = random_readings(&mut rng, &mut known, base, count);
        let posted = rig
            .service
            .post("/v1/readings", "application/x-ndjson", body.as_bytes());
        assert_eq!(posted.unwrap().0, 200);
        // The other instance sees what is stored.
        rig.service.wait_settled(1, PATIENCE);
        for n in 0..32 {
            let query = [
                "temp",
                "rate(n_total[17m])",
                "quantile_over_time(0.7, temp[3h])",
                "sum by (s) ({__name__=~\"temp|n_total\"})",
                "temp{sensor_id=\"S3\"} > 0",
                "max_over_time(once[1h])",
                "avg_over_time(once[5h])",
                "sum_over_time(once[1d])",
            ][n % 8];
            let start = base + rng.i64(0..3 * 24) * HOUR;
            let step = rng.i64(7..120) * MINUTE;
            let path = format!(
                "/prometheus/api/v1/query_range?query={}&start={}&end={}&step={}",
                escaped(query),
                start / 1000,
                (start + rng.i64(1..60) * HOUR) / 1000,
                step / 1000,
            );
            let ask = |service: &Service| {
                let (status, text) = service.get_admin(&path).unwrap();
                assert_eq!(status, 200, "{text}");
                serde_json::from_str::<Value>(&text).unwrap()["data"].take()
            };
            assert_eq!(ask(&rig.service), ask(&without), "round {round}: {path}");
        }
    }
    let columns = rig.run(|db| async move {
        let columns = db.collection::<Document>("sensor_columns");
        columns.count_documents(doc! {}).await
    });
    assert!(columns > 10, "{columns} days in columns");
}

#[test]
fn answers_with_columns_are_those_of_the_pages_in_bucket_mode() {
    same_answers("bucket");
}

#[test]
fn answers_with_columns_are_those_of_the_pages_in_timeseries_mode() {
    same_answers("timeseries");
}
