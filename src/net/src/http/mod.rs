//! An HTTP port: opening it, its connections and their limits, who the peer is and
//! what it may do, how a body is decompressed or refused.

pub mod access_error;
mod connection;
pub mod encoding;
pub mod foreign;
pub mod json_response;
pub mod payer;
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

use model::Clock;

use crate::tls::{CertificateError, Certificates, Files, OnTls, TlsError};

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
    port: &'static str,
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
