//! The native format in CBOR and MessagePack: features that only these formats have, and hostile
//! input.

use crate::tests::{NOW, bare, limits, line};
use crate::{Format, RejectReason, Rejects, decode};
use model::{BatchBuilder, Reading, Value};

/// CBOR: a text of less than 24 bytes.
fn text(text: &str) -> Vec<u8> {
    [&[0x60 + text.len() as u8], text.as_bytes()].concat()
}

/// CBOR: a map of less than 24 pairs.
fn map(pairs: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = vec![0xa0 + pairs.len() as u8];
    for (key, value) in pairs {
        bytes.extend(text(key));
        bytes.extend(value);
    }
    bytes
}

/// CBOR: a reading of S1 with one value.
fn valued(value: &[u8]) -> Vec<u8> {
    map(&[
        ("sensor_id", text("S1")),
        ("values", map(&[("v", value.to_vec())])),
    ])
}

/// CBOR: a reading of S1 with a time.
fn timed(ts: &[u8]) -> Vec<u8> {
    map(&[
        ("ts", ts.to_vec()),
        ("sensor_id", text("S1")),
        ("v", vec![1]),
    ])
}

fn run(format: Format, payload: &[u8]) -> (Vec<Reading>, Vec<(usize, RejectReason)>) {
    let limits = limits();
    let line = line();
    let cx = bare(&limits, &line);
    let mut out = BatchBuilder::new(limits.fields_max);
    let mut rejects = Rejects::new();
    decode(format, payload, &cx, &mut out, &mut rejects);
    for reject in rejects.list() {
        assert!(reject.detail.len() < 300, "{reject:?}");
    }
    (
        out.finish().to_readings(),
        rejects.list().iter().map(|r| (r.index, r.reason)).collect(),
    )
}

fn cbor(payload: &[u8]) -> (Vec<Reading>, Vec<(usize, RejectReason)>) {
    run(Format::Cbor, payload)
}

fn only_value(value: &[u8]) -> Result<Value, RejectReason> {
    let (mut readings, rejects) = cbor(&valued(value));
    assert_eq!(readings.len() + rejects.len(), 1, "{value:x?}");
    readings
        .pop()
        .map(|mut r| r.values.remove("v").unwrap())
        .ok_or_else(|| rejects[0].1)
}

