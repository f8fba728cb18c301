//! The line protocol's routes: exactly 204, errors in the clients' formats, tokens in every form,
//! and the requests that clients send first.

use serde_json::json;

use super::readings::tokens_file;
use super::rig::{Answer, Request, Rig, decoding, post};
use crate::http::routes::{HEALTH, PING, QUERY, WRITE_V1, WRITE_V2, WRITE_V3};
use decode::KEPT_MAX;
use model::Value;

const T: i64 = 1_709_287_200_000;

fn lines(target: &str, body: &str) -> Request {
    post(body)
        .to(target)
        .header("content-type", "text/plain; charset=utf-8")
}

fn is_done(answer: &Answer) {
    assert_eq!(
        (
            answer.status,
            answer.text.as_str(),
            answer.header("content-type")
        ),
        (204, "", None)
    );
    assert!(
        answer
            .header("x-influxdb-version")
            .is_some_and(|v| v.starts_with("1.8"))
    );
}

#[tokio::test]
async fn good_lines_are_204_once_they_are_safe_in_every_precision() {
    let mut rig = Rig::new(|_| {}).await;
    let minute = T / 60_000;
    let hour = T / 3_600_000;
    for (target, times) in [
        ("/write?db=x&rp=&consistency=one", vec![("", T * 1_000_000)]),
        (
            "/write?db=x&precision=",
            vec![
                ("", T * 1_000_000),
                ("n", T * 1_000_000),
                ("ns", T * 1_000_000),
                ("u", T * 1000),
                ("us", T * 1000),
                ("ms", T),
                ("s", T / 1000),
                ("m", minute),
                ("h", hour),
            ],
        ),
        (
            "/api/v2/write?org=o&bucket=b&precision=",
            vec![
                ("", T * 1_000_000),
                ("ns", T * 1_000_000),
                ("us", T * 1000),
                ("ms", T),
                ("s", T / 1000),
            ],
        ),
        (
            "/api/v3/write_lp?db=x&no_sync=true&precision=",
            vec![
                ("", T / 1000),
                ("auto", T),
                ("auto", T * 1000),
                ("auto", T * 1_000_000),
                ("nanosecond", T * 1_000_000),
                ("microsecond", T * 1000),
                ("millisecond", T),
                ("second", T / 1000),
                ("ns", T * 1_000_000),
                ("s", T / 1000),
            ],
        ),
    ] {
        for (precision, time) in times {
            let target = format!("{target}{precision}");
            let (answer, readings) = rig
                .delivered(lines(&target, &format!("cpu,host=a v=1,n=2i {time}\n")))
                .await;
            is_done(&answer);
            assert_eq!(
                (readings[0].ts_ms, readings[0].receipt_time),
                (T, false),
                "{target} {time}"
            );
            assert_eq!(
                (readings[0].sensor_id.as_str(), &readings[0].values["n"]),
                ("cpu,host=a", &Value::Int(2))
            );
        }
    }
    for target in [
        "/write?precision=d",
        "/api/v2/write?precision=m",
        "/api/v3/write_lp?precision=h",
    ] {
        let answer = lines(target, "cpu v=1").send(rig.addr).await;
        let json = answer.json();
        let text = json
            .get("message")
            .or(json.get("error"))
            .and_then(|t| t.as_str())
            .unwrap();
        assert!(
            answer.status == 400 && text.contains("precision is one of"),
            "{json}"
        );
    }
    rig.nothing_came();
}

#[tokio::test]
async fn any_content_type_and_every_encoding_is_taken_and_no_line_at_all_is_no_error() {
    use std::io::Write;
    let mut rig = Rig::new(|_| {}).await;
    let member = |text: &str| {
        let mut encoder = flate2::write::GzEncoder::new(vec![], flate2::Compression::default());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    };
    let members = [member("a v=1\n"), member("b v=2\n")].concat();
    for target in [WRITE_V1, WRITE_V2, WRITE_V3] {
        let (answer, readings) = rig
            .delivered(
                post(members.clone())
                    .to(target)
                    .header("content-encoding", "gzip"),
            )
            .await;
        is_done(&answer);
        assert_eq!((readings.len(), readings[1].receipt_time), (2, true));
        let form = post("a v=1")
            .to(target)
            .header("content-type", "application/x-www-form-urlencoded");
        is_done(&rig.delivered(form).await.0);
        for nothing in ["", "\n", "# only a comment\n"] {
            is_done(&lines(target, nothing).send(rig.addr).await);
        }
        let brotli = post("x")
            .to(target)
            .header("content-encoding", "br")
            .send(rig.addr)
            .await;
        assert_eq!(brotli.status, 415);
    }
    rig.nothing_came();
}

