//! The words of the line protocol: where each ends, what its escapes mean, what its numbers are.
//!
//! A backslash escapes only what would otherwise end the word; before anything else it is itself. In a text in quotes it
//! escapes the quote and itself. A line break ends everything but a text in quotes.

use std::borrow::Cow;

use crate::decode::{decimal, reasons};
use crate::model::ValueRef;

/// What ends a word, and what a backslash can take that from (or could elsewhere in the line).
pub(super) struct Kind {
    /// By byte, what it is: one look for each byte of a payload.
    classes: [Class; 256],
    escapes: &'static [u8],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Plain,
    End,
    Backslash,
}

const fn kind(ends: &[u8], escapes: &'static [u8]) -> Kind {
    let mut classes = [Class::Plain; 256];
    classes[b'\\' as usize] = Class::Backslash;
    let mut i = 0;
    while i < ends.len() {
        classes[ends[i] as usize] = Class::End;
        i += 1;
    }
    Kind { classes, escapes }
}

pub(super) static MEASUREMENT: Kind = kind(b", \n", b", ");
pub(super) static TAG_KEY: Kind = kind(b",= \n", b",= ");
pub(super) static TAG_VALUE: Kind = kind(b", \n", b",= ");
pub(super) static FIELD_KEY: Kind = kind(b",= \n", b",= ");

/// A word as it stands in the text.
pub(super) struct Word<'t> {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) raw: &'t str,
    has_escapes: bool,
}

impl<'t> Word<'t> {
    /// The word at `start`; empty where one that ends it stands there.
    pub(super) fn read(text: &'t str, start: usize, kind: &Kind) -> Word<'t> {
        let bytes = text.as_bytes();
        let (mut end, mut has_escapes) = (start, false);
        while let Some(&b) = bytes.get(end) {
            match kind.classes[usize::from(b)] {
                Class::Plain => end += 1,
                Class::End => break,
                Class::Backslash => {
                    let escapes = bytes.get(end + 1).is_some_and(|next| kind.escapes.contains(next));
                    has_escapes |= escapes;
                    end += 1 + usize::from(escapes);
                }
            }
        }
        Word { start, end, raw: &text[start..end], has_escapes }
    }

    /// What it says.
    pub(super) fn text(&self, kind: &Kind) -> Cow<'t, str> {
        if self.has_escapes { Cow::Owned(unescaped(self.raw, kind.escapes)) } else { Cow::Borrowed(self.raw) }
    }
}

/// Without the backslashes that escape; each stands before a single byte of ASCII.
fn unescaped(raw: &str, escapes: &[u8]) -> String {
    let mut text = String::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(at) = rest.find('\\') {
        let escapes = rest.as_bytes().get(at + 1).is_some_and(|next| escapes.contains(next));
        text.push_str(&rest[..at + usize::from(!escapes)]);
        let next = at + 1;
        if escapes {
            text.push_str(&rest[next..next + 1]);
        }
        rest = &rest[next + usize::from(escapes)..];
    }
    text.push_str(rest);
    text
}

/// The text in quotes that begins at `open`, the place of its quote, and the place behind it; `None` where it is not closed
/// or something stands right behind it.
pub(super) fn quoted(text: &str, open: usize) -> Option<(Cow<'_, str>, usize)> {
    let (close, has_escapes) = closing_quote(text.as_bytes(), open)?;
    let raw = &text[open + 1..close];
    let content = if has_escapes { Cow::Owned(unescaped(raw, b"\"\\")) } else { Cow::Borrowed(raw) };
    ends_value(text.as_bytes().get(close + 1)).then_some((content, close + 1))
}

fn closing_quote(bytes: &[u8], open: usize) -> Option<(usize, bool)> {
    let (mut at, mut has_escapes) = (open + 1, false);
    loop {
        match bytes.get(at)? {
            b'"' => return Some((at, has_escapes)),
            b'\\' => {
                has_escapes = true;
                at += 2;
            }
            _ => at += 1,
        }
    }
}

fn ends_value(next: Option<&u8>) -> bool {
    matches!(next, None | Some(b',' | b' ' | b'\t' | b'\r' | b'\n'))
}

/// A value or time that is not in quotes, and the place behind it.
pub(super) fn bare(text: &str, at: usize) -> (&str, usize) {
    let bytes = text.as_bytes();
    let mut end = at;
    while !ends_value(bytes.get(end)) {
        end += 1;
    }
    (&text[at..end], end)
}

