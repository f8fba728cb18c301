//! The texts of matchers (`a=~"x"`), as the parser is given them. It would compile those with
//! regular expressions in its own dialect, which refuses some of RE2 (`[\w-.]`, `\Q…\E`), and spend
//! time on it. So it is given `=` for `=~` and `!=` for `!~`, and `~` as the first character of the
//! text. Another text that begins with `~` is given with `=` before it, as is one with `=`.

use super::raw_strings::end_of;

const REGEX: char = '~';
const PLAIN: char = '=';

/// A text in braces: where its operator is (empty for the name of a metric), and where it begins.
struct Place {
    op: (usize, usize),
    begin: usize,
}

/// The query as the parser is given it.
pub(super) fn marked(query: &str) -> String {
    rewritten(query, |op, text| match op {
        "=~" => ("=", Some(REGEX), 0),
        "!~" => ("!=", Some(REGEX), 0),
        // An escape may stand for one of the two.
        _ if text.starts_with([REGEX, PLAIN, '\\']) => (op, Some(PLAIN), 0),
        _ => (op, None, 0),
    })
}

/// The opposite of [`marked`].
pub(super) fn unmarked(query: &str) -> String {
    rewritten(query, |op, text| match (op, text.chars().next()) {
        ("=", Some(REGEX)) => ("=~", None, 1),
        ("!=", Some(REGEX)) => ("!~", None, 1),
        (_, Some(REGEX | PLAIN)) => (op, None, 1),
        _ => (op, None, 0),
    })
}

/// The query with other operators and texts. `change` is given an operator and the query from the
/// beginning of its text on. It returns the new operator, what is put before the text, and how many
/// bytes of the text are left out.
fn rewritten<'q>(
    query: &'q str,
    change: impl Fn(&'q str, &'q str) -> (&'q str, Option<char>, usize),
) -> String {
    let mut out = String::with_capacity(query.len());
    let mut copied = 0;
    for Place {
        op: (from, to),
        begin,
    } in places(query)
    {
        let (op, mark, left_out) = change(&query[from..to], &query[begin..]);
        out.extend([&query[copied..from], op, &query[to..begin]]);
        out.extend(mark);
        copied = begin + left_out;
    }
    out + &query[copied..]
}

/// The text of a matcher that the parser was given, and whether it is a regular expression.
pub(super) fn text_of(given: String) -> (String, bool) {
    match given.strip_prefix([REGEX, PLAIN]) {
        Some(text) => (text.to_owned(), given.starts_with(REGEX)),
        None => (given, false),
    }
}

fn places(query: &str) -> Vec<Place> {
    let mut found = vec![];
    let mut in_braces = false;
    let mut op = None;
    let mut at = 0;
    while let Some(c) = query[at..].chars().next() {
        let start = at;
        at += c.len_utf8();
        match c {
            '"' | '\'' | '`' => {
                at = end_of(query, start);
                let begin = start + 1;
                match op.take() {
                    Some(op) => found.push(Place { op, begin }),
                    // The name of a metric; that of a label has an operator after it.
                    None if in_braces && !query[at..].trim_start().starts_with(['=', '!']) => {
                        let op = (start, start);
                        found.push(Place { op, begin });
                    }
                    None => {}
                }
            }
            '#' => at = end_of(query, start),
            '{' | '}' => {
                in_braces = c == '{';
                op = None;
            }
            '=' | '!' if in_braces && query[at..].starts_with(['~', '=']) => {
                at += 1;
                op = Some((start, at));
            }
            '=' if in_braces => op = Some((start, at)),
            c if c.is_whitespace() => {}
            _ => op = None,
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_in_the_texts_of_matchers_only_and_are_removed() {
        for (query, wanted) in [
            (r#"t{a=~"x",b !~ 'y'}"#, r#"t{a="~x",b != '~y'}"#),
            (r#"t{a="x",b!="~",c="="}"#, r#"t{a="x",b!="=~",c="=="}"#),
            (r#"t{a="\x7e"}"#, r#"t{a="=\x7e"}"#),
            (r#"{"~m","=l"=~"x"}"#, r#"{"=~m","=l"="~x"}"#),
            (
                r#"{a=~ # "
`"`}"#,
                r#"{a= # "
`~"`}"#,
            ),
            (
                r#"f(t{a=~""}, "=~", "~", '{a=~"x"}') == t"#,
                r#"f(t{a="~"}, "=~", "~", '{a=~"x"}') == t"#,
            ),
            ("t # {a=~\"x\"}", "t # {a=~\"x\"}"),
            (r#"t{a=~"#, r#"t{a=~"#),
            (r#"t{a=~"x"#, r#"t{a="~x"#),
            (r#"t{a=~x}"#, r#"t{a=~x}"#),
        ] {
            assert_eq!(marked(query), wanted);
            assert_eq!(unmarked(wanted), query);
        }
    }
}
