//! Limits on readings, names, tags and depth, and a time that is linear in the payload.

use std::time::{Duration, Instant};

use super::tests::{NOW, bare, ids, json, limits, line, only_reading, only_reject, run, run_with};
use super::*;

#[test]
fn more_readings_than_allowed_are_counted() {
    let mut limits = limits();
    limits.batch_max_readings = 3;
    let line = line();
    let cx = Context {
        sensor_id: Some("S"),
        ..bare(&limits, &line)
    };
    let items = [
        r#"{"v":1}"#,
        "{}",
        r#"{"v":2}"#,
        r#"{"v":3}"#,
        r#"{"v":4}"#,
        r#"{"v":"5},"}"#,
        "{}",
    ];
    for (format, payload) in [
        (Format::Json, format!("[{}]", items.join(", "))),
        (Format::Json, items.concat()),
        (Format::Json, items.join("\n")),
        (Format::Ndjson, items.join("\n")),
    ] {
        let (readings, rejects) = run_with(format, payload.as_bytes(), &cx);
        assert_eq!((readings.len(), rejects.total()), (3, 4), "{payload}");
        assert_eq!(
            rejects.by_reason(),
            [
                (RejectReason::NoValues, 1),
                (RejectReason::TooManyReadings, 3)
            ]
        );
        let last = &rejects.list()[1];
        assert_eq!(last.index, 4);
        assert!(last.detail.starts_with("3 readings"), "{}", last.detail);
    }
}

