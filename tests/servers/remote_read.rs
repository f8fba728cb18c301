//! Remote read: a real Prometheus requests the readings and evaluates queries over them; and a
//! client of the protocol, with bad requests.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::time::Duration;

use net::access::hash_secret;
use serde_json::{Value, json};

use crate::support::http_client::agent;
use crate::support::mongod::{Mongod, unique_database};
use crate::support::prometheus::Prometheus;
use crate::support::remote_read::{Matcher, request, samples};
use crate::support::service::Service;
use crate::support::wait_until;

const PATIENCE: Duration = Duration::from_secs(60);
const HOUR_S: i64 = 3600;
const READ: &str = "/prometheus/api/v1/read";

/// A Prometheus that scrapes nothing: all samples come from the service.
fn reading_from(service: &str) -> Prometheus {
    Prometheus::start(&format!(
        "remote_read:\n  - url: {service}{READ}\n    read_recent: true\n"
    ))
}

/// The result of a range query, its series ordered. `base`: of the API.
#[track_caller]
fn range(agent: &ureq::Agent, base: &str, query: &str, (start_s, end_s): (i64, i64)) -> Vec<Value> {
    let request = agent
        .get(format!("{base}/api/v1/query_range"))
        .query("query", query);
    let request = request
        .query("start", start_s.to_string())
        .query("end", end_s.to_string())
        .query("step", "7m");
    let text = request.call().unwrap().body_mut().read_to_string().unwrap();
    let answer: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{query}: {text}"));
    assert_eq!(
        (&answer["status"], &answer["warnings"]),
        (&json!("success"), &Value::Null),
        "{query}: {answer}"
    );
    let mut all = answer["data"]["result"].as_array().unwrap().clone();
    all.sort_by_key(|series| series["metric"].to_string());
    all
}

/// Times lie off the steps of the queries, so that open and closed windows contain the same
/// samples.
fn post(service: &Service, base_s: i64) {
    let mut lines = String::new();
    for minute in 0..=300 {
        for (sensor, site, shift) in [("S1", "north", 7), ("S2", "south", 38)] {
            let reading = json!({
                "sensor_id": sensor, "ts": base_s + minute * 60 + shift, "tags": { "site": site },
                "values": { "temp": f64::from(minute as i32 % 7) + 0.1, "on": minute % 2 == 0, "note": "x" },
            });
            lines += &format!("{reading}\n");
        }
    }
    let (status, text) = service
        .post("/v1/readings", "application/x-ndjson", lines.as_bytes())
        .unwrap();
    assert_eq!(status, 200, "{text}");
}

#[track_caller]
fn prometheus_agrees(prometheus: &Prometheus, service: &Service, base_s: i64) {
    let theirs = prometheus.url();
    let ours = format!("{}/prometheus", service.admin());
    for (query, series) in [
        ("temp", 2),
        ("temp{site=\"north\"}", 1),
        ("temp{site!=\"north\"}", 1),
        ("{__name__=~\"temp|on\", sensor_id=~\"S.\"}", 4),
        ("temp{sensor_id!~\".*1\"}", 1),
        ("temp{site=\"east\"}", 0),
        ("sum by (site) (avg_over_time(temp[1h]))", 2),
        ("rate(temp[10m])", 2),
        (
            "max_over_time({__name__=\"on\"}[30m]) + on (sensor_id) temp",
            2,
        ),
        ("quantile_over_time(0.9, temp[1h] offset 20m)", 2),
        ("temp unless on (site) {__name__=\"on\"} == 1", 2),
    ] {
        let times = (base_s, base_s + 5 * HOUR_S);
        let expected = range(&agent(), &ours, query, times);
        let found = range(&prometheus.agent, &theirs, query, times);
        assert_eq!(expected.len(), series, "{query}: {expected:?}");
        let close = |a: &Value, b: &Value| {
            let number = |v: &Value| v[1].as_str().unwrap().parse::<f64>().unwrap();
            a[0] == b[0] && (number(a) - number(b)).abs() <= 1e-9 * number(a).abs().max(1.0)
        };
        for (a, b) in expected.iter().zip(&found) {
            let values = |v: &Value| v["values"].as_array().unwrap().clone();
            assert_eq!(a["metric"], b["metric"], "{query}");
            assert_eq!(values(a).len(), values(b).len(), "{query}");
            assert!(
                values(a).iter().zip(&values(b)).all(|(a, b)| close(a, b)),
                "{query}: {a} {b}"
            );
        }
        assert_eq!(expected.len(), found.len(), "{query}");
    }
}

