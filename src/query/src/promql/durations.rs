//! Durations that the parser refuses although Prometheus accepts them, written in another way
//! before it sees them: those of zero (`offset 0s`), and those with a number that does not fit into
//! its own (`5184000000ms`).

use std::borrow::Cow;

use super::raw_strings::end_of;

/// The parser's numbers have 32 bits: so many digits always fit.
const DIGITS_MAX: usize = 9;
/// Above this a duration is left to be refused: the milliseconds of 3,000 years.
const MS_MAX: u128 = 100_000_000_000_000;
const DAY_MS: u128 = 86_400_000;
/// In the order in which a duration has them.
const UNITS: [(&str, u128); 7] = [
    ("y", 365 * DAY_MS),
    ("w", 7 * DAY_MS),
    ("d", DAY_MS),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1000),
    ("ms", 1),
];

/// The query with such durations as the parser reads them.
pub(super) fn as_parsed(text: &str) -> Cow<'_, str> {
    let mut out = String::new();
    let mut copied = 0;
    let mut in_braces = false;
    let mut in_brackets = false;
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        let start = at;
        at += c.len_utf8();
        match c {
            '"' | '\'' | '`' | '#' => at = end_of(text, start),
            '{' | '}' => in_braces = c == '{',
            '[' | ']' => in_brackets = c == '[',
            c if is_in_word(c, in_brackets) => {
                at = word_end(text, start, in_brackets);
                let other = rewritten(&text[start..at]).filter(|_| !in_braces);
                if let Some(other) = other {
                    out.push_str(&text[copied..start]);
                    out.push_str(&other);
                    copied = at;
                }
            }
            _ => {}
        }
    }
    match copied {
        0 => Cow::Borrowed(text),
        _ => Cow::Owned(out + &text[copied..]),
    }
}

/// The duration in another way, if the parser refuses it.
fn rewritten(word: &str) -> Option<String> {
    let mut numbers = word.split(|c: char| !c.is_ascii_digit());
    match total_ms(word)? {
        0 => Some("0".to_owned()),
        ms if ms <= MS_MAX && numbers.any(|digits| digits.len() > DIGITS_MAX) => {
            let rest_ms = ms % DAY_MS;
            Some(match ms / DAY_MS {
                0 => format!("{rest_ms}ms"),
                days => format!("{days}d{rest_ms}ms"),
            })
        }
        _ => None,
    }
}

/// The length of a duration such as `1h30m`, at most the largest number; `None` if it is none.
pub(super) fn total_ms(word: &str) -> Option<u128> {
    let mut units = UNITS.iter();
    let mut total_ms = 0u128;
    let mut rest = word;
    while !rest.is_empty() {
        let (digits, tail) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?);
        let unit_end = tail
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let (_, ms) = units.find(|(name, _)| *name == unit && !digits.is_empty())?;
        let number = digits.parse().unwrap_or(u128::MAX);
        total_ms = total_ms.saturating_add(ms.saturating_mul(number));
        rest = tail;
    }
    (!word.is_empty()).then_some(total_ms)
}

/// The end of the name, number or duration that starts here.
pub(super) fn word_end(text: &str, start: usize, in_brackets: bool) -> usize {
    text[start..]
        .find(|c| !is_in_word(c, in_brackets))
        .map_or(text.len(), |len| start + len)
}

/// As [`is_word`]. A name contains colons too, but between brackets a colon is between durations.
pub(super) fn is_in_word(c: char, in_brackets: bool) -> bool {
    is_word(c) || c == ':' && !in_brackets
}

/// Whether a character belongs to a name, a number or a duration.
pub(super) fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '.'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_durations_that_the_parser_refuses_are_rewritten() {
        for (text, wanted) in [
            ("x offset 0s", "x offset 0"),
            ("x offset -0h0m + vector(0ms)", "x offset -0 + vector(0)"),
            ("x[5184000000ms]", "x[60d0ms]"),
            (
                "x[1d:5184000123ms] offset 0000000005s",
                "x[1d:60d123ms] offset 5000ms",
            ),
            ("x[1w4294967296s]", "x[49717d23296000ms]"),
            ("x[0s:0s] > 0w", "x[0:0] > 0"),
        ] {
            assert_eq!(as_parsed(text), wanted);
        }
        for text in [
            "x[1h0m:5m] offset 999999999ms + 0 + 0.5 + 0x0 + 1e5",
            "x{a=\"0s\", b='0s'} + `0s` # 0s",
            "x0s + a:0s + :0s + _0s + 0s:a + b.0s",
            "{0s=\"\", é0s=\"\"}",
            "x[1m1h] + x[0m0h] + x[0.0s] + x[0ys] + x[99999999999y]",
            "",
        ] {
            assert_eq!(as_parsed(text), text);
        }
    }

    #[test]
    fn such_durations_have_their_length() {
        for (word, ms) in [
            ("1y2w3d4h5m6s7ms", 33_019_506_007),
            ("4294967296ms", 4_294_967_296),
            ("0s", 0),
        ] {
            assert_eq!(total_ms(word), Some(ms), "{word}");
        }
        for word in ["", "5", "m", "1m1h", "1.5h", "1hs", "h5m", "1ms1s"] {
            assert_eq!(total_ms(word), None, "{word}");
        }
        let long = format!("{}s", "9".repeat(60));
        assert_eq!(total_ms(&long), Some(u128::MAX));
    }
}
