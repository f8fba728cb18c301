//! The raw settings before they are interpreted: a tree of values, each with its origin. The file
//! builds the tree, then the environment overrides parts of it.

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use toml::de::{DeTable, DeValue};

/// Prefix of the service's environment variables.
const PREFIX: &str = "HOURBUCKET_";
/// Replaces the dot of a key in a variable's name; key names themselves contain single underscores.
const DOT: &str = "__";

/// Where a value was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    /// In the file, at a line.
    File { name: Rc<str>, line: usize },
    /// In an environment variable.
    Env(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File { name, line } => write!(f, "{name}:{line}"),
            Origin::Env(name) => f.write_str(name),
        }
    }
}

/// A value and its origin.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) origin: Origin,
    pub(super) value: Raw,
}

/// The keys of a section.
pub(super) type Entries = BTreeMap<String, Node>;

/// A value as written. A value from the environment is always a text; its key's type is applied
/// later.
#[derive(Debug, Clone)]
pub(super) enum Raw {
    Table(Entries),
    List(Vec<Node>),
    Text(String),
    Integer(i64),
    Flag(bool),
    /// A number with a fraction, as written.
    Fraction(String),
    /// A date, or an integer beyond 64 bit; no key accepts these.
    Other,
}

impl Raw {
    /// The kind of value, for a message.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Raw::Table(_) => "a section",
            Raw::List(_) => "a list",
            Raw::Text(_) => "a text",
            Raw::Integer(_) => "a number",
            Raw::Flag(_) => "true or false",
            Raw::Fraction(_) => "a fraction",
            Raw::Other => "a date or a number that is too large",
        }
    }
}

impl Node {
    fn is_from_env(&self) -> bool {
        matches!(self.origin, Origin::Env(_))
    }

    /// The text, if the value is one.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.value {
            Raw::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The texts of a list; from the environment, a comma-separated text.
    pub(super) fn texts(&self) -> Option<Vec<String>> {
        match &self.value {
            Raw::List(items) => items
                .iter()
                .map(|item| item.text().map(str::to_owned))
                .collect(),
            Raw::Text(text) if self.is_from_env() => {
                Some(text.split(',').map(|part| part.trim().to_owned()).collect())
            }
            _ => None,
        }
    }

    /// The whole number, if the value is one.
    pub(super) fn integer(&self) -> Option<i64> {
        match &self.value {
            Raw::Integer(n) => Some(*n),
            Raw::Text(text) if self.is_from_env() => text.trim().parse().ok(),
            _ => None,
        }
    }

    /// The number, whole or not, if the value is one.
    pub(super) fn number(&self) -> Option<f64> {
        match &self.value {
            Raw::Integer(n) => Some(*n as f64),
            Raw::Fraction(text) => text.parse().ok(),
            Raw::Text(text) if self.is_from_env() => text.trim().parse().ok(),
            _ => None,
        }
    }

    /// Formats the value as TOML, with tables inline.
    pub(super) fn to_toml(&self) -> String {
        let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
        match &self.value {
            Raw::Table(entries) => {
                let members = entries
                    .iter()
                    .map(|(key, node)| format!("{} = {}", quoted(key), node.to_toml()));
                format!("{{ {} }}", members.collect::<Vec<_>>().join(", "))
            }
            Raw::List(items) => {
                format!(
                    "[{}]",
                    items
                        .iter()
                        .map(Node::to_toml)
                        .collect::<Vec<_>>()
                        .join(", ")
                )
            }
            Raw::Text(text) => quoted(text),
            Raw::Integer(n) => n.to_string(),
            Raw::Flag(flag) => flag.to_string(),
            Raw::Fraction(text) => text.clone(),
            // No key accepts such a value, so it is never printed.
            Raw::Other => "0".to_owned(),
        }
    }

    /// The boolean, if the value is one.
    pub(super) fn flag(&self) -> Option<bool> {
        match &self.value {
            Raw::Flag(flag) => Some(*flag),
            Raw::Text(text) if self.is_from_env() => text.trim().parse().ok(),
            _ => None,
        }
    }
}

