//! An HTTP port: opening it, its connections and their limits, who the peer is and
//! what it may do, how a body is decompressed or refused.

pub mod access_error;
mod connection;
pub mod encoding;
pub mod foreign;
pub mod peer;
mod port;
pub mod refused_body;
pub mod refusing;
mod secure;
pub mod server;
mod timed_stream;
pub mod tokens;

pub use self::access_error::AccessError;
pub use self::peer::Peer;
pub use self::port::{Port, PortSetter};
pub use self::server::BindError;

use std::sync::Arc;

use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use model::Clock;

use crate::access::{Denied, JwtFault, QuotaLimit};
use crate::connections::Refusal;
use crate::proxy::ProxyFault;
use crate::tls::{CertificateError, Certificates, Files, OnTls, TlsError};
use telemetry::metrics::{self, PortName};

/// Starts the series of metrics at zero whose labels are values of this crate.
pub fn start_series() {
    let faults = [
        AccessError::NoToken,
        AccessError::MalformedToken,
        AccessError::WrongToken,
        AccessError::Jwt(JwtFault::Malformed),
        AccessError::NoIdentity,
        AccessError::Denied(Denied::Expired),
        AccessError::Denied(Denied::NotYetValid),
        AccessError::Denied(Denied::Write),
    ];
    for port in PortName::HTTP {
        for refusal in Refusal::ALL {
            metrics::http_connections_refused_total(port, refusal, 0);
        }
        metrics::http_connections_refused_total(port, ProxyFault::Late, 0);
        for fault in &faults {
            metrics::auth_failures_total(port, fault, 0);
        }
    }
    for limit in QuotaLimit::ALL {
        metrics::quota_exceeded_total(limit, 0);
    }
}

/// Checks the certificates of a port; returns a short text with their expiry. `None`: the port has
/// no TLS. `now_s`: seconds since 1970.
///
/// # Errors
/// A certificate or key cannot be used.
pub fn check_tls(tls: &config::Tls, now_s: i64) -> Option<Result<String, CertificateError>> {
    Files::of_http(tls).map(|files| files.check(now_s))
}

/// Reads the certificates of a port; `None` if the port has no TLS.
pub async fn open_tls(
    port: PortName,
    tls: &config::Tls,
    clock: &Arc<dyn Clock>,
    on_tls: &OnTls,
) -> Result<Option<Certificates>, TlsError> {
    match Files::of_http(tls) {
        Some(files) => Certificates::open(port, files, clock.clone(), on_tls.clone())
            .await
            .map(Some),
        None => Ok(None),
    }
}

/// A response with a JSON body.
pub fn json(status: StatusCode, body: &impl Serialize) -> Response {
    // Texts and numbers under fixed names: this cannot fail. If it did, the status would still be
    // right.
    let bytes = serde_json::to_vec(body).unwrap_or_default();
    (status, [(CONTENT_TYPE, "application/json")], bytes).into_response()
}
