//! The read API with a real MongoDB, in both modes: a reading that was answered with 200 is
//! returned immediately and exactly once, across pages and hours; lists, formats, cursors and
//! tokens; and the answers while MongoDB does not answer or does not write.

#![allow(clippy::unwrap_used, reason = "a test")]

use crate::support;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::support::block_on;
use crate::support::fleet::now_ms;
use crate::support::http_client::agent;
use crate::support::mongod::{Mongod, unique_database};
use crate::support::service::Service;
use hourbucket::access::hash_secret;
use hourbucket::model::stable_hash;
use hourbucket::route::shard_of;
use mongodb::bson::{Document, doc};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);
const MINUTE: i64 = 60_000;
/// Readings per request of [`post_many`].
const MANY: i64 = 100;

fn start(mode: &str, database: &str, more: &str) -> Service {
    let uri = Mongod::shared().uri();
    let text = format!("store.mode = \"{mode}\"\n{more}");
    let service = Service::start(
        &text,
        &[("STORE__URI", &uri), ("STORE__DATABASE", database)],
    );
    prepared(&service);
    service
}

/// Before its collections are prepared it accepts readings, but answers no queries.
fn prepared(service: &Service) {
    support::wait_until("the collections are prepared", PATIENCE, || {
        let (_, text) = service.get_admin("/readyz")?;
        (!serde_json::from_str::<Value>(&text).ok()?["mode"].is_null()).then_some(())
    });
}

#[track_caller]
fn get(service: &Service, path: &str) -> Value {
    let (status, text) = service.get_admin(path).unwrap();
    assert_eq!(status, 200, "{path}: {text}");
    serde_json::from_str(&text).unwrap()
}

#[track_caller]
fn post(service: &Service, lines: &str) {
    let (status, text) = service
        .post("/v1/readings", "application/x-ndjson", lines.as_bytes())
        .unwrap();
    assert_eq!(status, 200, "{text}");
}

/// Every page of a list of readings: time and `n`.
fn all_readings(
    service: &Service,
    sensor: &str,
    from: i64,
    to: i64,
    limit: usize,
) -> Vec<(String, i64)> {
    let mut found = vec![];
    let mut after = String::new();
    loop {
        let path =
            format!("/v1/sensors/{sensor}/readings?from={from}&to={to}&limit={limit}{after}");
        let answer = get(service, &path);
        assert_eq!(answer["complete"], true, "{path}");
        let readings = answer["readings"].as_array().unwrap();
        assert!(readings.len() <= limit);
        found.extend(readings.iter().map(|r| {
            (
                r["ts"].as_str().unwrap().to_owned(),
                r["values"]["n"].as_i64().unwrap(),
            )
        }));
        match answer["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => return found,
        }
    }
}