#[test]
fn values_that_only_cbor_has() {
    let half = [0xf9, 0x3e, 0x00];
    assert_eq!(only_value(&half), Ok(Value::Double(1.5)));
    assert_eq!(
        only_value(&[0xfa, 0x41, 0xac, 0, 0]),
        Ok(Value::Double(21.5))
    );
    assert_eq!(only_value(&[0x39, 0x03, 0xe7]), Ok(Value::Int(-1000)));
    assert_eq!(
        only_value(&[0xc1, 0x1a, 0x65, 0xe1, 0xb0, 0xa0]),
        Ok(Value::Int(0x65e1_b0a0)),
        "a tagged number"
    );
    // Integers beyond i64, plain and as bignums; bignums that fit are integers.
    let biggest = [0x1b, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
    assert_eq!(only_value(&biggest), Ok(Value::Int(i64::MAX)));
    let beyond = [0x1b, 0x80, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(only_value(&beyond), Err(RejectReason::IntegerOutOfRange));
    let smallest = [0x3b, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
    assert_eq!(only_value(&smallest), Ok(Value::Int(i64::MIN)));
    assert_eq!(
        only_value(&[0x3b, 0x80, 0, 0, 0, 0, 0, 0, 0]),
        Err(RejectReason::IntegerOutOfRange)
    );
    assert_eq!(only_value(&[0xc2, 0x43, 0, 1, 0]), Ok(Value::Int(256)));
    assert_eq!(only_value(&[0xc3, 0x42, 1, 0]), Ok(Value::Int(-257)));
    assert_eq!(
        only_value(&[&[0xc2, 0x49][..], &[1; 9]].concat()),
        Err(RejectReason::IntegerOutOfRange)
    );
    assert_eq!(
        only_value(&[&[0xc2, 0x54][..], &[1; 20]].concat()),
        Err(RejectReason::IntegerOutOfRange)
    );
    // 273.15 as a decimal fraction (RFC 8949 §3.4.4), its mantissa also as a bignum.
    assert_eq!(
        only_value(&[0xc4, 0x82, 0x21, 0x19, 0x6a, 0xb3]),
        Ok(Value::Double(273.15))
    );
    assert_eq!(
        only_value(&[0xc4, 0x82, 0x21, 0xc2, 0x42, 0x6a, 0xb3]),
        Ok(Value::Double(273.15))
    );
    assert_eq!(
        only_value(&[0xc4, 0x82, 0x19, 0x03, 0xe8, 0x01]),
        Err(RejectReason::NotFinite)
    );
    assert_eq!(
        only_value(&[0xc4, 0x81, 0x01]),
        Err(RejectReason::NestedValue)
    );
    // A text in chunks, and tags without a meaning here.
    let pieces = [&[0x7f][..], &text("a"), &text(""), &text("b"), &[0xff]].concat();
    assert_eq!(only_value(&pieces), Ok(Value::Str("ab".into())));
    assert_eq!(
        only_value(&[&[0xd8, 0x20][..], &text("x")].concat()),
        Ok(Value::Str("x".into()))
    );
    for (value, reason) in [
        (&[0xf9, 0x7c, 0][..], RejectReason::NotFinite),
        (&[0xf9, 0x7e, 0], RejectReason::NotFinite),
        (&[0xf6], RejectReason::NoValues),
        (&[0xf7], RejectReason::NoValues),
        (&[0x41, 7], RejectReason::NestedValue),
        (&[0x80], RejectReason::NoValues),
        (&[0xbf, 0xff], RejectReason::NoValues),
        (&[0xe0], RejectReason::NestedValue),
        (&[0x61, 0xff], RejectReason::InvalidUtf8),
        (&[0x7f, 0x41, 0x61, 0xff], RejectReason::InvalidCbor),
        (&[0x7f, 0x61, 0xff, 0xff], RejectReason::InvalidUtf8),
        (&[0xff], RejectReason::InvalidCbor),
    ] {
        assert_eq!(only_value(value), Err(reason), "{value:x?}");
    }
}

#[test]
fn times_with_an_explicit_unit() {
    let ts = |bytes: &[u8]| {
        let (readings, rejects) = cbor(&timed(bytes));
        readings
            .first()
            .map(|r| (r.ts_ms, r.receipt_time))
            .ok_or_else(|| rejects[0].1)
    };
    let seconds = (NOW / 1000) as u32;
    let as_int = [&[0x1a][..], &seconds.to_be_bytes()].concat();
    let as_double = [&[0xfb][..], &(NOW as f64 / 1000.0 - 0.25).to_be_bytes()].concat();
    let tag = |n: u8, bytes: &[u8]| [&[0xc0 + n][..], bytes].concat();
    assert_eq!(ts(&as_int), Ok((NOW, false)));
    assert_eq!(ts(&tag(1, &as_int)), Ok((NOW, false)));
    assert_eq!(ts(&tag(1, &as_double)), Ok((NOW - 250, false)));
    assert_eq!(
        ts(&tag(0, &[&[0x74][..], b"2024-03-01T11:00:00Z"].concat())),
        Ok((NOW, false))
    );
    // Small numbers are seconds because of their tag, not by magnitude: 1970 counts as an unset
    // clock.
    assert_eq!(ts(&tag(1, &[0])), Ok((NOW, true)));
    assert_eq!(
        ts(&tag(1, &[0x1a, 0x40, 0, 0, 0])),
        Err(RejectReason::TooOld)
    );
    assert_eq!(
        ts(&tag(1, &[0xf9, 0x7e, 0])),
        Err(RejectReason::BadTimestamp)
    );
    assert_eq!(ts(&[0x41, 1]), Err(RejectReason::BadTimestamp));
    assert_eq!(ts(&[0xf5]), Err(RejectReason::BadTimestamp));
    assert_eq!(ts(&[0xf6]), Ok((NOW, true)));
    // The tag overrides `ts_unit`.
    let unit = map(&[
        ("sensor_id", text("S1")),
        ("ts_unit", text("ms")),
        ("ts", tag(1, &as_int)),
        ("v", vec![1]),
    ]);
    assert_eq!(cbor(&unit).0[0].ts_ms, NOW);
    let unit = map(&[
        ("sensor_id", text("S1")),
        ("ts_unit", text("ms")),
        ("ts", as_int),
        ("v", vec![1]),
    ]);
    assert_eq!(cbor(&unit).1, [(0, RejectReason::TooOld)]);
}

#[test]
fn the_timestamps_of_messagepack() {
    let reading = |ts: &[u8]| {
        let payload = [&b"\x83\xa9sensor_id\xa2S1\xa2ts"[..], ts, b"\xa4seen", ts].concat();
        let (readings, rejects) = run(Format::MessagePack, &payload);
        assert_eq!(rejects, []);
        (readings[0].ts_ms, readings[0].values["seen"].clone())
    };
    let seconds = (NOW / 1000) as u64;
    let text = |text: &str| Value::Str(text.into());
    let short = [&[0xd6, 0xff][..], &(seconds as u32).to_be_bytes()].concat();
    assert_eq!(reading(&short), (NOW, text("2024-03-01T11:00:00.000Z")));
    let long = [
        &[0xd7, 0xff][..],
        &(7_900_000u64 << 34 | seconds).to_be_bytes(),
    ]
    .concat();
    assert_eq!(reading(&long), (NOW + 7, text("2024-03-01T11:00:00.007Z")));
    let longest = [
        &[0xc7, 12, 0xff, 0, 0, 0, 1][..],
        &(seconds - 1).to_be_bytes(),
    ]
    .concat();
    assert_eq!(
        reading(&longest),
        (NOW - 1000, text("2024-03-01T10:59:59.000Z"))
    );
    // A clock that started at 1970 is unset. (As a number of nanoseconds without its type this may
    // be another unit.)
    let unset = [&[0xd6, 0xff][..], &5u32.to_be_bytes()].concat();
    assert_eq!(reading(&unset), (NOW, text("1970-01-01T00:00:05.000Z")));
    // It carries its unit, so `ts_unit` does not apply.
    let unit = [
        &b"\x84\xa9sensor_id\xa2S1\xa7ts_unit\xa1s\xa1v\x01\xa2ts"[..],
        &short,
    ]
    .concat();
    assert_eq!(run(Format::MessagePack, &unit).0[0].ts_ms, NOW);
    // 3 * 10^17 seconds, beyond 64 bits of milliseconds.
    let far = [
        &[0xc7, 12, 0xff, 0, 0, 0, 0][..],
        &300_000_000_000_000_000i64.to_be_bytes(),
    ]
    .concat();
    let rejected = |key: &[u8]| {
        let payload = [&b"\x83\xa9sensor_id\xa2S1\xa1v\x01"[..], key, &far].concat();
        run(Format::MessagePack, &payload).1
    };
    assert_eq!(rejected(b"\xa2ts"), [(0, RejectReason::TooFarAhead)]);
    assert_eq!(rejected(b"\xa1w"), [(0, RejectReason::NestedValue)]);
    assert_eq!(
        rejected(b"\xa1t"),
        [(0, RejectReason::TooFarAhead)],
        "it is the time of a reading without `ts`"
    );
    // It is a time and not a text, so it is neither a sensor nor a unit.
    let named = |key: &[u8]| {
        run(
            Format::MessagePack,
            &[&b"\x82\xa1v\x01"[..], key, &short].concat(),
        )
        .1
    };
    assert_eq!(
        named(b"\xa9sensor_id"),
        [(0, RejectReason::SensorIdNotText)]
    );
    assert_eq!(named(b"\xa7ts_unit"), [(0, RejectReason::BadTimestamp)]);
}

#[test]
fn a_text_that_is_not_utf8_rejects_a_reading_that_uses_it() {
    let bad = || vec![0x61, 0xff];
    let id = ("sensor_id", text("S1"));
    for member in ["sensor_id", "ts", "ts_unit", "values", "tags", "v"] {
        let pairs = if member == "sensor_id" {
            vec![("v", vec![1])]
        } else {
            vec![id.clone()]
        };
        let mut pairs = pairs;
        pairs.push((member, bad()));
        assert_eq!(
            cbor(&map(&pairs)).1,
            [(0, RejectReason::InvalidUtf8)],
            "{member}"
        );
        // It is the first fault, as in JSON.
        pairs.extend([("x", vec![1]), ("x", vec![1])]);
        let expected = if member == "v" {
            RejectReason::DuplicateKey
        } else {
            RejectReason::InvalidUtf8
        };
        assert_eq!(cbor(&map(&pairs)).1, [(0, expected)], "{member}");
    }
    // Ignored, next to `values`.
    let ignored = map(&[
        id,
        ("a", bad()),
        ("values", map(&[("v", vec![1])])),
        ("b", bad()),
    ]);
    assert_eq!(cbor(&ignored).1, []);
}

#[test]
fn an_object_an_array_or_objects_one_after_another() {
    let good = valued(&[1]);
    let bad = valued(&[0xf6]);
    assert_eq!(cbor(&good).0.len(), 1);
    let (readings, rejects) = cbor(&[&[0x84][..], &good, &bad, &[0x07], &good].concat());
    assert_eq!(
        (readings.len(), rejects),
        (
            2,
            vec![(1, RejectReason::NoValues), (2, RejectReason::NotAnObject)]
        )
    );
    // Of indefinite length, and after the tag that marks CBOR.
    let open = [&[0xd9, 0xd9, 0xf7, 0x9f][..], &good, &good, &[0xff]].concat();
    assert_eq!(cbor(&open).0.len(), 2);
    // A sequence. Other data between its objects is one reject, such as the zeros of a buffer of
    // fixed size.
    let (readings, rejects) = cbor(&[&good[..], &good, &[0; 20], &good, &[0; 5]].concat());
    assert_eq!(
        (readings.len(), rejects),
        (
            3,
            vec![
                (2, RejectReason::TrailingData),
                (4, RejectReason::TrailingData)
            ]
        )
    );
    let (readings, rejects) = cbor(&[&[0x81][..], &good, &good].concat());
    assert_eq!(
        (readings.len(), rejects),
        (1, vec![(1, RejectReason::TrailingData)])
    );
    assert_eq!(cbor(&[0x80]), (vec![], vec![]));
    assert_eq!(cbor(&[]), (vec![], vec![(0, RejectReason::EmptyPayload)]));
    assert_eq!(
        cbor(&[0x07, 0x07]),
        (vec![], vec![(0, RejectReason::NotAnObject)])
    );
    assert_eq!(
        cbor(b"[{\"sensor_id\":\"S1\"}]").1,
        [(0, RejectReason::InvalidCbor)]
    );
    assert_eq!(
        run(Format::MessagePack, &[0xc1]).1,
        [(0, RejectReason::InvalidMsgpack)]
    );
}

#[test]
fn a_truncated_payload_keeps_its_complete_readings() {
    let good = valued(&[0x18, 42]);
    let payload = [&[0x83][..], &good, &good, &good].concat();
    for cut in 1..payload.len() {
        let (readings, rejects) = cbor(&payload[..cut]);
        assert_eq!(
            (readings.len(), &rejects[..]),
            (
                (cut - 1) / good.len(),
                &[((cut - 1) / good.len(), RejectReason::InvalidCbor)][..]
            )
        );
    }
}

#[test]
fn the_rules_of_the_native_shape() {
    let one = |pairs: &[(&str, Vec<u8>)]| cbor(&map(pairs));
    let id = ("sensor_id", text("S1"));
    for (pairs, reason) in [
        (vec![("v", vec![1])], RejectReason::MissingSensorId),
        (
            vec![("sensor_id", vec![7]), ("v", vec![1])],
            RejectReason::SensorIdNotText,
        ),
        (
            vec![("sensor_id", text("")), ("v", vec![1])],
            RejectReason::EmptySensorId,
        ),
        (
            vec![("sensor_id", vec![0x61, 0xff]), ("v", vec![1])],
            RejectReason::InvalidUtf8,
        ),
        (
            vec![id.clone(), ("v", vec![1]), ("v", vec![2])],
            RejectReason::DuplicateKey,
        ),
        (
            vec![id.clone(), ("a.b", vec![1]), ("a_b", vec![2])],
            RejectReason::DuplicateKey,
        ),
        (
            vec![id.clone(), ("values", vec![7])],
            RejectReason::WrongType,
        ),
        (
            vec![id.clone(), ("tags", vec![0x80]), ("v", vec![1])],
            RejectReason::WrongType,
        ),
        (
            vec![
                id.clone(),
                ("tags", map(&[("t", vec![0x80])])),
                ("v", vec![1]),
            ],
            RejectReason::NestedValue,
        ),
        (
            vec![id.clone(), ("ts_unit", text("y")), ("v", vec![1])],
            RejectReason::BadTimestamp,
        ),
        (
            vec![id.clone(), ("ts", text("never")), ("v", vec![1])],
            RejectReason::BadTimestamp,
        ),
        (vec![id.clone(), ("x", vec![0x80])], RejectReason::NoValues),
    ] {
        assert_eq!(one(&pairs), (vec![], vec![(0, reason)]), "{pairs:x?}");
    }
    // A key that is not a text.
    let numbered = [&[0xa2][..], &text("sensor_id"), &text("S1"), &[0x01, 0x01]].concat();
    assert_eq!(cbor(&numbered).1, [(0, RejectReason::WrongType)]);
    // Next to `values`, before it or after, other members are not values, and their faults do not
    // count.
    let (readings, rejects) = one(&[
        ("a", vec![0xf9, 0x7e, 0]),
        id.clone(),
        ("values", map(&[("v", vec![1])])),
        ("b", vec![0x41, 0]),
    ]);
    assert_eq!((readings[0].values.len(), rejects.len()), (1, 0));
    let tags = map(&[
        ("t", vec![0xf5]),
        ("n", vec![0x20]),
        ("f", vec![0xf9, 0x3c, 0]),
        ("x", vec![0xf6]),
    ]);
    let (readings, _) = one(&[id, ("tags", tags), ("values", vec![0xf6]), ("v", vec![1])]);
    let tags: Vec<_> = readings[0]
        .tags
        .iter()
        .map(|(k, v)| (k.as_str(), v.as_str()))
        .collect();
    assert_eq!(tags, [("f", "1.0"), ("n", "-1"), ("t", "true")]);
}

#[test]
fn deep_payloads_and_false_lengths_cost_little() {
    let good = valued(&[1]);
    let nested = |n: usize| [vec![0x81; n], vec![0x01]].concat();
    let within = |n: usize| map(&[("sensor_id", text("S1")), ("x", nested(n)), ("v", vec![1])]);
    let (readings, rejects) =
        cbor(&[&within(126)[..], &within(127), &within(60_000), &good].concat());
    assert_eq!(
        (readings.len(), rejects),
        (
            1,
            vec![
                (0, RejectReason::NameTooLong),
                (1, RejectReason::TooDeep),
                (2, RejectReason::TooDeep)
            ]
        )
    );
    let (readings, rejects) = cbor(&[&good[..], &within(100_000), &good].concat());
    assert_eq!(
        (readings.len(), rejects),
        (1, vec![(1, RejectReason::InvalidCbor)])
    );
    // Lengths beyond the end of the payload.
    let claims = [0x9b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
    assert_eq!(cbor(&claims).1, [(0, RejectReason::InvalidCbor)]);
    assert_eq!(
        only_value(&[&[0xbb][..], &claims[1..]].concat()),
        Err(RejectReason::InvalidCbor)
    );
    assert_eq!(
        run(Format::MessagePack, &[0xdd, 0xff, 0xff, 0xff, 0xff]).1,
        [(0, RejectReason::InvalidMsgpack)]
    );
    assert_eq!(
        cbor(&vec![0xc1; 1_000_000]).1,
        [(0, RejectReason::InvalidCbor)]
    );
    assert_eq!(
        cbor(&vec![0xa1; 1_000_000]).1,
        [(0, RejectReason::InvalidCbor)]
    );
}

#[test]
fn readings_beyond_the_limit_are_counted() {
    let mut limits = limits();
    limits.batch_max_readings = 2;
    let line = line();
    let cx = bare(&limits, &line);
    let mut out = BatchBuilder::new(8);
    let mut rejects = Rejects::new();
    let payload = [
        vec![0x85],
        valued(&[1]),
        vec![0x07],
        valued(&[1]),
        valued(&[1]),
        valued(&[1]),
    ]
    .concat();
    decode(Format::Cbor, &payload, &cx, &mut out, &mut rejects);
    assert_eq!((out.len(), rejects.total()), (2, 3));
    assert_eq!(
        rejects.by_reason(),
        [
            (RejectReason::NotAnObject, 1),
            (RejectReason::TooManyReadings, 2)
        ]
    );
}
