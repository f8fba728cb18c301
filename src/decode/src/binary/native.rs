//! Reports a reading in CBOR or MessagePack to [`ReadingDecoder`].

use super::item::{Item, Items};
use super::source::{Head, Malformed, Source};
use crate::RejectReason;
use crate::reading::{Open, Part, ReadingDecoder, Role};
use crate::rejects::Fault;
use crate::split::DEPTH_MAX;
use crate::token::Token;

/// Reads a map to its end. Commits nothing.
///
/// # Errors
/// The map is not well-formed. Other faults are kept for [`ReadingDecoder::finish`].
pub(super) fn read_reading<'de, S: Source<'de>>(
    items: &mut Items<'de, S>,
    len: Option<u64>,
    reading: &mut ReadingDecoder<'_, 'de>,
) -> Result<(), Malformed> {
    reading.begin();
    object(items, len, Part::Reading, 1, reading)
}

/// Calls itself for the objects in a reading, at most [`DEPTH_MAX`] deep.
fn object<'de, S: Source<'de>>(
    items: &mut Items<'de, S>,
    len: Option<u64>,
    part: Part,
    level: usize,
    reading: &mut ReadingDecoder<'_, 'de>,
) -> Result<(), Malformed> {
    let open = reading.open(part);
    members(items, len, open, level, reading)
}

fn members<'de, S: Source<'de>>(
    items: &mut Items<'de, S>,
    len: Option<u64>,
    open: Open,
    level: usize,
    reading: &mut ReadingDecoder<'_, 'de>,
) -> Result<(), Malformed> {
    let mut left = len;
    while items.more(&mut left)? {
        let role = match items.item()? {
            Item::Text(key) => reading.key(open, key),
            Item::BadText => {
                reading.fail(Fault::new(RejectReason::InvalidUtf8, "a key is not UTF-8"));
                None
            }
            other => {
                let detail = format!("a key must be a text, not {}", other.name());
                reading.fail(Fault::new(RejectReason::WrongType, detail));
                None
            }
        };
        match (role, items.head()?) {
            (Some(Role::Object(part)), Head::Map(len)) => {
                object(items, len, part, level + 1, reading)?
            }
            (role, head) => member(items, head, role, level, reading)?,
        }
    }
    reading.close(open);
    Ok(())
}

/// Reads the value that starts with this head: reports it or its members.
fn member<'de, S: Source<'de>>(
    items: &mut Items<'de, S>,
    head: Head<'de>,
    role: Option<Role>,
    level: usize,
    reading: &mut ReadingDecoder<'_, 'de>,
) -> Result<(), Malformed> {
    // A tagged array may be a number.
    let nests = matches!(head, Head::Map(_) | Head::Array(_)) && !items.is_tagged();
    match (
        head,
        role.filter(|_| nests).and_then(|role| reading.nest(role)),
    ) {
        (Head::Map(len), Some(open)) => members(items, len, open, level + 1, reading),
        (Head::Array(mut left), Some(open)) => {
            let mut index = 0;
            while items.more(&mut left)? {
                let role = reading.element(open, index);
                index += 1;
                let head = items.head()?;
                member(items, head, role, level + 1, reading)?;
            }
            reading.close(open);
            Ok(())
        }
        (head, _) => {
            value(items.finish(head)?, level, role, reading);
            Ok(())
        }
    }
}

/// Reports a value. With no role its reading is rejected already.
fn value<'de>(
    item: Item<'de>,
    level: usize,
    role: Option<Role>,
    reading: &mut ReadingDecoder<'_, 'de>,
) {
    match (&item, role) {
        // The limit of the parser of JSON.
        (Item::Nested(_, depth), _) if level + depth > DEPTH_MAX => {
            let detail = format!(
                "nested {} levels deep; at most {DEPTH_MAX} are allowed",
                level + depth
            );
            reading.fail(Fault::new(RejectReason::TooDeep, detail));
        }
        (_, Some(role)) => reading.take(role, Token::from(item)),
        (_, None) => {}
    }
}

impl<'de> From<Item<'de>> for Token<'de> {
    fn from(item: Item<'de>) -> Token<'de> {
        match item {
            Item::Null => Token::Null,
            Item::Bool(v) => Token::Bool(v),
            Item::Int(v) => Token::integer(v),
            Item::HugeInt => Token::HugeInt,
            Item::Double(v) => Token::double(v),
            Item::Text(v) => Token::Str(v),
            Item::BadText => Token::NotUtf8,
            Item::Time(time) => Token::Time(time),
            Item::Bytes(_) | Item::Nested(..) | Item::Other(_) => Token::NotScalar(item.name()),
        }
    }
}