/// Posts readings and immediately queries them, repeatedly, while pages are filled, sealed and
/// written and minutes end.
fn immediately_and_once(mode: &str) {
    let database = unique_database(&format!("read_{mode}"));
    let text = "bucket.span = \"1m\"\nbucket.max_readings = 20\nflush.max_age = \"60ms\"\n\
        log.level = \"warn\"\n";
    let service = start(mode, &database, text);
    let first = now_ms() / MINUTE * MINUTE - 5 * MINUTE;
    let mut rng = fastrand::Rng::with_seed(7);
    // Several readings per step, some late, some in one millisecond; six minutes in a few seconds.
    let (mut sent, mut ts): (Vec<(i64, i64)>, i64) = (vec![], first);
    let to = first + 8 * MINUTE;
    let steps = 260;
    for step in 0..steps {
        let mut lines = String::new();
        for _ in 0..rng.usize(1..6) {
            ts += rng.i64(0..1000);
            let at = if rng.u8(0..8) == 0 {
                (ts - rng.i64(0..2 * MINUTE)).max(first)
            } else {
                ts
            };
            let n = sent.len() as i64;
            sent.push((at, n));
            lines += &format!("{{\"sensor_id\":\"a/b c\",\"ts\":{at},\"n\":{n},\"x\":0.5}}\n");
        }
        post(&service, &lines);
        let since = if step % 20 == 0 {
            first
        } else {
            (ts - MINUTE).max(first)
        };
        let found = all_readings(&service, "a%2Fb%20c", since, to, 37 + rng.usize(0..200));
        let mut returned: Vec<i64> = found.iter().map(|(_, n)| *n).collect();
        assert!(
            found.is_sorted_by_key(|(ts, _)| ts.clone()),
            "step {step}: not in order"
        );
        returned.sort_unstable();
        let mut expected: Vec<i64> = sent
            .iter()
            .filter(|(at, _)| *at >= since)
            .map(|(_, n)| *n)
            .collect();
        expected.sort_unstable();
        assert_eq!(returned, expected, "step {step}");
        if step % 10 == 0 {
            hours_fit(&service, first, to, &sent);
        }
    }
    let metrics = service.wait_settled(sent.len() as u64, PATIENCE);
    assert!(
        metrics.get("store_statements_total") > 50.0,
        "hardly anything was written meanwhile"
    );
    assert!(
        metrics.labelled("http_requests_total", "route", "/v1/sensors/{id}/readings")
            >= f64::from(steps)
    );
    hours_fit(&service, first, to, &sent);
    // The same after a restart, from the store alone.
    let mut service = service;
    assert_eq!(service.terminate(PATIENCE), 0);
    service.restart();
    prepared(&service);
    assert_eq!(
        all_readings(&service, "a%2Fb%20c", first, to, 1000).len(),
        sent.len()
    );
    hours_fit(&service, first, to, &sent);
}

#[track_caller]
fn hours_fit(service: &Service, from: i64, to: i64, sent: &[(i64, i64)]) {
    let answer = get(
        service,
        &format!("/v1/sensors/a%2Fb%20c/hourly?from={from}&to={to}"),
    );
    let mut expected: BTreeMap<i64, (i64, i64, i64)> = BTreeMap::new();
    for (at, n) in sent {
        let bucket = expected
            .entry(at / MINUTE * MINUTE)
            .or_insert((0, i64::MAX, 0));
        *bucket = (bucket.0 + 1, bucket.1.min(*n), bucket.2 + n);
    }
    let buckets = answer["buckets"].as_array().unwrap();
    assert_eq!(buckets.len(), expected.len(), "{answer}");
    for (bucket, (count, min, sum)) in buckets.iter().zip(expected.values()) {
        let n = &bucket["summary"]["n"];
        assert_eq!(
            (&bucket["count"], &n["min"], &n["sum"], &n["count"]),
            (&json!(count), &json!(min), &json!(sum), &json!(count))
        );
        assert_eq!(n["avg"].as_f64().unwrap(), *sum as f64 / *count as f64);
        assert_eq!(bucket["summary"]["x"]["max"], json!(0.5));
    }
}

#[test]
fn acknowledged_readings_are_returned_immediately_and_once_from_buckets() {
    immediately_and_once("bucket");
}

#[test]
fn acknowledged_readings_are_returned_immediately_and_once_from_time_series() {
    immediately_and_once("timeseries");
}

