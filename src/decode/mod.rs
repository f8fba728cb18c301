//! Bytes to readings and rejects. Pure: no IO, no clock (the time of receipt is handed in), and one bad reading never
//! fails its batch.
//!
//! `json`, `scalar`, `line`, `binary` (CBOR, MessagePack) and `senml` are built-in formats, [`sparkplug`] is one that needs
//! a memory of its own, [`otlp`] reads the metrics of OpenTelemetry, `mapping` is what a configuration describes, and
//! [`Decoder`] is any of them by name; `reading` is one reading in the native shape, `token` one of its members, `template`
//! the fast way for readings that look alike, `time` and `names` the rules for times and names, `quota`
//! the most readings of a payload, `decimal` plain numbers, `split` finds where a
//! broken element ends. [`topic`] takes a topic apart, [`reasons`] is the closed list of what can be wrong, [`cli`] the
//! command `decode`.
//!
//! Invariants: every element of a payload becomes one reading or one reject with its index; the readings that `out` held
//! before stay as they are; the work is linear in the payload, and so is what is kept of it (see [`Rejects`]).

mod binary;
pub mod cli;
mod decimal;
mod decoder;
mod json;
mod line;
mod mapping;
mod names;
pub mod otlp;
mod quota;
mod reading;
pub mod reasons;
mod rejects;
mod scalar;
mod senml;
pub mod sparkplug;
mod split;
mod template;
#[cfg(test)]
mod tests;
mod time;
mod token;
pub mod topic;

use std::str::FromStr;

pub use decoder::{Decoder, Formats, UnknownFormat};
pub use line::quote_lines;
pub use rejects::{KEPT_MAX, Reject, Rejects};
pub use topic::{Captured, TopicError, TopicTemplate, filter_matches};

use crate::config::{Limits, Line};
use crate::model::BatchBuilder;

/// How to read a payload, the setting `format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// The native shape: object, array of objects, or objects one after another.
    Json,
    /// The native shape, one object a line; a bad line costs only itself.
    Ndjson,
    /// One bare value; sensor and field come from the topic.
    Scalar,
    /// InfluxDB's line protocol; a bad line costs only itself.
    Line,
    /// The native shape in CBOR (RFC 8949): object, array of objects, or objects one after another (RFC 8742).
    Cbor,
    /// The native shape in MessagePack: object, array of objects, or objects one after another.
    MessagePack,
    /// SenML (RFC 8428) in JSON; a bad record costs only itself, unless others depend on it.
    Senml,
    /// SenML in CBOR.
    SenmlCbor,
}

impl Format {
    /// The name of each, as settings have it.
    pub const NAMES: &[&str] = &["json", "ndjson", "scalar", "line", "cbor", "msgpack", "senml", "senml-cbor"];

    /// The unit of numbers as time where nobody has said another; `None`: by magnitude.
    pub fn ts_unit_usual(self) -> Option<TsUnit> {
        match self {
            // What the line protocol itself says.
            Format::Line => Some(TsUnit::Ns),
            Format::Json | Format::Ndjson | Format::Scalar | Format::Cbor | Format::MessagePack => None,
            // SenML says itself that times are seconds, and nothing else counts.
            Format::Senml | Format::SenmlCbor => None,
        }
    }
}

const CHOICES: &str = "json, ndjson, scalar, line, cbor, msgpack, senml and senml-cbor";

/// A name that a setting cannot have, and those that it can.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is no {what}; there are {choices}")]
pub struct UnknownName {
    name: String,
    what: &'static str,
    choices: &'static str,
}

impl FromStr for Format {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Format, UnknownName> {
        match name {
            "json" => Ok(Format::Json),
            "ndjson" => Ok(Format::Ndjson),
            "scalar" => Ok(Format::Scalar),
            "line" => Ok(Format::Line),
            "cbor" => Ok(Format::Cbor),
            "msgpack" => Ok(Format::MessagePack),
            "senml" => Ok(Format::Senml),
            "senml-cbor" => Ok(Format::SenmlCbor),
            _ => Err(UnknownName { name: name.to_owned(), what: "format", choices: CHOICES }),
        }
    }
}

/// Unit of a number that stands for a time. Minutes and hours have no name here: only InfluxDB's v1 interface has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TsUnit {
    /// Seconds.
    S,
    /// Milliseconds.
    Ms,
    /// Microseconds.
    Us,
    /// Nanoseconds.
    Ns,
    /// Minutes.
    Minute,
    /// Hours.
    Hour,
}

impl FromStr for TsUnit {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<TsUnit, UnknownName> {
        match name {
            "s" => Ok(TsUnit::S),
            "ms" => Ok(TsUnit::Ms),
            "us" => Ok(TsUnit::Us),
            "ns" => Ok(TsUnit::Ns),
            _ => Err(UnknownName { name: name.to_owned(), what: "unit of time", choices: "s, ms, us and ns" }),
        }
    }
}

/// What is known about a payload beside its bytes.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The limits that hold.
    pub limits: &'a Limits,
    /// How the line protocol is read.
    pub line: &'a Line,
    /// When it was received, in milliseconds since 1970.
    pub received_at_ms: i64,
    /// Unit of numbers as time; `None`: by magnitude (see also [`Format::ts_unit_usual`]). A member `ts_unit` of the
    /// reading wins.
    pub ts_unit: Option<TsUnit>,
    /// From the topic: used where the payload names no sensor.
    pub sensor_id: Option<&'a str>,
    /// From the topic: the field of a scalar.
    pub field: Option<&'a str>,
    /// From the topic: tags, beside those of the payload (which win). No name twice, and names as they are stored:
    /// [`TopicTemplate`] gives such ones.
    pub tags: &'a [(&'a str, &'a str)],
}

/// Reads a payload: appends its readings to `out` and its rejects to `rejects`.
///
/// A well-formed payload without readings (`[]`) gives neither. `out` may hold readings of other messages; send it on
/// before its names run out ([`BatchBuilder::names_len`] beyond half of [`crate::model::batch::NAMES_MAX`] is a good
/// time), or a message with very many field names takes the room of the next one's.
pub fn decode(format: Format, payload: &[u8], cx: &Context<'_>, out: &mut BatchBuilder, rejects: &mut Rejects) {
    match format {
        Format::Json => json::decode(payload, cx, out, rejects),
        Format::Ndjson => json::decode_lines(payload, cx, out, rejects),
        Format::Scalar => scalar::decode(payload, cx, out, rejects),
        Format::Line => line::decode(payload, cx, out, rejects),
        Format::Cbor => binary::decode_cbor(payload, cx, out, rejects),
        Format::MessagePack => binary::decode_msgpack(payload, cx, out, rejects),
        Format::Senml => senml::decode_json(payload, cx, out, rejects),
        Format::SenmlCbor => senml::decode_cbor(payload, cx, out, rejects),
    }
}
