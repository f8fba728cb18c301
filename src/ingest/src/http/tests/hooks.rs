//! Hooks and ThingsBoard's route: 2xx for durable bodies, decoded or not; tokens in every place;
//! handshakes of clouds.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::readings::{tokens_file, tokens_file_with};
use super::rig::{Answer, Request, Rig, decoding, post};
use crate::redecode::Redecoder;
use decode::RejectReason;
use model::ack::Ack;
use model::{DeadLetter, Reading, Value};
use telemetry::rejected;

fn hook(target: &str, body: impl Into<Vec<u8>>) -> Request {
    post(body).to(&format!("/v1/hooks/{target}"))
}

/// Sends a request and delivers the next ingest batch.
async fn kept(rig: &mut Rig, request: Request) -> (Answer, Vec<Reading>, Vec<DeadLetter>) {
    let addr = rig.addr;
    let answer = tokio::spawn(async move { request.send(addr).await });
    let ingest_batch = tokio::time::timeout(super::rig::LONG, rig.ingest_batches.recv())
        .await
        .expect("an ingest batch")
        .unwrap();
    let (batch, dead, ack): (_, _, Ack) = ingest_batch.into_parts();
    ack.delivered();
    (answer.await.unwrap(), batch.to_readings(), dead)
}

#[tokio::test]
async fn bodies_are_read_as_the_url_says() {
    let mut rig = Rig::new(|_| {}).await;
    let (answer, readings, dead) = kept(
        &mut rig,
        hook("json?sensor_id=S1&event=up", r#"{"temp":21.5}"#),
    )
    .await;
    assert_eq!(
        (answer.status, &answer.json()["accepted"], dead.len()),
        (200, &1.into(), 0)
    );
    assert_eq!(
        (readings[0].sensor_id.as_str(), &readings[0].values["temp"]),
        ("S1", &Value::Double(21.5))
    );

    let (answer, readings, _) = kept(&mut rig, hook("scalar?sensor_id=S1&field=temp", "7")).await;
    assert_eq!(
        (answer.status, &readings[0].values["temp"]),
        (200, &Value::Int(7))
    );
    let line = hook("line?ts_unit=s", "cpu,sensor_id=L v=1 1709287200")
        .header("content-type", "application/strange");
    let (_, readings, _) = kept(&mut rig, line).await;
    assert_eq!(
        (readings[0].sensor_id.as_str(), readings[0].ts_ms),
        ("L", 1_709_287_200_000)
    );

    let get = hook("json?hum=53&temp=-2.5&id=shellyht-1", "").method("GET");
    let (answer, readings, _) = kept(&mut rig, get.clone()).await;
    assert_eq!(
        (answer.status, readings[0].sensor_id.as_str()),
        (200, "shellyht-1")
    );
    assert_eq!(
        (readings[0].values.len(), &readings[0].values["hum"]),
        (2, &Value::Int(53))
    );
    assert_eq!(get.method("HEAD").send(rig.addr).await.status, 200);

    // Nothing to store is not an error, and leaves nothing to keep.
    for (body, rejected) in [("[]", 0), ("", 1)] {
        let answer = hook("json", body).send(rig.addr).await;
        assert_eq!(
            (answer.status, &answer.json()["rejected"]),
            (200, &rejected.into())
        );
    }
    let answer = hook("chirpstack-v99", "{}").send(rig.addr).await;
    assert_eq!(
        (answer.status, answer.reason().as_str()),
        (404, "unknown_format")
    );
    assert_eq!(
        hook("json?ts_unit=days", "{}").send(rig.addr).await.status,
        400
    );
    let long = hook("json", vec![b' '; (1 << 20) + 1]).send(rig.addr).await;
    assert_eq!(
        (long.status, long.reason().as_str()),
        (413, "body_too_large")
    );
    rig.nothing_came();
}

#[tokio::test]
async fn a_value_in_a_url_is_read_like_a_scalar() {
    let mut rig = Rig::new(|_| {}).await;
    let none = hook("json?sensor_id=S1&hum=53&temp=nan&b=", "").method("GET");
    let (answer, readings, _) = kept(&mut rig, none).await;
    let names: Vec<_> = readings[0].values.keys().map(String::as_str).collect();
    assert_eq!((answer.status, names), (200, vec!["hum"]));
    for (query, reason) in [
        ("d=1e400", "not_finite"),
        ("d=inf", "not_finite"),
        ("d=nan", "no_values"),
    ] {
        let target = format!("json?sensor_id=S1&{query}");
        let (_, readings, dead) = kept(&mut rig, hook(&target, "").method("GET")).await;
        assert_eq!(
            (readings.len(), dead[0].reason.as_str()),
            (0, reason),
            "{query}"
        );
    }
    // A form is read likewise, and neither its secrets nor those of a query are kept.
    for (request, sensor_id) in [
        (
            hook(
                "json?sensor_id=S1",
                "hum=53&temp=nan&PASSWORD=hunter2&zip=01234",
            )
            .header(
                "content-type",
                "application/x-www-form-urlencoded; charset=utf-8",
            ),
            "S1",
        ),
        (
            hook("json?hum=53&id=0042&api_key=hunter2&zip=01234", "").method("GET"),
            "0042",
        ),
    ] {
        let (answer, readings, dead) = kept(&mut rig, request).await;
        let names: Vec<_> = readings[0].values.keys().map(String::as_str).collect();
        assert_eq!((answer.status, names), (200, vec!["hum", "zip"]));
        assert_eq!((readings[0].sensor_id.as_str(), dead.len()), (sensor_id, 0));
        assert_eq!(answer.json()["left_out"]["count"], 1);
    }
    let body = "id=S1&ts=soon&token=hunter2&temp=1";
    let form = hook("json", body).header("content-type", "application/x-www-form-urlencoded");
    let (_, _, dead) = kept(&mut rig, form).await;
    let payload = String::from_utf8_lossy(&dead[0].payload);
    assert_eq!(payload, r#"{"sensor_id":"S1","ts":"soon","temp":1}"#);
    // A format that reads no JSON object; `scalar` would store the object as a text.
    for format in ["scalar", "line", "senml", "msgpack", "otlp-json"] {
        let target = format!("{format}?sensor_id=S1&field=t&value=21.5");
        let answer = hook(&target, "").method("GET").send(rig.addr).await;
        assert_eq!(
            (answer.status, answer.reason().as_str()),
            (400, "bad_query"),
            "{format}"
        );
        assert!(answer.text.contains("with POST"), "{}", answer.text);
    }
    rig.nothing_came();
}

#[tokio::test]
async fn an_unknown_format_is_not_found_by_any_method() {
    let rig = Rig::new(|_| {}).await;
    let unknown = hook("nope?v=1", "");
    for method in ["GET", "POST"] {
        let answer = unknown.clone().method(method).send(rig.addr).await;
        assert_eq!(answer.status, 404, "{method}");
    }
    // Its answer has the length of a body, and none.
    let mut stream = TcpStream::connect(rig.addr).await.unwrap();
    let head = "HEAD /v1/hooks/nope?v=1 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
}

#[tokio::test]
async fn what_is_not_understood_is_kept_and_can_be_read_again() {
    let mut rig = Rig::new(|_| {}).await;
    let target = "json?topic=a/b&token=gw1.secret&event=up";
    let body = r#"[{"temp":1},{"sensor_id":"S2","temp":2}]"#;
    let (answer, readings, dead) = kept(&mut rig, hook(target, body)).await;
    assert_eq!(
        (answer.status, readings.len(), &answer.json()["rejected"]),
        (200, 1, &1.into())
    );
    let [dead_letter] = &dead[..] else {
        panic!("{dead:?}")
    };
    assert_eq!(
        (dead_letter.source.as_str(), dead_letter.reason.as_str()),
        ("http", RejectReason::MissingSensorId.as_str())
    );
    assert_eq!(
        (dead_letter.topic.as_str(), dead_letter.payload.as_slice()),
        ("/v1/hooks/json?topic=a/b", body.as_bytes())
    );
    assert_eq!(dead_letter.received_at_ms, readings[0].ts_ms);

    let (answer, readings, dead) = kept(&mut rig, hook("json?sensor_id=S1", "{\"temp\":")).await;
    assert_eq!(
        (answer.status, readings.len(), &answer.json()["accepted"]),
        (202, 0, &0.into())
    );
    let mut decoding = decoding();
    decoding.sender_tag = Some("sender".into());
    let mut reader = Redecoder::with_topics(&[], &[], Arc::new(decoding)).unwrap();
    let whole = DeadLetter {
        payload: br#"{"temp":1,"tags":{"sender":"other","site":"n"}}"#.to_vec(),
        ..dead[0].clone()
    };
    let again = reader.redecode(&whole);
    let reading = &again.batch.to_readings()[0];
    assert_eq!(
        (reading.sensor_id.as_str(), reading.ts_ms, again.rejected),
        ("S1", whole.received_at_ms, 0)
    );
    // Who sent it is not known any more, so no sender is named.
    let tags: Vec<_> = reading.tags.keys().map(String::as_str).collect();
    assert_eq!(tags, ["site"]);
    assert_eq!(
        reader.redecode(&dead[0]).reason(),
        Some(RejectReason::InvalidJson.as_str())
    );
    let other = DeadLetter {
        topic: "/v1/hooks/gone".into(),
        ..whole
    };
    assert_eq!(
        reader.redecode(&other).reason(),
        Some(RejectReason::UnknownFormat.as_str())
    );
    assert_eq!(
        reader
            .redecode(&DeadLetter {
                topic: "x".into(),
                ..other
            })
            .reason(),
        Some(RejectReason::UnknownFormat.as_str())
    );
}

#[tokio::test]
async fn a_hook_waits_for_room_where_others_are_told_to_come_again() {
    let mut rig = Rig::new(|_| {}).await;
    rig.admission_control.full(true);
    assert_eq!(post("{}").send(rig.addr).await.status, 429);
    let admission_control = rig.admission_control.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(300)).await;
        admission_control.full(false);
    });
    let (answer, readings, _) = kept(&mut rig, hook("json?sensor_id=S1", "{\"v\":1}")).await;
    assert_eq!((answer.status, readings.len()), (200, 1));

    // Not forever, and not at all if the service stops.
    rig.admission_control.full(true);
    let answer = hook("json?sensor_id=S1", "{\"v\":1}").send(rig.addr).await;
    assert_eq!(
        (answer.status, answer.reason().as_str()),
        (429, "journal_full")
    );
    assert!(answer.retry_after_s() > 0);
    rig.admission_control.stop();
    assert_eq!(
        hook("json?sensor_id=S1", "{\"v\":1}")
            .send(rig.addr)
            .await
            .status,
        503
    );
    rig.nothing_came();
}

