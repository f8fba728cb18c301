//! The syntax, line by line, and the rejects of bad lines.

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::tests::{limits, line};
use crate::{Format, TsUnit, decode};
use config::{Limits, Line};
use model::{Reading, Value};

/// 2024-03-01T11:00:00Z
const NOW: i64 = 1_709_290_800_000;

fn run_with(
    payload: &[u8],
    limits: &Limits,
    line: &Line,
    ts_unit: Option<TsUnit>,
) -> (Vec<Reading>, Rejects) {
    let cx = Context {
        limits,
        line,
        received_at_ms: NOW,
        ts_unit,
        sensor_id: None,
        field: None,
        tags: &[],
        ..Context::usual()
    };
    let mut out = BatchBuilder::new(limits.fields_max);
    let mut rejects = Rejects::new();
    decode(Format::Line, payload, &cx, &mut out, &mut rejects);
    for reject in rejects.list() {
        assert!(
            reject
                .detail
                .starts_with(&format!("line {}: ", reject.index + 1)),
            "{reject:?}"
        );
        assert!(reject.detail.len() < 500, "{reject:?}");
    }
    (out.finish().to_readings(), rejects)
}

fn wide() -> Limits {
    let ever = Duration::from_secs(400 * 365 * 86_400);
    Limits {
        past: ever,
        future: ever,
        ..limits()
    }
}

fn run(payload: impl AsRef<[u8]>) -> (Vec<Reading>, Vec<(usize, RejectReason)>) {
    let (readings, rejects) = run_with(payload.as_ref(), &wide(), &line(), Some(TsUnit::Ns));
    (
        readings,
        rejects.list().iter().map(|r| (r.index, r.reason)).collect(),
    )
}

fn only(payload: &str) -> Reading {
    let (mut readings, rejects) = run(payload);
    assert_eq!((readings.len(), &rejects[..]), (1, &[][..]), "{payload}");
    readings.remove(0)
}

fn pairs(map: &BTreeMap<String, String>) -> Vec<(&str, &str)> {
    map.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect()
}

