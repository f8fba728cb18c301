//! The function that only hourbucket has, [`NAME`]: a quantile from sketches. The parser knows
//! Prometheus' functions and no other, so it is given `quantile_over_time` instead, which has the same
//! arguments, and the calls are told apart afterwards by their order in the text.

use std::borrow::Cow;
use std::ops::Range;

use super::at_times::blank;
use super::raw_strings::end_of;

pub(super) const NAME: &str = "hourbucket_quantile_over_time";
const STANDARD: &str = "quantile_over_time";

/// The query with Prometheus' function.
pub(super) fn standard(text: &str) -> Cow<'_, str> {
    if !text.contains(NAME) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut copied = 0;
    for name in calls(text) {
        out.push_str(&text[copied..name.start]);
        out.push_str(STANDARD);
        copied = name.end;
    }
    Cow::Owned(out + &text[copied..])
}

/// Of each call of the one or the other function, in order, whether it is [`NAME`].
pub(super) fn are_extended(text: &str) -> Vec<bool> {
    let names = calls(text).into_iter();
    names.map(|name| &text[name] == NAME).collect()
}

/// The query, in the parser's layout, with its own functions.
pub(super) fn extended(text: &str, are_extended: &[bool]) -> String {
    let mut out = String::with_capacity(text.len());
    let mut copied = 0;
    for (name, is_extended) in calls(text).into_iter().zip(are_extended) {
        if *is_extended {
            out.push_str(&text[copied..name.start]);
            out.push_str(NAME);
            copied = name.end;
        }
    }
    out + &text[copied..]
}

/// The names of the calls of either function, outside of texts and comments.
fn calls(text: &str) -> Vec<Range<usize>> {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let mut found = vec![];
    let mut at = 0;
    while let Some(next) = text[at..].find(|c| is_of_name(c) || "\"'`#".contains(c)) {
        let start = at + next;
        if matches!(text.as_bytes()[start], b'"' | b'\'' | b'`' | b'#') {
            at = end_of(text, start);
            continue;
        }
        let rest = &text[start..];
        at = start + rest.find(|c| !is_of_name(c)).unwrap_or(rest.len());
        let is_either = matches!(&text[start..at], NAME | STANDARD);
        if is_either && text[at + blank(&text[at..])..].starts_with('(') {
            found.push(start..at);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_exchanged_and_put_back_and_nothing_else_is_changed() {
        let ours =
            format!("{NAME} # ( \n (0.5, x[1d]) + quantile_over_time(0.5, x{{a=\"{NAME}(\"}}[1d])");
        let theirs = ours.replacen(NAME, STANDARD, 1);
        assert_eq!(standard(&ours), theirs);
        assert_eq!(are_extended(&ours), [true, false]);
        assert_eq!(extended(&theirs, &[true, false]), ours);
        for same in [
            NAME.to_owned(),
            format!("sum by ({NAME}) (x)"),
            format!("my_{NAME}(1, x[1d])"),
            format!("'{NAME}(é'"),
            format!("# {NAME}("),
        ] {
            assert_eq!(standard(&same), same);
            assert!(are_extended(&same).is_empty(), "{same}");
        }
    }

    #[test]
    fn each_call_is_the_one_that_was_written() {
        for query in [
            format!("{NAME}(0.5, x[1d]) + quantile_over_time(0.5, x[1d])"),
            format!("quantile(scalar(quantile_over_time(0.5, x[1d])), {NAME}(0.5, x[1d]))"),
            format!("{NAME}(scalar({NAME}(0.5, x[1h])), y[1d:1h] offset 1h)"),
        ] {
            assert_eq!(crate::promql::format_query(&query).unwrap(), query);
        }
        let error = crate::promql::parse(&format!("{NAME}(x[1d])")).unwrap_err();
        assert!(error.to_string().contains("quantile_over_time"), "{error}");
    }
}
