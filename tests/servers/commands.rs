//! Commands for operators against real servers: `check`, `init config`, `journal inspect`,
//! `dead-letters list`, `tail`.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use mongodb::Collection;
use mongodb::bson::{Document, doc};
use serde_json::Value;

use crate::support::block_on;
use crate::support::http_client::agent;
use crate::support::mongod::{Mongod, unique_database};
use crate::support::mosquitto::Mosquitto;
use crate::support::seed::{self, START};
use crate::support::service::Service;

const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a command in a directory with its own database; returns the exit code and what it printed.
fn run(dir: &Path, database: &str, arguments: &[&str]) -> (i32, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new(env!("CARGO_BIN_EXE_hourbucket"))
        .args(arguments)
        .current_dir(dir)
        .env("HOURBUCKET_STORE__URI", Mongod::shared().uri())
        .env("HOURBUCKET_STORE__DATABASE", database)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    (
        status.code().expect("it ends by itself"),
        String::from_utf8([stdout, stderr].concat()).unwrap(),
    )
}

#[test]
fn check_logs_in_to_the_broker_and_names_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let users = dir.path().join("users");
    let made = Command::new("mosquitto_passwd")
        .args(["-b", "-c"])
        .arg(&users)
        .args(["hb", "right"])
        .status()
        .unwrap();
    assert!(made.success());
    std::fs::set_permissions(&users, std::fs::Permissions::from_mode(0o644)).unwrap();
    let broker = Mosquitto::start(&format!(
        "allow_anonymous false\npassword_file {}",
        users.display()
    ));
    let url = broker.url();
    let database = unique_database("check");
    let init = [
        "init",
        "config",
        "--case",
        "broker",
        "--broker",
        url.as_str(),
        "--username",
        "hb",
        "--output",
        "hb.toml",
    ];
    let (code, text) = run(dir.path(), &database, &init);
    assert_eq!(code, 0, "{text}");
    let check = |password: &str| {
        let text = std::fs::read_to_string(dir.path().join("hb.toml")).unwrap();
        std::fs::write(dir.path().join("password"), password).unwrap();
        std::fs::write(
            dir.path().join("c.toml"),
            text.replace(
                "# password_file = \"mqtt-password\"",
                "password_file = \"password\"",
            ),
        )
        .unwrap();
        run(dir.path(), &database, &["check", "--config", "c.toml"])
    };
    let (code, text) = check("wrong");
    assert_eq!(code, 1, "{text}");
    assert!(
        text.contains("PROBLEM  mqtt") && !text.contains("wrong"),
        "{text}"
    );
    let (code, text) = check("right");
    assert_eq!(code, 0, "{text}");
    assert!(
        text.contains("logged in and subscribed as hourbucket-1-check"),
        "{text}"
    );
    let journal = dir.path().canonicalize().unwrap().join("journal");
    assert!(
        text.contains(&format!("ok       journal        {}: ", journal.display())),
        "{text}"
    );
    // Apart from the file that this test has written.
    let about_settings = |line: &&str| line.contains(" configuration ") && !line.contains("chmod");
    assert_eq!(
        text.lines().filter(about_settings).count(),
        1,
        "the check has no remark on its own defaults: {text}"
    );
}

#[test]
fn check_does_not_disturb_the_service_or_take_its_messages() {
    let broker = Mosquitto::start("");
    let database = unique_database("check_beside");
    let config = format!(
        "flush.max_age = \"200ms\"\n[[mqtt]]\nurl = \"{}\"\nclient_id = \"one\"\n\
         status_topic = \"st\"\n\
         [[mqtt.subscriptions]]\nfilter = \"$share/g/a/+\"\ntopic = \"a/{{sensor_id}}\"\n\
         format = \"json\"\n",
        broker.url()
    );
    let service = Service::start(
        &config,
        &[
            ("STORE__URI", &Mongod::shared().uri()),
            ("STORE__DATABASE", &database),
        ],
    );
    service.wait_subscribed();
    let publisher = |n: u32| {
        let arguments = [
            "-p",
            &broker.port().to_string(),
            "-q",
            "1",
            "-t",
            "a/S",
            "-m",
            &format!("{{\"n\":{n}}}"),
        ];
        assert!(
            Command::new("mosquitto_pub")
                .args(arguments)
                .status()
                .unwrap()
                .success()
        );
    };
    for n in 0..20 {
        publisher(n);
        if n % 5 == 0 {
            let (_, text) = run(
                service.dir(),
                &database,
                &["check", "--config", "hourbucket.toml"],
            );
            assert!(text.contains("logged in and subscribed"), "{text}");
        }
    }
    service.wait_settled(20, PATIENCE);
    assert_eq!(service.metrics().get("mqtt_reconnects_total"), 0.0);
}

