//! Converts one member to one value: its name, whether it is included, and the rules for fields.

use std::borrow::Cow;

use serde_json::Value;

use super::place::{Around, equal, find, scalar_text};
use super::record::Tags;
use crate::RejectReason;
use crate::names::{self, excerpt};
use crate::reading::add_value;
use crate::rejects::Fault;
use crate::token::{Token, is_no_value, is_number};
use config::mapping::{FieldRule, Place, Rule, Scalar, Texts, Type};
use model::{BatchBuilder, ValueRef};

/// Collects the values of one reading.
pub(super) struct Fields<'x, 'm, 't> {
    pub(super) rule: &'x Rule,
    pub(super) around: Around<'x, 'm>,
    pub(super) out: &'x mut BatchBuilder,
    pub(super) tags: &'t mut Tags<'m>,
    /// Names that are not values, while the record itself is flattened: members that `id`, `time`
    /// and `tags` use.
    pub(super) used: &'x [String],
}

impl Fields<'_, '_, '_> {
    /// Adds a value, or all values inside an object or array, under names that begin with `name`.
    pub(super) fn flatten(&mut self, name: &str, value: &Value) -> Result<(), Fault> {
        let mut path = name.to_owned();
        self.below(&mut path, value)
    }

    fn below(&mut self, path: &mut String, value: &Value) -> Result<(), Fault> {
        let length = path.len();
        match value {
            Value::Object(members) => {
                for (key, value) in members {
                    // An empty key adds nothing to the name: Tasmota's meters put all their values
                    // under an empty key.
                    if !path.is_empty() && !key.is_empty() {
                        path.push_str(&self.rule.separator);
                    }
                    path.push_str(key);
                    self.below(path, value)?;
                    path.truncate(length);
                }
                Ok(())
            }
            Value::Array(elements) => {
                for (i, value) in elements.iter().enumerate() {
                    path.push('[');
                    path.push_str(&i.to_string());
                    path.push(']');
                    self.below(path, value)?;
                    path.truncate(length);
                }
                Ok(())
            }
            Value::Null => Ok(()),
            scalar => self.scalar(path, scalar),
        }
    }

    fn scalar(&mut self, name: &str, value: &Value) -> Result<(), Fault> {
        let rule = self.rule;
        let any = |globs: &[config::mapping::Glob]| globs.iter().any(|glob| glob.matches(name));
        if (!rule.include.is_empty() && !any(&rule.include)) || any(&rule.exclude) {
            return Ok(());
        }
        if self.used.iter().any(|used| used == name) {
            return Ok(());
        }
        let (field, glob) = match rule.fields.iter().find_map(|field| {
            let glob = field.matches.iter().find(|glob| glob.matches(name))?;
            Some((field, glob))
        }) {
            Some((field, glob)) => (Some(field), Some(glob)),
            None => (None, None),
        };
        let is_there =
            |place: &Place| find(place, self.around.record, self.around.message).is_some();
        if field.is_some_and(|field| field.unless.iter().any(is_there)) {
            return Ok(());
        }
        let own_none = field.map_or(&[][..], |field| &field.none);
        let is_none = |text: &str| is_no_value(text.trim());
        if value.as_str().is_some_and(is_none)
            || rule
                .none
                .iter()
                .chain(own_none)
                .any(|none| equal(none, value))
        {
            return Ok(());
        }
        let renamed = match (field.and_then(|field| field.rename.as_deref()), glob) {
            (Some(to), Some(glob)) => Cow::Owned(to.replace('*', glob.star(name))),
            _ => Cow::Borrowed(name),
        };
        if field.is_some_and(|field| field.tag) {
            let text = scalar_text(value).unwrap_or_default();
            return self
                .tags
                .push(&renamed, Cow::Owned(text.into_owned()), self.around.cx);
        }
        let Some(value) = converted(value, field, rule.texts) else {
            return Ok(());
        };
        let limits = self.around.cx.limits;
        let value = match (&value, field) {
            (Token::Str(text), _) => {
                names::check_text(&renamed, text, limits)?;
                ValueRef::Str(text)
            }
            (Token::Bool(flag), _) => ValueRef::Bool(*flag),
            (Token::Int(n), Some(field)) if field.scale.is_some() || field.offset.is_some() => {
                ValueRef::Double(scaled(*n as f64, field, &renamed)?)
            }
            (Token::Int(n), _) => ValueRef::Int(*n),
            (Token::Double(n), Some(field)) => ValueRef::Double(scaled(*n, field, &renamed)?),
            (Token::Double(n), None) => ValueRef::Double(*n),
            _ => return Ok(()),
        };
        add_value(
            self.out,
            &names::name(&renamed, self.around.cx)?,
            value,
            limits.fields_max,
        )
    }
}

