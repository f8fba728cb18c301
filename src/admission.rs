//! The admission between ingest and the next stage (the journal, or the router where `ack = "stored"`).
//!
//! Ingest hands over [`IngestBatch`]s; whoever owns the receiving end takes them in order. Two limits hold at the admission: a
//! number of ingest batches (the channel) and a number of bytes (a semaphore whose permit travels in the ingest batch and is given
//! back when the ingest batch is dropped, that is when its readings are journaled or in a shard's budget). The next stage can
//! close the admission for a while (journal full) or for good (stopping, broken); senders see that before they hand over
//! anything, so that a refusal never leaves half an ingest batch behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::ack::Ack;
use crate::model::{DeadLetter, FieldLimiter, ReadingBatch, memory};

/// What ingest hands over at once: readings and the dead letters that could not be decoded, behind one acknowledgement.
#[derive(Debug)]
pub struct IngestBatch {
    /// The readings; may be empty where there are dead letters.
    pub batch: ReadingBatch,
    /// Messages to keep as dead letters; safe before the acknowledgement is given, like the readings.
    pub dead: Vec<DeadLetter>,
    /// Delivered when all of it is safe.
    pub ack: Ack,
    permit: Option<OwnedSemaphorePermit>,
}

impl IngestBatch {
    /// An ingest batch.
    pub fn new(batch: ReadingBatch, dead: Vec<DeadLetter>, ack: Ack) -> IngestBatch {
        IngestBatch { batch, dead, ack, permit: None }
    }

    /// Bytes held by it.
    pub fn memory_bytes(&self) -> usize {
        self.batch.memory_bytes() + self.dead.iter().map(dead_letter_bytes).sum::<usize>()
    }

    /// Gives back the permit at once and leaves the contents.
    pub fn into_parts(self) -> (ReadingBatch, Vec<DeadLetter>, Ack) {
        (self.batch, self.dead, self.ack)
    }
}

fn dead_letter_bytes(dead_letter: &DeadLetter) -> usize {
    let DeadLetter { received_at_ms: _, source, topic, payload, reason, detail } = dead_letter;
    let texts = [source.capacity(), topic.capacity(), payload.capacity(), reason.capacity(), detail.capacity()];
    size_of::<DeadLetter>() + texts.into_iter().map(memory::block).sum::<usize>()
}

/// Why the admission is closed. Nothing of the ingest batch was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AdmissionError {
    /// More is waiting than the limits allow: try again in a moment.
    #[error("too much is waiting to be stored; try again later")]
    Busy,
    /// The journal has reached `journal.max_bytes` or the disk is full: try again when the store has caught up.
    #[error("the journal is full; try again later")]
    Full,
    /// The service is shutting down.
    #[error("the service is stopping")]
    Stopping,
    /// A part of the service has failed and it takes no more until it is restarted.
    #[error("the service has failed and takes no more readings; its log says why")]
    Broken,
}

const OPEN: u8 = 0;
const FULL: u8 = 1;
const STOPPING: u8 = 2;
const BROKEN: u8 = 3;

/// Opens and closes the admission; the worst state wins, only [`AdmissionControl::full`] can be taken back.
#[derive(Debug, Clone, Default)]
pub struct AdmissionControl(Arc<AtomicU8>);

impl AdmissionControl {
    /// Closes the admission while `full`, opens it again afterwards.
    pub fn full(&self, full: bool) {
        let (from, to) = if full { (OPEN, FULL) } else { (FULL, OPEN) };
        // Stopping and broken stay as they are.
        let _ = self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Closes the admission for good: the service is stopping.
    pub fn stop(&self) {
        self.0.fetch_max(STOPPING, Ordering::AcqRel);
    }

    /// Closes the admission for good: the service has failed.
    pub fn broken(&self) {
        self.0.fetch_max(BROKEN, Ordering::AcqRel);
    }

    /// Whether the admission is open, and if not, why.
    ///
    /// # Errors
    /// The reason why it is closed.
    pub fn check(&self) -> Result<(), AdmissionError> {
        match self.0.load(Ordering::Acquire) {
            OPEN => Ok(()),
            FULL => Err(AdmissionError::Full),
            STOPPING => Err(AdmissionError::Stopping),
            _ => Err(AdmissionError::Broken),
        }
    }
}

/// Ingest's handle of the next stage.
#[derive(Debug, Clone)]
pub struct Admission {
    tx: mpsc::Sender<IngestBatch>,
    bytes: Arc<Semaphore>,
    bytes_max: u32,
    admission_control: AdmissionControl,
    fields: Option<FieldLimiter>,
}

/// The receiving end, owned by the journal or the router.
pub type IngestReceiver = mpsc::Receiver<IngestBatch>;

/// A admission that lets through `batches_max` waiting ingest batches of `bytes_max` bytes in all; an ingest batch larger than that passes
/// alone.
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
            fields: None,
        },
        rx,
    )
}

impl Admission {
    /// The same admission, at which the field names of each sensor and bucket are counted.
    #[must_use]
    pub fn counting_fields(self, fields: FieldLimiter) -> Admission {
        Admission { fields: Some(fields), ..self }
    }

    /// What counts field names, for whoever decodes: a reading that brings too many is rejected where its sender can be
    /// told.
    pub fn fields(&self) -> Option<&FieldLimiter> {
        self.fields.as_ref()
    }

    /// Whether the admission is open.
    ///
    /// # Errors
    /// The reason why it is closed.
    pub fn check(&self) -> Result<(), AdmissionError> {
        self.admission_control.check()
    }

    /// Hands over an ingest batch, waiting while the limits are reached. Cancelling the future hands over nothing; a caller
    /// that will not wait for ever puts a timeout around it and answers as for [`AdmissionError::Busy`].
    ///
    /// # Errors
    /// The admission is closed; the ingest batch is dropped and its acknowledgement says *not delivered*.
    pub async fn submit(&self, mut ingest_batch: IngestBatch) -> Result<(), AdmissionError> {
        self.admission_control.check()?;
        let bytes = u32::try_from(ingest_batch.memory_bytes()).unwrap_or(u32::MAX).min(self.bytes_max);
        let permit = self.bytes.clone().acquire_many_owned(bytes).await.map_err(|_| AdmissionError::Stopping)?;
        let slot = self
            .tx
            .reserve()
            .await
            .map_err(|_| self.admission_control.check().err().unwrap_or(AdmissionError::Broken))?;
        self.admission_control.check()?;
        ingest_batch.permit = Some(permit);
        slot.send(ingest_batch);
        Ok(())
    }
}
