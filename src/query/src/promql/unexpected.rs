//! The token at which a query stops being PromQL, for queries of which the parser only says that
//! they are invalid.
//!
//! The tokens before it are the beginning of some query, and with it they are not. Whether tokens
//! are such a beginning is tried: they are completed with what may come next, with the brackets
//! that are still open, and with what must follow these.

use std::ops::Range;

use super::durations::{is_in_word, word_end};
use super::raw_strings::end_of;

/// A larger query is not searched, because each try parses it.
pub(super) const QUERY_BYTES_MAX: usize = 2 << 10;
/// Characters of a token that are shown.
const SHOWN_MAX: usize = 40;
/// What may come next: in an expression, a matcher, a range, or after a keyword.
const NEXT: [&str; 12] = [
    "", "x", "(x)", "()", "5m", "1", "(x) x", "(x)(x)", "(1) x", "=\"x\"", "\"x\"", "x=\"x\"",
];
/// What must follow the bracket that was opened last: labels are grouped for an expression.
const AFTER: [&str; 3] = ["", " x", "(x)"];

/// The place of the first token that cannot be there, or of the end if more must follow, as
/// Prometheus writes it (`line:column`); and what is wrong there. `is_parsed`: whether the parser
/// knows the syntax of a text.
pub(super) fn unexpected(text: &str, is_parsed: impl Fn(&str) -> bool) -> Option<(String, String)> {
    if text.len() > QUERY_BYTES_MAX {
        return None;
    }
    let tokens = tokens(text);
    let is_expected = |token: &Range<usize>| is_beginning(&text[..token.end], &is_parsed);
    let token = tokens.get(tokens.partition_point(is_expected));
    let at = token.map_or(text.trim_end().len(), |token| token.start);
    let what = match token {
        Some(token) => {
            let shown: String = text[token.clone()].chars().take(SHOWN_MAX).collect();
            format!("unexpected {shown:?}")
        }
        None => "unexpected end of the query".to_owned(),
    };
    Some((line_and_column(text, at), what))
}

/// A place as Prometheus writes it.
pub(super) fn line_and_column(text: &str, at: usize) -> String {
    let line = text[..at].split('\n').count();
    let before = text[..at].rsplit('\n').next().unwrap_or_default();
    format!("{line}:{}", before.chars().count() + 1)
}

/// Whether a text of whole tokens is the beginning of a query that fulfils a condition.
pub(super) fn is_beginning(text: &str, fulfils: &impl Fn(&str) -> bool) -> bool {
    let mut closing: Vec<char> = vec![];
    for token in tokens(text) {
        match &text[token] {
            "(" => closing.push(')'),
            "[" => closing.push(']'),
            "{" => closing.push('}'),
            ")" | "]" | "}" => drop(closing.pop()),
            _ => {}
        }
    }
    let last = closing.pop().map(String::from).unwrap_or_default();
    let others: String = closing.iter().rev().collect();
    NEXT.iter().any(|next| {
        AFTER
            .iter()
            .any(|after| fulfils(&format!("{text} {next}{last}{after}{others}")))
    })
}

/// The tokens, without white space and comments.
pub(super) fn tokens(text: &str) -> Vec<Range<usize>> {
    let mut tokens = vec![];
    let mut in_brackets = false;
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        let start = at;
        at += c.len_utf8();
        match c {
            c if c.is_whitespace() => continue,
            '#' => {
                at = end_of(text, start);
                continue;
            }
            '"' | '\'' | '`' => at = end_of(text, start),
            '[' | ']' => in_brackets = c == '[',
            '=' | '!' | '<' | '>' if text[at..].starts_with(['=', '~']) => at += 1,
            c if is_in_word(c, in_brackets) => at = number_or_word_end(text, start, in_brackets),
            _ => {}
        }
        tokens.push(start..at);
    }
    tokens
}

/// The end of the name or number that starts here, also of 1e-5.
fn number_or_word_end(text: &str, start: usize, in_brackets: bool) -> usize {
    let end = word_end(text, start, in_brackets);
    let word = &text[start..end];
    let is_decimal = word.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    let has_sign = is_decimal
        && word.ends_with(['e', 'E'])
        && !word.starts_with("0x")
        && text[end..].starts_with(['+', '-']);
    match has_sign {
        true => word_end(text, end + 1, in_brackets),
        false => end,
    }
}
