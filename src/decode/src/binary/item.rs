//! Builds values from heads: applies tags, joins chunks, and skips values that are not scalars.

use std::borrow::Cow;

use super::source::{Head, Malformed, MalformedKind, Source};
use crate::token::Time;

/// Levels to walk through in search of the end of a skipped value; deeper payloads are malformed.
pub(super) const SKIP_DEPTH_MAX: usize = 65_536;

/// The tags with a meaning here (RFC 8949 §3.4). Other tags are ignored and their value is used.
const TAG_EPOCH: u64 = 1;
const TAG_BIGNUM: u64 = 2;
const TAG_NEGATIVE_BIGNUM: u64 = 3;
const TAG_DECIMAL: u64 = 4;

/// A value, or the kind of value found instead.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Item<'de> {
    Null,
    Bool(bool),
    Int(i128),
    /// An integer of more than 128 bits.
    HugeInt,
    Double(f64),
    Text(Cow<'de, str>),
    /// A text that is not UTF-8.
    BadText,
    Bytes(Cow<'de, [u8]>),
    /// A time that carries its unit.
    Time(Time),
    /// A skipped array or map, with its name and depth.
    Nested(&'static str, usize),
    /// Another kind of value, with its name.
    Other(&'static str),
}

impl Item<'_> {
    /// The kind with its article, for messages.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Item::Null => "null",
            Item::Bool(_) => "a boolean",
            Item::Int(_) | Item::HugeInt => "an integer",
            Item::Double(_) => "a number",
            Item::Text(_) | Item::BadText => "a text",
            Item::Bytes(_) => "an octet string",
            Item::Time(_) => "a time",
            Item::Nested(what, _) | Item::Other(what) => what,
        }
    }
}

/// Reads values from a source.
#[derive(Debug)]
pub(crate) struct Items<'de, S> {
    source: S,
    /// The open containers while skipping: the number of values left in each; `None`: up to a
    /// break.
    open: Vec<Option<u64>>,
    payload: std::marker::PhantomData<&'de [u8]>,
    /// The tag before the last head.
    tag: Option<u64>,
}

impl<'de, S: Source<'de>> Items<'de, S> {
    pub(crate) fn new(source: S) -> Items<'de, S> {
        Items {
            source,
            open: Vec::new(),
            payload: std::marker::PhantomData,
            tag: None,
        }
    }

    pub(crate) fn at(&self) -> usize {
        self.source.at()
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.source.is_at_end()
    }

    fn malformed(&self, kind: MalformedKind) -> Malformed {
        Malformed {
            at: self.source.at(),
            kind,
        }
    }

    /// The next head that is not a tag. Of several tags, the innermost one with a meaning applies.
    pub(crate) fn head(&mut self) -> Result<Head<'de>, Malformed> {
        self.tag = None;
        loop {
            match self.source.head()? {
                Head::Tag(tag @ TAG_EPOCH..=TAG_DECIMAL) => self.tag = Some(tag),
                Head::Tag(_) => {}
                Head::Break => return Err(self.malformed(MalformedKind::Break)),
                head => return Ok(head),
            }
        }
    }

    /// Whether a tag with a meaning applies to the last head.
    pub(crate) fn is_tagged(&self) -> bool {
        self.tag.is_some()
    }

    /// Whether an array or map with `left` values has another one; decrements `left`.
    pub(crate) fn more(&mut self, left: &mut Option<u64>) -> Result<bool, Malformed> {
        match left {
            None => Ok(!self.source.eat_break()),
            Some(0) => Ok(false),
            Some(n) => {
                *n -= 1;
                Ok(true)
            }
        }
    }

    /// The next complete value.
    pub(crate) fn item(&mut self) -> Result<Item<'de>, Malformed> {
        let head = self.head()?;
        self.finish(head)
    }

    /// The value that starts with the given head, the last one read.
    pub(crate) fn finish(&mut self, head: Head<'de>) -> Result<Item<'de>, Malformed> {
        let tag = self.tag.take();
        if let (Some(TAG_DECIMAL), Head::Array(Some(2))) = (tag, head) {
            let exponent = self.head()?;
            let exponent = self.untagged(exponent)?;
            let mantissa = self.head()?;
            let mantissa_tag = self.tag.take();
            let mantissa = self.untagged(mantissa)?;
            return Ok(decimal(&exponent, &tagged(mantissa, mantissa_tag)));
        }
        let item = self.untagged(head)?;
        Ok(tagged(item, tag))
    }

    fn untagged(&mut self, head: Head<'de>) -> Result<Item<'de>, Malformed> {
        Ok(match head {
            Head::Null => Item::Null,
            Head::Bool(v) => Item::Bool(v),
            Head::Int(v) => Item::Int(v),
            Head::Double(v) => Item::Double(v),
            Head::Text(bytes) => {
                std::str::from_utf8(bytes).map_or(Item::BadText, |text| Item::Text(text.into()))
            }
            Head::Bytes(bytes) => Item::Bytes(bytes.into()),
            Head::Chunked { text } => self.pieces(text)?,
            Head::Array(len) => Item::Nested("an array", self.pass_over(len)?),
            Head::Map(len) => Item::Nested("an object", self.pass_over(doubled(len))?),
            Head::Time(nanos) => Item::Time(Time::Ms(saturated_ms(nanos))),
            Head::Other(what) => Item::Other(what),
            Head::Tag(_) | Head::Break => return Err(self.malformed(MalformedKind::TagOrBreak)),
        })
    }

    /// A text or bytes in chunks. Each chunk must be complete and of the same type (RFC 8949
    /// §3.2.3).
    fn pieces(&mut self, text: bool) -> Result<Item<'de>, Malformed> {
        let mut whole = Vec::new();
        while !self.source.eat_break() {
            match (self.source.head()?, text) {
                (Head::Text(piece), true) | (Head::Bytes(piece), false) => {
                    whole.extend_from_slice(piece)
                }
                _ => return Err(self.malformed(MalformedKind::ChunkType)),
            }
        }
        Ok(match text {
            true => String::from_utf8(whole).map_or(Item::BadText, |text| Item::Text(text.into())),
            false => Item::Bytes(whole.into()),
        })
    }

    /// Skips the rest of an array or map. Returns the number of its levels.
    fn pass_over(&mut self, len: Option<u64>) -> Result<usize, Malformed> {
        self.open.clear();
        self.open.push(len);
        let mut depth = 1;
        while let Some(left) = self.open.last_mut() {
            let mut counted = *left;
            let more = match &mut counted {
                None => !self.source.eat_break(),
                Some(n) => n.checked_sub(1).map(|rest| *n = rest).is_some(),
            };
            if !more {
                self.open.pop();
                continue;
            }
            *left = counted;
            let mut head = self.source.head()?;
            while let Head::Tag(_) = head {
                head = self.source.head()?;
            }
            match head {
                Head::Array(len) => self.open.push(len),
                Head::Map(len) => self.open.push(doubled(len)),
                Head::Chunked { text } => drop(self.pieces(text)?),
                Head::Break => return Err(self.malformed(MalformedKind::Break)),
                _ => {}
            }
            depth = depth.max(self.open.len());
            if depth > SKIP_DEPTH_MAX {
                return Err(self.malformed(MalformedKind::TooDeep));
            }
        }
        Ok(depth)
    }
}

