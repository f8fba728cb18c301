//! Bad input and its rejects, and good input next to it.

use super::tests::{ids, json, only_reject, run};
use super::*;

/// Each payload gives no reading, and one reject for this reason.
fn assert_rejected(cases: &[(&str, RejectReason)]) {
    for &(payload, reason) in cases {
        assert_eq!(
            only_reject(payload),
            reason,
            "{}",
            &payload[..payload.len().min(120)]
        );
    }
}

#[test]
fn text_that_is_not_an_object_in_json_is_rejected() {
    use RejectReason::*;
    assert_rejected(&[
        ("", EmptyPayload),
        (" \n ", EmptyPayload),
        ("\u{feff}", EmptyPayload),
        ("{", InvalidJson),
        (r#"{"a"#, InvalidJson),
        (r#"{"sensor_id":"S1","v":1"#, InvalidJson),
        (r#"{"sensor_id":"S1","v":1,}"#, InvalidJson),
        (r#"{'sensor_id':'S1','v':1}"#, InvalidJson),
        (r#"{"sensor_id":"S1","v":"\uDADA"}"#, InvalidJson),
        ("<sensor id=\"t1\"/>", InvalidJson),
        ("2024-02-29T12:34:56Z,t1,21.5", InvalidJson),
        (r#""21.5""#, NotAnObject),
        ("21.5", NotAnObject),
        ("null", NotAnObject),
        ("[1]", NotAnObject),
        ("[[]]", NotAnObject),
        ("[null]", NotAnObject),
        ("[NaN]", NotFinite),
    ]);
    for payload in [
        &b"{\"sensor_id\":\"\xE9\",\"v\":1}"[..],
        b"\xFF\xFE{\0\"\0",
        b"\xef\xbb{}",
        b"[\"\xe9\"]",
        b"\xa1ktemp\xfb@5\x80\0\0\0\0\0",
    ] {
        assert_eq!(only_reject(payload), InvalidUtf8, "{payload:?}");
    }
}

#[test]
fn a_reading_without_a_sensor_id_or_values_is_rejected() {
    use RejectReason::*;
    let long = format!(r#"{{"sensor_id":"{}","v":1}}"#, "s".repeat(257));
    assert_rejected(&[
        (r#"{"v":1}"#, MissingSensorId),
        (r#"{"sensor_id":null,"v":1}"#, MissingSensorId),
        (r#"{"sensor_id":"","v":1}"#, EmptySensorId),
        (r#"{"sensor_id":7,"v":1}"#, SensorIdNotText),
        (r#"{"sensor_id":["S1"],"v":1}"#, SensorIdNotText),
        (r#"{"sensor_id":"a\u0000b","v":1}"#, SensorIdHasNul),
        (&long, SensorIdTooLong),
        (r#"{"sensor_id":"S1"}"#, NoValues),
        (r#"{"sensor_id":"S1","values":{}}"#, NoValues),
        (r#"{"sensor_id":"S1","values":{"a":null},"b":1}"#, NoValues),
        (r#"{"sensor_id":"S1","values":{"a":{}}}"#, NoValues),
        (
            r#"{"sensor_id":"S1","v":1,"tags":{"a":{"b":1}}}"#,
            NestedValue,
        ),
        (r#"{"sensor_id":"S1","v":1,"tags":{"a":[]}}"#, NestedValue),
        (r#"{"sensor_id":"S1","values":[1]}"#, WrongType),
        (r#"{"sensor_id":"S1","values":1}"#, WrongType),
        (r#"{"sensor_id":"S1","v":1,"tags":"x"}"#, WrongType),
    ]);
}

#[test]
fn a_repeated_key_is_rejected() {
    use RejectReason::*;
    assert_rejected(&[
        (r#"{"sensor_id":"S1","v":1,"v":2}"#, DuplicateKey),
        (r#"{"sensor_id":"S1","v":1,"\u0076":1}"#, DuplicateKey),
        (r#"{"sensor_id":"S1","v":null,"v":2}"#, DuplicateKey),
        (r#"{"sensor_id":"S1","sensor_id":"S1","v":2}"#, DuplicateKey),
        (r#"{"sensor_id":"S1","v":1,"x":{},"x":[]}"#, DuplicateKey),
        (r#"{"sensor_id":"S1","values":{"a":1,"a":1}}"#, DuplicateKey),
        (
            r#"{"sensor_id":"S1","values":{"a":1},"values":{"b":1}}"#,
            DuplicateKey,
        ),
        (
            r#"{"sensor_id":"S1","values":{"a":1},"z":1,"z":1}"#,
            DuplicateKey,
        ),
        (
            r#"{"sensor_id":"S1","v":1,"tags":{"a":"1","a":"1"}}"#,
            DuplicateKey,
        ),
        (
            r#"{"sensor_id":"S1","v":1,"tags":{"a.b":"1","a_b":"1"}}"#,
            DuplicateKey,
        ),
        (r#"{"sensor_id":"S1","a.b":1,"a_b":1}"#, DuplicateKey),
        (r#"{"sensor_id":"S1","values":{"":1,"_":1}}"#, DuplicateKey),
        (r#"{"sensor_id":"S1","ts":1,"ts":1,"v":1}"#, DuplicateKey),
    ]);
}

#[test]
fn what_is_too_long_or_too_many_is_rejected() {
    use RejectReason::*;
    let s = |n| "s".repeat(n);
    let nulls = |n: usize| {
        (0..n)
            .map(|i| format!(r#""f{i}":null"#))
            .collect::<Vec<_>>()
            .join(",")
    };
    let fields = |n: usize| {
        (0..n)
            .map(|i| format!(r#""f{i}":{i}"#))
            .collect::<Vec<_>>()
            .join(",")
    };
    assert_rejected(&[
        (
            &format!(r#"{{"sensor_id":"S1","{}":1}}"#, s(129)),
            NameTooLong,
        ),
        (
            &format!(r#"{{"sensor_id":"S1","v":1,"tags":{{"{}":1}}}}"#, s(129)),
            NameTooLong,
        ),
        (
            &format!(r#"{{"sensor_id":"S1","v":"{}"}}"#, s(1025)),
            StringTooLong,
        ),
        (
            &format!(r#"{{"sensor_id":"S1","v":1,"tags":{{"a":"{}"}}}}"#, s(1025)),
            StringTooLong,
        ),
        (
            &format!(r#"{{"sensor_id":"S1","values":{{{}}}}}"#, fields(65)),
            TooManyFields,
        ),
        (
            &format!(r#"{{"sensor_id":"S1",{}}}"#, fields(65)),
            TooManyFields,
        ),
        (
            &format!(r#"{{"sensor_id":"S1","v":1,{}}}"#, nulls(600)),
            TooManyFields,
        ),
        (
            &format!(r#"{{"sensor_id":"S1","v":1,"tags":{{{}}}}}"#, fields(33)),
            TooManyTags,
        ),
    ]);
}

#[test]
fn a_time_that_is_bad_or_out_of_range_is_rejected() {
    use RejectReason::*;
    assert_rejected(&[
        (r#"{"sensor_id":"S1","v":1,"ts":true}"#, BadTimestamp),
        (r#"{"sensor_id":"S1","v":1,"ts":{"$date":1}}"#, BadTimestamp),
        (r#"{"sensor_id":"S1","v":1,"ts":"tomorrow"}"#, BadTimestamp),
        (r#"{"sensor_id":"S1","v":1,"ts":1e999}"#, BadTimestamp),
        (
            r#"{"sensor_id":"S1","v":1,"ts":5,"ts_unit":"h"}"#,
            BadTimestamp,
        ),
        (r#"{"sensor_id":"S1","v":1,"ts":1000000000}"#, TooOld),
        (
            r#"{"sensor_id":"S1","v":1,"ts":"2001-01-01T00:00:00Z"}"#,
            TooOld,
        ),
        (
            r#"{"sensor_id":"S1","v":1,"ts":"2099-01-01T00:00:00Z"}"#,
            TooFarAhead,
        ),
        (
            r#"{"sensor_id":"S1","v":1,"ts":99999999999999999999}"#,
            TooFarAhead,
        ),
    ]);
}

#[test]
fn good_neighbours_are_kept() {
    use RejectReason::*;
    let a = r#"{"sensor_id":"a","v":1}"#;
    let b = r#"{"sensor_id":"b","v":1}"#;
    let c = r#"{"sensor_id":"c","v":1}"#;
    for (bad, reason) in [
        (r#"{"sensor_id":"x","v":NaN}"#, Some(NotFinite)),
        (r#"{"sensor_id":"x","v":1"#, Some(InvalidJson)),
        (r#"{"sensor_id":"x","values":{"v":1"#, Some(InvalidJson)),
        (r#"{"sensor_id":"x","v":"cut"#, Some(InvalidJson)),
        (r#"{"sensor_id":"x","v"#, Some(InvalidJson)),
        (r#"{"sensor_id":"x","v":"#, Some(InvalidJson)),
        (r#"{"sensor_id":"x","v":tru"#, Some(InvalidJson)),
        (r#"{"sensor_id":"x" "v":1}"#, Some(InvalidJson)),
        (r#"{"sensor_id":"x","v":1}}"#, Some(InvalidJson)),
        (r#"{"sensor_id":"x","v":"],[{"}"#, None),
        (r#"{"#, Some(InvalidJson)),
        ("xyz", Some(InvalidJson)),
        ("1 2", Some(InvalidJson)),
    ] {
        let Some(reason) = reason else {
            assert_eq!(json(format!("[{a},{bad},{b}]")).0.len(), 3);
            continue;
        };
        let array = format!("[{a},{bad},{b},{bad},{c}]");
        let (readings, rejects) = json(&array);
        let expected = [(1, reason), (3, reason)];
        assert_eq!(
            (ids(&readings), &rejects[..]),
            (vec!["a", "b", "c"], &expected[..]),
            "{array}"
        );
        let (readings, rejects) = run(Format::Ndjson, [a, bad, b, bad, c].join("\n"));
        assert_eq!(
            (ids(&readings), &rejects[..]),
            (vec!["a", "b", "c"], &expected[..]),
            "{bad}"
        );
        // Also at the end, where the array's own bracket may be missing.
        for end in ["]", ""] {
            let (readings, rejects) = json(format!("[{a},{b},{bad}{end}"));
            assert_eq!(
                (ids(&readings), rejects[0]),
                (vec!["a", "b"], (2, reason)),
                "{bad}{end}"
            );
        }
    }
    assert_eq!(json(format!("[{a},{b}")).1, [(2, InvalidJson)]);
    assert_eq!(json(format!("[{a},{b},")).1, [(2, InvalidJson)]);
    assert_eq!(json(format!("[{a},,{b}]")).1, [(1, InvalidJson)]);
    assert_eq!(json(format!("[{a},{b}]x")).1, [(2, TrailingData)]);
    assert_eq!(json(format!("[{a}][{b}]")).1, [(1, TrailingData)]);
    assert_eq!(json(format!("{a}x")).1, [(1, TrailingData)]);
    let (readings, rejects) = json(format!(
        "{a}\nxyz\n{b}\n{{\"sensor_id\":\"x\",\"v\":1\n{c}\n"
    ));
    assert_eq!(
        (ids(&readings), &rejects[..]),
        (
            vec!["a", "b", "c"],
            &[(1, TrailingData), (3, InvalidJson)][..]
        )
    );
    let bytes = [
        format!("[{a},").as_bytes(),
        b"{\"sensor_id\":\"\xE9\",\"v\":1},",
        b.as_bytes(),
        b"]",
    ]
    .concat();
    let (readings, rejects) = json(bytes);
    assert_eq!(
        (ids(&readings), &rejects[..]),
        (vec!["a", "b"], &[(1, InvalidUtf8)][..])
    );
}

/// As `jq` prints it, and as most libraries do with an indent.
#[test]
fn a_document_over_several_lines_sent_as_ndjson_is_one_error() {
    let pretty = "{\n  \"sensor_id\": \"a\",\n  \"temp\": 1\n}\n";
    let one = "{\"sensor_id\":\"b\",\"temp\":2}\n";
    let array = "[\n  {\n    \"sensor_id\": \"c\",\n    \"temp\": 3\n  }\n]\n";
    let run = |payload: &str| {
        let limits = super::tests::limits();
        let line = super::tests::line();
        let cx = super::tests::bare(&limits, &line);
        super::tests::run_with(Format::Ndjson, payload.as_bytes(), &cx)
    };
    for (payload, found, rejected) in [
        (pretty.to_owned(), &[][..], 1),
        ([pretty, pretty].concat(), &[], 2),
        ([one, pretty, one, array, one].concat(), &["b"; 3], 2),
    ] {
        let (readings, rejects) = run(&payload);
        assert_eq!(ids(&readings), found, "{payload}");
        let [reject] = rejects.list() else {
            panic!("{payload}: {:?}", rejects.list());
        };
        assert_eq!(
            (reject.reason, rejects.total()),
            (RejectReason::InvalidJson, rejected)
        );
        assert!(
            reject.detail.contains("several lines") && reject.detail.contains("application/json"),
            "{}",
            reject.detail
        );
    }
    // Neither is an object with a comma after it, and lines that are cut are no document.
    let (readings, rejects) = run(&[one.trim_end(), ",\n", one].concat());
    assert_eq!((ids(&readings), rejects.total()), (vec!["b"], 1));
    assert!(!rejects.list()[0].detail.contains("several lines"));
    let cut = ["{\"sensor_id\":\"a\",\n", one, "{\n", one, "[\n", one].concat();
    let (readings, rejects) = run(&cut);
    assert_eq!(
        (ids(&readings), rejects.list().len(), rejects.total()),
        (vec!["b"; 3], 3, 3)
    );
}

/// Files that were written by editors and then joined.
#[test]
fn a_byte_order_mark_before_a_later_reading_is_skipped() {
    let one = "\u{feff}{\"sensor_id\":\"u\",\"temp\":21.5}";
    let lines = [one, "\r\n", one, "\n\u{feff}\n", one, "\n"].concat();
    for format in [Format::Ndjson, Format::Json] {
        let (readings, rejects) = run(format, &lines);
        assert_eq!((ids(&readings), rejects), (vec!["u"; 3], vec![]));
    }
    let line = "\u{feff}m,sensor_id=u v=1\n";
    let (readings, rejects) = run(Format::Line, [line, "\u{feff}# no\n", line].concat());
    assert_eq!((ids(&readings), rejects), (vec!["u"; 2], vec![]));
}
