//! Properties of the binary formats and of SenML: nothing panics, every element becomes one reading
//! or one reject, and equal contents give equal readings in every format.
// Clippy does not recognize the helpers of a test program as test code.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use hourbucket::config::{Config, Limits};
use hourbucket::decode::sparkplug::Sparkplug;
use hourbucket::decode::{Context, Format, Reject, RejectReason, Rejects, TsUnit, decode};
use hourbucket::model::{BatchBuilder, Reading, ReadingBatch};
use proptest::prelude::*;

const NOW: i64 = 1_709_290_800_000;
const BINARY: [Format; 4] = [
    Format::Cbor,
    Format::MessagePack,
    Format::Senml,
    Format::SenmlCbor,
];

fn run(format: Format, payload: &[u8]) -> (Vec<Reading>, Rejects) {
    run_from(&Topic::default(), format, payload)
}

/// The context of a message apart from its payload.
#[derive(Debug, Clone, Default)]
struct Topic {
    sensor_id: Option<&'static str>,
    tags: &'static [(&'static str, &'static str)],
    ts_unit: Option<TsUnit>,
}

fn topic() -> impl Strategy<Value = Topic> {
    let sensor_id = prop_oneof![3 => Just(None), 1 => Just(Some("T1"))];
    let tags = prop_oneof![3 => Just(&[][..]), 1 => Just(&[("a", "of the topic"), ("z", "")][..])];
    let ts_unit =
        prop_oneof![3 => Just(None), 1 => Just(Some(TsUnit::S)), 1 => Just(Some(TsUnit::Ns))];
    (sensor_id, tags, ts_unit).prop_map(|(sensor_id, tags, ts_unit)| Topic {
        sensor_id,
        tags,
        ts_unit,
    })
}

fn run_from(topic: &Topic, format: Format, payload: &[u8]) -> (Vec<Reading>, Rejects) {
    let years = Duration::from_secs(125 * 365 * 86_400);
    let limits = Limits {
        past: years,
        future: years,
        fields_max: 6,
        tags_max: 3,
        ..Config::default().limits
    };
    let cx = Context {
        limits: &limits,
        line: &Config::default().line,
        received_at_ms: NOW,
        ts_unit: topic.ts_unit,
        sensor_id: topic.sensor_id,
        field: None,
        tags: topic.tags,
        ..Context::usual()
    };
    let mut out = BatchBuilder::new(limits.fields_max);
    let mut rejects = Rejects::new();
    decode(format, payload, &cx, &mut out, &mut rejects);
    let batch = out.finish();
    let mut bytes = vec![];
    batch.encode(&mut bytes);
    assert!(
        ReadingBatch::decode(&bytes).is_some(),
        "the batch must be readable again"
    );
    (batch.to_readings(), rejects)
}

/// Protocol Buffers: valid and invalid contents of a Sparkplug B metric.
fn metric() -> impl Strategy<Value = Vec<u8>> {
    let bytes = |n: u8| {
        prop::collection::vec(any::<u8>(), 0..5)
            .prop_map(move |v| [&[n << 3 | 2, v.len() as u8][..], &v].concat())
    };
    let number = |n: u8| (0u8..128).prop_map(move |v| vec![n << 3, v]);
    let field = prop_oneof![
        3 => prop::sample::select(vec!["a", "b", "bdSeq"]).prop_map(|n| [&[0x0a, n.len() as u8][..], n.as_bytes()].concat()),
        3 => (0u8..4).prop_map(|alias| vec![0x10, alias]),
        1 => (1u8..15).prop_map(|datatype| vec![0x20, datatype]),
        1 => prop::sample::select(vec![3, 6, 7]).prop_flat_map(number),
        2 => any::<u32>().prop_map(|v| {
            let mut out = vec![0x50];
            let mut rest = v;
            while rest >= 0x80 {
                out.push(rest as u8 | 0x80);
                rest >>= 7;
            }
            out.push(rest as u8);
            out
        }),
        2 => any::<f64>().prop_map(|v| [&[0x69][..], &v.to_le_bytes()].concat()),
        1 => any::<f32>().prop_map(|v| [&[0x65][..], &v.to_le_bytes()].concat()),
        1 => prop::sample::select(vec![1, 9, 15]).prop_flat_map(bytes),
    ];
    prop::collection::vec(field, 0..6).prop_map(|fields| fields.concat())
}

