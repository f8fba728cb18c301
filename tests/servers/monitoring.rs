//! Checks the dashboard, the rules and the documentation against a running service with a real
//! MongoDB and a real mosquitto, scraped by a real Prometheus with the shipped configuration. Every
//! panel's query and every alert's expression is evaluated over its API, and the scrape is compared
//! with the catalog of metrics.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::fleet::now_ms;
use crate::support::mongod::Mongod;
use crate::support::mosquitto::{Mosquitto, publish_by_tool};
use crate::support::prometheus::Prometheus;
use crate::support::service::Service;
use crate::support::watch::{CONFIG, RULES, dashboards, documented, promtool, queries, text};
use crate::support::{block_on, free_port, wait_until};
use mongodb::bson::{Document, doc};
use serde_json::Value;
use telemetry::catalog::{Kind, METRICS};

const PATIENCE: Duration = Duration::from_secs(60);
/// The shipped interval is 15 s.
const SCRAPE_EVERY: &str = "1s";
/// Grafana's value of `$__rate_interval` for that scrape interval, or a little more: `timeInterval`
/// times four.
const RATE_INTERVAL: &str = "15s";

/// Panels that may be empty after the traffic below, each with the reason.
const MAY_BE_EMPTY: [(&str, &str); 6] = [
    (
        "Firing and pending alerts",
        "no alert fires while all is well",
    ),
    ("Starts", "the service was started before the first scrape"),
    (
        "Oldest reading not forwarded",
        "the instance stores its readings",
    ),
    ("Certificates", NO_TLS),
    ("Certificate files", NO_TLS),
    ("TLS handshakes", NO_TLS),
];

/// Metrics that the traffic below does not produce, each with the reason.
const NOT_SCRAPED: [(&str, &str); 6] = [
    (
        "hourbucket_forward_oldest_seconds",
        "the instance stores its readings; tests/servers/forward.rs looks at it",
    ),
    ("hourbucket_tls_not_after_seconds", NO_TLS),
    ("hourbucket_tls_crl_next_update_seconds", NO_TLS),
    ("hourbucket_tls_files_ok", NO_TLS),
    ("hourbucket_tls_reads_total", NO_TLS),
    ("hourbucket_tls_handshakes_total", NO_TLS),
];
const NO_TLS: &str =
    "no port of this service speaks TLS; tests/parts/http_tls.rs looks at what those show";

/// A Prometheus that scrapes one service.
struct Scraper(Prometheus);

impl Scraper {
    /// With the shipped configuration, except for the scraped address and the intervals.
    fn start(target: &str) -> Scraper {
        let mut config = text(CONFIG);
        for (from, to) in [
            (
                "scrape_interval: 15s",
                format!("scrape_interval: {SCRAPE_EVERY}"),
            ),
            (
                "evaluation_interval: 15s",
                format!("evaluation_interval: {SCRAPE_EVERY}"),
            ),
            ("\"hourbucket:8081\"", format!("\"{target}\"")),
        ] {
            assert_eq!(config.matches(from).count(), 1, "{CONFIG}: {from}");
            config = config.replace(from, &to);
        }
        let mut prometheus = Prometheus::new(&config);
        fs::create_dir(prometheus.dir().join("rules")).unwrap();
        fs::write(prometheus.dir().join("rules/hourbucket.yml"), text(RULES)).unwrap();
        prometheus.run();
        Scraper(prometheus)
    }

    /// The `data` of an answer of its API, or its error.
    fn ask(&self, path: &str, parameters: &[(&str, String)]) -> Result<Value, String> {
        let mut request = self.0.agent.get(format!("{}/api/v1/{path}", self.0.url()));
        for (key, value) in parameters {
            request = request.query(key, value);
        }
        let text = request
            .call()
            .map_err(|e| e.to_string())?
            .body_mut()
            .read_to_string()
            .unwrap();
        let mut answer: Value = serde_json::from_str(&text).map_err(|e| format!("{e}: {text}"))?;
        match answer["status"].as_str() {
            Some("success") => Ok(answer["data"].take()),
            _ => Err(answer["error"].to_string()),
        }
    }

    /// The series of an expression, now or over the last two minutes as in a panel.
    fn series(&self, expr: &str, instant: bool) -> Result<Vec<Value>, String> {
        let query = ("query", expr.to_owned());
        let now = now_ms() as f64 / 1000.0;
        let start = ("start", (now - 120.0).to_string());
        let end = ("end", now.to_string());
        let mut data = match instant {
            true => self.ask("query", &[query])?,
            false => self.ask("query_range", &[query, start, end, ("step", "1".into())])?,
        };
        Ok(data["result"]
            .as_array_mut()
            .map(std::mem::take)
            .unwrap_or_default())
    }
}