#[tokio::test]
async fn good_lines_are_kept_and_bad_ones_are_told_as_each_version_does() {
    let mut rig = Rig::new(|_| {}).await;
    let body = format!("a v=1 {T}\n# c\nb\nc v=2 {T}\nd v=18446744073709551615u\n");
    for (target, check) in [
        ("/write?precision=ms", 1),
        ("/api/v2/write?precision=ms", 2),
        ("/api/v3/write_lp?precision=ms", 3),
        ("/api/v3/write_lp?precision=ms&accept_partial=true", 3),
    ] {
        let (answer, readings) = rig.delivered(lines(target, &body)).await;
        let ids: Vec<&str> = readings.iter().map(|r| r.sensor_id.as_str()).collect();
        assert_eq!((answer.status, ids), (400, vec!["a", "c"]));
        let json = answer.json();
        match check {
            1 => {
                let text = json["error"].as_str().unwrap();
                assert!(
                    text.starts_with("partial write: line 3: no field"),
                    "{text}"
                );
                assert!(
                    text.contains("line 5: ") && text.contains("rejected: 2, accepted: 2"),
                    "{text}"
                );
            }
            2 => {
                assert_eq!(
                    (&json["code"], &json["line"]),
                    (&json!("invalid"), &json!(3))
                );
                assert!(
                    json["message"]
                        .as_str()
                        .unwrap()
                        .starts_with("partial write: line 3: "),
                    "{json}"
                );
            }
            _ => {
                assert_eq!(json["error"], "partial write of line protocol occurred");
                let line = |i: usize| {
                    (
                        json["data"][i]["line_number"].clone(),
                        json["data"][i]["original_line"].clone(),
                    )
                };
                assert_eq!(line(0), (json!(3), json!("b")));
                assert_eq!(line(1), (json!(5), json!("d v=18446744073709551615u")));
                assert!(
                    json["data"][0]["error_message"]
                        .as_str()
                        .unwrap()
                        .starts_with("no field"),
                    "{json}"
                );
            }
        }
    }
}

#[tokio::test]
async fn where_no_line_is_good_nothing_is_handed_over() {
    let mut rig = Rig::new(|_| {}).await;
    let many = "bad\n".repeat(5000);
    let answer = lines(WRITE_V1, &many).send(rig.addr).await;
    let text = answer.json()["error"].as_str().unwrap().to_owned();
    assert!(
        answer.status == 400 && text.starts_with("unable to parse: line 1: ") && text.len() < 1000,
        "{text}"
    );
    assert!(
        text.contains("; and others (rejected: 5000, accepted: none)"),
        "{text}"
    );
    assert!(
        !text.contains("database not found"),
        "these words make Telegraf create one"
    );
    let answer = lines(WRITE_V2, "bad").send(rig.addr).await;
    assert_eq!((answer.status, &answer.json()["line"]), (400, &json!(1)));
    let answer = lines(WRITE_V3, &many).send(rig.addr).await;
    assert_eq!(
        (
            answer.status,
            answer.json()["data"].as_array().unwrap().len()
        ),
        (400, KEPT_MAX)
    );
    rig.nothing_came();
}

#[tokio::test]
async fn without_accept_partial_it_is_all_or_nothing() {
    let mut rig = Rig::new(|_| {}).await;
    let target = "/api/v3/write_lp?db=x&accept_partial=false";
    let answer = lines(target, "a v=1\nb v=x\nc\n").send(rig.addr).await;
    let json = answer.json();
    assert_eq!(
        (answer.status, &json["error"]),
        (400, &json!("parsing failed for write_lp endpoint"))
    );
    assert_eq!(
        (&json["data"]["line_number"], &json["data"]["original_line"]),
        (&json!(2), &json!("b v=x"))
    );
    rig.nothing_came();
    is_done(&rig.delivered(lines(target, "a v=1\nb v=2")).await.0);
    // Version 2 has no such parameter.
    let (answer, readings) = rig
        .delivered(lines("/api/v2/write?accept_partial=false", "a v=1\nb v=x"))
        .await;
    assert_eq!((answer.status, readings.len()), (400, 1));
}

