//! Prometheus' HTTP API over the readings, below `/prometheus`, so that Grafana's built-in data
//! source can query it.

mod answer;
mod body;
mod listing;
mod params;
mod queue;
mod remote_read;
mod run;
mod status;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Extension, Request, State};
use axum::http::Uri;
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::{MethodRouter, any, get};
use serde_json::{Value as Json, json};

use self::answer::{Answered, PrometheusError, sent, success};
use self::listing::{label_names, label_values, metadata, series};
use self::params::{Params, invalid};
use self::run::Runner;
use super::access::{self, Access, Reader};
use crate::promql::{QueryTime, format_query};
use crate::read::ReadService;
use config::Promql;

/// The routes of this API.
pub const ROUTES: [&str; 20] = [
    "/prometheus/api/v1/query",
    "/prometheus/api/v1/query_range",
    "/prometheus/api/v1/series",
    "/prometheus/api/v1/labels",
    "/prometheus/api/v1/label/{name}/values",
    "/prometheus/api/v1/metadata",
    "/prometheus/api/v1/status/buildinfo",
    "/prometheus/api/v1/format_query",
    "/prometheus/api/v1/read",
    "/prometheus/api/v1/query_exemplars",
    "/prometheus/api/v1/rules",
    "/prometheus/api/v1/alerts",
    "/prometheus/api/v1/targets",
    "/prometheus/api/v1/status/config",
    "/prometheus/api/v1/status/flags",
    "/prometheus/api/v1/status/runtimeinfo",
    "/prometheus/api/v1/status/tsdb",
    "/prometheus/api/v1/status/walreplay",
    "/prometheus",
    "/prometheus/",
];

/// All other paths.
const OTHERS: &str = "/prometheus/{*rest}";
/// Bytes of a form.
const FORM_BYTES_MAX: usize = 2 << 20;
/// Steps of a range query.
const POINTS_MAX: i64 = 11_000;
/// The version of Prometheus whose language and API this is; clients enable features by it.
const VERSION: &str = "3.12.0";

pub(super) fn routes(reads: Option<(Arc<ReadService>, Promql)>, access: Access) -> Router {
    let Some((reads, settings)) = reads else {
        return Router::new();
    };
    let runner = Runner::new(reads, settings);
    let [
        query_at,
        range_at,
        series_at,
        labels_at,
        values_at,
        metadata_at,
        build_at,
        format_at,
        read_at,
        status @ ..,
    ] = ROUTES;
    Router::new()
        .route(query_at, form(query))
        .route(range_at, form(query_range))
        .route(series_at, form(series))
        .route(labels_at, form(label_names))
        .route(values_at, only_get(get(label_values)))
        .route(metadata_at, only_get(get(metadata)))
        .route(build_at, only_get(get(build_info)))
        .route(format_at, form(formatted))
        .merge(status::routes(status))
        .route_layer(from_fn_with_state(access.clone(), access::guard))
        .merge(remote_read::routes(read_at, access))
        .route(OTHERS, any(async || PrometheusError::NotFound))
        .with_state(runner)
}

/// The parameters come in the query string, or with POST in a form.
fn form<H, F>(handler: H) -> MethodRouter<Runner>
where
    H: Fn(Runner, Params, Reader) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Answered> + Send + 'static,
{
    let posted = handler.clone();
    let by_get = move |State(runner): State<Runner>,
                       Extension(reader): Extension<Reader>,
                       uri: Uri| async move {
        handler(runner, Params::new(&uri, b"")?, reader).await
    };
    let by_post = move |State(runner): State<Runner>,
                        Extension(reader): Extension<Reader>,
                        uri: Uri,
                        request: Request| async move {
        let form = body::receive(request, FORM_BYTES_MAX).await?;
        posted(runner, Params::new(&uri, &form)?, reader).await
    };
    get(by_get)
        .post(by_post)
        .fallback(async || PrometheusError::NotAllowed("GET and POST"))
}

fn only_get(route: MethodRouter<Runner>) -> MethodRouter<Runner> {
    route.fallback(async || PrometheusError::NotAllowed("GET"))
}

async fn query(runner: Runner, params: Params, reader: Reader) -> Answered {
    let limit = params.limit()?;
    let start_ms = params
        .time("time")?
        .unwrap_or_else(|| runner.reads.now_ms());
    let time = QueryTime {
        start_ms,
        end_ms: start_ms,
        step_ms: None,
        lookback_ms: lookback_ms(&runner, &params)?,
    };
    ask(&runner, &params, reader, time, limit).await
}

async fn query_range(runner: Runner, params: Params, reader: Reader) -> Answered {
    let limit = params.limit()?;
    let start_ms = params.required_time("start")?;
    let end_ms = params.required_time("end")?;
    if end_ms < start_ms {
        return Err(invalid(
            "end",
            "end timestamp must not be before start time",
        ));
    }
    let step_ms = params.step_ms()?;
    if (end_ms - start_ms) / step_ms > POINTS_MAX {
        return Err(PrometheusError::bad_data(
            "exceeded maximum resolution of 11,000 points per timeseries. Try decreasing the query \
             resolution (?step=XX)",
        ));
    }
    let time = QueryTime {
        start_ms,
        end_ms,
        step_ms: Some(step_ms),
        lookback_ms: lookback_ms(&runner, &params)?,
    };
    ask(&runner, &params, reader, time, limit).await
}

async fn ask(
    runner: &Runner,
    params: &Params,
    reader: Reader,
    time: QueryTime,
    limit: usize,
) -> Answered {
    let text = params.get("query").unwrap_or_default().to_owned();
    let within = params
        .duration_ms("timeout")?
        .map(|ms| Duration::from_millis(ms.max(0) as u64));
    let body = runner.run(text, time, reader, within, limit).await?;
    sent(body, &runner.reads)
}

fn lookback_ms(runner: &Runner, params: &Params) -> Result<i64, PrometheusError> {
    let asked = params.duration_ms("lookback_delta")?.filter(|ms| *ms > 0);
    Ok(asked.unwrap_or(runner.settings.lookback.as_millis() as i64))
}

async fn build_info() -> Response {
    let revision = concat!("hourbucket ", env!("CARGO_PKG_VERSION"));
    let data = json!({
        "version": VERSION, "revision": revision, "branch": "", "buildUser": "", "buildDate": "", "goVersion": "",
    });
    success(&data, &[])
}

async fn formatted(_: Runner, params: Params, _: Reader) -> Answered {
    let text = params.get("query").unwrap_or_default().to_owned();
    // The parser's recursion needs more stack than a worker has; but it is short.
    let formatted = std::thread::Builder::new()
        .stack_size(run::STACK_BYTES)
        .spawn(move || format_query(&text));
    let formatted = formatted.map_err(|_| PrometheusError::Internal)?;
    let joined = tokio::task::spawn_blocking(move || formatted.join()).await;
    match joined {
        Ok(Ok(Ok(text))) => Ok(success(&Json::from(text), &[])),
        Ok(Ok(Err(error))) => Err(invalid("query", &error.to_string())),
        _ => Err(PrometheusError::Internal),
    }
}