#[test]
fn check_accepts_each_configuration_that_init_config_writes() {
    let broker = Mosquitto::start("");
    let url = broker.url();
    for (n, more) in [
        vec!["--case", "broker", "--broker", url.as_str()],
        vec![
            "--case",
            "broker",
            "--broker",
            url.as_str(),
            "--topic",
            "zigbee2mqtt/#",
            "--format",
            "zigbee2mqtt",
        ],
        vec!["--case", "http"],
        vec!["--case", "devices", "--topic", "site/{site}/{sensor_id}"],
        vec!["--case", "lorawan", "--server", "ttn"],
        vec!["--case", "lorawan", "--broker", url.as_str()],
    ]
    .into_iter()
    .enumerate()
    {
        let dir = tempfile::tempdir().unwrap();
        let database = unique_database(&format!("init_{n}"));
        let (code, text) = run(
            dir.path(),
            &database,
            &[&["init", "config"][..], &more].concat(),
        );
        assert_eq!(code, 0, "{more:?}: {text}");
        let (code, text) = run(
            dir.path(),
            &database,
            &["check", "--config", "hourbucket.toml"],
        );
        assert_eq!(code, 0, "{more:?}: {text}");
        assert!(!text.contains("PROBLEM"), "{text}");
    }
}

#[test]
fn an_unknown_reason_is_refused_and_the_known_ones_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    let (code, text) = run(
        dir.path(),
        "none",
        &["dead-letters", "list", "--reason", "too_odl"],
    );
    assert_eq!(code, 2, "{text}");
    assert!(
        text.contains("did you mean too_old?") && text.contains("quarantined"),
        "{text}"
    );
}

/// Buckets of two spans overlap, so a command with another span would count readings twice.
#[test]
fn reconcile_and_convert_refuse_another_span_and_a_newer_schema() {
    let dir = tempfile::tempdir().unwrap();
    let database = unique_database("other_span");
    let (code, text) = run(dir.path(), &database, &["init"]);
    assert_eq!(code, 0, "{text}");
    std::fs::write(dir.path().join("quarter.toml"), "bucket.span = \"15m\"\n").unwrap();
    let commands: [&[&str]; 3] = [
        &["reconcile"],
        &["reconcile", "--repair"],
        &["convert", "--into", "bucket"],
    ];
    for command in commands {
        let (code, text) = run(dir.path(), &database, command);
        assert_eq!(code, 0, "{text}");
        let other = [command, &["--config", "quarter.toml"]].concat();
        let (code, text) = run(dir.path(), &database, &other);
        assert_eq!(code, 2, "{text}");
        let why = "was written with bucket.span = \"1h\"";
        assert!(text.contains(why), "{text}");
    }
    block_on(async {
        let uri = Mongod::shared().uri();
        let client = mongodb::Client::with_uri_str(&uri).await.unwrap();
        let meta = client.database(&database).collection("hourbucket_meta");
        let newer = doc! { "$set": { "version": 2 } };
        let updated = Collection::<Document>::update_one(&meta, doc! { "_id": "schema" }, newer);
        assert_eq!(updated.await.unwrap().modified_count, 1);
    });
    for command in commands {
        let (code, text) = run(dir.path(), &database, command);
        assert_eq!(code, 2, "{text}");
        assert!(text.contains("newer hourbucket"), "{text}");
    }
}

/// Days of two zones overlap, so a repair with another zone would store readings in two days.
#[tokio::test(flavor = "multi_thread")]
async fn reconcile_and_convert_refuse_another_zone_and_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let database = unique_database("other_zone");
    let config = |name: &str, zone: &str| {
        let text = format!("[rollup]\ndays = true\nzone = \"{zone}\"\n");
        std::fs::write(dir.path().join(name), text).unwrap();
    };
    config("utc.toml", "UTC");
    config("berlin.toml", "Europe/Berlin");
    let (code, text) = run(dir.path(), &database, &["init", "--config", "utc.toml"]);
    assert_eq!(code, 0, "{text}");
    let uri = Mongod::shared().uri();
    let client = mongodb::Client::with_uri_str(&uri).await.unwrap();
    let db = client.database(&database);
    let page = seed::page("S", START, 0, true, &seed::readings(START, 0..3));
    let pages = db.collection::<Document>("sensor_buckets");
    pages.insert_one(page).await.unwrap();
    let days = db.collection::<Document>("sensor_days");
    let stored_days = async || days.count_documents(doc! {}).await.unwrap();
    let check = ["reconcile", "--from", "2024-03-01", "--to", "2024-03-03"];
    let repair = [&check[..], &["--repair"]].concat();
    let commands: [&[&str]; 3] = [&check, &repair, &["convert", "--into", "bucket"]];
    for command in commands {
        let other = [command, &["--config", "berlin.toml"]].concat();
        let (code, text) = run(dir.path(), &database, &other);
        assert_eq!(code, 2, "{text}");
        assert!(text.contains("has days of the zone \"UTC\""), "{text}");
        assert_eq!(stored_days().await, 0, "{command:?}");
    }
    let same = [&repair[..], &["--config", "utc.toml"]].concat();
    let (code, text) = run(dir.path(), &database, &same);
    assert_eq!((code, stored_days().await), (0, 1), "{text}");
}