/// A syntax error: the line, and a message that does not repeat the line (it may hold a secret).
pub(super) struct SyntaxError {
    pub(super) line: usize,
    pub(super) what: String,
}

pub(super) fn parse(name: &Rc<str>, text: &str) -> Result<Entries, SyntaxError> {
    let lines = Lines {
        name: name.clone(),
        starts: text.match_indices('\n').map(|(at, _)| at + 1).collect(),
    };
    match DeTable::parse(text) {
        Ok(table) => Ok(lines.entries(table.get_ref())),
        Err(e) => {
            let line = lines.line(e.span().map_or(0, |span| span.start));
            // Everything after the first line of the message may quote the source.
            Err(SyntaxError {
                line,
                what: e.message().lines().next().unwrap_or_default().to_owned(),
            })
        }
    }
}

/// Converts byte offsets to lines.
struct Lines {
    name: Rc<str>,
    /// Offset of every line except the first.
    starts: Vec<usize>,
}

impl Lines {
    fn line(&self, offset: usize) -> usize {
        1 + self.starts.partition_point(|start| *start <= offset)
    }

    fn entries(&self, table: &DeTable<'_>) -> Entries {
        table
            .iter()
            .map(|(key, value)| {
                let node = Node {
                    origin: self.origin(key.span().start),
                    value: self.raw(value.get_ref()),
                };
                (key.get_ref().to_string(), node)
            })
            .collect()
    }

    fn origin(&self, offset: usize) -> Origin {
        Origin::File {
            name: self.name.clone(),
            line: self.line(offset),
        }
    }

    fn raw(&self, value: &DeValue<'_>) -> Raw {
        match value {
            DeValue::String(text) => Raw::Text(text.to_string()),
            DeValue::Integer(n) => {
                i64::from_str_radix(n.as_str(), n.radix()).map_or(Raw::Other, Raw::Integer)
            }
            DeValue::Boolean(flag) => Raw::Flag(*flag),
            DeValue::Float(n) => Raw::Fraction(n.as_str().replace('_', "")),
            DeValue::Datetime(_) => Raw::Other,
            DeValue::Array(items) => Raw::List(
                items
                    .iter()
                    .map(|item| Node {
                        origin: self.origin(item.span().start),
                        value: self.raw(item.get_ref()),
                    })
                    .collect(),
            ),
            DeValue::Table(table) => Raw::Table(self.entries(table)),
        }
    }
}

/// A step of a key's path. The order of the variants sorts list elements by number, 9 before 10.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Index(usize),
    Key(String),
}

/// A variable that cannot be applied to the tree.
pub(super) struct BadVariable {
    pub(super) name: String,
    pub(super) what: String,
    pub(super) advice: String,
}

/// Whether it is a variable with the service's prefix that cannot name a key.
pub(super) fn is_without_dot(name: &str) -> bool {
    name.strip_prefix(PREFIX)
        .is_some_and(|rest| !rest.contains(DOT))
}

/// Applies the environment to the tree: `HOURBUCKET_STORE__URI` sets `store.uri`,
/// `HOURBUCKET_MQTT__0__URL` sets `url` of the first `[[mqtt]]`, and a number one above the last
/// appends an element. Variables without a double underscore after the prefix are not settings;
/// empty ones count as not set. Returns the applied variables and the bad ones.
pub(super) fn overlay(
    entries: &mut Entries,
    env: impl Iterator<Item = (String, String)>,
) -> (Vec<String>, Vec<BadVariable>) {
    let mut settings: Vec<(Vec<Step>, String, String)> = env
        .filter(|(name, value)| {
            name.strip_prefix(PREFIX)
                .is_some_and(|rest| rest.contains(DOT))
                && !value.is_empty()
        })
        .map(|(name, value)| (steps(&name), name, value))
        .collect();
    settings.sort();
    let mut used = Vec::new();
    let mut bad = Vec::new();
    for (path, name, value) in settings {
        match set(entries, &path, &Origin::Env(name.clone()), value) {
            Ok(()) => used.push(name),
            Err((what, advice)) => bad.push(BadVariable { name, what, advice }),
        }
    }
    (used, bad)
}

