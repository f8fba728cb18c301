//! `POST /v1/metrics`: OpenTelemetry metrics (OTLP/HTTP,
//! opentelemetry.io/docs/specs/otlp/#otlphttp).
//!
//! The answers follow the specification, in the encoding of the request:
//! - 200 with an empty `ExportMetricsServiceResponse`, or with the number of rejected data points
//!   and the reasons.
//! - 400 with a `google.rpc.Status` for a body that is not a valid request; the sender drops it.
//!   Every other refusal has one, too.
//! - 429 and 503 with Retry-After; the sender retries only these, so a body that arrived too slowly
//!   is 503 here.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde_json::json;

use super::admit::{Shared, health_check, shown_sender};
use super::answer::first_details;
use super::error::IngestError;
use super::pipeline::{self, DecodeOptions};
use super::routes::{METRICS, with_slash};
use decode::otlp::Encoding;
use decode::{RejectReason, Rejects};
use model::ReadingBatch;
use model::protobuf;
use net::http::encoding;
use net::http::peer::Peer;

/// Rejects that an answer describes; the others are only counted.
const DETAILS_MAX: usize = 3;

/// Reasons which mean that a body is not a valid request.
const MALFORMED: [RejectReason; 3] = [
    RejectReason::InvalidProtobuf,
    RejectReason::InvalidJson,
    RejectReason::InvalidUtf8,
];

pub(super) fn routes(shared: &Arc<Shared>) -> Router<Arc<Shared>> {
    let methods = post(take).get(health_check);
    with_slash(
        METRICS,
        methods.route_layer(from_fn_with_state(shared.clone(), admit)),
    )
}

/// Middleware like [`super::admit::admit`], with the errors of this protocol.
async fn admit(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let encoding = encoding_of(request.headers()).unwrap_or(Encoding::Json);
    match shared.admit(Peer::find(request.extensions()), |credentials| {
        credentials.check(request.headers())
    }) {
        Ok(sender) => sender.run(request, next).await,
        Err(error) => refuse(encoding, &error),
    }
}

async fn take(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let encoding = encoding_of(&parts.headers);
    let answered = taken(&shared, &parts, body, encoding).await;
    let encoding = encoding.unwrap_or(Encoding::Json);
    match answered {
        Ok(decoded) => answer(encoding, &decoded),
        Err(error) => refuse(encoding, &error),
    }
}

/// `None` if Content-Type is missing or unknown: such a body is not read.
fn encoding_of(headers: &HeaderMap) -> Option<Encoding> {
    let essence = headers
        .get(CONTENT_TYPE)?
        .to_str()
        .ok()?
        .split(';')
        .next()?
        .trim();
    match essence.to_ascii_lowercase().as_str() {
        "application/x-protobuf" | "application/protobuf" => Some(Encoding::Protobuf),
        "application/json" => Some(Encoding::Json),
        _ => None,
    }
}

/// The result for the data points.
struct Accepted {
    accepted: usize,
    rejects: Rejects,
}

async fn taken(
    shared: &Shared,
    parts: &Parts,
    body: Body,
    encoding: Option<Encoding>,
) -> Result<Accepted, IngestError> {
    let given = || {
        String::from_utf8_lossy(
            parts
                .headers
                .get(CONTENT_TYPE)
                .map_or(b"", |v| v.as_bytes()),
        )
        .into_owned()
    };
    let decoder = shared
        .formats
        .otlp(encoding.ok_or_else(|| IngestError::NotOtlp { given: given() })?);
    let options = DecodeOptions::new(decoder, encoding::Encoding::from_headers(&parts.headers)?);
    let sender = || shown_sender(parts);
    let (accepted, rejects) =
        pipeline::ingest(shared, parts, body, options, sender, ReadingBatch::len).await?;
    Ok(Accepted { accepted, rejects })
}

fn answer(encoding: Encoding, taken: &Accepted) -> Response {
    let Accepted { accepted, rejects } = taken;
    let is_malformed = rejects
        .by_reason()
        .iter()
        .any(|(reason, _)| MALFORMED.contains(reason));
    if *accepted == 0 && is_malformed {
        return status(
            encoding,
            StatusCode::BAD_REQUEST,
            &first_details(rejects, DETAILS_MAX),
        );
    }
    // If no point was rejected, the message is a warning (opentelemetry-proto,
    // ExportMetricsPartialSuccess).
    let rejected = first_details(rejects, DETAILS_MAX);
    let parts = std::iter::once(&*rejected).filter(|text| !text.is_empty());
    let parts: Vec<&str> = parts
        .chain(rejects.hints().iter().map(|hint| &**hint))
        .collect();
    let message = parts.join("; ");
    if rejects.is_empty() && message.is_empty() {
        return match encoding {
            Encoding::Json => response(encoding, StatusCode::OK, b"{}".to_vec()),
            Encoding::Protobuf => response(encoding, StatusCode::OK, vec![]),
        };
    }
    let body = match encoding {
        Encoding::Json => {
            let partial = json!({ "rejectedDataPoints": rejects.total().to_string(), "errorMessage": message });
            json!({ "partialSuccess": partial })
                .to_string()
                .into_bytes()
        }
        Encoding::Protobuf => {
            let mut partial = vec![];
            let mut body = vec![];
            protobuf::put_varint(1, rejects.total() as u64, &mut partial);
            protobuf::put_bytes(2, message.as_bytes(), &mut partial);
            protobuf::put_bytes(1, &partial, &mut body);
            body
        }
    };
    response(encoding, StatusCode::OK, body)
}

/// The answer to a request that is refused before its token is checked; `None`: the path is not
/// this protocol's.
pub(super) fn refuse_at(path: &str, headers: &HeaderMap, error: &IngestError) -> Option<Response> {
    (path == METRICS).then(|| refuse(encoding_of(headers).unwrap_or(Encoding::Json), error))
}

fn refuse(encoding: Encoding, error: &IngestError) -> Response {
    error.answer(
        &[StatusCode::REQUEST_TIMEOUT, StatusCode::CONFLICT],
        |code, text| status(encoding, code, text),
    )
}

/// A `google.rpc.Status`, with gRPC status codes.
fn status(encoding: Encoding, code: StatusCode, message: &str) -> Response {
    let grpc = match code {
        StatusCode::UNAUTHORIZED => 16,
        StatusCode::FORBIDDEN => 7,
        StatusCode::TOO_MANY_REQUESTS => 8,
        StatusCode::SERVICE_UNAVAILABLE => 14,
        code if code.is_server_error() => 13,
        _ => 3,
    };
    let body = match encoding {
        Encoding::Json => json!({ "code": grpc, "message": message })
            .to_string()
            .into_bytes(),
        Encoding::Protobuf => {
            let mut body = vec![];
            protobuf::put_varint(1, grpc, &mut body);
            protobuf::put_bytes(2, message.as_bytes(), &mut body);
            body
        }
    };
    response(encoding, code, body)
}

fn response(encoding: Encoding, code: StatusCode, body: Vec<u8>) -> Response {
    let content_type = match encoding {
        Encoding::Json => "application/json",
        Encoding::Protobuf => "application/x-protobuf",
    };
    (code, [(CONTENT_TYPE, content_type)], body).into_response()
}
