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
//! Each stage is a crate below `src/`, and Cargo refuses what a stage must not name:
//!
//! | crate | task | names |
//! |---|---|---|
//! | [`model`] | what all others talk about | |
//! | [`config`] | the settings | model |
//! | [`telemetry`] | metrics, logs, audit | config |
//! | [`decode`] | bytes to readings and rejects | config |
//! | [`journal`] | admission; durable before acknowledged | telemetry |
//! | [`store`] | the interface to a database, and MongoDB | telemetry |
//! | [`net`] | access, TLS, connections, the HTTP port | telemetry |
//! | [`ingest`] | HTTP, MQTT client, MQTT listener | net, decode, journal |
//! | [`pipeline`] | route, accumulate, flush, latest, rollup, enrich, dead letters | journal, store |
//! | [`query`] | PromQL, read API, admin port | pipeline, store, net, journal |
//! | this one | [`app`] connects them, [`cli`] has the commands | all |
//!
//! An acknowledgement ([`model::ack`]) travels with every reading and returns when the reading is safe.
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
//! ([`pipeline::accumulate::bucket`] does), a retry that does not check what the first attempt did.
//!
//! `tests/architecture/rules.rs` lists the pure modules (no async, IO, clock), among them all of
//! [`model`], [`decode`] and [`query::promql`].

pub mod app;
pub mod cli;
pub mod replay;
pub mod shutdown;
mod systemd;
