//! The certificate of a connected client, for as long as its connection is open.
//!
//! A handshake verifies it once. When the TLS files of the port change (a certificate was revoked,
//! a CA removed), every open connection verifies its own again, with the same rules; and it watches
//! the expiry.

use std::sync::Arc;
use std::time::Duration;

use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tokio_rustls::rustls::server::danger::ClientCertVerifier;

use super::x509;
use config::{ClientIdentity, Live};
use model::Clock;

/// Longest wait until the expiry is compared with the clock again, because the clock may be set.
const CHECK_EVERY: Duration = Duration::from_secs(30);

/// The verifier in effect; `None` inside: the port no longer requests certificates.
pub(super) type LiveVerifier = Live<Option<Arc<dyn ClientCertVerifier>>>;

/// The certificate of a client, with its chain.
#[derive(Clone)]
pub struct ClientCertificate {
    chain: Arc<[CertificateDer<'static>]>,
    verifier: LiveVerifier,
    clock: Arc<dyn Clock>,
}

impl ClientCertificate {
    /// `chain` begins with the client's own. `None`: it has presented none. `verifier` reports
    /// changes since the handshake.
    pub(super) fn new(
        chain: Option<&[CertificateDer<'static>]>,
        verifier: LiveVerifier,
        clock: Arc<dyn Clock>,
    ) -> Option<ClientCertificate> {
        let chain: Arc<[_]> = chain.filter(|chain| !chain.is_empty())?.into();
        Some(ClientCertificate {
            chain,
            verifier,
            clock,
        })
    }

    /// The only name of this kind that it has; `None`: it has none or several.
    pub fn name(&self, kind: ClientIdentity) -> Option<String> {
        x509::only_name(&x509::certificate(&self.chain[0])?, kind)
    }

    /// Waits until it is no longer valid.
    pub async fn ended(mut self) {
        loop {
            let now_ms = self.clock.now().wall_ms;
            if let Some(verifier) = self.verifier.changed()
                && let Some(verifier) = &*verifier
                && !self.is_accepted(&**verifier, now_ms)
            {
                return;
            }
            let not_after_s = x509::certificate(&self.chain[0])
                .map_or(i64::MAX, |own| own.validity().not_after.timestamp());
            let left_ms = not_after_s
                .saturating_add(1)
                .saturating_mul(1000)
                .saturating_sub(now_ms);
            if left_ms <= 0 {
                return;
            }
            let wait =
                Duration::from_millis(u64::try_from(left_ms).unwrap_or_default()).min(CHECK_EVERY);
            tokio::select! {
                () = self.verifier.wait_for_change() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    fn is_accepted(&self, verifier: &dyn ClientCertVerifier, now_ms: i64) -> bool {
        let now = UnixTime::since_unix_epoch(Duration::from_millis(
            u64::try_from(now_ms).unwrap_or_default(),
        ));
        verifier
            .verify_client_cert(&self.chain[0], &self.chain[1..], now)
            .is_ok()
    }
}
