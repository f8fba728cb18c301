//! What `decode` prints of payloads, and what it refuses.

use super::*;

fn lines(
    format: &str,
    topic: Option<&str>,
    template: Option<&str>,
    payload: &str,
) -> (bool, Vec<String>) {
    let mut config = Config::default();
    config.limits.past = std::time::Duration::from_secs(100 * 365 * 86_400);
    config.limits.unset_before_ms = i64::MIN;
    let mut out = vec![];
    let request = DecodeRequest {
        format,
        topic,
        template,
        ..DecodeRequest::default()
    };
    let printed = run(
        request,
        payload.as_bytes(),
        &mut out,
        &Decode::from_config(&config),
        1_709_290_800_000,
    )
    .unwrap();
    (
        printed.readings > 0,
        String::from_utf8(out)
            .unwrap()
            .lines()
            .map(str::to_owned)
            .collect(),
    )
}

#[test]
fn a_line_for_each_reading_and_each_reject() {
    let payload = r#"[{"sensor_id":"S\"1","ts":0,"values":{"b":1,"a":2.0,"c":true,"d":"x"},"tags":{"z":1,"y":"n"}},
        {"sensor_id":"S2","v":1},{"v":1}]"#;
    let (any, lines) = lines("json", None, None, payload);
    assert!(any);
    assert_eq!(
        lines,
        [
            r#"{"sensor_id":"S\"1","ts":"1970-01-01T00:00:00.000Z","values":{"b":1,"a":2.0,"c":true,"d":"x"},"tags":{"y":"n","z":"1"}}"#,
            r#"{"sensor_id":"S2","values":{"v":1},"tags":{}}"#,
            r#"{"reject":{"detail":"neither the payload nor the topic has a sensor_id","index":2,"reason":"missing_sensor_id"}}"#,
        ]
    );
    for line in lines {
        serde_json::from_str::<serde_json::Value>(&line).unwrap();
    }
}