#[test]
fn sensors_only_in_memory_are_listed_with_their_last_values() {
    for mode in ["bucket", "timeseries"] {
        let database = unique_database("read_list");
        let service = start(mode, &database, "flush.max_age = \"200ms\"\n");
        let now = now_ms();
        let names = ["Z", "a", "a/1", "a/2", "ab", "b", "ä", "ü/1", "z"];
        for (i, name) in names.iter().enumerate().step_by(2) {
            post(
                &service,
                &format!(
                    "{{\"sensor_id\":\"{name}\",\"ts\":{now},\"n\":{i},\"old\":true,\"tags\":{{\"site\":\"x\"}}}}\n"
                ),
            );
        }
        service.wait_settled(5, PATIENCE);
        // From here on, nothing is stored for a while.
        let mut service = service;
        assert_eq!(service.terminate(PATIENCE), 0);
        drop(service);
        let service = start(mode, &database, "flush.max_age = \"1h\"\n");
        for (i, name) in names.iter().enumerate() {
            post(
                &service,
                &format!(
                    "{{\"sensor_id\":\"{name}\",\"ts\":{},\"n\":{}}}\n",
                    now + 1000,
                    i + 100
                ),
            );
        }
        for limit in [1, 2, 3, 100] {
            let (mut found, mut after): (Vec<Value>, _) = (vec![], String::new());
            loop {
                let answer = get(&service, &format!("/v1/sensors?limit={limit}{after}"));
                found.extend(answer["sensors"].as_array().unwrap().iter().cloned());
                let Some(next) = answer["next"].as_str() else {
                    break;
                };
                after = format!(
                    "&after={}",
                    next.replace('/', "%2F")
                        .replace('ä', "%C3%A4")
                        .replace('ü', "%C3%BC")
                );
            }
            let ids: Vec<&str> = found
                .iter()
                .map(|s| s["sensor_id"].as_str().unwrap())
                .collect();
            assert_eq!(
                ids,
                ["Z", "a", "a/1", "a/2", "ab", "b", "z", "ä", "ü/1"],
                "{mode} {limit}: by their bytes"
            );
            for sensor in &found {
                let i = names
                    .iter()
                    .position(|n| *n == sensor["sensor_id"])
                    .unwrap();
                assert_eq!(sensor["last"]["n"]["value"], json!(i + 100), "{sensor}");
                assert_eq!(sensor["last"]["old"].is_object(), i % 2 == 0, "{sensor}");
                assert_eq!(sensor["last_ts"], sensor["last"]["n"]["ts"]);
            }
            assert_eq!(
                found.iter().find(|s| s["sensor_id"] == "a/1").unwrap()["tags"],
                json!({"site": "x"})
            );
        }
        let ids = |path: &str| -> Vec<String> {
            let answer = get(&service, path);
            answer["sensors"]
                .as_array()
                .unwrap()
                .iter()
                .map(|s| s["sensor_id"].as_str().unwrap().to_owned())
                .collect()
        };
        assert_eq!(ids("/v1/sensors?prefix=a"), ["a", "a/1", "a/2", "ab"]);
        assert_eq!(ids("/v1/sensors?prefix=a%2F&after=a%2F1"), ["a/2"]);
        assert_eq!(
            ids("/v1/sensors?prefix=a&after=Z"),
            ["a", "a/1", "a/2", "ab"]
        );
        assert!(ids("/v1/sensors?prefix=a&after=b").is_empty());
        assert!(ids("/v1/sensors?prefix=none").is_empty());
        fleet_and_dead_letters(&service, &names);
    }
}

