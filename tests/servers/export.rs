//! `hourbucket export` with a real MongoDB: what was sent comes out, in each format, from columns,
//! pages and measurements, after kills and a full disk, and `import` takes it back.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_macros,
    clippy::print_stdout,
    reason = "a test that prints"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::read_api::prepared;
use crate::support::fleet::now_ms;
use crate::support::mongod::{Kind, Mongod, python_packages, unique_database};
use crate::support::service::Service;
use crate::support::{block_on, wait_until};
use mongodb::bson::{Document, doc};
use serde_json::{Map, Value, json};

const MINUTE: i64 = 60_000;
const DAY: i64 = 24 * 60 * MINUTE;
const PATIENCE: Duration = Duration::from_secs(120);

const CONFIG: &str = "flush.max_age = \"200ms\"\nlimits.past = \"60d\"\n[rollup]\nlate = \"300ms\"\n\
    settle = \"1s\"\n[columns]\nenabled = true\n";

fn start(uri: &str, database: &str, mode: &str) -> Service {
    let settings = [
        ("STORE__URI", uri),
        ("STORE__DATABASE", database),
        ("STORE__MODE", mode),
    ];
    let service = Service::start(CONFIG, &settings);
    prepared(&service);
    service
}

fn send(service: &Service, readings: &[Value]) {
    for some in readings.chunks(2000) {
        let lines: String = some.iter().map(|reading| format!("{reading}\n")).collect();
        let answer = service.post("/v1/readings", "application/x-ndjson", lines.as_bytes());
        let (status, text) = answer.unwrap();
        assert!(status == 200 && text.contains("\"rejected\":0"), "{text}");
    }
}

fn count(uri: &str, database: &str, name: &str, filter: Document) -> u64 {
    block_on(async {
        let client = mongodb::Client::with_uri_str(uri).await.unwrap();
        let collection = client.database(database).collection::<Document>(name);
        collection.count_documents(filter).await.unwrap()
    })
}

/// Waits until so many days have columns and no day is marked.
fn wait_for_columns(uri: &str, database: &str, days: u64) {
    wait_until("the days have columns", PATIENCE, || {
        let has_all = count(uri, database, "sensor_columns", doc! {}) >= days;
        (has_all && count(uri, database, "rollup_pending", doc! {}) == 0).then_some(())
    });
}

fn midnight(days_ago: i64) -> i64 {
    now_ms().div_euclid(DAY) * DAY - days_ago * DAY
}

fn time(ms: i64) -> String {
    let time = chrono::DateTime::from_timestamp_millis(ms).unwrap();
    time.format("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()
}

/// A command against a database, from the day of `from_ms` to that of `to_ms`.
fn export(uri: &str, database: &str, dir: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hourbucket"));
    command
        .arg("export")
        .args(more)
        .arg("-o")
        .arg(dir)
        .env("HOURBUCKET_STORE__URI", uri)
        .env("HOURBUCKET_STORE__DATABASE", database)
        .env("HOURBUCKET_COLUMNS__ENABLED", "true")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn done(command: &mut Command) -> (i32, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let text = String::from_utf8([stdout, stderr].concat()).unwrap();
    (status.code().expect("it ends by itself"), text)
}

/// The files of an export, in order; none before it has begun.
fn files(dir: &Path, format: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return vec![];
    };
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|e| e == format))
        .collect();
    files.sort_unstable();
    files
}

/// The lines of NDJSON files.
fn lines(dir: &Path) -> Vec<String> {
    let texts = files(dir, "ndjson")
        .into_iter()
        .map(|file| std::fs::read_to_string(file).unwrap());
    let lines = texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>());
    lines.collect()
}

/// Readings as texts, in one order.
fn sorted(readings: impl IntoIterator<Item = Value>) -> Vec<String> {
    let mut texts: Vec<String> = readings.into_iter().map(|r| r.to_string()).collect();
    texts.sort_unstable();
    texts
}

fn parsed(lines: &[String]) -> Vec<Value> {
    let parsed = lines.iter().map(|line| serde_json::from_str(line).unwrap());
    parsed.collect()
}

/// What can go wrong in a format: kinds that change, and texts that look like something else.
fn reading(sensor: usize, at: i64, ts_ms: i64) -> Value {
    let mut values = Map::new();
    values.insert("n".into(), at.into());
    let temp = match at % 3 {
        0 => json!(20),
        1 => json!(20.0),
        _ => json!(20.0 + at as f64 / 7.0),
    };
    values.insert("temp".into(), temp);
    if at % 4 == 0 {
        values.insert("door".into(), (at % 8 == 0).into());
        let texts = [
            "20",
            "",
            "\\",
            "\\x",
            "a,\"b\"\nc",
            " x ",
            "true",
            "nan",
            "ü",
            "-",
        ];
        values.insert("state".into(), texts[at as usize / 4 % texts.len()].into());
    }
    let mixed = match at % 5 {
        0 => json!(true),
        1 => json!("on"),
        2 => json!(1),
        3 => json!((1i64 << 53) + 1),
        _ => json!(-0.5),
    };
    values.insert("mixed".into(), mixed);
    values.insert("Temp|x".into(), 1e300.into());
    values.insert("sensor_id".into(), (at * 1000).into());
    let mut reading =
        json!({ "sensor_id": format!("S{sensor}"), "ts": time(ts_ms), "values": values });
    if sensor > 0 {
        reading["tags"] = json!({ "site": "north, \"1\"", "n": "7" });
    }
    reading
}