#[test]
fn inspect_says_what_is_not_stored_yet() {
    let mut mongod = Mongod::start();
    let mut service = Service::start(
        "flush.max_age = \"200ms\"\nshutdown.deadline = \"1s\"\n",
        &[("STORE__URI", &mongod.uri())],
    );
    let inspect = |service: &Service| {
        let output = Command::new(env!("CARGO_BIN_EXE_hourbucket"))
            .args(["journal", "inspect", "--config", "hourbucket.toml"])
            .current_dir(service.dir())
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let body = |n: i64| format!("{{\"sensor_id\":\"S\",\"n\":{n}}}");
    assert_eq!(
        service
            .post("/v1/readings", "application/json", body(1).as_bytes())
            .unwrap()
            .0,
        200
    );
    service.wait_settled(1, PATIENCE);
    assert_eq!(service.terminate(PATIENCE), 0);
    assert!(
        inspect(&service).contains("readings, all stored"),
        "{}",
        inspect(&service)
    );
    service.restart();
    mongod.kill9();
    for n in 2..5 {
        assert_eq!(
            service
                .post("/v1/readings", "application/json", body(n).as_bytes())
                .unwrap()
                .0,
            200
        );
    }
    assert_eq!(service.terminate(PATIENCE), 3);
    assert!(
        inspect(&service).contains("3 of them not known to be stored"),
        "{}",
        inspect(&service)
    );
}

#[test]
fn tail_shows_readings_that_its_token_may_read_as_they_are_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let token = |id: &str, rules: &str| {
        let hash = net::access::hash_secret("secret");
        format!("[[tokens]]\nid = \"{id}\"\nsha256 = \"{hash}\"\n{rules}\n")
    };
    let file = dir.path().join("tokens.toml");
    std::fs::write(&file, token("all", "") + &token("part", "read = [\"A*\"]")).unwrap();
    for id in ["all", "part"] {
        std::fs::write(dir.path().join(id), format!("{id}.secret")).unwrap();
    }
    let uri = Mongod::shared().uri();
    let database = unique_database("tail");
    let path = file.display().to_string();
    let settings = [
        ("STORE__URI", &*uri),
        ("STORE__DATABASE", &*database),
        ("HTTP__TOKENS_FILE", &*path),
    ];
    let service = Service::start("", &settings);
    let start = |more: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_hourbucket"))
            .args(["tail", "--url", &service.admin()])
            .args(more)
            .current_dir(dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let refused = start(&[]).wait_with_output().unwrap();
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("401"));
    let mut tails = [
        start(&["--token-file", "all", "--sensor", "A2"]),
        start(&["--token-file", "part"]),
    ];
    // Both are watching when the service has answered them.
    crate::support::wait_until("both are watching", PATIENCE, || {
        // One was refused.
        (service
            .metrics()
            .labelled("http_requests_total", "route", "/v1/tail")
            >= 3.0)
            .then_some(())
    });
    let agent = agent();
    let body = "[{\"sensor_id\":\"B1\",\"n\":0},{\"sensor_id\":\"A1\",\"n\":1},{\"sensor_id\":\"A2\",\"n\":2},{\"sensor_id\":\"A2\"}]";
    let request = agent
        .post(format!("{}/v1/readings", service.http()))
        .header("authorization", "Bearer all.secret")
        .header("content-type", "application/json");
    assert_eq!(request.send(body).unwrap().status(), 200);
    let line = |n: usize, out: &mut BufReader<std::process::ChildStdout>| -> Value {
        let mut text = String::new();
        out.read_line(&mut text).unwrap();
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{n}: {e}: {text:?}"))
    };
    let mut all = BufReader::new(tails[0].stdout.take().unwrap());
    let mut part = BufReader::new(tails[1].stdout.take().unwrap());
    let seen = line(0, &mut all);
    assert_eq!(
        (&seen["sensor_id"], &seen["values"]["n"], &seen["source"]),
        (&"A2".into(), &2.into(), &"http".into())
    );
    assert_eq!(
        [line(1, &mut part), line(1, &mut part)].map(|seen| seen["values"]["n"].clone()),
        [1, 2].map(Value::from)
    );
    // A revoked token ends its stream.
    std::fs::write(&file, token("all", "")).unwrap();
    service.sighup();
    assert!(!tails[1].wait().unwrap().success());
    tails[0].kill().unwrap();
    tails[0].wait().unwrap();
}