#[tokio::test]
async fn overload_is_what_makes_each_client_send_again() {
    let mut rig = Rig::new(|_| {}).await;
    rig.admission_control.full(true);
    for (target, status) in [(WRITE_V1, 503), (WRITE_V2, 429), (WRITE_V3, 429)] {
        let answer = lines(target, "a v=1").send(rig.addr).await;
        assert_eq!(
            (answer.status, answer.retry_after_s() >= 10),
            (status, true),
            "{target}"
        );
        answer.json();
    }
    let health = post("").method("GET").to(HEALTH).send(rig.addr).await;
    assert_eq!(
        (health.status, &health.json()["status"]),
        (503, &json!("fail"))
    );
    rig.admission_control.full(false);
    is_done(&rig.delivered(lines(WRITE_V1, "a v=1")).await.0);
    rig.admission_control.stop();
    for target in [WRITE_V1, WRITE_V2, WRITE_V3] {
        let answer = lines(target, "a v=1").send(rig.addr).await;
        assert!(
            answer.status == 503 && answer.retry_after_s() >= 1,
            "{target}"
        );
    }
    rig.nothing_came();
}

#[tokio::test]
async fn what_was_handed_over_and_not_acknowledged_is_sent_again() {
    let mut rig = Rig::new(|_| {}).await;
    for target in [WRITE_V1, WRITE_V2, WRITE_V3] {
        let addr = rig.addr;
        let answer = tokio::spawn(async move { lines(target, "a v=1\nbad").send(addr).await });
        let (_, ack) = rig.ingest_batch().await;
        drop(ack);
        let answer = answer.await.unwrap();
        assert!(
            answer.status == 503 && answer.retry_after_s() >= 1,
            "{target}: {}",
            answer.text
        );
    }
}

#[tokio::test]
async fn a_body_that_is_too_large_or_too_slow_is_told_so_that_the_batch_is_not_lost() {
    use tokio::io::AsyncWriteExt;
    let mut rig = Rig::new(|cfg| {
        cfg.body_max_bytes = 1000;
        cfg.body_timeout = std::time::Duration::from_millis(100);
    })
    .await;
    let much = "a v=1\n".repeat(1000);
    for (target, key) in [
        (WRITE_V1, "error"),
        (WRITE_V2, "message"),
        (WRITE_V3, "error"),
    ] {
        let answer = lines(target, &much).send(rig.addr).await;
        assert_eq!(answer.status, 413);
        assert!(
            answer.json()[key].as_str().unwrap().contains("1000 bytes"),
            "{}",
            answer.text
        );
        let mut stream = tokio::net::TcpStream::connect(rig.addr).await.unwrap();
        let head = format!(
            "{}content-length: 100\r\n\r\na v=1",
            lines(target, "").head()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let answer = Answer::read(&mut stream).await.unwrap();
        assert!(
            answer.status == 503 && answer.retry_after_s() >= 1,
            "{target}: {}",
            answer.text
        );
    }
    rig.nothing_came();
}

#[tokio::test]
async fn tokens_come_in_every_way_that_these_clients_have() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(|cfg| cfg.tokens_file = Some(tokens_file(&dir))).await;
    let with = |target: &str, value: &str| lines(target, "a v=1").header("authorization", value);
    // `any:gw1.secret`, `gw1:secret` and `gw1.secret:` in Base64.
    let password = "Basic YW55Omd3MS5zZWNyZXQ=";
    let pair = "Basic Z3cxOnNlY3JldA==";
    let user = "Basic Z3cxLnNlY3JldDo=";
    for target in [WRITE_V1, WRITE_V2, WRITE_V3] {
        for value in [
            "Token gw1.secret",
            "Bearer gw1.secret",
            "Token any:gw1.secret",
            "Token gw1:secret",
            password,
            pair,
        ] {
            is_done(&rig.delivered(with(target, value)).await.0);
        }
        for value in [
            "Token gw1.Secret",
            "Token gw2.secret",
            "Token my-token",
            "Basic ?",
            user,
            "Digest x",
        ] {
            let answer = with(target, value).send(rig.addr).await;
            assert_eq!(answer.status, 401, "{target} {value}");
            assert!(
                !answer.text.contains("secret:") && !answer.text.contains("my-token"),
                "{}",
                answer.text
            );
        }
        assert_eq!(lines(target, "a v=1").send(rig.addr).await.status, 401);
    }
    let answer = with(WRITE_V2, "Token my-token").send(rig.addr).await.json();
    assert!(
        answer["code"] == "unauthorized" && answer["message"].is_string(),
        "{answer}"
    );
    assert!(with(WRITE_V1, "Token my-token").send(rig.addr).await.json()["error"].is_string());
    for credentials in ["u=any&p=gw1.secret", "u=gw1&p=secret", "p=gw1.secret"] {
        is_done(
            &rig.delivered(lines(&format!("/write?db=x&{credentials}"), "a v=1"))
                .await
                .0,
        );
    }
    for target in [
        "/write?u=any&p=gw1.other",
        "/write?u=gw2&p=secret",
        "/api/v2/write?u=any&p=gw1.secret",
        "/query?u=x&q=CREATE%20DATABASE%20x",
    ] {
        assert_eq!(
            lines(target, "a v=1").send(rig.addr).await.status,
            401,
            "{target}"
        );
    }
    rig.nothing_came();
    // Requests that clients send without a token.
    for path in [PING, HEALTH] {
        assert!(post("").method("GET").to(path).send(rig.addr).await.status < 300);
    }
}

