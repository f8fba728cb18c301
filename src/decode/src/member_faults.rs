//! The faults of members of a reading in the native format, with the value found.

use std::borrow::Cow;

use super::RejectReason;
use super::names::excerpt;
use super::rejects::Fault;
use super::token::Token;

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
