//! Replay of dead letters: decoded again with today's settings, stored, and only then removed.
//!
//! Why a second instance, with its own shards writing directly to the store, and not the running
//! service: a dead letter has a topic, which an HTTP request does not have; it must not be
//! journaled twice; and replay works while the service is stopped. Two instances may write the same
//! sensor anyway: every write is conditional on the version of its page, so they detect each other
//! and load again.
//!
//! Life of a dead letter: read from the collection, decoded ([`ingest::redecode`]),
//! submitted as a separate ingest batch, stored (majority) and acknowledged, removed. After a crash
//! in between the dead letter remains, and the next replay does the same again: its readings are
//! compared with the stored ones, like those of the journal's replay, and are found. That holds for
//! receipt-time readings too, since they get the receipt time of the dead letter each time. A dead
//! letter stays if anything of it is still rejected, or if it yields nothing at all: the mapping
//! may still be wrong.
//!
//! Readings that the store refuses again are acknowledged, too: the shard keeps them as a new dead
//! letter, which takes the place of the replayed one. So after each batch the new ones are read,
//! and whatever has readings in them is not counted as replayed.
//!
//! In time-series mode a measurement has no version that could refuse it. The good readings of a
//! message stay in the service's memory for up to `flush.max_age_busy`, while the dead letter for
//! its bad ones is stored already. So replay waits until the newest dead letter of a sender is
//! twice as old. Those of the store hold what left the service's memory, so they need no wait.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::app::{Service, StartError};
use crate::shutdown::ExitReason;
use config::Config;
use ingest::mqtt;
use ingest::mqtt::SetupError;
use ingest::redecode::{Redecoded, Redecoder};
use journal::admission::{Admission, AdmissionError, IngestBatch};
use model::ack::{Ack, AckOutcome, AckWaiter};
use model::{Clock, OWN_SOURCE, ReadingBatch, StorageMode, stable_hash};
use store::dead_letter_filter::DeadLetterFilter;
use store::maintain::MaintainError;
use store::mongo::{DeadLetterDocument, DeadLetterId, MongoStore};
use store::{Store, StoreError};

/// The target of the log events of a replay, for a log filter.
pub(crate) const LOG_TARGET: &str = module_path!();
/// Dead letters processed together, and bytes after which no more are added.
const DEAD_LETTERS_MAX: usize = 1000;
const BYTES_MAX: usize = 8 << 20;
/// How often the store is asked whether it answers, and after how long without an answer the replay
/// ends. Longer than an election.
const ASK_EVERY: Duration = Duration::from_secs(5);
const AWAY_AFTER: Duration = Duration::from_secs(30);

/// Why a replay ended early. The readings of removed dead letters are stored, and the next replay
/// continues.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The settings of a subscription cannot be used.
    #[error(transparent)]
    Settings(#[from] SetupError),
    /// The store failed to read or remove dead letters.
    #[error(transparent)]
    DeadLetters(#[from] MaintainError),
    /// The collections cannot be prepared.
    #[error("store preparation failed: {0}")]
    Prepare(String),
    /// The instance cannot be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The instance accepts no more readings.
    #[error(transparent)]
    Admission(#[from] AdmissionError),
    /// The instance has failed.
    #[error("{0}")]
    Broken(String),
    /// The store has not answered for [`AWAY_AFTER`].
    #[error(
        "MongoDB has not answered for {seconds} s: {error}; what was not replayed is kept, run the \
         replay again"
    )]
    Away {
        /// Of [`AWAY_AFTER`].
        seconds: u64,
        /// The last answer's error.
        error: StoreError,
    },
}

/// Counts of a replay, in dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Replayed {
    /// Dead letters that were processed.
    pub dead_letters: u64,
    /// Decoded and stored completely, then removed.
    pub replayed: u64,
    /// Decoded in part: their readings are stored, and they are kept for the rest.
    pub in_part: u64,
    /// Rejected again.
    pub rejected: u64,
    /// Without a reading under the current settings, which may be a wrong mapping; kept.
    pub empty: u64,
    /// Decoded, but not stored in this run.
    pub failed: u64,
    /// Decoded, but the store refused readings of it again: they are in a new dead letter.
    pub refused: u64,
    /// Readings in all of them, including those that were stored before.
    pub readings: u64,
}

impl Replayed {
    /// Whether every processed dead letter was replayed.
    pub fn is_complete(&self) -> bool {
        self.replayed == self.dead_letters
    }
}

impl std::fmt::Display for Replayed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Replayed {
            dead_letters,
            replayed,
            in_part,
            rejected,
            empty,
            failed,
            refused,
            readings,
        } = self;
        let not_stored = failed + refused;
        write!(
            f,
            "{dead_letters} dead letters: {replayed} replayed, {in_part} in part, {rejected} still \
             rejected, {empty} without a reading, {not_stored} not stored; {readings} readings"
        )
    }
}

