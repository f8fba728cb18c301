//! Decodes bytes into readings and rejects. Pure: no IO, no clock (the caller passes the time of
//! receipt). One bad reading never fails its batch.
//!
//! - Built-in formats: `json`, `scalar`, `line`, `binary` (CBOR, MessagePack) and `senml`;
//!   [`sparkplug`], which keeps state; [`otlp`] for OpenTelemetry metrics; [`remote_write`] for
//!   Prometheus; [`forwarded`] from another instance. `mapping` applies the formats of the
//!   configuration. [`Decoder`] is any of them by name.
//! - Parts that they share: `context` is what the caller knows about a payload, `reading` defines
//!   what a reading in the native format is, `token` the values of its members, `template` is the
//!   fast path for similar readings, `time` and `names` hold the rules for times and names, `quota`
//!   limits the readings of a payload, `padding` removes what surrounds a text, `decimal` parses
//!   plain numbers, `elements` walks over the elements of a payload in JSON, `split` finds the end of
//!   a broken one, `protobuf` reads the wire format of Protocol Buffers.
//! - [`topic`] parses topics, [`RejectReason`] is the closed list of reject reasons.
//!
//! Invariants: every element of a payload becomes one reading or one reject with its index. A
//! missing comma before an element is a further reject with that index.
//! Readings already in `out` stay unchanged. Time and memory are linear in the payload; kept
//! rejects are limited (see [`Rejects`]).

#[cfg(test)]
mod bad_input_tests;
mod binary;
#[cfg(test)]
mod binary_props;
mod context;
mod decimal;
#[cfg(test)]
mod decode_props;
mod decoder;
mod elements;
#[cfg(test)]
mod elements_tests;
pub mod forwarded;
mod json;
#[cfg(test)]
mod limits_tests;
mod line;
mod mapping;
mod names;
#[cfg(test)]
mod native_tests;
pub mod otlp;
mod padding;
mod quota;
mod reading;
mod reasons;
mod rejects;
pub mod remote_write;
mod scalar;
mod senml;
pub mod sparkplug;
mod split;
mod swar;
mod template;
#[cfg(test)]
mod tests;
pub mod time;
mod token;
pub mod topic;

pub use context::{Context, Format, TsUnit, UnknownName, UnsetClock};
pub use decoder::{Decoder, Formats, UnknownFormat};
pub use line::quote_lines;
pub use names::Renamed;
pub use padding::unpadded;
pub use reasons::RejectReason;
pub use rejects::{HINTS_MAX, KEPT_MAX, LeftOut, OutOfRange, Reject, Rejects};
pub use scalar::bare_value_as_json;
pub use token::stands_for_number;
pub use topic::{Captured, TopicError, TopicTemplate, filter_matches};

use model::BatchBuilder;

/// Decodes a payload of a built-in format, like [`Decoder::decode`].
pub fn decode(
    format: Format,
    payload: &[u8],
    cx: &Context<'_>,
    out: &mut BatchBuilder,
    rejects: &mut Rejects,
) {
    Decoder::from(format).decode(payload, None, cx, out, rejects);
}
