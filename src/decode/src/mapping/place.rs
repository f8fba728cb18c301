//! Looks up places and names, composes sources, and evaluates conditions.

use std::borrow::Cow;

use serde_json::Value;

use super::embedded::{Scope, base64};
use crate::rejects::Fault;
use crate::token::Token;
use crate::topic::Captured;
use crate::{Context, RejectReason};
use config::mapping::{Condition, Filter, Kind, Piece, Place, Scalar, Source, Step};
use model::Number;

/// Longer texts are not used in ids and tags: `limits.string_max_bytes` is at most this, and a long
/// text of the message must not be copied for each of its records.
const TEXT_MAX_BYTES: usize = 16_384;

/// A value, and the documents in the texts below it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part<'m> {
    pub(super) value: &'m Value,
    pub(super) scope: &'m Scope<'m>,
}

impl<'m> Part<'m> {
    pub(super) fn new(value: &'m Value, scope: &'m Scope<'m>) -> Part<'m> {
        Part { value, scope }
    }

    /// The value at the end of these steps, also inside texts that hold documents.
    pub(super) fn at(self, steps: &[Step]) -> Option<&'m Value> {
        steps
            .iter()
            .try_fold(self.value, |value, s| step(s, self.scope.open(value)?))
    }
}

impl Part<'_> {
    /// What is wrong with a document that was used, or else this.
    pub(super) fn fault_or(
        self,
        reason: RejectReason,
        detail: impl Into<Cow<'static, str>>,
    ) -> Fault {
        let fault = self.scope.take_fault();
        fault.unwrap_or_else(|| Fault::new(reason, detail))
    }
}

/// Follows one step.
pub(super) fn step<'v>(step: &Step, value: &'v Value) -> Option<&'v Value> {
    match (step, value) {
        (Step::Key { key, .. }, Value::Object(members)) => members.get(&**key),
        (Step::Key { index, .. }, Value::Array(elements)) => elements.get((*index)?),
        (Step::First, Value::Object(members)) => members.values().next(),
        (Step::First, Value::Array(elements)) => elements.first(),
        _ => None,
    }
}

/// The value at a place; null counts as absent.
pub(super) fn find<'m>(place: &Place, record: Part<'m>, message: Part<'m>) -> Option<&'m Value> {
    let from = if place.from_message { message } else { record };
    from.at(&place.steps).filter(|value| !value.is_null())
}

/// The same; a text that holds a document counts as that document.
pub(super) fn find_open<'m>(
    place: &Place,
    record: Part<'m>,
    message: Part<'m>,
) -> Option<&'m Value> {
    let from = if place.from_message { message } else { record };
    let value = find(place, record, message)?;
    Some(from.scope.open(value).unwrap_or(value))
}

/// The place in a piece of a source, if any.
pub(super) fn in_piece(piece: &Piece) -> Option<&Place> {
    match piece {
        Piece::Place(place, _) => Some(place),
        _ => None,
    }
}

/// The name of a value at this place after its record is flattened; `None` if it depends on the
/// record.
pub(super) fn flattened(place: &Place, separator: &str) -> Option<String> {
    let mut name = String::new();
    for step in &place.steps {
        match step {
            Step::Key {
                index: Some(index), ..
            } => name += &format!("[{index}]"),
            Step::Key { key, .. } => {
                let is_first = name.is_empty() || key.is_empty();
                name.extend([if is_first { "" } else { separator }, key]);
            }
            Step::First => return None,
        }
    }
    (!name.is_empty()).then_some(name)
}