/// Substitutes variables as Grafana does: a chosen value is inserted into a matcher with its
/// special characters escaped.
fn substituted(expr: &str, instance: &str) -> String {
    let escaped = instance.replace('.', "\\\\.");
    let expr = expr
        .replace("$__rate_interval", RATE_INTERVAL)
        .replace("$instance", &escaped);
    assert!(!expr.contains('$'), "a variable is left: {expr}");
    expr
}

/// The servers, and the service with every feature that has metrics.
struct World {
    mongod: Mongod,
    broker: Mosquitto,
    _old: Mosquitto,
    service: Service,
    devices: u16,
}

impl World {
    fn start() -> World {
        let mongod = Mongod::start();
        let broker = Mosquitto::start("");
        let devices = free_port();
        register(&mongod, "S1");
        // With MQTT 5 the broker does not send retained messages; with 3.1.1 it sends them, and
        // they are skipped.
        let old = Mosquitto::start("");
        publish_by_tool(old.port(), "kept/S1", &reading("S1", 0), &["-r"]);
        let text = format!(
            "[flush]\nmax_age = \"300ms\"\n[store]\nconnect_timeout = \"1s\"\n[latest]\n\
             enabled = true\ninterval = \"1s\"\n\
             [enrich]\ncollection = \"sensors\"\n[listen.mqtt]\nenabled = true\n\
             listen = \"127.0.0.1:{devices}\"\n\
             [[listen.mqtt.topics]]\nfilter = \"fleet/+\"\ntopic = \"fleet/{{sensor_id}}\"\n\
             format = \"json\"\n\
             [[mqtt]]\nurl = \"{}\"\nclient_id = \"watched\"\n\
             [[mqtt.subscriptions]]\nfilter = \"fleet/+\"\ntopic = \"fleet/{{sensor_id}}\"\n\
             format = \"json\"\n\
             [[mqtt.subscriptions]]\nfilter = \"spBv1.0/#\"\nformat = \"sparkplug\"\n\
             [[mqtt]]\nurl = \"{}\"\nclient_id = \"watched-old\"\nprotocol = 4\n\
             [[mqtt.subscriptions]]\nfilter = \"kept/+\"\ntopic = \"kept/{{sensor_id}}\"\n\
             format = \"json\"\n\
             retained = \"never\"\n[[ranges]]\nfields = [\"*\"]\nmax = 1e300\n",
            broker.url(),
            old.url()
        );
        let service = Service::start(&text, &[("STORE__URI", &mongod.uri())]);
        service.wait_subscribed();
        World {
            mongod,
            broker,
            _old: old,
            service,
            devices,
        }
    }

    /// The scraped address, which is the label `instance`.
    fn instance(&self) -> String {
        self.service
            .admin()
            .trim_start_matches("http://")
            .to_owned()
    }