#[tokio::test]
async fn a_token_may_stand_in_many_places() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(|cfg| cfg.tokens_file = Some(tokens_file(&dir))).await;
    let plain = hook("json?sensor_id=S1", "{\"v\":1}");
    let in_query = |token: &str| hook(&format!("json?sensor_id=S1&token={token}"), "{\"v\":1}");
    for (request, reason) in [
        (plain.clone(), "no_token"),
        (in_query("gw1.Secret"), "invalid_token"),
        (in_query("gw1"), "malformed_token"),
        (
            plain.clone().header("x-api-key", "gw2.secret"),
            "invalid_token",
        ),
        (plain.clone().method("GET"), "no_token"),
        (plain.clone().method("OPTIONS"), "no_token"),
    ] {
        let answer = request.send(rig.addr).await;
        assert_eq!((answer.status, answer.reason().as_str()), (401, reason));
        let is_malformed = reason == "malformed_token";
        assert_eq!(
            answer.text.contains("`?token=`"),
            is_malformed,
            "{}",
            answer.text
        );
        assert!(
            !answer.text.contains("gw1.S") && !answer.text.contains("gw2"),
            "{}",
            answer.text
        );
    }
    for request in [
        in_query("gw1.secret"),
        plain.clone().header("x-api-key", "gw1.secret"),
        plain.clone().header("authorization", "Bearer gw1.secret"),
        plain
            .clone()
            .header("authorization", "Basic dTpndzEuc2VjcmV0"),
        plain.header("authorization", "Basic Z3cxOnNlY3JldA=="),
    ] {
        assert_eq!(kept(&mut rig, request).await.0.status, 200);
    }
    rig.nothing_came();
}

