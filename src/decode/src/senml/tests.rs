//! Packs as senders write them, and their readings and rejects.

use crate::tests::{NOW, bare, limits, line};
use crate::{Context, Format, RejectReason, Rejects, decode};
use model::{BatchBuilder, Reading, Value};

fn run_with(
    format: Format,
    payload: &[u8],
    cx: &Context<'_>,
) -> (Vec<Reading>, Vec<(usize, RejectReason)>) {
    let mut out = BatchBuilder::new(cx.limits.fields_max);
    let mut rejects = Rejects::new();
    decode(format, payload, cx, &mut out, &mut rejects);
    for reject in rejects.list() {
        assert!(reject.detail.len() < 300, "{reject:?}");
    }
    (
        out.finish().to_readings(),
        rejects.list().iter().map(|r| (r.index, r.reason)).collect(),
    )
}

fn senml(payload: impl AsRef<[u8]>) -> (Vec<Reading>, Vec<(usize, RejectReason)>) {
    let limits = limits();
    let line = line();
    run_with(Format::Senml, payload.as_ref(), &bare(&limits, &line))
}

fn cbor(payload: impl AsRef<[u8]>) -> (Vec<Reading>, Vec<(usize, RejectReason)>) {
    let limits = limits();
    let line = line();
    run_with(Format::SenmlCbor, payload.as_ref(), &bare(&limits, &line))
}

/// Sensor, time from now in milliseconds (`None`: time of receipt), and the values.
type Short = (String, Option<i64>, Vec<(String, Value)>);

fn short(readings: &[Reading]) -> Vec<Short> {
    let one = |r: &Reading| {
        let time = (!r.receipt_time).then_some(r.ts_ms - NOW);
        (
            r.sensor_id.clone(),
            time,
            r.values.clone().into_iter().collect(),
        )
    };
    readings.iter().map(one).collect()
}

fn expected(sensor: &str, time: Option<i64>, values: &[(&str, Value)]) -> Short {
    (
        sensor.into(),
        time,
        values
            .iter()
            .map(|(k, v)| ((*k).to_owned(), v.clone()))
            .collect(),
    )
}

#[test]
fn bases_apply_to_the_following_records() {
    let (readings, rejects) = senml(
        r#"[{"bn":"urn:dev:1:","bt":1709290700,"bu":"V","bv":100,"bs":10.5,"n":"a","v":1,"s":1},
            {"n":"b","u":"A","t":-60,"v":0.5},
            {"bn":"urn:dev:2","bv":0,"v":7},
            {"n":"/x","bt":0,"vb":true},
            {"bt":1709290800}]"#,
    );
    assert_eq!(rejects, []);
    assert_eq!(
        short(&readings),
        [
            expected(
                "urn:dev:1:a",
                Some(-100_000),
                &[("sum", Value::Double(11.5)), ("value", Value::Int(101))]
            ),
            expected(
                "urn:dev:1:b",
                Some(-160_000),
                &[
                    ("sum", Value::Double(10.5)),
                    ("value", Value::Double(100.5))
                ]
            ),
            expected(
                "urn:dev:2",
                Some(-100_000),
                &[("sum", Value::Double(10.5)), ("value", Value::Int(7))]
            ),
            expected(
                "urn:dev:2/x",
                None,
                &[("sum", Value::Double(10.5)), ("value", Value::Bool(true))]
            ),
        ]
    );
    let units: Vec<_> = readings.iter().map(|r| r.tags["u"].as_str()).collect();
    assert_eq!(units, ["V", "A", "V", "V"]);
}

