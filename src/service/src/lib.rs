//! hourbucket stores sensor readings from MQTT and HTTP in MongoDB, in hourly buckets, each
//! acknowledged reading exactly once.
//!
//! The tree is the pipeline:
//!
//! ```text
//!  bytes ─[ingest]─> message ─[decode]─> readings + rejects ─[admission]─> ingest batch ─[journal]─> durable, acknowledged
//!        ─[route]─> shard ─[accumulate]─> open bucket ─[flush]─> command ─[store]─> MongoDB
//! ```
//!
//! Optional stages: [`latest`] maintains the newest state of each sensor; [`enrich`] adds the tags
//! of a registry to pages; [`rollup`] maintains daily summaries. [`dead_letters`] keeps and replays
//! messages and readings that could not be decoded or stored. [`read`] returns acknowledged
//! readings, stored or not. [`promql`] evaluates queries over them.
//!
//! An acknowledgement ([`ack`]) travels with every reading and returns when the reading is safe.
//! Apart from it, only backpressure (a full channel) flows upstream. [`app`] is the only module
//! that depends on all stages.
//!
//! Invariants:
//! - A reading is acknowledged after the journal's fdatasync, or with `ack = "stored"` after a
//!   majority write; never before. Dropping an acknowledgement reports *not delivered*.
//! - A page in the store is changed only by a write that names its version. If the write finds
//!   another version, or its answer is lost, the bucket is loaded and compared. There are no
//!   transactions, and no tokens in documents.
//! - At most one statement or load of a bucket is in flight. A bucket has one owner, its shard.
//! - Every queue, body, batch, wait and retry has a limit. Nothing acknowledged is dropped when a
//!   limit is reached.
//!
//! What must not be here: a lock around readings, an unbounded queue in the pipeline, a metric or
//! log line per reading, a label with a sensor id, a second place that decides what is a duplicate
//! ([`accumulate::bucket`] does), a retry that does not check what the first attempt did.
//!
//! Pure modules (no async, IO, clock): [`model`], [`decode`], [`maintain`], [`promql`],
//! `accumulate::{bucket, state}`, `flush::{age, due, backoff}`,
//! `commit_delay`, `app::progress`, `admin::health::store`, `ingest::mqtt::{acks, collect, losses,
//! observe, reason, retained, subscribe, websocket, window}`, `ingest::packet_fields`,
//! `ingest::proxy::{forwarded, header}`, `ingest::listen::{codec, exchanges, frames, inflight,
//! strict}`, `latest::state`, `rollup::state`, `enrich::registry`, `read::{hours, merge}`.
//! `tests/architecture.rs` enforces these rules.

pub mod app;
pub mod cli;
pub mod replay;
pub mod shutdown;
pub mod systemd;
