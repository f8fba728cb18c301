//! The second task of a connection: hands its parcels to the intake, in order, and waits where the intake does not take
//! them, so that the first task never has to.
//!
//! It ends with its connection; parcels that still wait then are dropped, since the broker sends their messages again.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};

use crate::intake::{Intake, Parcel, Refused};

/// Parcels that may wait here. At 256 KiB each, 64 MiB a broker; at 512 messages each, more than the 65,535 messages
/// that a broker may have un-acknowledged.
pub(super) const PARCELS_MAX: usize = 256;

/// How often a closed door is tried again.
const RETRY: Duration = Duration::from_millis(50);

/// Runs until the queue is closed or the intake is closed for good. Tells `taken` of each parcel taken off the queue.
pub(in crate::ingest) async fn submit(mut queue: mpsc::Receiver<Parcel>, intake: Intake, taken: Arc<Notify>) {
    while let Some(parcel) = queue.recv().await {
        taken.notify_one();
        // Asked before, since a parcel that `submit` refuses is gone.
        while let Err(Refused::Busy | Refused::Full) = intake.check() {
            tokio::time::sleep(RETRY).await;
        }
        match intake.submit(parcel).await {
            Ok(()) => {}
            // The door was closed while the parcel waited in it. Its acknowledgement has said so, and the connection
            // ends when all before it is acknowledged.
            Err(Refused::Busy | Refused::Full) => {}
            Err(Refused::Stopping | Refused::Broken) => return,
        }
    }
}
