//! Official libraries of other formats send to the service without changes, and their readings are
//! stored.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_macros,
    reason = "a test; it says that it does not run"
)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use mongodb::bson::{Bson, Document};
use net::access::hash_secret;

use crate::support::fleet::now_ms;
use crate::support::mongod::{Mongod, tools, unique_database};
use crate::support::mosquitto::Mosquitto;
use crate::support::service::Service;
use crate::support::stored::documents;

const PATIENCE: Duration = Duration::from_secs(60);

fn start(text: &str, database: &str) -> Service {
    let uri = Mongod::shared().uri();
    let settings = [
        ("STORE__URI", &*uri),
        ("STORE__DATABASE", database),
        ("STORE__MODE", "bucket"),
    ];
    Service::start(&format!("flush.max_age = \"200ms\"\n{text}"), &settings)
}

/// The values of a stored reading, without the members that are the same in all of them.
fn values(reading: &Document) -> Vec<(&str, &Bson)> {
    let of_all = ["id", "ts", "tags"];
    let mut values: Vec<_> = reading
        .iter()
        .filter(|(key, _)| !of_all.contains(&key.as_str()))
        .collect();
    values.sort_by_key(|(key, _)| key.as_str());
    values
        .into_iter()
        .map(|(key, value)| (key.as_str(), value))
        .collect()
}

/// OpenTelemetry's Python SDK with its exporter for HTTP: each kind of instrument, with and without
/// gzip.
#[test]
fn opentelemetry_s_exporter_writes_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = dir.path().join("tokens.toml");
    std::fs::write(
        &tokens,
        format!(
            "[[tokens]]\nid = \"otel\"\nsha256 = \"{}\"\n",
            hash_secret("secret")
        ),
    )
    .unwrap();
    let database = unique_database("otlp_client");
    let service = start(&format!("http.tokens_file = {tokens:?}\n"), &database);
    let packages = (
        "HOURBUCKET_OTLP_PYTHONPATH",
        "opentelemetry-exporter-otlp-proto-http",
    );
    service.run_python(
        packages,
        "otlp_client.py",
        &[&service.http(), "otel.secret"],
    );
    // Five instruments of two processes.
    service.wait_settled(10, PATIENCE);
    let found = documents(&Mongod::shared().uri(), &database);
    for sensor in ["boiler", "heater"] {
        let of_sensor: Vec<&Document> = found
            .iter()
            .filter(|r| r.get_str("id").is_ok_and(|id| id == sensor))
            .collect();
        let mut stored: Vec<(&str, &Bson)> = of_sensor
            .iter()
            .flat_map(|reading| values(reading))
            .collect();
        stored.sort_by_key(|(name, _)| *name);
        let expected = [
            ("burner_starts", Bson::Int64(3)),
            ("pumps_running", Bson::Int64(-2)),
            ("request_duration_count", Bson::Int64(3)),
            ("request_duration_max", Bson::Double(4.25)),
            ("request_duration_min", Bson::Double(0.25)),
            ("request_duration_sum", Bson::Double(5.0)),
            ("valve_open", Bson::Int64(40)),
            ("water_temperature", Bson::Double(61.5)),
        ];
        assert_eq!(
            stored,
            expected.each_ref().map(|(name, value)| (*name, value)),
            "{sensor}"
        );
        assert!(
            of_sensor.iter().all(|r| r
                .get_document("tags")
                .unwrap()
                .get_str("site")
                .is_ok_and(|site| site == "north")),
            "{found:?}"
        );
    }
    // The buckets of the two histograms.
    assert!(service.metrics().get("values_left_out_total") > 0.0);
}

/// The client of `tests/sparkplug`, of the download of `tests/run.sh`; `None`: npm could not get it
/// there.
fn sparkplug_client() -> Option<PathBuf> {
    let named = std::env::var_os("HOURBUCKET_SPARKPLUG").map(PathBuf::from);
    if named.as_deref() == Some(Path::new("none")) {
        return None;
    }
    let path = named.unwrap_or_else(|| tools().join("sparkplug-client-3.2.4"));
    assert!(
        path.join("client").is_file(),
        "no client in {}: run tests/run.sh once, it gets one",
        path.display()
    );
    Some(path.join("client"))
}

/// Eclipse Tahu's client for JavaScript: births, data by alias and by name, a compressed message,
/// and a death.
#[test]
fn sparkplug_client_writes_unchanged() {
    let Some(client) = sparkplug_client() else {
        eprintln!("NOT RUN: sparkplug-client could not be installed");
        return;
    };
    let broker = Mosquitto::start("");
    let database = unique_database("sparkplug_client");
    let text = format!(
        "[[mqtt]]\nurl = \"{}\"\nclient_id = \"sparkplug\"\n[[mqtt.subscriptions]]\n\
         filter = \"spBv1.0/#\"\n\
         format = \"sparkplug\"\n",
        broker.url()
    );
    let service = start(&text, &database);
    service.wait_subscribed();
    let first = (now_ms() - 3_600_000) / 1000 * 1000;
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/sparkplug/client.js"
    );
    let url = broker.url().replace("mqtt://", "tcp://");
    let output = Command::new(client)
        .args([script, &url, &first.to_string()])
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && printed.contains("done"),
        "{printed}\n{}",
        service.log()
    );
    // The births of node and device, and 20 messages.
    service.wait_settled(22, PATIENCE);
    let found = documents(&Mongod::shared().uri(), &database);
    let at = |sensor: &str, ts: i64| {
        let is_it = |r: &&Document| {
            r.get_str("id").is_ok_and(|id| id == sensor)
                && r.get_datetime("ts")
                    .is_ok_and(|at| at.timestamp_millis() == ts)
        };
        values(
            found
                .iter()
                .find(is_it)
                .unwrap_or_else(|| panic!("no {sensor} at {ts}: {found:?}")),
        )
    };
    assert_eq!(
        at("plant/line1", first),
        [("Properties/Firmware", &Bson::String("1.2".into()))]
    );
    let born = [
        ("Inputs/count", Bson::Int64(7)),
        ("Inputs/light", Bson::Double(0.5)),
        ("Inputs/negative", Bson::Int64(-5)),
        ("Inputs/on", Bson::Boolean(true)),
        ("Inputs/temp", Bson::Double(21.5)),
        ("Properties/Serial", Bson::String("A-7".into())),
    ];
    assert_eq!(
        at("plant/line1/pump", first),
        born.each_ref().map(|(name, value)| (*name, value))
    );
    for n in 1..=20_i32 {
        let data = [
            ("Inputs/negative", Bson::Int64((-n).into())),
            ("Inputs/temp", Bson::Double(21.5 + f64::from(n))),
        ];
        let stored = at("plant/line1/pump", first + i64::from(n) * 1000);
        assert_eq!(stored, data.each_ref().map(|(name, value)| (*name, value)));
    }
    assert_eq!(
        found.len(),
        22,
        "nothing of the compressed message: {found:?}"
    );
    assert_eq!(
        service
            .metrics()
            .labelled("dead_letters_total", "reason", "invalid_sparkplug"),
        1.0
    );
}
