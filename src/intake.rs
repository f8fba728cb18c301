//! The door between ingest and the next stage (the journal, or the router where `ack = "stored"`).
//!
//! Ingest hands over [`Parcel`]s; whoever owns the receiving end takes them in order. Two limits hold at the door: a
//! number of parcels (the channel) and a number of bytes (a semaphore whose permit travels in the parcel and is given
//! back when the parcel is dropped, that is when its readings are journaled or in a shard's budget). The next stage can
//! close the door for a while (journal full) or for good (stopping, broken); senders see that before they hand over
//! anything, so that a refusal never leaves half a parcel behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::ack::Ack;
use crate::model::{DeadLetter, FieldLimiter, ReadingBatch, memory};

/// What ingest hands over at once: readings and the letters that could not be decoded, behind one acknowledgement.
#[derive(Debug)]
pub struct Parcel {
    /// The readings; may be empty where there are dead letters.
    pub batch: ReadingBatch,
    /// Messages to keep as dead letters; safe before the acknowledgement is given, like the readings.
    pub dead: Vec<DeadLetter>,
    /// Delivered when all of it is safe.
    pub ack: Ack,
    permit: Option<OwnedSemaphorePermit>,
}

impl Parcel {
    /// A parcel.
    pub fn new(batch: ReadingBatch, dead: Vec<DeadLetter>, ack: Ack) -> Parcel {
        Parcel { batch, dead, ack, permit: None }
    }

    /// Bytes held by it.
    pub fn memory_bytes(&self) -> usize {
        self.batch.memory_bytes() + self.dead.iter().map(letter_bytes).sum::<usize>()
    }

    /// Gives back the permit at once and leaves the contents.
    pub fn into_parts(self) -> (ReadingBatch, Vec<DeadLetter>, Ack) {
        (self.batch, self.dead, self.ack)
    }
}

fn letter_bytes(letter: &DeadLetter) -> usize {
    let DeadLetter { received_at_ms: _, source, topic, payload, reason, detail } = letter;
    let texts = [source.capacity(), topic.capacity(), payload.capacity(), reason.capacity(), detail.capacity()];
    size_of::<DeadLetter>() + texts.into_iter().map(memory::block).sum::<usize>()
}

/// Why the door is closed. Nothing of the parcel was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
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

/// Opens and closes the door; the worst state wins, only [`Gate::full`] can be taken back.
#[derive(Debug, Clone, Default)]
pub struct Gate(Arc<AtomicU8>);

impl Gate {
    /// Closes the door while `full`, opens it again afterwards.
    pub fn full(&self, full: bool) {
        let (from, to) = if full { (OPEN, FULL) } else { (FULL, OPEN) };
        // Stopping and broken stay as they are.
        let _ = self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Closes the door for good: the service is stopping.
    pub fn stop(&self) {
        self.0.fetch_max(STOPPING, Ordering::AcqRel);
    }

    /// Closes the door for good: the service has failed.
    pub fn broken(&self) {
        self.0.fetch_max(BROKEN, Ordering::AcqRel);
    }

    /// Whether the door is open, and if not, why.
    ///
    /// # Errors
    /// The reason why it is closed.
    pub fn check(&self) -> Result<(), Refused> {
        match self.0.load(Ordering::Acquire) {
            OPEN => Ok(()),
            FULL => Err(Refused::Full),
            STOPPING => Err(Refused::Stopping),
            _ => Err(Refused::Broken),
        }
    }
}

/// Ingest's handle of the next stage.
#[derive(Debug, Clone)]
pub struct Intake {
    tx: mpsc::Sender<Parcel>,
    bytes: Arc<Semaphore>,
    bytes_max: u32,
    gate: Gate,
    fields: Option<FieldLimiter>,
}

/// The receiving end, owned by the journal or the router.
pub type Parcels = mpsc::Receiver<Parcel>;

/// A door that lets through `parcels_max` waiting parcels of `bytes_max` bytes in all; a parcel larger than that passes
/// alone.
pub fn door(parcels_max: usize, bytes_max: u32, gate: Gate) -> (Intake, Parcels) {
    let (tx, rx) = mpsc::channel(parcels_max);
    (Intake { tx, bytes: Arc::new(Semaphore::new(bytes_max as usize)), bytes_max, gate, fields: None }, rx)
}

impl Intake {
    /// The same door, at which the field names of each sensor and bucket are counted.
    #[must_use]
    pub fn counting_fields(self, fields: FieldLimiter) -> Intake {
        Intake { fields: Some(fields), ..self }
    }

    /// What counts field names, for whoever decodes: a reading that brings too many is rejected where its sender can be
    /// told.
    pub fn fields(&self) -> Option<&FieldLimiter> {
        self.fields.as_ref()
    }

    /// Whether the door is open.
    ///
    /// # Errors
    /// The reason why it is closed.
    pub fn check(&self) -> Result<(), Refused> {
        self.gate.check()
    }

    /// Hands over a parcel, waiting while the limits are reached. Cancelling the future hands over nothing; a caller
    /// that will not wait for ever puts a timeout around it and answers as for [`Refused::Busy`].
    ///
    /// # Errors
    /// The door is closed; the parcel is dropped and its acknowledgement says *not delivered*.
    pub async fn submit(&self, mut parcel: Parcel) -> Result<(), Refused> {
        self.gate.check()?;
        let bytes = u32::try_from(parcel.memory_bytes()).unwrap_or(u32::MAX).min(self.bytes_max);
        let permit = self.bytes.clone().acquire_many_owned(bytes).await.map_err(|_| Refused::Stopping)?;
        let slot = self.tx.reserve().await.map_err(|_| self.gate.check().err().unwrap_or(Refused::Broken))?;
        self.gate.check()?;
        parcel.permit = Some(permit);
        slot.send(parcel);
        Ok(())
    }
}
