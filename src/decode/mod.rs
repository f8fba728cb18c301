//! Decodes bytes into readings and rejects. Pure: no IO, no clock (the caller passes the time of
//! receipt). One bad reading never fails its batch.
//!
//! - Built-in formats: `json`, `scalar`, `line`, `binary` (CBOR, MessagePack) and `senml`;
//!   [`sparkplug`], which keeps state; [`otlp`] for OpenTelemetry metrics; [`remote_write`] for
//!   Prometheus. `mapping` applies the formats of the configuration. [`Decoder`] is any of them by
//!   name.
//! - Parts that they share: `context` is what the caller knows about a payload, `reading` defines
//!   what a reading in the native format is, `token` the values of its members, `template` is the
//!   fast path for similar readings, `time` and `names` hold the rules for times and names, `quota`
//!   limits the readings of a payload, `decimal` parses plain numbers, `split` finds the end of a
//!   broken element, `protobuf` reads the wire format of Protocol Buffers.
//! - [`topic`] parses topics, [`RejectReason`] is the closed list of reject reasons.
//!
//! Invariants: every element of a payload becomes one reading or one reject with its index.
//! Readings already in `out` stay unchanged. Time and memory are linear in the payload; kept
//! rejects are limited (see [`Rejects`]).

#[cfg(test)]
mod bad_input_tests;
mod binary;
mod context;
mod decimal;
mod decoder;
mod json;
#[cfg(test)]
mod limits_tests;
mod line;
mod mapping;
mod member_faults;
mod names;
#[cfg(test)]
mod native_tests;
pub mod otlp;
pub(crate) mod protobuf;
mod quota;
mod reading;
mod reasons;
mod rejects;
pub mod remote_write;
mod scalar;
mod senml;
pub mod sparkplug;
mod split;
mod stamp;
mod swar;
mod template;
#[cfg(test)]
mod tests;
pub(crate) mod time;
mod token;
pub mod topic;

pub use context::{Context, Format, TsUnit, UnknownName, UnsetClock};
pub(crate) use decoder::compression;
pub use decoder::{Decoder, Formats, UnknownFormat};
pub use line::quote_lines;
pub use reasons::RejectReason;
pub use rejects::{HINTS_MAX, KEPT_MAX, LeftOut, Reject, Rejects};
pub(crate) use scalar::bare_value_as_json;
pub(crate) use token::stands_for_number;
pub use topic::{Captured, TopicError, TopicTemplate, filter_matches};

use crate::model::BatchBuilder;

/// Decodes a payload. Appends its readings to `out` and its rejects to `rejects`.
///
/// A well-formed payload without readings (`[]`) yields neither. `out` may already hold readings of
/// other messages. Send it on before its space for names runs out, for example when
/// [`BatchBuilder::names_len`] exceeds half of [`crate::model::batch::NAMES_MAX`]. Otherwise a
/// message with very many field names leaves no space for those of the next one.
pub fn decode(
    format: Format,
    payload: &[u8],
    cx: &Context<'_>,
    out: &mut BatchBuilder,
    rejects: &mut Rejects,
) {
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
