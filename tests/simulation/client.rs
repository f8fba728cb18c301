//! The simulated database as one process sees it: its [`Store`].

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use model::{
    BucketKey, BucketStart, CatalogUpdate, DeadLetter, LatestUpdate, PageWrite, SensorId, Span,
    StorageMode,
};
use store::catalog::{CatalogEntry, CatalogQuery};
use store::columns::ColumnStore;
use store::days::DayStore;
use store::reading::{
    DeadLetterQuery, EdgeQuery, Edges, MeasurementQuery, MeasurementResults, PageQuery,
    PageResults, SensorQuery, StoredDeadLetter, StoredSensor, SummaryQuery, SummaryResults,
};
use store::tier::{ComparedPage, Tier};
use store::{
    BoxFuture, DeadLetterWritten, LatestWriteResult, LoadRequest, LoadResult, PageWriteResult,
    PrepareError, PreparedStore, Store, StoreError,
};
use testkit::memory_store::{Pages, one_by_one};
use tokio::time::Instant;

use super::server::{Server, not_applied, trace};

/// The database as one process sees it.
pub(crate) struct Client {
    pub(crate) server: Arc<Server>,
    pub(crate) process: u64,
    pub(crate) storage_mode: StorageMode,
    pub(crate) span: Span,
}

impl Client {
    /// What columns add to pages; `None` in histories without the removal of days.
    pub(crate) fn tier(&self) -> Option<Tier<'_>> {
        let zone = self.server.state().pages.days.zone?;
        Some(Tier::new(self, zone, self.span))
    }

    pub(crate) fn read<'a, T: Send + 'a>(
        &'a self,
        read: impl FnOnce(&Pages) -> T + Send + 'a,
    ) -> BoxFuture<'a, Result<T, StoreError>> {
        Box::pin(async move {
            tokio::time::sleep(self.server.pace.round_trip).await;
            let state = self.server.state();
            if state.down {
                Err(not_applied())
            } else {
                Ok(read(&state.pages))
            }
        })
    }
}

