//! The store of an instance that forwards its readings to another one: there is none.

use std::time::Duration;

use crate::catalog::{CatalogEntry, CatalogQuery};
use crate::reading::{
    DeadLetterQuery, EdgeQuery, Edges, MeasurementQuery, MeasurementResults, PageQuery,
    PageResults, SensorQuery, StoredDeadLetter, StoredSensor, SummaryQuery, SummaryResults,
};
use crate::{
    BoxFuture, DeadLetterWritten, LatestWriteResult, LoadRequest, LoadResult, PageWriteResult,
    PrepareError, PrepareErrorEnd, PreparedStore, Store, StoreError, StoreErrorKind,
};
use model::{
    BucketStart, CatalogUpdate, DeadLetter, LatestUpdate, PageWrite, SensorId, StorageMode,
};

/// Answers everything with the reason why there is no store.
#[derive(Debug)]
pub struct NoStore {
    why: String,
}

impl NoStore {
    /// `why`: in one sentence, with what to do.
    pub fn new(why: impl Into<String>) -> NoStore {
        NoStore { why: why.into() }
    }

    fn refuse<T: Send + 'static>(&self) -> BoxFuture<'_, Result<T, StoreError>> {
        let error = StoreError::not_applied(StoreErrorKind::Command, self.why.as_str());
        Box::pin(async { Err(error) })
    }
}

impl Store for NoStore {
    fn prepare(&self) -> BoxFuture<'_, Result<PreparedStore, PrepareError>> {
        Box::pin(async {
            Err(PrepareError {
                detail: self.why.clone(),
                end: PrepareErrorEnd::Operator,
            })
        })
    }

    fn raise_high_water(&self, _: BucketStart) -> BoxFuture<'_, Result<BucketStart, StoreError>> {
        self.refuse()
    }

    fn write<'a>(
        &'a self,
        _: &'a [PageWrite],
    ) -> BoxFuture<'a, Result<Vec<PageWriteResult>, StoreError>> {
        self.refuse()
    }

    fn merge_catalog<'a>(
        &'a self,
        _: &'a [&'a CatalogUpdate],
    ) -> BoxFuture<'a, Result<u64, StoreError>> {
        self.refuse()
    }

    fn find_catalog<'a>(
        &'a self,
        _: &'a CatalogQuery,
    ) -> BoxFuture<'a, Result<Vec<CatalogEntry>, StoreError>> {
        self.refuse()
    }

    fn load<'a>(
        &'a self,
        _: &'a [LoadRequest],
        _: Option<Duration>,
    ) -> BoxFuture<'a, Result<Vec<LoadResult>, StoreError>> {
        self.refuse()
    }

    fn latest<'a>(
        &'a self,
        _: &'a [LatestUpdate],
    ) -> BoxFuture<'a, Result<Vec<LatestWriteResult>, StoreError>> {
        self.refuse()
    }

    fn write_dead_letters<'a>(
        &'a self,
        _: &'a [DeadLetter],
    ) -> BoxFuture<'a, Result<Vec<DeadLetterWritten>, StoreError>> {
        self.refuse()
    }

    fn pages<'a>(&'a self, _: &'a PageQuery) -> BoxFuture<'a, Result<PageResults, StoreError>> {
        self.refuse()
    }

    fn measurements<'a>(
        &'a self,
        _: &'a MeasurementQuery,
    ) -> BoxFuture<'a, Result<MeasurementResults, StoreError>> {
        self.refuse()
    }

    fn summaries<'a>(
        &'a self,
        _: &'a SummaryQuery,
    ) -> BoxFuture<'a, Result<SummaryResults, StoreError>> {
        self.refuse()
    }

    fn edges<'a>(&'a self, _: &'a EdgeQuery) -> BoxFuture<'a, Result<Edges, StoreError>> {
        self.refuse()
    }

    fn sensors<'a>(&'a self, _: &'a SensorQuery) -> BoxFuture<'a, Result<Vec<String>, StoreError>> {
        self.refuse()
    }

    fn newest<'a>(
        &'a self,
        _: &'a [SensorId],
    ) -> BoxFuture<'a, Result<Vec<StoredSensor>, StoreError>> {
        self.refuse()
    }

    fn find_dead_letters<'a>(
        &'a self,
        _: &'a DeadLetterQuery,
    ) -> BoxFuture<'a, Result<Vec<StoredDeadLetter>, StoreError>> {
        self.refuse()
    }

    fn ping(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.refuse()
    }

    fn storage_mode(&self) -> StorageMode {
        StorageMode::Bucket
    }
}
