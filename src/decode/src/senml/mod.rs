//! SenML (RFC 8428) in JSON and CBOR: a pack is an array of records; base fields of a record also
//! apply to the following ones.
//!
//! Mapping of a record:
//!
//! - **sensor**: the SenML name, which is base name and name concatenated (§4.5.1). In SenML the
//!   split between the two has no meaning, and a pack and its resolved form must yield the same
//!   readings. If the topic names a sensor, that is the sensor, and the SenML name without the
//!   first base name of the pack is the field.
//! - **field**: `value` for every type of value; data values are stored as base64url text, as in
//!   JSON. A sum is an additional field: `sum` (§4.2 also calls it "sum"; it is the integral over
//!   time), or the field's name with `_sum`.
//! - **unit**: the tag `u`. If one name has several units in a pack (RFC 8428 §5.1.4 sends
//!   humidity, place and battery under one name), these are different quantities, and the unit
//!   becomes the field: `%RH`, `lon`, `lat`.
//! - **time**: the sum of base time and time. Below 2^28 seconds, including negative values, it is
//!   relative to the time of receipt (§4.5.3). Without a time, or with 0, it is the time of receipt
//!   itself.
//! - Records of one sensor and one time form one reading, unless a field occurs twice.
//!
//! `record` holds one record as written, `pack` resolves records and builds readings, `json` and
//! `cbor` are the two encodings.
//!
//! A bad record rejects only itself. But if it had, or may have had, an invalid base field, the
//! following records that depend on this field are rejected as well, up to the next record that
//! sets it: otherwise they would get another sensor's name or time. A pack that requires
//! unsupported features (a `bver` above 10, or an unknown label that ends with `_`, §4.4) is
//! rejected as a whole.

mod cbor;
mod json;
mod pack;
mod record;
#[cfg(test)]
mod tests;

pub(super) use self::cbor::decode as decode_cbor;
pub(super) use self::json::decode as decode_json;
