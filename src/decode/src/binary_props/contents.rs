//! Contents of payloads, random ones too, and how JSON, CBOR and MessagePack write them.

use proptest::prelude::*;

/// Contents that all formats can represent. Keys may be repeated.
#[derive(Debug, Clone)]
pub(super) enum Tree {
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
    pub(super) fn json(&self) -> String {
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
    pub(super) fn cbor(&self, open: bool, out: &mut Vec<u8>) {
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

    pub(super) fn msgpack(&self, out: &mut Vec<u8>) {
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

pub(super) fn all(trees: &[Tree], write: impl Fn(&Tree, &mut Vec<u8>)) -> Vec<u8> {
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
pub(super) fn reading() -> impl Strategy<Value = Tree> {
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
pub(super) fn record() -> impl Strategy<Value = Vec<(String, Tree)>> {
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
