//! The stage that writes `sensor_latest`, with a memory store and tokio's clock: acknowledgements,
//! outages, refusals.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use model::ack::Ack;
use model::{
    BucketStart, CatalogUpdate, DeadLetter, LatestUpdate, PageWrite, Reading, ReadingBatch,
    SensorId, Span, StorageMode, SystemClock, Value,
};
use pipeline::flush::Flusher;
use pipeline::flush::backoff::Backoff;
use pipeline::latest::{LatestGauges, LatestHandle, LatestTask};
use pipeline::route::row_refs;
use store::catalog::{CatalogEntry, CatalogQuery};
use store::reading::{
    DeadLetterQuery, EdgeQuery, Edges, MeasurementQuery, MeasurementResults, PageQuery,
    PageResults, SensorQuery, StoredDeadLetter, StoredSensor, SummaryQuery, SummaryResults,
};
use store::{
    Ability, BoxFuture, DeadLetterWritten, LatestWriteResult, LoadRequest, LoadResult,
    PageWriteResult, PrepareError, PreparedStore, Store, StoreError, StoreErrorKind,
};
use testkit::memory_store::{Fault, MemoryStore};

use super::latest::{number, settings};

/// The stage on a memory store, with tokio's clock.
struct Stage {
    store: Arc<MemoryStore>,
    handle: LatestHandle,
    task: tokio::task::JoinHandle<()>,
    flusher: Flusher,
}

fn stage(hold_acks: bool) -> Stage {
    let store = Arc::new(MemoryStore::new());
    let backoff = Backoff {
        min: Duration::from_millis(50),
        max: Duration::from_millis(200),
    };
    let flusher = Flusher::new(store.clone(), backoff, Span::HOUR, Arc::new(|_, _| {}));
    let gauges = Arc::new(LatestGauges::default());
    let clock = Arc::new(SystemClock::new());
    let (handle, task) = LatestTask::new(
        settings(),
        hold_acks,
        flusher.clone(),
        backoff,
        clock,
        gauges,
    );
    Stage {
        store,
        handle,
        task: tokio::spawn(task.run()),
        flusher,
    }
}