#[tokio::test]
async fn the_rejects_of_a_hook_are_those_of_its_token() {
    let dir = tempfile::tempdir().unwrap();
    let path = tokens_file_with(&dir, "hooked", "");
    let mut rig = Rig::new(|cfg| cfg.tokens_file = Some(path)).await;
    let bad = hook("json?sensor_id=S1&token=hooked.secret", "{\"v\":");
    assert_eq!(kept(&mut rig, bad).await.0.status, 202);
    assert!(rejected::latest(100).iter().any(|of| of.name == "hooked"));
}

#[tokio::test]
async fn clouds_are_answered_what_they_ask_first() {
    let mut rig = Rig::new(|_| {}).await;
    let event = r#"[{"id":"1","eventType":"Microsoft.EventGrid.SubscriptionValidationEvent","data":{"validationCode":"512d38b6"}}]"#;
    let validation =
        |body: &str| hook("json", body).header("aeg-event-type", "SubscriptionValidation");
    let answer = validation(event).send(rig.addr).await;
    assert_eq!(
        (answer.status, answer.text.as_str()),
        (200, r#"{"validationResponse":"512d38b6"}"#)
    );
    let alone = validation(r#"{"data":{"validationCode":"x"}}"#)
        .send(rig.addr)
        .await;
    assert_eq!(alone.json()["validationResponse"], "x");
    assert_eq!(validation("[]").send(rig.addr).await.status, 400);
    let deletion = hook("json", "[]")
        .header("aeg-event-type", "SubscriptionDeletion")
        .send(rig.addr)
        .await;
    assert_eq!(deletion.status, 200);

    let options = hook("json", "")
        .method("OPTIONS")
        .header("webhook-request-origin", "eventgrid.azure.net");
    let answer = options
        .header("webhook-request-rate", "120")
        .send(rig.addr)
        .await;
    assert_eq!(
        (answer.status, answer.header("webhook-allowed-origin")),
        (200, Some("eventgrid.azure.net"))
    );
    assert_eq!(
        (
            answer.header("webhook-allowed-rate"),
            answer.header("allow")
        ),
        (Some("*"), Some("GET, POST, OPTIONS"))
    );
    rig.nothing_came();

    let body = r#"{"confirmationToken":"AYAD","enableUrl":"https://iot.eu-1.amazonaws.com/confirmdestination/AYAD"}"#;
    let confirmation = hook("json/?confirmationToken=AYAD", body);
    let confirmation =
        confirmation.header("x-amz-rules-engine-message-type", "DestinationConfirmation");
    let (answer, readings, dead) = kept(&mut rig, confirmation).await;
    assert_eq!(
        (answer.status, readings.len(), dead[0].payload.as_slice()),
        (202, 0, body.as_bytes())
    );
    assert_eq!(
        (dead[0].reason.as_str(), dead[0].topic.as_str()),
        ("destination_confirmation", "/v1/hooks/json")
    );
    let mut reader = Redecoder::with_topics(&[], &[], Arc::new(decoding())).unwrap();
    assert_eq!(
        reader.redecode(&dead[0]).reason(),
        Some("destination_confirmation")
    );
}

#[tokio::test]
async fn a_path_that_is_no_text_is_refused_like_any_other_mistake() {
    let mut rig = Rig::new(|_| {}).await;
    for path in ["/v1/hooks/%ff", "/v1/hooks/%ff/", "/api/v1/%ff/telemetry"] {
        let answer = post("{\"t\":1}").to(path).send(rig.addr).await;
        assert_eq!(
            (answer.status, answer.reason().as_str()),
            (400, "bad_path"),
            "{path}"
        );
    }
    rig.nothing_came();
}

#[tokio::test]
async fn thingsboard_devices_speak_for_themselves() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(|cfg| cfg.tokens_file = Some(tokens_file(&dir))).await;
    let telemetry = |token: &str, body: &str| post(body).to(&format!("/api/v1/{token}/telemetry"));
    for token in ["gw1.secret", "secret"] {
        let body = r#"[{"ts":1709287200000,"values":{"t":1,"on":true}},{"h":2}]"#;
        let (answer, readings) = rig.delivered(telemetry(token, body)).await;
        assert_eq!((answer.status, answer.text.as_str()), (200, ""));
        assert_eq!(
            (readings[0].sensor_id.as_str(), readings[0].ts_ms),
            ("gw1", 1_709_287_200_000)
        );
        assert_eq!(
            (readings[1].sensor_id.as_str(), readings[1].receipt_time),
            ("gw1", true)
        );
    }
    // A part is rejected: the answer does not show it, so the body is kept.
    let body = r#"[{"ts":1709287200000,"values":{"t":1}},{"ts":"never","values":{"t":2}}]"#;
    let (answer, readings, dead) = kept(&mut rig, telemetry("gw1.secret", body)).await;
    assert_eq!(
        (answer.status, answer.text.as_str(), readings.len()),
        (200, "", 1)
    );
    let [dead_letter] = &dead[..] else {
        panic!("{dead:?}")
    };
    assert_eq!(
        (dead_letter.topic.as_str(), dead_letter.payload.as_slice()),
        (
            "/v1/hooks/thingsboard-telemetry?sensor_id=gw1",
            body.as_bytes()
        )
    );
    let mut reader = Redecoder::with_topics(&[], &[], Arc::new(decoding())).unwrap();
    let again = reader.redecode(dead_letter);
    assert_eq!(again.batch.to_readings(), readings);
    for token in ["gw1.other", "gw2.secret", "gw1", "x"] {
        let answer = telemetry(token, "{\"t\":1}").send(rig.addr).await;
        assert_eq!(
            (answer.status, answer.reason().as_str()),
            (401, "invalid_token"),
            "{token}"
        );
    }
    for (body, status) in [("{}x", 400), ("{\"t\":", 400), ("[]", 200)] {
        assert_eq!(
            telemetry("secret", body).send(rig.addr).await.status,
            status,
            "{body}"
        );
    }
    rig.nothing_came();
    // To ThingsBoard it is a key like any other; the sensor id stays that of the token.
    let (_, readings) = rig
        .delivered(telemetry("secret", "{\"sensor_id\":\"other\",\"t\":1}"))
        .await;
    assert_eq!(readings[0].sensor_id, "gw1");

    let mut open = Rig::new(|_| {}).await;
    let (_, readings) = open
        .delivered(telemetry("A1_TEST_TOKEN", "{\"t\":1}"))
        .await;
    assert_eq!(readings[0].sensor_id, "A1_TEST_TOKEN");
}
