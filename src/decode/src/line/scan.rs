//! The tokens of line protocol: their ends, escapes and numbers.
//!
//! A backslash escapes only characters that would otherwise end the word; before any other
//! character it is literal. In a quoted text it escapes the quote and itself. A line break ends
//! everything except a quoted text.

use std::borrow::Cow;

use memchr::memchr_iter;

use crate::swar::{self, digits};
use crate::{RejectReason, decimal};
use model::ValueRef;

/// The characters that end a word, and those that a backslash escapes.
pub(super) struct Kind {
    /// The class of each byte, so that every byte of a payload needs one lookup.
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

/// A word as written.
pub(super) struct Word<'t> {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) raw: &'t str,
    has_escapes: bool,
}

impl<'t> Word<'t> {
    /// The word at `start`; empty if it ends immediately.
    pub(super) fn scan(text: &'t str, start: usize, kind: &Kind) -> Word<'t> {
        let bytes = text.as_bytes();
        let mut end = start;
        let mut has_escapes = false;
        while let Some(&b) = bytes.get(end) {
            match kind.classes[usize::from(b)] {
                Class::Plain => end += 1,
                Class::End => break,
                Class::Backslash => {
                    let escapes = bytes
                        .get(end + 1)
                        .is_some_and(|next| kind.escapes.contains(next));
                    has_escapes |= escapes;
                    end += 1 + usize::from(escapes);
                }
            }
        }
        Word {
            start,
            end,
            raw: &text[start..end],
            has_escapes,
        }
    }

    /// The text with escapes resolved.
    pub(super) fn text(&self, kind: &Kind) -> Cow<'t, str> {
        if self.has_escapes {
            Cow::Owned(unescaped(self.raw, kind.escapes))
        } else {
            Cow::Borrowed(self.raw)
        }
    }
}

