//! InfluxDB's official client writes to the service without changes; and line protocol over a real
//! broker.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::process::Command;
use std::time::Duration;

use crate::support::fleet::now_ms;
use crate::support::mongod::{Mongod, unique_database};
use crate::support::mosquitto::Mosquitto;
use crate::support::service::Service;
use crate::support::stored::documents;
use crate::support::{free_port, stored};
use mongodb::bson::doc;
use net::access::hash_secret;

const PATIENCE: Duration = Duration::from_secs(60);
const HOUR: i64 = 3_600_000;

fn settings<'a>(uri: &'a str, database: &'a str) -> [(&'static str, &'a str); 3] {
    [
        ("STORE__URI", uri),
        ("STORE__DATABASE", database),
        ("STORE__MODE", "bucket"),
    ]
}

/// Runs a script of `tests` with InfluxDB's client; returns what it prints.
fn client(service: &Service, script: &str, arguments: &[&str]) -> String {
    service.run_python(
        ("HOURBUCKET_INFLUXDB_PYTHONPATH", "influxdb-client"),
        script,
        arguments,
    )
}

#[test]
fn the_official_client_writes_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = dir.path().join("tokens.toml");
    std::fs::write(
        &tokens,
        format!(
            "[[tokens]]\nid = \"gw1\"\nsha256 = \"{}\"\n",
            hash_secret("secret")
        ),
    )
    .unwrap();
    let uri = Mongod::shared().uri();
    let database = unique_database("influx");
    let text = format!(
        "flush.max_age = \"200ms\"\nhttp.tokens_file = {:?}\n",
        tokens.display().to_string()
    );
    let service = Service::start(&text, &settings(&uri, &database));
    let first = (now_ms() - 2 * HOUR) / 1000 * 1000;
    let printed = client(
        &service,
        "influx_client.py",
        &[&service.http(), "gw1.secret", &first.to_string()],
    );
    assert_eq!(
        printed
            .lines()
            .filter(|line| line.starts_with("unauthorized "))
            .count(),
        2,
        "{printed}"
    );
    service.wait_settled(1103, PATIENCE);

    // Sums, versions and pages are correct, and each reading is stored once.
    let stored = stored::readings(&uri, &database);
    let of = |room: &str, n: i64| (format!("{room} 1"), first + n * 1000, n);
    let sent = (0..100)
        .map(|n| of("sync", n))
        .chain((0..1000).map(|n| of("batching", n)));
    let single = ["lines", "dict", "partial"].map(|id| (id.to_owned(), first, 1));
    stored::exactly_once(&stored, sent.chain(single));
    // Values and tags are correct too.
    let found = documents(&uri, &database);
    let second = found
        .iter()
        .filter(|r| r.get_str("id").unwrap() == "sync 1")
        .nth(1)
        .unwrap();
    assert_eq!(
        second.get_document("tags").unwrap(),
        &doc! { "room": "sync" }
    );
    assert_eq!(
        (second.get_i64("n").ok(), second.get_f64("temp").unwrap()),
        (Some(1), 22.5),
        "{second}"
    );
    assert!(!second.get_bool("on").unwrap());
    assert_eq!(
        second.get_str("say what").unwrap(),
        "a \"word\", and\nanother\\"
    );
}

