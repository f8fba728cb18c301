//! Applying mappings: each key of the language, and the rejects.

use super::*;
use crate::RejectReason;
use crate::tests::{NOW, bare, limits, line};
use config::mapping::parse_formats;
use model::{Reading, Value};

/// Decodes a payload with the text of `[formats.x]`: readings and rejects.
pub(super) fn run(
    text: &str,
    topic: Option<&str>,
    payload: impl AsRef<[u8]>,
) -> (Vec<Reading>, Vec<(usize, RejectReason)>) {
    let mut limits = limits();
    limits.batch_max_readings = 50;
    limits.past = std::time::Duration::from_secs(60 * 60 * 24 * 365 * 20);
    let line = line();
    let (formats, problems) = parse_formats("test", text);
    assert!(problems.is_empty(), "{text}\n{problems:#?}");
    let mapper = Mapper::new(formats[0].clone());
    let mut out = BatchBuilder::new(limits.fields_max);
    let mut rejects = Rejects::new();
    mapper.decode(
        payload.as_ref(),
        topic,
        &bare(&limits, &line),
        &mut out,
        &mut rejects,
    );
    let rejects = rejects.list().iter().map(|reject| {
        assert!(reject.detail.len() < 500, "{reject:?}");
        (reject.index, reject.reason)
    });
    (out.finish().to_readings(), rejects.collect())
}

/// The readings as `id@time{name=value ...}[tag=text ...]`, with the time in seconds, or `now` for
/// the time of receipt.
pub(super) fn listed(text: &str, topic: Option<&str>, payload: &str) -> Vec<String> {
    let (readings, rejects) = run(text, topic, payload);
    assert_eq!(rejects, [], "{payload}");
    readings.iter().map(show).collect()
}

fn show(reading: &Reading) -> String {
    let values = reading.values.iter().map(|(name, value)| match value {
        Value::Double(v) => format!("{name}={v:?}"),
        Value::Int(v) => format!("{name}={v}"),
        Value::Bool(v) => format!("{name}={v}"),
        Value::Str(v) => format!("{name}={v:?}"),
    });
    let tags: Vec<String> = reading
        .tags
        .iter()
        .map(|(name, text)| format!("{name}={text}"))
        .collect();
    let time = if reading.receipt_time {
        "now".to_owned()
    } else {
        (reading.ts_ms / 1000).to_string()
    };
    let tags = if tags.is_empty() {
        String::new()
    } else {
        format!("[{}]", tags.join(" "))
    };
    format!(
        "{}@{time}{{{}}}{tags}",
        reading.sensor_id,
        values.collect::<Vec<_>>().join(" ")
    )
}

pub(super) fn rejected(
    text: &str,
    topic: Option<&str>,
    payload: impl AsRef<[u8]>,
) -> Vec<(usize, RejectReason)> {
    let (readings, rejects) = run(text, topic, payload);
    assert!(readings.is_empty(), "{readings:?}");
    rejects
}

pub(super) const PLAIN: &str = "[formats.x]\nid = \"/id\"\ntime = \"/t\"\nvalues = \"/v\"\n";