#[test]
fn values() {
    let text = |t: &str| Value::Str(t.into());
    for (literal, value) in [
        ("1", Value::Double(1.0)),
        ("1.0", Value::Double(1.0)),
        ("-0", Value::Double(-0.0)),
        (".5", Value::Double(0.5)),
        ("5.", Value::Double(5.0)),
        ("-1.234456e+78", Value::Double(-1.234_456e78)),
        ("-1.234456E06", Value::Double(-1_234_456.0)),
        ("1e-400", Value::Double(0.0)),
        ("58.1317132304976170", Value::Double(58.131_713_230_497_62)),
        ("23i", Value::Int(23)),
        ("-5i", Value::Int(-5)),
        ("9223372036854775807i", Value::Int(i64::MAX)),
        ("-9223372036854775808i", Value::Int(i64::MIN)),
        ("12485903u", Value::Int(12_485_903)),
        ("9223372036854775807u", Value::Int(i64::MAX)),
        ("t", Value::Bool(true)),
        ("T", Value::Bool(true)),
        ("true", Value::Bool(true)),
        ("True", Value::Bool(true)),
        ("TRUE", Value::Bool(true)),
        ("f", Value::Bool(false)),
        ("F", Value::Bool(false)),
        ("false", Value::Bool(false)),
        ("False", Value::Bool(false)),
        ("FALSE", Value::Bool(false)),
        ("\"42\"", text("42")),
        ("\"\"", text("")),
        (r#""a, b=c d""#, text("a, b=c d")),
        (r#""\"x\" within""#, text("\"x\" within")),
        (r#""C:\dir\\n""#, text(r"C:\dir\n")),
        (r#""too hot\\\\\cold""#, text(r"too hot\\\cold")),
        ("\"4\n2\"", text("4\n2")),
        ("\"# no comment\"", text("# no comment")),
    ] {
        for line in [
            format!("m f={literal}"),
            format!("m f={literal} 1"),
            format!("m f={literal}\r\n"),
            format!("m f={literal},z=1 1"),
        ] {
            assert_eq!(
                format!("{:?}", only(&line).values["f"]),
                format!("{value:?}"),
                "{line}"
            );
        }
    }
}

#[test]
fn names_and_their_escapes() {
    for (line, id, tags) in [
        ("cpu v=1", "cpu", vec![]),
        (r"my\ cpu v=1", "my cpu", vec![]),
        (r"a\,b\=c v=1", r"a\,b\\\=c", vec![]),
        (r"a=b v=1", r"a\=b", vec![]),
        (
            "cpu,host=a,cpu=cpu0 v=1",
            "cpu,cpu=cpu0,host=a",
            vec![("cpu", "cpu0"), ("host", "a")],
        ),
        (
            r"cpu,ho\=st=localhost v=1",
            r"cpu,ho\=st=localhost",
            vec![("ho=st", "localhost")],
        ),
        (
            r"cpu,ho\st=localhost v=1",
            r"cpu,ho\\st=localhost",
            vec![(r"ho\st", "localhost")],
        ),
        (
            r"cpu,host=two\\\ words v=1",
            r"cpu,host=two\\\\ words",
            vec![("host", r"two\\ words")],
        ),
        (
            r"cpu,fo\ o=ba\,r v=1",
            r"cpu,fo o=ba\,r",
            vec![("fo o", "ba,r")],
        ),
        ("cpu,k=a=b v=1", r"cpu,k=a\=b", vec![("k", "a=b")]),
        (
            "cpu,a.b=1,$c=2,ts=3 v=1",
            "cpu,$c=2,a.b=1,ts=3",
            vec![("_c", "2"), ("_ts", "3"), ("a_b", "1")],
        ),
        (
            "cpu,k=\u{1F36D} v=1",
            "cpu,k=\u{1F36D}",
            vec![("k", "\u{1F36D}")],
        ),
        (r#"cpu,k="x" v=1"#, r#"cpu,k="x""#, vec![("k", "\"x\"")]),
    ] {
        let reading = only(line);
        assert_eq!(
            (reading.sensor_id.as_str(), pairs(&reading.tags)),
            (id, tags),
            "{line}"
        );
    }
    let fields = only(r#"m va\ lue=1,a\,b=2,c\=d=3,e\f=4,"g"=5,h.i=6,ts=7"#);
    let names: Vec<&str> = fields.values.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        ["\"g\"", "_ts", "a,b", "c=d", r"e\f", "h_i", "va lue"]
    );
}

#[test]
fn the_sensor_is_a_tag_the_topics_or_the_series() {
    let host = Line {
        sensor_id_tag: "host".into(),
        field_prefix: false,
    };
    let limits = wide();
    let decoded = |payload: &str, sensor_id: Option<&str>, line: &Line| {
        let tags = [("site", "north")];
        let cx = Context {
            limits: &limits,
            line,
            received_at_ms: NOW,
            ts_unit: None,
            sensor_id,
            field: None,
            tags: &tags,
            ..Context::usual()
        };
        let mut out = BatchBuilder::new(64);
        let mut rejects = Rejects::new();
        decode(
            Format::Line,
            payload.as_bytes(),
            &cx,
            &mut out,
            &mut rejects,
        );
        (out.finish().to_readings(), rejects)
    };
    for (payload, topic, id, tags) in [
        (
            "cpu,host=a,cpu=1 v=1",
            None,
            "a",
            vec![("cpu", "1"), ("site", "north")],
        ),
        (
            "cpu,cpu=1,host=a v=1",
            Some("T"),
            "a",
            vec![("cpu", "1"), ("site", "north")],
        ),
        (
            "cpu,cpu=1 v=1",
            Some("T"),
            "T",
            vec![("cpu", "1"), ("site", "north")],
        ),
        (
            "cpu,site=south v=1",
            None,
            "cpu,site=south",
            vec![("site", "south")],
        ),
    ] {
        let (readings, _) = decoded(payload, topic, &host);
        assert_eq!(
            (readings[0].sensor_id.as_str(), pairs(&readings[0].tags)),
            (id, tags),
            "{payload}"
        );
    }
    assert_eq!(
        decoded("cpu,host=a,host=b v=1", None, &host).1.list()[0].reason,
        RejectReason::DuplicateKey
    );
    assert_eq!(
        decoded("cpu v=1", Some(""), &host).1.list()[0].reason,
        RejectReason::EmptySensorId
    );
    let long = format!("cpu,a={0},b={0} v=1", "x".repeat(200));
    let reject = &decoded(&long, None, &host).1.list()[0].clone();
    assert!(
        reject.reason == RejectReason::SensorIdTooLong
            && reject.detail.contains("line.sensor_id_tag"),
        "{reject:?}"
    );

    let prefixed = Line {
        field_prefix: true,
        ..host
    };
    let (readings, _) = decoded(
        "disk,host=a used=1,free=2\nmem,host=a used=3\nm\\ x.y,host=a z=1",
        None,
        &prefixed,
    );
    let names: Vec<Vec<&String>> = readings.iter().map(|r| r.values.keys().collect()).collect();
    assert_eq!(
        names,
        [
            vec!["disk_free", "disk_used"],
            vec!["mem_used"],
            vec!["m x_y_z"]
        ]
    );
    assert_eq!(only("cpu,sensor_id=S1,site=n v=1").sensor_id, "S1");
}

#[test]
fn two_series_are_never_one_sensor() {
    let lines = [
        r"m,a=b v=1",
        r"m\,a\=b v=1",
        r"m\,a=b v=1",
        r"m,a\=b=c v=1",
        r"m,a=b\=c v=1",
        r"m,a=b\,c\=d v=1",
        r"m,a=b,c=d v=1",
        r"m,a=b\,c=d v=1",
        r"m,a=b\\,c=d v=1",
    ];
    let ids: std::collections::BTreeSet<String> =
        lines.iter().map(|line| only(line).sensor_id).collect();
    assert_eq!(
        ids.len(),
        lines.len() - 1,
        "only `b\\=c` and `b=c` are the same value: {ids:?}"
    );
    assert_eq!(only(lines[4]).sensor_id, only(r"m,a=b=c v=1").sensor_id);
    assert_eq!(
        only("m,b=2,a=1 v=1").sensor_id,
        only("m,a=1,b=2 v=1").sensor_id
    );
}

#[test]
fn times_and_their_units() {
    let at = |payload: &str, unit| {
        let (readings, rejects) = run_with(payload.as_bytes(), &wide(), &line(), unit);
        assert!(rejects.is_empty(), "{payload} {rejects:?}");
        readings[0].ts_ms
    };
    for (time, unit, ms) in [
        ("1556813561098000000", TsUnit::Ns, 1_556_813_561_098),
        ("1234", TsUnit::Ns, 0),
        ("-123", TsUnit::Ns, -1),
        ("1234567890123123", TsUnit::Us, 1_234_567_890_123),
        ("1234567890123", TsUnit::Ms, 1_234_567_890_123),
        ("1735545600", TsUnit::S, 1_735_545_600_000),
        ("28488180", TsUnit::Minute, 1_709_290_800_000),
        ("474803", TsUnit::Hour, 1_709_290_800_000),
    ] {
        assert_eq!(at(&format!("m v=1 {time}"), Some(unit)), ms, "{time}");
    }
    for (time, ms) in [
        ("4999999999", 4_999_999_999_000),
        ("5000000000", 5_000_000_000),
        ("-4999999999", -4_999_999_999_000),
        ("1709290800000", NOW),
        ("4999999999999", 4_999_999_999_999),
        ("5000000000000", 5_000_000_000),
        ("1709290800000000", NOW),
        ("4999999999999999", 4_999_999_999_999),
        ("5000000000000000", 5_000_000_000),
        ("1709290800000000000", NOW),
    ] {
        assert_eq!(
            at(&format!("m v=1 {time}"), None),
            ms,
            "{time} by magnitude"
        );
    }
    let reading = only("m v=1");
    assert!(reading.receipt_time && reading.ts_ms == NOW && !only("m v=1 1").receipt_time);
    for time in [
        "1.5",
        "1e9",
        "x",
        "0x10",
        "99999999999999999999",
        "1i",
        "\"1\"",
        "+",
    ] {
        assert_eq!(
            run(format!("m v=1 {time}")).1,
            [(0, RejectReason::BadTimestamp)],
            "{time}"
        );
    }
    let (readings, rejects) = run_with(
        b"m v=1 1\nm v=1 4709290800000000000",
        &limits(),
        &line(),
        Some(TsUnit::Ns),
    );
    let reasons: Vec<_> = rejects.list().iter().map(|r| r.reason).collect();
    assert_eq!(
        (readings.len(), &reasons[..]),
        (0, &[RejectReason::TooOld, RejectReason::TooFarAhead][..])
    );
}

#[test]
fn blanks_comments_and_line_ends() {
    for payload in [
        "",
        "\n\n\n",
        "# nothing\n  # here\r\n\t\r\n",
        "\u{feff}",
        "\0",
        "   ",
    ] {
        assert_eq!(run(payload), (vec![], vec![]), "{payload:?}");
    }
    let payload =
        "\u{feff}# \"comment\nm v=1 1\r\n\r\n  m   v=2   2  \n\tm v=3 3\t\n#m v=9 9\nm v=4 4\n\0";
    let (readings, rejects) = run(payload);
    let values: Vec<_> = readings.iter().map(|r| &r.values["v"]).collect();
    assert_eq!(
        values,
        [1.0, 2.0, 3.0, 4.0]
            .map(Value::Double)
            .iter()
            .collect::<Vec<_>>()
    );
    assert_eq!(rejects, []);
}

#[test]
fn bad_lines_and_what_they_get() {
    use RejectReason::*;
    let many = |n: usize| {
        (0..n)
            .map(|i| format!("f{i}=1"))
            .collect::<Vec<_>>()
            .join(",")
    };
    let table = [
        ("cpu", InvalidLine),
        ("cpu ", InvalidLine),
        ("cpu,host=a", InvalidLine),
        (",host=a v=1", InvalidLine),
        ("cpu, v=1", InvalidLine),
        ("cpu,host v=1", InvalidLine),
        ("cpu,host= v=1", InvalidLine),
        ("cpu,=a v=1", InvalidLine),
        ("cpu,a=1,,b=2 v=1", InvalidLine),
        ("cpu v", InvalidLine),
        ("cpu v=", InvalidLine),
        ("cpu =1", InvalidLine),
        ("cpu v=1,", InvalidLine),
        ("cpu v=1, w=2", InvalidLine),
        ("cpu v=abc", InvalidLine),
        ("cpu v=1x", InvalidLine),
        ("cpu v=1.5i", InvalidLine),
        ("cpu v=i", InvalidLine),
        ("cpu v=-i", InvalidLine),
        ("cpu v=-1u", InvalidLine),
        ("cpu v=-1.234456e+", InvalidLine),
        ("cpu v=.", InvalidLine),
        ("cpu v=0x10", InvalidLine),
        ("cpu v=tRUE", InvalidLine),
        ("cpu v=null", InvalidLine),
        ("cpu v=\"x", InvalidLine),
        ("cpu v=\"x\"y", InvalidLine),
        ("cpu v=\"x\\\"", InvalidLine),
        ("cpu v=1 1 2", InvalidLine),
        ("cpu v=nan", NotFinite),
        ("cpu v=NaN", NotFinite),
        ("cpu v=-Inf", NotFinite),
        ("cpu v=+Infinity", NotFinite),
        ("cpu v=1e999", NotFinite),
        ("cpu v=99999999999999999999999999999999i", IntegerOutOfRange),
        ("cpu v=18446744073709551615u", IntegerOutOfRange),
        ("cpu v=9223372036854775808u", IntegerOutOfRange),
        ("cpu v=1,v=2", DuplicateKey),
        ("cpu,a=1,a=2 v=1", DuplicateKey),
        ("cpu,b=0,a=1,b=2 v=1", DuplicateKey),
        ("cpu,a.b=1,a_b=2 v=1", DuplicateKey),
        ("cpu a.b=1,a_b=2", DuplicateKey),
    ];
    let long = |n| "s".repeat(n);
    let longer = [
        (format!("cpu {}", many(65)), TooManyFields),
        (format!("cpu,{} v=1", many(33)), TooManyTags),
        (format!("cpu {}=1", long(129)), NameTooLong),
        (format!("cpu,{}=1 v=1", long(129)), NameTooLong),
        (format!("cpu v=\"{}\"", long(1025)), StringTooLong),
        (
            format!("cpu,sensor_id=S,a={} v=1", long(1025)),
            StringTooLong,
        ),
        (format!("{} v=1", long(257)), SensorIdTooLong),
        ("c\0pu v=1".to_owned(), SensorIdHasNul),
    ];
    let table = table
        .iter()
        .map(|(line, reason)| ((*line).to_owned(), *reason))
        .chain(longer);
    for (line, reason) in table {
        let (readings, rejects) = run(&line);
        assert_eq!(
            (readings.len(), &rejects[..]),
            (0, &[(0, reason)][..]),
            "{line}"
        );
        // It does not affect its neighbours or their line numbers.
        let (readings, rejects) = run(format!(
            "a v=1 1\r\n\n{line}\nb v=1,s=\"2\n3\" 2\r\n{line}\nc v=3"
        ));
        let ids: Vec<&str> = readings.iter().map(|r| r.sensor_id.as_str()).collect();
        assert_eq!(
            (ids, &rejects[..]),
            (vec!["a", "b", "c"], &[(2, reason), (5, reason)][..]),
            "{line}"
        );
    }
}

/// Home Assistant sends lists of effects, and addresses of pictures.
#[test]
fn a_text_that_is_too_long_is_left_out_and_the_rest_of_its_line_is_kept() {
    let long = "s".repeat(1025);
    let line = |v: i64| format!("light,sensor_id=l v={v},effects=\"{long}\",on=true\n");
    let short = "light,sensor_id=l v=4,effects=\"none\",on=true\n";
    let payload = [line(1), line(2), short.to_owned(), line(3)].concat();
    let (readings, rejects) = run_with(payload.as_bytes(), &wide(), &crate::tests::line(), None);
    let fields: Vec<usize> = readings.iter().map(|r| r.values.len()).collect();
    assert_eq!((fields, rejects.total()), (vec![2, 2, 3, 2], 0));
    assert_eq!(readings[3].values["v"], Value::Double(3.0));
    assert_eq!(
        (rejects.left_out().total(), rejects.left_out().names()),
        (3, &["effects".to_owned()][..])
    );
    // What a rejected line leaves out does not count.
    let bad = format!("a v=1,x=\"{long}\",v=2\n");
    let (readings, rejects) = run_with(bad.as_bytes(), &wide(), &crate::tests::line(), None);
    assert_eq!((readings.len(), rejects.total()), (0, 1));
    assert_eq!(rejects.left_out().total(), 0);
}

#[test]
fn a_multi_line_text_belongs_to_its_line_even_if_that_is_bad() {
    // The content of the text must not become a separate reading.
    let (readings, rejects) = run("log bad=x,msg=\"one\ncpu v=1 1\ntwo\",n=2 5\nb v=1");
    assert_eq!((readings.len(), readings[0].sensor_id.as_str()), (1, "b"));
    assert_eq!(rejects, [(0, RejectReason::InvalidLine)]);
    // An unclosed quote rejects its line, but not the next one.
    let (readings, rejects) = run("a v=\"x\nb s=\"y\"\nc v=\"z");
    assert_eq!((readings.len(), readings[0].sensor_id.as_str()), (1, "b"));
    assert_eq!(
        rejects,
        [
            (0, RejectReason::InvalidLine),
            (2, RejectReason::InvalidLine)
        ]
    );
}

#[test]
fn a_line_that_is_not_utf8_is_rejected_alone() {
    let (readings, rejects) =
        run(b"a v=1\nb,t=\xff v=1\nc s=\"\xe9\",v=1\n# \xff\nd s=\"\xc3\xa9\"\n\xff\n");
    let ids: Vec<&str> = readings.iter().map(|r| r.sensor_id.as_str()).collect();
    assert_eq!(
        (ids, readings[1].values["s"].clone()),
        (vec!["a", "d"], Value::Str("é".into()))
    );
    assert_eq!(
        rejects,
        [
            (1, RejectReason::InvalidUtf8),
            (2, RejectReason::InvalidUtf8),
            (5, RejectReason::InvalidLine)
        ]
    );
}

#[test]
fn readings_beyond_the_limit_of_a_payload_are_counted() {
    let limits = Limits {
        batch_max_readings: 2,
        ..wide()
    };
    let (readings, rejects) = run_with(
        b"a v=1\nbad\nb v=1\n# c\nc v=\"1\n2\"\nd\ne v=1",
        &limits,
        &line(),
        None,
    );
    assert_eq!((readings.len(), rejects.total()), (2, 4));
    let list: Vec<_> = rejects.list().iter().map(|r| (r.index, r.reason)).collect();
    assert_eq!(
        list,
        [
            (1, RejectReason::InvalidLine),
            (4, RejectReason::TooManyReadings)
        ]
    );
}

#[test]
fn lines_are_quoted_by_their_number() {
    let payload = b"zero\none\r\n\nthree \xff\nfour";
    let quoted = quote_lines(payload, [1, 3, 4, 9].into_iter(), 7);
    assert_eq!(quoted, ["one", "three \u{FFFD}", "four", ""]);
    assert_eq!(quote_lines("üüüü".as_bytes(), [0].into_iter(), 3), ["üüü"]);
}

/// Half a megabyte of the worst case for this code. Quadratic work would take a minute; linear work
/// takes a fraction of a second.
#[test]
fn hostile_payloads_take_linear_time() {
    let fill = |piece: &str| piece.repeat((512 << 10) / piece.len());
    for (what, payload) in [
        ("lines without fields", fill("a\n")),
        ("texts that are not closed", fill("a b=\"\n")),
        (
            "texts that are not closed, behind escapes",
            fill("a b=\"\\\n"),
        ),
        ("texts that end where another begins", fill("a b=\"x\nc\n")),
        (
            "lines with a text behind a fault",
            fill("a b=x,c=\"y\",d=\"\n"),
        ),
        ("one line of many fields", format!("a {}b=1", fill("b=1,"))),
        ("one line of many tags", format!("a{} b=1", fill(",b=1"))),
        ("one line of escapes", format!("a {}", fill("\\ "))),
        ("one text", format!("a b=\"{}", fill("\n"))),
    ] {
        let start = std::time::Instant::now();
        let (readings, rejects) = run_with(payload.as_bytes(), &limits(), &line(), None);
        assert!(!readings.is_empty() || !rejects.is_empty(), "{what}");
        let took = start.elapsed();
        println!("{what}: {took:?}");
        assert!(took < Duration::from_secs(10), "{what}: {took:?}");
    }
}
