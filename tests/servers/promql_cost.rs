//! What PromQL costs: how long queries take, how much memory, and the latency of acknowledgements
//! beside them. Measurements, printed; all of them are ignored by default.

#![allow(clippy::unwrap_used, reason = "a measurement")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use mongodb::bson::{Document, doc};

use super::promql::escaped;
use super::promql_reads::{DAY, HOUR, MINUTE, PATIENCE, Rig, today};
use super::years::beside_ingest;
use crate::support::{usage, wait_until};

/// Prints how long the queries of the issue take. `HOURBUCKET_PROMQL_SENSORS` and `_DAYS`: 1,000
/// and 30 by default.
#[test]
#[ignore = "takes minutes; for a quiet machine and a release build"]
fn how_long_queries_over_a_month_of_a_thousand_sensors_take() {
    let sensors = crate::support::setting("HOURBUCKET_PROMQL_SENSORS", 1000);
    let days = crate::support::setting("HOURBUCKET_PROMQL_DAYS", 30i64);
    for mode in ["bucket", "timeseries"] {
        let rig = Rig::start(
            mode,
            "[rollup]\ndays = true\nlate = \"1s\"\nsettle = \"1s\"\n",
        );
        let base = today() - (days + 1) * DAY;
        for minute in 0..days * 24 * 60 {
            let ts = base + minute * MINUTE;
            let line = |n: i32| {
                let temp = 20.0 + f64::from(n % 10) + (minute % 97) as f64 / 10.0;
                format!("s,sensor_id=S{n},site={} temp={temp} {ts}\n", n % 20)
            };
            let body: String = (0..sensors).map(line).collect();
            rig.service.write_lines(&body);
        }
        rig.service.wait_settled(
            (days * 24 * 60 * i64::from(sensors)) as u64,
            Duration::from_secs(1800),
        );
        wait_until("the days are stored", Duration::from_secs(600), || {
            let marked = rig.run(|db| async move {
                db.collection::<Document>("rollup_pending")
                    .count_documents(doc! {})
                    .await
            });
            (marked == 0).then_some(())
        });
        for (what, query, hours, step) in [
            (
                "all, a day by the hour",
                "sum by (site) (avg_over_time(temp[1h]))",
                24,
                HOUR,
            ),
            (
                "all, a month by the day",
                "sum by (site) (avg_over_time(temp[1d]))",
                days * 24,
                DAY,
            ),
            (
                "one, a month by the hour",
                "avg_over_time(temp{sensor_id=\"S7\"}[1h])",
                days * 24,
                HOUR,
            ),
            (
                "one, a month by the day",
                "avg_over_time(temp{sensor_id=\"S7\"}[1d])",
                days * 24,
                DAY,
            ),
            (
                "one, extremes by the hour",
                "max_over_time(temp{sensor_id=\"S7\"}[1h])",
                days * 24,
                HOUR,
            ),
        ] {
            let query = escaped(query);
            let end = base / 1000 + days * 24 * 3600;
            let path = format!(
                "/prometheus/api/v1/query_range?query={query}&start={}&end={end}&step={}",
                end - hours * 3600 + step / 1000,
                step / 1000
            );
            let mut took: Vec<f64> = (0..5)
                .map(|_| {
                    let begun = std::time::Instant::now();
                    let (status, text) = rig.service.get_admin(&path).unwrap();
                    assert!(status == 200 && text.len() > 100, "{text}");
                    begun.elapsed().as_secs_f64() * 1000.0
                })
                .collect();
            took.sort_by(f64::total_cmp);
            println!(
                "{mode}: {what}: median {:.0} ms, best {:.0} ms",
                took[2], took[0]
            );
        }
        let begun = std::time::Instant::now();
        let (status, _) = rig
            .service
            .get_admin("/prometheus/api/v1/label/site/values")
            .unwrap();
        println!(
            "{mode}: label values: {:.0} ms ({status})",
            begun.elapsed().as_secs_f64() * 1000.0
        );
    }
}

