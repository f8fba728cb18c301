//! The statements of docs/scale.md about two instances: sensors split by topic filter, an instance
//! that is replaced by another machine, and gateways that switch to the other instance if theirs
//! has failed. Real mosquitto, real MongoDB, the binary.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::fleet::now_ms;
use crate::support::mongod::{Mongod, unique_database};
use crate::support::mosquitto::Mosquitto;
use crate::support::service::Service;
use crate::support::stored::{self, Stored};
use crate::support::wait_until;

const PATIENCE: Duration = Duration::from_secs(120);
const MESSAGES: i64 = 4_000;

fn broker() -> Mosquitto {
    Mosquitto::start("max_inflight_messages 1000\nmax_queued_messages 0\n")
}

fn section(broker: &Mosquitto, client_id: &str, site: &str, max_age: &str) -> String {
    format!(
        "flush.max_age = \"{max_age}\"\n[[mqtt]]\nurl = \"{}\"\nclient_id = \"{client_id}\"\n\
         [[mqtt.subscriptions]]\n\
         filter = \"{site}/+\"\ntopic = \"{site}/{{sensor_id}}\"\nformat = \"json\"\n",
        broker.url()
    )
}

/// The readings of a sensor: `MESSAGES` of them, from a time in the previous hour.
fn readings(sensor: &str, start: i64) -> Vec<Stored> {
    (0..MESSAGES)
        .map(|n| (sensor.to_owned(), start + n * 100, n))
        .collect()
}

/// Publishes them with QoS 1, one message each.
fn publish(broker: &Mosquitto, topic: &str, readings: &[Stored]) -> Child {
    let lines: String = readings
        .iter()
        .map(|(_, ts, n)| format!("{{\"ts\":{ts},\"n\":{n}}}\n"))
        .collect();
    let mut tool = Command::new("mosquitto_pub")
        .args([
            "-h",
            "127.0.0.1",
            "-p",
            &broker.port().to_string(),
            "-q",
            "1",
            "-l",
            "-t",
            topic,
        ])
        .stdin(Stdio::piped())
        .spawn()
        .expect("mosquitto_pub is in the package mosquitto-clients");
    let mut input = tool.stdin.take().unwrap();
    std::thread::spawn(move || input.write_all(lines.as_bytes()));
    tool
}

fn wait_stored(uri: &str, database: &str, sent: Vec<Stored>) {
    wait_until("everything is stored", PATIENCE, || {
        (stored::counted(uri, database) >= sent.len() as u64).then_some(())
    });
    stored::exactly_once(&stored::readings(uri, database), sent);
}

/// Each instance has its own sensors, so time-series mode is exact with two instances. One is
/// killed and the other continues. Messages for the killed one wait at the broker and in its
/// journal, and are stored after its restart.
#[test]
fn sensors_split_by_topic() {
    let uri = Mongod::shared().uri();
    let database = unique_database("split");
    let broker = broker();
    let settings = [
        ("STORE__URI", uri.as_str()),
        ("STORE__DATABASE", &database),
        ("STORE__MODE", "timeseries"),
    ];
    let north = Service::start(
        &section(&broker, "hourbucket-north", "north", "300ms"),
        &settings,
    );
    let mut south = Service::start(
        &section(&broker, "hourbucket-south", "south", "300ms"),
        &settings,
    );
    north.wait_subscribed();
    south.wait_subscribed();
    let start = now_ms() - 1_200_000;
    let of_north = readings("N1", start);
    let of_south = readings("S1", start);
    let (before, after) = of_south.split_at(of_south.len() / 2);
    let mut tools = vec![
        publish(&broker, "north/N1", &of_north),
        publish(&broker, "south/S1", before),
    ];
    let taken = |service: &Service| service.metrics().get("readings_accepted_total");
    wait_until("the south sends", PATIENCE, || {
        (taken(&south) > 300.0).then_some(())
    });
    south.kill9();
    tools.push(publish(&broker, "south/S1", after));
    for tool in &mut tools {
        assert!(tool.wait().unwrap().success());
    }
    let metrics = north.wait_settled(MESSAGES as u64, PATIENCE);
    assert_eq!(
        metrics.get("readings_accepted_total"),
        MESSAGES as f64,
        "only its own sensors"
    );
    south.restart();
    wait_stored(&uri, &database, [of_north, of_south].concat());
}

