//! The kinds of values: how each is read, written, described and limited. A declaration names one
//! for each key (`declare`).

use std::any::Any;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use chrono_tz::Tz;
use model::{SensorPatterns, Span};
use serde_json::{Value as Json, json};
use toml::Value as Toml;

use super::declare::{How, Key, Value, Visitor};
use super::mapping::Fraction;
use super::reader::{Bad, one_of, out_of_range, wrong};
use super::tree::Node;
use super::units::{parse_duration, parse_size, write_duration, write_size};

/// A text that `Debug` does not print.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a text.
    pub fn new(text: String) -> Secret {
        Secret(text)
    }

    /// The text itself, for the code that must send it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

type Read<T> = Box<dyn Fn(&Node) -> Result<T, Bad>>;
type Write<T> = Box<dyn Fn(&T) -> Option<Toml>>;

/// A kind of values of the type `T`.
pub(crate) struct Kind<T> {
    /// Type and range, for the reference.
    text: String,
    schema: Json,
    read: Read<T>,
    /// As in the file; `None`: not set.
    write: Write<T>,
    is_file: bool,
}

impl<T: 'static> Kind<T> {
    /// A kind whose values are not written: the dump has the text of the file.
    pub(crate) fn unwritten(
        text: impl Into<String>,
        schema: Json,
        read: impl Fn(&Node) -> Result<T, Bad> + 'static,
    ) -> Kind<T> {
        Kind {
            text: text.into(),
            schema,
            read: Box::new(read),
            write: Box::new(|_| None),
            is_file: false,
        }
    }

    /// The kind of a key that need not be set.
    pub(crate) fn optional(self) -> Kind<Option<T>> {
        let Kind { read, write, .. } = self;
        Kind {
            text: self.text,
            schema: self.schema,
            read: Box::new(move |node| read(node).map(Some)),
            write: Box::new(move |value| write(value.as_ref()?)),
            is_file: self.is_file,
        }
    }

    /// The same in another type.
    pub(crate) fn map<U: 'static>(self, to: fn(T) -> U, from: fn(&U) -> T) -> Kind<U> {
        let Kind { read, write, .. } = self;
        Kind {
            text: self.text,
            schema: self.schema,
            read: Box::new(move |node| read(node).map(to)),
            write: Box::new(move |value| write(&from(value))),
            is_file: self.is_file,
        }
    }

    pub(crate) fn written(self, write: fn(&T) -> Toml) -> Kind<T> {
        Kind {
            write: Box::new(move |value| Some(write(value))),
            ..self
        }
    }

    pub(crate) fn schema(self, schema: Json) -> Kind<T> {
        Kind { schema, ..self }
    }
}

impl<T: Plain> Kind<T> {
    /// A kind with its own rules; `text` describes it.
    pub(crate) fn new(
        text: impl Into<String>,
        read: impl Fn(&Node) -> Result<T, Bad> + 'static,
    ) -> Kind<T> {
        Kind {
            write: Box::new(|value| Some(value.write())),
            ..Kind::unwritten(text, T::schema(), read)
        }
    }
}

impl<T: Clone + PartialEq + 'static> How<T> for Kind<T> {
    fn visit(&self, key: Key, value: &mut T, visitor: &mut dyn Visitor) {
        visitor.key(&key, &mut Typed { kind: self, value });
    }
}

struct Typed<'a, T> {
    kind: &'a Kind<T>,
    value: &'a mut T,
}

impl<T: Clone + PartialEq + 'static> Value for Typed<'_, T> {
    fn describe(&self) -> &str {
        &self.kind.text
    }

    fn schema(&self) -> Json {
        self.kind.schema.clone()
    }

    fn read(&mut self, node: &Node) -> Result<(), Bad> {
        *self.value = (self.kind.read)(node)?;
        Ok(())
    }

    fn write(&self) -> Option<Toml> {
        (self.kind.write)(self.value)
    }

    fn file(&self) -> Option<PathBuf> {
        self.write()
            .filter(|_| self.kind.is_file)?
            .as_str()
            .map(PathBuf::from)
    }

    fn copy(&self) -> Box<dyn Any> {
        Box::new(self.value.clone())
    }

    fn is(&self, other: &dyn Any) -> bool {
        other.downcast_ref::<T>() == Some(self.value)
    }

