//! `hourbucket dead-letters` on a real MongoDB: listing, and replays that store every reading once.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use crate::support::fleet::now_ms;
use crate::support::mongod::{Mongod, unique_database};
use crate::support::mosquitto::Mosquitto;
use crate::support::seed;
use crate::support::service::Service;
use crate::support::stored::Stored;
use crate::support::{block_on, stored, wait_until};
use config::StoreMode;
use model::{DEAD_PAYLOAD_BYTES_MAX, DeadLetter, Span};
use serde_json::Value;
use store::Store;
use store::mongo::MongoStore;

const PATIENCE: Duration = Duration::from_secs(60);
const DAY: i64 = 86_400_000;

/// A database, and the binary with the current settings.
struct Setup {
    database: String,
    settings: config::Store,
    dir: tempfile::TempDir,
}

impl Setup {
    fn new(test: &str, mode: StoreMode) -> Setup {
        let database = unique_database(test);
        let uri = config::Secret::new(Mongod::shared().uri());
        let settings = config::Store {
            uri,
            database: database.clone(),
            mode,
            ..config::Config::default().store
        };
        let setup = Setup {
            database,
            settings,
            dir: tempfile::tempdir().unwrap(),
        };
        setup.settings("");
        setup
    }

    /// Inserts them as the service does. (The driver belongs to one runtime, and each `block_on`
    /// creates another.)
    fn keep(&self, dead_letters: &[DeadLetter]) {
        block_on(async {
            let month = Duration::from_secs(30 * 86_400);
            let store = MongoStore::new(&self.settings, Span::HOUR, month)
                .await
                .unwrap();
            store.prepare().await.unwrap();
            store.write_dead_letters(dead_letters).await.unwrap();
        });
    }

    fn settings(&self, text: &str) {
        std::fs::write(self.dir.path().join("hourbucket.toml"), text).unwrap();
    }

    fn start(&self, arguments: &[&str]) -> Child {
        Command::new(env!("CARGO_BIN_EXE_hourbucket"))
            .arg("dead-letters")
            .args(arguments)
            .args(["--config", "hourbucket.toml"])
            .current_dir(self.dir.path())
            .env("HOURBUCKET_STORE__URI", Mongod::shared().uri())
            .env("HOURBUCKET_STORE__DATABASE", &self.database)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it runs")
    }

    /// Exit code, standard output, standard error.
    fn run(&self, arguments: &[&str]) -> (i32, String, String) {
        let Output {
            status,
            stdout,
            stderr,
        } = self.start(arguments).wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (
            status.code().expect("it ends by itself"),
            text(stdout),
            text(stderr),
        )
    }

