//! Acknowledged readings that cannot be stored.

use std::sync::Arc;

use model::ack::Acks;
use model::{Rows, SensorId};

/// Readings that the store refuses permanently, or has failed for too long. They are kept as dead
/// letters before the acknowledgements are delivered.
#[derive(Debug)]
pub struct RejectedRows {
    /// The sensor of all rows.
    pub sensor_id: SensorId,
    /// The rows to keep.
    pub rows: Arc<Rows>,
    /// Why they are not stored.
    pub reason: RejectCause,
    /// The store's error text.
    pub detail: String,
    /// To be delivered when the dead letters are stored.
    pub acks: Acks,
}

/// Why acknowledged readings become dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectCause {
    /// The store refuses them permanently.
    StoreRejected,
    /// Reads or writes of their bucket have failed for too long.
    Quarantined,
    /// The readings of their bucket were removed, so they cannot be compared with them
    /// ([`store::retention`]).
    ReadingsRemoved,
}

impl RejectCause {
    /// The `reason` of the dead letters and of the metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            RejectCause::StoreRejected => "store_rejected",
            RejectCause::Quarantined => "quarantined",
            RejectCause::ReadingsRemoved => "readings_removed",
        }
    }
}