#[test]
fn what_was_sent_comes_out_in_each_format_and_goes_in_again() {
    comes_out("bucket");
    comes_out("timeseries");
}

fn comes_out(mode: &str) {
    let uri = Mongod::shared().uri();
    let database = unique_database(&format!("export_{mode}"));
    let service = start(&uri, &database, mode);
    let from = midnight(3);
    let day = |first: i64, n: i64, every: i64| -> Vec<Value> {
        let of = |sensor| (0..n).map(move |at| reading(sensor, at, first + at * every));
        (0..3).flat_map(of).collect()
    };
    let mut sent = day(from, 600, MINUTE);
    sent.extend(day(from + DAY, 200, 3 * MINUTE));
    // Two readings in one millisecond.
    sent.push(reading(1, 7, from));
    send(&service, &sent);
    wait_for_columns(&uri, &database, 6);
    // The open day, and late readings whose columns are computed soon, or are not yet.
    let mut later = day(midnight(0), 5, 1);
    later.push(reading(2, 11, from + DAY + 1));
    send(&service, &later);
    sent.extend(later);
    service.wait_stored(sent.len() as u64, PATIENCE);
    let expected = sorted(sent.clone());

    let dir = tempfile::tempdir().unwrap();
    let range = ["--from", &time(from), "--to", &time(midnight(-1))].map(str::to_owned);
    let run = |uri: &str, database: &str, out: &str, format: &str, more: &[&str]| {
        let mut arguments: Vec<&str> = range.iter().map(String::as_str).collect();
        arguments.extend(["--format", format]);
        arguments.extend(more);
        let (code, text) = done(&mut export(
            uri,
            database,
            &dir.path().join(out),
            &arguments,
        ));
        assert_eq!(code, 0, "{text}");
        text
    };
    let text = run(&uri, &database, "ndjson", "ndjson", &[]);
    assert!(
        text.contains(&format!("{} readings in 3 files", sent.len())),
        "{text}"
    );
    let found = lines(&dir.path().join("ndjson"));
    assert!(sorted(parsed(&found)) == expected, "{}", found[0]);
    let place = |reading: &Value| {
        let text = |name: &str| reading[name].as_str().unwrap().to_owned();
        (text("ts")[..10].to_owned(), text("sensor_id"), text("ts"))
    };
    assert!(parsed(&found).iter().map(place).is_sorted(), "in order");

    for format in ["csv", "parquet", "ndjson"] {
        let out = dir.path().join(format);
        run(&uri, &database, format, format, &[]);
        if format == "parquet" {
            assert!(by_duckdb(&out) == sorted(sent.iter().map(as_row)), "DuckDB");
        }
        let other = unique_database(&format!("imported_{format}_{mode}"));
        let service = start(&uri, &other, mode);
        let mut import = Command::new(env!("CARGO_BIN_EXE_hourbucket"));
        import.args(["import", "--url", &service.http()]);
        let (code, text) = done(import.args(files(&out, format)));
        assert_eq!(code, 0, "{text}");
        service.wait_stored(sent.len() as u64, PATIENCE);
        let again = format!("{format}_again");
        run(&uri, &other, &again, "ndjson", &[]);
        let found = lines(&dir.path().join(&again));
        assert!(
            sorted(parsed(&found)) == expected,
            "{format} {mode}: {}",
            found[0]
        );
    }

    let some = ["--sensor", "S1*", "--tag", "n=7"];
    run(&uri, &database, "some", "ndjson", &some);
    let mut only = sent.clone();
    only.retain(|reading| reading["sensor_id"] == "S1");
    assert_eq!(
        sorted(parsed(&lines(&dir.path().join("some")))),
        sorted(only)
    );
}

/// A reading as a row of Parquet, without its empty columns.
fn as_row(reading: &Value) -> Value {
    let ts = chrono::DateTime::parse_from_rfc3339(reading["ts"].as_str().unwrap()).unwrap();
    let mut row = json!({ "sensor_id": reading["sensor_id"], "ts": ts.timestamp_millis() });
    for (name, value) in reading["values"].as_object().unwrap() {
        let name = match name.as_str() {
            "sensor_id" => "sensor_id_".to_owned(),
            name => name.to_owned(),
        };
        let suffix = match value {
            Value::Bool(_) if name == "mixed" => "_bool",
            Value::String(_) if name == "mixed" => "_text",
            _ => "",
        };
        if value.is_i64() {
            let int = format!("{}_int", name.trim_end_matches('_'));
            row[int] = value.clone();
            row[name] = value.as_f64().into();
        } else {
            row[format!("{name}{suffix}")] = value.clone();
        }
    }
    for (name, value) in reading["tags"].as_object().into_iter().flatten() {
        let name = if name == "n" { "n_tag" } else { name };
        row[name] = value.clone();
    }
    row
}

