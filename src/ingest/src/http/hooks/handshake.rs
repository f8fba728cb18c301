//! Handshakes of cloud services: requests that precede the first event.

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::ALLOW;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use serde_json::json;

use decode::RejectReason;
use net::http::json;

pub(super) const CONFIRMATION: RejectReason = RejectReason::DestinationConfirmation;

/// Event Grid's event type: `SubscriptionValidation`, `Notification`, `SubscriptionDeletion`.
const EVENT_GRID: HeaderName = HeaderName::from_static("aeg-event-type");
const AWS_IOT: HeaderName = HeaderName::from_static("x-amz-rules-engine-message-type");

/// CloudEvents web hooks, §4: `OPTIONS` before a delivery.
const REQUEST_ORIGIN: HeaderName = HeaderName::from_static("webhook-request-origin");
const ALLOWED_ORIGIN: HeaderName = HeaderName::from_static("webhook-allowed-origin");
const ALLOWED_RATE: HeaderName = HeaderName::from_static("webhook-allowed-rate");

fn is(headers: &HeaderMap, name: &HeaderName, value: &str) -> bool {
    headers
        .get(name)
        .is_some_and(|given| given.as_bytes().eq_ignore_ascii_case(value.as_bytes()))
}

/// Whether this is AWS IoT's request to confirm a destination.
pub(super) fn is_confirmation(headers: &HeaderMap) -> bool {
    is(headers, &AWS_IOT, "DestinationConfirmation")
}

/// The answer to an Event Grid handshake; `None` if the request delivers events.
pub(super) fn answer(headers: &HeaderMap, body: &[u8]) -> Option<Response> {
    if is(headers, &EVENT_GRID, "SubscriptionDeletion") {
        return Some(json(StatusCode::OK, &json!({})));
    }
    if !is(headers, &EVENT_GRID, "SubscriptionValidation") {
        return None;
    }
    let events: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    // A list of one event; in the CloudEvents schema the event itself.
    let code = events
        .as_ref()
        .and_then(|e| e.get(0).unwrap_or(e).pointer("/data/validationCode"));
    Some(match code.and_then(|code| code.as_str()) {
        Some(code) => json(StatusCode::OK, &json!({ "validationResponse": code })),
        None => {
            let detail = "the SubscriptionValidation event has no data.validationCode";
            json(
                StatusCode::BAD_REQUEST,
                &json!({ "error": { "reason": "bad_handshake", "detail": detail } }),
            )
        }
    })
}

/// `OPTIONS`: any sender with a valid token may send, at any rate.
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
