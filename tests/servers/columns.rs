//! Days in columns in the service: what docs/columns.md shows, and readings that only columns have.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::process::Command;
use std::time::Duration;

use crate::read_api::{get_complete, prepared};
use crate::support::fleet::now_ms;
use crate::support::mongod::{Mongod, python_packages, unique_database};
use crate::support::service::Service;
use crate::support::{block_on, wait_until};
use mongodb::bson::{Document, doc};

const MINUTE: i64 = 60_000;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
const PATIENCE: Duration = Duration::from_secs(120);

fn start(database: &str, more: &str) -> Service {
    let config = format!(
        "flush.max_age = \"200ms\"\nlimits.past = \"60d\"\n{more}\n[rollup]\nlate = \"300ms\"\n\
         settle = \"1s\"\n[columns]\nenabled = true\n"
    );
    let uri = Mongod::shared().uri();
    let settings = [("STORE__URI", uri.as_str()), ("STORE__DATABASE", database)];
    Service::start(&config, &settings)
}

fn send(service: &Service, readings: &str) {
    let answer = service.post("/v1/readings", "application/x-ndjson", readings.as_bytes());
    assert_eq!(answer.unwrap().0, 200);
}

fn count(database: &str, name: &str, filter: Document) -> u64 {
    block_on(async {
        let client = mongodb::Client::with_uri_str(Mongod::shared().uri()).await;
        let database = client.unwrap().database(database);
        let collection = database.collection::<Document>(name);
        collection.count_documents(filter).await.unwrap()
    })
}

/// All rows of a view of the sensor S1.
fn rows_of(database: &str, view: &str) -> Vec<Document> {
    block_on(async {
        let client = mongodb::Client::with_uri_str(Mongod::shared().uri()).await;
        let view = client.unwrap().database(database).collection(view);
        let rows = view.find(doc! { "sensor_id": "S1" });
        let rows = rows.sort(doc! { "bucket_start": 1 }).await.unwrap();
        futures_util::TryStreamExt::try_collect(rows).await.unwrap()
    })
}

/// Waits until the columns of a day count so many readings and no day is marked.
fn wait_for_columns(database: &str, readings: i64) {
    wait_until("the columns are as the readings", PATIENCE, || {
        let has_all = count(database, "sensor_columns", doc! { "count": readings }) > 0;
        (has_all && count(database, "rollup_pending", doc! {}) == 0).then_some(())
    });
}

/// The times and values of `n` that the read API returns.
fn readings(service: &Service, from: i64, to: i64) -> Vec<(i64, i64)> {
    let path = format!("/v1/sensors/S1/readings?from={from}&to={to}&limit=10000&format=ndjson");
    let (status, text) = service.get_admin(&path).unwrap();
    assert_eq!(status, 200, "{text}");
    let reading = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let ts = chrono::DateTime::parse_from_rfc3339(line["ts"].as_str().unwrap()).unwrap();
        (ts.timestamp_millis(), line["values"]["n"].as_i64().unwrap())
    };
    text.lines().map(reading).collect()
}

fn line(ts_ms: i64, n: i64) -> String {
    format!("{{\"sensor_id\":\"S1\",\"ts\":{ts_ms},\"n\":{n}}}\n")
}

