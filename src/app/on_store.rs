//! Updates the health of the service from the result of each request to the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::admin::Health;
use crate::flush::OnStoreResult;
use crate::model::Clock;
use crate::store::StoreErrorKind;

/// Returns the callback that reports to health, and logs when requests start to fail and when they
/// succeed again.
pub(super) fn on_store(health: Arc<Health>, clock: Arc<dyn Clock>) -> OnStoreResult {
    let well = AtomicBool::new(true);
    Arc::new(move |result| match result {
        Ok(()) => {
            health.store_ok(clock.now().wall_ms);
            if !well.swap(true, Ordering::Relaxed) {
                tracing::info!("store requests succeed again");
            }
        }
        Err(error) => {
            if error.kind() == StoreErrorKind::Unauthorized {
                health.store_refused(error.to_string());
            } else {
                health.store_failed(error.to_string());
            }
            if well.swap(false, Ordering::Relaxed) {
                tracing::warn!(%error, "store request failed; retrying");
            }
        }
    })
}