#[test]
fn id_time_and_values_are_read_from_the_configured_places() {
    let payload = r#"{"id":"S","t":1709290000,"v":{"b":1.5,"a":{"x":true,"y":[1,{"z":2}],"n":null},"s":"text"}}"#;
    assert_eq!(
        listed(PLAIN, None, payload),
        [r#"S@1709290000{a_x=true a_y[0]=1 a_y[1]_z=2 b=1.5 s="text"}"#]
    );
    assert_eq!(
        listed(PLAIN, None, r#"{"id":7,"v":{"a":1}}"#),
        ["7@now{a=1}"],
        "a number is an id, and a missing time is not an error"
    );
    let slashes = PLAIN.to_owned() + "separator = \"/\"\n";
    assert_eq!(
        listed(&slashes, None, r#"{"id":"S","v":{"a":{"b":1},"":{"c":2}}}"#),
        ["S@now{a/b=1 c=2}"]
    );
}

#[test]
fn id_time_and_tags_are_excluded_from_the_values() {
    let text = "[formats.x]\nid = \"{/m/id}-{/n}\"\ntime = [\"/t\", \"/u\"]\n\
        tags = { site = \"/place/0\" }\n";
    let payload =
        r#"{"m":{"id":"S","v":1},"n":2,"t":1709290000,"u":5,"place":["north","x"],"w":3}"#;
    assert_eq!(
        listed(text, None, payload),
        [r#"S-2@1709290000{m_v=1 place[1]="x" w=3}[site=north]"#]
    );
    let include = text.to_owned() + "include = [\"n\", \"w\"]\n";
    assert_eq!(
        listed(&include, None, payload),
        ["S-2@1709290000{n=2 w=3}[site=north]"],
        "unless `include` names it"
    );
    assert_eq!(
        listed(PLAIN, None, r#"{"id":"S","v":{"id":1,"t":2}}"#),
        ["S@now{id=1 t=2}"],
        "another member of that name"
    );
}

#[test]
fn arrays_streams_and_lines_are_many_messages() {
    let one = r#"{"id":"S","v":{"a":1}}"#;
    for payload in [
        format!("[{one},{one}]"),
        format!("{one}{one}"),
        format!(" {one}\n\n{one}\n"),
        format!("[{one} , {one} ]"),
    ] {
        assert_eq!(listed(PLAIN, None, &payload).len(), 2, "{payload}");
    }
    assert_eq!(listed(PLAIN, None, " [ ] "), [""; 0]);
}

#[test]
fn candidates_are_taken_in_their_order() {
    let text = "[formats.x]\nid = [\"/a\", \"{/b}-{/c|lower}\", \"/d\"]\n\
        values = [\"/v\", \"/w\"]\n\
                time = [{ at = \"/ms\", unit = \"ms\" }, \"/s\"]\ntime_unit = \"s\"\n";
    assert_eq!(
        listed(text, None, r#"{"a":"A","d":"D","v":{"x":1},"w":{"x":2}}"#),
        ["A@now{x=1}"]
    );
    assert_eq!(
        listed(text, None, r#"{"a":"","b":"B","c":"C","w":{"x":2}}"#),
        ["B-c@now{x=2}"]
    );
    assert_eq!(
        listed(
            text,
            None,
            r#"{"a":null,"b":"B","d":"D","v":null,"w":{"x":2}}"#
        ),
        ["D@now{x=2}"]
    );
    assert_eq!(
        listed(
            text,
            None,
            r#"{"d":"D","w":{"x":2},"ms":0,"s":"1709290000"}"#
        ),
        ["D@1709290000{x=2}"],
        "0 is not a time"
    );
    assert_eq!(
        listed(
            text,
            None,
            r#"{"d":"D","w":{"x":2},"ms":1709290000000,"s":5}"#
        ),
        ["D@1709290000{x=2}"]
    );
}

#[test]
fn one_message_has_several_records() {
    let text = "[formats.x]\neach = [\"/tags/{sensor_id}\", \"/list/*\", \"\"]\n\
        id = [\"{sensor_id}\", \"/id\"]\n\
                time = [\"/t\", \"$/t\"]\nexclude = [\"t\", \"id\"]\ntags = { gw = \"$/gw\" }\n\
                where = [{ at = \"/off\", not = [true] }]\n";
    assert_eq!(
        listed(
            text,
            None,
            r#"{"gw":"G","t":1709290001,"tags":{"A":{"v":1},"B":{"v":2,"t":1709290002},"C":{"off":true,"v":3}}}"#
        ),
        ["A@1709290001{v=1}[gw=G]", "B@1709290002{v=2}[gw=G]"]
    );
    assert_eq!(
        listed(
            text,
            None,
            r#"{"list":[{"id":"L","v":1},{"id":"L","v":2}]}"#
        ),
        ["L@now{v=1}", "L@now{v=2}"]
    );
    assert_eq!(listed(text, None, r#"{"id":"M","v":1}"#), ["M@now{v=1}"]);
    let nested = "[formats.x]\neach = \"/{sensor_id}/*\"\nvalues = [\"/values\", \"\"]\n\
        time = \"/ts\"\nexclude = [\"ts\"]\n";
    assert_eq!(
        listed(
            nested,
            None,
            r#"{"A":[{"ts":1709290000,"values":{"v":1}},{"v":2}],"B":[{"v":3}],"C":5}"#
        ),
        ["A@1709290000{v=1}", "A@now{v=2}", "B@now{v=3}"]
    );
    let pairs = "[formats.x]\nid = \"S\"\neach = \"/{field}\"\n\
        where = [{ at = \"/1\", kind = \"number\" }]\nvalues = \"/1\"\n";
    assert_eq!(
        listed(pairs, None, r#"{"n":5,"hum":["x",35.2]}"#),
        ["S@now{hum=35.2}"]
    );
}

#[test]
fn rules_are_chosen_by_topic_and_conditions() {
    let text = "[formats.x]\n[[formats.x.rules]]\ntopic = [\"g/status\", \"g/{sensor_id}/lwt\"]\n\
        skip = true\n\
                [[formats.x.rules]]\ntopic = \"g/{sensor_id#}\"\n\
                when = [{ at = \"/type\", is = [\"up\", 2] }, { at = \"/d\", kind = \"object\" }]\n\
                values = \"/d\"\n\
                [[formats.x.rules]]\ntopic = \"g/{sensor_id}/{site}/{field}\"\n\
                when = [{ at = \"\", kind = \"scalar\" }]\n\
                [[formats.x.rules]]\nwhen = [{ at = \"/id\", there = true }]\nid = \"/id\"\n\
                exclude = [\"id\"]\n";
    assert_eq!(listed(text, Some("g/status"), "anything"), [""; 0]);
    assert_eq!(
        listed(text, Some("g/a/b"), r#"{"type":"up","d":{"v":1}}"#),
        ["a/b@now{v=1}"]
    );
    assert_eq!(
        listed(text, Some("g/a"), r#"{"type":2.0,"d":{"v":1}}"#),
        ["a@now{v=1}"]
    );
    assert_eq!(
        listed(text, Some("g/a/n/t"), "21.5"),
        ["a@now{t=21.5}[site=n]"]
    );
    assert_eq!(
        listed(text, Some("g/a/n/t"), "ON"),
        [r#"a@now{t="ON"}[site=n]"#]
    );
    assert_eq!(listed(text, None, r#"{"id":"I","v":1}"#), ["I@now{v=1}"]);
    for (topic, payload) in [
        (Some("g/a"), r#"{"type":"down","d":{"v":1}}"#),
        (Some("g/a"), r#"{"type":"up","d":5}"#),
        (None, r#"{"type":"up","d":{"v":1}}"#),
        (Some("h/a"), "1"),
    ] {
        assert_eq!(
            rejected(text, topic, payload),
            [(0, RejectReason::NoRule)],
            "{topic:?} {payload}"
        );
    }
}

#[test]
fn a_condition_can_ask_for_content() {
    let text = "[formats.x]\n[[formats.x.rules]]\nwhen = [{ at = \"/d\", empty = true }]\nskip = true\n\
        [[formats.x.rules]]\nwhen = [{ at = \"/d\", empty = false }]\nid = \"S\"\n\
        values = \"/d\"\nfield = \"v\"\n";
    for payload in [r#"{"d":{}}"#, r#"{"d":[]}"#, r#"{"d":""}"#] {
        assert_eq!(listed(text, None, payload), [""; 0], "{payload}");
    }
    for (payload, expected) in [
        (r#"{"d":{"n":null,"a":1}}"#, "S@now{a=1}"),
        (r#"{"d":"x"}"#, r#"S@now{v="x"}"#),
        (r#"{"d":0}"#, "S@now{v=0}"),
    ] {
        assert_eq!(listed(text, None, payload), [expected]);
    }
    // Nothing is neither empty nor not.
    for payload in [r#"{"d":null}"#, r#"{"e":1}"#] {
        assert_eq!(
            rejected(text, None, payload),
            [(0, RejectReason::NoRule)],
            "{payload}"
        );
    }
}

#[test]
fn a_non_value_is_neither_reading_nor_reject() {
    let text = PLAIN.to_owned()
        + "none = [-1000, \"error\", \"\"]\nfields = [{ match = \"t\", none = [85] }]\n";
    for payload in [
        r#"{"id":"S","v":{"a":null}}"#,
        r#"{"id":"S","v":null}"#,
        r#"{"id":"S","v":{}}"#,
        r#"{"id":"S","v":{"a":"unavailable","b":"NaN","c":"Unknown"}}"#,
        r#"{"id":"S","v":{"a":-1000,"b":-1000.0,"c":"error","d":"","t":85}}"#,
        "nan",
        "\"unavailable\"",
        "null",
    ] {
        assert_eq!(listed(&text, None, payload), [""; 0], "{payload}");
    }
    assert_eq!(
        listed(&text, None, r#"{"id":"S","v":{"a":-1000,"b":0,"u":85}}"#),
        ["S@now{b=0 u=85}"]
    );
}

#[test]
fn fields_are_chosen_renamed_scaled_and_converted() {
    let text = PLAIN.to_owned()
        + "include = [\"*\"]\nexclude = [\"x*\", \"?\"]\nfields = [\
           { match = \"temp\", rename = \"temperature\", scale = 0.1, offset = -4 }, { match = \
           \"BME_*\", rename = \"*\" }, { match = [\"door\", \"lamp\"], type = \"bool\" }, { match \
           = \"n*\", type = \"number\" }, { match = \"code\", type = \"text\" }, { match = \
           \"lock\", words = { LOCK = true, UNLOCK = false, JAM = 2 } }, { match = \"serial\", tag \
           = true }]\n";
    let payload = r#"{"id":"S","v":{"temp":257,"BME_hum":40,"xa":1,"y":2,"door":"OPEN","lamp":0,"n1":"21.5","n2":"bad","n3":true,
        "code":7,"lock":"UNLOCK","serial":12}}"#;
    assert_eq!(
        listed(&text, None, payload),
        [
            r#"S@now{code="7" door=true hum=40 lamp=false lock=false n1=21.5 n3=1 temperature=21.7}[serial=12]"#
        ]
    );
    assert_eq!(
        listed(
            &text,
            None,
            r#"{"id":"S","v":{"lock":"JAM","door":"ajar","temp":"none"}}"#
        ),
        ["S@now{lock=2}"]
    );
}

#[test]
fn texts_are_converted_as_configured() {
    let payload =
        r#"{"id":"S","v":{"a":"21.5","b":"x","c":"0042","d":" 7 ","e":"1_000","f":"21,5"}}"#;
    let with = |texts: &str| listed(&format!("{PLAIN}texts = \"{texts}\"\n"), None, payload);
    assert_eq!(
        with("keep"),
        [r#"S@now{a="21.5" b="x" c="0042" d=" 7 " e="1_000" f="21,5"}"#]
    );
    assert_eq!(
        with("numbers"),
        [r#"S@now{a=21.5 b="x" c="0042" d=7 e="1_000" f="21,5"}"#]
    );
    assert_eq!(with("only-numbers"), ["S@now{a=21.5 c=42 d=7}"]);
    assert_eq!(with("drop"), [""; 0]);
}

#[test]
fn names_of_values_can_be_put_together() {
    let text = "[formats.x]\ntopic = \"s/{sensor_id}/{field#}\"\nlevel_separator = \"-\"\n\
                [[formats.x.rules]]\nwhen = [{ at = \"\", kind = \"object\" }]\n\
                prefix = \"{field}\"\n[[formats.x.rules]]\n";
    assert_eq!(
        listed(text, Some("s/A/em/0/power"), "5"),
        ["A@now{em-0-power=5}"]
    );
    assert_eq!(
        listed(text, Some("s/A/in/0"), r#"{"n":5}"#),
        ["A@now{in-0_n=5}"]
    );
    let named =
        "[formats.x]\nid = \"S\"\nvalues = { t = [\"/a\", \"/b\"], o = \"/o\", g = \"$/g\" }\n";
    assert_eq!(
        listed(named, None, r#"{"b":1,"o":{"x":2},"g":3,"h":4}"#),
        ["S@now{g=3 o_x=2 t=1}"]
    );
    assert_eq!(
        rejected(named, None, r#"{"h":4}"#),
        [(0, RejectReason::NoValues)]
    );
}

#[test]
fn json_within_a_text_is_opened() {
    assert_eq!(
        listed(PLAIN, None, r#"{"id":"S","v":"{\"a\":1,\"b\":{\"c\":2}}"}"#),
        ["S@now{a=1 b_c=2}"]
    );
    assert_eq!(
        rejected(PLAIN, None, r#"{"id":"S","v":"{\"a\":1"}"#),
        [(0, RejectReason::MissingField)]
    );
}

#[test]
fn tags_come_from_the_payload_the_templates_and_each() {
    let text = "[formats.x]\ntopic = \"{site}/{sensor_id}\"\neach = \"/{port}\"\n\
        tags = { site = \"$/s/site\", \"*\" = \"$/labels\" }\nvalues = \"/v\"\n";
    let payload =
        r#"{"p1":{"v":{"a":1}},"labels":{"k":"l","n":5,"o":{},"port":"no"},"s":{"site":"own"}}"#;
    let (readings, rejects) = run(text, Some("north/S"), payload);
    assert_eq!(show(&readings[0]), "S@now{a=1}[k=l n=5 port=no site=own]");
    assert_eq!(
        rejects,
        [(0, RejectReason::NoValues), (2, RejectReason::NoValues)],
        "the other members are not records, which is reported"
    );
}

#[test]
fn times_that_cannot_be_read() {
    let local = r#"{"id":"S","t":"2024-03-01 10:00:00","v":{"a":1}}"#;
    assert_eq!(
        rejected(PLAIN, None, local),
        [(0, RejectReason::BadTimestamp)]
    );
    assert_eq!(
        listed(
            &(PLAIN.to_owned() + "time_unreadable = \"receive\"\n"),
            None,
            local
        ),
        ["S@now{a=1}"]
    );
    assert_eq!(
        listed(
            &(PLAIN.to_owned() + "zone = \"Europe/Berlin\"\n"),
            None,
            local
        ),
        ["S@1709283600{a=1}"]
    );
    for unset in [
        "0",
        "188",
        "1.61",
        "\"0001-01-01T00:00:00Z\"",
        "\"\"",
        "\"1970-01-01T00:00:03Z\"",
    ] {
        let payload = format!(r#"{{"id":"S","t":{unset},"v":{{"a":1}}}}"#);
        assert_eq!(listed(PLAIN, None, &payload), ["S@now{a=1}"], "{unset}");
    }
    let ahead = format!(r#"{{"id":"S","t":{},"v":{{"a":1}}}}"#, NOW / 1000 + 3600);
    assert_eq!(
        rejected(PLAIN, None, ahead),
        [(0, RejectReason::TooFarAhead)]
    );
}

#[test]
fn a_bad_record_rejects_only_itself() {
    let payload = r#"[{"id":"A","v":{"a":1}},{"v":{"a":1}},{"id":"C"},7,{"id":"E","v":{"a":1}},{"id":"F","v":{"a":1,"x":}}]"#;
    let (readings, rejects) = run(PLAIN, None, payload);
    assert_eq!(
        readings
            .iter()
            .map(|r| r.sensor_id.as_str())
            .collect::<Vec<_>>(),
        ["A", "E"]
    );
    let reasons: Vec<_> = rejects.iter().map(|(_, reason)| *reason).collect();
    assert_eq!(
        reasons,
        [
            RejectReason::MissingSensorId,
            RejectReason::NoValues,
            RejectReason::NoValues,
            RejectReason::InvalidJson
        ]
    );
    assert_eq!(
        rejects.iter().map(|(index, _)| *index).collect::<Vec<_>>(),
        [1, 2, 3, 5]
    );
}

#[test]
fn invalid_json_is_reported() {
    for (payload, reason) in [
        (&br#"{"id":"S","v":{"a":nan}}"#[..], RejectReason::NotFinite),
        (br#"{"id":"S","v":{"a":1e999}}"#, RejectReason::NotFinite),
        (br#"{"id":"S","v":{"a":1}"#, RejectReason::InvalidJson),
        (br#"{id:1}"#, RejectReason::InvalidJson),
        (b"{\"id\":\"S\xe5\"}", RejectReason::InvalidUtf8),
        (
            br#"{"id":"S","v":{"a":null}} x"#,
            RejectReason::TrailingData,
        ),
        (
            br#"[{"id":"S","v":{"a":null}}] x"#,
            RejectReason::TrailingData,
        ),
        (br#"[{"id":"S","v":{"a":null}}"#, RejectReason::InvalidJson),
        (b"", RejectReason::EmptyPayload),
        (b" \n", RejectReason::EmptyPayload),
        (b"\x00\x01", RejectReason::BinaryPayload),
        ("{\"a\":".repeat(1000).as_bytes(), RejectReason::TooDeep),
        ("[".repeat(100_000).as_bytes(), RejectReason::TooDeep),
    ] {
        let (readings, rejects) = run(PLAIN, None, payload);
        assert!(readings.is_empty(), "{}", String::from_utf8_lossy(payload));
        assert_eq!(
            rejects.last().map(|r| r.1),
            Some(reason),
            "{}",
            String::from_utf8_lossy(&payload[..payload.len().min(60)])
        );
    }
}

#[test]
fn the_limits_hold() {
    let many: Vec<String> = (0..70).map(|i| format!("\"f{i}\":{i}")).collect();
    assert_eq!(
        rejected(
            PLAIN,
            None,
            format!("{{\"id\":\"S\",\"v\":{{{}}}}}", many.join(","))
        ),
        [(0, RejectReason::TooManyFields)]
    );
    let records = vec![r#"{"id":"S","v":{"a":1}}"#; 60].join(",");
    let (readings, rejects) = run(PLAIN, None, format!("[{records}]"));
    assert_eq!(
        (readings.len(), rejects),
        (50, vec![(50, RejectReason::TooManyReadings)])
    );
    let long = "x".repeat(2000);
    assert_eq!(
        rejected(PLAIN, None, format!(r#"{{"id":"S","v":{{"a":"{long}"}}}}"#)),
        [(0, RejectReason::StringTooLong)]
    );
    assert_eq!(
        rejected(PLAIN, None, format!(r#"{{"id":"{long}","v":{{"a":1}}}}"#)),
        [(0, RejectReason::SensorIdTooLong)]
    );
    let zeros = format!(
        r#"{{"id":"S","v":[{}]}}"#,
        vec!["0"; document::MEMBERS_MAX].join(",")
    );
    assert_eq!(
        rejected(PLAIN, None, zeros),
        [(0, RejectReason::TooManyFields)]
    );
    let tags = "[formats.x]\nid = \"S\"\nvalues = \"/v\"\ntags = { \"*\" = \"/t\" }\n";
    let labels: Vec<String> = (0..300).map(|i| format!("\"t{i}\":{i}")).collect();
    assert_eq!(
        rejected(
            tags,
            None,
            format!("{{\"v\":{{\"a\":1}},\"t\":{{{}}}}}", labels.join(","))
        ),
        [(0, RejectReason::TooManyTags)]
    );
}

#[test]
fn numbers_keep_what_can_be_kept() {
    let payload = r#"{"id":"S","v":{"a":9007199254740993,"b":9223372036854775808,"c":-9223372036854775808,"d":1.0}}"#;
    assert_eq!(
        listed(PLAIN, None, payload),
        ["S@now{a=9007199254740993 b=9.223372036854776e18 c=-9223372036854775808 d=1.0}"]
    );
}

#[test]
fn a_number_equals_that_of_the_configuration_exactly() {
    let text = PLAIN.to_owned() + "none = [9007199254740993, 85, 0.5]\n";
    let payload =
        r#"{"id":"S","v":{"a":9007199254740992.0,"b":9007199254740993,"c":85.0,"d":5e-1}}"#;
    assert_eq!(
        listed(&text, None, payload),
        ["S@now{a=9007199254740992.0}"]
    );
}

#[test]
fn an_eui_has_one_form() {
    let text = "[formats.x]\nid = [\"{/eui|eui}\", \"/eui\"]\nvalues = \"/v\"\n";
    for (eui, id) in [
        ("AQIDBAUGB6s=", "01020304050607ab"),
        ("01020304050607AB", "01020304050607ab"),
        ("01-02-03-04-05-06-07-AB", "01020304050607ab"),
        ("01:02:03", "01:02:03"),
    ] {
        let payload = format!(r#"{{"eui":"{eui}","v":{{"a":1}}}}"#);
        assert_eq!(listed(text, None, &payload), [format!("{id}@now{{a=1}}")]);
    }
}
