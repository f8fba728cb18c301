//! `POST /prometheus/api/v1/read`: Prometheus' remote read, so that a Prometheus can query the
//! readings (prometheus.io/docs/prometheus/latest/querying/remote_read_api). Errors are text, as
//! Prometheus' are.
//!
//! The series of all queries are loaded before the answer begins, within the limits of a PromQL
//! query. So every error has its status, and only a client that goes away or is too slow ends an
//! answer early. Streamed frames are encoded while they are sent: the query's thread waits for the
//! client, up to the time limit. An answer that ends early closes the connection, so that it does
//! not pass for a complete one.

mod request;
mod response;

use std::io;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Extension, Request, State};
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{from_fn_with_state, map_response};
use axum::response::Response;
use axum::routing::post;
use futures_util::stream;
use tokio::sync::mpsc;
use tokio::time::timeout_at;

use self::request::{BODY_BYTES_MAX, ReadRequest, RequestError, ResponseType};
use self::response::Found;
use super::answer::PrometheusError;
use super::body::receive;
use super::run::{Reply, Runner, Shown, Work};
use crate::admin::access::{Access, Reader, guard};
use crate::promql::{PromqlError, SelectedSeries, SelectorRequest, SeriesData};

/// Frames between the query's thread and the connection.
const FRAMES_QUEUED: usize = 4;
/// Bytes of an error's JSON body.
const ERROR_BYTES_MAX: usize = 64 << 10;

/// The answer that the query's thread has begun.
enum Answer {
    /// A `ReadResponse` in a block of snappy.
    Samples(Vec<u8>),
    /// Frames; `None` is the end.
    Frames(mpsc::Receiver<Option<Bytes>>),
}

pub(super) fn routes(path: &str, access: Access) -> Router<Runner> {
    Router::new()
        .route(path, post(read).fallback(not_allowed))
        .route_layer(from_fn_with_state(access, guard))
        .route_layer(map_response(as_text))
}

async fn read(
    State(runner): State<Runner>,
    Extension(reader): Extension<Reader>,
    request: Request,
) -> Response {
    let body = match receive(request, BODY_BYTES_MAX).await {
        Ok(body) => body,
        Err(error) => return text(error.status(), &error.to_string()),
    };
    let shown = Shown::default();
    let logged = shown.clone();
    let job = move |work: &Work, reply: Reply<Answer>| answer(work, reply, &body, &reader, &logged);
    match runner.in_thread(shown, None, job).await {
        Ok(Answer::Samples(body)) => {
            let mut response = answered("application/x-protobuf", Body::from(body));
            response
                .headers_mut()
                .insert(CONTENT_ENCODING, HeaderValue::from_static("snappy"));
            response
        }
        Ok(Answer::Frames(frames)) => {
            let kind = "application/x-streamed-protobuf; proto=prometheus.ChunkedReadResponse";
            answered(kind, streamed(frames))
        }
        Err(error) => text(error.status(), &error.to_string()),
    }
}

async fn not_allowed() -> Response {
    let error = PrometheusError::NotAllowed("POST");
    text(error.status(), &error.to_string())
}

/// The query's thread: loads everything, replies, and encodes.
fn answer(work: &Work, reply: Reply<Answer>, body: &[u8], reader: &Reader, shown: &Shown) {
    let loaded = parsed(body, shown)
        .and_then(|request| Ok((request.response, load(work, &request.queries, reader)?)));
    // An error of the reply means that the client has gone.
    match loaded {
        Err(error) => drop(reply.send(Err(error))),
        Ok((ResponseType::Samples, results)) => {
            let packed = snap::raw::Encoder::new().compress_vec(&response::samples(results));
            let too_large = |_| {
                PromqlError::Execution(
                    "the answer has more than 4 GiB; use STREAMED_XOR_CHUNKS".into(),
                )
            };
            drop(
                reply.send(
                    packed
                        .map(Answer::Samples)
                        .map_err(|error| too_large(error).into()),
                ),
            );
        }
        Ok((ResponseType::StreamedXorChunks, results)) => {
            let (frames, receiver) = mpsc::channel(FRAMES_QUEUED);
            if reply.send(Ok(Answer::Frames(receiver))).is_ok() {
                send(work, results, &frames);
            }
        }
    }
}