/// Whether a condition is true.
pub(super) fn holds(condition: &Condition, record: Part<'_>, message: Part<'_>) -> bool {
    let found = condition
        .at
        .iter()
        .find_map(|place| find(place, record, message));
    if condition
        .there
        .is_some_and(|there| there != found.is_some())
    {
        return false;
    }
    if found.is_some_and(|value| condition.not.iter().any(|scalar| equal(scalar, value))) {
        return false;
    }
    let is = condition.is.is_empty()
        || found.is_some_and(|value| condition.is.iter().any(|scalar| equal(scalar, value)));
    let kind = condition.kinds.is_empty()
        || found.is_some_and(|value| condition.kinds.iter().any(|kind| is_kind(*kind, value)));
    let empty = condition
        .empty
        .is_none_or(|empty| found.is_some_and(|value| is_empty(value) == empty));
    is && kind && empty
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(members) => members.is_empty(),
        Value::Array(elements) => elements.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

fn is_kind(kind: Kind, value: &Value) -> bool {
    match kind {
        Kind::Object => value.is_object(),
        Kind::Array => value.is_array(),
        Kind::Text => value.is_string(),
        Kind::Number => value.is_number(),
        Kind::Bool => value.is_boolean(),
        Kind::Scalar => value.is_string() || value.is_number() || value.is_boolean(),
    }
}

/// Whether a value equals the one in the configuration; 1 and 1.0 are equal.
pub(super) fn equal(scalar: &Scalar, value: &Value) -> bool {
    let number = || {
        let int = value.as_i64().map(Number::Int);
        int.or_else(|| value.as_f64().map(Number::Double))
    };
    match scalar {
        Scalar::Text(text) => value.as_str() == Some(text),
        Scalar::Int(n) => number() == Some(Number::Int(*n)),
        Scalar::Fraction(n) => number() == Some(Number::Double(n.0)),
        Scalar::Bool(flag) => value.as_bool() == Some(*flag),
    }
}

/// The values of the names in braces. Looked up first among the keys that `each` captured, then in
/// the subscription's template, then in the rule's own.
pub(super) struct Names<'m> {
    sensor_id: Option<&'m str>,
    field: Option<&'m str>,
    /// From the rule's template, with its level separator applied.
    topic: Vec<(&'m str, Cow<'m, str>)>,
    keys: Vec<(String, String)>,
    /// Whether the message could be a fragment of the cut one before it.
    pub(super) guessed: bool,
}

impl<'m> Names<'m> {
    pub(super) fn new(
        captured: Option<Captured<'m>>,
        separator: &str,
        cx: &Context<'m>,
        guessed: bool,
    ) -> Names<'m> {
        let mut topic = Vec::new();
        if let Some(captured) = captured {
            let joined = |text: &'m str| match separator {
                "/" => Cow::Borrowed(text),
                // Only a name that takes several levels contains a `/`.
                _ if text.contains('/') => Cow::Owned(text.replace('/', separator)),
                _ => Cow::Borrowed(text),
            };
            topic.extend(captured.sensor_id.map(|text| ("sensor_id", joined(text))));
            topic.extend(captured.field.map(|text| ("field", joined(text))));
            topic.extend(
                captured
                    .tags
                    .into_iter()
                    .map(|(name, text)| (name, joined(text))),
            );
        }
        Names {
            sensor_id: cx.sensor_id,
            field: cx.field,
            topic,
            keys: Vec::new(),
            guessed,
        }
    }

    /// Whether `each` captured a key under this name.
    pub(super) fn has_key(&self, name: &str) -> bool {
        self.keys.iter().any(|(n, _)| n == name)
    }

    /// Whether the sensor's id may come from this source. If the start of the message was guessed, it
    /// must come from the message itself.
    pub(super) fn may_identify(&self, source: &Source) -> bool {
        !self.guessed
            || match source {
                Source::Place(_) => true,
                Source::Joined(pieces) => pieces.iter().any(|piece| match piece {
                    Piece::Text(_) => false,
                    Piece::Name(name, _) => self.has_key(name),
                    Piece::Place(..) => true,
                }),
            }
    }

    /// Adds a key on the path that `each` follows.
    pub(super) fn push(&mut self, name: Option<&str>, key: &impl ToString) {
        if let Some(name) = name {
            self.keys.push((name.to_owned(), key.to_string()));
        }
    }

    /// Removes the last key on the path.
    pub(super) fn pop(&mut self, name: Option<&str>) {
        if name.is_some() {
            self.keys.pop();
        }
    }

    pub(super) fn get(&self, name: &str, cx: &Context<'m>) -> Option<&str> {
        let key = self
            .keys
            .iter()
            .rev()
            .find(|(n, _)| n == name)
            .map(|(_, key)| &**key);
        let subscribed = || match name {
            "sensor_id" => self.sensor_id,
            "field" => self.field,
            _ => cx
                .tags
                .iter()
                .find(|(n, _)| *n == name)
                .map(|(_, text)| *text),
        };
        let of_topic = || {
            self.topic
                .iter()
                .find(|(n, _)| *n == name)
                .map(|(_, text)| &**text)
        };
        key.or_else(subscribed).or_else(of_topic)
    }

    /// The names that become tags: all except the sensor's id and the field.
    pub(super) fn tags(&self) -> impl Iterator<Item = (&str, &str)> {
        let keys = self
            .keys
            .iter()
            .rev()
            .map(|(name, text)| (name.as_str(), text.as_str()));
        let topic = self.topic.iter().map(|(name, text)| (*name, &**text));
        keys.chain(topic)
            .filter(|(name, _)| !matches!(*name, "sensor_id" | "field"))
    }
}