/// Replays the dead letters that match the filter and were received before now, oldest first. Calls
/// `on_kept` for each dead letter that stays, with reason and detail.
///
/// # Errors
/// See [`ReplayError`].
pub async fn replay(
    config: Config,
    store: MongoStore,
    filter: &DeadLetterFilter,
    clock: Arc<dyn Clock>,
    mut on_kept: impl FnMut(&DeadLetterDocument, &str, &str) + Send,
) -> Result<Replayed, ReplayError> {
    let mut reader = Redecoder::new(&config)?;
    for (i, broker) in config.mqtt.iter().enumerate() {
        // Without the births, the aliases stay unknown and their messages stay dead letters.
        if let Ok(Some(births)) = mqtt::read_births(&mqtt::births_path(&config.journal.dir, broker))
        {
            reader.know_births(i, &births);
        }
    }
    // Prepared here first, so that an unavailable store is an error and not an endless wait.
    store
        .prepare()
        .await
        .map_err(|e| ReplayError::Prepare(e.detail))?;
    // Newer ones are left to the next replay: those that this replay itself creates would never
    // end.
    let now_ms = clock.now().wall_ms;
    let until_ms = filter.until_ms.map_or(now_ms, |until| until.min(now_ms));
    let filter = DeadLetterFilter {
        until_ms: Some(until_ms),
        ..filter.clone()
    };
    wait_until_stored(&config, &store, &filter, now_ms).await?;
    let (service, admission) =
        Service::start_fed(config, Arc::new(store.clone()), clock.clone()).await?;
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let service = tokio::spawn(service.run_until(async {
        let _ = stopped.await;
        "replayed"
    }));
    let mut replay = Replay {
        store: &store,
        clock: &*clock,
        admission: &admission,
        reader,
        sum: Replayed::default(),
        on_kept: &mut on_kept,
    };
    // The instance, like a service, would repeat its writes for ever.
    let done = tokio::select! {
        done = replay.all(&filter) => done,
        error = until_away(&store) => Err(ReplayError::Away {
            seconds: AWAY_AFTER.as_secs(),
            error,
        }),
    };
    let done = done.map(|()| replay.sum);
    drop(admission);
    let _ = stop.send(());
    match (service.await, done) {
        (Ok(ExitReason::Broken(why)), _) => Err(ReplayError::Broken(why)),
        (Err(panic), _) => Err(ReplayError::Broken(panic.to_string())),
        (_, done) => done,
    }
}

/// Returns when the store has not answered for [`AWAY_AFTER`].
async fn until_away(store: &MongoStore) -> StoreError {
    let mut answered_at = Instant::now();
    loop {
        tokio::time::sleep(ASK_EVERY).await;
        match store.ping().await {
            Ok(()) => answered_at = Instant::now(),
            Err(error) if answered_at.elapsed() >= AWAY_AFTER => return error,
            Err(_) => {}
        }
    }
}

/// Waits until a running service has stored the good readings of the messages with the newest dead
/// letters.
async fn wait_until_stored(
    config: &Config,
    store: &MongoStore,
    filter: &DeadLetterFilter,
    now_ms: i64,
) -> Result<(), ReplayError> {
    if store.storage_mode() != StorageMode::TimeSeries {
        return Ok(());
    }
    let newest_ms = store.dead_letters().newest_of_senders(filter).await?;
    let stored_within_ms =
        i64::try_from((config.flush.longest_age() + config.flush.max_age).as_millis())
            .unwrap_or(i64::MAX);
    let left_ms = newest_ms.map_or(0, |newest_ms| newest_ms + stored_within_ms - now_ms);
    if left_ms > 0 {
        tracing::info!(
            left_ms,
            "waiting until a running service has stored readings of the newest dead letters"
        );
        tokio::time::sleep(Duration::from_millis(left_ms.unsigned_abs())).await;
    }
    Ok(())
}

/// A dead letter whose readings were submitted.
struct Submitted<'a> {
    dead_letter: &'a DeadLetterDocument,
    readings: Vec<ReadingId>,
    rejected: u64,
}

/// The hash of the sensor, and the time in milliseconds since 1970. A refused statement has all
/// readings of its bucket with that time, so their values do not matter.
type ReadingId = (u64, i64);

struct Replay<'a, F> {
    store: &'a MongoStore,
    clock: &'a dyn Clock,
    admission: &'a Admission,
    reader: Redecoder,
    sum: Replayed,
    on_kept: &'a mut F,
}

