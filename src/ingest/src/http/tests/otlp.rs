//! OpenTelemetry's route: the answers that its exporters react to, in both encodings.

use super::readings::tokens_file;
use super::rig::{Answer, Request, Rig, post};
use crate::http::routes::METRICS;
use model::Value;

const GOOD: &str = r#"{"name":"temp","gauge":{"dataPoints":[{"asDouble":21.5}]}}"#;
const HISTOGRAM: &str = r#"{"name":"h","histogram":{"dataPoints":[{"count":"2","sum":3,"bucketCounts":["1","1"]},{}]}}"#;
const WITHOUT_VALUES: &str = r#"{"name":"n","gauge":{"dataPoints":[{},{}]}}"#;

fn metrics(metrics: &str) -> Request {
    let resource = r#"{"attributes":[{"key":"service.name","value":{"stringValue":"meter"}}]}"#;
    let body = format!(
        r#"{{"resourceMetrics":[{{"resource":{resource},"scopeMetrics":[{{"metrics":[{metrics}]}}]}}]}}"#
    );
    post(body)
        .to(METRICS)
        .header("content-type", "application/json; charset=utf-8")
}

fn protobuf(body: &[u8]) -> Request {
    post(body)
        .to(METRICS)
        .header("content-type", "application/x-protobuf")
}

/// The resource `service.name = s`, a gauge `t` with one double, and a gauge `q` with a point
/// without a value.
const PROTOBUF: &[u8] = b"\x0a\x36\x0a\x15\x0a\x13\x0a\x0cservice.name\x12\x03\x0a\x01s\x12\x1d\
    \x12\x12\x0a\x01t\x2a\x0d\x0a\x0b\x21\0\0\0\0\0\0\xf8\x3f\x40\x00\x12\x07\x0a\x01q\x2a\x02\x0a\x00";

fn code(answer: &Answer) -> i64 {
    answer.json()["code"].as_i64().unwrap()
}

#[tokio::test]
async fn taken_points_are_200_and_rejected_ones_are_told() {
    let mut rig = Rig::new(|_| {}).await;
    let (answer, readings) = rig.delivered(metrics(GOOD)).await;
    assert_eq!((answer.status, answer.text.as_str()), (200, "{}"));
    assert_eq!(
        (readings[0].sensor_id.as_str(), &readings[0].values["temp"]),
        ("meter", &Value::Double(21.5))
    );

    let (answer, readings) = rig.delivered(metrics(&format!("{GOOD},{HISTOGRAM}"))).await;
    let partial = &answer.json()["partialSuccess"];
    assert_eq!(
        (
            answer.status,
            readings.len(),
            partial["rejectedDataPoints"].as_str()
        ),
        (200, 3, Some("0"))
    );
    assert!(
        partial["errorMessage"]
            .as_str()
            .unwrap()
            .contains("their buckets only with otlp.point_attributes"),
        "{partial}"
    );

    let point = |cpu: u8| {
        format!(
            r#"{{"asInt":1,"timeUnixNano":"1790000000000000000","attributes":[{{"key":"cpu","value":{{"intValue":{cpu}}}}}]}}"#
        )
    };
    let same = format!(
        r#"{{"name":"m","gauge":{{"dataPoints":[{},{}]}}}}"#,
        point(0),
        point(1)
    );
    let (answer, _) = rig.delivered(metrics(&same)).await;
    let partial = &answer.json()["partialSuccess"];
    assert_eq!(partial["rejectedDataPoints"].as_str(), Some("0"));
    assert!(
        partial["errorMessage"]
            .as_str()
            .unwrap()
            .contains("otlp.point_attributes"),
        "{partial}"
    );

    // The remarks and the rejects of one request are all told.
    let request = metrics(&format!("{WITHOUT_VALUES},{HISTOGRAM},{same}"));
    let (answer, _) = rig.delivered(request).await;
    let partial = &answer.json()["partialSuccess"];
    assert_eq!(partial["rejectedDataPoints"].as_str(), Some("2"));
    for part in [
        "asDouble or asInt",
        "their buckets only",
        "otlp.point_attributes",
    ] {
        assert!(
            partial["errorMessage"].as_str().unwrap().contains(part),
            "{part}: {partial}"
        );
    }

    let (answer, readings) = rig.delivered(protobuf(PROTOBUF)).await;
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (200, Some("application/x-protobuf"))
    );
    assert_eq!(
        (readings[0].sensor_id.as_str(), &readings[0].values["t"]),
        ("s", &Value::Double(1.5))
    );
    let told = b"`q` has a point without asDouble or asInt";
    let message = [&[0x12, told.len() as u8][..], told].concat();
    let partial = [&[0x0a, message.len() as u8 + 2, 0x08, 1][..], &message].concat();
    assert_eq!(answer.body, partial);

    for empty in [
        protobuf(b""),
        post("{}")
            .to(METRICS)
            .header("content-type", "application/json"),
    ] {
        let answer = empty.send(rig.addr).await;
        assert_eq!(
            (answer.status, answer.text.trim_matches(['{', '}'])),
            (200, "")
        );
    }
    let answer = metrics(WITHOUT_VALUES).send(rig.addr).await;
    assert_eq!(
        (
            answer.status,
            answer.json()["partialSuccess"]["rejectedDataPoints"].as_str()
        ),
        (200, Some("2"))
    );
    rig.nothing_came();
}

#[tokio::test]
async fn what_may_be_sent_again_is_told_from_what_may_not() {
    let mut rig = Rig::new(|_| {}).await;
    for (request, status, grpc) in [
        (
            post("{")
                .to(METRICS)
                .header("content-type", "application/json"),
            400,
            3,
        ),
        (metrics("5"), 400, 3),
        (post("{}").to(METRICS), 415, 3),
        (
            post("{}").to(METRICS).header("content-type", "text/plain"),
            415,
            3,
        ),
        (metrics(GOOD).header("content-encoding", "br"), 415, 3),
        (metrics(GOOD).header("content-encoding", "gzip"), 400, 3),
    ] {
        let answer = request.send(rig.addr).await;
        assert_eq!(
            (answer.status, code(&answer)),
            (status, grpc),
            "{}",
            answer.text
        );
        assert!(
            answer.header("retry-after").is_none()
                && !answer.json()["message"].as_str().unwrap().is_empty()
        );
    }
    let answer = protobuf(b"\x0a\x05").send(rig.addr).await;
    assert_eq!((answer.status, &answer.body[..2]), (400, &[0x08, 3][..]));
    assert_eq!(
        answer.header("content-type"),
        Some("application/x-protobuf")
    );

    rig.admission_control.full(true);
    let answer = metrics(GOOD).send(rig.addr).await;
    assert_eq!((answer.status, code(&answer)), (429, 8));
    assert!(answer.retry_after_s() > 0);
    rig.admission_control.full(false);
    rig.admission_control.stop();
    let answer = metrics(GOOD).send(rig.addr).await;
    assert_eq!((answer.status, code(&answer)), (503, 14));
    assert!(answer.retry_after_s() > 0);
    rig.nothing_came();
}

#[tokio::test]
async fn tokens_are_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(|cfg| cfg.tokens_file = Some(tokens_file(&dir))).await;
    let answer = metrics(GOOD).send(rig.addr).await;
    assert_eq!((answer.status, code(&answer)), (401, 16));
    for value in [
        "Bearer gw1.secret",
        "Basic dTpndzEuc2VjcmV0",
        "Basic Z3cxOnNlY3JldA==",
    ] {
        assert_eq!(
            rig.delivered(metrics(GOOD).header("authorization", value))
                .await
                .0
                .status,
            200
        );
    }
}
