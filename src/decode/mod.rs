//! Decodes bytes into readings and rejects. Pure: no IO, no clock (the caller passes the time of receipt). One bad
//! reading never fails its batch.
//!
//! - Built-in formats: `json`, `scalar`, `line`, `binary` (CBOR, MessagePack) and `senml`; [`sparkplug`], which keeps
//!   state; [`otlp`] for OpenTelemetry metrics. `mapping` applies the formats of the configuration. [`Decoder`] is any
//!   of them by name.
//! - Parts that they share: `reading` defines what a reading in the native format is, `token` the values of its
//!   members, `template` is the fast path for similar readings, `time` and `names` hold the rules for times and names, `quota` limits the
//!   readings of a payload, `decimal` parses plain numbers, `split` finds the end of a broken element, `protobuf` reads the
//!   wire format of Protocol Buffers.
//! - [`topic`] parses topics, [`reasons`] is the closed list of reject reasons.
//!
//! Invariants: every element of a payload becomes one reading or one reject with its index. Readings already in `out`
//! stay unchanged. Time and memory are linear in the payload; kept rejects are limited (see [`Rejects`]).

mod binary;
mod decimal;
mod decoder;
mod json;
mod line;
mod mapping;
mod names;
pub mod otlp;
pub(crate) mod protobuf;
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
pub(crate) mod time;
mod token;
pub mod topic;

use std::str::FromStr;

pub use decoder::{Decoder, Formats, UnknownFormat};
pub use line::quote_lines;
pub use rejects::{KEPT_MAX, Reject, Rejects};
pub use topic::{Captured, TopicError, TopicTemplate, filter_matches};

use crate::config::{Limits, Line};
use crate::model::BatchBuilder;

/// How a payload is encoded: the setting `format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// The native format: an object, an array of objects, or concatenated objects.
    Json,
    /// The native format, one object per line; a bad line rejects only itself.
    Ndjson,
    /// One bare value; sensor and field come from the topic.
    Scalar,
    /// InfluxDB line protocol; a bad line rejects only itself.
    Line,
    /// The native format in CBOR (RFC 8949): an object, an array of objects, or concatenated objects (RFC 8742).
    Cbor,
    /// The native format in MessagePack: an object, an array of objects, or concatenated objects.
    MessagePack,
    /// SenML (RFC 8428) in JSON; a bad record rejects only itself, unless others depend on it.
    Senml,
    /// SenML in CBOR.
    SenmlCbor,
}

impl Format {
    /// The names as settings use them.
    pub const NAMES: &[&str] = &["json", "ndjson", "scalar", "line", "cbor", "msgpack", "senml", "senml-cbor"];

    /// The default unit of numeric times; `None`: by magnitude.
    pub fn ts_unit_usual(self) -> Option<TsUnit> {
        match self {
            // The default of the line protocol itself.
            Format::Line => Some(TsUnit::Ns),
            Format::Json | Format::Ndjson | Format::Scalar | Format::Cbor | Format::MessagePack => None,
            // SenML defines times in seconds; no setting changes that.
            Format::Senml | Format::SenmlCbor => None,
        }
    }
}

const CHOICES: &str = "json, ndjson, scalar, line, cbor, msgpack, senml or senml-cbor";

/// An unknown name in a setting. The message lists the valid ones.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} `{name}`; expected one of {choices}")]
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

/// Unit of a numeric time. Minutes and hours have no name here: only InfluxDB's v1 interface uses them.
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
            _ => Err(UnknownName { name: name.to_owned(), what: "unit of time", choices: "s, ms, us or ns" }),
        }
    }
}

/// Information about a payload besides its bytes.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The limits to apply.
    pub limits: &'a Limits,
    /// Settings of the line protocol.
    pub line: &'a Line,
    /// Time of receipt, in milliseconds since 1970.
    pub received_at_ms: i64,
    /// Unit of numeric times; `None`: by magnitude (see also [`Format::ts_unit_usual`]). A member `ts_unit` of the
    /// reading overrides it.
    pub ts_unit: Option<TsUnit>,
    /// From the topic: the sensor id if the payload names none.
    pub sensor_id: Option<&'a str>,
    /// From the topic: the field of a scalar.
    pub field: Option<&'a str>,
    /// From the topic: tags in addition to those of the payload (which override them). Names must be unique and already
    /// in their stored form; [`TopicTemplate`] guarantees both.
    pub tags: &'a [(&'a str, &'a str)],
}

/// Decodes a payload. Appends its readings to `out` and its rejects to `rejects`.
///
/// A well-formed payload without readings (`[]`) yields neither. `out` may already hold readings of other messages.
/// Send it on before its space for names runs out, for example when [`BatchBuilder::names_len`] exceeds half of
/// [`crate::model::batch::NAMES_MAX`]. Otherwise a message with very many field names leaves no space for those of the
/// next one.
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
