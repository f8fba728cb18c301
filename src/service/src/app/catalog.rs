//! Background work on the catalogue: fills it once if it is not complete, and removes entries without
//! buckets.

use std::sync::Arc;
use std::time::Duration;

use super::context::{ServiceContext, backoff};
use store::Store;
use store::catalog::CatalogFill;
use store::fill_catalog::fill_some;

/// How often entries without buckets are searched.
const EXPIRE: Duration = Duration::from_secs(6 * 60 * 60);

impl ServiceContext {
    /// Runs until the service ends. Begins after the store is prepared.
    pub(super) async fn catalogue(self: Arc<Self>, store: Arc<dyn Store>) {
        drop(self.flusher.permit().await);
        self.fill(&*store).await;
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

    async fn fill(&self, store: &dyn Store) {
        let mut fill = None::<CatalogFill>;
        let mut failures = 0;
        let mut announced = false;
        loop {
            let next = match &fill {
                None => store.catalog_fill().await,
                Some(from) => fill_some(store, from).await,
            };
            match next {
                Ok(CatalogFill {
                    is_complete: true, ..
                }) if announced => {
                    return tracing::info!("catalogue filled from the stored buckets");
                }
                Ok(CatalogFill {
                    is_complete: true, ..
                }) => return,
                Ok(state) => {
                    if !announced {
                        tracing::info!(
                            after = state.after,
                            "filling the catalogue from the stored buckets"
                        );
                        announced = true;
                    }
                    (fill, failures) = (Some(state), 0);
                }
                Err(error) => {
                    if failures == 0 {
                        tracing::warn!(%error, "cannot fill the catalogue; trying again");
                    }
                    failures += 1;
                    tokio::time::sleep(backoff(&self.config).wait(failures, fastrand::f64())).await;
                }
            }
        }
    }
}
