//! MQTT: a pair of tasks for each configured broker.
//!
//! Constraints:
//! - A PUBACK is sent only after the message is safe, in order of receipt, and never for a message
//!   of another connection.
//! - A message that cannot be decoded becomes a dead letter, and is acknowledged when that is safe.
//! - Pings are sent regardless of the next stage.
//! - The throughput is near that of a subscriber that only acknowledges.
//!
//! The life of a message:
//!
//! ```text
//! broker ─link─> poll task ─collect─> ingest batch ─queue─> submit task ─> Admission ─> … durable
//!                   │  ledger: ids in order, by ingest batch                            │
//! broker <──PUBACK──┴──────────────── the ingest batch's Ack ───────────────────────────┘
//! ```
//!
//! - `check` logs in and subscribes once, for `hourbucket check`.
//! - `client` and `connection` are the poll task. It waits only for the link. It takes the messages
//!   that are immediately available, collects them (`collect`) into one ingest batch with one
//!   acknowledgement, and queues the batch when no more messages are available or the batch is
//!   full. While the submit task is busy, batches are filled first, so they grow under load.
//! - The submit task (in `client`) waits while the next stage does not accept ingest batches.
//! - `acks` tracks which messages may be acknowledged.
//! - `link`, with `v4` and `v5`, is one connection, and decides when the broker seems to be gone.
//!   `transport` opens its stream, with `socket` and `target`, which also reads certificates and
//!   password. `observe` notes what the broker says about the connection,
//!   `reason` what its codes mean.
//! - `presence` is what is published about the service itself, and the will.
//! - `subscribe` tracks which filters are requested and granted. `losses` and `backoff` decide what
//!   is said of a lost connection, and when the next one is opened.
//! - `retained` remembers which retained messages were accepted. `window` measures how long
//!   messages stay unacknowledged.
//!
//! Full: with MQTT 5 at most `window` messages are unacknowledged (receive maximum). With 3.1.1 the
//! broker's own limit applies, at most 65,535. The queue holds that many unless they are large. If
//! the queue is full nevertheless, a QoS 1 message and all messages after it are refused. Pings
//! continue, accepted messages are acknowledged as they become safe, and then the task reconnects
//! so that the broker sends the rest again. QoS 0 messages are rejected (`queue_full`) as soon as
//! the queue is half full, so that they never displace QoS 1.
//!
//! Not delivered: the same. The messages before it are acknowledged, then the task reconnects with
//! backoff.
//!
//! Crash: the broker's session still has every unacknowledged message.
//!
//! Slow: if acknowledgements slow down (the journal is full, its disk is slow, or the store with
//! `ack = "stored"`), the poll task continues and pings the broker. The backlog is visible in
//! `mqtt_unacked`, `mqtt_oldest_unacked_seconds` and `mqtt_window_full_seconds_total`, and a log
//! line names the cause.
//!
//! Retained messages, `retained = "once"`: the broker sends its retained messages on SUBSCRIBE,
//! which is sent on each connection. With MQTT 5 it does so only for a subscription that its session
//! does not have yet (Retain Handling 1), so a restart of hourbucket with a live session repeats
//! nothing. With 3.1.1, which has no such option, and whenever the session was lost, the broker
//! sends everything. A message that equals the newest acknowledged message of its topic is then acknowledged and skipped. That
//! memory belongs to the process: after a restart with 3.1.1, or with a lost session, each retained
//! message is accepted once more (one with its own timestamp is a duplicate, and stored once all
//! the same). Messages that changed meanwhile are always accepted.
//!
//! Shared subscriptions, `$share/group/filter`: each message is sent to one instance of the group,
//! and all instances may write the same sensors (in bucket mode exactly once; in time-series mode,
//! two instances on one sensor are at-least-once). When an instance dies, the broker lacks its
//! PUBACKs. With a live session (clean_start false, session_expiry longer than the restart takes)
//! mosquitto keeps the messages of the dead instance, both those in flight and those that it
//! continues to assign to it, and sends them when the same client id reconnects: nothing is lost,
//! but they wait. So an instance must come back under its name (a StatefulSet does that). If the
//! session ends first, MQTT 5 §4.8.2 only says that the broker *should* send the messages to
//! another instance; mosquitto drops them. Acknowledged messages stay in the dead instance's
//! journal until it starts again on the same disk; with `ack = "stored"` there is no such wait.
//! Messages that both instances received are stored once. `tests/servers/mqtt_share.rs` kills one
//! of two instances and counts.
//!
//! Shutdown: after `stop` no more messages are accepted; accepted ones are handed over and
//! acknowledged. When all are, or after `drained`, DISCONNECT is sent.

mod acks;
mod backoff;
mod births_file;
mod broker;
mod check;
pub(crate) mod client;
pub mod collect;
mod connection;
mod event;
pub mod link;
mod losses;
mod observe;
mod pace;
mod presence;
mod reason;
mod retained;
mod socket;
mod subscribe;
mod target;
mod transport;
mod v4;
mod v5;
mod window;

pub use births_file::{births_path, read_births};
pub use broker::{BrokerStatus, OnStatus};
pub use check::check;
pub use client::spawn;
pub(crate) use collect::{CollectedBatch, Collector, Settings as CollectorSettings};
pub use target::SetupError;
