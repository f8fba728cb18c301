//! The values of Content-Type that the port accepts, also for error messages.

use decode::Format;

/// Pairs `name=value`, which become an object. curl sends this type unless it is given another.
pub(super) const FORM: &str = "application/x-www-form-urlencoded";

/// The accepted media types. A new format is one line here.
pub(super) const MEDIA_TYPES: [(&str, Format); 11] = [
    ("application/json", Format::Json),
    ("application/x-ndjson", Format::Ndjson),
    ("application/ndjson", Format::Ndjson),
    ("application/jsonl", Format::Ndjson),
    ("application/senml+json", Format::Senml),
    ("application/senml+cbor", Format::SenmlCbor),
    ("application/cbor", Format::Cbor),
    ("application/msgpack", Format::MessagePack),
    ("application/vnd.msgpack", Format::MessagePack),
    ("application/x-msgpack", Format::MessagePack),
    (FORM, Format::Json),
];

/// The names of the accepted media types.
pub(super) fn media_types() -> impl Iterator<Item = &'static str> {
    MEDIA_TYPES.iter().map(|(name, _)| *name)
}