/// Removes escaping backslashes; each is followed by one ASCII byte.
fn unescaped(raw: &str, escapes: &[u8]) -> String {
    let mut text = String::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(at) = rest.find('\\') {
        let escapes = rest
            .as_bytes()
            .get(at + 1)
            .is_some_and(|next| escapes.contains(next));
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

/// The quoted text whose opening quote is at `open`, and the offset after it; `None` if it is not
/// closed or another character follows immediately.
pub(super) fn quoted(text: &str, open: usize) -> Option<(Cow<'_, str>, usize)> {
    let (close, has_escapes) = closing_quote(text.as_bytes(), open)?;
    let raw = &text[open + 1..close];
    let content = if has_escapes {
        Cow::Owned(unescaped(raw, b"\"\\"))
    } else {
        Cow::Borrowed(raw)
    };
    ends_value(text.as_bytes().get(close + 1)).then_some((content, close + 1))
}

fn closing_quote(bytes: &[u8], open: usize) -> Option<(usize, bool)> {
    let mut at = open + 1;
    let mut has_escapes = false;
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

/// An unquoted value or time, and the offset after it.
pub(super) fn bare(text: &str, at: usize) -> (&str, usize) {
    let bytes = text.as_bytes();
    let mut end = at;
    while !ends_value(bytes.get(end)) {
        end += 1;
    }
    (&text[at..end], end)
}

/// The end of the tag's value at `start`, if it contains no backslash.
pub(super) fn plain_tag_value(bytes: &[u8], start: usize) -> Option<usize> {
    let end = swar::find(bytes, start, 0, [b',', b' ', b'\n', b'\\']);
    (bytes.get(end) != Some(&b'\\')).then_some(end)
}

/// The integer at `at` in the usual notation of a time, and its end; `None` for any other notation.
pub(super) fn integer(bytes: &[u8], at: usize) -> Option<(i64, usize)> {
    let (n, end) = digits(bytes, at);
    let whole = end > at && ends_value(bytes.get(end));
    whole
        .then(|| i64::try_from(n).ok())
        .flatten()
        .map(|n| (n, end))
}

/// The number at `at` in its usual notation, and its end, in one pass. The result equals that of
/// [`value`]; `None` for any other notation.
pub(super) fn simple(bytes: &[u8], at: usize) -> Option<(ValueRef<'static>, usize)> {
    let negative = bytes.get(at) == Some(&b'-');
    let begin = at + usize::from(negative);
    let (whole, point) = digits(bytes, begin);
    if point == begin {
        return None;
    }
    let (value, end) = match bytes.get(point) {
        Some(b'i') => {
            let n = i64::try_from(whole).ok()?;
            (ValueRef::Int(if negative { -n } else { n }), point + 1)
        }
        next => {
            let mut n = whole;
            let mut end = point;
            let mut decimals = 0;
            if next == Some(&b'.') {
                let (fraction, fraction_end) = digits(bytes, point + 1);
                (end, decimals) = (fraction_end, fraction_end - (point + 1));
                // Nineteen digits in total are never an exact double, and could overflow below.
                if point - begin + decimals > 18 {
                    return None;
                }
                n = n * decimal::POWERS_OF_TEN[decimals] + fraction;
            }
            let v = decimal::exact(n, decimals)?;
            (ValueRef::Double(if negative { -v } else { v }), end)
        }
    };
    ends_value(bytes.get(end)).then_some((value, end))
}

/// Parses a literal; the error is the reject's reason.
pub(super) fn value(literal: &str) -> Result<ValueRef<'static>, RejectReason> {
    match literal.as_bytes().last() {
        Some(b'0'..=b'9' | b'.') => {
            if let Some(v) = short_decimal(literal.as_bytes()) {
                return Ok(ValueRef::Double(v));
            }
            let v: f64 = literal.parse().map_err(|_| RejectReason::InvalidLine)?;
            if v.is_finite() {
                Ok(ValueRef::Double(v))
            } else {
                Err(RejectReason::NotFinite)
            }
        }
        // Unsigned integers are stored as signed ones, because BSON has no other 64-bit integer.
        Some(b'i' | b'u') => suffixed(literal),
        _ => word(literal),
    }
}

/// A decimal of up to fifteen digits, as most sensors send. The library parses all others.
fn short_decimal(literal: &[u8]) -> Option<f64> {
    const DIGITS_MAX: usize = 15;
    let (digits, negative) = match literal.split_first()? {
        (b'-', rest) => (rest, true),
        _ => (literal, false),
    };
    // One more byte for the decimal point.
    if digits.len() > DIGITS_MAX + 1 || !digits.first()?.is_ascii_digit() {
        return None;
    }
    let mut n = 0u64;
    let mut point = None;
    for (i, &b) in digits.iter().enumerate() {
        match b {
            b'0'..=b'9' => n = n * 10 + u64::from(b - b'0'),
            b'.' if point.is_none() => point = Some(i),
            _ => return None,
        }
    }
    let decimals = point.map_or(0, |point| digits.len() - 1 - point);
    // Without a decimal point there could be sixteen digits, which may not fit a double.
    if point.is_none() && digits.len() > DIGITS_MAX {
        return None;
    }
    let v = decimal::exact(n, decimals)?;
    Some(if negative { -v } else { v })
}

fn suffixed(literal: &str) -> Result<ValueRef<'static>, RejectReason> {
    let digits = &literal[..literal.len() - 1];
    let unsigned = literal.ends_with('u');
    if unsigned && digits.starts_with('-') {
        return Err(RejectReason::InvalidLine);
    }
    digits.parse().map(ValueRef::Int).map_err(|_| {
        let digits = digits.strip_prefix(['-', '+']).unwrap_or(digits);
        let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        if is_number {
            RejectReason::IntegerOutOfRange
        } else {
            RejectReason::InvalidLine
        }
    })
}

fn word(literal: &str) -> Result<ValueRef<'static>, RejectReason> {
    match literal {
        "t" | "T" | "true" | "True" | "TRUE" => return Ok(ValueRef::Bool(true)),
        "f" | "F" | "false" | "False" | "FALSE" => return Ok(ValueRef::Bool(false)),
        _ => {}
    }
    let unsigned = literal.strip_prefix(['-', '+']).unwrap_or(literal);
    let not_finite = ["nan", "inf", "infinity"]
        .iter()
        .any(|word| unsigned.eq_ignore_ascii_case(word));
    Err(if not_finite {
        RejectReason::NotFinite
    } else {
        RejectReason::InvalidLine
    })
}