/// The machine of an instance is lost. Another machine uses its client id with an empty journal,
/// and the broker sends it the unacknowledged messages. Later the journal of the first is found,
/// and an instance without brokers stores it.
#[test]
fn an_instance_is_replaced_and_its_journal_is_stored_later() {
    let uri = Mongod::shared().uri();
    let database = unique_database("replaced");
    // So few in flight that most of what the first accepts has been acknowledged to the broker.
    let broker = Mosquitto::start("max_inflight_messages 100\nmax_queued_messages 0\n");
    let settings = [
        ("STORE__URI", uri.as_str()),
        ("STORE__DATABASE", &database),
        ("STORE__MODE", "bucket"),
    ];
    // Its readings stay in the journal: nothing is due before it is killed.
    let mut first = Service::start(&section(&broker, "hourbucket-1", "site", "1h"), &settings);
    first.wait_subscribed();
    let sent = readings("S1", now_ms() - 1_200_000);
    let (before, after) = sent.split_at(sent.len() / 2);
    let mut tool = publish(&broker, "site/S1", before);
    wait_until("it takes readings", PATIENCE, || {
        (first.metrics().get("readings_accepted_total") > 300.0).then_some(())
    });
    first.kill9();
    assert!(tool.wait().unwrap().success());
    let mut tool = publish(&broker, "site/S1", after);
    let second = Service::start(
        &section(&broker, "hourbucket-1", "site", "300ms"),
        &settings,
    );
    assert!(tool.wait().unwrap().success());
    second.wait_settled(1, PATIENCE);
    wait_until("the broker's queue is empty", PATIENCE, || {
        let text = second.get_admin("/metrics")?.1;
        let last = stored::readings(&uri, &database)
            .keys()
            .map(|(_, _, n)| *n)
            .max();
        (last == Some(MESSAGES - 1) && text.contains("hourbucket_mqtt_unacked")).then_some(())
    });
    let without = stored::counted(&uri, &database);
    assert!(
        without < sent.len() as u64,
        "the first journal was empty, so the test shows nothing"
    );
    // An instance that accepts nothing new is started on the recovered disk.
    std::fs::write(
        first.dir().join("hourbucket.toml"),
        "flush.max_age = \"300ms\"\n",
    )
    .unwrap();
    first.restart();
    wait_stored(&uri, &database, sent);
}

/// The batches of a gateway go to the other instance if its own does not answer, including the
/// batch in flight. In bucket mode both instances may receive a batch.
#[test]
fn a_gateway_switches_to_the_other_instance() {
    let uri = Mongod::shared().uri();
    let database = unique_database("routing");
    let settings = [
        ("STORE__URI", uri.as_str()),
        ("STORE__DATABASE", &database),
        ("STORE__MODE", "bucket"),
    ];
    let mut own = Service::start("flush.max_age = \"300ms\"\n", &settings);
    let other = Service::start("flush.max_age = \"300ms\"\n", &settings);
    let start = now_ms() - 1_200_000;
    let mut sent = vec![];
    for batch in 0..100_i64 {
        let readings: Vec<Stored> = (0..50)
            .map(|n| {
                (
                    format!("G-{}", n % 5),
                    start + batch * 1_000 + n,
                    batch * 50 + n,
                )
            })
            .collect();
        let lines: String = readings
            .iter()
            .map(|(sensor, ts, n)| {
                format!("{{\"sensor_id\":\"{sensor}\",\"ts\":{ts},\"n\":{n}}}\n")
            })
            .collect();
        if batch == 50 {
            own.kill9();
        }
        let posted = |service: &Service| {
            service.post("/v1/readings", "application/x-ndjson", lines.as_bytes())
        };
        let own_answer = posted(&own).map(|(status, _)| status);
        assert_eq!(own_answer == Some(200), batch < 50, "{own_answer:?}");
        // Every fifth answer of its own instance is lost, so the gateway sends that batch to the
        // other one as well.
        if own_answer.is_none() || batch % 5 == 0 {
            assert_eq!(posted(&other).unwrap().0, 200);
        }
        sent.extend(readings);
    }
    own.restart();
    own.wait_settled(0, PATIENCE);
    wait_stored(&uri, &database, sent);
    let duplicates = own.metrics().get("readings_duplicate_total")
        + other.metrics().get("readings_duplicate_total");
    assert!(duplicates > 0.0, "both had some of the batches");
}
