//! Requests as senders write them, in both encodings, and malformed ones.

use super::*;
use crate::tests::{NOW, bare, limits, line};
use config::{Config, PointAttributes};
use model::{Reading, Value};

fn settings() -> Otlp {
    Config::default().otlp
}

fn read_with(otlp: &Otlp, encoding: Encoding, payload: &[u8]) -> (Vec<Reading>, Rejects) {
    let mut limits = limits();
    let line = line();
    limits.batch_max_readings = 6;
    let cx = bare(&limits, &line);
    let mut out = BatchBuilder::new(limits.fields_max);
    let mut rejects = Rejects::new();
    decode(encoding, payload, otlp, &cx, &mut out, &mut rejects);
    for reject in rejects.list() {
        assert!(
            !reject.detail.is_empty() && reject.detail.len() < 700,
            "{reject:?}"
        );
    }
    (out.finish().to_readings(), rejects)
}

fn json(payload: &str) -> (Vec<Reading>, Rejects) {
    read_with(&settings(), Encoding::Json, payload.as_bytes())
}

fn reasons_of(rejects: &Rejects) -> Vec<(usize, &'static str)> {
    rejects
        .list()
        .iter()
        .map(|r| (r.index, r.reason.as_str()))
        .collect()
}

const T_NS: u64 = 1_709_290_799_123_999_999;

fn request(resource: &str, metrics: &str) -> String {
    format!(
        "{{\"resourceMetrics\":[{{\"resource\":{{\"attributes\":[{resource}]}},\"scopeMetrics\":[{{\"metrics\":[{metrics}]}}]}}]}}"
    )
}

fn attribute(key: &str, value: &str) -> String {
    format!("{{\"key\":\"{key}\",\"value\":{{\"stringValue\":\"{value}\"}}}}")
}

fn gauge(name: &str, points: &str) -> String {
    format!("{{\"name\":\"{name}\",\"gauge\":{{\"dataPoints\":[{points}]}}}}")
}

/// Bytes of a length-delimited protobuf field.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut all = vec![number << 3 | 2];
    let mut len = bytes.len();
    while len >= 0x80 {
        all.push(len as u8 | 0x80);
        len >>= 7;
    }
    all.push(len as u8);
    all.extend_from_slice(bytes);
    all
}

fn fixed(number: u8, value: u64) -> Vec<u8> {
    [&[number << 3 | 1][..], &value.to_le_bytes()].concat()
}

fn pair(key: &str, any: &[u8]) -> Vec<u8> {
    [field(1, key.as_bytes()), field(2, any)].concat()
}

/// The same as [`in_json`], with the resource after its metrics and the name after its data, which
/// is allowed.
fn in_protobuf() -> Vec<u8> {
    let text = |text: &str| field(1, text.as_bytes());
    let resource = field(1, &pair("host.name", &text("edge-7")));
    let resource = [
        resource,
        field(1, &pair("cores", &[0x18, 4])),
        field(1, &pair("x", &field(5, b""))),
    ]
    .concat();
    let own = field(7, &pair("room", &text("north")));
    let temperature = [fixed(3, T_NS), fixed(4, 21.5f64.to_bits()), own].concat();
    let gauge = [
        field(5, &field(1, &temperature)),
        field(1, b"room.temperature"),
    ]
    .concat();
    let count = [fixed(3, T_NS), fixed(6, (-7i64).cast_unsigned())].concat();
    let ended = [fixed(3, T_NS), vec![0x40, 0x01]].concat();
    let sum = [field(1, &count), field(1, &ended), vec![0x10, 2, 0x18, 1]].concat();
    let sum = [
        field(1, b"door.count"),
        field(2, b"how often"),
        field(7, &sum),
    ]
    .concat();
    let others = [
        [
            field(1, b"h"),
            field(9, &[field(1, b""), field(1, b"")].concat()),
        ]
        .concat(),
        [field(1, b"e"), field(10, &field(1, b""))].concat(),
        [field(1, b"s"), field(11, &field(1, b""))].concat(),
    ];
    let mut metrics = vec![gauge, sum];
    metrics.extend(others);
    let scope: Vec<u8> = metrics.iter().flat_map(|metric| field(2, metric)).collect();
    field(
        1,
        &[
            field(2, &[field(1, b""), scope].concat()),
            field(1, &resource),
            field(3, b"schema"),
        ]
        .concat(),
    )
}

