//! `POST /prometheus/api/v1/read`: Prometheus' remote read, so that a Prometheus can query the
//! readings (prometheus.io/docs/prometheus/latest/querying/remote_read_api). Errors are text, as
//! Prometheus' are.
//!
//! The series of all queries are loaded, within the limits of a PromQL query, and the answer is
//! written before it is sent. So every error has its status. Answers have samples only
//! (`SAMPLES`): every Prometheus offers this form, also when it prefers chunks, and the engine of
//! the client needs the samples anyway.

mod request;
mod response;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Extension, Request, State};
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{from_fn_with_state, map_response};
use axum::response::Response;
use axum::routing::post;

use self::request::{BODY_BYTES_MAX, ReadRequest, RequestError};
use super::answer::PrometheusError;
use super::body::receive;
use super::run::{Runner, Shown, Work};
use crate::admin::access::{Access, Reader, guard};
use crate::cost::Cost;
use crate::promql::{Part, PromqlError, SelectorRequest, Series, joined};

/// Bytes of an error's JSON body.
const ERROR_BYTES_MAX: usize = 64 << 10;

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
    let job = move |work: &Work| answer(work, &body, &logged);
    match runner.in_thread(reader, shown, None, job).await {
        Ok(body) => {
            let mut response = answered("application/x-protobuf", Body::from(body));
            response
                .headers_mut()
                .insert(CONTENT_ENCODING, HeaderValue::from_static("snappy"));
            response
        }
        Err(error) => text(error.status(), &error.to_string()),
    }
}

async fn not_allowed() -> Response {
    let error = PrometheusError::NotAllowed("POST");
    text(error.status(), &error.to_string())
}

/// The query's thread: loads everything, and writes the answer.
fn answer(work: &Work, body: &[u8], shown: &Shown) -> Result<Vec<u8>, PrometheusError> {
    let queries = parsed(body, shown)?;
    let results = load(work, queries)?;
    response::samples(results).map_err(|error| PromqlError::Execution(error.to_string()).into())
}

fn parsed(body: &[u8], shown: &Shown) -> Result<Vec<SelectorRequest>, PrometheusError> {
    let ReadRequest { queries: requests } =
        ReadRequest::parse(body).map_err(|error| match error {
            RequestError::Matcher(error) => error.into(),
            other => PrometheusError::bad_data(other.to_string()),
        })?;
    let query = |query: &SelectorRequest| {
        let matchers: Vec<String> = query.matchers.iter().map(ToString::to_string).collect();
        format!(
            "{{{}}} ({}, {}]",
            matchers.join(", "),
            query.after_ms(),
            query.to_ms()
        )
    };
    let queries: Vec<String> = requests.iter().map(query).collect();
    let _ = shown.set(format!("remote read: {}", queries.join("; ")));
    Ok(requests)
}

/// The series of each query, ordered by their labels; without those that have no samples.
fn load(work: &Work, queries: Vec<SelectorRequest>) -> Result<Vec<Vec<Series>>, PrometheusError> {
    let places = 0..queries.len();
    let mut source = work.find(queries, Cost::default())?;
    let mut left = work.settings.samples_max;
    let of_query = |query| {
        joined(|| {
            let mut part = source.read_part(query)?;
            for samples in part.iter_mut().flat_map(Part::samples_mut) {
                let rest = left.checked_sub(samples.len());
                left = rest.ok_or_else(PromqlError::too_many_samples)?;
            }
            Ok(part)
        })
    };
    places.map(of_query).collect()
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