fn read(service: &Service, body: &[u8]) -> (u16, String, Vec<u8>) {
    let request = agent().post(format!("{}{READ}", service.admin()));
    let mut answer = request
        .header("content-type", "application/x-protobuf")
        .send(body)
        .unwrap();
    let kind = answer.headers()["content-type"]
        .to_str()
        .unwrap()
        .to_owned();
    (
        answer.status().as_u16(),
        kind,
        answer.body_mut().read_to_vec().unwrap(),
    )
}

fn labels(pairs: &[(&str, &str)]) -> std::collections::BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

#[track_caller]
fn answers_have_the_samples(service: &Service, base_s: i64) {
    let base_ms = base_s * 1000;
    let temp: &[Matcher<'_>] = &[(0, "__name__", "temp")];
    let some: &[Matcher<'_>] = &[
        (2, "__name__", "temp|on|note"),
        (1, "site", "north"),
        (3, "sensor_id", "S[01]"),
    ];
    let first_ms = base_ms + 7000;
    // The last one is a single millisecond: both ends are inclusive.
    let queries = [
        (base_ms, base_ms + 5 * HOUR_S * 1000, temp),
        (i64::MIN, i64::MAX, some),
        (first_ms, first_ms, temp),
        (9, 5, temp),
    ];
    // Prometheus prefers chunks, and accepts samples.
    let (status, kind, body) = read(service, &request(&queries, &[1, 0]));
    assert_eq!(
        (status, kind.as_str()),
        (200, "application/x-protobuf"),
        "{}",
        String::from_utf8_lossy(&body)
    );
    let found = samples(&body);
    let lengths: Vec<Vec<usize>> = found
        .iter()
        .map(|series| series.iter().map(|(_, samples)| samples.len()).collect())
        .collect();
    assert_eq!(lengths, [vec![300, 300], vec![301, 301], vec![1], vec![]]);
    let south = |name| labels(&[("__name__", name), ("sensor_id", "S2"), ("site", "south")]);
    assert_eq!(
        found[1]
            .iter()
            .map(|(labels, _)| labels.clone())
            .collect::<Vec<_>>(),
        [south("on"), south("temp")]
    );
    assert_eq!(
        found[1][0].1[..2],
        [(base_ms + 38_000, 1.0), (base_ms + 98_000, 0.0)]
    );
    assert_eq!(found[2][0].1, [(first_ms, 0.1)]);
    for (series, _) in [&found[0][0], &found[2][0]] {
        assert_eq!(
            *series,
            labels(&[("__name__", "temp"), ("sensor_id", "S1"), ("site", "north")])
        );
    }
}

fn bad_requests_are_refused(service: &Service) {
    let long = "x".repeat(200_000);
    let temp: &[Matcher<'_>] = &[(0, "__name__", "temp")];
    for (body, status, word) in [
        (b"no snappy".to_vec(), 400, "snappy"),
        (
            b"\xff\xff\xff\xff\x0f\x00".to_vec(),
            400,
            "1048576 bytes when decompressed",
        ),
        // More than the kernel buffers: the client is still sending when it is refused.
        (vec![0; 12 << 20], 413, "1048576 bytes"),
        (
            snap::raw::Encoder::new().compress_vec(b"\x0a\x7f").unwrap(),
            400,
            "prometheus.ReadRequest",
        ),
        (
            request(&[(0, 1, &[(7, "a", "b")])], &[]),
            400,
            "matcher type",
        ),
        (request(&[(0, 1, &[(2, "a", "(")])], &[]), 400, "regexp"),
        (
            request(&[(0, 1, &[(2, "a", "(x{1000}){1000}")])], &[]),
            400,
            "simpler",
        ),
        (
            request(&[(0, 1, &[(2, "a", long.as_str())])], &[]),
            400,
            "200000 bytes",
        ),
        (request(&[(0, 1, temp)], &[1]), 400, "response types"),
        (
            request(&[(0, i64::MAX, temp); 4], &[]),
            422,
            "too many samples",
        ),
        (
            request(&[(0, i64::MAX, &[]), (i64::MIN, i64::MAX, &[])], &[]),
            422,
            "too many samples",
        ),
    ] {
        let (got, kind, text) = read(service, &body);
        let text = String::from_utf8_lossy(&text);
        assert!(
            got == status && kind.starts_with("text/plain") && text.contains(word),
            "{word}: {got} {kind} {text}"
        );
    }
}

fn remote_read(mode: &str) {
    let uri = Mongod::shared().uri();
    let database = unique_database(&format!("remote_read_{mode}"));
    let text = format!(
        "store.mode = \"{mode}\"\nlog.level = \"warn\"\nflush.max_age = \"4s\"\n\
         promql.samples_max = 2000\n\
         promql.lookback = \"5m\"\n"
    );
    let service = Service::start(
        &text,
        &[("STORE__URI", &uri), ("STORE__DATABASE", &database)],
    );
    let prometheus = reading_from(&service.admin());
    let base_s = crate::support::fleet::now_ms() / 1000 / HOUR_S * HOUR_S - 8 * HOUR_S;
    wait_until("the collections are prepared", PATIENCE, || {
        let (_, text) = service.get_admin("/readyz")?;
        (!serde_json::from_str::<Value>(&text).ok()?["mode"].is_null()).then_some(())
    });
    post(&service, base_s);
    // In memory, and then stored.
    answers_have_the_samples(&service, base_s);
    service.wait_settled(602, PATIENCE);
    answers_have_the_samples(&service, base_s);
    prometheus_agrees(&prometheus, &service, base_s);
    bad_requests_are_refused(&service);
}

#[test]
fn a_prometheus_reads_in_bucket_mode() {
    remote_read("bucket");
}

#[test]
fn a_prometheus_reads_in_timeseries_mode() {
    remote_read("timeseries");
}

#[test]
fn a_token_reads_the_series_that_it_may_read() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = dir.path().join("tokens.toml");
    let token = |id: &str, rules: &str| {
        format!(
            "[[tokens]]\nid = \"{id}\"\nsha256 = \"{}\"\n{rules}\n",
            hash_secret("secret")
        )
    };
    let all = [
        token("all", ""),
        token("a", "read = [\"a-*\"]"),
        token("mqtt", "via = [\"mqtt\"]"),
    ];
    fs::write(&tokens, all.concat()).unwrap();
    let text = format!("http.tokens_file = {:?}\n", tokens.display().to_string());
    let uri = Mongod::shared().uri();
    let database = unique_database("remote_read_scopes");
    let service = Service::start(
        &text,
        &[("STORE__URI", &uri), ("STORE__DATABASE", &database)],
    );
    let body = r#"[{"sensor_id":"a-1","v":1},{"sensor_id":"b-1","v":1}]"#;
    let url = format!("{}/v1/readings", service.http());
    let sent = agent()
        .post(url)
        .header("authorization", "Bearer all.secret")
        .send(body)
        .unwrap();
    assert_eq!(sent.status(), 200);
    let ask = |token: &str, body: &[u8]| {
        let request = agent().post(format!("{}{READ}", service.admin()));
        let request = request.header("authorization", format!("Bearer {token}"));
        let mut answer = request.send(body).unwrap();
        let kind = answer.headers()["content-type"]
            .to_str()
            .unwrap()
            .to_owned();
        (
            answer.status().as_u16(),
            kind,
            answer.body_mut().read_to_vec().unwrap(),
        )
    };
    // At first the shards may not have what is acknowledged: they wait for the store.
    wait_until("the readings are found", PATIENCE, || {
        let (status, _, answer) = ask("all.secret", &request_for_all());
        (status == 200 && samples(&answer)[0].len() == 2).then_some(())
    });
    for (token, wanted) in [("all.secret", 2), ("a.secret", 1)] {
        assert_eq!(
            samples(&ask(token, &request_for_all()).2)[0].len(),
            wanted,
            "{token}"
        );
    }
    let large = vec![0; 12 << 20];
    for (token, wanted) in [("all.wrong", 401), ("mqtt.secret", 403)] {
        assert_eq!(ask(token, &large).0, wanted);
        let (status, kind, text) = ask(token, &request_for_all());
        let text = String::from_utf8_lossy(&text);
        assert!(
            status == wanted && kind.starts_with("text/plain") && text.contains("token"),
            "{status} {kind} {text}"
        );
    }
}

fn request_for_all() -> Vec<u8> {
    request(&[(i64::MIN, i64::MAX, &[])], &[])
}
