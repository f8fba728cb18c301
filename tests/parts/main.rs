//! Tests of parts of the service in the process of the test, some with a real mosquitto.

use std::sync::Once;

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
mod mqtt_transport;
mod sparkplug;

/// Installs the metrics recorder, which is global to the process, once for all tests of this
/// program.
fn install_metrics() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| assert!(hourbucket::telemetry::metrics::install().is_ok()));
}
