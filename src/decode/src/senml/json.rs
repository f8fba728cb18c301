//! A pack in JSON. This module walks the array, and serde_json parses one record at a time, as in
//! `super::super::json`. Members of a record are taken as raw text, so that numbers keep their
//! literals.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::pack::Pack;
use super::record::Record;
use crate::binary::Item;
use crate::json;
use crate::names::excerpt;
use crate::rejects::{Fault, Rejects};
use crate::split::{self, DEPTH_MAX, Within, skip_space};
use crate::token::Token;
use crate::{Context, RejectReason};
use model::BatchBuilder;

pub(crate) fn decode(
    payload: &[u8],
    cx: &Context<'_>,
    out: &mut BatchBuilder,
    rejects: &mut Rejects,
) {
    let bytes = payload.trim_ascii();
    match bytes.first() {
        None => rejects.push(0, RejectReason::EmptyPayload, "the payload is empty"),
        Some(b'[') => {
            let mut walk = Walk {
                bytes,
                pack: Pack::new(cx, out, rejects),
                record: Record::default(),
            };
            walk.array();
            walk.pack.finish();
        }
        Some(_) => rejects.push(
            0,
            RejectReason::InvalidSenml,
            "a pack must be an array of records",
        ),
    }
}

struct Walk<'a, 'de> {
    bytes: &'de [u8],
    pack: Pack<'a, 'de>,
    record: Record<'de>,
}

impl<'de> Walk<'_, 'de> {
    fn array(&mut self) {
        let mut at = skip_space(self.bytes, 1);
        if self.bytes.get(at) == Some(&b']') {
            return self.trailing(at + 1);
        }
        loop {
            if at == self.bytes.len() {
                return self.reject("the array ends; expected a record");
            }
            let (end, broken) = self.element(at);
            at = skip_space(self.bytes, end);
            match self.bytes.get(at) {
                Some(b',') => at = skip_space(self.bytes, at + 1),
                Some(b']') => return self.trailing(at + 1),
                // A missing comma, or the guessed start of the next record.
                Some(_) => {}
                None => {
                    // If the last record is broken too, its reject is enough.
                    if !broken {
                        self.reject("the array is not closed; more records may be missing");
                    }
                    return;
                }
            }
        }
    }

    /// Parses one record. Returns its end, and whether it was not JSON.
    fn element(&mut self, at: usize) -> (usize, bool) {
        let rest = &self.bytes[at..];
        self.record.clear();
        let mut parser = serde_json::Deserializer::from_slice(rest);
        let result = RecordSeed(&mut self.record).deserialize(&mut parser);
        let used = parser.into_iter::<IgnoredAny>().byte_offset();
        let ends_well = |n: usize| {
            matches!(
                rest.get(skip_space(rest, n)),
                None | Some(b',' | b']' | b'{')
            )
        };
        match result {
            Ok(()) if ends_well(used) => {
                self.pack.take(&mut self.record);
                (at + used, false)
            }
            result => {
                let extent = split::extent(rest, Within::Array);
                // At least one byte, so that the walk makes progress after two commas.
                let end = extent
                    .end
                    .max(usize::from(!matches!(rest.first(), Some(b',' | b']'))));
                if extent.guessed || may_have_bases(&rest[..end]) {
                    self.pack.lose_bases();
                }
                self.broken(&rest[..end], result.err(), extent.depth);
                (at + end, true)
            }
        }
    }

    /// Rejects a record that is not JSON.
    fn broken(&mut self, chunk: &[u8], error: Option<serde_json::Error>, depth: usize) {
        let fault = if depth > DEPTH_MAX {
            Fault::new(
                RejectReason::TooDeep,
                format!("nested {depth} levels deep; at most {DEPTH_MAX} are allowed"),
            )
        } else if let Err(e) = std::str::from_utf8(chunk) {
            Fault::new(
                RejectReason::InvalidUtf8,
                format!("not UTF-8 at byte {} of the record", e.valid_up_to()),
            )
        } else if let Some(word) = error
            .as_ref()
            .and_then(|e| json::not_finite(chunk, json::offset(chunk, e)))
        {
            let record = excerpt(&String::from_utf8_lossy(chunk));
            let detail =
                format!("{word} is not a number in JSON; leave such records out: {record}");
            Fault::new(RejectReason::NotFinite, detail)
        } else {
            let what = error.map_or_else(
                || "unexpected data after the record".to_owned(),
                |e| e.to_string(),
            );
            // Remove serde_json's position, which counts from the record.
            let what = what
                .split(" at line ")
                .next()
                .unwrap_or_default()
                .to_owned();
            Fault::new(
                RejectReason::InvalidJson,
                format!("{what}: {}", excerpt(&String::from_utf8_lossy(chunk))),
            )
        };
        self.pack.reject(fault);
    }

    fn trailing(&mut self, at: usize) {
        let at = skip_space(self.bytes, at);
        if at < self.bytes.len() {
            self.pack.reject(Fault::new(
                RejectReason::TrailingData,
                format!("unexpected data at byte {at}"),
            ));
        }
    }

    fn reject(&mut self, detail: &'static str) {
        self.pack
            .reject(Fault::new(RejectReason::InvalidJson, detail));
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