/// Contents that all formats can represent. Keys may be repeated.
#[derive(Debug, Clone)]
enum Tree {
    Null,
    Bool(bool),
    Int(i64),
    /// Beyond signed 64 bit: a reading cannot hold it, a tag can.
    Unsigned(u64),
    Double(f64),
    /// An infinity, which JSON writes as a literal beyond the range of a double.
    Infinite {
        negative: bool,
    },
    Text(String),
    Array(Vec<Tree>),
    Map(Vec<(String, Tree)>),
}

impl Tree {
    fn json(&self) -> String {
        let quoted = |text: &str| serde_json::to_string(text).unwrap();
        match self {
            Tree::Null => "null".to_owned(),
            Tree::Bool(v) => v.to_string(),
            Tree::Int(v) => v.to_string(),
            Tree::Unsigned(v) => v.to_string(),
            Tree::Infinite { negative: true } => "-1e999".to_owned(),
            Tree::Infinite { negative: false } => "1e999".to_owned(),
            // Always with a point or an exponent.
            Tree::Double(v) => format!("{v:?}"),
            Tree::Text(v) => quoted(v),
            Tree::Array(list) => format!(
                "[{}]",
                list.iter().map(Tree::json).collect::<Vec<_>>().join(",")
            ),
            Tree::Map(pairs) => {
                let pairs = pairs
                    .iter()
                    .map(|(k, v)| format!("{}:{}", quoted(k), v.json()));
                format!("{{{}}}", pairs.collect::<Vec<_>>().join(","))
            }
        }
    }

    /// `open`: of indefinite length, texts in chunks.
    fn cbor(&self, open: bool, out: &mut Vec<u8>) {
        match self {
            Tree::Null => out.push(0xf6),
            Tree::Bool(v) => out.push(0xf4 + u8::from(*v)),
            Tree::Int(v) if *v < 0 => cbor_head(1, v.wrapping_neg().wrapping_sub(1) as u64, out),
            Tree::Int(v) => cbor_head(0, *v as u64, out),
            // As a bignum (RFC 8949 §3.4.3).
            Tree::Unsigned(v) if open => {
                out.extend([0xc2, 0x48]);
                out.extend(v.to_be_bytes());
            }
            Tree::Unsigned(v) => cbor_head(0, *v, out),
            Tree::Infinite { negative } => {
                out.extend([0xf9, if *negative { 0xfc } else { 0x7c }, 0x00])
            }
            // A float32 is stored as its shortest decimal.
            Tree::Double(v) if format!("{:e}", *v as f32).parse() == Ok(*v) => {
                out.push(0xfa);
                out.extend((*v as f32).to_be_bytes());
            }
            Tree::Double(v) => {
                out.push(0xfb);
                out.extend(v.to_be_bytes());
            }
            Tree::Text(v) if open => {
                let at = (0..=v.len() / 2)
                    .rev()
                    .find(|i| v.is_char_boundary(*i))
                    .unwrap();
                out.push(0x7f);
                cbor_text(&v[..at], out);
                cbor_text(&v[at..], out);
                out.push(0xff);
            }
            Tree::Text(v) => cbor_text(v, out),
            Tree::Array(list) => {
                if open {
                    out.push(0x9f)
                } else {
                    cbor_head(4, list.len() as u64, out)
                }
                list.iter().for_each(|v| v.cbor(open, out));
                out.extend(open.then_some(0xff));
            }
            Tree::Map(pairs) => {
                if open {
                    out.push(0xbf)
                } else {
                    cbor_head(5, pairs.len() as u64, out)
                }
                for (k, v) in pairs {
                    cbor_text(k, out);
                    v.cbor(open, out);
                }
                out.extend(open.then_some(0xff));
            }
        }
    }

