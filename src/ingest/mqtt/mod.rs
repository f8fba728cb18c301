//! MQTT: one pair of tasks for each configured broker.
//!
//! Constraints: a PUBACK only after the message is safe, in order of receipt, never for another connection's message;
//! a message that cannot be decoded becomes a dead letter and is acknowledged then; pings go out whatever the next stage
//! does; near the speed of a subscriber that only acknowledges.
//!
//! The way of a message:
//!
//! ```text
//! broker ─link─> poll task ─collect─> parcel ─queue─> submit task ─> Intake ─> … durable
//!                   │  ledger: ids in order, by parcel                            │
//! broker <──PUBACK──┴──────────────── the parcel's Ack ───────────────────────────┘
//! ```
//!
//! - `client` and `connection` are the poll task. It waits for nothing but the link: it takes what is immediately there,
//!   gathers it (`collect`) into one parcel with one acknowledgement, and queues the parcel when nothing more is there, or
//!   when it is full. While the submit task is behind, parcels are filled first, so batches grow by themselves.
//! - `submit` waits where the next stage does not take parcels.
//! - `acks` knows which messages may be acknowledged.
//! - `link`, with `v4` and `v5`, is one connection; `letters` reads dead letters again; `socket` and `target` lie under it.
//!
//! Full: with MQTT 5 no more than `window` messages are un-acknowledged (receive maximum), with 3.1.1 the broker's own
//! limit holds, 65,535 at most. The queue takes that many unless they are large. Where it is full all the same, a QoS 1
//! message is not taken, nor any after it; pings go on, what was taken is acknowledged as it becomes safe, and then the
//! connection is made anew and the broker sends the rest again. A QoS 0 message is rejected (`queue_full`) already when
//! the queue is half full, so that it never displaces QoS 1.
//!
//! Not delivered: the same; the messages before it are acknowledged, then the connection is made anew, with back-off.
//!
//! Crash: the broker's session has every message that was not acknowledged.
//!
//! Shutdown: after `stop` nothing more is taken, what was taken is handed over and acknowledged; when all is, or after
//! `drained`, DISCONNECT.

mod acks;
mod backoff;
mod client;
mod collect;
mod connection;
pub(in crate::ingest) mod letters;
mod link;
mod socket;
mod submit;
mod target;
mod v4;
mod v5;

pub use client::{BrokerStatus, OnStatus, spawn};
pub use target::SetupError;

/// Host and port of a broker's URL, the port of its scheme where it names none.
///
/// # Errors
/// The URL cannot be used.
pub fn address(url: &str) -> Result<String, SetupError> {
    target::Target::parse(url).map(|target| target.label())
}
