//! Every reason for which a request is refused: one variant per decision, one exhaustive match to a
//! status.
//!
//! A refusal means that nothing of the request is in the pipeline. The exceptions are
//! [`IngestError::AckTimeout`] and [`IngestError::NotDelivered`], which come after the hand-over:
//! the readings may still be stored. When the sender sends them again, they are recognised as
//! duplicates, unless they have no timestamp.
//!
//! The text says what is wrong, where, and what to do. It never contains a secret, and therefore
//! neither path nor method: some senders have their token in the path.

use axum::extract::rejection::PathRejection;
use axum::http::header::{ACCEPT_ENCODING, CONNECTION, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use super::media::media_types;
use super::routes::WRITE_ROUTES;
use journal::admission::AdmissionError;
use model::Named as _;
use net::http::access_error::{AccessError, refusal, retry_after};
use net::http::encoding::UnsupportedEncoding;
use net::http::foreign::Foreign;

/// Why a request is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IngestError {
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error(transparent)]
    Foreign(#[from] Foreign),
    #[error(
        "no such path on this port; send readings to POST {}; {}",
        WRITE_ROUTES.join(" or POST "),
        if *is_device_api { DEVICE_API } else { "the read API is on the port of admin.listen" }
    )]
    NotFound { is_device_api: bool },
    #[error("the path, percent-decoded, is not valid UTF-8")]
    Path,
    #[error("unknown format in the path /v1/hooks/FORMAT; {advice}")]
    NoFormat { advice: String },
    #[error(
        "unsupported Content-Type {given:?}; expected application/x-protobuf or application/json"
    )]
    NotOtlp { given: String },
    #[error(
        "unsupported Content-Type {given:?}; expected application/x-protobuf, with \
         proto=prometheus.WriteRequest or proto=io.prometheus.write.v2.Request"
    )]
    NotRemoteWrite { given: String },
    #[error("method not allowed at this path; the header Allow lists the allowed methods")]
    Method,
    #[error("invalid URL query: {detail}; {known}")]
    Query { detail: String, known: &'static str },
    #[error(
        "query not supported; query MongoDB instead (here CREATE DATABASE does nothing, SHOW \
         DATABASES is empty)"
    )]
    NoQueries,
    #[error(
        "GET sends the values of its query as a JSON object, which the format in the path does not \
         read; send the body with POST, or the values to GET /v1/hooks/json"
    )]
    NoQueryValues,
    #[error("unsupported Content-Type {given:?}; expected one of {}; without the header the body is \
        read as JSON", media_types().collect::<Vec<_>>().join(", "))]
    MediaType { given: String },
    #[error(transparent)]
    Encoding(#[from] UnsupportedEncoding),
    #[error(
        "the request has neither Content-Length nor `Transfer-Encoding: chunked`, so HTTP takes its \
         body for empty; send Content-Length with the number of bytes of the body (0 if it is \
         meant to be empty)"
    )]
    NoLength,
    #[error("the body is larger than {limit} bytes as sent; send the readings in several requests")]
    TooLarge { limit: u64 },
    #[error(
        "the body is larger than {limit} bytes after decompression; send the readings in several \
         requests"
    )]
    TooLargeDecompressed { limit: u64 },
    #[error(
        "the decoded readings take more than {limit} bytes, the most that the journal accepts \
         together (journal.max_bytes); send them in several requests"
    )]
    TooLargeDecoded { limit: usize },
    #[error(
        "the body has more than {limit} lines (limits.batch_max_readings); send them in several \
         requests"
    )]
    TooManyLines { limit: usize },
    #[error("the body cannot be decompressed as {encoding}: {detail}")]
    Corrupt {
        encoding: &'static str,
        detail: String,
    },
    #[error("the body did not arrive within {seconds} s")]
    BodyTimeout { seconds: f64 },
    #[error("the body arrived at less than {rate_min} bytes per second")]
    BodyTooSlow { rate_min: u64 },
    #[error("the body ended early: {detail}")]
    BodyBroken { detail: String },
    #[error("invalid header Idempotency-Key: {0}; send a text in double quotes, such as a UUID")]
    Key(&'static str),
    #[error(
        "the first request with this Idempotency-Key is still in progress; send the same again \
         later"
    )]
    KeyInFlight,
    #[error(
        "this Idempotency-Key was used for another request (path, query, Content-Type or body \
         differ); nothing was accepted; send the readings with a different key"
    )]
    KeyReused,
    #[error(
        "this instance sends its newest readings first (forward.order), and equal readings of \
         other instances must stay in order; write forward.order = \"oldest\" here"
    )]
    NewestFirst,
    #[error("too many concurrent requests; try again later")]
    Concurrency,
    #[error("memory budget for request bodies used up; try again later")]
    Memory,
    #[error(transparent)]
    Admission(#[from] AdmissionError),
    #[error(
        "no acknowledgement within {seconds} s; send the readings again, those with a timestamp \
         are stored once"
    )]
    AckTimeout { seconds: f64 },
    #[error(
        "the readings were not stored; send them again, those with a timestamp are stored once"
    )]
    NotDelivered,
    #[error(
        "internal error; see the log of the service; send the readings again, those with a \
         timestamp are stored once"
    )]
    Internal,
}

