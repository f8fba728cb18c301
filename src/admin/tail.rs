//! `GET /v1/tail`: readings as they are accepted and rejects with their reason, as NDJSON that does
//! not end.
//!
//! A reader sees the sensors that its token may read. The token is checked again every second, so
//! that the stream of a revoked or expired one ends. An empty line every [`IDLE`] detects a peer
//! that has gone.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Query, Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::get;
use futures_util::stream;
use serde::Deserialize;
use tokio::time::Instant;

use super::access::{self, Access, Reader};
use super::answer::ApiError;
use crate::ingest::http::Peer;
use crate::model::SensorPatterns;
use crate::telemetry::tail::{self, View, Watch};

pub(super) const ROUTE: &str = "/v1/tail";

/// Interval between checks of the token.
const CHECK: Duration = Duration::from_secs(1);
/// Interval between lines, at most.
const IDLE: Duration = Duration::from_secs(15);

pub(super) fn routes(access: Access) -> Router {
    let guarded = from_fn_with_state(access.clone(), access::guard);
    Router::new()
        .route(ROUTE, get(follow).route_layer(guarded))
        .with_state(access)
}

#[derive(Deserialize)]
struct Params {
    /// A pattern of sensor ids.
    sensor: Option<String>,
}

/// A stream that is being sent.
struct Following {
    watch: Watch,
    access: Access,
    headers: HeaderMap,
    peer: Option<Peer>,
    sent: Instant,
}

async fn follow(
    State(access): State<Access>,
    Extension(reader): Extension<Reader>,
    params: Result<Query<Params>, QueryRejection>,
    request: Request,
) -> Result<Response, ApiError> {
    let Query(params) = params.map_err(|e| ApiError::Query(e.body_text()))?;
    let wanted = params
        .sensor
        .as_deref()
        .map(|pattern| SensorPatterns::parse([pattern]))
        .transpose();
    let wanted = wanted.map_err(|error| ApiError::parameter("sensor", error.to_string()))?;
    let watch = tail::watch(View {
        wanted,
        allowed: reader.patterns(),
    })?;
    let headers = request.headers().clone();
    let peer = Peer::of(request.extensions()).cloned();
    let following = Following {
        watch,
        access,
        headers,
        peer,
        sent: Instant::now(),
    };
    // The first line is sent immediately, so that the client knows that it is watching.
    let begin = stream::once(async { Ok::<_, Infallible>(Bytes::from_static(b"\n")) });
    let rest = stream::unfold(following, |mut following| async move {
        let chunk = following.next().await?;
        Some((Ok(Bytes::from(chunk)), following))
    });
    let mut response = Response::new(Body::from_stream(futures_util::StreamExt::chain(
        begin, rest,
    )));
    let headers = response.headers_mut();
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("application/x-ndjson"),
    );
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

impl Following {
    /// The next lines; `None`: the reader may no longer read.
    async fn next(&mut self) -> Option<String> {
        loop {
            let lines = tokio::time::timeout(CHECK, self.watch.next()).await;
            // A stream that always has lines is checked with each chunk.
            let reader = self.access.reader(&self.headers, self.peer.as_ref()).ok()?;
            self.watch.allow(reader.patterns());
            let chunk = match lines {
                Ok(lines) => lines
                    .into_iter()
                    .fold(String::new(), |all, line| all + &line + "\n"),
                Err(_) if self.sent.elapsed() >= IDLE => "\n".to_owned(),
                Err(_) => continue,
            };
            self.sent = Instant::now();
            return Some(chunk);
        }
    }
}