#[test]
fn topics_and_templates() {
    let sensor =
        |format, topic, template, payload| lines(format, topic, template, payload).1.remove(0);
    let line = r#"{"sensor_id":"S1","values":{"temp":1},"tags":{}}"#;
    assert_eq!(sensor("scalar", Some("sensors/S1/temp"), None, "1"), line);
    assert_eq!(sensor("scalar", Some("S1/temp"), None, "1"), line);
    assert_eq!(
        sensor("json", Some("sensors/S1"), None, r#"{"temp":1}"#),
        line
    );
    assert_eq!(
        sensor("ndjson", Some("tele/S1/SENSOR"), None, r#"{"temp":1}"#),
        line
    );
    assert_eq!(
        sensor(
            "json",
            Some("sensors/S9"),
            None,
            r#"{"sensor_id":"S1","temp":1}"#
        ),
        line
    );
    let line = r#"{"sensor_id":"cpu,host=a","ts":"1970-01-01T00:00:00.001Z","values":{"v":1.0},"tags":{"host":"a"}}"#;
    assert_eq!(
        sensor(
            "line",
            Some("telegraf/a/cpu"),
            None,
            "cpu,host=a v=1 1000000"
        ),
        line
    );
    assert!(
        sensor("line", Some("a/cpu"), Some("{sensor_id}/+"), "cpu v=1")
            .contains(r#""sensor_id":"a""#)
    );
    let tagged = r#"{"sensor_id":"S1","values":{"temp":1},"tags":{"site":"n"}}"#;
    assert_eq!(
        sensor(
            "scalar",
            Some("n/S1/temp"),
            Some("{site}/{sensor_id}/{field}"),
            "1"
        ),
        tagged
    );
    assert!(
        sensor("scalar", Some("x"), Some("a/{sensor_id}/{field}"), "1").contains("topic_mismatch")
    );
    assert!(sensor("scalar", None, None, "1").contains("missing_sensor_id"));
    assert!(!lines("scalar", None, None, "1").0);
}

#[test]
fn a_message_of_sparkplug_needs_its_topic() {
    let payload = "\u{12}\u{e}\n\u{1}v\u{18}\u{1}\u{70}\u{1}";
    let (any, printed) = lines("sparkplug", Some("spBv1.0/G/NDATA/N"), None, payload);
    assert!(
        !any && printed[0].contains("invalid_sparkplug"),
        "the metric is said to be longer than it is: {printed:?}"
    );
    let payload = "\u{12}\u{7}\n\u{1}v\u{18}\u{1}\u{70}\u{1}";
    let (any, printed) = lines("sparkplug", Some("spBv1.0/G/DDATA/N/D"), None, payload);
    let line =
        r#"{"sensor_id":"G/N/D","ts":"1970-01-01T00:00:00.001Z","values":{"v":true},"tags":{}}"#;
    assert!(any && printed == [line], "{printed:?}");
    let request = DecodeRequest {
        format: "sparkplug",
        ..DecodeRequest::default()
    };
    let error = run(
        request,
        b"",
        &mut vec![],
        &Decode::from_config(&Config::default()),
        0,
    )
    .unwrap_err();
    assert!(error.to_string().contains("--topic"));
}

#[test]
fn a_reading_that_is_too_old_now_is_decoded_and_the_service_s_answer_is_known() {
    let mut settings = Decode::of_any_age(&Config::default());
    settings.window = (Duration::from_secs(86_400), Duration::from_secs(600));
    let decoded = |payload: &str| {
        let request = DecodeRequest {
            format: "json",
            ..DecodeRequest::default()
        };
        let payload = payload.as_bytes();
        let output = run(request, payload, &mut vec![], &settings, 1_709_290_800_000);
        let output = output.unwrap();
        (output.readings, settings.rejected_now(&output))
    };
    let (readings, note) = decoded(
        r#"[{"sensor_id":"S","ts":1709204399000,"v":1},{"sensor_id":"S","ts":1709204400000,"v":1},
            {"sensor_id":"S","ts":1709291400001,"v":1},{"sensor_id":"S","v":1}]"#,
    );
    assert_eq!(readings, 4);
    assert_eq!(
        note.as_deref(),
        Some(
            "the service would now reject readings because of their time: 1 (too_old, limits.past = 1d), 1 (too_far_ahead, limits.future = 10m)"
        )
    );
    assert_eq!(decoded(r#"{"sensor_id":"S","v":1}"#), (1, None));
}

#[test]
fn a_wrong_format_or_template_is_an_error() {
    let mut out = vec![];
    let mut error = |format, template| {
        let request = DecodeRequest {
            format,
            topic: Some("a"),
            template,
            ..DecodeRequest::default()
        };
        run(
            request,
            b"1",
            &mut out,
            &Decode::from_config(&Config::default()),
            0,
        )
        .unwrap_err()
        .to_string()
    };
    let unknown = error("yaml", None);
    assert!(
        unknown.starts_with("unknown format `yaml`; expected one of json, ndjson"),
        "{unknown}"
    );
    assert!(error("zigbe2mqtt", None).contains("did you mean `zigbee2mqtt`?"));
    assert!(error("json", Some("a#")).contains("`#`"));
}

#[test]
fn a_shipped_profile_needs_no_configuration() {
    let topic = Some("zigbee2mqtt/kitchen/motion");
    let (any, printed) = lines(
        "zigbee2mqtt",
        topic,
        None,
        r#"{"occupancy":true,"last_seen":1709290799000}"#,
    );
    assert!(any);
    assert_eq!(
        printed,
        [
            r#"{"sensor_id":"kitchen/motion","ts":"2024-03-01T10:59:59.000Z","values":{"occupancy":true},"tags":{}}"#
        ]
    );
    let (_, printed) = lines("zigbee2mqtt", None, None, r#"{"occupancy":true}"#);
    assert!(
        printed[0].contains("no_rule")
            && printed[0].contains("need the topic, such as zigbee2mqtt/{sensor_id#}"),
        "{printed:?}"
    );
}

#[test]
fn the_unit_of_numbers_can_be_set() {
    let printed = |ts_unit| {
        let request = DecodeRequest {
            format: "json",
            ts_unit,
            ..DecodeRequest::default()
        };
        let mut out = vec![];
        let payload = br#"{"sensor_id":"S","ts":1709290799000,"v":1}"#;
        run(
            request,
            payload,
            &mut out,
            &Decode::from_config(&Config::default()),
            1_709_290_800_000,
        )
        .map_err(|e| e.to_string())?;
        Ok::<_, String>(String::from_utf8(out).unwrap())
    };
    assert!(printed(Some("ms")).unwrap().contains("10:59:59.000Z"));
    assert!(printed(Some("s")).unwrap().contains("too_far_ahead"));
    assert!(printed(Some("h")).unwrap_err().contains("s, ms, us or ns"));
}

#[test]
fn the_unit_of_line_protocol_can_be_by_magnitude() {
    let printed = |ts_unit| {
        let request = DecodeRequest {
            format: "line",
            ts_unit,
            ..DecodeRequest::default()
        };
        let mut out = vec![];
        run(
            request,
            b"m v=1 1709290799",
            &mut out,
            &Decode::from_config(&Config::default()),
            1_709_290_800_000,
        )
        .unwrap();
        String::from_utf8(out).unwrap()
    };
    assert!(printed(None).contains("too_old"));
    assert!(printed(Some("auto")).contains("2024-03-01T10:59:59.000Z"));
}

#[test]
fn a_birth_resolves_the_aliases_of_a_message() {
    // {name: "temp", alias: 7, datatype: Double, double_value: 1.0}, then {alias: 7,
    // double_value: 2.5}
    let metric = |head: &[u8], v: f64| {
        let metric = [head, &[0x69], &v.to_le_bytes()].concat();
        [&[0x12, metric.len() as u8][..], &metric, &[0x18, 0]].concat()
    };
    let birth = metric(b"\x0a\x04temp\x10\x07\x20\x0a", 1.0);
    let data = metric(b"\x10\x07", 2.5);
    for topic in ["spBv1.0/G/NDATA/N", "spBv1.0/G/DDATA/N/D"] {
        let decoded = |birth| {
            let request = DecodeRequest {
                format: "sparkplug",
                topic: Some(topic),
                birth,
                ..DecodeRequest::default()
            };
            let mut out = vec![];
            let printed = run(
                request,
                &data,
                &mut out,
                &Decode::from_config(&Config::default()),
                1_709_290_800_000,
            );
            printed
                .map(|_| String::from_utf8(out).unwrap())
                .map_err(|e| e.to_string())
        };
        let alone = decoded(None).unwrap();
        assert!(
            alone.contains("unknown_metric") && !alone.contains("rebirth"),
            "{alone}"
        );
        assert!(
            decoded(Some(&birth))
                .unwrap()
                .contains(r#""values":{"temp":2.5}"#)
        );
        assert!(
            decoded(Some(b"\x12\x99"))
                .unwrap_err()
                .contains("the birth cannot be decoded")
        );
    }
}

#[test]
fn details_are_escaped_once_and_compressed_payloads_are_named() {
    let (_, printed) = lines("json", Some("a/S"), None, r#"{"ts":"x\"y\n","v":1}"#);
    let line: serde_json::Value = serde_json::from_str(&printed[0]).unwrap();
    assert_eq!(
        line["reject"]["detail"],
        "the time `x\"y\u{240a}` is neither RFC 3339 nor a number"
    );
    let request = DecodeRequest {
        format: "json",
        ..DecodeRequest::default()
    };
    let mut out = vec![];
    run(
        request,
        b"\x1f\x8b\x08\0\0\0",
        &mut out,
        &Decode::from_config(&Config::default()),
        0,
    )
    .unwrap();
    let printed = String::from_utf8(out).unwrap();
    assert!(
        printed.contains("compressed") && printed.contains("gzip"),
        "{printed}"
    );
    assert!(
        lines("json", None, None, r#"{"v":nan}"#).1[0]
            .contains("NaN is not a number in JSON; send null")
    );
    assert!(lines("scalar", None, None, "1").1[0].contains("does not name its sensor"));
}

#[test]
fn numbers_that_are_sent_as_texts_are_named() {
    let hints = |payload: &str| {
        let config = Config::default();
        let settings = Decode::of_any_age(&config);
        let cx = Context {
            sensor_id: Some("S"),
            ..Context::new(&settings.decoding, 1_709_290_800_000)
        };
        let mut out = BatchBuilder::new(64);
        let mut rejects = Rejects::new();
        let json = settings.formats.get("json").unwrap();
        json.decode(payload.as_bytes(), None, &cx, &mut out, &mut rejects);
        super::hints(&out.finish(), &rejects)
    };
    // What EMS-ESP sends.
    let found = hints(r#"{"wWSelTemp":"47","outdoorTemp":"19.6","wWActivated":"on","n":204}"#);
    assert!(
        found.len() == 1
            && found[0].contains("`outdoorTemp` and 1 more")
            && found[0].contains("texts = \"numbers\""),
        "{found:?}"
    );
    assert!(hints(r#"{"temp":"NaN"}"#)[0].contains("`temp`)"));
    assert_eq!(hints(r#"{"code":"0042","state":"on","v":21.5}"#), [""; 0]);
    let late = hints(r#"{"date":1709290000,"temp":"1"}"#);
    assert!(late[0].contains("`date`") && late[1].contains("`temp`"));
}
