//! `hourbucket convert` beside a running service and beside itself, with the real commands.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::fleet::now_ms;
use crate::support::mongod::{Mongod, unique_database};
use crate::support::service::Service;
use crate::support::stored::{self, Stored};

const HOUR: i64 = 3_600_000;
const PATIENCE: Duration = Duration::from_secs(120);

fn begin(database: &str, arguments: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_hourbucket"))
        .args(arguments)
        .env("HOURBUCKET_STORE__URI", Mongod::shared().uri())
        .env("HOURBUCKET_STORE__DATABASE", database)
        .env("HOURBUCKET_STORE__MODE", "timeseries")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn end(command: Child) {
    let output = command.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Readings of some sensors, the same number of each in each hour.
fn sent(sensors: i64, hours: i64, each: i64) -> Vec<Stored> {
    let last = now_ms().div_euclid(HOUR) * HOUR - 4 * HOUR;
    let of = |sensor| {
        (0..hours).flat_map(move |hour| {
            let start = last - hour * HOUR;
            (0..each).map(move |n| (format!("S{sensor}"), start + n * 1000, n))
        })
    };
    (0..sensors).flat_map(of).collect()
}

fn write(service: &Service, readings: &[Stored]) {
    for part in readings.chunks(3000) {
        let line = |(sensor, ts, n): &Stored| format!("m,sensor_id={sensor} n={n}i {ts}\n");
        service.write_lines(&part.iter().map(line).collect::<String>());
    }
}

/// A service in bucket mode with a database of its own, in which it has stored these readings.
fn stored_as_pages(name: &str, readings: &[Stored]) -> (Service, String) {
    let uri = Mongod::shared().uri();
    let database = unique_database(name);
    let service = Service::start(
        "store.mode = \"bucket\"\nflush.max_age = \"200ms\"\n",
        &[("STORE__URI", &uri), ("STORE__DATABASE", &database)],
    );
    write(&service, readings);
    service.wait_settled(readings.len() as u64, PATIENCE);
    (service, database)
}

/// It started when there was no time-series collection.
#[test]
fn a_service_in_bucket_mode_knows_the_readings_that_were_converted_meanwhile() {
    let sent = sent(5, 2, 40);
    let (service, database) = stored_as_pages("converted_meanwhile", &sent);
    end(begin(&database, &["init"]));
    end(begin(&database, &["convert", "--into", "timeseries"]));
    let from = sent[0].1 - HOUR;
    let to = sent[0].1 + HOUR;
    let path = format!("/v1/sensors/S1/readings?from={from}&to={to}");
    let (status, text) = service.get_admin(&path).unwrap();
    assert_eq!(
        (status, text.matches("\"ts\"").count()),
        (200, 80),
        "{text}"
    );
    write(&service, &sent);
    service.wait_settled(800, PATIENCE);
    stored::exactly_once(&stored::readings(&Mongod::shared().uri(), &database), sent);
    assert_eq!(service.metrics().get("readings_duplicate_total"), 400.0);
}

/// The second one waits for the first, or is refused if that takes too long.
#[test]
fn two_conversions_run_one_after_the_other() {
    let sent = sent(30, 50, 6);
    let (service, database) = stored_as_pages("converted_twice", &sent);
    drop(service);
    end(begin(&database, &["init"]));
    let into = ["convert", "--into", "timeseries"];
    let both = [(); 2].map(|()| begin(&database, &into));
    for output in both.map(|command| command.wait_with_output().unwrap()) {
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() || errors.contains("another conversion"),
            "{errors}"
        );
    }
    end(begin(&database, &into));
    stored::exactly_once(&stored::readings(&Mongod::shared().uri(), &database), sent);
}
