//! `GET /v1/tail`: readings as they are accepted and rejects with their reason, as NDJSON that does
//! not end.
//!
//! A reader sees the sensors that its token may read. The token is checked again every second, so
//! that the stream of a revoked or expired one ends. An empty line every [`IDLE`] detects a peer
//! that has gone. There are few places, and one reader gets at most half of them ([`Shares`]).

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
use model::SensorPatterns;
use net::http::Peer;
use net::shares::{Owner, Shares};
use telemetry::tail::{self, View, WATCHERS_MAX, Watch};

pub(super) const ROUTE: &str = "/v1/tail";

/// Interval between checks of the token.
const CHECK: Duration = Duration::from_secs(1);
/// Interval between lines, at most.
const IDLE: Duration = Duration::from_secs(15);

pub(super) fn routes(access: Access) -> Router {
    let guarded = from_fn_with_state(access.clone(), access::guard);
    let places = Places::new(WATCHERS_MAX as u64);
    Router::new()
        .route(ROUTE, get(follow).route_layer(guarded))
        .with_state((access, places))
}

/// The places of all streams.
#[derive(Clone)]
struct Places(Arc<Mutex<Shares>>);

/// A place, given back when dropped.
struct Place {
    places: Places,
    owner: Owner,
}

impl Places {
    fn new(places_max: u64) -> Places {
        Places(Arc::new(Mutex::new(Shares::new(places_max))))
    }

    /// A place for another stream of this reader, unless the others need it.
    fn take(&self, owner: Owner) -> Option<Place> {
        let is_taken = self.lock().take(&owner, 0, 1);
        is_taken.then(|| Place {
            places: self.clone(),
            owner,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Shares> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().give_back(&self.owner, 1);
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    /// A pattern of sensor ids.
    sensor: Option<String>,
}

/// A stream that is being sent.
struct Following {
    watch: Watch,
    /// Held as long as the stream.
    _place: Place,
    access: Access,
    headers: HeaderMap,
    peer: Option<Peer>,
    sent: Instant,
}

async fn follow(
    State((access, places)): State<(Access, Places)>,
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
    let headers = request.headers().clone();
    let peer = Peer::find(request.extensions()).cloned();
    // First, because it tells whether all places are taken.
    let watch = tail::watch(View {
        wanted,
        allowed: reader.patterns(),
    })?;
    let place = places.take(reader.owner());
    let place = place.ok_or(ApiError::Places)?;
    let following = Following {
        watch,
        _place: place,
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

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use net::access::Grant;

    #[test]
    fn one_reader_leaves_places_to_others() {
        let places = Places::new(WATCHERS_MAX as u64);
        let owner =
            |id: &str| Owner::identify(Some(&Grant::unlimited(id)), Ipv4Addr::UNSPECIFIED.into());
        let all = |id: &str| -> Vec<Place> {
            (0..WATCHERS_MAX)
                .map_while(|_| places.take(owner(id)))
                .collect()
        };
        let mut of_a = all("a");
        assert_eq!(of_a.len(), WATCHERS_MAX / 2);
        let of_b = all("b");
        assert_eq!(of_b.len(), WATCHERS_MAX / 4);
        assert!(places.take(owner("c")).is_some());
        of_a.pop();
        assert!(places.take(owner("a")).is_none(), "less is free now");
        drop(of_b);
        assert!(places.take(owner("a")).is_some());
        drop(of_a);
        assert_eq!(places.lock().free(), WATCHERS_MAX as u64);
    }
}
