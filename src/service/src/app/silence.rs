//! Counts the known and the silent sensors, for the metrics and the read API
//! ([`query::read::silence`]).

use std::sync::Arc;

use super::context::ServiceContext;
use super::stages::Unstored;
use query::read::silence::{Pause, Silence};
use store::{Store, StoreError};
use telemetry::metrics;

impl ServiceContext {
    /// Queries the catalogue periodically. Begins after the store is prepared.
    pub(super) async fn silence(
        self: Arc<Self>,
        store: Arc<dyn Store>,
        silence: Arc<Silence>,
        unstored: Unstored,
    ) {
        drop(self.flusher.permit().await);
        let mut pause = None;
        let mut is_failing = false;
        loop {
            let looked = self
                .look_for_silence(&*store, &silence, &unstored, &mut pause)
                .await;
            if let Err(error) = &looked
                && !is_failing
            {
                tracing::warn!(%error, "cannot count the silent sensors; trying again");
            }
            is_failing = looked.is_err();
            tokio::time::sleep(silence.interval()).await;
        }
    }

    /// Counts once. Reads the `pause` before the start if it is not known yet.
    async fn look_for_silence(
        &self,
        store: &dyn Store,
        silence: &Silence,
        unstored: &Unstored,
        pause: &mut Option<Pause>,
    ) -> Result<(), StoreError> {
        let now = self.clock.now();
        // Before the counts: what arrives in between only makes the age greater.
        let age_ms = unstored.backlog(now.mono_ms).age_ms;
        let unstored_ms = age_ms.map_or(0, |ms| i64::try_from(ms).unwrap_or(i64::MAX / 4));
        let before_ms = store.note_running(now.wall_ms).await?;
        let pause = *pause.get_or_insert(Pause {
            since_ms: before_ms.unwrap_or(now.wall_ms),
            until_ms: now.wall_ms,
        });
        silence.judge(now.wall_ms, unstored_ms, pause);
        let Some(arrived_ms) = silence.arrivals_ms() else {
            return Ok(());
        };
        let counts = store.count_catalog(arrived_ms).await?;
        metrics::sensors_known(counts.known);
        metrics::sensors_silent(counts.arrived);
        silence.note(counts);
        Ok(())
    }
}
