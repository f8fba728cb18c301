//! `hourbucket import` against a running service and a real MongoDB: killed, repeated, and
//! everything stored once.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use crate::support::fleet::now_ms;
use crate::support::http_client::agent;
use crate::support::mongod::{Mongod, unique_database};
use crate::support::service::Service;
use crate::support::stored::Stored;
use crate::support::{stored, wait_until};

const PATIENCE: Duration = Duration::from_secs(120);
const ROWS: i64 = 30_000;

fn start(service: &Service, dir: &Path, arguments: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_hourbucket"))
        .args(["import", "--url", &service.http()])
        .args(arguments)
        .current_dir(dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Exit code and what it printed.
fn run(service: &Service, dir: &Path, arguments: &[&str]) -> (i32, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = start(service, dir, arguments).wait_with_output().unwrap();
    let text = String::from_utf8([stdout, stderr].concat()).unwrap();
    (status.code().expect("it ends by itself"), text)
}

#[test]
fn killed_twice_and_repeated_every_row_of_five_years_ago_is_stored_once_in_both_modes() {
    killed("bucket");
    killed("timeseries");
}

fn killed(mode: &str) {
    let uri = Mongod::shared().uri();
    let database = unique_database(&format!("import_{mode}"));
    let config = format!("store.mode = \"{mode}\"\nflush.max_age = \"200ms\"\n");
    let mut service = Service::start(
        &config,
        &[("STORE__URI", &uri), ("STORE__DATABASE", &database)],
    );
    let dir = tempfile::tempdir().unwrap();
    let first_ms = now_ms() - 5 * 365 * 86_400_000;
    let mut text = String::from("Messstelle;Zeit;n\r\n");
    let mut expected: BTreeMap<Stored, u32> = BTreeMap::new();
    for n in 0..ROWS {
        let sensor = format!("M{}", n % 20);
        let ts = first_ms + n * 1000;
        writeln!(text, "{sensor};{ts};{n}\r").unwrap();
        expected.insert((sensor, ts, n), 1);
    }
    // Without a time, and from the year 1970: neither could be recognised in a second run.
    text += "M1;;7\r\nM1;5;7\r\n";
    std::fs::write(dir.path().join("old.csv"), text).unwrap();
    let options = [
        "old.csv",
        "--delimiter",
        ";",
        "--sensor",
        "Messstelle",
        "--time",
        "Zeit",
        "--batch",
        "100",
    ];
    let accepted = |service: &Service| service.metrics().get("readings_accepted_total") as i64;
    for part in [1, 2] {
        let mut import = start(&service, dir.path(), &options);
        wait_until("a part is imported", PATIENCE, || {
            (accepted(&service) > part * ROWS / 4).then_some(())
        });
        // SIGKILL.
        import.kill().unwrap();
        import.wait().unwrap();
        assert!(
            accepted(&service) < part * ROWS / 2,
            "it must not be complete yet"
        );
        if part == 1 {
            service.restart();
        }
    }
    let (code, out) = run(&service, dir.path(), &options);
    assert_eq!(code, 1, "{out}");
    assert!(
        out.contains("1 missing_timestamp, first on line 30002: the row has no time"),
        "{out}"
    );
    assert!(
        out.contains("1 clock_not_set, first on line 30003"),
        "{out}"
    );
    let state = std::fs::read_to_string(dir.path().join("old.csv.import")).unwrap();
    assert!(
        state.contains("\"complete\": true") && state.contains("\"lines\": 30003"),
        "{state}"
    );
    let settled = service.wait_settled(1, PATIENCE);
    let stored = stored::readings(&uri, &database);
    assert_eq!(stored.len(), expected.len());
    assert!(stored == expected, "each row once");
    // Run twice: nothing is sent again, and nothing rejected. From the start: everything is recognised.
    let before = settled.get("readings_accepted_total");
    assert_eq!(run(&service, dir.path(), &options).0, 0);
    assert_eq!(service.metrics().get("readings_accepted_total"), before);
    let (_, out) = run(
        &service,
        dir.path(),
        &[&options[..], &["--restart"]].concat(),
    );
    assert!(out.contains("30000 readings accepted"), "{out}");
    service.wait_settled(before as u64 + 30_000, PATIENCE);
    assert!(
        stored::readings(&uri, &database) == expected,
        "each row once"
    );
    assert_eq!(service.terminate(PATIENCE), 0);
}

/// From standard input: killed, and run again with all of it. No state is kept, and everything is
/// stored once.
#[test]
fn standard_input_is_stored_once_if_it_is_killed_and_repeated() {
    let uri = Mongod::shared().uri();
    let database = unique_database("import_stdin");
    let settings = [("STORE__URI", &*uri), ("STORE__DATABASE", &*database)];
    let service = Service::start(
        "store.mode = \"bucket\"\nflush.max_age = \"200ms\"\n",
        &settings,
    );
    let dir = tempfile::tempdir().unwrap();
    let first_ms = now_ms() - 2 * 365 * 86_400_000;
    let mut text = String::from("sensor_id;ts;n\n");
    let mut expected: BTreeMap<Stored, u32> = BTreeMap::new();
    for n in 0..ROWS {
        let sensor = format!("I{}", n % 20);
        let ts = first_ms + n * 1000;
        writeln!(text, "{sensor};{ts};{n}").unwrap();
        expected.insert((sensor, ts, n), 1);
    }
    std::fs::write(dir.path().join("all.csv.gz"), gzip(text.as_bytes())).unwrap();
    let pipe = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_hourbucket"))
            .args([
                "import",
                "--url",
                &service.http(),
                "-",
                "--format",
                "csv",
                "--delimiter",
                ";",
            ])
            .args(arguments)
            .current_dir(dir.path())
            .stdin(std::fs::File::open(dir.path().join("all.csv.gz")).unwrap())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let mut killed = pipe(&["--batch", "100"]);
    let accepted = || service.metrics().get("readings_accepted_total") as i64;
    wait_until("a part is imported", PATIENCE, || {
        (accepted() > ROWS / 4).then_some(())
    });
    killed.kill().unwrap();
    killed.wait().unwrap();
    let part = accepted();
    assert!(part < ROWS, "it must not be complete yet");
    let output = pipe(&[]).wait_with_output().unwrap();
    let printed = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(
        output.status.success() && printed.contains("no state is kept"),
        "{printed}"
    );
    assert!(printed.contains("30000 readings accepted"), "{printed}");
    service.wait_settled(accepted() as u64, PATIENCE);
    assert!(
        stored::readings(&uri, &database) == expected,
        "each row once"
    );
    assert_eq!(
        std::fs::read_dir(dir.path()).unwrap().count(),
        1,
        "no state is written"
    );
    let twice = Command::new(env!("CARGO_BIN_EXE_hourbucket"))
        .args(["import", "-", "-"])
        .output()
        .unwrap();
    assert!(
        !twice.status.success() && String::from_utf8_lossy(&twice.stderr).contains("name it once")
    );
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut gzip = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
    gzip.write_all(bytes).unwrap();
    gzip.finish().unwrap()
}

#[test]
fn line_protocol_and_ndjson_with_a_token_and_old_readings_are_refused_without_import() {
    let uri = Mongod::shared().uri();
    let database = unique_database("import_token");
    let dir = tempfile::tempdir().unwrap();
    let hash = net::access::hash_secret("secret");
    let entry = format!("[[tokens]]\nid = \"old\"\nsha256 = \"{hash}\"\nwrite = [\"A*\"]\n");
    std::fs::write(dir.path().join("tokens.toml"), entry).unwrap();
    std::fs::write(dir.path().join("token"), "old.secret\n").unwrap();
    let tokens = dir.path().join("tokens.toml").display().to_string();
    let settings = [
        ("STORE__URI", &*uri),
        ("STORE__DATABASE", &*database),
        ("HTTP__TOKENS_FILE", &*tokens),
    ];
    let service = Service::start("flush.max_age = \"200ms\"\n", &settings);
    let old_s = now_ms() / 1000 - 3 * 365 * 86_400;
    let line = format!(
        "m,sensor_id=A1 n=1i {old_s}000000000\nm,sensor_id=B1 n=2i {old_s}000000000\n\
         m,sensor_id=A1\n"
    );
    std::fs::write(dir.path().join("old.lp"), line).unwrap();
    std::fs::write(
        dir.path().join("old.ndjson"),
        format!("{{\"sensor_id\":\"A2\",\"ts\":{old_s},\"n\":3}}"),
    )
    .unwrap();
    let (code, out) = run(&service, dir.path(), &["old.lp"]);
    assert!(code == 2 && out.contains("401"), "{out}");
    let (code, out) = run(
        &service,
        dir.path(),
        &["old.lp", "old.ndjson", "--token-file", "token"],
    );
    assert_eq!(code, 1, "{out}");
    assert!(
        out.contains("1 not_allowed, first on line 2")
            && out.contains("1 invalid_line, first on line 3"),
        "{out}"
    );
    service.wait_settled(2, PATIENCE);
    let at = old_s * 1000;
    let expected = BTreeMap::from([(("A1".to_owned(), at, 1), 1), (("A2".to_owned(), at, 3), 1)]);
    assert_eq!(stored::readings(&uri, &database), expected);
    // The same without `import=true`.
    let agent = agent();
    let body = format!("{{\"sensor_id\":\"A2\",\"ts\":{old_s},\"n\":3}}");
    let request = agent
        .post(format!("{}/v1/readings", service.http()))
        .header("authorization", "Bearer old.secret")
        .header("content-type", "application/json");
    let mut answer = request.send(body.as_bytes()).unwrap();
    assert!(
        answer
            .body_mut()
            .read_to_string()
            .unwrap()
            .contains("too_old")
    );
}
