//! The admission between ingest and the next stage (the journal, or the router if `ack =
//! "stored"`).
//!
//! Ingest submits [`IngestBatch`]es; the owner of the receiving end processes them in order. The
//! admission has two limits: the number of ingest batches (the channel) and their bytes. The byte
//! limit is a semaphore; its permit travels in the ingest batch and is released when the batch is
//! dropped, that is when its readings are journaled or in a shard's budget. The next stage can
//! close the admission temporarily (journal full) or permanently (stopping, broken). Senders check
//! this before they submit anything, so a refused ingest batch is never accepted in part.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::{RequestKey, RequestKeys};
use model::ack::Ack;
use model::batch::BYTES_MAX;
use model::{Checks, DeadLetter, JournalAccount, ReadingBatch, memory};

/// Readings, and dead letters for messages that could not be decoded, that share one
/// acknowledgement.
#[derive(Debug)]
pub struct IngestBatch {
    /// The readings; may be empty if there are dead letters.
    pub batch: ReadingBatch,
    /// Messages to keep as dead letters. Like the readings, they are safe before the
    /// acknowledgement is delivered.
    pub dead: Vec<DeadLetter>,
    /// Delivered when readings and dead letters are safe.
    pub ack: Ack,
    /// The senders with an account, each with the bytes of its messages. The journal charges them
    /// its own bytes in this proportion.
    pub senders: Vec<(JournalAccount, u64)>,
    /// The key of the request, which becomes durable together with it.
    pub key: Option<RequestKey>,
    /// Parts of the queue: of the admission's, and of the sender's own.
    permits: [Option<OwnedSemaphorePermit>; 2],
}

impl IngestBatch {
    /// An ingest batch without a permit; [`Admission::submit`] adds it.
    pub fn new(batch: ReadingBatch, dead: Vec<DeadLetter>, ack: Ack) -> IngestBatch {
        IngestBatch {
            batch,
            dead,
            ack,
            senders: vec![],
            key: None,
            permits: [None, None],
        }
    }

    /// The same from one sender. `permit`: its own part of the queue, returned with that of the
    /// admission.
    #[must_use]
    pub fn sent_by(
        mut self,
        account: &JournalAccount,
        permit: Option<OwnedSemaphorePermit>,
    ) -> IngestBatch {
        self.senders = vec![(account.clone(), self.memory_bytes() as u64)];
        self.permits[1] = permit;
        self
    }

    /// Takes its parts of the queue, which are returned when they are dropped.
    pub fn take_permits(&mut self) -> impl Sized + Send + use<> {
        std::mem::take(&mut self.permits)
    }

    /// Bytes that count against the byte limit of the admission.
    pub fn memory_bytes(&self) -> usize {
        self.batch.memory_bytes() + self.dead.iter().map(dead_letter_bytes).sum::<usize>()
    }

    /// At least the bytes that the journal writes for it, without the heads of its frames.
    pub fn encoded_bytes(&self) -> usize {
        self.batch.encoded_bytes() + self.dead.iter().map(dead_letter_bytes).sum::<usize>()
    }

    /// Releases the permit immediately and returns the contents.
    pub fn into_parts(self) -> (ReadingBatch, Vec<DeadLetter>, Ack) {
        (self.batch, self.dead, self.ack)
    }
}

fn dead_letter_bytes(dead_letter: &DeadLetter) -> usize {
    let DeadLetter {
        received_at_ms: _,
        source,
        topic,
        payload,
        reason,
        detail,
    } = dead_letter;
    let texts = [
        source.capacity(),
        topic.capacity(),
        payload.capacity(),
        reason.capacity(),
        detail.capacity(),
    ];
    size_of::<DeadLetter>() + texts.into_iter().map(memory::block).sum::<usize>()
}

/// Why the admission is closed. Nothing of the ingest batch was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AdmissionError {
    /// The limits of the admission are reached: try again in a moment.
    #[error("too many readings are waiting to be stored; try again later")]
    Busy,
    /// The journal has reached `journal.max_bytes` or the disk is full: try again when the store
    /// has caught up.
    #[error("the journal is full; try again later")]
    Full,
    /// The service is shutting down.
    #[error("the service is stopping")]
    Stopping,
    /// A part of the service has failed. It accepts nothing until it is restarted.
    #[error(
        "the service has failed and accepts no readings until it is restarted; its log names the \
         cause"
    )]
    Broken,
}

const OPEN: u8 = 0;
const FULL: u8 = 1;
const STOPPING: u8 = 2;
const BROKEN: u8 = 3;

/// Opens and closes the admission. The worst state wins; only [`AdmissionControl::full`] can be
/// reverted.
#[derive(Debug, Clone, Default)]
pub struct AdmissionControl(Arc<AtomicU8>);

