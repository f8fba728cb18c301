//! Label matchers. Regular expressions match the whole value and are limited in size.

use std::collections::BTreeSet;
use std::fmt;

use regex::{Regex, RegexBuilder};

use super::error::PromqlError;
use super::labels::METRIC_NAME;
use super::re2::from_re2;
use model::stored_name;

/// Bytes of a compiled regular expression. Matching takes linear time.
const REGEX_BYTES_MAX: usize = 1 << 20;
/// Nested groups in a regular expression.
const REGEX_NESTING_MAX: u32 = 100;

/// One condition on a label.
#[derive(Debug, Clone)]
pub struct Matcher {
    /// The label.
    pub name: String,
    /// The text or regular expression.
    pub value: String,
    op: Op,
}

#[derive(Debug, Clone)]
enum Op {
    Equal,
    NotEqual,
    Regex(Pattern),
    NotRegex(Pattern),
}

/// A regular expression. A dashboard variable with many values is an alternation of texts, which is
/// too large to be compiled.
#[derive(Debug, Clone)]
enum Pattern {
    /// Only an alternation of these texts.
    Texts(BTreeSet<String>),
    /// Any other.
    Compiled(Regex),
}

impl Pattern {
    fn new(text: &str) -> Result<Pattern, PromqlError> {
        match alternated(text) {
            Some(texts) => Ok(Pattern::Texts(texts)),
            None => anchored(text).map(Pattern::Compiled),
        }
    }

    fn is_match(&self, value: &str) -> bool {
        match self {
            Pattern::Texts(texts) => texts.contains(value),
            Pattern::Compiled(regex) => regex.is_match(value),
        }
    }
}

impl Matcher {
    /// `=`.
    pub fn equal(name: impl Into<String>, value: impl Into<String>) -> Matcher {
        Matcher {
            name: name.into(),
            value: value.into(),
            op: Op::Equal,
        }
    }

    pub(crate) fn not_equal(name: String, value: String) -> Matcher {
        Matcher {
            name,
            value,
            op: Op::NotEqual,
        }
    }

    pub(crate) fn regex(
        name: String,
        value: String,
        is_positive: bool,
    ) -> Result<Matcher, PromqlError> {
        let pattern = Pattern::new(&value)?;
        Ok(Matcher {
            name,
            value,
            op: if is_positive {
                Op::Regex(pattern)
            } else {
                Op::NotRegex(pattern)
            },
        })
    }

    /// The same for the stored names of fields and tags, which have no `.`: of its label, and of the
    /// metric that it names.
    pub(crate) fn stored(&self) -> Matcher {
        let mut stored = self.clone();
        if self.name != METRIC_NAME {
            stored.name = stored_name(&self.name).into_owned();
        } else if matches!(self.op, Op::Equal | Op::NotEqual) && !self.value.is_empty() {
            stored.value = stored_name(&self.value).into_owned();
        }
        stored
    }

    /// Whether a label with this value is selected; an absent label has an empty value.
    pub fn matches(&self, value: &str) -> bool {
        match &self.op {
            Op::Equal => self.value == value,
            Op::NotEqual => self.value != value,
            Op::Regex(pattern) => pattern.is_match(value),
            Op::NotRegex(pattern) => !pattern.is_match(value),
        }
    }

    /// Whether this is `name="value"`.
    pub fn is_equal(&self) -> bool {
        matches!(self.op, Op::Equal)
    }

    /// The values that match, each once, if the matcher lists them: `="a"`, or an expression such as
    /// `a|b`; `None` for any other.
    pub(crate) fn alternatives(&self) -> Option<Vec<&str>> {
        match &self.op {
            Op::Equal => Some(vec![&self.value]),
            Op::Regex(Pattern::Texts(texts)) => Some(texts.iter().map(String::as_str).collect()),
            _ => None,
        }
    }
}

