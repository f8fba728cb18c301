//! The answer to readings: how many were accepted and rejected, and why.

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use serde::Serialize;

use crate::decode::{Reject, Rejects};

#[derive(Debug, Serialize)]
struct Answer<'a> {
    accepted: usize,
    rejected: usize,
    errors: Vec<Error<'a>>,
}

#[derive(Debug, Serialize)]
struct Error<'a> {
    index: usize,
    reason: &'a str,
    detail: &'a str,
}

/// 200 if any reading was accepted, otherwise 400. `errors` lists the rejects that the decoder kept
/// ([`crate::decode::KEPT_MAX`]), enough for each reading of a usual batch; `rejected` counts all.
///
/// A body without any reading (`[]`, an empty NDJSON) is 400 as well, with `rejected` 0 and the error `no_readings`.
/// 2xx means that readings are safe, and a sender that believes it sent some must not get it.
pub(super) fn readings(accepted: usize, rejects: &Rejects) -> Response {
    let mut errors = errors(rejects);
    if accepted == 0 && rejects.is_empty() {
        errors.push(Error { index: 0, reason: "no_readings", detail: "the body contains no readings" });
    }
    let status = if accepted > 0 { StatusCode::OK } else { StatusCode::BAD_REQUEST };
    json(status, &Answer { accepted, rejected: rejects.total(), errors })
}

/// The answer to a hook. Always 2xx, because no hook sender retries. 202 if no reading was accepted and the body is
/// kept as a dead letter.
pub(super) fn hook(accepted: usize, rejects: &Rejects, kept: bool) -> Response {
    let status = if accepted == 0 && kept { StatusCode::ACCEPTED } else { StatusCode::OK };
    json(status, &Answer { accepted, rejected: rejects.total(), errors: errors(rejects) })
}

fn errors(rejects: &Rejects) -> Vec<Error<'_>> {
    rejects
        .list()
        .iter()
        .map(|r: &Reject| Error { index: r.index, reason: r.reason.as_str(), detail: &r.detail })
        .collect()
}

/// A response with a JSON body.
pub(crate) fn json(status: StatusCode, body: &impl Serialize) -> Response {
    // Texts and numbers under fixed names: this cannot fail. If it did, the status would still be right.
    let bytes = serde_json::to_vec(body).unwrap_or_default();
    let mut response = Response::new(Body::from(bytes));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
