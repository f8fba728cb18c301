//! Existing clients of Prometheus' API, against ours: `promtool query` and the official Go client.

#![allow(clippy::unwrap_used, reason = "a test")]
#![allow(clippy::disallowed_macros, reason = "says that it is skipped")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::support;
use crate::support::mongod::{Mongod, unique_database};
use crate::support::service::Service;
use crate::support::watch::promtool;
use serde_json::{Value, json};

const HOUR_S: i64 = 3600;

/// S1 in the north and S2 in the south report 1, 2, … once a minute for three hours; returns the
/// first time.
fn service(test: &str) -> (Service, i64) {
    let uri = Mongod::shared().uri();
    let database = unique_database(test);
    let text = "flush.max_age = \"200ms\"\nlog.level = \"warn\"\n";
    let service = Service::start(
        text,
        &[("STORE__URI", &uri), ("STORE__DATABASE", &database)],
    );
    let base_s = support::fleet::now_ms() / 1000 / HOUR_S * HOUR_S - 5 * HOUR_S;
    let mut lines = String::new();
    for minute in 1..=180 {
        for (sensor, site) in [("S1", "north"), ("S2", "south")] {
            let ts = base_s + minute * 60 - 30;
            let reading = json!({ "sensor_id": sensor, "ts": ts, "tags": { "site": site }, "values": { "temp": minute } });
            lines += &format!("{reading}\n");
        }
    }
    let (status, text) = service
        .post("/v1/readings", "application/x-ndjson", lines.as_bytes())
        .unwrap();
    assert_eq!(status, 200, "{text}");
    service.wait_settled(360, Duration::from_secs(60));
    (service, base_s)
}

#[test]
fn promtool_queries_the_readings() {
    let (service, base_s) = service("promtool");
    let url = format!("{}/prometheus", service.admin());
    let start = base_s + HOUR_S;
    let end = base_s + 3 * HOUR_S;
    let ask = |kind: &str, options: &[String], rest: &[&str]| {
        let mut arguments = vec!["query", kind];
        arguments.extend(options.iter().map(String::as_str));
        arguments.push(&url);
        arguments.extend(rest);
        promtool(&arguments, "")
    };
    let (ok, printed) = ask(
        "instant",
        &[format!("--time={start}")],
        &["temp{site=\"north\"}"],
    );
    assert!(ok, "{printed}");
    assert_eq!(
        printed.trim(),
        format!("temp{{sensor_id=\"S1\", site=\"north\"}} => 60 @[{start}]")
    );
    let range = [
        format!("--start={start}"),
        format!("--end={end}"),
        "--step=1h".to_owned(),
    ];
    let (ok, printed) = ask("range", &range, &["sum(avg_over_time(temp[1h]))"]);
    // The means of 1 to 60, 61 to 120 and 121 to 180, for two sensors.
    let lines: Vec<&str> = printed.trim().lines().collect();
    let expected = [61.0, 181.0, 301.0]
        .iter()
        .zip([start, start + HOUR_S, end]);
    let expected: Vec<String> = expected
        .map(|(mean, at)| format!("{mean} @[{at}]"))
        .collect();
    assert!(
        ok && lines[0] == "{} =>" && lines[1..] == expected,
        "{printed}"
    );
    let times = [format!("--start={start}"), format!("--end={end}")];
    let matching = [&times[..], &["--match=temp{sensor_id=~\"S.*\"}".to_owned()]].concat();
    let (ok, printed) = ask("series", &matching, &[]);
    let mut lines: Vec<&str> = printed.trim().lines().collect();
    lines.sort_unstable();
    let wanted = [
        "{__name__=\"temp\", sensor_id=\"S1\", site=\"north\"}",
        "{__name__=\"temp\", sensor_id=\"S2\", site=\"south\"}",
    ];
    assert!(ok && lines == wanted, "{printed}");
    let (ok, printed) = ask("labels", &times, &["site"]);
    assert!(
        ok && printed.split_whitespace().collect::<Vec<_>>() == ["north", "south"],
        "{printed}"
    );
    let (ok, printed) = ask("instant", &[], &["sum("]);
    assert!(!ok && printed.contains("bad_data"), "{printed}");
}

/// Builds the Go program; `None` if there is no Go.
fn go_client() -> Option<PathBuf> {
    let source =
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/promql_client");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("promqlclient");
    let built = Command::new("go")
        .arg("build")
        .arg("-o")
        .arg(&program)
        .arg(".")
        .current_dir(source)
        .output();
    let Ok(built) = built else {
        eprintln!(
            "skipped: there is no Go on this machine, so the official Go client was not tested"
        );
        return None;
    };
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    Some(program)
}

#[test]
fn the_official_go_client_understands_every_answer() {
    let Some(program) = go_client() else { return };
    let (service, base_s) = service("go_client");
    let start = base_s + HOUR_S;
    let end = base_s + 3 * HOUR_S;
    let output = Command::new(program)
        .arg(format!("{}/prometheus", service.admin()))
        .args([start.to_string(), end.to_string()])
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}");
    let lines = printed
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap_or_else(|e| panic!("{e}: {line}")));
    let answers: BTreeMap<String, Value> = lines
        .map(|line| (line["what"].as_str().unwrap().to_owned(), line))
        .collect();
    let of = |what: &str| {
        let line = &answers[what];
        assert!(line["error"].is_null(), "{line}");
        &line["answer"]
    };
    let labels =
        |sensor: &str, site: &str| json!({ "__name__": "temp", "sensor_id": sensor, "site": site });
    assert_eq!(
        *of("query"),
        json!([{ "metric": labels("S1", "north"), "value": [start, "60"] }])
    );
    assert_eq!(*of("query warnings"), Value::Null);
    assert_eq!(*of("scalar"), json!([start, "2"]));
    let values = json!([[start, "30.5"], [start + HOUR_S, "90.5"], [end, "150.5"]]);
    let matrix =
        ["north", "south"].map(|site| json!({ "metric": { "site": site }, "values": values }));
    assert_eq!(*of("query_range"), json!(matrix));
    for (what, kind, text) in [
        ("bad query", "bad_data", ""),
        (
            "unsupported",
            "bad_data",
            "1:1: parse error: function \"info\" is not supported",
        ),
    ] {
        let error = answers[what]["error"].as_str().unwrap_or_default();
        assert!(
            answers[what]["type"] == kind && error.contains(text),
            "{}",
            answers[what]
        );
    }
    assert_eq!(
        *of("series"),
        json!([labels("S1", "north"), labels("S2", "south")])
    );
    assert_eq!(
        *of("limited series"),
        json!(["results truncated due to limit"])
    );
    assert_eq!(*of("labels"), json!(["__name__", "sensor_id", "site"]));
    assert_eq!(*of("label values"), json!(["S2"]));
    assert_eq!(*of("fields"), json!(["temp"]));
    assert_eq!(
        *of("metadata"),
        json!({ "temp": [{ "type": "gauge", "help": "", "unit": "" }] })
    );
    assert_eq!(of("buildinfo")["version"], "3.12.0");
}
