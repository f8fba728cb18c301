//! The second task of a connection: hands its ingest batches to the intake, in order, and waits where the intake does not take
//! them, so that the first task never has to.
//!
//! It ends with its connection; ingest batches that still wait then are dropped, since the broker sends their messages again.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};

use crate::admission::{Admission, AdmissionError, IngestBatch};

/// IngestReceiver that may wait here. At 256 KiB each, 64 MiB a broker; at 512 messages each, more than the 65,535 messages
/// that a broker may have un-acknowledged.
pub(super) const BATCHES_MAX: usize = 256;

/// How often a closed admission is tried again.
const RETRY: Duration = Duration::from_millis(50);

/// Runs until the queue is closed or the intake is closed for good. Tells `taken` of each ingest batch taken off the queue.
pub(in crate::ingest) async fn submit(
    mut queue: mpsc::Receiver<IngestBatch>,
    admission: Admission,
    taken: Arc<Notify>,
) {
    while let Some(ingest_batch) = queue.recv().await {
        taken.notify_one();
        // Asked before, since an ingest batch that `submit` refuses is gone.
        while let Err(AdmissionError::Busy | AdmissionError::Full) = admission.check() {
            tokio::time::sleep(RETRY).await;
        }
        match admission.submit(ingest_batch).await {
            Ok(()) => {}
            // Admission was closed while the ingest batch waited in it. Its acknowledgement has said so, and the connection
            // ends when all before it is acknowledged.
            Err(AdmissionError::Busy | AdmissionError::Full) => {}
            Err(AdmissionError::Stopping | AdmissionError::Broken) => return,
        }
    }
}