    fn msgpack(&self, out: &mut Vec<u8>) {
        let long = |kind: u8, len: usize, out: &mut Vec<u8>| {
            out.push(kind);
            out.extend((len as u32).to_be_bytes());
        };
        match self {
            Tree::Null => out.push(0xc0),
            Tree::Bool(v) => out.push(0xc2 + u8::from(*v)),
            Tree::Int(v @ 0..=127) => out.push(*v as u8),
            Tree::Int(v @ -32..0) => out.push(*v as i8 as u8),
            Tree::Int(v) => {
                out.push(0xd3);
                out.extend(v.to_be_bytes());
            }
            Tree::Unsigned(v) => {
                out.push(0xcf);
                out.extend(v.to_be_bytes());
            }
            Tree::Infinite { negative } => {
                let v = if *negative {
                    f64::NEG_INFINITY
                } else {
                    f64::INFINITY
                };
                Tree::Double(v).msgpack(out);
            }
            Tree::Double(v) => {
                out.push(0xcb);
                out.extend(v.to_be_bytes());
            }
            Tree::Text(v) => {
                if v.len() < 32 {
                    out.push(0xa0 + v.len() as u8)
                } else {
                    long(0xdb, v.len(), out)
                }
                out.extend(v.as_bytes());
            }
            Tree::Array(list) => {
                if list.len() < 16 {
                    out.push(0x90 + list.len() as u8)
                } else {
                    long(0xdd, list.len(), out)
                }
                list.iter().for_each(|v| v.msgpack(out));
            }
            Tree::Map(pairs) => {
                if pairs.len() < 16 {
                    out.push(0x80 + pairs.len() as u8)
                } else {
                    long(0xdf, pairs.len(), out)
                }
                for (k, v) in pairs {
                    Tree::Text(k.clone()).msgpack(out);
                    v.msgpack(out);
                }
            }
        }
    }
}

fn cbor_head(major: u8, n: u64, out: &mut Vec<u8>) {
    match n {
        0..=23 => out.push(major << 5 | n as u8),
        24..=0xff => out.extend([major << 5 | 24, n as u8]),
        _ => {
            out.push(major << 5 | 27);
            out.extend(n.to_be_bytes());
        }
    }
}

fn cbor_text(text: &str, out: &mut Vec<u8>) {
    cbor_head(3, text.len() as u64, out);
    out.extend(text.as_bytes());
}

fn all(trees: &[Tree], write: impl Fn(&Tree, &mut Vec<u8>)) -> Vec<u8> {
    let mut out = vec![];
    trees.iter().for_each(|tree| write(tree, &mut out));
    out
}

fn text() -> impl Strategy<Value = String> {
    let chars = prop::collection::vec(any::<char>(), 0..6).prop_map(String::from_iter);
    prop_oneof![4 => "[a-c]{1,3}", 1 => "[ -~]{0,40}", 1 => chars]
}

fn scalar() -> impl Strategy<Value = Tree> {
    prop_oneof![
        1 => Just(Tree::Null),
        1 => any::<bool>().prop_map(Tree::Bool),
        2 => any::<i64>().prop_map(Tree::Int),
        2 => (-300i64..300).prop_map(Tree::Int),
        2 => any::<f64>().prop_filter("finite", |v| v.is_finite()).prop_map(Tree::Double),
        1 => any::<f32>().prop_filter("finite", |v| v.is_finite()).prop_map(|v| Tree::Double(v.into())),
        1 => (1 << 63..=u64::MAX).prop_map(Tree::Unsigned),
        2 => text().prop_map(Tree::Text),
    ]
}

/// A scalar as a member. JSON rejects a literal beyond the range of a double instead of an object
/// as `invalid_json`, because the parser finds it first; so `anything` has none.
fn member_scalar() -> impl Strategy<Value = Tree> {
    prop_oneof![12 => scalar(), 1 => any::<bool>().prop_map(|negative| Tree::Infinite { negative })]
}

fn anything() -> impl Strategy<Value = Tree> {
    scalar().prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Tree::Array),
            prop::collection::vec((text(), inner), 0..4).prop_map(Tree::Map),
        ]
    })
}

fn ts() -> impl Strategy<Value = Tree> {
    prop_oneof![
        (0i64..4_000_000_000).prop_map(Tree::Int),
        (0i64..4_000_000_000_000).prop_map(Tree::Int),
        (0.0..4e9).prop_map(Tree::Double),
        Just(Tree::Text("2024-03-01T11:00:00+01:00".into())),
        Just(Tree::Text("1709290800".into())),
        member_scalar(),
        anything(),
    ]
}

