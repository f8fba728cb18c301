//! Net: what every port needs, whatever protocol it speaks.
//!
//! In: sockets, certificates, tokens, the settings of a port. Out: connections of peers that are
//! known and within their limits, and for HTTP a served port with decompressed bodies.
//!
//! The path of a connection: [`connections`] decides whether it may exist (per address, per sender,
//! per phase), [`proxy`] finds who is behind a proxy, [`tls`] makes the handshake, [`access`] says
//! who the sender is and what it may do, [`shares`] divides what senders share. [`http`] is the HTTP
//! port that ingest and the admin port have in common.
//!
//! Invariants:
//! - Every connection is counted until it ends, and has a time limit in each of its phases.
//! - A peer's address is that of the socket, unless a proxy that the settings name says otherwise.
//! - A secret is never stored, only its hash; it appears in no error, log line or metric.
//!
//! What must not be here: what a reading is, what a route does, how a sender is answered.

pub mod access;
pub mod connections;
pub mod http;
pub mod proxy;
pub mod shares;
pub mod tls;