fn in_json() -> String {
    format!(
        r#"{{"resourceMetrics":[{{"scopeMetrics":[{{"scope":{{}},"metrics":[
            {{"gauge":{{"dataPoints":[{{"attributes":[{room}],"timeUnixNano":"{T_NS}","asDouble":21.5}}]}},
              "name":"room.temperature"}},
            {{"name":"door.count","description":"how often","sum":{{"aggregationTemporality":2,"isMonotonic":true,
              "dataPoints":[{{"timeUnixNano":{T_NS},"asInt":"-7"}},{{"timeUnixNano":"{T_NS}","flags":1}}]}}}},
            {{"name":"h","histogram":{{"dataPoints":[{{}},{{}}]}}}},
            {{"name":"e","exponentialHistogram":{{"dataPoints":[{{}}]}}}},
            {{"name":"s","summary":{{"dataPoints":[{{}}]}}}}
        ]}}],"resource":{{"attributes":[{host},{{"key":"cores","value":{{"intValue":"4"}}}},
            {{"key":"x","value":{{"arrayValue":{{"values":[]}}}}}}]}},"schemaUrl":"schema"}}]}}"#,
        room = attribute("room", "north"),
        host = attribute("host.name", "edge-7"),
    )
}

#[test]
fn gauges_and_sums_are_the_same_readings_in_both_encodings() {
    let (readings, rejects) = json(&in_json());
    let [temperature, contact, histograms @ ..] = &readings[..] else {
        panic!("{readings:?}")
    };
    assert_eq!(
        (temperature.sensor_id.as_str(), temperature.ts_ms),
        ("edge-7", (T_NS / 1_000_000) as i64)
    );
    assert_eq!(temperature.values["room_temperature"], Value::Double(21.5));
    assert_eq!(
        temperature.tags.clone().into_iter().collect::<Vec<_>>(),
        [
            ("cores".to_owned(), "4".to_owned()),
            ("host_name".to_owned(), "edge-7".to_owned()),
            ("room".to_owned(), "north".to_owned()),
        ]
    );
    assert_eq!(
        (&contact.values["door_count"], contact.receipt_time),
        (&Value::Int(-7), false)
    );
    // Points without anything in them.
    let counts = |r: &Reading| {
        r.values
            .iter()
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect::<Vec<_>>()
    };
    let zero = |name: &str| vec![(name.to_owned(), Value::Int(0))];
    assert_eq!(
        histograms.iter().map(counts).collect::<Vec<_>>(),
        [
            zero("h_count"),
            zero("h_count"),
            zero("e_count"),
            zero("s_count")
        ]
    );
    assert!(rejects.is_empty() && rejects.hints().is_empty());

    let (same, same_rejects) = read_with(&settings(), Encoding::Protobuf, &in_protobuf());
    assert_eq!(
        (same, reasons_of(&same_rejects)),
        (readings, reasons_of(&rejects))
    );
}

#[test]
fn the_sensor_is_the_first_attribute_that_is_there() {
    let point = |attributes: &str| format!("{{\"attributes\":[{attributes}],\"asInt\":1}}");
    let id = |otlp: &Otlp, resource: &str, own: &str| {
        let payload = request(resource, &gauge("m", &point(own)));
        let (mut readings, rejects) = read_with(otlp, Encoding::Json, payload.as_bytes());
        readings
            .pop()
            .map_or_else(|| rejects.list()[0].reason.to_string(), |r| r.sensor_id)
    };
    let host = attribute("host.name", "edge");
    let service = attribute("service.name", "meter");
    let mut otlp = settings();
    assert_eq!(id(&otlp, &format!("{service},{host}"), ""), "edge");
    assert_eq!(id(&otlp, &service, ""), "meter");
    assert_eq!(id(&otlp, &host, &attribute("sensor_id", "S1")), "S1");
    assert_eq!(id(&otlp, &attribute("host.name", ""), ""), "unknown");
    otlp.sensor_id_default.clear();
    assert_eq!(id(&otlp, "", ""), "missing_sensor_id");
    otlp.point_attributes = PointAttributes::SensorId;
    let own = [attribute("state", "idle"), attribute("cpu", "0,1")].join(",");
    assert_eq!(id(&otlp, &host, &own), "edge,cpu=0\\,1,state=idle");
    assert_eq!(
        id(
            &otlp,
            &host,
            &[attribute("sensor_id", "S1"), attribute("cpu", "0")].join(",")
        ),
        "S1,cpu=0"
    );
    let many: Vec<String> = (0..129).map(|i| attribute(&format!("k{i}"), "")).collect();
    assert_eq!(id(&otlp, &host, &many.join(",")), "too_many_tags");
}

