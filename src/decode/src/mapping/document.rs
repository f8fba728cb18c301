//! Finds the messages in a payload: an object, the elements of an array, concatenated objects, or a
//! payload that is not JSON and counts as one scalar. `elements` walks over them, so that only one
//! is in memory as a tree at a time.

use std::fmt;
use std::ops::Range;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::map::Entry;
use serde_json::{Map, Number, Value};

use super::duplicates::{Duplicates, Level};
use crate::RejectReason;
use crate::elements::{self, Elements};
use crate::rejects::Fault;
use crate::scalar;
use crate::split::skip_space;
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

/// What a payload has in the place of a message.
#[derive(Debug)]
pub(super) enum Found {
    /// `guessed`: it follows a message that was cut and could be a fragment of that.
    Message {
        message: Message,
        guessed: bool,
    },
    Fault(Fault),
    /// The fault is before the next message.
    FaultBefore(Fault),
}

/// Passes each message to `take`, or the fault found in its place.
pub(super) fn read_documents(payload: &[u8], mut take: impl FnMut(Found)) {
    match payload.get(skip_space(payload, 0)) {
        None | Some(b'[' | b'{') => {
            let parsed = None;
            elements::walk(payload, &mut Messages { take, parsed });
        }
        // No message for a word such as `nan`: it means "no value", which is not a fault.
        Some(_) => match scalar::value(payload) {
            Ok(Token::Null) => {}
            Ok(token) => take(Found::Message {
                message: of_token(&token).into(),
                guessed: false,
            }),
            Err(fault) => take(Found::Fault(fault)),
        },
    }
}

struct Messages<F> {
    take: F,
    parsed: Option<Message>,
}

impl<'de, F: FnMut(Found)> Elements<'de> for Messages<F> {
    const WHAT: &'static str = "message";

    fn parse(&mut self, bytes: &'de [u8]) -> serde_json::Result<usize> {
        let mut parser = serde_json::Deserializer::from_slice(bytes);
        let (message, _) = parsed(&mut parser, MEMBERS_MAX)?;
        self.parsed = Some(message);
        Ok(parser.into_iter::<IgnoredAny>().byte_offset())
    }

    fn commit(&mut self, _place: Range<usize>, guessed: bool) {
        if let Some(message) = self.parsed.take() {
            (self.take)(Found::Message { message, guessed });
        }
    }

    fn reject(&mut self, fault: Fault) {
        (self.take)(Found::Fault(fault));
    }

    fn reject_before(&mut self, fault: Fault) {
        (self.take)(Found::FaultBefore(fault));
    }

    fn reason(error: &str) -> RejectReason {
        if error == TOO_MANY {
            RejectReason::TooManyFields
        } else {
            RejectReason::InvalidJson
        }
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
        Err(error) if elements::text(&error) == TOO_MANY => {
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
