//! Bytes from senders: each protocol in a module of its own, each handing parcels to [`crate::intake::Intake`].

pub mod mqtt;