fn parsed(body: &[u8], shown: &Shown) -> Result<ReadRequest, PrometheusError> {
    let request = ReadRequest::parse(body).map_err(|error| match error {
        RequestError::Matcher(error) => error.into(),
        other => PrometheusError::bad_data(other.to_string()),
    })?;
    let query = |query: &SelectorRequest| {
        let matchers: Vec<String> = query.matchers.iter().map(ToString::to_string).collect();
        format!(
            "{{{}}} ({}, {}]",
            matchers.join(", "),
            query.after_ms,
            query.to_ms
        )
    };
    let queries: Vec<String> = request.queries.iter().map(query).collect();
    let _ = shown.set(format!("remote read: {}", queries.join("; ")));
    Ok(request)
}

/// The series of each query, ordered by their labels; without those that have no samples.
fn load(
    work: &Work,
    queries: &[SelectorRequest],
    reader: &Reader,
) -> Result<Vec<Vec<Found>>, PrometheusError> {
    let (loaded, _) = work.select(queries, reader)?;
    let found = |series: SelectedSeries| match series.data {
        SeriesData::Samples(samples) if !samples.is_empty() => Some((series.labels, samples)),
        _ => None,
    };
    let sorted = |series: Vec<SelectedSeries>| {
        let mut all: Vec<Found> = series.into_iter().filter_map(found).collect();
        all.sort_by(|(a, _), (b, _)| a.cmp(b));
        all
    };
    Ok(loaded.into_iter().map(sorted).collect())
}

fn send(work: &Work, results: Vec<Vec<Found>>, to: &mpsc::Sender<Option<Bytes>>) {
    let send = |frame: Option<Bytes>| {
        // The timer is made inside the runtime.
        let sent = work
            .runtime
            .block_on(async { timeout_at(work.deadline, to.send(frame)).await });
        matches!(sent, Ok(Ok(())))
    };
    for (query, found) in results.into_iter().enumerate() {
        for (labels, samples) in found {
            if !response::frames(query, &labels, &samples)
                .into_iter()
                .all(|frame| send(Some(frame.into())))
            {
                return;
            }
        }
    }
    send(None);
}

/// A body that fails unless the end was sent.
fn streamed(frames: mpsc::Receiver<Option<Bytes>>) -> Body {
    let next = |frames: Option<mpsc::Receiver<Option<Bytes>>>| async move {
        let mut frames = frames?;
        match frames.recv().await {
            Some(Some(frame)) => Some((Ok(frame), Some(frames))),
            Some(None) => None,
            None => Some((
                Err(io::Error::other("the answer was not finished in time")),
                None,
            )),
        }
    };
    Body::from_stream(stream::unfold(Some(frames), next))
}

fn answered(kind: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn text(status: StatusCode, problem: &str) -> Response {
    let mut response = answered(
        "text/plain; charset=utf-8",
        Body::from(format!("{problem}\n")),
    );
    *response.status_mut() = status;
    response
}

/// The errors of the port's access control are JSON.
async fn as_text(response: Response) -> Response {
    let kind = response.headers().get(CONTENT_TYPE);
    if response.status().is_success() || kind.is_none_or(|kind| kind != "application/json") {
        return response;
    }
    let (parts, body) = response.into_parts();
    let body = to_bytes(body, ERROR_BYTES_MAX).await.unwrap_or_default();
    let json: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    let mut plain = text(
        parts.status,
        json["error"]["detail"].as_str().unwrap_or("refused"),
    );
    for (name, value) in parts
        .headers
        .iter()
        .filter(|(name, _)| !name.as_str().starts_with("content-"))
    {
        plain.headers_mut().append(name, value.clone());
    }
    plain
}
