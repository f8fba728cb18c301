//! Replay of dead letters: read again with the settings of today, stored, and only then removed.
//!
//! Why as a second instance, with shards of its own straight on the store, and not through the running service: a dead letter
//! knows its topic, which no HTTP request has, it must not be journaled twice, and it works while the service is stopped.
//! Two instances on one sensor are allowed anyway: every write is gated by the version of its page, so the two find out
//! about each other and load again.
//!
//! The life of a dead letter: read from the collection, decoded ([`crate::ingest::redecode`]), handed over as an ingest batch of its
//! own, stored (majority) and acknowledged, removed. A crash in between leaves the dead letter, and the next replay does the
//! same again: its readings are compared with the stored ones like those of the journal's replay, so they are found there.
//! That holds for readings without a time of their own as well, since they get the dead letter's time of receipt each time.
//! A dead letter of which anything is still rejected stays; so does one that gives nothing at all, since that may be a mapping
//! which is wrong in another way.
//!
//! In time-series mode a measurement has no version that could refuse it (DESIGN §2). The good readings of a message
//! stay in the service's memory for up to `flush.max_age` while its dead letter for the bad ones is there already, so what
//! came just now is waited for twice as long.

use std::sync::Arc;
use std::time::Duration;

use crate::ack::{Ack, AckOutcome};
use crate::admission::{Admission, AdmissionError, IngestBatch};
use crate::app::{Service, StartError};
use crate::config::Config;
use crate::ingest::mqtt::SetupError;
use crate::ingest::redecode::{Redecoded, Redecoder};
use crate::maintain::MaintainError;
use crate::maintain::dead_letters::{DeadLetterFilter, Replayed};
use crate::model::{Clock, StorageMode};
use crate::shutdown::ExitReason;
use crate::store::Store;
use crate::store::mongo::{DeadLetterDocument, DeadLetterId, MongoStore};

/// Dead letters that are worked on at once, and bytes of them after which no more are added.
const DEAD_LETTERS_MAX: usize = 1000;
const BYTES_MAX: usize = 8 << 20;