/// A map that is a reading, almost one, or none.
fn reading() -> impl Strategy<Value = Tree> {
    let id = prop_oneof![6 => Just(Tree::Text("S1".into())), 1 => anything()];
    let members = || {
        prop::collection::vec(
            (text(), prop_oneof![4 => member_scalar(), 1 => anything()]),
            0..8,
        )
    };
    let member = prop_oneof![
        6 => id.prop_map(|v| ("sensor_id".to_owned(), v)),
        2 => ts().prop_map(|v| ("ts".to_owned(), v)),
        1 => (prop::sample::select(vec!["t", "time", "timestamp"]), ts()).prop_map(|(k, v)| (k.to_owned(), v)),
        1 => prop_oneof![Just(Tree::Text("ms".into())), scalar()].prop_map(|v| ("ts_unit".to_owned(), v)),
        2 => prop_oneof![3 => members().prop_map(Tree::Map), 1 => anything()].prop_map(|v| ("values".to_owned(), v)),
        2 => prop_oneof![3 => members().prop_map(Tree::Map), 1 => anything()].prop_map(|v| ("tags".to_owned(), v)),
        4 => (text(), member_scalar()),
        1 => (text(), anything()),
    ];
    prop_oneof![9 => prop::collection::vec(member, 0..8).prop_map(Tree::Map), 1 => anything()]
}

/// A record of SenML, mostly valid.
fn record() -> impl Strategy<Value = Vec<(String, Tree)>> {
    let number = || {
        prop_oneof![
            (-1000i64..1000).prop_map(Tree::Int),
            (-1e3..1e3).prop_map(Tree::Double)
        ]
    };
    let name = || "[a-c:/]{0,3}".prop_map(Tree::Text);
    let field = prop_oneof![
        3 => name().prop_map(|v| ("n", v)),
        1 => name().prop_map(|v| ("bn", v)),
        1 => prop_oneof![Just(Tree::Int(1_709_290_000)), number()].prop_map(|v| ("bt", v)),
        1 => text().prop_map(|v| ("bu", Tree::Text(v))),
        1 => number().prop_map(|v| ("bv", v)),
        1 => number().prop_map(|v| ("bs", v)),
        1 => text().prop_map(|v| ("u", Tree::Text(v))),
        4 => number().prop_map(|v| ("v", v)),
        1 => text().prop_map(|v| ("vs", Tree::Text(v))),
        1 => any::<bool>().prop_map(|v| ("vb", Tree::Bool(v))),
        1 => number().prop_map(|v| ("s", v)),
        1 => number().prop_map(|v| ("t", v)),
        1 => (prop::sample::select(vec!["n", "bn", "bt", "v", "s", "u", "foo", "ut"]), scalar()),
    ];
    prop::collection::vec(field, 0..5)
        .prop_map(|fields| fields.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())
}

/// With the details, which are the same in all formats, except for numbers that are not finite:
/// only JSON has a literal for them.
fn result_with_details((readings, rejects): &(Vec<Reading>, Rejects)) -> String {
    let detail = |r: &Reject| match r.reason {
        RejectReason::NotFinite => String::new(),
        RejectReason::BadTimestamp if r.detail.ends_with(" is not a time") => String::new(),
        _ => r.detail.clone(),
    };
    let rejects: Vec<_> = rejects
        .list()
        .iter()
        .map(|r| (r.index, r.reason, detail(r)))
        .collect();
    format!("{readings:?} {rejects:?}")
}

/// A payload of these elements, alone and concatenated, gives the same readings and rejects in
/// every encoding.
fn the_same_in_all_formats(topic: &Topic, trees: &[Tree], open: bool) -> Result<(), TestCaseError> {
    let array = [Tree::Array(trees.to_vec())];
    let text = array[0].json();
    let json = result_with_details(&run_from(topic, Format::Json, text.as_bytes()));
    let cbor = all(&array, |tree, out| tree.cbor(open, out));
    prop_assert_eq!(
        &result_with_details(&run_from(topic, Format::Cbor, &cbor)),
        &json,
        "{}",
        text
    );
    let msgpack = all(&array, Tree::msgpack);
    prop_assert_eq!(
        &result_with_details(&run_from(topic, Format::MessagePack, &msgpack)),
        &json,
        "{}",
        text
    );
    // As lines.
    if !trees.is_empty() {
        let lines: Vec<_> = trees.iter().map(Tree::json).collect();
        let lines = result_with_details(&run_from(
            topic,
            Format::Ndjson,
            lines.join("\n").as_bytes(),
        ));
        prop_assert_eq!(&lines, &json, "{}", text);
    }
    // Concatenated, if they are objects.
    if trees.iter().all(|tree| matches!(tree, Tree::Map(_))) && !trees.is_empty() {
        let json = result_with_details(&run_from(
            topic,
            Format::Json,
            all(trees, |tree, out| out.extend(tree.json().bytes())).as_slice(),
        ));
        let cbor = all(trees, |tree, out| tree.cbor(!open, out));
        prop_assert_eq!(
            &result_with_details(&run_from(topic, Format::Cbor, &cbor)),
            &json
        );
        let msgpack = all(trees, Tree::msgpack);
        prop_assert_eq!(
            &result_with_details(&run_from(topic, Format::MessagePack, &msgpack)),
            &json
        );
    }
    Ok(())
}

