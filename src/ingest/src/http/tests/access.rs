//! What a token may do: sensors, protocols, expiry, on every route.

use std::sync::Arc;

use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::readings::{tokens_file, tokens_file_with};
use super::rig::{Answer, Request, Rig, post};
use net::access::{GrantDefaults, hash_secret};

/// A port with a token `gw1.secret` that has these rules.
async fn rig(rules: &str) -> Rig {
    let dir = tempfile::tempdir().unwrap();
    let path = tokens_file_with(&dir, "gw1", rules);
    Rig::new(|cfg| cfg.tokens_file = Some(path)).await
}

fn from_gw1(request: Request) -> Request {
    request.header("authorization", "Bearer gw1.secret")
}

fn reading(sensor_id: &str) -> String {
    format!("{{\"sensor_id\":\"{sensor_id}\",\"ts\":\"2024-03-01T10:00:00Z\",\"temp\":1}}")
}

#[tokio::test]
async fn readings_outside_the_scope_are_rejected_one_by_one() {
    let mut rig = rig("write = [\"{id}-*\", \"shared\"]").await;
    let body = format!(
        "[{},{},{}]",
        reading("gw1-1"),
        reading("gw2-1"),
        reading("shared")
    );
    let (answer, readings) = rig.delivered(from_gw1(post(body))).await;
    let ids: Vec<_> = readings.iter().map(|r| r.sensor_id.as_str()).collect();
    assert_eq!((answer.status, ids), (200, vec!["gw1-1", "shared"]));
    let reject = &answer.json()["errors"][0];
    assert_eq!(
        (&reject["index"], &reject["reason"]),
        (&json!(1), &json!("not_allowed"))
    );
    assert!(
        reject["detail"].as_str().unwrap().contains("gw2-1"),
        "{reject}"
    );

    let none = from_gw1(post(reading("gw2-1"))).send(rig.addr).await;
    assert_eq!((none.status, &none.json()["accepted"]), (400, &json!(0)));
    rig.nothing_came();
}

/// Replaces the tokens of a port by one with this id and these rules.
fn reload_with_token(rig: &mut Rig, id: &str, rules: &str) {
    let dir = tempfile::tempdir().unwrap();
    let mut cfg = super::rig::http();
    cfg.tokens_file = Some(tokens_file_with(&dir, id, rules));
    let credentials = crate::http::credentials(&cfg, &GrantDefaults::unlimited()).unwrap();
    let decoding = Arc::new(super::rig::decoding());
    rig.renewal.put(&cfg, decoding, credentials);
}

