//! Ingest: one folder per protocol. Each receives bytes, decodes them, submits the readings through
//! admission ([`journal::admission`]) and answers the sender once the readings are acknowledged.
//!
//! In: connections of [`net`], settings. Out: ingest batches, with an acknowledgement each.
//!
//! The path of a message: [`http`] (gateways post), [`listen`] (devices connect over MQTT) or [`mqtt`]
//! (the service subscribes at a broker) receive it, within limits of size, time, memory and number. The
//! decoder of its format makes readings and rejects of it. What cannot be decoded is refused (HTTP) or
//! kept as a dead letter (MQTT, hooks), which [`redecode`] reads again later.
//!
//! Invariants:
//! - A sender gets a positive answer only after every accepted reading of its message was acknowledged
//!   as delivered.
//! - While admission is closed nothing is accepted in part.
//! - An MQTT acknowledgement is sent on the connection that delivered the message, or not at all.
//!
//! What must not be here: what a bucket is, what a duplicate is, how anything is stored.

pub mod http;
pub mod listen;
pub mod mqtt;
mod packet_fields;
pub mod redecode;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use config::{AckMode, Decoding, Live};
use decode::OutOfRange;
use journal::admission::Admission;
use model::Clock;
use net::access::GrantDefaults;
use net::tls::OnTls;
use telemetry::metrics;

/// What every protocol needs in addition to its own settings.
#[derive(Clone)]
pub struct IngestDeps {
    /// Settings of the decoders; replaced when the configuration is reloaded.
    pub decoding: Live<Decoding>,
    /// What an acknowledgement waits for. Named in warnings about slow acknowledgements.
    pub ack: AckMode,
    /// What the grants of senders are made with.
    pub grants: GrantDefaults,
    /// Accepts ingest batches for the next stage.
    pub admission: Admission,
    /// How long the messages of a port may be collected while more keep arriving; zero if no sync
    /// is saved by it.
    pub commit_delay: Duration,
    /// Wall clock and monotonic clock.
    pub clock: Arc<dyn Clock>,
    /// Receives the certificate status of a port.
    pub on_tls: OnTls,
    /// Where the births of Sparkplug B nodes are kept over a restart; `None`: nowhere.
    pub births_dir: Option<PathBuf>,
    /// `sparkplug.host_id`.
    pub sparkplug_host: Option<Arc<str>>,
    /// When cancelled: accept no more messages, and wait until accepted ones are acknowledged.
    pub stop: CancellationToken,
    /// When cancelled: end immediately, even if messages are unacknowledged.
    pub drained: CancellationToken,
}

/// Counts the values outside of their ranges.
fn count_out_of_range(found: &OutOfRange) {
    for (fields, action, n) in found.counts() {
        metrics::values_out_of_range_total(fields, *action, *n);
    }
}