    /// Sends good, bad and repeated readings over all protocols for this long.
    fn traffic(&self, time: Duration) {
        let begun = Instant::now();
        let mut n = 0;
        while begun.elapsed() < time {
            n += 1;
            let twice = reading("twice", 0);
            let good: Vec<String> = (0..20).map(|i| reading(&format!("S{i}"), n)).collect();
            let body = format!(
                "[{},{twice},{{\"sensor_id\":\"bad\",\"ts\":1,\"t\":1}}]",
                good.join(",")
            );
            let (status, answer) = self
                .service
                .post("/v1/readings", "application/json", body.as_bytes())
                .unwrap();
            assert_eq!(status, 200, "{answer}");
            assert_eq!(
                self.service
                    .post("/write", "text/plain", b"no line protocol")
                    .unwrap()
                    .0,
                400
            );
            for port in [self.broker.port(), self.devices] {
                publish_by_tool(port, "fleet/S1", &reading("S1", n), &[]);
                publish_by_tool(port, "fleet/S1", "{\"t\": ", &[]);
            }
            // Data of a Sparkplug node whose births are unknown: alias 1 is 2, sequence 3.
            let payload = self.service.dir().join("ndata");
            fs::write(&payload, [0x12, 4, 0x10, 1, 0x50, 2, 0x18, 3]).unwrap();
            let arguments = [
                "-h",
                "127.0.0.1",
                "-p",
                &self.broker.port().to_string(),
                "-q",
                "1",
            ];
            let sent = Command::new("mosquitto_pub")
                .args(arguments)
                .args(["-t", "spBv1.0/G/NDATA/N", "-f"])
                .arg(&payload)
                .status()
                .expect("mosquitto_pub is in the package mosquitto-clients");
            assert!(sent.success());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Makes MongoDB unreachable for a moment, which causes errors and retries; then the broker.
    fn outages(&mut self) {
        let store_up = |up: f64| {
            wait_until("hourbucket_store_up", PATIENCE, || {
                (self.service.metrics().get("store_up") == up).then_some(())
            });
        };
        store_up(1.0);
        self.mongod.kill9();
        self.traffic(Duration::from_secs(2));
        store_up(0.0);
        self.mongod.restart();
        store_up(1.0);
        self.broker.stop();
        self.broker.restart();
        self.service.wait_subscribed();
    }
}

/// Adds a sensor to the registry.
fn register(mongod: &Mongod, sensor: &str) {
    block_on(async {
        let client = mongodb::Client::with_uri_str(mongod.uri()).await.unwrap();
        let sensors = client
            .database("hourbucket")
            .collection::<Document>("sensors");
        sensors
            .insert_one(doc! { "_id": sensor, "site": "north" })
            .await
            .unwrap();
    });
}

/// A reading as JSON; for one sensor and number always the same while the process runs.
fn reading(sensor: &str, n: i64) -> String {
    static BEGUN: std::sync::OnceLock<i64> = std::sync::OnceLock::new();
    let ts = BEGUN.get_or_init(|| now_ms() - 600_000) + n * 1000;
    format!("{{\"sensor_id\":\"{sensor}\",\"ts\":{ts},\"t\":{n}}}")
}

#[test]
fn every_query_and_every_alert_works_on_a_running_service() {
    let mut world = World::start();
    let prometheus = Scraper::start(&world.instance());
    world.traffic(Duration::from_secs(1));
    // After it has been read completely, its changes are followed.
    wait_until("the registry is read", PATIENCE, || {
        (world.service.metrics().get("registry_sensors") == 1.0).then_some(())
    });
    register(&world.mongod, "S2");
    world.traffic(Duration::from_secs(3));
    world.outages();
    world.traffic(Duration::from_secs(4));
    let scrapes = "count_over_time(up[1m])".to_owned();
    // Two more scrapes, so that the last events are part of a rate.
    let before = prometheus.series(&scrapes, true).unwrap()[0]["value"][1]
        .as_str()
        .unwrap()
        .parse::<u32>()
        .unwrap();
    wait_until("two more scrapes", PATIENCE, || {
        let value = prometheus.series(&scrapes, true).unwrap()[0]["value"][1]
            .as_str()?
            .parse::<u32>()
            .ok()?;
        (value >= before + 2).then_some(())
    });

    let empty: BTreeMap<&str, &str> = MAY_BE_EMPTY.into_iter().collect();
    let mut wrong = vec![];
    let mut asked = 0;
    for (_, dashboard) in dashboards() {
        variables_have_values(&prometheus, &dashboard, &world.instance());
        for query in queries(&dashboard) {
            let expr = substituted(&query.expr, &world.instance());
            match prometheus.series(&expr, query.instant) {
                Err(error) => wrong.push(format!("{}: {error}: {expr}", query.panel)),
                Ok(series) if series.is_empty() && !empty.contains_key(query.panel.as_str()) => {
                    wrong.push(format!("{}: no data: {expr}", query.panel));
                }
                Ok(_) => asked += 1,
            }
        }
    }
    wrong.extend(alerts(&prometheus));
    for (place, expr) in documented() {
        wrong.extend(
            prometheus
                .series(&expr, true)
                .err()
                .map(|error| format!("{place}: {error}: {expr}")),
        );
    }
    assert!(
        wrong.is_empty() && asked > 50,
        "{asked} are right, these are not:\n{}",
        wrong.join("\n")
    );
    let asked_ms = now_ms();
    let metrics = world.service.metrics();
    let answered_ms = now_ms();
    the_scrape_matches_the_catalog(metrics.text());
    for source in ["http", "mqtt", "mqtt_direct"] {
        assert!(
            metrics.labelled("ack_seconds_count", "source", source) > 10.0,
            "{source}"
        );
    }
    let clock_ms = (metrics.get("clock_seconds") * 1000.0) as i64;
    assert!(
        (asked_ms - 2000..=answered_ms + 2000).contains(&clock_ms),
        "the clock"
    );
    assert_eq!(
        (metrics.get("ready"), metrics.get("intake_closed")),
        (1.0, 0.0)
    );
    assert_eq!(metrics.get("journal_max_bytes"), 16.0 * f64::from(1 << 30));

    // One alert from end to end.
    world.service.kill9();
    wait_until("HourbucketDown is pending", PATIENCE, || {
        let pending = prometheus
            .series(
                "ALERTS{alertname=\"HourbucketDown\",alertstate=\"pending\"}",
                true,
            )
            .unwrap();
        (!pending.is_empty()).then_some(())
    });
}

/// `label_values(metric, label)` returns the instance.
fn variables_have_values(prometheus: &Scraper, dashboard: &Value, instance: &str) {
    let variables = dashboard["templating"]["list"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|v| v["type"] == "query");
    for variable in variables {
        let query = variable["query"]["query"].as_str().unwrap();
        assert_eq!(variable["definition"], query);
        let inside = query
            .strip_prefix("label_values(")
            .and_then(|rest| rest.strip_suffix(')'))
            .unwrap();
        let (metric, label) = inside.split_once(", ").unwrap();
        let values = prometheus
            .ask(
                &format!("label/{label}/values"),
                &[("match[]", metric.to_owned())],
            )
            .unwrap();
        assert_eq!(values, serde_json::json!([instance]), "{query}");
    }
}

/// Problems of the alerts as Prometheus has loaded them.
fn alerts(prometheus: &Scraper) -> Vec<String> {
    let groups = prometheus.ask("rules", &[]).unwrap();
    let groups = groups["groups"].as_array().unwrap();
    let rules: Vec<&Value> = groups
        .iter()
        .flat_map(|group| group["rules"].as_array().unwrap())
        .collect();
    assert_eq!(rules.len(), text(RULES).matches("- alert:").count());
    let mut wrong = vec![];
    for rule in rules {
        let name = rule["name"].as_str().unwrap();
        let expr = rule["query"].as_str().unwrap();
        if rule["health"] != "ok" {
            wrong.push(format!("{name}: {}: {}", rule["health"], rule["lastError"]));
        }
        wrong.extend(
            prometheus
                .series(expr, true)
                .err()
                .map(|error| format!("{name}: {error}: {expr}")),
        );
    }
    wrong
}

/// The scrape has exactly the metrics, types, labels and label values of the catalog.
fn the_scrape_matches_the_catalog(scrape: &str) {
    let (ok, printed) = promtool(&["check", "metrics"], scrape);
    assert!(
        ok && printed.trim().is_empty(),
        "promtool check metrics: {printed}"
    );
    let mut seen = BTreeSet::new();
    for line in scrape.lines() {
        let Some((name, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|rest| rest.split_once(' '))
        else {
            continue;
        };
        let metric = METRICS
            .iter()
            .find(|m| m.name == name)
            .unwrap_or_else(|| panic!("not in the catalog: {name}"));
        assert_eq!(metric.kind.as_str(), kind, "{name}");
        assert!(
            scrape.contains(&format!("# HELP {name} {}\n", metric.help)),
            "{name} has another HELP line"
        );
        let end = if metric.kind == Kind::Histogram {
            "_count"
        } else {
            ""
        };
        let series: Vec<&str> = scrape
            .lines()
            .filter_map(|line| line.strip_prefix(name)?.strip_prefix(end)?.rsplit_once(' '))
            .filter_map(|(labels, _)| {
                if labels.is_empty() {
                    Some("")
                } else {
                    labels.strip_prefix('{')?.strip_suffix('}')
                }
            })
            .collect();
        assert!(!series.is_empty(), "{name} has no series");
        for labels in series {
            let found: BTreeSet<&str> = labels
                .split("\",")
                .filter_map(|l| Some(l.split_once('=')?.0))
                .collect();
            assert_eq!(
                found,
                metric.labels.iter().copied().collect(),
                "labels of {name}"
            );
        }
        seen.insert(name);
    }
    let excused: BTreeSet<&str> = NOT_SCRAPED.into_iter().map(|(name, _)| name).collect();
    let missing: Vec<&str> = METRICS
        .iter()
        .map(|m| m.name)
        .filter(|n| !seen.contains(n) && !excused.contains(n))
        .collect();
    assert!(
        missing.is_empty(),
        "in the catalog, but not scraped: {missing:?}"
    );
    assert!(
        excused.iter().all(|name| !seen.contains(name)),
        "NOT_SCRAPED lists a scraped metric"
    );
}