#[test]
fn late_readings_of_a_day_that_only_columns_have_are_stored_once() {
    let database = unique_database("tier");
    let mut service = start(
        &database,
        "store.mode = \"bucket\"\nstore.retention_readings = \"1m\"",
    );
    prepared(&service);
    let day = (now_ms() - 3 * DAY).div_euclid(DAY) * DAY;
    let mut expected: Vec<(i64, i64)> = (0..240).map(|at| (day + at * 5 * MINUTE, at)).collect();
    let all: String = expected.iter().map(|(ts, n)| line(*ts, *n)).collect();
    send(&service, &all);
    wait_for_columns(&database, 240);
    let with_readings = doc! { "readings_removed": { "$ne": true } };
    let are_removed = || {
        let left = count(&database, "sensor_buckets", with_readings.clone());
        (left == 0).then_some(())
    };
    wait_until("the pages are empty", PATIENCE, are_removed);
    assert_eq!(readings(&service, day, day + DAY), expected);

    // Repeated readings, and new ones among them, also after a restart.
    for (round, restarts) in [(1, false), (2, true)] {
        if restarts {
            service.restart();
            prepared(&service);
        }
        let new: Vec<(i64, i64)> = (0..5)
            .map(|at| (day + at * 3 * HOUR + round * MINUTE, 1000 * round + at))
            .collect();
        let lines = new.iter().map(|(ts, n)| line(*ts, *n));
        send(&service, &(all.clone() + &lines.collect::<String>()));
        expected.extend(new);
        expected.sort_unstable();
        wait_for_columns(&database, expected.len() as i64);
        wait_until("the pages are empty", PATIENCE, are_removed);
        assert_eq!(readings(&service, day, day + DAY), expected);
    }
    assert_eq!(count(&database, "dead_letters", doc! {}), 0);
    let query = format!(
        "/prometheus/api/v1/query?query=count_over_time(n[1d])&time={}",
        (day + DAY) / 1000
    );
    let (status, text) = service.get_admin(&query).unwrap();
    assert_eq!(status, 200, "{text}");
    // The window is open on the left.
    let counted = format!("\"{}\"", expected.len() - 1);
    assert!(text.contains(&counted), "{counted}: {text}");
}

/// The rich hours of a day in columns, of an open one, and of one with a late reading: an instance
/// without columns computes all of them from the readings.
#[test]
fn rich_hours_are_the_same_from_documents_and_from_readings() {
    const STEPS: &str = "\n[[fields]]\nnames = [\"energy*\"]\nbetween = \"step\"\nsketch = true\n\
        [[fields]]\nnames = [\"temp\"]\nsketch = true\n";
    let database = unique_database("rich_hours");
    let service = start(&database, STEPS);
    prepared(&service);
    let uri = Mongod::shared().uri();
    let settings = [
        ("STORE__URI", uri.as_str()),
        ("STORE__DATABASE", &*database),
    ];
    let without = Service::start(&format!("log.level = \"warn\"{STEPS}"), &settings);
    prepared(&without);
    let today = now_ms().div_euclid(DAY) * DAY;
    let day = today - 2 * DAY;
    let reading = |at: i64| {
        let ts = day + at * 7 * MINUTE;
        let temp = 20.0 + (at % 13) as f64 / 8.0;
        let valve = at % 5 < 2;
        format!(
            "{{\"sensor_id\":\"S1\",\"ts\":{ts},\"temp\":{temp},\"energy_total\":{},\"valve\":{valve},\"state\":\"s{}\"}}\n",
            at % 50,
            at / 20 % 3
        )
    };
    let newest = (now_ms() - day) / (7 * MINUTE);
    send(&service, &(0..newest).map(reading).collect::<String>());
    let hours_of = |service: &Service, more: &str| {
        let path = format!(
            "/v1/sensors/S1/hours?from={day}&to={}{more}",
            now_ms() + HOUR
        );
        get_complete(service, &path)["hours"].take()
    };
    let are_same = || {
        service.wait_settled(1, PATIENCE);
        let hours = hours_of(&service, "");
        assert_eq!(hours, hours_of(&without, ""));
        hours
    };
    are_same();
    wait_until("two days have their hours", PATIENCE, || {
        // The open day stays marked.
        let done = count(&database, "sensor_day_hours", doc! {}) == 2;
        (done && count(&database, "rollup_pending", doc! {}) == 1).then_some(())
    });
    let hours = are_same();
    view_has_the_hours(&database, &hours);
    quantiles_are_those_of_the_readings(&service, &without, day);
    let first = &hours[0]["fields"];
    // 9 readings: 20 to 21 in eighths, the counter from 0 to 8, the valve open twice for 14 minutes.
    let temp = &first["temp"];
    for (name, value) in [
        ("count", 9.0),
        ("min", 20.0),
        ("max", 21.0),
        ("avg", 20.5),
        ("first", 20.0),
        ("last", 21.0),
        ("increase", 1.0),
        ("covered_ms", 56.0 * 60_000.0),
        ("time_weighted_avg", 20.5),
    ] {
        assert_eq!(temp[name].as_f64(), Some(value), "{name}: {temp}");
    }
    assert!((temp["stddev"].as_f64().unwrap() - (60.0_f64 / 9.0).sqrt() / 8.0).abs() < 1e-12);
    assert_eq!(first["energy_total"]["increase"], 8.0);
    // Each value until the next one: 0 to 7.
    assert_eq!(first["energy_total"]["time_weighted_avg"], 3.5);
    assert_eq!(first["valve"]["state_ms"]["true"], 28 * MINUTE);
    assert_eq!(first["state"]["state_ms"]["s0"], 56 * MINUTE);
    let one = hours_of(&service, "&field=temp");
    assert_eq!(one[0]["fields"].as_object().unwrap().len(), 1);
    assert_eq!(one[0]["fields"]["temp"], *temp);

    // A late reading counts before its day is computed again, and afterwards.
    send(
        &service,
        &format!(
            "{{\"sensor_id\":\"S1\",\"ts\":{},\"temp\":99}}\n",
            day + MINUTE
        ),
    );
    for _ in 0..10 {
        assert_eq!(hours_of(&service, "")[0]["fields"]["temp"]["max"], 99);
        std::thread::sleep(Duration::from_millis(100));
    }
    are_same();
    let (status, _) = service.get_admin("/v1/sensors/none/hours").unwrap();
    assert_eq!(status, 404);
}

