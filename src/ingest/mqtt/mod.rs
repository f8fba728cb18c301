//! MQTT: one pair of tasks for each configured broker.
//!
//! Constraints: a PUBACK only after the message is safe, in order of receipt, never for another connection's message;
//! a message that cannot be decoded becomes a dead letter and is acknowledged then; pings go out whatever the next stage
//! does; near the speed of a subscriber that only acknowledges.
//!
//! The way of a message:
//!
//! ```text
//! broker ─link─> poll task ─collect─> ingest batch ─queue─> submit task ─> Admission ─> … durable
//!                   │  ledger: ids in order, by ingest batch                            │
//! broker <──PUBACK──┴──────────────── the ingest batch's Ack ───────────────────────────┘
//! ```
//!
//! - `client` and `connection` are the poll task. It waits for nothing but the link: it takes what is immediately there,
//!   gathers it (`collect`) into one ingest batch with one acknowledgement, and queues the ingest batch when nothing more is there, or
//!   when it is full. While the submit task is behind, ingest batches are filled first, so batches grow by themselves.
//! - `submit` waits where the next stage does not take ingest batches.
//! - `acks` knows which messages may be acknowledged.
//! - `link`, with `v4` and `v5`, is one connection; `socket` and `target` lie under it, `files` holds certificates and
//!   password.
//! - `redecode` reads dead letters again.
//! - `retained` knows which retained messages were taken, `window` how the unacknowledged ones stand.
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
//! Slow: whatever slows the acknowledgements down (the journal is full, its disk is slow, the store is where
//! `ack = "stored"`), the poll task goes on and pings the broker, and what waits is seen in `mqtt_unacked`,
//! `mqtt_oldest_unacked_seconds` and `mqtt_window_full_seconds_total`, with a line in the log that names the cause.
//!
//! Retained messages, `retained = "once"`: the broker sends what it has retained when it is subscribed to. With MQTT 5 it
//! is asked to do so only for a subscription that its session does not have yet (Retain Handling 1), so a restart of
//! hourbucket with a session that lives brings nothing again; with 3.1.1, where that cannot be asked for, and wherever the
//! session was lost, it sends everything, and what equals the newest acknowledged message of its topic is acknowledged
//! and left out. That memory is of this process: after a restart with 3.1.1, or with a lost session, each retained message
//! is taken once more (one with a time of its own is a duplicate and stored once all the same). What changed meanwhile is
//! taken in any case.
//!
//! Shared subscriptions, `$share/group/filter`: each message goes to one instance of the group, and all instances may
//! write the same sensors (in bucket mode exactly once; in time-series mode two on one sensor are at-least-once). When an instance dies, the broker has not had its PUBACKs: with a session that lives (clean_start
//! false, session_expiry longer than the restart takes) mosquitto keeps the dead one's messages for it, those in flight and
//! those that it goes on choosing for it, and sends them when the same client id is back: nothing is lost, but they wait.
//! So an instance must come back under its name (a StatefulSet does that). Where the session ends first, MQTT 5 §4.8.2 only
//! says that the broker *should* send the messages to another instance; mosquitto drops them. What was acknowledged lies in
//! the dead instance's journal until it starts again on the same disk; with `ack = "stored"` there is no such wait. What
//! both had is stored once. `tests/servers/mqtt_share.rs` kills one of two and counts.
//!
//! Shutdown: after `stop` nothing more is taken, what was taken is handed over and acknowledged; when all is, or after
//! `drained`, DISCONNECT.

mod acks;
mod backoff;
mod client;
pub(in crate::ingest) mod collect;
mod connection;
mod files;
pub(in crate::ingest) mod link;
pub(in crate::ingest) mod redecode;
pub(in crate::ingest) mod retained;
mod socket;
pub(in crate::ingest) mod submit;
mod target;
mod v4;
mod v5;
mod window;

pub use client::{BrokerStatus, OnStatus, spawn};
pub use target::SetupError;

/// Host and port of a broker's URL, the port of its scheme where it names none.
///
/// # Errors
/// The URL cannot be used.
pub fn address(url: &str) -> Result<String, SetupError> {
    target::Target::parse(url).map(|target| target.label())
}
