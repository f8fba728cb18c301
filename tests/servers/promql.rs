//! Prometheus' API with a real MongoDB, in both modes: queries see readings in memory and stored
//! ones, windows are answered from summaries with the same result, and every kind of bad input gets
//! Prometheus' error.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::time::{Duration, Instant};

use crate::support;
use crate::support::mongod::{Mongod, unique_database};
use crate::support::service::Service;
use serde_json::{Value, json};

const HOUR_S: i64 = 3600;

/// A service with its collections prepared.
fn start(mode: &str, more: &str) -> Service {
    let uri = Mongod::shared().uri();
    let database = unique_database(&format!("promql_{mode}"));
    let text = format!("store.mode = \"{mode}\"\nlog.level = \"warn\"\n{more}");
    let service = Service::start(
        &text,
        &[("STORE__URI", &uri), ("STORE__DATABASE", &database)],
    );
    support::wait_until(
        "the collections are prepared",
        Duration::from_secs(60),
        || {
            let (_, text) = service.get_admin("/readyz")?;
            (!serde_json::from_str::<Value>(&text).ok()?["mode"].is_null()).then_some(())
        },
    );
    service
}

/// As a value in a query string.
pub(super) fn escaped(text: &str) -> String {
    text.bytes().map(|b| format!("%{b:02X}")).collect()
}

fn raw(service: &Service, path: &str) -> (u16, Value) {
    let (status, text) = service
        .get_admin(&format!("/prometheus/api/v1/{path}"))
        .unwrap();
    (
        status,
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("{status} {text}")),
    )
}

#[track_caller]
fn data(service: &Service, path: &str) -> Value {
    let (status, mut answer) = raw(service, path);
    assert_eq!(
        (status, &answer["status"]),
        (200, &json!("success")),
        "{path}: {answer}"
    );
    answer["data"].take()
}

/// The values of an instant query by sensor.
#[track_caller]
fn instant(service: &Service, query: &str, at_s: i64) -> Vec<(String, String)> {
    let found = data(
        service,
        &format!("query?query={}&time={at_s}", escaped(query)),
    );
    let series = found["result"]
        .as_array()
        .unwrap_or_else(|| panic!("{query}: {found}"));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut all: Vec<_> = series
        .iter()
        .map(|s| (text(&s["metric"]["sensor_id"]), text(&s["value"][1])))
        .collect();
    all.sort();
    all
}

/// S1 reports on the full minute, S2 half a minute later; `on` is a boolean; `note` is text.
fn post(service: &Service, base_s: i64) {
    let mut lines = String::new();
    for minute in 0..=300 {
        for (sensor, site, shift) in [("S1", "north", 0), ("S2", "south", 30)] {
            let ts = base_s + minute * 60 + shift;
            let reading = json!({
                "sensor_id": sensor, "ts": ts, "tags": { "site": site },
                "values": { "temp": minute % 7 + shift, "on": minute % 2 == 0, "note": "x" },
            });
            lines += &format!("{reading}\n");
        }
    }
    let (status, text) = service
        .post("/v1/readings", "application/x-ndjson", lines.as_bytes())
        .unwrap();
    assert_eq!(status, 200, "{text}");
}

fn pair(sensor: &str, value: &str) -> (String, String) {
    (sensor.to_owned(), value.to_owned())
}

fn values(minutes: impl Iterator<Item = i64>, shift: i64) -> (i64, i64, i64, i64) {
    let all: Vec<i64> = minutes.map(|minute| minute % 7 + shift).collect();
    (
        all.len() as i64,
        all.iter().sum(),
        *all.iter().min().unwrap(),
        *all.iter().max().unwrap(),
    )
}

#[track_caller]
fn windows_are_right(service: &Service, base_s: i64) {
    // (1 h, 2 h]: whole hours; S1 has a sample on both edges. Then windows that begin and end
    // within an hour.
    for (end_s, range_s) in [
        (2 * HOUR_S, HOUR_S),
        (4 * HOUR_S, 3 * HOUR_S),
        (9000, HOUR_S),
        (9030, 7230),
    ] {
        let of = |shift: i64| {
            let from = end_s - range_s;
            let minutes =
                (0..=300).filter(move |m| m * 60 + shift > from && m * 60 + shift <= end_s);
            values(minutes, shift)
        };
        let one = of(0);
        let two = of(30);
        for (function, a, b) in [
            ("count", one.0, two.0),
            ("sum", one.1, two.1),
            ("min", one.2, two.2),
            ("max", one.3, two.3),
        ] {
            let query = format!("{function}_over_time(temp[{range_s}s])");
            let wanted = vec![pair("S1", &a.to_string()), pair("S2", &b.to_string())];
            assert_eq!(
                instant(service, &query, base_s + end_s),
                wanted,
                "{query} at {end_s}"
            );
            // The same samples through a subquery are never answered from summaries.
            let query = format!("{function}_over_time(temp[{range_s}s:30s]) * 0");
            assert_eq!(instant(service, &query, base_s + end_s).len(), 2, "{query}");
        }
    }
    let booleans = instant(
        service,
        "sum_over_time({__name__=\"on\"}[1h])",
        base_s + 2 * HOUR_S,
    );
    assert_eq!(booleans, [pair("S1", "30"), pair("S2", "30")]);
}

