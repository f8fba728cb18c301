//! Charges a request's body to its sender's quota as it arrives, whatever becomes of the request: the
//! body of a refused one is read too, so that its sender sees the answer.

use std::sync::{Arc, OnceLock};

use axum::http::Extensions;

use crate::access::Grant;

/// Who a body is charged to, once that is known; an extension of its request.
#[derive(Debug, Clone, Default)]
pub struct Payer(Arc<OnceLock<Arc<Grant>>>);

impl Payer {
    /// The sender pays for the body of this request.
    pub fn set(extensions: &Extensions, sender: &Arc<Grant>) {
        if let Some(Payer(payer)) = extensions.get() {
            let _ = payer.set(sender.clone());
        }
    }

    /// Part of the body has arrived.
    pub(super) fn charge(&self, bytes: usize) {
        if let Some(grant) = self.0.get() {
            grant.usage.charge(&grant.quota, 0, bytes);
        }
    }
}