/// Why a replay ended early; what it has removed is stored, and the next one goes on.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// A subscription cannot be used.
    #[error(transparent)]
    Settings(#[from] SetupError),
    /// The store failed at reading or removing dead_letters.
    #[error(transparent)]
    DeadLetters(#[from] MaintainError),
    /// The store cannot be used.
    #[error("the store cannot be prepared: {0}")]
    Prepare(String),
    /// The instance cannot be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The instance has ended by itself.
    #[error(transparent)]
    Admission(#[from] AdmissionError),
    /// The instance has failed.
    #[error("{0}")]
    Broken(String),
}

/// Replays the dead letters that pass the filter and were received before now, oldest first. `tell` is called with each
/// dead letter that stays, and why.
///
/// # Errors
/// It ended early.
pub async fn replay(
    config: Config,
    store: MongoStore,
    filter: &DeadLetterFilter,
    clock: Arc<dyn Clock>,
    mut tell: impl FnMut(&DeadLetterDocument, &str, &str) + Send,
) -> Result<Replayed, ReplayError> {
    let mut reader = Redecoder::new(&config)?;
    // Asked once here, so that a store that is away is an error and not a command that waits for ever.
    store.prepare().await.map_err(|e| ReplayError::Prepare(e.detail))?;
    // What comes from now on is of the next replay: dead letters that the replay itself makes would never end.
    let now_ms = clock.now().wall_ms;
    let until_ms = filter.until_ms.map_or(now_ms, |until| until.min(now_ms));
    let filter = DeadLetterFilter { until_ms: Some(until_ms), ..filter.clone() };
    settle(&config, &store, &filter, now_ms).await?;
    let (service, admission) = Service::start_fed(config, Arc::new(store.clone()), clock).await?;
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let service = tokio::spawn(service.run_until(async {
        let _ = stopped.await;
        "replayed"
    }));
    let done = all(&store, &filter, &mut reader, &admission, &mut tell).await;
    drop(admission);
    let _ = stop.send(());
    match (service.await, done) {
        (Ok(ExitReason::Broken(why)), _) => Err(ReplayError::Broken(why)),
        (Err(panic), _) => Err(ReplayError::Broken(panic.to_string())),
        (_, done) => done,
    }
}

/// Waits until the service, if one runs, has stored the good readings of the messages whose dead letters are the newest.
async fn settle(
    config: &Config,
    store: &MongoStore,
    filter: &DeadLetterFilter,
    now_ms: i64,
) -> Result<(), ReplayError> {
    if store.storage_mode() != StorageMode::TimeSeries {
        return Ok(());
    }
    let newest = store.newest_dead_letters(filter, 1, 1).await?;
    let settled_ms = i64::try_from(config.flush.max_age.as_millis()).unwrap_or(i64::MAX).saturating_mul(2);
    let left_ms = newest.first().map_or(0, |dead_letter| dead_letter.dead_letter.received_at_ms + settled_ms - now_ms);
    if left_ms > 0 {
        tracing::info!(left_ms, "waiting until a running service has stored what came with the newest letters");
        tokio::time::sleep(Duration::from_millis(left_ms.unsigned_abs())).await;
    }
    Ok(())
}

async fn all(
    store: &MongoStore,
    filter: &DeadLetterFilter,
    reader: &mut Redecoder,
    admission: &Admission,
    tell: &mut (impl FnMut(&DeadLetterDocument, &str, &str) + Send),
) -> Result<Replayed, ReplayError> {
    let mut sum = Replayed::default();
    let mut last: Option<DeadLetterDocument> = None;
    loop {
        let dead_letters = store.dead_letters_after(filter, last.as_ref(), DEAD_LETTERS_MAX, BYTES_MAX).await?;
        if dead_letters.is_empty() {
            return Ok(sum);
        }
        let gone = shard_batch(&dead_letters, reader, admission, &mut sum, tell).await?;
        if !gone.is_empty() {
            store.remove_dead_letters(&gone).await?;
        }
        last = dead_letters.into_iter().next_back();
    }
}

/// Takes in what these dead letters give, and returns those that are done with, all of whose readings are stored.
async fn shard_batch(
    dead_letters: &[DeadLetterDocument],
    reader: &mut Redecoder,
    admission: &Admission,
    sum: &mut Replayed,
    tell: &mut (impl FnMut(&DeadLetterDocument, &str, &str) + Send),
) -> Result<Vec<DeadLetterId>, ReplayError> {
    let mut waits = vec![];
    for dead_letter in dead_letters {
        sum.dead_letters += 1;
        let Redecoded { batch, rejected, why } = reader.read(&dead_letter.dead_letter);
        match &why {
            Some((reason, detail)) => tell(dead_letter, reason, detail),
            None if batch.is_empty() => {
                tell(dead_letter, "no_readings", "by the settings of today it holds no reading")
            }
            None => {}
        }
        if batch.is_empty() {
            let count = if rejected > 0 { &mut sum.rejected } else { &mut sum.empty };
            *count += 1;
            continue;
        }
        let (ack, wait) = Ack::channel();
        let readings = batch.len() as u64;
        admission.submit(IngestBatch::new(batch, vec![], ack)).await?;
        waits.push((dead_letter, readings, rejected, wait));
    }
    let mut gone = vec![];
    for (dead_letter, readings, rejected, wait) in waits {
        if wait.outcome().await != AckOutcome::Delivered {
            sum.failed += 1;
            tell(dead_letter, "not_stored", "its readings could not be stored now");
            continue;
        }
        sum.readings += readings;
        if rejected > 0 {
            sum.in_part += 1;
        } else {
            sum.replayed += 1;
            gone.push(dead_letter.id.clone());
        }
    }
    Ok(gone)
}
