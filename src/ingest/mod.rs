//! Ingest: one folder a protocol. Each receives bytes, has them decoded, hands the readings through admission
//! ([`crate::admission`]) and answers the sender once their acknowledgement is in. Ingest knows protocols, not buckets.

pub mod http;
pub mod listen;
pub mod mqtt;
pub mod redecode;
pub(crate) mod tls;
pub mod tokens;

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

pub use tls::{OnTls, TlsError, TlsStatus};

use crate::admission::Admission;
use crate::config::{AckMode, Decoding, Live};
use crate::model::Clock;

/// What a way in is given beside its own settings.
#[derive(Clone)]
pub struct IngestDeps {
    /// What decoding depends on.
    pub decoding: Live<Decoding>,
    /// What an acknowledgement waits for, to name it where that is slow.
    pub ack: AckMode,
    /// The next stage.
    pub admission: Admission,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Told how the certificates of a port stand.
    pub on_tls: OnTls,
    /// Cancelled: take no more, and see that what was taken is acknowledged.
    pub stop: CancellationToken,
    /// Cancelled: end, whatever is left.
    pub drained: CancellationToken,
}