/// The supported part of ThingsBoard's device API.
const DEVICE_API: &str =
    "of ThingsBoard's device API only telemetry is supported, not attributes, RPC or claims";

/// Seconds until the sender should try again. Queues drain within a second. A full journal waits
/// for the store. A service that stops is replaced within seconds. A service that has failed waits
/// for an operator or a supervisor.
const RETRY_BUSY_S: u64 = 1;
const RETRY_FULL_S: u64 = 10;
const RETRY_STOPPING_S: u64 = 5;
const RETRY_BROKEN_S: u64 = 30;

impl IngestError {
    pub(super) fn status(&self) -> StatusCode {
        match self {
            IngestError::Access(error) => error.status(),
            IngestError::Foreign(_) => StatusCode::FORBIDDEN,
            IngestError::NotFound { .. } | IngestError::NoFormat { .. } => StatusCode::NOT_FOUND,
            IngestError::Method => StatusCode::METHOD_NOT_ALLOWED,
            IngestError::Path
            | IngestError::Query { .. }
            | IngestError::NoQueries
            | IngestError::NoQueryValues
            | IngestError::Key(_) => StatusCode::BAD_REQUEST,
            IngestError::KeyInFlight | IngestError::NewestFirst => StatusCode::CONFLICT,
            IngestError::KeyReused => StatusCode::UNPROCESSABLE_ENTITY,
            IngestError::Corrupt { .. } | IngestError::BodyBroken { .. } => StatusCode::BAD_REQUEST,
            IngestError::MediaType { .. }
            | IngestError::NotOtlp { .. }
            | IngestError::NotRemoteWrite { .. }
            | IngestError::Encoding(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            IngestError::NoLength => StatusCode::LENGTH_REQUIRED,
            IngestError::TooLarge { .. }
            | IngestError::TooLargeDecompressed { .. }
            | IngestError::TooLargeDecoded { .. }
            | IngestError::TooManyLines { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            IngestError::BodyTimeout { .. } | IngestError::BodyTooSlow { .. } => {
                StatusCode::REQUEST_TIMEOUT
            }
            IngestError::Concurrency
            | IngestError::Memory
            | IngestError::Admission(AdmissionError::Busy | AdmissionError::Full) => {
                StatusCode::TOO_MANY_REQUESTS
            }
            IngestError::Admission(AdmissionError::Stopping | AdmissionError::Broken) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            IngestError::AckTimeout { .. } | IngestError::NotDelivered => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            IngestError::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The machine-readable reason; the set is fixed.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            IngestError::Access(error) => error.as_str(),
            IngestError::Foreign(_) => "foreign_origin",
            IngestError::NotFound { .. } => "not_found",
            IngestError::Path => "bad_path",
            IngestError::NoFormat { .. } => "unknown_format",
            IngestError::Method => "method_not_allowed",
            IngestError::Query { .. } | IngestError::NoQueries | IngestError::NoQueryValues => {
                "bad_query"
            }
            IngestError::MediaType { .. }
            | IngestError::NotOtlp { .. }
            | IngestError::NotRemoteWrite { .. } => "unsupported_content_type",
            IngestError::Encoding(_) => "unsupported_content_encoding",
            IngestError::NoLength => "length_required",
            IngestError::TooLarge { .. }
            | IngestError::TooLargeDecompressed { .. }
            | IngestError::TooLargeDecoded { .. }
            | IngestError::TooManyLines { .. } => "body_too_large",
            IngestError::Corrupt { .. } => "bad_compression",
            IngestError::BodyTimeout { .. } => "body_timeout",
            IngestError::BodyTooSlow { .. } => "body_too_slow",
            IngestError::BodyBroken { .. } => "body_broken",
            IngestError::Key(_) => "bad_idempotency_key",
            IngestError::KeyInFlight => "idempotency_key_in_flight",
            IngestError::KeyReused => "idempotency_key_reused",
            IngestError::NewestFirst => "newest_first",
            IngestError::Concurrency
            | IngestError::Memory
            | IngestError::Admission(AdmissionError::Busy) => "busy",
            IngestError::Admission(AdmissionError::Full) => "journal_full",
            IngestError::Admission(AdmissionError::Stopping) => "stopping",
            IngestError::Admission(AdmissionError::Broken) => "broken",
            IngestError::AckTimeout { .. } => "not_stored_in_time",
            IngestError::NotDelivered => "not_stored",
            IngestError::Internal => "internal",
        }
    }

    fn retry_after_s(&self) -> Option<u64> {
        match self {
            IngestError::Concurrency
            | IngestError::KeyInFlight
            | IngestError::Memory
            | IngestError::Admission(AdmissionError::Busy) => Some(RETRY_BUSY_S),
            IngestError::Admission(AdmissionError::Full) => Some(RETRY_FULL_S),
            IngestError::Admission(AdmissionError::Stopping) => Some(RETRY_STOPPING_S),
            IngestError::Admission(AdmissionError::Broken) => Some(RETRY_BROKEN_S),
            IngestError::AckTimeout { .. } | IngestError::NotDelivered => Some(RETRY_BUSY_S),
            _ => None,
        }
    }

    /// The answer in the form of a protocol whose senders drop what gets one of the statuses
    /// `dropping`: 503 with Retry-After in their place.
    pub(super) fn answer(
        &self,
        dropping: &[StatusCode],
        form: impl FnOnce(StatusCode, &str) -> Response,
    ) -> Response {
        let mut status = self.status();
        if dropping.contains(&status) {
            status = StatusCode::SERVICE_UNAVAILABLE;
        }
        let mut response = form(status, &self.to_string());
        let headers = response.headers_mut();
        self.add_headers(headers);
        if status == StatusCode::SERVICE_UNAVAILABLE && !headers.contains_key(RETRY_AFTER) {
            headers.insert(RETRY_AFTER, HeaderValue::from(RETRY_BUSY_S));
        }
        response
    }

    /// Adds Retry-After, WWW-Authenticate, Accept-Encoding or Connection.
    fn add_headers(&self, headers: &mut HeaderMap) {
        if let Some(base_s) = self.retry_after_s() {
            retry_after(headers, base_s);
        }
        match self {
            IngestError::Access(error) => error.add_headers(headers),
            // RFC 9110 §15.5.16: lists the accepted encodings.
            IngestError::Encoding(_) => {
                headers.insert(
                    ACCEPT_ENCODING,
                    HeaderValue::from_static("gzip, zstd, deflate"),
                );
            }
            // The rest of the body may still arrive on this connection, or the next server has
            // another address.
            IngestError::BodyTimeout { .. }
            | IngestError::BodyTooSlow { .. }
            | IngestError::Admission(AdmissionError::Stopping) => {
                headers.insert(CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
    }
}

impl From<PathRejection> for IngestError {
    /// All parameters of paths are texts, so only their encoding can be wrong.
    fn from(_: PathRejection) -> IngestError {
        IngestError::Path
    }
}

impl IntoResponse for IngestError {
    fn into_response(self) -> Response {
        self.answer(&[], |status, text| refusal(status, self.reason(), text))
    }
}