/// InfluxDB's client over HTTP and mosquitto_pub with a password, with the same tokens: the
/// readings that their token allows are stored, and nothing else.
#[test]
fn official_clients_write_what_their_token_allows_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = dir.path().join("tokens.toml");
    let entry = |(id, rules): (&str, &str)| {
        format!(
            "[[tokens]]\nid = \"{id}\"\nsha256 = \"{}\"\n{rules}\n",
            hash_secret("secret")
        )
    };
    let entries = [
        ("gw1", "write = [\"{id}-*\", \"shared\"]"),
        ("old", "expires = 2024-01-01"),
        ("reader", "write = []"),
        ("mqtt", "via = [\"mqtt\"]"),
    ];
    std::fs::write(&tokens, entries.map(entry).concat()).unwrap();
    let uri = Mongod::shared().uri();
    let database = unique_database("influx_scope");
    let port = free_port();
    let text = format!(
        "flush.max_age = \"200ms\"\nhttp.tokens_file = {tokens:?}\n[listen.mqtt]\nenabled = true\n\
         listen = \"127.0.0.1:{port}\"\ntokens_file = {tokens:?}\n[[listen.mqtt.topics]]\n\
         filter = \"fleet/+\"\n\
         topic = \"fleet/{{sensor_id}}\"\nformat = \"json\"\n"
    );
    let service = Service::start(&text, &settings(&uri, &database));
    let first = (now_ms() - 2 * HOUR) / 1000 * 1000;
    let printed = client(
        &service,
        "influx_scope.py",
        &[&service.http(), &first.to_string()],
    );
    assert_eq!(
        printed
            .lines()
            .filter(|line| line.starts_with("refused "))
            .count(),
        4,
        "{printed}"
    );

    let publish = |version: &str, [user, password]: [&str; 2], sensor: &str, n: i64| {
        let port = port.to_string();
        let topic = format!("fleet/{sensor}");
        let payload = format!("{{\"ts\":{},\"n\":{n}}}", first + n * 1000);
        let output = Command::new("mosquitto_pub")
            .args([
                "-h",
                "127.0.0.1",
                "-p",
                &port,
                "-V",
                version,
                "-q",
                "1",
                "-u",
                user,
                "-P",
                password,
            ])
            .args(["-t", &topic, "-m", &payload])
            .output()
            .expect("mosquitto_pub is in the package mosquitto-clients");
        let error = String::from_utf8_lossy(&output.stderr).to_lowercase();
        // It ends with 0 although a publish was refused.
        output.status.success() && !error.contains("not authorized")
    };
    for (version, n) in [("mqttv311", 11), ("mqttv5", 12)] {
        assert!(publish(version, ["gw1", "secret"], "gw1-1", n), "{version}");
        assert!(
            publish(version, ["any", "gw1.secret"], "shared", n),
            "{version}"
        );
        for credentials in [["gw1", "wrong"], ["old", "secret"], ["reader", "secret"]] {
            assert!(
                !publish(version, credentials, "gw1-1", n + 10),
                "{version} {credentials:?}"
            );
        }
    }
    assert!(
        publish("mqttv5", ["mqtt", "secret"], "m-1", 11),
        "this token is for MQTT"
    );
    assert!(!publish("mqttv5", ["gw1", "secret"], "gw2-1", 11), "0x87");
    service.wait_settled(9, PATIENCE);
    let of = |sensor: &str, n: i64| (sensor.to_owned(), first + n * 1000, n);
    let sent = [
        ("gw1-1", 1),
        ("shared", 1),
        ("gw1-1", 2),
        ("gw1-2", 2),
        ("gw1-1", 11),
        ("shared", 11),
    ];
    let sent = sent
        .into_iter()
        .chain([("gw1-1", 12), ("shared", 12), ("m-1", 11)]);
    stored::exactly_once(
        &stored::readings(&uri, &database),
        sent.map(|(sensor, n)| of(sensor, n)),
    );
}

#[test]
fn lines_over_mqtt() {
    let broker = Mosquitto::start("");
    let uri = Mongod::shared().uri();
    let database = unique_database("influx_mqtt");
    let text = format!(
        "flush.max_age = \"200ms\"\nline.sensor_id_tag = \"host\"\nline.field_prefix = true\n\
         [[mqtt]]\nurl = \"{}\"\nclient_id = \"lines\"\n[[mqtt.subscriptions]]\n\
         filter = \"telegraf/#\"\n\
         topic = \"telegraf/+/{{plugin}}\"\nformat = \"line\"\n",
        broker.url()
    );
    let service = Service::start(&text, &settings(&uri, &database));
    service.wait_subscribed();
    let ts = (now_ms() - HOUR) / 1000 * 1000;
    // As Telegraf's output writes it with `batch`; the last line is invalid.
    let payload = format!(
        "cpu,cpu=cpu0,host=a usage=1.5,n=1i {ts}000000\nmem,host=a used=3i {ts}000001\ncpu,host=a\n"
    );
    let port = broker.port().to_string();
    let arguments = [
        "-p",
        &port,
        "-q",
        "1",
        "-t",
        "telegraf/a/cpu",
        "-m",
        &payload,
    ];
    assert!(
        Command::new("mosquitto_pub")
            .args(arguments)
            .status()
            .expect("mosquitto_pub")
            .success()
    );
    service.wait_settled(2, PATIENCE);
    let found = documents(&uri, &database);
    assert_eq!(
        found
            .iter()
            .map(|r| r.get_str("id").unwrap())
            .collect::<Vec<_>>(),
        ["a", "a"]
    );
    assert!(
        found
            .iter()
            .all(|r| r.get_datetime("ts").unwrap().timestamp_millis() == ts)
    );
    let cpu = found.iter().find(|r| r.contains_key("cpu_n")).unwrap();
    assert_eq!(
        (
            cpu.get_f64("cpu_usage").unwrap(),
            cpu.get_i64("cpu_n").unwrap()
        ),
        (1.5, 1),
        "{cpu}"
    );
    assert!(
        found
            .iter()
            .any(|r| r.get_i64("mem_used").is_ok_and(|v| v == 3)),
        "{found:?}"
    );
    assert_eq!(
        service
            .metrics()
            .labelled("dead_letters_total", "reason", "invalid_line"),
        1.0
    );
}
