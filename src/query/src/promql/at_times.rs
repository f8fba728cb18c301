//! Times before 1970 (`@ -5`). The parser's layout writes them as 0, so it is given those after
//! 1970 instead, and the signs are put into its result.

use super::raw_strings::end_of;

/// The query with positive times, and for each `@` whether its time was negative.
pub(super) fn positive(query: &str) -> (String, Vec<bool>) {
    let mut out = String::with_capacity(query.len());
    let mut copied = 0;
    let mut are_negative = vec![];
    for at in places(query) {
        let sign = at + 1 + blank(&query[at + 1..]);
        let is_negative = query[sign..].starts_with('-');
        out.push_str(&query[copied..sign]);
        copied = sign + usize::from(is_negative);
        are_negative.push(is_negative);
    }
    (out + &query[copied..], are_negative)
}

/// The query, in the parser's layout, with the signs of its times.
pub(super) fn signed(query: &str, are_negative: &[bool]) -> String {
    let mut out = String::with_capacity(query.len());
    let mut copied = 0;
    for (at, is_negative) in places(query).into_iter().zip(are_negative) {
        let time = at + 2;
        let is_zero = query[at..].starts_with("@ 0.000");
        if *is_negative && !is_zero {
            out.push_str(&query[copied..time]);
            out.push('-');
            copied = time;
        }
    }
    out + &query[copied..]
}

/// Each `@` outside of texts and comments.
fn places(query: &str) -> Vec<usize> {
    let mut found = vec![];
    let mut at = 0;
    while let Some(next) = query[at..].find(['"', '\'', '`', '#', '@']) {
        let start = at + next;
        at = match query.as_bytes()[start] {
            b'@' => {
                found.push(start);
                start + 1
            }
            _ => end_of(query, start),
        };
    }
    found
}

/// The length of the blanks and comments at the beginning.
pub(super) fn blank(text: &str) -> usize {
    let mut len = 0;
    loop {
        let rest = text[len..].trim_start();
        len = text.len() - rest.len();
        match rest.starts_with('#') {
            true => len = end_of(text, len),
            false => return len,
        }
    }
}
