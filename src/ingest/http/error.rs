//! Every way in which a request is turned down: one variant a decision, one exhaustive match to a status.
//!
//! A refusal means that nothing of the request is in the pipeline, except for [`IngestError::AckTimeout`] and
//! [`IngestError::NotDelivered`], which come after the hand-over: what was handed over may yet be stored, and the copy that
//! the sender sends again is recognised as a duplicate, except for readings that have no timestamp of their own.
//!
//! The text says what is wrong, where, and what to do; it never holds a secret.

use axum::http::header::{ACCEPT_ENCODING, CONNECTION, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use super::answer::json;
use super::encoding::ENCODINGS;
use super::media;
use crate::admission::AdmissionError;

/// Why a request is turned down.
#[derive(Debug, thiserror::Error)]
pub(super) enum IngestError {
    #[error(
        "this service takes readings only with a token: send the header `Authorization: Bearer <id>.<secret>` \
         (or `Token` in place of `Bearer`)"
    )]
    NoToken,
    #[error("the header Authorization is not of the form `Bearer <id>.<secret>` (or `Token` in place of `Bearer`)")]
    MalformedToken,
    #[error("the token is not valid: its id is not in the file of tokens, or its secret is another one")]
    WrongToken,
    #[error("there is nothing at {path}; readings go to POST {}", super::WRITE_ROUTES.join(" or POST "))]
    NotFound { path: String },
    #[error("{detail}; the path is /v1/hooks/FORMAT")]
    NoFormat { detail: String },
    #[error("Content-Type {given:?} is not supported here; accepted are application/x-protobuf and application/json")]
    NotOtlp { given: String },
    #[error("{method} is not possible at {path}; the header Allow lists what is")]
    Method { method: String, path: String },
    #[error("the query of the URL is not understood: {detail}; {known}")]
    Query { detail: String, known: &'static str },
    #[error("this service takes readings and answers no queries but CREATE DATABASE, which does nothing; ask MongoDB")]
    NoQueries,
    #[error("Content-Type {given:?} is not supported; accepted are {}; without the header the body is read as JSON",
        media::names().collect::<Vec<_>>().join(", "))]
    MediaType { given: String },
    #[error("Content-Encoding {given:?} is not supported; accepted is one of {}", ENCODINGS.join(", "))]
    Encoding { given: String },
    #[error("the body is larger than {limit} bytes as sent; send the readings in several requests")]
    TooLarge { limit: u64 },
    #[error("the body is larger than {limit} bytes after decompression; send the readings in several requests")]
    TooLargeDecompressed { limit: u64 },
    #[error("the body cannot be decompressed as {encoding}: {detail}")]
    Corrupt { encoding: &'static str, detail: String },
    #[error("the body did not arrive within {seconds} s")]
    BodyTimeout { seconds: f64 },
    #[error("the body broke off: {detail}")]
    BodyBroken { detail: String },
    #[error("too many requests are being worked on; try again later")]
    Concurrency,
    #[error("the bodies being worked on take all the memory set aside for them; try again later")]
    Memory,
    #[error(transparent)]
    Admission(#[from] AdmissionError),
    #[error(
        "the readings are not stored yet after {seconds} s; send them again, those with a timestamp are stored once"
    )]
    AckTimeout { seconds: f64 },
    #[error("the readings could not be stored; send them again, those with a timestamp are stored once")]
    NotDelivered,
    #[error(
        "the request met a fault in the service, whose log says more; sent again, readings with a timestamp are stored once"
    )]
    Internal,
}

/// Seconds until the sender should try again. Queues move within a second; a full journal waits for the store; a
/// service that stops is replaced within seconds; one that has failed waits for a person or a supervisor.
pub(super) const RETRY_BUSY_S: u64 = 1;
const RETRY_FULL_S: u64 = 10;
const RETRY_STOPPING_S: u64 = 5;
const RETRY_BROKEN_S: u64 = 30;

