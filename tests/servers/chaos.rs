//! Exactly once on real servers: the binary, a real mosquitto, a real MongoDB, and SIGKILL for each
//! of them.
//!
//! Long runs: `HOURBUCKET_KILLS=500 cargo test --test servers chaos::killed_at`, and
//! `HOURBUCKET_OUTAGE=20000000` for the outage; `HOURBUCKET_TEST_BINARY` names another binary than
//! the one built with the tests, such as the release build.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test, with figures"
)]

use crate::support;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::support::fleet::{Devices, Gateway};
use crate::support::large::{self, STEP_MS};
use crate::support::mongod::{Mongod, unique_database};
use crate::support::mosquitto::Mosquitto;
use crate::support::service::Service;
use crate::support::usage::resident_kib;
use crate::support::{block_on, setting, stored, wait_until};
use config::StoreMode;
use mongodb::bson::{DateTime, Document, doc};

/// A limit for each wait; two cores are shared by all processes.
const PATIENCE: Duration = Duration::from_secs(120);

fn config(broker: &Mosquitto, mode: &str, more: &str) -> String {
    format!(
        "store.mode = \"{mode}\"\n{more}\n[[mqtt]]\nurl = \"{}\"\nclient_id = \"chaos\"\n\
         [[mqtt.subscriptions]]\nfilter = \"fleet/+\"\n\
         topic = \"fleet/{{sensor_id}}\"\nformat = \"json\"\n",
        broker.url()
    )
}

fn broker() -> Mosquitto {
    Mosquitto::start("max_inflight_messages 1000\nmax_queued_messages 0\n")
}

#[test]
fn a_hundred_thousand_messages_while_mongodb_is_killed_twice() {
    let mut mongod = Mongod::start();
    let broker = broker();
    // Acknowledged when stored: mosquitto keeps the messages that MongoDB has not stored.
    let text = config(&broker, "bucket", "ingest.ack = \"stored\"");
    let service = Service::start(&text, &[("STORE__URI", &mongod.uri())]);
    let messages = setting("HOURBUCKET_MESSAGES", 100_000);
    service.wait_subscribed();
    let devices = Devices::start(broker.port(), 1000, messages, 20_000);
    for part in [1, 2] {
        wait_until("messages flow", PATIENCE, || {
            (devices.acked.load(Ordering::Relaxed) > messages / 3 * part).then_some(())
        });
        mongod.kill9();
        mongod.restart();
    }
    let sent = devices.finish(false);
    let metrics = service.wait_stored(messages as u64, PATIENCE);
    stored::exactly_once(&stored::readings(&mongod.uri(), "hourbucket"), sent);
    assert!(stored::catalogued(&mongod.uri(), "hourbucket") > 0);
    assert_eq!(metrics.get("readings_rejected_total"), 0.0);
}

#[test]
fn killed_at_random_instants_with_the_journal() {
    killed_at_random_instants("bucket");
}

#[test]
fn killed_at_random_instants_with_time_series() {
    killed_at_random_instants("timeseries");
}

fn killed_at_random_instants(mode: &str) {
    let kills = setting("HOURBUCKET_KILLS", 7);
    let seed = setting("HOURBUCKET_SEED", fastrand::usize(..1_000_000));
    println!("HOURBUCKET_SEED={seed}");
    let mut rng = fastrand::Rng::with_seed(seed as u64);
    let mut mongod = Mongod::start();
    let broker = broker();
    // The smallest segments: they should be stored, and their files recycled, between two kills.
    let text = config(
        &broker,
        mode,
        "bucket.span = \"1m\"\nflush.max_age = \"500ms\"\njournal.segment_bytes = \"64KiB\"\n\
         journal.max_bytes = \"64MiB\"",
    );
    let mut service = Service::start(&text, &[("STORE__URI", &mongod.uri())]);
    // As far ahead as `limits.future` allows: buckets that have not begun are written, killed and
    // replayed like all others.
    let spread_ms = 600_000;
    let gateway = |g| Gateway::start_hostile(&format!("g{g}"), service.http(), 50, 40, spread_ms);
    let gateways: Vec<_> = (0..3).map(gateway).collect();
    service.wait_subscribed();
    let devices = Devices::start_skewed(broker.port(), 100, usize::MAX, 3000, spread_ms);
    wait_until("a journal file is recycled", PATIENCE, || {
        (recycled_segments(&service) > 0).then_some(())
    });
    let mut recycled = 0;
    for kill in 0..kills {
        // This does not wait for a condition: the moment of the kill is random.
        std::thread::sleep(Duration::from_millis(rng.u64(50..1500)));
        if kill % 3 == 1 {
            mongod.kill9();
            mongod.restart_in_background();
        }
        service.kill9();
        recycled += recycled_segments(&service);
        service.restart();
    }
    let mut sent: Vec<_> = gateways.into_iter().flat_map(Gateway::finish).collect();
    sent.extend(devices.finish(true));
    println!(
        "{} readings acknowledged, {kills} kills, {recycled} recycled segments",
        sent.len()
    );
    // Includes the messages that the broker still holds, and the entries of the journal.
    wait_until_all_are_counted(&service, &mongod.uri(), sent.len() as u64);
    stored::exactly_once(&stored::readings(&mongod.uri(), "hourbucket"), sent);
    assert!(stored::catalogued(&mongod.uri(), "hourbucket") > 0);
    assert_eq!(
        service.terminate(Duration::from_secs(40)),
        0,
        "{}",
        service.log()
    );
}