fn fleet_and_dead_letters(service: &Service, names: &[&str]) {
    let (status, _) = service
        .post("/v1/hooks/json", "application/json", b"{broken")
        .unwrap();
    assert_eq!(status, 202);
    let (status, _) = service
        .post("/v1/hooks/json", "application/json", b"\xff\xfe")
        .unwrap();
    assert_eq!(status, 202);
    let fleet = get(service, "/v1/fleet");
    assert_eq!(fleet["sensors"], json!(names.len()), "{fleet}");
    assert_eq!(fleet["busiest"].as_array().unwrap().len(), names.len());
    assert!(fleet["busiest"][0]["readings_per_minute"].as_f64().unwrap() > 0.0);
    let rejected = fleet["rejected"].as_array().unwrap();
    assert!(
        rejected
            .iter()
            .any(|r| r["source"] == "http" && r["reason"] == "invalid_json"),
        "{fleet}"
    );
    let dead_letters = support::wait_until("the dead letters are stored", PATIENCE, || {
        let answer = get(service, "/v1/dead-letters");
        (answer["letters"].as_array()?.len() >= 2).then_some(answer)
    });
    let dead_letters = dead_letters["letters"].as_array().unwrap();
    let base64 = dead_letters
        .iter()
        .find(|l| l["payload_base64"].is_string())
        .unwrap();
    assert_eq!(
        (&base64["payload_base64"], &base64["payload_bytes"]),
        (&json!("//4="), &json!(2))
    );
    assert!(
        dead_letters
            .iter()
            .any(|l| l["payload_text"] == "{broken" && l["source"] == "http")
    );
    let mut ids = BTreeSet::new();
    let mut before = String::new();
    loop {
        let answer = get(service, &format!("/v1/dead-letters?limit=1{before}"));
        ids.extend(
            answer["letters"]
                .as_array()
                .unwrap()
                .iter()
                .map(|l| l["id"].as_str().unwrap().to_owned()),
        );
        let Some(next) = answer["next"].as_str() else {
            break;
        };
        before = format!("&before={next}");
    }
    assert_eq!(
        ids.len(),
        dead_letters.len(),
        "each once, with pages of one"
    );
    assert!(
        get(service, "/v1/dead-letters?reason=nothing")["letters"]
            .as_array()
            .unwrap()
            .is_empty()
    );
}

