//! Content-Type to the format of the decoder. Pure.

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue};

use super::error::IngestError;
use decode::{Decoder, Format, forwarded};

/// Pairs `name=value`, which become an object. curl sends this type unless it is given another.
const FORM: &str = "application/x-www-form-urlencoded";

/// The accepted media types. A new format is one line here.
const MEDIA_TYPES: [(&str, Format); 11] = [
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

/// The names of the accepted media types, for error messages.
pub(super) fn media_types() -> impl Iterator<Item = &'static str> {
    let names = MEDIA_TYPES.iter().map(|(name, _)| *name);
    names.chain([forwarded::MEDIA_TYPE])
}

/// The decoder for Content-Type; see [`format_of`].
pub(super) fn decoder_of(headers: &HeaderMap) -> Result<Decoder, IngestError> {
    let given = headers.get(CONTENT_TYPE);
    match given.is_some_and(|given| essence(given).eq_ignore_ascii_case(forwarded::MEDIA_TYPE)) {
        true => Ok(Decoder::forwarded()),
        false => format_of(headers).map(Decoder::from),
    }
}

/// The format that Content-Type names; JSON if the header is missing. Parameters (`charset=utf-8`)
/// are ignored: the decoder accepts UTF-8 only and rejects anything else with a reason.
pub(super) fn format_of(headers: &HeaderMap) -> Result<Format, IngestError> {
    let Some(given) = headers.get(CONTENT_TYPE) else {
        return Ok(Format::Json);
    };
    let essence = essence(given);
    MEDIA_TYPES
        .iter()
        .find(|(name, _)| essence.eq_ignore_ascii_case(name))
        .map(|(_, format)| *format)
        .ok_or_else(|| IngestError::MediaType {
            given: String::from_utf8_lossy(given.as_bytes()).into_owned(),
        })
}

/// Whether Content-Type says that the body is a form.
pub(super) fn is_form(headers: &HeaderMap) -> bool {
    let given = headers.get(CONTENT_TYPE);
    given.is_some_and(|given| essence(given).eq_ignore_ascii_case(FORM))
}

/// The media type without parameters.
fn essence(given: &HeaderValue) -> &str {
    let given = given.to_str().unwrap_or_default();
    given.split(';').next().unwrap_or_default().trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(value: &'static str) -> Option<Format> {
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(value))]);
        format_of(&headers).ok()
    }

    #[test]
    fn the_media_type_is_read_without_case_and_parameters() {
        assert_eq!(format("application/json"), Some(Format::Json));
        assert_eq!(
            format("Application/JSON; charset=utf-8"),
            Some(Format::Json)
        );
        assert_eq!(format("application/x-ndjson"), Some(Format::Ndjson));
        assert_eq!(format("application/jsonl ;x=y"), Some(Format::Ndjson));
        assert_eq!(format("application/senml+json"), Some(Format::Senml));
        assert_eq!(format("application/SenML+CBOR"), Some(Format::SenmlCbor));
        assert_eq!(format("application/cbor"), Some(Format::Cbor));
        assert_eq!(format("application/vnd.msgpack"), Some(Format::MessagePack));
        assert_eq!(
            format("application/x-www-form-urlencoded"),
            Some(Format::Json)
        );
        assert_eq!(format("text/plain"), None);
        assert_eq!(format("application/json-seq"), None);
        assert_eq!(format(""), None);
        assert_eq!(format_of(&HeaderMap::new()).ok(), Some(Format::Json));
    }
}
