//! What clouds ask before they send the first event.

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::ALLOW;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use serde_json::json;

use crate::decode::reasons;
use crate::ingest::http::answer::json;

pub(super) const CONFIRMATION: &str = reasons::DESTINATION_CONFIRMATION;

/// Event Grid's kind of event: `SubscriptionValidation`, `Notification`, `SubscriptionDeletion`.
const EVENT_GRID: HeaderName = HeaderName::from_static("aeg-event-type");
const AWS_IOT: HeaderName = HeaderName::from_static("x-amz-rules-engine-message-type");

/// CloudEvents' web hooks, §4: `OPTIONS` before a delivery.
const REQUEST_ORIGIN: HeaderName = HeaderName::from_static("webhook-request-origin");
const ALLOWED_ORIGIN: HeaderName = HeaderName::from_static("webhook-allowed-origin");
const ALLOWED_RATE: HeaderName = HeaderName::from_static("webhook-allowed-rate");

fn is(headers: &HeaderMap, name: &HeaderName, value: &str) -> bool {
    headers.get(name).is_some_and(|given| given.as_bytes().eq_ignore_ascii_case(value.as_bytes()))
}

/// Whether AWS IoT wants its destination confirmed.
pub(super) fn is_confirmation(headers: &HeaderMap) -> bool {
    is(headers, &AWS_IOT, "DestinationConfirmation")
}

/// The answer to a request that is no delivery.
pub(super) fn answer(headers: &HeaderMap, body: &[u8]) -> Option<Response> {
    if is(headers, &EVENT_GRID, "SubscriptionDeletion") {
        return Some(json(StatusCode::OK, &json!({})));
    }
    if !is(headers, &EVENT_GRID, "SubscriptionValidation") {
        return None;
    }
    let events: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    // A list of one; the CloudEvents form of it is the event alone.
    let code = events.as_ref().and_then(|e| e.get(0).unwrap_or(e).pointer("/data/validationCode"));
    Some(match code.and_then(|code| code.as_str()) {
        Some(code) => json(StatusCode::OK, &json!({ "validationResponse": code })),
        None => {
            let detail = "a SubscriptionValidation event without data.validationCode";
            json(StatusCode::BAD_REQUEST, &json!({ "error": { "reason": "bad_handshake", "detail": detail } }))
        }
    })
}

/// `OPTIONS`: whoever has a token may send, at any rate.
pub(super) async fn options(request: Request) -> Response {
    let mut response = Response::new(Body::empty());
    let headers = response.headers_mut();
    headers.insert(ALLOW, HeaderValue::from_static("GET, POST, OPTIONS"));
    if let Some(origin) = request.headers().get(REQUEST_ORIGIN) {
        headers.insert(ALLOWED_ORIGIN, origin.clone());
        headers.insert(ALLOWED_RATE, HeaderValue::from_static("*"));
    }
    response
}
