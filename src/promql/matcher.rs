//! Label matchers. Regular expressions match the whole value and are limited in size.

use std::fmt;

use regex::{Regex, RegexBuilder};

use super::error::PromqlError;
use super::re2::from_re2;

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
    Regex(Regex),
    NotRegex(Regex),
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
        let regex = anchored(&value)?;
        Ok(Matcher {
            name,
            value,
            op: if is_positive {
                Op::Regex(regex)
            } else {
                Op::NotRegex(regex)
            },
        })
    }

    /// Whether a label with this value is selected; an absent label has an empty value.
    pub fn matches(&self, value: &str) -> bool {
        match &self.op {
            Op::Equal => self.value == value,
            Op::NotEqual => self.value != value,
            Op::Regex(regex) => regex.is_match(value),
            Op::NotRegex(regex) => !regex.is_match(value),
        }
    }

    /// Whether this is `name="value"`.
    pub fn is_equal(&self) -> bool {
        matches!(self.op, Op::Equal)
    }

    /// The values of an expression that is only an alternative of texts, such as `a|b`; `None` for
    /// any other.
    pub fn alternatives(&self) -> Option<Vec<&str>> {
        match self.op {
            Op::Equal => Some(vec![&self.value]),
            Op::Regex(_)
                if !self
                    .value
                    .contains(|c: char| "\\.+*?()[]{}^$\n".contains(c)) =>
            {
                Some(self.value.split('|').collect())
            }
            _ => None,
        }
    }
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
