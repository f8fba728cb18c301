//! A pack in JSON. `elements` walks the array, and serde_json parses one record at a time. Members
//! of a record are taken as raw text, so that numbers keep their literals.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::pack::Pack;
use super::record::Record;
use crate::binary::Item;
use crate::elements::{self, Elements};
use crate::rejects::{Fault, Rejects};
use crate::split::skip_space;
use crate::token::Token;
use crate::{Context, RejectReason};
use model::BatchBuilder;

pub(crate) fn decode(
    payload: &[u8],
    cx: &Context<'_>,
    out: &mut BatchBuilder,
    rejects: &mut Rejects,
) {
    let mut records = Records {
        pack: Pack::new(cx, out, rejects),
        record: Record::default(),
    };
    match payload.get(skip_space(payload, 0)) {
        None | Some(b'[') => elements::walk(payload, &mut records),
        Some(_) => records.pack.reject(Fault::new(
            RejectReason::InvalidSenml,
            "a pack must be an array of records",
        )),
    }
    records.pack.finish();
}

struct Records<'a, 'de> {
    pack: Pack<'a, 'de>,
    record: Record<'de>,
}

impl<'de> Elements<'de> for Records<'_, 'de> {
    const WHAT: &'static str = "record";
    // A record whose value is null is rejected, because it has no value.
    const INSTEAD: &'static str = "leave such values out";

    fn parse(&mut self, bytes: &'de [u8]) -> serde_json::Result<usize> {
        self.record.clear();
        let mut parser = serde_json::Deserializer::from_slice(bytes);
        RecordSeed(&mut self.record).deserialize(&mut parser)?;
        Ok(parser.into_iter::<IgnoredAny>().byte_offset())
    }

    fn commit(&mut self, _place: Range<usize>, _guessed: bool) {
        self.pack.take(&mut self.record);
    }

    fn reject(&mut self, fault: Fault) {
        self.pack.reject(fault);
    }

    fn reject_before(&mut self, fault: Fault) {
        self.pack.reject_before(fault);
    }

    fn lose(&mut self, element: &[u8], cut: bool) {
        if cut || may_have_bases(element) {
            self.pack.lose_bases();
        }
    }
}

/// Whether unreadable bytes may have held a base field. With escapes a base field can be written in
/// many ways.
fn may_have_bases(chunk: &[u8]) -> bool {
    chunk.contains(&b'\\') || chunk.windows(2).any(|pair| pair == b"\"b")
}

/// A member's key, borrowed if it has no escapes.
#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

/// The value of a member's raw text.
fn item(raw: &str) -> Item<'_> {
    match raw.as_bytes() {
        [b'{', ..] => Item::Nested("an object", 1),
        [b'[', ..] => Item::Nested("an array", 1),
        [b'n', ..] => Item::Null,
        [b't', ..] => Item::Bool(true),
        [b'f', ..] => Item::Bool(false),
        // Without escapes the text is the part between the quotes; the parser has checked its end
        // and its bytes.
        [b'"', text @ .., b'"'] if !text.contains(&b'\\') => {
            Item::Text(Cow::Borrowed(&raw[1..raw.len() - 1]))
        }
        [b'"', ..] => serde_json::from_str::<String>(raw)
            .map_or(Item::BadText, |text| Item::Text(text.into())),
        _ => match Token::number(raw) {
            Some(Token::Int(v)) => Item::Int(i128::from(v)),
            Some(Token::Double(v)) => Item::Double(v),
            Some(Token::NotFinite(_)) => Item::Double(f64::INFINITY),
            _ => raw.parse().map_or(Item::HugeInt, Item::Int),
        },
    }
}

struct RecordSeed<'x, 'de>(&'x mut Record<'de>);

impl RecordSeed<'_, '_> {
    fn not_an_object<E: Error>(self, what: &str) -> Result<(), E> {
        self.0.fail(Fault::new(
            RejectReason::NotAnObject,
            format!("a record must be an object, not {what}"),
        ));
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for RecordSeed<'_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for RecordSeed<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a record")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(Key(label)) = map.next_key::<Key<'de>>()? {
            self.0
                .put(&label, item(map.next_value::<&'de RawValue>()?.get()));
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element::<&'de RawValue>()?.is_some() {}
        self.not_an_object("an array")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.not_an_object("null")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        self.not_an_object("a boolean")
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        self.not_an_object("a number")
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        self.not_an_object("a number")
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        self.not_an_object("a number")
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        self.not_an_object("a text")
    }
}