    fn set(&mut self, other: &dyn Any) {
        if let Some(value) = other.downcast_ref::<T>() {
            self.value.clone_from(value);
        }
    }
}

/// A type that is written in one way.
pub(crate) trait Plain: 'static {
    fn write(&self) -> Toml;

    fn schema() -> Json {
        json!({ "type": "string" })
    }
}

impl Plain for bool {
    fn write(&self) -> Toml {
        Toml::Boolean(*self)
    }

    fn schema() -> Json {
        json!({ "type": "boolean" })
    }
}

impl Plain for Vec<String> {
    fn write(&self) -> Toml {
        Toml::Array(self.iter().cloned().map(Toml::String).collect())
    }

    fn schema() -> Json {
        json!({ "type": "array", "items": { "type": "string" } })
    }
}

macro_rules! plain_text {
    ($($type:ty: $text:expr;)*) => {
        $(impl Plain for $type {
            fn write(&self) -> Toml {
                let text: fn(&$type) -> String = $text;
                Toml::String(text(self))
            }
        })*
    };
}

plain_text! {
    String: String::clone;
    Arc<str>: |text| text.to_string();
    PathBuf: |path| path.display().to_string();
    SocketAddr: |address| address.to_string();
    Tz: |zone| zone.name().to_owned();
    Duration: |duration| write_duration(*duration);
    Span: |span| write_duration(Duration::from_millis(span.ms().unsigned_abs()));
}

/// A whole number; in an `Option`, 0 is `None`: no limit.
pub(crate) trait Whole: Copy + 'static {
    fn from_u64(n: u64) -> Option<Self>;
    fn to_u64(self) -> u64;
}

macro_rules! whole {
    ($($type:ty)*) => {
        $(impl Whole for $type {
            fn from_u64(n: u64) -> Option<$type> {
                n.try_into().ok()
            }

            fn to_u64(self) -> u64 {
                self as u64
            }
        })*
    };
}

whole!(u8 u16 u32 u64 usize);

impl<T: Whole> Whole for Option<T> {
    fn from_u64(n: u64) -> Option<Option<T>> {
        match n {
            0 => Some(None),
            n => T::from_u64(n).map(Some),
        }
    }

    fn to_u64(self) -> u64 {
        self.map_or(0, T::to_u64)
    }
}

fn whole_toml<T: Whole>(n: &T) -> Toml {
    Toml::Integer(n.to_u64().try_into().unwrap_or(i64::MAX))
}

/// `true` or `false`.
pub(crate) fn flag() -> Kind<bool> {
    Kind::new("`true` or `false`", read_flag)
}

pub(crate) fn read_flag(node: &Node) -> Result<bool, Bad> {
    node.flag()
        .ok_or_else(|| wrong(node, "write true or false"))
}

/// A whole number.
pub(crate) fn count<T: Whole>(range: RangeInclusive<u64>) -> Kind<T> {
    let (least, most) = range.into_inner();
    let advice = format!("write a whole number from {least} to {most}");
    let schema = json!({ "type": "integer", "minimum": least, "maximum": most });
    let text = format!("whole number, {least} to {most}");
    let read = move |node: &Node| {
        let n = node.integer().ok_or_else(|| wrong(node, &advice))?;
        let n = u64::try_from(n).ok().filter(|n| (least..=most).contains(n));
        n.and_then(T::from_u64)
            .ok_or_else(|| out_of_range(node, &advice))
    };
    Kind::unwritten(text, schema, read).written(whole_toml)
}

/// A size in bytes: a number, or a text such as `512MiB`.
pub(crate) fn size<T: Whole>(range: RangeInclusive<u64>) -> Kind<T> {
    let least = write_size(*range.start());
    let most = write_size(*range.end());
    let text = format!("size in bytes, {least} to {most}");
    let advice = format!(
        "write a size from \"{least}\" to \"{most}\", such as 8388608, \"512MiB\" or \"10MB\""
    );
    let schema = json!({ "anyOf": [
        { "type": "integer", "minimum": range.start(), "maximum": range.end() },
        { "type": "string", "pattern": "^ *[0-9]+([.][0-9]+)? *(([kKmMgGtT][iI]?)?[bB])? *$" },
    ] });
    let read = move |node: &Node| {
        let bytes = match node.integer() {
            Some(n) => u64::try_from(n).ok(),
            None => parse_size(node.text().ok_or_else(|| wrong(node, &advice))?),
        };
        let bytes = bytes.ok_or_else(|| wrong(node, &advice))?;
        let bytes = Some(bytes).filter(|bytes| range.contains(bytes));
        bytes
            .and_then(T::from_u64)
            .ok_or_else(|| out_of_range(node, &advice))
    };
    Kind::unwritten(text, schema, read).written(|bytes| {
        let text = write_size(bytes.to_u64());
        text.parse().map_or(Toml::String(text), Toml::Integer)
    })
}

