//! The body that one instance forwards to another (`application/vnd.hourbucket.batch`): many readings
//! in few bytes, each exactly as it was received. docs/forwarding.md describes it for others.
//!
//! Most readings of a site are a few decimal digits that have hardly changed since the sensor's last
//! reading. So each part of a reading has its own section, numbers are differences from the last
//! ones of the same sensor, and everything that says the same again is a zero byte. What remains
//! compresses well, because bytes of one kind are neighbours.
//!
//! **Layout.** The four bytes [`MAGIC`], of which the last is the version, then sections: the length
//! (varint) and the bytes of each.
//! 1. Names of fields: length and bytes of each.
//! 2. Schemas: the number of fields, and the index of each name.
//! 3. Sensors: length and bytes of the id, length of the tags, then length and bytes of each key and
//!    value, sorted by key.
//! 4. Heads, one for each reading: the difference of its sensor's index from the one after the last
//!    reading's (signed), [`OTHER_SCHEMA`] and [`REPEATS`] as a byte of flags, the index of the schema
//!    if the sensor's last reading had another one (or there was none), and how many equal readings
//!    came before it, if any did.
//! 5. Times: the difference from the last reading's, in milliseconds (signed). The first one is from
//!    1970.
//! 6. Kinds: a byte for each value (the `kind` constants).
//! 7. Numbers: what the kinds say (signed), mostly the difference from the sensor's last value of the
//!    same field and kind.
//! 8. Texts: the bytes of all texts and of doubles that are not short decimals.
//!
//! Varints have seven bits a byte, the lowest first; signed ones are zigzag-encoded. Everything in a
//! body is used to its last byte; anything else makes it invalid as a whole.
//!
//! **Receipt times.** A reading whose sensor gave no time got one where it was received, and is exact
//! from there on. Equal ones of a millisecond are told apart by their number: the receiver stores
//! as many as the sender had, however often it sends them ([`model::ReadingRef::repeat`]).
//!
//! **Hostile input.** Each element takes at least a byte, so counts are limited by the body, and where
//! an element takes more memory, by a constant. Readings share names, sensors and tags; the batch that
//! they are written to has a separate limit.

mod encode;
mod read;
#[cfg(test)]
mod tests;

pub use encode::Encoder;

use self::read::{Body, InvalidBody};
use super::names;
use super::quota::Quota;
use super::reading::add_value;
use super::rejects::{Fault, Rejects};
use super::time::{self, Origin};
use super::{Context, RejectReason};
use model::{BatchBuilder, ValueRef};

/// The beginning of every body; the last byte is the version.
const MAGIC: [u8; 4] = *b"HBF\x01";
/// The media type of a body.
pub const MEDIA_TYPE: &str = "application/vnd.hourbucket.batch";

/// The most schemas and sensors of a body. It has at most [`model::batch::NAMES_MAX`] names.
const SCHEMAS_MAX: usize = 1 << 16;
const SENSORS_MAX: usize = 1 << 17;

/// Flags of a reading.
const OTHER_SCHEMA: u8 = 1;
const REPEATS: u8 = 2;

/// What a value is. Smaller kinds are doubles that are this many decimal digits behind the point of
/// an integer: the number is the difference of that integer from the last one.
mod kind {
    /// The most digits behind the point.
    pub(super) const DIGITS_MAX: u8 = 6;
    /// A double; its eight bytes are among the texts, the lowest first.
    pub(super) const DOUBLE: u8 = 8;
    /// An integer: the difference from the last one.
    pub(super) const INT: u8 = 9;
    pub(super) const FALSE: u8 = 10;
    pub(super) const TRUE: u8 = 11;
    /// A text: the number is its length.
    pub(super) const TEXT: u8 = 12;
}

/// How many of a unit are one, by the digits behind the point.
const PER_ONE: [f64; kind::DIGITS_MAX as usize + 1] = [1.0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6];

/// The last value of a field of a sensor.
#[derive(Debug, Clone, Copy)]
struct Last {
    kind: u8,
    number: i64,
}

impl Last {
    const NONE: Last = Last {
        kind: kind::TEXT,
        number: 0,
    };

    /// The number that a value of this kind is the difference from.
    fn base(self, kind: u8) -> i64 {
        if self.kind == kind { self.number } else { 0 }
    }
}

/// Decodes a body. One that is not valid yields a single reject and no reading.
pub(super) fn decode(
    payload: &[u8],
    cx: &Context<'_>,
    out: &mut BatchBuilder,
    rejects: &mut Rejects,
) {
    let mark = out.mark();
    if let Err(error) = read_all(payload, cx, out, rejects) {
        out.rollback(mark);
        rejects.clear();
        rejects.push(0, RejectReason::InvalidBatch, error.to_string());
    }
}

fn read_all(
    payload: &[u8],
    cx: &Context<'_>,
    out: &mut BatchBuilder,
    rejects: &mut Rejects,
) -> Result<(), InvalidBody> {
    let mut body = Body::parse(payload)?;
    let mut quota = Quota::new(cx.limits);
    let mut values = vec![];
    let mut index = 0;
    while body.read(&mut values)? {
        if !quota.refuses(index) {
            match commit(&body, &values, cx, out) {
                Ok(()) => quota.took(),
                Err(fault) => {
                    out.abort();
                    rejects.fault(index, fault);
                }
            }
        }
        index += 1;
    }
    quota.close("readings", rejects);
    Ok(())
}

/// Commits the reading that was read last, under the rules for all formats.
fn commit(
    body: &Body<'_>,
    values: &[(&str, ValueRef<'_>)],
    cx: &Context<'_>,
    out: &mut BatchBuilder,
) -> Result<(), Fault> {
    let sensor = body.sensor();
    names::check_sensor_id(sensor.id, cx.limits)?;
    out.begin();
    for (name, value) in values {
        if let ValueRef::Str(text) = value {
            names::check_text(name, text, cx.limits)?;
        }
        let name = names::name(name, cx)?;
        add_value(out, &name, *value, cx.limits.fields_max)?;
    }
    if values.is_empty() {
        return Err(Fault::new(
            RejectReason::NoValues,
            "the reading has no value",
        ));
    }
    let mut tags = vec![];
    for (key, value) in sensor.tags() {
        names::add_tag(&mut tags, key.into(), value.into(), cx)?;
    }
    let ts_ms = time::accepted(i128::from(body.ts_ms), cx)?;
    out.repeats(body.repeat);
    names::commit(out, sensor.id, (ts_ms, Origin::Sender), &tags, cx)
}
