//! A real Prometheus sends what it scrapes by remote write, while it and the service are killed and
//! restarted. Afterwards both have the same samples.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::time::Duration;

use mongodb::bson::{Bson, Document, doc};
use serde_json::Value;

use crate::support::fleet::now_ms;
use crate::support::mongod::Mongod;
use crate::support::prometheus::Prometheus;
use crate::support::service::Service;
use crate::support::{block_on, wait_until};

const PATIENCE: Duration = Duration::from_secs(60);

/// The sample of a metric: sensor, field, time in ms and value.
type Samples = BTreeMap<(String, String, i64), f64>;

const METRICS: [&str; 3] = [
    "up",
    "hourbucket_ready",
    "hourbucket_store_statements_total",
];

/// A Prometheus that scrapes the service and sends what it scrapes.
struct Sender(Prometheus);

impl Sender {
    fn start(scraped: &str, writes_to: &str) -> Sender {
        Sender(Prometheus::start(&format!(
            "global: {{ scrape_interval: 500ms }}\n\
             scrape_configs:\n  - job_name: hb\n    static_configs: [{{ targets: [\"{scraped}\"] \
             }}]\n\
             remote_write:\n  - url: {writes_to}/api/v1/write\n    \
             queue_config: {{ batch_send_deadline: 500ms, min_backoff: 30ms, max_backoff: 300ms \
             }}\n"
        )))
    }

    /// Every sample of the metrics, as sensor and field of the service.
    fn samples(&self) -> Samples {
        let mut all = Samples::new();
        for metric in METRICS {
            let request = self.0.agent.get(format!("{}/api/v1/query", self.0.url()));
            let text = request
                .query("query", format!("{metric}[1h]"))
                .call()
                .unwrap()
                .body_mut()
                .read_to_string();
            let answer: Value = serde_json::from_str(&text.unwrap()).unwrap();
            for series in answer["data"]["result"].as_array().unwrap() {
                let sensor = sensor(series["metric"].as_object().unwrap());
                for sample in series["values"].as_array().unwrap() {
                    let ts_ms = (sample[0].as_f64().unwrap() * 1000.0).round() as i64;
                    let value = sample[1].as_str().unwrap().parse().unwrap();
                    all.insert((sensor.clone(), metric.to_owned(), ts_ms), value);
                }
            }
        }
        all
    }
}

/// The id with `other_labels = "sensor_id"`; no label here has a character that is escaped.
fn sensor(labels: &serde_json::Map<String, Value>) -> String {
    let text = |name: &str| labels[name].as_str().unwrap().to_owned();
    let others = labels
        .iter()
        .filter(|(name, _)| !matches!(name.as_str(), "__name__" | "instance"));
    others.fold(text("instance"), |id, (name, value)| {
        format!("{id},{name}={}", value.as_str().unwrap())
    })
}

/// Every stored sample of the metrics.
fn stored(uri: &str) -> Samples {
    block_on(async {
        let client = mongodb::Client::with_uri_str(uri).await.unwrap();
        let pages = client
            .database("hourbucket")
            .collection::<Document>("sensor_buckets");
        let mut cursor = pages.find(doc! {}).await.unwrap();
        let mut all = Samples::new();
        while cursor.advance().await.unwrap() {
            let page = cursor.deserialize_current().unwrap();
            let sensor = page.get_str("sensor_id").unwrap();
            for reading in page
                .get_array("readings")
                .unwrap()
                .iter()
                .filter_map(Bson::as_document)
            {
                let ts_ms = reading.get_datetime("ts").unwrap().timestamp_millis();
                for (field, value) in reading
                    .iter()
                    .filter(|(field, _)| METRICS.contains(&field.as_str()))
                {
                    let again = all.insert(
                        (sensor.to_owned(), field.clone(), ts_ms),
                        value.as_f64().unwrap(),
                    );
                    assert_eq!(again, None, "stored twice: {sensor} {field} {ts_ms}");
                }
            }
        }
        all
    })
}

#[test]
fn a_prometheus_and_the_service_are_killed_and_have_the_same_samples() {
    let mongod = Mongod::start();
    let config = "store.mode = \"bucket\"\nflush.max_age = \"500ms\"\n[remote_write]\n\
        other_labels = \"sensor_id\"\n";
    let mut service = Service::start(config, &[("STORE__URI", &mongod.uri())]);
    let mut prometheus = Sender::start(
        service.admin().trim_start_matches("http://"),
        &service.http(),
    );
    let arrived = |than_ms: i64| {
        wait_until("newer samples are stored", PATIENCE, || {
            stored(&mongod.uri())
                .keys()
                .any(|(_, _, ts_ms)| *ts_ms > than_ms)
                .then_some(())
        });
    };
    arrived(0);
    // The service is away: Prometheus keeps the samples and sends them again.
    for _ in 0..3 {
        service.kill9();
        std::thread::sleep(Duration::from_millis(1500));
        service.restart();
        arrived(now_ms());
    }
    // Prometheus is down: samples that it had scraped and not sent yet are lost to remote write.
    let killed_ms = now_ms();
    prometheus.0.process.kill9();
    prometheus.0.run();
    let back_ms = now_ms();
    arrived(back_ms);
    let until_ms = now_ms();
    arrived(until_ms + 1000);
    let scraped = prometheus.samples();
    prometheus.0.process.sigterm();
    prometheus.0.process.wait(PATIENCE);
    service.wait_settled(1, PATIENCE);
    let stored = stored(&mongod.uri());
    let lost = |ts_ms: i64| ts_ms > killed_ms - 3000 && ts_ms < back_ms + 1000;
    let mut compared = 0;
    for (key, value) in scraped
        .iter()
        .filter(|((_, _, ts_ms), _)| *ts_ms <= until_ms)
    {
        match stored.get(key) {
            Some(held) => assert_eq!(held, value, "{key:?}"),
            None => assert!(lost(key.2), "not stored: {key:?}, killed at {killed_ms}"),
        }
        compared += 1;
    }
    for key in stored
        .keys()
        .filter(|(_, _, ts_ms)| *ts_ms <= until_ms && !lost(*ts_ms))
    {
        assert!(scraped.contains_key(key), "never scraped: {key:?}");
    }
    assert!(compared > 30, "{compared}");
    assert_eq!(
        service.terminate(Duration::from_secs(40)),
        0,
        "{}",
        service.log()
    );
}