/// The number of values in a map with this number of pairs. An impossible length hits the end of
/// the payload in any case.
fn doubled(len: Option<u64>) -> Option<u64> {
    len.map(|n| n.saturating_mul(2))
}

fn tagged<'de>(item: Item<'de>, tag: Option<u64>) -> Item<'de> {
    match (tag, item) {
        // Other numbers are not times: they stay what they are.
        (Some(TAG_EPOCH), Item::Int(v)) => {
            i64::try_from(v).map_or(Item::Int(v), |v| Item::Time(Time::Seconds(v)))
        }
        (Some(TAG_EPOCH), Item::Double(v)) if v.is_finite() => Item::Time(Time::SecondsDouble(v)),
        (Some(TAG_BIGNUM), Item::Bytes(bytes)) => bignum(&bytes).map_or(Item::HugeInt, Item::Int),
        (Some(TAG_NEGATIVE_BIGNUM), Item::Bytes(bytes)) => {
            bignum(&bytes).map_or(Item::HugeInt, |v| Item::Int(-1 - v))
        }
        (_, item) => item,
    }
}

/// Milliseconds, cut towards the past. MessagePack's timestamps reach further than 64 bits of
/// milliseconds, and every limit for times ends before.
fn saturated_ms(nanos: i128) -> i64 {
    let ms = nanos.div_euclid(1_000_000);
    i64::try_from(ms).unwrap_or(if ms < 0 { i64::MIN } else { i64::MAX })
}

fn bignum(bytes: &[u8]) -> Option<i128> {
    let zeros = bytes.iter().take_while(|b| **b == 0).count();
    let digits = &bytes[zeros..];
    (digits.len() < 16).then(|| digits.iter().fold(0, |v, b| v << 8 | i128::from(*b)))
}

/// `mantissa * 10^exponent`, rounded once.
fn decimal(exponent: &Item<'_>, mantissa: &Item<'_>) -> Item<'static> {
    match (exponent, mantissa) {
        (Item::Int(exponent), Item::Int(mantissa)) => format!("{mantissa}e{exponent}")
            .parse()
            .map_or(Item::Other("a decimal fraction"), Item::Double),
        _ => Item::Other("a decimal fraction"),
    }
}
