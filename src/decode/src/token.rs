//! One value of a member, reduced to the forms that a reading can use. It borrows from the payload
//! if it can: in JSON, unless a text has an escape. [`is_number`] and [`is_no_value`] classify
//! texts that may mean something else.

use std::borrow::Cow;

/// A scalar, or the kind of another value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token<'de> {
    Null,
    Bool(bool),
    Int(i64),
    /// A finite number.
    Double(f64),
    Str(Cow<'de, str>),
    /// An integer beyond signed 64 bit, in decimal. It is rare, and a box keeps the type as small
    /// as a text.
    BigInt(Box<str>),
    /// NaN, an infinity, or a literal beyond the range of a double.
    NotFinite(&'de str),
    /// An object, an array or another value that is not a scalar, with its article. It is skipped.
    NotScalar(&'static str),
    /// A time that carries its unit. Not in JSON.
    Time(Time),
    /// An integer of more than 127 bits. In JSON it is a `BigInt`.
    HugeInt,
    /// A text that is not UTF-8. In JSON the whole reading is rejected before.
    NotUtf8,
}

/// A time that carries its unit, so that `ts_unit` does not apply to it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Time {
    /// Seconds since 1970 (CBOR's tag 1). As a value this is a number.
    Seconds(i64),
    /// The same, finite.
    SecondsDouble(f64),
    /// Milliseconds since 1970 (MessagePack's timestamp). As a value this is a text in RFC 3339.
    Ms(i64),
}

impl<'de> Token<'de> {
    /// Parses a number literal as JSON writes it (for scalars also with a leading `+`, `.` or
    /// zeros).
    pub(super) fn number(literal: &str) -> Option<Token<'_>> {
        if literal.bytes().any(|b| matches!(b, b'.' | b'e' | b'E')) {
            let v: f64 = literal.parse().ok()?;
            return Some(if v.is_finite() {
                Token::Double(v)
            } else {
                Token::NotFinite(literal)
            });
        }
        Some(
            literal
                .parse()
                .map_or(Token::BigInt(literal.into()), Token::Int),
        )
    }

    /// An integer of any size.
    pub(super) fn integer(v: i128) -> Token<'de> {
        i64::try_from(v).map_or_else(|_| Token::BigInt(v.to_string().into()), Token::Int)
    }

    /// A number that may be infinite or NaN.
    pub(super) fn double(v: f64) -> Token<'de> {
        match v {
            v if v.is_finite() => Token::Double(v),
            v if v.is_nan() => Token::NotFinite("NaN"),
            v if v < 0.0 => Token::NotFinite("-Infinity"),
            _ => Token::NotFinite("Infinity"),
        }
    }

    /// The kind with its article, for messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Token::Null => "null",
            Token::Bool(_) => "a boolean",
            Token::Int(_)
            | Token::Double(_)
            | Token::BigInt(_)
            | Token::HugeInt
            | Token::NotFinite(_) => "a number",
            Token::Str(_) | Token::NotUtf8 => "a text",
            Token::Time(_) => "a time",
            Token::NotScalar(what) => what,
        }
    }
}

/// A token in its usual notation, as the fast paths parse it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Simple<'de> {
    Int(i64),
    Double(f64),
    Bool(bool),
    Str(&'de str),
}

/// Whether a text is a decimal number: `[+-] digits [. digits] [e [+-] digits]`, with digits on at
/// least one side of the point.
pub(super) fn is_number(text: &str) -> bool {
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((m, e)) => (m, Some(e.strip_prefix(['+', '-']).unwrap_or(e))),
        None => (unsigned, None),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let some_digit = !whole.is_empty() || !fraction.is_empty();
    some_digit
        && digits(whole)
        && digits(fraction)
        && exponent.is_none_or(|e| !e.is_empty() && digits(e))
}

/// Whether a text is a number, or a word in its place, and no id such as `0042`.
pub fn stands_for_number(text: &str) -> bool {
    let text = text.trim();
    (is_number(text) && !is_zero_padded(text)) || is_no_value(text)
}

/// Whether a number begins with a zero that it does not need, such as an id or a code.
pub(super) fn is_zero_padded(text: &str) -> bool {
    text.strip_prefix('0')
        .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// Whether a text means "no value", in any case: the words that ESPHome, Home Assistant and printf
/// write.
pub(super) fn is_no_value(text: &str) -> bool {
    const WORDS: [&str; 8] = [
        "nan",
        "+nan",
        "-nan",
        "null",
        "none",
        "unavailable",
        "unknown",
        "undefined",
    ];
    text.len() <= 11 && WORDS.iter().any(|word| text.eq_ignore_ascii_case(word))
}
