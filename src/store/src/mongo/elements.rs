//! Walks the elements of a BSON document without decoding them.

use mongodb::bson::RawDocument;

const DOUBLE: u8 = 0x01;
const STRING: u8 = 0x02;
const BOOL: u8 = 0x08;
const DATE: u8 = 0x09;
const INT32: u8 = 0x10;
const INT64: u8 = 0x12;

/// The elements of a document or array; ends early if it is not valid.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Elements<'a>(&'a [u8]);

/// A value of one of the kinds that are needed here.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Element<'a> {
    kind: u8,
    pub(crate) name: &'a [u8],
    bytes: &'a [u8],
}

impl<'a> Elements<'a> {
    pub(crate) fn new(document: &'a RawDocument) -> Elements<'a> {
        Elements(document.as_bytes().get(4..).unwrap_or_default())
    }

    fn step(&mut self) -> Option<Element<'a>> {
        let (kind, rest) = self.0.split_first()?;
        let end = rest.iter().position(|byte| *byte == 0)?;
        let name = &rest[..end];
        let rest = &rest[end + 1..];
        let length = || Some(u32::from_le_bytes(*rest.first_chunk()?) as usize);
        let size = match *kind {
            DOUBLE | DATE | INT64 | 0x11 => 8,
            STRING | 0x0D | 0x0E => length()?.checked_add(4)?,
            // Documents and arrays; the length is part of them.
            0x03 | 0x04 => length()?,
            0x05 => length()?.checked_add(5)?,
            0x06 | 0x0A | 0x7F | 0xFF => 0,
            0x07 => 12,
            BOOL => 1,
            INT32 => 4,
            0x13 => 16,
            // The end of the document, or a kind that hourbucket does not write.
            _ => return None,
        };
        let (bytes, rest) = rest.split_at_checked(size)?;
        self.0 = rest;
        Some(Element {
            kind: *kind,
            name,
            bytes,
        })
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = Element<'a>;

    fn next(&mut self) -> Option<Element<'a>> {
        let element = self.step();
        if element.is_none() {
            self.0 = &[];
        }
        element
    }
}

impl<'a> Element<'a> {
    /// The elements of a document or array; none of anything else.
    pub(crate) fn elements(self) -> Elements<'a> {
        match self.kind {
            0x03 | 0x04 => Elements(self.bytes.get(4..).unwrap_or_default()),
            _ => Elements(&[]),
        }
    }

    fn int(self) -> Option<i64> {
        match self.kind {
            INT32 => Some(i32::from_le_bytes(*self.bytes.first_chunk()?).into()),
            INT64 => Some(i64::from_le_bytes(*self.bytes.first_chunk()?)),
            _ => None,
        }
    }

    /// A time, in milliseconds since 1970.
    pub(crate) fn time_ms(self) -> Option<i64> {
        let bytes = self.bytes.first_chunk().filter(|_| self.kind == DATE);
        bytes.map(|bytes| i64::from_le_bytes(*bytes))
    }

    pub(crate) fn text(self) -> Option<&'a str> {
        let bytes = self.bytes.get(4..).filter(|_| self.kind == STRING)?;
        std::str::from_utf8(bytes.strip_suffix(&[0])?).ok()
    }

    pub(crate) fn is_true(self) -> bool {
        self.kind == BOOL && self.bytes == [1]
    }

    /// The name as a text.
    pub(crate) fn key(self) -> Option<&'a str> {
        std::str::from_utf8(self.name).ok()
    }

    /// A number, or a boolean as 0 or 1.
    pub(crate) fn number(self) -> Option<f64> {
        match self.kind {
            DOUBLE => Some(f64::from_le_bytes(*self.bytes.first_chunk()?)),
            BOOL => Some(f64::from(u8::from(self.is_true()))),
            _ => self.int().map(|int| int as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{DateTime, RawBson, oid::ObjectId, rawdoc};

    use super::*;

    fn find<'a>(document: &'a RawDocument, name: &str) -> Option<Element<'a>> {
        Elements::new(document).find(|element| element.name == name.as_bytes())
    }

    #[test]
    fn every_kind_is_passed_over_and_a_cut_document_ends_early() {
        let document = rawdoc! {
            "a": 1.5, "text": "é", "in": { "b": 2 }, "list": [ true, 3_i64 ], "id": ObjectId::new(),
            "null": null, "at": DateTime::from_millis(-7), "flag": true, "last": -4,
        };
        let get = |name: &str| find(&document, name).unwrap();
        assert_eq!(get("a").number(), Some(1.5));
        assert_eq!(get("text").text(), Some("é"));
        assert_eq!(get("at").time_ms(), Some(-7));
        assert_eq!(
            (get("last").number(), get("last").text()),
            (Some(-4.0), None)
        );
        assert!(get("flag").is_true() && get("flag").number() == Some(1.0));
        let list: Vec<_> = get("list").elements().map(Element::number).collect();
        assert_eq!(list, [Some(1.0), Some(3.0)]);
        assert_eq!(get("in").elements().count(), 1);
        assert_eq!(get("a").elements().count(), 0);
        let bytes = document.as_bytes();
        for end in 4..bytes.len() {
            assert!(Elements(&bytes[4..end]).count() <= 9);
        }
        let strange = rawdoc! { "x": RawBson::MaxKey, "y": 1 };
        assert_eq!(find(&strange, "y").unwrap().number(), Some(1.0));
    }
}