/// The view `sensor_rich_hours` has the hours of the days that are over as the read API has them.
fn view_has_the_hours(database: &str, hours: &serde_json::Value) {
    let rows = rows_of(database, "sensor_rich_hours");
    assert_eq!(rows.len(), 48);
    for (row, hour) in rows.iter().zip(hours.as_array().unwrap()) {
        let start = row.get_datetime("bucket_start").unwrap().timestamp_millis();
        assert_eq!(hour["bucket_start"], model::rfc3339(start));
        let fields = row.get_document("fields").unwrap();
        assert_eq!(fields.len(), 4, "{row}");
        let number = |field: &str, name: &str| {
            let value = fields.get_document(field).unwrap().get(name)?;
            let int = value.as_i64().or(value.as_i32().map(i64::from));
            value.as_f64().or(int.map(|int| int as f64))
        };
        for name in [
            "count",
            "min",
            "sum",
            "last",
            "increase",
            "stddev",
            "time_weighted_avg",
            "covered_ms",
        ] {
            assert_eq!(
                number("temp", name),
                hour["fields"]["temp"][name].as_f64(),
                "{name}: {row}"
            );
        }
        let states = fields.get_document("state").unwrap();
        assert!(
            !states.contains_key("count") && states.contains_key("state_last"),
            "{row}"
        );
        let lasted = states.get_document("state_ms").unwrap();
        let shown = hour["fields"]["state"]["state_ms"].as_object().unwrap();
        assert!(lasted.keys().eq(shown.keys()), "{lasted} {shown:?}");
    }
}