/// A record and its context.
#[derive(Clone, Copy)]
pub(super) struct Around<'x, 'm> {
    pub(super) names: &'x Names<'m>,
    pub(super) record: Part<'m>,
    pub(super) message: Part<'m>,
    pub(super) cx: &'x Context<'m>,
}

impl<'x, 'm> Around<'x, 'm> {
    /// The first source that is present and not empty, as text.
    pub(super) fn text(self, sources: impl IntoIterator<Item = &'x Source>) -> Option<Cow<'x, str>>
    where
        'm: 'x,
    {
        sources
            .into_iter()
            .find_map(|source| self.source(source))
            .filter(|text| text.len() <= TEXT_MAX_BYTES)
    }

    /// The value of a source, as text.
    pub(super) fn source(self, source: &'x Source) -> Option<Cow<'x, str>>
    where
        'm: 'x,
    {
        let text = match source {
            Source::Place(place) => scalar_text(find(place, self.record, self.message)?)?,
            Source::Joined(pieces) => match &pieces[..] {
                [piece] => self.piece(piece)?,
                pieces => {
                    let mut text = String::new();
                    for piece in pieces {
                        text.push_str(&self.piece(piece)?);
                    }
                    Cow::Owned(text)
                }
            },
        };
        (!text.is_empty()).then_some(text)
    }

    fn piece(self, piece: &'x Piece) -> Option<Cow<'x, str>>
    where
        'm: 'x,
    {
        let (text, filter) = match piece {
            Piece::Text(text) => (Cow::Borrowed(&**text), None),
            Piece::Name(name, filter) => (Cow::Borrowed(self.names.get(name, self.cx)?), *filter),
            Piece::Place(place, filter) => (
                scalar_text(find(place, self.record, self.message)?)?,
                *filter,
            ),
        };
        if text.is_empty() || text.len() > TEXT_MAX_BYTES {
            return None;
        }
        match filter {
            None => Some(text),
            Some(Filter::Lower) => Some(text.to_lowercase().into()),
            Some(Filter::Upper) => Some(text.to_uppercase().into()),
            Some(Filter::Eui) => eui(&text).map(Cow::Owned),
        }
    }

    /// The value of a source, for a time: numbers stay numbers.
    pub(super) fn token(self, source: &'x Source) -> Option<Token<'x>>
    where
        'm: 'x,
    {
        match source {
            Source::Place(place) => Some(match find(place, self.record, self.message)? {
                Value::String(text) => Token::Str(Cow::Borrowed(text)),
                Value::Bool(flag) => Token::Bool(*flag),
                Value::Number(n) => n
                    .as_i64()
                    .map_or_else(|| Token::Double(n.as_f64().unwrap_or(0.0)), Token::Int),
                Value::Object(_) => Token::NotScalar("an object"),
                Value::Array(_) => Token::NotScalar("an array"),
                Value::Null => return None,
            }),
            Source::Joined(_) => self.source(source).map(Token::Str),
        }
    }
}

/// A scalar as text; `None` for null, objects and arrays.
pub(super) fn scalar_text(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) => Some(Cow::Borrowed(text)),
        Value::Bool(flag) => Some(Cow::Borrowed(if *flag { "true" } else { "false" })),
        Value::Number(n) => Some(n.to_string().into()),
        Value::Null | Value::Object(_) | Value::Array(_) => None,
    }
}

/// The eight bytes of an EUI-64 as lower-case hex: from hex, optionally with `-` or `:` between the
/// bytes, or from base64.
fn eui(text: &str) -> Option<String> {
    let hex: String = text.chars().filter(|c| !matches!(c, '-' | ':')).collect();
    if hex.len() == 16 && hex.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Some(hex.to_ascii_lowercase());
    }
    let bytes: [u8; 8] = base64(text.as_bytes())?.try_into().ok()?;
    Some(format!("{:016x}", u64::from_be_bytes(bytes)))
}