/// Prints the memory that queries over a hundred thousand sensors take, and checks the bound of
/// docs/promql.md: 16 bytes per sample that the setting allows, and a kilobyte per series for its
/// labels and its place in the response.
#[test]
#[ignore = "takes minutes; for a release build"]
fn queries_over_a_hundred_thousand_sensors_stay_within_their_memory() {
    let sensors = crate::support::setting("HOURBUCKET_PROMQL_SENSORS", 100_000i64);
    const SAMPLES: i64 = 24;
    const SAMPLES_MAX: i64 = 4_000_000;
    let limit_mib = (SAMPLES_MAX * 16 + sensors * 1024) >> 20;
    let more =
        format!("[promql]\nsamples_max = {SAMPLES_MAX}\ntimeout = \"120s\"\nqueries_max = 1\n");
    for mode in ["bucket", "timeseries"] {
        let rig = Rig::start(mode, &more);
        let base = today() - 2 * DAY;
        for (n, ts) in (0..SAMPLES).map(|n| (n, base + n * 10 * MINUTE + MINUTE)) {
            for first in (0..sensors).step_by(5000) {
                let line =
                    |s: i64| format!("s,sensor_id=S{s},site={} temp={} {ts}\n", s % 20, n + s % 7);
                let body: String = (first..sensors.min(first + 5000)).map(line).collect();
                rig.service.write_lines(&body);
            }
        }
        rig.service
            .wait_settled((sensors * SAMPLES) as u64, Duration::from_secs(1800));

        let status = |query: &str, step_s: i64| {
            let query = escaped(query);
            let start = base / 1000 + 3600;
            let end = base / 1000 + 4 * 3600;
            let path = format!(
                "/prometheus/api/v1/query_range?query={query}&start={start}&end={end}&step={step_s}"
            );
            rig.service.get_admin(&path).unwrap()
        };
        // Memory that the allocator and the driver keep afterwards does not belong to the query.
        status("sum(avg_over_time(temp[1h]))", 3600);
        for (query, step_s, wanted) in [
            ("sum by (site) (avg_over_time(temp[1h]))", 3600, 200),
            ("avg_over_time(temp[1h])", 3600, 200),
            ("count({site=~\".+\"})", 3600, 200),
            ("topk(3, rate(temp[90m]))", 3600, 200),
            ("quantile(0.9, max_over_time(temp[30m]))", 600, 200),
            ("sum by (site) (temp)", 60, 422),
            ("max_over_time(avg_over_time(temp[20m])[3h:10s])", 3600, 422),
            ("sort(temp * on (sensor_id, site) temp)", 15, 422),
        ] {
            usage::reset_peak(rig.service.pid());
            let before = usage::peak_kib(rig.service.pid());
            let begun = std::time::Instant::now();
            let (status, text) = status(query, step_s);
            let took = begun.elapsed();
            let more = usage::peak_kib(rig.service.pid()).saturating_sub(before) / 1024;
            println!(
                "{mode}: {query} by {step_s} s: {status}, {} bytes, {took:.1?}, {more} MiB more",
                text.len()
            );
            assert_eq!(status, wanted, "{query}: {:.300}", text);
            assert!(
                more <= limit_mib as u64,
                "{query}: {more} MiB of {limit_mib}"
            );
        }
    }
}

/// Prints how long acknowledgements take at 20,000 readings/s, without queries, with one and with
/// four at a time, each over a day of readings of 500 sensors.
#[test]
#[ignore = "takes minutes; for a quiet machine and a release build"]
fn how_long_acknowledgements_take_beside_expensive_queries() {
    let rig = Rig::start("bucket", "");
    let base = today() - 2 * DAY;
    for minute in 0..24 * 60 {
        let ts = base + minute * MINUTE + MINUTE / 2;
        let body: String = (0..500)
            .map(|n| format!("s,sensor_id=S{n} temp={} {ts}\n", n % 10))
            .collect();
        rig.service.write_lines(&body);
    }
    rig.service.wait_settled(500 * 24 * 60, PATIENCE);
    let query = escaped("sum(rate(temp[7m]))");
    let start = base / 1000 + 3600;
    let end = base / 1000 + 24 * 3600;
    let path =
        format!("/prometheus/api/v1/query_range?query={query}&start={start}&end={end}&step=60");
    for threads in [0, 1, 4] {
        let stop = AtomicBool::new(false);
        let answered = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let (status, text) = rig.service.get_admin(&path).unwrap();
                        assert_eq!(status, 200, "{text}");
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let what = format!("beside {threads} queries at a time");
            beside_ingest(&rig.service, &what, || {
                std::thread::sleep(Duration::from_secs(40))
            });
            stop.store(true, Ordering::Relaxed);
        });
        println!("{} queries were answered", answered.into_inner());
    }
}