/// The rows that DuckDB reads, each without its empty columns.
fn by_duckdb(dir: &Path) -> Vec<String> {
    let code = format!(
        "import duckdb, json\n\
         rows = duckdb.sql(\"SELECT epoch_ms(ts) AS ts, * EXCLUDE ts FROM \
         read_parquet('{}/*.parquet', union_by_name = true)\")\n\
         names = rows.columns\n\
         for row in rows.fetchall():\n    \
         print(json.dumps({{n: v for n, v in zip(names, row) if v is not None}}))\n",
        dir.display()
    );
    let done = Command::new("python3")
        .args(["-c", &code])
        .env(
            "PYTHONPATH",
            python_packages("HOURBUCKET_DUCKDB_PYTHONPATH", "duckdb"),
        )
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{errors}");
    let printed = String::from_utf8(done.stdout).unwrap();
    sorted(
        printed
            .lines()
            .map(|line| serde_json::from_str(line).unwrap()),
    )
}

#[test]
fn a_killed_export_continues_and_a_full_disk_leaves_no_half_file() {
    let mongod = Mongod::start_kind(Kind {
        users: true,
        ..Kind::default()
    });
    let database = unique_database("export_killed");
    let service = start(&mongod.uri(), &database, "bucket");
    // Only these rights are needed.
    mongod.add_user("reader", vec![doc! { "role": "read", "db": &database }]);
    let uri = mongod.uri_as("reader");
    let from = midnight(30);
    let days = 25;
    let sensors = 40;
    let mut sent = vec![];
    for day in 0..days {
        for sensor in 0..sensors {
            let ts = |at: i64| from + day * DAY + at * 7 * MINUTE;
            sent.extend((0..20).map(|at| reading(sensor, at, ts(at))));
        }
    }
    send(&service, &sent);
    service.wait_stored(sent.len() as u64, PATIENCE);
    let expected = sorted(sent);
    let dir = tempfile::tempdir().unwrap();
    // All that there is: days without readings cost nothing.
    let range = ["--from", "0001-01-01", "--to", "9999-01-01"].map(str::to_owned);
    let run = |out: &str, format: &str| {
        let mut arguments: Vec<&str> = range.iter().map(String::as_str).collect();
        arguments.extend(["--format", format]);
        export(&uri, &database, &dir.path().join(out), &arguments)
    };

    let mut kills = 0;
    let mut names: BTreeSet<PathBuf> = BTreeSet::new();
    let out = dir.path().join("killed");
    for round in 0.. {
        let mut child = run("killed", "ndjson").spawn().unwrap();
        // Longer and longer, so that a slow machine comes to the end too.
        let patience = (60 + 37 * (round % 10)) * (20 + round) / 20;
        std::thread::sleep(Duration::from_millis(patience));
        child.kill().unwrap();
        let code = child.wait().unwrap().code();
        let named: BTreeSet<PathBuf> = files(&out, "ndjson").into_iter().collect();
        assert!(names.is_subset(&named), "a finished file stays");
        names = named;
        // All of a file that has its name are whole lines.
        let _: Vec<Value> = parsed(&lines(&out));
        match code {
            Some(code) => {
                assert_eq!(code, 0);
                break;
            }
            None => kills += 1,
        }
        assert!(round < 400, "it never ends");
    }
    assert!(kills > 1, "{kills}");
    assert!(sorted(parsed(&lines(&out))) == expected);
    let hidden = std::fs::read_dir(&out).unwrap().filter(|entry| {
        let name = entry.as_ref().unwrap().file_name();
        name.to_string_lossy().starts_with('.')
    });
    assert_eq!(hidden.count(), 0);

    // Complete: nothing is written again. With other parameters it is refused.
    let (code, text) = done(&mut run("killed", "ndjson"));
    assert!(
        code == 0 && text.contains("20000 readings in 25 files"),
        "{text}"
    );
    let (code, text) = done(&mut run("killed", "csv"));
    assert!(
        code == 2 && text.contains("other parameters (--format ndjson)"),
        "{text}"
    );

    // Files of at most 4 KiB: as on a full disk, after a part was written.
    let mut limited = Command::new("bash");
    let whole = run("full", "parquet");
    let script = "ulimit -f 4; trap '' XFSZ; exec \"$@\"";
    limited
        .args(["-c", script, "bash"])
        .arg(whole.get_program());
    limited.args(whole.get_args());
    let envs: BTreeMap<_, _> = whole.get_envs().collect();
    limited.envs(
        envs.into_iter()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    let (code, text) = done(&mut limited);
    assert!(
        code == 2 && text.contains("the same command continues"),
        "{text}"
    );
    let full = dir.path().join("full");
    assert_eq!(files(&full, "parquet"), Vec::<PathBuf>::new());
    let (code, text) = done(&mut run("full", "parquet"));
    assert!(
        code == 0 && text.contains("20000 readings in 25 files"),
        "{text}"
    );
}
