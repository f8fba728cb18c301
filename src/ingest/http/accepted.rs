//! The values of Content-Type and Content-Encoding that the port accepts, also for error messages.

use crate::decode::Format;

/// The accepted media types. A new format is one line here.
pub(super) const MEDIA_TYPES: [(&str, Format); 10] = [
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
];

/// The names of the accepted media types.
pub(super) fn media_types() -> impl Iterator<Item = &'static str> {
    MEDIA_TYPES.iter().map(|(name, _)| *name)
}

/// The names of the accepted encodings.
pub(super) const ENCODINGS: [&str; 4] = ["gzip", "zstd", "deflate", "identity"];
