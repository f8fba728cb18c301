//! The native format: nested values, the members that may be the time, and omitted members.

use super::tests::{NOW, bare, limits, line};
use super::*;
use config::{Native, Nested};
use model::{Reading, Value};

const TASMOTA: &str = r#"{"Time":"2024-03-01T10:00:00","ENERGY":{"TotalStartTime":"2023-01-01T00:00:00","Total":[1.5,2],"Power":71,"Period":null},"TempUnit":"C"}"#;

fn run(format: Format, payload: &[u8], cx: &Context<'_>) -> (Vec<Reading>, Rejects, usize) {
    let mut out = BatchBuilder::new(cx.limits.fields_max);
    let mut rejects = Rejects::new();
    decode(format, payload, cx, &mut out, &mut rejects);
    let batch = out.finish();
    (batch.to_readings(), rejects, batch.retimed())
}

fn json_with(
    payload: &str,
    change: impl FnOnce(&mut Context<'_>),
) -> (Vec<Reading>, Rejects, usize) {
    let limits = limits();
    let line = line();
    let mut cx = Context {
        sensor_id: Some("S"),
        ..bare(&limits, &line)
    };
    change(&mut cx);
    run(Format::Json, payload.as_bytes(), &cx)
}

fn json(payload: &str) -> (Vec<Reading>, Rejects, usize) {
    json_with(payload, |_| {})
}

fn native(nested: Nested) -> Native {
    Native {
        nested,
        ..Context::usual().native.clone()
    }
}

fn fields(reading: &Reading) -> Vec<(&str, String)> {
    let text = |value: &Value| match value {
        Value::Str(text) => text.clone(),
        Value::Int(v) => v.to_string(),
        Value::Double(v) => format!("{v:?}"),
        Value::Bool(v) => v.to_string(),
    };
    reading
        .values
        .iter()
        .map(|(name, value)| (name.as_str(), text(value)))
        .collect()
}

fn only(payload: &str) -> (Reading, usize, Vec<String>) {
    let (mut readings, rejects, retimed) = json(payload);
    assert_eq!(
        (readings.len(), rejects.total()),
        (1, 0),
        "{payload}: {:?}",
        rejects.list()
    );
    (
        readings.remove(0),
        retimed,
        rejects.left_out().names().to_vec(),
    )
}

#[test]
fn nested_values_become_fields_named_by_their_path() {
    let (reading, _, left_out) = only(TASMOTA);
    let expected = [
        ("ENERGY_Power", "71"),
        ("ENERGY_TotalStartTime", "2023-01-01T00:00:00"),
        ("ENERGY_Total_0", "1.5"),
        ("ENERGY_Total_1", "2"),
        ("TempUnit", "C"),
        ("Time", "2024-03-01T10:00:00"),
    ];
    assert_eq!(
        fields(&reading),
        expected.map(|(name, value)| (name, value.to_owned()))
    );
    assert!(left_out.is_empty());
    // The same inside of `values`, and below empty keys.
    let (reading, ..) = only(r#"{"values":{"a":{"a":1,"":{"b":[true,{"c":-0}]}},"":{"d":2}}}"#);
    assert_eq!(
        reading.values.keys().collect::<Vec<_>>(),
        ["a_a", "a_b_0", "a_b_1_c", "d"]
    );
    let (reading, ..) = only(r#"{"a":{"a":1}}"#);
    assert_eq!(fields(&reading), [("a_a", "1".to_owned())]);
}

#[test]
fn cbor_and_messagepack_flatten_in_the_same_way() {
    // {"a": {"b": [1, {"c": 2}]}, "d": h'00'}
    let cbor = b"\xa2\x61a\xa1\x61b\x82\x01\xa1\x61c\x02\x61d\x41\x00";
    let msgpack = b"\x82\xa1a\x81\xa1b\x92\x01\x81\xa1c\x02\xa1d\xc4\x01\x00";
    let limits = limits();
    let line = line();
    let cx = Context {
        sensor_id: Some("S"),
        ..bare(&limits, &line)
    };
    for (format, payload) in [(Format::Cbor, &cbor[..]), (Format::MessagePack, msgpack)] {
        let (readings, rejects, _) = run(format, payload, &cx);
        assert_eq!(
            fields(&readings[0]),
            [("a_b_0", "1".to_owned()), ("a_b_1_c", "2".to_owned())],
            "{format:?}"
        );
        assert_eq!((rejects.total(), rejects.left_out().total()), (0, 1));
        assert_eq!(rejects.left_out().names(), ["d"], "bytes are named");
    }
}

#[test]
fn names_that_are_equal_after_flattening_are_rejected() {
    for payload in [
        r#"{"a":{"b":1},"a_b":2}"#,
        r#"{"a_b":2,"a":{"b":1}}"#,
        r#"{"a":[1],"a_0":2}"#,
        r#"{"a":{"b":1,"b":2}}"#,
        r#"{"values":{"a":{"b":{"c":1},"b_c":2}}}"#,
    ] {
        let (readings, rejects, _) = json(payload);
        let reasons: Vec<_> = rejects.list().iter().map(|r| r.reason).collect();
        assert_eq!(
            (readings.len(), &reasons[..]),
            (0, &[RejectReason::DuplicateKey][..]),
            "{payload}"
        );
    }
    // Next to `values` they do not count, before it and after it.
    assert_eq!(
        json(r#"{"a":{"b":1,"b":2},"values":{"v":1},"c":{"d":1,"d":2}}"#)
            .0
            .len(),
        1
    );
}

#[test]
fn a_nested_value_counts_against_the_limits() {
    let numbers: Vec<String> = (0..65).map(|i| i.to_string()).collect();
    let (_, rejects, _) = json(&format!(r#"{{"samples":[{}]}}"#, numbers.join(",")));
    assert_eq!(rejects.list()[0].reason, RejectReason::TooManyFields);
    assert_eq!(
        json(&format!(r#"{{"samples":[{}]}}"#, numbers[..64].join(","))).0[0]
            .values
            .len(),
        64
    );
    let key = "k".repeat(100);
    let (_, rejects, _) = json(&format!(r#"{{"{key}":{{"{key}":1}}}}"#));
    assert_eq!(rejects.list()[0].reason, RejectReason::NameTooLong);
    let deep = format!("{}1{}", format!(r#"{{"{key}":"#).repeat(90), "}".repeat(90));
    assert_eq!(json(&deep).1.list()[0].reason, RejectReason::NameTooLong);
    assert_eq!(
        json(&format!(r#"{{"v":1,"deep":{deep},"values":{{"v":1}}}}"#))
            .0
            .len(),
        1
    );
}

#[test]
fn nested_values_can_be_rejected_or_left_out() {
    let with = |nested, payload: &str| {
        let native = native(nested);
        let limits = limits();
        let line = line();
        let cx = Context {
            sensor_id: Some("S"),
            native: &native,
            ..bare(&limits, &line)
        };
        run(Format::Json, payload.as_bytes(), &cx)
    };
    let reason = |nested, payload: &str| with(nested, payload).1.list()[0].reason;
    let payload = r#"{"temp":1,"energy":{"power":2},"list":[3]}"#;
    assert_eq!(reason(Nested::Reject, payload), RejectReason::NestedValue);
    let (readings, rejects, _) = with(Nested::LeaveOut, payload);
    assert_eq!(fields(&readings[0]), [("temp", "1".to_owned())]);
    assert_eq!(
        (rejects.left_out().total(), rejects.left_out().names()),
        (2, &["energy", "list"].map(String::from)[..])
    );
    let (_, rejects, _) = with(Nested::LeaveOut, r#"{"a":{"a":1}}"#);
    let reject = &rejects.list()[0];
    assert_eq!(reject.reason, RejectReason::NoValues);
    assert!(
        reject.detail.contains("`a`, which is left out"),
        "{}",
        reject.detail
    );
    assert_eq!(
        rejects.left_out().total(),
        0,
        "a rejected reading leaves nothing out"
    );
    for nested in [Nested::Reject, Nested::LeaveOut] {
        assert_eq!(
            reason(nested, r#"{"values":{"a":{"a":1}}}"#),
            RejectReason::NestedValue
        );
    }
}

#[test]
fn members_beside_values_are_named() {
    for payload in [
        r#"{"a":1,"b":{"c":2},"values":{"v":1},"tags":{},"time":3}"#,
        r#"{"values":{"v":1},"time":3,"a":1,"b":{"c":2}}"#,
    ] {
        let (reading, _, mut left_out) = only(payload);
        left_out.sort();
        assert_eq!(
            (reading.values.len(), &left_out[..]),
            (1, &["a", "b", "time"].map(String::from)[..]),
            "{payload}"
        );
    }
}

#[test]
fn empty_objects_and_arrays_are_left_out_and_named() {
    for (payload, names) in [
        (r#"{"b":1,"a":[],"c":{}}"#, &["a", "c"][..]),
        (r#"{"values":{"b":1,"a":[]}}"#, &["a"]),
        (
            r#"{"a":{"b":1,"c":[[],2,{"d":{}}]}}"#,
            &["a_c_0", "a_c_2_d"],
        ),
        (r#"{"a":[],"values":{"b":1}}"#, &["a"]),
        (r#"{"b":1,"a":[null],"c":{"d":null}}"#, &[]),
    ] {
        assert_eq!(only(payload).2, names, "{payload}");
    }
    let twice = r#"{"sensor_id":"S1","b":1,"a":[]}"#;
    let (_, rejects, _) = json(&format!("{twice}\n{twice}\n{twice}"));
    assert_eq!(rejects.left_out().total(), 3);
    let many = format!(r#"{{"b":1,"a":[{}]}}"#, vec!["[]"; 5000].join(","));
    assert_eq!(json(&many).1.left_out().total(), 5000);
    let (_, rejects, _) = json(r#"{"a":{"b":[]}}"#);
    let detail = &rejects.list()[0].detail;
    assert!(detail.contains("`a_b`, which is left out"), "{detail}");
    // {"a": [], "b": 1}
    let limits = limits();
    let line = line();
    let cx = Context {
        sensor_id: Some("S"),
        ..bare(&limits, &line)
    };
    for (format, payload) in [
        (Format::Cbor, &b"\xa2\x61a\x80\x61b\x01"[..]),
        (Format::MessagePack, b"\x82\xa1a\x90\xa1b\x01"),
    ] {
        assert_eq!(run(format, payload, &cx).1.left_out().names(), ["a"]);
    }
}

#[test]
fn a_member_is_the_time_if_it_holds_one() {
    // The time, and the values besides `v`.
    for (time, ms, others) in [
        (r#""timestamp":1709287200"#, NOW - 3_600_000, 0),
        (r#""timestamp":1709287200000"#, NOW - 3_600_000, 0),
        (r#""time":"2024-03-01T10:00:00Z""#, NOW - 3_600_000, 0),
        (r#""datetime":"20240301T100000Z""#, NOW - 3_600_000, 0),
        (r#""t":"1709287200.5""#, NOW - 3_600_000 + 500, 0),
        (
            r#""@timestamp":"2024-03-01T10:00:00.000Z""#,
            NOW - 3_600_000,
            0,
        ),
        // The first of the list counts, wherever it is; `ts` comes before all.
        (
            r#""t":1709287201,"timestamp":1709287200"#,
            NOW - 3_600_000,
            1,
        ),
        (
            r#""timestamp":1709287200,"ts":1709287202"#,
            NOW - 3_600_000 + 2000,
            1,
        ),
        (r#""timestamp":1709287200,"ts":null"#, NOW - 3_600_000, 0),
    ] {
        let (reading, retimed, _) = only(&format!(r#"{{"v":1,{time}}}"#));
        assert_eq!(
            (reading.ts_ms, reading.receipt_time, retimed),
            (ms, false, 0),
            "{time}"
        );
        assert_eq!(reading.values.len(), 1 + others, "{time}");
        let (reading, ..) = only(&format!(r#"{{{time},"values":{{"v":1}}}}"#));
        assert_eq!((reading.ts_ms, reading.values.len()), (ms, 1), "{time}");
    }
    for value in [
        r#""t":21.5"#,
        r#""time":12"#,
        r#""time":"12:30""#,
        r#""timestamp":4102444800"#,
        r#""t":true"#,
    ] {
        let (reading, retimed, _) = only(&format!("{{{value}}}"));
        assert_eq!(
            (reading.receipt_time, reading.values.len(), retimed),
            (true, 1, 0),
            "{value}"
        );
    }
    // A time that is a time, but not an acceptable one, is not stored as a value.
    let (_, rejects, _) = json(r#"{"v":1,"timestamp":1009843200}"#);
    assert_eq!(rejects.list()[0].reason, RejectReason::TooOld);
}

#[test]
fn a_replaced_time_is_counted() {
    let refused = |payload: &str| {
        let (readings, rejects, retimed) =
            json_with(payload, |cx| cx.unset_clock = UnsetClock::Reject);
        assert_eq!((readings.len(), retimed), (0, 0), "{payload}");
        rejects.list()[0].reason
    };
    for time in [
        r#""ts":"1995-06-01T00:00:00Z""#,
        r#""ts":17"#,
        r#""ts":"1970-01-01T00:00:03""#,
        r#""time":"1970-01-01T00:00:03Z""#,
        r#""datetime":"1970-01-01 00:00:03""#,
    ] {
        let payload = format!(r#"{{"v":1,{time}}}"#);
        let (reading, retimed, _) = only(&payload);
        assert_eq!(
            (reading.ts_ms, reading.receipt_time, retimed),
            (NOW, true, 1),
            "{time}"
        );
        assert_eq!(refused(&payload), RejectReason::ClockNotSet, "{time}");
    }
    // Without a zone it cannot be used; it stays a value, because the name alone does not make it
    // the time.
    let (reading, retimed, _) = only(r#"{"v":1,"time":"2024-03-01 10:00:00"}"#);
    assert_eq!(
        (reading.receipt_time, reading.values.len(), retimed),
        (true, 2, 1)
    );
    for absent in [
        r#"{"v":1}"#,
        r#"{"v":1,"ts":""}"#,
        r#"{"v":1,"ts":"unknown"}"#,
    ] {
        assert_eq!(only(absent).1, 0, "{absent}");
    }
}

#[test]
fn similar_readings_are_compared_with_all_their_parts() {
    let reading = |i: i64| {
        format!(
            r#"{{"sensor_id":"S{i}","timestamp":{},"e":{{"p":{i}.5,"l":[{i},{{"x":"a"}}]}}}}"#,
            1_709_287_200 + i
        )
    };
    let payload: Vec<String> = (0..20).map(reading).collect();
    let (readings, rejects, _) = json(&format!("[{}]", payload.join(",")));
    assert_eq!((readings.len(), rejects.total()), (20, 0));
    for (i, reading) in readings.iter().enumerate() {
        assert_eq!(reading.ts_ms, NOW - 3_600_000 + i as i64 * 1000);
        assert_eq!(
            reading.values.keys().collect::<Vec<_>>(),
            ["e_l_0", "e_l_1_x", "e_p"]
        );
    }
    // The name of a temperature in the first, of a time in the second.
    let (readings, ..) =
        json(r#"{"sensor_id":"S","t":1709287200,"v":1}{"sensor_id":"S","t":21.5,"v":1}"#);
    assert_eq!(
        readings
            .iter()
            .map(|r| (r.receipt_time, r.values.len()))
            .collect::<Vec<_>>(),
        [(false, 1), (true, 2)]
    );
}

#[test]
fn scalars_that_are_not_numbers_can_be_refused_or_have_a_decimal_comma() {
    let limits = limits();
    let line = line();
    let one = |payload: &str, texts_allowed, decimal_comma| {
        let scalar = config::ScalarFormat {
            texts_allowed,
            decimal_comma,
        };
        let cx = Context {
            sensor_id: Some("S"),
            field: Some("f"),
            scalar,
            ..bare(&limits, &line)
        };
        let (readings, rejects, _) = run(Format::Scalar, payload.as_bytes(), &cx);
        match readings.first() {
            Some(reading) => fields(reading)[0].1.clone(),
            None => rejects
                .list()
                .first()
                .map_or("nothing".to_owned(), |reject| reject.reason.to_string()),
        }
    };
    assert_eq!(one("21,5", true, false), "21,5");
    assert_eq!(one("21,5", true, true), "21.5");
    assert_eq!(one("\"-0,5\"", false, true), "-0.5");
    for payload in ["21,5", "ON", r#"{"a":1}"#, "\"x\""] {
        assert_eq!(one(payload, false, false), "not_a_number", "{payload}");
    }
    for (payload, value) in [
        ("1.000,5", "1.000,5"),
        ("1,5,2", "1,5,2"),
        ("a,5", "a,5"),
        (",", ","),
        ("21.5", "21.5"),
    ] {
        assert_eq!(one(payload, true, true), value, "{payload}");
    }
    for (payload, value) in [
        ("21.5", "21.5"),
        ("true", "true"),
        ("\"7\"", "7"),
        ("nan", "nothing"),
    ] {
        assert_eq!(one(payload, false, false), value, "{payload}");
    }
}

#[test]
fn a_time_under_another_name_is_named_if_the_reading_has_none() {
    let hint = |payload: &str| {
        let (readings, rejects, _) = json(payload);
        assert_eq!((readings.len(), rejects.total()), (1, 0), "{payload}");
        rejects.hints().join("; ")
    };
    for (member, name) in [
        (r#""Timestamp":"2024-03-01T10:40:31Z""#, "`Timestamp`"),
        (r#""Timestamp":"2024-03-01 10:40:31""#, "`Timestamp`"),
        (r#""measured":"2024-03-01T10:40:31Z""#, "`measured`"),
        (r#""date":1709287200.123"#, "`date`"),
        (r#""last_updated_ts":1709287200"#, "`last_updated_ts`"),
        (r#""lastSeen":1709287200123"#, "`lastSeen`"),
        (r#""epoch":"1709287200""#, "`epoch`"),
        (r#""values":{"v":1,"date":1709287200}"#, "`date`"),
        (r#""values":{"v":1},"date":1709287200"#, "`date`"),
        (r#""params":{"TS":1709287200,"v":1}"#, "`params_TS`"),
    ] {
        let payload = format!(r#"{{"sensor_id":"a",{member},"temp":21.5}}"#);
        let hint = hint(&payload);
        assert!(
            hint.contains(name) && hint.contains("native.time"),
            "{payload}: {hint}"
        );
    }
    for none in [
        r#""ts":1709287200,"date":1709287200"#,
        r#""time":1709287200,"date":1709287200"#,
        r#""serial":1709287200"#,
        r#""date":17"#,
        r#""results":1709287200"#,
        r#""uptime":812345"#,
        r#""Timestamp":"soon""#,
        r#""firmware":"2.1.0""#,
    ] {
        let payload = format!(r#"{{"sensor_id":"a",{none},"temp":21.5}}"#);
        assert_eq!(hint(&payload), "", "{payload}");
    }
    // One for a payload, and none for what is rejected.
    let one = r#"{"sensor_id":"a","date":1709287200,"v":1}"#;
    let (readings, rejects, _) = json(&format!("[{}]", [one; 1000].join(",")));
    assert_eq!((readings.len(), rejects.hints().len()), (1000, 1));
    let (_, rejects, _) = json(r#"{"sensor_id":7,"date":1709287200,"v":1}"#);
    assert_eq!((rejects.total(), rejects.hints().len()), (1, 0));
    // CBOR's tag 1, epoch time.
    let limits = limits();
    let line = line();
    let cbor = b"\xa2isensor_idaadwhen\xc1\x1a\x65\xe1\xa0\x00";
    let (readings, rejects, _) = run(Format::Cbor, cbor, &bare(&limits, &line));
    assert_eq!(readings.len(), 1, "{:?}", rejects.list());
    assert!(rejects.hints()[0].contains("`when`"));
}
