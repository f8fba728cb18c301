//! The real tasks (router, shards, flush) on the memory store, in paused time: answers are lost
//! after a write; commands fail, are slow, or are half applied, according to the seed.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use journal::admission::{AdmissionControl, IngestBatch, admission_channel};
use model::ack::{Ack, AckOutcome};
use model::{Clock, Now, Reading, ReadingBatch, Span, StorageMode, Value};
use pipeline::accumulate::PageLimits;
use pipeline::accumulate::state::ShardSettings;
use pipeline::accumulate::{ShardGauges, ShardTask};
use pipeline::dead_letters::DeadLetters;
use pipeline::flush::Flusher;
use pipeline::flush::backoff::Backoff;
use pipeline::flush::due::DuePolicy;
use pipeline::route::Router;
use pipeline::route::oldest::Oldest;
use testkit::memory_store::{Fault, MemoryStore, Script};

use super::{Identities, again, identity};

const START_MS: i64 = 1_709_287_200_000;

/// A wall clock that follows tokio's paused time.
struct PausedClock(tokio::time::Instant);

impl Clock for PausedClock {
    fn now(&self) -> Now {
        let ms = self.0.elapsed().as_millis() as u64;
        Now {
            wall_ms: START_MS + ms as i64,
            mono_ms: ms,
        }
    }
}

fn script(seed: u64, faults: bool) -> Script {
    let mut rng = fastrand::Rng::with_seed(seed);
    Box::new(move || {
        let delay = Duration::from_millis(if rng.u8(0..8) == 0 {
            rng.u64(0..3000)
        } else {
            rng.u64(0..5)
        });
        let fault = match rng.u8(0..10) {
            0 | 1 if faults => Fault::LostAfter,
            2 if faults => Fault::LostBefore,
            3 if faults => Fault::LostHalf,
            4 if faults => Fault::NotApplied,
            _ => Fault::None,
        };
        (fault, delay)
    })
}

fn readings(rng: &mut fastrand::Rng, wall_ms: i64) -> Vec<Reading> {
    let one = |rng: &mut fastrand::Rng| {
        let late = if rng.u8(0..6) == 0 {
            rng.i64(0..3 * 3_600_000)
        } else {
            0
        };
        Reading {
            sensor_id: format!("s{}", rng.u8(0..8)),
            ts_ms: wall_ms - late,
            receipt_time: false,
            tags: BTreeMap::new(),
            values: BTreeMap::from([("n".to_owned(), Value::Int(rng.i64(0..4)))]),
        }
    };
    (0..rng.usize(1..30)).map(|_| one(rng)).collect()
}

/// The readings sent, and whether they were acknowledged.
type Sent = Arc<Mutex<Identities<bool>>>;

async fn history(seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let storage_mode = if rng.bool() {
        StorageMode::TimeSeries
    } else {
        StorageMode::Bucket
    };
    let page = PageLimits {
        readings: rng.u32(1..12),
        bytes: 1 << 20,
        summary_bytes: 1 << 20,
    };
    let store =
        Arc::new(MemoryStore::with_script(script(seed ^ 1, true)).with_storage_mode(storage_mode));
    let clock: Arc<dyn Clock> = Arc::new(PausedClock(tokio::time::Instant::now()));
    let backoff = Backoff {
        min: Duration::from_millis(10),
        max: Duration::from_secs(1),
    };
    let flusher = Flusher::new(store.clone(), backoff, Span::HOUR, Arc::new(|_, _| {}));
    flusher.open(3);
    let settings = ShardSettings {
        span: Span::HOUR,
        page,
        due: if rng.bool() {
            DuePolicy::Linger(5)
        } else {
            DuePolicy::Age(2000)
        },
        command_bytes_max: 4 << 20,
        command_statements_max: rng.usize(1..20),
        bytes_max: 1 << 20,
        sensors_max: 100,
        dedup_keys_max: rng.usize(0..4000),
        quarantine_after_ms: 600_000,
        arrival_step_ms: 60_000,
        backoff,
    };
    let (dead_handle, dead) = DeadLetters::new(flusher.clone(), 4, 1 << 30);
    let mut tasks = vec![tokio::spawn(dead)];
    let mut shards = vec![];
    for _ in 0..rng.usize(1..4) {
        let (handle, task) = ShardTask::new(
            settings.clone(),
            2,
            flusher.clone(),
            dead_handle.clone(),
            clock.clone(),
            Arc::new(ShardGauges::default()),
        );
        shards.push(handle);
        tasks.push(tokio::spawn(task.run()));
    }
    let (admission, ingest_batches) = admission_channel(8, 1 << 20, AdmissionControl::default());
    let router = Router::new(shards, dead_handle);
    let taken = clock.clone();
    tasks.push(tokio::spawn(async move {
        router
            .take(ingest_batches, Arc::new(Oldest::default()), taken)
            .await
            .expect("the shards run");
    }));
    let sent: Sent = Arc::default();
    for _ in 0..rng.usize(5..40) {
        let batch = readings(&mut rng, clock.now().wall_ms);
        submit(&admission, &store, &sent, &batch, &mut tasks).await;
        // As by a gateway that did not get the answer.
        if rng.u8(0..4) == 0 {
            let batch: Vec<Reading> = batch.iter().map(|r| again(&mut rng, r)).collect();
            submit(&admission, &store, &sent, &batch, &mut tasks).await;
        }
        tokio::time::sleep(Duration::from_millis(rng.u64(0..1500))).await;
    }
    drop(admission);
    store.set_script(script(seed ^ 2, false));
    for task in tasks {
        tokio::time::timeout(Duration::from_secs(600), task)
            .await
            .expect("finishes")
            .expect("no panic");
    }
    check(seed, &store, &sent, page.readings);
}

async fn submit(
    admission: &journal::admission::Admission,
    store: &Arc<MemoryStore>,
    sent: &Sent,
    readings: &[Reading],
    tasks: &mut Vec<tokio::task::JoinHandle<()>>,
) {
    let (ack, wait) = Ack::channel();
    let batch: ReadingBatch = readings.iter().cloned().collect();
    for reading in readings {
        sent.lock().unwrap().entry(identity(reading)).or_default();
    }
    admission
        .submit(IngestBatch::new(batch, vec![], ack))
        .await
        .expect("admission is open");
    let readings = readings.to_vec();
    let sent = sent.clone();
    let store = store.clone();
    tasks.push(tokio::spawn(async move {
        assert_eq!(wait.outcome().await, AckOutcome::Delivered);
        for reading in readings {
            let stored = store
                .pages()
                .readings()
                .any(|r| identity(r) == identity(&reading));
            assert!(stored, "acknowledged before it was stored: {reading:?}");
            sent.lock().unwrap().insert(identity(&reading), true);
        }
    }));
}

fn check(seed: u64, store: &MemoryStore, sent: &Sent, max_readings: u32) {
    store
        .pages()
        .check_catalog()
        .unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    let pages = store.pages();
    pages
        .check(max_readings)
        .unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    let mut stored: Identities<u32> = Identities::default();
    for reading in pages.readings() {
        *stored.entry(identity(reading)).or_default() += 1;
    }
    for (reading, acked) in sent.lock().unwrap().iter() {
        assert!(*acked, "seed {seed}: never acknowledged: {reading:?}");
        assert_eq!(stored.remove(reading), Some(1), "seed {seed}: {reading:?}");
    }
    assert!(stored.is_empty(), "seed {seed}: never sent: {stored:?}");
}

/// Runs the history of a seed.
pub(crate) fn run(seed: u64) {
    // The jitter of the flush stage's waits.
    fastrand::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(history(seed));
}
