//! Every scenario in its short version, on the real binaries: it runs, its check passes, and a
//! store that was damaged on purpose fails it. Figures are not compared.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The service that `cargo test --workspace` has built next to this test.
fn service() -> PathBuf {
    if let Some(named) = std::env::var_os("HOURBUCKET_TEST_BINARY") {
        return named.into();
    }
    let binary = Path::new(env!("CARGO_BIN_EXE_loadtest")).with_file_name("hourbucket");
    assert!(
        binary.is_file(),
        "{} is missing: cargo build, or cargo test --workspace",
        binary.display()
    );
    binary
}

fn mongod() -> PathBuf {
    if let Some(named) = std::env::var_os("HOURBUCKET_MONGOD") {
        return named.into();
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let tools =
        std::env::var_os("HOURBUCKET_TOOLS").map_or_else(|| root.join(".tools"), PathBuf::from);
    let downloaded = tools.join("mongodb-6.0.5/bin/mongod");
    match downloaded.is_file() {
        true => downloaded,
        false => "mongod".into(),
    }
}

fn loadtest(arguments: &[&str]) -> (Output, PathBuf) {
    let out = tempfile::tempdir().unwrap().keep();
    // A timeout makes a hanging run a failure with a message.
    let output = Command::new("timeout")
        .args(["--kill-after=10", "300", env!("CARGO_BIN_EXE_loadtest")])
        .args(arguments)
        .args(["--short", "--binary"])
        .arg(service())
        .arg("--out")
        .arg(&out)
        .env("HOURBUCKET_MONGOD", mongod())
        .output()
        .unwrap();
    (output, out)
}

/// Runs a scenario; returns its exit code, its output, and its report.
fn run(spec: &str, more: &[&str]) -> (Option<i32>, String, serde_json::Value) {
    let (output, out) = loadtest(&[&["run", spec], more].concat());
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    let report = std::fs::read(out.join(format!("{spec}.json")))
        .unwrap_or_else(|e| panic!("no report ({e}):\n{text}"));
    let plot = std::fs::read_to_string(out.join(format!("{spec}-rate.svg"))).unwrap();
    assert!(plot.contains("<polyline"), "{plot}");
    std::fs::remove_dir_all(out).unwrap();
    (
        output.status.code(),
        text,
        serde_json::from_slice(&report).unwrap(),
    )
}

/// Runs a scenario whose check must pass.
fn sound(spec: &str) -> serde_json::Value {
    let (code, text, report) = run(spec, &[]);
    assert_eq!(code, Some(0), "{text}");
    let sent = report["readings"].as_u64().unwrap();
    let check = &report["check"];
    assert!(sent > 0, "{text}");
    assert_eq!(
        (check["acknowledged"].as_u64(), check["stored"].as_u64()),
        (Some(sent), Some(sent)),
        "{text}"
    );
    assert!(
        report["used"]["service"]["cpu_s"].as_f64().unwrap() > 0.0,
        "{text}"
    );
    assert!(
        report["used"]["mongod"]["written_bytes"].as_u64().unwrap() > 0,
        "{text}"
    );
    report
}

#[test]
fn gateway() {
    let report = sound("gateway");
    assert_eq!(report["phases"].as_array().unwrap().len(), 2);
    let half = &report["phases"][1];
    assert!(
        half["rate"].as_f64().unwrap() > 0.0,
        "the second phase is an open loop: {report}"
    );
    assert!(
        half["disk_ms"]["p50"].as_f64().unwrap() > 0.0,
        "the disk is measured meanwhile: {report}"
    );
}

#[test]
fn gateway_line() {
    assert_eq!(sound("gateway-line")["format"], "line");
}

#[test]
fn gateway_timeseries() {
    let report = sound("gateway-timeseries");
    assert!(
        report["statements"]["measurement"].as_u64().unwrap() > 0,
        "{report}"
    );
}

/// The same answers from every layout, and each question in each of them.
#[test]
fn reads() {
    let (output, out) = loadtest(&["reads"]);
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(output.status.code(), Some(0), "{text}");
    let reads: serde_json::Value =
        serde_json::from_slice(&std::fs::read(out.join("reads.json")).unwrap()).unwrap();
    assert_eq!(
        reads["rows"].as_array().unwrap().len(),
        5 * 6,
        "four layouts, two of them also by the read API: {text}"
    );
    let examined = |layout: &str| {
        let mut rows = reads["rows"].as_array().unwrap().iter();
        let is_it = |row: &&serde_json::Value| {
            row["layout"].as_str().unwrap().starts_with(layout)
                && row["question"].as_str().unwrap().contains("of one")
        };
        rows.find(is_it).unwrap()["examined"][0].as_u64().unwrap()
    };
    assert_eq!(
        (examined("hourbucket"), examined("one document")),
        (48, 48 * 60),
        "{text}"
    );
    std::fs::remove_dir_all(out).unwrap();
}

#[test]
fn soak() {
    let (output, out) = loadtest(&["soak", "--mode", "timeseries"]);
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(output.status.code(), Some(0), "{text}");
    let soak: serde_json::Value =
        serde_json::from_slice(&std::fs::read(out.join("soak-timeseries.json")).unwrap()).unwrap();
    assert_eq!(soak["check"]["acknowledged"], soak["readings"], "{text}");
    let events: Vec<&str> = soak["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| event["what"].as_str().unwrap())
        .collect();
    assert_eq!(
        events,
        [
            "broker restarted",
            "MongoDB restarted",
            "configuration reloaded"
        ]
    );
    assert!(
        soak["retries"].as_u64().unwrap() > 0,
        "messages were sent again after the broker's restart: {text}"
    );
    let minutes = soak["minutes"].as_array().unwrap();
    assert_eq!(minutes.len(), 8);
    for value in ["rss_mib", "threads", "files", "core"] {
        assert!(
            minutes
                .iter()
                .all(|minute| minute[value].as_f64().unwrap() > 0.0),
            "{value}: {text}"
        );
    }
    assert_eq!(
        std::fs::read_to_string(out.join("soak-timeseries.svg"))
            .unwrap()
            .matches("<g ")
            .count(),
        6
    );
    std::fs::remove_dir_all(out).unwrap();
}

#[test]
fn fleet() {
    let report = sound("fleet");
    assert!(
        report["used"]["broker"]["cpu_s"].as_f64().unwrap() > 0.0,
        "{report}"
    );
}

#[test]
fn direct() {
    sound("direct");
}

#[test]
fn direct_mqtt() {
    let report = sound("direct-mqtt");
    let rate = &report["phases"][1];
    assert!(
        rate["syncs"].as_u64().unwrap() > 0 && rate["service_cpu_s"].as_f64().unwrap() > 0.0,
        "{report}"
    );
}

#[test]
fn direct_mqtt_1k() {
    sound("direct-mqtt-1k");
}

#[test]
fn quiet() {
    assert_eq!(sound("quiet")["phases"].as_array().unwrap().len(), 2);
}

#[test]
fn wide() {
    let report = sound("wide");
    assert!(
        report["rss_settled_bytes"].as_u64().unwrap() > 0,
        "{report}"
    );
}

#[test]
fn wide_timeseries() {
    assert_eq!(sound("wide-timeseries")["mode"], "timeseries");
}

#[test]
fn gateway_stored() {
    sound("gateway-stored");
}

#[test]
fn wide_1k() {
    sound("wide-1k");
}

#[test]
fn backlog() {
    let report = sound("backlog");
    assert_eq!(report["readings"], 200 * 60);
}

#[test]
fn burst() {
    assert_eq!(sound("burst")["phases"].as_array().unwrap().len(), 4);
}

#[test]
fn outage() {
    let report = sound("outage");
    let outage = &report["phases"][1]["outage"];
    assert!(outage["backlog"].as_u64().unwrap() > 0, "{report}");
    assert!(outage["gone_after_s"].as_f64().is_some(), "{report}");
}

#[test]
fn remove() {
    let report = sound("remove");
    let removal = &report["phases"][1]["removal"];
    assert!(removal["readings"].as_u64().unwrap() >= 5_000, "{report}");
    assert!(removal["seconds"].as_f64().unwrap() > 0.0, "{report}");
}

#[test]
fn a_missing_reading_is_found() {
    for spec in ["gateway", "gateway-timeseries"] {
        let (code, text, report) = run(spec, &["--tamper", "missing"]);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains(" missing, with ts ["), "{text}");
        assert!(
            report["check"]["stored"].as_u64() < report["check"]["acknowledged"].as_u64(),
            "{text}"
        );
    }
}

#[test]
fn a_doubled_reading_is_found() {
    for spec in ["gateway", "gateway-timeseries"] {
        let (code, text, report) = run(spec, &["--tamper", "doubled"]);
        assert_eq!(code, Some(1), "{text}");
        assert!(
            text.contains("; 1 stored more than once, with ts ["),
            "{text}"
        );
        let count = |key: &str| report["check"][key].as_u64().unwrap();
        assert_eq!(count("stored"), count("acknowledged") + 1, "{text}");
    }
}

#[test]
fn the_comparison_prints_ratios() {
    let (output, out) = loadtest(&[
        "compare",
        "--only",
        "naive,arrival,sorted,pages,gateway,acknowledge,fleet,\
         questdb,victoria-metrics,telegraf,telegraf-batch",
    ]);
    let text = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{text}{error}");
    for part in ["questdb", "victoria-metrics", "telegraf", "telegraf-batch"] {
        let skipped = error.contains(&format!("{part}:\n  skipped: "));
        assert!(skipped || text.contains(&format!("| {part}")), "{error}");
    }
    for row in [
        "| naive: ",
        "| arrival: ",
        "| sorted: ",
        "| pages: ",
        "| gateway: ",
        "| acknowledge | ",
        "| fleet: ",
    ] {
        assert!(text.contains(row), "no row {row}:\n{text}");
    }
    let ratio = text
        .lines()
        .find(|line| line.contains("times naive (a)"))
        .unwrap();
    assert!(ratio.contains("met") || ratio.contains("missed"), "{ratio}");
    assert!(
        text.lines()
            .any(|line| line.contains("outage") && line.contains("not measured")),
        "{text}"
    );
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(out.join("compare.json")).unwrap()).unwrap();
    assert!(
        json["targets"].as_array().unwrap().len() > 8
            && json["parts"].as_array().unwrap().len() >= 7
    );
    std::fs::remove_dir_all(out).unwrap();
}

