//! A response with a JSON body.

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use serde::Serialize;

/// A response with a JSON body.
pub fn json(status: StatusCode, body: &impl Serialize) -> Response {
    // Texts and numbers under fixed names: this cannot fail. If it did, the status would still be
    // right.
    let bytes = serde_json::to_vec(body).unwrap_or_default();
    let mut response = Response::new(Body::from(bytes));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
