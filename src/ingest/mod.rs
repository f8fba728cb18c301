//! Ingest: one folder a protocol. Each receives bytes, has them decoded, hands the readings through the door
//! ([`crate::intake`]) and answers the sender once their acknowledgement is in. Ingest knows protocols, not buckets.

pub mod http;
pub mod mqtt;
mod tls;

pub use tls::TlsError;
