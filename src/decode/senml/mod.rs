//! SenML (RFC 8428) in JSON and CBOR: a pack is an array of records whose base fields hold for all that follow.
//!
//! What a record becomes:
//!
//! - **sensor**: the SenML name, base name and name together (§4.5.1). How a name is split between the two means nothing
//!   in SenML, and a pack and its resolved form must give the same readings. Where the topic names a sensor, that is the
//!   sensor, and the name, without the first base name of the pack, is the field.
//! - **field**: `value`, whatever its kind; data values are kept as base64url text, as in JSON. A sum is a field beside it:
//!   `sum` (§4.2 calls it "sum" too; it is the integral over time), or the field's name with `_sum`.
//! - **unit**: the tag `u`. Where one name comes with several units in a pack (RFC 8428 §5.1.4 sends humidity, place and
//!   battery under one), they are different things under one name, and the unit is the field: `%RH`, `lon`, `lat`.
//! - **time**: base time and time together; below 2^28 seconds it is relative to the time of receipt, negative too
//!   (§4.5.3). Without a time, or with 0, it is the time of receipt itself.
//! - records of one sensor and one time are one reading, unless they give one field twice.
//!
//! `record` takes one record as it is written, `pack` resolves it and puts readings together, `json` and `cbor` are the
//! two encodings.
//!
//! A bad record costs itself. But where it had, or may have had, a base field that is wrong, what follows it and depends on
//! that field is rejected as well, up to the next record that gives it: it would get another sensor's name or time. A pack
//! that asks for more than we understand (a `bver` above 10, or an unknown label that ends with `_`, §4.4) is refused whole.

mod cbor;
mod json;
mod pack;
mod record;
#[cfg(test)]
mod tests;

pub(super) use self::cbor::decode as decode_cbor;
pub(super) use self::json::decode as decode_json;