/// Reloads while a body arrives, with a token of this id and these rules; returns the rest of the
/// answer.
async fn reloaded_meanwhile(rig: &mut Rig, id: &str, rules: &str) -> Answer {
    let body = reading("s1");
    let head = from_gw1(post("")).header("expect", "100-continue").head();
    let mut stream = TcpStream::connect(rig.addr).await.unwrap();
    let head = format!("{head}content-length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).await.unwrap();
    assert_eq!(Answer::read(&mut stream).await.unwrap().status, 100);
    reload_with_token(rig, id, rules);
    stream.write_all(body.as_bytes()).await.unwrap();
    let answer = tokio::spawn(async move { Answer::read(&mut stream).await.unwrap() });
    if id == "gw1" && rules.is_empty() {
        rig.ingest_batch().await.1.delivered();
    }
    answer.await.unwrap()
}

#[tokio::test]
async fn a_token_that_is_revoked_while_the_body_arrives_is_refused() {
    let mut rig = rig("").await;
    let kept = reloaded_meanwhile(&mut rig, "gw1", "").await;
    assert_eq!(kept.status, 200, "{}", kept.text);
    let revoked = reloaded_meanwhile(&mut rig, "gw2", "").await;
    assert_eq!(revoked.status, 401, "{}", revoked.text);
    assert!(revoked.text.contains("invalid_token"), "{}", revoked.text);
    rig.nothing_came();
}

#[tokio::test]
async fn a_token_that_is_restricted_while_the_body_arrives_is_restricted() {
    for (rules, status, reason) in [
        ("write = []", 403, "not_allowed"),
        ("via = [\"mqtt\"]", 403, "not_allowed"),
        ("expires = 2020-01-01", 401, "expired_token"),
        ("write = [\"other\"]", 400, "not_allowed"),
    ] {
        let mut rig = rig("").await;
        let answer = reloaded_meanwhile(&mut rig, "gw1", rules).await;
        assert_eq!(answer.status, status, "{rules}: {}", answer.text);
        assert!(answer.text.contains(reason), "{rules}: {}", answer.text);
        rig.nothing_came();
    }
}

#[tokio::test]
async fn the_sender_can_be_recorded_as_a_tag() {
    let dir = tempfile::tempdir().unwrap();
    let path = tokens_file(&dir);
    let mut decoding = super::rig::decoding();
    decoding.sender_tag = Some("sender".into());
    let mut rig = Rig::with(|cfg| cfg.tokens_file = Some(path), decoding).await;
    let body = r#"[{"sensor_id":"a","v":1,"tags":{"sender":"faked","site":"n"}},{"sensor_id":"a","v":2,"tags":{"a":"b"}}]"#;
    let (_, readings) = rig.delivered(from_gw1(post(body))).await;
    let tags: Vec<Vec<_>> = readings
        .iter()
        .map(|r| r.tags.iter().map(|(k, v)| format!("{k}={v}")).collect())
        .collect();
    assert_eq!(tags, [["sender=gw1", "site=n"], ["a=b", "sender=gw1"]]);
}

#[tokio::test]
async fn a_thousand_readings_of_one_kind_are_checked_too() {
    // The decoder takes readings like the one before by a fast path.
    let mut rig = rig("write = [\"a*\"]").await;
    let id = |i: usize| format!("{}{i}", if i % 10 == 9 { 'b' } else { 'a' });
    let lines: String = (0..1000)
        .map(|i| format!("{}\n", reading(&id(i))))
        .collect();
    let request = from_gw1(post(lines)).header("content-type", "application/x-ndjson");
    let (answer, readings) = rig.delivered(request).await;
    assert_eq!(
        (&answer.json()["accepted"], &answer.json()["rejected"]),
        (&json!(900), &json!(100))
    );
    assert!(readings.iter().all(|r| r.sensor_id.starts_with('a')));
    let lines: String = (0..1000)
        .map(|i| format!("cpu,sensor_id={} v=1 {}\n", id(i), 1_709_287_200 + i))
        .collect();
    let request = from_gw1(post(lines)).to("/write?precision=s");
    let (answer, readings) = rig.delivered(request).await;
    assert_eq!(
        (answer.status, readings.len()),
        (400, 900),
        "{}",
        answer.text
    );
    assert!(readings.iter().all(|r| r.sensor_id.starts_with('a')));
}

#[tokio::test]
async fn every_route_has_the_scope() {
    let mut rig = rig("write = [\"mine\"]").await;
    let otlp = |id: &str| {
        let point = json!({"asDouble": 1.5, "timeUnixNano": "1709287200000000000",
            "attributes": [{"key": "sensor_id", "value": {"stringValue": id}}]});
        let metric = json!({"name": "temp", "gauge": {"dataPoints": [point]}});
        json!({"resourceMetrics": [{"scopeMetrics": [{"metrics": [metric]}]}]}).to_string()
    };
    for id in ["mine", "other"] {
        let requests = [
            post(reading(id)),
            post(format!("cpu,sensor_id={id} v=1")).to("/api/v2/write"),
            post(format!("cpu,sensor_id={id} v=1")).to("/api/v3/write_lp"),
            post(otlp(id))
                .to("/v1/metrics")
                .header("content-type", "application/json"),
        ];
        for request in requests {
            let request = from_gw1(request);
            if id == "mine" {
                let (_, readings) = rig.delivered(request).await;
                assert_eq!(readings[0].sensor_id, "mine");
            } else {
                let answer = request.send(rig.addr).await;
                assert!(
                    answer.text.contains("may not write the sensor"),
                    "{}",
                    answer.text
                );
            }
        }
    }
    // A hook keeps what it cannot decode; this must not be replayed without inspection.
    let addr = rig.addr;
    let body = format!("[{{\"sensor_id\":7}},{}]", reading("other"));
    let answer =
        tokio::spawn(async move { from_gw1(post(body).to("/v1/hooks/json")).send(addr).await });
    let (batch, dead, ack) = rig.ingest_batches.recv().await.unwrap().into_parts();
    ack.delivered();
    assert_eq!(
        (
            answer.await.unwrap().status,
            batch.len(),
            dead[0].reason.as_str()
        ),
        (202, 0, "not_allowed")
    );
    let answer = post("{\"temp\":1}")
        .to("/api/v1/gw1.secret/telemetry")
        .send(rig.addr)
        .await;
    assert_eq!(
        answer.status, 400,
        "ThingsBoard's device is the token itself: {}",
        answer.text
    );
    rig.nothing_came();
}

#[tokio::test]
async fn beyond_its_rate_a_sender_is_told_when_to_come_back() {
    let mut rig = rig("rate = { readings_per_second = 2, burst = \"1s\" }").await;
    let body = format!("[{},{},{}]", reading("a"), reading("b"), reading("c"));
    assert_eq!(
        rig.delivered(from_gw1(post(body.clone()))).await.0.status,
        200,
        "a message passes whole"
    );
    let refused = from_gw1(post(body.clone())).send(rig.addr).await;
    assert_eq!((refused.status, refused.reason().as_str()), (429, "quota"));
    assert!(
        (1..=4).contains(&refused.retry_after_s()),
        "{}",
        refused.retry_after_s()
    );
    let influx = from_gw1(post("cpu,sensor_id=a v=1").to("/write"))
        .send(rig.addr)
        .await;
    assert_eq!(influx.status, 503, "its clients drop what gets 429");
    rig.nothing_came();
    tokio::time::sleep(std::time::Duration::from_millis(1700)).await;
    assert_eq!(rig.delivered(from_gw1(post(body))).await.0.status, 200);
}

#[tokio::test]
async fn rejected_readings_count_against_the_rate() {
    let rules = "write = [\"mine\"]\nrate = { readings_per_second = 2, burst = \"1s\" }";
    let mut rig = rig(rules).await;
    let body = format!("[{}]", vec![reading("other"); 100].join(","));
    for (status, reason) in [(400, None), (429, Some("quota"))] {
        let answer = from_gw1(post(body.clone())).send(rig.addr).await;
        assert_eq!(answer.status, status, "{}", answer.text);
        assert!(reason.is_none_or(|reason| answer.reason() == reason));
    }
    rig.nothing_came();
}

#[tokio::test]
async fn the_bytes_of_refused_bodies_count_against_the_rate() {
    const RULES: &str = "rate = { bytes_per_second = \"4KiB\", burst = \"1s\" }";
    let large = vec![b'x'; 20_000];
    let too_large = vec![b'x'; 2 << 20];
    for (request, status) in [
        (post(large.clone()).header("content-encoding", "gzip"), 400),
        (post(large.clone()).header("content-type", "image/png"), 415),
        (post(large.clone()).to("/v1/readings?ts_unit=x"), 400),
        (post(large.clone()).to("/query"), 400),
        (post(large.clone()).to("/v1/hooks/nothing"), 404),
        (post(too_large), 413),
    ] {
        // The clock of the port begins at zero, so its token has saved nothing yet: any request
        // before this one would leave it in debt.
        let mut rig = rig(RULES).await;
        let answer = from_gw1(request).send(rig.addr).await;
        assert_eq!(answer.status, status, "{}", answer.text);
        let next = from_gw1(post(reading("a"))).send(rig.addr).await;
        assert_eq!(
            (next.status, next.reason().as_str()),
            (429, "quota"),
            "after {status}"
        );
        rig.nothing_came();
    }
}

#[tokio::test]
async fn a_sender_has_so_many_requests_at_once_and_others_have_theirs() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens.toml");
    let entry = |id: &str, rules: &str| {
        format!(
            "[[tokens]]\nid = \"{id}\"\nsha256 = \"{}\"\n{rules}\n",
            hash_secret("secret")
        )
    };
    std::fs::write(
        &path,
        entry("gw1", "rate = { requests_max = 2 }") + &entry("gw2", ""),
    )
    .unwrap();
    let mut rig = Rig::new(|cfg| cfg.tokens_file = Some(path)).await;
    let addr = rig.addr;
    let waiting: Vec<_> = (0..2)
        .map(|_| tokio::spawn(async move { from_gw1(post(reading("a"))).send(addr).await }))
        .collect();
    let acks = [rig.ingest_batch().await.1, rig.ingest_batch().await.1];
    let refused = from_gw1(post(reading("a"))).send(addr).await;
    assert_eq!((refused.status, refused.reason().as_str()), (429, "quota"));
    let other = post(reading("b")).header("authorization", "Bearer gw2.secret");
    assert_eq!(rig.delivered(other).await.0.status, 200);
    acks.into_iter().for_each(model::ack::Ack::delivered);
    for request in waiting {
        assert_eq!(request.await.unwrap().status, 200);
    }
    assert_eq!(
        rig.delivered(from_gw1(post(reading("a")))).await.0.status,
        200
    );
}

#[tokio::test]
async fn a_token_that_may_not_send_here_is_refused_as_a_whole() {
    for (rules, status, reason) in [
        ("write = []", 403, "not_allowed"),
        ("via = [\"mqtt\"]", 403, "not_allowed"),
        ("expires = 2020-01-01", 401, "expired_token"),
    ] {
        let mut rig = rig(rules).await;
        let answer = from_gw1(post(reading("gw1-1"))).send(rig.addr).await;
        assert_eq!(
            (answer.status, answer.reason().as_str()),
            (status, reason),
            "{rules}"
        );
        let hook = from_gw1(post(reading("gw1-1")).to("/v1/hooks/json"))
            .send(rig.addr)
            .await;
        assert_eq!(hook.status, status, "{rules}");
        rig.nothing_came();
    }
    let mut rig = rig("via = [\"http\"]\nexpires = 2999-01-01T00:00:00Z").await;
    assert_eq!(
        rig.delivered(from_gw1(post(reading("any")))).await.0.status,
        200
    );
}