/// Waits until the documents count `sent` readings and the service has nothing left to store. An
/// idle service is not enough: while it reconnects, the broker holds messages that it has
/// acknowledged to the devices.
fn wait_until_all_are_counted(service: &Service, uri: &str, sent: u64) {
    let mut counted = 0;
    let mut progress = Instant::now();
    loop {
        let now = stored::counted(uri, "hourbucket");
        if now != counted {
            (counted, progress) = (now, Instant::now());
        }
        let metrics = service.metrics();
        let idle = metrics.get("oldest_unstored_seconds") == 0.0
            && metrics.get("readings_in_flight") == 0.0;
        if idle && metrics.is_settled() && counted >= sent {
            return;
        }
        let state = || (service.get_admin("/readyz"), metrics.text());
        assert!(
            progress.elapsed() < PATIENCE,
            "{counted} of {sent} counted, no progress: {:?}\n{}",
            state(),
            service.log()
        );
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Tests the check itself: it finds a reading that is stored twice, with a summary that counts it
/// twice or once, and a summary that counts a single reading twice.
#[test]
fn the_check_finds_duplicates() {
    const START: i64 = 1_709_287_200_000;
    let uri = Mongod::shared().uri();
    let again = doc! { "ts": DateTime::from_millis(START + 9 * STEP_MS), "n": 9i64 };
    let mut measurement = again.clone();
    measurement.insert("meta", doc! { "sensor_id": "s", "tags": {} });
    let counted = doc! { "$inc": { "count": 1, "summary.n.count": 1, "summary.n.sum": 9i64 } };
    let pushed = doc! { "$push": { "readings": again } };
    let series = StoreMode::Timeseries;
    let pages = StoreMode::Bucket;
    // The mode, the change of the document, whether the measurement is stored twice, and whether
    // the check must find it.
    let cases = [
        (series, vec![], false, false),
        (series, vec![&counted], false, true),
        (series, vec![], true, true),
        (series, vec![&counted], true, true),
        (pages, vec![], false, false),
        (pages, vec![&counted], false, true),
        (pages, vec![&pushed], false, true),
        (pages, vec![&counted, &pushed], false, true),
    ];
    let databases = [
        (series, unique_database("twice")),
        (pages, unique_database("twice")),
    ];
    databases
        .iter()
        .for_each(|(mode, database)| large::prepare(&uri, database, *mode));
    for (mode, updates, twice, wrong) in cases {
        let (_, database) = databases.iter().find(|(of, _)| *of == mode).unwrap();
        block_on(async {
            let db = mongodb::Client::with_uri_str(&uri)
                .await
                .unwrap()
                .database(database);
            db.collection::<Document>("sensor_buckets")
                .delete_many(doc! {})
                .await
                .unwrap();
            db.collection::<Document>("sensor_readings")
                .delete_many(doc! { "meta.sensor_id": "s" })
                .await
                .unwrap();
        });
        match mode {
            StoreMode::Timeseries => {
                large::measured_hours(&uri, database, &["s".to_owned()], START, 10)
            }
            _ => large::paged_hour(&uri, database, "s", START, 10, 1000),
        }
        block_on(async {
            let db = mongodb::Client::with_uri_str(&uri)
                .await
                .unwrap()
                .database(database);
            for update in &updates {
                db.collection::<Document>("sensor_buckets")
                    .update_one(doc! {}, (*update).clone())
                    .await
                    .unwrap();
            }
            if twice {
                db.collection::<Document>("sensor_readings")
                    .insert_one(&measurement)
                    .await
                    .unwrap();
            }
        });
        let sent = (0..10).map(|n| ("s".to_owned(), START + n * STEP_MS, n));
        let recomputed = || stored::exactly_once(&stored::readings(&uri, database), sent);
        let noticed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(recomputed)).is_err();
        assert_eq!(
            noticed, wrong,
            "{mode:?}, {updates:?}, a measurement twice: {twice}"
        );
    }
}

/// Segments of the journal whose header says that their file was recycled (`journal::segment`).
fn recycled_segments(service: &Service) -> usize {
    let is_recycled = |path: std::path::PathBuf| {
        let mut header = [0; 40];
        let read = std::fs::File::open(path)
            .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut header));
        read.is_ok() && header[36] & 1 == 1
    };
    let files = std::fs::read_dir(service.dir().join("journal"))
        .into_iter()
        .flatten()
        .flatten();
    let segments = files
        .map(|file| file.path())
        .filter(|path| path.extension().is_some_and(|e| e == "seg"));
    segments.filter(|path| is_recycled(path.clone())).count()
}

