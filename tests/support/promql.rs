//! Finds the metrics and labels that a PromQL expression names. Prometheus checks the syntax. It
//! does not check that the names exist: for a metric that is not exported it returns no data and no
//! error.

#![allow(unreachable_pub, reason = "included by several tests")]

use std::collections::BTreeSet;

/// A metric with its selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector {
    /// Its name.
    pub metric: String,
    /// The labels in its braces, with the selected values.
    pub matchers: Vec<(String, String)>,
}

/// The names in an expression.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// In order.
    pub selectors: Vec<Selector>,
    /// Labels by which it groups or joins.
    pub grouping: BTreeSet<String>,
}

const GROUPINGS: [&str; 6] = [
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
];
const WORDS: [&str; 7] = ["and", "or", "unless", "bool", "offset", "inf", "nan"];

/// Reads an expression that Prometheus has parsed.
pub fn names(expr: &str) -> Names {
    let mut reader = Reader { rest: expr };
    let mut names = Names::default();
    while let Some(c) = reader.peek() {
        match c {
            '"' | '\'' => drop(reader.text()),
            '[' => reader.skip_past(']'),
            '{' => {
                let matchers = reader.matchers();
                names
                    .selectors
                    .last_mut()
                    .expect("a metric before its braces")
                    .matchers = matchers;
            }
            '0'..='9' | '.' => drop(reader.take(|c| c.is_alphanumeric() || c == '.')),
            c if is_word(c) => reader.word(&mut names),
            _ => reader.skip(c),
        }
    }
    names
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == ':'
}

struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    /// The next character that is not a space.
    fn peek(&mut self) -> Option<char> {
        self.rest = self.rest.trim_start();
        self.rest.chars().next()
    }

    fn skip(&mut self, c: char) {
        self.rest = &self.rest[c.len_utf8()..];
    }

    fn skip_past(&mut self, end: char) {
        self.rest = self.rest.split_once(end).map_or("", |(_, rest)| rest);
    }

    fn take(&mut self, is: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|c| !is(c)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    /// Reads the quoted text that is next.
    fn text(&mut self) -> String {
        let quote = self.rest.chars().next().expect("a quote");
        self.skip(quote);
        let mut text = String::new();
        let mut escaped = false;
        for (at, c) in self.rest.char_indices() {
            if c == quote && !escaped {
                self.rest = &self.rest[at + 1..];
                return text;
            }
            text.push(c);
            escaped = c == '\\' && !escaped;
        }
        panic!("an unterminated text: {text}");
    }

    /// Reads the braces of a selector, which are next.
    fn matchers(&mut self) -> Vec<(String, String)> {
        self.skip('{');
        let mut matchers = vec![];
        loop {
            match self.peek().expect("the braces end") {
                '}' => break self.skip('}'),
                ',' => self.skip(','),
                _ => {
                    let label = self.take(is_word).to_owned();
                    self.peek();
                    assert!(
                        !self.take(|c| "=!~".contains(c)).is_empty(),
                        "a matcher: {}",
                        self.rest
                    );
                    self.peek();
                    matchers.push((label, self.text()));
                }
            }
        }
        matchers
    }

    /// Reads a function, a grouping, a keyword or a metric.
    fn word(&mut self, names: &mut Names) {
        let word = self.take(is_word);
        if GROUPINGS.contains(&word) {
            if self.peek() == Some('(') {
                let (labels, rest) = self.rest[1..].split_once(')').expect("a parenthesis ends");
                names.grouping.extend(
                    labels
                        .split(',')
                        .map(|label| label.trim().to_owned())
                        .filter(|l| !l.is_empty()),
                );
                self.rest = rest;
            }
            return;
        }
        let next = self.peek();
        let (following, _) = self
            .rest
            .split_at(self.rest.find(|c| !is_word(c)).unwrap_or(self.rest.len()));
        let is_function = next == Some('(') || following == "by" || following == "without";
        if !is_function && !WORDS.contains(&word.to_ascii_lowercase().as_str()) {
            names.selectors.push(Selector {
                metric: word.to_owned(),
                matchers: vec![],
            });
        }
    }
}

#[test]
fn an_expression_is_read() {
    let expr = "histogram_quantile(0.99, sum by (instance, le) (rate(a_bucket{x=~\"b|\\\"}\", \
        y!='z'}[5m])))\n\
                / on (job) group_left (mode) (b_total offset 5m > bool 1e3) and c unless \
                absent(up{job=\"d\"})";
    let found = names(expr);
    let metrics: Vec<&str> = found.selectors.iter().map(|s| s.metric.as_str()).collect();
    assert_eq!(metrics, ["a_bucket", "b_total", "c", "up"]);
    let pair = |label: &str, value: &str| (label.to_owned(), value.to_owned());
    assert_eq!(
        found.selectors[0].matchers,
        [pair("x", "b|\\\"}"), pair("y", "z")]
    );
    assert_eq!(found.selectors[3].matchers, [pair("job", "d")]);
    assert_eq!(
        found.grouping.iter().collect::<Vec<_>>(),
        ["instance", "job", "le", "mode"]
    );
}
