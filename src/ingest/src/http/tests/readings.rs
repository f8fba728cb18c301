//! Good, partly good and bad bodies; tokens; paths and methods.

use serde_json::json;

use super::rig::{LONG, Request, Rig, decoding, post};
use decode::KEPT_MAX;
use model::{SensorPatterns, Value};
use net::access::hash_secret;

const S1: &str = r#"{"sensor_id":"S1","ts":"2024-03-01T10:00:00Z","values":{"temp":22.5}}"#;
const S2: &str = r#"{"sensor_id":"S2","ts":1709287200,"temp":1}"#;

#[tokio::test]
async fn an_object_an_array_and_lines_are_taken_and_answered_once_they_are_safe() {
    let mut rig = Rig::new(|_| {}).await;
    let lines = format!("{S1}\n{S2}\n");
    for (body, content_type, n) in [
        (S1.to_owned(), None, 1),
        (
            format!("[{S1},{S2}]"),
            Some("application/json; charset=utf-8"),
            2,
        ),
        (lines.clone(), Some("application/x-ndjson"), 2),
        (lines.clone(), Some("application/ndjson"), 2),
        (lines, Some("application/jsonl"), 2),
    ] {
        let mut request = post(body);
        if let Some(content_type) = content_type {
            request = request.header("content-type", content_type);
        }
        let (answer, readings) = rig.delivered(request).await;
        assert_eq!(
            (answer.status, answer.json()),
            (200, json!({"accepted": n, "rejected": 0, "errors": []}))
        );
        assert_eq!(readings.len(), n);
        assert_eq!(
            (readings[0].sensor_id.as_str(), readings[0].ts_ms),
            ("S1", 1_709_287_200_000)
        );
        assert_eq!(readings[0].values["temp"], Value::Double(22.5));
    }
}