/// The offset of the first byte from `at` on that is not a blank. A carriage return is a blank,
/// because it precedes a line break.
pub(super) fn skip_blank(bytes: &[u8], mut at: usize) -> usize {
    while matches!(bytes.get(at), Some(b' ' | b'\t' | b'\r')) {
        at += 1;
    }
    at
}

/// The offset of the next line break, or the end.
pub(super) fn newline(bytes: &[u8], at: usize) -> usize {
    bytes[at..]
        .iter()
        .position(|b| *b == b'\n')
        .map_or(bytes.len(), |n| at + n)
}

/// The number of line breaks.
pub(super) fn newlines(bytes: &[u8]) -> usize {
    memchr_iter(b'\n', bytes).count()
}

/// The rest of the line, for a message.
pub(super) fn rest(text: &str, at: usize) -> &str {
    text[at..newline(text.as_bytes(), at)].trim_end()
}

/// The end of a malformed line. A text starts after `="`, and its line breaks belong to it. But if
/// the text is not properly closed, the quote itself is the error, and the next line break ends the
/// line. Linear over all lines of a payload, because a quote after `=` also closes any text that
/// started before it.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fast_path_for_numbers_agrees_with_the_parser() {
        let mut rng = fastrand::Rng::with_seed(7);
        let alphabet = b"0123456789012345678901234567890123456789..-+eiut";
        let mut in_one_pass = 0;
        let mut others = 0;
        for _ in 0..200_000 {
            let literal: Vec<u8> = (0..rng.usize(1..22))
                .map(|_| alphabet[rng.usize(..alphabet.len())])
                .collect();
            let literal = String::from_utf8(literal).unwrap();
            for end in ["", ",", " ", "\n", "x"] {
                let text = format!("{literal}{end}");
                match (simple(text.as_bytes(), 0), value(&literal)) {
                    (Some((ValueRef::Double(a), n)), Ok(ValueRef::Double(b)))
                        if n == literal.len() && end != "x" =>
                    {
                        assert_eq!(a.to_bits(), b.to_bits(), "{literal}");
                        in_one_pass += 1;
                    }
                    (Some((ValueRef::Int(a), n)), Ok(ValueRef::Int(b)))
                        if n == literal.len() && end != "x" =>
                    {
                        assert_eq!(a, b, "{literal}");
                        in_one_pass += 1;
                    }
                    (None, _) => others += 1,
                    (a, b) => panic!("{text:?}: {a:?} and {b:?}"),
                }
                if let Some((n, _)) = integer(text.as_bytes(), 0) {
                    assert_eq!(literal.parse(), Ok(n), "{text:?}");
                }
            }
        }
        assert!(
            in_one_pass > 50_000 && others > 50_000,
            "{in_one_pass} {others}"
        );
    }

    #[test]
    fn common_numbers_are_read_in_one_pass() {
        for (text, expected) in [
            ("52.31854,", 52.31854),
            ("-0.5 ", -0.5),
            ("221\n", 221.0),
            ("5.", 5.0),
            ("0.1", 0.1),
        ] {
            assert_eq!(
                simple(text.as_bytes(), 0),
                Some((
                    ValueRef::Double(expected),
                    text.trim_end_matches([',', ' ', '\n']).len()
                ))
            );
        }
        assert_eq!(simple(b"-17i,", 0), Some((ValueRef::Int(-17), 4)));
        assert_eq!(
            integer(b"1700000000000000000", 0),
            Some((1_700_000_000_000_000_000, 19))
        );
    }
}
