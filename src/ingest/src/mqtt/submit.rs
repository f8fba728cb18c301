//! The submit task of a connection: submits its ingest batches to admission, in order, and waits
//! while admission is closed, so that the poll task never has to wait.
//!
//! It ends with its connection. Ingest batches that are still queued are dropped, because the
//! broker sends their messages again.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};

use journal::admission::{Admission, AdmissionError, IngestBatch};

/// Maximum queued ingest batches. At 256 KiB each, 64 MiB per broker; at 512 messages each, more
/// than the 65,535 messages that a broker may have unacknowledged.
pub(super) const BATCHES_MAX: usize = 256;

/// How often a closed admission is checked again.
const RETRY: Duration = Duration::from_millis(50);

/// Runs until the queue is closed or admission is closed permanently. Notifies `taken` of each
/// ingest batch taken off the queue.
pub async fn submit(
    mut queue: mpsc::Receiver<IngestBatch>,
    admission: Admission,
    taken: Arc<Notify>,
) {
    while let Some(ingest_batch) = queue.recv().await {
        taken.notify_one();
        // Checked before, because `submit` drops an ingest batch that it refuses.
        while let Err(AdmissionError::Busy | AdmissionError::Full) = admission.check() {
            tokio::time::sleep(RETRY).await;
        }
        match admission.submit(ingest_batch).await {
            Ok(()) => {}
            // Admission closed while the ingest batch waited. Its acknowledgement has reported
            // that, and the connection ends when all messages before it are acknowledged.
            Err(AdmissionError::Busy | AdmissionError::Full) => {}
            Err(AdmissionError::Stopping | AdmissionError::Broken) => return,
        }
    }
}
