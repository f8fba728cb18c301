//! Tests of parts of the service in the process of the test, some with a real mosquitto.

use std::sync::Once;

use tokio::sync::{Semaphore, SemaphorePermit};

#[path = "../support/mod.rs"]
mod support;

mod app;
mod certificates;
mod http_tls;
mod jwt;
mod mqtt_broker;
mod mqtt_direct;
mod mqtt_direct_access;
mod mqtt_direct_hostile;
mod mqtt_field;
mod mqtt_reasons;
mod mqtt_transport;
mod sparkplug;

/// Installs the metrics recorder, which is global to the process, once for all tests of this
/// program.
fn install_metrics() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| assert!(telemetry::metrics::install().is_ok()));
}

/// All services of this program set the same metrics. A service with `http.tls` runs with one of
/// these permits; with all of them, in a test that reads the metrics of `http.tls`.
static HTTP_TLS: Semaphore = Semaphore::const_new(HTTP_TLS_SERVICES as usize);
const HTTP_TLS_SERVICES: u32 = 1000;

/// The permit of a service with `http.tls` beside others.
async fn http_tls_service() -> SemaphorePermit<'static> {
    HTTP_TLS.acquire().await.expect("it is never closed")
}

/// The permits of the only service with `http.tls`.
async fn only_http_tls_service() -> SemaphorePermit<'static> {
    HTTP_TLS
        .acquire_many(HTTP_TLS_SERVICES)
        .await
        .expect("it is never closed")
}
