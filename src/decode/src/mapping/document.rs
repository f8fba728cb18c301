//! Finds the messages in a payload: an object, the elements of an array, concatenated documents, or
//! a payload that is not JSON and counts as one scalar. This module walks the array, so that only
//! one element is in memory as a tree at a time.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::map::Entry;
use serde_json::{Map, Number, Value};

use super::duplicates::{Duplicates, Level};
use crate::RejectReason;
use crate::names::excerpt;
use crate::rejects::Fault;
use crate::scalar;
use crate::split::{self, Within, skip_space};
use crate::token::Token;

/// Limit on members and elements of one message, on all levels together: their tree is many times
/// larger than the text.
pub(super) const MEMBERS_MAX: usize = 500_000;
const TOO_MANY: &str = "more than 500000 members in one message";

/// A message.
#[derive(Debug)]
pub(super) struct Message {
    /// The first value of each duplicate key.
    pub(super) value: Value,
    pub(super) duplicates: Duplicates,
}

impl From<Value> for Message {
    fn from(value: Value) -> Message {
        let duplicates = Duplicates::default();
        Message { value, duplicates }
    }
}

/// Passes each message to `take`, or the fault found in its place.
pub(super) fn read(payload: &[u8], mut take: impl FnMut(Result<Message, Fault>)) {
    let at = skip_space(payload, 0);
    match payload.get(at) {
        Some(b'[') => array(payload, at + 1, &mut take),
        Some(b'{') => stream(payload, at, &mut take),
        // No message for a word such as `nan`: it means "no value", which is not a fault.
        Some(_) => match scalar::value(payload) {
            Ok(Token::Null) => {}
            Ok(token) => take(Ok(of_token(&token).into())),
            Err(fault) => take(Err(fault)),
        },
        None => take(Err(Fault::new(
            RejectReason::EmptyPayload,
            "the payload is empty",
        ))),
    }
}

/// A payload that is one array, if it is valid and not too large.
pub(super) fn whole_array(payload: &[u8]) -> Option<Message> {
    if payload.get(skip_space(payload, 0)) != Some(&b'[') {
        return None;
    }
    let (message, _) = whole(payload, MEMBERS_MAX).ok()?;
    Some(message)
}

/// The document that these bytes are, and how many of `left` members it leaves; `None` if they are
/// not JSON.
///
/// # Errors
/// It has more members.
pub(super) fn embedded(bytes: &[u8], left: usize) -> Result<Option<(Message, usize)>, Fault> {
    match whole(bytes, left) {
        Ok(found) => Ok(Some(found)),
        Err(error) if reason(&error) == TOO_MANY => {
            let what = "more than 500000 members in the texts that hold JSON, of one record";
            Err(Fault::new(RejectReason::TooManyFields, what))
        }
        Err(_) => Ok(None),
    }
}

/// The message that these bytes are, and how many of `left` members it leaves.
fn whole(bytes: &[u8], left: usize) -> serde_json::Result<(Message, usize)> {
    let mut parser = serde_json::Deserializer::from_slice(bytes);
    let found = parsed(&mut parser, left)?;
    parser.end()?;
    Ok(found)
}

fn parsed<'de, D: Deserializer<'de>>(parser: D, left: usize) -> Result<(Message, usize), D::Error> {
    let mut state = State {
        left,
        duplicates: Duplicates::default(),
    };
    let value = Tree { state: &mut state }.deserialize(parser)?;
    let State { left, duplicates } = state;
    Ok((Message { value, duplicates }, left))
}

fn array(bytes: &[u8], at: usize, take: &mut impl FnMut(Result<Message, Fault>)) {
    let mut at = skip_space(bytes, at);
    if bytes.get(at) == Some(&b']') {
        return trailing(bytes, at + 1, take);
    }
    loop {
        let Some(next) = element(bytes, at, Within::Array, take) else {
            return;
        };
        at = skip_space(bytes, next);
        match bytes.get(at) {
            Some(b',') => at = skip_space(bytes, at + 1),
            Some(b']') => return trailing(bytes, at + 1, take),
            _ => {
                let what = "the array is not closed or a comma is missing; the rest of the payload \
                    is skipped";
                return take(Err(Fault::new(RejectReason::InvalidJson, what)));
            }
        }
    }
}

fn stream(bytes: &[u8], mut at: usize, take: &mut impl FnMut(Result<Message, Fault>)) {
    while at < bytes.len() {
        if bytes[at] != b'{' {
            return trailing(bytes, at, take);
        }
        let Some(next) = element(bytes, at, Within::Stream, take) else {
            return;
        };
        at = skip_space(bytes, next);
    }
}

fn trailing(bytes: &[u8], at: usize, take: &mut impl FnMut(Result<Message, Fault>)) {
    let at = skip_space(bytes, at);
    if at < bytes.len() {
        let detail = format!("unexpected data at byte {at}: {}", near(&bytes[at..], 0));
        take(Err(Fault::new(RejectReason::TrailingData, detail)));
    }
}

