//! The answers that clients of InfluxDB's three versions understand.
//!
//! How they react to a status (from their sources):
//! - Telegraf's `outputs.influxdb`, which writes to `/write`, counts everything but 204 as a
//!   failure, drops the batch on any 4xx (401 and 429 too), and sends it again on 5xx. It also
//!   searches the text: `partial write` and `unable to parse` mean that the rest was accepted,
//!   `database not found` makes it create a database.
//! - `outputs.influxdb_v2` splits a batch on 413, waits for Retry-After on 429 and 503, keeps the
//!   batch on 401 and 403, and drops it on other 4xx.
//! - The official clients retry 429 and 503 and give up on the others.
//!
//! So overload is 503 on `/write` and 429 elsewhere, and a body that arrived too slowly is never
//! 408, which would drop it.

use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::json;

use super::super::answer::first_details;
use crate::http::error::IngestError;
use decode::{Reject, Rejects};
use journal::admission::AdmissionError;
use net::http::json;

/// The InfluxDB version whose write interface this is, for clients that query it, and the real
/// product after it.
const VERSION: &str = concat!("1.8.10+hourbucket.", env!("CARGO_PKG_VERSION"));
const VERSION_HEADER: HeaderName = HeaderName::from_static("x-influxdb-version");
const BUILD_HEADER: HeaderName = HeaderName::from_static("x-influxdb-build");

/// Rejects that an error text describes; the others are only counted.
const DETAILS_MAX: usize = 5;

/// The InfluxDB version of the client's write API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// `/write`
    V1,
    /// `/api/v2/write`
    V2,
    /// `/api/v3/write_lp`
    V3,
}

/// A rejected line, as version 3 reports it.
#[derive(Debug, Serialize)]
struct BadLine<'a> {
    original_line: &'a str,
    line_number: usize,
    error_message: &'a str,
}

/// Success: exactly 204, without a body.
pub(super) fn done() -> Response {
    signed(StatusCode::NO_CONTENT.into_response())
}

/// The version as JSON, with 200.
pub(super) fn version() -> Response {
    v1_json(StatusCode::OK, &json!({ "version": VERSION }))
}

/// `/health`: whether admission is open.
pub(super) fn health(admission: Result<(), AdmissionError>) -> Response {
    let (status, word, message) = match admission {
        Ok(()) => (StatusCode::OK, "pass", "ready for writes".to_owned()),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, "fail", why.to_string()),
    };
    let version = env!("CARGO_PKG_VERSION");
    let body = json!({ "name": "hourbucket", "message": message, "status": word, "checks": [], "version": version });
    signed(json(status, &body))
}

/// A JSON answer to a version 1 client.
pub(super) fn v1_json(status: StatusCode, body: &serde_json::Value) -> Response {
    signed(json(status, body))
}

fn signed(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(VERSION_HEADER, HeaderValue::from_static(VERSION));
    headers.insert(BUILD_HEADER, HeaderValue::from_static("hourbucket"));
    response
}

impl Dialect {
    /// Refuses the whole request.
    pub(crate) fn refuse(self, error: &IngestError) -> Response {
        let dropping: &[_] = match self {
            Dialect::V1 => &[
                StatusCode::TOO_MANY_REQUESTS,
                StatusCode::REQUEST_TIMEOUT,
                StatusCode::CONFLICT,
            ],
            Dialect::V2 | Dialect::V3 => &[StatusCode::REQUEST_TIMEOUT, StatusCode::CONFLICT],
        };
        error.answer(dropping, |status, text| self.error(status, text, None))
    }

    /// Some lines were rejected, possibly all.
    pub(super) fn partly_taken(
        self,
        accepted: usize,
        rejects: &Rejects,
        quoted: &[String],
    ) -> Response {
        if self == Dialect::V3 {
            let data: Vec<BadLine<'_>> = bad_lines(rejects, quoted).collect();
            let body = json!({ "error": "partial write of line protocol occurred", "data": data });
            return signed(json(StatusCode::BAD_REQUEST, &body));
        }
        let n = rejects.total();
        let details = first_details(rejects, DETAILS_MAX);
        let text = match accepted {
            0 => format!("unable to parse: {details} (rejected: {n}, accepted: none)"),
            _ => format!("partial write: {details} (rejected: {n}, accepted: {accepted})"),
        };
        self.error(
            StatusCode::BAD_REQUEST,
            &text,
            rejects.list().first().map(|reject| reject.index + 1),
        )
    }

    /// A line was rejected, and the sender requested all or nothing (version 3 only).
    pub(super) fn nothing_taken(self, rejects: &Rejects, quoted: &[String]) -> Response {
        let first = bad_lines(rejects, quoted).next();
        let body = json!({ "error": "parsing failed for write_lp endpoint", "data": first });
        signed(json(StatusCode::BAD_REQUEST, &body))
    }

    fn error(self, status: StatusCode, text: &str, line: Option<usize>) -> Response {
        let body = match (self, line) {
            (Dialect::V1 | Dialect::V3, _) => json!({ "error": text }),
            (Dialect::V2, None) => json!({ "code": code(status), "message": text }),
            (Dialect::V2, Some(line)) => {
                json!({ "code": code(status), "message": text, "line": line })
            }
        };
        signed(json(status, &body))
    }
}

/// The error code of version 2 for a status.
fn code(status: StatusCode) -> &'static str {
    match status {
        StatusCode::BAD_REQUEST | StatusCode::LENGTH_REQUIRED => "invalid",
        StatusCode::UNAUTHORIZED => "unauthorized",
        StatusCode::FORBIDDEN => "forbidden",
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
        // The line number has its own field.
        let detail = reject.detail.strip_prefix(&format!("line {line_number}: "));
        BadLine {
            original_line: line,
            line_number,
            error_message: detail.unwrap_or(&reject.detail),
        }
    };
    rejects.list().iter().zip(quoted).map(bad_line)
}