#[test]
fn too_many_field_names_in_a_batch_reject_the_reading() {
    let items: Vec<String> = (0..5000)
        .map(|i| format!(r#"{{"sensor_id":"S","f{i}":1}}"#))
        .collect();
    let (readings, rejects) = json(format!("[{}]", items.join(",")));
    // One name belongs to the reading that was in the batch before.
    assert_eq!(readings.len(), model::batch::NAMES_MAX - 1);
    assert_eq!(
        rejects[0],
        (readings.len(), RejectReason::TooManyFieldNames)
    );
}

#[test]
fn tags_that_do_not_fit_a_record_are_refused() {
    let mut limits = limits();
    (limits.string_max_bytes, limits.tags_max) = (16_384, 64);
    let line = line();
    let cx = Context {
        sensor_id: Some("S"),
        ..bare(&limits, &line)
    };
    let tags: Vec<String> = (0..4)
        .map(|i| format!(r#""t{i}":"{}""#, "x".repeat(16_384)))
        .collect();
    let payload = format!(r#"{{"v":1,"tags":{{{}}}}}"#, tags.join(","));
    let (readings, rejects) = run_with(Format::Json, payload.as_bytes(), &cx);
    assert_eq!(
        (readings.len(), rejects.list()[0].reason),
        (0, RejectReason::TagsTooLong)
    );
}

#[test]
fn deep_nesting_is_refused_everywhere() {
    let nest = |n: usize| "[".repeat(n) + &"]".repeat(n);
    let maps = |n: usize| "{\"a\":".repeat(n) + "1" + &"}".repeat(n);
    let reading = |inner: String| format!(r#"{{"sensor_id":"S1","v":1,"x":{inner}}}"#);
    assert_eq!(only_reading(reading(nest(126))).values.len(), 1);
    // The same depth is allowed in an array, and when parsed the exact way.
    assert_eq!(
        only_reading(format!("[{}]", reading(nest(126))))
            .values
            .len(),
        1
    );
    assert_eq!(
        only_reading(format!("[{}]", reading(nest(126)).replace(":1,", ":-0,")))
            .values
            .len(),
        1
    );
    for n in [127, 128, 129, 100_000] {
        for payload in [
            reading(nest(n)),
            reading(nest(n)).replace(":1,", ":-0,"),
            reading(maps(n)),
            format!(r#"{{"sensor_id":"S1","values":{{"v":{}}}}}"#, nest(n)),
            format!("[{}]", reading(nest(n))),
        ] {
            assert_eq!(only_reject(payload), RejectReason::TooDeep, "{n}");
        }
    }
    for payload in [
        "[".repeat(100_000),
        "[{\"\":".repeat(50_000),
        "{\"a\":".repeat(100_000),
    ] {
        assert_eq!(only_reject(payload), RejectReason::TooDeep);
    }
    let (readings, rejects) = json(format!(
        r#"[{{"sensor_id":"a","v":1}},{},{{"sensor_id":"b","v":1}}]"#,
        nest(100_000)
    ));
    assert_eq!(
        (ids(&readings), &rejects[..]),
        (vec!["a", "b"], &[(1, RejectReason::TooDeep)][..])
    );
}

/// Half a megabyte of the worst case for this code. Quadratic work would take a minute; linear work
/// takes a fraction of a second.
#[test]
fn hostile_payloads_take_linear_time() {
    const BYTES: usize = 512 << 10;
    let fill = |piece: &str| piece.repeat(BYTES / piece.len());
    let names: Vec<String> = (0..BYTES / 16)
        .map(|i| format!(r#"{{"f{i:08}":1}}"#))
        .collect();
    for (what, payload) in [
        ("brackets", fill("[")),
        ("scalars", format!("[{}1]", fill("1,"))),
        ("commas", format!("[{}]", fill(","))),
        ("empty objects", format!("[{}1]", fill("{},"))),
        ("glued objects", fill("{}")),
        ("unclosed objects", format!("[{}", fill("{\"a\":1,"))),
        ("unclosed strings", format!("[{}", fill("{\"a\":\"x,"))),
        (
            "minus zero and unclosed strings",
            format!("[{}", fill("{\"a\":-0,\"b\":\"x,")),
        ),
        (
            "escapes before a cut",
            format!("[{}", fill("{\"a\":\"x\\,")),
        ),
        (
            "nested unclosed",
            format!("[{}", fill("{\"a\": {\"a\": 1, ")),
        ),
        (
            "lists of objects unclosed",
            format!("[{}", fill("{\"a\":[1,1,1,")),
        ),
        ("closers", format!("[{}", fill("}"))),
        ("quotes", format!("[{}", fill("\""))),
        ("lines of a stream", fill("{\"a\":1\n")),
        ("text between objects", fill("{}x")),
        ("distinct names", format!("[{}]", names.join(","))),
        (
            "one object of many keys",
            format!(
                "{{{}\"z\":1}}",
                names
                    .iter()
                    .map(|n| n[1..n.len() - 1].to_owned() + ",")
                    .collect::<String>()
            ),
        ),
        ("a long number", format!("[{{\"a\":{}}}]", fill("1"))),
    ] {
        let start = Instant::now();
        for format in [Format::Json, Format::Ndjson] {
            let (readings, rejects) = run(format, &payload);
            assert!(
                readings.is_empty() && !rejects.is_empty() && rejects.len() <= KEPT_MAX,
                "{what}"
            );
        }
        let took = start.elapsed();
        println!("{what}: {took:?}");
        assert!(took < Duration::from_secs(10), "{what}: {took:?}");
    }
}

/// A builder that accepts `max` names of each sensor and bucket.
fn counting(max: usize) -> BatchBuilder {
    let mut out = BatchBuilder::new(64);
    out.guard(model::FieldLimiter::new(model::Span::HOUR).guard(max, NOW));
    out
}

#[test]
fn in_every_format_one_name_too_many_rejects_only_its_own_reading() {
    let limits = limits();
    let line = line();
    let of_topic = Context {
        sensor_id: Some("S"),
        field: Some("c"),
        ..bare(&limits, &line)
    };
    let lines = |separator: &str| {
        let reading = |name: &str| format!(r#"{{"sensor_id":"S","values":{{"{name}":1}}}}"#);
        ["a", "b", "c", "a"].map(reading).join(separator)
    };
    let cbor = |name: u8| [&[0xa1, 0x61, name, 0x01][..]].concat();
    let msgpack = |name: u8| [&[0x81, 0xa1, name, 0x01][..]].concat();
    let payloads: [(Format, Vec<u8>); 7] = [
        (Format::Json, format!("[{}]", lines(",")).into()),
        (Format::Ndjson, lines("\n").into()),
        (Format::Line, "m,sensor_id=S a=1\nm,sensor_id=S b=1\nm,sensor_id=S c=1\n\
            m,sensor_id=S a=2\n".into()),
        (Format::Cbor, [&[0x84][..], &cbor(b'a'), &cbor(b'b'), &cbor(b'c'), &cbor(b'a')].concat()),
        (Format::MessagePack, [&[0x94][..], &msgpack(b'a'), &msgpack(b'b'), &msgpack(b'c'), &msgpack(b'a')].concat()),
        (
            Format::Senml,
            r#"[{"n":"a","v":1,"t":-9},{"n":"b","v":1,"t":-8},{"n":"c","v":1,"t":-7},{"n":"a","v":1,"t":-6}]"#.into(),
        ),
        (Format::Scalar, "1".into()),
    ];
    for (format, payload) in payloads {
        let mut out = counting(2);
        let mut rejects = Rejects::new();
        let mut wanted = (3, 2);
        if format == Format::Scalar {
            for name in ["a", "b"] {
                out.value(name, model::ValueRef::Int(1)).unwrap();
                out.commit("S", NOW, false, &[]).unwrap();
            }
            wanted = (2, 0);
        }
        decode(format, &payload, &of_topic, &mut out, &mut rejects);
        let rejected: Vec<_> = rejects.list().iter().map(|r| (r.index, r.reason)).collect();
        assert_eq!(
            (out.finish().len(), &rejected[..]),
            (wanted.0, &[(wanted.1, RejectReason::BucketFields)][..]),
            "{format:?}"
        );
        assert!(
            rejects.list()[0]
                .detail
                .contains("limits.bucket_fields_max = 2"),
            "{:?}",
            rejects.list()
        );
    }
}

#[test]
fn lines_and_objects_read_the_fast_way_are_counted_too() {
    let limits = limits();
    let line = line();
    let cx = bare(&limits, &line);
    let lines = "m,sensor_id=S x=1\nm,sensor_id=T x=2\nm,sensor_id=U y=3\nm,sensor_id=U x=4\n\
        m,sensor_id=S x=5\n";
    let object =
        |id: &str, name: &str| format!(r#"{{"sensor_id":"{id}","values":{{"{name}":1.5}}}}"#);
    let objects = [("S", "x"), ("T", "x"), ("U", "y"), ("U", "x"), ("S", "x")]
        .map(|(id, name)| object(id, name));
    for (format, payload) in [
        (Format::Line, lines.to_owned()),
        (Format::Ndjson, objects.join("\n")),
    ] {
        let mut out = counting(1);
        let mut rejects = Rejects::new();
        decode(format, payload.as_bytes(), &cx, &mut out, &mut rejects);
        let rejected: Vec<_> = rejects.list().iter().map(|r| (r.index, r.reason)).collect();
        assert_eq!(
            (out.finish().len(), &rejected[..]),
            (4, &[(3, RejectReason::BucketFields)][..]),
            "{format:?}"
        );
    }
}