/// A duration such as `15s`.
pub(crate) fn duration(range: RangeInclusive<Duration>) -> Kind<Duration> {
    let least = write_duration(*range.start());
    let most = write_duration(*range.end());
    let text = format!("duration, {least} to {most}");
    let advice = format!(
        "write a duration from \"{least}\" to \"{most}\", such as \"250ms\", \"15s\" or \"1h30m\""
    );
    let pattern = "^ *([0-9]+([.][0-9]+)? *(ms|[smhdw]) *)+$";
    Kind::new(text, move |node| {
        let duration = node.text().and_then(parse_duration);
        let duration = duration.ok_or_else(|| wrong(node, &advice))?;
        match range.contains(&duration) {
            true => Ok(duration),
            false => Err(out_of_range(node, &advice)),
        }
    })
    .schema(json!({ "type": "string", "pattern": pattern }))
}

/// A number, whole or not.
pub(crate) fn decimal() -> Kind<Fraction> {
    let schema = json!({ "type": "number" });
    let write = |number: &Fraction| match number.0 {
        n if n == n.trunc() && n.abs() < 1e15 => Toml::Integer(n as i64),
        n => Toml::Float(n),
    };
    Kind::unwritten("number", schema, read_number).written(write)
}

pub(crate) fn read_number(node: &Node) -> Result<Fraction, Bad> {
    let found = node.number().filter(|n| n.is_finite()).map(Fraction);
    found.ok_or_else(|| wrong(node, "write a number such as 0.1 or -40"))
}

/// A text that may be empty.
pub(crate) fn any_text() -> Kind<String> {
    Kind::new("text", |node| {
        let text = node.text().map(str::to_owned);
        text.ok_or_else(|| wrong(node, "write a text in quotes"))
    })
}

/// A text.
pub(crate) fn text() -> Kind<String> {
    let read = |node: &Node| match node.text() {
        Some("") => Err(Bad::new("empty", "write a text, or remove the key")),
        Some(text) => Ok(text.to_owned()),
        None => Err(wrong(node, "write a text in quotes")),
    };
    Kind::new("text", read).schema(json!({ "type": "string", "minLength": 1 }))
}

/// A path; what is there is not looked at.
pub(crate) fn path() -> Kind<PathBuf> {
    text().map(PathBuf::from, |path| path.display().to_string())
}

/// A file that must be readable. The path stays as it is, relative to the working directory.
pub(crate) fn file() -> Kind<PathBuf> {
    Kind {
        is_file: true,
        ..Kind::new("path of a readable file", path_in_quotes)
    }
}

pub(crate) fn path_in_quotes(node: &Node) -> Result<PathBuf, Bad> {
    let path = node.text().map(PathBuf::from);
    path.ok_or_else(|| wrong(node, "write a path in quotes"))
}

/// One of several names.
pub(crate) fn choice<T: Copy + PartialEq>(choices: &'static [(&'static str, T)]) -> Kind<T> {
    let names = || choices.iter().map(|(name, _)| *name);
    let quoted: Vec<String> = names().map(|name| format!("`\"{name}\"`")).collect();
    let schema = json!({ "enum": names().collect::<Vec<_>>() });
    Kind {
        write: Box::new(|value| {
            let (name, _) = choices.iter().find(|(_, one)| one == value)?;
            Some(Toml::String((*name).to_owned()))
        }),
        ..Kind::unwritten(quoted.join(", "), schema, |node| chosen(node, choices))
    }
}

