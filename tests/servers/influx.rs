//! InfluxDB's official client writes to the service without changes; and line protocol over a real broker.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::process::Command;
use std::time::Duration;

use crate::support::fleet::now_ms;
use crate::support::mongod::{Mongod, python_packages, unique_database};
use crate::support::mosquitto::Mosquitto;
use crate::support::service::Service;
use crate::support::{block_on, stored};
use hourbucket::access::hash_secret;
use mongodb::bson::{Document, doc};

const PATIENCE: Duration = Duration::from_secs(60);
const HOUR: i64 = 3_600_000;

fn settings<'a>(uri: &'a str, database: &'a str) -> [(&'static str, &'a str); 3] {
    [("STORE__URI", uri), ("STORE__DATABASE", database), ("STORE__MODE", "bucket")]
}

/// All readings of a database in bucket mode, by sensor and time.
fn readings(database: &str) -> Vec<Document> {
    block_on(async {
        let client = mongodb::Client::with_uri_str(Mongod::shared().uri()).await.unwrap();
        let collection = client.database(database).collection::<Document>("sensor_buckets");
        let flat = [
            doc! { "$unwind": "$readings" },
            doc! { "$replaceRoot": { "newRoot": { "$mergeObjects": ["$readings", { "id": "$sensor_id", "tags": "$tags" }] } } },
            doc! { "$sort": { "id": 1, "ts": 1 } },
        ];
        let mut cursor = collection.aggregate(flat).await.unwrap();
        let mut found = vec![];
        while cursor.advance().await.unwrap() {
            found.push(cursor.deserialize_current().unwrap());
        }
        found
    })
}

#[test]
fn the_official_client_writes_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = dir.path().join("tokens.toml");
    std::fs::write(&tokens, format!("[[tokens]]\nid = \"gw1\"\nsha256 = \"{}\"\n", hash_secret("secret"))).unwrap();
    let (uri, database) = (Mongod::shared().uri(), unique_database("influx"));
    let text = format!("flush.max_age = \"200ms\"\nhttp.tokens_file = {:?}\n", tokens.display().to_string());
    let service = Service::start(&text, &settings(&uri, &database));
    let first = (now_ms() - 2 * HOUR) / 1000 * 1000;
    let output = Command::new("python3")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/influx_client.py"))
        .args([&service.http(), "gw1.secret", &first.to_string()])
        .env("PYTHONPATH", python_packages("HOURBUCKET_INFLUXDB_PYTHONPATH", "influxdb-client"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("no_proxy", "127.0.0.1")
        .output()
        .expect("python3 must start");
    let printed = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}\n{}", service.log());
    assert_eq!(printed.lines().filter(|line| line.starts_with("unauthorized ")).count(), 2, "{printed}");
    service.wait_settled(1103, PATIENCE);

    // Sums, versions and pages are correct, and each reading is stored once.
    let stored = stored::readings(&uri, &database);
    let of = |room: &str, n: i64| (format!("{room} 1"), first + n * 1000, n);
    let sent = (0..100).map(|n| of("sync", n)).chain((0..1000).map(|n| of("batching", n)));
    let single = ["lines", "dict", "partial"].map(|id| (id.to_owned(), first, 1));
    stored::exactly_once(&stored, sent.chain(single));
    // Values and tags are correct too.
    let found = readings(&database);
    let second = found.iter().filter(|r| r.get_str("id").unwrap() == "sync 1").nth(1).unwrap();
    assert_eq!(second.get_document("tags").unwrap(), &doc! { "room": "sync" });
    assert_eq!((second.get_i64("n").ok(), second.get_f64("temp").unwrap()), (Some(1), 22.5), "{second}");
    assert!(!second.get_bool("on").unwrap());
    assert_eq!(second.get_str("say what").unwrap(), "a \"word\", and\nanother\\");
}

#[test]
fn lines_over_mqtt() {
    let broker = Mosquitto::start("");
    let (uri, database) = (Mongod::shared().uri(), unique_database("influx_mqtt"));
    let text = format!(
        "flush.max_age = \"200ms\"\nline.sensor_id_tag = \"host\"\nline.field_prefix = true\n\
         [[mqtt]]\nurl = \"{}\"\nclient_id = \"lines\"\n[[mqtt.subscriptions]]\nfilter = \"telegraf/#\"\n\
         topic = \"telegraf/+/{{plugin}}\"\nformat = \"line\"\n",
        broker.url()
    );
    let service = Service::start(&text, &settings(&uri, &database));
    service.wait_subscribed();
    let ts = (now_ms() - HOUR) / 1000 * 1000;
    // As Telegraf's output writes it with `batch`; the last line is invalid.
    let payload = format!("cpu,cpu=cpu0,host=a usage=1.5,n=1i {ts}000000\nmem,host=a used=3i {ts}000001\ncpu,host=a\n");
    let port = broker.port().to_string();
    let arguments = ["-p", &port, "-q", "1", "-t", "telegraf/a/cpu", "-m", &payload];
    assert!(Command::new("mosquitto_pub").args(arguments).status().expect("mosquitto_pub").success());
    service.wait_settled(2, PATIENCE);
    let found = readings(&database);
    assert_eq!(found.iter().map(|r| r.get_str("id").unwrap()).collect::<Vec<_>>(), ["a", "a"]);
    assert!(found.iter().all(|r| r.get_datetime("ts").unwrap().timestamp_millis() == ts));
    let cpu = found.iter().find(|r| r.contains_key("cpu_n")).unwrap();
    assert_eq!((cpu.get_f64("cpu_usage").unwrap(), cpu.get_i64("cpu_n").unwrap()), (1.5, 1), "{cpu}");
    assert!(found.iter().any(|r| r.get_i64("mem_used").is_ok_and(|v| v == 3)), "{found:?}");
    assert_eq!(service.metrics().labelled("dead_letters_total", "reason", "invalid_line"), 1.0);
}