fn queries(mode: &str) {
    let service = start(mode, "flush.max_age = \"2s\"\n");
    let base_s = support::fleet::now_ms() / 1000 / HOUR_S * HOUR_S - 8 * HOUR_S;
    post(&service, base_s);
    // In memory, and then stored.
    windows_are_right(&service, base_s);
    service.wait_settled(602, Duration::from_secs(60));
    windows_are_right(&service, base_s);
    let at = base_s + 2 * HOUR_S;
    assert_eq!(
        instant(&service, "temp{site=\"north\"}", at),
        [pair("S1", "1")]
    );
    assert_eq!(
        instant(
            &service,
            "temp{sensor_id=~\"S1|S2\"} + on(sensor_id) temp",
            at
        )
        .len(),
        2
    );
    assert_eq!(instant(&service, "note", at), [], "text is no sample");
    assert_eq!(
        instant(&service, "temp", at + 10 * HOUR_S),
        [],
        "older than the lookback"
    );
    let late = format!(
        "query?query=temp&time={}&lookback_delta=12h",
        at + 10 * HOUR_S
    );
    assert_eq!(data(&service, &late)["result"].as_array().unwrap().len(), 2);
    let range = format!(
        "query_range?query={}&start={base_s}&end={at}&step=1h",
        escaped("sum by (site) (temp)")
    );
    let range = data(&service, &range);
    assert_eq!(range["resultType"], "matrix");
    assert_eq!(range["result"][0]["metric"], json!({ "site": "north" }));
    assert_eq!(range["result"][0]["values"].as_array().unwrap().len(), 3);
    names_are_listed(&service);
    bad_input_is_refused(&service);
    range_queries_need_an_instant_vector_or_a_scalar(&service);
    refused_requests_get_the_same_form(&service);
    a_mean_is_finite_although_the_sum_overflows(&service, base_s);
}

/// In each hour, and over both.
fn a_mean_is_finite_although_the_sum_overflows(service: &Service, base_s: i64) {
    let readings: Vec<Value> = [10, 40, 70, 100]
        .map(|minute| json!({ "sensor_id": "S3", "ts": base_s + minute * 60, "volts": 1.5e308 }))
        .to_vec();
    let body = json!(readings).to_string();
    let (status, text) = service
        .post("/v1/readings", "application/json", body.as_bytes())
        .unwrap();
    assert_eq!(status, 200, "{text}");
    let check = || {
        let ask = |function: &str| {
            let query = format!("{function}_over_time(volts[2h])");
            instant(service, &query, base_s + 2 * HOUR_S)
        };
        assert_eq!(ask("count"), [pair("S3", "4")]);
        assert_eq!(ask("sum"), [pair("S3", "+Inf")]);
        let mean: f64 = ask("avg")[0].1.parse().unwrap();
        assert!((mean / 1.5e308 - 1.0).abs() < 1e-12, "{mean}");
    };
    check();
    service.wait_settled(606, Duration::from_secs(60));
    check();
}

fn names_are_listed(service: &Service) {
    assert_eq!(
        data(service, "labels"),
        json!(["__name__", "sensor_id", "site"])
    );
    assert_eq!(
        data(service, "label/__name__/values"),
        json!(["on", "temp"])
    );
    assert_eq!(
        data(service, "label/U__site/values"),
        json!(["north", "south"])
    );
    assert_eq!(
        data(
            service,
            "label/site/values?match[]=temp%7Bsensor_id%3D%22S1%22%7D"
        ),
        json!(["north"])
    );
    let series = data(service, "series?match[]=temp&limit=1");
    assert_eq!(
        series,
        json!([{ "__name__": "temp", "sensor_id": "S1", "site": "north" }])
    );
    assert_eq!(
        data(service, "metadata?metric=temp")["temp"][0]["type"],
        "gauge"
    );
    assert_eq!(data(service, "status/buildinfo")["version"], "3.12.0");
    assert_eq!(
        data(service, "format_query?query=sum(temp)by(site)"),
        "sum by (site) (temp)"
    );
    for path in ["series?match[]=temp&", "labels?", "label/site/values?"] {
        let nothing = data(service, &format!("{path}start=20&end=10"));
        assert_eq!(nothing, json!([]), "{path}");
    }
}