    fn list(&self, arguments: &[&str]) -> Vec<Value> {
        let (code, out, err) = self.run(&[&["list"][..], arguments].concat());
        assert_eq!(code, 0, "{err}");
        out.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    fn stored(&self) -> BTreeMap<Stored, u32> {
        stored::readings(&Mongod::shared().uri(), &self.database)
    }
}

fn mqtt(received_at_ms: i64, topic: &str, payload: &str) -> DeadLetter {
    DeadLetter::keep(
        received_at_ms,
        "mqtt",
        topic,
        payload.as_bytes(),
        "topic_mismatch",
        "as it was",
    )
}

/// A broker that nothing connects to: only its subscriptions matter.
fn settings(mode: &str, template: &str, more: &str) -> String {
    format!(
        "store.mode = \"{mode}\"\nflush.max_age = \"100ms\"\n{more}\n[[mqtt]]\n\
         url = \"mqtt://127.0.0.1:1\"\nclient_id = \"x\"\n[[mqtt.subscriptions]]\n\
         filter = \"fleet/#\"\ntopic = \"{template}\"\nformat = \"json\"\n"
    )
}

#[test]
fn with_corrected_settings_the_readings_are_stored_once_in_both_modes() {
    replayed("bucket", StoreMode::Bucket);
    replayed("timeseries", StoreMode::Timeseries);
}

fn replayed(mode: &str, store_mode: StoreMode) {
    let setup = Setup::new(&format!("replayed_{mode}"), store_mode);
    let at = now_ms() - 20 * DAY;
    let old = at - 100 * DAY;
    let lines =
        format!("{{\"sensor_id\":\"R\",\"ts\":{at},\"ts_unit\":\"ms\",\"values\":{{\"n\":30}}}}\n");
    let too_old = format!("{{\"ts\":{old},\"n\":20}}");
    let mut dead_letters = vec![
        mqtt(at, "fleet/S1", &format!("{{\"ts\":{},\"n\":1}}", at - 5)),
        mqtt(at + 1, "fleet/S1", "{\"n\":2}"),
        // Two messages of one millisecond without their own time are two readings.
        mqtt(at + 2, "fleet/S1", "{\"n\":3}"),
        mqtt(at + 2, "fleet/S1", "{\"n\":3}"),
        mqtt(
            at + 3,
            "fleet/S2",
            &format!("[{{\"ts\":{at},\"n\":10}},{{\"n\":11}},{{\"ts\":\"never\",\"n\":12}}]"),
        ),
        mqtt(at + 4, "fleet/S2", &too_old),
        mqtt(at + 5, "fleet/S2", "{\"n\":"),
        mqtt(at + 6, "elsewhere/S2", "{\"n\":7}"),
        mqtt(at + 7, "fleet/S2", "[]"),
    ];
    dead_letters.push(DeadLetter {
        source: "store".into(),
        payload: lines.into_bytes(),
        ..mqtt(at + 8, "", "")
    });
    let cut = format!("{{\"n\":8}}{}", " ".repeat(DEAD_PAYLOAD_BYTES_MAX));
    dead_letters.push(mqtt(at + 9, "fleet/S2", &cut));
    setup.keep(&dead_letters);

    setup.settings(&settings(
        mode,
        "fleet/{site}/{sensor_id}",
        "limits.past = \"30d\"",
    ));
    let (code, out, err) = setup.run(&["replay", "--source", "mqtt"]);
    assert_eq!((code, setup.list(&[]).len()), (1, 11), "{out}{err}");
    assert!(
        out.starts_with("10 dead letters: 0 replayed, 0 in part, 10 still rejected"),
        "{out}"
    );
    assert!(
        err.contains("topic_mismatch") && setup.stored().is_empty(),
        "{err}"
    );

    setup.settings(&settings(
        mode,
        "fleet/{sensor_id}",
        "limits.past = \"30d\"",
    ));
    let (code, out, err) = setup.run(&["replay"]);
    assert_eq!(code, 1, "{out}{err}");
    let expected_lines = "11 dead letters: 5 replayed, 1 in part, 4 still rejected, 1 without a \
        reading, 0 not stored; 7 readings\n";
    assert_eq!(out, expected_lines, "{err}");
    for stays in [
        "bad_timestamp",
        "too_old",
        "invalid_json",
        "no_subscription",
        "only the beginning",
        "no_readings",
    ] {
        assert!(err.contains(stays), "{stays}: {err}");
    }
    let stored = |sensor: &str, ts: i64, n: i64| (sensor.to_owned(), ts, n);
    let mut expected = BTreeMap::from([
        (stored("S1", at - 5, 1), 1),
        (stored("S1", at + 1, 2), 1),
        (stored("S1", at + 2, 3), 2),
        (stored("S2", at, 10), 1),
        (stored("S2", at + 3, 11), 1),
        (stored("R", at, 30), 1),
    ]);
    assert_eq!(setup.stored(), expected);
    assert_eq!(setup.list(&[]).len(), 6);

    // As after a crash between the two steps: the readings are stored, and all dead letters are
    // still there.
    assert_eq!(setup.run(&["purge", "--all", "--yes"]).0, 0);
    setup.keep(&dead_letters);
    setup.settings(&settings(
        mode,
        "fleet/{sensor_id}",
        "limits.past = \"365d\"",
    ));
    let (code, out, err) = setup.run(&["replay"]);
    assert_eq!(code, 1, "{out}{err}");
    assert!(
        out.starts_with("11 dead letters: 6 replayed, 1 in part, 3 still rejected, 1 without"),
        "{out}"
    );
    expected.insert(stored("S2", old, 20), 1);
    assert_eq!(setup.stored(), expected);
    let (code, out, _) = setup.run(&["replay", "--topic", "*/S1"]);
    assert_eq!((code, out.split(':').next()), (0, Some("0 dead letters")));
}

#[test]
fn replay_while_a_service_writes_to_the_same_pages() {
    let broker = Mosquitto::start("");
    let config = |template: &str| {
        format!(
            "store.mode = \"bucket\"\nflush.max_age = \"2s\"\n[[mqtt]]\nurl = \"{}\"\n\
             client_id = \"beside\"\n\
             [[mqtt.subscriptions]]\nfilter = \"fleet/+\"\ntopic = \"{template}\"\n\
             format = \"json\"\n",
            broker.url()
        )
    };
    let setup = Setup::new("beside", StoreMode::Bucket);
    let service = Service::start(
        &config("fleet/{sensor_id}"),
        &[
            ("STORE__URI", &Mongod::shared().uri()),
            ("STORE__DATABASE", &setup.database),
        ],
    );
    service.wait_subscribed();
    let at = now_ms() - 3_600_000;
    let publish = |payload: &str| {
        let port = broker.port().to_string();
        let arguments = ["-p", &port, "-q", "1", "-t", "fleet/S1", "-m", payload];
        assert!(
            Command::new("mosquitto_pub")
                .args(arguments)
                .status()
                .expect("mosquitto_pub")
                .success()
        );
    };
    // Good readings and one that is too old: the dead letter has the whole message, and its good
    // readings are still pending when it is replayed.
    let old = at - 400 * DAY;
    let mut expected = BTreeMap::from([(("S1".to_owned(), old, 99), 1)]);
    for n in 0..5 {
        publish(&format!(
            "[{{\"ts\":{},\"n\":{n}}},{{\"ts\":{old},\"n\":99}}]",
            at + n
        ));
        expected.insert(("S1".to_owned(), at + n, n), 1);
    }
    // A message that a hook cannot decode is kept, and the sender gets a success.
    let hook = "/v1/hooks/json?sensor_id=S1&token=none";
    let (status, answer) = service
        .post(
            hook,
            "application/json",
            format!("{{\"ts\":{old},\"n\":98}}").as_bytes(),
        )
        .unwrap();
    assert_eq!(status, 202, "{answer}");
    expected.insert(("S1".to_owned(), old, 98), 1);
    wait_until("the dead letters", PATIENCE, || {
        (setup.list(&[]).len() == 6).then_some(())
    });
    assert_eq!(
        setup.list(&["--source", "http"])[0]["topic"],
        "/v1/hooks/json?sensor_id=S1"
    );
    setup.settings(&(config("fleet/{sensor_id}") + "[limits]\npast = \"1000d\"\n"));
    let (code, out, err) = setup.run(&["replay"]);
    assert_eq!(code, 0, "{out}{err}");
    assert_eq!(
        out,
        "6 dead letters: 6 replayed, 0 in part, 0 still rejected, 0 without a reading, 0 not \
         stored; 11 readings\n"
    );
    publish(&format!("{{\"ts\":{},\"n\":7}}", at + 7));
    expected.insert(("S1".to_owned(), at + 7, 7), 1);
    service.wait_settled(6, PATIENCE);
    assert_eq!(setup.stored(), expected);
}

/// The readings of an hour are removed, so no other reading of it can be stored.
#[test]
fn readings_that_the_store_refuses_again_are_not_replayed() {
    let setup = Setup::new("refused", StoreMode::Bucket);
    setup.settings("store.mode = \"bucket\"\nflush.max_age = \"100ms\"");
    let hour = (now_ms() - 20 * DAY).div_euclid(3_600_000) * 3_600_000;
    let own = |sensor: &str| {
        DeadLetter {
        source: "store".into(),
        payload: (1..4)
            .map(|n| {
                let at = hour + n * 60_000;
                format!(
                    "{{\"sensor_id\":\"{sensor}\",\"ts\":{at},\"ts_unit\":\"ms\",\"values\":{{\"n\":{n}}}}}\n"
                )
            })
            .collect::<String>()
            .into_bytes(),
        reason: "readings_removed".into(),
        ..mqtt(now_ms() - DAY, "", "")
    }
    };
    setup.keep(&[own("gone"), own("there")]);
    block_on(async {
        let client = mongodb::Client::with_uri_str(Mongod::shared().uri())
            .await
            .unwrap();
        let pages = client
            .database(&setup.database)
            .collection("sensor_buckets");
        let mut page = seed::page("gone", hour, 0, false, &seed::readings(hour, 0..2));
        page.remove("readings");
        page.insert("readings_removed", true);
        pages.insert_one(page).await.unwrap();
    });
    let (code, out, err) = setup.run(&["replay", "--reason", "readings_removed"]);
    assert_eq!(
        (code, &*out),
        (
            1,
            "2 dead letters: 1 replayed, 0 in part, 0 still rejected, 0 without a reading, 1 not \
             stored; 3 readings\n"
        ),
        "{err}"
    );
    let left = setup.list(&[]);
    assert_eq!(left.len(), 1, "{left:?}");
    let kept = format!(
        "kept: {} : readings_removed: ",
        left[0]["id"].as_str().unwrap()
    );
    assert!(err.contains(&kept), "{kept} in {err}");
    assert_eq!(left[0]["payload"].as_str().unwrap().lines().count(), 3);
}

/// The service has nothing of such readings in memory any more, so the replay need not wait.
#[test]
fn readings_that_the_store_gave_up_now_are_replayed_immediately() {
    let setup = Setup::new("given_up_now", StoreMode::Timeseries);
    setup.settings("store.mode = \"timeseries\"\nflush.max_age_busy = \"1h\"");
    let at = now_ms() - 20 * DAY;
    let payload =
        format!("{{\"sensor_id\":\"s\",\"ts\":{at},\"ts_unit\":\"ms\",\"values\":{{\"n\":1}}}}\n");
    setup.keep(&[DeadLetter {
        source: "store".into(),
        reason: "readings_removed".into(),
        ..mqtt(now_ms() - 1000, "", &payload)
    }]);
    let (code, out, err) = setup.run(&["replay", "--reason", "readings_removed"]);
    assert!(
        code == 0 && out.starts_with("1 dead letters: 1 replayed"),
        "{out}{err}"
    );
    assert_eq!(setup.stored().len(), 1);
}

#[test]
fn a_replay_killed_repeatedly_stores_everything_once() {
    let setup = Setup::new("killed", StoreMode::Bucket);
    setup.settings(&settings(
        "bucket",
        "fleet/{sensor_id}",
        "limits.past = \"30d\"",
    ));
    let at = now_ms() - DAY;
    // Every second one without its own time.
    let payload = |n: i64| {
        if n % 2 == 0 {
            format!("{{\"n\":{n}}}")
        } else {
            format!("{{\"ts\":{at},\"n\":{n}}}")
        }
    };
    let dead_letters: Vec<_> = (0..6000)
        .map(|n| mqtt(at + n / 3, &format!("fleet/S{}", n % 7), &payload(n)))
        .collect();
    setup.keep(&dead_letters);
    let mut kills = 0;
    for wait_ms in (0..40).map(|i| 60 + i * 35) {
        let mut child = setup.start(&["replay"]);
        std::thread::sleep(Duration::from_millis(wait_ms));
        let over = child.try_wait().unwrap().is_some();
        let _ = child.kill();
        child.wait().unwrap();
        if over {
            break;
        }
        kills += 1;
    }
    assert!(kills > 2, "it ended before it could be killed");
    let (code, out, err) = setup.run(&["replay"]);
    assert_eq!(code, 0, "{out}{err}");
    let expected: BTreeMap<Stored, u32> = (0..6000)
        .map(|n| {
            (
                (
                    format!("S{}", n % 7),
                    if n % 2 == 0 { at + n / 3 } else { at },
                    n,
                ),
                1,
            )
        })
        .collect();
    assert_eq!(setup.stored(), expected);
    assert!(setup.list(&[]).is_empty());
}

#[test]
fn dead_letters_are_listed_and_purged_by_filter() {
    let setup = Setup::new("listed", StoreMode::Bucket);
    setup.settings("");
    let now = now_ms();
    let dead_letter = |age_days: i64, source: &str, topic: &str, reason: &str, payload: &[u8]| {
        DeadLetter::keep(now - age_days * DAY, source, topic, payload, reason, "why")
    };
    setup.keep(&[
        dead_letter(9, "mqtt", "a/1/t", "too_old", b"{\"n\":1}"),
        dead_letter(8, "mqtt", "a/2/t", "invalid_json", &[0xff]),
        dead_letter(2, "http", "/v1/hooks/json", "too_old", b"x"),
        dead_letter(1, "store", "", "store_rejected", b"y"),
    ]);
    let topics = |arguments: &[&str]| {
        let topic = |dead_letter: &Value| dead_letter["topic"].as_str().unwrap().to_owned();
        setup.list(arguments).iter().map(topic).collect::<Vec<_>>()
    };
    assert_eq!(topics(&[]), ["", "/v1/hooks/json", "a/2/t", "a/1/t"]);
    assert_eq!(topics(&["--limit", "1"]), [""]);
    assert_eq!(
        topics(&["--reason", "too_old"]),
        ["/v1/hooks/json", "a/1/t"]
    );
    assert_eq!(
        topics(&["--reason", "too_old", "--source", "mqtt"]),
        ["a/1/t"]
    );
    assert_eq!(topics(&["--topic", "a/*/t"]), ["a/2/t", "a/1/t"]);
    assert_eq!(topics(&["--topic", "a/?"]), [""; 0]);
    let day = |age_days: i64| {
        let at = chrono::DateTime::from_timestamp_millis(now - age_days * DAY - 1000).unwrap();
        at.to_rfc3339_opts(chrono::SecondsFormat::Millis, true)
    };
    assert_eq!(
        topics(&["--since", &day(8), "--until", &day(1)]),
        ["/v1/hooks/json", "a/2/t"]
    );
    let all = setup.list(&[]);
    assert_eq!(
        (&all[3]["payload"], &all[2]["payload_base64"]),
        (&"{\"n\":1}".into(), &"/w==".into())
    );
    assert_eq!(
        (&all[3]["reason"], &all[3]["detail"], &all[3]["bytes"]),
        (&"too_old".into(), &"why".into(), &7.into())
    );

    for refused in [
        &["purge"][..],
        &["purge", "--all"],
        &["purge", "--all", "--yes", "--reason", "too_old"],
    ] {
        let (code, _, err) = setup.run(refused);
        assert!(code == 2 && err.contains("--all"), "{err}");
    }
    assert_eq!(setup.list(&[]).len(), 4);
    assert_eq!(
        setup
            .run(&["purge", "--older-than", "7d", "--reason", "too_old"])
            .1,
        "1 dead letters removed\n"
    );
    assert_eq!(
        setup.run(&["purge", "--older-than", "3d"]).1,
        "1 dead letters removed\n"
    );
    assert_eq!(topics(&[]), ["", "/v1/hooks/json"]);
    assert_eq!(
        setup.run(&["purge", "--all", "--yes"]).1,
        "2 dead letters removed\n"
    );
    assert!(setup.list(&[]).is_empty());
}

/// More than `dead_letters.max_bytes` of messages that cannot be decoded: the newest are kept, and
/// the older acknowledged readings too.
#[test]
fn the_collection_stays_below_its_limit_and_keeps_acknowledged_readings() {
    const MIB: usize = 1 << 20;
    let setup = Setup::new("limit", StoreMode::Bucket);
    let own = DeadLetter::keep(
        now_ms() - 40 * DAY,
        "store",
        "",
        &vec![b' '; MIB / 2],
        "store_rejected",
        "why",
    );
    setup.keep(&[own]);
    let text = "store.mode = \"bucket\"\ndead_letters.max_bytes = \"16MiB\"";
    let uri = Mongod::shared().uri();
    let mut service = Service::start(
        text,
        &[("STORE__URI", &uri), ("STORE__DATABASE", &setup.database)],
    );
    for n in 0..40 {
        let mut body = format!("{{broken {n}").into_bytes();
        body.resize(MIB - 1, b'x');
        assert_eq!(
            service
                .post("/v1/hooks/json", "application/json", &body)
                .unwrap()
                .0,
            202
        );
    }
    let metrics = wait_until("all were stored, and most removed", PATIENCE, || {
        let metrics = service.metrics();
        let stored = metrics.labelled("dead_letters_total", "reason", "invalid_json");
        let gone = metrics.labelled("dead_letters_dropped_total", "cause", "limit");
        (stored == 40.0 && gone >= 25.0).then_some(metrics)
    });
    assert_eq!(
        metrics.labelled("dead_letters_dropped_total", "cause", "limit"),
        25.0,
        "no more than needed"
    );
    let bytes = metrics.get("dead_letters_bytes");
    let max = metrics.get("dead_letters_max_bytes");
    assert!(
        max == 16.0 * MIB as f64 && bytes <= max && bytes > 15.0 * MIB as f64,
        "{bytes} of {max}"
    );
    let kept = setup.list(&[]);
    let numbers = kept.iter().filter_map(|l| {
        l["payload"]
            .as_str()?
            .strip_prefix("{broken ")?
            .split('x')
            .next()?
            .parse()
            .ok()
    });
    assert_eq!(
        numbers.collect::<Vec<u32>>(),
        (25..40).rev().collect::<Vec<_>>(),
        "the oldest went first"
    );
    assert_eq!(kept.last().unwrap()["source"], "store");
    assert!(
        service.log().contains("dead_letters.max_bytes reached"),
        "{}",
        service.log()
    );
    assert_eq!(service.terminate(PATIENCE), 0);
}