impl Stage {
    async fn send(&self, readings: &[Reading], ack: &Ack) {
        let batch = Arc::new(readings.iter().cloned().collect::<ReadingBatch>());
        let row_refs = row_refs(&batch, 1).remove(0);
        self.handle
            .send(batch, row_refs, self.handle.hold(ack))
            .await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_acknowledgement_waits_for_the_document_which_is_written_once_per_interval() {
    let stage = stage(true);
    stage.flusher.open(1);
    let commands = Arc::new(AtomicUsize::new(0));
    let count = commands.clone();
    stage.store.set_script(Box::new(move || {
        count.fetch_add(1, Ordering::Relaxed);
        (Fault::None, Duration::ZERO)
    }));
    let mut waits = vec![];
    for n in 0..100 {
        let (ack, wait) = Ack::channel();
        stage.send(&[number("s", n, n)], &ack).await;
        ack.delivered();
        waits.push(wait);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let written = commands.load(Ordering::Relaxed);
    assert!(
        (9..=11).contains(&written),
        "ten seconds, one sensor, an interval of one second: {written} commands"
    );
    let begun = tokio::time::Instant::now();
    for wait in waits {
        assert_eq!(wait.outcome().await, model::ack::AckOutcome::Delivered);
    }
    assert!(
        begun.elapsed() <= Duration::from_millis(1100),
        "the last one waits no longer than the interval"
    );
    assert_eq!(
        stage.store.pages().latest["s"].values["n"],
        (99, Value::Int(99))
    );
}

#[tokio::test(start_paused = true)]
async fn an_outage_only_delays_and_the_shutdown_writes_everything() {
    let stage = stage(true);
    stage.flusher.open(1);
    let mut fates = [
        Fault::NotApplied,
        Fault::LostBefore,
        Fault::LostAfter,
        Fault::LostHalf,
    ]
    .iter()
    .cycle();
    stage.store.set_script(Box::new(move || {
        (*fates.next().unwrap(), Duration::from_millis(10))
    }));
    let (ack, wait) = Ack::channel();
    for n in 0..50 {
        stage
            .send(
                &[number("a", n, n), number("b", n, -n), number("c", 7, 7)],
                &ack,
            )
            .await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    ack.delivered();
    stage
        .store
        .set_script(Box::new(|| (Fault::None, Duration::ZERO)));
    drop(stage.handle);
    tokio::time::timeout(Duration::from_secs(2), stage.task)
        .await
        .expect("it drains")
        .unwrap();
    assert_eq!(wait.outcome().await, model::ack::AckOutcome::Delivered);
    let pages = stage.store.pages();
    let newest: Vec<_> = pages
        .latest
        .values()
        .map(|d| (d.last_ts_ms, d.recent.len()))
        .collect();
    assert_eq!(newest, [(49, 4), (49, 4), (7, 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_refused_update_is_dropped_and_acknowledged() {
    let stage = stage(true);
    stage.flusher.open(1);
    stage
        .store
        .set_script(Box::new(|| (Fault::Rejected, Duration::ZERO)));
    let (ack, wait) = Ack::channel();
    stage.send(&[number("s", 1, 1)], &ack).await;
    ack.delivered();
    assert_eq!(wait.outcome().await, model::ack::AckOutcome::Delivered);
    drop(stage.handle);
    stage.task.await.unwrap();
    assert!(stage.store.pages().latest.is_empty());
}

/// A collection that another program has replaced by something else answers each command with an
/// error of an unknown code.
#[tokio::test(start_paused = true)]
async fn an_update_that_keeps_failing_is_dropped_eventually() {
    let commands = Arc::new(AtomicUsize::new(0));
    let store = Arc::new(AlwaysFails(commands.clone()));
    let backoff = Backoff {
        min: Duration::from_millis(50),
        max: Duration::from_millis(200),
    };
    let flusher = Flusher::new(
        store,
        backoff,
        Span::HOUR,
        Arc::new(|ability, _| assert_eq!(ability, Ability::UpdateLatest)),
    );
    flusher.open(1);
    let clock = Arc::new(SystemClock::new());
    let (handle, task) = LatestTask::new(settings(), true, flusher, backoff, clock, Arc::default());
    let task = tokio::spawn(task.run());
    let (ack, wait) = Ack::channel();
    let batch: ReadingBatch = [number("s", 1, 1)].into_iter().collect();
    let row_refs = row_refs(&batch, 1).remove(0);
    handle
        .send(Arc::new(batch), row_refs, handle.hold(&ack))
        .await;
    ack.delivered();
    assert_eq!(wait.outcome().await, model::ack::AckOutcome::Delivered);
    assert_eq!(commands.load(Ordering::Relaxed), 10);
    drop(handle);
    task.await.unwrap();
}

struct AlwaysFails(Arc<AtomicUsize>);

impl Store for AlwaysFails {
    fn latest<'a>(
        &'a self,
        _: &'a [LatestUpdate],
    ) -> BoxFuture<'a, Result<Vec<LatestWriteResult>, StoreError>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Box::pin(async {
            Err(StoreError::Unknown {
                kind: StoreErrorKind::Command,
                detail: "CommandNotSupportedOnView".into(),
            })
        })
    }

    fn prepare(&self) -> BoxFuture<'_, Result<PreparedStore, PrepareError>> {
        unreachable!()
    }

    fn write<'a>(
        &'a self,
        _: &'a [PageWrite],
    ) -> BoxFuture<'a, Result<Vec<PageWriteResult>, StoreError>> {
        unreachable!()
    }

    fn merge_catalog<'a>(
        &'a self,
        _: &'a [&'a CatalogUpdate],
    ) -> BoxFuture<'a, Result<u64, StoreError>> {
        unreachable!()
    }

    fn find_catalog<'a>(
        &'a self,
        _: &'a CatalogQuery,
    ) -> BoxFuture<'a, Result<Vec<CatalogEntry>, StoreError>> {
        unreachable!()
    }

    fn raise_high_water(&self, _: BucketStart) -> BoxFuture<'_, Result<BucketStart, StoreError>> {
        unreachable!("no pages are written here")
    }

    fn load<'a>(
        &'a self,
        _: &'a [LoadRequest],
        _: Option<Duration>,
    ) -> BoxFuture<'a, Result<Vec<LoadResult>, StoreError>> {
        unreachable!()
    }

    fn write_dead_letters<'a>(
        &'a self,
        _: &'a [DeadLetter],
    ) -> BoxFuture<'a, Result<Vec<DeadLetterWritten>, StoreError>> {
        unreachable!()
    }

    fn pages<'a>(&'a self, _: &'a PageQuery) -> BoxFuture<'a, Result<PageResults, StoreError>> {
        unreachable!()
    }

    fn measurements<'a>(
        &'a self,
        _: &'a MeasurementQuery,
    ) -> BoxFuture<'a, Result<MeasurementResults, StoreError>> {
        unreachable!()
    }

    fn summaries<'a>(
        &'a self,
        _: &'a SummaryQuery,
    ) -> BoxFuture<'a, Result<SummaryResults, StoreError>> {
        unreachable!()
    }

    fn edges<'a>(&'a self, _: &'a EdgeQuery) -> BoxFuture<'a, Result<Edges, StoreError>> {
        unreachable!()
    }

    fn sensors<'a>(&'a self, _: &'a SensorQuery) -> BoxFuture<'a, Result<Vec<String>, StoreError>> {
        unreachable!()
    }

    fn newest<'a>(
        &'a self,
        _: &'a [SensorId],
    ) -> BoxFuture<'a, Result<Vec<StoredSensor>, StoreError>> {
        unreachable!()
    }

    fn find_dead_letters<'a>(
        &'a self,
        _: &'a DeadLetterQuery,
    ) -> BoxFuture<'a, Result<Vec<StoredDeadLetter>, StoreError>> {
        unreachable!()
    }

    fn ping(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        unreachable!()
    }

    fn storage_mode(&self) -> StorageMode {
        StorageMode::Bucket
    }

    fn mode(&self) -> &'static str {
        "bucket"
    }
}

#[tokio::test(start_paused = true)]
async fn a_sender_that_waits_for_the_store_does_not_wait_for_the_latest_state() {
    let stage = stage(false);
    // The store is never available.
    let (ack, wait) = Ack::channel();
    stage.send(&[number("s", 1, 1)], &ack).await;
    ack.delivered();
    assert_eq!(wait.outcome().await, model::ack::AckOutcome::Delivered);
}