#[test]
fn formats_and_old_buckets_of_the_other_mode() {
    let database = unique_database("read_forms");
    let mut service = start("bucket", &database, "flush.max_age = \"100ms\"\n");
    let first = now_ms() / MINUTE * MINUTE - 3 * 3_600_000;
    post(
        &service,
        &format!("{{\"sensor_id\":\"S\",\"ts\":{first},\"n\":1,\"t\":\"a,\\\"b\\\"\"}}\n"),
    );
    post(
        &service,
        &format!("{{\"sensor_id\":\"S\",\"ts\":{},\"n\":2}}\n", first + 1),
    );
    service.wait_settled(2, PATIENCE);
    assert_eq!(service.terminate(PATIENCE), 0);
    drop(service);
    // From here on in the other mode: the sensor has buckets of both modes, and a leftover
    // measurement of a conversion.
    let service = start("timeseries", &database, "flush.max_age = \"100ms\"\n");
    post(
        &service,
        &format!(
            "{{\"sensor_id\":\"S\",\"ts\":{},\"n\":3}}\n",
            first + 3_600_000
        ),
    );
    post(
        &service,
        &format!("{{\"sensor_id\":\"S\",\"ts\":{},\"n\":4}}\n", first + 2),
    );
    service.wait_settled(2, PATIENCE);
    let uri = Mongod::shared().uri();
    let name = database.clone();
    block_on(async move {
        let client = mongodb::Client::with_uri_str(uri).await.unwrap();
        let left = doc! { "ts": mongodb::bson::DateTime::from_millis(first), "meta": { "sensor_id": "S" }, "n": 1i64 };
        client
            .database(&name)
            .collection::<Document>("sensor_readings")
            .insert_one(left)
            .await
            .unwrap();
    });
    let path = format!("/v1/sensors/S/readings?from={first}");
    let ns: Vec<Value> = get(&service, &path)["readings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r["values"]["n"].clone())
        .collect();
    assert_eq!(json!(ns), json!([1, 2, 4, 3]));
    let hours = get(&service, &format!("/v1/sensors/S/hourly?from={first}"));
    let counts: Vec<&Value> = hours["buckets"]
        .as_array()
        .unwrap()
        .iter()
        .map(|b| &b["count"])
        .collect();
    assert_eq!(json!(counts), json!([3, 1]), "{hours}");
    let (_, csv) = service
        .get_admin(&format!("{path}&format=csv&limit=2"))
        .unwrap();
    let lines: Vec<&str> = csv.split("\r\n").collect();
    assert_eq!((lines[0], lines.len()), ("ts,n,t", 4), "{csv}");
    assert!(
        lines[1].ends_with("Z,1,\"a,\"\"b\"\"\"") && lines[2].ends_with("Z,2,"),
        "{csv}"
    );
    let (_, ndjson) = service.get_admin(&format!("{path}&format=ndjson")).unwrap();
    assert_eq!(ndjson.lines().count(), 4);
    for wrong in [
        "limit=0",
        "limit=100001",
        "after=x",
        "from=x",
        "format=xml",
        "from=5&to=4",
        "to=99999999999999999999",
    ] {
        let (status, text) = service
            .get_admin(&format!("/v1/sensors/S/readings?{wrong}"))
            .unwrap();
        assert_eq!(status, 400, "{wrong}: {text}");
    }
    let (status, _) = service.get_admin("/v1/sensors/S/hourly?from=0").unwrap();
    assert_eq!(status, 400, "half a million hours");
    for (query, expected) in [
        ("format=csv&csv=excel", 200),
        ("format=json&csv=excel", 400),
        ("format=csv&csv=x", 400),
    ] {
        assert_eq!(
            service
                .get_admin(&format!("/v1/sensors/S/readings?{query}"))
                .unwrap()
                .0,
            expected,
            "{query}"
        );
    }
}

#[test]
fn tokens_protect_it_and_an_unreachable_store_is_reported_soon() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = dir.path().join("tokens.toml");
    std::fs::write(
        &tokens,
        format!(
            "[[tokens]]\nid = \"r\"\nsha256 = \"{}\"\n",
            hash_secret("secret")
        ),
    )
    .unwrap();
    let mut mongod = Mongod::start();
    let text = format!(
        "http.tokens_file = {:?}\nstore.connect_timeout = \"1s\"\n",
        tokens.display().to_string()
    );
    let uri = mongod.uri();
    let database = unique_database("read_tokens");
    let service = Service::start(
        &text,
        &[("STORE__URI", &uri), ("STORE__DATABASE", &database)],
    );
    prepared(&service);
    let agent = agent();
    let ask = |path: &str, token: Option<&str>| -> (u16, Value) {
        let mut request = agent.get(format!("{}{path}", service.admin()));
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let mut answer = request.call().unwrap();
        let text = answer.body_mut().read_to_string().unwrap();
        (
            answer.status().as_u16(),
            serde_json::from_str(&text).unwrap_or(Value::Null),
        )
    };
    for path in [
        "/v1/sensors",
        "/v1/sensors/S/hourly",
        "/v1/sensors/S/readings",
        "/v1/fleet",
        "/v1/dead-letters",
    ] {
        for (token, reason) in [
            (None, "no_token"),
            (Some("r.wrong"), "invalid_token"),
            (Some("x"), "malformed_token"),
        ] {
            let (status, body) = ask(path, token);
            assert_eq!(
                (status, &body["error"]["reason"]),
                (401, &json!(reason)),
                "{path}"
            );
        }
        assert_eq!(ask(path, Some("r.secret")).0, 200, "{path}");
    }
    for open in ["/metrics", "/livez", "/readyz", "/openapi.json"] {
        assert_eq!(ask(open, None).0, 200, "{open}");
    }
    mongod.kill9();
    for path in [
        "/v1/sensors",
        "/v1/sensors/S/hourly",
        "/v1/sensors/S/readings",
        "/v1/dead-letters",
    ] {
        let begun = Instant::now();
        let (status, body) = ask(path, Some("r.secret"));
        assert_eq!(status, 503, "{path}: {body}");
        assert!(
            ["store_away", "timed_out"].contains(&body["error"]["reason"].as_str().unwrap()),
            "{body}"
        );
        assert!(
            begun.elapsed() < Duration::from_secs(15),
            "{path} took {:?}",
            begun.elapsed()
        );
    }
    assert_eq!(
        ask("/v1/fleet", Some("r.secret")).0,
        200,
        "the fleet does not need the store"
    );
}