/// The value of a name.
pub(crate) fn chosen<T: Copy>(node: &Node, choices: &[(&str, T)]) -> Result<T, Bad> {
    let found = choices.iter().find(|(name, _)| node.text() == Some(name));
    found
        .map(|(_, value)| *value)
        .ok_or_else(|| wrong(node, &one_of(choices.iter().map(|(name, _)| *name))))
}

/// One of several numbers.
pub(crate) fn number<T: Copy + PartialEq>(
    text: &'static str,
    choices: &'static [(i64, T)],
    advice: &'static str,
) -> Kind<T> {
    let numbers: Vec<i64> = choices.iter().map(|(n, _)| *n).collect();
    let read = move |node: &Node| {
        let n = node.integer();
        let found = choices.iter().find(|(one, _)| Some(*one) == n);
        found
            .map(|(_, value)| *value)
            .ok_or_else(|| wrong(node, advice))
    };
    Kind {
        write: Box::new(|value| {
            let (n, _) = choices.iter().find(|(_, one)| one == value)?;
            Some(Toml::Integer(*n))
        }),
        ..Kind::unwritten(text, json!({ "enum": numbers }), read)
    }
}

/// An address to listen on.
pub(crate) fn address() -> Kind<SocketAddr> {
    Kind::new("IP address and port", |node| {
        let advice = match node.text() {
            Some(text) if text.starts_with(':') => {
                format!("write \"0.0.0.0{text}\" for all interfaces")
            }
            _ => "write an IP address and a port, such as \"127.0.0.1:8080\" or \"[::1]:8080\""
                .to_owned(),
        };
        let address = node.text().and_then(|text| text.parse().ok());
        address.ok_or_else(|| wrong(node, &advice))
    })
}

/// A time zone by IANA name.
pub(crate) fn zone() -> Kind<Tz> {
    Kind::new("IANA time zone", |node| {
        let advice = "write a zone of the IANA database, such as \"Europe/Berlin\" or \"UTC\"";
        let zone = node.text().and_then(|text| text.parse().ok());
        zone.ok_or_else(|| wrong(node, advice))
    })
}

/// A text with rules of its own: `understand` says what is wrong.
pub(crate) fn checked<E: std::fmt::Display + 'static>(
    kind: &'static str,
    advice: &'static str,
    understand: fn(&str) -> Result<(), E>,
) -> Kind<String> {
    Kind::new(kind, move |node| {
        let text = node.text().ok_or_else(|| wrong(node, advice))?;
        understand(text).map_err(|what| Bad::new(what, advice))?;
        Ok(text.to_owned())
    })
}

/// A list of texts that are all good.
pub(crate) fn texts(
    kind: &'static str,
    advice: &'static str,
    max: usize,
    is_good: fn(&str) -> bool,
) -> Kind<Vec<String>> {
    Kind::new(kind, move |node| {
        node.texts()
            .filter(|list| list.len() <= max && list.iter().all(|text| is_good(text)))
            .ok_or_else(|| wrong(node, advice))
    })
}

/// Patterns on sensor ids, in which `{id}` stands for the identity of a sender.
pub(crate) fn patterns() -> Kind<Vec<String>> {
    let advice = "write a list of patterns on sensor ids, such as [\"{id}\", \"{id}-*\"]; [] \
        allows none";
    patterns_on("list of patterns on sensor ids", advice)
}

/// Patterns on the names of sensors or fields, at least one.
pub(crate) fn name_patterns(text: &'static str) -> Kind<Vec<String>> {
    let advice = "write a list of patterns such as [\"temp*\"]; * matches anything";
    let Kind { read, .. } = patterns_on(text, advice);
    Kind::new(text, move |node| match read(node)? {
        list if list.is_empty() => Err(Bad::new("empty", advice)),
        list => Ok(list),
    })
}

fn patterns_on(text: &'static str, advice: &'static str) -> Kind<Vec<String>> {
    Kind::new(text, move |node| {
        let texts = node.texts().ok_or_else(|| wrong(node, advice))?;
        parse_patterns(&texts).map_err(|problem| Bad::new(problem, advice))?;
        Ok(texts)
    })
}

/// What a list of patterns selects.
pub(crate) fn parse_patterns(list: &[String]) -> Result<SensorPatterns, impl std::fmt::Display> {
    SensorPatterns::parse(list.iter().map(String::as_str))
}