#[test]
fn an_outage_longer_than_memory() {
    outage("bucket");
}

#[test]
fn an_outage_longer_than_memory_with_time_series() {
    outage("timeseries");
}

fn outage(mode: &str) {
    let readings = setting("HOURBUCKET_OUTAGE", 250_000);
    let mut mongod = Mongod::start();
    let text = format!(
        "store.mode = \"{mode}\"\naccumulate.max_bytes = \"16MiB\"\n\
         journal.segment_bytes = \"4MiB\""
    );
    let service = Service::start(&text, &[("STORE__URI", &mongod.uri())]);
    let idle_kib = resident_kib(service.pid());
    mongod.kill9();
    let gateways: Vec<_> = (0..2)
        .map(|g| Gateway::start(&format!("g{g}"), service.http(), 500, 1000))
        .collect();
    let mut most_kib = 0;
    let begun = Instant::now();
    let acked = || {
        gateways
            .iter()
            .map(|g| g.acked.load(Ordering::Relaxed))
            .sum::<usize>()
    };
    while acked() < readings {
        assert!(
            begun.elapsed() < PATIENCE + Duration::from_millis(readings as u64 / 10),
            "{} acknowledged",
            acked()
        );
        most_kib = most_kib.max(resident_kib(service.pid()));
        std::thread::sleep(Duration::from_millis(20));
    }
    let sent: Vec<_> = gateways.into_iter().flat_map(Gateway::finish).collect();
    mongod.restart();
    let metrics = service.wait_settled(
        sent.len() as u64,
        PATIENCE + Duration::from_millis(readings as u64 / 10),
    );
    most_kib = most_kib.max(resident_kib(service.pid()));
    println!(
        "{} readings during the outage; resident {idle_kib} KiB idle, {most_kib} KiB at most",
        sent.len()
    );
    // The budget, the journal's tail in memory (32 MiB), the queues and the allocator's slack; far
    // below the amount received.
    assert!(most_kib - idle_kib < 160 * 1024, "{most_kib} KiB");
    assert!(metrics.get("readings_accepted_total") >= readings as f64);
    stored::exactly_once(&stored::readings(&mongod.uri(), "hourbucket"), sent);
    assert!(stored::catalogued(&mongod.uri(), "hourbucket") > 0);
}

#[test]
fn two_instances_on_the_same_sensors() {
    let mongod = Mongod::start();
    let broker = broker();
    let shared = |id: &str| {
        config(&broker, "bucket", "flush.max_age = \"300ms\"")
            .replace("chaos", id)
            .replace("\"fleet/+\"", "\"$share/group/fleet/+\"")
    };
    let uri = mongod.uri();
    let one = Service::start(&shared("one"), &[("STORE__URI", &uri)]);
    let two = Service::start(&shared("two"), &[("STORE__URI", &uri)]);
    one.wait_subscribed();
    two.wait_subscribed();
    let devices = Devices::start(broker.port(), 20, 20_000, 5000);
    // Both get the same readings, as from a gateway that changes the instance after a timeout.
    let mut sent = vec![];
    for batch in 0..100i64 {
        let ts = support::fleet::now_ms();
        let readings: Vec<_> = (0..50)
            .map(|i| (format!("d{}", i % 20), ts, 1_000_000 + batch * 50 + i))
            .collect();
        let body: String = readings
            .iter()
            .map(|(s, ts, n)| format!("{{\"sensor_id\":\"{s}\",\"ts\":{ts},\"n\":{n}}}\n"))
            .collect();
        for service in [&one, &two] {
            let (status, text) = service
                .post("/v1/readings", "application/x-ndjson", body.as_bytes())
                .expect("an answer");
            assert_eq!(status, 200, "{text}");
        }
        sent.extend(readings);
    }
    sent.extend(devices.finish(false));
    wait_until("both have stored everything", PATIENCE, || {
        let sum = |name: &str| one.metrics().get(name) + two.metrics().get(name);
        let accepted = sum("readings_accepted_total");
        let stored = sum("readings_stored_total");
        (accepted >= 30_000.0 && stored + sum("readings_duplicate_total") == accepted).then_some(())
    });
    stored::exactly_once(&stored::readings(&uri, "hourbucket"), sent);
    assert!(stored::catalogued(&uri, "hourbucket") > 0);
    let conflicts =
        one.metrics().get("store_conflicts_total") + two.metrics().get("store_conflicts_total");
    assert!(
        conflicts > 0.0,
        "the instances never conflicted, so the test shows nothing"
    );
}