/// The texts of an expression that is only an alternation of texts, also with escapes and in one
/// group: `a|b`, `a\.b`, `(a|b)`, `(?:a|b)`. `None` for any other.
fn alternated(expression: &str) -> Option<BTreeSet<String>> {
    let grouped = expression
        .strip_prefix("(?:")
        .or_else(|| expression.strip_prefix('('))
        .and_then(|rest| rest.strip_suffix(')'));
    let mut texts = BTreeSet::new();
    let mut text = String::new();
    let mut rest = grouped.unwrap_or(expression).chars();
    while let Some(c) = rest.next() {
        match c {
            '|' => drop(texts.insert(std::mem::take(&mut text))),
            // Before an alphanumeric character, a backslash is more than an escape.
            '\\' => text.push(rest.next().filter(char::is_ascii_punctuation)?),
            '.' | '+' | '*' | '?' | '(' | ')' | '[' | ']' | '{' | '}' | '^' | '$' => return None,
            c => text.push(c),
        }
    }
    texts.insert(text);
    Some(texts)
}

impl fmt::Display for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = match self.op {
            Op::Equal => "=",
            Op::NotEqual => "!=",
            Op::Regex(_) => "=~",
            Op::NotRegex(_) => "!~",
        };
        write!(f, "{}{op}{}", self.name, super::labels::quoted(&self.value))
    }
}