/// Quantiles of a range that begins and ends within an hour: from sketches, by an instance without
/// columns from the readings, and in PromQL. `temp` is 20 and 0 to 12 eighths, in turn.
fn quantiles_are_those_of_the_readings(service: &Service, without: &Service, day: i64) {
    let from = day + 20 * MINUTE;
    let to = day + 2 * DAY - 25 * MINUTE;
    let path = format!("/v1/sensors/S1/quantiles?field=temp&quantiles=0,0.5,1&from={from}&to={to}");
    let ask = |of: &Service| get_complete(of, &path);
    let found = ask(service);
    assert_eq!(found, ask(without));
    assert_eq!(found["count"], (to - 1 - day) / (7 * MINUTE) - 2);
    let is_near = |found: &serde_json::Value, value: f64| {
        let found = found.as_f64().unwrap();
        assert!((found / value - 1.0).abs() < 1.0 / 128.0, "{found} {value}");
    };
    for (quantile, value) in [("0", 20.0), ("0.5", 20.75), ("1", 21.5)] {
        is_near(&found["quantiles"][quantile], value);
    }
    for (query, at) in [
        (
            "hourbucket_quantile_over_time(0.5, temp[1d])",
            day + 2 * DAY,
        ),
        (
            "hourbucket_quantile_over_time(scalar(vector(0.5)), temp[25h30m])",
            to,
        ),
    ] {
        let query: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let path = format!("/prometheus/api/v1/query?query={query}&time={}", at / 1000);
        let (status, text) = service.get_admin(&path).unwrap();
        assert_eq!(status, 200, "{text}");
        let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
        let value = &answer["data"]["result"][0]["value"][1];
        let value: f64 = value.as_str().unwrap().parse().unwrap();
        is_near(&value.into(), 20.75);
        assert_eq!(without.get_admin(&path).unwrap().1, text);
    }
    for (path, problem) in [
        ("quantiles?quantiles=0.5", "field"),
        ("quantiles?field=temp&quantiles=1.5", "quantiles"),
        ("hours?quantiles=a", "quantiles"),
    ] {
        let (status, text) = service
            .get_admin(&format!("/v1/sensors/S1/{path}"))
            .unwrap();
        assert!(
            status == 400 && text.contains(problem),
            "{path}: {status} {text}"
        );
    }
}

#[test]
fn the_python_of_the_documentation_reads_a_column() {
    let database = unique_database("python");
    let service = start(&database, "[[fields]]\nnames = [\"temp\"]\nsketch = true");
    prepared(&service);
    let day = (now_ms() - 2 * DAY).div_euclid(DAY) * DAY;
    let reading = |minute: i64| {
        let ts = day + minute * MINUTE;
        let temp = 20.0 + (minute % 10) as f64 / 10.0;
        let state = ["on", "off"][minute as usize % 2];
        let temp = format!(",\"temp\":{temp},\"state\":\"{state}\"");
        let some = if minute % 3 == 0 { temp } else { String::new() };
        format!("{{\"sensor_id\":\"S1\",\"ts\":{ts},\"n\":{minute}{some}}}\n")
    };
    send(&service, &(0..1440).map(reading).collect::<String>());
    wait_for_columns(&database, 1440);
    let docs = std::fs::read_to_string("../../docs/columns.md").unwrap();
    let blocks = docs.split("```python run\n").skip(1);
    let code: String = blocks.map(|of| of.split_once("```").unwrap().0).collect();
    let uri = Mongod::shared().uri();
    let code = format!(
        "import pymongo\ndb = pymongo.MongoClient({uri:?})[{database:?}]\n{code}\n\
         state, _ = values(day[\"columns\"][\"state\"], day[\"count\"])\nprint(state[:3].tolist())\n\
         sketch = db.sensor_day_hours.find_one({{\"sensor_id\": \"S1\"}})[\"fields\"][\"temp\"][\"sketch\"][0]\n\
         print([round(middle(bin), 2) for bin in sketch[\"bins\"]], sketch[\"counts\"])\n"
    );
    let done = Command::new("python3")
        .args(["-c", &code])
        .env(
            "PYTHONPATH",
            python_packages("HOURBUCKET_PCODEC_PYTHONPATH", "pcodec"),
        )
        .output()
        .unwrap();
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    let printed = String::from_utf8_lossy(&done.stdout).into_owned();
    let date = chrono::DateTime::from_timestamp_millis(day).unwrap();
    let date = date.format("%Y-%m-%d");
    assert_eq!(
        printed,
        format!(
            "{date} 480 {date}T00:00:00.000 20.0 20.45\n['on', 'off', 'on']\n\
             [20.12, 20.38, 20.62, 20.88] [6, 4, 6, 4]\n"
        )
    );
}
