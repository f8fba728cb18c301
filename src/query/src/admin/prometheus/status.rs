//! What clients ask besides queries: exemplars, rules, alerts and targets, of which there are none,
//! and the state of the server. No answer contains a secret: of the settings, only the limits of
//! queries are shown.

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use serde_json::{Value as Json, json};

use super::answer::{Answered, success};
use super::params::Params;
use super::run::Runner;
use super::{form, only_get};
use crate::admin::access::Reader;
use config::write_duration;
use model::rfc3339;

/// For a person who opens the address of the data source.
const ABOUT: &str = "Prometheus' HTTP API over the readings of hourbucket, below \
    /prometheus/api/v1. In Grafana, the URL of a Prometheus data source ends with /prometheus.\n";

pub(super) fn routes(paths: [&'static str; 11]) -> Router<Runner> {
    let [
        exemplars_at,
        rules_at,
        alerts_at,
        targets_at,
        config_at,
        flags_at,
        runtime_at,
        tsdb_at,
        replay_at,
        about @ ..,
    ] = paths;
    let mut routes = Router::new()
        .route(exemplars_at, form(exemplars))
        .route(flags_at, only_get(get(flags)))
        .route(runtime_at, only_get(get(runtime)));
    for (path, data) in [
        (rules_at, json!({ "groups": [] })),
        (alerts_at, json!({ "alerts": [] })),
        (
            targets_at,
            json!({ "activeTargets": [], "droppedTargets": [], "droppedTargetCounts": {} }),
        ),
        (config_at, json!({ "yaml": "" })),
        (tsdb_at, tsdb()),
        (replay_at, json!({ "min": 0, "max": 0, "current": 0 })),
    ] {
        routes = routes.route(path, only_get(get(async move || success(&data, &[]))));
    }
    about.into_iter().fold(routes, |routes, path| {
        routes.route(path, only_get(get(async || ABOUT)))
    })
}

async fn exemplars(_: Runner, params: Params, _: Reader) -> Answered {
    params.time("start")?;
    params.time("end")?;
    Ok(success(&json!([]), &[]))
}

/// The series are not in a head block: they are counted as 0.
fn tsdb() -> Json {
    json!({
        "headStats": { "numSeries": 0, "numLabelPairs": 0, "chunkCount": 0, "minTime": 0, "maxTime": 0 },
        "seriesCountByMetricName": [], "labelValueCountByLabelName": [],
        "memoryInBytesByLabelName": [], "seriesCountByLabelValuePair": [],
    })
}

async fn flags(State(runner): State<Runner>) -> axum::response::Response {
    let settings = &runner.settings;
    let flags = json!({
        "query.lookback-delta": write_duration(settings.lookback),
        "query.max-concurrency": settings.queries_max.to_string(),
        "query.max-samples": settings.samples_max.to_string(),
        "query.timeout": write_duration(settings.timeout),
    });
    success(&flags, &[])
}

async fn runtime(State(runner): State<Runner>) -> axum::response::Response {
    let info = json!({
        "startTime": rfc3339(runner.started_ms), "serverTime": rfc3339(runner.reads.now_ms()),
        "CWD": "", "hostname": "", "reloadConfigSuccess": true, "lastConfigTime": rfc3339(runner.started_ms),
        "corruptionCount": 0, "goroutineCount": 0, "GOMAXPROCS": 0, "GOMEMLIMIT": 0,
        "GOGC": "", "GODEBUG": "", "storageRetention": "",
    });
    success(&info, &[])
}
