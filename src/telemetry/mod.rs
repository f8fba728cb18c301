//! Metrics (functions in [`metrics`], descriptions in [`catalog`]), the log ([`log`]) and the table of rejected senders
//! ([`rejected`]).

pub mod catalog;
pub mod log;
pub(crate) mod log_limit;
pub mod metrics;
mod process;
pub mod rejected;