#[test]
fn a_change_is_compared_before_and_after() {
    let output = Command::new(env!("CARGO_BIN_EXE_loadtest"))
        .args([
            "pair",
            "gateway",
            "--short",
            "--rounds",
            "2",
            "--each-phase",
            "--set",
            "FLUSH__COMMANDS_MAX=1",
            "--before",
        ])
        .arg(service())
        .arg("--after")
        .arg(service())
        .env("HOURBUCKET_MONGOD", mongod())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        text.contains("`pair gateway`, 2 runs with each in turns"),
        "{text}"
    );
    let row = text
        .lines()
        .find(|line| line.starts_with("| service CPU-s per million |"))
        .unwrap();
    let ratio: f64 = row
        .trim_end_matches(" |")
        .rsplit(' ')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    assert!(ratio > 0.0, "{row}");
    let phases = ["| full: acknowledged/s |", "| half: ack p99.9, ms |"];
    for start in phases {
        assert!(text.lines().any(|line| line.starts_with(start)), "{text}");
    }
}

#[test]
fn a_run_that_is_not_possible_is_an_error() {
    let output = Command::new(env!("CARGO_BIN_EXE_loadtest"))
        .args([
            "run",
            "gateway",
            "--short",
            "--binary",
            "/nonexistent/hourbucket",
        ])
        .env("HOURBUCKET_MONGOD", mongod())
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(
        error.contains("/nonexistent/hourbucket is not a file"),
        "{error}"
    );
}
