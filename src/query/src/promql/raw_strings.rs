//! Strings in backticks, which have no escapes. The parser checks their backslashes as if they had,
//! so those with a backslash are written in double quotes before it sees them.

use std::borrow::Cow;

/// The query with its backtick strings that contain a backslash in double quotes.
pub(crate) fn in_double_quotes(text: &str) -> Cow<'_, str> {
    let mut out = String::new();
    let mut copied = 0;
    let mut at = 0;
    while let Some(found) = text[at..].find(['"', '\'', '`', '#']) {
        let start = at + found;
        at = end_of(text, start);
        let raw = text[start..at]
            .strip_prefix('`')
            .and_then(|raw| raw.strip_suffix('`'))
            .filter(|raw| raw.contains('\\'));
        if let Some(raw) = raw {
            out.push_str(&text[copied..start]);
            push_quoted(&mut out, raw);
            copied = at;
        }
    }
    match copied {
        0 => Cow::Borrowed(text),
        _ => Cow::Owned(out + &text[copied..]),
    }
}

/// Where the string or comment that starts here ends; the end of the text if it does not.
pub(super) fn end_of(text: &str, start: usize) -> usize {
    let quote = text.as_bytes()[start];
    let end = if quote == b'#' { b'\n' } else { quote };
    let has_escapes = matches!(quote, b'"' | b'\'');
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(start + 1) {
        if byte == end && !is_escaped {
            return at + 1;
        }
        is_escaped = has_escapes && byte == b'\\' && !is_escaped;
    }
    text.len()
}

fn push_quoted(out: &mut String, raw: &str) {
    out.push('"');
    for c in raw.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\\' | '"' => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backslashes_in_backticks_are_escaped_and_nothing_else_is_changed() {
        for (text, wanted) in [
            (r"x{a=~`S\d`}", r#"x{a=~"S\\d"}"#),
            (
                "f(`\\`, `\"\\\né`, `ü`)",
                "f(\"\\\\\", \"\\\"\\\\\\né\", `ü`)",
            ),
            (r"x{a=`b`}", r"x{a=`b`}"),
            (r#"x{a="`\\d`"}"#, r#"x{a="`\\d`"}"#),
            (
                r#"x{a="\"`\\d`", b='\'`', c=`\d`}"#,
                r#"x{a="\"`\\d`", b='\'`', c="\\d"}"#,
            ),
            ("x # `\\d`\n + y{a=`\\d`}", "x # `\\d`\n + y{a=\"\\\\d\"}"),
            ("x # `\\d`", "x # `\\d`"),
            (r"x{a=`\d", r"x{a=`\d"),
            (r"x{a=`", r"x{a=`"),
            ("", ""),
        ] {
            assert_eq!(in_double_quotes(text), wanted);
        }
    }
}