impl AdmissionControl {
    /// Closes the admission while `full`, then opens it again.
    pub fn full(&self, full: bool) {
        let (from, to) = if full { (OPEN, FULL) } else { (FULL, OPEN) };
        // Stopping and broken are final.
        let _ = self
            .0
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Closes the admission permanently: the service is stopping.
    pub fn stop(&self) {
        self.0.fetch_max(STOPPING, Ordering::AcqRel);
    }

    /// Closes the admission permanently: the service has failed.
    pub fn broken(&self) {
        self.0.fetch_max(BROKEN, Ordering::AcqRel);
    }

    /// Checks whether the admission is open.
    ///
    /// # Errors
    /// The reason why the admission is closed.
    pub fn check(&self) -> Result<(), AdmissionError> {
        match self.0.load(Ordering::Acquire) {
            OPEN => Ok(()),
            FULL => Err(AdmissionError::Full),
            STOPPING => Err(AdmissionError::Stopping),
            _ => Err(AdmissionError::Broken),
        }
    }
}

/// Ingest's handle to the next stage.
#[derive(Debug, Clone)]
pub struct Admission {
    tx: mpsc::Sender<IngestBatch>,
    bytes: Arc<Semaphore>,
    bytes_max: u32,
    admission_control: AdmissionControl,
    checks: Option<Checks>,
    readings_bytes_max: usize,
    keys: RequestKeys,
}

/// The receiving end, owned by the journal or the router.
pub type IngestReceiver = mpsc::Receiver<IngestBatch>;

/// An admission for up to `batches_max` waiting ingest batches of `bytes_max` bytes in total. An
/// ingest batch larger than that is admitted when no other waits.
pub fn admission_channel(
    batches_max: usize,
    bytes_max: u32,
    admission_control: AdmissionControl,
) -> (Admission, IngestReceiver) {
    let (tx, rx) = mpsc::channel(batches_max);
    (
        Admission {
            tx,
            bytes: Arc::new(Semaphore::new(bytes_max as usize)),
            bytes_max,
            admission_control,
            checks: None,
            readings_bytes_max: BYTES_MAX,
            keys: RequestKeys::default(),
        },
        rx,
    )
}

impl Admission {
    /// The same admission for readings that are checked.
    #[must_use]
    pub fn checking(self, checks: Checks) -> Admission {
        Admission {
            checks: Some(checks),
            ..self
        }
    }

    /// The same admission for a next stage that accepts at most this many bytes of readings in one
    /// ingest batch.
    #[must_use]
    pub fn limiting_readings(self, readings_bytes_max: usize) -> Admission {
        Admission {
            readings_bytes_max,
            ..self
        }
    }

    /// The same admission, which remembers the keys of requests.
    #[must_use]
    pub fn remembering(self, keys: RequestKeys) -> Admission {
        Admission { keys, ..self }
    }

    /// The keys of requests.
    pub fn keys(&self) -> &RequestKeys {
        &self.keys
    }

    /// The same admission without the next stage, which does not wait for it: it can be checked, and
    /// refuses every ingest batch.
    pub fn without_next_stage(&self) -> Admission {
        Admission {
            tx: mpsc::channel(1).0,
            checks: None,
            ..self.clone()
        }
    }

    /// Maximum size of the readings of one ingest batch, for the decoders: the next stage would
    /// refuse a larger one each time it is sent.
    pub fn readings_bytes_max(&self) -> usize {
        self.readings_bytes_max
    }

    /// The checks, for the decoders: they reject a reading while the sender can still be informed.
    pub fn checks(&self) -> Option<&Checks> {
        self.checks.as_ref()
    }

    /// Checks whether the admission is open.
    ///
    /// # Errors
    /// The reason why the admission is closed.
    pub fn check(&self) -> Result<(), AdmissionError> {
        self.admission_control.check()
    }

    /// Submits an ingest batch and waits while the limits are reached. If the future is cancelled,
    /// nothing is submitted. A caller with limited patience puts a timeout around it and answers as
    /// for [`AdmissionError::Busy`].
    ///
    /// # Errors
    /// The admission is closed; the ingest batch is dropped and its acknowledgement reports *not
    /// delivered*.
    pub async fn submit(&self, mut ingest_batch: IngestBatch) -> Result<(), AdmissionError> {
        self.admission_control.check()?;
        let bytes = u32::try_from(ingest_batch.memory_bytes())
            .unwrap_or(u32::MAX)
            .min(self.bytes_max);
        let permit = self
            .bytes
            .clone()
            .acquire_many_owned(bytes)
            .await
            .map_err(|_| AdmissionError::Stopping)?;
        let slot = self.tx.reserve().await.map_err(|_| {
            self.admission_control
                .check()
                .err()
                .unwrap_or(AdmissionError::Broken)
        })?;
        self.admission_control.check()?;
        ingest_batch.permits[0] = Some(permit);
        slot.send(ingest_batch);
        Ok(())
    }
}