fn steps(name: &str) -> Vec<Step> {
    name[PREFIX.len()..]
        .split(DOT)
        .map(|step| {
            step.parse()
                .map_or_else(|_| Step::Key(step.to_lowercase()), Step::Index)
        })
        .collect()
}

/// Sets the value at a path. Creates missing sections and at most one list element.
fn set(
    entries: &mut Entries,
    path: &[Step],
    origin: &Origin,
    value: String,
) -> Result<(), (String, String)> {
    let Some((Step::Key(key), rest)) = path.split_first() else {
        return Err((
            "expected the name of a section or key, found a number".into(),
            EXAMPLE.into(),
        ));
    };
    if key.is_empty() {
        return Err((
            "the name of a section or key is missing".into(),
            EXAMPLE.into(),
        ));
    }
    match rest {
        [] => set_key(entries, key, origin, value),
        [Step::Index(index), rest @ ..] => {
            set(element(entries, key, *index, origin)?, rest, origin, value)
        }
        _ => set(section(entries, key, origin)?, rest, origin, value),
    }
}

/// Sets a key of a section.
fn set_key(
    entries: &mut Entries,
    key: &str,
    origin: &Origin,
    value: String,
) -> Result<(), (String, String)> {
    let sections = |items: &[Node]| items.iter().any(|item| matches!(item.value, Raw::Table(_)));
    let is_section = |node: &Node| match &node.value {
        Raw::Table(_) => true,
        Raw::List(items) => sections(items),
        _ => false,
    };
    if entries.get(key).is_some_and(is_section) {
        return Err((format!("`{key}` is a section, not a key"), EXAMPLE.into()));
    }
    entries.insert(key.to_owned(), fresh(Raw::Text(value), origin));
    Ok(())
}

/// The element of a list of sections; a missing list or the element after the last is created.
fn element<'a>(
    entries: &'a mut Entries,
    key: &str,
    index: usize,
    origin: &Origin,
) -> Result<&'a mut Entries, (String, String)> {
    let node = entries
        .entry(key.to_owned())
        .or_insert_with(|| fresh(Raw::List(Vec::new()), origin));
    let items = match &mut node.value {
        Raw::List(items) => items,
        other => {
            return Err((
                format!("`{key}` is {}, not a list", other.kind()),
                EXAMPLE.into(),
            ));
        }
    };
    if index > items.len() {
        let next = items.len();
        return Err((
            format!("`{key}` has {next} elements so far, so element {index} leaves a gap"),
            format!("number elements from 0 without gaps: the next is {next}"),
        ));
    }
    if index == items.len() {
        items.push(fresh(Raw::Table(Entries::new()), origin));
    }
    match &mut items[index].value {
        Raw::Table(table) => Ok(table),
        other => Err((
            format!(
                "element {index} of `{key}` is {}, not a section",
                other.kind()
            ),
            EXAMPLE.into(),
        )),
    }
}

/// A section; a missing one is created.
fn section<'a>(
    entries: &'a mut Entries,
    key: &str,
    origin: &Origin,
) -> Result<&'a mut Entries, (String, String)> {
    let node = entries
        .entry(key.to_owned())
        .or_insert_with(|| fresh(Raw::Table(Entries::new()), origin));
    match &mut node.value {
        Raw::Table(table) => Ok(table),
        Raw::List(_) => Err((
            format!("`{key}` is a list"),
            format!(
                "add the element's number: {PREFIX}{}{DOT}0{DOT}…",
                key.to_uppercase()
            ),
        )),
        other => Err((
            format!("`{key}` is {}, not a section", other.kind()),
            EXAMPLE.into(),
        )),
    }
}

fn fresh(value: Raw, origin: &Origin) -> Node {
    Node {
        origin: origin.clone(),
        value,
    }
}

const EXAMPLE: &str = "write variables like HOURBUCKET_STORE__URI or HOURBUCKET_MQTT__0__URL";