#[tokio::test]
async fn the_query_can_name_any_format() {
    let mut rig = Rig::new(|_| {}).await;
    let uplink = r#"{"deviceInfo":{"devEui":"0102030405060708"},"object":{"temp":22.5}}"#;
    let request = post(uplink)
        .to("/v1/readings?format=chirpstack-v4")
        .header("content-type", "text/plain");
    let (answer, readings) = rig.delivered(request).await;
    assert_eq!(
        (answer.status, readings[0].sensor_id.as_str()),
        (200, "0102030405060708")
    );
    let answer = post(uplink)
        .to("/v1/readings?format=chirpstack")
        .send(rig.addr)
        .await;
    let message = answer.json()["error"]["detail"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    assert_eq!(answer.status, 400);
    assert!(
        message.contains("unknown format `chirpstack`") && message.contains("chirpstack-v4"),
        "{message}"
    );
}

#[tokio::test]
async fn the_content_type_says_the_format() {
    let mut rig = Rig::new(|_| {}).await;
    // {"sensor_id": "S1", "temp": 22.5} with a half float, and {"sensor_id": "S1", "temp": 22.5} in
    // MessagePack.
    let cbor = b"\xa2\x69sensor_id\x62S1\x64temp\xf9\x4d\xa0".to_vec();
    let msgpack = b"\x82\xa9sensor_id\xa2S1\xa4temp\xca\x41\xb4\x00\x00".to_vec();
    // [{0: "S1", 2: 22.5}]
    let senml_cbor = b"\x81\xa2\x00\x62S1\x02\xf9\x4d\xa0".to_vec();
    for (content_type, body, field) in [
        ("application/cbor", cbor, "temp"),
        ("application/msgpack", msgpack.clone(), "temp"),
        ("application/vnd.msgpack", msgpack.clone(), "temp"),
        ("application/x-msgpack", msgpack, "temp"),
        (
            "application/senml+json",
            br#"[{"n":"S1","v":22.5}]"#.to_vec(),
            "value",
        ),
        ("application/senml+cbor", senml_cbor, "value"),
    ] {
        let (answer, readings) = rig
            .delivered(post(body).header("content-type", content_type))
            .await;
        assert_eq!((answer.status, readings.len()), (200, 1), "{content_type}");
        assert_eq!(
            (readings[0].sensor_id.as_str(), &readings[0].values[field]),
            ("S1", &Value::Double(22.5))
        );
    }
    let answer = post(b"\xa1\x61".to_vec())
        .header("content-type", "application/cbor")
        .send(rig.addr)
        .await;
    assert_eq!(
        (answer.status, answer.json()["errors"][0]["reason"].as_str()),
        (400, Some("invalid_cbor"))
    );
}

#[tokio::test]
async fn good_neighbours_are_kept_and_each_bad_one_is_named() {
    let mut rig = Rig::new(|_| {}).await;
    let body = format!(r#"[{S1},{{"ts":1709287200,"temp":1}},{S2},{{"sensor_id":"S3"}}]"#);
    let (answer, readings) = rig.delivered(post(body)).await;
    let json = answer.json();
    assert_eq!(
        (answer.status, &json["accepted"], &json["rejected"]),
        (200, &json!(2), &json!(2))
    );
    assert_eq!(
        (&json["errors"][0]["index"], &json["errors"][0]["reason"]),
        (&json!(1), &json!("missing_sensor_id"))
    );
    assert_eq!(
        (&json["errors"][1]["index"], &json["errors"][1]["reason"]),
        (&json!(3), &json!("no_values"))
    );
    assert!(
        json["errors"][0]["detail"]
            .as_str()
            .is_some_and(|d| !d.is_empty())
    );
    assert_eq!(
        readings
            .iter()
            .map(|r| r.sensor_id.as_str())
            .collect::<Vec<_>>(),
        ["S1", "S2"]
    );
}

#[tokio::test]
async fn where_nothing_is_accepted_the_same_body_comes_with_400_and_nothing_is_handed_over() {
    let mut rig = Rig::new(|_| {}).await;
    for (body, rejected, reason) in [
        ("{\"sensor_id\":\"S1\"", 1, "invalid_json"),
        ("", 1, "empty_payload"),
        ("[]", 0, "no_readings"),
        ("[{\"temp\":1},{\"temp\":2}]", 2, "missing_sensor_id"),
        ("\u{1}", 1, "invalid_json"),
    ] {
        let answer = post(body).send(rig.addr).await;
        let json = answer.json();
        assert_eq!(
            (answer.status, &json["accepted"], &json["rejected"]),
            (400, &json!(0), &json!(rejected)),
            "{body}"
        );
        assert_eq!(json["errors"][0]["reason"], reason, "{json}");
    }
    let many = format!("[{}]", vec!["{}"; 5000].join(","));
    let json = post(many).send(rig.addr).await.json();
    assert_eq!(
        (json["errors"].as_array().unwrap().len(), &json["rejected"]),
        (KEPT_MAX, &json!(5000))
    );
    rig.nothing_came();
}

#[tokio::test]
async fn a_large_body_is_decoded_like_a_small_one() {
    let mut rig = Rig::new(|_| {}).await;
    let body = format!("[{}]", vec![S1; 10_000].join(","));
    assert!(body.len() > 512 << 10);
    let (answer, readings) = rig.delivered(post(body)).await;
    assert_eq!((answer.status, readings.len()), (200, 10_000));
}

#[tokio::test]
async fn ts_unit_is_understood_and_what_is_not_is_refused() {
    let mut rig = Rig::new(|_| {}).await;
    let body = |ts: i64| post(format!(r#"{{"sensor_id":"S1","ts":{ts},"temp":1}}"#));
    for (unit, ts) in [
        ("s", 1_709_287_200),
        ("ms", 1_709_287_200_000),
        ("us", 1_709_287_200_000_000),
    ] {
        let (_, readings) = rig
            .delivered(body(ts).to(&format!("/v1/readings?ts_unit={unit}")))
            .await;
        assert_eq!(readings[0].ts_ms, 1_709_287_200_000);
    }
    for query in [
        "ts_unit=h",
        "ts_unit=",
        "tsunit=s",
        "ts_unit=s&ts_unit=ms",
        "debug=1",
    ] {
        let answer = body(1)
            .to(&format!("/v1/readings?{query}"))
            .send(rig.addr)
            .await;
        assert_eq!(
            (answer.status, answer.reason().as_str()),
            (400, "bad_query"),
            "{query}"
        );
    }
    rig.nothing_came();
}

#[tokio::test]
async fn a_reading_without_a_time_gets_that_of_receipt() {
    let mut rig = Rig::new(|_| {}).await;
    let before = chrono::Utc::now().timestamp_millis();
    let (_, readings) = rig.delivered(post(r#"{"sensor_id":"S1","temp":1}"#)).await;
    assert!(
        readings[0].receipt_time
            && (before..=before + LONG.as_millis() as i64).contains(&readings[0].ts_ms)
    );
}

#[tokio::test]
async fn a_form_is_a_reading_and_what_curl_sends_is_read_for_what_it_is() {
    const FORM: &str = "application/x-www-form-urlencoded";
    let mut rig = Rig::new(|_| {}).await;
    // As a tracker sends it.
    let body = "id=123456&lat=52.1&lon=13.2&timestamp=1709287200&hdop=&altitude=34.5&speed=0&PASSWORD=hunter2";
    let form = |body: &str| post(body).header("content-type", FORM);
    let (answer, readings) = rig.delivered(form(body)).await;
    let reading = &readings[0];
    let left_out = json!({"count": 1, "names": ["PASSWORD"]});
    assert_eq!(
        (answer.status, &answer.json()["left_out"]),
        (200, &left_out)
    );
    assert_eq!(
        (reading.sensor_id.as_str(), reading.ts_ms),
        ("123456", 1_709_287_200_000)
    );
    let names: Vec<_> = reading.values.keys().map(String::as_str).collect();
    assert_eq!(names, ["altitude", "lat", "lon", "speed"]);
    // As a weather station does.
    let body = "PASSKEY=A0&stationtype=GW2000B_V2.1.8&dateutc=2026-11-28+10:43:50&tempf=39.74\0\0";
    let request = form(body).to("/v1/readings?sensor_id=garden");
    let (_, readings) = rig.delivered(request).await;
    let values: Vec<_> = readings[0].values.values().cloned().collect();
    let expected = [
        Value::Str("2026-11-28 10:43:50".into()),
        Value::Str("GW2000B_V2.1.8".into()),
        Value::Double(39.74),
    ];
    assert_eq!(values, expected);
    // `curl -d` without a header.
    for body in [S1.to_owned(), format!(" [{S1}]"), format!("{S1}\n{S1}")] {
        let (answer, readings) = rig.delivered(form(&body)).await;
        assert_eq!((answer.status, &*readings[0].sensor_id), (200, "S1"));
    }
    let line = form("room,sensor_id=S1 temp=1").to("/v1/readings?format=line");
    assert_eq!(rig.delivered(line).await.0.status, 200);
    let uplink = r#"{"deviceInfo":{"devEui":"0102030405060708"},"object":{"temp":22.5}}"#;
    let uplink = form(uplink).to("/v1/readings?format=chirpstack-v4");
    assert_eq!(rig.delivered(uplink).await.0.status, 200);
    let many: String = (0..600).map(|i| format!("f{i}=1&")).collect();
    for (body, reason) in [
        ("room,sensor_id=S1 temp=1", "invalid_json"),
        ("temp=1", "missing_sensor_id"),
        ("id=S1&temp=1&temp=2", "duplicate_key"),
        (&many, "too_many_fields"),
    ] {
        let answer = form(body).send(rig.addr).await;
        let errors = answer.json()["errors"].clone();
        assert_eq!(
            (answer.status, &errors[0]["reason"]),
            (400, &reason.into()),
            "{body:.40}"
        );
    }
    rig.nothing_came();
}

#[tokio::test]
async fn unknown_content_types_are_refused_with_a_list_of_those_that_are_known() {
    let mut rig = Rig::new(|_| {}).await;
    for content_type in ["text/plain", "application/json-seq", "json", ""] {
        let answer = post(S1)
            .header("content-type", content_type)
            .send(rig.addr)
            .await;
        assert_eq!(
            (answer.status, answer.reason().as_str()),
            (415, "unsupported_content_type"),
            "{content_type}"
        );
        assert!(
            answer.text.contains("application/x-ndjson"),
            "{}",
            answer.text
        );
    }
    rig.nothing_came();
}

#[tokio::test]
async fn unknown_paths_and_methods_are_told_as_json() {
    let rig = Rig::new(|_| {}).await;
    let answer = post(S1).to("/v2/readings").send(rig.addr).await;
    assert_eq!(
        (answer.status, answer.reason().as_str()),
        (404, "not_found")
    );
    for method in ["PUT", "DELETE"] {
        let answer = post("").method(method).send(rig.addr).await;
        assert_eq!(
            (answer.status, answer.reason().as_str()),
            (405, "method_not_allowed")
        );
        assert_eq!(answer.header("allow"), Some("POST,GET,HEAD"));
    }
}

#[tokio::test]
async fn what_is_not_served_is_not_repeated_because_a_secret_may_be_in_it() {
    let rig = Rig::new(|_| {}).await;
    for (method, target, status) in [
        ("POST", "/api/v1/gw1.SECRET/attributes", 404),
        ("GET", "/api/v1/gw1.SECRET/attributes?clientKeys=a", 404),
        ("POST", "/api/v1/gw1.SECRET/rpc/1", 404),
        ("POST", "/v1/hooks/gw1.SECRET", 404),
        ("GET", "/v1/hooks/gw1.SECRET?temp=1", 404),
        ("POST", "/gw1.SECRET?token=gw1.SECRET", 404),
        ("GET", "/api/v1/gw1.SECRET/telemetry", 200),
        ("PUT", "/api/v1/gw1.SECRET/telemetry", 405),
        ("SECRET", "/v1/readings", 405),
    ] {
        let answer = post("{}").method(method).to(target).send(rig.addr).await;
        assert_eq!(answer.status, status, "{method} {target}");
        assert!(
            !answer.text.contains("SECRET") && !answer.text.contains("gw1"),
            "{}",
            answer.text
        );
    }
    let text = post("{}")
        .to("/api/v1/x/attributes")
        .send(rig.addr)
        .await
        .text;
    assert!(
        text.contains("ThingsBoard") && text.contains("/api/v1/{token}/telemetry"),
        "{text}"
    );
    let text = post("")
        .method("GET")
        .to("/v1/sensors")
        .send(rig.addr)
        .await
        .text;
    assert!(
        text.contains("admin.listen") && text.contains("/v1/readings"),
        "{text}"
    );
    let text = post("{}")
        .to("/v1/hooks/chirpstack")
        .send(rig.addr)
        .await
        .text;
    assert!(text.contains("chirpstack-v4"), "{text}");
}

/// A tokens file with `gw1.secret`.
pub(super) fn tokens_file(dir: &tempfile::TempDir) -> std::path::PathBuf {
    tokens_file_with(dir, "gw1", "")
}

/// A tokens file with a token of this id, the secret `secret` and these rules.
pub(super) fn tokens_file_with(
    dir: &tempfile::TempDir,
    id: &str,
    rules: &str,
) -> std::path::PathBuf {
    let path = dir.path().join("tokens.toml");
    let text = format!(
        "[[tokens]]\nid = \"{id}\"\nsha256 = \"{}\"\n{rules}\n",
        hash_secret("secret")
    );
    std::fs::write(&path, text).unwrap();
    path
}

#[tokio::test]
async fn with_a_file_of_tokens_only_a_valid_token_passes() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(|cfg| cfg.tokens_file = Some(tokens_file(&dir))).await;
    let with = |value: &str| post(S1).header("authorization", value);
    for (request, reason) in [
        (post(S1), "no_token"),
        (with("Bearer gw1"), "malformed_token"),
        (with("Basic Z3cx"), "malformed_token"),
        (
            with("Bearer gw1.secret").header("authorization", "Bearer gw1.secret"),
            "malformed_token",
        ),
        (with("Bearer gw1.Secret"), "invalid_token"),
        (with("Bearer gw2.secret"), "invalid_token"),
    ] {
        let answer = request.send(rig.addr).await;
        assert_eq!((answer.status, answer.reason().as_str()), (401, reason));
        assert!(
            answer
                .header("www-authenticate")
                .is_some_and(|v| v.starts_with("Bearer"))
        );
        assert!(!answer.text.to_lowercase().contains("gw1.secret"));
    }
    rig.nothing_came();
    // `gw1:secret` and `any:gw1.secret` in Base64.
    let pair = "Basic Z3cxOnNlY3JldA==";
    let password = "Basic YW55Omd3MS5zZWNyZXQ=";
    for value in [
        "Bearer gw1.secret",
        "bearer gw1.secret",
        "Token gw1.secret",
        pair,
        password,
    ] {
        let (answer, _) = rig.delivered(with(value)).await;
        assert_eq!(answer.status, 200, "{value}");
    }
}

#[tokio::test]
async fn a_sender_that_waits_for_100_continue_is_refused_before_it_sends() {
    use tokio::io::AsyncWriteExt;
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::new(|cfg| cfg.tokens_file = Some(tokens_file(&dir))).await;
    let request: Request = post("").header("expect", "100-continue");
    let mut stream = tokio::net::TcpStream::connect(rig.addr).await.unwrap();
    stream
        .write_all(format!("{}content-length: 100\r\n\r\n", request.head()).as_bytes())
        .await
        .unwrap();
    let answer = super::rig::Answer::read(&mut stream).await.unwrap();
    assert_eq!((answer.status, answer.reason().as_str()), (401, "no_token"));
}

#[tokio::test]
async fn without_tokens_only_loopback_is_served_unless_told_otherwise() {
    let everywhere = "0.0.0.0:0".parse().unwrap();
    let error = Rig::try_new(|cfg| cfg.listen = everywhere)
        .await
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains("http.listen") && error.contains("http.allow_anonymous"),
        "{error}"
    );
    let rig = Rig::try_new(|cfg| (cfg.listen, cfg.allow_anonymous) = (everywhere, true)).await;
    assert!(rig.is_ok());
    let dir = tempfile::tempdir().unwrap();
    let rig =
        Rig::try_new(|cfg| (cfg.listen, cfg.tokens_file) = (everywhere, Some(tokens_file(&dir))))
            .await;
    assert!(rig.is_ok());
}

#[tokio::test]
async fn an_address_in_use_is_named_with_its_key() {
    let rig = Rig::new(|_| {}).await;
    let error = Rig::try_new(|cfg| cfg.listen = rig.addr)
        .await
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains("http.listen") && error.contains(&rig.addr.to_string()),
        "{error}"
    );
}

#[tokio::test]
async fn an_unset_clock_is_refused_unless_a_setting_or_the_format_says_that_there_is_none() {
    let old = r#"{"sensor_id":"S1","ts":"1995-06-01T00:00:00Z","temp":1}"#;
    let mut rig = Rig::new(|_| {}).await;
    let answer = post(old).send(rig.addr).await;
    let error = &answer.json()["errors"][0];
    assert_eq!(
        (answer.status, &error["reason"]),
        (400, &json!("clock_not_set")),
        "{error}"
    );
    rig.nothing_came();
    let shelly = r#"{"src":"shelly-1","method":"NotifyStatus","params":{"ts":2.5,"temperature:100":{"tC":21.5}}}"#;
    let (answer, readings) = rig
        .delivered(post(shelly).to("/v1/readings?format=shelly-gen2"))
        .await;
    assert_eq!(
        answer.json(),
        json!({"accepted": 1, "rejected": 0, "errors": [], "retimed": 1})
    );
    assert!(readings[0].receipt_time);

    let mut decoding = decoding();
    decoding.limits.unset_over_http_refused = false;
    let mut rig = Rig::with(|_| {}, decoding).await;
    let (answer, _) = rig.delivered(post(old)).await;
    assert_eq!(
        answer.json(),
        json!({"accepted": 1, "rejected": 0, "errors": [], "retimed": 1})
    );
}

#[tokio::test]
async fn a_time_without_a_zone_is_refused_under_each_name() {
    let mut rig = Rig::new(|_| {}).await;
    for name in ["ts", "timestamp", "time", "datetime", "t", "@timestamp"] {
        for values in [r#""temp":1"#, r#""values":{"temp":1}"#] {
            let body = format!(r#"{{"sensor_id":"S1","{name}":"2024-03-01 10:00:00",{values}}}"#);
            let answer = post(&*body).send(rig.addr).await;
            let error = &answer.json()["errors"][0];
            assert_eq!(
                (answer.status, &error["reason"]),
                (400, &json!("bad_timestamp")),
                "{body}"
            );
            assert!(
                error["detail"].to_string().contains("limits.zone"),
                "{error}"
            );
        }
    }
    rig.nothing_came();
    // Another name may hold the time.
    let body = r#"{"sensor_id":"S1","timestamp":"2024-03-01 10:00:00","t":1709287200,"temp":1}"#;
    let (_, readings) = rig.delivered(post(body)).await;
    assert_eq!(readings[0].ts_ms, 1_709_287_200_000);
}

#[tokio::test]
async fn what_is_left_out_is_named_in_the_answer() {
    let mut rig = Rig::new(|_| {}).await;
    let body = r#"{"sensor_id":"S1","values":{"temp":1},"firmware":"1.2","energy":{"power":5}}"#;
    let (answer, _) = rig.delivered(post(body)).await;
    let left_out = json!({"count": 2, "names": ["firmware", "energy"]});
    assert_eq!(
        answer.json(),
        json!({"accepted": 1, "rejected": 0, "errors": [], "left_out": left_out})
    );
}

#[tokio::test]
async fn a_value_outside_of_its_range_is_named_with_the_range() {
    use model::ranges::{RangeAction, RangeRule};
    let rule = |field: &str, action| RangeRule {
        sensors: SensorPatterns::parse(["*"]).unwrap(),
        fields: SensorPatterns::parse([field]).unwrap(),
        label: field.into(),
        min: Some(-40.0),
        max: Some(85.0),
        change: None,
        action,
    };
    let ranges = [
        rule("temp", RangeAction::Reject),
        rule("humid", RangeAction::LeaveOut),
        rule("dew", RangeAction::KeepApart),
    ];
    let decoding = config::Decoding {
        ranges: ranges.into_iter().collect(),
        ..decoding()
    };
    let mut rig = Rig::with(|_| {}, decoding).await;
    let spike = -127;
    let one = |temp: i32, humid: i32, dew: i32| {
        format!(r#"{{"sensor_id":"S1","temp":{temp},"humid":{humid},"dew":{dew}}}"#)
    };
    let good = one(20, 60, 8);
    let bodies = [&good, &one(spike, 60, 8), &good, &one(20, 127, spike)];
    let json = format!("[{}]", bodies.map(String::as_str).join(","));
    let lines = bodies.map(String::as_str).join("\n");
    let ndjson = post(lines).header("content-type", "application/x-ndjson");
    let influx = "s,sensor_id=S1 temp=20,humid=60,dew=8\ns,sensor_id=S1 temp=-127,humid=60,dew=8\n\
        s,sensor_id=S1 temp=20,humid=60,dew=8\ns,sensor_id=S1 temp=20,humid=127,dew=-127";
    let line = post(influx).to("/v1/readings?format=line");
    for (request, place) in [(post(json), ""), (ndjson, ""), (line, "line 2: ")] {
        let (answer, readings) = rig.delivered(request).await;
        let answer = answer.json();
        assert_eq!(
            (&answer["accepted"], &answer["rejected"]),
            (&json!(3), &json!(1))
        );
        let error = json!({
            "index": 1, "reason": "out_of_range",
            "detail": format!("{place}temp is -127; the range is -40 to 85 (ranges[0])"),
        });
        assert_eq!(answer["errors"], json!([error]));
        assert_eq!(
            answer["left_out"],
            json!({ "count": 1, "names": ["humid"] })
        );
        assert!(
            answer["hints"][0]
                .as_str()
                .unwrap()
                .contains("dew_implausible"),
            "{answer}"
        );
        let names: Vec<Vec<&str>> = readings
            .iter()
            .map(|reading| reading.values.keys().map(String::as_str).collect())
            .collect();
        let all = vec!["dew", "humid", "temp"];
        assert_eq!(names, [all.clone(), all, vec!["dew_implausible", "temp"]]);
    }
}