#[test]
fn a_token_reads_what_it_may_read() {
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
        token("a", "read = [\"{id}-*\"]"),
        token("none", "read = []"),
        token("mqtt", "via = [\"mqtt\"]"),
        token("old", "expires = 2020-01-01"),
        token("reader", "write = []"),
    ];
    std::fs::write(&tokens, all.concat()).unwrap();
    let text = format!("http.tokens_file = {:?}\n", tokens.display().to_string());
    let uri = Mongod::shared().uri();
    let database = unique_database("read_scopes");
    let service = Service::start(
        &text,
        &[("STORE__URI", &uri), ("STORE__DATABASE", &database)],
    );
    prepared(&service);
    let agent = agent();
    let body = r#"[{"sensor_id":"a-1","v":1},{"sensor_id":"b-1","v":1}]"#;
    let url = format!("{}/v1/readings", service.http());
    let sent = agent
        .post(url)
        .header("authorization", "Bearer all.secret")
        .send(body)
        .unwrap();
    assert_eq!(sent.status(), 200);
    let ask = |path: &str, token: &str| -> (u16, Value) {
        let request = agent.get(format!("{}{path}", service.admin()));
        let mut answer = request
            .header("authorization", format!("Bearer {token}.secret"))
            .call()
            .unwrap();
        let text = answer.body_mut().read_to_string().unwrap();
        (
            answer.status().as_u16(),
            serde_json::from_str(&text).unwrap_or(Value::Null),
        )
    };
    for (token, statuses) in [
        ("all", [200, 200, 200]),
        ("a", [200, 403, 403]),
        ("none", [403; 3]),
        ("mqtt", [403; 3]),
        ("old", [401; 3]),
    ] {
        for end in ["hourly", "readings"] {
            let status = |id: &str| ask(&format!("/v1/sensors/{id}/{end}"), token).0;
            assert_eq!(
                [status("a-1"), status("b-1")],
                statuses[..2],
                "{token} {end}"
            );
        }
        for path in ["/v1/fleet", "/v1/dead-letters"] {
            assert_eq!(ask(path, token).0, statuses[2], "{token} {path}");
        }
    }
    let sensors = |token: &str| {
        ask("/v1/sensors", token).1["sensors"]
            .as_array()
            .map(Vec::len)
    };
    assert_eq!(
        [
            sensors("all"),
            sensors("a"),
            sensors("none"),
            sensors("reader")
        ],
        [Some(2), Some(1), Some(0), Some(2)]
    );
    assert_eq!(
        ask("/v1/sensors/b-1/hourly", "a").1["error"]["reason"],
        json!("not_allowed")
    );
}

/// Locks MongoDB for writes, or unlocks it; reads are possible meanwhile. (If it were stopped, no
/// answer could show whether it is complete.)
fn lock(mongod: &Mongod, is_locked: bool) {
    let command = if is_locked {
        doc! { "fsync": 1, "lock": true }
    } else {
        doc! { "fsyncUnlock": 1 }
    };
    block_on(async {
        let client = mongodb::Client::with_uri_str(mongod.uri()).await.unwrap();
        client.database("admin").run_command(command).await.unwrap();
    });
}

/// Posts about 100 KiB of readings of a sensor, numbered from `n`.
fn post_many(service: &Service, sensor: &str, from_ms: i64, n: i64) {
    let text = "x".repeat(1000);
    let line = |n: i64| {
        format!(
            "{{\"sensor_id\":\"{sensor}\",\"ts\":{},\"n\":{n},\"text\":\"{text}\"}}\n",
            from_ms + n
        )
    };
    post(service, &(n..n + MANY).map(line).collect::<String>());
}

