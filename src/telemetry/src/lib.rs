//! Metrics (functions in [`metrics`], descriptions in [`catalog`]), the log ([`log`]), the audit
//! log ([`audit`]), hints for senders ([`hints`]), the table of rejected senders ([`rejected`]) and
//! the live view of what arrives ([`tail`]).

pub mod audit;
mod audit_file;
mod audit_limits;
pub mod catalog;
pub mod hints;
mod labels;
pub mod log;
pub mod log_limit;
pub mod metrics;
mod process;
pub mod rejected;
pub mod tail;