impl Store for Client {
    fn prepare(&self) -> BoxFuture<'_, Result<PreparedStore, PrepareError>> {
        Box::pin(async {
            self.server.settled().await;
            Ok(PreparedStore::default())
        })
    }

    fn raise_high_water(
        &self,
        through: BucketStart,
    ) -> BoxFuture<'_, Result<BucketStart, StoreError>> {
        Box::pin(self.server.raise(through))
    }

    fn write<'a>(
        &'a self,
        writes: &'a [PageWrite],
    ) -> BoxFuture<'a, Result<Vec<PageWriteResult>, StoreError>> {
        Box::pin(self.server.write(self.process, writes))
    }

    fn load<'a>(
        &'a self,
        requests: &'a [LoadRequest],
        within: Option<Duration>,
    ) -> BoxFuture<'a, Result<Vec<LoadResult>, StoreError>> {
        Box::pin(async move {
            let begun = Instant::now();
            let response = self
                .server
                .load(self.process, requests, within, self.storage_mode)
                .await;
            let response = match (response, self.tier()) {
                (Ok(mut answers), Some(tier)) => {
                    tier.complete_loads(requests, &mut answers).await;
                    Ok(answers)
                }
                (response, _) => response,
            };
            let list = || {
                requests
                    .iter()
                    .map(|r| format!("{}@{}", r.bucket.sensor_id, r.bucket.start.0))
                    .collect::<Vec<_>>()
            };
            trace(|| {
                let well = response
                    .as_ref()
                    .map(|a| a.iter().map(Result::is_ok).collect::<Vec<_>>());
                format!(
                    "{} load {:?} within {within:?} took {:?}: {well:?}",
                    self.process,
                    list(),
                    begun.elapsed()
                )
            });
            response
        })
    }

    fn merge_catalog<'a>(
        &'a self,
        updates: &'a [&'a CatalogUpdate],
    ) -> BoxFuture<'a, Result<u64, StoreError>> {
        Box::pin(async move {
            let mut state = self.server.state();
            if state.down {
                return Err(not_applied());
            }
            updates
                .iter()
                .for_each(|update| state.pages.merge_catalog(update));
            Ok(0)
        })
    }

    fn find_catalog<'a>(
        &'a self,
        q: &'a CatalogQuery,
    ) -> BoxFuture<'a, Result<Vec<CatalogEntry>, StoreError>> {
        self.read(move |pages| pages.find_catalog(q))
    }

    fn latest<'a>(
        &'a self,
        updates: &'a [LatestUpdate],
    ) -> BoxFuture<'a, Result<Vec<LatestWriteResult>, StoreError>> {
        Box::pin(async move {
            updates
                .iter()
                .for_each(|u| self.server.state().pages.merge_latest(u));
            Ok(vec![LatestWriteResult::Done; updates.len()])
        })
    }

    fn write_dead_letters<'a>(
        &'a self,
        dead_letters: &'a [DeadLetter],
    ) -> BoxFuture<'a, Result<Vec<DeadLetterWritten>, StoreError>> {
        Box::pin(async move {
            let kept = self.server.keep(dead_letters).await;
            kept.map(|()| vec![DeadLetterWritten::Done; dead_letters.len()])
        })
    }

    fn pages<'a>(&'a self, q: &'a PageQuery) -> BoxFuture<'a, Result<PageResults, StoreError>> {
        Box::pin(async move {
            let mut results = self.read(move |pages| pages.read_pages(q)).await?;
            if let Some(tier) = self.tier() {
                let read = |q: PageQuery| -> BoxFuture<'_, _> {
                    Box::pin(async move { self.read(|pages| pages.read_pages(&q)).await })
                };
                tier.complete_pages(q, &mut results, read).await?;
            }
            Ok(results)
        })
    }

    fn find_removable(
        &self,
        ended_ms: Range<i64>,
        pages_max: usize,
    ) -> BoxFuture<'_, Result<Vec<BucketKey>, StoreError>> {
        let span = self.span;
        self.read(move |pages| pages.find_removable(span, ended_ms, pages_max))
    }

    fn remove_compared<'a>(
        &'a self,
        compared: &'a [ComparedPage],
    ) -> BoxFuture<'a, Result<u64, StoreError>> {
        Box::pin(async move {
            let removed = self.change(compared, |pages, page| pages.remove_compared(page));
            Ok(removed
                .await?
                .into_iter()
                .filter(|is_removed| *is_removed)
                .count() as u64)
        })
    }

    fn stored_pages<'a>(
        &'a self,
        q: &'a PageQuery,
    ) -> BoxFuture<'a, Result<PageResults, StoreError>> {
        self.read(move |pages| pages.read_pages(q))
    }

    fn measurements<'a>(
        &'a self,
        q: &'a MeasurementQuery,
    ) -> BoxFuture<'a, Result<MeasurementResults, StoreError>> {
        self.read(move |pages| pages.read_measurements(q))
    }

    fn summaries<'a>(
        &'a self,
        q: &'a SummaryQuery,
    ) -> BoxFuture<'a, Result<SummaryResults, StoreError>> {
        Box::pin(one_by_one::summaries(self, q))
    }

    fn edges<'a>(&'a self, q: &'a EdgeQuery) -> BoxFuture<'a, Result<Edges, StoreError>> {
        Box::pin(one_by_one::edges(self, q))
    }

    fn sensors<'a>(&'a self, q: &'a SensorQuery) -> BoxFuture<'a, Result<Vec<String>, StoreError>> {
        self.read(move |pages| pages.read_sensors(q))
    }

    fn newest<'a>(
        &'a self,
        sensors: &'a [SensorId],
    ) -> BoxFuture<'a, Result<Vec<StoredSensor>, StoreError>> {
        self.read(move |pages| pages.read_newest(sensors))
    }

    fn find_dead_letters<'a>(
        &'a self,
        q: &'a DeadLetterQuery,
    ) -> BoxFuture<'a, Result<Vec<StoredDeadLetter>, StoreError>> {
        self.read(move |pages| pages.read_dead_letters(q))
    }

    fn days(&self) -> Option<&dyn DayStore> {
        Some(self)
    }

    fn columns(&self) -> Option<&dyn ColumnStore> {
        Some(self)
    }

    fn ping(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.read(|_| ())
    }

    fn storage_mode(&self) -> StorageMode {
        self.storage_mode
    }

    fn mode(&self) -> &'static str {
        if self.storage_mode == StorageMode::TimeSeries {
            "timeseries"
        } else {
            "bucket"
        }
    }
}