fn bad_input_is_refused(service: &Service) {
    let error = |path: &str| {
        let (status, answer) = raw(service, path);
        assert_eq!(answer["status"], "error", "{answer}");
        (
            status,
            answer["errorType"].as_str().unwrap().to_owned(),
            answer["error"].as_str().unwrap().to_owned(),
        )
    };
    let begun = Instant::now();
    for (path, status, kind, word) in [
        (
            "query?query=sum(".to_owned(),
            400,
            "bad_data",
            "parse error",
        ),
        ("query".to_owned(), 400, "bad_data", "no expression"),
        (
            "query?query=temp&time=x".to_owned(),
            400,
            "bad_data",
            "cannot parse",
        ),
        (
            format!("query?query={}", "(".repeat(10_000)),
            400,
            "bad_data",
            "brackets",
        ),
        (
            format!("query?query={}", escaped("{a=~\"(x{1000}){1000}\"}")),
            400,
            "bad_data",
            "reg",
        ),
        (
            "query?query=info(temp)".to_owned(),
            400,
            "bad_data",
            "not supported",
        ),
        (
            "query?query=temp%2Bon(site)group_left()%7B__name__%3D~%22temp%7Con%22%7D".to_owned(),
            422,
            "execution",
            "found duplicate",
        ),
        (
            "query_range?query=temp&start=0&end=1000000000&step=1".to_owned(),
            400,
            "bad_data",
            "11,000",
        ),
        (
            "query_range?query=temp&start=10&end=0&step=1".to_owned(),
            400,
            "bad_data",
            "before start",
        ),
        (
            "query_range?query=temp&start=0&end=1&step=0".to_owned(),
            400,
            "bad_data",
            "zero or negative",
        ),
        (
            "query?query=sum_over_time(vector(1)[3000y:1ms])".to_owned(),
            422,
            "execution",
            "samples",
        ),
        ("series".to_owned(), 400, "bad_data", "match[]"),
        (
            "series?match[]=%7B%7D".to_owned(),
            400,
            "bad_data",
            "non-empty",
        ),
    ] {
        // Samples of the duplicates are in the past.
        let at = if kind == "execution" && word == "found duplicate" {
            format!("{path}&lookback_delta=10h")
        } else {
            path
        };
        let (got, got_kind, text) = error(&at);
        let shown: String = at.chars().take(100).collect();
        assert!(
            got == status && got_kind == kind && text.contains(word),
            "{shown}: {got} {got_kind} {text}"
        );
    }
    assert!(
        begun.elapsed() < Duration::from_secs(30),
        "{:?}",
        begun.elapsed()
    );
}

fn range_queries_need_an_instant_vector_or_a_scalar(service: &Service) {
    for (query, name) in [("%22a%22", "string"), ("temp[5m]", "range vector")] {
        let path = format!("query_range?query={query}&start=0&end=1&step=1");
        let (status, answer) = raw(service, &path);
        let problem = format!(
            "invalid parameter \"query\": invalid expression type {name:?} for range query, must \
             be Scalar or instant Vector"
        );
        let wanted = json!({ "status": "error", "errorType": "bad_data", "error": problem });
        assert_eq!((status, answer), (400, wanted));
    }
}

fn refused_requests_get_the_same_form(service: &Service) {
    let agent = support::http_client::agent();
    for (method, path, bytes, status, kind) in [
        ("POST", "query", 3 << 20, 413, "bad_data"),
        ("PUT", "query", 0, 405, "bad_data"),
        ("POST", "metadata", 0, 405, "bad_data"),
        ("POST", "nothing", 0, 404, "not_found"),
    ] {
        let url = format!("{}/prometheus/api/v1/{path}", service.admin());
        let request = match method {
            "PUT" => agent.put(url),
            _ => agent.post(url),
        };
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        let mut answer = request.send(&vec![b'a'; bytes]).unwrap();
        let text = answer.body_mut().read_to_string().unwrap();
        let json: Value = serde_json::from_str(&text).unwrap_or_default();
        assert_eq!(answer.status().as_u16(), status, "{method} {path} {text}");
        assert_eq!(json["status"], "error", "{method} {path} {text}");
        assert_eq!(json["errorType"], kind, "{method} {path} {text}");
        assert!(json["error"].is_string(), "{method} {path} {text}");
    }
}

