//! Broken payloads in JSON: native readings, SenML and a mapping keep the same readings and give the
//! same rejects.

use super::tests::{bare, ids, limits, line};
use super::*;
use config::Config;
use config::mapping::parse_formats;
use model::Reading;

fn mapped(text: &str) -> Decoder {
    let (mappings, problems) = parse_formats("test", text);
    assert!(problems.is_empty(), "{problems:?}");
    let mut decoding = Config::default().decoding();
    decoding.formats = mappings;
    Formats::new(&decoding).get("x").unwrap()
}

fn decode_with(decoder: &Decoder, topic: Option<&str>, payload: &[u8]) -> (Vec<Reading>, Rejects) {
    let limits = limits();
    let line = line();
    let mut out = BatchBuilder::new(limits.fields_max);
    let mut rejects = Rejects::new();
    let cx = bare(&limits, &line);
    decoder.decode(payload, topic, &cx, &mut out, &mut rejects);
    (out.finish().to_readings(), rejects)
}

/// The formats, with the reading `a`, and what messages call a reading.
fn formats() -> [(Decoder, &'static str, &'static str); 3] {
    let mapped = mapped("[formats.x]\nid = \"/id\"\nvalues = \"/v\"\n");
    [
        (Format::Json.into(), r#"{"sensor_id":"a","v":1}"#, "reading"),
        // With all bases: a record that is cut may have had any of them.
        (
            Format::Senml.into(),
            r#"{"bn":"a","bt":0,"bu":"m","bv":0,"bs":0,"v":1}"#,
            "record",
        ),
        (mapped, r#"{"id":"a","v":{"x":1}}"#, "message"),
    ]
}

/// Index, reason and a part of the detail.
type Expected = (usize, RejectReason, &'static str);

/// `A` to `C` in a payload are readings, `CUT` is one that ends within an object, `NAN` has a value
/// that is not in JSON, `TEXT` ends within a text.
fn assert_decoded(decoder: usize, payload: &str, kept: &[&str], expected: &[Expected]) {
    let (decoder, reading, what) = &formats()[decoder];
    let mut payload = payload
        .replace("CUT", r#"{"q":{"v":1"#)
        .replace("NAN", r#"{"v":NaN}"#)
        .replace("TEXT", r#"{"q":"v"#);
    for (mark, id) in [("A", "\"a\""), ("B", "\"b\""), ("C", "\"c\"")] {
        payload = payload.replace(mark, &reading.replace("\"a\"", id));
    }
    let (readings, rejects) = decode_with(decoder, None, payload.as_bytes());
    let found: Vec<_> = rejects.list().iter().map(|r| (r.index, r.reason)).collect();
    let reasons: Vec<_> = expected
        .iter()
        .map(|(i, reason, _)| (*i, *reason))
        .collect();
    assert_eq!(
        (ids(&readings), found),
        (kept.to_vec(), reasons),
        "{what}: {payload}: {rejects:?}"
    );
    for (reject, (.., part)) in rejects.list().iter().zip(expected) {
        let detail = reject.detail.replace(what, "reading");
        assert!(detail.contains(part), "{payload}: {detail}");
    }
}

#[test]
fn a_broken_array_is_the_same_in_each_format() {
    use RejectReason::*;
    const NO_COMMA: &str = "expected a comma before the reading at byte ";
    const EXTRA: &str = "expected a reading, not a comma, at byte ";
    const LAST: &str = "expected a reading after the last comma, at byte ";
    const OPEN: &str = "the array is not closed: the payload ends at byte ";
    const BEHIND: &str = "unexpected data after the array, at byte ";
    let cases: &[(&str, &[&str], &[Expected])] = &[
        ("[A,B,C]", &["a", "b", "c"], &[]),
        ("[A B,C]", &["a", "b", "c"], &[(1, InvalidJson, NO_COMMA)]),
        ("[A,B\n C]", &["a", "b", "c"], &[(2, InvalidJson, NO_COMMA)]),
        (
            "[ABC]",
            &["a", "b", "c"],
            &[(1, InvalidJson, NO_COMMA), (2, InvalidJson, NO_COMMA)],
        ),
        (
            "[A NAN B]",
            &["a"],
            &[(1, InvalidJson, NO_COMMA), (1, NotFinite, "NaN")],
        ),
        ("[A,B,]", &["a", "b"], &[(2, InvalidJson, LAST)]),
        ("[A,B , ] ", &["a", "b"], &[(2, InvalidJson, LAST)]),
        ("[A,,B]", &["a", "b"], &[(1, InvalidJson, EXTRA)]),
        ("[,A]", &["a"], &[(0, InvalidJson, EXTRA)]),
        ("[,]", &[], &[(0, InvalidJson, EXTRA)]),
        (
            "[A,,]",
            &["a"],
            &[(1, InvalidJson, EXTRA), (2, InvalidJson, LAST)],
        ),
        ("[", &[], &[(0, InvalidJson, OPEN)]),
        ("[A,B", &["a", "b"], &[(2, InvalidJson, OPEN)]),
        ("[A,B,", &["a", "b"], &[(2, InvalidJson, OPEN)]),
        ("[A,CUT", &["a"], &[(1, InvalidJson, "EOF")]),
        ("[A,TEXT", &["a"], &[(1, InvalidJson, "EOF")]),
        (
            "[A,NAN",
            &["a"],
            &[(1, NotFinite, "NaN"), (2, InvalidJson, OPEN)],
        ),
        ("[A,B]x", &["a", "b"], &[(2, TrailingData, BEHIND)]),
        ("[A,B]]", &["a", "b"], &[(2, TrailingData, BEHIND)]),
        ("[A],B", &["a"], &[(1, TrailingData, BEHIND)]),
        ("[A]\n[B]", &["a"], &[(1, TrailingData, BEHIND)]),
        ("[]x", &[], &[(0, TrailingData, BEHIND)]),
        ("[A,NAN,B]", &["a", "b"], &[(1, NotFinite, "NaN")]),
        (
            "[A,xyz,B]",
            &["a", "b"],
            &[(1, InvalidJson, "expected value")],
        ),
        (
            "[A,B x,C]",
            &["a", "c"],
            &[(1, InvalidJson, "unexpected data after the reading")],
        ),
        ("[A,CUT,B]", &["a", "b"], &[(1, InvalidJson, " (byte ")]),
        ("[A,CUT\nB]", &["a", "b"], &[(1, InvalidJson, " (byte ")]),
        ("[A,TEXT,B]", &["a", "b"], &[(1, InvalidJson, " (byte ")]),
        (
            "[A,CUT,B C]",
            &["a", "b", "c"],
            &[(1, InvalidJson, " (byte "), (3, InvalidJson, NO_COMMA)],
        ),
        ("[A,CUT]", &["a"], &[(1, InvalidJson, " (byte ")]),
    ];
    for (payload, kept, expected) in cases {
        for decoder in 0..3 {
            assert_decoded(decoder, payload, kept, expected);
        }
    }
}

/// It could be a fragment of the cut one, so the topic does not name its sensor.
#[test]
fn a_message_after_a_cut_one_must_name_its_own_sensor() {
    let text = "[formats.x]\ntopic = \"{sensor_id}/{room}\"\nvalues = \"/v\"\n";
    let cut = r#"[{"v":{"x":1}},{"id":"s","q":{"v":1,{"id":"t","v":{"x":2}},{"v":{"x":3}}]"#;
    for (id, kept) in [
        ("", &["S", "S"][..]),
        ("id = \"S\"\n", &["S", "S"]),
        ("id = [\"{room}\"]\n", &["R", "R"]),
        ("id = [\"/id\", \"{sensor_id}\"]\n", &["S", "t", "S"]),
        ("id = [\"{room}-{/id}\", \"S\"]\n", &["S", "R-t", "S"]),
    ] {
        let decoder = mapped(&format!("{text}{id}"));
        let (readings, rejects) = decode_with(&decoder, Some("S/R"), cut.as_bytes());
        assert_eq!(ids(&readings), kept, "{id}");
        let found = rejects.list().iter().map(|r| (r.index, r.reason));
        let expected = [
            (1, RejectReason::InvalidJson),
            (2, RejectReason::MissingSensorId),
        ];
        assert_eq!(
            found.collect::<Vec<_>>(),
            expected[..4 - kept.len()],
            "{id}"
        );
    }
}

/// SenML has no such payloads: a pack is an array.
#[test]
fn broken_objects_behind_each_other_are_the_same_in_each_format() {
    use RejectReason::*;
    const BETWEEN: &str = "unexpected data next to the objects, at byte ";
    let cases: &[(&str, &[&str], &[Expected])] = &[
        ("A", &["a"], &[]),
        ("AB\u{feff}\nC", &["a", "b", "c"], &[]),
        ("A,B", &["a", "b"], &[(1, TrailingData, BETWEEN)]),
        ("A xyz B", &["a", "b"], &[(1, TrailingData, BETWEEN)]),
        ("A B]", &["a", "b"], &[(2, TrailingData, BETWEEN)]),
        ("A NAN B", &["a", "b"], &[(1, NotFinite, "NaN")]),
        ("A\nCUT\nB", &["a", "b"], &[(1, InvalidJson, " (byte ")]),
        ("A TEXT B", &["a", "b"], &[(1, InvalidJson, " (byte ")]),
        ("A CUT", &["a"], &[(1, InvalidJson, "EOF")]),
    ];
    for (payload, kept, expected) in cases {
        for decoder in [0, 2] {
            assert_decoded(decoder, payload, kept, expected);
        }
    }
}