impl IngestError {
    pub(super) fn status(&self) -> StatusCode {
        match self {
            IngestError::NoToken | IngestError::MalformedToken | IngestError::WrongToken => StatusCode::UNAUTHORIZED,
            IngestError::NotFound { .. } | IngestError::NoFormat { .. } => StatusCode::NOT_FOUND,
            IngestError::Method { .. } => StatusCode::METHOD_NOT_ALLOWED,
            IngestError::Query { .. } | IngestError::NoQueries => StatusCode::BAD_REQUEST,
            IngestError::Corrupt { .. } | IngestError::BodyBroken { .. } => StatusCode::BAD_REQUEST,
            IngestError::MediaType { .. } | IngestError::NotOtlp { .. } | IngestError::Encoding { .. } => {
                StatusCode::UNSUPPORTED_MEDIA_TYPE
            }
            IngestError::TooLarge { .. } | IngestError::TooLargeDecompressed { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            IngestError::BodyTimeout { .. } => StatusCode::REQUEST_TIMEOUT,
            IngestError::Concurrency | IngestError::Memory => StatusCode::TOO_MANY_REQUESTS,
            IngestError::Admission(AdmissionError::Busy | AdmissionError::Full) => StatusCode::TOO_MANY_REQUESTS,
            IngestError::Admission(AdmissionError::Stopping | AdmissionError::Broken) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            IngestError::AckTimeout { .. } | IngestError::NotDelivered => StatusCode::SERVICE_UNAVAILABLE,
            IngestError::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// A name of a fixed set, for programs.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            IngestError::NoToken => "no_token",
            IngestError::MalformedToken => "malformed_token",
            IngestError::WrongToken => "invalid_token",
            IngestError::NotFound { .. } => "not_found",
            IngestError::NoFormat { .. } => "unknown_format",
            IngestError::Method { .. } => "method_not_allowed",
            IngestError::Query { .. } | IngestError::NoQueries => "bad_query",
            IngestError::MediaType { .. } | IngestError::NotOtlp { .. } => "unsupported_content_type",
            IngestError::Encoding { .. } => "unsupported_content_encoding",
            IngestError::TooLarge { .. } | IngestError::TooLargeDecompressed { .. } => "body_too_large",
            IngestError::Corrupt { .. } => "bad_compression",
            IngestError::BodyTimeout { .. } => "body_timeout",
            IngestError::BodyBroken { .. } => "body_broken",
            IngestError::Concurrency | IngestError::Memory | IngestError::Admission(AdmissionError::Busy) => "busy",
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
            IngestError::Concurrency | IngestError::Memory | IngestError::Admission(AdmissionError::Busy) => {
                Some(RETRY_BUSY_S)
            }
            IngestError::Admission(AdmissionError::Full) => Some(RETRY_FULL_S),
            IngestError::Admission(AdmissionError::Stopping) => Some(RETRY_STOPPING_S),
            IngestError::Admission(AdmissionError::Broken) => Some(RETRY_BROKEN_S),
            IngestError::AckTimeout { .. } | IngestError::NotDelivered => Some(RETRY_BUSY_S),
            _ => None,
        }
    }

    /// Retry-After and the like.
    pub(super) fn add_headers(&self, headers: &mut HeaderMap) {
        if let Some(base) = self.retry_after_s() {
            // Spread over twice the time: senders that were refused together should not come back together.
            headers.insert(RETRY_AFTER, HeaderValue::from(base + fastrand::u64(0..=base)));
        }
        match self {
            IngestError::NoToken | IngestError::MalformedToken => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"hourbucket\""));
            }
            IngestError::WrongToken => {
                let value = "Bearer realm=\"hourbucket\", error=\"invalid_token\"";
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(value));
            }
            // RFC 9110 §15.5.16: says which encodings would do.
            IngestError::Encoding { .. } => {
                headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip, zstd, deflate"));
            }
            // The rest of the body may still be on its way, or the next server is elsewhere.
            IngestError::BodyTimeout { .. } | IngestError::Admission(AdmissionError::Stopping) => {
                headers.insert(CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
    }
}

impl IntoResponse for IngestError {
    fn into_response(self) -> Response {
        let body = serde_json::json!({ "error": { "reason": self.reason(), "detail": self.to_string() } });
        let mut response = json(self.status(), &body);
        self.add_headers(response.headers_mut());
        response
    }
}
