//! hourbucket: sensor readings over MQTT and HTTP into MongoDB as hourly buckets, each acknowledged reading exactly once.
//!
//! The tree is the pipeline:
//!
//! ```text
//!  bytes ─[ingest]─> message ─[decode]─> readings + rejects ─[intake]─> ingest batch ─[journal]─> durable, acknowledged
//!        ─[route]─> shard ─[accumulate]─> open bucket ─[flush]─> command ─[store]─> MongoDB
//! ```
//!
//! Beside it, where switched on: [`latest`] keeps the fleet's newest state, [`enrich`] gives pages the tags of a registry.
//! [`replay`] reads dead letters again, as a second instance. [`read`] shows what was acknowledged, stored or not.
//!
//! An acknowledgement ([`ack`]) goes along with every reading and comes back when it is safe; a channel that is full is
//! the only other thing that flows back. [`app`] is the only place that knows all stages.
//!
//! What always holds:
//! - A reading is acknowledged after the journal's fdatasync, or with `ack = "stored"` after a majority write; never
//!   before. Whoever drops an acknowledgement says *not delivered*.
//! - A page in the store is changed only by a write that names its version. A write that meets another version, or whose
//!   answer never came, is followed by a load and a comparison; there are no transactions, and no tokens in documents.
//! - At most one statement or load of a bucket is in flight; a bucket has one owner, its shard.
//! - Every queue, body, batch, wait and retry has a limit; nothing acknowledged is dropped when it is reached.
//!
//! What must not be here: a lock around readings, an unbounded queue on the way of a reading, a metric or log line for
//! each reading, a label with a sensor's id, a second place that decides what is a duplicate
//! ([`accumulate::bucket`] does), a retry that does not ask what the first try did.
//!
//! Pure (no async, IO, clock): [`model`], [`decode`], [`maintain`], `accumulate::{bucket, state}`, `flush::{due, backoff}`,
//! `app::progress`, `ingest::mqtt::{acks, collect, retained, window}`, `ingest::listen::{codec, exchanges, frames, inflight}`,
//! `latest::state`, `enrich::registry`, `read::{hours, merge}`.
//! `tests/architecture.rs` holds these rules.

pub mod accumulate;
pub mod ack;
pub mod admin;
pub mod admission;
pub mod app;
pub mod check;
pub mod config;
pub mod decode;
pub mod enrich;
pub mod flush;
pub mod ingest;
pub mod journal;
pub mod latest;
pub mod maintain;
pub mod model;
pub mod probe;
pub mod read;
pub mod replay;
pub mod route;
pub mod shutdown;
pub mod store;
pub mod systemd;
pub mod telemetry;