/// Parses the element at `at` and returns its end; `None` if the end is unknown.
fn element(
    bytes: &[u8],
    at: usize,
    within: Within,
    take: &mut impl FnMut(Result<Message, Fault>),
) -> Option<usize> {
    let rest = &bytes[at..];
    let mut parser = serde_json::Deserializer::from_slice(rest);
    match parsed(&mut parser, MEMBERS_MAX) {
        Ok((message, _)) => {
            take(Ok(message));
            Some(at + parser.into_iter::<serde::de::IgnoredAny>().byte_offset())
        }
        Err(error) => {
            let extent = split::extent(rest, within);
            take(Err(fault(
                &rest[..extent.end.min(rest.len())],
                &error,
                extent.depth,
            )));
            (!extent.guessed && extent.end > 0).then_some(at + extent.end)
        }
    }
}

/// The parser's message without line and column, which count from the element and not from the
/// payload.
fn reason(error: &serde_json::Error) -> String {
    let mut text = error.to_string();
    text.truncate(text.find(" at line ").unwrap_or(text.len()));
    text
}

/// The fault of an element.
fn fault(element: &[u8], error: &serde_json::Error, depth: usize) -> Fault {
    if depth > split::DEPTH_MAX {
        return Fault::new(
            RejectReason::TooDeep,
            format!(
                "nested {depth} levels deep; at most {} are allowed",
                split::DEPTH_MAX
            ),
        );
    }
    if let Err(e) = std::str::from_utf8(element) {
        return Fault::new(
            RejectReason::InvalidUtf8,
            format!("not UTF-8 at byte {} of the message", e.valid_up_to()),
        );
    }
    let text = reason(error);
    if text == TOO_MANY {
        return Fault::new(RejectReason::TooManyFields, TOO_MANY);
    }
    let before = element
        .split(|b| *b == b'\n')
        .take(error.line().saturating_sub(1))
        .map(|line| line.len() + 1);
    let at = (before.sum::<usize>() + error.column().saturating_sub(1)).min(element.len());
    let around = String::from_utf8_lossy(&element[at.saturating_sub(8)..element.len().min(at + 8)])
        .to_lowercase();
    let is_number =
        text == "number out of range" || ["nan", "inf"].iter().any(|word| around.contains(word));
    let near = near(element, at);
    if is_number {
        let detail = format!(
            "NaN and infinities are not numbers in JSON; send null or leave it out (byte {at}: \
             {near})"
        );
        return Fault::new(RejectReason::NotFinite, detail);
    }
    Fault::new(
        RejectReason::InvalidJson,
        format!("{text} at byte {at}: {near}"),
    )
}

/// The bytes around an offset, for people.
fn near(bytes: &[u8], at: usize) -> String {
    let part = &bytes[at.saturating_sub(12).min(bytes.len())..bytes.len().min(at + 28)];
    excerpt(&String::from_utf8_lossy(part))
}

fn of_token(token: &Token<'_>) -> Value {
    match token {
        Token::Bool(flag) => Value::Bool(*flag),
        Token::Int(n) => Value::from(*n),
        Token::Double(n) => Value::from(*n),
        Token::Str(text) => Value::String(text.clone().into_owned()),
        // `scalar::value` returns no other token.
        _ => Value::Null,
    }
}

/// What is known of a message while it is parsed.
struct State {
    /// Members that it may still have.
    left: usize,
    duplicates: Duplicates,
}

/// Builds a tree, counts its members and lists duplicate keys. Integers beyond signed 64 bit become
/// doubles.
struct Tree<'s> {
    state: &'s mut State,
}

impl<'de> DeserializeSeed<'de> for Tree<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.state.left = self
            .state
            .left
            .checked_sub(1)
            .ok_or_else(|| D::Error::custom(TOO_MANY))?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Tree<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }

    fn visit_i64<E: Error>(self, v: i64) -> Result<Value, E> {
        Ok(Value::from(v))
    }

    fn visit_u64<E: Error>(self, v: u64) -> Result<Value, E> {
        Ok(i64::try_from(v).map_or_else(|_| Value::from(v as f64), Value::from))
    }

    fn visit_f64<E: Error>(self, v: f64) -> Result<Value, E> {
        Ok(Number::from_f64(v).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: Error>(self, v: &str) -> Result<Value, E> {
        Ok(Value::String(v.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut elements = Vec::new();
        loop {
            let from = self.state.duplicates.len();
            let Some(value) = seq.next_element_seed(Tree {
                state: &mut *self.state,
            })?
            else {
                break;
            };
            let level = || Level::Index(elements.len());
            self.state.duplicates.enclose(from, level);
            elements.push(value);
        }
        Ok(Value::Array(elements))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut members = Map::new();
        let mut duplicate = None;
        while let Some(key) = map.next_key::<String>()? {
            let from = self.state.duplicates.len();
            let value = map.next_value_seed(Tree {
                state: &mut *self.state,
            })?;
            let level = || Level::Key(key.clone());
            self.state.duplicates.enclose(from, level);
            match members.entry(key) {
                Entry::Vacant(place) => {
                    place.insert(value);
                }
                Entry::Occupied(place) => duplicate = Some(place.key().clone()),
            }
        }
        if let Some(key) = duplicate {
            self.state.duplicates.add(key);
        }
        Ok(Value::Object(members))
    }
}
