//! `POST /api/v1/write`: Prometheus remote write 1.0 and 2.0.
//!
//! The statuses follow from how its senders react
//! (prometheus.io/docs/specs/prw/remote_write_spec_2_0, "Retries"):
//! - 204: every sample is durable. Stale markers, other values that are not finite, and exact
//!   repetitions count as written: Prometheus could do nothing about them.
//! - 400: some samples or histograms, or the whole request, can never be accepted; the others are
//!   durable. The sender must not send them again.
//! - 503 with Retry-After, also when other routes answer 408 or 429: Prometheus drops samples on
//!   429 unless `retry_on_http_429` is set, and on every other 4xx.
//!
//! Each answer to a request that was read has the number of samples written, as version 2.0
//! requires.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::post;

use super::admit::{Shared, health_check, shown_sender};
use super::answer::first_details;
use super::error::IngestError;
use super::pipeline::{self, DecodeOptions};
use super::routes::{REMOTE_WRITE, with_slash};
use decode::Rejects;
use decode::remote_write::Message;
use model::ReadingBatch;
use net::http::encoding::{Encoding, UnsupportedEncoding};
use net::http::peer::Peer;

/// Rejects that an answer describes; the others are only counted.
const DETAILS_MAX: usize = 3;

pub(super) fn routes(shared: &Arc<Shared>) -> Router<Arc<Shared>> {
    let methods = post(take).get(health_check);
    with_slash(
        REMOTE_WRITE,
        methods.route_layer(from_fn_with_state(shared.clone(), admit)),
    )
}

/// Middleware like [`super::admit::admit`], with the errors of this protocol.
async fn admit(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    match shared.admit(Peer::find(request.extensions()), |tokens| {
        tokens.check(request.headers())
    }) {
        Ok(sender) => sender.run(request, next).await,
        Err(error) => refuse(&error),
    }
}

async fn take(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    taken(&shared, &parts, body)
        .await
        .unwrap_or_else(|error| refuse(&error))
}

async fn taken(shared: &Shared, parts: &Parts, body: Body) -> Result<Response, IngestError> {
    let options = decode_options(shared, &parts.headers)?;
    let sender = || shown_sender(parts);
    let samples = |batch: &ReadingBatch| {
        batch
            .iter()
            .map(|(_, reading)| batch.schema(reading.schema).len())
            .sum::<usize>()
    };
    let (samples, rejects) =
        pipeline::ingest(shared, parts, body, options, sender, samples).await?;
    Ok(answer(samples + rejects.skipped(), &rejects))
}

fn decode_options(shared: &Shared, headers: &HeaderMap) -> Result<DecodeOptions, IngestError> {
    let decoder = shared.formats.remote_write(message_of(headers)?);
    Ok(DecodeOptions::new(decoder, encoding_of(headers)?))
}

/// Version 1.0 without the parameter `proto`, as the specification requires, and without
/// Content-Type.
fn message_of(headers: &HeaderMap) -> Result<Message, IngestError> {
    let Some(given) = headers.get(CONTENT_TYPE) else {
        return Ok(Message::V1);
    };
    let text = given.to_str().unwrap_or("?").to_ascii_lowercase();
    let mut parts = text.split(';').map(str::trim);
    let is_protobuf = parts.next() == Some("application/x-protobuf");
    match (
        is_protobuf,
        parts.find_map(|part| part.strip_prefix("proto=")),
    ) {
        (true, None | Some("prometheus.writerequest")) => Ok(Message::V1),
        (true, Some("io.prometheus.write.v2.request")) => Ok(Message::V2),
        _ => Err(IngestError::NotRemoteWrite {
            given: String::from_utf8_lossy(given.as_bytes()).into_owned(),
        }),
    }
}

/// Snappy, which the specification requires, or an encoding of the other routes: vmagent sends
/// zstd.
fn encoding_of(headers: &HeaderMap) -> Result<Encoding, UnsupportedEncoding> {
    match headers.get(CONTENT_ENCODING) {
        Some(given) if given.as_bytes().eq_ignore_ascii_case(b"snappy") => Ok(Encoding::Snappy),
        _ => Encoding::from_headers(headers),
    }
}

fn answer(written: usize, rejects: &Rejects) -> Response {
    let mut response = match rejects.is_empty() {
        true => StatusCode::NO_CONTENT.into_response(),
        false => (StatusCode::BAD_REQUEST, details(rejects)).into_response(),
    };
    for (name, count) in [
        ("x-prometheus-remote-write-samples-written", written),
        ("x-prometheus-remote-write-histograms-written", 0),
        ("x-prometheus-remote-write-exemplars-written", 0),
    ] {
        response
            .headers_mut()
            .insert(name, HeaderValue::from(count));
    }
    response
}

fn refuse(error: &IngestError) -> Response {
    let dropping = [
        StatusCode::TOO_MANY_REQUESTS,
        StatusCode::REQUEST_TIMEOUT,
        StatusCode::CONFLICT,
    ];
    error.answer(&dropping, |status, text| {
        (status, text.to_owned()).into_response()
    })
}

/// How many were rejected and the first of them, as one line of text.
fn details(rejects: &Rejects) -> String {
    format!(
        "{} rejected, the others are stored: {}",
        rejects.total(),
        first_details(rejects, DETAILS_MAX)
    )
}
