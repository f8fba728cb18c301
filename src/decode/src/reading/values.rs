//! Adds the values and tags of a reading to its builder, and the faults of its members, with the
//! value found.

use std::borrow::Cow;

use super::ReadingDecoder;
use crate::names::{self, excerpt};
use crate::rejects::Fault;
use crate::token::{Time, Token};
use crate::{RejectReason, time};
use model::batch::{BuildError, NAMES_MAX};
use model::{BatchBuilder, ValueRef};

impl<'de> ReadingDecoder<'_, 'de> {
    /// Adds a value under the last key.
    pub(super) fn value(&mut self, token: &Token<'de>) -> Result<(), Fault> {
        let limits = self.cx.limits;
        let key = self.keys.last().map_or("", |(_, key)| key);
        let text;
        let value = match token {
            Token::Null => return Ok(()),
            Token::Bool(v) => ValueRef::Bool(*v),
            Token::Int(v) | Token::Time(Time::Seconds(v)) => ValueRef::Int(*v),
            Token::Double(v) | Token::Time(Time::SecondsDouble(v)) => ValueRef::Double(*v),
            Token::Str(v) => {
                names::check_text(key, v, limits)?;
                ValueRef::Str(v)
            }
            Token::Time(Time::Ms(ms)) => {
                text = time::to_rfc3339(*ms).ok_or_else(|| unusable(key, token))?;
                ValueRef::Str(&text)
            }
            Token::BigInt(_)
            | Token::HugeInt
            | Token::NotFinite(_)
            | Token::NotUtf8
            | Token::NotScalar(_) => {
                return Err(unusable(key, token));
            }
        };
        let name = names::name(key, self.cx)?;
        add_value(self.out, &name, value, limits.fields_max)
    }

    /// Adds a tag under the last key.
    pub(super) fn tag(&mut self, token: Token<'de>) -> Result<(), Fault> {
        let key = self
            .keys
            .last()
            .map_or(Cow::Borrowed(""), |(_, key)| key.clone());
        let text = match token {
            Token::Null => return Ok(()),
            Token::Bool(v) => Cow::Borrowed(if v { "true" } else { "false" }),
            Token::Int(v) | Token::Time(Time::Seconds(v)) => Cow::Owned(v.to_string()),
            // Formatted with its decimal point, so that 1 and 1.0 differ.
            Token::Double(v) | Token::Time(Time::SecondsDouble(v)) => Cow::Owned(format!("{v:?}")),
            Token::Str(v) => v,
            // As a text it has no range: serial numbers can be longer than 64 bits.
            Token::BigInt(digits) => Cow::Owned(digits.into()),
            Token::Time(Time::Ms(ms)) => {
                Cow::Owned(time::to_rfc3339(ms).ok_or_else(|| unusable(&key, &token))?)
            }
            Token::HugeInt | Token::NotFinite(_) | Token::NotUtf8 | Token::NotScalar(_) => {
                return Err(unusable(&key, &token));
            }
        };
        names::add_tag(&mut self.tags, key, text, self.cx)
    }
}

/// Adds a value to the builder's current reading, up to `fields_max`.
pub(crate) fn add_value(
    out: &mut BatchBuilder,
    name: &str,
    value: ValueRef<'_>,
    fields_max: usize,
) -> Result<(), Fault> {
    let too_many = || {
        Fault::new(
            RejectReason::TooManyFields,
            format!("more than {fields_max} values"),
        )
    };
    if out.value_count() >= fields_max {
        return Err(too_many());
    }
    out.value(name, value).map_err(|e| match e {
        BuildError::DuplicateField => Fault::new(
            RejectReason::DuplicateKey,
            format!("two fields have the same stored name {}", excerpt(name)),
        ),
        BuildError::TooManyFields => too_many(),
        BuildError::TooManyNames => {
            let detail = format!(
                "cannot store {}: more than {NAMES_MAX} distinct field names in one batch; send fewer \
                 readings together, or put ids that change into sensor_id, tags or values, not into \
                 field names",
                excerpt(name)
            );
            Fault::new(RejectReason::TooManyFieldNames, detail)
        }
        BuildError::BatchFull { bytes_max } => names::batch_full(bytes_max),
        // Returned only when a whole reading is committed.
        BuildError::BucketFieldsFull(_)
        | BuildError::NotAllowed
        | BuildError::OutOfRange
        | BuildError::NoTime
        | BuildError::TagsTooLong => too_many(),
    })
}

/// The fault of a reading without a value. `unstored` are its members that are left out.
pub(super) fn no_values(unstored: &[Cow<'_, str>]) -> Fault {
    let detail = match unstored.first() {
        None => Cow::Borrowed("the reading has no value other than null"),
        Some(name) => Cow::Owned(format!(
            "the reading has no value besides {}, which is left out: an empty object or array, a \
             nested value (native.nested), bytes, or a member beside `values`",
            excerpt(name)
        )),
    };
    Fault::new(RejectReason::NoValues, detail)
}

/// The fault of a token that is neither a value nor a tag.
pub(super) fn unusable(key: &str, token: &Token<'_>) -> Fault {
    let key = excerpt(key);
    match token {
        Token::BigInt(digits) => {
            let detail = format!("{key}: {} exceeds a signed 64-bit integer", excerpt(digits));
            Fault::new(RejectReason::IntegerOutOfRange, detail)
        }
        Token::HugeInt => {
            let detail = format!("{key}: the integer exceeds a signed 64-bit integer");
            Fault::new(RejectReason::IntegerOutOfRange, detail)
        }
        Token::NotFinite(literal) => {
            let detail = format!(
                "{key}: {} is not a number in the range of a double",
                excerpt(literal)
            );
            Fault::new(RejectReason::NotFinite, detail)
        }
        Token::NotUtf8 => Fault::new(RejectReason::InvalidUtf8, format!("{key} is not UTF-8")),
        other => Fault::new(
            RejectReason::NestedValue,
            format!("{key} is {}; expected a value", other.kind()),
        ),
    }
}