/// The value to store, before scaling; `None` if it is dropped.
fn converted<'v>(
    value: &'v Value,
    field: Option<&'v FieldRule>,
    texts: Texts,
) -> Option<Token<'v>> {
    let token = match value {
        Value::String(text) => {
            let word = field.and_then(|field| field.words.iter().find(|(word, _)| word == text));
            match word.map(|(_, scalar)| scalar) {
                Some(Scalar::Text(text)) => return Some(Token::Str(Cow::Borrowed(text))),
                Some(Scalar::Int(n)) => Token::Int(*n),
                Some(Scalar::Fraction(n)) => Token::Double(n.0),
                Some(Scalar::Bool(flag)) => Token::Bool(*flag),
                None => Token::Str(Cow::Borrowed(text)),
            }
        }
        Value::Bool(flag) => Token::Bool(*flag),
        Value::Number(n) => n
            .as_i64()
            .map_or_else(|| n.as_f64().map(Token::Double), |n| Some(Token::Int(n)))?,
        Value::Null | Value::Object(_) | Value::Array(_) => return None,
    };
    match (field.and_then(|field| field.kind), token) {
        (Some(Type::Number), Token::Str(text)) => number(text.trim()),
        (Some(Type::Number), Token::Bool(flag)) => Some(Token::Int(flag.into())),
        (Some(Type::Bool), token) => boolean(&token).map(Token::Bool),
        (Some(Type::Text), Token::Str(text)) => Some(Token::Str(text)),
        (Some(Type::Text), _) => scalar_text(value).map(Token::Str),
        (Some(Type::Number), token) => Some(token),
        (None, Token::Str(text)) => match texts {
            Texts::Keep => Some(Token::Str(text)),
            Texts::Numbers => number(text.trim())
                .filter(|_| !is_code(&text))
                .or(Some(Token::Str(text))),
            Texts::OnlyNumbers => number(text.trim()),
            Texts::Drop => None,
        },
        (None, token) => Some(token),
    }
}

fn number(text: &str) -> Option<Token<'static>> {
    if !is_number(text) {
        return None;
    }
    match Token::number(text)? {
        Token::Int(n) => Some(Token::Int(n)),
        Token::Double(n) => Some(Token::Double(n)),
        _ => None,
    }
}

/// Whether a text of digits is a code instead of a number: `0042` is not 42.
fn is_code(text: &str) -> bool {
    text.len() > 1 && text.starts_with('0') && text.bytes().all(|b| b.is_ascii_digit())
}

/// Converts a value to a boolean.
fn boolean(token: &Token<'_>) -> Option<bool> {
    match token {
        Token::Bool(flag) => Some(*flag),
        Token::Int(n @ 0..=1) => Some(*n == 1),
        Token::Str(text) => {
            let any = |words: &[&str]| {
                words
                    .iter()
                    .any(|word| text.trim().eq_ignore_ascii_case(word))
            };
            if any(&["on", "true", "yes", "open", "1"]) {
                Some(true)
            } else {
                any(&["off", "false", "no", "closed", "0"]).then_some(false)
            }
        }
        _ => None,
    }
}

/// Applies `scale` and `offset`. A scale such as 0.1 becomes a division by 10, which yields the
/// intended decimals.
fn scaled(n: f64, field: &FieldRule, name: &str) -> Result<f64, Fault> {
    let scale = field.scale.map_or(1.0, |scale| scale.0);
    let divisor = (1.0 / scale).round();
    let product = if scale.abs() < 1.0 && 1.0 / divisor == scale {
        n / divisor
    } else {
        n * scale
    };
    let sum = product + field.offset.map_or(0.0, |offset| offset.0);
    if sum.is_finite() {
        return Ok(sum);
    }
    let detail = format!(
        "{} exceeds the range of a double after scaling",
        excerpt(name)
    );
    Err(Fault::new(RejectReason::NotFinite, detail))
}
