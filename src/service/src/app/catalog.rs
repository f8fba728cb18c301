//! Removes entries of the catalogue that have no buckets, in the background.

use std::sync::Arc;
use std::time::Duration;

use super::context::ServiceContext;
use store::Store;

/// How often entries without buckets are searched.
const EXPIRE: Duration = Duration::from_secs(6 * 60 * 60);

impl ServiceContext {
    /// Runs until the service ends. Begins after the store is prepared.
    pub(super) async fn catalogue(self: Arc<Self>, store: Arc<dyn Store>) {
        drop(self.flusher.permit().await);
        loop {
            tokio::time::sleep(EXPIRE).await;
            match store.expire_catalog(self.clock.now().wall_ms).await {
                Ok(0) => {}
                Ok(removed) => tracing::info!(
                    removed,
                    "catalogue entries removed; their sensors have no buckets"
                ),
                Err(error) => {
                    tracing::warn!(%error, "cannot remove old entries of the catalogue; trying \
                        again later")
                }
            }
        }
    }
}