#[test]
fn points_that_cannot_be_distinguished_are_reported() {
    let point = |cpu: &str, ns: u64| {
        format!(
            "{{\"attributes\":[{}],\"timeUnixNano\":\"{ns}\",\"asInt\":1}}",
            attribute("cpu", cpu)
        )
    };
    let hint = |otlp: &Otlp, points: &[String]| {
        let payload = request("", &gauge("m", &points.join(",")));
        let (readings, rejects) = read_with(otlp, Encoding::Json, payload.as_bytes());
        assert_eq!((readings.len(), rejects.total()), (points.len(), 0));
        rejects.hints().first().cloned()
    };
    let mut otlp = settings();
    assert!(
        hint(&otlp, &[point("0", T_NS), point("1", T_NS)])
            .is_some_and(|r| r.contains("otlp.point_attributes"))
    );
    assert_eq!(
        hint(&otlp, &[point("0", T_NS), point("0", T_NS + 1_000_000)]),
        None
    );
    otlp.point_attributes = PointAttributes::SensorId;
    assert_eq!(hint(&otlp, &[point("0", T_NS), point("1", T_NS)]), None);
}

#[test]
fn a_bad_point_rejects_only_itself() {
    let points = [
        r#"{"asDouble":"NaN"}"#,
        r#"{"asDouble":1e999}"#,
        "{}",
        r#"{"asInt":"9223372036854775808"}"#,
        "[1]",
        r#"{"timeUnixNano":"1","asInt":1}"#,
        r#"{"timeUnixNano":"soon","asInt":1}"#,
        r#"{"attributes":{},"asInt":1}"#,
        r#"{"asInt":2,"timeUnixNano":null,"exemplars":[{"asInt":5}],"unknown":[[{}]]}"#,
        r#"{"asInt":3,"timeUnixNano":1.709290799e18}"#,
    ];
    let (readings, rejects) = json(&request("", &gauge("m", &points.join(","))));
    assert_eq!(
        readings
            .iter()
            .map(|r| (&r.values["m"], r.ts_ms))
            .collect::<Vec<_>>(),
        [(&Value::Int(2), NOW), (&Value::Int(3), NOW - 1000)]
    );
    let expected = [
        "not_finite",
        "not_finite",
        "no_values",
        "invalid_json",
        "invalid_json",
        "too_old",
        "invalid_json",
        "invalid_json",
    ];
    assert_eq!(
        reasons_of(&rejects),
        expected.into_iter().enumerate().collect::<Vec<_>>()
    );

    let long = "v".repeat(2000);
    let (readings, rejects) = json(&request(
        &attribute("cmd", &long),
        &gauge("m", r#"{"asInt":1}"#),
    ));
    assert!(
        rejects.is_empty() && readings[0].tags.is_empty(),
        "an attribute that cannot be a tag rejects no reading: {rejects:?}"
    );
    let (readings, rejects) = json(&request(
        "",
        &[
            gauge("", r#"{"asInt":1}"#),
            gauge("m", &[r#"{"asInt":1}"#; 8].join(",")),
        ]
        .join(","),
    ));
    assert_eq!(
        (readings.len(), reasons_of(&rejects)),
        (6, vec![(0, "missing_field"), (6, "too_many_readings")])
    );
    assert_eq!(rejects.total(), 3);
}

#[test]
fn malformed_payloads_give_nothing_and_empty_ones_are_accepted() {
    for empty in [
        "{}",
        r#"{"other":true}"#,
        r#"{"resourceMetrics":[]}"#,
        r#"{"resourceMetrics":null}"#,
        r#"{"resourceMetrics":[{"scopeMetrics":[{}]}]}"#,
    ] {
        let (readings, rejects) = json(empty);
        assert!(
            readings.is_empty() && rejects.is_empty(),
            "{empty}: {rejects:?}"
        );
    }
    let good = gauge("m", r#"{"asInt":1}"#);
    for (bad, reason) in [
        ("", "invalid_json"),
        ("[]", "invalid_json"),
        (r#"{"resourceMetrics":"x"}"#, "invalid_json"),
        (
            r#"{"resourceMetrics":[{"instrumentationLibraryMetrics":[]}]}"#,
            "invalid_json",
        ),
        (
            &request("", &format!("{good},{{\"name\":5}}")),
            "invalid_json",
        ),
        (
            &request("", &format!("{good},{{\"name\":\"n\",\"sum\":[]}}")),
            "invalid_json",
        ),
        (&request("", &good)[1..], "invalid_json"),
        (
            &format!("{{\"resourceMetrics\":\"{}\"}}", "x".repeat(5000)),
            "invalid_json",
        ),
    ] {
        let (readings, rejects) = json(bad);
        assert_eq!(
            (readings.len(), reasons_of(&rejects)),
            (0, vec![(0, reason)]),
            "{bad}"
        );
    }
    let (readings, rejects) = read_with(&settings(), Encoding::Json, b"{\"a\":\"\xff\"}");
    assert_eq!(
        (readings.len(), reasons_of(&rejects)),
        (0, vec![(0, "invalid_utf8")])
    );

    let whole = in_protobuf();
    for end in 1..whole.len() {
        let (readings, rejects) = read_with(&settings(), Encoding::Protobuf, &whole[..end]);
        assert_eq!(
            (readings.len(), reasons_of(&rejects)),
            (0, vec![(0, "invalid_protobuf")]),
            "{end}"
        );
    }
    // Unknown fields and groups are ignored: here field 1999 and the group 4, empty, after the
    // resource metrics.
    let unknown = [&whole[..], &[0xfa, 0x7c, 0x01, 0xff], &[0x23, 0x24]].concat();
    let (readings, _) = read_with(&settings(), Encoding::Protobuf, &unknown);
    assert_eq!(
        readings,
        read_with(&settings(), Encoding::Protobuf, &whole).0
    );
    assert!(!readings.is_empty());
    let (readings, rejects) =
        read_with(&settings(), Encoding::Protobuf, &field(1, &[0xc2, 0x3e, 0]));
    assert!(
        readings.is_empty() && rejects.list()[0].detail.contains("0.15"),
        "{rejects:?}"
    );
    assert!(read_with(&settings(), Encoding::Protobuf, b"").1.is_empty());
}

#[test]
fn histograms_keep_count_sum_min_and_max_and_name_what_is_dropped() {
    let point = format!(r#""timeUnixNano":"{T_NS}","count":"5","sum":7.5,"min":0.5,"max":4"#);
    let text = format!(
        r#"{{"resourceMetrics":[{{"scopeMetrics":[{{"metrics":[
            {{"name":"h","histogram":{{"dataPoints":[{{{point},"bucketCounts":["1","4"],"explicitBounds":[1]}}]}}}},
            {{"name":"e","exponentialHistogram":{{"dataPoints":[{{{point},"positive":{{"bucketCounts":[300,2,3]}}}}]}}}},
            {{"name":"s","summary":{{"dataPoints":[{{"timeUnixNano":"{T_NS}","count":5,"sum":7.5,"quantileValues":[
                {{"value":0.5}},{{"quantile":0.9,"value":3}},{{"quantile":1,"value":4}}]}}]}}}},
            {{"name":"n","histogram":{{"dataPoints":[{{"count":1,"sum":"NaN"}}]}}}}
        ]}}]}}]}}"#
    );
    let (readings, rejects) = json(&text);
    let stored = |name: &str| {
        [
            ("count", Value::Int(5)),
            ("max", Value::Double(4.0)),
            ("min", Value::Double(0.5)),
            ("sum", Value::Double(7.5)),
        ]
        .map(|(part, value)| (format!("{name}_{part}"), value))
        .to_vec()
    };
    let values: Vec<Vec<(String, Value)>> = readings
        .iter()
        .map(|r| r.values.clone().into_iter().collect())
        .collect();
    assert_eq!(
        values,
        [
            stored("h"),
            stored("e"),
            stored("s"),
            vec![("n_count".to_owned(), Value::Int(1))]
        ]
    );
    let names = ["h (buckets)", "e (buckets)", "s (quantiles)"];
    assert_eq!(
        (rejects.left_out().total(), rejects.left_out().names()),
        (6, &names.map(str::to_owned)[..])
    );
    assert!(rejects.is_empty() && rejects.hints().iter().any(|hint| hint.contains("buckets")));

    // The same in protobuf.
    let fixed =
        |number: u32, bits: u64| [&[(number << 3 | 1) as u8][..], &bits.to_le_bytes()].concat();
    let double = |number: u32, v: f64| fixed(number, v.to_bits());
    let common = [fixed(3, T_NS), fixed(4, 5), double(5, 7.5)].concat();
    let counts = [1u64.to_le_bytes(), 4u64.to_le_bytes()].concat();
    let histogram = [
        &common[..],
        &field(6, &counts),
        &double(11, 0.5),
        &double(12, 4.0),
    ]
    .concat();
    let exponential = [
        &common[..],
        &field(8, &field(2, &[0xac, 0x02, 2, 3])),
        &double(12, 0.5),
        &double(13, 4.0),
    ]
    .concat();
    let quantile = |at: f64, value: f64| field(6, &[double(1, at), double(2, value)].concat());
    let summary = [
        &common[..],
        &quantile(0.0, 0.5),
        &quantile(0.9, 3.0),
        &quantile(1.0, 4.0),
    ]
    .concat();
    let metric = |name: &str, number, point: &[u8]| {
        field(
            2,
            &[field(1, name.as_bytes()), field(number, &field(1, point))].concat(),
        )
    };
    let scope = [
        metric("h", 9, &histogram),
        metric("e", 10, &exponential),
        metric("s", 11, &summary),
    ]
    .concat();
    let request = field(1, &field(2, &scope));
    let (same, same_rejects) = read_with(&settings(), Encoding::Protobuf, &request);
    assert_eq!(format!("{same:?}"), format!("{:?}", &readings[..3]));
    assert_eq!(same_rejects.left_out(), rejects.left_out());
}

