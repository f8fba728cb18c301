//! Properties of the binary formats and of SenML: nothing panics, every element becomes one reading
//! or one reject, and equal contents give equal readings in every format.

mod contents;

use std::time::Duration;

use crate::sparkplug::Sparkplug;
use crate::{Context, Format, Reject, RejectReason, Rejects, TsUnit, decode};
use config::Limits;
use model::{BatchBuilder, Reading, ReadingBatch};
use proptest::prelude::*;

use contents::{Tree, all, reading, record};

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
        ..Context::usual().limits.clone()
    };
    let cx = Context {
        limits: &limits,
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
        let cx = Context {
            received_at_ms: NOW, ts_unit: None, sensor_id: None, field: None, tags: &[], ..Context::usual() };
        let mut state = Sparkplug::new();
        let mut asked = 0;
        for (kind, metrics, seq, damage) in messages {
            let mut payload: Vec<u8> = metrics.iter().flat_map(|m| [&[0x12, m.len() as u8][..], m].concat()).collect();
            payload.extend([0x18, seq]);
            if let Some(byte) = damage {
                let at = usize::from(byte) % payload.len();
                payload[at] = byte;
            }
            let mut out = BatchBuilder::new(cx.limits.fields_max);
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