#[test]
fn a_base_value_or_sum_counts_without_its_counterpart() {
    let (readings, rejects) = senml(
        r#"[{"bn":"S:","bv":20,"n":"a"},{"n":"b","s":3},{"n":"c","vs":"x"},{"bs":5},{"n":"d"},{"n":"e","v":1}]"#,
    );
    assert_eq!(rejects, []);
    let values = |name: &str, values: &[(&str, Value)]| expected(name, None, values);
    assert_eq!(
        short(&readings),
        [
            values("S:a", &[("value", Value::Int(20))]),
            values("S:b", &[("sum", Value::Int(3))]),
            values("S:c", &[("value", Value::Str("x".into()))]),
            values("S:d", &[("sum", Value::Int(5)), ("value", Value::Int(20))]),
            values("S:e", &[("sum", Value::Int(5)), ("value", Value::Int(21))]),
        ]
    );
    assert_eq!(senml(r#"[{"n":"a"}]"#).1, [(0, RejectReason::NoValues)]);
}

#[test]
fn times_below_two_to_the_28_are_relative_to_the_receipt() {
    for (pack, time) in [
        (r#"[{"n":"a","v":1}]"#, None),
        (r#"[{"n":"a","t":0,"v":1}]"#, None),
        (r#"[{"n":"a","bt":5,"t":-5,"v":1}]"#, None),
        (r#"[{"n":"a","t":-5,"v":1}]"#, Some(-5000)),
        (r#"[{"n":"a","bt":-45.67,"t":-1,"v":1}]"#, Some(-46_670)),
        (r#"[{"n":"a","t":0.1,"v":1}]"#, Some(100)),
        (r#"[{"n":"a","t":300,"v":1}]"#, Some(300_000)),
        (r#"[{"n":"a","t":1709290800.25,"v":1}]"#, Some(250)),
        (r#"[{"n":"a","bt":1.7092908e9,"t":-0.5,"v":1}]"#, Some(-500)),
        (
            r#"[{"n":"a","bt":268435456,"t":1440855344,"v":1}]"#,
            Some(0),
        ),
    ] {
        let (readings, rejects) = senml(pack);
        assert_eq!(rejects, [], "{pack}");
        assert_eq!(short(&readings)[0].1, time, "{pack}");
    }
    for (pack, reason) in [
        (
            r#"[{"n":"a","t":268435455,"v":1}]"#,
            RejectReason::TooFarAhead,
        ),
        (r#"[{"n":"a","t":1000000000,"v":1}]"#, RejectReason::TooOld),
        (r#"[{"n":"a","t":-1e12,"v":1}]"#, RejectReason::TooOld),
        // Relative, so it does not count as an unset clock.
        (r#"[{"n":"a","t":-1000000000,"v":1}]"#, RejectReason::TooOld),
        (r#"[{"n":"a","t":1e300,"v":1}]"#, RejectReason::TooFarAhead),
        (r#"[{"n":"a","t":1e999,"v":1}]"#, RejectReason::BadTimestamp),
        (
            r#"[{"n":"a","t":99999999999999999999999999999999999999999,"v":1}]"#,
            RejectReason::BadTimestamp,
        ),
        (r#"[{"n":"a","t":"now","v":1}]"#, RejectReason::WrongType),
    ] {
        assert_eq!(senml(pack), (vec![], vec![(0, reason)]), "{pack}");
    }
    // 1978: absolute, so it counts as an unset clock.
    let (readings, rejects) = senml(r#"[{"n":"a","t":268435456,"v":1}]"#);
    assert_eq!((readings[0].receipt_time, rejects.len()), (true, 0));
}

#[test]
fn the_values_of_a_record() {
    let pack = r#"[{"n":"a","vs":"Machine \"Room\""},{"n":"b","vb":false},{"n":"c","vd":"aGkgCg"},{"n":"d","s":3},
        {"n":"e","v":-0},{"n":"f","v":1e3},{"n":"g","v":null,"s":1,"foo":[{"x_":{}}],"l":"x","ut":10}]"#;
    let (readings, rejects) = senml(pack);
    assert_eq!(rejects, []);
    let values: Vec<_> = short(&readings)
        .into_iter()
        .flat_map(|(_, _, values)| values)
        .collect();
    let text = |t: &str| Value::Str(t.into());
    let expected = [
        ("value", text("Machine \"Room\"")),
        ("value", Value::Bool(false)),
        ("value", text("aGkgCg")),
        ("sum", Value::Int(3)),
        ("value", Value::Int(0)),
        ("value", Value::Double(1000.0)),
        ("sum", Value::Int(1)),
    ];
    assert_eq!(values, expected.map(|(k, v)| (k.to_owned(), v)));
    for (record, reason) in [
        (r#"{"n":"a"}"#, RejectReason::NoValues),
        (r#"{}"#, RejectReason::NoValues),
        (r#"{"n":"a","v":null}"#, RejectReason::NoValues),
        (r#"{"n":"a","t":1,"bn":"x"}"#, RejectReason::NoValues),
        (r#"{"n":"a","v":1,"vs":"x"}"#, RejectReason::InvalidSenml),
        (r#"{"n":"a","v":"1"}"#, RejectReason::WrongType),
        (r#"{"n":"a","vs":1}"#, RejectReason::WrongType),
        (r#"{"n":"a","vb":0}"#, RejectReason::WrongType),
        (r#"{"n":"a","v":[1]}"#, RejectReason::WrongType),
        (r#"{"n":"a","v":1e999}"#, RejectReason::NotFinite),
        (r#"{"n":"a","bv":1e308,"v":1e308}"#, RejectReason::NotFinite),
        (
            r#"{"n":"a","v":9223372036854775808}"#,
            RejectReason::IntegerOutOfRange,
        ),
        (r#"{"n":"a","v":1,"v":2}"#, RejectReason::DuplicateKey),
        (r#"{"n":"a","v":1,"u":7}"#, RejectReason::WrongType),
        (r#"{"v":1}"#, RejectReason::MissingSensorId),
        (r#"{"n":"","v":1}"#, RejectReason::MissingSensorId),
        (r#"{"n":"Küche","v":1}"#, RejectReason::InvalidSenml),
        (r#"{"n":"a b","v":1}"#, RejectReason::InvalidSenml),
        (r#"{"n":":a","v":1}"#, RejectReason::InvalidSenml),
        (r#"7"#, RejectReason::NotAnObject),
        (r#"[1,[2]]"#, RejectReason::NotAnObject),
        (r#"null"#, RejectReason::NotAnObject),
    ] {
        let (readings, rejects) =
            senml(format!(r#"[{{"n":"x","v":1}},{record},{{"n":"z","v":1}}]"#));
        assert_eq!(
            (readings.len(), rejects),
            (2, vec![(1, reason)]),
            "{record}"
        );
    }
    let long = format!(r#"[{{"n":"{}","v":1}}]"#, "a".repeat(257));
    assert_eq!(senml(long).1, [(0, RejectReason::SensorIdTooLong)]);
    let long = format!(r#"[{{"n":"a","vs":"{}"}}]"#, "a".repeat(1025));
    assert_eq!(senml(long).1, [(0, RejectReason::StringTooLong)]);
}

#[test]
fn a_pack_that_needs_unsupported_features_is_rejected() {
    let good = r#"{"n":"a","v":1}"#;
    for bad in [
        r#"{"n":"b","v":1,"bver":11}"#,
        r#"{"n":"b","v":1,"bver":0}"#,
        r#"{"n":"b","v":1,"bver":"10"}"#,
        r#"{"n":"b","v":1,"bver":10.5}"#,
        r#"{"n":"b","v":1,"sealed_":true}"#,
        r#"{"n":"b","v":1,"se\u0061led_":null}"#,
    ] {
        let limits = limits();
        let line = line();
        let cx = bare(&limits, &line);
        let mut out = BatchBuilder::new(8);
        let mut rejects = Rejects::new();
        let pack = format!("[{good},{good},{bad},7,{good}]");
        decode(Format::Senml, pack.as_bytes(), &cx, &mut out, &mut rejects);
        assert_eq!((out.len(), rejects.total()), (0, 5), "{bad}");
        assert_eq!(
            rejects.by_reason(),
            [
                (RejectReason::NotAnObject, 1),
                (RejectReason::InvalidSenml, 4)
            ],
            "{bad}"
        );
    }
    assert_eq!(senml(r#"[{"n":"b","v":1,"bver":5}]"#).0.len(), 1);
    assert_eq!(senml(r#"[{"n":"b","v":1,"bver":null}]"#).0.len(), 1);
}

#[test]
fn records_that_depend_on_a_bad_base_are_rejected() {
    let ids = |pack: &str| {
        let (readings, rejects) = senml(pack);
        let ids: Vec<_> = readings.iter().map(|r| r.sensor_id.clone()).collect();
        (
            ids.join(" "),
            rejects.iter().map(|(i, _)| *i).collect::<Vec<_>>(),
        )
    };
    let ok = r#"{"bn":"A:","n":"a","v":1}"#;
    let bad = r#"{"n":"b","v":1}"#;
    assert_eq!(
        ids(&format!(
            r#"[{ok},{{"bn":7,"v":1}},{bad},{{"bn":"C:","n":"c","v":1}}]"#
        )),
        ("A:a C:c".into(), vec![1, 2])
    );
    assert_eq!(
        ids(&format!(r#"[{ok},{{"bn":"x","bn":"y","v":1}},{bad}]"#)),
        ("A:a".into(), vec![1, 2])
    );
    // A record with another fault, but readable bases, rejects only itself.
    assert_eq!(
        ids(r#"[{"bn":"B:","n":"a","v":"x"},{"n":"b","v":1}]"#),
        ("B:b".into(), vec![0])
    );
    // Only the records that depend on it.
    assert_eq!(
        ids(r#"[{"n":"a","bv":"x","v":1},{"n":"b","v":1},{"n":"c","vb":true}]"#),
        ("c".into(), vec![0, 1])
    );
    assert_eq!(
        ids(r#"[{"n":"a","bu":1,"v":1},{"n":"b","v":1},{"n":"c","u":"V","v":1}]"#),
        ("c".into(), vec![0, 1])
    );
    assert_eq!(
        ids(r#"[{"n":"a","bt":"x","v":1},{"n":"b","t":1,"v":1},{"n":"c","bt":0,"v":1}]"#),
        ("c".into(), vec![0, 1])
    );
    assert_eq!(
        ids(r#"[{"n":"a","bs":"x","v":1},{"n":"b","s":1},{"n":"c","v":1},{"bs":0,"n":"d","v":1}]"#),
        ("d".into(), vec![0, 1, 2])
    );
    // A record that is not JSON may have had a base, unless its bytes exclude that.
    assert_eq!(
        ids(&format!(r#"[{ok},{{"n":"x","v":NaN}},{bad}]"#)),
        ("A:a A:b".into(), vec![1])
    );
    assert_eq!(
        ids(&format!(r#"[{ok},{{"bn":"x","v":NaN}},{bad}]"#)),
        ("A:a".into(), vec![1, 2])
    );
    assert_eq!(
        ids(&format!(r#"[{ok},{{"\u0062n":"x","v":NaN}},{bad}]"#)),
        ("A:a".into(), vec![1, 2])
    );
    assert_eq!(
        ids(&format!(r#"[{ok},{{"n":"x","v":1,{bad}]"#)),
        ("A:a".into(), vec![1, 2])
    );
    assert_eq!(
        ids(&format!(r#"[{ok},,{bad}]"#)),
        ("A:a A:b".into(), vec![1])
    );
}

#[test]
fn records_of_one_sensor_and_time_are_one_reading() {
    // The example of RFC 8428 §5.1.4: one name for everything, only the units differ.
    let (readings, rejects) = senml(
        r#"[{"bn":"urn:dev:1","bt":1709290700,"bu":"%RH","v":20.5,"t":0},{"v":24.3,"u":"lon","t":0},
            {"v":60.1,"u":"lat","t":0},{"v":98,"u":"%EL","t":30},{"n":":x","v":1,"t":30}]"#,
    );
    assert_eq!(rejects, []);
    let place = [
        ("%RH", Value::Double(20.5)),
        ("lat", Value::Double(60.1)),
        ("lon", Value::Double(24.3)),
    ];
    assert_eq!(
        short(&readings),
        [
            expected("urn:dev:1", Some(-100_000), &place),
            expected("urn:dev:1", Some(-70_000), &[("%EL", Value::Int(98))]),
            expected("urn:dev:1:x", Some(-70_000), &[("value", Value::Int(1))]),
        ]
    );
    assert!(readings[0].tags.is_empty() && readings[2].tags["u"] == "%RH");
    // A duplicate field: both values are kept, also if they are equal. The store deduplicates equal
    // readings that have a time.
    let (readings, _) =
        senml(r#"[{"n":"a","v":1},{"n":"b","v":9},{"n":"a","v":1},{"n":"a","s":2}]"#);
    let ids: Vec<_> = readings
        .iter()
        .map(|r| (r.sensor_id.as_str(), r.values.len()))
        .collect();
    assert_eq!(ids, [("a", 1), ("a", 2), ("b", 1)]);
}

#[test]
fn if_the_topic_names_the_sensor_the_name_is_the_field() {
    let limits = limits();
    let line = line();
    let cx = Context {
        sensor_id: Some("gw1"),
        tags: &[("site", "north")],
        ..bare(&limits, &line)
    };
    let (readings, rejects) = run_with(
        Format::Senml,
        br#"[{"bn":"urn:dev:1:","bt":1709290700,"n":"temp","u":"Cel","v":22.5},{"n":"hum","u":"%RH","v":60,"s":5},
            {"v":7},{"bn":"urn:dev:2:","n":"temp","v":1},{"n":"temp","t":1,"v":2}]"#,
        &cx,
    );
    assert_eq!(rejects, []);
    let first = [
        ("hum", Value::Int(60)),
        ("hum_sum", Value::Int(5)),
        ("temp", Value::Double(22.5)),
        // A base name other than the first is part of the field, because it belongs to another
        // device.
        ("urn:dev:2:temp", Value::Int(1)),
        ("value", Value::Int(7)),
    ];
    assert_eq!(
        short(&readings),
        [
            expected("gw1", Some(-100_000), &first),
            expected("gw1", Some(-99_000), &[("urn:dev:2:temp", Value::Int(2))])
        ]
    );
    assert_eq!(readings[0].tags.keys().collect::<Vec<_>>(), ["site"]);
    // Several units under one name, and without a name.
    let pack = br#"[{"n":"x","u":"lat","v":1},{"n":"x","u":"lon","v":2,"s":3},{"u":"V","v":4}]"#;
    let (readings, rejects) = run_with(Format::Senml, pack, &cx);
    assert_eq!((readings.len(), rejects.len()), (1, 0));
    assert_eq!(
        readings[0].values.keys().collect::<Vec<_>>(),
        ["value", "x_lat", "x_lon", "x_lon_sum"]
    );
}

#[test]
fn nan_in_json_is_named_as_such() {
    for word in ["NaN", "-Infinity", "inf"] {
        let payload = format!(r#"[{{"n":"a","v":1}},{{"n":"x","v":{word}}},{{"n":"c","v":2}}]"#);
        let (readings, rejects) = senml(payload);
        assert_eq!(readings.len(), 2, "{word}");
        assert_eq!(rejects, [(1, RejectReason::NotFinite)], "{word}");
    }
    let (_, rejects) = senml(r#"[{"n":"a","v":nix}]"#);
    assert_eq!(rejects, [(0, RejectReason::InvalidJson)]);
}

#[test]
fn values_that_are_not_a_pack() {
    for (payload, reason) in [
        (&b""[..], RejectReason::EmptyPayload),
        (b" \n", RejectReason::EmptyPayload),
        (br#"{"n":"a","v":1}"#, RejectReason::InvalidSenml),
        (b"7", RejectReason::InvalidSenml),
        (b"[", RejectReason::InvalidJson),
        (br#"[{"n":"a","v":1"#, RejectReason::InvalidJson),
    ] {
        assert_eq!(senml(payload), (vec![], vec![(0, reason)]), "{payload:?}");
    }
    assert_eq!(senml("[]"), (vec![], vec![]));
    let (readings, rejects) = senml(r#"[{"n":"a","v":1}"#);
    assert_eq!(
        (readings.len(), rejects),
        (1, vec![(1, RejectReason::InvalidJson)])
    );
    let (readings, rejects) = senml(r#"[{"n":"a","v":1}] x"#);
    assert_eq!(
        (readings.len(), rejects),
        (1, vec![(1, RejectReason::TrailingData)])
    );
    let (readings, rejects) = senml("\u{feff} [{\"n\":\"a\",\"v\":1},]\n\0");
    assert_eq!(
        (readings.len(), rejects),
        (1, vec![(1, RejectReason::InvalidJson)])
    );
    assert_eq!(
        senml(b"[{\"n\":\"a\",\"vs\":\"\xff\"},{\"n\":\"b\",\"v\":1}]").1,
        [(0, RejectReason::InvalidUtf8)]
    );
    assert_eq!(
        senml(format!("[{}", "[".repeat(100_000))).1,
        [(0, RejectReason::TooDeep)]
    );
}

#[test]
fn cbor_has_numbers_for_labels_and_bytes_for_data() {
    // {-2: "dev:", -3: -45.67, -4: "Cel", -1: 5, 0: "t", 2: 22.5 (half), 5: 0, 7: 10, 99: 1}, {"n":
    // "d", 8: h'616263'}
    let pack = [
        &[0x82, 0xa9, 0x21, 0x64][..],
        b"dev:",
        &[
            0x22, 0xfb, 0xc0, 0x46, 0xd5, 0xc2, 0x8f, 0x5c, 0x28, 0xf6, 0x23, 0x63,
        ],
        b"Cel",
        &[
            0x20, 0x05, 0x00, 0x61, b't', 0x02, 0xf9, 0x4d, 0xa0, 0x05, 0x00, 0x07, 0x0a, 0x18, 99,
            0x01,
        ],
        &[0xa2, 0x61, b'n', 0x61, b'd', 0x08, 0x43, b'a', b'b', b'c'],
    ]
    .concat();
    let (readings, rejects) = cbor(&pack);
    assert_eq!(rejects, []);
    assert_eq!(
        short(&readings),
        [
            expected(
                "dev:t",
                Some(-45_670),
                &[("sum", Value::Int(0)), ("value", Value::Double(22.5))]
            ),
            expected(
                "dev:d",
                Some(-45_670),
                &[("value", Value::Str("YWJj".into()))]
            ),
        ]
    );
    // 2: 273.15 as a decimal fraction (§6), and labels that are neither number nor text.
    let (readings, rejects) = cbor([
        0x82, 0xa2, 0x00, 0x61, b'a', 0x02, 0xc4, 0x82, 0x21, 0x19, 0x6a, 0xb3, 0xa1, 0xf5, 0x01,
    ]);
    assert_eq!(
        short(&readings)[0].2,
        [("value".to_owned(), Value::Double(273.15))]
    );
    assert_eq!(rejects, [(1, RejectReason::WrongType)]);
    // Of indefinite length, with trailing data, truncated, and not a pack at all.
    let record = [0xa2, 0x00, 0x61, b'a', 0x02, 0x01];
    assert_eq!(cbor([&[0x9f][..], &record, &[0xff]].concat()).0.len(), 1);
    assert_eq!(
        cbor([&[0x81][..], &record, &[0x00]].concat()).1,
        [(1, RejectReason::TrailingData)]
    );
    let (readings, rejects) = cbor([&[0x83][..], &record, &[0x07], &record[..4]].concat());
    assert_eq!(
        (readings.len(), rejects),
        (
            1,
            vec![
                (1, RejectReason::NotAnObject),
                (2, RejectReason::InvalidCbor)
            ]
        )
    );
    assert_eq!(cbor(record).1, [(0, RejectReason::InvalidSenml)]);
    assert_eq!(cbor([]).1, [(0, RejectReason::EmptyPayload)]);
    // -1: 11, and a text label that requires support.
    assert_eq!(
        cbor([0x81, 0xa3, 0x20, 0x0b, 0x00, 0x61, b'a', 0x02, 0x01]).1,
        [(0, RejectReason::InvalidSenml)]
    );
    assert_eq!(
        cbor([0x81, 0xa2, 0x62, b'x', b'_', 0x01, 0x02, 0x01]).1,
        [(0, RejectReason::InvalidSenml)]
    );
}

#[test]
fn records_beyond_the_limit_are_counted() {
    let mut limits = limits();
    limits.batch_max_readings = 2;
    let line = line();
    let cx = bare(&limits, &line);
    let mut out = BatchBuilder::new(8);
    let mut rejects = Rejects::new();
    let records: Vec<String> = (0..5).map(|i| format!(r#"{{"n":"a{i}","v":1}}"#)).collect();
    decode(
        Format::Senml,
        format!("[{}]", records.join(",")).as_bytes(),
        &cx,
        &mut out,
        &mut rejects,
    );
    assert_eq!(
        (out.len(), rejects.by_reason()),
        (2, &[(RejectReason::TooManyReadings, 3)][..])
    );
}