fn debug_text((readings, rejects): &(Vec<Reading>, Rejects)) -> String {
    let reasons: Vec<_> = rejects.list().iter().map(|r| (r.index, r.reason)).collect();
    // As debug text, which distinguishes -0.0 from 0.0 and 1 from 1.0.
    format!("{readings:?} {reasons:?}")
}

/// The limits of one reading, from below and from above.
#[test]
fn all_formats_have_the_same_limits() {
    let id = || ("sensor_id".to_owned(), Tree::Text("S1".into()));
    let one = || ("v".to_owned(), Tree::Int(1));
    let with = |member: (&str, Tree)| Tree::Map(vec![id(), one(), (member.0.to_owned(), member.1)]);
    let inside = |part: &str, member: Tree| with((part, Tree::Map(vec![("x".to_owned(), member)])));
    let nested = |n: usize| (1..n).fold(Tree::Array(vec![]), |inner, _| Tree::Array(vec![inner]));
    let mut trees = vec![];
    for n in 123..=129 {
        trees.extend([
            with(("x", nested(n))),
            inside("tags", nested(n)),
            inside("values", nested(n)),
        ]);
    }
    let keys = |n: usize| {
        (0..n)
            .map(|i| (format!("k{i}"), Tree::Null))
            .collect::<Vec<_>>()
    };
    for n in [508, 509, 510, 511, 600] {
        trees.push(Tree::Map([vec![id(), one()], keys(n)].concat()));
        trees.push(with(("tags", Tree::Map(keys(n)))));
    }
    for n in [5, 6, 7] {
        let values = |_| {
            keys(n)
                .into_iter()
                .map(|(key, _)| (key, Tree::Int(1)))
                .collect()
        };
        trees.push(with(("values", Tree::Map(values(())))));
        trees.push(with(("tags", Tree::Map(values(())))));
    }
    for open in [false, true] {
        the_same_in_all_formats(&Topic::default(), &trees, open).unwrap();
        for tree in &trees {
            the_same_in_all_formats(&Topic::default(), std::slice::from_ref(tree), open).unwrap();
        }
    }
    let (readings, rejects) = run(Format::Json, Tree::Array(trees).json().as_bytes());
    let count = |reason| rejects.list().iter().filter(|r| r.reason == reason).count();
    assert!(
        !readings.is_empty() && count(RejectReason::TooDeep) > 0,
        "{rejects:?}"
    );
    assert!(
        count(RejectReason::TooManyFields) > 0 && count(RejectReason::TooManyTags) > 0,
        "{rejects:?}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_readings_or_rejects(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        for format in BINARY {
            let (readings, rejects) = run(format, &bytes);
            // An empty array gives neither, with or without tags before it.
            let empty = matches!(bytes.trim_ascii(), [0x80..=0x9f | 0xc0..=0xdf | b'[', ..]);
            prop_assert!(!readings.is_empty() || !rejects.is_empty() || empty, "{format:?} {bytes:x?}");
        }
    }

    /// The same elements three times, so that the fast path of JSON, which compares with earlier
    /// readings, is tested too.
    #[test]
    fn all_formats_of_a_payload_give_the_same(
        trees in prop::collection::vec(reading(), 0..5),
        open in any::<bool>(),
        topic in topic(),
        times in prop::sample::select(vec![1, 1, 3]),
    ) {
        the_same_in_all_formats(&topic, &vec![trees; times].concat(), open)?;
    }

    /// After a cut at any place, the complete elements before it are unchanged, and the cut is one
    /// reject.
    #[test]
    fn elements_before_a_cut_are_kept(
        trees in prop::collection::vec(reading(), 1..5),
        at in any::<prop::sample::Index>(),
        open in any::<bool>(),
    ) {
        let array = [Tree::Array(trees)];
        for (format, payload) in [
            (Format::Cbor, all(&array, |tree, out| tree.cbor(open, out))),
            (Format::MessagePack, all(&array, Tree::msgpack)),
        ] {
            let (whole, _) = run(format, &payload);
            let (readings, rejects) = run(format, &payload[..at.index(payload.len() - 1) + 1]);
            prop_assert_eq!(format!("{readings:?}"), format!("{:?}", &whole[..readings.len()]));
            let broken = [RejectReason::InvalidCbor, RejectReason::InvalidMsgpack];
            prop_assert_eq!(rejects.list().iter().filter(|r| broken.contains(&r.reason)).count(), 1);
        }
    }

    #[test]
    fn a_damaged_byte_never_panics(
        trees in prop::collection::vec(reading(), 1..5),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let array = [Tree::Array(trees)];
        let mut cbor = all(&array, |tree, out| tree.cbor(false, out));
        let i = at.index(cbor.len());
        cbor[i] = byte;
        run(Format::Cbor, &cbor);
        run(Format::SenmlCbor, &cbor);
        let mut msgpack = all(&array, Tree::msgpack);
        let i = at.index(msgpack.len());
        msgpack[i] = byte;
        run(Format::MessagePack, &msgpack);
    }

    #[test]
    fn a_pack_is_the_same_in_json_and_cbor(records in prop::collection::vec(record(), 0..8), open in any::<bool>()) {
        let pack = Tree::Array(records.iter().cloned().map(Tree::Map).collect());
        let json = run(Format::Senml, pack.json().as_bytes());
        let mut cbor = vec![];
        pack.cbor(open, &mut cbor);
        prop_assert_eq!(debug_text(&run(Format::SenmlCbor, &cbor)), debug_text(&json), "{}", pack.json());
        // Each record is a value of one reading, or one reject; a sum is another value, and records
        // with only base values are neither.
        let (readings, rejects) = json;
        let measured = |r: &Vec<(String, Tree)>| {
            let regular = |(k, v): &(String, Tree)| !matches!(v, Tree::Null) && !k.starts_with('b') && k != "foo";
            r.iter().any(regular) || !r.iter().any(|(k, v)| k.starts_with('b') && !matches!(v, Tree::Null))
        };
        let values: usize = readings.iter().map(|r| r.values.len()).sum();
        let n = records.iter().filter(|r| measured(r)).count();
        prop_assert!(values + rejects.total() >= n, "{}", pack.json());
        prop_assert!(readings.len() + rejects.total() <= records.len(), "{}", pack.json());
        for reject in rejects.list() {
            prop_assert!(reject.index < records.len());
        }
    }

    /// A session of any messages: each metric is a value, a reject or nothing, and a node is asked
    /// for a rebirth once.
    #[test]
    fn any_session_of_sparkplug_never_panics(
        messages in prop::collection::vec(
            (
                prop::sample::select(vec!["NBIRTH/N", "NDATA/N", "NDEATH/N", "DBIRTH/N/D", "DDATA/N/D", "DDEATH/N/D", "NCMD/N"]),
                prop::collection::vec(metric(), 0..5),
                0u8..6,
                prop::option::weighted(0.1, any::<u8>()),
            ),
            0..12,
        ),
    ) {
        let limits = Config::default().limits;
        let line = Config::default().line;
        let cx = Context {
            limits: &limits, line: &line, received_at_ms: NOW, ts_unit: None, sensor_id: None, field: None, tags: &[], ..Context::usual() };
        let mut state = Sparkplug::new();
        let mut asked = 0;
        for (kind, metrics, seq, damage) in messages {
            let mut payload: Vec<u8> = metrics.iter().flat_map(|m| [&[0x12, m.len() as u8][..], m].concat()).collect();
            payload.extend([0x18, seq]);
            if let Some(byte) = damage {
                let at = usize::from(byte) % payload.len();
                payload[at] = byte;
            }
            let mut out = BatchBuilder::new(limits.fields_max);
            let mut rejects = Rejects::new();
            let rebirth = state.decode(&format!("spBv1.0/G/{kind}"), &payload, &cx, &mut out, &mut rejects);
            asked += usize::from(rebirth.is_some());
            let readings = out.finish().to_readings();
            let values: usize = readings.iter().map(|r| r.values.len()).sum();
            prop_assert!(damage.is_some() || values + rejects.total() <= metrics.len(), "{kind} {payload:x?}");
            for reading in &readings {
                prop_assert_eq!(&*reading.sensor_id, if kind.ends_with('D') { "G/N/D" } else { "G/N" });
            }
            for reject in rejects.list() {
                prop_assert!(reject.reason != RejectReason::TooManyMetrics);
            }
        }
        prop_assert!(asked <= 1);
    }
}