/// The number of a double or fixed64 field.
fn fixed_field(number: u8, bits: u64) -> Vec<u8> {
    [&[number << 3 | 1][..], &bits.to_le_bytes()].concat()
}

#[test]
fn buckets_are_series_if_attributes_belong_to_the_sensor() {
    let otlp = Otlp {
        point_attributes: PointAttributes::SensorId,
        ..settings()
    };
    let point = |more: &str| {
        format!(
            r#"{{"timeUnixNano":"{T_NS}","count":"7","attributes":[{}],{more}}}"#,
            attribute("path", "/a")
        )
    };
    let histogram = |points: &str| {
        let host = attribute("host.name", "web");
        let text = format!(r#"{{"name":"h","histogram":{{"dataPoints":[{points}]}}}}"#);
        request(&host, &text)
    };
    let buckets = r#""bucketCounts":["1","4","2"],"explicitBounds":[0.5,1e30]"#;
    let (readings, rejects) =
        read_with(&otlp, Encoding::Json, histogram(&point(buckets)).as_bytes());
    assert!(rejects.is_empty() && rejects.left_out().total() == 0);
    let shown: Vec<(&str, Value)> = readings
        .iter()
        .flat_map(|r| r.values.values().map(|v| (r.sensor_id.as_str(), v.clone())))
        .collect();
    let expected = [
        ("web,path=/a", 7),
        ("web,le=0.5,path=/a", 1),
        ("web,le=1e30,path=/a", 5),
        ("web,le=+Inf,path=/a", 7),
    ];
    assert_eq!(shown, expected.map(|(id, n)| (id, Value::Int(n))));
    assert!(
        readings[1..]
            .iter()
            .all(|r| r.values.contains_key("h_bucket"))
    );
    assert_eq!(readings[1].tags["le"], "0.5");

    // The same in protobuf, packed and one by one.
    for is_packed in [true, false] {
        let each = |number: u8, all: &[u64]| match is_packed {
            true => field(
                number,
                &all.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>(),
            ),
            false => all.iter().flat_map(|v| fixed_field(number, *v)).collect(),
        };
        let point = [
            fixed_field(3, T_NS),
            fixed_field(4, 7),
            each(6, &[1, 4, 2]),
            each(7, &[0.5f64.to_bits(), 1e30f64.to_bits()]),
            field(9, &pair("path", &field(1, b"/a"))),
        ]
        .concat();
        let metric = [field(1, b"h"), field(9, &field(1, &point))].concat();
        let host = field(1, &pair("host.name", &field(1, b"web")));
        let request = field(1, &[field(1, &host), field(2, &field(2, &metric))].concat());
        let (same, _) = read_with(&otlp, Encoding::Protobuf, &request);
        assert_eq!(format!("{same:?}"), format!("{readings:?}"));
    }

    // Bounds that do not fit give no buckets, and the limit counts each as a reading.
    let odd = r#""bucketCounts":["1","4"],"explicitBounds":[0.5,1]"#;
    let (readings, rejects) = read_with(&otlp, Encoding::Json, histogram(&point(odd)).as_bytes());
    assert_eq!((readings.len(), rejects.left_out().total()), (1, 2));
    let twice = [point(buckets), point(buckets)].join(",");
    let (readings, rejects) = read_with(&otlp, Encoding::Json, histogram(&twice).as_bytes());
    assert_eq!((readings.len(), rejects.left_out().total()), (6, 2));
}

/// Parsers of protobuf's JSON accept a field's name as it is in the `.proto` file, too.
#[test]
fn names_in_snake_case_are_read_like_those_in_lower_camel_case() {
    let camel = r#"{"resourceMetrics":[{"resource":{"attributes":[
        {"key":"service.name","value":{"stringValue":"svc"}},{"key":"n","value":{"intValue":"7"}},
        {"key":"b","value":{"boolValue":true}},{"key":"d","value":{"doubleValue":1.5}}]},
        "scopeMetrics":[{"metrics":[
        {"name":"a","gauge":{"dataPoints":[{"asDouble":1,"timeUnixNano":"1709290799123999999"}]}},
        {"name":"i","sum":{"dataPoints":[{"asInt":"2","timeUnixNano":"1709290799123999999"}]}},
        {"name":"h","histogram":{"dataPoints":[{"count":"3","sum":4,"bucketCounts":["1","2"]}]}},
        {"name":"e","exponentialHistogram":{"dataPoints":[
            {"count":"3","positive":{"bucketCounts":["1"]}}]}},
        {"name":"s","summary":{"dataPoints":[
            {"count":"3","quantileValues":[{"quantile":1,"value":9}]}]}}]}]}]}"#;
    let mut snake = camel.to_owned();
    for upper in 'A'..='Z' {
        for lower in 'a'..='z' {
            let lower_case = upper.to_ascii_lowercase();
            snake = snake.replace(&format!("{lower}{upper}"), &format!("{lower}_{lower_case}"));
        }
    }
    assert!(snake.contains("time_unix_nano") && !snake.contains("dataPoints"));
    let (expected, rejects) = json(camel);
    let (readings, same) = json(&snake);
    assert_eq!((readings.len(), &readings), (5, &expected));
    assert_eq!(readings[0].ts_ms, 1_709_290_799_123);
    assert_eq!(
        (same.total(), same.left_out()),
        (rejects.total(), rejects.left_out())
    );
    let (_, rejects) = json(r#"{"resource_metrics":[{"instrumentation_library_metrics":[]}]}"#);
    assert!(rejects.list()[0].detail.contains("0.15"));
}

/// Another signal, or names that no version of the protocol has.
#[test]
fn a_request_without_a_data_point_is_reported() {
    for payload in [
        r#"{"resourceSpans":[{"scopeSpans":[]}]}"#,
        r#"{"ResourceMetrics":[{}]}"#,
        r#"{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":"a","gauge":{"points":[1]}}]}]}]}"#,
    ] {
        let (readings, rejects) = json(payload);
        assert_eq!((readings.len(), rejects.total()), (0, 0));
        assert!(
            rejects
                .hints()
                .iter()
                .any(|hint| hint.contains("no data point")),
            "{payload}: {:?}",
            rejects.hints()
        );
    }
    for empty in ["{}", " {}\n"] {
        assert_eq!(json(empty).1.hints(), [] as [&str; 0], "{empty}");
    }
}