/// A regular expression that matches the whole text; `.` matches a line break too.
pub(crate) fn anchored(text: &str) -> Result<Regex, PromqlError> {
    let compile = |text: &str| {
        RegexBuilder::new(&format!("^(?s:{text})$"))
            .size_limit(REGEX_BYTES_MAX)
            .dfa_size_limit(REGEX_BYTES_MAX)
            .nest_limit(REGEX_NESTING_MAX)
            .build()
    };
    compile(&from_re2(text)).map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => PromqlError::bad_data(format!(
            "regular expression needs more than {REGEX_BYTES_MAX} bytes when compiled; use a \
             simpler one"
        )),
        error => {
            let detail = error.to_string();
            let last = detail
                .lines()
                .last()
                .unwrap_or_default()
                .trim_start_matches("error: ")
                .to_owned();
            PromqlError::bad_data(format!("error parsing regexp: {last}"))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_regular_expression_matches_the_whole_value_and_is_limited() {
        let matcher = |text: &str| Matcher::regex("a".into(), text.into(), true);
        assert!(matcher("x|y.*").unwrap().matches("y\n1"));
        assert!(!matcher("x").unwrap().matches("xx"));
        assert!(
            matcher("(a{1000}){1000}")
                .unwrap_err()
                .to_string()
                .contains("simpler")
        );
        assert!(matcher(&"(".repeat(10_000)).is_err());
        assert!(
            matcher("(")
                .unwrap_err()
                .to_string()
                .starts_with("error parsing regexp: ")
        );
        assert_eq!(matcher("n|s").unwrap().alternatives(), Some(vec!["n", "s"]));
        assert_eq!(matcher("n.*").unwrap().alternatives(), None);
    }

    #[test]
    fn an_alternation_of_many_texts_is_not_compiled() {
        let matcher = |text: &str| Matcher::regex("a".into(), text.into(), true).unwrap();
        let ids = |separator: &str| {
            let ids = (0..5000).map(|i| format!("plant{separator}line-{i:04}"));
            ids.collect::<Vec<_>>().join("|")
        };
        for text in [
            ids(r"\."),
            format!("({})", ids(r"\.")),
            format!("(?:{})", ids(r"\.")),
        ] {
            let found = matcher(&text);
            for (value, is_match) in [
                ("plant.line-0000", true),
                ("plant.line-4999", true),
                ("plant.line-5000", false),
                ("plantxline-0000", false),
                ("Plant.line-0000", false),
                ("plant.line-0000\n", false),
                ("plant.line-00001", false),
                ("", false),
            ] {
                assert_eq!(found.matches(value), is_match, "{value:?}");
            }
            let refused = Matcher::regex("a".into(), text, false).unwrap();
            assert!(!refused.matches("plant.line-0000") && refused.matches("x"));
            assert_eq!(found.alternatives().map(|all| all.len()), Some(5000));
        }
    }

    /// What the alternation means is what the compiled expression means.
    #[test]
    fn texts_of_an_alternation_are_those_that_the_expression_matches() {
        for (text, texts) in [
            ("a", Some(vec!["a"])),
            ("a|b", Some(vec!["a", "b"])),
            ("a|", Some(vec!["a", ""])),
            ("", Some(vec![""])),
            ("(a|b)", Some(vec!["a", "b"])),
            ("(?:a|b)", Some(vec!["a", "b"])),
            ("()", Some(vec![""])),
            (r"a\.b|c\-d|\||\(", Some(vec!["a.b", "c-d", "|", "("])),
            (r"\\", Some(vec!["\\"])),
            (
                "é b|,-_:/@'\"<>&~=!%; #",
                Some(vec!["é b", ",-_:/@'\"<>&~=!%; #"]),
            ),
            ("a.b", None),
            ("(a)|(b)", None),
            ("((a))", None),
            ("(a|b", None),
            ("a)", None),
            ("(?i)a", None),
            ("(?i:a)", None),
            ("(?P<x>a)", None),
            ("(a)?", None),
            ("^a$", None),
            ("a{2}", None),
            (r"\d|a", None),
            (r"\Qa\E", None),
            (r"\a|\n", None),
            (r"\101", None),
            (r"\_", Some(vec!["_"])),
            ("a\nb", Some(vec!["a\nb"])),
        ] {
            let Ok(found) = Matcher::regex("a".into(), text.into(), true) else {
                assert!(texts.is_none(), "{text}");
                continue;
            };
            let sorted = texts.map(|mut texts| {
                texts.sort();
                texts
            });
            assert_eq!(found.alternatives(), sorted, "{text}");
            let compiled = anchored(text).unwrap();
            for value in [
                "", "a", "b", "A", "a\n", "a.b", "c-d", "|", "(", "\\", "a\nb", "é b",
            ] {
                assert_eq!(
                    found.matches(value),
                    compiled.is_match(value),
                    "{text} {value:?}"
                );
            }
        }
    }

    /// The answers are those of Go's `regexp`.
    #[test]
    fn expressions_are_those_of_re2() {
        for (text, yes, no) in [
            (r"\d", "7", "\u{667}"),
            (r"\D\W\S", "éé\u{a0}", "1__"),
            (r"\w+", "a_1", "é"),
            (r".\s", "é ", "é\u{a0}"),
            (r"[\w.]+", "a.b", "é"),
            (r"[^\w]", "é", "a"),
            (r"[\W]", "é", "a"),
            (r".*\ba.*", "éa", "ba"),
            (r".\Ba", "ba", "éa"),
            ("[0-9&&1]+", "5&1", "a"),
            ("[a-c--b]", "a", "d"),
            ("[+--]", ",", "+--"),
            ("[a~~b]+", "~a~b", "c"),
            ("[[]", "[", "[]"),
            ("[a[b]+", "a[b", "c"),
            ("[]a]+", "]a", "b"),
            ("[^]a]", "b", "]"),
            ("[a-]+", "-a", "b"),
            (r"[\d-z]+", "1-z", "y"),
            (r"[!-\]]", "[", "a"),
            ("[[:alpha:]_]+", "a_", "é"),
            (r"\Qa.b*\E.", "a.b*x", "axbx"),
            (r"\Q[\", "[\\", "["),
            (r"\123[\60-\x39]\0", "S5\0", "Sa\0"),
            (r"\p{Greek}\pL\x{61}", "αéa", "a"),
            (r"\<a\>\_\.", "<a>_.", "a_."),
            ("a{2}b{1,}c{}{,2}{x", "aabc{}{,2}{x", "aabc"),
            (r"(?i)\w\b{", "A{", "é{"),
        ] {
            let matcher = Matcher::regex("a".into(), text.into(), true).unwrap();
            assert!(matcher.matches(yes), "{text} does not match {yes}");
            assert!(!matcher.matches(no), "{text} matches {no}");
        }
        for text in ["[a", "[]", r"\8", r"\1", r"a\", r"[\", r"\p{"] {
            assert!(
                Matcher::regex("a".into(), text.into(), true).is_err(),
                "{text}"
            );
        }
    }
}