/// The numbers of a sensor's readings in the answer, and whether the answer is marked as complete.
fn returned(service: &Service, sensor: &str, from_ms: i64) -> (Vec<i64>, bool) {
    let answer = get(
        service,
        &format!("/v1/sensors/{sensor}/readings?from={from_ms}&limit=100000"),
    );
    let ns = answer["readings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r["values"]["n"].as_i64().unwrap())
        .collect();
    (ns, answer["complete"].as_bool().unwrap())
}

#[test]
fn an_answer_without_readings_that_are_not_in_memory_yet_is_incomplete() {
    let mongod = Mongod::start();
    let uri = mongod.uri();
    let database = unique_database("read_incomplete");
    let text = "flush.max_age = \"100ms\"\nlog.level = \"warn\"\n[accumulate]\nshards = 2\n\
        max_bytes = \"1MiB\"\n";
    let service = Service::start(
        text,
        &[("STORE__URI", &uri), ("STORE__DATABASE", &database)],
    );
    prepared(&service);
    let of_shard = |shard| {
        let mut names = (0..).map(|i| format!("s{i}"));
        names
            .find(|name| shard_of(stable_hash(name), 2) == shard)
            .unwrap()
    };
    let full = of_shard(0);
    let other = of_shard(1);
    let from_ms = now_ms() / 3_600_000 * 3_600_000 - 3_600_000;
    let hourly = |sensor: &str| -> (i64, bool) {
        let answer = get(
            &service,
            &format!("/v1/sensors/{sensor}/hourly?from={from_ms}"),
        );
        let buckets = answer["buckets"].as_array().unwrap();
        (
            buckets.iter().map(|b| b["count"].as_i64().unwrap()).sum(),
            answer["complete"].as_bool().unwrap(),
        )
    };
    for sensor in [&full, &other] {
        post_many(&service, sensor, from_ms, 0);
    }
    service.wait_settled(2 * MANY as u64, PATIENCE);
    lock(&mongod, true);

    // The shard accepts as much as fits. Until then each answer is complete; from then on it says
    // that it is not.
    let mut sent = MANY;
    let accepted = loop {
        post_many(&service, &full, from_ms, sent);
        sent += MANY;
        let (ns, is_complete) = returned(&service, &full, from_ms);
        assert!(ns.is_sorted_by(|a, b| a < b), "each once");
        if !is_complete {
            break ns.len() as i64;
        }
        assert_eq!(ns.len() as i64, sent, "it says that it is complete");
        assert!(
            sent < 50 * MANY,
            "{sent} readings of 1 KiB are in a shard with half a MiB"
        );
    };
    assert!((2 * MANY..sent).contains(&accepted), "{accepted} of {sent}");
    assert_eq!(hourly(&full), (accepted, false));
    assert_eq!(
        returned(&service, &other, from_ms),
        ((0..MANY).collect(), true),
        "the other shard has no readings"
    );

    // After some more readings the router waits for that shard: later readings are in no shard, not
    // even in the one with free memory.
    for _ in 0..8 {
        post_many(&service, &full, from_ms, sent);
        sent += MANY;
    }
    post_many(&service, &other, from_ms, MANY);
    assert_eq!(
        returned(&service, &other, from_ms),
        ((0..MANY).collect(), false)
    );
    assert_eq!(hourly(&other), (MANY, false));
    let path = format!("/v1/sensors/{other}/readings?from={from_ms}&format=csv");
    let agent = ureq::Agent::config_builder()
        .proxy(None)
        .build()
        .new_agent();
    let csv = agent
        .get(format!("{}{path}", service.admin()))
        .call()
        .unwrap();
    assert_eq!(csv.headers()["x-hourbucket-complete"], "false");

    lock(&mongod, false);
    service.wait_settled((sent + 2 * MANY) as u64, PATIENCE);
    for (sensor, n) in [(&full, sent), (&other, 2 * MANY)] {
        assert_eq!(
            returned(&service, sensor, from_ms),
            ((0..n).collect(), true)
        );
        assert_eq!(hourly(sensor), (n, true));
    }
}
