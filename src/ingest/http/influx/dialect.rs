//! The answers that clients of InfluxDB's three versions understand.
//!
//! What they do with a code (read in their sources): Telegraf's `outputs.influxdb`, which speaks to `/write`, counts
//! everything but 204 as a failure, drops the batch on any 4xx, 401 and 429 too, and sends it again on 5xx; also it looks for
//! words: `partial write` and `unable to parse` tell it that the rest was taken, `database not found` makes it create one.
//! `outputs.influxdb_v2` splits a batch on 413, waits for Retry-After on 429 and 503, keeps the batch on 401 and 403, and
//! drops it on other 4xx. The official clients retry 429 and 503 and give up on the others. So overload is 503 on `/write`
//! and 429 elsewhere, and a body that came too slowly is never the 408 that would throw it away.

use axum::body::Body;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use serde::Serialize;
use serde_json::json;

use crate::admission::AdmissionError;
use crate::decode::{Reject, Rejects};
use crate::ingest::http::answer::json;
use crate::ingest::http::error::{IngestError, RETRY_BUSY_S};

/// The version of InfluxDB whose write interface this is, for clients that ask, and who answers in truth.
const VERSION: &str = concat!("1.8.10+hourbucket.", env!("CARGO_PKG_VERSION"));
const VERSION_HEADER: HeaderName = HeaderName::from_static("x-influxdb-version");
const BUILD_HEADER: HeaderName = HeaderName::from_static("x-influxdb-build");

/// Rejects that an error's text tells of; the others are counted.
const TOLD_MAX: usize = 5;

/// The version of InfluxDB that a client speaks to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// `/write`
    V1,
    /// `/api/v2/write`
    V2,
    /// `/api/v3/write_lp`
    V3,
}

/// A line that was not taken, as version 3 tells it.
#[derive(Debug, Serialize)]
struct BadLine<'a> {
    original_line: &'a str,
    line_number: usize,
    error_message: &'a str,
}

/// All is well, and there is nothing to say: exactly 204.
pub(super) fn done() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    signed(response)
}

/// `/health`: whether readings are taken now.
pub(super) fn health(admission: Result<(), AdmissionError>) -> Response {
    let (status, word, message) = match admission {
        Ok(()) => (StatusCode::OK, "pass", "ready for writes".to_owned()),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, "fail", why.to_string()),
    };
    let version = env!("CARGO_PKG_VERSION");
    let body = json!({ "name": "hourbucket", "message": message, "status": word, "checks": [], "version": version });
    signed(json(status, &body))
}

/// An answer of version 1.
pub(super) fn v1_json(status: StatusCode, body: &serde_json::Value) -> Response {
    signed(json(status, body))
}

fn signed(mut response: Response) -> Response {
    response.headers_mut().insert(VERSION_HEADER, HeaderValue::from_static(VERSION));
    response.headers_mut().insert(BUILD_HEADER, HeaderValue::from_static("hourbucket"));
    response
}

impl Dialect {
    /// Nothing of the request was taken.
    pub(super) fn refuse(self, error: &IngestError) -> Response {
        let status = match (self, error.status()) {
            (Dialect::V1, StatusCode::TOO_MANY_REQUESTS) => StatusCode::SERVICE_UNAVAILABLE,
            (_, StatusCode::REQUEST_TIMEOUT) => StatusCode::SERVICE_UNAVAILABLE,
            (_, status) => status,
        };
        let mut response = self.error(status, &error.to_string(), None);
        error.add_headers(response.headers_mut());
        if status == StatusCode::SERVICE_UNAVAILABLE && !response.headers().contains_key(RETRY_AFTER) {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(RETRY_BUSY_S));
        }
        response
    }

    /// Some lines were not taken, perhaps none was.
    pub(super) fn partly_taken(self, accepted: usize, rejects: &Rejects, quoted: &[String]) -> Response {
        if self == Dialect::V3 {
            let data: Vec<BadLine<'_>> = bad_lines(rejects, quoted).collect();
            let body = json!({ "error": "partial write of line protocol occurred", "data": data });
            return signed(json(StatusCode::BAD_REQUEST, &body));
        }
        let (n, told) = (rejects.total(), told(rejects));
        let text = match accepted {
            0 => format!("unable to parse: {told} (rejected: {n}, taken: none)"),
            _ => format!("partial write: {told} (rejected: {n}, taken: {accepted})"),
        };
        self.error(StatusCode::BAD_REQUEST, &text, rejects.list().first().map(|reject| reject.index + 1))
    }

    /// A line was bad, and the sender wanted all of them taken or none (version 3 alone knows that).
    pub(super) fn nothing_taken(self, rejects: &Rejects, quoted: &[String]) -> Response {
        let first = bad_lines(rejects, quoted).next();
        let body = json!({ "error": "parsing failed for write_lp endpoint", "data": first });
        signed(json(StatusCode::BAD_REQUEST, &body))
    }

    fn error(self, status: StatusCode, text: &str, line: Option<usize>) -> Response {
        let body = match (self, line) {
            (Dialect::V1 | Dialect::V3, _) => json!({ "error": text }),
            (Dialect::V2, None) => json!({ "code": code(status), "message": text }),
            (Dialect::V2, Some(line)) => json!({ "code": code(status), "message": text, "line": line }),
        };
        signed(json(status, &body))
    }
}

/// Version 2's word for a status.
fn code(status: StatusCode) -> &'static str {
    match status {
        StatusCode::BAD_REQUEST => "invalid",
        StatusCode::UNAUTHORIZED => "unauthorized",
        StatusCode::PAYLOAD_TOO_LARGE => "request too large",
        StatusCode::UNSUPPORTED_MEDIA_TYPE => "unsupported media type",
        StatusCode::TOO_MANY_REQUESTS => "too many requests",
        StatusCode::SERVICE_UNAVAILABLE => "unavailable",
        _ => "internal error",
    }
}

fn bad_lines<'a>(rejects: &'a Rejects, quoted: &'a [String]) -> impl Iterator<Item = BadLine<'a>> {
    let bad_line = |(reject, line): (&'a Reject, &'a String)| {
        let line_number = reject.index + 1;
        // The number stands in a field of its own.
        let detail = reject.detail.strip_prefix(&format!("line {line_number}: "));
        BadLine { original_line: line, line_number, error_message: detail.unwrap_or(&reject.detail) }
    };
    rejects.list().iter().zip(quoted).map(bad_line)
}

/// The first rejects, in one line of text.
fn told(rejects: &Rejects) -> String {
    let told: Vec<&str> = rejects.list().iter().take(TOLD_MAX).map(|reject| reject.detail.as_str()).collect();
    let more = if rejects.total() > told.len() { "; and others" } else { "" };
    format!("{}{more}", told.join("; "))
}