#[tokio::test]
async fn what_clients_ask_first() {
    let mut rig = Rig::new(|_| {}).await;
    for method in ["GET", "HEAD"] {
        is_done(&post("").method(method).to(PING).send(rig.addr).await);
    }
    for quiet in [
        "/ping?verbose",
        "/ping?verbose=false",
        "/ping?verbose=0&db=x",
    ] {
        is_done(&post("").method("GET").to(quiet).send(rig.addr).await);
    }
    let verbose = post("").method("GET").to("/ping?verbose=true");
    let answer = verbose.send(rig.addr).await;
    assert_eq!(answer.status, 200);
    assert_eq!(
        answer.json()["version"].as_str(),
        answer.header("x-influxdb-version")
    );
    let health = post("").method("GET").to(HEALTH).send(rig.addr).await;
    assert_eq!(
        (health.status, &health.json()["status"]),
        (200, &json!("pass"))
    );
    let form = |body: &str| {
        post(body)
            .to(QUERY)
            .header("content-type", "application/x-www-form-urlencoded")
    };
    let created = json!({ "results": [{ "statement_id": 0 }] });
    for request in [
        form("q=CREATE+DATABASE+%22telegraf%22"),
        form("q=create%20database%20x&db=x"),
        post("").to("/query?q=CREATE%20DATABASE%20%22x%22"),
        post("").method("GET").to("/query?q=CREATE+DATABASE+x"),
    ] {
        let answer = request.send(rig.addr).await;
        assert_eq!((answer.status, answer.json()), (200, created.clone()));
    }
    let databases = form("q=SHOW+DATABASES").send(rig.addr).await.json();
    assert_eq!(
        databases["results"][0]["series"][0]["columns"],
        json!(["name"])
    );
    for request in [
        form("q=SELECT+*+FROM+cpu"),
        form(""),
        form("q=%FF\u{1}"),
        form(&"x".repeat(70_000)),
    ] {
        let answer = request.send(rig.addr).await;
        assert!(
            matches!(answer.status, 400 | 413) && answer.json()["error"].is_string(),
            "{}",
            answer.text
        );
    }
    let answer = post("").method("PUT").to(WRITE_V1).send(rig.addr).await;
    assert_eq!(
        (answer.status, answer.reason().as_str()),
        (405, "method_not_allowed")
    );
    rig.nothing_came();
}

/// Telegraf's output for version 2 splits a batch on 413; the others give up on any 4xx.
#[tokio::test]
async fn more_lines_than_the_limit_are_refused_as_a_whole_where_the_sender_splits_them() {
    let mut decoding = decoding();
    decoding.limits.batch_max_readings = 2;
    let mut rig = Rig::with(|_| {}, decoding).await;
    let body = "m,sensor_id=a f=1\nm,sensor_id=b f=2\nm,sensor_id=c f=3";
    let answer = lines("/api/v2/write", body).send(rig.addr).await;
    assert_eq!(answer.status, 413);
    let text = answer.json()["message"].to_string();
    assert!(text.contains("more than 2 lines"), "{text}");
    rig.nothing_came();
    for target in ["/write", "/api/v3/write_lp"] {
        let (answer, readings) = rig.delivered(lines(target, body)).await;
        assert_eq!((answer.status, readings.len()), (400, 2), "{target}");
    }
}
