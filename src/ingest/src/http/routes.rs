//! The paths of the port. `router` in the module above gives each its handler.

use axum::Router;
use axum::routing::MethodRouter;

pub(super) const READINGS: &str = "/v1/readings";
pub(super) const HOOKS: &str = "/v1/hooks/{format}";
pub(super) const HOOKS_BEGIN: &str = "/v1/hooks/";
/// OTLP.
pub(super) const METRICS: &str = "/v1/metrics";
/// Prometheus remote write.
pub(super) const REMOTE_WRITE: &str = "/api/v1/write";
/// The beginning of all paths of ThingsBoard's device API; the token of the device follows.
pub(super) const DEVICE_API: &str = "/api/v1/";
/// ThingsBoard.
pub(super) const TELEMETRY: &str = "/api/v1/{token}/telemetry";
/// InfluxDB 1.x, 2.x and 3.x.
pub(super) const WRITE_V1: &str = "/write";
pub(super) const WRITE_V2: &str = "/api/v2/write";
pub(super) const WRITE_V3: &str = "/api/v3/write_lp";
pub(super) const QUERY: &str = "/query";
pub(super) const PING: &str = "/ping";
pub(super) const HEALTH: &str = "/health";

/// Every route, as in the metrics label `route` and in the API description.
pub const ROUTES: [&str; 11] = [
    READINGS,
    HOOKS,
    METRICS,
    REMOTE_WRITE,
    TELEMETRY,
    WRITE_V2,
    WRITE_V1,
    WRITE_V3,
    QUERY,
    PING,
    HEALTH,
];

/// The routes that accept readings, for error messages.
pub(super) const WRITE_ROUTES: [&str; 8] = [
    READINGS,
    HOOKS,
    METRICS,
    REMOTE_WRITE,
    TELEMETRY,
    WRITE_V2,
    WRITE_V1,
    WRITE_V3,
];

/// A path with its handlers, with and without a slash at its end: some senders append one.
pub(super) fn with_slash<S: Clone + Send + Sync + 'static>(
    path: &str,
    methods: MethodRouter<S>,
) -> Router<S> {
    Router::new()
        .route(path, methods.clone())
        .route(&format!("{path}/"), methods)
}

/// The label `route` of a request that matches no route.
pub(super) const UNMATCHED: &str = "unmatched";