impl<F: FnMut(&DeadLetterDocument, &str, &str) + Send> Replay<'_, F> {
    async fn all(&mut self, filter: &DeadLetterFilter) -> Result<(), ReplayError> {
        let mut last: Option<DeadLetterDocument> = None;
        loop {
            let dead_letters = self
                .store
                .dead_letters()
                .find_after(filter, last.as_ref(), DEAD_LETTERS_MAX, BYTES_MAX)
                .await?;
            if dead_letters.is_empty() {
                return Ok(());
            }
            let since_ms = self.clock.now().wall_ms;
            let submitted = self.submit(&dead_letters).await?;
            let gone = self.settle(submitted, since_ms).await?;
            if !gone.is_empty() {
                self.store.dead_letters().remove(&gone).await?;
            }
            last = dead_letters.into_iter().next_back();
        }
    }

    /// Submits the readings of these dead letters.
    async fn submit<'l>(
        &mut self,
        dead_letters: &'l [DeadLetterDocument],
    ) -> Result<Vec<(Submitted<'l>, AckWaiter)>, ReplayError> {
        let mut submitted = vec![];
        for dead_letter in dead_letters {
            self.sum.dead_letters += 1;
            let Redecoded {
                batch,
                rejected,
                why,
            } = self.reader.redecode(&dead_letter.dead_letter);
            match &why {
                Some((reason, detail)) => (self.on_kept)(dead_letter, reason, detail),
                None if batch.is_empty() => (self.on_kept)(
                    dead_letter,
                    "no_readings",
                    "decodes to no readings with today's settings",
                ),
                None => {}
            }
            if batch.is_empty() {
                let count = if rejected > 0 {
                    &mut self.sum.rejected
                } else {
                    &mut self.sum.empty
                };
                *count += 1;
                continue;
            }
            let readings = ids_of(&batch);
            let (ack, wait) = Ack::channel();
            self.admission
                .submit(IngestBatch::new(batch, vec![], ack))
                .await?;
            let one = Submitted {
                dead_letter,
                readings,
                rejected,
            };
            submitted.push((one, wait));
        }
        Ok(submitted)
    }

    /// Waits for the acknowledgements. Returns the dead letters that are done: all of their readings
    /// are stored, or in a new dead letter.
    async fn settle(
        &mut self,
        submitted: Vec<(Submitted<'_>, AckWaiter)>,
        since_ms: i64,
    ) -> Result<Vec<DeadLetterId>, ReplayError> {
        let mut safe = vec![];
        for (one, wait) in submitted {
            if wait.outcome().await == AckOutcome::Delivered {
                safe.push(one);
                continue;
            }
            self.sum.failed += 1;
            (self.on_kept)(
                one.dead_letter,
                "not_stored",
                "its readings could not be stored; run the replay again",
            );
        }
        let all = safe.iter().flat_map(|one| &one.readings).copied().collect();
        let refused = self.refused(&all, since_ms).await?;
        let mut gone = vec![];
        for one in safe {
            if one.rejected == 0 {
                gone.push(one.dead_letter.id.clone());
            }
            let count = if one.readings.iter().any(|id| refused.contains(id)) {
                &mut self.sum.refused
            } else {
                self.sum.readings += one.readings.len() as u64;
                match one.rejected {
                    0 => &mut self.sum.replayed,
                    _ => &mut self.sum.in_part,
                }
            };
            *count += 1;
        }
        Ok(gone)
    }

    /// Those of these readings that the store has refused since then. Reports the dead letters that
    /// have them now.
    async fn refused(
        &mut self,
        readings: &HashSet<ReadingId>,
        since_ms: i64,
    ) -> Result<HashSet<ReadingId>, ReplayError> {
        let filter = DeadLetterFilter {
            sources: vec![OWN_SOURCE.to_owned()],
            since_ms: Some(since_ms),
            ..DeadLetterFilter::default()
        };
        let mut refused = HashSet::new();
        let mut last: Option<DeadLetterDocument> = None;
        while !readings.is_empty() {
            let new = self
                .store
                .dead_letters()
                .find_after(&filter, last.as_ref(), DEAD_LETTERS_MAX, BYTES_MAX)
                .await?;
            for document in &new {
                let dead_letter = &document.dead_letter;
                let mut ids = ids_of_lines(&dead_letter.payload);
                ids.retain(|id| readings.contains(id));
                if !ids.is_empty() {
                    (self.on_kept)(document, &dead_letter.reason, &dead_letter.detail);
                }
                refused.extend(ids);
            }
            if new.is_empty() {
                break;
            }
            last = new.into_iter().next_back();
        }
        Ok(refused)
    }
}

fn ids_of(batch: &ReadingBatch) -> Vec<ReadingId> {
    let places = batch.places().iter();
    places
        .filter_map(|place| Some((place.hash, batch.at(place.offset)?.ts_ms)))
        .collect()
}

/// The readings of a dead letter of the service itself. Not with [`Redecoder`]: they are new, and
/// the limits for times may reject them from now on.
fn ids_of_lines(payload: &[u8]) -> Vec<ReadingId> {
    let id = |line: &[u8]| {
        let line: serde_json::Value = serde_json::from_slice(line).ok()?;
        let sensor_id = line["sensor_id"].as_str()?;
        Some((stable_hash(sensor_id), line["ts"].as_i64()?))
    };
    payload
        .split(|byte| *byte == b'\n')
        .filter_map(id)
        .collect()
}