/// The value of a literal, or the reason why it has none.
pub(super) fn value(literal: &str) -> Result<ValueRef<'static>, &'static str> {
    match literal.as_bytes().last() {
        Some(b'0'..=b'9' | b'.') => {
            if let Some(v) = short_decimal(literal.as_bytes()) {
                return Ok(ValueRef::Double(v));
            }
            let v: f64 = literal.parse().map_err(|_| reasons::INVALID_LINE)?;
            if v.is_finite() { Ok(ValueRef::Double(v)) } else { Err(reasons::NOT_FINITE) }
        }
        // Unsigned ones are stored as what they fit into: there is no other 64 bit integer in BSON.
        Some(b'i' | b'u') => integer(literal),
        _ => word(literal),
    }
}

/// A decimal of up to fifteen digits, as sensors send them. Anything else is for the library.
fn short_decimal(literal: &[u8]) -> Option<f64> {
    const DIGITS_MAX: usize = 15;
    let (digits, negative) = match literal.split_first()? {
        (b'-', rest) => (rest, true),
        _ => (literal, false),
    };
    // The point is one more byte.
    if digits.len() > DIGITS_MAX + 1 || !digits.first()?.is_ascii_digit() {
        return None;
    }
    let (mut n, mut point) = (0u64, None);
    for (i, &b) in digits.iter().enumerate() {
        match b {
            b'0'..=b'9' => n = n * 10 + u64::from(b - b'0'),
            b'.' if point.is_none() => point = Some(i),
            _ => return None,
        }
    }
    let decimals = point.map_or(0, |point| digits.len() - 1 - point);
    // Without a point there may be sixteen digits, which a double does not hold any more.
    if point.is_none() && digits.len() > DIGITS_MAX {
        return None;
    }
    let v = decimal::exact(n, decimals)?;
    Some(if negative { -v } else { v })
}

fn integer(literal: &str) -> Result<ValueRef<'static>, &'static str> {
    let (digits, unsigned) = (&literal[..literal.len() - 1], literal.ends_with('u'));
    if unsigned && digits.starts_with('-') {
        return Err(reasons::INVALID_LINE);
    }
    digits.parse().map(ValueRef::Int).map_err(|_| {
        let digits = digits.strip_prefix(['-', '+']).unwrap_or(digits);
        let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        if is_number { reasons::INTEGER_OUT_OF_RANGE } else { reasons::INVALID_LINE }
    })
}

fn word(literal: &str) -> Result<ValueRef<'static>, &'static str> {
    match literal {
        "t" | "T" | "true" | "True" | "TRUE" => return Ok(ValueRef::Bool(true)),
        "f" | "F" | "false" | "False" | "FALSE" => return Ok(ValueRef::Bool(false)),
        _ => {}
    }
    let unsigned = literal.strip_prefix(['-', '+']).unwrap_or(literal);
    let not_finite = ["nan", "inf", "infinity"].iter().any(|word| unsigned.eq_ignore_ascii_case(word));
    Err(if not_finite { reasons::NOT_FINITE } else { reasons::INVALID_LINE })
}

/// How far blanks reach from `at`; a carriage return is one, since it stands before a line break.
pub(super) fn skip_blank(bytes: &[u8], mut at: usize) -> usize {
    while matches!(bytes.get(at), Some(b' ' | b'\t' | b'\r')) {
        at += 1;
    }
    at
}

/// The next line break, or the end.
pub(super) fn newline(bytes: &[u8], at: usize) -> usize {
    bytes[at..].iter().position(|b| *b == b'\n').map_or(bytes.len(), |n| at + n)
}

/// How many line breaks there are.
pub(super) fn newlines(bytes: &[u8]) -> usize {
    bytes.iter().filter(|b| **b == b'\n').count()
}

/// What is left of the line, for a message.
pub(super) fn rest(text: &str, at: usize) -> &str {
    text[at..newline(text.as_bytes(), at)].trim_end()
}

/// The end of a line that is broken. Behind `="` a text begins, and its line breaks belong to it; unless it is not
/// closed as it should be, for then it is the quote that is broken, and what stands behind the line break is a line of its
/// own. Linear over all lines of a payload: a quote behind `=` also closes whatever text began before it.
pub(super) fn line_end(bytes: &[u8], begin: usize) -> usize {
    let mut at = begin;
    while let Some(&b) = bytes.get(at) {
        match b {
            b'\n' => return at,
            b'"' if at > begin && bytes[at - 1] == b'=' => match closing_quote(bytes, at) {
                Some((close, _)) if ends_value(bytes.get(close + 1)) => at = close + 1,
                _ => return newline(bytes, at),
            },
            _ => at += 1,
        }
    }
    bytes.len()
}