#[test]
fn queries_are_answered_in_bucket_mode() {
    queries("bucket");
}

#[test]
fn queries_are_answered_in_timeseries_mode() {
    queries("timeseries");
}

/// Every query of every panel in `deploy/grafana/readings`, with its variables filled in.
#[test]
fn the_dashboards_over_readings_have_data() {
    let service = start("bucket", "");
    let base_s = support::fleet::now_ms() / 1000 / HOUR_S * HOUR_S - 5 * HOUR_S;
    post(&service, base_s);
    let dir =
        std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("deploy/grafana");
    let check = std::process::Command::new("python3")
        .arg("-B")
        .arg(dir.join("readings.py"))
        .arg("--check")
        .status();
    assert!(check.unwrap().success());
    let mut asked = 0;
    for name in ["fleet", "sensor"] {
        let text = std::fs::read_to_string(dir.join(format!("readings/{name}.json"))).unwrap();
        let dashboard: Value = serde_json::from_str(&text).unwrap();
        let panels = dashboard["panels"].as_array().unwrap().iter();
        for target in panels
            .filter_map(|panel| panel["targets"].as_array())
            .flatten()
        {
            let expr = target["expr"].as_str().unwrap();
            let expr = expr
                .replace("$field", "temp")
                .replace("$sensor", "S1")
                .replace("$tag", "site");
            let path = format!(
                "query_range?query={}&start={}&end={}&step=900",
                escaped(&expr),
                base_s,
                base_s + 5 * HOUR_S
            );
            let found = data(&service, &path);
            assert!(
                !found["result"].as_array().unwrap().is_empty(),
                "{expr}: no data"
            );
            asked += 1;
        }
    }
    assert!(asked >= 12, "{asked}");
}

/// The queries of the shipped alert rules and their thresholds: `S1` and `S2` have been silent for
/// more than an hour.
#[test]
fn the_alert_rules_over_readings_find_what_they_are_for() {
    let service = start("bucket", "");
    let base_s = support::fleet::now_ms() / 1000 / HOUR_S * HOUR_S - 8 * HOUR_S;
    post(&service, base_s);
    let dir =
        std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("deploy/grafana");
    let output = std::process::Command::new("python3")
        .arg("-B")
        .arg(dir.join("readings.py"))
        .arg("--alerts")
        .output();
    let rules: Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
    assert_eq!(rules["apiVersion"], 1);
    let group = &rules["groups"][0];
    assert!(
        ["name", "folder", "interval"]
            .iter()
            .all(|key| group[*key].is_string()),
        "{group}"
    );
    let shipped =
        std::fs::read_to_string(dir.join("provisioning/datasources/prometheus-readings.yaml"))
            .unwrap();
    let [silent, outside] = &group["rules"].as_array().unwrap()[..] else {
        panic!("{group}")
    };
    let result = |rule: &Value, at_s: i64| {
        for key in [
            "uid",
            "title",
            "condition",
            "noDataState",
            "execErrState",
            "for",
        ] {
            assert!(rule[key].is_string(), "{rule}: {key}");
        }
        let [query, threshold] = &rule["data"].as_array().unwrap()[..] else {
            panic!("{rule}")
        };
        assert_eq!(
            (&threshold["refId"], &threshold["datasourceUid"]),
            (&rule["condition"], &json!("__expr__"))
        );
        assert_eq!(threshold["model"]["expression"], query["refId"]);
        let uid = query["datasourceUid"].as_str().unwrap();
        assert!(
            shipped.contains(&format!("uid: {uid}\n")),
            "{uid} is not a shipped data source"
        );
        instant(&service, query["model"]["expr"].as_str().unwrap(), at_s)
    };
    let evaluator = |rule: &Value| rule["data"][1]["model"]["conditions"][0]["evaluator"].clone();
    // The readings end five hours after the base.
    let end_s = base_s + 5 * HOUR_S;
    assert_eq!(result(silent, end_s), [], "they report");
    assert_eq!(
        result(silent, end_s + 2 * HOUR_S),
        [pair("S1", "1"), pair("S2", "1")]
    );
    assert_eq!(evaluator(silent), json!({ "type": "gt", "params": [0] }));
    assert_eq!(
        result(outside, end_s),
        [pair("S1", "6"), pair("S2", "35")],
        "the values, which the threshold compares"
    );
    assert_eq!(
        evaluator(outside),
        json!({ "type": "outside_range", "params": [-20, 60] })
    );
}
