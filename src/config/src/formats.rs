//! The names of the built-in formats, which a format of the configuration cannot use.

/// The payload formats of `decode::Format`; add a new one in both places. Also Sparkplug B, which
/// the connection to a broker decodes itself.
pub(super) const FORMATS: &[&str] = &[
    "json",
    "ndjson",
    "scalar",
    "line",
    "cbor",
    "msgpack",
    "senml",
    "senml-cbor",
    "otlp",
    "otlp-json",
    "remote-write",
    "remote-write-2",
    SPARKPLUG,
];
pub(super) const SPARKPLUG: &str = "sparkplug";
