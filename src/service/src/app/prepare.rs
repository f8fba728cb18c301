//! Prepares the store, for as long as it takes. Meanwhile readings are accepted and journaled, so an
//! error that may pass must not end the process: it is retried and named in `/readyz`, as at run
//! time.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::context::ServiceContext;
use pipeline::enrich::Enrichment;
use store::{Ability, Outcome, PrepareError, PrepareErrorEnd, Store, StoreError, StoreErrorKind};
use telemetry::metrics;

/// How long the preparation is retried if the user lacks rights. They may be granted at the same
/// time as the service starts.
const RIGHTS_WITHIN: Duration = Duration::from_secs(5 * 60);

impl ServiceContext {
    /// Prepares the collections, for as long as it takes, reads the registry, releases the permits,
    /// and keeps the registry up to date from then on.
    pub(super) async fn prepare(
        self: Arc<Self>,
        store: Arc<dyn Store>,
        enrichment: Option<Enrichment>,
    ) {
        if !self.prepared(&*store).await {
            return;
        }
        let Some(mut enrichment) = enrichment else {
            return self.flusher.open(self.config.flush.commands_max);
        };
        enrichment.refresh().await;
        self.flusher.open(self.config.flush.commands_max);
        enrichment.run().await;
    }

    /// Retries until the collections are prepared. Returns `false`, and ends the service, if only an
    /// operator can change what prevents it.
    async fn prepared(&self, store: &dyn Store) -> bool {
        let mut failures = 0;
        let mut without_rights_since = None;
        loop {
            let error = match store.prepare().await {
                Ok(prepared) => {
                    for change in &prepared.changes {
                        tracing::info!(%change, "store schema changed");
                    }
                    for warning in &prepared.warnings {
                        tracing::warn!(%warning, "store warning");
                    }
                    tracing::info!(
                        mode = store.mode(),
                        server = prepared.server_version,
                        reason = prepared.mode_reason,
                        "store ready"
                    );
                    self.health
                        .mode(store.mode(), prepared.mode_reason, prepared.server_version);
                    self.flusher.report(Ability::Prepare, Outcome::Success);
                    metrics::store_mode(store.storage_mode(), 1.0);
                    return true;
                }
                Err(error) => error,
            };
            let is_final = match error.end {
                PrepareErrorEnd::Operator => true,
                PrepareErrorEnd::Rights => {
                    without_rights_since
                        .get_or_insert_with(Instant::now)
                        .elapsed()
                        >= RIGHTS_WITHIN
                }
                PrepareErrorEnd::MayPass(_) => {
                    without_rights_since = None;
                    false
                }
            };
            if is_final {
                self.failure_signal
                    .fail(format!("store preparation failed: {error}"));
                return false;
            }
            let error = of_request(error);
            self.flusher
                .report(Ability::Prepare, Outcome::Failure(&error));
            self.flusher.pause(&mut failures).await;
        }
    }
}

/// An error of the preparation as that of a request.
fn of_request(error: PrepareError) -> StoreError {
    let kind = match error.end {
        PrepareErrorEnd::MayPass(kind) => kind,
        PrepareErrorEnd::Rights => StoreErrorKind::Unauthorized,
        PrepareErrorEnd::Operator => StoreErrorKind::Command,
    };
    StoreError::NotApplied {
        kind,
        detail: error.detail,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::Config;
    use model::SystemClock;
    use testkit::memory_store::MemoryStore;

    const MAY_PASS: PrepareErrorEnd = PrepareErrorEnd::MayPass(StoreErrorKind::Command);

    /// A service whose store answers with the errors of `script`.
    fn context(
        script: impl FnMut() -> Option<PrepareErrorEnd> + Send + 'static,
    ) -> (Arc<ServiceContext>, Arc<MemoryStore>) {
        let store = Arc::new(MemoryStore::new());
        let mut script = script;
        store.set_prepare_script(Box::new(move || {
            let detail = "SnapshotTooOld (239)".to_owned();
            script().map(|end| PrepareError { detail, end })
        }));
        let clock = Arc::new(SystemClock::new());
        let runtime = tokio::runtime::Handle::current();
        let (context, ..) = ServiceContext::new(Config::default(), store.clone(), clock, runtime);
        (context, store)
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_that_may_pass_is_retried_and_named() {
        let begun = Instant::now();
        let an_hour = Duration::from_secs(3600);
        let (context, store) = context(move || (begun.elapsed() < an_hour).then_some(MAY_PASS));
        let preparing = tokio::spawn({
            let context = context.clone();
            async move { context.prepared(&*store).await }
        });
        tokio::time::sleep(an_hour / 2).await;
        let now = context.clock.now();
        context.health.store_pinged(Ok(()), now);
        let report = context.health.report();
        assert!(!report.store.ok, "a ping shows nothing about it");
        assert!(report.store.error.unwrap().contains("SnapshotTooOld (239)"));
        assert_eq!(report.store.failing[0].requests, "prepare");
        assert!(preparing.await.unwrap());
        assert!(begun.elapsed() >= an_hour);
        assert!(context.health.report().store.ok);
        assert_eq!(context.failure_signal.reason(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn rights_may_be_granted_within_minutes() {
        for (granted_after, is_prepared) in [(290, true), (310, false)] {
            let begun = Instant::now();
            let granted_after = Duration::from_secs(granted_after);
            let without = move || begun.elapsed() < granted_after;
            let (context, store) = context(move || without().then_some(PrepareErrorEnd::Rights));
            assert_eq!(context.prepared(&*store).await, is_prepared);
            assert_eq!(context.failure_signal.reason().is_none(), is_prepared);
            assert!(begun.elapsed() >= granted_after.min(RIGHTS_WITHIN));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_only_an_operator_can_change_is_final() {
        let begun = Instant::now();
        let (context, store) = context(|| Some(PrepareErrorEnd::Operator));
        assert!(!context.prepared(&*store).await);
        assert_eq!(begun.elapsed(), Duration::ZERO);
        let reason = context.failure_signal.reason().unwrap();
        assert!(reason.contains("SnapshotTooOld (239)"), "{reason}");
    }
}
